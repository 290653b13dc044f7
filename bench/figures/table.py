"""Several rounds of one figure in short, and tables of them in Markdown. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

ABSENT: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Smallest, median and largest of some rounds."""

    minimum: float
    median: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Of at least one value."""
        return cls(minimum=min(values), median=statistics.median(values), maximum=max(values))

    def __str__(self) -> str:
        """Median first, since it is what counts."""
        if self.minimum == self.maximum:
            return rounded(self.median)
        return f"{rounded(self.median)} ({rounded(self.minimum)} to {rounded(self.maximum)})"


def rounded(value: float) -> str:
    """Three digits that count, more only before the point."""
    size = abs(value)
    digits = next((n for limit, n in ((100, 0), (10, 1), (1, 2)) if size >= limit), 3)
    return f"{value:,.{digits}f}"


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` (0 to 1) of the sorted values do not exceed: nearest rank."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def beyond(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Round by round, by how much a figure exceeds its base; rounds without both are left out."""
    return [value - other for value, other in zip(values, base, strict=False)]


def markdown(columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A table with a named column per cell, the first one for the names of the rows."""
    lines = [_line(columns), _line(["---", *("---:" for _ in columns[1:])])]
    lines += [_line([name, *cells]) for name, cells in rows.items()]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
