"""The order of batches that Kafka's producers have under way on one connection."""

from __future__ import annotations

import asyncio

import pytest
from kafka_records import FLIGHTS, FakeLeader, KafkaClient, World, batch, played
from virtual_time import give_turns, run_virtually

from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.produce import PartitionProduceData, TopicProduceData
from oncelog.actors.gateway.messages.produce import ProduceRequest as KafkaProduceRequest
from oncelog.actors.gateway.records import produce as gateway_produce
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition


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


def test_an_order_is_kept_within_a_request_too() -> None:
    """A request may name a partition twice; both are answered."""

    @played()
    async def story(world: World, leaders: list[FakeLeader], client: KafkaClient) -> None:
        asked = request_for((0, batch(b"a")), (0, batch(b"b")))
        response = await client.ask(ApiKey.PRODUCE, 12, asked)
        assert [one.base_offset for one in response.responses[0].partition_responses] == [0, 1]
        assert leaders[0].batches == [batch(b"a"), batch(b"b")]
