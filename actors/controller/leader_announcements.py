"""Telling leaders what has been recorded of their partitions, until they have taken it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from oncelog.actors.interfaces import Transport, address_of
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.cluster.machine import ClusterMachine
from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply, LeaderAndIsrRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

ANNOUNCE_RETRY_MS: Final = 250
"""How soon a leader that was not reached is told again."""

ANNOUNCEMENTS_MAX: Final = 100
"""Calls at once of one broker: a controller that starts has something to tell every leader."""

_TAKEN: Final = frozenset({ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH})


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
                self._tasks.spawn(self._tell(*told))

    async def _tell(self, tp: TopicPartition, leader: int) -> None:
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
