from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys

import pytest

from oncelog.storage.disk import file_system as fs
from oncelog.storage.disk.file_system import (
    DirectoryLockedError,
    ReadOnlyFileSystem,
    RealFileSystem,
    read_cached,
)


@pytest.fixture
def real() -> RealFileSystem:
    return RealFileSystem()


@pytest.fixture
def file(real, tmp_path):
    handle = real.open(tmp_path / "file", create=True)
    yield handle
    handle.close()


def test_appends_follow_each_other(file, tmp_path):
    assert file.append((b"abc",)) == 0
    assert file.append((b"de", bytearray(b"fg"), memoryview(b"h"))) == 3
    assert file.size == 8
    assert (tmp_path / "file").read_bytes() == b"abcdefgh"


@pytest.mark.parametrize("buffers", [(b"abcdefghij",), (b"abc", b"defghi", b"j")])
def test_short_writes_are_completed(file, monkeypatch, buffers):
    write, write_vector = os.pwrite, os.pwritev
    monkeypatch.setattr(
        fs.os, "pwrite", lambda fd, data, at: write(fd, bytes(data[:2]), at), raising=True
    )
    monkeypatch.setattr(
        fs.os, "pwritev", lambda fd, data, at: write_vector(fd, [data[0][:1]], at), raising=True
    )
    file.append(buffers)
    assert file.read(0, 99) == b"abcdefghij"


def test_write_that_takes_no_bytes_is_an_error(file, monkeypatch):
    monkeypatch.setattr(fs.os, "pwrite", lambda fd, data, at: 0)
    with pytest.raises(OSError, match="wrote no bytes"):
        file.append((b"abc",))
    assert file.size == 0


