"""Which actor to call: leaders and coordinators, cached, and looked up again when they move.

Leader addresses come from the controller and are only hints. An actor that does not lead replies
so; the hint is dropped and the next call asks the controller again. If the controller itself is
unreachable, an old hint is still used, because most actors restart under their old name.

*Outages*: calls are retried for as long as their time allows, many of them forever. So a program
that gets no reply looks like one that has nothing to do. Therefore an outage is reported once when
it begins to last, and once when it is over.

One file: the place that knows who is called also knows who does not reply.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from msgspec import structs

from oncelog.actors.coordination.cluster_view import ClusterView
from oncelog.actors.coordination.leader_watch import LEADER_CHECK_MS, LeaderWatch
from oncelog.actors.interfaces import (
    CONTROLLER_ACTOR,
    Clock,
    Transport,
    follower_address,
    leader_address,
)
from oncelog.actors.process.clock import loop_ms, monotonic_s
from oncelog.actors.process.metrics import CLIENT_OUTAGES, NO_METRICS, MetricSink
from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.messages.cluster import (
    MetadataReply,
    MetadataRequest,
    PartitionMetadata,
    TopicMetadata,
)
from oncelog.actors.protocol.messages.partition import FetchReply, FetchRequest
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.api.session.event_loop import LoopThread
from oncelog.api.session.login import NOBODY, Login
from oncelog.api.session.rights import ADVICE
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    CoordinatorNotAvailableError,
    OncelogError,
    exception_for,
)
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    shard_of,
)

METADATA_TIMEOUT_MS: Final = 2_000
"""Deadline of one metadata request to the controller."""

METADATA_AGE_MAX_MS: Final = 300_000
"""How long a topic's metadata is trusted: partitions may be added while clients run."""

_COORDINATOR_TOPICS: Final = (TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC)

_STALE_ROUTE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_OFFLINE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
"""Error codes after which the actor's address is looked up again."""


