"""A leading partition machine together with the log it wrote, all in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages import (
    AddPartitionsToTxnReply,
    AddPartitionsToTxnRequest,
    EndTxnReply,
    EndTxnRequest,
    EnlistReply,
    EnlistRequest,
    InitProducerIdReply,
    InitProducerIdRequest,
    Reply,
    ReplyT,
    Run,
    Winner,
)
from oncelog.actors.protocol.partition import AppendVerdict, CompletedTransaction, PartitionMachine
from oncelog.actors.protocol.producer_ids import ProducerIdBlocks
from oncelog.actors.protocol.tickets import issue_ticket
from oncelog.actors.protocol.transaction import TransactionMachine
from oncelog.actors.protocol.transaction_log import encode_key, encode_value
from oncelog.actors.protocol.transaction_members import HeldRecords
from oncelog.actors.protocol.transaction_state import TransactionMetadata, TransactionState
from oncelog.storage.control_record import ControlRecord
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import AppendOrigin, TopicPartition
from oncelog.storage.producer_entry import ProducerSnapshotEntry
from oncelog.storage.record_batch import BatchHeader

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
) -> BatchHeader:
    """The header of a batch of ``count`` offsets."""
    return BatchHeader(
        base_offset=base_offset,
        batch_length=49,
        leader_epoch=leader_epoch,
        magic=2,
        crc=0,
        attributes=0x10 * is_transactional | 0x20 * is_control,
        last_offset_delta=count - 1,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count if record_count is None else record_count,
    )


class Leader:
    """Decides, and where the answer is yes writes and applies, as a shell does in one turn."""

    def __init__(self) -> None:
        self.topic_partition = TopicPartition("flights", 3)
        self.machine = PartitionMachine(self.topic_partition)
        self.machine.become_leader(1, TOPIC_ID, CLUSTER_KEY)
        self.log: list[tuple[BatchHeader, ControlRecord | None]] = []
        self.completed: CompletedTransaction | None = None

    @property
    def end(self) -> int:
        return self.machine.log_end_offset

    def ticket(
        self, producer_id: int = 7, producer_epoch: int = 0, issued_ms: int = NOW_MS
    ) -> bytes:
        return issue_ticket(
            cluster_key=CLUSTER_KEY,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            topic_id=TOPIC_ID,
            partition=self.topic_partition.partition,
            issued_ms=issued_ms,
            transaction_timeout_ms=60_000,
        )

    def decide(
        self,
        header: BatchHeader,
        *,
        ticket: bytes | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transactional_id: str | None = "loader",
        now_ms: int = NOW_MS,
    ) -> AppendVerdict:
        return self.machine.decide_append(
            header,
            origin=origin,
            transactional_id=transactional_id,
            ticket=ticket,
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
    ) -> AppendVerdict:
        """An idempotent batch of the sequences given, both inclusive."""
        count = 1 if last_sequence is None else last_sequence - base_sequence + 1
        header = make_header(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            count=count % 2**31,
            timestamp_ms=timestamp_ms,
        )
        return self._write(header, self.decide(header, origin=origin))

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
        return self._write(header, self.decide(header, ticket=ticket, origin=origin, now_ms=now_ms))

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
            )
            control = ControlRecord(committed, coordinator_epoch)
            self.log.append((header, control))
            self.completed = self.machine.apply(header, control)
        return error

    def fill(self, end_offset: int) -> None:
        """Move the log end to ``end_offset`` with records of nobody."""
        if end_offset > self.end:
            header = make_header(producer_id=-1, base_sequence=-1, count=end_offset - self.end)
            self._write(header, self.decide(header))

    def reload(
        self, snapshot_offset: int = 0, entries: list[ProducerSnapshotEntry] | None = None
    ) -> PartitionMachine:
        """Another machine that has read the same log, as after a crash."""
        machine = PartitionMachine(self.topic_partition)
        machine.load(self.machine.log_start_offset, snapshot_offset, entries or [])
        for header, control in self.log:
            if header.next_offset > machine.replay_from:
                machine.apply(header, control)
        return machine

    def fail_over(self) -> None:
        """Go on with a machine that has read the log, under the next leader epoch."""
        machine = self.reload()
        machine.become_leader(self.machine.leader_epoch + 1, TOPIC_ID, CLUSTER_KEY)
        self.machine = machine

    def _write(self, header: BatchHeader, verdict: AppendVerdict) -> AppendVerdict:
        if verdict.error is ErrorCode.NONE and verdict.duplicate_base_offset is None:
            header = header.with_offset(self.end, self.machine.leader_epoch)
            self.log.append((header, None))
            assert self.machine.apply(header, None) is None
        return verdict


@pytest.fixture
def leader() -> Leader:
    """A new leader of an empty partition."""
    return Leader()


@pytest.fixture
def header_of() -> Callable[..., BatchHeader]:
    """``make_header``."""
    return make_header


# --- transaction coordinator ------------------------------------------------------------------


class Shard:
    """A transaction machine with its log: every decision is committed and applied at once."""

    partition_counts: ClassVar[dict[str, int]] = {"flights": 6, "delays": 2}

    def __init__(self) -> None:
        self.producer_ids = ProducerIdBlocks()
        self.producer_ids.add_block(1_000, 1_000)
        self.machine = self._new_machine()
        self.log: list[LogRecord] = []
        self.now_ms = NOW_MS

    def _new_machine(self) -> TransactionMachine:
        return TransactionMachine(
            producer_ids=self.producer_ids,
            transaction_max_timeout_ms=900_000,
            transactional_id_expiration_ms=604_800_000,
        )

    @property
    def known(self) -> TransactionMetadata:
        """What is known of the id ``loader``."""
        metadata = self.machine.metadata("loader")
        assert metadata is not None
        return metadata

    def commit(self, decision: Decision[ReplyT]) -> ReplyT:
        """Log and apply what was decided."""
        for record in decision.records:
            self.log.append(record)
            self.machine.apply(record)
        return decision.reply

    def fail_over(self) -> None:
        """Go on with a machine that has read the log."""
        self.machine = self.reload()

    def reload(self) -> TransactionMachine:
        """Another machine that has read the same log."""
        machine = self._new_machine()
        for record in self.log:
            machine.apply(record)
        return machine

    def install(self, **fields: Any) -> None:
        """Make ``fields`` the truth about ``loader``, as if it had come to this."""
        metadata = TransactionMetadata(
            **{
                "transactional_id": "loader",
                "producer_id": 7,
                "producer_epoch": 5,
                "transaction_timeout_ms": 60_000,
                "state": TransactionState.EMPTY,
                "last_update_ms": self.now_ms,
                "start_ms": self.now_ms,
                **fields,
            }
        )
        record = LogRecord(encode_key("loader"), encode_value(metadata))
        self.commit(Decision(reply=Reply(), records=(record,)))

    def init(self, producer_id: int = -1, producer_epoch: int = -1) -> InitProducerIdReply:
        request = InitProducerIdRequest(
            transactional_id="loader", producer_id=producer_id, producer_epoch=producer_epoch
        )
        return self.commit(self.machine.decide_init_producer_id(request, self.now_ms))

    def add_decision(
        self, producer_id: int, producer_epoch: int, *partitions: TopicPartition
    ) -> Decision[AddPartitionsToTxnReply]:
        request = AddPartitionsToTxnRequest(
            transactional_id="loader",
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=partitions or (TopicPartition("flights", 0),),
        )
        return self.machine.decide_add_partitions(request, self.now_ms, self.partition_counts)

    def add(
        self, producer_id: int, producer_epoch: int, *partitions: TopicPartition
    ) -> AddPartitionsToTxnReply:
        return self.commit(self.add_decision(producer_id, producer_epoch, *partitions))

    def end_decision(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool = True,
        token: bytes | None = None,
    ) -> Decision[EndTxnReply]:
        request = EndTxnRequest(
            transactional_id="loader",
            committed=committed,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            token=token,
        )
        return self.machine.decide_end_txn(request, self.now_ms)

    def end(self, producer_id: int, producer_epoch: int, **fields: Any) -> EndTxnReply:
        return self.commit(self.end_decision(producer_id, producer_epoch, **fields))

    def enlist(self, run: Run, token: bytes = b"batch-1") -> EnlistReply:
        request = EnlistRequest(transactional_id="loader", run=run, token=token)
        return self.commit(self.machine.decide_enlist(request, self.now_ms))

    def end_run(
        self,
        run: Run,
        *,
        committed: bool = True,
        token: bytes | None = b"batch-1",
        winners: dict[int, int] | None = None,
        held: HeldRecords | None = None,
    ) -> EndTxnReply:
        """End a run; unless ``held`` is given the leaders hold what the winners say."""
        request = EndTxnRequest(
            transactional_id="loader",
            committed=committed,
            token=token,
            run=run,
            winners=tuple(
                Winner(producer_id=producer_id, record_count=count)
                for producer_id, count in (winners or {}).items()
            ),
        )
        if held is None:
            held = self.agreeing(request)
        return self.commit(self.machine.decide_end_txn(request, self.now_ms, held))

    def agreeing(self, request: EndTxnRequest) -> HeldRecords:
        """Leaders that hold exactly what each winner says."""
        partitions = self.machine.winner_partitions(request)
        metadata = self.machine.metadata("loader")
        counts = {}
        for winner in request.winners:
            member = metadata.members.get(winner.producer_id) if metadata else None
            if member is not None and member.partitions:
                first = min(member.partitions)
                counts[winner.producer_id, member.producer_epoch, first] = winner.record_count
        return HeldRecords(answered=frozenset(partitions), counts=counts)

    def complete(self) -> None:
        """All markers are written."""
        self.commit(self.machine.decide_complete("loader", self.now_ms))


@pytest.fixture
def shard() -> Shard:
    """An empty coordinator shard with producer ids from 1,000 on."""
    return Shard()
