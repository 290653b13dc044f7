"""What operators do to transactional ids: look, abort, delete."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.actors.protocol.messages.transaction import (
    AbortTransactionReply,
    AbortTransactionRequest,
    DeleteTransactionalIdReply,
    DeleteTransactionalIdRequest,
    DescribeTransactionsRequest,
    Run,
)
from oncelog.actors.protocol.transaction.commit_versions import version_token
from oncelog.actors.protocol.transaction.transaction_state import TransactionState
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_PRODUCER_EPOCH, TopicPartition

FLIGHTS = TopicPartition("flights", 0)
RUN = Run(number=1, id="run")
AT_REST = (
    TransactionState.EMPTY,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
)
UNDECIDED = (
    TransactionState.ONGOING,
    TransactionState.PREPARED,
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
)


def abort(shard: Any, producer_id: int, producer_epoch: int) -> AbortTransactionReply:
    request = AbortTransactionRequest(
        transactional_id="loader", producer_id=producer_id, producer_epoch=producer_epoch
    )
    reply: AbortTransactionReply = shard.commit(
        shard.machine.operations.decide_abort(request, shard.now_ms)
    )
    return reply


def delete(shard: Any, transactional_id: str = "loader") -> DeleteTransactionalIdReply:
    request = DeleteTransactionalIdRequest(transactional_id=transactional_id)
    reply: DeleteTransactionalIdReply = shard.commit(
        shard.machine.operations.decide_delete(request)
    )
    return reply


def names(shard: Any, **filters: Any) -> list[str]:
    request = DescribeTransactionsRequest(**filters)
    return [
        one.transactional_id for one in shard.machine.operations.matching(request, shard.now_ms)
    ]


# --- abort ------------------------------------------------------------------------------------


def test_an_abort_from_outside_raises_the_epoch_and_the_producer_goes_on(shard: Any) -> None:
    owner = shard.init()
    shard.add(owner.producer_id, 0)
    assert abort(shard, owner.producer_id, 0).error is ErrorCode.NONE
    assert shard.known.state is TransactionState.PREPARE_ABORT
    (marker,) = shard.machine.upkeep.markers_due("loader")
    assert (marker.producer_epoch, marker.committed) == (1, False)
    shard.complete()
    assert shard.end(owner.producer_id, 0).error is ErrorCode.ABORTED_BY_OPERATOR
    aborted = shard.end(owner.producer_id, 0, committed=False)
    assert (aborted.error, aborted.producer_epoch) == (ErrorCode.NONE, 1)
    assert shard.add(owner.producer_id, 1).error is ErrorCode.NONE


def test_an_abort_whose_answer_was_lost_is_answered_again(shard: Any) -> None:
    owner = shard.init()
    shard.add(owner.producer_id, 0)
    abort(shard, owner.producer_id, 0)
    assert abort(shard, owner.producer_id, 0).error is ErrorCode.NONE
    shard.complete()
    assert abort(shard, owner.producer_id, 0).error is ErrorCode.NONE
    assert shard.known.producer_epoch == 1


def test_a_late_abort_leaves_the_next_transaction_alone(shard: Any) -> None:
    owner = shard.init()
    shard.add(owner.producer_id, 0)
    shard.end(owner.producer_id, 0)
    shard.complete()
    shard.add(owner.producer_id, 1)
    reply = abort(shard, owner.producer_id, 0)
    assert reply.error is ErrorCode.INVALID_TXN_STATE
    assert "Ongoing" in reply.detail
    assert shard.known.state is TransactionState.ONGOING


@pytest.mark.parametrize("state", [state for state in TransactionState if state.value != "Dead"])
def test_only_what_is_open_is_aborted(shard: Any, state: TransactionState) -> None:
    shard.install(state=state, partitions=frozenset({FLIGHTS}), producer_id=7, producer_epoch=5)
    reply = abort(shard, 7, 5)
    is_open = state is TransactionState.ONGOING
    assert reply.error is (ErrorCode.NONE if is_open else ErrorCode.INVALID_TXN_STATE)
    assert shard.known.state is (TransactionState.PREPARE_ABORT if is_open else state)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (TransactionState.PREPARE_ABORT, ErrorCode.NONE),
        (TransactionState.COMPLETE_ABORT, ErrorCode.NONE),
        (TransactionState.PREPARE_COMMIT, ErrorCode.INVALID_TXN_STATE),
        (TransactionState.COMPLETE_COMMIT, ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_a_commit_that_is_decided_is_never_aborted(
    shard: Any, state: TransactionState, error: ErrorCode
) -> None:
    shard.install(state=state, producer_id=7, producer_epoch=5)
    assert abort(shard, 7, 4).error is error
    assert shard.known.state is state


def test_aborting_a_distributed_write_aborts_every_member(shard: Any) -> None:
    shard.begin(RUN.id)
    member = shard.enlist(RUN)
    shard.add(member.producer_id, member.producer_epoch)
    assert abort(shard, shard.known.producer_id, shard.known.producer_epoch).error is ErrorCode.NONE
    (marker,) = shard.machine.upkeep.markers_due("loader")
    assert (marker.producer_id, marker.committed) == (member.producer_id, False)
    assert shard.end_run(RUN, winners={member.producer_id: 0}).error is ErrorCode.INVALID_TXN_STATE


def test_aborting_the_last_epoch_takes_a_new_producer_id(shard: Any) -> None:
    shard.install(state=TransactionState.ONGOING, producer_id=7, producer_epoch=32_766)
    assert abort(shard, 7, 32_766).error is ErrorCode.NONE
    assert shard.known.next_producer_id == 1_000
    shard.complete()
    assert (shard.known.producer_id, shard.known.producer_epoch) == (1_000, 0)
    assert abort(shard, 7, 32_766).error is ErrorCode.NONE


def test_an_abort_waits_for_what_is_pending(shard: Any) -> None:
    owner = shard.init()
    shard.add(owner.producer_id, 0)
    shard.end_decision(owner.producer_id, 0)
    assert abort(shard, owner.producer_id, 0).error is ErrorCode.CONCURRENT_TRANSACTIONS


def test_an_unknown_id_cannot_be_aborted_or_deleted(shard: Any) -> None:
    assert abort(shard, 1, 0).error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert delete(shard).error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


# --- delete -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", AT_REST)
def test_an_id_at_rest_is_deleted_with_its_token(shard: Any, state: TransactionState) -> None:
    shard.install(state=state, commit_token=b"batch-1")
    assert delete(shard).error is ErrorCode.NONE
    assert shard.log[-1].value is None
    assert shard.machine.ids.metadata("loader") is None
    assert shard.reload().ids.metadata("loader") is None
    assert shard.add(7, 5).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    again = shard.init()
    assert (again.producer_id, again.producer_epoch) == (1_000, 0)
    assert again.commit_token is None


@pytest.mark.parametrize("state", UNDECIDED)
def test_an_id_with_a_transaction_is_not_deleted(shard: Any, state: TransactionState) -> None:
    shard.install(state=state, partitions=frozenset({FLIGHTS}))
    assert delete(shard).error is ErrorCode.INVALID_TXN_STATE
    assert shard.known.state is state


def test_nothing_moves_an_id_whose_deletion_is_pending(shard: Any) -> None:
    shard.init()
    request = DeleteTransactionalIdRequest(transactional_id="loader")
    shard.machine.operations.decide_delete(request)
    assert shard.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert delete(shard).error is ErrorCode.CONCURRENT_TRANSACTIONS
    shard.machine.ids.abandon("loader")
    assert shard.init().error is ErrorCode.NONE


# --- look -------------------------------------------------------------------------------------


def test_ids_are_found_by_state_producer_and_age(shard: Any) -> None:
    owner = shard.init()
    assert names(shard, states=("Empty",)) == ["loader"]
    assert names(shard, states=("Ongoing", "PrepareAbort")) == []
    shard.add(owner.producer_id, 0)
    assert names(shard, states=("Ongoing", "PrepareAbort")) == ["loader"]
    assert names(shard, producer_ids=(owner.producer_id,)) == ["loader"]
    assert names(shard, producer_ids=(owner.producer_id + 1,)) == []
    assert names(shard, running_longer_than_ms=0) == []
    shard.now_ms += 10
    assert names(shard, running_longer_than_ms=9) == ["loader"]
    assert names(shard, running_longer_than_ms=10) == []
    assert names(shard) == ["loader"]
    shard.end(owner.producer_id, 0)
    assert names(shard, running_longer_than_ms=9) == ["loader"]
    shard.complete()
    assert names(shard, running_longer_than_ms=9) == []


def test_an_id_is_found_by_the_producer_id_of_a_member_and_by_its_next(shard: Any) -> None:
    shard.begin(RUN.id)
    member = shard.enlist(RUN)
    assert names(shard, producer_ids=(member.producer_id,)) == ["loader"]
    shard.install(state=TransactionState.PREPARE_ABORT, producer_id=7, next_producer_id=9)
    assert names(shard, producer_ids=(9,)) == ["loader"]


def test_a_description_names_members_and_hides_the_start_of_what_has_ended(shard: Any) -> None:
    shard.begin(RUN.id)
    member = shard.enlist(RUN)
    shard.add(member.producer_id, member.producer_epoch)
    (described,) = shard.machine.operations.describe(["loader"])
    assert described.transaction_start_ms == shard.now_ms
    (shown,) = described.members
    assert (shown.producer_id, shown.producer_epoch) == (member.producer_id, member.producer_epoch)
    assert (shown.status, shown.partitions) == ("ENLISTED", (FLIGHTS,))
    assert len(shard.machine.ids.not_at_rest()) == 1
    shard.end_run(RUN, winners={member.producer_id: 0})
    shard.complete()
    (described,) = shard.machine.operations.describe(["loader"])
    assert (described.transaction_start_ms, described.members) == (-1, ())
    assert described.commit_token == b"batch-1"
    assert (shard.machine.ids.not_at_rest(), len(shard.machine.ids)) == ((), 1)
    assert described.producer_epoch != NO_PRODUCER_EPOCH


def test_ids_are_found_by_the_application_whose_version_they_remember(shard: Any) -> None:
    assert names(shard, app_id="nightly") == []
    shard.install(commit_token=version_token("nightly", 3))
    assert names(shard, app_id="nightly") == ["loader"]
    assert names(shard, app_id="night") == []
    shard.install(commit_token=b"batch-1")
    assert names(shard, app_id="batch-1") == []
