"""CRC-32C: by the kernel where it was built and the processor helps, else by the library.

Both hold the same numbers; the kernel takes half the time or less of large batches, and of small
ones what a call costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import crc32c as _crc32c

from oncelog.storage.records import scan_kernel

__all__ = ["crc32c"]


_kernel = scan_kernel.kernel
# By tables alone the library is faster.
crc32c: Final[Callable[[Any], int]] = (
    _kernel.crc32c if _kernel is not None and len(_kernel.CRC_METHODS) > 1 else _crc32c.crc32c
)
"""The CRC-32C of a bytes-like object, chosen when this module is imported."""
