"""Transaction markers and the other things a control batch may hold."""

from __future__ import annotations

import struct

import pytest

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records.batch import crc_matches, parse_header, seal
from oncelog.storage.records.compression import Codec, compress
from oncelog.storage.records.control import ControlRecord, decode_control, encode_marker
from oncelog.storage.records.varint import encode_varlong


def control_batch(
    key: bytes | None,
    value: bytes | None,
    *,
    codec: Codec = Codec.NONE,
    is_control: bool = True,
    extra: bytes = b"",
) -> bytearray:
    body = b"\x00\x00\x00"
    for field in (key, value):
        body += b"\x01" if field is None else encode_varlong(len(field)) + field
    record = encode_varlong(len(body) + 1) + body + b"\x00" + extra
    return seal(
        compress(codec, record),
        codec=codec,
        record_count=1,
        base_timestamp_ms=0,
        max_timestamp_ms=0,
        producer_id=7,
        producer_epoch=0,
        base_sequence=-1,
        is_transactional=True,
        is_control=is_control,
    )


def decode(batch: bytearray) -> ControlRecord | None:
    return decode_control(batch, parse_header(batch))


@pytest.mark.parametrize("committed", [True, False])
def test_marker_reads_back_as_written(committed: bool) -> None:
    marker = encode_marker(
        producer_id=9, producer_epoch=2, committed=committed, coordinator_epoch=77, timestamp_ms=5
    )
    header = parse_header(marker)
    assert crc_matches(marker, header)
    assert decode_control(marker, header) == ControlRecord(committed, 77)


def test_marker_carries_its_transaction_and_no_sequence() -> None:
    header = parse_header(
        encode_marker(
            producer_id=9, producer_epoch=2, committed=True, coordinator_epoch=0, timestamp_ms=5
        )
    )
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, -1)
    assert (header.is_control, header.is_transactional) == (True, True)
    assert (header.record_count, header.last_offset_delta) == (1, 0)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (5, 5)


def test_abort_is_type_0_and_commit_type_1() -> None:
    types = []
    for committed in (False, True):
        marker = encode_marker(
            producer_id=9,
            producer_epoch=2,
            committed=committed,
            coordinator_epoch=0,
            timestamp_ms=5,
        )
        types.append(bytes(marker[66:70]))
    assert types == [b"\x00\x00\x00\x00", b"\x00\x00\x00\x01"]


def test_marker_is_found_at_its_position() -> None:
    marker = encode_marker(
        producer_id=9, producer_epoch=2, committed=True, coordinator_epoch=3, timestamp_ms=5
    )
    buffer = b"\xff" * 10 + marker + b"\xff" * 10
    assert decode_control(buffer, parse_header(buffer, 10), 10) == ControlRecord(True, 3)


def test_longer_and_newer_value_is_read_as_far_as_known() -> None:
    value = struct.pack(">hi", 1, 12) + b"more"
    assert decode(control_batch(b"\x00\x05\x00\x00", value)) == ControlRecord(False, 12)


@pytest.mark.parametrize("control_type", [2, 6, -1])
def test_other_control_type_is_no_verdict(control_type: int) -> None:
    key = struct.pack(">hh", 0, control_type)
    assert decode(control_batch(key, None)) == ControlRecord(None, -1)


def test_control_batch_emptied_by_compaction_says_nothing() -> None:
    empty = seal(
        b"",
        codec=Codec.NONE,
        record_count=0,
        base_timestamp_ms=-1,
        max_timestamp_ms=-1,
        producer_id=7,
        producer_epoch=0,
        base_sequence=-1,
        is_transactional=True,
        is_control=True,
        last_offset_delta=0,
    )
    assert decode(empty) is None


COMMIT = struct.pack(">hh", 0, 1)
EPOCH = struct.pack(">hi", 0, 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, EPOCH),
        (b"\x00\x00\x00", EPOCH),
        (struct.pack(">hh", -1, 1), EPOCH),
        (COMMIT, None),
        (COMMIT, EPOCH[:-1]),
        (COMMIT, struct.pack(">hi", -1, 1)),
    ],
)
def test_malformed_key_or_value_is_corrupt(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptDataError):
        decode(control_batch(key, value))


def test_bytes_after_the_control_record_are_corrupt() -> None:
    with pytest.raises(CorruptDataError, match="does not fill"):
        decode(control_batch(COMMIT, EPOCH, extra=b"\x00"))


def test_compressed_control_batch_is_corrupt() -> None:
    with pytest.raises(CorruptDataError, match="no control batch"):
        decode(control_batch(COMMIT, EPOCH, codec=Codec.GZIP))


def test_data_batch_is_no_control_batch() -> None:
    with pytest.raises(CorruptDataError, match="no control batch"):
        decode(control_batch(COMMIT, EPOCH, is_control=False))


def test_control_batch_cut_off_is_corrupt() -> None:
    batch = control_batch(COMMIT, EPOCH)
    with pytest.raises(CorruptDataError, match="cut off"):
        decode_control(batch[:-1], parse_header(batch))


def test_field_longer_than_its_batch_is_corrupt() -> None:
    batch = control_batch(COMMIT, EPOCH)
    batch[65] = 0x7E
    with pytest.raises(CorruptDataError, match="impossible"):
        decode(batch)
