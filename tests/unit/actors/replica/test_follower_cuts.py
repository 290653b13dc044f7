"""A follower cuts its log, and the disk refuses half way: nothing that was cut is acknowledged."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from crash_disk import CrashDisk
from followers import CUT_AT, TOPIC_ID, Follower, batches_of_two_leaders
from msgspec import structs

from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.storage.errors import ErrorCode

Scenario = Callable[[Follower], Coroutine[Any, Any, None]]


def play(*scenarios: Scenario) -> None:
    """Each in a life of its own, on what the one before has left on the disk."""

    async def body() -> None:
        disk = CrashDisk()
        for scenario in scenarios:
            follower = Follower(disk)
            await follower.start()
            await scenario(follower)
            await follower.kill()
            disk = disk.after_kill()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("call", "suffix", "number"),
    [
        ("open", ".snapshot", errno.EMFILE),
        ("read", ".snapshot", errno.EMFILE),
        ("read", ".log", errno.EMFILE),
        ("read", ".log", errno.EIO),
        ("datasync", ".log", errno.EMFILE),
        ("datasync", ".log", errno.EIO),
    ],
)
def test_nothing_that_was_cut_is_acknowledged_after_a_cut_that_failed(
    call: str, suffix: str, number: int
) -> None:
    """1. The follower has 24 records of epoch 1. 2. A leader of epoch 2 has another 24th: it cuts,
    and the disk refuses once before the machine is rebuilt. 3. The leader of epoch 1 leads again,
    in epoch 3, with its own 24th, and asks whether the follower has it. 4. A start.
    """
    first, second = batches_of_two_leaders()

    async def cuts(follower: Follower) -> None:
        await follower.push(1, b"".join(first[:10]), at=0, before=-1)
        follower.replica.log.roll(follower.replica.machine.snapshot())
        taken = await follower.push(1, b"".join(first[10:]), at=10, before=1)
        assert (taken.error, taken.log_end_offset) == (ErrorCode.NONE, 24)
        follower.disk.fail(call, suffix, number, times=1)
        refused = await follower.push(2, second, at=CUT_AT, before=1)
        assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
        probe = await follower.push(3, b"", at=24, before=1)
        assert (probe.error, probe.log_end_offset) != (ErrorCode.NONE, 24)
        assert not follower.replica.is_following
        assert follower.replica.failure is not None
        # What may pass needs no operator.
        assert len(follower.events.restarts) == (number == errno.EMFILE)

    async def begins_again(follower: Follower) -> None:
        replica = follower.replica
        assert replica.machine.log_end_offset == replica.log.log_end_offset
        assert replica.log.log_end_offset in (CUT_AT, 24)
        taken = await follower.push(3, second, at=CUT_AT, before=1)
        assert (taken.error, taken.log_end_offset) == (ErrorCode.NONE, 24)
        await follower.stop()

    play(cuts, begins_again)


def test_a_follower_that_failed_is_not_elected() -> None:
    """It would lead with what its machine was left with."""
    first, second = batches_of_two_leaders()

    async def scenario(follower: Follower) -> None:
        await follower.push(1, b"".join(first), at=0, before=-1)
        follower.disk.fail("read", ".log", errno.EMFILE, times=1)
        await follower.push(2, second, at=CUT_AT, before=1)
        elected = await follower.told(3)
        told = BecomeLeaderReply(
            leader_epoch=4, topic_id=TOPIC_ID, leader=2, replicas=(1, 2), isr=elected.isr
        )
        assert follower.replica.learn_leadership(told) is not ErrorCode.NONE

    play(scenario)


def test_a_follower_is_not_elected_by_what_is_told_of_another_topic_of_its_name() -> None:
    async def scenario(follower: Follower) -> None:
        told = await follower.told(3)
        other = structs.replace(told, topic_id="b" * 32, leader_epoch=4, leader=2)
        assert follower.replica.learn_leadership(other) is ErrorCode.UNKNOWN_TOPIC_ID
        assert follower.replica.is_following
        mine = structs.replace(other, topic_id=TOPIC_ID)
        assert follower.replica.learn_leadership(mine) is ErrorCode.NONE
        assert not follower.replica.is_following

    play(scenario)
