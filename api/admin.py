"""``Admin`` and ``AsyncAdmin``: topics, groups and transactions, to be made, looked at and removed.

Every call is retried while that may help, and is safe to repeat. Descriptions are the messages of
``actors/protocol``: frozen dataclasses with the fields that the actors themselves answer with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any, Final, TypeVar

from oncelog.actors.config import TopicConfig, check_setting_name
from oncelog.actors.protocol.admin_messages import (
    DescribeTransactionsRequest,
    TransactionDescription,
)
from oncelog.actors.protocol.cluster_messages import (
    AlterTopicRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    MetadataReply,
    MetadataRequest,
    TopicMetadata,
)
from oncelog.actors.protocol.group_messages import (
    DeleteGroupRequest,
    DescribeGroupsRequest,
    GroupDescription,
    OffsetAndMetadata,
)
from oncelog.actors.protocol.messages import (
    DeleteRecordsRequest,
    DescribeProducersRequest,
    DescribeReplicaReply,
    DescribeReplicaRequest,
    ProducerDescription,
    Reply,
    ReplyT,
    Request,
)
from oncelog.api.consumer import as_committed
from oncelog.api.event_loop import LoopThread
from oncelog.api.offsets import commit_offsets, fetch_committed, is_retriable
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.api.retry import call_with_retries
from oncelog.api.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    GroupIdNotFoundError,
    InvalidTopicError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
    exception_for,
)
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    is_valid_topic_name,
)

TIMEOUT_MS: Final = 60_000
"""How long a call goes on trying."""

ATTEMPT_TIMEOUT_MS: Final = 30_000
"""How long one attempt may take: deleting a topic stops its actors first."""

ResultT = TypeVar("ResultT")


class AsyncAdmin:
    """``Admin`` for asyncio programs: the same methods, awaited. Belongs to one event loop."""

    def __init__(self, router: Router, *, random: Random, timeout_ms: int = TIMEOUT_MS) -> None:
        self._router = router
        self._random = random
        self._timeout_ms = timeout_ms

    # --- topics -------------------------------------------------------------------------------

    async def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int = 1, **settings: Any
    ) -> str:
        """See ``Admin.create_topic``."""
        if not is_valid_topic_name(name):
            raise InvalidTopicError(
                f"topic name {name!r} is not allowed: give 1 to 249 of letters, digits, '.', '_' "
                "and '-', but not '.' or '..'"
            )
        config = TopicConfig.from_text({key: str(value) for key, value in settings.items()})
        request = CreateTopicRequest(
            name=name,
            topic_id=f"{self._random.getrandbits(128):032x}",
            partitions=partitions,
            replication_factor=replication_factor,
            settings=config.to_text(),
        )
        reply = await self._ask_controller(request)
        _check(reply)
        await self._wait_until_led(name, partitions)
        return reply.topic_id

    async def _wait_until_led(self, name: str, partitions: int) -> None:
        """Wait until every partition's actor leads; the topic exists even if that takes longer."""
        await self._router.metadata((name,), refresh=True)
        request = DescribeReplicaRequest()

        async def ask(topic_partition: TopicPartition) -> DescribeReplicaReply:
            reply = await self._router.call_leader(
                topic_partition, request, timeout_ms=ATTEMPT_TIMEOUT_MS
            )
            if reply.error is ErrorCode.NONE and not reply.is_leader:
                return request.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return reply

        async def wait(topic_partition: TopicPartition) -> None:
            await call_with_retries(
                lambda: ask(topic_partition), random=self._random, timeout_ms=self._timeout_ms
            )

        await asyncio.gather(*(wait(TopicPartition(name, number)) for number in range(partitions)))

    async def alter_topic(self, name: str, **settings: Any) -> None:
        """See ``Admin.alter_topic``."""
        changed = {key: str(value) for key, value in settings.items() if value is not None}
        TopicConfig.from_text(changed)
        for key in settings:
            check_setting_name(TopicConfig, key)
        changes = tuple((key, changed.get(key)) for key in settings)
        reply = await self._ask_controller(AlterTopicRequest(name=name, changes=changes))
        _check(reply, f"topic {name!r} cannot be altered")

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """See ``Admin.delete_records``."""
        for topic_partition in offsets:
            if topic_partition.topic in INTERNAL_TOPICS:
                raise InvalidTopicError(f"{topic_partition.topic!r} is an internal topic")
        replies = await asyncio.gather(
            *(
                self._ask_leader(tp, DeleteRecordsRequest(topic_partition=tp, offset=offset))
                for tp, offset in offsets.items()
            )
        )
        for topic_partition, reply in zip(offsets, replies, strict=True):
            _check(reply, f"records of {topic_partition} cannot be deleted")
        return {tp: reply.log_start_offset for tp, reply in zip(offsets, replies, strict=True)}

    async def delete_topic(self, name: str) -> None:
        """See ``Admin.delete_topic``."""
        request = DeleteTopicRequest(name=name)
        reply = await self._delete(
            lambda: self._router.call_controller(request, timeout_ms=ATTEMPT_TIMEOUT_MS),
            gone=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        _check(reply, f"there is no topic {name!r}")

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """See ``Admin.list_topics``."""
        cluster = await self.describe_cluster()
        return sorted(
            topic.name
            for topic in cluster.topics
            if include_internal or topic.name not in INTERNAL_TOPICS
        )

    async def describe_topic(self, name: str) -> TopicMetadata:
        """See ``Admin.describe_topic``."""
        reply = await self._ask_controller(MetadataRequest(topics=(name,)))
        _check(reply)
        for topic in reply.topics:
            if topic.name == name:
                return topic
        raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")

    async def describe_cluster(self) -> MetadataReply:
        """See ``Admin.describe_cluster``."""
        reply = await self._ask_controller(MetadataRequest())
        _check(reply)
        return reply

    # --- groups -------------------------------------------------------------------------------

    async def list_groups(self) -> list[GroupDescription]:
        """See ``Admin.list_groups``."""
        replies = await self._ask_shards(CONSUMER_OFFSETS_TOPIC, DescribeGroupsRequest())
        groups = [group for reply in replies for group in reply.groups]
        return sorted(groups, key=lambda group: group.group_id)

    async def describe_group(self, group_id: str) -> GroupDescription:
        """See ``Admin.describe_group``."""
        reply = await self._ask_group(group_id, DescribeGroupsRequest(group_ids=(group_id,)))
        _check(reply)
        for group in reply.groups:
            if group.group_id == group_id:
                return group
        raise GroupIdNotFoundError(f"there is no group {group_id!r}")

    async def delete_group(self, group_id: str) -> None:
        """See ``Admin.delete_group``."""
        request = DeleteGroupRequest(group_id=group_id)
        reply = await self._delete(
            lambda: self._router.call_group_coordinator(
                group_id, request, timeout_ms=ATTEMPT_TIMEOUT_MS
            ),
            gone=ErrorCode.GROUP_ID_NOT_FOUND,
        )
        _check(reply)

    async def list_group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """See ``Admin.list_group_offsets``."""
        return await fetch_committed(
            self._router, group_id, None, random=self._random, timeout_ms=self._timeout_ms
        )

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """See ``Admin.alter_group_offsets``."""
        await commit_offsets(
            self._router,
            ConsumerGroupMetadata(group_id=group_id),
            {topic_partition: as_committed(offset) for topic_partition, offset in offsets.items()},
            random=self._random,
            timeout_ms=self._timeout_ms,
        )

    # --- transactions -------------------------------------------------------------------------

    async def list_transactions(self) -> list[TransactionDescription]:
        """See ``Admin.list_transactions``."""
        replies = await self._ask_shards(TRANSACTION_STATE_TOPIC, DescribeTransactionsRequest())
        found = [transaction for reply in replies for transaction in reply.transactions]
        return sorted(found, key=lambda transaction: transaction.transactional_id)

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """See ``Admin.describe_transaction``."""
        request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
        reply = await self._retry(
            lambda: self._router.call_transaction_coordinator(
                transactional_id, request, timeout_ms=ATTEMPT_TIMEOUT_MS
            )
        )
        _check(reply, f"there is no transactional id {transactional_id!r}")
        for transaction in reply.transactions:
            if transaction.transactional_id == transactional_id:
                return transaction
        raise TransactionalIdNotFoundError(f"there is no transactional id {transactional_id!r}")

    async def describe_producers(
        self, topic_partition: TopicPartition
    ) -> tuple[ProducerDescription, ...]:
        """See ``Admin.describe_producers``."""
        request = DescribeProducersRequest(topic_partition=topic_partition)
        reply = await self._ask_leader(topic_partition, request)
        _check(reply)
        return reply.producers

    async def describe_replica(self, topic_partition: TopicPartition) -> DescribeReplicaReply:
        """See ``Admin.describe_replica``."""
        reply = await self._ask_leader(topic_partition, DescribeReplicaRequest())
        _check(reply)
        return reply

    # --- calls --------------------------------------------------------------------------------

    async def _retry(self, attempt: Callable[[], Coroutine[Any, Any, ReplyT]]) -> ReplyT:
        return await call_with_retries(
            attempt, random=self._random, timeout_ms=self._timeout_ms, is_retriable=is_retriable
        )

    async def _delete(
        self, attempt: Callable[[], Coroutine[Any, Any, ReplyT]], *, gone: ErrorCode
    ) -> Reply:
        """Repeat a deletion; ``gone`` after an attempt without an answer means that it was done."""
        attempts = 0

        async def counted() -> Reply:
            nonlocal attempts
            attempts += 1
            reply = await attempt()
            return Reply() if attempts > 1 and reply.error is gone else reply

        return await self._retry(counted)

    async def _ask_controller(self, request: Request[ReplyT]) -> ReplyT:
        return await self._retry(
            lambda: self._router.call_controller(request, timeout_ms=ATTEMPT_TIMEOUT_MS)
        )

    async def _ask_group(self, group_id: str, request: Request[ReplyT]) -> ReplyT:
        return await self._retry(
            lambda: self._router.call_group_coordinator(
                group_id, request, timeout_ms=ATTEMPT_TIMEOUT_MS
            )
        )

    async def _ask_leader(
        self, topic_partition: TopicPartition, request: Request[ReplyT]
    ) -> ReplyT:
        return await self._retry(
            lambda: self._router.call_leader(
                topic_partition, request, timeout_ms=ATTEMPT_TIMEOUT_MS
            )
        )

    async def _ask_shards(self, topic: str, request: Request[ReplyT]) -> list[ReplyT]:
        """The answer of every shard of coordinators, one call each."""
        count = await self._router.partition_count(topic)
        replies = await asyncio.gather(
            *(self._ask_leader(TopicPartition(topic, shard), request) for shard in range(count))
        )
        for reply in replies:
            _check(reply)
        return replies


class Admin:
    """Topics, groups and transactions of a cluster. Make it with ``cluster.admin()``."""

    def __init__(
        self,
        router: Router,
        loop_thread: LoopThread,
        *,
        random: Random,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self._loop_thread = loop_thread
        self._admin = AsyncAdmin(router, random=random, timeout_ms=timeout_ms)

    def _run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        return self._loop_thread.run(coroutine)

    # --- topics -------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int = 1, **settings: Any
    ) -> str:
        """Create a topic, durably, and wait until its partitions can be written; its new id.

        ``settings`` are those of ``TopicConfig``. ``TopicAlreadyExistsError`` if there is one.
        """
        return self._run(self._admin.create_topic(name, partitions, replication_factor, **settings))

    def alter_topic(self, name: str, **settings: Any) -> None:
        """Change settings of a topic, durably; ``None`` makes one the default again.

        The others stay. Leaders that cannot be reached follow within minutes.
        ``InvalidConfigError`` names a setting that is unknown or impossible.
        """
        self._run(self._admin.alter_topic(name, **settings))

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete what lies below each offset (exclusive), durably; -1 means all of it.

        Returns where each partition begins now. ``OffsetOutOfRangeError`` beyond the high
        watermark, ``PolicyViolationError`` for a topic that is only compacted; what was refused
        for one partition may have been done for another. Safe to repeat.
        """
        return self._run(self._admin.delete_records(offsets))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its data."""
        self._run(self._admin.delete_topic(name))

    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Names of the topics, sorted."""
        return self._run(self._admin.list_topics(include_internal=include_internal))

    def describe_topic(self, name: str) -> TopicMetadata:
        """Id, partitions, leaders and settings of a topic."""
        return self._run(self._admin.describe_topic(name))

    def describe_cluster(self) -> MetadataReply:
        """Brokers, controller and all topics, internal ones included."""
        return self._run(self._admin.describe_cluster())

    # --- groups -------------------------------------------------------------------------------

    def list_groups(self) -> list[GroupDescription]:
        """Every group, by name."""
        return self._run(self._admin.list_groups())

    def describe_group(self, group_id: str) -> GroupDescription:
        """State, generation and members of a group. ``GroupIdNotFoundError`` if there is none."""
        return self._run(self._admin.describe_group(group_id))

    def delete_group(self, group_id: str) -> None:
        """Delete a group without members, and its offsets, durably."""
        self._run(self._admin.delete_group(group_id))

    def list_group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed; waits for open transactions that commit some of it."""
        return self._run(self._admin.list_group_offsets(group_id))

    def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Set what a group without members has committed, durably."""
        self._run(self._admin.alter_group_offsets(group_id, offsets))

    # --- transactions -------------------------------------------------------------------------

    def list_transactions(self) -> list[TransactionDescription]:
        """Every transactional id, by name."""
        return self._run(self._admin.list_transactions())

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """One transactional id; ``TransactionalIdNotFoundError`` if there is none."""
        return self._run(self._admin.describe_transaction(transactional_id))

    def describe_producers(
        self, topic_partition: TopicPartition
    ) -> tuple[ProducerDescription, ...]:
        """The producers that a partition's leader knows."""
        return self._run(self._admin.describe_producers(topic_partition))

    def describe_replica(self, topic_partition: TopicPartition) -> DescribeReplicaReply:
        """Bounds, size and process of a partition's leader."""
        return self._run(self._admin.describe_replica(topic_partition))


def _check(reply: Reply, detail: str = "") -> None:
    """Raise what a reply's error becomes for a user."""
    if reply.error is not ErrorCode.NONE:
        raise exception_for(reply.error, reply.detail or detail)
