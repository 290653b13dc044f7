"""Processes of this machine, from ``/proc``: identify a driver, and tell whether it has ended.

A process is identified by pid, start time, and the scope of both: host, boot and pid namespace, of
which a container may have its own. So a later process with the same pid is another one, and a
process that cannot be seen never counts as ended. Without ``/proc`` nothing is known. Source:
proc(5), ``/proc/pid/stat``; namespaces(7).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from oncelog.actors.protocol.messages.transaction import DriverProcess

_PROC: Final = Path("/proc")
_BOOT_ID: Final = _PROC / "sys/kernel/random/boot_id"
_ANCESTORS_MAX: Final = 16
_RAYLET: Final = "raylet"
_GCS: Final = "--gcs-address="


class ProcessTable:
    """``ProcessSight`` by ``/proc``; also identifies processes, for callers that begin a run.

    ``host`` distinguishes this host from all others of the cluster: cloned virtual machines can
    have the same boot id.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._known_machine: tuple[int, str] | None = None
        """The scope, and the process that has found it: a fork may be in another one."""

    def lives(self, process: DriverProcess) -> bool | None:
        """See ``ProcessSight.lives``. A zombie is dead."""
        if process.machine != self._machine():
            return None
        try:
            os.kill(process.process_id, 0)
        except ProcessLookupError:
            return False
        except (OSError, OverflowError):
            # Another user's process: it exists.
            pass
        stat = _stat_of(process.process_id)
        return stat is None or not (stat.is_dead or stat.start_ticks != process.start_ticks)

    def process(self, process_id: int) -> DriverProcess | None:
        """The living process with that id, or ``None`` if it cannot be identified."""
        machine, stat = self._machine(), _stat_of(process_id)
        if machine is None or stat is None or stat.is_dead:
            return None
        return DriverProcess(machine=machine, process_id=process_id, start_ticks=stat.start_ticks)

    def ancestor(self, command: str) -> DriverProcess | None:
        """The nearest process above this one that runs ``command``; ``None`` if there is none."""
        process_id = os.getppid()
        for _ in range(_ANCESTORS_MAX):
            stat = _stat_of(process_id)
            if stat is None:
                return None
            if stat.command == command:
                return self.process(process_id)
            process_id = stat.parent_id
        return None

    def _machine(self) -> str | None:
        """The scope in which pids and start times are valid, or ``None`` if unknown."""
        known, own_id = self._known_machine, os.getpid()
        if known is not None and known[0] == own_id:
            # A process keeps it, and reading it takes longer than to look at another process.
            return known[1]
        machine = self._read_machine()
        self._known_machine = None if machine is None else (own_id, machine)
        return machine

    def _read_machine(self) -> str | None:
        try:
            if os.readlink(_PROC / "self") != str(os.getpid()):
                # This /proc belongs to another pid namespace: it shows other processes.
                return None
            spaces = [os.readlink(_PROC / "self/ns" / kind) for kind in ("pid", "time")]
        except OSError:
            return None
        boot = boot_id()
        return " ".join((self._host, boot, *spaces)) if boot else None


def raylet_addresses() -> set[str] | None:
    """Addresses (host:port) of the clusters that a Ray node of this machine and user is in.

    Others' nodes do not count: anybody may call a program "raylet", and Ray lets only its own user
    use a node. ``None`` if processes cannot be seen.
    """
    try:
        numbers = [int(name) for name in os.listdir(_PROC) if name.isdigit()]
    except OSError:
        return None
    found = set()
    for number in numbers:
        stat = _stat_of(number)
        if stat is None or stat.command != _RAYLET:
            continue
        try:
            arguments = (_PROC / str(number) / "cmdline").read_text(errors="replace").split("\0")
            is_ours = _users_of(number) == {os.getuid()}
        except OSError:
            # It has just ended.
            continue
        if is_ours:
            found |= {one[len(_GCS) :] for one in arguments if one.startswith(_GCS)}
    return found


def _users_of(process_id: int) -> set[int]:
    """The user ids of a process: real, effective, saved, of files. OSError."""
    lines = (_PROC / str(process_id) / "status").read_text(errors="replace").splitlines()
    return {int(one) for line in lines if line.startswith("Uid:") for one in line.split()[1:]}


def boot_id() -> str:
    """The id of the operating system's current boot; "" if unknown."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class _Stat:
    """Parsed ``/proc/<id>/stat``; the command is in parentheses and may contain any character."""

    def __init__(self, text: str) -> None:
        begin, end = text.index("("), text.rindex(")")
        fields = text[end + 2 :].split()
        self.command = text[begin + 1 : end]
        # The first thread of a live process may have ended: the process ends with its last thread.
        self.is_dead = fields[0] in ("X", "x") or (fields[0] == "Z" and int(fields[17]) <= 1)
        self.parent_id = int(fields[1])
        self.start_ticks = int(fields[19])


def _stat_of(process_id: int) -> _Stat | None:
    try:
        return _Stat((_PROC / str(process_id) / "stat").read_text(errors="replace"))
    except OSError:
        return None
