"""What a client of Kafka may do to a resource, told as Kafka tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from oncelog.actors.gateway.calls import Call
from oncelog.actors.protocol.access import SOME_NAME
from oncelog.actors.protocol.messages.access import Operation, Resource

_RIGHTS: Final[Mapping[Resource, Sequence[tuple[int, Operation, Resource, str | None]]]] = {
    Resource.TOPIC: (
        (3, Operation.READ, Resource.TOPIC, None),
        (4, Operation.WRITE, Resource.TOPIC, None),
        (5, Operation.CREATE, Resource.TOPIC, None),
        (6, Operation.DELETE, Resource.TOPIC, None),
        (7, Operation.ALTER, Resource.TOPIC, None),
        (8, Operation.DESCRIBE, Resource.TOPIC, None),
        (10, Operation.DESCRIBE, Resource.TOPIC, None),
        (11, Operation.ALTER, Resource.TOPIC, None),
    ),
    Resource.GROUP: (
        (3, Operation.READ, Resource.GROUP, None),
        (6, Operation.DELETE, Resource.GROUP, None),
        (8, Operation.DESCRIBE, Resource.GROUP, None),
    ),
    Resource.CLUSTER: (
        (5, Operation.CREATE, Resource.TOPIC, SOME_NAME),
        (7, Operation.ALTER, Resource.CLUSTER, None),
        (8, Operation.DESCRIBE, Resource.CLUSTER, None),
        (10, Operation.DESCRIBE, Resource.CLUSTER, None),
        (11, Operation.ALTER, Resource.CLUSTER, None),
        (12, Operation.WRITE, Resource.TOPIC, SOME_NAME),
    ),
}
"""Kafka's number of an operation, and what that is here; ``None``: on the resource itself.

Settings (10 and 11) need no right of their own, nor do idempotent writes (12).
"""


def may(call: Call, operation: Operation, resource: Resource, name: str) -> bool:
    """Whether the client may do this; nobody may do anything while the rules are not known."""
    client = call.client
    return call.cluster.door.may(client.principal, operation, resource, name, client.host)


def mask(call: Call, resource: Resource, name: str) -> int:
    """All that the client may do to a resource, as Kafka's field of bits."""
    bits = 0
    for number, operation, kind, other in _RIGHTS[resource]:
        if may(call, operation, kind, name if other is None else other):
            bits |= 1 << number
    return bits
