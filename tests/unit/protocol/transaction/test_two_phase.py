"""Transactions that wait for a decision in another system: every state with every event."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.actors.protocol.messages.transaction import (
    AbortTransactionReply,
    AbortTransactionRequest,
    DeleteTransactionalIdRequest,
    EndPreparedTxnRequest,
    Run,
)
from oncelog.actors.protocol.transaction.transaction_state import (
    AT_REST,
    EpochCause,
    TransactionState,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

FLIGHTS = TopicPartition("flights", 0)
S = TransactionState
RUN = Run(number=1, id="run")

TABLE = """
event               | Empty      | Ongoing    | Prepared   | PrepareCommit | PrepareAbort | CompleteCommit | CompleteAbort
prepare             | Prepared   | Prepared   | NONE       | CONCURRENT    | CONCURRENT   | Prepared       | Prepared
prepare, before     | FENCED     | FENCED     | FENCED     | FENCED        | FENCED       | FENCED         | FENCED
init                | Empty      | PrepareAb. | INVALID    | CONCURRENT    | CONCURRENT   | Empty          | Empty
init, keep          | Empty      | PrepareAb. | Prepared   | CONCURRENT    | CONCURRENT   | Empty          | Empty
add                 | Ongoing    | Ongoing    | INVALID    | CONCURRENT    | CONCURRENT   | Ongoing        | Ongoing
begin run           | Empty      | PrepareAb. | INVALID    | CONCURRENT    | CONCURRENT   | Empty          | Empty
time out            | -          | PrepareAb. | -          | -             | -            | -              | -
expire              | gone       | -          | -          | -             | -            | gone           | gone
abort, by operator  | INVALID    | PrepareAb. | INVALID    | INVALID       | INVALID      | INVALID        | INVALID
commit, by operator | INVALID    | INVALID    | PrepareCo. | INVALID       | INVALID      | INVALID        | INVALID
delete, by operator | gone       | INVALID    | INVALID    | INVALID       | INVALID      | gone           | gone
"""  # noqa: E501
LONG = {
    "INVALID": "INVALID_TXN_STATE",
    "CONCURRENT": "CONCURRENT_TRANSACTIONS",
    "FENCED": "PRODUCER_FENCED",
    "PrepareAb.": "PrepareAbort",
    "PrepareCo.": "PrepareCommit",
}


def cells() -> list[tuple[str, TransactionState, str]]:
    first, *lines = (
        [cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines()
    )
    return [
        (event, TransactionState(state), LONG.get(cell, cell))
        for event, *found in lines
        for state, cell in zip(first[1:], found, strict=True)
    ]


def end_prepared(
    shard: Any, producer_id: int, producer_epoch: int, *, committed: bool
) -> AbortTransactionReply:
    request = EndPreparedTxnRequest(
        transactional_id="loader",
        committed=committed,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
    reply: AbortTransactionReply = shard.commit(
        shard.machine.operations.decide_end_prepared(request, shard.now_ms)
    )
    return reply


def do(shard: Any, event: str) -> Any:
    operations, upkeep = shard.machine.operations, shard.machine.upkeep
    if event.startswith("prepare"):
        return shard.prepare(7, 4 if "before" in event else 5)
    if event.startswith("init"):
        return shard.init(keep_prepared="keep" in event)
    if event == "add":
        return shard.add(7, 5)
    if event == "begin run":
        return shard.begin("run")
    if event == "time out":
        shard.now_ms += 60_001
        return shard.commit(upkeep.decide_timeout("loader", shard.now_ms))
    if event == "expire":
        shard.now_ms += 604_800_000
        return shard.commit(upkeep.decide_expire("loader", shard.now_ms))
    if event == "abort, by operator":
        request = AbortTransactionRequest(
            transactional_id="loader", producer_id=7, producer_epoch=5
        )
        return shard.commit(operations.decide_abort(request, shard.now_ms))
    if event == "delete, by operator":
        request = DeleteTransactionalIdRequest(transactional_id="loader")
        return shard.commit(operations.decide_delete(request))
    return end_prepared(shard, 7, 5, committed=True)


@pytest.mark.parametrize(("event", "state", "expected"), cells())
def test_every_state_with_every_event(
    shard: Any, event: str, state: TransactionState, expected: str
) -> None:
    is_open = state not in AT_REST
    shard.install(state=state, partitions=frozenset({FLIGHTS} if is_open else ()))
    before = shard.known
    reply = do(shard, event)
    if expected == "gone":
        assert shard.machine.ids.metadata("loader") is None
        return
    if expected in ErrorCode.__members__ or expected == "-":
        assert reply.error.name == ("NONE" if expected == "-" else expected)
        assert shard.known == before
    else:
        assert shard.known.state.value == expected
    assert shard.reload().ids.metadata("loader") == shard.known
    if state is S.PREPARED and shard.known.state is S.PREPARED:
        assert shard.known.prepared_txn == before.prepared_txn
        assert shard.known.partitions == before.partitions


def prepared(shard: Any) -> Any:
    """An id whose owner has prepared a transaction with epoch 5 of producer 7."""
    shard.install(state=S.ONGOING, partitions=frozenset({FLIGHTS}))
    assert shard.prepare(7, 5).error is ErrorCode.NONE
    return shard


def test_who_prepared_commits_and_goes_on(shard: Any) -> None:
    prepared(shard)
    shard.now_ms += 10 * 604_800_000
    assert shard.machine.upkeep.expired_transactions(shard.now_ms) == ()
    assert shard.machine.upkeep.idle_ids(shard.now_ms) == ()
    reply = shard.end(7, 5, token=b"t")
    assert (reply.error, reply.producer_epoch) == (ErrorCode.NONE, 6)
    (marker,) = shard.machine.upkeep.markers_due("loader")
    assert (marker.producer_id, marker.producer_epoch, marker.committed) == (7, 6, True)
    shard.complete()
    assert (shard.known.state, shard.known.prepared_txn) == (S.COMPLETE_COMMIT, None)
    assert shard.known.commit_token == b"t"
    assert shard.add(7, 6).error is ErrorCode.NONE


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("successors", [1, 3])
def test_a_successor_ends_what_another_prepared_and_fences_it(
    shard: Any, committed: bool, successors: int
) -> None:
    prepared(shard)
    for number in range(successors):
        reply = shard.init(keep_prepared=True)
        assert reply.error is ErrorCode.NONE
        assert (reply.prepared_producer_id, reply.prepared_producer_epoch) == (7, 5)
        assert reply.producer_epoch == 6 + number
        shard.fail_over()
    newest = 5 + successors
    for epoch in range(5, newest):
        assert shard.end(7, epoch).error is ErrorCode.PRODUCER_FENCED
        assert shard.prepare(7, epoch).error is ErrorCode.PRODUCER_FENCED
    # It may not prepare, nor write to, what is not its own.
    assert shard.prepare(7, newest).error is ErrorCode.INVALID_TXN_STATE
    assert shard.add(7, newest).error is ErrorCode.INVALID_TXN_STATE
    assert shard.end(7, newest, committed=committed).producer_epoch == newest + 1
    (marker,) = shard.machine.upkeep.markers_due("loader")
    assert (marker.producer_epoch, marker.committed) == (newest + 1, committed)
    shard.fail_over()
    shard.complete()
    assert shard.end(7, newest, committed=committed).error is ErrorCode.NONE
    assert shard.known.prepared_txn is None


def test_the_last_epoch_of_a_producer_id_is_taken_over_by_another(shard: Any) -> None:
    shard.install(state=S.ONGOING, producer_epoch=32_766, partitions=frozenset({FLIGHTS}))
    assert shard.prepare(7, 32_766).error is ErrorCode.NONE
    reply = shard.init(keep_prepared=True)
    assert (reply.producer_id, reply.producer_epoch) == (1_000, 0)
    assert (reply.prepared_producer_id, reply.prepared_producer_epoch) == (7, 32_766)
    assert shard.end(7, 32_766).error is ErrorCode.PRODUCER_FENCED
    shard.fail_over()
    assert shard.end(1_000, 0).producer_epoch == 1
    (marker,) = shard.machine.upkeep.markers_due("loader")
    assert (marker.producer_id, marker.producer_epoch) == (7, 32_767)
    shard.complete()
    assert shard.add(1_000, 1).error is ErrorCode.NONE


def test_a_successor_that_missed_the_reply_gets_it_again(shard: Any) -> None:
    prepared(shard)
    first = shard.init(7, 5, keep_prepared=True)
    again = shard.init(7, 5, keep_prepared=True)
    assert (again.error, again.producer_epoch) == (ErrorCode.NONE, first.producer_epoch)


def test_an_id_without_prepared_transaction_is_taken_over_as_ever(shard: Any) -> None:
    reply = shard.init(keep_prepared=True)
    assert (reply.error, reply.prepared_producer_id) == (ErrorCode.NONE, -1)


@pytest.mark.parametrize("committed", [True, False])
def test_an_operator_ends_it_once_and_may_ask_again(shard: Any, committed: bool) -> None:
    prepared(shard)
    assert end_prepared(shard, 7, 4, committed=committed).error is ErrorCode.INVALID_TXN_STATE
    assert end_prepared(shard, 7, 5, committed=committed).error is ErrorCode.NONE
    assert shard.known.epoch_cause is EpochCause.OPERATOR
    for other in (committed, not committed):
        error = ErrorCode.NONE if other is committed else ErrorCode.INVALID_TXN_STATE
        assert end_prepared(shard, 7, 5, committed=other).error is error
    shard.complete()
    assert end_prepared(shard, 7, 5, committed=committed).error is ErrorCode.NONE
    # Its program, when it comes back, hears what became of it.
    assert shard.end(7, 5, committed=committed).error is ErrorCode.NONE
    wrong = ErrorCode.INVALID_TXN_STATE if committed else ErrorCode.ABORTED_BY_OPERATOR
    assert shard.end(7, 5, committed=not committed).error is wrong


def test_an_operators_commit_keeps_the_token(shard: Any) -> None:
    shard.install(state=S.ONGOING, partitions=frozenset({FLIGHTS}), commit_token=b"before")
    shard.prepare(7, 5)
    end_prepared(shard, 7, 5, committed=True)
    assert shard.known.commit_token == b"before"


def test_where_it_is_not_allowed_nothing_is_prepared_but_what_is_can_be_ended(shard: Any) -> None:
    shard.is_two_phase_allowed = False
    shard.fail_over()
    shard.install(state=S.ONGOING, partitions=frozenset({FLIGHTS}))
    for reply in (shard.prepare(7, 5), shard.init(keep_prepared=True)):
        assert reply.error is ErrorCode.POLICY_VIOLATION
        assert "transaction_two_phase_commit_enable" in reply.detail
    assert shard.known.state is S.ONGOING
    shard.install(state=S.PREPARED, partitions=frozenset({FLIGHTS}))
    epoch = shard.init(keep_prepared=True).producer_epoch
    assert shard.end(7, epoch).error is ErrorCode.NONE


def test_a_run_prepares_nothing(shard: Any) -> None:
    shard.begin(RUN.id)
    shard.enlist(RUN)
    owner = (shard.known.producer_id, shard.known.producer_epoch)
    assert shard.prepare(*owner).error is ErrorCode.PRODUCER_FENCED


def test_operators_see_it_by_the_producer_that_wrote_it_and_its_age(shard: Any) -> None:
    prepared(shard)
    assert shard.machine.upkeep.oldest_prepared_ms() == shard.now_ms
    shard.init(keep_prepared=True)
    (seen,) = shard.machine.operations.describe(["loader"])
    assert (seen.state, seen.producer_epoch) == ("Prepared", 6)
    assert (seen.prepared.producer_id, seen.prepared.producer_epoch) == (7, 5)
    shard.end(7, 6)
    shard.complete()
    assert shard.machine.upkeep.oldest_prepared_ms() is None
