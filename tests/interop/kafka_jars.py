"""Kafka's own classes, or other jars, downloaded with Maven into a cache directory, once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

KAFKA_VERSION = "4.4.0"
DOWNLOAD_TIMEOUT_S = 600


def fetch_jars(
    name: str = f"kafka-tools-{KAFKA_VERSION}", project: Path = Path(__file__).parent / "pom.xml"
) -> Path:
    """The directory ``name`` of the jars that ``project`` needs, filled on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jars = cache / "oncelog" / name
    if not jars.exists():
        partial = jars.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        sys.stdout.write(f"downloading {name} to {jars}\n")
        sys.stdout.flush()
        subprocess.run(
            [
                *("mvn", "--quiet", "--batch-mode", "--file", project),
                *("dependency:copy-dependencies", f"-DoutputDirectory={partial}"),
            ],
            check=True,
            timeout=DOWNLOAD_TIMEOUT_S,
        )
        partial.rename(jars)
    return jars
