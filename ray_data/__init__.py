"""Ray Data from and to topics: ``read`` returns a dataset, ``write`` is one transaction.

Importing this package imports neither Ray nor Arrow; its functions do. Start at ``source`` and
``sink``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncelog.ray_data.sink import write
    from oncelog.ray_data.source import read

__all__ = ["read", "write"]

_MODULES = {"read": "oncelog.ray_data.source", "write": "oncelog.ray_data.sink"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'oncelog.ray_data' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
