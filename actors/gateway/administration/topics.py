"""Topics of Kafka's clients: creating, growing and deleting them; deleting old records.

A request about several topics is answered topic by topic: one that is refused holds up no other.
What creates partitions waits until they are led, so that the client can use them at once. Where
replicas go the controller decides; the only assignment that can be taken is the one that it would
choose, on a cluster of one broker.

Source: KIP-4, KIP-107, KIP-195, KIP-464, KIP-516, KIP-525.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from oncelog.actors.config import TopicConfig
from oncelog.actors.gateway.administration.brokers import (
    CHANGES_AT_ONCE_MAX,
    PARTITIONS_AT_ONCE_MAX,
    Handler,
    ask_controller,
    ask_leader,
    deadline_of,
    in_parallel,
    of_controller,
    repeated,
    text_of,
    throttle_of,
)
from oncelog.actors.gateway.administration.configs import (
    default_partitions,
    in_kafkas_words,
    is_usable,
    ours_of,
    replication_factor_of,
    topic_entries,
)
from oncelog.actors.gateway.calls import Call
from oncelog.actors.gateway.errors import of_leader
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from oncelog.actors.gateway.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from oncelog.actors.gateway.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from oncelog.actors.gateway.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from oncelog.actors.gateway.messages.primitives import NO_UUID
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.process.clock import jittered_backoff_ms, loop_ms
from oncelog.actors.protocol.messages import cluster, partition
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.messages.cluster import (
    ANY_REPLICATION,
    BrokerMetadata,
    MetadataReply,
    MetadataRequest,
    TopicMetadata,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import INTERNAL_TOPICS, NO_OFFSET, TopicPartition

LED_WAIT_MAX_MS: Final = 5_000
"""How long what creates partitions waits until all are led; then it answers all the same."""

_ANY: Final = -1
"""Kafka's number for: as many partitions, or replicas, as by default."""


# --- creating ---------------------------------------------------------------------------------


