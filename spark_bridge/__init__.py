"""The Spark data source ``oncelog``, and a RayDP session that has it.

Importing this package imports neither Spark nor Ray; its functions do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncelog.spark_bridge.spark_session import register, session, stop

__all__ = ["register", "session", "stop"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'oncelog.spark_bridge' has no attribute {name!r}")
    return getattr(importlib.import_module("oncelog.spark_bridge.spark_session"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
