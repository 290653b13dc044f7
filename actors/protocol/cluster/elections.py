"""Who leads a partition, and who is in sync with its leader.

Rules. A leader is elected from the live members of the ISR, with the next epoch. A broker is *live*
if it is not fenced. If no member is live, a live member of the ELR (eligible leader replicas) is
elected and is then the whole ISR: a replica that left an ISR of fewer than ``min_insync_replicas``
has all that is committed (``PartitionState``). The ISR never becomes empty: its last member stays.
While no member of ISR or ELR is live the partition has no leader. A replica that may have lost data
leaves the ELR; if it is the last of the ISR, one of the ELR takes its place. A member that is
fenced leaves the ISR in the same decision. The leader learns of it with the new version; until then
it waits for more members than it must. Nothing here changes state: each function returns records.

All replicas of a new partition begin in the ISR, as all are empty. One that has not *started* yet
has no log; nothing is committed before it has acknowledged. A partition that was never led is empty
everywhere, so any live replica may lead it.

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
                       sync                           proposals made before are rejected
replica started        led by it                      it leads, epoch + 1; ISR as it was
replica started        no leader, it is in sync and   it leads, epoch + 1; ISR as it was
                       live
replica started        likewise, it is in the ELR     it leads, epoch + 1, alone in sync
replica started        never led, it is the first     it leads; ISR as it was, without those that
                       live replica                   are not live
replica started        for the first time, in sync    a new version: it has a log from now on
                       and not to lead
replica started        else, another leads, it is     a new version, ISR as it was: earlier
                       not in sync                    acknowledgements no longer count, as it may
                                                      have lost its log
replica started        else                           none: it follows
replica without a log  led by another, not in sync,   likewise, before it begins one; it leaves
                       or in the ELR                  the ELR
new directory          likewise                       likewise
new directory          last in sync, others in the    the first live one of these leads, alone in
                       ELR                            sync; or nobody, and one of these is in sync
its host rebooted      the topic does not sync, and   as if its broker were fenced; it leaves the
                       others can lead                ELR
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
balance, elect         preferred leader in sync,      it leads
                       live, not draining
=====================  =============================  ==========================================

One file: every row of the table changes who leads or who is in sync, by the same few steps.

Source: KIP-497, KIP-841, KIP-460, KIP-966; unclean elections are not offered.
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
from oncelog.actors.protocol.messages.brokers import (
    ElectLeadersReply,
    ElectLeadersRequest,
    PartitionElection,
)
from oncelog.actors.protocol.messages.cluster import (
    AlterIsrReply,
    AlterIsrRequest,
    BecomeLeaderReply,
    BecomeLeaderRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import INTERNAL_TOPICS, TopicPartition

BALANCE_ELECTIONS_MAX: Final = 100
"""Leaders moved in one pass of balancing; each move pauses its partition for a moment."""

Brokers = Mapping[int, BrokerState]
Records = tuple[ClusterRecord, ...]


def is_live(broker_id: int, brokers: Brokers) -> bool:
    """Whether a broker is registered and not fenced."""
    broker = brokers.get(broker_id)
    return broker is not None and not broker.is_fenced


def candidates(
    partition: PartitionState, brokers: Brokers, *, without: int = NO_LEADER
) -> tuple[int, ...]:
    """The replicas that may be elected, best first, in the order of preference.

    Brokers that drain come later, then those that have not started, last those whose disk refuses
    appends. If nobody in sync is live: of the ELR. A partition that was never led waits for its
    preferred leader, unless that one left the ISR because it was silent.
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
    """The record that makes ``leader`` lead (-1: nobody), with this or the current ISR.

    A leader that is not in sync was in the ELR, and becomes the whole ISR.
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
    """Records after a broker is fenced, for each partition that it leads or is in sync in."""
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
    return structs.replace(_new_version(topic, number), isr=isr)


def _new_version(topic: TopicState, number: int) -> IsrChanged:
    """A new version of a partition that changes nothing else."""
    partition = topic.partitions[number]
    return IsrChanged(
        topic_id=topic.topic_id,
        partition=number,
        partition_version=partition.version + 1,
        isr=partition.isr,
    )


def after_unfencing(topics: Iterable[TopicState], broker_id: int) -> Records:
    """The broker leads each partition without a leader that it is in sync in and that was once led.

    Other partitions get a new version, by which their leaders learn that it may join the ISR again.
    A late copy of an earlier proposal names an older version and is rejected.
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
    """The election of a replica that has started, if it should lead; else None.

    A leader that restarts gets a new epoch: what it had not synced is gone.
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
    """See ``after_return``; also a new version if a replica in sync starts for the first time.

    From then on it has a log, made durable before it asked. If it has none later, the log was lost.
    """
    partition = topic.partitions[number]
    if broker_id not in partition.unstarted:
        return after_return(topic, number, broker_id)
    return structs.replace(_new_version(topic, number), started=broker_id)


def after_return(
    topic: TopicState, number: int, broker_id: int, *, lost: int = NO_LEADER
) -> IsrChanged | None:
    """A new version, if a replica that is not in sync restarts under a leader that pushes to it.

    The version rejects a proposal based on what an earlier process acknowledged. A replica that has
    ``lost`` its log also leaves the ELR.
    """
    partition = topic.partitions[number]
    is_pushed_to = partition.leader not in (NO_LEADER, broker_id)
    if broker_id in partition.isr or not (is_pushed_to or lost in partition.elr):
        return None
    return structs.replace(_new_version(topic, number), lost=lost)


def after_announcement(
    topic: TopicState, number: int, told: BecomeLeaderReply
) -> IsrChanged | None:
    """A new version, if the leader now uses a higher ``min_insync_replicas`` than before.

    None if the partition or its settings have changed since the leader was told.
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
    return structs.replace(_new_version(topic, number), follows_minimum=True)


