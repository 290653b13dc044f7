"""How partitions grow that have fewer replicas than they are to have, as brokers become usable.

Rules. A topic whose creator left its replication factor open is to have as many replicas as are the
default: it may have been made while a broker was away, or before there were so many. So are the
topics of the coordinators, which are founded with one replica, on the first broker. Wherever people
say how many, by a number or by a reassignment, that holds. A few partitions grow at a time. Nothing
makes them fewer, but a broker that drains, where no other can take its replica
(``reassignment.drained``). A partition that has enough stays where it is, and new replicas come
last; only preferred leaders of internal topics go round the usable brokers, by their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelog.actors.protocol.cluster.elections import Brokers
from oncelog.actors.protocol.cluster.placement import Placer, usable_brokers
from oncelog.actors.protocol.cluster.reassignment import Move
from oncelog.actors.protocol.cluster.state import PartitionState, TopicState
from oncelog.actors.protocol.cluster.topic_creation import REPLICATION_FACTOR_DEFAULT
from oncelog.storage.model import INTERNAL_TOPICS, TopicPartition

GROWING_MAX: Final = 4
"""Partitions that are given more replicas at once: each is copied as a whole."""


def grown(topics: Mapping[str, TopicState], brokers: Brokers) -> tuple[Move, ...]:
    """The next partitions to give more replicas, and which; those of internal topics first."""
    usable = list(usable_brokers(brokers))
    internal = sorted(INTERNAL_TOPICS & topics.keys())
    owned = [name for name in topics if name not in internal]
    ordered = [topics[name] for name in (*internal, *owned)]
    growing = sum(_is_growing(partition) for topic in ordered for partition in topic.partitions)
    placer = Placer(brokers, topics.values())
    moves: list[Move] = []
    for topic in ordered:
        for number, partition in enumerate(topic.partitions):
            target, wanted = partition.target, min(_wanted(topic, partition), len(usable))
            # What is on a broker that drains moves first, with as many replicas as it has.
            is_settled = not partition.is_moving and set(target) <= set(usable)
            if not is_settled or len(target) >= wanted:
                continue
            if growing + len(moves) >= GROWING_MAX:
                return tuple(moves)
            placer.forget(target)
            preferred = usable[number % len(usable)] if topic.name in internal else target[0]
            kept = (preferred, *(n for n in target if n != preferred))
            replicas = placer.fill(kept, wanted)
            moves.append(
                Move(topic_partition=TopicPartition(topic.name, number), replicas=replicas)
            )
    return tuple(moves)


def _wanted(topic: TopicState, partition: PartitionState) -> int:
    is_internal = topic.name in INTERNAL_TOPICS
    return REPLICATION_FACTOR_DEFAULT if is_internal else partition.replication_factor


def _is_growing(partition: PartitionState) -> bool:
    return len(partition.adding) > len(partition.removing)
