"""Whether a Ray cluster has a log: the controller may be between two nodes."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from oncelog.actors.interfaces import broker_actor, host_actor
from oncelog.actors.launch import processes
from oncelog.api.session import cluster_connection


@pytest.mark.parametrize(
    ("actors", "has_log"),
    [([], False), ([host_actor(1, 2)], False), ([host_actor(1, 2), broker_actor(2)], True)],
)
def test_without_a_controller_there_is_one_as_long_as_brokers_can_start_the_next(
    monkeypatch: pytest.MonkeyPatch, actors: list[str], has_log: bool
) -> None:
    def nobody(name: str, namespace: str) -> Any:
        raise ValueError(name)

    monkeypatch.setattr(ray, "get_actor", nobody)
    monkeypatch.setattr(processes, "running_actors", lambda: actors)
    assert cluster_connection.has_log() is has_log
