"""The coordinator's shell on a real log, with virtual time and an in-memory transport."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from transaction_calls import CLUSTER_KEY, FLIGHTS, RUN, add, begin, end, init, state_of
from virtual_time import give_turns

from oncelog.actors.config import ClusterConfig
from oncelog.actors.protocol.messages.partition import (
    DescribeProducersReply,
    DescribeProducersRequest,
    FetchRequest,
    ProducerDescription,
    ProduceRequest,
    TxnMarker,
)
from oncelog.actors.protocol.messages.transaction import (
    BeginRunRequest,
    DriverProcess,
    EndTxnReply,
    EndTxnRequest,
    EnlistRequest,
    Holder,
    InitProducerIdRequest,
    RenewRunRequest,
    Run,
    Winner,
)
from oncelog.actors.protocol.tickets import ClusterKeys, TicketVerdict, check_ticket
from oncelog.actors.transactions.completions import EndStep
from oncelog.actors.transactions.transaction_coordinator import HOLDER_NEWS_MS
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import IsolationLevel, TopicPartition
from oncelog.storage.records.codec import encode_records

# --- the whole way ----------------------------------------------------------------------------


def test_a_transaction_from_init_to_reading_it(world: Any) -> None:
    async def scenario() -> None:
        leader = await world.partition(FLIGHTS)
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        enrolled = await add(coordinator, producer_id, epoch)
        batch = encode_records(
            [(None, b"value", world.now_ms(), ())],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
            is_transactional=True,
        )
        produce = ProduceRequest(
            topic_partition=FLIGHTS,
            batch=bytes(batch),
            transactional_id="loader",
            ticket=enrolled.enrolments[0].ticket,
        )
        fetch = FetchRequest(
            topic_partition=FLIGHTS,
            fetch_offset=0,
            isolation_level=IsolationLevel.READ_COMMITTED,
            max_wait_ms=0,
        )
        assert (await leader.produce(produce)).error is ErrorCode.NONE
        assert (await leader.fetch(fetch)).records == b""
        reply = await end(coordinator, producer_id, epoch)
        assert (reply.error, reply.visible) == (ErrorCode.NONE, True)
        assert (reply.producer_id, reply.producer_epoch) == (producer_id, epoch + 1)
        assert [coordinator.end_durations.count(step) for step in EndStep] == [1, 1, 1]
        assert (await leader.fetch(fetch)).records
        late = await leader.produce(produce)  # The batch is a duplicate by sequence no more.
        assert late.error is ErrorCode.INVALID_PRODUCER_EPOCH

    world.run(scenario)


def test_tickets_prove_the_enrolment_of_each_partition(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        delays = TopicPartition("delays", 0)
        producer_id, epoch = await begin(world, coordinator, FLIGHTS, delays)
        reply = await add(coordinator, producer_id, epoch, delays, FLIGHTS)
        assert [one.topic_partition for one in reply.enrolments] == [delays, FLIGHTS]
        for one in reply.enrolments:
            verdict = check_ticket(
                one.ticket,
                keys=ClusterKeys(current=CLUSTER_KEY),
                producer_id=producer_id,
                producer_epoch=epoch,
                transactional_id="loader",
                topic_id=world.topic_ids[one.topic_partition.topic],
                partition=one.topic_partition.partition,
                now_ms=world.now_ms(),
            )
            assert verdict is TicketVerdict.VALID

    world.run(scenario)


def test_markers_carry_the_coordinator_epoch_and_the_next_producer_epoch(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        world.answer_markers("partition:flights-0@1")
        await end(coordinator, producer_id, epoch, committed=False)
        ((_, _, request),) = world.calls_of("write_txn_markers")
        assert request.coordinator_epoch == coordinator.replica.leader_epoch
        (marker,) = request.markers
        assert (marker.producer_epoch, marker.committed) == (epoch + 1, False)
        assert state_of(coordinator) == "CompleteAbort"

    world.run(scenario)


# --- visibility and failover ------------------------------------------------------------------


def test_the_end_is_answered_before_it_is_visible_when_a_leader_is_away(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        started_ms = world.passed_ms()
        reply = await end(coordinator, producer_id, epoch)
        assert (reply.error, reply.visible) == (ErrorCode.NONE, False)
        assert 1_000 <= world.passed_ms() - started_ms < 1_100
        again = await add(coordinator, producer_id, epoch + 1)
        assert again.error is ErrorCode.CONCURRENT_TRANSACTIONS
        world.answer_markers("partition:flights-0@1")
        await asyncio.sleep(1.5)
        assert state_of(coordinator) == "CompleteCommit"
        retry = await end(coordinator, producer_id, epoch)
        assert (retry.error, retry.visible) == (ErrorCode.NONE, True)

    world.run(scenario)


@pytest.mark.parametrize("committed", [True, False])
def test_the_next_transaction_may_be_aborted_before_the_one_before_is_complete(
    world: Any, committed: bool
) -> None:
    """1. The end is answered while a leader is away. 2. Its owner begins anew, but nothing can be
    enrolled yet. 3. It aborts: it is told to wait, not that somebody took its id over."""

    async def scenario() -> None:
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        await end(coordinator, producer_id, epoch, committed=committed)
        early = await end(coordinator, producer_id, epoch + 1, committed=False)
        assert early.error is ErrorCode.CONCURRENT_TRANSACTIONS
        world.answer_markers("partition:flights-0@1")
        await asyncio.sleep(1.5)
        again = await end(coordinator, producer_id, epoch + 1, committed=False)
        assert (again.error, again.producer_epoch) == (ErrorCode.NONE, epoch + 2)

    world.run(scenario)


def test_a_successor_finishes_the_commit_with_its_own_epoch(world: Any) -> None:
    async def scenario() -> None:
        first = await world.coordinator()
        producer_id, epoch = await begin(world, first)
        await end(first, producer_id, epoch)
        await world.crash(first)
        world.answer_markers("partition:flights-0@1")
        second = await world.coordinator()
        await asyncio.sleep(0.1)
        assert state_of(second) == "CompleteCommit"
        _, _, request = world.calls_of("write_txn_markers")[-1]
        assert request.coordinator_epoch == second.replica.leader_epoch > first.replica.leader_epoch
        assert request.markers[0].committed
        assert (await end(second, producer_id, epoch)).error is ErrorCode.NONE

    world.run(scenario)


def test_a_coordinator_that_a_partition_refuses_leaves_the_completion(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        world.answer_markers("partition:flights-0@1", then=ErrorCode.TRANSACTION_COORDINATOR_FENCED)
        world.leader_epochs[coordinator.replica.topic_partition] += 1
        reply = await end(coordinator, producer_id, epoch)
        assert not reply.visible
        await asyncio.sleep(60)
        assert len(world.calls_of("write_txn_markers")) == 1
        assert state_of(coordinator) == "PrepareCommit"

    world.run(scenario)


def test_the_newest_coordinator_completes_what_a_partition_refuses_as_too_old(world: Any) -> None:
    """1. A partition is enrolled. 2. The epoch of its producer rises there, without data of the
    transaction. 3. The marker is refused: nothing is open there, and the id goes on."""

    async def scenario() -> None:
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        leader = await world.partition(FLIGHTS)
        raised = TxnMarker(
            producer_id=producer_id,
            producer_epoch=epoch + 7,
            committed=True,
            partitions=(FLIGHTS,),
        )
        assert leader.replica.append_marker(raised, 0, world.now_ms()).error is ErrorCode.NONE
        reply = await end(coordinator, producer_id, epoch)
        assert (reply.error, reply.visible) == (ErrorCode.NONE, True)
        assert state_of(coordinator) == "CompleteCommit"

    world.run(scenario)


def test_an_id_that_was_left_to_a_newer_coordinator_is_forgotten_once_it_is_finished(
    world: Any,
) -> None:
    """1. A newer coordinator's marker is met: the id is left. 2. A client calls and the partition
    takes the marker after all. 3. The scan remembers no id that is finished."""

    async def scenario() -> None:
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        world.answer_markers("partition:flights-0@1", ErrorCode.TRANSACTION_COORDINATOR_FENCED)
        world.leader_epochs[coordinator.replica.topic_partition] += 1
        await end(coordinator, producer_id, epoch)
        assert coordinator._completions._left_to_successor == {"loader"}
        await end(coordinator, producer_id, epoch)
        await asyncio.sleep(60)
        assert state_of(coordinator) == "CompleteCommit"
        assert not coordinator._completions._left_to_successor

    world.run(scenario)


def test_a_decision_is_completed_though_its_caller_went_away(world: Any) -> None:
    """1. end_txn logs PREPARE. 2. Its caller is cancelled meanwhile. 3. The markers go out."""

    async def scenario() -> None:
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        world.answer_markers("partition:flights-0@1")
        ending = asyncio.create_task(end(coordinator, producer_id, epoch))
        await give_turns(3)
        ending.cancel()
        await asyncio.sleep(10)
        assert state_of(coordinator) == "CompleteCommit"

    world.run(scenario)


def test_an_open_transaction_is_aborted_when_its_time_is_over(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        world.answer_markers("partition:flights-0@1")
        await asyncio.sleep(59)
        assert state_of(coordinator) == "Ongoing"
        await asyncio.sleep(3)
        assert state_of(coordinator) == "CompleteAbort"
        assert (await end(coordinator, producer_id, epoch)).error is ErrorCode.TRANSACTION_TIMED_OUT
        abort = await end(coordinator, producer_id, epoch, committed=False)
        assert (abort.error, abort.producer_epoch) == (ErrorCode.NONE, epoch + 1)

    world.run(scenario)


def test_an_id_that_is_idle_for_a_week_is_forgotten(world: Any) -> None:
    async def scenario() -> None:
        world.config = ClusterConfig(transaction_abort_scan_ms=2_000_000_000)
        coordinator = await world.coordinator()
        await init(coordinator)
        await asyncio.sleep(8 * 86_400)
        assert coordinator.machine.ids.metadata("loader") is None

    world.run(scenario)


def test_the_fence_of_a_new_owner_finishes_by_itself(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        world.answer_markers("partition:flights-0@1")
        assert (await init(coordinator)).error is ErrorCode.CONCURRENT_TRANSACTIONS
        await asyncio.sleep(0.1)
        reply = await init(coordinator)
        assert (reply.producer_id, reply.producer_epoch) == (producer_id, epoch + 2)

    world.run(scenario)


# --- distributed writes -----------------------------------------------------------------------


async def enlist(
    coordinator: Any, run: Run = RUN, driver: DriverProcess | None = None
) -> tuple[int, int]:
    """Enlist, the run begun if need be."""
    begun = await coordinator.begin_run(
        BeginRunRequest(transactional_id="loader", run_id=run.id, token=b"batch-1", driver=driver)
    )
    assert (begun.error, begun.number) == (ErrorCode.NONE, run.number)
    reply = await coordinator.enlist(
        EnlistRequest(transactional_id="loader", run=run, token=b"batch-1")
    )
    assert reply.error is ErrorCode.NONE
    return reply.producer_id, reply.producer_epoch


async def end_run(coordinator: Any, **winners: int) -> EndTxnReply:
    reply: EndTxnReply = await coordinator.end_txn(
        EndTxnRequest(
            transactional_id="loader",
            committed=True,
            token=b"batch-1",
            run=RUN,
            winners=tuple(
                Winner(producer_id=int(name[1:]), record_count=count)
                for name, count in winners.items()
            ),
        )
    )
    return reply


def holds(world: Any, actor: str, **counts: int) -> None:
    """Make ``actor`` a leader that holds ``counts`` records of producers, at epoch 0."""
    world.answer_markers(actor)
    write_markers = world.actors[actor]

    async def handler(request: Any) -> Any:
        if not isinstance(request, DescribeProducersRequest):
            return await write_markers(request)
        return DescribeProducersReply(
            producers=tuple(
                ProducerDescription(
                    producer_id=int(name[1:]),
                    producer_epoch=0,
                    last_sequence=0,
                    last_timestamp_ms=0,
                    coordinator_epoch=-1,
                    open_record_count=count,
                )
                for name, count in counts.items()
                if request.producer_ids is None or int(name[1:]) in request.producer_ids
            )
        )

    world.actors[actor] = handler


def test_a_task_of_a_long_distributed_write_gets_a_ticket_that_counts(world: Any) -> None:
    """It enlists hours after the first: what it is given is as old as the write."""

    async def scenario() -> None:
        coordinator = await world.coordinator()
        world.add_partition(FLIGHTS)
        await enlist(coordinator)
        for _ in range(60):
            await asyncio.sleep(200)
            renewed = await coordinator.renew_run(
                RenewRunRequest(transactional_id="loader", run=RUN)
            )
            assert renewed.error is ErrorCode.NONE
        producer_id, epoch = await enlist(coordinator)
        (enrolment,) = (await add(coordinator, producer_id, epoch)).enrolments
        verdict = check_ticket(
            enrolment.ticket,
            keys=ClusterKeys(current=CLUSTER_KEY),
            producer_id=producer_id,
            producer_epoch=epoch,
            transactional_id="loader",
            topic_id=world.topic_ids[FLIGHTS.topic],
            partition=FLIGHTS.partition,
            now_ms=world.now_ms(),
        )
        assert verdict is TicketVerdict.VALID

    world.run(scenario)


def test_a_distributed_write_commits_its_winners_and_aborts_the_others(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        world.add_partition(FLIGHTS)
        winner, epoch = await enlist(coordinator)
        loser, _ = await enlist(coordinator)
        for producer_id in (winner, loser):
            assert (await add(coordinator, producer_id, epoch)).enrolments[0].ticket
        holds(world, "partition:flights-0@1", **{f"p{winner}": 10, f"p{loser}": 4})
        reply = await end_run(coordinator, **{f"p{winner}": 10})
        assert (reply.error, reply.visible) == (ErrorCode.NONE, True)
        ((_, _, request),) = world.calls_of("write_txn_markers")
        assert {one.producer_id: one.committed for one in request.markers} == {
            winner: True,
            loser: False,
        }
        again = await end_run(coordinator, **{f"p{winner}": 10})
        assert (again.error, again.visible) == (ErrorCode.NONE, True)
        skipped = await coordinator.enlist(
            EnlistRequest(transactional_id="loader", run=RUN, token=b"batch-1")
        )
        assert skipped.error is ErrorCode.ALREADY_COMMITTED

    world.run(scenario)


def test_a_count_that_the_leader_does_not_hold_changes_nothing(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        world.add_partition(FLIGHTS)
        winner, epoch = await enlist(coordinator)
        await add(coordinator, winner, epoch)
        holds(world, "partition:flights-0@1", **{f"p{winner}": 9})
        reply = await end_run(coordinator, **{f"p{winner}": 10})
        assert reply.error is ErrorCode.INVALID_TXN_STATE
        assert state_of(coordinator) == "Ongoing"
        assert not world.calls_of("write_txn_markers")

    world.run(scenario)


def test_a_winners_leader_that_does_not_answer_makes_the_end_retriable(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        world.add_partition(FLIGHTS)
        winner, epoch = await enlist(coordinator)
        await add(coordinator, winner, epoch)
        reply = await end_run(coordinator, **{f"p{winner}": 10})
        assert reply.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert state_of(coordinator) == "Ongoing"
        holds(world, "partition:flights-0@1", **{f"p{winner}": 10})
        assert (await end_run(coordinator, **{f"p{winner}": 10})).error is ErrorCode.NONE

    world.run(scenario)


def test_a_write_whose_driver_is_gone_is_aborted_at_the_next_look(world: Any) -> None:
    driver = DriverProcess(machine="here", process_id=7, start_ticks=8)

    async def scenario() -> None:
        coordinator = await world.coordinator()
        world.add_partition(FLIGHTS)
        world.answer_markers("partition:flights-0@1")
        member, epoch = await enlist(coordinator, driver=driver)
        await add(coordinator, member, epoch)
        await asyncio.sleep(600)
        assert state_of(coordinator) == "Ongoing"
        await world.crash(coordinator)
        coordinator = await world.coordinator()
        world.gone.append(driver)
        await asyncio.sleep(world.config.transaction_abort_scan_ms / 1_000 + 1)
        assert state_of(coordinator) == "CompleteAbort"
        assert (await end_run(coordinator)).error is ErrorCode.INVALID_TXN_STATE

    world.run(scenario)


def test_a_single_writer_whose_process_has_ended_is_replaced_by_the_next_takeover(
    world: Any,
) -> None:
    """1. It lives, and the takeover waits for news of it. 2. It ends while another one waits."""
    process = DriverProcess(machine="here", process_id=7, start_ticks=8)
    hour_ms = 3_600_000

    def taking(coordinator: Any, holder: str, process: DriverProcess | None = None) -> Any:
        request = InitProducerIdRequest(
            transactional_id="loader",
            holder=Holder(id=holder, timeout_ms=hour_ms, process=process),
            refuse_if_alive=True,
        )
        return coordinator.init_producer_id(request)

    async def scenario() -> None:
        coordinator = await world.coordinator()
        first = await taking(coordinator, "first", process)
        await world.crash(coordinator)
        coordinator = await world.coordinator()
        began_ms = world.passed_ms()
        refused = await taking(coordinator, "second")
        assert refused.error is ErrorCode.TRANSACTIONAL_ID_IN_USE
        assert world.passed_ms() - began_ms <= 2 * HOLDER_NEWS_MS
        waiting = asyncio.ensure_future(taking(coordinator, "second"))
        await asyncio.sleep(HOLDER_NEWS_MS / 2_000)
        world.gone.append(process)
        second = await waiting
        assert second.error is ErrorCode.NONE
        assert second.producer_epoch == first.producer_epoch + 1
        # Of who does not say where it runs nothing is known.
        assert (await taking(coordinator, "third")).error is ErrorCode.TRANSACTIONAL_ID_IN_USE

    world.run(scenario)


HOUR_MS = 3_600_000


def test_a_clock_that_is_set_back_keeps_no_end_waiting(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        world.add_partition(FLIGHTS)
        winner, epoch = await enlist(coordinator)
        await add(coordinator, winner, epoch)
        ending = asyncio.ensure_future(end_run(coordinator, **{f"p{winner}": 10}))
        await asyncio.sleep(0.1)
        world.clock_offset_ms = -HOUR_MS
        assert (await ending).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert world.passed_ms() <= world.config.internal_call_timeout_ms + 2_000

    world.run(scenario)


def test_a_clock_that_is_set_back_makes_no_old_answer_new(world: Any) -> None:
    """The leader is another one since the answer of before."""

    async def scenario() -> None:
        coordinator = await world.coordinator()
        producer_id, epoch = await begin(world, coordinator)
        await add(coordinator, producer_id, epoch)
        world.clock_offset_ms = -HOUR_MS
        world.add_partition(FLIGHTS, leader=2)
        world.answer_markers("partition:flights-0@2")
        assert (await end(coordinator, producer_id, epoch)).visible

    world.run(scenario)


def test_a_winners_records_in_a_deleted_topic_are_missed(world: Any) -> None:
    async def scenario() -> None:
        coordinator = await world.coordinator()
        world.add_partition(FLIGHTS)
        winner, epoch = await enlist(coordinator)
        await add(coordinator, winner, epoch)
        del world.leaders[FLIGHTS]
        reply = await end_run(coordinator, **{f"p{winner}": 10})
        assert reply.error is ErrorCode.INVALID_TXN_STATE

    world.run(scenario)