class Router:
    """One client's metadata cache and calls. Belongs to one event loop; bounded by topics.

    ``process`` is where it runs: coordinators watch for the end of that.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        metrics: MetricSink = NO_METRICS,
        *,
        process: DriverProcess | None = None,
    ) -> None:
        self.transport = transport
        self.clock = clock
        self.process = process
        self._view = ClusterView(self._ask_controller, asyncio.create_task)
        self.known_topics: Final = self._view.known
        """Cached topic metadata; may be read from any thread."""
        self.outages = Outages(metrics=metrics)

    # --- metadata -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Learn the coordinator shards. Raises ``OncelogError`` if the controller does not reply.

        The ``call_…`` methods do this themselves; call it before the plain look-ups below.
        """
        await self.metadata(_COORDINATOR_TOPICS)

    async def metadata(
        self,
        topics: Iterable[str],
        *,
        refresh: bool = False,
        age_max_ms: int = METADATA_AGE_MAX_MS,
    ) -> Mapping[str, TopicMetadata]:
        """Metadata of those of ``topics`` that exist; asks the controller if some is not cached.

        With ``refresh``, or once it is older than ``age_max_ms``, it asks in any case.
        Raises ``NetworkError`` and the like if the controller does not reply and a topic is not
        cached, and ``TopicAuthorizationFailedError`` for one that may not be seen: it may exist.
        """
        wanted, view = frozenset(topics), self._view
        as_of_ms = loop_ms() - age_max_ms
        missing = wanted if refresh else view.unknown(wanted, as_of_ms=as_of_ms)
        if missing or view.newest is None:
            reply = await view.ask(missing)
            check_seen(reply, missing)
            if reply.error is not ErrorCode.NONE:
                if view.newest is None or not wanted <= view.known.keys():
                    raise exception_for(
                        reply.error,
                        reply.detail or "the controller does not reply; is the cluster running?",
                    )
                view.prolong(missing)
        return {topic: view.known[topic] for topic in wanted if topic in view.known}

    async def ask_for(self, topic: str) -> None:
        """Ask the controller about ``topic``, cached or not; raise if it does not reply."""
        reply = await self._view.ask(frozenset((topic,)))
        if reply.error is not ErrorCode.NONE:
            raise exception_for(reply.error, reply.detail or "the controller does not reply")
        check_seen(reply, (topic,))

    async def all_topics(self) -> Mapping[str, TopicMetadata]:
        """Metadata of every topic, internal ones included, fresh from the controller."""
        asked_ms = loop_ms()
        reply = await self.call_controller(
            MetadataRequest(topics=None), timeout_ms=METADATA_TIMEOUT_MS
        )
        if reply.error is not ErrorCode.NONE:
            raise exception_for(reply.error, reply.detail)
        self._view.remember(reply, self.known_topics, asked_ms=asked_ms)
        return dict(self.known_topics)

    async def partition_count(self, topic: str) -> int:
        """The partition count of ``topic``; ``UnknownTopicOrPartitionError`` if it is unknown."""
        found = await self.metadata((topic,))
        if topic not in found:
            raise _unknown_topic(topic)
        return len(found[topic].partitions)

    def invalidate(self, topic_partition: TopicPartition) -> None:
        """Drop the cached leader of ``topic_partition``; the next look-up asks again."""
        self._view.invalidate(topic_partition.topic)

    # --- look-ups -----------------------------------------------------------------------------

    async def leader(self, topic_partition: TopicPartition) -> tuple[str, int]:
        """The address of the leader of ``topic_partition``, and its leader epoch.

        Raises as ``metadata``, ``UnknownTopicOrPartitionError``, or ``BrokerNotAvailableError``
        without a leader.
        """
        topic, partition = await self._find(topic_partition)
        address = leader_address(topic, partition)
        if address is None:
            self.invalidate(topic_partition)
            raise exception_for(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"partition {topic_partition} has no live leader now",
                advice="retry",
            )
        return address, partition.leader_epoch

    async def follower(self, topic_partition: TopicPartition, broker_id: int) -> tuple[str, int]:
        """The address of the follower on ``broker_id``, and the leader epoch.

        Raises as ``leader``, and ``NotLeaderOrFollowerError`` if no follower there is in sync, even
        when the controller is asked.
        """
        topic, partition = await self._find(topic_partition)
        address = follower_address(topic, partition, broker_id)
        if address is None:
            self.invalidate(topic_partition)
            topic, partition = await self._find(topic_partition)
            address = follower_address(topic, partition, broker_id)
        if address is None:
            raise exception_for(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {broker_id} has no follower of {topic_partition} that is in sync",
            )
        return address, partition.leader_epoch

    async def address(self, topic_partition: TopicPartition, follower: int | None) -> str:
        """The address of the leader, or of the ``follower`` on a broker; "" if it is not in sync.

        Raises as ``leader``.
        """
        if follower is None:
            return (await self.leader(topic_partition))[0]
        topic, partition = await self._find(topic_partition)
        return follower_address(topic, partition, follower) or ""

    async def _find(
        self, topic_partition: TopicPartition
    ) -> tuple[TopicMetadata, PartitionMetadata]:
        """What is known of the topic and of the partition; raises as ``leader``."""
        name, number = topic_partition.topic, topic_partition.partition
        topic = self._view.find(name, as_of_ms=loop_ms() - METADATA_AGE_MAX_MS)
        if topic is None:
            topic = (await self.metadata((name,))).get(name)
        if topic is None:
            raise _unknown_topic(name)
        partition = topic.find(number)
        if partition is None:
            self.invalidate(topic_partition)
            raise exception_for(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {name!r} has partitions 0 to {len(topic.partitions) - 1}, not {number}",
            )
        return topic, partition

    def transaction_coordinator(self, transactional_id: str) -> str:
        """The address of the coordinator of ``transactional_id``.

        Raises ``CoordinatorNotAvailableError`` before ``start`` and while the shard has no leader.
        """
        shard = self._shard_of(transactional_id, is_group=False)
        return self._shard_address(TRANSACTION_STATE_TOPIC, shard.partition)

    def group_coordinator(self, group_id: str) -> str:
        """The address of the coordinator of ``group_id``; see ``transaction_coordinator``."""
        shard = self.offsets_partition(group_id).partition
        return self._shard_address(CONSUMER_OFFSETS_TOPIC, shard)

    def offsets_partition(self, group_id: str) -> TopicPartition:
        """The partition of ``__consumer_offsets`` that has the offsets of ``group_id``."""
        shard = shard_of(group_id, self._known().offsets_partitions)
        return TopicPartition(CONSUMER_OFFSETS_TOPIC, shard)

    def _shard_of(self, key: str, *, is_group: bool) -> TopicPartition:
        """The partition whose leader is the coordinator of a group or transactional id."""
        if is_group:
            return self.offsets_partition(key)
        shard = shard_of(key, self._known().transaction_state_partitions)
        return TopicPartition(TRANSACTION_STATE_TOPIC, shard)

    # --- calls --------------------------------------------------------------------------------

    async def call_leader(
        self,
        topic_partition: TopicPartition,
        request: Request[ReplyT],
        *,
        timeout_ms: int,
        call_hosted: Callable[[str], Awaitable[ReplyT]] | None = None,
    ) -> ReplyT:
        """Call the leader of ``topic_partition`` once; never raises for a lost call.

        If it is in a host, ``call_hosted`` makes the call instead, given the leader's address.
        A failed look-up is a reply with its error code. After an error that means that the leader
        has moved or died, the next call looks it up again.
        """
        outages, what = self.outages, topic_partition
        began_s = outages.now_s()
        try:
            actor, _ = await self.leader(topic_partition)
        except OncelogError as error:
            outages.record(what, "", error.code, began_s=began_s)
            return request.failed(error.code, str(error))
        if call_hosted is not None and "/" in actor:
            reply = await call_hosted(actor)
        else:
            reply = await self._call(topic_partition, actor, request, timeout_ms=timeout_ms)
        outages.record(what, actor, reply.error, began_s=began_s)
        if reply.error in _STALE_ROUTE:
            self.invalidate(topic_partition)
        return reply

    async def call_follower(
        self,
        topic_partition: TopicPartition,
        broker_id: int,
        request: FetchRequest,
        *,
        timeout_ms: int,
        call_hosted: Callable[[str, FetchRequest], Awaitable[FetchReply]],
    ) -> FetchReply:
        """Fetch once from the follower on ``broker_id``; see ``call_leader``.

        The request gets the leader epoch that is known. The call is given up once the follower is
        not in sync. An error says nothing of the partition: its leader may be well.
        """
        try:
            actor, leader_epoch = await self.follower(topic_partition, broker_id)
        except OncelogError as error:
            return request.failed(error.code, str(error))
        fetch = structs.replace(request, from_follower=True, leader_epoch=leader_epoch)
        if "/" in actor:
            reply = await call_hosted(actor, fetch)
        else:
            watch = LeaderWatch(actor, lambda: self._replica_now(topic_partition, broker_id))
            reply = await watch.call(self.transport, fetch, timeout_ms=timeout_ms)
        if reply.error in _STALE_ROUTE:
            self.invalidate(topic_partition)
        return reply

    async def call_holder(
        self,
        holder: str,
        request: Request[ReplyT],
        *,
        of: TopicPartition,
        follower: int | None = None,
        timeout_ms: int,
    ) -> ReplyT:
        """Call the actor that holds a replica of partition ``of``; give up once another does.

        That is the leader, or the ``follower`` on a broker as long as it is in sync.
        """

        async def holder_now() -> str | None:
            replica = await self._replica_now(of, follower)
            return None if replica is None else replica.partition("/")[0]

        watch = LeaderWatch(holder, holder_now)
        return await watch.call(self.transport, request, timeout_ms=timeout_ms)

    async def call_transaction_coordinator(
        self, transactional_id: str, request: Request[ReplyT], *, timeout_ms: int
    ) -> ReplyT:
        """Call the coordinator of ``transactional_id`` once; see ``call_leader``."""
        return await self._call_coordinator(
            transactional_id, request, timeout_ms=timeout_ms, is_group=False
        )

    async def call_group_coordinator(
        self, group_id: str, request: Request[ReplyT], *, timeout_ms: int
    ) -> ReplyT:
        """Call the coordinator of ``group_id`` once; see ``call_leader``."""
        return await self._call_coordinator(group_id, request, timeout_ms=timeout_ms, is_group=True)

    async def call_controller(self, request: Request[ReplyT], *, timeout_ms: int) -> ReplyT:
        """Call the controller once; see ``call_leader``."""
        return await self.transport.call(CONTROLLER_ACTOR, request, timeout_ms=timeout_ms)

    # --- internals ----------------------------------------------------------------------------

    async def _call_coordinator(
        self, key: str, request: Request[ReplyT], *, timeout_ms: int, is_group: bool
    ) -> ReplyT:
        what = f"the coordinator of {'group' if is_group else 'transactional id'} {key!r}"
        began_s = self.outages.now_s()
        try:
            await self.start()
            actor = self.group_coordinator(key) if is_group else self.transaction_coordinator(key)
        except OncelogError as error:
            self.outages.record(what, "", error.code, began_s=began_s)
            return request.failed(error.code, str(error))
        shard = self._shard_of(key, is_group=is_group)
        reply = await self._call(shard, actor, request, timeout_ms=timeout_ms)
        self.outages.record(what, actor, reply.error, began_s=began_s)
        if reply.error in _STALE_ROUTE:
            self._view.invalidate(*_COORDINATOR_TOPICS)
        return reply

    async def _call(
        self, tp: TopicPartition, actor: str, request: Request[ReplyT], *, timeout_ms: int
    ) -> ReplyT:
        """Call ``actor``, which leads ``tp``; give up if another replica becomes the leader."""
        topic = self.known_topics.get(tp.topic)
        partition = None if topic is None else topic.find(tp.partition)
        is_copied = partition is not None and len(partition.replicas) > 1
        if not is_copied or timeout_ms <= LEADER_CHECK_MS:
            return await self.transport.call(actor, request, timeout_ms=timeout_ms)
        watch = LeaderWatch(actor, lambda: self._leader_now(tp))
        return await watch.call(self.transport, request, timeout_ms=timeout_ms)

    async def _leader_now(self, tp: TopicPartition) -> str | None:
        """The address of the leader of ``tp`` from the controller; ``None`` if unknown."""
        return await self._replica_now(tp, None)

    async def _replica_now(self, tp: TopicPartition, follower: int | None) -> str | None:
        """The address of the leader, or of the follower on a broker, from the controller.

        ``None`` if it is unknown, and "" if that follower is not in sync.
        """
        try:
            await self.ask_for(tp.topic)
            return await self.address(tp, follower)
        except OncelogError:
            return None

    async def _ask_controller(self, request: MetadataRequest) -> MetadataReply:
        began_s = self.outages.now_s()
        reply = await self.call_controller(request, timeout_ms=METADATA_TIMEOUT_MS)
        self.outages.record("the controller", CONTROLLER_ACTOR, reply.error, began_s=began_s)
        return reply

    def _known(self) -> MetadataReply:
        if self._view.newest is None:
            raise CoordinatorNotAvailableError("the cluster is not known yet", advice="retry")
        return self._view.newest

    def _shard_address(self, topic: str, shard: int) -> str:
        metadata = self.known_topics.get(topic)
        partition = None if metadata is None else metadata.find(shard)
        address = None
        if metadata is not None and partition is not None:
            address = leader_address(metadata, partition)
        if address is not None:
            return address
        self._view.invalidate(topic)
        raise CoordinatorNotAvailableError(
            f"shard {shard} of {topic} has no leader now", advice="retry"
        )


