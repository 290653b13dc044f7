"""Partitions with three replicas: who leads, what followers have, and who takes over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from crash_disk import DataLoss, NameLoss
from sim_log_watch import watching
from sim_nodes import ELSEWHERE
from sim_replica_stage import (
    SESSION_S,
    administer,
    are_equal,
    holder,
    isr,
    leader,
    logs,
    read,
    replica,
    replicated,
    state,
    watch_errors,
    write,
)
from sim_world import World

from oncelog.actors.groups.group_coordinator import GroupCoordinator
from oncelog.actors.interfaces import holder_of
from oncelog.actors.protocol.messages.group import OffsetFetchReply, OffsetFetchRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import TopicPartition

A0 = TopicPartition("a", 0)
HASTY_CLIENT = {"delivery_timeout_ms": 3_000, "request_timeout_ms": 500}


@pytest.fixture(params=[1, 3], ids=["own", "shared"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Of partition n of ``a`` broker n + 1 is the preferred leader; all is watched."""
    with (
        watching() as watch,
        World(seed=3, topics={"a": 3}, settings=replicated(request.param)) as world,
    ):
        yield world
        assert watch.violations == []


def test_followers_have_the_bytes_of_the_leader(world: World) -> None:
    assert [leader(world, number) for number in range(3)] == [1, 2, 3]
    assert isr(world) == {1, 2, 3}
    texts = [str(number) for number in range(20)]
    assert all(write(world, texts))
    assert are_equal(world)
    assert read(world) == texts


def test_another_leads_when_a_node_dies_and_nothing_acknowledged_is_lost(world: World) -> None:
    """1. Written. 2. The leader's node dies. 3. Others write on. 4. It is back, in sync again."""
    write(world, ["a", "b"], 1)
    world.kill_node(2)
    assert all(write(world, ["c", "d"], 1))
    assert leader(world, 1) != 2
    assert isr(world, 1) == {1, 3}
    assert read(world, 1) == ["a", "b", "c", "d"]
    world.start_node(2)
    world.quiesce()
    assert isr(world, 1) == {1, 2, 3}
    assert are_equal(world, 1)


def test_a_leader_whose_process_dies_leads_on_or_another_does(world: World) -> None:
    write(world, ["a"], 1)
    epoch = state(world, 1).leader_epoch
    world.kill(holder(world, 2, 1))
    assert all(write(world, ["b"], 1))
    assert state(world, 1).leader_epoch > epoch
    world.quiesce()
    assert read(world, 1) == ["a", "b"]
    assert are_equal(world, 1)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_others_lead_at_once_what_a_process_led_that_died(world: World, number: int) -> None:
    """Also on node 1, which has the controller: long before a session is over."""
    partition = number - 1
    assert leader(world, partition) == number
    world.run_for(3)
    world.kill(holder(world, number, partition))
    world.run_for(0.1)
    assert leader(world, partition) != number
    world.quiesce()
    assert isr(world, partition) == {1, 2, 3}


def test_a_stopped_process_leads_no_longer_and_follows_once_it_goes_on(world: World) -> None:
    """SIGSTOP of that process alone: its broker lives, and says that it is silent."""
    write(world, ["a"], 1)
    world.pause(holder(world, 2, 1))
    assert all(write(world, ["b"], 1))
    assert leader(world, 1) != 2
    world.resume(holder(world, 2, 1))
    world.quiesce()
    assert replica(world, 2, 1).is_following
    assert read(world, 1) == ["a", "b"]
    assert are_equal(world, 1)


def commit(world: World, offset: int) -> None:
    """A group commits that position in partition 0."""
    client = world.client(f"committer-{world.process_count}")

    async def act() -> None:
        consumer = client.consumer(group_id="g", enable_auto_commit=False)
        await consumer.assign(A0)
        await consumer.commit({A0: offset})
        await consumer.close()

    world.run(client.spawn(act()))


def group_coordinator(world: World) -> Any:
    """The one that leads a log with something in it."""
    return next(
        server
        for server in world.servers().values()
        if isinstance(server.shell, GroupCoordinator)
        and server.replica.availability() is ErrorCode.NONE
        and server.replica.machine.log_end_offset
    )


