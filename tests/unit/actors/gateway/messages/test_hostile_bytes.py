"""Whatever bytes come, a decoder gives a request or a ``MalformedError``, and takes no more memory.

The bytes are valid requests of every version, changed.
"""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.actors.gateway.messages import primitives
from oncelog.actors.gateway.messages.apis import APIS, ApiKey
from oncelog.actors.gateway.messages.primitives import MalformedError

HUGE = (
    b"\x7f\xff",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xfe",
    b"\xff\xff\x7f",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff",
)
"""Counts and lengths of each form: the largest, -2, and a varint without an end."""

MEMORY_MAX_BYTES = 64_000
"""Above what a valid request of the samples takes by far; what hostile counts claim is more."""


each_api = pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)


def decode(sample, data):
    """The request, or ``None`` if the bytes are refused; any other error fails the test."""
    try:
        return sample.api.decode[sample.version](memoryview(data), 0)
    except MalformedError:
        return None


def assert_request_or_malformed(sample, data):
    """As ``decode`` says; and a request is one of the sample's API."""
    decoded = decode(sample, data)
    assert decoded is None or type(decoded) is type(decode(sample, sample.data))


def requests(samples, api):
    return [one for one in samples if one.is_request and one.api is api]


@each_api
def test_a_request_that_is_cut_short_is_malformed(samples, api):
    for sample in requests(samples, api):
        whole = sample.data
        for end in range(len(whole)):
            assert decode(sample, whole[:end]) is None, (sample.name, end)
        assert decode(sample, whole) is not None


@each_api
def test_bytes_after_the_end_of_a_request_are_left(samples, api):
    """Some clients send more than a version has, as librdkafka does, and Kafka takes it."""
    for sample in requests(samples, api):
        decoded = decode(sample, sample.data + b"\x00\x00\x00")
        assert decoded == decode(sample, sample.data)


@each_api
def test_huge_counts_and_lengths_take_no_memory(samples, api):
    tracemalloc.start()
    try:
        for sample in requests(samples, api):
            for claimed in HUGE:
                for position in range(len(sample.data)):
                    rest = sample.data[position + len(claimed) :]
                    decode(sample, sample.data[:position] + claimed + rest)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX_BYTES
    finally:
        tracemalloc.stop()


@each_api
@given(st.data())
def test_changed_bytes_are_a_request_or_malformed(samples, api, data):
    sample = data.draw(st.sampled_from(requests(samples, api)))
    changed = bytearray(sample.data)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(changed)))
        taken = data.draw(st.integers(0, 5))
        changed[position : position + taken] = data.draw(st.binary(max_size=6))
    assert_request_or_malformed(sample, bytes(changed))


@pytest.mark.parametrize("api_key", [ApiKey.PRODUCE, ApiKey.HEARTBEAT])
def test_a_string_longer_than_kafka_allows_is_malformed(api_key):
    version = APIS[api_key].versions[-1]
    for size, is_read in ((32_767, True), (32_768, False)):
        out = bytearray()
        primitives.put_varint(out, size + 1)
        with pytest.raises(MalformedError) as caught:
            APIS[api_key].decode[version](memoryview(bytes(out) + b"s" * size), 0)
        assert ("string of 32768 bytes is too long" in str(caught.value)) != is_read


@each_api
@given(st.data())
def test_random_bytes_are_a_request_or_malformed(samples, api, data):
    sample = data.draw(st.sampled_from(requests(samples, api)))
    assert_request_or_malformed(sample, data.draw(st.binary(max_size=200)))


PRODUCE_9 = "00 0001 00000001"
"""No transactional id, acks and a timeout."""


