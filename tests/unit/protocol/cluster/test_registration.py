"""Brokers: a number and a data directory belong together, and partitions are spread over them."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec import structs

from oncelog.actors.protocol.cluster.log import (
    BrokerRegistered,
    ClusterFounded,
    encode_cluster_record,
)
from oncelog.actors.protocol.cluster.machine import ClusterMachine
from oncelog.actors.protocol.messages.brokers import RegisterBrokerReply, RegisterBrokerRequest
from oncelog.actors.protocol.messages.cluster import (
    CreatePartitionsRequest,
    CreateTopicRequest,
)
from oncelog.storage.errors import ErrorCode

CLUSTER_ID = "c" * 32
SECOND = RegisterBrokerRequest(
    broker_id=2, cluster_id=CLUSTER_ID, data_dir="/data", directory_id="d2", rack="r1"
)


@pytest.fixture
def machine() -> ClusterMachine:
    machine = ClusterMachine()
    founded = ClusterFounded(
        cluster_id=CLUSTER_ID,
        cluster_key=b"k" * 32,
        transaction_state_partitions=1,
        offsets_partitions=1,
    )
    broker = BrokerRegistered(broker_id=1, data_dir="/data", directory_id="d1")
    for record in machine.decide_founding(founded, broker, ("1" * 32, "2" * 32)).records:
        machine.apply(record)
    return machine


def register(machine: ClusterMachine, request: RegisterBrokerRequest) -> RegisterBrokerReply:
    decision = machine.decide_register_broker(request)
    for record in decision.records:
        machine.apply(record)
    return decision.reply


def numbers(machine: ClusterMachine) -> dict[int, str]:
    return {broker.broker_id: broker.rack for broker in machine.brokers()}


def test_a_new_number_is_registered_once(machine: ClusterMachine):
    assert register(machine, SECOND).error is ErrorCode.NONE
    assert numbers(machine) == {1: "", 2: "r1"}
    again = machine.decide_register_broker(SECOND)
    assert (again.reply.error, again.records) == (ErrorCode.NONE, ())


def test_another_rack_or_path_is_followed(machine: ClusterMachine):
    register(machine, SECOND)
    moved = structs.replace(SECOND, rack="r2", data_dir="/disk")
    assert register(machine, moved).error is ErrorCode.NONE
    assert machine.brokers()[1].data_dir == "/disk"
    assert numbers(machine)[2] == "r2"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"directory_id": "other"}, ("broker 2", "d2", "other")),
        ({"cluster_id": "e" * 32}, ("broker 2", CLUSTER_ID, "e" * 32)),
    ],
)
def test_another_directory_or_cluster_is_refused_with_both(
    machine: ClusterMachine, changes: dict[str, str], words: tuple[str, ...]
):
    register(machine, SECOND)
    decision = machine.decide_register_broker(structs.replace(SECOND, **changes))
    assert decision.reply.error is ErrorCode.INVALID_REQUEST
    assert decision.records == ()
    assert all(word in decision.reply.detail for word in words)


def test_a_broker_of_before_directories_had_ids_takes_the_first_that_comes(
    machine: ClusterMachine,
):
    machine.apply(encode_cluster_record(BrokerRegistered(broker_id=2, data_dir="/data")))
    assert register(machine, SECOND).error is ErrorCode.NONE
    other = structs.replace(SECOND, directory_id="other")
    assert register(machine, other).error is ErrorCode.INVALID_REQUEST


def create(machine: ClusterMachine, name: str, partitions: int, live: set[int]) -> Counter[int]:
    request = CreateTopicRequest(name=name, topic_id=f"{len(name):032x}", partitions=partitions)
    for record in machine.decide_create_topic(request, live=live).records:
        machine.apply(record)
    return Counter(placement.broker_id for placement in machine.placements(name))


def test_partitions_are_spread_over_the_living_brokers(machine: ClusterMachine):
    for number in (2, 3):
        register(machine, structs.replace(SECOND, broker_id=number, directory_id=f"d{number}"))
    assert create(machine, "t", 7, {1, 2, 3}) == {1: 3, 2: 2, 3: 2}
    assert create(machine, "tt", 2, {1, 2, 3}) == {2: 1, 3: 1}
    assert create(machine, "ttt", 4, {1, 3}) == {1: 2, 3: 2}
    more = CreatePartitionsRequest(name="t", partitions=9)
    for record in machine.decide_create_partitions(more, live={2}).records:
        machine.apply(record)
    assert [placement.broker_id for placement in machine.placements("t")[7:]] == [2, 2]


def test_what_is_not_registered_gets_nothing_however_alive(machine: ClusterMachine):
    assert create(machine, "t", 4, {1, 9}) == {1: 4}


@pytest.mark.parametrize("factor", [0, 2, 3])
def test_a_replication_factor_beyond_one_is_refused_with_its_value(
    machine: ClusterMachine, factor: int
):
    register(machine, SECOND)
    request = CreateTopicRequest(
        name="t", topic_id="a" * 32, partitions=1, replication_factor=factor
    )
    reply = machine.decide_create_topic(request).reply
    assert reply.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert f"replication_factor={factor}" in reply.detail
