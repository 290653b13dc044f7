"""Replicas as the command line shows and moves them."""

from __future__ import annotations

import asyncio
import json

import pytest
from topics import AdminCluster

from oncelog.actors.protocol.messages.cluster import (
    BrokerMetadata,
    MetadataReply,
    MetadataRequest,
    PartitionMetadata,
    TopicMetadata,
)
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply
from oncelog.api.cli import main as cli
from oncelog.api.cli import replicas as cli_replicas
from oncelog.api.cli import status as cli_status
from oncelog.api.cli import topics as cli_topics
from oncelog.api.cli.terminal import describe_error
from oncelog.storage.exceptions import (
    BrokerNotAvailableError,
    IneligibleReplicaError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    ReassignmentInProgressError,
)
from oncelog.storage.model import CLUSTER_METADATA_TOPIC, TopicPartition


def partition(number, **fields):
    known = {"leader": 1, "leader_epoch": 4, "replicas": (1, 2), "isr": (1, 2)}
    return PartitionMetadata(partition=number, **{**known, **fields})


FLIGHTS = TopicMetadata(
    name="flights",
    topic_id="f" * 32,
    partitions=(
        partition(0),
        partition(1, isr=(1,), replication_factor=3),
        partition(2, leader=-1, isr=(2,)),
        partition(3, replicas=(3, 1, 2), adding=(3,), removing=(1,)),
    ),
)


@pytest.fixture
def cluster(monkeypatch):
    cluster = AdminCluster(FLIGHTS, describe_topic=FLIGHTS)
    for module in (cli_replicas, cli_topics):
        monkeypatch.setattr(module, "connect", lambda args: cluster)
    return cluster


def run(text):
    return cli.main(text.split())


def test_a_broker_is_drained_and_used_again(cluster, capsys):
    assert run("brokers drain 2") == 0
    assert run("brokers resume 2") == 0
    assert cluster.changes == [("drain_broker", 2), ("resume_broker", 2)]
    assert capsys.readouterr().out == (
        "broker 2 is being drained; `oncelog status` shows the progress\nbroker 2 is used again\n"
    )


def test_a_partition_is_moved(cluster, capsys):
    assert run("partitions reassign flights 0 --replicas 2,3,1") == 0
    assert cluster.changes == [("reassign_partition", "flights", 0, (2, 3, 1))]
    assert capsys.readouterr().out == (
        "flights-0 moves to brokers 2, 3, 1; `oncelog topics describe flights` shows the progress\n"
    )


@pytest.fixture
def steps(cluster, monkeypatch):
    """Makes a partition be on these brokers in turn, each time it is looked at."""
    monkeypatch.setattr(cli_replicas, "WAIT_POLL_S", 0.0)

    def use(*places):
        looks = iter(places)

        def look(*_):
            return TopicMetadata(
                name="flights", topic_id="f" * 32, partitions=(partition(0, **next(looks)),)
            )

        cluster.answers["describe_topic"] = look
        cluster.answers["describe_cluster"] = lambda: MetadataReply(topics=(look(),))

    return use


def test_draining_is_waited_for(steps, capsys):
    steps({"replicas": (2, 1)}, {"replicas": (2, 3)}, {"replicas": (3, 1)})
    assert run("brokers drain 2 --wait") == 0
    assert capsys.readouterr().out == "broker 2 is drained\n"


def test_a_move_is_waited_for(steps, capsys):
    moved = {"replicas": (2, 3)}
    steps({}, {"adding": (3,)}, {"removing": (1,)}, moved, moved)
    assert run("partitions reassign flights 0 --replicas 2,3 --wait") == 0
    assert capsys.readouterr().out == "flights-0 is on brokers 2, 3\n"


def test_a_move_that_is_cancelled_while_it_is_waited_for_is_an_error(steps, capsys):
    steps({}, {"adding": (3,)}, {}, {})
    assert run("partitions reassign flights 0 --replicas 2,3 --wait") == 1
    assert capsys.readouterr().err.startswith(
        "oncelog: flights-0 is on brokers 1, 2: somebody has cancelled the move"
    )


