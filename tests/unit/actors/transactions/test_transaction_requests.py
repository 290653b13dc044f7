"""What the coordinator's shell refuses, fetches and describes, and how it stops."""

from __future__ import annotations

import asyncio
from typing import Any

from inside import tasks_of
from msgspec import structs
from transaction_calls import FLIGHTS, RUN, add, begin, end, init

from oncelog.actors.coordination import runtime as coordinator_runtime
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.protocol.messages.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnReply,
    AddPartitionsToTxnRequest,
    BeginRunRequest,
    DescribeTransactionsRequest,
    EndTxnReply,
    EndTxnRequest,
    EnlistRequest,
    InitProducerIdRequest,
    Run,
)
from oncelog.actors.transactions.transaction_coordinator import TransactionCoordinator
from oncelog.storage.errors import ErrorCode, InvariantViolation
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    shard_of,
)

# --- refusals ---------------------------------------------------------------------------------


def test_requests_before_load_and_after_resigning_say_so(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        coordinator.runtime.is_loaded = False
        assert (await init(coordinator)).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await init(coordinator, None)).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await world.crash(coordinator)
        request = DescribeTransactionsRequest()
        for error in (
            (await init(coordinator)).error,
            (await add(coordinator, 7, 0)).error,
            (await end(coordinator, 7, 0)).error,
            (await coordinator.describe_transactions(request)).error,
        ):
            assert error is ErrorCode.NOT_COORDINATOR

    world.run(scenario)


