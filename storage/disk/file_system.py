"""The file system that logs use; the only module that makes system calls for files.

Everything above takes a ``FileSystem``, so tests and the simulator can supply one that
loses unsynced bytes or fails on demand.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, Protocol

Buffer = bytes | bytearray | memoryview

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
"""Other users of the machine read nothing: records, and the key that signs tickets."""

TEMPORARY_SUFFIX: Final = ".tmp"
"""Suffix of a file that ``write_atomically`` has not finished; worthless after a crash."""

CAN_READ_CACHED: Final = hasattr(os, "RWF_NOWAIT")
"""Whether ``read_cached`` can ever have something; the rest is up to the file system."""

# fdatasync does not exist on macOS, where fsync is the closest there is.
_datasync = getattr(os, "fdatasync", os.fsync)


class DiskSpace(NamedTuple):
    """Bytes of a disk: available to this process, and total."""

    free_bytes: int
    size_bytes: int


def disk_space(path: Path) -> DiskSpace:
    """The disk that holds ``path``. Raises OSError."""
    status = os.statvfs(path)
    return DiskSpace(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)


def read_cached(path: str, identity: tuple[int, int], position: int, size: int) -> bytearray | None:
    """``size`` bytes from ``position`` of a file, if all are in memory; else ``None``.

    No disk is waited for. ``None`` also if the file is shorter, or another one than ``identity``
    says (``FileHandle.identity``). Raises OSError: no such file, or its file system cannot tell.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != identity or status.st_size < position + size:
            return None
        data = bytearray(size)
        count = os.preadv(descriptor, (data,), position, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    finally:
        os.close(descriptor)
    return data if count == size else None


class DirectoryLockedError(BlockingIOError):
    """Another process holds the lock of this directory."""


class FileHandle(Protocol):
    """One open file with a single writer; positions and sizes in bytes.

    Nothing is durable before ``datasync`` returns. Every method raises OSError on a disk
    error.
    """

    @property
    def size(self) -> int:
        """Bytes in the file, counting only completed appends."""
        ...

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write all buffers after the last byte and return where they begin.

        If it raises, ``size`` is unchanged but bytes may lie beyond it; ``truncate(size)``
        removes them.
        """
        ...

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``; fewer only at the end of the file."""
        ...

    def identity(self) -> tuple[int, int]:
        """Device and inode, which no other file has as long as this one is open."""
        ...

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite in place."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        ...

    def datasync(self) -> None:
        """Return once all bytes written before this call are durable."""
        ...

    def duplicate(self) -> FileHandle:
        """Another handle of the same open file: ``datasync`` on it outlives ``close`` here."""
        ...

    def close(self) -> None:
        """Close the file without syncing it. A second call does nothing."""
        ...


class Lock(Protocol):
    """A held lock of a directory."""

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        ...


class FileSystem(Protocol):
    """Directories and files by path. Every method raises OSError on a disk error."""

    def open(self, path: Path, *, create: bool) -> FileHandle:
        """Open for reading and writing; a missing file is made or raises FileNotFoundError."""
        ...

    def make_directory(self, path: Path) -> None:
        """Make the directory and its parents, durably; an existing one is left alone."""
        ...

    def list_directory(self, path: Path) -> list[str]:
        """The sorted names in it; empty if the directory is missing."""
        ...

    def file_size(self, path: Path) -> int:
        """Bytes in the file."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether a file or directory is there."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; a missing one is left alone. Durable after ``sync_directory``."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing the target. Durable after ``sync_directory``."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all in it; a missing one is left alone."""
        ...

    def read_whole(self, path: Path) -> bytes:
        """All bytes of a file; FileNotFoundError if it is missing."""
        ...

    def write_atomically(self, path: Path, data: Buffer) -> None:
        """Make or replace a file; on return it is durable, after a crash it is old or new."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in the directory durable."""
        ...

    def lock(self, path: Path) -> Lock:
        """Take the exclusive lock file ``path``; DirectoryLockedError if another holds it.

        The holder may remove the file. Whoever tries to lock it at that moment gets the error once
        and may retry. The lock ends with the process, however it dies.
        """
        ...


class RealFileHandle:
    """A file descriptor with its size kept beside it, so that an append is one system call."""

    __slots__ = ("_descriptor", "_size")

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size

    @property
    def size(self) -> int:
        """Bytes in the file, counting only completed appends."""
        return self._size

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write all buffers after the last byte and return where they begin."""
        position = self._size
        if len(buffers) == 1:
            written = os.pwrite(self._descriptor, buffers[0], position)
        else:
            written = os.pwritev(self._descriptor, buffers, position)
        if written != sum(map(len, buffers)):
            written = self._write_rest(b"".join(buffers), written, position)
        self._size = position + written
        return position

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``; fewer only at the end of the file."""
        data = os.pread(self._descriptor, size, position)
        while 0 < len(data) < size:
            more = os.pread(self._descriptor, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def identity(self) -> tuple[int, int]:
        """Device and inode, which no other file has as long as this one is open."""
        status = os.fstat(self._descriptor)
        return status.st_dev, status.st_ino

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite in place."""
        written = os.pwrite(self._descriptor, data, position)
        if written != len(data):
            written = self._write_rest(data, written, position)
        self._size = max(self._size, position + written)

    def _write_rest(self, data: Buffer, written: int, position: int) -> int:
        """Write what is left of ``data`` at ``position``; returns its size in bytes."""
        view = memoryview(data)
        while written < len(view):
            count = os.pwrite(self._descriptor, view[written:], position + written)
            if count == 0:
                raise OSError(errno.EIO, "the disk wrote no bytes")
            written += count
        return written

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        os.ftruncate(self._descriptor, size)
        self._size = size

    def datasync(self) -> None:
        """Return once all bytes written before this call are durable."""
        if self._descriptor < 0:
            raise OSError(errno.EBADF, "the file is closed")
        _datasync(self._descriptor)

    def duplicate(self) -> RealFileHandle:
        """Another handle of the same open file; a sync error is reported to both."""
        return RealFileHandle(os.dup(self._descriptor), self._size)

    def close(self) -> None:
        """Close the file without syncing it. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def scratch_file(directory: str | None) -> RealFileHandle:
    """A new file without a name, in a directory or where temporary files are.

    Its space is free again once it is closed, or when the process ends. Raises OSError.
    """
    descriptor, path = tempfile.mkstemp(dir=directory)
    os.unlink(path)
    return RealFileHandle(descriptor, 0)


class RealLock:
    """An ``flock`` that lives as long as its file descriptor."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealFileSystem:
    """The operating system's file system."""

    def open(self, path: Path, *, create: bool) -> RealFileHandle:
        """Open for reading and writing; a missing file is made or raises FileNotFoundError."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        descriptor = os.open(path, flags, FILE_MODE)
        return RealFileHandle(descriptor, os.fstat(descriptor).st_size)

    def make_directory(self, path: Path) -> None:
        """Make the directory and its parents, durably; an existing one is left alone."""
        missing = [path, *path.parents]
        missing = [directory for directory in missing if not directory.exists()]
        for directory in reversed(missing):
            os.makedirs(directory, DIRECTORY_MODE, exist_ok=True)
            self.sync_directory(directory.parent)

    def list_directory(self, path: Path) -> list[str]:
        """The sorted names in it; empty if the directory is missing."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def file_size(self, path: Path) -> int:
        """Bytes in the file."""
        return path.stat().st_size

    def exists(self, path: Path) -> bool:
        """Whether a file or directory is there."""
        return path.exists()

    def remove(self, path: Path) -> None:
        """Remove a file; a missing one is left alone. Durable after ``sync_directory``."""
        path.unlink(missing_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing the target. Durable after ``sync_directory``."""
        os.replace(source, target)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all in it; a missing one is left alone."""
        if path.exists():
            shutil.rmtree(path)

    def read_whole(self, path: Path) -> bytes:
        """All bytes of a file; FileNotFoundError if it is missing."""
        return path.read_bytes()

    def write_atomically(self, path: Path, data: Buffer) -> None:
        """Make or replace a file; on return it is durable, after a crash it is old or new."""
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        handle = self.open(temporary, create=True)
        try:
            handle.truncate(0)
            handle.append((data,))
            handle.datasync()
        finally:
            handle.close()
        os.replace(temporary, path)
        self.sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        """Make the names in the directory durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> RealLock:
        """Take the exclusive lock file ``path``; DirectoryLockedError if another holds it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            _take(descriptor, path)
        except OSError:
            os.close(descriptor)
            raise
        return RealLock(descriptor)


def _take(descriptor: int, path: Path) -> None:
    """Lock the open file and check that ``path`` still names it. OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DirectoryLockedError(
            error.errno, "the directory is in use by another process", str(path)
        ) from error
    if not _is_at(path, descriptor):
        raise DirectoryLockedError(
            errno.EAGAIN, "the lock file was removed by its holder", str(path)
        )


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the open file is still the one at ``path``. OSError."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


class ReadOnlyFileSystem(RealFileSystem):
    """A read-only file system for tools that inspect directories which others may be writing to.

    Every method that would change something raises OSError (EROFS); so do the files it opens.
    """

    def open(self, path: Path, *, create: bool) -> RealFileHandle:
        """Open for reading; ``create`` raises OSError."""
        if create:
            _refuse_change(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return RealFileHandle(descriptor, os.fstat(descriptor).st_size)

    def identity(self, path: Path) -> tuple[int, int]:
        """Inode and change time: tell the file from a later one of its name. OSError if missing."""
        status = path.stat()
        return status.st_ino, status.st_ctime_ns

    def make_directory(self, path: Path) -> None:
        """Raise OSError: read-only."""
        _refuse_change(path)

    def remove(self, path: Path) -> None:
        """Raise OSError: read-only."""
        _refuse_change(path)

    def rename(self, source: Path, target: Path) -> None:  # noqa: ARG002
        """Raise OSError: read-only."""
        _refuse_change(source)

    def remove_tree(self, path: Path) -> None:
        """Raise OSError: read-only."""
        _refuse_change(path)

    def write_atomically(self, path: Path, data: Buffer) -> None:  # noqa: ARG002
        """Raise OSError: read-only."""
        _refuse_change(path)

    def lock(self, path: Path) -> RealLock:
        """Raise OSError: taking a lock creates its file, and reading needs no lock."""
        _refuse_change(path)


def _refuse_change(path: Path) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
