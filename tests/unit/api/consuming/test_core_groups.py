from __future__ import annotations

import asyncio
import contextlib
from random import Random

import pytest
from inside import generation_of

from oncelog.actors.protocol.group.consumer_protocol import ConsumerAssignment, encode_assignment
from oncelog.actors.protocol.messages.cluster import MetadataRequest
from oncelog.actors.protocol.messages.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupReply,
    SyncGroupRequest,
)
from oncelog.actors.protocol.messages.partition import ListOffsetsRequest
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    ClientClosedError,
    ConcurrentModificationError,
    FencedInstanceIdError,
    IllegalStateError,
    RebalanceInProgressError,
    TopicAuthorizationFailedError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition

TP = TopicPartition("t", 0)


def consumer_of(cluster, **settings):
    settings.setdefault("auto_offset_reset", "earliest")
    return AsyncConsumer(cluster.router(), ConsumerSettings.from_options(settings), cluster.random)


def values(records):
    return [record.value for record in records]


def test_a_subscriber_reads_what_the_group_assigns(fake_cluster, run):
    for number, log in enumerate(fake_cluster.create("t", 2)):
        log.append(str(number).encode())

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.subscribe(["t"])
        seen = await consumer.poll(1_000) + await consumer.poll(1_000)
        return sorted(values(seen)), consumer.assignment()

    assert run(scenario()) == ([b"0", b"1"], {TP, TopicPartition("t", 1)})


def test_a_short_poll_does_not_cut_a_join_off(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0")

    async def slow(request):
        await asyncio.sleep(5)

    fake_cluster.hooks[JoinGroupRequest] = slow

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.subscribe("t")
        seen = []
        while not seen:
            seen = await consumer.poll(100)
        return values(seen), len(fake_cluster.requests(JoinGroupRequest))

    assert run(scenario()) == ([b"0"], 2)


def test_before_a_rebalance_the_delivered_positions_are_committed_and_nothing_more_delivered(
    fake_cluster, run
):
    # 1 the member reads one of two records  2 the group rebalances  3 the next poll commits with
    # the old generation, joins, and begins at the committed offset.
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1")

    async def scenario():
        consumer = consumer_of(
            fake_cluster,
            group_id="g",
            heartbeat_interval_ms=1_000,
            partition_assignment_strategy="range",
        )
        await consumer.subscribe("t")
        first = values(await consumer.poll(1_000, max_records=1))
        fake_cluster.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS)
        await asyncio.sleep(1.5)
        second = values(await consumer.poll(1_000))
        return first, second, generation_of(consumer)

    assert run(scenario()) == ([b"0"], [b"1"], 2)
    (commit,) = fake_cluster.requests(OffsetCommitRequest)
    assert commit.generation_id == 1
    assert [(tp, committed.offset) for tp, committed in commit.offsets] == [(TP, 1)]


