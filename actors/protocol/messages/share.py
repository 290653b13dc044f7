"""Requests and replies of the group coordinator about share groups, which queues are. See ``base``.

Source: KIP-932 (share groups); KIP-1289 (acknowledgements in a transaction). Unlike Kafka's, our
group coordinator holds the state of share partitions, and members fetch the records they acquired
from the leaders.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.storage.model import NO_OFFSET, TopicPartition

JOIN_EPOCH: Final = 0
"""The member epoch of a heartbeat that joins."""


class AcknowledgeType(enum.IntEnum):
    """What became of acquired records; Kafka's numbers."""

    GAP = 0
    """There is no such record: a marker, an aborted record, or one that was removed."""
    ACCEPT = 1
    RELEASE = 2
    """To be delivered again."""
    REJECT = 3
    """Never to be delivered again."""


class ShareOrder(enum.IntEnum):
    """In which order a share group's records are delivered."""

    NONE = 0
    """About by offset, whatever their keys."""
    KEY = 1
    """Records of one key by offset, each once those before it are done with."""


class AcquiredRun(msgspec.Struct, frozen=True, kw_only=True):
    """Acquired records of one partition, from ``first_offset`` to ``last_offset`` (inclusive).

    ``delivery_count`` is 1 for what is acquired for the first time.
    """

    topic_partition: TopicPartition
    topic_id: str
    first_offset: int
    last_offset: int
    delivery_count: int


class AcknowledgedRun(msgspec.Struct, frozen=True, array_like=True):
    """Acknowledged offsets, from ``first_offset`` to ``last_offset`` (inclusive)."""

    first_offset: int
    last_offset: int
    type: AcknowledgeType


class PartitionAcknowledgements(msgspec.Struct, frozen=True, kw_only=True):
    """The acknowledgements of one partition. ``topic_id`` is that of the acquired records."""

    topic_partition: TopicPartition
    topic_id: str
    runs: tuple[AcknowledgedRun, ...]


class ShareGroupHeartbeatReply(Reply, frozen=True, kw_only=True):
    """The member's epoch; within ``session_timeout_ms`` the next heartbeat must follow.

    ``order`` is that of the group, in the reply to a join. A coordinator of an earlier version,
    which knows no order, says ``NONE``.
    """

    member_epoch: int = JOIN_EPOCH
    session_timeout_ms: int = 0
    order: ShareOrder = ShareOrder.NONE


class ShareGroupHeartbeatRequest(Request[ShareGroupHeartbeatReply], frozen=True, kw_only=True):
    """Join with ``member_epoch`` 0, live on with the member's own, or leave.

    A live member keeps the locks of what it acquired. To join anew, or to leave, releases them.
    ``FENCED_MEMBER_EPOCH``: another process has joined with this member id.
    ``UNKNOWN_MEMBER_ID``: the session has ended, and with it all locks; join anew.
    ``process`` is the member's own: if it ends on a broker's host, so does the session.
    ``order`` counts in a join: ``INCONSISTENT_GROUP_PROTOCOL`` if members have joined with another.
    """

    method = "share_group_heartbeat"
    reply_type = ShareGroupHeartbeatReply

    group_id: str
    member_id: str
    member_epoch: int = JOIN_EPOCH
    is_leaving: bool = False
    topics: tuple[str, ...]
    process: DriverProcess | None = None
    order: ShareOrder = ShareOrder.NONE


class ShareAcquireReply(Reply, frozen=True, kw_only=True):
    """What was acquired, durably; nothing if nothing was available within ``max_wait_ms``."""

    acquired: tuple[AcquiredRun, ...] = ()


class ShareAcquireRequest(Request[ShareAcquireReply], frozen=True, kw_only=True):
    """Acquire up to ``max_records`` available records of ``topics``, of those it joined for.

    Each call names them: the right to read them may have been taken away after the join.
    ``sequence`` rises by one with each acquisition of the member. A repeated call gets what the
    first one acquired and the member still holds; a lower one is ``INVALID_REQUEST``.
    """

    method = "share_acquire"
    reply_type = ShareAcquireReply

    group_id: str
    member_id: str
    member_epoch: int
    topics: tuple[str, ...]
    sequence: int
    max_records: int
    max_wait_ms: int = 0


class ShareAcknowledgeReply(Reply, frozen=True, kw_only=True):
    """Which runs were refused, as indexes into all runs of the request, in order.

    A refused run changed nothing: the member does not hold all of it. The others are durable.
    """

    refused: tuple[int, ...] = ()


class ShareAcknowledgeRequest(Request[ShareAcknowledgeReply], frozen=True, kw_only=True):
    """Say what became of acquired records. Safe to repeat with the same ``sequence``.

    ``sequence`` rises by one with each call of the member; a lower one is ``INVALID_REQUEST``.
    """

    method = "share_acknowledge"
    reply_type = ShareAcknowledgeReply

    group_id: str
    member_id: str
    member_epoch: int
    sequence: int
    acknowledgements: tuple[PartitionAcknowledgements, ...]


class TxnShareAcknowledgeRequest(Request[ShareAcknowledgeReply], frozen=True, kw_only=True):
    """Accept acquired records as part of a transaction: pending until its marker arrives.

    All or nothing: one refused run refuses all (``INVALID_RECORD_STATE``). A commit acknowledges
    the records, an abort makes them available again. ``ticket`` and ``base_sequence`` are as for
    ``txn_offset_commit``, whose count each partition in ``acknowledgements`` raises by one.
    """

    method = "txn_share_acknowledge"
    reply_type = ShareAcknowledgeReply

    transactional_id: str
    group_id: str
    member_id: str
    member_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    acknowledgements: tuple[PartitionAcknowledgements, ...]
    ticket: bytes | None = None


class SharePartitionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a share group.

    Every record below ``start_offset`` is acknowledged or archived; none from ``next_offset`` on
    was ever acquired. ``end_offset`` is the last stable offset, -1 of a topic that is gone. The
    counts are of offsets: markers and aborted records count until a member has skipped them.
    """

    topic_partition: TopicPartition
    start_offset: int
    next_offset: int
    end_offset: int = NO_OFFSET
    available_count: int = 0
    acquired_count: int = 0
    pending_count: int = 0


class DescribeShareGroupReply(Reply, frozen=True, kw_only=True):
    """The partitions, sorted, and how many members live."""

    partitions: tuple[SharePartitionDescription, ...] = ()
    member_count: int = 0


class DescribeShareGroupRequest(Request[DescribeShareGroupReply], frozen=True, kw_only=True):
    """Describe a share group; ``GROUP_ID_NOT_FOUND`` if there is none."""

    method = "describe_share_group"
    reply_type = DescribeShareGroupReply

    group_id: str
