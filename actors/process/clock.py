"""Time: the machine's clock, what has elapsed, and the pause before a repeated call.

``SystemClock`` is ``Clock`` in production; elapsed time is unaffected by changes of it.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final


def loop_ms() -> int:
    """Monotonic milliseconds of the running event loop, since an unspecified moment."""
    return int(1_000 * asyncio.get_running_loop().time())


def monotonic_s() -> float:
    """Seconds since an unspecified moment, in any thread; an event loop's may only tick in ms."""
    return time.perf_counter()


class SystemClock:
    """``Clock`` of the machine."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


BACKOFF_FIRST_MS: Final = 20
BACKOFF_MAX_MS: Final = 1_000
"""How long a server waits before it repeats an internal call, the first time and at most."""

_DOUBLINGS_MAX: Final = 16


def backoff_ms(attempt: int, rng: random.Random) -> float:
    """The pause after failed attempt number ``attempt`` (from 0): doubling, bounded, jittered."""
    longest_ms = min(BACKOFF_FIRST_MS << min(attempt, _DOUBLINGS_MAX), BACKOFF_MAX_MS)
    return longest_ms * rng.uniform(0.5, 1.0)
