"""Writes what the pages show of the code: commands, metrics, errors; and copies the sources.

``./run docs`` calls it with the product's own Python and the directory for the sources, which
mkdocstrings reads; it is emptied first. A table stands in its page, between
``<!-- generated: NAME -->`` and ``<!-- end -->``. ``tests/arch/test_site.py`` compares it.
"""

from __future__ import annotations

import argparse
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from oncelog.actors.process.metrics import METRICS
from oncelog.api.cli.main import build_parser
from oncelog.api.cli.metrics import kind_text
from oncelog.api.consuming.metrics import METRICS as CONSUMER_METRICS
from oncelog.api.monitoring import ALERTS
from oncelog.api.producing.metrics import METRICS as PRODUCER_METRICS
from oncelog.storage import exceptions
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError

ROOT: Final = Path(__file__).resolve().parents[2]
MARK: Final = re.compile(r"(<!-- generated: (\w+) -->)\n.*?<!-- end -->", re.DOTALL)
PACKAGES: Final = ("storage", "actors", "api", "ray_data", "spark_bridge")


# --- Markdown ---------------------------------------------------------------------------------


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: unindented, with code in single backticks."""
    return inspect.cleandoc(docstring or "").replace("``", "`")


def joined(*parts: str) -> str:
    """Parts with empty lines between."""
    return "\n\n".join(parts)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar in a cell is escaped."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


# --- commands ---------------------------------------------------------------------------------


def commands() -> str:
    """Every command of ``oncelog`` with its arguments."""
    return joined(*commands_of(build_parser(), depth=1))


def commands_of(parser: argparse.ArgumentParser, depth: int) -> Iterator[str]:
    """The parts of the page: a parser's own, then those of its commands."""
    groups = [
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    ]
    if depth > 1:
        yield f"{'#' * min(depth, 4)} `{parser.prog}`"
        yield (parser.description or "").replace("<", "&lt;")
    if not groups:
        usage = textwrap.fill(
            " ".join(parser.format_usage().removeprefix("usage: ").split()),
            width=80,
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
        yield f"```\n{usage}\n```"
    rows = [
        (f"`{argument_text(action)}`", (action.help or "").replace("%%", "%"))
        for action in parser._actions
        if action not in groups and not isinstance(action, argparse._HelpAction)
    ]
    if rows and depth > 1:
        yield table(("argument", "meaning"), rows)
    for group in groups:
        for command in group.choices.values():
            yield from commands_of(command, depth + 1)


def argument_text(action: argparse.Action) -> str:
    """An argument as help shows it."""
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if not action.option_strings:
        return value
    name = action.option_strings[-1]
    return name if action.nargs == 0 else f"{name} {value}"


# --- metrics ----------------------------------------------------------------------------------


def metrics() -> str:
    """Every metric and every alert."""
    known = [
        (
            "<br>".join(f"`{name}`" for name in metric.exported_names),
            kind_text(metric),
            metric.unit,
            ", ".join(metric.tags),
            metric.description,
        )
        for metric in METRICS
    ]
    alerts = [
        (
            f"`{alert.name}`",
            alert.severity,
            alert.lasts,
            re.sub(r"{{ \$(?:labels\.)?(\w+) }}", r"*\1*", alert.summary),
            alert.advice,
        )
        for alert in ALERTS
    ]
    return joined(
        "## Metrics",
        table(("metric", "kind", "unit", "tags", "meaning"), known),
        "## Alerts",
        table(("alert", "severity", "lasts", "what is wrong", "what to do"), alerts),
    )


def consumer_metrics() -> str:
    """Every name in ``Consumer.metrics()``."""
    return _meanings(CONSUMER_METRICS)


def producer_metrics() -> str:
    """Every name in ``Producer.metrics()``."""
    return _meanings(PRODUCER_METRICS)


def _meanings(names: Mapping[str, str]) -> str:
    return table(("name", "meaning"), [(f"`{name}`", text) for name, text in names.items()])


# --- errors -----------------------------------------------------------------------------------


def errors() -> str:
    """Every error code with its class, number and advice."""
    by_code: dict[ErrorCode, list[type[OncelogError]]] = {}
    for kind in vars(exceptions).values():
        if isinstance(kind, type) and issubclass(kind, OncelogError) and kind is not OncelogError:
            by_code.setdefault(kind.code, []).append(kind)
    rows = [
        (
            f"`oncelog.{kind.__name__}`<br>`{code.name}`, {int(code)}",
            code.error_class.value,
            " ".join(prose(kind.__doc__).split()),
        )
        for code in ErrorCode
        for kind in by_code.get(code, ())
    ]
    return table(("exception, code and number", "class", "meaning"), rows)


# --- what is written --------------------------------------------------------------------------

TABLES: Final[dict[str, Callable[[], str]]] = {
    "consumer": consumer_metrics,
    "producer": producer_metrics,
    "commands": commands,
    "metrics": metrics,
    "errors": errors,
}


def filled(page: str) -> str:
    """The text of a page with its tables as the code has them now."""
    return MARK.sub(lambda found: joined(found[1], TABLES[found[2]](), "<!-- end -->"), page)


def main(directory: Path) -> None:
    """Write the tables, and copy the sources as the package that they are when installed."""
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    shutil.rmtree(directory, ignore_errors=True)
    package = directory / "source" / "oncelog"
    package.mkdir(parents=True)
    shutil.copy(ROOT / "__init__.py", package)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, package / name, ignore=without_python)


def without_python(directory: str, names: list[str]) -> list[str]:
    """What is not copied: all but packages and their Python files."""
    return [
        name
        for name in names
        if name == "__pycache__"
        or not (name.endswith((".py", ".pyi")) or (Path(directory) / name).is_dir())
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
