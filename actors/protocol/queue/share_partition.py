"""One partition of a share group: the state of its records, as runs of offsets.

Records below ``start_offset`` are done with. From there to ``next_offset`` every offset is in one
run. From ``next_offset`` on nothing was ever acquired.

=============  ============  ===============  ==============  ==========  ===========  ===========
state          acquire       accept [1]_      reject, gap     release     owner goes   txn accept
                                              [1]_            [1]_
=============  ============  ===============  ==============  ==========  ===========  ===========
(beyond)       ACQUIRED, 1   refused          refused         refused                  refused
AVAILABLE      ACQUIRED, +1  refused          refused         refused                  refused
ACQUIRED       skipped       ACKNOWLEDGED     ARCHIVED        AVAILABLE   AVAILABLE    PENDING
PENDING        skipped       refused          refused         refused                  the same
                                                                                       producer's
ACKNOWLEDGED   skipped       refused          refused         refused                  refused
ARCHIVED       skipped       refused          refused         refused                  refused
=============  ============  ===============  ==============  ==========  ===========  ===========

.. [1] By the member that acquired the record, under the member epoch of then; else refused.

A marker ends PENDING: COMMIT with ACKNOWLEDGED, ABORT with AVAILABLE. It changes no other state.
"the same producer's": a repeated call, which changes nothing.

In the order of keys a record is acquired only if no record of its key before it is unfinished; what
is passed over for that stays AVAILABLE. The keys are those of the log: see ``share_keys``. Gaps of
the log become ARCHIVED before anybody acquires: so what is held was a record.

Source: KIP-932, "Share-partition"; KIP-1289 for PENDING.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import partial
from typing import Final

import msgspec
from msgspec import structs

from oncelog.actors.protocol.invariants import invariant
from oncelog.actors.protocol.messages.share import AcknowledgeType
from oncelog.actors.protocol.queue.share_keys import NO_KEY, NO_RECORD, UNREADABLE

LOCKS_MAX: Final = 10_000
"""Offsets of one partition that were acquired and are not done with; no more are acquired.

So there are at most twice as many runs, and one.
"""


ORDERED_LOCKS_MAX: Final = 2_000
"""As ``LOCKS_MAX``, of a group in the order of keys; what waits for its key counts too.

Lower, since what is passed over cuts the rest into short runs, and each turn writes all of them.
"""


class RecordState(enum.IntEnum):
    """The states of a record in a share group."""

    AVAILABLE = 0
    ACQUIRED = 1
    PENDING = 2
    """Accepted in a transaction whose marker has not come."""
    ACKNOWLEDGED = 3
    ARCHIVED = 4


DONE: Final = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})

_AFTER: Final = {
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
}


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Offsets from ``first`` to ``last`` (inclusive) in one state.

    ``owner`` is the member epoch if ACQUIRED, the producer id if PENDING, else 0. ``sequence`` is
    that of the acquisition if ACQUIRED, else 0. ``delivery_count`` is 0 once the run is done.
    """

    first: int
    last: int
    state: RecordState
    delivery_count: int = 0
    owner: int = 0
    sequence: int = 0

    @property
    def count(self) -> int:
        """How many offsets it has."""
        return self.last - self.first + 1

    def moved(self, state: RecordState, *, owner: int = 0) -> Run:
        """The run in another state, which no member holds."""
        delivery_count = 0 if state in DONE else self.delivery_count
        return Run(self.first, self.last, state, delivery_count, owner)

    def continues(self, former: Run) -> bool:
        """Whether it and ``former``, which ends before it, are one run."""
        return (
            former.last + 1 == self.first
            and former.state is self.state
            and former.delivery_count == self.delivery_count
            and former.owner == self.owner
            and former.sequence == self.sequence
        )


