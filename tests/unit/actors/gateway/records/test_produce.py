"""Produces of Kafka's producers: order, tickets and errors, at made-up and at real leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from kafka_records import FLIGHTS, FLIGHTS_ID, KEY, FakeLeader, KafkaClient, World, batch
from leader_harness import LeaderHarness
from topics import topic_of
from virtual_time import give_turns, run_virtually

from oncelog.actors.gateway.errors import UnansweredError
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.produce import PartitionProduceData, TopicProduceData
from oncelog.actors.gateway.messages.produce import ProduceRequest as KafkaProduceRequest
from oncelog.actors.gateway.records import produce as gateway_produce
from oncelog.actors.gateway.records import producer_ids
from oncelog.actors.gateway.records.producer_ids import FIRST_KAFKA_ID
from oncelog.actors.gateway.transactions.enrolments import Enrolment, refusal_text
from oncelog.actors.protocol.messages.access import Acl, Operation, Resource
from oncelog.actors.protocol.messages.cluster import ClusterKeysRequest, LearnKeysRequest
from oncelog.actors.protocol.messages.partition import (
    DescribeProducersReply,
    DescribeProducersRequest,
    ProducerDescription,
    ProduceReply,
    ProduceRequest,
)
from oncelog.actors.protocol.partition.producers import PRODUCER_ID_EXPIRATION_MS
from oncelog.actors.protocol.tickets import ClusterKeys, TicketVerdict, check_plain_ticket
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.compression import Codec

OURS = FIRST_KAFKA_ID + 7
WRITES = Acl(principal="User:eve", operation=Operation.WRITE, resource=Resource.TOPIC, name=FLIGHTS)
Story = Callable[..., Coroutine[Any, Any, None]]


def played(partitions: int = 1, **options: Any) -> Callable[[Story], None]:
    """Run a story with a world, its topic's leaders and a client."""

    def play(story: Story) -> None:
        world = World()
        world.options = options
        world.play(lambda: story(world, world.add(partitions=partitions), world.client()))

    return play


def real(harness: LeaderHarness, story: Callable[..., Awaitable[None]], **settings: str) -> None:
    """Run a story with a real leader of partition 0."""
    harness.settings = settings

    async def body() -> None:
        await harness.start()
        world = World(topic_of(FLIGHTS, 1, topic_id=harness.topic_id))

        async def answer(request: Any) -> Any:
            return await getattr(harness.leader, request.method)(request)

        world.actors[f"partition:{FLIGHTS}-0@1"] = answer
        try:
            await story(world, world.client())
        finally:
            await world.handlers.close()
            await harness.replica.stop()

    asyncio.run(body())


def replies(world: World, *given: ProduceReply | ErrorCode, number: int = 0) -> list[Any]:
    """Have the leader answer produces so, one after the other, the last for ever; what it got."""
    asked: list[Any] = []
    left = list(given)

    async def answer(request: Any) -> Any:
        asked.append(request)
        found = left.pop(0) if len(left) > 1 else left[0]
        return request.failed(found) if isinstance(found, ErrorCode) else found

    world.actors[f"partition:{FLIGHTS}-{number}@1"] = answer
    return asked


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


# --- order ------------------------------------------------------------------------------------


def test_the_first_batches_of_a_connection_go_one_at_a_time_and_then_all_at_once() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        (leader,) = leaders
        leader.gate = asyncio.Event()
        sent = [batch(b"%d" % number) for number in range(6)]
        producing = [asyncio.ensure_future(client.produce(one)) for one in sent[:4]]
        await give_turns()
        assert leader.batches == sent[:1]
        opened, leader.gate = leader.gate, asyncio.Event()
        opened.set()
        await give_turns()
        # The first is answered, so nobody waits for an answer any more.
        assert leader.batches == sent[:4]
        producing += [asyncio.ensure_future(client.produce(one)) for one in sent[4:]]
        await give_turns()
        assert leader.batches == sent
        leader.gate.set()
        await asyncio.gather(*producing)


def test_a_batch_does_not_overtake_those_that_are_just_let_go() -> None:
    """1. A first batch is answered while two wait. 2. In the same turn another one comes."""

    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        (leader,) = leaders
        leader.gate = asyncio.Event()
        sent = [batch(b"%d" % number) for number in range(30)]
        producing = [asyncio.ensure_future(client.produce(one)) for one in sent[:10]]
        await give_turns()
        leader.gate.set()
        for one in sent[10:]:
            producing.append(asyncio.ensure_future(client.produce(one)))
            await asyncio.sleep(0)
        await asyncio.gather(*producing)
        assert leader.batches == sent


