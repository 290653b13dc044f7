"""The leader of a partition on a real directory: what it acknowledges, serves and survives."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deadlines import DEADLINE_S
from msgspec import UNSET, structs
from virtual_time import give_turns

from oncelog.actors.config import ClusterConfig
from oncelog.actors.protocol.messages.partition import (
    AbortHangingRequest,
    DescribeProducersRequest,
    ListOffsetsRequest,
    ProduceRequest,
    TxnMarker,
    WriteTxnMarkersRequest,
)
from oncelog.actors.replica import partition_leader
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import FilePart, TopicPartition
from oncelog.storage.records.codec import decode_records

Play = Callable[[Any], None]


def values_of(records: bytes) -> list[bytes | None]:
    found: list[bytes | None] = []
    position = 0
    while position < len(records):
        size = 12 + int.from_bytes(records[position + 8 : position + 12], "big")
        if not records[position + 22] & 0x20:
            batch = records[position : position + size]
            found += [record.value for record in decode_records(batch)]
        position += size
    return found


def marker(pid: int, epoch: int, *, committed: bool, coordinator_epoch: int = 0) -> Any:
    return WriteTxnMarkersRequest(
        coordinator_epoch=coordinator_epoch,
        markers=(
            TxnMarker(
                producer_id=pid,
                producer_epoch=epoch,
                committed=committed,
                partitions=(TopicPartition("flights", 0),),
            ),
        ),
    )


@pytest.mark.parametrize(
    ("topic_id", "error"),
    [("", ErrorCode.NONE), ("a" * 32, ErrorCode.NONE), ("b" * 32, ErrorCode.UNKNOWN_TOPIC_ID)],
)
def test_who_reads_a_topic_gets_nothing_of_the_next_one_of_its_name(
    play: Play, topic_id: str, error: ErrorCode
) -> None:
    async def scenario(h: Any) -> None:
        await h.produce(h.batch(b"a"))
        fetched = await h.leader.fetch(h.fetch_request(0, topic_id=topic_id))
        assert (fetched.error, len(fetched.records) > 0) == (error, error is ErrorCode.NONE)

    play(scenario)


def test_who_would_wait_for_ever_is_answered_with_what_there_is(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes up one of the actor's requests in progress, also once its caller has gone."""
    monkeypatch.setattr(partition_leader, "FETCH_WAIT_MAX_MS", 10)

    async def scenario(h: Any) -> None:
        await h.produce(h.batch(b"a"))
        request = h.fetch_request(0, max_wait_ms=2**40, min_bytes=2**40)
        fetched = await asyncio.wait_for(h.leader.fetch(request), DEADLINE_S)
        assert values_of(fetched.records) == [b"a"]

    play(scenario)


def test_what_is_acknowledged_is_read_back_in_offset_order(play: Play) -> None:
    async def scenario(h: Any) -> None:
        replies = [await h.produce(h.batch(b"a", b"b")), await h.produce(h.batch(b"c"))]
        assert [(r.error, r.base_offset) for r in replies] == [(0, 0), (0, 2)]
        fetched = await h.leader.fetch(h.fetch_request(0))
        assert values_of(fetched.records) == [b"a", b"b", b"c"]
        assert (fetched.high_watermark, fetched.last_stable_offset) == (3, 3)

    play(scenario)


def test_an_acknowledged_batch_has_been_synced(play: Play) -> None:
    async def scenario(h: Any) -> None:
        synced: list[int] = []
        run = h.background.run

        async def recording(work: Any, **_: Any) -> Any:
            result = await run(work)
            synced.append(h.replica.machine.log_end_offset)
            return result

        h.background.run = recording
        await h.produce(h.batch(b"a"))
        assert synced == [1]

    play(scenario)


def test_appends_that_arrive_while_a_sync_runs_share_the_next_one(play: Play) -> None:
    async def scenario(h: Any) -> None:
        rounds = 0
        run = h.background.run

        async def counting(work: Any, **_: Any) -> Any:
            nonlocal rounds
            rounds += 1
            return await run(work)

        h.background.run = counting
        await asyncio.gather(*(h.produce(h.batch(b"x")) for _ in range(50)))
        assert h.replica.machine.high_watermark == 50
        assert rounds <= 3

    play(scenario)


