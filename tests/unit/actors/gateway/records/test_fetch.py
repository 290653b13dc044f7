"""Fetches of Kafka's consumers: when and with what they are answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka_records import FLIGHTS, FLIGHTS_ID, FakeLeader, World, now_ms, played
from topics import topic_of
from virtual_time import give_turns

from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.fetch import FetchRequest
from oncelog.actors.gateway.records import fetch as gateway_fetch
from oncelog.actors.gateway.records.fetch import GRACE_MS
from oncelog.actors.protocol.messages.access import Acl, Operation, Resource
from oncelog.actors.protocol.messages.cluster import PartitionMetadata, TopicMetadata
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import AbortedTransaction, IsolationLevel

READS = Acl(principal="User:eve", operation=Operation.READ, resource=Resource.TOPIC, name=FLIGHTS)


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
