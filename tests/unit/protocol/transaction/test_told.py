"""A client of version 1 at the coordinator: what it was told, its labels, and who puts it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncelog.actors.protocol.messages.transaction import (
    AbortTransactionRequest,
    AddPartitionsToTxnReply,
    AddPartitionsToTxnRequest,
    ConnectionLabel,
    EndTxnReply,
    EndTxnRequest,
    InitProducerIdReply,
    InitProducerIdRequest,
    VerifyTxnReply,
    VerifyTxnRequest,
)
from oncelog.actors.protocol.transaction.told import ToldPair
from oncelog.actors.protocol.transaction.transaction_state import TransactionState
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import INT64_MAX, TopicPartition

EPOCH = 4
"""The coordinator's."""
P, Q = TopicPartition("flights", 0), TopicPartition("flights", 1)
POSITIONS = TopicPartition("__consumer_offsets", 1)
COUNTS = {"flights": 6, "__consumer_offsets": 2}
NOBODY = (-1, -1)
Pair = tuple[int, int]
S = TransactionState


def label(number: int, request: int = 0, *, epoch: int = EPOCH, **fields: int) -> ConnectionLabel:
    return ConnectionLabel(
        **{"coordinator_epoch": epoch, "incarnation": 1, "number": number, **fields},
        request=request,
    )


def init(shard: Any, pair: Pair = NOBODY, **fields: Any) -> InitProducerIdReply:
    request = InitProducerIdRequest(
        **{
            "transactional_id": "loader",
            "producer_id": pair[0],
            "producer_epoch": pair[1],
            "as_version_1": True,
            **fields,
        }
    )
    reply: InitProducerIdReply = shard.commit(
        shard.machine.producers.decide_init_producer_id(request, shard.now_ms)
    )
    return reply


def told_to(reply: InitProducerIdReply) -> Pair:
    assert reply.error is ErrorCode.NONE, reply
    return reply.producer_id, reply.producer_epoch


def add(
    shard: Any, pair: Pair, at: ConnectionLabel | None, *partitions: TopicPartition
) -> AddPartitionsToTxnReply:
    request = AddPartitionsToTxnRequest(
        transactional_id="loader",
        producer_id=pair[0],
        producer_epoch=pair[1],
        partitions=partitions or (P,),
        label=at,
    )
    decided = shard.machine.producers.decide_add_partitions(request, shard.now_ms, COUNTS)
    reply: AddPartitionsToTxnReply = shard.commit(decided)
    return reply


def end(
    shard: Any, pair: Pair, at: ConnectionLabel | None, *, committed: bool = True, **fields: Any
) -> EndTxnReply:
    request = EndTxnRequest(
        transactional_id="loader",
        committed=committed,
        producer_id=pair[0],
        producer_epoch=pair[1],
        label=at,
        **fields,
    )
    decided = shard.machine.decide_end_txn(request, shard.now_ms, partition_counts=COUNTS)
    reply: EndTxnReply = shard.commit(decided)
    return reply


def verify(shard: Any, pair: Pair, *partitions: TopicPartition) -> VerifyTxnReply:
    request = VerifyTxnRequest(
        transactional_id="loader", producer_id=pair[0], producer_epoch=pair[1]
    )
    reply: VerifyTxnReply = shard.machine.producers.verify(request, partitions)
    return reply


def errors(reply: VerifyTxnReply) -> list[str]:
    assert reply.error is ErrorCode.NONE
    return [one.error.name for one in reply.enrolments]


@pytest.fixture(autouse=True)
def leading(shard: Any) -> None:
    shard.machine.producers.coordinator_epoch = EPOCH


def fail_over(shard: Any, epoch: int) -> None:
    shard.fail_over()
    shard.machine.producers.coordinator_epoch = epoch


# --- one client, many transactions ------------------------------------------------------------


def test_one_pair_is_good_for_all_transactions_while_the_epoch_rises_with_each(shard: Any) -> None:
    pair = told_to(init(shard))
    for number in range(3):
        added = add(shard, pair, label(1, 2 * number))
        assert (added.producer_id, added.producer_epoch) == (pair[0], pair[1] + number)
        ended = end(shard, pair, label(1, 2 * number + 1), committed=number != 1)
        assert (ended.error, ended.producer_id, ended.producer_epoch) == (ErrorCode.NONE, *pair)
        shard.complete()
        assert shard.known.producer_epoch == pair[1] + number + 1
        assert shard.reload().ids.metadata("loader") == shard.known


