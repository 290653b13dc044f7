"""Calls about offsets, for consumers, the admin client and data sources.

Each calls an actor at most once per attempt, retries retriable errors until the time is up, and
raises other errors as ``OncelogError``. An unknown topic is not retried: waiting will not create
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, Final

from msgspec import structs

from oncelog.actors.protocol.messages.cluster import TopicMetadata
from oncelog.actors.protocol.messages.group import (
    OffsetAndMetadata,
    OffsetCommitReply,
    OffsetCommitRequest,
    OffsetFetchReply,
    OffsetFetchRequest,
)
from oncelog.actors.protocol.messages.partition import ListOffsetsReply, ListOffsetsRequest
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.api.session.retry import Backoff, BackoffPolicy, call_with_retries
from oncelog.api.session.rights import needing
from oncelog.api.session.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import exception_for
from oncelog.storage.model import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from oncelog.api.config import ConsumerSettings

REQUEST_TIMEOUT_MS = 30_000
"""Deadline of one attempt, if that much time is left."""


_LASTING: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.CORRUPT_MESSAGE,
    }
)


def is_retriable(error: ErrorCode) -> bool:
    """Whether a retry may help: not for an unknown topic or a damaged log."""
    return error.retriable and error not in _LASTING


def consumer_backoff(settings: ConsumerSettings, random: Random) -> Backoff:
    """The waits between the attempts of one consumer operation."""
    return Backoff(BackoffPolicy.of(settings), random)


def lag_of(position: int, *, start_offset: int, end_offset: int) -> int:
    """Return the consumer lag at ``position``, in offsets.

    Counts from ``position``, or the log start (inclusive) if that is higher, to the end (exclusive)
    that the isolation level allows.
    """
    return max(0, end_offset - max(position, start_offset))


async def list_offsets(
    router: Router,
    targets: Mapping[TopicPartition, int],
    *,
    isolation_level: IsolationLevel,
    random: Random,
    timeout_ms: int,
) -> dict[TopicPartition, ListOffsetsReply]:
    """The offset of each partition for its timestamp, or ``LATEST_TIMESTAMP`` and the like.

    "Latest" is the last stable offset for read_committed, else the high watermark (exclusive).
    """

    async def ask(topic_partition: TopicPartition, timestamp_ms: int) -> ListOffsetsReply:
        request = ListOffsetsRequest(
            topic_partition=topic_partition,
            timestamp_ms=timestamp_ms,
            isolation_level=isolation_level,
        )
        reply = await call_with_retries(
            lambda left_ms: router.call_leader(
                topic_partition, request, timeout_ms=min(left_ms, REQUEST_TIMEOUT_MS)
            ),
            random=random,
            timeout_ms=timeout_ms,
            is_retriable=is_retriable,
        )
        if reply.error is not ErrorCode.NONE:
            late = f"no offset of {topic_partition} within {timeout_ms} ms: {reply.error.name}"
            with needing(topic=f"Describe on topic {topic_partition.topic!r}"):
                raise exception_for(reply.error, reply.detail or late)
        return reply

    replies = await asyncio.gather(*(ask(tp, timestamp) for tp, timestamp in targets.items()))
    return dict(zip(targets, replies, strict=True))


async def fetch_committed(
    router: Router,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    random: Random,
    timeout_ms: int,
    require_stable: bool = True,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Committed offsets of a group: of ``partitions``, or all; those without one are left out.

    The offset of a deleted topic does not count for a new topic of the same name. Waits for open
    transactions that may commit one of them, because the old offset would let input be processed
    twice. Without ``require_stable`` it returns the old one. Source: KIP-447.
    """
    wanted = None if partitions is None else tuple(partitions)
    request = OffsetFetchRequest(
        group_id=group_id, partitions=wanted, require_stable=require_stable
    )

    async def attempt(left_ms: int) -> OffsetFetchReply:
        reply = await router.call_group_coordinator(
            group_id, request, timeout_ms=min(left_ms, REQUEST_TIMEOUT_MS)
        )
        errors = [item.error for item in reply.offsets]
        return structs.replace(reply, error=_first_error(reply.error, errors))

    reply = await call_with_retries(attempt, random=random, timeout_ms=timeout_ms)
    if reply.error is not ErrorCode.NONE:
        raise exception_for(reply.error, reply.detail)
    found = {
        item.topic_partition: OffsetAndMetadata(
            offset=item.offset,
            leader_epoch=item.leader_epoch,
            metadata=item.metadata,
            topic_id=item.topic_id,
        )
        for item in reply.offsets
        if item.offset >= 0
    }
    known = await router.metadata({tp.topic for tp in found})
    other = {tp.topic for tp, position in found.items() if not _is_in(known, tp, position)}
    if other:
        # Either the offset is of a deleted topic, or our metadata of the topic is old.
        known = {**known, **await router.metadata(other, refresh=True)}
    return {tp: position for tp, position in found.items() if _is_in(known, tp, position)}


def _is_in(
    known: Mapping[str, TopicMetadata], tp: TopicPartition, position: OffsetAndMetadata
) -> bool:
    """Whether the offset is of the topic that has this name now, according to ``known``."""
    if not position.topic_id:
        return True
    return tp.topic in known and known[tp.topic].topic_id == position.topic_id


async def commit_offsets(
    router: Router,
    group: ConsumerGroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    random: Random,
    timeout_ms: int,
) -> None:
    """Commit offsets outside a transaction; durable on return. Safe to repeat.

    After ``IllegalGenerationError``, ``UnknownMemberIdError`` or ``RebalanceInProgressError`` the
    partitions may belong to another member.
    """
    if not offsets:
        return
    request = OffsetCommitRequest(
        group_id=group.group_id,
        offsets=tuple(offsets.items()),
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
    )

    async def attempt(left_ms: int) -> OffsetCommitReply:
        reply = await router.call_group_coordinator(
            group.group_id, request, timeout_ms=min(left_ms, REQUEST_TIMEOUT_MS)
        )
        errors = [item.error for item in reply.results]
        return structs.replace(reply, error=_first_error(reply.error, errors))

    reply = await call_with_retries(
        attempt,
        random=random,
        timeout_ms=timeout_ms,
        is_retriable=lambda error: (
            is_retriable(error) and error is not ErrorCode.REBALANCE_IN_PROGRESS
        ),
    )
    if reply.error is not ErrorCode.NONE:
        raise exception_for(reply.error, reply.detail)


def _first_error(whole: ErrorCode, parts: Iterable[ErrorCode]) -> ErrorCode:
    """The error of a reply: its own, else a part's that is final, else a retriable one."""
    if whole is not ErrorCode.NONE:
        return whole
    errors = [error for error in parts if error is not ErrorCode.NONE]
    return next(
        (error for error in errors if not error.retriable), errors[0] if errors else ErrorCode.NONE
    )
