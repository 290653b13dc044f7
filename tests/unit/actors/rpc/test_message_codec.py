"""Messages as bytes: every kind comes back equal, and what is no message is refused."""

from __future__ import annotations

import gc
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType, structs

from oncelog.actors.protocol.messages.access import Limits
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.partition import (
    EndedFetch,
    FetchReply,
    FetchTogetherReply,
    ProduceReply,
    ProduceRequest,
)
from oncelog.actors.protocol.messages.replication import ReplicateRequest
from oncelog.actors.protocol.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES_MAX,
    SALT_BYTES_MIN,
    Credential,
)
from oncelog.actors.rpc import message_codec
from oncelog.actors.rpc.message_codec import (
    LONG_BYTES,
    REQUESTS,
    decode_reply,
    decode_request,
    encode,
    encode_in_parts,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

REQUEST = ProduceRequest(
    topic_partition=TopicPartition("flights", 3), batch=b"\x00" * 100, ticket=b"t"
)


@pytest.fixture(scope="module", autouse=True)
def _garbage_of_other_tests_is_collected_before() -> None:
    """While hypothesis looks at a type, the warning of a socket that is collected is an error."""
    gc.collect()


def push_of(batches: object) -> ReplicateRequest:
    return ReplicateRequest(
        topic_partition=TopicPartition("flights", 3),
        topic_id="a" * 32,
        leader=1,
        leader_epoch=5,
        epoch_start_offset=7,
        previous_end_offset=8,
        previous_leader_epoch=4,
        high_watermark=6,
        log_start_offset=0,
        batches=batches,
    )


def all_request_types() -> set[type]:
    return {
        vars(sys.modules[kind.__module__])[kind.__name__]
        for kind in Request.__subclasses__()
        if kind.__module__.startswith("oncelog.actors.protocol.")
    }


def test_every_request_of_the_protocol_is_known_by_its_method():
    assert set(REQUESTS.values()) == all_request_types()
    assert len(REQUESTS) == len(all_request_types())


st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(
    Credential,
    st.builds(
        Credential,
        salt=st.binary(min_size=SALT_BYTES_MIN, max_size=SALT_BYTES_MAX),
        iterations=st.integers(ITERATIONS_MIN, ITERATIONS_MAX),
        stored_key=st.binary(min_size=32, max_size=32),
        server_key=st.binary(min_size=32, max_size=32),
    ),
)
st.register_type_strategy(
    Limits,
    st.builds(Limits, connections=st.none() | st.integers(1, 9), bytes_per_second=st.just(1)),
)
st.register_type_strategy(UnsetType, st.just(UNSET))


@pytest.mark.parametrize("method", sorted(REQUESTS))
@settings(max_examples=8)
@given(data=st.data())
def test_every_request_and_reply_comes_back_equal(method, data):
    request = data.draw(st.from_type(REQUESTS[method]))
    assert decode_request(method, memoryview(encode(request))) == request
    reply = data.draw(st.from_type(REQUESTS[method].reply_type))
    assert decode_reply(method, memoryview(encode(reply))) == reply


def test_codes_come_back_as_the_same_members():
    reply = ProduceReply(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, detail="moved", base_offset=7)
    assert decode_reply("produce", encode(reply)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_throttle_is_in_the_bytes_only_if_there_is_one():
    reply = ProduceReply(base_offset=7)
    as_before = {
        name: getattr(reply, name) for name in reply.__struct_fields__ if name != "throttle_ms"
    }
    assert encode(reply) == msgspec.msgpack.encode(as_before)
    throttled = structs.replace(reply, throttle_ms=300)
    assert decode_reply("produce", encode(throttled)) == throttled


@pytest.mark.parametrize("size_bytes", [0, 1, LONG_BYTES, LONG_BYTES + 1, 70_000, 2**24])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_parts_are_the_message_and_a_long_batch_is_not_copied(size_bytes, kind):
    batch = kind(bytes(size_bytes))
    request = structs.replace(REQUEST, batch=batch)
    reply = FetchReply(high_watermark=7, records=batch, aborted_transactions=())
    for message, decode, method in (
        (request, decode_request, "produce"),
        (push_of(batch), decode_request, "replicate"),
        (reply, decode_reply, "fetch"),
    ):
        parts = encode_in_parts(message)
        assert decode(method, b"".join(parts)) == message
        assert (parts[-1] is batch) == (size_bytes > LONG_BYTES)


@pytest.mark.parametrize("sizes", [(), (0,), (3, 5), (70_000, 0, LONG_BYTES), (1,) * 20_000])
def test_the_batches_of_several_fetches_are_parts_and_none_is_copied(sizes):
    records = tuple(bytes(size) for size in sizes)
    ended = tuple(EndedFetch(number=n, reply=FetchReply()) for n in range(len(sizes)))
    reply = FetchTogetherReply(is_new=True, ended=ended, records=records)
    parts = encode_in_parts(reply)
    assert decode_reply("fetch_together", b"".join(parts)) == reply
    is_long = sum(sizes) > LONG_BYTES
    assert [part for part in parts[2::2] if is_long] == (list(records) if is_long else [])
    assert all(part is batch for part, batch in zip(parts[2::2], records, strict=False))


@pytest.mark.parametrize("batch", [None, "x" * 20_000, [0] * 20_000])
def test_what_is_no_batch_is_no_part(batch):
    parts = encode_in_parts(structs.replace(REQUEST, batch=batch))
    assert len(parts) == 1
    with pytest.raises(ValueError, match="batch"):
        decode_request("produce", parts[0])


def test_a_batch_is_read_without_a_copy():
    buffer = bytearray(encode(REQUEST))
    request = decode_request("produce", memoryview(buffer))
    assert request == REQUEST
    buffer[-1] ^= 1
    assert request != REQUEST


@pytest.mark.parametrize("acks", [2**64, -(2**63) - 1, object(), "\ud800"])
def test_what_cannot_be_sent_is_a_value_error(acks):
    with pytest.raises(ValueError, match="ProduceRequest cannot be sent"):
        encode(structs.replace(REQUEST, acks=acks))


def test_unknown_fields_are_skipped_and_missing_ones_have_their_default():
    newer = msgspec.to_builtins(ProduceReply(base_offset=7)) | {"from_a_later_version": 1}
    del newer["log_start_offset"]
    assert decode_reply("produce", msgspec.msgpack.encode(newer)) == ProduceReply(base_offset=7)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode(REQUEST)[:-1],
        encode(REQUEST) + b"\x00",
        msgspec.msgpack.encode({"batch": b""}),
        msgspec.msgpack.encode(msgspec.to_builtins(REQUEST) | {"acks": "all"}),
    ],
    ids=["empty", "no MessagePack", "cut", "more than one", "fields missing", "wrong type"],
)
def test_what_is_no_request_is_a_value_error(data):
    with pytest.raises(ValueError, match=r"\w"):
        decode_request("produce", data)


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_a_request_or_a_value_error(data):
    for method in ("produce", "end_txn", "metadata"):
        try:
            request = decode_request(method, data)
        except ValueError:
            continue
        assert isinstance(request, REQUESTS[method])


def test_a_message_of_another_actor_is_not_taken_for_ours():
    class OtherProduce(Request[ProduceReply], frozen=True):
        method = "produce"
        reply_type = ProduceReply

    assert message_codec.answers_on_connections(REQUEST)
    assert not message_codec.answers_on_connections(OtherProduce())
