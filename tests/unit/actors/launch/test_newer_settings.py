"""A follower hears of newer settings of its topic from its leader, and asks the controller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deadlines import to_its_end, until
from msgspec import structs
from replicas import FLIGHTS, TOPIC_ID
from server_world import ServerWorld, stop

from oncelog.actors.protocol.messages.cluster import (
    BecomeLeaderReply,
    BecomeLeaderRequest,
    BrokerMetadata,
    ClusterKeysRequest,
    MetadataReply,
    MetadataRequest,
    PartitionMetadata,
    TopicMetadata,
)
from oncelog.actors.protocol.messages.replication import ReplicateRequest
from oncelog.storage.errors import ErrorCode

PUSH = ReplicateRequest(
    topic_partition=FLIGHTS,
    topic_id=TOPIC_ID,
    leader=2,
    leader_epoch=1,
    epoch_start_offset=0,
    previous_end_offset=0,
    previous_leader_epoch=-1,
    high_watermark=0,
    log_start_offset=0,
    settings_version=5,
    batches=b"",
)


def followed() -> ServerWorld:
    """Broker 2 leads; the settings are of version 5 by the time the follower asks for them."""
    world = ServerWorld()
    world.answers[BecomeLeaderRequest] = BecomeLeaderReply(
        leader_epoch=1, topic_id=TOPIC_ID, leader=2, replicas=(1, 2), hosts=(0, 0), isr=(1, 2)
    )
    known = PartitionMetadata(partition=0, leader=2, leader_epoch=1, replicas=(1, 2), isr=(2,))
    topic = TopicMetadata(
        name=FLIGHTS.topic,
        topic_id=TOPIC_ID,
        partitions=(known,),
        settings=(("flush", "os"),),
        settings_version=5,
    )
    world.answers[MetadataRequest] = MetadataReply(topics=(topic,))
    return world


@pytest.mark.parametrize("asked", [MetadataRequest, ClusterKeysRequest])
def test_a_bug_met_while_newer_ones_are_asked_for_ends_the_process(
    tmp_path: Path, asked: type
) -> None:
    def fail(_request: Any) -> Any:
        raise ZeroDivisionError("planted")

    async def body() -> None:
        world = followed()
        server = world.server(FLIGHTS, tmp_path)
        await until(lambda: server.replica.is_following)
        world.answers[asked] = fail
        if asked is ClusterKeysRequest:
            server.refresh_keys_soon()
        else:
            server.refresh_settings_soon()
        await until(lambda: world.deaths)
        assert isinstance(world.deaths[0], ZeroDivisionError)
        await stop(server)

    to_its_end(body())


def test_a_push_with_newer_settings_has_the_follower_ask_for_them_once(tmp_path: Path) -> None:
    async def body() -> None:
        world = followed()
        server = world.server(FLIGHTS, tmp_path)
        await until(lambda: server.replica.is_following)
        asked = world.asked[MetadataRequest]
        assert server.replica.topic.flush == "sync"
        for _ in range(2):
            assert (await server.replicate(PUSH)).error is ErrorCode.NONE
        await until(lambda: server.replica.topic.flush == "os")
        assert (await server.replicate(PUSH)).error is ErrorCode.NONE
        assert world.asked[MetadataRequest] == asked + 1
        await stop(server)

    to_its_end(body())


def test_with_the_settings_come_the_racks_of_brokers(tmp_path: Path) -> None:
    """But not with an answer that the controller could not give."""

    async def body() -> None:
        world = followed()
        told = world.answers[MetadataRequest]
        brokers = tuple(
            BrokerMetadata(broker_id=number, data_dir="/d", rack=rack)
            for number, rack in ((1, "west"), (2, "east"))
        )
        world.answers[MetadataRequest] = structs.replace(told, brokers=brokers)
        server = world.server(FLIGHTS, tmp_path)
        await until(lambda: server.replica.is_following)
        await server.refresh_settings()
        world.answers[MetadataRequest] = MetadataReply(error=ErrorCode.NOT_CONTROLLER)
        await server.refresh_settings()
        assert server.replica.racks == {1: "west", 2: "east"}
        await stop(server)

    to_its_end(body())
