"""The client side of a producer's transaction: what may be called when, and what failures mean.

Pure rules. The states, and what leads from one to another:

```
UNINITIALIZED ─init─▶ INITIALIZING ─▶ READY ─begin─▶ IN_TRANSACTION ─commit─▶ COMMITTING ─▶ READY
                                        ▲                 │    │                   │
                                        │               abort  └──failure──▶ ABORTABLE_ERROR
                                        └── ABORTING ◀────┴──────────abort──────────┘
any ─fenced, or a reply that cannot be─▶ FATAL_ERROR: only close is left

IN_TRANSACTION ─prepare─▶ PREPARING ─▶ PREPARED ─commit, abort─▶ COMMITTING, ABORTING
INITIALIZING ─found prepared─▶ PREPARED     PREPARING ─failure─▶ ABORTABLE_ERROR, ─abort─▶ ABORTING
```

A failure is abortable only while a transaction is open or being committed. KIP-890 also allows it
in ``init_transactions``. Here it is fatal there and in an abort, since nothing is open that an
abort could undo. A call that does not fit the state is rejected and changes nothing. A call that
timed out keeps its state, so that the same call resumes it. Each end of a transaction brings the
producer epoch of the next one. Source: KIP-98, KIP-890; KIP-939 for what is prepared.

One file: the states, and what each call and each failure means in them.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from oncelog.actors.protocol.messages.base import Reply
from oncelog.api.records import GivenUpInput, next_moment
from oncelog.storage.errors import ErrorClass, ErrorCode, InvariantViolation
from oncelog.storage.exceptions import (
    IllegalStateError,
    InvalidRequestError,
    OncelogError,
    RequestTimedOutError,
    TransactionAbortableError,
    exception_for,
)
from oncelog.storage.model import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TopicPartition,
    sequence_after,
)


class TransactionStatus(enum.Enum):
    """The state of a transactional producer."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    PREPARING_TRANSACTION = "preparing"
    PREPARED_TRANSACTION = "prepared"
    COMMITTING_TRANSACTION = "committing"
    ABORTING_TRANSACTION = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


_S = TransactionStatus

_LEGAL_SOURCES: Final[dict[TransactionStatus, frozenset[TransactionStatus]]] = {
    _S.UNINITIALIZED: frozenset(),
    _S.INITIALIZING: frozenset({_S.UNINITIALIZED, _S.INITIALIZING}),
    _S.READY: frozenset({_S.INITIALIZING, _S.COMMITTING_TRANSACTION, _S.ABORTING_TRANSACTION}),
    # A member of a distributed write enlists and is in its transaction at once.
    _S.IN_TRANSACTION: frozenset({_S.READY, _S.INITIALIZING}),
    _S.PREPARING_TRANSACTION: frozenset({_S.IN_TRANSACTION, _S.PREPARING_TRANSACTION}),
    _S.PREPARED_TRANSACTION: frozenset({_S.PREPARING_TRANSACTION, _S.INITIALIZING}),
    _S.COMMITTING_TRANSACTION: frozenset(
        {_S.IN_TRANSACTION, _S.PREPARED_TRANSACTION, _S.COMMITTING_TRANSACTION}
    ),
    _S.ABORTING_TRANSACTION: frozenset(
        {
            _S.IN_TRANSACTION,
            _S.PREPARING_TRANSACTION,
            _S.PREPARED_TRANSACTION,
            _S.ABORTABLE_ERROR,
            _S.ABORTING_TRANSACTION,
        }
    ),
    _S.ABORTABLE_ERROR: frozenset(
        {
            _S.IN_TRANSACTION,
            _S.PREPARING_TRANSACTION,
            _S.COMMITTING_TRANSACTION,
            _S.ABORTABLE_ERROR,
        }
    ),
    _S.FATAL_ERROR: frozenset(_S),
}

