"""A connection that only notes writes, in place of that of this process."""

from __future__ import annotations

import pytest
from distributed_world import FakeConnection

from oncelog.ray_data import sink


@pytest.fixture
def fake_connection(monkeypatch):
    """A connection that notes what is written."""
    connection = FakeConnection()
    monkeypatch.setattr(sink, "connect", lambda endpoint: connection)
    return connection
