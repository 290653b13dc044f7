"""Zig-zag varints: known bytes, and what must be refused."""

from __future__ import annotations

import pytest

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records.varint import encode_varlong, read_varint, read_varlong

KNOWN = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (-65, "8101"),
    (300, "d804"),
    (2**31 - 1, "feffffff0f"),
    (-(2**31), "ffffffff0f"),
]
WIDE = [(2**63 - 1, "feffffffffffffffff01"), (-(2**63), "ffffffffffffffffff01")]


@pytest.mark.parametrize(("value", "encoded"), KNOWN + WIDE)
def test_number_encodes_to_its_known_bytes(value: int, encoded: str) -> None:
    assert encode_varlong(value).hex() == encoded


@pytest.mark.parametrize(("value", "encoded"), KNOWN)
def test_known_bytes_read_back_as_int32(value: int, encoded: str) -> None:
    data = b"\xff" + bytes.fromhex(encoded) + b"\xff"
    assert read_varint(data, 1, len(data)) == (value, len(data) - 1)


@pytest.mark.parametrize(("value", "encoded"), KNOWN + WIDE)
def test_known_bytes_read_back_as_int64(value: int, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert read_varlong(data, 0, len(data)) == (value, len(data))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_number_of_65_bits_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        encode_varlong(value)


@pytest.mark.parametrize("encoded", ["ffffffff10", "ffffffffff", "808080808000", "feffffffff01"])
def test_int32_of_more_than_32_bits_is_corrupt(encoded: str) -> None:
    data = bytes.fromhex(encoded)
    with pytest.raises(CorruptDataError, match="32 bits"):
        read_varint(data, 0, len(data))


@pytest.mark.parametrize("encoded", ["ff" * 9 + "02", "ff" * 11, "80" * 10 + "00"])
def test_int64_of_more_than_64_bits_is_corrupt(encoded: str) -> None:
    data = bytes.fromhex(encoded)
    with pytest.raises(CorruptDataError, match="64 bits"):
        read_varlong(data, 0, len(data))


@pytest.mark.parametrize(("encoded", "end"), [("", 0), ("80", 1), ("8001", 1), ("00", 0)])
def test_integer_past_the_end_is_corrupt(encoded: str, end: int) -> None:
    with pytest.raises(CorruptDataError, match="runs past"):
        read_varint(bytes.fromhex(encoded), 0, end)
