"""Which brokers take part: they register and send heartbeats, and are fenced when they do not.

``BrokerMembership`` decides; ``BrokerWatch`` sees whose nodes are alive, and has the actors started
by which new brokers join.
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
"""How often the controller looks for nodes that came or went; alone, it only waits for others."""

SESSION_CHECK_MS: Final = 500
"""How often it looks for brokers that are not heard."""

_KEEPS_DETAIL: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.DUPLICATE_BROKER_REGISTRATION}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNode:
    """A living node that is labelled as a broker's."""

    broker_id: int
    rack: str = ""


class BrokerLauncher(Protocol):
    """Sees nodes, and starts the actors by which brokers join."""

    async def nodes(self) -> Sequence[BrokerNode]:
        """The living nodes that are labelled with a broker's number, and the controller's own."""
        ...

    async def start_brokers(self, nodes: Sequence[BrokerNode]) -> None:
        """Ensure that each of these brokers has its actor. Idempotent."""
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

    ``own`` is the one on whose node it runs, and ``data_dir`` the directory there.
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
    ) -> None:
        self._machine = machine
        self._transport = transport
        self._own = own
        self._data_dir = data_dir
        self._config = config
        self._execute = execute
        self.brokers = BrokerWatch(
            launcher=launcher,
            own=own,
            brokers=lambda: machine.broker_states,
            fence=self._fence,
            record_own_node=self._record_own_node,
            is_a_voter=lambda: len(machine.voters) == VOTERS_MAX,
            session_ms=config.broker_session_timeout_ms,
        )
        self.without_vote: Callable[[int], Records | None] = lambda _broker_id: ()
        """What takes the vote of a broker that has lost its disk, if that can be now."""
        self.is_current: Callable[[], Awaitable[bool]] = always
        """Whether nobody else has become the controller."""
        self._own_actors = ActorWatch(
            transport,
            silent_after_ms=config.broker_session_timeout_ms,
            hold_ms=config.broker_heartbeat_interval_ms,
        )
        self._started_ms: dict[tuple[TopicPartition, int], int] = {}
        """When a replica, by its partition and broker, last asked for its role."""

    def watches(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What is to run as long as the controller serves, each in a task of its own."""
        brokers = self.brokers
        return (
            brokers.watch(),
            brokers.watch_sessions(),
            self._watch_own_actors(),
            self._watch_silent(),
        )

    async def register(self, request: RegisterBrokerRequest) -> RegisterBrokerReply:
        """Let a broker take part, or remember why it may not."""
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
        """A replica has started: whoever found its actor silent may mean the process before."""
        if len(self._machine.broker_states) > 1:
            self._started_ms[request.topic_partition, request.broker_id] = loop_ms()

    def _decide_register(self, request: RegisterBrokerRequest) -> Decision[RegisterBrokerReply]:
        """See ``brokers``; whoever comes with another disk has no vote, or not yet."""
        machine = self._machine
        known = machine.broker_states.get(request.broker_id)
        decided = decide_register(
            machine.topics, machine.broker_states, request, machine.cluster_id
        )
        if known is None or request.disk.may_be(known.disk):
            return decided
        records = self.without_vote(request.broker_id)
        if records is None and decided.records:
            detail = f"broker {request.broker_id} had a vote on a disk that it has lost"
            return refused(request, ErrorCode.DUPLICATE_BROKER_REGISTRATION, detail)
        more = decision(decided.reply, *(records or ())).records if decided.records else ()
        return structs.replace(decided, records=(*decided.records, *more))

    async def heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatReply:
        """A broker lives: others lead what its silent actors and offline replicas led.

        Its session counts from the last answer that it has heard: one that is heard and hears
        nobody can lead nothing.
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
        """What other brokers' actors do for theirs; alone, there is nobody else who could lead."""
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
        """Ask the actors of brokers that miss heartbeats: a broker lives while they all answer.

        Its own actor, which sends them, may be away for longer than a session: nobody needs it
        meanwhile, but for its vote. Or all heartbeats go to another controller: then the question
        whether there is one ends this one.
        """
        while True:
            await asyncio.sleep(SESSION_CHECK_MS / 1000)
            # Not one that came with another disk: it may take part only once it has been fenced.
            silent = [one for one in self.brokers.silent() if one not in self.brokers.problems]
            if silent and await self.is_current():
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
        """Those that a silent actor holds or that are offline, and others whose disk refuses.

        Not those that were heard here meanwhile: what was seen may be of the process before.
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
        """An earlier controller may have fenced this broker, whose own actor need not run."""
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
        """Log what the controller decides by itself; if it cannot now, it is decided again."""
        await self._execute(
            MetadataRequest(topics=()), lambda _now_ms: decision(MetadataReply(), *records())
        )

    def _placed_on(self, broker_id: int) -> list[Placement]:
        return [one for one in self._machine.placements() if one.broker_id == broker_id]


class BrokerWatch:
    """Knows which brokers live, and has those fenced that do not.

    ``own`` is the controller's broker, which is alive as it is, and ``record_own_node`` is given
    its rack whenever its node is seen; it has an actor as well once it ``is_a_voter`` among others,
    to vote when the controller is gone, and to follow it; ``fence`` is called for a broker that is
    not fenced and whose node has died, or that was not heard for a session's time.
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
        """Brokers whose nodes were seen, and are no longer."""
        self.problems: dict[int, str] = {}
        """Why a broker does not take part, by its number."""
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
        """Look again and again; a task of its own."""
        while True:
            try:
                await self.check_nodes()
            except Exception as error:
                # Ray cannot say: what was seen last holds until it can.
                _logger.warning("the nodes cannot be seen now: %r", error)
            is_alone = len(self._brokers()) <= 1
            await asyncio.sleep((LONE_NODES_CHECK_MS if is_alone else NODES_CHECK_MS) / 1000)

    async def watch_sessions(self) -> None:
        """Fence brokers that are not heard; a task of its own, since looking may hang."""
        self._sessions = self._new_sessions()
        before_ms = loop_ms()
        while True:
            await asyncio.sleep(SESSION_CHECK_MS / 1000)
            now_ms = loop_ms()
            if now_ms - before_ms > SESSION_CHECK_MS + self._session_ms // 2:
                # This process stood still: what it was sent meanwhile is still to be read.
                self._sessions = self._new_sessions()
            before_ms = now_ms
            self._sessions.record_contact(self._own, now_ms)
            for broker_id in self._sessions.expired(self._brokers(), now_ms):
                _logger.warning("broker %d is fenced: it has not been heard", broker_id)
                await self._fence(broker_id)

    def _new_sessions(self) -> BrokerSessions:
        return BrokerSessions(self._brokers(), session_ms=self._session_ms, now_ms=loop_ms())

    def silent(self) -> tuple[int, ...]:
        """The brokers that miss heartbeats, and are not fenced."""
        return self._sessions.silent(self._brokers(), loop_ms())

    def record_contact(self, broker_id: int, ago_ms: int = 0) -> None:
        """A broker has registered or sent a heartbeat of its epoch, or its actors serve.

        ``ago_ms``: how long before now that counts from.
        """
        self._sessions.record_contact(broker_id, loop_ms() - ago_ms)

    async def check_nodes(self) -> None:
        """See who is alive now, have new ones join, and those fenced whose node has died."""
        nodes = await self._launcher.nodes()
        counts = Counter(node.broker_id for node in nodes)
        doubles = {broker_id: count for broker_id, count in counts.items() if count > 1}
        for broker_id in doubles.keys() - self._doubles.keys():
            _logger.error("%s", _double(broker_id, counts[broker_id]))
        self._doubles = doubles
        single = [node for node in nodes if counts[node.broker_id] == 1]
        if not self._has_checked:
            # A controller that follows one whose node has died: others lead what was there at once.
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
            _logger.warning("broker %d is fenced: its node is gone", broker_id)
            await self._fence(broker_id)

    def record_problem(self, broker_id: int, problem: str) -> None:
        """A broker has told why it does not take part, or "" that it does."""
        if problem and broker_id in self.live:
            self.problems[broker_id] = problem
        else:
            self.problems.pop(broker_id, None)

    def described(self) -> tuple[BrokerMetadata, ...]:
        """Every broker that is registered, or alive and not able to take part."""
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
    """Whether a replica is among these, where it may be without the id of its topic."""
    named = {(one.topic_partition, one.topic_id) for one in replicas}
    return lambda one: (
        not named.isdisjoint({(one.topic_partition, one.topic_id), (one.topic_partition, "")})
    )


async def always() -> bool:
    """The answer of a controller that is the only one, as in a test."""
    return True
