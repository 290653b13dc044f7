"""What tests of the machine of groups are given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from group_world import GroupWorld


@pytest.fixture
def world() -> GroupWorld:
    """A new shard with the default settings."""
    return GroupWorld()


@pytest.fixture(scope="session")
def new_world() -> Callable[..., GroupWorld]:
    """A new shard with the settings given."""
    return GroupWorld
