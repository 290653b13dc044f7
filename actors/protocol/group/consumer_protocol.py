"""What group members exchange: subscriptions and assignments.

The group coordinator passes them on as opaque bytes; only members read them. The bytes are those of
Kafka's consumer protocol. Layouts, big-endian::

    subscription   version i16 · topics [string] · user_data bytes?
                   from version 1: owned_partitions [topic string · partitions [i32]]
                   from version 2: generation_id i32, in which it owned them, or -1
    assignment     version i16 · partitions [topic string · partitions [i32]] · user_data bytes?

Subscription version 2 and assignment version 0 are written. Of a newer version only the known
fields are read: new fields are only ever appended.

An *assignor* is a pure function from members and topics to an assignment. It runs in the client
that leads the group, so its result must depend only on the arguments. Each partition of a known
topic that has a subscriber goes to exactly one member; unknown topics are left out. Members are
taken in a fixed order: those with a ``group_instance_id`` first, by it, then the others by
``member_id``, so that a static member keeps its share when its member id changes.

Source: Kafka's ``ConsumerProtocolSubscription`` and ``ConsumerProtocolAssignment`` schemas; owned
partitions and *cooperative-sticky* from KIP-429, the generation from KIP-792. Kafka's
``RangeAssignor`` and ``RoundRobinAssignor``; KIP-54 for the goals of *sticky*, KIP-345 for the
order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from oncelog.actors.protocol.wire import WireReader, WireWriter
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import TopicPartition

PROTOCOL_TYPE: Final = "consumer"
SUBSCRIPTION_VERSION: Final = 2
ASSIGNMENT_VERSION: Final = 0
COOPERATIVE_STICKY: Final = "cooperative-sticky"
"""The assignor of cooperative rebalances; the others are for eager ones only."""

NO_GENERATION: Final = -1


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """The topics a member asks for, and the partitions it holds (empty before version 1).

    ``generation_id`` is the generation that gave it these partitions (-1 before version 2).
    """

    topics: tuple[str, ...]
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    user_data: bytes | None = None


class ConsumerAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a member is given, sorted by topic and partition."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription) -> bytes:
    """The subscription as version 2; topics keep their order, owned partitions are sorted."""
    writer = WireWriter()
    writer.int16(SUBSCRIPTION_VERSION)
    writer.array(subscription.topics, writer.string)
    writer.blob(subscription.user_data)
    _write_partitions(writer, subscription.owned_partitions)
    writer.int32(subscription.generation_id)
    return bytes(writer.buffer)


def decode_subscription(encoded: bytes) -> Subscription:
    """Read a subscription of any version; ``CorruptDataError`` if it is malformed."""
    reader = WireReader(encoded)
    version = _read_version(reader, "subscription")
    topics = tuple(reader.array(reader.string))
    user_data = reader.nullable_blob()
    owned = _read_partitions(reader) if version >= 1 else ()
    generation_id = reader.int32() if version >= 2 else NO_GENERATION
    return Subscription(
        topics=topics,
        owned_partitions=owned,
        generation_id=generation_id,
        user_data=user_data,
    )


def encode_assignment(assignment: ConsumerAssignment) -> bytes:
    """The assignment as version 0, sorted by topic and partition."""
    writer = WireWriter()
    writer.int16(ASSIGNMENT_VERSION)
    _write_partitions(writer, assignment.partitions)
    writer.blob(assignment.user_data)
    return bytes(writer.buffer)


def decode_assignment(encoded: bytes) -> ConsumerAssignment:
    """Read an assignment of any version; empty bytes mean that nothing was assigned.

    The coordinator gives empty bytes to a member that the leader left out. Raises
    ``CorruptDataError`` if the bytes are malformed.
    """
    if not encoded:
        return ConsumerAssignment(partitions=())
    reader = WireReader(encoded)
    _read_version(reader, "assignment")
    partitions = _read_partitions(reader)
    return ConsumerAssignment(partitions=partitions, user_data=reader.nullable_blob())


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


# --- assignors -------------------------------------------------------------------------------


class Subscriber(msgspec.Struct, frozen=True, kw_only=True):
    """A member as an assignor sees it; only the sticky ones look at what it owns."""

    member_id: str
    group_instance_id: str | None = None
    topics: tuple[str, ...]
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION


AssignmentPlan = dict[str, tuple[TopicPartition, ...]]
"""Member id to its partitions, sorted; every member has an entry, perhaps an empty one."""

Assignor = Callable[[Sequence[Subscriber], Mapping[str, int]], AssignmentPlan]
"""Members and the partition count of each known topic to the plan."""


def assign_range(
    subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
) -> AssignmentPlan:
    """Per topic, each member gets one contiguous range; if uneven, the first ones get one more."""
    ordered = _in_order(subscribers)
    owned: dict[str, list[TopicPartition]] = {member.member_id: [] for member in ordered}
    for topic in _topics(ordered, partition_counts):
        readers = [member for member in ordered if topic in member.topics]
        size, extra = divmod(partition_counts[topic], len(readers))
        first = 0
        for place, member in enumerate(readers):
            end = first + size + (1 if place < extra else 0)
            owned[member.member_id] += [TopicPartition(topic, n) for n in range(first, end)]
            first = end
    return _plan(owned)


def assign_round_robin(
    subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
) -> AssignmentPlan:
    """Deal all partitions in order around the members, skipping those not subscribed."""
    ordered = _in_order(subscribers)
    owned: dict[str, list[TopicPartition]] = {member.member_id: [] for member in ordered}
    circle = itertools.cycle(ordered)
    for tp in _partitions(ordered, partition_counts):
        member = next(member for member in circle if tp.topic in member.topics)
        owned[member.member_id].append(tp)
    return _plan(owned)


def assign_sticky(
    subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
) -> AssignmentPlan:
    """Keep what members hold, deal out the rest, then move single partitions while that evens out.

    With equal subscriptions no two shares then differ by more than one. Of two members that claim a
    partition, one has missed a rebalance. It stays with the one of the later generation, and with
    neither if their generations are the same.
    """
    ordered = _in_order(subscribers)
    wanted = _partitions(ordered, partition_counts)
    owned = _still_owned(ordered, set(wanted))
    kept = {tp for partitions in owned.values() for tp in partitions}
    for tp in wanted:
        if tp not in kept:
            _least_loaded(ordered, owned, tp.topic)[1].append(tp)
    _level(ordered, owned)
    return _plan(owned)


def assign_cooperative_sticky(
    subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
) -> AssignmentPlan:
    """As *sticky*, but a partition that another member still holds is left out.

    That member sees that it has to give the partition up, does so, and joins again; the next
    generation then assigns it. So no partition has two owners although members go on reading while
    they join. A member that has given up all before it joined, as eager ones do, holds nothing.
    """
    plan = assign_sticky(subscribers, partition_counts)
    holders: dict[TopicPartition, list[Subscriber]] = {}
    for member in subscribers:
        for tp in set(member.owned_partitions):
            holders.setdefault(tp, []).append(member)

    def is_free(member_id: str, tp: TopicPartition) -> bool:
        own = [one.generation_id for one in holders.get(tp, ()) if one.member_id == member_id]
        others = [one.generation_id for one in holders.get(tp, ()) if one.member_id != member_id]
        return not others or (bool(own) and own[0] > max(others))

    return {
        member_id: tuple(tp for tp in partitions if is_free(member_id, tp))
        for member_id, partitions in plan.items()
    }


ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {
        "range": assign_range,
        "roundrobin": assign_round_robin,
        "sticky": assign_sticky,
        COOPERATIVE_STICKY: assign_cooperative_sticky,
    }
)
"""The assignors by protocol name, as given when joining a group."""


def _in_order(subscribers: Sequence[Subscriber]) -> list[Subscriber]:
    return sorted(
        subscribers,
        key=lambda member: (
            member.group_instance_id is None,
            member.group_instance_id or member.member_id,
        ),
    )


def _topics(subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]) -> list[str]:
    """The known topics with a subscriber, sorted."""
    return sorted(
        {topic for member in subscribers for topic in member.topics if topic in partition_counts}
    )


def _partitions(
    subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
) -> list[TopicPartition]:
    return [
        TopicPartition(topic, partition)
        for topic in _topics(subscribers, partition_counts)
        for partition in range(partition_counts[topic])
    ]


def _still_owned(
    subscribers: Sequence[Subscriber], wanted: set[TopicPartition]
) -> dict[str, list[TopicPartition]]:
    """What each member still subscribes to and holds alone, or in the latest generation."""
    claims: dict[TopicPartition, list[int]] = {}
    for member in subscribers:
        for tp in set(member.owned_partitions):
            claims.setdefault(tp, []).append(member.generation_id)
    latest = {
        tp: max(generations)
        for tp, generations in claims.items()
        if generations.count(max(generations)) == 1
    }
    return {
        member.member_id: [
            tp
            for tp in sorted(set(member.owned_partitions))
            if tp in wanted and tp.topic in member.topics and latest.get(tp) == member.generation_id
        ]
        for member in subscribers
    }


def _least_loaded(
    subscribers: Sequence[Subscriber], owned: dict[str, list[TopicPartition]], topic: str
) -> tuple[Subscriber, list[TopicPartition]]:
    """The subscriber of ``topic`` with the fewest partitions; of equals, the first."""
    member = min(
        (member for member in subscribers if topic in member.topics),
        key=lambda member: len(owned[member.member_id]),
    )
    return member, owned[member.member_id]


def _level(subscribers: Sequence[Subscriber], owned: dict[str, list[TopicPartition]]) -> None:
    """Move partitions, each from the longest share that may give one to a much shorter one.

    Every move takes one from a share and gives it to one at least two shorter, which lowers
    the sum of squares, so the loop ends. One at a time, so that no share gets back what it gave.
    """
    while any(
        _gives_one(giver, subscribers, owned)
        for giver in sorted(subscribers, key=lambda member: -len(owned[member.member_id]))
    ):
        pass


def _gives_one(
    giver: Subscriber, subscribers: Sequence[Subscriber], owned: dict[str, list[TopicPartition]]
) -> bool:
    """Move one partition away from ``giver``, if that evens out; whether it did."""
    share = owned[giver.member_id]
    for topic in sorted({tp.topic for tp in share}, reverse=True):
        taker, other = _least_loaded(subscribers, owned, topic)
        if len(other) + 1 < len(share) and taker is not giver:
            tp = max(tp for tp in share if tp.topic == topic)
            share.remove(tp)
            other.append(tp)
            return True
    return False


def _plan(owned: dict[str, list[TopicPartition]]) -> AssignmentPlan:
    return {member_id: tuple(sorted(partitions)) for member_id, partitions in owned.items()}
