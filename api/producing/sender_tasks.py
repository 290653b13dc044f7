"""The tasks of one producer: none fails unseen, and none outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from oncelog.storage.exceptions import OncelogError, UnknownServerError


class SenderTasks:
    """Runs coroutines on ``loop``; one that fails is a bug and goes to ``on_crash``."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_crash: Callable[[OncelogError], None]
    ) -> None:
        self._loop = loop
        self._on_crash = on_crash
        # In start order, so that they are cancelled in it too.
        self._tasks: dict[asyncio.Task[None], None] = {}

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` as a task."""
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in tuple(self._tasks):
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled() or task.exception() is None:
            return
        crash = UnknownServerError(f"the producer stopped because of a bug: {task.exception()!r}")
        crash.__cause__ = task.exception()
        self._on_crash(crash)
