"""What ``oncelog status`` shows, and when it is not content."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from msgspec import structs

from oncelog.actors.protocol.messages.cluster import (
    BrokerMetadata,
    MetadataReply,
    MetadataRequest,
    PartitionMetadata,
    TopicMetadata,
    VoterMetadata,
)
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply
from oncelog.api.cli import status as cli_status
from oncelog.api.cli.output import describe_error
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

PLACES = {
    "controller": TopicPartition("__cluster_metadata", 0),
    "partition:flights-0@1": TopicPartition("flights", 0),
    "partition:flights-1@1": TopicPartition("flights", 1),
    "transaction:0@1": TopicPartition("__transaction_state", 0),
    "group:0@1": TopicPartition("__consumer_offsets", 0),
}


class Cluster:
    """``Transport`` to five actors; ``replies`` may be changed by name."""

    def __init__(self):
        self.metadata = MetadataReply(
            cluster_id="c1",
            version="9.9",
            brokers=(BrokerMetadata(broker_id=1, data_dir="/data"),),
            topics=tuple(
                topic(name, count)
                for name, count in (
                    ("flights", 2),
                    ("__transaction_state", 1),
                    ("__consumer_offsets", 1),
                )
            ),
        )
        self.replies = {
            name: DescribeReplicaReply(
                topic_partition=tp,
                process_id=1_000 + number,
                is_leader=True,
                leader_epoch=3,
                log_start_offset=0,
                last_stable_offset=900,
                high_watermark=1_000,
                log_end_offset=1_001,
                size_bytes=2_048,
                producer_count=4,
                open_transaction_count=1,
                late_transaction_count=2,
                oldest_open_transaction_age_ms=7,
                active_transactional_id_count=5 if name.startswith("transaction:") else None,
            )
            for number, (name, tp) in enumerate(PLACES.items())
        }

    async def call(self, actor, request, *, timeout_ms):
        return self.metadata if isinstance(request, MetadataRequest) else self.replies[actor]

    def change(self, actor, **fields):
        self.replies[actor] = structs.replace(self.replies[actor], **fields)

    def seen(self):
        return asyncio.run(
            cli_status.collect(self, address="h:1", dashboard_url="http://h:2", codec="python")
        )


def topic(name, count):
    return TopicMetadata(
        name=name,
        topic_id="0" * 32,
        partitions=tuple(
            PartitionMetadata(partition=number, leader=1, leader_epoch=3, replicas=(1,), isr=(1,))
            for number in range(count)
        ),
    )


@pytest.fixture
def cluster():
    return Cluster()


def test_every_actor_is_asked(cluster):
    seen = cluster.seen()
    assert {actor.name: actor.topic_partition for actor in seen.actors} == PLACES
    assert seen.is_serving


def test_the_cluster_is_described(cluster):
    head = cli_status.as_text(cluster.seen()).split("\n\n")[0]
    assert [line.split(maxsplit=1) for line in head.replace("data dir", "data").splitlines()] == [
        ["cluster", "c1"],
        ["state", "serving"],
        ["data", "/data"],
        ["address", "h:1"],
        ["dashboard", "http://h:2"],
        ["version", "9.9"],
        ["codec", "python"],
        ["open", "ids   5"],
    ]


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
        ["flights", "0", "3", "0", "900", "1,000", "1,001", "2.0", "KiB", "4", "1", "2"]
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
                "late_transaction_count": 2,
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
    assert not seen.is_serving


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
    assert not seen.is_serving
    assert "cluster    unknown" in cli_status.as_text(seen)


def test_actors_that_do_not_serve_are_named_in_the_error():
    line = describe_error(cli_status.not_serving(["a", "b", "c", "d", "e"]))
    assert line.startswith("oncelog: not serving: a, b, c and 2 more — look again")


def test_what_a_start_has_cut_is_told(cluster):
    cluster.change("partition:flights-1@1", cut_offset=17, cut_bytes=300)
    seen = cluster.seen()
    assert "serving; cut 300 bytes at offset 17" in cli_status.as_text(seen)
    shown = cli_status.as_json(seen)["topics"][1]["partitions"]
    assert [partition["cut_bytes"] for partition in shown] == [0, 300]
    assert shown[1]["cut_offset"] == 17


def test_a_partition_with_damage_does_not_plainly_serve(cluster):
    cluster.change("partition:flights-1@1", damaged_offset=17, damaged_place_count=3)
    seen = cluster.seen()
    text = cli_status.as_text(seen)
    assert "serving, but damaged at offset 17 and 2 more" in text
    assert ["state", "serving,", "but", "damaged"] in [line.split() for line in text.splitlines()]
    damaged = [actor for actor in seen.actors if actor.is_damaged]
    assert describe_error(cli_status.has_damage(damaged)).startswith(
        "oncelog: damaged: partition:flights-1@1 at offset 17"
    )
    shown = cli_status.as_json(seen)["topics"][1]["partitions"]
    assert [partition["damaged_place_count"] for partition in shown] == [0, 3]
    assert shown[1]["damaged_offset"] == 17
