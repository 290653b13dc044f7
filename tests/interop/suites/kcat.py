"""kcat's own tests, which are shell scripts, with Debian's kcat."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sources import debian_sources
from suite import Place, Result, Status, UnavailableError

VERSION = "1.7.1"
SHA256 = "4b957b7ffc728a88e163bc4e581aa371e56c7e74c8b84b1fe0583d0302ef8d58"
TEST_TIMEOUT_S = 120
PROGRAMS = ("kcat", "jq")


class Kcat:
    """Each script is a test."""

    name = "kcat"
    settings = ("kafka_auto_create_topics=True", "kafka_num_partitions=4")
    is_of_three_brokers = False

    def __init__(self) -> None:
        self._sources = Path()

    def prepare(self) -> None:
        """Fetch the scripts, and put the program where they expect it."""
        for program in PROGRAMS:
            if shutil.which(program) is None:
                raise UnavailableError(f"no {program} on this machine; Debian has a package of it")
        self._sources = debian_sources(
            "kcat", f"kafkacat_{VERSION}.orig.tar.gz", SHA256, f"kafkacat-{VERSION}"
        )
        program = self._sources / "kcat"
        if not program.is_symlink():
            program.symlink_to(str(shutil.which("kcat")))

    def tests(self) -> list[str]:
        """All scripts."""
        return [path.stem for path in sorted((self._sources / "tests").glob("0*.sh"))]

    def run(self, tests: Sequence[str], place: Place) -> Iterator[Result]:
        """Run these; a script that fails ends with another status than 0.

        kcat writes what it reads from anything but a terminal, so there is one.
        """
        master, terminal = os.openpty()
        try:
            for test in tests:
                yield self._run(test, place, terminal)
        finally:
            os.close(master)
            os.close(terminal)

    def _run(self, test: str, place: Place, terminal: int) -> Result:
        log = place.directory / f"{test}.txt"
        began_s = time.monotonic()
        try:
            done = subprocess.run(
                ["bash", f"{test}.sh"],
                stdin=terminal,
                cwd=self._sources / "tests",
                env={**os.environ, "BROKERS": place.cluster.bootstrap},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=TEST_TIMEOUT_S,
            )
            said, failed = done.stdout, done.returncode != 0
        except subprocess.TimeoutExpired as error:
            said, failed = error.stdout or b"", True
        log.write_bytes(said)
        lines = said.decode(errors="replace").splitlines()
        skipped = any("TEST SKIPPED" in line for line in lines)
        status = Status.FAILED if failed else Status.SKIPPED if skipped else Status.PASSED
        return Result(
            test=test,
            status=status,
            seconds=time.monotonic() - began_s,
            why="" if status is Status.PASSED else " ".join(lines[-1:]),
        )
