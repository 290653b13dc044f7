from __future__ import annotations

import errno

import pytest

from oncelog.storage.disk.sync_point import SyncLedger


@pytest.fixture
def ledger(filesystem, tmp_path) -> SyncLedger:
    return SyncLedger(filesystem, tmp_path)


@pytest.fixture
def file(filesystem, tmp_path):
    handle = filesystem.open(tmp_path / "file", create=True)
    yield handle
    handle.close()


def test_settled_file_is_forgotten(ledger, file):
    ledger.mark_written(file)
    point = ledger.capture(5, 0)
    assert ledger.holds(file)
    point.run()
    ledger.mark_synced(point)
    assert not ledger.holds(file)


def test_file_written_again_meanwhile_is_kept(ledger, file):
    ledger.mark_written(file)
    point = ledger.capture(5, 0)
    ledger.mark_written(file)
    point.run()
    ledger.mark_synced(point)
    assert ledger.holds(file)


def test_file_that_was_taken_over_is_closed_when_settled(ledger, file):
    ledger.mark_written(file, close_when_synced=True)
    point = ledger.capture(5, 0)
    point.run()
    file.append((b"still open",))
    ledger.mark_synced(point)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.append((b"x",))


def test_point_outlives_the_files_it_was_made_from(ledger, file, filesystem):
    ledger.mark_written(file)
    point = ledger.capture(5, 0)
    file.close()
    ledger.close()
    point.run()
    assert filesystem.synced == ["file"]


def test_directory_is_synced_only_if_noted(ledger, filesystem, tmp_path):
    filesystem.fail("sync_directory", tmp_path.name)
    ledger.capture(5, 0).run()
    ledger.mark_directory_changed()
    with pytest.raises(OSError, match="planned"):
        ledger.capture(5, 0).run()


def test_failed_point_ends_all_syncing(ledger, file, filesystem):
    ledger.mark_written(file)
    waiting = ledger.capture(5, 0)
    filesystem.fail("datasync", "file")
    with pytest.raises(OSError, match="planned"):
        ledger.capture(5, 0).run()
    filesystem.heal()
    waiting.run()
    with pytest.raises(OSError, match=r"offline after: .*planned"):
        ledger.mark_synced(waiting)
    with pytest.raises(OSError, match="offline"):
        ledger.capture(6, 0)


def test_first_failure_is_the_one_reported(ledger):
    ledger.fail(OSError(errno.EIO, "first"))
    ledger.fail(OSError(errno.ENOSPC, "second"))
    with pytest.raises(OSError, match="first") as caught:
        ledger.check()
    assert caught.value.errno == errno.EIO


def test_discarded_point_gives_its_files_back_unsynced(ledger, file, filesystem):
    ledger.mark_written(file)
    point = ledger.capture(5, 0)
    point.discard()
    point.discard()
    assert filesystem.synced == []
    assert ledger.holds(file)


def test_synced_point_keeps_its_files_until_they_are_given_back(ledger, file, filesystem):
    ledger.mark_written(file)
    point = ledger.capture(5, 0)
    point.sync()
    assert filesystem.synced == ["file"]
    (duplicate,) = point._files
    duplicate.append((b"open",))
    point.discard()
    with pytest.raises(OSError, match="Bad file descriptor"):
        duplicate.append((b"x",))
