"""The connection that the hooks in one Python process of Spark share."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from unittest.mock import MagicMock
from oncelog.api import client
from oncelog.spark_bridge.connection import connect

client.connect = MagicMock()
first = connect("here")
assert gc.get_freeze_count() == 0
assert connect("here") is first
frozen = gc.get_freeze_count()
later = [[] for _ in range(1_000)]
assert connect("here") is first
assert gc.get_freeze_count() == frozen
print(frozen, len(gc.get_objects()))
"""


def test_what_is_loaded_by_the_second_hook_is_left_out_of_the_collections_of_garbage():
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    frozen, left = map(int, told.stdout.split())
    assert frozen > 10_000 > left
