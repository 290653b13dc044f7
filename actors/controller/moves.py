"""Moves of replicas: reassignments by people, draining, growth, and leader balance.

A move begins with a record; the actors of the new replicas are started and copy the log. When the
whole target is in sync another record completes it, and the old replicas are removed. The next pass
continues whatever a lost call or a crash has left undone.

Replicas that are no longer in the metadata stay until they have removed their files
(``LeavingReplicas``): their hosts still hold them, and their own actors go on. They are listed in
memory only. If the controller ends, their files stay on the disk until a replica is placed there
again, which then copies what it lacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Final

from oncelog.actors.config import ClusterConfig
from oncelog.actors.controller.broker_membership import Execute
from oncelog.actors.controller.replica_actors import ReplicaActors, ReplicaCalls
from oncelog.actors.interfaces import actor_of, holder_of
from oncelog.actors.protocol.cluster.brokers import decide_drain
from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.cluster.cluster_records import decision
from oncelog.actors.protocol.cluster.cluster_state import PartitionState
from oncelog.actors.protocol.cluster.elections import balance, decide_elect, is_live
from oncelog.actors.protocol.cluster.hosts import OWN_ACTOR, HostRules, Placement
from oncelog.actors.protocol.cluster.placement import min_insync_of
from oncelog.actors.protocol.cluster.reassignment import complete, decide_reassign, drained, grown
from oncelog.actors.protocol.effects import Decision
from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.messages.brokers import (
    DrainBrokerReply,
    DrainBrokerRequest,
    ElectLeadersReply,
    ElectLeadersRequest,
    ReassignPartitionReply,
    ReassignPartitionRequest,
)
from oncelog.actors.protocol.messages.cluster import HostedReplica, MetadataReply, MetadataRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

_logger = logging.getLogger(__name__)

MOVES_CHECK_MS: Final = 5_000
"""Interval of looking for moves; events trigger an earlier look."""

LEAVING_MAX: Final = 10_000
"""Maximum replicas that wait to be removed, for example on brokers that are down."""

REMOVAL_RETRY_MS: Final = 5_000
"""Delay before a replica that did not answer is told again."""


class Moves:
    """Begins and ends reassignments.

    ``rules``: how replicas share actors, by topic settings. ``is_current``: whether this is still
    the controller.
    """

    def __init__(
        self,
        *,
        machine: ClusterMachine,
        actors: ReplicaActors,
        calls: ReplicaCalls,
        names: NameLocks,
        rules: Callable[[Mapping[str, str]], HostRules],
        config: ClusterConfig,
        execute: Execute,
        is_current: Callable[[], Awaitable[bool]],
    ) -> None:
        self._machine = machine
        self._actors = actors
        self.leaving = LeavingReplicas(
            machine=machine, actors=actors, calls=calls, names=names, is_current=is_current
        )
        self._names = names
        self._rules = rules
        self._config = config
        self._execute = execute
        self._is_due = asyncio.Event()

    def watches(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The loops to run while the controller serves, each in its own task."""
        return self._watch(), self._watch_balance(), self.leaving.watch()

    # --- requests -------------------------------------------------------------------------

    async def drain(self, request: DrainBrokerRequest) -> DrainBrokerReply:
        """Move everything off a broker, or use it again."""
        machine = self._machine
        reply = await self._execute(
            request,
            lambda _now_ms: decide_drain(machine.topics, machine.broker_states, request),
        )
        self._is_due.set()
        return reply

    async def reassign(
        self, request: ReassignPartitionRequest, *, is_own: bool = False
    ) -> ReassignPartitionReply:
        """Begin or cancel a reassignment; ``is_own``: the controller's own decision."""
        tp = request.topic_partition
        async with self._names.hold(tp.topic):
            leaving: list[Placement] = []
            reply = await self._execute(
                request, lambda _now_ms: self._decide_reassign(request, leaving, is_own=is_own)
            )
            self._end_leaving(tp, leaving, reply)
            if reply.error is ErrorCode.NONE:
                placements = self._placed(tp)
                self.leaving.discard(placements)
                if request.replicas:
                    await self._actors.start(placements)
            return reply

    def _decide_reassign(
        self, request: ReassignPartitionRequest, leaving: list[Placement], *, is_own: bool
    ) -> Decision[ReassignPartitionReply]:
        machine, tp = self._machine, request.topic_partition
        topic = machine.topics.get(tp.topic)
        settings = () if topic is None else topic.settings
        decided = decide_reassign(
            machine.topics,
            machine.broker_states,
            request,
            min_insync_replicas=min_insync_of(settings, len(request.replicas)),
            host_of=functools.partial(self._host_of, tp, dict(settings)),
            keeps_factor=is_own,
        )
        partition = self._find(tp)
        if decided.records and partition is not None and not request.replicas:
            self._mark_leaving(tp, partition.adding, leaving)
        return decided

    def _host_of(self, tp: TopicPartition, settings: Mapping[str, str], broker_id: int) -> int:
        host = self.leaving.host_of(tp, broker_id)
        if host is None:
            ((host,),) = self._rules(settings).choose(((broker_id,),), self._machine.held())
        return host

    # --- completion -----------------------------------------------------------------------

    def on_changed(self, partitions: Iterable[TopicPartition]) -> None:
        """ISR or leader of these partitions has changed: check whether a move is complete."""
        if any(self._is_complete(tp) for tp in partitions):
            self._is_due.set()

    def _is_complete(self, tp: TopicPartition) -> bool:
        partition = self._find(tp)
        return (
            partition is not None
            and partition.is_moving
            and set(partition.target) <= set(partition.isr)
        )

    async def _complete(self, tp: TopicPartition) -> None:
        async with self._names.hold(tp.topic):
            leaving: list[Placement] = []
            reply = await self._log(lambda _now_ms: self._decide_complete(tp, leaving))
            self._end_leaving(tp, leaving, reply)

    def _decide_complete(
        self, tp: TopicPartition, leaving: list[Placement]
    ) -> Decision[MetadataReply]:
        machine, partition = self._machine, self._find(tp)
        if partition is None:
            return decision(MetadataReply())
        records = complete(machine.topics[tp.topic], tp.partition, machine.broker_states)
        if records:
            _logger.info("%s has moved to brokers %s", tp, list(partition.target))
            self._mark_leaving(tp, partition.removing, leaving)
        return decision(MetadataReply(), *records)

    def _mark_leaving(
        self, tp: TopicPartition, brokers: tuple[int, ...], leaving: list[Placement]
    ) -> None:
        """Before this is committed: a host that looks then must not end them with their files."""
        leaving += [one for one in self._placed(tp) if one.broker_id in brokers]
        self.leaving.add(leaving)

    def _end_leaving(self, tp: TopicPartition, leaving: Sequence[Placement], reply: Reply) -> None:
        """What was about to go has gone, or stays because the decision is not committed."""
        if reply.error is not ErrorCode.NONE:
            self.leaving.discard(set(leaving) & set(self._placed(tp)))
        if leaving:
            self.leaving.remove_soon()

    # --- by itself ------------------------------------------------------------------------

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._is_due.clear()
            if len(self._machine.broker_states) > 1:
                await self.move_on()
            timer = loop.call_later(MOVES_CHECK_MS / 1000, self._is_due.set)
            await self._is_due.wait()
            timer.cancel()

    async def move_on(self) -> None:
        """Complete finished moves, and begin those for draining brokers and for growth."""
        machine = self._machine
        moving = [
            TopicPartition(topic.name, number)
            for topic in machine.topics.values()
            for number in range(len(topic.partitions))
        ]
        for tp in filter(self._is_complete, moving):
            await self._complete(tp)
        topics, brokers = machine.topics, machine.broker_states
        for move in (*drained(topics, brokers), *grown(topics, brokers)):
            tp = move.topic_partition
            request = ReassignPartitionRequest(topic_partition=tp, replicas=move.replicas)
            reply = await self.reassign(request, is_own=True)
            if reply.error is ErrorCode.NONE:
                _logger.info("%s moves to brokers %s", tp, list(move.replicas))
            else:
                _logger.warning(
                    "%s cannot move to brokers %s now: %s %s — bring back the brokers that "
                    "`oncelog status` shows as away; it is tried again",
                    *(tp, list(move.replicas), reply.error.name, reply.detail),
                )

    async def _watch_balance(self) -> None:
        while True:
            await asyncio.sleep(self._config.leader_imbalance_check_interval_ms / 1000)
            if len(self._machine.broker_states) > 1:
                await self.balance()

    async def balance(self) -> None:
        """Elect preferred leaders again."""
        machine = self._machine
        await self._log(
            lambda _now_ms: decision(
                MetadataReply(), *balance(machine.topics.values(), machine.broker_states)
            )
        )

    async def elect(self, request: ElectLeadersRequest) -> ElectLeadersReply:
        """Elect preferred leaders again, as an operator asks."""
        machine = self._machine
        return await self._execute(
            request,
            lambda _now_ms: decide_elect(machine.topics, machine.broker_states, request),
        )

    async def _log(self, decide: Callable[[int], Decision[MetadataReply]]) -> MetadataReply:
        """Log what the controller decides by itself; if it cannot now, it is decided again."""
        request: Request[MetadataReply] = MetadataRequest(topics=())
        return await self._execute(request, decide)

    # --- reading --------------------------------------------------------------------------

    def _find(self, tp: TopicPartition) -> PartitionState | None:
        topic = self._machine.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic.partitions[tp.partition]

    def _placed(self, tp: TopicPartition) -> list[Placement]:
        if tp.topic not in self._machine.topics:
            return []
        return [one for one in self._machine.placements(tp.topic) if one.topic_partition == tp]


