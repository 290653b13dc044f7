"""Waking an event loop from a thread that keeps the interpreter busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

LET_RUN_MAX_S: Final = 0.005
"""How long a thread waits for the loop: what the interpreter would make it wait at the most."""


def call_and_let_run(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: object
) -> None:
    """Call ``callback`` on ``loop``, and let it and the tasks that it begins make their calls.

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
        # What ``callback`` begins runs before what is put behind it now.
        loop.call_soon(loop.call_soon, gate.release)
        callback(*arguments)

    loop.call_soon_threadsafe(run)
    gate.acquire(timeout=LET_RUN_MAX_S)


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
