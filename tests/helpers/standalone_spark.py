"""A Spark cluster of its own, which nobody told of Ray: a master and workers of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyspark
from deadlines import DEADLINE_S

HOST: Final = "127.0.0.1"


class StandaloneSpark:
    """The processes; ``close`` ends them, and with them the executors."""

    def __init__(self, root: Path, *, workers: Sequence[str] = (HOST,)) -> None:
        """Start a worker of one core on each address, with logs and files below ``root``."""
        self._root = root
        self._home = Path(pyspark.__file__).parent
        self._processes: list[subprocess.Popen[bytes]] = []
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = probe.getsockname()[1]
        self.master = f"spark://{HOST}:{port}"
        shared = ["--webui-port", "0"]
        try:
            self._start("master", "Master", ["--host", HOST, "--port", str(port), *shared])
            self._wait_for("master", port)
            for number, address in enumerate(workers):
                arguments = ["--host", address, "--cores", "1", "--memory", "1g", *shared]
                arguments += ["--work-dir", str(root / f"worker-{number}"), self.master]
                self._start(f"worker-{number}", "Worker", arguments)
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, kind: str, arguments: Sequence[str]) -> None:
        program = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("RAY_", "ONCELOG_", "SPARK_", "PYSPARK_"))
        }
        with (self._root / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(self._home / "bin" / "spark-class"), program, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environment, "SPARK_HOME": str(self._home)},
            )
        self._processes.append(process)

    def _wait_for(self, name: str, port: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                socket.create_connection((HOST, port), 1.0).close()
            except OSError as error:
                log = (self._root / f"{name}.log").read_text(errors="replace")
                is_over = self._processes[-1].poll() is not None
                if is_over or time.monotonic() > deadline:
                    raise OSError(f"Spark's {name} does not start: {log[-2000:]}") from error
                time.sleep(0.1)
            else:
                return

    def close(self) -> None:
        """End the workers, which end their executors, then the master."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(timeout=DEADLINE_S)
