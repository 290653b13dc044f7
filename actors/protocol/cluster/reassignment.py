"""Move a partition to other or more brokers, never with fewer copies than before.

Rules. The new replicas are added first, and the old ones stay. Once every replica of the target is
in sync the old ones are removed; if one of them leads, a new leader is elected. At each step the
leader is in the ISR, and the ISR among the replicas. A request for a target, or to cancel one, also
sets the replication factor; moves by the controller itself keep it. Nothing here changes state:
each function returns records, or what to begin.

=============  ===================================  ============================================
event          state                                answer
=============  ===================================  ============================================
begin          the target is what is there          nothing logged (a retry), unless it grows
begin          only the order differs               the new order: another preferred leader
begin          another is in progress               REASSIGNMENT_IN_PROGRESS
begin          else                                 ``adding`` and ``removing``
begin          impossible brokers, or fewer than    INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG,
               min_insync_replicas                  with the value and what is allowed
begin (none)   in progress                          cancelled: the added ones are removed
begin (none)   in progress, only added in sync      INELIGIBLE_REPLICA
begin (none)   not in progress                      nothing logged (a retry)
complete       all of the target in sync, and one   the old are removed; if the leader was one of
               of them live                         them, another leads, epoch + 1
complete       else                                 nothing
drained        a broker drains                      targets for some of its partitions
grown          fewer replicas than its factor       targets for some of these partitions
=============  ===================================  ============================================

*Growth*. A topic created without a replication factor gets the default number of replicas, if need
be later: it may have been created while a broker was down, or with too few brokers. So do the
internal topics, which are founded with one replica on the first broker. A number given by people,
at creation or by a reassignment, is kept. A few partitions grow at a time. Replicas are removed
only when their broker drains and no other can take them (``drained``). A partition that has enough
stays where it is. New replicas come last in the order of preference. Only the preferred leaders of
internal topics are spread over the usable brokers, by partition number.

Source: KIP-455.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from oncelog.actors.protocol.cluster.cluster_records import ReplicasChanged, decision
from oncelog.actors.protocol.cluster.cluster_state import NO_LEADER, PartitionState, TopicState
from oncelog.actors.protocol.cluster.elections import (
    Brokers,
    Records,
    candidates,
    elect,
    is_live,
)
from oncelog.actors.protocol.cluster.hosts import OWN_ACTOR
from oncelog.actors.protocol.cluster.placement import (
    REPLICATION_FACTOR_DEFAULT,
    Placer,
    usable_brokers,
)
from oncelog.actors.protocol.effects import Decision, refused
from oncelog.actors.protocol.messages.brokers import (
    ReassignPartitionReply,
    ReassignPartitionRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import INTERNAL_TOPICS, TopicPartition

DRAIN_MOVES_MAX: Final = 10
"""Partitions that move off draining brokers at a time; each is copied as a whole."""

GROWING_MAX: Final = 4
"""Partitions that get more replicas at a time; each is copied as a whole."""

HostChoice = Callable[[int], int]
"""Chooses the host of a new replica on a broker."""


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A partition and its new replicas."""

    topic_partition: TopicPartition
    replicas: tuple[int, ...]


def in_own_actor(_broker_id: int) -> int:
    """Give every new replica its own actor."""
    return OWN_ACTOR


