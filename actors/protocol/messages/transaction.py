"""Requests and replies of the transaction coordinator: producers, runs, enrolment, ends, operators.

Source of the operators' requests: KIP-664 (finding and aborting hanging transactions), KIP-994
(filters of a listing). See ``base`` for the rules.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

RUN_TIMEOUT_MS: Final = 900_000
"""Of a run, unless another is given: the longest that a cluster allows by default."""

NO_RUN: Final = 0
"""Lower than the number of every run."""

NO_COORDINATOR_EPOCH: Final = -1
"""Lower than every coordinator's: it is not known."""

ANY_DURATION_MS = -1
"""Value of ``running_longer_than_ms`` that matches every transactional id."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a whole distributed write; the coordinator numbers runs in increasing order.

    ``id`` is random, chosen by the caller that begins the run: it tells a retry from another run.
    """

    number: int
    id: str


class DriverProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process whose death ends something: a driver's write, a worker's locks, a membership.

    ``machine`` names a boot of an operating system and a pid namespace: only processes in the same
    namespace can see it. ``start_ticks`` tells it from a later process with the same pid.
    """

    machine: str
    process_id: int
    start_ticks: int


class PreparedTxn(msgspec.Struct, frozen=True, kw_only=True):
    """What a prepared transaction was written with, and when it was prepared (coordinator's ms)."""

    producer_id: int
    producer_epoch: int
    prepared_ms: int


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A producer that sends heartbeats: its own random id, and how long it may be silent.

    Once its ``process`` has ended, nobody waits for its silence.
    """

    id: str
    timeout_ms: int
    process: DriverProcess | None = None


class ConnectionLabel(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Where a request of a version 1 client stands in the order of all of that client's requests.

    A connection gets its label before its first answer: ``coordinator_epoch`` is the one of the
    id's coordinator that the gateway knew then from a reply of that coordinator itself. Each start
    of any gateway gets a higher ``incarnation``. ``number`` counts a gateway's connections, and
    ``request`` those of one connection: 0 if its requests are never repeated and reach the
    coordinator in order. A later request has a higher label.
    """

    coordinator_epoch: int
    incarnation: int
    number: int
    request: int = 0


class BeginRunReply(Reply, frozen=True, kw_only=True):
    """The run's number. With ``CONCURRENT_TRANSACTIONS``: the newest run's, if there is one.

    ``commit_token`` is that of the last committed transaction, if the run has begun.
    """

    number: int = NO_RUN
    commit_token: bytes | None = None


class BeginRunRequest(Request[BeginRunReply], frozen=True, kw_only=True):
    """Begin a run of a distributed write: fence older runs and abort what is open.

    ``after`` is the newest run the caller knows of. It must be the newest, so that a late copy of
    this call begins nothing. Safe to repeat with the same ``run_id``. ``ALREADY_COMMITTED`` if the
    token is decided, ``OUTDATED_VERSION`` if it names a version lower than the last committed one;
    then nothing changes.
    """

    method = "begin_run"
    reply_type = BeginRunReply

    transactional_id: str
    run_id: str
    after: int = NO_RUN
    token: bytes = b""
    transaction_timeout_ms: int = 900_000
    driver: DriverProcess | None = None


class InitProducerIdReply(Reply, frozen=True, kw_only=True):
    """The producer id and epoch to use, and the token of the last committed transaction.

    ``ticket`` is a plain one, given without a transactional id. The prepared producer is that of
    the transaction that was found and kept. ``coordinator_epoch`` is the one of the coordinator
    that answers, also with an error, and -1 of an actor that does not lead.
    """

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    commit_token: bytes | None = None
    ticket: bytes = b""
    prepared_producer_id: int = NO_PRODUCER_ID
    prepared_producer_epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_COORDINATOR_EPOCH


class InitProducerIdRequest(Request[InitProducerIdReply], frozen=True, kw_only=True):
    """Get a producer id; with a transactional id, fence its older producers (KIP-98, KIP-360).

    ``transactional_id`` ``None`` asks for a fresh idempotent producer; with a ``producer_id`` and
    its plain ``ticket``, for a newer ticket of that id. With a transactional id ``producer_id`` and
    ``producer_epoch`` are both given (recover in place) or both -1. A prepared transaction is
    ``INVALID_TXN_STATE``, or taken over with ``keep_prepared`` (KIP-939). With ``refuse_if_alive``
    a living ``holder`` is not put out: ``TRANSACTIONAL_ID_IN_USE``.

    ``as_version_1``: the caller keeps the pair for all of its transactions, its *told* pair, and
    names it in each request. With a producer id and epoch it must have been so before, and an id
    that was so stays it only this way: else ``PRODUCER_FENCED``.
    """

    method = "init_producer_id"
    reply_type = InitProducerIdReply

    transactional_id: str | None
    transaction_timeout_ms: int = 60_000
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    ticket: bytes = b""
    keep_prepared: bool = False
    holder: Holder | None = None
    refuse_if_alive: bool = False
    as_version_1: bool = False


class ProducerHeartbeatRequest(Request[Reply], frozen=True, kw_only=True):
    """A transactional producer lives, or with ``is_leaving`` ends. Safe to lose and to repeat.

    ``PRODUCER_FENCED``: another producer has the id now. Nothing is durable.
    """

    method = "producer_heartbeat"
    reply_type = Reply

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_leaving: bool = False


class EnlistReply(Reply, frozen=True, kw_only=True):
    """A member's producer id and epoch; ``ALREADY_COMMITTED`` if the token is decided."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class EnlistRequest(Request[EnlistReply], frozen=True, kw_only=True):
    """Join the transaction of a distributed write as a new member.

    Not idempotent: a lost reply leaves a member that never wins, and is aborted.
    """

    method = "enlist"
    reply_type = EnlistReply

    transactional_id: str
    run: Run
    token: bytes


class LeaveRunRequest(Request[Reply], frozen=True, kw_only=True):
    """A member's attempt has failed: it can no longer win. Safe to repeat, and at any time.

    Once no member of the run is left, what they wrote is aborted, and the run waits for new
    members: a failed write must not block readers while its driver lives.
    """

    method = "leave_run"
    reply_type = Reply

    transactional_id: str
    run: Run
    producer_id: int
    producer_epoch: int


class RenewRunRequest(Request[Reply], frozen=True, kw_only=True):
    """A task of a distributed write is alive: its transaction must not time out. Safe to repeat.

    ``PRODUCER_FENCED``: the run is over.
    """

    method = "renew_run"
    reply_type = Reply

    transactional_id: str
    run: Run


class PartitionEnrolment(msgspec.Struct, frozen=True, kw_only=True):
    """One partition's ticket, or the error code if it was not, or is not, enrolled."""

    topic_partition: TopicPartition
    error: ErrorCode
    ticket: bytes = b""


class AddPartitionsToTxnReply(Reply, frozen=True, kw_only=True):
    """One enrolment per requested partition; durable before the reply.

    With a label, the pair is the one that the transaction's batches are written with, and
    ``aborts`` is as in ``VerifyTxnReply``. ``coordinator_epoch`` is as in ``InitProducerIdReply``.
    """

    enrolments: tuple[PartitionEnrolment, ...] = ()
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    aborts: int = 0


class AddPartitionsToTxnRequest(Request[AddPartitionsToTxnReply], frozen=True, kw_only=True):
    """Enrol partitions in the open transaction, beginning one if need be. Safe to repeat.

    With a ``label`` producer id and epoch are the told pair of a version 1 client, here and in
    ``add_offsets_to_txn`` and ``end_txn``. A label of another coordinator epoch, or lower than that
    of an earlier request, is ``NOT_COORDINATOR``: nothing has changed, and only a new connection of
    the client helps. Once the epochs of the told producer id are used up there is no ticket: see
    ``VerifyTxnRequest``.
    """

    method = "add_partitions_to_txn"
    reply_type = AddPartitionsToTxnReply

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    label: ConnectionLabel | None = None


class AddOffsetsToTxnRequest(Request[AddPartitionsToTxnReply], frozen=True, kw_only=True):
    """Enrol the offsets partition of a consumer group: ``add_partitions_to_txn`` by group id."""

    method = "add_offsets_to_txn"
    reply_type = AddPartitionsToTxnReply

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str
    label: ConnectionLabel | None = None


class VerifyTxnReply(Reply, frozen=True, kw_only=True):
    """The pair that the batches of the open transaction are written with, and one enrolment each.

    First those of ``partitions``, then that of the group. What is not enrolled in an open
    transaction is ``INVALID_TXN_STATE``; then the pair is not that of any transaction.
    ``aborts`` counts the transactions under the told pair that its client has aborted: what it gave
    up then may still arrive. ``coordinator_epoch`` is as in ``InitProducerIdReply``.
    """

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    enrolments: tuple[PartitionEnrolment, ...] = ()
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    aborts: int = 0


class VerifyTxnRequest(Request[VerifyTxnReply], frozen=True, kw_only=True):
    """What a version 1 client has enrolled, by its told pair; it enrols nothing. A gateway asks.

    ``group_id`` asks for the partition with the positions of that group as well.
    ``PRODUCER_FENCED``: the pair is not the id's told pair. Safe to repeat.

    A partition is ``INVALID_PRODUCER_ID_MAPPING`` once the epochs of the told producer id are used
    up: its client's sequences do not go on under another. It must abort, and recover with
    ``init_producer_id``. Positions have no such sequences, and still get a ticket.
    """

    method = "verify_txn"
    reply_type = VerifyTxnReply

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...] = ()
    group_id: str | None = None


