"""Errors as Kafka's clients know them: ours above 9,999 become the nearest of Kafka's."""

from __future__ import annotations

from typing import Final

from oncelog.storage.errors import ErrorCode

FIRST_OF_OURS: Final = 10_000


class UnansweredError(Exception):
    """Not a bug: a request failed, and there is no code, or no answer, to say so in.

    Its connection is closed, and the client connects again. The text is for the log.
    """


class ReconnectError(UnansweredError):
    """Only a new connection of the client helps, or what became of its request is not known.

    Its client connects again and repeats the request. That is normal when a coordinator has moved.
    """


_KAFKAS: Final = {
    ErrorCode.ALREADY_COMMITTED: ErrorCode.NONE,
    ErrorCode.REPLICA_OFFLINE: ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.CLIENT_CLOSED: ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.TRANSACTION_TIMED_OUT: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.ABORTED_BY_OPERATOR: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.OUTDATED_VERSION: ErrorCode.INVALID_REQUEST,
    ErrorCode.WAKEUP: ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.TRANSACTIONAL_ID_IN_USE: ErrorCode.CONCURRENT_TRANSACTIONS,
}


def kafkas(error: ErrorCode) -> int:
    """The number of ``error`` for a client of Kafka."""
    return int(_KAFKAS[error] if error >= FIRST_OF_OURS else error)


def of_coordinator(error: ErrorCode) -> int:
    """``kafkas``, of an answer of a coordinator: who it cannot reach he looks for anew."""
    if error in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_LEADER_OR_FOLLOWER):
        return int(ErrorCode.NOT_COORDINATOR)
    if error is ErrorCode.REQUEST_TIMED_OUT:
        return int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return kafkas(error)


def of_leader(error: ErrorCode) -> int:
    """``kafkas``, of an answer of a partition's leader: a client looks for a new one."""
    if error is ErrorCode.NETWORK_EXCEPTION:
        return int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return kafkas(error)
