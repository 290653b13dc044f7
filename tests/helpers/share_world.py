"""The share groups of one shard with their log, without an actor: turns, markers and reloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.messages.share import (
    AcknowledgedRun,
    AcknowledgeType,
    PartitionAcknowledgements,
    ShareAcknowledgeReply,
    ShareAcknowledgeRequest,
    ShareAcquireReply,
    ShareAcquireRequest,
    ShareGroupHeartbeatReply,
    ShareGroupHeartbeatRequest,
    TxnShareAcknowledgeRequest,
)
from oncelog.actors.protocol.queue.share_groups import ReadableRange, ShareGroups, ShareTurn
from oncelog.actors.protocol.queue.share_keys import KnownKeys
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_PRODUCER_ID, TopicPartition

GROUP = "resize"
TP = TopicPartition("tasks", 0)
TOPIC_ID = "aa" * 16
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Logged:
    """A record, or a marker, of the shard's log."""

    record: LogRecord | None = None
    producer_id: int = NO_PRODUCER_ID
    committed: bool | None = None


def state_of(groups: ShareGroups) -> Any:
    """All that the groups know, to be compared."""
    return {
        group_id: (
            group.next_epoch,
            group.order,
            group.members,
            {
                tp: (one.topic_id, one.start_offset, one.runs)
                for tp, one in group.partitions.items()
            },
            group.pending,
            group.ended,
            group.unsettled,
        )
        for group_id in groups.group_ids()
        if (group := groups.find(group_id)) is not None
    }


