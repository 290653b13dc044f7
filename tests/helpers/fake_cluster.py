"""A cluster in memory behind ``Transport``."""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from msgspec import structs
from topics import topic_of
from virtual_time import ManualClock

from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.cluster import (
    MetadataReply,
    MetadataRequest,
)
from oncelog.actors.protocol.messages.group import (
    FetchedOffset,
    HeartbeatReply,
    HeartbeatRequest,
    JoinedMember,
    JoinGroupReply,
    JoinGroupRequest,
    LeaveGroupReply,
    LeaveGroupRequest,
    OffsetCommitReply,
    OffsetCommitRequest,
    OffsetFetchReply,
    OffsetFetchRequest,
    PartitionResult,
    SyncGroupReply,
    SyncGroupRequest,
)
from oncelog.actors.protocol.messages.partition import (
    FetchReply,
    FetchRequest,
    ListOffsetsReply,
    ListOffsetsRequest,
)
from oncelog.api.session.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    LATEST_TIMESTAMP,
    TRANSACTION_STATE_TOPIC,
    AbortedTransaction,
    IsolationLevel,
    TopicPartition,
)
from oncelog.storage.records.batch import iterate_batches, parse_header, patch
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.control import encode_marker


@dataclass
class FakeLog:
    """One partition: its bytes, its bounds and its aborted transactions."""

    batches: list[bytes] = field(default_factory=list)
    log_start_offset: int = 0
    log_end_offset: int = 0
    open_from: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, AbortedTransaction]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def last_stable_offset(self) -> int:
        return min(self.open_from.values(), default=self.log_end_offset)

    def append(
        self, *values: bytes, producer_id: int = -1, codec_time_ms: int = 1_000, key: bytes = b"k"
    ) -> int:
        """Append one batch; with a producer id it is transactional. Returns its base offset."""
        batch = encode_records(
            [(key, value, codec_time_ms + place, ()) for place, value in enumerate(values)],
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=0 if producer_id >= 0 else -1,
            is_transactional=producer_id >= 0,
        )
        if producer_id >= 0:
            self.open_from.setdefault(producer_id, self.log_end_offset)
        return self.add(batch)

    def mark(self, producer_id: int, *, committed: bool) -> int:
        """End a transaction with its marker. Returns the marker's offset."""
        batch = encode_marker(
            producer_id=producer_id,
            producer_epoch=1,
            committed=committed,
            coordinator_epoch=0,
            timestamp_ms=2_000,
        )
        first_offset = self.open_from.pop(producer_id, None)
        offset = self.add(batch)
        if not committed and first_offset is not None:
            aborted = AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
            self.aborted.append((offset, aborted))
        return offset

    def add(self, batch: bytearray) -> int:
        base_offset = self.log_end_offset
        patch(batch, base_offset=base_offset, leader_epoch=0)
        self.log_end_offset = parse_header(batch).next_offset
        self.batches.append(bytes(batch))
        self.changed.set()
        return base_offset

    def read(self, offset: int, end: int, max_bytes: int) -> bytes:
        found = bytearray()
        for batch in self.batches:
            header = parse_header(batch)
            if header.next_offset > offset and header.next_offset <= end:
                if found and len(found) + len(batch) > max_bytes:
                    break
                found += batch
        return bytes(found)


