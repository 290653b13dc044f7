from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import sys
import threading

import pyarrow as pa
import pytest
from deadlines import DEADLINE_S, wait_for
from inside import core_of

from oncelog import api
from oncelog.actors.protocol.messages.group import (
    LeaveGroupRequest,
    OffsetAndMetadata,
    OffsetCommitRequest,
)
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.consumer import AsyncConsumer, Consumer
from oncelog.api.records import OffsetAndTimestamp
from oncelog.api.session.event_loop import LoopOfProgram, LoopThread, close_if_forgotten
from oncelog.storage.exceptions import (
    ClientClosedError,
    CorruptRecordError,
    IllegalStateError,
    InvalidRequestError,
    InvalidTopicError,
    SerializationError,
    WakeupError,
)
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.codec import encode_records

TP = TopicPartition("t", 0)
SOURCES = os.path.dirname(api.__file__)


def consumer_of(cluster, **settings):
    settings.setdefault("auto_offset_reset", "earliest")
    return AsyncConsumer(cluster.router(), ConsumerSettings.from_options(settings), cluster.random)


@pytest.fixture
def log(fake_cluster):
    """A topic of one partition with five records in three batches."""
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1", codec_time_ms=1_000)
    log.append(b"2", codec_time_ms=2_000)
    log.append(b"3", b"4", codec_time_ms=3_000)
    return log


def scenario_with(fake_cluster, run, steps, **settings):
    """Run ``steps(consumer)`` with a consumer that is assigned the log."""

    async def scenario():
        consumer = consumer_of(fake_cluster, **settings)
        await consumer.assign(TP)
        return await steps(consumer)

    return run(scenario())


def test_poll_delivers_at_most_max_records(fake_cluster, run, log):
    async def steps(consumer):
        return len(await consumer.poll(1_000, max_records=3)), await consumer.position(TP)

    assert scenario_with(fake_cluster, run, steps) == (3, 3)


def test_poll_arrow_gives_every_column_in_its_type(fake_cluster, run, log):
    async def steps(consumer):
        return await consumer.poll_arrow(1_000)

    table = scenario_with(fake_cluster, run, steps)
    assert table.column_names == [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
    ]
    assert table.schema.field("timestamp").type == pa.timestamp("ms", tz="UTC")
    assert table["value"].to_pylist() == [b"0", b"1", b"2", b"3", b"4"]
    assert table["offset"].to_pylist() == [0, 1, 2, 3, 4]
    assert set(table["topic"].to_pylist()) == {"t"}
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [1_000, 1_001, 2_000, 3_000, 3_001]


def test_poll_arrow_without_data_is_an_empty_table_of_the_same_columns(fake_cluster, run):
    fake_cluster.create("t")

    async def steps(consumer):
        return await consumer.poll_arrow(100)

    table = scenario_with(fake_cluster, run, steps)
    assert table.num_rows == 0
    assert "headers" in table.column_names


def test_poll_arrow_stops_at_max_records_inside_a_batch(fake_cluster, run, log):
    async def steps(consumer):
        first = await consumer.poll_arrow(1_000, max_records=4)
        rest = await consumer.poll_arrow(1_000)
        return first["offset"].to_pylist(), rest["offset"].to_pylist()

    assert scenario_with(fake_cluster, run, steps) == ([0, 1, 2, 3], [4])


def test_seeks_move_the_position(fake_cluster, run, log):
    async def steps(consumer):
        await consumer.seek(TP, 3)
        three = await consumer.position(TP)
        await consumer.seek_to_end()
        end = await consumer.position(TP)
        await consumer.seek_to_beginning(TP)
        return three, end, await consumer.position(TP)

    assert scenario_with(fake_cluster, run, steps) == (3, 5, 0)


def test_seek_to_committed_goes_back_to_what_the_group_committed(fake_cluster, run, log):
    fake_cluster.committed[TP] = 1

    async def steps(consumer):
        await consumer.poll(1_000)
        await consumer.seek_to_committed()
        return await consumer.position(TP)

    assert scenario_with(fake_cluster, run, steps, group_id="g") == 1


