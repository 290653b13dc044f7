"""A broker's copy of the metadata log: what it remembers of votes and epochs, and when."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from metadata_copies import asked, pushed
from msgspec import structs
from replicas import RecordedEvents
from virtual_time import ManualClock

from oncelog.actors.config import ClusterConfig, ReplicaConfig
from oncelog.actors.process.background import ThreadBackground
from oncelog.actors.protocol.cluster.cluster_records import (
    BrokerRegistered,
    ControllerElected,
    SnapshotPart,
    VotersChanged,
    encode_cluster_record,
)
from oncelog.actors.protocol.cluster.quorum import LogPosition, VoterState
from oncelog.actors.protocol.messages.replication import ReplicateReply, VoteReply
from oncelog.actors.replica import metadata_replica
from oncelog.actors.replica.data_directory import VOTER_FILE, read_voter_state, write_voter_state
from oncelog.actors.replica.metadata_replica import MetadataCopy
from oncelog.actors.replica.replica import Replica
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import CLUSTER_METADATA_TOPIC

CLUSTER_ID = "c" * 32
Scenario = Callable[[MetadataCopy], Coroutine[Any, Any, None]]


async def begun(directory: Path) -> MetadataCopy:
    events = RecordedEvents()
    copy = MetadataCopy(
        config=ReplicaConfig(
            topic=CLUSTER_METADATA_TOPIC,
            partition=0,
            broker_id=2,
            data_dir=str(directory),
            cluster=ClusterConfig(
                log_retention_check_interval_ms=10, metadata_log_segment_bytes=4_096
            ),
        ),
        filesystem=RealFileSystem(),
        clock=ManualClock(),
        background=ThreadBackground(),
        events=events,
    )
    starting = asyncio.ensure_future(copy.start())
    following = asyncio.ensure_future(events.follows.wait())
    await asyncio.wait({starting, following}, return_when=asyncio.FIRST_COMPLETED)
    following.cancel()
    return copy


def play(directory: Path, *scenarios: Scenario) -> None:
    """Each in a life of its own."""

    async def body() -> None:
        for scenario in scenarios:
            copy = await begun(directory)
            await scenario(copy)
            await copy.stop()

    asyncio.run(body())


def state_in(directory: Path) -> VoterState | None:
    return read_voter_state(RealFileSystem(), directory)


def test_a_copy_begins_with_nothing_and_says_so(tmp_path: Path) -> None:
    async def scenario(copy: MetadataCopy) -> None:
        assert state_in(tmp_path) == VoterState(is_copied=True)
        assert copy.electorate.voters == ()

    play(tmp_path, scenario)


def test_a_vote_is_kept_over_a_start(tmp_path: Path) -> None:
    async def votes(copy: MetadataCopy) -> None:
        reply = await copy.vote(asked(5, 1))
        assert reply == VoteReply(is_granted=True, leader_epoch=5)
        assert state_in(tmp_path) == VoterState(epoch=5, voted_for=1, is_copied=True)

    async def remembers(copy: MetadataCopy) -> None:
        assert await copy.vote(asked(5, 3)) == VoteReply(leader_epoch=5)
        assert (await copy.vote(asked(5, 1))).is_granted
        refused = await copy.replicate(pushed(4))
        assert refused.error is ErrorCode.FENCED_LEADER_EPOCH
        assert refused.leader_epoch == 5

    play(tmp_path, votes, remembers)


def test_a_vote_fences_the_older_controller_at_once(tmp_path: Path) -> None:
    """1. A controller pushes in epoch 4. 2. The voter votes for another in epoch 5. 3. A push of
    the older one comes, in the same life of the voter.
    """

    async def scenario(copy: MetadataCopy) -> None:
        founder = BrokerRegistered(broker_id=1, data_dir="/d")
        assert (await copy.replicate(pushed(4, founder))).error is ErrorCode.NONE
        assert (await copy.vote(asked(5, 3))).is_granted
        refused = await copy.replicate(pushed(4, founder, at=1))
        assert refused.error is ErrorCode.FENCED_LEADER_EPOCH
        assert refused.leader_epoch == 5
        assert copy.position() == LogPosition(4, 1)

    play(tmp_path, scenario)


def test_of_two_candidates_at_once_one_gets_the_vote(tmp_path: Path) -> None:
    """Both ask while the vote for the first is being written down."""

    async def scenario(copy: MetadataCopy) -> None:
        first, second = await asyncio.gather(copy.vote(asked(5, 1)), copy.vote(asked(5, 3)))
        assert (first.is_granted, second.is_granted) == (True, False)
        assert state_in(tmp_path) == VoterState(epoch=5, voted_for=1, is_copied=True)

    play(tmp_path, scenario)


def test_a_push_that_meets_a_vote_of_a_newer_epoch_is_refused(tmp_path: Path) -> None:
    """The push comes while the vote is being written down."""

    async def scenario(copy: MetadataCopy) -> None:
        founder = BrokerRegistered(broker_id=1, data_dir="/d")
        vote, push = await asyncio.gather(
            copy.vote(asked(5, 1)), copy.replicate(pushed(4, founder))
        )
        assert vote.is_granted
        assert push.error is ErrorCode.FENCED_LEADER_EPOCH
        assert copy.position().end_offset == 0
        assert state_in(tmp_path) == copy.state == VoterState(epoch=5, voted_for=1, is_copied=True)

    play(tmp_path, scenario)


def test_an_epoch_is_kept_that_a_push_told(tmp_path: Path) -> None:
    founder = BrokerRegistered(broker_id=1, data_dir="/d")

    async def takes(copy: MetadataCopy) -> None:
        assert await copy.replicate(pushed(7, founder)) == ReplicateReply(log_end_offset=1)
        assert state_in(tmp_path) == VoterState(epoch=7, is_copied=True)
        assert copy.position() == LogPosition(7, 1)
        assert copy.electorate.voters == (1,)

    async def remembers(copy: MetadataCopy) -> None:
        assert copy.position() == LogPosition(7, 1)
        assert (await copy.replicate(pushed(6))).error is ErrorCode.FENCED_LEADER_EPOCH
        assert (await copy.vote(asked(6, 3))).error is ErrorCode.FENCED_LEADER_EPOCH
        behind = await copy.vote(asked(8, 3, LogPosition(7, 0)))
        assert behind == VoteReply(leader_epoch=8, is_behind=True)

    play(tmp_path, takes, remembers)


def test_a_trial_is_forgotten(tmp_path: Path) -> None:
    async def scenario(copy: MetadataCopy) -> None:
        assert (await copy.vote(asked(5, 1, is_trial=True))).is_granted
        assert (await copy.vote(asked(5, 3))).is_granted

    play(tmp_path, scenario)


def test_the_voters_are_the_last_that_the_log_names(tmp_path: Path) -> None:
    async def scenario(copy: MetadataCopy) -> None:
        founder = BrokerRegistered(broker_id=1, data_dir="/d")
        await copy.replicate(pushed(0, founder, VotersChanged(voters=(1, 2))))
        assert copy.electorate.voters == (1, 2)

    play(tmp_path, scenario)


FOUNDER = BrokerRegistered(broker_id=1, data_dir="/d")


def test_the_voters_are_those_of_what_a_cut_leaves(tmp_path: Path) -> None:
    """And of what a snapshot says, of which only the first part has come."""

    async def cuts(copy: MetadataCopy) -> None:
        await copy.replicate(pushed(0, FOUNDER))
        await copy.replicate(pushed(1, VotersChanged(voters=(1, 2)), at=1, previous=0))
        assert copy.electorate.voters == (1, 2)
        await copy.replicate(pushed(2, ControllerElected(broker_id=3, epoch=2), at=1, previous=0))
        assert copy.electorate.voters == (1,)

    async def begins_anew(copy: MetadataCopy) -> None:
        assert copy.electorate.voters == (1,)
        voters = encode_cluster_record(VotersChanged(voters=(1, 3))).value or b""
        part = SnapshotPart(part=0, is_last=False, records=(voters,))
        push = structs.replace(pushed(3, part, at=50, previous=2), log_start_offset=50)
        assert (await copy.replicate(push)).log_end_offset == 51
        assert (copy.replica.log.log_start_offset, copy.electorate.voters) == (50, (1, 3))

    async def remembers(copy: MetadataCopy) -> None:
        assert (copy.replica.log.log_start_offset, copy.electorate.voters) == (50, (1, 3))

    play(tmp_path, cuts, begins_anew, remembers)


def test_a_copy_removes_what_its_controller_has_dropped(tmp_path: Path) -> None:
    async def scenario(copy: MetadataCopy) -> None:
        large = BrokerRegistered(broker_id=1, data_dir="d" * 4_000)
        for offset in range(3):
            await copy.replicate(pushed(0, large, at=offset, previous=0 if offset else -1))
        assert copy.replica.log.retention.first_base_offset == 0
        told = structs.replace(pushed(0, at=3, previous=0), log_start_offset=2, high_watermark=3)
        await copy.replicate(told)
        for _ in range(1_000):
            if copy.replica.log.retention.first_base_offset == 2:
                break
            await asyncio.sleep(0.01)
        assert copy.replica.log.retention.first_base_offset == 2

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "too many"), OSError(errno.EIO, "broken"), CorruptDataError("")]
)
def test_a_copy_that_cannot_tell_the_voters_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Until it begins anew."""

    def fail(_: Replica) -> None:
        raise error

    async def takes(copy: MetadataCopy) -> None:
        await copy.replicate(pushed(0, FOUNDER))
        monkeypatch.setattr(Replica, "replay", fail)

    async def refuses(copy: MetadataCopy) -> None:
        assert (copy.electorate.voters, copy.replica.failure is None) == ((), False)
        assert (await copy.vote(asked(5, 1))).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        monkeypatch.undo()

    async def cuts(copy: MetadataCopy) -> None:
        assert copy.electorate.voters == (1,)
        monkeypatch.setattr(copy.replica, "replay", lambda: fail(copy.replica))
        refused = await copy.replicate(pushed(2, ControllerElected(broker_id=3, epoch=2)))
        assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert (copy.electorate.voters, copy.replica.failure is None) == ((), False)

    play(tmp_path, takes, refuses, cuts)


