"""Whatever arrives, the record codec answers as an oracle in Python: with records or an error.

The fuzz itself is ``tests/helpers/codec_fuzz.py``, run in a process of its own with little memory,
so that a crash, a hang, or an allocation that a peer can cause fails a test instead of ending it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deadlines import DEADLINE_S
from hypothesis import example, given
from hypothesis import strategies as st
from record_oracle import decode_rows as decode_by_oracle

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records.batch import BatchHeader, parse_header, patch, seal
from oncelog.storage.records.block import open_block
from oncelog.storage.records.client_batch import check_client_batch
from oncelog.storage.records.codec import (
    decode_columns,
    decode_records,
    decode_rows,
    encode_columns,
    encode_records,
)
from oncelog.storage.records.compression import Codec
from oncelog.storage.records.layout import HEADER_BYTES
from oncelog.storage.records.varint import encode_varlong

FUZZ = Path(__file__).resolve().parent.parent / "helpers" / "codec_fuzz.py"
MEMORY_MIB = 900
"""What decoding may take besides: a bomb's 128 MiB several times over, but not its gigabytes."""

NUMBERS = st.sampled_from([0, -1, -2, 1, 63, 64, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63)])
FIELDS = st.one_of(
    NUMBERS.map(encode_varlong),
    st.sampled_from([b"\xff" * 5, b"\xff" * 10, b"\x80" * 5 + b"\x00", b"\x80\x00", b"\xc0\xaf"]),
    st.binary(max_size=3),
)
BODIES = st.lists(FIELDS, max_size=12).map(b"".join)
BLOCKS = st.lists(
    st.one_of(
        BODIES.map(lambda body: encode_varlong(len(body)) + body),
        st.tuples(NUMBERS, BODIES).map(lambda parts: encode_varlong(parts[0]) + parts[1]),
        st.sampled_from([bytes.fromhex("0c000000010100"), bytes.fromhex("0c000002010100")]),
    ),
    max_size=5,
).map(b"".join)
NULLABLE = st.none() | st.binary(max_size=100)
PAIRS = st.lists(st.tuples(st.text(max_size=5), NULLABLE), max_size=2)
KEYS = st.lists(
    st.sampled_from(["", "a", "ä", "c0af", "eda080", "f4908080", "e282", "ff", "efbfbd"]),
    max_size=4,
)


def sealed(block: bytes, count: int, last_offset_delta: int) -> bytes:
    return bytes(
        seal(
            block,
            codec=Codec.NONE,
            record_count=count,
            base_timestamp_ms=0,
            max_timestamp_ms=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            is_transactional=False,
            last_offset_delta=last_offset_delta,
        )
    )


def results(batch: bytes) -> list[Any]:
    """Rows and columns of a batch; None for damage."""
    found: list[Any] = []
    for decode in (lambda: decode_records(batch), lambda: decode_columns([batch]).to_pydict()):
        try:
            found.append(decode())
        except CorruptDataError:
            found.append(None)
    return found


def results_of_oracle(batch: bytes) -> list[Any]:
    """The same, by Python, record for record."""
    header = parse_header(batch)
    try:
        rows = decode_by_oracle(bytes(open_block(batch, header)), header)
    except CorruptDataError:
        return [None, None]
    return [rows, in_columns(rows)]


def in_columns(rows: list[Any]) -> dict[str, list[Any]]:
    """Rows, whose time is that of their producer, as Arrow shows columns."""
    return {
        "offset": [row[0] for row in rows],
        "timestamp_ms": [row[1] for row in rows],
        "timestamp_type": [0] * len(rows),
        "key": [row[2] for row in rows],
        "value": [row[3] for row in rows],
        "headers": [[{"key": key, "value": value} for key, value in row[4]] for row in rows],
    }


