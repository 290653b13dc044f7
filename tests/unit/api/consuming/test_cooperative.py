"""One member in cooperative rebalances: what it keeps, gives up, commits and tells its listener."""

from __future__ import annotations

import asyncio

import pytest
from inside import membership_of

from oncelog.actors.protocol.group.consumer_protocol import (
    ConsumerAssignment,
    decode_subscription,
    encode_assignment,
)
from oncelog.actors.protocol.messages.group import (
    JoinGroupRequest,
    OffsetCommitRequest,
    SyncGroupReply,
    SyncGroupRequest,
)
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.api.consuming.core import ConsumerRebalanceListener
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import RebalanceInProgressError
from oncelog.storage.model import TopicPartition

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class Told(ConsumerRebalanceListener):
    def __init__(self):
        self.calls = []

    def _note(self, what, partitions):
        self.calls.append((what, *sorted(map(str, partitions))))

    def on_assigned(self, partitions):
        self._note("assigned", partitions)

    def on_revoked(self, partitions):
        self._note("revoked", partitions)

    def on_lost(self, partitions):
        self._note("lost", partitions)


def consumer_of(cluster, **settings):
    options = {"group_id": "g", "auto_offset_reset": "earliest", "heartbeat_interval_ms": 1_000}
    settings = ConsumerSettings.from_options(options | settings)
    return AsyncConsumer(cluster.router(), settings, cluster.random)


def assign(cluster, *partitions):
    """From now on the group's leader gives the member these."""

    def hook(request):
        return SyncGroupReply(
            protocol_name=request.protocol_name,
            assignment=encode_assignment(ConsumerAssignment(partitions=partitions)),
        )

    cluster.hooks[SyncGroupRequest] = hook


def rebalance(consumer, error=ErrorCode.REBALANCE_IN_PROGRESS):
    membership_of(consumer)._on_group_error(error)


def slow_join(cluster, seconds):
    """The next join waits for other members."""
    waits = [seconds]

    async def hook(request):
        if request.member_id and waits:
            await asyncio.sleep(waits.pop())

    cluster.hooks[JoinGroupRequest] = hook


def subscriptions(cluster):
    """What each join with a member id says: what is owned, and since which generation."""
    found = [
        decode_subscription(request.protocols[0].metadata)
        for request in cluster.requests(JoinGroupRequest)
        if request.member_id
    ]
    return [(one.owned_partitions, one.generation_id) for one in found]


def commits(cluster):
    return [
        (request.generation_id, {tp: position.offset for tp, position in request.offsets})
        for request in cluster.requests(OffsetCommitRequest)
    ]


@pytest.fixture
def logs(fake_cluster):
    logs = fake_cluster.create("t", 2)
    for log in logs:
        log.append(b"0", b"1", b"2", b"3")
    return logs


async def member_of(cluster, told=None, **settings):
    """A member that has both partitions, and has read nothing."""
    consumer = consumer_of(cluster, **settings)
    await consumer.subscribe("t", listener=told)
    while len(consumer.assignment()) < 2:
        await consumer.poll(0)
        await consumer.pause(consumer.assignment())
        await asyncio.sleep(0.01)
    await consumer.resume(consumer.assignment())
    return consumer


def test_what_stays_is_read_on_and_only_what_goes_is_committed_and_told(fake_cluster, run, logs):
    told = Told()

    async def scenario():
        consumer = await member_of(fake_cluster, told)
        read = await consumer.poll(1_000, max_records=2)
        read += await consumer.poll(1_000, max_records=2)
        assert {record.partition for record in read} == {0, 1}
        assign(fake_cluster, TP)
        rebalance(consumer)
        rest = []
        for _ in range(20):
            rest += await consumer.poll(100, max_records=1)
        assert consumer.assignment() == {TP}
        return rest

    rest = run(scenario())
    # It has gone on where it was, and has given up the other at a position that it has committed.
    assert [record.offset for record in rest if record.partition == 0] == [2, 3]
    given_up = 2 + len([record for record in rest if record.partition == 1])
    assert commits(fake_cluster)[0] == (2, {OTHER: given_up})
    assert told.calls == [
        ("assigned", "t-0", "t-1"),
        ("revoked", "t-1"),
        ("assigned",),
        ("assigned",),
    ]
    assert subscriptions(fake_cluster) == [((), -1), ((TP, OTHER), 1), ((TP,), 2)]


