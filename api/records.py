"""What a consumer hands to its user, and the identity it hands to a producer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from oncelog.storage.model import TopicPartition


class ConsumerRecord(NamedTuple):
    """One record as it is in the log. ``headers`` keeps order and repeated names.

    A named tuple because one is made per record: it costs a third of a frozen dataclass.
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
class ConsumerGroupMetadata:
    """Who commits offsets inside a transaction, so that a zombie member is refused (KIP-447).

    ``generation_id`` -1 and ``member_id`` "" stand for a consumer that is no group member.
    ``topic_ids`` has the id of each topic that is read, so that an offset of a deleted topic is
    not taken for one of its successor.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict, compare=False)
