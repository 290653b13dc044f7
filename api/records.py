"""A consumer's records, and the identity that it passes to a producer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from oncelog.storage.model import TopicPartition

_moments: Final = itertools.count(1)
_THIS_PROCESS: Final = object()
"""Compared by identity, which is lost when a copy is pickled for another process."""


def next_moment() -> int:
    """A number above all earlier ones in this process, from any thread; orders events."""
    return next(_moments)


class ConsumerRecord(NamedTuple):
    """One record as it is in the log. ``headers`` keeps order and repeated names.

    ``timestamp_ms`` is in ms since the epoch. A named tuple because one is made per record: it
    costs a third of a frozen dataclass.
    """

    topic: str
    partition: int
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
    has read from one of them is not committed: its new owner reads the same records again.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict, compare=False)
    given_up: Mapping[TopicPartition, GivenUpInput] = field(
        default_factory=dict, compare=False, repr=False
    )