def test_waiting_ends_after_its_time_and_the_move_goes_on(steps, capsys):
    steps({"replicas": (2, 1)}, {"replicas": (2, 1)})
    assert run("brokers drain 2 --wait --timeout-ms 0") == 1
    assert capsys.readouterr().err == (
        "oncelog: not all is moved after 0 ms, 1 left — `oncelog status` shows the progress\n"
    )


def test_a_move_is_cancelled(cluster, capsys):
    assert run("partitions reassign flights 3 --cancel") == 0
    assert cluster.changes == [("cancel_reassignment", "flights", 3)]
    assert capsys.readouterr().out == "flights-3 stays where it was\n"


def test_what_does_not_move_is_not_cancelled(cluster, capsys):
    assert run("partitions reassign flights 0 --cancel") == 1
    assert cluster.changes == []
    assert capsys.readouterr().err == (
        "oncelog: flights-0 is not being moved — give --replicas N,N,... to move it\n"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("flights 0 --replicas 1,b", "'1,b' is not a list of brokers: give their ids"),
        ("flights 0 --replicas -1", "--replicas"),
        ("flights 0 --replicas ,", "',' is not a list of brokers"),
        ("flights 0", "one of --replicas, --cancel is required"),
        ("flights 0 --replicas 1 --cancel", "--replicas and --cancel exclude each other"),
        ("flights x --replicas 1", "'x' is not a whole number"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_done(cluster, capsys, arguments, text):
    assert run(f"partitions reassign {arguments}") == 2
    assert text in capsys.readouterr().err
    assert cluster.changes == []


def test_a_partition_that_there_is_not_is_named(cluster, capsys):
    assert run("partitions reassign flights 7 --replicas 1") == 1
    assert capsys.readouterr().err == (
        "oncelog: topic 'flights' has no partition 7 — give one from 0 to 3\n"
    )


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (
            InvalidReplicaAssignmentError("replicas=[9]: [9] cannot be given, but [1, 2]"),
            "replicas=[9]: [9] cannot be given, but [1, 2] — give brokers that `oncelog status` "
            "shows as alive and not draining",
        ),
        (
            ReassignmentInProgressError("it is being moved to [2]"),
            "it is being moved to [2] — wait for that, or cancel it",
        ),
        (
            IneligibleReplicaError("none of the replicas [1] that there were can lead now"),
            "none of the replicas [1] that there were can lead now — wait until it is "
            "in sync; `oncelog topics describe TOPIC` shows it",
        ),
        (
            BrokerNotAvailableError("broker 9 is not registered"),
            "broker 9 is not registered — retry; `oncelog status` shows the brokers",
        ),
        (
            InvalidReplicationFactorError("broker 2 cannot be drained"),
            "broker 2 cannot be drained — add a broker, or give fewer replicas",
        ),
    ],
)
def test_a_refusal_is_one_line_with_advice(cluster, capsys, failure, line):
    cluster.failure = failure
    assert run("partitions reassign flights 0 --replicas 9") == 1
    assert capsys.readouterr().err == f"oncelog: {line}\n"


def test_a_topic_is_created_with_so_many_replicas(cluster, capsys):
    assert run("topics create new --replication-factor 2") == 0
    assert cluster.changes[0][2]["replication_factor"] == 2
    assert run("topics create new --replication-factor 0") == 2
    assert "'0' is not a whole number from 1" in capsys.readouterr().err


def test_a_topic_is_described_with_what_is_not_as_it_should_be(cluster, capsys):
    assert run("topics describe flights") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[-8:-3]] == [
        ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR"],
        ["0", "1", "4", "1,", "2", "1,", "2"],
        ["1", "1", "4", "1,", "2", "1"],
        ["2", "-", "4", "1,", "2", "2"],
        ["3", "1", "4", "3,", "1,", "2", "1,", "2"],
    ]
    assert lines[-3:] == [
        "partition 1: under-replicated; 2 of 3 replicas",
        "partition 2: no leader; under-replicated",
        "partition 3: adding 3; removing 1",
    ]


