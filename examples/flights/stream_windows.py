"""The windows of the streaming demo: an airport's day, from the CSV file and from the log."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

DAY_MS: Final = 86_400_000
FLIGHT: Final = "origin string, scheduled long, arr_delay int"
"""The fields of a flight that the stream needs, as Spark types; ``scheduled`` in ms, UTC."""

CLOSING: Final = "closing"
"""The origin in the closing event; its own window never completes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The flights that an airport had scheduled for one day; ``day`` as 2013-12-31."""

    origin: str
    day: str
    flights: int
    not_arrived: int
    minutes_late: int
    """Minutes on arrival; early flights count as 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The found windows compared with the expected ones, in flights."""

    out: int
    lost: int
    duplicated: int
    are_equal: bool
    """Whether each expected window is there once, with the right numbers, and no other."""


def arrivals(flights: pa.Table) -> pa.Table:
    """The flights by scheduled departure, which column ``scheduled`` has in ms."""
    columns = (flights[name].to_pylist() for name in ("year", "month", "day", "sched_dep_time"))
    scheduled = [
        int(
            datetime.datetime(
                year, month, day, clock // 100, clock % 100, tzinfo=datetime.timezone.utc
            ).timestamp()
        )
        * 1_000
        for year, month, day, clock in zip(*columns, strict=True)
    ]
    chosen = flights.select(["carrier", "flight", "origin", "dest", "arr_delay"])
    chosen = chosen.append_column("scheduled", pa.array(scheduled, pa.int64()))
    return chosen.sort_by([("scheduled", "ascending")])


def expected_windows(flights: pa.Table) -> list[Window]:
    """The windows of ``arrivals``, computed without the log and without Spark."""
    late = pc.max_element_wise(flights["arr_delay"], 0, skip_nulls=True)
    day = pc.strftime(pc.cast(flights["scheduled"], pa.timestamp("ms", "UTC")), "%Y-%m-%d")
    rows = pa.table(
        {
            "origin": flights["origin"],
            "day": day,
            "arr_delay": flights["arr_delay"],
            "late": late,
        }
    )
    grouped = rows.group_by(["origin", "day"]).aggregate(
        [("late", "count"), ("arr_delay", "count"), ("late", "sum")]
    )
    return [
        Window(
            origin=row["origin"],
            day=row["day"],
            flights=row["late_count"],
            not_arrived=row["late_count"] - row["arr_delay_count"],
            minutes_late=row["late_sum"],
        )
        for row in grouped.to_pylist()
    ]


def parse_windows(values: Iterable[bytes]) -> list[Window]:
    """Parse the windows that the stream wrote, one JSON object each."""
    return [Window(**json.loads(value)) for value in values]


def compare(found: list[Window], expected: list[Window]) -> Comparison:
    """Count the flights of windows that are missing, repeated or wrong."""
    counts = {(window.origin, window.day): window.flights for window in expected}
    out = sum(window.flights for window in found)
    for window in found:
        key = (window.origin, window.day)
        counts[key] = counts.get(key, 0) - window.flights

    def in_order(windows: list[Window]) -> list[tuple[str, str, int, int, int]]:
        return sorted(
            (one.origin, one.day, one.flights, one.not_arrived, one.minutes_late) for one in windows
        )

    return Comparison(
        out=out,
        lost=sum(count for count in counts.values() if count > 0),
        duplicated=-sum(count for count in counts.values() if count < 0),
        are_equal=in_order(found) == in_order(expected),
    )
