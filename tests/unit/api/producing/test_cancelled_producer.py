"""Every task of the loop is cancelled, as frameworks do when they shut down: a producer says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from deadlines import until
from inside import core_of
from virtual_time import give_turns

from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.actors.protocol.messages.transaction import EndTxnRequest
from oncelog.storage.exceptions import ClientClosedError, TransactionAbortableError

WITHIN_S = 20
TURNS = [0, 1, 2, 5, 50]
"""How long after the tasks were made they are cancelled: before their first step, and later."""

SAYS_SO = "was cancelled by the program"


async def cancel_all(turns: int) -> None:
    await give_turns(turns)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@pytest.mark.parametrize("turns", TURNS)
def test_a_producer_whose_tasks_are_cancelled_fails_at_once_and_close_ends(
    cluster: Any, run: Any, turns: int
) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, 60.0)

    async def story() -> None:
        producer = cluster.producer(linger_ms=0)
        sent = await producer.send("t", b"first")
        await asyncio.sleep(0.0015)
        await cancel_all(turns)
        with pytest.raises(ClientClosedError, match=SAYS_SO):
            await asyncio.wait_for(sent, WITHIN_S)
        with pytest.raises(ClientClosedError, match=SAYS_SO):
            await asyncio.wait_for(producer.send("t", b"second"), WITHIN_S)
        await asyncio.wait_for(producer.flush(), WITHIN_S)
        await asyncio.wait_for(producer.close(), WITHIN_S)

    run(story())


def test_who_flushes_or_waits_for_room_meanwhile_is_told(cluster: Any, run: Any) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, 60.0, 60.0)

    async def story() -> None:
        producer = cluster.producer(buffer_memory=1, linger_ms=0)
        await producer.send("t", b"first")
        await asyncio.sleep(0.1)
        sender = core_of(producer).sender
        internal = list(sender._tasks._tasks)
        flushing = asyncio.ensure_future(producer.flush())
        sending = asyncio.ensure_future(producer.send("t", b"second"))
        await asyncio.sleep(0.1)
        assert internal
        for task in internal:
            task.cancel()
        for call in (flushing, sending):
            with pytest.raises(ClientClosedError, match=SAYS_SO):
                await asyncio.wait_for(call, WITHIN_S)
        await asyncio.wait_for(producer.close(), WITHIN_S)

    run(story())


@pytest.mark.parametrize("delay_s", [0.0, 0.0015, 0.003, 0.1])
@pytest.mark.parametrize("turns", TURNS)
def test_a_transaction_whose_tasks_are_cancelled_is_aborted_and_the_next_one_commits(
    cluster: Any, run: Any, turns: int, delay_s: float
) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = cluster.producer("loader", linger_ms=0)
        await producer.init_transactions()
        await producer.begin_transaction()
        cluster.fault(ProduceRequest, 60.0)
        sent = await producer.send("t", b"first")
        await asyncio.sleep(delay_s)
        await cancel_all(turns)
        if not delay_s:
            # Perhaps nothing had been begun that could be cancelled.
            await asyncio.sleep(0.1)
            await cancel_all(turns)
        for call in (producer.commit_transaction, producer.flush):
            with pytest.raises(TransactionAbortableError, match=SAYS_SO):
                await asyncio.wait_for(call(), WITHIN_S)
        with pytest.raises(TransactionAbortableError, match=SAYS_SO):
            await sent
        await asyncio.wait_for(producer.abort_transaction(), WITHIN_S)
        cluster.faults.clear()
        async with producer.transaction():
            await producer.send("t", b"next")
        await asyncio.wait_for(producer.close(), WITHIN_S)

    run(story())
    assert leader.committed_values() == [b"next"]


def test_a_commit_that_waits_for_what_is_cancelled_is_refused(cluster: Any, run: Any) -> None:
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = cluster.producer("loader")
        await producer.init_transactions()
        await producer.begin_transaction()
        cluster.fault(ProduceRequest, 60.0)
        await producer.send("t", b"first")
        committing = asyncio.ensure_future(producer.commit_transaction())
        await asyncio.sleep(1)
        for task in list(core_of(producer).sender._tasks._tasks):
            task.cancel()
        with pytest.raises(TransactionAbortableError, match=SAYS_SO):
            await asyncio.wait_for(committing, WITHIN_S)
        await asyncio.wait_for(producer.close(), WITHIN_S)

    run(story())
    assert leader.committed_values() == []


def test_a_transaction_that_lost_nothing_with_a_cancelled_task_goes_on(
    cluster: Any, run: Any
) -> None:
    """What ends the transaction begun ahead is cancelled: the next enrolment ends it."""
    (leader,) = cluster.create("t")

    async def story() -> None:
        producer = cluster.producer("loader")
        await producer.init_transactions()
        for number in range(3):
            async with producer.transaction():
                await producer.send("t", b"%d" % number)
        internal = core_of(producer).sender._tasks._tasks
        await until(lambda: internal, look_s=0.0001)
        for task in tuple(internal):
            task.cancel()
        async with producer.transaction():
            await producer.send("t", b"next")
        await producer.close()

    run(story())
    assert leader.committed_values() == [b"0", b"1", b"2", b"next"]


def test_a_commit_with_nothing_on_its_way_any_more_is_not_spoilt(cluster: Any, run: Any) -> None:
    """Its outcome is the coordinator's to tell by then."""
    (leader,) = cluster.create("t")
    cluster.fault(EndTxnRequest, 1.0)

    async def story() -> None:
        producer = cluster.producer("loader")
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send("t", b"first")
        committing = asyncio.ensure_future(producer.commit_transaction())
        await until(lambda: cluster.requests(EndTxnRequest), look_s=0.0001)
        core_of(producer).sender._tasks.spawn(asyncio.sleep(60)).cancel()
        assert await asyncio.wait_for(committing, WITHIN_S)
        await producer.close()

    run(story())
    assert leader.committed_values() == [b"first"]
