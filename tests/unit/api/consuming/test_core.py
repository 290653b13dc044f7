from __future__ import annotations

import asyncio

import pytest
from inside import core_of

from oncelog.actors.protocol.messages.group import (
    FetchedOffset,
    OffsetFetchReply,
    OffsetFetchRequest,
)
from oncelog.actors.protocol.messages.partition import FetchRequest, ListOffsetsRequest
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    ClientClosedError,
    IllegalStateError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition

TP = TopicPartition("t", 0)


def consumer_of(cluster, **settings):
    settings.setdefault("auto_offset_reset", "earliest")
    return AsyncConsumer(cluster.router(), ConsumerSettings.from_options(settings), cluster.random)


def values(records):
    return [record.value for record in records]


# --- scenario 72 to 75 ------------------------------------------------------------------------


def test_read_committed_skips_aborted_data_and_ends_past_the_last_marker(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1", producer_id=1)
    log.append(b"2", b"3", producer_id=2)
    log.mark(1, committed=False)
    log.mark(2, committed=True)
    log.append(b"6", producer_id=1)
    log.mark(1, committed=True)

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.assign(TP)
        records = await consumer.poll(1_000)
        return [record.offset for record in records], await consumer.position(TP)

    assert run(scenario()) == ([2, 3, 6], 8)


def test_a_reader_that_starts_inside_an_aborted_transaction_sees_none_of_it(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0", producer_id=1)
    log.append(b"1", producer_id=1)
    log.mark(1, committed=False)
    log.append(b"3")

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.assign(TP)
        await consumer.seek(TP, 1)
        return values(await consumer.poll(1_000))

    assert run(scenario()) == [b"3"]


def test_a_log_of_aborted_data_only_moves_the_position_without_a_busy_loop(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0", producer_id=1)
    log.mark(1, committed=False)

    async def scenario():
        consumer = consumer_of(fake_cluster, fetch_max_wait_ms=500)
        await consumer.assign(TP)
        records = await consumer.poll(10_000)
        return records, await consumer.position(TP), len(fake_cluster.requests(FetchRequest))

    records, position, fetches = run(scenario())
    assert (records, position) == ([], 2)
    assert fetches <= 22


def test_an_open_transaction_bounds_the_end_and_the_lag_and_its_commit_wakes_the_poll(
    fake_cluster, run
):
    (log,) = fake_cluster.create("t")
    for number in range(10):
        log.append(str(number).encode())
    log.append(*(b"x" for _ in range(10)), producer_id=1)

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.assign(TP)
        seen = values(await consumer.poll(1_000))
        end, lag = (await consumer.end_offsets(TP))[TP], await consumer.lag(TP)
        loop = asyncio.get_running_loop()
        loop.call_later(3, lambda: log.mark(1, committed=True))
        started = loop.time()
        woken = values(await consumer.poll(60_000))
        return seen, end, lag, woken, loop.time() - started

    seen, end, lag, woken, waited = run(scenario())
    assert len(seen) == 10
    assert (end, lag) == (10, 0)
    assert woken == [b"x"] * 10
    assert waited == pytest.approx(3, abs=0.1)


def test_read_uncommitted_sees_open_data_and_no_markers(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0", producer_id=1)
    log.mark(1, committed=False)
    log.append(b"2", producer_id=1)

    async def scenario():
        consumer = consumer_of(fake_cluster, isolation_level="read_uncommitted")
        await consumer.assign(TP)
        return [record.offset for record in await consumer.poll(1_000)]

    assert run(scenario()) == [0, 2]


# --- poll -------------------------------------------------------------------------------------


def test_a_poll_without_data_ends_at_its_timeout(fake_cluster, run):
    fake_cluster.create("t")

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.assign(TP)
        records = await consumer.poll(1_500)
        return records, asyncio.get_running_loop().time()

    records, now = run(scenario())
    assert records == []
    assert now == pytest.approx(1.5)


def test_polling_nothing_is_refused_with_what_to_call(fake_cluster, run):
    with pytest.raises(IllegalStateError, match=r"subscribe\(\) or assign\(\)"):
        run(consumer_of(fake_cluster).poll(0))


def test_a_closed_consumer_refuses_every_call(fake_cluster, run):
    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.close()
        await consumer.close()
        await consumer.poll(0)

    with pytest.raises(ClientClosedError):
        run(scenario())


def test_assigning_while_subscribed_is_refused(fake_cluster, run):
    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.subscribe("t")
        await consumer.assign(TP)

    with pytest.raises(IllegalStateError, match="unsubscribe"):
        run(scenario())


def test_an_unknown_topic_is_raised_by_the_poll(fake_cluster, run):
    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.assign(TP)
        await consumer.poll(1_000)

    with pytest.raises(UnknownTopicOrPartitionError, match="'t'"):
        run(scenario())


@pytest.mark.parametrize("assigned", [(TP,), (TP, TopicPartition("u", 0))])
def test_a_topic_that_may_not_be_seen_is_raised_by_the_poll(fake_cluster, run, assigned):
    """Also beside one that may: else the consumer would never read it, and not say so."""
    fake_cluster.create("t")
    fake_cluster.create("u")
    fake_cluster.hidden = {"t"}

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.assign(assigned)
        await consumer.poll(1_000)

    with pytest.raises(TopicAuthorizationFailedError, match="may not Describe topic 't'"):
        run(scenario())


def test_a_position_outlives_a_time_without_the_right_to_see_the_topic(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0")

    async def scenario():
        consumer = consumer_of(fake_cluster, auto_offset_reset="earliest")
        await consumer.assign(TP)
        first = values(await consumer.poll(1_000))
        fake_cluster.hidden = {"t"}
        with pytest.raises(TopicAuthorizationFailedError):
            await consumer.poll(1_000)
        fake_cluster.hidden = set()
        log.append(b"1")
        return first, values(await consumer.poll(5_000))

    assert run(scenario()) == ([b"0"], [b"1"])


# --- positions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reset", "expected"), [("earliest", [b"0", b"1"]), ("latest", []), ("none", None)]
)
def test_without_a_committed_offset_the_reset_policy_decides(fake_cluster, run, reset, expected):
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1")

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g", auto_offset_reset=reset)
        await consumer.assign(TP)
        return values(await consumer.poll(1_000))

    if expected is None:
        with pytest.raises(OffsetOutOfRangeError, match="auto_offset_reset='none'"):
            run(scenario())
    else:
        assert run(scenario()) == expected


def test_a_committed_offset_wins_over_the_reset_policy(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1", b"2")
    fake_cluster.committed[TP] = 2

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.assign(TP)
        return values(await consumer.poll(1_000))

    assert run(scenario()) == [b"2"]
    assert fake_cluster.requests(OffsetFetchRequest)[0].require_stable


def test_an_offset_that_a_transaction_is_about_to_commit_is_waited_for(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1", b"2")
    fake_cluster.committed[TP] = 1

    def unstable(request):
        if len(fake_cluster.requests(OffsetFetchRequest)) > 3:
            return None
        return OffsetFetchReply(
            offsets=(FetchedOffset(topic_partition=TP, error=ErrorCode.UNSTABLE_OFFSET_COMMIT),)
        )

    fake_cluster.hooks[OffsetFetchRequest] = unstable

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g")
        await consumer.assign(TP)
        return values(await consumer.poll(10_000))

    assert run(scenario()) == [b"1", b"2"]


def test_a_committed_offset_in_a_topic_remade_since_it_was_looked_up_counts(fake_cluster, run):
    """1. The consumer looks up the topic. 2. It is deleted and made again. 3. Another member
    commits in the new one. 4. The consumer goes on from there, in the new topic.
    """
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1", b"2")
    new_id = "1" * 32

    def committed(request):
        found = FetchedOffset(topic_partition=TP, offset=2, topic_id=new_id)
        return OffsetFetchReply(offsets=(found,))

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g")
        await core_of(consumer).router.metadata(("t",))
        fake_cluster.topic_ids["t"] = new_id
        fake_cluster.answers[OffsetFetchRequest] = committed
        await consumer.assign(TP)
        return values(await consumer.poll(10_000))

    assert run(scenario()) == [b"2"]
    assert {request.topic_id for request in fake_cluster.requests(FetchRequest)} == {new_id}


@pytest.mark.parametrize("known", ["never", "as a topic", "with its position"])
def test_an_assigned_partition_that_is_missing_does_not_keep_the_others_from_being_read(
    fake_cluster, run, known, caplog
):
    """It never was there, or is deleted once its topic, or also its position, was looked up."""
    (log,) = fake_cluster.create("t")
    gone = TopicPartition("gone", 0)
    if known != "never":
        fake_cluster.create("gone")

    async def scenario():
        consumer = consumer_of(fake_cluster, retry_backoff_max_ms=100)
        if known == "as a topic":
            await core_of(consumer).router.metadata(["gone"])
            fake_cluster.delete("gone")
        await consumer.assign([gone, TP])
        await consumer.poll(1_000)
        if known == "with its position":
            fake_cluster.delete("gone")
        seen = []
        for number in range(10):
            log.append(b"%d" % number)
            seen += values(await consumer.poll(1_000))
        fake_cluster.create("gone")[0].append(b"back")
        while not seen[10:]:
            seen += values(await consumer.poll(1_000))
        return seen

    assert run(scenario()) == [b"%d" % number for number in range(10)] + [b"back"]
    (warning,) = (record.message for record in caplog.records)
    assert "gone-0" in warning


def test_an_offset_out_of_range_goes_where_the_reset_policy_says(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1")

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.assign(TP)
        await consumer.seek(TP, 99)
        return values(await consumer.poll(5_000))

    assert run(scenario()) == [b"0", b"1"]


@pytest.mark.parametrize(("reset", "expected"), [("earliest", [b"2", b"3"]), ("latest", [])])
def test_a_position_whose_record_was_deleted_goes_where_the_reset_policy_says(
    fake_cluster, run, reset, expected
):
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1")
    log.append(b"2", b"3")
    fake_cluster.committed[TP] = 1
    log.log_start_offset = 2

    async def scenario():
        consumer = consumer_of(fake_cluster, group_id="g", auto_offset_reset=reset)
        await consumer.assign(TP)
        return values(await consumer.poll(2_000)), await consumer.position(TP)

    assert run(scenario()) == (expected, 4)


def test_an_offset_out_of_range_without_reset_policy_is_raised(fake_cluster, run):
    fake_cluster.create("t")

    async def scenario():
        consumer = consumer_of(fake_cluster, auto_offset_reset="none")
        await consumer.assign(TP)
        await consumer.seek(TP, 99)
        await consumer.poll(5_000)

    with pytest.raises(OffsetOutOfRangeError):
        run(scenario())


@pytest.mark.parametrize(
    ("asked", "settings"), [(ListOffsetsRequest, {}), (OffsetFetchRequest, {"group_id": "g"})]
)
def test_a_seek_overtakes_a_position_that_is_still_looked_up(fake_cluster, run, asked, settings):
    """1. A position is looked up. 2. The reader seeks elsewhere. 3. The answer comes, and counts
    no more.
    """
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1", b"2")
    fake_cluster.committed[TP] = 1

    async def scenario():
        consumer = consumer_of(fake_cluster, **settings)
        answered = asyncio.Event()

        async def held(_request):
            await answered.wait()

        fake_cluster.hooks[asked] = held
        await consumer.assign(TP)
        await consumer.poll(100)
        assert len(fake_cluster.requests(asked)) == 1
        await consumer.seek(TP, 2)
        answered.set()
        await asyncio.sleep(0.1)
        return await consumer.position(TP), values(await consumer.poll(1_000))

    assert run(scenario()) == (2, [b"2"])


def test_a_leader_that_is_away_for_long_is_waited_for(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0")
    fake_cluster.fail(ListOffsetsRequest, ErrorCode.NETWORK_EXCEPTION, times=30)

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.assign(TP)
        return values(await consumer.poll(120_000))

    assert run(scenario()) == [b"0"]
