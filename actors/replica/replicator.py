"""Makes a leader's calls to followers and controller, by ``protocol/partition/replication``.

Appends of one turn of the event loop are pushed together at its end, beside the leader's own sync.
A failed call is reported to the machine with an error code, so that the machine never waits for
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from oncelog.actors.process.background import OwnTasks, resolve_future
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.protocol.partition.followers import IsrProposal, Push
from oncelog.actors.protocol.partition.replication import (
    LeaderReplication,
    PartitionAssignment,
    ReplicationSettings,
)
from oncelog.actors.replica.events import ReplicaEvents
from oncelog.actors.replica.observations import ReplicaCounters
from oncelog.storage.errors import ErrorCode

SETTLING: Final = ErrorCode.NOT_LEADER_OR_FOLLOWER
"""The answer for a push whose batches cannot be read, so that it is retried."""


class LeaderLog(Protocol):
    """The log that is replicated."""

    @property
    def counters(self) -> ReplicaCounters:
        """Counts what is pushed, and changes of the ISR."""
        ...

    def request_of(self, push: Push) -> ReplicateRequest | None:
        """A push with its batches; ``None`` if they cannot be read now."""
        ...

    def high_watermark_rose(self) -> None:
        """The high watermark has risen, or the ISR has changed."""
        ...

    def lose_leadership(self) -> None:
        """Another leads; called once."""
        ...


class Replicator:
    """The calls of one leader in one epoch, made through ``events``; ``stop`` ends them."""

    def __init__(
        self,
        replication: LeaderReplication,
        *,
        log: LeaderLog,
        events: ReplicaEvents,
    ) -> None:
        self.replication = replication
        self._log = log
        self._events = events
        self._tasks = OwnTasks(events.on_bug)
        self._next: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._answers: list[asyncio.Future[None]] = []
        """Waiters in ``_until``, which check again after the next answer."""

    async def have_log_start(self, offset: int) -> bool:
        """Wait until all in-sync replicas have this log start; false if another leads."""
        return await self._until(lambda: self.replication.have_log_start(offset))

    async def confirm(self) -> bool:
        """Wait for a confirmation requested now; false if another leads."""
        number = self.replication.ask_to_confirm()
        return await self._until(lambda: self.replication.confirmed >= number)

    async def _until(self, holds: Callable[[], bool]) -> bool:
        """Push until ``holds`` is true; checked after each answer and change of the ISR."""
        while not self._is_stopped and not holds():
            self.appended()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._answers.append(waiter)
            await waiter
        return not self._is_stopped

    def stop(self) -> None:
        """Send nothing more."""
        self._is_stopped = True
        self._wake_answers()
        self.replication.step_down()
        for handle in (self._next, self._timer):
            if handle is not None:
                handle.cancel()
        self._tasks.cancel()

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync replicas, as the controller last told them."""
        return tuple(sorted(self.replication.in_sync.isr))

    def configure(self, settings: ReplicationSettings) -> None:
        """Use new settings from now on."""
        self._change(lambda: self.replication.configure(settings))

    def appended(self) -> None:
        """Push at the end of this turn, together with other appends of it."""
        if self._next is None and not self._is_stopped and self.replication.has_followers:
            self._next = asyncio.get_running_loop().call_soon(self._go_on)

    @property
    def is_pushing(self) -> bool:
        """Whether a push is scheduled for the end of this turn."""
        return self._next is not None

    def synced(self, end_offset: int) -> None:
        """The leader's own log is synced up to ``end_offset`` (exclusive)."""
        self._on_progress(self.replication.synced(end_offset))

    def learn(self, assignment: PartitionAssignment) -> None:
        """The controller has told what it has recorded."""
        self._change(lambda: self.replication.learn(assignment, loop_ms()))

    def _change(self, change: Callable[[], bool]) -> None:
        """Make a change; waiters hear of a changed ISR even if the high watermark stays."""
        replication = self.replication
        isr, had_too_few = replication.in_sync.isr, replication.has_too_few
        has_risen = change()
        has_changed = self._count_change_from(isr) or had_too_few != replication.has_too_few
        self._on_progress(has_risen or has_changed)
        self._wake_answers()
        self.appended()

    def _count_change_from(self, isr: frozenset[int]) -> bool:
        """Count and return whether the ISR has changed."""
        now = self.replication.in_sync.isr
        self._log.counters.isr_shrinks += bool(isr - now)
        self._log.counters.isr_expands += bool(now - isr)
        return now != isr

    def _on_progress(self, has_risen: bool) -> None:
        if self._is_stopped:
            return
        if not self.replication.is_leading:
            self._lose()
        elif has_risen:
            self._log.high_watermark_rose()
            # Tell followers soon: after an election their readers must not see less.
            self.appended()

    def _wake_answers(self) -> None:
        waiters, self._answers = self._answers, []
        for waiter in waiters:
            resolve_future(waiter, None)

    def _lose(self) -> None:
        self.stop()
        self._log.lose_leadership()

    def _go_on(self) -> None:
        """Make every call that is due now, and wake up when the next one is."""
        self._next = None
        if self._is_stopped:
            return
        now_ms = loop_ms()
        for push in self.replication.pushes(now_ms):
            self._tasks.spawn(self._push(push))
        proposal = self.replication.proposal(now_ms)
        if proposal is not None:
            self._tasks.spawn(self._make_proposal(proposal))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_ms = self.replication.wake_ms(now_ms)
        if wake_ms is not None:
            delay_s = max(wake_ms - now_ms, 1) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._go_on)

    async def _push(self, push: Push) -> None:
        request = self._log.request_of(push)
        reply = ReplicateReply(error=SETTLING)
        if request is not None:
            self._log.counters.pushed_bytes += len(request.batches)
            reply = await self._events.send_push(push.broker_id, request)
        if not self._is_stopped:
            self._on_progress(self.replication.answered(push, reply, loop_ms()))
            self._wake_answers()
            self.appended()

    async def _make_proposal(self, proposal: IsrProposal) -> None:
        reply = await self._events.propose_isr(proposal)
        if not self._is_stopped:
            self._change(lambda: self.replication.proposal_answered(reply, loop_ms()))
