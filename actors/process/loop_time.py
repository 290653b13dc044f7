"""Elapsed time, unaffected by changes of the wall clock."""

from __future__ import annotations

import asyncio


def loop_ms() -> int:
    """Monotonic milliseconds of the running event loop, since an unspecified moment."""
    return int(1_000 * asyncio.get_running_loop().time())