@pytest.mark.parametrize("offset", [-1, "1", None, 1.5])
def test_only_whole_numbers_from_0_on_are_offsets(fake_cluster, run, log, offset):
    with pytest.raises(InvalidRequestError, match=f"seek to offset {offset!r};"):
        scenario_with(fake_cluster, run, lambda consumer: consumer.seek(TP, offset))


def test_a_topic_is_no_partition(fake_cluster, run, log):
    with pytest.raises(TypeError, match="give TopicPartition"):
        scenario_with(fake_cluster, run, lambda consumer: consumer.assign("flights"))


def test_seeking_a_partition_that_is_not_assigned_is_refused_by_name(fake_cluster, run, log):
    with pytest.raises(IllegalStateError, match="t-7"):
        scenario_with(fake_cluster, run, lambda consumer: consumer.seek(TopicPartition("t", 7), 0))


@pytest.mark.parametrize("arguments", [(-1, 1), (0, 0)])
def test_an_impossible_poll_is_refused(fake_cluster, run, log, arguments):
    with pytest.raises(InvalidRequestError):
        scenario_with(fake_cluster, run, lambda consumer: consumer.poll(*arguments))


def test_pause_and_resume(fake_cluster, run, log):
    async def steps(consumer):
        await consumer.pause(TP)
        nothing, paused = await consumer.poll(1_000), consumer.paused()
        await consumer.resume([TP])
        return nothing, paused, len(await consumer.poll(1_000)), consumer.paused()

    assert scenario_with(fake_cluster, run, steps) == ([], {TP}, 5, frozenset())


def test_bounds_and_times_are_looked_up(fake_cluster, run, log):
    log.log_start_offset = 1

    async def steps(consumer):
        return (
            await consumer.beginning_offsets([TP]),
            await consumer.end_offsets(TP),
            await consumer.offsets_for_times({TP: 1_500}),
            await consumer.offsets_for_times({TP: 9_999}),
        )

    assert scenario_with(fake_cluster, run, steps) == (
        {TP: 1},
        {TP: 5},
        {TP: OffsetAndTimestamp(offset=2, timestamp_ms=2_000)},
        {TP: None},
    )


def test_lag_is_what_lies_between_position_and_end(fake_cluster, run, log):
    async def steps(consumer):
        await consumer.poll(1_000, max_records=2)
        return await consumer.lag(), await consumer.lag(TP)

    assert scenario_with(fake_cluster, run, steps) == (3, 3)


def test_lag_does_not_count_what_was_deleted(fake_cluster, run, log):
    """But what was fetched before is read."""

    async def steps(consumer):
        await consumer.poll(1_000, max_records=2)
        log.log_start_offset = 4
        held = await consumer.lag()
        await consumer.pause(TP)
        await consumer.seek(TP, 1)
        deleted = await consumer.lag()
        log.log_start_offset = log.log_end_offset
        return held, deleted, await consumer.lag(TP)

    assert scenario_with(fake_cluster, run, steps) == (3, 1, 0)


def test_commit_stores_positions_or_what_it_is_given(fake_cluster, run, log):
    async def steps(consumer):
        before = await consumer.committed(TP)
        await consumer.poll(1_000, max_records=2)
        await consumer.commit()
        positions = await consumer.committed(TP)
        await consumer.commit({TP: OffsetAndMetadata(offset=4, metadata="note")})
        return before, positions, await consumer.committed(TP)

    assert scenario_with(fake_cluster, run, steps, group_id="g") == (None, 2, 4)


def test_assigning_again_keeps_the_position_of_what_stays(fake_cluster, run, log):
    fake_cluster.create("u")

    async def steps(consumer):
        await consumer.poll(1_000, max_records=2)
        await consumer.assign([TP, TopicPartition("u", 0)])
        return await consumer.position(TP)

    assert scenario_with(fake_cluster, run, steps) == 2