def runs(*given: tuple[int, int], kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> Any:
    return tuple(AcknowledgedRun(first, last, kind) for first, last in given)


class ShareWorld:
    """One shard; every turn is committed at once."""

    def __init__(self) -> None:
        self.groups = ShareGroups()
        self.log: list[Logged] = []
        self.ranges = {TP: ReadableRange(TOPIC_ID, 0, 100)}
        self.keys: dict[TopicPartition, KnownKeys] = {}
        self.sequences: dict[tuple[str, str], int] = {}

    def turn(self, act: Callable[[ShareTurn], ResultT], group_id: str = GROUP) -> ResultT:
        turn = self.groups.begin(group_id)
        result = act(turn)
        self._append(turn.records())
        return result

    def _append(self, records: tuple[LogRecord, ...], producer_id: int = NO_PRODUCER_ID) -> None:
        for record in records:
            self.log.append(Logged(record, producer_id))
            assert self.groups.apply(record)

    def next(self, kind: str, member_id: str) -> int:
        number = self.sequences.get((kind, member_id), 0) + 1
        self.sequences[kind, member_id] = number
        return number

    def join(self, member_id: str, **fields: Any) -> ShareGroupHeartbeatReply:
        request = ShareGroupHeartbeatRequest(
            **{"group_id": GROUP, "member_id": member_id, "topics": (TP.topic,), **fields}
        )
        if request.member_epoch == 0:
            self.sequences.pop(("acquire", member_id), None)
            self.sequences.pop(("acknowledge", member_id), None)
        return self.turn(lambda turn: turn.heartbeat(request))

    def acquire(self, member_id: str, epoch: int, count: int, **fields: Any) -> ShareAcquireReply:
        values = {
            "sequence": self.sequences.get(("acquire", member_id), 0) + 1,
            "topics": (TP.topic,),
            **fields,
        }
        request = ShareAcquireRequest(
            group_id=GROUP, member_id=member_id, member_epoch=epoch, max_records=count, **values
        )
        reply = self.turn(lambda turn: turn.acquire(request, self.ranges, self.keys))
        if reply.acquired:
            self.sequences["acquire", member_id] = request.sequence
        return reply

    def acknowledge(
        self, member_id: str, epoch: int, given: Any, **fields: Any
    ) -> ShareAcknowledgeReply:
        values = {"sequence": self.sequences.get(("acknowledge", member_id), 0) + 1, **fields}
        request = ShareAcknowledgeRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            acknowledgements=(
                PartitionAcknowledgements(topic_partition=TP, topic_id=TOPIC_ID, runs=given),
            ),
            **values,
        )
        reply = self.turn(lambda turn: turn.acknowledge(request))
        if reply.error is ErrorCode.NONE:
            self.sequences["acknowledge", member_id] = request.sequence
        return reply

    def txn_request(
        self, member_id: str, epoch: int, given: Any, **fields: Any
    ) -> TxnShareAcknowledgeRequest:
        values = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, **fields}
        return TxnShareAcknowledgeRequest(
            transactional_id="worker",
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            acknowledgements=(
                PartitionAcknowledgements(topic_partition=TP, topic_id=TOPIC_ID, runs=given),
            ),
            **values,
        )

    def txn_acknowledge(
        self, member_id: str, epoch: int, given: Any, **fields: Any
    ) -> ShareAcknowledgeReply:
        request = self.txn_request(member_id, epoch, given, **fields)
        reply, records = self.groups.begin(GROUP).txn_acknowledge(request)
        self._append(records, request.producer_id)
        return reply

    def mark(self, *, committed: bool, pid: int = 7, settles: bool = True) -> None:
        self.log.append(Logged(producer_id=pid, committed=committed))
        group_ids = self.groups.apply_marker(pid, committed=committed)
        if settles:
            for group_id in group_ids:
                self.turn(ShareTurn.settle, group_id)

    def states(self, tp: TopicPartition = TP) -> list[tuple[int, int, str]]:
        group = self.groups.find(GROUP)
        assert group is not None
        return [(run.first, run.last, run.state.name) for run in group.partitions[tp].runs]

    def start_offset(self) -> int:
        group = self.groups.find(GROUP)
        assert group is not None
        return group.partitions[TP].start_offset

    # --- reload ---------------------------------------------------------------------------

    def replayed(self, log: list[Logged] | None = None) -> ShareGroups:
        """A new coordinator's view of the log, or of what compaction has left of it."""
        groups = ShareGroups()
        for entry in self.log if log is None else log:
            if entry.record is not None:
                assert groups.apply(entry.record)
            else:
                assert entry.committed is not None
                groups.apply_marker(entry.producer_id, committed=entry.committed)
        return groups

    def compacted(self) -> list[Logged]:
        """The log as a cleaner leaves it at the latest.

        Up to the first open transaction, the last record of each key stays, without tombstones and
        without what was aborted. A marker stays while a record of its transaction does.
        """
        clean_end = self._first_open()
        newest = {
            entry.record.key: place
            for place, entry in enumerate(self.log[:clean_end])
            if entry.record is not None and self._outcome(place) is not False
        }
        kept = []
        for place, entry in enumerate(self.log):
            if place >= clean_end:
                kept.append(place)
            elif entry.record is not None:
                is_newest = newest.get(entry.record.key) == place
                if is_newest and entry.record.value is not None:
                    kept.append(place)
            elif any(
                self.log[other].producer_id == entry.producer_id and self._marker(other) == place
                for other in kept
            ):
                kept.append(place)
        return [self.log[place] for place in kept]

    def _marker(self, place: int) -> int | None:
        """Where the marker of a record's transaction is."""
        producer_id = self.log[place].producer_id
        if producer_id == NO_PRODUCER_ID:
            return None
        for later in range(place + 1, len(self.log)):
            if self.log[later].record is None and self.log[later].producer_id == producer_id:
                return later
        return None

    def _outcome(self, place: int) -> bool | None:
        marker = self._marker(place)
        return None if marker is None else self.log[marker].committed

    def _first_open(self) -> int:
        for place, entry in enumerate(self.log):
            is_open = entry.record is not None and entry.producer_id != NO_PRODUCER_ID
            if is_open and self._marker(place) is None:
                return place
        return len(self.log)
