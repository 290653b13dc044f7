"""Committed positions of Kafka's clients, onto the group coordinators.

The positions are those of oncelog's own clients: a group may have both kinds of consumers, one
after the other or at once. Kafka's clients do not tell of which topic a position is, only of which
name: it counts for the topic that exists at the commit. What was committed in a deleted topic is
not a position in a new one of that name.

Source: KIP-98, KIP-211, KIP-320 (leader epochs), KIP-447 (stable reads), KIP-496 (deletion),
KIP-709 (several groups in a fetch).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from oncelog.actors.coordination.cluster_view import ANY_AGE_MS
from oncelog.actors.gateway.calls import Call
from oncelog.actors.gateway.errors import of_coordinator
from oncelog.actors.gateway.groups.membership import (
    GROUPS_PER_REQUEST_MAX,
    ask_coordinator,
    asked_of_each,
    commits_done,
    commits_in_order,
    throttle_of,
)
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from oncelog.actors.gateway.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from oncelog.actors.gateway.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages import group
from oncelog.actors.protocol.messages.cluster import TopicMetadata
from oncelog.actors.protocol.messages.group import FetchedOffset, OffsetAndMetadata, PartitionResult
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

TOP_ERROR_VERSION: Final = 2
"""From this OffsetFetch on a response has an error of the whole."""

GROUPS_VERSION: Final = 8
"""From this OffsetFetch on a request names several groups."""

Positions = tuple[tuple[TopicPartition, OffsetAndMetadata], ...]

TopicT = TypeVar("TopicT")
PartitionT = TypeVar("PartitionT")


class Named(Protocol):
    """A partition of a topic in a request."""

    @property
    def partition_index(self) -> int:
        """Its number."""
        ...


class Committed(Named, Protocol):
    """A position in a request that commits: of OffsetCommit or TxnOffsetCommit."""

    @property
    def committed_offset(self) -> int:
        """The next offset to read."""
        ...

    @property
    def committed_leader_epoch(self) -> int:
        """The leader epoch of the record before it, or -1."""
        ...

    @property
    def committed_metadata(self) -> str | None:
        """What the client keeps with it."""
        ...


class NamedTopic(Protocol):
    """A topic in a request, with some of its partitions."""

    @property
    def name(self) -> str:
        """The topic's name."""
        ...

    @property
    def partitions(self) -> Sequence[Named]:
        """The partitions that the request names."""
        ...


class CommittedTopic(NamedTopic, Protocol):
    """A topic in a request that commits."""

    @property
    def partitions(self) -> Sequence[Committed]:
        """The positions in its partitions."""
        ...


# --- conversions ----------------------------------------------------------------------------------


def positions_of(topics: Iterable[CommittedTopic]) -> Positions:
    """The positions that a request commits, for a coordinator."""
    return tuple(
        (
            TopicPartition(topic.name, one.partition_index),
            OffsetAndMetadata(
                offset=one.committed_offset,
                leader_epoch=one.committed_leader_epoch,
                metadata=one.committed_metadata or "",
            ),
        )
        for topic in topics
        for one in topic.partitions
    )


def results_by_topic(
    topics: Iterable[NamedTopic],
    error: ErrorCode,
    results: Iterable[PartitionResult],
    *,
    of_topic: Callable[[str, list[PartitionT]], TopicT],
    of_partition: Callable[[int, int], PartitionT],
) -> list[TopicT]:
    """What became of each partition that a request names, in its order.

    ``error`` is that of the whole reply, ``results`` are those of its partitions. ``of_topic``
    makes a topic of the response of its name and partitions, ``of_partition`` a partition of its
    number and Kafka's error code.
    """
    errors = {one.topic_partition: one.error for one in results}
    # Never success by default: what a coordinator does not mention may not be durable.
    other = ErrorCode.UNKNOWN_SERVER_ERROR if error is ErrorCode.NONE else error
    return [
        of_topic(
            topic.name,
            [
                of_partition(
                    one.partition_index,
                    of_coordinator(
                        errors.get(TopicPartition(topic.name, one.partition_index), other)
                    ),
                )
                for one in topic.partitions
            ],
        )
        for topic in topics
    ]


# --- commit ---------------------------------------------------------------------------------------


