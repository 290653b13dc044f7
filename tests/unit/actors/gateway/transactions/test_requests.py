"""Ids and enrolments of Kafka's producers: real coordinators and leaders, and several gateways."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka_new_client import FENCED, NOT_ALLOWED, NewClient, new_client
from kafka_transactions import DELAYS, FLIGHTS, GROUP, NAME, TIMEOUT_MS, Gateway, Kafka, Play

from oncelog.actors.gateway.calls import Call, Client
from oncelog.actors.gateway.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from oncelog.actors.gateway.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.init_producer_id import InitProducerIdRequest
from oncelog.actors.gateway.messages.produce import PartitionProduceData, TopicProduceData
from oncelog.actors.gateway.messages.produce import ProduceRequest as KafkasProduceRequest
from oncelog.actors.gateway.records.handlers import RecordHandlers
from oncelog.actors.gateway.transactions.requests import is_of_version_2
from oncelog.actors.protocol.access import Principal
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC
from oncelog.storage.records.codec import encode_records

UNSUPPORTED_VERSION = 35


# --- producer ids -----------------------------------------------------------------------------


def test_each_init_takes_the_next_epoch_and_fences_the_producer_before(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        old = await new_client(kafka, gateway)
        new = await new_client(kafka, gateway)
        assert (new.pid, new.epoch) == (old.pid, old.epoch + 1) == (1_000, 1)
        assert await old.send(gateway) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await old.commit_offsets(gateway, 9) == [FENCED]
        assert await old.end(gateway) == FENCED
        assert await new.send(gateway) is ErrorCode.NONE

    play(scenario)


def test_init_with_an_epoch_recovers_in_place_and_may_be_repeated(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        fields = {"producer_id": producer.pid, "producer_epoch": 0}
        for _ in range(2):
            await producer.init(gateway, **fields)
            assert producer.epoch == 1
        await new_client(kafka, gateway)
        assert (await producer.init(gateway, **fields)).error_code == FENCED

    play(scenario)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transaction_timeout_ms": 10**8}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"producer_id": 7}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_init_is_refused_what_kafka_refuses(
    play: Play, fields: dict[str, Any], code: ErrorCode
) -> None:
    async def scenario(kafka: Kafka) -> None:
        response = await NewClient(kafka).init(kafka.gateway(), **fields)
        assert (response.error_code, response.producer_id) == (code, -1)

    play(scenario)


def test_init_aborts_what_a_producer_before_has_left_open(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        old = await new_client(kafka, gateway)
        await old.send(gateway)
        # The abort takes a moment, for which the gateway waits.
        new = await new_client(kafka, gateway)
        assert new.epoch == 2
        assert await new.end(gateway, committed=False) == 0
        assert await kafka.committed(FLIGHTS) == 0

    play(scenario)


# --- which version ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "name", "code"),
    [
        (2, "librdkafka 1.6.0", NOT_ALLOWED),
        (0, "", NOT_ALLOWED),
        (1, "kafka-python 2.2.0", UNSUPPORTED_VERSION),
        (2, "apache-kafka-java 2.4.1", UNSUPPORTED_VERSION),
    ],
)
def test_a_client_that_cannot_take_another_epoch_fails_at_its_first_request(
    play: Play, caplog: pytest.LogCaptureFixture, version: int, name: str, code: int
) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        client = Client(principal=Principal("User:ANONYMOUS"), host="h", name=name)
        response = await NewClient(kafka).init(gateway, gateway.call(version, client))
        assert (response.error_code, response.producer_id) == (code, -1)
        assert not kafka.world.calls_of("init_producer_id")
        (line,) = [record.getMessage() for record in caplog.records if "refused" in record.message]
        assert NAME in line
        assert (name or "which names no software") in line
        assert f"InitProducerId {version}" in line

    play(scenario)


@pytest.mark.parametrize(
    ("version", "name", "is_version_1"),
    [
        (3, "librdkafka 2.12.0", True),
        (4, "kafka-python 3.0.0", True),
        (5, "apache-kafka-java 3.9.1", True),
        (5, "apache-kafka-java 4.0.0", False),
        (5, "another", False),
    ],
)
def test_a_clients_first_request_says_how_it_will_use_the_id(
    play: Play, version: int, name: str, is_version_1: bool
) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        client = Client(principal=Principal("User:ANONYMOUS"), host="h", name=name)
        await NewClient(kafka).init(gateway, gateway.call(version, client))
        ((_, _, asked),) = kafka.world.calls_of("init_producer_id")
        assert asked.as_version_1 is is_version_1

    play(scenario)


@pytest.mark.parametrize("name", ["franz-go 1.20.0", "", "apache-kafka-java 4.0.0"])
def test_a_client_that_may_be_of_version_2_gets_an_id(play: Play, name: str) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        client = Client(principal=Principal("User:ANONYMOUS"), host="h", name=name)
        assert (await NewClient(kafka).init(gateway, gateway.call(5, client))).error_code == 0

    play(scenario)


def test_a_connection_has_shown_version_2_by_what_only_that_sends(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        for request in (ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT):
            client = Client(principal=Principal("User:ANONYMOUS"), host="h", name="another 1.0")
            assert not is_of_version_2(client)
            if request == ApiKey.END_TXN:
                await producer.end(gateway, committed=False, call=gateway.call(5, client))
            else:
                await producer.commit_offsets(gateway, 9, call=gateway.call(5, client))
            assert is_of_version_2(client)

    play(scenario)


# --- enrolments -------------------------------------------------------------------------------


def _enrolling(producer: NewClient, *topics: str) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=NAME,
        v3_and_below_producer_id=producer.pid,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in topics],
    )


async def _add_partitions(gateway: Gateway, call: Call, request: Any) -> dict[str, int]:
    response = await gateway.handlers[ApiKey.ADD_PARTITIONS_TO_TXN](call, request)
    return {
        topic.name: one.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    }


def test_who_has_shown_version_2_may_enrol_by_a_request_of_its_own(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        request = _enrolling(producer, "flights", "delays")
        assert await _add_partitions(gateway, gateway.call(3), request) == {
            "flights": 0,
            "delays": 0,
        }
        assert kafka.enrolled() == {FLIGHTS, DELAYS}
        offsets = AddOffsetsToTxnRequest(NAME, producer.pid, producer.epoch, GROUP)
        handle = gateway.handlers[ApiKey.ADD_OFFSETS_TO_TXN]
        assert (await handle(gateway.call(4), offsets)).error_code == 0
        assert {tp.topic for tp in kafka.enrolled()} == {
            "flights",
            "delays",
            CONSUMER_OFFSETS_TOPIC,
        }
        # The tickets are kept: the first batch asks nobody.
        asked = len(kafka.world.calls_of("add_partitions_to_txn"))
        assert await producer.send(gateway) is ErrorCode.NONE
        assert len(kafka.world.calls_of("add_partitions_to_txn")) == asked

    play(scenario)


def test_one_bad_partition_has_none_enrolled(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        call = gateway.call(3)
        assert await _add_partitions(gateway, call, _enrolling(producer, "flights", "none")) == {
            "flights": int(ErrorCode.OPERATION_NOT_ATTEMPTED),
            "none": int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        }
        assert not kafka.enrolled()
        fenced = _enrolling(producer.at(7), "flights", "delays")
        assert await _add_partitions(gateway, call, fenced) == {"flights": FENCED, "delays": FENCED}

    play(scenario)


def test_enrolment_for_several_transactions_is_for_brokers(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        handle = gateway.handlers[ApiKey.ADD_PARTITIONS_TO_TXN]
        response = await handle(gateway.call(4), AddPartitionsToTxnRequest())
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    play(scenario)


def test_a_batch_enrols_its_partition_and_an_old_ticket_is_replaced(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        records = RecordHandlers(
            gateway.cluster,
            enrolments=gateway.enrolments,
            init_transactional=gateway.transactions.init_producer_id,
        )
        request = InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=TIMEOUT_MS)
        initialised = await records.handlers[ApiKey.INIT_PRODUCER_ID](gateway.call(5), request)
        assert initialised.error_code == 0
        producer = NewClient(kafka)
        producer.take(initialised)

        async def produce(sequence: int, version: int = 12) -> Any:
            batch = encode_records(
                [(None, b"value", kafka.world.now_ms(), ())],
                producer_id=producer.pid,
                producer_epoch=producer.epoch,
                base_sequence=sequence,
                is_transactional=True,
            )
            data = PartitionProduceData(index=0, records=memoryview(bytes(batch)))
            topic = TopicProduceData(name="flights", partition_data=[data])
            asked = KafkasProduceRequest(
                transactional_id=NAME, acks=-1, timeout_ms=5_000, topic_data=[topic]
            )
            response = await records.handlers[ApiKey.PRODUCE](gateway.call(version), asked)
            ((answer,),) = [one.partition_responses for one in response.responses]
            return answer

        assert (await produce(0)).error_code == 0
        assert kafka.enrolled() == {FLIGHTS}
        # A ticket that is no longer valid, as after the topic was made again.
        gateway.enrolments._kept[NAME].tickets[FLIGHTS] = bytes(49)
        assert (await produce(1)).error_code == 0
        # As one of version 1 its client was never told that pair.
        refused = await produce(2, version=11)
        assert refused.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await producer.end(gateway) == 0
        assert await kafka.committed(FLIGHTS) == 3
        producer.epoch = 0
        refused = await produce(2)
        assert refused.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert NAME in refused.error_message
        await records.close()

    play(scenario)


def test_a_topic_made_again_has_its_old_ticket_replaced(play: Play) -> None:
    # ``produce.py`` forgets a ticket that was refused and asks once more.
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        _, old = await producer.ticket(gateway)
        kafka.world.topic_ids["flights"] = "f" * 32
        await asyncio.sleep(2)
        assert (await producer.ticket(gateway))[1] == old
        gateway.enrolments.forget(NAME, producer.pid, producer.epoch, FLIGHTS, old)
        error, new = await producer.ticket(gateway)
        assert error is ErrorCode.NONE
        assert new != old

    play(scenario)