async def create_topics(call: Call, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create topics, durably, and wait until they are led; or only tell what would be refused."""
    led_by_ms = loop_ms() + min(max(request.timeout_ms, 0), LED_WAIT_MAX_MS)
    deadline_ms = deadline_of(request.timeout_ms)
    twice = repeated(topic.name for topic in request.topics)
    known = MetadataReply()
    if any(topic.assignments or topic.num_partitions == _ANY for topic in request.topics):
        known = await ask_controller(call, MetadataRequest(topics=()), deadline_ms=deadline_ms)
    throttles = [throttle_of(known)]

    async def create(topic: CreatableTopic) -> CreatableTopicResult:
        wrong = _why_not_placed(topic, known)
        if topic.name in twice:
            wrong = ErrorCode.INVALID_REQUEST, _is_twice(topic.name)
        if wrong is not None:
            return _not_created(topic, int(wrong[0]), wrong[1])
        try:
            given = ours_of((one.name, one.value) for one in topic.configs)
            settings = dict(TopicConfig.from_text(given).to_text())
        except InvalidSettingError as refusal:
            text = in_kafkas_words(str(refusal))
            return _not_created(topic, int(ErrorCode.INVALID_CONFIG), text)
        asked = _creation(call, topic, settings, known, validate_only=request.validate_only)
        reply = await ask_controller(call, asked, deadline_ms=deadline_ms)
        throttles.append(throttle_of(reply))
        if reply.error is not ErrorCode.NONE:
            text = in_kafkas_words(text_of(reply))
            return _not_created(topic, of_controller(reply.error), text)
        result = _created(topic.name, settings, asked.partitions, asked.replication_factor)
        result.topic_id = NO_UUID if request.validate_only else bytes.fromhex(reply.topic_id)
        return result

    # One answer for a name that is there twice.
    topics = {topic.name: topic for topic in request.topics}.values()
    results = await in_parallel(topics, create, at_once_max=CHANGES_AT_ONCE_MAX)
    created = [one.name for one in results if not one.error_code]
    if created and not request.validate_only:
        found = await _wait_until_led(call, created, led_by_ms)
        results = [_completed(one, found.get(one.name)) for one in results]
    return CreateTopicsResponse(throttle_time_ms=max(throttles), topics=results)


def _creation(
    call: Call,
    topic: CreatableTopic,
    settings: Mapping[str, str],
    known: MetadataReply,
    *,
    validate_only: bool,
) -> cluster.CreateTopicRequest:
    """What the controller is asked for; it knows the topic id again if it is asked twice."""
    partitions = len(topic.assignments) or topic.num_partitions
    replication_factor = 1 if topic.assignments else topic.replication_factor
    return cluster.CreateTopicRequest(
        name=topic.name,
        topic_id=f"{call.cluster.random.getrandbits(128):032x}",
        partitions=default_partitions(known) if partitions == _ANY else partitions,
        replication_factor=ANY_REPLICATION if replication_factor == _ANY else replication_factor,
        settings=tuple(settings.items()),
        validate_only=validate_only,
    )


def _why_not_placed(topic: CreatableTopic, known: MetadataReply) -> tuple[ErrorCode, str] | None:
    """Why the topic cannot be as the client wants it; ``None`` if the controller may decide."""
    if not topic.assignments and topic.num_partitions != _ANY:
        return None
    if topic.assignments and (topic.num_partitions, topic.replication_factor) != (_ANY, _ANY):
        return ErrorCode.INVALID_REQUEST, (
            f"num_partitions={topic.num_partitions} and replication_factor="
            f"{topic.replication_factor} beside an assignment: give {_ANY} for both"
        )
    if known.error is not ErrorCode.NONE:
        return ErrorCode.NOT_CONTROLLER, "the controller does not say what the defaults are"
    if not topic.assignments or _is_on_only_broker(topic.assignments, known.brokers):
        return None
    return ErrorCode.INVALID_REPLICA_ASSIGNMENT, _why_no_assignment(topic.name)


def _is_on_only_broker(
    assignments: Sequence[CreatableReplicaAssignment], brokers: Iterable[BrokerMetadata]
) -> bool:
    """Whether it is where the controller would put them."""
    usable = _only_broker(brokers)
    numbers = sorted(one.partition_index for one in assignments)
    return numbers == list(range(len(numbers))) and all(
        one.broker_ids == usable for one in assignments
    )


def _only_broker(brokers: Iterable[BrokerMetadata]) -> Sequence[int]:
    """The only broker that may have replicas, as a list of them; none if there are several."""
    usable = [one.broker_id for one in brokers if is_usable(one)]
    return usable if len(usable) == 1 else ()


def _why_no_assignment(name: str) -> str:
    return (
        f"replicas of {name!r} cannot be assigned when they are created: leave that out, and move "
        "them with `oncelog partitions reassign`"
    )


def _is_twice(name: str) -> str:
    return f"topic {name!r} is there twice: give it once"


def _not_created(topic: CreatableTopic, error: int, text: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(name=topic.name, error_code=error, error_message=text)


def _created(
    name: str, settings: Mapping[str, str], partitions: int, replication_factor: int
) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name,
        error_message=None,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[
            CreatableTopicConfigs(
                name=one.name,
                value=one.value,
                read_only=one.is_read_only,
                config_source=one.source,
            )
            for one in topic_entries(settings, replication_factor)
        ],
    )


def _completed(result: CreatableTopicResult, topic: TopicMetadata | None) -> CreatableTopicResult:
    """``result`` with what the controller has chosen, if the topic is still there."""
    if topic is None or not topic.partitions or result.error_code:
        return result
    completed = _created(
        topic.name, dict(topic.settings), len(topic.partitions), replication_factor_of(topic)
    )
    completed.topic_id = result.topic_id
    return completed


async def _wait_until_led(
    call: Call, names: Sequence[str], deadline_ms: int
) -> Mapping[str, TopicMetadata]:
    """Topics whose partitions are new, once all are led or the time is up."""
    asked = MetadataRequest(topics=tuple(names))
    for attempt in itertools.count():
        left_ms = max(deadline_ms - loop_ms(), 1_000)
        # The gateway's own question: the client was allowed to create them.
        reply = await call.cluster.transport.call(CONTROLLER_ACTOR, asked, timeout_ms=left_ms)
        found = {topic.name: topic for topic in reply.topics}
        if all(name in found and _is_led(found[name]) for name in names):
            break
        wait_ms = jittered_backoff_ms(attempt, call.cluster.random)
        if loop_ms() + wait_ms >= deadline_ms:
            break
        await asyncio.sleep(wait_ms / 1_000)
    call.tell_change(*names)
    return found


def _is_led(topic: TopicMetadata) -> bool:
    return all(one.leader >= 0 for one in topic.partitions)


async def create_partitions(
    call: Call, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Give topics more partitions, durably, and wait until they are led; ``count`` is the total."""
    led_by_ms = loop_ms() + min(max(request.timeout_ms, 0), LED_WAIT_MAX_MS)
    deadline_ms = deadline_of(request.timeout_ms)
    twice = repeated(topic.name for topic in request.topics)
    names = tuple(sorted({topic.name for topic in request.topics}))
    known = await ask_controller(call, MetadataRequest(topics=names), deadline_ms=deadline_ms)
    counts = {topic.name: len(topic.partitions) for topic in known.topics}
    only_one = _only_broker(known.brokers)
    throttles = [throttle_of(known)]

    async def grow(topic: CreatePartitionsTopic) -> CreatePartitionsTopicResult:
        error, text = _why_not_grown(topic, counts, only_one, is_twice=topic.name in twice)
        if error is not ErrorCode.NONE:
            return _grown(topic.name, int(error), text)
        asked = cluster.CreatePartitionsRequest(
            name=topic.name, partitions=topic.count, validate_only=request.validate_only
        )
        reply = await ask_controller(call, asked, deadline_ms=deadline_ms)
        throttles.append(throttle_of(reply))
        return _grown(topic.name, of_controller(reply.error), in_kafkas_words(text_of(reply)))

    topics = {topic.name: topic for topic in request.topics}
    results = await in_parallel(topics.values(), grow, at_once_max=CHANGES_AT_ONCE_MAX)
    grown = [one.name for one in results if not one.error_code]
    if grown and not request.validate_only:
        await _wait_until_led(call, grown, led_by_ms)
    return CreatePartitionsResponse(throttle_time_ms=max(throttles), results=results)


def _why_not_grown(
    topic: CreatePartitionsTopic,
    counts: Mapping[str, int],
    only_one: Sequence[int],
    *,
    is_twice: bool,
) -> tuple[ErrorCode, str]:
    """What the controller does not refuse, and Kafka does: to have as many already is an error."""
    count = counts.get(topic.name)
    if is_twice:
        return ErrorCode.INVALID_REQUEST, _is_twice(topic.name)
    given = [one.broker_ids for one in topic.assignments or ()]
    more = 0 if count is None else topic.count - count
    if given and more > 0 and given != [only_one] * more:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, _why_no_assignment(topic.name)
    if count is not None and topic.count == count:
        wrong = f"topic {topic.name!r} has {count} partitions already: give more"
        return ErrorCode.INVALID_PARTITIONS, wrong
    return ErrorCode.NONE, ""


def _grown(name: str, error: int, text: str | None) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=error, error_message=text)


