"""How large requests may be, and that their decoded form takes no more than is reserved for it."""

from __future__ import annotations

import tracemalloc

import pytest

from oncelog.actors.gateway.messages.apis import APIS, Api, ApiKey
from oncelog.actors.gateway.messages.primitives import MalformedError
from oncelog.actors.gateway.sizes import (
    DECODED_FACTOR,
    LISTED_MAX,
    PARTITION_BYTES_MIN,
    UNCHECKED_BYTES,
    check_listed,
    check_produce,
)

SIZE_BYTES = 12_000
BEFORE_TOPICS = {3: b"\xff\xff\0\1\0\0\3\xe8", 9: b"\0\0\1\0\0\3\xe8"}


def produce(version: int, topics: int, partitions: int, records_bytes: int) -> memoryview:
    """A Produce of so many topics, each with so many partitions."""
    if version < 9:
        one = b"\0\0\0\0" + records_bytes.to_bytes(4, "big") + bytes(records_bytes)
        topic = b"\0\1t" + partitions.to_bytes(4, "big") + one * partitions
        return memoryview(BEFORE_TOPICS[3] + topics.to_bytes(4, "big") + topic * topics)
    one = b"\0\0\0\0" + varint(records_bytes + 1) + bytes(records_bytes) + b"\0"
    topic = b"\2t" + varint(partitions + 1) + one * partitions + b"\0"
    return memoryview(BEFORE_TOPICS[9] + varint(topics + 1) + topic * topics + b"\0")


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14])


@pytest.mark.parametrize("version", [3, 9])
@pytest.mark.parametrize(("topics", "partitions"), [(1, 4_000), (4_000, 1), (60, 60)])
def test_a_produce_of_small_batches_is_let_through(version, topics, partitions):
    frame = produce(version, topics, partitions, 2 * PARTITION_BYTES_MIN)
    check_produce(version, frame, 0)
    decoded = APIS[ApiKey.PRODUCE].decode[version](frame, 0)
    assert len(decoded.topic_data) == topics


@pytest.mark.parametrize("version", [3, 9])
@pytest.mark.parametrize(("topics", "partitions"), [(1, 4_000), (4_000, 0), (60, 60)])
def test_a_produce_that_lists_more_than_it_has_records_for_is_not_decoded(
    version, topics, partitions
):
    with pytest.raises(MalformedError, match="topics and partitions, and few records"):
        check_produce(version, produce(version, topics, partitions, 1), 0)


def test_a_short_produce_may_be_dense():
    frame = produce(3, 1, 300, 0)
    assert len(frame) < UNCHECKED_BYTES
    check_produce(3, frame, 0)


@pytest.mark.parametrize("version", [3, 9])
def test_what_a_produce_claims_and_does_not_have_is_malformed(version):
    frame = produce(version, 1, 50, 200)
    with pytest.raises(MalformedError):
        check_produce(version, frame[:-400], 0)


def test_a_request_lists_so_much_and_no_more():
    decode = APIS[ApiKey.OFFSET_FETCH].decode[5]

    def fetch(topics: int, partitions: int) -> memoryview:
        topic = b"\0\1t" + partitions.to_bytes(4, "big") + bytes(4) * partitions
        return memoryview(b"\0\1g" + topics.to_bytes(4, "big") + topic * topics)

    for topics, partitions in ((1_000, 99), (LISTED_MAX, 0)):
        frame = fetch(topics, partitions)
        check_listed(frame, decode(frame, 0))
    frame = fetch(1_000, 100)
    with pytest.raises(MalformedError, match="more than 100000 items are listed"):
        check_listed(frame, decode(frame, 0))
    with pytest.raises(MalformedError, match="100001 items do not fit"):
        decode(fetch(LISTED_MAX + 1, 0), 0)


SHORT_ITEMS = (
    b"\2a\1\0",
    b"\2a\1",
    b"\1\1\0",
    b"\2a",
    b"\1\0",
    b"\0\0\0\0\0\0",
    b"\0\1a",
    b"\0\2ab",
    b"\0\1a" + bytes(8),
)


def densest(api: Api) -> list[tuple[int, bytes]]:
    """Requests of an API that are mostly lists of the shortest items, by version."""
    found = []
    for version in api.versions:
        for item in SHORT_ITEMS:
            count = SIZE_BYTES // len(item)
            counted = (
                varint(count + 1) if version >= api.flexible_from else count.to_bytes(4, "big")
            )
            items = counted + item * count + bytes(64)
            found += [(version, bytes(at) + items) for at in range(20)]
    return found


@pytest.mark.parametrize(
    "api", [api for api in APIS.values() if api.key != ApiKey.PRODUCE], ids=lambda api: api.name
)
def test_a_decoded_request_takes_no_more_than_is_reserved_for_it(api):
    dearest = 0.0
    tracemalloc.start()
    try:
        for version, body in densest(api):
            tracemalloc.reset_peak()
            before_bytes = tracemalloc.get_traced_memory()[0]
            try:
                request = api.decode[version](memoryview(body), 0)
            except MalformedError:
                continue
            taken_bytes = tracemalloc.get_traced_memory()[1] - before_bytes
            del request
            dearest = max(dearest, taken_bytes / len(body))
    finally:
        tracemalloc.stop()
    assert dearest < DECODED_FACTOR
