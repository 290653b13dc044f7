"""The state of one transactional id, and its transitions: begin, end, complete.

Rules. The epoch rises by one at every end, so that no message of one transaction is valid in the
next (KIP-890). Epoch 32,766 is the last that a client gets: the end of its transaction writes
markers with 32,767, and the next one starts at epoch 0 of a new producer id, which the PREPARE
record already names. A transaction belongs either to the id's own producer or to the members of a
*run* (a distributed write), never to both.

*Prepared*: an owner that commits together with another system has promised that it can commit or
abort. Such a transaction waits for that decision, whatever the time and whoever takes the id over.
A successor gets an epoch of its own, while the records keep that of ``prepared_txn``.

The functions here are pure: metadata in, metadata out. The caller logs the result.

One file: the state of an id, and every transition of it.

Source: KIP-98, "Transaction Coordinator"; KIP-360; KIP-890; KIP-939 for what is prepared.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import structs

from oncelog.actors.protocol.messages.partition import TxnMarker
from oncelog.actors.protocol.messages.transaction import (
    NO_RUN,
    ConnectionLabel,
    DriverProcess,
    Holder,
    PreparedTxn,
    Run,
)
from oncelog.actors.protocol.transaction.commit_versions import is_same_commit
from oncelog.actors.protocol.transaction.members import (
    Members,
    MemberStatus,
    enrolled_partitions,
    released,
    with_outcomes,
)
from oncelog.actors.protocol.transaction.told import ToldPair
from oncelog.storage.model import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    PRODUCER_EPOCH_EXHAUSTED,
    PRODUCER_EPOCH_MAX,
    TopicPartition,
)

TRANSACTION_PARTITIONS_MAX: Final = 10_000
"""Maximum partitions of one transaction; each of its log records has the whole list."""


class TransactionState(enum.Enum):
    """Kafka's states and names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARED = "Prepared"
    """Ours: Ongoing, and kept for a decision elsewhere. In the log it is Ongoing with a tag."""
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    """Being expired. Only ever pending, never logged."""


class EpochCause(enum.Enum):
    """What raised an id's epoch last. The values are those of its log record."""

    OWNER = 0
    """The owner ended its transaction, or nothing has raised the epoch yet."""
    TIMEOUT = 1
    OPERATOR = 2
    PRODUCER = 3
    """Another producer has taken the id over."""
    RUN = 4
    """A distributed write has taken the id over."""
    DRIVER = 5
    """The driver of its distributed write has died."""
    MEMBERS = 6
    """Every member of its distributed write has failed."""


OPEN: Final = frozenset({TransactionState.ONGOING, TransactionState.PREPARED})
"""Not decided yet."""

DECIDED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""Decided, markers being written. Once durable, the verdict never changes."""

COMMITTED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})
ABORTED: Final = frozenset({TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT})

AT_REST: Final = frozenset(
    {
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    }
)
"""No transaction is open."""

LEGAL_PREDECESSORS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = (
    MappingProxyType(
        {
            TransactionState.EMPTY: AT_REST,
            TransactionState.ONGOING: AT_REST | {TransactionState.ONGOING},
            TransactionState.PREPARED: OPEN,
            TransactionState.PREPARE_COMMIT: OPEN,
            TransactionState.PREPARE_ABORT: AT_REST | OPEN,
            TransactionState.COMPLETE_COMMIT: frozenset(
                {TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT}
            ),
            TransactionState.COMPLETE_ABORT: frozenset(
                {TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT}
            ),
            TransactionState.DEAD: AT_REST,
        }
    )
)
"""Each state → the states it may be entered from. Anything else is a bug (I-12).

