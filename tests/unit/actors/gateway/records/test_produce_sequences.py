"""Batches of Kafka's idempotent producers: their tickets, sequences and epochs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka_records import (
    FLIGHTS,
    KEY,
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
from virtual_time import give_turns

from oncelog.actors.gateway.records import producer_ids
from oncelog.actors.gateway.records.producer_ids import FIRST_KAFKA_ID
from oncelog.actors.protocol.messages.cluster import ClusterKeysRequest, LearnKeysRequest
from oncelog.actors.protocol.messages.partition import (
    DescribeProducersReply,
    DescribeProducersRequest,
    ProducerDescription,
    ProduceReply,
)
from oncelog.actors.protocol.partition.producers import PRODUCER_ID_EXPIRATION_MS
from oncelog.actors.protocol.tickets import ClusterKeys, TicketVerdict, check_plain_ticket
from oncelog.storage.errors import ErrorCode

# --- tickets of idempotent producers ----------------------------------------------------------


def test_an_idempotent_batch_gets_the_plain_ticket_of_its_id_the_same_each_time() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        await client.produce(*[batch(pid=OURS, epoch=0, seq=0)] * 2)
        await client.produce(batch(pid=OURS, epoch=3, seq=0))
        tickets = {one.ticket for leader in leaders for one in leader.asked}
        (ticket,) = tickets
        verdict = check_plain_ticket(
            ticket, keys=world.keys, producer_id=OURS, now_ms=world.clock.now_ms()
        )
        assert verdict is TicketVerdict.VALID
        assert sum(isinstance(one, ClusterKeysRequest) for one in world.asked_controller) == 1


def test_the_id_of_anybody_else_gets_no_ticket() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        leaders[0].error = ErrorCode.UNKNOWN_PRODUCER_ID
        (found,) = await client.produce(batch(pid=FIRST_KAFKA_ID - 1, epoch=0, seq=0))
        assert found.error_code == 59
        # Without an offset a client only sends it again.
        assert found.log_start_offset == 0
        assert [one.ticket for one in leaders[0].asked] == [None]


def test_while_nobody_tells_the_keys_the_client_tries_again() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        await client.produce(batch())
        world.controller_error = ErrorCode.NETWORK_EXCEPTION
        sent = batch(pid=OURS, epoch=0, seq=0)
        (found,) = await client.produce(sent)
        assert found.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert found.error_message is not None
        world.controller_error = ErrorCode.NONE
        await asyncio.sleep(producer_ids.KEYS_AGAIN_MS / 1_000)
        (found,) = await client.produce(sent)
        assert found.error_code == 0


def test_a_ticket_under_a_key_that_is_no_longer_taken_is_made_anew_at_once() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        sent = batch(pid=OURS, epoch=0, seq=0)
        await client.produce(sent)
        await asyncio.sleep(producer_ids.KEYS_AGAIN_MS / 1_000)
        world.keys = ClusterKeys(version=2, current=b"new" * 10)
        asked = replies(world, ErrorCode.UNKNOWN_PRODUCER_ID, ProduceReply(base_offset=1))
        (found,) = await client.produce(sent)
        assert (found.error_code, found.base_offset) == (0, 1)
        assert asked[0].ticket != asked[1].ticket
        # If there is no newer key, it is not sent again.
        asked = replies(world, ErrorCode.UNKNOWN_PRODUCER_ID)
        (found,) = await client.produce(sent)
        assert (found.error_code, len(asked)) == (59, 1)


def test_keys_are_asked_for_once_a_second_at_most() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        leaders[0].error = ErrorCode.UNKNOWN_PRODUCER_ID
        for _ in range(20):
            await client.produce(batch(pid=OURS, epoch=0, seq=0))
        assert sum(isinstance(one, ClusterKeysRequest) for one in world.asked_controller) == 1


def test_beyond_the_tickets_remembered_all_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_ids, "TICKETS_MAX", 2)

    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        for number in range(5):
            await client.produce(batch(pid=FIRST_KAFKA_ID + number, epoch=0, seq=0))
        await client.produce(batch(pid=FIRST_KAFKA_ID, epoch=0, seq=1))
        tickets = [one.ticket for one in leaders[0].asked]
        assert tickets[0] == tickets[-1]
        assert len(set(tickets)) == 5
        assert len(world.handlers._produces._plain._tickets) <= 2


# --- idempotent producers at a real leader ----------------------------------------------------


def test_a_retry_is_answered_with_the_offset_of_the_original(harness: LeaderHarness) -> None:
    async def story(world: World, client: KafkaClient) -> None:
        for seq in range(3):
            (found,) = await client.produce(batch(pid=OURS, epoch=0, seq=seq))
            assert (found.error_code, found.base_offset) == (0, seq)
        (found,) = await client.produce(batch(pid=OURS, epoch=0, seq=1))
        assert (found.error_code, found.base_offset, found.log_start_offset) == (0, 1, 0)

    real(harness, story)


def test_a_producer_that_bumps_its_epoch_begins_at_sequence_0(harness: LeaderHarness) -> None:
    async def story(world: World, client: KafkaClient) -> None:
        for epoch, seq, code in ((0, 0, 0), (0, 1, 0), (1, 1, 45), (1, 0, 0), (0, 2, 47)):
            (found,) = await client.produce(batch(pid=OURS, epoch=epoch, seq=seq))
            assert found.error_code == code, (epoch, seq)

    harness.cluster = type(harness.cluster)(out_of_order_wait_ms=1)
    real(harness, story)


def test_a_producer_that_was_forgotten_hears_so_and_goes_on_in_its_next_epoch(
    harness: LeaderHarness,
) -> None:
    """librdkafka ends if it hears of a gap in its sequence that it did not make."""

    async def story(world: World, client: KafkaClient) -> None:
        await client.produce(batch(pid=OURS, epoch=0, seq=0))
        machine = harness.replica.machine
        machine.expire(harness.clock.now_ms())
        machine.expire(harness.clock.now_ms() + PRODUCER_ID_EXPIRATION_MS)
        both = [client.produce(batch(pid=OURS, epoch=0, seq=seq)) for seq in (1, 2)]
        (first,), (second,) = await asyncio.gather(*both)
        assert (first.error_code, first.log_start_offset) == (59, 0)
        # The client knows that this one only comes too early.
        assert second.error_code in (45, 59)
        (found,) = await client.produce(batch(pid=OURS, epoch=1, seq=0))
        assert (found.error_code, found.base_offset) == (0, 1)

    harness.cluster = type(harness.cluster)(out_of_order_wait_ms=50)
    real(harness, story)


def test_a_gap_in_the_sequences_of_a_producer_that_is_known_is_told(harness: LeaderHarness) -> None:
    async def story(world: World, client: KafkaClient) -> None:
        await client.produce(batch(pid=OURS, epoch=0, seq=0))
        (found,) = await client.produce(batch(pid=OURS, epoch=0, seq=5))
        assert found.error_code == 45

    harness.cluster = type(harness.cluster)(out_of_order_wait_ms=1)
    real(harness, story)


def test_a_batch_that_may_just_have_overtaken_another_is_out_of_order() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        await client.produce(batch(pid=OURS, epoch=0, seq=0))
        gate = asyncio.Event()
        described: list[Any] = []

        async def answer(request: Any) -> Any:
            if isinstance(request, DescribeProducersRequest):
                described.append(request)
                return DescribeProducersReply()
            if request.batch[56] == 1:
                await gate.wait()
                return ProduceReply(base_offset=1)
            return request.failed(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

        world.actors[f"partition:{FLIGHTS}-0@1"] = answer
        first = asyncio.ensure_future(client.produce(batch(pid=OURS, epoch=0, seq=1)))
        await give_turns()
        (found,) = await client.produce(batch(pid=OURS, epoch=0, seq=2))
        assert (found.error_code, described) == (45, [])
        gate.set()
        await first
        (found,) = await client.produce(batch(pid=OURS, epoch=0, seq=2))
        assert (found.error_code, len(described)) == (59, 1)
        assert described[0].producer_ids == (OURS,)


def test_an_unknown_answer_about_a_producer_explains_nothing() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        known = ProducerDescription(
            producer_id=OURS,
            producer_epoch=0,
            last_sequence=3,
            last_timestamp_ms=0,
            coordinator_epoch=-1,
        )
        for reply in (
            DescribeProducersReply(producers=(known,)),
            DescribeProducersReply(error=ErrorCode.NETWORK_EXCEPTION),
        ):

            async def answer(request: Any, reply: Any = reply) -> Any:
                if isinstance(request, DescribeProducersRequest):
                    return reply
                return request.failed(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

            world.actors[f"partition:{FLIGHTS}-0@1"] = answer
            (found,) = await client.produce(batch(pid=OURS, epoch=0, seq=9))
            assert found.error_code == 45


def test_after_a_rotation_of_the_key_batches_are_taken_and_tickets_renewed(
    harness: LeaderHarness,
) -> None:
    async def story(world: World, client: KafkaClient) -> None:
        await client.produce(batch(pid=OURS, epoch=0, seq=0))
        newer = ClusterKeys(current=KEY).rotated(b"new" * 10, harness.clock.now_ms())
        world.keys = newer
        harness.replica.machine.learn_keys(LearnKeysRequest(keys=newer).keys)
        plain = world.handlers._produces._plain
        before = plain.find(OURS)
        plain._asked_ms = -producer_ids.KEYS_AGAIN_MS
        (found,) = await client.produce(batch(pid=OURS, epoch=0, seq=1))
        assert found.error_code == 0
        await give_turns()
        assert plain.find(OURS) != before
        (found,) = await client.produce(batch(pid=OURS, epoch=0, seq=2))
        assert found.error_code == 0

    real(harness, story)
