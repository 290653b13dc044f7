"""The disk of the crash tests behaves as the real one, and loses what it says it loses."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from crash_disk import Crash, CrashDisk, CrashHandle, CrashLock, DataLoss, NameLoss

from oncelog.storage.disk.disk_errors import is_transient
from oncelog.storage.disk.file_system import (
    DirectoryLockedError,
    FileHandle,
    FileSystem,
    Lock,
    RealFileSystem,
)

FILE = Path("/d/file")


@pytest.mark.parametrize(
    ("protocol", "kind"), [(FileSystem, CrashDisk), (FileHandle, CrashHandle), (Lock, CrashLock)]
)
def test_every_method_of_the_protocol_is_there(protocol, kind):
    wanted = {name for name in vars(protocol) if not name.startswith("_")}
    assert wanted <= set(dir(kind))


@pytest.fixture(params=["real", "crash"])
def place(request, tmp_path) -> tuple[FileSystem, Path]:
    """A file system and an empty directory of it: what holds of one must hold of the other."""
    if request.param == "real":
        return RealFileSystem(), tmp_path
    disk = CrashDisk()
    disk.make_directory(tmp_path)
    return disk, tmp_path


def test_file_is_written_read_overwritten_and_cut(place):
    filesystem, directory = place
    handle = filesystem.open(directory / "a", create=True)
    assert handle.append((b"abc",)) == 0
    assert handle.append((b"de", memoryview(b"f"))) == 3
    handle.write_at(1, b"BC")
    handle.write_at(5, b"FG")
    assert handle.size == 7
    assert handle.read(0, 99) == b"aBCdeFG"
    assert handle.read(6, 5) == b"G"
    handle.truncate(2)
    assert (handle.size, handle.append((b"x",))) == (2, 2)
    other = handle.duplicate()
    handle.close()
    handle.close()
    other.datasync()
    other.close()
    with pytest.raises(OSError, match="closed"):
        handle.datasync()
    assert filesystem.read_whole(directory / "a") == b"aBx"
    assert filesystem.file_size(directory / "a") == 3


def test_names_are_made_renamed_listed_and_removed(place):
    filesystem, directory = place
    filesystem.make_directory(directory / "x" / "y")
    filesystem.make_directory(directory / "x")
    filesystem.write_atomically(directory / "b", b"1")
    filesystem.write_atomically(directory / "b", b"22")
    filesystem.write_atomically(directory / "x" / "y" / "z", b"3")
    filesystem.rename(directory / "b", directory / "c")
    assert filesystem.list_directory(directory) == ["c", "x"]
    assert filesystem.list_directory(directory / "missing") == []
    assert filesystem.read_whole(directory / "c") == b"22"
    filesystem.remove(directory / "c")
    filesystem.remove(directory / "c")
    assert not filesystem.exists(directory / "c")
    filesystem.remove_tree(directory / "x")
    filesystem.remove_tree(directory / "x")
    filesystem.sync_directory(directory)
    assert filesystem.list_directory(directory) == []


def test_missing_files_are_not_found(place):
    filesystem, directory = place
    with pytest.raises(FileNotFoundError):
        filesystem.open(directory / "a", create=False)
    with pytest.raises(FileNotFoundError):
        filesystem.read_whole(directory / "a")
    with pytest.raises(FileNotFoundError):
        filesystem.rename(directory / "a", directory / "b")
    with pytest.raises(FileNotFoundError):
        filesystem.open(directory / "missing" / "a", create=True)


def test_lock_is_held_by_one(place):
    filesystem, directory = place
    lock = filesystem.lock(directory / ".lock")
    with pytest.raises(DirectoryLockedError):
        filesystem.lock(directory / ".lock")
    lock.release()
    lock.release()
    filesystem.lock(directory / ".lock").release()
    assert filesystem.exists(directory / ".lock")


# Crashes


def disk_with(synced: bytes, unsynced: bytes, **settings: int) -> CrashDisk:
    """A file whose name and first bytes are durable, and the rest is not."""
    disk = CrashDisk(**settings)
    disk.make_directory(FILE.parent)
    handle = disk.open(FILE, create=True)
    handle.append((synced,))
    handle.datasync()
    disk.sync_directory(FILE.parent)
    handle.append((unsynced,))
    return disk


def lose(disk: CrashDisk, data: DataLoss, names: NameLoss, seed: int = 0) -> dict[Path, bytes]:
    return disk.after_power_loss(data, names, Random(seed)).files()


def test_power_loss_takes_what_was_not_synced_and_a_kill_takes_nothing():
    disk = disk_with(b"abc", b"def")
    assert lose(disk, DataLoss.ALL, NameLoss.NONE) == {FILE: b"abc"}
    assert lose(disk, DataLoss.NONE, NameLoss.ALL) == {FILE: b"abcdef"}
    assert disk.after_kill().files() == {FILE: b"abcdef"}


def test_kill_leaves_unsynced_bytes_unsynced():
    disk = disk_with(b"abc", b"def").after_kill()
    assert lose(disk, DataLoss.ALL, NameLoss.ALL) == {FILE: b"abc"}


def test_tail_may_be_torn_at_any_byte():
    disk = disk_with(b"abc", b"def")
    found = {lose(disk, DataLoss.TAIL, NameLoss.ALL, seed)[FILE] for seed in range(99)}
    assert found == {b"abc", b"abcd", b"abcde", b"abcdef"}


def test_pages_may_survive_out_of_order():
    disk = disk_with(b"", b"abcdefghi", page_bytes=3)
    found = {lose(disk, DataLoss.PAGES, NameLoss.ALL, seed)[FILE] for seed in range(99)}
    zero = bytes(3)
    assert b"" in found
    assert {zero + b"def" + zero, b"abc" + zero + b"ghi", b"abcdefghi"} <= found


def test_overwriting_within_a_sector_is_all_or_nothing():
    disk = disk_with(b"abc" * 100, b"")
    disk.open(FILE, create=False).write_at(0, b"xyz" * 100)
    for data in (DataLoss.TAIL, DataLoss.PAGES):
        found = {lose(disk, data, NameLoss.ALL, seed)[FILE] for seed in range(50)}
        assert found == {b"abc" * 100, b"xyz" * 100}


def test_names_not_synced_are_lost_each_for_itself():
    disk = disk_with(b"a", b"")
    disk.open(FILE.with_name("new"), create=True)
    disk.rename(FILE, FILE.with_name("other"))
    assert set(lose(disk, DataLoss.NONE, NameLoss.ALL)) == {FILE}
    names = {
        tuple(sorted(path.name for path in lose(disk, DataLoss.NONE, NameLoss.SOME, seed)))
        for seed in range(50)
    }
    assert names == {("file",), ("file", "new"), ("other",), ("new", "other")}
    disk.sync_directory(FILE.parent)
    assert {path.name for path in lose(disk, DataLoss.ALL, NameLoss.ALL)} == {"new", "other"}


def test_atomic_write_is_old_or_new_at_every_operation():
    wanted = {b"old", b"new"}
    found = set()
    for number in range(1, 99):
        disk = disk_with(b"old", b"")
        disk.stop_after(len(disk.history) + number)
        try:
            disk.write_atomically(FILE, b"new")
        except Crash:
            found |= {lose(disk, loss, NameLoss.SOME, number)[FILE] for loss in DataLoss}
            found.add(disk.after_kill().files()[FILE])
        else:
            break
    assert found == wanted
    assert lose(disk, DataLoss.ALL, NameLoss.ALL)[FILE] == b"new"


def test_dead_process_can_do_nothing_more():
    disk = disk_with(b"abc", b"")
    handle = disk.open(FILE, create=False)
    lock = disk.lock(FILE.with_name(".lock"))
    disk.stop_within(len(disk.history) + 1, 0.5)
    with pytest.raises(Crash, match="append d/file"):
        handle.append((b"defg",))
    with pytest.raises(Crash):
        handle.datasync()
    with pytest.raises(Crash):
        handle.read(0, 1)
    with pytest.raises(Crash):
        disk.write_atomically(FILE, b"x")
    lock.release()
    successor = disk.after_kill()
    assert successor.read_whole(FILE) == b"abcde"
    successor.lock(FILE.with_name(".lock"))


# Faults


def test_full_disk_takes_what_fits_and_serves_again_when_there_is_room():
    disk = disk_with(b"abc", b"", capacity_bytes=5)
    handle = disk.open(FILE, create=False)
    with pytest.raises(OSError, match="full") as caught:
        handle.append((b"defg",))
    assert is_transient(caught.value)
    assert (handle.size, disk.read_whole(FILE)) == (3, b"abcde")
    with pytest.raises(OSError, match="full"):
        disk.open(FILE.with_name("new"), create=True)
    handle.write_at(0, b"x")
    handle.truncate(3)
    disk.capacity_bytes = 100
    handle.append((b"defg",))
    assert disk.read_whole(FILE) == b"xbcdefg"


def test_planned_fault_strikes_as_often_as_planned_and_leaves_a_part():
    disk = disk_with(b"abc", b"")
    handle = disk.open(FILE, create=False)
    disk.fail("append", "file", times=1, written=0.5)
    with pytest.raises(OSError, match="planned") as caught:
        handle.append((b"defg",))
    assert caught.value.errno == errno.EIO
    assert disk.read_whole(FILE) == b"abcde"
    handle.append((b"DEFG",))
    assert disk.read_whole(FILE) == b"abcDEFG"


def test_bytes_of_a_failed_sync_are_never_durable():
    disk = disk_with(b"abc", b"def")
    handle = disk.open(FILE, create=False)
    disk.fail("datasync", times=1)
    with pytest.raises(OSError, match="planned"):
        handle.datasync()
    handle.append((b"ghi",))
    handle.datasync()
    assert disk.read_whole(FILE) == b"abcdefghi"
    assert lose(disk, DataLoss.NONE, NameLoss.NONE)[FILE] == b"abc\0\0\0ghi"


def test_fault_at_an_operation_strikes_once():
    disk = disk_with(b"abc", b"")
    disk.fail_at(len(disk.history) + 1)
    with pytest.raises(OSError, match="planned"):
        disk.remove(FILE)
    disk.remove(FILE)
    assert disk.files() == {}
