"""Hosts of a network of their own, on one machine: Linux namespaces, a bridge, cables, sshd.

Each host has its own address, processes, shared memory, home, and disk at ``DISK``. All see the
programs of this machine; what a host installs only that host sees, until it is killed. Its first
process holds it: when that is killed, so is every process of the host, and its network is gone. The
bridge is in the namespace of the *desk*, the host from which an operator works, so nothing of the
machine's own network is touched.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deadlines import wait_for
from ray_nodes import children_of

DISK: Final = "/srv"
"""Where each host sees its own disk."""

RAY_DIRECTORY: Final = Path("/tmp") / "ray"
"""Where Ray keeps what lives as long as a host; each host has a directory of its own there."""

WRONG_CLOCK: Final = Path(__file__).parents[1] / "hosts" / "wrong_clock"
NETWORK: Final = "10.0.0"
DESK: Final = "desk"
SSHD: Final = "/usr/sbin/sshd"
START_S: Final = 30.0
COMMAND_S: Final = 180.0
NEEDED: Final = {
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    SSHD: "openssh-server",
    "rsync": "rsync",
    "pgrep": "procps",
}

# What a host does first. Its cable is there when a line comes in.
BOOT: Final = """
set -e
home=$1; files=$2; name=$3; disk=$4; ray=$5; programs=$6; shift 6
hostname "$name"
ip link set lo up
mount --bind "$files/hosts" /etc/hosts
mount --bind "$files/shadow" /etc/shadow
mount --bind "$home/passwd" /etc/passwd
mount --bind "$home/ray" "$ray"
mount --bind "$disk" /srv
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs changes "$home/changes"
mkdir "$home/changes/upper" "$home/changes/work"
mount -t overlay -o "lowerdir=$programs,upperdir=$home/changes/upper,workdir=$home/changes/work" \\
  programs "$programs"
mount -t tmpfs run /run
mkdir -m 755 /run/sshd
read -r _
exec "$@"
"""


def missing() -> str:
    """Why there can be no such hosts here; "" if nothing stands in the way."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "needs root on Linux: hosts are made of namespaces"
    lacking = {package for tool, package in NEEDED.items() if shutil.which(tool) is None}
    if lacking:
        return f"needs the Debian packages {', '.join(sorted(lacking))}"
    tried = ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--mount-proc"]
    script = (
        "ip link add name bridge type bridge && hostname h && mount -t tmpfs t /run && "
        "mkdir /run/upper /run/work && "
        'mount -t overlay -o "lowerdir=$1,upperdir=/run/upper,workdir=/run/work" o "$1"'
    )
    try:
        tried += ["sh", "-c", script, "sh", sys.prefix]
        done = subprocess.run(tried, capture_output=True, text=True)
    except OSError as error:
        return f"needs the right to make namespaces ({error})"
    if done.returncode:
        return f"needs the right to make namespaces, a bridge and mounts ({done.stderr.strip()})"
    return ""


