"""Read the files of a partition directory row by row, for people and programs.

A row maps field names to numbers and texts, in the order of the bytes; ``position`` is the byte at
which it begins. Files are read in pieces, a log batch by batch, so only one piece is in memory.
Damage in a small file raises ``CorruptDataError`` with file and position, after the rows before it.
Nothing here writes: use it with ``ReadOnlyFileSystem``, even on a directory whose actor is running.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

from oncelog.storage.disk.file_system import TEMPORARY_SUFFIX, FileSystem
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.producer_snapshot import SNAPSHOT_SUFFIX, decode_snapshot
from oncelog.storage.log.side_files import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_CHECKPOINT_FILE,
    LEADER_EPOCH_FILE,
    LOCK_FILE,
    LOG_START_FILE,
    OFFSET_GAPS_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_FILE,
    RESTART_FILE,
    TOPIC_ID_FILE,
    RecoveryCheckpoint,
    decode_leader_epochs,
    decode_log_start,
    decode_metadata,
    decode_restart,
    decode_topic_id,
    read_clean_shutdown,
    read_first_dirty_offset,
    read_gaps_end,
)
from oncelog.storage.records.batch import BatchHeader, crc_matches
from oncelog.storage.records.codec import Record, decode_records
from oncelog.storage.records.control import decode_control
from oncelog.storage.records.layout import CODEC_MASK
from oncelog.storage.segments.frames import read_batches
from oncelog.storage.segments.inspection import TailDefect, whole_header
from oncelog.storage.segments.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
)
from oncelog.storage.segments.summary import SUMMARY_SUFFIX, SegmentSummary
from oncelog.storage.segments.swap import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX

Row: TypeAlias = Mapping[str, Any]
"""One entry of a file: field → number, text, or a list of them."""

_T = TypeVar("_T")

_PIECE_ENTRIES: Final = 32_768
_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
_TXN_ENTRY: Final = struct.Struct(">hqqqq")


class FileKind(enum.Enum):
    """The kinds of files in a partition directory."""

    LOG = "log"
    OFFSET_INDEX = "offset index"
    TIME_INDEX = "time index"
    TXN_INDEX = "aborted index"
    SUMMARY = "segment summary"
    SNAPSHOT = "producer snapshot"
    LEADER_EPOCHS = "leader epochs"
    RECOVERY = "recovery checkpoint"
    LOG_START = "log start offset"
    CLEANER = "cleaner checkpoint"
    OFFSET_GAPS = "offset gaps"
    RESTART = "restart offset"
    CLEAN_SHUTDOWN = "clean shutdown"
    METADATA = "topic of the partition"
    TOPIC_ID = "topic of the partition, checked"
    LOCK = "lock"
    UNFINISHED = "unfinished write"


_BY_SUFFIX: Final = MappingProxyType(
    {
        LOG_SUFFIX: FileKind.LOG,
        OFFSET_INDEX_SUFFIX: FileKind.OFFSET_INDEX,
        TIME_INDEX_SUFFIX: FileKind.TIME_INDEX,
        TXN_INDEX_SUFFIX: FileKind.TXN_INDEX,
        SUMMARY_SUFFIX: FileKind.SUMMARY,
        SNAPSHOT_SUFFIX: FileKind.SNAPSHOT,
    }
)
_BY_NAME: Final = MappingProxyType(
    {
        LEADER_EPOCH_FILE: FileKind.LEADER_EPOCHS,
        RECOVERY_FILE: FileKind.RECOVERY,
        LOG_START_FILE: FileKind.LOG_START,
        CLEANER_CHECKPOINT_FILE: FileKind.CLEANER,
        OFFSET_GAPS_FILE: FileKind.OFFSET_GAPS,
        RESTART_FILE: FileKind.RESTART,
        CLEAN_SHUTDOWN_FILE: FileKind.CLEAN_SHUTDOWN,
        PARTITION_METADATA_FILE: FileKind.METADATA,
        TOPIC_ID_FILE: FileKind.TOPIC_ID,
        LOCK_FILE: FileKind.LOCK,
    }
)
_LEFTOVER_SUFFIXES: Final = (CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX)


def kind_of(name: str) -> FileKind | None:
    """The kind of the file with this name; None if it is not a partition's."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    stem, dot, suffix = name.partition(".")
    return _BY_SUFFIX.get(dot + suffix) if stem.isdecimal() else None


