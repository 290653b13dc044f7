"""Which nodes of a Ray cluster are brokers', and on which racks they are."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.actors.controller.broker_membership import BrokerNode
from oncelog.actors.launch.processes import broker_nodes
from oncelog.actors.pin import BY_ADDRESS, BY_LABEL, BY_NODE_ID, Pin

OWN = Pin(BY_ADDRESS, "10.0.0.1")


def node(address: str, *, is_alive: bool = True, **labels: str) -> dict[str, Any]:
    return {
        "Alive": is_alive,
        "NodeManagerAddress": address,
        "NodeID": f"id of {address}",
        "Labels": labels,
    }


def test_labelled_nodes_are_brokers_on_their_racks_while_they_live() -> None:
    nodes = [
        node("10.0.0.1", broker="1", rack="a"),
        node("10.0.0.2", broker="2"),
        node("10.0.0.3", broker="3", rack="c", is_alive=False),
        node("10.0.0.4", rack="d"),
    ]
    found = broker_nodes(nodes, own=1, pin=Pin(BY_LABEL, "1"))
    assert found == [BrokerNode(broker_id=1, rack="a"), BrokerNode(broker_id=2)]


@pytest.mark.parametrize("pin", [OWN, Pin(BY_NODE_ID, "id of 10.0.0.1")])
def test_the_controllers_own_node_needs_no_number(pin: Pin) -> None:
    nodes = [node("10.0.0.1", rack="a"), node("10.0.0.2", broker="2", rack="b")]
    found = broker_nodes(nodes, own=1, pin=pin)
    assert {one.broker_id: one.rack for one in found} == {1: "a", 2: "b"}


def test_a_node_beside_it_is_not_taken_for_it() -> None:
    """A number says more than an address, and of two without a number neither is known to be it."""
    labelled = node("10.0.0.1", broker="2", rack="b")
    assert [one.broker_id for one in broker_nodes([labelled], own=1, pin=OWN)] == [2]
    both = [node("10.0.0.1", rack="a"), node("10.0.0.1", rack="b")]
    assert broker_nodes(both, own=1, pin=OWN) == []
    elsewhere = [*both, node("10.0.0.9", broker="1", rack="c")]
    assert broker_nodes(elsewhere, own=1, pin=OWN) == [BrokerNode(broker_id=1, rack="c")]
