from __future__ import annotations

import asyncio
import threading

import pytest
from deadlines import DEADLINE_S

from oncelog.actors.process.background import (
    SHORT_POINTS,
    SHORT_WORK_S,
    STALL_S,
    THREADS_MAX,
    DiskThreads,
    ThreadBackground,
    wait_until_done,
)


def test_work_runs_in_order_on_another_thread():
    async def run():
        background, ran = ThreadBackground(), []
        await asyncio.gather(
            *(background.run(lambda number=number: ran.append(number)) for number in range(20))
        )
        return ran, await background.run(threading.current_thread)

    ran, thread = asyncio.run(run())
    assert ran == list(range(20))
    assert thread is not threading.current_thread()


def test_exception_of_the_work_is_raised():
    def work():
        raise OSError(5, "the disk")

    async def run():
        await ThreadBackground().run(work)

    with pytest.raises(OSError, match="the disk"):
        asyncio.run(run())


def test_work_whose_caller_gave_up_is_still_done():
    async def run():
        background, entered, gate, ran = (
            ThreadBackground(),
            threading.Event(),
            threading.Event(),
            [],
        )

        def hold():
            entered.set()
            gate.wait(DEADLINE_S)

        holding = background.run(hold)
        waiting = background.run(lambda: ran.append("done"))
        await asyncio.to_thread(entered.wait, 10)
        waiting.cancel()
        gate.set()
        await holding
        await background.run(lambda: None)
        return ran, waiting.cancelled()

    assert asyncio.run(run()) == (["done"], True)


def test_thread_ends_with_its_owner():
    async def run(background):
        return await background.run(threading.current_thread)

    background = ThreadBackground()
    thread = asyncio.run(run(background))
    del background
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


