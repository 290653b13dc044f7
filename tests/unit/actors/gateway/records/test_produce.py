"""Produces of Kafka's producers: answers, refusals and leaders that move."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka_records import (
    FLIGHTS,
    FLIGHTS_ID,
    OURS,
    FakeLeader,
    KafkaClient,
    World,
    batch,
    played,
    real,
    replies,
)
from leader_harness import LeaderHarness
from topics import topic_of
from virtual_time import give_turns

from oncelog.actors.gateway.errors import UnansweredError
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.produce import PartitionProduceData, TopicProduceData
from oncelog.actors.gateway.messages.produce import ProduceRequest as KafkaProduceRequest
from oncelog.actors.protocol.messages.access import Acl, Operation, Resource
from oncelog.actors.protocol.messages.partition import ProduceReply, ProduceRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.compression import Codec

WRITES = Acl(principal="User:eve", operation=Operation.WRITE, resource=Resource.TOPIC, name=FLIGHTS)


# --- answers ----------------------------------------------------------------------------------


def test_a_batch_reaches_the_leader_as_it_came() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        sent = batch(b"x")
        (answer,) = await client.produce(sent, timeout_ms=2_500)
        assert (answer.index, answer.error_code, answer.base_offset) == (0, 0, 0)
        assert (answer.log_append_time_ms, answer.log_start_offset) == (-1, 0)
        assert (answer.error_message, answer.record_errors) == (None, [])
        (asked,) = leaders[0].asked
        assert isinstance(asked.batch, memoryview)
        assert (bytes(asked.batch), asked.acks, asked.timeout_ms) == (sent, -1, 2_500)
        assert (asked.ticket, asked.transactional_id) == (None, None)
        assert world.timeouts_ms == [2_500]


@pytest.mark.parametrize(("given", "used"), [(0, 1_000), (-1, 1_000), (10**9, 300_000)])
def test_a_timeout_is_kept_within_limits(given: int, used: int) -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        await client.produce(batch(), timeout_ms=given)
        assert world.timeouts_ms == [used]


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_acks_are_those_of_the_client_who_hears_nothing_if_he_wants_none(acks: int) -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        response = await client.produce_all(batch(), acks=acks)
        assert (response is None) == (acks == 0)
        assert leaders[0].asked[0].acks == acks


def test_a_failed_batch_of_which_nothing_is_to_be_heard_closes_the_connection() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        replies(world, ErrorCode.MESSAGE_TOO_LARGE)
        with pytest.raises(UnansweredError, match=f"acks=0, and the batch for {FLIGHTS}-0 failed"):
            await client.produce_all(batch(), acks=0)


def test_other_acks_are_refused_for_every_partition() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        found = await client.produce(batch(), batch(), acks=2)
        assert [one.error_code for one in found] == [21, 21]
        assert found[0].error_message == "acks=2: give -1, 0 or 1"
        assert found[0].base_offset == -1
        assert not any(leader.asked for leader in leaders)


def test_partitions_are_asked_at_the_same_time_and_answered_in_order() -> None:
    @played(3)
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        for leader in leaders:
            leader.gate = asyncio.Event()
        producing = asyncio.ensure_future(client.produce(*[batch()] * 3))
        await give_turns()
        assert [len(leader.asked) for leader in leaders] == [1, 1, 1]
        for leader in reversed(leaders):
            assert leader.gate is not None
            leader.gate.set()
            await give_turns()
        assert [one.index for one in await producing] == [0, 1, 2]


def test_one_partition_that_fails_does_not_fail_the_others() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        leaders[0].error = ErrorCode.NOT_ENOUGH_REPLICAS
        found = await client.produce(batch(), batch())
        assert [one.error_code for one in found] == [19, 0]


def test_throttling_is_told() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        replies(world, ProduceReply(base_offset=0, throttle_ms=80))
        response = await client.produce_all(batch())
        assert response is not None
        assert response.throttle_time_ms == 80


def test_a_request_of_the_leader_is_one_that_carries_a_view(harness: LeaderHarness) -> None:
    """What the leader gets is the client's bytes, without a copy in between."""

    async def story(world: World, client: KafkaClient) -> None:
        seen: list[ProduceRequest] = []
        answer = world.actors[f"partition:{FLIGHTS}-0@1"]

        async def watched(request: Any) -> Any:
            seen.append(request)
            return await answer(request)

        world.actors[f"partition:{FLIGHTS}-0@1"] = watched
        view = memoryview(batch())
        data = [PartitionProduceData(0, view)]
        topics = [TopicProduceData(FLIGHTS, partition_data=data)]
        await client.ask(ApiKey.PRODUCE, 12, KafkaProduceRequest(None, -1, 1_000, topics))
        assert seen[0].batch is view

    real(harness, story)


# --- what no leader is asked ------------------------------------------------------------------


def test_old_messages_are_refused_as_such() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        for magic in (0, 1):
            for size_bytes in (30, 200):
                old = bytearray(size_bytes)
                old[16] = magic
                (found,) = await client.produce(bytes(old))
                assert found.error_code == 43
                assert found.error_message == f"magic={magic}: give record batches of format 2"
        assert not leaders[0].asked


@pytest.mark.parametrize(("version", "code"), [(3, 76), (6, 76), (7, 0), (12, 0)])
def test_zstd_is_for_versions_that_know_it(version: int, code: int) -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        sent = bytes(encode_records([(b"k", b"v", 1, ())], codec=Codec.ZSTD))
        (found,) = await client.produce(sent, version=version)
        assert found.error_code == code


