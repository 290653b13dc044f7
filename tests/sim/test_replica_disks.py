"""Disks of replicas that fail, and a follower that only the controller does not hear."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sim_disk import SimDisk
from sim_log_watch import watching
from sim_replica_stage import (
    administer,
    holder,
    isr,
    leader,
    logs,
    read,
    replica,
    replicated,
    write,
)
from sim_world import World

from oncelog.storage.model import TopicPartition


@pytest.fixture(params=[1, 3], ids=["own", "shared"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Of partition n of ``a`` broker n + 1 is the preferred leader; all is watched."""
    with (
        watching() as watch,
        World(seed=3, topics={"a": 3}, settings=replicated(request.param)) as world,
    ):
        yield world
        assert watch.violations == []


def disk_of(world: World, broker_id: int, partition: int = 0) -> tuple[str, Any]:
    """The actor that holds a replica, and its disk."""
    name = next(
        process.name
        for process in world.actors()
        for server in process.servers.values()
        if server.replica.topic_partition == TopicPartition("a", partition)
        and server.replica.broker_id == broker_id
    )
    return name, world.disk(name)


@pytest.mark.parametrize("broker_id", [1, 2])
def test_another_leads_when_the_disk_of_a_leader_fails(world: World, broker_id: int) -> None:
    """1. Written. 2. The leader's disk fails. 3. Others write on. 4. An operator mends it.

    Broker 1 is the one whose actors the controller watches.
    """
    number = broker_id - 1
    write(world, ["a", "b"], number)
    assert leader(world, number) == broker_id
    name, disk = disk_of(world, broker_id, number)
    for call in ("append", "datasync", "open", "read"):
        disk.fail(call, "", errno.EIO)
    session_s = world.settings.cluster.broker_session_timeout_ms / 1000
    began_s = world.now_s
    write(world, ["c", "d"], number)
    assert world.now_s - began_s <= 3 * session_s
    assert leader(world, number) != broker_id
    assert isr(world, number) == {1, 2, 3} - {broker_id}
    assert read(world, number) == ["a", "b", "c", "d"]
    actor = world.actor(name)
    assert actor is not None
    assert actor.needs_operator
    world.media.broken.add(name)
    world.media.attend()
    world.quiesce()
    world.run_for(10)
    assert isr(world, number) == {1, 2, 3}
    found = logs(world, number)
    assert found[1] == found[2] == found[3]


def test_a_follower_whose_disk_fails_is_out_of_sync_within_seconds(world: World) -> None:
    name, disk = disk_of(world, 3)
    write(world, ["a"])
    disk.fail("append", "", errno.EIO)
    disk.fail("datasync", "", errno.EIO)
    write(world, ["b"])
    world.run_for(5)
    assert isr(world) == {1, 2}
    world.media.broken.add(name)
    world.media.attend()
    world.run_for(20)
    assert isr(world) == {1, 2, 3}
    assert read(world) == ["a", "b"]


def test_a_follower_that_only_the_controller_does_not_hear_fills_no_metadata_log(
    world: World,
) -> None:
    """1. Broker 3 is fenced, and copies on. 2. Two minutes. 3. It is heard again, and joins."""
    write(world, ["a"], 1)
    assert leader(world, 1) == 2
    world.cut(3, 1)
    world.run_for(10)
    write(world, ["b"], 1)
    world.run_for(1)
    controller = world.server("controller")
    before = controller.replica.machine.log_end_offset
    world.run_for(120)
    assert isr(world, 1) == {1, 2}
    assert logs(world, 1)[3] == logs(world, 1)[2]
    assert controller.replica.machine.log_end_offset == before
    world.mend(3, 1)
    world.run_for(5)
    assert isr(world, 1) == {1, 2, 3}


def test_a_leader_that_hangs_costs_its_clients_no_more_than_the_next_election(
    world: World,
) -> None:
    """The process takes the call and never answers, while a client would wait for half a minute."""
    write(world, ["a"], 1)
    world.pause(holder(world, 2, 1))
    began_s = world.now_s
    assert write(world, ["b"], 1) == [True]
    assert world.now_s - began_s < 10
    assert leader(world, 1) != 2
    assert read(world, 1) == ["a", "b"]


