"""Clocks, event loops and backgrounds for actors under test."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from oncelog.actors.process.background import ThreadBackground

START_MS = 1_700_000_000_000


class ManualClock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.time_ms = START_MS

    def now_ms(self) -> int:
        return self.time_ms


async def until_idle() -> None:
    """Let callbacks run that are ready, and those that they make ready, a few times over."""
    for _ in range(10):
        await asyncio.sleep(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """Jumps to its next timer instead of waiting for it; also a clock, which may run ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.ahead_ms = 0

    def time(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return START_MS + self.ahead_ms + int(self.now_s * 1_000)

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            due_s = self._scheduled[0]._when  # type: ignore[attr-defined]
            # A loop fires timers that are due within its clock's resolution. To whole microseconds,
            # so that none fires before its time, again and again.
            self.now_s = max(self.now_s, math.ceil(due_s * 1e6) / 1e6)
        super()._run_once()  # type: ignore[misc]


class InlineBackground:
    """Does the work at once, in the next turn of the loop; counts the pieces."""

    def __init__(self) -> None:
        self.pieces = 0

    async def run(self, work: Callable[[], Any], *, is_small: bool = False) -> Any:
        self.pieces += 1
        await asyncio.sleep(0)
        return work()


class HeldBackground(ThreadBackground):
    """Works while the gate is open, and fails when the disk is broken; counts what was begun."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_broken = False
        self.begun = 0

    async def run(self, work: Callable[[], Any], *, is_small: bool = False) -> Any:
        self.begun += 1
        await self.gate.wait()
        if self.is_broken:
            raise OSError("no more disk")
        return await super().run(work)