def test_a_reader_never_sees_unsynced_bytes(play: Play) -> None:
    async def scenario(h: Any) -> None:
        gate = asyncio.Event()
        run = h.background.run

        async def held(work: Any, **_: Any) -> Any:
            await gate.wait()
            return await run(work)

        h.background.run = held
        producing = asyncio.create_task(h.produce(h.batch(b"a")))
        await asyncio.sleep(0)
        fetched = await h.leader.fetch(h.fetch_request(0, is_committed=False))
        assert h.replica.machine.log_end_offset == 1
        assert fetched.records == b""
        gate.set()
        assert (await producing).error is ErrorCode.NONE

    play(scenario)


def test_a_long_poll_wakes_when_data_becomes_readable(play: Play) -> None:
    async def scenario(h: Any) -> None:
        waiting = asyncio.create_task(h.leader.fetch(h.fetch_request(0, max_wait_ms=60_000)))
        await h.produce(h.batch(b"a"))
        assert values_of((await waiting).records) == [b"a"]

    play(scenario)


def test_a_clock_that_is_set_back_keeps_no_reader_and_no_early_batch_waiting(play: Play) -> None:
    async def scenario(h: Any) -> None:
        await h.produce(h.batch(b"a", pid=7, epoch=0, seq=0))
        reading = asyncio.create_task(h.leader.fetch(h.fetch_request(1, max_wait_ms=100)))
        producing = asyncio.create_task(h.produce(h.batch(b"c", pid=7, epoch=0, seq=2)))
        await asyncio.sleep(0)
        h.clock.time_ms -= 3_600_000
        both = asyncio.gather(reading, producing)
        fetched, produced = await asyncio.wait_for(both, DEADLINE_S)
        assert (fetched.error, fetched.records) == (ErrorCode.NONE, b"")
        assert produced.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    play(scenario)


def test_a_retry_of_a_batch_gets_its_first_offset_and_is_not_written_again(play: Play) -> None:
    async def scenario(h: Any) -> None:
        batch = h.batch(b"a", pid=7, epoch=0, seq=0)
        first = await h.produce(batch)
        await h.produce(h.batch(b"b", pid=7, epoch=0, seq=1))
        again = await h.produce(batch)
        assert (first.base_offset, again.base_offset, again.error) == (0, 0, 0)
        assert h.replica.machine.log_end_offset == 2

    play(scenario)


def test_batches_that_overtook_each_other_land_in_order(play: Play) -> None:
    async def scenario(h: Any) -> None:
        await h.produce(h.batch(b"0", pid=7, epoch=0, seq=0))
        late_first = [
            asyncio.create_task(h.produce(h.batch(str(n).encode(), pid=7, epoch=0, seq=n)))
            for n in (3, 2, 1)
        ]
        replies = await asyncio.gather(*late_first)
        assert [(r.error, r.base_offset) for r in replies] == [(0, 3), (0, 2), (0, 1)]

    play(scenario)


def test_a_gap_that_nobody_fills_is_refused_after_a_while(play: Play) -> None:
    async def scenario(h: Any) -> None:
        await h.produce(h.batch(b"0", pid=7, epoch=0, seq=0))
        producing = asyncio.create_task(h.produce(h.batch(b"2", pid=7, epoch=0, seq=2)))
        await asyncio.sleep(0)
        h.clock.time_ms += 1_000
        assert (await producing).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    play(scenario)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS),
        ({"leader_epoch": 9}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"topic_partition": TopicPartition("x", 0)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"batch": b"short"}, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_a_bad_produce_is_refused_and_changes_nothing(
    play: Play, fields: dict[str, Any], error: ErrorCode
) -> None:
    async def scenario(h: Any) -> None:
        request = ProduceRequest(**{"topic_partition": h.tp, "batch": h.batch(b"a"), **fields})
        reply = await h.leader.produce(request)
        assert reply.error is error
        assert h.replica.machine.log_end_offset == 0

    play(scenario)


