"""``delivery_timeout_ms``: the outcome of a batch is known by then, wherever the batch is.

One timer serves all batches of a producer. It is set for the oldest; as all have the same timeout,
it is reset only when it fires, so a healthy producer pays nothing per batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from oncelog.api.batching.accumulator import Accumulator, PendingBatch
from oncelog.api.config import ProducerSettings
from oncelog.storage.exceptions import OncelogError, RequestTimedOutError

RESOLUTION_S: Final = 0.001
"""Anything due within this is due now: a timer may fire early by the clock's resolution."""

AGAIN_AFTER_S: Final = 0.1
"""The minimum interval between checks while something overdue cannot be expired yet."""


class DeliveryDeadline:
    """Calls ``expire`` with the time at or before which a batch must have begun to be overdue.

    ``accumulator`` knows when, by the time of ``loop``, the oldest one was begun.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: ProducerSettings,
        accumulator: Accumulator,
        expire: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._timeout_s = settings.delivery_timeout_ms / 1_000
        self._oldest_s = accumulator.oldest_s
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Set the timer if a batch is open; call it on the loop after the first one was begun."""
        if self._timer is None and (oldest_s := self._oldest_s()) is not None:
            self._timer = self._loop.call_at(oldest_s + self._timeout_s, self._look)

    def stop(self) -> None:
        """Cancel the timer: no more batches will be begun."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        self._expire(now_s - self._timeout_s + RESOLUTION_S)
        if (oldest_s := self._oldest_s()) is not None:
            due_s = max(oldest_s + self._timeout_s, now_s + AGAIN_AFTER_S)
            self._timer = self._loop.call_at(due_s, self._look)


def expired(batch: PendingBatch, timeout_ms: int, reason: str) -> OncelogError:
    """The error of a batch whose delivery timed out."""
    return RequestTimedOutError(
        f"{batch.rows.record_count} records for partition {batch.delivery.topic_partition} were "
        f"not acknowledged within delivery_timeout_ms={timeout_ms}; {reason}"
    )
