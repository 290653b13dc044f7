"""The table of ``end_txn`` for each state and epoch, and why an epoch ended.

An end names the producer id and epoch of the transaction it ends. With *e* the stored epoch, it is
*current* if it carries *e* and a *retry* if it carries *e - 1*: that transaction has ended and only
the reply may be lost. Anything else is fenced. So a delayed end never affects the next transaction
(KAFKA-17754). The end of a version 1 client carries no epoch of its own: ``told`` has seen to it
that it is of the newest transaction, so it is a retry if that has ended.

A producer that was only too slow can abort and continue; one that was replaced cannot. So the
coordinator remembers what raised the epoch, and tells the producer of the epoch before, with a code
to act on and a text for people.

| the epoch rose because of | code |
|---|---|
| the transaction timeout | TRANSACTION_TIMED_OUT |
| an operator's abort | ABORTED_BY_OPERATOR |
| an operator's commit of what was prepared | INVALID_TXN_STATE |
| another producer's ``init_transactions`` | PRODUCER_FENCED |
| a distributed write under the same id | PRODUCER_FENCED |
| the death of a distributed write's driver | PRODUCER_FENCED |
| the failure of all members of a distributed write | PRODUCER_FENCED |
| its own end, or more than one rise | PRODUCER_FENCED |

Source: KIP-890, "Bump Epoch on Each Transaction for New Clients"; KIP-588 (timeouts that fence
nobody); KIP-1050 for what is abortable.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from oncelog.actors.protocol.transaction.checks import Refusal
from oncelog.actors.protocol.transaction.transaction_state import (
    ABORTED,
    COMMITTED,
    DECIDED,
    EpochCause,
    TransactionMetadata,
    TransactionState,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import PRODUCER_EPOCH_EXHAUSTED


class EndAge(enum.Enum):
    """Which transaction an end refers to: the stored one or one before."""

    CURRENT = "current"
    RETRY = "retry"
    LOST = "lost"
    """Two transactions back, if the one in between was begun ahead and not ended by its owner."""


class EndAction(enum.Enum):
    """What to do if the answer is not an error."""

    PREPARE = "prepare"
    """Decide now."""
    ENDED = "ended"
    """It has ended like this already: answer with the next transaction's producer id and epoch."""


EndVerdict = ErrorCode | EndAction

_FENCED = ErrorCode.PRODUCER_FENCED
_INVALID = ErrorCode.INVALID_TXN_STATE
_CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
_PREPARE = EndAction.PREPARE
_ENDED = EndAction.ENDED

_COLUMNS: Final = (
    (True, EndAge.CURRENT),
    (True, EndAge.RETRY),
    (False, EndAge.CURRENT),
    (False, EndAge.RETRY),
)
_ROWS: Final[Mapping[TransactionState, tuple[EndVerdict, ...]]] = {
    #                                 COMMIT current, COMMIT retry, ABORT current, ABORT retry
    TransactionState.EMPTY: (_INVALID, _FENCED, _PREPARE, _FENCED),
    TransactionState.ONGOING: (_PREPARE, _FENCED, _PREPARE, _FENCED),
    TransactionState.PREPARED: (_PREPARE, _FENCED, _PREPARE, _FENCED),
    TransactionState.PREPARE_COMMIT: (_CONCURRENT, _CONCURRENT, _CONCURRENT, _INVALID),
    TransactionState.PREPARE_ABORT: (_CONCURRENT, _INVALID, _CONCURRENT, _CONCURRENT),
    TransactionState.COMPLETE_COMMIT: (_INVALID, _ENDED, _PREPARE, _INVALID),
    TransactionState.COMPLETE_ABORT: (_INVALID, _INVALID, _PREPARE, _ENDED),
}
END_TXN: Final[Mapping[tuple[TransactionState, bool, EndAge], EndVerdict]] = MappingProxyType(
    {
        (state, committed, age): verdict
        for state, row in _ROWS.items()
        for (committed, age), verdict in zip(_COLUMNS, row, strict=True)
    }
)
"""(state, committed, age) → the verdict.

An abort at rest still raises the epoch: the client does not know whether something it sent is still
in flight, and a newer epoch makes that harmless. While COMPLETE is pending, the current epoch is
the one in the reply to the previous end: its owner has begun the next transaction early and must
wait, but is not fenced.
"""