def test_a_flipped_bit_is_refused(play: Play) -> None:
    async def scenario(h: Any) -> None:
        batch = bytearray(h.batch(b"a"))
        batch[-1] ^= 1
        assert (await h.produce(bytes(batch))).error is ErrorCode.CORRUPT_MESSAGE

    play(scenario)


# --- transactions -----------------------------------------------------------------------------


def test_a_transaction_is_hidden_until_its_commit_marker(play: Play) -> None:
    async def scenario(h: Any) -> None:
        ticket = h.ticket(pid=7, epoch=0)
        batch = h.txn_batch(b"a", pid=7, epoch=0, seq=0)
        assert (await h.produce(batch, ticket=ticket, transactional_id="t")).error == 0
        hidden = await h.leader.fetch(h.fetch_request(0))
        shown = await h.leader.fetch(h.fetch_request(0, is_committed=False))
        assert (hidden.records, values_of(shown.records)) == (b"", [b"a"])
        waiting = asyncio.create_task(h.leader.fetch(h.fetch_request(0, max_wait_ms=60_000)))
        reply = await h.leader.write_txn_markers(marker(7, 1, committed=True))
        assert [result.error for result in reply.results] == [ErrorCode.NONE]
        fetched = await waiting
        assert values_of(fetched.records) == [b"a"]
        assert fetched.aborted_transactions == ()

    play(scenario)


def test_an_aborted_transaction_is_named_in_the_fetch(play: Play) -> None:
    async def scenario(h: Any) -> None:
        await h.produce(h.batch(b"plain"))
        batch = h.txn_batch(b"a", pid=7, epoch=0, seq=0)
        await h.produce(batch, ticket=h.ticket(pid=7, epoch=0), transactional_id="t")
        await h.leader.write_txn_markers(marker(7, 1, committed=False))
        fetched = await h.leader.fetch(h.fetch_request(0))
        assert [(a.producer_id, a.first_offset) for a in fetched.aborted_transactions] == [(7, 1)]

    play(scenario)


@pytest.mark.parametrize("is_forged", [True, False])
def test_a_transactional_batch_without_its_ticket_is_refused(play: Play, is_forged: bool) -> None:
    async def scenario(h: Any) -> None:
        ticket = h.ticket(pid=8, epoch=0) if is_forged else None
        batch = h.txn_batch(b"a", pid=7, epoch=0, seq=0)
        reply = await h.produce(batch, ticket=ticket, transactional_id="t")
        assert reply.error is ErrorCode.INVALID_TXN_STATE
        assert h.replica.machine.log_end_offset == 0

    play(scenario)


def test_a_ticket_is_dead_once_the_marker_has_come(play: Play) -> None:
    async def scenario(h: Any) -> None:
        ticket = h.ticket(pid=7, epoch=0)
        await h.leader.write_txn_markers(marker(7, 1, committed=False))
        batch = h.txn_batch(b"late", pid=7, epoch=0, seq=0)
        reply = await h.produce(batch, ticket=ticket, transactional_id="t")
        assert reply.error is ErrorCode.INVALID_PRODUCER_EPOCH

    play(scenario)


def test_a_zombie_coordinator_cannot_write_a_marker(play: Play) -> None:
    async def scenario(h: Any) -> None:
        await h.leader.write_txn_markers(marker(7, 1, committed=True, coordinator_epoch=6))
        reply = await h.leader.write_txn_markers(marker(7, 2, committed=False, coordinator_epoch=5))
        assert reply.results[0].error is ErrorCode.TRANSACTION_COORDINATOR_FENCED

    play(scenario)


