"""The connection that the hooks in one Python process of Spark share."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from oncelog.api import client
from oncelog.api.distributing.engine_connection import Endpoint, ProcessConnection
from oncelog.spark_bridge import connection
from oncelog.storage.exceptions import ConnectionFailedError

PROGRAM = """
import gc
from unittest.mock import MagicMock
from oncelog.api import client
from oncelog.api.distributing.engine_connection import Endpoint
from oncelog.spark_bridge.connection import connect

here = Endpoint(address="here")
client.connect = MagicMock()
before = gc.get_freeze_count()  # Python 3.12 freezes some itself
first = connect(here)
assert gc.get_freeze_count() == before
assert connect(here) is first
frozen = gc.get_freeze_count()
later = [[] for _ in range(1_000)]
assert connect(here) is first
assert gc.get_freeze_count() == frozen
print(frozen, len(gc.get_objects()))
"""


def test_what_is_loaded_by_the_second_hook_is_left_out_of_the_collections_of_garbage():
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    frozen, left = map(int, told.stdout.split())
    assert frozen > 10_000 > left


@pytest.fixture
def asked(monkeypatch):
    """The addresses that are connected to, in order; only ``there:1`` answers."""
    asked = []

    def answer(address, *, user, password_file):
        asked.append(address)
        if address != "there:1":
            raise ConnectionFailedError(f"nobody at {address}")
        return SimpleNamespace(context=MagicMock(), close=lambda: None)

    monkeypatch.setattr(connection, "_process", ProcessConnection(connection.driver_process))
    monkeypatch.setattr(client, "connect", answer)
    monkeypatch.setattr(connection, "prepare_to_join", lambda: None)
    monkeypatch.setattr(connection, "_leave_out_of_garbage_collection", lambda: None)
    return asked


def test_of_several_addresses_the_first_that_answers_is_taken(asked):
    first = connection.connect(Endpoint(address="gone:1, there:1,other:1"))
    assert asked == ["gone:1", "there:1"]
    assert connection.connect(Endpoint(address="gone:1, there:1,other:1")) is first
    assert asked == ["gone:1", "there:1"]


def test_if_no_address_answers_each_is_told_with_why(asked):
    with pytest.raises(ConnectionFailedError, match="nobody at gone:1; nobody at away:1"):
        connection.connect(Endpoint(address="gone:1,away:1"))
    with pytest.raises(ConnectionFailedError, match=r"^nobody at gone:1$"):
        connection.connect(Endpoint(address="gone:1"))
