"""Whether a sealed segment and the files beside it match its summary: for verification."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from crc32c import crc32c

from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.dump.findings import Finding
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.segments.segment import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from oncelog.storage.segments.summary import SUMMARY_SUFFIX, SegmentSummary


def check_summary(filesystem: FileSystem, log_path: Path) -> Iterator[Finding]:
    """What differs from the summary of the segment whose ``.log`` is ``log_path``.

    The next open rebuilds all of it except the log itself.
    """
    path = log_path.with_suffix(SUMMARY_SUFFIX)
    try:
        data = filesystem.read_whole(path)
    except FileNotFoundError:
        reason = "it is missing: the next open reads the segment again"
        yield Finding(path=path, position=0, reason=reason, is_problem=False)
        return
    try:
        summary = SegmentSummary.from_bytes(data)
    except CorruptDataError as error:
        yield Finding(path=path, position=0, reason=str(error))
        return
    found = list(_differences(filesystem, log_path, summary))
    # Compaction may have replaced the files meanwhile.
    if found and filesystem.exists(path) and filesystem.read_whole(path) == data:
        yield from found


def _differences(
    filesystem: FileSystem, log_path: Path, summary: SegmentSummary
) -> Iterator[Finding]:
    size_bytes = filesystem.file_size(log_path)
    if size_bytes != summary.log_bytes:
        reason = f"{size_bytes} bytes, {summary.log_bytes} when the segment was sealed"
        yield Finding(path=log_path, position=min(size_bytes, summary.log_bytes), reason=reason)
    for suffix, expected in (
        (OFFSET_INDEX_SUFFIX, summary.index_crc32c),
        (TIME_INDEX_SUFFIX, summary.timeindex_crc32c),
        (TXN_INDEX_SUFFIX, summary.txnindex_crc32c),
    ):
        path = log_path.with_suffix(suffix)
        try:
            found = crc32c(filesystem.read_whole(path))
        except FileNotFoundError:
            found = 0
        if found != expected:
            reason = "it is not what it was when the segment was sealed"
            yield Finding(path=path, position=0, reason=reason)
