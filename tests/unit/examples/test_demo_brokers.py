"""What the demo does when it has several brokers."""

from __future__ import annotations

import argparse

import pytest
from deadlines import wait_for

pytest.importorskip("pyspark")

from oncelog.api.cli.terminal import CliError
from oncelog.examples.flights import demo
from oncelog.examples.flights.faults import FaultInjector, plan_faults, with_node_fault


class Nodes:
    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def kill(self, number: int) -> int:
        self.calls.append(("kill", number))
        return 4711

    def bring_back(self, number: int) -> None:
        self.calls.append(("bring back", number))


def test_a_node_is_killed_in_the_middle_of_the_other_faults():
    faults = plan_faults(7, workers=2, partitions=6)
    with_node = with_node_fault(faults, 2)
    assert [fault.moment for fault in with_node] == sorted(fault.moment for fault in with_node)
    (added,) = set(with_node) - set(faults)
    assert (added.moment, added.role, added.victim) == (0.5, "node", 2)


def test_a_killed_node_is_shown_counted_and_brought_back():
    nodes, shown = Nodes(), []
    injector = FaultInjector(
        None,
        None,
        with_node_fault([], 2),
        progress=lambda: 0.5,
        on_kill=shown.append,
        seed=1,
        brokers=nodes,
    )
    injector.start()
    wait_for(lambda: len(nodes.calls) == 2, "a kill and what follows it")
    injector.stop()
    assert nodes.calls == [("kill", 2), ("bring back", 2)]
    assert [(kill.role, kill.name, kill.process_id) for kill in injector.kills] == [
        ("node", "of broker 2", 4711)
    ]
    assert shown == injector.kills


def test_without_the_right_to_mounts_one_line_says_so(monkeypatch):
    monkeypatch.setattr(demo, "why_not", lambda: "unshare failed: Operation not permitted")
    args = argparse.Namespace(brokers=3, seed=1, data_dir=None, keep=False, json=None)
    with pytest.raises(CliError, match="mounts of their own, refused here: unshare failed"):
        demo.main(args)
