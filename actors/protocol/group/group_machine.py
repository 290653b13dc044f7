"""The groups of one shard: what every request does in every state.

*Durable*: committed positions and the last record of each group, changed only by ``apply`` and
``apply_marker`` in log order, live and on reload. *Volatile*: the ``Group`` objects used by
rebalances, which a failover loses; ``finish_load`` makes new ones from the durable part. A request
changes them and returns effects for the shell, in order. A group loads as stable, with all session
timers restarted, or as empty.

One file: requests, the log and removals all change the same groups.

===========  ==================  ====================  ====================  ==================
request      Empty               PreparingRebalance    CompletingRebalance   Stable
===========  ==================  ====================  ====================  ==================
join, new    rebalance           parked                rebalance             rebalance [1]_
join, known  UNKNOWN_MEMBER_ID   parked                same metadata: the    leader or other
                                                       generation again,     metadata: rebalance,
                                                       else rebalance        else the generation
sync         UNKNOWN_MEMBER_ID   REBALANCE_IN_         parked; the leader's  the assignment
                                 PROGRESS              call is logged
heartbeat    UNKNOWN_MEMBER_ID   REBALANCE_IN_         NONE                  NONE
                                 PROGRESS
commit       NONE, no            NONE                  REBALANCE_IN_         NONE
             generation                                PROGRESS [2]_
leave        UNKNOWN_MEMBER_ID   perhaps completes     rebalance             rebalance
delete       Dead, tombstones    NON_EMPTY_GROUP       NON_EMPTY_GROUP       NON_EMPTY_GROUP
===========  ==================  ====================  ====================  ==================

.. [1] A new member, even a static one, is first given a member id (MEMBER_ID_REQUIRED) and joins
   with it; a known ``group_instance_id`` takes its old place, in Stable without a rebalance.
.. [2] ``NONE`` in a transaction: the generation check alone fences a zombie (KIP-447).

Dead answers everything with COORDINATOR_NOT_AVAILABLE.
Source: Kafka's classic group protocol; KIP-98 and KIP-447 (pending positions), KIP-211 (expiry),
KIP-345, KIP-394.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.group.consumer_protocol import decode_subscription
from oncelog.actors.protocol.group.group_offsets import GroupOffsets
from oncelog.actors.protocol.group.group_records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    group_tombstone,
)
from oncelog.actors.protocol.group.group_state import Group, GroupState
from oncelog.actors.protocol.group.rebalance import (
    NO_CALL,
    Effect,
    GroupSettings,
    GroupTurn,
    ReplyTo,
    Timer,
    TimerKind,
    WriteGroup,
    WriteReason,
)
from oncelog.actors.protocol.messages.group import (
    DeleteOffsetsReply,
    DeleteOffsetsRequest,
    DescribeGroupsReply,
    DescribeGroupsRequest,
    HeartbeatReply,
    HeartbeatRequest,
    JoinGroupReply,
    JoinGroupRequest,
    LeaveGroupReply,
    LeaveGroupRequest,
    LeavingMember,
    OffsetCommitRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import (
    INT64_MAX,
    NO_PRODUCER_ID,
    PRODUCER_EPOCH_MAX,
    SEQUENCE_MAX,
    TRANSACTIONAL_ID_MAX_BYTES,
    has_utf8_bytes,
    is_valid_group_id,
)

MEMBER_TEXT_MAX_BYTES: Final = 1_024
"""Longest client id, group instance id, protocol type, protocol name or name of a machine."""

MEMBER_PROTOCOLS_MAX: Final = 16
MEMBER_BLOB_MAX_BYTES: Final = 262_144
"""Longest subscription or assignment of one member."""

_TIMEOUT_MAX_MS: Final = 2**31 - 1


class GroupTable:
    """Every group of one shard, by group id: what the log says about them, and their removal.

    The base of the group machine. Invariant: once loaded, every group in ``_records`` or with
    positions is in ``_groups`` too.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self.offsets = GroupOffsets()
        self._settings = settings
        self._records: dict[str, GroupValue] = {}
        self._groups: dict[str, Group] = {}

    # --- the log --------------------------------------------------------------------------

    def apply(self, record: LogRecord, *, record_offset: int, producer_id: int) -> None:
        """Apply one committed record; raises ``CorruptDataError`` if it cannot be read.

        ``producer_id`` is that of its batch, -1 outside a transaction.
        """
        key = decode_key(record.key) if record.key is not None else None
        if isinstance(key, OffsetKey):
            value = None if record.value is None else decode_offset_value(record.value)
            self.offsets.apply(key, value, record_offset=record_offset, producer_id=producer_id)
            if value is not None:
                self._groups.setdefault(key.group_id, Group(key.group_id))
        elif isinstance(key, GroupKey):
            if record.value is None:
                self._records.pop(key.group_id, None)
            else:
                logged = self._records[key.group_id] = decode_group_value(record.value)
                if (group := self._groups.get(key.group_id)) is not None:
                    group.applied(logged)
        if key is not None and record.value is None:
            self._forget_if_unused(key.group_id)

    def apply_marker(self, producer_id: int, *, committed: bool) -> None:
        """Apply one committed marker: the producer's pending positions are committed or dropped."""
        for group_id in self.offsets.apply_marker(producer_id, committed=committed):
            self._forget_if_unused(group_id)

    def finish_load(self, now_ms: int) -> list[Effect]:
        """Create the groups once the whole log is applied: all sessions start now."""
        effects: list[Effect] = []
        for group_id, value in self._records.items():
            group = Group.restored(group_id, value)
            self._groups[group_id] = group
            turn = self._turn(group, now_ms)
            for member in group.members.values():
                turn.restart_session(member)
            effects += turn.effects
        return effects

    def _forget_if_unused(self, group_id: str) -> None:
        """Drop a group without members, without records in the log, and without pending appends."""
        group = self._groups.get(group_id)
        if (
            group is not None
            and group.state in {GroupState.EMPTY, GroupState.DEAD}
            and not group.pending_member_ids
            and not group.unapplied
            and group_id not in self._records
            and not self.offsets.has_positions(group_id)
        ):
            del self._groups[group_id]

    def processes(self) -> list[tuple[str, str, DriverProcess]]:
        """Group id, member id and process of each member that leaves when its process ends.

        Not of a static member: its place is kept for its next process, until its session ends.
        """
        return [
            (group_id, member.member_id, member.process)
            for group_id, group in self._groups.items()
            for member in group.members.values()
            if member.process is not None and member.group_instance_id is None
        ]

    def has_group(self, group_id: str) -> bool:
        """Whether there is such a group, also one that is about to go."""
        return group_id in self._groups

    # --- removal and description ----------------------------------------------------------

    def begin_delete(self, group_id: str, now_ms: int) -> ErrorCode:
        """Close an empty group to all requests, so that its tombstones can be written."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        group.pending_member_ids.clear()
        group.move(GroupState.DEAD, now_ms)
        return ErrorCode.NONE

    def decide_delete_offsets(self, request: DeleteOffsetsRequest) -> Decision[DeleteOffsetsReply]:
        """Delete positions, but those of topics that members read."""
        group = self._groups.get(request.group_id)
        if group is None:
            return Decision(reply=request.failed(ErrorCode.GROUP_ID_NOT_FOUND))
        if group.state is GroupState.DEAD:
            return Decision(reply=request.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return self.offsets.decide_delete(request, _read_topics(group))

    def tombstones(self, group_id: str) -> tuple[LogRecord, ...]:
        """The tombstones that remove a group; the group's own comes last."""
        return (*self.offsets.tombstones(group_id), group_tombstone(group_id))

    def reopen(self, group_id: str, now_ms: int) -> None:
        """Serve the group again: the tombstones of its deletion could not be written."""
        group = self._groups.get(group_id)
        if group is not None and group.state is GroupState.DEAD:
            group.move(GroupState.EMPTY, now_ms)

    def expired(
        self, now_ms: int, busy: Collection[str]
    ) -> list[tuple[str, tuple[LogRecord, ...]]]:
        """Tombstones of positions unused for the retention time, and of emptied groups.

        Only groups without members expire, and none that an open transaction commits to. ``busy``
        names the groups with records still being appended: they are in use.
        """
        due: list[tuple[str, tuple[LogRecord, ...]]] = []
        for group_id, group in self._groups.items():
            if group.state is not GroupState.EMPTY or group.pending_member_ids:
                continue
            if group_id in busy or self.offsets.has_pending(group_id):
                continue
            records = self.offsets.expired(
                group_id,
                unused_since_ms=group.state_timestamp_ms,
                retention_ms=self._settings.offsets_retention_ms,
                now_ms=now_ms,
            )
            if len(records) == self.offsets.committed_count(group_id):
                records = (*records, group_tombstone(group_id))
            if records:
                due.append((group_id, records))
        return due

    def of_deleted_topics(
        self, gone: Collection[str], busy: Collection[str]
    ) -> list[tuple[str, tuple[LogRecord, ...]]]:
        """Tombstones of committed positions in topics whose ids are ``gone``, group by group.

        Leaves out ``busy`` groups, which have records still being appended, and groups that an open
        transaction commits to: a tombstone would remove newer positions as well.
        """
        found = (
            (group_id, self.offsets.of_deleted_topics(group_id, gone))
            for group_id in self._groups
            if group_id not in busy and not self.offsets.has_pending(group_id)
        )
        return [(group_id, records) for group_id, records in found if records]

    def describe(self, request: DescribeGroupsRequest) -> DescribeGroupsReply:
        """The requested groups that exist, or all of the shard without subscriptions, sorted."""
        asked = self._groups if request.group_ids is None else request.group_ids
        return DescribeGroupsReply(
            groups=tuple(
                self._groups[group_id].describe(has_subscriptions=request.group_ids is not None)
                for group_id in sorted(set(asked))
                if group_id in self._groups
            )
        )

    def _turn(self, group: Group, now_ms: int) -> GroupTurn:
        logged = self._records.get(group.group_id)
        return GroupTurn(group, self._settings, now_ms, logged=logged)


