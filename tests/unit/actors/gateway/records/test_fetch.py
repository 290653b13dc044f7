"""Fetches of Kafka's consumers: when and with what they are answered, and what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from kafka_records import FLIGHTS, FLIGHTS_ID, FakeLeader, World, batch
from leader_harness import LeaderHarness
from msgspec import UNSET, structs
from topics import topic_of
from virtual_time import give_turns

from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.fetch import FetchRequest
from oncelog.actors.gateway.records import fetch as gateway_fetch
from oncelog.actors.gateway.records.fetch import GRACE_MS
from oncelog.actors.protocol.messages.access import Acl, Operation, Resource
from oncelog.actors.protocol.messages.cluster import PartitionMetadata, TopicMetadata
from oncelog.actors.protocol.messages.partition import FetchReply
from oncelog.actors.replica.partition_leader import FILE_PART_MIN_BYTES
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import AbortedTransaction, IsolationLevel, TopicPartition
from oncelog.storage.records.batch import iterate_batches

READS = Acl(principal="User:eve", operation=Operation.READ, resource=Resource.TOPIC, name=FLIGHTS)


def now_ms() -> int:
    return round(1_000 * asyncio.get_running_loop().time())


def played(partitions: int = 1) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], None]:
    """Run a story with a world, its topic's leaders and a client."""

    def play(story: Callable[..., Coroutine[Any, Any, None]]) -> None:
        world = World()
        world.play(lambda: story(world, world.add(partitions=partitions), world.client()))

    return play


# --- one partition ----------------------------------------------------------------------------


def test_records_and_bounds_are_those_of_the_leaders_reply_and_nothing_is_copied() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        given = memoryview(b"records")
        leaders[0].append(b"x", b"y", b"z")
        leaders[0].fields = {"records": given, "last_stable_offset": 2, "log_start_offset": 1}
        (found,) = await client.fetch((0, 1))
        assert found.records is given
        assert (found.error_code, found.high_watermark) == (0, 3)
        assert (found.last_stable_offset, found.log_start_offset) == (2, 1)
        assert (found.preferred_read_replica, found.diverging_epoch) == (-1, None)


def test_what_a_client_asks_for_reaches_the_leader() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].append(b"x" * 10)
        await client.fetch((0, 0), partition_max_bytes=100, isolation_level=1, max_wait_ms=300)
        (asked,) = leaders[0].fetches
        assert (asked.fetch_offset, asked.max_bytes, asked.max_wait_ms) == (0, 100, 300)
        assert asked.isolation_level is IsolationLevel.READ_COMMITTED
        assert not asked.from_follower
        assert asked.topic_id == ""


@pytest.mark.parametrize("level", [0, 1])
def test_aborted_transactions_are_told_to_those_that_read_committed(level: int) -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].append(b"x")
        if level:
            leaders[0].fields = {
                "aborted_transactions": (AbortedTransaction(producer_id=7, first_offset=3),)
            }
        (found,) = await client.fetch((0, 0), isolation_level=level)
        aborted = found.aborted_transactions
        told = None if aborted is None else [(one.producer_id, one.first_offset) for one in aborted]
        assert told == ([(7, 3)] if level else None)
        (nothing,) = await client.fetch((0, 1), isolation_level=level)
        assert nothing.aborted_transactions == ([] if level else None)


def test_an_empty_partition_is_answered_with_its_bounds_when_the_time_is_over() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].append(b"x")
        (found,) = await client.fetch((0, 1), max_wait_ms=400)
        assert (found.error_code, found.records, found.high_watermark) == (0, b"", 1)
        assert 400 <= now_ms() <= 401


def test_records_that_come_while_it_waits_are_answered_with_at_once() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        fetching = asyncio.ensure_future(client.fetch((0, 0)))
        await asyncio.sleep(0.2)
        leaders[0].append(b"x")
        (found,) = await fetching
        assert bytes(found.records) == b"x"
        assert now_ms() == 200


def test_who_wants_not_to_wait_or_no_bytes_hears_at_once_what_there_is() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        (found,) = await client.fetch((0, 0), max_wait_ms=0)
        assert found.high_watermark == 0
        (found,) = await client.fetch((0, 0), min_bytes=0)
        assert found.high_watermark == 0
        assert now_ms() == 0
        leaders[0].append(b"x")
        (found,) = await client.fetch((0, 0), max_wait_ms=0)
        assert bytes(found.records) == b"x"


def test_a_request_without_partitions_is_answered_at_once() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        asked = FetchRequest(max_wait_ms=500, min_bytes=1)
        response = await client.ask(ApiKey.FETCH, 12, asked)
        assert (response.error_code, response.responses, now_ms()) == (0, [], 0)


