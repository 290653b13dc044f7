"""The admin client's calls: each is retried while a retry may help.

All are safe to repeat. An unknown topic is not retried. Arguments are checked here, before any
call; the controller checks them against the state of the cluster.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, cast

from oncelog.actors.config import TopicConfig
from oncelog.actors.interfaces import address_of, placements_of
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.messages.base import Reply, ReplyT, Request
from oncelog.actors.protocol.messages.brokers import (
    DrainBrokerRequest,
    ReassignPartitionRequest,
)
from oncelog.actors.protocol.messages.cluster import MetadataReply
from oncelog.actors.protocol.messages.group import (
    LeaveGroupReply,
    LeaveGroupRequest,
    LeavingMember,
)
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply, DescribeReplicaRequest
from oncelog.api.session.committed_offsets import is_retriable
from oncelog.api.session.retry import call_with_retries
from oncelog.api.session.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    BrokerNotAvailableError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    UnknownTopicOrPartitionError,
    exception_for,
)
from oncelog.storage.model import TopicPartition, is_valid_topic_name
from oncelog.storage.settings import check_name

TIMEOUT_MS: Final = 60_000
"""For how long a call is retried."""

ATTEMPT_TIMEOUT_MS: Final = 30_000
"""Deadline of one attempt. Deleting a topic takes long: its actors are stopped first."""

REPLICA_TIMEOUT_MS: Final = 5_000
"""How long one replica may take to describe itself."""

ASKED_MAX: Final = 100
"""Replicas that are asked at a time."""

NAMED_MAX: Final = 10
"""An error names at most this many partitions."""


class AdminCalls:
    """Calls to the controller, to leaders and to coordinators. Belongs to one event loop."""

    def __init__(self, router: Router, *, random: Random, timeout_ms: int = TIMEOUT_MS) -> None:
        self.router = router
        self.random = random
        self.timeout_ms = timeout_ms

    async def retried(
        self,
        attempt: Callable[[int], Coroutine[Any, Any, ReplyT]],
        is_retriable: Callable[[ErrorCode], bool] = is_retriable,
    ) -> ReplyT:
        """Repeat ``attempt`` until its reply is final or the time is up; return the last reply.

        ``attempt`` gets its own deadline in ms.
        """
        return await call_with_retries(
            lambda left_ms: attempt(min(left_ms, ATTEMPT_TIMEOUT_MS)),
            random=self.random,
            timeout_ms=self.timeout_ms,
            is_retriable=is_retriable,
        )

    async def delete(
        self, attempt: Callable[[int], Coroutine[Any, Any, ReplyT]], *, gone: ErrorCode
    ) -> Reply:
        """Repeat a deletion; ``gone`` counts as success if an earlier attempt got no reply."""
        attempts = 0

        async def counted(timeout_ms: int) -> Reply:
            nonlocal attempts
            attempts += 1
            reply = await attempt(timeout_ms)
            return Reply() if attempts > 1 and reply.error is gone else reply

        return await self.retried(counted)

    async def controller(
        self, request: Request[ReplyT], *, not_retried: Collection[ErrorCode] = ()
    ) -> ReplyT:
        """Call the controller; do not retry the errors ``not_retried``, though retriable."""
        return await self.retried(
            lambda timeout_ms: self.router.call_controller(request, timeout_ms=timeout_ms),
            lambda error: is_retriable(error) and error not in not_retried,
        )

    async def group(self, group_id: str, request: Request[ReplyT]) -> ReplyT:
        """Call the coordinator of a group."""
        return await self.retried(
            lambda timeout_ms: self.router.call_group_coordinator(
                group_id, request, timeout_ms=timeout_ms
            )
        )

    async def transaction(self, transactional_id: str, request: Request[ReplyT]) -> ReplyT:
        """Call the coordinator of a transactional id."""
        return await self.retried(
            lambda timeout_ms: self.router.call_transaction_coordinator(
                transactional_id, request, timeout_ms=timeout_ms
            )
        )

    async def leader(self, topic_partition: TopicPartition, request: Request[ReplyT]) -> ReplyT:
        """Call the leader of a partition."""
        return await self.retried(
            lambda timeout_ms: self.router.call_leader(
                topic_partition, request, timeout_ms=timeout_ms
            )
        )

    async def wait_until_led(self, name: str, partitions: int) -> None:
        """Wait until every partition accepts writes, or raise ``BrokerNotAvailableError``.

        The error names the partitions that do not; the topic exists in either case.
        """
        # Cached metadata of this topic is from before the change. Each look-up below is retried.
        self.router.invalidate(TopicPartition(name, 0))

        async def ask(topic_partition: TopicPartition, left_ms: int) -> DescribeReplicaReply:
            request = DescribeReplicaRequest(topic_partition=topic_partition)
            reply = await self.router.call_leader(
                topic_partition, request, timeout_ms=min(left_ms, ATTEMPT_TIMEOUT_MS)
            )
            if reply.error is ErrorCode.NONE and not reply.takes_writes:
                return request.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return reply

        async def wait(topic_partition: TopicPartition) -> ErrorCode:
            reply = await call_with_retries(
                functools.partial(ask, topic_partition),
                random=self.random,
                timeout_ms=self.timeout_ms,
            )
            return reply.error

        errors = await asyncio.gather(
            *(wait(TopicPartition(name, number)) for number in range(partitions))
        )
        waiting = [
            f"{number} ({error.name})"
            for number, error in enumerate(errors)
            if error is not ErrorCode.NONE
        ]
        if waiting:
            named = ", ".join(waiting[:NAMED_MAX]) + ("" if len(waiting) <= NAMED_MAX else ", …")
            raise BrokerNotAvailableError(
                f"topic {name!r} exists, but {len(waiting)} of its {partitions} partitions "
                f"do not accept writes after {self.timeout_ms // 1_000} s: {named}"
            )

    async def shards(self, topic: str, request: Request[ReplyT]) -> list[ReplyT]:
        """Call every coordinator shard once; return the replies or raise the first error."""
        count = await self.router.partition_count(topic)
        replies = await asyncio.gather(
            *(self.leader(TopicPartition(topic, shard), request) for shard in range(count))
        )
        for reply in replies:
            check(reply)
        return replies


def check(reply: Reply, detail: str = "") -> None:
    """Raise a reply's error as an exception; ``detail`` describes an error without a text."""
    if reply.error is not ErrorCode.NONE:
        raise exception_for(
            reply.error, reply.detail or ("" if is_retriable(reply.error) else detail)
        )


