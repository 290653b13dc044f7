"""What the C library does with freed memory: it keeps that of batches, and returns other."""

from __future__ import annotations

import ctypes
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


def return_freed_memory() -> None:
    """Let the C library return all its free pages to the system; without glibc it does nothing.

    Takes a few ms. Source: malloc_trim(3).
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
