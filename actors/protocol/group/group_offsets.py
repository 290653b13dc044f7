"""Committed offsets of groups, and pending ones waiting for their transaction's marker.

Durable: changed only by ``apply`` and ``apply_marker``, in log order, live and on reload, and only
for what is committed to the offsets log. A position in a batch with a producer id is *pending*
until a marker of that producer id follows in the log; because both are in the log, pending
positions survive a failover. Of two positions the one with the higher *record offset* wins: the
order of writing counts, not the order in which transactions ended. Source: KIP-98 (offsets in
transactions), KIP-447 (stable reads), KIP-211 (expiry).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec
from msgspec import structs

from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.group.group_records import (
    OffsetKey,
    OffsetValue,
    offset_record,
    offset_tombstone,
)
from oncelog.actors.protocol.messages.group import (
    DeleteOffsetsReply,
    DeleteOffsetsRequest,
    FetchedOffset,
    OffsetAndMetadata,
    OffsetCommitReply,
    OffsetCommitRequest,
    OffsetFetchReply,
    OffsetFetchRequest,
    PartitionResult,
    TxnOffsetCommitRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    INT64_MAX,
    NO_LEADER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    OFFSET_METADATA_MAX_BYTES,
    TOPIC_NAME_RULE,
    TopicPartition,
    is_valid_topic_name,
    utf8_bytes,
)

OFFSETS_PER_COMMIT_MAX: Final = 10_000
"""Positions in one request; more is ``INVALID_REQUEST``."""

Refusal = tuple[ErrorCode, str]
"""A rejection: the code, and a sentence that names the value and what is allowed."""

ACCEPTED: Final[Refusal] = (ErrorCode.NONE, "")

_INT32_MAX: Final = 2**31 - 1


class StoredOffset(msgspec.Struct, frozen=True):
    """A position and where its record is in the offsets log."""

    value: OffsetValue
    record_offset: int


Positions = dict[TopicPartition, StoredOffset]


class GroupOffsets:
    """The positions of every group of one shard.

    Invariant: a producer id is in ``_groups_of_producer`` exactly while it has pending
    positions, with exactly the groups it has them in.
    """

    def __init__(self) -> None:
        self._committed: dict[str, Positions] = {}
        self._pending: dict[str, dict[int, Positions]] = {}
        self._groups_of_producer: dict[int, set[str]] = {}

    # --- commit ---------------------------------------------------------------------------

    def decide_commit(
        self,
        request: OffsetCommitRequest | TxnOffsetCommitRequest,
        now_ms: int,
        topic_ids: Mapping[str, str],
    ) -> Decision[OffsetCommitReply]:
        """One record per valid position; invalid ones are rejected individually.

        In a transaction one rejection rejects all: a retry has the same sequence, so it must append
        the same batch or the first one.

        ``topic_ids`` has the id of each existing topic: a position in a deleted topic must not
        count for a new topic of that name. ``admit_commit`` decides whether the caller may commit
        at all.
        """
        error, detail = refusal_of_count(len(request.offsets))
        if error is not ErrorCode.NONE:
            return Decision(reply=OffsetCommitReply(error=error, detail=detail))
        refusals = [_refusal(tp, position, topic_ids) for tp, position in request.offsets]
        results = tuple(
            PartitionResult(topic_partition=tp, error=error)
            for (tp, _), (error, _) in zip(request.offsets, refusals, strict=True)
        )
        detail = next((words for _, words in refusals if words), "")
        if isinstance(request, TxnOffsetCommitRequest) and detail:
            results = tuple(map(_not_attempted, results))
            return Decision(reply=OffsetCommitReply(detail=detail, results=results))
        records = tuple(
            offset_record(
                request.group_id,
                tp,
                structs.replace(position, topic_id=topic_ids[tp.topic]),
                now_ms,
            )
            for (tp, position), result in zip(request.offsets, results, strict=True)
            if result.error is ErrorCode.NONE
        )
        return Decision(reply=OffsetCommitReply(detail=detail, results=results), records=records)

    def apply(
        self, key: OffsetKey, value: OffsetValue | None, *, record_offset: int, producer_id: int
    ) -> None:
        """Apply one committed record; ``value`` None removes the position, pending ones too."""
        tp = key.topic_partition
        if value is None:
            self._remove(key.group_id, tp)
        elif producer_id == NO_PRODUCER_ID:
            positions = self._committed.setdefault(key.group_id, {})
            positions[tp] = StoredOffset(value, record_offset)
        else:
            producers = self._pending.setdefault(key.group_id, {})
            positions = producers.setdefault(producer_id, {})
            positions[tp] = StoredOffset(value, record_offset)
            self._groups_of_producer.setdefault(producer_id, set()).add(key.group_id)

    def apply_marker(self, producer_id: int, *, committed: bool) -> tuple[str, ...]:
        """End the transaction of ``producer_id``: its pending positions are installed or dropped.

        Returns their groups. A marker of a producer without any changes nothing.
        """
        group_ids = tuple(sorted(self._groups_of_producer.pop(producer_id, ())))
        for group_id in group_ids:
            producers = self._pending[group_id]
            ended = producers.pop(producer_id)
            if not producers:
                del self._pending[group_id]
            if committed:
                self._install(group_id, ended)
        return group_ids

    def _install(self, group_id: str, ended: Positions) -> None:
        positions = self._committed.setdefault(group_id, {})
        for tp, pending in ended.items():
            current = positions.get(tp)
            if current is None or current.record_offset < pending.record_offset:
                positions[tp] = pending

    def _remove(self, group_id: str, tp: TopicPartition) -> None:
        positions = self._committed.get(group_id, {})
        positions.pop(tp, None)
        if not positions:
            self._committed.pop(group_id, None)
        producers = self._pending.get(group_id, {})
        for producer_id in list(producers):
            producers[producer_id].pop(tp, None)
            if not producers[producer_id]:
                del producers[producer_id]
                self._leave_group(producer_id, group_id)
        if not producers:
            self._pending.pop(group_id, None)

    def _leave_group(self, producer_id: int, group_id: str) -> None:
        groups = self._groups_of_producer[producer_id]
        groups.discard(group_id)
        if not groups:
            del self._groups_of_producer[producer_id]

    # --- read -----------------------------------------------------------------------------

    def fetch(self, request: OffsetFetchRequest) -> OffsetFetchReply:
        """The committed positions; -1 and no error for an unknown group or partition.

        With ``require_stable`` a position that an open transaction would replace is withheld:
        the new owner of a partition must not start before its predecessor's transaction ends.
        """
        committed = self._committed.get(request.group_id, {})
        unstable: set[TopicPartition] = set()
        if request.require_stable:
            for positions in self._pending.get(request.group_id, {}).values():
                unstable.update(positions)
        asked = request.partitions
        if asked is None:
            asked = tuple(sorted(unstable.union(committed)))
        return OffsetFetchReply(
            offsets=tuple(
                FetchedOffset(topic_partition=tp, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
                if tp in unstable
                else _fetched(tp, committed.get(tp))
                for tp in asked
            )
        )

    def has_positions(self, group_id: str) -> bool:
        """Whether the group has a committed or pending position."""
        return group_id in self._committed or group_id in self._pending

    def has_pending(self, group_id: str) -> bool:
        """Whether an open transaction holds positions of the group."""
        return group_id in self._pending

    def committed_count(self, group_id: str) -> int:
        """In how many partitions the group has a committed position."""
        return len(self._committed.get(group_id, {}))

    # --- removal --------------------------------------------------------------------------

    def topic_ids(self) -> dict[str, frozenset[str]]:
        """The ids that committed positions have for each topic name, without ""."""
        found: dict[str, set[str]] = {}
        for positions in self._committed.values():
            for tp, stored in positions.items():
                if stored.value.topic_id:
                    found.setdefault(tp.topic, set()).add(stored.value.topic_id)
        return {topic: frozenset(ids) for topic, ids in found.items()}

    def decide_delete(
        self, request: DeleteOffsetsRequest, read_topics: Collection[str] | None
    ) -> Decision[DeleteOffsetsReply]:
        """Tombstones of the named positions; one that is not there needs none.

        ``read_topics`` are those that members read, ``None`` for any. A position that an open
        transaction commits stays: its tombstone would drop what that is about to commit.
        """
        error, detail = refusal_of_count(len(request.partitions))
        if error is not ErrorCode.NONE:
            return Decision(reply=request.failed(error, detail))
        committed = self._committed.get(request.group_id, {})
        unstable: set[TopicPartition] = set()
        for positions in self._pending.get(request.group_id, {}).values():
            unstable.update(positions)
        results, records = [], []
        for tp in request.partitions:
            error = ErrorCode.NONE
            if read_topics is None or tp.topic in read_topics:
                error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif tp in unstable:
                error = ErrorCode.UNSTABLE_OFFSET_COMMIT
            elif tp in committed:
                records.append(offset_tombstone(request.group_id, tp))
            results.append(PartitionResult(topic_partition=tp, error=error))
        return Decision(reply=DeleteOffsetsReply(results=tuple(results)), records=tuple(records))

    def of_deleted_topics(self, group_id: str, gone: Collection[str]) -> tuple[LogRecord, ...]:
        """Tombstones of the group's committed positions in the topics whose ids are ``gone``."""
        return tuple(
            offset_tombstone(group_id, tp)
            for tp, stored in sorted(self._committed.get(group_id, {}).items())
            if stored.value.topic_id in gone
        )

    def tombstones(self, group_id: str) -> tuple[LogRecord, ...]:
        """The records that remove every position of a group, pending ones too."""
        partitions = set(self._committed.get(group_id, {}))
        for positions in self._pending.get(group_id, {}).values():
            partitions.update(positions)
        return tuple(offset_tombstone(group_id, tp) for tp in sorted(partitions))

    def expired(
        self, group_id: str, *, unused_since_ms: int, retention_ms: int, now_ms: int
    ) -> tuple[LogRecord, ...]:
        """Tombstones of the committed positions unused for ``retention_ms``.

        ``unused_since_ms`` is when the group lost its last member, -1 if it never had one. A
        position committed after that counts from its own commit.
        """
        return tuple(
            offset_tombstone(group_id, tp)
            for tp, stored in sorted(self._committed.get(group_id, {}).items())
            if _expiry_ms(stored.value, unused_since_ms, retention_ms) <= now_ms
        )