@pytest.mark.parametrize("error", [ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT])
def test_after_a_call_that_was_lost_batches_go_one_at_a_time_again(error: ErrorCode) -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        (leader,) = leaders
        await client.produce(batch())
        leader.error = error
        await client.produce(batch())
        leader.error = ErrorCode.NONE
        leader.gate = asyncio.Event()
        before = len(leader.asked)
        producing = [asyncio.ensure_future(client.produce(batch())) for _ in range(3)]
        await give_turns()
        assert len(leader.asked) == before + 1
        leader.gate.set()
        await asyncio.gather(*producing)


def test_while_a_leader_does_not_answer_each_batch_waits_for_the_one_before_it() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        (leader,) = leaders
        leader.error = ErrorCode.NETWORK_EXCEPTION
        leader.gate = asyncio.Event()
        producing = [asyncio.ensure_future(client.produce(batch())) for _ in range(3)]
        for count in (1, 2, 3):
            await give_turns(20)
            assert len(leader.asked) == count
            opened, leader.gate = leader.gate, asyncio.Event()
            opened.set()
        assert [found.error_code for (found,) in await asyncio.gather(*producing)] == [7] * 3


def test_a_batch_that_is_given_up_holds_up_nobody() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        (leader,) = leaders
        leader.gate = asyncio.Event()
        producing = [asyncio.ensure_future(client.produce(batch(b"%d" % n))) for n in range(4)]
        await give_turns()
        producing[2].cancel()
        await give_turns()
        assert len(leader.asked) == 1
        producing[0].cancel()
        await give_turns()
        assert len(leader.asked) == 2
        producing[1].cancel()
        leader.gate.set()
        (found,) = await producing[3]
        assert found.error_code == 0
        (line,) = client.client.remembered["produce"].values()
        assert not line.sent
        assert not line.waiting


def test_one_that_is_given_up_in_its_turn_lets_the_next_one_go() -> None:
    """1. A first batch fails, so the next one may go. 2. That is given up before it does."""

    async def story() -> None:
        line = gateway_produce._Line()
        assert await line.enter(line.take())
        second, third = (asyncio.ensure_future(line.enter(line.take())) for _ in range(2))
        await give_turns()
        line.leave(is_first=True, is_answered=False)
        second.cancel()
        assert await third
        assert not line.waiting

    run_virtually(story())


def request_for(*named: tuple[int, bytes]) -> KafkaProduceRequest:
    """A request with a batch for each partition that is named."""
    data = [PartitionProduceData(number, memoryview(one)) for number, one in named]
    return KafkaProduceRequest(None, -1, 1_000, [TopicProduceData(FLIGHTS, partition_data=data)])


def test_a_batch_does_not_overtake_one_of_a_request_for_more_partitions() -> None:
    @played(2)
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        first, larger, later = batch(b"first"), batch(b"larger"), batch(b"later")
        await client.produce(first)
        named = (1, batch()), (0, larger)
        producing = [
            asyncio.ensure_future(client.ask(ApiKey.PRODUCE, 12, one))
            for one in (request_for(*named), request_for((0, later)))
        ]
        await asyncio.gather(*producing)
        assert leaders[0].batches == [first, larger, later]


def test_a_batch_does_not_overtake_one_whose_leader_is_being_looked_for() -> None:
    """1. A request has a topic nobody knows. 2. A later one has only the topic that is known."""

    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        first, earlier, later = batch(b"first"), batch(b"earlier"), batch(b"later")
        await client.produce(first)
        asked = request_for((0, earlier))
        unknown = PartitionProduceData(0, memoryview(batch()))
        asked.topic_data.append(TopicProduceData("unknown", partition_data=[unknown]))
        producing = [
            asyncio.ensure_future(client.ask(ApiKey.PRODUCE, 12, one))
            for one in (asked, request_for((0, later)))
        ]
        await asyncio.gather(*producing)
        assert leaders[0].batches == [first, earlier, later]


def test_a_batch_that_is_refused_here_holds_up_nobody() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        bad, good = b"\0" * 16 + b"\1" + b"\0" * 60, batch()
        response = await client.ask(ApiKey.PRODUCE, 12, request_for((0, bad), (0, good)))
        found = [one.error_code for one in response.responses[0].partition_responses]
        assert found == [gateway_produce.UNSUPPORTED_FOR_MESSAGE_FORMAT, 0]
        (line,) = client.client.remembered["produce"].values()
        assert not line.waiting


def test_connections_do_not_wait_for_each_other() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        leaders[0].gate = asyncio.Event()
        producing = [
            asyncio.ensure_future(one.produce(batch())) for one in (client, world.client())
        ]
        await give_turns()
        assert len(leaders[0].asked) == 2
        leaders[0].gate.set()
        await asyncio.gather(*producing)


