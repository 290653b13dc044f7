"""How long a server waits before it repeats an internal call."""

from __future__ import annotations

import random
from typing import Final

BACKOFF_FIRST_MS: Final = 20
BACKOFF_MAX_MS: Final = 1_000
_DOUBLINGS_MAX: Final = 16


def backoff_ms(attempt: int, rng: random.Random) -> float:
    """The pause after failed attempt number ``attempt`` (from 0): doubling, bounded, jittered."""
    longest_ms = min(BACKOFF_FIRST_MS << min(attempt, _DOUBLINGS_MAX), BACKOFF_MAX_MS)
    return longest_ms * rng.uniform(0.5, 1.0)
