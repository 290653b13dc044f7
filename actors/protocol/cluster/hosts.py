"""Which actor holds a replica: one of its own, or a *host* that holds several of its broker.

A host has a number, from 1, on its broker; ``OWN_ACTOR`` stands for no host. The host is fixed when
the replica is placed. Partition machines, logs and epochs do not depend on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from oncelog.storage.model import TopicPartition

OWN_ACTOR: Final = 0
"""Host number of a replica that is alone in its actor."""

HOST_REPLICAS_MAX: Final = 1_000
"""Replicas that a host holds before another host is started, on any machine."""

SPREAD_REPLICAS: Final = 8
"""A host with fewer replicas is not split: a second one costs memory and calls."""

AUTO: Final = "auto"

ReplicasPerActor = int | Literal["auto"]
"""Replicas per actor: a maximum, or "auto" for what suits the machine."""


class Placement(NamedTuple):
    """One replica: its partition, its topic's id, its broker, and the host that holds it."""

    topic_partition: TopicPartition
    topic_id: str
    broker_id: int
    host: int = OWN_ACTOR


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRules:
    """Hosts that a broker's machine allows; by default every replica has its own actor.

    The first ``own_max`` replicas have an actor of their own. Then there are up to ``hosts_max``
    hosts, and more only when each holds ``replicas_max`` (with ``"auto"``).
    """

    replicas_per_actor: ReplicasPerActor = 1
    own_max: int = 0
    hosts_max: int = 1
    replicas_max: int = HOST_REPLICAS_MAX

    def choose(
        self, replicas: Iterable[tuple[int, ...]], held: Mapping[int, Counter[int]]
    ) -> tuple[tuple[int, ...], ...]:
        """Hosts of new partitions, one for each of ``replicas``; ``held``: broker, host → count."""
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
