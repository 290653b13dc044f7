"""Short ways to inspect a partition log and to damage its file."""

from __future__ import annotations

from pathlib import Path

from oncelog.storage.records.batch import iterate_batches


def offsets_of(records: bytes) -> list[int]:
    return [header.base_offset for _, header in iterate_batches(records)]


def read_all(log) -> bytes:
    data, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        part = log.fetch(offset, max_bytes=1 << 20, upper_offset=log.log_end_offset)
        data += part.records
        offset = part.next_offset
    return data


def log_file(tmp_path: Path, base_offset: int = 0) -> Path:
    return tmp_path / "flights-0" / f"{base_offset:020d}.log"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def abort_two(log) -> None:
    """Transactions A [0, 9] and B [5, 12], both aborted."""
    log.append_aborted(producer_id=1, first_offset=0, last_offset=9, last_stable_offset=5)
    log.append_aborted(producer_id=2, first_offset=5, last_offset=12, last_stable_offset=13)