END_TXN_AHEAD: Final[Mapping[tuple[TransactionState, bool, EndAge], EndVerdict]] = MappingProxyType(
    {
        (TransactionState.ONGOING, True, EndAge.RETRY): _ENDED,
        (TransactionState.ONGOING, False, EndAge.RETRY): _INVALID,
        (TransactionState.PREPARE_ABORT, True, EndAge.LOST): _CONCURRENT,
        (TransactionState.PREPARE_ABORT, False, EndAge.LOST): _INVALID,
        (TransactionState.COMPLETE_ABORT, True, EndAge.LOST): _ENDED,
        (TransactionState.COMPLETE_ABORT, False, EndAge.LOST): _INVALID,
    }
)
"""Additions and exceptions to the table above for a transaction that a commit began ahead."""


def end_verdict(metadata: TransactionMetadata, *, committed: bool, age: EndAge) -> EndVerdict:
    """The verdict on an end of the id's own transaction."""
    step = (metadata.state, committed, age)
    if metadata.ahead_partitions and step in END_TXN_AHEAD:
        return END_TXN_AHEAD[step]
    return END_TXN[step]


def end_age(
    metadata: TransactionMetadata, *, producer_id: int, producer_epoch: int
) -> EndAge | None:
    """Which transaction an end with this producer id and epoch refers to; None: neither.

    A retry may cross the change to a new producer id: then it carries the previous producer id
    and its last epoch, while the new one is still at epoch 0.
    """
    if producer_id == metadata.producer_id:
        if producer_epoch == metadata.producer_epoch:
            return EndAge.CURRENT
        if producer_epoch == metadata.producer_epoch - 1:
            return EndAge.RETRY
        is_lost = producer_epoch == metadata.producer_epoch - 2 and _is_ahead_aborted(metadata)
        return EndAge.LOST if is_lost else None
    is_across = is_retry_of_previous_id(
        metadata, producer_id=producer_id, producer_epoch=producer_epoch
    )
    return EndAge.RETRY if is_across else None


def told_end_age(metadata: TransactionMetadata) -> EndAge:
    """Which transaction an end of a version 1 client refers to, once ``check_told`` accepts it.

    If nothing has begun since the pair was told, an abort ends what may still be on its way.
    """
    is_current = metadata.state in (TransactionState.EMPTY, TransactionState.ONGOING)
    return EndAge.CURRENT if is_current else EndAge.RETRY


def _is_ahead_aborted(metadata: TransactionMetadata) -> bool:
    return metadata.state in ABORTED and bool(metadata.ahead_partitions)


def is_retry_of_previous_id(
    metadata: TransactionMetadata, *, producer_id: int, producer_epoch: int
) -> bool:
    """Whether the caller missed the reply that changed its producer id."""
    return (
        producer_id == metadata.previous_producer_id
        and producer_epoch == PRODUCER_EPOCH_EXHAUSTED
        and metadata.producer_epoch == 0
    )


