"""The order of connections: which of two requests of a version 1 client was sent first.

All transactions of such a client have one producer id and epoch, so a late copy of a request would
be taken for one of the next transaction. What tells them apart is the connection (``docs/adr/
0034-kafkas-transactions.md``): each has a place, ``ConnectionLabel`` to the coordinators.

* A place is taken before the first answer on its connection, and counts only for requests that were
  sent after that answer. Clients send ApiVersions first of all, and wait for it. Not at accept: a
  stalled gateway may accept a connection whose client has long gone elsewhere.
* It refers to the coordinators' epochs as they were known then. They are learned from replies of
  the coordinators themselves: once one has replied, none before it decides anything. What names a
  producer id and epoch was sent after the reply that gave them, too.
* ``incarnation`` is higher than that of any gateway which has started before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from oncelog.actors.protocol.messages.transaction import NO_COORDINATOR_EPOCH, ConnectionLabel

_NOTHING_KNOWN: Final[Mapping[int, int]] = {}


@dataclass(slots=True)
class ConnectionPlace:
    """Where one connection stands among all; ``request_count`` are those that were labelled."""

    epochs: Mapping[int, int]
    """Shard of the coordinators → the epoch that was known; never changed, and shared by places."""
    incarnation: int
    number: int
    request_count: int = 0
    begun: tuple[str, int] = ("", NO_COORDINATOR_EPOCH)
    """The id for which a producer id was given here last, and the epoch of who gave it."""

    def begin(self, transactional_id: str, coordinator_epoch: int) -> None:
        """A coordinator has given a producer id and epoch, which are told now.

        What names them is sent after that; what names others of this id is refused for that. Of
        other ids requests may have been sent before: they are none of its business.
        """
        self.begun = (transactional_id, coordinator_epoch)

    def label(self, shard: int, transactional_id: str) -> ConnectionLabel:
        """The label of the next request of an id; its repeats by the gateway have the same."""
        self.request_count += 1
        epoch = self.epochs.get(shard, NO_COORDINATOR_EPOCH)
        if self.begun[0] == transactional_id:
            epoch = max(epoch, self.begun[1])
        return ConnectionLabel(
            coordinator_epoch=epoch,
            incarnation=self.incarnation,
            number=self.number,
            request=self.request_count,
        )


class ConnectionOrder:
    """Gives the connections of one gateway their places."""

    def __init__(self) -> None:
        self.incarnation = 0
        """Set before the first connection."""
        self._epochs = _NOTHING_KNOWN
        """Replaced whenever something is learned; bounded by the shards that there are."""
        self._count = 0

    def take(self) -> ConnectionPlace:
        """The place of a connection: after all that were taken before."""
        self._count += 1
        return ConnectionPlace(self._epochs, self.incarnation, self._count)

    def learn(self, shard: int, coordinator_epoch: int) -> None:
        """A coordinator has replied, and told its epoch; what is lower than known is late."""
        if coordinator_epoch > self.known(shard):
            self._epochs = {**self._epochs, shard: coordinator_epoch}

    def known(self, shard: int) -> int:
        """The highest epoch that was told of a shard; one of a lower epoch decides nothing."""
        return self._epochs.get(shard, NO_COORDINATOR_EPOCH)
