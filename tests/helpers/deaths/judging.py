"""What came of a cell: each row that must be there once, and nothing else, soon."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from deaths.cells import (
    ABORT_STEPS,
    DRIVER_PYTHON,
    EXECUTOR,
    RECORDED,
    RETURNED,
    SAVE,
    SENT,
    STREAMS,
    TASK_STEPS,
    WORKER,
    Cell,
)
from deaths.rows import FIRST, PARTITIONS, SAVED, SECOND, SOURCE_ROWS, STRUCK, WRITE_ROWS

from oncelog.storage.model import TopicPartition

SETTLED_WITHIN_S: Final = 30.0
"""How soon no transaction is open any more; the transaction timeout is 15 minutes."""
LOOK_S: Final = 0.05
SHOWN_MAX: Final = 5

ALL: Final = "all"
NONE: Final = "none"
EITHER: Final = "all or none"


def fate(cell: Cell, *, is_saved: bool) -> str:
    """How many rows of the first write of a batch may be read: all, none, or either."""
    if cell.kind != SAVE or is_saved or cell.step in (RECORDED, RETURNED):
        return ALL
    if cell.step == SENT:
        return EITHER
    if cell.victim == DRIVER_PYTHON and cell.step in TASK_STEPS:
        # Its Java process is not killed: it notices, and may be faster with the commit.
        return EITHER
    return NONE


def must_return(cell: Cell) -> bool:
    """Whether Spark mends the death by itself, so that the first write succeeds."""
    return cell.victim in (WORKER, EXECUTOR) and cell.step not in ABORT_STEPS


def wrong_rows(cell: Cell, values: list[str], *, is_saved: bool) -> list[str]:
    """What is missing, there twice, or should not be there, each in a line."""
    found = Counter(values)
    if cell.kind in STREAMS:
        first, second = {f"row-{number}" for number in range(SOURCE_ROWS)}, set[str]()
    else:
        first = {f"{FIRST}-{number}" for number in range(WRITE_ROWS)}
        second = {f"{SECOND}-{number}" for number in range(WRITE_ROWS)}
    allowed = fate(cell, is_saved=is_saved)
    is_there = bool(found.keys() & first) if allowed == EITHER else allowed == ALL
    wanted = (first if is_there else set()) | second
    lines = [
        (f"{len(wanted - found.keys())} missing", sorted(wanted - found.keys())),
        (f"{len(found.keys() - wanted)} too many", sorted(found.keys() - wanted)),
        ("there twice", sorted(value for value, count in found.items() if count > 1)),
    ]
    return [f"{what}: {', '.join(rows[:SHOWN_MAX])}" for what, rows in lines if rows]


def read_values(cluster: Any, topic: str, isolation: str = "read_committed") -> list[str]:
    """The values of a topic, as a plain consumer gets them."""
    found: list[str] = []
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with cluster.consumer(auto_offset_reset="earliest", isolation_level=isolation) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            found += [record.value.decode() for record in consumer.poll(500)]
    return found


def unsettled(cluster: Any, topic: str) -> str:
    """What is open in the topic: where readers of committed records stop before its end."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    ends = []
    for isolation in ("read_committed", "read_uncommitted"):
        with cluster.consumer(isolation_level=isolation) as consumer:
            ends.append(consumer.end_offsets(partitions))
    committed, uncommitted = ends
    return "; ".join(
        f"{tp} is stable to {committed[tp]} of {uncommitted[tp]}"
        for tp in partitions
        if committed[tp] != uncommitted[tp]
    )


def seconds_until_empty(look: Callable[[], str], within_s: float) -> tuple[float, str]:
    """How long ``look`` had something to tell, and what it still tells after ``within_s``."""
    begin = time.monotonic()
    while True:
        told, now = look(), time.monotonic()
        if not told or now > begin + within_s:
            return now - begin, told
        time.sleep(LOOK_S)


def judge(cluster: Any, cell: Cell, home: Path) -> list[str]:
    """What is wrong with a cell that is done; ``home`` is its directory."""
    if not (home / STRUCK).exists():
        return ["nobody was killed"]
    is_saved = (home / SAVED).exists()
    found = []
    if cell.kind == SAVE and must_return(cell) and not is_saved:
        found.append("the write failed although its driver lived")
    _, told = seconds_until_empty(lambda: unsettled(cluster, cell.topic), SETTLED_WITHIN_S)
    if told:
        found.append(f"not within {SETTLED_WITHIN_S:.0f} s: {told}")
    return found + wrong_rows(cell, read_values(cluster, cell.topic), is_saved=is_saved)
