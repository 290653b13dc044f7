"""What the group machine asks of its shell, and the settings it is built with.

The shell carries out effects in order. Timers are identified by value: setting one again replaces
it, cancelling one that is not set does nothing.
"""

from __future__ import annotations

import enum

import msgspec

from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.group.log import GroupValue, group_record
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.messages.group import JoinGroupReply

NO_CALL = -1


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of groups; durations in milliseconds.

    ``initial_rebalance_delay_ms`` is how long the first rebalance of an empty group waits for
    more members; ``new_member_join_timeout_ms`` how long a new member may stay parked in its join.
    """

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 0
    new_member_join_timeout_ms: int = 300_000
    members_max: int = 1_000
    offsets_retention_ms: int = 604_800_000


class TimerKind(enum.Enum):
    """What a timer bounds."""

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
    """The same in a rebalance: its join counts."""
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
