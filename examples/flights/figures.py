"""The expected results of the demo, computed directly from the CSV file, without the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from oncelog.examples.flights.delays import classify

CLASSES: Final = ("on time", "late", "very late", "not arrived")


@dataclass(slots=True)
class Line:
    """One carrier or origin: flights by delay class, in bad weather, and delay minutes."""

    by_class: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0))
    bad_weather: int = 0
    delay_minutes: int = 0

    @property
    def flights(self) -> int:
        """The number of flights."""
        return sum(self.by_class.values())


Figures = dict[str, Line]


def expected_figures(flights: pa.Table, weather: pa.Table) -> tuple[Figures, Figures]:
    """Compute the results per carrier and per origin, without the log."""
    classified = classify(flights, weather)
    figures = []
    for name in ("carrier", "origin"):
        grouped = classified.group_by([name, "delay_class", "weather"]).aggregate(
            [("id", "count"), ("arr_delay", "sum")]
        )
        figures.append(
            collect(
                (
                    row[name],
                    row["delay_class"],
                    row["weather"],
                    row["id_count"],
                    row["arr_delay_sum"],
                )
                for row in grouped.to_pylist()
            )
        )
    return figures[0], figures[1]


def collect(rows: Iterable[tuple[Any, ...]]) -> Figures:
    """Aggregate rows of (name, class, weather, flights, delay minutes or none)."""
    figures: Figures = {}
    for name, delay_class, weather, count, minutes in rows:
        line = figures.setdefault(name, Line())
        line.by_class[delay_class] += count
        line.delay_minutes += minutes or 0
        if weather == "bad":
            line.bad_weather += count
    return dict(sorted(figures.items()))