async def confirmed_at_once(_timeout_ms: int) -> ErrorCode:
    return ErrorCode.NONE


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_coordinator_that_stood_still_tells_no_position_that_is_old(
    world: World, is_confirmed: bool
) -> None:
    """1. A group has committed. 2. Its coordinator's process stops, and is asked. 3. Another leads,
    and the group commits. 4. The first goes on. Without a confirmation it would tell what was.
    """
    commit(world, 1)
    old = group_coordinator(world)
    placements = world.replicas_of(old.replica.topic_partition)
    place = next(one for one in placements if one.broker_id == old.replica.broker_id)
    process = world.actor(holder_of(place))
    assert process is not None
    world.pause(process.name)
    if not is_confirmed:
        old.replica.confirm = confirmed_at_once
    asking = process.spawn(old.offset_fetch(OffsetFetchRequest(group_id="g", partitions=(A0,))))
    commit(world, 2)
    world.resume(process.name)
    world.run_for(SESSION_S)
    has_ended = world.actor(process.name) is not process
    assert asking.done() or has_ended
    reply = asking.result() if asking.done() else OffsetFetchReply(error=ErrorCode.NOT_COORDINATOR)
    told = [one.offset for one in reply.offsets if reply.error is ErrorCode.NONE]
    assert told == ([] if is_confirmed else [1])


def test_an_isolated_leader_acknowledges_nothing_and_steps_down_once_it_is_heard(
    world: World,
) -> None:
    """Its clients are isolated with it; what it took from them is cut (S13)."""
    client = world.client("inside", node=2)

    async def send() -> None:
        producer = client.producer(linger_ms=0, **HASTY_CLIENT)
        await (await producer.send("a", b"a", partition=1))
        world.isolate_node(2)
        with pytest.raises(OncelogError):
            await (await producer.send("a", b"lost", partition=1))

    world.run(client.spawn(send()))
    diverged = replica(world, 2, 1)
    assert diverged.machine.log_end_offset == 2
    assert diverged.machine.high_watermark == 1
    assert all(write(world, ["b", "c"], 1))
    assert leader(world, 1) != 2
    world.rejoin_node(2)
    world.quiesce()
    assert replica(world, 2, 1).is_following
    assert read(world, 1) == ["a", "b", "c"]
    assert are_equal(world, 1)


def test_a_leader_that_only_its_controller_cannot_hear_gives_way(world: World) -> None:
    """Its followers and clients hear it still: the first push of its successor ends it."""
    write(world, ["a"], 2)
    world.cut(3, 1)
    assert all(write(world, ["b", "c"], 2))
    world.run_for(SESSION_S)
    assert leader(world, 2) != 3
    assert all(write(world, ["d"], 2))
    world.mend(3, 1)
    world.quiesce()
    assert read(world, 2) == ["a", "b", "c", "d"]
    assert are_equal(world, 2)


def test_a_cut_of_one_direction_stops_nobody_for_long(world: World) -> None:
    write(world, ["a"], 1)
    world.cut(3, 2, both=False)
    assert all(write(world, ["b"], 1))
    world.mend(3, 2)
    world.cut(2, ELSEWHERE, both=False)
    world.run_for(SESSION_S)
    world.mend(2, ELSEWHERE)
    assert all(write(world, ["c"], 1))
    world.quiesce()
    assert read(world, 1) == ["a", "b", "c"]
    assert are_equal(world, 1)


def test_a_follower_that_is_isolated_leaves_the_isr_and_comes_back_with_all(world: World) -> None:
    write(world, ["a"])
    world.isolate_node(3)
    assert all(write(world, ["b"]))
    assert isr(world) == {1, 2}
    assert len(read(world)) == 2
    world.rejoin_node(3)
    world.quiesce()
    assert isr(world) == {1, 2, 3}
    assert are_equal(world)


def test_too_few_in_sync_answer_what_is_in_the_log_and_refuse_what_is_not(world: World) -> None:
    """1. Both followers hang while a batch waits for them. 2. More is sent. 3. They go on."""
    write(world, ["a"])
    errors = watch_errors(world, "produce")
    hanging = [holder(world, broker_id) for broker_id in (2, 3)]
    for name in hanging:
        world.pause(name)
    assert write(world, ["b"], delivery_timeout_ms=6_000, request_timeout_ms=5_000) == [False]
    assert isr(world) == {1}
    assert errors["NOT_ENOUGH_REPLICAS_AFTER_APPEND"]
    end_offset = replica(world, 1).machine.log_end_offset
    assert write(world, ["c"], **HASTY_CLIENT) == [False]
    assert errors["NOT_ENOUGH_REPLICAS"]
    assert replica(world, 1).machine.log_end_offset == end_offset
    assert replica(world, 1).machine.high_watermark == 1
    for name in hanging:
        world.resume(name)
    world.quiesce()
    assert all(write(world, ["d"]))
    assert read(world) == ["a", "b", "d"]
    assert are_equal(world)