@pytest.mark.parametrize(
    ("session", "code"), [((5, 1), 70), ((5, -1), 70), ((0, 3), 71), ((0, 0), 0), ((0, -1), 0)]
)
def test_there_are_no_sessions(session: tuple[int, int], code: int) -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].append(b"x")
        response = await client.fetch_all((0, 0), session_id=session[0], session_epoch=session[1])
        assert (response.error_code, response.session_id) == (code, 0)
        assert len(response.responses) == (not code)


# --- several partitions -----------------------------------------------------------------------


def test_one_partition_with_records_does_not_wait_for_the_others() -> None:
    @played(3)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[1].append(b"x")
        found = await client.fetch((0, 0), (1, 0), (2, 0))
        assert [bytes(one.records) for one in found] == [b"", b"x", b""]
        assert now_ms() == 0


def test_a_leader_that_is_slow_holds_up_nobody_and_its_records_come_with_the_next_answer() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].gate = asyncio.Event()
        leaders[0].append(b"late")
        found = await client.fetch((0, 0), (1, 0))
        assert [bytes(one.records) for one in found] == [b"", b""]
        assert now_ms() == 500 + GRACE_MS
        leaders[0].gate.set()
        await give_turns()
        found = await client.fetch((0, 0), (1, 0))
        assert [bytes(one.records) for one in found] == [b"late", b""]
        # The answer was there, so nothing was asked again and nobody waited.
        assert len(leaders[0].fetches) == 1
        assert now_ms() == 500 + GRACE_MS


def test_a_slow_leader_delays_an_answer_by_the_grace_only_once() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].gate = asyncio.Event()
        await client.fetch((0, 0), (1, 0))
        begun = now_ms()
        await client.fetch((0, 0), (1, 0))
        assert now_ms() - begun == 500
        leaders[0].gate.set()


def test_a_late_reply_for_another_offset_is_dropped() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].gate = asyncio.Event()
        leaders[0].append(b"0", b"1")
        leaders[1].append(b"x")
        await client.fetch((0, 0), (1, 0))
        leaders[0].gate.set()
        await give_turns()
        (found,) = await client.fetch((0, 1))
        assert bytes(found.records) == b"1"
        assert [one.fetch_offset for one in leaders[0].fetches] == [0, 1]
        assert world.handlers._fetches._kept_bytes == 0


def test_bounds_that_are_known_are_told_while_a_leader_is_silent() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].append(b"x")
        await client.fetch((0, 0))
        leaders[0].gate = asyncio.Event()
        (found,) = await client.fetch((0, 1))
        assert (found.error_code, found.high_watermark, found.log_start_offset) == (0, 1, 0)
        leaders[0].gate.set()


def test_an_idle_partition_is_asked_about_less_and_less_often_and_heard_at_once() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        for _ in range(60):
            (found,) = await client.fetch((0, 0))
            assert found.high_watermark == 0
        # Half a minute.
        assert len(leaders[0].fetches) <= 10
        waits = [one.max_wait_ms for one in leaders[0].fetches]
        assert waits[:3] == [500, 1_000, 2_000]
        assert max(waits) == gateway_fetch.IDLE_WAIT_MAX_MS
        begun = now_ms()
        fetching = asyncio.ensure_future(client.fetch((0, 0)))
        await asyncio.sleep(0.1)
        leaders[0].append(b"x")
        (found,) = await fetching
        assert bytes(found.records) == b"x"
        assert now_ms() - begun == 100


def test_a_poll_whose_leader_ends_its_wait_before_the_request_is_asked_again() -> None:
    """1. An answer leaves a poll of the other partition. 2. The next request comes later, and still
    waits when that poll ends. 3. Records come after that.
    """

    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[1].append(b"x")
        await client.fetch((0, 0), (1, 0))
        await asyncio.sleep(0.3)
        fetching = asyncio.ensure_future(client.fetch((0, 0), (1, 1)))
        await asyncio.sleep(0.4)
        leaders[0].append(b"y")
        found = await fetching
        assert [bytes(one.records) for one in found] == [b"y", b""]
        assert now_ms() == 700


def test_who_would_wait_for_very_long_has_leaders_asked_again_and_again() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        fetching = asyncio.ensure_future(client.fetch((0, 0), max_wait_ms=60_000))
        await asyncio.sleep(45)
        leaders[0].append(b"x")
        (found,) = await fetching
        assert bytes(found.records) == b"x"
        assert now_ms() == 45_000
        assert max(one.max_wait_ms for one in leaders[0].fetches) == 10_000


