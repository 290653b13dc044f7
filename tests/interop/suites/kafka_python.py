"""kafka-python's integration tests, of its source distribution.

That lacks two files of its test package, which are made here; what they hold is only needed to
start a broker of Kafka's. Tests of logins and TLS start one, and are left aside.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from sources import cache_directory, python_libraries, python_sources
from suite import Place, Result, Status, UnavailableError

BROKER_VERSION = "3.9"
"""Of Kafka: the newest whose versions of requests are all served, as the tests do not ask."""
FILES = ("admin", "consumer", "producer")
TEST_TIMEOUT_S = 60
SUITE_TIMEOUT_S = 1_200
LIBRARIES = ("python-snappy", "lz4", "zstandard")
"""That it compresses with."""

SERVICE = '''"""Stand-in: a broker that is there needs nothing done to it."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def dump_logs(self):
        pass

    def stop(self):
        pass


class SpawnedService:
    def __init__(self, *_):
        raise NotImplementedError("no broker is started here")
'''


class KafkaPython:
    """All of them in one pytest."""

    name = "kafka-python"
    settings = (
        "kafka_auto_create_topics=True",
        "kafka_num_partitions=4",
        "group_min_session_timeout_ms=3000",
    )
    is_of_three_brokers = False

    def __init__(self) -> None:
        self._sources = self._libraries = Path()

    def prepare(self) -> None:
        """Fetch them, and what the client compresses with."""
        self._sources = python_sources("kafka-python", version("kafka-python"))
        self._libraries = python_libraries("kafka-python-codecs", LIBRARIES)
        (self._sources / "test" / "__init__.py").touch()
        (self._sources / "test" / "service.py").write_text(SERVICE)

    def tests(self) -> list[str]:
        """FILE::TEST of those that can use a broker that is there."""
        with tempfile.TemporaryFile("w+") as out:
            self._pytest("localhost:1", out, "--collect-only", "-q", *self._files())
            out.seek(0)
            done = out.read()
        found = re.findall(r"^test/integration/test_(\w+)_integration\.py::(.+)$", done, re.M)
        if not found:
            raise UnavailableError(f"its tests cannot be collected: {done[-2_000:]}")
        return [f"{file}::{test}" for file, test in found]

    def run(self, tests: Sequence[str], place: Place) -> Iterator[Result]:
        """Run these and read the report; a test without a line in it did not end."""
        report = place.directory / "report.xml"
        chosen = [
            f"test/integration/test_{file}_integration.py::{test}"
            for file, _, test in (one.partition("::") for one in tests)
        ]
        with (place.directory / "pytest.txt").open("w") as out:
            self._pytest(place.cluster.bootstrap, out, "-v", f"--junit-xml={report}", *chosen)
        cases = {}
        if report.exists():
            for case in xml.etree.ElementTree.parse(report).iter("testcase"):
                file = case.get("classname", "").removeprefix("test.integration.test_")
                cases[f"{file.removesuffix('_integration')}::{case.get('name')}"] = case
        for test in tests:
            yield _result(test, cases.get(test))

    def _files(self) -> list[str]:
        return [f"test/integration/test_{file}_integration.py" for file in FILES]

    def _pytest(self, bootstrap: str, out: TextIO, *arguments: str) -> None:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [
                    *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts="),
                    *(f"--timeout={TEST_TIMEOUT_S}", "-o", "log_level=INFO", *arguments),
                ],
                cwd=self._sources,
                env={
                    **os.environ,
                    "PYTHONPATH": f"{self._sources}:{self._libraries}",
                    "KAFKA_URI": f"kafka://{bootstrap}",
                    "KAFKA_VERSION": BROKER_VERSION,
                    "KAFKA_ROOT": str(cache_directory()),
                },
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=SUITE_TIMEOUT_S,
            )


def _result(test: str, case: xml.etree.ElementTree.Element | None) -> Result:
    if case is None:
        return Result(test=test, status=Status.FAILED, seconds=0, why="it did not end")
    seconds = float(case.get("time", "0"))
    for kind, status in (
        ("failure", Status.FAILED),
        ("error", Status.FAILED),
        ("skipped", Status.SKIPPED),
    ):
        found = case.find(kind)
        if found is not None:
            why = (found.get("message") or "").strip().splitlines() or [""]
            return Result(test=test, status=status, seconds=seconds, why=why[0])
    return Result(test=test, status=Status.PASSED, seconds=seconds)
