"""The controller dies with its node and is taken over; two controllers at once never disagree."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sim_log_watch import LogWatch, watching
from sim_process import Process
from sim_replica_mutants import any_epoch, majority_of_one
from sim_replica_stage import (
    SESSION_S,
    administer,
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
from sim_world import SimulationError, World

from oncelog.actors.interfaces import CONTROLLER_ACTOR, broker_actor
from oncelog.actors.protocol.messages.cluster import MetadataRequest
from oncelog.storage.errors import ErrorCode

PATIENCE_S = 30.0


@contextmanager
def watched_world() -> Iterator[tuple[World, LogWatch]]:
    with watching() as watch, World(seed=3, topics={"a": 3}, settings=replicated(3)) as world:
        until(world, world.has_three_voters)
        yield world, watch


@pytest.fixture
def world() -> Iterator[World]:
    with watched_world() as (world, watch):
        yield world
        assert watch.violations == []


def until(world: World, is_reached: Callable[[], bool]) -> None:
    """Let the world go on until something is so."""
    world.run_until(is_reached, limit_s=PATIENCE_S, look_s=0.1)


def until_taken_over(world: World, before: int) -> None:
    """Until another node than the one before has a controller that serves."""

    def is_taken_over() -> bool:
        controller = world.server("controller")
        return (
            controller is not None and world.controller_node != before and controller.is_serving()
        )

    until(world, is_taken_over)


def create(world: World, name: str) -> None:
    """Make a topic with two replicas."""

    async def work(admin: Any) -> None:
        await admin.create_topic(name, 1, 2)

    administer(world, work)


def forgotten(world: World) -> Process:
    """The controller, which Ray takes for dead."""
    until(world, world.has_three_voters)
    process = world.forget_controller()
    assert process is not None
    return process


def test_the_controller_dies_with_its_node_and_another_goes_on_with_all(world: World) -> None:
    """1. A topic is made. 2. The controller's node dies. 3. Another leads, elects, makes topics.
    4. The node is back: its broker votes and its replicas follow. 5. The next controller dies too.
    """
    write(world, ["a"])
    create(world, "b")
    world.kill_node(1)
    until_taken_over(world, 1)
    assert all(write(world, ["b"]))
    assert leader(world) != 1
    create(world, "c")
    world.start_node(1)
    world.quiesce()
    until(world, world.has_three_voters)
    second = world.controller_node
    world.kill_node(second, is_power_lost=True)
    until_taken_over(world, second)
    assert {"a", "b", "c"} <= world.server("controller").shell.machine.topics.keys()
    assert all(write(world, ["c"]))
    world.quiesce()
    assert read(world) == ["a", "b", "c"]
    assert are_equal(world)


def test_the_head_is_away_and_the_others_go_on() -> None:
    """1. The controller has left the node of Ray's head. 2. That dies, and with it all that starts
    actors. 3. Others lead what it led, and are written to. 4. It is back, and follows.
    """
    settings = replace(replicated(3), head_node=1)
    with watching() as watch, World(seed=3, topics={"a": 3}, settings=settings) as world:
        until_taken_over(world, 1)
        until(world, world.has_three_voters)
        assert all(write(world, ["before"]))
        world.kill_node(1)
        began_s = world.now_s
        for number in range(3):
            assert all(write(world, [f"amid {number}"], number))
        assert world.now_s - began_s < 10
        assert {leader(world, number) for number in range(3)} <= {2, 3}
        world.start_node(1)
        create(world, "b")
        world.quiesce()
        assert are_equal(world)
        assert [read(world, number) for number in range(3)] == [
            ["before", "amid 0"],
            ["amid 1"],
            ["amid 2"],
        ]
    assert watch.violations == []


def test_a_controller_that_hung_decides_nothing_once_it_goes_on(world: World) -> None:
    """1. The older one has recorded something that nobody has, and hangs. 2. Another leads.
    3. It goes on: its pushes, those on their way too, are refused, and it ends.
    """
    old = forgotten(world)
    gate = world.network.hold("replicate", caller="controller", when=lambda push: push.batches)
    world.network.zombie_share = 1.0
    making = world.client("operator")
    making.spawn(_make(making, "lost"))
    world.run(gate.wait_held(2))
    world.loop.pause(old)
    world.kill("operator")
    world.network.zombie_share = 0.0
    gate.is_open = True
    until_taken_over(world, 1)
    create(world, "b")
    gate.release_all()
    world.loop.resume(old)
    world.run_for(5.0)
    assert old.is_dead
    assert all(write(world, ["a"]))
    world.quiesce()
    until(world, world.has_three_voters)
    assert "lost" not in world.server("controller").shell.machine.topics


async def _make(client: Any, name: str) -> None:
    await client.admin().create_topic(name, 1, 2)


def test_a_controller_that_is_cut_off_answers_nothing_and_ends_itself(world: World) -> None:
    """Its broker's node is cut off with it."""
    old = forgotten(world)
    world.isolate_node(1)
    reply = world.run(old.spawn(old.server.metadata(MetadataRequest())))
    assert reply.error is ErrorCode.NOT_CONTROLLER
    until_taken_over(world, 1)
    assert old.is_dead
    assert all(write(world, ["a", "b"]))
    assert leader(world) != 1
    world.rejoin_node(1)
    world.quiesce()
    until(world, world.has_three_voters)
    assert read(world) == ["a", "b"]
    assert are_equal(world)