def decide_reassign(
    topics: Mapping[str, TopicState],
    brokers: Brokers,
    request: ReassignPartitionRequest,
    *,
    min_insync_replicas: int = 1,
    host_of: HostChoice = in_own_actor,
    keeps_factor: bool = False,
) -> Decision[ReassignPartitionReply]:
    """Begin a reassignment, or cancel one that is in progress.

    With ``keeps_factor`` the replication factor stays as it is.
    """
    topic, number = topics.get(request.topic_partition.topic), request.topic_partition.partition
    if topic is None or not 0 <= number < len(topic.partitions):
        return refused(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition, target = topic.partitions[number], request.replicas
    if not target:
        return _cancel(topic, number, brokers, request)
    error, detail = _check_target(partition, brokers, target, min_insync_replicas)
    if error is not ErrorCode.NONE:
        return refused(request, error, detail)
    if target == partition.target and (
        keeps_factor or partition.is_moving or partition.replication_factor == len(target)
    ):
        return Decision(reply=ReassignPartitionReply())
    if partition.is_moving:
        detail = f"it is being moved to {list(partition.target)}"
        return refused(request, ErrorCode.REASSIGNMENT_IN_PROGRESS, detail)
    removing = tuple(n for n in partition.replicas if n not in target)
    adding = tuple(n for n in target if n not in partition.replicas)
    record = _changed(
        topic,
        number,
        (*target, *removing),
        partition.isr,
        host_of,
        adding,
        removing,
        factor=partition.replication_factor if keeps_factor else 0,
    )
    return decision(ReassignPartitionReply(), record)


def _check_target(
    partition: PartitionState, brokers: Brokers, target: tuple[int, ...], min_insync_replicas: int
) -> tuple[ErrorCode, str]:
    if len(set(target)) != len(target):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, (
            f"replicas={list(target)}: give each broker once"
        )
    usable = sorted(usable_brokers(brokers))
    unusable = [n for n in target if n not in usable and n not in partition.replicas]
    if unusable:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, (
            f"replicas={list(target)}: {unusable} cannot be given, but {usable}"
        )
    if len(target) < min_insync_replicas:
        return ErrorCode.INVALID_CONFIG, (
            f"replicas={list(target)}: give {min_insync_replicas} or more, "
            "the topic's min_insync_replicas"
        )
    return ErrorCode.NONE, ""


def _cancel(
    topic: TopicState, number: int, brokers: Brokers, request: ReassignPartitionRequest
) -> Decision[ReassignPartitionReply]:
    partition = topic.partitions[number]
    if not partition.is_moving:
        return Decision(reply=ReassignPartitionReply())
    old = tuple(n for n in partition.replicas if n not in partition.adding)
    records = _reduced(topic, number, old, brokers)
    if not records:
        detail = f"none of the replicas {list(old)} that there were can lead now"
        return refused(request, ErrorCode.INELIGIBLE_REPLICA, detail)
    return decision(ReassignPartitionReply(), *records)


def complete(topic: TopicState, number: int, brokers: Brokers) -> Records:
    """Complete a reassignment whose target is in sync; call it after each change of the ISR."""
    partition = topic.partitions[number]
    if not partition.is_moving or not set(partition.target) <= set(partition.isr):
        return ()
    factor = partition.replication_factor
    return _reduced(topic, number, partition.target, brokers, factor=factor)


def _reduced(
    topic: TopicState,
    number: int,
    replicas: tuple[int, ...],
    brokers: Brokers,
    *,
    factor: int = 0,
) -> Records:
    """Reduce the partition to ``replicas``; no records if none of them could lead."""
    partition = topic.partitions[number]
    isr = tuple(n for n in partition.isr if n in replicas)
    if not isr:
        return ()
    if partition.leader in (NO_LEADER, *isr):
        return (_changed(topic, number, replicas, isr, in_own_actor, factor=factor),)
    live = [n for n in candidates(partition, brokers) if n in isr]
    if not live:
        return ()
    elected = elect(topic, number, live[0], isr)
    return elected, _changed(topic, number, replicas, isr, in_own_actor, steps=2, factor=factor)


def _changed(
    topic: TopicState,
    number: int,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    host_of: HostChoice,
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
    *,
    steps: int = 1,
    factor: int = 0,
) -> ReplicasChanged:
    partition = topic.partitions[number]
    hosts = dict(zip(partition.replicas, partition.hosts, strict=True))
    return ReplicasChanged(
        topic_id=topic.topic_id,
        partition=number,
        partition_version=partition.version + steps,
        replicas=replicas,
        hosts=tuple(hosts[n] if n in hosts else host_of(n) for n in replicas),
        isr=isr,
        adding=adding,
        removing=removing,
        replication_factor=factor,
    )


def drained(topics: Mapping[str, TopicState], brokers: Brokers) -> tuple[Move, ...]:
    """The next partitions to move off draining brokers, and their targets.

    Up to ``DRAIN_MOVES_MAX`` are in progress. A replica that has nowhere to go stays. A partition
    of an internal topic then goes on with fewer replicas, and gets more when brokers are usable
    again.
    """
    draining = {n for n, broker in brokers.items() if broker.is_draining}
    placer = Placer(brokers, topics.values())
    moves: list[Move] = []
    moving = sum(partition.is_moving for topic in topics.values() for partition in topic.partitions)
    for topic in topics.values():
        for number, partition in enumerate(topic.partitions):
            kept = tuple(n for n in partition.target if n not in draining)
            if partition.is_moving or len(kept) == len(partition.target):
                continue
            if moving + len(moves) >= DRAIN_MOVES_MAX:
                return tuple(moves)
            placer.forget(partition.target)
            target = placer.fill(kept, len(partition.target))
            wanted = 1 if topic.name in INTERNAL_TOPICS else len(partition.target)
            if len(target) >= wanted and all(is_live(n, brokers) for n in target):
                moves.append(
                    Move(topic_partition=TopicPartition(topic.name, number), replicas=target)
                )
    return tuple(moves)


# --- growth ----------------------------------------------------------------------------------


def grown(topics: Mapping[str, TopicState], brokers: Brokers) -> tuple[Move, ...]:
    """The next partitions that get more replicas, and their targets; internal topics first."""
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
            # A partition on a draining broker moves first, with as many replicas as it has.
            is_stable = not partition.is_moving and set(target) <= set(usable)
            if not is_stable or len(target) >= wanted:
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
