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


class FaultyHarness:
    """A leader harness on a ``CrashDisk``, and short ways to ask it."""

    def __init__(self, harness: Any) -> None:
        self.inner = harness
        harness.directory = DIRECTORY
        harness.settings = {"segment_bytes": "4096", "index_interval_bytes": "0"}
        harness.filesystem = self.disk = CrashDisk()

    async def start(self) -> None:
        await self.inner.start()

    async def stop(self) -> None:
        await self.inner.replica.stop()

    async def restart(self, disk: CrashDisk | None = None) -> None:
        """A new process on what a kill, or ``disk``, has left."""
        self.disk.kill()
        self.inner.filesystem = self.disk = disk or self.disk.after_kill()
        await self.start()

    @property
    def replica(self) -> Any:
        return self.inner.replica

    async def produce(self, size_bytes: int = 100, **fields: Any) -> ErrorCode:
        batch = self.inner.batch(b"v" * size_bytes)
        return (await self.inner.produce(batch, **fields)).error

    async def offsets(self, offset: int = 0) -> list[int] | ErrorCode:
        reply = await self.inner.leader.fetch(self.inner.fetch_request(offset))
        if reply.error is not ErrorCode.NONE:
            return reply.error
        return [header.base_offset for _, header in iterate_batches(reply.records)]

    def fill(self, *, room: int = 0) -> None:
        """Leave ``room`` bytes on the disk."""
        self.disk.capacity_bytes = sum(map(len, self.disk.files().values())) + room

    def empty(self) -> None:
        self.disk.capacity_bytes = None


Scenario = Callable[[FaultyHarness], Awaitable[None]]


@pytest.fixture
def play(harness: Any) -> Callable[[Scenario], None]:
    def run(scenario: Scenario) -> None:
        async def body() -> None:
            faulty = FaultyHarness(harness)
            await faulty.start()
            await scenario(faulty)
            await faulty.stop()

        asyncio.run(body())

    return run


@pytest.mark.parametrize("room", [0, 100, 1_000])
def test_full_disk_refuses_produce_while_fetch_goes_on_and_resumes_with_room(play, room):
    async def scenario(faulty: FaultyHarness) -> None:
        assert await faulty.produce() is ErrorCode.NONE
        faulty.fill(room=room)
        assert await faulty.produce(2_000) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await faulty.produce(2_000) is ErrorCode.KAFKA_STORAGE_ERROR
        assert ErrorCode.KAFKA_STORAGE_ERROR.retriable
        assert await faulty.offsets() == [0]
        assert faulty.replica.failure is None
        faulty.empty()
        assert await faulty.produce(2_000) is ErrorCode.NONE
        assert await faulty.offsets() == [0, 1]
        await faulty.restart()
        assert faulty.replica.log.cut is None
        assert await faulty.offsets() == [0, 1]

    play(scenario)


def test_a_refusal_of_the_disk_lasts_until_something_appended_since_is_synced(play, monkeypatch):
    """Or until nobody has met it for so long that it says nothing any more."""
    now_ms = [10_000]
    for module in (replica_log, group_sync_module):
        monkeypatch.setattr(module, "loop_ms", lambda: now_ms[0])

    async def scenario(faulty: FaultyHarness) -> None:
        refusal = faulty.replica.refusal
        assert await faulty.produce() is ErrorCode.NONE
        assert refusal.lasts_ms(now_ms[0]) is None
        faulty.fill()
        for _ in range(3):
            assert await faulty.produce() is ErrorCode.KAFKA_STORAGE_ERROR
            now_ms[0] += 2_000
        assert (refusal.lasts_ms(now_ms[0]), "disk is full" in refusal.reason) == (6_000, True)
        assert await faulty.replica.sync_all() is not ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert refusal.lasts_ms(now_ms[0]) == 6_000, "nothing new was synced"
        faulty.empty()
        assert await faulty.produce() is ErrorCode.NONE
        assert refusal.lasts_ms(now_ms[0]) is None
        faulty.fill()
        assert await faulty.produce() is ErrorCode.KAFKA_STORAGE_ERROR
        now_ms[0] += group_sync_module.REFUSAL_MEMORY_MS
        assert refusal.lasts_ms(now_ms[0]) == group_sync_module.REFUSAL_MEMORY_MS
        now_ms[0] += 1
        assert refusal.lasts_ms(now_ms[0]) is None
        assert await faulty.produce() is ErrorCode.KAFKA_STORAGE_ERROR
        assert refusal.lasts_ms(now_ms[0]) == 0

    play(scenario)


