"""One segment of a log is lost, cut, aged or damaged in any other way, and a replica starts on it.

It serves what it served before, but for what errors name, and nothing of an aborted transaction. Or
it is refused: then all other files are as they were, and with the segment back all is as before.
"""

from __future__ import annotations

from random import Random

import pytest
from crash_disk import CrashDisk, DataLoss, NameLoss
from crash_life import DIRECTORY
from file_damage import Damage, Damaged, DamagedKind, contents, damage
from hypothesis import given
from hypothesis import strategies as st
from written_logs import CLEAN, seen, started, written

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.records.batch import iterate_batches


def put_back(disk: CrashDisk, done: Damaged, content: bytes) -> None:
    handle = disk.open(done.path, create=True)
    handle.truncate(0)
    handle.append((content,))
    handle.datasync()
    disk.sync_directory(DIRECTORY)


@given(st.integers(0, 2**32), st.sampled_from(list(Damage)), st.booleans(), st.booleans())
def test_a_damaged_segment_is_served_around_truthfully_or_refused(seed, how, is_sealed, is_clean):
    disk, older = written(seed, is_clean=is_clean)
    expected = seen(started(disk.after_kill()))
    before = contents(disk, DIRECTORY)
    done = damage(
        disk, DIRECTORY, DamagedKind.LOG, how, Random(seed), older=older, is_sealed=is_sealed
    )
    if done is None:
        return
    life = started(disk)
    if life.replica.failure is not None:
        after = contents(disk, DIRECTORY)
        unchanged = before.keys() - {done.path.name, CLEAN.name}
        assert [name for name in unchanged if after.get(name) != before[name]] == []
        life.replica.directory.release()
        put_back(disk, done, before[done.path.name])
        assert seen(started(disk)) == expected
        return
    assert life.replica.directory.cut is None
    found = seen(life)
    lost = {offset for first, end in found["lost"] for offset in range(first, end)}
    for name in ("read", "committed"):
        assert found[name] == [offset for offset in expected[name] if offset not in lost]
    for name in ("bounds", "producers", "epochs"):
        assert found[name] == expected[name]


@pytest.mark.parametrize("kept_share", [0, 0.5])
def test_a_sealed_segment_that_lost_its_last_batches_is_refused_where_its_markers_are_needed(
    kept_share,
):
    """The ABORT is among them, so its entry in the aborted index cannot be had from the log."""
    life = started(CrashDisk())
    life.data(1, b"aborted", is_transactional=True)
    while life.replica.log.segment_count < 2:
        life.data(-1, b"x" * 500)
    life.data(-1, b"x" * 500)
    life.marker(1, committed=False)
    while life.replica.log.segment_count < 4:
        life.data(-1, b"x" * 500)
    life.sync()
    disk = life.disk.after_power_loss(DataLoss.NONE, NameLoss.NONE, Random(1))
    path = sorted(path for path in disk.files() if path.suffix == ".log")[1]
    size = 0
    if kept_share:
        _, header = next(iter(iterate_batches(disk.files()[path])))
        size = header.size_bytes
    handle = disk.open(path, create=False)
    handle.truncate(size)
    life = started(disk)
    assert f"{path} at byte {size}" in (life.replica.failure or "")


def test_a_replay_of_all_is_refused_where_a_segment_lost_its_last_batches():
    """So do coordinators load, who would forget what was decided."""
    disk, _ = written(3, is_clean=True)
    path = sorted(path for path in disk.files() if path.suffix == ".log")[1]
    *_, (position, _) = iterate_batches(disk.files()[path])
    disk.open(path, create=False).truncate(position)
    log = PartitionLog.open(filesystem=disk, directory=DIRECTORY, settings=LogSettings(), now_ms=0)
    with pytest.raises(CorruptDataError, match=f"{path} at byte {position}: .*next segment"):
        list(log.replay(0))