def test_nobody_waits_for_ever() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        (found,) = await client.fetch((0, 0), max_wait_ms=2**31 - 1)
        assert bytes(found.records) == b""
        assert now_ms() == 60_000


def test_no_fetch_waits_longer_than_the_longest() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        (found,) = await client.fetch((0, 0), max_wait_ms=2**31 - 1)
        assert (found.error_code, found.records) == (0, b"")
        assert 0 <= now_ms() - gateway_fetch.WAIT_MAX_MS <= GRACE_MS


# --- min_bytes --------------------------------------------------------------------------------


def test_min_bytes_are_those_of_all_partitions_together() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].append(b"x" * 60)
        fetching = asyncio.ensure_future(client.fetch((0, 0), (1, 0), min_bytes=100))
        await asyncio.sleep(0.2)
        assert not fetching.done()
        leaders[1].append(b"y" * 39)
        await give_turns()
        assert not fetching.done()
        leaders[1].append(b"y" * 11)
        await give_turns()
        found = await fetching
        assert [len(one.records) for one in found] == [60, 50]
        assert now_ms() == 200


def test_enough_in_one_partition_is_enough() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].append(b"x" * 100)
        found = await client.fetch((0, 0), (1, 0), min_bytes=100)
        assert [len(one.records) for one in found] == [100, 0]
        leaders[0].append(b"y" * 60)
        fetching = asyncio.ensure_future(client.fetch((0, 1), (1, 0), min_bytes=100))
        await asyncio.sleep(0.2)
        leaders[0].append(b"y" * 40)
        await fetching
        assert now_ms() == 200


def test_what_is_less_than_min_bytes_is_told_when_the_time_is_over() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[1].append(b"y" * 39)
        leaders[0].append(b"x" * 3)
        found = await client.fetch((0, 0), (1, 0), min_bytes=100)
        assert [len(one.records) for one in found] == [3, 39]
        assert 500 <= now_ms() <= 501


def test_a_leader_is_not_asked_again_and_again_while_there_is_not_enough() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].append(b"x" * 90)
        await client.fetch((0, 0), (1, 0), min_bytes=100)
        assert len(leaders[0].fetches) <= 3


def test_a_partition_that_gives_all_it_may_fulfils_any_min_bytes() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].append(*[b"x" * 60] * 9)
        (found,) = await client.fetch((0, 0), min_bytes=1_000, partition_max_bytes=100)
        assert len(found.records) == 60
        assert now_ms() == 0


# --- sizes ------------------------------------------------------------------------------------


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


# --- errors -----------------------------------------------------------------------------------


def test_an_error_is_told_at_once_and_the_partition_asked_anew_next_time() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].error = ErrorCode.OFFSET_OUT_OF_RANGE
        found = await client.fetch((0, 9), (1, 0))
        assert [one.error_code for one in found] == [1, 0]
        assert (found[0].records, now_ms()) == (b"", 0)
        leaders[0].error = ErrorCode.NONE
        leaders[0].append(b"x")
        found = await client.fetch((0, 0), (1, 0))
        assert [bytes(one.records) for one in found] == [b"x", b""]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ErrorCode.OFFSET_OUT_OF_RANGE, 1),
        (ErrorCode.CORRUPT_MESSAGE, 2),
        (ErrorCode.FENCED_LEADER_EPOCH, 74),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, 75),
        (ErrorCode.OFFSET_NOT_AVAILABLE, 78),
        (ErrorCode.REPLICA_OFFLINE, 56),
        (ErrorCode.NETWORK_EXCEPTION, 6),
        # Java's consumer throws an exception at these.
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 6),
        (ErrorCode.INVALID_REQUEST, -1),
        (ErrorCode.UNKNOWN_SERVER_ERROR, -1),
    ],
)
def test_errors_are_those_that_consumers_expect(error: ErrorCode, code: int) -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].error = error
        (found,) = await client.fetch((0, 0))
        assert (found.error_code, found.records) == (code, b"")


def test_a_leader_that_does_not_answer_in_time_is_no_error() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].gate = asyncio.Event()
        for _ in range(40):
            (found,) = await client.fetch((0, 0))
            assert found.error_code == 0
        # It was asked again once the call had timed out.
        assert len(leaders[0].fetches) == 2
        leaders[0].gate.set()
        leaders[0].append(b"x")
        (found,) = await client.fetch((0, 0))
        assert bytes(found.records) == b"x"


