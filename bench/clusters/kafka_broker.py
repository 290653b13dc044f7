"""Kafka in KRaft mode from Maven's jars: nodes that are controller and broker in one process."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from clusters.servers import Server, min_insync_of

ROOT: Final = Path(__file__).resolve().parents[2]
CLUSTER_ID: Final = "b25jZWxvZy1iZW5jaC1rYQ"
FORMAT_TIMEOUT_S: Final = 120
JAVA_MIN: Final = 17

JVM_OPTIONS: Final = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    *("-XX:MaxInlineLevel=15", "-Djava.awt.headless=true"),
)
"""Those of ``kafka-server-start.sh``; three nodes take 3 GiB of heap."""

PROPERTIES: Final = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={log_dir}
min.insync.replicas={min_insync}
default.replication.factor={nodes}
offsets.topic.replication.factor={nodes}
transaction.state.log.replication.factor={nodes}
transaction.state.log.min.isr={min_insync}
share.coordinator.state.topic.replication.factor={nodes}
share.coordinator.state.topic.min.isr={min_insync}
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
"""
"""Kafka's defaults, but for the number of copies: as many as nodes."""

FSYNC: Final = "log.flush.interval.messages=1\n"


class Ports(NamedTuple):
    """Where a node listens, on 127.0.0.1."""

    broker: int
    controller: int


def properties_of(number: int, ports: Sequence[Ports], log_dir: Path, *, fsync: bool) -> str:
    """The file of node ``number``, counted from 1, of a quorum with these ports."""
    own = ports[number - 1]
    text = PROPERTIES.format(
        number=number,
        voters=",".join(f"{n}@127.0.0.1:{each.controller}" for n, each in enumerate(ports, 1)),
        port=own.broker,
        controller_port=own.controller,
        log_dir=log_dir,
        nodes=len(ports),
        min_insync=min_insync_of(len(ports)),
    )
    return text + (FSYNC if fsync else "")


def java() -> Path | None:
    """The Java to run it with: that of JAVA_HOME, or the one on the path."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    return None if found is None else Path(found)


def jars(*of: object) -> Path:
    """The directory of Kafka's jars, or of others; see ``fetch_jars``. Downloaded on first use."""
    path = ROOT / "tests" / "interop" / "kafka_jars.py"
    spec = importlib.util.spec_from_file_location("kafka_jars", path)
    if spec is None or spec.loader is None:
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Path = module.fetch_jars(*of)
    return found


def why_not() -> str:
    """Why there can be no broker here; empty if there can. Downloads the jars."""
    found = java()
    if found is None:
        return f"Kafka needs Java {JAVA_MIN} or newer: install it, or set JAVA_HOME"
    asked = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    version = asked.stderr.partition('version "')[2].partition(".")[0]
    if not version.isdigit() or int(version) < JAVA_MIN:
        return f"Kafka needs Java {JAVA_MIN} or newer, {found} is {version or 'unknown'}"
    if importlib.util.find_spec("confluent_kafka") is None:
        return "Kafka's client is missing: pip install 'oncelog[bench]'"
    try:
        jars()
    except FileNotFoundError:
        return "Kafka's jars come with Maven: install it"
    except (subprocess.SubprocessError, OSError) as error:
        return f"Kafka's jars could not be downloaded: {error}"
    return ""


class KafkaBroker(Server):
    """A fresh broker with its data below ``directory``: node ``number`` of those with ``ports``.

    Without ``ports`` it is the only one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        fsync: bool,
        number: int = 1,
        ports: Sequence[Ports] | None = None,
    ) -> None:
        super().__init__(directory)
        ports = ports or _free_ports(1)
        self.port = ports[number - 1].broker
        self._properties = directory / "server.properties"
        text = properties_of(number, ports, directory / "data", fsync=fsync)
        self._properties.write_text(text, encoding="utf-8")

    def format(self) -> None:
        """Prepare its empty data directory, which Kafka leaves to a tool."""
        command = self._java("kafka.tools.StorageTool", "format")
        subprocess.run(
            [*map(str, command), "--cluster-id", CLUSTER_ID, "--config", str(self._properties)],
            check=True,
            stdout=sys.stderr,
            timeout=FORMAT_TIMEOUT_S,
        )

    def command(self) -> list[object]:
        """The broker."""
        return self._java("kafka.Kafka", self._properties)

    def is_up(self) -> bool:
        """Whether it takes connections."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _java(self, *words: object) -> list[object]:
        return [java(), *JVM_OPTIONS, "-cp", f"{jars()}/*", *words]


class KafkaCluster:
    """Fresh brokers, each with its data below a directory of its own in ``directory``."""

    def __init__(self, directory: Path, *, fsync: bool, brokers: int) -> None:
        ports = _free_ports(brokers)
        self.brokers = [
            KafkaBroker(directory / f"broker-{number}", fsync=fsync, number=number, ports=ports)
            for number in range(1, brokers + 1)
        ]

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers)

    def format(self) -> None:
        """See ``KafkaBroker.format``."""
        for broker in self.brokers:
            broker.format()

    def start(self) -> None:
        """Start all, then wait until each takes connections: none does without a majority."""
        for broker in self.brokers:
            broker.begin()
        for broker in self.brokers:
            broker.wait_until_up()

    def stop(self) -> None:
        """Stop it; several are killed, as the last ones would wait for a majority to let them."""
        for broker in self.brokers:
            if len(self.brokers) == 1:
                broker.stop()
            else:
                broker.kill()


def _free_ports(nodes: int) -> list[Ports]:
    probes = [socket.socket() for _ in range(2 * nodes)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        found = [probe.getsockname()[1] for probe in probes]
        return [Ports(*pair) for pair in zip(found[::2], found[1::2], strict=True)]
    finally:
        for probe in probes:
            probe.close()
