"""What a client of transactions' version 1 gave up when it aborted, and what comes of it late.

librdkafka uses the sequences of purged batches again. From 2.0 on it can be told to take another
pair for an abort; before, and other clients, do not.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from coordinator_world import SHARD
from kafka_old_client import AGAIN, LOADING, OldClient, begun
from kafka_transactions import DELAYS, FLIGHTS, NAME, Kafka, Play
from msgspec import structs

from oncelog.actors.gateway.calls import Client
from oncelog.actors.gateway.transactions import told
from oncelog.actors.gateway.transactions.told import shows_life
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages.partition import FetchRequest
from oncelog.actors.protocol.partition.producers import ProducerEntry
from oncelog.actors.protocol.transaction.transaction_state import TransactionMetadata
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, IsolationLevel, TopicPartition

NEW_EPOCH = int(ErrorCode.UNKNOWN_PRODUCER_ID)
NOT_OPEN = int(ErrorCode.INVALID_TXN_STATE)
OLD_EPOCH = int(ErrorCode.INVALID_PRODUCER_EPOCH)
PAIR = (7, 2)


async def values(kafka: Kafka) -> bytes:
    """The bytes of all batches of the topic, committed or not."""
    request = FetchRequest(
        topic_partition=FLIGHTS,
        fetch_offset=0,
        max_wait_ms=0,
        isolation_level=IsolationLevel.READ_COMMITTED,
    )
    reply = await kafka.leaders[FLIGHTS].fetch(request)
    assert not reply.aborted_transactions
    return bytes(reply.records)


def remembers(kafka: Kafka, before: TransactionMetadata | None) -> Any:
    """Meanwhile the coordinator is one that was replaced, and does not know it."""
    return mock.patch.object(kafka.coordinator.machine.ids, "metadata", return_value=before)


async def aborted(kafka: Kafka) -> tuple[OldClient, OldClient]:
    """A client in its next transaction, and what it has sent in the first one on a dead connection.

    That gateway was paused, and goes on now.
    """
    client, paused = await begun(kafka), kafka.gateway()
    assert await client.add("flights") == [0]
    late = client.late(gateway=paused)
    client.connect()
    assert await client.end(committed=False) == 0
    assert await client.add("flights") == [0]
    return client, late


# --- another pair for each abort --------------------------------------------------------------

RENEWING = (
    "librdkafka 2.0.2",
    "confluent-kafka-python 2.16.1-rdkafka-2.16.0",
    "confluent-kafka-go 2.11.0",
    "confluent-kafka-dotnet 2.11.0",
    "confluent-kafka-javascript v1.4.0-librdkafka-2.10.0",
    "karafka v2.5.0-rdkafka-ruby-v0.19.5-librdkafka-v2.8.0",
)


@pytest.mark.parametrize("software", RENEWING)
def test_who_takes_another_pair_for_an_abort_is_told_to_and_goes_on_at_once(
    play: Play, software: str
) -> None:
    # It repeats nothing while it aborts: a batch that it had to repeat would hold the abort up.
    async def scenario(kafka: Kafka) -> None:
        client, paused = await begun(kafka), kafka.gateway()
        client.client.name = software
        assert await client.add("flights") == [0]
        late = client.late(gateway=paused)
        assert await client.end(committed=False) == NEW_EPOCH
        assert kafka.state() == "CompleteAbort"
        assert await client.end(committed=False) == NEW_EPOCH
        assert await client.init(again=True) == 0
        assert (client.pid, client.epoch) != (late.pid, late.epoch)
        assert await client.add("flights") == [0]
        assert await late.send(FLIGHTS, b"lost", sequence=0) == OLD_EPOCH
        assert await client.send(FLIGHTS, b"kept") == 0
        assert await client.end() == 0
        found = await values(kafka)
        assert b"kept" in found
        assert b"lost" not in found

    play(scenario)


@pytest.mark.parametrize(
    "software",
    [
        "librdkafka 1.9.2",
        "confluent-kafka-go 1.9.2",
        "rdkafka 6.1.0",
        "apache-kafka-java 3.9.1",
        "kafka-python 3.0.12",
        "",
    ],
)
def test_an_abort_of_others_succeeds_without(play: Play, software: str) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        client.client.name = software
        assert await client.add("flights") == [0]
        assert await client.end(committed=False) == 0
        assert await client.add("flights") == [0]

    play(scenario)


# --- batches ----------------------------------------------------------------------------------


def test_no_batch_of_an_aborted_transaction_is_committed_with_the_next(play: Play) -> None:
    # 1. Two batches are lost with their connection, and purged by the abort. 2. The next
    # transaction uses the first one's sequence again. 3. Both arrive: the second one is in order.
    async def scenario(kafka: Kafka) -> None:
        client, late = await aborted(kafka)
        assert await client.send(FLIGHTS, b"of the next") == 0
        for sequence, value in enumerate((b"lost-1", b"lost-2")):
            assert await late.send(FLIGHTS, value, sequence=sequence) == AGAIN
        assert await client.end() == 0
        found = await values(kafka)
        assert b"of the next" in found
        assert b"lost" not in found

    play(scenario)


@pytest.mark.parametrize("is_forgetful", [False, True])
def test_a_lost_batch_does_not_take_the_place_of_one_of_the_next(
    play: Play, is_forgetful: bool
) -> None:
    # The lost one comes first, and has the next one's first sequence. A leader that knows its
    # producers from a snapshot could not tell them apart.
    async def scenario(kafka: Kafka) -> None:
        client, late = await aborted(kafka)
        assert await late.send(FLIGHTS, b"lost") == AGAIN
        if is_forgetful:
            entries = kafka.leaders[FLIGHTS].replica.machine.producers._entries
            for producer_id, entry in entries.items():
                entries[producer_id] = ProducerEntry.from_snapshot(entry.to_snapshot())
        assert await client.send(FLIGHTS, b"of the next") == 0
        assert await client.send(FLIGHTS, b"and another") == 0
        assert await client.end() == 0
        found = await values(kafka)
        assert b"of the next" in found
        assert b"and another" in found
        assert b"lost" not in found

    play(scenario)


def test_a_lost_batch_of_long_ago_is_none_of_any_later_transaction(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client, late = await aborted(kafka)
        assert await client.send() == 0
        assert await client.end() == 0
        await client.transact(FLIGHTS)
        assert await client.add("flights") == [0]
        assert await late.send(sequence=2) == AGAIN
        assert await client.end(committed=False) == 0
        # It was refused, and another copy is refused as well after another abort.
        assert await client.add("flights") == [0]
        assert await late.send(sequence=2) == AGAIN

    play(scenario)


def test_after_an_abort_each_connection_is_asked_to_repeat_one_batch(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        for committed in (True, False):
            await client.transact(FLIGHTS, DELAYS, committed=committed)
        assert await client.add("flights", "delays") == [0, 0]
        # Three are on their way; whichever comes again is the sign. Here the test repeats them.
        client.is_late = True
        sent = [(FLIGHTS, 2), (FLIGHTS, 3), (DELAYS, 2)]
        codes = [await client.send(tp, sequence=number) for tp, number in sent]
        assert codes == [AGAIN] * 3
        codes = [await client.send(tp, sequence=number) for tp, number in sent]
        assert codes == [0] * 3
        assert await client.end() == 0
        # From now on nothing is asked, for any partition.
        assert await client.add("flights", "delays") == [0, 0]
        assert await client.send() == await client.send(DELAYS) == 0
        client.connect()
        assert await client.send() == AGAIN
        assert await client.send() == 0
        assert await client.end() == 0

    play(scenario)


def test_what_a_leader_sends_back_for_the_next_transaction_is_late_as_well(play: Play) -> None:
    # 1. A gateway has kept what the first transaction enrolled. 2. That is aborted. 3. A batch of
    # it comes: its leader says that it is over, and the coordinator knows the next one.
    async def scenario(kafka: Kafka) -> None:
        client, other = await begun(kafka), kafka.gateway()
        assert await client.add("flights") == [0]
        assert await client.send(gateway=other) == 0
        late = client.late(gateway=other)
        client.connect()
        assert await client.end(committed=False) == 0
        assert await client.add("flights") == [0]
        assert await late.send() == AGAIN
        assert await client.send(gateway=other) == 0
        assert await client.end() == 0

    play(scenario)


def test_a_batch_that_was_written_and_whose_answer_was_lost_makes_its_client_take_another_epoch(
    play: Play,
) -> None:
    # librdkafka believes it unsent, and uses its sequence again. It ends if it hears of a gap.
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        assert await client.add("flights") == [0]
        assert await client.send() == 0
        client.sequences.clear()
        client.connect()
        assert await client.end(committed=False) == 0
        assert await client.add("flights") == [0]
        assert await client.send(FLIGHTS, b"of the next") == NEW_EPOCH
        assert await client.end(committed=False) == 0
        assert await client.init(again=True) == 0
        assert await client.add("flights") == [0]
        # Under another pair nothing was aborted.
        assert await client.send(FLIGHTS, b"of the next") == 0
        assert await client.end() == 0

    play(scenario)


# --- positions --------------------------------------------------------------------------------


def test_no_positions_of_an_aborted_transaction_are_committed_with_the_next(play: Play) -> None:
    # The next one commits positions of another partition only.
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        assert await client.add_offsets() == 0
        late = client.late()
        client.connect()
        assert await client.end(committed=False) == 0
        assert await client.add_offsets() == 0
        assert await late.commit(10) == LOADING
        assert await client.commit(5, topic="delays") == LOADING
        assert await client.commit(6, topic="delays") == LOADING
        assert await client.commit(6, topic="delays") == 0
        assert await client.commit(7, topic="delays") == 0
        assert await client.end() == 0
        assert await kafka.position() != 10

    play(scenario)


def test_positions_do_not_go_to_a_leader_on_another_broker_after_the_look(play: Play) -> None:
    # Its gateway knows who has committed last, this one does not.
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        assert await client.add_offsets() == 0
        assert await client.commit(7) == 0
        for number, coordinator in kafka.groups.items():
            kafka.world.leaders[TopicPartition(CONSUMER_OFFSETS_TOPIC, number)] = 2
            kafka.world.actors[f"group:{number}@2"] = coordinator
            # What is known of it here is old: the leader says so.
            del kafka.world.actors[f"group:{number}@1"]
        before = len(kafka.world.calls_of("txn_offset_commit"))
        assert await client.commit(8) == int(ErrorCode.NOT_COORDINATOR)
        assert len(kafka.world.calls_of("txn_offset_commit")) == before

    play(scenario)


# --- coordinators that were replaced, or are of an older build --------------------------------


def test_what_a_replaced_coordinator_says_out_of_its_memory_is_not_believed(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client, other = await begun(kafka), kafka.gateway()
        await client.transact(FLIGHTS)
        before = kafka.coordinator.machine.ids.metadata(NAME)
        assert await client.add("flights") == [0]
        assert await client.send(gateway=other) == 0
        verify = kafka.coordinator.verify_txn

        async def answer(request: Any) -> Any:
            with remembers(kafka, before):
                reply = await verify(request)
            return structs.replace(reply, coordinator_epoch=0)

        kafka.coordinator.verify_txn = answer  # type: ignore[method-assign]
        other.enrolments.ended(NAME)
        other.cluster.order.learn(0, 1)
        # INVALID_TXN_STATE would end a client that lives.
        assert await client.send(gateway=other) == AGAIN
        kafka.coordinator.verify_txn = verify  # type: ignore[method-assign]
        assert await client.send(gateway=other) == 0

    play(scenario)


@pytest.mark.parametrize(
    "controller", ["names another", "does not answer", "was replaced as well", "names this one"]
)
def test_a_denial_counts_only_if_the_controller_knows_no_other_coordinator(
    play: Play, controller: str
) -> None:
    async def scenario(kafka: Kafka) -> None:
        client, other = await begun(kafka), kafka.gateway()
        await client.transact(FLIGHTS)
        before = kafka.coordinator.machine.ids.metadata(NAME)
        assert await client.add("flights") == [0]
        assert await client.send(gateway=other) == 0
        other.enrolments.ended(NAME)
        if controller == "names another":
            kafka.world.leader_epochs[SHARD] += 1
        elif controller == "does not answer":
            del kafka.world.actors[CONTROLLER_ACTOR]
        elif controller == "was replaced as well":
            other.cluster.order.learn(SHARD.partition, kafka.world.leader_epochs[SHARD] + 1)
        believed = controller == "names this one"
        with remembers(kafka, before):
            # INVALID_TXN_STATE would end a client that lives.
            assert await client.send(gateway=other) == (NOT_OPEN if believed else AGAIN)

    play(scenario)


def test_who_calls_a_transaction_open_whose_marker_is_there_is_not_believed(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client, other = await begun(kafka), kafka.gateway()
        assert await client.add("flights") == [0]
        assert await client.send(gateway=other) == 0
        before = kafka.coordinator.machine.ids.metadata(NAME)
        assert await client.end() == 0
        assert await client.add("flights") == [0]
        # INVALID_PRODUCER_EPOCH would end a client that lives.
        looks = len(kafka.world.calls_of("metadata"))
        with remembers(kafka, before):
            assert await client.send(gateway=other) == AGAIN
        assert await client.send(gateway=other) == 0
        assert len(kafka.world.calls_of("metadata")) > looks

    play(scenario)


def test_nor_is_who_calls_it_open_to_positions(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        assert await client.add_offsets() == 0
        assert await client.commit(7) == 0
        before = kafka.coordinator.machine.ids.metadata(NAME)
        assert await client.end() == 0
        assert await client.add_offsets() == 0
        with remembers(kafka, before):
            assert await client.commit(8) == LOADING
        assert await client.commit(8) == 0
        assert await client.end() == 0
        assert await kafka.position() == 8

    play(scenario)


def test_what_a_coordinator_of_an_older_build_enrols_is_not_used(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        ask = kafka.coordinator.add_partitions_to_txn

        async def answer(request: Any) -> Any:
            reply = await ask(request)
            return structs.replace(reply, coordinator_epoch=-1, producer_id=-1, producer_epoch=-1)

        kafka.coordinator.add_partitions_to_txn = answer  # type: ignore[method-assign]
        assert await client.add("flights") == [int(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
        kafka.coordinator.add_partitions_to_txn = ask  # type: ignore[method-assign]
        assert await client.send() == 0

    play(scenario)


# --- what a connection remembers --------------------------------------------------------------


def a_connection() -> Client:
    return Client(principal=Principal("User:a"), host="h")


def test_only_a_repeat_after_the_newest_abort_is_a_sign_of_life() -> None:
    one = a_connection()
    assert shows_life(one, "a", PAIR, 0, "x")
    assert not shows_life(one, "a", PAIR, 1, "x")
    assert not shows_life(one, "a", PAIR, 1, "y")
    # Of another pair, id or connection it says nothing.
    assert not shows_life(one, "a", (7, 3), 1, "x")
    assert not shows_life(one, "b", PAIR, 1, "x")
    assert not shows_life(a_connection(), "a", PAIR, 1, "x")
    # What came before the next abort may have been given up with it.
    assert not shows_life(one, "a", PAIR, 2, "x")
    assert shows_life(one, "a", PAIR, 2, "x")
    assert shows_life(one, "a", PAIR, 2, "z")
    assert not shows_life(one, "a", PAIR, 3, "x")


def test_so_many_requests_and_pairs_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told, "REFUSED_MAX", 3)
    monkeypatch.setattr(told, "LIVES_MAX", 2)
    one = a_connection()
    # The first ones are kept, so who repeats all in their order is heard at once.
    assert not any(shows_life(one, "a", PAIR, 1, number) for number in range(10))
    assert not shows_life(one, "a", PAIR, 1, 9)
    assert all(shows_life(one, "a", PAIR, 1, number) for number in range(10))
    for name in ("b", "c"):
        assert not shows_life(one, name, PAIR, 1, 0)
    assert not shows_life(one, "a", PAIR, 1, 0)
    assert len(one.remembered["told"]) == 2