@pytest.mark.parametrize("name", ["", ".", "a b", "x" * 250])
def test_subscribing_to_an_impossible_name_is_refused(fake_cluster, run, name):
    with pytest.raises(InvalidTopicError):
        run(consumer_of(fake_cluster, group_id="g").subscribe([name]))


# --- iteration --------------------------------------------------------------------------------


def test_iteration_delivers_record_after_record_until_close(fake_cluster, run, log):
    async def steps(consumer):
        seen = []
        async for record in consumer:
            seen.append(record.offset)
            if record.offset == 4:
                await consumer.close()
        return seen

    assert scenario_with(fake_cluster, run, steps) == [0, 1, 2, 3, 4]


def test_a_commit_while_iterating_covers_only_what_was_delivered(fake_cluster, run, log):
    async def steps(consumer):
        async for record in consumer:
            if record.offset == 1:
                await consumer.commit()
                break
        third = await anext(consumer)
        return fake_cluster.committed, third.offset

    assert scenario_with(fake_cluster, run, steps, group_id="g") == ({TP: 2}, 2)


def test_closing_in_mid_iteration_commits_only_what_was_delivered(fake_cluster, run, log):
    async def steps(consumer):
        await anext(consumer)
        await consumer.close()
        return fake_cluster.committed

    assert scenario_with(fake_cluster, run, steps, group_id="g") == {TP: 1}


def test_a_poll_after_a_broken_off_iteration_goes_on_with_the_next_record(fake_cluster, run, log):
    async def steps(consumer):
        await anext(consumer)
        position = await consumer.position(TP)
        return position, [record.offset for record in await consumer.poll(1_000)]

    assert scenario_with(fake_cluster, run, steps) == (1, [1, 2, 3, 4])


# --- the synchronous face ---------------------------------------------------------------------


def test_the_synchronous_consumer_reads_iterates_commits_and_closes(fake_cluster, log):
    loop_thread = LoopThread()
    settings = ConsumerSettings(
        group_id="g",
        auto_offset_reset="earliest",
        fetch_max_wait_ms=10,
        enable_auto_commit=False,
    )
    with Consumer(fake_cluster.router(), loop_thread, settings, fake_cluster.random) as consumer:
        consumer.assign(TP)
        first = [record.value for record in consumer.poll(timeout_ms=5_000, max_records=2)]
        second = next(iter(consumer)).value
        assert consumer.position(TP) == 3
        rows = consumer.poll_arrow(5_000)["value"].to_pylist()
        assert consumer.lag() == 0
        consumer.commit()
        assert consumer.committed(TP) == 5
        assert consumer.group_metadata().group_id == "g"
        assert consumer.assignment() == {TP}
    with pytest.raises(StopIteration):
        next(consumer)
    loop_thread.close()

    assert (first, second, rows) == ([b"0", b"1"], b"2", [b"3", b"4"])


class Interrupted(LoopThread):
    """Ctrl-C comes while the answer of the loop is on its way to the user's thread."""

    is_pressed = False

    def run(self, coroutine):
        result = super().run(coroutine)
        if self.is_pressed:
            self.is_pressed = False
            raise KeyboardInterrupt
        return result


@pytest.fixture
def interrupted():
    """A loop whose ``is_pressed`` interrupts the next call."""
    loop_thread = Interrupted()
    yield loop_thread
    loop_thread.close()


def member_of(fake_cluster, loop_thread):
    settings = ConsumerSettings(group_id="g", auto_offset_reset="earliest", fetch_max_wait_ms=10)
    consumer = Consumer(fake_cluster.router(), loop_thread, settings, fake_cluster.random)
    consumer.assign(TP)
    return consumer


def read_by_poll(consumer):
    return [record.offset for record in consumer.poll(5_000, max_records=2)]


def read_by_poll_arrow(consumer):
    return consumer.poll_arrow(5_000, max_records=2)["offset"].to_pylist()


def read_by_iteration(consumer):
    return [next(consumer).offset, next(consumer).offset]


