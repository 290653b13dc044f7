"""The actors that hold replicas: how they are shared, started and called.

``ReplicaActors`` starts and ends them, and tells hosts to ask for their list. ``ReplicaCalls``
calls replicas once: a failure is only logged. ``LeaderAnnouncements`` tells leaders the state of
their partitions until they confirm it.
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
"""Machine memory per replica with its own actor, which takes 70 MB itself."""

FILES_PER_REPLICA: Final = 8
"""Open files per replica, including the segment being read or rolled."""

HOLD_RETRY_MS: Final = 500
"""Delay before a host that was not reached is told again."""

SHUTDOWN_TIMEOUT_MS: Final = 20_000

ANNOUNCE_RETRY_MS: Final = 250
"""Delay before a leader that was not reached is told again."""

ANNOUNCEMENTS_MAX: Final = 100
"""Concurrent calls to one broker: a controller that starts announces to every leader."""

_TAKEN: Final = frozenset({ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH})


class FoundActor(NamedTuple):
    """A handle to an actor; another actor may have its name later."""

    name: str
    handle: Any


class Launcher(BrokerLauncher, Protocol):
    """Starts and ends the actors of replicas, and lists nodes."""

    async def start(self, placements: Sequence[Placement]) -> None:
        """Ensure that an actor runs for each replica: its own or its host. Idempotent."""
        ...

    async def find(self, actors: Collection[str]) -> Sequence[FoundActor]:
        """The actors of these names that exist."""
        ...

    async def end(self, actors: Sequence[FoundActor]) -> None:
        """Kill exactly these actors for good, not successors of the same name."""
        ...

    async def running(self) -> list[str]:
        """Names of all existing actors of the log."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSize:
    """The resources that the processes of a broker share."""

    processor_count: int
    memory_bytes: int
    files_max: int

    def rules(self, replicas_per_actor: ReplicasPerActor) -> HostRules:
        """How replicas share actors here: one each while processors last, then shared."""
        spare = self.processor_count - 2
        return HostRules(
            replicas_per_actor=replicas_per_actor,
            own_max=max(0, min(spare, self.memory_bytes // MEMORY_PER_ACTOR_BYTES)),
            hosts_max=max(1, self.processor_count // 2),
            replicas_max=max(1, min(HOST_REPLICAS_MAX, self.files_max // FILES_PER_REPLICA)),
        )


SMALL_MACHINE: Final = MachineSize(processor_count=1, memory_bytes=0, files_max=1_024)
"""Used if nothing is known of the machine."""


class ReplicaActors:
    """Starts the actors of replicas, and tells hosts to ask which replicas to hold."""

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
        """Have an actor hold each of these; a host is told until it is reached."""
        await self._launcher.start(placements)
        await self._notify_hosts(placements)

    async def find(self, placements: Sequence[Placement]) -> Sequence[FoundActor]:
        """The actors of these replicas, to be ended once the metadata no longer has them.

        Find them before that is decided: a decision takes long, and afterwards the names may be
        those of a later topic's actors, started by another controller.
        """
        return await self._launcher.find(
            [holder_of(one) for one in placements if one.host == OWN_ACTOR]
        )

    async def end(self, placements: Sequence[Placement], actors: Sequence[FoundActor]) -> None:
        """End ``actors``, and the replicas in hosts; the metadata no longer has ``placements``."""
        await self._launcher.end(actors)
        await self._notify_hosts(placements)

    async def _notify_hosts(self, placements: Sequence[Placement]) -> None:
        # Sorted, so that a simulated run can be repeated.
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
        """Tell a live host that missed the call; one that starts again asks anyway."""
        _logger.info("%s was not reached and is told again to ask for its replicas", host)
        while host in {host_actor(one.host, one.broker_id) for one in self._placements()}:
            await asyncio.sleep(HOLD_RETRY_MS / 1000)
            if await self._notify(host):
                break
        self._unreached.discard(host)


class ReplicaCalls:
    """Concurrent calls to replicas."""

    def __init__(self, transport: Transport, *, timeout_ms: int) -> None:
        self._transport = transport
        self._timeout_ms = timeout_ms

    async def call_all(
        self, messages: Mapping[str, Request[Any]], *, timeout_ms: int | None = None
    ) -> dict[str, Reply]:
        """Send each actor its message, and return the answers."""
        limit_ms = timeout_ms or self._timeout_ms
        replies = await asyncio.gather(
            *(
                self._transport.call(actor, message, timeout_ms=limit_ms)
                for actor, message in messages.items()
            )
        )
        for (actor, message), reply in zip(messages.items(), replies, strict=True):
            if reply.error is not ErrorCode.NONE:
                _logger.info("%s missed %s: %s", actor, message.method, reply.error.name)
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
    """One task for each leader to be told about a partition; it tells the newest state.

    A leader that cannot be reached delays neither its successor nor other brokers. ``on_taken``: a
    leader has confirmed what it was told, and that is still current.
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
        """Broker → limit of concurrent calls; bounded by the number of brokers."""

    def announce(self, partitions: Iterable[TopicPartition]) -> None:
        """Tell the leaders of these partitions, each in its own task."""
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
                # Read after the wait: the topic may have been deleted and created again meanwhile.
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
    """The address of the leader."""
    hosts = dict(zip(leadership.replicas, leadership.hosts, strict=True))
    leader = leadership.leader
    return address_of(Placement(tp, leadership.topic_id, leader, hosts[leader]))
