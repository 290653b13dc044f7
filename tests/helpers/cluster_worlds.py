"""A cluster's machine with several brokers, fed by records; and what must always be true of it."""

from __future__ import annotations

from collections.abc import Iterable

from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.cluster.cluster_records import (
    BrokerChanged,
    BrokerRegistered,
    ClusterFounded,
    ClusterRecord,
    IsrChanged,
    LeaderElected,
    TopicCreated,
    decode_cluster_record,
    encode_cluster_record,
    snapshot_parts,
)
from oncelog.actors.protocol.cluster.cluster_state import PartitionState, TopicState
from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages.base import ReplyT
from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply, BecomeLeaderRequest
from oncelog.storage.model import TopicPartition

TOPIC_ID = "a" * 32
CLUSTER_ID = "c" * 32
FOUNDED = ClusterFounded(
    cluster_id=CLUSTER_ID,
    cluster_key=b"k" * 32,
    transaction_state_partitions=2,
    offsets_partitions=3,
)


class ClusterWorld:
    """The machine, its log, and every leader that was ever elected, by (partition, epoch)."""

    def __init__(self) -> None:
        self.machine = ClusterMachine()
        self.log: list[bytes] = []
        self.leaders: dict[tuple[str, int, int], int] = {}
        self.start_count = 0
        self.apply([FOUNDED])

    def run(self, decision: Decision[ReplyT]) -> ReplyT:
        self.apply(decode_cluster_record(record.value or b"") for record in decision.records)
        return decision.reply

    def apply(self, records: Iterable[ClusterRecord]) -> None:
        for record in records:
            encoded = encode_cluster_record(record)
            assert decode_cluster_record(encoded.value or b"") == record
            self.log.append(encoded.value or b"")
            self.machine.apply(encoded)
            if isinstance(record, LeaderElected):
                self.note_election(record)

    def note_election(self, record: LeaderElected) -> None:
        """One leader for an epoch, from the replicas and the ISR; or nobody."""
        key = (record.topic_id, record.partition, record.leader_epoch)
        assert key not in self.leaders
        self.leaders[key] = record.leader
        partition = self.by_id(record.topic_id).partitions[record.partition]
        if record.leader != -1:
            assert record.leader in partition.isr
            assert record.leader in partition.replicas
            assert not self.machine.broker_states[record.leader].is_fenced

    def by_id(self, topic_id: str) -> TopicState:
        return next(t for t in self.machine.topics.values() if t.topic_id == topic_id)

    def register(self, *broker_ids: int, racks: str = "", fenced: bool = False) -> None:
        for broker_id in broker_ids:
            record = BrokerRegistered(
                broker_id=broker_id,
                data_dir=f"/d{broker_id}",
                directory_id=f"directory {broker_id}",
                rack=racks[broker_id - 1] if racks else "",
                broker_epoch=broker_id,
                is_fenced=fenced,
            )
            self.apply([record])

    def change(self, broker_id: int, *, fenced: bool = False, draining: bool = False) -> None:
        """Only the broker; what follows from it does not."""
        record = BrokerChanged(
            broker_id=broker_id,
            broker_epoch=self.machine.broker_states[broker_id].broker_epoch,
            is_fenced=fenced,
            is_draining=draining,
        )
        self.apply([record])

    def create(
        self,
        *replicas: tuple[int, ...],
        name: str = "t",
        topic_id: str = TOPIC_ID,
        settings: tuple[tuple[str, str], ...] = (),
    ) -> TopicState:
        record = TopicCreated(name=name, topic_id=topic_id, replicas=replicas, settings=settings)
        self.apply([record])
        return self.machine.topics[name]

    def lead(self, leader: int, isr: tuple[int, ...], number: int = 0) -> PartitionState:
        """Elect, as a record says it; the replica has started, and joins the ISR if it must."""
        partition = self.machine.topics["t"].partitions[number]
        if partition.has_been_led and leader not in (-1, *partition.isr):
            joined = IsrChanged(
                topic_id=TOPIC_ID,
                partition=number,
                partition_version=partition.version + 1,
                isr=(*partition.isr, leader),
            )
            self.apply([joined])
        record = LeaderElected(
            topic_id=TOPIC_ID,
            partition=number,
            leader=leader,
            leader_epoch=partition.leader_epoch + 1,
            isr=isr,
            incarnation="" if leader < 0 else "by hand",
        )
        self.apply([record])
        return partition

    def start_replica(self, broker_id: int, tp: TopicPartition) -> BecomeLeaderReply:
        """A replica starts, and asks for its role with the newest epoch."""
        self.start_count += 1
        topic = self.machine.topics[tp.topic]
        request = BecomeLeaderRequest(
            topic_partition=tp,
            topic_id=topic.topic_id,
            broker_id=broker_id,
            incarnation=f"start {self.start_count}",
            expected_epoch=topic.partitions[tp.partition].leader_epoch,
        )
        return self.run(self.machine.decide_become_leader(request))

    def check(self) -> None:
        for topic in self.machine.topics.values():
            for partition in topic.partitions:
                assert len(set(partition.replicas)) == len(partition.replicas)
                assert len(partition.hosts) == len(partition.replicas)
                assert set(partition.isr) <= set(partition.replicas)
                assert {*partition.adding, *partition.removing} <= set(partition.replicas)
                assert set(partition.elr) <= set(partition.replicas) - set(partition.isr)
                assert not partition.elr or len(partition.isr) < partition.held_minimum
                if partition.leader_epoch >= 0:
                    assert partition.isr
                if partition.leader != -1:
                    assert partition.leader in partition.isr
                    assert not self.machine.broker_states[partition.leader].is_fenced

    def replayed(self) -> ClusterMachine:
        """The machine that the log gives."""
        machine = ClusterMachine()
        for value in self.log:
            machine.apply(encode_cluster_record(decode_cluster_record(value)))
        return machine

    def restored(self, at: int) -> ClusterMachine:
        """The machine that a snapshot at record ``at`` of the log gives, with all that follows."""
        before, machine = ClusterMachine(), ClusterMachine()
        for value in self.log[:at]:
            before.apply(LogRecord(None, value))
        for part in snapshot_parts(before.snapshot()):
            machine.apply(part)
        for value in self.log[at:]:
            machine.apply(LogRecord(None, value))
        return machine


def state_of(machine: ClusterMachine) -> dict[str, object]:
    """All that records give, and their order: not whom it has not told yet, and who refuses."""
    unrecorded = ("_unannounced", "_refusing")
    found = {name: value for name, value in vars(machine).items() if name not in unrecorded}
    for name in ("_brokers", "_topics", "_names_by_id", "_deleted"):
        found[name] = list(found[name].items())
    return found
