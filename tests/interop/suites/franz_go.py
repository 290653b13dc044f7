"""franz-go's own tests of its client, which come with it from Go's registry.

Those that connect to a broker; unit tests need none. The two that move records in groups and
transactions run once more with a dialer of theirs that breaks connections.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sources import build, cache_directory
from suite import Place, Result, Status, UnavailableError

MODULE = "github.com/twmb/franz-go"
VERSION = "1.22.3"
TEST_TIMEOUT_S = 300
RECORDS = 50_000
PARTITIONS_MAX = 7
CHAOS = " with broken connections"
UNDER_CHAOS = ("TestGroupETL", "TestTxnEtl")
CONNECTS = re.compile(
    r"newTestClient|newTestConsumer|testClientOpts|getSeedBrokers|tmp(Named)?Topic"
)
TEST = re.compile(r"^func (Test\w+)\(t \*testing\.T\) \{\n(.*?)^\}", re.DOTALL | re.MULTILINE)


class FranzGo:
    """Each function is a test; its subtests are not told apart."""

    name = "franz-go"
    settings = ()
    is_of_three_brokers = False

    def __init__(self) -> None:
        self._program = self._sources = Path()

    def prepare(self) -> None:
        """Fetch the module, and compile the tests of its client."""
        go = shutil.which("go") or "/usr/local/go/bin/go"
        if not Path(go).exists():
            raise UnavailableError("no go on this machine")
        directory = cache_directory() / f"franz-go-{VERSION}"
        directory.mkdir(parents=True, exist_ok=True)
        package = f"{MODULE}/pkg/kgo"
        if not (directory / "go.mod").exists():
            (directory / "go.mod").write_text("module suite\n\ngo 1.26\n", encoding="utf-8")
        self._program = build(
            directory,
            "kgo.test",
            [go, "get", f"{package}@v{VERSION}"],
            [go, "test", "-c", "-o", "kgo.test", package],
        )
        found = subprocess.run(
            [go, "list", "-f", "{{.Dir}}", package],
            cwd=directory,
            capture_output=True,
            text=True,
            check=True,
            timeout=TEST_TIMEOUT_S,
        )
        self._sources = Path(found.stdout.strip())

    def tests(self) -> list[str]:
        """The functions that connect to a broker, and those that do so under chaos."""
        found = [
            test[1]
            for path in sorted(self._sources.glob("*_test.go"))
            for test in TEST.finditer(path.read_text(encoding="utf-8"))
            if CONNECTS.search(test[2])
        ]
        return [*found, *(f"{test}{CHAOS}" for test in UNDER_CHAOS)]

    def run(self, tests: Sequence[str], place: Place) -> Iterator[Result]:
        """Run these one by one."""
        environment = {
            **os.environ,
            "KGO_SEEDS": place.cluster.bootstrap,
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": str(RECORDS),
            "KGO_TEST_MAX_TOPIC_PARTS": str(PARTITIONS_MAX),
            "KGO_TEST_UNSAFE": "1",
            "KGO_LOG_LEVEL": "none",
        }
        for test in tests:
            name = test.removesuffix(CHAOS)
            began_s = time.monotonic()
            log = place.directory / f"{test.replace(' ', '-')}.txt"
            chaos = {"KGO_TEST_CHAOS": "1"} if test != name else {}
            status, why = _run(
                [*(str(self._program), "-test.v", "-test.run", f"^{name}$")],
                self._sources,
                {**environment, **chaos},
                log,
                name,
            )
            yield Result(test=test, status=status, seconds=time.monotonic() - began_s, why=why)


def _run(
    command: list[str], directory: Path, environment: dict[str, str], log: Path, name: str
) -> tuple[Status, str]:
    with log.open("wb") as out:
        try:
            subprocess.run(
                command,
                cwd=directory,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=TEST_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return Status.FAILED, f"not within {TEST_TIMEOUT_S} s"
    said = log.read_text(encoding="utf-8", errors="replace")
    if re.search(rf"^--- PASS: {name} ", said, re.MULTILINE):
        return Status.PASSED, ""
    skipped = re.search(rf"^--- SKIP: {name} ", said, re.MULTILINE)
    why = [line.strip() for line in said.splitlines() if "_test.go:" in line]
    return Status.SKIPPED if skipped else Status.FAILED, " ".join(why[:3])
