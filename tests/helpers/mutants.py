"""``./run mutants``: change one thing of the product at a time, and see whether a unit test fails.

    ./run mutants --count 30 --seed 1           of the shells, drawn by the seed
    ./run mutants --only api/session/retry.py   all of one file; a folder is taken with its files

A mutant lacks a statement, a condition or a guard, compares the other way, returns early, or has
two arguments swapped. Each is tried in a copy of the tree, by the unit tests of its room alone.
A line per survivor: its place, and what was changed. Judge each: it is equivalent to the original,
or harmless, or a test is missing. Exit status 1 if a room's tests fail without any mutant.
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SHELLS = ("actors/replica", "actors/controller", "actors/coordination", "actors/transactions")
SHELLS += ("actors/groups", "actors/launch", "api/consuming", "api/producing", "api/session")
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".types", ".*_cache", ".hypothesis", "build")
UNCHANGED = ("annotation", "returns", "decorator_list", "type_params", "args")
SILENT = ("_logger.", "invariant(")
SMALL = (False, True, 0, 1, 2)  # constants that decide something; others are units and limits
MEMORY_BYTES_MAX = 4 << 30  # a mutant may make a test collect without end
PAIRS: tuple[tuple[type[ast.AST], type[ast.AST]], ...] = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq)),
    *((ast.Is, ast.IsNot), (ast.In, ast.NotIn), (ast.Add, ast.Sub)),
)
TURNED = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}
_tell = functools.partial(print, flush=True)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Put = Callable[[ast.AST], None]
_Change = tuple[ast.AST, str, Callable[[], object]]  # node, what is changed, what changes it


class Mutant(NamedTuple):
    """The ``index``-th change of the file at ``path``, which stands in ``line``."""

    path: str
    index: int
    line: int
    what: str


def _text(node: ast.AST) -> str:
    first, *rest = ast.unparse(node).splitlines()
    return f"{first[:80]} …" if rest or len(first) > 80 else first


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, Put]]:
    for name, value in ast.iter_fields(node):
        if isinstance(node, FUNCTIONS) and name in UNCHANGED:
            continue
        if isinstance(value, list):
            for index, child in enumerate(value):
                if isinstance(child, ast.AST):
                    yield child, lambda new, at=index, of=value: of.__setitem__(at, new)
        elif isinstance(value, ast.AST) and name != "annotation":
            yield value, lambda new, of=name: setattr(node, of, new)


def _changes(node: ast.AST, *, is_in_function: bool = False) -> Iterator[_Change]:
    """Every change below ``node``; only functions are changed, not constants or defaults."""
    is_in_function |= isinstance(node, FUNCTIONS)
    for child, put in _children(node):
        if isinstance(child, ast.JoinedStr) or ast.unparse(child).startswith(SILENT):
            continue
        if is_in_function:
            yield from _changes_of(child, put)
        if isinstance(child, FUNCTIONS):
            yield from _early_return(child)
        yield from _changes(child, is_in_function=is_in_function)


def _changes_of(node: ast.AST, put: Put) -> Iterator[_Change]:
    if isinstance(node, ast.stmt):
        yield from _statement_changes(node, put)
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        test = node.test
        negated = ast.UnaryOp(ast.Not(), test)
        yield (test, f"negated: {_text(test)}", lambda: setattr(node, "test", negated))
    elif isinstance(node, ast.BoolOp):
        for at, operand in enumerate(node.values):
            what = f"dropped {_text(operand)} from: {_text(node)}"
            yield (operand, what, lambda at=at: node.values.pop(at))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _turned(node, node.ops[0], lambda new: node.ops.__setitem__(0, new))
    elif isinstance(node, (ast.BinOp, ast.AugAssign)):
        yield from _turned(node, node.op, lambda new: setattr(node, "op", new))
    elif isinstance(node, ast.Call):
        yield from _call_changes(node)
    elif isinstance(node, ast.Constant) and any(node.value is one for one in SMALL):
        new = not node.value if isinstance(node.value, bool) else node.value + 1
        yield (node, f"{node.value} became {new}", lambda: put(ast.Constant(new)))


def _statement_changes(node: ast.stmt, put: Put) -> Iterator[_Change]:
    is_effect = isinstance(node, (ast.AugAssign, ast.Raise, ast.Break, ast.Continue, ast.Delete))
    is_effect |= isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await))
    if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Name):
        # ``self._clock = clock`` stays: without it nothing works at all.
        is_effect = isinstance(node.targets[0], (ast.Attribute, ast.Subscript))
    if isinstance(node, ast.If) and not node.orelse:
        is_effect = isinstance(node.body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))
    if is_effect:
        yield (node, f"dropped: {_text(node)}", lambda: put(ast.Pass()))
    if isinstance(node, ast.Try) and node.finalbody:
        what = f"dropped finally: {_text(node.finalbody[0])}"
        yield (node.finalbody[0], what, lambda: setattr(node, "finalbody", [ast.Pass()]))


def _turned(node: ast.AST, operator: ast.AST, put: Put) -> Iterator[_Change]:
    other = TURNED.get(type(operator))
    if other is not None:
        what = f"{type(operator).__name__} became {other.__name__}: {_text(node)}"
        yield (node, what, lambda: put(other()))


def _call_changes(node: ast.Call) -> Iterator[_Change]:
    name = ast.unparse(node.func)
    if name in ("min", "max"):
        other = ast.Name("max" if name == "min" else "min", ast.Load())
        what = f"{name} became {other.id}: {_text(node)}"
        yield (node, what, lambda: setattr(node, "func", other))
    elif len(node.args) > 1 and not any(isinstance(one, ast.Starred) for one in node.args):
        args = [node.args[1], node.args[0], *node.args[2:]]
        yield (node, f"swapped in: {_text(node)}", lambda: setattr(node, "args", args))


def _early_return(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[_Change]:
    gives = [one for one in ast.walk(node) if isinstance(one, (ast.Return, ast.Yield))]
    if len(node.body) > 1 and all(getattr(one, "value", None) is None for one in gives):
        what = f"returned at once: {node.name}"
        yield (node, what, lambda: setattr(node, "body", [ast.Return()]))


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    found = enumerate(_changes(ast.parse(source)))
    return [Mutant(path, at, node.lineno, what) for at, (node, what, _) in found]


def mutated(source: str, mutant: Mutant) -> str:
    """The file with this one change; comments are gone."""
    tree = ast.parse(source)
    _, _, change = next(itertools.islice(_changes(tree), mutant.index, None))
    change()
    return ast.unparse(ast.fix_missing_locations(tree))


def drawn(root: Path, *, only: str | None, count: int, seed: int) -> list[Mutant]:
    """``count`` mutants of ``only``, or of the shells; all if there are fewer. By path and line."""
    files = [
        file
        for place in (root / one for one in ((only,) if only else SHELLS))
        for file in ([place] if place.is_file() else place.rglob("*.py"))
    ]
    names = sorted(file.relative_to(root).as_posix() for file in files)
    found = [one for name in names for one in mutants_of(name, (root / name).read_text("utf-8"))]
    chosen = random.Random(seed).sample(found, min(count, len(found)))
    return sorted(chosen, key=lambda one: (one.path, one.index))


def room_of(path: str) -> str:
    """The folder of the unit tests of a file."""
    return f"tests/unit/{Path(path).parent.as_posix()}".replace("/actors/protocol", "/protocol")


def fails(tree: Path, tests: str, *, seed: int, limit_s: float) -> str:
    """How the tests of a room end in this tree: "" if they pass, else what became of them."""
    marks = ["-m", "not ray and not spark and not slow", f"--hypothesis-seed={seed}"]
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *marks, tests],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX,) * 2),
    )
    try:
        output, _ = running.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        return f"no end within {limit_s:.0f} s"
    if running.returncode == 0:
        return ""
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else f"status {running.returncode}: {output[-200:]}"


def judge(tree: Path, mutants: list[Mutant], *, seed: int, tests: str | None) -> int:
    """Try each mutant in ``tree``, a copy, and print what becomes of it; the exit status."""
    limits_s: dict[str, float] = {}
    ends: Counter[str] = Counter()
    for mutant in mutants:
        room = tests or room_of(mutant.path)
        if room not in limits_s:
            began = time.monotonic()
            failed = fails(tree, room, seed=seed, limit_s=1_800)
            if failed:
                _tell(f"{room} fails without a mutant: {failed}")
                return 1
            limits_s[room] = 60 + 2 * (time.monotonic() - began)
        file = tree / mutant.path
        original = file.read_text("utf-8")
        file.write_text(mutated(original, mutant), "utf-8")
        failed = fails(tree, room, seed=seed, limit_s=limits_s[room])
        file.write_text(original, "utf-8")
        ends["killed" if failed else "survived"] += 1
        told = f"killed by {failed}" if failed else "SURVIVED"
        _tell(f"{mutant.path}:{mutant.line}: {mutant.what}: {told}")
    _tell(f"{ends['survived']} of {ends.total()} survived")
    return 0


def main(words: list[str]) -> int:
    """The command: see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, prog="./run mutants")
    parser.add_argument("--only", help="a file or folder of the product; the shells unless told")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="chooses the mutants, and runs tests")
    parser.add_argument("--tests", help="a folder of tests instead of that of the mutant's room")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        tree = Path(directory) / "oncelog"  # the name by which it is imported
        shutil.copytree(ROOT, tree, ignore=NOT_COPIED)
        mutants = drawn(tree, only=given.only, count=given.count, seed=given.seed)
        return judge(tree, mutants, seed=given.seed, tests=given.tests)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