_REFUSALS: Final[dict[TransactionStatus, tuple[str, str]]] = {
    _S.UNINITIALIZED: (
        "there is no producer id yet",
        "call init_transactions() first (a member: enlist() first)",
    ),
    _S.INITIALIZING: ("init_transactions() has not finished", "call init_transactions() again"),
    _S.READY: ("no transaction is open", "call begin_transaction() first"),
    _S.IN_TRANSACTION: (
        "a transaction is open",
        "call commit_transaction() or abort_transaction() first",
    ),
    _S.PREPARING_TRANSACTION: (
        "prepare_transaction() has not finished and may have taken effect",
        "call prepare_transaction() again, or abort_transaction()",
    ),
    _S.PREPARED_TRANSACTION: (
        "a transaction is prepared",
        "call complete_transaction(), commit_transaction() or abort_transaction() first",
    ),
    _S.COMMITTING_TRANSACTION: (
        "a commit has not finished and may have taken effect",
        "call commit_transaction() again",
    ),
    _S.ABORTING_TRANSACTION: ("an abort has not finished", "call abort_transaction() again"),
}
"""Why a call does not fit a state, and what to call instead."""


def severity(method: str, error: ErrorCode) -> ErrorClass:
    """What ``error``, a reply to a producer's call of ``method``, means for its transaction.

    It is the class of the code itself, with exceptions. For a coordinator's reply about epochs, a
    stale one is another producer's doing. For one about the group, a lost membership spoils only
    this transaction. A rejected commit means that the transaction has been ended, or that the token
    may not follow the last one.

    Any other rejection inside an open transaction spoils only the transaction: an abort undoes it,
    or shows that the producer cannot continue.
    """
    found = _SEVERITIES.get((method, error), error.error_class)
    if found is ErrorClass.FATAL and error not in _FATAL_INSIDE.get(method, {error}):
        return ErrorClass.ABORTABLE
    return found


_CONDEMNED: Final = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
)
_CONDEMNED_BY_COORDINATOR: Final = _CONDEMNED | {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
}

_FATAL_INSIDE: Final[dict[str, frozenset[ErrorCode]]] = {
    # A leader judges one batch.
    "produce": _CONDEMNED,
    "add_partitions_to_txn": _CONDEMNED_BY_COORDINATOR,
    "add_offsets_to_txn": _CONDEMNED_BY_COORDINATOR,
    "prepare_txn": _CONDEMNED_BY_COORDINATOR,
    "txn_offset_commit": _CONDEMNED_BY_COORDINATOR,
    "txn_share_acknowledge": _CONDEMNED_BY_COORDINATOR,
}
"""Errors of calls inside an open transaction that are fatal for the producer."""

_COORDINATOR_METHODS: Final = (
    "init_producer_id",
    "begin_run",
    "enlist",
    "leave_run",
    "add_partitions_to_txn",
    "add_offsets_to_txn",
    "prepare_txn",
    "end_txn",
    "txn_offset_commit",
    "txn_share_acknowledge",
)

