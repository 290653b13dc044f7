"""A sample of ``bench/spark.py``: all sides with rows of one size, each in a session of its own.

``samples/spark.py SIZE ROWS ROUNDS DIRECTORY SIDES PART...``; see ``measuring.findings``.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from figures.spark_parts import BASE, KAFKA, OURS, READ, STREAM, WRITE, name_of
from measuring.findings import take
from sides.spark_side import PARTITIONS, SparkSide, Work, Workload

Method: TypeAlias = "Callable[[Work, str], float]"

WARM_UPS: Final = 3
"""Rounds that do not count: Java compiles what it has run for a while."""


class Sides:
    """The Spark sessions by side, and their topics; ``clusters`` are by side too."""

    def __init__(self, sessions: Mapping[str, SparkSide], clusters: Mapping[str, Any]) -> None:
        self._sessions = sessions
        self._clusters = clusters
        self._numbers = itertools.count(1)

    @contextmanager
    def topic(self, side: str) -> Iterator[str]:
        """A new topic of a side, gone afterwards; Spark alone needs none."""
        name, cluster = f"bench-{next(self._numbers)}", self._clusters.get(side)
        if cluster is not None:
            cluster.create_topic(name, PARTITIONS)
        try:
            yield name
        finally:
            if cluster is not None:
                cluster.delete_topic(name)

    def call(self, method: Method, topics: Mapping[str, str], side: str) -> float:
        """Seconds of a method of the side's ``Work``, on its topic."""
        return self._sessions[side].call(method, topics[side])

    def call_anew(self, method: Method, side: str) -> float:
        """The same, on a topic of its own."""
        with self.topic(side) as topic:
            return self.call(method, {side: topic}, side)


def take_rounds(
    name: str, sides: list[str], rounds: int, seconds: Callable[[str], float], amount: float
) -> None:
    """Tell ``amount`` per second, or of ``amount`` 0 milliseconds, of each side in each round."""

    def figure(side: str) -> float:
        taken = seconds(side)
        return amount / taken if amount else 1e3 * taken

    for side in WARM_UPS * sides:
        seconds(side)
    for number in range(rounds):
        for side in sides[:: -1 if number % 2 else 1]:
            take(name, partial(figure, side), side)


def run(
    all_sides: Sides, part: str, sides: list[str], rounds: int, *, size: int, rows: int
) -> None:
    """All rounds of one part."""
    name, amount = name_of(part, size), rows / 1e3
    if part == WRITE:
        take_rounds(name, sides, rounds, partial(all_sides.call_anew, Work.write_s), amount)
    elif part == STREAM:
        take_rounds(name, sides, rounds, partial(all_sides.call_anew, Work.stream_write_s), amount)
    elif part == READ:
        with ExitStack() as stack:
            topics = {side: stack.enter_context(all_sides.topic(side)) for side in sides}
            for side in [side for side in sides if side != BASE]:
                all_sides.call(Work.write_s, topics, side)
            take_rounds(name, sides, rounds, partial(all_sides.call, Work.read_s, topics), amount)
    else:
        sides = [side for side in sides if side != KAFKA]
        with all_sides.topic(OURS) as full:
            topics = dict.fromkeys(sides, full)
            all_sides.call(Work.fill_for_empty_s, topics, OURS)
            take_rounds(name, sides, rounds, partial(all_sides.call, Work.empty_s, topics), 0)


def main() -> None:
    """Take the figures of one size."""
    size, rows, rounds = map(int, sys.argv[1:4])
    directory, sides = Path(sys.argv[4]), sys.argv[5].split(",")
    # Here, so that the sessions' processes, which import this module, do not load it.
    from sides.oncelog_side import OncelogSide

    clusters: dict[str, Any] = {OURS: OncelogSide(directory / "oncelog", flush="sync")}
    if KAFKA in sides:
        from sides.kafka_side import KafkaSide

        clusters[KAFKA] = KafkaSide(directory / "kafka", fsync=False)
    with ExitStack() as stack:
        for cluster in clusters.values():
            stack.callback(cluster.stop)
            cluster.start()
        sessions: dict[str, SparkSide] = {}
        for number, side in enumerate(sides):
            address = clusters[side].address if side in clusters else None
            own = directory / f"session-{number}"
            sessions[side] = SparkSide(Workload(side, address, size, rows, own))
            stack.callback(sessions[side].stop)
        all_sides = Sides(sessions, clusters)
        for part in sys.argv[6:]:
            run(all_sides, part, sides, rounds, size=size, rows=rows)


if __name__ == "__main__":
    main()