def test_what_is_enrolled_is_verified_and_nothing_else_is_enrolled_by_it(shard: Any) -> None:
    pair = told_to(init(shard))
    assert errors(verify(shard, pair, P)) == ["INVALID_TXN_STATE"]
    add(shard, pair, label(1, 1), P, POSITIONS)
    end(shard, pair, label(1, 2))
    assert errors(verify(shard, pair, P)) == ["INVALID_TXN_STATE"]
    shard.complete()
    add(shard, pair, label(1, 3), Q, POSITIONS)
    before = shard.known
    found = verify(shard, pair, P, Q, POSITIONS)
    assert errors(found) == ["INVALID_TXN_STATE", "NONE", "NONE"]
    assert (found.producer_id, found.producer_epoch) == (pair[0], pair[1] + 1)
    assert shard.known is before


def test_the_aborts_of_its_client_are_counted_and_told_until_it_has_another_pair(
    shard: Any,
) -> None:
    pair = told_to(init(shard))
    for number, (committed, aborts) in enumerate(((True, 0), (False, 1), (False, 2), (True, 2))):
        assert add(shard, pair, label(number, 1)).error is ErrorCode.NONE
        # The answer is lost once: the same abort is counted once.
        for _ in range(2):
            ended = end(shard, pair, label(number, 2), committed=committed)
            assert ended.error is ErrorCode.NONE
            if shard.known.state in (S.PREPARE_ABORT, S.PREPARE_COMMIT):
                shard.complete()
        shard.fail_over()
        shard.machine.producers.coordinator_epoch = EPOCH
        assert verify(shard, pair, P).aborts == shard.known.told.aborts == aborts
    assert add(shard, pair, label(9, 1)).aborts == 2
    # What is enrolled already is told the same.
    assert add(shard, pair, label(9, 2)).aborts == 2
    assert init(shard, pair).error is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.complete()
    again = told_to(init(shard, pair))
    assert again != pair
    assert verify(shard, again, P).aborts == 0


def test_verify_knows_neither_unknown_ids_nor_other_pairs(shard: Any) -> None:
    assert verify(shard, (7, 0), P).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    pair = told_to(init(shard))
    add(shard, pair, label(1))
    end(shard, pair, label(1))
    shard.complete()
    add(shard, pair, label(1))
    for other in ((pair[0], pair[1] + 1), (pair[0] + 1, pair[1])):
        assert verify(shard, other, P).error is ErrorCode.PRODUCER_FENCED


def test_nothing_is_enrolled_ahead(shard: Any) -> None:
    pair = told_to(init(shard))
    add(shard, pair, label(1))
    end(shard, pair, label(1), next_partitions=(Q,))
    shard.complete()
    assert (shard.known.state, shard.known.ahead_partitions) == (S.COMPLETE_COMMIT, frozenset())


def test_a_partition_that_does_not_exist_leaves_no_label(shard: Any) -> None:
    pair = told_to(init(shard))
    reply = add(shard, pair, label(1), P, TopicPartition("flights", 99))
    assert reply.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert shard.known.told.label is None


def test_what_is_described_has_the_told_pair(shard: Any) -> None:
    pair = told_to(init(shard))
    add(shard, pair, label(1))
    end(shard, pair, label(1))
    (found,) = shard.machine.operations.describe(["loader"])
    assert (found.told_producer_id, found.told_producer_epoch) == pair
    assert (found.producer_id, found.producer_epoch) == (pair[0], pair[1] + 1)
    shard.complete()
    shard.init()
    (found,) = shard.machine.operations.describe(["loader"])
    assert (found.told_producer_id, found.told_producer_epoch) == NOBODY


# --- each state and label ---------------------------------------------------------------------