async def remove_members(
    calls: AdminCalls, group_id: str, leaving: Sequence[LeavingMember]
) -> None:
    """Remove members from a group; ``UnknownMemberIdError`` names those that are not members."""
    if not leaving:
        return
    request = LeaveGroupRequest(group_id=group_id, members=tuple(leaving))
    attempts = 0

    async def counted(timeout_ms: int) -> LeaveGroupReply:
        nonlocal attempts
        attempts += 1
        return await calls.router.call_group_coordinator(group_id, request, timeout_ms=timeout_ms)

    reply = await calls.retried(counted)
    check(reply)
    # An attempt without a reply may have removed members that are unknown now.
    gone = {ErrorCode.UNKNOWN_MEMBER_ID} if attempts > 1 else set()
    refused = {
        member.group_instance_id or member.member_id: error
        for member, error in zip(leaving, reply.results, strict=True)
        if error is not ErrorCode.NONE and error not in gone
    }
    if refused:
        raise exception_for(
            next(iter(refused.values())), f"group {group_id!r} has no member {', '.join(refused)}"
        )


# --- arguments --------------------------------------------------------------------------------


def is_whole(value: object) -> bool:
    """Whether ``value`` is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def settings_text(settings: Mapping[str, Any]) -> dict[str, str]:
    """Topic settings as request fields. ``None`` is the default and is left out."""
    for name, value in settings.items():
        check_name(TopicConfig, name, f"{name}={value!r}")
    return {name: str(value) for name, value in settings.items() if value is not None}


def check_topic_name(name: object) -> None:
    """Reject an invalid topic name."""
    if not isinstance(name, str) or not is_valid_topic_name(name):
        raise InvalidTopicError(
            f"topic name {name!r} is not allowed",
            advice="give 1 to 249 of letters, digits, '.', '_' and '-', but not '.' or '..'",
        )


def check_partitions(partitions: object) -> None:
    """Reject a partition count that is not an int."""
    if not is_whole(partitions):
        raise InvalidPartitionsError(f"partitions={partitions!r}", advice="give a whole number")


def check_replication_factor(replication_factor: object) -> None:
    """Reject a replication factor that is neither a positive int nor ``None``."""
    if replication_factor is None:
        return
    if not (is_whole(replication_factor) and int(str(replication_factor)) >= 1):
        raise InvalidReplicationFactorError(
            f"replication_factor={replication_factor!r}",
            advice="give a whole number from 1 to the number of brokers, or None",
        )


# --- moves ------------------------------------------------------------------------------------

_NOT_RETRIED: Final = frozenset(
    {
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""Retriable errors that do not pass within one call."""


