"""Which actor holds a replica: one of its own, or a *host* that holds several of its broker.

A host has a number, from 1, on its broker; ``OWN_ACTOR`` stands for no host. Where a replica is
held is fixed with its placement. Machines, logs and epochs know nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from oncelog.storage.model import TopicPartition

OWN_ACTOR: Final = 0
"""The number of no host: the replica is alone in an actor."""

HOST_REPLICAS_MAX: Final = 1_000
"""How many replicas a host holds before another is begun, whatever the machine has."""

SPREAD_REPLICAS: Final = 8
"""A host that holds fewer is not worth a second one, which costs memory and calls."""

AUTO: Final = "auto"

ReplicasPerActor = int | Literal["auto"]
"""How many replicas an actor holds: at most a number, or as many as suits the machine."""


class Placement(NamedTuple):
    """One replica: its partition, its topic's id, its broker, and the host that holds it."""

    topic_partition: TopicPartition
    topic_id: str
    broker_id: int
    host: int = OWN_ACTOR


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRules:
    """What the machine of a broker allows, by default that every replica is alone.

    ``own_max`` replicas have an actor of their own before the first host is begun; there are up to
    ``hosts_max`` hosts, and more only when each holds ``replicas_max`` (with ``"auto"``).
    """

    replicas_per_actor: ReplicasPerActor = 1
    own_max: int = 0
    hosts_max: int = 1
    replicas_max: int = HOST_REPLICAS_MAX

    def choose(
        self, replicas: Iterable[tuple[int, ...]], held: Mapping[int, Counter[int]]
    ) -> tuple[tuple[int, ...], ...]:
        """The hosts of new partitions, for the brokers of each; ``held``: broker, host → count."""
        loads = {broker_id: Counter(counts) for broker_id, counts in held.items()}
        return tuple(
            tuple(self._choose(loads.setdefault(broker_id, Counter())) for broker_id in brokers)
            for brokers in replicas
        )

    def _choose(self, load: Counter[int]) -> int:
        number = self._fitting(load)
        load[number] += 1
        return number

    def _fitting(self, load: Counter[int]) -> int:
        per_actor = self.replicas_per_actor
        if per_actor == 1 or (per_actor == AUTO and load[OWN_ACTOR] < self.own_max):
            return OWN_ACTOR
        hosts = [number for number, count in load.items() if number != OWN_ACTOR and count]
        least = min(hosts, key=lambda number: (load[number], number), default=None)
        limit = self.replicas_max
        if per_actor != AUTO:
            limit = min(per_actor, limit)
        elif len(hosts) < self.hosts_max:
            limit = min(SPREAD_REPLICAS, limit)
        if least is not None and load[least] < limit:
            return least
        return next(number for number in range(1, len(hosts) + 2) if number not in hosts)