def test_beyond_the_partitions_remembered_idle_ones_are_tried_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_produce, "LINES_MAX", 2)

    @played(4)
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        leaders[0].gate = asyncio.Event()
        producing = asyncio.ensure_future(client.produce(batch()))
        await give_turns()
        for number in (1, 2, 3):
            await client.produce(batch(), first=number)
            lines = client.client.remembered["produce"]
            # The one that is on its way is not forgotten.
            assert lines.keys() == {TopicPartition(FLIGHTS, one) for one in (0, number)}
        leaders[0].gate.set()
        await producing


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


# --- transactions -----------------------------------------------------------------------------

TRANSACTIONAL = {"pid": 5, "epoch": 0, "seq": 0, "is_transactional": True}


class FakeEnrolments:
    """Gives the tickets that it is told to, one after the other."""

    def __init__(self, *given: bytes | ErrorCode) -> None:
        self.given = list(given)
        self.asked: list[Any] = []
        self.forgotten: list[Any] = []

    async def ticket(self, call: Any, *question: Any) -> tuple[ErrorCode, bytes]:
        self.asked.append(question)
        found = self.given.pop(0)
        return (found, b"") if isinstance(found, ErrorCode) else (ErrorCode.NONE, found)

    def forget(self, *question: Any) -> None:
        self.forgotten.append(question)


class FakeTold:
    """Answers about version 1 clients, one after the other."""

    def __init__(self, *given: Enrolment) -> None:
        self.given = list(given)
        self.asked: list[Any] = []
        self.forgotten: list[Any] = []

    async def told(self, call: Any, *question: Any) -> Enrolment:
        self.asked.append(question)
        return self.given.pop(0)

    def forget_told(self, transactional_id: str, refused: Enrolment) -> None:
        self.forgotten.append((transactional_id, refused))


def test_a_transactional_batch_carries_its_id_and_the_ticket_of_its_enrolment() -> None:
    enrolments = FakeEnrolments(b"ticket")

    @played(enrolments=enrolments)
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        (found,) = await client.produce(batch(**TRANSACTIONAL), transactional_id="t")
        assert found.error_code == 0
        (asked,) = leaders[0].asked
        assert (asked.ticket, asked.transactional_id) == (b"ticket", "t")
        assert enrolments.asked == [("t", 5, 0, TopicPartition(FLIGHTS, 0))]


def test_a_plain_batch_of_a_transactional_request_has_no_part_in_it() -> None:
    @played(enrolments=FakeEnrolments())
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        await client.produce(batch(pid=OURS, epoch=0, seq=0), transactional_id="t")
        (asked,) = leaders[0].asked
        assert asked.transactional_id is None
        assert asked.ticket


def test_a_refusal_of_the_enrolment_is_the_batchs() -> None:
    refused = ErrorCode.CONCURRENT_TRANSACTIONS

    @played(enrolments=FakeEnrolments(refused, ErrorCode.PRODUCER_FENCED))
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        (found,) = await client.produce(batch(**TRANSACTIONAL), transactional_id="t")
        assert found.error_code == refused
        assert found.error_message == (refusal_text(refused, "t") or None)
        (found,) = await client.produce(batch(**TRANSACTIONAL), transactional_id="t")
        assert found.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert not leaders[0].asked


def test_a_ticket_that_the_leader_refuses_is_asked_for_again_once() -> None:
    enrolments = FakeEnrolments(b"old", b"new", b"newer")

    @played(enrolments=enrolments)
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        asked = replies(world, ErrorCode.INVALID_TXN_STATE)
        (found,) = await client.produce(batch(**TRANSACTIONAL), transactional_id="t")
        assert found.error_code == ErrorCode.INVALID_TXN_STATE
        assert [one.ticket for one in asked] == [b"old", b"new"]
        assert enrolments.forgotten == [("t", 5, 0, TopicPartition(FLIGHTS, 0), b"old")]


NOW = Enrolment(ErrorCode.NONE, b"now", 5, 7)
NEXT = Enrolment(ErrorCode.NONE, b"next", 6, 0)


def written(enrolment: Enrolment) -> bytes:
    """What a batch is once it has the pair of its transaction."""
    pair = {"pid": enrolment.producer_id, "epoch": enrolment.producer_epoch}
    return batch(**{**TRANSACTIONAL, **pair})


def test_a_batch_of_version_1_is_written_under_the_pair_of_its_transaction() -> None:
    enrolments = FakeTold(NOW, Enrolment(ErrorCode.NONE, b"first", 5, 0))

    @played(enrolments=enrolments)
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        for enrolment in list(enrolments.given):
            sent = batch(**TRANSACTIONAL)
            (found,) = await client.produce(sent, version=11, transactional_id="t")
            assert found.error_code == 0
            asked = leaders[0].asked.pop()
            assert (asked.ticket, asked.transactional_id) == (enrolment.ticket, "t")
            assert bytes(asked.batch) == written(enrolment)
        assert enrolments.asked == [("t", 5, 0, TopicPartition(FLIGHTS, 0))] * 2


