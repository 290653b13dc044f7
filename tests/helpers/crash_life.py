"""One replica after another on a ``CrashDisk``, against a model of what must have survived.

``Life`` drives the real ``Replica`` without an event loop: nothing it awaits ever waits, and syncs
happen when the script says so. ``History`` knows every batch ever written and how much
of it was promised. ``inspect`` compares what a recovery found with both.
"""

from __future__ import annotations

import errno
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from actor_environment import AtOnceBackground
from crash_disk import CrashDisk
from inside import segments_of
from replicas import EpochSource, leading, replica_of
from virtual_time import START_MS

from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.protocol.messages.partition import TxnMarker
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.actors.protocol.tickets import ClusterKeys
from oncelog.actors.replica.maintenance import remove_old_segments
from oncelog.actors.replica.opening import ExpectedLog
from oncelog.actors.replica.replica import Replica
from oncelog.storage.disk.sync_point import SyncPoint
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import BatchHeader, parse_header, patch
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.control import ControlRecord, decode_control
from oncelog.storage.segments.aborted_index import AbortedIndexEntry

TP = TopicPartition("flights", 0)
DATA_DIR = Path("/data")
DIRECTORY = DATA_DIR / "flights-0"
NOW_MS = START_MS
SEGMENT_BYTES = 4_096
next_epoch = leading(
    settings=(("segment_bytes", str(SEGMENT_BYTES)), ("index_interval_bytes", "600"))
)


