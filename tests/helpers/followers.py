"""A replica of broker 2 that follows broker 1, on a ``CrashDisk``, and what leaders push to it."""

from __future__ import annotations

import asyncio

from actor_environment import InlineBackground
from copied_logs import DATA_DIR, TP, LeaderLog
from crash_disk import CrashDisk
from replicas import TOPIC_ID, RecordedEvents, replica_of

from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest

RECORDS = [(("data", -1), 1, 0, 0)] * 24
CUT_AT = 23


class Follower:
    """Broker 2's replica, which follows broker 1, and what it asked for."""

    def __init__(self, disk: CrashDisk) -> None:
        self.disk = disk
        self.events = RecordedEvents()
        self.replica = replica_of(
            TP,
            DATA_DIR,
            self.told,
            environment={
                "filesystem": disk,
                "background": InlineBackground(),
                "events": self.events,
            },
            broker_id=2,
        )

    async def told(self, last_epoch: int) -> BecomeLeaderReply:
        return BecomeLeaderReply(
            leader_epoch=max(last_epoch, 0),
            topic_id=TOPIC_ID,
            leader=1,
            replicas=(1, 2),
            hosts=(0, 0),
            isr=(1, 2),
            settings=(("segment_bytes", "4096"), ("index_interval_bytes", "600")),
        )

    async def start(self) -> None:
        self._starting = asyncio.ensure_future(self.replica.start())
        await self.events.follows.wait()

    async def kill(self) -> None:
        """The process is gone, with all that it was doing."""
        self.disk.kill()
        self.replica.halt()
        self._starting.cancel()
        await asyncio.wait({self._starting})

    async def stop(self) -> None:
        await self.replica.stop()
        await self._starting

    async def push(
        self,
        epoch: int,
        batches: bytes,
        *,
        at: int,
        before: int,
        log_start_offset: int = 0,
        high_watermark: int = 0,
    ) -> ReplicateReply:
        """What follows ``at``, where the epoch begins; ``before`` is the epoch of what is there."""
        return await self.replica.replicate(
            ReplicateRequest(
                topic_partition=TP,
                topic_id=TOPIC_ID,
                leader=1,
                leader_epoch=epoch,
                epoch_start_offset=at,
                previous_end_offset=at,
                previous_leader_epoch=before,
                high_watermark=high_watermark,
                log_start_offset=log_start_offset,
                batches=batches,
            )
        )


def batches_of_two_leaders() -> tuple[list[bytes], bytes]:
    """24 records of epoch 1, each a batch, and another 24th of epoch 2."""
    leader = LeaderLog(epoch=1)
    leader.run(RECORDS)
    first = list(leader.batches)
    leader.cut(CUT_AT)
    leader.run(RECORDS[:1])
    return first, leader.batches[-1]