READS = [read_by_poll, read_by_poll_arrow, read_by_iteration]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("first_offset", [0, 1, 2])
def test_records_of_an_interrupted_poll_come_with_the_next(
    fake_cluster, log, interrupted, read, first_offset
):
    consumer = member_of(fake_cluster, interrupted)
    consumer.seek(TP, first_offset)
    interrupted.is_pressed = True
    with pytest.raises(KeyboardInterrupt):
        read(consumer)
    assert read(consumer) == [first_offset, first_offset + 1]
    consumer.close()


@pytest.mark.parametrize("read", READS)
def test_records_of_an_interrupted_poll_are_not_committed(fake_cluster, log, interrupted, read):
    consumer = member_of(fake_cluster, interrupted)
    assert read_by_poll(consumer) == [0, 1]
    interrupted.is_pressed = True
    with pytest.raises(KeyboardInterrupt):
        read(consumer)
    assert (consumer.position(TP), consumer.positions()) == (2, {TP: 2})
    consumer.commit()
    assert fake_cluster.committed == {TP: 2}
    consumer.close()
    assert fake_cluster.committed == {TP: 2}


class InterruptAt:
    """Raises ``KeyboardInterrupt`` at one of the calls, or returns of C, of the code under test.

    Those are the moments at which CPython lets a signal interrupt it; so all of them are tried.
    """

    def __init__(self, moment):
        self.left = moment

    def __enter__(self):
        sys.setprofile(self._note)

    def __exit__(self, *_):
        sys.setprofile(None)

    def _note(self, frame, event, _argument):
        file = frame.f_code.co_filename
        is_wait = event == "call" and file == concurrent.futures._base.__file__
        if not is_wait and (event == "return" or not file.startswith(SOURCES)):
            return
        self.left -= 1
        if self.left == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize(
    "read", [read_by_poll, read_by_poll_arrow, lambda consumer: [next(consumer).offset]]
)
def test_an_interrupt_at_any_moment_loses_and_repeats_no_record(fake_cluster, log, read):
    loop_thread = LoopThread()
    was_interrupted = True
    moment = 0
    while was_interrupted:
        moment += 1
        consumer = member_of(fake_cluster, loop_thread)
        seen = [consumer.poll(5_000, max_records=1)[0].offset]
        was_interrupted = False
        try:
            with InterruptAt(moment):
                offsets = read(consumer)
            seen += offsets
        except KeyboardInterrupt:
            was_interrupted = True
        while seen[-1] < 4:
            seen += [record.offset for record in consumer.poll(5_000)]
        assert seen == [0, 1, 2, 3, 4], f"interrupted at moment {moment}"
        consumer.close()
        assert fake_cluster.committed.pop(TP) == 5
    loop_thread.close()
    assert moment > 3


def test_what_was_delivered_before_an_interrupt_in_an_iteration_stays_delivered(
    fake_cluster, log, interrupted
):
    consumer = member_of(fake_cluster, interrupted)
    assert next(consumer).offset == 0
    interrupted.is_pressed = True
    with pytest.raises(KeyboardInterrupt):
        consumer.end_offsets(TP)
    assert next(consumer).offset == 1
    consumer.close()
    assert fake_cluster.committed == {TP: 2}


def test_every_public_method_exists_on_both_faces():
    names = {name for name in vars(Consumer) if not name.startswith("_")}

    assert names <= set(dir(AsyncConsumer))
    assert asyncio.iscoroutinefunction(AsyncConsumer.poll)


