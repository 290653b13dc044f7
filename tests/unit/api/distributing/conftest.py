"""A connection that only notes writes."""

from __future__ import annotations

import pytest
from distributed_world import FakeConnection


@pytest.fixture
def fake_connection():
    """A connection that notes what is written."""
    return FakeConnection()
