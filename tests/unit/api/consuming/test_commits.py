"""Commits in the background, stored offsets, and what interceptors see of both."""

from __future__ import annotations

import asyncio
import threading

import pytest

from oncelog.actors.protocol.messages.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetAndMetadata,
    OffsetCommitRequest,
)
from oncelog.api.batching.interceptors import ConsumerInterceptor
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming import commits
from oncelog.api.consuming.consumer import AsyncConsumer, Consumer
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    IllegalStateError,
    InvalidSettingError,
    OffsetMetadataTooLargeError,
)
from oncelog.storage.model import TopicPartition

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


def consumer_of(cluster, **settings):
    options = {"group_id": "g", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    settings = ConsumerSettings.from_options(options | settings)
    return AsyncConsumer(cluster.router(), settings, cluster.random)


def plain(offsets):
    return {tp: position.offset for tp, position in offsets.items()}


def sent(cluster):
    """The offsets of each commit that reached the coordinator, in order."""
    return [plain(dict(request.offsets)) for request in cluster.requests(OffsetCommitRequest)]


class Told:
    """A callback that notes what it is told."""

    def __init__(self):
        self.calls = []

    def __call__(self, offsets, error):
        self.calls.append((plain(offsets), None if error is None else error.code))


def slow_commits(cluster, seconds=5.0):
    async def late(_request):
        await asyncio.sleep(seconds)

    cluster.hooks[OffsetCommitRequest] = late


def scenario_with(cluster, run, steps, **settings):
    async def scenario():
        consumer = consumer_of(cluster, **settings)
        await consumer.assign(TP)
        return await steps(consumer)

    return run(scenario())


# --- in the background ----------------------------------------------------------------------------


def test_commits_in_the_background_keep_their_order_and_are_told_by_the_next_poll(
    fake_cluster, run
):
    fake_cluster.create("t")
    slow_commits(fake_cluster)
    told = Told()

    async def steps(consumer):
        loop = asyncio.get_running_loop()
        began = loop.time()
        for offset in (1, 2, 3):
            await consumer.commit_async({TP: offset}, told)
        assert loop.time() == began
        await asyncio.sleep(60)
        assert told.calls == []
        await consumer.poll()

    scenario_with(fake_cluster, run, steps)
    assert sent(fake_cluster) == [{TP: 1}, {TP: 2}, {TP: 3}]
    assert told.calls == [({TP: 1}, None), ({TP: 2}, None), ({TP: 3}, None)]


def test_a_commit_waits_for_those_begun_before_and_calls_their_callbacks(fake_cluster, run):
    fake_cluster.create("t")
    slow_commits(fake_cluster)
    told = Told()

    async def steps(consumer):
        await consumer.commit_async({TP: 1}, told)
        await consumer.commit({TP: 2})
        return list(told.calls)

    assert scenario_with(fake_cluster, run, steps) == [({TP: 1}, None)]
    assert sent(fake_cluster) == [{TP: 1}, {TP: 2}]


def test_a_commit_does_not_overtake_an_automatic_one_begun_by_the_poll_before(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1", b"2")

    async def steps(consumer):
        await consumer.poll(1_000, max_records=1)
        await asyncio.sleep(2)
        # The automatic commit covers offset 1; its task has not begun when the poll returns.
        await consumer.poll(0, max_records=1)
        await consumer.commit()

    scenario_with(fake_cluster, run, steps, enable_auto_commit=True, auto_commit_interval_ms=1_000)
    assert sent(fake_cluster) == [{TP: 1}, {TP: 2}]


def test_a_failed_commit_in_the_background_is_told_with_its_error(fake_cluster, run):
    fake_cluster.create("t")
    fake_cluster.fail(OffsetCommitRequest, ErrorCode.OFFSET_METADATA_TOO_LARGE)
    told = Told()

    async def steps(consumer):
        await consumer.commit_async({TP: 1}, told)
        await asyncio.sleep(1)
        await consumer.commit_async({TP: 2}, told)
        await asyncio.sleep(1)
        await consumer.close()

    scenario_with(fake_cluster, run, steps)
    assert told.calls == [({TP: 1}, ErrorCode.OFFSET_METADATA_TOO_LARGE), ({TP: 2}, None)]


def test_a_failed_commit_without_a_callback_is_logged(fake_cluster, run, caplog):
    fake_cluster.create("t")
    fake_cluster.fail(OffsetCommitRequest, ErrorCode.OFFSET_METADATA_TOO_LARGE)

    async def steps(consumer):
        await consumer.commit_async({TP: 1})
        await asyncio.sleep(1)

    scenario_with(fake_cluster, run, steps)
    assert "a commit in the background failed" in caplog.text


def test_what_a_callback_raises_the_call_raises_that_calls_it(fake_cluster, run):
    fake_cluster.create("t")
    told = Told()

    def broken(_offsets, _error):
        raise ValueError("mine")

    async def steps(consumer):
        await consumer.commit_async({TP: 1}, broken)
        await consumer.commit_async({TP: 2}, told)
        await asyncio.sleep(1)
        with pytest.raises(ValueError, match="mine"):
            await consumer.poll()
        await consumer.poll()

    scenario_with(fake_cluster, run, steps)
    assert told.calls == [({TP: 2}, None)]


def test_a_callback_may_commit_but_not_poll(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0")

    async def steps(consumer):
        async def callback(_offsets, _error):
            await consumer.commit_async({TP: 2})
            with pytest.raises(IllegalStateError, match="callback"):
                await consumer.poll()

        await consumer.commit_async({TP: 1}, callback)
        await asyncio.sleep(1)
        # The poll that calls it delivers all the same.
        records = await consumer.poll(1_000)
        await asyncio.sleep(1)
        return [record.offset for record in records]

    assert scenario_with(fake_cluster, run, steps) == [0]
    assert sent(fake_cluster) == [{TP: 1}, {TP: 2}]


def test_callbacks_of_a_synchronous_consumer_run_in_the_thread_that_calls_it(
    fake_cluster, loop_thread
):
    fake_cluster.create("t")
    threads = []
    settings = ConsumerSettings(group_id="g", enable_auto_commit=False)
    with Consumer(fake_cluster.router(), loop_thread, settings, fake_cluster.random) as consumer:
        consumer.assign(TP)
        consumer.commit_async({TP: 1}, lambda *_: threads.append(threading.get_ident()))
        consumer.commit({TP: 2})
    assert threads == [threading.get_ident()]


def test_so_many_commits_are_under_way_and_the_next_waits_for_the_first(
    fake_cluster, run, monkeypatch
):
    monkeypatch.setattr(commits, "PENDING_MAX", 2)
    fake_cluster.create("t")
    slow_commits(fake_cluster)
    told = Told()

    async def steps(consumer):
        loop = asyncio.get_running_loop()
        began = loop.time()
        for offset in (1, 2, 3):
            await consumer.commit_async({TP: offset}, told)
        return loop.time() - began

    assert scenario_with(fake_cluster, run, steps) == pytest.approx(5)
    assert told.calls == [({TP: 1}, None)]


def test_close_lets_commits_end_and_calls_back_but_not_beyond_its_time(fake_cluster, run):
    fake_cluster.create("t")
    slow_commits(fake_cluster, 2.0)
    told = Told()

    async def steps(consumer):
        await consumer.commit_async({TP: 1}, told)
        await consumer.commit_async({TP: 2}, told)
        began = asyncio.get_running_loop().time()
        await consumer.close(timeout_ms=3_000)
        return asyncio.get_running_loop().time() - began

    assert scenario_with(fake_cluster, run, steps) <= 3
    assert told.calls == [({TP: 1}, None)]


def test_a_rebalance_waits_for_commits_that_are_under_way(fake_cluster, run):
    """1. A commit is under way. 2. The group rebalances. 3. The member joins after the commit."""
    fake_cluster.create("t")
    slow_commits(fake_cluster, 2.0)
    told = Told()

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.subscribe("t")
        await consumer.poll(1_000)
        fake_cluster.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS)
        await asyncio.sleep(3.5)
        joins = len(fake_cluster.requests(JoinGroupRequest))
        await consumer.commit_async({TP: 1}, told)
        await consumer.poll(1_000)
        assert len(fake_cluster.requests(JoinGroupRequest)) == joins
        await consumer.poll(5_000)
        assert len(fake_cluster.requests(JoinGroupRequest)) == joins + 1
        await consumer.close()

    run(scenario())
    assert told.calls == [({TP: 1}, None)]


def test_a_commit_is_sent_as_the_member_that_began_it(fake_cluster, run):
    """1. A commit waits for another. 2. The member rejoins. 3. The commit names the generation in
    which it was begun, so that the coordinator may reject it.
    """
    fake_cluster.create("t")
    slow_commits(fake_cluster, 20.0)

    async def scenario():
        consumer = consumer_of(fake_cluster)
        await consumer.subscribe("t")
        await consumer.poll(1_000)
        await consumer.commit_async({TP: 1})
        await consumer.commit_async({TP: 2})
        fake_cluster.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS)
        await consumer.poll(15_000)
        await asyncio.sleep(60)
        assert fake_cluster.generation_id == 2

    run(scenario())
    generations = [one.generation_id for one in fake_cluster.requests(OffsetCommitRequest)]
    assert generations == [1, 1]


def test_commits_in_the_background_need_a_group(fake_cluster, run):
    fake_cluster.create("t")

    async def steps(consumer):
        with pytest.raises(IllegalStateError, match=r"commit_async\(\) needs a group_id"):
            await consumer.commit_async()

    scenario_with(fake_cluster, run, steps, group_id=None)


# --- stored offsets -------------------------------------------------------------------------------


def test_only_what_was_stored_is_committed_automatically_and_by_a_plain_commit(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"1", b"2")

    async def steps(consumer):
        first, second, _ = await consumer.poll(1_000)
        await consumer.poll(10_000)
        assert sent(fake_cluster) == []
        await consumer.store_offsets(first)
        await asyncio.sleep(6)
        await consumer.poll()
        await asyncio.sleep(1)
        assert sent(fake_cluster) == [{TP: 1}]
        await consumer.store_offsets({TP: second.offset + 1})
        await consumer.commit()
        assert sent(fake_cluster) == [{TP: 1}, {TP: 2}]
        await consumer.store_offsets({TP: OffsetAndMetadata(offset=3, metadata="m")})
        await consumer.close()

    scenario_with(fake_cluster, run, steps, enable_auto_commit=True, enable_auto_offset_store=False)
    assert sent(fake_cluster) == [{TP: 1}, {TP: 2}, {TP: 3}]
    (last,) = dict(fake_cluster.requests(OffsetCommitRequest)[-1].offsets).values()
    assert (last.metadata, last.topic_id) == ("m", "0" * 32)


def test_offsets_are_stored_of_assigned_partitions_only_and_go_with_them(fake_cluster, run):
    fake_cluster.create("t", 2)

    async def steps(consumer):
        await consumer.store_offsets({TP: 1})
        with pytest.raises(IllegalStateError, match="t-1 is not assigned"):
            await consumer.store_offsets({TP: 2, OTHER: 1})
        await consumer.assign(OTHER)
        await consumer.assign(TP)
        await consumer.commit()

    scenario_with(fake_cluster, run, steps, enable_auto_offset_store=False)
    assert sent(fake_cluster) == []


def test_offsets_are_not_stored_by_hand_where_they_are_stored_automatically(fake_cluster, run):
    fake_cluster.create("t")

    async def steps(consumer):
        with pytest.raises(IllegalStateError, match="enable_auto_offset_store=False"):
            await consumer.store_offsets({TP: 1})

    scenario_with(fake_cluster, run, steps)


# --- several partitions ---------------------------------------------------------------------------


def test_offsets_of_several_partitions_come_from_one_call(fake_cluster, run):
    fake_cluster.create("t", 2)
    fake_cluster.committed[TP] = 3

    async def steps(consumer):
        await consumer.assign([TP, OTHER])
        return await consumer.committed([TP, OTHER]), await consumer.committed(TP)

    assert scenario_with(fake_cluster, run, steps) == ({TP: 3, OTHER: None}, 3)


def test_positions_of_several_partitions_are_waited_for(fake_cluster, run):
    fake_cluster.create("t", 2)
    fake_cluster.committed[TP] = 3

    async def steps(consumer):
        await consumer.assign([TP, OTHER])
        return await consumer.position([TP, OTHER]), await consumer.position(OTHER)

    assert scenario_with(fake_cluster, run, steps) == ({TP: 3, OTHER: 0}, 0)


# --- interceptors ---------------------------------------------------------------------------------


class Recorder(ConsumerInterceptor):
    """Notes what it sees, and drops records whose value is ``b"drop"``."""

    def __init__(self):
        self.consumed, self.committed, self.threads = [], [], set()

    def on_consume(self, records):
        self.threads.add(threading.get_ident())
        self.consumed += [record.value for record in records]
        return [record for record in records if record.value != b"drop"]

    def on_commit(self, offsets):
        self.threads.add(threading.get_ident())
        self.committed.append(plain(offsets))


class Broken(ConsumerInterceptor):
    def on_consume(self, records):
        raise ValueError("mine")

    def on_commit(self, offsets):
        raise ValueError("mine")


class Wrong(ConsumerInterceptor):
    def on_consume(self, records):
        return None


def test_interceptors_see_records_before_the_program_and_offsets_once_committed(fake_cluster, run):
    (log,) = fake_cluster.create("t")
    log.append(b"0", b"drop", b"2")
    recorder = Recorder()

    async def steps(consumer):
        seen = [record.value for record in await consumer.poll(1_000)]
        await consumer.commit()
        await consumer.commit_async({TP: 2})
        await asyncio.sleep(1)
        await consumer.poll()
        return seen, await consumer.metrics()

    seen, metrics = scenario_with(
        fake_cluster, run, steps, interceptors=[Broken(), recorder, Wrong()]
    )
    assert seen == [b"0", b"2"]
    assert recorder.consumed == [b"0", b"drop", b"2"]
    assert recorder.committed == [{TP: 3}, {TP: 2}]
    assert metrics["interceptor_failures"] == 4


def test_interceptors_of_an_iteration_see_each_record_once_in_the_callers_thread(
    fake_cluster, loop_thread
):
    (log,) = fake_cluster.create("t")
    log.append(b"drop", b"1", b"2")
    recorder = Recorder()
    settings = ConsumerSettings(auto_offset_reset="earliest", interceptors=(recorder,))
    with Consumer(fake_cluster.router(), loop_thread, settings, fake_cluster.random) as consumer:
        consumer.assign(TP)
        assert [next(consumer).value, next(consumer).value] == [b"1", b"2"]
    assert recorder.consumed == [b"drop", b"1", b"2"]
    assert recorder.threads == {threading.get_ident()}


def test_a_failed_commit_is_not_reported_to_interceptors(fake_cluster, run):
    fake_cluster.create("t")
    fake_cluster.fail(OffsetCommitRequest, ErrorCode.OFFSET_METADATA_TOO_LARGE)
    recorder = Recorder()

    async def steps(consumer):
        with pytest.raises(OffsetMetadataTooLargeError):
            await consumer.commit({TP: 1})
        await consumer.poll()

    scenario_with(fake_cluster, run, steps, interceptors=[recorder])
    assert recorder.committed == []


def test_only_interceptors_of_consumers_are_taken(fake_cluster):
    with pytest.raises(InvalidSettingError, match=r"interceptors=.*ConsumerInterceptor"):
        ConsumerSettings(interceptors=(print,))
