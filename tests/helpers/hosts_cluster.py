"""A cluster that ``ray up`` makes of network hosts with the project's own ``cluster.yaml``."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import yaml
from deadlines import wait_for
from network_hosts import COMMAND_S, DISK, Host, Network
from ray_nodes import Commands

ROOT: Final = Path(__file__).parents[2]
PROGRAMS: Final = ROOT / "tests" / "hosts"
UP_S: Final = 480.0
TOO_BUSY: Final = "The current node timed out during startup"
STATUS_S: Final = 60.0


def ledger(host: Host, topic: str, name: str) -> Path:
    """Where a writer keeps what became of its transactions."""
    return host.home / f"ledger-{topic}-{name}"


def log_on(host: Host, name: str) -> bytes:
    """The batches of a partition on a host's disk."""
    directory = host.disk / "oncelog" / "log" / name
    return b"".join(file.read_bytes() for file in sorted(directory.glob("*.log")))


class HostsCluster:
    """Hosts of a network, the first of which is the head; ``up`` and ``down`` are Ray's.

    Ray's dashboard is a dozen processes, on which only `ray job` depends.
    """

    def __init__(self, network: Network, *, workers: int, has_dashboard: bool) -> None:
        self.network = network
        self._has_dashboard = has_dashboard
        network.desk.start()
        self.head = network.add("head")
        self.workers: list[Host] = []
        self._commands: dict[str, Commands] = {}
        self.cluster_id = ""
        """What the cluster's file says that must not be founded anew."""
        self.head.start()
        for _ in range(workers):
            self.add_worker()
        self.file = network.desk.home / "cluster.yaml"
        network.desk.run("ray", "get-auth-token", "--generate")
        self.wheel = network.root / "dist"
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation"]
        build += ["--no-deps", "--wheel-dir", str(self.wheel), str(ROOT)]
        subprocess.run(build, check=True, cwd=network.root, timeout=COMMAND_S)

    def add_worker(self, *, disk_bytes: int | None = None) -> Host:
        """A host more, which the cluster's file names from the next ``up`` on."""
        host = self.network.add(f"worker-{len(self.workers) + 1}", disk_bytes=disk_bytes)
        host.start()
        self.workers.append(host)
        return host

    def replace_head(self) -> Host:
        """A new host that the cluster's file names as the head from the next ``up`` on."""
        self.head = self.network.add(f"{self.head.name}-2")
        self.head.start()
        return self.head

    def next_version(self) -> str:
        """Put a wheel of a later version where the cluster's file expects one; its version."""
        (wheel,) = self.wheel.glob("*.whl")
        version = wheel.name.split("-")[1]
        later = f"{version}.post1"
        with (
            zipfile.ZipFile(wheel) as old,
            zipfile.ZipFile(self.wheel / wheel.name.replace(version, later), "w") as new,
        ):
            for name in old.namelist():
                content = old.read(name)
                if name.endswith(".dist-info/METADATA"):
                    content = content.replace(
                        f"Version: {version}".encode(), f"Version: {later}".encode()
                    )
                if name.endswith(".dist-info/RECORD"):
                    content = content.replace(f"-{version}.".encode(), f"-{later}.".encode())
                new.writestr(name.replace(f"-{version}.dist-info", f"-{later}.dist-info"), content)
        wheel.unlink()
        return later

    def install_on(self, host: Host) -> None:
        """Install the wheel on a host by hand: Ray sets up no host a second time."""
        (wheel,) = self.wheel.glob("*.whl")
        host.run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", str(wheel))

    def version_on(self, host: Host) -> str:
        """Which version of the project is installed on a host."""
        show = "from importlib.metadata import version; print(version('oncelog'))"
        return host.run(sys.executable, "-c", show).strip()

    def fill_in(self) -> None:
        """The shipped file with what its comments ask for."""
        shipped = (ROOT / "cluster.yaml").read_text(encoding="utf-8")
        shipped = shipped.replace('CLUSTER_ID=""', f'CLUSTER_ID="{self.cluster_id}"')
        if not self._has_dashboard:
            shipped = shipped.replace("ray start --head", "ray start --head --include-dashboard=0")
        config = yaml.safe_load(shipped.replace("/data/oncelog", f"{DISK}/oncelog"))
        config["provider"]["head_ip"] = self.head.address
        config["provider"]["worker_ips"] = [host.address for host in self.workers]
        config["auth"] = {"ssh_user": "root", "ssh_private_key": str(self.network.key)}
        config["file_mounts"]["~/oncelog-wheel"] = str(self.wheel)
        self.file.write_text(yaml.safe_dump(config, width=100_000))

    def up(self) -> str:
        """`ray up`; once more if this machine was too busy for a node, which takes 15 s at most."""
        self.fill_in()
        try:
            return self._up()
        except OSError as error:
            if TOO_BUSY not in str(error):
                raise
        self.head.run("ray", "stop", "--force")
        return self._up()

    def _up(self) -> str:
        return self.network.desk.run("ray", "up", "-y", str(self.file), timeout_s=UP_S)

    def down(self) -> str:
        return self.network.desk.run("ray", "down", "-y", str(self.file), timeout_s=UP_S)

    def oncelog(self, *arguments: str) -> str:
        """What a command prints on the head; OSError if it fails."""
        status, output, errors = self._command(*arguments)
        if status:
            raise OSError(f"oncelog {shlex.join(arguments)}: {status}\n{output}\n{errors}")
        return output

    def end_commands(self) -> None:
        """The program on the head that runs commands belongs to a Ray node that has ended."""
        self._commands.pop(self.head.name).end()

    def _command(self, *arguments: str, timeout_s: float = COMMAND_S) -> tuple[int, str, str]:
        head = self.head
        commands = self._commands.setdefault(head.name, Commands(head.begin, head.name))
        return commands.run(*arguments, "--address=auto", timeout_s=timeout_s)

    def status(self) -> dict[str, Any]:
        """What ``oncelog status`` says on the head; empty while it cannot tell."""
        try:
            status, said, errors = self._command("status", "--json", timeout_s=STATUS_S)
        except OSError:
            return {}
        if not said:
            return {}
        try:
            return dict(json.loads(said))
        except ValueError:
            raise AssertionError(f"`oncelog status --json`: {status}, {said!r} {errors}") from None

    def brokers(self) -> dict[str, str]:
        """What each host's broker is said to be, by the host's name."""
        return self._states(self.status())

    def _states(self, status: dict[str, Any]) -> dict[str, str]:
        states = {one["broker_id"]: one["state"] for one in status.get("brokers", [])}
        return {host.name: states.get(self.number_of(host), "") for host in self.hosts()}

    def hosts(self) -> list[Host]:
        return [self.head, *self.workers]

    def number_of(self, host: Host) -> int:
        """The broker that has its data on this host; 0 if none has yet."""
        identity = host.disk / "oncelog" / "log" / "meta.properties"
        if not identity.exists():
            return 0
        fields = dict(line.split("=") for line in identity.read_text().splitlines())
        return int(fields["broker.id"])

    def wait_until_all_serve(self) -> None:
        def serve() -> bool:
            status = self.status()
            are_alive = set(self._states(status).values()) == {"alive"}
            return are_alive and bool(status["serving"])

        what = "all brokers alive and every partition serving"
        wait_for(serve, what, instead=self.status)

    def wait_until_gone(self, host: Host) -> None:
        marks = ("gone", "fenced")
        wait_for(lambda: self.brokers()[host.name].startswith(marks), f"the loss of {host.name}")

    def partitions(self, topic: str) -> list[dict[str, Any]]:
        """What ``oncelog topics describe`` says of each partition."""
        return list(json.loads(self.oncelog("topics", "describe", topic, "--json"))["partitions"])

    def wait_until_in_sync(self, topic: str, copies: int) -> None:
        """Every partition has that many replicas in sync."""
        wait_for(
            lambda: all(len(one["isr"]) == copies for one in self.partitions(topic)),
            f"{copies} replicas of {topic} in sync",
        )

    def wait_until_equal(self, topic: str) -> None:
        """The copies of each partition have the same bytes. Nobody may be writing to it."""
        for one in self.partitions(topic):
            log = f"{topic}-{one['partition']}"
            disks = [host for host in self.hosts() if self.number_of(host) in one["isr"]]
            wait_for(
                lambda log=log, disks=disks: len({log_on(host, log) for host in disks}) == 1,
                f"equal copies of {log}",
            )
            assert log_on(disks[0], log), f"{log} is empty"

    def partitions_on(self, host: Host, topic: str) -> list[int]:
        """The partitions of a topic that are on a host's disk."""
        found = (host.disk / "oncelog" / "log").glob(f"{topic}-*")
        return sorted(int(path.name.rpartition("-")[2]) for path in found)

    def writer(
        self, at: Host, name: str, topic: str, partitions: Collection[int], count: int
    ) -> list[str]:
        """The command of a program that writes that many transactions over these partitions.

        It keeps its ledger on the host ``at``, where it has to run.
        """
        chosen = ",".join(map(str, sorted(partitions)))
        program = str(PROGRAMS / "writer.py")
        return [
            sys.executable,
            program,
            name,
            topic,
            chosen,
            str(count),
            str(ledger(at, topic, name)),
        ]

    def check(self, at: Host, *topics: str) -> int:
        """How many committed records of topics a program reads; AssertionError if not those.

        What the ledgers call committed is there once in each of its partitions, what they call
        aborted nowhere, and what nobody knows in all of its partitions or in none.
        """
        said = json.loads(at.run(sys.executable, str(PROGRAMS / "reader.py"), *topics))
        return sum(self._compare(topic, records) for topic, records in said.items())

    def _compare(self, topic: str, records: list[tuple[int, str]]) -> int:
        found = Counter((partition, value) for partition, value in records)
        doubled = [record for record, count in found.items() if count > 1]
        assert not doubled, f"read twice: {doubled[:10]}"
        outcomes: dict[str, tuple[str, str]] = {}
        for path in self.network.root.glob(f"*/ledger-{topic}-*"):
            for line in path.read_text().splitlines():
                value, chosen, outcome, _ = line.split()
                outcomes[value] = (chosen, outcome)
        read_of: dict[str, list[int]] = {}
        for partition, value in found:
            read_of.setdefault(value, []).append(partition)
        assert not read_of.keys() - outcomes.keys(), "records that nobody wrote"
        for value, (chosen, outcome) in outcomes.items():
            whole = [int(partition) for partition in chosen.split(",")]
            allowed = {"committed": [whole], "aborted": [[]]}.get(outcome, [[], whole])
            got = sorted(read_of.get(value, []))
            assert got in allowed, f"{value}: {outcome}, and read from {got} of {whole}"
        return len(found)
