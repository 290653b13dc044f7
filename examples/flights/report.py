"""The demo's output: a progress display while it works, then a table and a chart."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from oncelog.examples.flights.figures import CLASSES, Figures
from oncelog.examples.flights.stream_windows import Window

if TYPE_CHECKING:
    from oncelog.examples.flights.faults import Kill

COLOURS: Final = {
    "on time": "#4c9f70",
    "late": "#f2c14e",
    "very late": "#d1495b",
    "not arrived": "#8d99ae",
}


class Display:
    """A progress bar with records per second, lag and batches, and a line for each kill."""

    def __init__(self, console: Console, total: int, *, what: str) -> None:
        self._console = console
        self._started = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:>8,.0f} records/s  lag {task.fields[lag]:>7,}"),
            TextColumn("{task.fields[batches]}"),
            TimeElapsedColumn(),
            console=console,
            # Without a terminal there is nothing to redraw: lines are enough.
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(what, total=total, rate=0.0, lag=total, batches="")

    def update(self, *, done: int, lag: int, batches: int | None = None) -> None:
        """Show how many records are committed and how many wait, and the batches if known."""
        elapsed = max(time.monotonic() - self._started, 1e-9)
        shown = "" if batches is None else f"batches {batches:>4,}"
        self._progress.update(
            self._task, completed=done, rate=done / elapsed, lag=lag, batches=shown
        )

    def killed(self, kill: Kill) -> None:
        """Print a kill when it happens."""
        self._progress.console.print(
            f"  [red]kill -9[/red] {kill.role} [bold]{kill.name}[/bold] (process {kill.process_id})"
        )

    def __enter__(self) -> Display:
        """Start to draw."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop drawing, and leave the last state on the screen."""
        self._progress.stop()


def show_table(console: Console, figures: Figures, expected: Figures) -> None:
    """Print the results per origin or carrier, and whether each equals the expected one."""
    table = Table("", *CLASSES, "bad weather", "minutes late", "as in the CSV file")
    for name, line in figures.items():
        table.add_row(
            name,
            *(f"{line.by_class[delay_class]:,}" for delay_class in CLASSES),
            f"{line.bad_weather:,}",
            f"{line.delay_minutes:,}",
            "[green]yes[/green]" if expected.get(name) == line else "[red]no[/red]",
        )
    console.print(table)


def show_windows(console: Console, found: list[Window], expected: list[Window]) -> None:
    """Print the windows summed per origin, and whether all of them are as expected."""
    table = Table(
        "", "windows", "flights", "not arrived", "minutes late", "each as in the CSV file"
    )
    for origin in sorted({window.origin for window in expected}):
        windows, right = (
            sorted((one for one in some if one.origin == origin), key=lambda one: one.day)
            for some in (found, expected)
        )
        table.add_row(
            origin,
            f"{len(windows):,}",
            f"{sum(one.flights for one in windows):,}",
            f"{sum(one.not_arrived for one in windows):,}",
            f"{sum(one.minutes_late for one in windows):,}",
            "[green]yes[/green]" if windows == right else "[red]no[/red]",
        )
    console.print(table)


def draw_chart(path: Path, carriers: Figures) -> None:
    """Write a PNG: the share of each delay class per carrier."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = sorted(carriers, key=lambda name: -carriers[name].flights)
    figure, axes = plt.subplots(figsize=(10, 5), layout="constrained")
    bottom = [0.0] * len(names)
    for delay_class in CLASSES:
        shares = [100 * carriers[n].by_class[delay_class] / carriers[n].flights for n in names]
        axes.bar(names, shares, bottom=bottom, label=delay_class, color=COLOURS[delay_class])
        bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
    axes.set(
        title="Flights from New York City in 2013, by delay on arrival",
        xlabel="carrier, most flights first",
        ylabel="share of flights (%)",
    )
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)
