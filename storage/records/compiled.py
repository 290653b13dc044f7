"""The compiled functions, where they were built, and the CRC-32C that is faster with them.

This is the one place that looks for them. ``kernel`` is None where they were not built, were built
from older source, or are not wanted (``ONCELOG_CODEC=python``). On whole batches they only pass
over what is plainly good: the rest is Python's.

``crc32c`` is the kernel's where the processor helps, else the library's: both give the same
numbers; the kernel takes half the time or less of large batches, and of small ones what a call
costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import crc32c as _crc32c

_INTERFACE: Final = 6

__all__ = ["crc32c", "kernel"]

try:
    from oncelog.storage.records import _kernel as kernel
except ImportError:
    kernel = None  # type: ignore[assignment]
else:
    if getattr(kernel, "INTERFACE", 0) != _INTERFACE:
        kernel = None  # type: ignore[assignment]

# By tables alone the library is faster.
crc32c: Final[Callable[[Any], int]] = (
    kernel.crc32c if kernel is not None and len(kernel.CRC_METHODS) > 1 else _crc32c.crc32c
)
"""The CRC-32C of a bytes-like object, chosen when this module is imported."""
