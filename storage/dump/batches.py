"""The batches of one ``.log`` file as they are, intact or not, for tools that inspect it.

One batch is in memory at a time. A batch that fails its CRC is yielded, marked as such; where no
batch can begin, or the file ends inside one, the scan ends with a ``LogEnd`` that names the place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.dump.small_files import Row, offset_of
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.records.batch import BatchHeader, crc_matches
from oncelog.storage.records.codec import Record, decode_records
from oncelog.storage.records.control import decode_control
from oncelog.storage.records.layout import CODEC_MASK
from oncelog.storage.segments.frames import read_batches
from oncelog.storage.segments.inspection import TailDefect, whole_header
from oncelog.storage.segments.segment import LOG_SUFFIX, Segment


@dataclass(frozen=True, slots=True)
class ScannedBatch:
    """One whole batch; ``frame`` are its bytes and ``position`` where they begin."""

    position: int
    header: BatchHeader
    frame: memoryview
    is_intact: bool


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the scan ended. ``unread_bytes`` are what follows; 0 without a defect."""

    position: int
    unread_bytes: int
    defect: TailDefect


def scan_log(filesystem: FileSystem, path: Path) -> Iterator[ScannedBatch | LogEnd]:
    """Every batch of the file up to its current size, then one ``LogEnd``.

    OSError, and ``CorruptDataError`` if the file becomes shorter meanwhile.
    """
    base_offset = offset_of(path)
    segment = Segment(
        filesystem=filesystem,
        directory=path.parent,
        base_offset=base_offset,
        next_offset=base_offset,
        index_interval_bytes=0,
        state_suffix=path.name.partition(LOG_SUFFIX)[2],
    )
    try:
        segment.attach()
        end = 0
        for position, header, frame in read_batches(segment.log_file, 0, whole_header):
            if isinstance(header, TailDefect):
                yield LogEnd(position, segment.size_bytes - position, header)
                return
            yield ScannedBatch(position, header, frame, crc_matches(frame, header))
            end = position + len(frame)
        yield LogEnd(end, 0, TailDefect.NONE)
    finally:
        segment.close()


def batch_row(batch: ScannedBatch) -> Row:
    """The header of a batch; absent fields are left out."""
    header = batch.header
    row: dict[str, Any] = {
        "position": batch.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "size_bytes": header.size_bytes,
        "leader_epoch": header.leader_epoch,
        "max_timestamp_ms": header.max_timestamp_ms,
        "codec": _codec_name(header),
        "crc": f"{header.crc:08x}",
    }
    if header.has_producer_id:
        row["producer_id"] = header.producer_id
        row["producer_epoch"] = header.producer_epoch
        if header.base_sequence >= 0:
            row["base_sequence"] = header.base_sequence
            row["last_sequence"] = header.last_sequence
    flags = {
        "is_transactional": header.is_transactional,
        "is_log_append_time": header.is_log_append_time,
    }
    row.update((name, True) for name, is_set in flags.items() if is_set)
    if header.has_delete_horizon:
        row["delete_horizon_ms"] = header.base_timestamp_ms
    if header.is_control:
        row["control"] = _control_name(batch)
    if not batch.is_intact:
        row["crc_matches"] = False
    return row


def records_of(batch: ScannedBatch) -> list[Record]:
    """The records of a data batch, none for a control batch; ``CorruptDataError``."""
    if batch.header.is_control:
        return []
    return decode_records(batch.frame, batch.header)


def _codec_name(header: BatchHeader) -> str:
    try:
        return header.codec.name.lower()
    except CorruptDataError:
        return f"unknown {header.attributes & CODEC_MASK}"


def _control_name(batch: ScannedBatch) -> str:
    try:
        control = decode_control(batch.frame, batch.header)
    except CorruptDataError:
        return "unreadable"
    if control is None:
        return "emptied"
    if control.committed is None:
        return "other"
    verdict = "COMMIT" if control.committed else "ABORT"
    return f"{verdict} coordinator_epoch {control.coordinator_epoch}"