class GroupMachine(GroupTable):
    """Every group of one shard. No clock, no randomness: ``now_ms`` and fresh ids are passed in."""

    # --- join -----------------------------------------------------------------------------

    def join(
        self, request: JoinGroupRequest, call_id: int, now_ms: int, *, fresh_id: str
    ) -> list[Effect]:
        """Add a member; ``fresh_id`` is never reused and completes a new member's id."""
        refusal = self._refusal_of_join(request)
        if refusal is not None:
            return [ReplyTo(call_id, refusal)]
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                return [ReplyTo(call_id, request.failed(ErrorCode.UNKNOWN_MEMBER_ID))]
            group = self._groups[request.group_id] = Group(request.group_id)
        turn = self._turn(group, now_ms)
        error = self._join(turn, request, call_id, fresh_id)
        if error is not ErrorCode.NONE:
            turn.reply(call_id, JoinGroupReply(error=error, member_id=request.member_id))
        return turn.effects

    def _refusal_of_join(self, request: JoinGroupRequest) -> JoinGroupReply | None:
        """Reject a join that is invalid in any state of its group; None if it is valid."""
        settings = self._settings
        low, high = settings.min_session_timeout_ms, settings.max_session_timeout_ms
        texts = [request.client_id, request.client_host, request.protocol_type]
        texts.append(request.group_instance_id or "")
        if not is_valid_group_id(request.group_id):
            return request.failed(ErrorCode.INVALID_GROUP_ID)
        if not low <= request.session_timeout_ms <= high:
            return request.failed(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"session_timeout_ms={request.session_timeout_ms}: give {low} to {high}",
            )
        if not request.protocol_type or not request.protocols:
            return request.failed(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        texts += [protocol.name for protocol in request.protocols]
        if (
            not 0 < request.rebalance_timeout_ms <= _TIMEOUT_MAX_MS
            or request.group_instance_id == ""
            or len(request.protocols) > MEMBER_PROTOCOLS_MAX
            or any(not has_utf8_bytes(text, 0, MEMBER_TEXT_MAX_BYTES) for text in texts)
            or any(len(each.metadata) > MEMBER_BLOB_MAX_BYTES for each in request.protocols)
            or not _is_sound(request.process)
        ):
            return request.failed(ErrorCode.INVALID_REQUEST)
        return None

    def _join(
        self, turn: GroupTurn, request: JoinGroupRequest, call_id: int, fresh_id: str
    ) -> ErrorCode:
        group, member_id = turn.group, request.member_id
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        instance_id = request.group_instance_id
        own_id = group.static_members.get(instance_id or "", member_id)
        if not group.supports(request.protocol_type, request.protocols, member_id=own_id):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not member_id:
            return self._join_new(turn, request, call_id, fresh_id)
        if member_id in group.pending_member_ids:
            if group.pending_member_ids[member_id] != instance_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
            turn.drop_pending_member_id(member_id)
            if instance_id in group.static_members:
                turn.replace_static(request, member_id, call_id)
            else:
                turn.add_member(request, member_id, call_id)
            return ErrorCode.NONE
        if request.is_first and instance_id is not None and member_id not in group.members:
            # The id was handed out before a failover or too long ago, or the call is late. The
            # caller was never a member under this id, so it may get a new one.
            return self._join_new(turn, request, call_id, fresh_id)
        error = group.check_member(member_id, instance_id)
        if error is ErrorCode.NONE:
            turn.rejoin(group.members[member_id], request, call_id)
        return error

    def _join_new(
        self, turn: GroupTurn, request: JoinGroupRequest, call_id: int, fresh_id: str
    ) -> ErrorCode:
        group, instance_id = turn.group, request.group_instance_id
        count = len(group.members) + len(group.pending_member_ids)
        if instance_id not in group.static_members and count >= self._settings.members_max:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        # A lost reply to a new member would leave a ghost that delays each rebalance. So it gets a
        # member id first, which costs nothing if it is never used (KIP-394). Kafka exempts static
        # members; we do not, since a late duplicate of a first join must not replace a live member.
        member_id = f"{instance_id or request.client_id}-{fresh_id}"
        turn.add_pending_member_id(member_id, request)
        turn.reply(call_id, JoinGroupReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        return ErrorCode.NONE

    # --- sync, heartbeat, leave -----------------------------------------------------------

    def sync(self, request: SyncGroupRequest, call_id: int, now_ms: int) -> list[Effect]:
        """Hand out the assignment of a generation, once the leader's is durable."""
        group = self._groups.get(request.group_id)
        error = self._refusal_of_sync(group, request)
        if group is None or error is not ErrorCode.NONE:
            return [ReplyTo(call_id, request.failed(error))]
        turn, member = self._turn(group, now_ms), group.members[request.member_id]
        if group.state is GroupState.COMPLETING_REBALANCE:
            turn.park_sync(member, call_id, request.assignments)
        else:
            turn.record_synced(member)
            turn.restart_session(member)
            turn.reply(call_id, turn.assignment_of(member))
        return turn.effects

    def _refusal_of_sync(self, group: Group | None, request: SyncGroupRequest) -> ErrorCode:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_generation(
            request.member_id, request.group_instance_id, request.generation_id
        )
        if error is not ErrorCode.NONE:
            return error
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        is_other_type = request.protocol_type not in {None, group.protocol_type}
        if is_other_type or request.protocol_name not in {None, group.protocol_name}:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if any(len(each.assignment) > MEMBER_BLOB_MAX_BYTES for each in request.assignments):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def heartbeat(
        self, request: HeartbeatRequest, now_ms: int
    ) -> tuple[HeartbeatReply, list[Effect]]:
        """Note that a member is alive, and tell it if it must rejoin."""
        group = self._groups.get(request.group_id)
        if group is None:
            return HeartbeatReply(error=ErrorCode.UNKNOWN_MEMBER_ID), []
        error = group.check_generation(
            request.member_id, request.group_instance_id, request.generation_id
        )
        if error is ErrorCode.NONE and not _is_sound(request.process):
            error = ErrorCode.INVALID_REQUEST
        if error is not ErrorCode.NONE:
            return HeartbeatReply(error=error), []
        turn, member = self._turn(group, now_ms), group.members[request.member_id]
        turn.restart_session(member)
        member.process = request.process or member.process
        if group.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        return HeartbeatReply(error=error), turn.effects

    def leave(
        self, request: LeaveGroupRequest, now_ms: int
    ) -> tuple[LeaveGroupReply, list[Effect]]:
        """Remove members at once, then rebalance without them."""
        group = self._groups.get(request.group_id)
        if group is not None and group.state is GroupState.DEAD:
            return LeaveGroupReply(error=ErrorCode.COORDINATOR_NOT_AVAILABLE), []
        if group is None:
            unknown = (ErrorCode.UNKNOWN_MEMBER_ID,) * len(request.members)
            return LeaveGroupReply(results=unknown), []
        turn, count = self._turn(group, now_ms), len(group.members)
        results = tuple(self._leave(turn, leaving) for leaving in request.members)
        if len(group.members) < count:
            turn.rebalance()
        else:
            turn.maybe_complete_join()
            self._forget_if_unused(request.group_id)
        return LeaveGroupReply(results=results), turn.effects

    def _leave(self, turn: GroupTurn, leaving: LeavingMember) -> ErrorCode:
        group, member_id = turn.group, leaving.member_id
        if member_id in group.pending_member_ids:
            turn.drop_pending_member_id(member_id)
            return ErrorCode.NONE
        if not member_id:
            # An operator removes a static member without knowing its member id.
            member_id = group.static_members.get(leaving.group_instance_id or "", "")
        error = group.check_member(member_id, leaving.group_instance_id)
        if error is ErrorCode.NONE:
            turn.remove_member(group.members[member_id])
        return error

    # --- commit ---------------------------------------------------------------------------

    def admit_commit(
        self, request: OffsetCommitRequest | TxnOffsetCommitRequest, now_ms: int
    ) -> tuple[ErrorCode, list[Effect]]:
        """Whether the caller may commit offsets of the group now.

        In a transaction the group's generation fences a zombie that lost its partitions, since a
        producer is no longer tied to an input partition (KIP-447). So, unlike Kafka, a group with
        members accepts no commit without a member id, even in a transaction.
        """
        in_transaction = isinstance(request, TxnOffsetCommitRequest)
        if not is_valid_group_id(request.group_id):
            return ErrorCode.INVALID_GROUP_ID, []
        if isinstance(request, TxnOffsetCommitRequest) and not _names_producer(request):
            return ErrorCode.INVALID_REQUEST, []
        group = self._groups.get(request.group_id)
        if group is None:
            is_simple = request.generation_id < 0
            return (ErrorCode.NONE if is_simple else ErrorCode.ILLEGAL_GENERATION), []
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        if request.generation_id < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.NONE, []
        if request.generation_id < 0 and not request.member_id and not request.group_instance_id:
            return ErrorCode.UNKNOWN_MEMBER_ID, []
        error = group.check_generation(
            request.member_id, request.group_instance_id, request.generation_id
        )
        if error is not ErrorCode.NONE or in_transaction:
            return error, []
        if group.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS, []
        turn = self._turn(group, now_ms)
        turn.restart_session(group.members[request.member_id])
        return ErrorCode.NONE, turn.effects

    # --- events of the shell --------------------------------------------------------------

    def timer_fired(self, timer: Timer, now_ms: int) -> list[Effect]:
        """A timer fired. A stale one changes nothing."""
        group = self._groups.get(timer.group_id)
        if group is None:
            return []
        turn = self._turn(group, now_ms)
        if timer.kind is TimerKind.JOIN:
            turn.on_join_timeout()
        elif timer.kind is TimerKind.SYNC:
            turn.on_sync_timeout()
        elif timer.kind is TimerKind.PENDING_MEMBER:
            turn.drop_pending_member_id(timer.member_id)
            turn.maybe_complete_join()
            self._forget_if_unused(timer.group_id)
        else:
            member = group.members.get(timer.member_id)
            # A parked member waits for us and sends no heartbeats; only a new one can time out.
            if member is not None and (member.is_new or not member.is_parked):
                turn.remove_member(member)
                turn.rebalance()
        return turn.effects

    def written(
        self, write: WriteGroup, error: ErrorCode, now_ms: int, *, is_appended: bool
    ) -> list[Effect]:
        """A ``WriteGroup`` is committed and applied, or failed with ``error``.

        ``is_appended`` says whether the log took it: then it may be applied after an error, too.
        """
        group = self._groups.get(write.group_id)
        if group is None:
            if write.join_call == NO_CALL:
                return []
            unknown = ErrorCode.UNKNOWN_MEMBER_ID if error is ErrorCode.NONE else error
            return [ReplyTo(write.join_call, JoinGroupReply(error=unknown))]
        if not is_appended:
            group.refused(write.value)
        turn, reply = self._turn(group, now_ms), write.join_reply or JoinGroupReply()
        if write.reason is WriteReason.ASSIGNED:
            turn.assigned(write, error)
        elif write.reason is WriteReason.REPLACED:
            turn.replaced(write, reply, error)
        elif write.reason is WriteReason.RENAMED:
            turn.renamed(write, reply, error)
        self._forget_if_unused(write.group_id)
        return turn.effects


def _is_sound(process: DriverProcess | None) -> bool:
    return process is None or has_utf8_bytes(process.machine, 0, MEMBER_TEXT_MAX_BYTES)


def _names_producer(request: TxnOffsetCommitRequest) -> bool:
    """Whether the request names a producer that can have a transaction.

    Without one its batch would be a plain commit, visible at once.
    """
    return (
        NO_PRODUCER_ID < request.producer_id <= INT64_MAX
        and 0 <= request.producer_epoch <= PRODUCER_EPOCH_MAX
        and 0 <= request.base_sequence <= SEQUENCE_MAX
        and has_utf8_bytes(request.transactional_id, 1, TRANSACTIONAL_ID_MAX_BYTES)
    )


def _read_topics(group: Group) -> set[str] | None:
    """The topics that the members of a group read; ``None`` if they do not say."""
    found: set[str] = set()
    for member in group.members.values():
        for protocol in member.protocols:
            try:
                found.update(decode_subscription(protocol.metadata).topics)
            except CorruptDataError:
                return None
    return found
