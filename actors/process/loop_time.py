"""The time that passes, whatever is done to the wall clock."""

from __future__ import annotations

import asyncio


def loop_ms() -> int:
    """Milliseconds of the running event loop: they never go back and count from no known moment."""
    return int(1_000 * asyncio.get_running_loop().time())
