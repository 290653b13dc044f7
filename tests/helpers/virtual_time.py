"""Virtual time for what needs no simulated world: a loop that jumps, a clock that stands.

The loop of the simulator (``sim_loop``) draws who runs next, and knows processes that die.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from deadlines import DEADLINE_S

START_MS = 1_700_000_000_000
ResultT = TypeVar("ResultT")


class ManualClock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.time_ms = START_MS

    def now_ms(self) -> int:
        return self.time_ms


class _Selector(selectors.DefaultSelector):
    """Instead of waiting for a timer, has time jump to it."""

    def __init__(self, jump: Callable[[], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None:
            found = super().select(0)
            if not found and timeout > 0:
                self._jump()
        elif not (found := super().select(DEADLINE_S)):
            raise RuntimeError("everything waits, no timer is set, and no thread says anything")
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to its next timer instead of waiting for it; also a clock, which may run ahead."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ahead_ms = 0
        super().__init__(_Selector(self._jump))

    def time(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return START_MS + self.ahead_ms + int(self.now_s * 1_000)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Wait here for the thread: while it works no time passes, and nothing else runs."""
        with ThreadPoolExecutor(1) as threads:
            begun = threads.submit(func, *args)
        return asyncio.wrap_future(begun, loop=self)

    def _jump(self) -> None:
        due_s = self._scheduled[0].when()  # type: ignore[attr-defined]
        # A loop fires timers that are due within its clock's resolution. To whole microseconds,
        # so that none fires before its time, again and again; which rounding may have undone.
        self.now_s = max(self.now_s, due_s, math.ceil(due_s * 1e6) / 1e6)


def run_virtually(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run on a loop of its own in virtual time; tasks that are left are cancelled."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def give_turns(count: int = 10) -> None:
    """Let callbacks run that are ready, and so often those that they make ready; no time passes."""
    for _ in range(count):
        await asyncio.sleep(0)
