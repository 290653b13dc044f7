"""Memory of batches that come and go, kept by the allocator instead of given back each time."""

from __future__ import annotations

import functools
from typing import Final

KEPT_BYTES: Final = 8 * 1024 * 1024
"""Blocks up to this size are filled again, and twice as much is kept free, per thread at most."""


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library keep what is freed between batches; only the first call does anything.

    glibc gives blocks from 128 KiB on back to the system, where each page of the next one is a
    fault: a third of the time of a thread that encodes and sends batches. It raises that limit to
    the size of the largest block that was freed, and so one is freed here whose pages are never
    touched. Where the limits are set by hand, or the library is another, nothing changes.
    Source: mallopt(3), ``M_MMAP_THRESHOLD``.
    """
    bytes(KEPT_BYTES)
