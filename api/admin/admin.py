"""``AsyncAdmin`` and ``Admin``: topics, groups and transactions, for programs with asyncio or not.

Every call is retried while that may help, and is safe to repeat. Descriptions are the messages of
``actors/protocol``: frozen structs with the fields that the actors themselves answer with.

One file: the methods of one class, most of them one call; what takes more stands beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from oncelog.actors.config import TopicConfig
from oncelog.actors.option_types import TopicOptions
from oncelog.actors.process.metrics import LATE_GRACE_MS
from oncelog.actors.protocol.messages.cluster import (
    ANY_REPLICATION,
    AlterTopicRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    MetadataReply,
    MetadataRequest,
    RotateClusterKeyRequest,
    TopicMetadata,
)
from oncelog.actors.protocol.messages.group import (
    DeleteGroupRequest,
    DescribeGroupsRequest,
    GroupDescription,
    LeavingMember,
    OffsetAndMetadata,
)
from oncelog.actors.protocol.messages.partition import (
    DeleteRecordsRequest,
    DescribeProducersRequest,
    DescribeReplicaReply,
    DescribeReplicaRequest,
    ProducerDescription,
)
from oncelog.actors.protocol.messages.transaction import (
    ANY_DURATION_MS,
    AbortTransactionRequest,
    DeleteTransactionalIdRequest,
    DescribeTransactionsRequest,
    TransactionDescription,
)
from oncelog.actors.protocol.transaction.transaction_state import TransactionState
from oncelog.api.admin.calls import (
    TIMEOUT_MS,
    AdminCalls,
    cancel,
    check,
    check_partitions,
    check_replication_factor,
    check_topic_name,
    drain,
    is_whole,
    reassign,
    remove_members,
    settings_text,
)
from oncelog.api.admin.hanging import HangingTransaction, abort_hanging, find_hanging
from oncelog.api.consuming.consumer import as_committed
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.api.session.committed_offsets import commit_offsets, fetch_committed, list_offsets
from oncelog.api.session.event_loop import Blocking, LoopThread, blocking
from oncelog.api.session.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    GroupIdNotFoundError,
    InvalidRequestError,
    InvalidTopicError,
    TransactionalIdNotFoundError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    INT64_MAX,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    IsolationLevel,
    TopicPartition,
)
from oncelog.storage.settings import check_range

if TYPE_CHECKING:
    from typing_extensions import Unpack


TRANSACTION_STATES: Final = tuple(
    state.value for state in TransactionState if state is not TransactionState.DEAD
)
"""The states of a transactional id."""


class AsyncAdmin:
    """Topics, groups and transactions of a cluster. Belongs to one event loop."""

    def __init__(self, router: Router, *, random: Random, timeout_ms: int = TIMEOUT_MS) -> None:
        self._calls = AdminCalls(router, random=random, timeout_ms=timeout_ms)
        self._router = router
        self._random = random
        self._timeout_ms = timeout_ms

    # --- topics -------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        *,
        exist_ok: bool = False,
        **settings: Unpack[TopicOptions],
    ) -> str:
        """Create a topic, durably, and wait until its partitions can be written; its id.

        Each partition has ``replication_factor`` replicas, on as many brokers; ``None``: 3, or for
        now one on each broker if there are fewer, and more when others join or are back.
        ``InvalidReplicationFactorError`` for more than there are brokers that are neither fenced
        nor draining. ``settings`` are those of ``TopicConfig``.
        ``TopicAlreadyExistsError`` if the name is taken; with ``exist_ok`` that topic is left as it
        is, however many partitions it has. ``BrokerNotAvailableError`` if some partitions cannot be
        written after a minute: the topic is there, and with ``exist_ok`` it is waited for again.
        """
        check_topic_name(name)
        check_partitions(partitions)
        check_replication_factor(replication_factor)
        config = TopicConfig.from_text(settings_text(settings))
        request = CreateTopicRequest(
            name=name,
            topic_id=f"{self._random.getrandbits(128):032x}",
            partitions=partitions,
            replication_factor=replication_factor or ANY_REPLICATION,
            settings=config.to_text(),
        )
        reply = await self._calls.controller(request)
        if exist_ok and reply.error is ErrorCode.TOPIC_ALREADY_EXISTS:
            found = (await self._router.metadata((name,), refresh=True)).get(name)
            if found is not None:
                await self._calls.wait_until_led(name, len(found.partitions))
                return found.topic_id
        check(reply)
        await self._calls.wait_until_led(name, partitions)
        return reply.topic_id

    async def create_partitions(self, name: str, partitions: int) -> None:
        """Give a topic more partitions, ``partitions`` in all, and wait until they can be written.

        Records with a key may go to another partition than before. Running producers and groups
        use the new ones within ``routing.METADATA_AGE_MAX_MS``. Safe to repeat;
        ``InvalidPartitionsError`` for fewer than there are, ``BrokerNotAvailableError`` if some
        cannot be written after a minute.
        """
        check_partitions(partitions)
        request = CreatePartitionsRequest(name=name, partitions=partitions)
        reply = await self._calls.controller(request)
        check(reply, f"topic {name!r} cannot be given partitions")
        await self._calls.wait_until_led(name, partitions)

    async def alter_topic(self, name: str, **settings: Unpack[TopicOptions]) -> None:
        """Change settings of a topic, durably; ``None`` makes one the default again.

        The others stay. Leaders that cannot be reached apply them once they can.
        ``InvalidConfigError`` names a setting that is unknown or impossible.
        """
        changed = settings_text(settings)
        TopicConfig.from_text(changed)
        changes = tuple((key, changed.get(key)) for key in settings)
        reply = await self._calls.controller(AlterTopicRequest(name=name, changes=changes))
        check(reply, f"topic {name!r} cannot be altered")

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Delete what lies below each offset (exclusive), durably; -1 means all of it.

        Returns where each partition begins now. ``OffsetOutOfRangeError`` beyond the high
        watermark, ``PolicyViolationError`` for a topic that is only compacted; what was refused
        for one partition may have been done for another. Safe to repeat.
        """
        for topic_partition, offset in offsets.items():
            if topic_partition.topic in INTERNAL_TOPICS:
                raise InvalidTopicError(f"{topic_partition.topic!r} is an internal topic")
            if not is_whole(offset):
                raise InvalidRequestError(
                    f"records of {topic_partition}: {offset!r} is no offset",
                    advice="give a whole number",
                )
        replies = await asyncio.gather(
            *(
                self._calls.leader(tp, DeleteRecordsRequest(topic_partition=tp, offset=offset))
                for tp, offset in offsets.items()
            )
        )
        for topic_partition, reply in zip(offsets, replies, strict=True):
            check(reply, f"records of {topic_partition} cannot be deleted")
        return {tp: reply.log_start_offset for tp, reply in zip(offsets, replies, strict=True)}

    async def list_offsets(
        self,
        times_ms: Mapping[TopicPartition, int],
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, int]:
        """The first offset at or after each time (ms since 1970), -1 where there is none.

        ``LATEST_TIMESTAMP`` (-1) asks for the end (exclusive; for read_committed the last stable
        offset), ``EARLIEST_TIMESTAMP`` (-2) for the log start.
        """
        found = await list_offsets(
            self._router,
            times_ms,
            isolation_level=isolation_level,
            random=self._random,
            timeout_ms=self._timeout_ms,
        )
        return {topic_partition: reply.offset for topic_partition, reply in found.items()}

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its data."""
        request = DeleteTopicRequest(name=name)
        reply = await self._calls.delete(
            lambda timeout_ms: self._router.call_controller(request, timeout_ms=timeout_ms),
            gone=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        check(reply, f"there is no topic {name!r}")

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Names of the topics, sorted."""
        cluster = await self.describe_cluster()
        return sorted(
            topic.name
            for topic in cluster.topics
            if include_internal or topic.name not in INTERNAL_TOPICS
        )

    async def describe_topic(self, name: str) -> TopicMetadata:
        """Id, settings and partitions of a topic: leaders (-1: none), replicas and ISR.

        ``is_under_replicated`` of a partition: a replica is not in sync, or there are too few.
        ``UnknownTopicOrPartitionError`` if there is no such topic.
        """
        reply = await self._calls.controller(MetadataRequest(topics=(name,)))
        check(reply)
        for topic in reply.topics:
            if topic.name == name:
                return topic
        raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")

    async def describe_cluster(self) -> MetadataReply:
        """Brokers, controller and all topics, internal ones included."""
        reply = await self._calls.controller(MetadataRequest())
        check(reply)
        return reply

    # --- replicas -----------------------------------------------------------------------------

    async def reassign_partition(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Move a partition to the brokers ``replicas``, preferred leader first; returns at once.

        The move is durable then and goes on by itself: new replicas copy the log, and the old ones
        go, with their files, once all new ones are in sync. ``describe_topic`` shows how far it is.
        Safe to repeat. ``InvalidReplicaAssignmentError`` for brokers that are unknown, fenced or
        draining, and for one given twice; ``InvalidConfigError`` for fewer than the topic's
        ``min_insync_replicas``; ``ReassignmentInProgressError`` while it moves elsewhere;
        ``UnknownTopicOrPartitionError``.
        """
        await reassign(self._calls, topic, partition, replicas)

    async def cancel_reassignment(self, topic: str, partition: int) -> None:
        """Leave a partition where it was before the move in progress, durably. Safe to repeat.

        Nothing happens if there is none. ``IneligibleReplicaError`` while only new replicas are in
        sync, ``UnknownTopicOrPartitionError``.
        """
        await cancel(self._calls, topic, partition)

    async def drain_broker(self, broker_id: int) -> None:
        """Empty a broker, durably: it leads nothing that another can, and is given nothing new.

        Its replicas then move to others by themselves, ten partitions at a time;
        ``describe_cluster`` shows which are left. Safe to repeat.
        ``InvalidReplicationFactorError`` if too few brokers would be left for a topic of users,
        ``BrokerNotAvailableError`` if there is no such broker.
        """
        await drain(self._calls, broker_id, is_draining=True)

    async def resume_broker(self, broker_id: int) -> None:
        """Use a drained broker again, durably; what has left it stays elsewhere. Safe to repeat.

        Internal topics that had to have fewer replicas get them back by themselves.
        ``BrokerNotAvailableError`` if there is no such broker.
        """
        await drain(self._calls, broker_id, is_draining=False)

    # --- keys ---------------------------------------------------------------------------------

    async def rotate_ticket_key(self) -> int:
        """Make a new secret for the tickets of transactions, durably; how often that was done.

        Open transactions continue: tickets under the previous key are honoured for the 12 hours
        that the oldest of them may live. To revoke a leaked key at once, call it twice;
        transactions enrolling partitions at that moment abort. Source: KIP-98, "Future work".
        """
        seen = await self.describe_cluster()
        request = RotateClusterKeyRequest(key_version=seen.cluster_key_version)
        reply = await self._calls.controller(request)
        check(reply)
        return reply.key_version

    # --- groups -------------------------------------------------------------------------------

    async def list_groups(self) -> list[GroupDescription]:
        """Every group, by name."""
        replies = await self._calls.shards(CONSUMER_OFFSETS_TOPIC, DescribeGroupsRequest())
        groups = [group for reply in replies for group in reply.groups]
        return sorted(groups, key=lambda group: group.group_id)

    async def describe_group(self, group_id: str) -> GroupDescription:
        """State, generation and members of a group. ``GroupIdNotFoundError`` if there is none."""
        reply = await self._calls.group(group_id, DescribeGroupsRequest(group_ids=(group_id,)))
        check(reply)
        for group in reply.groups:
            if group.group_id == group_id:
                return group
        raise GroupIdNotFoundError(f"there is no group {group_id!r}")

    async def delete_group(self, group_id: str) -> None:
        """Delete a group without members, and its offsets, durably."""
        request = DeleteGroupRequest(group_id=group_id)
        reply = await self._calls.delete(
            lambda timeout_ms: self._router.call_group_coordinator(
                group_id, request, timeout_ms=timeout_ms
            ),
            gone=ErrorCode.GROUP_ID_NOT_FOUND,
        )
        check(reply)

    async def remove_members_from_group(
        self,
        group_id: str,
        *,
        group_instance_ids: Iterable[str] | None = None,
        member_ids: Iterable[str] | None = None,
    ) -> None:
        """Put members out of a group: static ones by instance id, any by member id; all by default.

        The others get their partitions at once, without a wait for the end of their sessions. A
        member whose program still runs joins again: stop it first. Safe to repeat.
        ``UnknownMemberIdError`` names those that are no members; the rest is put out even so.
        ``GroupIdNotFoundError`` if all members of a group are meant that does not exist.
        """
        if group_instance_ids is None and member_ids is None:
            group = await self.describe_group(group_id)
            leaving = [
                LeavingMember(member_id="", group_instance_id=member.group_instance_id)
                if member.group_instance_id is not None
                else LeavingMember(member_id=member.member_id)
                for member in group.members
            ]
            with contextlib.suppress(UnknownMemberIdError):  # Some may have left meanwhile.
                await remove_members(self._calls, group_id, leaving)
            return
        await remove_members(
            self._calls,
            group_id,
            [
                LeavingMember(member_id="", group_instance_id=name)
                for name in group_instance_ids or ()
            ]
            + [LeavingMember(member_id=member_id) for member_id in member_ids or ()],
        )

    async def list_group_offsets(
        self, group_id: str, *, require_stable: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed; waits for open transactions that commit some of it.

        Without ``require_stable`` it does not wait, and they count as if they were aborted.
        """
        return await fetch_committed(
            self._router,
            group_id,
            None,
            random=self._random,
            timeout_ms=self._timeout_ms,
            require_stable=require_stable,
        )

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Set what a group without members has committed, durably."""
        await commit_offsets(
            self._router,
            ConsumerGroupMetadata(group_id=group_id),
            {topic_partition: as_committed(offset) for topic_partition, offset in offsets.items()},
            random=self._random,
            timeout_ms=self._timeout_ms,
        )

    # --- transactions -------------------------------------------------------------------------

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        running_longer_than_ms: int | None = None,
    ) -> list[TransactionDescription]:
        """Every transactional id, by name; the filters leave those for which all of them hold.

        ``states`` are Kafka's names ("Ongoing"); ``producer_ids`` also finds members of a
        distributed write; ``running_longer_than_ms`` (exclusive) leaves only transactions that
        are open or not complete. ``InvalidRequestError`` names an unknown state. Source: KIP-994.
        """
        wanted = tuple(states)
        for state in wanted:
            if state not in TRANSACTION_STATES:
                raise InvalidRequestError(
                    f"states={state!r} is not a state",
                    advice=f"give one of {', '.join(TRANSACTION_STATES)}",
                )
        if running_longer_than_ms is not None:
            check_range("running_longer_than_ms", running_longer_than_ms, 0, INT64_MAX)
        request = DescribeTransactionsRequest(
            states=wanted,
            producer_ids=tuple(producer_ids),
            running_longer_than_ms=(
                ANY_DURATION_MS if running_longer_than_ms is None else running_longer_than_ms
            ),
        )
        replies = await self._calls.shards(TRANSACTION_STATE_TOPIC, request)
        found = [transaction for reply in replies for transaction in reply.transactions]
        return sorted(found, key=lambda transaction: transaction.transactional_id)

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """One transactional id; ``TransactionalIdNotFoundError`` if there is none."""
        request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
        reply = await self._calls.transaction(transactional_id, request)
        check(reply, f"there is no transactional id {transactional_id!r}")
        for transaction in reply.transactions:
            if transaction.transactional_id == transactional_id:
                return transaction
        raise TransactionalIdNotFoundError(f"there is no transactional id {transactional_id!r}")

    async def abort_transaction(self, transactional_id: str) -> bool:
        """Abort the open transaction of an id, durably; whether readers see it already.

        To its producer it is like a timeout: a commit fails, an abort succeeds and it continues.
        ``InvalidTxnStateError`` when none is open or its commit is decided,
        ``TransactionalIdNotFoundError`` for an unknown id. One that begins later is left alone.
        """
        seen = await self.describe_transaction(transactional_id)
        request = AbortTransactionRequest(
            transactional_id=transactional_id,
            producer_id=seen.producer_id,
            producer_epoch=seen.producer_epoch,
        )
        reply = await self._calls.transaction(transactional_id, request)
        check(reply)
        return reply.visible

    async def delete_transactional_id(self, transactional_id: str) -> None:
        """Forget an id for good, durably, with the token of its last commit.

        Ids without a token expire by themselves after a week; those with one never do. Only for
        jobs that are over: repeating a write that the token named writes it twice.
        ``InvalidTxnStateError`` while a transaction is open. Safe to repeat.
        """
        request = DeleteTransactionalIdRequest(transactional_id=transactional_id)
        reply = await self._calls.delete(
            lambda timeout_ms: self._router.call_transaction_coordinator(
                transactional_id, request, timeout_ms=timeout_ms
            ),
            gone=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        )
        check(reply)

    async def find_hanging_transactions(
        self,
        *,
        broker_id: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        older_than_ms: int | None = None,
    ) -> list[HangingTransaction]:
        """Transactions that are open on a partition, and that no coordinator will ever end.

        Of all partitions, or those led by ``broker_id``, of ``topic``, or one. Their newest record
        is older than ``older_than_ms``: by default the longest transaction timeout of the cluster
        plus five minutes. There should be none: one is a bug of a producer or of oncelog. Safe at
        any age: what is about to end is never reported. ``IncompleteSearchError`` names those that
        did not answer within a minute and holds what the others found. Source: KIP-664.
        """
        if older_than_ms is not None:
            check_range("older_than_ms", older_than_ms, 0, INT64_MAX)
        if partition is not None and topic is None:
            raise InvalidRequestError(f"partition={partition} needs a topic", advice="give both")
        cluster = await self.describe_cluster()
        if older_than_ms is None:
            older_than_ms = cluster.transaction_max_timeout_ms + LATE_GRACE_MS
        found = [
            TopicPartition(described.name, led.partition)
            for described in cluster.topics
            if described.name != TRANSACTION_STATE_TOPIC and topic in (None, described.name)
            for led in described.partitions
            if partition in (None, led.partition) and broker_id in (None, led.leader)
        ]
        if topic is not None and not found:
            where = "" if broker_id is None else f" led by broker {broker_id}"
            what = topic if partition is None else str(TopicPartition(topic, partition))
            raise UnknownTopicOrPartitionError(f"there is no {what!r}{where}")
        return await find_hanging(self._calls, found, older_than_ms=older_than_ms)

    async def abort_hanging_transaction(
        self, topic_partition: TopicPartition, *, start_offset: int
    ) -> HangingTransaction:
        """Abort what is open from ``start_offset`` of one partition on, durably; what it was.

        Never what a transactional id may still end or write to: ``InvalidTxnStateError`` then
        says what to do first. Source: KIP-664, KIP-98.
        """
        return await abort_hanging(self._calls, topic_partition, start_offset=start_offset)

    async def describe_producers(
        self, topic_partition: TopicPartition
    ) -> tuple[ProducerDescription, ...]:
        """The producers that a partition's leader knows."""
        request = DescribeProducersRequest(topic_partition=topic_partition)
        reply = await self._calls.leader(topic_partition, request)
        check(reply)
        return reply.producers

    async def describe_replica(self, topic_partition: TopicPartition) -> DescribeReplicaReply:
        """Bounds, size and process of a partition's leader."""
        reply = await self._calls.leader(topic_partition, DescribeReplicaRequest())
        check(reply)
        return reply


class Admin(Blocking[AsyncAdmin]):
    """Topics, groups and transactions of a cluster. Make it with ``cluster.admin()``.

    The methods are those of ``AsyncAdmin``; each blocks until it has its answer.
    """

    def __init__(
        self,
        router: Router,
        loop_thread: LoopThread,
        *,
        random: Random,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        super().__init__(loop_thread, AsyncAdmin(router, random=random, timeout_ms=timeout_ms))

    # --- topics -------------------------------------------------------------------------------

    create_topic = blocking(AsyncAdmin.create_topic)
    create_partitions = blocking(AsyncAdmin.create_partitions)
    alter_topic = blocking(AsyncAdmin.alter_topic)
    delete_records = blocking(AsyncAdmin.delete_records)
    list_offsets = blocking(AsyncAdmin.list_offsets)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    list_topics = blocking(AsyncAdmin.list_topics)
    describe_topic = blocking(AsyncAdmin.describe_topic)
    describe_cluster = blocking(AsyncAdmin.describe_cluster)
    rotate_ticket_key = blocking(AsyncAdmin.rotate_ticket_key)

    # --- replicas -----------------------------------------------------------------------------

    reassign_partition = blocking(AsyncAdmin.reassign_partition)
    cancel_reassignment = blocking(AsyncAdmin.cancel_reassignment)
    drain_broker = blocking(AsyncAdmin.drain_broker)
    resume_broker = blocking(AsyncAdmin.resume_broker)

    # --- groups -------------------------------------------------------------------------------

    list_groups = blocking(AsyncAdmin.list_groups)
    describe_group = blocking(AsyncAdmin.describe_group)
    delete_group = blocking(AsyncAdmin.delete_group)
    remove_members_from_group = blocking(AsyncAdmin.remove_members_from_group)
    list_group_offsets = blocking(AsyncAdmin.list_group_offsets)
    alter_group_offsets = blocking(AsyncAdmin.alter_group_offsets)

    # --- transactions -------------------------------------------------------------------------

    list_transactions = blocking(AsyncAdmin.list_transactions)
    describe_transaction = blocking(AsyncAdmin.describe_transaction)
    abort_transaction = blocking(AsyncAdmin.abort_transaction)
    delete_transactional_id = blocking(AsyncAdmin.delete_transactional_id)
    find_hanging_transactions = blocking(AsyncAdmin.find_hanging_transactions)
    abort_hanging_transaction = blocking(AsyncAdmin.abort_hanging_transaction)
    describe_producers = blocking(AsyncAdmin.describe_producers)
    describe_replica = blocking(AsyncAdmin.describe_replica)
