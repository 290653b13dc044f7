"""Every file call of what a voter does fails once, in every way in which it can.

Afterwards, and after a loss of power, it takes back neither a vote that it gave, nor an epoch or a
record that it acknowledged; or it takes no part, and says why not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from actor_environment import InlineBackground
from copied_logs import DATA_DIR
from crash_disk import CrashDisk, DataLoss, NameLoss
from metadata_copies import asked, pushed
from pointed_disk import ERRORS, PointedDisk, errors_of
from virtual_time import ManualClock, run_virtually

from oncelog.actors.config import ClusterConfig, ReplicaConfig
from oncelog.actors.protocol.cluster.cluster_records import BrokerRegistered, VotersChanged
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest, VoteReply
from oncelog.actors.replica.events import ReplicaEvents
from oncelog.actors.replica.metadata_replica import MetadataCopy
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CLUSTER_METADATA_TOPIC

FOUNDER = BrokerRegistered(broker_id=1, data_dir="/d")
OTHERS = VotersChanged(voters=(1, 2, 3))
FIRST_EPOCH, NEXT_EPOCH = 4, 6
LATER_S = 3.0


class Voter:
    """Broker 2's copy of the metadata log, and what it has promised."""

    def __init__(self, disk: CrashDisk) -> None:
        self.disk = disk
        self.copy = MetadataCopy(
            config=ReplicaConfig(
                topic=CLUSTER_METADATA_TOPIC,
                partition=0,
                broker_id=2,
                data_dir=str(DATA_DIR),
                cluster=ClusterConfig(metadata_log_segment_bytes=4_096),
            ),
            filesystem=disk,
            clock=ManualClock(),
            background=InlineBackground(),
            events=ReplicaEvents(),
        )
        self._starting: asyncio.Future[object] | None = None

    async def start(self) -> None:
        """Until it follows, or says why it does not."""
        self._starting = asyncio.ensure_future(self.copy.start())
        for _ in range(600):
            await asyncio.sleep(0.1)
            if self.copy.replica.is_following or self.copy.replica.failure is not None:
                return

    async def kill(self) -> None:
        self.disk.kill()
        self.copy.replica.halt()
        assert self._starting is not None
        self._starting.cancel()
        await asyncio.wait({self._starting})

    async def push(self, request: ReplicateRequest) -> ReplicateReply:
        return await self.copy.replicate(request)


@dataclass
class Promises:
    """What the voter has answered: epoch → for whom it voted; the newest epoch; records."""

    votes: dict[int, int] = field(default_factory=dict)
    epoch: int = FIRST_EPOCH
    records: int = 2

    def note_vote(self, epoch: int, candidate: int, reply: VoteReply) -> None:
        if reply.is_granted:
            self.votes[epoch] = candidate
            self.epoch = max(self.epoch, epoch)

    def note_push(self, epoch: int, reply: ReplicateReply) -> None:
        if reply.error is ErrorCode.NONE and reply.diverging_end_offset < 0:
            self.epoch, self.records = max(self.epoch, epoch), reply.log_end_offset


Deed = Callable[[Voter, Promises], Awaitable[None]]


async def vote(voter: Voter, promises: Promises) -> None:
    promises.note_vote(NEXT_EPOCH, 3, await voter.copy.vote(asked(NEXT_EPOCH, 3)))


async def take(voter: Voter, promises: Promises) -> None:
    request = pushed(FIRST_EPOCH, FOUNDER, at=2, previous=FIRST_EPOCH)
    promises.note_push(FIRST_EPOCH, await voter.push(request))


async def take_of_another(voter: Voter, promises: Promises) -> None:
    request = pushed(NEXT_EPOCH, FOUNDER, leader=3, at=2, previous=FIRST_EPOCH)
    promises.note_push(NEXT_EPOCH, await voter.push(request))


async def cut(voter: Voter, promises: Promises) -> None:
    """What the first controller wrote last is not what the next one has there."""
    promises.records = 1
    request = pushed(NEXT_EPOCH, FOUNDER, leader=3, at=1, previous=FIRST_EPOCH)
    promises.note_push(NEXT_EPOCH, await voter.push(request))


async def stop(voter: Voter, promises: Promises) -> None:
    await voter.copy.stop()


DEEDS: dict[str, Deed] = {
    "vote": vote,
    "take": take,
    "take of another": take_of_another,
    "cut": cut,
    "stop": stop,
}


async def lived(
    deed: Deed, fails_at: int, error: tuple[int, float]
) -> tuple[PointedDisk, Promises]:
    disk, promises = PointedDisk(), Promises()
    voter = Voter(disk)
    await voter.start()
    for at, record in enumerate((FOUNDER, OTHERS)):
        request = pushed(FIRST_EPOCH, record, at=at, previous=FIRST_EPOCH if at else -1)
        assert (await voter.push(request)).error is ErrorCode.NONE
    disk.fails_at, disk.error, disk.is_armed = fails_at, error, True
    await deed(voter, promises)
    disk.is_armed = False
    if voter.copy.replica.is_following:
        assert voter.copy.replica.machine.log_end_offset == voter.copy.replica.log.log_end_offset
        # In the same life too: another candidate of the same epoch, after what has failed.
        promises.note_vote(NEXT_EPOCH + 1, 1, await voter.copy.vote(asked(NEXT_EPOCH + 1, 1)))
        rival = await voter.copy.vote(asked(NEXT_EPOCH + 1, 3))
        assert not (rival.is_granted and NEXT_EPOCH + 1 in promises.votes)
    await asyncio.sleep(LATER_S)
    await voter.kill()
    return disk, promises


async def check(disk: PointedDisk, promises: Promises, what: str) -> None:
    for left in (
        disk.after_kill(),
        disk.after_power_loss(DataLoss.ALL, NameLoss.ALL, Random(1)),
    ):
        again = Voter(left)
        await again.start()
        copy = again.copy
        assert copy.replica.is_following or copy.replica.failure is not None, what
        if copy.replica.is_following:
            assert copy.replica.machine.log_end_offset == copy.replica.log.log_end_offset, what
            assert copy.position().end_offset >= promises.records, what
            assert copy.state.epoch >= promises.epoch, what
            for epoch, candidate in promises.votes.items():
                assert not (await copy.vote(asked(epoch, 4 - candidate))).is_granted, what
        await again.kill()


@pytest.mark.parametrize("name", DEEDS)
def test_whatever_call_fails_no_promise_is_taken_back(name: str) -> None:
    deed = DEEDS[name]

    async def body() -> int:
        whole, _ = await lived(deed, 0, ERRORS[0])
        count = len(whole.calls)
        for fails_at in range(1, count + 1):
            for error in errors_of(whole.calls[fails_at - 1]):
                disk, promises = await lived(deed, fails_at, error)
                await check(disk, promises, f"{disk.calls[fails_at - 1]} failed with {error}")
        return count

    assert run_virtually(body()) >= 3
