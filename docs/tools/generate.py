"""Writes what the pages show of the code: commands, metrics, errors; and copies the sources.

``./run docs`` calls it with the product's own Python and the directory for the sources, which
mkdocstrings reads; it is emptied first. A table stands in its page, between
``<!-- generated: NAME -->`` and ``<!-- end -->``. ``tests/arch/test_site.py`` compares it.
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from oncelog.actors.gateway.messages.apis import APIS, ApiKey
from oncelog.actors.gateway.versions import NOT_SERVED, is_readable, offered
from oncelog.actors.process.metrics import METRICS
from oncelog.api.cli.main import PROGRAM, program
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
    return joined(*commands_of(program, click.Context(program, info_name=PROGRAM), depth=1))


def commands_of(command: click.Command, ctx: click.Context, depth: int) -> Iterator[str]:
    """The parts of the page: a command's own, then those of the commands below it."""
    if depth > 1:
        yield f"{'#' * min(depth, 4)} `{ctx.command_path}`"
        yield prose(command.help).replace("<", "&lt;")
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from commands_of(below, click.Context(below, ctx, info_name=name), depth + 1)
        return
    words = [each for each in command.collect_usage_pieces(ctx) if each != command.options_metavar]
    yield f"```\n{' '.join([ctx.command_path, '[OPTIONS]', *words])}\n```"
    rows = [
        (f"`{argument_text(parameter, ctx)}`", text)
        for parameter in command.params
        if (text := getattr(parameter, "text", "") or getattr(parameter, "help", "") or "")
    ]
    if rows:
        yield table(("argument", "meaning"), rows)


def argument_text(parameter: click.Parameter, ctx: click.Context) -> str:
    """An argument or option as help shows it."""
    record = parameter.get_help_record(ctx)
    return record[0] if record else parameter.make_metavar(ctx)


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


# --- Kafka's protocol -------------------------------------------------------------------------


def kafka_apis() -> str:
    """Every API of Kafka's that is served, with the versions that are read of it."""
    told = offered(tuple(ApiKey))
    read = {
        APIS[key].name: [one for one in versions if is_readable(told, key, one)]
        for key, versions in told.items()
    }
    return table(("API", "versions"), [(f"`{name}`", span(read[name])) for name in sorted(read)])


def span(versions: Sequence[int]) -> str:
    """The first and last of consecutive versions."""
    return str(versions[0]) if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"


def kafka_missing() -> str:
    """Every API of Kafka's that is not served, by what is said instead."""
    reasons: dict[str, list[str]] = {}
    for name, reason in NOT_SERVED.items():
        reasons.setdefault(reason, []).append(f"`{name}`")
    rows = [(", ".join(names), reason) for reason, names in reasons.items()]
    return table(("not served", "why, or what there is"), rows)


# --- what is written --------------------------------------------------------------------------

TABLES: Final[dict[str, Callable[[], str]]] = {
    "consumer": consumer_metrics,
    "producer": producer_metrics,
    "commands": commands,
    "metrics": metrics,
    "errors": errors,
    "kafka_apis": kafka_apis,
    "kafka_missing": kafka_missing,
}

FOLDERS: Final = ("guides", "reference")
"""Of the pages that have tables."""


def filled(page: str) -> str:
    """The text of a page with its tables as the code has them now."""
    return MARK.sub(lambda found: joined(found[1], TABLES[found[2]](), "<!-- end -->"), page)


def main(directory: Path) -> None:
    """Write the tables, and copy the sources as the package that they are when installed."""
    for folder in FOLDERS:
        for page in (ROOT / "docs" / folder).glob("*.md"):
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
