"""A transaction machine together with the log it wrote, all in memory."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from msgspec import structs

from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages.base import Reply, ReplyT
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
    PreparedTxn,
    PrepareTxnRequest,
    RenewRunRequest,
    Run,
    Winner,
)
from oncelog.actors.protocol.transaction.members import HeldRecords
from oncelog.actors.protocol.transaction.producer_ids import ProducerIdBlocks
from oncelog.actors.protocol.transaction.transaction_machine import TransactionMachine
from oncelog.actors.protocol.transaction.transaction_records import encode_key, encode_value
from oncelog.actors.protocol.transaction.transaction_state import (
    TransactionMetadata,
    TransactionState,
)
from oncelog.storage.model import TopicPartition

NOW_MS = 1_700_000_000_000


class Shard:
    """A transaction machine with its log: every decision is committed and applied at once."""

    partition_counts: ClassVar[dict[str, int]] = {"flights": 6, "delays": 2}

    is_two_phase_allowed = True

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
            is_two_phase_allowed=self.is_two_phase_allowed,
        )

    @property
    def known(self) -> TransactionMetadata:
        """What is known of the id ``loader``."""
        metadata = self.machine.ids.metadata("loader")
        assert metadata is not None
        return metadata

    def commit(self, decision: Decision[ReplyT]) -> ReplyT:
        """Log and apply what was decided."""
        for record in decision.records:
            self.log.append(record)
            self.machine.ids.apply(record)
        return decision.reply

    def fail_over(self) -> None:
        """Go on with a machine that has read the log."""
        self.machine = self.reload()

    def reload(self) -> TransactionMachine:
        """Another machine that has read the same log."""
        machine = self._new_machine()
        for record in self.log:
            machine.ids.apply(record)
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
        if metadata.state is TransactionState.PREPARED and metadata.prepared_txn is None:
            found = PreparedTxn(
                producer_id=metadata.producer_id,
                producer_epoch=metadata.producer_epoch,
                prepared_ms=self.now_ms,
            )
            metadata = structs.replace(metadata, prepared_txn=found)
        record = LogRecord(encode_key(metadata.transactional_id), encode_value(metadata))
        self.commit(Decision(reply=Reply(), records=(record,)))

    def init(
        self, producer_id: int = -1, producer_epoch: int = -1, *, keep_prepared: bool = False
    ) -> InitProducerIdReply:
        request = InitProducerIdRequest(
            transactional_id="loader",
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            keep_prepared=keep_prepared,
        )
        return self.commit(self.machine.producers.decide_init_producer_id(request, self.now_ms))

    def add_decision(
        self, producer_id: int, producer_epoch: int, *partitions: TopicPartition
    ) -> Decision[AddPartitionsToTxnReply]:
        request = AddPartitionsToTxnRequest(
            transactional_id="loader",
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=partitions or (TopicPartition("flights", 0),),
        )
        return self.machine.producers.decide_add_partitions(
            request, self.now_ms, self.partition_counts
        )

    def add(
        self, producer_id: int, producer_epoch: int, *partitions: TopicPartition
    ) -> AddPartitionsToTxnReply:
        return self.commit(self.add_decision(producer_id, producer_epoch, *partitions))

    def prepare(self, producer_id: int, producer_epoch: int) -> Reply:
        request = PrepareTxnRequest(
            transactional_id="loader", producer_id=producer_id, producer_epoch=producer_epoch
        )
        return self.commit(self.machine.producers.decide_prepare(request, self.now_ms))

    def end_decision(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool = True,
        token: bytes | None = None,
        ahead: tuple[TopicPartition, ...] = (),
    ) -> Decision[EndTxnReply]:
        request = EndTxnRequest(
            transactional_id="loader",
            committed=committed,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            token=token,
            next_partitions=ahead,
        )
        counts = self.partition_counts
        return self.machine.decide_end_txn(request, self.now_ms, partition_counts=counts)

    def end(self, producer_id: int, producer_epoch: int, **fields: Any) -> EndTxnReply:
        return self.commit(self.end_decision(producer_id, producer_epoch, **fields))

    def begin(self, run_id: str = "run", after: int = 0, **fields: Any) -> BeginRunReply:
        """Begin a run with the token of the other helpers."""
        request = BeginRunRequest(
            **{
                "transactional_id": "loader",
                "run_id": run_id,
                "after": after,
                "token": b"batch-1",
                **fields,
            }
        )
        return self.commit(self.machine.runs.decide_begin_run(request, self.now_ms))

    def enlist(self, run: Run, token: bytes = b"batch-1") -> EnlistReply:
        request = EnlistRequest(transactional_id="loader", run=run, token=token)
        return self.commit(self.machine.runs.decide_enlist(request, self.now_ms))

    def leave(self, run: Run, producer_id: int, producer_epoch: int) -> Reply:
        request = LeaveRunRequest(
            transactional_id="loader",
            run=run,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        return self.commit(self.machine.runs.decide_leave(request, self.now_ms))

    def renew(self, run: Run) -> Reply:
        request = RenewRunRequest(transactional_id="loader", run=run)
        return self.commit(self.machine.runs.decide_renew(request, self.now_ms))

    def time_out(self) -> None:
        self.commit(self.machine.upkeep.decide_timeout("loader", self.now_ms))

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
        partitions = self.machine.runs.winner_partitions(request)
        metadata = self.machine.ids.metadata("loader")
        counts = {}
        for winner in request.winners:
            member = metadata.members.get(winner.producer_id) if metadata else None
            if member is not None and member.partitions:
                first = min(member.partitions)
                counts[winner.producer_id, member.producer_epoch, first] = winner.record_count
        return HeldRecords(answered=frozenset(partitions), counts=counts)

    def complete(self) -> None:
        """All markers are written."""
        self.commit(self.machine.upkeep.decide_complete("loader", self.now_ms))


@pytest.fixture
def shard() -> Shard:
    """An empty coordinator shard with producer ids from 1,000 on."""
    return Shard()


@pytest.fixture(scope="session")
def new_shard() -> type[Shard]:
    """For tests that need one for each example."""
    return Shard
