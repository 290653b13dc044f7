"""Transactions of Kafka's producers: real coordinators and leaders, and several gateways."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kafka_transactions import (
    DELAYS,
    FLIGHTS,
    GROUP,
    JAVA,
    NAME,
    TIMEOUT_MS,
    Gateway,
    Kafka,
    Play,
)
from virtual_time import give_turns

from oncelog.actors.gateway.calls import Call, Client
from oncelog.actors.gateway.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from oncelog.actors.gateway.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.end_txn import EndTxnRequest
from oncelog.actors.gateway.messages.init_producer_id import InitProducerIdRequest
from oncelog.actors.gateway.messages.produce import (
    PartitionProduceData,
    TopicProduceData,
)
from oncelog.actors.gateway.messages.produce import (
    ProduceRequest as KafkasProduceRequest,
)
from oncelog.actors.gateway.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.actors.gateway.records.handlers import RecordHandlers
from oncelog.actors.gateway.transactions.requests import (
    SEQUENCE_WITHIN_MS,
    is_of_version_2,
    next_sequence,
)
from oncelog.actors.groups.group_coordinator import GroupCoordinator
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages.access import Access, Acl, Operation, Resource, Rules
from oncelog.actors.protocol.messages.partition import (
    DescribeProducersReply,
    ProducerDescription,
    ProduceRequest,
)
from oncelog.actors.protocol.messages.transaction import AbortTransactionRequest
from oncelog.actors.rpc.door import Door
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    SEQUENCE_MAX,
    TopicPartition,
)
from oncelog.storage.records.codec import encode_records

UNSUPPORTED_VERSION = 35
FENCED = int(ErrorCode.PRODUCER_FENCED)
ABORTABLE = int(ErrorCode.TRANSACTION_ABORTABLE)
NOT_ALLOWED = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


class Producer:
    """What a Java producer of version 2 sends; of which gateway is said each time."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.pid, self.epoch = -1, -1
        self.sequences: dict[TopicPartition, int] = {}

    def at(self, epoch: int) -> Producer:
        """A late message of this producer, of another epoch."""
        copy = Producer(self.kafka)
        copy.pid, copy.epoch = self.pid, epoch
        return copy

    async def init(self, gateway: Gateway, call: Call | None = None, **fields: Any) -> Any:
        request = InitProducerIdRequest(
            **{"transactional_id": NAME, "transaction_timeout_ms": TIMEOUT_MS, **fields}
        )
        call = call or gateway.call(5)
        response = await gateway.transactions.init_producer_id(call, request)
        if response.error_code == 0:
            self._take(response)
        return response

    def _take(self, response: Any) -> None:
        self.pid, self.epoch = response.producer_id, response.producer_epoch
        self.sequences.clear()

    async def ticket(self, gateway: Gateway, tp: TopicPartition = FLIGHTS) -> Any:
        return await gateway.enrolments.ticket(gateway.call(12), NAME, self.pid, self.epoch, tp)

    async def send(
        self, gateway: Gateway, tp: TopicPartition = FLIGHTS, ticket: bytes = b""
    ) -> ErrorCode:
        """Send a record as ``produce.py`` does, with a ticket of the gateway or the given one."""
        if not ticket:
            error, ticket = await self.ticket(gateway, tp)
            if error is not ErrorCode.NONE:
                return ErrorCode(error)
        sequence = self.sequences.get(tp, 0)
        batch = encode_records(
            [(None, b"value", self.kafka.world.now_ms(), ())],
            producer_id=self.pid,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        reply = await self.kafka.leaders[tp].produce(
            ProduceRequest(
                topic_partition=tp, batch=bytes(batch), transactional_id=NAME, ticket=ticket
            )
        )
        if reply.error is ErrorCode.NONE:
            self.sequences[tp] = sequence + 1
        return ErrorCode(reply.error)

    async def commit_offsets(
        self,
        gateway: Gateway,
        offset: int,
        *,
        topics: tuple[str, ...] = ("flights",),
        metadata: str | None = None,
        call: Call | None = None,
        **fields: Any,
    ) -> list[int]:
        """Kafka's code of each partition."""
        position = TxnOffsetCommitRequestPartition(
            committed_offset=offset, committed_metadata=metadata
        )
        request = TxnOffsetCommitRequest(
            transactional_id=NAME,
            group_id=GROUP,
            producer_id=self.pid,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(name=name, partitions=[position]) for name in topics
            ],
            **fields,
        )
        handle = gateway.handlers[ApiKey.TXN_OFFSET_COMMIT]
        response = await handle(call or gateway.call(5), request)
        assert [topic.name for topic in response.topics] == list(topics)
        return [one.error_code for topic in response.topics for one in topic.partitions]

    async def end(
        self, gateway: Gateway, *, committed: bool = True, call: Call | None = None
    ) -> int:
        request = EndTxnRequest(
            transactional_id=NAME,
            producer_id=self.pid,
            producer_epoch=self.epoch,
            committed=committed,
        )
        response = await gateway.handlers[ApiKey.END_TXN](call or gateway.call(5), request)
        if response.error_code == 0:
            self._take(response)
        else:
            assert (response.producer_id, response.producer_epoch) == (-1, -1)
        return int(response.error_code)


