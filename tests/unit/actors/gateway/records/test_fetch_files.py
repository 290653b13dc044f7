"""Fetches from a real leader, whose file the gateway reads if there are many records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from kafka_records import FLIGHTS, FakeLeader, World, batch, now_ms, played
from leader_harness import LeaderHarness
from msgspec import UNSET, structs
from topics import topic_of

from oncelog.actors.gateway.records import fetch as gateway_fetch
from oncelog.actors.protocol.messages.partition import FetchReply
from oncelog.actors.replica.partition_leader import FILE_PART_MIN_BYTES
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import iterate_batches


def test_an_offset_in_the_midst_of_a_batch_gives_the_whole_batch(harness: LeaderHarness) -> None:
    async def body() -> None:
        await harness.start()
        world = World(topic_of(FLIGHTS, 1, topic_id=harness.topic_id))

        async def answer(request: Any) -> FetchReply:
            return await harness.leader.fetch(request)

        world.actors[f"partition:{FLIGHTS}-0@1"] = answer
        for values in ((b"a", b"b", b"c"), (b"d",)):
            await harness.produce(batch(*values))
        (found,) = await world.client().fetch((0, 1), isolation_level=1)
        batches = list(iterate_batches(bytes(found.records)))
        assert [(header.base_offset, header.record_count) for _, header in batches] == [
            (0, 3),
            (3, 1),
        ]
        assert (found.high_watermark, found.last_stable_offset) == (4, 4)
        (found,) = await world.client().fetch((0, 5))
        assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        await world.handlers.close()
        await harness.replica.stop()

    asyncio.run(body())


@pytest.fixture
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be slow."""
    monkeypatch.setattr(gateway_fetch, "FILES_AGAIN_MS", 60_000)
    monkeypatch.setattr(gateway_fetch, "FILE_PART_MAX_MS", 60_000)


class SharedFiles:
    """A client whose gateway can read the files of a real leader, and what that one answered."""

    def __init__(self, harness: LeaderHarness) -> None:
        self.world = World(topic_of(FLIGHTS, 1, topic_id=harness.topic_id))
        self.world.actors[f"partition:{FLIGHTS}-0@1"] = self._answer
        self.client = self.world.client()
        self.told: list[FetchReply] = []
        self.before_reading: Callable[[FetchReply], FetchReply] = lambda reply: reply
        """What happens to a reply, or to its file, before the gateway has it."""
        self._harness = harness

    async def _answer(self, request: Any) -> FetchReply:
        reply = await self._harness.leader.fetch(request)
        self.told.append(reply)
        return self.before_reading(reply)

    async def fetch(self) -> bytes:
        (found,) = await self.client.fetch((0, 0), isolation_level=1)
        assert found.error_code == 0
        return bytes(found.records)

    @property
    def were_in_files(self) -> list[bool]:
        return [reply.file_part is not UNSET for reply in self.told]


def shared(
    harness: LeaderHarness, scenario: Callable[[SharedFiles, bytes], Coroutine[Any, Any, None]]
) -> None:
    async def body() -> None:
        await harness.start()
        for _ in range(3):
            await harness.produce(batch(b"v" * FILE_PART_MIN_BYTES))
        sent = await harness.leader.fetch(harness.fetch_request(0))
        files = SharedFiles(harness)
        try:
            await scenario(files, bytes(sent.records))
        finally:
            await files.world.handlers.close()
            await harness.replica.stop()

    asyncio.run(body())


@pytest.mark.usefixtures("cached_reads", "no_hurry")
def test_many_records_of_this_broker_are_read_from_their_file(harness: LeaderHarness) -> None:
    async def scenario(files: SharedFiles, records: bytes) -> None:
        assert await files.fetch() == records
        assert await files.fetch() == records
        assert files.were_in_files == [True, True]
        assert not any(len(reply.records) for reply in files.told)

    shared(harness, scenario)


def replaced(reply: FetchReply) -> FetchReply:
    """Another file has the path by now, of the same content."""
    if reply.file_part is not UNSET:
        path = Path(reply.file_part.path)
        path.with_suffix(".copy").write_bytes(path.read_bytes())
        path.with_suffix(".copy").rename(path)
    return reply


def removed(reply: FetchReply) -> FetchReply:
    """Retention has removed the file, whose leader still has it open."""
    if reply.file_part is not UNSET:
        Path(reply.file_part.path).unlink(missing_ok=True)
    return reply


def shortened(reply: FetchReply) -> FetchReply:
    """More is told of than there is."""
    return with_part(reply, size_bytes=10**7)


def elsewhere(reply: FetchReply) -> FetchReply:
    """The log was cut since, and other batches are there."""
    return with_part(reply, position=1, size_bytes=FILE_PART_MIN_BYTES)


def late(reply: FetchReply) -> FetchReply:
    """The gateway stood still, and files may have come and gone."""
    if reply.file_part is UNSET:
        return reply
    return structs.replace(reply, told_ms=now_ms() - gateway_fetch.FILE_PART_MAX_MS - 1_000)


def with_part(reply: FetchReply, **fields: Any) -> FetchReply:
    if reply.file_part is UNSET:
        return reply
    return structs.replace(reply, file_part=structs.replace(reply.file_part, **fields))


@pytest.mark.usefixtures("cached_reads", "no_hurry")
@pytest.mark.parametrize("happens", [replaced, removed, shortened, elsewhere, late])
def test_what_cannot_be_read_here_the_leader_sends_for_a_while(
    harness: LeaderHarness, monkeypatch: pytest.MonkeyPatch, happens: Any
) -> None:
    async def scenario(files: SharedFiles, records: bytes) -> None:
        files.before_reading = happens
        assert await files.fetch() == records
        files.client = files.world.client()
        assert await files.fetch() == records
        assert files.were_in_files == [True, False, False]
        # In the end its files are tried again.
        monkeypatch.setattr(gateway_fetch, "FILES_AGAIN_MS", 0)
        files.world.handlers._fetches._unread_until_ms.clear()
        for _ in range(2):
            files.client = files.world.client()
            assert await files.fetch() == records
        assert files.were_in_files[3:] == [True, False, True, False]

    shared(harness, scenario)


def test_partitions_whose_leaders_send_for_a_while_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_fetch, "PARTITIONS_MAX", 2)

    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        fetches = world.handlers._fetches
        for number in range(3):
            fetches._remember(fetches._unread_until_ms, TopicPartition(FLIGHTS, number), 1_000)
        assert list(fetches._unread_until_ms) == [TopicPartition(FLIGHTS, 2)]
