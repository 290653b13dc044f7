"""The result of a demo: one line that says whether every flight came through exactly once."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result: ``flights_in`` from the CSV file, ``out`` from the log."""

    flights_in: int
    in_log: int
    out: int
    lost: int
    duplicated: int
    aborted_records: int
    faults: int
    are_figures_equal: bool

    @property
    def is_exactly_once(self) -> bool:
        """Whether every flight is there once and every number is right."""
        return (
            self.flights_in == self.in_log == self.out
            and self.lost == self.duplicated == 0
            and self.are_figures_equal
        )

    @property
    def line(self) -> str:
        """The result as one line."""
        verdict = "EXACTLY ONCE" if self.is_exactly_once else "NOT EXACTLY ONCE"
        return (
            f"{verdict}: {self.flights_in:,} in, {self.out:,} out, {self.lost:,} lost, "
            f"{self.duplicated:,} duplicated, {self.faults} faults"
        )


def write_json(path: Path, outcome: Outcome, *, seed: int, seconds: float) -> None:
    """Write the result as JSON."""
    figures = asdict(outcome)
    figures["in"] = figures.pop("flights_in")
    figures |= {"exactly_once": outcome.is_exactly_once, "seed": seed, "seconds": seconds}
    path.write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n", encoding="utf-8")
