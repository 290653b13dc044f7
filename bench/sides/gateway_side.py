"""oncelog's gateway with librdkafka's client for Python, for ``bench/gateway.py``."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Final

from clusters.kafka_broker import KafkaCluster
from clusters.servers import OncelogServer
from measuring.processes import family
from sides.kafka_side import KafkaSide

TITLE: Final = "GatewayProcess"
"""In the name that Ray gives to the gateway's process."""

_CPU_CLOCK: Final = 2


class GatewayServer(OncelogServer):
    """A Ray cluster of its own with the log, and a port for clients of Kafka."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]

    def command(self) -> list[object]:
        """The process behind ``oncelog start --kafka-port``."""
        return [*super().command(), "--config", f"kafka_port={self.port}"]

    def is_up(self) -> bool:
        """Whether every coordinator is led and the gateway takes connections."""
        with socket.socket() as probe:
            return super().is_up() and probe.connect_ex(("127.0.0.1", self.port)) == 0


class _GatewayCluster(KafkaCluster):
    """In the place of Kafka's brokers."""

    def __init__(self, directory: Path) -> None:
        self.brokers = []
        self.server = GatewayServer(directory)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def format(self) -> None:
        """Nothing is to be prepared."""

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.stop()


class GatewaySide(KafkaSide):
    """oncelog as a client of Kafka sees it; it syncs before it acknowledges."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, fsync=True)
        self._gateway = _GatewayCluster(directory)
        self._cluster = self._gateway
        self._common["bootstrap.servers"] = self._gateway.address

    @property
    def process_id(self) -> int:
        """Of the process that all others of the cluster stem from."""
        return self._gateway.server.process.pid

    def gateway_id(self) -> int:
        """Of the gateway's process."""
        for life in family(self.process_id):
            line = Path(f"/proc/{life.process_id}/cmdline").read_bytes()
            if TITLE.encode() in line:
                return life.process_id
        raise LookupError(f"no process is called {TITLE}")


def cpu_s(process_id: int) -> float:
    """Processor time that a process has taken so far."""
    # What clock_getcpuclockid(3) gives on Linux, which Python does not have.
    return time.clock_gettime(~process_id << 3 | _CPU_CLOCK)
