"""Leaders and coordinators in memory: small, and as strict as real ones where producers notice."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from msgspec import structs
from topics import topic_of
from virtual_time import ManualClock

from oncelog.actors.protocol.group.group_offsets import GroupOffsets
from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.messages.cluster import (
    MetadataReply,
    MetadataRequest,
)
from oncelog.actors.protocol.messages.group import (
    OffsetCommitReply,
    PartitionResult,
    TxnOffsetCommitRequest,
)
from oncelog.actors.protocol.messages.partition import ProduceReply, ProduceRequest
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnReply,
    AddPartitionsToTxnRequest,
    BeginRunReply,
    BeginRunRequest,
    EndTxnReply,
    EndTxnRequest,
    EnlistReply,
    EnlistRequest,
    InitProducerIdReply,
    InitProducerIdRequest,
    LeaveRunRequest,
    PartitionEnrolment,
    RenewRunRequest,
)
from oncelog.actors.rpc import message_codec
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.producer import AsyncProducer
from oncelog.api.session.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    SEQUENCE_MAX,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from oncelog.storage.records.batch import BatchHeader, parse_header
from oncelog.storage.records.client_batch import check_client_batch
from oncelog.storage.records.codec import Record, decode_records

PARK_S = 0.5


LATE_S = 0.5
"""When the caller hears that a reply is lost "late"."""


@dataclass
class ProducerEntry:
    """What a leader knows of a producer: its epoch, next sequence and last five batches."""

    epoch: int
    next_sequence: int = 0
    window: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))


@dataclass
class FakeLeader:
    """One partition: appends in sequence, knows duplicates, parks what comes early."""

    topic_partition: TopicPartition
    message_max_bytes: int = 1_048_588
    records: list[tuple[int, int, Record]] = field(default_factory=list)
    verdicts: dict[tuple[int, int], bool] = field(default_factory=dict)
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    headers: list[BatchHeader] = field(default_factory=list)
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    next_offset: int = 0
    key_versions: tuple[int, ...] = (0,)
    """Under which keys plain tickets are taken; the last one is the current one."""

    async def produce(self, request: ProduceRequest) -> ProduceReply:
        header = check_client_batch(request.batch, message_max_bytes=self.message_max_bytes)
        if isinstance(header, ErrorCode):
            return request.failed(header)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PARK_S
        while (reply := self._try(request, header)) is None:
            if loop.time() >= deadline:
                return request.failed(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            self.moved.clear()
            waiter = asyncio.ensure_future(self.moved.wait())
            await asyncio.wait({waiter}, timeout=deadline - loop.time())
            waiter.cancel()
        return reply

    def _try(self, request: ProduceRequest, header: BatchHeader) -> ProduceReply | None:
        entry = self.producers.get(header.producer_id)
        is_new = entry is None or entry.epoch < header.producer_epoch
        if entry is not None and entry.epoch > header.producer_epoch:
            return request.failed(ErrorCode.INVALID_PRODUCER_EPOCH)
        if is_new and header.is_transactional:
            expected = ticket_for(header.producer_id, header.producer_epoch, self.topic_partition)
            if request.ticket != expected:
                return request.failed(ErrorCode.INVALID_TXN_STATE)
        tickets = [plain_ticket_for(header.producer_id, version) for version in self.key_versions]
        if not header.is_transactional and request.ticket not in tickets:
            return request.failed(ErrorCode.UNKNOWN_PRODUCER_ID)
        is_old = not header.is_transactional and request.ticket != tickets[-1]
        if entry is None or is_new:
            entry = ProducerEntry(header.producer_epoch)
        for base_sequence, last_sequence, offset in entry.window:
            if (base_sequence, last_sequence) == (header.base_sequence, header.last_sequence):
                return ProduceReply(base_offset=offset)
        if header.base_sequence != entry.next_sequence:
            return None
        self.producers[header.producer_id] = entry
        entry.next_sequence = (header.last_sequence + 1) & SEQUENCE_MAX
        entry.window.append((header.base_sequence, header.last_sequence, self.next_offset))
        self.headers.append(header)
        base_offset = self.next_offset
        for record in decode_records(request.batch):
            self.records.append((header.producer_id, header.producer_epoch, record))
        self.next_offset += header.record_count
        self.moved.set()
        return ProduceReply(base_offset=base_offset, is_ticket_old=is_old)

    def mark(self, producer_id: int, epoch: int, *, committed: bool) -> None:
        self.verdicts[producer_id, epoch] = committed
        self.producers[producer_id] = ProducerEntry(epoch + 1)
        self.next_offset += 1

    def values(self) -> list[bytes | None]:
        """Everything appended, in order."""
        return [record.value for _, _, record in self.records]

    def committed_values(self) -> list[bytes | None]:
        """What a read_committed consumer of a transactional topic sees."""
        return [
            record.value
            for producer_id, epoch, record in self.records
            if self.verdicts.get((producer_id, epoch))
        ]


def ticket_for(producer_id: int, epoch: int, topic_partition: TopicPartition) -> bytes:
    return f"{producer_id}/{epoch}/{topic_partition}".encode()


def plain_ticket_for(producer_id: int, key_version: int) -> bytes:
    return f"plain {producer_id}/{key_version}".encode()


@dataclass
class FakeTransaction:
    """One transactional id at its coordinator."""

    producer_id: int
    epoch: int = -1
    is_open: bool = False
    last_committed: bool | None = None
    over: ErrorCode = ErrorCode.PRODUCER_FENCED
    """What a producer with the epoch before is told."""
    partitions: set[TopicPartition] = field(default_factory=set)
    token: bytes | None = None


class LogCluster:
    """``Transport`` to leaders and coordinators in memory, which fail on demand.

    ``faults[type]`` holds what becomes of the next calls of a type: an ``ErrorCode`` is answered
    at once, and so is a whole reply; ``"lose reply"`` does the work and answers
    ``NETWORK_EXCEPTION``, ``(code,)`` does it and answers ``code``, ``"lose call"`` does not even
    do the work, a number delays by seconds.
    """

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, FakeLeader] = {}
        self.counts: dict[str, int] = {}
        self.transactions: dict[str, FakeTransaction] = {}
        self.members: dict[int, tuple[str, int]] = {}
        self.pending_offsets: dict[tuple[int, int], dict[TopicPartition, int]] = {}
        self.offsets: dict[TopicPartition, int] = {}
        self.calls: list[tuple[str, Any]] = []
        self.faults: dict[type, deque[Any]] = {}
        self.key_versions: tuple[int, ...] = (0,)
        self.next_producer_id = 1_000
        self.enrols_ahead = self.gives_tickets_ahead = True
        self.clock = ManualClock()
        self.begins: Callable[[BeginRunRequest], BeginRunReply] = lambda _: BeginRunReply(number=1)

    def create(self, topic: str, partitions: int = 1) -> list[FakeLeader]:
        self.counts[topic] = partitions
        for number in range(partitions):
            partition = TopicPartition(topic, number)
            self.leaders[partition] = FakeLeader(partition)
        return [self.leaders[TopicPartition(topic, number)] for number in range(partitions)]

    def router(self) -> Router:
        return Router(self, self.clock)

    def producer(self, transactional_id: str | None = None, **options: Any) -> AsyncProducer:
        settings = ProducerSettings(transactional_id=transactional_id, **options)
        return AsyncProducer(self.router(), settings, random=Random(3))

    def fault(self, kind: type, *what: Any) -> None:
        self.faults.setdefault(kind, deque()).extend(what)

    def requests(self, kind: type) -> list[Any]:
        return [request for _, request in self.calls if isinstance(request, kind)]

    async def call(self, actor: str, request: Request[Any], *, timeout_ms: int) -> Any:
        self.calls.append((actor, request))
        await asyncio.sleep(0.001)
        try:
            message_codec.encode(request)
        except ValueError as error:
            return request.failed(ErrorCode.INVALID_REQUEST, str(error))
        faults = self.faults.get(type(request))
        fault = faults.popleft() if faults else None
        if isinstance(fault, ErrorCode):
            return request.failed(fault)
        if isinstance(fault, Reply):
            return fault
        if fault == "lose call":
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        if isinstance(fault, float):
            await asyncio.sleep(fault)
        reply = await self._answer(actor, request)
        if fault == "lose reply late":
            await asyncio.sleep(LATE_S)
        if fault in ("lose reply", "lose reply late"):
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        if isinstance(fault, tuple):
            return request.failed(*fault)
        return reply

    async def _answer(self, actor: str, request: Any) -> Any:
        if isinstance(request, MetadataRequest):
            return self._metadata(request)
        if isinstance(request, ProduceRequest):
            leader = self.leaders.get(request.topic_partition)
            if leader is None:
                return request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            assert actor == f"partition:{request.topic_partition}@1"
            return await leader.produce(request)
        answers: dict[type, Callable[[Any], Any]] = {
            InitProducerIdRequest: self._init_producer_id,
            AddPartitionsToTxnRequest: self._add_partitions,
            TxnOffsetCommitRequest: self._txn_offset_commit,
            EndTxnRequest: self._end_txn,
            EnlistRequest: self._enlist,
            LeaveRunRequest: lambda _: Reply(),
            RenewRunRequest: lambda _: Reply(),
            BeginRunRequest: self.begins,
        }
        return answers[type(request)](request)

    def _metadata(self, request: MetadataRequest) -> MetadataReply:
        counts = {CONSUMER_OFFSETS_TOPIC: 2, TRANSACTION_STATE_TOPIC: 2, **self.counts}
        topics = tuple(
            topic_of(name, *[1] * count)
            for name, count in counts.items()
            if request.topics is None or name in request.topics
        )
        return MetadataReply(topics=topics, transaction_state_partitions=2, offsets_partitions=2)

    def _init_producer_id(self, request: InitProducerIdRequest) -> InitProducerIdReply:
        if request.transactional_id is None:
            return self._plain_producer(request)
        transaction = self.transactions.setdefault(
            request.transactional_id, FakeTransaction(self._new_producer_id())
        )
        if transaction.is_open:
            self._decide(transaction, committed=False)
            return request.failed(ErrorCode.CONCURRENT_TRANSACTIONS)
        transaction.epoch += 1
        transaction.last_committed = None
        return InitProducerIdReply(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            commit_token=transaction.token,
        )

    def _plain_producer(self, request: InitProducerIdRequest) -> InitProducerIdReply:
        producer_id = request.producer_id
        if producer_id < 0:
            producer_id = self._new_producer_id()
        elif request.ticket not in [plain_ticket_for(producer_id, n) for n in self.key_versions]:
            return request.failed(ErrorCode.UNKNOWN_PRODUCER_ID)
        ticket = plain_ticket_for(producer_id, self.key_versions[-1])
        return InitProducerIdReply(
            producer_id=producer_id, producer_epoch=max(0, request.producer_epoch), ticket=ticket
        )

    def take_keys(self, *key_versions: int) -> None:
        """The coordinators and leaders take tickets under these keys from now on."""
        self.key_versions = key_versions
        for leader in self.leaders.values():
            leader.key_versions = key_versions

    def _add_partitions(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnReply:
        if request.producer_id not in self.members:
            transaction = self.transactions[request.transactional_id]
            if request.producer_epoch == transaction.epoch - 1:
                return request.failed(transaction.over, "as the coordinator says")
            if request.producer_epoch != transaction.epoch:
                return request.failed(ErrorCode.PRODUCER_FENCED)
            known = {CONSUMER_OFFSETS_TOPIC: 2, **self.counts}
            bad = [tp for tp in request.partitions if tp.partition >= known.get(tp.topic, 0)]
            if bad:
                return AddPartitionsToTxnReply(
                    error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    detail=f"{bad[0]} does not exist",
                    enrolments=tuple(
                        PartitionEnrolment(
                            topic_partition=tp,
                            error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                            if tp in bad
                            else ErrorCode.OPERATION_NOT_ATTEMPTED,
                        )
                        for tp in request.partitions
                    ),
                )
            transaction.is_open = True
            transaction.partitions |= set(request.partitions)
        return AddPartitionsToTxnReply(
            enrolments=tuple(
                PartitionEnrolment(
                    topic_partition=tp,
                    error=ErrorCode.NONE,
                    ticket=ticket_for(request.producer_id, request.producer_epoch, tp),
                )
                for tp in request.partitions
            )
        )

    def _txn_offset_commit(self, request: TxnOffsetCommitRequest) -> OffsetCommitReply:
        tickets = {
            ticket_for(
                request.producer_id,
                request.producer_epoch,
                TopicPartition(CONSUMER_OFFSETS_TOPIC, number),
            )
            for number in range(2)
        }
        assert request.ticket in tickets
        decision = GroupOffsets().decide_commit(
            request, self.clock.now_ms(), {tp.topic: "0" * 32 for tp, _ in request.offsets}
        )
        if not decision.records:
            return decision.reply
        pending = self.pending_offsets.setdefault((request.producer_id, request.producer_epoch), {})
        pending |= {tp: position.offset for tp, position in request.offsets}
        return OffsetCommitReply(
            results=tuple(
                PartitionResult(topic_partition=tp, error=ErrorCode.NONE)
                for tp, _ in request.offsets
            )
        )

    def _end_txn(self, request: EndTxnRequest) -> EndTxnReply:
        if request.run is not None:
            return EndTxnReply(visible=True)
        transaction = self.transactions[request.transactional_id]
        next_identity = EndTxnReply(
            producer_id=transaction.producer_id, producer_epoch=transaction.epoch, visible=True
        )
        if request.producer_epoch == transaction.epoch - 1:
            if transaction.last_committed is request.committed:
                return structs.replace(next_identity, enrolments=self._ahead(transaction))
            return request.failed(ErrorCode.INVALID_TXN_STATE)
        if request.producer_epoch != transaction.epoch:
            return request.failed(ErrorCode.PRODUCER_FENCED)
        if not transaction.is_open and request.committed and request.token is None:
            return request.failed(ErrorCode.INVALID_TXN_STATE)
        if request.committed and request.token is not None:
            transaction.token = request.token
        self._decide(transaction, committed=request.committed)
        if request.committed and request.next_partitions and self.enrols_ahead:
            transaction.is_open = True
            transaction.partitions = set(request.next_partitions)
        return structs.replace(
            next_identity,
            producer_epoch=transaction.epoch,
            enrolments=self._ahead(transaction),
        )

    def _ahead(self, transaction: FakeTransaction) -> tuple[PartitionEnrolment, ...]:
        return tuple(
            PartitionEnrolment(
                topic_partition=tp,
                error=ErrorCode.NONE,
                ticket=ticket_for(transaction.producer_id, transaction.epoch, tp)
                if self.gives_tickets_ahead
                else b"",
            )
            for tp in sorted(transaction.partitions)
        )

    def time_out(self, transactional_id: str) -> None:
        """The coordinator gives up the open transaction, as at its timeout."""
        transaction = self.transactions[transactional_id]
        self._decide(transaction, committed=False)
        transaction.over = ErrorCode.TRANSACTION_TIMED_OUT

    def _decide(self, transaction: FakeTransaction, *, committed: bool) -> None:
        identity = (transaction.producer_id, transaction.epoch)
        for partition in transaction.partitions:
            if partition in self.leaders:
                self.leaders[partition].mark(*identity, committed=committed)
        offsets = self.pending_offsets.pop(identity, {})
        if committed:
            self.offsets |= offsets
        transaction.partitions = set()
        transaction.is_open = False
        transaction.last_committed = committed
        transaction.over = ErrorCode.PRODUCER_FENCED
        transaction.epoch += 1

    def _enlist(self, request: EnlistRequest) -> EnlistReply:
        producer_id = self._new_producer_id()
        self.members[producer_id] = (request.transactional_id, 0)
        return EnlistReply(producer_id=producer_id, producer_epoch=0)

    def _new_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id


@pytest.fixture
def cluster() -> LogCluster:
    """A cluster in memory that a producer can write to."""
    return LogCluster()


@pytest.fixture
def header_of() -> Callable[[ProduceRequest], BatchHeader]:
    """The header of a produce request's batch."""
    return lambda request: parse_header(request.batch)
