"""A thread that wakes an event loop lets it work before it goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
import uvloop

from oncelog.api.producing import loop_wake
from oncelog.api.producing.loop_wake import Pace, call_and_let_run, call_when_written
from oncelog.api.session.event_loop import LoopThread


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


def test_the_thread_goes_on_after_the_tasks_have_written_their_calls(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow the machine is: only the limit would let the thread go on earlier."""
    monkeypatch.setattr(loop_wake, "LET_RUN_MAX_S", 60)
    loop = loop_thread.loop
    done: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def call() -> None:
        # As a connection does, which gathers what leaves in one turn.
        loop.call_soon(done.append, "written")
        await asyncio.sleep(60)

    def begin() -> None:
        done.append("begun")
        tasks.extend(loop.create_task(call()) for _ in range(3))

    call_and_let_run(loop, begin)
    assert done == ["begun", "written", "written", "written"]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_nobody_is_let_go_before_the_calls_of_the_tasks_are_written(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    done: list[str] = []

    async def call(loop: asyncio.AbstractEventLoop) -> None:
        # As a connection does, which gathers what leaves in one turn.
        loop.call_soon(done.append, "written")

    async def take() -> None:
        loop = asyncio.get_running_loop()
        call_when_written(loop, lambda: done.append("let go"))
        task = loop.create_task(call(loop))
        for _ in range(2 * loop_wake.TURNS_TO_WRITE):
            await asyncio.sleep(0)
        await task

    loop = new_loop()
    loop.run_until_complete(take())
    loop.close()
    assert done == ["written", "let go"]


def test_a_callback_that_fails_keeps_nobody_waiting(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_wake, "LET_RUN_MAX_S", 60)
    loop = loop_thread.loop
    reported = threading.Event()
    loop.set_exception_handler(lambda *_: reported.set())
    call_and_let_run(loop, [].pop)
    assert reported.wait(60)


def test_a_busy_loop_is_not_waited_for_long(loop_thread: LoopThread) -> None:
    loop = loop_thread.loop
    is_free = threading.Event()
    called = threading.Event()
    loop.call_soon_threadsafe(is_free.wait, 60)
    call_and_let_run(loop, called.set)
    assert not called.is_set()
    is_free.set()
    assert called.wait(60)


def test_a_loop_never_waits_neither_for_itself_nor_for_another(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_wake, "LET_RUN_MAX_S", 1_000_000)
    called: list[str] = []
    other = LoopThread("other-loop")
    is_free = threading.Event()
    other.loop.call_soon_threadsafe(is_free.wait, 60)

    async def wake() -> list[str]:
        call_and_let_run(asyncio.get_running_loop(), called.append, "own")
        call_and_let_run(other.loop, called.append, "other")
        before = list(called)
        await asyncio.sleep(0)
        return before

    try:
        assert loop_thread.run(wake()) == []
        is_free.set()
    finally:
        other.close()
    assert sorted(called) == ["other", "own"]


class Waiting:
    """Batches that wait to be sent, and the thread that makes more of them."""

    def __init__(self) -> None:
        self.count = 0
        self.is_looked_at = threading.Event()
        self.looks = threading.Semaphore(0)
        self.pace = Pace(self.look, batch_bytes=1_048_576)

    def look(self) -> int:
        self.is_looked_at.set()
        self.looks.release()
        return self.count

    def hold_back(self) -> threading.Thread:
        """A thread that is too far ahead and waits, where the loop can see it."""
        self.count = self.pace.high + 1
        thread = threading.Thread(target=self.pace.keep)
        thread.start()
        # It looks a second time once it can be seen.
        assert self.looks.acquire(timeout=60)
        assert self.looks.acquire(timeout=60)
        return thread

    async def take_until(self, count: int) -> None:
        while self.count > count:
            self.count -= 1
            self.pace.taken()


def test_a_thread_that_is_ahead_waits_until_the_loop_has_written_half(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_wake, "PACE_MAX_S", 60)
    when_written: list[Callable[[], object]] = []
    monkeypatch.setattr(
        loop_wake, "call_when_written", lambda _, callback: when_written.append(callback)
    )
    waiting = Waiting()
    thread = waiting.hold_back()
    loop_thread.run(waiting.take_until(waiting.pace.high // 2 + 1))
    assert not when_written
    loop_thread.run(waiting.take_until(0))
    assert thread.is_alive()
    (let_go,) = when_written
    let_go()
    thread.join(60)
    assert not thread.is_alive()


def test_a_thread_that_was_let_go_is_held_back_again(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_wake, "PACE_MAX_S", 60)
    waiting = Waiting()
    for _ in range(3):
        while waiting.looks.acquire(blocking=False):
            pass
        thread = waiting.hold_back()
        loop_thread.run(waiting.take_until(0))
        thread.join(60)
        assert not thread.is_alive()


def test_a_thread_that_is_not_ahead_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_wake, "PACE_MAX_S", 1_000_000)
    waiting = Waiting()
    waiting.count = waiting.pace.high
    waiting.pace.keep()
    assert waiting.is_looked_at.is_set()


def test_a_loop_that_sends_nothing_is_waited_for_once_until_it_has_caught_up(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_wake, "PACE_MAX_S", 0.001)
    waiting = Waiting()
    waiting.count = waiting.pace.high + 1
    waiting.pace.keep()
    monkeypatch.setattr(loop_wake, "PACE_MAX_S", 1_000_000)
    waiting.count += 10
    waiting.pace.keep()
    loop_thread.run(waiting.take_until(0))
    monkeypatch.setattr(loop_wake, "PACE_MAX_S", 0.001)
    waiting.count = waiting.pace.high + 1
    waiting.is_looked_at.clear()
    waiting.pace.keep()
    assert waiting.is_looked_at.is_set()


def test_a_thread_whose_time_runs_out_while_the_loop_writes_is_held_back_again(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    when_written: list[Callable[[], object]] = []
    monkeypatch.setattr(
        loop_wake, "call_when_written", lambda _, callback: when_written.append(callback)
    )
    monkeypatch.setattr(loop_wake, "PACE_MAX_S", 60)
    waiting = Waiting()
    thread = waiting.hold_back()
    loop_thread.run(waiting.take_until(0))
    waiting.count = waiting.pace.high + 1
    monkeypatch.setattr(loop_wake, "PACE_MAX_S", 0.001)
    waiting.pace.keep()
    (written,) = when_written
    written()
    thread.join(60)
    monkeypatch.setattr(loop_wake, "PACE_MAX_S", -1e9)
    with pytest.raises(ValueError, match="timeout"):
        waiting.pace.keep()


def test_a_loop_is_never_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_wake, "PACE_MAX_S", 1_000_000)
    waiting = Waiting()
    waiting.count = waiting.pace.high + 1

    async def fill() -> bool:
        waiting.pace.keep()
        return waiting.is_looked_at.is_set()

    assert asyncio.run(fill())


def test_two_large_batches_may_always_wait() -> None:
    assert Pace(lambda: 0, batch_bytes=2**30).high == 2
