"""Cluster membership: brokers register and send heartbeats, and are fenced if they stop.

``BrokerMembership`` decides; ``BrokerWatch`` watches nodes, and starts the actors that register new
brokers.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from msgspec import structs

from oncelog.actors.config import ClusterConfig
from oncelog.actors.coordination.actor_watch import PING_TIMEOUT_MS, ActorWatch, WatchReport
from oncelog.actors.interfaces import Transport, holder_of
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.cluster.brokers import (
    BrokerSessions,
    decide_heartbeat,
    decide_register,
    fence,
    own_node,
)
from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.cluster.cluster_records import decision
from oncelog.actors.protocol.cluster.cluster_state import BrokerState
from oncelog.actors.protocol.cluster.elections import Records, after_refusal, after_silence
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.cluster.quorum import VOTERS_MAX
from oncelog.actors.protocol.effects import Decision, refused
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.messages.brokers import (
    BrokerHeartbeatReply,
    BrokerHeartbeatRequest,
    OfflineReplica,
    PingRequest,
    RegisterBrokerReply,
    RegisterBrokerRequest,
)
from oncelog.actors.protocol.messages.cluster import (
    BecomeLeaderRequest,
    BrokerMetadata,
    MetadataReply,
    MetadataRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

_logger = logging.getLogger(__name__)

NODES_CHECK_MS: Final = 500
LONE_NODES_CHECK_MS: Final = 2_000
"""Interval of looking for nodes while the controller's broker is the only one."""

SESSION_CHECK_MS: Final = 500
"""Interval of looking for silent brokers."""

_KEEPS_DETAIL: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.DUPLICATE_BROKER_REGISTRATION}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNode:
    """A live node with a broker label."""

    broker_id: int
    rack: str = ""


class BrokerLauncher(Protocol):
    """Lists nodes, and starts the actors that register brokers."""

    async def nodes(self) -> Sequence[BrokerNode]:
        """The live nodes with a broker label, and the controller's own."""
        ...

    async def start_brokers(self, nodes: Sequence[BrokerNode]) -> None:
        """Ensure that each of these brokers has its own actor. Idempotent."""
        ...


class Execute(Protocol):
    """Decides a request and logs the decision, unless the controller cannot serve."""

    async def __call__(
        self, request: Request[ReplyT], decide: Callable[[int], Decision[ReplyT]]
    ) -> ReplyT:
        """Decide and log."""
        ...


