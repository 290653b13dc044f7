"""Each warning and error says what a person does about it, and the levels mean what a page says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

DASH = " — "
ADVISED = ("warning", "error", "critical")
LEVELS = {"warn": "warning", "exception": "error"}
"""Methods that log at the level of another; ``warn`` is that of ``LogBudget``."""

PASSES_ON = {("actors/rpc/dispatch.py", "line")}
"""Messages that are arguments of a function whose callers are checked."""

SECTION = "Log levels and messages"


class Message(NamedTuple):
    place: str
    level: str
    text: str


def messages_of(source: Any) -> Iterator[Message]:
    """What a file logs, by the format of the message."""
    constants = {
        target.id: node.value
        for node in source.tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in source.nodes:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        logger = ast.unparse(node.func.value).split(".")[-1]
        level = LEVELS.get(node.func.attr, node.func.attr)
        is_budget = logger == "warnings" and "." in ast.unparse(node.func.value)
        if logger not in {"_log", "_logger"} and not is_budget:
            continue
        if level not in {"debug", "info", *ADVISED}:
            continue
        given = node.args[0]
        if isinstance(given, ast.Name):
            if (source.path, given.id) in PASSES_ON:
                continue
            given = constants[given.id]
        assert isinstance(given, ast.Constant), f"{source.path}:{node.lineno}"
        yield Message(f"{source.path}:{node.lineno}", level, str(given.value))


@pytest.fixture(scope="module")
def messages(sources: Any) -> list[Message]:
    return [one for source in sources if source.is_product for one in messages_of(source)]


def test_the_messages_are_found(messages: list[Message]) -> None:
    assert len([one for one in messages if one.level in ADVISED]) > 80
    assert {one.level for one in messages} == {"debug", "info", *ADVISED}


def test_each_warning_and_error_says_what_to_do(messages: list[Message]) -> None:
    assert not [
        f"{one.place} {one.text}"
        for one in messages
        if one.level in ADVISED and not re.search(rf"\S{DASH}[a-z`]", one.text)
    ]


def test_the_page_has_each_level_with_messages_that_are_logged_at_it(
    root: Path, messages: list[Message]
) -> None:
    page = (root / "docs/OPERATIONS.md").read_text()
    section = page.split(f"## {SECTION}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    levels = [cells[0].strip(" `") for cells in rows]
    assert levels == ["debug", "info", "warning", "error", "critical"]
    for level, cells in zip(levels, rows, strict=True):
        examples = re.findall(r"“(.+?)”", cells[2])
        assert examples, level
        for example in examples:
            known = [one.text for one in messages if one.level == level]
            assert any(example in re.sub(r"%[a-z0-9.]+", "…", text) for text in known), example
