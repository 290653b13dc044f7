"""A world of coordinators and leaders for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from coordinator_world import CoordinatorWorld
from kafka_transactions import Play, play_with


@pytest.fixture
def world(tmp_path: Path) -> CoordinatorWorld:
    return CoordinatorWorld(tmp_path)


@pytest.fixture
def play(world: CoordinatorWorld) -> Play:
    return play_with(world)
