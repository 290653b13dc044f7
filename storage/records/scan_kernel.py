"""The compiled loops over whole batches, where they were built: the one place that looks for them.

``kernel`` is None where they were not built, were built from older source, or are not wanted
(``ONCELOG_CODEC=python``). They only skip what is plainly good: the rest is Python's.
"""

from __future__ import annotations

from typing import Final

_INTERFACE: Final = 4

__all__ = ["kernel"]

try:
    from oncelog.storage.records import _kernel as kernel
except ImportError:
    kernel = None  # type: ignore[assignment]
else:
    if getattr(kernel, "SCAN_INTERFACE", 0) != _INTERFACE:
        kernel = None  # type: ignore[assignment]
