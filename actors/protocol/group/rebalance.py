"""How one group moves to its next generation: one turn of the group machine.

A turn works on one group at one moment and collects effects, which the shell carries out in order.
Timers are identified by value: setting one again replaces it, cancelling one that is not set does
nothing. Rules:

1. The parked calls of a removed or replaced member are answered; no call is left behind.
2. A generation begins when every member is parked in its join and no member id handed out to a
   dynamic one is unused, or when the longest rebalance timeout has passed. Dynamic members that
   did not rejoin are then dropped; static ones stay until their session expires.
3. An assignment counts once it is durable: no one sees ``Stable`` before.
4. The join of a static member counts once no record knows it by another member id, neither the
   last one nor those on their way: the next coordinator would fence it. Repeated joins, too.

One file: a turn, its settings and its effects.

Source: Kafka's classic group protocol; KIP-345 (static members), KIP-394 (pending member ids),
KIP-559 (protocol in replies), KIP-814 (a returning static leader does not assign).
"""

from __future__ import annotations

import enum

import msgspec
from msgspec import structs

from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.group.group_records import GroupValue, group_record
from oncelog.actors.protocol.group.group_state import Group, GroupMember, GroupState, InitialDelay
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.messages.group import (
    JoinGroupReply,
    JoinGroupRequest,
    MemberAssignment,
    SyncGroupReply,
)
from oncelog.storage.errors import ErrorCode

NO_CALL = -1


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of groups; durations in milliseconds.

    ``initial_rebalance_delay_ms`` is how long the first rebalance of an empty group waits for
    more members; ``new_member_join_timeout_ms`` how long a new member may stay parked in its join.
    ``share_session_timeout_ms`` is how long a silent member of a share group keeps its locks.
    """

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 0
    new_member_join_timeout_ms: int = 300_000
    members_max: int = 1_000
    share_session_timeout_ms: int = 10_000
    offsets_retention_ms: int = 604_800_000


class TimerKind(enum.Enum):
    """What a timer limits."""

    JOIN = "join"
    """The members' time to rejoin, or the initial delay of an empty group."""
    SYNC = "sync"
    """The members' time to fetch their assignment."""
    SESSION = "session"
    """A member's time between heartbeats."""
    PENDING_MEMBER = "pending_member"
    """The time within which a handed-out member id must be used."""


class Timer(msgspec.Struct, frozen=True):
    """The name of a timer; ``member_id`` is empty for timers of the whole group."""

    kind: TimerKind
    group_id: str
    member_id: str = ""


class ReplyTo(msgspec.Struct, frozen=True):
    """Answer the parked call ``call_id``; every call is answered exactly once."""

    call_id: int
    reply: Reply


class SetTimer(msgspec.Struct, frozen=True):
    """Let ``timer`` fire once, ``delay_ms`` from now."""

    timer: Timer
    delay_ms: int


class CancelTimer(msgspec.Struct, frozen=True):
    """Make sure ``timer`` does not fire."""

    timer: Timer


class WriteReason(enum.Enum):
    """Why a group is written, which decides what follows once it is committed."""

    ASSIGNED = "assigned"
    """The leader assigned: the generation becomes stable and parked syncs are answered."""
    REPLACED = "replaced"
    """A static member came back under a new member id: its join is answered."""
    RENAMED = "renamed"
    """The same during a rebalance: its join counts."""
    EMPTIED = "emptied"
    """The last member left: nothing waits for the write."""


class WriteGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Append ``record``; once it is committed, or failed, call the machine's ``written``.

    ``join_call`` and ``join_reply`` are the parked call and its answer for ``REPLACED``; for
    ``RENAMED`` the answer has only the member id.
    """

    group_id: str
    reason: WriteReason
    value: GroupValue
    join_call: int = NO_CALL
    join_reply: JoinGroupReply | None = None

    @property
    def record(self) -> LogRecord:
        """The record to append."""
        return group_record(self.group_id, self.value)


Effect = ReplyTo | SetTimer | CancelTimer | WriteGroup


class GroupTurn:
    """One turn: steps on ``group`` at ``now_ms``; ``effects`` is what the shell must do.

    ``logged`` is the last record of the group that is applied.
    """

    def __init__(
        self, group: Group, settings: GroupSettings, now_ms: int, *, logged: GroupValue | None
    ) -> None:
        self.group = group
        self._logged = logged
        self.effects: list[Effect] = []
        self._settings = settings
        self._now_ms = now_ms

    # --- members come ---------------------------------------------------------------------

    def add_member(self, request: JoinGroupRequest, member_id: str, call_id: int) -> None:
        """Add a new member and rebalance.

        A static member may have left, or have been removed, since the last record.
        """
        group = self.group
        if not group.members:
            group.protocol_type = request.protocol_type
        member = GroupMember(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            is_new=True,
            process=request.process,
        )
        group.add(member)
        if group.initial_delay is not None:
            group.initial_delay.has_new_member = True
        self._set_session(member, self._settings.new_member_join_timeout_ms)
        self._join_once_durable(member, call_id)

    def rejoin(self, member: GroupMember, request: JoinGroupRequest, call_id: int) -> None:
        """Let a known member join: the generation goes on, if it can, or a rebalance begins."""
        member.process = request.process or member.process
        if member.protocols == request.protocols and self._keeps_generation(member):
            self._join_unchanged(member, call_id)
        else:
            self._update(member, request)
            self._join_once_durable(member, call_id)

    def _keeps_generation(self, member: GroupMember) -> bool:
        """Whether the generation goes on when a member joins again as it was.

        Not for the leader of a stable group: it rejoins in order to assign anew.
        """
        group = self.group
        return group.state is GroupState.COMPLETING_REBALANCE or (
            group.state is GroupState.STABLE and group.leader_id != member.member_id
        )

    def _join_unchanged(self, member: GroupMember, call_id: int) -> None:
        self.restart_session(member)
        if self._has_durable_id(member):
            self.reply(call_id, self.joined(member))
        elif self.group.state is GroupState.STABLE:
            self._join_stable_once_durable(member, call_id)
        else:
            self._join_once_durable(member, call_id)

    def replace_static(self, request: JoinGroupRequest, new_member_id: str, call_id: int) -> None:
        """Let a restarted static member take its old place under a new member id.

        Its former incarnation is fenced at once. A stable group whose protocol stays the same does
        not rebalance: the new member id is logged, then the join is answered.
        """
        group = self.group
        old_member_id = group.static_members[request.group_instance_id or ""]
        member = group.members[old_member_id]
        self._answer_parked(member, ErrorCode.FENCED_INSTANCE_ID)
        self._cancel(TimerKind.SESSION, old_member_id)
        group.rename(old_member_id, new_member_id)
        member.is_new = False
        self._update(member, request)
        self._set_session(member)
        if group.state is GroupState.STABLE and group.voted_protocol() == group.protocol_name:
            self._join_stable_once_durable(member, call_id)
        else:
            self._join_once_durable(member, call_id)

    def _join_stable_once_durable(self, member: GroupMember, call_id: int) -> None:
        reply = self.joined(member, skip_assignment=True)
        self._write(WriteReason.REPLACED, self.group.value(), call_id, reply)

    def _join_once_durable(self, member: GroupMember, call_id: int) -> None:
        """Rebalance; the join counts at once, or after a record with the member's present id."""
        if self._has_durable_id(member):
            self._park_join(member, call_id)
            self.rebalance()
            return
        self.rebalance()
        known = [value for value in self._records if not _agrees(value, member)][-1]
        # A generation may have begun since.
        generation_id = max(known.generation_id, self.group.generation_id)
        present = structs.replace(self.group.with_present_ids(known), generation_id=generation_id)
        reply = JoinGroupReply(member_id=member.member_id)
        self._write(WriteReason.RENAMED, present, call_id, reply)

    @property
    def _records(self) -> list[GroupValue]:
        """The records that may be the last one a new coordinator finds; newest last."""
        return [value for value in (self._logged, *self.group.unapplied) if value is not None]

    def _has_durable_id(self, member: GroupMember) -> bool:
        """Whether no record knows a static member by another member id; see rule 4."""
        return all(_agrees(value, member) for value in self._records)

    def _write(
        self,
        reason: WriteReason,
        value: GroupValue,
        join_call: int = NO_CALL,
        join_reply: JoinGroupReply | None = None,
    ) -> None:
        self.group.unapplied.append(value)
        self.effects.append(
            WriteGroup(
                group_id=self.group.group_id,
                reason=reason,
                value=value,
                join_call=join_call,
                join_reply=join_reply,
            )
        )

    def joined(self, member: GroupMember, *, skip_assignment: bool = False) -> JoinGroupReply:
        """The answer to a member's join: the current generation, and the members if it leads."""
        group = self.group
        is_leader = group.leader_id == member.member_id
        return JoinGroupReply(
            generation_id=group.generation_id,
            protocol_name=group.protocol_name or "",
            leader_id=group.leader_id or "",
            member_id=member.member_id,
            skip_assignment=skip_assignment and is_leader,
            members=group.joined_members() if is_leader else (),
        )

    def reply(self, call_id: int, reply: Reply) -> None:
        """Answer a parked call."""
        self.effects.append(ReplyTo(call_id, reply))

    def add_pending_member_id(self, member_id: str, request: JoinGroupRequest) -> None:
        """Remember a handed-out member id until it is used or times out.

        A static member's earlier pending id is dropped: it may be from an earlier process.
        """
        pending, instance_id = self.group.pending_member_ids, request.group_instance_id
        for former_id in [each for each, owner in pending.items() if owner is not None]:
            if pending[former_id] == instance_id:
                self.drop_pending_member_id(former_id)
        pending[member_id] = instance_id
        self._set(TimerKind.PENDING_MEMBER, request.session_timeout_ms, member_id)

    def drop_pending_member_id(self, member_id: str) -> None:
        """Forget a handed-out member id, because it was used, returned or too old."""
        self.group.pending_member_ids.pop(member_id, None)
        self._cancel(TimerKind.PENDING_MEMBER, member_id)

    # --- members go -----------------------------------------------------------------------

    def remove_member(self, member: GroupMember) -> None:
        """Remove a member; the caller rebalances after its last removal."""
        self._answer_parked(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._cancel(TimerKind.SESSION, member.member_id)
        self.group.remove(member.member_id)

    def restart_session(self, member: GroupMember) -> None:
        """A sign of life: restart the member's session timeout."""
        self._set_session(member)

    # --- rebalance ------------------------------------------------------------------------

    def rebalance(self) -> None:
        """Begin a rebalance, or complete the current one if it no longer waits for anyone."""
        if self.group.state is GroupState.PREPARING_REBALANCE:
            self.maybe_complete_join()
        else:
            self._prepare()

    def maybe_complete_join(self) -> None:
        """Stop collecting joins once no member is missing."""
        group = self.group
        is_collecting = group.state is GroupState.PREPARING_REBALANCE
        if is_collecting and group.initial_delay is None and group.have_all_joined:
            self._complete_join()

    def _prepare(self) -> None:
        group, delay_ms = self.group, self._settings.initial_rebalance_delay_ms
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._answer_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        self._cancel(TimerKind.SYNC)
        was_empty = group.state is GroupState.EMPTY
        group.is_assigning = False
        group.move(GroupState.PREPARING_REBALANCE, self._now_ms)
        if was_empty and delay_ms > 0:
            remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.initial_delay = InitialDelay(remaining_ms)
            self._set(TimerKind.JOIN, delay_ms)
        elif group.have_all_joined:
            self._complete_join()
        else:
            self._set(TimerKind.JOIN, group.rebalance_timeout_ms)

    def on_join_timeout(self) -> None:
        """The join timer fired: extend the initial delay, or begin the generation."""
        group = self.group
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        initial, delay_ms = group.initial_delay, self._settings.initial_rebalance_delay_ms
        if initial is not None and initial.has_new_member and initial.remaining_ms > 0:
            next_delay_ms = min(delay_ms, initial.remaining_ms)
            group.initial_delay = InitialDelay(initial.remaining_ms - next_delay_ms)
            self._set(TimerKind.JOIN, next_delay_ms)
        else:
            self._complete_join()

    def _complete_join(self) -> None:
        group = self.group
        group.initial_delay = None
        self._cancel(TimerKind.JOIN)
        if group.members and not group.elect_joined_leader():
            # No one rejoined; perhaps the whole group paused. Session timeouts decide.
            self._set(TimerKind.JOIN, group.rebalance_timeout_ms)
            return
        for member in list(group.members.values()):
            if member.join_call is None and member.group_instance_id is None:
                self.remove_member(member)
        group.generation_id += 1
        if group.members:
            self._begin_generation()
        else:
            group.protocol_name = None
            group.move(GroupState.EMPTY, self._now_ms)
            self._write(WriteReason.EMPTIED, group.value())

    def _begin_generation(self) -> None:
        group = self.group
        group.protocol_name = group.voted_protocol()
        group.move(GroupState.COMPLETING_REBALANCE, self._now_ms)
        self._set(TimerKind.SYNC, group.rebalance_timeout_ms)
        for member in group.members.values():
            member.assignment = b""
            # An absent static member keeps its place; only its session timer removes it.
            member.has_synced = member.join_call is None
            if member.join_call is not None:
                self.reply(member.join_call, self.joined(member))
                member.join_call = None
                member.is_new = False
                self._set_session(member)

    # --- assignment -----------------------------------------------------------------------

    def park_sync(
        self, member: GroupMember, call_id: int, assignments: tuple[MemberAssignment, ...]
    ) -> None:
        """Park a sync until the assignment is durable; the leader's call submits it."""
        group = self.group
        if member.sync_call is not None:
            self.reply(member.sync_call, SyncGroupReply(error=ErrorCode.REQUEST_TIMED_OUT))
        member.sync_call = call_id
        self.record_synced(member)
        if member.member_id == group.leader_id and not group.is_assigning:
            group.is_assigning = True
            by_member = {entry.member_id: entry.assignment for entry in assignments}
            self._write(WriteReason.ASSIGNED, group.value(by_member))

    def record_synced(self, member: GroupMember) -> None:
        """The member asked for its assignment; once all have, the sync timer is cancelled."""
        member.has_synced = True
        if self.group.have_all_synced:
            self._cancel(TimerKind.SYNC)

    def on_sync_timeout(self) -> None:
        """The sync timer fired: members that never asked for their assignment are removed."""
        group = self.group
        late = [member for member in group.members.values() if not member.has_synced]
        for member in late:
            self.remove_member(member)
        if late:
            self.rebalance()

    def assigned(self, write: WriteGroup, error: ErrorCode) -> None:
        """The leader's assignment is durable, or could not be written and all must rejoin.

        Nothing happens when the group has moved on meanwhile.
        """
        group = self.group
        is_current = write.value.generation_id == group.generation_id
        if group.state is not GroupState.COMPLETING_REBALANCE or not is_current:
            return
        if error is not ErrorCode.NONE:
            self._answer_syncs(error)
            self.rebalance()
            return
        for entry in write.value.members:
            group.members[entry.member_id].assignment = entry.assignment
        group.is_assigning = False
        group.move(GroupState.STABLE, self._now_ms)
        self._answer_syncs(ErrorCode.NONE)

    def replaced(self, write: WriteGroup, reply: JoinGroupReply, error: ErrorCode) -> None:
        """A static member's new id is durable, or could not be written and all must rejoin."""
        member = self._joining(write, reply, error)
        if member is not None:
            self.reply(write.join_call, reply)
        elif error is not ErrorCode.NONE and self.group.state is GroupState.STABLE:
            self.rebalance()

    def renamed(self, write: WriteGroup, reply: JoinGroupReply, error: ErrorCode) -> None:
        """A static member's new id is durable, so its join counts."""
        member = self._joining(write, reply, error)
        if member is None:
            return
        if self._keeps_generation(member):
            self._join_unchanged(member, write.join_call)
        else:
            self._park_join(member, write.join_call)
            self.rebalance()

    def _joining(
        self, write: WriteGroup, reply: JoinGroupReply, error: ErrorCode
    ) -> GroupMember | None:
        """Whose join waited for this; None, and it is refused, if it failed or is in vain.

        Meanwhile another incarnation may have taken its place, which fences this one. Or its
        session ended, and it may join anew.
        """
        if error is ErrorCode.NONE:
            instance_ids = {each.member_id: each.group_instance_id for each in write.value.members}
            instance_id = instance_ids.get(reply.member_id)
            error = self.group.check_member(reply.member_id, instance_id)
        if error is ErrorCode.NONE:
            return self.group.members[reply.member_id]
        self.reply(write.join_call, JoinGroupReply(error=error))
        return None

    def assignment_of(self, member: GroupMember) -> SyncGroupReply:
        """The answer to a member's sync in a stable group."""
        return SyncGroupReply(
            protocol_name=self.group.protocol_name or "", assignment=member.assignment
        )

    # --- small steps ----------------------------------------------------------------------

    def _answer_syncs(self, error: ErrorCode) -> None:
        """Answer every parked sync with the assignment or an error."""
        for member in self.group.members.values():
            if member.sync_call is not None:
                is_assigned = error is ErrorCode.NONE
                self.reply(
                    member.sync_call,
                    self.assignment_of(member) if is_assigned else SyncGroupReply(error=error),
                )
                member.sync_call = None
                self._set_session(member)

    def _answer_parked(self, member: GroupMember, error: ErrorCode) -> None:
        if member.join_call is not None:
            self.reply(member.join_call, JoinGroupReply(error=error, member_id=member.member_id))
            member.join_call = None
        if member.sync_call is not None:
            self.reply(member.sync_call, SyncGroupReply(error=error))
            member.sync_call = None

    def _park_join(self, member: GroupMember, call_id: int) -> None:
        """Park a join. A call it supersedes was abandoned, or overtaken: it may retry."""
        if member.join_call is not None:
            self.reply(
                member.join_call,
                JoinGroupReply(error=ErrorCode.REQUEST_TIMED_OUT, member_id=member.member_id),
            )
        member.join_call = call_id

    def _update(self, member: GroupMember, request: JoinGroupRequest) -> None:
        member.client_id = request.client_id
        member.client_host = request.client_host
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms

    def _set_session(self, member: GroupMember, delay_ms: int | None = None) -> None:
        self._set(
            TimerKind.SESSION,
            member.session_timeout_ms if delay_ms is None else delay_ms,
            member.member_id,
        )

    def _set(self, kind: TimerKind, delay_ms: int, member_id: str = "") -> None:
        self.effects.append(SetTimer(Timer(kind, self.group.group_id, member_id), delay_ms))

    def _cancel(self, kind: TimerKind, member_id: str = "") -> None:
        self.effects.append(CancelTimer(Timer(kind, self.group.group_id, member_id)))


def _agrees(value: GroupValue, member: GroupMember) -> bool:
    """Whether a record knows a static member by its present member id, or not at all."""
    return member.group_instance_id is None or all(
        entry.member_id == member.member_id
        for entry in value.members
        if entry.group_instance_id == member.group_instance_id
    )
