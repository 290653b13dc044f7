"""Subscriptions and assignments: the bytes of Kafka's clients, read by theirs and by us."""

from __future__ import annotations

import pytest
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)
from hypothesis import given
from hypothesis import strategies as st

from oncelog.actors.protocol.group.consumer_protocol import (
    ConsumerAssignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import TopicPartition

OWNED = (TopicPartition("b", 0), TopicPartition("b", 2), TopicPartition("a", 1))


def test_subscription_is_that_of_kafka_version_2() -> None:
    subscription = Subscription(topics=("b", "a"), owned_partitions=OWNED, generation_id=7)
    assert encode_subscription(subscription).hex() == (
        "0002"
        "00000002"
        "000162"
        "000161"
        "ffffffff"
        "00000002"
        "000161"
        "00000001"
        "00000001"
        "000162"
        "00000002"
        "00000000"
        "00000002"
        "00000007"
    )


def test_subscription_of_version_1_names_no_generation() -> None:
    subscription = Subscription(topics=("a",), owned_partitions=OWNED[:1], generation_id=7)
    encoded = b"\x00\x01" + encode_subscription(subscription)[2:-4]
    assert decode_subscription(encoded).owned_partitions == OWNED[:1]
    assert decode_subscription(encoded).generation_id == -1


def test_assignment_is_that_of_kafka_version_0() -> None:
    encoded = encode_assignment(ConsumerAssignment(partitions=OWNED, user_data=b"u"))
    assert encoded.hex() == (
        "00000000000200016100000001000000010001620000000200000000000000020000000175"
    )


def test_another_client_reads_our_bytes() -> None:
    encoded = encode_subscription(Subscription(topics=("b", "a"), user_data=b"u"))
    subscription = ConsumerProtocolMemberMetadata.decode(encoded)
    assert (subscription.subscription, subscription.user_data) == (["b", "a"], b"u")
    assignment = ConsumerProtocolMemberAssignment.decode(
        encode_assignment(ConsumerAssignment(partitions=OWNED))
    )
    assert assignment.assignment == [("a", [1]), ("b", [0, 2])]


def test_we_read_the_bytes_of_another_client() -> None:
    subscription = ConsumerProtocolMemberMetadata(0, ["b", "a"], b"u").encode()
    assert decode_subscription(subscription) == Subscription(topics=("b", "a"), user_data=b"u")
    assignment = ConsumerProtocolMemberAssignment(0, [("b", [2, 0])], b"").encode()
    assert decode_assignment(assignment) == ConsumerAssignment(
        partitions=(TopicPartition("b", 2), TopicPartition("b", 0)), user_data=b""
    )


def test_newer_version_is_read_by_its_known_beginning() -> None:
    encoded = encode_subscription(Subscription(topics=("a",), owned_partitions=OWNED))
    newer = b"\x00\x03" + encoded[2:] + b"\xff\xff"
    assert decode_subscription(newer) == decode_subscription(encoded)


def test_no_bytes_mean_that_nothing_was_assigned() -> None:
    assert decode_assignment(b"") == ConsumerAssignment(partitions=())


@pytest.mark.parametrize("encoded", ["", "00", "ffff00000000ffffffff", "000100000001"])
def test_damaged_subscription_is_refused(encoded: str) -> None:
    with pytest.raises(CorruptDataError):
        decode_subscription(bytes.fromhex(encoded))


@given(
    partitions=st.sets(
        st.builds(TopicPartition, st.text("abc", min_size=1, max_size=3), st.integers(0, 2**31 - 1))
    ),
    user_data=st.none() | st.binary(max_size=8),
)
def test_what_is_written_is_read_back_sorted(
    partitions: set[TopicPartition], user_data: bytes | None
) -> None:
    ordered = tuple(sorted(partitions))
    subscription = Subscription(
        topics=tuple({tp.topic for tp in ordered}), owned_partitions=ordered, user_data=user_data
    )
    assert decode_subscription(encode_subscription(subscription)) == subscription
    assignment = ConsumerAssignment(partitions=ordered, user_data=user_data)
    assert decode_assignment(encode_assignment(assignment)) == assignment
