"""Brokers with two disks each: one that fails takes its replicas offline, and no others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from sim_log_watch import LogWatch, watching
from sim_replica_stage import HASTY, administer, isr, leader, logs, read, replicated, write
from sim_world import World

from oncelog.actors.config import data_directories
from oncelog.actors.protocol.partition.log_directory import possible_directories
from oncelog.actors.replica import log_directories
from oncelog.actors.replica.replica import Replica
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.log.side_files import read_topic_id
from oncelog.storage.model import TopicPartition

OWN, SECOND = "/data", "/more"
SETTINGS = replace(replicated(3), data_dir=f"{OWN},{SECOND}")
FAILING = 2
"""The broker whose second disk fails."""

SOON_S = 2 * HASTY["broker_session_timeout_ms"] / 1_000
LATER_S = 6.0


@pytest.fixture
def watch() -> Iterator[LogWatch]:
    with watching() as watch:
        yield watch


@pytest.fixture
def world(watch: LogWatch) -> Iterator[World]:
    assert watch.violations == []
    with World(seed=5, topics={"a": 3}, settings=SETTINGS) as world:
        administer(world, lambda admin: admin.create_topic("solo", 6, 1))
        world.quiesce()
        yield world


def strays(world: World) -> list[str]:
    """The checker: no broker has the files of one replica in two of its directories."""
    found: dict[tuple[str, str, str], list[Path]] = defaultdict(list)
    for actor, disk in world.disks.items():
        seen = disk.next_life()
        for path in {path.parent for path in seen.files()}:
            if path.parent in data_directories(SETTINGS.data_dir) and read_topic_id(seen, path):
                found[actor, path.name, str(read_topic_id(seen, path))].append(path)
    return [
        f"StrayReplicas: {actor} has {name} in {', '.join(map(str, sorted(paths)))}"
        for (actor, name, _), paths in found.items()
        if len(paths) > 1
    ]


def replicas(world: World, topic: str, broker_id: int = FAILING) -> dict[int, Replica]:
    """Those on a broker, by partition."""
    return {
        one.topic_partition.partition: one
        for one in world.replicas().values()
        if one.topic_partition.topic == topic and one.broker_id == broker_id
    }


def partitions_in(world: World, topic: str, path: str) -> list[int]:
    """Which of the failing broker's are in one of its directories; some are, for each topic."""
    found = [
        number
        for number, one in sorted(replicas(world, topic).items())
        if one.directory.path.parent == Path(path)
    ]
    assert found, f"no partition of {topic} is in {path}"
    return found


def restart(world: World) -> None:
    """All actors of the failing broker that hold replicas of ``a`` or ``solo`` begin again."""
    held = {TopicPartition("a", 0).topic, "solo"}
    for process in list(world.actors()):
        on_it = world.node_of(process.name) == FAILING
        topics = {server.replica.topic_partition.topic for server in process.servers.values()}
        if on_it and topics & held:
            world.end_process(process, "restarted")


async def _send(client: Any, partition: int, text: str) -> bool:
    producer = client.producer(linger_ms=0, delivery_timeout_ms=3_000, request_timeout_ms=1_000)
    try:
        future = await producer.send("solo", text.encode(), partition=partition)
        await producer.flush()
        await future
    except OncelogError:
        return False
    else:
        return True
    finally:
        await producer.close()


def write_solo(world: World, partition: int, text: str) -> bool:
    """Whether it was acknowledged."""
    client = world.client(f"solo-{world.process_count}")
    found: bool = world.run(client.spawn(_send(client, partition, text)))
    return found


def fail_and_restart(world: World) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """1. Written. 2. The disk fails. 3. Written again. 4. Processes restart. By topic, where."""
    good = {topic: partitions_in(world, topic, OWN) for topic in ("a", "solo")}
    bad = {topic: partitions_in(world, topic, SECOND) for topic in ("a", "solo")}
    for partition in range(3):
        assert write(world, ["before"], partition) == [True]
    for partition in (*good["solo"], *bad["solo"]):
        assert write_solo(world, partition, "before")
    world.fail_disk(FAILING, SECOND)
    for partition in range(3):
        assert write(world, ["while"], partition) == [True]
    assert not any(write_solo(world, partition, "lost") for partition in bad["solo"])
    world.run_for(SOON_S)
    assert all(FAILING not in isr(world, number) for number in bad["a"])
    restart(world)
    world.run_for(LATER_S)
    return good, bad


def test_only_the_replicas_of_a_disk_that_fails_are_offline_until_it_works_again(
    world: World, watch: LogWatch
) -> None:
    """5. What is on the other disk serves. 6. The disk works: all are back, with all they had."""
    good, bad = fail_and_restart(world)
    for number in range(3):
        assert write(world, ["later"], number) == [True]
        assert read(world, number) == ["before", "while", "later"]
    world.run_for(SOON_S)
    assert [number for number in range(3) if FAILING in isr(world, number)] == good["a"]
    assert all(leader(world, number) != FAILING for number in bad["a"])
    assert all(write_solo(world, number, "while") for number in good["solo"])
    assert not any(write_solo(world, number, "lost") for number in bad["solo"])
    for topic, numbers in bad.items():
        found = replicas(world, topic)
        assert all(SECOND in (found[number].failure or "") for number in numbers)
    assert strays(world) == []
    world.mend_disk(FAILING, SECOND)
    world.run_for(LATER_S)
    assert all(isr(world, number) == {1, 2, 3} for number in range(3))
    for number in bad["a"]:
        copies = logs(world, number)
        assert copies[1] == copies[2] == copies[3]
    assert all(write_solo(world, number, "after") for number in bad["solo"])
    ends = {number: one.machine.log_end_offset for number, one in replicas(world, "solo").items()}
    assert ends == dict.fromkeys((*good["solo"], *bad["solo"]), 2)
    assert strays(world) == []
    administer(world, lambda admin: admin.delete_topic("solo"))
    world.run_for(SOON_S)
    left = {path for disk in world.disks.values() for path in disk.next_life().files()}
    assert [path for path in left if "solo" in str(path)] == []
    assert watch.violations == []


def test_without_this_protection_its_checker_alone_speaks(world: World, watch: LogWatch) -> None:
    """A replica whose directory is away is made anew in another, as if it were a new one."""

    def anew(found: Any, _away: Any, _assigned: Any, **expected: Any) -> Any:
        return possible_directories(found, (), None, **expected)

    with mock.patch.object(log_directories, "possible_directories", anew):
        fail_and_restart(world)
    world.mend_disk(FAILING, SECOND)
    world.run_for(LATER_S)
    assert strays(world) != []
    assert watch.violations == []
