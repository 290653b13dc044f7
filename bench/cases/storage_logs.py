"""Logs for the storage benchmark: batches as clients send them, and logs made quickly."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from oncelog.actors.config import ReplicaConfig
from oncelog.actors.process.background import ThreadBackground
from oncelog.actors.process.clock import SystemClock
from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.actors.protocol.tickets import ClusterKeys, issue_plain_ticket
from oncelog.actors.replica.events import ReplicaEvents
from oncelog.actors.replica.replica import Replica
from oncelog.storage.disk.file_system import Buffer, RealFileHandle, RealFileSystem
from oncelog.storage.errors import ErrorCode
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import parse_header, patch, seal
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.compression import Codec
from oncelog.storage.records.layout import HEADER_BYTES

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

TOPIC: Final = "bench"
TOPIC_PARTITION: Final = TopicPartition(TOPIC, 0)
LEADER_EPOCH: Final = 1
RECORDS_PER_BATCH: Final = 10
TIMESTAMP_MS: Final = 1_700_000_000_000

_MESSAGE_MAX_BYTES: Final = 2 * MIB


def client_batches(
    count: int, size_bytes: int, *, producer_id: int = 1, body: bytes | None = None
) -> list[bytes]:
    """Batches of one idempotent producer, in sequence, each of exactly ``size_bytes``."""
    if body is None:
        body = _records(size_bytes - HEADER_BYTES)
    return [
        bytes(
            seal(
                body,
                codec=Codec.NONE,
                record_count=RECORDS_PER_BATCH,
                base_timestamp_ms=TIMESTAMP_MS + number,
                max_timestamp_ms=TIMESTAMP_MS + number,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=number * RECORDS_PER_BATCH,
                is_transactional=False,
            )
        )
        for number in range(count)
    ]


def _records(size_bytes: int) -> bytes:
    """Whole records of random values that take ``size_bytes`` together."""
    sizes = [max(size_bytes // RECORDS_PER_BATCH - 12, 0)] * RECORDS_PER_BATCH
    while True:
        rows = [(None, os.urandom(size), TIMESTAMP_MS, ()) for size in sizes]
        body = bytes(encode_records(rows))[HEADER_BYTES:]
        if len(body) == size_bytes:
            return body
        sizes[-1] += size_bytes - len(body)


def ticket_of(batches: Sequence[bytes]) -> bytes:
    """The ticket of the producer that has sent all of ``batches``."""
    producer_id = parse_header(batches[0]).producer_id
    return issue_plain_ticket(cluster_key=b"", producer_id=producer_id, issued_ms=0)


def leading_machine() -> PartitionMachine:
    """A machine that leads an empty partition."""
    machine = PartitionMachine(TOPIC_PARTITION)
    machine.become_leader(LEADER_EPOCH, "", ClusterKeys(current=b""))
    return machine


def open_log(
    directory: Path, *, filesystem: RealFileSystem | None = None, segment_bytes: int = GIB
) -> PartitionLog:
    """The log of ``directory`` with Kafka's defaults."""
    return PartitionLog.open(
        filesystem=filesystem or RealFileSystem(),
        directory=directory,
        settings=LogSettings(segment_bytes=segment_bytes),
        now_ms=TIMESTAMP_MS,
    )


def sync(log: PartitionLog) -> None:
    """One whole round of group sync."""
    point = log.sync_point()
    point.run()
    log.mark_synced(point)


def append_all(log: PartitionLog, batches: Sequence[bytes]) -> None:
    """Append without checks, rolling where the settings say so."""
    for batch in batches:
        header = parse_header(batch).with_offset(log.log_end_offset, LEADER_EPOCH)
        if log.needs_roll(len(batch), header.max_timestamp_ms, TIMESTAMP_MS):
            log.roll([])
        log.append(batch, header)


def fill_log(directory: Path, *, size_bytes: int, batch_bytes: int) -> None:
    """A synced one-segment log that was never closed, as a killed process leaves it."""
    log = open_log(directory)
    log.assign_leader_epoch(LEADER_EPOCH, 0)
    (batch,) = client_batches(1, batch_bytes)
    piece_count = max(1, MIB // batch_bytes)
    path = directory / f"{0:020d}.log"
    descriptor = os.open(path, os.O_WRONLY)
    try:
        piece = bytearray(batch * piece_count)
        base_offset = written = 0
        while written + len(piece) <= size_bytes:
            for position in range(0, len(piece), batch_bytes):
                patch(piece, base_offset=base_offset, leader_epoch=LEADER_EPOCH, position=position)
                base_offset += RECORDS_PER_BATCH
            written += os.write(descriptor, piece)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    log.close(None)


class SparseHandle(RealFileHandle):
    """A file whose batches have a real header and a hole for their bytes, which are all zero."""

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write the first 61 bytes only; the file grows by all."""
        whole = b"".join(buffers)
        if len(whole) <= HEADER_BYTES:
            return super().append((whole,))
        position = super().append((whole[:HEADER_BYTES],))
        self.truncate(position + len(whole))
        return position


class SparseFileSystem(RealFileSystem):
    """Takes no room for the records of a log."""

    def open(self, path: Path, *, create: bool) -> RealFileHandle:
        """Open as ever, but a ``.log`` file is written sparsely."""
        handle = super().open(path, create=create)
        if path.suffix != ".log":
            return handle
        sparse = SparseHandle(os.dup(handle._descriptor), handle.size)
        handle.close()
        return sparse


def fill_long_log(
    directory: Path,
    *,
    size_bytes: int,
    real_bytes: int,
    batch_bytes: int,
    segment_bytes: int,
) -> None:
    """A cleanly closed log, the last ``real_bytes`` of it real, random bytes.

    Before them stand batches with real headers and indexes whose records are holes in the file.
    """
    parts = (
        (SparseFileSystem(), size_bytes - real_bytes, bytes(batch_bytes - HEADER_BYTES)),
        (RealFileSystem(), real_bytes, os.urandom(batch_bytes - HEADER_BYTES)),
    )
    for filesystem, part_bytes, body in parts:
        log = open_log(directory, filesystem=filesystem, segment_bytes=segment_bytes)
        (batch,) = client_batches(1, batch_bytes, body=body)
        for _ in range(part_bytes // batch_bytes):
            append_all(log, (batch,))
        log.close([])


def drop_cache(directory: Path) -> None:
    """Forget the cached pages of every file there; they must have been synced."""
    for path in directory.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def make_replica(data_dir: Path) -> Replica:
    """A replica on the real file system, clock and thread; it leads after ``start``."""

    async def epoch_source(last_epoch: int) -> BecomeLeaderReply:
        await asyncio.sleep(0)
        return BecomeLeaderReply(
            error=ErrorCode.NONE,
            leader_epoch=last_epoch + 1,
            settings=(("max_message_bytes", str(_MESSAGE_MAX_BYTES)),),
        )

    return Replica(
        config=ReplicaConfig(topic=TOPIC, partition=0, broker_id=0, data_dir=str(data_dir)),
        filesystem=RealFileSystem(),
        clock=SystemClock(),
        background=ThreadBackground(),
        events=ReplicaEvents(),
        epoch_source=epoch_source,
    )


def fetch_offsets(log: PartitionLog, *, max_bytes: int) -> Iterator[tuple[int, int]]:
    """(offset, bytes read) of each fetch that a reader of the whole log makes."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.fetch(offset, max_bytes=max_bytes, upper_offset=log.log_end_offset)
        yield offset, len(found.records)
        offset = found.next_offset
