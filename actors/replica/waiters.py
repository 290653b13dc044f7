"""Who waits at a replica: appends for the high watermark, readers for something new."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Final

from oncelog.storage.errors import ErrorCode

_NEXT_OFFSET: Final = itemgetter(0)


class ReplicaWaiters:
    """The waiters of one replica; belongs to one event loop."""

    def __init__(self) -> None:
        self._commits: deque[tuple[int, Callable[[ErrorCode], None]]] = deque()
        """By offset, and in the order they came."""
        self._readers: dict[asyncio.Future[None], None] = {}
        """A dict, so that they are woken in the order they came."""

    def when_committed(self, next_offset: int, done: Callable[[ErrorCode], None]) -> None:
        """Call ``done`` when ``release`` reaches ``next_offset``, or all are sent away."""
        commits = self._commits
        if commits and next_offset < commits[-1][0]:
            # A retry of a batch that is in the log already: all others come in order.
            insort(commits, (next_offset, done), key=_NEXT_OFFSET)
        else:
            commits.append((next_offset, done))

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
        none = ErrorCode.NONE
        # Looked up each time: an answer may call ``send_away``, which empties it.
        while self._commits and self._commits[0][0] <= high_watermark:
            self._commits.popleft()[1](none)
        if self._readers:
            self.wake_readers()

    def send_away(self, error: ErrorCode) -> None:
        """Answer every append with ``error``, and wake all readers."""
        sent_away, self._commits = self._commits, deque()
        for _, done in sent_away:
            done(error)
        self.wake_readers()

    def wake_readers(self) -> None:
        """Let every reader look again."""
        readers, self._readers = self._readers, {}
        for waiter in readers:
            if not waiter.done():
                waiter.set_result(None)
