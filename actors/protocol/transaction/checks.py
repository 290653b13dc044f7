"""Checks of requests to the transaction coordinator that do not depend on its state.

A check returns ``None`` if all is well, else a code and a sentence that names the value; so checks
are joined with ``or``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from oncelog.actors.protocol.messages.transaction import (
    BeginRunRequest,
    DriverProcess,
    EndTxnRequest,
    EnlistRequest,
    Holder,
    InitProducerIdRequest,
    LeaveRunRequest,
    RenewRunRequest,
    Run,
)
from oncelog.actors.protocol.transaction.commit_versions import (
    drops_version,
    is_same_commit,
    passed_version,
    version_in,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CLUSTER_METADATA_TOPIC,
    COMMIT_TOKEN_MAX_BYTES,
    INT64_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTION_STATE_TOPIC,
    TRANSACTIONAL_ID_MAX_BYTES,
    TopicPartition,
    utf8_bytes,
)

RUN_ID_MAX_BYTES: Final = 256
MACHINE_MAX_BYTES: Final = 256

HEARTBEAT_TIMEOUT_MAX_MS: Final = 3_600_000
"""How long a producer that sends heartbeats may be silent at most."""

Refusal = tuple[ErrorCode, str]
"""A rejection: the code, and a sentence for people."""

BUSY: Final[Refusal] = (ErrorCode.CONCURRENT_TRANSACTIONS, "")
"""The id is changing state; the caller retries."""


def check_transactional_id(transactional_id: str | None) -> Refusal | None:
    """Whether a transactional id has 1 to 1,024 bytes of UTF-8."""
    size = utf8_bytes(transactional_id or "")
    if size is None or not 0 < size <= TRANSACTIONAL_ID_MAX_BYTES:
        return ErrorCode.INVALID_REQUEST, (
            f"transactional_id={transactional_id!r}: "
            f"give 1 to {TRANSACTIONAL_ID_MAX_BYTES} bytes of UTF-8"
        )
    return None


def check_timeout(transaction_timeout_ms: int, transaction_max_timeout_ms: int) -> Refusal | None:
    """Whether a transaction timeout is positive and not above the cluster's maximum."""
    if 0 < transaction_timeout_ms <= transaction_max_timeout_ms:
        return None
    return ErrorCode.INVALID_TRANSACTION_TIMEOUT, (
        f"transaction_timeout_ms={transaction_timeout_ms}: "
        f"give 1 to {transaction_max_timeout_ms} (transaction_max_timeout_ms)"
    )


def check_init_producer_id(
    request: InitProducerIdRequest, transaction_max_timeout_ms: int
) -> Refusal | None:
    """Check id and timeout, and that producer id and epoch are both given or neither."""
    return (
        check_transactional_id(request.transactional_id)
        or check_timeout(request.transaction_timeout_ms, transaction_max_timeout_ms)
        or _check_producer(request.producer_id, request.producer_epoch)
        or _check_holder(request.holder)
        or _check_version(request)
    )


def check_begin_run(request: BeginRunRequest, transaction_max_timeout_ms: int) -> Refusal | None:
    """Check id, timeout, run, driver and token."""
    return (
        check_transactional_id(request.transactional_id)
        or check_timeout(request.transaction_timeout_ms, transaction_max_timeout_ms)
        or _check_run(Run(number=request.after, id=request.run_id))
        or _check_process(request.driver, "driver")
        or _check_token(request.token)
    )


def check_enlist(request: EnlistRequest) -> Refusal | None:
    """Check id, run and token."""
    return (
        check_transactional_id(request.transactional_id)
        or _check_run(request.run)
        or _check_token(request.token)
    )


def check_run(request: LeaveRunRequest | RenewRunRequest) -> Refusal | None:
    """Check id and run."""
    return check_transactional_id(request.transactional_id) or _check_run(request.run)


def check_end_txn(request: EndTxnRequest) -> Refusal | None:
    """Check id, token, run and winners."""
    refusal = check_transactional_id(request.transactional_id) or _check_token(request.token or b"")
    if refusal is None and request.run is not None:
        return _check_run(request.run)
    if refusal is None and request.winners:
        return ErrorCode.INVALID_REQUEST, "winners are given without a run"
    return refusal


