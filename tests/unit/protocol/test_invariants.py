from __future__ import annotations

import re
from pathlib import Path

import pytest

from oncelog.actors.protocol.invariants import INVARIANTS, invariant
from oncelog.storage.errors import InvariantViolation

ROOT = Path(__file__).resolve().parents[3]
NUMBER = re.compile(r"I-\d\d")


def test_rule_that_holds_passes() -> None:
    assert invariant(True, "I-01", "unused") is None  # type: ignore[func-returns-value]


def test_broken_rule_names_its_number_the_values_and_the_statement() -> None:
    with pytest.raises(InvariantViolation) as raised:
        invariant(False, "I-17", "block at 1000 twice")
    assert str(raised.value) == f"I-17: block at 1000 twice ({INVARIANTS['I-17']})"


def test_every_number_cited_in_the_machines_exists() -> None:
    for path in (ROOT / "actors").rglob("*.py"):
        unknown = set(NUMBER.findall(path.read_text())) - set(INVARIANTS)
        assert not unknown, f"{path.name} cites {unknown}"


def test_document_explains_every_rule_in_order() -> None:
    document = (ROOT / "docs" / "INVARIANTS.md").read_text()
    explained = re.findall(r"^\| (I-\d\d) \|", document, flags=re.MULTILINE)
    assert explained == list(INVARIANTS)
