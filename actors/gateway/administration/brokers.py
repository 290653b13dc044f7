"""Administrators' requests: how they ask the controller and leaders; directories; elections.

A question is asked again while its actor moves or starts, so a client that retries nothing gets its
answer too. Only what is safe to repeat is asked this way. Many things of one request are asked in
parallel, so many at once and no more.

| request | whom it is for |
|---|---|
| ElectLeaders | the controller |
| DescribeLogDirs | each replica of this broker: other nodes of Kafka tell of theirs |

Source: KIP-113, KIP-460, KIP-827.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from oncelog.actors.config import data_directories
from oncelog.actors.coordination.cluster_view import Location
from oncelog.actors.gateway.calls import Call
from oncelog.actors.gateway.errors import kafkas
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from oncelog.actors.gateway.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from oncelog.actors.interfaces import CONTROLLER_ACTOR, address_of, placements_of
from oncelog.actors.process.clock import jittered_backoff_ms, loop_ms
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.messages import brokers
from oncelog.actors.protocol.messages.base import Reply, ReplyT, Request
from oncelog.actors.protocol.messages.cluster import (
    MetadataReply,
    MetadataRequest,
    PartitionMetadata,
)
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply, DescribeReplicaRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

Handler: TypeAlias = Callable[[Call, Any], Coroutine[Any, Any, Any]]
"""Answers one request of an API: its struct in, that of the response out."""

ANSWER_TIMEOUT_MS: Final = 25_000
"""Within this an administrator gets an answer: his client gives up after 30 s."""

CHANGES_AT_ONCE_MAX: Final = 16
"""Topics of one request that the controller is asked to change at a time; others wait."""

PARTITIONS_AT_ONCE_MAX: Final = 100
"""Leaders, replicas and coordinators that one request asks at a time; others wait."""

REPLICA_TIMEOUT_MS: Final = 5_000
"""How long one replica may take to describe itself."""

ELECTION_NOT_NEEDED: Final = 84
"""Kafka's code: the preferred leader leads already."""

_PREFERRED: Final = 0
"""Kafka's number of the election of preferred leaders; 1 is that of unclean ones."""

_AWAY: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
"""The controller moves, starts, or has lost its quorum for a moment."""

_MOVED: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)
"""The leader may be elsewhere than we thought."""


# --- asking -----------------------------------------------------------------------------------


def deadline_of(timeout_ms: int) -> int:
    """By when, in ``loop_ms``, a request with this timeout is answered; 0 or less: no wish."""
    wanted_ms = timeout_ms if timeout_ms > 0 else ANSWER_TIMEOUT_MS
    return loop_ms() + min(wanted_ms, ANSWER_TIMEOUT_MS)


async def ask_controller(
    call: Call,
    request: Request[ReplyT],
    *,
    deadline_ms: int,
    gone: ErrorCode = ErrorCode.NONE,
) -> ReplyT:
    """Ask the controller in the client's name, again while it is away, until ``deadline_ms``.

    ``gone`` counts as success if an earlier attempt got no answer: that one may have done it.
    """
    for attempt in itertools.count():
        left_ms = max(deadline_ms - loop_ms(), 1)
        reply = await call.ask(CONTROLLER_ACTOR, request, timeout_ms=left_ms)
        if attempt and gone is not ErrorCode.NONE and reply.error is gone:
            done: ReplyT = request.reply_type()
            return done
        wait_ms = jittered_backoff_ms(attempt, call.cluster.random)
        if reply.error not in _AWAY or loop_ms() + wait_ms >= deadline_ms:
            break
        await asyncio.sleep(wait_ms / 1_000)
    return reply


async def ask_leader(
    call: Call, tp: TopicPartition, request: Request[ReplyT], *, timeout_ms: int
) -> ReplyT:
    """Ask a partition's leader in the client's name; once more if it has moved."""
    reply = await _ask_at(call, await call.leader(tp), request, timeout_ms)
    if reply.error in _MOVED or reply.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        call.forget(tp.topic)
        reply = await _ask_at(call, await call.leader(tp, is_new=True), request, timeout_ms)
    return reply


