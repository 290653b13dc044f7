"""The 61-byte header: parsing, checking, sealing and patching."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c

from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import SEQUENCE_MAX
from oncelog.storage.records.batch import (
    BatchHeader,
    crc_matches,
    iterate_batches,
    parse_header,
    patch,
    seal,
    stamp_log_append_time,
    stamp_producer,
)
from oncelog.storage.records.client_batch import check_client_batch
from oncelog.storage.records.compression import Codec
from oncelog.storage.records.layout import CRC_AT, HEADER_BYTES, PRODUCER_AT

RECORDS = bytes.fromhex("0e00000001027800" + "0e00000201027800")
"""Two records without keys."""


def make_batch(records: bytes = RECORDS, **changes: Any) -> bytearray:
    fields: dict[str, Any] = {
        "codec": Codec.NONE,
        "record_count": 2,
        "base_timestamp_ms": 1000,
        "max_timestamp_ms": 1005,
        "producer_id": 42,
        "producer_epoch": 3,
        "base_sequence": 10,
        "is_transactional": True,
    }
    return seal(records, **(fields | changes))


def check(batch: bytes | bytearray) -> BatchHeader | ErrorCode:
    return check_client_batch(batch, message_max_bytes=1000)


def test_sealed_batch_parses_to_its_fields() -> None:
    batch = make_batch(codec=Codec.ZSTD, base_offset=100, leader_epoch=6)
    header = parse_header(batch)
    assert header == BatchHeader(
        base_offset=100,
        batch_length=len(batch) - 12,
        leader_epoch=6,
        magic=2,
        crc=header.crc,
        attributes=4 | 16,
        last_offset_delta=1,
        base_timestamp_ms=1000,
        max_timestamp_ms=1005,
        producer_id=42,
        producer_epoch=3,
        base_sequence=10,
        record_count=2,
    )
    assert crc_matches(batch, header)
    assert batch[HEADER_BYTES:] == RECORDS


def test_header_properties_follow_from_its_fields() -> None:
    header = parse_header(make_batch(base_offset=100, last_offset_delta=9))
    assert (header.size_bytes, header.last_offset, header.next_offset) == (77, 109, 110)
    assert (header.codec, header.has_producer_id, header.last_sequence) == (Codec.NONE, True, 19)
    assert (header.is_transactional, header.is_control) == (True, False)
    assert (header.is_log_append_time, header.has_delete_horizon) == (False, False)


def test_sequence_wraps_inside_a_batch() -> None:
    header = parse_header(make_batch(base_sequence=SEQUENCE_MAX, last_offset_delta=2))
    assert header.last_sequence == 1


def test_batch_without_sequence_has_no_last_sequence() -> None:
    assert parse_header(make_batch(base_sequence=-1)).last_sequence == -1


def test_codec_id_above_4_is_corrupt() -> None:
    batch = make_batch()
    batch[22] |= 5
    with pytest.raises(CorruptDataError, match="unknown codec 5"):
        _ = parse_header(batch).codec


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda batch: batch[:60], "cut off"),
        (lambda batch: b"", "cut off"),
        (lambda batch: batch[:16] + b"\x01" + batch[17:], "magic 1"),
        (lambda batch: batch[:8] + b"\x00\x00\x00\x30" + batch[12:], "length 48"),
        (lambda batch: batch[:8] + b"\xff\xff\xff\xff" + batch[12:], "length -1"),
        (lambda batch: bytes(100), "magic 0"),
    ],
)
def test_bytes_that_are_no_header_are_corrupt(change: Callable[[bytes], bytes], text: str) -> None:
    with pytest.raises(CorruptDataError, match=text):
        parse_header(change(bytes(make_batch())))


def test_header_is_parsed_at_its_position() -> None:
    buffer = b"\x00" * 5 + make_batch(base_offset=8)
    header = parse_header(buffer, 5)
    assert header.base_offset == 8
    assert crc_matches(buffer, header, 5)


@pytest.mark.parametrize("position", [21, 40, 61, -1])
def test_changed_byte_breaks_the_crc(position: int) -> None:
    batch = make_batch()
    batch[position] ^= 1
    assert not crc_matches(batch, parse_header(batch))


def test_truncated_batch_never_matches_its_crc() -> None:
    batch = make_batch()
    assert not crc_matches(batch[:-1], parse_header(batch))


def test_bytes_after_the_batch_do_not_matter_to_its_crc() -> None:
    batch = make_batch()
    assert crc_matches(batch + b"tail", parse_header(batch))


def test_patch_changes_two_fields_and_keeps_the_crc() -> None:
    batch = bytearray(b"\xff" * 3) + make_batch()
    before = parse_header(batch, 3)
    patch(batch, base_offset=500, leader_epoch=9, position=3)
    after = parse_header(batch, 3)
    assert after == before.with_offset(500, 9)
    assert (after.base_offset, after.leader_epoch, after.crc) == (500, 9, before.crc)
    assert crc_matches(batch, after, 3)


def test_append_time_replaces_the_time_of_all_records() -> None:
    batch = make_batch()
    stamp_log_append_time(batch, 7777)
    header = parse_header(batch)
    assert header.is_log_append_time
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (1000, 7777)
    assert header.is_transactional
    assert crc_matches(batch, header)


STAMPED_BYTES = (8, 4_095 - 8, 4_096 - 8, 4_097 - 8, 12_288, 70_001, 1_048_576, 5_000_003)
"""Sizes of records on both sides of where the zeros behind the producer are taken as a shift."""


@pytest.mark.parametrize("size_bytes", STAMPED_BYTES)
def test_a_stamped_producer_leaves_a_batch_as_if_it_had_been_made_so(size_bytes: int) -> None:
    records = random.Random(size_bytes).randbytes(size_bytes)
    batch = make_batch(records)
    for producer_id, producer_epoch in ((2**62 + 7, 32_766), (0, 0), (-1, -1), (42, 3)):
        stamp_producer(batch, producer_id, producer_epoch)
        made = make_batch(records, producer_id=producer_id, producer_epoch=producer_epoch)
        assert batch == made


@pytest.mark.parametrize("size_bytes", [8, 5_000])
def test_a_damaged_batch_is_still_damaged_once_its_producer_is_stamped(size_bytes: int) -> None:
    records = random.Random(size_bytes).randbytes(size_bytes)
    sound = make_batch(records)
    places = random.Random(1).sample(range(8 * CRC_AT, 8 * len(sound)), 300)
    # Bits of what is written over as well: what their client sent is not known.
    places += range(8 * PRODUCER_AT, 8 * (PRODUCER_AT + 10))
    for place in places:
        batch = bytearray(sound)
        batch[place // 8] ^= 1 << place % 8
        stamp_producer(batch, 42, 4)
        assert not crc_matches(batch, parse_header(batch)), place


def test_a_producer_is_stamped_in_the_buffer_in_which_the_batch_came() -> None:
    batch = make_batch()
    frame = bytearray(b"head" + batch + b"tail")
    stamp_producer(memoryview(frame)[4:-4], 42, 4)
    assert frame == b"head" + make_batch(producer_epoch=4) + b"tail"


def test_batches_are_iterated_with_their_positions() -> None:
    first, second = make_batch(base_offset=1), make_batch(b"x" * 40, base_offset=2)
    found = [(position, header.base_offset) for position, header in iterate_batches(first + second)]
    assert found == [(0, 1), (len(first), 2)]


@pytest.mark.parametrize("cut", [1, 16, 17, 60, 76])
def test_truncated_tail_ends_iteration_silently(cut: int) -> None:
    batch = make_batch()
    assert [position for position, _ in iterate_batches((batch + batch)[:-cut])] == [0]


def test_bytes_that_are_no_batch_stop_iteration_with_an_error() -> None:
    batches = iterate_batches(make_batch() + bytes(100))
    next(batches)
    with pytest.raises(CorruptDataError):
        next(batches)


def test_well_formed_client_batch_is_accepted() -> None:
    batch = make_batch()
    assert check(batch) == parse_header(batch)


def test_batch_without_producer_is_accepted() -> None:
    batch = make_batch(producer_id=-1, producer_epoch=-1, base_sequence=-1, is_transactional=False)
    assert isinstance(check(batch), BatchHeader)


def test_batch_of_exactly_the_maximum_size_is_accepted() -> None:
    batch = make_batch()
    assert isinstance(check_client_batch(batch, message_max_bytes=len(batch)), BatchHeader)


def test_batch_above_the_maximum_size_is_too_large() -> None:
    batch = make_batch()
    refusal = check_client_batch(batch, message_max_bytes=len(batch) - 1)
    assert refusal is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_truncated_client_batch_is_corrupt(cut: int) -> None:
    assert check(make_batch()[:-cut]) is ErrorCode.CORRUPT_MESSAGE


def test_damaged_client_batch_is_corrupt() -> None:
    batch = make_batch()
    batch[-1] ^= 1
    assert check(batch) is ErrorCode.CORRUPT_MESSAGE


def test_no_batch_or_two_batches_are_invalid() -> None:
    assert check(b"") is ErrorCode.INVALID_RECORD
    assert check(make_batch() + make_batch()) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    "changes",
    [
        {"base_offset": 1},
        {"record_count": 0},
        {"record_count": 0, "last_offset_delta": 0},
        {"record_count": -1},
        {"last_offset_delta": 0},
        {"last_offset_delta": 2},
        {"is_control": True},
        {"base_sequence": -1},
        {"producer_epoch": -1},
        {"producer_id": -2},
        {"producer_id": -1},
        {"record_count": 3},
    ],
)
def test_client_batch_of_impossible_shape_is_invalid(changes: dict[str, Any]) -> None:
    assert check(make_batch(**changes)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("attributes", [0x05, 0x07, 0x40, 0x80, 0x4000])
def test_client_batch_with_unknown_attributes_is_invalid(attributes: int) -> None:
    batch = make_batch()
    batch[21:23] = (attributes | 16).to_bytes(2, "big")
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    assert check(batch) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    "records",
    [
        "0c000000010100" + "0c000000010100",
        "0c000000010100" + "0c000004010100",
        "0c000002010100" + "0c000002010100",
        "0e000000010100" + "0c000002010100",
        "0c000000010100" + "0c000002010102",
        "0c000000010100" + "0c000002030100",
        "0c000000010100" + "0c000002010100" + "0c000004010100",
        "0c000000010100" + "78787878787878",
        "00" * 14,
    ],
)
def test_client_batch_of_records_that_no_reader_can_decode_is_invalid(records: str) -> None:
    assert check(make_batch(bytes.fromhex(records))) is ErrorCode.INVALID_RECORD
    assert isinstance(check(make_batch()), BatchHeader)


def test_compressed_batch_may_hold_more_records_than_bytes() -> None:
    batch = make_batch(codec=Codec.LZ4, record_count=3)
    assert isinstance(check(batch), BatchHeader)


def test_append_time_set_by_a_client_wins_over_other_faults() -> None:
    batch = make_batch(record_count=0)
    stamp_log_append_time(batch, 5)
    assert check(batch) is ErrorCode.INVALID_TIMESTAMP
