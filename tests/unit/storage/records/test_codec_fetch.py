"""Many batches in one buffer, as a fetch returns them, decode in one call."""

from __future__ import annotations

import pytest

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records.batch import patch, stamp_log_append_time
from oncelog.storage.records.codec import RecordInput, decode_columns, encode_records
from oncelog.storage.records.compression import Codec


def plain(count: int) -> list[RecordInput]:
    return [(b"key", b"value %d" % index, index, [("h", None)]) for index in range(count)]


def test_batches_in_one_buffer_decode_as_each_alone() -> None:
    fetched = bytearray()
    alone: list[bytearray] = []
    for index, codec in enumerate(Codec):
        batch = encode_records(plain(index + 1), codec=codec)
        patch(batch, base_offset=1000 * index, leader_epoch=0)
        fetched += batch
        alone.append(batch)
    assert decode_columns([fetched]) == decode_columns(alone)


@pytest.mark.parametrize("left", [1, 60, 61, -1])
def test_buffer_that_ends_inside_a_batch_is_corrupt(left: int) -> None:
    batch = encode_records(plain(3))
    with pytest.raises(CorruptDataError, match="cut off"):
        decode_columns([batch + batch[:left]])


def test_damage_in_a_later_batch_is_named_by_its_offset() -> None:
    good, bad = encode_records(plain(2)), encode_records(plain(2))
    patch(bad, base_offset=77, leader_epoch=0)
    bad[-1] ^= 1
    with pytest.raises(CorruptDataError, match="batch at offset 77"):
        decode_columns([good + bad])


def test_append_time_of_one_batch_leaves_its_neighbours_alone() -> None:
    stamped = encode_records(plain(2))
    stamp_log_append_time(stamped, 99)
    decoded = decode_columns([encode_records(plain(2)) + stamped + encode_records(plain(1))])
    assert decoded["timestamp_ms"].to_pylist() == [0, 1, 99, 99, 0]
    assert decoded["timestamp_type"].to_pylist() == [0, 0, 1, 1, 0]


def test_empty_buffer_holds_no_batch() -> None:
    assert decode_columns([b"", bytearray(), encode_records(plain(1))]).num_rows == 1
