"""Appends that wait for a follower which no longer counts are answered, however that is heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from actor_environment import InlineBackground
from deadlines import DEADLINE_S
from msgspec import structs
from virtual_time import give_turns

from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.protocol.messages.partition import ConfigureRequest
from oncelog.actors.protocol.messages.replication import ReplicateRequest
from oncelog.actors.protocol.partition.followers import Push, PushedBounds
from oncelog.storage.errors import ErrorCode


def replicate(harness: Any, *, isr: tuple[int, ...] = (1, 2), minimum: str = "2") -> None:
    """The controller says that brokers 1 and 2 are replicas, and who is in sync; nobody reaches 2.

    With an ISR of both, both are needed.
    """
    alone = harness.epoch_source

    async def epoch_source(last_epoch: int) -> BecomeLeaderReply:
        return structs.replace(
            await alone(last_epoch),
            leader=1,
            partition_version=1,
            replicas=(1, 2),
            hosts=(0, 0),
            isr=isr,
            settings=(("min_insync_replicas", minimum),),
        )

    harness.epoch_source = epoch_source
    harness.background = InlineBackground()


def isr_is_smaller(replica: Any) -> BecomeLeaderReply:
    return structs.replace(replica.leadership, isr=(1,), partition_version=2)


def minimum_is_larger(replica: Any) -> BecomeLeaderReply:
    """A change of settings does not raise the partition's version."""
    settings = (("min_insync_replicas", "3"),)
    return structs.replace(replica.leadership, settings=settings, settings_version=1)


@pytest.mark.parametrize("change", [isr_is_smaller, minimum_is_larger])
def test_who_waits_is_answered_when_the_controller_tells_that_too_few_are_in_sync(
    harness: Any, change: Callable[[Any], BecomeLeaderReply]
) -> None:
    async def body() -> None:
        replicate(harness)
        await harness.start()
        replica = harness.replica
        producing = asyncio.ensure_future(harness.produce(harness.batch(b"v"), acks=-1))
        patient: list[ErrorCode] = []
        await give_turns()
        replica.when_committed(1, patient.append)
        await give_turns()
        assert (replica.machine.log_end_offset, producing.done()) == (1, False)
        assert replica.learn_leadership(change(replica)) is ErrorCode.NONE
        reply = await asyncio.wait_for(producing, DEADLINE_S)
        assert reply.error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        refused = await harness.produce(harness.batch(b"w"), acks=-1)
        assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS
        assert patient == []
        await replica.stop()
        assert patient == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    asyncio.run(body())


PUSH = Push(
    broker_id=2,
    number=1,
    bytes_max=0,
    leader_epoch=0,
    epoch_start_offset=0,
    previous_end_offset=0,
    bounds=PushedBounds(0, 0),
)


async def configured(harness: Any, *settings: tuple[str, str], version: int) -> ErrorCode:
    request = ConfigureRequest(
        topic_partition=harness.tp,
        topic_id=harness.topic_id,
        settings=settings,
        settings_version=version,
    )
    return (await harness.leader.configure(request)).error


async def told(harness: Any, *settings: tuple[str, str], version: int) -> ErrorCode:
    leadership = structs.replace(
        harness.replica.leadership, settings=settings, settings_version=version
    )
    error: ErrorCode = harness.replica.learn_leadership(leadership)
    return error


@pytest.mark.parametrize("tell", [configured, told])
def test_a_running_leader_follows_another_minimum_in_sync(harness: Any, tell: Any) -> None:
    async def body() -> None:
        replicate(harness, isr=(1,), minimum="1")
        await harness.start()
        assert (await harness.produce(harness.batch(b"a"), acks=-1)).error is ErrorCode.NONE
        assert await tell(harness, ("min_insync_replicas", "2"), version=2) is ErrorCode.NONE
        described = harness.replica.describe(1)
        assert (described.min_insync_replicas, described.takes_writes) == (2, False)
        refused = await harness.produce(harness.batch(b"b"), acks=-1)
        assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS
        # A late copy of the change before.
        assert await tell(harness, ("min_insync_replicas", "1"), version=1) is ErrorCode.NONE
        assert harness.replica.describe(1).min_insync_replicas == 2
        # In an emergency it is lowered again; "auto" is 1 with two replicas.
        assert await tell(harness, version=3) is ErrorCode.NONE
        assert (await harness.produce(harness.batch(b"b"), acks=-1)).error is ErrorCode.NONE
        told = harness.replica.request_of(PUSH)
        assert told is not None
        assert told.settings_version == 3
        await harness.replica.stop()

    asyncio.run(body())


def test_the_minimum_in_sync_follows_the_count_of_replicas(harness: Any) -> None:
    """Three replicas spare one, so "auto" is 2; one that a move adds does not count."""

    async def body() -> None:
        replicate(harness, isr=(1,), minimum="auto")
        await harness.start()
        replica = harness.replica
        grown = structs.replace(
            replica.leadership, partition_version=2, replicas=(1, 2, 3), hosts=(0, 0, 0)
        )
        moving = structs.replace(grown, replication_factor=2)
        assert replica.learn_leadership(moving) is ErrorCode.NONE
        assert replica.describe(1).min_insync_replicas == 1
        settled = structs.replace(grown, partition_version=3, replication_factor=3)
        assert replica.learn_leadership(settled) is ErrorCode.NONE
        assert replica.describe(1).min_insync_replicas == 2
        assert replica.check_append() is ErrorCode.NOT_ENOUGH_REPLICAS
        await replica.stop()

    asyncio.run(body())


def test_a_follower_follows_settings_and_asks_for_those_that_its_leader_knows(harness: Any) -> None:
    """How it syncs is a setting too: what it acknowledges would be as safe as before."""

    async def body() -> None:
        replicate(harness)
        led_by_another = harness.epoch_source

        async def epoch_source(last_epoch: int) -> BecomeLeaderReply:
            return structs.replace(await led_by_another(last_epoch), leader=2, leader_epoch=5)

        harness.epoch_source = epoch_source
        starting = asyncio.ensure_future(harness.start())
        await give_turns()
        replica, events = harness.replica, harness.events
        assert replica.is_following
        assert await configured(harness, ("flush", "os"), version=2) is ErrorCode.NONE
        assert replica.topic.flush == "os"
        push = ReplicateRequest(
            topic_partition=harness.tp,
            topic_id=harness.topic_id,
            leader=2,
            leader_epoch=5,
            epoch_start_offset=0,
            previous_end_offset=0,
            previous_leader_epoch=-1,
            high_watermark=0,
            log_start_offset=0,
            settings_version=2,
            batches=b"",
        )
        assert (await replica.replicate(push)).error is ErrorCode.NONE
        assert events.settings_requests == 0
        newer = structs.replace(push, settings_version=3)
        assert (await replica.replicate(newer)).error is ErrorCode.NONE
        assert events.settings_requests == 1
        await replica.stop()
        await starting
        late = await configured(harness, ("flush", "sync"), version=3)
        assert (late, replica.topic.flush) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, "os")

    asyncio.run(body())
