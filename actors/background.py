"""Blocking work beside the event loop: ``Background`` in production."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias

from oncelog.actors.interfaces import ResultT

_logger = logging.getLogger(__name__)


class ThreadBackground:
    """``Background`` on one thread, so that pieces of work keep their order.

    Every sync passes here, so it is a bare queue: half the delay of an executor. Work that was
    given is run even if nobody waits for it any more.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Piece | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=_work_off, args=(self._queue,), name="oncelog-disk", daemon=True
        )
        self._is_started = False
        weakref.finalize(self, self._queue.put, None)

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Run ``work`` on the thread and return its result or raise its exception."""
        if not self._is_started:
            self._is_started = True
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ResultT] = loop.create_future()
        self._queue.put((loop, future, work))
        return await future


_Piece: TypeAlias = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


def _work_off(queue: SimpleQueue[_Piece | None]) -> None:
    while (piece := queue.get()) is not None:
        loop, future, work = piece
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, future, result, error)
        except RuntimeError:
            _logger.warning("work ended after the event loop that asked for it was closed")
        del piece, loop, future, work, result, error


def settle(future: asyncio.Future[ResultT], result: ResultT, error: BaseException | None) -> None:
    """Give ``future`` its result, or its error if there is one, unless its caller has gone."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