def check_seen(reply: MetadataReply, topics: Container[str]) -> None:
    """``TopicAuthorizationFailedError`` if the caller may not see one of ``topics``.

    If it were taken for deleted, what was read of it would be forgotten, and read again once it is
    seen again.
    """
    for topic in reply.refused:
        if topic in topics:
            raise exception_for(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                f"this program may not Describe topic {topic!r}, whether there is one or not",
                advice=ADVICE,
            )


def _unknown_topic(topic: str) -> OncelogError:
    return exception_for(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"there is no topic {topic!r}",
        advice=(
            f"create it with admin.create_topic({topic!r}, partitions=N) or `oncelog topics "
            f"create {topic}`"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientContext:
    """How a connection reaches its cluster, for integrations that build their own clients.

    Stable within this project, but not part of the public API: programs use ``Cluster``. It ends
    with ``Cluster.close``. ``router`` is for coroutines that run on ``loop_thread``; its calls are
    those of ``login``.
    """

    router: Router
    loop_thread: LoopThread
    random: Random
    processes: ProcessTable
    login: Login = NOBODY


# --- outages ----------------------------------------------------------------------------------


OUTAGE_S: Final = 5.0
"""An outage this long is reported; an election takes less."""

AWAY: Final = frozenset(
    {
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_OFFLINE,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Error codes of an actor that cannot serve now; any other code ends an outage."""

_log = logging.getLogger("oncelog.client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """``what`` does not reply, or does again (``is_over``), after ``lasted_s`` seconds so far.

    ``who`` is the actor called last, "" if none is known, and ``error`` is that call's error.
    """

    what: str
    who: str
    error: ErrorCode
    lasted_s: float
    is_over: bool


@dataclass(slots=True)
class _Silence:
    since_s: float
    is_reported: bool = False


class Outages:
    """The outages that one connection sees; belongs to one event loop, bounded by its callees.

    ``listeners`` are called on the loop with each ``Outage``: when one begins, and when it is over.
    """

    def __init__(
        self, now_s: Callable[[], float] = monotonic_s, metrics: MetricSink = NO_METRICS
    ) -> None:
        self.listeners: list[Callable[[Outage], None]] = []
        self._now_s = now_s
        self._metrics = metrics
        self._silences: dict[TopicPartition | str, _Silence] = {}

    def now_s(self) -> float:
        """The time for ``record``'s ``began_s``, in monotonic seconds."""
        return self._now_s()

    @property
    def count(self) -> int:
        """How many reported outages still last."""
        return sum(silence.is_reported for silence in self._silences.values())

    def record(
        self, what: TopicPartition | str, who: str, error: ErrorCode, *, began_s: float
    ) -> None:
        """Record the outcome of a call to ``who``, for ``what``, that began at ``began_s``."""
        silence = self._silences.get(what)
        if error not in AWAY:
            if silence is not None:
                del self._silences[what]
                if silence.is_reported:
                    self._report(what, who, error, silence, is_over=True)
            return
        if silence is None:
            silence = self._silences[what] = _Silence(began_s)
        if not silence.is_reported and self._now_s() - silence.since_s >= OUTAGE_S:
            silence.is_reported = True
            self._report(what, who, error, silence, is_over=False)

    def _report(
        self,
        target: TopicPartition | str,
        who: str,
        error: ErrorCode,
        silence: _Silence,
        *,
        is_over: bool,
    ) -> None:
        what = f"partition {target}" if isinstance(target, TopicPartition) else target
        lasted_s = self._now_s() - silence.since_s
        if is_over:
            _log.warning("%s replies again, after %.0f s", what, lasted_s)
        else:
            kind = "partition" if isinstance(target, TopicPartition) else target.split()[1]
            self._metrics.add(CLIENT_OUTAGES, 1, {"what": kind})
            _log.warning(
                "%s has not replied for %.0f s: %s of %s; calls are retried while their time "
                "allows",
                what,
                lasted_s,
                error.name,
                who or "none: no actor is known",
            )
        outage = Outage(what=what, who=who, error=error, lasted_s=lasted_s, is_over=is_over)
        for listener in tuple(self.listeners):
            try:
                listener(outage)
            except Exception:
                _log.exception("an outage listener raised")
