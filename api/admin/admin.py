"""``Admin``: topics, groups and transactions, to be made, looked at and removed.

The same as ``AsyncAdmin`` for programs without an event loop.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from oncelog.actors.config import TopicOptions
from oncelog.actors.protocol.messages.admin import TransactionDescription
from oncelog.actors.protocol.messages.cluster import MetadataReply, TopicMetadata
from oncelog.actors.protocol.messages.group import GroupDescription, OffsetAndMetadata
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply, ProducerDescription
from oncelog.api.admin.async_admin import AsyncAdmin
from oncelog.api.admin.calls import TIMEOUT_MS
from oncelog.api.admin.hanging import HangingTransaction
from oncelog.api.session.event_loop import LoopThread
from oncelog.api.session.routing import Router
from oncelog.storage.model import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from typing_extensions import Unpack

ResultT = TypeVar("ResultT")

__all__ = ["Admin", "AsyncAdmin"]


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
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 1,
        *,
        exist_ok: bool = False,
        **settings: Unpack[TopicOptions],
    ) -> str:
        """Create a topic, durably, and wait until its partitions can be written; its id.

        ``settings`` are those of ``TopicConfig``. ``TopicAlreadyExistsError`` if there is one of
        that name; with ``exist_ok`` that one is left as it is, however many partitions it has.
        """
        return self._run(
            self._admin.create_topic(
                name, partitions, replication_factor, exist_ok=exist_ok, **settings
            )
        )

    def create_partitions(self, name: str, partitions: int) -> None:
        """Give a topic more partitions, ``partitions`` in all, and wait until they can be written.

        Records with a key may go to another partition than before. Running producers and groups
        use the new ones within ``routing.METADATA_AGE_MAX_MS``. Safe to repeat;
        ``InvalidPartitionsError`` for fewer than there are.
        """
        self._run(self._admin.create_partitions(name, partitions))

    def alter_topic(self, name: str, **settings: Unpack[TopicOptions]) -> None:
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

    def list_offsets(
        self,
        times_ms: Mapping[TopicPartition, int],
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, int]:
        """The first offset at or after each time (ms since 1970), -1 where there is none.

        ``LATEST_TIMESTAMP`` (-1) asks for the end (exclusive; for read_committed the last stable
        offset), ``EARLIEST_TIMESTAMP`` (-2) for the log start.
        """
        return self._run(self._admin.list_offsets(times_ms, isolation_level=isolation_level))

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

    def rotate_ticket_key(self) -> int:
        """Make a new secret for the tickets of transactions, durably; how often that was done.

        Open transactions go on: tickets under the key before are honoured for the 12 hours that
        the oldest of them may live. Whoever must not have that key any more: call it twice, and
        transactions that are just enrolling partitions abort. Source: KIP-98, "Future work".
        """
        return self._run(self._admin.rotate_ticket_key())

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

    def list_group_offsets(
        self, group_id: str, *, require_stable: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed; waits for open transactions that commit some of it.

        Without ``require_stable`` it does not wait, and they count as if they were aborted.
        """
        return self._run(self._admin.list_group_offsets(group_id, require_stable=require_stable))

    def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Set what a group without members has committed, durably."""
        self._run(self._admin.alter_group_offsets(group_id, offsets))

    # --- transactions -------------------------------------------------------------------------

    def list_transactions(
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
        return self._run(
            self._admin.list_transactions(
                states=states,
                producer_ids=producer_ids,
                running_longer_than_ms=running_longer_than_ms,
            )
        )

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """One transactional id; ``TransactionalIdNotFoundError`` if there is none."""
        return self._run(self._admin.describe_transaction(transactional_id))

    def abort_transaction(self, transactional_id: str) -> bool:
        """Abort the open transaction of an id, durably; whether readers see it already.

        Its producer is told as after a timeout: a commit fails, an abort succeeds and it goes on.
        ``InvalidTxnStateError`` when none is open or its commit is decided,
        ``TransactionalIdNotFoundError`` for an unknown id. One that begins meanwhile is left alone.
        """
        return self._run(self._admin.abort_transaction(transactional_id))

    def delete_transactional_id(self, transactional_id: str) -> None:
        """Forget an id for good, durably, with the token of its last commit.

        Ids without a token expire by themselves after a week; those with one never do. Whoever
        repeats a write that the token named will write it twice: only for jobs that are over.
        ``InvalidTxnStateError`` while a transaction is open. Safe to repeat.
        """
        self._run(self._admin.delete_transactional_id(transactional_id))

    def find_hanging_transactions(
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
        any age: what is about to end is never reported. Whoever does not answer for a minute is
        named by ``IncompleteSearchError``, which has what the others told. Source: KIP-664.
        """
        return self._run(
            self._admin.find_hanging_transactions(
                broker_id=broker_id,
                topic=topic,
                partition=partition,
                older_than_ms=older_than_ms,
            )
        )

    def abort_hanging_transaction(
        self, topic_partition: TopicPartition, *, start_offset: int
    ) -> HangingTransaction:
        """Abort what is open from ``start_offset`` of one partition on, durably; what it was.

        Never what a transactional id may still end or write to: ``InvalidTxnStateError`` then
        says what to do first. Source: KIP-664, KIP-98.
        """
        return self._run(
            self._admin.abort_hanging_transaction(topic_partition, start_offset=start_offset)
        )

    def describe_producers(
        self, topic_partition: TopicPartition
    ) -> tuple[ProducerDescription, ...]:
        """The producers that a partition's leader knows."""
        return self._run(self._admin.describe_producers(topic_partition))

    def describe_replica(self, topic_partition: TopicPartition) -> DescribeReplicaReply:
        """Bounds, size and process of a partition's leader."""
        return self._run(self._admin.describe_replica(topic_partition))
