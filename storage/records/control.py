"""The one record of a control batch: a transaction's COMMIT or ABORT marker.

Key: version int16, type int16 (0 ABORT, 1 COMMIT; others belong to the metadata quorum and are
skipped). Value: version int16, coordinator_epoch int32; a longer value is of a newer version,
of which the known beginning is read. Both big-endian. A marker takes an offset, carries the
producer id and epoch of its transaction, has no sequence and is never compressed.
Source: KIP-98 with the type numbers that Kafka shipped.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_COORDINATOR_EPOCH
from oncelog.storage.records.batch import BatchHeader, Buffer, seal
from oncelog.storage.records.compression import Codec
from oncelog.storage.records.layout import HEADER_BYTES
from oncelog.storage.records.varint import read_varint, read_varlong

_ABORT: Final = 0
_COMMIT: Final = 1
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")

# length 16, attributes, timestamp delta and offset delta 0, key of 4, value of 6, no headers.
_MARKER = struct.Struct(">5s4ss6ss")
_MARKER_HEAD: Final = b"\x20\x00\x00\x00\x08"
_VALUE_LENGTH: Final = b"\x0c"
_NO_HEADERS: Final = b"\x00"


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """A transaction's verdict; ``committed`` is None for a control type that is no verdict.

    ``coordinator_epoch`` is the epoch of the coordinator that decided, -1 if there is no verdict.
    """

    committed: bool | None
    coordinator_epoch: int


def encode_marker(
    *,
    producer_id: int,
    producer_epoch: int,
    committed: bool,
    coordinator_epoch: int,
    timestamp_ms: int,
) -> bytearray:
    """The control batch that ends a transaction; base offset and leader epoch not yet patched."""
    record = _MARKER.pack(
        _MARKER_HEAD,
        _KEY.pack(0, _COMMIT if committed else _ABORT),
        _VALUE_LENGTH,
        _VALUE.pack(0, coordinator_epoch),
        _NO_HEADERS,
    )
    return seal(
        record,
        record_count=1,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def decode_control(buffer: Buffer, header: BatchHeader, position: int = 0) -> ControlRecord | None:
    """What the control batch at ``position`` says; None if compaction has emptied it.

    Raises ``CorruptDataError`` if it is no control batch or its record breaks the format.
    """
    if header.record_count == 0:
        return None
    if not header.is_control or header.record_count != 1 or header.codec is not Codec.NONE:
        raise CorruptDataError(f"batch at offset {header.base_offset} is no control batch")
    end = position + header.size_bytes
    if end > len(buffer):
        raise CorruptDataError(f"control batch at offset {header.base_offset} is cut off")
    key, value = _key_and_value(memoryview(buffer), position + HEADER_BYTES, end)
    if len(key) < _KEY.size:
        raise CorruptDataError(f"control batch at offset {header.base_offset}: key too short")
    key_version, control_type = _KEY.unpack_from(key)
    if key_version < 0:
        raise CorruptDataError(f"control batch at offset {header.base_offset}: version below 0")
    if control_type not in (_ABORT, _COMMIT):
        return ControlRecord(None, NO_COORDINATOR_EPOCH)
    if len(value) < _VALUE.size:
        raise CorruptDataError(f"control batch at offset {header.base_offset}: value too short")
    value_version, coordinator_epoch = _VALUE.unpack_from(value)
    if value_version < 0:
        raise CorruptDataError(f"control batch at offset {header.base_offset}: version below 0")
    return ControlRecord(control_type == _COMMIT, coordinator_epoch)


def _key_and_value(view: memoryview, position: int, end: int) -> tuple[memoryview, memoryview]:
    """Key and value of the one record; a null one is returned empty. Headers are skipped."""
    length, position = read_varint(view, position, end)
    if length != end - position:
        raise CorruptDataError("control record does not fill its batch")
    # The attributes byte is unused.
    _, position = read_varlong(view, position + 1, end)
    _, position = read_varint(view, position, end)
    key, position = _nullable(view, position, end)
    value, position = _nullable(view, position, end)
    return key, value


def _nullable(view: memoryview, position: int, end: int) -> tuple[memoryview, int]:
    length, position = read_varint(view, position, end)
    if length < -1 or length > end - position:
        raise CorruptDataError(f"length {length} at byte {position} is impossible")
    length = max(length, 0)
    return view[position : position + length], position + length