def test_a_follower_with_a_slow_disk_is_waited_for_until_it_lags(world: World) -> None:
    """It acknowledges nothing that it has not synced."""
    write(world, ["a"])
    world.hold_disk(holder(world, 3))
    began_s = world.now_s
    assert write(world, ["b"]) == [True]
    assert world.now_s - began_s > 1.0
    assert isr(world) == {1, 2}
    world.release_disk(holder(world, 3))
    world.quiesce()
    assert isr(world) == {1, 2, 3}
    assert are_equal(world)


def test_a_node_with_a_new_disk_is_in_sync_only_once_it_has_all(world: World) -> None:
    """1. All have all. 2. Node 3 is fenced, loses its disks and is back. 3. Nobody writes."""
    write(world, ["a", "b"])
    world.run_for(3.0)
    world.kill_node(3)
    world.run_for(SESSION_S)
    assert isr(world) == {1, 2}
    world.lose_node_disks(3)
    world.start_node(3)
    world.quiesce()
    assert isr(world) == {1, 2, 3}
    assert are_equal(world)


def test_a_follower_far_behind_begins_where_the_log_of_its_leader_begins(world: World) -> None:
    world.kill_node(3)
    for _ in range(3):
        assert all(write(world, ["x" * 3_000] * 2))

    async def remove(admin: Any) -> Any:
        return await admin.delete_records({TopicPartition("a", 0): 5})

    assert administer(world, remove) == {TopicPartition("a", 0): 5}
    world.start_node(3)
    world.quiesce()
    assert replica(world, 3).machine.log_start_offset == 5
    assert isr(world) == {1, 2, 3}
    assert are_equal(world)


def test_deleted_records_stay_deleted_when_followers_lose_power_and_one_of_them_leads(
    world: World,
) -> None:
    """1. Records are deleted, acknowledged, and nothing comes after. 2. Node 2, which leads, dies
    for good, and the others lose power. 3. One of them leads.
    """
    assert all(write(world, ["a", "b", "c"], 1))

    async def remove(admin: Any) -> Any:
        return await admin.delete_records({TopicPartition("a", 1): 2})

    assert administer(world, remove) == {TopicPartition("a", 1): 2}
    for number in (2, 1, 3):
        world.kill_node(number)
    for number in (1, 3):
        world.power_loss(world.disks_on(number), data=DataLoss.ALL, entries=NameLoss.ALL)
        world.start_node(number)
    world.run_for(10)
    assert leader(world, 1) in {1, 3}
    assert read(world, 1) == ["c"]


def test_nothing_acknowledged_is_lost_when_all_nodes_lose_power_at_once(world: World) -> None:
    for partition in range(3):
        assert all(write(world, ["a", "b"], partition))
    world.power_loss()
    world.quiesce()
    for partition in range(3):
        assert read(world, partition) == ["a", "b"]
        assert are_equal(world, partition)


def test_the_same_batch_comes_to_the_next_leader_once(world: World) -> None:
    """S12: the answer to a batch that all have is lost with its leader; it is sent again."""
    write(world, ["a"], 1)
    gate = world.network.hold("produce", callee=holder(world, 2, 1), reply=True)
    client = world.client("writer")

    async def send() -> int:
        producer = client.producer(linger_ms=0, request_timeout_ms=1_000)
        metadata = await (await producer.send("a", b"b", partition=1))
        await producer.close()
        return metadata.offset

    sending = client.spawn(send())
    world.run(gate.wait_held())
    world.kill_node(2)
    assert world.run(sending) == 1
    world.quiesce()
    assert read(world, 1) == ["a", "b"]
    assert len(set(logs(world, 1).values())) == 1


@pytest.mark.parametrize("replicas_per_actor", [1, 3])
def test_a_topic_made_again_has_nothing_of_the_first_though_a_follower_was_dead(
    replicas_per_actor: int,
) -> None:
    async def remake(admin: Any) -> None:
        await admin.delete_topic("a")
        await admin.create_topic("a", 1, 2)

    with World(seed=3, topics={"a": 3}, settings=replicated(replicas_per_actor)) as world:
        write(world, ["a"])
        world.kill_node(3)
        world.run_for(SESSION_S)
        administer(world, remake)
        assert all(write(world, ["b"]))
        world.start_node(3)
        world.quiesce()
        assert read(world) == ["b"]
        assert set(state(world).replicas) == {1, 2}
