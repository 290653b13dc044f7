"""A partition leader on a full, failing or lying disk: what clients are told, and what is left."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from crash_disk import CrashDisk, DataLoss, NameLoss
from deadlines import DEADLINE_S, until
from leader_harness import LeaderHarness
from msgspec import structs
from virtual_time import give_turns

from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.protocol.messages.partition import (
    DeleteRecordsRequest,
    ListOffsetsRequest,
    TxnMarker,
    WriteTxnMarkersRequest,
)
from oncelog.actors.protocol.messages.replication import ReplicateRequest
from oncelog.actors.replica import group_sync as group_sync_module
from oncelog.actors.replica import replica as replica_module
from oncelog.actors.replica import replica_log
from oncelog.actors.replica.maintenance import LogScrub
from oncelog.storage.errors import ErrorCode
from oncelog.storage.records.batch import iterate_batches

DIRECTORY = Path("/data")


def put_on_faulty_disk(harness: LeaderHarness) -> None:
    harness.directory = DIRECTORY
    harness.settings = {"segment_bytes": "4096", "index_interval_bytes": "0"}
    harness.filesystem = CrashDisk()


async def restart(harness: LeaderHarness, disk: CrashDisk | None = None) -> None:
    """A new process on what a kill, or ``disk``, has left."""
    harness.filesystem.kill()
    harness.filesystem = disk or harness.filesystem.after_kill()
    await harness.start()


async def produce(harness: LeaderHarness, size_bytes: int = 100, **fields: Any) -> ErrorCode:
    return (await harness.produce(harness.batch(b"v" * size_bytes), **fields)).error


async def offsets(harness: LeaderHarness, offset: int = 0) -> list[int] | ErrorCode:
    reply = await harness.leader.fetch(harness.fetch_request(offset))
    if reply.error is not ErrorCode.NONE:
        return reply.error
    return [header.base_offset for _, header in iterate_batches(reply.records)]


def fill(harness: LeaderHarness, *, room: int = 0) -> None:
    """Leave ``room`` bytes on the disk."""
    disk = harness.filesystem
    disk.capacity_bytes = sum(map(len, disk.files().values())) + room


def empty(harness: LeaderHarness) -> None:
    harness.filesystem.capacity_bytes = None


Scenario = Callable[[LeaderHarness], Awaitable[None]]


@pytest.fixture
def play(harness: LeaderHarness) -> Callable[[Scenario], None]:
    def run(scenario: Scenario) -> None:
        async def body() -> None:
            put_on_faulty_disk(harness)
            await harness.start()
            await scenario(harness)
            await harness.replica.stop()

        asyncio.run(body())

    return run


@pytest.mark.parametrize("room", [0, 100, 1_000])
def test_full_disk_refuses_produce_while_fetch_goes_on_and_resumes_with_room(play, room):
    async def scenario(harness: LeaderHarness) -> None:
        assert await produce(harness) is ErrorCode.NONE
        fill(harness, room=room)
        assert await produce(harness, 2_000) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await produce(harness, 2_000) is ErrorCode.KAFKA_STORAGE_ERROR
        assert ErrorCode.KAFKA_STORAGE_ERROR.retriable
        assert await offsets(harness) == [0]
        assert harness.replica.failure is None
        empty(harness)
        assert await produce(harness, 2_000) is ErrorCode.NONE
        assert await offsets(harness) == [0, 1]
        await restart(harness)
        assert harness.replica.log.cut is None
        assert await offsets(harness) == [0, 1]

    play(scenario)


def test_a_refusal_of_the_disk_lasts_until_something_appended_since_is_synced(play, monkeypatch):
    """Or until nobody has met it for so long that it says nothing any more."""
    now_ms = [10_000]
    for module in (replica_log, group_sync_module):
        monkeypatch.setattr(module, "loop_ms", lambda: now_ms[0])

    async def scenario(harness: LeaderHarness) -> None:
        refusal = harness.replica.refusal
        assert await produce(harness) is ErrorCode.NONE
        assert refusal.lasts_ms(now_ms[0]) is None
        fill(harness)
        for _ in range(3):
            assert await produce(harness) is ErrorCode.KAFKA_STORAGE_ERROR
            now_ms[0] += 2_000
        assert (refusal.lasts_ms(now_ms[0]), "disk is full" in refusal.reason) == (6_000, True)
        assert await harness.replica.sync_all() is not ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert refusal.lasts_ms(now_ms[0]) == 6_000, "nothing new was synced"
        empty(harness)
        assert await produce(harness) is ErrorCode.NONE
        assert refusal.lasts_ms(now_ms[0]) is None
        fill(harness)
        assert await produce(harness) is ErrorCode.KAFKA_STORAGE_ERROR
        now_ms[0] += group_sync_module.REFUSAL_MEMORY_MS
        assert refusal.lasts_ms(now_ms[0]) == group_sync_module.REFUSAL_MEMORY_MS
        now_ms[0] += 1
        assert refusal.lasts_ms(now_ms[0]) is None
        assert await produce(harness) is ErrorCode.KAFKA_STORAGE_ERROR
        assert refusal.lasts_ms(now_ms[0]) == 0

    play(scenario)


def test_a_follower_is_refused_until_what_its_leader_pushes_is_synced(harness):
    """A push without batches says nothing of the disk."""

    async def body() -> None:
        put_on_faulty_disk(harness)
        alone = harness.epoch_source

        async def epoch_source(last_epoch: int) -> BecomeLeaderReply:
            led = {"leader": 2, "leader_epoch": 0, "replicas": (1, 2), "hosts": (0, 0)}
            return structs.replace(await alone(last_epoch), **led)

        harness.epoch_source = epoch_source
        starting = asyncio.ensure_future(harness.start())
        replica = await following(harness)
        with_batch = push(harness, harness.batch(b"v"))
        refusal = replica.refusal
        fill(harness)
        refused = await replica.replicate(with_batch)
        assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert refusal.lasts_ms(loop_ms()) is not None
        assert (await replica.replicate(push(harness, b""))).error is ErrorCode.NONE
        assert refusal.lasts_ms(loop_ms()) is not None
        empty(harness)
        taken = await replica.replicate(with_batch)
        assert (taken.error, taken.log_end_offset) == (ErrorCode.NONE, 1)
        assert refusal.lasts_ms(loop_ms()) is None
        await harness.replica.stop()
        await starting

    asyncio.run(body())


async def following(harness: Any) -> Any:
    await asyncio.wait_for(harness.events.follows.wait(), DEADLINE_S)
    return harness.replica


def push(harness: Any, batches: bytes) -> ReplicateRequest:
    """Broker 2 leads in epoch 0 from the beginning."""
    if batches:
        stamped = bytearray(batches)
        stamped[12:16] = (0).to_bytes(4, "big")
        batches = bytes(stamped)
    return ReplicateRequest(
        topic_partition=harness.tp,
        topic_id=harness.topic_id,
        leader=2,
        leader_epoch=0,
        epoch_start_offset=0,
        previous_end_offset=0,
        previous_leader_epoch=-1,
        high_watermark=0,
        log_start_offset=0,
        batches=batches,
    )


@pytest.mark.parametrize("suffix", [".snapshot", ".index", ".timeindex", ".log"])
@pytest.mark.parametrize("call", ["create", "append"])
def test_full_disk_in_a_roll_refuses_produce_and_resumes_with_room(play, call, suffix):
    async def scenario(harness: LeaderHarness) -> None:
        assert await produce(harness, 2_000) is ErrorCode.NONE
        assert await produce(harness, 1_000) is ErrorCode.NONE
        harness.filesystem.fail(call, suffix, errno.ENOSPC, written=0.5)
        assert await produce(harness, 3_000) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await offsets(harness) == [0, 1]
        assert harness.replica.failure is None
        harness.filesystem.heal()
        assert await produce(harness, 3_000) is ErrorCode.NONE
        assert harness.replica.log.segment_count == 2
        await restart(
            harness, harness.filesystem.after_power_loss(DataLoss.ALL, NameLoss.ALL, Random(0))
        )
        assert await offsets(harness) == [0, 1]
        assert await offsets(harness, 2) == [2]

    play(scenario)


def test_failed_write_takes_the_replica_offline_with_its_reason(play):
    async def scenario(harness: LeaderHarness) -> None:
        assert await produce(harness) is ErrorCode.NONE
        harness.filesystem.fail("append", ".log", times=1, written=0.5)
        assert await produce(harness) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await produce(harness) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await offsets(harness) is ErrorCode.KAFKA_STORAGE_ERROR
        assert "cannot write to /data/flights-0" in harness.replica.failure
        assert harness.replica.failure in harness.replica.describe(1).detail
        await restart(harness)
        shown = harness.replica.describe(1)
        assert (shown.cut_offset, shown.cut_bytes) == (1, harness.replica.log.cut.cut_bytes)
        assert shown.cut_bytes > 0
        assert await offsets(harness) == [0]
        await restart(harness)
        assert harness.replica.describe(1).cut_offset == -1

    play(scenario)


def test_failed_sync_is_not_forgotten_when_the_next_one_would_succeed(play):
    async def scenario(harness: LeaderHarness) -> None:
        assert await produce(harness) is ErrorCode.NONE
        harness.filesystem.fail("datasync", ".log", times=1)
        assert await produce(harness) is ErrorCode.KAFKA_STORAGE_ERROR
        assert "cannot sync /data/flights-0" in harness.replica.failure
        assert await produce(harness) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await offsets(harness) is ErrorCode.KAFKA_STORAGE_ERROR
        await restart(
            harness, harness.filesystem.after_power_loss(DataLoss.NONE, NameLoss.NONE, Random(0))
        )
        assert await offsets(harness) == [0]
        assert await produce(harness) is ErrorCode.NONE

    play(scenario)


def test_failed_directory_sync_after_a_roll_acknowledges_nothing(play):
    async def scenario(harness: LeaderHarness) -> None:
        assert await produce(harness, 3_000) is ErrorCode.NONE
        harness.filesystem.fail("sync_directory", "flights-0")
        assert await produce(harness, 3_000) is ErrorCode.KAFKA_STORAGE_ERROR
        assert "cannot sync" in harness.replica.failure
        harness.filesystem.heal()

    play(scenario)


def test_marker_whose_sync_fails_is_not_answered_as_written(play):
    async def scenario(harness: LeaderHarness) -> None:
        ticket = harness.ticket(pid=7, epoch=0)
        batch = harness.txn_batch(b"a", pid=7, epoch=0, seq=0)
        reply = await harness.produce(batch, transactional_id="t", ticket=ticket)
        assert reply.error is ErrorCode.NONE
        harness.filesystem.fail("datasync", ".log")
        marker = TxnMarker(
            producer_id=7, producer_epoch=1, committed=True, partitions=(harness.tp,)
        )
        request = WriteTxnMarkersRequest(coordinator_epoch=1, markers=(marker,))
        (result,) = (await harness.leader.write_txn_markers(request)).results
        assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
        harness.filesystem.heal()

    play(scenario)


def test_abort_index_write_fails_so_the_marker_errors_and_the_stable_offset_stays(play):
    """The log goes offline; after recovery the entry exists and the last stable offset moves."""

    async def scenario(harness: LeaderHarness) -> None:
        ticket = harness.ticket(pid=7, epoch=0)
        batch = harness.txn_batch(b"a", pid=7, epoch=0, seq=0)
        reply = await harness.produce(batch, transactional_id="t", ticket=ticket)
        assert reply.error is ErrorCode.NONE
        marker = TxnMarker(
            producer_id=7, producer_epoch=1, committed=False, partitions=(harness.tp,)
        )
        harness.filesystem.fail("append", ".txnindex")
        outcome = harness.replica.append_marker(marker, 1, 0)
        assert outcome.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert harness.replica.machine.last_stable_offset == 0
        assert harness.replica.failure is not None
        await restart(harness)
        assert harness.replica.machine.last_stable_offset == 2
        aborted = harness.replica.log.aborted_transactions(0, 2)
        assert [(item.producer_id, item.first_offset) for item in aborted] == [(7, 0)]
        reply = await harness.leader.fetch(harness.fetch_request(0))
        assert reply.aborted_transactions == aborted

    play(scenario)


@pytest.mark.parametrize("flush", ["sync", "os"])
@pytest.mark.parametrize("call", ["create", "append"])
def test_index_entry_without_room_is_owed_and_holds_the_last_stable_offset(
    harness, play, monkeypatch, call, flush
):
    """The marker is in the log; readers and syncs stop before it until its entry is written.

    1. A transaction writes, and its ABORT marker fits on the disk; the index entry does not.
    2. Readers see nothing of it, and produce is refused. 3. There is room: nobody does anything.
    """
    monkeypatch.setattr(group_sync_module, "DISK_RETRY_MS", 1)

    async def scenario(harness: LeaderHarness) -> None:
        harness.settings["flush"] = flush
        await restart(harness)
        ticket = harness.ticket(pid=7, epoch=0)
        batch = harness.txn_batch(b"a", pid=7, epoch=0, seq=0)
        reply = await harness.produce(batch, transactional_id="t", ticket=ticket)
        assert reply.error is ErrorCode.NONE
        marker = TxnMarker(
            producer_id=7, producer_epoch=1, committed=False, partitions=(harness.tp,)
        )
        request = WriteTxnMarkersRequest(coordinator_epoch=1, markers=(marker,))
        harness.filesystem.fail(call, ".txnindex", errno.ENOSPC, written=0.5)
        marked = asyncio.create_task(harness.leader.write_txn_markers(request))
        await asyncio.sleep(0)
        assert await produce(harness) is ErrorCode.KAFKA_STORAGE_ERROR
        machine = harness.replica.machine
        assert (machine.last_stable_offset, machine.high_watermark) == (0, 1)
        assert machine.log_end_offset == 2
        assert await offsets(harness) == []
        assert harness.replica.failure is None
        assert not marked.done()
        killed = harness.filesystem.after_power_loss(DataLoss.NONE, NameLoss.NONE, Random(0))
        harness.filesystem.heal()
        (result,) = (await marked).results
        assert result.error is ErrorCode.NONE
        assert machine.last_stable_offset == 2
        reply = await harness.leader.fetch(harness.fetch_request(0))
        assert [item.producer_id for item in reply.aborted_transactions] == [7]
        assert await produce(harness) is ErrorCode.NONE
        for disk in (harness.filesystem.after_kill(), killed):
            await restart(harness, disk)
            aborted = harness.replica.log.aborted_transactions(0, 2)
            assert [(item.producer_id, item.first_offset) for item in aborted] == [(7, 0)]

    play(scenario)


def test_sync_without_descriptors_is_repeated_and_nothing_is_acknowledged_before(play, monkeypatch):
    monkeypatch.setattr(group_sync_module, "DISK_RETRY_MS", 1)

    async def scenario(harness: LeaderHarness) -> None:
        assert await produce(harness) is ErrorCode.NONE
        harness.filesystem.descriptor_limit = harness.filesystem.open_handles
        waiting = asyncio.create_task(produce(harness))
        await give_turns(100)
        assert not waiting.done()
        assert harness.replica.machine.high_watermark == 1
        assert await offsets(harness) == [0]
        assert harness.replica.refusal.lasts_ms(loop_ms()) is not None
        harness.filesystem.descriptor_limit = None
        assert await waiting is ErrorCode.NONE
        assert harness.replica.failure is None
        assert harness.replica.refusal.lasts_ms(loop_ms()) is None

    play(scenario)


def test_sync_that_had_no_room_has_the_replica_begin_again(play):
    """What it covers may be lost: only a recovery, which writes it again, makes it durable."""

    async def scenario(harness: LeaderHarness) -> None:
        asked = harness.events.restarts
        assert await produce(harness) is ErrorCode.NONE
        harness.filesystem.fail("datasync", ".log", errno.ENOSPC, times=1)
        assert await produce(harness) is ErrorCode.KAFKA_STORAGE_ERROR
        assert harness.replica.restarts_itself
        assert [reason.partition(":")[0] for reason in asked] == ["cannot sync /data/flights-0"]
        await restart(harness)
        assert await offsets(harness) == [0, 1]
        lost = harness.filesystem.after_power_loss(DataLoss.ALL, NameLoss.ALL, Random(0))
        await restart(harness, lost)
        assert await offsets(harness) == [0, 1]

    play(scenario)


def test_error_of_the_medium_asks_for_no_restart(play):
    async def scenario(harness: LeaderHarness) -> None:
        asked = harness.events.restarts
        harness.filesystem.fail("datasync", ".log", errno.EIO, times=1)
        assert await produce(harness) is ErrorCode.KAFKA_STORAGE_ERROR
        assert (harness.replica.restarts_itself, asked) == (False, [])

    play(scenario)


def test_delete_records_that_the_disk_refuses_changes_nothing(play):
    async def scenario(harness: LeaderHarness) -> None:
        assert await produce(harness) is ErrorCode.NONE
        assert await produce(harness) is ErrorCode.NONE
        harness.filesystem.fail("write_at", "recovery-checkpoint", errno.ENOSPC)
        request = DeleteRecordsRequest(topic_partition=harness.tp, offset=1)
        reply = await harness.leader.delete_records(request)
        assert reply.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert harness.replica.failure is None
        log, machine = harness.replica.log, harness.replica.machine
        assert (log.log_start_offset, machine.log_start_offset) == (0, 0)
        harness.filesystem.heal()
        assert (await harness.leader.delete_records(request)).error is ErrorCode.NONE
        assert machine.log_start_offset == 1

    play(scenario)


def test_replica_starting_on_a_full_disk_leads_when_there_is_room(play, monkeypatch):
    monkeypatch.setattr(replica_module, "DISK_RETRY_MS", 1)

    async def scenario(harness: LeaderHarness) -> None:
        assert await produce(harness) is ErrorCode.NONE
        fill(harness)
        starting = asyncio.create_task(restart(harness))
        await until(lambda: "leader-epoch" in str(harness.filesystem.history[-1:]))
        assert harness.replica.availability() is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert harness.replica.failure is None
        empty(harness)
        await starting
        assert harness.replica.leader_epoch == 1
        assert await offsets(harness) == [0]

    play(scenario)


def test_stop_on_a_full_disk_is_not_clean_and_loses_nothing(play):
    async def scenario(harness: LeaderHarness) -> None:
        assert await produce(harness) is ErrorCode.NONE
        fill(harness)
        await harness.replica.stop()
        assert "cannot close" in harness.replica.failure
        empty(harness)
        await restart(harness)
        assert not harness.replica.log.was_clean
        assert await offsets(harness) == [0]

    play(scenario)


def test_failed_read_is_an_answer_and_the_next_read_succeeds(play):
    async def scenario(harness: LeaderHarness) -> None:
        assert await produce(harness) is ErrorCode.NONE
        by_time = ListOffsetsRequest(topic_partition=harness.tp, timestamp_ms=1)
        harness.filesystem.fail("read", ".log")
        reply = await harness.leader.fetch(harness.fetch_request(0))
        assert reply.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "planned" in reply.detail
        reply = await harness.leader.list_offsets(by_time)
        assert reply.error is ErrorCode.KAFKA_STORAGE_ERROR
        harness.filesystem.heal()
        assert await offsets(harness) == [0]
        assert (await harness.leader.list_offsets(by_time)).offset == 0

    play(scenario)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_bad_sector_is_told_to_the_reader_and_costs_nobody_else_anything(play, is_restarted):
    async def scenario(harness: LeaderHarness) -> None:
        for _ in range(3):
            assert await produce(harness, 3_000) is ErrorCode.NONE
        path = DIRECTORY / "flights-0" / f"{1:020d}.log"
        harness.filesystem.spoil(path, 2_000, 2_512)
        if is_restarted:
            await restart(harness)
        reply = await harness.leader.fetch(harness.fetch_request(1))
        assert (reply.error, reply.resume_offset) == (ErrorCode.CORRUPT_MESSAGE, 2)
        assert f"{path} at byte 0: the disk cannot read" in reply.detail
        assert await offsets(harness, 0) == [0]
        assert await offsets(harness, 2) == [2]
        assert await produce(harness) is ErrorCode.NONE
        assert harness.replica.describe(1).damaged_offset == 1

    play(scenario)


@pytest.mark.parametrize("is_all", [False, True])
def test_scrub_passes_over_what_the_disk_does_not_give_back(play, is_all):
    """A bad sector, or a file of which nothing can be read."""

    async def scenario(harness: LeaderHarness) -> None:
        for _ in range(4):
            assert await produce(harness, 3_000) is ErrorCode.NONE
        harness.filesystem.spoil(
            DIRECTORY / "flights-0" / f"{1:020d}.log", 0, 5_000 if is_all else 512
        )
        harness.filesystem.flip_bit(DIRECTORY / "flights-0" / f"{2:020d}.log", 2_000, 3)
        scrub = LogScrub(harness.replica)
        await scrub.piece()
        described = harness.replica.describe(1)
        assert (described.damaged_offset, described.damaged_place_count) == (1, 2)

    play(scenario)


def test_flipped_bit_is_told_to_the_reader_with_file_and_place_and_spoils_no_other_read(play):
    async def scenario(harness: LeaderHarness) -> None:
        assert await produce(harness, 3_000) is ErrorCode.NONE
        assert await produce(harness, 3_000) is ErrorCode.NONE
        await restart(harness)
        path = DIRECTORY / "flights-0" / f"{0:020d}.log"
        harness.filesystem.flip_bit(path, 2_000, 3)
        reply = await harness.leader.fetch(harness.fetch_request(0))
        assert (reply.error, reply.records) == (ErrorCode.CORRUPT_MESSAGE, b"")
        assert f"{path} at byte 0" in reply.detail
        assert await offsets(harness, 1) == [1]
        assert await produce(harness) is ErrorCode.NONE

    play(scenario)


def test_flipped_bit_in_synced_data_keeps_the_replica_offline_with_file_and_offset(play):
    async def scenario(harness: LeaderHarness) -> None:
        assert await produce(harness) is ErrorCode.NONE
        assert await produce(harness) is ErrorCode.NONE
        path = DIRECTORY / "flights-0" / f"{0:020d}.log"
        size = len(harness.filesystem.files()[path])
        harness.filesystem.flip_bit(path, size - 1, 0)
        await restart(harness)
        assert f"{path} at byte {size // 2}, offset 1:" in harness.replica.failure
        assert await produce(harness) is ErrorCode.KAFKA_STORAGE_ERROR
        assert len(harness.filesystem.files()[path]) == size

    play(scenario)
