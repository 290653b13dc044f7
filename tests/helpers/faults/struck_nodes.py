"""Nodes that are killed, paused, cut off or short of disk, and come back: one at a time.

A node counts as struck until it is up again and every replica in sync: so a majority always lives.
A node comes back on its disk, on an empty one, or on a copy of its own of some time before. Where
the log refuses that copy and says so, its operator empties the disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from deadlines import DEADLINE_S
from faults.fault_plan import EMPTIED_DISK, NODE, OLD_DISK, ONE_WAY_LINK, Fault
from links import OWN
from ray_nodes import Nodes, children_of, descendants_of, is_raylet

PAGE_BYTES: Final = 4_096
"""Less than that counts as no room on a disk."""

LOOK_EVERY_S: Final = 0.3


def start_node(nodes: Nodes, broker_id: int) -> None:
    """Start the node of a broker, at first or again."""
    name, labels = name_of(broker_id), f"broker={broker_id}"
    if nodes.links is not None:
        nodes.start_linked_node(name, broker_id, labels=labels)
    else:
        nodes.start_node(name, f"127.0.0.{1 + broker_id}", labels=labels)


def name_of(broker_id: int) -> str:
    """The name of a broker's node, and of what it has below the nodes' root."""
    return f"node-{broker_id}"


@dataclass(slots=True)
class _Strike:
    """What befell the one node that is struck.

    ``stopped`` are processes that are to go on, ``cut`` the ways, sender first, that are closed;
    ``filler`` is the file that fills its disk. ``disk`` is how the node finds its disk, which is at
    rest once it is dead if all of its processes were killed (``is_whole``). ``is_dying``: it was
    killed, and has not been found dead yet, which takes its first process a moment.
    """

    number: int
    broker_id: int
    until: float
    disk: str
    is_whole: bool
    stopped: list[int] = field(default_factory=list)
    cut: list[tuple[int, int]] = field(default_factory=list)
    filler: Path | None = None
    is_dying: bool = False

    @property
    def is_held(self) -> bool:
        """Whether something is to be undone."""
        return bool(self.stopped or self.cut or self.filler)


def take_all(filler: Path) -> None:
    """Leave no room on the disk of this file."""
    with filler.open("wb") as file:
        size_bytes = shutil.disk_usage(filler).free
        while size_bytes >= PAGE_BYTES:
            try:
                os.posix_fallocate(file.fileno(), file.tell(), size_bytes)
                file.seek(size_bytes, os.SEEK_CUR)
            except OSError:  # Others write meanwhile; and not all that is free can be had.
                size_bytes //= 2


class StruckNodes:
    """Strikes nodes, and keeps every other one running, in a thread until ``stop``.

    ``unwhole`` tells what is not in sync yet. ``note`` writes down, from that thread, that a
    fault has come to a point: ``resume``, ``back`` when the node is up, ``emptied`` when its old
    disk was refused, ``whole`` when all is in sync; and ``node_ended`` where a node was found dead,
    which one that was paused may be too. ``problem_of`` tells why a broker takes no part.
    """

    def __init__(
        self,
        nodes: Nodes,
        broker_ids: Collection[int],
        unwhole: Callable[[], str],
        note: Callable[[str, int], None],
        problem_of: Callable[[int], str] = lambda _broker_id: "",
    ) -> None:
        self.errors: list[BaseException] = []
        self._nodes = nodes
        self._broker_ids = broker_ids
        self._unwhole = unwhole
        self._note = note
        self._problem_of = problem_of
        self._strike: _Strike | None = None
        self._is_over = threading.Event()
        self._has_looked = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="nodes", daemon=True)
        self._thread.start()

    @property
    def may_strike(self) -> bool:
        """Whether no node is away, and nothing lags from the last time."""
        return self._strike is None and not self._down() and not self._unwhole()

    def strike(self, number: int, fault: Fault, broker_id: int) -> list[int]:
        """Kill or pause the node; which processes were."""
        started = self._process(broker_id).pid
        raylet = next((pid for pid in children_of(started) if is_raylet(pid)), None)
        if raylet is None:
            return []
        below = descendants_of(raylet)
        stopped: list[int] = []
        if fault.pause_s:
            struck = stopped = descendants_of(started) if fault.is_whole else below
        else:
            struck = [raylet, *below] if fault.is_whole else [raylet]
        self._begin(number, fault, broker_id, stopped=stopped, is_dying=not fault.pause_s)
        _send(struck, signal.SIGSTOP if fault.pause_s else signal.SIGKILL)
        return struck

    def cut(self, number: int, fault: Fault, broker_id: int) -> list[int]:
        """Cut the node off from all others, or from one that is not the head, or one way from all;
        from which.
        """
        links = self._nodes.links
        if links is None:
            return []
        others = [n for n in (OWN, *self._broker_ids) if n != broker_id]
        sent = [(broker_id, other) for other in others]
        heard = [(other, broker_id) for other in others]
        if fault.role == ONE_WAY_LINK:
            # Ray's own road stays whole: what it does without its head is not shown here.
            ways = [way for way in (sent if fault.is_whole else heard) if OWN not in way]
        else:
            ways = [*sent, *heard] if fault.is_whole else [sent[-1], heard[-1]]
        self._begin(number, fault, broker_id, cut=ways)
        for way in ways:
            links.cut(*way)
        return sorted({one for way in ways for one in way if one != broker_id})

    def fill(self, number: int, fault: Fault, broker_id: int) -> list[int]:
        """Leave no room on the disk of the node, which ``can_fill``."""
        filler = self._disk(broker_id) / "filler"
        take_all(filler)
        self._begin(number, fault, broker_id, filler=filler)
        return [self._process(broker_id).pid]

    def can_fill(self, broker_id: int) -> bool:
        """Whether the disk of a node is one of its own, and not that of this machine."""
        return self._disk(broker_id).is_mount()

    def _begin(self, number: int, fault: Fault, broker_id: int, **held: Any) -> None:
        until = time.monotonic() + (fault.pause_s or fault.away_s)
        self._strike = _Strike(number, broker_id, until, fault.role, fault.is_whole, **held)

    def _disk(self, broker_id: int) -> Path:
        return Path(self._nodes.root) / name_of(broker_id)

    def heal(self) -> None:
        """Have every node up, as soon as that is possible."""
        if self._strike is not None:
            self._strike.until = 0.0
        deadline = time.monotonic() + DEADLINE_S
        while not self._are_up() and not self.errors and time.monotonic() < deadline:
            self._has_looked.clear()
            self._has_looked.wait(DEADLINE_S)

    def stop(self) -> None:
        """Keep no node up any longer."""
        self._is_over.set()
        self._thread.join()

    def _are_up(self) -> bool:
        strike = self._strike
        return (strike is None or not strike.is_held) and not self._down()

    def _keep(self) -> None:
        try:
            while not self._is_over.wait(LOOK_EVERY_S):
                self._look()
                self._has_looked.set()
        except BaseException as error:
            self.errors.append(error)
            raise

    def _look(self) -> None:
        strike = self._strike
        away = None
        if strike is not None and strike.until > time.monotonic():
            away = strike.broker_id
        elif strike is not None and strike.is_held:
            self._release(strike)
        for broker_id in self._down():
            number = strike.number if strike is not None and strike.broker_id == broker_id else -1
            if broker_id == away:
                continue
            self._note("node_ended", number)
            if strike is not None and number >= 0:
                strike.is_dying = False
                if strike.is_whole:
                    self._change_disk(strike)
            start_node(self._nodes, broker_id)
            self._note("back", number)
        if strike is None or away is not None or strike.is_dying:
            return
        self._empty_if_refused(strike)
        if not self._down() and not self._unwhole():
            self._note("whole", strike.number)
            self._strike = None

    def _release(self, strike: _Strike) -> None:
        _send(strike.stopped, signal.SIGCONT)
        links, cut = self._nodes.links, strike.cut
        if strike.filler is not None:
            strike.filler.unlink()
        strike.stopped, strike.cut, strike.filler = [], [], None
        for way in cut:
            assert links is not None
            links.join(*way)
        self._note("resume", strike.number)

    # --- disks --------------------------------------------------------------------------------

    def _change_disk(self, strike: _Strike) -> None:
        """Give a dead node the disk that its fault says, once; keep a copy of what it had."""
        disk, copy = self._disk(strike.broker_id), self._copy_of(strike.broker_id)
        role, strike.disk = strike.disk, NODE
        if role == OLD_DISK and copy.exists():
            strike.disk = OLD_DISK
            _empty(disk)
            shutil.copytree(copy, disk, dirs_exist_ok=True)
        else:
            copy_disk(disk, copy)
        if role == EMPTIED_DISK:
            _empty(disk)

    def _empty_if_refused(self, strike: _Strike) -> None:
        """What an operator does whom the log tells that a disk is an old one."""
        if strike.disk != OLD_DISK or not self._problem_of(strike.broker_id):
            return
        strike.disk = EMPTIED_DISK
        self._note("emptied", strike.number)
        process = self._process(strike.broker_id)
        _send([*descendants_of(process.pid), process.pid], signal.SIGKILL)
        process.wait(DEADLINE_S)
        _empty(self._disk(strike.broker_id))
        start_node(self._nodes, strike.broker_id)

    def _copy_of(self, broker_id: int) -> Path:
        return Path(self._nodes.root) / f"{name_of(broker_id)}.before"

    def _down(self) -> list[int]:
        return [n for n in self._broker_ids if self._process(n).poll() is not None]

    def _process(self, broker_id: int) -> subprocess.Popen[bytes]:
        return self._nodes.processes[name_of(broker_id)]


def _send(process_ids: list[int], number: int) -> None:
    for process_id in process_ids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, number)


def copy_disk(disk: Path, copy: Path) -> None:
    """Copy what a dead node has, anew as long as the last of its processes still writes."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        shutil.rmtree(copy, ignore_errors=True)
        try:
            shutil.copytree(disk, copy)
            return
        except shutil.Error:
            # A file went while it was listed.
            if time.monotonic() > deadline:
                raise


def _empty(disk: Path) -> None:
    for entry in disk.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