class SharePartition:
    """The runs of one partition. Invariant: they are adjacent, and begin at ``start_offset``."""

    __slots__ = ("runs", "start_offset", "topic_id")

    def __init__(self, topic_id: str, start_offset: int, runs: Iterable[Run] = ()) -> None:
        self.topic_id = topic_id
        self.start_offset = start_offset
        self.runs = list(runs)

    def copy(self) -> SharePartition:
        """A partition that changes on its own."""
        return SharePartition(self.topic_id, self.start_offset, self.runs)

    @property
    def next_offset(self) -> int:
        """The end (exclusive) of what was ever acquired."""
        return self.runs[-1].last + 1 if self.runs else self.start_offset

    def count(self, state: RecordState) -> int:
        """How many offsets of the runs are in ``state``."""
        return sum(run.count for run in self.runs if run.state is state)

    # --- acquire --------------------------------------------------------------------------

    def acquire(
        self,
        end_offset: int,
        count_max: int,
        *,
        owner: int,
        sequence: int,
        keys: Mapping[int, int] | None = None,
    ) -> list[Run]:
        """Acquire up to ``count_max`` available offsets below ``end_offset``, the lowest first.

        Fewer if that would make more than ``LOCKS_MAX`` unfinished. With ``keys``, what is known of
        the key at each offset, in their order; see ``first_of_keys``.
        """
        taken: list[Run] = []
        locks_max = LOCKS_MAX if keys is None else ORDERED_LOCKS_MAX
        unfinished = self.unfinished(end_offset, locks_max)
        if keys is not None:
            available = first_of_keys(unfinished, keys, count_max)
        else:
            available = [run for run in unfinished if _is_available(run)]
        for run in available:
            if count_max <= 0:
                break
            last = min(run.last, run.first + count_max - 1)
            state, delivery_count = RecordState.ACQUIRED, run.delivery_count + 1
            acquired = Run(run.first, last, state, delivery_count, owner, sequence)
            if run.first >= self.next_offset:
                if run.first > self.next_offset:
                    self._append(Run(self.next_offset, run.first - 1, RecordState.AVAILABLE))
                self._append(acquired)
            else:
                self._change(run.first, last, partial(_replaced, acquired))
            taken.append(acquired)
            count_max -= acquired.count
        return taken

    def unfinished(self, end_offset: int, locks_max: int) -> list[Run]:
        """The runs that are not done with, and what may be acquired beyond them."""
        runs = [run for run in self.runs if run.state not in DONE]
        room = locks_max - sum(run.count for run in runs)
        beyond = min(end_offset, self.next_offset + room)
        if self.next_offset < beyond:
            runs.append(Run(self.next_offset, beyond - 1, RecordState.AVAILABLE))
        return runs

    def spans(self, end_offset: int) -> list[tuple[int, int]]:
        """The offsets (both ends inclusive) whose keys count in the order of keys."""
        return [(run.first, run.last) for run in self.unfinished(end_offset, ORDERED_LOCKS_MAX)]

    def held(self, owner: int, sequence: int | None = None) -> list[Run]:
        """The runs that a member holds, or of them those of one acquisition."""
        return [
            run
            for run in self.runs
            if run.state is RecordState.ACQUIRED
            and run.owner == owner
            and sequence in (None, run.sequence)
        ]

    # --- acknowledge ----------------------------------------------------------------------

    def acknowledge(self, first: int, last: int, kind: AcknowledgeType, *, owner: int) -> bool:
        """Acknowledge what ``owner`` holds; false, and nothing changes, if it does not hold all."""
        if not self._are_all(first, last, RecordState.ACQUIRED, owner):
            return False
        state = _AFTER[kind]
        self._change(first, last, lambda run: run.moved(state))
        return True

    def is_held(self, first: int, last: int, *, owner: int) -> bool:
        """Whether ``owner`` holds all of these offsets."""
        return self._are_all(first, last, RecordState.ACQUIRED, owner)

    def is_pending(self, first: int, last: int, *, producer_id: int) -> bool:
        """Whether a transaction of this producer has accepted all of these offsets."""
        return self._are_all(first, last, RecordState.PENDING, producer_id)

    def accept_pending(self, first: int, last: int, *, producer_id: int) -> None:
        """A transaction has accepted these offsets.

        Only what is acquired changes. While a compacted log is replayed that may be less than all:
        then a record of the whole partition follows.
        """
        first, last = max(first, self.start_offset), min(last, self.next_offset - 1)
        if first <= last:
            self._change(first, last, partial(_accepted, producer_id))

    def archive_below(self, offset: int) -> bool:
        """Archive what nobody holds below ``offset``, where the log begins; whether it was any."""
        if self.next_offset < offset:
            self._append(Run(self.next_offset, offset - 1, RecordState.AVAILABLE))
        found = [run for run in self.runs if run.first < offset and _is_available(run)]
        for run in found:
            last = min(run.last, offset - 1)
            self._change(run.first, last, lambda part: part.moved(RecordState.ARCHIVED))
        return bool(found)

    def archive_gaps(self, end_offset: int, gaps: Set[int]) -> bool:
        """Archive which of ``gaps`` below ``end_offset`` nobody holds; whether it was any.

        Only as many offsets count as may be unfinished, so what is archived makes room for more.
        """
        is_any = False
        while gaps and (found := self._available(end_offset, gaps)):
            is_any = True
            for first, last in found:
                if self.next_offset <= last:
                    self._append(Run(self.next_offset, last, RecordState.AVAILABLE))
                self._change(first, last, lambda part: part.moved(RecordState.ARCHIVED))
        return is_any

    def end_transaction(self, producer_id: int, *, committed: bool) -> bool:
        """Its marker has come; returns whether anything was pending."""
        state = RecordState.ACKNOWLEDGED if committed else RecordState.AVAILABLE
        return self._move_all(RecordState.PENDING, producer_id, state)

    def release_all(self, owner: int) -> bool:
        """Make available what a member holds; returns whether it held anything."""
        return self._move_all(RecordState.ACQUIRED, owner, RecordState.AVAILABLE)

    # --- runs -----------------------------------------------------------------------------

    def _are_all(self, first: int, last: int, state: RecordState, owner: int) -> bool:
        if not self.start_offset <= first <= last < self.next_offset:
            return False
        return all(run.state is state and run.owner == owner for run in self._over(first, last))

    def _available(self, end_offset: int, offsets: Set[int]) -> list[tuple[int, int]]:
        """Which of ``offsets`` are available, as spans, ascending, both ends inclusive."""
        spans: list[tuple[int, int]] = []
        for run in filter(_is_available, self.unfinished(end_offset, ORDERED_LOCKS_MAX)):
            for offset in range(run.first, run.last + 1):
                if offset not in offsets:
                    continue
                if spans and spans[-1][1] + 1 == offset:
                    spans[-1] = (spans[-1][0], offset)
                else:
                    spans.append((offset, offset))
        return spans

    def _over(self, first: int, last: int) -> Iterator[Run]:
        """The runs that overlap these offsets, of which all are in runs."""
        place = self._place(first)
        while place < len(self.runs) and self.runs[place].first <= last:
            yield self.runs[place]
            place += 1

    def _place(self, offset: int) -> int:
        """The index of the run that has ``offset``."""
        return bisect_right(self.runs, offset, key=lambda run: run.first) - 1

    def _append(self, run: Run) -> None:
        if self.runs and run.continues(self.runs[-1]):
            former = self.runs.pop()
            run = structs.replace(run, first=former.first)
        self.runs.append(run)

    def _change(self, first: int, last: int, change: Callable[[Run], Run]) -> None:
        """Replace the runs of these offsets; join what is equal, and advance the start."""
        begin = end = self._place(first)
        parts: list[Run] = []
        while end < len(self.runs) and self.runs[end].first <= last:
            run = self.runs[end]
            if run.first < first:
                parts.append(structs.replace(run, last=first - 1))
            middle = structs.replace(run, first=max(run.first, first), last=min(run.last, last))
            parts.append(change(middle))
            if run.last > last:
                parts.append(structs.replace(run, first=last + 1))
            end += 1
        # A neighbour may be of the same kind as what has changed.
        before, after = max(begin - 1, 0), end + 1
        self.runs[before:after] = _joined([*self.runs[before:begin], *parts, *self.runs[end:after]])
        self._advance()

    def _move_all(self, state: RecordState, owner: int, after: RecordState) -> bool:
        found = any(run.state is state and run.owner == owner for run in self.runs)
        if found:
            self.runs = _joined(
                run.moved(after) if run.state is state and run.owner == owner else run
                for run in self.runs
            )
            self._advance()
        return found

    def _advance(self) -> None:
        """Drop what is done with at the start."""
        count = 0
        for run in self.runs:
            if run.state not in DONE:
                break
            self.start_offset = run.last + 1
            count += 1
        del self.runs[:count]

    def check(self) -> None:
        """Raise ``InvariantViolation`` unless the runs are adjacent and joined."""
        expected, former = self.start_offset, None
        for run in self.runs:
            is_sound = run.first == expected <= run.last
            if not is_sound or (former is not None and run.continues(former)):
                invariant(False, "I-29", f"{run} after {former}, start {self.start_offset}")
            expected, former = run.last + 1, run


