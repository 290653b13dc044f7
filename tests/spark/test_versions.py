"""The page's table of versions names those that these tests run with."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from deadlines import DEADLINE_S

from oncelog.spark_bridge.spark_session import JAVA_MIN

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parent.parent.parent


def row(what: str) -> tuple[set[str], str]:
    """The versions that are said to be tried, and which are allowed."""
    page = (ROOT / "docs" / "SPARK.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^\| {what} \| ([^|]*) \| ([^|]*) \|$", page, re.MULTILINE)
    return set(found[0].split(", ")), found[1]


def test_this_java_is_among_those_that_are_said_to_be_tried():
    # run puts the one that it has found first on the path.
    shown = subprocess.run(
        ["java", "-version"], capture_output=True, text=True, check=True, timeout=DEADLINE_S
    )
    (version,) = re.findall(r'version "(\d+)', shown.stderr)
    tried, allowed = row("Java")
    assert version in tried
    assert allowed == f"{JAVA_MIN} and newer"


def test_this_python_is_among_those_that_are_said_to_be_tried():
    tried, allowed = row("Python")
    assert ".".join(map(str, sys.version_info[:2])) in tried
    (supported,) = re.findall(
        r'^PYTHON_VERSIONS="([^"]*)"', (ROOT / "run").read_text(), re.MULTILINE
    )
    assert set(allowed.split(", ")) == set(supported.split())
