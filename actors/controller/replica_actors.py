"""The actors that hold replicas: which share one, how they are started, and what they are told.

``ReplicaActors`` starts and ends them, and has hosts look what they are to hold. ``ReplicaCalls``
tells replicas once: a failure is only logged. ``LeaderAnnouncements`` tells leaders what has been
recorded of their partitions until they have taken it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from oncelog.actors.controller.broker_membership import BrokerLauncher
from oncelog.actors.interfaces import Transport, address_of, holder_of, host_actor
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.cluster.hosts import (
    HOST_REPLICAS_MAX,
    OWN_ACTOR,
    HostRules,
    Placement,
    ReplicasPerActor,
)
from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.messages.cluster import (
    BecomeLeaderReply,
    HoldReplicasRequest,
    LeaderAndIsrRequest,
    ShutdownRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

_logger = logging.getLogger(__name__)

MEMORY_PER_ACTOR_BYTES: Final = 4 * 1_073_741_824
"""Of the machine's memory, for each replica that has an actor, of 70 MB, of its own."""

FILES_PER_REPLICA: Final = 8
"""What a replica has open, with room for the segment that is being read or rolled."""

HOLD_RETRY_MS: Final = 500
"""How soon a host that was not reached is told again."""

SHUTDOWN_TIMEOUT_MS: Final = 20_000

ANNOUNCE_RETRY_MS: Final = 250
"""How soon a leader that was not reached is told again."""

ANNOUNCEMENTS_MAX: Final = 100
"""Calls at once of one broker: a controller that starts has something to tell every leader."""

_TAKEN: Final = frozenset({ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH})


class FoundActor(NamedTuple):
    """An actor as it was found: another one may have its name later."""

    name: str
    handle: Any