Complete goes to itself when a version 1 client repeats its end: only the label rises.
"""


class TransactionMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """One transactional id. Every field is in its log record, so reload loses nothing.

    ``partitions`` are those of the id's own producer; a run's are with its members. ``run`` is the
    newest run that ever began. It is *waiting* until its first member enlists, and again once all
    of its members have failed. ``is_run_current``: the current or last transaction is the run's.
    ``driver`` is the process whose death aborts the run while it is undecided. ``commit_token`` is
    that of the last committed transaction: it is set by the PREPARE record, with the decision.

    ``ahead_partitions`` are part of PREPARE_COMMIT: they are enrolled in the next transaction,
    which begins when this one is complete. They are kept while that one is open, and after the
    coordinator aborts it, because its owner may have missed the reply to the commit.

    ``epoch_cause`` is why the producer with the previous epoch may not continue. ``prepared_txn``
    is set from ``PREPARED`` on until the transaction is complete. ``holder`` is the owner, if it
    sends heartbeats. ``told`` is what a version 1 client knows, while it owns the id.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    state: TransactionState
    last_update_ms: int
    start_ms: int = NO_TIMESTAMP
    partitions: frozenset[TopicPartition] = frozenset()
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    commit_token: bytes | None = None
    run: Run | None = None
    is_run_current: bool = False
    is_run_waiting: bool = False
    driver: DriverProcess | None = None
    members: Members = msgspec.field(default_factory=dict)
    ahead_partitions: frozenset[TopicPartition] = frozenset()
    epoch_cause: EpochCause = EpochCause.OWNER
    prepared_txn: PreparedTxn | None = None
    holder: Holder | None = None
    told: ToldPair | None = None

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left for a further transaction."""
        return self.producer_epoch >= PRODUCER_EPOCH_EXHAUSTED

    @property
    def all_partitions(self) -> frozenset[TopicPartition]:
        """Every partition of the current transaction, those of members included."""
        return self.partitions | enrolled_partitions(self.members)


def created(
    transactional_id: str, *, producer_id: int, transaction_timeout_ms: int, now_ms: int
) -> TransactionMetadata:
    """A new id, at rest."""
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=0,
        transaction_timeout_ms=transaction_timeout_ms,
        state=TransactionState.EMPTY,
        last_update_ms=now_ms,
    )


def raised(
    metadata: TransactionMetadata,
    *,
    spare_producer_id: int,
    last_producer_epoch: int,
    cause: EpochCause,
) -> TransactionMetadata:
    """Raise the epoch outside the end of a transaction: fences the previous holder, for good.

    ``spare_producer_id`` is used when the epochs of the current one are exhausted, else ignored.
    """
    metadata = structs.replace(metadata, epoch_cause=cause, told=None)
    if metadata.is_exhausted:
        return structs.replace(
            metadata,
            producer_id=spare_producer_id,
            producer_epoch=0,
            previous_producer_id=metadata.producer_id,
            last_producer_epoch=last_producer_epoch,
        )
    return structs.replace(
        metadata,
        producer_epoch=metadata.producer_epoch + 1,
        last_producer_epoch=last_producer_epoch,
    )


def initialised(
    metadata: TransactionMetadata,
    *,
    transaction_timeout_ms: int,
    now_ms: int,
    holder: Holder | None = None,
) -> TransactionMetadata:
    """Return to rest, owned by the id's own producer."""
    return structs.replace(
        metadata,
        state=TransactionState.EMPTY,
        transaction_timeout_ms=transaction_timeout_ms,
        last_update_ms=now_ms,
        start_ms=NO_TIMESTAMP,
        partitions=frozenset(),
        is_run_current=False,
        is_run_waiting=False,
        driver=None,
        ahead_partitions=frozenset(),
        holder=holder,
    )


def begun(
    metadata: TransactionMetadata, partitions: frozenset[TopicPartition], now_ms: int
) -> TransactionMetadata:
    """Add ``partitions`` to the own producer's transaction, which begins now unless it is open."""
    is_open = metadata.state is TransactionState.ONGOING
    return structs.replace(
        metadata,
        state=TransactionState.ONGOING,
        partitions=metadata.partitions | partitions,
        start_ms=metadata.start_ms if is_open else now_ms,
        last_update_ms=now_ms,
        is_run_current=False,
        ahead_partitions=metadata.ahead_partitions if is_open else frozenset(),
    )


