"""The controller's log begins with a snapshot once many records came: whoever starts reads few."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path

import pytest
import voting_world
from inside import copy_of
from voting_world import CLUSTER, Node, VotingWorld

from oncelog.actors.controller.metadata_log import SNAPSHOT_CHECK_MS, Snapshots
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.launch.controller_server import ControllerServer
from oncelog.actors.protocol.cluster import cluster_records
from oncelog.actors.protocol.messages.cluster import AllocateProducerIdsRequest
from oncelog.actors.replica.metadata_replica import MetadataCopy
from oncelog.storage.errors import ErrorCode

RECORDS_MAX = 12
FEW = dataclasses.replace(
    CLUSTER,
    metadata_log_max_record_count_between_snapshots=RECORDS_MAX,
    metadata_log_segment_bytes=4_096,
    log_retention_check_interval_ms=2_000,
)
TOPICS = set("abcdef")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_records, "SNAPSHOT_PART_BYTES", 500)


def play(root: Path, scenario, count: int = 3) -> None:  # type: ignore[no-untyped-def]
    voting_world.play(root, scenario, count=count, cluster=FEW)


def controller_of(world: VotingWorld) -> ControllerServer:
    assert world.holder is not None
    assert world.holder.controller is not None
    return world.holder.controller


def copy_on(node: Node) -> MetadataCopy:
    assert node.broker is not None
    copy = copy_of(node.broker)
    assert copy is not None
    return copy


async def create_topics(world: VotingWorld) -> None:
    for name in sorted(TOPICS):
        assert await world.create(name) is ErrorCode.NONE


async def change_much(world: VotingWorld, last: int = -1, count: int = 2 * RECORDS_MAX) -> int:
    """Many records, but little state; each id is given once, and the last of them is returned."""
    for _ in range(count):
        reply = await world.client.call(
            CONTROLLER_ACTOR, AllocateProducerIdsRequest(broker_id=1), timeout_ms=1_000
        )
        assert reply.error is ErrorCode.NONE
        assert reply.first_producer_id > last
        last = reply.first_producer_id
    await asyncio.sleep(2 * SNAPSHOT_CHECK_MS / 1_000)
    return last


async def check_topics(world: VotingWorld) -> None:
    await world.until_serving()
    assert {topic.name for topic in (await world.metadata()).topics} >= TOPICS


def test_a_lone_controller_starts_with_its_last_snapshot(tmp_path: Path) -> None:
    async def scenario(world: VotingWorld) -> None:
        await create_topics(world)
        last = await change_much(world, count=60)
        log = controller_of(world).replica.log
        begins_at = log.log_start_offset
        assert begins_at > RECORDS_MAX
        assert log.log_end_offset - begins_at < 2 * RECORDS_MAX
        # Its files go too, all but those of the last segments.
        await asyncio.sleep(5)
        assert log.retention.first_base_offset > 0
        world.nodes[1].end_controller(None)
        world.nodes[1].start_controller()
        await check_topics(world)
        assert controller_of(world).replica.log.log_start_offset == begins_at
        await change_much(world, last)

    play(tmp_path, scenario, count=1)


def test_every_voter_drops_what_is_before_the_snapshot(tmp_path: Path) -> None:
    """1. Three voters, many records. 2. The copies begin where the controller's log does, and are
    as short. 3. Its node dies: another goes on from its own copy.
    """

    async def scenario(world: VotingWorld) -> None:
        await create_topics(world)
        await world.until_voters(1, 2, 3)
        last = await change_much(world)
        await asyncio.sleep(1)
        begins_at = controller_of(world).replica.log.log_start_offset
        assert begins_at > RECORDS_MAX
        for number in (2, 3):
            log = copy_on(world.nodes[number]).replica.log
            assert log.log_start_offset == begins_at
            assert copy_on(world.nodes[number]).electorate.voters == (1, 2, 3)
        world.nodes[1].kill()
        await check_topics(world)
        await change_much(world, last)

    play(tmp_path, scenario)


def test_a_voter_that_was_away_and_one_with_a_new_disk_are_given_the_snapshot(
    tmp_path: Path,
) -> None:
    """1. Broker 3 is away while all that it has is dropped. 2. It is back, and copies the snapshot.
    3. Broker 2 loses its disk, and copies it too. 4. Both go on when broker 1 dies.
    """

    async def scenario(world: VotingWorld) -> None:
        one, two, three = world.nodes.values()
        await create_topics(world)
        await world.until_voters(1, 2, 3)
        three.kill()
        last = await change_much(world)
        begins_at = controller_of(world).replica.log.log_start_offset
        assert begins_at > RECORDS_MAX
        three.is_up = True
        three.start_broker()
        await world.until_voters(1, 2, 3)
        assert copy_on(three).replica.log.log_start_offset >= begins_at
        two.kill()
        shutil.rmtree(two.data_dir)
        await asyncio.sleep(8)
        two.is_up = True
        two.start_broker()
        await world.until_voters(1, 2, 3)
        assert copy_on(two).replica.log.log_start_offset >= begins_at
        one.kill()
        await check_topics(world)
        await change_much(world, last)

    play(tmp_path, scenario)


def test_nothing_is_dropped_before_the_snapshot_is_committed(tmp_path: Path) -> None:
    """1. A snapshot is written that no other voter is sent. 2. They elect another, who has no part
    of it, and nothing is lacking. 3. The first is back, and cuts its snapshot.
    """

    async def scenario(world: VotingWorld) -> None:
        one, two = world.nodes[1], world.nodes[2]
        await create_topics(world)
        await world.until_voters(1, 2, 3)
        controller = controller_of(world)
        snapshots = Snapshots(
            controller.shell.machine,
            controller.replica,
            execute=controller.shell._execute,
        )
        one.is_isolated = True
        writing = asyncio.ensure_future(snapshots.write())
        await asyncio.sleep(2)
        log = controller.replica.log
        assert not writing.done()
        assert (log.log_start_offset, log.log_end_offset) == (
            0,
            controller.replica.machine.log_end_offset,
        )
        assert log.log_end_offset > controller.replica.machine.high_watermark
        one.kill()
        await check_topics(world)
        assert world.holder is two
        one.is_up, one.is_isolated = True, False
        await world.until_voters(1, 2, 3)
        assert copy_on(one).electorate.voters == (1, 2, 3)

    play(tmp_path, scenario)


def test_a_snapshot_that_is_damaged_is_not_loaded(tmp_path: Path) -> None:
    """Nobody is told half a state: the controller serves nothing, and says which file it is."""

    async def scenario(world: VotingWorld) -> None:
        await create_topics(world)
        await change_much(world)
        replica = controller_of(world).replica
        begins_at = replica.log.log_start_offset
        await replica.stop()
        world.nodes[1].end_controller(None)
        logs = sorted(replica.directory.path.glob("*.log"))
        segment = next(one for one in logs if b"snapshot_part" in one.read_bytes())
        damaged = bytearray(segment.read_bytes())
        damaged[damaged.index(b"snapshot_part")] ^= 1
        segment.write_bytes(damaged)
        world.nodes[1].start_controller()
        await asyncio.sleep(5)
        controller = controller_of(world)
        assert begins_at > 0
        assert (await world.metadata()).error is ErrorCode.NOT_CONTROLLER
        assert segment.name in (controller.failure or controller.replica.failure or "")

    play(tmp_path, scenario, count=1)


def test_a_copy_of_which_nothing_came_after_it_was_dropped_founds_nothing(tmp_path: Path) -> None:
    """The founder was behind, was begun anew where the log begins now, and got no batch. It must
    not take itself for the lone voter that it once was.
    """

    async def scenario(world: VotingWorld) -> None:
        one = world.nodes[1]
        end_offset = controller_of(world).replica.log.log_end_offset
        controller_of(world).replica.log.restart_at(end_offset)
        one.end_controller(None)
        one.start_controller()
        await asyncio.sleep(5)
        assert world.resigned == [1]

    play(tmp_path, scenario, count=1)
