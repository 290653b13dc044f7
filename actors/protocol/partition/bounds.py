"""The four offsets of a replica, what they allow to be read, its role, and its leader epochs.

Rules. ``log_start_offset`` ≤ ``last_stable_offset`` ≤ ``high_watermark`` ≤ ``log_end_offset``
(I-01). Each moves in one place only: the log start by retention, the log end by a batch, the high
watermark by replication. The last stable offset is derived: the first unstable offset if that
is below the high watermark, else the high watermark. On a leader neither of these two goes back
(I-03).

*Leader epochs* tell where each began in the log, and so where two logs diverge. Their entries rise
in both epoch and start offset (I-08). An epoch is entered when its leader is elected, at the log
end, even if it never writes a batch; and when a batch of a newer epoch is appended or replayed.

========================================  ====================================================
event                                     answer
========================================  ====================================================
assign, epoch and start above the latest  new entry
assign, the latest epoch, start not lower nothing: the epoch has begun already
assign, otherwise                         entries at or above the epoch or the start are removed
end of the latest epoch                   log end
end of an epoch above the latest          undefined
end of an epoch below the first           (that epoch, start of the first)
end of another epoch                      (largest entry not above it, start of the next entry)
========================================  ====================================================

Source: KIP-98, KIP-101, KIP-207, KIP-279.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter
from types import MappingProxyType
from typing import Final

import msgspec

from oncelog.actors.protocol.invariants import invariant
from oncelog.actors.protocol.partition.producers import ProducerStates
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    NO_LEADER_EPOCH,
    NO_OFFSET,
    IsolationLevel,
    ProducerSnapshotEntry,
    TopicPartition,
)
from oncelog.storage.segments.leader_epochs import (
    UNDEFINED_END,
    end_of_epoch,
    without_end,
    without_start,
)


class Role(enum.Enum):
    """The role of a replica."""

    LOADING = "loading"
    FOLLOWER = "follower"
    LEADER = "leader"


LEGAL_ROLES: Final = MappingProxyType(
    {
        Role.LOADING: frozenset({Role.LEADER, Role.FOLLOWER}),
        Role.FOLLOWER: frozenset({Role.LEADER, Role.FOLLOWER}),
        Role.LEADER: frozenset({Role.LEADER, Role.FOLLOWER}),
    }
)
"""Role → roles it may change to; ``load`` returns to LOADING from any."""


LOADING: Final = Role.LOADING
LEADER: Final = Role.LEADER
"""Module constants for checks per batch: an attribute lookup on an enum class is slow."""


class PartitionBounds:
    """The offsets of one replica: starts are inclusive, ends exclusive.

    ``log_start_offset`` moves only by retention, ``log_end_offset`` only by a batch,
    ``high_watermark`` only by ``advance_high_watermark``; ``last_stable_offset`` is derived.
    """

    __slots__ = (
        "_high_watermark",
        "_log_end_offset",
        "_log_start_offset",
        "_replay_from",
        "_snapshot_offset",
        "_stable_seen",
        "leader_epochs",
        "producers",
        "role",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.load(0, 0, ())

    # --- loading -----------------------------------------------------------------------------

    def load(
        self,
        log_start_offset: int,
        snapshot_offset: int,
        entries: Iterable[ProducerSnapshotEntry],
        *,
        leader_epochs: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Reset to a producer snapshot; then replay from ``replay_from``.

        ``snapshot_offset`` is exclusive: ``entries`` is the state before that offset. Also used
        after a truncation: changes are never undone one by one.
        """
        self.role = Role.LOADING
        self.producers = ProducerStates(entries)
        self.leader_epochs = LeaderEpochs(leader_epochs)
        self._log_start_offset = log_start_offset
        self._snapshot_offset = max(snapshot_offset, log_start_offset)
        self._log_end_offset = self._snapshot_offset
        self._high_watermark = log_start_offset
        self._stable_seen = log_start_offset
        first_open = self.producers.transactions.first_ongoing_offset
        has_open_before = first_open != NO_OFFSET and first_open < self._snapshot_offset
        begin = first_open if has_open_before else self._snapshot_offset
        self._replay_from = max(begin, log_start_offset)

    @property
    def replay_from(self) -> int:
        """Inclusive offset from which the log must be replayed after ``load``.

        Lower than the snapshot if that has open transactions: it lacks their record counts.
        Replaying from further back is harmless, and fills the duplicate window.
        """
        return self._replay_from

    # --- moving ------------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int) -> bool:
        """Everything below ``offset`` (exclusive) is synced on every in-sync replica.

        A lower offset changes nothing; one past the log end violates I-04. Returns whether the high
        watermark moved, and so whether to wake readers.
        """
        if offset > self._log_end_offset:
            invariant(False, "I-04", f"{self}: high watermark {offset} is past the log end")
        if offset <= self._high_watermark:
            return False
        self._high_watermark = offset
        self.producers.transactions.forget_before(offset)
        self._check_bounds()
        return True

    def advance_log_start(self, offset: int) -> bool:
        """Records below ``offset`` (exclusive) are gone; a lower offset changes nothing.

        Producers and open transactions stay: their markers are still to come.
        """
        invariant(
            offset <= self._log_end_offset,
            "I-01",
            f"{self}: log start {offset} past the log end {self._log_end_offset}",
        )
        if offset <= self._log_start_offset:
            return False
        self._log_start_offset = offset
        self._high_watermark = max(self._high_watermark, offset)
        self.producers.transactions.forget_before(self._high_watermark)
        self.leader_epochs.truncate_start(offset)
        self._check_bounds()
        return True

    # --- read --------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """Inclusive offset of the first record that may be read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Exclusive: the offset of the next record."""
        return self._log_end_offset

    @property
    def high_watermark(self) -> int:
        """Exclusive: everything below is synced on every in-sync replica."""
        return self._high_watermark

    @property
    def first_unstable_offset(self) -> int:
        """Inclusive first offset of the oldest undecided transaction, -1 if none."""
        unstable = self.producers.transactions.first_unstable_offset
        return unstable if unstable == NO_OFFSET else max(unstable, self._log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Exclusive: every transaction with data below is decided, and the decision replicated.

        A snapshot does not say which of the transactions completed before it are unreplicated,
        so nothing counts as stable until the high watermark has reached the loaded snapshot.
        """
        if self._high_watermark < self._snapshot_offset:
            return self._log_start_offset
        unstable = self.producers.transactions.first_unstable_offset
        if unstable == NO_OFFSET:
            return self._high_watermark
        return min(max(unstable, self._log_start_offset), self._high_watermark)

    def fetch_bound(self, isolation_level: IsolationLevel) -> int:
        """Exclusive offset up to which a reader sees records."""
        if isolation_level is IsolationLevel.READ_COMMITTED:
            return self.last_stable_offset
        return self._high_watermark

    def check_fetch(self, offset: int) -> ErrorCode:
        """Whether a fetch may begin at ``offset``; between its bound and the log end it waits."""
        if self._log_start_offset <= offset <= self._log_end_offset:
            return ErrorCode.NONE
        return ErrorCode.OFFSET_OUT_OF_RANGE

    def check_latest(self) -> ErrorCode:
        """Whether "latest" may be answered: once the high watermark reached this epoch's start.

        Otherwise a reader could see "latest" go back after a failover. Source: KIP-207.
        """
        if self._high_watermark < self.leader_epochs.latest_start_offset:
            return ErrorCode.OFFSET_NOT_AVAILABLE
        return ErrorCode.NONE

    # --- invariants --------------------------------------------------------------------------

    def _take_role(self, role: Role) -> None:
        invariant(role in LEGAL_ROLES[self.role], "I-22", f"{self} is to become {role.value}")
        self.role = role
        self._stable_seen = self.last_stable_offset

    def _check_bounds(self) -> None:
        """Check I-01 after every change, and I-03 on a leader; texts are built only on failure."""
        stable = self.last_stable_offset
        if not self._log_start_offset <= stable <= self._high_watermark <= self._log_end_offset:
            invariant(False, "I-01", str(self))
        if stable < self._stable_seen and self.role is LEADER:
            invariant(False, "I-03", f"{self}: was stable to {self._stable_seen}")
        self._stable_seen = stable


_EPOCH = itemgetter(0)
_START = itemgetter(1)


class EpochEnd(msgspec.Struct, frozen=True):
    """The end of a leader epoch in one log: ``end_offset`` is exclusive, -1 if undefined."""

    leader_epoch: int
    end_offset: int


UNDEFINED_EPOCH_END: Final = EpochEnd(*UNDEFINED_END)
"""The end of an epoch that the log does not know."""


class LeaderEpochs:
    """The leader epochs of one log: sorted (leader epoch, start offset inclusive)."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: list[tuple[int, int]] = []
        for leader_epoch, start_offset in entries:
            self.assign(leader_epoch, start_offset)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """All (leader epoch, start offset), oldest first."""
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch, -1 if there is none."""
        return self._entries[-1][0] if self._entries else NO_LEADER_EPOCH

    @property
    def latest_start_offset(self) -> int:
        """Where the newest leader epoch began, -1 if there is none."""
        return self._entries[-1][1] if self._entries else NO_OFFSET

    def assign(self, leader_epoch: int, start_offset: int) -> bool:
        """Enter an epoch at its start offset; False if nothing changed."""
        if self._entries:
            latest_epoch, latest_start = self._entries[-1]
            if leader_epoch == latest_epoch and start_offset >= latest_start:
                return False
            keep = min(
                bisect_left(self._entries, leader_epoch, key=_EPOCH),
                bisect_left(self._entries, start_offset, key=_START),
            )
            del self._entries[keep:]
        self._entries.append((leader_epoch, start_offset))
        return True

    def end_offset_for(self, leader_epoch: int, *, log_end_offset: int) -> EpochEnd:
        """Where ``leader_epoch`` ends in this log; a follower with more of it must truncate."""
        return EpochEnd(*end_of_epoch(self._entries, leader_epoch, log_end_offset=log_end_offset))

    def truncate_end(self, offset: int) -> None:
        """Forget the epochs that began at or after ``offset``, the new log end (exclusive)."""
        self._entries = without_end(self._entries, offset)

    def truncate_start(self, offset: int) -> None:
        """Forget epochs before ``offset``, the new log start, where the first one now begins."""
        self._entries = without_start(self._entries, offset)
