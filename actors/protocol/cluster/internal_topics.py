"""How the topics of the coordinators grow: they are founded with one replica, on the first broker.

Rules. Once more brokers are usable each of their partitions is given as many replicas as a topic
gets by default, a few partitions at a time. Only a broker that drains makes them fewer, where no
other can take its replica (``reassignment.drained``). A partition that has enough stays where it
is. Preferred leaders go round the usable brokers, by the partition's number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelog.actors.protocol.cluster.elections import Brokers
from oncelog.actors.protocol.cluster.placement import Placer, usable_brokers
from oncelog.actors.protocol.cluster.reassignment import Move
from oncelog.actors.protocol.cluster.state import TopicState
from oncelog.actors.protocol.cluster.topic_creation import REPLICATION_FACTOR_DEFAULT
from oncelog.storage.model import INTERNAL_TOPICS, TopicPartition

GROWING_MAX: Final = 4
"""Partitions of internal topics that are given replicas at once: each is copied as a whole."""


def grown(topics: Mapping[str, TopicState], brokers: Brokers) -> tuple[Move, ...]:
    """The next partitions to give more replicas, and which."""
    usable = list(usable_brokers(brokers))
    wanted = min(REPLICATION_FACTOR_DEFAULT, len(usable))
    internal = [topics[name] for name in sorted(INTERNAL_TOPICS & topics.keys())]
    moving = sum(partition.is_moving for topic in internal for partition in topic.partitions)
    placer = Placer(brokers, topics.values())
    moves: list[Move] = []
    for topic in internal:
        for number, partition in enumerate(topic.partitions):
            target = partition.target
            # What is on a broker that drains moves first, with as many replicas as it has.
            is_settled = not partition.is_moving and set(target) <= set(usable)
            if not is_settled or len(target) >= wanted:
                continue
            if moving + len(moves) >= GROWING_MAX:
                return tuple(moves)
            placer.forget(target)
            preferred = usable[number % len(usable)]
            kept = (preferred, *(n for n in target if n != preferred))
            replicas = placer.fill(kept, wanted)
            moves.append(
                Move(topic_partition=TopicPartition(topic.name, number), replicas=replicas)
            )
    return tuple(moves)
