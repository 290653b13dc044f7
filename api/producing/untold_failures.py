"""Records that failed without anyone waiting for them are never lost silently.

In a transaction the commit fails. Without one, a caller that drops the future of ``send`` would
never know; so the failure is logged, and the next ``flush`` raises it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from oncelog.api.batching.delivery import BatchDelivery
from oncelog.storage.exceptions import OncelogError

LINE_PERIOD_S: Final = 1.0
"""At most one line per period; it counts the records that it covers."""

UNTOLD_MAX: Final = 100
"""How many failed batches ``flush`` remembers; it raises one, and the counters count all."""

_logger = logging.getLogger("oncelog.producer")


class UntoldFailures:
    """Those of one producer. With ``is_told`` they are reported elsewhere and not kept."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_told: bool) -> None:
        self._loop = loop
        self._is_told = is_told
        self._failed: deque[BatchDelivery] = deque(maxlen=UNTOLD_MAX)
        self._unlogged_count = 0
        self._last: BatchDelivery | None = None
        self._timer: asyncio.TimerHandle | None = None

    def note(self, delivery: BatchDelivery, record_count: int) -> None:
        """Record that a batch has failed."""
        if self._is_told or delivery.is_observed:
            return
        self._failed.append(delivery)
        self._last = delivery
        self._unlogged_count += record_count
        if self._timer is None:
            self._log()
            self._timer = self._loop.call_later(LINE_PERIOD_S, self._period_over)

    def take(self) -> OncelogError | None:
        """The first failure still unexamined, for ``flush`` to raise; returned once."""
        self._log()
        failed = [delivery for delivery in self._failed if not delivery.is_observed]
        self._failed.clear()
        return failed[0].error if failed else None

    def close(self) -> None:
        """Log what has not been logged yet."""
        self._log()
        if self._timer is not None:
            self._timer.cancel()

    def _period_over(self) -> None:
        self._timer = None
        if self._unlogged_count:
            self._log()
            self._timer = self._loop.call_later(LINE_PERIOD_S, self._period_over)

    def _log(self) -> None:
        count, self._unlogged_count = self._unlogged_count, 0
        if not count or self._last is None:
            return
        _logger.error(
            "%s not delivered, and no one was waiting for the outcome: %s",
            f"1 record for {self._last.topic_partition} was"
            if count == 1
            else f"{count} records, the last of them for {self._last.topic_partition}, were",
            self._last.error,
        )
