"""Waiting for what comes by itself, with one deadline that holds on a busy machine too.

No test is about how long that takes: it ends as soon as what it waits for is there. A time that is
a promise of ours is a number of the test that checks it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")

DEADLINE_S = 240.0
"""Ten times what the slowest step takes on a machine with nothing else to do, and less than a test
may take that never ends (``HANG_LIMIT_S``): who fails says what did not come."""

LOOK_S = 0.1


def wait_for(
    is_true: Callable[[], object],
    what: str,
    *,
    limit_s: float = DEADLINE_S,
    look_s: float = LOOK_S,
    instead: Callable[[], object] | None = None,
) -> None:
    """Until that is so; ``instead`` tells what is so where it takes too long."""
    deadline_s = time.monotonic() + limit_s
    while not is_true():
        if time.monotonic() > deadline_s:
            found = f"; instead: {instead()}" if instead is not None else ""
            raise TimeoutError(f"{what}: not within {limit_s:.0f} s{found}")
        threading.Event().wait(look_s)


async def until(
    is_true: Callable[[], object], what: str = "what is waited for", *, look_s: float = 0.0
) -> None:
    """Until that is so; without ``look_s`` others get their turns, but no virtual time passes."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not is_true():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what}: not within {DEADLINE_S:.0f} s")
        await asyncio.sleep(look_s)


def to_its_end(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run on a loop in real time; what waits for ever is a failure."""
    return asyncio.run(asyncio.wait_for(work, DEADLINE_S))