def run_end_verdict(
    metadata: TransactionMetadata, *, is_newest: bool, committed: bool, is_token_committed: bool
) -> EndVerdict:
    """The verdict on the end of a distributed write.

    ``is_newest``: the caller's run is the newest one. ``is_token_committed``: its token is that of
    the last committed transaction, so what it names is committed, whoever did it.

    | transaction | COMMIT, its token committed | COMMIT otherwise | ABORT |
    |---|---|---|---|
    | none yet, the run waits | decide | decide | decide |
    | the run's, being aborted, after which the run waits | CONCURRENT | CONCURRENT | CONCURRENT |
    | the run's, open | decide | decide | decide |
    | the run's, committed | success | success | success, nothing changes |
    | the run's, aborted | success | INVALID_TXN_STATE | success |
    | another's, after the run's | success | PRODUCER_FENCED | success |
    | asked by an older run | success | PRODUCER_FENCED | PRODUCER_FENCED |

    A COMMIT that succeeds only because of its token is answered with ALREADY_COMMITTED: the commit
    that the token names is done, the records of this run are not committed.
    """
    is_its_own = is_newest and metadata.is_run_current
    is_open = is_its_own and metadata.state is TransactionState.ONGOING
    if is_newest and metadata.is_run_waiting and metadata.state in DECIDED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if is_open or (is_newest and metadata.is_run_waiting):
        return EndAction.PREPARE
    if (committed and is_token_committed) or (is_newest and not committed):
        return EndAction.ENDED
    if not is_its_own:
        return ErrorCode.PRODUCER_FENCED
    return EndAction.ENDED if metadata.state in COMMITTED else ErrorCode.INVALID_TXN_STATE


# --- why an epoch is over --------------------------------------------------------------------


def outdated(metadata: TransactionMetadata, producer_id: int, producer_epoch: int) -> Refusal:
    """The answer to a call whose epoch is not the current one of the id's own producer.

    An abort that the owner did not request is reported until the owner continues.
    """
    age = end_age(metadata, producer_id=producer_id, producer_epoch=producer_epoch)
    is_by_operator = metadata.epoch_cause is EpochCause.OPERATOR
    if age is EndAge.RETRY and is_by_operator and metadata.state in COMMITTED:
        return ErrorCode.INVALID_TXN_STATE, (
            f"an operator has committed the prepared transaction of {metadata.transactional_id!r}"
        )
    code = _CODES.get(metadata.epoch_cause)
    is_told = code is ErrorCode.PRODUCER_FENCED or metadata.state in ABORTED
    if age is EndAge.RETRY and code is not None and is_told:
        return code, cause_text(metadata)
    return ErrorCode.PRODUCER_FENCED, (
        f"a newer producer of {metadata.transactional_id!r} is known: it has producer id "
        f"{metadata.producer_id} and epoch {metadata.producer_epoch}, the call {producer_id} and "
        f"{producer_epoch}"
    )


def cause_text(metadata: TransactionMetadata) -> str:
    """The reason for the last raise of the epoch, in words."""
    name = repr(metadata.transactional_id)
    return {
        EpochCause.OWNER: f"the transaction of {name} has ended",
        EpochCause.TIMEOUT: (
            f"the transaction of {name} was open for longer than its "
            f"transaction_timeout_ms={metadata.transaction_timeout_ms}, so its coordinator has "
            "aborted it; nobody has taken over"
        ),
        EpochCause.OPERATOR: f"an operator has aborted the transaction of {name}",
        EpochCause.PRODUCER: f"another producer has called init_transactions() with {name}",
        EpochCause.DRIVER: (
            f"the driver of the distributed write of {name} is gone, so its coordinator has "
            "aborted it"
        ),
        EpochCause.MEMBERS: (
            f"all members of the distributed write of {name} have failed, so its coordinator "
            "has aborted what they wrote"
        ),
        EpochCause.RUN: f"a distributed write has begun with {name}",
    }[metadata.epoch_cause]


_CODES: Final = {
    EpochCause.TIMEOUT: ErrorCode.TRANSACTION_TIMED_OUT,
    EpochCause.OPERATOR: ErrorCode.ABORTED_BY_OPERATOR,
    EpochCause.PRODUCER: ErrorCode.PRODUCER_FENCED,
    EpochCause.RUN: ErrorCode.PRODUCER_FENCED,
    EpochCause.DRIVER: ErrorCode.PRODUCER_FENCED,
    EpochCause.MEMBERS: ErrorCode.PRODUCER_FENCED,
}
