"""Backgrounds for actors under test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from oncelog.actors.process.background import ThreadBackground


class AtOnceBackground:
    """Does the work when it is awaited, and gives nobody else a turn."""

    async def run(self, work: Callable[[], Any], *, is_small: bool = False) -> Any:
        return work()


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
