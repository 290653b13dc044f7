"""``oncelog metrics``: the list of metrics, and files for Grafana and Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oncelog.actors.process.metrics import METRICS, Metric
from oncelog.api.cli.arguments import Arguments, Group, argument, flag, output_options
from oncelog.api.cli.terminal import CliError, say, show, table
from oncelog.api.monitoring import ALERTS_FILE, DASHBOARD_FILE, alerts_yaml, dashboard_json

HEADINGS: Final = ("metric", "kind", "unit", "tags", "description")


metrics: Final = Group("metrics")


@metrics.command("list")
@output_options
def list_metrics(args: Arguments) -> int:
    """List the metrics under their Prometheus names."""
    facts = [
        (name, kind_text(metric), metric.unit, ", ".join(metric.tags), metric.description)
        for metric in METRICS
        for name in metric.exported_names
    ]
    shown = [dict(zip(HEADINGS, row, strict=True)) for row in facts]
    show(args, shown, lambda: table(HEADINGS, facts))
    return 0


def kind_text(metric: Metric) -> str:
    """The kind of a metric, and whether it is omitted while 0."""
    return f"{metric.kind.value}{', if not 0' if metric.rests_at_zero else ''}"


@metrics.command(
    "dashboards", help=f"Write {DASHBOARD_FILE} for Grafana and {ALERTS_FILE} for Prometheus."
)
@argument("directory", "created if missing", metavar="DIR")
@flag("--overwrite", "replace existing files that differ")
def write_dashboards(args: Arguments) -> int:
    """Write all files, or none if one differs from its old."""
    directory = Path(args.directory)
    files = {DASHBOARD_FILE: dashboard_json(), ALERTS_FILE: alerts_yaml()}
    try:
        there = {name: _read(directory / name) for name in files}
        differing = [name for name, text in files.items() if there[name] not in (None, text)]
        if differing and not args.overwrite:
            raise CliError(
                f"{directory} has {' and '.join(differing)} with other content",
                "give --overwrite to replace it, or another directory",
            )
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            if there[name] == text:
                say(f"{directory / name} exists already")
            else:
                (directory / name).write_text(text, encoding="utf-8")
                say(f"wrote {directory / name}")
    except OSError as error:
        raise CliError(
            f"cannot write to {directory}: {error}", "give a writable directory"
        ) from error
    return 0


def _read(path: Path) -> str | None:
    """The content of a file, or ``None`` if there is none."""
    if not path.exists():
        return None
    return path.read_bytes().decode("utf-8", "replace")