def test_a_member_the_group_dropped_commits_nothing_before_it_joins_again(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1")

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g", heartbeat_interval_ms=1_000)
        await consumer.subscribe("t")
        await consumer.poll(1_000, max_records=1)
        fake_cluster.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
        await asyncio.sleep(1.5)
        return values(await consumer.poll(1_000))

    assert run(scenario()) == [b"0", b"1"]
    assert fake_cluster.requests(OffsetCommitRequest) == []


def test_a_fenced_member_raises_at_every_poll(fake_cluster, run):
    fake_cluster.create("t")

    async def scenario():
        consumer = consumer_of(
            fake_cluster, group_id="g", group_instance_id="i", heartbeat_interval_ms=1_000
        )
        await consumer.subscribe("t")
        await consumer.poll(100)
        fake_cluster.fail(HeartbeatRequest, ErrorCode.FENCED_INSTANCE_ID)
        await asyncio.sleep(1.5)
        for _ in range(2):
            with pytest.raises(FencedInstanceIdError):
                await consumer.poll(100)

    run(scenario())


def test_a_subscription_to_a_missing_topic_is_raised_and_heals_when_it_is_created(
    fake_cluster, run
):
    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.subscribe("t")
        with pytest.raises(UnknownTopicOrPartitionError):
            await consumer.poll(1_000)
        (log,) = fake_cluster.create("t")
        log.append(b"0")
        return values(await consumer.poll(5_000))

    assert run(scenario()) == [b"0"]


def test_a_subscriber_warns_of_a_deleted_topic_and_reads_the_others_on(fake_cluster, run, caplog):
    """1. The member reads two topics. 2. One is deleted: the group divides the other anew. 3. It is
    created again, and read from its start.
    """
    (log,) = fake_cluster.create("t")
    fake_cluster.create("u", 2)[1].append(b"u0")

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g", retry_backoff_max_ms=100)

        async def read(seconds):
            seen = []
            for _ in range(seconds):
                seen += values(await consumer.poll(1_000))
            return seen

        await consumer.subscribe(["t", "u"])
        assert await read(5) == [b"u0"]
        fake_cluster.delete("u")
        log.append(b"t0")
        assert await read(10) == [b"t0"]
        assert consumer.assignment() == {TP}
        # One generation takes the partitions, and the next one has them divided anew.
        assert generation_of(consumer) == 3
        log.append(b"t1")
        assert await read(60) == [b"t1"]
        fake_cluster.create("u")[0].append(b"u1")
        assert await read(10) == [b"u1"]
        assert consumer.assignment() == {TP, TopicPartition("u", 0)}
        await consumer.close()

    run(scenario())
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert 1 <= len(warnings) <= 2
    assert all("u" in warning for warning in warnings)


def test_a_subscriber_reads_what_there_is_of_its_topics(fake_cluster, run, caplog):
    (log,) = fake_cluster.create("t")
    log.append(b"0")

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.subscribe(["t", "gone"])
        return values(await consumer.poll(5_000))

    assert run(scenario()) == [b"0"]
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "group g: subscribed topics do not exist: gone; reading the others — create them, or "
        "correct their names"
    ]


def test_a_subscriber_is_told_of_a_topic_that_it_may_not_see(fake_cluster, run):
    """Also beside one that it may, and once it may see both it reads them."""
    for topic in ("t", "u"):
        (log,) = fake_cluster.create(topic)
        log.append(topic.encode())
    fake_cluster.hidden = {"u"}

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.subscribe(["t", "u"])
        with pytest.raises(TopicAuthorizationFailedError, match="may not Describe topic 'u'"):
            await consumer.poll(5_000)
        assert fake_cluster.requests(JoinGroupRequest) == []
        fake_cluster.hidden = set()
        return sorted(values(await consumer.poll(5_000) + await consumer.poll(1_000)))

    assert run(scenario()) == [b"t", b"u"]


def test_a_member_whose_every_partition_is_of_a_deleted_topic_waits_for_the_rebalance(
    fake_cluster, run
):
    """The group's leader, another member, divides anew once it sees that the topic is gone."""
    fake_cluster.create("t")
    fake_cluster.create("u")
    share = encode_assignment(ConsumerAssignment(partitions=(TopicPartition("u", 0),)))
    fake_cluster.hooks[SyncGroupRequest] = lambda request: SyncGroupReply(assignment=share)

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g", heartbeat_interval_ms=1_000)
        await consumer.subscribe(["t", "u"])
        await consumer.poll(1_000)
        fake_cluster.delete("u")
        for _ in range(20):
            assert await consumer.poll(1_000) == []
        del fake_cluster.hooks[SyncGroupRequest]
        fake_cluster.logs[TP].append(b"0")
        fake_cluster.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS)
        return values(await consumer.poll(5_000))

    assert run(scenario()) == [b"0"]


