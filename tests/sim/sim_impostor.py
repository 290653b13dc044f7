"""A client that calls what only servers call: ends replicas, tells them who leads, gives them keys.

It knows what the controller knows. Each of its calls is one that a server might make, so that it
would be believed; none may have an effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim_rogue import address_of_replica
from sim_stage import Player

from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.cluster import (
    BecomeLeaderReply,
    LeaderAndIsrRequest,
    LearnKeysRequest,
    ShutdownRequest,
)
from oncelog.actors.protocol.tickets import ClusterKeys
from oncelog.storage.model import TopicPartition

PAUSE_MS = 500.0
KEY_VERSION = 1_000_000


async def impostor(player: Player) -> None:
    """Calls replicas as the controller does, until the stage is over."""
    calls: tuple[Callable[[TopicPartition, Any], Request[Any]], ...] = (_end, _depose, _other_keys)
    while player.is_on:
        await player.pause(PAUSE_MS)
        leaders = list(player.stage.world.leaders().values())
        replicas = [one for one in leaders if one.topic_partition in player.stage.partitions]
        if not replicas:
            continue
        replica = player.random.choice(replicas)
        request = player.random.choice(calls)(replica.topic_partition, replica)
        player.stage.counts["calls of an impostor"] += 1
        await player.client.transport.call(
            address_of_replica(player, replica.topic_partition), request, timeout_ms=1_000
        )


def _end(_: TopicPartition, replica: Any) -> ShutdownRequest:
    """As if its topic had been deleted."""
    return ShutdownRequest(topic_id=replica.known_topic_id(), remove_data=True)


def _depose(topic_partition: TopicPartition, replica: Any) -> LeaderAndIsrRequest:
    """As if nobody led from now on."""
    leadership = BecomeLeaderReply(
        leader_epoch=replica.machine.leader_epoch + 1_000,
        topic_id=replica.known_topic_id(),
        partition_version=1_000_000,
        replicas=(1,),
        isr=(1,),
    )
    return LeaderAndIsrRequest(topic_partition=topic_partition, leadership=leadership)


def _other_keys(_: TopicPartition, __: Any) -> LearnKeysRequest:
    """So that tickets of coordinators are forged ones."""
    return LearnKeysRequest(keys=ClusterKeys(version=KEY_VERSION, current=b"i" * 32))