def test_an_error_that_came_while_nobody_waited_is_not_told() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[1].append(b"x")
        await client.fetch((0, 0), (1, 0))
        leaders[0].error = ErrorCode.KAFKA_STORAGE_ERROR
        leaders[0].moved()
        await give_turns()
        leaders[0].error = ErrorCode.NONE
        leaders[0].append(b"y")
        (found,) = await client.fetch((0, 0))
        assert bytes(found.records) == b"y"


@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NETWORK_EXCEPTION])
def test_a_leader_that_has_moved_is_found_while_the_client_waits(error: ErrorCode) -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        await client.fetch((0, 0))
        fetching = asyncio.ensure_future(client.fetch((0, 0)))
        await give_turns()
        world.topics[FLIGHTS] = topic_of(FLIGHTS, 2, topic_id=FLIGHTS_ID)
        world.lead(f"partition:{FLIGHTS}-0@2").append(b"x")
        leaders[0].error = error
        leaders[0].moved()
        (found,) = await fetching
        assert bytes(found.records) == b"x"


def test_a_partition_without_a_leader_or_that_does_not_exist_is_told_so() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        world.topics["taxis"] = topic_of("taxis", -1)
        (found,) = await client.fetch((0, 0), topic="taxis")
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        found = await client.fetch((0, 0), (7, 0), (-1, 0))
        assert [one.error_code for one in found] == [0, 3, 3]
        (found,) = await client.fetch((0, 0), topic="trains")
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# --- topic ids --------------------------------------------------------------------------------


def test_from_version_13_on_topics_have_ids() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].append(b"x")
        response = await client.fetch_all((0, 0), version=16, topic="")
        (topic,) = response.responses
        assert topic.topic_id == bytes.fromhex(FLIGHTS_ID)
        assert bytes(topic.partitions[0].records) == b"x"
        assert leaders[0].fetches[0].topic_id == FLIGHTS_ID
        asked = len(world.looked_up())
        await client.fetch_all((0, 0), version=16, topic="")
        assert len(world.looked_up()) == asked


def test_an_id_that_no_topic_has_is_refused_and_its_partitions_are_in_the_answer() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        other = b"\x01" * 16
        found = await client.fetch((0, 0), (1, 0), version=13, topic="", topic_id=other)
        assert [one.error_code for one in found] == [100, 100]


def test_the_id_of_a_deleted_topic_is_not_that_of_the_next_of_its_name() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        await client.fetch((0, 0), version=13, topic="")
        leaders[0].error = ErrorCode.NETWORK_EXCEPTION
        world.add(topic_id="e" * 32)[0].append(b"x")
        for _ in range(20):
            # What the gateway knows of the old topic is of no use, and then it knows the new one.
            (found,) = await client.fetch((0, 0), version=13, topic="")
            assert found.records == b""
        assert found.error_code == 100


def test_an_id_is_compared_with_that_of_the_topic_which_is_found() -> None:
    """1. The gateway knows the topic. 2. It is made anew. 3. Somebody else finds that out first."""

    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        await client.fetch((0, 0), version=13, topic="")
        world.add(topic_id="e" * 32)[0].append(b"x")
        world.cluster.view.invalidate(FLIGHTS)
        (found,) = await client.fetch((0, 0), version=13, topic="")
        assert (found.error_code, found.records) == (100, b"")
        assert not world.leaders[f"partition:{FLIGHTS}-0@1"].asked


# --- rights -----------------------------------------------------------------------------------


def test_who_may_not_read_a_topic_hears_that_whether_there_is_one_or_not() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        world.switch_on(READS)
        bob = world.client("User:bob")
        for topic in (FLIGHTS, "trains"):
            (found,) = await bob.fetch((0, 0), topic=topic)
            assert found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not leaders[0].asked
        leaders[0].append(b"x")
        (found,) = await world.client("User:eve").fetch((0, 0))
        assert bytes(found.records) == b"x"


def test_what_is_on_its_way_is_judged_again_once_rules_change() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        world.switch_on(READS)
        eve = world.client("User:eve")
        leaders[1].append(b"x")
        await eve.fetch((0, 0), (1, 0))
        leaders[0].append(b"secret")
        await give_turns()
        world.switch_on(version=2)
        (found,) = await eve.fetch((0, 0))
        assert (found.error_code, found.records) == (29, b"")


# --- racks ------------------------------------------------------------------------------------


def two_replicas(leader: int) -> TopicMetadata:
    partition = PartitionMetadata(
        partition=0, leader=leader, leader_epoch=3, replicas=(1, 2), isr=(1, 2)
    )
    return TopicMetadata(name=FLIGHTS, topic_id=FLIGHTS_ID, partitions=(partition,))


