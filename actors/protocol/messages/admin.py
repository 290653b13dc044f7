"""Operators' requests about transactional ids, and the replies. See ``base`` for the rules.

Source: KIP-664 (finding and aborting hanging transactions), KIP-994 (filters of a listing).
"""

from __future__ import annotations

import msgspec

from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.storage.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

ANY_DURATION_MS = -1
"""``running_longer_than_ms`` of a request for every transactional id."""


class TransactionMember(msgspec.Struct, frozen=True, kw_only=True):
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
    open; ``commit_token`` is that of the last committed transaction.
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
    members: tuple[TransactionMember, ...] = ()


class DescribeTransactionsReply(Reply, frozen=True, kw_only=True):
    """The requested transactional ids that exist on this shard."""

    transactions: tuple[TransactionDescription, ...] = ()


class DescribeTransactionsRequest(Request[DescribeTransactionsReply], frozen=True, kw_only=True):
    """Describe transactional ids; ``None`` means all of the shard that pass the filters.

    An id requested by name that is unknown makes the error
    ``TRANSACTIONAL_ID_NOT_FOUND``. An empty filter passes everything: ``states`` are Kafka's
    names, ``producer_ids`` also finds members, ``running_longer_than_ms`` (exclusive) passes
    only open or undecided transactions, by the coordinator's clock, and ``app_id`` only ids whose
    commit token names a version of that application. Source: KIP-994.
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


class DeleteTransactionalIdReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the id is durably forgotten, with its commit token."""


class DeleteTransactionalIdRequest(Request[DeleteTransactionalIdReply], frozen=True, kw_only=True):
    """Forget an idle transactional id, even one with a commit token.

    ``INVALID_TXN_STATE`` while a transaction is open, or decided but not complete.
    """

    method = "delete_transactional_id"
    reply_type = DeleteTransactionalIdReply

    transactional_id: str
