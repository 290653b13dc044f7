"""Check that a topic or more partitions can be created, and choose their brokers.

Rules. Only *usable* brokers, neither fenced nor draining, get replicas. The replicas of a partition
are on different brokers, and on different racks while there are unused ones. The first replica is
the preferred leader. Each replica goes to the least loaded broker: leaders by number of leaders,
followers by number of replicas. The same state always gives the same placement. Nothing here
changes state.

Source: KIP-36 (racks).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from oncelog.actors.protocol.cluster.cluster_state import BrokerState, TopicState
from oncelog.actors.protocol.cluster.elections import Brokers
from oncelog.actors.protocol.messages.cluster import (
    ANY_REPLICATION,
    CreatePartitionsRequest,
    CreateTopicRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import INTERNAL_TOPICS, TOPIC_PARTITIONS_MAX, is_valid_topic_name

REPLICATION_FACTOR_DEFAULT: Final = 3
"""Default replication factor; with fewer usable brokers, one replica on each for now."""

MIN_INSYNC_REPLICAS_DEFAULT: Final = 2
"""Default ``min_insync_replicas`` of topics with more replicas than this; else it is 1.

Two replicas that need each other are unavailable more often than one.
"""

MIN_INSYNC_REPLICAS: Final = "min_insync_replicas"

Topics = Mapping[str, TopicState]
Settings = tuple[tuple[str, str], ...]
Replicas = tuple[tuple[int, ...], ...]


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
    """Whether partitions can have that many replicas; the text names the value and the limits."""
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
    """Places replicas partition by partition, and keeps count per broker."""

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
        """``kept`` plus brokers up to ``replication_factor``, if there are enough."""
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
        """Uncount these replicas of one partition, which will be placed anew."""
        self._leaders[replicas[0]] -= 1
        self._replicas.subtract(replicas)


def place_partitions(
    count: int,
    replication_factor: int,
    brokers: Mapping[int, BrokerState],
    topics: Iterable[TopicState] = (),
) -> tuple[tuple[int, ...], ...]:
    """The replicas of ``count`` new partitions, once ``check_replication`` has passed."""
    placer = Placer(brokers, topics)
    return tuple(placer.place(replication_factor) for _ in range(count))


# --- what can be created ---------------------------------------------------------------------


def min_insync_of(settings: Settings, replication_factor: int) -> int:
    """How many replicas must be in sync for a write to be acknowledged."""
    text = dict(settings).get(MIN_INSYNC_REPLICAS, "")
    if text.isdecimal():
        return int(text)
    has_spare = replication_factor > MIN_INSYNC_REPLICAS_DEFAULT
    return MIN_INSYNC_REPLICAS_DEFAULT if has_spare else 1


def replication_of(request: CreateTopicRequest, brokers: Brokers) -> int:
    """The number of replicas that a new topic gets now."""
    if request.replication_factor != ANY_REPLICATION:
        return request.replication_factor
    return max(1, min(REPLICATION_FACTOR_DEFAULT, len(usable_brokers(brokers))))


def wanted_of(request: CreateTopicRequest) -> int:
    """The replication factor it gets once there are brokers: see ``reassignment.grown``."""
    is_open = request.replication_factor == ANY_REPLICATION
    return REPLICATION_FACTOR_DEFAULT if is_open else request.replication_factor


def check_new_topic(
    request: CreateTopicRequest, topics: Topics, brokers: Brokers
) -> tuple[ErrorCode, str]:
    """Whether a topic can be created; ``NONE`` also for a retry after success."""
    existing = topics.get(request.name)
    if existing is not None and existing.topic_id == request.topic_id:
        return ErrorCode.NONE, ""
    if not is_valid_topic_name(request.name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION, (
            f"topic name {request.name!r} is not allowed: give 1 to 249 of letters, digits, "
            "'.', '_' and '-', but not '.' or '..'"
        )
    if existing is not None:
        return ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {request.name!r} exists already"
    if not 1 <= request.partitions <= TOPIC_PARTITIONS_MAX:
        return ErrorCode.INVALID_PARTITIONS, (
            f"partitions={request.partitions}: give 1 to {TOPIC_PARTITIONS_MAX}"
        )
    replication_factor = replication_of(request, brokers)
    minimum = min_insync_of(request.settings, replication_factor)
    return check_replication(replication_factor, minimum, brokers)


def check_new_partitions(
    request: CreatePartitionsRequest, topics: Topics, brokers: Brokers
) -> tuple[ErrorCode, str]:
    """Whether a topic can have more partitions; ``NONE`` also if it already has that many."""
    if request.name in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, f"{request.name!r} is an internal topic"
    topic = topics.get(request.name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {request.name!r}"
    count = len(topic.partitions)
    if request.partitions == count:
        return ErrorCode.NONE, ""
    if not count < request.partitions <= TOPIC_PARTITIONS_MAX:
        return ErrorCode.INVALID_PARTITIONS, (
            f"partitions={request.partitions}: topic {request.name!r} has {count} and cannot "
            f"have fewer; give {count + 1} to {TOPIC_PARTITIONS_MAX}"
        )
    return check_replication(factor_of(topic), 1, brokers)


def factor_of(topic: TopicState) -> int:
    """The replication factor of a topic: that of its first partition, once it has moved."""
    return len(topic.partitions[0].target)


def placed(count: int, replication_factor: int, topics: Topics, brokers: Brokers) -> Replicas:
    """The replicas of new partitions; those of internal topics do not count as load."""
    owned = [topic for name, topic in topics.items() if name not in INTERNAL_TOPICS]
    return place_partitions(count, replication_factor, brokers, owned)
