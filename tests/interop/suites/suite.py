"""What the command knows of a suite, and how the results of one are judged by its table.

A table, ``tables/NAME.toml``, has one line per test: ``"passes"``, or why the test is not expected
to pass. ``"left out: …"`` is not run at all, and ``"by chance: …"`` may go either way. Any other
reason must be true: a test that passes in spite of it is a failure of the run, as is one that is
not in the table. So tables only grow.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from kafka_clients import KafkaCluster

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PASSES = "passes"
LEFT_OUT = "left out: "
BY_CHANCE = "by chance: "
TABLES = Path(__file__).parent / "tables"


class UnavailableError(Exception):
    """What a suite needs cannot be had on this machine."""


class Status(Enum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One test that was run; ``why`` is its own words, empty if it passed."""

    test: str
    status: Status
    seconds: float
    why: str = ""


@dataclass(frozen=True)
class Place:
    """A cluster, and an empty directory for what tests print and write."""

    cluster: KafkaCluster
    directory: Path


class Suite(Protocol):
    """Tests that others wrote.

    ``settings`` are those of its cluster, as ``NAME=VALUE``, which has one broker or three.
    """

    name: str
    settings: Sequence[str]
    is_of_three_brokers: bool

    def prepare(self) -> None:
        """Fetch and build it, once. Raises UnavailableError."""

    def tests(self) -> list[str]:
        """All its tests that talk to a broker, in order; needs ``prepare``."""

    def run(self, tests: Sequence[str], place: Place) -> Iterator[Result]:
        """Run these, each with a time limit."""


def read_table(name: str) -> dict[str, str]:
    """The table of a suite: what is expected of each test."""
    return dict(tomllib.loads((TABLES / f"{name}.toml").read_text(encoding="utf-8")))


def to_run(tests: Sequence[str], table: Mapping[str, str]) -> list[str]:
    """Those of a suite's tests that are not left out."""
    return [test for test in tests if not table.get(test, PASSES).startswith(LEFT_OUT)]


def stale_lines(tests: Sequence[str], table: Mapping[str, str]) -> list[str]:
    """Lines of the table about tests that the suite does not have."""
    return [f"{test}: the suite has no such test" for test in table if test not in set(tests)]


def judge(result: Result, table: Mapping[str, str]) -> str:
    """What is wrong with a result, by the table of its suite; empty if nothing is."""
    expected = table.get(result.test)
    passed = result.status is Status.PASSED
    if expected is None:
        return f"{result.test} {result.status.value} and is not in the table"
    if expected.startswith(BY_CHANCE) or passed == (expected == PASSES):
        return ""
    if passed:
        return f"{result.test} passes now: say so in the table, instead of {expected!r}"
    return f"{result.test} {result.status.value}: {result.why}"