def finish(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits for something")


class History:
    """What was written: ``batches`` in order.

    Of these the first ``safe`` must survive everything, the first ``written`` a kill.
    ``log_start``: the least offset that the log may begin at, and the greatest.
    """

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.safe = 0
        self.written = 0
        self.log_start = (0, 0)

    def offsets(self) -> list[tuple[int, int]]:
        """(base offset, next offset) of each batch."""
        headers = [parse_header(batch) for batch in self.batches]
        return [(header.base_offset, header.next_offset) for header in headers]

    def promise(self, offset: int) -> None:
        """Everything below ``offset`` (exclusive) is durable."""
        self.safe = sum(next_offset <= offset for _, next_offset in self.offsets())

    def cut(self, offset: int) -> None:
        """What ends at ``offset`` or later is gone."""
        del self.batches[sum(next_offset <= offset for _, next_offset in self.offsets()) :]
        self.safe = min(self.safe, len(self.batches))
        self.written = len(self.batches)

    def copy(self) -> History:
        copy = History()
        copy.batches, copy.log_start = list(self.batches), self.log_start
        copy.safe, copy.written = self.safe, self.written
        return copy


class SteppedReplica(Replica):
    """A replica that syncs when it is told to, and says what it writes."""

    history: History

    def __init__(self, **environment: Any) -> None:
        super().__init__(**environment)
        self._sync.request = lambda *_, **__: None  # type: ignore[method-assign]

    def write(
        self, batch: bytearray, header: BatchHeader, control: ControlRecord | None, **rest: Any
    ) -> Any:
        patch(batch, base_offset=self.machine.log_end_offset, leader_epoch=self.leader_epoch)
        header = parse_header(batch)
        self.history.batches.append(bytes(batch))
        outcome = super().write(batch, header, control, **rest)
        if outcome.error is not ErrorCode.NONE and self.log.log_end_offset <= header.base_offset:
            self.history.batches.pop()
        self.history.written = len(self.history.batches)
        return outcome


class Life:
    """The life of one process, and short ways to use its replica."""

    def __init__(
        self,
        disk: CrashDisk,
        history: History,
        *,
        epoch_source: EpochSource = next_epoch,
        log_source: Any = None,
    ) -> None:
        self.disk = disk
        self.history = history
        self.replica: SteppedReplica = replica_of(
            TP,
            DATA_DIR,
            epoch_source,
            kind=SteppedReplica,
            environment={
                "filesystem": disk,
                "background": AtOnceBackground(),
                "log_source": log_source or self.expected_log,
            },
        )
        self.replica.history = history
        self.sequences: dict[int, int] = {}

    async def expected_log(self) -> ExpectedLog:
        """What the controller knows: the log was led as soon as anything was promised."""
        return ExpectedLog(topic_id="a" * 32, is_in_sync=self.history.safe > 0)

    def open(self) -> None:
        """Recover, and take all that is there for readable; nothing is written after that."""
        finish(self.replica._use(lambda: self.replica.directory.open(self.replica.topic)))
        # As the leader of a partition with one replica does.
        self.replica.machine.advance_high_watermark(self.replica.synced_offset)

    def start(self) -> None:
        """Recover and lead. All that is there is durable then, and so promised."""
        finish(self.replica.start())
        if self.replica.failure is None:
            end = self.replica.machine.log_end_offset
            kept = self.history.safe
            self.history.cut(end)
            assert self.history.safe == kept
            self.history.promise(end)

    def stop(self) -> None:
        """Close cleanly; the next life begins on the same disk."""
        finish(self.replica.stop())
        if self.replica.failure is None:
            self.history.safe = len(self.history.batches)

    def data(
        self,
        pid: int,
        *values: bytes,
        epoch: int = 0,
        is_transactional: bool = False,
        timestamp_ms: int = NOW_MS,
    ) -> Any:
        self._check_leading()
        sequence = self.sequences.get(pid, 0)
        batch = encode_records(
            [(b"key", value, timestamp_ms, ()) for value in values],
            producer_id=pid,
            producer_epoch=epoch if pid >= 0 else -1,
            base_sequence=sequence if pid >= 0 else -1,
            is_transactional=is_transactional,
        )
        self.sequences[pid] = sequence + len(values)
        return self.replica.write(batch, parse_header(batch), None, now_ms=NOW_MS)

    def marker(self, pid: int, *, committed: bool, epoch: int = 1) -> Any:
        marker = TxnMarker(
            producer_id=pid, producer_epoch=epoch, committed=committed, partitions=(TP,)
        )
        self.sequences[pid] = 0
        return self.replica.append_marker(marker, 7, NOW_MS)

    def _check_leading(self) -> None:
        if self.replica.availability() is not ErrorCode.NONE:
            raise OSError(errno.EIO, f"the replica is offline: {self.replica.failure}")

    def begin_sync(self) -> SyncPoint:
        return self.replica.log.sync_point()

    def end_sync(self, point: SyncPoint) -> None:
        """Everything up to the point is promised as soon as its syncs have returned."""
        point.run()
        self.history.promise(point.log_end_offset)
        self.replica.log.mark_synced(point)
        self.replica.machine.advance_high_watermark(point.log_end_offset)

    def sync(self) -> None:
        self.end_sync(self.begin_sync())

    def truncate(self, offset: int) -> None:
        """Cut the log as a follower does, and rebuild the machine from what is left."""
        log, machine = self.replica.log, self.replica.machine
        kept = self.history.copy()
        kept.cut(offset)
        self.history.safe, self.history.written = kept.safe, kept.written
        log.truncate_to(offset)
        self.history.cut(offset)
        self.history.promise(log.log_end_offset)
        snapshot_offset, entries = log.latest_snapshot()
        first_offset = min(log.log_start_offset, snapshot_offset)
        machine.load(first_offset, snapshot_offset, entries, leader_epochs=log.leader_epochs)
        for header, batch in log.replay(machine.replay_from):
            machine.apply(header, decode_control(batch, header) if header.is_control else None)
        machine.advance_log_start(log.log_start_offset)
        machine.advance_high_watermark(log.log_end_offset)
        epoch = self.replica.leader_epoch + 1
        log.assign_leader_epoch(epoch, log.log_end_offset)
        machine.become_leader(epoch, "a" * 32, ClusterKeys(current=b""))
        self.replica.leadership = BecomeLeaderReply(leader_epoch=epoch, topic_id="a" * 32)

    def delete_records(self, offset: int) -> None:
        """Raise the log start durably, then remove the segments below it."""
        self.history.log_start = (self.history.log_start[0], offset)
        assert finish(self.replica.raise_log_start(offset)) is ErrorCode.NONE
        self.history.log_start = (offset, offset)
        self.retain()

    def retain(self) -> None:
        """Remove what retention lets go; the log start may rise to a segment's base."""
        first, _ = self.history.log_start
        self.history.log_start = (first, self.replica.log.recovery_point)
        finish(remove_old_segments(self.replica, NOW_MS))
        self.history.log_start = (self.replica.log.log_start_offset,) * 2


def inspect(replica: Replica, history: History) -> None:
    """The recovered replica holds what was promised, whole batches, and nothing of its own."""
    log, machine = replica.log, replica.machine
    assert replica.failure is None, replica.failure
    count = sum(next_offset <= log.log_end_offset for _, next_offset in history.offsets())
    assert history.safe <= count
    least_start, greatest_start = history.log_start
    assert least_start <= log.log_start_offset <= greatest_start
    expected = [
        batch
        for batch, (_, next_offset) in zip(history.batches[:count], history.offsets(), strict=False)
        if next_offset > log.log_start_offset
    ]
    assert [bytes(batch) for _, batch in log.replay(log.log_start_offset)] == expected
    assert _read_all(replica) == b"".join(expected)
    model, aborted = _replayed(history.batches[:count], log.log_start_offset)
    assert machine.log_end_offset == log.log_end_offset == model.log_end_offset
    assert machine.high_watermark == log.recovery_point == log.log_end_offset
    assert machine.last_stable_offset == model.last_stable_offset
    assert machine.snapshot() == model.snapshot()
    assert _aborted_index(replica) == [
        entry for entry in aborted if entry.last_offset >= log.log_start_offset
    ]
    for header in map(parse_header, expected):
        starts = [epoch for epoch, start in log.leader_epochs if start <= header.base_offset]
        assert starts == [] or starts[-1] == header.leader_epoch


def _read_all(replica: Replica) -> bytes:
    """What a reader that starts at the log start is given."""
    log = replica.log
    data, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        found = log.fetch(offset, max_bytes=1_000, upper_offset=log.log_end_offset)
        data, offset = data + found.records, found.next_offset
    return data


def _aborted_index(replica: Replica) -> list[AbortedIndexEntry]:
    """All entries that a reader could ask for."""
    log = replica.log
    return [
        entry
        for segment in segments_of(log).from_offset(log.log_start_offset)
        for entry in segment.txn_index.entries
        if entry.last_offset >= log.log_start_offset
    ]


def _replayed(
    batches: list[bytes], log_start_offset: int
) -> tuple[PartitionMachine, list[AbortedIndexEntry]]:
    """The machine that has seen every batch from the first on, and what was aborted."""
    machine = PartitionMachine(TP)
    aborted = []
    for batch in batches:
        header = parse_header(batch)
        control = decode_control(batch, header) if header.is_control else None
        completed = machine.apply(header, control)
        if completed is not None and completed.is_aborted:
            aborted.append(
                AbortedIndexEntry(
                    producer_id=completed.producer_id,
                    first_offset=completed.first_offset,
                    last_offset=completed.last_offset,
                    last_stable_offset=completed.last_stable_offset,
                )
            )
    machine.advance_high_watermark(machine.log_end_offset)
    machine.advance_log_start(log_start_offset)
    return machine, aborted
