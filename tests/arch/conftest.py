"""The project's own files, read once, for the tests that check how it is built."""

from __future__ import annotations

import ast
import functools
import gc
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PACKAGES = ("storage", "actors", "api", "ray_data", "spark_bridge", "examples")
NOT_OURS = re.compile(r"(\.(?!ci\b|gitignore).*|__pycache__|build|dist|.*\.egg-info)")
"""Names left out where there is no git to ask."""


DEFINITION = re.compile(
    r"( *)(?:cpdef|cdef|def)\b(?!.*\b(?:struct|enum|class|extern)\b)[^=]*?(\w+)\("
)
"""A function of Cython, without a type that is called in an assignment."""


@dataclass(frozen=True)
class Source:
    """One Python file: ``path`` is relative to the root, with slashes."""

    path: str
    text: str = field(repr=False)

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @functools.cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree; each file is walked once."""
        return tuple(ast.walk(self.tree))

    @property
    def is_product(self) -> bool:
        return self.path.split("/")[0] in PACKAGES or self.path == "__init__.py"

    @functools.cached_property
    def _imports(self) -> tuple[tuple[int, str], ...]:
        return tuple(self._find_imports())

    @functools.cached_property
    def _uses(self) -> tuple[tuple[int, str], ...]:
        return tuple(self._find_uses())

    def imports(self) -> tuple[tuple[int, str], ...]:
        """(line, dotted name) of every import; ``from a import b`` gives ``a`` and ``a.b``."""
        return self._imports

    def uses(self) -> tuple[tuple[int, str], ...]:
        """(line, dotted name) of what the file uses of its imports and of the builtins."""
        return self._uses

    def _find_imports(self) -> Iterator[tuple[int, str]]:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                yield node.lineno, module
                for alias in node.names:
                    yield node.lineno, f"{module}.{alias.name}"

    def _find_uses(self) -> Iterator[tuple[int, str]]:
        aliases: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.split(".")[0]
                    aliases[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        for node in self.nodes:
            name = _dotted(node, aliases)
            if name:
                yield node.lineno, name


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, aliases)
        return f"{base}.{node.attr}" if base else ""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return aliases.get(node.id, f"builtins.{node.id}")
    return ""


@dataclass(frozen=True)
class CompiledSource:
    """One Cython file; nothing parses these, so all is told by their text."""

    path: str
    text: str = field(repr=False)

    def functions(self) -> Iterator[tuple[int, str, str]]:
        """Line, name and text of each function: up to what is indented no deeper."""
        lines = self.text.splitlines()
        for number, line in enumerate(lines):
            found = DEFINITION.match(line)
            if found is None:
                continue
            depth, end = len(found[1]), number + 1
            # The end of a signature over several lines is no deeper either.
            while end < len(lines) and (
                not lines[end].strip()
                or len(lines[end]) - len(lines[end].lstrip()) > depth
                or lines[end].lstrip().startswith(")")
            ):
                end += 1
            yield number + 1, found[2], "\n".join(lines[number:end]).rstrip()


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def project_files(root: Path) -> list[str]:
    """Every file of the project that git would keep, links left out; sorted."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            check=True,
        ).stdout.decode()
        names = set(listed.split("\0")) - {""}
    except (OSError, subprocess.CalledProcessError):
        names = {
            path.relative_to(root).as_posix()
            for path in root.rglob("*")
            if not any(NOT_OURS.fullmatch(part) for part in path.relative_to(root).parts)
        }
    return sorted(
        name for name in names if (root / name).is_file() and not (root / name).is_symlink()
    )


@pytest.fixture(scope="session")
def sources(root: Path, project_files: list[str]) -> list[Source]:
    """Every Python file of the project, parsed.

    Two million nodes live on until the end: later passes of the collector leave them out.
    """
    found = [
        Source(name, (root / name).read_text(encoding="utf-8"))
        for name in project_files
        if name.endswith(".py")
    ]
    gc.disable()
    nodes = sum(len(source.nodes) for source in found)
    gc.freeze()
    gc.enable()
    assert nodes
    return found


@pytest.fixture(scope="session")
def product(sources: list[Source]) -> list[Source]:
    """Every Python file that is installed."""
    return [source for source in sources if source.is_product]


@pytest.fixture(scope="session")
def compiled(root: Path, project_files: list[str]) -> list[CompiledSource]:
    """Every Cython file of the project."""
    return [
        CompiledSource(name, (root / name).read_text(encoding="utf-8"))
        for name in project_files
        if name.endswith((".pyx", ".pxi"))
    ]