def _expiry_ms(value: OffsetValue, unused_since_ms: int, retention_ms: int) -> int:
    if value.expire_timestamp_ms != NO_TIMESTAMP:
        return value.expire_timestamp_ms
    return max(value.commit_timestamp_ms, unused_since_ms) + retention_ms


def _fetched(tp: TopicPartition, stored: StoredOffset | None) -> FetchedOffset:
    if stored is None:
        return FetchedOffset(topic_partition=tp)
    return FetchedOffset(
        topic_partition=tp,
        offset=stored.value.offset,
        leader_epoch=stored.value.leader_epoch,
        metadata=stored.value.metadata,
        topic_id=stored.value.topic_id,
    )


def _not_attempted(result: PartitionResult) -> PartitionResult:
    if result.error is not ErrorCode.NONE:
        return result
    return structs.replace(result, error=ErrorCode.OPERATION_NOT_ATTEMPTED)


def refusal_of_count(position_count: int) -> Refusal:
    """Reject a commit with too many positions."""
    if position_count <= OFFSETS_PER_COMMIT_MAX:
        return ACCEPTED
    return ErrorCode.INVALID_REQUEST, (
        f"{position_count} positions: give at most {OFFSETS_PER_COMMIT_MAX} in one call"
    )


def refusal_of_position(tp: TopicPartition, position: OffsetAndMetadata) -> Refusal:
    """Reject ``position`` of ``tp`` if it is invalid whatever topics exist."""
    if not is_valid_topic_name(tp.topic):
        return ErrorCode.INVALID_TOPIC_EXCEPTION, (
            f"{tp.topic!r:.80} is not a topic name: {TOPIC_NAME_RULE}"
        )
    if not 0 <= tp.partition <= _INT32_MAX:
        return _impossible(f"partition={tp.partition} of {tp.topic!r}", 0, _INT32_MAX)
    if not 0 <= position.offset <= INT64_MAX:
        return _impossible(f"offset={position.offset} of {tp}", 0, INT64_MAX)
    if not NO_LEADER_EPOCH <= position.leader_epoch <= _INT32_MAX:
        what = f"leader_epoch={position.leader_epoch} of {tp}"
        return _impossible(what, NO_LEADER_EPOCH, _INT32_MAX)
    if utf8_bytes(position.topic_id) is None:
        return ErrorCode.INVALID_REQUEST, f"topic_id={position.topic_id!r} of {tp}: give UTF-8"
    size_bytes, allowed = utf8_bytes(position.metadata), OFFSET_METADATA_MAX_BYTES
    if size_bytes is None:
        return ErrorCode.INVALID_REQUEST, (
            f"metadata={position.metadata!r:.80} of {tp}: give at most {allowed} bytes of UTF-8"
        )
    if size_bytes > allowed:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE, (
            f"metadata of {tp} has {size_bytes} bytes: give at most {allowed}"
        )
    return ACCEPTED


def _impossible(what: str, low: int, high: int) -> Refusal:
    return ErrorCode.INVALID_REQUEST, f"{what}: give {low} to {high}"


def _refusal(
    tp: TopicPartition, position: OffsetAndMetadata, topic_ids: Mapping[str, str]
) -> Refusal:
    """Reject a position that is invalid with the existing topics."""
    refusal = refusal_of_position(tp, position)
    if refusal is not ACCEPTED:
        return refusal
    if tp.topic not in topic_ids:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {tp.topic!r}"
    if position.topic_id not in ("", topic_ids[tp.topic]):
        return ErrorCode.UNKNOWN_TOPIC_ID, (
            f"topic {tp.topic!r} was deleted and created again since {tp} was read"
        )
    return ACCEPTED
