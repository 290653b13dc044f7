"""What tests of clients are given."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from fake_cluster import FakeCluster, FakeLog
from virtual_time import run_virtually

from oncelog.api.session.event_loop import LoopThread


@pytest.fixture
def fake_cluster() -> FakeCluster:
    """A cluster in memory."""
    return FakeCluster()


@pytest.fixture
def new_log() -> Callable[[], FakeLog]:
    """Makes an empty partition in memory."""
    return FakeLog


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    """An event loop in a thread of its own, in real time."""
    loop_thread = LoopThread()
    yield loop_thread
    loop_thread.close()


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine on an event loop with virtual time."""
    return run_virtually
