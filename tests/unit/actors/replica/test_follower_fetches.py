"""A consumer is sent to a follower in its rack, which gives it nothing that is not committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from actor_environment import InlineBackground
from copied_logs import TP, LeaderLog
from crash_disk import CrashDisk
from deadlines import DEADLINE_S
from followers import CUT_AT, TOPIC_ID, Follower, batches_of_two_leaders
from msgspec import structs
from virtual_time import ManualClock, give_turns, run_virtually

from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.protocol.messages.partition import FetchReply, FetchRequest
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.replica.partition_leader import PartitionLeader
from oncelog.actors.replica.replica import RACKS_INTERVAL_MS
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import AbortedTransaction, IsolationLevel, TopicPartition
from oncelog.storage.records.batch import iterate_batches

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
NOT_HERE = ErrorCode.NOT_LEADER_OR_FOLLOWER
WAIT_MS = int(1_000 * DEADLINE_S)
TEN = [(("data", -1), 1, 0, 0)] * 10
TRANSACTION = [
    (("data", 11), 1, 0, 0),
    (("data", 12), 1, 0, 0),
    (("abort", 11), 1, 0, 0),
    (("commit", 12), 1, 0, 0),
]
"""Offsets 0 and 1 are data, 2 an abort of the first and 3 a commit of the second."""


def follow(scenario: Callable[[Follower, PartitionLeader], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        follower = Follower(CrashDisk())
        await follower.start()
        shell = PartitionLeader(replica=follower.replica, clock=ManualClock())
        await scenario(follower, shell)
        await follower.kill()

    asyncio.run(body())


def fetch(offset: int = 0, level: IsolationLevel = UNCOMMITTED, **fields: Any) -> FetchRequest:
    given = {"max_wait_ms": 0, "from_follower": True, "leader_epoch": 1, "topic_id": TOPIC_ID}
    return FetchRequest(
        topic_partition=TP, fetch_offset=offset, isolation_level=level, **given | fields
    )


def batches(steps: list[Any]) -> list[bytes]:
    leader = LeaderLog(epoch=1)
    leader.run(steps)
    return list(leader.batches)


def end_of(reply: FetchReply) -> int:
    assert reply.error is ErrorCode.NONE
    return max((header.next_offset for _, header in iterate_batches(reply.records)), default=0)


def test_a_follower_gives_what_is_below_the_high_watermark_that_it_knows() -> None:
    async def scenario(follower: Follower, shell: PartitionLeader) -> None:
        await follower.push(1, b"".join(batches(TEN)), at=0, before=-1, high_watermark=4)
        reply = await shell.fetch(fetch())
        assert (end_of(reply), reply.high_watermark) == (4, 4)
        assert end_of(await shell.fetch(fetch(7))) == 0
        await follower.push(1, b"", at=10, before=1, high_watermark=10)
        assert end_of(await shell.fetch(fetch(7))) == 10
        assert follower.replica.counters.follower_fetches == 3

    follow(scenario)


@pytest.mark.parametrize(
    ("high_watermark", "end", "aborted"), [(2, 0, ()), (3, 1, ((11, 0),)), (4, 4, ((11, 0),))]
)
def test_a_follower_gives_what_is_stable_and_tells_what_of_it_is_aborted(
    high_watermark: int, end: int, aborted: tuple[tuple[int, int], ...]
) -> None:
    """It has all of both transactions, and only what is below its high watermark counts."""

    async def scenario(follower: Follower, shell: PartitionLeader) -> None:
        whole = b"".join(batches(TRANSACTION))
        await follower.push(1, whole, at=0, before=-1, high_watermark=high_watermark)
        reply = await shell.fetch(fetch(0, COMMITTED))
        assert (end_of(reply), reply.last_stable_offset) == (end, end)
        assert reply.aborted_transactions == tuple(
            AbortedTransaction(producer_id=pid, first_offset=first) for pid, first in aborted
        )

    follow(scenario)


def test_who_waits_is_woken_when_the_high_watermark_rises_and_the_leader_hears_of_it() -> None:
    """1. A consumer waits beyond the high watermark. 2. A push without it says that one waits."""

    async def scenario(follower: Follower, shell: PartitionLeader) -> None:
        all_of_it = b"".join(batches(TEN))
        told = await follower.push(1, all_of_it, at=0, before=-1)
        assert not told.has_readers
        reading = asyncio.ensure_future(shell.fetch(fetch(6, max_wait_ms=WAIT_MS)))
        await give_turns()
        told = await follower.push(1, b"", at=10, before=1)
        assert told.has_readers
        await give_turns()
        assert not reading.done()
        told = await follower.push(1, b"", at=10, before=1, high_watermark=10)
        assert told.has_readers
        await give_turns()
        assert end_of(reading.result()) == 10
        assert not (await follower.push(1, b"", at=10, before=1, high_watermark=10)).has_readers

    follow(scenario)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"from_follower": False}, NOT_HERE),
        ({"from_follower": False, "client_rack": "a"}, NOT_HERE),
        ({"leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"topic_id": "b" * 32}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"fetch_offset": 11}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"fetch_offset": 1}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"topic_partition": TopicPartition(TP.topic, 1)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_follower_refuses_what_it_may_not_or_cannot_answer(
    fields: dict[str, Any], error: ErrorCode
) -> None:
    async def scenario(follower: Follower, shell: PartitionLeader) -> None:
        whole = b"".join(batches(TEN))
        await follower.push(1, whole, at=0, before=-1, high_watermark=10)
        await follower.push(1, b"", at=10, before=1, high_watermark=10, log_start_offset=2)
        request = structs.replace(fetch(5), **fields)
        reply = await shell.fetch(request)
        assert (reply.error, reply.records) == (error, b"")
        assert (await shell.fetch(fetch(5))).records

    follow(scenario)


def test_a_wait_ends_with_the_epoch_in_which_it_began() -> None:
    async def scenario(follower: Follower, shell: PartitionLeader) -> None:
        first, second = batches_of_two_leaders()
        await follower.push(1, b"".join(first[:CUT_AT]), at=0, before=-1, high_watermark=CUT_AT)
        reading = asyncio.ensure_future(shell.fetch(fetch(CUT_AT, max_wait_ms=WAIT_MS)))
        await give_turns()
        await follower.push(2, second, at=CUT_AT, before=1, high_watermark=CUT_AT + 1)
        await give_turns()
        assert reading.result().error is ErrorCode.FENCED_LEADER_EPOCH

    follow(scenario)


def test_nothing_is_read_while_the_log_is_cut() -> None:
    """Log and machine differ meanwhile; after the cut nothing beyond the high watermark is told."""

    async def scenario(follower: Follower, shell: PartitionLeader) -> None:
        first, second = batches_of_two_leaders()
        await follower.push(1, b"".join(first), at=0, before=-1, high_watermark=10)
        background, held = follower.replica._background, asyncio.Event()
        run = background.run

        async def run_later(work: Any, **fields: Any) -> Any:
            await held.wait()
            return await run(work, **fields)

        background.run = run_later
        cutting = asyncio.ensure_future(follower.push(2, second, at=CUT_AT, before=1))
        await give_turns()
        assert follower.replica.is_cutting
        for epoch in (1, 2):
            assert (await shell.fetch(fetch(leader_epoch=epoch))).error is NOT_HERE
        held.set()
        assert (await asyncio.wait_for(cutting, DEADLINE_S)).error is ErrorCode.NONE
        assert end_of(await shell.fetch(fetch(leader_epoch=2))) == 10

    follow(scenario)


# --- the leader ------------------------------------------------------------------------------


class Copied:
    """Broker 2, in sync with broker 1, the leader, and what the leader knows of racks."""

    def __init__(self, harness: Any) -> None:
        self._alone = harness.epoch_source
        harness.events.push = self.take
        harness.epoch_source = self.epoch_source
        harness.background = InlineBackground()

    async def epoch_source(self, last_epoch: int) -> BecomeLeaderReply:
        told = await self._alone(last_epoch)
        both = (1, 2)
        return structs.replace(
            told, leader=1, partition_version=1, replicas=both, hosts=(0, 0), isr=both
        )

    async def take(self, broker_id: int, request: ReplicateRequest) -> ReplicateReply:
        ends = [header.next_offset for _, header in iterate_batches(request.batches)]
        return ReplicateReply(log_end_offset=ends[-1] if ends else request.previous_end_offset)


def test_a_leader_sends_a_consumer_to_the_follower_in_its_rack(harness: Any) -> None:
    """1. It knows no racks, asks for them, and answers by itself. 2. It knows them."""

    async def body() -> None:
        Copied(harness)
        leader = await harness.start()
        await harness.produce(harness.batch(b"a", b"b"), acks=-1)
        await give_turns()
        request = harness.fetch_request(client_rack="east")
        assert (await leader.fetch(request)).records
        assert harness.events.settings_requests == 1
        harness.replica.learn_racks({1: "west", 2: "east"})
        reply = await leader.fetch(request)
        assert (reply.error, reply.preferred_read_replica, reply.records) == (
            ErrorCode.NONE,
            2,
            b"",
        )
        for rack in ("", "west", "north"):
            reply = await leader.fetch(structs.replace(request, client_rack=rack))
            assert reply.preferred_read_replica == -1
            assert reply.records
        assert harness.events.settings_requests == 1
        await harness.replica.stop()

    asyncio.run(body())


def test_racks_that_nobody_tells_are_asked_for_now_and_then(harness: Any) -> None:
    async def body() -> None:
        Copied(harness)
        leader = await harness.start()
        await harness.produce(harness.batch(b"a", b"b"), acks=-1)
        await give_turns()
        request = harness.fetch_request(client_rack="east")
        for _ in range(20):
            assert (await leader.fetch(request)).records
            await asyncio.sleep(RACKS_INTERVAL_MS / 10_000)
        assert harness.events.settings_requests == 2
        # One broker's rack is missing in what is told.
        harness.replica.learn_racks({1: "west"})
        assert (await leader.fetch(request)).records
        assert harness.events.settings_requests == 3
        assert (await leader.fetch(request)).records
        assert harness.events.settings_requests == 3
        await harness.replica.stop()

    run_virtually(body())


def test_a_lone_leader_asks_for_no_racks(harness: Any) -> None:
    async def body() -> None:
        leader = await harness.start()
        await harness.produce(harness.batch(b"a"))
        assert (await leader.fetch(harness.fetch_request(client_rack="east"))).records
        assert harness.events.settings_requests == 0
        await harness.replica.stop()

    asyncio.run(body())