def check_version(
    transactional_id: str, token: bytes | None, committed_token: bytes | None
) -> Refusal | None:
    """Whether a commit of ``token`` keeps the application's versions increasing.

    ``committed_token`` is that of the id's last committed transaction. A token without a version is
    accepted if the last one had none either.
    """
    passed = passed_version(token, committed_token)
    if passed is not None:
        return ErrorCode.OUTDATED_VERSION, (
            f"the last committed version of {passed.app_id!r} is {passed.version}, so an older one "
            f"may be written already: go on with {passed.version + 1}, or as another application"
        )
    kept = drops_version(token, committed_token)
    if kept is not None:
        return ErrorCode.INVALID_REQUEST, (
            f"{transactional_id!r} remembers version {kept.version} of {kept.app_id!r}: "
            "only further versions of it are committed under this id; use another for the rest"
        )
    version = version_in(token) if token and is_same_commit(token, committed_token) else None
    if version is not None:
        return ErrorCode.ALREADY_COMMITTED, (
            f"version {version.version} of {version.app_id!r} is committed already"
        )
    return None


def holds_prepared(transactional_id: str) -> Refusal:
    """The answer to who may not change or end a transaction, because it is prepared."""
    return ErrorCode.INVALID_TXN_STATE, (
        f"{transactional_id!r} has a prepared transaction, which may be committed in "
        "another system already: take it over with init_transactions(keep_prepared=True) and end "
        "it with complete_transaction(), or have an operator end it"
    )


def bad_partition(
    partitions: Sequence[TopicPartition], partition_counts: Mapping[str, int]
) -> tuple[Mapping[TopicPartition, ErrorCode], str]:
    """The partitions that cannot be enrolled, with a code each, and a sentence on the first.

    ``partition_counts`` has the number of partitions of each topic that exists. The transaction
    coordinators' own log and the metadata log cannot be enrolled.
    """
    refused: dict[TopicPartition, ErrorCode] = {}
    detail = ""
    for tp in partitions:
        if tp.topic in {TRANSACTION_STATE_TOPIC, CLUSTER_METADATA_TOPIC}:
            refused[tp] = ErrorCode.INVALID_TOPIC_EXCEPTION
            detail = detail or f"{tp.topic} cannot be part of a transaction"
        elif not 0 <= tp.partition < partition_counts.get(tp.topic, 0):
            refused[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            detail = detail or f"{tp} does not exist"
    return refused, detail


def _check_producer(producer_id: int, producer_epoch: int) -> Refusal | None:
    is_neither = (producer_id, producer_epoch) == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    if is_neither or (producer_id >= 0 and producer_epoch >= 0):
        return None
    return ErrorCode.INVALID_REQUEST, (
        f"producer_id={producer_id}, producer_epoch={producer_epoch}: give both or neither"
    )


def _check_version(request: InitProducerIdRequest) -> Refusal | None:
    if not (request.as_version_1 and request.keep_prepared):
        return None
    return ErrorCode.INVALID_REQUEST, "keep_prepared: no client of version 1 prepares transactions"


def _check_holder(holder: Holder | None) -> Refusal | None:
    if holder is None:
        return None
    size = utf8_bytes(holder.id)
    if size is None or not 0 < size <= RUN_ID_MAX_BYTES:
        return ErrorCode.INVALID_REQUEST, f"holder: give 1 to {RUN_ID_MAX_BYTES} bytes of UTF-8"
    if not 0 < holder.timeout_ms <= HEARTBEAT_TIMEOUT_MAX_MS:
        return ErrorCode.INVALID_REQUEST, (
            f"timeout_ms={holder.timeout_ms} of the holder: give 1 to {HEARTBEAT_TIMEOUT_MAX_MS}"
        )
    return _check_process(holder.process, "holder")


def _check_run(run: Run) -> Refusal | None:
    size = utf8_bytes(run.id)
    if size is None or size > RUN_ID_MAX_BYTES:
        return ErrorCode.INVALID_REQUEST, f"run id: give at most {RUN_ID_MAX_BYTES} bytes of UTF-8"
    if not 0 <= run.number < INT64_MAX:
        return ErrorCode.INVALID_REQUEST, f"run number {run.number} is not valid"
    return None


def _check_process(process: DriverProcess | None, whose: str) -> Refusal | None:
    if process is None:
        return None
    size = utf8_bytes(process.machine)
    if size is None or size > MACHINE_MAX_BYTES:
        return ErrorCode.INVALID_REQUEST, (
            f"machine of the {whose}: give at most {MACHINE_MAX_BYTES} bytes of UTF-8"
        )
    for name in ("process_id", "start_ticks"):
        value = getattr(process, name)
        if not 0 <= value <= INT64_MAX:
            return ErrorCode.INVALID_REQUEST, f"{name}={value} of the {whose}: give 0 to 2^63 - 1"
    return None


def _check_token(token: bytes) -> Refusal | None:
    if len(token) > COMMIT_TOKEN_MAX_BYTES:
        return ErrorCode.INVALID_REQUEST, (
            f"the commit token has {len(token)} bytes; {COMMIT_TOKEN_MAX_BYTES} are allowed"
        )
    return None