def test_heartbeats_that_a_bug_ends_are_told_by_the_next_poll_and_begin_again(fake_cluster, run):
    """Without them the coordinator puts the member out, who does not hear of it."""
    (log,) = fake_cluster.create("t")
    log.append(b"0")

    def break_once(request):
        del fake_cluster.hooks[HeartbeatRequest]
        raise ZeroDivisionError("planted")

    fake_cluster.hooks[HeartbeatRequest] = break_once

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g", heartbeat_interval_ms=1_000)
        await consumer.subscribe("t")
        assert values(await consumer.poll(500)) == [b"0"]
        with pytest.raises(UnknownServerError, match=r"ZeroDivisionError\('planted") as raised:
            await consumer.poll(5_000)
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        await consumer.poll(1_000)
        before = len(fake_cluster.requests(HeartbeatRequest))
        assert await consumer.poll(5_500) == []
        assert len(fake_cluster.requests(HeartbeatRequest)) - before >= 5
        assert generation_of(consumer) == 2
        await consumer.close()

    run(scenario())


def test_an_automatic_commit_that_meets_a_bug_is_told_by_the_next_poll(fake_cluster, run):
    fake_cluster.create("t")[0].append(b"0")

    def broken(request):
        raise ZeroDivisionError("planted")

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g", auto_commit_interval_ms=1_000)
        await consumer.subscribe("t")
        assert values(await consumer.poll(500)) == [b"0"]
        assert await consumer.poll(500) == []
        fake_cluster.hooks[OffsetCommitRequest] = broken
        await asyncio.sleep(2)
        with pytest.raises(UnknownServerError, match="planted"):
            await consumer.poll(5_000)
        del fake_cluster.hooks[OffsetCommitRequest]
        await asyncio.sleep(2)
        await consumer.poll(500)
        assert fake_cluster.committed == {TP: 1}
        await consumer.close()

    run(scenario())


def test_automatic_commits_store_what_was_delivered_before_the_poll(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1")

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g", auto_commit_interval_ms=5_000)
        await consumer.assign(TP)
        await consumer.poll(1_000, max_records=1)
        await asyncio.sleep(6)
        early = dict(fake_cluster.committed)
        await consumer.poll(1_000, max_records=1)
        await asyncio.sleep(1)
        return early, dict(fake_cluster.committed)

    assert run(scenario()) == ({}, {TP: 1})


@pytest.mark.parametrize(
    ("error", "commits"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, []),
        (ErrorCode.FENCED_INSTANCE_ID, []),
        (ErrorCode.REBALANCE_IN_PROGRESS, [1]),
    ],
)
def test_a_commit_that_is_due_is_not_begun_for_partitions_that_may_be_anothers(
    fake_cluster, run, error, commits
):
    """1. A member reads. 2. Its group rebalances, or drops it. 3. It polls when an automatic
    commit is due: only the one before it joins again is sent, by a member that may.
    """
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1")

    async def scenario():
        consumer = consumer_of(
            fake_cluster,
            group_id="g",
            heartbeat_interval_ms=1_000,
            auto_commit_interval_ms=1_000,
            partition_assignment_strategy="range",
        )
        await consumer.subscribe("t")
        await consumer.poll(500, max_records=1)
        await consumer.poll(0, max_records=1)
        fake_cluster.fail(HeartbeatRequest, error)
        await asyncio.sleep(1.5)
        with contextlib.suppress(FencedInstanceIdError):
            await consumer.poll(100)
        await asyncio.sleep(0.1)
        return [request.generation_id for request in fake_cluster.requests(OffsetCommitRequest)]

    assert run(scenario()) == commits


def test_commits_of_one_consumer_are_stored_in_the_order_they_were_made(fake_cluster, run):
    """1. A commit is under way for long. 2. A later one is made. 3. The later one counts."""
    fake_cluster.create("t")

    async def late(_request):
        if len(fake_cluster.requests(OffsetCommitRequest)) == 1:
            await asyncio.sleep(5)

    fake_cluster.hooks[OffsetCommitRequest] = late

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g", enable_auto_commit=False)
        await consumer.assign(TP)
        await consumer.commit_async({TP: 1})
        await asyncio.sleep(1)
        await consumer.commit({TP: 2})

    run(scenario())
    assert fake_cluster.committed == {TP: 2}


