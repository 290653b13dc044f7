"""Requests and replies of the group coordinator (classic protocol, KIP-447). See ``base``.

Assignments and subscriptions travel as opaque bytes; the assignor runs in the group's leader.
"""

from __future__ import annotations

import msgspec

from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    NO_LEADER_EPOCH,
    NO_OFFSET,
    TopicPartition,
)


class GroupProtocol(msgspec.Struct, frozen=True, kw_only=True):
    """One assignment protocol a member supports, and its subscription for it."""

    name: str
    metadata: bytes


class JoinedMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member as the group's leader sees it when it assigns."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinGroupReply(Reply, frozen=True, kw_only=True):
    """The generation joined. ``members`` is filled only for the leader.

    With ``MEMBER_ID_REQUIRED`` only ``member_id`` is set: join again with it.
    """

    generation_id: int = -1
    protocol_name: str = ""
    leader_id: str = ""
    member_id: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class JoinGroupRequest(Request[JoinGroupReply], frozen=True, kw_only=True):
    """Join or rejoin a group; answered when the rebalance has collected its members.

    ``is_first`` until a join with this ``member_id`` is answered: if the id is no longer known, a
    static member gets another one, but one that was a member is fenced. A member that is not static
    leaves once its ``process`` is known to have ended.
    """

    method = "join_group"
    reply_type = JoinGroupReply

    group_id: str
    member_id: str = ""
    is_first: bool = False
    group_instance_id: str | None = None
    client_id: str = "oncelog"
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    protocol_type: str = "consumer"
    protocols: tuple[GroupProtocol, ...] = ()
    process: DriverProcess | None = None


class MemberAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader gives one member, as opaque bytes."""

    member_id: str
    assignment: bytes


class SyncGroupReply(Reply, frozen=True, kw_only=True):
    """The caller's own assignment, durable in the offsets log."""

    protocol_name: str = ""
    assignment: bytes = b""


class SyncGroupRequest(Request[SyncGroupReply], frozen=True, kw_only=True):
    """Submit (leader) or wait for (others) the assignment of a generation."""

    method = "sync_group"
    reply_type = SyncGroupReply

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[MemberAssignment, ...] = ()


class HeartbeatReply(Reply, frozen=True, kw_only=True):
    """``REBALANCE_IN_PROGRESS`` asks the member to join again."""


class HeartbeatRequest(Request[HeartbeatReply], frozen=True, kw_only=True):
    """Show the coordinator that a member is alive; restarts its session timer.

    ``process`` is as in ``JoinGroupRequest``: a coordinator that has moved learns it here.
    """

    method = "heartbeat"
    reply_type = HeartbeatReply

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    process: DriverProcess | None = None


class LeavingMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member that leaves, by member id, or by instance id with an empty member id."""

    member_id: str
    group_instance_id: str | None = None


class LeaveGroupReply(Reply, frozen=True, kw_only=True):
    """One code per leaving member, in the order of the request."""

    results: tuple[ErrorCode, ...] = ()


class LeaveGroupRequest(Request[LeaveGroupReply], frozen=True, kw_only=True):
    """Remove members at once instead of waiting for their sessions to expire."""

    method = "leave_group"
    reply_type = LeaveGroupReply

    group_id: str
    members: tuple[LeavingMember, ...]


class OffsetAndMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A committed position: the next offset to read.

    ``topic_id`` tells topics of one name apart; "" means the topic that exists at the commit.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    topic_id: str = ""


class PartitionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one partition of a request."""

    topic_partition: TopicPartition
    error: ErrorCode


class OffsetCommitReply(Reply, frozen=True, kw_only=True):
    """One result per partition; durable where it says ``NONE``."""

    results: tuple[PartitionResult, ...] = ()


class OffsetCommitRequest(Request[OffsetCommitReply], frozen=True, kw_only=True):
    """Commit positions of a group outside a transaction. Safe to repeat."""

    method = "offset_commit"
    reply_type = OffsetCommitReply

    group_id: str
    offsets: tuple[tuple[TopicPartition, OffsetAndMetadata], ...]
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class TxnOffsetCommitRequest(Request[OffsetCommitReply], frozen=True, kw_only=True):
    """Commit positions as part of a transaction: pending until its marker arrives (KIP-447).

    ``ticket`` enrols the group's offsets partition, as for ``produce``. ``base_sequence`` counts
    the positions that the transaction has already sent, in any group, and wraps as sequences do. So
    a delayed request cannot undo a later one of its transaction.
    """

    method = "txn_offset_commit"
    reply_type = OffsetCommitReply

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    base_sequence: int
    offsets: tuple[tuple[TopicPartition, OffsetAndMetadata], ...]
    ticket: bytes | None = None
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class FetchedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """The committed position of one partition; offset -1 if there is none."""

    topic_partition: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    offset: int = NO_OFFSET
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    topic_id: str = ""


class OffsetFetchReply(Reply, frozen=True, kw_only=True):
    """One entry per requested partition, or per committed one if all were requested."""

    offsets: tuple[FetchedOffset, ...] = ()


class OffsetFetchRequest(Request[OffsetFetchReply], frozen=True, kw_only=True):
    """Committed positions of a group; ``partitions`` ``None`` means all it has.

    With ``require_stable`` a partition with a pending commit of an open transaction is answered
    with ``UNSTABLE_OFFSET_COMMIT``: retry.
    """

    method = "offset_fetch"
    reply_type = OffsetFetchReply

    group_id: str
    partitions: tuple[TopicPartition, ...] | None = None
    require_stable: bool = True


class GroupMemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One member as ``describe_groups`` shows it."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    assignment: bytes
    subscription: bytes = b""
    """Under the protocol of the group."""


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One group; ``state`` is Kafka's name for it."""

    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    generation_id: int
    members: tuple[GroupMemberDescription, ...] = ()


class DescribeGroupsReply(Reply, frozen=True, kw_only=True):
    """The requested groups that exist on this shard."""

    groups: tuple[GroupDescription, ...] = ()


class DescribeGroupsRequest(Request[DescribeGroupsReply], frozen=True, kw_only=True):
    """Describe groups; ``None`` lists all of the shard."""

    method = "describe_groups"
    reply_type = DescribeGroupsReply

    group_ids: tuple[str, ...] | None = None


class DeleteGroupReply(Reply, frozen=True, kw_only=True):
    """``NON_EMPTY_GROUP`` while it has members, ``GROUP_ID_NOT_FOUND`` if it does not exist."""


class DeleteGroupRequest(Request[DeleteGroupReply], frozen=True, kw_only=True):
    """Delete an empty group and every offset it committed, durably."""

    method = "delete_group"
    reply_type = DeleteGroupReply

    group_id: str


class DeleteOffsetsReply(Reply, frozen=True, kw_only=True):
    """One result per partition; durable where it says ``NONE``."""

    results: tuple[PartitionResult, ...] = ()


class DeleteOffsetsRequest(Request[DeleteOffsetsReply], frozen=True, kw_only=True):
    """Delete committed positions of a group, durably. Safe to repeat.

    ``GROUP_SUBSCRIBED_TO_TOPIC`` for a topic that a member reads, ``GROUP_ID_NOT_FOUND`` for an
    unknown group. ``UNSTABLE_OFFSET_COMMIT`` while an open transaction commits the position: retry.
    Source: KIP-496.
    """

    method = "delete_offsets"
    reply_type = DeleteOffsetsReply

    group_id: str
    partitions: tuple[TopicPartition, ...]
