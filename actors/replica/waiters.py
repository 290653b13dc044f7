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
        self._commits: deque[tuple[int, Callable[[ErrorCode], None], bool]] = deque()
        """By offset, and in the order they came."""
        self._readers: dict[asyncio.Future[None], None] = {}
        """A dict, so that they are woken in the order they came."""

    def when_committed(
        self, next_offset: int, done: Callable[[ErrorCode], None], *, is_patient: bool = True
    ) -> None:
        """Call ``done`` when ``release`` reaches ``next_offset``, or all are sent away.

        Unless ``is_patient``, also by ``send_impatient_away``.
        """
        commits, waiter = self._commits, (next_offset, done, is_patient)
        if commits and next_offset < commits[-1][0]:
            # A retry of a batch that is in the log already: all others come in order.
            insort(commits, waiter, key=_NEXT_OFFSET)
        else:
            commits.append(waiter)

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
        for _, done, _ in sent_away:
            done(error)
        self.wake_readers()

    def send_impatient_away(self, error: ErrorCode) -> None:
        """Answer the appends of callers that rather try again than wait."""
        commits, self._commits = self._commits, deque()
        self._commits.extend(waiter for waiter in commits if waiter[2])
        for _, done, is_patient in commits:
            if not is_patient:
                done(error)

    def wake_readers(self) -> None:
        """Let every reader look again."""
        readers, self._readers = self._readers, {}
        for waiter in readers:
            if not waiter.done():
                waiter.set_result(None)
