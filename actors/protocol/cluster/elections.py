"""Who leads a partition, and who is in sync with its leader.

Rules. A leader is elected from the live members of the ISR, with an epoch one above. *Live* is a
broker that is not fenced. If there is none, a live member of the ELR is elected, alone in sync: who
left an ISR of fewer than ``min_insync_replicas`` has all that is committed (``PartitionState``).
The ISR never becomes empty: its last member stays, and without it and the ELR the partition has no
leader until one of these is back. A replica that may have lost what it had leaves the ELR; if it is
the last of the ISR, one of the ELR takes its place. A member that is fenced leaves the ISR in the
same decision; its leader learns of it by the version, and until then waits for more members than it
must. Nothing here changes state: each function gives records.

All replicas of a new partition begin in the ISR, as all are empty. One that has not *started* yet
has no log; what it has not acknowledged is not committed. What was never led is empty everywhere,
so that any live replica may lead it.

=====================  =============================  ==========================================
event                  partition                      records
=====================  =============================  ==========================================
broker fenced          led by it, others in the ISR   the first live one leads; ISR without it
                       live
broker fenced          led by it, no other live,      the first of the ELR leads, alone in sync
                       some of the ELR are
broker fenced          led by it, no other live       no leader, epoch + 1; ISR without it,
                                                      unless that leaves nobody
broker fenced          another leads, it is in sync   ISR without it
broker fenced          never led                      none
broker unfenced        no leader, it is in sync       it leads; ISR as it was
broker unfenced        no leader, it is in the ELR    it leads, alone in sync
broker unfenced        another leads, it is not in    a new version, ISR as it was: it may join, and
                       sync                           what was refused before cannot be accepted
replica started        led by it                      it leads, epoch + 1; ISR as it was
replica started        no leader, it is in sync and   it leads, epoch + 1; ISR as it was
                       live
replica started        likewise, it is in the ELR     it leads, epoch + 1, alone in sync
replica started        never led, it is the first     it leads; ISR as it was, without those that
                       live replica                   are not live
replica started        for the first time, in sync    a new version: it has a log from now on
                       and not to lead
replica started        else, another leads, it is     a new version, ISR as it was: what it had said
                       not in sync                    before is worth nothing, and it may have lost
                                                      its log
replica started        else                           none: it follows
replica without a log  led by another, not in sync,   likewise, before it begins one; it leaves
                       or in the ELR                  the ELR
new directory          likewise                       likewise
new directory          last in sync, others in the    the first live one of these leads, alone in
                       ELR                            sync; or nobody, and one of these is in sync
its host has booted    the topic does not sync: as    it is not eligible
again                  if its broker were fenced,
                       where others can lead
actor is silent, or    led by it, others in the ISR   as if its broker were fenced
replica offline        or eligible are live; or in
                       sync
actor is silent, or    never led, another has         ISR without it: it is not waited for
replica offline        started
disk refuses appends   led by it, others in the ISR   as if its broker were fenced
for too long           live and not refusing
alter_isr              see ``decide_alter_isr``       ISR as proposed
broker drains          led by it, others in the ISR   the first of them leads
                       live and not draining
balance                preferred leader in sync,      it leads
                       live, not draining
=====================  =============================  ==========================================

Source: KIP-497, KIP-841, KIP-966; unclean elections are not offered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from msgspec import structs

from oncelog.actors.protocol.cluster.cluster_records import (
    ClusterRecord,
    IsrChanged,
    LeaderElected,
    decision,
)
from oncelog.actors.protocol.cluster.cluster_state import (
    NO_LEADER,
    BrokerState,
    PartitionState,
    TopicState,
)
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.effects import Decision
from oncelog.actors.protocol.messages.cluster import (
    AlterIsrReply,
    AlterIsrRequest,
    BecomeLeaderReply,
    BecomeLeaderRequest,
)
from oncelog.storage.errors import ErrorCode

BALANCE_ELECTIONS_MAX: Final = 100
"""Leaders moved in one pass of balancing: each is a short pause of its partition."""

Brokers = Mapping[int, BrokerState]
Records = tuple[ClusterRecord, ...]


def is_live(broker_id: int, brokers: Brokers) -> bool:
    """Whether a broker is registered and not fenced."""
    broker = brokers.get(broker_id)
    return broker is not None and not broker.is_fenced


def candidates(
    partition: PartitionState, brokers: Brokers, *, without: int = NO_LEADER
) -> tuple[int, ...]:
    """Who may be elected, best first: preferred leaders first, then those that drain.

    Then those that have not started, and last those whose disk refuses. Of the ELR, if nobody in
    sync may. What was never led waits for its preferred leader, unless that one is not in sync, as
    it was silent.
    """
    live = [n for n in partition.replicas if is_live(n, brokers) and n != without]
    if not partition.has_been_led:
        return tuple(sorted(live, key=lambda n: (n not in partition.isr, brokers[n].is_draining)))
    in_sync = [n for n in live if n in partition.isr] or [n for n in live if n in partition.elr]
    late = partition.unstarted
    return tuple(
        sorted(in_sync, key=lambda n: (brokers[n].is_refusing, n in late, brokers[n].is_draining))
    )


def elect(
    topic: TopicState, number: int, leader: int, isr: tuple[int, ...] | None = None
) -> LeaderElected:
    """The record that makes ``leader`` lead (-1: nobody), with this ISR or as it is.

    One that is not in sync was eligible, and is alone in sync.
    """
    partition = topic.partitions[number]
    isr = partition.isr if isr is None else isr
    if leader not in (NO_LEADER, *isr):
        isr = (leader,)
    return LeaderElected(
        topic_id=topic.topic_id,
        partition=number,
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        isr=isr,
        incarnation="",
    )


# --- brokers come and go -----------------------------------------------------------------------


def after_fencing(topics: Iterable[TopicState], broker_id: int, brokers: Brokers) -> Records:
    """What follows from fencing a broker, for every partition that it leads or is in sync in."""
    records = [
        _without(topic, number, broker_id, brokers)
        for topic, number, partition in _partitions(topics)
        if broker_id in partition.isr and partition.has_been_led
    ]
    return tuple(record for record in records if record is not None)


def _without(
    topic: TopicState, number: int, broker_id: int, brokers: Brokers, *, lost: int = NO_LEADER
) -> LeaderElected | IsrChanged | None:
    partition = topic.partitions[number]
    isr = tuple(n for n in partition.isr if n != broker_id) or partition.isr
    if partition.leader == broker_id:
        live = candidates(partition, brokers, without=broker_id)
        elected = elect(topic, number, live[0] if live else NO_LEADER, isr)
        return structs.replace(elected, lost=lost)
    if isr == partition.isr:
        return None
    return IsrChanged(
        topic_id=topic.topic_id,
        partition=number,
        partition_version=partition.version + 1,
        isr=isr,
    )


def after_unfencing(topics: Iterable[TopicState], broker_id: int) -> Records:
    """The broker leads what nobody leads and it is in sync in, from the first election on.

    Leaders that have proposed in vain that it joins learn by the version that it may now. They
    count on that they would: a late copy of such a proposal names an older one.
    """
    records: list[ClusterRecord | None] = []
    for topic, number, partition in _partitions(topics):
        if not partition.has_been_led:
            continue
        if partition.leader == NO_LEADER and broker_id in {*partition.isr, *partition.elr}:
            records.append(elect(topic, number, broker_id))
        elif broker_id in partition.replicas:
            records.append(after_return(topic, number, broker_id))
    return tuple(record for record in records if record is not None)


def after_start(
    topic: TopicState, number: int, request: BecomeLeaderRequest, brokers: Brokers
) -> LeaderElected | None:
    """The election of a replica that has started, if it is the one to lead; else None.

    A leader that starts again gets another epoch: what it had not synced is gone.
    """
    partition, broker_id = topic.partitions[number], request.broker_id
    possible, isr = candidates(partition, brokers), partition.isr
    if not partition.has_been_led:
        if broker_id not in possible[:1]:
            return None
        isr = tuple(n for n in possible if n in isr or n == broker_id)
    elif partition.leader != broker_id and (
        partition.leader != NO_LEADER or broker_id not in possible
    ):
        return None
    elected = elect(topic, number, broker_id, isr)
    return structs.replace(elected, incarnation=request.incarnation)


def after_follower_start(topic: TopicState, number: int, broker_id: int) -> IsrChanged | None:
    """See ``after_return``; also a new version, if one in sync begins for the first time.

    From then on it has a log, which it has made durable before it asked: should it be without one
    later, that was lost.
    """
    partition = topic.partitions[number]
    if broker_id not in partition.unstarted:
        return after_return(topic, number, broker_id)
    return IsrChanged(
        topic_id=topic.topic_id,
        partition=number,
        partition_version=partition.version + 1,
        isr=partition.isr,
        started=broker_id,
    )


def after_return(
    topic: TopicState, number: int, broker_id: int, *, lost: int = NO_LEADER
) -> IsrChanged | None:
    """A new version, if a replica begins again that is not in sync and that a leader pushes to.

    A proposal that rests on what an earlier life of it has acknowledged is refused by that. If it
    has ``lost`` its log, also if it is eligible, which it is no longer.
    """
    partition = topic.partitions[number]
    is_pushed_to = partition.leader not in (NO_LEADER, broker_id)
    if broker_id in partition.isr or not (is_pushed_to or lost in partition.elr):
        return None
    return IsrChanged(
        topic_id=topic.topic_id,
        partition=number,
        partition_version=partition.version + 1,
        isr=partition.isr,
        lost=lost,
    )


def after_announcement(
    topic: TopicState, number: int, told: BecomeLeaderReply
) -> IsrChanged | None:
    """A new version, if the leader has taken a higher minimum than it may have gone by before.

    Nothing, if the partition or its settings have changed since it was told.
    """
    partition = topic.partitions[number]
    is_current = (
        partition.leader == told.leader
        and partition.leader_epoch == told.leader_epoch
        and partition.version == told.partition_version
        and topic.settings_version == told.settings_version
    )
    if not is_current or told.min_insync_replicas <= partition.held_minimum:
        return None
    return IsrChanged(
        topic_id=topic.topic_id,
        partition=number,
        partition_version=partition.version + 1,
        isr=partition.isr,
        follows_minimum=True,
    )


def after_new_directory(topics: Iterable[TopicState], broker_id: int, brokers: Brokers) -> Records:
    """What follows from a fenced broker with another disk than before: it has lost its logs.

    Where it is the last in sync the ELR takes over (``is_last_copy``: there is one).
    """
    records: list[LeaderElected | IsrChanged | None] = []
    for topic, number, partition in _partitions(topics):
        if partition.has_log(broker_id):
            records.append(_inherited(topic, number, broker_id, brokers))
        elif broker_id in partition.replicas:
            records.append(after_return(topic, number, broker_id, lost=broker_id))
    return tuple(record for record in records if record is not None)


def _inherited(topic: TopicState, number: int, broker_id: int, brokers: Brokers) -> LeaderElected:
    """The last member of the ISR may lack what it had: one of the ELR takes its place."""
    partition = topic.partitions[number]
    live = candidates(partition, brokers, without=broker_id)
    leader = live[0] if live else NO_LEADER
    elected = elect(topic, number, leader, live[:1] or partition.elr[:1])
    return structs.replace(elected, lost=broker_id)


def after_reboot(
    topics: Iterable[TopicState], broker: BrokerState, boot_id: str, brokers: Brokers
) -> Records:
    """What follows if a broker registers after another boot: topics that do not sync lack a tail.

    What only it can lead stays as it is: ``flush="os"`` promises no more.
    """
    if "" in (broker.boot_id, boot_id) or broker.boot_id == boot_id:
        return ()
    records: list[ClusterRecord | None] = []
    broker_id = broker.broker_id
    for topic, number, partition in _partitions(topics):
        if not (topic.is_unsynced and partition.has_been_led):
            continue
        if partition.isr == (broker_id,) and partition.elr:
            records.append(_inherited(topic, number, broker_id, brokers))
        elif broker_id in partition.isr and len(partition.isr) > 1:
            records.append(_without(topic, number, broker_id, brokers, lost=broker_id))
        elif broker_id in partition.elr:
            records.append(after_return(topic, number, broker_id, lost=broker_id))
    return tuple(record for record in records if record is not None)


def is_last_copy(partition: PartitionState, broker_id: int) -> bool:
    """Whether nobody can lead if the broker has lost its disk, which is fenced."""
    return partition.has_log(broker_id) and not partition.elr


def after_silence(
    topics: Iterable[TopicState], silent: Collection[Placement], brokers: Brokers
) -> Records:
    """What follows when actors of a live broker do not answer it: others lead what these hold.

    Likewise for replicas that are offline. As after fencing, but for these alone, and only where
    another is in sync and live.
    """
    records: list[ClusterRecord] = []
    known = {topic.name: topic for topic in topics}
    for placement in silent:
        tp, broker_id = placement.topic_partition, placement.broker_id
        topic = known.get(tp.topic)
        if topic is None or topic.topic_id != placement.topic_id:
            continue
        partition = topic.partitions[tp.partition]
        others = set(candidates(partition, brokers, without=broker_id))
        if not partition.has_been_led:
            others -= set(partition.unstarted)
        if broker_id in partition.isr and others:
            # Else two that are silent would be elected in turn.
            lost = broker_id if others <= set(partition.elr) else NO_LEADER
            record = _without(topic, tp.partition, broker_id, brokers, lost=lost)
            records += [] if record is None else [record]
    return tuple(records)


def after_refusal(
    topics: Iterable[TopicState], refusing: Collection[Placement], brokers: Brokers
) -> Records:
    """What follows when a disk refuses appends for too long: others lead what these lead.

    Only where another is in sync, live, and not refused by its disk.
    """
    known = {topic.name: topic for topic in topics}
    resigning = []
    for placement in refusing:
        topic = known.get(placement.topic_partition.topic)
        if topic is None or topic.topic_id != placement.topic_id:
            continue
        partition = topic.partitions[placement.topic_partition.partition]
        others = [n for n in candidates(partition, brokers) if n != placement.broker_id]
        is_leading = partition.leader == placement.broker_id
        if is_leading and others and not brokers[others[0]].is_refusing:
            resigning.append(placement)
    return after_silence(topics, resigning, brokers)


# --- leaders move ------------------------------------------------------------------------------


def after_draining(topics: Iterable[TopicState], broker_id: int, brokers: Brokers) -> Records:
    """Leaders move off a broker that drains, where another may lead that does not."""
    records = []
    for topic, number, partition in _partitions(topics):
        if partition.leader == broker_id:
            others = [
                n
                for n in candidates(partition, brokers)
                if n != broker_id and not brokers[n].is_draining
            ]
            if others:
                records.append(elect(topic, number, others[0]))
    return tuple(records)


def balance(topics: Iterable[TopicState], brokers: Brokers) -> Records:
    """Preferred leaders lead again where they can; at most ``BALANCE_ELECTIONS_MAX`` at once."""
    records = []
    for topic, number, partition in _partitions(topics):
        preferred = partition.target[0]
        if (
            partition.leader not in (NO_LEADER, preferred)
            and preferred in candidates(partition, brokers)
            and not (brokers[preferred].is_draining or brokers[preferred].is_refusing)
        ):
            records.append(elect(topic, number, preferred))
    return tuple(records[:BALANCE_ELECTIONS_MAX])


# --- the ISR -----------------------------------------------------------------------------------


def decide_alter_isr(
    topics: Mapping[str, TopicState], brokers: Brokers, request: AlterIsrRequest
) -> Decision[AlterIsrReply]:
    """A leader's change of the ISR, if what it names is current; else why not, and what is."""
    topic = topics.get(request.topic_partition.topic)
    number = request.topic_partition.partition
    if topic is None or not 0 <= number < len(topic.partitions):
        return Decision(reply=request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    if topic.topic_id != request.topic_id:
        return Decision(reply=request.failed(ErrorCode.UNKNOWN_TOPIC_ID))
    partition = topic.partitions[number]
    error, detail = _check_isr(partition, brokers, request)
    ineligible = _fenced(partition, brokers, request)
    reply = AlterIsrReply(
        error=error,
        detail=detail,
        leader_epoch=partition.leader_epoch,
        partition_version=partition.version,
        replicas=partition.replicas,
        isr=partition.isr,
        ineligible=ineligible if error is ErrorCode.INELIGIBLE_REPLICA else (),
    )
    if error is not ErrorCode.NONE:
        return Decision(reply=reply)
    record = IsrChanged(
        topic_id=topic.topic_id,
        partition=number,
        partition_version=partition.version + 1,
        isr=request.isr,
    )
    accepted = structs.replace(reply, partition_version=partition.version + 1, isr=request.isr)
    return decision(accepted, record)


def _check_isr(
    partition: PartitionState, brokers: Brokers, request: AlterIsrRequest
) -> tuple[ErrorCode, str]:
    if request.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH, ""
    if request.leader_epoch > partition.leader_epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH, ""
    if request.broker_id != partition.leader:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {partition.leader} leads"
    if request.partition_version != partition.version:
        return ErrorCode.INVALID_UPDATE_VERSION, (
            f"partition_version={request.partition_version}: it is {partition.version}"
        )
    isr = set(request.isr)
    if len(isr) != len(request.isr) or request.broker_id not in isr:
        return ErrorCode.INVALID_REQUEST, (
            f"isr={list(request.isr)}: give each member once, the leader among them"
        )
    if not isr <= set(partition.replicas):
        return ErrorCode.INVALID_REQUEST, (
            f"isr={list(request.isr)}: give some of the replicas {list(partition.replicas)}"
        )
    fenced = _fenced(partition, brokers, request)
    if fenced:
        return ErrorCode.INELIGIBLE_REPLICA, f"brokers {list(fenced)} are fenced"
    return ErrorCode.NONE, ""


def _fenced(
    partition: PartitionState, brokers: Brokers, request: AlterIsrRequest
) -> tuple[int, ...]:
    """Who is to join and cannot."""
    joining = set(request.isr) - set(partition.isr)
    return tuple(sorted(n for n in joining if not is_live(n, brokers)))


def _partitions(topics: Iterable[TopicState]) -> Iterator[tuple[TopicState, int, PartitionState]]:
    for topic in topics:
        for number, partition in enumerate(topic.partitions):
            yield topic, number, partition