def test_an_operator_ends_just_the_transaction_that_is_named_and_may_ask_again(play: Play) -> None:
    async def scenario(h: Any) -> None:
        async def end(**changes: Any) -> ErrorCode:
            named = {"producer_id": 7, "producer_epoch": 0, "start_offset": 1, **changes}
            request = AbortHangingRequest(**{"topic_partition": h.tp, **named})
            error: ErrorCode = (await h.leader.abort_hanging(request)).error
            return error

        await h.produce(h.batch(b"plain"))
        batch = h.txn_batch(b"a", pid=7, epoch=0, seq=0)
        await h.produce(batch, ticket=h.ticket(pid=7, epoch=0), transactional_id="t")
        for wrong in ({"producer_id": 8}, {"producer_epoch": 1}, {"start_offset": 0}):
            assert await end(**wrong) is ErrorCode.INVALID_TXN_STATE, wrong
        elsewhere = await end(topic_partition=TopicPartition("flights", 9))
        assert elsewhere is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert h.replica.machine.last_stable_offset == 1
        assert await end() is ErrorCode.NONE
        assert h.replica.machine.last_stable_offset == 3
        # The reply was lost: asked again it is the same, and the next transaction goes on.
        assert await end() is ErrorCode.NONE
        batch = h.txn_batch(b"b", pid=7, epoch=1, seq=0)
        await h.produce(batch, ticket=h.ticket(pid=7, epoch=1), transactional_id="t")
        assert await end() is ErrorCode.INVALID_TXN_STATE
        fetched = await h.leader.fetch(h.fetch_request(0))
        assert [(a.producer_id, a.first_offset) for a in fetched.aborted_transactions] == [(7, 1)]

    play(scenario)


def test_a_leader_counts_the_records_of_an_open_transaction(play: Play) -> None:
    async def scenario(h: Any) -> None:
        ticket = h.ticket(pid=7, epoch=0)
        for seq in (0, 2):
            batch = h.txn_batch(b"a", b"b", pid=7, epoch=0, seq=seq)
            await h.produce(batch, ticket=ticket, transactional_id="t")
        reply = await h.leader.describe_producers(
            DescribeProducersRequest(topic_partition=h.tp, producer_ids=(7,))
        )
        assert [p.open_record_count for p in reply.producers] == [4]

    play(scenario)


# --- offsets ----------------------------------------------------------------------------------


def test_list_offsets_answers_ends_and_times(play: Play) -> None:
    async def scenario(h: Any) -> None:
        start_ms = h.clock.now_ms()
        for n in range(3):
            h.clock.time_ms = start_ms + n * 1_000
            await h.produce(h.batch(str(n).encode()))

        async def ask(timestamp_ms: int) -> int:
            request = ListOffsetsRequest(topic_partition=h.tp, timestamp_ms=timestamp_ms)
            return (await h.leader.list_offsets(request)).offset

        asked = [-2, -1, -3, start_ms + 500, start_ms + 2_000, start_ms + 2_001]
        assert [await ask(t) for t in asked] == [0, 3, 2, 1, 2, -1]

    play(scenario)


# --- restart and faults -----------------------------------------------------------------------


@pytest.mark.parametrize("is_clean", [True, False])
def test_after_a_restart_everything_acknowledged_is_there_in_a_higher_epoch(
    harness: Any, is_clean: bool
) -> None:
    async def body() -> None:
        await harness.start()
        await harness.produce(harness.batch(b"a", pid=7, epoch=0, seq=0))
        batch = harness.txn_batch(b"open", pid=8, epoch=0, seq=0)
        await harness.produce(batch, ticket=harness.ticket(pid=8, epoch=0), transactional_id="t")
        if is_clean:
            await harness.replica.stop()
        else:
            harness.replica.directory.release()  # What the end of the process does.
        await harness.start()
        assert harness.replica.leader_epoch == 1
        machine = harness.replica.machine
        assert (machine.high_watermark, machine.last_stable_offset) == (2, 1)
        again = await harness.produce(harness.batch(b"a", pid=7, epoch=0, seq=0))
        assert (again.error, again.base_offset) == (ErrorCode.NONE, 0)
        reply = await harness.leader.describe_producers(
            DescribeProducersRequest(topic_partition=harness.tp, producer_ids=(8,))
        )
        assert reply.producers[0].open_record_count == 1
        await harness.replica.stop()

    asyncio.run(body())