def test_the_watch_sees_that_each_of_two_controllers_decides_by_itself() -> None:
    """Both are heard by clients only: with a majority of one, either elects leaders."""
    with majority_of_one(), watched_world() as (world, watch):
        forgotten(world)
        world.cut(1, 2)
        world.cut(1, 3)
        with contextlib.suppress(SimulationError):
            until_taken_over(world, 1)
            world.run_for(SESSION_S)
        assert "LostPromises" in {found.checker for found in watch.violations}


@pytest.mark.parametrize("is_obeyed", [False, True])
def test_a_controller_that_was_followed_answers_nothing_unless_voters_obey_older_ones(
    is_obeyed: bool,
) -> None:
    """1. It is asked while it hangs. 2. Another leads. 3. It goes on, and has to be confirmed."""
    sabotage = any_epoch() if is_obeyed else contextlib.nullcontext()
    with sabotage, watched_world() as (world, _):
        old = forgotten(world)
        # What it had recorded by itself no voter would take, sabotaged or not.
        until(world, lambda: old.server.metadata_log.may_change_voters)
        world.loop.pause(old)
        asking = old.spawn(old.server.metadata(MetadataRequest()))
        until_taken_over(world, 1)
        world.loop.resume(old)
        world.run_for(2.0)
        is_answered = asking.done() and asking.result().error is ErrorCode.NONE
        assert is_answered is is_obeyed


def test_a_voter_that_has_lost_its_disks_votes_again_once_it_has_a_copy(world: World) -> None:
    """1. The controller's node dies, and is back without disks. 2. The next one dies too."""
    write(world, ["a"])
    world.kill_node(1)
    until_taken_over(world, 1)
    until(world, lambda: world.is_spare(1))
    world.lose_node_disks(1)
    world.start_node(1)
    world.quiesce()
    until(world, world.has_three_voters)
    second = world.controller_node
    world.kill_node(second)
    until_taken_over(world, second)
    assert all(write(world, ["b"]))
    world.quiesce()
    assert read(world) == ["a", "b"]
    assert are_equal(world)


def test_news_of_an_older_controller_and_epoch_makes_nobody_lead(world: World) -> None:
    """1. Broker 2 hangs; broker 3 is to lead, and the news is held. 2. The controller is followed
    by another. 3. Broker 3 is cut off, and yet another leads. 4. It is back, and the news comes,
    twice.
    """
    write(world, ["a"], 1)
    gate = world.network.hold("leader_and_isr", caller="controller", callee=holder(world, 3, 1))
    world.pause(holder(world, 2, 1))
    world.run(gate.wait_held())
    epoch = state(world, 1).leader_epoch
    gate.is_open = True
    old = forgotten(world)
    world.loop.pause(old)
    until_taken_over(world, 1)
    world.loop.resume(old)
    world.resume(holder(world, 2, 1))
    until(world, lambda: world.has_three_voters() and isr(world, 1) == {1, 2, 3})
    world.isolate_node(3)
    until(world, lambda: leader(world, 1) not in {3, -1})
    assert all(write(world, ["b"], 1))
    world.rejoin_node(3)
    world.run_for(SESSION_S)  # Its processes begin again, as they have lost their epochs.
    until(world, lambda: replica(world, 3, 1).is_following)
    assert replica(world, 3, 1).machine.leader_epoch > epoch
    gate.release(times=2)
    world.run_for(SESSION_S)
    assert replica(world, 3, 1).is_following
    assert all(write(world, ["c"], 1))
    world.quiesce()
    assert read(world, 1) == ["a", "b", "c"]
    assert are_equal(world, 1)


@pytest.mark.parametrize("call", ["full", "append", "datasync", "read"])
def test_a_controller_whose_disk_takes_nothing_makes_way(world: World, call: str) -> None:
    """1. The controller's disk is full, or fails, and nobody mends it. 2. Another voter's disk is
    sound: it goes on, and the first is not tried again and again.
    """
    write(world, ["a"])
    # One disk, of which each process of the node has its own view.
    for disk in map(world.disk, (CONTROLLER_ACTOR, broker_actor(1))):
        if call == "full":
            disk.capacity_bytes = sum(len(content) for content in disk.files().values())
        else:
            disk.fail(call, "", errno.EIO)
            disk.fail("sync_directory", "", errno.EIO)
    starts = []
    world.network.watchers.append(
        lambda exchange, request, is_reply: (
            starts.append(request.candidate)
            if exchange.method == "vote" and not is_reply and not request.is_trial
            else None
        )
    )
    began_s = world.now_s
    create(world, "b")
    assert world.now_s - began_s < 15
    assert world.controller_node != 1
    world.run_for(30)
    assert world.controller_node != 1
    # Each voter is asked.
    assert starts.count(1) <= 2
    assert all(write(world, ["b"], 1))
    create(world, "c")
