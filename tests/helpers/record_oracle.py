"""Records to and from their bytes in plain Python: what the kernel is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records.batch import HEAD_ROOM, BatchHeader
from oncelog.storage.records.block import RecordBlock
from oncelog.storage.records.rows import INT64_MIN, Headers, RecordHeaders, RecordInput
from oncelog.storage.records.varint import encode_varlong, read_varint, read_varlong

RecordTuple: TypeAlias = tuple[int, int, bytes | None, bytes | None, RecordHeaders]
"""The fields of a ``Record``, without its type."""

INT64_MAX: Final = 2**63 - 1

_ATTRIBUTES: Final = b"\x00"
_NULL: Final = encode_varlong(-1)
_NO_HEADERS: Final = encode_varlong(0)

# Lengths and offset deltas are mostly small; looking them up is several times faster.
_SMALL: Final = tuple(encode_varlong(value) for value in range(4096))
_SMALL_COUNT: Final = len(_SMALL)


def encode_rows(records: Sequence[RecordInput]) -> RecordBlock:
    """``records``, at least one, with offset deltas from 0 on.

    Raises ``ValueError`` if there are none, or a timestamp or its delta is no int64.
    """
    if not records:
        raise ValueError("a batch holds at least one record")
    base_timestamp_ms = records[0][2]
    max_timestamp_ms = max(record[2] for record in records)
    if not (min(record[2] for record in records) >= INT64_MIN and max_timestamp_ms <= INT64_MAX):
        raise ValueError("a timestamp does not fit into 64 bits")
    pieces: list[bytes] = [HEAD_ROOM]
    for offset_delta, (key, value, timestamp_ms, headers) in enumerate(records):
        timestamp_delta = _varint(timestamp_ms - base_timestamp_ms)
        offset = _varint(offset_delta)
        header_block = encode_headers(headers) if headers else _NO_HEADERS
        key_length, key = (_NULL, b"") if key is None else (_varint(len(key)), key)
        value_length, value = (_NULL, b"") if value is None else (_varint(len(value)), value)
        size_bytes = (
            1
            + len(timestamp_delta)
            + len(offset)
            + len(key_length)
            + len(key)
            + len(value_length)
            + len(value)
            + len(header_block)
        )
        pieces += (_varint(size_bytes), _ATTRIBUTES, timestamp_delta, offset)
        pieces += (key_length, key, value_length, value, header_block)
    data = bytearray().join(pieces)
    return RecordBlock(data, len(records), base_timestamp_ms, max_timestamp_ms)


def encode_headers(headers: Headers) -> bytes:
    """Header count and headers of one record. Raises ``ValueError`` if a key is no valid text."""
    pieces = [_varint(len(headers))]
    for key, value in headers:
        encoded_key = key.encode()
        pieces += (_varint(len(encoded_key)), encoded_key)
        pieces += (_NULL,) if value is None else (_varint(len(value)), value)
    return b"".join(pieces)


def decode_rows(block: bytes, header: BatchHeader) -> list[RecordTuple]:
    """The records of the uncompressed ``block``, which belongs to ``header``.

    Raises ``CorruptDataError`` if a field leaves its record, a record the block, or an offset the
    batch. Header keys that are no UTF-8 decode with replacement characters, as in Java.
    """
    records: list[RecordTuple] = []
    position = 0
    least_delta = 0
    base_timestamp_ms = header.base_timestamp_ms
    append_time_ms = header.max_timestamp_ms if header.is_log_append_time else None
    for _ in range(header.record_count):
        length, position = read_varint(block, position, len(block))
        end = position + length
        if length < 0 or end > len(block):
            raise CorruptDataError(f"{_place(header)}: a record of {length} bytes")
        timestamp_delta, position = read_varlong(block, position + 1, end)
        offset_delta, position = read_varint(block, position, end)
        key, position = _read_nullable(block, position, end)
        value, position = _read_nullable(block, position, end)
        headers, position = read_headers(block, position, end)
        if position != end:
            raise CorruptDataError(f"{_place(header)}: a record is longer than its fields")
        if not least_delta <= offset_delta <= header.last_offset_delta:
            raise CorruptDataError(f"{_place(header)}: offset delta {offset_delta} out of order")
        least_delta = offset_delta + 1
        if header.base_offset + offset_delta > INT64_MAX:
            raise CorruptDataError(f"{_place(header)}: an offset exceeds 64 bits")
        timestamp_ms = base_timestamp_ms + timestamp_delta
        if not INT64_MIN <= timestamp_ms <= INT64_MAX:
            raise CorruptDataError(f"{_place(header)}: a timestamp exceeds 64 bits")
        records.append(
            (
                header.base_offset + offset_delta,
                timestamp_ms if append_time_ms is None else append_time_ms,
                key,
                value,
                headers,
            )
        )
    if position != len(block):
        raise CorruptDataError(f"{_place(header)}: bytes after the last record")
    return records


def read_headers(block: bytes, position: int, end: int) -> tuple[RecordHeaders, int]:
    """The headers whose count is at ``position``, and the position after them."""
    count, position = read_varint(block, position, end)
    if count == 0:
        return (), position
    # A header takes two bytes at least, so no count makes this loop longer than the record.
    if not 0 < count <= (end - position) // 2:
        raise CorruptDataError(f"{count} headers at byte {position} are impossible")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key, position = _read_nullable(block, position, end)
        if key is None:
            raise CorruptDataError(f"a header before byte {position} has no key")
        value, position = _read_nullable(block, position, end)
        headers.append((key.decode("utf-8", "replace"), value))
    return tuple(headers), position


def _read_nullable(block: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(block, position, end)
    if length == -1:
        return None, position
    stop = position + length
    if length < 0 or stop > end:
        raise CorruptDataError(f"length {length} at byte {position} is impossible")
    return block[position:stop], stop


def _varint(value: int) -> bytes:
    return _SMALL[value] if 0 <= value < _SMALL_COUNT else encode_varlong(value)


def _place(header: BatchHeader) -> str:
    return f"batch at offset {header.base_offset}"