async def reassign(calls: AdminCalls, topic: str, partition: int, replicas: object) -> None:
    """Start to move a partition; see ``AsyncAdmin.reassign_partition``."""
    is_list = isinstance(replicas, Sequence) and not isinstance(replicas, (str, bytes))
    brokers = tuple(cast("Sequence[int]", replicas)) if is_list else ()
    if not brokers or not all(map(is_whole, brokers)):
        raise InvalidReplicaAssignmentError(
            f"replicas={replicas!r}", advice="give broker numbers, the preferred leader first"
        )
    await _reassign(calls, topic, partition, brokers)


async def cancel(calls: AdminCalls, topic: str, partition: int) -> None:
    """Cancel a reassignment; see ``AsyncAdmin.cancel_reassignment``."""
    await _reassign(calls, topic, partition, ())


async def _reassign(
    calls: AdminCalls, topic: str, partition: int, replicas: tuple[int, ...]
) -> None:
    if not is_whole(partition):
        raise UnknownTopicOrPartitionError(f"partition={partition!r}", advice="give a whole number")
    request = ReassignPartitionRequest(
        topic_partition=TopicPartition(topic, partition), replicas=replicas
    )
    reply = await calls.controller(request, not_retried=_NOT_RETRIED)
    check(reply, f"there is no partition {partition} of a topic {topic!r}")


async def drain(calls: AdminCalls, broker_id: int, *, is_draining: bool) -> None:
    """Drain a broker, or use it again; see ``AsyncAdmin.drain_broker``."""
    if not is_whole(broker_id):
        raise InvalidRequestError(f"broker_id={broker_id!r}", advice="give a whole number")
    request = DrainBrokerRequest(broker_id=broker_id, is_draining=is_draining)
    reply = await calls.controller(request, not_retried=_NOT_RETRIED)
    check(reply)


# --- log directories --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSize:
    """One replica's log: its size in bytes, and the offsets that it lacks of its leader's."""

    topic_partition: TopicPartition
    size_bytes: int
    offset_lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirDescription:
    """One data directory of a broker, and its replicas.

    ``disk_size_bytes`` and ``disk_free_bytes`` are of its disk, -1 if that does not tell. Without a
    ``path``, ``error`` is why these replicas did not answer.
    """

    broker_id: int
    path: str
    error: ErrorCode = ErrorCode.NONE
    disk_size_bytes: int = -1
    disk_free_bytes: int = -1
    replicas: tuple[ReplicaSize, ...] = ()


async def describe_log_dirs(
    calls: AdminCalls, cluster: MetadataReply, broker_ids: Collection[int] | None
) -> list[LogDirDescription]:
    """Ask every replica, one call each; see ``AsyncAdmin.describe_log_dirs``."""
    placements = [
        placement
        for topic in cluster.topics
        for partition in topic.partitions
        for placement in placements_of(topic, partition)
    ]
    asked = asyncio.Semaphore(ASKED_MAX)

    async def ask(placement: Placement) -> DescribeReplicaReply:
        async with asked:
            return await calls.router.transport.call(
                address_of(placement), DescribeReplicaRequest(), timeout_ms=REPLICA_TIMEOUT_MS
            )

    replies = await asyncio.gather(*map(ask, placements))
    ends = {
        placement.topic_partition: reply.log_end_offset
        for placement, reply in zip(placements, replies, strict=True)
        if reply.is_leader
    }
    found: dict[tuple[int, str, ErrorCode], list[tuple[ReplicaSize, DescribeReplicaReply]]] = {}
    for placement, reply in zip(placements, replies, strict=True):
        if broker_ids is not None and placement.broker_id not in broker_ids:
            continue
        tp = placement.topic_partition
        lag = max(ends.get(tp, 0) - reply.log_end_offset, 0)
        size = ReplicaSize(topic_partition=tp, size_bytes=reply.size_bytes, offset_lag=lag)
        error = ErrorCode.NONE if reply.directory else reply.error
        found.setdefault((placement.broker_id, reply.directory, error), []).append((size, reply))
    return [
        LogDirDescription(
            broker_id=broker_id,
            path=path,
            error=error,
            disk_size_bytes=replicas[0][1].disk_size_bytes,
            disk_free_bytes=replicas[0][1].disk_free_bytes,
            replicas=tuple(sorted((size for size, _ in replicas), key=_by_partition)),
        )
        for (broker_id, path, error), replicas in sorted(found.items())
    ]


def _by_partition(size: ReplicaSize) -> TopicPartition:
    return size.topic_partition
