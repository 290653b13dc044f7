"""An event loop for many processes under virtual time, which jumps to the next timer.

Every callback belongs to the process in its context (``PROCESS``). Within a process
callbacks run in asyncio's order; which process runs next is drawn, because on real machines it is
chance. A callback of a dead process never runs, and one of a paused process waits.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Protocol

EVENTS_PER_SECOND_MAX = 300_000
"""More callbacks than this within a virtual second are taken for a busy loop."""


class Runnable(Protocol):
    """What the loop knows of a process."""

    name: str
    number: int
    is_dead: bool
    is_paused: bool
    ready: deque[SimHandle]
    tasks: list[weakref.ref[asyncio.Task[Any]]]


PROCESS: contextvars.ContextVar[Runnable] = contextvars.ContextVar("process")


class StuckError(AssertionError):
    """Nothing can ever happen again, or nothing ever stops happening."""


class SimHandle:
    """A callback to be run; what ``asyncio.Handle`` and ``TimerHandle`` are elsewhere."""

    __slots__ = ("_args", "_callback", "_context", "_is_cancelled", "_when", "process")

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context,
        when: float,
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._when = when
        self._is_cancelled = False
        self.process: Runnable = context[PROCESS]

    def cancel(self) -> None:
        self._is_cancelled = True
        self._callback = _nothing
        self._args = ()

    def cancelled(self) -> bool:
        return self._is_cancelled

    def when(self) -> float:
        return self._when

    def __repr__(self) -> str:
        return f"<{self.process.name}: {self._callback!r}>"


def _nothing() -> None:
    """What a cancelled callback does."""


class SimLoop(asyncio.AbstractEventLoop):
    """The loop. ``on_error`` is given what a callback raises, and what a task died of unheard.

    ``after_event`` is called with the process after each callback of it. More than
    ``events_per_second_max`` callbacks in a virtual second are an error. ``event_count`` and
    ``trace`` grow with each callback: two runs are the same if they end with the same trace.
    """

    def __init__(
        self, random: Random, on_error: Callable[[Runnable | None, BaseException], None]
    ) -> None:
        self.event_count = 0
        self.events_per_second_max = EVENTS_PER_SECOND_MAX
        self.trace = 0
        self.after_event: Callable[[Runnable], None] | None = None
        self.graveyard: list[Any] = []
        self._random = random
        self._on_error = on_error
        self._time = 0.0
        self._timer_count = 0
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._runnable: list[Runnable] = []
        self._second = 0
        self._second_began = 0
        self._is_closed = False
        self._is_running = False
        self._is_stopped = False

    # --- for the world ------------------------------------------------------------------------

    def run(self, until_s: float) -> bool:
        """Run until ``stop`` is called or the time is ``until_s``; whether ``stop`` was called."""
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            while not self._is_stopped:
                if self._runnable:
                    self._run_one()
                elif not self._advance(until_s):
                    return False
        finally:
            self._is_stopped = False
            self._is_running = False
            asyncio._set_running_loop(None)
        return True

    def stop(self, _: object = None) -> None:
        """Let ``run`` return before the next callback."""
        self._is_stopped = True

    def bury(self, process: Runnable) -> None:
        """Nothing of ``process`` runs any more, not even a ``finally``: kill -9 runs none."""
        process.is_dead = True
        self.graveyard.append(process.ready)
        process.ready = deque()
        if process in self._runnable:
            self._runnable.remove(process)
        for reference in process.tasks:
            task = reference()
            if task is not None and not task.done():
                self.graveyard.append(task)

    def pause(self, process: Runnable) -> None:
        """Let the callbacks of ``process`` wait, timers that are due included."""
        process.is_paused = True
        if process in self._runnable:
            self._runnable.remove(process)

    def resume(self, process: Runnable) -> None:
        """Let them run, in the order in which they became ready."""
        process.is_paused = False
        if process.ready:
            self._runnable.append(process)

    def close(self) -> None:
        """End: whatever is left is thrown away quietly."""
        self._is_closed = True
        for task in asyncio.all_tasks(self):
            self.graveyard.append(task)
        for _, _, handle in self._timers:
            handle.cancel()
        with warnings.catch_warnings():
            # A ``finally`` that begins to wait for something never gets to it.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            for found in self.graveyard:
                if isinstance(found, asyncio.Task) and not found.done():
                    found._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(found.get_coro())
            self.graveyard.clear()
            self._timers.clear()
            self._runnable.clear()

    # --- inside -------------------------------------------------------------------------------

    def _run_one(self) -> None:
        runnable = self._runnable
        count = len(runnable)
        place = 0 if count == 1 else int(self._random.random() * count)
        process = runnable[place]
        handle = process.ready.popleft()
        if not process.ready:
            runnable[place] = runnable[-1]
            runnable.pop()
        if handle._is_cancelled:
            return
        self.event_count += 1
        self.trace = (self.trace * 1_000_003 ^ process.number) & 0xFFFF_FFFF_FFFF
        if self.event_count - self._second_began > self.events_per_second_max:
            raise StuckError(
                f"over {self.events_per_second_max} callbacks in virtual second {self._second}: "
                f"a busy loop, perhaps of {process.name}: {handle!r}"
            )
        try:
            handle._context.run(handle._callback, *handle._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._on_error(process, error)
        if self.after_event is not None:
            self.after_event(process)

    def _advance(self, until_s: float) -> bool:
        """Jump to the next timer; false when that is later than ``until_s``."""
        timers = self._timers
        while timers and (timers[0][2]._is_cancelled or timers[0][2].process.is_dead):
            heapq.heappop(timers)
        if not timers:
            raise StuckError("deadlock: nothing is ready and no timer is set")
        when = timers[0][0]
        if when > until_s:
            self._time = max(self._time, until_s)
            return False
        self._time = when
        self.trace = (self.trace * 31 ^ int(when * 1e6)) & 0xFFFF_FFFF_FFFF
        if int(when) != self._second:
            self._second = int(when)
            self._second_began = self.event_count
        while timers and timers[0][0] <= when:
            handle = heapq.heappop(timers)[2]
            if not handle._is_cancelled:
                self._make_ready(handle)
        return True

    def _make_ready(self, handle: SimHandle) -> None:
        process = handle.process
        if process.is_dead:
            self.graveyard.append(handle)
            return
        if not process.ready and not process.is_paused:
            self._runnable.append(process)
        process.ready.append(handle)

    # --- asyncio's interface ------------------------------------------------------------------

    def time(self) -> float:
        return self._time

    def call_soon(
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        if context is None:
            context = contextvars.copy_context()
        handle = SimHandle(callback, args, context, self._time)
        if not self._is_closed:
            self._make_ready(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        return self.call_at(self._time + max(delay, 0.0), callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        if context is None:
            context = contextvars.copy_context()
        handle = SimHandle(callback, args, context, when)
        if not self._is_closed:
            self._timer_count += 1
            heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        process = PROCESS.get()
        if context is None:
            task = asyncio.Task(coro, loop=self, name=name or "task")
        else:
            task = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        if process.is_dead:
            self.graveyard.append(task)
            return task
        tasks = process.tasks
        if len(tasks) > 200:
            tasks[:] = [known for known in tasks if not _is_over(known)]
        tasks.append(weakref.ref(task))
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._is_closed:
            return
        error = context.get("exception")
        if error is None:
            error = AssertionError(f"{context.get('message')} {context.get('task', '')!r}")
        self._on_error(PROCESS.get(None), error)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        raise NotImplementedError

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        raise AssertionError(f"a thread was asked for, to run {func}: use Background")


def _is_over(reference: weakref.ref[asyncio.Task[Any]]) -> bool:
    task = reference()
    return task is None or task.done()


def _close(coroutine: Coroutine[Any, Any, Any] | Any) -> None:
    """Unwind a coroutine that will never go on; what it does meanwhile reaches nobody."""
    try:
        coroutine.close()
    except BaseException as error:
        # It awaited, met the dead disk or a loop that does not run: all as it should be.
        del error