def leftover_kind_of(name: str) -> FileKind | None:
    """The kind of a file left by a crash: part of an unfinished compacted segment, or half written.

    None if it is no such file. The next open of the log finishes or removes it.
    """
    if name.endswith(TEMPORARY_SUFFIX):
        is_ours = kind_of(name.removesuffix(TEMPORARY_SUFFIX)) is not None
        return FileKind.UNFINISHED if is_ours else None
    for suffix in _LEFTOVER_SUFFIXES:
        if name.endswith(suffix):
            return kind_of(name.removesuffix(suffix))
    return None


def offset_of(path: Path) -> int:
    """The offset that the file is named after."""
    return int(path.name.partition(".")[0])


def is_partition_directory(filesystem: FileSystem, directory: Path) -> bool:
    """Whether segments are in the directory."""
    return any(kind_of(name) is FileKind.LOG for name in filesystem.list_directory(directory))


def rows_of(filesystem: FileSystem, path: Path) -> Iterator[Row]:
    """The rows of any small file; for a ``.log`` see ``scan_log``."""
    kind = kind_of(path.name) or leftover_kind_of(path.name)
    reader = _READERS.get(kind) if kind is not None else None
    if reader is None:
        raise ValueError(f"{path.name} has no rows")
    return reader(filesystem, path)


# --- indexes ----------------------------------------------------------------------------------


