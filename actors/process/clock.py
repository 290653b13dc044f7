"""Time: the wall clock, monotonic time, and back-off before a retry.

``SystemClock`` is ``Clock`` in production; changes of it do not affect monotonic time.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from oncelog.actors.protocol.backoff import backoff_ms


def loop_ms() -> int:
    """Monotonic time of the running event loop in ms."""
    return int(1_000 * asyncio.get_running_loop().time())


def monotonic_s() -> float:
    """Monotonic time in seconds, in any thread; finer than an event loop's."""
    return time.perf_counter()


def epoch_ns() -> int:
    """The system's wall clock in ns since the Unix epoch, for the spans of traces."""
    return time.time_ns()


class SystemClock:
    """The system's wall clock."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


BACKOFF_FIRST_MS: Final = 20
BACKOFF_MAX_MS: Final = 1_000
"""Back-off before an internal call is repeated: first, and maximum."""


def jittered_backoff_ms(attempt: int, rng: random.Random) -> float:
    """Back-off after failed attempt number ``attempt`` (from 0): doubling, bounded, with jitter."""
    longest_ms = backoff_ms(attempt, initial_ms=BACKOFF_FIRST_MS, max_ms=BACKOFF_MAX_MS)
    return longest_ms * rng.uniform(0.5, 1.0)
