"""What tests of the transaction coordinator are given."""

from __future__ import annotations

from pathlib import Path

import pytest
from coordinator_world import CoordinatorWorld


@pytest.fixture
def world(tmp_path: Path) -> CoordinatorWorld:
    """A cluster of one broker; only the controller and the offsets topic exist."""
    return CoordinatorWorld(tmp_path)
