"""A log with its machine, driven by a script of producers, for the compaction tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.api.consuming.fetch_buffer import visible_batches
from oncelog.storage.compaction.compactor import Cleaner, CleanResult, CompactionSettings
from oncelog.storage.disk.file_system import RealFileHandle, RealFileSystem
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import parse_header, patch
from oncelog.storage.records.codec import Record, decode_records, encode_records
from oncelog.storage.records.compression import Codec
from oncelog.storage.records.control import decode_control, encode_marker

TP = TopicPartition("flights", 0)
EVERYTHING = 1 << 30


class UnsyncedHandle(RealFileHandle):
    """No power fails in these tests, so nothing waits for the disk."""

    def datasync(self) -> None:
        return

    def duplicate(self) -> UnsyncedHandle:
        copy = super().duplicate()
        return UnsyncedHandle(copy._descriptor, copy.size)


class UnsyncedFileSystem(RealFileSystem):
    def open(self, path: Path, *, create: bool) -> UnsyncedHandle:
        handle = super().open(path, create=create)
        return UnsyncedHandle(handle._descriptor, handle.size)

    def sync_directory(self, path: Path) -> None:
        return


@dataclass
class Producer:
    """One producer as its client and coordinator see it."""

    producer_id: int
    epoch: int = 0
    sequence: int = 0
    is_open: bool = False


@dataclass
class TransactionalLog:
    """Appends what producers and coordinators would, keeps the machine along, and reads back."""

    directory: Path
    settings: LogSettings = field(default_factory=LogSettings)
    filesystem: RealFileSystem = field(default_factory=UnsyncedFileSystem)
    now_ms: int = 1_000
    coordinator_epoch: int = 7
    producers: dict[int, Producer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log = self.open()
        self.machine = self.replayed()

    def open(self) -> PartitionLog:
        return PartitionLog.open(
            filesystem=self.filesystem, directory=self.directory, settings=self.settings, now_ms=0
        )

    # Appending

    def send(
        self,
        records,
        *,
        producer_id: int = -1,
        is_transactional: bool = False,
        has_sequence: bool = True,
        codec: Codec = Codec.NONE,
    ) -> int:
        """Append (key, value) records as one batch; returns its base offset."""
        fields = {}
        if producer_id >= 0:
            producer = self.producers.setdefault(producer_id, Producer(producer_id))
            fields = {
                "producer_id": producer_id,
                "producer_epoch": producer.epoch,
                "base_sequence": producer.sequence if has_sequence else -1,
                "is_transactional": is_transactional,
            }
            producer.sequence += len(records)
            producer.is_open |= is_transactional
        batch = encode_records(
            [(key, value, self.now_ms + place, ()) for place, (key, value) in enumerate(records)],
            codec=codec,
            **fields,
        )
        return self.write(batch)

    def end(self, producer_id: int, *, committed: bool, raises_epoch: bool = True) -> int:
        """Append the marker of the producer's transaction; returns its offset."""
        producer = self.producers.setdefault(producer_id, Producer(producer_id))
        if raises_epoch:
            producer.epoch += 1
            producer.sequence = 0
        producer.is_open = False
        return self.write(
            encode_marker(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                committed=committed,
                coordinator_epoch=self.coordinator_epoch,
                timestamp_ms=self.now_ms,
            )
        )

    def write(self, batch: bytearray) -> int:
        base_offset = self.log.log_end_offset
        header = parse_header(batch).with_offset(base_offset, 0)
        patch(batch, base_offset=base_offset, leader_epoch=0)
        if self.log.needs_roll(len(batch), header.max_timestamp_ms, self.now_ms):
            self.roll()
        self.log.append(batch, header)
        self._apply(self.machine, header, batch)
        return base_offset

    def roll(self) -> None:
        self.log.roll(self.machine.snapshot())

    def sync(self) -> None:
        """Everything is durable and replicated."""
        point = self.log.sync_point()
        point.run()
        self.log.mark_synced(point)
        self.machine.advance_high_watermark(self.machine.log_end_offset)

    def _apply(self, machine: PartitionMachine, header, batch) -> None:
        control = decode_control(batch, header) if header.is_control else None
        completed = machine.apply(header, control)
        if completed is not None and completed.is_aborted:
            self.log.append_aborted(
                producer_id=completed.producer_id,
                first_offset=completed.first_offset,
                last_offset=completed.last_offset,
                last_stable_offset=completed.last_stable_offset,
            )

    # Compacting and reloading

    def clean(self, **settings) -> CleanResult:
        """Compact all that is decided, as a server does."""
        self.sync()
        return Cleaner(self.log, CompactionSettings(**settings)).clean(
            upper_offset=self.machine.last_stable_offset,
            now_ms=self.now_ms,
            producers=self.machine.snapshot(),
        )

    def replayed(self, *, with_snapshot: bool = False) -> PartitionMachine:
        """A machine rebuilt from the log, without the help of snapshots unless asked."""
        machine = PartitionMachine(TP)
        offset, entries = self.log.latest_snapshot() if with_snapshot else (0, [])
        machine.load(self.log.log_start_offset, offset, entries)
        for header, batch in self.log.replay(machine.replay_from):
            self._apply(machine, header, batch)
        machine.advance_high_watermark(machine.log_end_offset)
        return machine

    def reopen(self, *, is_clean: bool) -> None:
        """Stop, cleanly or not, and start again."""
        self.log.close(self.machine.snapshot() if is_clean else None)
        self.log = self.open()
        self.machine = self.replayed(with_snapshot=True)
        self.log.end_restore()

    # Reading

    def committed(self, offset: int = 0) -> list[Record]:
        """What a read_committed reader gets from ``offset`` on."""
        stable = self.machine.last_stable_offset
        records: list[Record] = []
        while offset < stable:
            found = self.log.fetch(offset, max_bytes=500, upper_offset=stable)
            if not found.records:
                break
            aborted = self.log.aborted_transactions(offset, found.next_offset)
            visible = visible_batches(
                found.records, fetch_offset=offset, aborted_transactions=aborted
            )
            for batch in visible.batches:
                records += [
                    record
                    for record in decode_records(found.records, batch.header, batch.position)
                    if record.offset >= offset
                ]
            offset = found.next_offset
        return records

    def headers(self):
        """The headers of all batches."""
        return [header for header, _ in self.log.replay(0)]

    def raw(self, offset: int) -> bytes:
        """All bytes from the batch that holds ``offset`` on."""
        return b"".join(bytes(batch) for _, batch in self.log.replay(offset))

    def state(self, machine: PartitionMachine, live=None) -> dict:
        """The producers as a snapshot would have them, by id, of those that are live."""
        return {
            entry.producer_id: entry
            for entry in machine.snapshot()
            if live is None or entry.producer_id in live
        }
