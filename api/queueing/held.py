"""The records of a partition that a worker holds, as runs of offsets with deadlines."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from oncelog.api.records import QueueRecord
from oncelog.storage.model import INT64_MAX

_topic_of: Final = itemgetter(0)
_partition_of: Final = itemgetter(1)
_offset_of: Final = itemgetter(QueueRecord._fields.index("offset"))


class HeldRun(NamedTuple):
    """Offsets from ``first`` to ``last`` (inclusive) that may be worked on until a moment."""

    first: int
    last: int
    deadline_ms: float


class HeldRuns:
    """What a worker holds of one partition: runs that are sorted and do not overlap.

    A batch that is held and given up as a whole costs as much as one record.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[HeldRun] = []

    @property
    def count(self) -> int:
        """How many offsets are held."""
        return sum(run.last - run.first + 1 for run in self._runs)

    def hold(self, runs: Iterable[tuple[int, int]], deadline_ms: float) -> None:
        """Hold these offsets, of which none is held yet."""
        self.restore(HeldRun(first, last, deadline_ms) for first, last in runs)

    def restore(self, runs: Iterable[HeldRun]) -> None:
        """Hold again what ``give_up`` returned."""
        self._runs += runs
        self._runs.sort()

    def give_up(self, first: int, last: int) -> list[HeldRun] | None:
        """Hold these offsets no longer; None, and nothing changes, unless all of them are held."""
        runs = self._runs
        if runs and runs[0].first == first and last < runs[0].last:
            # The usual case of a program that goes on record by record.
            head = runs[0]
            runs[0] = HeldRun(last + 1, head.last, head.deadline_ms)
            return [HeldRun(first, last, head.deadline_ms)]
        begin = end = max(bisect_right(runs, (first, INT64_MAX, 0.0)) - 1, 0)
        position = first
        while position <= last:
            if end == len(runs) or not runs[end].first <= position <= runs[end].last:
                return None
            position = runs[end].last + 1
            end += 1
        given = runs[begin:end]
        kept: list[HeldRun] = []
        if given[0].first < first:
            kept.append(given[0]._replace(last=first - 1))
        if given[-1].last > last:
            kept.append(given[-1]._replace(first=last + 1))
        runs[begin:end] = kept
        given[0] = given[0]._replace(first=first)
        given[-1] = given[-1]._replace(last=last)
        return given

    def has(self, offset: int) -> bool:
        """Whether this offset is held."""
        place = bisect_right(self._runs, (offset, INT64_MAX, 0.0)) - 1
        return place >= 0 and offset <= self._runs[place].last

    def take_overdue(self, now_ms: float) -> list[HeldRun]:
        """Give up what may no longer be worked on."""
        overdue = [run for run in self._runs if run.deadline_ms <= now_ms]
        if overdue:
            self._runs = [run for run in self._runs if run.deadline_ms > now_ms]
        return overdue


def offsets_by_partition(records: Sequence[QueueRecord]) -> dict[tuple[str, int], list[int]]:
    """(topic, partition) → the offsets of its records, in their order."""
    if len(records) == 1:
        return {records[0][:2]: [records[0].offset]}
    if len(set(map(_partition_of, records))) == 1 == len(set(map(_topic_of, records))):
        return {records[0][:2]: list(map(_offset_of, records))}
    found: dict[tuple[str, int], list[int]] = {}
    for record in records:
        found.setdefault((record.topic, record.partition), []).append(record.offset)
    return found


def runs_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Offsets, in any order, as runs (both ends inclusive). One given twice is in two runs."""
    if len(offsets) == 1:
        return [(offsets[0], offsets[0])]
    ordered = sorted(offsets)
    if ordered and ordered == list(range(ordered[0], ordered[0] + len(ordered))):
        return [(ordered[0], ordered[-1])]
    runs: list[tuple[int, int]] = []
    for offset in ordered:
        if runs and runs[-1][1] + 1 == offset:
            runs[-1] = (runs[-1][0], offset)
        else:
            runs.append((offset, offset))
    return runs
