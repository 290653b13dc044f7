"""Keeps the memory of short-lived batches in the allocator instead of returning it each time."""

from __future__ import annotations

import functools
from typing import Final

KEPT_BYTES: Final = 8 * 1024 * 1024
"""Blocks up to this size are reused; at most twice as much is kept free per thread."""


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library keep memory freed between batches; later calls do nothing.

    glibc returns blocks of 128 KiB or more to the system, and each page of the next block then
    faults: a third of the time of a thread that encodes and sends batches. glibc raises that limit
    to the size of the largest block freed, so this frees one large block without touching its
    pages. If the limits are set by hand, or with another C library, nothing changes. Source:
    mallopt(3), ``M_MMAP_THRESHOLD``.
    """
    bytes(KEPT_BYTES)