def begun_ahead(complete: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Begin the next transaction, with the partitions that the previous commit enrolled."""
    ahead_partitions = complete.ahead_partitions
    return structs.replace(
        begun(complete, ahead_partitions, now_ms), ahead_partitions=ahead_partitions
    )


def run_begun(
    metadata: TransactionMetadata,
    run_id: str,
    *,
    driver: DriverProcess | None,
    transaction_timeout_ms: int,
    spare_producer_id: int,
    now_ms: int,
) -> TransactionMetadata:
    """Begin a run, which waits for its first member; all others are fenced."""
    fenced = raised(
        metadata,
        spare_producer_id=spare_producer_id,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        cause=EpochCause.RUN,
    )
    return structs.replace(
        initialised(fenced, transaction_timeout_ms=transaction_timeout_ms, now_ms=now_ms),
        run=Run(number=newest_run_number(metadata) + 1, id=run_id),
        is_run_waiting=True,
        driver=driver,
    )


def newest_run_number(metadata: TransactionMetadata | None) -> int:
    """The number of the newest run."""
    return NO_RUN if metadata is None or metadata.run is None else metadata.run.number


def run_opened(metadata: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Open the transaction of the waiting run, without a member yet; its timeout starts."""
    return structs.replace(
        metadata,
        state=TransactionState.ONGOING,
        start_ms=now_ms,
        last_update_ms=now_ms,
        is_run_current=True,
        is_run_waiting=False,
    )


def held_back(metadata: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Prepare the own producer's open transaction: it waits for a decision elsewhere.

    The owner knows the epoch of its transaction, so nobody retries the commit before it.
    """
    return structs.replace(
        metadata,
        state=TransactionState.PREPARED,
        last_update_ms=now_ms,
        ahead_partitions=frozenset(),
        prepared_txn=PreparedTxn(
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            prepared_ms=now_ms,
        ),
    )


def taken_over(
    metadata: TransactionMetadata,
    *,
    transaction_timeout_ms: int,
    now_ms: int,
    holder: Holder | None = None,
) -> TransactionMetadata:
    """A successor has ``metadata``'s epoch; what its predecessor prepared stays as it is."""
    return structs.replace(
        metadata,
        transaction_timeout_ms=transaction_timeout_ms,
        last_update_ms=now_ms,
        holder=holder,
    )


def prepared(
    metadata: TransactionMetadata,
    *,
    committed: bool,
    now_ms: int,
    spare_producer_id: int,
    token: bytes | None = None,
    winners: frozenset[int] = frozenset(),
    ahead_partitions: frozenset[TopicPartition] = frozenset(),
    cause: EpochCause = EpochCause.OWNER,
) -> TransactionMetadata:
    """Decide: one record with the verdict, its token and the outcome of every member.

    ``spare_producer_id`` becomes the next one if the epochs are exhausted, else it is ignored.
    ``ahead_partitions`` are enrolled in the next transaction.
    """
    is_open = metadata.state in OPEN
    return structs.replace(
        metadata,
        state=TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
        producer_epoch=metadata.producer_epoch + 1,
        last_producer_epoch=metadata.producer_epoch,
        next_producer_id=spare_producer_id if metadata.is_exhausted else NO_PRODUCER_ID,
        start_ms=metadata.start_ms if is_open else now_ms,
        last_update_ms=now_ms,
        commit_token=(token or None) if committed else metadata.commit_token,
        driver=None,
        members=with_outcomes(metadata.members, winners),
        ahead_partitions=ahead_partitions,
        epoch_cause=cause,
        # A version 1 client would not notice that another has ended its transaction.
        told=metadata.told if cause is EpochCause.OWNER else None,
    )


def aborted(
    metadata: TransactionMetadata, cause: EpochCause, now_ms: int, spare_producer_id: int
) -> TransactionMetadata:
    """Abort by someone other than the owner, who may lose the id."""
    is_fencing = cause in (EpochCause.PRODUCER, EpochCause.RUN, EpochCause.DRIVER)
    return prepared(
        metadata,
        committed=False,
        now_ms=now_ms,
        spare_producer_id=spare_producer_id,
        ahead_partitions=frozenset() if is_fencing else metadata.ahead_partitions,
        cause=cause,
    )


def emptied(
    metadata: TransactionMetadata, now_ms: int, spare_producer_id: int
) -> TransactionMetadata:
    """Abort what the members of the open run wrote; the run waits for a first member again."""
    return structs.replace(
        aborted(metadata, EpochCause.MEMBERS, now_ms, spare_producer_id),
        is_run_waiting=True,
        driver=metadata.driver,
    )


def completed(metadata: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Complete, as every marker is written: at rest, with the next producer id and epoch."""
    is_committed = metadata.state is TransactionState.PREPARE_COMMIT
    complete = structs.replace(
        metadata,
        state=TransactionState.COMPLETE_COMMIT if is_committed else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        last_update_ms=now_ms,
        members=released(metadata.members),
        prepared_txn=None,
    )
    if metadata.next_producer_id == NO_PRODUCER_ID:
        return complete
    return structs.replace(
        complete,
        producer_id=metadata.next_producer_id,
        producer_epoch=0,
        previous_producer_id=metadata.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        last_producer_epoch=PRODUCER_EPOCH_EXHAUSTED,
    )


def next_producer(metadata: TransactionMetadata) -> tuple[int, int]:
    """The producer id and epoch that the next transaction of a prepared one will have."""
    if metadata.producer_epoch == PRODUCER_EPOCH_MAX:
        return metadata.next_producer_id, 0
    return metadata.producer_id, metadata.producer_epoch


def told_anew(metadata: TransactionMetadata, before: tuple[int, int] | None) -> TransactionMetadata:
    """Tell a version 1 client the next transaction's producer id and epoch; see ``ToldPair``."""
    producer_id, producer_epoch = next_producer(metadata)
    told = ToldPair(producer_id=producer_id, producer_epoch=producer_epoch, before=before)
    return structs.replace(metadata, told=told)


def labelled(metadata: TransactionMetadata, label: ConnectionLabel | None) -> TransactionMetadata:
    """Note a request of the version 1 client, which ``check_told`` has accepted.

    The same object if there is nothing new.
    """
    told = metadata.told
    if label is None or told is None or told.label == label:
        return metadata
    return structs.replace(metadata, told=structs.replace(told, label=label, before=None))


def abort_noted(metadata: TransactionMetadata) -> TransactionMetadata:
    """Count an abort by the version 1 client of an id, if it has one; see ``ToldPair``."""
    told = metadata.told
    if told is None:
        return metadata
    return structs.replace(metadata, told=structs.replace(told, aborts=told.aborts + 1))


def is_run_open(metadata: TransactionMetadata, run: Run) -> bool:
    """Whether the open transaction is that of ``run``."""
    is_open = metadata.state is TransactionState.ONGOING and metadata.is_run_current
    return is_open and metadata.run == run


def has_run_committed(metadata: TransactionMetadata, run: Run) -> bool:
    """Whether the current or last transaction is that of ``run``, and decided to commit."""
    return metadata.state in COMMITTED and metadata.is_run_current and metadata.run == run


def is_token_committed(metadata: TransactionMetadata, token: bytes | None) -> bool:
    """Whether ``token`` names the last committed transaction; an empty one never does."""
    return is_same_commit(token, metadata.commit_token)


def txn_markers(metadata: TransactionMetadata) -> tuple[TxnMarker, ...]:
    """One marker for each producer with partitions in a decided transaction, by producer id."""
    producer_id, producer_epoch = metadata.producer_id, metadata.producer_epoch
    if metadata.prepared_txn is not None and metadata.prepared_txn.producer_id != producer_id:
        # A successor has another producer id, and this one ends with its last epoch.
        producer_id, producer_epoch = metadata.prepared_txn.producer_id, PRODUCER_EPOCH_MAX
    verdicts = [
        (
            producer_id,
            producer_epoch,
            metadata.state is TransactionState.PREPARE_COMMIT,
            metadata.partitions,
        )
    ]
    verdicts += [
        (
            member.producer_id,
            member.producer_epoch,
            member.status is MemberStatus.COMMITTED,
            member.partitions,
        )
        for _, member in sorted(metadata.members.items())
    ]
    return tuple(
        TxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            committed=committed,
            partitions=tuple(sorted(partitions)),
        )
        for producer_id, producer_epoch, committed, partitions in verdicts
        if partitions
    )
