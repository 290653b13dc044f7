"""What a leader knows of its followers: the progress of each, and who is in sync.

*Progress* is how far one follower's log matches the leader's, and the push in flight:

==============  ==============================  ==================================================
state           event                           answer
==============  ==============================  ==================================================
PROBING         push                            asks whether the logs agree at ``next_offset``
PROBING         they agree                      REPLICATING from there
PROBING         they diverge                    PROBING further back
REPLICATING     push                            what follows ``next_offset``
REPLICATING     acknowledged                    ``next_offset`` is the follower's synced end
REPLICATING     they diverge (its disk is not   PROBING; nothing counts as replicated
                what it was)
any             an error                        no push until the back-off has passed, which
                                                doubles each time
any             it is not in sync, and the      PROBING; nothing counts as replicated, whatever
                partition has changed           the answer to an earlier push says
any             an error of its disk            back-off; not in sync while it lacks batches,
                                                until it has synced those that were refused
any             an answer to an earlier push    ignored
==============  ==============================  ==================================================

One push at a time is in flight, so ``next_offset`` moves only when a push is answered. The time at
which a follower was last *caught up* is the latest at which it had the leader's whole log.

*In-sync replicas* are the ISR as the leader knows it, and the change it proposes. Only the
controller's record decides who is in sync. A change is proposed by compare-and-set on (leader
epoch, partition version), one at a time. Until its outcome is known either set may be the
controller's, so the high watermark waits for both: the *maximal* ISR. A proposal can still be
accepted while the version that it names is current, however often its call failed; only a newer
version ends that. One that was rejected because a member is fenced is over at once: the controller
raises the version before that member could be accepted (``cluster.elections``).

====================================  ============================================================
answer                                effect
====================================  ============================================================
NONE, or INVALID_UPDATE_VERSION, with what the controller has is learned; all proposals are over
a newer version
INELIGIBLE_REPLICA                    the proposal is over
an older or equal version, or an      the same proposal is made again
error of the call
====================================  ============================================================

Source: KIP-497, KIP-841.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from oncelog.actors.protocol.backoff import backoff_ms
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_LEADER_EPOCH, NO_OFFSET

BACKOFF_MIN_MS: Final = 50
BACKOFF_MAX_MS: Final = 1_000
"""Back-off after an error: the first, and the maximum."""

_NOT_IN_FLIGHT: Final = -1
_NEVER_MS: Final = -1


class FollowerState(enum.Enum):
    """Whether the leader knows up to where the follower's log equals its own."""

    PROBING = "probing"
    REPLICATING = "replicating"


class PushedBounds(msgspec.Struct, frozen=True):
    """What a push tells besides batches."""

    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET


class Push(msgspec.Struct, frozen=True, kw_only=True):
    """A call to one follower: whole batches from ``previous_end_offset`` on, as one request.

    Up to ``bytes_max`` of them, but at least one unless that is 0. ``number`` tells this push
    from others to the follower. The rest is as in ``ReplicateRequest``.
    """

    broker_id: int
    number: int
    bytes_max: int
    leader_epoch: int
    epoch_start_offset: int
    previous_end_offset: int
    previous_leader_epoch: int = NO_LEADER_EPOCH
    bounds: PushedBounds