class Launcher(BrokerLauncher, Protocol):
    """Starts and ends the actors of replicas, and sees nodes."""

    async def start(self, placements: Sequence[Placement]) -> None:
        """Ensure that an actor runs for each replica, its own or its host's. Idempotent."""
        ...

    async def find(self, actors: Collection[str]) -> Sequence[FoundActor]:
        """Those of these that exist."""
        ...

    async def end(self, actors: Sequence[FoundActor]) -> None:
        """Kill just these for good: whoever has a name of theirs by then lives on."""
        ...

    async def running(self) -> list[str]:
        """Names of all existing actors of the log."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSize:
    """What the processes of a broker have to share."""

    processor_count: int
    memory_bytes: int
    files_max: int

    def rules(self, replicas_per_actor: ReplicasPerActor) -> HostRules:
        """How replicas share actors here: alone while a processor is left for each, then shared."""
        spare = self.processor_count - 2
        return HostRules(
            replicas_per_actor=replicas_per_actor,
            own_max=max(0, min(spare, self.memory_bytes // MEMORY_PER_ACTOR_BYTES)),
            hosts_max=max(1, self.processor_count // 2),
            replicas_max=max(1, min(HOST_REPLICAS_MAX, self.files_max // FILES_PER_REPLICA)),
        )


SMALL_MACHINE: Final = MachineSize(processor_count=1, memory_bytes=0, files_max=1_024)
"""Where nothing is known of the machine."""


class ReplicaActors:
    """Starts the actors of replicas, and tells hosts to look what they are to hold."""

    def __init__(
        self,
        *,
        launcher: Launcher,
        transport: Transport,
        timeout_ms: int,
        placements: Callable[[], Collection[Placement]],
        tasks: OwnTasks,
    ) -> None:
        self._launcher = launcher
        self._transport = transport
        self._timeout_ms = timeout_ms
        self._placements = placements
        self._tasks = tasks
        self._unreached: set[str] = set()

    async def start(self, placements: Sequence[Placement]) -> None:
        """Have each of these held; a host that is not reached is told again until it is."""
        await self._launcher.start(placements)
        await self._notify_hosts(placements)

    async def find(self, placements: Sequence[Placement]) -> Sequence[FoundActor]:
        """The actors that hold one of these each, to be ended once they are declared no more.

        To be found before that is decided, or asked of a replica: it takes long, and afterwards the
        names may be those of a later topic's, which another controller has started.
        """
        return await self._launcher.find(
            [holder_of(one) for one in placements if one.host == OWN_ACTOR]
        )

    async def end(self, placements: Sequence[Placement], actors: Sequence[FoundActor]) -> None:
        """End ``actors``, and what hosts hold of ``placements``, which are declared no more."""
        await self._launcher.end(actors)
        await self._notify_hosts(placements)

    async def _notify_hosts(self, placements: Sequence[Placement]) -> None:
        # In the same order in any process, so that a simulated run can be repeated.
        hosts = sorted(
            {
                host_actor(placement.host, placement.broker_id)
                for placement in placements
                if placement.host != OWN_ACTOR
            }
        )
        reached = await asyncio.gather(*(self._notify(host) for host in hosts))
        for host, is_reached in zip(hosts, reached, strict=True):
            if not is_reached and host not in self._unreached:
                self._unreached.add(host)
                self._tasks.spawn(self._notify_until_reached(host))

    async def _notify(self, host: str) -> bool:
        request = HoldReplicasRequest()
        reply = await self._transport.call(host, request, timeout_ms=self._timeout_ms)
        return reply.error is ErrorCode.NONE

    async def _notify_until_reached(self, host: str) -> None:
        """The next start of the host would look anyway; this one lives and missed the message."""
        _logger.warning("%s was not reached and is told again what to hold", host)
        while host in {host_actor(one.host, one.broker_id) for one in self._placements()}:
            await asyncio.sleep(HOLD_RETRY_MS / 1000)
            if await self._notify(host):
                break
        self._unreached.discard(host)


class ReplicaCalls:
    """Calls of replicas, all of them at the same time."""

    def __init__(self, transport: Transport, *, timeout_ms: int) -> None:
        self._transport = transport
        self._timeout_ms = timeout_ms

    async def call_all(
        self, messages: Mapping[str, Request[Any]], *, timeout_ms: int | None = None
    ) -> dict[str, Reply]:
        """Send each actor its message, and return what they answer."""
        limit_ms = timeout_ms or self._timeout_ms
        replies = await asyncio.gather(
            *(
                self._transport.call(actor, message, timeout_ms=limit_ms)
                for actor, message in messages.items()
            )
        )
        for (actor, message), reply in zip(messages.items(), replies, strict=True):
            if reply.error is not ErrorCode.NONE:
                _logger.warning("%s missed %s: %s", actor, message.method, reply.error.name)
        return dict(zip(messages, replies, strict=True))

    async def shut_down(
        self, placements: Sequence[Placement], *, remove_data: bool, is_moved: bool = False
    ) -> list[Placement]:
        """Stop replicas, each only if it still belongs to its topic; those that have ended."""
        replies = await self.call_all(
            {
                address_of(placement): ShutdownRequest(
                    remove_data=remove_data, topic_id=placement.topic_id, is_moved=is_moved
                )
                for placement in placements
            },
            timeout_ms=SHUTDOWN_TIMEOUT_MS,
        )
        ended = {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID}
        return [one for one in placements if replies[address_of(one)].error in ended]


class LeaderAnnouncements:
    """One task for each leader that has to be told something of a partition; it tells the newest.

    One that cannot be reached, and is replaced, holds up neither the next nor other brokers.
    ``on_taken``: a leader has taken what it was told, and that was still so.
    """

    def __init__(
        self,
        *,
        machine: ClusterMachine,
        transport: Transport,
        tasks: OwnTasks,
        timeout_ms: int,
        on_taken: Callable[[TopicPartition, BecomeLeaderReply], Awaitable[object]],
    ) -> None:
        self._machine = machine
        self._transport = transport
        self._tasks = tasks
        self._timeout_ms = timeout_ms
        self._on_taken = on_taken
        self._pending: set[tuple[TopicPartition, int]] = set()
        self._calling: dict[int, asyncio.Semaphore] = {}
        """By broker: as many as there are."""

    def announce(self, partitions: Iterable[TopicPartition]) -> None:
        """Tell the leaders of these partitions, each in a task of its own."""
        for tp in partitions:
            leadership = self._machine.leadership(tp)
            if leadership is None or leadership.leader < 0:
                continue
            told = (tp, leadership.leader)
            if told not in self._pending:
                self._pending.add(told)
                self._tasks.spawn(self._announce(*told))

    async def _announce(self, tp: TopicPartition, leader: int) -> None:
        calling = self._calling.setdefault(leader, asyncio.Semaphore(ANNOUNCEMENTS_MAX))
        while True:
            async with calling:
                # Not before the wait: the topic may have been deleted, and made again, meanwhile.
                leadership = self._machine.leadership(tp)
                if leadership is None or leadership.leader != leader:
                    break
                reply = await self._transport.call(
                    leader_of(tp, leadership),
                    LeaderAndIsrRequest(topic_partition=tp, leadership=leadership),
                    timeout_ms=self._timeout_ms,
                )
            if reply.error in _TAKEN and self._machine.leadership(tp) == leadership:
                if reply.error is ErrorCode.NONE:
                    await self._on_taken(tp, leadership)
                if self._machine.leadership(tp) == leadership:
                    break
            if reply.error not in _TAKEN:
                await asyncio.sleep(ANNOUNCE_RETRY_MS / 1000)
        self._pending.discard((tp, leader))


def leader_of(tp: TopicPartition, leadership: BecomeLeaderReply) -> str:
    """Whom to call for the leader."""
    hosts = dict(zip(leadership.replicas, leadership.hosts, strict=True))
    leader = leadership.leader
    return address_of(Placement(tp, leadership.topic_id, leader, hosts[leader]))