@pytest.mark.parametrize("is_writable", [True, False])
def test_a_pair_is_written_where_the_batch_came_unless_nobody_may_write_there(
    is_writable: bool,
) -> None:
    @played(enrolments=FakeTold(NOW))
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        sent = batch(**TRANSACTIONAL)
        buffer = bytearray(sent) if is_writable else sent
        data = [PartitionProduceData(0, memoryview(buffer))]
        topics = [TopicProduceData(FLIGHTS, partition_data=data)]
        asked = KafkaProduceRequest("t", -1, 1_000, topics)
        await client.ask(ApiKey.PRODUCE, 11, asked)
        assert leaders[0].batches == [written(NOW)]
        assert bytes(buffer) == (written(NOW) if is_writable else sent)


@pytest.mark.parametrize("error", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE])
def test_a_pair_that_the_leader_refuses_is_asked_for_again_once(error: ErrorCode) -> None:
    enrolments = FakeTold(NOW, NEXT, NOW)

    @played(enrolments=enrolments)
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        asked = replies(world, error)
        data = [PartitionProduceData(0, memoryview(bytearray(batch(**TRANSACTIONAL))))]
        topics = [TopicProduceData(FLIGHTS, partition_data=data)]
        request = KafkaProduceRequest("t", -1, 1_000, topics)
        response = await client.ask(ApiKey.PRODUCE, 11, request)
        ((found,),) = [one.partition_responses for one in response.responses]
        assert found.error_code == error
        # The first one, which may still be on its way, has not changed.
        assert [bytes(one.batch) for one in asked] == [written(NOW), written(NEXT)]
        assert [one.ticket for one in asked] == [b"now", b"next"]
        assert enrolments.forgotten == [("t", NOW)]


def test_a_pair_is_not_sent_twice_if_the_coordinator_says_the_same() -> None:
    # Leader and coordinator disagree: the client repeats its batch until they do not.
    @played(enrolments=FakeTold(NOW, NOW))
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        asked = replies(world, ErrorCode.INVALID_PRODUCER_EPOCH)
        sent = batch(**TRANSACTIONAL)
        (found,) = await client.produce(sent, version=11, transactional_id="t")
        assert (found.error_code, len(asked)) == (ErrorCode.NOT_ENOUGH_REPLICAS, 1)


def test_a_refusal_of_the_coordinator_is_that_of_a_batch_of_version_1() -> None:
    refused = ErrorCode.INVALID_TXN_STATE

    @played(enrolments=FakeTold(Enrolment(refused), NOW, Enrolment(refused)))
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        sent = batch(**TRANSACTIONAL)
        (found,) = await client.produce(sent, version=11, transactional_id="t")
        assert (found.error_code, found.error_message) == (refused, refusal_text(refused, "t"))
        assert not leaders[0].asked
        asked = replies(world, ErrorCode.INVALID_PRODUCER_EPOCH)
        (found,) = await client.produce(sent, version=11, transactional_id="t")
        assert (found.error_code, len(asked)) == (refused, 1)


@pytest.mark.parametrize("place", [21 * 8, 43 * 8 + 1, 53 * 8, 61 * 8 + 3])
def test_a_batch_of_version_1_that_came_damaged_is_refused_by_its_leader(
    harness: LeaderHarness, place: int
) -> None:
    async def story(world: World, client: KafkaClient) -> None:
        world.options = {"enrolments": FakeTold(NOW)}
        sent = bytearray(batch(**TRANSACTIONAL))
        sent[place // 8] ^= 1 << place % 8
        (found,) = await client.produce(bytes(sent), version=11, transactional_id="t")
        assert found.error_code == ErrorCode.CORRUPT_MESSAGE

    real(harness, story)


def test_without_enrolments_there_are_no_transactions() -> None:
    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        (found,) = await client.produce(batch(**TRANSACTIONAL), transactional_id="t")
        assert found.error_code == 35
        assert not leaders[0].asked


def test_a_transactional_batch_without_a_transactional_id_is_refused(
    harness: LeaderHarness,
) -> None:
    async def story(world: World, client: KafkaClient) -> None:
        (found,) = await client.produce(batch(**{**TRANSACTIONAL, "pid": OURS}))
        assert found.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    real(harness, story)


def test_an_order_is_kept_within_a_request_too() -> None:
    """A request may name a partition twice; both are answered."""

    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        asked = request_for((0, batch(b"a")), (0, batch(b"b")))
        response = await client.ask(ApiKey.PRODUCE, 12, asked)
        assert [one.base_offset for one in response.responses[0].partition_responses] == [0, 1]
        assert leaders[0].batches == [batch(b"a"), batch(b"b")]


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
