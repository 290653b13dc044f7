"""Replicas that are declared no more: they are held until they have removed their files.

Hosts are told to hold them as long, and actors of their own go on. Only memory knows of them: what
a controller that ends leaves behind stays on the disk until a replica is placed there again, which
then copies what it lacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from oncelog.actors.controller.membership import always
from oncelog.actors.controller.name_locks import NameLocks
from oncelog.actors.controller.replica_actors import ReplicaActors, ReplicaCalls
from oncelog.actors.interfaces import actor_of, holder_of
from oncelog.actors.protocol.cluster.elections import is_live
from oncelog.actors.protocol.cluster.hosts import OWN_ACTOR, Placement
from oncelog.actors.protocol.cluster.machine import ClusterMachine
from oncelog.actors.protocol.messages.cluster import HostedReplica
from oncelog.storage.model import TopicPartition

_logger = logging.getLogger(__name__)

LEAVING_MAX: Final = 10_000
"""Replicas that have moved away and are still to be removed, as on brokers that are down."""

REMOVAL_RETRY_MS: Final = 5_000
"""How soon those that did not answer are told again."""


class LeavingReplicas:
    """What is to be removed; every change of a topic's is made under the lock of its name."""

    def __init__(
        self,
        *,
        machine: ClusterMachine,
        actors: ReplicaActors,
        calls: ReplicaCalls,
        names: NameLocks,
    ) -> None:
        self._machine = machine
        self._actors = actors
        self._calls = calls
        self._names = names
        self._placements: dict[Placement, None] = {}
        self._deleted: dict[str, Sequence[Placement]] = {}
        """The replicas of topics that are being deleted, by name: as many as calls of that."""
        self._is_due = asyncio.Event()
        self.is_current: Callable[[], Awaitable[bool]] = always
        """Whether nobody else has become the controller, who may have placed them again."""

    def __len__(self) -> int:
        return len(self._placements)

    def add(self, placements: Iterable[Placement]) -> None:
        """Hold these until they are removed, or declared again."""
        self._placements.update(dict.fromkeys(placements))
        while len(self._placements) > LEAVING_MAX:
            forgotten = next(iter(self._placements))
            _logger.warning("the files of %s stay: too many are to be removed", forgotten)
            del self._placements[forgotten]

    def discard(self, placements: Iterable[Placement]) -> None:
        """These need not be removed any more."""
        for placement in placements:
            self._placements.pop(placement, None)

    @contextlib.contextmanager
    def deleting(self, name: str, placements: Sequence[Placement]) -> Iterator[None]:
        """Hold all replicas of a topic while it is being deleted."""
        self._deleted[name] = placements
        try:
            yield
        finally:
            del self._deleted[name]

    def of_topic(self, name: str) -> list[Placement]:
        """Those of a topic of this name."""
        return [one for one in self._placements if one.topic_partition.topic == name]

    def host_of(self, tp: TopicPartition, broker_id: int) -> int | None:
        """Where a replica is that has not gone: one that comes back has to be held there too."""
        for placement in self._placements:
            if placement.topic_partition == tp and placement.broker_id == broker_id:
                return placement.host
        return None

    def hosted(self, broker_id: int, host: int) -> tuple[HostedReplica, ...]:
        """Those that a host is to hold."""
        return tuple(
            HostedReplica(
                topic_partition=placement.topic_partition,
                topic_id=placement.topic_id,
                is_in_sync=False,
                is_leaving=True,
            )
            for placement in (*itertools.chain(*self._deleted.values()), *self._placements)
            if (placement.broker_id, placement.host) == (broker_id, host)
        )

    def adopt(self, actors: Collection[str]) -> set[str]:
        """Which of these actors, of nothing declared, hold a replica that has moved elsewhere."""
        if not actors:
            return set()
        found = {
            actor_of(tp, broker_id): Placement(tp, topic.topic_id, broker_id, OWN_ACTOR)
            for topic in self._machine.topics.values()
            for tp in (TopicPartition(topic.name, n) for n in range(len(topic.partitions)))
            for broker_id in self._machine.broker_states
        }
        adopted = found.keys() & set(actors)
        self.add(found[name] for name in sorted(adopted))
        return adopted

    # --- removal --------------------------------------------------------------------------

    def remove_soon(self) -> None:
        """Something can be removed now."""
        self._is_due.set()

    async def watch(self) -> None:
        """Remove what is to be removed, again and again; a task of its own."""
        loop = asyncio.get_running_loop()
        while True:
            await self.remove()
            timer = loop.call_later(REMOVAL_RETRY_MS / 1000, self._is_due.set)
            await self._is_due.wait()
            timer.cancel()
            self._is_due.clear()

    async def remove(self) -> None:
        """Remove what can be reached; the rest waits for the broker, or the process, to be back."""
        for name in sorted({one.topic_partition.topic for one in self._placements}):
            async with self._names.hold(name):
                await self._remove(name)

    async def _remove(self, name: str) -> None:
        declared = set(self._declared(name))
        brokers = self._machine.broker_states
        going = [
            one
            for one in self.of_topic(name)
            if one not in declared and is_live(one.broker_id, brokers)
        ]
        found = await self._actors.find(going)
        ended = await self._calls.shut_down(going, remove_data=True, is_moved=True)
        if ended and await self.is_current():
            self.discard(ended)
            alone = {holder_of(one) for one in ended if one.host == OWN_ACTOR}
            await self._actors.end(ended, [one for one in found if one.name in alone])

    def _declared(self, name: str) -> Sequence[Placement]:
        return self._machine.placements(name) if name in self._machine.topics else ()
