"""What ``oncelog status`` shows, and when it is not content."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import sys
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from topics import topic_of

from oncelog.actors.protocol.messages.brokers import FindKafkaListenerReply
from oncelog.actors.protocol.messages.cluster import (
    BrokerMetadata,
    MetadataReply,
    MetadataRequest,
    VoterMetadata,
)
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply
from oncelog.actors.protocol.messages.replication import DescribeVoterReply, DescribeVoterRequest
from oncelog.api.cli import status as cli_status
from oncelog.api.cli.arguments import Arguments
from oncelog.api.cli.status import CONDITIONS, FoundCondition
from oncelog.api.cli.terminal import describe_error
from oncelog.api.session.links import NotReachedError
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    ClusterAuthorizationFailedError,
    SaslAuthenticationFailedError,
)
from oncelog.storage.model import TopicPartition

ROOT = Path(__file__).resolve().parents[4]
PLACES = {
    "controller": TopicPartition("__cluster_metadata", 0),
    "partition:flights-0@1": TopicPartition("flights", 0),
    "partition:flights-1@1": TopicPartition("flights", 1),
    "transaction:0@1": TopicPartition("__transaction_state", 0),
    "group:0@1": TopicPartition("__consumer_offsets", 0),
}


class StatusTransport:
    """``Transport`` to five actors; ``replies`` may be changed by name."""

    def __init__(self):
        self.voters = {}
        self.metadata = MetadataReply(
            cluster_id="c1",
            version="9.9",
            brokers=(BrokerMetadata(broker_id=1, data_dir="/data"),),
            topics=(
                topic_of("flights", 1, 1, leader_epoch=3),
                topic_of("__transaction_state", 1, leader_epoch=3),
                topic_of("__consumer_offsets", 1, leader_epoch=3),
            ),
        )
        self.replies = {
            name: DescribeReplicaReply(
                topic_partition=tp,
                process_id=1_000 + number,
                is_leader=True,
                isr=(1,),
                leader_epoch=3,
                log_start_offset=0,
                last_stable_offset=900,
                high_watermark=1_000,
                log_end_offset=1_001,
                size_bytes=2_048,
                producer_count=4,
                open_transaction_count=1,
                late_transaction_count=0,
                oldest_open_transaction_age_ms=7,
                active_transactional_id_count=5 if name.startswith("transaction:") else None,
            )
            for number, (name, tp) in enumerate(PLACES.items())
        }

    async def call(self, actor, request, *, timeout_ms):
        if isinstance(request, DescribeVoterRequest):
            return self.voters[int(actor.removeprefix("broker:"))]
        return self.metadata if isinstance(request, MetadataRequest) else self.replies[actor]

    def change(self, actor, **fields):
        self.replies[actor] = structs.replace(self.replies[actor], **fields)

    def seen(self):
        return asyncio.run(
            cli_status.collect(
                self,
                address="h:1",
                dashboard_url="http://h:2",
                broker_names=lambda: [f"broker:{number}" for number in self.voters],
            )
        )

    def told(self):
        """What is found, by condition, with the exit status."""
        findings = self.seen().findings
        status = cli_status.StatusError(findings[0]).status if findings else 0
        return {one.condition.name: one.places for one in findings}, status

    def change_partition(self, name, number, **fields):
        topics = list(self.metadata.topics)
        index = next(i for i, one in enumerate(topics) if one.name == name)
        partitions = list(topics[index].partitions)
        partitions[number] = structs.replace(partitions[number], **fields)
        topics[index] = structs.replace(topics[index], partitions=tuple(partitions))
        self.metadata = structs.replace(self.metadata, topics=tuple(topics))

    def add_broker(self, **fields):
        """Broker 2, which follows partition 0 of flights."""
        broker = BrokerMetadata(**{"broker_id": 2, "data_dir": "/data", **fields})
        self.metadata = structs.replace(self.metadata, brokers=(*self.metadata.brokers, broker))
        self.change_partition("flights", 0, replicas=(1, 2), isr=(1, 2))
        tp = PLACES["partition:flights-0@1"]
        self.replies["partition:flights-0@2"] = DescribeReplicaReply(
            topic_partition=tp, process_id=2_000, is_following=True
        )

    def serve_kafka(self):
        """Set a port for clients of Kafka, which the gateway of broker 1 has opened."""
        settings = (("kafka_port", "9092"),)
        self.metadata = structs.replace(self.metadata, settings=settings)
        self.replies["gateway:0@1"] = FindKafkaListenerReply(host="10.0.0.1", port=9_092)

    def lose_controller(self):
        self.metadata = MetadataReply(error=ErrorCode.NETWORK_EXCEPTION)
        self.replies["controller"] = DescribeReplicaReply(error=ErrorCode.NETWORK_EXCEPTION)


@pytest.fixture
def cluster():
    return StatusTransport()


def test_every_actor_is_asked(cluster):
    seen = cluster.seen()
    assert {actor.name: actor.topic_partition for actor in seen.actors} == PLACES
    assert seen.state == "serving"
    assert seen.findings == []


def test_the_cluster_is_described(cluster):
    head = cli_status.as_text(cluster.seen()).split("\n\n")[0]
    assert [line.split(maxsplit=1) for line in head.replace("data dir", "data").splitlines()] == [
        ["cluster", "c1"],
        ["state", "serving"],
        ["data", "/data"],
        ["address", "h:1"],
        ["dashboard", "http://h:2"],
        ["version", "9.9"],
        ["open", "ids   5"],
    ]


def test_it_is_told_where_clients_of_kafka_connect_to(cluster):
    assert cluster.seen().kafka == []
    assert "\nkafka" not in cli_status.as_text(cluster.seen())
    cluster.add_broker()
    cluster.add_broker(broker_id=3, is_live=False)
    cluster.serve_kafka()
    cluster.replies["gateway:0@2"] = FindKafkaListenerReply(error=ErrorCode.NETWORK_EXCEPTION)
    seen = cluster.seen()
    assert cli_status.as_json(seen)["kafka"] == ["10.0.0.1:9092"]
    assert "kafka      10.0.0.1:9092" in cli_status.as_text(seen)


def test_the_voters_are_named_where_there_are_several(cluster):
    told = (
        VoterMetadata(broker_id=1, is_behind=True),
        VoterMetadata(broker_id=2, is_controller=True),
        VoterMetadata(broker_id=3),
    )
    seen = cluster.seen()
    seen = dataclasses.replace(seen, metadata=structs.replace(seen.metadata, voters=told))
    head = cli_status.as_text(seen).split("\n\n")[0].splitlines()
    assert "voters     brokers 1 (behind), 2 (controller), 3 (in sync)" in head
    assert cli_status.as_json(seen)["voters"] == [
        {"broker_id": 1, "state": "behind"},
        {"broker_id": 2, "state": "controller"},
        {"broker_id": 3, "state": "in sync"},
    ]


def test_partitions_are_shown_with_their_bounds(cluster):
    rows = cli_status.as_text(cluster.seen()).split("\n\n")[1].splitlines()
    assert rows[2].split() == (
        ["flights", "0", "3", "0", "900", "1,000", "1,001", "2.0", "KiB", "4", "1", "0"]
    )


def test_actors_are_shown_with_process_and_state(cluster):
    rows = cli_status.as_text(cluster.seen()).split("\n\n")[2].splitlines()
    assert rows[1].split() == ["controller", "1000", "serving"]
    assert len(rows) == 1 + len(PLACES)


def test_programs_get_the_same_figures(cluster):
    shown = cli_status.as_json(cluster.seen())
    assert shown["topics"][1] == {
        "name": "flights",
        "partitions": [
            {
                "partition": number,
                "leader_epoch": 3,
                "log_start_offset": 0,
                "last_stable_offset": 900,
                "high_watermark": 1_000,
                "log_end_offset": 1_001,
                "size_bytes": 2_048,
                "producer_count": 4,
                "open_transaction_count": 1,
                "late_transaction_count": 0,
                "oldest_open_transaction_age_ms": 7,
                "damaged_place_count": 0,
                "cut_bytes": 0,
            }
            for number in (0, 1)
        ],
    }
    (coordinator,) = shown["topics"][2]["partitions"]
    assert coordinator["active_transactional_id_count"] == 5
    assert shown["actors"][0] == {"name": "controller", "process_id": 1_000, "state": "serving"}
    assert shown["serving"] is True


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"is_leader": False}, "starting"),
        ({"error": ErrorCode.KAFKA_STORAGE_ERROR, "detail": "disk gone"}, "offline: disk gone"),
    ],
)
def test_an_actor_that_does_not_lead_says_why(cluster, fields, state):
    cluster.change("group:0@1", **fields)
    seen = cluster.seen()
    assert seen.actors[-1].state == state
    assert seen.state == "not serving"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ErrorCode.NETWORK_EXCEPTION, "gone or restarting"),
        (ErrorCode.REQUEST_TIMED_OUT, "does not answer"),
    ],
)
def test_an_actor_without_an_answer_has_blanks_for_figures(cluster, error, state):
    cluster.replies["transaction:0@1"] = DescribeReplicaReply(error=error)
    seen = cluster.seen()
    text = cli_status.as_text(seen)
    assert state in text
    assert "not serving" in text
    row = next(line for line in text.splitlines() if line.startswith("__transaction_state"))
    assert row.split()[2:] == ["-"] * 9
    assert cli_status.as_json(seen)["actors"][3]["process_id"] is None


def test_a_controller_that_does_not_serve_leaves_only_itself(cluster):
    cluster.metadata = MetadataReply(error=ErrorCode.NOT_CONTROLLER)
    cluster.change("controller", is_leader=False)
    seen = cluster.seen()
    assert [actor.name for actor in seen.actors] == ["controller"]
    assert seen.state == "not serving"
    assert "cluster    unknown" in cli_status.as_text(seen)


def test_what_a_start_has_cut_is_told(cluster):
    cluster.change("partition:flights-1@1", cut_offset=17, cut_bytes=300)
    seen = cluster.seen()
    assert "serving; cut 300 bytes at offset 17" in cli_status.as_text(seen)
    shown = cli_status.as_json(seen)["topics"][1]["partitions"]
    assert [partition["cut_bytes"] for partition in shown] == [0, 300]
    assert shown[1]["cut_offset"] == 17


def test_a_follower_that_has_cut_does_not_pass_for_a_leader(cluster):
    cluster.add_broker()
    cluster.change("partition:flights-0@2", cut_offset=17, cut_bytes=300)
    assert "following; cut 300 bytes at offset 17" in cli_status.as_text(cluster.seen())


def test_damage_is_told_with_its_places(cluster):
    cluster.change("partition:flights-1@1", damaged_offset=17, damaged_place_count=3)
    seen = cluster.seen()
    assert "serving, but damaged at offset 17 and 2 more" in cli_status.as_text(seen)
    shown = cli_status.as_json(seen)["topics"][1]["partitions"]
    assert [partition["damaged_place_count"] for partition in shown] == [0, 3]
    assert shown[1]["damaged_offset"] == 17


def test_whoever_may_not_ask_is_told_so_and_not_that_nothing_serves(cluster):
    for name, reply in cluster.replies.items():
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        cluster.replies[name] = structs.replace(reply, error=error)
    with pytest.raises(ClusterAuthorizationFailedError, match="--user"):
        cli_status.check_may_ask(cluster.seen())


def test_a_wrong_password_is_told_and_not_that_the_controller_is_away(cluster):
    refused = ErrorCode.SASL_AUTHENTICATION_FAILED
    cluster.metadata = MetadataReply(error=refused, detail="the token has expired")
    with pytest.raises(SaslAuthenticationFailedError, match="the token has expired"):
        cli_status.check_may_ask(cluster.seen())


# --- what is wrong: each row of the table in OPERATIONS -----------------------------------------


def no_majority(cluster):
    cluster.lose_controller()
    gone = DescribeVoterReply(error=ErrorCode.NETWORK_EXCEPTION)
    old = DescribeVoterReply(broker_id=4, voters=(1, 4), leader_epoch=2)
    known = DescribeVoterReply(broker_id=2, voters=(1, 2, 3), leader_epoch=7, log_end_offset=9)
    cluster.voters = {1: gone, 2: known, 3: gone, 4: old}
    return ("broker 1 of voters [1, 2, 3]", "broker 3 of voters [1, 2, 3]")


def no_controller(cluster):
    cluster.lose_controller()
    known = DescribeVoterReply(broker_id=2, voters=(1, 2, 3), leader_epoch=7)
    cluster.voters = {1: DescribeVoterReply(broker_id=1), 2: known}
    return ("controller (gone or restarting)",)


def voter_cannot_vote(cluster):
    no_controller(cluster)
    cluster.voters[1] = DescribeVoterReply(broker_id=1, problem="no space on /data")
    return ("broker 1 (no space on /data)",)


def without_a_leader(cluster):
    cluster.change_partition("flights", 1, leader=-1, isr=(3, 2))
    cluster.change("partition:flights-1@1", is_leader=False, is_following=True)
    return ("flights-1 (in sync: broker 3, broker 2)",)


def not_serving(cluster):
    cluster.change("group:0@1", error=ErrorCode.KAFKA_STORAGE_ERROR, detail="disk gone")
    return ("group:0@1 (offline: disk gone)",)


def refuses_all(cluster):
    cluster.change("partition:flights-0@1", isr=(1,), min_insync_replicas=2)
    return ("flights-0 (1 of 2 in sync)",)


def broker_away(cluster):
    cluster.add_broker(is_fenced=True, is_live=False)
    cluster.replies["partition:flights-0@2"] = DescribeReplicaReply(
        error=ErrorCode.NETWORK_EXCEPTION
    )
    told = (VoterMetadata(broker_id=1, is_controller=True), VoterMetadata(broker_id=2))
    behind = structs.replace(told[1], is_behind=True)
    cluster.metadata = structs.replace(cluster.metadata, voters=(told[0], behind))
    return ("broker 2",)


def broker_takes_no_part(cluster):
    cluster.add_broker(data_dir="", problem="/data is another cluster's")
    return ("broker 2 (/data is another cluster's)",)


def replica_not_following(cluster):
    cluster.add_broker()
    cluster.change("partition:flights-0@2", is_following=False)
    return ("partition:flights-0@2 (starting)",)


def takes_no_writes(cluster):
    cluster.change("partition:flights-1@1", refusal="No space left", refused_ms=5_000)
    return ("partition:flights-1@1 (No space left)",)


def disk_refuses(cluster):
    cluster.add_broker()
    cluster.change("partition:flights-0@2", refusal="No space left", refused_ms=5_000)
    return ("partition:flights-0@2 (No space left)",)


def gateway_not_serving(cluster):
    cluster.add_broker()
    cluster.add_broker(broker_id=3)
    cluster.serve_kafka()
    cluster.replies["gateway:0@2"] = FindKafkaListenerReply(error=ErrorCode.REQUEST_TIMED_OUT)
    cluster.replies["gateway:0@3"] = FindKafkaListenerReply(
        error=ErrorCode.BROKER_NOT_AVAILABLE, detail="ports 9092 to 9108 are all taken"
    )
    return (
        "gateway:0@2 (does not answer)",
        "gateway:0@3 (offline: ports 9092 to 9108 are all taken)",
    )


def under_replicated(cluster):
    cluster.add_broker()
    cluster.change_partition("flights", 0, isr=(1,))
    return ("flights-0",)


def voter_behind(cluster):
    cluster.add_broker()
    told = (VoterMetadata(broker_id=1, is_controller=True), VoterMetadata(broker_id=2))
    behind = structs.replace(told[1], is_behind=True)
    cluster.metadata = structs.replace(cluster.metadata, voters=(told[0], behind))
    return ("broker 2",)


def late_transaction(cluster):
    cluster.change("partition:flights-1@1", open_transaction_count=3, late_transaction_count=2)
    return ("flights-1 (2)",)


def damaged(cluster):
    cluster.change("partition:flights-1@1", damaged_offset=17, damaged_place_count=3)
    return ("partition:flights-1@1 at offset 17",)


ROWS = {
    "no majority of the voters": (no_majority, 3),
    "no controller": (no_controller, 3),
    "without a leader": (without_a_leader, 3),
    "not serving": (not_serving, 3),
    "refuses acks=all": (refuses_all, 3),
    "takes no writes": (takes_no_writes, 3),
    "voter cannot vote": (voter_cannot_vote, 3),
    "broker away": (broker_away, 1),
    "broker takes no part": (broker_takes_no_part, 1),
    "replica not following": (replica_not_following, 1),
    "disk refuses": (disk_refuses, 1),
    "gateway not serving": (gateway_not_serving, 1),
    "under-replicated": (under_replicated, 1),
    "voter behind": (voter_behind, 1),
    "late transaction": (late_transaction, 1),
    "damaged": (damaged, 1),
}


def test_every_condition_has_its_row():
    assert list(ROWS) == [condition.name for condition in CONDITIONS]


@pytest.mark.parametrize("name", ROWS)
def test_a_condition_is_found_where_it_is(cluster, name):
    arrange, status = ROWS[name]
    places = arrange(cluster)
    found, told = cluster.told()
    assert found[name] == places
    assert told == status


def test_a_dead_node_is_told_once_and_everything_is_served(cluster):
    broker_away(cluster)
    assert cluster.told() == ({"broker away": ("broker 2",)}, 1)
    assert "state      degraded" in cli_status.as_text(cluster.seen())


def test_the_gateway_of_a_broker_that_is_known_to_be_away_is_not_missed(cluster):
    broker_away(cluster)
    cluster.serve_kafka()
    cluster.add_broker(broker_id=3, is_fenced=True)
    cluster.add_broker(broker_id=4, data_dir="", problem="/data is another cluster's")
    for number in (3, 4):
        gone = FindKafkaListenerReply(error=ErrorCode.NETWORK_EXCEPTION)
        cluster.replies[f"gateway:0@{number}"] = gone
    assert "gateway not serving" not in cluster.told()[0]


def test_a_broker_that_was_drained_is_not_missed(cluster):
    gone = BrokerMetadata(broker_id=2, data_dir="/data", is_fenced=True, is_draining=True)
    cluster.metadata = structs.replace(cluster.metadata, brokers=(*cluster.metadata.brokers, gone))
    assert cluster.told() == ({}, 0)


def test_programs_get_what_is_wrong_and_what_to_do(cluster):
    shown = cli_status.as_json((not_serving(cluster), cluster.seen())[1])
    (finding,) = shown["findings"]
    assert (shown["state"], shown["serving"]) == ("not serving", False)
    assert finding["condition"] == "not serving"
    assert finding["places"] == ["group:0@1 (offline: disk gone)"]
    assert finding["served"] is False
    assert "wait a few seconds" in finding["advice"]


def test_the_worst_is_told_with_its_advice_and_not_every_place():
    condition = CONDITIONS[3]
    finding = FoundCondition(condition, ("a", "b", "c", "d", "e"))
    line = describe_error(cli_status.StatusError(finding))
    assert line.startswith("oncelog: not serving: a, b, c and 2 more — wait a few seconds")


def test_operations_has_each_condition_with_its_exit_status():
    text = (ROOT / "docs" / "OPERATIONS.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| (\d) \|", text, re.MULTILINE)
    assert rows == [
        (condition.name, "1" if condition.is_served else "3") for condition in CONDITIONS
    ]


def work_of(partition_count: int) -> int:
    """How many instructions it takes to judge and show a status."""
    topic = topic_of("flights", *[1] * partition_count)
    brokers = tuple(
        BrokerMetadata(broker_id=number, data_dir="/data", is_fenced=True, is_draining=True)
        for number in range(9)
    )
    waiting = DescribeReplicaReply()
    seen = cli_status.ClusterStatus(
        address="a",
        dashboard_url="",
        metadata=MetadataReply(cluster_id="c1", topics=(topic,), brokers=brokers),
        actors=tuple(
            cli_status.ActorStatus(
                name=f"partition:flights-{number}@2",
                topic_partition=TopicPartition("flights", number),
                broker_id=2,
                reply=waiting,
            )
            for number in range(partition_count)
        ),
    )
    done = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal done
        frame.f_trace_opcodes = True
        done += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        cli_status.as_text(seen)
        cli_status.as_json(seen)
    finally:
        sys.settrace(before)
    return done


def test_the_work_of_judging_grows_with_the_partitions_and_no_faster() -> None:
    assert work_of(200) < 2.2 * work_of(100)


class ClosedConnections:
    """Connections of a link to a cluster that does not answer; notes when they are closed."""

    def __init__(self):
        self.story = []

    async def call(self, actor, request, *, timeout_ms):
        self.story.append("call")
        return request.failed(ErrorCode.NETWORK_EXCEPTION, "")

    def close(self):
        asyncio.get_running_loop()
        self.story.append("close")


async def no_answer(transport):
    """Nothing is wrong so far."""


def test_a_look_closes_its_connections(monkeypatch):
    connections = ClosedConnections()
    link = SimpleNamespace(
        connections=connections,
        address="h:1",
        dashboard_url="",
        check=lambda metadata: None,
        probe=no_answer,
    )
    monkeypatch.setattr(cli_status, "direct_link", lambda *_, **__: link)
    args = Arguments(data_dir=None, address=None)
    assert cli_status.look(args).metadata.error is ErrorCode.NETWORK_EXCEPTION
    assert connections.story[-1] == "close"
    assert connections.story.count("close") == 1


def test_a_controller_that_hangs_is_asked_one_short_question_before_ray(monkeypatch):
    class Hanging:
        address, dashboard_url = "10.0.0.1:6379", ""

        def __init__(self):
            self.connections = self
            self.asked = []

        async def probe(self, transport):
            self.asked.append("probe")
            raise NotReachedError

        async def call(self, actor, request, *, timeout_ms):
            self.asked.append(actor)
            return request.failed(ErrorCode.REQUEST_TIMED_OUT)

        def check(self, reply):
            raise NotReachedError

        def close(self):
            """Nothing is open."""

    link = Hanging()
    monkeypatch.setattr(cli_status, "direct_link", lambda *_, **__: link)
    assert cli_status._seen_directly(Arguments(data_dir=None, address=None)) is None
    assert link.asked == ["probe"]
