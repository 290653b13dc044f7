"""The compiled functions, where they were built: the one place that looks for them.

``kernel`` is None where they were not built, were built from older source, or are not wanted
(``ONCELOG_CODEC=python``). On whole batches they only pass over what is plainly good: the rest is
Python's.
"""

from __future__ import annotations

from typing import Final

_INTERFACE: Final = 6

__all__ = ["kernel"]

try:
    from oncelog.storage.records import _kernel as kernel
except ImportError:
    kernel = None  # type: ignore[assignment]
else:
    if getattr(kernel, "INTERFACE", 0) != _INTERFACE:
        kernel = None  # type: ignore[assignment]