def test_a_follower_is_refused_until_what_its_leader_pushes_is_synced(harness):
    """A push without batches says nothing of the disk."""

    async def body() -> None:
        faulty = FaultyHarness(harness)
        alone = harness.epoch_source

        async def epoch_source(last_epoch: int) -> BecomeLeaderReply:
            led = {"leader": 2, "leader_epoch": 0, "replicas": (1, 2), "hosts": (0, 0)}
            return structs.replace(await alone(last_epoch), **led)

        harness.epoch_source = epoch_source
        starting = asyncio.ensure_future(faulty.start())
        replica = await following(harness)
        with_batch = push(harness, harness.batch(b"v"))
        refusal = replica.refusal
        faulty.fill()
        refused = await replica.replicate(with_batch)
        assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert refusal.lasts_ms(loop_ms()) is not None
        assert (await replica.replicate(push(harness, b""))).error is ErrorCode.NONE
        assert refusal.lasts_ms(loop_ms()) is not None
        faulty.empty()
        taken = await replica.replicate(with_batch)
        assert (taken.error, taken.log_end_offset) == (ErrorCode.NONE, 1)
        assert refusal.lasts_ms(loop_ms()) is None
        await faulty.stop()
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
    async def scenario(faulty: FaultyHarness) -> None:
        assert await faulty.produce(2_000) is ErrorCode.NONE
        assert await faulty.produce(1_000) is ErrorCode.NONE
        faulty.disk.fail(call, suffix, errno.ENOSPC, written=0.5)
        assert await faulty.produce(3_000) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await faulty.offsets() == [0, 1]
        assert faulty.replica.failure is None
        faulty.disk.heal()
        assert await faulty.produce(3_000) is ErrorCode.NONE
        assert faulty.replica.log.segment_count == 2
        await faulty.restart(faulty.disk.after_power_loss(DataLoss.ALL, NameLoss.ALL, Random(0)))
        assert await faulty.offsets() == [0, 1]
        assert await faulty.offsets(2) == [2]

    play(scenario)


def test_failed_write_takes_the_replica_offline_with_its_reason(play):
    async def scenario(faulty: FaultyHarness) -> None:
        assert await faulty.produce() is ErrorCode.NONE
        faulty.disk.fail("append", ".log", times=1, written=0.5)
        assert await faulty.produce() is ErrorCode.KAFKA_STORAGE_ERROR
        assert await faulty.produce() is ErrorCode.KAFKA_STORAGE_ERROR
        assert await faulty.offsets() is ErrorCode.KAFKA_STORAGE_ERROR
        assert "cannot write to /data/flights-0" in faulty.replica.failure
        assert faulty.replica.failure in faulty.replica.describe(1).detail
        await faulty.restart()
        shown = faulty.replica.describe(1)
        assert (shown.cut_offset, shown.cut_bytes) == (1, faulty.replica.log.cut.cut_bytes)
        assert shown.cut_bytes > 0
        assert await faulty.offsets() == [0]
        await faulty.restart()
        assert faulty.replica.describe(1).cut_offset == -1

    play(scenario)


def test_failed_sync_is_not_forgotten_when_the_next_one_would_succeed(play):
    async def scenario(faulty: FaultyHarness) -> None:
        assert await faulty.produce() is ErrorCode.NONE
        faulty.disk.fail("datasync", ".log", times=1)
        assert await faulty.produce() is ErrorCode.KAFKA_STORAGE_ERROR
        assert "cannot sync /data/flights-0" in faulty.replica.failure
        assert await faulty.produce() is ErrorCode.KAFKA_STORAGE_ERROR
        assert await faulty.offsets() is ErrorCode.KAFKA_STORAGE_ERROR
        await faulty.restart(faulty.disk.after_power_loss(DataLoss.NONE, NameLoss.NONE, Random(0)))
        assert await faulty.offsets() == [0]
        assert await faulty.produce() is ErrorCode.NONE

    play(scenario)


