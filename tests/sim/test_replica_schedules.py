"""Three replicas, one step at a time: what a death, a cut or a clock does amid a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from sim_history import Outcome
from sim_jobs import last_writes
from sim_log_watch import watching
from sim_replica_mutants import leads_on
from sim_replica_stage import (
    SESSION_S,
    are_equal,
    holder,
    isr,
    leader,
    read,
    replica,
    replicated,
    state,
    write,
)
from sim_stage import Stage, WorkloadPlan
from sim_world import SimulationError, World

from oncelog.actors.interfaces import address_of, holder_of
from oncelog.actors.launch.assembly import LeadershipLostError
from oncelog.actors.protocol.messages.group import DescribeGroupsRequest
from oncelog.actors.protocol.messages.transaction import DescribeTransactionsRequest
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError, TransactionAbortableError
from oncelog.storage.model import TopicPartition

HOUR_MS = 3_600_000
PARTITIONS = (0, 1, 2)
HASTY_CLIENT = {"delivery_timeout_ms": 3_000, "request_timeout_ms": 500}


@pytest.fixture
def world() -> Iterator[World]:
    """Of partition n of ``a`` broker n + 1 is the preferred leader; all is watched."""
    with watching() as watch, World(seed=3, topics={"a": 3}, settings=replicated(3)) as world:
        yield world
        assert watch.violations == []


async def producer_of(client: Any, **settings: Any) -> Any:
    """A transactional producer that waits for as long as a node may be away."""
    producer = client.producer(
        transactional_id="t", linger_ms=0, request_timeout_ms=1_000, **settings
    )
    await producer.init_transactions()
    return producer


async def send(producer: Any, text: str) -> None:
    """One record to each partition, acknowledged."""
    futures = [await producer.send("a", text.encode(), partition=one) for one in PARTITIONS]
    await producer.flush()
    for future in futures:
        await future


@pytest.mark.parametrize("is_reply", [False, True], ids=["request", "reply"])
@pytest.mark.parametrize("method", ["produce", "write_txn_markers"])
def test_a_node_that_dies_amid_a_transaction_costs_it_nothing(
    world: World, method: str, is_reply: bool
) -> None:
    """1. A message of a transaction is on its way to a leader, or from it. 2. The leader's node
    dies. 3. The message arrives late, at the next life of the leader or at the waiting caller.
    """
    client = world.client("writer")

    async def transact() -> None:
        producer = await producer_of(client)
        async with producer.transaction():
            await send(producer, "a")

    gate = world.network.hold(method, callee=holder(world, 2, 1), reply=is_reply, limit=1)
    writing = client.spawn(transact())
    world.run(gate.wait_held())
    world.kill_node(2, is_power_lost=True)
    world.run(writing)
    world.start_node(2)
    world.quiesce()
    gate.release_all()
    world.run_for(1.0)
    for partition in PARTITIONS:
        assert read(world, partition) == ["a"]
        assert are_equal(world, partition)


@pytest.mark.parametrize("is_durable", [False, True])
def test_what_a_transaction_was_acknowledged_is_in_it_after_all_have_been_elected_anew(
    world: World, is_durable: bool
) -> None:
    """S11. 1. The coordinator has begun a transaction, in memory or durably, and its data are
    acknowledged if they can be. 2. Its node dies, and so do the leaders there. 3. More is sent to
    their successors, and the commit has all of it, or is refused.
    """
    client = world.client("writer")
    coordinators = set()

    def watch(exchange: Any, _: Any, is_reply: bool) -> None:
        if exchange.method == "end_txn" and is_reply:
            coordinators.add(exchange.callee)

    world.network.watchers.append(watch)

    async def begin() -> Any:
        producer = await producer_of(client)
        async with producer.transaction():
            await send(producer, "a")
        await producer.begin_transaction()
        return producer

    producer = world.run(client.spawn(begin()))
    (coordinator,) = coordinators
    node = world.node_of(coordinator)
    gate = world.network.hold(
        "replicate",
        caller=coordinator,
        when=lambda push: push.topic_partition.topic == "__transaction_state" and push.batches,
    )
    gate.is_open = is_durable
    sending = client.spawn(send(producer, "b"))
    world.run(sending if is_durable else gate.wait_held())
    world.kill_node(node)
    gate.release_all()

    async def go_on() -> bool:
        try:
            await sending
            await send(producer, "c")
            await producer.commit_transaction()
        except TransactionAbortableError:
            await producer.abort_transaction()
            return False
        return True

    is_committed = world.run(client.spawn(go_on()))
    assert is_committed or not is_durable
    world.quiesce()
    for partition in PARTITIONS:
        assert read(world, partition) == (["a", "b", "c"] if is_committed else ["a"])


def test_a_coordinator_acts_on_nothing_that_is_not_committed() -> None:
    """1. A transaction is to be committed, and PREPARE reaches no follower. 2. The coordinator's
    process dies, and leads again: its log has PREPARE. 3. Its host is lost, and the next one has
    never heard of it: the transaction times out. 4. All of it is there, or nothing.
    """
    settings = dataclasses.replace(replicated(3), restart_ms=(50.0, 100.0))
    with watching() as watched, World(seed=3, topics={"a": 3}, settings=settings) as world:
        client = world.client("writer")
        coordinators: set[str] = set()
        marked: list[float] = []

        def watch(exchange: Any, _: Any, is_reply: bool) -> None:
            if exchange.method == "init_producer_id":
                coordinators.add(exchange.callee)
            if exchange.method == "write_txn_markers" and not is_reply:
                marked.append(world.now_s)

        world.network.watchers.append(watch)

        async def begin() -> Any:
            producer = await producer_of(client, transaction_timeout_ms=5_000)
            await producer.begin_transaction()
            await send(producer, "a")
            return producer

        producer = world.run(client.spawn(begin()))
        (coordinator,) = coordinators
        node = world.node_of(coordinator)
        gate = world.network.hold(
            "replicate",
            caller=coordinator,
            when=lambda push: push.topic_partition.topic == "__transaction_state",
        )
        client.spawn(producer.commit_transaction())
        world.run(gate.wait_held(2))
        epoch = world.server(coordinator_of(world, node)).replica.leader_epoch
        world.kill(coordinator)
        world.run_for(1)
        again = world.server(coordinator_of(world, node)).replica
        assert again.leader_epoch > epoch
        assert again.availability() is ErrorCode.NONE
        assert again.machine.high_watermark < again.machine.log_end_offset
        assert marked == []
        world.end_process(client, "leaves")
        world.kill_node(node, is_power_lost=True)
        gate.release_all()
        world.run_for(20)
        world.start_node(node)
        world.quiesce()
        assert len({tuple(read(world, partition)) for partition in PARTITIONS}) == 1
        assert watched.violations == []


@pytest.mark.parametrize(
    ("topic", "request_type"),
    [
        ("__transaction_state", DescribeTransactionsRequest),
        ("__consumer_offsets", DescribeGroupsRequest),
    ],
)
def test_a_coordinator_loads_until_followers_have_what_it_loaded(
    topic: str, request_type: type[Any]
) -> None:
    """1. A coordinator's process dies, and leads again. 2. Its pushes are held: it cannot know
    whether the end of its log is committed. 3. They arrive.
    """
    settings = dataclasses.replace(replicated(3), restart_ms=(50.0, 100.0))
    with watching() as watched, World(seed=3, topics={"a": 3}, settings=settings) as world:
        client = world.client("asker")

        async def transact() -> None:
            producer = await producer_of(client)
            await producer.begin_transaction()
            await send(producer, "a")
            group = ConsumerGroupMetadata(group_id="g", generation_id=-1, member_id="")
            await producer.send_offsets_to_transaction({TopicPartition("a", 0): 1}, group)
            await producer.commit_transaction()

        world.run(client.spawn(transact()))
        found = next(
            replica
            for replica in world.leaders().values()
            if replica.topic_partition.topic == topic and replica.machine.log_end_offset
        )
        placement = next(
            one
            for one in world.replicas_of(found.topic_partition)
            if one.broker_id == found.broker_id
        )

        def ask() -> ErrorCode:
            asking = client.transport.call(address_of(placement), request_type(), timeout_ms=1_000)
            reply: Any = world.run(client.spawn(asking))
            error: ErrorCode = reply.error
            return error

        assert ask() is ErrorCode.NONE
        gate = world.network.hold(
            "replicate",
            caller=holder_of(placement),
            when=lambda push: push.topic_partition.topic == topic,
        )
        world.kill(holder_of(placement))
        world.run_for(1)
        assert ask() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        gate.release_all()
        world.run_for(1)
        assert ask() is ErrorCode.NONE
        assert watched.violations == []


def test_a_coordinator_whose_follower_is_just_starting_shuts_no_write_out() -> None:
    """1. A write under an id has ended. 2. All followers of coordinators die, as leaders do that
    are deposed: they are in sync, and start again. 3. A driver writes, hasty in each call. 4. It
    waits for as long as a start takes, or until they have left the ISR.
    """
    settings = dataclasses.replace(replicated(1), restart_ms=(1_900.0, 2_000.0))
    with watching() as watched, World(seed=3, topics={"a": 1}, settings=settings) as world:
        plan = WorkloadPlan(topics={"a": 1}, duration_s=1.0, request_timeout_ms=300)
        stage = Stage(world, plan)
        stage.job_ids.add("job")
        client = world.client("last-driver")
        world.run(client.spawn(last_writes(stage, client)))
        for name in world.actor_names():
            if name.startswith("transaction:") and not world.leads(world.replicas()[name]):
                world.kill(name)
        began_s = world.now_s
        world.run(client.spawn(last_writes(stage, client)))
        assert stage.history.shut_out == []
        assert world.now_s > began_s + 1.5
        assert len([write for write in stage.history.writes if write.outcome is Outcome.OK]) == 2
        assert watched.violations == []


@pytest.mark.parametrize("begins_again", [False, True], ids=["follows on", "begins again"])
def test_a_successor_that_waited_for_a_zombie_is_watched_and_so_was_the_zombie(
    begins_again: bool,
) -> None:
    """1. A follower's process is replaced; its successor waits for the directory, which the zombie
    has. 2. The replica begins again in the zombie: of all its lives this one is the last to begin.
    3. The zombie dies, and the successor has the directory. 4. More is committed.
    """
    with watching() as watched, World(seed=3, topics={"a": 3}, settings=replicated(3)) as world:
        assert all(write(world, ["a"], 1))
        name, place = holder(world, 1, 1), (TopicPartition("a", 1), 1)
        zombie, first = world.actor(name), replica(world, 1, 1)
        assert zombie is not None
        (server,) = [one for one in zombie.servers.values() if one.replica is first]
        world.replace(name, life_s=None)
        world.run_for(SESSION_S)
        successor = replica(world, 1, 1)
        assert successor is not first
        assert watched.life_of(*place) is first
        if begins_again:
            zombie.soon(server.environment.die, LeadershipLostError("made up"))
            world.run_for(1.0)
            again = watched.life_of(*place)
            assert again in [one.replica for one in zombie.servers.values()]
            assert again is not first
        world.kill_zombies()
        world.quiesce()
        assert watched.life_of(*place) is replica(world, 1, 1) is successor
        assert all(write(world, ["b", "c"], 1))
        assert isr(world, 1) == {1, 2, 3}
        assert are_equal(world, 1)
        assert watched.violations == []


def coordinator_of(world: World, node: int) -> str:
    """The transaction coordinator that leads on a node."""
    return next(
        name
        for name, server in world.servers().items()
        if name.startswith("transaction:")
        and name.endswith(f"@{node}")
        and server.replica.machine.log_end_offset
    )


def test_a_leader_that_does_not_step_down_for_a_newer_epoch_is_noticed() -> None:
    """Safe it is, as nobody takes its pushes; but it never follows."""
    with leads_on(), World(seed=3, topics={"a": 3}, settings=replicated(3)) as world:
        world.isolate_node(2)
        world.run_for(2 * SESSION_S)
        assert leader(world, 1) != 2
        world.rejoin_node(2)
        with pytest.raises(SimulationError, match="partition:a-1@2"):
            world.quiesce()


def test_a_leader_that_is_heard_by_its_followers_and_not_by_the_controller_gives_way(
    world: World,
) -> None:
    """One direction is cut: what the controller sends arrives."""
    assert all(write(world, ["a"], 2))
    world.cut(3, 1, both=False)
    assert all(write(world, ["b"], 2))
    world.run_for(SESSION_S)
    assert leader(world, 2) != 3
    assert all(write(world, ["c"], 2))
    world.mend(3, 1)
    world.quiesce()
    assert read(world, 2) == ["a", "b", "c"]
    assert are_equal(world, 2)


def test_a_leader_that_the_controller_hears_and_no_follower_acknowledges_nothing_alone(
    world: World,
) -> None:
    """Its pushes are lost, all else arrives: it leads on, alone in sync, and that is too few."""
    assert all(write(world, ["a"], 1))
    for follower in (1, 3):
        world.network.partition(holder(world, 2, 1), holder(world, follower, 1))
    assert write(world, ["lost"], 1, **HASTY_CLIENT) == [False]
    world.run_for(SESSION_S)
    assert (leader(world, 1), isr(world, 1)) == (2, {2})
    assert replica(world, 2, 1).machine.high_watermark == 1
    assert write(world, ["refused"], 1, **HASTY_CLIENT) == [False]
    world.quiesce()
    assert all(write(world, ["b"], 1))
    assert read(world, 1) == ["a", "lost", "b"]
    assert are_equal(world, 1)


@pytest.mark.parametrize(
    ("node", "offsets_ms"),
    [(1, [HOUR_MS]), (2, [-HOUR_MS]), (3, [HOUR_MS, -HOUR_MS, 0])],
    ids=["ahead with the controller", "behind", "jumping"],
)
def test_a_broker_whose_clock_is_an_hour_off_does_as_all_others(
    world: World, node: int, offsets_ms: list[int]
) -> None:
    """No session ends early or late, nobody is elected; an open transaction may be aborted, once
    its coordinator takes an hour for over, but is never half of anything.
    """
    client = world.client("writer")
    before = [(leader(world, one), state(world, one).leader_epoch) for one in PARTITIONS]
    committed = []

    async def transact(text: str, offset_ms: int) -> None:
        try:
            producer = await producer_of(client)
            await producer.begin_transaction()
            await send(producer, f"{text} 1")
            jump(offset_ms)
            world.note(f"clocks of node {node} are off by {offset_ms} ms")
            await send(producer, f"{text} 2")
            await producer.commit_transaction()
        except OncelogError as error:
            world.note(f"{text} failed: {error!r}")
        else:
            committed.extend([f"{text} 1", f"{text} 2"])

    def jump(offset_ms: int) -> None:
        for name in world.actors_on(node):
            world.jump_clock(name, offset_ms)

    for number, offset_ms in enumerate(offsets_ms):
        world.run(client.spawn(transact(f"amid {number}", offset_ms)))
        world.run(client.spawn(transact(f"then {number}", offset_ms)))
        assert f"then {number} 1" in committed
        world.run_for(SESSION_S)
    after = [(leader(world, one), state(world, one).leader_epoch) for one in PARTITIONS]
    assert after == before
    assert all(isr(world, one) == {1, 2, 3} for one in PARTITIONS)
    world.quiesce()
    for partition in PARTITIONS:
        assert read(world, partition) == committed
        assert are_equal(world, partition)
