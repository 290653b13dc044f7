"""Retention of a replica on a real directory: what goes, and what a restart still knows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog.actors.protocol.messages.partition import TxnMarker, WriteTxnMarkersRequest
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.actors.replica.maintenance import remove_old_segments
from oncelog.storage.errors import ErrorCode
from oncelog.storage.records.control import decode_control

DAY_MS = 86_400_000
SEGMENT = {"segment_bytes": "4096", "retention_ms": str(DAY_MS)}


async def fill(h: Any, count: int, *, pid: int = 7, first: int = 0) -> None:
    """Batches of one record, two of them to a segment."""
    for number in range(first, first + count):
        reply = await h.produce(h.batch(b"x" * 1_500, pid=pid, epoch=0, seq=number))
        assert reply.error is ErrorCode.NONE


def logs(h: Any) -> list[int]:
    return sorted(int(path.stem) for path in (h.directory / "flights-0").glob("*.log"))


async def expect_gap_refused(h: Any) -> None:
    """Only a leader that remembers the producer knows that a sequence leaves a gap."""
    batch = h.batch(b"gap", pid=7, epoch=0, seq=9)
    producing = asyncio.create_task(h.produce(batch))
    await asyncio.sleep(0)
    h.clock.time_ms += 1_000
    assert (await producing).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def begin(h: Any, pid: int, *, size: int = 1) -> None:
    batch = h.txn_batch(b"x" * size, pid=pid, epoch=0, seq=0)
    reply = await h.produce(batch, ticket=h.ticket(pid=pid, epoch=0), transactional_id="t")
    assert reply.error is ErrorCode.NONE


async def end(h: Any, pid: int, *, committed: bool) -> ErrorCode:
    marker = TxnMarker(producer_id=pid, producer_epoch=1, committed=committed, partitions=(h.tp,))
    reply = await h.leader.write_txn_markers(
        WriteTxnMarkersRequest(coordinator_epoch=0, markers=(marker,))
    )
    return reply.results[0].error


async def retain(h: Any) -> int:
    return await remove_old_segments(h.replica, h.clock.now_ms())


def test_old_segments_go_and_young_ones_stay(harness: Any) -> None:
    async def body() -> None:
        harness.settings = SEGMENT
        await harness.start()
        await fill(harness, 4)
        harness.clock.time_ms += DAY_MS + 1
        await fill(harness, 2, first=4)
        assert await retain(harness) == 2
        machine, log = harness.replica.machine, harness.replica.log
        assert (machine.log_start_offset, log.log_start_offset, logs(harness)) == (4, 4, [4])
        assert await retain(harness) == 0
        refused = await harness.leader.fetch(harness.fetch_request(3))
        assert refused.error is ErrorCode.OFFSET_OUT_OF_RANGE
        await harness.replica.stop()

    asyncio.run(body())


def test_the_active_segment_is_rolled_when_it_is_old_too(harness: Any) -> None:
    async def body() -> None:
        harness.settings = SEGMENT
        await harness.start()
        await fill(harness, 3)
        harness.clock.time_ms += DAY_MS + 1
        assert await retain(harness) == 2
        assert (harness.replica.machine.log_start_offset, logs(harness)) == (3, [3])
        assert harness.replica.log.size_bytes == 0
        await fill(harness, 1, first=3)
        await harness.replica.stop()

    asyncio.run(body())


def test_a_size_limit_removes_the_oldest(harness: Any) -> None:
    async def body() -> None:
        harness.settings = {"segment_bytes": "4096", "retention_bytes": "5000"}
        await harness.start()
        await fill(harness, 8)
        assert await retain(harness) == 2
        assert logs(harness) == [4, 6]
        assert harness.replica.log.size_bytes >= 5_000
        await harness.replica.stop()

    asyncio.run(body())


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_what_was_deleted_by_request_goes_whatever_the_policy(harness: Any, policy: str) -> None:
    async def body() -> None:
        harness.settings = {"segment_bytes": "4096", "retention_ms": "-1"}
        await harness.start()
        await fill(harness, 5)
        harness.replica.advance_log_start(3)
        harness.replica.configure((("cleanup_policy", policy), ("retention_ms", "-1")), 1)
        assert await retain(harness) == 1
        assert (harness.replica.machine.log_start_offset, logs(harness)) == (3, [2, 4])
        await harness.replica.stop()

    asyncio.run(body())


def test_a_topic_that_is_only_compacted_keeps_old_segments(harness: Any) -> None:
    async def body() -> None:
        harness.settings = {**SEGMENT, "cleanup_policy": "compact"}
        await harness.start()
        await fill(harness, 4)
        harness.clock.time_ms += 10 * DAY_MS
        assert await retain(harness) == 0
        await harness.replica.stop()

    asyncio.run(body())


def test_what_readers_have_not_been_shown_stays(harness: Any) -> None:
    async def body() -> None:
        harness.settings = {**SEGMENT, "flush": "sync"}
        await harness.start()
        await fill(harness, 2)
        gate = asyncio.Event()
        run = harness.background.run

        async def held(work: Any, **_: Any) -> Any:
            await gate.wait()
            return await run(work)

        harness.background.run = held
        writing = asyncio.create_task(fill(harness, 1, first=2))
        await asyncio.sleep(0)
        harness.clock.time_ms += 2 * DAY_MS
        removing = asyncio.create_task(retain(harness))
        await asyncio.sleep(0)
        gate.set()
        assert await removing == 1
        await writing
        assert harness.replica.machine.log_start_offset == 2
        await harness.replica.stop()

    asyncio.run(body())


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_producer_outlives_its_data(harness: Any, is_clean: bool) -> None:
    async def body() -> None:
        harness.settings = SEGMENT
        await harness.start()
        await fill(harness, 4)
        harness.clock.time_ms += DAY_MS + 1
        assert await retain(harness) == 2
        if is_clean:
            await harness.replica.stop()
        else:
            harness.replica.directory.release()  # What the end of the process does.
        await harness.start()
        await expect_gap_refused(harness)
        retried = await harness.produce(harness.batch(b"x" * 1_500, pid=7, epoch=0, seq=3))
        assert (retried.error, retried.base_offset, retried.log_start_offset) == (0, 3, 4)
        await fill(harness, 1, first=4)
        await harness.replica.stop()

    asyncio.run(body())


def test_a_producer_outlives_its_data_even_if_its_snapshots_were_lost(harness: Any) -> None:
    async def body() -> None:
        harness.settings = SEGMENT
        await harness.start()
        await fill(harness, 4)
        harness.clock.time_ms += DAY_MS + 1
        await fill(harness, 1, pid=8)
        harness.replica.directory.release()  # What the end of the process does.
        for path in (harness.directory / "flights-0").glob("*.snapshot"):
            path.unlink()
        await harness.start()
        assert await retain(harness) == 2
        harness.replica.directory.release()
        await harness.start()
        assert harness.replica.machine.log_start_offset == 4
        await fill(harness, 1, first=4)
        await expect_gap_refused(harness)
        await harness.replica.stop()

    asyncio.run(body())


def test_files_that_cannot_be_removed_do_not_take_the_replica_offline(harness: Any) -> None:
    async def body() -> None:
        harness.settings = SEGMENT
        await harness.start()
        await fill(harness, 3)
        harness.clock.time_ms += DAY_MS + 1
        await fill(harness, 1, first=3)

        def refuse(path: Any) -> None:
            raise OSError(5, "the disk refuses", str(path))

        harness.filesystem.remove = refuse
        await retain(harness)
        del harness.filesystem.remove
        assert harness.replica.availability() is ErrorCode.NONE
        assert (harness.replica.machine.log_start_offset, logs(harness)) == (2, [0, 2])
        await harness.replica.stop()
        await harness.start()
        assert await retain(harness) == 1
        assert logs(harness) == [2]
        await harness.replica.stop()

    asyncio.run(body())


def test_a_failed_sync_keeps_the_segments(harness: Any) -> None:
    async def body() -> None:
        harness.settings = SEGMENT
        await harness.start()
        await fill(harness, 3)
        harness.clock.time_ms += DAY_MS + 1

        async def broken(work: Any, **_: Any) -> Any:
            raise OSError(5, "the disk is gone")

        harness.background.run = broken
        assert await retain(harness) == 0
        assert logs(harness) == [0, 2, 3]
        assert harness.replica.availability() is ErrorCode.KAFKA_STORAGE_ERROR
        await harness.replica.stop()

    asyncio.run(body())


def state_of(machine: Any) -> Any:
    return machine.snapshot(), machine.log_end_offset, machine.first_unstable_offset


def replayed(h: Any, machine: PartitionMachine, snapshot: Any) -> PartitionMachine:
    """Load ``machine`` from a snapshot of the log and replay the rest."""
    offset, entries = snapshot
    machine.load(offset, offset, entries)
    for header, batch in h.replica.log.replay(machine.replay_from):
        machine.apply(header, decode_control(batch, header) if header.is_control else None)
    return machine


@pytest.mark.parametrize("cut", [5, 6, 7])
def test_after_a_cut_between_snapshots_the_state_is_that_of_a_replay(
    harness: Any, cut: int
) -> None:
    async def body() -> None:
        harness.settings = {"segment_bytes": "4096"}
        await harness.start()
        await fill(harness, 5)
        await begin(harness, 9)
        await fill(harness, 1, first=5)
        assert await end(harness, 9, committed=True) is ErrorCode.NONE
        await fill(harness, 4, first=6)
        await harness.replica.stop()
        await harness.start()
        log = harness.replica.log
        newest_before, _ = log.latest_snapshot()
        log.truncate_to(cut)
        snapshot = log.latest_snapshot()
        assert snapshot[0] <= log.log_end_offset == cut < newest_before
        short = replayed(harness, PartitionMachine(harness.tp), snapshot)
        whole = replayed(harness, PartitionMachine(harness.tp), (0, ()))
        assert state_of(short) == state_of(whole)
        assert short.open_transaction_count == (cut in (6, 7))
        await harness.replica.stop()

    asyncio.run(body())


def test_a_marker_whose_data_is_gone_opens_no_transaction_on_replay(harness: Any) -> None:
    async def body() -> None:
        harness.settings = SEGMENT
        await harness.start()
        await begin(harness, 9, size=3_000)
        harness.clock.time_ms += DAY_MS + 1
        await fill(harness, 1)
        assert await end(harness, 9, committed=False) is ErrorCode.NONE
        assert await retain(harness) == 1
        machine = replayed(harness, PartitionMachine(harness.tp), (1, ()))
        assert (machine.open_transaction_count, machine.first_unstable_offset) == (0, -1)
        assert (machine.log_end_offset, machine.producer_count) == (3, 2)
        await harness.replica.stop()

    asyncio.run(body())
