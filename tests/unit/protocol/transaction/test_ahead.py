"""What a commit enrols ahead: when the next transaction begins, and who hears of the commit."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from oncelog.actors.protocol.effects import Decision
from oncelog.actors.protocol.messages.transaction import (
    AbortTransactionRequest,
    DeleteTransactionalIdRequest,
    EndTxnReply,
    Run,
)
from oncelog.actors.protocol.transaction.end import END_TXN, END_TXN_AHEAD, EndAge, end_verdict
from oncelog.actors.protocol.transaction.producers import AHEAD_EPOCH_MAX, AHEAD_PARTITIONS_MAX
from oncelog.actors.protocol.transaction.transaction_records import decode_value, encode_value
from oncelog.actors.protocol.transaction.transaction_state import (
    TransactionMetadata,
    TransactionState,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TRANSACTION_STATE_TOPIC, TopicPartition

FLIGHTS = TopicPartition("flights", 0)
DELAYS = TopicPartition("delays", 0)
S = TransactionState
PRODUCER = 7


def complete(shard: Any) -> None:
    shard.commit(shard.machine.upkeep.decide_complete("loader", shard.now_ms))


def begun_ahead(shard: Any, epoch: int = 5) -> None:
    """A commit of ``epoch`` has begun the next transaction."""
    shard.install(state=S.ONGOING, producer_epoch=epoch, partitions=frozenset({FLIGHTS}))
    assert shard.end(PRODUCER, epoch, ahead=(FLIGHTS,)).error is ErrorCode.NONE
    complete(shard)
    assert shard.known.state is S.ONGOING


def timed_out(shard: Any) -> None:
    shard.now_ms += 60_001
    shard.commit(shard.machine.upkeep.decide_timeout("loader", shard.now_ms))
    assert shard.known.state is S.PREPARE_ABORT


def test_the_next_transaction_begins_when_the_one_before_is_complete(shard: Any) -> None:
    shard.install(state=S.ONGOING, partitions=frozenset({FLIGHTS}))
    reply = shard.end(PRODUCER, 5, ahead=(FLIGHTS, DELAYS))
    assert (reply.producer_id, reply.producer_epoch) == (PRODUCER, 6)
    prepared = shard.known
    assert (prepared.state, prepared.partitions) == (S.PREPARE_COMMIT, {FLIGHTS})
    (marker,) = shard.machine.upkeep.markers_due("loader")
    assert marker.partitions == (FLIGHTS,)
    shard.now_ms += 500
    decision = shard.machine.upkeep.decide_complete("loader", shard.now_ms)
    states = [decode_value("loader", record.value).state for record in decision.records]
    assert states == [S.COMPLETE_COMMIT, S.ONGOING]
    shard.commit(decision)
    known = shard.known
    assert (known.state, known.producer_epoch) == (S.ONGOING, 6)
    assert known.partitions == {FLIGHTS, DELAYS}
    assert known.start_ms == shard.now_ms
    assert shard.reload().ids.metadata("loader") == known


def test_a_coordinator_that_finds_only_the_decision_begins_it_as_well(shard: Any) -> None:
    shard.install(state=S.ONGOING, partitions=frozenset({FLIGHTS}))
    shard.end(PRODUCER, 5, ahead=(DELAYS,))
    shard.fail_over()
    assert shard.machine.upkeep.unfinished() == ("loader",)
    assert shard.end(PRODUCER, 6).error is ErrorCode.CONCURRENT_TRANSACTIONS
    complete(shard)
    assert (shard.known.state, shard.known.partitions) == (S.ONGOING, {DELAYS})
    assert shard.end(PRODUCER, 6).producer_epoch == 7


def test_its_owner_goes_on_as_in_any_transaction(shard: Any) -> None:
    begun_ahead(shard)
    assert not shard.add_decision(PRODUCER, 6, FLIGHTS).records
    assert shard.add(PRODUCER, 6, DELAYS).error is ErrorCode.NONE
    assert shard.known.partitions == {FLIGHTS, DELAYS}
    assert shard.end(PRODUCER, 5).producer_epoch == 6  # Still the answer to the commit before.
    assert shard.end(PRODUCER, 6).producer_epoch == 7
    assert shard.known.ahead_partitions == frozenset()
    complete(shard)
    assert shard.known.state is S.COMPLETE_COMMIT
    assert shard.end(PRODUCER, 5).error is ErrorCode.PRODUCER_FENCED


def test_one_may_enrol_the_next_and_so_on(shard: Any) -> None:
    begun_ahead(shard)
    shard.end(PRODUCER, 6, ahead=(DELAYS,))
    assert shard.end(PRODUCER, 5).error is ErrorCode.PRODUCER_FENCED
    complete(shard)
    assert (shard.known.producer_epoch, shard.known.partitions) == (7, {DELAYS})


# --- what is enrolled, and what not -----------------------------------------------------------


def nothing_ahead(shard: Any, decision: Decision[EndTxnReply]) -> bool:
    """The end was decided, and the transaction after it has not begun."""
    assert shard.commit(decision).error is ErrorCode.NONE
    assert shard.known.ahead_partitions == frozenset()
    complete(shard)
    return shard.known.state in (S.COMPLETE_COMMIT, S.COMPLETE_ABORT)


@pytest.mark.parametrize(
    "ahead",
    [
        (),
        (FLIGHTS, TopicPartition("flights", 1_000)),
        (TopicPartition("nowhere", 0), FLIGHTS),
        (TopicPartition(TRANSACTION_STATE_TOPIC, 0),),
        (TopicPartition("flights", -1),),
    ],
)
def test_all_or_nothing_is_enrolled(shard: Any, ahead: tuple[TopicPartition, ...]) -> None:
    shard.install(state=S.ONGOING, partitions=frozenset({FLIGHTS}))
    assert nothing_ahead(shard, shard.end_decision(PRODUCER, 5, ahead=ahead))


def test_too_many_are_not_enrolled(shard: Any) -> None:
    shard.install(state=S.ONGOING, partitions=frozenset({FLIGHTS}))
    ahead = (FLIGHTS,) * (AHEAD_PARTITIONS_MAX + 1)
    assert nothing_ahead(shard, shard.end_decision(PRODUCER, 5, ahead=ahead))


def test_an_abort_enrols_nothing(shard: Any) -> None:
    shard.install(state=S.ONGOING, partitions=frozenset({FLIGHTS}))
    aborting = shard.end_decision(PRODUCER, 5, committed=False, ahead=(FLIGHTS,))
    assert nothing_ahead(shard, aborting)


def test_near_the_last_epoch_nothing_is_enrolled(shard: Any) -> None:
    begun_ahead(shard, AHEAD_EPOCH_MAX)
    timed_out(shard)
    complete(shard)
    assert shard.end(PRODUCER, AHEAD_EPOCH_MAX).producer_id == PRODUCER
    epoch = AHEAD_EPOCH_MAX + 1
    shard.install(state=S.ONGOING, producer_epoch=epoch, partitions=frozenset({FLIGHTS}))
    assert nothing_ahead(shard, shard.end_decision(PRODUCER, epoch, ahead=(FLIGHTS,)))


# --- who ends it ------------------------------------------------------------------------------

AHEAD_TABLE = """
state          | COMMIT current | COMMIT retry | COMMIT lost | ABORT current | ABORT retry | ABORT lost
Ongoing        | PREPARE        | DECIDED      | FENCED      | PREPARE       | INVALID     | FENCED
PrepareCommit  | CONCURRENT     | CONCURRENT   | FENCED      | CONCURRENT    | INVALID     | FENCED
PrepareAbort   | CONCURRENT     | INVALID      | CONCURRENT  | CONCURRENT    | CONCURRENT  | INVALID
CompleteAbort  | INVALID        | INVALID      | DECIDED     | PREPARE       | DECIDED     | INVALID
"""  # noqa: E501 - a table
LONG_NAMES = {
    "INVALID": "INVALID_TXN_STATE",
    "CONCURRENT": "CONCURRENT_TRANSACTIONS",
    "FENCED": "PRODUCER_FENCED",
}


def ahead_cells() -> list[tuple[TransactionState, bool, int, str]]:
    found = []
    for line in AHEAD_TABLE.strip().splitlines()[1:]:
        state, *verdicts = (cell.strip() for cell in line.split("|"))
        columns = [(committed, age) for committed in (True, False) for age in range(3)]
        for (committed, age), verdict in zip(columns, verdicts, strict=True):
            found.append((S(state), committed, age, LONG_NAMES.get(verdict, verdict)))
    return found


@pytest.mark.parametrize(("state", "committed", "age", "verdict"), ahead_cells())
def test_each_cell_of_the_table_of_one_begun_ahead(
    shard: Any, state: TransactionState, committed: bool, age: int, verdict: str
) -> None:
    """``age`` epochs lie between the stored one and that of the end."""
    partitions = frozenset({FLIGHTS})
    shard.install(state=state, partitions=partitions, ahead_partitions=partitions)
    decision = shard.end_decision(PRODUCER, 5 - age, committed=committed)
    reply = shard.commit(decision)
    if verdict in ("PREPARE", "DECIDED"):
        assert reply.error is ErrorCode.NONE
        assert bool(decision.records) is (verdict == "PREPARE")
        assert reply.producer_epoch == (6 if verdict == "PREPARE" else 5)
    else:
        assert reply.error.name == verdict
        assert not decision.records


def test_without_partitions_ahead_the_plain_table_holds(shard: Any) -> None:
    for (state, committed, age), verdict in END_TXN.items():
        shard.install(state=state)
        assert end_verdict(shard.known, committed=committed, age=age) is verdict
    assert {age for _, _, age in END_TXN_AHEAD} == {EndAge.RETRY, EndAge.LOST}


def test_after_its_timeout_the_commit_before_is_still_answered(shard: Any) -> None:
    begun_ahead(shard)
    timed_out(shard)
    assert shard.end(PRODUCER, 5).error is ErrorCode.CONCURRENT_TRANSACTIONS
    complete(shard)
    assert shard.known.state is S.COMPLETE_ABORT
    shard.fail_over()
    reply = shard.end(PRODUCER, 5)
    assert (reply.error, reply.producer_epoch) == (ErrorCode.NONE, 7)
    assert shard.end(PRODUCER, 6, committed=False).producer_epoch == 7
    shard.add(PRODUCER, 7)
    for epoch in (5, 6):
        assert shard.end(PRODUCER, epoch).error is ErrorCode.PRODUCER_FENCED


def test_after_an_operator_ended_it_the_commit_before_is_still_answered(shard: Any) -> None:
    begun_ahead(shard)
    request = AbortTransactionRequest(
        transactional_id="loader", producer_id=PRODUCER, producer_epoch=6
    )
    assert (
        shard.commit(shard.machine.operations.decide_abort(request, shard.now_ms)).error
        is ErrorCode.NONE
    )
    complete(shard)
    assert shard.end(PRODUCER, 5).producer_epoch == 7


def test_its_owner_who_ended_it_has_had_the_answer(shard: Any) -> None:
    begun_ahead(shard)
    assert shard.end(PRODUCER, 6, committed=False).producer_epoch == 7
    complete(shard)
    assert shard.known.ahead_partitions == frozenset()
    assert shard.end(PRODUCER, 5).error is ErrorCode.PRODUCER_FENCED


def test_a_new_owner_fences_who_committed_before_it(shard: Any) -> None:
    begun_ahead(shard)
    assert shard.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.known.state is S.PREPARE_ABORT
    complete(shard)
    assert shard.end(PRODUCER, 5).error is ErrorCode.PRODUCER_FENCED
    assert shard.init().producer_epoch == 8
    assert shard.end(PRODUCER, 5).error is ErrorCode.PRODUCER_FENCED


def test_a_distributed_write_fences_it_as_well(shard: Any) -> None:
    begun_ahead(shard)
    run = Run(number=1, id="run")
    assert shard.begin(run.id).error is ErrorCode.CONCURRENT_TRANSACTIONS
    complete(shard)
    assert shard.begin(run.id).number == run.number
    assert shard.enlist(run).error is ErrorCode.NONE
    assert shard.known.ahead_partitions == frozenset()
    assert shard.end(PRODUCER, 5).error is ErrorCode.PRODUCER_FENCED


def test_it_cannot_be_deleted_while_it_is_open(shard: Any) -> None:
    begun_ahead(shard)
    request = DeleteTransactionalIdRequest(transactional_id="loader")
    decision = shard.machine.operations.decide_delete(request)
    assert decision.reply.error is ErrorCode.INVALID_TXN_STATE


# --- bytes ------------------------------------------------------------------------------------

METADATA = TransactionMetadata(
    transactional_id="loader",
    producer_id=PRODUCER,
    producer_epoch=6,
    transaction_timeout_ms=60_000,
    state=S.PREPARE_COMMIT,
    last_update_ms=2,
    start_ms=1,
    partitions=frozenset({FLIGHTS}),
)


def test_partitions_ahead_stand_in_their_tagged_field() -> None:
    ahead = structs.replace(
        METADATA, ahead_partitions=frozenset({DELAYS, TopicPartition("delays", 1)})
    )
    encoded = encode_value(ahead)
    assert decode_value("loader", encoded) == ahead
    # One more field at the end: tag 10004, its length, one topic with two partitions.
    field = bytes.fromhex("944e 12 02 07") + b"delays" + bytes.fromhex("03 00000000 00000001 00")
    assert encoded.endswith(field)
    assert decode_value("loader", encode_value(METADATA)) == METADATA
    assert b"\x94\x4e" not in encode_value(METADATA)
