"""Byte-exact batches: known vectors, and what two other Kafka clients write and read."""

from __future__ import annotations

from typing import Any

import crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaMemoryRecords
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.memory_records import MemoryRecords as KafkaPythonMemoryRecords

from oncelog.storage.records.batch import crc_matches, parse_header, patch
from oncelog.storage.records.codec import (
    Record,
    RecordInput,
    decode_columns,
    decode_records,
    encode_records,
)
from oncelog.storage.records.compression import Codec
from oncelog.storage.records.control import ControlRecord, decode_control, encode_marker

TIME = 1_700_000_000_000
DATA = bytes.fromhex(
    "00000000000000070000004c00000003028d9337490010000000010000018bcfe568000000018bcfe568050000"
    "00000000109200010000000a0000000214000000046b31047631001e000a020104763204026802780"
    "26e01"
)
MARKER = bytes.fromhex(
    "000000000000000900000042000000030219c4df090030000000000000018bcfe568090000018bcfe568090000"
    "000000001092"
    "0001ffffffff000000012000000008000000010c00000000000500"
)
DATA_RECORDS: list[RecordInput] = [
    (b"k1", b"v1", TIME, ()),
    (None, b"v2", TIME + 5, (("h", b"x"), ("n", None))),
]


def samples() -> list[RecordInput]:
    """Nulls, empties, headers, time that goes back, and offset deltas of one and of two bytes."""
    records: list[RecordInput] = [
        (
            None if index % 5 == 0 else b"key %d" % index,
            None if index % 7 == 0 else b"v" * (index % 300),
            TIME + index * (-1) ** index,
            [("h", b"x"), ("n", None)] if index % 11 == 0 else [],
        )
        for index in range(200)
    ]
    return [*records, (b"", b"", TIME, [])]


SAMPLES = samples()
SIZES = pytest.mark.parametrize("records", [SAMPLES[:1], SAMPLES[:20], SAMPLES])
# The other codecs need libraries that neither client brings along.
CODECS = pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
BUILDERS = pytest.mark.parametrize("builder", [AiokafkaBuilder, KafkaPythonBuilder])
READERS = pytest.mark.parametrize(
    ("batch_type", "memory_records"),
    [
        (AiokafkaBatch, AiokafkaMemoryRecords),
        (KafkaPythonBatch, KafkaPythonMemoryRecords),
    ],
)


def build(builder: Any, records: list[RecordInput], codec: Codec) -> bytes:
    """The batch another client makes of ``records``."""
    built = builder(2, int(codec), 1, 4242, 1, 10, 10**9)
    for offset, (key, value, timestamp_ms, headers) in enumerate(records):
        built.append(offset, timestamp_ms, key, value, list(headers))
    return bytes(built.build())


def encode(records: list[RecordInput], codec: Codec = Codec.NONE) -> bytearray:
    return encode_records(
        records,
        codec=codec,
        producer_id=4242,
        producer_epoch=1,
        base_sequence=10,
        is_transactional=True,
    )


def as_inputs(records: list[Record]) -> list[RecordInput]:
    return [
        (record.key, record.value, record.timestamp_ms, list(record.headers)) for record in records
    ]


def test_crc_is_castagnoli() -> None:
    assert crc32c.crc32c(b"123456789") == 0xE3069283


def test_data_vector_is_written_byte_for_byte() -> None:
    batch = encode(DATA_RECORDS)
    patch(batch, base_offset=7, leader_epoch=3)
    assert len(DATA) == 88
    assert bytes(batch) == DATA


def test_data_vector_is_read() -> None:
    assert crc_matches(DATA, parse_header(DATA))
    assert decode_records(DATA) == [
        Record(7, TIME, b"k1", b"v1"),
        Record(8, TIME + 5, None, b"v2", (("h", b"x"), ("n", None))),
    ]


def test_data_vector_is_read_into_columns() -> None:
    assert decode_columns([DATA]).to_pylist() == [
        {
            "offset": 7,
            "timestamp_ms": TIME,
            "timestamp_type": 0,
            "key": b"k1",
            "value": b"v1",
            "headers": [],
        },
        {
            "offset": 8,
            "timestamp_ms": TIME + 5,
            "timestamp_type": 0,
            "key": None,
            "value": b"v2",
            "headers": [{"key": "h", "value": b"x"}, {"key": "n", "value": None}],
        },
    ]


def test_marker_vector_is_written_byte_for_byte() -> None:
    marker = encode_marker(
        producer_id=4242,
        producer_epoch=1,
        committed=True,
        coordinator_epoch=5,
        timestamp_ms=TIME + 9,
    )
    patch(marker, base_offset=9, leader_epoch=3)
    assert len(MARKER) == 78
    assert bytes(marker) == MARKER


def test_marker_vector_is_read() -> None:
    header = parse_header(MARKER)
    assert crc_matches(MARKER, header)
    assert (header.is_control, header.is_transactional) == (True, True)
    assert decode_control(MARKER, header) == ControlRecord(True, 5)


@READERS
def test_other_clients_accept_both_vectors(batch_type: Any, memory_records: Any) -> None:
    records = memory_records(DATA + MARKER)
    data, marker = records.next_batch(), records.next_batch()
    assert (data.validate_crc(), marker.validate_crc()) == (True, True)
    assert (data.is_control_batch, marker.is_control_batch) == (False, True)
    assert [record.offset for record in data] == [7, 8]
    assert [record.key for record in marker] == [b"\x00\x00\x00\x01"]


@READERS
@SIZES
@CODECS
def test_other_clients_read_what_we_write(
    batch_type: Any, memory_records: Any, records: list[RecordInput], codec: Codec
) -> None:
    batch = batch_type(encode(records, codec))
    assert batch.validate_crc()
    assert (batch.is_transactional, batch.compression_type) == (True, int(codec))
    read = [(each.key, each.value, each.timestamp, list(each.headers)) for each in batch]
    assert read == records


@BUILDERS
@SIZES
@CODECS
def test_we_read_what_other_clients_write(
    builder: Any, records: list[RecordInput], codec: Codec
) -> None:
    batch = build(builder, records, codec)
    assert as_inputs(decode_records(batch)) == records
    columns = decode_columns([batch]).to_pydict()
    assert list(zip(columns["key"], columns["value"], columns["timestamp_ms"], strict=True)) == [
        record[:3] for record in records
    ]


@BUILDERS
@SIZES
def test_our_bytes_are_those_of_other_clients(builder: Any, records: list[RecordInput]) -> None:
    theirs = bytearray(build(builder, records, Codec.NONE))
    # They leave the leader epoch 0, which is the leader's to write and outside the CRC.
    patch(theirs, base_offset=0, leader_epoch=-1)
    assert encode(records) == theirs
