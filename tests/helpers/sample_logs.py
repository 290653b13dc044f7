"""Directories as the actors write them, for the tools that read directories.

``write_data_log``, ``write_transaction_log``, ``write_offsets_log`` and ``write_metadata_log`` each
write one partition below ``data_dir``; what they write depends on nothing, so the bytes are
always the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.cluster.cluster_records import (
    BrokerRegistered,
    ClusterFounded,
    LeaderElected,
    ProducerIdsAllocated,
    TopicCreated,
    TopicDeleted,
    encode_cluster_record,
    snapshot_parts,
)
from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.group.consumer_protocol import (
    ConsumerAssignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from oncelog.actors.protocol.group.group_records import (
    GroupMemberValue,
    GroupValue,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
)
from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.actors.protocol.messages.transaction import Run
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.actors.protocol.tickets import ClusterKeys
from oncelog.actors.protocol.transaction.members import MemberStatus, RunMember
from oncelog.actors.protocol.transaction.transaction_records import (
    encode_key,
    encode_member_key,
    encode_member_value,
    encode_value,
)
from oncelog.actors.protocol.transaction.transaction_state import (
    TransactionMetadata,
    TransactionState,
)
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.model import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from oncelog.storage.records.batch import parse_header, patch
from oncelog.storage.records.codec import RecordInput, encode_records
from oncelog.storage.records.compression import Codec
from oncelog.storage.records.control import ControlRecord, decode_control, encode_marker

TIME_MS = 1_700_000_000_000
LEADER_EPOCH = 3


class UnsyncedFileSystem(RealFileSystem):
    """The real one without its directory syncs, which cost much and prove nothing here."""

    def sync_directory(self, path: Path) -> None:
        """Nothing."""


class SampleLog:
    """One partition's log and the machine beside it, driven as a replica drives them."""

    def __init__(self, data_dir: Path, topic: str, **settings: int) -> None:
        self.directory = data_dir / f"{topic}-0"
        self.log = PartitionLog.open(
            filesystem=UnsyncedFileSystem(),
            directory=self.directory,
            settings=LogSettings(**settings),
            now_ms=TIME_MS,
        )
        self.machine = PartitionMachine(TopicPartition(topic, 0))
        offset, entries = self.log.latest_snapshot()
        self.machine.load(
            self.log.log_start_offset, offset, entries, leader_epochs=self.log.leader_epochs
        )
        for header, batch in self.log.replay(self.machine.replay_from):
            control = decode_control(batch, header) if header.is_control else None
            self.machine.apply(header, control)
        self.epoch = max(LEADER_EPOCH, self.machine.leader_epochs.latest_epoch + 1)
        self.log.assign_leader_epoch(self.epoch, self.log.log_end_offset)
        self.machine.become_leader(self.epoch, "a" * 32, ClusterKeys(current=b"key"))

    def data(
        self,
        records: Sequence[RecordInput],
        *,
        codec: Codec = Codec.NONE,
        producer: tuple[int, int, int] = (-1, -1, -1),
        is_transactional: bool = False,
    ) -> None:
        """Append a batch; ``producer`` is (id, epoch, base sequence)."""
        self.write(
            encode_records(
                records,
                codec=codec,
                producer_id=producer[0],
                producer_epoch=producer[1],
                base_sequence=producer[2],
                is_transactional=is_transactional,
            )
        )

    def marker(self, producer_id: int, epoch: int, *, committed: bool, time_ms: int) -> None:
        """Append a verdict."""
        self.write(
            encode_marker(
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=committed,
                coordinator_epoch=5,
                timestamp_ms=time_ms,
            ),
            ControlRecord(committed, 5),
        )

    def write(self, batch: bytearray, control: ControlRecord | None = None) -> None:
        offset = self.machine.log_end_offset
        patch(batch, base_offset=offset, leader_epoch=self.epoch)
        header = parse_header(batch)
        if self.log.needs_roll(len(batch), header.max_timestamp_ms, TIME_MS):
            self.log.roll(self.machine.snapshot())
        self.log.append(batch, header)
        completed = self.machine.apply(header, control)
        if completed is not None and completed.is_aborted:
            self.log.append_aborted(
                producer_id=completed.producer_id,
                first_offset=completed.first_offset,
                last_offset=completed.last_offset,
                last_stable_offset=completed.last_stable_offset,
            )

    def sync(self) -> None:
        """One sync round: what is written so far is below the recovery point afterwards."""
        point = self.log.sync_point()
        point.run()
        self.log.mark_synced(point)
        self.machine.advance_high_watermark(self.machine.log_end_offset)

    def close(self) -> None:
        """Sync and close cleanly."""
        self.sync()
        self.log.close(self.machine.snapshot())

    def drop(self) -> None:
        """Close as a killed process does, all synced."""
        self.sync()
        self.log.close(None)


