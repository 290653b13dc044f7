"""Pin the actors of a broker to the node that has its data directory.

A node gets a new Ray id at each start, and Ray ends actors for good that are pinned to an old one.
So a broker is pinned by what stays: the label ``broker=N`` if nodes have such labels, else the
node's address. Only if several nodes share an address, as on one machine, is it the node id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

LOCAL_BROKER_ID: Final = 1
"""The broker on whose node a cluster is founded."""

BROKER_LABEL: Final = "broker"
"""The node label with the broker number."""

RACK_LABEL: Final = "rack"
"""The node label with the rack: brokers of one rack may fail together."""

NODE_ID_LABEL: Final = "ray.io/node-id"
"""Set by Ray on every node."""

BY_LABEL: Final = "label"
BY_ADDRESS: Final = "address"
BY_NODE_ID: Final = "node id"

_ADDRESS_SHARE: Final = 0.0001
"""Share of the resource ``node:<address>`` per actor: Ray's smallest unit, for 10,000 actors."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A node, identified by its label ``broker``, its address or its node id."""

    kind: str
    value: str

    def __str__(self) -> str:
        return {
            BY_LABEL: f"the node labelled {BROKER_LABEL}={self.value}",
            BY_ADDRESS: f"the node {self.value}",
            BY_NODE_ID: f"the node with the id {self.value}",
        }[self.kind]

    def options(self) -> dict[str, Any]:
        """Options that make an actor or task run only there."""
        if self.kind == BY_ADDRESS:
            return {"resources": {f"node:{self.value}": _ADDRESS_SHARE}}
        label = BROKER_LABEL if self.kind == BY_LABEL else NODE_ID_LABEL
        return {"label_selector": {label: self.value}}

    def is_at(self, node: Mapping[str, Any]) -> bool:
        """Whether that entry of ``ray.nodes()`` is the node, and alive."""
        found = {
            BY_LABEL: node["Labels"].get(BROKER_LABEL),
            BY_ADDRESS: node["NodeManagerAddress"],
            BY_NODE_ID: node["NodeID"],
        }[self.kind]
        return bool(node["Alive"]) and found == self.value


def broker_of(node: Mapping[str, Any]) -> int | None:
    """The broker number in the label of an entry of ``ray.nodes()``; ``None`` without a label."""
    label = str(node["Labels"].get(BROKER_LABEL, ""))
    return int(label) if label.isascii() and label.isdecimal() and int(label) > 0 else None


def pin_of(node: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> Pin:
    """The most lasting pin for ``node``, one of ``nodes``."""
    if BROKER_LABEL in node["Labels"]:
        return Pin(BY_LABEL, node["Labels"][BROKER_LABEL])
    address = node["NodeManagerAddress"]
    if sum(1 for other in nodes if other["NodeManagerAddress"] == address) > 1:
        return Pin(BY_NODE_ID, node["NodeID"])
    return Pin(BY_ADDRESS, address)