def test_without_the_file_nothing_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(copy: MetadataCopy) -> None:
        def fail(*_: Any) -> None:
            raise OSError("no more disk")

        monkeypatch.setattr(metadata_replica, "write_voter_state", fail)
        assert (await copy.vote(asked(5, 1))).error is ErrorCode.KAFKA_STORAGE_ERROR
        assert state_in(tmp_path) == VoterState(is_copied=True)
        assert copy.replica.failure is not None
        assert not (await copy.vote(asked(5, 1))).is_granted

    play(tmp_path, scenario)


def test_a_file_that_cannot_be_read_keeps_the_copy_from_voting(tmp_path: Path) -> None:
    (tmp_path / VOTER_FILE).write_text("{")

    async def scenario(copy: MetadataCopy) -> None:
        assert copy.replica.failure is not None
        assert VOTER_FILE in copy.replica.failure
        assert (await copy.vote(asked(5, 1))).error is ErrorCode.NOT_LEADER_OR_FOLLOWER

    play(tmp_path, scenario)


@pytest.mark.parametrize("text", ["", "{}", '{"version":2,"epoch":1,"votedFor":1,"isCopied":true}'])
def test_a_voter_file_that_is_not_one_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / VOTER_FILE).write_text(text)
    with pytest.raises(CorruptDataError, match=VOTER_FILE):
        state_in(tmp_path)


def test_a_voter_file_says_what_was_written(tmp_path: Path) -> None:
    assert state_in(tmp_path) is None
    state = VoterState(epoch=3, voted_for=2, is_copied=True)
    write_voter_state(RealFileSystem(), tmp_path, state)
    assert state_in(tmp_path) == state
    text = '{"version":1,"epoch":3,"votedFor":2,"isCopied":true}\n'
    assert (tmp_path / VOTER_FILE).read_text() == text