def record(number: int, size_bytes: int = 40) -> RecordInput:
    """A record of its own, some with headers, nulls and time that goes back."""
    key = None if number % 5 == 0 else b"key %d" % number
    value = None if number % 11 == 10 else (b"value %d " % number * size_bytes)[:size_bytes]
    headers = [("h", b"x"), ("n", None)] if number % 7 == 0 else []
    return key, value, TIME_MS + number * 10 - 25 * (number % 3), headers


def open_data_log(data_dir: Path, *, rounds: int = 12) -> SampleLog:
    """A log of several segments: every codec, idempotent and transactional, aborted or not."""
    log = SampleLog(data_dir, "flights", segment_bytes=16_384, index_interval_bytes=1_024)
    for number in range(rounds):
        codec = list(Codec)[number % 5]
        first = number * 100
        time_ms = TIME_MS + (first + 90) * 10
        log.data([record(first + index) for index in range(20)], codec=codec)
        log.data(
            [record(first + 20 + index) for index in range(10)],
            codec=codec,
            producer=(1_000, 0, number * 10),
        )
        # Two transactions overlap: 2000 commits except each third time, 3000 always aborts.
        log.data([record(first + 40)], producer=(3_000, number, 0), is_transactional=True)
        log.data(
            [record(first + 50 + index, 100) for index in range(30)],
            codec=codec,
            producer=(2_000, number, 0),
            is_transactional=True,
        )
        log.data([record(first + 41)], producer=(3_000, number, 1), is_transactional=True)
        log.marker(3_000, number + 1, committed=False, time_ms=time_ms)
        log.marker(2_000, number + 1, committed=number % 3 != 2, time_ms=time_ms + 1)
    return log


def write_data_log(data_dir: Path) -> Path:
    """The above, with a transaction left open at the end, closed cleanly."""
    log = open_data_log(data_dir)
    log.data([record(9_000)], producer=(4_000, 7, 0), is_transactional=True)
    log.close()
    return log.directory


def _records(records: Sequence[LogRecord], time_ms: int) -> list[RecordInput]:
    return [(each.key, each.value, time_ms, ()) for each in records]


def _tagged_transactions(
    tps: frozenset[TopicPartition], common: dict[str, int]
) -> list[TransactionMetadata]:
    """The tagged fields of Kafka and ours."""
    return [
        TransactionMetadata(
            transactional_id="exhausted",
            producer_epoch=32_767,
            state=TransactionState.PREPARE_COMMIT,
            start_ms=TIME_MS,
            partitions=tps,
            previous_producer_id=1_999,
            next_producer_id=2_001,
            last_producer_epoch=32_766,
            commit_token=b"epoch 7",
            **common,
        ),
        TransactionMetadata(
            transactional_id="spark",
            producer_epoch=4,
            state=TransactionState.PREPARE_COMMIT,
            start_ms=TIME_MS,
            commit_token=b"query-1/7",
            run=Run(number=TIME_MS * 10**6, id="batch 7"),
            is_run_current=True,
            members={
                5_000: RunMember(
                    producer_id=5_000,
                    producer_epoch=1,
                    status=MemberStatus.COMMITTED,
                    partitions=tps,
                ),
                5_001: RunMember(
                    producer_id=5_001,
                    producer_epoch=9,
                    status=MemberStatus.ABORTED,
                    partitions=frozenset({TopicPartition("flights", 2)}),
                ),
                5_002: RunMember(producer_id=5_002),
            },
            **common,
        ),
    ]