def test_a_replica_waits_for_the_directory_while_another_process_has_it(harness: Any) -> None:
    async def body() -> None:
        await harness.start()
        first = harness.replica
        starting = asyncio.create_task(harness.start())
        done, _ = await asyncio.wait({starting}, timeout=0.2)
        assert not done
        await first.stop()
        await starting
        assert harness.replica.leader_epoch == 1
        await harness.replica.stop()

    asyncio.run(body())


def test_a_failed_sync_takes_the_replica_offline_and_acknowledges_nothing(harness: Any) -> None:
    async def body() -> None:
        await harness.start()

        async def broken(work: Any, **_: Any) -> Any:
            raise OSError(errno.EIO, "the disk is gone")

        harness.background.run = broken
        reply = await harness.produce(harness.batch(b"a"))
        assert reply.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "the disk is gone" in harness.replica.failure
        fetched = await harness.leader.fetch(harness.fetch_request(0))
        assert fetched.error is ErrorCode.KAFKA_STORAGE_ERROR
        await harness.replica.stop()

    asyncio.run(body())


def test_a_topic_that_flushes_by_the_os_answers_before_the_sync(harness: Any) -> None:
    async def body() -> None:
        harness.settings = {"flush": "os"}
        await harness.start()

        gate = asyncio.Event()
        run = harness.background.run

        async def held(work: Any, **_: Any) -> Any:
            await gate.wait()
            return await run(work)

        harness.background.run = held
        assert (await harness.produce(harness.batch(b"a"))).error is ErrorCode.NONE
        gate.set()
        await harness.replica.stop()

    asyncio.run(body())


def test_after_a_crash_every_batch_that_was_in_flight_is_recognised(harness: Any) -> None:
    """A roll leaves a snapshot with one batch per producer; five may be retried."""

    async def body() -> None:
        harness.settings = {"segment_bytes": "4096"}
        await harness.start()
        batches = [harness.batch(b"x" * 1_500, pid=7, epoch=0, seq=n) for n in range(6)]
        for batch in batches:
            await harness.produce(batch)
        assert harness.replica.log.segment_count == 3
        harness.replica.directory.release()  # What the end of the process does.
        await harness.start()
        again = [await harness.produce(batch) for batch in batches[2:]]
        assert [(reply.error, reply.base_offset) for reply in again] == [
            (ErrorCode.NONE, n) for n in range(2, 6)
        ]
        await harness.replica.stop()

    asyncio.run(body())


def test_many_batches_in_reverse_order_do_not_wait_for_the_time_to_run_out(
    harness: Any, play: Play
) -> None:
    """A batch that goes on waiting must be woken by the next one as well.

    1. Batches 5 to 1 of a producer arrive, each before its predecessor. 2. Each that is written
    wakes the others, which look again and go on waiting. 3. All land; the clock never moved.
    """
    harness.cluster = ClusterConfig(out_of_order_wait_ms=3_600_000)

    async def scenario(h: Any) -> None:
        await h.produce(h.batch(b"0", pid=7, epoch=0, seq=0))
        batches = [h.batch(b"x", pid=7, epoch=0, seq=n) for n in (5, 4, 3, 2, 1)]
        producing = asyncio.gather(*(h.produce(batch) for batch in batches))
        replies = await asyncio.wait_for(producing, DEADLINE_S)
        assert [reply.base_offset for reply in replies] == [5, 4, 3, 2, 1]

    play(scenario)


def test_reversed_batches_land_without_any_timer(harness: Any) -> None:
    """1. Batches 4 to 1 of a producer wait for their predecessors. 2. Batch 0 is written and wakes
    them. 3. Batch 1 is written; the others look again, and wait again. 4. Each is woken by the one
    before it: turns of the event loop are enough, though the wait may last an hour.
    """

    async def body() -> None:
        harness.cluster = ClusterConfig(out_of_order_wait_ms=3_600_000)
        harness.background.run = at_once
        await harness.start()
        batches = [harness.batch(b"x", pid=7, epoch=0, seq=n) for n in (4, 3, 2, 1, 0)]
        producing = [asyncio.create_task(harness.produce(batch)) for batch in batches]
        await give_turns(200)
        landed = [task.result().base_offset for task in producing if task.done()]
        for task in producing:
            task.cancel()
        assert landed == [4, 3, 2, 1, 0]
        await harness.replica.stop()

    asyncio.run(body())


