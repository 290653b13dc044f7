"""Leaders are told what was recorded of their partitions: the newest, until they take it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from cluster_worlds import TOPIC_ID, ClusterWorld
from virtual_time import give_turns, run_virtually

from oncelog.actors.controller import replica_actors
from oncelog.actors.controller.replica_actors import ANNOUNCE_RETRY_MS, LeaderAnnouncements
from oncelog.actors.interfaces import address_of
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.protocol.cluster.cluster_records import (
    LeaderElected,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.messages.cluster import (
    BecomeLeaderReply,
    LeaderAndIsrReply,
    LeaderAndIsrRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

PARTITION = TopicPartition("t", 0)


class Told:
    """A cluster with a partition of replicas 1 (its own actor) and 2 (host 3), and its leaders.

    ``answers`` are given in order, and the last one from then on; ``gate`` holds a call up.
    """

    def __init__(self) -> None:
        self.world = ClusterWorld()
        self.world.register(1, 2)
        record = TopicCreated(
            name="t", topic_id=TOPIC_ID, replicas=((1, 2),), hosts=((0, 3),), settings=()
        )
        self.world.apply([record])
        self.calls: list[tuple[str, LeaderAndIsrRequest]] = []
        self.answers = [ErrorCode.NONE]
        self.gate: asyncio.Event | None = None
        self.failures: list[BaseException] = []
        self.tasks = OwnTasks(self.failures.append)
        self.announcements = LeaderAnnouncements(
            machine=self.world.machine,
            transport=self,
            tasks=self.tasks,
            timeout_ms=1_000,
            on_taken=self.record_taken,
        )
        self.taken: list[BecomeLeaderReply] = []

    @property
    def epochs(self) -> list[tuple[str, int]]:
        return [(actor, request.leadership.leader_epoch) for actor, request in self.calls]

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        assert timeout_ms == 1_000
        self.calls.append((actor, request))
        error = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if self.gate is not None:
            await self.gate.wait()
        return LeaderAndIsrReply(error=error)

    async def record_taken(self, tp: TopicPartition, told: BecomeLeaderReply) -> None:
        """What follows may change what is to be told."""
        self.taken.append(told)
        self.world.run(self.world.machine.decide_taken(tp, told))

    def elect(self, leader: int) -> None:
        self.world.lead(leader, (1, 2))
        self.announce()

    def announce(self) -> None:
        self.announcements.announce(self.world.machine.take_unannounced())


def play(scenario: Callable[[Told], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        told = Told()
        await scenario(told)
        await give_turns()
        assert told.failures == []
        assert not told.tasks.running

    run_virtually(body())


async def retry() -> None:
    await asyncio.sleep(ANNOUNCE_RETRY_MS / 1000)
    await give_turns()


ONE = address_of(Placement(PARTITION, TOPIC_ID, 1, 0))
TWO = address_of(Placement(PARTITION, TOPIC_ID, 2, 3))


def test_a_leader_that_takes_it_is_told_once_all_that_is_recorded():
    async def scenario(told: Told) -> None:
        told.elect(1)
        await retry()
        ((actor, request),) = told.calls
        assert actor == ONE
        assert request.topic_partition == PARTITION
        assert request.leadership == told.world.machine.leadership(PARTITION)

    play(scenario)


@pytest.mark.parametrize(
    "error",
    [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID],
)
def test_a_leader_that_does_not_take_it_is_told_again_until_it_does(error: ErrorCode):
    async def scenario(told: Told) -> None:
        told.answers = [error, error, ErrorCode.NONE]
        told.elect(1)
        for _ in range(9):
            await retry()
        assert told.epochs == [(ONE, 0)] * 3

    play(scenario)


def test_a_leader_that_knows_a_newer_epoch_is_told_no_more():
    async def scenario(told: Told) -> None:
        told.answers = [ErrorCode.FENCED_LEADER_EPOCH]
        told.elect(1)
        await retry()
        assert told.epochs == [(ONE, 0)]

    play(scenario)


def test_what_is_recorded_during_a_call_is_told_after_it_and_only_the_newest():
    async def scenario(told: Told) -> None:
        told.gate = asyncio.Event()
        told.elect(1)
        await give_turns()
        told.elect(2)
        told.elect(1)
        await give_turns()
        assert told.epochs == [(ONE, 0)]
        told.gate.set()
        await give_turns()
        assert told.epochs == [(ONE, 0), (ONE, 2)]

    play(scenario)


def test_a_leader_that_does_not_answer_does_not_hold_up_the_next(monkeypatch: pytest.MonkeyPatch):
    """It is cut off: its call takes all of its time, and its broker has all the calls it may."""
    monkeypatch.setattr(replica_actors, "ANNOUNCEMENTS_MAX", 1)

    async def scenario(told: Told) -> None:
        told.gate = asyncio.Event()
        told.elect(1)
        await give_turns()
        told.elect(2)
        await give_turns()
        assert told.epochs == [(ONE, 0), (TWO, 1)]
        told.gate.set()

    play(scenario)


def test_who_was_not_reached_is_not_told_once_another_leads():
    async def scenario(told: Told) -> None:
        told.answers = [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]
        told.elect(2)
        await give_turns()
        told.elect(1)
        await retry()
        assert told.epochs == [(TWO, 0), (ONE, 1)]

    play(scenario)


def test_nobody_is_told_of_a_partition_without_a_leader_until_it_has_one():
    async def scenario(told: Told) -> None:
        told.elect(-1)
        await retry()
        assert told.calls == []
        told.elect(1)
        await retry()
        assert told.epochs == [(ONE, 1)]

    play(scenario)


def test_the_leader_of_a_topic_that_is_deleted_is_told_no_more():
    async def scenario(told: Told) -> None:
        told.answers = [ErrorCode.REQUEST_TIMED_OUT]
        told.elect(1)
        await give_turns()
        told.world.apply([TopicDeleted(topic_id=TOPIC_ID)])
        await retry()
        assert len(told.calls) == 1

    play(scenario)


def test_what_was_recorded_of_a_topic_that_is_deleted_meanwhile_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
):
    """1. A broker has all the calls it may, and an election waits. 2. Its topic is deleted, and
    another one of its name made. 3. The next call is not that of the first topic.
    """
    monkeypatch.setattr(replica_actors, "ANNOUNCEMENTS_MAX", 1)
    other = "b" * 32

    async def scenario(told: Told) -> None:
        told.gate = asyncio.Event()
        apply = told.world.apply
        apply(
            [TopicCreated(name="u", topic_id=other, replicas=((1,),), hosts=((0,),), settings=())]
        )
        apply(
            [
                LeaderElected(
                    topic_id=other,
                    partition=0,
                    leader=1,
                    leader_epoch=0,
                    isr=(1,),
                    incarnation="",
                )
            ]
        )
        told.announce()
        await give_turns()
        told.elect(1)
        await give_turns()
        apply([TopicDeleted(topic_id=TOPIC_ID)])
        again = TopicCreated(
            name="t", topic_id="c" * 32, replicas=((1, 2),), hosts=((0, 3),), settings=()
        )
        apply([again])
        told.gate.set()
        await retry()
        assert TOPIC_ID not in [request.leadership.topic_id for _, request in told.calls]

    play(scenario)


def test_what_a_leader_has_taken_is_passed_on_and_not_what_it_has_refused() -> None:
    async def scenario(told: Told) -> None:
        told.answers = [ErrorCode.NETWORK_EXCEPTION, ErrorCode.NONE]
        told.elect(1)
        await asyncio.sleep(1)
        (taken,) = told.taken
        assert taken == told.calls[-1][1].leadership
        told.answers = [ErrorCode.FENCED_LEADER_EPOCH]
        told.elect(2)
        await asyncio.sleep(1)
        assert len(told.taken) == 1

    play(scenario)


def test_a_leader_is_told_anew_after_what_follows_from_what_it_has_taken() -> None:
    """A higher minimum that it has taken is a new version of the partition."""

    async def scenario(told: Told) -> None:
        told.elect(1)
        await give_turns()
        settings = (("min_insync_replicas", "2"),)
        told.world.apply([TopicConfigured(topic_id=TOPIC_ID, settings=settings)])
        told.announce()
        await give_turns()
        versions = [request.leadership.partition_version for _, request in told.calls]
        assert versions[-1] == versions[-2] + 1

    play(scenario)