STATES = [state for state in TransactionState if state not in (S.DEAD, S.PREPARED)]
ADD, COMMIT, ABORT = "add", "commit", "abort"
ANSWERS = {
    # state: add, commit, abort
    S.EMPTY: ("NONE", "INVALID_TXN_STATE", "NONE"),
    S.ONGOING: ("NONE", "NONE", "NONE"),
    S.PREPARE_COMMIT: (
        "CONCURRENT_TRANSACTIONS",
        "CONCURRENT_TRANSACTIONS",
        "INVALID_TXN_STATE",
    ),
    S.PREPARE_ABORT: ("CONCURRENT_TRANSACTIONS", "INVALID_TXN_STATE", "CONCURRENT_TRANSACTIONS"),
    S.COMPLETE_COMMIT: ("NONE", "NONE", "INVALID_TXN_STATE"),
    S.COMPLETE_ABORT: ("NONE", "INVALID_TXN_STATE", "NONE"),
}
FOLLOWING = {
    (S.EMPTY, ADD): S.ONGOING,
    (S.EMPTY, ABORT): S.PREPARE_ABORT,
    (S.ONGOING, ADD): S.ONGOING,
    (S.ONGOING, COMMIT): S.PREPARE_COMMIT,
    (S.ONGOING, ABORT): S.PREPARE_ABORT,
    (S.COMPLETE_COMMIT, ADD): S.ONGOING,
    (S.COMPLETE_COMMIT, COMMIT): S.COMPLETE_COMMIT,
    (S.COMPLETE_ABORT, ADD): S.ONGOING,
    (S.COMPLETE_ABORT, ABORT): S.COMPLETE_ABORT,
}
TOLD, HEARD = (7, 3), label(5, 5)

ask: dict[str, Callable[[Any, Pair, ConnectionLabel | None], Any]] = {
    ADD: add,
    COMMIT: end,
    ABORT: lambda shard, pair, at: end(shard, pair, at, committed=False),
}


def install(shard: Any, state: TransactionState, told: ToldPair | None) -> None:
    partitions = frozenset() if state in (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT) else {P}
    shard.install(
        state=state, producer_id=7, producer_epoch=9, partitions=frozenset(partitions), told=told
    )


PAIR_TOLD = ToldPair(producer_id=7, producer_epoch=3, label=HEARD)


@pytest.mark.parametrize("what", [ADD, COMMIT, ABORT])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "at", [HEARD, label(5, 6), label(6, 1), label(1, 1, incarnation=2)], ids=str
)
def test_requests_as_young_as_the_last_are_answered_and_leave_their_label(
    shard: Any, state: TransactionState, what: str, at: ConnectionLabel
) -> None:
    install(shard, state, PAIR_TOLD)
    before = shard.known
    reply = ask[what](shard, TOLD, at)
    expected = ANSWERS[state][(ADD, COMMIT, ABORT).index(what)]
    assert reply.error.name == expected
    if expected != "NONE":
        assert shard.known is before
        return
    assert shard.known.state is FOLLOWING[state, what]
    assert (shard.known.told.pair, shard.known.told.label) == (TOLD, at)
    if FOLLOWING[state, what] is state and at == HEARD:
        assert shard.known == before


@pytest.mark.parametrize("what", [ADD, COMMIT, ABORT])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("at", "pair", "told", "code"),
    [
        (label(5, 4), TOLD, PAIR_TOLD, "NOT_COORDINATOR"),
        (label(4, 9), TOLD, PAIR_TOLD, "NOT_COORDINATOR"),
        (label(9, 9, incarnation=0), TOLD, PAIR_TOLD, "NOT_COORDINATOR"),
        (label(9, 9, epoch=EPOCH - 1), TOLD, PAIR_TOLD, "NOT_COORDINATOR"),
        (label(9, 9, epoch=EPOCH + 1), TOLD, PAIR_TOLD, "NOT_COORDINATOR"),
        (label(9, 9, epoch=-1), TOLD, PAIR_TOLD, "NOT_COORDINATOR"),
        (label(9), (7, 2), PAIR_TOLD, "PRODUCER_FENCED"),
        (label(9), (7, 9), PAIR_TOLD, "PRODUCER_FENCED"),
        (label(9), (6, 3), PAIR_TOLD, "PRODUCER_FENCED"),
        (label(9), TOLD, None, "PRODUCER_FENCED"),
        (label(9), (7, 9), None, "PRODUCER_FENCED"),
        (None, TOLD, PAIR_TOLD, "PRODUCER_FENCED"),
        (None, (7, 9), PAIR_TOLD, "PRODUCER_FENCED"),
        (None, (7, 8), PAIR_TOLD, "PRODUCER_FENCED"),
        (label(9, -1), TOLD, PAIR_TOLD, "INVALID_REQUEST"),
        (label(INT64_MAX + 1), TOLD, PAIR_TOLD, "INVALID_REQUEST"),
    ],
    ids=str,
)
def test_every_other_request_changes_nothing(
    shard: Any,
    state: TransactionState,
    what: str,
    at: ConnectionLabel | None,
    pair: Pair,
    told: ToldPair | None,
    code: str,
) -> None:
    install(shard, state, told)
    before = shard.known
    assert ask[what](shard, pair, at).error.name == code
    assert shard.known is before


