"""The disk and the disk thread of a simulated process.

Several lives of an actor share one tree: kill -9 leaves the page cache as it is, and a zombie may
write beside its successor if the directory lock lets it. A power loss makes a new tree.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from crash_disk import Crash, CrashDisk, CrashLock, DataLoss, NameLoss
from disk_image import Directory, File, Write, clone_tree

from oncelog.actors.replica.data_directory import IDENTITY_FILE
from oncelog.storage.records.batch import Buffer


class SimDisk(CrashDisk):
    """What one life of a process sees of its disk. ``on_death`` is told before ``Crash`` is raised.

    ``operation_count`` counts like ``history``, which is not kept beyond what is needed.
    """

    def __init__(self, root: Directory, locked: set[Path]) -> None:
        super().__init__()
        self.root = root
        self._locked = locked
        self._own_locks: list[Path] = []
        self.on_death: Callable[[str], None] | None = None
        self.on_identity: Callable[[], None] | None = None
        """Called when ``meta.properties`` has been written."""

    @classmethod
    def of(cls, root: Directory) -> SimDisk:
        """A disk on its own copy of ``root``, which nobody has locked."""
        return cls(clone_tree(root, {}), set())

    @property
    def operation_count(self) -> int:
        """Operations done in this life."""
        return len(self.history)

    def next_life(self) -> SimDisk:
        """The same files for another process; planned failures stay behind."""
        disk = SimDisk(self.root, self._locked)
        disk.bad_sectors = self.bad_sectors
        disk.capacity_bytes = self.capacity_bytes
        return disk

    def after_loss(self, data: DataLoss, names: NameLoss, random: Random) -> SimDisk:
        """What a power loss leaves, for a process of the next boot."""
        survivor = self.after_power_loss(data, names, random)
        disk = SimDisk(survivor.root, set())
        disk.bad_sectors = survivor.bad_sectors
        disk.capacity_bytes = self.capacity_bytes
        return disk

    def kill(self) -> None:
        """Die now; the kernel takes the locks back."""
        self.is_dead = True
        for path in self._own_locks:
            self._locked.discard(path)
        self._own_locks.clear()

    def write_atomically(self, path: Path, data: Buffer) -> None:
        """See ``CrashDisk.write_atomically``."""
        super().write_atomically(path, data)
        if path.name == IDENTITY_FILE and self.on_identity is not None:
            self.on_identity()

    def lock(self, path: Path) -> CrashLock:
        """See ``CrashDisk.lock``."""
        lock = super().lock(path)
        self._own_locks.append(path)
        return lock

    def unlock(self, path: Path) -> None:
        """See ``CrashDisk.unlock``; what a dead process does is in vain."""
        if not self.is_dead and path in self._own_locks:
            self._own_locks.remove(path)
            self._locked.discard(path)

    def _die(self) -> None:
        operation = f"{len(self.history)}: {self.history[-1]}"
        self.kill()
        if self.on_death is not None:
            self.on_death(operation)
        raise Crash(f"stopped at operation {operation}")


def settle(directory: Directory) -> Directory:
    """The tree with everything durable, as after a long time of peace."""
    for node in directory.entries.values():
        if isinstance(node, File):
            node.sync()
        else:
            settle(node)
    directory.sync()
    return directory


def durable_end(directory: Directory) -> int | None:
    """Where the log in a directory would end after a power loss (exclusive), by the disk's word.

    ``None``: where it ends now, as nothing of it is unsynced.
    """
    for name in sorted(directory.entries):
        node = directory.entries[name]
        if not name.endswith(".log") or not isinstance(node, File):
            continue
        if name not in directory.durable:
            return int(name[: -len(".log")])
        position = _first_unsynced(node)
        if position is not None:
            return _end_before(node.content, position, int(name[: -len(".log")]))
    return None


def _first_unsynced(file: File) -> int | None:
    """The first byte that a power loss may take, ``None`` if there is none."""
    size, found = len(file.durable), list[int]()
    for change in file.changes:
        if isinstance(change, Write):
            found.append(change.position)
        elif change.size > size:
            # The disk has refused what was written, and keeps the size alone.
            found.append(size)
        else:
            # What was abandoned is cut: of that nothing is to be synced.
            size = change.size
            found = [position for position in found if position < size]
    return min(found, default=None)


def _end_before(content: bytearray, position: int, base_offset: int) -> int:
    """Where the last batch ends that is whole before a position; ``base_offset`` if none is."""
    begin, found = 0, base_offset
    while (end := begin + 12 + int.from_bytes(content[begin + 8 : begin + 12], "big")) <= position:
        delta = int.from_bytes(content[begin + 23 : begin + 27], "big")
        found = int.from_bytes(content[begin : begin + 8], "big") + delta + 1
        begin = end
    return found


class DiskPace:
    """How the disk of a process does: for the backgrounds of all its logs."""

    def __init__(self) -> None:
        self.slowness = 1.0
        self.is_held = False
        self.users: list[SimBackground] = []

    def hold(self) -> None:
        """Begin nothing from now on."""
        self.is_held = True

    def release(self) -> None:
        """Go on; to be called in the process itself (``Process.soon``)."""
        self.is_held = False
        for user in list(self.users):
            user.resume()

    @property
    def waiting_count(self) -> int:
        """Pieces of work that were given and are not begun."""
        return sum(user.waiting_count for user in self.users)


class SimBackground:
    """``Background`` that takes a drawn time per piece of work, one piece after another.

    Work takes effect somewhere within its time, so a crash may come before or after it.
    The ``slowness`` of ``pace`` multiplies the time, and while that ``is_held`` nothing is begun.
    ``is_quick`` is a disk whose syncs are short: they run in the turn that asks for them.
    """

    def __init__(
        self,
        random: Random,
        delay_ms: tuple[float, float],
        *,
        is_quick: bool = False,
        pace: DiskPace | None = None,
    ) -> None:
        self.is_quick = is_quick
        self.pace = pace or DiskPace()
        self.pace.users.append(self)
        self._random = random
        self._delay_ms = delay_ms
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._is_busy = False

    @property
    def waiting_count(self) -> int:
        """Pieces of work that were given and are not begun."""
        return len(self._waiting)

    def run(self, work: Callable[[], Any], *, is_small: bool = False) -> asyncio.Future[Any]:
        """See ``Background.run``; small work is done at once on a quick disk that is idle."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        is_idle = not (self.pace.is_held or self._is_busy or self._waiting)
        if is_small and is_idle and self.is_quick and self.pace.slowness <= 1:
            self._settle(future, *self._outcome(work))
        else:
            self._waiting.append((work, future))
            self._begin()
        return future

    def resume(self) -> None:
        """The disk is held no more."""
        self._begin()

    def _begin(self) -> None:
        if self._is_busy or self.pace.is_held or not self._waiting:
            return
        self._is_busy = True
        work, future = self._waiting.popleft()
        delay_s = self._random.uniform(*self._delay_ms) * self.pace.slowness / 1_000
        before_s = delay_s * self._random.random()
        loop = asyncio.get_running_loop()
        loop.call_later(before_s, self._do, work, future, delay_s - before_s)

    def _do(self, work: Callable[[], Any], future: asyncio.Future[Any], after_s: float) -> None:
        outcome = self._outcome(work)
        asyncio.get_running_loop().call_later(after_s, self._settle, future, *outcome)

    def _outcome(self, work: Callable[[], Any]) -> tuple[Any, Exception | None]:
        try:
            return work(), None
        except Exception as raised:
            return None, raised

    def _settle(self, future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        self._is_busy = False
        if not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        self._begin()
