"""The rows of ``bench/kafka.py``: what each is called and which cluster it is taken on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PARTITIONS: Final = (6, 50, 100)
SIZES: Final = (100, 1_000)
PRODUCERS: Final = 16

START: Final = "start"
LOAD: Final = "load"

BROKERS: Final = (1, 3)
"""How many there may be; memory, idling and the start are those of one only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure; all of a group are taken on one cluster, in this order."""

    name: str
    title: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured, and how long servers warm up before: a JVM needs many seconds."""

    warm_up_s: float
    window_s: float
    settle_s: float
    load_s: float
    transactions: int
    records: int
    bytes: int


SCALES: Final = {
    "small": Scale(
        warm_up_s=3,
        window_s=3,
        settle_s=3,
        load_s=3,
        transactions=10,
        records=50,
        bytes=10_000_000,
    ),
    "full": Scale(
        warm_up_s=20,
        window_s=20,
        settle_s=15,
        load_s=15,
        transactions=60,
        records=500,
        bytes=200_000_000,
    ),
}


def partitions_group(count: int) -> str:
    """The cluster with one topic of so many partitions."""
    return f"partitions-{count}"


def _rows() -> tuple[Row, ...]:
    idle = partitions_group(0)
    rows = [
        Row(name="memory-0", title="memory, no topic, MB", group=idle),
        Row(name="idle-0", title="idle cores, no topic", group=idle),
    ]
    for count in PARTITIONS:
        group = partitions_group(count)
        rows += [
            Row(name=f"create-{count}", title=f"creating {count} partitions, s", group=group),
            Row(name=f"memory-{count}", title=f"memory, {count} partitions, MB", group=group),
            Row(name=f"idle-{count}", title=f"idle cores, {count} partitions", group=group),
        ]
    rows += [
        Row(name="start", title="start, empty, to first record, s", group=START),
        Row(
            name="transactions",
            title=f"{PRODUCERS} producers, 1 record a transaction, txn/s",
            group=LOAD,
        ),
        Row(name="paced", title="one transaction now and then, p50, ms", group=LOAD),
        Row(name="latency", title="one record, produced to polled, p50, ms", group=LOAD),
    ]
    for size in SIZES:
        what = "100 B" if size < 1_000 else "1 KB"
        rows += [
            Row(name=f"{name}-{size}", title=f"{title}, {what}, thousand/s", group=LOAD)
            for name, title in (
                ("send", "send, record by record"),
                ("consume", "poll, record by record"),
                ("send-arrow", "send a table (send_arrow)"),
                ("poll-arrow", "poll into a table (poll_arrow)"),
            )
        ]
    return tuple(rows)


ROWS: Final = _rows()
BEYOND: Final = {
    f"idle-{count}": f"idle cores beyond empty Ray, {count or 'no'} partitions"
    for count in (0, *PARTITIONS)
}


def chosen(
    names: Sequence[str], partitions_max: int | None = None, *, brokers: int = 1
) -> tuple[Row, ...]:
    """The rows of these names, or whose names begin with one and a dash; all if none is given.

    With several brokers they are those of the load. ValueError names one that fits no row, or
    none that is taken with so many.
    """
    rows = ROWS if brokers == 1 else tuple(row for row in ROWS if row.group == LOAD)
    for name in names:
        if not any(_fits(row, name) for row in ROWS):
            known = ", ".join(row.name for row in ROWS)
            raise ValueError(f"there is no row {name!r}, only {known}")
        if not any(_fits(row, name) for row in rows):
            known = ", ".join(row.name for row in rows)
            raise ValueError(f"row {name!r} is taken with one broker; with {brokers}: {known}")
    found = [row for row in rows if not names or any(_fits(row, name) for name in names)]
    return tuple(row for row in found if _count_of(row) <= (partitions_max or PARTITIONS[-1]))


def _fits(row: Row, name: str) -> bool:
    return row.name == name or row.name.startswith(f"{name}-")


def _count_of(row: Row) -> int:
    head, _, count = row.group.partition("-")
    return int(count) if head == "partitions" else 0