class FollowerProgress:
    """One follower, as its leader knows it in one leader epoch."""

    __slots__ = (
        "_acknowledged_bounds",
        "_caught_up_ms",
        "_failure_count",
        "_goal_ms",
        "_goal_offset",
        "_had_all",
        "_has_readers",
        "_in_flight",
        "_number",
        "_refused_offset",
        "_retry_ms",
        "_sent_bounds",
        "_sent_ms",
        "match_offset",
        "next_offset",
        "state",
    )

    def __init__(self, *, next_offset: int, now_ms: int, number: int = 0) -> None:
        """A follower of unknown progress; it counts as caught up now.

        ``number`` is the highest that an earlier push may have had.
        """
        self.state = FollowerState.PROBING
        self.next_offset = next_offset
        """Where the next push begins (inclusive)."""
        self.match_offset = NO_OFFSET
        """Exclusive: synced at the follower and equal to the leader's log; -1 while unknown."""
        self._number = number
        self._in_flight = _NOT_IN_FLIGHT
        self._sent_ms = now_ms
        self._sent_bounds = self._acknowledged_bounds = PushedBounds()
        self._failure_count = 0
        self._refused_offset = NO_OFFSET
        """Start of the batches that its disk refused; -1 once it has accepted some."""
        self._retry_ms = _NEVER_MS
        self._caught_up_ms = now_ms
        self._goal_offset = NO_OFFSET
        self._goal_ms = now_ms
        self._had_all = False
        """Whether the last answer was that it has everything."""
        self._has_readers = False
        """Whether consumers waited there at the last answer: it is told new bounds at once."""

    @property
    def acknowledged_log_start_offset(self) -> int:
        """The log start that it has acknowledged, -1 if none.

        At most what it has synced, so -1 while that is unknown, as after a new disk.
        """
        return min(self._acknowledged_bounds.log_start_offset, self.match_offset)

    # --- pushes ------------------------------------------------------------------------------

    def is_due(
        self, now_ms: int, *, log_end_offset: int, bounds: PushedBounds, bounds_push_ms: int
    ) -> bool:
        """Whether to push now: to probe, for new batches, or because bounds told are too old."""
        if not self.may_push(now_ms):
            return False
        if self.state is FollowerState.PROBING or self.next_offset < log_end_offset:
            return True
        delay_ms = 0 if self._has_readers else bounds_push_ms
        return self._acknowledged_bounds != bounds and now_ms - self._sent_ms >= delay_ms

    def due_ms(
        self, *, log_end_offset: int, bounds: PushedBounds, bounds_push_ms: int
    ) -> int | None:
        """When a push is due if nothing else happens; None if only an event makes it so."""
        if self._in_flight != _NOT_IN_FLIGHT:
            return None
        if self.state is FollowerState.PROBING or self.next_offset < log_end_offset:
            return self._retry_ms
        if self._acknowledged_bounds == bounds:
            return None
        return max(self._retry_ms, self._sent_ms + (0 if self._has_readers else bounds_push_ms))

    def may_push(self, now_ms: int) -> bool:
        """Whether a push may be sent now, for whatever reason."""
        return self._in_flight == _NOT_IN_FLIGHT and now_ms >= self._retry_ms

    @property
    def may_push_ms(self) -> int | None:
        """When a push may be sent; None while one is in flight."""
        return self._retry_ms if self._in_flight == _NOT_IN_FLIGHT else None

    def sent(self, now_ms: int, *, log_end_offset: int, bounds: PushedBounds) -> int:
        """A push is on its way, and this is its number; until it is answered no other follows."""
        self._number += 1
        self._in_flight = self._number
        self._sent_ms = now_ms
        self._sent_bounds = bounds
        if self._had_all:
            # However long the pause was, it lacks only the batches that arrived just now.
            self._had_all = False
            self._caught_up_ms = max(now_ms, self._caught_up_ms)
        if self._goal_offset == NO_OFFSET:
            self._goal_offset, self._goal_ms = log_end_offset, now_ms
        return self._number

    def answered(self, number: int) -> bool:
        """End the push ``number``; False if it was given up already."""
        if number != self._in_flight:
            return False
        self._in_flight = _NOT_IN_FLIGHT
        return True

    # --- answers -----------------------------------------------------------------------------

    def acknowledged(
        self, end_offset: int, now_ms: int, *, log_end_offset: int, has_readers: bool = False
    ) -> None:
        """The follower has synced all below ``end_offset``, as the leader has it."""
        self._recovered()
        self._has_readers = has_readers
        if end_offset > self._refused_offset:
            self._refused_offset = NO_OFFSET
        self.state = FollowerState.REPLICATING
        self._acknowledged_bounds = self._sent_bounds
        self.next_offset = self.match_offset = end_offset
        self._had_all = end_offset >= log_end_offset
        if self._had_all:
            self._caught_up_ms, self._goal_offset = max(now_ms, self._caught_up_ms), NO_OFFSET
        elif end_offset >= self._goal_offset:
            self._caught_up_ms = max(self._goal_ms, self._caught_up_ms)
            self._goal_offset = NO_OFFSET

    def diverged(self, next_offset: int) -> None:
        """Probe at ``next_offset``; nothing counts as replicated until the logs agree."""
        self._recovered()
        self.state = FollowerState.PROBING
        self.next_offset = next_offset
        self.match_offset = NO_OFFSET
        self._had_all = False

    def reset(self) -> None:
        """Forget what it has acknowledged: it may have another disk now."""
        self.state = FollowerState.PROBING
        self.match_offset = NO_OFFSET
        self._in_flight = _NOT_IN_FLIGHT
        self._had_all = False

    def failed(self, now_ms: int) -> None:
        """The push failed, or its outcome is unknown: try again, but not at once."""
        self._retry_ms = now_ms + backoff_ms(
            self._failure_count, initial_ms=BACKOFF_MIN_MS, max_ms=BACKOFF_MAX_MS
        )
        self._failure_count += 1

    def refused(self, now_ms: int) -> None:
        """Its disk refused the push: it is not in sync while it lacks batches, until it takes one.

        A push without batches needs no disk space, so success says nothing about the disk.
        """
        self._refused_offset = max(self.next_offset, self._refused_offset, 0)
        self.failed(now_ms)

    def _recovered(self) -> None:
        self._failure_count = 0
        self._retry_ms = _NEVER_MS

    # --- in sync -----------------------------------------------------------------------------

    def is_in_sync(self, now_ms: int, *, log_end_offset: int, lag_max_ms: int) -> bool:
        """Whether it is caught up, or was at most ``lag_max_ms`` ago and still accepts pushes."""
        if self.match_offset >= log_end_offset:
            return True
        is_refusing = self._refused_offset != NO_OFFSET
        return not is_refusing and now_ms - self._caught_up_ms <= lag_max_ms

    def lag_ms(self, now_ms: int, *, log_end_offset: int) -> int:
        """Time since it was caught up; 0 if it is."""
        return 0 if self.match_offset >= log_end_offset else now_ms - self._caught_up_ms

    def lags_after_ms(self, *, log_end_offset: int, lag_max_ms: int) -> int | None:
        """When it leaves the ISR without further answers; None if it is caught up."""
        if self.match_offset >= log_end_offset:
            return None
        return self._caught_up_ms + lag_max_ms + 1


