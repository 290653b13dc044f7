"""The leader's side of replication: what to push, what is committed, and who is in sync.

Rules. The high watermark is the lowest synced end over the maximal ISR (``followers``). It only
rises, and stands still while the committed ISR has fewer members than ``min_insync_replicas``. The
leader's own end counts only as far as it is synced. Whoever answers with a newer epoch, the leader
steps down at once and for good. The shell reports each event with the current time, then asks for
``pushes`` and the ``proposal``; nothing here waits or sends.

==============  =========================  =====================================================
state           event                      answer
==============  =========================  =====================================================
LEADING         append                     followers are due; the high watermark waits for them
LEADING         synced                     the high watermark may rise
LEADING         answered, agreeing         the high watermark may rise; the ISR may be expanded
LEADING         answered, diverging        the next probe is where both epochs may agree
LEADING         answered, newer epoch      FENCED
LEADING         answered, error of a disk  back-off; the ISR may be shrunk at once
LEADING         answered, another error    back-off
LEADING         time passes                the ISR may be shrunk; bounds are told
LEADING         proposal answered          as the table of ``followers``;
                                           FENCED_LEADER_EPOCH, UNKNOWN_TOPIC_ID and
                                           NOT_LEADER_OR_FOLLOWER: FENCED
LEADING         INELIGIBLE_REPLICA         the replica is proposed again after a back-off
LEADING         a newer version            replicas not in sync are probed anew; their earlier
                                           answers no longer count: they may have lost their
                                           log since. Back-offs end: a fenced one may join now
LEADING         ask_to_confirm             a push is due to all that may be in sync, even empty
LEADING         an answer of a follower    new bounds are told to it at once, not after a delay
                where consumers wait
LEADING         step_down                  FENCED
FENCED          any                        nothing; waiters get NOT_LEADER_OR_FOLLOWER
==============  =========================  =====================================================

A *confirmation* proves that this leader was still the newest one after it was requested: every
replica that may be in sync has acknowledged a push sent since, and any other leader would be one of
them. So a read that follows a confirmation is current, without relying on clocks (raft §6.4,
ReadIndex). With fewer replicas in sync than the minimum none comes: a member of the ELR may lead.

If a follower diverges, the leader takes its own largest epoch that is not above the follower's, and
probes where that epoch ends first in either log. The follower answers likewise. So each probe is
further back, until the logs agree or the log start is reached, where they agree by definition.

One file: every rule uses the followers' progress, the ISR, and the start of this epoch.

Source: KIP-101, KIP-207, KIP-279, KIP-497, KIP-966 (the minimum for the high watermark).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from oncelog.actors.protocol.backoff import backoff_ms
from oncelog.actors.protocol.invariants import invariant
from oncelog.actors.protocol.messages.cluster import AlterIsrReply
from oncelog.actors.protocol.messages.partition import NO_BROKER
from oncelog.actors.protocol.messages.replication import ReplicateReply
from oncelog.actors.protocol.partition.bounds import PartitionBounds
from oncelog.actors.protocol.partition.followers import (
    BACKOFF_MIN_MS,
    FollowerProgress,
    FollowerState,
    InSyncReplicas,
    IsrProposal,
    Push,
    PushedBounds,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_LEADER_EPOCH, NO_OFFSET
from oncelog.storage.segments.leader_epochs import epoch_span

PUSH_MAX_BYTES: Final = 1_048_576
"""Bytes of batches in one push, unless a single batch is larger."""

LAG_MAX_MS: Final = 30_000
"""How long a follower may lag and stay in sync."""

BOUNDS_PUSH_MS: Final = 500
"""Delay until a caught-up follower is told a new high watermark or log start."""

NEVER: Final = 0
"""Number of no confirmation; theirs are higher."""

INELIGIBLE_MIN_MS: Final = 1_000
INELIGIBLE_MAX_MS: Final = 30_000
"""Back-off before an ineligible follower is proposed for the ISR again: first, and maximum."""

_FENCING: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""The controller's answers that depose this leader."""

_TELLING: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.INELIGIBLE_REPLICA}
)
"""The controller's answers that contain the committed state of the partition."""


class PartitionAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller has recorded of a partition; ``partition_version`` rises with each."""

    leader_epoch: int
    partition_version: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class _Ineligible(msgspec.Struct, frozen=True):
    """A follower that may not join, and when it may be proposed again."""

    until_ms: int
    refusal_count: int


class ReplicationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of replication."""

    min_insync_replicas: int = 1
    lag_max_ms: int = LAG_MAX_MS
    push_max_bytes: int = PUSH_MAX_BYTES
    bounds_push_ms: int = BOUNDS_PUSH_MS


class LeaderReplication:
    """The leader in one epoch, created when it begins to lead; ``bounds`` are its machine's."""

    __slots__ = (
        "_asked",
        "_bounds",
        "_broker_id",
        "_confirmed",
        "_epoch_start_offset",
        "_followers",
        "_in_sync",
        "_ineligible",
        "_is_leading",
        "_is_proposing",
        "_leader_epoch",
        "_newest_number",
        "_retry_proposal_ms",
        "_sent",
        "_settings",
        "_synced_end_offset",
    )

    def __init__(
        self,
        bounds: PartitionBounds,
        assignment: PartitionAssignment,
        *,
        broker_id: int,
        synced_end_offset: int,
        settings: ReplicationSettings,
        now_ms: int,
    ) -> None:
        latest = bounds.leader_epochs.latest_epoch
        invariant(
            latest == assignment.leader_epoch and broker_id in assignment.isr,
            "I-22",
            f"{broker_id} is to replicate {assignment}, its latest epoch is {latest}",
        )
        self._bounds = bounds
        self._broker_id = broker_id
        self._settings = settings
        self._leader_epoch = assignment.leader_epoch
        self._epoch_start_offset = bounds.leader_epochs.latest_start_offset
        self._in_sync = InSyncReplicas(assignment.isr, assignment.partition_version)
        self._followers: dict[int, FollowerProgress] = {}
        self._is_leading = True
        self._is_proposing = False
        self._retry_proposal_ms = now_ms
        self._ineligible: dict[int, _Ineligible] = {}
        self._synced_end_offset = synced_end_offset
        self._newest_number = 0
        """The last number of any push; a follower that is added again starts above it."""
        self._asked = NEVER
        self._sent: dict[int, int] = {}
        """Follower → the newest confirmation requested when its push in flight was sent."""
        self._confirmed: dict[int, int] = {}
        self._assign(assignment.replicas, now_ms)
        self._advance()

    # --- read --------------------------------------------------------------------------------

    @property
    def is_leading(self) -> bool:
        """False once a newer epoch was seen: fail waiting requests and ask the controller.

        Also if this replica leads in a newer epoch, with another object.
        """
        return self._is_leading and self._bounds.leader_epochs.latest_epoch == self._leader_epoch

    @property
    def has_followers(self) -> bool:
        """Whether there is anybody to push to."""
        return bool(self._followers)

    @property
    def in_sync(self) -> InSyncReplicas:
        """The in-sync replicas, and the proposal."""
        return self._in_sync

    def progress(self, broker_id: int) -> FollowerProgress | None:
        """A follower's progress."""
        return self._followers.get(broker_id)

    def have_log_start(self, offset: int) -> bool:
        """Whether every follower that may be in sync has this log start or a higher one."""
        followers = self._in_sync.maximal - {self._broker_id}
        return all(
            (progress := self._followers.get(broker_id)) is not None
            and progress.acknowledged_log_start_offset >= offset
            for broker_id in followers
        )

    @property
    def is_under_replicated(self) -> bool:
        """Whether any replica is not in sync, those that a reassignment adds included."""
        return not self._followers.keys() <= self._in_sync.isr

    def lag(self, now_ms: int) -> tuple[int, int]:
        """The largest lag of a follower in offsets, as far as known, and in ms."""
        start, end = self._bounds.log_start_offset, self._bounds.log_end_offset
        followers = self._followers.values()
        return (
            max((end - max(one.next_offset, start) for one in followers), default=0),
            max((one.lag_ms(now_ms, log_end_offset=end) for one in followers), default=0),
        )

    def preferred_read_replica(self, near: Collection[int], fetch_offset: int) -> int:
        """The broker of the follower among ``near`` that a consumer should fetch from; -1: here.

        It is in sync and has synced everything below ``fetch_offset``: of several the one with the
        longest log, then the lowest id. -1 too if this broker is ``near``. Source: KIP-392.
        """
        if self._broker_id in near or not self.is_leading:
            return NO_BROKER
        able = [
            (-self._match_offset(broker_id), broker_id)
            for broker_id in self._in_sync.isr.intersection(near)
            if self._match_offset(broker_id) >= fetch_offset
        ]
        return min(able)[1] if able else NO_BROKER

    # --- acks -1 -----------------------------------------------------------------------------

    def check_append(self) -> ErrorCode:
        """Whether a batch with acks -1 may be appended."""
        if not self.is_leading:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.has_too_few:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode.NONE

    @property
    def has_too_few(self) -> bool:
        """Whether the ISR has fewer members than ``min_insync_replicas``.

        A batch appended before is then in the log, and its retry is recognised.
        """
        return len(self._in_sync.isr) < self._settings.min_insync_replicas

    # --- confirmations -----------------------------------------------------------------------

    def ask_to_confirm(self) -> int:
        """Request a confirmation: return its number, and make pushes due for it."""
        self._asked += 1
        return self._asked

    @property
    def confirmed(self) -> int:
        """The newest confirmation that is complete, and so all before it."""
        if not self.is_leading or self.has_too_few:
            return NEVER
        return self._confirmed_by_enough()

    def _confirmed_by_enough(self) -> int:
        return min(self._confirmed_by(broker_id) for broker_id in self._in_sync.maximal)

    def _confirmed_by(self, broker_id: int) -> int:
        own = broker_id == self._broker_id
        return self._asked if own else self._confirmed.get(broker_id, NEVER)

    def _may_confirm(self, broker_id: int) -> bool:
        """Whether a confirmation still needs an answer of this follower."""
        return (
            self._confirmed_by(broker_id) < self._asked
            and broker_id in self._in_sync.maximal
            and self.confirmed < self._asked
        )

    # --- events ------------------------------------------------------------------------------

    def synced(self, end_offset: int) -> bool:
        """The leader's own log is synced up to ``end_offset`` (exclusive).

        Like the other events it returns whether the high watermark rose.
        """
        self._synced_end_offset = max(self._synced_end_offset, end_offset)
        return self._advance()

    def answered(self, push: Push, reply: ReplicateReply, now_ms: int) -> bool:
        """A push was answered, or failed with a code; an answer to one given up is ignored."""
        progress = self._followers.get(push.broker_id)
        if not self.is_leading or progress is None or not progress.answered(push.number):
            return False
        if reply.error is ErrorCode.FENCED_LEADER_EPOCH:
            self.step_down()
            return False
        if reply.error is ErrorCode.KAFKA_STORAGE_ERROR:
            progress.refused(now_ms)
            return False
        if reply.error is not ErrorCode.NONE:
            progress.failed(now_ms)
            return False
        self._confirmed[push.broker_id] = self._sent[push.broker_id]
        if reply.diverging_end_offset != NO_OFFSET:
            progress.diverged(self._probe_after(reply))
            return False
        log_end_offset = self._bounds.log_end_offset
        progress.acknowledged(
            min(reply.log_end_offset, log_end_offset),
            now_ms,
            log_end_offset=log_end_offset,
            has_readers=reply.has_readers,
        )
        return self._advance()

    def learn(self, assignment: PartitionAssignment, now_ms: int) -> bool:
        """The controller told what it has recorded, by itself or in an answer."""
        if not self.is_leading:
            return False
        if assignment.leader_epoch > self._leader_epoch:
            self.step_down()
            return False
        if assignment.leader_epoch < self._leader_epoch:
            return False
        if self._in_sync.learn(assignment.isr, assignment.partition_version):
            self._assign(assignment.replicas, now_ms)
            self._ineligible.clear()
            for broker_id in self._followers.keys() - self._in_sync.isr:
                self._followers[broker_id].reset()
        return self._advance()

    def proposal_answered(self, reply: AlterIsrReply, now_ms: int) -> bool:
        """The call with the proposal was answered, or failed with a code."""
        self._is_proposing = False
        if reply.error in _FENCING:
            self.step_down()
            return False
        if reply.error is not ErrorCode.NONE:
            self._in_sync.refused(reply.error)
            self._retry_proposal_ms = now_ms + BACKOFF_MIN_MS
        if reply.error is ErrorCode.INELIGIBLE_REPLICA:
            # Others may still join.
            self._hold_back(reply.ineligible, now_ms)
        if reply.error not in _TELLING:
            return False
        assignment = PartitionAssignment(
            leader_epoch=reply.leader_epoch,
            partition_version=reply.partition_version,
            replicas=reply.replicas,
            isr=reply.isr,
        )
        return self.learn(assignment, now_ms)

    def configure(self, settings: ReplicationSettings) -> bool:
        """Use new settings from now on; return whether the high watermark rose."""
        self._settings = settings
        return self._advance()

    def step_down(self) -> None:
        """Stop leading: nothing more is pushed, proposed or committed."""
        self._is_leading = False

    # --- what to do --------------------------------------------------------------------------

    def pushes(self, now_ms: int) -> list[Push]:
        """The calls that are due; each is in flight from now until it is ``answered``.

        For a call that fails or passes its deadline the shell reports an error code.
        """
        if not self.is_leading:
            return []
        return [
            self._push(broker_id, progress, now_ms)
            for broker_id, progress in self._followers.items()
            if progress.is_due(
                now_ms,
                log_end_offset=self._bounds.log_end_offset,
                bounds=self._current_bounds(),
                bounds_push_ms=self._settings.bounds_push_ms,
            )
            or (self._may_confirm(broker_id) and progress.may_push(now_ms))
        ]

    def proposal(self, now_ms: int) -> IsrProposal | None:
        """The ISR change to send to the controller; in flight until it is answered."""
        if not self.is_leading or self._is_proposing or now_ms < self._retry_proposal_ms:
            return None
        if self._in_sync.proposal is None:
            self._in_sync.propose(self._wanted_isr(now_ms))
        self._is_proposing = self._in_sync.proposal is not None
        return self._in_sync.proposal

    def wake_ms(self, now_ms: int) -> int | None:
        """When to ask again if nothing happens before; None: only after an event."""
        if not self.is_leading:
            return None
        log_end_offset = self._bounds.log_end_offset
        times: list[int | None] = [
            progress.due_ms(
                log_end_offset=log_end_offset,
                bounds=self._current_bounds(),
                bounds_push_ms=self._settings.bounds_push_ms,
            )
            for progress in self._followers.values()
        ]
        times += [
            progress.may_push_ms
            for broker_id, progress in self._followers.items()
            if self._may_confirm(broker_id)
        ]
        if not self._is_proposing:
            times.append(self._proposal_due_ms(now_ms))
        due = [time_ms for time_ms in times if time_ms is not None]
        return max(now_ms, min(due)) if due else None

    def _proposal_due_ms(self, now_ms: int) -> int | None:
        """When a proposal may become due if nothing happens before."""
        in_sync = self._in_sync
        if in_sync.proposal is not None or self._wanted_isr(now_ms) != in_sync.isr:
            return self._retry_proposal_ms
        lags = (
            self._followers[broker_id].lags_after_ms(
                log_end_offset=self._bounds.log_end_offset, lag_max_ms=self._settings.lag_max_ms
            )
            for broker_id in in_sync.isr - {self._broker_id}
        )
        times = [time_ms for time_ms in lags if time_ms is not None]
        times += [one.until_ms for one in self._ineligible.values() if now_ms < one.until_ms]
        return max(min(times), self._retry_proposal_ms) if times else None

    # --- rules -------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Move the high watermark to what all replicas that may be in sync have (I-04)."""
        if not self.is_leading or self.has_too_few:
            return False
        return self._bounds.advance_high_watermark(self._committed_end_offset())

    def _committed_end_offset(self) -> int:
        return min(
            self._synced_end_offset,
            *(self._match_offset(broker_id) for broker_id in self._in_sync.maximal),
        )

    def _match_offset(self, broker_id: int) -> int:
        if broker_id == self._broker_id:
            return self._synced_end_offset
        progress = self._followers.get(broker_id)
        return NO_OFFSET if progress is None else progress.match_offset

    def _wanted_isr(self, now_ms: int) -> frozenset[int]:
        """The ISR without lagging members; if none lags, with followers that have caught up.

        A follower that joins has all that is committed and the start of this epoch (KIP-207), and
        nothing that the leader lacks.
        """
        isr, log_end_offset = self._in_sync.isr, self._bounds.log_end_offset
        lagging = {
            broker_id
            for broker_id in isr - {self._broker_id}
            if not self._followers[broker_id].is_in_sync(
                now_ms, log_end_offset=log_end_offset, lag_max_ms=self._settings.lag_max_ms
            )
        }
        if lagging:
            return isr - lagging
        enough = max(self._bounds.high_watermark, self._epoch_start_offset)
        return isr | {
            broker_id
            for broker_id, progress in self._followers.items()
            if progress.match_offset >= enough and not self._is_held_back(broker_id, now_ms)
        }

    def _is_held_back(self, broker_id: int, now_ms: int) -> bool:
        ineligible = self._ineligible.get(broker_id)
        return ineligible is not None and now_ms < ineligible.until_ms

    def _hold_back(self, ineligible: tuple[int, ...], now_ms: int) -> None:
        """Do not propose these for a while, longer each time: they are not eligible."""
        for broker_id in self._followers.keys() & set(ineligible):
            known = self._ineligible.get(broker_id)
            refusals = 0 if known is None else known.refusal_count
            wait_ms = backoff_ms(refusals, initial_ms=INELIGIBLE_MIN_MS, max_ms=INELIGIBLE_MAX_MS)
            self._ineligible[broker_id] = _Ineligible(now_ms + wait_ms, refusals + 1)

    def _assign(self, replicas: tuple[int, ...], now_ms: int) -> None:
        """Push to these, which include all that may be in sync; forget the others."""
        wanted = set(replicas) - {self._broker_id}
        self._followers = {
            broker_id: self._followers.get(broker_id)
            or FollowerProgress(
                next_offset=self._bounds.log_end_offset, now_ms=now_ms, number=self._newest_number
            )
            for broker_id in sorted(wanted)
        }

    def _probe_after(self, reply: ReplicateReply) -> int:
        """Where to probe next after ``reply``; never before the log start."""
        found = reply.diverging_end_offset
        if reply.diverging_epoch != NO_LEADER_EPOCH:
            own = self._bounds.leader_epochs.end_offset_for(
                reply.diverging_epoch, log_end_offset=self._bounds.log_end_offset
            )
            found = min(found, own.end_offset)
        return max(min(found, self._bounds.log_end_offset), self._bounds.log_start_offset)

    def _push(self, broker_id: int, progress: FollowerProgress, now_ms: int) -> Push:
        """The next push. A probe at the log start has batches too."""
        start, told = self._bounds.log_start_offset, self._current_bounds()
        progress.next_offset = offset = max(progress.next_offset, start)
        previous = epoch_span(self._bounds.leader_epochs.entries, offset - 1)[0]
        has_batches = progress.state is FollowerState.REPLICATING or offset == start
        self._sent[broker_id] = self._asked
        number = progress.sent(now_ms, log_end_offset=self._bounds.log_end_offset, bounds=told)
        self._newest_number = max(self._newest_number, number)
        return Push(
            broker_id=broker_id,
            number=number,
            bytes_max=self._settings.push_max_bytes if has_batches else 0,
            leader_epoch=self._leader_epoch,
            epoch_start_offset=self._epoch_start_offset,
            previous_end_offset=offset,
            previous_leader_epoch=NO_LEADER_EPOCH if previous is None else previous,
            bounds=told,
        )

    def _current_bounds(self) -> PushedBounds:
        return PushedBounds(self._bounds.high_watermark, self._bounds.log_start_offset)