class Host:
    """One host; ``start`` and ``kill`` it, ``run`` something there."""

    def __init__(self, network: Network, name: str, number: int) -> None:
        self.network = network
        self.name = name
        self.address = f"{NETWORK}.{number}"
        self.home = network.root / name
        self.disk = self.home / "disk"
        self.cable = f"to-{name}"
        for directory in (self.disk, self.home / "ray", self.home / "changes"):
            directory.mkdir(parents=True)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._usual = {
            "HOME": str(self.home),
            "PATH": path,
            "RAY_USAGE_STATS_ENABLED": "0",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.environment = dict(self._usual)
        lines = Path("/etc/passwd").read_text().splitlines()
        others = [line for line in lines if not line.startswith("root:")]
        root = f"root:x:0:0:root:{self.home}:/bin/bash"
        (self.home / "passwd").write_text("\n".join([root, *others, ""]))
        self._holder: subprocess.Popen[bytes] | None = None
        self._first_pid = 0

    def move(self, number: int) -> None:
        """Give it another address, from its next start on."""
        self.address = f"{NETWORK}.{number}"
        self.network.write_names()

    def set_clock(self, shift_s: int) -> None:
        """Let the wall clock of its Python be wrong by so much, from its next start on."""
        self.environment = dict(self._usual)
        if shift_s:
            self.environment |= {"PYTHONPATH": str(WRONG_CLOCK), "CLOCK_SHIFT_S": str(shift_s)}

    def start(self) -> None:
        """Its first process, its cable, its sshd."""
        lines = [f"export {key}={shlex.quote(text)}\n" for key, text in self.environment.items()]
        (self.home / ".bash_profile").write_text("".join(lines))
        boot = [BOOT, "sh", self.home, self.network.root, self.name, self.disk, RAY_DIRECTORY]
        boot += [sys.prefix, *self._first_process()]
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid"]
        command += ["--uts", "--ipc", "--fork", "--kill-child", "--mount-proc", "sh", "-c", *boot]
        log = (self.home / "host.log").open("ab")
        self._holder = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self._usual,
            cwd="/",
            start_new_session=True,
        )
        log.close()
        holder = self._holder.pid
        wait_for(lambda: bool(children_of(holder)), f"first process of {self.name}")
        (self._first_pid,) = children_of(holder)
        # Its namespaces are its own once its name is.
        wait_for(lambda: self._name_there() == self.name, f"namespaces of {self.name}")
        self._plug_in()
        assert self._holder.stdin is not None
        self._holder.stdin.write(b"\n")
        self._holder.stdin.close()

    def _name_there(self) -> str:
        return self._enter("hostname").stdout.strip()

    def _first_process(self) -> list[str]:
        return [SSHD, "-D", "-e", "-f", str(self.network.write_sshd_config(self))]

    def _plug_in(self) -> None:
        desk = self.network.desk
        peer = ["peer", "name", "eth0", "netns", str(self._first_pid)]
        desk.net("link", "add", self.cable, "type", "veth", *peer)
        desk.net("link", "set", self.cable, "master", "bridge", "up")
        self.net("addr", "add", f"{self.address}/24", "dev", "eth0")
        self.net("link", "set", "eth0", "up")
        self.net("route", "add", "default", "via", f"{NETWORK}.1")

    def pull_cable(self) -> None:
        self.network.desk.net("link", "set", self.cable, "down")

    def plug_cable(self) -> None:
        self.network.desk.net("link", "set", self.cable, "up")

    def delay(self, delay_ms: int) -> bool:
        """Make all that it sends late, by so much; False if this kernel cannot."""
        command = self._in_its_network("tc", "qdisc", "replace", "dev", "eth0", "root", "netem")
        done = subprocess.run([*command, "delay", f"{delay_ms}ms"], capture_output=True)
        return done.returncode == 0

    def kill(self) -> None:
        """As if its power failed: all its processes at once. Its disk stays."""
        if self._holder is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._first_pid or self._holder.pid, signal.SIGKILL)
        self._holder.wait(timeout=START_S)
        self._holder = None

    def net(self, *arguments: str) -> None:
        """``ip`` in its network."""
        command = self._in_its_network("ip", *arguments)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{self.name}: ip {' '.join(arguments)}: {done.stderr.strip()}")

    def _in_its_network(self, *command: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self._first_pid}/ns/net", *command]

    def _enter(
        self, *command: str, timeout_s: float = COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        entered = ["nsenter", "--target", str(self._first_pid), "--all", f"--wd={self.home}"]
        return subprocess.run(
            [*entered, *command],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            env=self.environment,
        )

    def run(
        self,
        *command: str,
        timeout_s: float = COMMAND_S,
        statuses: Sequence[int] = (0,),
        **variables: str,
    ) -> str:
        """What a program prints that runs on this host; OSError unless it ends with a status."""
        settings = [f"{key}={text}" for key, text in variables.items()]
        done = self._enter("env", "RAY_AUTH_MODE=token", *settings, *command, timeout_s=timeout_s)
        if done.returncode not in statuses:
            said = f"{done.stdout[-12000:]}\n{done.stderr[-6000:]}"
            raise OSError(f"{self.name}: {shlex.join(command)}: {done.returncode}\n{said}")
        return done.stdout

    def begin(
        self, *command: str, stdin: int = subprocess.DEVNULL, stdout: int | None = None
    ) -> subprocess.Popen[bytes]:
        """A program that runs on while others do; it ends with its host at the latest."""
        entered = ["nsenter", "--target", str(self._first_pid), "--all", f"--wd={self.home}"]
        with (self.home / "programs.log").open("ab") as log:
            program = subprocess.Popen(
                [*entered, "env", "RAY_AUTH_MODE=token", *command],
                stdin=stdin,
                stdout=log if stdout is None else stdout,
                stderr=subprocess.STDOUT,
                env=self.environment,
            )
        self.network.programs.append(program)
        return program

    def processes(self) -> list[str]:
        """The command lines of all its processes."""
        return self._enter("ps", "-eo", "args", "--no-headers").stdout.splitlines()


class Desk(Host):
    """Where the operator sits; it has the bridge, and no sshd."""

    def _first_process(self) -> list[str]:
        return ["sleep", "infinity"]

    def _plug_in(self) -> None:
        self.net("link", "add", "bridge", "type", "bridge")
        self.net("addr", "add", f"{NETWORK}.1/24", "dev", "bridge")
        self.net("link", "set", "bridge", "up")


class Network:
    """The desk and its hosts; ``close`` ends every process of them, whatever happened."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.key = root / "key"
        self.programs: list[subprocess.Popen[bytes]] = []
        self._made: list[Host] = []
        self._small_disks: list[Path] = []
        for name in (self.key, root / "host_key"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(name)]
            subprocess.run(make, check=True)
        (root / "authorized_keys").write_text((root / "key.pub").read_text())
        (root / "shadow").write_text("root:*:19000:0:99999:7:::\n")
        (root / "shadow").chmod(0o600)
        (root / "hosts").touch()
        RAY_DIRECTORY.mkdir(exist_ok=True)
        self.desk = Desk(self, DESK, 1)
        self._made.append(self.desk)

    def add(self, name: str, *, disk_bytes: int | None = None) -> Host:
        """A host more, which has to be started; with a disk that can be full, if so many bytes."""
        host = Host(self, name, len(self._made) + 1)
        self._made.append(host)
        if disk_bytes is not None:
            options = ["-t", "tmpfs", "-o", f"size={disk_bytes}", "tmpfs"]
            subprocess.run(["mount", *options, str(host.disk)], check=True)
            self._small_disks.append(host.disk)
        self.write_names()
        return host

    def write_names(self) -> None:
        """Tell all hosts who has which address; in place, as each has the file mounted."""
        lines = [f"{host.address} {host.name}\n" for host in self._made]
        (self.root / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))

    def write_sshd_config(self, host: Host) -> Path:
        path = host.home / "sshd_config"
        path.write_text(
            f"Port 22\nListenAddress {host.address}\nHostKey {self.root / 'host_key'}\n"
            f"AuthorizedKeysFile {self.root / 'authorized_keys'}\nStrictModes no\nPidFile none\n"
            "PermitRootLogin prohibit-password\nUsePAM no\nMaxStartups 100\n"
        )
        return path

    def close(self) -> None:
        for host in reversed(self._made):
            host.kill()
        for program in self.programs:
            program.wait(timeout=START_S)
        for disk in self._small_disks:
            subprocess.run(["umount", str(disk)], check=True)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
