"""What Ray says to every program of a cluster does not get between a command and its reader."""

from __future__ import annotations

import os

import pytest

from oncelog.actors.process.ray_environment import keep_output_clean

SKIP_VARIABLE = "RAY_DEDUP_LOGS_SKIP_REGEX"

LOST_NODE = """The node with node id: 4e71e5 and address: 10.0.0.3 and node name: 10.0.0.3 has \
been marked dead because the detector has missed too many heartbeats from it. This can happen when \
a \t(1) raylet crashes unexpectedly (OOM, etc.)
\t(2) raylet has lagging heartbeats due to slow network or busy workload."""

LOST_RAYLET = """Raylet is terminated. Termination is unexpected. Possible reasons include: (1) \
SIGKILL by the user or system OOM killer. Last 20 lines of the Raylet logs:
    *** StackTrace Information ***"""


@pytest.mark.parametrize("said", [LOST_NODE, LOST_RAYLET], ids=["node", "raylet"])
def test_news_of_a_lost_node_are_kept_out_of_the_output(monkeypatch, said):
    from ray._private.ray_logging import LogDeduplicator

    monkeypatch.setenv(SKIP_VARIABLE, "")
    monkeypatch.delenv(SKIP_VARIABLE)
    keep_output_clean()
    printed = LogDeduplicator(5, None, os.environ[SKIP_VARIABLE]).deduplicate(
        {"lines": [said, "a line of a program"], "pid": "raylet"}
    )
    assert printed[0]["lines"] == ["a line of a program"]