class PrepareTxnRequest(Request[Reply], frozen=True, kw_only=True):
    """Keep the open transaction until its owner, or a successor, ends it. Safe to repeat.

    On ``NONE`` this is durable: neither the transaction timeout nor another ``init_producer_id``
    ends it. ``POLICY_VIOLATION`` unless the cluster allows that. Source: KIP-939.
    """

    method = "prepare_txn"
    reply_type = Reply

    transactional_id: str
    producer_id: int
    producer_epoch: int


class EndTxnReply(Reply, frozen=True, kw_only=True):
    """The producer id and epoch of the next transaction.

    ``visible``: every marker was written before the reply, so readers see the commit.
    ``enrolments`` are those of the request's ``next_partitions``: empty if they are not enrolled,
    and without tickets if the next transaction is not open yet or its topics must be looked up.
    With a label, the pair is the told pair. ``coordinator_epoch`` is as in ``InitProducerIdReply``.
    With INVALID_TXN_STATE it is the request's own pair if nothing was enrolled under that yet.
    """

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    visible: bool = False
    enrolments: tuple[PartitionEnrolment, ...] = ()
    coordinator_epoch: int = NO_COORDINATOR_EPOCH


class Winner(msgspec.Struct, frozen=True, kw_only=True):
    """A member that is committed, and the number of its acknowledged records."""

    producer_id: int
    record_count: int