@pytest.mark.slow
@pytest.mark.parametrize("batch_count", [1_500])
def test_hostile_batches_end_in_an_error_within_little_memory(batch_count: int, seed: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(FUZZ), str(seed), str(batch_count), str(MEMORY_MIB)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@given(BLOCKS, st.integers(0, 5), st.sampled_from([0, 1, 4, 2**31 - 1, -1]))
def test_every_block_is_what_the_oracle_says(block: bytes, count: int, last: int) -> None:
    batch = sealed(block, count, last)
    assert results(batch) == results_of_oracle(batch)


class Placed(NamedTuple):
    """A record and where it was read."""

    place: str
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@given(
    st.lists(st.tuples(NULLABLE, NULLABLE, st.integers(0, 2**40), PAIRS), min_size=1, max_size=30),
    st.lists(st.integers(0, 12), max_size=8),
    st.integers(90, 140),
)
def test_portions_of_a_batch_are_those_of_the_oracle(
    rows: list[Any], portions: list[int], first_offset: int
) -> None:
    batch = encode_records(rows)
    patch(batch, base_offset=100, leader_epoch=0)
    header = parse_header(batch)
    found = decode_rows(
        batch, header, 0, row_type=Placed, leading=("here",), first_offset=first_offset
    )
    expected = [
        Placed("here", *row)
        for row in decode_by_oracle(bytes(batch[HEADER_BYTES:]), header)
        if row[0] >= first_offset
    ]

    assert found.left == len(expected)
    for count in portions:
        assert found.take(count) == expected[:count]
        expected = expected[count:]
        assert found.left == len(expected)


@given(BLOCKS, st.integers(1, 5))
@example(bytes.fromhex("0c000000010100"), 1)
@example(bytes.fromhex("0c000000010100" + "0c000002010100"), 2)
def test_leader_accepts_just_what_every_reader_can_decode(block: bytes, count: int) -> None:
    batch = sealed(block, count, count - 1)
    accepted = isinstance(check_client_batch(batch, message_max_bytes=1 << 20), BatchHeader)
    for rows, columns in (results(batch), results_of_oracle(batch)):
        assert (rows is not None) == (columns is not None) == accepted


@pytest.mark.parametrize("place", range(26))
def test_leader_refuses_every_flipped_bit_that_a_reader_cannot_decode(place: int) -> None:
    """Also one that makes two records have one offset."""
    block = encode_records([(None, b"poison", 0, ()), (None, b"poison", 0, ())])[HEADER_BYTES:]
    assert len(block) == 26
    for bit in range(8):
        damaged = bytearray(block)
        damaged[place] ^= 1 << bit
        batch = sealed(bytes(damaged), 2, 1)
        accepted = isinstance(check_client_batch(batch, message_max_bytes=1 << 20), BatchHeader)
        for rows, columns in (results(batch), results_of_oracle(batch)):
            assert (rows is not None) == (columns is not None) == accepted


@given(KEYS)
def test_header_keys_that_are_no_text_are_read_as_the_oracle_reads_them(keys: list[str]) -> None:
    raw = [bytes.fromhex(key) if len(key) > 1 else key.encode() for key in keys]
    body = b"".join((b"\0\0\0\x01\x01", encode_varlong(len(raw)))) + b"".join(
        encode_varlong(len(key)) + key + b"\x01" for key in raw
    )
    batch = sealed(encode_varlong(len(body)) + body, 1, 0)
    rows, columns = results(batch)
    assert [rows, columns] == results_of_oracle(batch)
    assert [key for key, _ in rows[0][4]] == [key.decode("utf-8", "replace") for key in raw]


@pytest.mark.parametrize("change", [{"count": 2**31 - 1}, {"count": -1}, {"count": 10}])
def test_count_is_checked_before_memory_is_taken_for_it(change: dict[str, int]) -> None:
    assert results(sealed(bytes(69), change["count"], 2**31 - 1)) == [None, None]


@pytest.mark.parametrize(
    ("records", "error"),
    [
        ([(b"k", b"v", 0)], TypeError),
        ([[b"k", b"v", 0, ()]], TypeError),
        ([("k", b"v", 0, ())], TypeError),
        ([(b"k", 5, 0, ())], TypeError),
        ([(b"k", b"v", None, ())], TypeError),
        ([(b"k", b"v", 0, [("a",)])], ValueError),
        ([(b"k", b"v", 0, [(b"a", b"")])], TypeError),
        ([(b"k", b"v", 0, [("\ud800", b"")])], ValueError),
        ([(b"k", b"v", 2**63, ())], ValueError),
    ],
)
def test_what_is_no_record_is_refused(records: list[Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        encode_records(records)


def test_any_bytes_like_object_is_a_key_or_value() -> None:
    records: list[Any] = [(bytearray(b"k"), memoryview(b"value"), 0, [("h", bytearray(b"x"))])]
    plain: list[Any] = [(b"k", b"value", 0, [("h", b"x")])]
    assert encode_records(records) == encode_records(plain)


def test_arrays_that_share_no_memory_layout_are_refused() -> None:
    with pytest.raises((ValueError, NotImplementedError)):
        encode_columns(keys=None, values=pa.array([[b"v"]]), timestamps_ms=0, headers=None)
