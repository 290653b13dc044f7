"""An event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from deadlines import DEADLINE_S

from oncelog.api.session.event_loop import LoopOfProgram, LoopThread, close_if_forgotten
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
    assert called.wait(DEADLINE_S)


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
    assert started.wait(DEADLINE_S)
    lock = Interrupted()
    call._has_ended = lock  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        call.result()
    assert lock.released.wait(DEADLINE_S)
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
    assert started.wait(DEADLINE_S)
    thread.close()
    thread.close()
    with pytest.raises(ClientClosedError):
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


def test_what_asked_for_it_is_called_on_the_loop_before_the_rest_is_cancelled() -> None:
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
    with pytest.raises(ClientClosedError):
        call.result()
    assert called == ["reported", "ends", "cancelled"]
    with pytest.raises(ClientClosedError):
        thread.call_when_closed(living.closed)


FORK = (
    "import os, sys, warnings\n"
    # Python 3.12 and later say that threads and forks do not go together.
    "warnings.simplefilter('ignore', DeprecationWarning)\n"
    "if not os.fork(): sys.exit()\n"
    "assert os.wait()[1] == 0"
)
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
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert (done.returncode, set(done.stdout.splitlines()), done.stderr) == (0, {"ended"}, "")


class Left:
    """A client; ``left`` once it was abandoned."""

    def __init__(self) -> None:
        self.is_closed = False
        self.left = threading.Event()

    async def abandon(self) -> None:
        await asyncio.sleep(0)
        self.left.set()


class Face:
    """What a program has of it."""

    def __init__(self, loop_thread: LoopThread | LoopOfProgram, client: Left) -> None:
        self._loop_thread = loop_thread
        close_if_forgotten(self, loop_thread, client)


def test_what_nobody_refers_to_any_more_leaves_and_its_thread_ends() -> None:
    client, loop_thread = Left(), LoopThread("forgotten")
    assert loop_thread.run(name_of_thread()) == "forgotten"
    (thread,) = (one for one in threading.enumerate() if one.name == "forgotten")
    face = Face(loop_thread, client)
    del loop_thread
    gc.collect()
    assert thread.is_alive()
    with pytest.warns(ResourceWarning, match=r"a Face made at .*test_event_loop.py:\d+ was not"):
        del face
    assert client.left.wait(DEADLINE_S)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_what_a_program_forgets_on_a_loop_of_its_own_leaves_as_long_as_that_runs() -> None:
    client, other = Left(), Left()

    async def forget() -> Face:
        face = Face(LoopOfProgram(), client)
        with pytest.warns(ResourceWarning, match="a Face made at"):
            del face
        await asyncio.to_thread(client.left.wait, DEADLINE_S)
        return Face(LoopOfProgram(), other)

    face = asyncio.run(forget())
    assert client.left.is_set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del face
    assert not other.left.is_set()


def test_what_was_closed_is_not_told_to_leave(loop_thread: LoopThread, recwarn: Any) -> None:
    client = Left()
    face = Face(loop_thread, client)
    loop_thread.run(name_of_thread())
    client.is_closed = True
    del face
    loop_thread.run(name_of_thread())
    assert not client.left.is_set()
    assert [one for one in recwarn if one.category is ResourceWarning] == []


def test_what_a_program_leaves_open_leaves_before_it_ends() -> None:
    code = (
        "import asyncio\n"
        "from oncelog.api.session.event_loop import LoopOfProgram, LoopThread, close_if_forgotten\n"
        "class Client:\n"
        "    is_closed = False\n"
        "    async def abandon(self):\n"
        "        await asyncio.sleep(0.05)\n"
        "        print('left')\n"
        "class Face: pass\n"
        "loops, face = LoopThread(), Face()\n"
        "loops.loop\n"
        "close_if_forgotten(face, loops, Client())\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stdout) == (0, "left\n")
    assert "a Face made at" in done.stderr