def test_failed_directory_sync_after_a_roll_acknowledges_nothing(play):
    async def scenario(faulty: FaultyHarness) -> None:
        assert await faulty.produce(3_000) is ErrorCode.NONE
        faulty.disk.fail("sync_directory", "flights-0")
        assert await faulty.produce(3_000) is ErrorCode.KAFKA_STORAGE_ERROR
        assert "cannot sync" in faulty.replica.failure
        faulty.disk.heal()

    play(scenario)


def test_marker_whose_sync_fails_is_not_answered_as_written(play):
    async def scenario(faulty: FaultyHarness) -> None:
        inner = faulty.inner
        ticket = inner.ticket(pid=7, epoch=0)
        batch = inner.txn_batch(b"a", pid=7, epoch=0, seq=0)
        reply = await inner.produce(batch, transactional_id="t", ticket=ticket)
        assert reply.error is ErrorCode.NONE
        faulty.disk.fail("datasync", ".log")
        marker = TxnMarker(producer_id=7, producer_epoch=1, committed=True, partitions=(inner.tp,))
        request = WriteTxnMarkersRequest(coordinator_epoch=1, markers=(marker,))
        (result,) = (await inner.leader.write_txn_markers(request)).results
        assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
        faulty.disk.heal()

    play(scenario)


def test_abort_index_write_fails_so_the_marker_errors_and_the_stable_offset_stays(play):
    """The log goes offline; after recovery the entry exists and the last stable offset moves."""

    async def scenario(faulty: FaultyHarness) -> None:
        inner = faulty.inner
        ticket = inner.ticket(pid=7, epoch=0)
        batch = inner.txn_batch(b"a", pid=7, epoch=0, seq=0)
        reply = await inner.produce(batch, transactional_id="t", ticket=ticket)
        assert reply.error is ErrorCode.NONE
        marker = TxnMarker(producer_id=7, producer_epoch=1, committed=False, partitions=(inner.tp,))
        faulty.disk.fail("append", ".txnindex")
        outcome = faulty.replica.append_marker(marker, 1, 0)
        assert outcome.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert faulty.replica.machine.last_stable_offset == 0
        assert faulty.replica.failure is not None
        await faulty.restart()
        assert faulty.replica.machine.last_stable_offset == 2
        aborted = faulty.replica.log.aborted_transactions(0, 2)
        assert [(item.producer_id, item.first_offset) for item in aborted] == [(7, 0)]
        reply = await inner.leader.fetch(inner.fetch_request(0))
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

    async def scenario(faulty: FaultyHarness) -> None:
        inner = faulty.inner
        inner.settings["flush"] = flush
        await faulty.restart()
        ticket = inner.ticket(pid=7, epoch=0)
        batch = inner.txn_batch(b"a", pid=7, epoch=0, seq=0)
        reply = await inner.produce(batch, transactional_id="t", ticket=ticket)
        assert reply.error is ErrorCode.NONE
        marker = TxnMarker(producer_id=7, producer_epoch=1, committed=False, partitions=(inner.tp,))
        request = WriteTxnMarkersRequest(coordinator_epoch=1, markers=(marker,))
        faulty.disk.fail(call, ".txnindex", errno.ENOSPC, written=0.5)
        marked = asyncio.create_task(inner.leader.write_txn_markers(request))
        await asyncio.sleep(0)
        assert await faulty.produce() is ErrorCode.KAFKA_STORAGE_ERROR
        machine = faulty.replica.machine
        assert (machine.last_stable_offset, machine.high_watermark) == (0, 1)
        assert machine.log_end_offset == 2
        assert await faulty.offsets() == []
        assert faulty.replica.failure is None
        assert not marked.done()
        killed = faulty.disk.after_power_loss(DataLoss.NONE, NameLoss.NONE, Random(0))
        faulty.disk.heal()
        (result,) = (await marked).results
        assert result.error is ErrorCode.NONE
        assert machine.last_stable_offset == 2
        reply = await inner.leader.fetch(inner.fetch_request(0))
        assert [item.producer_id for item in reply.aborted_transactions] == [7]
        assert await faulty.produce() is ErrorCode.NONE
        for disk in (faulty.disk.after_kill(), killed):
            await faulty.restart(disk)
            aborted = faulty.replica.log.aborted_transactions(0, 2)
            assert [(item.producer_id, item.first_offset) for item in aborted] == [(7, 0)]

    play(scenario)