async def at_once(work: Callable[[], Any], **_: Any) -> Any:
    return work()


def test_a_log_of_a_deleted_topic_of_the_same_name_is_not_taken_over(harness: Any) -> None:
    async def body() -> None:
        await harness.start()
        await harness.produce(harness.batch(b"old"))
        await harness.replica.stop()
        harness.topic_id = "b" * 32
        await harness.start()
        assert harness.replica.machine.log_end_offset == 0
        fetched = await harness.leader.fetch(harness.fetch_request(0))
        assert (fetched.error, fetched.records) == (ErrorCode.NONE, b"")
        await harness.replica.stop()

    asyncio.run(body())


@pytest.mark.parametrize("leader_epoch", [0, 1])
def test_a_recreated_topic_starts_empty_and_keeps_what_it_gets(
    harness: Any, leader_epoch: int
) -> None:
    """1. A topic is deleted while its replica does not hear of it. 2. One of its name is created,
    whose epochs begin again. 3. Nothing old is read. 4. What the new one got survives a restart.
    """
    epochs = iter([0, leader_epoch, leader_epoch + 1])
    harness.next_epoch = lambda _last_epoch: next(epochs)

    async def body() -> None:
        await harness.start()
        await harness.produce(harness.batch(b"old", b"older"))
        await harness.replica.stop()
        harness.topic_id = "b" * 32
        for expected in ([b"new"], [b"new", b"newer"]):
            await harness.start()
            assert harness.replica.failure is None
            reply = await harness.produce(harness.batch(expected[-1]))
            assert (reply.error, reply.base_offset) == (ErrorCode.NONE, len(expected) - 1)
            fetched = await harness.leader.fetch(harness.fetch_request(0))
            assert values_of(fetched.records) == expected
            await harness.replica.stop()

    asyncio.run(body())


def content_of(part: FilePart) -> bytes:
    return Path(part.path).read_bytes()[part.position :][: part.size_bytes]


def test_who_reads_this_brokers_files_is_told_where_many_records_are(play: Play) -> None:
    async def scenario(h: Any) -> None:
        for value in (b"a", b"b" * partition_leader.FILE_PART_MIN_BYTES, b"c"):
            await h.produce(h.batch(value))
        asked = {"reads_files_of": h.replica.broker_id, "min_bytes": 100, "max_wait_ms": 60_000}
        sent = await h.leader.fetch(h.fetch_request(0))
        told = await h.leader.fetch(h.fetch_request(0, **asked))
        part = told.file_part
        assert content_of(part) == sent.records
        assert (part.next_offset, len(told.records)) == (3, 0)
        assert told == structs.replace(sent, records=b"", file_part=part, told_ms=told.told_ms)
        counters = h.replica.counters
        assert (counters.fetched_bytes, counters.fetched_records) == (2 * part.size_bytes, 6)

    play(scenario)


def test_few_records_are_sent_and_so_are_those_for_another_broker(play: Play) -> None:
    async def scenario(h: Any) -> None:
        await h.produce(h.batch(b"a"))
        broker_id = h.replica.broker_id
        few = await h.leader.fetch(h.fetch_request(0, reads_files_of=broker_id))
        assert values_of(few.records) == [b"a"]
        await h.produce(h.batch(b"b" * partition_leader.FILE_PART_MIN_BYTES))
        other = await h.leader.fetch(h.fetch_request(0, reads_files_of=broker_id + 1))
        assert [few.file_part, other.file_part] == [UNSET, UNSET]
        assert len(values_of(other.records)) == 2

    play(scenario)