def _entries(
    filesystem: FileSystem, path: Path, layout: struct.Struct
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Position and fields of each entry; an incomplete last one raises."""
    handle = filesystem.open(path, create=False)
    try:
        position = 0
        while piece := handle.read(position, _PIECE_ENTRIES * layout.size):
            whole = len(piece) - len(piece) % layout.size
            for fields in layout.iter_unpack(piece[:whole]):
                yield position, fields
                position += layout.size
            if whole < len(piece):
                raise CorruptDataError(
                    f"{path} at byte {position}: {len(piece) - whole} bytes of an incomplete entry"
                )
    finally:
        handle.close()


def offset_index_rows(filesystem: FileSystem, path: Path) -> Iterator[Row]:
    """``offset`` is the last one of the batch at ``batch_position``."""
    base_offset = offset_of(path)
    for position, (relative, batch_position) in _entries(filesystem, path, _OFFSET_ENTRY):
        yield {
            "position": position,
            "offset": base_offset + relative,
            "batch_position": batch_position,
        }


def time_index_rows(filesystem: FileSystem, path: Path) -> Iterator[Row]:
    """``offset`` is the last one of the batch that has the largest timestamp so far."""
    base_offset = offset_of(path)
    for position, (timestamp_ms, relative) in _entries(filesystem, path, _TIME_ENTRY):
        yield {
            "position": position,
            "timestamp_ms": timestamp_ms,
            "offset": base_offset + relative,
        }


def txn_index_rows(filesystem: FileSystem, path: Path) -> Iterator[Row]:
    """Aborted transactions; ``last_offset`` is that of the marker."""
    for position, fields in _entries(filesystem, path, _TXN_ENTRY):
        version, producer_id, first_offset, last_offset, last_stable_offset = fields
        if version != 0:
            raise CorruptDataError(f"{path} at byte {position}: unknown version {version}")
        yield {
            "position": position,
            "producer_id": producer_id,
            "first_offset": first_offset,
            "last_offset": last_offset,
            "last_stable_offset": last_stable_offset,
        }


# --- state and checkpoints ----------------------------------------------------------------------


def _decoded(filesystem: FileSystem, path: Path, decode: Callable[[bytes], _T]) -> _T:
    """Read and decode a whole file; adds the path to errors."""
    try:
        return decode(filesystem.read_whole(path))
    except CorruptDataError as error:
        raise CorruptDataError(f"{path} at byte 0: {error}") from error


def summary_rows(filesystem: FileSystem, path: Path) -> Iterator[Row]:
    """The one row: end and times of a sealed segment, and the CRC of each file beside it."""
    yield _decoded(filesystem, path, SegmentSummary.from_bytes)._asdict()


def snapshot_rows(filesystem: FileSystem, path: Path) -> Iterator[Row]:
    """Producers as they were before the offset of the name."""
    yield from map(asdict, _decoded(filesystem, path, decode_snapshot))


def leader_epoch_rows(filesystem: FileSystem, path: Path) -> Iterator[Row]:
    """Leader epochs and where they begin."""
    for epoch, start_offset in _decoded(filesystem, path, decode_leader_epochs):
        yield {"leader_epoch": epoch, "start_offset": start_offset}


def recovery_rows(filesystem: FileSystem, path: Path) -> Iterator[Row]:
    """The one row of the checkpoint."""
    yield _decoded(filesystem, path, RecoveryCheckpoint.from_bytes)._asdict()


def log_start_rows(filesystem: FileSystem, path: Path) -> Iterator[Row]:
    """Where the log begins, unless the checkpoint or the first segment says later."""
    yield {"log_start_offset": _decoded(filesystem, path, decode_log_start)}


def clean_shutdown_rows(filesystem: FileSystem, path: Path) -> Iterator[Row]:
    """The log as it was closed."""
    flag = read_clean_shutdown(filesystem, path.parent)
    if flag is None:
        raise CorruptDataError(f"{path} at byte 0: the flag cannot be read")
    yield asdict(flag)


def cleaner_rows(filesystem: FileSystem, path: Path) -> Iterator[Row]:
    """The first offset that is not compacted yet."""
    yield {"first_dirty_offset": read_first_dirty_offset(filesystem, path.parent)}


def offset_gaps_rows(filesystem: FileSystem, path: Path) -> Iterator[Row]:
    """The offset below which copied batches may have gaps between them."""
    yield {"gaps_end": read_gaps_end(filesystem, path.parent)}


def restart_rows(filesystem: FileSystem, path: Path) -> Iterator[Row]:
    """Where the new log begins, once the restart is finished."""
    yield {"restart_offset": _decoded(filesystem, path, decode_restart)}


def metadata_rows(filesystem: FileSystem, path: Path) -> Iterator[Row]:
    """The one row: version and topic id."""
    version, topic_id = _decoded(filesystem, path, decode_metadata)
    if not version.isdecimal():
        raise CorruptDataError(f"{path} at byte 0: no version and topic id")
    yield {"version": int(version), "topic_id": topic_id}


def topic_id_rows(filesystem: FileSystem, path: Path) -> Iterator[Row]:
    """The one row: the topic id."""
    yield {"topic_id": _decoded(filesystem, path, decode_topic_id)}


def no_rows(_filesystem: FileSystem, _path: Path) -> Iterator[Row]:
    """For a file without content, or with content that means nothing yet."""
    return iter(())


_READERS: Final[Mapping[FileKind, Callable[[FileSystem, Path], Iterator[Row]]]] = MappingProxyType(
    {
        FileKind.OFFSET_INDEX: offset_index_rows,
        FileKind.TIME_INDEX: time_index_rows,
        FileKind.TXN_INDEX: txn_index_rows,
        FileKind.SUMMARY: summary_rows,
        FileKind.SNAPSHOT: snapshot_rows,
        FileKind.LEADER_EPOCHS: leader_epoch_rows,
        FileKind.RECOVERY: recovery_rows,
        FileKind.LOG_START: log_start_rows,
        FileKind.CLEANER: cleaner_rows,
        FileKind.OFFSET_GAPS: offset_gaps_rows,
        FileKind.RESTART: restart_rows,
        FileKind.CLEAN_SHUTDOWN: clean_shutdown_rows,
        FileKind.METADATA: metadata_rows,
        FileKind.TOPIC_ID: topic_id_rows,
        FileKind.LOCK: no_rows,
        FileKind.UNFINISHED: no_rows,
    }
)


# --- the batches of a log -----------------------------------------------------------------------
# Intact or not. One batch is in memory at a time. A batch that fails its CRC is yielded and marked
# as such. Where no batch can begin, or the file ends inside one, the scan ends with a ``LogEnd``
# that gives the position.


@dataclass(frozen=True, slots=True)
class ScannedBatch:
    """One whole batch; ``frame`` is its bytes and ``position`` where they begin."""

    position: int
    header: BatchHeader
    frame: memoryview
    is_intact: bool


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the scan ended. ``unread_bytes`` counts what follows; 0 without a defect."""

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