def test_a_reader_may_do_without_checksums(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    damaged = encode_records([(None, b"value", 1_000, ())])
    damaged[-2] ^= 1
    log.add(damaged)

    async def steps(consumer):
        return [record.value for record in await consumer.poll(1_000)]

    assert scenario_with(fake_cluster, run, steps, check_crcs=False) == [b"valud"]
    with pytest.raises(CorruptRecordError):
        scenario_with(fake_cluster, run, steps)


def test_a_synchronous_consumer_that_is_forgotten_leaves_its_group_without_a_commit(
    fake_cluster, log
):
    """A cell of a notebook that is run twice must not wait for a session to end."""
    loop_thread = LoopThread()
    settings = ConsumerSettings(group_id="g", auto_offset_reset="earliest", fetch_max_wait_ms=10)
    consumer = Consumer(fake_cluster.router(), loop_thread, settings, fake_cluster.random)
    consumer.subscribe("t")
    assert consumer.poll(5_000)
    left = threading.Event()
    fake_cluster.hooks[LeaveGroupRequest] = lambda _: left.set()
    with pytest.warns(ResourceWarning, match=r"a Consumer made at .*test_consumer.py"):
        del consumer
    assert left.wait(DEADLINE_S)
    assert fake_cluster.requests(OffsetCommitRequest) == []
    loop_thread.close()


def test_an_asynchronous_consumer_that_is_forgotten_leaves_its_group(fake_cluster, log):
    async def forget():
        left = asyncio.Event()
        fake_cluster.hooks[LeaveGroupRequest] = lambda _: left.set()
        settings = ConsumerSettings(
            group_id="g", auto_offset_reset="earliest", fetch_max_wait_ms=10
        )
        consumer = AsyncConsumer(fake_cluster.router(), settings, fake_cluster.random)
        close_if_forgotten(consumer, LoopOfProgram(), core_of(consumer))
        await consumer.subscribe("t")
        await consumer.poll(5_000)
        gc.collect()
        with pytest.warns(ResourceWarning, match=r"an AsyncConsumer made at .*test_consumer.py"):
            del consumer
        await asyncio.wait_for(left.wait(), DEADLINE_S)

    asyncio.run(forget())
    assert fake_cluster.requests(OffsetCommitRequest) == []


@pytest.fixture
def blocked(fake_cluster, loop_thread):
    """A synchronous consumer in whose poll, or iteration, another thread waits; and its outcome."""
    fake_cluster.create("t")
    consumer = Consumer(
        fake_cluster.router(), loop_thread, ConsumerSettings(group_id="g"), fake_cluster.random
    )
    consumer.assign(TP)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield consumer, pool.submit, lambda: _until_used(consumer, loop_thread)
        with contextlib.suppress(ClientClosedError):
            consumer.close()


def _until_used(consumer, loop_thread):
    async def is_used():
        return consumer._client._handover._depth > 0

    wait_for(lambda: loop_thread.run(is_used()), "its use", look_s=0.0)


@pytest.mark.parametrize("first", ["poll", "next"])
@pytest.mark.parametrize("second", ["poll", "next"])
def test_a_second_thread_is_refused_and_the_first_is_woken_by_close(blocked, first, second):
    consumer, start, until_used = blocked
    calls = {"poll": lambda: consumer.poll(60_000), "next": lambda: next(consumer, "ended")}
    waiting = start(calls[first])
    until_used()
    with pytest.raises(IllegalStateError, match="only close"):
        calls[second]()
    consumer.close()
    if first == "next":
        assert waiting.result(DEADLINE_S) == "ended"
    else:
        with pytest.raises(ClientClosedError):
            waiting.result(DEADLINE_S)


def test_threads_that_share_an_iteration_get_each_record_once(fake_cluster, loop_thread):
    (log,) = fake_cluster.create("t")
    log.append(*(b"%d" % number for number in range(2_000)))
    settings = ConsumerSettings(auto_offset_reset="earliest", fetch_max_wait_ms=10)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with (
            Consumer(fake_cluster.router(), loop_thread, settings, fake_cluster.random) as consumer,
            concurrent.futures.ThreadPoolExecutor(2) as pool,
        ):
            consumer.assign(TP)
            first = next(consumer).offset
            read = [pool.submit(lambda: [next(consumer).offset for _ in range(200)]) for _ in "ab"]
            offsets = [first, *(offset for one in read for offset in one.result(DEADLINE_S))]
            rest = [record.offset for record in consumer.poll(5_000)]
    finally:
        sys.setswitchinterval(interval_s)
    assert sorted(offsets) == list(range(401))
    assert rest[0] == 401


def test_a_poll_in_another_thread_is_told_that_its_cluster_was_closed(blocked, loop_thread):
    consumer, start, until_used = blocked
    waiting = start(lambda: consumer.poll(60_000))
    until_used()
    loop_thread.close()
    with pytest.raises(ClientClosedError, match="the cluster was closed during the call"):
        waiting.result(DEADLINE_S)


# --- wakeup ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["poll", "next"])
def test_another_thread_wakes_up_a_poll_and_the_next_one_goes_on(blocked, first, fake_cluster):
    consumer, start, until_used = blocked
    calls = {"poll": lambda: consumer.poll(60_000), "next": lambda: next(consumer)}
    waiting = start(calls[first])
    until_used()
    consumer.wakeup()
    with pytest.raises(WakeupError):
        waiting.result(DEADLINE_S)
    assert consumer.poll(0) == []


def test_a_wakeup_between_two_polls_ends_the_next_one_only_and_loses_nothing(
    fake_cluster, run, log
):
    async def steps(consumer):
        await consumer.poll(1_000, max_records=1)
        consumer.wakeup()
        consumer.wakeup()
        with pytest.raises(WakeupError):
            await consumer.poll(1_000)
        return [record.offset for record in await consumer.poll(1_000)]

    assert scenario_with(fake_cluster, run, steps) == [1, 2, 3, 4]


# --- reset by age ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "offset"), [("PT0S", 5), ("PT0.5S", 5), ("PT2.5S", 3), ("PT1M", 0), ("P1D", 0)]
)
def test_without_a_committed_offset_reading_starts_at_the_first_record_of_an_age(
    fake_cluster, run, log, age, offset
):
    """Batches of 1, 2 and 3 seconds; it is second 5. Without one so young, at the end."""
    fake_cluster.clock.time_ms = 5_000

    async def steps(consumer):
        return await consumer.position(TP)

    reset = f"by_duration:{age}"
    assert scenario_with(fake_cluster, run, steps, auto_offset_reset=reset) == offset


