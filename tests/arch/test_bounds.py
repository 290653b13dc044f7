"""The page of bounds tells names, values and tests that there are."""

from __future__ import annotations

import ast
import importlib
import re

import pytest

UNITS = {"": 1, "KiB": 1_024, "MiB": 1_048_576, "s": 1}


@pytest.fixture(scope="module")
def rows(root):
    """The cells of each bound: what, name, value, beyond, tests."""
    lines = (root / "docs/BOUNDS.md").read_text(encoding="utf-8").splitlines()
    found = [line.strip("| ").split(" | ") for line in lines if re.match(r"\|.+\| `\w+\.", line)]
    assert len(found) > 20
    assert all(len(row) == 5 for row in found)
    return found


def named(cell: str) -> object:
    """The constant, or the default of a setting, that a cell names."""
    path = cell.strip("`").split(".")
    is_setting = path[-1].islower()
    module = importlib.import_module("oncelog." + ".".join(path[: -2 if is_setting else -1]))
    if is_setting:
        return getattr(getattr(module, path[-2])(), path[-1])
    return getattr(module, path[-1])


def test_every_bound_has_the_value_that_the_page_tells(rows):
    wrong = []
    for _, name, value, _, _ in rows:
        number, _, unit = value.partition(" ")
        told = int(number.replace(",", "")) * UNITS[unit]
        if named(name) != told:
            wrong.append(f"{name}: {value} is told, {named(name)} it is")
    assert not wrong, "\n".join(wrong)


def test_every_bound_has_a_test(rows, sources):
    defined = {
        node.name
        for source in sources
        if source.path.startswith("tests/")
        for node in source.nodes
        if isinstance(node, ast.FunctionDef)
    }
    for row in rows:
        names = re.findall(r"`(\w+)`", row[4])
        assert names, f"{row[1]} names no test"
        assert set(names) <= defined, f"{row[1]}: {set(names) - defined} is no test"


def test_what_callers_may_take_up_is_all_on_the_page(rows):
    admission = importlib.import_module("oncelog.actors.rpc.admission")
    names = {name for name in vars(admission) if name.isupper()} - {"TYPE_CHECKING"}
    known = {f"`actors.rpc.admission.{name}`" for name in names}
    assert known
    assert known <= {row[1] for row in rows}