# --- deleting ---------------------------------------------------------------------------------


async def delete_topics(call: Call, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete topics and their data, durably, by name or by topic id."""
    deadline_ms = deadline_of(request.timeout_ms)
    wanted = [*request.topics, *(DeleteTopicState(name=name) for name in request.topic_names)]
    known = MetadataReply()
    if any(one.name is None for one in wanted):
        # An id can be of any topic; those that the client may not see are as if not there.
        known = await ask_controller(call, MetadataRequest(), deadline_ms=deadline_ms)
    names = {bytes.fromhex(topic.topic_id): topic.name for topic in known.topics}
    twice = repeated(_named(one, names) for one in wanted)
    throttles = [throttle_of(known)]

    async def delete(topic: DeleteTopicState) -> DeletableTopicResult:
        name = _named(topic, names)
        error, text = _why_not_deleted(topic, known, name, is_twice=name in twice)
        if error == 0 and name is not None:
            topic_id = bytes(topic.topic_id).hex() if topic.name is None else ""
            asked = cluster.DeleteTopicRequest(name=name, topic_id=topic_id)
            # Another topic may have the name by now.
            gone = ErrorCode.UNKNOWN_TOPIC_ID if topic_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            reply = await ask_controller(call, asked, deadline_ms=deadline_ms, gone=gone)
            throttles.append(throttle_of(reply))
            call.tell_change(name)
            error, text = of_controller(reply.error), text_of(reply, _why_kept(name, reply))
        return DeletableTopicResult(
            name=name, topic_id=topic.topic_id, error_code=error, error_message=text
        )

    results = await in_parallel(wanted, delete, at_once_max=CHANGES_AT_ONCE_MAX)
    return DeleteTopicsResponse(throttle_time_ms=max(throttles), responses=results)


def _named(topic: DeleteTopicState, names: Mapping[bytes, str]) -> str | None:
    return names.get(bytes(topic.topic_id)) if topic.name is None else topic.name


def _why_not_deleted(
    topic: DeleteTopicState, known: MetadataReply, name: str | None, *, is_twice: bool
) -> tuple[int, str | None]:
    is_id = bytes(topic.topic_id) != NO_UUID
    if is_id == (topic.name is not None):
        return int(ErrorCode.INVALID_REQUEST), "give a topic's name or its id, and not both"
    if known.error is not ErrorCode.NONE and topic.name is None:
        return of_controller(known.error), text_of(known)
    if name is None:
        return int(ErrorCode.UNKNOWN_TOPIC_ID), f"there is no topic {bytes(topic.topic_id).hex()}"
    if is_twice:
        return int(ErrorCode.INVALID_REQUEST), _is_twice(name)
    return 0, None


def _why_kept(name: str, reply: Reply) -> str:
    if reply.error is ErrorCode.INVALID_TOPIC_EXCEPTION:
        return f"{name!r} is an internal topic, which cannot be deleted"
    is_unknown = reply.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return f"there is no topic {name!r}" if is_unknown else ""


async def delete_records(call: Call, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Delete all records below an offset of each partition, durably; -1 is the high watermark."""
    timeout_ms = deadline_of(request.timeout_ms) - loop_ms()
    offsets = {
        TopicPartition(topic.name, one.partition_index): one.offset
        for topic in request.topics
        for one in topic.partitions
    }

    async def delete(tp: TopicPartition) -> partition.DeleteRecordsReply:
        asked = partition.DeleteRecordsRequest(topic_partition=tp, offset=offsets[tp])
        if tp.topic in INTERNAL_TOPICS:
            return asked.failed(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if offsets[tp] < NO_OFFSET:
            return asked.failed(ErrorCode.OFFSET_OUT_OF_RANGE)
        return await ask_leader(call, tp, asked, timeout_ms=timeout_ms)

    replies = await in_parallel(offsets, delete, at_once_max=PARTITIONS_AT_ONCE_MAX)
    by_topic: dict[str, list[DeleteRecordsPartitionResult]] = {}
    for tp, reply in zip(offsets, replies, strict=True):
        is_done = reply.error is ErrorCode.NONE
        result = DeleteRecordsPartitionResult(
            partition_index=tp.partition,
            low_watermark=reply.log_start_offset if is_done else NO_OFFSET,
            error_code=of_leader(reply.error),
        )
        by_topic.setdefault(tp.topic, []).append(result)
    return DeleteRecordsResponse(
        throttle_time_ms=throttle_of(*replies),
        topics=[
            DeleteRecordsTopicResult(name=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ],
    )


HANDLERS: Final[Mapping[ApiKey, Handler]] = {
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.DELETE_RECORDS: delete_records,
}
