"""A compaction crashed at every operation on the disk: readers and producers notice nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from crash_disk import Crash, CrashDisk, DataLoss, NameLoss
from transactional_logs import TransactionalLog

from oncelog.storage.compaction.compactor import Cleaner
from oncelog.storage.log.partition import LogSettings

DIRECTORY = Path("/data/flights-0")
SETTINGS = LogSettings(segment_bytes=1_500, index_interval_bytes=200)
POWER_LOSSES = [(data, names) for data in DataLoss for names in NameLoss]


def written(disk: CrashDisk) -> TransactionalLog:
    """Transactions of both verdicts over several segments, compacted once and written to again."""
    log = TransactionalLog(DIRECTORY, SETTINGS, disk)
    for number in range(6):
        log.send([(b"a", b"1" * 200), (b"%d" % number, b"v")])
        log.send([(b"a", b"2" * 200)], producer_id=1, is_transactional=True)
        log.send([(b"b", b"3" * 100)], producer_id=4)
        log.end(1, committed=number % 2 == 0)
        if number == 3:
            log.roll()
            log.clean(delete_retention_ms=0)
            log.now_ms += 1_000
    log.roll()
    log.send([(b"tail", b"t")])
    log.sync()
    return log


def latest(log: TransactionalLog) -> dict[bytes | None, tuple]:
    return {record.key: (record.offset, record.value) for record in log.committed()}


def crashes() -> Iterator[tuple[int, CrashDisk]]:
    """The disk of one process after another, each stopped one operation later."""
    for number in itertools.count(1):
        disk = CrashDisk(page_bytes=512)
        log = written(disk)
        disk.stop_after(len(disk.history) + number)
        try:
            log.clean(delete_retention_ms=0)
        except Crash:
            yield number, disk
        else:
            assert number > 20
            return


def check_recovered(disk: CrashDisk, expected: dict, state: dict, end: int) -> None:
    log = TransactionalLog(DIRECTORY, SETTINGS, disk)
    assert log.log.log_end_offset == end
    assert latest(log) == expected
    assert log.state(log.machine) == state
    assert not [path for path in disk.files() if path.suffix in (".cleaned", ".swap", ".deleted")]
    log.now_ms += 5_000
    log.clean(delete_retention_ms=0)
    assert latest(log) == expected
    assert log.state(log.replayed()) == state
    first_dirty_offset = Cleaner(log.log).first_dirty_offset
    seen = [record.key for record in log.committed() if record.offset < first_dirty_offset]
    assert len(seen) == len(set(seen))


@pytest.fixture(scope="module")
def expected():
    log = written(CrashDisk(page_bytes=512))
    return latest(log), log.state(log.machine), log.log.log_end_offset


def test_kill_after_any_operation_leaves_the_log_before_or_after_each_replacement(expected):
    for _, disk in crashes():
        check_recovered(disk.after_kill(), *expected)


@pytest.mark.slow
def test_power_loss_after_any_operation_leaves_the_log_before_or_after(expected):
    """Each operation with one of the ways to lose power; the slow test has all of them."""
    for number, disk in crashes():
        loss = POWER_LOSSES[number % len(POWER_LOSSES)]
        check_recovered(disk.after_power_loss(*loss, Random(number)), *expected)


@pytest.mark.slow
def test_power_loss_of_every_kind_after_any_operation(expected):
    for number, disk in crashes():
        for loss in POWER_LOSSES:
            check_recovered(disk.after_power_loss(*loss, Random(f"{number} {loss}")), *expected)


@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.slow)])
def test_crash_while_a_replacement_is_being_finished_is_finished_by_the_next_open(expected, every):
    for number, disk in crashes():
        if number % every:
            continue
        for step in range(1, 12):
            torn = disk.after_kill()
            torn.stop_after(step)
            try:
                TransactionalLog(DIRECTORY, SETTINGS, torn)
            except Crash:
                loss = POWER_LOSSES[(number + step) % len(POWER_LOSSES)]
                check_recovered(torn.after_power_loss(*loss, Random(step)), *expected)
            else:
                break