class LeavingReplicas:
    """Replicas to be removed; changes happen under the lock of the topic's name.

    ``is_current``: whether this is still the controller; a newer one may have placed them again.
    """

    def __init__(
        self,
        *,
        machine: ClusterMachine,
        actors: ReplicaActors,
        calls: ReplicaCalls,
        names: NameLocks,
        is_current: Callable[[], Awaitable[bool]],
    ) -> None:
        self._machine = machine
        self._actors = actors
        self.is_current = is_current
        self._calls = calls
        self._names = names
        self._placements: dict[Placement, None] = {}
        self._deleted: dict[str, Sequence[Placement]] = {}
        """Topic name → replicas, for topics being deleted; bounded by the calls in progress."""
        self._is_due = asyncio.Event()

    def __len__(self) -> int:
        return len(self._placements)

    def add(self, placements: Iterable[Placement]) -> None:
        """List these until they are removed or placed again."""
        self._placements.update(dict.fromkeys(placements))
        while len(self._placements) > LEAVING_MAX:
            forgotten = next(iter(self._placements))
            _logger.warning(
                "the files of %s stay: too many others wait to be removed — remove its directory "
                "there, and bring back brokers that are away",
                forgotten,
            )
            del self._placements[forgotten]

    def discard(self, placements: Iterable[Placement]) -> None:
        """These need not be removed any more."""
        for placement in placements:
            self._placements.pop(placement, None)

    @contextlib.contextmanager
    def deleting(self, name: str, placements: Sequence[Placement]) -> Iterator[None]:
        """List all replicas of a topic while it is being deleted."""
        self._deleted[name] = placements
        try:
            yield
        finally:
            del self._deleted[name]

    def of_topic(self, name: str) -> list[Placement]:
        """The replicas of a topic of this name."""
        return [one for one in self._placements if one.topic_partition.topic == name]

    def host_of(self, tp: TopicPartition, broker_id: int) -> int | None:
        """The host of a leaving replica; one that is placed again must be held there too."""
        for placement in self._placements:
            if placement.topic_partition == tp and placement.broker_id == broker_id:
                return placement.host
        return None

    def hosted(self, broker_id: int, host: int) -> tuple[HostedReplica, ...]:
        """The leaving replicas that a host must hold."""
        return tuple(
            HostedReplica(
                topic_partition=placement.topic_partition,
                topic_id=placement.topic_id,
                is_in_sync=False,
                is_leaving=True,
            )
            for placement in (*itertools.chain(*self._deleted.values()), *self._placements)
            if (placement.broker_id, placement.host) == (broker_id, host)
        )

    def adopt(self, actors: Collection[str]) -> set[str]:
        """Of these actors, unknown to the metadata, those that hold a replica that has moved."""
        if not actors:
            return set()
        found = {
            actor_of(tp, broker_id): Placement(tp, topic.topic_id, broker_id, OWN_ACTOR)
            for topic in self._machine.topics.values()
            for tp in (TopicPartition(topic.name, n) for n in range(len(topic.partitions)))
            for broker_id in self._machine.broker_states
        }
        adopted = found.keys() & set(actors)
        self.add(found[name] for name in sorted(adopted))
        return adopted

    # --- removal --------------------------------------------------------------------------

    def remove_soon(self) -> None:
        """Wake the removal: something can be removed now."""
        self._is_due.set()

    async def watch(self) -> None:
        """Call ``remove`` periodically; run it in its own task."""
        loop = asyncio.get_running_loop()
        while True:
            await self.remove()
            timer = loop.call_later(REMOVAL_RETRY_MS / 1000, self._is_due.set)
            await self._is_due.wait()
            timer.cancel()
            self._is_due.clear()

    async def remove(self) -> None:
        """Remove the replicas that can be reached; the rest waits for their broker or process."""
        for name in sorted({one.topic_partition.topic for one in self._placements}):
            async with self._names.hold(name):
                await self._remove(name)

    async def _remove(self, name: str) -> None:
        declared = set(self._declared(name))
        brokers = self._machine.broker_states
        leaving = [
            one
            for one in self.of_topic(name)
            if one not in declared and is_live(one.broker_id, brokers)
        ]
        found = await self._actors.find(leaving)
        ended = await self._calls.shut_down(leaving, remove_data=True, is_moved=True)
        if ended and await self.is_current():
            self.discard(ended)
            alone = {holder_of(one) for one in ended if one.host == OWN_ACTOR}
            await self._actors.end(ended, [one for one in found if one.name in alone])

    def _declared(self, name: str) -> Sequence[Placement]:
        return self._machine.placements(name) if name in self._machine.topics else ()


class NameLocks:
    """A lock per name, kept while somebody holds it or waits for it.

    Bounded by the requests in progress, whatever names they use.
    """

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Wait until nobody else holds ``name``, and hold it."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._users[name] = self._users.get(name, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]

    def __len__(self) -> int:
        return len(self._locks)
