"""One batch under compaction: its records as spans of bytes, and the batch without some of them.

What stays keeps its bytes, offset and sequence; only the timestamp deltas are rewritten when
the base timestamp changes, which it does when the first record is removed or a delete horizon
replaces it. A batch that lost all records is *empty*: a header with a record count of zero.
Source: KIP-98 for empty batches, KIP-534 for the delete horizon.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_TIMESTAMP
from oncelog.storage.records.batch import BatchHeader, reseal
from oncelog.storage.records.compression import Codec, compress
from oncelog.storage.records.varint import encode_varlong, read_varint, read_varlong


class RecordSpan(NamedTuple):
    """One record in a block: bytes [start, end), its numbers, and what compaction needs of it.

    ``body`` and ``rest`` are where the attributes and the offset delta begin.
    """

    start: int
    body: int
    rest: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    is_tombstone: bool


def record_spans(block: bytes, header: BatchHeader) -> list[RecordSpan]:
    """The records of the uncompressed ``block``, which belongs to ``header``.

    Raises ``CorruptDataError`` if a field leaves its record, or the records do not fill the block.
    """
    spans: list[RecordSpan] = []
    size = len(block)
    start = 0
    for _ in range(header.record_count):
        length, body = read_varint(block, start, size)
        end = body + length
        if length < 1 or end > size:
            _refuse(header, f"a record of {length} bytes")
        timestamp_delta, rest = read_varlong(block, body + 1, end)
        offset_delta, position = read_varint(block, rest, end)
        key_bytes, position = read_varint(block, position, end)
        key = None
        if key_bytes >= 0:
            key = block[position : position + key_bytes]
            position += key_bytes
        value_bytes, position = read_varint(block, position, end)
        if key_bytes < -1 or value_bytes < -1 or position + value_bytes > end:
            _refuse(header, "a field leaves its record")
        spans.append(
            RecordSpan(
                start, body, rest, end, timestamp_delta, offset_delta, key, value_bytes == -1
            )
        )
        start = end
    if start != size:
        _refuse(header, "bytes after the last record")
    return spans


def empty_batch(header: BatchHeader) -> bytearray:
    """The batch of ``header`` without records: its offsets, sequences and epochs remain."""
    return reseal(
        header,
        b"",
        codec=Codec.NONE,
        record_count=0,
        base_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=header.max_timestamp_ms,
        has_delete_horizon=False,
    )


def rebuilt_batch(
    header: BatchHeader,
    block: bytes,
    kept: Sequence[RecordSpan],
    *,
    horizon_ms: int | None,
    keeps_max_timestamp: bool,
) -> bytearray:
    """The batch of ``header`` with the records ``kept``, at least one, of its ``block``.

    ``horizon_ms`` is stamped as the delete horizon; None leaves an existing one. With
    ``keeps_max_timestamp`` the header's maximum stays although its record may be gone, because
    the producer's state has it.
    """
    base_ms = header.base_timestamp_ms
    if horizon_ms is not None:
        base_ms = horizon_ms
    elif not header.has_delete_horizon and not header.is_log_append_time:
        base_ms += kept[0].timestamp_delta
    max_ms = header.max_timestamp_ms
    if not keeps_max_timestamp and not header.is_log_append_time:
        max_ms = header.base_timestamp_ms + max(span.timestamp_delta for span in kept)
    records = _record_bytes(block, kept, later_ms=header.base_timestamp_ms - base_ms)
    return reseal(
        header,
        records if header.codec is Codec.NONE else compress(header.codec, records),
        codec=header.codec,
        record_count=len(kept),
        base_timestamp_ms=base_ms,
        max_timestamp_ms=max_ms,
        has_delete_horizon=horizon_ms is not None or header.has_delete_horizon,
    )


def _record_bytes(block: bytes, kept: Sequence[RecordSpan], *, later_ms: int) -> bytes:
    """The records with ``later_ms`` added to each timestamp delta."""
    if later_ms == 0:
        return b"".join([block[span.start : span.end] for span in kept])
    pieces: list[bytes] = []
    for span in kept:
        attributes = block[span.body : span.body + 1]
        delta = encode_varlong(span.timestamp_delta + later_ms)
        rest = block[span.rest : span.end]
        size_bytes = len(attributes) + len(delta) + len(rest)
        pieces += (encode_varlong(size_bytes), attributes, delta, rest)
    return b"".join(pieces)


def _refuse(header: BatchHeader, reason: str) -> NoReturn:
    raise CorruptDataError(f"batch at offset {header.base_offset}: {reason}")
