"""Blocking work beside the event loop: ``Background`` in production."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

from oncelog.actors.interfaces import ResultT
from oncelog.actors.process.clock import monotonic_s
from oncelog.actors.process.direct_syncs import DirectSyncs, Ended
from oncelog.storage.disk.sync_point import SyncPoint

_logger = logging.getLogger(__name__)


SHORT_WORK_S: Final = 0.001
"""Work that takes less is short: the loop may stand still for it rather than wait for a thread."""

STALL_S: Final = 0.01
"""Work that takes longer shows at once that the disk is not brisk any more."""

BRISK_POINTS: Final = 4
"""A short piece of work is worth one point, one that is not costs two: from here on it is brisk."""

_POINTS_MAX: Final = 8


class ThreadBackground:
    """``Background`` on one thread, so that pieces of work keep their order.

    Every sync passes here, so it is a bare queue: half the delay of an executor. Work that was
    given is run even if nobody waits for it any more.

    A sync of one plain file goes to a thread that needs no interpreter, if there is one and the
    other has nothing to do; work for the other waits there until such syncs have ended.

    Two switches between threads take longer than a short sync, so ``try_now`` does such work at
    once for as long as most small syncs were short of late, however long large ones take. A disk
    that becomes slow holds up the loop once, or a few times if not much; on the thread small syncs
    are timed too, and so it is seen to be quick again.
    """

    def __init__(self, now_s: Callable[[], float] = monotonic_s) -> None:
        self._now_s = now_s
        self._under_way = 0
        self._on_thread = 0
        self._recent = _Recent()
        self._recent_small = _Recent()
        self._syncs: DirectSyncs | None = None
        self._queue: SimpleQueue[_Piece | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=_work_off, args=(self._queue, now_s), name="oncelog-disk", daemon=True
        )
        self._is_started = False
        weakref.finalize(self, self._queue.put, None)

    def run(self, work: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """Run ``work`` on a thread, which has it in its queue when this returns."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._under_way += 1
        if isinstance(work, SyncPoint) and not self._on_thread:
            if self._syncs is None:
                self._syncs = DirectSyncs(self._end)
            if self._syncs.give(loop, work, future):
                return future
        if not self._is_started:
            self._thread.start()
            self._is_started = True
        self._on_thread += 1
        before = None if self._syncs is None else self._syncs.last_given
        self._queue.put((loop, self._end_on_thread, future, work, before))
        return future

    @property
    def is_brisk(self) -> bool:
        """Whether most pieces of work were short of late."""
        return self._recent.is_short

    def try_now(self, work: Callable[[], None]) -> bool:
        """Run ``work``, a small sync, at once if such were short of late and none is under way."""
        if self._under_way or not self._recent_small.is_short:
            return False
        begun_s = self._now_s()
        try:
            work()
        finally:
            self._note(self._now_s() - begun_s, is_small=True)
        return True

    def _end_on_thread(
        self,
        work: Callable[[], Any],
        future: asyncio.Future[Any],
        result: Any,
        error: BaseException | None,
        took_s: float,
    ) -> None:
        if self._syncs is not None:
            # A sync that failed before this work must be known first: the system tells one sync
            # only of a page it has lost, so this work may have succeeded over it.
            self._syncs.take_ended()
        self._on_thread -= 1
        self._end(work, future, result, error, took_s)

    def _end(
        self,
        work: Callable[[], Any],
        future: asyncio.Future[Any],
        result: Any,
        error: BaseException | None,
        took_s: float,
    ) -> None:
        self._under_way -= 1
        self._note(took_s, is_small=isinstance(work, SyncPoint) and work.is_small)
        settle(future, result, error)

    def _note(self, took_s: float, *, is_small: bool) -> None:
        self._recent.note(took_s)
        if is_small:
            self._recent_small.note(took_s)


class _Recent:
    """Whether most pieces of work of one sort were short of late."""

    def __init__(self) -> None:
        self._points = 0

    @property
    def is_short(self) -> bool:
        return self._points >= BRISK_POINTS

    def note(self, took_s: float) -> None:
        if took_s < SHORT_WORK_S:
            self._points = min(self._points + 1, _POINTS_MAX)
        else:
            self._points = max(self._points - 2, 0) if took_s < STALL_S else 0


_Piece: TypeAlias = tuple[
    asyncio.AbstractEventLoop,
    Ended,
    "asyncio.Future[Any]",
    Callable[[], Any],
    Callable[[], None] | None,
]


def _work_off(queue: SimpleQueue[_Piece | None], now_s: Callable[[], float]) -> None:
    while (piece := queue.get()) is not None:
        loop, ended, future, work, wait_for_those_before = piece
        result, error = None, None
        if wait_for_those_before is not None:
            wait_for_those_before()
        begun_s = now_s()
        try:
            result = work()
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(ended, work, future, result, error, now_s() - begun_s)
        except RuntimeError:
            _logger.warning("work ended after the event loop that asked for it was closed")
        del piece, loop, ended, future, work, wait_for_those_before, result, error


def settle(future: asyncio.Future[ResultT], result: ResultT, error: BaseException | None) -> None:
    """Give ``future`` its result, or its error if there is one, unless its caller has gone."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
