"""Kafka's primitive types: what is written, and what hostile bytes are refused for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncelog.actors.protocol.wire import WireReader, WireWriter
from oncelog.storage.exceptions import CorruptDataError


def test_values_are_big_endian_and_null_is_minus_one() -> None:
    writer = WireWriter()
    writer.int16(1)
    writer.int32(-2)
    writer.int64(3)
    writer.string("hä")
    writer.string(None)
    writer.blob(b"b")
    writer.blob(None)
    writer.array([7], writer.int32)
    assert writer.buffer.hex(" ", 1) == (
        "00 01 ff ff ff fe 00 00 00 00 00 00 00 03 00 03 68 c3 a4 ff ff "
        "00 00 00 01 62 ff ff ff ff 00 00 00 01 00 00 00 07"
    )


def test_flexible_values_carry_their_length_plus_one_as_varint() -> None:
    reader = WireReader(bytes.fromhex("03 6869 00 02 62 02 00000007 01 80 01 01 ff"))
    reader.flexible = True
    assert reader.string() == "hi"
    assert reader.nullable_blob() is None
    assert reader.blob() == b"b"
    assert reader.array(reader.int32) == [7]
    assert reader.remaining == 5


def test_tagged_fields_are_passed_over_in_flexible_versions_only() -> None:
    reader = WireReader(bytes.fromhex("01 8001 01 ff 05"))
    reader.skip_tagged_fields()
    assert reader.remaining == 6
    reader.flexible = True
    reader.skip_tagged_fields()
    assert reader.remaining == 1


@pytest.mark.parametrize(
    ("encoded", "read"),
    [
        ("00", WireReader.int16),
        ("000000", WireReader.int32),
        ("00000000000000", WireReader.int64),
        ("0003 6869", WireReader.string),
        ("fffe", WireReader.string),
        ("ffff", WireReader.string),
        ("0001 ff", WireReader.string),
        ("00000002 00", WireReader.blob),
        ("fffffffe", WireReader.blob),
        ("ffffffff", WireReader.blob),
        ("7fffffff 00", lambda reader: reader.array(reader.int16)),
        ("ffffffff", lambda reader: reader.array(reader.int16)),
    ],
)
def test_bytes_that_do_not_fit_are_refused(encoded: str, read: Callable[[Any], Any]) -> None:
    with pytest.raises(CorruptDataError):
        read(WireReader(bytes.fromhex(encoded)))


@pytest.mark.parametrize("encoded", ["80", "ffffffffff01", "05 61"])
def test_flexible_lengths_that_do_not_fit_are_refused(encoded: str) -> None:
    reader = WireReader(bytes.fromhex(encoded))
    reader.flexible = True
    with pytest.raises(CorruptDataError):
        reader.string()


def test_bytes_after_the_last_field_are_refused() -> None:
    reader = WireReader(b"\x00\x01\x02")
    reader.int16()
    with pytest.raises(CorruptDataError):
        reader.expect_end()
