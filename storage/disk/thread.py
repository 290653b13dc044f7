"""The compiled disk thread, if it was built: the only place that looks for it.

It is not built without ``eventfd``, and not used with ``ONCELOG_CODEC=python``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oncelog.storage.disk._thread import DiskThread

__all__ = ["start_disk_thread"]

_INTERFACE: Final = 1

try:
    from oncelog.storage.disk import _thread as _module
except ImportError:
    _module = None  # type: ignore[assignment]


def start_disk_thread() -> DiskThread | None:
    """A thread that syncs files without the interpreter; None if it is not available.

    OSError if the process has no room for another thread or descriptor.
    """
    if _module is None or _module.INTERFACE != _INTERFACE:
        return None
    return _module.DiskThread()