class BrokerMembership:
    """What the controller knows of its brokers.

    ``own`` is the broker on whose node the controller runs, and ``data_dir`` its directory.
    ``without_vote`` gives the records that remove the vote of a broker that lost its disk; None if
    that is not possible. ``is_current``: whether this is still the controller.
    """

    def __init__(
        self,
        *,
        machine: ClusterMachine,
        launcher: BrokerLauncher,
        transport: Transport,
        own: int,
        data_dir: str,
        config: ClusterConfig,
        execute: Execute,
        without_vote: Callable[[int], Records | None],
        is_current: Callable[[], Awaitable[bool]],
    ) -> None:
        self._machine = machine
        self._transport = transport
        self._own = own
        self._data_dir = data_dir
        self._config = config
        self._execute = execute
        self._without_vote = without_vote
        self._is_current = is_current
        self.brokers = BrokerWatch(
            launcher=launcher,
            own=own,
            brokers=lambda: machine.broker_states,
            fence=self._fence,
            record_own_node=self._record_own_node,
            is_a_voter=lambda: len(machine.voters) == VOTERS_MAX,
            session_ms=config.broker_session_timeout_ms,
        )
        self._own_actors = ActorWatch(
            transport,
            silent_after_ms=config.broker_session_timeout_ms,
            hold_ms=config.broker_heartbeat_interval_ms,
        )
        self._started_ms: dict[tuple[TopicPartition, int], int] = {}
        """(Partition, broker) → when the replica last asked for its role."""

    def watches(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The loops to run while the controller serves, each in its own task."""
        brokers = self.brokers
        return (
            brokers.watch(),
            brokers.watch_sessions(),
            self._watch_own_actors(),
            self._watch_silent(),
        )

    async def register(self, request: RegisterBrokerRequest) -> RegisterBrokerReply:
        """Register a broker, or remember why it cannot be registered."""
        if request.problem:
            self.brokers.record_problem(request.broker_id, request.problem)
            return RegisterBrokerReply()
        reply = await self._execute(request, lambda _now_ms: self._decide_register(request))
        if reply.error in _KEEPS_DETAIL:
            self.brokers.record_problem(request.broker_id, reply.detail)
        if reply.error is ErrorCode.NONE:
            self.brokers.record_contact(request.broker_id)
        return reply

    def record_start(self, request: BecomeLeaderRequest) -> None:
        """A replica has started; reports of a silent actor may be about its previous process."""
        if len(self._machine.broker_states) > 1:
            self._started_ms[request.topic_partition, request.broker_id] = loop_ms()

    def _decide_register(self, request: RegisterBrokerRequest) -> Decision[RegisterBrokerReply]:
        """See ``brokers``; a broker with another disk first loses its vote."""
        machine = self._machine
        known = machine.broker_states.get(request.broker_id)
        decided = decide_register(
            machine.topics, machine.broker_states, request, machine.cluster_id
        )
        if known is None or request.disk.may_be(known.disk):
            return decided
        records = self._without_vote(request.broker_id)
        if records is None and decided.records:
            detail = f"broker {request.broker_id} had a vote on a disk that it has lost"
            return refused(request, ErrorCode.DUPLICATE_BROKER_REGISTRATION, detail)
        more = decision(decided.reply, *(records or ())).records if decided.records else ()
        return structs.replace(decided, records=(*decided.records, *more))

    async def heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatReply:
        """A broker is alive; others lead in place of its silent actors and offline replicas.

        Its session counts from the last answer that it received: a broker that cannot hear the
        controller must not lead.
        """
        config = self._config
        is_reached = request.unanswered_ms <= config.broker_session_timeout_ms
        machine, placements = self._machine, self._placed_on(request.broker_id)
        seen = WatchReport(
            request.silent_actors, request.offline_replicas, request.refusing_replicas
        )
        silent, refusing = self._sorted(placements, seen)
        machine.record_refusing(request.broker_id, is_refusing=bool(refusing))
        reply = await self._execute(
            request,
            lambda _now_ms: decide_heartbeat(
                machine.topics,
                machine.broker_states,
                request,
                silent,
                refusing,
                is_reached=is_reached and request.broker_id not in self.brokers.gone,
            ),
        )
        if reply.error is not ErrorCode.NONE:
            return reply
        late_ms = max(0, request.unanswered_ms - config.broker_heartbeat_interval_ms)
        self.brokers.record_contact(request.broker_id, late_ms)
        return structs.replace(reply, actors=tuple(dict.fromkeys(map(holder_of, placements))))

    async def _watch_own_actors(self) -> None:
        """Watch this node's actors, as other brokers' actors do; only if there are others."""
        machine, interval_ms = self._machine, self._config.broker_heartbeat_interval_ms
        checked_ms, seen = loop_ms(), WatchReport()
        while True:
            if not seen.has_new_death:
                await asyncio.sleep(max(0, checked_ms + interval_ms - loop_ms()) / 1000)
            if len(machine.broker_states) <= 1:
                await asyncio.sleep(interval_ms / 1000)
                continue
            await self._unfence_own()
            checked_ms, placements = loop_ms(), self._placed_on(self._own)
            seen = await self._own_actors.check(map(holder_of, placements))
            placements = self._placed_on(self._own)
            held, refusing = self._sorted(placements, seen)
            machine.record_refusing(self._own, is_refusing=bool(refusing))
            if held or refusing:
                await self._log(functools.partial(self._after_check, held, refusing))

    async def _watch_silent(self) -> None:
        """Ping the actors of brokers that miss heartbeats: if all answer, the broker is alive.

        The broker's own actor, which sends heartbeats, may be down for longer than a session; only
        its vote is missed. Or all heartbeats go to a newer controller: then ``is_current`` ends
        this one.
        """
        while True:
            await asyncio.sleep(SESSION_CHECK_MS / 1000)
            # Not one that came with another disk: it may take part only once it has been fenced.
            silent = [one for one in self.brokers.silent() if one not in self.brokers.problems]
            if silent and await self._is_current():
                await asyncio.gather(*map(self._ask_actors_of, silent))

    async def _ask_actors_of(self, broker_id: int) -> None:
        actors = dict.fromkeys(map(holder_of, self._placed_on(broker_id)))
        replies = await asyncio.gather(
            *(
                self._transport.call(actor, PingRequest(), timeout_ms=PING_TIMEOUT_MS)
                for actor in actors
            )
        )
        is_well = all(
            reply.error is ErrorCode.NONE and not reply.offline_replicas for reply in replies
        )
        if replies and is_well:
            self.brokers.record_contact(broker_id)

    def _sorted(
        self, placements: Sequence[Placement], seen: WatchReport
    ) -> tuple[list[Placement], list[Placement]]:
        """Split off the replicas that are silent or offline, and those whose disk refuses appends.

        Leaves out replicas that have started since: the observation may be of the previous process.
        """
        oldest_ms = loop_ms() - self._config.broker_session_timeout_ms
        self._started_ms = {key: ms for key, ms in self._started_ms.items() if ms >= oldest_ms}
        started = {
            one for one in placements if (one.topic_partition, one.broker_id) in self._started_ms
        }
        silent = set(seen.silent_actors) - {holder_of(one) for one in started}
        is_offline, is_refusing = _named(seen.offline_replicas), _named(seen.refusing_replicas)
        lost = [
            one
            for one in placements
            if holder_of(one) in silent or (one not in started and is_offline(one))
        ]
        found = {*lost, *started}
        return lost, [one for one in placements if one not in found and is_refusing(one)]

    async def _unfence_own(self) -> None:
        """Unfence this broker: an earlier controller may have fenced it."""
        own = self._machine.broker_states.get(self._own)
        if own is not None and own.is_fenced:
            request = BrokerHeartbeatRequest(broker_id=self._own, broker_epoch=own.broker_epoch)
            await self.heartbeat(request)

    def _after_check(self, held: Sequence[Placement], refusing: Sequence[Placement]) -> Records:
        topics, brokers = self._machine.topics.values(), self._machine.broker_states
        resigned = after_refusal(topics, refusing, brokers)
        return (*after_silence(topics, held, brokers), *resigned)

    async def _record_own_node(self, rack: str) -> None:
        if self._own_node(rack):
            await self._log(functools.partial(self._own_node, rack))

    def _own_node(self, rack: str) -> Records:
        brokers = self._machine.broker_states
        return own_node(brokers, self._own, data_dir=self._data_dir, rack=rack)

    async def _fence(self, broker_id: int) -> None:
        await self._log(functools.partial(self._fencing, broker_id))

    def _fencing(self, broker_id: int) -> Records:
        brokers = self._machine.broker_states
        broker = brokers.get(broker_id)
        if broker is None or broker.is_fenced:
            return ()
        return fence(self._machine.topics, brokers, broker_id)

    async def _log(self, records: Callable[[], Records]) -> None:
        """Log a decision of the controller itself; if that fails, the next pass decides again."""
        await self._execute(
            MetadataRequest(topics=()), lambda _now_ms: decision(MetadataReply(), *records())
        )

    def _placed_on(self, broker_id: int) -> list[Placement]:
        return [one for one in self._machine.placements() if one.broker_id == broker_id]


class BrokerWatch:
    """Watches which brokers are alive, and has the others fenced.

    ``own`` is the controller's broker, which is always alive; ``record_own_node`` gets its rack
    whenever its node is seen. Once it ``is_a_voter`` among others it has an actor too, which votes
    and takes over when the controller is gone. ``fence`` is called for an unfenced broker whose
    node has died, or that was silent for a session.
    """

    def __init__(
        self,
        *,
        launcher: BrokerLauncher,
        own: int,
        brokers: Callable[[], Mapping[int, BrokerState]],
        fence: Callable[[int], Awaitable[None]],
        record_own_node: Callable[[str], Awaitable[None]],
        is_a_voter: Callable[[], bool],
        session_ms: int,
    ) -> None:
        self.live = {own}
        self.gone: set[int] = set()
        """Brokers whose nodes were seen earlier and are gone."""
        self.problems: dict[int, str] = {}
        """Broker number → why it cannot register."""
        self._launcher = launcher
        self._own = own
        self._brokers = brokers
        self._fence = fence
        self._record_own_node = record_own_node
        self._is_a_voter = is_a_voter
        self._session_ms = session_ms
        self._sessions = BrokerSessions({}, session_ms=session_ms, now_ms=0)
        self._doubles: dict[int, int] = {}
        self._has_checked = False

    async def watch(self) -> None:
        """Call ``check_nodes`` periodically; run it in its own task."""
        while True:
            try:
                await self.check_nodes()
            except Exception as error:
                # Ray does not answer: the last view stays valid until it does.
                _logger.warning(
                    "could not check the nodes of Ray: %r — see that Ray's head is up; it is tried "
                    "again, and the last view stays valid",
                    error,
                )
            is_alone = len(self._brokers()) <= 1
            await asyncio.sleep((LONE_NODES_CHECK_MS if is_alone else NODES_CHECK_MS) / 1000)

    async def watch_sessions(self) -> None:
        """Fence silent brokers; run it in its own task, since ``check_nodes`` may hang."""
        self._sessions = self._new_sessions()
        before_ms = loop_ms()
        while True:
            await asyncio.sleep(SESSION_CHECK_MS / 1000)
            now_ms = loop_ms()
            if now_ms - before_ms > SESSION_CHECK_MS + self._session_ms // 2:
                # This process was stalled: heartbeats sent meanwhile are still unread.
                self._sessions = self._new_sessions()
            before_ms = now_ms
            self._sessions.record_contact(self._own, now_ms)
            for broker_id in self._sessions.expired(self._brokers(), now_ms):
                _logger.warning(
                    "broker %d is fenced: no heartbeat within its session — see its node and its "
                    "log (`oncelog logs broker:%d`); others lead meanwhile",
                    *(broker_id, broker_id),
                )
                await self._fence(broker_id)

    def _new_sessions(self) -> BrokerSessions:
        return BrokerSessions(self._brokers(), session_ms=self._session_ms, now_ms=loop_ms())

    def silent(self) -> tuple[int, ...]:
        """The brokers that miss heartbeats, and are not fenced."""
        return self._sessions.silent(self._brokers(), loop_ms())

    def record_contact(self, broker_id: int, ago_ms: int = 0) -> None:
        """A broker has registered or sent a heartbeat of its epoch, or its actors serve.

        ``ago_ms``: how long ago that was.
        """
        self._sessions.record_contact(broker_id, loop_ms() - ago_ms)

    async def check_nodes(self) -> None:
        """See who is alive now, have new ones join, and those fenced whose node has died."""
        nodes = await self._launcher.nodes()
        counts = Counter(node.broker_id for node in nodes)
        doubles = {broker_id: count for broker_id, count in counts.items() if count > 1}
        for broker_id in doubles.keys() - self._doubles.keys():
            _logger.error(
                "%s — end all of these nodes but one", _double(broker_id, counts[broker_id])
            )
        self._doubles = doubles
        single = [node for node in nodes if counts[node.broker_id] == 1]
        if not self._has_checked:
            # After a controller whose node has died: others lead its partitions at once.
            self._has_checked = True
            self.live |= {one for one, broker in self._brokers().items() if not broker.is_fenced}
        gone = self.live - counts.keys() - {self._own}
        self.live = {self._own} | {node.broker_id for node in single}
        self.problems = {one: what for one, what in self.problems.items() if one in self.live}
        for node in single:
            if node.broker_id == self._own:
                await self._record_own_node(node.rack)
        is_own_wanted = self._is_a_voter()
        joining = [node for node in single if node.broker_id != self._own or is_own_wanted]
        if joining:
            await self._launcher.start_brokers(joining)
        self.gone = (self.gone | gone) - counts.keys()
        for broker_id in sorted(gone):
            _logger.warning(
                "broker %d is fenced: its node is gone — start the node again, or `oncelog brokers "
                "drain %d` if it is gone for good",
                *(broker_id, broker_id),
            )
            await self._fence(broker_id)

    def record_problem(self, broker_id: int, problem: str) -> None:
        """A broker has told why it does not take part, or "" that it does."""
        if problem and broker_id in self.live:
            self.problems[broker_id] = problem
        else:
            self.problems.pop(broker_id, None)

    def described(self) -> tuple[BrokerMetadata, ...]:
        """All brokers that are registered, or alive and unable to register."""
        known = {
            broker_id: BrokerMetadata(
                broker_id=broker_id,
                data_dir=broker.data_dir,
                rack=broker.rack,
                is_live=broker_id in self.live and not broker.is_fenced,
                is_draining=broker.is_draining,
                is_fenced=broker.is_fenced,
                is_refusing=broker.is_refusing,
            )
            for broker_id, broker in self._brokers().items()
        }
        problems = self.problems | {
            one: _double(one, count) for one, count in self._doubles.items()
        }
        for broker_id in problems.keys() - known.keys():
            known[broker_id] = BrokerMetadata(
                broker_id=broker_id, data_dir="", is_live=broker_id in self.live
            )
        return tuple(
            structs.replace(broker, problem=problems.get(broker_id, ""))
            for broker_id, broker in sorted(known.items())
        )


def _double(broker_id: int, count: int) -> str:
    return f"{count} living nodes are labelled broker={broker_id}: each broker has its own number"


def _named(replicas: Iterable[OfflineReplica]) -> Callable[[Placement], bool]:
    """A test whether a replica is in ``replicas``, which may lack topic ids."""
    named = {(one.topic_partition, one.topic_id) for one in replicas}
    return lambda one: (
        not named.isdisjoint({(one.topic_partition, one.topic_id), (one.topic_partition, "")})
    )
