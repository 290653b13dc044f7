"""What a transactional producer may do when."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog.api.transacting.producer_transaction import (
    ProducerIdentity,
    ProducerTransaction,
    TransactionStatus,
    severity,
)
from oncelog.storage.errors import ErrorClass, ErrorCode, InvariantViolation
from oncelog.storage.exceptions import (
    IllegalStateError,
    OncelogError,
    ProducerFencedError,
    TransactionAbortableError,
    exception_for,
)
from oncelog.storage.model import TopicPartition

S = TransactionStatus
FIRST = ProducerIdentity(producer_id=7, producer_epoch=0)
NEXT = ProducerIdentity(producer_id=7, producer_epoch=1)


def in_state(status: TransactionStatus) -> ProducerTransaction:
    """A producer that came to ``status`` by legal steps."""
    state = ProducerTransaction("loader")
    if status is S.UNINITIALIZED:
        return state
    state.begin_init()
    if status is S.INITIALIZING:
        return state
    state.initialized(FIRST)
    if status is S.READY:
        return state
    state.begin()
    if status in (S.PREPARING_TRANSACTION, S.PREPARED_TRANSACTION):
        state.begin_prepare()
        if status is S.PREPARED_TRANSACTION:
            state.is_prepared_now()
    elif status is S.COMMITTING_TRANSACTION:
        state.begin_commit(None)
    elif status is S.ABORTING_TRANSACTION:
        state.begin_abort()
    elif status is S.ABORTABLE_ERROR:
        state.fail(exception_for(ErrorCode.INVALID_RECORD), ErrorClass.ABORTABLE)
    elif status is S.FATAL_ERROR:
        state.fail(ProducerFencedError("newer"), ErrorClass.FATAL)
    assert state.status is status
    return state


CALLS: dict[str, Callable[[ProducerTransaction], None]] = {
    "send": ProducerTransaction.check_send,
    "init": ProducerTransaction.begin_init,
    "begin": ProducerTransaction.begin,
    "commit": lambda state: state.begin_commit(None),
    "abort": ProducerTransaction.begin_abort,
}
LEGAL: dict[str, set[TransactionStatus]] = {
    "send": {S.IN_TRANSACTION},
    "init": {S.UNINITIALIZED, S.INITIALIZING},
    "begin": {S.READY},
    "commit": {S.IN_TRANSACTION, S.PREPARED_TRANSACTION, S.COMMITTING_TRANSACTION},
    "abort": {
        S.IN_TRANSACTION,
        S.PREPARING_TRANSACTION,
        S.PREPARED_TRANSACTION,
        S.ABORTABLE_ERROR,
        S.ABORTING_TRANSACTION,
    },
}


@pytest.mark.parametrize("status", list(S))
@pytest.mark.parametrize("call", list(CALLS))
def test_each_call_is_legal_in_its_states_only_and_a_refusal_changes_nothing(
    call: str, status: TransactionStatus
) -> None:
    state = in_state(status)
    if status in LEGAL[call]:
        CALLS[call](state)
        return
    expected: type[OncelogError] = IllegalStateError
    if status is S.ABORTABLE_ERROR:
        expected = TransactionAbortableError
    if status is S.FATAL_ERROR:
        expected = ProducerFencedError
    with pytest.raises(expected, match=r"[a-z_]+\(\)|close it"):
        CALLS[call](state)
    assert state.status is status


def test_each_end_brings_the_identity_of_the_next_transaction_and_forgets_the_tickets() -> None:
    state = in_state(S.IN_TRANSACTION)
    state.has_work = True
    state.enrolled({TopicPartition("t", 0): b"ticket"})
    state.begin_commit(b"token")
    state.ended(NEXT)
    assert state.identity == NEXT
    assert (state.tickets, state.token, state.has_work) == ({}, None, False)


def test_a_commit_goes_on_with_the_same_token_only() -> None:
    state = in_state(S.IN_TRANSACTION)
    state.begin_commit(b"1")
    state.begin_commit(b"1")
    with pytest.raises(IllegalStateError, match=r"token=b'1'"):
        state.begin_commit(b"2")


def test_the_first_abortable_error_is_kept() -> None:
    state = in_state(S.IN_TRANSACTION)
    first = exception_for(ErrorCode.INVALID_RECORD)
    state.fail(first, ErrorClass.ABORTABLE)
    state.fail(exception_for(ErrorCode.MESSAGE_TOO_LARGE), ErrorClass.ABORTABLE)
    assert state.error is first


def test_a_fatal_error_follows_an_abortable_one_and_stays() -> None:
    state = in_state(S.ABORTABLE_ERROR)
    state.fail(ProducerFencedError("newer"), ErrorClass.FATAL)
    state.fail(exception_for(ErrorCode.INVALID_RECORD), ErrorClass.ABORTABLE)
    assert state.status is S.FATAL_ERROR
    assert isinstance(state.error, ProducerFencedError)


@pytest.mark.parametrize("status", [S.READY, S.INITIALIZING, S.ABORTING_TRANSACTION])
def test_what_an_abort_cannot_repair_is_fatal(status: TransactionStatus) -> None:
    state = in_state(status)
    state.fail(exception_for(ErrorCode.TRANSACTION_ABORTABLE), ErrorClass.ABORTABLE)
    assert state.status is S.FATAL_ERROR


def test_an_illegal_step_of_our_own_poisons_the_producer() -> None:
    state = in_state(S.READY)
    with pytest.raises(InvariantViolation):
        state.ended(NEXT)
    assert state.status is S.FATAL_ERROR


@pytest.mark.parametrize("status", list(S))
def test_batches_are_sent_in_an_open_or_committing_transaction_only(
    status: TransactionStatus,
) -> None:
    expected = status in {S.IN_TRANSACTION, S.PREPARING_TRANSACTION, S.COMMITTING_TRANSACTION}
    assert in_state(status).is_sending is expected


@pytest.mark.parametrize(
    ("method", "error", "expected"),
    [
        ("produce", ErrorCode.PRODUCER_FENCED, ErrorClass.FATAL),
        ("produce", ErrorCode.INVALID_PRODUCER_EPOCH, ErrorClass.ABORTABLE),
        ("produce", ErrorCode.INVALID_TXN_STATE, ErrorClass.ABORTABLE),
        ("produce", ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorClass.ABORTABLE),
        ("produce", ErrorCode.CONCURRENT_TRANSACTIONS, ErrorClass.RETRIABLE),
        ("init_producer_id", ErrorCode.INVALID_PRODUCER_EPOCH, ErrorClass.FATAL),
        ("add_partitions_to_txn", ErrorCode.INVALID_PRODUCER_EPOCH, ErrorClass.FATAL),
        ("add_partitions_to_txn", ErrorCode.INVALID_TXN_STATE, ErrorClass.FATAL),
        ("add_partitions_to_txn", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorClass.RETRIABLE),
        ("txn_offset_commit", ErrorCode.FENCED_INSTANCE_ID, ErrorClass.ABORTABLE),
        ("txn_offset_commit", ErrorCode.REBALANCE_IN_PROGRESS, ErrorClass.ABORTABLE),
        ("txn_offset_commit", ErrorCode.ILLEGAL_GENERATION, ErrorClass.ABORTABLE),
        ("txn_offset_commit", ErrorCode.UNKNOWN_TOPIC_ID, ErrorClass.ABORTABLE),
        ("end_txn", ErrorCode.CONCURRENT_TRANSACTIONS, ErrorClass.RETRIABLE),
        ("end_txn", ErrorCode.INVALID_TXN_STATE, ErrorClass.ABORTABLE),
        ("end_txn", ErrorCode.OUTDATED_VERSION, ErrorClass.ABORTABLE),
        ("end_txn", ErrorCode.INVALID_REQUEST, ErrorClass.ABORTABLE),
        ("end_txn", ErrorCode.PRODUCER_FENCED, ErrorClass.FATAL),
    ],
)
def test_what_an_error_means_depends_on_the_call(
    method: str, error: ErrorCode, expected: ErrorClass
) -> None:
    assert severity(method, error) is expected


SAME_EVERYWHERE = "NOT_COORDINATOR COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS"
ROWS: dict[str, tuple[str, str, str]] = {
    # Method: what is retried, what spoils the transaction, what ends the producer.
    "init_producer_id": (
        f"{SAME_EVERYWHERE} CONCURRENT_TRANSACTIONS NETWORK_EXCEPTION REQUEST_TIMED_OUT",
        "TRANSACTION_ABORTABLE",
        "INVALID_PRODUCER_EPOCH PRODUCER_FENCED TRANSACTIONAL_ID_AUTHORIZATION_FAILED "
        "INVALID_TRANSACTION_TIMEOUT UNKNOWN_SERVER_ERROR",
    ),
    "add_partitions_to_txn": (
        f"{SAME_EVERYWHERE} CONCURRENT_TRANSACTIONS UNKNOWN_TOPIC_OR_PARTITION",
        "OPERATION_NOT_ATTEMPTED UNKNOWN_PRODUCER_ID INVALID_PRODUCER_ID_MAPPING "
        "TRANSACTION_ABORTABLE INVALID_REQUEST INVALID_TOPIC_EXCEPTION UNKNOWN_SERVER_ERROR",
        "INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE "
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    ),
    "add_offsets_to_txn": (
        f"{SAME_EVERYWHERE} CONCURRENT_TRANSACTIONS",
        "UNKNOWN_PRODUCER_ID INVALID_PRODUCER_ID_MAPPING TRANSACTION_ABORTABLE",
        "INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE "
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    ),
    "txn_offset_commit": (
        f"{SAME_EVERYWHERE} REQUEST_TIMED_OUT UNKNOWN_TOPIC_OR_PARTITION CONCURRENT_TRANSACTIONS",
        "FENCED_INSTANCE_ID UNKNOWN_MEMBER_ID ILLEGAL_GENERATION TRANSACTION_ABORTABLE "
        # Of what it was given, and of its own trouble: an abort takes either back.
        "INVALID_REQUEST INVALID_GROUP_ID INVALID_TOPIC_EXCEPTION OFFSET_METADATA_TOO_LARGE "
        "UNKNOWN_SERVER_ERROR",
        "INVALID_PRODUCER_EPOCH PRODUCER_FENCED TRANSACTIONAL_ID_AUTHORIZATION_FAILED "
        "INVALID_TXN_STATE",
    ),
    "end_txn": (
        f"{SAME_EVERYWHERE} CONCURRENT_TRANSACTIONS",
        # Of a transaction that the coordinator timed out; an abort fetches its new epoch.
        "UNKNOWN_PRODUCER_ID INVALID_PRODUCER_ID_MAPPING TRANSACTION_ABORTABLE INVALID_TXN_STATE",
        "INVALID_PRODUCER_EPOCH PRODUCER_FENCED TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    ),
    "produce": (
        "NOT_LEADER_OR_FOLLOWER UNKNOWN_TOPIC_OR_PARTITION REQUEST_TIMED_OUT NETWORK_EXCEPTION "
        "NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND CORRUPT_MESSAGE KAFKA_STORAGE_ERROR "
        "CONCURRENT_TRANSACTIONS",
        "INVALID_PRODUCER_EPOCH OUT_OF_ORDER_SEQUENCE_NUMBER MESSAGE_TOO_LARGE INVALID_RECORD "
        "INVALID_TXN_STATE INVALID_TIMESTAMP TRANSACTION_ABORTABLE UNKNOWN_SERVER_ERROR",
        "PRODUCER_FENCED TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    ),
}
CLASSES = (ErrorClass.RETRIABLE, ErrorClass.ABORTABLE, ErrorClass.FATAL)


@pytest.mark.parametrize(
    ("method", "name", "expected"),
    [
        (method, name, expected)
        for method, row in ROWS.items()
        for names, expected in zip(row, CLASSES, strict=True)
        for name in names.split()
    ],
)
def test_the_table_of_errors(method: str, name: str, expected: ErrorClass) -> None:
    assert severity(method, ErrorCode[name]) is expected


@pytest.mark.parametrize("status", list(S))
def test_whoever_gathers_records_is_told_at_each_move(status: TransactionStatus) -> None:
    told: list[bool] = []
    state = in_state(status)
    state.on_accepting = told.append
    state.fail(ProducerFencedError("newer"), ErrorClass.FATAL)
    assert told == ([] if status is S.FATAL_ERROR else [False])
    ready = in_state(S.READY)
    ready.on_accepting = told.append
    ready.begin()
    ready.begin_commit(None)
    assert told[-2:] == [True, False]
