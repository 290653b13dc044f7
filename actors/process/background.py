"""Work beside a server's calls: blocking work on threads, and background tasks.

``ThreadBackground`` is ``Background`` in production. No task outlives its ``OwnTasks`` or fails
silently.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from oncelog.actors.interfaces import ResultT
from oncelog.actors.process.clock import monotonic_s

_logger = logging.getLogger(__name__)

THREADS_MAX: Final = 4
"""Logs of one process that use the disk at a time; the others wait."""

OPENING_THREADS_MAX: Final = 2
"""Logs of one process that are opened at a time: each may have to be read through."""

SHORT_WORK_S: Final = 0.001
"""Work below this is short: blocking the loop costs less than switching to a thread."""

STALL_S: Final = 0.01
"""A single piece of work above this shows that the disk has become slow."""

SHORT_POINTS: Final = 4
"""Short work adds a point, other work takes two; from this score on work runs on the loop."""

_POINTS_MAX: Final = 8


class DiskThreads:
    """The threads for the blocking work of one process, started on demand.

    Every sync passes here, so it is a bare queue, with half the latency of an executor.
    """

    def __init__(self, count_max: int = THREADS_MAX) -> None:
        self.user_count = 0
        """Number of logs that use these threads."""
        self._count_max = count_max
        self._count = 0
        self._under_way = 0
        self._turn: list[Callable[[], None]] = []
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        weakref.finalize(self, _end_threads, self._queue, count_max)

    def begin(self, task: Callable[[], None]) -> None:
        """Run ``task``, which must not raise, on a thread. Call ``ended`` after it has ended."""
        if self._count < min(self._under_way + 1, self._count_max):
            name = f"oncelog-disk-{self._count + 1}"
            threading.Thread(target=_work, args=(self._queue,), name=name, daemon=True).start()
            self._count += 1
        self._under_way += 1
        self._queue.put(task)

    def ended(self) -> None:
        """A task has ended."""
        self._under_way -= 1

    def add_to_turn(self, task: Callable[[], None]) -> None:
        """Run ``task``, which is short and must not raise, in the next turn of the running loop.

        Tasks added in one turn run together, on several threads, while the loop waits.
        """
        if not self._turn:
            asyncio.get_running_loop().call_soon(self._do_turn)
        self._turn.append(task)

    def _do_turn(self) -> None:
        turn, self._turn = self._turn, []
        # Only idle threads may help: the loop waits for what they take.
        helper_count = min(len(turn) - 1, self._count_max - self._under_way)
        left = deque(turn)
        done: SimpleQueue[None] = SimpleQueue()
        begun_count = 0
        try:
            while begun_count < helper_count:
                self.begin(lambda: _help(left, done))
                begun_count += 1
        except RuntimeError as error:
            _logger.warning(
                "no further thread can be started: %s — raise the limit of processes (ulimit -u) "
                "or end other programs; work goes on with fewer threads",
                error,
            )
        own_count = 0
        while (task := _next(left)) is not None:
            task()
            own_count += 1
        for _ in range(len(turn) - own_count):
            done.get()
        for _ in range(begun_count):
            self.ended()


def _work(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    while (task := queue.get()) is not None:
        try:
            task()
        except Exception:
            # A bug, since tasks must not raise. The tasks behind it still run.
            _logger.exception(
                "unexpected error on a disk thread — this is a bug: report it with this log"
            )
        del task


def _next(left: deque[Callable[[], None]]) -> Callable[[], None] | None:
    try:
        return left.popleft()
    except IndexError:
        return None


def _help(left: deque[Callable[[], None]], done: SimpleQueue[None]) -> None:
    """Run what is left of a turn, on a thread; one that wakes late finds nothing."""
    while (task := _next(left)) is not None:
        task()
        done.put(None)


def _end_threads(queue: SimpleQueue[Callable[[], None] | None], count: int) -> None:
    for _ in range(count):
        queue.put(None)


class _Work(NamedTuple):
    work: Callable[[], Any]
    future: asyncio.Future[Any]
    is_small: bool


class ThreadBackground:
    """``Background`` of one log, on the threads of its process.

    Two thread switches take longer than a short sync. So small work runs on the loop as long as
    most recent pieces were short: at once, or if several logs share the threads, at the end of the
    turn together with theirs. A disk that becomes slow blocks the loop once, or a few times if it
    is only a little slower. Small work is timed on a thread too, to notice when the disk becomes
    fast again.
    """

    def __init__(
        self, threads: DiskThreads | None = None, *, now_s: Callable[[], float] = monotonic_s
    ) -> None:
        self._threads = threads or DiskThreads()
        self._threads.user_count += 1
        self._now_s = now_s
        self._points = 0
        self._waiting: deque[_Work] = deque()
        self._is_busy = False

    def run(
        self, work: Callable[[], ResultT], *, is_small: bool = False
    ) -> asyncio.Future[ResultT]:
        """See ``Background.run``; ``work`` runs even if its caller is cancelled."""
        future: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        piece = _Work(work, future, is_small)
        if self._is_busy:
            self._waiting.append(piece)
        elif is_small and self._points >= SHORT_POINTS:
            if self._threads.user_count == 1:
                resolve_future(future, *self._do(piece))
            else:
                self._do_in_turn(piece)
        else:
            self._begin(piece)
        return future

    def _begin(self, piece: _Work) -> None:
        self._is_busy = True
        self._threads.begin(lambda: self._do_in_thread(piece))

    def _do_in_turn(self, piece: _Work) -> None:
        self._is_busy = True
        loop = piece.future.get_loop()
        outcomes: list[tuple[Any, BaseException | None]] = []

        def do() -> None:
            outcomes.append(self._do(piece))

        def end() -> None:
            self._end(piece, *outcomes[0], was_in_thread=False)

        # Both in the next turn; the end comes after all tasks of that turn.
        self._threads.add_to_turn(do)
        loop.call_soon(end)

    def _do_in_thread(self, piece: _Work) -> None:
        """Run a piece on a thread."""
        outcome = self._do(piece)
        try:
            piece.future.get_loop().call_soon_threadsafe(self._end, piece, *outcome)
        except RuntimeError:
            _logger.info("work ended after the event loop that asked for it was closed")

    def _end(
        self,
        piece: _Work,
        result: Any,
        error: BaseException | None,
        *,
        was_in_thread: bool = True,
    ) -> None:
        if was_in_thread:
            self._threads.ended()
        self._is_busy = False
        if self._waiting:
            self._begin(self._waiting.popleft())
        resolve_future(piece.future, result, error)

    def _do(self, piece: _Work) -> tuple[Any, BaseException | None]:
        """Run a piece; return result and exception. One runs at a time, so points need no lock."""
        begun_s = self._now_s()
        result, error = None, None
        try:
            result = piece.work()
        except BaseException as raised:
            error = raised
        took_s = self._now_s() - begun_s
        if piece.is_small and took_s < SHORT_WORK_S:
            self._points = min(self._points + 1, _POINTS_MAX)
        elif piece.is_small:
            self._points = max(self._points - 2, 0) if took_s < STALL_S else 0
        return result, error


class OwnTasks:
    """The tasks of one server; ``on_failure`` gets the exception of one that fails."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self.running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        """Start a task, and keep a reference while it runs."""
        task = asyncio.get_running_loop().create_task(work)
        self.running.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> list[asyncio.Task[Any]]:
        """Cancel the running tasks; await those returned to see them end."""
        tasks = list(self.running)
        for task in tasks:
            task.cancel()
        return tasks

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_failure(error)


async def wait_until_done(future: asyncio.Future[None], timeout_s: float) -> None:
    """Wait until ``future`` is done or the time is over; then it is done, too.

    ``asyncio.wait`` takes three turns of the loop more, and a future of its own.
    """
    timer = asyncio.get_running_loop().call_later(timeout_s, resolve_future, future, None)
    try:
        await future
    finally:
        timer.cancel()


def resolve_future(
    future: asyncio.Future[ResultT], result: ResultT, error: BaseException | None = None
) -> None:
    """Give ``future`` its result, or its error if there is one, unless it was cancelled."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