def test_what_is_pending_is_waited_for(shard: Any) -> None:
    pair = told_to(init(shard))
    shard.machine.ids.move(EndTxnReply(), shard.known)
    for what in (ADD, COMMIT, ABORT):
        reply = ask[what](shard, pair, label(1))
        assert reply.error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert init(shard, pair).error is ErrorCode.CONCURRENT_TRANSACTIONS


def test_labels_survive_the_coordinator_and_older_epochs_do_not(shard: Any) -> None:
    pair = told_to(init(shard))
    add(shard, pair, label(8))
    fail_over(shard, EPOCH + 1)
    assert shard.known.told.label == label(8)
    assert end(shard, pair, label(9)).error is ErrorCode.NOT_COORDINATOR
    # Numbers are of another gateway, perhaps.
    assert end(shard, pair, label(1, epoch=EPOCH + 1)).error is ErrorCode.NONE


def test_a_late_enrolment_after_an_abort_of_nothing_begins_nothing(shard: Any) -> None:
    """1. An enrolment is late. 2. Its client aborts, from another connection. 3. It arrives."""
    pair = told_to(init(shard))
    for number in (1, 3):
        assert end(shard, pair, label(number + 1), committed=False).error is ErrorCode.NONE
        shard.complete()
        assert add(shard, pair, label(number)).error is ErrorCode.NOT_COORDINATOR


# --- who owns the id --------------------------------------------------------------------------


def time_out(shard: Any) -> None:
    shard.now_ms += 10**9
    shard.time_out()


def abort_as_operator(shard: Any) -> None:
    known = shard.known
    request = AbortTransactionRequest(
        transactional_id="loader",
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
    )
    shard.commit(shard.machine.operations.decide_abort(request, shard.now_ms))


@pytest.mark.parametrize(
    "put_out", [time_out, abort_as_operator, init, lambda s: s.init(), lambda s: s.begin()]
)
@pytest.mark.parametrize("is_complete", [False, True])
def test_who_is_put_out_by_somebody_else_is_fenced_for_good(
    shard: Any, put_out: Callable[[Any], Any], is_complete: bool
) -> None:
    pair = told_to(init(shard))
    add(shard, pair, label(1, 1))
    put_out(shard)
    assert shard.known.told is None
    if is_complete:
        shard.complete()
        put_out(shard)
        assert shard.known.told is None or shard.known.told.pair != pair
    before = shard.known
    for number in (2, 3):
        replies = [ask[what](shard, pair, label(number)) for what in (ADD, COMMIT, ABORT)]
        replies += [init(shard, pair), verify(shard, pair, P)]
        assert {reply.error for reply in replies} == {ErrorCode.PRODUCER_FENCED}
        fail_over(shard, EPOCH)
    assert shard.known == before


def test_another_pair_is_told_after_an_abort_of_what_is_open(shard: Any) -> None:
    pair = told_to(init(shard))
    add(shard, pair, label(1, 1))
    assert init(shard, pair).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.known.state is S.PREPARE_ABORT
    assert init(shard, pair).error is ErrorCode.CONCURRENT_TRANSACTIONS
    late = label(1, 2)
    assert add(shard, pair, late).error is ErrorCode.PRODUCER_FENCED
    fail_over(shard, EPOCH)
    shard.complete()
    assert add(shard, pair, late).error is ErrorCode.PRODUCER_FENCED
    following = told_to(init(shard, pair))
    assert following == (pair[0], pair[1] + 1)
    # The answer was lost, and then it was not.
    assert told_to(init(shard, pair)) == following
    assert add(shard, following, label(1, 3)).error is ErrorCode.NONE
    assert init(shard, pair).error is ErrorCode.PRODUCER_FENCED
    assert end(shard, following, label(1, 4)).error is ErrorCode.NONE
    assert init(shard, pair).error is ErrorCode.PRODUCER_FENCED


def test_another_pair_is_told_between_transactions_and_told_again(shard: Any) -> None:
    pair = told_to(init(shard))
    add(shard, pair, label(1, 1))
    end(shard, pair, label(1, 2), committed=False)
    assert init(shard, pair).error is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.complete()
    following = told_to(init(shard, pair))
    assert following == (pair[0], pair[1] + 2)
    assert told_to(init(shard, pair)) == following
    assert shard.known.told.label is None
    assert ask[ADD](shard, pair, label(2)).error is ErrorCode.PRODUCER_FENCED
    # An abort uses it as well.
    assert end(shard, following, label(2), committed=False).error is ErrorCode.NONE
    shard.complete()
    assert init(shard, pair).error is ErrorCode.PRODUCER_FENCED


