"""What the disks of the brokers say at the end: equal replicas, and how often leaders changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeGuard

from oncelog.actors.protocol.cluster.cluster_records import (
    ClusterRecord,
    IsrChanged,
    LeaderElected,
    ReplicasChanged,
    decode_cluster_record,
)
from oncelog.storage.disk.file_system import ReadOnlyFileSystem
from oncelog.storage.dump.contents import LogEnd, ScannedBatch, records_of, scan_log
from oncelog.storage.model import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from oncelog.storage.records.batch import BatchHeader

COORDINATORS_TOPICS: Final = (f"{CONSUMER_OFFSETS_TOPIC}-", f"{TRANSACTION_STATE_TOPIC}-")


def batches_of(directory: Path) -> Iterator[ScannedBatch | LogEnd]:
    """Every batch of a partition's files, in order; a file that ends torn ends with its defect."""
    for path in sorted(directory.glob("*.log")):
        for batch in scan_log(ReadOnlyFileSystem(), path):
            if isinstance(batch, ScannedBatch) or batch.unread_bytes:
                yield batch


def replica_differences(
    data_dirs: Mapping[int, Path], keys: Sequence[str], replication: int
) -> str:
    """Where the replicas of a key do not have the same batches, byte for byte, or are too few.

    ``data_dirs`` are those of the brokers. Files may begin and end at other batches. Of
    coordinators' logs, which are compacted at different times, the batches are compared that
    several have whole, and where the logs end.
    """
    found = []
    for key in keys:
        held = {n: path / key for n, path in data_dirs.items() if (path / key).is_dir()}
        if len(held) != replication:
            found.append(f"{key} is on brokers {sorted(held)} only")
            continue
        differs = _difference_of_compacted if key.startswith(COORDINATORS_TOPICS) else _difference
        (first, directory), *others = held.items()
        found += [
            f"{key} of brokers {first} and {other}: {difference}"
            for other, path in others
            if (difference := differs(directory, path))
        ]
    return "; ".join(found)


def coordinators_keys(data_dirs: Mapping[int, Path]) -> list[str]:
    """The partitions of coordinators' logs that some broker has."""
    return sorted(
        {
            path.name
            for data_dir in data_dirs.values()
            for path in data_dir.iterdir()
            if path.name.startswith(COORDINATORS_TOPICS)
        }
    )


def _difference_of_compacted(one: Path, other: Path) -> str:
    logs = [list(batches_of(path)) for path in (one, other)]
    ends = [_text(log[-1] if log else None) for log in logs]
    left, right = ({b.header.base_offset: b for b in log if _is_whole(b)} for log in logs)
    for offset in sorted(left.keys() & right.keys()):
        if _bytes(left[offset]) != _bytes(right[offset]):
            return f"{_text(left[offset])} and {_text(right[offset])}"
    return "" if ends[0] == ends[1] else f"the last is {ends[0]} and {ends[1]}"


def _is_whole(batch: ScannedBatch | LogEnd) -> TypeGuard[ScannedBatch]:
    """Whether compaction has taken no record of it, and marked nothing."""
    if not isinstance(batch, ScannedBatch):
        return False
    header = batch.header
    is_full = header.record_count == header.last_offset_delta + 1
    return is_full and not header.has_delete_horizon


def _difference(one: Path, other: Path) -> str:
    for left, right in itertools.zip_longest(batches_of(one), batches_of(other)):
        if _bytes(left) != _bytes(right):
            return f"{_text(left)} and {_text(right)}"
    return ""


def _bytes(batch: ScannedBatch | LogEnd | None) -> bytes | None:
    return bytes(batch.frame) if isinstance(batch, ScannedBatch) else None


def _text(batch: ScannedBatch | LogEnd | None) -> str:
    if not isinstance(batch, ScannedBatch):
        return f"nothing ({batch})"
    header: BatchHeader = batch.header
    return (
        f"offsets {header.base_offset} to {header.last_offset} of leader epoch "
        f"{header.leader_epoch}, CRC {header.crc:08x}"
    )


@dataclass(slots=True)
class Moves:
    """What the controller has decided. ``leaderless`` is how often a partition lost its leader."""

    epochs: int = 0
    leaders_moved: int = 0
    leaderless: int = 0
    shrinks: int = 0
    growths: int = 0

    def __str__(self) -> str:
        return (
            f"{self.epochs} leader epochs, {self.leaders_moved} to another broker, "
            f"{self.leaderless} without a leader; ISR shrank {self.shrinks} times, "
            f"grew {self.growths} times"
        )


LoggedChange = tuple[int, ClusterRecord]
"""A record of the metadata log, and when it was appended, in ms of the machine's clock."""


def logged_changes(data_dir: Path) -> list[LoggedChange]:
    """Read the copy of the metadata log in a broker's data directory."""
    found: list[LoggedChange] = []
    for batch in batches_of(data_dir / f"{CLUSTER_METADATA_TOPIC}-0"):
        if isinstance(batch, LogEnd):
            break
        found += [
            (batch.header.max_timestamp_ms, decode_cluster_record(record.value))
            for record in records_of(batch)
            if record.value is not None
        ]
    return found


def count_moves(changes: Iterable[LoggedChange]) -> Moves:
    """Count what the records say of leaders and ISRs."""
    moves = Moves()
    leaders: dict[tuple[str, int], int] = {}
    sizes: dict[tuple[str, int], int] = {}
    for _, change in changes:
        if not isinstance(change, LeaderElected | IsrChanged | ReplicasChanged):
            continue
        place = (change.topic_id, change.partition)
        size = sizes.get(place, len(change.isr))
        moves.shrinks += len(change.isr) < size
        moves.growths += len(change.isr) > size
        sizes[place] = len(change.isr)
        if isinstance(change, LeaderElected):
            moves.epochs += 1
            moves.leaderless += change.leader < 0
            before = leaders.get(place, change.leader)
            moves.leaders_moved += change.leader >= 0 and change.leader != before
            if change.leader >= 0:
                leaders[place] = change.leader
    return moves
