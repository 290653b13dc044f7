"""librdkafka's own tests, built from the sources that Debian has.

Each test is a process of its own. Tests of its mock cluster need no broker and are not ours. Some
call Kafka's scripts; those are made here, from the jars of ``kafka_jars.py``.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ray_nodes import can_unshare
from sources import build, debian_headers, debian_sources
from suite import Place, Result, Status, UnavailableError

INTEROP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(INTEROP))

from kafka_jars import fetch_jars  # noqa: E402

VERSION = "2.0.2"
SHA256 = "f321bcb1e015a34114c83cf1aa7b99ee260236aab096b85c003170c90a47ca9d"
BROKER_VERSION = "3.9.0"
"""Of Kafka, whose tests are asked for."""
TEST_TIMEOUT_S = 480
PATIENCE = 3
"""How many times its own time a test may take on a slow machine."""
DECLARED = re.compile(r"_TEST\(([0-9]{4}_\w+),\s*([\w |]+)((?:[^;]*?))(?=_TEST\(|/\* Manual)")
SPLIT = ("0045", "0081", "0113")
"""Tests of so many things that each of their parts is a test here."""
PARTS = re.compile(r"^static void (\w+)\((?:(?!^}).)*?SUB_TEST", re.MULTILINE | re.DOTALL)
DEFAULT, NO_CREATION, ACLS, *OF_THREE = SCENARIOS = (
    *("default", "noautocreate", "acls"),
    *("brokers", "brokers-noautocreate"),
)
"""With topics that requests about them create, or without; with ACLs that count; of three brokers.
"""
THREE_REPLICAS = re.compile(r"create_topic\([^;]*,\s*3\)")
"""What a test calls that needs as many brokers."""
SCRIPTS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-run-class.sh": "",
}


class Librdkafka:
    """Those of its tests that want one kind of cluster, of ``SCENARIOS``."""

    def __init__(self, scenario: str) -> None:
        self.name = "librdkafka" if scenario == DEFAULT else f"librdkafka-{scenario}"
        self._scenario = scenario
        self.settings = (
            f"kafka_auto_create_topics={not scenario.endswith(NO_CREATION)}",
            "kafka_num_partitions=4",
            # Kafka's default: some tests expect that two members join in one rebalance.
            "group_initial_rebalance_delay_ms=3000",
        )
        self.is_of_three_brokers = scenario in OF_THREE
        self._declared: dict[str, str] = {}
        self._sources = Path()

    def prepare(self) -> None:
        """Fetch and build the library, its tests, and scripts like Kafka's."""
        if shutil.which("java") is None:
            raise UnavailableError("no java on this machine")
        if self.is_of_three_brokers and not can_unshare():
            raise UnavailableError("no right to give a process mounts of its own")
        self._sources = debian_sources(
            "librdkafka1", f"librdkafka_{VERSION}.orig.tar.gz", SHA256, f"librdkafka-{VERSION}"
        )
        # Some tests read statistics, which are JSON.
        headers = debian_headers("rapidjson-dev")
        without = ("gssapi", "sasl", "ssl", "curl")
        build(
            self._sources,
            "tests/test-runner",
            ["./configure", *(f"--disable-{one}" for one in without)],
            ["make", "-j2", "libs"],
            ["make", "-j2", "-C", "tests", "build"],
            CPLUS_INCLUDE_PATH=str(headers),
        )
        _write_scripts(self._sources / "kafka")

    def tests(self) -> list[str]:
        """Those of the scenario that need a broker."""
        text = (self._sources / "tests" / "test.c").read_text(encoding="utf-8")
        found = DECLARED.findall(text[text.index("struct test tests[]") :])
        return [
            part
            for name, flags, more in found
            if "TEST_F_LOCAL" not in flags and self._is_mine(name, more)
            for part in self._parts(name)
        ]

    def _is_mine(self, name: str, more: str) -> bool:
        named = re.search(r'\.scenario = "([^"]+)"', more)
        scenario = DEFAULT if named is None else named.group(1)
        self._declared[name[:4]] = scenario.partition(",")[0]
        text = self._source(name).read_text("utf-8")
        if scenario == DEFAULT and "kafka-acls.sh" in text:
            scenario = ACLS
        if THREE_REPLICAS.search(text):
            scenario = OF_THREE[scenario == NO_CREATION]
        return self._scenario in scenario.split(",")

    def _source(self, name: str) -> Path:
        (path,) = (self._sources / "tests").glob(f"{name[:4]}-*.c*")
        return path

    def _parts(self, name: str) -> list[str]:
        """A test, or the parts of one that is split."""
        if name[:4] not in SPLIT:
            return [name]
        text = self._source(name).read_text("utf-8")
        main = re.search(rf"^int main_{name}\(.*?^}}", text, re.MULTILINE | re.DOTALL)
        every = PARTS.findall(text)
        called = [part for part in every if main is not None and f"{part}(" in main.group()]
        return [f"{name}::{part}" for part in called or every]

    def run(self, tests: Sequence[str], place: Place) -> Iterator[Result]:
        """Run those of each number, which the runner takes together, and parts one by one."""
        if self._scenario == ACLS:
            _turn_acls_on(place)
        whole: dict[str, list[str]] = {}
        for test in tests:
            key = test if "::" in test else test[:4]
            whole.setdefault(key, []).append(test)
        for key, of_key in whole.items():
            yield from self._run(key[:4], key.partition("::")[2], of_key, place)

    def _run(self, number: str, part: str, tests: Sequence[str], place: Place) -> Iterator[Result]:
        stem = f"{number}-{part}" if part else number
        report, log = place.directory / f"{stem}.json", place.directory / f"{stem}.txt"
        settings = place.directory / "test.conf"
        settings.write_text(
            f"bootstrap.servers={place.cluster.bootstrap}\n"
            "test.topic.random=true\n"
            f"test.timeout.multiplier={PATIENCE}\n"
        )
        built = self._sources
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": f"{built}/src:{built}/src-cpp",
            "TESTS": number,
            **({"SUBTESTS": f"{part}:"} if part else {}),
            "TEST_REPORT": str(report),
            "TEST_KAFKA_VERSION": BROKER_VERSION,
            "TEST_SCENARIO": self._declared[number],
            "RDKAFKA_TEST_CONF": str(settings),
            "KAFKA_PATH": str(built / "kafka"),
            "BROKERS": place.cluster.bootstrap,
        }
        began_s = time.monotonic()
        with log.open("wb") as said:
            process = subprocess.Popen(
                ["./test-runner", "-L", "-p1"],
                cwd=built / "tests",
                env=environment,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(TEST_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                pass
            finally:
                # Its children with it: some tests start programs.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        seconds = time.monotonic() - began_s
        states = _states(report)
        said_so = re.search(rf"\[ {part}:.*: PASS \(", log.read_text("utf-8", "replace"))
        for test in tests:
            state = states.get(test.partition("::")[0], "FAILED")
            if part and state == "PASSED" and said_so is None:
                # The runner calls it a success, too, if the part was skipped or is unknown.
                state = "SKIPPED"
            status = {"PASSED": Status.PASSED, "SKIPPED": Status.SKIPPED}.get(state, Status.FAILED)
            why = "" if status is Status.PASSED else _reason(log)
            yield Result(test=test, status=status, seconds=seconds, why=why)


def _turn_acls_on(place: Place) -> None:
    """Clients without a login may do everything, but for what tests deny."""
    everything = (*("--topic", "*", "--group", "*", "--transactional-id", "*"), "--cluster")
    place.cluster.run("acls", "add", "--allow", "User:ANONYMOUS", "--operation", "All", *everything)
    place.cluster.run("acls", "on", "--super-user", "User:ray")


def _states(report: Path) -> dict[str, str]:
    """What the runner says of each test; nothing if it did not come to its end."""
    if not report.exists():
        return {}
    states = re.findall(r'"(\d{4}_\w+)": \{"name": "\w+", "state": "(\w+)"', report.read_text())
    return dict(states)


def _reason(log: Path) -> str:
    """The first line that says why a test did not pass."""
    text = log.read_text(encoding="utf-8", errors="replace")
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    # Tests of the mock cluster that have the same number are skipped each time.
    text = re.sub(r"^\[\w+_local\b.*$", "", text, flags=re.MULTILINE)
    for pattern in (r"### Test .* failed at .*\n(.*)", r"SKIPPING TEST: (.*)", r"WARN: (.*)"):
        found = re.search(pattern, text, re.MULTILINE)
        if found:
            return found.group(1).strip()
    lines = text.strip().splitlines() or ["it said nothing"]
    return f"no end within {TEST_TIMEOUT_S} s, or a crash; at last: {lines[-1]}"


def _write_scripts(path: Path) -> None:
    """Scripts of Kafka's distribution that tests call, and where they look for jars."""
    jars = fetch_jars()
    (path / "bin").mkdir(parents=True, exist_ok=True)
    for name, main_class in SCRIPTS.items():
        script = path / "bin" / name
        script.write_text(
            "#!/bin/sh\n"
            f'exec java -Xmx128m -XX:TieredStopAtLevel=1 -cp "$CLASSPATH:{jars}/*" '
            f'{main_class} "$@"\n'
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    with suppress(FileExistsError):
        (path / "libs").symlink_to(jars)
