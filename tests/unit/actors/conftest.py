"""A replica on a real directory, with a clock the test moves and a thread that syncs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from leader_harness import LeaderHarness

Scenario = Callable[[LeaderHarness], Awaitable[None]]


@pytest.fixture
def harness(tmp_path: Path) -> LeaderHarness:
    return LeaderHarness(tmp_path)


@pytest.fixture
def play(harness: LeaderHarness) -> Callable[[Scenario], None]:
    """Start the leader, run the scenario on one event loop, stop cleanly."""

    def run(scenario: Scenario) -> None:
        async def body() -> None:
            await harness.start()
            try:
                await scenario(harness)
            finally:
                await harness.replica.stop()

        asyncio.run(body())

    return run