# --- who is in sync --------------------------------------------------------------------------


class IsrProposal(msgspec.Struct, frozen=True, kw_only=True):
    """Make ``isr`` the in-sync replicas if ``partition_version`` is still current."""

    isr: tuple[int, ...]
    partition_version: int


class InSyncReplicas:
    """The committed ISR, its version, and the proposal whose outcome is not known."""

    __slots__ = ("_isr", "_possible", "_proposal", "_version")

    def __init__(self, isr: Iterable[int], partition_version: int) -> None:
        self._isr = frozenset(isr)
        self._version = partition_version
        self._proposal: frozenset[int] | None = None
        self._possible = self._isr

    @property
    def isr(self) -> frozenset[int]:
        """The in-sync replicas as the controller last told them."""
        return self._isr

    @property
    def version(self) -> int:
        """The partition's version that came with them."""
        return self._version

    @property
    def maximal(self) -> frozenset[int]:
        """All that may be in the controller's ISR now; the high watermark waits for them."""
        return self._possible

    @property
    def proposal(self) -> IsrProposal | None:
        """The pending proposal, to be repeated until it is answered; None if there is none."""
        if self._proposal is None:
            return None
        return IsrProposal(isr=tuple(sorted(self._proposal)), partition_version=self._version)

    def propose(self, isr: frozenset[int]) -> None:
        """Propose ``isr``; does nothing if it is the ISR, or while a proposal is pending."""
        if self._proposal is None and isr != self._isr:
            self._proposal = isr
            self._possible |= isr

    def refused(self, error: ErrorCode) -> None:
        """The proposal was answered with ``error``; see the table."""
        if error is ErrorCode.INELIGIBLE_REPLICA and self._proposal is not None:
            self._proposal = None
            self._possible = self._isr

    def learn(self, isr: Iterable[int], partition_version: int) -> bool:
        """Take over the controller's state if it is newer; return whether it was."""
        if partition_version <= self._version:
            return False
        self._isr = self._possible = frozenset(isr)
        self._version = partition_version
        self._proposal = None
        return True