async def offset_commit(call: Call, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Commit positions; durable where the response has no error."""
    async with commits_in_order(call, request.group_id):
        reply = await ask_coordinator(
            call,
            request.group_id,
            group.OffsetCommitRequest(
                group_id=request.group_id,
                offsets=positions_of(request.topics),
                generation_id=request.generation_id_or_member_epoch,
                member_id=request.member_id,
                group_instance_id=request.group_instance_id,
            ),
        )
    return OffsetCommitResponse(
        throttle_time_ms=throttle_of(reply),
        topics=results_by_topic(
            request.topics,
            reply.error,
            reply.results,
            of_topic=lambda name, parts: OffsetCommitResponseTopic(name=name, partitions=parts),
            of_partition=lambda index, code: OffsetCommitResponsePartition(
                partition_index=index, error_code=code
            ),
        ),
    )


# --- fetch ----------------------------------------------------------------------------------------


class _AskedTopic(Protocol):
    """A topic in a request for positions."""

    @property
    def name(self) -> str: ...

    @property
    def partition_indexes(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The positions of one group, by topic; with an error there are none."""

    error: ErrorCode
    by_topic: Sequence[tuple[str, Sequence[FetchedOffset]]] = ()
    throttle_ms: int = 0


async def offset_fetch(call: Call, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Tell the committed positions of a group; of several from version 8 on, all at a time."""
    if call.version >= GROUPS_VERSION:
        return await _offset_fetch_of_groups(call, request)
    found = await _find(call, request.group_id, request.topics, stable=request.require_stable)
    by_topic = found.by_topic
    if found.error is not ErrorCode.NONE and call.version < TOP_ERROR_VERSION:
        by_topic = [
            (
                topic.name,
                [_failed(topic.name, index, found.error) for index in topic.partition_indexes],
            )
            for topic in request.topics or ()
        ]
    return OffsetFetchResponse(
        throttle_time_ms=found.throttle_ms,
        error_code=of_coordinator(found.error),
        topics=[
            OffsetFetchResponseTopic(
                name=name,
                partitions=[_answered(one, OffsetFetchResponsePartition) for one in offsets],
            )
            for name, offsets in by_topic
        ],
    )


async def _offset_fetch_of_groups(call: Call, request: OffsetFetchRequest) -> OffsetFetchResponse:
    answered = request.groups[:GROUPS_PER_REQUEST_MAX]
    found = await asked_of_each(
        answered,
        lambda one: _find(call, one.group_id, one.topics, stable=request.require_stable),
    )
    found += [_Found(error=ErrorCode.INVALID_REQUEST)] * (len(request.groups) - len(found))
    return OffsetFetchResponse(
        throttle_time_ms=max((one.throttle_ms for one in found), default=0),
        groups=[
            OffsetFetchResponseGroup(
                group_id=asked.group_id,
                error_code=of_coordinator(one.error),
                topics=[
                    OffsetFetchResponseTopics(
                        name=name,
                        partitions=[
                            _answered(each, OffsetFetchResponsePartitions) for each in offsets
                        ],
                    )
                    for name, offsets in one.by_topic
                ],
            )
            for asked, one in zip(request.groups, found, strict=True)
        ],
    )


async def _find(
    call: Call, group_id: str, topics: Sequence[_AskedTopic] | None, *, stable: bool
) -> _Found:
    """The positions of a group in ``topics``, or all that it has."""
    await commits_done(call, group_id)
    asked = None
    if topics is not None:
        asked = tuple(
            TopicPartition(topic.name, index)
            for topic in topics
            for index in topic.partition_indexes
        )
    reply = await ask_coordinator(
        call,
        group_id,
        group.OffsetFetchRequest(group_id=group_id, partitions=asked, require_stable=stable),
    )
    error, throttle_ms = reply.error, throttle_of(reply)
    gone: Collection[TopicPartition] = ()
    if error is ErrorCode.NONE:
        error, gone = await _of_deleted_topics(call, reply.offsets)
    if error is not ErrorCode.NONE:
        return _Found(error=error, throttle_ms=throttle_ms)
    offsets = {one.topic_partition: one for one in reply.offsets}
    by_topic: Sequence[tuple[str, Sequence[FetchedOffset]]]
    if topics is None:
        all_of: dict[str, list[FetchedOffset]] = {}
        for tp, one in offsets.items():
            if tp not in gone:
                all_of.setdefault(tp.topic, []).append(one)
        by_topic = list(all_of.items())
    else:
        offsets |= {tp: FetchedOffset(topic_partition=tp) for tp in gone}
        by_topic = [
            (topic.name, [_named(offsets, topic.name, index) for index in topic.partition_indexes])
            for topic in topics
        ]
    return _Found(error=ErrorCode.NONE, by_topic=by_topic, throttle_ms=throttle_ms)


async def _of_deleted_topics(
    call: Call, offsets: Iterable[FetchedOffset]
) -> tuple[ErrorCode, Collection[TopicPartition]]:
    """The positions in topics that are deleted, though others may have their names by now.

    What is known of topics may be old, so the controller is asked before a position does not count.
    ``COORDINATOR_NOT_AVAILABLE`` if it does not answer then.
    """
    with_ids = [one for one in offsets if one.topic_id and one.offset >= 0]
    if not with_ids:
        return ErrorCode.NONE, ()
    view = call.cluster.view
    names = {one.topic_partition.topic for one in with_ids}
    _, known = await view.topics(names, as_of_ms=ANY_AGE_MS)
    others = [one for one in with_ids if not _is_in(known.get(one.topic_partition.topic), one)]
    if not others:
        return ErrorCode.NONE, ()
    # Of the next millisecond: an answer of this one may be older than the reply.
    names = {one.topic_partition.topic for one in others}
    error, known = await view.topics(names, as_of_ms=loop_ms() + 1)
    if error is not ErrorCode.NONE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, ()
    return ErrorCode.NONE, {
        one.topic_partition
        for one in others
        if not _is_in(known.get(one.topic_partition.topic), one)
    }


def _is_in(topic: TopicMetadata | None, position: FetchedOffset) -> bool:
    return topic is not None and topic.topic_id == position.topic_id


def _named(
    offsets: dict[TopicPartition, FetchedOffset], topic: str, partition: int
) -> FetchedOffset:
    # Never "no position" by default: the client would begin at one end of the log.
    found = offsets.get(TopicPartition(topic, partition))
    return found or _failed(topic, partition, ErrorCode.UNKNOWN_SERVER_ERROR)


def _failed(topic: str, partition: int, error: ErrorCode) -> FetchedOffset:
    return FetchedOffset(topic_partition=TopicPartition(topic, partition), error=error)


def _answered(one: FetchedOffset, of: Callable[..., PartitionT]) -> PartitionT:
    """A position in a response; without one -1, -1 and ""."""
    return of(
        partition_index=one.topic_partition.partition,
        committed_offset=one.offset,
        committed_leader_epoch=one.leader_epoch,
        metadata=one.metadata,
        error_code=of_coordinator(one.error),
    )


# --- delete ---------------------------------------------------------------------------------------


async def offset_delete(call: Call, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete positions, but not those of topics that members read."""
    await commits_done(call, request.group_id)
    asked = group.DeleteOffsetsRequest(
        group_id=request.group_id,
        partitions=tuple(
            TopicPartition(topic.name, one.partition_index)
            for topic in request.topics
            for one in topic.partitions
        ),
    )
    reply = await ask_coordinator(call, request.group_id, asked)
    if reply.error is not ErrorCode.NONE:
        return OffsetDeleteResponse(
            throttle_time_ms=throttle_of(reply), error_code=of_coordinator(reply.error)
        )
    return OffsetDeleteResponse(
        throttle_time_ms=throttle_of(reply),
        topics=results_by_topic(
            request.topics,
            reply.error,
            reply.results,
            of_topic=lambda name, parts: OffsetDeleteResponseTopic(name=name, partitions=parts),
            of_partition=lambda index, code: OffsetDeleteResponsePartition(
                partition_index=index, error_code=code
            ),
        ),
    )


HANDLERS: Final[dict[ApiKey, Callable[[Call, Any], Awaitable[Any]]]] = {
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.OFFSET_DELETE: offset_delete,
}
"""Each takes a call and the request of its API, and returns the response."""
