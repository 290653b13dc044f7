"""Filter pushdown: the filters of a batch read reduce its partitions and offsets. Pure.

| column | filters | Spark evaluates them again |
|---|---|---|
| ``topic`` | ``=``, ``IN``, and ``NOT`` before them | no |
| ``partition`` | likewise, and ``<``, ``<=``, ``>``, ``>=`` | no |
| ``offset`` | ``=``, ``<``, ``<=``, ``>``, ``>=``, ``IN`` | only an ``IN`` with gaps |
| ``timestamp`` | ``=``, ``>``, ``>=``, ``IN``: where to start | yes |
| all of these | ``IS NOT NULL``, which is always true | no |

Timestamps need not rise with offsets. But every record before the first one at or after a time is
older than that time, so a read may start there; no time tells where it may end. All other filters
are left to Spark.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from oncelog.api.distributing.read import PartitionRange
from oncelog.spark_bridge.offsets import Offsets
from oncelog.storage.model import NO_OFFSET, TopicPartition

SPANS_MAX: Final = 16
"""An ``IN`` cuts a partition into at most this many ranges, each read by a task of its own."""

GAP_MIN: Final = 10_000
"""A gap of fewer offsets than this between wanted ones is read too."""

_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**63
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Spans:
    """A set of ints: disjoint spans in order, each from its start to its end (exclusive)."""

    spans: tuple[tuple[int, int], ...] = ((_LOWEST, _HIGHEST),)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Spans:
        """Exactly these numbers."""
        return cls(tuple((number, number + 1) for number in sorted(set(numbers)))).joined(1)

    def joined(self, gap_min: int) -> Spans:
        """These numbers and every gap between them that is shorter than ``gap_min``."""
        spans: list[tuple[int, int]] = []
        for start, end in self.spans:
            if spans and start - spans[-1][1] < gap_min:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((start, end))
        return Spans(tuple(spans))

    def others(self) -> Spans:
        """All other numbers."""
        edges = [_LOWEST, *itertools.chain.from_iterable(self.spans), _HIGHEST]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return Spans(tuple((start, end) for start, end in pairs if start < end))

    def within(self, start: int, end: int) -> list[tuple[int, int]]:
        """These numbers from ``start`` to ``end`` (exclusive), as spans."""
        cut = ((max(start, first), min(end, last)) for first, last in self.spans)
        return [(first, last) for first, last in cut if first < last]

    def both(self, other: Spans) -> Spans:
        """The numbers that are in both."""
        found = (self.within(start, end) for start, end in other.spans)
        return Spans(tuple(itertools.chain.from_iterable(found)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """The topics in ``names``, or all except those."""

    names: frozenset[str]
    are_left_out: bool = False

    def has(self, topic: str) -> bool:
        """Whether ``topic`` is one of them."""
        return (topic in self.names) != self.are_left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """What a read is limited to; by default nothing.

    ``from_ms``: records before the first one at or after this time (ms since the epoch) are not
    wanted; 0 for no limit. ``is_exact``: every record within is wanted, so Spark need not filter.
    """

    topics: tuple[Topics, ...] = ()
    partitions: Spans = Spans()
    offsets: Spans = Spans()
    from_ms: int = 0
    is_exact: bool = True

    def both(self, other: Narrowing) -> Narrowing:
        """The limits of both."""
        return Narrowing(
            topics=self.topics + other.topics,
            partitions=self.partitions.both(other.partitions),
            offsets=self.offsets.both(other.offsets),
            from_ms=max(self.from_ms, other.from_ms),
            is_exact=self.is_exact and other.is_exact,
        )

    def cut(
        self,
        ranges: Iterable[PartitionRange],
        offsets_at: Callable[[Mapping[TopicPartition, int]], Offsets],
    ) -> list[PartitionRange]:
        """Cut ``ranges`` to these limits, in their order.

        ``offsets_at`` returns the first offset at or after a time in each partition, -1 for none.
        It is called only for partitions that are read.
        """
        left = [
            replace(item, start_offset=start, end_offset=end)
            for item in ranges
            if self._has(item.topic_partition)
            for start, end in self.offsets.within(item.start_offset, item.end_offset)
        ]
        if not left or self.from_ms <= 0:
            return left
        found = offsets_at(dict.fromkeys((item.topic_partition for item in left), self.from_ms))
        firsts = ((item, found[item.topic_partition]) for item in left)
        return [
            replace(item, start_offset=max(item.start_offset, first))
            for item, first in firsts
            if first != NO_OFFSET and first < item.end_offset
        ]

    def _has(self, topic_partition: TopicPartition) -> bool:
        place = topic_partition.partition
        return bool(self.partitions.within(place, place + 1)) and all(
            topics.has(topic_partition.topic) for topics in self.topics
        )


def push(filters: Sequence[Filter]) -> tuple[Narrowing, list[Filter]]:
    """Split ``filters``, which must all hold, into a limit and those left to Spark."""
    narrowing, left = Narrowing(), []
    for item in filters:
        found = _narrowing(item)
        if found is None or not found.is_exact:
            left.append(item)
        if found is not None:
            narrowing = narrowing.both(found)
    return narrowing, left


def _narrowing(item: Filter) -> Narrowing | None:
    """The limit that one filter sets; ``None`` if none is known."""
    asked, _ = _without_not(item)
    narrow = _COLUMNS.get(".".join(getattr(asked, "attribute", ())))
    if narrow is None:
        return None
    return Narrowing() if isinstance(item, IsNotNull) else narrow(item)


def _without_not(item: Filter) -> tuple[Filter, bool]:
    """The inner filter, and whether it is negated."""
    return (item.child, True) if isinstance(item, Not) else (item, False)


def _by_topic(item: Filter) -> Narrowing | None:
    asked, is_not = _without_not(item)
    names = _values(asked, str, is_not=is_not)
    if names is None:
        return None
    return Narrowing(topics=(Topics(names=frozenset(names), are_left_out=is_not),))


def _by_partition(item: Filter) -> Narrowing | None:
    asked, is_not = _without_not(item)
    values = _values(asked, int, is_not=is_not)
    spans = _beyond(asked) if values is None else Spans.of(values)
    if spans is None:
        return None
    return Narrowing(partitions=spans.others() if is_not else spans)


def _by_offset(item: Filter) -> Narrowing | None:
    # A ``Not`` is left to Spark: it would take two ranges, and two tasks, to skip a record.
    values = _values(item, int)
    if values is None:
        spans = _beyond(item)
        return None if spans is None else Narrowing(offsets=spans)
    wanted = Spans.of(values)
    spans = wanted.joined(GAP_MIN)
    if len(spans.spans) > SPANS_MAX:
        spans = spans.joined(_HIGHEST - _LOWEST)
    return Narrowing(offsets=spans, is_exact=spans == wanted)


def _by_timestamp(item: Filter) -> Narrowing | None:
    values = _values(item, datetime)
    if isinstance(item, (GreaterThan, GreaterThanOrEqual)):
        values = _typed((item.value,), datetime)
    if not values or any(value.tzinfo is None for value in values):
        return None
    earliest, is_after = min(values) - _EPOCH, isinstance(item, GreaterThan)
    # Records have whole milliseconds: rounded down plus one, or rounded up.
    from_ms = earliest // _MILLISECOND + 1 if is_after else -(-earliest // _MILLISECOND)
    return Narrowing(from_ms=max(from_ms, 0), is_exact=False)


_COLUMNS: Final[Mapping[str, Callable[[Filter], Narrowing | None]]] = {
    "topic": _by_topic,
    "partition": _by_partition,
    "offset": _by_offset,
    "timestamp": _by_timestamp,
}


def _values(item: Filter, kind: type, *, is_not: bool = False) -> list[Any] | None:
    """The values of which the column must have one; ``None`` if ``item`` does not say that.

    A null in an ``IN`` equals nothing. A ``NOT IN`` with a null is never true; that is left to
    Spark.
    """
    if isinstance(item, (EqualTo, EqualNullSafe)):
        return _typed((item.value,), kind)
    if not isinstance(item, In):
        return None
    values = [value for value in item.value if value is not None]
    return None if is_not and len(values) < len(item.value) else _typed(values, kind)


def _typed(values: Collection[Any], kind: type) -> list[Any] | None:
    is_right = all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
    return list(values) if is_right else None


def _beyond(item: Filter) -> Spans | None:
    """The numbers on one side of a bound."""
    if not isinstance(item, (LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual)):
        return None
    if _typed((item.value,), int) is None:
        return None
    # The first number above the bound. If the bound itself is not below, it is the bound.
    edge = item.value + isinstance(item, (LessThanOrEqual, GreaterThan))
    if isinstance(item, (LessThan, LessThanOrEqual)):
        return Spans(((_LOWEST, edge),))
    return Spans(((edge, _HIGHEST),))
