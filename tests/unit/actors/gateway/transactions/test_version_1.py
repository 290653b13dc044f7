"""Clients of transactions' version 1 and late copies of their requests.

Real coordinators and leaders, and several gateways. A client has one connection to its coordinator
at a time; what it sent on an earlier one may come at any time.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka_old_client import (
    LIBRDKAFKA,
    LOADING,
    OldClient,
    begun,
    connection,
    internal,
)
from kafka_transactions import DELAYS, FLIGHTS, NAME, TIMEOUT_MS, Kafka, Play, abort_as_operator
from msgspec import structs

from oncelog.actors.gateway.connection_order import ConnectionOrder
from oncelog.actors.gateway.errors import ReconnectError
from oncelog.actors.gateway.messages.init_producer_id import InitProducerIdRequest
from oncelog.actors.gateway.transactions import told
from oncelog.actors.gateway.transactions.told import CommitOrder
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages.access import Access, Acl, Operation, Resource, Rules
from oncelog.actors.protocol.partition.producers import PRODUCER_ID_EXPIRATION_MS
from oncelog.actors.rpc.door import Door
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition

FENCED = int(ErrorCode.PRODUCER_FENCED)
OLD_EPOCH = int(ErrorCode.INVALID_PRODUCER_EPOCH)
NOT_OPEN = int(ErrorCode.INVALID_TXN_STATE)
NEW_EPOCH = int(ErrorCode.UNKNOWN_PRODUCER_ID)
AGAIN = int(ErrorCode.NOT_ENOUGH_REPLICAS)


# --- what works -------------------------------------------------------------------------------


def test_transactions_share_a_pair_and_go_on_with_their_sequences(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        told_pair = client.pid, client.epoch
        for number, committed in enumerate((True, False, True, False, True)):
            assert internal(kafka) == (told_pair[0], told_pair[1] + number)
            await client.transact(FLIGHTS, DELAYS, committed=committed)
        assert (client.pid, client.epoch) == told_pair
        assert client.sequences == {FLIGHTS: 5, DELAYS: 5}
        # Five records and five markers.
        for tp in (FLIGHTS, DELAYS):
            machine = kafka.leaders[tp].replica.machine
            assert machine.last_stable_offset == machine.log_end_offset == 10
        # What was enrolled told the pair: nobody was asked again.
        assert not kafka.world.calls_of("verify_txn")

    play(scenario)


def test_a_partition_that_was_left_out_of_transactions_goes_on_where_it_was(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        await client.transact(FLIGHTS, DELAYS)
        for _ in range(3):
            await client.transact(FLIGHTS)
        await client.transact(FLIGHTS, DELAYS)
        assert client.sequences == {FLIGHTS: 5, DELAYS: 2}

    play(scenario)


def test_batches_come_through_other_gateways_than_the_coordinators(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client, other = await begun(kafka), kafka.gateway()
        for number in range(3):
            assert await client.add("flights") == [0]
            assert await client.send(gateway=other) == 0
            # It asks once, the first time; later its leader tells it that there is another pair.
            assert len(kafka.world.calls_of("verify_txn")) == number + 1
            assert await client.send(gateway=other) == 0
            assert await client.end() == 0
        assert client.sequences == {FLIGHTS: 6}
        assert await kafka.committed(FLIGHTS) == 9

    play(scenario)


def test_positions_are_committed_with_the_transaction(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        for number in (1, 2, 3):
            assert await client.add("flights") == [0]
            assert await client.send() == 0
            assert await client.add_offsets() == 0
            assert await client.commit(number) == 0
            assert await client.commit(10 * number) == 0
            assert await client.end(committed=number != 2) == 0
            assert await kafka.position() == (10 if number < 3 else 30)

    play(scenario)


def test_the_pair_recovers_after_a_lost_batch_and_is_another_then(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        await client.transact(FLIGHTS)
        assert await client.add("flights") == [0]
        assert await client.send(sequence=7) == NEW_EPOCH
        late = client.late()
        assert await client.end(committed=False) == 0
        assert await client.init(again=True) == 0
        assert (client.pid, client.epoch) != (late.pid, late.epoch)
        await client.transact(FLIGHTS)
        # Whatever names the earlier pair is of nobody.
        assert await client.add("flights") == [0]
        assert await late.send() == OLD_EPOCH
        assert await late.add("flights") == [FENCED]
        assert await late.end() == FENCED
        assert await late.init(again=True) == FENCED
        assert kafka.state() == "Ongoing"

    play(scenario)


# --- the order of connections -----------------------------------------------------------------


def test_a_connection_from_before_its_coordinator_was_known_is_closed_once(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = OldClient(kafka, kafka.gateway())
        early = connection(client.gateway)
        assert await client.init() == 0
        # Whoever goes on elsewhere was told its pair there.
        client.client = early
        with pytest.raises(ReconnectError):
            await client.add("flights")
        client.connect()
        await client.transact(FLIGHTS)

    play(scenario)


def test_a_connection_on_which_a_pair_was_told_goes_on_if_its_coordinator_was_not_known(
    play: Play,
) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = OldClient(kafka, kafka.gateway())
        assert await client.init() == 0
        await client.transact(FLIGHTS)
        # Another coordinator, which tells another pair on the same connection.
        await kafka.world.crash(kafka.coordinator)
        kafka.coordinator = await kafka.world.coordinator()
        assert await client.init(again=True) == 0
        await client.transact(FLIGHTS)

    play(scenario)


def test_a_connection_without_an_answer_so_far_is_asked_to_repeat_its_request(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        client.client.place = None
        asked = len(kafka.world.calls_of("add_partitions_to_txn"))
        assert await client.add("flights") == [int(ErrorCode.CONCURRENT_TRANSACTIONS)]
        assert len(kafka.world.calls_of("add_partitions_to_txn")) == asked
        assert await client.add("flights") == [0]
        assert await client.add_offsets() == 0
        group = connection(client.gateway)
        group.place = None
        assert await client.commit(7, client=group) == LOADING
        assert not kafka.world.calls_of("txn_offset_commit")
        assert await client.commit(7, client=group) == 0

    play(scenario)


@pytest.mark.parametrize("committed", [True, False])
def test_a_late_end_of_one_transaction_does_not_end_the_next(play: Play, committed: bool) -> None:
    # 1. An end is on its way; its client gives up the connection. 2. It repeats the end on another,
    # and begins the next transaction. 3. The first copy arrives.
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        assert await client.add("flights") == [0]
        assert await client.send() == 0
        late = client.late()
        client.connect()
        assert await client.end(committed=committed) == 0
        assert await client.add("flights") == [0]
        with pytest.raises(ReconnectError):
            await late.end(committed=committed)
        assert kafka.state() == "Ongoing"
        assert await client.send() == 0
        assert await client.end() == 0

    play(scenario)


def test_an_end_whose_answer_was_lost_is_repeated_on_another_connection(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        await client.transact(FLIGHTS)
        epoch = internal(kafka)[1]
        client.connect()
        assert await client.end() == 0
        assert await client.end(committed=False) == NOT_OPEN
        assert internal(kafka)[1] == epoch

    play(scenario)


def test_a_late_enrolment_begins_nothing_once_its_transaction_has_ended(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        assert await client.add("flights") == [0]
        late = client.late()
        client.connect()
        assert await client.end() == 0
        for request in (late.add("delays"), late.add_offsets()):
            with pytest.raises(ReconnectError):
                await request
        assert kafka.state() == "CompleteCommit"
        assert kafka.enrolled() == set()

    play(scenario)


def test_a_gateway_that_starts_anew_comes_after_the_one_before(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        assert await client.add("flights") == [0]
        late = client.late()
        client.connect(kafka.gateway())
        with pytest.raises(ReconnectError):
            await client.end()
        client.connect()
        assert await client.end() == 0
        assert await client.add("flights") == [0]
        with pytest.raises(ReconnectError):
            await late.end()
        # A connection of the earlier one may have any number.
        for _ in range(9):
            late.connect()
        with pytest.raises(ReconnectError):
            await late.end()
        assert kafka.state() == "Ongoing"

    play(scenario)


def test_another_coordinator_hears_only_connections_that_knew_of_it(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        assert await client.add("flights") == [0]
        assert await client.send() == 0
        await kafka.world.crash(kafka.coordinator)
        kafka.coordinator = await kafka.world.coordinator()
        with pytest.raises(ReconnectError):
            await client.end()
        assert kafka.state() == "Ongoing"
        client.connect()
        assert await client.end() == 0
        await client.transact(FLIGHTS)

    play(scenario)


def test_a_coordinator_that_leads_on_another_broker_is_not_asked(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        shard = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
        kafka.world.leaders[shard] = 2
        kafka.world.actors["transaction:0@2"] = kafka.coordinator
        await asyncio.sleep(10)
        asked = len(kafka.world.calls_of("add_partitions_to_txn"))
        assert await client.add("flights") == [int(ErrorCode.NOT_COORDINATOR)]
        assert await client.end() == int(ErrorCode.NOT_COORDINATOR)
        assert len(kafka.world.calls_of("add_partitions_to_txn")) == asked
        assert not kafka.world.calls_of("end_txn")
        # Nor if it moves between the look and the question.
        kafka.world.leaders[shard] = 1
        assert await client.add("flights") == [0]
        kafka.world.leaders[shard] = 2
        kafka.world.actors.pop("transaction:0@1")
        with pytest.raises(ReconnectError, match="NETWORK_EXCEPTION"):
            await client.end()
        assert kafka.state() == "Ongoing"
        # What is read may be asked of it.
        assert await client.send(gateway=kafka.gateway()) == 0

    play(scenario)


def test_a_group_coordinator_on_another_broker_is_not_asked_to_commit(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        assert await client.add_offsets() == 0
        for number, coordinator in kafka.groups.items():
            kafka.world.leaders[TopicPartition(CONSUMER_OFFSETS_TOPIC, number)] = 2
            kafka.world.actors[f"group:{number}@2"] = coordinator
        assert await client.commit(7) == int(ErrorCode.NOT_COORDINATOR)

    play(scenario)


def test_requests_of_one_connection_are_numbered_and_repeats_are_not(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        await client.transact(FLIGHTS)
        # The next one meets the last one's markers.
        held = kafka.hold("partition:flights-0@1", "write_txn_markers")
        assert await client.add("flights") == [0]
        assert await client.send() == 0
        ending = asyncio.ensure_future(client.end())
        await held.has_come.wait()
        beginning = asyncio.ensure_future(client.add("flights"))
        await asyncio.sleep(0.05)
        held.go.set()
        assert (await ending, await beginning) == (0, [0])
        labels = [
            request.label
            for _, _, request in kafka.world.calls
            if request.method in ("add_partitions_to_txn", "end_txn")
        ]
        assert [label.request for label in labels][:4] == [1, 2, 3, 4]
        repeats = [label.request for label in labels][4:]
        assert set(repeats) == {5}
        assert len(repeats) > 1

    play(scenario)


def test_a_place_has_the_epochs_that_were_known_when_it_was_taken() -> None:
    order = ConnectionOrder()
    order.incarnation = 9
    first = order.take()
    order.learn(3, 7)
    second = order.take()
    order.learn(3, 6)
    order.learn(4, -1)
    third = order.take()
    order.learn(4, 2)
    labels = [place.label(3, NAME) for place in (first, second, third)]
    assert [label.coordinator_epoch for label in labels] == [-1, 7, 7]
    assert labels == sorted(labels)
    assert third.label(4, NAME).coordinator_epoch == -1
    again = second.label(3, NAME)
    assert labels[1] < again < labels[2]
    assert (again.incarnation, again.number, again.request) == (9, 2, 2)


def test_a_place_has_the_epoch_of_who_told_a_pair_there_for_that_id_only() -> None:
    place = ConnectionOrder().take()
    place.begin(NAME, 7)
    assert place.label(3, NAME).coordinator_epoch == 7
    assert place.label(3, "another").coordinator_epoch == -1
    place.begin("another", 8)
    assert place.label(3, NAME).coordinator_epoch == -1
    # A coordinator that was replaced has told the pair again; who replaced it was known.
    order = ConnectionOrder()
    order.learn(3, 9)
    later = order.take()
    later.begin(NAME, 8)
    assert later.label(3, NAME).coordinator_epoch == 9


# --- late batches -----------------------------------------------------------------------------


def test_a_copy_of_what_one_transaction_wrote_is_no_part_of_the_next(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client, other = await begun(kafka), kafka.gateway()
        assert await client.add("flights") == [0]
        late = client.late()
        assert await client.send(gateway=other) == 0
        assert await client.end() == 0
        # Nothing is open; then another partition is; then the same one.
        for gateway in (client.gateway, other):
            assert await late.send(gateway=gateway) == NOT_OPEN
        assert await client.add("delays") == [0]
        for gateway in (client.gateway, other):
            assert await late.send(gateway=gateway) == NOT_OPEN
        assert await client.add("flights") == [0]
        for gateway in (client.gateway, other):
            assert await late.send(gateway=gateway) == NEW_EPOCH
        assert await client.send() == 0
        for gateway in (client.gateway, other):
            assert await late.send(gateway=gateway) == NEW_EPOCH
        assert await client.end() == 0
        # Two records, two markers.
        assert await kafka.committed(FLIGHTS) == 4

    play(scenario)


def test_a_batch_is_sent_again_to_its_own_transaction_and_is_no_second_one(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        await client.transact(FLIGHTS)
        assert await client.add("flights") == [0]
        for _ in range(2):
            assert await client.send(FLIGHTS, b"a", b"b", sequence=1) == 0
        assert await client.end() == 0
        assert await kafka.committed(FLIGHTS) == 5

    play(scenario)


def test_a_batch_enrols_nothing(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        assert await client.send() == NOT_OPEN
        assert kafka.state() == "Empty"
        assert await client.add("delays") == [0]
        assert await client.send(FLIGHTS) == NOT_OPEN
        assert kafka.enrolled() == {DELAYS}

    play(scenario)


# --- who else ends a transaction ---------------------------------------------------------------


async def _time_out(kafka: Kafka) -> None:
    await asyncio.sleep(TIMEOUT_MS / 1_000 + 30)


async def _take_over(kafka: Kafka) -> None:
    assert await (await begun(kafka)).init() == 0


async def _take_over_as_version_2(kafka: Kafka) -> None:
    gateway = kafka.gateway()
    request = InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=TIMEOUT_MS)
    response = await gateway.transactions.init_producer_id(gateway.call(5), request)
    assert response.error_code == 0


@pytest.mark.parametrize(
    "ended", [_time_out, abort_as_operator, _take_over, _take_over_as_version_2]
)
def test_a_client_whose_transaction_another_has_ended_is_fenced_for_good(
    play: Play, ended: Any
) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        assert await client.add("flights") == [0]
        assert await client.send() == 0
        assert await client.add_offsets() == 0
        await ended(kafka)
        for _ in range(2):
            assert await client.send() == OLD_EPOCH
            assert await client.add("delays") == [FENCED]
            assert await client.add_offsets() == FENCED
            assert await client.commit(7) == OLD_EPOCH
            assert await client.end(committed=False) == FENCED
            assert await client.init(again=True) == FENCED
            client.connect()
        assert kafka.enrolled() == set()

    play(scenario)


def test_an_id_may_be_of_both_versions_in_turn(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        for _ in range(2):
            client = await begun(kafka)
            await client.transact(FLIGHTS)
            await client.transact(FLIGHTS)
            await _take_over_as_version_2(kafka)
            assert await client.add("flights") == [FENCED]

    play(scenario)


# --- codes ------------------------------------------------------------------------------------


def test_fenced_is_said_in_the_way_that_a_request_of_its_time_knows(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        await _take_over(kafka)
        assert await client.add("flights", version=2) == [FENCED]
        assert await client.add("flights", version=1) == [OLD_EPOCH]
        assert await client.end(version=2) == FENCED
        assert await client.end(version=1) == OLD_EPOCH
        assert await client.init(again=True, version=4) == FENCED
        assert await client.init(again=True, version=3) == OLD_EPOCH
        assert await client.commit(7, version=4) == OLD_EPOCH

    play(scenario)


# librdkafka ends if it hears of a gap in its sequences; the others may begin them again.
TAKES_ANOTHER_EPOCH = [
    (LIBRDKAFKA, ErrorCode.UNKNOWN_PRODUCER_ID),
    ("", ErrorCode.UNKNOWN_PRODUCER_ID),
    ("kafka-python 3.0.12", ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ("apache-kafka-java 3.9.1", ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
]


@pytest.mark.parametrize(("name", "code"), TAKES_ANOTHER_EPOCH)
def test_once_the_epochs_are_used_up_a_client_aborts_and_goes_on_under_another(
    play: Play, name: str, code: ErrorCode
) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        await client.transact(FLIGHTS)
        ids = kafka.coordinator.machine.ids
        metadata = ids.metadata(NAME)
        assert metadata is not None
        ids._transactions[NAME] = structs.replace(metadata, producer_epoch=32_766)
        assert await client.add("delays") == [0]
        assert await client.send(DELAYS) == 0
        assert await client.end() == 0
        assert internal(kafka)[0] != client.pid
        # Positions need no sequence of the client's.
        assert await client.add_offsets() == 0
        for position in (7, 8):
            assert await client.commit(position) == 0
        assert await client.end() == 0
        assert await kafka.position() == 8
        # A partition it knows, and a new one whose first sequence is 0: neither goes on.
        assert await client.add("flights", "delays") == [0, 0]
        client.client.name = name
        assert await client.send(FLIGHTS) == int(code)
        assert await client.send(DELAYS, sequence=0) == int(code)
        assert await client.end(committed=False) == 0
        assert await client.init(again=True) == 0
        await client.transact(FLIGHTS, DELAYS)

    play(scenario)


@pytest.mark.parametrize(("name", "code"), TAKES_ANOTHER_EPOCH)
def test_a_client_that_its_leader_has_forgotten_takes_another_epoch(
    play: Play, name: str, code: ErrorCode
) -> None:
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        await client.transact(FLIGHTS)
        machine = kafka.leaders[FLIGHTS].replica.machine
        machine.expire(kafka.world.now_ms())
        kafka.world.clock_offset_ms += PRODUCER_ID_EXPIRATION_MS
        assert machine.expire(kafka.world.now_ms())
        assert await client.add("flights") == [0]
        client.client.name = name
        assert await client.send() == int(code)
        assert await client.end(committed=False) == 0
        assert await client.init(again=True) == 0
        await client.transact(FLIGHTS)

    play(scenario)


def test_a_coordinator_that_cannot_be_asked_leaves_a_batch_to_be_sent_again(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        client, other = await begun(kafka), kafka.gateway()
        assert await client.add("flights") == [0]
        coordinator = kafka.world.actors.pop("transaction:0@1")
        code = await client.send(gateway=other)
        assert code == int(ErrorCode.NOT_ENOUGH_REPLICAS)
        kafka.world.actors["transaction:0@1"] = coordinator
        assert await client.send(gateway=other) == 0

    play(scenario)


def test_a_coordinator_of_an_older_build_is_waited_for(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(kafka: Kafka) -> None:
        ask = kafka.coordinator.init_producer_id

        async def answer(request: Any) -> Any:
            return structs.replace(await ask(request), coordinator_epoch=-1)

        kafka.coordinator.init_producer_id = answer  # type: ignore[method-assign]
        client = OldClient(kafka, kafka.gateway())
        assert await client.init() == int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert client.pid == -1
        assert "upgrade all brokers" in caplog.text

    play(scenario)


# --- positions --------------------------------------------------------------------------------


def test_late_positions_do_not_replace_those_of_the_next_transaction(play: Play) -> None:
    # 1. A commit of positions is on its way; its client gives up the connection, and aborts. 2. The
    # next transaction commits positions on another. 3. The first ones arrive.
    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        first = connection(client.gateway)
        assert await client.add_offsets() == 0
        assert await client.end(committed=False) == 0
        assert await client.commit(99, client=first) == NOT_OPEN
        assert await client.add_offsets() == 0
        second = connection(client.gateway)
        assert await client.commit(7, client=second) == LOADING
        assert await client.commit(7, client=second) == 0
        with pytest.raises(ReconnectError):
            await client.commit(99, client=first)
        assert await client.end() == 0
        assert await kafka.position() == 7

    play(scenario)


def test_the_order_of_commits_is_kept_of_so_many_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told, "COMMITTERS_MAX", 2)
    connections, order, who = ConnectionOrder(), CommitOrder(), Principal("User:a")
    old, new = connections.take(), connections.take()
    for name in ("a", "b"):
        order.enter(who, name, new)
    with pytest.raises(ReconnectError):
        order.enter(who, "a", old)
    order.enter(who, "c", new)
    # The longest unused is forgotten, and others' are not its own.
    order.enter(who, "b", old)
    order.enter(Principal("User:b"), "c", old)


# --- rights -----------------------------------------------------------------------------------


def test_who_may_not_write_hears_nothing_of_the_transaction(play: Play) -> None:
    who = "User:alice"

    def rules(*allowed: tuple[Operation, Resource, str]) -> Access:
        acls = tuple(
            Acl(principal=who, operation=operation, resource=resource, name=name)
            for operation, resource, name in allowed
        )
        return Access(rules=Rules(is_on=True, version=1, acls=acls))

    async def scenario(kafka: Kafka) -> None:
        client = await begun(kafka)
        assert await client.add("flights") == [0]
        assert await client.add_offsets() == 0
        id_of_hers = (Operation.WRITE, Resource.TRANSACTIONAL_ID, NAME)
        for allowed, code, positions in (
            ((), ErrorCode.TOPIC_AUTHORIZATION_FAILED, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
            (
                ((Operation.WRITE, Resource.TOPIC, "flights"),),
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            ),
            ((id_of_hers,), ErrorCode.TOPIC_AUTHORIZATION_FAILED, "GROUP_AUTHORIZATION_FAILED"),
        ):
            kafka.door = Door(rules(*allowed))
            stranger = client.late(gateway=kafka.gateway())
            stranger.client = connection(stranger.gateway, who)
            assert await stranger.send() == int(code)
            assert await stranger.commit(7) == int(ErrorCode[positions])
        assert not kafka.world.calls_of("verify_txn")

    play(scenario)
