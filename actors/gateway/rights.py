"""What a client of Kafka may do to a resource, told as Kafka tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from oncelog.actors.gateway.calls import Client
from oncelog.actors.protocol.access import SOME_NAME, Authorizer
from oncelog.actors.protocol.messages.access import Operation, Resource
from oncelog.actors.rpc.door import Door

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


class Rights:
    """What clients may do, by the rules that the door goes by."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._authorizer: Authorizer | None = None

    def may(self, client: Client, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether a client may do this; nobody may do anything while the rules are not known."""
        authorizer = self._current()
        return authorizer is not None and authorizer.may(
            client.principal, operation, resource, name, client.host
        )

    def mask(self, client: Client, resource: Resource, name: str) -> int:
        """All that a client may do to a resource, as Kafka's field of bits."""
        bits = 0
        for number, operation, kind, other in _RIGHTS[resource]:
            if self.may(client, operation, kind, name if other is None else other):
                bits |= 1 << number
        return bits

    def _current(self) -> Authorizer | None:
        rules = self._door.rules
        if rules is None:
            return None
        known = self._authorizer
        if known is None or known.rules is not rules:
            known = self._authorizer = Authorizer(rules)
        return known