class EndTxnRequest(Request[EndTxnReply], frozen=True, kw_only=True):
    """Commit or abort. On ``NONE`` the decision is durable; safe to repeat.

    With a ``run`` it ends the transaction of a distributed write: ``winners`` are committed, every
    other member is aborted. Producer id and epoch are then left out.

    A commit may enrol ``next_partitions`` in the next transaction. That one opens when the current
    one is complete, and must be ended like any other. If some partition cannot be enrolled none is,
    and the commit still succeeds. With a ``label`` (see ``AddPartitionsToTxnRequest``) it enrols
    nothing ahead.
    """

    method = "end_txn"
    reply_type = EndTxnReply

    transactional_id: str
    committed: bool
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    token: bytes | None = None
    run: Run | None = None
    winners: tuple[Winner, ...] = ()
    next_partitions: tuple[TopicPartition, ...] = ()
    label: ConnectionLabel | None = None


# --- operators -------------------------------------------------------------------------------


class TransactionMemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One writer of a distributed write.

    ``status`` is ENLISTED while its transaction is open, COMMITTED or ABORTED once decided.
    """

    producer_id: int
    producer_epoch: int
    status: str
    partitions: tuple[TopicPartition, ...] = ()


class TransactionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One transactional id as its coordinator knows it; ``state`` is Kafka's name for it.

    ``partitions`` includes those of ``members``. ``transaction_start_ms`` is -1 when none is
    open; ``commit_token`` is that of the last committed transaction. ``prepared`` is set from
    "Prepared" on until the transaction is complete. The told pair is that of a version 1 client,
    which knows no other.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    transaction_start_ms: int = NO_TIMESTAMP
    last_update_ms: int = NO_TIMESTAMP
    partitions: tuple[TopicPartition, ...] = ()
    commit_token: bytes | None = None
    member_count: int = 0
    members: tuple[TransactionMemberDescription, ...] = ()
    prepared: PreparedTxn | None = None
    told_producer_id: int = NO_PRODUCER_ID
    told_producer_epoch: int = NO_PRODUCER_EPOCH


class DescribeTransactionsReply(Reply, frozen=True, kw_only=True):
    """The requested transactional ids that exist on this shard."""

    transactions: tuple[TransactionDescription, ...] = ()


class DescribeTransactionsRequest(Request[DescribeTransactionsReply], frozen=True, kw_only=True):
    """Describe transactional ids; ``None`` means all of the shard that pass the filters.

    An id requested by name that is unknown makes the error ``TRANSACTIONAL_ID_NOT_FOUND``. An empty
    filter passes everything: ``states`` are Kafka's names, ``producer_ids`` also finds members,
    ``running_longer_than_ms`` (exclusive) passes only open or undecided transactions, by the
    coordinator's clock. ``app_id`` passes only ids whose commit token names a version of that
    application. Source: KIP-994.
    """

    method = "describe_transactions"
    reply_type = DescribeTransactionsReply

    transactional_ids: tuple[str, ...] | None = None
    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    running_longer_than_ms: int = ANY_DURATION_MS
    app_id: str = ""


class AbortTransactionReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the abort is decided, durably; ``visible``: every marker is written too."""

    visible: bool = False