@pytest.mark.parametrize("is_automatic", [True, False])
def test_closing_commits_only_if_commits_are_automatic(fake_cluster, run, is_automatic):
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1")

    async def scenario():
        async with consumer_of(
            fake_cluster, group_id="g", enable_auto_commit=is_automatic
        ) as consumer:
            await consumer.assign(TP)
            await consumer.poll(1_000)

    run(scenario())
    assert fake_cluster.committed == ({TP: 2} if is_automatic else {})


def test_without_a_group_nothing_is_committed_and_commit_says_why(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0")

    async def scenario():
        async with consumer_of(fake_cluster) as consumer:
            await consumer.assign(TP)
            await consumer.poll(1_000)
            with pytest.raises(IllegalStateError, match="group_id"):
                await consumer.commit()

    run(scenario())
    assert fake_cluster.requests(OffsetCommitRequest) == []


def test_a_commit_refused_by_a_rebalance_is_raised_and_makes_the_member_rejoin(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0")

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g", enable_auto_commit=False)
        await consumer.subscribe("t")
        await consumer.poll(1_000)
        fake_cluster.fail(OffsetCommitRequest, ErrorCode.REBALANCE_IN_PROGRESS)
        with pytest.raises(RebalanceInProgressError):
            await consumer.commit()
        await consumer.poll(1_000)
        return consumer.group_metadata().generation_id

    assert run(scenario()) == 2


def test_a_rebalance_asked_for_while_a_position_is_sought_waits_for_the_next_poll(
    fake_cluster, run
):
    # 1 the position of partition 1 cannot be found  2 a poll delivers from partition 0
    # 3 the group asks for a rebalance  4 until the next poll nothing is committed or joined.
    first, _ = fake_cluster.create("t", 2)
    first.append(b"0")

    def unreachable(request):
        is_second = request.topic_partition.partition == 1
        return request.failed(ErrorCode.NETWORK_EXCEPTION) if is_second else None

    fake_cluster.hooks[ListOffsetsRequest] = unreachable
    fake_cluster.committed[TP] = 0

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g", heartbeat_interval_ms=1_000)
        await consumer.subscribe("t")
        seen = []
        while not seen:
            seen = await consumer.poll(1_000)
        joins = len(fake_cluster.requests(JoinGroupRequest))
        fake_cluster.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS)
        await asyncio.sleep(60)
        quiet = len(fake_cluster.requests(JoinGroupRequest)) - joins
        commits = len(fake_cluster.requests(OffsetCommitRequest))
        await consumer.poll(1_000)
        return quiet, commits, len(fake_cluster.requests(JoinGroupRequest)) - joins

    assert run(scenario()) == (0, 0, 1)


def test_after_unsubscribe_the_identity_is_the_former_members_until_an_assign(fake_cluster, run):
    fake_cluster.create("t")

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g", enable_auto_commit=False)
        await consumer.subscribe(["t"])
        await consumer.poll(1_000)
        member = consumer.group_metadata()
        await consumer.unsubscribe()
        left = consumer.group_metadata()
        await consumer.assign(TP)
        return member, left, consumer.group_metadata()

    member, left, assigned = run(scenario())
    assert member.generation_id == 1
    assert left == member
    assert (assigned.generation_id, assigned.member_id) == (-1, "")


def test_a_consumer_that_commits_by_itself_is_refused_in_a_transaction(fake_cluster, run):
    """It would commit what was read in a transaction that is aborted."""
    fake_cluster.create("t")

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.subscribe(["t"])
        await consumer.poll(1_000)
        with pytest.raises(IllegalStateError, match="enable_auto_commit=False"):
            consumer.group_metadata()

    run(scenario())


def test_a_poll_longer_than_the_poll_interval_keeps_its_member_in_the_group(fake_cluster, run):
    """1. A poll waits for longer than max_poll_interval_ms. 2. A record comes. 3. It is read."""
    (log,) = fake_cluster.create("t")

    async def scenario():
        consumer = consumer_of(
            fake_cluster, group_id="g", max_poll_interval_ms=3_000, heartbeat_interval_ms=500
        )
        await consumer.subscribe("t")
        await consumer.poll(1_000)
        polling = asyncio.ensure_future(consumer.poll(60_000))
        await asyncio.sleep(20)
        log.append(b"0")
        seen = values(await polling)
        await asyncio.sleep(2)
        return seen, len(fake_cluster.requests(LeaveGroupRequest)), generation_of(consumer)

    seen, leaves, generation = run(scenario())
    assert (seen, leaves, generation) == ([b"0"], 0, 1)


def test_after_a_long_poll_the_poll_interval_begins_at_its_end(fake_cluster, run):
    fake_cluster.create("t")

    async def scenario():
        consumer = consumer_of(
            fake_cluster, group_id="g", max_poll_interval_ms=3_000, heartbeat_interval_ms=500
        )
        await consumer.subscribe("t")
        await consumer.poll(20_000)
        await asyncio.sleep(2)
        before = len(fake_cluster.requests(LeaveGroupRequest))
        await asyncio.sleep(2)
        return before, len(fake_cluster.requests(LeaveGroupRequest))

    assert run(scenario()) == (0, 1)


def test_a_poll_that_is_cancelled_ends_like_any_other(fake_cluster, run):
    fake_cluster.create("t")

    async def scenario():
        consumer = consumer_of(
            fake_cluster, group_id="g", max_poll_interval_ms=3_000, heartbeat_interval_ms=500
        )
        await consumer.subscribe("t")
        await consumer.poll(1_000)
        polling = asyncio.ensure_future(consumer.poll(60_000))
        await asyncio.sleep(10)
        polling.cancel()
        await asyncio.sleep(5)
        return len(fake_cluster.requests(LeaveGroupRequest))

    assert run(scenario()) == 1


@pytest.mark.parametrize("seed", range(20))
def test_only_silence_between_polls_puts_a_member_out_of_its_group(fake_cluster, run, seed):
    """Polls and pauses of many lengths: the member leaves when a pause is too long, only then.

    Their lengths are fractions of two: virtual time must not stick at what floats round off.
    """
    fake_cluster.create("t")
    random = Random(seed)

    async def scenario():
        consumer = consumer_of(
            fake_cluster, group_id="g", max_poll_interval_ms=3_000, heartbeat_interval_ms=500
        )
        await consumer.subscribe("t")
        for _ in range(10):
            await consumer.poll(random.choice([0, 125, 2_875, 3_125, 30_000]))
            await consumer.poll(1_000)
            pause_s = random.choice([0, 0.125, 2.875, 4.125])
            before = len(fake_cluster.requests(LeaveGroupRequest))
            await asyncio.sleep(pause_s)
            assert len(fake_cluster.requests(LeaveGroupRequest)) - before == (pause_s > 3)
        return await consumer.close()

    run(scenario())


def go_away(cluster, *kinds):
    """Nobody answers requests of these ``kinds`` any more."""
    real = cluster.call

    async def call(actor, request, *, timeout_ms):
        if not isinstance(request, kinds):
            return await real(actor, request, timeout_ms=timeout_ms)
        await asyncio.sleep(timeout_ms / 1_000)
        return request.failed(ErrorCode.REQUEST_TIMED_OUT)

    cluster.call = call


@pytest.mark.parametrize("is_committing", [True, False])
def test_close_takes_its_five_seconds_at_most_with_the_coordinator_away(
    fake_cluster, run, is_committing
):
    """1. A record is read. 2. The coordinator goes. 3. An automatic commit waits for it, or none
    was due. 4. The consumer is closed.
    """
    (log,) = fake_cluster.create("t")
    log.append(b"0")

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g", auto_commit_interval_ms=1_000)
        await consumer.subscribe("t")
        await consumer.poll(1_000)
        await consumer.poll(0)
        go_away(fake_cluster, OffsetCommitRequest, LeaveGroupRequest, MetadataRequest)
        await asyncio.sleep(2 if is_committing else 0)
        await consumer.poll(0)
        await asyncio.sleep(0.1)
        started_s = asyncio.get_running_loop().time()
        await consumer.close()
        return asyncio.get_running_loop().time() - started_s

    assert run(scenario()) <= 5


def test_a_blocked_poll_ends_when_another_task_closes_the_consumer(fake_cluster, run):
    fake_cluster.create("t")

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.subscribe("t")
        await consumer.poll(1_000)
        await consumer.pause(TP)  # Else a fetch that ends would wake it too.
        polling = asyncio.ensure_future(consumer.poll(3_600_000))
        iterating = asyncio.ensure_future(_collected(other := consumer_of(fake_cluster)))
        await other.assign(TP)
        await asyncio.sleep(1)
        started_s = asyncio.get_running_loop().time()
        await consumer.close()
        with pytest.raises(ClientClosedError):
            await polling
        await other.close()
        assert await iterating == []
        return asyncio.get_running_loop().time() - started_s

    assert run(scenario()) < 1


async def _collected(consumer):
    await asyncio.sleep(0.1)
    return [record async for record in consumer]


def test_a_subscription_to_the_same_topics_changes_nothing(fake_cluster, run):
    """Kafka's client keeps its place; to join again would go back to what is committed."""
    (log,) = fake_cluster.create("t")
    fake_cluster.create("u")
    log.append(b"0", b"1")

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g", enable_auto_commit=False)
        await consumer.subscribe(["t", "u"])
        first = await consumer.poll(1_000, max_records=1)
        await consumer.subscribe(["u", "t"])
        second = await consumer.poll(1_000, max_records=1)
        joins = len(fake_cluster.requests(JoinGroupRequest))
        await consumer.subscribe("t")
        await consumer.poll(1_000)
        return values(first + second), joins, len(fake_cluster.requests(JoinGroupRequest))

    assert run(scenario()) == ([b"0", b"1"], 2, 3)


def test_partitions_that_are_no_longer_assigned_are_committed_first(fake_cluster, run):
    logs = fake_cluster.create("t", 2)
    for log in logs:
        log.append(b"0", b"1")
    other = TopicPartition("t", 1)

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.assign([TP, other])
        while await consumer.lag():
            await consumer.poll(1_000)
        await consumer.assign(other)
        return dict(fake_cluster.committed), await consumer.position(other)

    assert run(scenario()) == ({TP: 2, other: 2}, 2)


@pytest.mark.parametrize(
    "call", ["poll", "pause", "resume", "subscribe", "seek_to_end", "commit", "position", "anext"]
)
def test_another_task_is_refused_while_one_polls(fake_cluster, run, call):
    """To let it wait, or to give back what the first takes, would deliver records twice."""
    (log,) = fake_cluster.create("t")
    calls = {
        "poll": lambda consumer: consumer.poll(),
        "pause": lambda consumer: consumer.pause(TP),
        "subscribe": lambda consumer: consumer.subscribe("t"),
        "seek_to_end": lambda consumer: consumer.seek_to_end(TP),
        "resume": lambda consumer: consumer.resume(TP),
        "commit": lambda consumer: consumer.commit({TP: 1}),
        "position": lambda consumer: consumer.position(TP),
        "anext": anext,
    }

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.subscribe("t")
        await consumer.poll(1_000)
        polling = asyncio.ensure_future(consumer.poll(60_000))
        await asyncio.sleep(1)
        told = r"while another thread or task is in poll\(\)"
        with pytest.raises(ConcurrentModificationError, match=told):
            await calls[call](consumer)
        log.append(b"0")
        seen = values(await polling)
        await consumer.pause(TP)
        return seen

    assert run(scenario()) == [b"0"]
