"""Who waits at a replica: appends for the high watermark, readers for something new."""

from __future__ import annotations

import asyncio
import heapq
import itertools

from oncelog.storage.errors import ErrorCode


class ReplicaWaiters:
    """The waiters of one replica; belongs to one event loop."""

    def __init__(self) -> None:
        self._commits: list[tuple[int, int, asyncio.Future[ErrorCode]]] = []
        self._numbers = itertools.count()
        self._readers: dict[asyncio.Future[None], None] = {}
        """A dict, so that they are woken in the order they came."""

    async def committed(self, next_offset: int) -> ErrorCode:
        """Wait until ``release`` reaches ``next_offset``, or until all are sent away."""
        waiter: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._commits, (next_offset, next(self._numbers), waiter))
        return await waiter

    async def progress(self, timeout_ms: int) -> None:
        """Wait until ``wake_readers``, or until the time is over."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers[waiter] = None
        try:
            await asyncio.wait({waiter}, timeout=timeout_ms / 1000)
        finally:
            self._readers.pop(waiter, None)

    def release(self, high_watermark: int) -> None:
        """Answer the appends that the high watermark covers now, and wake all readers."""
        while self._commits and self._commits[0][0] <= high_watermark:
            _, _, waiter = heapq.heappop(self._commits)
            if not waiter.done():
                waiter.set_result(ErrorCode.NONE)
        self.wake_readers()

    def send_away(self, error: ErrorCode) -> None:
        """Answer every append with ``error``, and wake all readers."""
        for _, _, waiter in self._commits:
            if not waiter.done():
                waiter.set_result(error)
        self._commits.clear()
        self.wake_readers()

    def wake_readers(self) -> None:
        """Let every reader look again."""
        readers, self._readers = self._readers, {}
        for waiter in readers:
            if not waiter.done():
                waiter.set_result(None)