def test_failed_append_leaves_the_size_as_it_was(file, monkeypatch):
    file.append((b"abc",))

    def refuse(*args: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(fs.os, "pwrite", refuse)
    with pytest.raises(OSError, match="full"):
        file.append((b"def",))
    assert file.size == 3


def test_reads_end_with_the_file(file):
    file.append((b"abcdef",))
    assert file.read(2, 3) == b"cde"
    assert file.read(4, 99) == b"ef"
    assert file.read(6, 1) == b""


def test_short_reads_are_completed(file, monkeypatch):
    file.append((b"abcdef",))
    read = os.pread
    monkeypatch.setattr(fs.os, "pread", lambda fd, size, at: read(fd, min(size, 2), at))
    assert file.read(0, 99) == b"abcdef"
    assert file.read(1, 3) == b"bcd"


def test_truncated_file_goes_on_from_its_new_end(file):
    file.append((b"abcdef",))
    file.truncate(2)
    assert file.append((b"z",)) == 2
    assert file.read(0, 9) == b"abz"


def test_overwrite_keeps_the_rest(file):
    file.append((b"abcdef",))
    file.write_at(1, b"XY")
    assert file.read(0, 9) == b"aXYdef"
    assert file.size == 6


def test_duplicate_can_sync_after_the_original_is_closed(file):
    file.append((b"abc",))
    duplicate = file.duplicate()
    file.close()
    duplicate.datasync()
    duplicate.close()
    with pytest.raises(OSError, match="closed"):
        duplicate.datasync()


def test_second_close_does_not_close_a_stranger(real, tmp_path):
    first = real.open(tmp_path / "first", create=True)
    first.close()
    second = real.open(tmp_path / "second", create=True)
    first.close()
    second.append((b"a",))
    second.close()
    assert (tmp_path / "second").read_bytes() == b"a"


def test_missing_file_is_not_made_unasked(real, tmp_path):
    with pytest.raises(FileNotFoundError):
        real.open(tmp_path / "none", create=False)


def test_reopened_file_knows_its_size(real, tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    handle = real.open(tmp_path / "file", create=True)
    assert handle.size == 3
    handle.close()


def test_atomic_write_replaces_and_leaves_no_temporary(real, tmp_path):
    path = tmp_path / "file"
    real.write_atomically(path, b"long old content")
    real.write_atomically(path, b"new")
    assert real.read_whole(path) == b"new"
    assert real.list_directory(tmp_path) == ["file"]


def test_atomic_write_that_fails_keeps_the_old_file(real, tmp_path, monkeypatch):
    path = tmp_path / "file"
    real.write_atomically(path, b"old")

    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, "sync failed")

    monkeypatch.setattr(fs, "_datasync", refuse)
    with pytest.raises(OSError, match="sync failed"):
        real.write_atomically(path, b"new")
    assert real.read_whole(path) == b"old"


def test_directories_are_made_with_their_parents(real, tmp_path):
    path = tmp_path / "a" / "b" / "c"
    real.make_directory(path)
    real.make_directory(path)
    assert real.exists(path)
    assert real.list_directory(path) == []


def test_other_users_of_the_machine_read_nothing(real, tmp_path):
    before = os.umask(0)
    try:
        real.make_directory(tmp_path / "a" / "b")
        real.open(tmp_path / "a" / "opened", create=True).close()
        real.write_atomically(tmp_path / "a" / "written", b"secret")
        real.lock(tmp_path / "a" / "locked").release()
    finally:
        os.umask(before)
    made = [tmp_path / "a", *(tmp_path / "a").iterdir()]
    assert len(made) == 5
    assert not any(path.stat().st_mode & 0o077 for path in made)


def test_missing_things_are_quietly_absent(real, tmp_path):
    assert real.list_directory(tmp_path / "none") == []
    real.remove(tmp_path / "none")
    real.remove_tree(tmp_path / "none")
    assert not real.exists(tmp_path / "none")


def test_tree_is_removed_whole(real, tmp_path):
    real.make_directory(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "file").write_bytes(b"x")
    real.remove_tree(tmp_path / "a")
    assert real.list_directory(tmp_path) == []


def test_rename_replaces_the_target(real, tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    real.rename(tmp_path / "a", tmp_path / "b")
    assert real.list_directory(tmp_path) == ["b"]
    assert real.file_size(tmp_path / "b") == 1


def test_held_lock_refuses_a_second_holder_until_released(real, tmp_path):
    path = tmp_path / ".lock"
    lock = real.lock(path)
    with pytest.raises(DirectoryLockedError, match="in use by another process"):
        real.lock(path)
    lock.release()
    lock.release()
    real.lock(path).release()


def test_lock_of_a_killed_process_is_free(real, tmp_path):
    path = tmp_path / ".lock"
    program = (
        "import sys, pathlib; from oncelog.storage.disk.file_system import RealFileSystem;"
        "lock = RealFileSystem().lock(pathlib.Path(sys.argv[1]));"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryLockedError):
            real.lock(path)
        child.kill()
        child.wait()
    real.lock(path).release()


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_lock_file_that_its_holder_removes_before_we_have_it_locks_nothing(
    real, tmp_path, monkeypatch, is_made_again
):
    """1. We open the file. 2. Its holder removes it and lets go. 3. Another may make it anew."""
    path = tmp_path / ".lock"
    flock = fs.fcntl.flock
    others = []

    def late(descriptor, operation):
        monkeypatch.setattr(fs.fcntl, "flock", flock)
        path.unlink()
        if is_made_again:
            others.append(real.lock(path))
        flock(descriptor, operation)

    monkeypatch.setattr(fs.fcntl, "flock", late)
    with pytest.raises(DirectoryLockedError, match="was removed by its holder"):
        real.lock(path)
    for lock in others:
        lock.release()
    real.lock(path).release()


def test_lock_error_survives_pickling():
    error = pickle.loads(pickle.dumps(DirectoryLockedError(11, "in use", "path")))
    assert isinstance(error, DirectoryLockedError)
    assert error.errno == 11


def test_a_read_only_file_system_changes_nothing(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    filesystem = ReadOnlyFileSystem()
    handle = filesystem.open(path, create=False)
    assert handle.read(0, 3) == b"abc"
    attempts = [
        lambda: handle.append((b"d",)),
        lambda: filesystem.open(tmp_path / "new", create=True),
        lambda: filesystem.make_directory(tmp_path / "d"),
        lambda: filesystem.remove(path),
        lambda: filesystem.rename(path, tmp_path / "g"),
        lambda: filesystem.remove_tree(tmp_path),
        lambda: filesystem.write_atomically(path, b"d"),
        lambda: filesystem.lock(tmp_path / ".lock"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match=r"Read-only file system|Bad file descriptor"):
            attempt()
    handle.close()
    assert [each.name for each in tmp_path.iterdir()] == ["f"]
    assert path.read_bytes() == b"abc"


def test_what_is_in_memory_is_read_and_nothing_of_another_file(file, tmp_path, cached_reads):
    path = str(tmp_path / "file")
    file.append((b"abcdef",))
    assert read_cached(path, file.identity(), 1, 3) == b"bcd"
    assert read_cached(path, file.identity(), 4, 3) is None
    os.rename(path, tmp_path / "old")
    with pytest.raises(FileNotFoundError):
        read_cached(path, file.identity(), 1, 3)
    (tmp_path / "file").write_bytes(b"abcdef")
    assert read_cached(path, file.identity(), 1, 3) is None


def test_what_is_on_the_disk_only_is_not_waited_for(file, tmp_path, cached_reads):
    size = 1 << 22
    file.append((bytes(size),))
    file.datasync()
    os.posix_fadvise(file._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    assert read_cached(str(tmp_path / "file"), file.identity(), 0, size) is None
    assert file.read(0, size) == bytes(size)
    assert read_cached(str(tmp_path / "file"), file.identity(), 0, size) == bytes(size)
