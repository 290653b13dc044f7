"""The keys that the order of keys needs, read from leaders that answer, fail and lose records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest

from oncelog.actors.groups.key_reader import key_hashes
from oncelog.actors.protocol.messages.partition import FetchReply, FetchRequest
from oncelog.actors.protocol.messages.share import (
    AcknowledgedRun,
    AcknowledgeType,
    PartitionAcknowledgements,
    ShareAcknowledgeRequest,
    ShareAcquireRequest,
    ShareGroupHeartbeatRequest,
    ShareOrder,
)
from oncelog.actors.protocol.queue.share_keys import KEYS_PER_READ_MAX, NO_KEY
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import patch
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.control import encode_marker

TP = TopicPartition("flights", 0)
GROUP = "billing"
FLIGHTS_ID = "f1" * 16
NONE = ErrorCode.NONE
Shard = Any
Play = Callable[[Callable[[Shard], Any]], None]
MARKER = {
    "producer_id": 7,
    "producer_epoch": 0,
    "committed": True,
    "coordinator_epoch": 1,
    "timestamp_ms": 0,
}


def batch(base_offset: int, *keys: bytes | None) -> bytes:
    made = encode_records([(key, b"value", 1_000, ()) for key in keys])
    patch(made, base_offset=base_offset, leader_epoch=0)
    return bytes(made)


def damaged(batch: bytes) -> bytes:
    """A batch that decodes, with another value than was written."""
    return batch.replace(b"value", b"valuE", 1)


def log_of(*batches: bytes) -> Callable[[FetchRequest], FetchReply]:
    """A leader that replies with the first batch that ends beyond the offset."""

    def fetch(request: FetchRequest) -> FetchReply:
        assert request.topic_id == FLIGHTS_ID
        for one in batches:
            if key_hashes(one, 0)[0] > request.fetch_offset:
                return FetchReply(records=one)
        return FetchReply()

    return fetch


class Worker:
    """A member in the order of keys."""

    def __init__(self, shard: Shard, member_id: str = "a") -> None:
        self.shard = shard
        self.named = {"group_id": GROUP, "member_id": member_id}
        self.epoch = self.acquisitions = self.acknowledgements = 0

    async def join(self) -> Worker:
        request = ShareGroupHeartbeatRequest(
            **self.named, topics=("flights",), order=ShareOrder.KEY
        )
        reply = await self.shard.coordinator.share_group_heartbeat(request)
        assert (reply.error, reply.order) == (NONE, ShareOrder.KEY)
        self.epoch = reply.member_epoch
        return self

    async def acquire(self, count: int = 10, *, max_wait_ms: int = 0) -> list[int]:
        request = ShareAcquireRequest(
            **self.named,
            member_epoch=self.epoch,
            topics=("flights",),
            sequence=self.acquisitions + 1,
            max_records=count,
            max_wait_ms=max_wait_ms,
        )
        reply = await self.shard.coordinator.share_acquire(request)
        assert reply.error is NONE
        self.acquisitions += bool(reply.acquired)
        return [n for run in reply.acquired for n in range(run.first_offset, run.last_offset + 1)]

    async def accept(self, *offsets: int) -> None:
        self.acknowledgements += 1
        runs = tuple(AcknowledgedRun(n, n, AcknowledgeType.ACCEPT) for n in offsets)
        request = ShareAcknowledgeRequest(
            **self.named,
            member_epoch=self.epoch,
            sequence=self.acknowledgements,
            acknowledgements=(
                PartitionAcknowledgements(topic_partition=TP, topic_id=FLIGHTS_ID, runs=runs),
            ),
        )
        reply = await self.shard.coordinator.share_acknowledge(request)
        assert (reply.error, reply.refused) == (NONE, ())


def played(play: Play, scenario: Callable[[Shard], Any], *batches: bytes, end: int) -> None:
    async def begin(shard: Shard) -> None:
        shard.controller.ends[TP] = end
        shard.controller.fetch = log_of(*batches)
        await scenario(shard)

    play(begin)


def test_each_key_is_delivered_one_record_at_a_time_over_all_batches(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        worker = await Worker(shard).join()
        assert await worker.acquire() == [0, 2, 4]
        await worker.accept(0, 4)
        assert await worker.acquire() == [1]
        await worker.accept(1, 2)
        assert await worker.acquire() == [3, 5]

    played(play, scenario, batch(0, b"a", b"a", b"b"), batch(3, b"a", None, b"b"), end=6)


def test_a_new_coordinator_reads_the_keys_of_what_is_held_before_it_gives_anything(
    play: Play,
) -> None:
    async def scenario(shard: Shard) -> None:
        worker = await Worker(shard).join()
        assert await worker.acquire(1) == [0]
        await shard.crash()
        shard.controller.silent.add(TP)
        assert await worker.acquire() == []
        shard.controller.silent.clear()
        assert await worker.acquire() == [2]

    played(play, scenario, batch(0, b"a", b"a", b"b"), end=3)


def test_a_call_waits_for_a_leader_that_does_not_tell_the_keys(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        worker = await Worker(shard).join()
        failures = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
        tells = shard.controller.fetch

        def fetch(request: FetchRequest) -> FetchReply:
            return request.failed(failures.pop()) if failures else tells(request)

        shard.controller.fetch = fetch
        assert await worker.acquire(max_wait_ms=20_000) == [0]
        assert failures == []

    played(play, scenario, batch(0, b"a"), end=1)


def test_a_leader_that_does_not_answer_holds_up_no_other_partition(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        silent = TopicPartition("flights", 1)
        shard.controller.ends[silent] = 1
        tells = shard.controller.call

        async def call(actor: str, request: Any, *, timeout_ms: int) -> Any:
            if isinstance(request, FetchRequest) and request.topic_partition == silent:
                await asyncio.Event().wait()
            return await tells(actor, request, timeout_ms=timeout_ms)

        shard.controller.call = call
        worker = await Worker(shard).join()
        assert await worker.acquire() == [0]
        waiting = asyncio.ensure_future(worker.acquire(max_wait_ms=20_000))
        await asyncio.sleep(0.3)
        await worker.accept(0)
        assert await waiting == [1]

    played(play, scenario, batch(0, b"a", b"a"), end=2)


def test_what_is_written_to_other_partitions_is_seen_while_a_leader_is_away(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        away = TopicPartition("flights", 1)
        shard.controller.ends[away] = 1
        tells = shard.controller.call

        async def call(actor: str, request: Any, *, timeout_ms: int) -> Any:
            if isinstance(request, FetchRequest) and request.topic_partition == away:
                return request.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return await tells(actor, request, timeout_ms=timeout_ms)

        shard.controller.call = call
        worker = await Worker(shard).join()
        assert await worker.acquire() == [0]
        waiting = asyncio.ensure_future(worker.acquire(max_wait_ms=20_000))
        await asyncio.sleep(0.5)
        shard.controller.ends[TP] = 2
        assert await waiting == [1]

    played(play, scenario, batch(0, b"a", b"b"), end=1)


def test_what_compaction_or_retention_removed_holds_up_nothing(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        tells = shard.controller.fetch

        def fetch(request: FetchRequest) -> FetchReply:
            if request.fetch_offset < 4:
                shard.controller.starts[TP] = 4
                return request.failed(ErrorCode.OFFSET_OUT_OF_RANGE)
            return tells(request)

        shard.controller.fetch = fetch
        worker = await Worker(shard).join()
        # 0 to 3 are below the log's start, and 4 and 7 are missing: no worker gets them.
        assert await worker.acquire() == [5, 8]

    played(play, scenario, batch(5, b"a", b"a"), batch(8, b"b"), end=9)


def test_a_gap_holds_up_no_key_whoever_has_what_is_around_it(play: Play) -> None:
    """Not while its neighbours are held, nor after the coordinator has read the keys again."""

    async def scenario(shard: Shard) -> None:
        one, other = await Worker(shard).join(), await Worker(shard, "b").join()
        assert await one.acquire(1) == [0]
        assert await other.acquire(1) == [3]
        await shard.crash()
        assert await other.acquire(1) == [4]

    played(play, scenario, batch(0, b"a"), batch(3, b"b", b"c"), end=5)


def test_behind_more_gaps_than_are_read_at_a_time_there_is_a_record(play: Play) -> None:
    far = 2 * KEYS_PER_READ_MAX + 5

    async def scenario(shard: Shard) -> None:
        worker = await Worker(shard).join()
        began = asyncio.get_running_loop().time()
        assert await worker.acquire(max_wait_ms=20_000) == [far]
        assert asyncio.get_running_loop().time() - began < 10

    played(play, scenario, batch(far, b"a"), end=far + 1)


def test_what_is_damaged_is_no_gap_until_a_worker_has_rejected_it(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        tells = shard.controller.fetch

        def fetch(request: FetchRequest) -> FetchReply:
            if request.fetch_offset >= 2:
                return tells(request)
            return FetchReply(error=ErrorCode.CORRUPT_MESSAGE, resume_offset=2)

        shard.controller.fetch = fetch
        one, other = await Worker(shard).join(), await Worker(shard, "b").join()
        assert await one.acquire(2) == [0, 1]
        # The record may have this key, where it can be read.
        assert await other.acquire() == []
        await one.accept(0, 1)
        assert await other.acquire() == [2]

    played(play, scenario, batch(2, b"a"), end=3)


def test_a_held_record_that_is_gone_after_a_reload_holds_up_every_key(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        worker = await Worker(shard).join()
        assert await worker.acquire(1) == [0]
        await shard.crash()
        # Compaction has removed it meanwhile.
        shard.controller.fetch = log_of(batch(1, b"a", b"b", None))
        assert await worker.acquire() == [3]
        await worker.accept(0)
        assert await worker.acquire() == [1, 2]

    played(play, scenario, batch(0, b"a", b"a", b"b", None), end=4)


@pytest.mark.parametrize("resume_offset", [2, -1])
def test_what_cannot_be_read_is_given_to_a_worker_that_will_reject_it(
    play: Play, resume_offset: int
) -> None:
    async def scenario(shard: Shard) -> None:
        tells = shard.controller.fetch
        sound = batch(0, b"a", b"a")

        def fetch(request: FetchRequest) -> FetchReply:
            if request.fetch_offset >= 2:
                return tells(request)
            if request.is_checked:
                return FetchReply(error=ErrorCode.CORRUPT_MESSAGE, resume_offset=resume_offset)
            return FetchReply(records=damaged(sound))

        shard.controller.fetch = fetch
        worker = await Worker(shard).join()
        assert await worker.acquire() == [0, 1, 2]

    played(play, scenario, batch(2, b"a", b"a"), end=4)


def test_what_was_damaged_on_its_way_is_fetched_again(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        sound = batch(0, b"a", b"a")

        def fetch(request: FetchRequest) -> FetchReply:
            return FetchReply(records=sound if request.is_checked else damaged(sound))

        shard.controller.fetch = fetch
        worker = await Worker(shard).join()
        assert await worker.acquire() == [0]

    played(play, scenario, end=2)


def test_keys_are_hashed_up_to_the_first_damage_and_markers_have_none() -> None:
    marker = bytearray(encode_marker(**MARKER))
    patch(marker, base_offset=2, leader_epoch=0)
    sound = batch(0, b"a", None) + bytes(marker)
    expected = {0: crc32(b"a"), 1: NO_KEY, 2: NO_KEY}
    assert key_hashes(sound, 0) == (3, expected)
    assert key_hashes(sound, 1) == (3, {1: NO_KEY, 2: NO_KEY})
    damage = damaged(batch(3, b"b"))
    assert key_hashes(sound + damage, 0) == (3, expected)
    with pytest.raises(CorruptDataError):
        key_hashes(damage, 3)
