"""The groups that exist: what the log says about them, and their removal.

The base of the group machine. *Durable*: committed positions and the last record of each group,
changed only by ``apply`` and ``apply_marker`` in log order, live and on reload. *Volatile*: the
``Group`` objects that the rebalance works on; ``finish_load`` makes them from the durable part.
Source: KIP-98 and KIP-447 for pending positions, KIP-211 for expiry.
"""

from __future__ import annotations

from collections.abc import Collection

from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.group.effects import Effect, GroupSettings
from oncelog.actors.protocol.group.log import (
    GroupKey,
    GroupValue,
    OffsetKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    group_tombstone,
)
from oncelog.actors.protocol.group.offsets import GroupOffsets
from oncelog.actors.protocol.group.rebalance import GroupTurn
from oncelog.actors.protocol.group.state import Group, GroupState
from oncelog.actors.protocol.messages.group import DescribeGroupsReply, DescribeGroupsRequest
from oncelog.storage.errors import ErrorCode


class GroupTable:
    """Every group of one shard, by group id.

    Invariant: once loaded, every group in ``_records`` or with positions is in ``_groups`` too.
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
        """Drop a group that has no members, and nothing in the log or on the way there."""
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

    def tombstones(self, group_id: str) -> tuple[LogRecord, ...]:
        """Everything that must be written to remove a group; the group's own record last."""
        return (*self.offsets.tombstones(group_id), group_tombstone(group_id))

    def reopen(self, group_id: str, now_ms: int) -> None:
        """The tombstones of a deletion could not be written: the group serves again."""
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

        Not of ``busy`` groups, with records still being appended, nor of those that an open
        transaction commits to: a tombstone would remove newer positions as well.
        """
        found = (
            (group_id, self.offsets.of_deleted_topics(group_id, gone))
            for group_id in self._groups
            if group_id not in busy and not self.offsets.has_pending(group_id)
        )
        return [(group_id, records) for group_id, records in found if records]

    def describe(self, request: DescribeGroupsRequest) -> DescribeGroupsReply:
        """The requested groups that exist, or all of the shard, sorted."""
        asked = self._groups if request.group_ids is None else request.group_ids
        return DescribeGroupsReply(
            groups=tuple(
                self._groups[group_id].describe()
                for group_id in sorted(set(asked))
                if group_id in self._groups
            )
        )

    def _turn(self, group: Group, now_ms: int) -> GroupTurn:
        logged = self._records.get(group.group_id)
        return GroupTurn(group, self._settings, now_ms, logged=logged)
