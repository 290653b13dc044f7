"""What a leader sends its followers and the controller, as ``protocol/partition/replication`` says.

Appends of a turn of the event loop leave together at its end, beside the leader's own sync. Each
call that fails is answered here, with its code, so that the machine never waits for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from oncelog.actors.process.background import OwnTasks, resolve_future
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.cluster import AlterIsrReply
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.protocol.partition.followers import IsrProposal, Push
from oncelog.actors.protocol.partition.replication import (
    LeaderReplication,
    PartitionAssignment,
    ReplicationSettings,
)
from oncelog.actors.replica.observations import ReplicaCounters
from oncelog.storage.errors import ErrorCode

SETTLING: Final = ErrorCode.NOT_LEADER_OR_FOLLOWER
"""What a push is answered with that cannot be read, so that it is tried again."""


class Replicator:
    """The calls of one leader in one epoch; ``stop`` ends them.

    ``request_of`` reads a push's batches; ``send`` and ``propose`` make calls and never raise for
    one that is lost. ``on_rise`` is called when the high watermark has risen or the ISR changed,
    ``on_loss`` once, when another leads. What happens is added up in ``counters``.
    """

    def __init__(
        self,
        replication: LeaderReplication,
        *,
        counters: ReplicaCounters,
        request_of: Callable[[Push], ReplicateRequest | None],
        send: Callable[[int, ReplicateRequest], Awaitable[ReplicateReply]],
        propose: Callable[[IsrProposal], Awaitable[AlterIsrReply]],
        on_rise: Callable[[], None],
        on_loss: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.replication = replication
        self._counters = counters
        self._request_of = request_of
        self._send = send
        self._propose = propose
        self._on_rise = on_rise
        self._on_loss = on_loss
        self._tasks = OwnTasks(on_failure)
        self._next: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._answers: list[asyncio.Future[None]] = []
        """Who looks again after the next answer: as many as wait in ``_until``."""

    async def have_log_start(self, offset: int) -> bool:
        """Wait until all that are in sync hide what lies below; false if another leads."""
        return await self._until(lambda: self.replication.have_log_start(offset))

    async def confirm(self) -> bool:
        """Wait until this leader is known to have been the newest after this call; else false."""
        number = self.replication.ask_to_confirm()
        return await self._until(lambda: self.replication.confirmed >= number)

    async def _until(self, holds: Callable[[], bool]) -> bool:
        """Push until ``holds``, which answers and news of the ISR may bring about."""
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
        """Follow other settings from now on."""
        self._change(lambda: self.replication.configure(settings))

    def appended(self) -> None:
        """There may be something to push: at the end of this turn, with what else it appends."""
        if self._next is None and not self._is_stopped and self.replication.has_followers:
            self._next = asyncio.get_running_loop().call_soon(self._go_on)

    @property
    def is_pushing(self) -> bool:
        """Whether something is pushed at the end of this turn."""
        return self._next is not None

    def synced(self, end_offset: int) -> None:
        """The leader's own log is synced up to ``end_offset`` (exclusive)."""
        self._on_progress(self.replication.synced(end_offset))

    def learn(self, assignment: PartitionAssignment) -> None:
        """The controller has told what it has recorded."""
        self._change(lambda: self.replication.learn(assignment, loop_ms()))

    def _change(self, change: Callable[[], bool]) -> None:
        """Whoever waits must hear of a changed ISR or minimum, also if the high watermark stays."""
        replication = self.replication
        isr, had_too_few = replication.in_sync.isr, replication.has_too_few
        has_risen = change()
        has_changed = self._count_change_from(isr) or had_too_few != replication.has_too_few
        self._on_progress(has_risen or has_changed)
        self._wake_answers()
        self.appended()

    def _count_change_from(self, isr: frozenset[int]) -> bool:
        """Whether the in-sync replicas are others than they were."""
        now = self.replication.in_sync.isr
        self._counters.isr_shrinks += bool(isr - now)
        self._counters.isr_expands += bool(now - isr)
        return now != isr

    def _on_progress(self, has_risen: bool) -> None:
        if self._is_stopped:
            return
        if not self.replication.is_leading:
            self._lose()
        elif has_risen:
            self._on_rise()
            # Followers are told soon: a reader of theirs, once elected, must not see less.
            self.appended()

    def _wake_answers(self) -> None:
        waiters, self._answers = self._answers, []
        for waiter in waiters:
            resolve_future(waiter, None)

    def _lose(self) -> None:
        self.stop()
        self._on_loss()

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
        request = self._request_of(push)
        reply = ReplicateReply(error=SETTLING)
        if request is not None:
            self._counters.pushed_bytes += len(request.batches)
            reply = await self._send(push.broker_id, request)
        if not self._is_stopped:
            self._on_progress(self.replication.answered(push, reply, loop_ms()))
            self._wake_answers()
            self.appended()

    async def _make_proposal(self, proposal: IsrProposal) -> None:
        reply = await self._propose(proposal)
        if not self._is_stopped:
            self._change(lambda: self.replication.proposal_answered(reply, loop_ms()))
