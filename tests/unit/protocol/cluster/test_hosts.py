"""Which replicas share an actor: the rules, and what the metadata log keeps of them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.cluster.cluster_records import (
    BrokerRegistered,
    ClusterFounded,
    TopicCreated,
    encode_cluster_record,
)
from oncelog.actors.protocol.cluster.hosts import OWN_ACTOR, HostRules
from oncelog.actors.protocol.messages.cluster import (
    BecomeLeaderRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
)
from oncelog.storage.model import TopicPartition

TOPIC_ID = "a" * 32


def chosen(rules: HostRules, count: int, held: dict[int, Counter[int]] | None = None) -> list[int]:
    return [host for (host,) in rules.choose(((1,),) * count, held or {})]


def test_one_replica_per_actor_never_shares():
    assert chosen(HostRules(replicas_per_actor=1), 5) == [OWN_ACTOR] * 5


def test_a_number_fills_hosts_evenly_and_never_beyond_it():
    rules = HostRules(replicas_per_actor=3)
    assert Counter(chosen(rules, 7)) == {1: 3, 2: 3, 3: 1}
    assert chosen(rules, 2, {1: Counter({1: 3, 2: 1})}) == [2, 2]


def test_auto_gives_actors_of_their_own_first_and_then_shares():
    rules = HostRules(replicas_per_actor="auto", own_max=2, hosts_max=2)
    found = chosen(rules, 30)
    assert found[:2] == [OWN_ACTOR] * 2
    assert Counter(found[2:]) == {1: 14, 2: 14}


def test_auto_begins_no_second_host_for_a_few():
    rules = HostRules(replicas_per_actor="auto", hosts_max=4)
    assert chosen(rules, 8) == [1] * 8


def test_a_host_more_is_begun_rather_than_one_overloaded():
    rules = HostRules(replicas_per_actor="auto", hosts_max=1, replicas_max=4)
    assert Counter(chosen(rules, 9)) == {1: 4, 2: 4, 3: 1}


def test_a_host_that_lost_its_replicas_is_used_again():
    rules = HostRules(replicas_per_actor=2)
    assert chosen(rules, 3, {1: Counter({2: 2})}) == [1, 1, 3]


@given(
    st.integers(1, 6) | st.just("auto"),
    st.integers(0, 4),
    st.integers(1, 3),
    st.integers(1, 5),
    st.lists(st.integers(1, 3), max_size=40),
)
def test_no_host_holds_more_than_it_may(per_actor, own_max, hosts_max, replicas_max, brokers):
    rules = HostRules(
        replicas_per_actor=per_actor,
        own_max=own_max,
        hosts_max=hosts_max,
        replicas_max=replicas_max,
    )
    loads: dict[int, Counter[int]] = {}
    for broker, (host,) in zip(brokers, rules.choose([(one,) for one in brokers], {}), strict=True):
        loads.setdefault(broker, Counter())[host] += 1
    limit = replicas_max if per_actor == "auto" else min(per_actor, replicas_max)
    for load in loads.values():
        own = load.pop(OWN_ACTOR, 0)
        assert own == (load.total() + own if per_actor == 1 else min(own, own_max))
        assert max(load.values(), default=0) <= limit


@pytest.fixture
def machine() -> ClusterMachine:
    machine = ClusterMachine()
    founded = ClusterFounded(
        cluster_id="c" * 32,
        cluster_key=b"k" * 32,
        transaction_state_partitions=2,
        offsets_partitions=1,
    )
    broker = BrokerRegistered(broker_id=1, data_dir="/data")
    ids = ("1" * 32, "2" * 32)
    rules = HostRules(replicas_per_actor=2)
    for record in machine.decide_founding(founded, broker, ids, rules).records:
        machine.apply(record)
    return machine


def hosts(machine: ClusterMachine, name: str) -> list[int]:
    return [placement.host for placement in machine.placements(name)]


def test_the_metadata_log_keeps_where_each_replica_is_held(machine: ClusterMachine):
    assert hosts(machine, "__transaction_state") == [1, 1]
    assert hosts(machine, "__consumer_offsets") == [2]
    rules = HostRules(replicas_per_actor=2)
    create = CreateTopicRequest(name="t", topic_id=TOPIC_ID, partitions=2)
    for record in machine.decide_create_topic(create, rules).records:
        machine.apply(record)
    more = CreatePartitionsRequest(name="t", partitions=4)
    for record in machine.decide_create_partitions(more, HostRules()).records:
        machine.apply(record)
    assert hosts(machine, "t") == [2, 3, OWN_ACTOR, OWN_ACTOR]
    (topic,) = machine.metadata(["t"])
    assert [partition.hosts for partition in topic.partitions] == [(2,), (3,), (0,), (0,)]


def test_a_host_is_told_its_replicas_and_whether_they_were_led(machine: ClusterMachine):
    shard = TopicPartition("__transaction_state", 1)
    lead = BecomeLeaderRequest(
        topic_partition=shard,
        topic_id="1" * 32,
        broker_id=1,
        incarnation="i",
        expected_epoch=-1,
    )
    for record in machine.decide_become_leader(lead).records:
        machine.apply(record)
    told = {one.topic_partition: one.is_in_sync for one in machine.hosted(1, 1)}
    assert told == {TopicPartition("__transaction_state", 0): False, shard: True}
    assert machine.hosted(2, 1) == machine.hosted(1, 9) == ()


def test_a_deleted_topic_is_no_longer_told(machine: ClusterMachine):
    rules = HostRules(replicas_per_actor=2)
    create = CreateTopicRequest(name="t", topic_id=TOPIC_ID, partitions=2)
    for record in machine.decide_create_topic(create, rules).records:
        machine.apply(record)
    assert [one.topic_id for one in machine.hosted(1, 3)] == [TOPIC_ID]
    for record in machine.decide_delete_topic(DeleteTopicRequest(name="t")).records:
        machine.apply(record)
    assert machine.hosted(1, 3) == ()


def test_a_record_without_hosts_is_of_replicas_that_are_alone(machine: ClusterMachine):
    record = TopicCreated(name="old", topic_id="d" * 32, replicas=((1,), (1,)), settings=())
    machine.apply(encode_cluster_record(record))
    assert hosts(machine, "old") == [OWN_ACTOR, OWN_ACTOR]