async def _ask_at(
    call: Call, location: Location, request: Request[ReplyT], timeout_ms: int
) -> ReplyT:
    reply = await call.ask(location.actor, request, timeout_ms=timeout_ms)
    # Who may not see the topic is not told that there is none.
    if location.is_gone and reply.error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return reply


async def in_parallel(
    items: Iterable[ItemT],
    work: Callable[[ItemT], Coroutine[Any, Any, ResultT]],
    *,
    at_once_max: int,
) -> list[ResultT]:
    """The results of ``work`` on each item, in their order; at most so many run at a time."""
    places = asyncio.Semaphore(at_once_max)

    async def placed(item: ItemT) -> ResultT:
        async with places:
            return await work(item)

    return list(await asyncio.gather(*map(placed, items)))


def of_controller(error: ErrorCode) -> int:
    """``kafkas``, of an answer of the controller: a client that retries then asks again."""
    return int(ErrorCode.NOT_CONTROLLER) if error in _AWAY else kafkas(error)


def text_of(reply: Reply, what: str = "") -> str | None:
    """What to tell a client of a refusal; ``what`` if the reply has no words for it itself."""
    if reply.error is ErrorCode.NONE:
        return None
    return reply.detail or what or None


def throttle_of(*replies: Reply) -> int:
    """How long the client must wait before its next request, in ms: the longest of ``replies``."""
    told = (reply.throttle_ms for reply in replies)
    return max((one for one in told if isinstance(one, int)), default=0)


def repeated(names: Iterable[ItemT]) -> set[ItemT]:
    """Those that are there more than once."""
    return {name for name, count in Counter(names).items() if count > 1}


# --- elections --------------------------------------------------------------------------------