class AbortTransactionRequest(Request[AbortTransactionReply], frozen=True, kw_only=True):
    """Abort the open transaction of (producer id, epoch), as its timeout would. Safe to repeat.

    ``producer_id`` and ``producer_epoch`` are those of ``TransactionDescription``: a transaction
    begun since then is left alone, and the error is ``INVALID_TXN_STATE``.
    """

    method = "abort_transaction"
    reply_type = AbortTransactionReply

    transactional_id: str
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class EndPreparedTxnRequest(Request[AbortTransactionReply], frozen=True, kw_only=True):
    """Commit or abort the prepared transaction of an id, for its owner. Safe to repeat.

    ``producer_id`` and ``producer_epoch`` are those of ``TransactionDescription``, as in
    ``AbortTransactionRequest``.
    """

    method = "end_prepared_txn"
    reply_type = AbortTransactionReply

    transactional_id: str
    committed: bool
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class DeleteTransactionalIdReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the id is durably forgotten, with its commit token."""


class DeleteTransactionalIdRequest(Request[DeleteTransactionalIdReply], frozen=True, kw_only=True):
    """Forget an idle transactional id, even one with a commit token.

    ``INVALID_TXN_STATE`` while a transaction is open, or decided but not complete.
    """

    method = "delete_transactional_id"
    reply_type = DeleteTransactionalIdReply

    transactional_id: str