_SEVERITIES: Final[dict[tuple[str, ErrorCode], ErrorClass]] = {
    **{
        (method, ErrorCode.INVALID_PRODUCER_EPOCH): ErrorClass.FATAL
        for method in _COORDINATOR_METHODS
    },
    ("txn_offset_commit", ErrorCode.REBALANCE_IN_PROGRESS): ErrorClass.ABORTABLE,
    # The application decides whether it waits for the other one to end.
    ("init_producer_id", ErrorCode.TRANSACTIONAL_ID_IN_USE): ErrorClass.ABORTABLE,
    # The topic that was read has been deleted and created again; waiting does not help.
    ("txn_offset_commit", ErrorCode.UNKNOWN_TOPIC_ID): ErrorClass.ABORTABLE,
    # The coordinator has ended the transaction, as it does at the transaction timeout. An abort
    # fetches the epoch that the producer was given meanwhile.
    ("end_txn", ErrorCode.INVALID_TXN_STATE): ErrorClass.ABORTABLE,
    # The commit was rejected for its token, and the transaction is still open.
    ("end_txn", ErrorCode.OUTDATED_VERSION): ErrorClass.ABORTABLE,
    # The cluster does not prepare transactions; nothing else is wrong with this one.
    ("prepare_txn", ErrorCode.POLICY_VIOLATION): ErrorClass.ABORTABLE,
    ("end_txn", ErrorCode.INVALID_REQUEST): ErrorClass.ABORTABLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    """The producer id and epoch in batches."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTxnState:
    """Names one prepared transaction, to be stored in the other system with what it commits.

    ``str`` of it and ``parse`` are the inverse of each other. Source: KIP-939.
    """

    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        """As Kafka writes it: ``producer id:epoch``."""
        return f"{self.producer_id}:{self.producer_epoch}"

    @classmethod
    def parse(cls, text: str) -> PreparedTxnState:
        """Read what ``str`` wrote; ``InvalidRequestError`` if it did not."""
        found = _PREPARED_TEXT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise InvalidRequestError(
                f"{text!r:.80} is not a prepared transaction", advice="give 'PRODUCER_ID:EPOCH'"
            )
        return cls(producer_id=int(found[1]), producer_epoch=int(found[2]))


_PREPARED_TEXT: Final = re.compile(r"([0-9]{1,19}):([0-9]{1,5})", re.ASCII)


class ProducerTransaction:
    """State, identity, enrolled partitions and commit token of one transactional producer.

    ``check_…`` and ``begin_…`` are for calls of the application and raise to it. The others are
    called when replies come; an illegal one is a bug, and the producer fails.
    """

    __slots__ = (
        "_ended_at",
        "_error",
        "_offset_sequence",
        "_ready_at",
        "_refused",
        "_refused_offsets",
        "_status",
        "has_work",
        "identity",
        "offsets_partitions",
        "on_accepting",
        "prepared",
        "tickets",
        "token",
        "transactional_id",
    )

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.identity = ProducerIdentity()
        self.tickets: dict[TopicPartition, bytes] = {}
        self.token: bytes | None = None
        self.has_work = False
        """Whether the coordinator may know of the open transaction, so that it must be ended."""
        self.prepared: PreparedTxnState | None = None
        """The transaction that is prepared, until it has ended; maybe a predecessor's."""
        self._offset_sequence = 0
        self.offsets_partitions: set[TopicPartition] = set()
        """The partitions of ``__consumer_offsets`` that the transaction sends offsets to."""
        self.on_accepting: Callable[[bool], None] = _ignore
        """Called at each transition, in the same turn, with whether records are now accepted."""
        self._status = _S.UNINITIALIZED
        self._ready_at = 0
        self._ended_at = 0
        """Since when a transaction can begin, and when the last one ended (0: never); moments."""
        self._error: OncelogError | None = None
        self._refused: BaseException | None = None
        self._refused_offsets: BaseException | None = None

    @property
    def status(self) -> TransactionStatus:
        """The current state."""
        return self._status

    @property
    def is_sending(self) -> bool:
        """Whether batches of the transaction may be sent."""
        return self._status in (
            _S.IN_TRANSACTION,
            _S.PREPARING_TRANSACTION,
            _S.COMMITTING_TRANSACTION,
        )

    @property
    def is_fatal(self) -> bool:
        """Whether nothing but closing is left."""
        return self._status is _S.FATAL_ERROR

    @property
    def error(self) -> OncelogError | None:
        """Why the producer is in an error state; ``None`` in other states."""
        return self._error

    # --- calls of the application -------------------------------------------------------------

    def check_send(self) -> None:
        """Reject a record or offsets unless a transaction is open."""
        if self._status is not _S.IN_TRANSACTION:
            self._refuse()

    def check_input(self, given_up: Mapping[TopicPartition, GivenUpInput]) -> None:
        """Reject positions once a rebalance took a partition that was read for the transaction.

        Its records are read again, here or by another member, and would count twice. Anything read
        since the last transaction ended may belong to this one, even if it began later. For the
        first transaction, a rebalance before the producer was ready does not count.
        """
        lost = [
            str(topic_partition)
            for topic_partition, given in given_up.items()
            if given.is_of_this_process
            and given.given_up_at > self._ready_at
            and given.delivered_at > self._ended_at
        ]
        if lost:
            raise TransactionAbortableError(
                f"a rebalance has taken {', '.join(sorted(lost))} since it was read for the "
                "transaction, and its records are read again",
                advice=(
                    "call abort_transaction(), then seek_to_committed() of the consumer; to "
                    "commit before partitions are given up, subscribe with a "
                    "ConsumerRebalanceListener"
                ),
            )

    def send_refused(self, error: BaseException) -> None:
        """Note that ``send`` raised, so that the open transaction lacks a record; from any thread.

        The commit raises the first of these errors. Source: KafkaProducer.send, after which such a
        transaction can only be aborted (KAFKA-9279).
        """
        if self._status is _S.IN_TRANSACTION and self._refused is None:
            self._refused = error

    def offsets_refused(self, error: BaseException) -> None:
        """Note that ``send_offsets_to_transaction`` raised; from any thread."""
        if self._status is _S.IN_TRANSACTION and self._refused_offsets is None:
            self._refused_offsets = error

    def begin_init(self) -> None:
        """``init_transactions`` was called."""
        if self._status not in (_S.UNINITIALIZED, _S.INITIALIZING):
            if self._status is _S.READY:
                raise IllegalStateError(
                    "init_transactions() has been called", advice="call begin_transaction() next"
                )
            self._refuse()
        self._move(_S.INITIALIZING)

    def begin(self) -> None:
        """``begin_transaction`` was called; it makes no call."""
        if self._status is not _S.READY:
            self._refuse()
        self._move(_S.IN_TRANSACTION)

    def begin_commit(self, token: bytes | None, *, despite_refused: bool = False) -> None:
        """``commit_transaction`` was called, for the first time or again with the same token.

        With ``despite_refused`` the application commits without the records that were rejected.
        """
        if self._status is _S.COMMITTING_TRANSACTION:
            if token != self.token:
                raise IllegalStateError(
                    "the commit that has not finished has another token",
                    advice=f"call commit_transaction(token={self.token!r}) again",
                )
        elif self._status is _S.IN_TRANSACTION:
            self.check_complete(despite_refused=despite_refused)
        elif self._status is not _S.PREPARED_TRANSACTION:
            self._refuse()
        self.token = token
        self._move(_S.COMMITTING_TRANSACTION)

    def begin_prepare(self) -> None:
        """``prepare_transaction`` was called, for the first time or again."""
        if self._status is _S.IN_TRANSACTION:
            self.check_complete()
        elif self._status is not _S.PREPARING_TRANSACTION:
            self._refuse()
        self._move(_S.PREPARING_TRANSACTION)

    def should_commit(self, prepared: PreparedTxnState | None) -> bool | None:
        """Whether to commit what is prepared: ``prepared`` is what the other system has.

        ``None`` if there is nothing to end. A call that timed out must be repeated as it was.
        """
        if self._status is _S.READY:
            return None
        if self.prepared is None:
            self._refuse()
        is_commit = prepared == self.prepared
        begun = {_S.COMMITTING_TRANSACTION: True, _S.ABORTING_TRANSACTION: False}
        if begun.get(self._status, is_commit) is not is_commit:
            self._refuse()
        return is_commit

    def begin_abort(self) -> None:
        """``abort_transaction`` was called, for the first time or again."""
        if self._status not in _LEGAL_SOURCES[_S.ABORTING_TRANSACTION]:
            self._refuse()
        self._move(_S.ABORTING_TRANSACTION)
        self._error = None

    # --- replies ------------------------------------------------------------------------------

    def initialized(
        self, identity: ProducerIdentity, prepared: PreparedTxnState | None = None
    ) -> None:
        """The coordinator has given ``identity`` and ended what an older producer left open.

        But what it has ``prepared`` was kept.
        """
        self._move(_S.READY if prepared is None else _S.PREPARED_TRANSACTION)
        self._forget(identity)
        self.prepared = prepared
        self.has_work = prepared is not None

    def is_prepared_now(self) -> PreparedTxnState:
        """The coordinator keeps the open transaction for a decision elsewhere."""
        self._move(_S.PREPARED_TRANSACTION)
        self.has_work = True
        self.prepared = PreparedTxnState(
            producer_id=self.identity.producer_id, producer_epoch=self.identity.producer_epoch
        )
        return self.prepared

    def enlisted(self, identity: ProducerIdentity) -> None:
        """The coordinator has made this producer a member of a distributed write."""
        self._move(_S.IN_TRANSACTION)
        self._forget(identity)

    def enrolled(self, tickets: dict[TopicPartition, bytes]) -> None:
        """Partitions are enrolled in the transaction, with the tickets that prove it."""
        self.tickets.update(tickets)

    def take_offset_sequence(self, position_count: int) -> int:
        """The sequence number of the first of ``position_count`` positions to send now."""
        sequence = self._offset_sequence
        self._offset_sequence = sequence_after(sequence, position_count)
        return sequence

    def ended(self, identity: ProducerIdentity) -> None:
        """The transaction is decided; ``identity`` is that of the next one."""
        self._move(_S.READY)
        self._ended_at = next_moment()
        self._forget(identity)

    def fail(self, error: OncelogError, severity: ErrorClass) -> None:
        """A part of the transaction has failed.

        Abortable only while an abort can undo it: not before or after the transaction, nor while it
        is being aborted.
        """
        if self._status is _S.FATAL_ERROR:
            return
        is_abortable = (
            severity is not ErrorClass.FATAL
            and self._status in (_LEGAL_SOURCES[_S.ABORTABLE_ERROR])
        )
        if self._status is not _S.ABORTABLE_ERROR or not is_abortable:
            self._error = error
        self._move(_S.ABORTABLE_ERROR if is_abortable else _S.FATAL_ERROR)

    def check_complete(self, *, despite_refused: bool = False) -> None:
        """Raise if a record or the offsets of the open transaction were rejected."""
        if self._refused_offsets is not None:
            raise TransactionAbortableError(
                "send_offsets_to_transaction() raised in the transaction "
                f"({self._refused_offsets!r}), which cannot commit without these offsets",
                advice="call abort_transaction()",
            ) from self._refused_offsets
        if self._refused is not None and not despite_refused:
            raise TransactionAbortableError(
                f"send() rejected a record of the transaction ({self._refused!r})",
                advice=(
                    "call abort_transaction(), or commit_transaction(despite_refused_sends=True) "
                    "to commit without it"
                ),
            ) from self._refused

    def raise_error(self) -> None:
        """Raise the error if the producer is in an error state."""
        if self._status in (_S.ABORTABLE_ERROR, _S.FATAL_ERROR):
            self._refuse()

    # --- internals ----------------------------------------------------------------------------

    def _forget(self, identity: ProducerIdentity) -> None:
        self._ready_at = next_moment()
        self.identity = identity
        self.tickets = {}
        self._offset_sequence = 0
        self.offsets_partitions = set()
        self._refused = None
        self._refused_offsets = None
        self.token = None
        self.has_work = False
        self.prepared = None

    def _move(self, status: TransactionStatus) -> None:
        if self._status not in _LEGAL_SOURCES[status]:
            message = f"producer moved from {self._status.value!r} to {status.value!r}"
            self._enter(_S.FATAL_ERROR)
            self._error = exception_for(ErrorCode.UNKNOWN_SERVER_ERROR, message)
            raise InvariantViolation(message)
        self._enter(status)

    def _enter(self, status: TransactionStatus) -> None:
        self._status = status
        self.on_accepting(status is _S.IN_TRANSACTION)

    def _refuse(self) -> None:
        """Reject a call that does not fit the state; the error says what to call instead."""
        cause = self._error
        if self._status is _S.ABORTABLE_ERROR:
            raise TransactionAbortableError(
                f"the transaction has failed ({cause})", advice="call abort_transaction()"
            ) from cause
        if self._status is _S.FATAL_ERROR:
            code = cause.code if cause is not None else ErrorCode.UNKNOWN_SERVER_ERROR
            raise exception_for(
                code,
                f"the producer has failed permanently ({cause})",
                advice="close it and make a new one",
            ) from cause
        what, advice = _REFUSALS[self._status]
        raise IllegalStateError(what, advice=advice)


def _ignore(is_accepting: bool) -> None:
    """The default of ``on_accepting``."""


# --- what an application is told of a failure -----------------------------------------------------


def unanswered(call: str, reply: Reply, limit: str) -> RequestTimedOutError:
    """The error after no final reply in time; ``reply`` is the last, ``call`` may be repeated."""
    return RequestTimedOutError(
        f"{call} got no final reply within {limit} (last: "
        f"{reply.error.name} {reply.detail}) and may have taken effect",
        advice=f"call {call} again",
    )


def abort_after(error: OncelogError, *, in_another_part: bool = False) -> TransactionAbortableError:
    """The error that says that the transaction can only be aborted, because of ``error``."""
    failed = "another part of the transaction failed" if in_another_part else None
    abortable = TransactionAbortableError(
        f"{failed or 'the transaction has failed'} ({error})", advice="call abort_transaction()"
    )
    abortable.__cause__ = error
    return abortable


def error_of_others(error: OncelogError, *, is_fatal: bool) -> OncelogError:
    """The error of the transaction's other records when one failed with ``error``."""
    if not is_fatal:
        return abort_after(error, in_another_part=True)
    others = exception_for(error.code, str(error))
    others.__cause__ = error
    return others
