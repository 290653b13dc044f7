"""The Spark data source ``oncelog``, a RayDP session with it, and a write for ``foreachBatch``.

Importing this package imports neither Spark nor Ray; its functions do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncelog.spark_bridge.spark_session import register, session, stop, write_once

__all__ = ["register", "session", "stop", "write_once"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'oncelog.spark_bridge' has no attribute {name!r}")
    return getattr(importlib.import_module("oncelog.spark_bridge.spark_session"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
