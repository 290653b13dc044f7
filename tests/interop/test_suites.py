"""Results of foreign suites are judged by tables that only grow, and the tables can be read."""

from __future__ import annotations

import pytest
from suite import LEFT_OUT, TABLES, Result, Status, judge, read_table, stale_lines, to_run

TABLE = {
    "good": "passes",
    "bad": "asks for what is not served",
    "moody": "by chance: two answers race",
    "foreign": "left out: needs another broker",
}


def result(test, status, why=""):
    return Result(test=test, status=status, seconds=1, why=why)


@pytest.mark.parametrize("status", [Status.FAILED, Status.SKIPPED])
def test_a_listed_test_that_does_not_pass_is_wrong_and_says_why(status):
    verdict = judge(result("good", status, "no answer came"), TABLE)
    assert verdict == f"good {status.value}: no answer came"


@pytest.mark.parametrize("status", [Status.FAILED, Status.SKIPPED])
def test_a_test_with_a_reason_may_not_pass(status):
    assert judge(result("bad", status), TABLE) == ""


def test_a_test_that_passes_in_spite_of_its_reason_has_to_be_listed():
    verdict = judge(result("bad", Status.PASSED), TABLE)
    assert verdict.startswith("bad passes now")
    assert "asks for what is not served" in verdict


@pytest.mark.parametrize("status", list(Status))
def test_a_test_without_a_line_is_wrong_however_it_ends(status):
    assert judge(result("new", status), TABLE) == f"new {status.value} and is not in the table"


@pytest.mark.parametrize("status", list(Status))
def test_what_depends_on_chance_is_right_however_it_ends(status):
    assert judge(result("moody", status), TABLE) == ""


def test_what_is_left_out_is_not_run_and_what_has_no_line_is():
    assert to_run(["good", "foreign", "new"], TABLE) == ["good", "new"]


def test_a_line_about_a_test_that_is_gone_is_stale():
    lines = stale_lines(["good", "bad", "moody"], TABLE)
    assert lines == ["foreign: the suite has no such test"]


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_line_of_a_table_says_that_a_test_passes_or_why_not(path):
    table = read_table(path.stem)
    assert all(text.removeprefix(LEFT_OUT).strip() for text in table.values())
