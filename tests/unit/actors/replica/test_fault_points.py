"""Every file call of what a follower does fails once, in every way in which it can.

The calls are not listed: a run without a fault counts them, and each further run fails one of them.
Afterwards machine and log are equal or the replica is offline; what is acknowledged survives a loss
of power; and the next start serves, or says why not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

import pytest
from crash_disk import CrashDisk, DataLoss, NameLoss
from followers import CUT_AT, TOPIC_ID, Follower, batches_of_two_leaders
from pointed_disk import ERRORS, PointedDisk, errors_of
from virtual_time import run_virtually

from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.storage.errors import ErrorCode

FIRST, SECOND = batches_of_two_leaders()
ENDS = 24
LATER_S = 3.0
"""Time in which what is refused once is done after all."""

Deed = Callable[[Follower], Awaitable[object]]


async def cut(follower: Follower) -> object:
    return await follower.push(2, SECOND, at=CUT_AT, before=1)


async def restart_at(follower: Follower) -> object:
    return await follower.push(2, b"", at=100, before=1, log_start_offset=100)


async def take(follower: Follower) -> object:
    return await follower.push(1, b"".join(FIRST[12:]), at=12, before=1)


async def begin_epoch(follower: Follower) -> object:
    told = BecomeLeaderReply(
        leader_epoch=3, topic_id=TOPIC_ID, leader=2, replicas=(1, 2), hosts=(0, 0), isr=(1, 2)
    )
    follower.replica.learn_leadership(told)
    await asyncio.sleep(LATER_S)
    return None


async def stop(follower: Follower) -> object:
    await follower.replica.stop()
    return None


async def remove(follower: Follower) -> object:
    await follower.replica.stop(remove_data=True)
    return None


DEEDS: dict[str, tuple[int, int, Deed]] = {
    "cut": (ENDS, CUT_AT, cut),
    "restart-at": (ENDS, 0, restart_at),
    "take and roll": (12, 12, take),
    "begin-epoch": (ENDS, ENDS, begin_epoch),
    "stop": (ENDS, ENDS, stop),
    "remove": (ENDS, 0, remove),
}
"""Each with how many records are acknowledged before, and how many of these it leaves."""


@dataclass
class Life:
    """One run of a deed: the disk that it left, and what was acknowledged."""

    disk: PointedDisk
    follower: Follower
    promised: int


async def lived(name: str, fails_at: int, error: tuple[int, float]) -> Life:
    records, promised, deed = DEEDS[name]
    disk = PointedDisk()
    follower = Follower(disk)
    await follower.start()
    reply = await follower.push(1, b"".join(FIRST[:records]), at=0, before=-1)
    assert reply.log_end_offset == records
    disk.fails_at, disk.error, disk.is_armed = fails_at, error, True
    await deed(follower)
    disk.is_armed = False
    replica = follower.replica
    await asyncio.sleep(LATER_S)
    if replica.is_following:
        machine, log = replica.machine, replica.log
        assert machine.log_end_offset == log.log_end_offset
        epochs = log.leader_epochs
        before = epochs[-1][0] if epochs else -1
        probe = await follower.push(9, b"", at=log.log_end_offset, before=before)
        if probe.error is ErrorCode.NONE and probe.diverging_end_offset < 0:
            assert probe.log_end_offset <= log.log_end_offset
            promised = max(promised, probe.log_end_offset)
    elif replica.availability() is ErrorCode.NONE:
        assert replica.machine.log_end_offset == replica.log.log_end_offset
        assert replica.log.leader_epochs[-1][0] == 3
    await follower.kill()
    return Life(disk, follower, promised)


async def begun_again(disk: CrashDisk) -> Follower:
    """The next start, until it follows or says why not."""
    follower = Follower(disk)
    starting = asyncio.ensure_future(follower.start())
    for _ in range(600):
        await asyncio.sleep(0.1)
        if starting.done() or follower.replica.failure is not None:
            break
    starting.cancel()
    await asyncio.wait({starting})
    return follower


async def check(life: Life, deed: str) -> None:
    for disk in (
        life.disk.after_kill(),
        life.disk.after_power_loss(DataLoss.ALL, NameLoss.ALL, Random(1)),
    ):
        follower = await begun_again(disk)
        again = follower.replica
        assert again.is_following or again.failure is not None, deed
        if again.is_following:
            assert again.machine.log_end_offset == again.log.log_end_offset
            assert again.log.log_end_offset >= life.promised
        await follower.kill()


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEDS)
def test_whatever_call_fails_log_and_machine_are_equal_or_the_replica_is_offline(
    name: str,
) -> None:
    async def body() -> int:
        whole = await lived(name, 0, ERRORS[0])
        count = len(whole.disk.calls)
        for fails_at in range(1, count + 1):
            for error in errors_of(whole.disk.calls[fails_at - 1]):
                life = await lived(name, fails_at, error)
                await check(life, f"{life.disk.calls[fails_at - 1]} failed with {error}")
        return count

    assert run_virtually(body()) > 3
