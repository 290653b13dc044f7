"""Syncs of single files by the compiled disk thread, their results brought to the event loop."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from oncelog.storage.disk.sync_point import SyncPoint
from oncelog.storage.disk.thread import start_disk_thread

_logger = logging.getLogger(__name__)

Ended: TypeAlias = Callable[
    [Callable[[], Any], "asyncio.Future[Any]", Any, BaseException | None, float], None
]
"""Told of a piece of work that ended: its future, its result or error, the seconds it took."""


class DirectSyncs:
    """What the disk thread was given, in order. Belongs to one event loop after the other.

    The loop that watches the thread keeps this object until it is closed. Without a thread, or
    while syncs of another loop are under way, nothing is taken.
    """

    def __init__(self, ended: Ended) -> None:
        self._ended = ended
        self._given: deque[tuple[SyncPoint, asyncio.Future[Any]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last_number = 0
        try:
            self._thread = start_disk_thread()
        except OSError as error:
            _logger.warning("syncs take the slow way: %s", error)
            self._thread = None

    def give(
        self, loop: asyncio.AbstractEventLoop, point: SyncPoint, future: asyncio.Future[Any]
    ) -> bool:
        """Have ``point`` synced and its ``future`` ended in ``loop``; False if that cannot be."""
        if self._thread is None or (loop is not self._loop and not self._may_move_to(loop)):
            return False
        descriptor = point.lend()
        if descriptor is None:
            return False
        number = self._thread.sync(descriptor)
        if number == 0:
            point.end(0)
            return False
        self._last_number = number
        self._given.append((point, future))
        return True

    @property
    def last_given(self) -> Callable[[], None] | None:
        """What waits, on another thread, for all that is under way now; None if nothing is."""
        if self._thread is None or not self._given:
            return None
        return functools.partial(self._thread.wait, self._last_number)

    def _may_move_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        assert self._thread is not None
        if self._loop is not None and not self._loop.is_closed():
            return False
        try:
            loop.add_reader(self._thread.fileno(), self._answer)
        except OSError as error:
            _logger.warning("syncs take the slow way: %s", error)
            return False
        self._loop = loop
        return True

    def take_ended(self) -> None:
        """Bring the results there are now, rung for or not; those of earlier syncs come first."""
        if self._given:
            self._answer()

    def _answer(self) -> None:
        assert self._thread is not None
        for error_number, took_ns in self._thread.take_ended():
            point, future = self._given.popleft()
            try:
                error = point.end(error_number)
            except OSError as failure:
                error = failure
            try:
                self._ended(point, future, None, error, took_ns / 1e9)
            except RuntimeError:
                _logger.warning("a sync ended after the event loop that asked for it was closed")
