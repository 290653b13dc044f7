"""Ray nodes of one machine, each with a disk of its own at the same path, that can die."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from deadlines import DEADLINE_S, wait_for
from links import OWN, Links, address_of

from oncelog.actors.process.ray_environment import SYSTEM_CONFIG, prepare_to_start

COMMANDS = Path(__file__).parents[1] / "hosts" / "commands.py"
STARTS_MAX = 6
"""Ray gives a start up after 30 s, which a busy machine may take."""

ON_A_DISK_OF_ITS_OWN = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


def can_unshare() -> bool:
    with contextlib.suppress(OSError):
        return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0
    return False


def begin_here(*command: str, **options: Any) -> subprocess.Popen[bytes]:
    """A program on this machine; ``options`` are those of ``Popen``."""
    return subprocess.Popen(command, **options)


class Commands:
    """``oncelog`` commands by one program that stays connected: to connect anew takes seconds.

    ``begin`` starts it with the pipes that it is given.
    """

    def __init__(self, begin: Callable[..., subprocess.Popen[bytes]], name: str) -> None:
        self._begin = begin
        self._name = name
        self._program: subprocess.Popen[bytes] | None = None

    def end(self) -> None:
        """End the program; the next command begins another one."""
        if self._program is not None:
            assert self._program.stdin is not None
            assert self._program.stdout is not None
            self._program.stdin.close()
            self._program.kill()
            self._program.wait()
            self._program.stdout.close()
            self._program = None

    def run(self, *arguments: str, timeout_s: float = DEADLINE_S) -> tuple[int, str, str]:
        """Exit status, output and errors; OSError if the program ends, or does not answer."""
        program = self._program
        if program is None or program.poll() is not None:
            self.end()
            command = [sys.executable, str(COMMANDS)]
            program = self._begin(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._program = program
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(json.dumps(arguments).encode() + b"\n")
        program.stdin.flush()
        is_answered = select.select([program.stdout], [], [], timeout_s)[0]
        line = program.stdout.readline() if is_answered else b""
        if not line:
            self.end()
            raise OSError(f"{self._name}: oncelog {shlex.join(arguments)}: no answer")
        status, output, errors = json.loads(line)
        return status, output, errors


class Nodes:
    """A Ray cluster of this machine whose nodes see different files under ``data``.

    With ``links`` each is in a network of its own, the head in that of this process.
    """

    def __init__(self, root: Path, *, head_labels: str = "", links: Links | None = None) -> None:
        self.root = root
        self.links = links
        self.data = root / "data"
        self.data.mkdir(exist_ok=True)
        prepare_to_start()
        self.environment = {**os.environ, "RAY_AUTH_MODE": "token"}
        self.environment.pop("RAY_ADDRESS", None)
        # Every node and program needs the same one, and the machine's user may have none.
        self.environment.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        host = socket.gethostbyname(socket.gethostname())
        if links is not None:
            host = address_of(OWN)
        self.address = f"{host}:{port}"
        # A socket's path must be short, and pytest's directories are long.
        self.temporary = Path(tempfile.mkdtemp(prefix="oncelog-"))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands = Commands(partial(begin_here, env=self.environment), self.address)
        self.start(
            "head",
            "--head",
            f"--port={port}",
            *([f"--node-ip-address={host}"] if links is not None else []),
            f"--temp-dir={self.temporary}",
            "--include-dashboard=false",
            f"--system-config={json.dumps(SYSTEM_CONFIG)}",
            *([f"--labels={head_labels}"] if head_labels else []),
        )

    def start(self, name: str, *arguments: str, inside: Sequence[str] = ()) -> None:
        disk = self.root / name
        disk.mkdir(exist_ok=True)
        command = [str(Path(sys.executable).with_name("ray")), "start", "--block"]
        command += ["--num-cpus=1", "--object-store-memory=100000000", *arguments]
        mounted = ["unshare", "-m", "sh", "-c", ON_A_DISK_OF_ITS_OWN, "sh", disk, self.data]
        command = [*map(str, (*inside, *mounted)), *command]
        is_up = any(self._attempt(name, command) for _ in range(STARTS_MAX))
        assert is_up, f"node {name} does not start: see {self.root / name}.log"

    def _attempt(self, name: str, command: Sequence[str]) -> bool:
        """Start a node and wait until it is up; ``False`` if it has ended instead."""
        log_path = self.root / f"{name}.log"
        with log_path.open("wb") as log:
            process = self.processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )

        def is_up() -> bool:
            return b"Ray runtime started" in log_path.read_bytes()

        wait_for(lambda: is_up() or process.poll() is not None, f"node {name} to be up")
        return is_up()

    def start_linked_node(self, name: str, number: int, *, labels: str) -> None:
        """One node more, in the network of that number."""
        assert self.links is not None
        arguments = (f"--address={self.address}", f"--node-ip-address={address_of(number)}")
        self.start(name, *arguments, f"--labels={labels}", inside=self.links.inside(number))

    def start_node(self, name: str, node_address: str, *, labels: str = "") -> None:
        """One node more; a ``name`` that was used before comes back with its disk."""
        options = [f"--labels={labels}"] if labels else []
        address = f"--node-ip-address={node_address}"
        self.start(name, f"--address={self.address}", address, *options)

    def kill_raylet_of(self, name: str) -> None:
        """kill -9, by its number; then the rest of that node goes by itself."""
        process = self.processes.pop(name)
        (raylet,) = (pid for pid in children_of(process.pid) if is_raylet(pid))
        os.kill(raylet, signal.SIGKILL)
        process.wait(timeout=DEADLINE_S)

    def start_log(self, *options: str) -> subprocess.CompletedProcess[str]:
        """``oncelog start``, by a program that ends then: the log is not to end with it."""
        command = ["start", "--data-dir", str(self.data / "log"), "--address", self.address]
        return subprocess.run(
            [sys.executable, "-m", "oncelog.api.cli.main", *command, *options],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
            env=self.environment,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One oncelog command on this cluster."""
        return subprocess.CompletedProcess(
            arguments, *self._commands.run(*arguments, "--address", self.address)
        )

    def status(self) -> dict[str, Any]:
        """What ``oncelog status`` says; empty while it cannot tell."""
        said = self.run("status", "--json").stdout
        return dict(json.loads(said)) if said else {}

    def brokers(self) -> dict[int, str]:
        """What the status says of each broker."""
        return {one["broker_id"]: one["state"] for one in self.status().get("brokers", [])}

    def voters(self) -> dict[int, str]:
        """What the status says of each voter."""
        return {one["broker_id"]: one["state"] for one in self.status().get("voters", [])}

    def close(self) -> None:
        """End every process of every node at once: nothing of them is needed any more."""
        self._commands.end()
        for process in self.processes.values():
            for one in (process.pid, *descendants_of(process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
            process.wait(timeout=DEADLINE_S)
        shutil.rmtree(self.temporary, ignore_errors=True)


def children_of(parent: int) -> list[int]:
    return [pid for pid, its_parent in _parents().items() if its_parent == parent]


def descendants_of(ancestor: int) -> list[int]:
    parents = _parents()
    found, wanted = [], {ancestor}
    while wanted:
        wanted = {pid for pid, parent in parents.items() if parent in wanted}
        found += sorted(wanted)
    return found


def _parents() -> dict[int, int]:
    """The parent of each process of the machine."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            found[int(entry.name)] = int(fields[1])
    return found


def is_raylet(process_id: int) -> bool:
    return Path(f"/proc/{process_id}/comm").read_text().strip() == "raylet"