def test_sync_without_descriptors_is_repeated_and_nothing_is_acknowledged_before(play, monkeypatch):
    monkeypatch.setattr(group_sync_module, "DISK_RETRY_MS", 1)

    async def scenario(faulty: FaultyHarness) -> None:
        assert await faulty.produce() is ErrorCode.NONE
        faulty.disk.descriptor_limit = faulty.disk.open_handles
        waiting = asyncio.create_task(faulty.produce())
        await give_turns(100)
        assert not waiting.done()
        assert faulty.replica.machine.high_watermark == 1
        assert await faulty.offsets() == [0]
        assert faulty.replica.refusal.lasts_ms(loop_ms()) is not None
        faulty.disk.descriptor_limit = None
        assert await waiting is ErrorCode.NONE
        assert faulty.replica.failure is None
        assert faulty.replica.refusal.lasts_ms(loop_ms()) is None

    play(scenario)


def test_sync_that_had_no_room_has_the_replica_begin_again(play):
    """What it covers may be lost: only a recovery, which writes it again, makes it durable."""

    async def scenario(faulty: FaultyHarness) -> None:
        asked = faulty.inner.events.restarts
        assert await faulty.produce() is ErrorCode.NONE
        faulty.disk.fail("datasync", ".log", errno.ENOSPC, times=1)
        assert await faulty.produce() is ErrorCode.KAFKA_STORAGE_ERROR
        assert faulty.replica.restarts_itself
        assert [reason.partition(":")[0] for reason in asked] == ["cannot sync /data/flights-0"]
        await faulty.restart()
        assert await faulty.offsets() == [0, 1]
        lost = faulty.disk.after_power_loss(DataLoss.ALL, NameLoss.ALL, Random(0))
        await faulty.restart(lost)
        assert await faulty.offsets() == [0, 1]

    play(scenario)


def test_error_of_the_medium_asks_for_no_restart(play):
    async def scenario(faulty: FaultyHarness) -> None:
        asked = faulty.inner.events.restarts
        faulty.disk.fail("datasync", ".log", errno.EIO, times=1)
        assert await faulty.produce() is ErrorCode.KAFKA_STORAGE_ERROR
        assert (faulty.replica.restarts_itself, asked) == (False, [])

    play(scenario)


def test_delete_records_that_the_disk_refuses_changes_nothing(play):
    async def scenario(faulty: FaultyHarness) -> None:
        assert await faulty.produce() is ErrorCode.NONE
        assert await faulty.produce() is ErrorCode.NONE
        faulty.disk.fail("write_at", "recovery-checkpoint", errno.ENOSPC)
        inner = faulty.inner
        request = DeleteRecordsRequest(topic_partition=inner.tp, offset=1)
        reply = await inner.leader.delete_records(request)
        assert reply.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert faulty.replica.failure is None
        log, machine = faulty.replica.log, faulty.replica.machine
        assert (log.log_start_offset, machine.log_start_offset) == (0, 0)
        faulty.disk.heal()
        assert (await inner.leader.delete_records(request)).error is ErrorCode.NONE
        assert machine.log_start_offset == 1

    play(scenario)


def test_replica_starting_on_a_full_disk_leads_when_there_is_room(play, monkeypatch):
    monkeypatch.setattr(replica_module, "DISK_RETRY_MS", 1)

    async def scenario(faulty: FaultyHarness) -> None:
        assert await faulty.produce() is ErrorCode.NONE
        faulty.fill()
        starting = asyncio.create_task(faulty.restart())
        await until(lambda: "leader-epoch" in str(faulty.disk.history[-1:]))
        assert faulty.replica.availability() is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert faulty.replica.failure is None
        faulty.empty()
        await starting
        assert faulty.replica.leader_epoch == 1
        assert await faulty.offsets() == [0]

    play(scenario)


def test_stop_on_a_full_disk_is_not_clean_and_loses_nothing(play):
    async def scenario(faulty: FaultyHarness) -> None:
        assert await faulty.produce() is ErrorCode.NONE
        faulty.fill()
        await faulty.stop()
        assert "cannot close" in faulty.replica.failure
        faulty.empty()
        await faulty.restart()
        assert not faulty.replica.log.was_clean
        assert await faulty.offsets() == [0]

    play(scenario)


