"""The processes of this campaign's Spark, wherever they hang: by a mark in their environment."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

MARK: Final = "ONCELOG_DEATHS"
"""A variable with a value that only this campaign has."""


def spark_processes() -> str:
    """The Java and Python processes of Spark that live, as text; "" if there are none."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # One that ends while it is looked at is none.
        with contextlib.suppress(OSError):
            if mark not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            words = (entry / "cmdline").read_bytes().split(b"\0")
            is_java = Path(os.fsdecode(words[0])).name == "java"
            if is_java or any(word.startswith(b"pyspark.") for word in words):
                shown = " ".join(os.fsdecode(word) for word in words if word)
                found.append(f"{entry.name} ({shown[:40]} ... {shown[-60:]})")
    return ", ".join(found)