def test_a_replica_that_does_not_lead_starts_no_coordinator(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        await world.crash(coordinator)
        await coordinator.load()
        assert (await init(coordinator)).error is ErrorCode.NOT_COORDINATOR

    world.run(scenario)


def test_an_id_of_another_shard_is_refused(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        replica = coordinator.replica
        replica.leadership = structs.replace(replica.leadership, transaction_state_partitions=50)
        assert shard_of("loader", 50) != 0
        reply = await init(coordinator)
        assert reply.error is ErrorCode.NOT_COORDINATOR
        assert "loader" in reply.detail

    world.run(scenario)


def test_an_empty_id_is_refused_by_every_request(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        fields = {"transactional_id": "", "producer_id": 7, "producer_epoch": 0}
        replies = [
            await coordinator.init_producer_id(InitProducerIdRequest(transactional_id="")),
            await coordinator.begin_run(BeginRunRequest(transactional_id="", run_id="run")),
            await coordinator.enlist(EnlistRequest(transactional_id="", run=RUN, token=b"")),
            await coordinator.add_partitions_to_txn(
                AddPartitionsToTxnRequest(**fields, partitions=(FLIGHTS,))
            ),
            await coordinator.add_offsets_to_txn(AddOffsetsToTxnRequest(**fields, group_id="g")),
            await coordinator.end_txn(EndTxnRequest(**fields, committed=True)),
        ]
        assert {reply.error for reply in replies} == {ErrorCode.INVALID_REQUEST}

    world.run(scenario)


def test_an_unknown_topic_is_refused_and_a_silent_controller_is_retriable(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        producer = await init(coordinator)
        unknown = await add(coordinator, producer.producer_id, 0)
        assert unknown.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert unknown.enrolments[0].ticket == b""
        controller = world.actors.pop(CONTROLLER_ACTOR)
        reply = await add(coordinator, producer.producer_id, 0)
        assert reply.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.actors[CONTROLLER_ACTOR] = controller
        world.add_partition(FLIGHTS)
        assert (await add(coordinator, producer.producer_id, 0)).error is ErrorCode.NONE
        world.actors.pop(CONTROLLER_ACTOR)
        await asyncio.sleep(5)
        assert (await add(coordinator, producer.producer_id, 0)).error is ErrorCode.NONE

    world.run(scenario)


def test_the_offsets_partition_of_a_group_is_enrolled(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        producer = await init(coordinator)

        async def add_offsets(group_id: str) -> AddPartitionsToTxnReply:
            reply: AddPartitionsToTxnReply = await coordinator.add_offsets_to_txn(
                AddOffsetsToTxnRequest(
                    transactional_id="loader",
                    producer_id=producer.producer_id,
                    producer_epoch=0,
                    group_id=group_id,
                )
            )
            return reply

        reply = await add_offsets("billing")
        (enrolment,) = reply.enrolments
        expected = TopicPartition(CONSUMER_OFFSETS_TOPIC, shard_of("billing", 2))
        assert enrolment.topic_partition == expected
        assert enrolment.ticket
        for group_id in ("", "x" * 1_025):
            assert (await add_offsets(group_id)).error is ErrorCode.INVALID_GROUP_ID

    world.run(scenario)


# --- producer ids -----------------------------------------------------------------------------


def test_idempotent_producers_get_ids_of_their_own(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        replies = [await init(coordinator, None) for _ in range(3)]
        assert [one.producer_id for one in replies] == [1_000, 1_001, 1_002]
        assert {one.producer_epoch for one in replies} == {0}
        assert coordinator.machine.ids.all() == ()

    world.run(scenario)


def test_the_next_block_is_fetched_beside_the_requests(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        for _ in range(1_500):
            await init(coordinator, None)
        assert len(world.calls_of("allocate_producer_ids")) == 2
        await init(coordinator)
        assert coordinator.machine.ids.metadata("loader").producer_id == 2_500

    world.run(scenario)


def test_without_the_controller_new_producers_ask_again(world: Any) -> None:
    async def scenario() -> None:
        controller = world.actors.pop(CONTROLLER_ACTOR)
        coordinator = await world.coordinator()
        for transactional_id in (None, "loader"):
            reply = await init(coordinator, transactional_id)
            assert reply.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        world.actors[CONTROLLER_ACTOR] = controller
        assert (await init(coordinator)).error is ErrorCode.NONE

    world.run(scenario)


# --- descriptions and failures ----------------------------------------------------------------


def test_an_unknown_id_is_not_found_beside_the_known(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        await init(coordinator)
        request = DescribeTransactionsRequest(transactional_ids=("loader", "nobody"))
        reply = await coordinator.describe_transactions(request)
        assert reply.error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert "nobody" in reply.detail
        assert [one.transactional_id for one in reply.transactions] == ["loader"]
        everything = await coordinator.describe_transactions(DescribeTransactionsRequest())
        assert everything.error is ErrorCode.NONE
        assert len(everything.transactions) == 1

    world.run(scenario)


def test_a_bug_in_a_background_task_is_handed_out(world: Any) -> None:
    async def scenario() -> None:
        failures: list[BaseException] = []
        coordinator = await world.coordinator(on_failure=failures.append)
        producer_id, epoch = await begin(world, coordinator)
        world.answer_markers("partition:flights-0@1")

        def broken(*_: Any) -> Any:
            raise InvariantViolation("I-15")

        coordinator.machine.upkeep.decide_complete = broken
        reply = await end(coordinator, producer_id, epoch)
        assert not reply.visible
        assert [type(failure) for failure in failures] == [InvariantViolation]

    world.run(scenario)


def test_stopping_ends_every_task(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        await end(coordinator, producer_id, epoch)  # Its leader is away: the completion goes on.
        await coordinator.stop()
        sent = len(world.calls_of("write_txn_markers"))
        await asyncio.sleep(60)
        assert len(world.calls_of("write_txn_markers")) == sent
        assert not tasks_of(coordinator).running

    world.run(scenario)


def test_many_ids_run_side_by_side(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        world.add_partition(FLIGHTS)
        world.answer_markers("partition:flights-0@1")

        async def one(name: str) -> EndTxnReply:
            reply = await init(coordinator, name)
            fields = {
                "transactional_id": name,
                "producer_id": reply.producer_id,
                "producer_epoch": 0,
            }
            await coordinator.add_partitions_to_txn(
                AddPartitionsToTxnRequest(**fields, partitions=(FLIGHTS,))
            )
            ended: EndTxnReply = await coordinator.end_txn(EndTxnRequest(**fields, committed=True))
            return ended

        replies = await asyncio.gather(*(one(f"id-{number}") for number in range(20)))
        assert all(reply.visible for reply in replies)
        assert len({reply.producer_id for reply in replies}) == 20

    world.run(scenario)


def test_beyond_those_that_may_wait_for_an_id_a_request_is_to_come_again(
    world: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(coordinator_runtime, "WAITING_PER_KEY_MAX", 1)

    async def scenario() -> None:
        coordinator = await world.coordinator()
        first = await init(coordinator)
        replies = await asyncio.gather(*(init(coordinator) for _ in range(6)))
        errors = [reply.error for reply in replies]
        assert errors.count(ErrorCode.NONE) == 2
        assert errors.count(ErrorCode.COORDINATOR_NOT_AVAILABLE) == 4
        assert (await init(coordinator)).producer_epoch > first.producer_epoch

    world.run(scenario)


def test_a_load_that_is_overtaken_by_a_stop_is_discarded(world: Any) -> None:
    async def scenario() -> None:
        first = await world.coordinator()
        for name in ("loader", "other"):
            await first.init_producer_id(InitProducerIdRequest(transactional_id=name))
        await world.crash(first)
        replica = world.replica(TopicPartition(TRANSACTION_STATE_TOPIC, 0))
        await replica.start()
        world.running.append(replica)
        second = TransactionCoordinator(
            replica=replica,
            transport=world,
            clock=world,
            rng=world.rng,
            drivers=world,
            on_failure=[].append,
        )
        loading = asyncio.get_running_loop().create_task(second.load())
        await asyncio.sleep(0)
        assert not loading.done()
        await second.stop()
        await replica.stop()
        await loading
        request = InitProducerIdRequest(transactional_id="loader")
        assert (await second.init_producer_id(request)).error is ErrorCode.NOT_COORDINATOR
        assert second.machine.ids.metadata("other") is None
        assert not second.runtime.is_loaded

    world.run(scenario)


# --- limits -----------------------------------------------------------------------------------


def test_a_transaction_is_open_for_its_owner_s_limit_from_its_first_partition_to_its_end(
    world: Any,
) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        counted = coordinator.open_transactions

        def is_counted() -> bool:
            """Whether the transaction leaves no room for another one of ``User:alice``."""
            assert counted.begin("User:alice", "loader", 1)
            counted.end("loader")
            is_allowed = counted.begin("User:alice", "other", 1)
            if is_allowed:
                counted.end("other")
            return not is_allowed

        await world.partition(FLIGHTS)
        made = await init(coordinator)
        assert not is_counted()
        reply = await add(coordinator, made.producer_id, made.producer_epoch, FLIGHTS)
        assert reply.error is ErrorCode.NONE
        assert is_counted()
        ended = await end(coordinator, made.producer_id, made.producer_epoch)
        assert (ended.error, ended.visible) == (ErrorCode.NONE, True)
        assert not is_counted()

    world.run(scenario)


def test_a_run_without_partitions_holds_no_readers_back(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        await coordinator.begin_run(BeginRunRequest(transactional_id="loader", run_id="r"))
        enlisted = await coordinator.enlist(
            EnlistRequest(transactional_id="loader", run=Run(number=1, id="r"), token=b"")
        )
        assert enlisted.error is ErrorCode.NONE
        assert coordinator.machine.ids.not_at_rest()
        assert not coordinator.machine.ids.holds_readers("loader")

    world.run(scenario)
