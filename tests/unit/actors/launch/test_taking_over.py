"""The controller's log on three brokers: who follows a controller that is gone."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from inside import copy_of
from voting_world import CLUSTER, VotingWorld, play

from oncelog.actors.interfaces import broker_actor
from oncelog.actors.protocol.cluster.quorum import VoterState
from oncelog.actors.protocol.messages.brokers import BrokerHeartbeatRequest
from oncelog.actors.protocol.messages.cluster import (
    BecomeLeaderRequest,
    ClusterKeysRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    HostedReplicasRequest,
    MetadataRequest,
)
from oncelog.actors.protocol.messages.replication import (
    DescribeVoterRequest,
    ReplicateRequest,
    VoteRequest,
)
from oncelog.actors.replica.data_directory import VOTER_FILE, read_voter_state, write_voter_state
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CLUSTER_METADATA_TOPIC, TopicPartition

NOT_CONTROLLER = ErrorCode.NOT_CONTROLLER


def test_two_brokers_have_one_voter_and_three_have_three(tmp_path: Path) -> None:
    async def scenario(world: VotingWorld) -> None:
        world.nodes[3].is_up = False
        await asyncio.sleep(10)
        assert [one.broker_id for one in (await world.metadata()).voters] == [1]
        world.nodes[3].is_up = True
        await world.until_voters(1, 2, 3)
        assert world.starts == [1]

    play(tmp_path, scenario)


def test_another_broker_takes_over_with_all_that_was_acknowledged(tmp_path: Path) -> None:
    """1. Three voters. 2. The controller's node dies. 3. The next one serves, and goes on.
    4. The dead node is back: it has a copy again, and votes.
    """

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        assert await world.create("a") is ErrorCode.NONE
        before = await world.metadata()
        world.nodes[1].kill()
        assert await world.until_serving() == 2
        await asyncio.sleep(0.5)
        after = await world.metadata()
        # Its session would last much longer.
        assert [one.broker_id for one in after.brokers if one.is_fenced] == [1]
        assert after.controller_epoch > before.controller_epoch
        assert "a" in [topic.name for topic in after.topics]
        assert await world.create("b") is ErrorCode.NONE
        world.nodes[1].is_up = True
        await world.until_voters(1, 2, 3)
        assert world.starts == [1, 2]
        world.nodes[2].kill()
        await world.until_serving()
        assert {"a", "b"} <= {topic.name for topic in (await world.metadata()).topics}

    play(tmp_path, scenario)


def test_a_controller_whose_process_has_ended_is_followed_before_its_session_is_over(
    tmp_path: Path,
) -> None:
    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        loop = asyncio.get_running_loop()
        died_s = loop.time()
        world.nodes[1].kill()
        assert await world.until_serving() == 2
        assert loop.time() - died_s < CLUSTER.controller_session_timeout_ms / 1_000

    play(tmp_path, scenario)


def test_the_controller_leaves_the_node_of_the_head_once_others_can_follow(tmp_path: Path) -> None:
    """1. Three voters: it leaves the head. 2. Those elsewhere die: the head's has it again.
    3. They are back: it leaves again, and does not come back.
    """

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        assert await world.until_serving() == 2
        assert (world.starts, world.resigned) == ([1, 2], [1])
        assert await world.create("a") is ErrorCode.NONE
        world.nodes[2].kill()
        assert await world.until_serving() == 3
        world.nodes[3].kill()
        world.nodes[2].is_up = True
        world.nodes[2].start_broker()
        assert await world.until_serving() in (1, 2)
        world.nodes[3].is_up = True
        world.nodes[3].start_broker()
        await world.until_voters(1, 2, 3)
        await asyncio.sleep(60)
        assert await world.until_serving() == 2
        assert "a" in {topic.name for topic in (await world.metadata()).topics}

    play(tmp_path, scenario, head=1)


def test_the_founder_votes_when_the_name_is_free_and_another_has_lost_its_disk(
    tmp_path: Path,
) -> None:
    """1. Three voters. 2. The third loses its disk, and the controller ends for good before it is
    told. 3. The others are a majority: one of them goes on.
    """

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        assert await world.create("a") is ErrorCode.NONE
        await asyncio.sleep(5)
        three, one = world.nodes[3], world.nodes[1]
        three.kill()
        one.end_controller(None)
        shutil.rmtree(three.data_dir)
        three.is_up = True
        three.start_broker()
        assert await world.until_serving() in (1, 2)
        assert "a" in {topic.name for topic in (await world.metadata()).topics}

    play(tmp_path, scenario)


def test_one_that_nobody_could_follow_at_once_stays_on_the_head(tmp_path: Path) -> None:
    async def scenario(world: VotingWorld) -> None:
        world.nodes[3].is_up = False
        await asyncio.sleep(60)
        assert (world.starts, world.resigned) == ([1], [])

    play(tmp_path, scenario, head=1)


def test_one_voter_of_three_changes_nothing(tmp_path: Path) -> None:
    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        world.nodes[1].kill()
        world.nodes[2].kill()
        await asyncio.sleep(60)
        assert world.starts == [1]
        world.nodes[2].is_up = True
        world.nodes[2].start_broker()
        assert await world.until_serving() in (2, 3)

    play(tmp_path, scenario)


def test_a_controller_without_a_majority_answers_nothing(tmp_path: Path) -> None:
    """It may have been followed: neither what it knows nor what it would refuse is told."""

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        assert await world.create("a") is ErrorCode.NONE
        old = world.nodes[1].controller
        assert old is not None
        epochs = {
            one.broker_id: one.broker_epoch for one in old.shell.machine.broker_states.values()
        }
        tp = TopicPartition("gone", 0)
        questions = (
            old.metadata(MetadataRequest()),
            old.cluster_keys(ClusterKeysRequest()),
            old.hosted_replicas(HostedReplicasRequest(broker_id=2, host=0)),
            old.create_topic(CreateTopicRequest(name="a", topic_id="b" * 32, partitions=1)),
            old.delete_topic(DeleteTopicRequest(name="gone")),
            old.become_leader(
                BecomeLeaderRequest(
                    topic_partition=tp,
                    topic_id="",
                    broker_id=2,
                    incarnation="1",
                    expected_epoch=-1,
                )
            ),
            old.broker_heartbeat(BrokerHeartbeatRequest(broker_id=2, broker_epoch=epochs[2])),
        )
        world.nodes[1].is_isolated = True
        replies = await asyncio.gather(*questions)
        assert {type(one).__name__ for one in replies if one.error is not NOT_CONTROLLER} == set()
        world.nodes[1].is_isolated = False
        assert (await old.metadata(MetadataRequest())).error is ErrorCode.NONE

    play(tmp_path, scenario)


def test_a_controller_does_nothing_by_a_log_that_is_not_committed(tmp_path: Path) -> None:
    """1. A topic is recorded on the controller's disk alone. 2. The process dies, and leads again:
    voters answer it, and take no batch. 3. It serves, and starts replicas, once they have taken it.
    """

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        one = world.nodes[1]
        reach = one.call

        async def call(actor: str, request: Any, *, timeout_ms: int) -> Any:
            if isinstance(request, ReplicateRequest) and len(request.batches):
                return request.failed(ErrorCode.REQUEST_TIMED_OUT)
            return await reach(actor, request, timeout_ms=timeout_ms)

        async def start(placements: Sequence[Any] | None = None) -> None:
            placed.update(one.topic_partition.topic for one in placements or ())

        placed: set[str] = set()
        one.call, one.start = call, start  # type: ignore[method-assign]
        creating = asyncio.ensure_future(world.create("a"))
        await asyncio.sleep(0.5)
        one.end_controller(None)
        assert await creating is not ErrorCode.NONE
        one.start_controller()
        await asyncio.sleep(2)
        assert one.controller is not None
        assert one.controller.replica.availability() is ErrorCode.NONE
        assert (await world.metadata()).error is NOT_CONTROLLER
        assert placed == set()
        one.call = reach  # type: ignore[method-assign]
        assert await world.until_serving() == 1
        assert "a" in {topic.name for topic in (await world.metadata()).topics}
        assert "a" in placed

    play(tmp_path, scenario)


def test_a_candidate_has_voted_for_itself_durably_before_it_asks_others(tmp_path: Path) -> None:
    """Else it could vote for another in the epoch that it leads, after a restart.

    And it asks for an epoch beyond every one in which it has voted.
    """

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        for node in world.nodes.values():
            node.kill()
        two, disk = world.nodes[2], RealFileSystem()
        voted = VoterState(epoch=50, voted_for=3, is_copied=True)
        write_voter_state(disk, two.data_dir, voted)
        asked: list[tuple[VoteRequest, VoterState | None]] = []
        reach = two.call

        async def call(actor: str, request: Any, *, timeout_ms: int) -> Any:
            if isinstance(request, VoteRequest):
                asked.append((request, read_voter_state(disk, two.data_dir)))
            return await reach(actor, request, timeout_ms=timeout_ms)

        two.call = call  # type: ignore[method-assign]
        two.is_up = world.nodes[3].is_up = True
        world.nodes[3].start_broker()
        two.start_controller()
        assert await world.until_serving() == 2
        trials = [state for request, state in asked if request.is_trial]
        votes = [(request.leader_epoch, state) for request, state in asked if not request.is_trial]
        own = VoterState(epoch=51, voted_for=2, is_copied=True)
        assert set(trials) == {voted}
        assert set(votes) == {(51, own)}

    play(tmp_path, scenario)


def test_a_candidate_asks_for_an_epoch_beyond_that_of_a_voter_that_refuses_it(
    tmp_path: Path,
) -> None:
    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        for node in world.nodes.values():
            node.kill()
        two, three = world.nodes[2], world.nodes[3]
        write_voter_state(
            RealFileSystem(), three.data_dir, VoterState(epoch=50, voted_for=1, is_copied=True)
        )
        two.is_up = three.is_up = True
        three.start_broker()
        two.start_controller()
        assert await world.until_serving() == 2
        assert (await world.metadata()).controller_epoch == 51

    play(tmp_path, scenario)


def test_a_voter_that_has_voted_in_the_next_epoch_is_asked_for_the_one_after(
    tmp_path: Path,
) -> None:
    """1. Voter 3 is away while a topic is made. 2. It votes for a candidate that dies at once.
    3. Voters 2 and 3 are a majority: only 2 has the newest log, and 3 refuses its first epoch.
    """

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        two, three = world.nodes[2], world.nodes[3]
        three.kill()
        assert await world.create("a") is ErrorCode.NONE
        epoch = (await world.metadata()).controller_epoch + 1
        for node in world.nodes.values():
            node.kill()
        write_voter_state(
            RealFileSystem(), three.data_dir, VoterState(epoch=epoch, voted_for=1, is_copied=True)
        )
        two.is_up = three.is_up = True
        two.start_broker()
        three.start_broker()
        assert await world.until_serving() == 2
        after = await world.metadata()
        assert after.controller_epoch == epoch + 1
        assert "a" in {topic.name for topic in after.topics}

    play(tmp_path, scenario)


def test_two_controllers_at_once_do_not_disagree(tmp_path: Path) -> None:
    """Ray has replaced one that lives on, cut off: it answers nothing, and ends later."""

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        node = world.nodes[1]
        old = node.controller
        assert old is not None
        node.is_isolated = True
        world.holder = None
        assert await world.until_serving() in (2, 3)
        assert await world.create("b") is ErrorCode.NONE
        assert (await old.metadata(MetadataRequest())).error is ErrorCode.NOT_CONTROLLER
        node.is_isolated = False
        await asyncio.sleep(5)
        assert node.controller is None
        await world.until_voters(1, 2, 3)

    play(tmp_path, scenario)


def test_a_voter_with_a_new_disk_has_no_vote_until_it_has_a_copy(tmp_path: Path) -> None:
    """1. Three voters. 2. The founder dies, and another follows. 3. It comes back without its disk.
    4. Its vote is taken; it gets a copy, and votes again.
    """

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        assert await world.create("a") is ErrorCode.NONE
        one = world.nodes[1]
        one.kill()
        controller = world.nodes[await world.until_serving()].controller
        assert controller is not None
        for topic in controller.shell.machine.topics.values():
            for partition in topic.partitions:
                partition.isr = ()  # Nothing else counts on the disk that is lost.
        shutil.rmtree(one.data_dir)
        one.is_up = True
        changes = []
        while not changes or set(changes[-1]) != {1, 2, 3} or len(set(changes)) < 2:
            changes.append(controller.shell.machine.voters)
            await asyncio.sleep(0.1)
        assert {2, 3} in map(set, changes)
        await world.until_voters(1, 2, 3)
        state = read_voter_state(RealFileSystem(), one.data_dir)
        assert state is not None
        assert state.is_copied

    play(tmp_path, scenario)


@pytest.mark.parametrize("candidate", [2, 3])
def test_a_voter_with_an_older_copy_of_its_disk_elects_nobody(
    tmp_path: Path, candidate: int
) -> None:
    """1. Three voters, and a copy is made of the third's disk. 2. The third starts again. 3. The
    second is down while a topic is made. 4. The third comes back with the copy, and the first dies:
    neither other one is elected, as the topic would be gone. 5. The first is back, and serves.
    """

    async def scenario(world: VotingWorld) -> None:
        one, two, three = (world.nodes[number] for number in (1, 2, 3))
        await world.until_voters(1, 2, 3)
        await asyncio.sleep(5)
        copy = tmp_path / "copy"
        shutil.copytree(three.data_dir, copy)
        three.kill()
        three.is_up = True
        await asyncio.sleep(5)
        await world.until_voters(1, 2, 3)
        two.kill()
        assert await world.create("a") is ErrorCode.NONE
        for node in world.nodes.values():
            node.kill()
        shutil.rmtree(three.data_dir)
        shutil.copytree(copy, three.data_dir)
        two.is_up = three.is_up = True
        two.start_broker()
        three.start_broker()
        world.nodes[candidate].start_controller()
        await asyncio.sleep(60)
        assert (await world.metadata()).error is not ErrorCode.NONE
        one.is_up = True
        one.start_broker()
        await world.until_serving()
        assert "a" in {topic.name for topic in (await world.metadata()).topics}

    play(tmp_path, scenario)


def test_a_voter_with_an_older_copy_of_its_disk_votes_again_once_it_has_a_copy_of_the_log(
    tmp_path: Path,
) -> None:
    """1. Three voters, and a copy is made of the third's disk. 2. The third starts again. 3. It
    comes back with the copy. 4. Its vote is taken: what it acknowledges does not count. 5. It gets
    what it lacks, and votes again.
    """

    async def scenario(world: VotingWorld) -> None:
        three = world.nodes[3]
        await world.until_voters(1, 2, 3)
        await asyncio.sleep(5)
        copy = tmp_path / "copy"
        shutil.copytree(three.data_dir, copy)
        three.kill()
        three.is_up = True
        await asyncio.sleep(5)
        assert await world.create("a") is ErrorCode.NONE
        three.kill()
        shutil.rmtree(three.data_dir)
        shutil.copytree(copy, three.data_dir)
        three.is_up = True
        controller = world.nodes[await world.until_serving()].controller
        assert controller is not None
        voters = set()
        for _ in range(200):
            await asyncio.sleep(0.1)
            voters.add(controller.shell.machine.voters)
        assert (1, 2) in voters
        await world.until_voters(1, 2, 3)
        world.nodes[1].kill()
        assert await world.until_serving() in (2, 3)
        assert "a" in {topic.name for topic in (await world.metadata()).topics}

    play(tmp_path, scenario)


def test_a_cluster_that_was_down_as_a_whole_begins_again_on_any_voter(tmp_path: Path) -> None:
    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        assert await world.create("a") is ErrorCode.NONE
        for node in world.nodes.values():
            node.kill()
        world.nodes[2].is_up = world.nodes[3].is_up = True
        world.nodes[3].start_broker()
        world.nodes[2].start_controller()
        assert await world.until_serving() == 2
        assert "a" in {topic.name for topic in (await world.metadata()).topics}
        assert world.starts == [1, 2]

    play(tmp_path, scenario)


def test_one_that_starts_with_an_older_log_leaves_it_to_another(tmp_path: Path) -> None:
    """1. Node 1 is down while a topic is made. 2. All go down. 3. Node 1 is started as the one to
    lead: the others have a newer log, so it ends, and one of them leads.
    """

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        world.nodes[1].kill()
        await world.until_serving()
        assert await world.create("a") is ErrorCode.NONE
        for number in (2, 3):
            world.nodes[number].kill()
        for number in (1, 2, 3):
            world.nodes[number].is_up = True
        for number in (2, 3):
            world.nodes[number].start_broker()
        world.nodes[1].start_controller()
        assert await world.until_serving() in (2, 3)
        assert world.resigned == [1]
        assert "a" in {topic.name for topic in (await world.metadata()).topics}
        await world.until_voters(1, 2, 3)

    play(tmp_path, scenario)


def test_a_voter_tells_who_votes_while_there_is_no_controller(tmp_path: Path) -> None:
    """1. Three voters. 2. The nodes of two are gone, the controller's among them. 3. The third
    names all three, those that are gone do not answer, and one without a copy names none.
    """

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        await asyncio.sleep(10)
        own = world.nodes[2]
        without = await own.call(broker_actor(1), DescribeVoterRequest(), timeout_ms=100)
        assert (without.broker_id, without.voters) == (1, ())
        world.nodes[1].kill()
        world.nodes[3].kill()
        told = await own.call(broker_actor(2), DescribeVoterRequest(), timeout_ms=100)
        assert (told.broker_id, told.voters, told.problem) == (2, (1, 2, 3), "")
        assert told.leader_epoch >= 0
        assert told.log_end_offset > 0
        gone = await own.call(broker_actor(3), DescribeVoterRequest(), timeout_ms=100)
        assert gone.error is ErrorCode.NETWORK_EXCEPTION

    play(tmp_path, scenario)


# --- a controller that is of no use --------------------------------------------------------------


def test_a_controller_that_is_cut_off_makes_way_although_ray_takes_it_for_alive(
    tmp_path: Path,
) -> None:
    """1. Three voters. 2. The controller's node hears nobody, and Ray knows nothing of that. 3. It
    ends itself, and another goes on. 4. It hears others again: its broker has a copy, and votes.
    """

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        assert await world.create("a") is ErrorCode.NONE
        loop = asyncio.get_running_loop()
        cut_s = loop.time()
        world.nodes[1].is_isolated = True
        assert await world.until_serving() in (2, 3)
        assert loop.time() - cut_s < 10
        assert world.resigned == [1]
        assert "a" in {topic.name for topic in (await world.metadata()).topics}
        world.nodes[1].is_isolated = False
        await world.until_voters(1, 2, 3)

    play(tmp_path, scenario)


def test_without_a_majority_nobody_gets_the_name_by_ending_the_one_that_has_it(
    tmp_path: Path,
) -> None:
    """Two of three are away: whoever is left ends the controller once, and does not try again."""

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        world.nodes[2].kill()
        world.nodes[3].kill()
        await asyncio.sleep(120)
        assert (world.starts, world.resigned) == ([1], [1])
        world.nodes[3].is_up = True
        world.nodes[3].start_broker()
        assert await world.until_serving() in (1, 3)

    play(tmp_path, scenario)


def damage_voter_file(data_dir: Path) -> None:
    (data_dir / VOTER_FILE).write_bytes(b"{")


def damage_metadata_log(data_dir: Path) -> None:
    """A byte of its first batch, of which recovery takes no torn tail."""
    (log,) = data_dir.glob(f"{CLUSTER_METADATA_TOPIC}-0/*.log")
    content = bytearray(log.read_bytes())
    content[80] ^= 1
    log.write_bytes(content)


@pytest.mark.parametrize("damage", [damage_voter_file, damage_metadata_log])
def test_a_controller_whose_disk_is_damaged_makes_way(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """1. Three voters. 2. The controller dies, and a file of it is damaged. 3. Ray starts it
    again on that disk: it cannot stand, and another goes on. 4. It is not started there again.
    """

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        assert await world.create("a") is ErrorCode.NONE
        one = world.nodes[1]
        one.end_controller(None)
        damage(one.data_dir)
        one.start_controller()
        assert await world.until_serving() in (2, 3)
        await asyncio.sleep(60)
        assert world.resigned == [1]
        assert world.starts[:2] == [1, 1]
        assert len(world.starts) == 3
        assert "a" in {topic.name for topic in (await world.metadata()).topics}

    play(tmp_path, scenario)


def test_a_controller_that_begins_again_on_an_empty_disk_makes_way(tmp_path: Path) -> None:
    """1. Three voters. 2. The controller's node dies, and is back at once, without what was on its
    disk; Ray starts the controller there again. 3. Nothing on that disk tells of other voters:
    they do.
    """

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        assert await world.create("a") is ErrorCode.NONE
        one = world.nodes[1]
        one.kill()
        shutil.rmtree(one.data_dir)
        one.data_dir.mkdir()
        one.is_up = True
        one.start_controller()
        assert await world.until_serving() in (2, 3)
        assert world.resigned == [1]
        assert "a" in {topic.name for topic in (await world.metadata()).topics}

    play(tmp_path, scenario)


def test_a_lone_voter_without_its_disk_stays_and_says_what_is_wrong(tmp_path: Path) -> None:
    """Also beside a broker that has no copy: nobody could follow."""

    async def scenario(world: VotingWorld) -> None:
        one = world.nodes[1]
        one.kill()
        shutil.rmtree(one.data_dir)
        one.data_dir.mkdir()
        one.is_up = True
        one.start_controller()
        await asyncio.sleep(60)
        assert world.resigned == []
        assert one.controller is not None
        assert "has no meta.properties" in str(one.controller.replica.failure)

    play(tmp_path, scenario, count=2)


def test_a_lone_voter_stays_and_says_what_is_wrong(tmp_path: Path) -> None:
    async def scenario(world: VotingWorld) -> None:
        one = world.nodes[1]
        assert one.controller is not None
        one.controller.replica.go_offline("the disk is gone")
        await asyncio.sleep(60)
        assert world.resigned == []
        assert one.controller.replica.failure == "the disk is gone"

    play(tmp_path, scenario, count=1)


def test_no_copy_begins_where_ray_does_not_say_that_the_controller_is_elsewhere(
    tmp_path: Path,
) -> None:
    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        await asyncio.sleep(10)
        one = world.nodes[1]
        assert one.broker is not None
        one.is_told = False
        await asyncio.sleep(30)
        assert copy_of(one.broker) is None

    play(tmp_path, scenario)


def test_a_copy_lets_the_directory_go_for_the_controller_that_waits_for_it(
    tmp_path: Path,
) -> None:
    """1. Ray says once, wrongly, that the controller is not on this node: its broker begins a copy,
    which waits for the directory. 2. The controller's process dies, and the copy has it. 3. Ray
    starts the controller here again: it gets the directory, and serves.
    """

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        await asyncio.sleep(10)
        one = world.nodes[1]
        assert one.broker is not None
        world.holder = None
        await one.broker.voter._begin_copy()
        world.holder = one
        assert copy_of(one.broker) is not None
        one.end_controller(None)
        world.holder = one  # Ray starts it again.
        await asyncio.sleep(0.1)
        assert copy_of(one.broker).replica.is_following
        one.start_controller()
        assert await world.until_serving() == 1
        assert world.starts == [1, 1]

    play(tmp_path, scenario)


def test_a_controller_that_answers_nothing_is_killed_by_its_broker(tmp_path: Path) -> None:
    """Its process hangs, and Ray takes it for alive."""

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        await asyncio.sleep(10)
        hung = world.nodes[1].controller
        assert hung is not None
        world.hung.add(hung)
        assert await world.until_serving() in (1, 2, 3)
        assert world.killed == [1]

    play(tmp_path, scenario)


def test_a_copy_that_was_begun_beside_a_controller_ends_and_the_hung_one_is_killed(
    tmp_path: Path,
) -> None:
    """1. Ray says once, wrongly, that the controller is not on this node: its broker begins a copy,
    which waits for the directory. 2. The controller's process hangs.
    """

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        await asyncio.sleep(10)
        one = world.nodes[1]
        hung = one.controller
        assert one.broker is not None
        assert hung is not None
        world.holder = None
        await one.broker.voter._begin_copy()
        world.holder = one
        assert copy_of(one.broker) is not None
        world.hung.add(hung)
        assert await world.until_serving() in (1, 2, 3)
        assert world.killed == [1]

    play(tmp_path, scenario)


def test_a_voter_with_a_full_disk_does_not_take_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end itself again, and the next start on it too."""
    refused: list[str] = []
    write = RealFileSystem.write_atomically

    def refusing(self: RealFileSystem, path: Path, data: Any) -> None:
        if path.parent == tmp_path / "2" and len(data) > 1_000:
            refused.append(path.name)
            raise OSError(errno.ENOSPC, "no space left", str(path))
        write(self, path, data)

    async def scenario(world: VotingWorld) -> None:
        await world.until_voters(1, 2, 3)
        monkeypatch.setattr(RealFileSystem, "write_atomically", refusing)
        world.nodes[1].kill()
        assert await world.until_serving() == 3
        assert refused

    play(tmp_path, scenario)
