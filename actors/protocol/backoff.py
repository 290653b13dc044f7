"""The one rule of how long to wait before a retry; jitter, where wanted, is the caller's."""

from __future__ import annotations

from typing import Final

_DOUBLINGS_MAX: Final = 30
"""Bounds the exponent, so that a caller which retries for days builds no huge number."""


def backoff_ms(failure_count: int, *, initial_ms: int, max_ms: int) -> int:
    """The wait after ``failure_count`` earlier failures: doubling from ``initial_ms``, bounded."""
    return min(initial_ms << min(failure_count, _DOUBLINGS_MAX), max_ms)
