"""A leading partition machine together with the log it wrote, all in memory."""

from __future__ import annotations

from oncelog.actors.protocol.partition.partition_machine import (
    AppendVerdict,
    CompletedTransaction,
    PartitionMachine,
)
from oncelog.actors.protocol.tickets import (
    NO_CHAIN,
    ClusterKeys,
    issue_plain_ticket,
    issue_ticket,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import AppendOrigin, ProducerSnapshotEntry, TopicPartition
from oncelog.storage.records.batch import BatchHeader
from oncelog.storage.records.control import ControlRecord

CLUSTER_KEY = b"k" * 32
TOPIC_ID = "topic-id-1"
NOW_MS = 1_700_000_000_000


def make_header(
    *,
    base_offset: int = 0,
    producer_id: int = 7,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    count: int = 1,
    is_transactional: bool = False,
    is_control: bool = False,
    leader_epoch: int = 1,
    record_count: int | None = None,
    timestamp_ms: int = NOW_MS,
    crc: int = 0,
) -> BatchHeader:
    """The header of a batch of ``count`` offsets."""
    return BatchHeader(
        base_offset=base_offset,
        batch_length=49,
        leader_epoch=leader_epoch,
        magic=2,
        crc=crc,
        attributes=0x10 * is_transactional | 0x20 * is_control,
        last_offset_delta=count - 1,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count if record_count is None else record_count,
    )


class LedPartition:
    """Decides, and where the answer is yes writes and applies, as a shell does in one turn."""

    def __init__(self) -> None:
        self.topic_partition = TopicPartition("flights", 3)
        self.machine = PartitionMachine(self.topic_partition)
        self.machine.become_leader(1, TOPIC_ID, ClusterKeys(current=CLUSTER_KEY))
        self.log: list[tuple[BatchHeader, ControlRecord | None]] = []
        self.completed: CompletedTransaction | None = None

    @property
    def end(self) -> int:
        return self.machine.log_end_offset

    def ticket(
        self,
        producer_id: int = 7,
        producer_epoch: int = 0,
        issued_ms: int = NOW_MS,
        chain_epoch: int = NO_CHAIN,
    ) -> bytes:
        return issue_ticket(
            cluster_key=CLUSTER_KEY,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional_id="loader",
            topic_id=TOPIC_ID,
            partition=self.topic_partition.partition,
            issued_ms=issued_ms,
            transaction_timeout_ms=60_000,
            chain_epoch=chain_epoch,
        )

    def plain_ticket(self, producer_id: int = 7, key: bytes = CLUSTER_KEY) -> bytes:
        return issue_plain_ticket(cluster_key=key, producer_id=producer_id, issued_ms=NOW_MS)

    def decide(
        self,
        header: BatchHeader,
        *,
        ticket: bytes | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transactional_id: str | None = "loader",
        batch: bytes | None = None,
        now_ms: int = NOW_MS,
    ) -> AppendVerdict:
        return self.machine.decide_append(
            header,
            origin=origin,
            transactional_id=transactional_id,
            ticket=ticket,
            batch=batch,
            now_ms=now_ms,
        )

    def send(
        self,
        base_sequence: int,
        last_sequence: int | None = None,
        *,
        producer_id: int = 7,
        producer_epoch: int = 0,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        timestamp_ms: int = NOW_MS,
        is_owned: bool = True,
        crc: int = 0,
    ) -> AppendVerdict:
        """An idempotent batch of the sequences given, both inclusive; from a stranger if told."""
        count = 1 if last_sequence is None else last_sequence - base_sequence + 1
        header = make_header(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            count=count % 2**31,
            timestamp_ms=timestamp_ms,
            crc=crc,
        )
        verdict = self.decide(
            header,
            ticket=self.plain_ticket(producer_id) if is_owned else None,
            origin=origin,
        )
        return self.write(header, verdict)

    def send_transactional(
        self,
        base_sequence: int,
        *,
        producer_id: int = 7,
        producer_epoch: int = 0,
        count: int = 1,
        ticket: bytes | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        now_ms: int = NOW_MS,
    ) -> AppendVerdict:
        header = make_header(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            count=count,
            is_transactional=True,
        )
        return self.write(header, self.decide(header, ticket=ticket, origin=origin, now_ms=now_ms))

    def open(self, producer_id: int = 7, producer_epoch: int = 0, count: int = 1) -> int:
        """Begin a transaction with one batch; returns its first offset."""
        first_offset = self.end
        verdict = self.send_transactional(
            0,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            count=count,
            ticket=self.ticket(producer_id, producer_epoch),
        )
        assert verdict.error is ErrorCode.NONE
        return first_offset

    def mark(
        self,
        producer_id: int = 7,
        producer_epoch: int = 1,
        *,
        committed: bool = True,
        coordinator_epoch: int = 0,
        timestamp_ms: int = NOW_MS,
    ) -> ErrorCode:
        """A marker of the epoch given, which is one above that of the data."""
        error = self.machine.decide_marker(producer_id, producer_epoch, coordinator_epoch)
        if error is ErrorCode.NONE:
            header = make_header(
                base_offset=self.end,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=-1,
                is_transactional=True,
                is_control=True,
                leader_epoch=self.machine.leader_epoch,
                timestamp_ms=timestamp_ms,
            )
            control = ControlRecord(committed, coordinator_epoch)
            self.log.append((header, control))
            self.completed = self.machine.apply(header, control)
        return error

    def fill(self, end_offset: int) -> None:
        """Move the log end to ``end_offset`` with records of nobody."""
        if end_offset > self.end:
            header = make_header(producer_id=-1, base_sequence=-1, count=end_offset - self.end)
            self.write(header, self.decide(header))

    def reload(
        self,
        snapshot_offset: int = 0,
        entries: list[ProducerSnapshotEntry] | None = None,
        *,
        from_start: bool = False,
    ) -> PartitionMachine:
        """Another machine that has read the log from a snapshot on, or all of it."""
        machine = PartitionMachine(self.topic_partition)
        machine.load(self.machine.log_start_offset, snapshot_offset, entries or [])
        for header, control in self.log:
            if from_start or header.next_offset > machine.replay_from:
                machine.apply(header, control)
        return machine

    def fail_over(self, high_watermark: int = 0) -> None:
        """Go on with a machine that has read the log, under the next leader epoch."""
        machine = self.reload()
        if high_watermark:
            machine.advance_high_watermark(high_watermark)
        machine.become_leader(
            self.machine.leader_epoch + 1, TOPIC_ID, ClusterKeys(current=CLUSTER_KEY)
        )
        self.machine = machine

    def write(self, header: BatchHeader, verdict: AppendVerdict) -> AppendVerdict:
        if verdict.error is ErrorCode.NONE and verdict.duplicate_base_offset is None:
            header = header.with_offset(self.end, self.machine.leader_epoch)
            self.log.append((header, None))
            assert self.machine.apply(header, None) is None
        return verdict