class FakeCluster:
    """``Transport``: topics in memory, a group of one member, and hooks for everything else.

    ``actors[name]`` is asked first, then ``hooks[type of request]``; ``None`` from either means:
    answer as usual.
    """

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, FakeLog] = {}
        self.counts: dict[str, int] = {}
        self.hidden: set[str] = set()
        """Topics that the caller may not see, and of which it may do nothing."""
        self.leaders: dict[TopicPartition, int] = {}
        self.topic_ids: defaultdict[str, str] = defaultdict(lambda: "0" * 32)
        self.fetch_max_bytes = 1 << 30
        self.calls: list[tuple[str, Any]] = []
        self.actors: dict[str, Callable[[Any], Any]] = {}
        self.hooks: dict[type, Callable[[Any], Any]] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.metadata: dict[TopicPartition, str] = {}
        self.settings: dict[str, tuple[tuple[str, str], ...]] = {}
        self.generation_id = 0
        self.member_id = ""
        self.clock = ManualClock()
        self.random = Random(7)
        self.answers: dict[type, Callable[[Any], Any]] = {
            MetadataRequest: self._metadata,
            FetchRequest: self._fetch,
            ListOffsetsRequest: self._list_offsets,
            JoinGroupRequest: self._join,
            SyncGroupRequest: self._sync,
            HeartbeatRequest: lambda request: HeartbeatReply(),
            LeaveGroupRequest: lambda request: LeaveGroupReply(
                results=(ErrorCode.NONE,) * len(request.members)
            ),
            OffsetFetchRequest: self._offset_fetch,
            OffsetCommitRequest: self._offset_commit,
        }

    def create(self, topic: str, partitions: int = 1) -> list[FakeLog]:
        self.counts[topic] = partitions
        for number in range(partitions):
            self.logs[TopicPartition(topic, number)] = FakeLog()
        return [self.logs[TopicPartition(topic, number)] for number in range(partitions)]

    def delete(self, topic: str) -> None:
        for number in range(self.counts.pop(topic)):
            del self.logs[TopicPartition(topic, number)]

    def router(self) -> Router:
        return Router(self, self.clock)

    def requests(self, kind: type) -> list[Any]:
        return [request for _, request in self.calls if isinstance(request, kind)]

    def fail(self, kind: type, error: ErrorCode, times: int = 1) -> None:
        """Answer the next ``times`` requests of ``kind`` with ``error``."""
        left = [times]

        def hook(request: Request[Any]) -> Any:
            left[0] -= 1
            return request.failed(error) if left[0] >= 0 else None

        self.hooks[kind] = hook

    async def call(self, actor: str, request: Request[Any], *, timeout_ms: int) -> Any:
        self.calls.append((actor, request))
        await asyncio.sleep(0)
        named = getattr(request, "topic_partition", None)
        if named is not None and named.topic in self.hidden:
            refused = f"User:bob may not call {request.method!r}"
            return request.failed(ErrorCode.TOPIC_AUTHORIZATION_FAILED, refused)
        handlers = (
            self.actors.get(actor),
            self.hooks.get(type(request)),
            self.answers.get(type(request)),
        )
        for handler in handlers:
            reply = handler(request) if handler is not None else None
            if inspect.isawaitable(reply):
                reply = await reply
            if reply is not None:
                return reply
        return request.failed(ErrorCode.NETWORK_EXCEPTION)

    def _metadata(self, request: MetadataRequest) -> MetadataReply:
        counts = {CONSUMER_OFFSETS_TOPIC: 2, TRANSACTION_STATE_TOPIC: 2, **self.counts}
        topics = tuple(
            structs.replace(
                topic_of(
                    name,
                    *(self.leaders.get(TopicPartition(name, n), 1) for n in range(count)),
                    topic_id=self.topic_ids[name],
                ),
                settings=self.settings.get(name, ()),
            )
            for name, count in counts.items()
            if request.topics is None or name in request.topics
            if name not in self.hidden
        )
        return MetadataReply(
            cluster_id="fake",
            topics=topics,
            refused=tuple(filter(self.hidden.__contains__, request.topics or ())),
            transaction_state_partitions=2,
            offsets_partitions=2,
        )

    async def _fetch(self, request: FetchRequest) -> FetchReply:
        log = self.logs.get(request.topic_partition)
        if log is None:
            return request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if request.topic_id not in ("", self.topic_ids[request.topic_partition.topic]):
            return request.failed(ErrorCode.UNKNOWN_TOPIC_ID)
        is_committed = request.isolation_level is IsolationLevel.READ_COMMITTED
        if not log.log_start_offset <= request.fetch_offset <= log.log_end_offset:
            return request.failed(ErrorCode.OFFSET_OUT_OF_RANGE)
        deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1_000
        while True:
            end = log.last_stable_offset if is_committed else log.log_end_offset
            max_bytes = min(request.max_bytes, self.fetch_max_bytes)
            records = log.read(request.fetch_offset, end, max_bytes)
            remaining = deadline - asyncio.get_running_loop().time()
            if records or remaining <= 0:
                break
            log.changed.clear()
            waiter = asyncio.ensure_future(log.changed.wait())
            await asyncio.wait({waiter}, timeout=remaining)
            waiter.cancel()
        upper = max((header.next_offset for _, header in iterate_batches(records)), default=0)
        aborted = tuple(
            item
            for marker_offset, item in log.aborted
            if marker_offset >= request.fetch_offset and item.first_offset < upper
        )
        return FetchReply(
            high_watermark=log.log_end_offset,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=aborted if is_committed else None,
            records=records,
        )

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsReply:
        log = self.logs.get(request.topic_partition)
        if log is None:
            return request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        is_committed = request.isolation_level is IsolationLevel.READ_COMMITTED
        if request.timestamp_ms == LATEST_TIMESTAMP:
            end = log.last_stable_offset if is_committed else log.log_end_offset
            return ListOffsetsReply(offset=end)
        if request.timestamp_ms < 0:
            return ListOffsetsReply(offset=log.log_start_offset)
        for batch in log.batches:
            header = parse_header(batch)
            if header.max_timestamp_ms >= request.timestamp_ms:
                return ListOffsetsReply(
                    offset=header.base_offset, timestamp_ms=header.base_timestamp_ms
                )
        return ListOffsetsReply()

    def _join(self, request: JoinGroupRequest) -> JoinGroupReply:
        if not request.member_id:
            return JoinGroupReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="member-1")
        self.generation_id += 1
        self.member_id = request.member_id
        return JoinGroupReply(
            generation_id=self.generation_id,
            protocol_name=request.protocols[0].name,
            leader_id=self.member_id,
            member_id=self.member_id,
            members=(
                JoinedMember(
                    member_id=self.member_id,
                    group_instance_id=request.group_instance_id,
                    metadata=request.protocols[0].metadata,
                ),
            ),
        )

    def _sync(self, request: SyncGroupRequest) -> SyncGroupReply:
        return SyncGroupReply(
            protocol_name=request.protocol_name or "", assignment=request.assignments[0].assignment
        )

    def _offset_fetch(self, request: OffsetFetchRequest) -> OffsetFetchReply:
        wanted = request.partitions if request.partitions is not None else tuple(self.committed)
        return OffsetFetchReply(
            offsets=tuple(
                FetchedOffset(
                    topic_partition=tp,
                    offset=self.committed.get(tp, -1),
                    metadata=self.metadata.get(tp, ""),
                )
                for tp in wanted
            )
        )

    def _offset_commit(self, request: OffsetCommitRequest) -> OffsetCommitReply:
        self.committed |= {tp: committed.offset for tp, committed in request.offsets}
        self.metadata |= {tp: committed.metadata for tp, committed in request.offsets}
        return OffsetCommitReply(
            results=tuple(
                PartitionResult(topic_partition=tp, error=ErrorCode.NONE)
                for tp, _ in request.offsets
            )
        )


def one_partition() -> tuple[FakeCluster, FakeLog]:
    """Topic ``t`` with partition 0, of which a fetch gives one batch."""
    cluster = FakeCluster()
    cluster.fetch_max_bytes = 1
    (log,) = cluster.create("t")
    return cluster, log
