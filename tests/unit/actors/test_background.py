from __future__ import annotations

import asyncio
import threading

import pytest

from oncelog.actors.background import ThreadBackground


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

    with pytest.raises(OSError, match="the disk"):
        asyncio.run(ThreadBackground().run(work))


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

        holding = asyncio.create_task(background.run(hold))
        waiting = asyncio.create_task(background.run(lambda: ran.append("done")))
        await asyncio.to_thread(entered.wait, 10)
        waiting.cancel()
        gate.set()
        await holding
        await background.run(lambda: None)
        return ran, waiting.cancelled()

    assert asyncio.run(run()) == (["done"], True)


def test_thread_ends_with_its_owner():
    background = ThreadBackground()
    thread = asyncio.run(background.run(threading.current_thread))
    del background
    thread.join(10)
    assert not thread.is_alive()
