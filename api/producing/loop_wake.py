"""How a busy application thread and the event loop that sends its records share the interpreter."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

LET_RUN_MAX_S: Final = 0.005
"""How long a thread waits for the loop: the interpreter's own switch interval."""

TURNS_TO_WRITE: Final = 3
"""A batch that is taken is encoded in the next turn of the loop, and written in the one after."""

PACE_BYTES: Final = 4 * 1_048_576
"""How much may wait to be sent before the thread that fills batches is held back."""

PACE_MAX_S: Final = 0.02
"""The longest it is held back: a loop that sends nothing for this long is not behind."""


class Pace:
    """Holds a thread that fills batches back while the loop that sends them is behind.

    Without it the thread runs ahead until ``buffer_memory`` is used up, and from then on stops
    and goes on with every single batch. ``waiting_count`` says how many full batches wait to be
    sent: beyond ``high`` the thread waits until half of them are written to connections: let go
    sooner, it would take the interpreter's lock, and keep the loop waiting with batches in its
    hands. If that takes too long, it is not the loop that holds things up: the thread may then
    fill the buffer, and is held back again once the loop has caught up.
    """

    def __init__(self, waiting_count: Callable[[], int], *, batch_bytes: int) -> None:
        self.high: Final = max(PACE_BYTES // batch_bytes, 2)
        self._low: Final = self.high // 2
        self._waiting_count = waiting_count
        self._gates: deque[threading.Lock] = deque()
        self._is_stalled = False
        self._is_opening = False

    def keep(self) -> None:
        """Wait if the loop is behind, but never on a loop. For the thread that fills batches."""
        if self._is_stalled or self._waiting_count() <= self.high or _is_on_a_loop():
            return
        gate = threading.Lock()
        gate.acquire()
        self._gates.append(gate)
        # The loop may have caught up before it could see the gate.
        if self._waiting_count() > self._low and not gate.acquire(timeout=PACE_MAX_S):
            self._is_stalled = True

    def taken(self) -> None:
        """A batch has been taken to be sent. For the loop."""
        if (self._gates or self._is_stalled) and self._waiting_count() <= self._low:
            self._is_stalled = False
            if not self._is_opening:
                self._is_opening = True
                call_when_written(asyncio.get_running_loop(), self._open)

    def _open(self) -> None:
        # A thread whose time ran out while the loop was writing has not been stalled.
        self._is_opening = self._is_stalled = False
        while self._gates:
            self._gates.popleft().release()


def call_and_let_run(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: object
) -> None:
    """Call ``callback`` on ``loop``, and let it and the tasks that it begins write their calls.

    A thread that never waits keeps the interpreter's lock for 5 ms at a time, and the loop needs
    it anew for each thing that happens to it: what is to be sent would lie there for several
    times that, while its leader has nothing to do. A thread whose own loop runs does not wait.
    """
    if _is_on_a_loop():
        loop.call_soon_threadsafe(callback, *arguments)
        return
    gate = threading.Lock()
    gate.acquire()

    def run() -> None:
        # First, so that the thread is released even if the callback fails.
        call_when_written(loop, gate.release)
        callback(*arguments)

    loop.call_soon_threadsafe(run)
    gate.acquire(timeout=LET_RUN_MAX_S)


def call_when_written(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call ``callback`` once the tasks begun in this turn of ``loop`` have written their calls."""
    call: tuple[Callable[..., object], ...] = (callback,)
    for _ in range(TURNS_TO_WRITE - 1):
        call = (loop.call_soon, *call)
    loop.call_soon(*call)


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