_LOST: Final = frozenset({NO_RECORD, UNREADABLE})
_FREE: Final = frozenset({NO_KEY, *_LOST})


def first_of_keys(runs: Iterable[Run], keys: Mapping[int, int], count_max: int) -> list[Run]:
    """The first ``count_max`` available offsets of ``runs`` that no earlier one of them holds up.

    A record is held up by each before it that has its key. One without a key is not, nor does it
    hold up others. A record that somebody holds and that the log has no longer, or that is damaged,
    may have had any key: it holds up all that have one. Nothing is known beyond the first offset
    that is not in ``keys``.
    """
    found: list[Run] = []
    busy: set[int] = set()
    is_any_busy = False
    for run in runs:
        for offset in range(run.first, run.last + 1):
            key = keys.get(offset)
            if key is None or count_max <= 0:
                return found
            if not _is_available(run):
                is_any_busy = is_any_busy or key in _LOST
            elif key in _FREE or not (is_any_busy or key in busy):
                count_max -= 1
                one = structs.replace(run, first=offset, last=offset)
                if found and one.continues(found[-1]):
                    one = structs.replace(one, first=found.pop().first)
                found.append(one)
            busy.add(key)
    return found


def _joined(runs: Iterable[Run]) -> list[Run]:
    joined: list[Run] = []
    for run in runs:
        if joined and run.continues(joined[-1]):
            joined[-1] = structs.replace(run, first=joined[-1].first)
        else:
            joined.append(run)
    return joined


def _replaced(acquired: Run, part: Run) -> Run:
    return structs.replace(acquired, first=part.first, last=part.last)


def _accepted(producer_id: int, run: Run) -> Run:
    if run.state is not RecordState.ACQUIRED:
        return run
    return run.moved(RecordState.PENDING, owner=producer_id)


def _is_available(run: Run) -> bool:
    return run.state is RecordState.AVAILABLE
