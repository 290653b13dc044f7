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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from oncelog.actors.config import ClusterConfig, TopicConfig
from oncelog.api.config import ConsumerSettings, ProducerSettings
from oncelog.storage.settings import settings_of

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
    (field,) = [one for one in vars(kind)["__dataclass_fields__"].values() if one.name == name]
    declaration = ast.parse(field.type, mode="eval").body
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
        line = f"from {module} import {', '.join(sorted(found))}\n"
        if len(line) > 101:
            line = (
                f"from {module} import (\n" + "".join(f"    {n},\n" for n in sorted(found)) + ")\n"
            )
        groups[module.startswith("oncelog")].append(line)
    return "\n".join("".join(group) for group in groups if group)


# --- all of them ------------------------------------------------------------------------------


def written_files() -> dict[str, str]:
    """Each file that is written, by its path, with its text."""
    return {path: option_types(written) for path, written in OPTION_FILES.items()}


def main() -> None:
    """Write the files anew, and tell which have changed."""
    for path, text in written_files().items():
        file = ROOT / path
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