def test_what_goes_is_not_read_on_and_is_committed_as_far_as_polls_before_had_read(
    fake_cluster, run, logs
):
    """1. A member joins, and goes on reading. 2. It is to give up a partition while the program
    works on records of it. 3. The next poll commits them, and delivers no more of it.
    """

    async def scenario():
        consumer = await member_of(fake_cluster)
        assign(fake_cluster, TP)
        slow_join(fake_cluster, 2.0)
        rebalance(consumer)
        read = await consumer.poll(0, max_records=1)
        while not any(record.partition == 1 for record in read):
            read += await consumer.poll(0, max_records=1)
        await asyncio.sleep(10)
        assert consumer.assignment() == {TP, OTHER}
        assert commits(fake_cluster) == []
        after = []
        for _ in range(20):
            after += await consumer.poll(100, max_records=1)
        return read, after

    read, after = run(scenario())
    assert {record.partition for record in after} == {0}
    count = len([record for record in read if record.partition == 1])
    assert commits(fake_cluster)[0] == (2, {OTHER: count})


def test_a_position_is_found_while_a_join_waits(fake_cluster, run, logs):
    async def scenario():
        consumer = await member_of(fake_cluster)
        slow_join(fake_cluster, 60.0)
        rebalance(consumer)
        await consumer.poll(100)
        await consumer.seek_to_end(TP)
        began = asyncio.get_running_loop().time()
        position = await consumer.position(TP)
        return position, asyncio.get_running_loop().time() - began

    position, took_s = run(scenario())
    assert position == 4
    assert took_s < 1


@pytest.mark.parametrize(
    "error", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION], ids=lambda each: each.name
)
@pytest.mark.parametrize("where", ["heartbeat", "join", "sync"])
def test_a_member_that_lost_its_place_gives_all_up_before_it_joins(
    fake_cluster, run, logs, error, where
):
    told = Told()

    async def scenario():
        consumer = await member_of(fake_cluster, told)
        await consumer.poll(1_000)
        if where == "heartbeat":
            rebalance(consumer, error)
        else:
            kind = JoinGroupRequest if where == "join" else SyncGroupRequest
            fake_cluster.fail(kind, error)
            rebalance(consumer)
        await consumer.poll(2_000)
        await consumer.poll(2_000)
        return (await consumer.metrics())["partitions_lost_total"]

    assert run(scenario()) == 2
    assert told.calls[:3] == [
        ("assigned", "t-0", "t-1"),
        ("lost", "t-0", "t-1"),
        ("assigned", "t-0", "t-1"),
    ]
    assert commits(fake_cluster) == []
    assert subscriptions(fake_cluster)[-1] == ((), -1)


@pytest.mark.parametrize(
    "error",
    [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT],
    ids=lambda each: each.name,
)
@pytest.mark.parametrize("kind", [JoinGroupRequest, SyncGroupRequest])
def test_a_member_keeps_its_partitions_while_its_join_is_repeated(
    fake_cluster, run, logs, error, kind
):
    told = Told()

    async def scenario():
        consumer = await member_of(fake_cluster, told)
        fake_cluster.fail(kind, error, times=2)
        rebalance(consumer)
        return len(await consumer.poll(2_000)), await consumer.poll(5_000)

    count, _ = run(scenario())
    assert count > 0
    assert told.calls == [("assigned", "t-0", "t-1"), ("assigned",)]
    # Both attempts say the same: it has been given them by the first generation.
    assert set(subscriptions(fake_cluster)[1:]) == {((TP, OTHER), 1)}


