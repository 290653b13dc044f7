"""A scripted life of a log, crashed at every operation on the disk, in every way.

Whatever the crash leaves, the next process finds exactly the acknowledged batches, perhaps whole
unacknowledged ones after them, and the producers, the aborted transactions and the last stable
offset that belong to these batches. Recovering again changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from random import Random

import pytest
from crash_disk import Crash, CrashDisk, DataLoss, NameLoss
from crash_life import History, Life, inspect

PAGE_BYTES = 512

Script = Callable[[Life], None]


def appends_and_rolls(life: Life) -> None:
    """Idempotent, transactional and plain batches over three segments, some of them synced."""
    life.start()
    for number in range(3):
        life.data(1, b"a" * 300, b"b" * 200)
        life.data(2, b"c" * 400, is_transactional=True)
        life.sync()
        life.data(3, b"d" * 300, is_transactional=True)
        point = life.begin_sync()
        life.data(-1, b"e" * 100, b"f", b"g")
        life.marker(2, committed=number % 2 == 0, epoch=0)
        life.end_sync(point)
        life.data(2, b"h" * 900, is_transactional=True)
        life.marker(3, committed=False, epoch=0)
        life.marker(2, committed=False, epoch=0)
    life.sync()
    life.data(4, b"i" * 300, is_transactional=True)
    life.data(1, b"j" * 900)


def clean_stops(life: Life) -> None:
    """Stopped cleanly and reopened, with a transaction open over both."""
    life.start()
    life.data(1, b"a" * 700)
    life.data(2, b"b" * 700, is_transactional=True)
    life.stop()
    life = Life(life.disk, life.history)
    life.start()
    life.data(1, b"c" * 3_000)
    life.marker(2, committed=False)
    life.sync()
    life.data(2, b"d" * 700, epoch=1, is_transactional=True)
    life.stop()
    life = Life(life.disk, life.history)
    life.start()
    life.stop()


def truncations(life: Life) -> None:
    """Cuts of unsynced and synced batches, within a segment and over several, then new ones."""
    life.start()
    for number in range(5):
        life.data(1, b"a" * 900)
        life.data(2, bytes([number]) * 900, is_transactional=True)
        life.marker(2, committed=False, epoch=number + 1)
        life.sync()
    life.data(1, b"b" * 100)
    life.truncate(14)
    life.data(1, b"c" * 100)
    life.sync()
    life.truncate(5)
    life.data(3, b"d" * 2_000)
    life.data(3, b"e" * 2_000)
    life.sync()
    life.truncate(0)
    life.data(4, b"g")
    life.sync()


def deletions(life: Life) -> None:
    """The log start raised within a segment and over several, then a clean stop."""
    life.start()
    for number in range(5):
        life.data(1, b"a" * 1_200)
        life.data(2, b"b" * 300, is_transactional=True)
        life.marker(2, committed=False, epoch=number + 1)
        life.data(3 + number, b"c" * 100)
        life.sync()
    life.delete_records(3)
    life.data(1, b"d" * 900)
    life.delete_records(15)
    life.data(1, b"e" * 900)
    life.stop()
    life = Life(life.disk, life.history)
    life.start()
    life.delete_records(life.replica.log.log_end_offset)


SCRIPTS = [appends_and_rolls, clean_stops, truncations, deletions]
POWER_LOSSES = [(data, names) for data in DataLoss for names in NameLoss]


def lives(script: Script, part: float | None = None) -> Iterator[tuple[int, CrashDisk, History]]:
    """One life after another, each stopped one operation later: after it, or in its midst.

    Gives the number of the operation, the disk and what was written and promised by then.
    """
    for number in itertools.count(1):
        disk, history = CrashDisk(page_bytes=PAGE_BYTES), History()
        if part is None:
            disk.stop_after(number)
        else:
            disk.stop_within(number, part)
        try:
            script(Life(disk, history))
        except Crash:
            yield number, disk, history
        else:
            assert not disk.is_dead
            assert number > 70
            return


def check_recovery(disk: CrashDisk, history: History) -> CrashDisk:
    """Recover and compare; recover again, and find nothing to do. The disk after the first."""
    found = Life(disk, history.copy())
    found.open()
    inspect(found.replica, history)
    before = disk.files()
    again = Life(disk.after_kill(), history.copy())
    again.open()
    assert again.replica.log.cut is None
    inspect(again.replica, history)
    assert again.disk.files() == before
    return disk


@pytest.mark.parametrize(
    "script",
    [appends_and_rolls, clean_stops, truncations, pytest.param(deletions, marks=pytest.mark.slow)],
)
def test_kill_after_any_operation_loses_no_batch_that_was_written(script):
    for _, disk, history in lives(script):
        history.safe = history.written
        check_recovery(disk.after_kill(), history)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_power_loss_after_any_operation_loses_no_acknowledged_batch(script):
    """Each operation with one of the ways to lose power; the slow test has all of them."""
    for number, disk, history in lives(script):
        loss = POWER_LOSSES[number % len(POWER_LOSSES)]
        check_recovery(disk.after_power_loss(*loss, Random(number)), history)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_power_loss_of_every_kind_after_any_operation(script):
    for number, disk, history in lives(script):
        for loss in POWER_LOSSES:
            check_recovery(disk.after_power_loss(*loss, Random(f"{number} {loss}")), history)


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("script", SCRIPTS)
def test_kill_within_any_operation_tears_at_most_one_unacknowledged_batch(script, part):
    for _, disk, history in lives(script, part):
        check_recovery(disk.after_kill(), history)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_crash_at_any_operation_of_the_recovery_is_recovered_too(script):
    for number, disk, history in lives(script):
        if number % 9:
            continue
        for step in itertools.count(1):
            torn = disk.after_power_loss(DataLoss.PAGES, NameLoss.SOME, Random(number))
            torn.stop_after(step)
            try:
                Life(torn, history.copy()).open()
            except Crash:
                check_recovery(torn.after_kill(), history)
                check_recovery(
                    torn.after_power_loss(DataLoss.TAIL, NameLoss.SOME, Random(step)), history
                )
            else:
                break


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_recovered_log_takes_and_keeps_new_batches(script):
    for number, disk, history in lives(script):
        if number % 10:
            continue
        survived = disk.after_power_loss(DataLoss.PAGES, NameLoss.SOME, Random(number))
        life = Life(survived, history)
        life.start()
        assert life.replica.failure is None
        history.cut(life.replica.machine.log_end_offset)
        life.data(77, b"new" * 100)
        life.sync()
        check_recovery(survived.after_power_loss(DataLoss.ALL, NameLoss.ALL, Random(0)), history)
