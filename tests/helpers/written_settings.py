"""Writes what follows from the declarations of settings: keywords for editors, and the page.

    ./run python tests/helpers/written_settings.py

``tests/arch/test_settings.py`` compares the files with what is written here.
"""

from __future__ import annotations

import ast
import builtins
import enum
import inspect
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from oncelog.actors.config import ClusterConfig, TopicConfig
from oncelog.api.config import ConsumerSettings, ProducerSettings, QueueSettings
from oncelog.api.processing.messages import ProcessConfig
from oncelog.ray_data.arguments import ReadArguments, WriteArguments
from oncelog.spark_bridge.read_options import READ_OPTIONS
from oncelog.spark_bridge.write_options import WRITE_OPTIONS
from oncelog.storage.settings import (
    REQUIRED,
    Checked,
    Choice,
    Either,
    EnumMember,
    Flag,
    Function,
    Nothing,
    Number,
    Objects,
    Rule,
    Setting,
    Several,
    Text,
    describe,
    settings_of,
)

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "./run python tests/helpers/written_settings.py"


# --- keywords ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Keywords:
    """A ``TypedDict`` with the settings of a dataclass; ``may_be_none`` adds ``None`` to each."""

    name: str
    kind: type[Any]
    doc: str
    may_be_none: bool = False


OPTION_FILES = {
    "actors/option_types.py": (
        Keywords(
            name="TopicOptions",
            kind=TopicConfig,
            doc="``TopicConfig`` as keywords; ``None`` stands for the default.",
            may_be_none=True,
        ),
        Keywords(name="ClusterOptions", kind=ClusterConfig, doc="``ClusterConfig`` as keywords."),
    ),
    "api/option_types.py": (
        Keywords(
            name="ProducerOptions", kind=ProducerSettings, doc="``ProducerSettings`` as keywords."
        ),
        Keywords(
            name="ConsumerOptions",
            kind=ConsumerSettings,
            doc="``ConsumerSettings`` as keywords; the isolation level may be text.",
        ),
        Keywords(name="QueueOptions", kind=QueueSettings, doc="``QueueSettings`` as keywords."),
    ),
}

OPTIONS_HEAD = f'''"""Settings as keywords, for editors and type checkers: made from ``config.py``.

Written by ``{COMMAND}``; change the declarations instead.
"""

from __future__ import annotations

'''


def option_types(written: tuple[Keywords, ...]) -> str:
    """The text of a file of ``TypedDict``s."""
    homes = homes_of_names(written[0].kind)
    classes, used = [], set()
    for keywords in written:
        lines = [f"class {keywords.name}(TypedDict, total=False):", f'    """{keywords.doc}"""', ""]
        for name in settings_of(keywords.kind):
            text = type_text(keywords.kind, name) + (" | None" if keywords.may_be_none else "")
            used |= {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
            lines.append(f"    {name}: {text}")
        classes.append("\n".join(lines) + "\n")
    used = {name for name in used if not hasattr(builtins, name)} | {"TypedDict"}
    return OPTIONS_HEAD + imports(used, homes) + "\n\n" + "\n\n".join(classes)


def type_text(kind: type[Any], name: str) -> str:
    """The type that a declaration has, as it is written there; an enumeration's values go too."""
    (written,) = [one.type for one in fields(kind) if one.name == name]
    declaration = ast.parse(str(written), mode="eval").body
    assert isinstance(declaration, ast.Subscript)
    assert isinstance(declaration.slice, ast.Tuple)
    text = ast.unparse(declaration.slice.elts[0]).replace("'", '"')
    meant = get_type_hints(kind)[name]
    if isinstance(meant, type) and issubclass(meant, enum.Enum):
        values = ", ".join(f'"{member.value}"' for member in meant)
        text += f" | Literal[{values}]"
    return text


def homes_of_names(kind: type[Any]) -> dict[str, str]:
    """Where a module has its names from: name → module."""
    module = sys.modules[kind.__module__]
    homes = {"TypedDict": "typing", "Literal": "typing"}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom):
            homes |= {alias.name: str(node.module) for alias in node.names}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            homes[node.targets[0].id] = module.__name__
    return homes