def test_a_topic_or_partition_that_does_not_exist_is_told_so() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        found = await client.produce(batch(), batch())
        assert [one.error_code for one in found] == [0, 3]
        (found_one,) = await client.produce(batch(), topic="trains")
        assert (found_one.error_code, found_one.base_offset) == (3, -1)
        world.controller_error = ErrorCode.NETWORK_EXCEPTION
        (found_one,) = await client.produce(batch(), topic="trains")
        assert found_one.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_who_may_not_write_hears_that_whether_there_is_the_topic_or_not() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        world.switch_on(WRITES)
        bob = world.client("User:bob")
        for topic in (FLIGHTS, "trains"):
            (found,) = await bob.produce(batch(), topic=topic)
            assert found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not leaders[0].asked
        (found,) = await world.client("User:eve").produce(batch())
        assert found.error_code == 0


# --- leaders that move ------------------------------------------------------------------------


async def move_leader(world: World) -> FakeLeader:
    await asyncio.sleep(0.1)
    world.topics[FLIGHTS] = topic_of(FLIGHTS, 2, topic_id=FLIGHTS_ID)
    return world.lead(f"partition:{FLIGHTS}-0@2")


@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NETWORK_EXCEPTION])
def test_a_batch_with_sequence_numbers_follows_a_leader_that_has_moved(error: ErrorCode) -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        await client.produce(batch(pid=OURS, epoch=0, seq=0))
        moved = await move_leader(world)
        leaders[0].error = error
        (found,) = await client.produce(batch(pid=OURS, epoch=0, seq=1))
        assert found.error_code == 0
        assert len(moved.asked) == 1


@pytest.mark.parametrize(
    ("error", "code"), [(ErrorCode.NOT_LEADER_OR_FOLLOWER, 6), (ErrorCode.NETWORK_EXCEPTION, 7)]
)
def test_a_batch_without_them_is_not_sent_twice_but_the_next_one_finds_the_leader(
    error: ErrorCode, code: int
) -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        await client.produce(batch())
        moved = await move_leader(world)
        leaders[0].error = error
        (found,) = await client.produce(batch())
        assert (found.error_code, moved.asked) == (code, [])
        (found,) = await client.produce(batch())
        assert (found.error_code, len(moved.asked)) == (0, 1)


def test_an_idempotent_batch_whose_leader_is_gone_is_looked_for_by_the_client() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        leaders[0].error = ErrorCode.NETWORK_EXCEPTION
        (found,) = await client.produce(batch(pid=OURS, epoch=0, seq=0))
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert len(leaders[0].asked) == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ErrorCode.PRODUCER_FENCED, 47),
        (ErrorCode.INVALID_PRODUCER_EPOCH, 47),
        (ErrorCode.TRANSACTION_TIMED_OUT, 47),
        (ErrorCode.REPLICA_OFFLINE, 56),
        (ErrorCode.REQUEST_TIMED_OUT, 7),
    ],
)
def test_errors_are_those_that_producers_expect(error: ErrorCode, code: int) -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        leaders[0].error = error
        (found,) = await client.produce(batch(pid=OURS, epoch=0, seq=0))
        assert (found.error_code, found.base_offset) == (code, -1)


# --- what a real leader refuses ---------------------------------------------------------------


def test_keyless_records_in_a_compacted_topic_are_named(harness: LeaderHarness) -> None:
    async def story(world: World, client: KafkaClient) -> None:
        now_ms = harness.clock.now_ms()
        records = [(key, b"v", now_ms, ()) for key in (b"k", None, None)]
        (found,) = await client.produce(bytes(encode_records(records)))
        assert found.error_code == ErrorCode.INVALID_RECORD
        assert [one.batch_index for one in found.record_errors] == [1, 2]
        assert found.error_message is not None
        assert "need keys" in found.error_message

    real(harness, story, cleanup_policy="compact")


def test_the_time_of_the_log_is_told_if_it_has_one(harness: LeaderHarness) -> None:
    async def story(world: World, client: KafkaClient) -> None:
        (found,) = await client.produce(batch())
        assert found.log_append_time_ms == harness.clock.now_ms()

    real(harness, story, message_timestamp_type="LogAppendTime")


def test_what_is_no_single_batch_is_refused_in_words(harness: LeaderHarness) -> None:
    async def story(world: World, client: KafkaClient) -> None:
        for sent, word in ((batch() + batch(), "more than one"), (b"", "no record"), (None, "no")):
            (found,) = await client.produce(sent)
            assert found.error_code == ErrorCode.INVALID_RECORD
            assert found.error_message is not None
            assert word in found.error_message
        (found,) = await client.produce(batch()[:40])
        assert found.error_code == ErrorCode.CORRUPT_MESSAGE
        damaged = bytearray(batch(b"xyz"))
        damaged[-2] ^= 1
        (found,) = await client.produce(bytes(damaged))
        assert found.error_code == ErrorCode.CORRUPT_MESSAGE

    real(harness, story)


def test_a_batch_that_is_too_large_is_refused(harness: LeaderHarness) -> None:
    async def story(world: World, client: KafkaClient) -> None:
        (found,) = await client.produce(batch(b"x" * 2_000))
        assert found.error_code == ErrorCode.MESSAGE_TOO_LARGE

    real(harness, story, max_message_bytes="1024")
