"""Batches of transactions of Kafka's producers, with made-up enrolments."""

from __future__ import annotations

from typing import Any

import pytest
from kafka_records import (
    FLIGHTS,
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

from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.produce import PartitionProduceData, TopicProduceData
from oncelog.actors.gateway.messages.produce import ProduceRequest as KafkaProduceRequest
from oncelog.actors.gateway.transactions.enrolments import Enrolment, refusal_text
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

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