def imports(names: set[str], homes: dict[str, str]) -> str:
    """Import statements as ruff sorts and breaks them."""
    by_module = defaultdict(list)
    for name in names:
        by_module[homes[name]].append(name)
    groups: tuple[list[str], list[str]] = ([], [])
    for module, found in sorted(by_module.items()):
        names_in_order = sorted(found, key=str.casefold)
        line = f"from {module} import {', '.join(names_in_order)}\n"
        if len(line) > 101:
            lines = "".join(f"    {name},\n" for name in names_in_order)
            line = f"from {module} import (\n{lines})\n"
        groups[module.startswith("oncelog")].append(line)
    return "\n".join("".join(group) for group in groups if group)


# --- the page ---------------------------------------------------------------------------------

PAGE = "docs/SETTINGS.md"
NAMED_NUMBERS = {2**31 - 1: "2^31 - 1", 2**40: "2^40", 2**63 - 1: "2^63 - 1"}


@dataclass(frozen=True, kw_only=True)
class Section:
    """A table of settings; ``aliases`` are further names: name → the setting that it is."""

    title: str
    text: str
    settings: tuple[Setting, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    is_text: bool = False


SECTIONS = (
    Section(
        title="Cluster",
        text="`oncelog.init(NAME=VALUE)`, or `oncelog start --config NAME=VALUE`. A running "
        "cluster keeps its settings: leave them out to join it; `init` refuses different ones.",
        settings=describe(ClusterConfig),
    ),
    Section(
        title="Topic",
        text='`cluster.admin().create_topic("t", NAME=VALUE)`, or '
        "`oncelog topics create t --config NAME=VALUE`. To change one: `alter_topic`, or "
        "`oncelog topics alter`. To return to the default: `NAME=None`, or `--reset NAME`.",
        settings=describe(TopicConfig),
    ),
    Section(
        title="Producer",
        text="`cluster.producer(NAME=VALUE)`, and `async_producer`.",
        settings=describe(ProducerSettings),
    ),
    Section(
        title="Consumer",
        text="`cluster.consumer(NAME=VALUE)`, and `async_consumer`.",
        settings=describe(ConsumerSettings),
    ),
    Section(
        title="Queue",
        text="`cluster.queue(TOPICS, NAME=VALUE)`, and `async_queue`.",
        settings=describe(QueueSettings),
    ),
    Section(
        title="Process", text="`cluster.process(NAME=VALUE)`.", settings=describe(ProcessConfig)
    ),
    Section(
        title="Spark read",
        text='`spark.read.format("oncelog").option("NAME", VALUE)`, and `spark.readStream`.',
        settings=READ_OPTIONS.accepted,
        aliases=READ_OPTIONS.aliases,
        is_text=True,
    ),
    Section(
        title="Spark write",
        text='`frame.write.format("oncelog").option("NAME", VALUE)`, and `frame.writeStream`. '
        "Options that begin with `kafka.` are settings of the producer in each task.",
        settings=WRITE_OPTIONS.accepted,
        aliases=WRITE_OPTIONS.aliases,
        is_text=True,
    ),
    Section(
        title="Ray Data read",
        text="`oncelog.ray_data.read(NAME=VALUE)`. It also takes arguments of Ray Data, such as "
        "`concurrency`.",
        settings=describe(ReadArguments),
    ),
    Section(
        title="Ray Data write",
        text="`oncelog.ray_data.write(dataset, NAME=VALUE)`, likewise.",
        settings=describe(WriteArguments),
    ),
)

PAGE_HEAD = f"""# Settings

Where Kafka has a setting, it has Kafka's name here, with underscores in Python. A *number* is an
integer, *ms* are milliseconds, and limits are inclusive. An empty default means that nothing is
set. An unknown name or a value that is not allowed is refused at once, and the error says what is
allowed.

A table begins with how to give its settings, where `NAME=VALUE` is for example `linger_ms=20`.

This page is generated from the declarations in the code. To change it, change those and run
`{COMMAND}`.
"""


def page() -> str:
    """The whole page."""
    return PAGE_HEAD + "".join(map(section_text, SECTIONS))


def section_text(section: Section) -> str:
    """A heading, how settings are given, and a row for each."""
    rows = [row(setting, is_text=section.is_text) for setting in section.settings]
    rows += [f"| `{alias}` | | | | As `{name}`. |" for alias, name in section.aliases.items()]
    head = "| name | type | allowed | default | what it does |\n|---|---|---|---|---|\n"
    return f"\n## {section.title}\n\n{section.text}\n\n{head}" + "\n".join(rows) + "\n"


def row(setting: Setting, *, is_text: bool) -> str:
    """A setting as a row of its table."""
    kind = kind_text(setting.rule) + (f", {setting.unit}" if setting.unit else "")
    cells = (f"`{setting.name}`", kind, allowed_text(setting.rule), default_text(setting.default))
    allowed, default = cells[2:]
    if is_text:
        allowed, default = (
            cell.replace("`True`", "`true`").replace("`False`", "`false`")
            for cell in (allowed, default)
        )
    return f"| {cells[0]} | {kind} | {allowed} | {default} | {setting.sentence} |"


def kind_text(rule: Rule) -> str:
    """What kind of value a setting has."""
    match rule:
        case Number(kind=kind):
            return "number" if kind is int else "fraction"
        case Either(rules=rules):
            return " or ".join(kind_text(one) for one in rules if not isinstance(one, Nothing))
        case Checked(kind=kind):
            return kind
    return KINDS[type(rule)]


KINDS: dict[type, str] = {
    Text: "text",
    Flag: "flag",
    Choice: "choice",
    EnumMember: "choice",
    Several: "choices",
    Objects: "list",
    Function: "function",
}


def allowed_text(rule: Rule) -> str:
    """What a setting may be, as short as a cell should be."""
    match rule:
        case Number(low=low, high=None):
            return f"{number_text(low)} and more"
        case Number(low=low, high=high):
            return f"{number_text(low)} to {number_text(high)}"
        case Text(bytes_max=None):
            return "not empty"
        case Text(bytes_max=bytes_max):
            return f"1 to {bytes_max:,} bytes"
        case Choice(choices=choices) | EnumMember(choices=choices):
            return ", ".join(f"`{choice}`" for choice in choices)
        case Several(choices=choices):
            return "one or several of " + ", ".join(f"`{choice}`" for choice in choices)
        case Flag():
            return "`True`, `False`"
        case Either(rules=rules):
            return ", or ".join(map(allowed_text, rules))
        case Nothing():
            return "`None`"
    return rule.allowed


def number_text(number: Any) -> str:
    """A number with commas, or as a power of 2."""
    return NAMED_NUMBERS.get(number) or f"{number:,}"


def default_text(default: Any) -> str:
    """A default as a cell; empty where there is none."""
    if default is REQUIRED:
        return "*must be given*"
    if isinstance(default, enum.Enum):
        return f"`{default.value}`"
    if isinstance(default, tuple):
        return ", ".join(map(default_text, default))
    if isinstance(default, int | float) and not isinstance(default, bool):
        return number_text(default)
    return "" if default is None or default == {} else f"`{default}`"


# --- all of them ------------------------------------------------------------------------------


def written_files() -> dict[str, str]:
    """Each file that is written, by its path, with its text."""
    options = {path: option_types(written) for path, written in OPTION_FILES.items()}
    return options | {PAGE: page()}


def main() -> None:
    """Write the files anew, and tell which have changed."""
    for path, text in written_files().items():
        file = ROOT / path
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
