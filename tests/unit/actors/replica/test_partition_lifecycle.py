"""Deleting records and changing settings at a leader, and what its readers and writers see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from oncelog.actors.protocol.messages.partition import (
    ConfigureRequest,
    DeleteRecordsRequest,
    ListOffsetsRequest,
    TxnMarker,
    WriteTxnMarkersRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

Play = Callable[[Any], None]
TOPIC_ID = "a" * 32


async def delete(h: Any, offset: int, **fields: Any) -> Any:
    request = DeleteRecordsRequest(**{"topic_partition": h.tp, "offset": offset, **fields})
    return await h.leader.delete_records(request)


async def end(h: Any, pid: int, *, committed: bool) -> ErrorCode:
    marker = TxnMarker(producer_id=pid, producer_epoch=1, committed=committed, partitions=(h.tp,))
    reply = await h.leader.write_txn_markers(
        WriteTxnMarkersRequest(coordinator_epoch=0, markers=(marker,))
    )
    return reply.results[0].error


async def begin(h: Any, pid: int) -> None:
    batch = h.txn_batch(b"x", pid=pid, epoch=0, seq=0)
    reply = await h.produce(batch, ticket=h.ticket(pid=pid, epoch=0), transactional_id="t")
    assert reply.error is ErrorCode.NONE


def configure(h: Any, version: int, topic_id: str = TOPIC_ID, **settings: str) -> Any:
    return h.leader.configure(
        ConfigureRequest(
            topic_partition=h.tp,
            topic_id=topic_id,
            settings=tuple(settings.items()),
            settings_version=version,
        )
    )


# --- delete_records ---------------------------------------------------------------------------


def test_readers_below_the_deleted_offset_are_out_of_range(play: Play) -> None:
    async def scenario(h: Any) -> None:
        for value in (b"a", b"b", b"c"):
            await h.produce(h.batch(value))
        reply = await delete(h, 2)
        assert (reply.error, reply.log_start_offset) == (ErrorCode.NONE, 2)
        refused = await h.leader.fetch(h.fetch_request(1))
        assert (refused.error, refused.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)
        assert (await h.leader.fetch(h.fetch_request(2))).error is ErrorCode.NONE
        earliest = ListOffsetsRequest(topic_partition=h.tp, timestamp_ms=-2)
        assert (await h.leader.list_offsets(earliest)).offset == 2

    play(scenario)


def test_everything_is_deleted_up_to_the_high_watermark(play: Play) -> None:
    async def scenario(h: Any) -> None:
        await h.produce(h.batch(b"a", b"b"))
        assert (await delete(h, -1)).log_start_offset == 2

    play(scenario)


def test_deleting_less_than_before_changes_nothing(play: Play) -> None:
    async def scenario(h: Any) -> None:
        await h.produce(h.batch(b"a", b"b", b"c"))
        await delete(h, 2)
        reply = await delete(h, 1)
        assert (reply.error, reply.log_start_offset) == (ErrorCode.NONE, 2)

    play(scenario)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"offset": 3}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"offset": -2}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"offset": 2**63 - 1}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"leader_epoch": 9}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"topic_partition": TopicPartition("x", 0)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_an_impossible_deletion_is_refused_and_changes_nothing(
    play: Play, fields: dict[str, Any], error: ErrorCode
) -> None:
    async def scenario(h: Any) -> None:
        await h.produce(h.batch(b"a", b"b"))
        reply = await delete(h, **{"offset": 1, **fields})
        assert reply.error is error
        assert h.replica.machine.log_start_offset == 0

    play(scenario)


def test_a_topic_that_is_only_compacted_keeps_its_records(harness: Any) -> None:
    async def body() -> None:
        harness.settings = {"cleanup_policy": "compact"}
        await harness.start()
        await harness.produce(harness.batch(b"a"))
        assert (await delete(harness, 1)).error is ErrorCode.POLICY_VIOLATION
        await harness.replica.stop()

    asyncio.run(body())


def test_an_answered_deletion_has_been_synced(play: Play) -> None:
    async def scenario(h: Any) -> None:
        await h.produce(h.batch(b"a"))
        seen: list[int] = []
        run = h.background.run

        async def recording(work: Any, **_: Any) -> Any:
            seen.append(h.replica.machine.log_start_offset)
            return await run(work)

        h.background.run = recording
        await delete(h, 1)
        assert seen == [1]

    play(scenario)


def test_a_failed_sync_of_a_deletion_takes_the_replica_offline(harness: Any) -> None:
    async def body() -> None:
        await harness.start()
        await harness.produce(harness.batch(b"a"))

        async def broken(work: Any, **_: Any) -> Any:
            raise OSError(5, "the disk is gone")

        harness.background.run = broken
        assert (await delete(harness, 1)).error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "the disk is gone" in harness.replica.failure
        await harness.replica.stop()

    asyncio.run(body())


def test_what_only_the_os_has_is_synced_before_it_is_deleted(harness: Any) -> None:
    async def body() -> None:
        harness.settings = {"flush": "os"}
        await harness.start()
        gate = asyncio.Event()
        run = harness.background.run

        async def held(work: Any, **_: Any) -> Any:
            await gate.wait()
            return await run(work)

        harness.background.run = held
        await harness.produce(harness.batch(b"a"))
        deleting = asyncio.create_task(delete(harness, -1))
        await asyncio.sleep(0)
        assert harness.replica.machine.log_start_offset == 0
        gate.set()
        assert (await deleting).log_start_offset == 1
        await harness.replica.stop()

    asyncio.run(body())


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("offset", [1, 2, 3])
def test_after_a_restart_deleted_records_stay_deleted_and_retries_are_recognised(
    harness: Any, is_clean: bool, offset: int
) -> None:
    """The original of a retry may lie below the raised log start, or have it in its middle."""

    async def body() -> None:
        await harness.start()
        batch = harness.batch(b"a", b"b", pid=7, epoch=0, seq=0)
        await harness.produce(batch)
        last = harness.batch(b"c", pid=7, epoch=0, seq=2)
        await harness.produce(last)
        await delete(harness, offset)
        again = await harness.produce(last)
        assert (again.error, again.base_offset, again.log_start_offset) == (0, 2, offset)
        if is_clean:
            await harness.replica.stop()
        else:
            harness.replica.directory.release()  # What the end of the process does.
        await harness.start()
        machine = harness.replica.machine
        assert (machine.log_start_offset, machine.log_end_offset) == (offset, 3)
        again = await harness.produce(last)
        assert (again.error, again.base_offset, again.log_start_offset) == (0, 2, offset)
        reply = await harness.produce(harness.batch(b"d", pid=7, epoch=0, seq=3))
        assert (reply.error, reply.base_offset) == (0, 3)
        await harness.replica.stop()

    asyncio.run(body())


def test_a_log_start_past_an_open_transaction_is_the_last_stable_offset(play: Play) -> None:
    async def scenario(h: Any) -> None:
        await begin(h, 7)
        await h.produce(h.batch(b"b", b"c"))
        assert h.replica.machine.last_stable_offset == 0
        await delete(h, 2)
        assert h.replica.machine.last_stable_offset == 2
        assert await end(h, 7, committed=False) is ErrorCode.NONE
        assert h.replica.machine.last_stable_offset == 4
        fetched = await h.leader.fetch(h.fetch_request(2))
        assert [item.producer_id for item in fetched.aborted_transactions] == [7]

    play(scenario)


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_open_transaction_whose_head_is_deleted_ends_normally_after_a_restart(
    harness: Any, is_clean: bool
) -> None:
    async def body() -> None:
        await harness.start()
        await begin(harness, 7)
        await harness.produce(harness.batch(b"b", b"c"))
        await delete(harness, 2)
        if is_clean:
            await harness.replica.stop()
        else:
            harness.replica.directory.release()  # What the end of the process does.
        await harness.start()
        machine = harness.replica.machine
        assert (machine.last_stable_offset, machine.open_transaction_count) == (2, 1)
        assert await end(harness, 7, committed=True) is ErrorCode.NONE
        assert (machine.last_stable_offset, machine.open_transaction_count) == (4, 0)
        await harness.replica.stop()

    asyncio.run(body())


def test_a_reader_that_waits_for_a_transaction_wakes_when_its_head_is_deleted(play: Play) -> None:
    async def scenario(h: Any) -> None:
        await begin(h, 7)
        await h.produce(h.batch(b"b"))
        waiting = asyncio.create_task(h.leader.fetch(h.fetch_request(0, max_wait_ms=60_000)))
        await asyncio.sleep(0)
        await delete(h, 1)
        assert (await waiting).error is ErrorCode.OFFSET_OUT_OF_RANGE

    play(scenario)


# --- settings ---------------------------------------------------------------------------------


def test_new_settings_hold_from_the_next_batch_on(play: Play) -> None:
    async def scenario(h: Any) -> None:
        assert (await configure(h, 1, max_message_bytes="100")).error is ErrorCode.NONE
        refused = await h.produce(h.batch(b"x" * 100))
        assert refused.error is ErrorCode.MESSAGE_TOO_LARGE
        await configure(h, 2)
        assert (await h.produce(h.batch(b"x" * 100))).error is ErrorCode.NONE

    play(scenario)


def test_settings_that_were_overtaken_by_newer_ones_are_ignored(play: Play) -> None:
    async def scenario(h: Any) -> None:
        await configure(h, 2, retention_ms="5")
        assert (await configure(h, 1, retention_ms="7")).error is ErrorCode.NONE
        assert h.replica.topic.retention_ms == 5

    play(scenario)


def test_settings_of_another_topic_of_that_name_are_refused(play: Play) -> None:
    async def scenario(h: Any) -> None:
        reply = await configure(h, 1, topic_id="b" * 32, retention_ms="5")
        assert reply.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert h.replica.topic.retention_ms == 604_800_000

    play(scenario)


def test_a_record_of_a_compacted_topic_needs_a_key(harness: Any) -> None:
    async def body() -> None:
        harness.settings = {"cleanup_policy": "compact", "message_timestamp_after_max_ms": "10"}
        await harness.start()
        assert (await harness.produce(harness.batch(b"a"))).error is ErrorCode.NONE
        future = harness.batch(b"b")
        harness.clock.time_ms -= 11
        reply = await harness.produce(future)
        assert reply.error is ErrorCode.INVALID_TIMESTAMP
        assert "message_timestamp_after_max_ms=10" in reply.detail
        assert reply.refused_records == (0,)
        assert harness.replica.machine.log_end_offset == 1
        await harness.replica.stop()

    asyncio.run(body())


def test_log_append_time_is_told_to_the_producer_and_to_its_retry(harness: Any) -> None:
    async def body() -> None:
        harness.settings = {"message_timestamp_type": "LogAppendTime"}
        await harness.start()
        batch = harness.batch(b"a", pid=7, epoch=0, seq=0)
        appended_ms = harness.clock.time_ms = harness.clock.time_ms + 77
        assert (await harness.produce(batch)).log_append_time_ms == appended_ms
        harness.clock.time_ms += 1_000
        assert (await harness.produce(batch)).log_append_time_ms == appended_ms
        other = harness.batch(b"b", pid=7, epoch=0, seq=0)
        assert (await harness.produce(other)).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        for settings in ({"message_timestamp_type": "CreateTime"}, harness.settings):
            await harness.replica.stop()
            harness.settings = settings
            await harness.start()
            assert (await harness.produce(batch)).base_offset == 0
            assert (await harness.produce(other)).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        await harness.replica.stop()

    asyncio.run(body())


def test_the_newest_timestamp_is_not_told_before_it_can_be_read(play: Play) -> None:
    async def scenario(h: Any) -> None:
        await h.produce(h.batch(b"a"))
        h.clock.time_ms += 5
        await begin(h, 7)
        request = ListOffsetsRequest(topic_partition=h.tp, timestamp_ms=-3)
        assert (await h.leader.list_offsets(request)).offset == -1
        await end(h, 7, committed=True)
        assert (await h.leader.list_offsets(request)).offset == 1

    play(scenario)
