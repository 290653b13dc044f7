"""A cluster that ``ray up`` makes of network hosts with the project's own ``cluster.yaml``."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import yaml
from network_hosts import COMMAND_S, DISK, Host, Network, wait_for

ROOT: Final = Path(__file__).parents[2]
PROGRAMS: Final = ROOT / "tests" / "hosts"
UP_S: Final = 240.0
JOINED_S: Final = 180.0
"""Ray's autoscaler takes half a minute to miss a node, and tries again as often."""


def ledger(host: Host, topic: str, name: str) -> Path:
    """Where a writer keeps what became of its transactions."""
    return host.home / f"ledger-{topic}-{name}"


def log_on(host: Host, name: str) -> bytes:
    """The batches of a partition on a host's disk."""
    directory = host.disk / "oncelog" / "log" / name
    return b"".join(file.read_bytes() for file in sorted(directory.glob("*.log")))


class HostsCluster:
    """Hosts of a network, the first of which is the head; ``up`` and ``down`` are Ray's."""

    def __init__(self, network: Network, *, workers: int) -> None:
        self.network = network
        network.desk.start()
        self.head = network.add("head")
        self.workers: list[Host] = []
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
        config = yaml.safe_load(shipped.replace("/data/oncelog", f"{DISK}/oncelog"))
        config["provider"]["head_ip"] = self.head.address
        config["provider"]["worker_ips"] = [host.address for host in self.workers]
        config["auth"] = {"ssh_user": "root", "ssh_private_key": str(self.network.key)}
        config["file_mounts"]["~/oncelog-wheel"] = str(self.wheel)
        self.file.write_text(yaml.safe_dump(config, width=100_000))

    def up(self) -> str:
        self.fill_in()
        return self.network.desk.run("ray", "up", "-y", str(self.file), timeout_s=UP_S)

    def down(self) -> str:
        return self.network.desk.run("ray", "down", "-y", str(self.file), timeout_s=UP_S)

    def oncelog(self, *arguments: str, at: Host | None = None) -> str:
        return (at or self.head).run("oncelog", *arguments, "--address=auto")

    def status(self) -> dict[str, Any]:
        """What ``oncelog status`` says on the head; empty while it cannot tell."""
        try:
            said = self.head.run(
                "oncelog", "status", "--json", "--address=auto", statuses=(0, 1), timeout_s=60
            )
        except subprocess.TimeoutExpired:
            return {}
        try:
            return dict(json.loads(said)) if said else {}
        except ValueError:
            raise AssertionError(f"`oncelog status --json` printed {said!r}") from None

    def brokers(self) -> dict[str, str]:
        """What each host's broker is said to be, by the host's name."""
        states = {one["broker_id"]: one["state"] for one in self.status().get("brokers", [])}
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
        wait_for(
            lambda: set(self.brokers().values()) == {"alive"} and self.status()["serving"],
            "all brokers alive and every partition serving",
            JOINED_S,
        )

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

    def check(self, at: Host, topic: str) -> int:
        """How many committed records of a topic a program reads; AssertionError if not those.

        What the ledgers call committed is there once in each of its partitions, what they call
        aborted nowhere, and what nobody knows in all of its partitions or in none.
        """
        found = Counter(self.read(at, topic))
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

    def read(self, at: Host, topic: str) -> list[tuple[int, str]]:
        """Partition and value of everything committed, as a program on a host reads it."""
        said = at.run(sys.executable, str(PROGRAMS / "reader.py"), topic)
        return [(partition, value) for partition, value in json.loads(said)]
