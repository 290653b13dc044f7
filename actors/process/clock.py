"""Wall-clock time of the machine: ``Clock`` in production."""

from __future__ import annotations

import time


def monotonic_s() -> float:
    """Seconds since an unspecified moment, in any thread; an event loop's may only tick in ms."""
    return time.perf_counter()


class SystemClock:
    """``Clock`` of the machine."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000