@pytest.mark.parametrize(
    ("key", "version", "data", "message"),
    [
        (0, 3, "fffe", "transactional_id at byte 2: -2 bytes wanted, 0 are left"),
        (0, 3, "0001 ff", "transactional_id at byte 2: 'utf-8' codec"),
        (0, 3, "ffff 00", "acks at byte 2"),
        (0, 3, "ffff 0001 00000001 7fffffff", "topic_data at byte 12: 2147483647 items"),
        (0, 3, "ffff 0001 00000001 ffffffff", "topic_data at byte 12: null"),
        (0, 9, "8080808080808001", "transactional_id at byte 0: varint is cut short"),
        (0, 9, "ffffffff1f", "transactional_id at byte 0: varint is cut short"),
        (0, 9, f"{PRODUCE_9} 02 00 0000", "name at byte 9: null"),
        (0, 9, f"{PRODUCE_9} 02 0261 02 00000000 09 00000000", "records at byte 16: 8 bytes"),
        (0, 9, f"{PRODUCE_9} 01 ffffffff0f", "tagged fields at byte 13: 4294967295 items"),
        (0, 9, f"{PRODUCE_9} 01 01 07 09", "tagged fields at byte 11: 9 bytes wanted, 0 are"),
        (12, 0, "ffff", "group_id at byte 2: null"),
        (12, 0, "000161 00", "generation_id at byte 3: 4 bytes wanted, 1 are left"),
        (12, 4, "02ff", "group_id at byte 1: 'utf-8' codec"),
        (3, 1, "fffffffe", "topics at byte 4: -2 items"),
        (3, 12, "ffffffff0f", "topics at byte 5: 4294967294 items do not fit in 0 bytes"),
        (9, 1, "0000 00000001 000161 40000000 00", "partition_indexes at byte 13: 1073741824"),
    ],
)
def test_the_error_names_the_field_and_its_place(key, version, data, message):
    with pytest.raises(MalformedError) as caught:
        APIS[key].decode[version](memoryview(bytes.fromhex(data)), 0)
    assert str(caught.value).startswith(message)


def test_unknown_tagged_fields_are_skipped_in_any_order(samples):
    for sample in samples:
        if not sample.is_request or sample.version < sample.api.flexible_from:
            continue
        if sample.api.key == ApiKey.FETCH:  # the last byte ends its own tagged fields
            continue
        assert sample.data.endswith(b"\x00")
        tagged = sample.data[:-1] + b"\x03\x90\x01\x02xy\x8f\x01\x00\x8f\x01\x01z"
        assert decode(sample, tagged) == sample.message


def test_known_tagged_fields_are_found_among_unknown_ones(samples):
    sample = next(
        one
        for one in samples
        if (one.api.key, one.version, one.is_request) == (ApiKey.FETCH, 12, True)
        and one.message.cluster_id is None
    )
    assert sample.data.endswith(b"\x00")
    tagged = sample.data[:-1] + b"\x03\x05\x02xy\x00\x03\x02id\x01\x00"
    with pytest.raises(MalformedError, match="cluster_id"):
        sample.api.decode[12](memoryview(sample.data[:-1] + b"\x01\x00\x03\x09id"), 0)
    tagged = sample.data[:-1] + b"\x03\x05\x02xy\x00\x03\x03id\x01\x00"
    assert sample.api.decode[12](memoryview(tagged), 0).cluster_id == "id"


@given(st.integers(0, 2**32 - 1))
def test_a_varint_is_read_as_it_was_written(value):
    out = bytearray(b"before")
    primitives.put_varint(out, value)
    assert len(out) <= len(b"before") + 5
    view = memoryview(bytes(out) + b"\xff")
    assert primitives.get_varint(view, len(b"before"), "x") == (value, len(out))


def test_a_structure_has_so_many_tagged_fields_and_no_more():
    fields = b"\x07\x00" * primitives.TAGS_MAX
    assert primitives.skip_tags(memoryview(bytes([primitives.TAGS_MAX]) + fields), 0) == 201
    many = bytes([primitives.TAGS_MAX + 1]) + fields + b"\x07\x00"
    with pytest.raises(MalformedError, match="tagged fields"):
        primitives.skip_tags(memoryview(many), 0)
