"""``./run mutants`` changes one thing at a time, the same for the same seed, and sees who fails."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from mutants import drawn, judge, mutants_of, mutated, room_of

SOURCE = '''"""A shell."""
LIMIT = 1

async def take(self, given, *, least=0):
    """Take it."""
    if given is None:
        return
    _logger.info("%s", 1 + 2)
    invariant(given > 0, "I-01", "")
    if least < given and self.is_open:
        await self.drain()
    for one in given:
        self.held = max(one, least)
        self.count += 1
        self.put(one, least)
'''


def changed(what):
    (mutant,) = [one for one in mutants_of("shell.py", SOURCE) if one.what == what]
    return mutated(SOURCE, mutant)


@pytest.mark.parametrize(
    ("what", "before", "after"),
    [
        ("dropped: if given is None: …", "if given is None:\n        return\n", "pass\n"),
        ("negated: given is None", "if given is None:", "if not given is None:"),
        ("Is became IsNot: given is None", "if given is None:", "if given is not None:"),
        ("Lt became LtE: least < given", "least < given", "least <= given"),
        (
            "dropped self.is_open from: least < given and self.is_open",
            "least < given and self.is_open",
            "least < given",
        ),
        ("dropped: await self.drain()", "await self.drain()", "pass"),
        ("dropped: self.held = max(one, least)", "self.held = max(one, least)", "pass"),
        ("max became min: max(one, least)", "max(one, least)", "min(one, least)"),
        ("Add became Sub: self.count += 1", "self.count += 1", "self.count -= 1"),
        ("1 became 2", "self.count += 1", "self.count += 2"),
        ("swapped in: self.put(one, least)", "self.put(one, least)", "self.put(least, one)"),
    ],
)
def test_a_mutant_differs_in_one_place(what, before, after):
    unchanged = ast.unparse(ast.parse(SOURCE))
    assert changed(what) == unchanged.replace(before, after) != unchanged


def test_a_function_that_returns_nothing_may_return_at_once():
    assert changed("returned at once: take").endswith("least=0):\n    return")


def test_constants_defaults_and_what_is_only_said_stay():
    whats = " ".join(one.what for one in mutants_of("shell.py", SOURCE))
    assert "LIMIT" not in whats
    assert "_logger" not in whats
    assert "invariant" not in whats
    assert "0 became" not in whats


def test_the_line_of_a_mutant_is_that_of_its_change():
    lines = {one.what: one.line for one in mutants_of("shell.py", SOURCE)}
    assert lines["dropped: await self.drain()"] == 11


@pytest.mark.parametrize(
    ("path", "room"),
    [
        ("actors/replica/replica_log.py", "tests/unit/actors/replica"),
        ("actors/protocol/partition/bounds.py", "tests/unit/protocol/partition"),
        ("api/session/retry.py", "tests/unit/api/session"),
    ],
)
def test_a_mutant_is_tried_by_the_tests_of_its_room(path, room):
    assert room_of(path) == room
    assert (Path(__file__).parents[2] / room).is_dir()


def tree_of(tmp_path, source, test):
    files = {"actors/one/shell.py": source, "tests/unit/actors/one/test_shell.py": test}
    for name, text in files.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path / "tree"


def test_the_same_seed_draws_the_same_and_another_draws_others(tmp_path):
    tree = tree_of(tmp_path, SOURCE, "")
    first = drawn(tree, only="actors/one", count=5, seed=1)
    assert len(first) == 5
    assert drawn(tree, only="actors/one/shell.py", count=5, seed=1) == first
    assert drawn(tree, only="actors/one", count=5, seed=2) != first


TEST = """
from importlib import import_module

def test_doubled():
    assert import_module("tree.actors.one.shell").doubled(3) == 6
"""


@pytest.mark.slow
def test_a_mutant_that_no_test_misses_survives_and_the_tree_stays(tmp_path, capsys):
    source = "def doubled(one):\n    if one < 0:\n        return 0\n    return one + one\n"
    tree = tree_of(tmp_path, source, TEST)
    mutants = [
        one
        for one in drawn(tree, only="actors", count=99, seed=1)
        if one.what in {"dropped: if one < 0: …", "Add became Sub: one + one"}
    ]
    assert judge(tree, mutants, seed=1, tests=None) == 0
    survivor, killed, total = capsys.readouterr().out.splitlines()
    assert survivor == "actors/one/shell.py:2: dropped: if one < 0: …: SURVIVED"
    assert killed.startswith("actors/one/shell.py:4: Add became Sub: one + one: killed by FAILED")
    assert total == "1 of 2 survived"
    assert (tree / "actors/one/shell.py").read_text() == source


@pytest.mark.slow
def test_tests_that_fail_without_a_mutant_judge_nothing(tmp_path, capsys):
    tree = tree_of(tmp_path, SOURCE, "def test_it():\n    assert False\n")
    mutants = drawn(tree, only="actors", count=1, seed=1)
    assert judge(tree, mutants, seed=1, tests=None) == 1
    assert "fails without a mutant" in capsys.readouterr().out
