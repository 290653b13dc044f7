"""A consumer group at its coordinator: states, members, votes, and who may call.

======================  ====================================================================
state                   meaning
======================  ====================================================================
Empty                   no members; may hold offsets
PreparingRebalance      collecting the joins of the next generation
CompletingRebalance     generation fixed, waiting for the leader's assignment
Stable                  assignment durable and handed out
Dead                    being deleted; requests are answered ``COORDINATOR_NOT_AVAILABLE``
======================  ====================================================================

Source: Kafka's classic group protocol; KIP-345 for static members, KIP-394 for pending member ids.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from msgspec import structs

from oncelog.actors.protocol.group.group_records import GroupMemberValue, GroupValue
from oncelog.actors.protocol.invariants import invariant
from oncelog.actors.protocol.messages.group import (
    GroupDescription,
    GroupMemberDescription,
    GroupProtocol,
    JoinedMember,
)
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_TIMESTAMP


class GroupState(enum.Enum):
    """The states of a group, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


LEGAL_SOURCES: Final[Mapping[GroupState, frozenset[GroupState]]] = MappingProxyType(
    {
        # From Dead only if the tombstones of a deletion could not be written.
        GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
        GroupState.PREPARING_REBALANCE: frozenset(
            {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
        ),
        GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
        GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
        GroupState.DEAD: frozenset({GroupState.EMPTY}),
    }
)
"""Each state with the states it may be entered from."""


@dataclass(slots=True, kw_only=True)
class GroupMember:
    """One member. ``join_call`` and ``sync_call`` are its parked calls, None when it has none.

    ``is_new`` holds until its first join is answered: such a member sends no heartbeats yet.
    ``has_synced`` says whether it asked for its assignment in this generation. ``process`` is where
    it runs, once it has said so; it is not durable.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes = b""
    join_call: int | None = None
    sync_call: int | None = None
    is_new: bool = False
    has_synced: bool = False
    process: DriverProcess | None = None

    @property
    def is_parked(self) -> bool:
        """Whether it waits for our answer, and so sends no heartbeats."""
        return self.join_call is not None or self.sync_call is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        """Its subscription under a protocol; empty if it does not know the protocol."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""


@dataclass(slots=True)
class InitialDelay:
    """The delay of an empty group's first rebalance; extended while new members arrive."""

    remaining_ms: int
    has_new_member: bool = False


@dataclass(slots=True)
class Group:
    """One group. ``members`` are in the order in which they joined.

    Invariant: ``leader_id`` is a member, or None when there are none; ``static_members`` maps
    each ``group_instance_id`` to the one member that has it; per ``group_instance_id`` at most
    one member id is pending, the last one handed out.
    """

    group_id: str
    state: GroupState = GroupState.EMPTY
    state_timestamp_ms: int = NO_TIMESTAMP
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, GroupMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending_member_ids: dict[str, str | None] = field(default_factory=dict)
    """Member ids handed out and not yet used, with their ``group_instance_id``."""
    initial_delay: InitialDelay | None = None
    is_assigning: bool = False
    """Whether the leader's assignment of this generation is being logged."""
    unapplied: list[GroupValue] = field(default_factory=list)
    """Records given to the log and not applied yet, in order; they may be lost."""

    @classmethod
    def restored(cls, group_id: str, value: GroupValue) -> Group:
        """The group as its last record says: stable with members, else empty."""
        group = cls(
            group_id=group_id,
            state=GroupState.STABLE if value.members else GroupState.EMPTY,
            state_timestamp_ms=value.state_timestamp_ms,
            generation_id=value.generation_id,
            protocol_type=value.protocol_type or None,
            protocol_name=value.protocol_name,
        )
        for entry in value.members:
            group.add(
                GroupMember(
                    member_id=entry.member_id,
                    group_instance_id=entry.group_instance_id,
                    client_id=entry.client_id,
                    session_timeout_ms=entry.session_timeout_ms,
                    rebalance_timeout_ms=entry.rebalance_timeout_ms,
                    protocols=(
                        GroupProtocol(name=value.protocol_name or "", metadata=entry.subscription),
                    ),
                    assignment=entry.assignment,
                    has_synced=True,
                )
            )
        if value.leader_id in group.members:
            group.leader_id = value.leader_id
        return group

    def move(self, state: GroupState, now_ms: int) -> None:
        """Enter ``state``, which must be reachable from the current one."""
        invariant(
            self.state in LEGAL_SOURCES[state],
            "I-19",
            f"group {self.group_id}: {self.state.value} to {state.value}",
        )
        self.state = state
        self.state_timestamp_ms = now_ms

    # --- members --------------------------------------------------------------------------

    def add(self, member: GroupMember) -> None:
        """Add a member; the first one becomes the leader."""
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member_id: str) -> None:
        """Remove a member; if it led, the first of the others takes over."""
        member = self.members.pop(member_id)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def rename(self, member_id: str, new_member_id: str) -> GroupMember:
        """Give a static member a new member id; its place, role and assignment stay."""
        member = self.members[member_id]
        self.members = {
            new_member_id if known == member_id else known: each
            for known, each in self.members.items()
        }
        member.member_id = new_member_id
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = new_member_id
        if self.leader_id == member_id:
            self.leader_id = new_member_id
        return member

    def elect_joined_leader(self) -> bool:
        """Make sure a member that rejoined leads; false if nobody did."""
        if self.leader_id is not None and self.members[self.leader_id].join_call is not None:
            return True
        for member in self.members.values():
            if member.join_call is not None:
                self.leader_id = member.member_id
                return True
        return False

    @property
    def have_all_joined(self) -> bool:
        """Whether every member is parked in its join and no handed-out member id is unused.

        It does not wait for ids handed out to static members: a late duplicate may have asked.
        """
        return None not in self.pending_member_ids.values() and all(
            member.join_call is not None for member in self.members.values()
        )

    @property
    def have_all_synced(self) -> bool:
        """Whether every member asked for its assignment in this generation."""
        return all(member.has_synced for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest any member may take to rejoin; 0 without members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # --- records --------------------------------------------------------------------------

    def applied(self, value: GroupValue) -> None:
        """``value`` is applied: records given to the log before it are applied too, or lost."""
        if value in self.unapplied:
            del self.unapplied[: self.unapplied.index(value) + 1]

    def refused(self, value: GroupValue) -> None:
        """``value`` was not appended to the log."""
        if value in self.unapplied:
            self.unapplied.remove(value)

    # --- protocols ------------------------------------------------------------------------

    def supports(
        self, protocol_type: str, protocols: tuple[GroupProtocol, ...], *, member_id: str
    ) -> bool:
        """Whether a member with these protocols shares one with all others.

        ``member_id`` names the member itself, whose former protocols do not count.
        """
        others = [member for member in self.members.values() if member.member_id != member_id]
        if not others:
            return True
        names = {protocol.name for protocol in protocols}
        for member in others:
            names &= {protocol.name for protocol in member.protocols}
        return protocol_type == self.protocol_type and bool(names)

    def voted_protocol(self) -> str:
        """The most preferred protocol among those all members know; ties go to the first member's.

        Each member votes for the first of its protocols that all support.
        """
        first, *others = self.members.values()
        candidates = [protocol.name for protocol in first.protocols]
        for member in others:
            known = {protocol.name for protocol in member.protocols}
            candidates = [name for name in candidates if name in known]
        invariant(bool(candidates), "I-25", f"group {self.group_id}: no protocol common to all")
        votes = dict.fromkeys(candidates, 0)
        for member in self.members.values():
            votes[next(each.name for each in member.protocols if each.name in votes)] += 1
        return max(candidates, key=lambda name: votes[name])

    # --- who may call ---------------------------------------------------------------------

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Whether the caller is a member; checks the instance id first, to fence replaced ones."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def check_generation(
        self, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """Whether the caller is a member of the current generation."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.check_member(member_id, group_instance_id)
        if error is ErrorCode.NONE and generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    # --- views ----------------------------------------------------------------------------

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """The members as their leader sees them when it assigns."""
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members.values()
        )

    def value(self, assignments: Mapping[str, bytes] | None = None) -> GroupValue:
        """The record to log, with ``assignments`` or the members' current ones."""
        return GroupValue(
            protocol_type=self.protocol_type or "",
            generation_id=self.generation_id,
            protocol_name=self.protocol_name,
            leader_id=self.leader_id,
            state_timestamp_ms=self.state_timestamp_ms,
            members=tuple(
                GroupMemberValue(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol_name),
                    assignment=(
                        member.assignment
                        if assignments is None
                        else assignments.get(member.member_id, b"")
                    ),
                )
                for member in self.members.values()
            ),
        )

    def with_present_ids(self, logged: GroupValue) -> GroupValue:
        """``logged`` with static members under their current member ids."""
        present_ids = {
            each.member_id: self.static_members.get(each.group_instance_id or "", each.member_id)
            for each in logged.members
        }
        return structs.replace(
            logged,
            leader_id=present_ids.get(logged.leader_id or "", logged.leader_id),
            members=tuple(
                structs.replace(each, member_id=present_ids[each.member_id])
                for each in logged.members
            ),
        )

    def describe(self) -> GroupDescription:
        """The group for people."""
        return GroupDescription(
            group_id=self.group_id,
            state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_name=self.protocol_name or "",
            generation_id=self.generation_id,
            members=tuple(
                GroupMemberDescription(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    assignment=member.assignment,
                    subscription=member.metadata(self.protocol_name),
                )
                for member in self.members.values()
            ),
        )
