"""The parts of ``bench/spark.py``: what each is called, and what is found beside what. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

SIZES: Final = (100, 1_000)
"""Bytes of a row's value."""

OURS: Final = "oncelog"
BASE: Final = "Spark alone"
KAFKA: Final = "kafka"
SIDES: Final = (OURS, BASE, KAFKA)

WRITE: Final = "write"
STREAM: Final = "stream-write"
READ: Final = "read"
EMPTY: Final = "empty"
PARTS: Final = (WRITE, STREAM, READ, EMPTY)
"""``BASE`` counts the batches of a write, yields those of a read from memory, or has no sink."""

SHARE_OF_BASE: Final = 0.7
"""Our speed beside ``BASE``, at least."""

FASTER_THAN_KAFKA: Final = {WRITE: 1.5, READ: 1.0}
"""By how much at least."""

_TITLES: Final = {
    WRITE: "rows written in a batch, {}, thousand/s",
    STREAM: "rows written in micro-batches, {}, thousand/s",
    READ: "rows read, {}, thousand/s",
}


def name_of(part: str, size: int) -> str:
    """The name of a figure."""
    return part if part == EMPTY else f"{part}-{size}"


def titles() -> dict[str, str]:
    """The rows of the table."""
    found = {
        name_of(part, size): title.format("100 B" if size == SIZES[0] else "1 KB")
        for part, title in _TITLES.items()
        for size in SIZES
    }
    return found | {EMPTY: "a micro-batch without rows, ms"}


def shares(values: Mapping[tuple[str, str], Sequence[float]], base: str) -> dict[str, float]:
    """Our speed as a share of another side's, by figure: the median of the rounds of both."""
    found = {}
    for name in titles():
        ours, theirs = values.get((name, OURS)), values.get((name, base))
        if name != EMPTY and ours and theirs:
            rounds = zip(ours, theirs, strict=False)
            found[name] = statistics.median(own / other for own, other in rounds)
    return found


def wanted_share(name: str) -> float | None:
    """The share of Kafka's speed that a figure must have, ``None`` for any."""
    return FASTER_THAN_KAFKA.get(name.rpartition("-")[0])
