"""The connection that the hooks in one Python process of Spark share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import ray

from oncelog.api import client
from oncelog.api.distributing.engine_connection import Endpoint, ProcessConnection
from oncelog.api.session.login import Login
from oncelog.spark_bridge import connection
from oncelog.storage.exceptions import ConnectionFailedError, SaslAuthenticationFailedError

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


class Asked(list):
    """The addresses that are connected to, in order; only ``there:1`` answers, and not to eve."""

    def __init__(self):
        super().__init__()
        self.users = []
        self.closed_users = []

    def connect(self, address, *, user, password_file):
        self.append(address)
        if address != "there:1":
            raise ConnectionFailedError(f"nobody at {address}")
        if user == "eve":
            raise SaslAuthenticationFailedError
        self.users.append((user, password_file))
        return SimpleNamespace(
            context=MagicMock(), close=lambda: self.closed_users.append(user or "nobody")
        )


@pytest.fixture
def asked(monkeypatch):
    asked = Asked()

    monkeypatch.setattr(connection, "_process", ProcessConnection(connection.driver_process))
    monkeypatch.setattr(client, "connect", asked.connect)
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


# --- users ------------------------------------------------------------------------------------


@pytest.fixture
def there(tmp_path):
    """Makes an endpoint of a user with a password file."""

    def at(user):
        path = tmp_path / user
        if not path.exists():
            path.write_text("a password")
        return Endpoint(address="there:1", login=Login(user, str(path)))

    return at


def test_another_login_closes_the_connection_and_replaces_it(asked, there):
    nobody = Endpoint(address="there:1")
    first = connection.connect(nobody)
    alice = connection.connect(there("alice"))
    assert alice is not first
    assert connection.connect(there("alice")) is alice
    assert asked.closed_users == ["nobody"]
    connection.connect(there("bob"))
    assert connection.connect(nobody) is not first
    assert asked.closed_users == ["nobody", "alice", "bob"]
    assert [user for user, _ in asked.users] == ["", "alice", "bob", ""]


def test_another_password_in_the_file_is_another_login(asked, there):
    """1. A query runs. 2. The password is changed, and its file. 3. The next hook logs in anew."""
    alice = there("alice")
    first = connection.connect(alice)
    other = Path(alice.login.password_file).with_name("other")
    other.write_text("another password")
    other.rename(alice.login.password_file)
    second = connection.connect(alice)
    assert second is not first
    assert connection.connect(alice) is second
    assert asked.closed_users == ["alice"]


def test_a_login_that_is_refused_is_tried_nowhere_else(asked, there, monkeypatch):
    """And the Ray cluster is left, so that the next connection may be to another one."""
    left = MagicMock()
    monkeypatch.setattr(ray, "shutdown", left)
    eve = Endpoint(address="there:1,other:1", login=there("eve").login)
    with pytest.raises(SaslAuthenticationFailedError):
        connection.connect(eve)
    assert asked == ["there:1"]
    left.assert_called_once_with()
