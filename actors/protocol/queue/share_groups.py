"""The share groups of one shard: their members, and what these hold of which partitions.

Everything here is durable: ``apply`` and ``apply_marker`` change it, in log order, live and on
reload. Requests are decided in a ``ShareTurn``: a copy of one group that takes any number of
requests, one after another, and gives the records of all that they change. Rules for the shell:

1. A group has one turn at a time: the next begins once the records of the last are applied.
2. No turn begins while a marker of a producer with pending acknowledgements in the group is in the
   log and not applied. So a partition's record that follows a marker has its outcome.
3. Once a marker is applied, a turn calls ``settle`` soon: until then the log must keep the marker.

A member *holds* what it acquired, under its member epoch. To join anew gives it another epoch, and
releases what it held. A member whose session ends is removed, as if it had left. An acknowledgement
in a transaction belongs to the transaction: no end of a session changes it.

One file: the groups, and the turns that decide what becomes of them.

Source: KIP-932; KIP-1289 for transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import structs

from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.messages.share import (
    JOIN_EPOCH,
    AcknowledgeType,
    AcquiredRun,
    DescribeShareGroupReply,
    PartitionAcknowledgements,
    ShareAcknowledgeReply,
    ShareAcknowledgeRequest,
    ShareAcquireReply,
    ShareAcquireRequest,
    ShareGroupHeartbeatReply,
    ShareGroupHeartbeatRequest,
    ShareOrder,
    SharePartitionDescription,
    TxnShareAcknowledgeRequest,
)
from oncelog.actors.protocol.queue.share_keys import KnownKeys
from oncelog.actors.protocol.queue.share_partition import RecordState, SharePartition
from oncelog.actors.protocol.queue.share_records import (
    PendingKey,
    PendingValue,
    ShareGroupKey,
    ShareGroupValue,
    ShareMember,
    ShareMemberKey,
    SharePartitionKey,
    SharePartitionValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    partition_record,
    tombstone,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    INT64_MAX,
    NO_OFFSET,
    NO_PRODUCER_ID,
    PRODUCER_EPOCH_MAX,
    SEQUENCE_MAX,
    TRANSACTIONAL_ID_MAX_BYTES,
    TopicPartition,
    has_utf8_bytes,
    is_valid_group_id,
    is_valid_topic_name,
)

MEMBERS_MAX: Final = 10_000
"""Members of one share group; one more is ``GROUP_MAX_SIZE_REACHED``."""

TOPICS_MAX: Final = 100
"""Topics of one member; more are ``INVALID_REQUEST``."""

ACQUIRED_MAX: Final = 10_000
"""Records that one call may acquire; more are ``INVALID_REQUEST``."""

ACKNOWLEDGED_RUNS_MAX: Final = 10_000
"""Runs in one acknowledgement; more are ``INVALID_REQUEST``."""

MEMBER_ID_MAX_BYTES: Final = 249


_NO_KEYS: Final[Mapping[TopicPartition, KnownKeys]] = MappingProxyType({})


class ReadableRange(NamedTuple):
    """What of a partition can be read: from ``start_offset`` to ``end_offset`` (exclusive)."""

    topic_id: str
    start_offset: int
    end_offset: int


class ShareGroup:
    """One share group.

    ``pending`` has the acknowledgements whose marker has not come, ``ended`` those whose marker
    has, until their tombstones. ``unsettled``: partitions whose record lacks a marker's outcome.
    """

    def __init__(self) -> None:
        self.next_epoch = JOIN_EPOCH + 1
        self.order = ShareOrder.NONE
        self.members: dict[str, ShareMember] = {}
        self.partitions: dict[TopicPartition, SharePartition] = {}
        self.pending: dict[PendingKey, PendingValue] = {}
        self.ended: set[PendingKey] = set()
        self.unsettled: set[TopicPartition] = set()

    @property
    def is_settled(self) -> bool:
        """Whether the outcome of every marker is in the partitions' records."""
        return not self.ended and not self.unsettled

    def check_member(self, member_id: str, member_epoch: int) -> ErrorCode:
        """``NONE`` if the member lives under this epoch."""
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.epoch != member_epoch:
            return ErrorCode.FENCED_MEMBER_EPOCH
        return ErrorCode.NONE


