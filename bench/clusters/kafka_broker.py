"""One Kafka broker in KRaft mode, controller and broker in one process, from Maven's jars."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from clusters.servers import Server

ROOT: Final = Path(__file__).resolve().parents[2]
CLUSTER_ID: Final = "b25jZWxvZy1iZW5jaC1rYQ"
FORMAT_TIMEOUT_S: Final = 120
JAVA_MIN: Final = 17

JVM_OPTIONS: Final = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    *("-XX:MaxInlineLevel=15", "-Djava.awt.headless=true"),
)
"""Those of ``kafka-server-start.sh``."""

PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={log_dir}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
"""
"""Kafka's defaults, but for what a single broker needs."""

FSYNC: Final = "log.flush.interval.messages=1\n"


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
    """A fresh broker with its data below ``directory``."""

    def __init__(self, directory: Path, *, fsync: bool) -> None:
        super().__init__(directory)
        self.port, controller_port = _free_ports(2)
        text = PROPERTIES.format(
            port=self.port, controller_port=controller_port, log_dir=directory / "data"
        )
        self._properties = directory / "server.properties"
        self._properties.write_text(text + (FSYNC if fsync else ""), encoding="utf-8")

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


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
