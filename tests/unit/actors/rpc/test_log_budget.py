"""Lines that others cause: so many a minute, and how many were left out."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from oncelog.actors.rpc import dispatch
from oncelog.actors.rpc.dispatch import LINES_PER_MINUTE_MAX, LogBudget


def test_lines_beyond_those_of_a_minute_are_counted(monkeypatch: Any, caplog: Any) -> None:
    now_ms = [1_000]
    monkeypatch.setattr(dispatch, "loop_ms", lambda: now_ms[0])
    budget = LogBudget(logging.getLogger("budget"))
    for number in range(LINES_PER_MINUTE_MAX + 5):
        budget.warn("line %d", number)
    assert len(caplog.messages) == LINES_PER_MINUTE_MAX
    now_ms[0] += 60_000
    budget.warn("another")
    assert caplog.messages[-2].startswith("5 more lines like these were left out — ")
    assert caplog.messages[-1] == "another"


@pytest.mark.parametrize("count", [1, LINES_PER_MINUTE_MAX])
def test_lines_that_are_not_too_many_are_all_logged(caplog: Any, count: int) -> None:
    async def run() -> None:
        budget = LogBudget(logging.getLogger("budget"))
        for number in range(count):
            budget.warn("line %d", number)

    asyncio.run(run())
    assert caplog.messages == [f"line {number}" for number in range(count)]
