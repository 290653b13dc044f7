"""A consumer's records, and the identity that it passes to a producer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.actors.protocol.messages.share import PartitionAcknowledgements
from oncelog.storage.exceptions import IllegalStateError
from oncelog.storage.model import TopicPartition

_moments: Final = itertools.count(1)
_THIS_PROCESS: Final = object()
"""Compared by identity, which is lost when a copy is pickled for another process."""


def next_moment() -> int:
    """A number above all earlier ones in this process, from any thread; orders events."""
    return next(_moments)


class ConsumerRecord(NamedTuple):
    """One record as it is in the log. ``headers`` keeps order and repeated names.

    ``timestamp_ms`` is in ms since the epoch. ``key`` and ``value`` are bytes or ``None``, or what
    the consumer's deserializers make of them. A named tuple because one is made per record: it
    costs a third of a frozen dataclass.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition the record was read from."""
        return TopicPartition(self.topic, self.partition)


class QueueRecord(NamedTuple):
    """A record that a queue's worker has acquired; see ``ConsumerRecord``.

    ``delivery_count`` is 1 when it is delivered for the first time.
    """

    topic: str
    partition: int
    delivery_count: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition the record was read from."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAcknowledgements:
    """Records that a worker accepts in a transaction, and who it is; see ``Queue``."""

    group_id: str
    member_id: str
    member_epoch: int
    acknowledgements: tuple[PartitionAcknowledgements, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBacklog:
    """What of a queue is not finished, in offsets, markers and aborted records included.

    ``available`` wait for a worker, ``acquired`` are with one, ``pending`` are accepted in
    transactions that have not ended. ``age_ms`` is that of the oldest of all these, 0 if there is
    none. ``workers`` is how many live.
    """

    available: int
    acquired: int
    pending: int
    age_ms: int
    workers: int

    @property
    def total(self) -> int:
        """All that is not finished."""
        return self.available + self.acquired + self.pending


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndTimestamp:
    """A record found by time: its offset and its own timestamp."""

    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUpInput:
    """When a partition was given up, and when the application last got a record of it.

    Both are moments of this process, and mean nothing in another.
    """

    given_up_at: int
    delivered_at: int
    process: object = field(default=_THIS_PROCESS, repr=False)

    @property
    def is_of_this_process(self) -> bool:
        """Whether the moments are of this process."""
        return self.process is _THIS_PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadata:
    """The identity of a member that commits offsets in a transaction; fences zombies (KIP-447).

    A consumer outside a group has ``generation_id`` -1 and ``member_id`` "". ``topic_ids`` has the
    id of each topic read, so that an offset of a deleted topic is not committed for its successor.
    ``given_up`` has the partitions that rebalances have taken from the consumer. A transaction that
    has read from one of them is not committed: its new owner reads the same records again. A member
    that ``delivers_in_commit_order`` commits positions of its consumer, not offsets of records.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict, compare=False)
    given_up: Mapping[TopicPartition, GivenUpInput] = field(
        default_factory=dict, compare=False, repr=False
    )
    delivers_in_commit_order: bool = field(default=False, compare=False)


# --- positions in commit order --------------------------------------------------------------------

_MARK: Final = "commit-order"
"""What the metadata of a committed position begins with."""


class CommitPosition(int):
    """Where a consumer of ``order="commit"`` is in a partition; as an int the offset to read from.

    That offset (inclusive) is the first one of the oldest transaction that was open, or
    ``reading_offset`` if none was. Below ``reading_offset`` (exclusive) everything that was
    complete is delivered, and of what follows in commit order so are ``record_count`` records.
    """

    reading_offset: int
    record_count: int

    def __new__(
        cls, offset: int, reading_offset: int | None = None, record_count: int = 0
    ) -> CommitPosition:
        """Without ``reading_offset`` nothing from ``offset`` on is delivered."""
        made = super().__new__(cls, offset)
        made.reading_offset = offset if reading_offset is None else reading_offset
        made.record_count = record_count
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return (CommitPosition, (int(self), self.reading_offset, self.record_count))

    def __repr__(self) -> str:
        return f"CommitPosition({int(self)}, {self.reading_offset}, {self.record_count})"

    def advanced(self, count: int) -> CommitPosition:
        """The position ``count`` records later."""
        return CommitPosition(int(self), self.reading_offset, self.record_count + count)

    def is_same(self, other: object) -> bool:
        """Whether ``other`` is this position: as an int it may equal one further on."""
        return isinstance(other, CommitPosition) and self.__reduce__() == other.__reduce__()

    def committed(self) -> OffsetAndMetadata:
        """It as a group stores it."""
        metadata = f"{_MARK} {self.reading_offset} {self.record_count}"
        return OffsetAndMetadata(offset=int(self), metadata=metadata)

    @staticmethod
    def of(committed: OffsetAndMetadata) -> CommitPosition:
        """The position that a group has stored.

        One that a consumer in offset order has committed is as good: what it had not delivered of
        a transaction comes when that commits. ``IllegalStateError`` if the metadata of a position
        in commit order is damaged.
        """
        mark, _, numbers = committed.metadata.partition(" ")
        if mark != _MARK:
            return CommitPosition(committed.offset)
        found = numbers.split(" ")
        if len(found) != 2 or not all(text.isascii() and text.isdigit() for text in found):
            raise IllegalStateError(
                f"the committed metadata {committed.metadata!r} is no position in commit order",
                advice="seek, or commit a position of consumer.positions()",
            )
        return CommitPosition(committed.offset, int(found[0]), int(found[1]))


def is_commit_position(committed: OffsetAndMetadata) -> bool:
    """Whether a consumer in commit order can continue exactly there."""
    return committed.metadata.startswith(f"{_MARK} ")


def as_committed(offset: int | OffsetAndMetadata) -> OffsetAndMetadata:
    """An offset in the form a group stores; only a ``CommitPosition`` has metadata."""
    if isinstance(offset, CommitPosition):
        return offset.committed()
    return offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset=offset)


def check_order(committed: OffsetAndMetadata, partition: TopicPartition) -> None:
    """``IllegalStateError`` if a consumer in commit order cannot continue exactly there."""
    if not is_commit_position(committed):
        raise IllegalStateError(
            f"offset {committed.offset} of {partition} says nothing of transactions that are open: "
            "order='commit' would lose their records",
            advice="commit what consumer.positions() returns",
        )
