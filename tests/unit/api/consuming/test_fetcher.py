from __future__ import annotations

import asyncio
from random import Random

import pytest
from virtual_time import give_turns

from oncelog.actors.protocol.messages.cluster import MetadataRequest
from oncelog.actors.protocol.messages.partition import FetchReply, FetchRequest
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.fetcher import IDLE_CHECK_MS, Fetcher
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    CorruptDataError,
    IllegalStateError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition

TP = TopicPartition("t", 0)
SETTINGS = ConsumerSettings(isolation_level="read_committed")


def new_fetcher(cluster, settings=SETTINGS):
    return Fetcher(
        router=cluster.router(),
        settings=settings,
        random=cluster.random,
        on_change=lambda: None,
    )


def test_a_reply_is_fetched_ahead_and_one_more_but_no_third(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    for number in range(5):
        log.append(str(number).encode())

    async def scenario():
        fetcher = new_fetcher(
            fake_cluster, ConsumerSettings(max_partition_fetch_bytes=1, fetch_max_bytes=10_000)
        )
        fetcher.assign([TP])
        fetcher.seek(TP, 0)
        await give_turns(50)
        asked = [request.fetch_offset for request in fake_cluster.requests(FetchRequest)]
        fetcher.take_records(1)
        await give_turns(50)
        return asked, [request.fetch_offset for request in fake_cluster.requests(FetchRequest)]

    assert run(scenario()) == ([0, 1], [0, 1, 2])


def test_taking_wakes_no_partition_that_has_all_it_may_hold(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    for _ in range(3):
        log.append(b"one", b"two")

    async def scenario():
        fetcher = new_fetcher(
            fake_cluster, ConsumerSettings(max_partition_fetch_bytes=1, fetch_max_bytes=10_000)
        )
        fetcher.assign([TP])
        fetcher.seek(TP, 0)
        await give_turns(50)
        is_woken = []
        for _ in range(2):
            fetcher.take_records(1)
            is_woken.append(fetcher._room[TP].is_set())
        return is_woken

    assert run(scenario()) == [False, True]


def test_no_fetch_begins_while_the_replies_held_reach_the_bound(fake_cluster, run):
    first, second = fake_cluster.create("t", 2)
    first.append(b"x" * 100)
    second.append(b"y" * 100)

    async def scenario():
        fetcher = new_fetcher(fake_cluster, ConsumerSettings(fetch_max_bytes=50))
        fetcher.assign([TP])
        fetcher.seek(TP, 0)
        await give_turns(50)
        fetcher.assign([TP, TopicPartition("t", 1)])
        fetcher.seek(TopicPartition("t", 1), 0)
        await give_turns(50)
        before = len(fetcher.take_records(10))
        await give_turns(50)
        return before, len(fetcher.take_records(10))

    assert run(scenario()) == (1, 1)


def test_a_seek_makes_the_fetch_on_its_way_nobodys(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0")
    log.append(b"1")

    async def scenario():
        fetcher = new_fetcher(fake_cluster)
        fetcher.assign([TP])
        fetcher.seek(TP, 0)
        await asyncio.sleep(0)
        fetcher.seek(TP, 1)
        await give_turns(50)
        return [record.offset for record in fetcher.take_records(10)]

    assert run(scenario()) == [1]


def deaf_to_cancelling(cluster):
    """Make the next fetch wait, and answer all the same when its caller is told to stop."""
    answer_of = cluster.answers[FetchRequest]
    begun = asyncio.Event()

    async def hook(request):
        del cluster.hooks[FetchRequest]
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await answer_of(request)

    cluster.hooks[FetchRequest] = hook
    return begun


def test_an_answer_that_meets_a_seek_is_dropped(fake_cluster, run):
    """1. A fetch waits at the end. 2. Records come. 3. The reader goes back to the beginning.

    4. In that turn the answer for the end arrives. 5. The reader gets all from the beginning on.
    """
    (log,) = fake_cluster.create("t")
    log.append(b"0")
    log.append(b"1")

    async def scenario():
        fetcher = new_fetcher(fake_cluster)
        fetcher.assign([TP])
        begun = deaf_to_cancelling(fake_cluster)
        fetcher.seek(TP, 2)
        await begun.wait()
        log.append(b"2")
        fetcher.seek(TP, 0)
        await give_turns(50)
        return [record.offset for record in fetcher.take_records(10)]

    assert run(scenario()) == [0, 1, 2]


def test_a_fetch_that_did_not_hear_of_its_end_does_not_go_on_beside_its_successor(
    fake_cluster, run
):
    """1. A fetch waits. 2. The reader seeks to the same place. 3. The old fetch is answered.

    4. Only the new one goes on: each place is asked for once.
    """
    (log,) = fake_cluster.create("t")

    async def scenario():
        fetcher = new_fetcher(fake_cluster)
        fetcher.assign([TP])
        begun = deaf_to_cancelling(fake_cluster)
        fetcher.seek(TP, 0)
        await begun.wait()
        log.append(b"0")
        fetcher.seek(TP, 0)
        await give_turns(50)
        taken = [record.offset for record in fetcher.take_records(10)]
        await give_turns(50)
        return taken, [request.fetch_offset for request in fake_cluster.requests(FetchRequest)]

    assert run(scenario()) == ([0], [0, 0, 1])


def test_an_answer_for_a_place_that_was_left_meanwhile_is_dropped(fake_cluster, run):
    """1. A fetch from 0 is on its way. 2. The position moves to 1. 3. The answer comes.

    4. Nothing of it is delivered; the same task asks again, from 1.
    """
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1")

    async def scenario():
        fetcher = new_fetcher(fake_cluster)
        fetcher.assign([TP])
        begun, answer = asyncio.Event(), asyncio.Event()

        async def held(request):
            begun.set()
            await answer.wait()

        fake_cluster.hooks[FetchRequest] = held
        fetcher.seek(TP, 0)
        await begun.wait()
        fetcher.partition(TP).seek(1)
        answer.set()
        await give_turns(50)
        asked = [request.fetch_offset for request in fake_cluster.requests(FetchRequest)]
        return asked[:2], [record.offset for record in fetcher.take_records(10)]

    assert run(scenario()) == ([0, 1], [1])


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
def test_a_retriable_error_is_asked_again(fake_cluster, run, error):
    (log,) = fake_cluster.create("t")
    log.append(b"0")
    fake_cluster.fail(FetchRequest, error, times=2)

    async def scenario():
        fetcher = new_fetcher(fake_cluster)
        fetcher.assign([TP])
        fetcher.seek(TP, 0)
        await asyncio.sleep(10)
        return len(fetcher.take_records(10)), fetcher.take_failure()

    assert run(scenario()) == (1, None)


def test_an_error_no_retry_mends_waits_until_what_came_before_is_taken(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0")

    async def scenario():
        fetcher = new_fetcher(fake_cluster)
        fetcher.assign([TP])
        fetcher.seek(TP, 0)
        await give_turns(8)
        fake_cluster.fail(FetchRequest, ErrorCode.OFFSET_OUT_OF_RANGE)
        await asyncio.sleep(1)
        early = fetcher.take_failure()
        fetcher.take_records(10)
        _, failure = fetcher.take_failure()
        return early, failure

    early, failure = run(scenario())
    assert early is None
    assert isinstance(failure, OffsetOutOfRangeError)


def test_a_topic_that_does_not_exist_is_a_failure(fake_cluster, run):
    async def scenario():
        fetcher = new_fetcher(fake_cluster)
        fetcher.assign([TP])
        fetcher.seek(TP, 0)
        await asyncio.sleep(1)
        return fetcher.take_failure()

    _, failure = run(scenario())
    assert isinstance(failure, UnknownTopicOrPartitionError)


def test_a_damaged_batch_is_a_failure_at_its_position_and_asked_for_again(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0")
    good = log.batches[0]
    log.batches[0] = good[:-1] + bytes([good[-1] ^ 1])

    async def scenario():
        fetcher = new_fetcher(fake_cluster)
        fetcher.assign([TP])
        fetcher.seek(TP, 0)
        await asyncio.sleep(1)
        partition, failure = fetcher.take_failure()
        position = partition.position
        log.batches[0] = good
        await asyncio.sleep(1)
        return position, failure, len(fetcher.take_records(10))

    position, failure, count = run(scenario())
    assert isinstance(failure, CorruptDataError)
    assert (position, count) == (0, 1)


def test_a_paused_partition_is_neither_fetched_nor_delivered(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0")

    async def scenario():
        fetcher = new_fetcher(fake_cluster)
        fetcher.assign([TP])
        fetcher.pause(TP)
        fetcher.seek(TP, 0)
        await asyncio.sleep(1)
        paused = len(fake_cluster.requests(FetchRequest)), fetcher.take_records(10)
        fetcher.resume(TP)
        await asyncio.sleep(1)
        return paused, len(fetcher.take_records(10))

    assert run(scenario()) == ((0, []), 1)


def test_every_partition_gets_its_turn_when_records_are_taken_one_by_one(fake_cluster, run):
    for log in fake_cluster.create("t", 3):
        log.append(b"0", b"1", b"2")

    async def scenario():
        fetcher = new_fetcher(fake_cluster)
        partitions = [TopicPartition("t", number) for number in range(3)]
        fetcher.assign(partitions)
        for tp in partitions:
            fetcher.seek(tp, 0)
        await give_turns(50)
        return [fetcher.take_records(1)[0].partition for _ in range(3)]

    assert sorted(run(scenario())) == [0, 1, 2]


def test_a_partition_given_up_is_no_longer_fetched(fake_cluster, run):
    (log,) = fake_cluster.create("t")

    async def scenario():
        fetcher = new_fetcher(fake_cluster)
        fetcher.assign([TP])
        fetcher.seek(TP, 0)
        await give_turns(50)
        fetcher.assign([])
        log.append(b"0")
        before = len(fake_cluster.requests(FetchRequest))
        await asyncio.sleep(5)
        with pytest.raises(IllegalStateError):
            fetcher.partition(TP)
        return len(fake_cluster.requests(FetchRequest)) - before

    assert run(scenario()) == 0


def test_a_bug_in_a_fetch_is_raised_and_not_hidden(fake_cluster, run):
    fake_cluster.create("t")

    def broken(request):
        raise ZeroDivisionError

    fake_cluster.hooks[FetchRequest] = broken

    async def scenario():
        fetcher = new_fetcher(fake_cluster)
        fetcher.assign([TP])
        fetcher.seek(TP, 0)
        await give_turns(50)
        with pytest.raises(ZeroDivisionError):
            fetcher.take_failure()

    run(scenario())


def test_what_a_paused_partition_holds_does_not_keep_others_from_being_fetched(fake_cluster, run):
    """1. A partition fills the bound. 2. It is paused. 3. Another one is read to its end.

    4. The first is resumed: nothing of it is lost and nothing comes twice.
    """
    first, second = fake_cluster.create("t", 2)
    for number in range(3):
        first.append(bytes([number]) * 100, b"rest")
        second.append(b"y" * 100)
    other = TopicPartition("t", 1)

    async def scenario():
        fetcher = new_fetcher(
            fake_cluster, ConsumerSettings(fetch_max_bytes=50, max_partition_fetch_bytes=50)
        )
        fetcher.assign([TP])
        fetcher.seek(TP, 0)
        await give_turns(50)
        taken = fetcher.take_records(1)
        fetcher.pause(TP)
        fetcher.assign([TP, other])
        fetcher.seek(other, 0)
        while sum(record.partition == 1 for record in taken) < 3:
            await give_turns(50)
            found = fetcher.take_records(10)
            assert found
            taken += found
        fetcher.resume(TP)
        while len(taken) < 9:
            await give_turns(50)
            found = fetcher.take_records(10)
            assert found
            taken += found
        return [record.offset for record in taken if record.partition == 0]

    assert run(scenario()) == [0, 1, 2, 3, 4, 5]


def test_who_looks_at_the_assignment_is_not_disturbed_by_a_new_one(fake_cluster, run):
    """1. A thread goes through the partitions. 2. The loop assigns others. 3. It goes on."""
    fake_cluster.create("t", 3)

    async def scenario():
        fetcher = new_fetcher(fake_cluster)
        fetcher.assign([TP, TopicPartition("t", 1)])
        seen = iter(fetcher.partitions)
        first = next(seen)
        fetcher.assign([TopicPartition("t", 2)])
        return [first, *seen], list(fetcher.partitions)

    assert run(scenario()) == ([TP, TopicPartition("t", 1)], [TopicPartition("t", 2)])


BOUND_BYTES = 600


async def read_while_pausing(fake_cluster, random, logs):
    """Takes, pauses and resumes at random; returns what was read and checks that nobody starves."""
    fetcher = new_fetcher(
        fake_cluster,
        ConsumerSettings(fetch_max_bytes=BOUND_BYTES, max_partition_fetch_bytes=BOUND_BYTES // 2),
    )
    partitions = [TopicPartition("t", number) for number in range(len(logs))]
    fetcher.assign(partitions)
    for partition in partitions:
        fetcher.seek(partition, 0)
    seen = {partition: [] for partition in partitions}
    for _ in range(60):
        chosen = random.choice(partitions)
        random.choice([fetcher.pause, fetcher.resume])(chosen)
        logs[random.choice(partitions).partition].append(b"x" * random.randint(1, 200))
        await give_turns(50)
        held_bytes = sum(p.buffered_bytes for p in fetcher.partitions.values())
        assert held_bytes <= BOUND_BYTES * (1 + len(partitions))
        records = fetcher.take_records(random.randint(1, 4))
        behind = [
            partition
            for partition in partitions
            if not fetcher.partition(partition).is_paused
            and len(seen[partition]) < logs[partition.partition].log_end_offset
        ]
        assert records or not behind, f"{behind} starve"
        for record in records:
            seen[record.topic_partition].append(record.offset)
    for partition in partitions:
        fetcher.resume(partition)
    for _ in range(200):
        await give_turns(50)
        for record in fetcher.take_records(100):
            seen[record.topic_partition].append(record.offset)
    await fetcher.close()
    return seen


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_that_pauses_at_random_reads_all_once_and_in_order(fake_cluster, run, seed):
    logs = fake_cluster.create("t", 3)
    for log in logs:
        for _ in range(20):
            log.append(b"x" * 100)
    seen = run(read_while_pausing(fake_cluster, Random(seed), logs))
    assert [seen[TopicPartition("t", number)] for number in range(3)] == [
        list(range(log.log_end_offset)) for log in logs
    ]


def test_an_idle_reader_finds_another_leader_that_its_own_does_not_know_of(fake_cluster, run):
    """1. Nothing comes for a while. 2. Another leads, and the first is not told. 3. It is read."""
    (log,) = fake_cluster.create("t")
    log.append(b"0")

    async def scenario():
        fetcher = new_fetcher(fake_cluster)
        fetcher.assign([TP])
        fetcher.seek(TP, 1)
        await asyncio.sleep(1)
        (former,) = {
            actor for actor, request in fake_cluster.calls if isinstance(request, FetchRequest)
        }
        empty = FetchReply(high_watermark=1, last_stable_offset=1, log_start_offset=0)

        async def nothing_new(request):
            await asyncio.sleep(request.max_wait_ms / 1_000)
            return empty

        fake_cluster.actors[former] = lambda request: (
            nothing_new(request) if isinstance(request, FetchRequest) else None
        )
        fake_cluster.leaders[TP] = 2
        log.append(b"1")
        await asyncio.sleep(IDLE_CHECK_MS / 1_000 + 1)
        found = fetcher.take_records(10)
        await fetcher.close()
        return [record.value for record in found]

    assert run(scenario()) == [b"1"]


def test_a_reader_that_is_not_idle_does_not_ask_who_leads(fake_cluster, run):
    (log,) = fake_cluster.create("t")

    async def scenario():
        fetcher = new_fetcher(fake_cluster)
        fetcher.assign([TP])
        fetcher.seek(TP, 0)
        await asyncio.sleep(1)
        before = len(fake_cluster.requests(MetadataRequest))
        while asyncio.get_running_loop().time() < 3 * IDLE_CHECK_MS / 1_000:
            log.append(b"0")
            await give_turns(50)
            fetcher.take_records(10)
            await give_turns(50)
            await asyncio.sleep(0.4)
            log.append(b"0")
            await give_turns(50)
        asked = len(fake_cluster.requests(MetadataRequest)) - before
        await fetcher.close()
        return asked

    assert run(scenario()) == 0