def test_a_client_in_the_rack_of_a_follower_is_sent_there_once() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        world.topics[FLIGHTS] = two_replicas(1)
        leaders[0].fields = {"preferred_read_replica": 2, "records": b""}
        (found,) = await client.fetch((0, 0), rack_id="east")
        assert (found.preferred_read_replica, found.error_code, now_ms()) == (2, 0, 0)
        assert leaders[0].fetches[-1].client_rack == "east"
        # It asks here again, so it cannot reach that node.
        leaders[0].fields = {}
        leaders[0].append(b"x")
        (found,) = await client.fetch((0, 0), rack_id="east")
        assert bytes(found.records) == b"x"
        assert leaders[0].fetches[-1].client_rack == ""
        await asyncio.sleep(gateway_fetch.NAMED_AGAIN_MS / 1_000)
        await client.fetch((0, 0), rack_id="east")
        assert leaders[0].fetches[-1].client_rack == "east"


def test_a_client_without_a_rack_is_sent_nowhere() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        world.topics[FLIGHTS] = two_replicas(2)
        world.lead(f"partition:{FLIGHTS}-0@2").append(b"x")
        (found,) = await client.fetch((0, 0))
        assert bytes(found.records) == b"x"
        assert not leaders[0].asked


def test_a_client_with_a_rack_gets_the_records_of_the_follower_of_this_broker() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        world.topics[FLIGHTS] = two_replicas(2)
        leader = world.lead(f"partition:{FLIGHTS}-0@2")
        (follower,) = leaders
        follower.append(b"x")
        (found,) = await client.fetch((0, 0), rack_id="east")
        assert bytes(found.records) == b"x"
        (asked,) = follower.fetches
        assert (asked.from_follower, asked.client_rack) == (True, "")
        assert not leader.asked


def test_an_error_of_a_follower_is_nobodys_and_the_leader_is_asked_for_a_while() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        world.topics[FLIGHTS] = two_replicas(2)
        leader = world.lead(f"partition:{FLIGHTS}-0@2")
        leader.append(b"x", b"y")
        (follower,) = leaders
        follower.error = ErrorCode.OFFSET_OUT_OF_RANGE
        for offset, record in enumerate((b"xy", b"y")):
            (found,) = await client.fetch((0, offset), rack_id="east")
            assert (found.error_code, bytes(found.records)) == (0, record)
        assert len(follower.fetches) == 1
        assert {(one.from_follower, one.client_rack) for one in leader.fetches} == {(False, "")}
        follower.error = ErrorCode.NONE
        await asyncio.sleep(gateway_fetch.FOLLOWER_AGAIN_MS / 1_000)
        await client.fetch((0, 2), rack_id="east")
        assert len(follower.fetches) == 2


# --- connections ------------------------------------------------------------------------------


def test_two_requests_of_a_connection_for_the_same_are_both_answered() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        both = asyncio.gather(client.fetch((0, 0)), client.fetch((0, 0)))
        await asyncio.sleep(0.1)
        leaders[0].append(b"x")
        (first,), (second,) = await both
        assert [bytes(first.records), bytes(second.records)] == [b"", b"x"]
        assert now_ms() <= 500 + GRACE_MS


def test_a_request_that_is_given_up_leaves_its_polls_to_the_next() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        fetching = asyncio.ensure_future(client.fetch((0, 0)))
        await asyncio.sleep(0.1)
        fetching.cancel()
        await asyncio.wait((fetching,))
        leaders[0].append(b"x")
        await give_turns()
        (found,) = await client.fetch((0, 0))
        assert bytes(found.records) == b"x"
        assert len(leaders[0].fetches) == 1


def test_what_is_kept_for_one_connection_is_not_anothers() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        for leader in leaders:
            leader.append(b"x" * 100)
        await client.fetch((0, 0), (1, 0), max_bytes=10)
        await give_turns()
        await world.client().fetch((0, 0), (1, 0), max_bytes=10)
        assert [len(leader.fetches) for leader in leaders] == [2, 2]


def test_throttling_is_told() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        leaders[0].append(b"x")
        leaders[0].fields = {"throttle_ms": 70}
        response = await client.fetch_all((0, 0))
        assert response.throttle_time_ms == 70


def test_closing_ends_what_waits_and_drops_what_is_kept() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: Any) -> None:
        for leader in leaders:
            leader.append(b"x" * 100)
        await client.fetch((0, 0), (1, 0), max_bytes=10)
        await client.fetch((0, 1), (1, 0), max_bytes=10)
        await give_turns()
        await world.handlers.close()
        assert not world.handlers._tasks.running
        assert not world.handlers._fetches._kept


# --- a real leader ----------------------------------------------------------------------------


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
