"""Every state of a transactional producer × every call and every event, with the exact words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncelog.api.transacting.producer_transaction import (
    PreparedTxnState,
    ProducerIdentity,
    ProducerTransaction,
    TransactionStatus,
)
from oncelog.storage.errors import ErrorClass, ErrorCode, InvariantViolation
from oncelog.storage.exceptions import (
    IllegalStateError,
    InvalidRequestError,
    OncelogError,
    ProducerFencedError,
    TransactionAbortableError,
    exception_for,
)

S = TransactionStatus
IDENTITY = ProducerIdentity(producer_id=7, producer_epoch=0)
NEXT = ProducerIdentity(producer_id=7, producer_epoch=1)
TOKEN = b"one"
FOUND = PreparedTxnState(producer_id=7, producer_epoch=0)

STEPS: dict[TransactionStatus, tuple[Callable[[ProducerTransaction], None], ...]] = {}


def _steps() -> None:
    def spoil(state: ProducerTransaction) -> None:
        state.fail(exception_for(ErrorCode.INVALID_RECORD, "bad"), ErrorClass.ABORTABLE)

    def fence(state: ProducerTransaction) -> None:
        state.fail(ProducerFencedError("newer"), ErrorClass.FATAL)

    ready = (ProducerTransaction.begin_init, lambda state: state.initialized(IDENTITY))
    opened = (*ready, ProducerTransaction.begin)
    STEPS[S.UNINITIALIZED] = ()
    STEPS[S.INITIALIZING] = ready[:1]
    STEPS[S.READY] = ready
    STEPS[S.IN_TRANSACTION] = opened
    STEPS[S.PREPARING_TRANSACTION] = (*opened, ProducerTransaction.begin_prepare)
    STEPS[S.PREPARED_TRANSACTION] = (
        *STEPS[S.PREPARING_TRANSACTION],
        lambda state: state.is_prepared_now() and None,
    )
    STEPS[S.COMMITTING_TRANSACTION] = (*opened, lambda state: state.begin_commit(TOKEN))
    STEPS[S.ABORTING_TRANSACTION] = (*opened, ProducerTransaction.begin_abort)
    STEPS[S.ABORTABLE_ERROR] = (*opened, spoil)
    STEPS[S.FATAL_ERROR] = (*opened, fence)


_steps()


def in_state(status: TransactionStatus) -> ProducerTransaction:
    """A producer that came to ``status`` by legal steps."""
    state = ProducerTransaction("loader")
    for step in STEPS[status]:
        step(state)
    assert state.status is status
    return state


NO_ID = "there is no producer id yet; call init_transactions() first (a member: enlist() first)"
INIT_AGAIN = "init_transactions() has not finished; call init_transactions() again"
CLOSED = "no transaction is open; call begin_transaction() first"
OPEN = "a transaction is open; call commit_transaction() or abort_transaction() first"
COMMIT_AGAIN = (
    "a commit has not finished and may have taken effect; call commit_transaction() again"
)
PREPARE_AGAIN = (
    "prepare_transaction() has not finished and may have taken effect; call prepare_transaction() "
    "again, or abort_transaction()"
)
COMPLETE = (
    "a transaction is prepared; call complete_transaction(), commit_transaction() or "
    "abort_transaction() first"
)
ABORT_AGAIN = "an abort has not finished; call abort_transaction() again"
SPOILT = "the transaction has failed (bad); call abort_transaction()"
FENCED = "the producer has failed permanently (newer); close it and make a new one"
INITIALISED = "init_transactions() has been called; call begin_transaction() next"

CALLS: dict[str, Callable[[ProducerTransaction], None]] = {
    "send, send_offsets": ProducerTransaction.check_send,
    "init, enlist": ProducerTransaction.begin_init,
    "begin": ProducerTransaction.begin,
    "commit": lambda state: state.begin_commit(TOKEN),
    "abort": ProducerTransaction.begin_abort,
    "flush": ProducerTransaction.raise_error,
    "prepare": ProducerTransaction.begin_prepare,
}
# State: what becomes of each of CALLS, in their order: the state after it, or the refusal.
OUTCOMES: dict[TransactionStatus, tuple[TransactionStatus | str, ...]] = {
    S.UNINITIALIZED: (NO_ID, S.INITIALIZING, NO_ID, NO_ID, NO_ID, S.UNINITIALIZED, NO_ID),
    S.INITIALIZING: (
        INIT_AGAIN,
        S.INITIALIZING,
        INIT_AGAIN,
        INIT_AGAIN,
        INIT_AGAIN,
        S.INITIALIZING,
        INIT_AGAIN,
    ),
    S.READY: (CLOSED, INITIALISED, S.IN_TRANSACTION, CLOSED, CLOSED, S.READY, CLOSED),
    S.IN_TRANSACTION: (
        S.IN_TRANSACTION,
        OPEN,
        OPEN,
        S.COMMITTING_TRANSACTION,
        S.ABORTING_TRANSACTION,
        S.IN_TRANSACTION,
        S.PREPARING_TRANSACTION,
    ),
    S.PREPARING_TRANSACTION: (
        PREPARE_AGAIN,
        PREPARE_AGAIN,
        PREPARE_AGAIN,
        PREPARE_AGAIN,
        S.ABORTING_TRANSACTION,
        S.PREPARING_TRANSACTION,
        S.PREPARING_TRANSACTION,
    ),
    S.PREPARED_TRANSACTION: (
        COMPLETE,
        COMPLETE,
        COMPLETE,
        S.COMMITTING_TRANSACTION,
        S.ABORTING_TRANSACTION,
        S.PREPARED_TRANSACTION,
        COMPLETE,
    ),
    S.COMMITTING_TRANSACTION: (
        COMMIT_AGAIN,
        COMMIT_AGAIN,
        COMMIT_AGAIN,
        S.COMMITTING_TRANSACTION,
        COMMIT_AGAIN,
        S.COMMITTING_TRANSACTION,
        COMMIT_AGAIN,
    ),
    S.ABORTING_TRANSACTION: (
        ABORT_AGAIN,
        ABORT_AGAIN,
        ABORT_AGAIN,
        ABORT_AGAIN,
        S.ABORTING_TRANSACTION,
        S.ABORTING_TRANSACTION,
        ABORT_AGAIN,
    ),
    S.ABORTABLE_ERROR: (SPOILT, SPOILT, SPOILT, SPOILT, S.ABORTING_TRANSACTION, SPOILT, SPOILT),
    S.FATAL_ERROR: (FENCED,) * 7,
}
REFUSALS: dict[TransactionStatus, type[OncelogError]] = {
    S.ABORTABLE_ERROR: TransactionAbortableError,
    S.FATAL_ERROR: ProducerFencedError,
}


@pytest.mark.parametrize("status", list(S))
@pytest.mark.parametrize("call", list(CALLS))
def test_what_each_call_does_in_each_state(call: str, status: TransactionStatus) -> None:
    state = in_state(status)
    error_before = state.error
    expected = OUTCOMES[status][list(CALLS).index(call)]
    if isinstance(expected, TransactionStatus):
        CALLS[call](state)
        assert state.status is expected
        return
    with pytest.raises(REFUSALS.get(status, IllegalStateError)) as refusal:
        CALLS[call](state)
    assert f"{refusal.value.what}; {refusal.value.advice}" == str(refusal.value) == expected
    assert (state.status, state.error) == (status, error_before)


def _failed(weight: ErrorClass) -> Callable[[ProducerTransaction], None]:
    return lambda state: state.fail(exception_for(ErrorCode.UNKNOWN_SERVER_ERROR, "x"), weight)


EVENTS: dict[str, Callable[[ProducerTransaction], None]] = {
    "initialized": lambda state: state.initialized(IDENTITY),
    "enlisted": lambda state: state.enlisted(IDENTITY),
    "ended": lambda state: state.ended(NEXT),
    "failed: retriable": _failed(ErrorClass.RETRIABLE),
    "failed: abortable": _failed(ErrorClass.ABORTABLE),
    "failed: fatal": _failed(ErrorClass.FATAL),
    "initialized: found": lambda state: state.initialized(IDENTITY, FOUND),
    "prepared": lambda state: state.is_prepared_now() and None,
}
BUG = "a reply that cannot be"
# State: what becomes of each of EVENTS, in their order; the state after it.
REPLIES: dict[TransactionStatus, tuple[TransactionStatus | str, ...]] = {
    S.UNINITIALIZED: (BUG, BUG, BUG, S.FATAL_ERROR, S.FATAL_ERROR, S.FATAL_ERROR, BUG, BUG),
    S.INITIALIZING: (
        S.READY,
        S.IN_TRANSACTION,
        S.READY,
        # No transaction is open, so there is nothing that an abort could take back.
        S.FATAL_ERROR,
        S.FATAL_ERROR,
        S.FATAL_ERROR,
        S.PREPARED_TRANSACTION,
        S.PREPARED_TRANSACTION,
    ),
    S.READY: (BUG, S.IN_TRANSACTION, BUG, S.FATAL_ERROR, S.FATAL_ERROR, S.FATAL_ERROR, BUG, BUG),
    S.IN_TRANSACTION: (
        BUG,
        BUG,
        BUG,
        S.ABORTABLE_ERROR,
        S.ABORTABLE_ERROR,
        S.FATAL_ERROR,
        BUG,
        BUG,
    ),
    S.PREPARING_TRANSACTION: (
        BUG,
        BUG,
        BUG,
        S.ABORTABLE_ERROR,
        S.ABORTABLE_ERROR,
        S.FATAL_ERROR,
        S.PREPARED_TRANSACTION,
        S.PREPARED_TRANSACTION,
    ),
    S.PREPARED_TRANSACTION: (
        BUG,
        BUG,
        BUG,
        # It is promised: nothing that happens here takes that back.
        S.FATAL_ERROR,
        S.FATAL_ERROR,
        S.FATAL_ERROR,
        BUG,
        BUG,
    ),
    S.COMMITTING_TRANSACTION: (
        S.READY,
        BUG,
        S.READY,
        S.ABORTABLE_ERROR,
        S.ABORTABLE_ERROR,
        S.FATAL_ERROR,
        BUG,
        BUG,
    ),
    S.ABORTING_TRANSACTION: (
        S.READY,
        BUG,
        S.READY,
        # Aborting once more would not help an abort that was refused.
        S.FATAL_ERROR,
        S.FATAL_ERROR,
        S.FATAL_ERROR,
        BUG,
        BUG,
    ),
    S.ABORTABLE_ERROR: (
        BUG,
        BUG,
        BUG,
        S.ABORTABLE_ERROR,
        S.ABORTABLE_ERROR,
        S.FATAL_ERROR,
        BUG,
        BUG,
    ),
    S.FATAL_ERROR: (BUG, BUG, BUG, S.FATAL_ERROR, S.FATAL_ERROR, S.FATAL_ERROR, BUG, BUG),
}


@pytest.mark.parametrize("status", list(S))
@pytest.mark.parametrize("event", list(EVENTS))
def test_what_each_reply_does_in_each_state(event: str, status: TransactionStatus) -> None:
    state = in_state(status)
    expected = REPLIES[status][list(EVENTS).index(event)]
    if isinstance(expected, TransactionStatus):
        EVENTS[event](state)
        assert state.status is expected
    else:
        with pytest.raises(InvariantViolation):
            EVENTS[event](state)
        assert state.status is S.FATAL_ERROR
    if state.status is S.FATAL_ERROR:
        with pytest.raises(OncelogError, match="close it and make a new one"):
            state.begin()


def test_an_abortable_answer_to_init_leaves_nothing_to_abort() -> None:
    """KIP-890 lets it be abortable; here the coordinator has nothing that could be taken back."""
    state = in_state(S.INITIALIZING)
    state.fail(exception_for(ErrorCode.TRANSACTION_ABORTABLE, "x"), ErrorClass.ABORTABLE)
    with pytest.raises(OncelogError, match="close it and make a new one"):
        state.begin_abort()
    assert state.status is S.FATAL_ERROR


def test_what_is_completed_is_what_the_other_system_names() -> None:
    other = PreparedTxnState(producer_id=7, producer_epoch=1)
    assert in_state(S.READY).should_commit(FOUND) is None
    for status in (S.UNINITIALIZED, S.IN_TRANSACTION, S.PREPARING_TRANSACTION):
        with pytest.raises(IllegalStateError):
            in_state(status).should_commit(FOUND)
    state = in_state(S.PREPARED_TRANSACTION)
    assert [state.should_commit(given) for given in (FOUND, other, None)] == [True, False, False]
    state.begin_commit(None)
    assert state.should_commit(FOUND) is True
    with pytest.raises(IllegalStateError, match=r"call commit_transaction\(\) again"):
        state.should_commit(other)


@pytest.mark.parametrize(
    "text", ["", "7", "7:", ":0", "7:0 ", "-1:0", "7:0:0", "x:0", "\u0667:0", 7]
)
def test_text_that_names_no_prepared_transaction_is_refused(text: Any) -> None:
    assert PreparedTxnState.parse(str(FOUND)) == FOUND
    with pytest.raises(InvalidRequestError, match="is not a prepared transaction"):
        PreparedTxnState.parse(text)
