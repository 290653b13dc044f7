"""Every task of the loop is cancelled, as frameworks do when they shut down: a consumer says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from inside import core_of, membership_of
from virtual_time import give_turns

from oncelog.actors.protocol.messages.group import (
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
)
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.storage.exceptions import ClientClosedError
from oncelog.storage.model import TopicPartition

TP = TopicPartition("t", 0)
WITHIN_S = 20
TURNS = [0, 1, 2, 200]
"""How long after the tasks were made they are cancelled: before their first step, and later."""


def consumer_of(cluster: Any, **settings: Any) -> AsyncConsumer:
    options = {"auto_offset_reset": "earliest", "enable_auto_commit": False} | settings
    return AsyncConsumer(cluster.router(), ConsumerSettings.from_options(options), cluster.random)


async def cancel_all(*, but: Iterable[asyncio.Task[Any]] = (), turns: int = 0) -> None:
    await give_turns(turns)
    for task in asyncio.all_tasks() - {asyncio.current_task(), *but}:
        task.cancel()


@pytest.mark.parametrize("turns", TURNS)
def test_a_poll_says_that_what_fetches_was_cancelled_and_close_ends(
    fake_cluster: Any, run: Any, turns: int
) -> None:
    (log,) = fake_cluster.create("t")
    log.append(b"first")

    async def story() -> None:
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.assign(TP)
        assert [record.value for record in await consumer.poll(1_000)] == [b"first"]
        await consumer.seek(TP, 1)
        await cancel_all(turns=turns)
        await asyncio.sleep(0)
        log.append(b"second")
        for _ in range(2):
            with pytest.raises(ClientClosedError, match="was cancelled by the program"):
                await asyncio.wait_for(consumer.poll(60_000), WITHIN_S)
        await asyncio.wait_for(consumer.commit(), WITHIN_S)
        await asyncio.wait_for(consumer.close(), WITHIN_S)

    run(story())
    assert len(fake_cluster.requests(OffsetCommitRequest)) == 1


def test_a_poll_that_waits_is_told_at_once(fake_cluster: Any, run: Any) -> None:
    fake_cluster.create("t")

    async def story() -> None:
        consumer = consumer_of(fake_cluster)
        await consumer.assign(TP)
        polling = asyncio.ensure_future(consumer.poll(60_000))
        await asyncio.sleep(1)
        await cancel_all(but=[polling])
        with pytest.raises(ClientClosedError, match="was cancelled by the program"):
            await asyncio.wait_for(polling, WITHIN_S)
        await asyncio.wait_for(consumer.close(), WITHIN_S)

    run(story())


def test_a_consumer_without_its_look_at_idle_leaders_says_so(fake_cluster: Any, run: Any) -> None:
    fake_cluster.create("t")

    async def story() -> None:
        consumer = consumer_of(fake_cluster)
        await consumer.assign(TP)
        await consumer.poll(0)
        idle_check = core_of(consumer).fetcher._idle_check
        assert idle_check is not None
        idle_check.cancel()
        with pytest.raises(ClientClosedError, match="was cancelled by the program"):
            await asyncio.wait_for(consumer.poll(60_000), WITHIN_S)
        await consumer.close()

    run(story())


@pytest.mark.parametrize("turns", TURNS)
def test_a_member_without_heartbeats_says_so_and_leaves_its_group_with_close(
    fake_cluster: Any, run: Any, turns: int
) -> None:
    (log,) = fake_cluster.create("t")
    log.append(b"first")

    async def story() -> None:
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.subscribe("t")
        while not await consumer.poll(1_000):
            pass
        await give_turns(turns)
        membership = membership_of(consumer)
        assert membership is not None
        assert membership._heartbeats is not None
        membership._heartbeats.cancel()
        with pytest.raises(ClientClosedError, match="was cancelled by the program"):
            await asyncio.wait_for(consumer.poll(60_000), WITHIN_S)
        await asyncio.wait_for(consumer.close(), WITHIN_S)

    run(story())
    assert len(fake_cluster.requests(LeaveGroupRequest)) == 1


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 10])
def test_a_rebalance_that_was_cancelled_is_begun_again(
    fake_cluster: Any, run: Any, turns: int
) -> None:
    (log,) = fake_cluster.create("t")
    log.append(b"first")

    async def story() -> None:
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.subscribe("t")
        await consumer.poll(0)
        await give_turns(turns)
        maintenance = core_of(consumer)._maintenance
        assert maintenance is not None
        assert not maintenance.done()
        await cancel_all()
        for _ in range(WITHIN_S):
            if records := await consumer.poll(1_000):
                break
        assert [record.value for record in records] == [b"first"]
        await asyncio.wait_for(consumer.close(), WITHIN_S)

    run(story())
    assert fake_cluster.requests(JoinGroupRequest)


def test_what_a_consumer_ends_itself_is_no_failure(fake_cluster: Any, run: Any) -> None:
    (log,) = fake_cluster.create("t", 1)
    log.append(b"first")

    async def story() -> None:
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.assign(TP)
        await consumer.poll(0)
        await consumer.seek(TP, 0)
        await consumer.assign(())
        await consumer.unsubscribe()
        await consumer.subscribe("t")
        while not await consumer.poll(1_000):
            pass
        await consumer.unsubscribe()
        await consumer.assign(TP)
        await consumer.seek(TP, 0)
        assert await consumer.poll(1_000)
        await consumer.close()

    run(story())
