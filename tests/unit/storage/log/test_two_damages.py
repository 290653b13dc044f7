"""Records of a sealed segment are damaged, which the log is served around, and then a file is lost.

What a start needs of the damaged records it can mostly have from what lies beside them, so the log
opens as before. If it cannot, it is refused and its files stay as they are: putting the lost one
back is enough.
"""

from __future__ import annotations

from random import Random
from typing import Any
from unittest import mock

import pytest
from crash_disk import CrashDisk, DataLoss, NameLoss
from crash_life import DIRECTORY
from file_damage import SECTOR_BYTES, SIDE_KINDS, Damage, DamagedKind, contents, damage
from hypothesis import given
from hypothesis import strategies as st
from written_logs import CLEAN, play, seen, started, written

from oncelog.storage.log import readable

HARMS = (Damage.FLIPPED, Damage.ZEROED_PAGE, Damage.UNREADABLE)


def differences(disk: CrashDisk, random: Random, kind: DamagedKind, how: Damage, older: Any) -> Any:
    """What is not as with the damaged records alone; a refusal must need the lost file only."""
    damage(disk, DIRECTORY, DamagedKind.LOG, random.choice(HARMS), random, is_sealed=True)
    sound = started(disk.after_kill())
    if sound.replica.failure is not None:
        return []
    before = contents(disk, DIRECTORY)
    done = damage(disk, DIRECTORY, kind, how, random, older=older)
    if done is None:
        return []
    between = contents(disk, DIRECTORY)
    life = started(disk)
    if life.replica.failure is not None:
        after = contents(disk, DIRECTORY)
        changed = [name for name, data in between.items() if after.get(name) != data]
        changed = [name for name in changed if DIRECTORY / name not in (done.path, CLEAN)]
        life.replica.directory.release()
        handle = disk.open(done.path, create=True)
        handle.truncate(0)
        handle.append((before[done.path.name],))
        life = started(disk)
        again = life.replica.failure
        return [f"{done}: {changed}, {again}"] if changed or again is not None else []
    cut = life.replica.directory.cut
    if cut is not None:
        # An old checkpoint does not know the damaged records as synced: they look torn.
        return [] if kind is DamagedKind.RECOVERY else [f"{done}: {cut}"]
    found, expected = seen(life), seen(sound)
    return [f"{done}: {name}" for name in expected if found[name] != expected[name]]


@given(
    st.integers(0, 2**32),
    st.sampled_from(SIDE_KINDS),
    st.sampled_from(list(Damage)),
    st.booleans(),
)
def test_a_file_lost_beside_damaged_records_changes_nothing_or_can_be_put_back(
    seed, kind, how, is_clean
):
    disk, older = written(seed, is_clean=is_clean)
    # The segments are smaller than the pages in which a disk withholds what it cannot read.
    with mock.patch.object(readable, "BLOCK_BYTES", SECTOR_BYTES):
        assert not differences(disk, Random(seed), kind, how, older)


def transaction_across_segments(*, has_marker: bool) -> CrashDisk:
    """Producer 1 begins in the first of several segments; its ABORT is in a later sealed one."""
    life = started(CrashDisk())
    life.data(1, b"first" * 100, is_transactional=True)
    life.data(1, b"second" * 100, is_transactional=True)
    while life.replica.log.segment_count < 3:
        life.data(-1, b"x" * 1_000)
    if has_marker:
        life.marker(1, committed=False)
    while life.replica.log.segment_count < 5:
        life.data(-1, b"x" * 1_000)
    life.sync()
    disk = life.disk.after_power_loss(DataLoss.NONE, NameLoss.NONE, Random(1))
    log = DIRECTORY / f"{0:020d}.log"
    handle = disk.open(log, create=False)
    handle.write_at(0, bytes(61))
    handle.datasync()
    return disk


def summaries(disk: CrashDisk) -> list[Any]:
    return [DIRECTORY / name for name in contents(disk, DIRECTORY) if name.endswith(".summary")]


def test_an_aborted_transaction_that_began_in_damaged_records_is_indexed_again():
    disk = transaction_across_segments(has_marker=True)
    for path in summaries(disk)[1:]:
        disk.remove(path)
    life = started(disk)
    assert life.replica.failure is None
    log = life.replica.log
    assert [entry.first_offset for entry in log.aborted_transactions(1, log.log_end_offset)] == [0]
    assert life.replica.machine.last_stable_offset == log.log_end_offset


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_open_transaction_counts_the_records_that_can_be_read(is_lost):
    disk = transaction_across_segments(has_marker=False)
    if is_lost:
        disk.remove(summaries(disk)[-1])
    life = started(disk)
    assert life.replica.failure is None
    (described,) = life.replica.machine.describe_producers([1])
    assert described.open_record_count == 1
    assert life.replica.machine.last_stable_offset == 0


def test_a_start_that_is_refused_leaves_the_aborted_index_as_it_was():
    life = started(CrashDisk())
    play(life, Random(3), 60)
    life.sync()
    disk = life.disk.after_power_loss(DataLoss.NONE, NameLoss.NONE, Random(1))
    names = contents(disk, DIRECTORY)
    segments = [name for name in names if name.endswith(".log")]
    damaged = DIRECTORY / segments[-2]
    handle = disk.open(damaged, create=False)
    handle.write_at(0, bytes(61))
    disk.remove(damaged.with_suffix(".summary"))
    for name in names:
        if name.endswith(".snapshot"):
            disk.remove(DIRECTORY / name)
    before = contents(disk, DIRECTORY)
    assert any(len(data) for name, data in before.items() if name.endswith(".txnindex"))
    life = started(disk)
    assert str(damaged) in (life.replica.failure or "")
    assert contents(disk, DIRECTORY) == before