def test_without_a_pair_each_gets_another(shard: Any) -> None:
    first, second = told_to(init(shard)), told_to(init(shard))
    assert second == (first[0], first[1] + 1)
    assert init(shard, first).error is ErrorCode.PRODUCER_FENCED
    assert shard.known.told.before is None


def test_an_id_changes_its_version_only_without_a_pair(shard: Any) -> None:
    pair = told_to(init(shard))
    assert init(shard, pair, as_version_1=False).error is ErrorCode.PRODUCER_FENCED
    assert shard.add(*pair).error is ErrorCode.PRODUCER_FENCED
    assert shard.prepare(*pair).error is ErrorCode.PRODUCER_FENCED
    own = shard.init()
    assert shard.known.told is None
    assert init(shard, (own.producer_id, own.producer_epoch)).error is ErrorCode.PRODUCER_FENCED
    shard.add(own.producer_id, own.producer_epoch)
    shard.end(own.producer_id, own.producer_epoch, ahead=(Q,))
    shard.complete()
    assert shard.known.state is S.ONGOING
    assert init(shard).error is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.complete()
    again = told_to(init(shard))
    assert end(shard, again, label(1)).error is ErrorCode.INVALID_TXN_STATE
    assert shard.end(own.producer_id, own.producer_epoch).error is ErrorCode.PRODUCER_FENCED


def test_an_owner_of_version_2_that_recovers_is_told_nothing(shard: Any) -> None:
    own = shard.init()
    pair = (own.producer_id, own.producer_epoch)
    shard.add(*pair)
    assert shard.init(*pair).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.known.told is None
    shard.complete()
    assert shard.init(*pair).error is ErrorCode.NONE
    assert shard.known.told is None


def test_who_prepares_is_no_client_of_version_1(shard: Any) -> None:
    assert init(shard, keep_prepared=True).error is ErrorCode.INVALID_REQUEST


def test_a_forgotten_id_is_unknown(shard: Any) -> None:
    for what in (ADD, COMMIT, ABORT):
        reply = ask[what](shard, (7, 0), label(1))
        assert reply.error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


# --- the last epochs --------------------------------------------------------------------------


def test_when_the_epochs_are_used_up_a_transaction_is_aborted_and_its_client_goes_on(
    shard: Any,
) -> None:
    shard.install(producer_epoch=32_764)
    pair = told_to(init(shard))
    assert pair == (7, 32_765)
    add(shard, pair, label(1, 1))
    end(shard, pair, label(1, 2))
    shard.complete()
    add(shard, pair, label(1, 3), P, POSITIONS)
    assert errors(verify(shard, pair, P, POSITIONS)) == ["NONE", "NONE"]
    assert end(shard, pair, label(1, 4)).error is ErrorCode.NONE
    shard.complete()
    # The end has succeeded and can be repeated; the chain has ended with the producer id.
    assert end(shard, pair, label(1, 5)).error is ErrorCode.NONE
    added = add(shard, pair, label(1, 6), P, POSITIONS)
    assert (added.producer_id, added.producer_epoch) == (1_000, 0)
    found = verify(shard, pair, P, Q, POSITIONS)
    assert errors(found) == ["INVALID_PRODUCER_ID_MAPPING", "INVALID_TXN_STATE", "NONE"]
    assert (found.producer_id, found.producer_epoch) == (1_000, 0)
    assert end(shard, pair, label(1, 7), committed=False).error is ErrorCode.NONE
    shard.complete()
    following = told_to(init(shard, pair))
    assert following == (1_000, 2)
    add(shard, following, label(1, 8), P)
    assert errors(verify(shard, following, P)) == ["NONE"]


def test_a_recovery_that_needs_another_producer_id_may_be_repeated(shard: Any) -> None:
    shard.install(producer_epoch=32_764)
    pair = told_to(init(shard))
    add(shard, pair, label(1, 1))
    end(shard, pair, label(1, 2))
    shard.complete()
    add(shard, pair, label(1, 3))
    assert init(shard, pair).error is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.complete()
    assert told_to(init(shard, pair)) == (1_000, 0)
    assert told_to(init(shard, pair)) == (1_000, 0)
    assert add(shard, (1_000, 0), label(1, 4)).error is ErrorCode.NONE
