"""Which tests a change touches: those that import what was changed, directly or through others.

    python tests/helpers/touched.py            # since the last commit
    python tests/helpers/touched.py main       # since a revision

An import inside a function counts, and so do those of the package's own root. Prints the paths of
test files, one a line. Tests of the project itself (``tests/arch``) look at every file, so they are
always among them; so is everything if what all tests use has changed, or nothing.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
ALWAYS: Final = "tests/arch"
FOR_ALL: Final = ("tests/conftest.py", "pyproject.toml", "setup.py", "requirements.lock", "run")
"""What every test depends on."""
ON_PATH: Final = (
    *("tests/helpers", "tests/sim", "tests/explore", "tests/fuzz"),
    "tests/interop/suites",
)
"""Where tests import from by bare names: ``pythonpath`` of ``pyproject.toml``."""
COMPILED: Final = (".pyx", ".pxi", ".pxd", ".h", ".c")


def git(*words: str) -> list[str]:
    """The lines that a git command prints."""
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def changed_since(revision: str) -> list[str]:
    """Paths of files that differ from ``revision``, new ones included."""
    return [
        *git("diff", "--name-only", revision),
        *git("ls-files", "--others", "--exclude-standard"),
    ]


def module_of(path: str) -> list[str]:
    """The names under which a file may be imported."""
    dotted = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    names = [f"oncelog.{dotted}" if dotted != "__init__" else "oncelog", dotted]
    inside = [folder for folder in ON_PATH if path.startswith(f"{folder}/")]
    return names + [dotted.removeprefix(folder.replace("/", ".") + ".") for folder in inside]


def imports_of(tree: ast.AST) -> set[str]:
    """Every module that a file may import: ``a`` and ``a.b`` for ``from a import b``."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(item.name for item in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{item.name}" for item in node.names)
            found.add(node.module)
    return found


def importers(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """For each file those that import it: paths, from the sources by path."""
    by_name = {name: path for path in sources for name in module_of(path)}
    found: dict[str, set[str]] = {path: set() for path in sources}
    for path, text in sources.items():
        for name in imports_of(ast.parse(text)):
            if name in by_name and by_name[name] != path:
                found[by_name[name]].add(path)
    return found


def reached(changed: Iterable[str], by: Mapping[str, set[str]]) -> set[str]:
    """``changed`` and everything that imports it, directly or through others."""
    left, found = list(changed), set(changed)
    while left:
        for importer in by.get(left.pop(), ()):
            if importer not in found:
                found.add(importer)
                left.append(importer)
    return found


def touched(changed: Iterable[str], sources: Mapping[str, str]) -> list[str]:
    """The test files that a change touches, sorted; ``["tests"]`` if it touches all, or is none."""
    changed = list(changed)
    if not changed or any(path in FOR_ALL or path.endswith(COMPILED) for path in changed):
        return ["tests"]
    folders = {str(Path(path).parent) for path in changed if path.endswith("conftest.py")}
    hit = reached([path for path in changed if path in sources], importers(sources))
    tests = {path for path in hit if Path(path).name.startswith("test_")}
    tests |= {
        path
        for path in sources
        if Path(path).name.startswith("test_")
        and any(path.startswith(f"{folder}/") for folder in folders)
    }
    return [ALWAYS, *sorted(path for path in tests if not path.startswith(f"{ALWAYS}/"))]


@cache
def project_sources() -> Mapping[str, str]:
    """The text of every Python file of the project, by path."""
    paths = {*git("ls-files", "*.py"), *git("ls-files", "--others", "--exclude-standard", "*.py")}
    return {path: (ROOT / path).read_text() for path in sorted(paths) if (ROOT / path).exists()}


if __name__ == "__main__":
    revision = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    sys.stdout.write("\n".join(touched(changed_since(revision), project_sources())) + "\n")
