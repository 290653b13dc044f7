"""Bytes below the synced end change: readers are told where, status tells, and reading goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deadlines import DEADLINE_S

from oncelog.actors.protocol.messages.partition import DeleteRecordsRequest, ListOffsetsRequest
from oncelog.actors.replica.maintenance import LogScrub
from oncelog.actors.replica.observations import PLACES_MAX, FoundDamage
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.fetcher import Fetcher
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptRecordError
from oncelog.storage.model import TopicPartition

Play = Callable[[Any], None]
TP = TopicPartition("flights", 0)

VALUES = [b"a" * 40, b"b" * 40, b"c" * 40]


class OneLeader:
    """A ``Router`` to the one leader there is."""

    def __init__(self, harness: Any) -> None:
        self._harness = harness

    async def call_leader(self, _tp: TopicPartition, request: Any, **_: Any) -> Any:
        return await self._harness.leader.fetch(request)

    async def metadata(self, _topics: Any) -> dict[str, Any]:
        return {}


def flip(directory: Path, value: bytes) -> None:
    """One bit of the record with ``value`` changes on the disk."""
    path = directory / "flights-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[data.index(value) + 3] ^= 1
    with path.open("r+b") as file:
        file.write(data)


async def write(h: Any) -> None:
    for value in VALUES:
        assert (await h.produce(h.batch(value))).error is ErrorCode.NONE


async def restart(h: Any) -> None:
    await h.replica.stop()
    await h.start()


async def take(fetcher: Fetcher, changed: asyncio.Event, *, as_columns: bool) -> list[bytes | None]:
    """The next records that can be had, or the failure that the fetcher has to tell."""
    found: list[bytes | None] = []
    deadline_s = asyncio.get_running_loop().time() + DEADLINE_S
    while True:
        assert asyncio.get_running_loop().time() < deadline_s, "neither records nor a failure came"
        changed.clear()
        if as_columns:
            for _, batches in fetcher.take_columns(None):
                found += [value for batch in batches for value in batch.column("value").to_pylist()]
        else:
            found += [record.value for record in fetcher.take_records(100)]
        if not found and (failure := fetcher.take_failure()) is not None:
            raise failure[1]
        if found:
            return found
        await asyncio.wait_for(changed.wait(), DEADLINE_S)


@pytest.mark.parametrize("as_columns", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_reader_gets_what_is_sound_then_an_error_then_what_follows(
    play: Play, is_restarted: bool, as_columns: bool
) -> None:
    async def scenario(h: Any) -> None:
        await write(h)
        flip(h.directory, VALUES[1])
        if is_restarted:
            await restart(h)
        changed = asyncio.Event()
        fetcher = Fetcher(
            router=OneLeader(h),  # type: ignore[arg-type]
            settings=ConsumerSettings(fetch_max_wait_ms=10),
            random=Random(1),
            on_change=changed.set,
        )
        fetcher.assign([TP])
        fetcher.seek(TP, 0)
        assert await take(fetcher, changed, as_columns=as_columns) == VALUES[:1]
        for _ in range(2):
            with pytest.raises(CorruptRecordError, match=r"flights-0.* at offset 1\b") as caught:
                await take(fetcher, changed, as_columns=as_columns)
        error = caught.value
        assert (error.topic_partition, error.offset, error.next_offset) == (TP, 1, 2)
        assert error.fatal
        assert not error.retriable
        fetcher.seek(TP, error.next_offset)
        assert await take(fetcher, changed, as_columns=as_columns) == VALUES[2:]
        await fetcher.close()
        described = h.replica.describe(1)
        assert (described.damaged_offset, described.damaged_place_count) == (1, 1)

    play(scenario)


def test_leader_checks_what_it_wrote_itself_only_when_asked(play: Play) -> None:
    async def scenario(h: Any) -> None:
        await write(h)
        flip(h.directory, VALUES[1])
        unchecked = await h.leader.fetch(h.fetch_request(0))
        assert unchecked.error is ErrorCode.NONE
        sound = await h.leader.fetch(h.fetch_request(0, is_checked=True))
        assert sound.error is ErrorCode.NONE
        assert len(sound.records) < len(unchecked.records)
        damaged = await h.leader.fetch(h.fetch_request(1, is_checked=True))
        assert (damaged.error, damaged.resume_offset) == (ErrorCode.CORRUPT_MESSAGE, 2)
        assert damaged.high_watermark == 3

    play(scenario)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_scrub_finds_damage_that_nobody_has_read(play: Play, is_restarted: bool) -> None:
    async def scenario(h: Any) -> None:
        await write(h)
        flip(h.directory, VALUES[0])
        flip(h.directory, VALUES[2])
        if is_restarted:
            await restart(h)
        assert h.replica.describe(1).damaged_place_count == 0
        await LogScrub(h.replica).piece()
        described = h.replica.describe(1)
        assert (described.damaged_offset, described.damaged_place_count) == (0, 2)
        request = DeleteRecordsRequest(topic_partition=TP, offset=1)
        assert (await h.leader.delete_records(request)).error is ErrorCode.NONE
        described = h.replica.describe(1)
        assert (described.damaged_offset, described.damaged_place_count) == (2, 1)

    play(scenario)


def test_search_for_a_time_across_damage_is_refused(play: Play) -> None:
    async def scenario(h: Any) -> None:
        await write(h)
        path = h.directory / "flights-0" / f"{0:020d}.log"
        path.write_bytes(bytes(61) + path.read_bytes()[61:])
        await h.replica.stop()
        await h.start()
        if h.replica.failure is not None:
            assert str(path) in h.replica.failure
            return
        found = await h.leader.list_offsets(ListOffsetsRequest(topic_partition=TP, timestamp_ms=5))
        assert found.error is ErrorCode.CORRUPT_MESSAGE

    play(scenario)


def test_damaged_places_that_are_remembered_have_a_bound() -> None:
    damage = FoundDamage(TP)
    for offset in range(PLACES_MAX + 5):
        damage.record(CorruptRecordError("x", offset=offset, next_offset=offset + 1))
    assert len(damage.places(0)) == PLACES_MAX
    assert damage.places(PLACES_MAX - 1) == [(PLACES_MAX - 1, PLACES_MAX)]
