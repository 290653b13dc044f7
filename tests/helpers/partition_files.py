"""The files of a partition directory by name, and short ways to damage them."""

from __future__ import annotations

from oncelog.storage.log.side_files import RecoveryCheckpoint
from oncelog.storage.records.batch import iterate_batches

FIRST, SECOND, ACTIVE = 0, 351, 735
"""The segments of the sample data log, which ends at 769."""


def file_of(directory, base_offset, suffix):
    return directory / f"{base_offset:020d}{suffix}"


def positions(directory, base_offset):
    """(position, header) of each batch."""
    return list(iterate_batches(file_of(directory, base_offset, ".log").read_bytes()))


def overwrite(path, position, data):
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def cut(path, count):
    path.write_bytes(path.read_bytes()[:-count])


def set_recovery_point(directory, offset):
    checkpoint = RecoveryCheckpoint(recovery_point=offset, log_start_offset=0, high_watermark=0)
    (directory / "recovery-checkpoint").write_bytes(checkpoint.to_bytes())
