"""Power losses and flipped bits together, with a checkpoint that is as old as it can be.

Whatever was acknowledged is there, or the log refuses to be opened or read, and says where.
Without a flipped bit it always opens: no power loss is taken for damage.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from unittest import mock

import pytest
from crash_disk import CrashDisk, DataLoss, NameLoss
from inside import segments_of

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log import loader, recovery
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.records.batch import parse_header, seal
from oncelog.storage.records.compression import Codec
from oncelog.storage.segments.inspection import TailDefect

DIRECTORY = Path("/data/flights-0")


def open_log(disk: CrashDisk) -> PartitionLog:
    settings = LogSettings(segment_bytes=8_192, index_interval_bytes=600)
    return PartitionLog.open(filesystem=disk, directory=DIRECTORY, settings=settings, now_ms=0)


def sync(log: PartitionLog) -> None:
    point = log.sync_point()
    point.run()
    log.mark_synced(point)


class Lives:
    """One log through several power losses; ``acknowledged`` are the batches that must stay."""

    def __init__(self, random: Random, flips: float) -> None:
        self.random = random
        self.flips = flips
        self.disk = CrashDisk(page_bytes=512)
        self.acknowledged: list[bytes] = []
        self.refusals = 0
        self.places: list[tuple[Path, int, int]] = []
        """File, position and size of each batch that was acknowledged in this life."""

    def live(self) -> bool:
        """One life, and the power loss at its end; false if it was refused."""
        try:
            log = open_log(self.disk)
            sync(log)
            # What lies below the recovery point is only looked at when it is read.
            found = [bytes(frame) for _, frame in log.replay(0)]
        except CorruptDataError:
            self.refusals += 1
            return False
        assert found[: len(self.acknowledged)] == self.acknowledged, "acknowledged batches are gone"
        self.acknowledged = found
        self.places = []
        written: list[tuple[bytes, tuple[Path, int, int]]] = []
        for _ in range(self.random.randint(0, 12)):
            written.append(self.append(log))
            if self.random.random() < 0.4:
                sync(log)
                self.acknowledged += [batch for batch, _ in written]
                self.places += [place for _, place in written]
                written.clear()
        self.disk = self.disk.after_power_loss(
            self.random.choice(list(DataLoss)), self.random.choice(list(NameLoss)), self.random
        )
        if self.places and self.random.random() < self.flips:
            path, position, size_bytes = self.random.choice(self.places)
            at = position + self.random.randrange(size_bytes)
            self.disk.flip_bit(path, at, self.random.randrange(8))
        return True

    def append(self, log: PartitionLog) -> tuple[bytes, tuple[Path, int, int]]:
        records = bytearray(
            self.random.randint(1, 255) for _ in range(self.random.randint(1, 1_500))
        )
        if self.random.random() < 0.4:
            # Zeros of its own, up to whole sectors: what a lost sector looks like.
            at = self.random.randrange(len(records))
            records[at:at] = bytes(self.random.choice((1, 100, 600, 1_500)))
        batch = bytes(
            seal(
                bytes(records),
                codec=Codec.NONE,
                record_count=1,
                base_timestamp_ms=1,
                max_timestamp_ms=1,
                producer_id=-1,
                producer_epoch=-1,
                base_sequence=-1,
                is_transactional=False,
                base_offset=log.log_end_offset,
                leader_epoch=0,
            )
        )
        if log.needs_roll(len(batch), 1, 0):
            log.roll([])
        active = segments_of(log).active
        place = active.path_of(".log"), active.size_bytes, len(batch)
        log.append(batch, parse_header(batch))
        return batch, place


def run(seed: int, flips: float) -> Lives:
    lives = Lives(Random(seed), flips)
    for _ in range(6):
        if not lives.live():
            break
    return lives


@pytest.mark.parametrize("seed", range(150))
def test_power_losses_alone_are_never_refused(seed):
    assert run(seed, flips=0.0).refusals == 0


@pytest.mark.parametrize("seed", range(150))
def test_flipped_bits_cut_nothing_that_was_acknowledged(seed):
    assert run(seed, flips=0.5).refusals <= 1


def test_without_the_look_at_sectors_acknowledged_batches_are_cut():
    """The worlds above are hostile enough: this protection taken out is noticed."""
    with (
        mock.patch.object(loader, "looks_torn", lambda defect, *_: defect is not TailDefect.NONE),
        pytest.raises(AssertionError, match="acknowledged batches are gone"),
    ):
        sum(run(seed, flips=0.5).refusals for seed in range(150))


def test_without_the_look_for_one_bit_batches_with_zeros_are_cut():
    with (
        mock.patch.object(recovery, "_is_whole_but_one_bit", return_value=False),
        pytest.raises(AssertionError, match="acknowledged batches are gone"),
    ):
        sum(run(seed, flips=0.5).refusals for seed in range(150))


def test_what_is_refused_is_a_good_part_of_the_worlds():
    assert sum(run(seed, flips=0.5).refusals for seed in range(40)) >= 10
