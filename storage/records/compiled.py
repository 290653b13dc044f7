"""The compiled kernel, and the CRC-32C that is faster with it.

This is the one place that loads ``_kernel``: the others take it from here, built from the source
that calls it. On whole batches it only passes over what is plainly good: the rest is Python's.

``crc32c`` is the kernel's where the processor helps, else the library's: both give the same
numbers; the kernel takes half the time or less of large batches, and of small ones what a call
costs.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import crc32c as _crc32c

HOW_TO_BUILD: Final = "build it with ./run, or with pip install --editable ."

_INTERFACE: Final = 7
"""Must equal the kernel's; change both together."""

__all__ = ["crc32c", "kernel", "require"]


def require(module: ModuleType, interface: int) -> None:
    """Raise ``ImportError`` if ``module`` was built from other source than what calls it.

    A change to what it offers or means gives it another number.
    """
    found = getattr(module, "INTERFACE", 0)
    if found != interface:
        raise ImportError(
            f"{module.__name__} was built from other source "
            f"(interface {found}, not {interface}); {HOW_TO_BUILD}"
        )


try:
    from oncelog.storage.records import _kernel as kernel
except ImportError as error:
    raise ImportError(f"oncelog's compiled half does not load ({error}); {HOW_TO_BUILD}") from error
require(kernel, _INTERFACE)

# By tables alone the library is faster.
crc32c: Final[Callable[[Any], int]] = (
    kernel.crc32c if len(kernel.CRC_METHODS) > 1 else _crc32c.crc32c
)
"""The CRC-32C of a bytes-like object, chosen when this module is imported."""
