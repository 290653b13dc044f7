"""A cluster of one partition, and a connection that only notes writes."""

from __future__ import annotations

import pytest
from distributed_world import FakeConnection, OnePartition


@pytest.fixture
def one_partition():
    """A partition in memory."""
    return OnePartition()


@pytest.fixture
def fake_connection():
    """A connection that notes what is written."""
    return FakeConnection()
