"""Which actor to call: leaders and coordinators, cached, and looked up again when they move.

Leader addresses come from the controller and are only hints: an actor that does not lead says so,
the hint is dropped and the next call asks the controller again. When the controller itself cannot
be reached, an old hint is still used, because most actors come back under their old name.

*Outages*: calls are repeated for as long as their time allows, many of them without end, so a
program that gets nothing looks like one that has nothing to do. What its calls wait for is
therefore told, once when it begins to last, and once when it is over.

One file: who is called and who does not answer is known in the same place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from oncelog.actors.coordination.leader_watch import LEADER_CHECK_MS, LeaderWatch
from oncelog.actors.interfaces import (
    CONTROLLER_ACTOR,
    Clock,
    Transport,
    leader_address,
)
from oncelog.actors.process.clock import monotonic_s
from oncelog.actors.process.metrics import CLIENT_OUTAGES, NO_METRICS, MetricSink
from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.messages.cluster import (
    MetadataReply,
    MetadataRequest,
    TopicMetadata,
)
from oncelog.api.session.event_loop import LoopThread
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
"""How long one question to the controller may take."""

METADATA_AGE_MAX_MS: Final = 300_000
"""How long a topic's metadata is trusted: it may get partitions while clients run."""

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
"""Codes after which the actor's address is asked for again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lookup:
    """The topics of one request to the controller, and the task that awaits the reply."""

    topics: frozenset[str]
    task: asyncio.Task[MetadataReply]


class Router:
    """The cluster's map as one client knows it. Belongs to one event loop; bounded by topics."""

    def __init__(
        self, transport: Transport, clock: Clock, metrics: MetricSink = NO_METRICS
    ) -> None:
        self.transport = transport
        self.clock = clock
        self.known_topics: Final[dict[str, TopicMetadata]] = {}
        """Cached topic metadata; may be read from any thread."""
        self._stale: set[str] = set()
        self._learned_s: dict[str, float] = {}
        self._cluster: MetadataReply | None = None
        self._lookup: _Lookup | None = None
        self.outages = Outages(metrics=metrics)

    # --- metadata -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Learn the coordinator shards. Raises ``OncelogError`` if the controller is not there.

        The ``call_…`` methods do this themselves; the plain look-ups below need it done.
        """
        await self.metadata(_COORDINATOR_TOPICS)

    async def metadata(
        self, topics: Iterable[str], *, refresh: bool = False
    ) -> Mapping[str, TopicMetadata]:
        """Metadata of those of ``topics`` that exist, asking the controller for what is not known.

        With ``refresh`` the controller is asked in any case, and again after
        ``METADATA_AGE_MAX_MS``. Raises ``NetworkError`` and the like
        when it does not answer and something asked for is not cached.
        """
        wanted = frozenset(topics)
        missing = wanted if refresh else wanted - (self.known_topics.keys() - self._stale)
        due_s = asyncio.get_running_loop().time() - METADATA_AGE_MAX_MS / 1_000
        missing |= {topic for topic in wanted if self._learned_s.get(topic, due_s) < due_s}
        if missing or self._cluster is None:
            reply = await self._ask(missing)
            if reply.error is not ErrorCode.NONE and (
                self._cluster is None or not wanted <= self.known_topics.keys()
            ):
                raise exception_for(
                    reply.error,
                    reply.detail or "the controller does not answer; is the cluster running?",
                )
            if reply.error is not ErrorCode.NONE:
                # Old metadata is used for a while longer: the controller may be away for long.
                now_s = asyncio.get_running_loop().time()
                self._learned_s |= dict.fromkeys(missing & self._learned_s.keys(), now_s)
        return {topic: self.known_topics[topic] for topic in wanted if topic in self.known_topics}

    async def ask_for(self, topic: str) -> None:
        """Ask the controller for ``topic``, known or not; raises why it does not answer."""
        reply = await self._ask(frozenset((topic,)))
        if reply.error is not ErrorCode.NONE:
            raise exception_for(reply.error, reply.detail or "the controller does not answer")

    async def all_topics(self) -> Mapping[str, TopicMetadata]:
        """Metadata of every topic, internal ones included, fresh from the controller."""
        reply = await self.transport.call(
            CONTROLLER_ACTOR, MetadataRequest(topics=None), timeout_ms=METADATA_TIMEOUT_MS
        )
        if reply.error is not ErrorCode.NONE:
            raise exception_for(reply.error, reply.detail)
        self.known_topics.clear()
        self._remember(reply, frozenset())
        return dict(self.known_topics)

    async def partition_count(self, topic: str) -> int:
        """How many partitions ``topic`` has; ``UnknownTopicOrPartitionError`` if there is none."""
        found = await self.metadata((topic,))
        if topic not in found:
            raise _unknown_topic(topic)
        return len(found[topic].partitions)

    def invalidate(self, topic_partition: TopicPartition) -> None:
        """Forget that the leader of ``topic_partition`` is known; the next look-up asks again."""
        self._stale.add(topic_partition.topic)

    # --- look-ups -----------------------------------------------------------------------------

    async def leader(self, topic_partition: TopicPartition) -> tuple[str, int]:
        """Whom to call for the leader of ``topic_partition``, and its leader epoch.

        Raises ``UnknownTopicOrPartitionError``, or ``BrokerNotAvailableError`` without a leader.
        """
        name, number = topic_partition.topic, topic_partition.partition
        topic = self._fresh(name) or (await self.metadata((name,))).get(name)
        if topic is None:
            raise _unknown_topic(name)
        partition = topic.find(number)
        if partition is None:
            self.invalidate(topic_partition)
            raise exception_for(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {name!r} has partitions 0 to {len(topic.partitions) - 1}, not {number}",
            )
        address = leader_address(topic, partition)
        if address is None:
            self.invalidate(topic_partition)
            raise exception_for(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"partition {topic_partition} has no live leader now",
                advice="retry",
            )
        return address, partition.leader_epoch

    def transaction_coordinator(self, transactional_id: str) -> str:
        """Whom to call for the coordinator of ``transactional_id``.

        Raises ``CoordinatorNotAvailableError`` before ``start`` and while the shard has no leader.
        """
        shard = self._shard_of(transactional_id, is_group=False)
        return self._shard_address(TRANSACTION_STATE_TOPIC, shard.partition)

    def group_coordinator(self, group_id: str) -> str:
        """Whom to call for the coordinator of ``group_id``; see ``transaction_coordinator``."""
        shard = self.offsets_partition(group_id).partition
        return self._shard_address(CONSUMER_OFFSETS_TOPIC, shard)

    def offsets_partition(self, group_id: str) -> TopicPartition:
        """The partition of the offsets log that holds the offsets of ``group_id``."""
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
        self, topic_partition: TopicPartition, request: Request[ReplyT], *, timeout_ms: int
    ) -> ReplyT:
        """One call to the leader of ``topic_partition``; never raises for a lost call.

        A look-up that fails is a reply with that code. After a code that says the
        leader has moved or died, the next call looks it up again.
        """
        outages, what = self.outages, topic_partition
        began_s = outages.now_s()
        try:
            actor, _ = await self.leader(topic_partition)
        except OncelogError as error:
            outages.record(what, "", error.code, began_s=began_s)
            return request.failed(error.code, str(error))
        reply = await self._call(topic_partition, actor, request, timeout_ms=timeout_ms)
        outages.record(what, actor, reply.error, began_s=began_s)
        if reply.error in _STALE_ROUTE:
            self.invalidate(topic_partition)
        return reply

    async def call_transaction_coordinator(
        self, transactional_id: str, request: Request[ReplyT], *, timeout_ms: int
    ) -> ReplyT:
        """One call to the coordinator of ``transactional_id``; see ``call_leader``."""
        return await self._call_coordinator(
            transactional_id, request, timeout_ms=timeout_ms, is_group=False
        )

    async def call_group_coordinator(
        self, group_id: str, request: Request[ReplyT], *, timeout_ms: int
    ) -> ReplyT:
        """One call to the coordinator of ``group_id``; see ``call_leader``."""
        return await self._call_coordinator(group_id, request, timeout_ms=timeout_ms, is_group=True)

    async def call_controller(self, request: Request[ReplyT], *, timeout_ms: int) -> ReplyT:
        """One call to the controller; see ``call_leader``."""
        return await self.transport.call(CONTROLLER_ACTOR, request, timeout_ms=timeout_ms)

    # --- internals ----------------------------------------------------------------------------

    def _fresh(self, topic: str) -> TopicMetadata | None:
        """What is known of ``topic`` if ``metadata`` would not ask for it again."""
        known, learned_s = self.known_topics.get(topic), self._learned_s.get(topic)
        if known is None or learned_s is None or topic in self._stale:
            return None
        due_s = asyncio.get_running_loop().time() - METADATA_AGE_MAX_MS / 1_000
        return known if learned_s >= due_s else None

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
            self._stale.update(_COORDINATOR_TOPICS)
        return reply

    async def _call(
        self, tp: TopicPartition, actor: str, request: Request[ReplyT], *, timeout_ms: int
    ) -> ReplyT:
        """One call to ``actor``, which leads ``tp``; given up if another that has a copy does."""
        topic = self.known_topics.get(tp.topic)
        partition = None if topic is None else topic.find(tp.partition)
        is_copied = partition is not None and len(partition.replicas) > 1
        if not is_copied or timeout_ms <= LEADER_CHECK_MS:
            return await self.transport.call(actor, request, timeout_ms=timeout_ms)
        watch = LeaderWatch(actor, lambda: self._leader_now(tp))
        return await watch.call(self.transport, request, timeout_ms=timeout_ms)

    async def _leader_now(self, tp: TopicPartition) -> str | None:
        """Whom to call for ``tp`` as the controller has it; ``None`` if it does not say."""
        try:
            await self.ask_for(tp.topic)
            return (await self.leader(tp))[0]
        except OncelogError:
            return None

    async def _ask(self, topics: frozenset[str]) -> MetadataReply:
        """Ask the controller about ``topics``; callers that want the same share one question."""
        while True:
            lookup = self._lookup
            if lookup is None:
                task = asyncio.get_running_loop().create_task(self._question(topics))
                lookup = self._lookup = _Lookup(topics=topics, task=task)
                # Not by the task itself: one that is cancelled before its first step does nothing.
                task.add_done_callback(self._forget_lookup)
            # It goes on without this caller, since another may be waiting for the same answer.
            await asyncio.wait((lookup.task,))
            # A program that shuts down may have cancelled it; whoever still waits asks again.
            if topics <= lookup.topics and not lookup.task.cancelled():
                return lookup.task.result()

    async def _question(self, topics: frozenset[str]) -> MetadataReply:
        began_s = self.outages.now_s()
        reply = await self.transport.call(
            CONTROLLER_ACTOR,
            MetadataRequest(topics=tuple(sorted(topics))),
            timeout_ms=METADATA_TIMEOUT_MS,
        )
        self.outages.record("the controller", CONTROLLER_ACTOR, reply.error, began_s=began_s)
        if reply.error is ErrorCode.NONE:
            self._remember(reply, topics)
        return reply

    def _forget_lookup(self, task: asyncio.Task[MetadataReply]) -> None:
        if self._lookup is not None and self._lookup.task is task:
            self._lookup = None

    def _remember(self, reply: MetadataReply, asked: frozenset[str]) -> None:
        self._cluster = reply
        found = {topic.name: topic for topic in reply.topics}
        for name in asked - found.keys():
            self.known_topics.pop(name, None)
            self._learned_s.pop(name, None)
        self.known_topics.update(found)
        self._stale -= asked | found.keys()
        self._learned_s |= dict.fromkeys(found, asyncio.get_running_loop().time())

    def _known(self) -> MetadataReply:
        if self._cluster is None:
            raise CoordinatorNotAvailableError("the cluster is not known yet", advice="retry")
        return self._cluster

    def _shard_address(self, topic: str, shard: int) -> str:
        metadata = self.known_topics.get(topic)
        partition = None if metadata is None else metadata.find(shard)
        address = None
        if metadata is not None and partition is not None:
            address = leader_address(metadata, partition)
        if address is not None:
            return address
        self._stale.add(topic)
        raise CoordinatorNotAvailableError(
            f"shard {shard} of {topic} has no leader now", advice="retry"
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
    """How a connection reaches its cluster, for bridges that build clients of their own.

    Stable inside this project, but not part of the public API: programs use ``Cluster``. It ends
    with ``Cluster.close``. ``router`` is for coroutines that run on ``loop_thread``.
    """

    router: Router
    loop_thread: LoopThread
    random: Random
    processes: ProcessTable


# --- outages ----------------------------------------------------------------------------------


OUTAGE_S: Final = 5.0
"""How long something is not answered before that is told: an election takes less."""

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
"""Codes of what cannot serve now; any other is an answer."""

_log = logging.getLogger("oncelog.client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """``what`` does not answer, or does again (``is_over``); ``lasted_s`` is how long so far.

    ``who`` was called last, "" if nobody is known, and ``error`` is what came of that.
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
    """Of one connection; belongs to one event loop. Bounded by what its program calls.

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
        """For ``record``: when a call began."""
        return self._now_s()

    @property
    def count(self) -> int:
        """How many last that were told."""
        return sum(silence.is_reported for silence in self._silences.values())

    def record(
        self, what: TopicPartition | str, who: str, error: ErrorCode, *, began_s: float
    ) -> None:
        """A call of ``who`` for ``what`` that began then has come to this."""
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
            _log.warning("%s answers again, after %.0f s", what, lasted_s)
        else:
            kind = "partition" if isinstance(target, TopicPartition) else target.split()[1]
            self._metrics.add(CLIENT_OUTAGES, 1, {"what": kind})
            _log.warning(
                "%s does not answer since %.0f s: %s of %s; calls are repeated while their time "
                "allows",
                what,
                lasted_s,
                error.name,
                who or "nobody: none is known",
            )
        outage = Outage(what=what, who=who, error=error, lasted_s=lasted_s, is_over=is_over)
        for listener in tuple(self.listeners):
            try:
                listener(outage)
            except Exception:
                _log.exception("a listener of outages failed")
