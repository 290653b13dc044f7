"""A group machine with the log, the timers and the parked calls of its shell, all in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.group.group_machine import GroupMachine
from oncelog.actors.protocol.group.rebalance import (
    CancelTimer,
    Effect,
    GroupSettings,
    ReplyTo,
    SetTimer,
    Timer,
    TimerKind,
    WriteGroup,
)
from oncelog.actors.protocol.messages.group import (
    DescribeGroupsRequest,
    GroupDescription,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupReply,
    JoinGroupRequest,
    LeaveGroupReply,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    OffsetAndMetadata,
    OffsetCommitReply,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_PRODUCER_ID, TopicPartition

NOW_MS = 1_700_000_000_000
TP = TopicPartition("flights", 0)
TOPIC_IDS = {"flights": "f1" * 16}


def protocols(*names: str, metadata: bytes = b"flights") -> tuple[GroupProtocol, ...]:
    return tuple(GroupProtocol(name=name, metadata=metadata) for name in names)


class GroupWorld:
    """Carries effects out at once; with ``holds_writes`` a group record waits for ``commit``."""

    def __init__(self, **settings: int) -> None:
        self.settings = GroupSettings(**settings)
        self.machine = GroupMachine(self.settings)
        self.now_ms = NOW_MS
        self.timers: dict[Timer, int] = {}
        self.replies: dict[int, Any] = {}
        self.writes: list[WriteGroup] = []
        self.uncommitted: list[WriteGroup] = []
        self.holds_writes = False
        self.log: list[tuple[int, LogRecord | bool]] = []
        self.log_end_offset = 0
        self._calls = itertools.count()
        self._ids = itertools.count()

    # --- membership -----------------------------------------------------------------------

    def join(self, member_id: str = "", **fields: Any) -> int:
        call_id = next(self._calls)
        values: dict[str, Any] = {
            "group_id": "billing",
            "client_id": "worker",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 30_000,
            "protocols": protocols("range"),
        }
        request = JoinGroupRequest(**{**values, "member_id": member_id, **fields})
        self.run(self.machine.join(request, call_id, self.now_ms, fresh_id=f"id{next(self._ids)}"))
        return call_id

    def enter(self, **fields: Any) -> int:
        """Join as a new dynamic member, with the member id that the first answer gives."""
        refused = self.reply(self.join(**fields))
        assert refused.error is ErrorCode.MEMBER_ID_REQUIRED
        return self.join(refused.member_id, **fields)

    def joined(self, call_id: int) -> JoinGroupReply:
        reply = self.replies[call_id]
        assert isinstance(reply, JoinGroupReply)
        assert reply.error is ErrorCode.NONE, reply
        return reply

    def sync(
        self, joined: JoinGroupReply, assignments: dict[str, bytes] | None = None, **fields: Any
    ) -> int:
        call_id = next(self._calls)
        values: dict[str, Any] = {
            "group_id": "billing",
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "assignments": tuple(
                MemberAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (assignments or {}).items()
            ),
        }
        request = SyncGroupRequest(**{**values, **fields})
        self.run(self.machine.sync(request, call_id, self.now_ms))
        return call_id

    def stable(self, *calls: int) -> list[JoinGroupReply]:
        """Let the members of these joins sync: each is assigned its own member id as bytes."""
        replies = [self.joined(call_id) for call_id in calls]
        assignments = {reply.member_id: reply.member_id.encode() for reply in replies}
        for reply in replies:
            is_leader = reply.leader_id == reply.member_id
            self.sync(reply, assignments if is_leader else None)
        assert self.describe().state == "Stable"
        return replies

    def two_members(self) -> tuple[JoinGroupReply, JoinGroupReply]:
        """A stable group of a leader and a follower."""
        first = self.enter()
        leader_id = self.joined(first).member_id
        second = self.enter()
        first = self.join(leader_id)
        leader, follower = self.stable(first, second)
        assert leader.leader_id == leader.member_id
        return leader, follower

    def heartbeat(self, joined: JoinGroupReply, **fields: Any) -> ErrorCode:
        values: dict[str, Any] = {
            "group_id": "billing",
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
        }
        request = HeartbeatRequest(**{**values, **fields})
        reply, effects = self.machine.heartbeat(request, self.now_ms)
        self.run(effects)
        return reply.error

    def leave(self, *members: tuple[str, str | None]) -> LeaveGroupReply:
        request = LeaveGroupRequest(
            group_id="billing",
            members=tuple(
                LeavingMember(member_id=member_id, group_instance_id=instance_id)
                for member_id, instance_id in members
            ),
        )
        reply, effects = self.machine.leave(request, self.now_ms)
        self.run(effects)
        return reply

    def describe(self) -> GroupDescription:
        described = self.machine.describe(DescribeGroupsRequest(group_ids=("billing",)))
        return described.groups[0]

    @property
    def group_ids(self) -> list[str]:
        return [group.group_id for group in self.machine.describe(DescribeGroupsRequest()).groups]

    # --- positions ------------------------------------------------------------------------

    def commit(
        self, offset: int, *, tp: TopicPartition = TP, producer_id: int = -1, **fields: Any
    ) -> ErrorCode:
        """Commit one position, in a transaction if a producer is named, and apply it."""
        values: dict[str, Any] = {
            "group_id": "billing",
            "offsets": ((tp, OffsetAndMetadata(offset=offset)),),
        }
        request: OffsetCommitRequest | TxnOffsetCommitRequest
        if producer_id == NO_PRODUCER_ID:
            request = OffsetCommitRequest(**{**values, **fields})
        else:
            transaction = {
                "transactional_id": "loader",
                "producer_id": producer_id,
                "producer_epoch": 0,
                "base_sequence": 0,
            }
            request = TxnOffsetCommitRequest(**{**values, **transaction, **fields})
        error, effects = self.machine.admit_commit(request, self.now_ms)
        self.run(effects)
        if error is not ErrorCode.NONE:
            return error
        decision = self.machine.offsets.decide_commit(request, self.now_ms, TOPIC_IDS)
        self.append(decision.records, producer_id)
        reply: OffsetCommitReply = decision.reply
        return reply.results[0].error

    def mark(self, producer_id: int, *, committed: bool) -> None:
        self.log.append((producer_id, committed))
        self.log_end_offset += 1
        self.machine.apply_marker(producer_id, committed=committed)

    def position(self, *, require_stable: bool = True, tp: TopicPartition = TP) -> int | ErrorCode:
        """The committed offset, or the error of the partition."""
        request = OffsetFetchRequest(
            group_id="billing", partitions=(tp,), require_stable=require_stable
        )
        fetched = self.machine.offsets.fetch(request).offsets[0]
        return fetched.offset if fetched.error is ErrorCode.NONE else fetched.error

    # --- the shell ------------------------------------------------------------------------

    def reply(self, call_id: int) -> Any:
        return self.replies.get(call_id)

    def append(self, records: Iterable[LogRecord], producer_id: int = NO_PRODUCER_ID) -> None:
        for record in records:
            self.log.append((producer_id, record))
            self.machine.apply(record, record_offset=self.log_end_offset, producer_id=producer_id)
            self.log_end_offset += 1

    def run(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ReplyTo):
                assert effect.call_id not in self.replies, "answered twice"
                self.replies[effect.call_id] = effect.reply
            elif isinstance(effect, SetTimer):
                assert effect.delay_ms >= 0
                self.timers[effect.timer] = self.now_ms + effect.delay_ms
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.timer, None)
            else:
                self.writes.append(effect)
                if not self.holds_writes:
                    self.commit_write()

    def commit_write(
        self, error: ErrorCode = ErrorCode.NONE, *, is_appended: bool | None = None
    ) -> None:
        """The oldest group record on its way is committed, or fails.

        One that fails although it ``is_appended`` is committed with the next.
        """
        write = self.writes.pop(0)
        if is_appended is None:
            is_appended = error is ErrorCode.NONE
        if is_appended:
            self.uncommitted.append(write)
        if error is ErrorCode.NONE:
            self.append(each.record for each in self.uncommitted)
            self.uncommitted.clear()
        self.run(self.machine.written(write, error, self.now_ms, is_appended=is_appended))

    def advance(self, duration_ms: int) -> None:
        """Let time pass; timers fire when they are due."""
        end_ms = self.now_ms + duration_ms
        while self.timers and min(self.timers.values()) <= end_ms:
            timer = min(self.timers, key=lambda each: self.timers[each])
            self.now_ms = max(self.now_ms, self.timers.pop(timer))
            self.run(self.machine.timer_fired(timer, self.now_ms))
        self.now_ms = end_ms

    def has_timer(self, kind: TimerKind, member_id: str = "") -> bool:
        return Timer(kind, "billing", member_id) in self.timers

    def fail_over(self) -> None:
        """Another coordinator reads the log: parked calls, timers and rebalances are lost."""
        self.machine = GroupMachine(self.settings)
        self.timers.clear()
        self.writes.clear()
        self.uncommitted.clear()
        for record_offset, (producer_id, entry) in enumerate(self.log):
            if isinstance(entry, bool):
                self.machine.apply_marker(producer_id, committed=entry)
            else:
                self.machine.apply(entry, record_offset=record_offset, producer_id=producer_id)
        self.run(self.machine.finish_load(self.now_ms))
