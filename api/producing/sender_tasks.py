"""The tasks of one producer: none ends unseen, and none outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from oncelog.storage.exceptions import OncelogError, UnknownServerError


class SenderTasks:
    """Runs coroutines on ``loop``; one that fails is a bug and goes to ``on_crash``.

    ``on_cancelled`` is called for one that was cancelled, but not by ``give_up`` or ``cancel``,
    unless it was begun as one that the producer can do without.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_crash: Callable[[OncelogError], None],
        on_cancelled: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._spare: set[asyncio.Task[None]] = set()
        self._on_crash = on_crash
        self._on_cancelled = on_cancelled
        # In start order, so that they are cancelled in it too.
        self._tasks: dict[asyncio.Task[None], None] = {}

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` as a task."""
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def spawn_spare(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """``spawn`` for what may be cancelled by anybody, as others do it later."""
        task = self.spawn(work)
        self._spare.add(task)
        return task

    def give_up(self, task: asyncio.Task[None]) -> None:
        """Cancel ``task``, whose end is of no more interest; one that runs goes on to its end."""
        if task is not asyncio.current_task(self._loop):
            self._tasks.pop(task, None)
            task.cancel()

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in tuple(self._tasks):
            self._tasks.pop(task)
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        is_wanted = task in self._tasks and task not in self._spare
        self._tasks.pop(task, None)
        self._spare.discard(task)
        if task.cancelled():
            if is_wanted:
                self._on_cancelled()
            return
        if task.exception() is None:
            return
        crash = UnknownServerError(f"the producer stopped because of a bug: {task.exception()!r}")
        crash.__cause__ = task.exception()
        self._on_crash(crash)
