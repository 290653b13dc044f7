"""On which brokers the replicas of new partitions are placed.

Rules. Only *usable* brokers, neither fenced nor draining, get replicas. The replicas of a partition
are on different brokers, and on different racks as long as there are any. The first replica is
the preferred leader. Each is placed where there is least: leaders first by leaders, followers first
by replicas. Nothing is chosen by chance, so the same state gives the same placement.

Source: KIP-36 (racks).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from oncelog.actors.protocol.cluster.state import BrokerState, TopicState
from oncelog.storage.errors import ErrorCode


def usable_brokers(brokers: Mapping[int, BrokerState]) -> dict[int, BrokerState]:
    """The brokers that may be given replicas."""
    return {
        broker_id: broker
        for broker_id, broker in sorted(brokers.items())
        if not broker.is_fenced and not broker.is_draining
    }


def check_replication(
    replication_factor: int, min_insync_replicas: int, brokers: Mapping[int, BrokerState]
) -> tuple[ErrorCode, str]:
    """Whether partitions can have so many replicas; the text names the value and what may be."""
    count = len(usable_brokers(brokers))
    if not 1 <= replication_factor <= count:
        allowed = f"give 1 to {count}" if count else "none can be given"
        return ErrorCode.INVALID_REPLICATION_FACTOR, (
            f"replication_factor={replication_factor}: {allowed}, "
            "the number of brokers that are neither fenced nor draining"
        )
    if not 1 <= min_insync_replicas <= replication_factor:
        return ErrorCode.INVALID_CONFIG, (
            f"min_insync_replicas={min_insync_replicas}: "
            f"give 1 to {replication_factor}, the replication factor"
        )
    return ErrorCode.NONE, ""


class Placer:
    """Places replicas one partition after another, counting what it has placed."""

    __slots__ = ("_brokers", "_leaders", "_racks", "_replicas")

    def __init__(
        self, brokers: Mapping[int, BrokerState], topics: Iterable[TopicState] = ()
    ) -> None:
        self._brokers = usable_brokers(brokers)
        self._racks = {broker_id: broker.rack for broker_id, broker in brokers.items()}
        self._leaders: Counter[int] = Counter()
        self._replicas: Counter[int] = Counter()
        for topic in topics:
            for partition in topic.partitions:
                self._leaders[partition.target[0]] += 1
                self._replicas.update(partition.target)

    def place(self, replication_factor: int) -> tuple[int, ...]:
        """The replicas of one new partition; there must be enough usable brokers."""
        leader = min(self._brokers, key=lambda n: (self._leaders[n], self._replicas[n], n))
        return self.fill((leader,), replication_factor)

    def fill(self, kept: tuple[int, ...], replication_factor: int) -> tuple[int, ...]:
        """``kept`` and as many more brokers as are missing, if there are so many."""
        chosen = list(kept)
        if kept:
            self._leaders[kept[0]] += 1
            self._replicas.update(kept)
        while len(chosen) < replication_factor:
            others = [n for n in self._brokers if n not in chosen]
            if not others:
                break
            used = Counter(self._racks.get(n) for n in chosen)
            added = min(others, key=lambda n: (used[self._racks[n]], *self._load(n)))
            chosen.append(added)
            self._replicas[added] += 1
            if len(chosen) == 1:
                self._leaders[added] += 1
        return tuple(chosen)

    def _load(self, broker_id: int) -> tuple[int, int, int]:
        return self._replicas[broker_id], self._leaders[broker_id], broker_id

    def forget(self, replicas: tuple[int, ...]) -> None:
        """These replicas of one partition are about to be placed anew."""
        self._leaders[replicas[0]] -= 1
        self._replicas.subtract(replicas)


def place_partitions(
    count: int,
    replication_factor: int,
    brokers: Mapping[int, BrokerState],
    topics: Iterable[TopicState] = (),
) -> tuple[tuple[int, ...], ...]:
    """The replicas of ``count`` new partitions; ``check_replication`` has said that it can be."""
    placer = Placer(brokers, topics)
    return tuple(placer.place(replication_factor) for _ in range(count))