async def elect_leaders(call: Call, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Have the preferred leaders lead again; unclean elections are refused.

    As in Kafka, those that lead already are an error where they are named, and left out where all
    partitions are meant.
    """
    named = None
    if request.topic_partitions is not None:
        named = [
            TopicPartition(one.topic, number)
            for one in request.topic_partitions
            for number in one.partitions
        ]
    if request.election_type != _PREFERRED:
        refusal = (
            f"election type {request.election_type}: there is {_PREFERRED}, of preferred leaders"
        )
        refused = {tp: (int(ErrorCode.INVALID_REQUEST), refusal) for tp in named or ()}
        error = ErrorCode.NONE if refused else ErrorCode.INVALID_REQUEST
        return _elected(error, refused)
    deadline_ms = deadline_of(request.timeout_ms)
    topics = None if named is None else tuple({tp.topic for tp in named})
    known = await ask_controller(call, MetadataRequest(topics=topics), deadline_ms=deadline_ms)
    led = set(_led_as_preferred(known))
    wanted = None if named is None else tuple(tp for tp in dict.fromkeys(named) if tp not in led)
    asked = brokers.ElectLeadersRequest(topic_partitions=wanted)
    reply = await ask_controller(call, asked, deadline_ms=deadline_ms)
    if reply.error is not ErrorCode.NONE:
        failed = of_controller(reply.error), text_of(reply)
        return _elected(reply.error, dict.fromkeys(named or (), failed), throttle_of(reply))
    results: dict[TopicPartition, tuple[int, str | None]] = {}
    for one in reply.elections:
        if named is not None or one.topic_partition not in led:
            results[one.topic_partition] = kafkas(one.error), _why_not_elected(one)
    for tp in named or ():
        if tp in led:
            results[tp] = ELECTION_NOT_NEEDED, "the preferred leader leads already"
    return _elected(ErrorCode.NONE, results, throttle_of(reply))


def _led_as_preferred(known: MetadataReply) -> Iterator[TopicPartition]:
    for topic in known.topics:
        for partition in topic.partitions:
            if partition.leader == _preferred(partition):
                yield TopicPartition(topic.name, partition.partition)


def _preferred(partition: PartitionMetadata) -> int | None:
    """Who should lead: the first replica, of those that stay."""
    stay = (one for one in partition.replicas if one not in partition.removing)
    return next(stay, None)


def _why_not_elected(one: brokers.PartitionElection) -> str | None:
    if one.error is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE:
        return f"the preferred leader of {one.topic_partition} cannot lead now"
    if one.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"there is no partition {one.topic_partition}"
    return None


def _elected(
    error: ErrorCode,
    results: Mapping[TopicPartition, tuple[int, str | None]],
    throttle_ms: int = 0,
) -> ElectLeadersResponse:
    by_topic: dict[str, list[PartitionResult]] = {}
    for tp, (code, text) in results.items():
        result = PartitionResult(partition_id=tp.partition, error_code=code, error_message=text)
        by_topic.setdefault(tp.topic, []).append(result)
    return ElectLeadersResponse(
        throttle_time_ms=throttle_ms,
        error_code=of_controller(error),
        replica_election_results=[
            ReplicaElectionResult(topic=topic, partition_result=partitions)
            for topic, partitions in by_topic.items()
        ],
    )


# --- directories ------------------------------------------------------------------------------


async def describe_log_dirs(call: Call, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """The data directories of this broker, with the sizes of its replicas' logs.

    Replicas that do not answer are in a directory without a path, with an error.
    """
    deadline_ms = deadline_of(0)
    # Asked of nobody: only whether the client may see the cluster, once for all replicas.
    judged = await call.ask(None, DescribeReplicaRequest())
    if judged.error is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return DescribeLogDirsResponse(error_code=of_controller(judged.error), results=[])
    topics = None if request.topics is None else tuple({one.topic for one in request.topics})
    known = await ask_controller(call, MetadataRequest(topics=topics), deadline_ms=deadline_ms)
    if known.error is not ErrorCode.NONE:
        return DescribeLogDirsResponse(error_code=of_controller(known.error), results=[])
    wanted = None
    if request.topics is not None:
        wanted = {
            TopicPartition(one.topic, number) for one in request.topics for number in one.partitions
        }
    held = _held_by(known, call.cluster.broker_id, wanted)
    replies = await in_parallel(
        held,
        lambda placement: call.cluster.transport.call(
            address_of(placement), DescribeReplicaRequest(), timeout_ms=REPLICA_TIMEOUT_MS
        ),
        at_once_max=PARTITIONS_AT_ONCE_MAX,
    )
    found: dict[str, list[tuple[TopicPartition, DescribeReplicaReply]]] = {}
    for placement, reply in zip(held, replies, strict=True):
        found.setdefault(reply.directory, []).append((placement.topic_partition, reply))
    for path in _directories_of(known, call.cluster.broker_id):
        found.setdefault(path, [])
    return DescribeLogDirsResponse(
        throttle_time_ms=throttle_of(known),
        results=[_directory(path, replicas) for path, replicas in sorted(found.items())],
    )


def _held_by(
    known: MetadataReply, broker_id: int, wanted: Collection[TopicPartition] | None
) -> list[Placement]:
    return [
        placement
        for topic in known.topics
        for partition in topic.partitions
        if wanted is None or TopicPartition(topic.name, partition.partition) in wanted
        for placement in placements_of(topic, partition)
        if placement.broker_id == broker_id
    ]


def _directories_of(known: MetadataReply, broker_id: int) -> list[str]:
    return [
        str(path)
        for broker in known.brokers
        if broker.broker_id == broker_id and broker.data_dir
        for path in data_directories(broker.data_dir)
    ]


def _directory(
    path: str, replicas: Sequence[tuple[TopicPartition, DescribeReplicaReply]]
) -> DescribeLogDirsResult:
    by_topic: dict[str, list[DescribeLogDirsPartition]] = {}
    for tp, reply in replicas:
        lag = max(reply.high_watermark - reply.log_end_offset, 0)
        described = DescribeLogDirsPartition(
            partition_index=tp.partition, partition_size=reply.size_bytes, offset_lag=lag
        )
        by_topic.setdefault(tp.topic, []).append(described)
    disk = replicas[0][1] if replicas else DescribeReplicaReply()
    return DescribeLogDirsResult(
        error_code=int(ErrorCode.NONE if path else ErrorCode.KAFKA_STORAGE_ERROR),
        log_dir=path,
        topics=[
            DescribeLogDirsTopic(name=topic, partitions=partitions)
            for topic, partitions in sorted(by_topic.items())
        ],
        total_bytes=disk.disk_size_bytes,
        usable_bytes=disk.disk_free_bytes,
    )


HANDLERS: Final[Mapping[ApiKey, Handler]] = {
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
}
