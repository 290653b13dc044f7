"""A leader whose follower is slow: what waits for it, and what is kept until it has all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from actor_environment import InlineBackground
from deadlines import DEADLINE_S
from msgspec import structs
from virtual_time import give_turns

from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.protocol.messages.partition import DeleteRecordsRequest
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.replica.maintenance import has_old_segments, remove_old_segments
from oncelog.storage.errors import ErrorCode
from oncelog.storage.records.batch import iterate_batches

DAY_MS = 86_400_000


class Follower:
    """Broker 2, in sync with broker 1, the leader; answers while its gate is open."""

    def __init__(self, harness: Any) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self._alone = harness.epoch_source
        harness.events.push = self.take
        harness.epoch_source = self.epoch_source
        harness.background = InlineBackground()

    async def epoch_source(self, last_epoch: int) -> BecomeLeaderReply:
        return structs.replace(
            await self._alone(last_epoch),
            leader=1,
            partition_version=1,
            replicas=(1, 2),
            hosts=(0, 0),
            isr=(1, 2),
        )

    async def take(self, broker_id: int, request: ReplicateRequest) -> ReplicateReply:
        await self.gate.wait()
        ends = [header.next_offset for _, header in iterate_batches(request.batches)]
        return ReplicateReply(log_end_offset=ends[-1] if ends else request.previous_end_offset)


@pytest.fixture
def follower(harness: Any) -> Follower:
    return Follower(harness)


def push_of(epoch: int, harness: Any, topic_id: str) -> ReplicateRequest:
    return ReplicateRequest(
        topic_partition=harness.tp,
        topic_id=topic_id,
        leader=2,
        leader_epoch=epoch,
        epoch_start_offset=0,
        previous_end_offset=0,
        previous_leader_epoch=-1,
        high_watermark=0,
        log_start_offset=0,
        batches=b"",
    )


def test_deleted_records_are_gone_for_a_client_once_a_follower_hides_them_too(
    harness: Any, follower: Follower
) -> None:
    """Else they would be back, once that follower leads."""

    async def body() -> None:
        await harness.start()
        await harness.produce(harness.batch(b"a", b"b"), acks=-1)
        await give_turns()
        follower.gate.clear()
        request = DeleteRecordsRequest(topic_partition=harness.tp, offset=1)
        deleting = asyncio.ensure_future(harness.leader.delete_records(request))
        await give_turns()
        assert (harness.replica.machine.log_start_offset, deleting.done()) == (1, False)
        follower.gate.set()
        assert (await asyncio.wait_for(deleting, DEADLINE_S)).error is ErrorCode.NONE
        await harness.replica.stop()

    asyncio.run(body())


def test_who_deletes_records_is_told_that_another_leads(harness: Any, follower: Follower) -> None:
    async def body() -> None:
        await harness.start()
        await harness.produce(harness.batch(b"a", b"b"), acks=-1)
        await give_turns()
        follower.gate.clear()
        request = DeleteRecordsRequest(topic_partition=harness.tp, offset=1)
        deleting = asyncio.ensure_future(harness.leader.delete_records(request))
        await give_turns()
        await harness.replica.replicate(push_of(9, harness, harness.topic_id))
        reply = await asyncio.wait_for(deleting, DEADLINE_S)
        assert reply.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await harness.replica.stop()

    asyncio.run(body())


def test_who_waits_is_told_at_once_that_another_leads(harness: Any, follower: Follower) -> None:
    """1. A batch waits for the follower, and a reader for a batch. 2. The follower pushes in a
    newer epoch. 3. Both are answered, and so is what comes later.
    """

    async def body() -> None:
        await harness.start()
        losses = harness.events.losses
        await give_turns()
        follower.gate.clear()
        producing = asyncio.ensure_future(harness.produce(harness.batch(b"a"), acks=-1))
        reading = asyncio.ensure_future(
            harness.leader.fetch(harness.fetch_request(0, max_wait_ms=60_000))
        )
        await give_turns()
        other = await harness.replica.replicate(push_of(9, harness, "b" * 32))
        same = await harness.replica.replicate(push_of(0, harness, harness.topic_id))
        await give_turns()
        assert (other.error, same.error, losses) == (ErrorCode.NOT_LEADER_OR_FOLLOWER,) * 2 + ([],)
        assert not producing.done()
        assert not reading.done()
        await harness.replica.replicate(push_of(9, harness, harness.topic_id))
        produced = await asyncio.wait_for(producing, DEADLINE_S)
        assert produced.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        fetched = await asyncio.wait_for(reading, DEADLINE_S)
        assert fetched.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        late = await asyncio.wait_for(harness.produce(harness.batch(b"b"), acks=-1), DEADLINE_S)
        assert late.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert len(losses) == 1
        await harness.replica.stop()

    asyncio.run(body())


def test_retention_leaves_what_a_follower_may_lack(harness: Any, follower: Follower) -> None:
    """1. Two old segments are synced here, and one of them there. 2. Only that one goes."""

    async def body() -> None:
        harness.settings = {"segment_bytes": "4096", "retention_ms": str(DAY_MS)}
        await harness.start()
        for _ in range(2):
            await harness.produce(harness.batch(b"x" * 1_500), acks=-1)
        follower.gate.clear()
        waiting = [
            asyncio.ensure_future(harness.produce(harness.batch(b"x" * 1_500), acks=-1))
            for _ in range(3)
        ]
        await give_turns()
        harness.clock.time_ms += DAY_MS + 1
        replica = harness.replica
        assert replica.log.recovery_point == 5 > replica.machine.high_watermark == 2
        assert await remove_old_segments(replica, harness.clock.now_ms()) == 1
        assert (replica.machine.log_start_offset, replica.log.retention.first_base_offset) == (2, 2)
        assert not has_old_segments(replica, harness.clock.now_ms())
        follower.gate.set()
        replies = await asyncio.wait_for(asyncio.gather(*waiting), DEADLINE_S)
        assert {reply.error for reply in replies} == {ErrorCode.NONE}
        assert has_old_segments(replica, harness.clock.now_ms())
        await replica.stop()

    asyncio.run(body())
