"""What the disks of the brokers say at the end: equal replicas, and how often leaders changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from oncelog.actors.protocol.cluster.log import (
    ClusterRecord,
    IsrChanged,
    LeaderElected,
    ReplicasChanged,
    decode_cluster_record,
)
from oncelog.storage.disk.file_system import ReadOnlyFileSystem
from oncelog.storage.dump.batches import LogEnd, ScannedBatch, records_of, scan_log
from oncelog.storage.model import CLUSTER_METADATA_TOPIC
from oncelog.storage.records.batch import BatchHeader


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

    ``data_dirs`` are those of the brokers. Files may begin and end at other batches.
    """
    found = []
    for key in keys:
        held = {n: path / key for n, path in data_dirs.items() if (path / key).is_dir()}
        if len(held) != replication:
            found.append(f"{key} is on brokers {sorted(held)} only")
            continue
        (first, directory), *others = held.items()
        found += [
            f"{key} of brokers {first} and {other}: {difference}"
            for other, path in others
            if (difference := _difference(directory, path))
        ]
    return "; ".join(found)


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
