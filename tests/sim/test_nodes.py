"""Several brokers in one world: what a node takes with it, and what is left when it is gone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sim_nodes import ELSEWHERE
from sim_replica_stage import read
from sim_world import World, WorldSettings

from oncelog.actors.config import ClusterConfig, own_directory
from oncelog.actors.interfaces import address_of
from oncelog.actors.protocol.messages.partition import DescribeReplicaRequest
from oncelog.actors.replica.data_directory import read_identity
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import TopicPartition

BROKERS = 3
OWN = WorldSettings(
    brokers=BROKERS, replication_factor=1, cluster=ClusterConfig(replicas_per_actor=1)
)
SHARED = WorldSettings(
    brokers=BROKERS, replication_factor=1, cluster=ClusterConfig(replicas_per_actor=3)
)
REPLICAS = ("partition:a-0@1", "partition:a-1@2", "partition:a-2@3")
HASTY = {"delivery_timeout_ms": 3_000, "request_timeout_ms": 500, "linger_ms": 0}


@pytest.fixture(params=[OWN, SHARED], ids=["own", "shared"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(seed=3, topics={"a": 3}, settings=request.param) as world:
        yield world


def write(world: World, text: str, *, node: int = ELSEWHERE) -> list[bool]:
    """Write a record to each partition of ``a``; whether each was acknowledged."""

    async def send(client: Any) -> list[bool]:
        acknowledged = []
        for partition in range(BROKERS):
            producer = client.producer(**HASTY)
            try:
                future = await producer.send("a", text.encode(), partition=partition)
                await producer.flush()
                await future
                acknowledged.append(True)
            except OncelogError:
                acknowledged.append(False)
            finally:
                await producer.close()
        return acknowledged

    client = world.client(f"writer-{world.process_count}", node=node)
    found: list[bool] = world.run(client.spawn(send(client)))
    return found


def told_live(world: World) -> dict[int, bool]:
    described = world.server("controller").shell.members.brokers.described()
    return {one.broker_id: one.is_live for one in described}


def directory_ids(world: World) -> list[str]:
    brokers = world.server("controller").shell.machine.broker_states
    return [brokers[number].directory_id for number in sorted(brokers) if number > 1]


def address(world: World, partition: int) -> str:
    """Whom to call for a partition of ``a``."""
    placement = world.placement_of(TopicPartition("a", partition))
    assert placement is not None
    return address_of(placement)


def describe(world: World, caller: int, actor: str) -> ErrorCode:
    """What a client on a node hears from a replica."""
    client = world.client(f"caller-{world.process_count}", node=caller)
    call = client.transport.call(actor, DescribeReplicaRequest(), timeout_ms=1_000)
    error: ErrorCode = world.run(client.spawn(call)).error
    return error


def test_the_partitions_of_a_topic_are_spread_over_all_brokers(world: World):
    placed = [world.placement_of(TopicPartition("a", number)) for number in range(BROKERS)]
    assert [one.broker_id for one in placed if one] == [1, 2, 3]
    assert {*REPLICAS, "transaction:0@1", "group:0@1"} <= world.servers().keys()
    assert {world.node_of(name) for name in REPLICAS} == {1, 2, 3}
    assert told_live(world) == {1: True, 2: True, 3: True}
    assert len({*directory_ids(world)}) == 2
    assert write(world, "one") == [True, True, True]


def test_whatever_runs_on_a_node_finds_the_one_identity_of_its_directory(world: World):
    async def create(client: Any) -> None:
        await client.admin().create_topic("later", BROKERS)

    operator = world.client("operator")
    world.run(operator.spawn(create(operator)))
    directory = own_directory(world.settings.data_dir)
    for number in world.node_numbers():
        disks = [world.disks[name].next_life() for name in world.disks_on(number)]
        found = {read_identity(disk, directory) for disk in disks}
        assert [one.directory_id != "" for one in found if one] == [True]


def test_worlds_of_one_broker_are_founded_apart_from_those_of_several(world: World):
    alone = WorldSettings(cluster=world.settings.cluster)
    with World(seed=3, topics={"a": 3}, settings=alone) as other:
        assert {other.node_of(name) for name in other.actor_names()} == {1}
        assert told_live(other) == {1: True}
    assert {world.node_of(name) for name in world.actor_names()} == {1, 2, 3}


def test_a_dead_node_takes_its_own_partitions_only_and_nobody_else(world: World):
    others = [process for number in (1, 3) for process in world.processes_on(number)]
    world.kill_node(2)
    assert write(world, "while it is gone") == [True, False, True]
    assert not world.processes_on(2)
    assert all(not process.is_dead for process in others)
    assert told_live(world) == {1: True, 2: False, 3: True}


def test_a_node_that_comes_back_has_what_was_acknowledged(world: World):
    assert write(world, "before") == [True, True, True]
    ids = directory_ids(world)
    epoch = world.server(REPLICAS[1]).replica.leader_epoch
    world.kill_node(2, is_power_lost=True)
    assert world.counts["power_loss"] == 1
    world.run_for(5.0)
    world.start_node(2)
    world.quiesce()
    assert write(world, "after") == [True, True, True]
    assert read(world, 1) == ["before", "after"]
    # One epoch without a leader, one for the start of the replica; one more if the node is first.
    assert world.server(REPLICAS[1]).replica.leader_epoch - epoch in {2, 3}
    assert world.server("broker:2").is_registered
    assert directory_ids(world) == ids
    assert told_live(world) == {1: True, 2: True, 3: True}


def test_a_dead_node_refuses_calls_or_does_not_answer_at_all(world: World):
    actor = address(world, 1)
    world.kill(actor.partition("/")[0])
    assert {describe(world, 3, actor) for _ in range(3)} == {ErrorCode.NETWORK_EXCEPTION}
    world.kill_node(2)
    heard = {describe(world, 3, actor) for _ in range(20)}
    assert heard == {ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT}


def test_new_partitions_are_placed_on_living_nodes(world: World):
    async def create(client: Any) -> None:
        await client.admin().create_topic("b", 4)

    world.kill_node(3)
    world.run_for(3.0)
    client = world.client("operator")
    world.run(client.spawn(create(client)))
    placed = [world.placement_of(TopicPartition("b", number)) for number in range(4)]
    assert sorted(one.broker_id for one in placed if one) == [1, 1, 2, 2]


def test_without_the_node_of_the_controller_the_others_serve_whom_they_know(world: World):
    world.kill_node(1)
    assert world.server("controller") is None
    assert all(not world.server(name).replica.failure for name in REPLICAS[1:])
    world.start_node(1)
    world.quiesce()
    assert write(world, "after") == [True, True, True]


def test_of_two_nodes_that_are_cut_off_neither_hears_the_other(world: World):
    actor = address(world, 1)
    assert describe(world, 3, actor) is ErrorCode.NONE
    world.cut(2, 3)
    assert describe(world, 3, actor) is ErrorCode.REQUEST_TIMED_OUT
    assert describe(world, 1, actor) is ErrorCode.NONE
    assert describe(world, ELSEWHERE, actor) is ErrorCode.NONE
    assert describe(world, 2, address(world, 2)) is ErrorCode.REQUEST_TIMED_OUT
    world.mend(3, 2)
    assert describe(world, 3, actor) is ErrorCode.NONE


def test_a_one_way_cut_loses_requests_one_way_and_replies_the_other(world: World):
    arrived: list[bool] = []

    def watch(exchange: Any, _: object, is_reply: bool) -> None:
        if exchange.method == "describe_replica":
            arrived.append(is_reply)

    world.network.watchers.append(watch)
    world.cut(3, 2, both=False)
    assert describe(world, 3, address(world, 1)) is ErrorCode.REQUEST_TIMED_OUT
    assert not arrived
    assert describe(world, 2, address(world, 2)) is ErrorCode.REQUEST_TIMED_OUT
    assert arrived == [False]


def test_an_isolated_node_lives_on_and_is_heard_again(world: World):
    assert write(world, "before") == [True, True, True]
    lives = {process.name: process.incarnation for process in world.processes_on(2)}
    world.isolate_node(2)
    assert write(world, "meanwhile") == [True, False, True]
    assert write(world, "from inside", node=2)[0::2] == [False, False]
    world.rejoin_node(2)
    world.quiesce()
    assert write(world, "after") == [True, True, True]
    found = {process.name: process.incarnation for process in world.processes_on(2)}
    begun_again = {name for name in lives if lives[name] != found[name]}
    # It was fenced: what it led begins again, for a newer epoch.
    assert begun_again <= {REPLICAS[1]}
    assert [read(world, 1)[place] for place in (0, -1)] == ["before", "after"]


def test_a_stopped_node_answers_once_it_goes_on_and_starts_nothing_meanwhile(world: World):
    world.stop_node(2)
    world.end_process(world.actor("broker:2"), "killed")
    world.run_for(5.0)
    assert world.actor("broker:2") is None
    assert all(process.is_paused for process in world.processes_on(2))
    actor = address(world, 1)
    assert describe(world, ELSEWHERE, actor) is ErrorCode.REQUEST_TIMED_OUT
    assert not told_live(world)[2]
    world.cont_node(2)
    assert describe(world, ELSEWHERE, actor) is ErrorCode.NONE
    world.run_for(3.0)
    assert world.actor("broker:2") is not None
    world.quiesce()
    assert told_live(world)[2]


def test_clients_on_a_node_share_its_fate(world: World):
    client = world.client("inside", node=3)
    world.stop_node(3)
    assert client.is_paused
    world.cont_node(3)
    assert not client.is_paused
    world.kill_node(3)
    assert client.is_dead
    with pytest.raises(AssertionError, match="node 3 is dead"):
        world.client("inside", node=3)


def test_a_node_that_has_lost_its_disks_leads_nothing_that_was_acknowledged(world: World):
    assert write(world, "before") == [True, True, True]
    world.lose_node_disks(2)
    world.run_for(3.0)
    world.start_node(2)
    world.run_for(30.0)
    assert write(world, "after") == [True, False, True]
    assert not world.server("broker:2").is_registered
    assert "is its disk mounted" in world.server("broker:2").problem
    assert read(world, 0) == ["before", "after"]


def test_peace_mends_every_node(world: World):
    world.kill_node(2)
    world.stop_node(3)
    world.kill("broker:3")
    world.isolate_node(1)
    world.run_for(2.0)
    world.quiesce()
    assert write(world, "after") == [True, True, True]
    assert world.counts["kill_node"] == world.counts["stop_node"] == 1
    assert world.counts["cut"] == BROKERS


# --- determinism ----------------------------------------------------------------------------------


async def write_for_ever(client: Any) -> None:
    while True:
        producer = client.producer(transactional_id=client.name, max_block_ms=5_000)
        try:
            await producer.init_transactions()
            while True:
                async with producer.transaction():
                    for _ in range(client.random.randint(1, 4)):
                        await producer.send("a", client.random.randbytes(8))
        except OncelogError as error:
            client.world.note("gave up", repr(error))


async def break_nodes(world: World) -> None:
    breakages = (
        world.kill_node,
        world.start_node,
        world.stop_node,
        world.cont_node,
        world.isolate_node,
        world.rejoin_node,
        lambda number: world.cut(number, number % BROKERS + 1, both=False),
    )
    while True:
        await asyncio.sleep(world.random.random())
        world.random.choice(breakages)(world.random.choice(world.node_numbers()))


def trace_of(seed: int, *, seconds: float = 5.0) -> str:
    with World(seed, topics={"a": 6}, settings=SHARED) as world:
        for number in range(2):
            client = world.client(f"writer-{number}")
            client.spawn(write_for_ever(client))
        world.driver.spawn(break_nodes(world))
        world.run_for(seconds)
        assert world.counts
        return f"{world.loop.event_count} {world.trace_hash()}"


def test_the_same_seed_gives_the_same_history_of_several_nodes(seed: int):
    first = trace_of(seed)
    assert trace_of(seed) == first
    assert trace_of(seed + 1) != first


@pytest.mark.slow
@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_hash_seed_of_the_interpreter_changes_nothing_with_several_nodes(
    seed: int, hash_seed: str
):
    program = "import sys, test_nodes as t; print(t.trace_of(int(sys.argv[1])))"
    folder = Path(__file__).parent
    paths = [str(folder), str(folder.parent / "helpers"), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", program, str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert done.stdout.strip() == trace_of(seed)
