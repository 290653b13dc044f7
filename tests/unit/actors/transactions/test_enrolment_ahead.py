"""A commit that enrols ahead, at the coordinator's shell: tickets, and what it never waits for."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

from inside import tasks_of
from transaction_calls import CLUSTER_KEY, FLIGHTS, add, begin, end, state_of

from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.protocol.messages.partition import FetchRequest, ProduceReply, ProduceRequest
from oncelog.actors.protocol.tickets import ClusterKeys, TicketVerdict, check_ticket
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import IsolationLevel, TopicPartition
from oncelog.storage.records.codec import encode_records

DELAYS = TopicPartition("delays", 0)


def verdict_of(world: Any, ticket: bytes, tp: TopicPartition, owner: tuple[int, int]) -> Any:
    return check_ticket(
        ticket,
        keys=ClusterKeys(current=CLUSTER_KEY),
        producer_id=owner[0],
        producer_epoch=owner[1],
        transactional_id="loader",
        topic_id=world.topic_ids[tp.topic],
        partition=tp.partition,
        now_ms=world.now_ms(),
    )


async def produce(world: Any, leader: Any, owner: tuple[int, int], ticket: bytes) -> ProduceReply:
    batch = encode_records(
        [(None, b"value", world.now_ms(), ())],
        producer_id=owner[0],
        producer_epoch=owner[1],
        base_sequence=0,
        is_transactional=True,
    )
    request = ProduceRequest(
        topic_partition=leader.replica.topic_partition,
        batch=bytes(batch),
        transactional_id="loader",
        ticket=ticket,
    )
    reply: ProduceReply = await leader.produce(request)
    return reply


async def read_committed(leader: Any) -> int:
    """How far a read_committed reader sees."""
    fetch = FetchRequest(
        topic_partition=leader.replica.topic_partition,
        fetch_offset=0,
        isolation_level=IsolationLevel.READ_COMMITTED,
        max_wait_ms=0,
    )
    last_stable_offset: int = (await leader.fetch(fetch)).last_stable_offset
    return last_stable_offset


def test_the_reply_to_a_commit_has_the_tickets_of_the_next_transaction(world: Any) -> None:
    async def scenario() -> None:
        leader = await world.partition(FLIGHTS)
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        reply = await end(coordinator, producer_id, epoch, ahead=(FLIGHTS,))
        assert reply.visible
        assert state_of(coordinator) == "Ongoing"
        (enrolment,) = reply.enrolments
        owner = (producer_id, epoch + 1)
        assert enrolment.topic_partition == FLIGHTS
        assert verdict_of(world, enrolment.ticket, FLIGHTS, owner) is TicketVerdict.VALID
        before = await read_committed(leader)
        assert (await produce(world, leader, owner, enrolment.ticket)).error is ErrorCode.NONE
        assert await read_committed(leader) == before
        ended = await end(coordinator, *owner)
        assert (ended.error, ended.visible, ended.enrolments) == (ErrorCode.NONE, True, ())
        assert await read_committed(leader) == before + 2

    world.run(scenario)


def test_a_commit_that_is_asked_again_brings_the_tickets_again(world: Any) -> None:
    async def scenario() -> None:
        await world.partition(FLIGHTS)
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        first = await end(coordinator, producer_id, epoch, ahead=(FLIGHTS,))
        await asyncio.sleep(0.5)
        again = await end(coordinator, producer_id, epoch, ahead=(FLIGHTS,))
        assert again == first

    world.run(scenario)


def test_there_are_no_tickets_before_every_marker_is_written(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        reply = await end(coordinator, producer_id, epoch, ahead=(FLIGHTS,))
        assert (reply.error, reply.visible) == (ErrorCode.NONE, False)
        assert [(one.topic_partition, one.ticket) for one in reply.enrolments] == [(FLIGHTS, b"")]
        world.answer_markers("partition:flights-0@1")
        await asyncio.sleep(1.5)
        assert state_of(coordinator) == "Ongoing"
        added = await add(coordinator, producer_id, epoch + 1)
        assert added.enrolments[0].ticket

    world.run(scenario)


def test_a_topic_that_is_not_known_fails_no_commit(world: Any) -> None:
    async def scenario() -> None:
        await world.partition(FLIGHTS)
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        reply = await end(coordinator, producer_id, epoch, ahead=(FLIGHTS, DELAYS))
        assert (reply.error, reply.visible, reply.enrolments) == (ErrorCode.NONE, True, ())
        assert state_of(coordinator) == "CompleteCommit"

    world.run(scenario)


def test_a_commit_does_not_wait_for_the_controller(world: Any) -> None:
    """What was known of the topics is old by now, so there are no tickets, but an enrolment."""

    async def scenario() -> None:
        await world.partition(FLIGHTS)
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        del world.actors[CONTROLLER_ACTOR]
        await asyncio.sleep(5)
        started_ms = world.passed_ms()
        reply = await end(coordinator, producer_id, epoch, ahead=(FLIGHTS,))
        assert world.passed_ms() - started_ms < 100
        assert (reply.error, reply.visible) == (ErrorCode.NONE, True)
        assert [one.ticket for one in reply.enrolments] == [b""]
        assert state_of(coordinator) == "Ongoing"

    world.run(scenario)


def test_topics_are_asked_for_beside_the_commit(world: Any) -> None:
    async def scenario() -> None:
        await world.partition(FLIGHTS)
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        await asyncio.sleep(5)
        asked = len(world.calls_of("metadata"))
        reply = await end(coordinator, producer_id, epoch, ahead=(FLIGHTS,))
        await end(coordinator, producer_id, epoch + 1, ahead=(FLIGHTS,))
        assert len(world.calls_of("metadata")) == asked + 1
        assert reply.error is ErrorCode.NONE

    world.run(scenario)


def test_no_tickets_of_a_transaction_that_was_given_up_meanwhile(world: Any) -> None:
    """1. The reply to a commit is lost; what it began ahead times out. 2. The commit is repeated:
    it is answered, with the epoch after that, in which nothing is enrolled."""

    async def scenario() -> None:
        await world.partition(FLIGHTS)
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        await end(coordinator, producer_id, epoch, ahead=(FLIGHTS,))
        await asyncio.sleep(75)
        assert state_of(coordinator) == "CompleteAbort"
        again = await end(coordinator, producer_id, epoch, ahead=(FLIGHTS,))
        assert (again.error, again.producer_epoch) == (ErrorCode.NONE, epoch + 2)
        assert again.enrolments == ()
        added = await add(coordinator, producer_id, epoch + 2)
        assert added.error is ErrorCode.NONE

    world.run(scenario)


def test_one_refresh_of_the_topics_is_enough_for_many_commits(world: Any) -> None:
    async def scenario() -> None:
        await world.partition(FLIGHTS)
        coordinator = await world.coordinator()
        owner = await begin(world, coordinator)
        world.actors[CONTROLLER_ACTOR] = never
        await asyncio.sleep(5)
        asked = len(world.calls_of("metadata"))
        for number in range(5):
            await end(coordinator, owner[0], owner[1] + number, ahead=(FLIGHTS,))
        assert len(world.calls_of("metadata")) == asked + 1
        refreshing = [task for task in tasks_of(coordinator).running if "topics" in repr(task)]
        assert len(refreshing) == 1

    world.run(scenario)


def test_a_key_that_was_changed_is_heard_of(world: Any) -> None:
    async def scenario() -> None:
        await world.partition(FLIGHTS)
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        world.cluster_key_version = coordinator.replica.keys.version + 1
        await asyncio.sleep(5)
        await end(coordinator, producer_id, epoch, ahead=(FLIGHTS,))
        await end(coordinator, producer_id, epoch + 1, ahead=(FLIGHTS,))
        assert coordinator.replica.events.key_requests

    world.run(scenario)


async def never(_request: Any) -> Any:
    """An actor that hangs."""
    await asyncio.sleep(10_000)


def test_data_of_the_next_transaction_outlives_a_coordinator_that_lost_its_completion(
    world: Any, tmp_path: Path
) -> None:
    """1. A commit enrols ahead, its owner writes. 2. The coordinator dies, and of its log only the
    decision is left. 3. The next one repeats the markers: they must not close what is open now."""

    async def scenario() -> None:
        leader = await world.partition(FLIGHTS)
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        kept = tmp_path / "kept"
        real = coordinator.machine.upkeep.decide_complete

        def keep_log(*arguments: Any) -> Any:
            shutil.copytree(coordinator.replica.config.directory, kept)
            return real(*arguments)

        coordinator.machine.upkeep.decide_complete = keep_log
        reply = await end(coordinator, producer_id, epoch, ahead=(FLIGHTS,))
        owner, ticket = (producer_id, epoch + 1), reply.enrolments[0].ticket
        before = await read_committed(leader)
        assert (await produce(world, leader, owner, ticket)).error is ErrorCode.NONE
        directory = coordinator.replica.config.directory
        await world.crash(coordinator)
        shutil.rmtree(directory)
        kept.rename(directory)
        successor = await world.coordinator()
        await asyncio.sleep(2)
        assert state_of(successor) == "Ongoing"
        assert await read_committed(leader) == before
        assert (await end(successor, *owner)).visible
        assert await read_committed(leader) == before + 2

    world.run(scenario)
