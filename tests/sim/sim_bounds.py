"""Production's bounds, set so low that a generated world reaches them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from oncelog.actors.coordination import runtime as coordinator_runtime
from oncelog.actors.coordination.runtime import CoordinatorRuntime
from oncelog.actors.rpc import frames
from oncelog.storage.errors import ErrorCode

LOW_EVERY = 4
"""Every so many seeds; by number and not by chance, so that the others stay what they were."""

LOW_WAITING_PER_KEY = 1
LOW_FRAME_STEP_BYTES = 65_536

TURNED_AWAY = "turned away at a bound"


@contextmanager
def low_bounds(seed: int) -> Iterator[Counter[str]]:
    """Lower the bounds for the run of a seed; counts what was turned away."""
    counts: Counter[str] = Counter()
    is_low = seed % LOW_EVERY == 0
    waiting_max = LOW_WAITING_PER_KEY if is_low else coordinator_runtime.WAITING_PER_KEY_MAX
    execute = CoordinatorRuntime.execute

    def counted(refused: Callable[[ErrorCode, str], Any]) -> Callable[[ErrorCode, str], Any]:
        def count(error: ErrorCode, detail: str) -> Any:
            counts[TURNED_AWAY] += 1
            return refused(error, detail)

        return count

    def watched(
        self: CoordinatorRuntime, key: str, decide: Any, *, refused: Any = None, **named: Any
    ) -> Any:
        refused = None if refused is None else counted(refused)
        return execute(self, key, decide, refused=refused, **named)

    with (
        mock.patch.object(coordinator_runtime, "WAITING_PER_KEY_MAX", waiting_max),
        mock.patch.object(frames, "FRAME_STEP_BYTES", LOW_FRAME_STEP_BYTES),
        mock.patch.object(CoordinatorRuntime, "execute", watched),
    ):
        yield counts