def test_an_offset_out_of_range_is_reset_by_age_too(fake_cluster, run, log):
    fake_cluster.clock.time_ms = 5_000

    async def steps(consumer):
        await consumer.seek(TP, 77)
        return [record.offset for record in await consumer.poll(1_000)]

    reset = "by_duration:PT2.5S"
    assert scenario_with(fake_cluster, run, steps, auto_offset_reset=reset) == [3, 4]


# --- deserializers --------------------------------------------------------------------------------


def test_records_are_deserialized_and_one_that_cannot_be_stops_the_poll(fake_cluster, run, log):
    """The records before it are delivered; then its error, until the program goes past it."""
    log.append(b"not a number", b"6")

    async def steps(consumer):
        first = await consumer.poll(1_000)
        for _ in range(2):
            with pytest.raises(SerializationError, match=r"value .* 't', partition 0, offset 5, "):
                await consumer.poll(1_000)
        position = await consumer.position(TP)
        await consumer.seek(TP, position + 1)
        return first, position, await consumer.poll(1_000)

    settings = {"value_deserializer": "json", "key_deserializer": "str"}
    first, position, rest = scenario_with(fake_cluster, run, steps, **settings)
    assert [(record.key, record.value) for record in first] == [("k", n) for n in range(5)]
    assert position == 5
    assert [(record.offset, record.value) for record in rest] == [(6, 6)]


def test_a_record_that_cannot_be_deserialized_brings_nothing_of_other_partitions_twice(
    fake_cluster, run
):
    logs = fake_cluster.create("two", 2)
    logs[0].append(b"0", b"1")
    logs[1].append(b"2", b"no number")

    async def scenario():
        consumer = consumer_of(fake_cluster, value_deserializer="json")
        await consumer.assign([TopicPartition("two", number) for number in range(2)])
        found = []
        for _ in range(10):
            # Which partition comes first is open, but neither holds up the other.
            with contextlib.suppress(SerializationError):
                found += [record.value for record in await consumer.poll(1_000)]
        with pytest.raises(SerializationError):
            await consumer.poll(1_000)
        return sorted(found)

    assert run(scenario()) == [0, 1, 2]