def test_a_commit_that_a_rebalance_overtakes_can_be_repeated_and_costs_nothing(
    fake_cluster, run, logs
):
    """1. A commit is on its way. 2. The member joins the next generation. 3. The coordinator
    rejects the commit for its generation: the member is none the worse.
    """
    told = Told()

    async def late(request):
        await asyncio.sleep(8)
        return request.failed(ErrorCode.ILLEGAL_GENERATION)

    async def scenario():
        consumer = await member_of(fake_cluster, told, enable_auto_commit=False)
        outcomes = []
        fake_cluster.hooks[OffsetCommitRequest] = late
        await consumer.pause(TP, OTHER)
        await consumer.commit_async({TP: 1}, lambda _, error: outcomes.append(error))
        rebalance(consumer)
        await consumer.poll(6_000)
        assert fake_cluster.generation_id == 2
        await asyncio.sleep(5)
        del fake_cluster.hooks[OffsetCommitRequest]
        await consumer.poll(100)
        await consumer.commit({TP: 1})
        return outcomes

    (error,) = run(scenario())
    assert isinstance(error, RebalanceInProgressError)
    assert told.calls == [("assigned", "t-0", "t-1"), ("assigned",)]
    assert fake_cluster.committed == {TP: 1}


def test_another_subscription_ends_reading_of_what_it_does_not_name_at_once(
    fake_cluster, run, logs
):
    (log,) = fake_cluster.create("u")
    log.append(b"u")
    told = Told()

    async def scenario():
        consumer = await member_of(fake_cluster, told)
        await consumer.poll(1_000, max_records=1)
        await consumer.subscribe("u", listener=told)
        read = []
        for _ in range(20):
            read += await consumer.poll(100)
        return read

    assert {record.topic for record in run(scenario())} == {"u"}
    assert told.calls == [
        ("assigned", "t-0", "t-1"),
        ("revoked", "t-0", "t-1"),
        ("assigned", "u-0"),
    ]
    ((generation_id, offsets),) = commits(fake_cluster)
    assert (generation_id, sum(offsets.values())) == (1, 1)


def test_with_an_eager_strategy_beside_it_rebalances_are_eager(fake_cluster, run, logs):
    """The first round of KIP-429's change: such a member claims nothing as it joins."""
    told = Told()

    async def scenario():
        consumer = await member_of(
            fake_cluster, told, partition_assignment_strategy=["cooperative-sticky", "sticky"]
        )
        rebalance(consumer)
        await consumer.poll(2_000)

    run(scenario())
    both = ("t-0", "t-1")
    assert told.calls == [("assigned", *both), ("revoked", *both), ("assigned", *both)]
    assert subscriptions(fake_cluster) == [((), -1), ((), -1)]
    sticky = [
        decode_subscription(request.protocols[1].metadata)
        for request in fake_cluster.requests(JoinGroupRequest)
    ]
    assert (sticky[-1].owned_partitions, sticky[-1].generation_id) == ((TP, OTHER), 1)


def test_a_program_that_polls_no_more_loses_what_it_should_have_given_up(fake_cluster, run, logs):
    told = Told()

    async def scenario():
        consumer = await member_of(fake_cluster, told, max_poll_interval_ms=5_000)
        assign(fake_cluster, TP)
        rebalance(consumer)
        await consumer.poll(0)
        await asyncio.sleep(20)
        del fake_cluster.hooks[SyncGroupRequest]
        for _ in range(10):
            await consumer.poll(100)

    run(scenario())
    both = ("t-0", "t-1")
    assert ("revoked", "t-1") not in told.calls
    lost = [partition for what, *named in told.calls if what == "lost" for partition in named]
    assert sorted(lost) == sorted(both)
    assert commits(fake_cluster) == []
