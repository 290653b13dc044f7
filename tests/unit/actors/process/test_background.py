from __future__ import annotations

import asyncio
import threading

import pytest

from oncelog.actors.process.background import BRISK_POINTS, SHORT_WORK_S, STALL_S, ThreadBackground
from oncelog.storage.disk.sync_point import SyncPoint


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
            gate.wait(10)

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
    thread.join(10)
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


class TimedSync(SyncPoint):
    """A sync that is nothing but timed work."""

    def __init__(self, work, *, is_small: bool) -> None:
        self.sync = work
        self.is_small = is_small

    def lend(self) -> None:
        return None


def on_a_timed_thread(scenario):
    async def body():
        timed = TimedWork()
        await scenario(ThreadBackground(lambda: timed.now_s), timed)

    asyncio.run(body())


async def learn(background, timed, took_s, times=BRISK_POINTS, *, is_small=True):
    for _ in range(times):
        await background.run(TimedSync(timed(took_s), is_small=is_small))


def test_work_is_done_at_once_when_such_work_was_short_several_times():
    async def scenario(background, timed):
        await learn(background, timed, SHORT_WORK_S / 2, times=BRISK_POINTS - 1)
        assert not background.try_now(timed(0))
        await learn(background, timed, SHORT_WORK_S / 2, times=1)
        timed.threads.clear()
        assert background.try_now(timed(SHORT_WORK_S / 2))
        assert background.try_now(timed(SHORT_WORK_S / 2))
        assert timed.threads == [threading.current_thread()] * 2

    on_a_timed_thread(scenario)


def test_work_that_is_long_several_times_goes_to_the_thread_until_it_is_short_again():
    async def scenario(background, timed):
        await learn(background, timed, 0, times=100)
        for _ in range(3):
            assert background.try_now(timed(SHORT_WORK_S))
        assert not background.try_now(timed(0))
        await learn(background, timed, 0, times=1)
        assert not background.try_now(timed(0))
        await learn(background, timed, 0, times=1)
        assert background.try_now(timed(0))
        await learn(background, timed, SHORT_WORK_S, times=1)
        assert not background.try_now(timed(0))

    on_a_timed_thread(scenario)


def test_one_stall_sends_the_next_work_to_the_thread():
    async def scenario(background, timed):
        await learn(background, timed, 0, times=100)
        assert background.try_now(timed(STALL_S))
        assert not background.try_now(timed(0))
        await learn(background, timed, 0, times=BRISK_POINTS - 1)
        assert not background.try_now(timed(0))
        await learn(background, timed, 0, times=1)
        assert background.try_now(timed(0))

    on_a_timed_thread(scenario)


def test_how_long_other_work_takes_tells_nothing_of_small_syncs():
    async def scenario(background, timed):
        await learn(background, timed, 0, times=100, is_small=False)
        assert background.is_brisk
        assert not background.try_now(timed(0))
        await learn(background, timed, 0)
        await learn(background, timed, STALL_S, times=100, is_small=False)
        await background.run(timed(STALL_S))
        assert not background.is_brisk
        assert background.try_now(timed(0))

    on_a_timed_thread(scenario)


def test_nothing_overtakes_the_work_of_the_thread():
    async def scenario(background, timed):
        await learn(background, timed, 0)
        gate = threading.Event()
        holding = background.run(lambda: gate.wait(10))
        assert not background.try_now(timed(0))
        gate.set()
        await holding
        assert background.try_now(timed(0))

    on_a_timed_thread(scenario)


def test_a_failure_at_once_is_raised_and_counts_by_its_time():
    async def scenario(background, timed):
        await learn(background, timed, 0)

        def work():
            timed.now_s += STALL_S
            raise OSError(5, "the disk")

        with pytest.raises(OSError, match="the disk"):
            background.try_now(work)
        assert not background.try_now(timed(0))

    on_a_timed_thread(scenario)
