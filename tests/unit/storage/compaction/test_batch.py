"""A batch under compaction, against the decoder that readers use."""

from __future__ import annotations

import pytest

from oncelog.storage.compaction.filter import empty_batch, rebuilt_batch, record_spans
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records.batch import crc_matches, parse_header, patch, stamp_log_append_time
from oncelog.storage.records.block import open_block
from oncelog.storage.records.codec import decode_records, encode_records
from oncelog.storage.records.compression import Codec

RECORDS = [
    (b"a", b"1", 1_000, ()),
    (b"b", None, 900, (("h", None), ("h", b"x"))),
    (None, b"", 5_000, ()),
    (b"c" * 300, b"v" * 300, 1_007, ()),
]


def batch_of(codec: Codec = Codec.NONE) -> bytearray:
    batch = encode_records(
        RECORDS,
        codec=codec,
        producer_id=42,
        producer_epoch=3,
        base_sequence=10,
        is_transactional=True,
    )
    patch(batch, base_offset=100, leader_epoch=5)
    return batch


def rebuilt(batch, wanted, **options):
    header = parse_header(batch)
    block = bytes(open_block(batch, header))
    spans = record_spans(block, header)
    options = {"horizon_ms": None, "keeps_max_timestamp": False} | options
    return rebuilt_batch(header, block, [spans[place] for place in wanted], **options)


def test_spans_tell_keys_tombstones_and_offsets():
    batch = batch_of()
    spans = record_spans(bytes(open_block(batch, parse_header(batch))), parse_header(batch))
    assert [(span.key, span.is_tombstone, span.offset_delta) for span in spans] == [
        (b"a", False, 0),
        (b"b", True, 1),
        (None, False, 2),
        (b"c" * 300, False, 3),
    ]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("wanted", [[0, 2], [1, 3], [3], [0, 1, 2, 3]])
@pytest.mark.parametrize("horizon_ms", [None, 2_000, 10**15])
def test_kept_records_decode_to_what_they_were(codec, wanted, horizon_ms):
    batch = batch_of(codec)
    before = decode_records(batch)
    after = rebuilt(batch, wanted, horizon_ms=horizon_ms)
    assert decode_records(after) == [before[place] for place in wanted]


@pytest.mark.parametrize("horizon_ms", [None, 2_000])
def test_header_of_a_smaller_batch_keeps_all_but_count_times_and_bytes(horizon_ms):
    batch = batch_of()
    old, new = parse_header(batch), parse_header(rebuilt(batch, [1], horizon_ms=horizon_ms))
    assert (new.base_offset, new.last_offset, new.leader_epoch) == (100, 103, 5)
    assert (new.producer_id, new.producer_epoch, new.base_sequence) == (42, 3, 10)
    assert new.last_sequence == old.last_sequence
    assert new.is_transactional
    assert new.record_count == 1
    assert new.max_timestamp_ms == 900
    assert new.base_timestamp_ms == (900 if horizon_ms is None else 2_000)
    assert new.has_delete_horizon == (horizon_ms is not None)


def test_maximum_timestamp_stays_when_the_producers_state_has_it():
    assert (
        parse_header(rebuilt(batch_of(), [1], keeps_max_timestamp=True)).max_timestamp_ms == 5_000
    )


def test_delete_horizon_stays_when_more_records_go():
    stamped = rebuilt(batch_of(), [0, 1, 2, 3], horizon_ms=2_000)
    smaller = rebuilt(stamped, [1, 3])
    assert parse_header(smaller).base_timestamp_ms == 2_000
    assert decode_records(smaller) == [decode_records(batch_of())[place] for place in (1, 3)]


def test_append_time_of_a_batch_is_not_touched():
    batch = batch_of()
    stamp_log_append_time(batch, 7_777)
    smaller = rebuilt(batch, [1], horizon_ms=2_000)
    assert parse_header(smaller).is_log_append_time
    assert decode_records(smaller)[0].timestamp_ms == 7_777


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_empty_batch_keeps_offsets_and_sequences_and_has_no_records(codec):
    batch = batch_of(codec)
    old, empty = parse_header(batch), parse_header(empty_batch(parse_header(batch)))
    assert decode_records(empty_batch(old)) == []
    assert crc_matches(empty_batch(old), empty)
    assert (empty.record_count, empty.size_bytes, empty.codec) == (0, 61, Codec.NONE)
    assert (empty.base_offset, empty.last_offset) == (old.base_offset, old.last_offset)
    assert (empty.base_sequence, empty.last_sequence) == (10, 13)
    assert (empty.base_timestamp_ms, empty.max_timestamp_ms) == (-1, old.max_timestamp_ms)


def test_damaged_records_are_refused_and_never_read_beyond():
    batch = batch_of()
    header = parse_header(batch)
    block = bytes(open_block(batch, header))
    for position in range(len(block)):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            hostile = block[:position] + bytes([value]) + block[position + 1 :]
            try:
                spans = record_spans(hostile, header)
            except CorruptDataError:
                continue
            assert all(0 <= span.start < span.end <= len(block) for span in spans)
    with pytest.raises(CorruptDataError):
        record_spans(block[:-1], header)
    with pytest.raises(CorruptDataError):
        record_spans(block + b"\0", header)
