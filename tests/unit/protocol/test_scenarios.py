"""Stories of a transaction that went wrong somewhere, told to the machines alone.

Each is about what several tables say together; the cells of each table have tests of their own.
Source: KIP-98, KIP-360, KIP-890 and the bugs that Kafka had on the way (KAFKA-17754, 18575, 19999).
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from oncelog.actors.protocol.transaction.producer_ids import ProducerIdBlocks
from oncelog.actors.protocol.transaction.transaction_machine import TransactionMachine
from oncelog.actors.protocol.transaction.transaction_records import encode_key, encode_value
from oncelog.actors.protocol.transaction.transaction_state import TransactionState
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

FLIGHTS, DELAYS = TopicPartition("flights", 0), TopicPartition("delays", 0)
COUNTS = {"flights": 1, "delays": 1}
EXHAUSTED = 32_766


class Coordinator:
    """A transaction machine with its log; ``lose`` leaves what was decided last unwritten."""

    def __init__(self) -> None:
        self.producer_ids = ProducerIdBlocks()
        self.producer_ids.add_block(1_000, 100)
        self.log: list[LogRecord] = []
        self.now_ms = 1_700_000_000_000
        self.fail_over()

    def fail_over(self) -> None:
        """Whatever was only in memory is gone."""
        self.machine = TransactionMachine(
            producer_ids=self.producer_ids,
            transaction_max_timeout_ms=900_000,
            transactional_id_expiration_ms=604_800_000,
        )
        for record in self.log:
            self.machine.ids.apply(record)

    def ask(self, request: Any, *, is_written: bool = True) -> Any:
        match request:
            case InitProducerIdRequest():
                decision: Any = self.machine.producers.decide_init_producer_id(request, self.now_ms)
            case AddPartitionsToTxnRequest():
                decision = self.machine.producers.decide_add_partitions(
                    request, self.now_ms, COUNTS
                )
            case EndTxnRequest():
                decision = self.machine.decide_end_txn(request, self.now_ms)
        if decision.records and not is_written:
            self.machine.ids.abandon(request.transactional_id)
            return decision.reply
        for record in decision.records:
            self.log.append(record)
            self.machine.ids.apply(record)
        return decision.reply

    def init(self, producer_id: int = -1, epoch: int = -1, **how: bool) -> Any:
        request = InitProducerIdRequest(
            transactional_id="t", producer_id=producer_id, producer_epoch=epoch
        )
        return self.ask(request, **how)

    def add(self, producer_id: int, epoch: int, *partitions: TopicPartition) -> Any:
        return self.ask(
            AddPartitionsToTxnRequest(
                transactional_id="t",
                producer_id=producer_id,
                producer_epoch=epoch,
                partitions=partitions or (FLIGHTS,),
            )
        )

    def end(self, producer_id: int, epoch: int, *, committed: bool = True, **how: bool) -> Any:
        request = EndTxnRequest(
            transactional_id="t",
            committed=committed,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        return self.ask(request, **how)

    def complete(self) -> None:
        for record in self.machine.upkeep.decide_complete("t", self.now_ms).records:
            self.log.append(record)
            self.machine.ids.apply(record)

    @property
    def state(self) -> TransactionState:
        metadata = self.machine.ids.metadata("t")
        assert metadata is not None
        return metadata.state

    def run_to_epoch(self, epoch: int) -> int:
        """Bring the id to ``epoch`` with nothing open; its producer id."""
        owner = self.init()
        metadata = self.machine.ids.metadata("t")
        assert metadata is not None
        raised = structs.replace(metadata, producer_epoch=epoch)
        record = LogRecord(encode_key("t"), encode_value(raised))
        self.log.append(record)
        self.machine.ids.apply(record)
        producer_id: int = owner.producer_id
        return producer_id


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


# --- epochs -----------------------------------------------------------------------------------


def test_a_fence_whose_append_failed_twice_eats_one_epoch(coordinator: Coordinator) -> None:
    owner = coordinator.init()
    coordinator.add(owner.producer_id, 0)
    for _ in range(2):
        again = coordinator.init(is_written=False)
        assert again.error is ErrorCode.CONCURRENT_TRANSACTIONS
        assert coordinator.state is TransactionState.ONGOING
    coordinator.init()
    (marker,) = coordinator.machine.upkeep.markers_due("t")
    assert marker.producer_epoch == 1


def test_the_new_producer_id_of_a_used_up_one_survives_the_coordinator(
    coordinator: Coordinator,
) -> None:
    producer_id = coordinator.run_to_epoch(EXHAUSTED)
    coordinator.add(producer_id, EXHAUSTED)
    told = coordinator.end(producer_id, EXHAUSTED)
    assert (told.producer_id, told.producer_epoch) == (1_001, 0)
    coordinator.fail_over()
    (marker,) = coordinator.machine.upkeep.markers_due("t")
    assert (marker.producer_id, marker.producer_epoch) == (producer_id, EXHAUSTED + 1)
    lost = coordinator.end(producer_id, EXHAUSTED)
    assert lost.error is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.complete()
    coordinator.fail_over()
    retried = coordinator.end(producer_id, EXHAUSTED)
    assert (retried.error, retried.producer_id, retried.producer_epoch) == (
        ErrorCode.NONE,
        1_001,
        0,
    )
    assert coordinator.add(1_001, 0).error is ErrorCode.NONE


def test_no_epoch_is_given_twice_whatever_is_lost_on_the_way(coordinator: Coordinator) -> None:
    given: set[tuple[int, int]] = set()
    for number in range(12):
        reply = coordinator.init(is_written=number % 3 != 1)
        if number % 3 != 1 and reply.error is ErrorCode.NONE:
            assert (reply.producer_id, reply.producer_epoch) not in given
            given.add((reply.producer_id, reply.producer_epoch))
        if number % 4 == 0:
            coordinator.fail_over()
    assert len(given) == 8


# --- delayed messages of transaction N, while N + 1 is current -----------------------------------


def late(coordinator: Coordinator, what: str, producer_id: int, epoch: int) -> ErrorCode:
    """A copy of a message of transaction N arrives; the code it is answered with."""
    match what:
        case "commit":
            reply = coordinator.end(producer_id, epoch)
        case "abort":
            reply = coordinator.end(producer_id, epoch, committed=False)
        case "enrolment":
            reply = coordinator.add(producer_id, epoch, DELAYS)
        case _:
            reply = coordinator.init(producer_id, epoch)
    code: ErrorCode = reply.error
    return code


@pytest.mark.parametrize("what", ["commit", "abort", "enrolment", "recovery"])
@pytest.mark.parametrize("is_lost", [False, True], ids=["in memory", "after failover"])
def test_a_message_of_the_transaction_before_leaves_the_open_one_alone(
    coordinator: Coordinator, what: str, is_lost: bool
) -> None:
    owner = coordinator.init()
    coordinator.add(owner.producer_id, 0)
    coordinator.end(owner.producer_id, 0)
    coordinator.complete()
    coordinator.add(owner.producer_id, 1)
    if is_lost:
        coordinator.fail_over()
    written = len(coordinator.log)
    assert late(coordinator, what, owner.producer_id, 0) is ErrorCode.PRODUCER_FENCED
    assert len(coordinator.log) == written
    assert coordinator.state is TransactionState.ONGOING
    ended = coordinator.end(owner.producer_id, 1)
    assert (ended.error, ended.producer_epoch) == (ErrorCode.NONE, 2)
    (marker,) = coordinator.machine.upkeep.markers_due("t")
    assert (marker.partitions, marker.committed) == ((FLIGHTS,), True)


@pytest.mark.parametrize("what", ["commit", "abort", "enrolment", "recovery"])
def test_a_message_two_transactions_old_is_fenced(coordinator: Coordinator, what: str) -> None:
    owner = coordinator.init()
    for epoch in (0, 1):
        coordinator.add(owner.producer_id, epoch)
        coordinator.end(owner.producer_id, epoch)
        coordinator.complete()
    written = len(coordinator.log)
    assert late(coordinator, what, owner.producer_id, 0) is ErrorCode.PRODUCER_FENCED
    assert len(coordinator.log) == written


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
def test_a_copy_of_the_end_is_a_retry_until_something_new_begins(
    coordinator: Coordinator, committed: bool
) -> None:
    owner = coordinator.init()
    coordinator.add(owner.producer_id, 0)
    coordinator.end(owner.producer_id, 0, committed=committed)
    same = coordinator.end(owner.producer_id, 0, committed=committed)
    other = coordinator.end(owner.producer_id, 0, committed=not committed)
    assert same.error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert other.error is ErrorCode.INVALID_TXN_STATE
    coordinator.complete()
    same = coordinator.end(owner.producer_id, 0, committed=committed)
    other = coordinator.end(owner.producer_id, 0, committed=not committed)
    assert (same.error, same.producer_epoch) == (ErrorCode.NONE, 1)
    assert other.error is ErrorCode.INVALID_TXN_STATE


# --- partitions: old batches and markers ---------------------------------------------------------


def test_a_ticket_from_before_the_marker_is_refused_though_a_newer_one_has_been_issued(
    leader: Any,
) -> None:
    old, new = leader.ticket(7, 0), leader.ticket(7, 1)
    leader.open(7, 0)
    leader.mark(7, 1, committed=False)
    end = leader.end
    for ticket in (old, new):
        refused = leader.send_transactional(1, producer_epoch=0, ticket=ticket)
        assert refused.error is ErrorCode.INVALID_PRODUCER_EPOCH
    stolen = leader.send_transactional(0, producer_epoch=1, ticket=old)
    assert stolen.error is ErrorCode.INVALID_TXN_STATE
    assert leader.end == end
    assert leader.send_transactional(0, producer_epoch=1, ticket=new).error is ErrorCode.NONE


def test_a_late_copy_of_a_marker_never_closes_the_transaction_after(leader: Any) -> None:
    """The marker of N carries the epoch of the data of N + 1 (KIP-1228)."""
    leader.open(7, 0)
    assert leader.mark(7, 1) is ErrorCode.NONE
    assert leader.mark(7, 1) is ErrorCode.NONE
    first = leader.open(7, 1)
    assert leader.mark(7, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert leader.machine.producers.transactions.first_ongoing_offset == first
    leader.fail_over()
    assert leader.mark(7, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert leader.mark(7, 2) is ErrorCode.NONE


def test_a_zombie_coordinators_marker_is_refused_at_every_partition_the_successor_reached(
    leader: Any,
) -> None:
    leader.open(7, 0)
    assert leader.mark(7, 1, coordinator_epoch=4) is ErrorCode.NONE
    assert leader.mark(7, 1, coordinator_epoch=3) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert leader.mark(7, 2, coordinator_epoch=3) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    leader.fail_over()
    assert leader.mark(7, 2, coordinator_epoch=3) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert leader.mark(7, 2, coordinator_epoch=4) is ErrorCode.NONE


def test_a_partition_that_was_enrolled_and_never_written_fences_what_comes_late(
    leader: Any,
) -> None:
    ticket = leader.ticket(7, 0)
    assert leader.mark(7, 1) is ErrorCode.NONE
    late_one = leader.send_transactional(0, producer_epoch=0, ticket=ticket)
    assert late_one.error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert leader.machine.open_transaction_count == 0
