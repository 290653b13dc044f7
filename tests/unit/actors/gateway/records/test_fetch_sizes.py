"""How much an answer to a fetch has, and what is kept of replies for the next one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka_records import FakeLeader, World, now_ms, played
from virtual_time import give_turns

from oncelog.actors.gateway.records import fetch as gateway_fetch
from oncelog.actors.protocol.messages.partition import FetchReply


def test_a_first_batch_larger_than_allowed_is_given_all_the_same() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        for leader in leaders:
            leader.append(b"x" * 1_000)
        found = await client.fetch((0, 0), (1, 0), max_bytes=10)
        assert sorted(len(one.records) for one in found) == [0, 1_000]


def test_what_does_not_fit_is_kept_for_the_next_answer_and_not_read_again() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        for leader in leaders:
            leader.append(b"x" * 1_000)
        await client.fetch((0, 0), (1, 0), max_bytes=10)
        found = await client.fetch((0, 1), (1, 0), max_bytes=10)
        assert [len(one.records) for one in found] == [0, 1_000]
        assert len(leaders[1].fetches) == 1
        assert world.handlers._fetches._kept_bytes == 0


def test_no_partition_starves_though_the_client_always_names_them_in_the_same_order() -> None:
    @played(3)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        for leader in leaders:
            leader.append(*[b"x" * 1_000] * 100)
        offsets = [0, 0, 0]
        for _ in range(30):
            found = await client.fetch(*enumerate(offsets), max_bytes=10)
            await give_turns()
            for number, one in enumerate(found):
                offsets[number] += len(one.records) // 1_000
        assert min(offsets) >= 9


def test_partitions_that_are_asked_together_share_the_room_of_the_answer() -> None:
    @played(4)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        for leader in leaders:
            leader.append(*[b"x" * 100] * 100)
        wanted = [(number, 0) for number in range(4)]
        await client.fetch(*wanted, max_bytes=2_000, partition_max_bytes=700)
        assert {one.max_bytes for leader in leaders for one in leader.fetches} == {500}
        await client.fetch((0, 5), max_bytes=2_000, partition_max_bytes=700)
        assert leaders[0].fetches[-1].max_bytes == 700


def test_no_answer_is_larger_than_the_largest_whatever_a_client_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_fetch, "ANSWER_MAX_BYTES", 1_000)

    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        for leader in leaders:
            leader.append(*[b"x" * 100] * 100)
        found = await client.fetch((0, 0), (1, 0), max_bytes=2**31 - 1)
        assert sum(len(one.records) for one in found) == 1_000


def test_a_client_has_so_much_kept_and_what_is_beyond_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_fetch, "KEPT_CLIENT_MAX_BYTES", 150)

    @played(4)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        for leader in leaders:
            leader.append(b"x" * 100)
        wanted = [(number, 0) for number in range(4)]
        await client.fetch(*wanted, max_bytes=10)
        await give_turns()
        assert world.handlers._fetches._kept_bytes == 100
        await client.fetch((0, 1), *wanted[1:], max_bytes=1_000)
        await give_turns()
        assert sorted(len(leader.fetches) for leader in leaders[1:]) == [1, 2, 2]


def test_one_reply_is_kept_however_large_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_fetch, "KEPT_CLIENT_MAX_BYTES", 10)
    monkeypatch.setattr(gateway_fetch, "KEPT_MAX_BYTES", 10)

    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].gate = asyncio.Event()
        leaders[0].append(b"x" * 100)
        await client.fetch((0, 0))
        leaders[0].gate.set()
        await give_turns()
        (found,) = await client.fetch((0, 0))
        assert len(found.records) == 100
        assert len(leaders[0].fetches) == 1


def test_beyond_what_is_kept_for_all_clients_the_oldest_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_fetch, "KEPT_MAX_BYTES", 150)

    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        for leader in leaders:
            leader.append(b"x" * 100)
        others = [world.client(), world.client()]
        for one in others:
            await one.fetch((0, 0), (1, 0), max_bytes=10)
            await give_turns()
        kept = world.handlers._fetches._kept
        assert [poll.owner for poll in kept] == [others[1].client.remembered["fetch"]]
        assert world.handlers._fetches._kept_bytes == 100


def test_a_reply_that_replaces_what_is_kept_counts_once() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        for leader in leaders:
            leader.append(b"x" * 100)
        await client.fetch((0, 0), (1, 0), max_bytes=10)
        await give_turns()
        fetches = world.handlers._fetches
        (poll,) = fetches._kept
        fetches._replied(poll, FetchReply(high_watermark=2, records=memoryview(b"y" * 150)))
        assert (fetches._kept_bytes, poll.owner.kept_bytes) == (150, 150)
        found = await client.fetch((0, 1), (1, 0))
        assert [len(one.records) for one in found] == [0, 150]
        assert (fetches._kept_bytes, poll.owner.kept_bytes) == (0, 0)


def test_what_nobody_asks_for_is_dropped_after_a_while() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        for leader in leaders:
            leader.append(b"x" * 100)
        await client.fetch((0, 0), (1, 0), max_bytes=10)
        await asyncio.sleep(gateway_fetch.KEPT_MS / 1_000 - 0.1)
        assert world.handlers._fetches._kept_bytes == 100
        await asyncio.sleep(0.2)
        assert world.handlers._fetches._kept_bytes == 0
        assert not world.handlers._fetches._kept


def test_beyond_the_partitions_of_a_request_the_others_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_fetch, "PARTITIONS_MAX", 2)

    @played(4)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        found = await client.fetch(*((number, 0) for number in range(4)))
        assert [one.error_code for one in found] == [0, 0, -1, -1]
        # Another two take the places of the first.
        await client.fetch((2, 0), (3, 0))
        assert len(client.client.remembered["fetch"].polls) == 2


def test_beyond_the_polls_that_may_wait_at_an_actor_it_answers_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_fetch, "WAITING_PER_ACTOR_MAX", 1)

    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        others = [world.client() for _ in range(3)]
        await asyncio.gather(*(one.fetch((0, 0)) for one in others))
        first = [one.max_wait_ms for one in leaders[0].fetches][:3]
        assert first == [500, 0, 0]
        # They are answered when their time is over, as always, and ask nobody in between.
        assert 500 <= now_ms() <= 501
        assert len(leaders[0].fetches) <= 4
        leaders[0].append(b"x")
        found = await asyncio.gather(*(one.fetch((0, 0)) for one in others))
        assert [bytes(one.records) for (one,) in found] == [b"x"] * 3
