"""A leader whose controller has given a newer epoch begins again; nobody else would ask anew.

A late copy of what a dead life of the replica asked gets an epoch that nobody leads with: clients
learn it and are refused by the only leader there is.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from deadlines import until
from replicas import FLIGHTS
from server_world import ServerWorld, stop

from oncelog.actors.launch.assembly import LeadershipLostError
from oncelog.actors.protocol.messages.cluster import ShutdownRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TRANSACTION_STATE_TOPIC, TopicPartition

SHARD = TopicPartition(TRANSACTION_STATE_TOPIC, 0)


@pytest.mark.parametrize("tp", [FLIGHTS, SHARD])
@pytest.mark.parametrize(("given_epoch", "is_lost"), [(1, False), (2, True)])
def test_a_leader_ends_only_if_a_newer_epoch_was_given(
    tmp_path: Path, tp: TopicPartition, given_epoch: int, is_lost: bool
) -> None:
    async def scenario() -> ServerWorld:
        world = ServerWorld()
        server = world.server(tp, tmp_path)
        await until(server.is_serving)
        world.leader_epoch = given_epoch
        await server.refresh_settings()
        await stop(server)
        return world

    deaths = asyncio.run(scenario()).deaths
    assert [type(death) for death in deaths] == [LeadershipLostError] * is_lost
    assert all("leads with epoch 1, and 2 was given" in str(death) for death in deaths)


def test_a_replica_that_does_not_lead_has_nothing_to_lose(tmp_path: Path) -> None:
    async def scenario() -> ServerWorld:
        world = ServerWorld()
        server = world.server(FLIGHTS, tmp_path)
        await until(server.is_serving)
        server.replica.go_offline("the disk is gone")
        world.leader_epoch = 2
        await server.refresh_settings()
        await stop(server)
        return world

    assert not asyncio.run(scenario()).deaths


@pytest.mark.parametrize("is_serving", [True, False])
def test_a_late_call_that_ends_the_replica_of_a_deleted_topic_leaves_the_next_one_alone(
    tmp_path: Path, is_serving: bool
) -> None:
    """1. A topic is deleted. 2. The next of its name begins. 3. A copy of the call arrives."""

    async def scenario() -> tuple[ErrorCode, ErrorCode, bool, ErrorCode]:
        world = ServerWorld()
        server = world.server(FLIGHTS, tmp_path)
        if is_serving:
            await until(server.is_serving)
        late = await server.shutdown(ShutdownRequest(remove_data=True, topic_id="b" * 32))
        await until(server.is_serving)
        availability = server.replica.availability()
        has_files = server.replica.log.segment_count > 0
        own = await server.shutdown(ShutdownRequest(remove_data=True, topic_id="a" * 32))
        return late.error, availability, has_files, own.error

    late, availability, has_files, own = asyncio.run(scenario())
    assert late is ErrorCode.UNKNOWN_TOPIC_ID
    assert (availability, has_files, own) == (ErrorCode.NONE, True, ErrorCode.NONE)
    assert not any(tmp_path.rglob("*.log"))
