"""The controller's machine: answers, and that replaying its log gives the same state."""

from __future__ import annotations

import pytest
from cluster_worlds import CLUSTER_ID, TOPIC_ID, ClusterWorld
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from oncelog.actors.protocol.cluster.brokers import fence
from oncelog.actors.protocol.cluster.cluster_machine import PRODUCER_ID_BLOCK_COUNT, ClusterMachine
from oncelog.actors.protocol.cluster.cluster_records import (
    BrokerRegistered,
    ClusterFounded,
    LeaderElected,
    TopicConfigured,
    decode_cluster_record,
    encode_cluster_record,
)
from oncelog.actors.protocol.cluster.elections import after_unfencing
from oncelog.actors.protocol.cluster.hosts import OWN_ACTOR
from oncelog.actors.protocol.cluster.reassignment import decide_reassign
from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages.brokers import ReassignPartitionRequest
from oncelog.actors.protocol.messages.cluster import (
    AllocateProducerIdsRequest,
    AlterTopicRequest,
    BecomeLeaderRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
)
from oncelog.actors.protocol.tickets import ClusterKeys
from oncelog.storage.errors import ErrorCode, InvariantViolation
from oncelog.storage.exceptions import CorruptDataError, InvalidSettingError
from oncelog.storage.model import TOPIC_PARTITIONS_MAX, TopicPartition

KEY = b"k" * 32
INTERNAL_TOPIC_IDS = {"__transaction_state": "1" * 32, "__consumer_offsets": "2" * 32}
FOUNDED = ClusterFounded(
    cluster_id="c", cluster_key=KEY, transaction_state_partitions=2, offsets_partitions=3
)


def run(machine: ClusterMachine, decision: Decision) -> object:
    for record in decision.records:
        machine.apply(record)
    return decision.reply


@pytest.fixture
def machine() -> ClusterMachine:
    cluster = ClusterMachine()
    broker = BrokerRegistered(broker_id=1, data_dir="/d")
    run(cluster, cluster.decide_founding(FOUNDED, broker, tuple(INTERNAL_TOPIC_IDS.values())))
    return cluster


def create(name: str = "flights", topic_id: str = "a" * 32, **fields: object) -> CreateTopicRequest:
    return CreateTopicRequest(**{"name": name, "topic_id": topic_id, "partitions": 2, **fields})


def lead(
    tp: TopicPartition,
    incarnation: str,
    expected_epoch: int = -1,
    broker_id: int = 1,
    topic_id: str | None = None,
) -> BecomeLeaderRequest:
    internal_id = INTERNAL_TOPIC_IDS.get(tp.topic, "a" * 32)
    return BecomeLeaderRequest(
        topic_partition=tp,
        topic_id=internal_id if topic_id is None else topic_id,
        broker_id=broker_id,
        incarnation=incarnation,
        expected_epoch=expected_epoch,
    )


def test_founding_makes_the_internal_topics_once(machine: ClusterMachine) -> None:
    assert [(t.name, len(t.partitions)) for t in machine.metadata(None)] == [
        ("__consumer_offsets", 3),
        ("__transaction_state", 2),
    ]
    again = machine.decide_founding(
        FOUNDED, BrokerRegistered(broker_id=1, data_dir="/d"), ("3" * 32, "4" * 32)
    )
    assert again.records == ()


def test_create_topic_places_every_partition(machine: ClusterMachine) -> None:
    reply = run(machine, machine.decide_create_topic(create(settings=(("flush", "os"),))))
    assert reply.error is ErrorCode.NONE
    assert machine.placements("flights") == [
        (TopicPartition("flights", 0), "a" * 32, 1, OWN_ACTOR),
        (TopicPartition("flights", 1), "a" * 32, 1, OWN_ACTOR),
    ]
    (topic,) = machine.metadata(["flights"])
    assert topic.settings == (("flush", "os"),)