def after_new_directory(topics: Iterable[TopicState], broker_id: int, brokers: Brokers) -> Records:
    """Records after a fenced broker registered with a new disk: it has lost its logs.

    Where it was the last in sync, one of the ELR takes over (``is_last_copy`` was false).
    """
    records: list[LeaderElected | IsrChanged | None] = []
    for topic, number, partition in _partitions(topics):
        if partition.has_log(broker_id):
            records.append(_inherited(topic, number, broker_id, brokers))
        elif broker_id in partition.replicas:
            records.append(after_return(topic, number, broker_id, lost=broker_id))
    return tuple(record for record in records if record is not None)


def _inherited(topic: TopicState, number: int, broker_id: int, brokers: Brokers) -> LeaderElected:
    """The last member of the ISR may have lost data: one of the ELR takes its place."""
    partition = topic.partitions[number]
    live = candidates(partition, brokers, without=broker_id)
    leader = live[0] if live else NO_LEADER
    elected = elect(topic, number, leader, live[:1] or partition.elr[:1])
    return structs.replace(elected, lost=broker_id)


def after_reboot(
    topics: Iterable[TopicState], broker: BrokerState, boot_id: str, brokers: Brokers
) -> Records:
    """Records after a broker's host rebooted: topics that do not sync may lack their tail.

    Partitions that only it can lead stay as they are: ``flush="os"`` promises no more.
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
    """Whether nobody could lead if the broker, which is fenced, had lost its disk."""
    return partition.has_log(broker_id) and not partition.elr


def after_silence(
    topics: Iterable[TopicState], silent: Collection[Placement], brokers: Brokers
) -> Records:
    """Records after actors of a live broker stopped answering it: others lead their partitions.

    The same for replicas that are offline. As after fencing, but only for these replicas, and only
    where another is in sync and live.
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
            # Otherwise two silent replicas would be elected in turn.
            lost = broker_id if others <= set(partition.elr) else NO_LEADER
            record = _without(topic, tp.partition, broker_id, brokers, lost=lost)
            records += [] if record is None else [record]
    return tuple(records)


def after_refusal(
    topics: Iterable[TopicState], refusing: Collection[Placement], brokers: Brokers
) -> Records:
    """Records after a disk refused appends for too long: others lead in place of ``refusing``.

    Only where another is in sync and live, and its disk accepts appends.
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
    """Move leaders off a draining broker, where one that is not draining may lead."""
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
    """Elect preferred leaders again where they can lead; at most ``BALANCE_ELECTIONS_MAX``."""
    records = []
    for topic, number, partition in _partitions(topics):
        preferred = partition.target[0]
        is_led = partition.leader not in (NO_LEADER, preferred)
        if is_led and _may_lead_again(partition, preferred, brokers):
            records.append(elect(topic, number, preferred))
    return tuple(records[:BALANCE_ELECTIONS_MAX])


def decide_elect(
    topics: Mapping[str, TopicState], brokers: Brokers, request: ElectLeadersRequest
) -> Decision[ElectLeadersReply]:
    """Elect preferred leaders again, of the named partitions or of all users' topics."""
    wanted = request.topic_partitions
    if wanted is None:
        wanted = tuple(
            TopicPartition(topic.name, number)
            for topic, number, _ in _partitions(topics.values())
            if topic.name not in INTERNAL_TOPICS
        )
    records: list[ClusterRecord] = []
    elections = []
    for tp in dict.fromkeys(wanted):
        topic = topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            error, leader = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_LEADER
        else:
            partition = topic.partitions[tp.partition]
            error, leader = ErrorCode.NONE, partition.leader
            preferred = partition.target[0]
            if leader != preferred and _may_lead_again(partition, preferred, brokers):
                records.append(elect(topic, tp.partition, preferred))
                leader = preferred
            elif leader != preferred:
                error = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        elections.append(PartitionElection(topic_partition=tp, leader=leader, error=error))
    return decision(ElectLeadersReply(elections=tuple(elections)), *records)


def _may_lead_again(partition: PartitionState, preferred: int, brokers: Brokers) -> bool:
    return preferred in candidates(partition, brokers) and not (
        brokers[preferred].is_draining or brokers[preferred].is_refusing
    )


# --- the ISR -----------------------------------------------------------------------------------


def decide_alter_isr(
    topics: Mapping[str, TopicState], brokers: Brokers, request: AlterIsrRequest
) -> Decision[AlterIsrReply]:
    """Accept a leader's change of the ISR if it names the current epoch and version."""
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
    record = structs.replace(_new_version(topic, number), isr=request.isr)
    accepted = structs.replace(reply, partition_version=record.partition_version, isr=record.isr)
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
    """The brokers that would join but are fenced."""
    joining = set(request.isr) - set(partition.isr)
    return tuple(sorted(n for n in joining if not is_live(n, brokers)))


def _partitions(topics: Iterable[TopicState]) -> Iterator[tuple[TopicState, int, PartitionState]]:
    for topic in topics:
        for number, partition in enumerate(topic.partitions):
            yield topic, number, partition