class TimedWork:
    """Work that takes as long as the test says, by a clock that stands still otherwise."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.threads: list[threading.Thread] = []

    def __call__(self, took_s: float):
        def work():
            self.threads.append(threading.current_thread())
            self.now_s += took_s

        return work


def on_a_timed_thread(scenario):
    async def body():
        timed = TimedWork()
        await scenario(ThreadBackground(now_s=lambda: timed.now_s), timed)

    asyncio.run(body())


async def learn(background, timed, took_s, times=SHORT_POINTS, *, is_small=True):
    for _ in range(times):
        await background.run(timed(took_s), is_small=is_small)


def runs_at_once(background, work):
    return background.run(work, is_small=True).done()


def test_small_work_is_done_at_once_when_it_was_short_several_times():
    async def scenario(background, timed):
        await learn(background, timed, SHORT_WORK_S / 2)
        assert threading.current_thread() not in timed.threads
        timed.threads.clear()
        assert runs_at_once(background, timed(SHORT_WORK_S / 2))
        assert runs_at_once(background, timed(SHORT_WORK_S / 2))
        assert timed.threads == [threading.current_thread()] * 2
        assert not background.run(timed(0)).done()

    on_a_timed_thread(scenario)


def test_work_that_is_long_several_times_goes_to_the_thread_until_it_is_short_again():
    async def scenario(background, timed):
        await learn(background, timed, 0, times=100)
        for _ in range(3):
            assert runs_at_once(background, timed(SHORT_WORK_S))
        timed.threads.clear()
        await learn(background, timed, 0, times=2)
        await learn(background, timed, SHORT_WORK_S, times=1)
        assert threading.current_thread() in timed.threads
        timed.threads.clear()
        await learn(background, timed, 0, times=2)
        assert threading.current_thread() not in timed.threads
        assert runs_at_once(background, timed(0))

    on_a_timed_thread(scenario)


def test_one_stall_sends_the_next_work_to_the_thread():
    async def scenario(background, timed):
        await learn(background, timed, 0, times=100)
        assert runs_at_once(background, timed(STALL_S))
        timed.threads.clear()
        await learn(background, timed, 0)
        assert threading.current_thread() not in timed.threads
        assert runs_at_once(background, timed(0))

    on_a_timed_thread(scenario)


def test_how_long_other_work_takes_tells_nothing_of_small_work():
    async def scenario(background, timed):
        await learn(background, timed, 0, times=100, is_small=False)
        timed.threads.clear()
        await learn(background, timed, 0)
        assert threading.current_thread() not in timed.threads
        await learn(background, timed, STALL_S, times=100, is_small=False)
        assert runs_at_once(background, timed(0))

    on_a_timed_thread(scenario)


def test_nothing_overtakes_the_work_of_the_thread():
    async def scenario(background, timed):
        await learn(background, timed, 0)
        gate = threading.Event()
        holding = background.run(lambda: gate.wait(DEADLINE_S))
        behind = background.run(timed(0), is_small=True)
        assert not behind.done()
        gate.set()
        await holding
        await behind
        assert runs_at_once(background, timed(0))

    on_a_timed_thread(scenario)


def test_a_failure_at_once_is_raised_by_its_future_and_counts_by_its_time():
    async def scenario(background, timed):
        await learn(background, timed, 0)

        def work():
            timed.now_s += STALL_S
            raise OSError(5, "the disk")

        failed = background.run(work, is_small=True)
        assert failed.done()
        with pytest.raises(OSError, match="the disk"):
            await failed
        behind = background.run(timed(0), is_small=True)
        assert not behind.done()
        await behind

    on_a_timed_thread(scenario)


def test_logs_of_one_process_do_not_wait_for_each_other():
    async def body():
        threads = DiskThreads()
        logs = [ThreadBackground(threads) for _ in range(THREADS_MAX)]
        together = threading.Barrier(THREADS_MAX)
        return await asyncio.gather(*(log.run(lambda: together.wait(DEADLINE_S)) for log in logs))

    assert sorted(asyncio.run(body())) == list(range(THREADS_MAX))


def test_more_logs_than_threads_take_turns():
    async def body():
        threads, names = DiskThreads(), set()
        logs = [ThreadBackground(threads) for _ in range(3 * THREADS_MAX)]

        def work():
            names.add(threading.current_thread().name)

        await asyncio.gather(*(log.run(work) for log in logs for _ in range(5)))
        return names

    assert 1 <= len(asyncio.run(body())) <= THREADS_MAX


def quick(threads: DiskThreads) -> ThreadBackground:
    """A background whose disk is known to be quick, in a process with another log."""
    ThreadBackground(threads)
    background = ThreadBackground(threads)
    background._points = SHORT_POINTS
    return background


def test_small_work_of_several_logs_is_done_together_while_the_loop_waits():
    """Each piece waits for the others: one after the other none would end."""

    async def run():
        threads = DiskThreads()
        backgrounds = [quick(threads) for _ in range(THREADS_MAX)]
        meeting = threading.Barrier(len(backgrounds), timeout=DEADLINE_S)
        futures = [background.run(meeting.wait, is_small=True) for background in backgrounds]
        assert not any(future.done() for future in futures)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert all(future.done() for future in futures)
        return await asyncio.gather(*futures)

    assert sorted(asyncio.run(run())) == list(range(THREADS_MAX))


def test_a_turn_does_not_wait_for_threads_that_have_other_work():
    async def run():
        threads = DiskThreads(2)
        backgrounds = [quick(threads) for _ in range(3)]
        gate, entered = threading.Event(), threading.Semaphore(0)

        def hold():
            entered.release()
            gate.wait(DEADLINE_S)

        held = [ThreadBackground(threads).run(hold) for _ in range(2)]
        for _ in held:
            await asyncio.to_thread(entered.acquire)
        small = [background.run(threading.get_ident, is_small=True) for background in backgrounds]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [await future for future in small] == [threading.get_ident()] * 3
        gate.set()
        await asyncio.gather(*held)

    asyncio.run(run())


def test_an_error_in_a_turn_is_only_its_own():
    def fail():
        raise OSError(28, "full")

    async def run():
        threads = DiskThreads()
        bad, good = quick(threads), quick(threads)
        failed, done = bad.run(fail, is_small=True), good.run(lambda: 7, is_small=True)
        behind = bad.run(lambda: 8, is_small=True)
        with pytest.raises(OSError, match="full"):
            await failed
        assert (await done, await behind) == (7, 8)

    asyncio.run(run())


def test_a_turn_is_done_though_no_thread_can_be_started(monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    async def run():
        threads = DiskThreads()
        backgrounds = [quick(threads) for _ in range(3)]
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            futures = [background.run(lambda: 1, is_small=True) for background in backgrounds]
            assert await asyncio.gather(*futures) == [1, 1, 1]
        return await asyncio.gather(*(background.run(lambda: 2) for background in backgrounds))

    assert asyncio.run(run()) == [2, 2, 2]


async def _until_told(turns_before: int, timeout_s: float) -> list[str]:
    """What happens, and when: turns of the loop, after the future is done, and the end."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    seen: list[str] = []

    async def wait() -> None:
        await wait_until_done(future, timeout_s)
        seen.append("goes on" if future.done() else "still open")

    waiting = loop.create_task(wait())
    for _ in range(turns_before):
        await asyncio.sleep(0)
    future.set_result(None)
    while not waiting.done():
        seen.append("turn")
        await asyncio.sleep(0)
    return seen


def test_a_wait_goes_on_in_the_turn_after_its_end():
    assert asyncio.run(_until_told(5, DEADLINE_S)) == ["turn", "goes on"]


def test_a_wait_ends_with_its_time_and_leaves_no_timer():
    async def run():
        loop = asyncio.get_running_loop()
        timers = []
        call_later = loop.call_later
        loop.call_later = lambda *arguments: timers.append(call_later(*arguments)) or timers[-1]
        future = loop.create_future()
        await wait_until_done(future, 0.001)
        assert future.done()
        cancelled = loop.create_task(wait_until_done(loop.create_future(), DEADLINE_S))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        return [timer.cancelled() for timer in timers]

    assert asyncio.run(run()) == [True, True]
