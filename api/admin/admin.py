"""``AsyncAdmin`` for asyncio and ``Admin`` without it: topics, groups, transactions, users, ACLs.

Calls are retried for up to ``timeout_ms`` and are safe to repeat. Descriptions are reply messages
of ``actors/protocol``: frozen structs.

One file: the methods of one class, most of them a single call; ``calls``, ``hanging`` and
``identities`` do more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from msgspec import structs

from oncelog.actors.config import TopicConfig
from oncelog.actors.option_types import TopicOptions
from oncelog.actors.process.metrics import LATE_GRACE_MS
from oncelog.actors.protocol.messages.access import (
    ANY_HOST,
    Acl,
    Limits,
    Operation,
    Resource,
    UserDescription,
)
from oncelog.actors.protocol.messages.brokers import ElectLeadersRequest
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
    DeleteOffsetsReply,
    DeleteOffsetsRequest,
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
    EndPreparedTxnRequest,
    TransactionDescription,
)
from oncelog.actors.protocol.scram import DEFAULT_ITERATIONS
from oncelog.actors.protocol.transaction.transaction_state import TransactionState
from oncelog.api.admin import identities
from oncelog.api.admin.calls import (
    NAMED_MAX,
    TIMEOUT_MS,
    AdminCalls,
    LogDirDescription,
    cancel,
    check,
    check_partitions,
    check_replication_factor,
    check_topic_name,
    describe_log_dirs,
    drain,
    is_whole,
    reassign,
    remove_members,
    settings_text,
)
from oncelog.api.admin.hanging import HangingTransaction, abort_hanging, find_hanging
from oncelog.api.records import ConsumerGroupMetadata, as_committed
from oncelog.api.session.committed_offsets import commit_offsets, fetch_committed, list_offsets
from oncelog.api.session.event_loop import Blocking, LoopThread, blocking
from oncelog.api.session.routing import Router, check_seen
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    GroupIdNotFoundError,
    InvalidRequestError,
    InvalidTopicError,
    TransactionalIdNotFoundError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    exception_for,
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

    from oncelog.api.admin.identities import AclFilter, LimitValues


TRANSACTION_STATES: Final = tuple(
    state.value for state in TransactionState if state is not TransactionState.DEAD
)
"""The states of a transactional id."""


class AsyncAdmin:
    """``Admin`` for asyncio: topics, groups, transactions, users. Belongs to one event loop.

    A call is retried for up to a minute; then it raises the last
    retriable error, usually ``RequestTimedOutError``.
    """

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
        validate_only: bool = False,
        **settings: Unpack[TopicOptions],
    ) -> str:
        """Create a topic and wait until its partitions accept writes; return the topic id.

        Durable on return. Each partition gets ``replication_factor`` replicas on different brokers.
        ``None`` means 3; with fewer brokers, one on each for now and more once others join.
        ``settings`` are those of ``TopicConfig``. With ``exist_ok`` an existing topic is left
        unchanged, whatever its partition count. With ``validate_only`` nothing is created: it
        raises what it would raise.

        ``TopicAlreadyExistsError`` if the name is taken. ``InvalidReplicationFactorError`` if too
        few brokers are neither fenced nor draining. ``BrokerNotAvailableError`` if some partitions
        do not accept writes within a minute: the topic exists, and calling again with
        ``exist_ok=True`` goes on waiting.
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
            validate_only=validate_only,
        )
        reply = await self._calls.controller(request)
        if exist_ok and reply.error is ErrorCode.TOPIC_ALREADY_EXISTS:
            found = (await self._router.metadata((name,), refresh=True)).get(name)
            if found is not None:
                await self._calls.wait_until_led(name, len(found.partitions))
                return found.topic_id
        check(reply)
        if not validate_only:
            await self._calls.wait_until_led(name, partitions)
        return reply.topic_id

    async def create_partitions(
        self, name: str, partitions: int, *, validate_only: bool = False
    ) -> None:
        """Raise a topic's partition count to ``partitions`` and wait until all accept writes.

        Durable on return, and safe to repeat. Keys may map to other partitions than before. Running
        producers and consumers find the new ones within five minutes. ``InvalidPartitionsError``
        if the topic has more already. ``BrokerNotAvailableError`` if some do not accept writes
        within a minute. With ``validate_only`` nothing changes: it raises what it would raise.
        """
        check_partitions(partitions)
        request = CreatePartitionsRequest(
            name=name, partitions=partitions, validate_only=validate_only
        )
        reply = await self._calls.controller(request)
        check(reply, f"topic {name!r} cannot be given partitions")
        if validate_only:
            return
        await self._calls.wait_until_led(name, partitions)

    async def alter_topic(
        self,
        name: str,
        *,
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
        **settings: Unpack[TopicOptions],
    ) -> None:
        """Change some settings of a topic, durably; ``None`` resets a setting to its default.

        Settings not named keep their values. ``append`` and ``subtract`` change one member of a
        setting that is a list and leave the others: ``append={"cleanup_policy": "compact"}``.
        Leaders that are unreachable now apply the change later. ``InvalidConfigError`` names a
        setting that is unknown or out of range. With ``validate_only`` nothing changes: it raises
        what it would raise. Source: KIP-339.
        """
        changed = settings_text(settings)
        TopicConfig.from_text(changed)
        request = AlterTopicRequest(
            name=name,
            changes=tuple((key, changed.get(key)) for key in settings),
            appended=tuple((append or {}).items()),
            subtracted=tuple((subtract or {}).items()),
            validate_only=validate_only,
        )
        reply = await self._calls.controller(request)
        check(reply, f"topic {name!r} cannot be altered")

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Delete all records below each offset (exclusive), durably; -1 is the high watermark.

        Returns each partition's new log start offset (inclusive). Safe to repeat.
        ``OffsetOutOfRangeError`` beyond the high watermark, ``PolicyViolationError`` for a topic
        with ``cleanup_policy="compact"``. An error for one partition does not undo the others.
        Source: KIP-107.
        """
        for topic_partition, offset in offsets.items():
            if topic_partition.topic in INTERNAL_TOPICS:
                raise InvalidTopicError(f"{topic_partition.topic!r} is an internal topic")
            if not is_whole(offset):
                raise InvalidRequestError(
                    f"records of {topic_partition}: {offset!r} is not an offset",
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
        """Return the first offset at or after each timestamp (ms since the epoch), or -1 if none.

        ``LATEST_TIMESTAMP`` (-1) asks for the end, exclusive: the last stable offset with
        ``READ_COMMITTED``, else the high watermark. ``EARLIEST_TIMESTAMP`` (-2) asks for the log
        start offset, inclusive. Source: KIP-79.
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
        """Delete a topic and its data, durably; ``UnknownTopicOrPartitionError`` if unknown."""
        request = DeleteTopicRequest(name=name)
        reply = await self._calls.delete(
            lambda timeout_ms: self._router.call_controller(request, timeout_ms=timeout_ms),
            gone=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        check(reply, f"there is no topic {name!r}")

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Return the topic names, sorted; internal topics only with ``include_internal``."""
        cluster = await self.describe_cluster()
        return sorted(
            topic.name
            for topic in cluster.topics
            if include_internal or topic.name not in INTERNAL_TOPICS
        )

    async def describe_topic(self, name: str) -> TopicMetadata:
        """Return a topic's id, settings and partitions: leader (-1 for none), replicas and ISR.

        A partition ``is_under_replicated`` if a replica is not in sync or there are too few
        replicas. ``UnknownTopicOrPartitionError`` if there is no such topic, and
        ``TopicAuthorizationFailedError`` if the caller may not see it.
        """
        reply = await self._calls.controller(MetadataRequest(topics=(name,)))
        check(reply)
        check_seen(reply, (name,))
        for topic in reply.topics:
            if topic.name == name:
                return topic
        raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")

    async def describe_cluster(self) -> MetadataReply:
        """Return the brokers, the controller and all topics, internal ones included."""
        reply = await self._calls.controller(MetadataRequest())
        check(reply)
        return reply

    # --- replicas -----------------------------------------------------------------------------

    async def reassign_partition(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Start to move a partition to the brokers ``replicas``, preferred leader first.

        Returns without waiting for the move, which is durable by then and runs in the background.
        New replicas copy the log; once all are in sync, the old ones and their files are deleted.
        ``describe_topic`` shows the progress. Safe to repeat. Source: KIP-455.

        ``InvalidReplicaAssignmentError`` for brokers that are unknown, fenced, draining or given
        twice; ``InvalidConfigError`` for fewer than the topic's ``min_insync_replicas``;
        ``ReassignmentInProgressError`` while the partition moves elsewhere;
        ``UnknownTopicOrPartitionError``.
        """
        await reassign(self._calls, topic, partition, replicas)

    async def cancel_reassignment(self, topic: str, partition: int) -> None:
        """Cancel a partition's reassignment and return to its old replicas, durably.

        Does nothing if none is in progress. Safe to repeat. ``IneligibleReplicaError`` while only
        new replicas are in sync; ``UnknownTopicOrPartitionError``. Source: KIP-455.
        """
        await cancel(self._calls, topic, partition)

    async def drain_broker(self, broker_id: int) -> None:
        """Drain a broker, durably: it gives up leadership and gets no new replicas.

        Its replicas then move to other brokers in the background, ten partitions at a time;
        ``describe_cluster`` shows which are left. Safe to repeat.
        ``InvalidReplicationFactorError`` if too few brokers would remain for a user's topic;
        ``BrokerNotAvailableError`` if there is no such broker.
        """
        await drain(self._calls, broker_id, is_draining=True)

    async def resume_broker(self, broker_id: int) -> None:
        """Use a drained broker again, durably. Safe to repeat.

        Replicas that have moved away stay there. Internal topics whose replication factor had to
        drop regain it in the background. ``BrokerNotAvailableError`` if there is no such broker.
        """
        await drain(self._calls, broker_id, is_draining=False)

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Have the preferred leaders lead again, durably; return who leads each partition.

        The preferred leader is the first of a partition's replicas. ``None`` means all partitions
        of users' topics; those whose preferred leader cannot lead then keep theirs. Safe to repeat.

        ``PreferredLeaderNotAvailableError`` names such partitions among those that were given, and
        ``UnknownTopicOrPartitionError`` unknown ones; for the others it is done. Source: KIP-460.
        """
        wanted = None if partitions is None else tuple(partitions)
        reply = await self._calls.controller(ElectLeadersRequest(topic_partitions=wanted))
        check(reply)
        refused = {
            one.topic_partition: one.error
            for one in reply.elections
            if wanted is not None and one.error is not ErrorCode.NONE
        }
        if refused:
            named = ", ".join(map(str, list(refused)[:NAMED_MAX]))
            raise exception_for(next(iter(refused.values())), f"not elected: {named}")
        return {one.topic_partition: one.leader for one in reply.elections}

    async def describe_log_dirs(
        self, broker_ids: Iterable[int] | None = None
    ) -> list[LogDirDescription]:
        """Return each data directory that has replicas, with their sizes, by broker and path.

        Of all brokers, or those that are given. A replica that does not answer is in a directory
        without a path, with the error. Source: KIP-113, KIP-827.
        """
        wanted = None if broker_ids is None else set(broker_ids)
        return await describe_log_dirs(self._calls, await self.describe_cluster(), wanted)

    # --- keys ---------------------------------------------------------------------------------

    async def rotate_ticket_key(self) -> int:
        """Make a new key for transaction tickets, durably; return its version.

        Open transactions continue: tickets of the previous key stay valid for 12 hours, the longest
        that a ticket may live. To revoke a leaked key at once, call this twice; transactions that
        are just enrolling partitions then abort. Source: KIP-98, "Future work".
        """
        seen = await self.describe_cluster()
        request = RotateClusterKeyRequest(key_version=seen.cluster_key_version)
        reply = await self._calls.controller(request)
        check(reply)
        return reply.key_version

    # --- groups -------------------------------------------------------------------------------

    async def list_groups(self) -> list[GroupDescription]:
        """Return a description of every group, sorted by group id."""
        replies = await self._calls.shards(CONSUMER_OFFSETS_TOPIC, DescribeGroupsRequest())
        groups = [group for reply in replies for group in reply.groups]
        return sorted(groups, key=lambda group: group.group_id)

    async def describe_group(self, group_id: str) -> GroupDescription:
        """Return a group's state, generation and members, or raise ``GroupIdNotFoundError``."""
        reply = await self._calls.group(group_id, DescribeGroupsRequest(group_ids=(group_id,)))
        check(reply)
        for group in reply.groups:
            if group.group_id == group_id:
                return group
        raise GroupIdNotFoundError(f"there is no group {group_id!r}")

    async def delete_group(self, group_id: str) -> None:
        """Delete a group without members and its offsets, durably.

        ``NonEmptyGroupError`` if it has members; ``GroupIdNotFoundError``. Source: KIP-229.
        """
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
        """Remove members from a group: static ones by instance id, others by member id, or all.

        The remaining members get their partitions at once instead of after a session timeout. A
        member whose program still runs rejoins: stop it first. Safe to repeat. Source: KIP-345.

        ``UnknownMemberIdError`` names those that are not members; the others are removed even so.
        ``GroupIdNotFoundError`` if all members of an unknown group are to be removed.
        """
        if group_instance_ids is None and member_ids is None:
            group = await self.describe_group(group_id)
            leaving = [
                LeavingMember(member_id="", group_instance_id=member.group_instance_id)
                if member.group_instance_id is not None
                else LeavingMember(member_id=member.member_id)
                for member in group.members
            ]
            with contextlib.suppress(UnknownMemberIdError):  # Some may have left in between.
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
        """Return a group's committed offsets: the next offset to read per partition.

        With ``require_stable`` it waits for open transactions that commit offsets of this group.
        Without, it does not wait and ignores their offsets. Source: KIP-447.
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
        """Set the committed offsets of a group without members, durably. Source: KIP-396."""
        await commit_offsets(
            self._router,
            ConsumerGroupMetadata(group_id=group_id),
            {topic_partition: as_committed(offset) for topic_partition, offset in offsets.items()},
            random=self._random,
            timeout_ms=self._timeout_ms,
        )

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> None:
        """Delete a group's committed offsets of some partitions, durably. Safe to repeat.

        ``GroupSubscribedToTopicError`` for topics that a member reads, ``GroupIdNotFoundError``;
        for the other partitions it is done. Waits for open transactions that commit such an offset.
        Source: KIP-496.
        """
        request = DeleteOffsetsRequest(group_id=group_id, partitions=tuple(partitions))

        async def attempt(timeout_ms: int) -> DeleteOffsetsReply:
            reply = await self._router.call_group_coordinator(
                group_id, request, timeout_ms=timeout_ms
            )
            for error in sorted({one.error for one in reply.results} - {ErrorCode.NONE}):
                named = ", ".join(
                    str(one.topic_partition) for one in reply.results if one.error is error
                )
                return structs.replace(reply, error=error, detail=f"group {group_id!r}: {named}")
            return reply

        check(await self._calls.retried(attempt))

    # --- transactions -------------------------------------------------------------------------

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        running_longer_than_ms: int | None = None,
    ) -> list[TransactionDescription]:
        """Return every transactional id that passes all filters, sorted.

        ``states`` are Kafka's names ("Ongoing"). ``producer_ids`` also matches members of a
        distributed write. ``running_longer_than_ms`` (exclusive) keeps only transactions that are
        not yet complete. ``InvalidRequestError`` names an unknown state. Source: KIP-664, KIP-994.
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
        """Describe one transactional id, or raise ``TransactionalIdNotFoundError``."""
        request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
        reply = await self._calls.transaction(transactional_id, request)
        check(reply, f"there is no transactional id {transactional_id!r}")
        for transaction in reply.transactions:
            if transaction.transactional_id == transactional_id:
                return transaction
        raise TransactionalIdNotFoundError(f"there is no transactional id {transactional_id!r}")

    async def abort_transaction(self, transactional_id: str) -> bool:
        """Abort an id's open transaction, durably; return whether all abort markers are written.

        Its producer sees the same as after a transaction timeout: a commit fails, an abort succeeds
        and the producer continues. A transaction that begins later is not aborted.
        ``InvalidTxnStateError`` if none is open, or it is prepared or decided;
        ``TransactionalIdNotFoundError`` for an unknown id.
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

    async def complete_prepared_transaction(
        self, transactional_id: str, *, committed: bool
    ) -> bool:
        """Commit or abort an id's prepared transaction, durably, in place of its program.

        Find out first what the other system has decided: the two cannot be brought together later.
        Returns whether all markers are written. Safe to repeat. ``InvalidTxnStateError`` if none is
        prepared; ``TransactionalIdNotFoundError`` for an unknown id. Source: KIP-939.
        """
        seen = await self.describe_transaction(transactional_id)
        request = EndPreparedTxnRequest(
            transactional_id=transactional_id,
            committed=committed,
            producer_id=seen.producer_id,
            producer_epoch=seen.producer_epoch,
        )
        reply = await self._calls.transaction(transactional_id, request)
        check(reply)
        return reply.visible

    async def delete_transactional_id(self, transactional_id: str) -> None:
        """Delete an idle transactional id and the commit token of its last commit, durably.

        Ids without a commit token expire after a week; ids with one never do. Only for jobs that
        never run again: repeating the write that the token names would write it twice. Safe to
        repeat. ``InvalidTxnStateError`` while a transaction is open.
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
        """Return transactions that are open on a partition and that no coordinator will ever end.

        Searches all partitions, or only those led by ``broker_id``, of ``topic``, or one. The
        newest record of a result is older than ``older_than_ms``: by default the cluster's longest
        transaction timeout plus five minutes. Any value is safe: a transaction about to end is not
        returned. A result means a bug, of a producer or of oncelog. Source: KIP-664.

        ``IncompleteSearchError`` after a minute without a reply from some; it names them and holds
        what the others found.
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
        """Abort the hanging transaction that begins at ``start_offset``, durably; return it.

        ``InvalidTxnStateError`` if a transactional id may still end it or write to it; the message
        says what to do first. Source: KIP-664, KIP-98.
        """
        return await abort_hanging(self._calls, topic_partition, start_offset=start_offset)

    async def describe_producers(
        self, topic_partition: TopicPartition
    ) -> tuple[ProducerDescription, ...]:
        """Return the producers in a partition leader's state. Source: KIP-664."""
        request = DescribeProducersRequest(topic_partition=topic_partition)
        reply = await self._calls.leader(topic_partition, request)
        check(reply)
        return reply.producers

    async def describe_replica(self, topic_partition: TopicPartition) -> DescribeReplicaReply:
        """Return the offsets, size in bytes and process of a partition's leader."""
        request = DescribeReplicaRequest(topic_partition=topic_partition)
        reply = await self._calls.leader(topic_partition, request)
        check(reply)
        return reply

    # --- users and ACLs -----------------------------------------------------------------------

    async def create_user(
        self,
        name: str,
        password: str,
        *,
        iterations: int = DEFAULT_ITERATIONS,
        exist_ok: bool = False,
    ) -> None:
        """Add a user that proves itself by a password, durably; it may do what ACLs allow.

        The password does not leave this process: the cluster gets a credential that is computed
        from it, with ``iterations`` (4,096 to 1,000,000) of PBKDF2. More make guessing dearer for
        whoever steals the credential, and the user's first connection slower. With ``exist_ok`` an
        existing user is left unchanged; else ``InvalidRequestError``. Source: KIP-554, RFC 5802.
        """
        await identities.create_user(
            self._calls, name, password, iterations=iterations, exist_ok=exist_ok
        )

    async def alter_user(
        self, name: str, password: str, *, iterations: int = DEFAULT_ITERATIONS
    ) -> None:
        """Give a user another password, durably; its connections are closed.

        Safe to repeat. ``InvalidRequestError`` if there is no such user.
        """
        await identities.alter_user(self._calls, name, password, iterations)

    async def delete_user(self, name: str) -> None:
        """Remove a user, durably; its connections are closed. ACLs that name it stay.

        ``InvalidRequestError`` if there is no such user, or nobody would be left who could change
        users and ACLs.
        """
        await identities.delete_user(self._calls, name)

    async def list_users(self) -> list[UserDescription]:
        """Return the name and the iterations of each user, by name."""
        return await identities.list_users(self._calls)

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Add ACLs, all or none, durably; those that exist already change nothing.

        Each is an ``oncelog.Acl``. They count while authorization is on. ``InvalidRequestError``
        names a value that is impossible, and what is possible. Source: KIP-11, KIP-290.
        """
        await identities.create_acls(self._calls, acls)

    async def delete_acls(self, **wanted: Unpack[AclFilter]) -> list[Acl]:
        """Remove the ACLs that fit ``wanted``, durably, and return them.

        The fields of ``wanted`` are those of ``oncelog.AclFilter``; at least one is needed. At most
        a thousand ACLs are removed at a time: after an error some may be gone, and the call can be
        repeated. ``InvalidRequestError`` if nobody would be left who could change users and ACLs.
        """
        return await identities.delete_acls(self._calls, wanted)

    async def describe_acls(self, **wanted: Unpack[AclFilter]) -> list[Acl]:
        """Return the ACLs that fit ``wanted``, fields of ``oncelog.AclFilter``; without, all."""
        return await identities.describe_acls(self._calls, wanted)

    async def set_limits(self, principal: str, **limits: Unpack[LimitValues]) -> None:
        """Limit what ``principal`` may take of each actor, durably, in place of earlier limits.

        ``limits`` are those of ``oncelog.Limits``; without any it has none of its own any more.
        ``"User:*"`` are the limits of each principal that has none of its own. What is above a rate
        waits, what is above a number is refused. ``InvalidRequestError`` names an impossible value.
        Source: KIP-13.
        """
        await identities.set_limits(self._calls, principal, limits)

    async def describe_limits(self) -> dict[str, Limits]:
        """Return the limits of each principal that has some, by its name."""
        return await identities.describe_limits(self._calls)

    async def set_authorization(
        self, is_on: bool, super_users: Sequence[str] | None = None
    ) -> None:
        """Switch authorization on or off, durably, and name the super users; ``None`` keeps them.

        While it is on, a caller may do what ACLs allow it, and a super user (``"User:alice"``)
        everything. ``User:ray`` is every program that connects without a user; it is a super user
        until others are named. ``InvalidRequestError`` if nobody could change users and ACLs again.
        """
        await identities.set_authorization(self._calls, is_on, super_users)

    async def describe_authorization(self) -> identities.Authorization:
        """Return whether authorization is on, and the super users."""
        return await identities.describe_authorization(self._calls)

    async def check_access(
        self,
        principal: str,
        operation: Operation | str,
        resource: Resource | str,
        name: str,
        host: str = ANY_HOST,
    ) -> identities.AccessCheck:
        """Return whether ``principal`` may do this now, why, and the ACL that decides it, if any.

        ``host`` is the address that it calls from; ``"*"`` is one that no ACL names. The name of
        the one ``Cluster`` is ``"oncelog"``.
        """
        return await identities.check_access(
            self._calls, principal, operation, resource, name, host
        )


class Admin(Blocking[AsyncAdmin]):
    """Manage the topics, replicas, groups, transactions, users and ACLs of a cluster.

    Make it with ``cluster.admin()``. The methods are those of ``AsyncAdmin``; each blocks until it
    returns.
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
    elect_leaders = blocking(AsyncAdmin.elect_leaders)
    describe_log_dirs = blocking(AsyncAdmin.describe_log_dirs)

    # --- groups -------------------------------------------------------------------------------

    list_groups = blocking(AsyncAdmin.list_groups)
    describe_group = blocking(AsyncAdmin.describe_group)
    delete_group = blocking(AsyncAdmin.delete_group)
    remove_members_from_group = blocking(AsyncAdmin.remove_members_from_group)
    list_group_offsets = blocking(AsyncAdmin.list_group_offsets)
    alter_group_offsets = blocking(AsyncAdmin.alter_group_offsets)
    delete_group_offsets = blocking(AsyncAdmin.delete_group_offsets)

    # --- transactions -------------------------------------------------------------------------

    list_transactions = blocking(AsyncAdmin.list_transactions)
    describe_transaction = blocking(AsyncAdmin.describe_transaction)
    abort_transaction = blocking(AsyncAdmin.abort_transaction)
    complete_prepared_transaction = blocking(AsyncAdmin.complete_prepared_transaction)
    delete_transactional_id = blocking(AsyncAdmin.delete_transactional_id)
    find_hanging_transactions = blocking(AsyncAdmin.find_hanging_transactions)
    abort_hanging_transaction = blocking(AsyncAdmin.abort_hanging_transaction)
    describe_producers = blocking(AsyncAdmin.describe_producers)
    describe_replica = blocking(AsyncAdmin.describe_replica)

    # --- users and ACLs -----------------------------------------------------------------------

    create_user = blocking(AsyncAdmin.create_user)
    alter_user = blocking(AsyncAdmin.alter_user)
    delete_user = blocking(AsyncAdmin.delete_user)
    list_users = blocking(AsyncAdmin.list_users)
    create_acls = blocking(AsyncAdmin.create_acls)
    delete_acls = blocking(AsyncAdmin.delete_acls)
    describe_acls = blocking(AsyncAdmin.describe_acls)
    set_limits = blocking(AsyncAdmin.set_limits)
    describe_limits = blocking(AsyncAdmin.describe_limits)
    set_authorization = blocking(AsyncAdmin.set_authorization)
    describe_authorization = blocking(AsyncAdmin.describe_authorization)
    check_access = blocking(AsyncAdmin.check_access)
