"""Appends that wait for a follower which no longer counts are answered, however that is heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from actor_surroundings import InlineBackground, until_idle
from msgspec import structs

from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.storage.errors import ErrorCode


def replicate(harness: Any) -> None:
    """The controller says that brokers 1 and 2 are in sync and both needed; nobody reaches 2."""
    alone = harness.epoch_source

    async def epoch_source(last_epoch: int) -> BecomeLeaderReply:
        return structs.replace(
            await alone(last_epoch),
            leader=1,
            partition_version=1,
            replicas=(1, 2),
            hosts=(0, 0),
            isr=(1, 2),
            min_insync_replicas=2,
        )

    harness.epoch_source = epoch_source
    harness.background = InlineBackground()


def isr_is_smaller(replica: Any) -> BecomeLeaderReply:
    return structs.replace(replica.leadership, isr=(1,), partition_version=2)


def minimum_is_larger(replica: Any) -> BecomeLeaderReply:
    return structs.replace(replica.leadership, min_insync_replicas=3, partition_version=2)


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
        await until_idle()
        replica.when_committed(1, patient.append)
        await until_idle()
        assert (replica.machine.log_end_offset, producing.done()) == (1, False)
        assert replica.learn_leadership(change(replica)) is ErrorCode.NONE
        reply = await asyncio.wait_for(producing, 5)
        assert reply.error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        refused = await harness.produce(harness.batch(b"w"), acks=-1)
        assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS
        assert patient == []
        await replica.stop()
        assert patient == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    asyncio.run(body())
