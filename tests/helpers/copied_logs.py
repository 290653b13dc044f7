"""A follower's log and machine on a ``CrashDisk``, and leaders' logs for it to copy.

``LeaderLog`` makes batches as a leader's log has them: of plain and transactional producers, of
rising leader epochs, and with gaps where compaction removed some. ``CopiedLog`` does with them what
a follower does. ``state_of`` is all that must not depend on what was cut in between.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crash_disk import CrashDisk
from crash_life import NOW_MS
from hypothesis import strategies as st
from inside import segments_of
from virtual_time import ManualClock

from oncelog.actors.config import ReplicaConfig, TopicConfig
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.actors.replica.opening import ReplicaDirectory, index_if_aborted
from oncelog.storage.log.partition import PartitionLog
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import parse_header, patch
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.control import decode_control, encode_marker

TP = TopicPartition("flights", 0)
DATA_DIR = Path("/data")
TOPIC = TopicConfig.from_text({"segment_bytes": "4096", "index_interval_bytes": "600"})

PLAIN, TRANSACTIONAL = (1, 2), (11, 12, 13)
STEPS = st.lists(
    st.tuples(
        st.one_of(
            st.tuples(st.just("data"), st.sampled_from((-1, *PLAIN, *TRANSACTIONAL))),
            st.tuples(st.sampled_from(("commit", "abort")), st.sampled_from(TRANSACTIONAL)),
        ),
        st.integers(1, 3),
        st.sampled_from((0, 0, 0, 1, 5)),
        st.sampled_from((0, 0, 0, 1)),
    ),
    max_size=16,
)
"""((what, producer id), records, offsets left out before, rise of the leader epoch)."""


@dataclass
class _Producer:
    epoch: int = 0
    sequence: int = 0
    is_open: bool = False


@dataclass
class LeaderLog:
    """``batches`` in order; another leader's log begins as a ``copy`` ``cut`` somewhere."""

    next_offset: int = 0
    epoch: int = 0
    batches: list[bytes] = field(default_factory=list)
    _producers: list[dict[int, _Producer]] = field(default_factory=lambda: [{}])

    def copy(self) -> LeaderLog:
        return copy.deepcopy(self)

    def cut(self, offset: int) -> None:
        """Only batches wholly below ``offset`` are left; what follows is of a newer epoch."""
        kept = sum(parse_header(batch).next_offset <= offset for batch in self.batches)
        del self.batches[kept:], self._producers[kept + 1 :]
        self.next_offset = parse_header(self.batches[-1]).next_offset if self.batches else 0
        self.epoch += 1

    def run(self, steps: list[Any]) -> None:
        for (kind, producer_id), count, gap, rise in steps:
            producers = copy.deepcopy(self._producers[-1])
            producer = producers.setdefault(producer_id, _Producer())
            if kind == "data":
                self._put(self._data(producer, producer_id, count), gap, rise, producers)
            elif producer.is_open:
                producer.epoch, producer.sequence, producer.is_open = producer.epoch + 1, 0, False
                marker = encode_marker(
                    producer_id=producer_id,
                    producer_epoch=producer.epoch,
                    committed=kind == "commit",
                    coordinator_epoch=3,
                    timestamp_ms=NOW_MS,
                )
                self._put(marker, gap, rise, producers)

    def _data(self, producer: _Producer, producer_id: int, count: int) -> bytearray:
        is_known = producer_id >= 0
        producer.is_open = producer_id in TRANSACTIONAL
        batch = encode_records(
            [(b"key", b"%d" % self.next_offset * 300, NOW_MS, ())] * count,
            producer_id=producer_id,
            producer_epoch=producer.epoch if is_known else -1,
            base_sequence=producer.sequence if is_known else -1,
            is_transactional=producer.is_open,
        )
        producer.sequence += count
        return batch

    def _put(self, batch: bytearray, gap: int, rise: int, producers: dict[int, _Producer]) -> None:
        self.epoch += rise
        patch(batch, base_offset=self.next_offset + gap, leader_epoch=self.epoch)
        self.batches.append(bytes(batch))
        self._producers.append(producers)
        self.next_offset = parse_header(batch).next_offset


class CopiedLog:
    """What a follower has; opened, and following, when it is made."""

    def __init__(self, disk: CrashDisk) -> None:
        self.disk = disk
        self.machine = PartitionMachine(TP)
        self.directory = ReplicaDirectory(
            config=ReplicaConfig(
                topic=TP.topic, partition=TP.partition, broker_id=1, data_dir=str(DATA_DIR)
            ),
            filesystem=disk,
            clock=ManualClock(),
            machine=self.machine,
        )
        self.log: PartitionLog = self.directory.open(TOPIC)
        self.follow(max(self.machine.leader_epochs.latest_epoch, 0))

    def follow(self, epoch: int) -> None:
        self.machine.become_follower(epoch)
        self.log.truncate_to(self.log.log_end_offset)

    def take(self, batch: bytes) -> None:
        log, machine, header = self.log, self.machine, parse_header(batch)
        delta = header.last_offset - log.log_end_offset
        if log.needs_roll(len(batch), header.max_timestamp_ms, NOW_MS, last_offset_delta=delta):
            log.roll(machine.snapshot())
        log.append_as_is(batch, header)
        control = decode_control(batch, header) if header.is_control else None
        index_if_aborted(log, machine.apply(header, control))

    def sync(self) -> None:
        point = self.log.sync_point()
        point.run()
        assert self.log.mark_synced(point)

    def advance(self, offset: int) -> None:
        """The high watermark rises."""
        self.machine.advance_high_watermark(offset)
        self.log.high_watermark = self.machine.high_watermark

    def cut(self, offset: int) -> None:
        self.log.truncate_to(offset)
        self.directory.rebuild(self.log)

    def restart(self, offset: int) -> None:
        self.log.restart_at(offset)
        self.directory.rebuild(self.log)

    @property
    def batches(self) -> list[bytes]:
        return [bytes(batch) for _, batch in self.log.replay(self.log.log_start_offset)]


def state_of(copied: CopiedLog) -> dict[str, Any]:
    """What the log and the machine know, as far as a reader, a producer or a leader can tell.

    Once all is committed: below a snapshot it is not known which transactions ended lately.
    """
    copied.advance(copied.log.log_end_offset)
    log, machine = copied.log, copied.machine
    producers = machine.producers
    reads = []
    for offset in range(log.log_start_offset, log.log_end_offset, 2):
        part = log.fetch(offset, max_bytes=1, upper_offset=log.log_end_offset)
        reads.append((part.records, part.next_offset))
    return {
        "bounds": (log.log_start_offset, log.log_end_offset),
        "machine": (machine.log_start_offset, machine.log_end_offset, machine.role),
        "log epochs": log.leader_epochs,
        "epochs": list(machine.leader_epochs.entries),
        "snapshot": sorted(machine.snapshot(), key=lambda entry: entry.producer_id),
        "producers": dict(producers.entries),
        "ongoing": dict(producers.transactions.ongoing),
        "stable": machine.last_stable_offset,
        "aborted": [
            entry
            for segment in segments_of(log).from_offset(log.log_start_offset)
            for entry in segment.txn_index.entries
        ],
        "reads": reads,
    }