def test_create_topic_repeated_with_its_id_is_a_retry(machine: ClusterMachine) -> None:
    run(machine, machine.decide_create_topic(create()))
    retry = machine.decide_create_topic(create())
    assert retry.reply.error is ErrorCode.NONE
    assert retry.reply.topic_id == "a" * 32
    assert retry.records == ()


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (create(topic_id="b" * 32), ErrorCode.TOPIC_ALREADY_EXISTS),
        (create(name="a/b", topic_id="b" * 32), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (create(name="..", topic_id="b" * 32), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (create(name="x", topic_id="b" * 32, partitions=0), ErrorCode.INVALID_PARTITIONS),
        (create(name="x", topic_id="b" * 32, partitions=10_001), ErrorCode.INVALID_PARTITIONS),
        (
            create(name="x", topic_id="b" * 32, replication_factor=2),
            ErrorCode.INVALID_REPLICATION_FACTOR,
        ),
        (create(name="x", topic_id="a" * 32), ErrorCode.INVALID_REQUEST),
        (create(name="x", topic_id="short"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_create_topic_refuses_what_cannot_be(
    machine: ClusterMachine, request_: CreateTopicRequest, error: ErrorCode
) -> None:
    run(machine, machine.decide_create_topic(create()))
    decision = machine.decide_create_topic(request_)
    assert decision.reply.error is error
    assert decision.records == ()


def test_a_deleted_topic_can_be_made_again_but_never_with_its_old_id(
    machine: ClusterMachine,
) -> None:
    run(machine, machine.decide_create_topic(create()))
    assert run(machine, machine.decide_delete_topic(DeleteTopicRequest(name="flights"))).error == 0
    assert machine.metadata(["flights"]) == ()
    assert machine.decide_create_topic(create()).reply.error is ErrorCode.INVALID_REQUEST
    again = machine.decide_create_topic(create(topic_id="b" * 32))
    assert again.reply.error is ErrorCode.NONE


@pytest.mark.parametrize("topic_id", ["a" * 32, "b" * 32])
def test_a_topic_is_deleted_by_its_id_or_not_at_all(machine: ClusterMachine, topic_id: str) -> None:
    request = DeleteTopicRequest(name="flights", topic_id=topic_id)
    assert machine.decide_delete_topic(request).reply.error is ErrorCode.UNKNOWN_TOPIC_ID
    run(machine, machine.decide_create_topic(create(topic_id="a" * 32)))
    reply = run(machine, machine.decide_delete_topic(request))
    is_its_own = topic_id == "a" * 32
    assert reply.error is (ErrorCode.NONE if is_its_own else ErrorCode.UNKNOWN_TOPIC_ID)
    assert bool(machine.metadata(["flights"])) is not is_its_own


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nothing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("__consumer_offsets", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_delete_topic_refuses(machine: ClusterMachine, name: str, error: ErrorCode) -> None:
    assert machine.decide_delete_topic(DeleteTopicRequest(name=name)).reply.error is error


def alter(name: str = "flights", **changes: str | None) -> AlterTopicRequest:
    return AlterTopicRequest(name=name, changes=tuple(changes.items()))


def as_they_are(settings: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(settings.items()))


def test_altering_changes_what_is_named_and_keeps_the_rest(machine: ClusterMachine) -> None:
    settings = (("a", "1"), ("b", "2"))
    run(machine, machine.decide_create_topic(create(settings=settings)))
    reply = run(machine, machine.decide_alter_topic(alter(b="3", c="4", a=None), as_they_are))
    assert reply.error is ErrorCode.NONE
    (topic,) = machine.metadata(["flights"])
    assert (topic.settings, topic.settings_version) == ((("b", "3"), ("c", "4")), 1)
    led = run(machine, machine.decide_become_leader(lead(TopicPartition("flights", 0), "one")))
    assert (led.settings, led.settings_version) == (topic.settings, 1)


def test_altering_to_what_is_there_already_is_a_retry(machine: ClusterMachine) -> None:
    run(machine, machine.decide_create_topic(create(settings=(("a", "1"),))))
    decision = machine.decide_alter_topic(alter(a="1", b=None), as_they_are)
    assert (decision.reply.error, decision.records) == (ErrorCode.NONE, ())


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nothing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("__consumer_offsets", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_alter_topic_refuses(machine: ClusterMachine, name: str, error: ErrorCode) -> None:
    decision = machine.decide_alter_topic(alter(name, a="1"), as_they_are)
    assert (decision.reply.error, decision.records) == (error, ())


def test_settings_that_are_impossible_together_are_refused(machine: ClusterMachine) -> None:
    run(machine, machine.decide_create_topic(create(settings=(("a", "1"),))))

    def refuse(settings: dict[str, str]) -> tuple[tuple[str, str], ...]:
        raise InvalidSettingError(f"not {sorted(settings)}")

    decision = machine.decide_alter_topic(alter(b="2"), refuse)
    assert decision.reply.error is ErrorCode.INVALID_CONFIG
    assert "not ['a', 'b']" in decision.reply.detail
    assert decision.records == ()


def more(partitions: int, name: str = "flights") -> CreatePartitionsRequest:
    return CreatePartitionsRequest(name=name, partitions=partitions)


def test_partitions_are_added_behind_those_there_are(machine: ClusterMachine) -> None:
    run(machine, machine.decide_create_topic(create(partitions=2)))
    run(machine, machine.decide_become_leader(lead(TopicPartition("flights", 1), "one")))
    decision = machine.decide_create_partitions(more(4))
    assert run(machine, decision).error is ErrorCode.NONE
    (topic,) = machine.metadata(["flights"])
    assert [item.partition for item in topic.partitions] == [0, 1, 2, 3]
    assert [item.leader_epoch for item in topic.partitions] == [-1, 0, -1, -1]
    assert machine.placements("flights")[-1].topic_partition == TopicPartition("flights", 3)
    with pytest.raises(InvariantViolation, match="I-24"):
        run(machine, decision)


def test_as_many_partitions_as_there_are_is_a_retry(machine: ClusterMachine) -> None:
    run(machine, machine.decide_create_topic(create(partitions=2)))
    decision = machine.decide_create_partitions(more(2))
    assert (decision.reply.error, decision.records) == (ErrorCode.NONE, ())


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (more(1), ErrorCode.INVALID_PARTITIONS),
        (more(0), ErrorCode.INVALID_PARTITIONS),
        (more(TOPIC_PARTITIONS_MAX + 1), ErrorCode.INVALID_PARTITIONS),
        (more(3, "nothing"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (more(9, "__consumer_offsets"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_create_partitions_refuses(
    machine: ClusterMachine, request_: CreatePartitionsRequest, error: ErrorCode
) -> None:
    run(machine, machine.decide_create_topic(create(partitions=2)))
    decision = machine.decide_create_partitions(request_)
    assert (decision.reply.error, decision.records) == (error, ())
    assert repr(request_.name) in decision.reply.detail


def test_each_start_of_a_replica_gets_a_higher_epoch(machine: ClusterMachine) -> None:
    tp = TopicPartition("__transaction_state", 0)
    first = run(machine, machine.decide_become_leader(lead(tp, "one")))
    second = run(machine, machine.decide_become_leader(lead(tp, "two", 0)))
    assert (first.leader_epoch, second.leader_epoch) == (0, 1)
    assert second.keys == ClusterKeys(current=KEY)
    assert (second.transaction_state_partitions, second.offsets_partitions) == (2, 3)


def test_one_start_that_asks_again_gets_its_epoch_again(machine: ClusterMachine) -> None:
    tp = TopicPartition("__transaction_state", 0)
    run(machine, machine.decide_become_leader(lead(tp, "one")))
    again = machine.decide_become_leader(lead(tp, "one"))
    assert again.reply.leader_epoch == 0
    assert again.records == ()


@pytest.mark.parametrize("expected", [-1, 0, 2])
def test_nobody_is_elected_who_expects_another_epoch_than_the_current_one(
    machine: ClusterMachine, expected: int
) -> None:
    """1. A first start leads with 0, a second one with 1. 2. A late copy of the first one's
    request arrives, or one of a start that knows less or more than there is.
    """
    tp = TopicPartition("__transaction_state", 0)
    run(machine, machine.decide_become_leader(lead(tp, "one")))
    run(machine, machine.decide_become_leader(lead(tp, "two", 0)))
    late = machine.decide_become_leader(lead(tp, "one", expected))
    assert (late.reply.error, late.reply.leader_epoch) == (ErrorCode.FENCED_LEADER_EPOCH, 1)
    assert late.records == ()
    (topic,) = machine.metadata(["__transaction_state"])
    assert topic.partitions[0].leader_epoch == 1


@pytest.mark.parametrize(
    ("tp", "broker_id", "error"),
    [
        (TopicPartition("nothing", 0), 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("__transaction_state", 2), 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("__transaction_state", 0), 2, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_become_leader_refuses(
    machine: ClusterMachine, tp: TopicPartition, broker_id: int, error: ErrorCode
) -> None:
    decision = machine.decide_become_leader(lead(tp, "one", broker_id=broker_id))
    assert decision.reply.error is error
    assert decision.records == ()


@pytest.mark.parametrize("topic_id", ["", "a" * 32])
def test_nobody_is_elected_with_the_log_of_another_topic_of_the_name(
    machine: ClusterMachine, topic_id: str
) -> None:
    """A late copy of a request from before the topic was deleted, when it had no leader either."""
    run(machine, machine.decide_create_topic(create()))
    run(machine, machine.decide_delete_topic(DeleteTopicRequest(name="flights")))
    run(machine, machine.decide_create_topic(create(topic_id="b" * 32)))
    tp = TopicPartition("flights", 0)
    late = machine.decide_become_leader(lead(tp, "one", topic_id=topic_id))
    assert (late.reply.error, late.records) == (ErrorCode.UNKNOWN_TOPIC_ID, ())
    led = run(machine, machine.decide_become_leader(lead(tp, "two", topic_id="b" * 32)))
    assert led.leader_epoch == 0


# --- who leads, and who has to be told -----------------------------------------------------------

REPLICATED = TopicPartition("t", 0)


@pytest.fixture
def world() -> ClusterWorld:
    """A topic of replicas 1 and 2, and one of replica 1 alone."""
    world = ClusterWorld()
    world.register(1, 2)
    world.create((1, 2))
    world.create((1,), name="alone", topic_id="b" * 32)
    return world


def test_a_started_replica_is_told_all_that_a_leader_needs_to_know(world: ClusterWorld) -> None:
    before = world.machine.leadership(REPLICATED)
    assert before is not None
    assert (before.leader, before.leader_epoch, before.partition_version) == (-1, -1, 0)
    told = world.start_replica(1, REPLICATED)
    assert told == world.machine.leadership(REPLICATED)
    assert (told.topic_id, told.leader, told.leader_epoch) == (TOPIC_ID, 1, 0)
    assert (told.partition_version, told.replicas, told.hosts) == (1, (1, 2), (0, 0))
    assert (told.isr, told.min_insync_replicas) == ((1, 2), 1)
    follower = world.start_replica(2, REPLICATED)
    assert follower == structs.replace(told, partition_version=2)
    assert follower == world.machine.leadership(REPLICATED)
    assert world.machine.leadership(TopicPartition("t", 1)) is None
    assert world.machine.leadership(TopicPartition("x", 0)) is None


def test_a_move_does_not_raise_the_minimum_in_sync(world: ClusterWorld) -> None:
    world.register(3)
    world.start_replica(1, TopicPartition("alone", 0))
    request = ReassignPartitionRequest(topic_partition=TopicPartition("alone", 0), replicas=(3,))
    machine = world.machine
    world.run(decide_reassign(machine.topics, machine.broker_states, request))
    told = machine.leadership(TopicPartition("alone", 0))
    assert told is not None
    assert (told.replicas, told.min_insync_replicas) == ((3, 1), 1)
    assert told.replication_factor == 1


def test_every_leader_is_told_of_other_settings_a_lone_one_too(world: ClusterWorld) -> None:
    alone = TopicPartition("alone", 0)
    world.start_replica(1, alone)
    before = world.machine.leadership(alone)
    assert before is not None
    settings = (("retention_ms", "5"),)
    world.apply([TopicConfigured(topic_id="b" * 32, settings=settings)])
    assert world.machine.take_unannounced() == [alone]
    told = structs.replace(before, settings=settings, settings_version=1)
    assert world.machine.leadership(alone) == told


def test_leaders_are_told_what_changed_once(world: ClusterWorld) -> None:
    assert world.machine.take_unannounced() == []
    world.start_replica(1, REPLICATED)
    assert world.machine.take_unannounced() == [REPLICATED]
    assert world.machine.take_unannounced() == []
    world.lead(2, (1, 2))
    world.lead(1, (1, 2))
    assert world.machine.take_unannounced() == [REPLICATED]


def test_a_lone_replica_that_asked_for_its_epoch_need_not_be_told(world: ClusterWorld) -> None:
    alone = TopicPartition("alone", 0)
    world.start_replica(1, alone)
    assert world.machine.take_unannounced() == []
    world.apply(fence(world.machine.topics, world.machine.broker_states, 1))
    world.change(1)
    world.apply(after_unfencing(world.machine.topics.values(), 1))
    assert world.machine.take_unannounced() == [alone]


def test_all_leaders_of_a_topic_are_told_its_settings(world: ClusterWorld) -> None:
    world.start_replica(1, REPLICATED)
    world.machine.take_unannounced()
    reply = world.run(world.machine.decide_alter_topic(alter("t", a="1"), as_they_are))
    assert reply.error is ErrorCode.NONE
    assert world.machine.take_unannounced() == [REPLICATED]
    told = world.machine.leadership(REPLICATED)
    assert told is not None
    assert (told.settings, told.settings_version) == ((("a", "1"),), 1)


def test_hosts_are_told_who_is_in_sync(world: ClusterWorld) -> None:
    world.start_replica(1, REPLICATED)
    in_sync = {
        broker_id: {
            one.topic_partition: one.is_in_sync for one in world.machine.hosted(broker_id, 0)
        }
        for broker_id in (1, 2)
    }
    assert in_sync == {
        1: {REPLICATED: True, TopicPartition("alone", 0): False},
        2: {REPLICATED: False},
    }


def test_a_cluster_has_its_id_from_its_founding_on(world: ClusterWorld) -> None:
    assert ClusterMachine().cluster_id == ""
    assert world.machine.cluster_id == CLUSTER_ID


def test_producer_id_blocks_do_not_overlap(machine: ClusterMachine) -> None:
    ask = AllocateProducerIdsRequest(broker_id=1)
    blocks = [run(machine, machine.decide_allocate_producer_ids(ask)) for _ in range(3)]
    assert [block.first_producer_id for block in blocks] == [
        0,
        PRODUCER_ID_BLOCK_COUNT,
        2 * PRODUCER_ID_BLOCK_COUNT,
    ]


def test_a_broker_nobody_knows_gets_no_producer_ids(machine: ClusterMachine) -> None:
    decision = machine.decide_allocate_producer_ids(AllocateProducerIdsRequest(broker_id=9))
    assert decision.reply.error is ErrorCode.BROKER_NOT_AVAILABLE


def test_a_leader_epoch_that_does_not_rise_is_a_broken_invariant(machine: ClusterMachine) -> None:
    tp = TopicPartition("__transaction_state", 0)
    decision = machine.decide_become_leader(lead(tp, "one"))
    run(machine, decision)
    with pytest.raises(InvariantViolation, match="I-22"):
        run(machine, decision)


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x80", b"\x81\xa4kind\xa1x"])
def test_an_unreadable_record_is_corrupt(value: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_cluster_record(value)


def test_a_record_reads_back_as_written() -> None:
    record = LeaderElected(
        topic_id="a", partition=1, leader=2, leader_epoch=3, isr=(2,), incarnation="i"
    )
    encoded = encode_cluster_record(record)
    assert encoded.value is not None
    assert decode_cluster_record(encoded.value) == record


@given(st.lists(st.sampled_from(["create", "delete", "alter", "more", "lead", "ids"]), max_size=30))
def test_replaying_the_log_gives_the_live_state(steps: list[str]) -> None:
    live = ClusterMachine()
    log: list[LogRecord] = []
    broker = BrokerRegistered(broker_id=1, data_dir="/d")
    decisions = [live.decide_founding(FOUNDED, broker, tuple(INTERNAL_TOPIC_IDS.values()))]
    for number, step in enumerate([*steps, "end"]):
        for decision in decisions:
            log += decision.records
            run(live, decision)
        decisions = []
        if step == "create":
            decisions = [live.decide_create_topic(create(topic_id=f"{number:032x}"))]
        elif step == "delete":
            decisions = [live.decide_delete_topic(DeleteTopicRequest(name="flights"))]
        elif step == "more":
            decisions = [live.decide_create_partitions(more(number + 2))]
        elif step == "alter":
            decisions = [live.decide_alter_topic(alter(a=str(number)), as_they_are)]
        elif step == "lead":
            tp = TopicPartition("flights", number % 2)
            (topic,) = live.metadata(["flights"]) or (None,)
            epoch = topic.partitions[tp.partition].leader_epoch if topic else -1
            topic_id = topic.topic_id if topic else ""
            request = lead(tp, str(number), epoch, topic_id=topic_id)
            decisions = [live.decide_become_leader(request)]
        elif step == "ids":
            decisions = [live.decide_allocate_producer_ids(AllocateProducerIdsRequest(broker_id=1))]
    replayed = ClusterMachine()
    for record in log:
        replayed.apply(record)
    assert replayed.metadata(None) == live.metadata(None)
    assert replayed.broker_states == live.broker_states
    ask = AllocateProducerIdsRequest(broker_id=1)
    assert (
        replayed.decide_allocate_producer_ids(ask).reply
        == live.decide_allocate_producer_ids(ask).reply
    )
