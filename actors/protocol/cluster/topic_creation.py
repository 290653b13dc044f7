"""Whether a topic, or more of its partitions, can be created, and where they are placed.

Nothing here changes state. The brokers that count are those that are neither fenced nor draining.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelog.actors.protocol.cluster.elections import Brokers
from oncelog.actors.protocol.cluster.placement import (
    check_replication,
    place_partitions,
    usable_brokers,
)
from oncelog.actors.protocol.cluster.state import TopicState
from oncelog.actors.protocol.messages.cluster import (
    ANY_REPLICATION,
    CreatePartitionsRequest,
    CreateTopicRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import INTERNAL_TOPICS, TOPIC_PARTITIONS_MAX, is_valid_topic_name

REPLICATION_FACTOR_DEFAULT: Final = 3
"""Of topics whose creator leaves it open: so many, or for now one for each usable broker."""

MIN_INSYNC_REPLICAS_DEFAULT: Final = 2
"""Of topics that do not set it and have more replicas than that. With fewer it is 1: two replicas
that need each other stand still oftener than one."""

MIN_INSYNC_REPLICAS: Final = "min_insync_replicas"

Topics = Mapping[str, TopicState]
Settings = tuple[tuple[str, str], ...]
Replicas = tuple[tuple[int, ...], ...]


def min_insync_of(settings: Settings, replication_factor: int) -> int:
    """How many replicas must be in sync for a write to be acknowledged."""
    text = dict(settings).get(MIN_INSYNC_REPLICAS, "")
    if text.isdecimal():
        return int(text)
    has_spare = replication_factor > MIN_INSYNC_REPLICAS_DEFAULT
    return MIN_INSYNC_REPLICAS_DEFAULT if has_spare else 1


def replication_of(request: CreateTopicRequest, brokers: Brokers) -> int:
    """The replication factor that a new topic is to have."""
    if request.replication_factor != ANY_REPLICATION:
        return request.replication_factor
    return max(1, min(REPLICATION_FACTOR_DEFAULT, len(usable_brokers(brokers))))


def wanted_of(request: CreateTopicRequest) -> int:
    """How many replicas its partitions are to have once there are brokers: see ``growth``."""
    is_open = request.replication_factor == ANY_REPLICATION
    return REPLICATION_FACTOR_DEFAULT if is_open else request.replication_factor


def check_new_topic(
    request: CreateTopicRequest, topics: Topics, brokers: Brokers
) -> tuple[ErrorCode, str]:
    """Whether a topic can be created; ``NONE`` also for the retry of one that was."""
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
    """Whether a topic can have more partitions; ``NONE`` also if it has so many already."""
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