class ShareGroups:
    """The share groups of one shard, as the log says.

    Invariant: a producer with pending offsets in a partition is in ``_groups_of_producer``.
    """

    def __init__(self) -> None:
        self._groups: dict[str, ShareGroup] = {}
        self._groups_of_producer: dict[int, set[str]] = {}

    # --- the log --------------------------------------------------------------------------

    def apply(self, record: LogRecord) -> bool:
        """Apply one committed record; whether it is one of a share group.

        ``CorruptDataError`` if it cannot be read.
        """
        key = decode_key(record.key) if record.key is not None else None
        if key is None:
            return False
        if isinstance(key, ShareGroupKey) and record.value is None:
            self._groups.pop(key.group_id, None)
            return True
        group = self._groups.get(key.group_id)
        if group is None:
            if record.value is None:
                return True
            group = self._groups[key.group_id] = ShareGroup()
        self._apply(group, key, record.value)
        return True

    def _apply(
        self,
        group: ShareGroup,
        key: ShareGroupKey | ShareMemberKey | SharePartitionKey | PendingKey,
        value: bytes | None,
    ) -> None:
        if isinstance(key, ShareGroupKey):
            known = decode_value(value or b"", ShareGroupValue)
            group.next_epoch, group.order = known.next_epoch, known.order
        elif isinstance(key, ShareMemberKey):
            if value is None:
                group.members.pop(key.member_id, None)
            else:
                group.members[key.member_id] = decode_value(value, ShareMember)
        elif isinstance(key, SharePartitionKey):
            group.unsettled.discard(key.topic_partition)
            if value is None:
                group.partitions.pop(key.topic_partition, None)
            else:
                self._replace(key, group, decode_value(value, SharePartitionValue))
        elif value is None:
            group.pending.pop(key, None)
            group.ended.discard(key)
        else:
            self._accept(group, key, decode_value(value, PendingValue))

    def _replace(
        self, key: SharePartitionKey, group: ShareGroup, known: SharePartitionValue
    ) -> None:
        partition = SharePartition(known.topic_id, known.start_offset, known.runs)
        partition.check()
        group.partitions[key.topic_partition] = partition
        for run in partition.runs:
            if run.state is RecordState.PENDING:
                self._groups_of_producer.setdefault(run.owner, set()).add(key.group_id)

    def _accept(self, group: ShareGroup, key: PendingKey, accepted: PendingValue) -> None:
        group.pending[key] = accepted
        self._groups_of_producer.setdefault(key.producer_id, set()).add(key.group_id)
        partition = group.partitions.get(key.topic_partition)
        if partition is not None and partition.topic_id == accepted.topic_id:
            for first, last in accepted.runs:
                partition.accept_pending(first, last, producer_id=key.producer_id)

    def apply_marker(self, producer_id: int, *, committed: bool) -> tuple[str, ...]:
        """Apply one committed marker; returns the groups in which something was pending."""
        group_ids = tuple(sorted(self._groups_of_producer.pop(producer_id, ())))
        for group_id in group_ids:
            group = self._groups.get(group_id)
            if group is None:
                continue
            for tp, partition in group.partitions.items():
                if partition.end_transaction(producer_id, committed=committed):
                    group.unsettled.add(tp)
            for key in [key for key in group.pending if key.producer_id == producer_id]:
                del group.pending[key]
                group.ended.add(key)
        return group_ids

    # --- questions ------------------------------------------------------------------------

    def find(self, group_id: str) -> ShareGroup | None:
        """The group, which only ``apply`` may change; None if there is none."""
        return self._groups.get(group_id)

    def group_ids(self) -> list[str]:
        """All groups, sorted."""
        return sorted(self._groups)

    def has_pending(self, producer_id: int, group_id: str) -> bool:
        """Whether a marker of this producer may change the group."""
        return group_id in self._groups_of_producer.get(producer_id, ())

    def begin(self, group_id: str) -> ShareTurn:
        """Begin a turn of the group, which need not exist; see the rules above."""
        return ShareTurn(group_id, self._groups.get(group_id))

    def describe(
        self, group_id: str, ranges: Mapping[TopicPartition, ReadableRange]
    ) -> DescribeShareGroupReply:
        """Describe a group; ``ranges`` has what is known of its partitions' ends."""
        group = self._groups.get(group_id)
        if group is None:
            return DescribeShareGroupReply(error=ErrorCode.GROUP_ID_NOT_FOUND)
        described = (
            _described(tp, group.partitions.get(tp), ranges.get(tp))
            for tp in sorted(group.partitions.keys() | ranges.keys())
        )
        return DescribeShareGroupReply(partitions=tuple(described), member_count=len(group.members))