def test_failed_read_is_an_answer_and_the_next_read_succeeds(play):
    async def scenario(faulty: FaultyHarness) -> None:
        inner = faulty.inner
        assert await faulty.produce() is ErrorCode.NONE
        by_time = ListOffsetsRequest(topic_partition=inner.tp, timestamp_ms=1)
        faulty.disk.fail("read", ".log")
        reply = await inner.leader.fetch(inner.fetch_request(0))
        assert reply.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "planned" in reply.detail
        reply = await inner.leader.list_offsets(by_time)
        assert reply.error is ErrorCode.KAFKA_STORAGE_ERROR
        faulty.disk.heal()
        assert await faulty.offsets() == [0]
        assert (await inner.leader.list_offsets(by_time)).offset == 0

    play(scenario)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_bad_sector_is_told_to_the_reader_and_costs_nobody_else_anything(play, is_restarted):
    async def scenario(faulty: FaultyHarness) -> None:
        inner = faulty.inner
        for _ in range(3):
            assert await faulty.produce(3_000) is ErrorCode.NONE
        path = DIRECTORY / "flights-0" / f"{1:020d}.log"
        faulty.disk.spoil(path, 2_000, 2_512)
        if is_restarted:
            await faulty.restart()
        reply = await inner.leader.fetch(inner.fetch_request(1))
        assert (reply.error, reply.resume_offset) == (ErrorCode.CORRUPT_MESSAGE, 2)
        assert f"{path} at byte 0: the disk cannot read" in reply.detail
        assert await faulty.offsets(0) == [0]
        assert await faulty.offsets(2) == [2]
        assert await faulty.produce() is ErrorCode.NONE
        assert faulty.replica.describe(1).damaged_offset == 1

    play(scenario)


@pytest.mark.parametrize("is_all", [False, True])
def test_scrub_passes_over_what_the_disk_does_not_give_back(play, is_all):
    """A bad sector, or a file of which nothing can be read."""

    async def scenario(faulty: FaultyHarness) -> None:
        for _ in range(4):
            assert await faulty.produce(3_000) is ErrorCode.NONE
        faulty.disk.spoil(DIRECTORY / "flights-0" / f"{1:020d}.log", 0, 5_000 if is_all else 512)
        faulty.disk.flip_bit(DIRECTORY / "flights-0" / f"{2:020d}.log", 2_000, 3)
        scrub = LogScrub(faulty.replica)
        await scrub.piece()
        described = faulty.replica.describe(1)
        assert (described.damaged_offset, described.damaged_place_count) == (1, 2)

    play(scenario)


def test_flipped_bit_is_told_to_the_reader_with_file_and_place_and_spoils_no_other_read(play):
    async def scenario(faulty: FaultyHarness) -> None:
        inner = faulty.inner
        assert await faulty.produce(3_000) is ErrorCode.NONE
        assert await faulty.produce(3_000) is ErrorCode.NONE
        await faulty.restart()
        path = DIRECTORY / "flights-0" / f"{0:020d}.log"
        faulty.disk.flip_bit(path, 2_000, 3)
        reply = await inner.leader.fetch(inner.fetch_request(0))
        assert (reply.error, reply.records) == (ErrorCode.CORRUPT_MESSAGE, b"")
        assert f"{path} at byte 0" in reply.detail
        assert await faulty.offsets(1) == [1]
        assert await faulty.produce() is ErrorCode.NONE

    play(scenario)


def test_flipped_bit_in_synced_data_keeps_the_replica_offline_with_file_and_offset(play):
    async def scenario(faulty: FaultyHarness) -> None:
        assert await faulty.produce() is ErrorCode.NONE
        assert await faulty.produce() is ErrorCode.NONE
        path = DIRECTORY / "flights-0" / f"{0:020d}.log"
        size = len(faulty.disk.files()[path])
        faulty.disk.flip_bit(path, size - 1, 0)
        await faulty.restart()
        assert f"{path} at byte {size // 2}, offset 1:" in faulty.replica.failure
        assert await faulty.produce() is ErrorCode.KAFKA_STORAGE_ERROR
        assert len(faulty.disk.files()[path]) == size

    play(scenario)
