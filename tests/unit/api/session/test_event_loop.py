"""An event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from oncelog.api.session.event_loop import LoopThread
from oncelog.storage.exceptions import ClientClosedError, IllegalStateError


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


async def name_of_thread() -> str:
    return threading.current_thread().name


async def fail() -> None:
    raise KeyError("inside")


def test_a_coroutine_runs_in_the_loops_thread_and_its_result_comes_back(
    loop_thread: LoopThread,
) -> None:
    assert loop_thread.run(name_of_thread()) == "test-loop"


def test_an_error_is_raised_to_the_caller(loop_thread: LoopThread) -> None:
    with pytest.raises(KeyError, match="inside"):
        loop_thread.run(fail())


def test_a_callback_runs_on_the_loop(loop_thread: LoopThread) -> None:
    called = threading.Event()
    loop_thread.call_soon(called.set)
    assert called.wait(5)


def test_waiting_on_the_loop_for_itself_is_refused_and_not_a_deadlock(
    loop_thread: LoopThread,
) -> None:
    async def waits() -> None:
        loop_thread.run(name_of_thread())

    with pytest.raises(IllegalStateError, match="asynchronous client"):
        loop_thread.run(waits())


class Interrupted:
    """A lock whose wait ends with Ctrl-C. A signal might come just before the wait, in vain."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def acquire(self) -> None:
        raise KeyboardInterrupt

    def release(self) -> None:
        self.released.set()


def test_an_interrupted_wait_cancels_what_runs_and_the_loop_goes_on(
    loop_thread: LoopThread,
) -> None:
    called: list[str] = []
    started = threading.Event()

    async def waits() -> None:
        started.set()
        await until_cancelled(called)

    call = loop_thread.submit(waits())
    assert started.wait(5)
    lock = Interrupted()
    call._has_ended = lock  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        call.result()
    assert lock.released.wait(5)
    assert called == ["cancelled"]
    assert loop_thread.run(name_of_thread()) == "test-loop"


def test_an_error_that_nobody_waits_for_any_more_is_not_reported(
    loop_thread: LoopThread,
) -> None:
    reported: list[object] = []
    loop_thread.loop.set_exception_handler(lambda _, context: reported.append(context))
    loop_thread.submit(fail())
    loop_thread.run(name_of_thread())
    gc.collect()
    loop_thread.run(name_of_thread())
    assert reported == []


def test_an_error_keeps_nothing_alive_once_it_is_handled(loop_thread: LoopThread) -> None:
    class Failed(Exception):
        pass

    async def fails() -> None:
        raise Failed

    gc.disable()
    try:
        with contextlib.suppress(Failed):
            loop_thread.run(fails())
        loop_thread.run(name_of_thread())
        assert not [known for known in gc.get_objects() if type(known) is Failed]
    finally:
        gc.enable()


def test_close_cancels_what_runs_and_refuses_more() -> None:
    thread = LoopThread()
    started = threading.Event()

    async def waits() -> None:
        started.set()
        await asyncio.Event().wait()

    call = thread.submit(waits())
    assert started.wait(5)
    thread.close()
    thread.close()
    with pytest.raises(CancelledError):
        call.result()
    with pytest.raises(ClientClosedError):
        thread.run(name_of_thread())


def test_a_loop_that_was_never_used_closes_without_starting_its_thread() -> None:
    LoopThread("never-started").close()
    assert "never-started" not in [thread.name for thread in threading.enumerate()]


async def until_cancelled(called: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        called.append("cancelled")


def test_what_asked_for_it_is_called_on_the_loop_when_all_else_has_ended() -> None:
    called: list[str] = []

    class Living:
        def closed(self) -> None:
            called.append(threading.current_thread().name)

        def fails(self) -> None:
            raise KeyError("inside")

    thread, living, dead = LoopThread("ends"), Living(), Living()
    thread.loop.set_exception_handler(lambda *_: called.append("reported"))
    for callback in (dead.closed, living.fails, living.closed):
        thread.call_when_closed(callback)
    del dead, callback
    call = thread.submit(until_cancelled(called))
    thread.close()
    with pytest.raises(CancelledError):
        call.result()
    assert called == ["cancelled", "reported", "ends"]
    with pytest.raises(ClientClosedError):
        thread.call_when_closed(living.closed)


FORK = "import os, sys\nif not os.fork(): sys.exit()\nassert os.wait()[1] == 0"
"""A child that ends before its parent, whose loop goes on."""


@pytest.mark.parametrize("end", ["", "del loops", "raise SystemExit(0)", FORK])
def test_what_a_program_leaves_open_is_ended_with_it_and_makes_no_noise(end: str) -> None:
    code = (
        "import asyncio\n"
        "from oncelog.api.session.event_loop import LoopThread\n"
        "async def wait():\n"
        "    begun.set_result(None)\n"
        "    try:\n"
        "        await asyncio.Event().wait()\n"
        "    finally:\n"
        "        print('ended')\n"
        "import concurrent.futures\n"
        "begun = concurrent.futures.Future()\n"
        "loops = LoopThread()\n"
        "loops.submit(wait())\n"
        f"begun.result()\n{end}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, set(done.stdout.splitlines()), done.stderr) == (0, {"ended"}, "")