def _described(
    tp: TopicPartition, partition: SharePartition | None, known: ReadableRange | None
) -> SharePartitionDescription:
    end_offset = NO_OFFSET if known is None else known.end_offset
    if partition is None or (known is not None and known.topic_id != partition.topic_id):
        partition = SharePartition("", 0 if known is None else known.start_offset)
    beyond = max(end_offset - partition.next_offset, 0)
    return SharePartitionDescription(
        topic_partition=tp,
        start_offset=partition.start_offset,
        next_offset=partition.next_offset,
        end_offset=end_offset,
        available_count=partition.count(RecordState.AVAILABLE) + beyond,
        acquired_count=partition.count(RecordState.ACQUIRED),
        pending_count=partition.count(RecordState.PENDING),
    )


class ShareTurn:
    """Requests to one group, decided one after another on a copy of it.

    ``records`` gives what they change, to be appended as one batch; a refused request changes
    nothing. Acknowledgements in transactions come last: each has a batch of its own.
    """

    def __init__(self, group_id: str, group: ShareGroup | None) -> None:
        former = ShareGroup() if group is None else group
        self._group_id = group_id
        self._former = former
        self._next_epoch = former.next_epoch
        self._order = former.order
        self._members: dict[str, ShareMember | None] = {}
        """What this turn changes; ``None``: it removes the member."""
        self._partitions: dict[TopicPartition, SharePartition] = {}
        """Copies of the partitions that this turn may change."""
        self._changed: set[TopicPartition] = set()
        self._tombstones: list[PendingKey] = []
        self._is_deleted = False

    def records(self) -> tuple[LogRecord, ...]:
        """The records of everything that has changed; empty if nothing has."""
        group_id, records = self._group_id, []
        if self._is_deleted:
            return self._deletion()
        if self._next_epoch != self._former.next_epoch:
            value = ShareGroupValue(self._next_epoch, self._order)
            records.append(LogRecord(encode_key(ShareGroupKey(group_id)), encode_value(value)))
        for member_id, member in self._members.items():
            key = encode_key(ShareMemberKey(group_id, member_id))
            records.append(LogRecord(key, None if member is None else encode_value(member)))
        records.extend(
            partition_record(group_id, tp, self._partitions[tp]) for tp in sorted(self._changed)
        )
        records.extend(tombstone(key) for key in self._tombstones)
        return tuple(records)

    # --- members --------------------------------------------------------------------------

    def heartbeat(self, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatReply:
        """A member joins, lives on or leaves."""
        if request.is_leaving or request.member_epoch != JOIN_EPOCH:
            error = self._check_member(request.member_id, request.member_epoch)
            if error is ErrorCode.NONE and request.is_leaving:
                self.remove(request.member_id, request.member_epoch)
            return ShareGroupHeartbeatReply(error=error, member_epoch=request.member_epoch)
        if self._is_deleted:
            return request.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        refusal = self._refusal_of_join(request)
        if refusal is not None:
            return refusal
        former = self._member(request.member_id)
        if former is not None:
            self._release(former.epoch)
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        topics = tuple(sorted(set(request.topics)))
        self._members[request.member_id] = ShareMember(epoch, topics, request.process)
        self._order = request.order
        return ShareGroupHeartbeatReply(member_epoch=epoch, order=request.order)

    def _refusal_of_join(
        self, request: ShareGroupHeartbeatRequest
    ) -> ShareGroupHeartbeatReply | None:
        if not is_valid_group_id(request.group_id):
            return request.failed(ErrorCode.INVALID_GROUP_ID)
        if not has_utf8_bytes(request.member_id, 1, MEMBER_ID_MAX_BYTES):
            return request.failed(
                ErrorCode.INVALID_REQUEST,
                f"member_id={request.member_id!r:.80}: give 1 to {MEMBER_ID_MAX_BYTES} bytes",
            )
        if not 1 <= len(request.topics) <= TOPICS_MAX:
            detail = f"{len(request.topics)} topics: give 1 to {TOPICS_MAX}"
            return request.failed(ErrorCode.INVALID_REQUEST, detail)
        invalid = [topic for topic in request.topics if not is_valid_topic_name(topic)]
        if invalid:
            detail = f"{invalid[0]!r:.80} is not a topic name"
            return request.failed(ErrorCode.INVALID_TOPIC_EXCEPTION, detail)
        if request.order is not self._order and self._has_others(request.member_id):
            return request.failed(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the workers of {request.group_id!r} have order={self._order.name.lower()!r}: "
                "give all the same",
            )
        count = len(self._former.members.keys() | self._members.keys())
        if self._member(request.member_id) is None and count >= MEMBERS_MAX:
            return request.failed(ErrorCode.GROUP_MAX_SIZE_REACHED)
        return None

    def remove(self, member_id: str, member_epoch: int) -> None:
        """Remove a member and release what it holds, if it still has this epoch."""
        if self._check_member(member_id, member_epoch) is not ErrorCode.NONE:
            return
        self._release(member_epoch)
        self._members[member_id] = None

    def _has_others(self, member_id: str) -> bool:
        members = self._former.members | self._members
        return any(one is not None for other, one in members.items() if other != member_id)

    def _member(self, member_id: str) -> ShareMember | None:
        if member_id in self._members:
            return self._members[member_id]
        return self._former.members.get(member_id)

    def _check_member(self, member_id: str, member_epoch: int) -> ErrorCode:
        member = self._member(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member.epoch == member_epoch else ErrorCode.FENCED_MEMBER_EPOCH

    def _release(self, member_epoch: int) -> None:
        for tp in self._all_partitions():
            if self._find(tp).held(member_epoch):
                self._touch(tp).release_all(member_epoch)

    # --- acquire --------------------------------------------------------------------------

    def acquire(
        self,
        request: ShareAcquireRequest,
        ranges: Mapping[TopicPartition, ReadableRange],
        keys: Mapping[TopicPartition, KnownKeys] = _NO_KEYS,
    ) -> ShareAcquireReply:
        """Acquire what is available; ``ranges`` has what can be read of which partitions.

        ``keys`` has what is known of their keys, if the group is in the order of keys.
        """
        error = self._check_member(request.member_id, request.member_epoch)
        member = self._member(request.member_id)
        if error is not ErrorCode.NONE or member is None:
            return request.failed(error)
        if not 1 <= request.max_records <= ACQUIRED_MAX:
            detail = f"max_records={request.max_records}: give 1 to {ACQUIRED_MAX}"
            return request.failed(ErrorCode.INVALID_REQUEST, detail)
        if request.sequence == member.acquire_sequence:
            return ShareAcquireReply(acquired=tuple(self._held(member, request)))
        if not member.acquire_sequence < request.sequence <= INT64_MAX:
            return request.failed(
                ErrorCode.INVALID_REQUEST,
                f"sequence={request.sequence}: the member's last was {member.acquire_sequence}",
            )
        acquired = self._acquire(member, request, ranges, keys)
        if acquired:
            self._members[request.member_id] = structs.replace(
                member, acquire_sequence=request.sequence
            )
        return ShareAcquireReply(acquired=tuple(acquired))

    def _acquire(
        self,
        member: ShareMember,
        request: ShareAcquireRequest,
        ranges: Mapping[TopicPartition, ReadableRange],
        keys: Mapping[TopicPartition, KnownKeys],
    ) -> list[AcquiredRun]:
        topics = set(member.topics).intersection(request.topics)
        partitions = sorted(tp for tp in ranges if tp.topic in topics)
        # Each begins with another partition, so that none is left behind.
        first = (member.epoch + request.sequence) % max(len(partitions), 1)
        acquired: list[AcquiredRun] = []
        left = request.max_records
        for tp in (*partitions[first:], *partitions[:first]):
            known = ranges[tp]
            partition = self._partition(tp, known)
            its_keys = self._keys_of(tp, known.topic_id, keys)
            if its_keys is not None and partition.archive_gaps(known.end_offset, its_keys.gaps):
                self._changed.add(tp)
            taken = partition.acquire(
                known.end_offset,
                left,
                owner=member.epoch,
                sequence=request.sequence,
                keys=None if its_keys is None else its_keys.hashes,
            )
            for run in taken:
                self._changed.add(tp)
                left -= run.count
                acquired.append(
                    AcquiredRun(
                        topic_partition=tp,
                        topic_id=partition.topic_id,
                        first_offset=run.first,
                        last_offset=run.last,
                        delivery_count=run.delivery_count,
                    )
                )
            if left <= 0:
                break
        return acquired

    def _keys_of(
        self, tp: TopicPartition, topic_id: str, keys: Mapping[TopicPartition, KnownKeys]
    ) -> KnownKeys | None:
        """What is known of a partition's keys; None if they do not matter."""
        if self._order is ShareOrder.NONE:
            return None
        known = keys.get(tp)
        return known if known is not None and known.topic_id == topic_id else KnownKeys(topic_id)

    def _held(self, member: ShareMember, request: ShareAcquireRequest) -> Iterable[AcquiredRun]:
        for tp in self._all_partitions():
            if tp.topic not in request.topics:
                continue
            partition = self._find(tp)
            for run in partition.held(member.epoch, request.sequence):
                yield AcquiredRun(
                    topic_partition=tp,
                    topic_id=partition.topic_id,
                    first_offset=run.first,
                    last_offset=run.last,
                    delivery_count=run.delivery_count,
                )

    # --- acknowledge ----------------------------------------------------------------------

    def acknowledge(self, request: ShareAcknowledgeRequest) -> ShareAcknowledgeReply:
        """Acknowledge runs, each on its own."""
        error = self._check_member(request.member_id, request.member_epoch)
        member = self._member(request.member_id)
        if error is not ErrorCode.NONE or member is None:
            return request.failed(error)
        detail = _too_many(request.acknowledgements)
        if detail:
            return request.failed(ErrorCode.INVALID_REQUEST, detail)
        if request.sequence == member.acknowledge_sequence:
            return ShareAcknowledgeReply(refused=member.refused)
        if not member.acknowledge_sequence < request.sequence <= INT64_MAX:
            return request.failed(
                ErrorCode.INVALID_REQUEST,
                f"sequence={request.sequence}: the member's last was {member.acknowledge_sequence}",
            )
        refused: list[int] = []
        place = 0
        for part in request.acknowledgements:
            partition = self._of_topic(part)
            for run in part.runs:
                if partition is None or not partition.acknowledge(
                    run.first_offset, run.last_offset, run.type, owner=member.epoch
                ):
                    refused.append(place)
                else:
                    self._changed.add(part.topic_partition)
                place += 1
        self._members[request.member_id] = structs.replace(
            member, acknowledge_sequence=request.sequence, refused=tuple(refused)
        )
        return ShareAcknowledgeReply(refused=tuple(refused))

    def txn_acknowledge(
        self, request: TxnShareAcknowledgeRequest
    ) -> tuple[ShareAcknowledgeReply, tuple[LogRecord, ...]]:
        """Decide an acknowledgement in a transaction: the reply, and the records of its batch.

        Once they are appended, ``accepted`` must be called.
        """
        detail = _too_many(request.acknowledgements)
        if detail or not _names_producer(request):
            return request.failed(ErrorCode.INVALID_REQUEST, detail), ()
        producer_id = request.producer_id
        is_repeated = all(self._is_pending(part, producer_id) for part in request.acknowledgements)
        if not is_repeated:
            error = self._check_member(request.member_id, request.member_epoch)
            if error is not ErrorCode.NONE:
                return request.failed(error), ()
            refused = self._refused(request)
            if refused:
                error = ErrorCode.INVALID_RECORD_STATE
                return ShareAcknowledgeReply(error=error, refused=refused), ()
        records = []
        for place, part in enumerate(request.acknowledgements):
            sequence = (request.base_sequence + place) % (SEQUENCE_MAX + 1)
            key = PendingKey(self._group_id, part.topic_partition, producer_id, sequence)
            runs = tuple((run.first_offset, run.last_offset) for run in part.runs)
            value = encode_value(PendingValue(part.topic_id, runs))
            records.append(LogRecord(encode_key(key), value))
        return ShareAcknowledgeReply(), tuple(records)

    def accepted(self, request: TxnShareAcknowledgeRequest) -> None:
        """The batch of ``txn_acknowledge`` is appended."""
        for part in request.acknowledgements:
            partition = self._touch(part.topic_partition, is_changed=False)
            for run in part.runs:
                partition.accept_pending(
                    run.first_offset, run.last_offset, producer_id=request.producer_id
                )

    def _refused(self, request: TxnShareAcknowledgeRequest) -> tuple[int, ...]:
        refused: list[int] = []
        place = 0
        for part in request.acknowledgements:
            partition = self._of_topic(part)
            last_offset = NO_OFFSET
            for run in part.runs:
                # In order and apart: no offset may be accepted twice in one call.
                is_held = (
                    partition is not None
                    and run.type is AcknowledgeType.ACCEPT
                    and last_offset < run.first_offset
                    and partition.is_held(
                        run.first_offset, run.last_offset, owner=request.member_epoch
                    )
                )
                if not is_held:
                    refused.append(place)
                last_offset = run.last_offset
                place += 1
        return tuple(refused)

    def _is_pending(self, part: PartitionAcknowledgements, producer_id: int) -> bool:
        partition = self._of_topic(part)
        return partition is not None and all(
            partition.is_pending(run.first_offset, run.last_offset, producer_id=producer_id)
            for run in part.runs
        )

    # --- settle, delete -------------------------------------------------------------------

    def settle(self) -> None:
        """Write the outcome of markers into the records of partitions."""
        for tp in self._former.unsettled:
            if tp in self._former.partitions:
                self._touch(tp)
        self._tombstones = sorted(self._former.ended, key=encode_key)

    def delete(self) -> ErrorCode:
        """Delete the group, if it has no member and no open transaction acknowledges in it."""
        members = self._former.members | self._members
        if any(member is not None for member in members.values()) or self._former.pending:
            return ErrorCode.NON_EMPTY_GROUP
        self._is_deleted = True
        return ErrorCode.NONE

    def _deletion(self) -> tuple[LogRecord, ...]:
        """Tombstones of all that the group has; its own comes last."""
        group_id, former = self._group_id, self._former
        return (
            *(tombstone(ShareMemberKey(group_id, one)) for one in sorted(former.members)),
            *(tombstone(SharePartitionKey(group_id, tp)) for tp in sorted(former.partitions)),
            *(tombstone(key) for key in sorted(former.ended, key=encode_key)),
            tombstone(ShareGroupKey(group_id)),
        )

    # --- partitions -----------------------------------------------------------------------

    def _all_partitions(self) -> list[TopicPartition]:
        return sorted(self._former.partitions.keys() | self._partitions.keys())

    def _find(self, tp: TopicPartition) -> SharePartition:
        """A partition as this turn has left it, which must not be changed."""
        return self._partitions.get(tp) or self._former.partitions[tp]

    def _touch(self, tp: TopicPartition, *, is_changed: bool = True) -> SharePartition:
        """A partition that this turn may change."""
        if tp not in self._partitions:
            self._partitions[tp] = self._former.partitions[tp].copy()
        if is_changed:
            self._changed.add(tp)
        return self._partitions[tp]

    def _partition(self, tp: TopicPartition, known: ReadableRange) -> SharePartition:
        """A partition to acquire from: a new one if the topic is new, or new again."""
        is_known = tp in self._partitions or tp in self._former.partitions
        if not is_known or self._find(tp).topic_id != known.topic_id:
            self._partitions[tp] = SharePartition(known.topic_id, known.start_offset)
        partition = self._touch(tp, is_changed=False)
        if partition.start_offset < known.start_offset and partition.archive_below(
            known.start_offset
        ):
            self._changed.add(tp)
        return partition

    def _of_topic(self, part: PartitionAcknowledgements) -> SharePartition | None:
        """The partition that is acknowledged in; None if it is of another topic of that name."""
        tp = part.topic_partition
        if tp not in self._partitions and tp not in self._former.partitions:
            return None
        partition = self._touch(tp, is_changed=False)
        return partition if partition.topic_id == part.topic_id else None


def _too_many(acknowledgements: tuple[PartitionAcknowledgements, ...]) -> str:
    """What is wrong with the number of acknowledgements, or a partition named twice; or ""."""
    count = sum(len(part.runs) for part in acknowledgements)
    if not 1 <= count <= ACKNOWLEDGED_RUNS_MAX:
        return f"{count} acknowledged runs: give 1 to {ACKNOWLEDGED_RUNS_MAX}"
    named = {(part.topic_partition, part.topic_id) for part in acknowledgements}
    if len(named) < len(acknowledgements):
        return "a partition is named twice: give its runs together"
    return ""


def _names_producer(request: TxnShareAcknowledgeRequest) -> bool:
    """Whether the request names a producer that can have a transaction.

    Without one its batch would count at once.
    """
    return (
        NO_PRODUCER_ID < request.producer_id <= INT64_MAX
        and 0 <= request.producer_epoch <= PRODUCER_EPOCH_MAX
        and 0 <= request.base_sequence <= SEQUENCE_MAX
        and has_utf8_bytes(request.transactional_id, 1, TRANSACTIONAL_ID_MAX_BYTES)
    )
