"""A host loses power and is back within its session: what it acknowledged unsynced is elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
from crash_disk import DataLoss, NameLoss
from sim_replica_stage import leader, read, replicated, write
from sim_world import SimulationError, World

from oncelog.actors.protocol.cluster import brokers

SLOW = 100_000.0
"""Times as long as usual: a sync does not end."""

TEXTS = [str(number) for number in range(5)]


@pytest.fixture(params=[1, 3], ids=["own", "shared"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Sessions are long: nobody is fenced. Nothing is synced but what must be."""
    settings = replicated(request.param, broker_session_timeout_ms=60_000)
    settings.topic_settings["a"]["flush"] = "os"  # type: ignore[index]
    with World(seed=3, topics={"a": 3}, settings=settings) as world:
        world.run(world.until(world.has_three_voters), limit_s=30)
        yield world


def write_unsynced(world: World, number: int) -> None:
    """Acknowledged by all replicas, and not synced on one node."""
    for name in world.disks_on(number):
        if name.startswith("partition"):
            world.slow_disk(name, SLOW)
    assert all(write(world, TEXTS))


def reboot(world: World, number: int) -> None:
    with mock.patch.object(World, "power_loss", lose_all(World.power_loss)):
        world.kill_node(number, is_power_lost=True)
    world.start_node(number)
    world.quiesce()


def lose_all(power_loss):  # type: ignore[no-untyped-def]
    """All that was not synced is gone."""

    def lose(world, names=None, **_):  # type: ignore[no-untyped-def]
        power_loss(world, names, data=DataLoss.ALL, entries=NameLoss.NONE)

    return lose


def test_what_it_acknowledged_is_there_though_its_tail_is_gone(world: World) -> None:
    number = leader(world)
    write_unsynced(world, number)
    reboot(world, number)
    assert read(world) == TEXTS
    assert all(write(world, ["more"]))
    assert read(world) == [*TEXTS, "more"]


def test_if_boots_were_no_news_it_would_be_lost(world: World) -> None:
    """It leads, and its followers refuse a log that lacks what was acknowledged."""
    number = leader(world)
    write_unsynced(world, number)
    with (
        mock.patch.object(brokers, "after_reboot", return_value=()),
        pytest.raises(SimulationError, match=r"not serving: .*in sync"),
    ):
        reboot(world, number)
    assert leader(world) == number


def test_a_follower_copies_what_it_lacks_before_it_may_lead(world: World) -> None:
    first = leader(world)
    follower = next(number for number in (3, 2, 1) if number != first)
    write_unsynced(world, follower)
    reboot(world, follower)
    world.kill_node(first)
    world.run_for(10)
    assert leader(world) != first
    assert read(world) == TEXTS
