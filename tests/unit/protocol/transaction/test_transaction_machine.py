"""The coordinator's machine for ordinary producers, situation by situation."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages.transaction import (
    EndTxnRequest,
    InitProducerIdReply,
    InitProducerIdRequest,
    Winner,
)
from oncelog.actors.protocol.transaction.transaction_records import encode_key
from oncelog.actors.protocol.transaction.transaction_state import (
    TRANSACTION_PARTITIONS_MAX,
    TransactionState,
)
from oncelog.storage.errors import ErrorCode, InvariantViolation
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition

FLIGHTS = [TopicPartition("flights", number) for number in range(6)]
S = TransactionState


def begin(shard: Any, *partitions: TopicPartition) -> tuple[int, int]:
    """Init and enrol; returns the producer id and epoch of the open transaction."""
    reply = shard.init()
    assert shard.add(reply.producer_id, reply.producer_epoch, *partitions).error is ErrorCode.NONE
    return reply.producer_id, reply.producer_epoch


def test_a_transaction_of_too_many_partitions_is_refused_whole(shard: Any) -> None:
    shard.partition_counts = {"flights": TRANSACTION_PARTITIONS_MAX + 1}
    many = [TopicPartition("flights", n) for n in range(TRANSACTION_PARTITIONS_MAX)]
    producer_id, epoch = begin(shard, *many)
    decision = shard.add_decision(producer_id, epoch, TopicPartition("flights", len(many)))
    assert decision.reply.error is ErrorCode.INVALID_REQUEST
    assert "at most 10000 partitions" in decision.reply.detail
    assert not decision.records


# --- init_producer_id -------------------------------------------------------------------------


def test_a_new_id_starts_at_epoch_0_and_each_init_raises_it(shard: Any) -> None:
    first, second = shard.init(), shard.init()
    assert (first.producer_epoch, second.producer_epoch) == (0, 1)
    assert first.producer_id == second.producer_id == 1_000
    assert shard.end(1_000, 0, committed=False).error is ErrorCode.PRODUCER_FENCED


def test_init_with_the_current_epoch_recovers_in_place_and_its_retry_changes_nothing(
    shard: Any,
) -> None:
    shard.install(producer_epoch=5)
    assert shard.init(7, 5).producer_epoch == 6
    assert shard.init(7, 5).producer_epoch == 6
    assert shard.init(7, 4).error is ErrorCode.PRODUCER_FENCED
    assert shard.known.producer_epoch == 6


def test_init_without_an_epoch_fences_those_who_had_one(shard: Any) -> None:
    shard.install(producer_epoch=6, last_producer_epoch=5)
    assert shard.init().producer_epoch == 7
    assert shard.init(7, 5).error is ErrorCode.PRODUCER_FENCED
    assert shard.init(7, 6).error is ErrorCode.PRODUCER_FENCED


def test_the_retry_of_a_lost_reply_is_recognised_after_failover(shard: Any) -> None:
    shard.install(producer_epoch=5)
    shard.init(7, 5)
    shard.fail_over()
    assert shard.init(7, 5).producer_epoch == 6


def test_init_with_the_epoch_of_an_end_whose_reply_was_lost_gets_the_next_one(shard: Any) -> None:
    shard.install(producer_epoch=5)
    shard.add(7, 5)
    shard.end(7, 5)
    shard.complete()
    assert shard.init(7, 5).producer_epoch == 6


def test_an_exhausted_epoch_gets_a_new_producer_id_once(shard: Any) -> None:
    shard.install(producer_epoch=32_766)
    first, retry = shard.init(7, 32_766), shard.init(7, 32_766)
    assert (first.producer_id, first.producer_epoch) == (1_000, 0)
    assert (retry.producer_id, retry.producer_epoch) == (1_000, 0)


def test_a_new_owner_of_an_exhausted_id_fences_the_one_before(shard: Any) -> None:
    shard.install(producer_epoch=32_766)
    assert shard.init().producer_id == 1_000
    assert shard.init(7, 32_766).error is ErrorCode.PRODUCER_FENCED


def test_init_while_ongoing_aborts_and_the_retry_gets_a_higher_epoch(shard: Any) -> None:
    producer_id, epoch = begin(shard, FLIGHTS[0])
    assert shard.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.known.state is S.PREPARE_ABORT
    (marker,) = shard.machine.upkeep.markers_due("loader")
    assert (marker.producer_id, marker.producer_epoch) == (producer_id, epoch + 1)
    assert not marker.committed
    assert shard.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.complete()
    assert shard.init().producer_epoch == epoch + 2


def test_a_late_copy_of_init_does_not_abort_the_next_transaction(shard: Any) -> None:
    # 1. init(7, 5) answers 6. 2. the producer begins with 6. 3. a copy of init(7, 5) arrives.
    shard.install(producer_epoch=5)
    shard.init(7, 5)
    shard.add(7, 6)
    assert shard.init(7, 5).error is ErrorCode.PRODUCER_FENCED
    assert shard.known.state is S.ONGOING


def test_racing_inits_never_get_the_same_epoch(shard: Any) -> None:
    request = InitProducerIdRequest(transactional_id="loader")
    first = shard.machine.producers.decide_init_producer_id(request, 0)
    loser = shard.machine.producers.decide_init_producer_id(request, 0)
    assert loser.reply.error is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.commit(first)
    assert shard.init().producer_epoch == first.reply.producer_epoch + 1


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": "x" * 1_025}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": "\ud800"}, ErrorCode.INVALID_REQUEST),
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"producer_id": 7}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 0}, ErrorCode.INVALID_REQUEST),
        ({"producer_id": -2, "producer_epoch": -2}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_impossible_init_is_refused(
    shard: Any, fields: dict[str, Any], error: ErrorCode
) -> None:
    request = InitProducerIdRequest(**{"transactional_id": "loader", **fields})
    decision: Decision[InitProducerIdReply] = shard.machine.producers.decide_init_producer_id(
        request, 0
    )
    assert decision.reply.error is error
    assert decision.reply.detail
    assert not decision.records


def test_without_producer_ids_the_caller_asks_again(shard: Any) -> None:
    while shard.producer_ids.remaining:
        shard.producer_ids.take()
    assert shard.init().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    shard.producer_ids.add_block(5_000, 1)
    assert shard.init().producer_id == 5_000


# --- add_partitions ---------------------------------------------------------------------------


def test_add_partitions_to_an_unknown_id_is_a_wrong_mapping(shard: Any) -> None:
    assert shard.add(7, 0).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_add_partitions_checks_producer_id_epoch_and_state(shard: Any) -> None:
    shard.install(producer_epoch=5)
    assert shard.add(8, 5).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert shard.add(7, 4).error is ErrorCode.PRODUCER_FENCED
    assert shard.add(7, 6).error is ErrorCode.PRODUCER_FENCED
    for state in (S.PREPARE_COMMIT, S.PREPARE_ABORT):
        shard.install(producer_epoch=5, state=state)
        assert shard.add(7, 5).error is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_the_first_partition_begins_the_transaction(shard: Any, state: TransactionState) -> None:
    shard.install(state=state, start_ms=1)
    shard.now_ms += 10
    assert shard.add(7, 5, FLIGHTS[0]).error is ErrorCode.NONE
    assert shard.known.state is S.ONGOING
    assert shard.known.start_ms == shard.now_ms


def test_further_partitions_join_without_moving_the_start(shard: Any) -> None:
    shard.install()
    shard.add(7, 5, FLIGHTS[0])
    started_ms = shard.now_ms
    shard.now_ms += 10
    shard.add(7, 5, FLIGHTS[1], FLIGHTS[2])
    assert shard.known.partitions == set(FLIGHTS[:3])
    assert shard.known.start_ms == started_ms


def test_partitions_that_are_enrolled_are_answered_without_a_record(shard: Any) -> None:
    shard.install()
    shard.add(7, 5, *FLIGHTS)
    decision = shard.add_decision(7, 5, *FLIGHTS[:2])
    assert not decision.records
    assert [item.error for item in decision.reply.enrolments] == [ErrorCode.NONE] * 2
    shard.commit(decision)
    assert shard.add(7, 5, FLIGHTS[0]).error is ErrorCode.NONE


def test_one_unknown_partition_refuses_them_all(shard: Any) -> None:
    shard.install()
    unknown = TopicPartition("flights", 6)
    reply = shard.add(7, 5, FLIGHTS[0], unknown, FLIGHTS[1])
    assert reply.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "flights-6" in reply.detail
    assert [item.error for item in reply.enrolments] == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    ]
    assert shard.known.state is S.EMPTY


def test_the_coordinators_own_log_takes_part_in_no_transaction(shard: Any) -> None:
    shard.install()
    shard.partition_counts = {TRANSACTION_STATE_TOPIC: 2, CONSUMER_OFFSETS_TOPIC: 2}
    reply = shard.add(7, 5, TopicPartition(TRANSACTION_STATE_TOPIC, 0))
    assert reply.error is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert shard.add(7, 5, TopicPartition(CONSUMER_OFFSETS_TOPIC, 1)).error is ErrorCode.NONE


def test_more_partitions_than_a_transaction_may_have_are_refused(shard: Any) -> None:
    shard.install()
    shard.partition_counts = {"wide": 10_001}
    wide = [TopicPartition("wide", number) for number in range(10_001)]
    assert shard.add(7, 5, *wide).error is ErrorCode.INVALID_REQUEST
    assert shard.add(7, 5, *wide[:-1]).error is ErrorCode.NONE
    assert shard.add(7, 5, wide[-1]).error is ErrorCode.INVALID_REQUEST


def test_while_a_record_is_on_its_way_everything_else_is_concurrent(shard: Any) -> None:
    shard.install()
    shard.add_decision(7, 5)
    assert shard.add(7, 5).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.add(99, 5).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.end(7, 5).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.init().error is ErrorCode.CONCURRENT_TRANSACTIONS


# --- end_txn ----------------------------------------------------------------------------------


def test_commit_prepares_with_the_next_epoch_and_the_whole_to_do_list(shard: Any) -> None:
    producer_id, epoch = begin(shard, *FLIGHTS[:3])
    reply = shard.end(producer_id, epoch)
    assert (reply.error, reply.producer_epoch) == (ErrorCode.NONE, epoch + 1)
    (marker,) = shard.reload().upkeep.markers_due("loader")
    assert marker.committed
    assert marker.producer_epoch == epoch + 1
    assert marker.partitions == tuple(FLIGHTS[:3])


def test_complete_clears_the_partitions_and_keeps_the_epoch(shard: Any) -> None:
    producer_id, epoch = begin(shard)
    shard.end(producer_id, epoch)
    shard.complete()
    assert shard.known.state is S.COMPLETE_COMMIT
    assert not shard.known.partitions
    assert shard.known.producer_epoch == epoch + 1
    assert shard.machine.upkeep.markers_due("loader") == ()


def test_complete_happens_once(shard: Any) -> None:
    producer_id, epoch = begin(shard)
    shard.end(producer_id, epoch)
    shard.complete()
    assert not shard.machine.upkeep.decide_complete("loader", 0).records


def test_end_of_an_unknown_id_or_producer_is_a_wrong_mapping(shard: Any) -> None:
    assert shard.end(7, 0).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    shard.install(producer_epoch=5)
    assert shard.end(8, 5).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_failed_append_of_commit_leaves_it_open_for_the_retry(shard: Any) -> None:
    producer_id, epoch = begin(shard)
    shard.end_decision(producer_id, epoch)
    assert shard.end(producer_id, epoch).error is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.machine.ids.abandon("loader")
    assert shard.known.state is S.ONGOING
    assert shard.end(producer_id, epoch).error is ErrorCode.NONE


def test_the_successor_of_a_coordinator_finishes_what_is_prepared(shard: Any) -> None:
    producer_id, epoch = begin(shard, *FLIGHTS[:2])
    shard.end(producer_id, epoch)
    shard.fail_over()
    assert shard.machine.upkeep.unfinished() == ("loader",)
    assert shard.machine.upkeep.is_prepared("loader")
    shard.complete()
    assert shard.machine.upkeep.unfinished() == ()
    assert shard.known.state is S.COMPLETE_COMMIT


def test_the_successor_of_an_undecided_transaction_lets_the_client_commit(shard: Any) -> None:
    producer_id, epoch = begin(shard)
    shard.end_decision(producer_id, epoch)  # Never reached the log.
    shard.fail_over()
    assert shard.known.state is S.ONGOING
    assert shard.end(producer_id, epoch).error is ErrorCode.NONE


def test_abort_with_nothing_enrolled_raises_the_epoch(shard: Any) -> None:
    shard.install(state=S.EMPTY, producer_epoch=5)
    assert shard.end(7, 5, committed=False).producer_epoch == 6
    assert shard.machine.upkeep.markers_due("loader") == ()
    shard.complete()
    assert shard.known.state is S.COMPLETE_ABORT
    assert shard.add(7, 5).error is ErrorCode.PRODUCER_FENCED


def test_commit_of_the_last_epoch_moves_to_a_new_producer_id(shard: Any) -> None:
    # 1. commit at 32766. 2. its reply is lost. 3. retry before and after COMPLETE.
    shard.install(state=S.ONGOING, producer_epoch=32_766, partitions=frozenset(FLIGHTS[:1]))
    reply = shard.end(7, 32_766)
    assert (reply.producer_id, reply.producer_epoch) == (1_000, 0)
    shard.fail_over()
    (marker,) = shard.machine.upkeep.markers_due("loader")
    assert (marker.producer_id, marker.producer_epoch) == (7, 32_767)
    assert shard.end(7, 32_766).error is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.complete()
    retry = shard.end(7, 32_766)
    assert (retry.error, retry.producer_id, retry.producer_epoch) == (ErrorCode.NONE, 1_000, 0)
    assert shard.add(1_000, 0).error is ErrorCode.NONE
    assert shard.end(7, 32_766).error is ErrorCode.PRODUCER_FENCED


def test_the_end_of_a_used_up_producer_id_is_forgotten_after_the_next_transaction(
    shard: Any,
) -> None:
    shard.install(state=S.ONGOING, producer_epoch=32_766, partitions=frozenset(FLIGHTS[:1]))
    shard.end(7, 32_766)
    shard.complete()
    shard.add(1_000, 0)
    shard.end(1_000, 0)
    shard.complete()
    assert shard.end(7, 32_766).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_client_that_knows_its_new_producer_id_before_complete_waits(shard: Any) -> None:
    shard.install(state=S.ONGOING, producer_epoch=32_766, partitions=frozenset(FLIGHTS[:1]))
    shard.end(7, 32_766)
    assert shard.add(1_000, 0).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.end(1_000, 0, committed=False).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.init(1_000, 0).error is ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_late_end_of_one_transaction_never_touches_the_next(shard: Any) -> None:
    # 1. N commits with epoch 5, its copy is delayed. 2. N+1 begins with 6. 3. the copy arrives.
    shard.install(producer_epoch=5)
    shard.add(7, 5)
    shard.end(7, 5)
    assert shard.end(7, 5).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.end(7, 5, committed=False).error is ErrorCode.INVALID_TXN_STATE
    shard.complete()
    assert shard.end(7, 5).error is ErrorCode.NONE
    assert shard.end(7, 5, committed=False).error is ErrorCode.INVALID_TXN_STATE
    shard.add(7, 6)
    for committed in (True, False):
        assert shard.end(7, 5, committed=committed).error is ErrorCode.PRODUCER_FENCED
    assert shard.known.state is S.ONGOING
    shard.end(7, 6)
    shard.complete()
    for committed in (True, False):
        assert shard.end(7, 5, committed=committed).error is ErrorCode.PRODUCER_FENCED


def test_a_late_enrolment_is_fenced_at_every_later_step(shard: Any) -> None:
    shard.install(producer_epoch=5)
    shard.add(7, 5)
    shard.end(7, 5)
    assert shard.add(7, 5).error is ErrorCode.PRODUCER_FENCED
    shard.complete()
    assert shard.add(7, 5).error is ErrorCode.PRODUCER_FENCED
    shard.add(7, 6)
    assert shard.add(7, 5).error is ErrorCode.PRODUCER_FENCED


def test_winners_without_a_run_are_refused(shard: Any) -> None:
    shard.install()
    request = EndTxnRequest(
        transactional_id="loader",
        committed=True,
        producer_id=7,
        producer_epoch=5,
        winners=(Winner(producer_id=7, record_count=1),),
    )
    reply = shard.commit(shard.machine.decide_end_txn(request, 0))
    assert reply.error is ErrorCode.INVALID_REQUEST


def test_an_illegal_move_of_our_own_is_an_invariant(shard: Any) -> None:
    shard.install(state=S.PREPARE_COMMIT)
    with pytest.raises(InvariantViolation, match="I-12"):
        shard.machine.ids.move(InitProducerIdReply(), shard.known)


# --- commit tokens ----------------------------------------------------------------------------


def test_a_commit_token_is_read_back_by_the_next_owner(shard: Any) -> None:
    producer_id, epoch = begin(shard)
    shard.end(producer_id, epoch, token=b"batch-42")
    shard.complete()
    shard.fail_over()
    assert shard.init().commit_token == b"batch-42"
    (described,) = shard.machine.operations.describe(["loader"])
    assert described.commit_token == b"batch-42"


def test_the_token_stands_with_the_decision(shard: Any) -> None:
    producer_id, epoch = begin(shard)
    shard.end(producer_id, epoch, token=b"batch-42")
    assert shard.reload().ids.metadata("loader").commit_token == b"batch-42"


def test_an_abort_keeps_the_token_and_a_commit_without_one_clears_it(shard: Any) -> None:
    producer_id, epoch = begin(shard)
    shard.end(producer_id, epoch, token=b"batch-42")
    shard.complete()
    shard.add(producer_id, epoch + 1)
    shard.end(producer_id, epoch + 1, committed=False, token=b"batch-43")
    assert shard.known.commit_token == b"batch-42"
    shard.complete()
    shard.add(producer_id, epoch + 2)
    shard.end(producer_id, epoch + 2)
    assert shard.known.commit_token is None


def test_a_token_longer_than_a_kibibyte_is_refused(shard: Any) -> None:
    producer_id, epoch = begin(shard)
    assert shard.end(producer_id, epoch, token=b"x" * 1_025).error is ErrorCode.INVALID_REQUEST
    assert shard.end(producer_id, epoch, token=b"x" * 1_024).error is ErrorCode.NONE


def test_a_token_can_be_committed_with_nothing_else(shard: Any) -> None:
    reply = shard.init()
    end = shard.end(reply.producer_id, 0, token=b"batch-1")
    assert (end.error, end.producer_epoch) == (ErrorCode.NONE, 1)
    shard.complete()
    assert shard.known.state is S.COMPLETE_COMMIT
    assert shard.known.commit_token == b"batch-1"
    assert shard.end(reply.producer_id, 0, token=b"batch-1").error is ErrorCode.NONE


def test_a_token_does_not_make_a_retry_commit(shard: Any) -> None:
    shard.install(state=S.COMPLETE_ABORT, producer_epoch=5)
    assert shard.end(7, 4, token=b"batch-1").error is ErrorCode.INVALID_TXN_STATE
    assert shard.known.commit_token is None


# --- log and descriptions ---------------------------------------------------------------------


def test_records_of_unknown_versions_are_skipped(shard: Any) -> None:
    shard.install()
    before = shard.known
    shard.machine.ids.apply(LogRecord(b"\x00\x05whatever", b"x"))
    shard.machine.ids.apply(LogRecord(encode_key("loader"), b"\x00\x09whatever"))
    shard.machine.ids.apply(LogRecord(None, b"x"))
    assert shard.known == before


def test_descriptions_are_by_id_and_leave_out_the_unknown(shard: Any) -> None:
    shard.install(state=S.ONGOING, partitions=frozenset(FLIGHTS[:2]), producer_epoch=5)
    (described,) = shard.machine.operations.describe(["nobody", "loader"])
    assert shard.machine.ids.all() == (shard.known,)
    assert (described.state, described.producer_id, described.producer_epoch) == ("Ongoing", 7, 5)
    assert described.partitions == tuple(FLIGHTS[:2])
    assert described.transaction_start_ms == shard.now_ms
    assert described.member_count == 0
