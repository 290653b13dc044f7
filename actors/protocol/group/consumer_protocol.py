"""Bytes of subscriptions and assignments, exactly those of Kafka's consumer protocol.

The group coordinator carries them as opaque bytes; only members read them. Layouts, big-endian::

    subscription   version i16 · topics [string] · user_data bytes?
                   from version 1: owned_partitions [topic string · partitions [i32]]
    assignment     version i16 · partitions [topic string · partitions [i32]] · user_data bytes?

Written: subscription version 1, assignment version 0. Of a newer version
only the known fields are read: new ones are only ever appended.
Source: Kafka's ``ConsumerProtocolSubscription`` and ``ConsumerProtocolAssignment`` schemas;
owned partitions from KIP-429.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from oncelog.actors.protocol.wire import WireReader, WireWriter
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import TopicPartition

PROTOCOL_TYPE: Final = "consumer"
SUBSCRIPTION_VERSION: Final = 1
ASSIGNMENT_VERSION: Final = 0


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """What a member asks for, and what it holds at that moment (empty before version 1)."""

    topics: tuple[str, ...]
    owned_partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a member is given, sorted by topic and partition."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription) -> bytes:
    """The subscription as version 1; topics keep their order, owned partitions are sorted."""
    writer = WireWriter()
    writer.int16(SUBSCRIPTION_VERSION)
    writer.array(subscription.topics, writer.string)
    writer.blob(subscription.user_data)
    _write_partitions(writer, subscription.owned_partitions)
    return bytes(writer.buffer)


def decode_subscription(encoded: bytes) -> Subscription:
    """Read a subscription of any version; ``CorruptDataError`` if it is malformed."""
    reader = WireReader(encoded)
    version = _read_version(reader, "subscription")
    topics = tuple(reader.array(reader.string))
    user_data = reader.nullable_blob()
    owned = _read_partitions(reader) if version >= 1 else ()
    return Subscription(topics=topics, owned_partitions=owned, user_data=user_data)


def encode_assignment(assignment: Assignment) -> bytes:
    """The assignment as version 0, sorted by topic and partition."""
    writer = WireWriter()
    writer.int16(ASSIGNMENT_VERSION)
    _write_partitions(writer, assignment.partitions)
    writer.blob(assignment.user_data)
    return bytes(writer.buffer)


def decode_assignment(encoded: bytes) -> Assignment:
    """Read an assignment of any version; empty bytes mean that nothing was assigned.

    The coordinator gives empty bytes to a member that the leader left out. Raises
    ``CorruptDataError`` if the bytes are malformed.
    """
    if not encoded:
        return Assignment(partitions=())
    reader = WireReader(encoded)
    _read_version(reader, "assignment")
    partitions = _read_partitions(reader)
    return Assignment(partitions=partitions, user_data=reader.nullable_blob())


def _write_partitions(writer: WireWriter, partitions: Iterable[TopicPartition]) -> None:
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        by_topic.setdefault(tp.topic, []).append(tp.partition)

    def write_topic(entry: tuple[str, Sequence[int]]) -> None:
        topic, numbers = entry
        writer.string(topic)
        writer.array(numbers, writer.int32)

    writer.array(list(by_topic.items()), write_topic)


def _read_partitions(reader: WireReader) -> tuple[TopicPartition, ...]:
    def read_topic() -> list[TopicPartition]:
        topic = reader.string()
        return [TopicPartition(topic, number) for number in reader.array(reader.int32)]

    return tuple(tp for entry in reader.array(read_topic) for tp in entry)


def _read_version(reader: WireReader, what: str) -> int:
    version = reader.int16()
    if version < 0:
        raise CorruptDataError(f"{what} has version {version}, the first is 0")
    return version
