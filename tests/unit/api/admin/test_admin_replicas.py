"""Operators say where replicas are."""

from __future__ import annotations

import re

import pytest

from oncelog.actors.protocol.messages.brokers import (
    DrainBrokerReply,
    DrainBrokerRequest,
    ReassignPartitionReply,
    ReassignPartitionRequest,
)
from oncelog.actors.protocol.messages.cluster import (
    CreateTopicReply,
    CreateTopicRequest,
    PartitionMetadata,
)
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply, DescribeReplicaRequest
from oncelog.api.admin.admin import Admin, AsyncAdmin
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    BrokerNotAvailableError,
    IneligibleReplicaError,
    InvalidConfigError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    ReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition


@pytest.fixture
def admin(fake_cluster):
    def create(request):
        fake_cluster.create(request.name, request.partitions)
        return CreateTopicReply(topic_id=request.topic_id)

    fake_cluster.answers |= {
        CreateTopicRequest: create,
        DescribeReplicaRequest: lambda request: DescribeReplicaReply(is_leader=True, isr=(1,)),
        ReassignPartitionRequest: lambda request: ReassignPartitionReply(),
        DrainBrokerRequest: lambda request: DrainBrokerReply(),
    }
    return AsyncAdmin(fake_cluster.router(), random=fake_cluster.random)


@pytest.mark.parametrize(("given", "sent"), [(None, -1), (1, 1), (3, 3)])
def test_the_number_of_replicas_is_left_to_the_controller_unless_given(
    fake_cluster, run, admin, given, sent
):
    run(admin.create_topic("t", replication_factor=given))
    (request,) = fake_cluster.requests(CreateTopicRequest)
    assert request.replication_factor == sent


def test_by_default_it_is_left_to_the_controller(fake_cluster, run, admin):
    run(admin.create_topic("t"))
    assert fake_cluster.requests(CreateTopicRequest)[0].replication_factor == -1


@pytest.mark.parametrize("factor", [0, -1, "2", 2.0, True])
def test_no_number_of_replicas_is_below_one(fake_cluster, run, admin, factor):
    text = f"replication_factor={factor!r}; give a whole number from 1"
    with pytest.raises(InvalidReplicationFactorError, match=re.escape(text)):
        run(admin.create_topic("t", replication_factor=factor))
    assert fake_cluster.calls == []


def test_a_partition_is_moved_and_its_move_is_cancelled(fake_cluster, run, admin):
    run(admin.reassign_partition("t", 3, [2, 1]))
    run(admin.cancel_reassignment("t", 3))
    tp = TopicPartition("t", 3)
    assert fake_cluster.requests(ReassignPartitionRequest) == [
        ReassignPartitionRequest(topic_partition=tp, replicas=(2, 1)),
        ReassignPartitionRequest(topic_partition=tp, replicas=()),
    ]


@pytest.mark.parametrize("replicas", [[], (), "12", b"12", None, 3, ["1"], [1.0], [True]])
def test_replicas_are_a_list_of_broker_numbers(fake_cluster, run, admin, replicas):
    text = f"replicas={replicas!r}; give broker numbers"
    with pytest.raises(InvalidReplicaAssignmentError, match=re.escape(text)):
        run(admin.reassign_partition("t", 0, replicas))
    assert fake_cluster.calls == []


@pytest.mark.parametrize("partition", ["0", None, 0.0, True])
def test_a_partition_is_a_whole_number(fake_cluster, run, admin, partition):
    with pytest.raises(UnknownTopicOrPartitionError, match=re.escape(f"partition={partition!r}")):
        run(admin.reassign_partition("t", partition, [1]))
    assert fake_cluster.calls == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.INVALID_REPLICA_ASSIGNMENT, InvalidReplicaAssignmentError),
        (ErrorCode.INVALID_CONFIG, InvalidConfigError),
        (ErrorCode.REASSIGNMENT_IN_PROGRESS, ReassignmentInProgressError),
        (ErrorCode.INELIGIBLE_REPLICA, IneligibleReplicaError),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UnknownTopicOrPartitionError),
    ],
)
def test_what_the_controller_refuses_is_told_at_once(fake_cluster, run, admin, code, kind):
    fake_cluster.hooks[ReassignPartitionRequest] = lambda request: request.failed(code, "the why")
    with pytest.raises(kind, match="the why"):
        run(admin.reassign_partition("t", 0, [1]))
    assert len(fake_cluster.requests(ReassignPartitionRequest)) == 1


def test_an_unknown_partition_is_named(fake_cluster, run, admin):
    fake_cluster.fail(ReassignPartitionRequest, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, times=9)
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 7 of a topic 't'"):
        run(admin.cancel_reassignment("t", 7))


def test_a_controller_that_is_away_is_asked_again(fake_cluster, run, admin):
    fake_cluster.fail(ReassignPartitionRequest, ErrorCode.NOT_CONTROLLER, times=2)
    run(admin.reassign_partition("t", 0, [1]))
    assert len(fake_cluster.requests(ReassignPartitionRequest)) == 3


def test_a_broker_is_drained_and_used_again(fake_cluster, run, admin):
    run(admin.drain_broker(2))
    run(admin.resume_broker(2))
    assert fake_cluster.requests(DrainBrokerRequest) == [
        DrainBrokerRequest(broker_id=2, is_draining=True),
        DrainBrokerRequest(broker_id=2, is_draining=False),
    ]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.BROKER_NOT_AVAILABLE, BrokerNotAvailableError),
        (ErrorCode.INVALID_REPLICATION_FACTOR, InvalidReplicationFactorError),
    ],
)
def test_a_drain_that_is_refused_is_told_at_once(fake_cluster, run, admin, code, kind):
    fake_cluster.hooks[DrainBrokerRequest] = lambda request: request.failed(code, "the why")
    with pytest.raises(kind, match="the why"):
        run(admin.drain_broker(2))
    assert len(fake_cluster.requests(DrainBrokerRequest)) == 1


@pytest.mark.parametrize("broker_id", ["1", None, 1.0, True])
def test_a_broker_is_a_whole_number(fake_cluster, run, admin, broker_id):
    for method in (admin.drain_broker, admin.resume_broker):
        with pytest.raises(InvalidRequestError, match=re.escape(f"broker_id={broker_id!r}")):
            run(method(broker_id))
    assert fake_cluster.calls == []


def test_programs_without_an_event_loop_have_the_same(fake_cluster, loop_thread, admin):
    waiting = Admin(fake_cluster.router(), loop_thread, random=fake_cluster.random)
    waiting.reassign_partition("t", 0, [1])
    waiting.cancel_reassignment("t", 0)
    waiting.drain_broker(1)
    waiting.resume_broker(1)
    assert len(fake_cluster.calls) == 4


@pytest.mark.parametrize(
    ("isr", "adding", "is_under_replicated"),
    [
        ((1, 2), (), False),
        ((2, 1), (), False),
        ((1,), (), True),
        ((1,), (2,), False),
        ((2,), (2,), True),
        ((), (), True),
    ],
)
def test_a_partition_is_under_replicated_without_a_replica_that_is_not_new(
    isr, adding, is_under_replicated
):
    partition = PartitionMetadata(
        partition=0, leader=1, leader_epoch=0, replicas=(1, 2), isr=isr, adding=adding
    )
    assert partition.is_under_replicated is is_under_replicated