def empty_log(world: World, name: str) -> None:
    """What an actor had of partition 0 is gone; whose its data directory is, is still there."""
    disk = world.disks[name] = world.disks[name].next_life()
    directory = Path(world.settings.data_dir) / "a-0"
    for file in disk.list_directory(directory):
        disk.remove(directory / file)
    disk.sync_directory(directory)


def is_of_first(message: Any) -> bool:
    return bool(message.topic_partition == TopicPartition("a", 0))


@pytest.mark.parametrize("is_accepted_first", [True, False])
def test_a_log_that_is_emptied_between_its_two_questions_is_not_in_sync(
    world: World, is_accepted_first: bool
) -> None:
    """1. Broker 3 has copied what it lacked, and its leader proposes that it joins the ISR. 2. Its
    process dies, and its log is lost. 3. The next life has asked for its log: it need not have
    one. 4. Now the proposal arrives, before or after the next question.
    """
    write(world, ["a"])
    world.cut(3, 1)
    world.cut(3, 2)
    write(world, ["b"])
    world.run_for(3)
    assert isr(world) == {1, 2}
    leads = holder(world, leader(world))
    proposal = world.network.hold("alter_isr", caller=leads, when=is_of_first, limit=1)
    world.mend(3, 1)
    world.mend(3, 2)
    world.run(proposal.wait_held())
    name = holder(world, 3)
    question = world.network.hold("become_leader", caller=name, when=is_of_first)
    pushes = world.network.hold("replicate", when=is_of_first)
    world.kill(name)
    empty_log(world, name)
    world.run(question.wait_held())
    for gate in (proposal, question) if is_accepted_first else (question, proposal):
        gate.release_all()
        world.run_for(0.2)
    assert 3 not in isr(world) or not replica(world, 3).is_following
    pushes.release_all()
    world.run_for(10)
    assert read(world) == ["a", "b"]
    assert isr(world) == {1, 2, 3}


def test_an_older_copy_of_a_disk_is_not_in_sync_though_its_number_is(world: World) -> None:
    """1. A copy is made of the disk of a follower. 2. Its broker starts again. 3. More is written,
    and all are in sync. 4. The follower's process has the copy when it starts again, within the
    session of its broker. 5. It follows nobody until it has the newest disk again.
    """
    write(world, ["a"])
    name = holder(world, 2)
    older = SimDisk.of(world.disks[name].root)
    world.kill_node(2)
    world.run_for(1)
    world.start_node(2)
    world.run_for(4)
    write(world, ["b"])
    assert isr(world) == {1, 2, 3}
    newest = world.disks[name]
    world.kill(name)
    world.disks[name] = older
    world.run_for(1.5)
    assert not replica(world, 2).is_following
    assert replica(world, 2).machine.log_end_offset == 1
    world.run_for(4)
    assert isr(world) == {1, 3}
    assert "is registered with" in replica(world, 2).waits_for
    world.kill(name)
    world.disks[name] = newest
    world.run_for(4)
    assert isr(world) == {1, 2, 3}
    assert read(world) == ["a", "b"]


def test_an_older_copy_leads_nothing_of_a_topic_that_was_made_after_the_founding() -> None:
    """1. A topic is made. 2. All disks of node 1 are copied. 3. The node starts again, leads, and
    more is written. 4. It dies, and has the copies when it is back. 5. Another leads, with all.
    """
    with watching() as watch, World(seed=3, topics={}, settings=replicated(1)) as world:
        administer(world, lambda admin: admin.create_topic("a", 3, 3))
        number = next(one for one in range(3) if leader(world, one) == 1)
        write(world, ["a"], number)
        older = {name: SimDisk.of(world.disks[name].root) for name in world.disks_on(1)}
        world.kill_node(1)
        world.start_node(1)
        world.run_for(4)
        assert leader(world, number) == 1
        write(world, ["b"], number)
        world.kill_node(1)
        world.disks.update(older)
        world.start_node(1)
        world.run_for(10)
        assert read(world, number) == ["a", "b"]
        assert leader(world, number) in (2, 3)
        assert watch.violations == []
