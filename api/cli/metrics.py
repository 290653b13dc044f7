"""``oncelog metrics``: the list of metrics, and files for Grafana and Prometheus."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Final

from oncelog.actors.process.metrics import METRICS, Metric
from oncelog.api.cli.terminal import (
    CliError,
    Commands,
    add_actions,
    add_command,
    add_json,
    say,
    table,
)
from oncelog.api.monitoring import ALERTS_FILE, DASHBOARD_FILE, alerts_yaml, dashboard_json

HEADINGS: Final = ("metric", "kind", "unit", "tags", "description")


def add_commands(commands: Commands) -> None:
    """Add ``oncelog metrics`` and its actions."""
    actions = add_actions(
        commands, "metrics", "List the metrics, or write a dashboard and alert rules for them."
    )
    listing = add_command(
        actions, "list", "List the metrics under their Prometheus names.", list_metrics
    )
    add_json(listing)
    dashboards = add_command(
        actions,
        "dashboards",
        f"Write {DASHBOARD_FILE} for Grafana and {ALERTS_FILE} for Prometheus.",
        write_dashboards,
    )
    dashboards.add_argument("directory", metavar="DIR", help="created if missing")
    dashboards.add_argument(
        "--overwrite", action="store_true", help="replace existing files that differ"
    )


def list_metrics(args: argparse.Namespace) -> int:
    """``oncelog metrics list``: one line per exported name."""
    facts = [
        (name, kind_text(metric), metric.unit, ", ".join(metric.tags), metric.description)
        for metric in METRICS
        for name in metric.exported_names
    ]
    if args.json:
        say(json.dumps([dict(zip(HEADINGS, row, strict=True)) for row in facts], indent=2))
    else:
        say(table(HEADINGS, facts))
    return 0


def kind_text(metric: Metric) -> str:
    """The kind of a metric, and whether it is omitted while 0."""
    return f"{metric.kind.value}{', if not 0' if metric.rests_at_zero else ''}"


def write_dashboards(args: argparse.Namespace) -> int:
    """``oncelog metrics dashboards``: write all files, or none if one differs from its old."""
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