def transaction_records() -> list[LogRecord]:
    """Every status, all tagged fields, and a tombstone."""
    tps = frozenset(
        {TopicPartition("flights", 0), TopicPartition("flights", 2), TopicPartition("delays", 1)}
    )
    common = {"transaction_timeout_ms": 60_000, "last_update_ms": TIME_MS + 5, "producer_id": 2_000}
    values = [
        TransactionMetadata(
            transactional_id="loader",
            producer_epoch=number,
            state=state,
            start_ms=-1 if state is TransactionState.EMPTY else TIME_MS,
            partitions=frozenset() if state is TransactionState.EMPTY else tps,
            **common,
        )
        for number, state in enumerate(
            state
            for state in TransactionState
            if state not in (TransactionState.DEAD, TransactionState.PREPARED)
        )
    ]
    values += _tagged_transactions(tps, common)
    written = [LogRecord(encode_key(each.transactional_id), encode_value(each)) for each in values]
    owner, member = values[1], RunMember(producer_id=5_000, partitions=tps)
    written += [
        LogRecord(encode_member_key("loader", 5_000), encode_member_value(owner, member, TIME_MS)),
        LogRecord(encode_member_key("loader", 5_000), None),
    ]
    return [*written, LogRecord(encode_key("gone"), None)]


def write_transaction_log(data_dir: Path) -> Path:
    """``__transaction_state-0``: one batch per record, as a coordinator writes it."""
    log = SampleLog(data_dir, TRANSACTION_STATE_TOPIC, index_interval_bytes=1_024)
    for number, each in enumerate(transaction_records()):
        log.data(_records([each], TIME_MS + number))
    log.close()
    return log.directory


def write_offsets_log(data_dir: Path) -> Path:
    """``__consumer_offsets-0``: a group's life, plain and transactional commits, tombstones."""
    log = SampleLog(data_dir, CONSUMER_OFFSETS_TOPIC, index_interval_bytes=1_024)
    tp = TopicPartition("flights", 0)
    member = GroupMemberValue(
        member_id="consumer-1",
        group_instance_id="worker-0",
        client_id="c",
        rebalance_timeout_ms=300_000,
        session_timeout_ms=45_000,
        subscription=encode_subscription(Subscription(topics=("flights",))),
        assignment=encode_assignment(
            ConsumerAssignment(partitions=(tp, TopicPartition("flights", 1)))
        ),
    )
    stable = GroupValue(
        protocol_type="consumer",
        generation_id=1,
        protocol_name="range",
        leader_id="consumer-1",
        state_timestamp_ms=TIME_MS,
        members=(member,),
    )
    empty = GroupValue(
        protocol_type="consumer",
        generation_id=2,
        protocol_name=None,
        leader_id=None,
        state_timestamp_ms=TIME_MS + 9,
        members=(),
    )
    position = OffsetAndMetadata(offset=42, leader_epoch=3, metadata="µ")
    log.data(_records([group_record("g", stable)], TIME_MS))
    log.data(_records([offset_record("g", tp, position, TIME_MS)], TIME_MS + 1))
    log.data(
        _records([offset_record("g", tp, position, TIME_MS + 2)], TIME_MS + 2),
        producer=(2_000, 0, -1),
        is_transactional=True,
    )
    log.marker(2_000, 1, committed=True, time_ms=TIME_MS + 3)
    log.data(
        _records([offset_record("g", tp, position, TIME_MS + 4)], TIME_MS + 4),
        producer=(2_000, 1, -1),
        is_transactional=True,
    )
    log.marker(2_000, 2, committed=False, time_ms=TIME_MS + 5)
    log.data(_records([group_record("g", empty)], TIME_MS + 9))
    log.data(_records([offset_tombstone("g", tp), group_tombstone("g")], TIME_MS + 10))
    log.close()
    return log.directory


def write_metadata_log(data_dir: Path) -> Path:
    """``__cluster_metadata-0``: every kind of record."""
    log = SampleLog(data_dir, CLUSTER_METADATA_TOPIC, index_interval_bytes=1_024)
    founded = ClusterFounded(
        cluster_id="c" * 32,
        cluster_key=b"secret" * 5,
        transaction_state_partitions=2,
        offsets_partitions=2,
    )
    records = [
        founded,
        BrokerRegistered(broker_id=1, data_dir="data"),
        TopicCreated(
            name="flights", topic_id="a" * 32, replicas=((1,),), settings=(("flush", "os"),)
        ),
        LeaderElected(
            topic_id="a" * 32, partition=0, leader=1, leader_epoch=0, isr=(1,), incarnation="i"
        ),
        ProducerIdsAllocated(next_producer_id=1_000),
        TopicDeleted(topic_id="a" * 32),
    ]
    for number, each in enumerate(records):
        log.data(_records([encode_cluster_record(each)], TIME_MS + number))
    machine = ClusterMachine()
    for each in records:
        machine.apply(encode_cluster_record(each))
    log.data(_records(snapshot_parts(machine.snapshot()), TIME_MS + len(records)))
    log.close()
    return log.directory