async def new_producer(kafka: Kafka, gateway: Gateway, **fields: Any) -> Producer:
    producer = Producer(kafka)
    response = await producer.init(gateway, **fields)
    assert response.error_code == 0
    return producer


# --- producer ids -----------------------------------------------------------------------------


def test_each_init_takes_the_next_epoch_and_fences_the_producer_before(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        old = await new_producer(kafka, gateway)
        new = await new_producer(kafka, gateway)
        assert (new.pid, new.epoch) == (old.pid, old.epoch + 1) == (1_000, 1)
        assert await old.send(gateway) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await old.commit_offsets(gateway, 9) == [FENCED]
        assert await old.end(gateway) == FENCED
        assert await new.send(gateway) is ErrorCode.NONE

    play(scenario)


def test_init_with_an_epoch_recovers_in_place_and_may_be_repeated(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        fields = {"producer_id": producer.pid, "producer_epoch": 0}
        for _ in range(2):
            await producer.init(gateway, **fields)
            assert producer.epoch == 1
        await new_producer(kafka, gateway)
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
        response = await Producer(kafka).init(kafka.gateway(), **fields)
        assert (response.error_code, response.producer_id) == (code, -1)

    play(scenario)


def test_init_aborts_what_a_producer_before_has_left_open(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        old = await new_producer(kafka, gateway)
        await old.send(gateway)
        # The abort takes a moment, for which the gateway waits.
        new = await new_producer(kafka, gateway)
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
        response = await Producer(kafka).init(gateway, gateway.call(version, client))
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
        await Producer(kafka).init(gateway, gateway.call(version, client))
        ((_, _, asked),) = kafka.world.calls_of("init_producer_id")
        assert asked.as_version_1 is is_version_1

    play(scenario)


@pytest.mark.parametrize("name", ["franz-go 1.20.0", "", "apache-kafka-java 4.0.0"])
def test_a_client_that_may_be_of_version_2_gets_an_id(play: Play, name: str) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        client = Client(principal=Principal("User:ANONYMOUS"), host="h", name=name)
        assert (await Producer(kafka).init(gateway, gateway.call(5, client))).error_code == 0

    play(scenario)


def test_a_connection_has_shown_version_2_by_what_only_that_sends(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        for request in (ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT):
            client = Client(principal=Principal("User:ANONYMOUS"), host="h", name="another 1.0")
            assert not is_of_version_2(client)
            if request == ApiKey.END_TXN:
                await producer.end(gateway, committed=False, call=gateway.call(5, client))
            else:
                await producer.commit_offsets(gateway, 9, call=gateway.call(5, client))
            assert is_of_version_2(client)

    play(scenario)


def _enrolling(producer: Producer, *topics: str) -> AddPartitionsToTxnRequest:
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
        producer = await new_producer(kafka, gateway)
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
        producer = await new_producer(kafka, gateway)
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


# --- transactions -----------------------------------------------------------------------------


def test_a_transaction_whose_batches_come_through_two_gateways_commits_as_one(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        one, other = kafka.gateway(), kafka.gateway()
        producer = await new_producer(kafka, one)
        for epoch in range(2):
            assert producer.epoch == epoch
            assert await producer.send(one, FLIGHTS) is ErrorCode.NONE
            assert await producer.send(other, FLIGHTS) is ErrorCode.NONE
            assert await producer.send(other, DELAYS) is ErrorCode.NONE
            assert kafka.state() == "Ongoing"
            assert await producer.end(one) == 0
            assert kafka.state() == "CompleteCommit"
        # Two batches and a marker, twice; one and a marker, twice.
        assert await kafka.committed(FLIGHTS) == 6
        assert await kafka.committed(DELAYS) == 4

    play(scenario)


def test_a_batch_after_the_end_is_refused_by_every_gateway_and_begins_nothing(play: Play) -> None:
    # 1. A transaction is enrolled through two gateways. 2. It ends through one of them. 3. Copies
    # of its batches come: with a ticket that the other has kept, with none, and elsewhere.
    async def scenario(kafka: Kafka) -> None:
        one, other, third = (kafka.gateway() for _ in range(3))
        producer = await new_producer(kafka, one)
        await producer.send(one)
        await producer.send(other)
        late = producer.at(producer.epoch)
        kept = other.enrolments.find(NAME, late.pid, late.epoch, FLIGHTS)
        assert kept is not None
        assert await producer.end(one) == 0
        assert one.enrolments.find(NAME, late.pid, late.epoch, FLIGHTS) is None
        assert await late.send(other, ticket=kept) is ErrorCode.INVALID_PRODUCER_EPOCH
        for gateway in (one, other, third):
            assert await late.send(gateway, DELAYS) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert kafka.state() == "CompleteCommit"
        assert not kafka.leaders[DELAYS].replica.machine.open_transaction_count
        assert await kafka.committed(FLIGHTS) == 3
        assert await producer.send(other) is ErrorCode.NONE

    play(scenario)


def test_a_batch_that_comes_while_the_commit_waits_for_its_markers(play: Play) -> None:
    # 1. The commit is decided, its marker is on its way. 2. A late batch of it comes for another
    # partition: it is refused. 3. So does one of the next transaction: it is to be sent again.
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        await producer.send(gateway, FLIGHTS)
        late = producer.at(producer.epoch)
        held = kafka.hold("partition:flights-0@1", "write_txn_markers")
        ending = asyncio.ensure_future(producer.end(gateway))
        await held.has_come.wait()
        assert kafka.state() == "PrepareCommit"
        assert await late.send(gateway, DELAYS) is ErrorCode.INVALID_PRODUCER_EPOCH
        following = producer.at(producer.epoch + 1)
        assert await following.send(gateway, DELAYS) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert kafka.enrolled() == {FLIGHTS}
        held.go.set()
        assert await ending == 0
        assert await following.send(gateway, DELAYS) is ErrorCode.NONE

    play(scenario)


def test_an_abort_of_nothing_makes_late_batches_harmless(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        late = producer.at(producer.epoch)
        assert await producer.end(gateway, committed=False) == 0
        assert producer.epoch == 1
        assert await late.send(gateway) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert kafka.state() == "CompleteAbort"

    play(scenario)


def test_an_end_may_be_repeated_through_another_gateway(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        one, other = kafka.gateway(), kafka.gateway()
        producer = await new_producer(kafka, one)
        await producer.send(one)
        again, contrary = producer.at(0), producer.at(0)
        assert await producer.end(one) == 0
        assert await again.end(other) == 0
        assert (again.pid, again.epoch) == (producer.pid, producer.epoch)
        code = await contrary.end(other, committed=False)
        assert code == int(ErrorCode.INVALID_TXN_STATE)

    play(scenario)


@pytest.mark.parametrize("transactions", [0, 1])
def test_a_commit_that_has_overtaken_its_batches_is_repeated_after_them(
    play: Play, transactions: int
) -> None:
    # 1. A thread of the client sees no batch. 2. Another gives it some, and asks for the commit.
    # 3. The first sends the commit, which ends nothing yet. 4. The batches; the commit once more.
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        for _ in range(transactions):
            await producer.send(gateway)
            assert await producer.end(gateway) == 0
        assert await producer.end(gateway) == int(ErrorCode.CONCURRENT_TRANSACTIONS)
        assert await producer.send(gateway) is ErrorCode.NONE
        assert await producer.end(gateway) == 0
        assert kafka.state() == "CompleteCommit"

    play(scenario)


def test_a_commit_of_what_its_producer_has_aborted_is_refused_for_good(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        await producer.send(gateway)
        late = producer.at(producer.epoch)
        assert await producer.end(gateway, committed=False) == 0
        assert await late.end(gateway) == int(ErrorCode.INVALID_TXN_STATE)

    play(scenario)


def test_the_last_epoch_is_followed_by_another_producer_id(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        ids = kafka.coordinator.machine.ids
        ids._transactions[NAME] = type(ids.metadata(NAME))(
            **{
                **{name: getattr(ids.metadata(NAME), name) for name in _FIELDS},
                "producer_epoch": 32_766,
            }
        )
        producer.epoch = 32_766
        assert await producer.send(gateway) is ErrorCode.NONE
        old = producer.at(producer.epoch)
        assert await producer.end(gateway) == 0
        assert (producer.pid, producer.epoch) == (old.pid + 1, 0)
        assert await old.send(gateway) is not ErrorCode.NONE
        assert await producer.send(gateway) is ErrorCode.NONE

    play(scenario)


_FIELDS = (
    "transactional_id",
    "producer_id",
    "transaction_timeout_ms",
    "state",
    "last_update_ms",
)


async def _time_out(kafka: Kafka) -> None:
    """Let the transaction be open for longer than it may."""
    await asyncio.sleep(TIMEOUT_MS / 1_000 + 30)
    assert kafka.state() == "CompleteAbort"


async def _abort_as_operator(kafka: Kafka) -> None:
    (description,) = kafka.coordinator.machine.operations.describe([NAME])
    request = AbortTransactionRequest(
        transactional_id=NAME,
        producer_id=description.producer_id,
        producer_epoch=description.producer_epoch,
    )
    assert (await kafka.coordinator.abort_transaction(request)).error is ErrorCode.NONE


@pytest.mark.parametrize("abort", [_time_out, _abort_as_operator])
def test_a_producer_that_was_too_slow_aborts_and_goes_on(
    play: Play, abort: Callable[[Kafka], Awaitable[None]]
) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        await producer.send(gateway, FLIGHTS)
        await abort(kafka)
        # The leader of a partition with a marker knows nothing but the epoch.
        assert await producer.send(gateway, FLIGHTS) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await producer.send(gateway, DELAYS) is ErrorCode.TRANSACTION_ABORTABLE
        assert await producer.commit_offsets(gateway, 9) == [ABORTABLE]
        assert await producer.end(gateway) == ABORTABLE
        assert await producer.end(gateway, committed=False) == 0
        assert producer.epoch == 1
        assert await producer.send(gateway, FLIGHTS) is ErrorCode.NONE
        assert await producer.end(gateway) == 0
        # The first record, its marker, the second, its marker.
        assert kafka.leaders[FLIGHTS].replica.machine.last_stable_offset == 4

    play(scenario)


def test_a_late_batch_that_begins_a_transaction_is_aborted_by_its_timeout(play: Play) -> None:
    # 1. A client is idle, or gone without an end, after its init. 2. A late batch of it comes.
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        assert await producer.send(gateway) is ErrorCode.NONE
        assert kafka.state() == "Ongoing"
        await _time_out(kafka)
        assert await kafka.committed(FLIGHTS) == 0
        assert not kafka.leaders[FLIGHTS].replica.machine.open_transaction_count

    play(scenario)


def test_a_topic_made_again_has_its_old_ticket_replaced(play: Play) -> None:
    # ``produce.py`` forgets a ticket that was refused and asks once more.
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        _, old = await producer.ticket(gateway)
        kafka.world.topic_ids["flights"] = "f" * 32
        await asyncio.sleep(2)
        assert (await producer.ticket(gateway))[1] == old
        gateway.enrolments.forget(NAME, producer.pid, producer.epoch, FLIGHTS, old)
        error, new = await producer.ticket(gateway)
        assert error is ErrorCode.NONE
        assert new != old

    play(scenario)


# --- positions --------------------------------------------------------------------------------


def test_positions_count_with_the_commit_of_their_transaction(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        assert await producer.commit_offsets(gateway, 9, metadata="here") == [0]
        assert await kafka.position() is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await producer.end(gateway) == 0
        assert await kafka.position() == 9
        assert await producer.commit_offsets(gateway, 12) == [0]
        assert await producer.end(gateway, committed=False) == 0
        assert await kafka.position() == 9

    play(scenario)


def _sequences(kafka: Kafka) -> list[int]:
    return [request.base_sequence for _, _, request in kafka.world.calls_of("txn_offset_commit")]


def test_each_commit_of_a_transaction_has_the_sequence_after_the_last(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        assert await producer.commit_offsets(gateway, 1, topics=("flights", "delays")) == [0, 0]
        assert await producer.commit_offsets(gateway, 2) == [0]
        assert await producer.commit_offsets(gateway, 3) == [0]
        assert await producer.end(gateway) == 0
        assert await producer.commit_offsets(gateway, 4) == [0]
        assert _sequences(kafka) == [0, 2, 3, 0]
        assert await producer.end(gateway) == 0
        assert await kafka.position() == 4

    play(scenario)


def test_a_commit_counts_though_its_gateway_has_missed_others(play: Play) -> None:
    # 1. A client commits through one gateway, then through another, and then again through the
    # first, which knows only of its own. A sequence of its memory would be taken for a copy.
    async def scenario(kafka: Kafka) -> None:
        one, other = kafka.gateway(), kafka.gateway()
        producer = await new_producer(kafka, one)
        for offset, gateway in enumerate((one, other, one, kafka.gateway()), start=1):
            assert await producer.commit_offsets(gateway, offset) == [0]
        assert await producer.end(one) == 0
        assert await kafka.position() == 4

    play(scenario)


@pytest.mark.parametrize("count", [1, 2], ids=["of as many", "of more"])
def test_a_late_copy_of_a_commit_does_not_undo_a_later_one(play: Play, count: int) -> None:
    # 1. A client commits 10; the gateway's call to the group's coordinator is delayed. 2. It gives
    # up, and repeats that through another gateway, with success. 3. It commits 20. 4. The call of
    # 1 arrives. 5. The transaction commits.
    async def scenario(kafka: Kafka) -> None:
        one, other = kafka.gateway(), kafka.gateway()
        producer = await new_producer(kafka, one)
        held = kafka.hold(_group_actor(kafka), "txn_offset_commit")
        late = asyncio.ensure_future(producer.commit_offsets(one, 10))
        await held.has_come.wait()
        assert await producer.commit_offsets(other, 10) == [0]
        topics = ("flights", "delays")[:count]
        assert await producer.commit_offsets(other, 20, topics=topics) == [0] * count
        held.go.set()
        await late
        assert await producer.end(other) == 0
        assert await kafka.position() == 20

    play(scenario)


def test_a_gateway_that_took_long_to_enrol_does_not_undo_a_later_commit(play: Play) -> None:
    # As above, but the call of 1 to the transaction's coordinator is delayed.
    async def scenario(kafka: Kafka) -> None:
        one, other = kafka.gateway(), kafka.gateway()
        producer = await new_producer(kafka, one)
        held = kafka.hold("transaction:0@1", "add_offsets_to_txn")
        late = asyncio.ensure_future(producer.commit_offsets(one, 10))
        await held.has_come.wait()
        assert await producer.commit_offsets(other, 10) == [0]
        # More than a leader remembers: it can no longer tell that the first one is a copy.
        for offset in range(20, 26):
            assert await producer.commit_offsets(other, offset) == [0]
        held.go.set()
        assert await late == [int(ErrorCode.CONCURRENT_TRANSACTIONS)]
        assert await producer.end(other) == 0
        assert await kafka.position() == 25

    play(scenario)


def test_a_copy_that_comes_after_the_decision_changes_nothing(play: Play) -> None:
    # 1. A commit of positions is delayed on its way, and repeated with success. 2. The transaction
    # is decided; the marker of the group's log is on its way. 3. The copy arrives before it.
    async def scenario(kafka: Kafka) -> None:
        one, other = kafka.gateway(), kafka.gateway()
        producer = await new_producer(kafka, one)
        actor = _group_actor(kafka)
        held = kafka.hold(actor, "txn_offset_commit")
        late = asyncio.ensure_future(producer.commit_offsets(one, 10))
        await held.has_come.wait()
        assert await producer.commit_offsets(other, 10) == [0]
        marker = kafka.hold(actor, "write_txn_markers")
        ending = asyncio.ensure_future(producer.end(other))
        await marker.has_come.wait()
        machine = _group(kafka).replica.machine
        log_end_offset = machine.log_end_offset
        held.go.set()
        await late
        assert machine.log_end_offset == log_end_offset
        # 4. One that the gateway gets only now is refused before anyone is asked to write.
        asked = len(_sequences(kafka))
        assert await producer.at(0).commit_offsets(one, 10) == [FENCED]
        assert len(_sequences(kafka)) == asked
        marker.go.set()
        assert await ending == 0
        assert await kafka.position() == 10

    play(scenario)


def test_commits_of_one_id_are_made_in_the_order_in_which_they_came(play: Play) -> None:
    # A client that breaks Kafka's rule and has two under way: the later one counts.
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        held = kafka.hold("transaction:0@1", "add_offsets_to_txn")
        commits = [
            asyncio.ensure_future(producer.commit_offsets(gateway, offset)) for offset in (10, 20)
        ]
        await held.has_come.wait()
        await give_turns()
        held.go.set()
        assert await asyncio.gather(*commits) == [[0], [0]]
        assert _sequences(kafka) == [0, 1]
        assert await producer.end(gateway) == 0
        assert await kafka.position() == 20
        assert not gateway.transactions._turns

    play(scenario)


def test_no_sequence_is_asked_for_long_after_a_commit_has_come(play: Play) -> None:
    # Its client has given up by then, and may have committed something newer.
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        held = kafka.hold(_group_actor(kafka), "describe_producers")
        began_s = asyncio.get_running_loop().time()
        codes = await producer.commit_offsets(gateway, 10)
        assert codes == [int(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
        waited_ms = 1_000 * (asyncio.get_running_loop().time() - began_s)
        assert waited_ms == pytest.approx(SEQUENCE_WITHIN_MS, abs=50)
        # 2. One that has waited that long for its turn is not even asked about.
        held = kafka.hold("transaction:0@1", "add_offsets_to_txn")
        first = asyncio.ensure_future(producer.commit_offsets(gateway, 20))
        await held.has_come.wait()
        second = asyncio.ensure_future(producer.commit_offsets(gateway, 30))
        await asyncio.sleep(SEQUENCE_WITHIN_MS / 1_000 + 1)
        held.go.set()
        assert await first == [0]
        assert await second == [int(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
        assert len(_sequences(kafka)) == 1
        assert len(kafka.world.calls_of("describe_producers")) == 2

    play(scenario)


def test_one_bad_position_keeps_the_others_from_being_committed_and_all_say_so(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        codes = await producer.commit_offsets(gateway, 9, topics=("flights", "none"))
        assert codes == [int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)] * 2
        codes = await producer.commit_offsets(gateway, 9, metadata="m" * 5_000)
        assert codes == [int(ErrorCode.OFFSET_METADATA_TOO_LARGE)]
        assert await producer.end(gateway) == 0
        assert await kafka.position() == -1

    play(scenario)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"generation_id_or_member_epoch": 3, "member_id": "m"}, ErrorCode.ILLEGAL_GENERATION),
        ({}, ErrorCode.NONE),
    ],
)
def test_the_groups_generation_fences_a_zombie(
    play: Play, fields: dict[str, Any], code: ErrorCode
) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        assert await producer.commit_offsets(gateway, 9, **fields) == [int(code)]

    play(scenario)


def test_nothing_to_commit_asks_nobody(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        asked = len(kafka.world.calls)
        assert await producer.commit_offsets(gateway, 9, topics=()) == []
        assert len(kafka.world.calls) == asked

    play(scenario)


def test_a_group_coordinator_that_has_moved_is_found_or_the_client_looks_for_it(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        actor = _group_actor(kafka)
        assert await producer.commit_offsets(gateway, 1) == [0]
        # 1. The shard is at another broker, which the gateway does not know yet.
        moved = actor.replace("@1", "@2")
        tp = TopicPartition(CONSUMER_OFFSETS_TOPIC, int(actor.split(":")[1][0]))
        kafka.world.actors[moved] = kafka.world.actors.pop(actor)
        kafka.world.leaders[tp] = 2
        assert await producer.commit_offsets(gateway, 2) == [0]
        assert _sequences(kafka) == [0, 1]
        # 2. It moves between the two questions: another leader might know another sequence.
        coordinator = kafka.world.actors.pop(moved)
        kafka.world.actors[moved] = _OnlyDescribes(coordinator)
        asked = len(_sequences(kafka))
        codes = await producer.commit_offsets(gateway, 3)
        assert codes == [int(ErrorCode.NOT_COORDINATOR)]
        assert len(_sequences(kafka)) == asked + 1
        assert not gateway.cluster.view.cached((CONSUMER_OFFSETS_TOPIC,), as_of_ms=0)
        # 3. Nobody leads.
        kafka.world.leaders[tp] = -1
        codes = await producer.commit_offsets(gateway, 3)
        assert codes == [int(ErrorCode.NOT_COORDINATOR)]

    play(scenario)


class _OnlyDescribes:
    def __init__(self, coordinator: Any) -> None:
        self.describe_producers = coordinator.describe_producers

    async def txn_offset_commit(self, request: Any) -> Any:
        return request.failed(ErrorCode.NOT_COORDINATOR)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        # The coordinator sees nothing wrong with the transaction.
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_what_the_groups_log_refuses_is_told_so_that_the_client_does_the_right_thing(
    play: Play, said: ErrorCode, told: ErrorCode
) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        actor = _group_actor(kafka)
        refusing = _OnlyDescribes(kafka.world.actors[actor])

        async def refuse(request: Any) -> Any:
            return request.failed(said)

        refusing.txn_offset_commit = refuse  # type: ignore[method-assign]
        kafka.world.actors[actor] = refusing
        assert await producer.commit_offsets(gateway, 9) == [int(told)]

    play(scenario)


def test_a_marker_that_overtakes_a_commit_is_explained_by_the_coordinator(play: Play) -> None:
    # 1. A commit of positions is on its way to the group's log. 2. The transaction times out, and
    # its marker arrives. 3. The commit is refused: the client is to abort, not to die.
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_producer(kafka, gateway)
        held = kafka.hold(_group_actor(kafka), "txn_offset_commit")
        late = asyncio.ensure_future(producer.commit_offsets(gateway, 9))
        await held.has_come.wait()
        await _abort_as_operator(kafka)
        held.go.set()
        assert await late == [ABORTABLE]

    play(scenario)


def test_who_may_not_read_the_group_commits_nothing(play: Play) -> None:
    who = "User:alice"
    acls = tuple(
        Acl(principal=who, operation=operation, resource=resource, name=name)
        for operation, resource, name in (
            (Operation.WRITE, Resource.TRANSACTIONAL_ID, NAME),
            (Operation.READ, Resource.TOPIC, "flights"),
        )
    )

    async def scenario(kafka: Kafka) -> None:
        producer = await new_producer(kafka, kafka.gateway())
        reading = Acl(principal=who, operation=Operation.READ, resource=Resource.GROUP, name=GROUP)
        client = Client(principal=Principal(who), host="h", name=JAVA)
        kafka.door = Door(Access(rules=Rules(is_on=True, version=1, acls=acls)))
        gateway = kafka.gateway()
        codes = await producer.commit_offsets(gateway, 9, call=gateway.call(5, client))
        assert codes == [int(ErrorCode.GROUP_AUTHORIZATION_FAILED)]
        assert not _sequences(kafka)
        # Of two topics she may read one, which is committed.
        kafka.door = Door(Access(rules=Rules(is_on=True, version=1, acls=(*acls, reading))))
        gateway = kafka.gateway()
        codes = await producer.commit_offsets(
            gateway, 9, topics=("delays", "flights"), call=gateway.call(5, client)
        )
        assert codes == [int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), 0]
        # 3. An id that is not hers.
        stranger = Client(principal=Principal("User:bob"), host="h", name=JAVA)
        assert await producer.end(gateway, call=gateway.call(5, stranger)) == NOT_ALLOWED

    play(scenario)


# --- with the handlers of records -------------------------------------------------------------


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
        producer = Producer(kafka)
        producer._take(initialised)

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


def _group(kafka: Kafka) -> GroupCoordinator:
    return kafka.groups[int(_group_actor(kafka).split(":")[1][0])]


def _group_actor(kafka: Kafka) -> str:
    shard = next(
        number
        for number, coordinator in kafka.groups.items()
        if coordinator._unavailable(GROUP) is ErrorCode.NONE
    )
    return f"group:{shard}@1"


@pytest.mark.parametrize(
    ("producers", "sequence"),
    [
        ((), 0),
        (
            (
                ProducerDescription(
                    producer_id=1,
                    producer_epoch=4,
                    last_sequence=7,
                    last_timestamp_ms=0,
                    coordinator_epoch=0,
                ),
            ),
            0,
        ),
        (
            (
                ProducerDescription(
                    producer_id=1,
                    producer_epoch=5,
                    last_sequence=-1,
                    last_timestamp_ms=0,
                    coordinator_epoch=0,
                ),
            ),
            0,
        ),
        (
            (
                ProducerDescription(
                    producer_id=1,
                    producer_epoch=5,
                    last_sequence=7,
                    last_timestamp_ms=0,
                    coordinator_epoch=0,
                ),
            ),
            8,
        ),
        (
            (
                ProducerDescription(
                    producer_id=1,
                    producer_epoch=5,
                    last_sequence=SEQUENCE_MAX,
                    last_timestamp_ms=0,
                    coordinator_epoch=0,
                ),
            ),
            0,
        ),
    ],
)
def test_the_next_sequence_follows_the_last_of_the_epoch(
    producers: tuple[ProducerDescription, ...], sequence: int
) -> None:
    assert next_sequence(DescribeProducersReply(producers=producers), 5) == sequence