def test_programs_see_what_is_being_moved(cluster, capsys):
    assert run("topics describe flights --json") == 0
    partitions = json.loads(capsys.readouterr().out)["partitions"]
    assert (partitions[3]["adding"], partitions[3]["removing"]) == ([3], [1])
    assert not {"adding", "removing"} & partitions[0].keys()


# --- status -----------------------------------------------------------------------------------


class Actors:
    """``Transport`` to actors that lead on broker 1 and follow elsewhere."""

    def __init__(self, *partitions):
        self.metadata = MetadataReply(
            cluster_id="c1",
            brokers=(
                BrokerMetadata(broker_id=1, data_dir="/data"),
                BrokerMetadata(broker_id=2, data_dir="/data", is_live=False, is_fenced=True),
                BrokerMetadata(broker_id=3, data_dir="/data", is_draining=True),
                BrokerMetadata(broker_id=4, data_dir="/data", is_draining=True),
            ),
            topics=(TopicMetadata(name="flights", topic_id="f" * 32, partitions=partitions),),
        )

    async def call(self, actor, request, *, timeout_ms):
        if isinstance(request, MetadataRequest):
            return self.metadata
        number = actor.partition("-")[2].partition("@")[0]
        tp = TopicPartition("flights", int(number)) if number else None
        is_leader = not actor.endswith(("@2", "@3"))
        return DescribeReplicaReply(
            topic_partition=tp or TopicPartition(CLUSTER_METADATA_TOPIC, 0),
            process_id=7,
            is_leader=is_leader,
            isr=(1,) if is_leader else (),
            is_following=not is_leader,
        )

    def seen(self):
        return asyncio.run(cli_status.collect(self, address="h:1", dashboard_url="http://h:2"))


def test_status_counts_partitions_without_a_leader_or_with_too_few_replicas():
    seen = Actors(*FLIGHTS.partitions).seen()
    assert seen.state == "not serving"
    text = cli_status.as_text(seen)
    assert "replicas   2 partitions under-replicated, 1 without a leader" in text
    shown = cli_status.as_json(seen)
    assert shown["under_replicated_partition_count"] == 2
    assert shown["leaderless_partition_count"] == 1
    assert describe_error(cli_status.StatusError(seen.findings[0])).startswith(
        "oncelog: without a leader: flights-2 (in sync: broker 2) — wait a few seconds"
    )


def test_status_shows_brokers_that_are_fenced_or_drain():
    seen = Actors(*FLIGHTS.partitions).seen()
    rows = cli_status.as_text(seen).split("\n\n")[3].splitlines()[1:]
    assert [row.split("/data")[1].strip() for row in rows] == [
        "alive",
        "fenced: no heartbeats, or its node is gone",
        "alive; draining, replicas left: 1",
        "alive; drained",
    ]
    brokers = cli_status.as_json(seen)["brokers"]
    assert [(one["fenced"], one["draining"], one["replica_count"]) for one in brokers] == [
        (False, False, 4),
        (True, False, 4),
        (False, True, 1),
        (False, True, 0),
    ]


def test_status_shows_each_partition_once_by_its_leader():
    seen = Actors(partition(0, replicas=(2, 1)), partition(1, replicas=(2, 3))).seen()
    assert [one.condition.name for one in seen.findings] == ["broker away", "under-replicated"]
    rows = cli_status.as_text(seen).split("\n\n")[1].splitlines()
    assert [row.split()[:2] for row in rows[2:]] == [["flights", "0"], ["flights", "1"]]
    assert [actor.name for actor in seen.shown_actors][1:] == [
        "partition:flights-0@1",
        "partition:flights-1@2",
    ]
    states = [actor.state for actor in seen.actors]
    assert states == ["serving", "following", "serving", "following", "following"]
