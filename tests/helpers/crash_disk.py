"""A file system in memory that knows what a power loss would leave of it.

``CrashDisk`` implements the Protocols of ``storage.fs``. Every call that changes or syncs something
is one *operation*; operations are counted, and the disk can be told to stop at one of them. From
then on every call raises ``Crash``: the process is dead, whatever its ``finally`` clauses still
try. What a new process finds is another ``CrashDisk``:

* ``after_kill``: everything written is there, because the kernel still has it;
* ``after_power_loss``: what was synced is there, and of the rest what ``DataLoss`` and
  ``NameLoss`` leave. A file's bytes are durable after its ``datasync``, a name after
  ``sync_directory`` of its directory, and nothing else is.

The disk can also be full (``capacity_bytes``), the process out of descriptors
(``descriptor_limit``), and calls can be made to fail (``fail``). Nothing here waits, and the only
randomness is that of the generator passed in.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from disk_image import DataLoss, Directory, File, NameLoss, Node, Resize, Write, clone_tree, walk

from oncelog.storage.disk.file_system import TEMPORARY_SUFFIX, Buffer, DirectoryLockedError

__all__ = ["Crash", "CrashDisk", "CrashHandle", "CrashLock", "DataLoss", "NameLoss", "Operation"]


class Crash(BaseException):
    """The process died. Not an Exception, so that no handler of errors stops it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One counted call, as ``append flights-0/00000000000000000000.log``."""

    call: str
    path: Path

    def __str__(self) -> str:
        return f"{self.call} {self.path.parent.name}/{self.path.name}"


@dataclass(slots=True)
class Fault:
    """Calls named ``call`` on names that end in ``suffix`` fail with ``number``, ``times`` times.

    ``times`` None: until ``heal``. Of a write the part ``written``, 0 to 1, is in the file all the
    same; after a failed sync the kernel takes the lost pages for clean.
    """

    call: str
    suffix: str
    number: int
    times: int | None
    written: float
    met: int = 0
    """How often it has happened."""


class CrashHandle:
    """An open file of a ``CrashDisk``."""

    __slots__ = ("_disk", "_is_closed", "_size", "file", "path")

    def __init__(self, disk: CrashDisk, path: Path, file: File) -> None:
        self._disk = disk
        self.path = path
        self.file = file
        self._size = len(file.content)
        self._is_closed = False
        disk.open_handles += 1

    @property
    def size(self) -> int:
        """Bytes in the file, counting only completed appends."""
        return self._size

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write all buffers after the last byte and return where they begin."""
        position = self._size
        data = b"".join(buffers)
        self._write("append", position, data)
        self._size = position + len(data)
        return position

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``; fewer only at the end of the file."""
        self._check_open()
        self._disk.refuse_read(self.path, position, position + size)
        return bytes(self.file.content[position : position + size])

    def identity(self) -> tuple[int, int]:
        """Which no other file has."""
        return 0, id(self.file)

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite in place."""
        self._write("write_at", position, bytes(data))
        self._size = max(self._size, position + len(data))

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        self._check_open()
        self._disk.operate("truncate", self.path, lambda: self.file.change(Resize(size)))
        if size == 0:
            self._disk.mend(self.path)
        self._size = size

    def datasync(self) -> None:
        """Return once all bytes written before this call are durable."""
        self._check_open()
        # The kernel reports a page it could not write once, and takes it for clean afterwards.
        self._disk.operate("datasync", self.path, self.file.sync, lambda _: self.file.lose_writes())

    def duplicate(self) -> CrashHandle:
        """Another handle of the same open file."""
        self._check_open()
        self._disk.take_descriptor(self.path)
        return CrashHandle(self._disk, self.path, self.file)

    def close(self) -> None:
        """Give the file back; does not sync. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._disk.open_handles -= 1

    def _check_open(self) -> None:
        self._disk.check_alive()
        if self._is_closed:
            raise OSError(errno.EBADF, "the file is closed")

    def _write(self, call: str, position: int, data: bytes) -> None:
        self._check_open()

        def write_part(part: float) -> None:
            self.file.change(Write(position, data).first(part, len(self.file.content)))

        def write() -> None:
            growth = position + len(data) - len(self.file.content)
            missing = growth - self._disk.free_bytes
            if growth > 0 and missing > 0:
                self.file.change(Write(position, data[: max(0, len(data) - missing)]))
                raise OSError(errno.ENOSPC, "the disk is full", str(self.path))
            self.file.change(Write(position, data))

        self._disk.operate(call, self.path, write, write_part)


class CrashLock:
    """A held lock of a ``CrashDisk``; it ends with the process."""

    __slots__ = ("_disk", "_path")

    def __init__(self, disk: CrashDisk, path: Path) -> None:
        self._disk = disk
        self._path: Path | None = path

    def release(self) -> None:
        """Let others lock it. A second call does nothing."""
        path, self._path = self._path, None
        if path is not None:
            self._disk.unlock(path)


class CrashDisk:
    """The file system of one process life; ``history`` is every operation of it so far.

    ``capacity_bytes`` None: never full. ``open_handles`` counts what was opened and not closed;
    with a ``descriptor_limit`` that many can be open at once.
    """

    def __init__(self, *, page_bytes: int = 4_096, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.descriptor_limit: int | None = None
        self.history: list[Operation] = []
        self.is_dead = False
        self.open_handles = 0
        self._page_bytes = page_bytes
        self.root = Directory()
        """The tree, as processes see it and as it would survive."""
        self._locked: set[Path] = set()
        self.faults: list[Fault] = []
        self._fault_at: tuple[int, Fault] | None = None
        self.bad_sectors: list[tuple[Path, int, int]] = []
        """Of a file, from where to where it cannot be read."""
        self.failed_directories: set[Path] = set()
        """Where another disk is mounted that has failed: whatever is done there fails."""
        self._stop_at = 0
        self._stop_part: float | None = None

    # Control

    def stop_after(self, operation: int) -> None:
        """Die when the operation of this number, from 1, is done."""
        self._stop_at, self._stop_part = operation, None

    def stop_within(self, operation: int, part: float) -> None:
        """Die in the operation of this number: of a write, ``part`` (0 to 1) is in the file."""
        self._stop_at, self._stop_part = operation, part

    def kill(self) -> None:
        """Die now: every later call raises ``Crash``."""
        self.is_dead = True

    def fail(
        self,
        call: str,
        suffix: str = "",
        number: int = errno.EIO,
        *,
        times: int | None = None,
        written: float = 0.0,
    ) -> Fault:
        """Plan a ``Fault``; ``call`` is the name of an operation, or ``read``, or ``open`` for
        whatever takes a descriptor."""
        fault = Fault(call, suffix, number, times, written)
        self.faults.append(fault)
        return fault

    def fail_at(self, operation: int, number: int = errno.EIO, *, written: float = 0.0) -> None:
        """The operation of this number, from 1, fails once."""
        self._fault_at = operation, Fault("", "", number, None, written)

    def heal(self) -> None:
        """Forget all planned faults."""
        self.faults.clear()
        self._fault_at = None

    def after_kill(self) -> CrashDisk:
        """The disk of the next process after kill -9; what was unsynced still is."""
        return self._next_life(clone_tree(self.root, {}))

    def after_power_loss(self, data: DataLoss, names: NameLoss, random: Random) -> CrashDisk:
        """The disk of the next process after the machine lost power; all of it is durable."""
        files: dict[File, File] = {}

        def survivors(directory: Directory) -> Directory:
            entries: dict[str, Node] = {}
            for name, node in directory.surviving(names, random).items():
                if isinstance(node, Directory):
                    entries[name] = survivors(node)
                    continue
                if node not in files:
                    content = node.surviving(data, self._page_bytes, random)
                    files[node] = File(content, bytearray(content))
                entries[name] = files[node]
            return Directory(entries, dict(entries))

        return self._next_life(survivors(self.root))

    def files(self) -> dict[Path, bytes]:
        """Every file with what a process sees in it."""
        return dict(walk(self.root, Path("/")))

    def flip_bit(self, path: Path, position: int, bit: int) -> None:
        """The medium changed one bit of a file, which nobody noticed."""
        file = self.file(path)
        for content in (file.content, file.durable):
            if position < len(content):
                content[position] ^= 1 << bit

    def spoil(self, path: Path, start: int, end: int) -> None:
        """The medium cannot read these bytes of a file any more, now and in later lives."""
        self.bad_sectors.append((path, start, end))

    def mend(self, path: Path) -> None:
        """What is written there from now on can be read."""
        self.bad_sectors[:] = [bad for bad in self.bad_sectors if bad[0] != path]

    # For handles and locks

    def check_alive(self) -> None:
        """``Crash`` if the process is dead."""
        if self.is_dead:
            raise Crash("the process is dead")

    def operate(
        self,
        call: str,
        path: Path,
        action: Callable[[], None],
        part_action: Callable[[float], None] | None = None,
    ) -> None:
        """Count one operation and do it, unless the disk is to die or to refuse there.

        ``part_action`` does a part, from 0 to 1, of what is then not done wholly.
        """
        self.check_alive()
        self._check_works(path)
        self.history.append(Operation(call, path))
        is_last = len(self.history) == self._stop_at
        if is_last and self._stop_part is not None:
            if part_action is not None and call != "datasync":
                part_action(self._stop_part)
            self._die()
        fault = self._planned(call, path)
        if fault is not None:
            if part_action is not None:
                part_action(fault.written)
            raise OSError(fault.number, "planned failure", str(path))
        action()
        if is_last:
            self._die()

    def take_descriptor(self, path: Path) -> None:
        """OSError if the process has as many files open as it may, or opens are planned to fail."""
        self.check_alive()
        self._check_works(path)
        limit = self.descriptor_limit
        if limit is not None and self.open_handles >= limit:
            raise OSError(errno.EMFILE, "too many open files", str(path))
        fault = self._planned("open", path)
        if fault is not None:
            raise OSError(fault.number, "planned failure", str(path))

    def _check_works(self, path: Path) -> None:
        if any(path.is_relative_to(failed) for failed in self.failed_directories):
            raise OSError(errno.EIO, "the disk has failed", str(path))

    def refuse_read(self, path: Path, start: int, end: int) -> None:
        """OSError if reads of this file are planned to fail, or there is a bad sector in it."""
        self._check_works(path)
        for bad_path, bad_start, bad_end in self.bad_sectors:
            if path == bad_path and start < bad_end and bad_start < end:
                raise OSError(errno.EIO, "bad sector", str(path))
        fault = self._planned("read", path)
        if fault is not None:
            raise OSError(fault.number, "planned failure", str(path))

    @property
    def free_bytes(self) -> int:
        """How many bytes all files together may still grow by."""
        if self.capacity_bytes is None:
            return 1 << 62
        return self.capacity_bytes - sum(len(data) for _, data in walk(self.root, Path("/")))

    def unlock(self, path: Path) -> None:
        """Release the lock ``path``."""
        self._locked.discard(path)

    # FileSystem

    def open(self, path: Path, *, create: bool) -> CrashHandle:
        """Open for reading and writing; a missing file is made or raises FileNotFoundError."""
        self.check_alive()
        directory = self._directory(path.parent)
        node = directory.entries.get(path.name)
        if node is None and not create:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        self.take_descriptor(path)
        if node is None:
            node = self._create(directory, path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        return CrashHandle(self, path, node)

    def make_directory(self, path: Path) -> None:
        """Make the directory and its parents, durably; an existing one is left alone."""
        self.check_alive()
        directory = self.root
        for name in path.parts[1:]:
            node = directory.entries.get(name)
            if node is None:
                node = Directory()
                self.operate("make_directory", path, _adder(directory, name, node))
            if isinstance(node, File):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
            directory = node

    def list_directory(self, path: Path) -> list[str]:
        """The sorted names in it; empty if the directory is missing."""
        self.check_alive()
        node = self._find(path)
        return sorted(node.entries) if isinstance(node, Directory) else []

    def file_size(self, path: Path) -> int:
        """Bytes in the file."""
        self.check_alive()
        return len(self.file(path).content)

    def exists(self, path: Path) -> bool:
        """Whether a file or directory is there."""
        self.check_alive()
        return self._find(path) is not None

    def remove(self, path: Path) -> None:
        """Remove a file; a missing one is left alone. Durable after ``sync_directory``."""
        self.check_alive()
        if self._find(path) is not None:
            directory = self._directory(path.parent)
            self.operate("remove", path, lambda: directory.change(path.name))
            self.mend(path)

    def rename(self, source: Path, target: Path) -> None:
        """Rename within a directory, replacing the target. Durable after ``sync_directory``."""
        self.check_alive()
        if source.parent != target.parent:
            raise ValueError(f"{source} and {target} are in different directories")
        directory = self._directory(source.parent)
        node = directory.entries.get(source.name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
        added = (target.name, node)
        self.operate("rename", target, lambda: directory.change(source.name, added))
        self.mend(target)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all in it; a missing one is left alone."""
        node = self._find(path)
        if isinstance(node, Directory):
            for name in list(node.entries):
                child = path / name
                if isinstance(node.entries[name], Directory):
                    self.remove_tree(child)
                else:
                    self.remove(child)
            self.remove(path)

    def read_whole(self, path: Path) -> bytes:
        """All bytes of a file; FileNotFoundError if it is missing."""
        self.check_alive()
        content = bytes(self.file(path).content)
        self.take_descriptor(path)
        self.refuse_read(path, 0, len(content))
        return content

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
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        """Make the names in the directory durable."""
        self.take_descriptor(path)
        self.operate("sync_directory", path, self._directory(path).sync)

    def lock(self, path: Path) -> CrashLock:
        """Take the exclusive lock file ``path``; DirectoryLockedError if another holds it."""
        self.open(path, create=True).close()
        if path in self._locked:
            raise DirectoryLockedError(errno.EAGAIN, "the directory is in use", str(path))
        self._locked.add(path)
        return CrashLock(self, path)

    # Inside

    def _create(self, directory: Directory, path: Path) -> File:
        file = File()

        def create() -> None:
            if self.free_bytes <= 0:
                raise OSError(errno.ENOSPC, "the disk is full", str(path))
            directory.change(None, (path.name, file))

        self.operate("create", path, create)
        return file

    def _find(self, path: Path) -> Node | None:
        self._check_works(path)
        node: Node | None = self.root
        for name in path.parts[1:]:
            node = node.entries.get(name) if isinstance(node, Directory) else None
        return node

    def _directory(self, path: Path) -> Directory:
        node = self._find(path)
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        return node

    def file(self, path: Path) -> File:
        node = self._find(path)
        if not isinstance(node, File):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return node

    def _planned(self, call: str, path: Path) -> Fault | None:
        if self._fault_at is not None and self._fault_at[0] == len(self.history):
            return self._fault_at[1]
        for fault in self.faults:
            if fault.call == call and path.name.endswith(fault.suffix) and fault.times != 0:
                if fault.times is not None:
                    fault.times -= 1
                fault.met += 1
                return fault
        return None

    def _die(self) -> None:
        self.is_dead = True
        raise Crash(f"stopped at operation {len(self.history)}: {self.history[-1]}")

    def _next_life(self, root: Directory) -> CrashDisk:
        disk = CrashDisk(page_bytes=self._page_bytes, capacity_bytes=self.capacity_bytes)
        disk.root = root
        disk.bad_sectors = list(self.bad_sectors)
        return disk


def _adder(directory: Directory, name: str, node: Directory) -> Callable[[], None]:
    """Adds a name durably at once."""

    def add() -> None:
        directory.entries[name] = directory.durable[name] = node

    return add
