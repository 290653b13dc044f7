"""Hanging transactions, found and aborted by an operator: real leaders, real coordinators."""

from __future__ import annotations

import pickle
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncelog.actors.protocol.messages.partition import DescribeProducersRequest, ProduceRequest
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    BeginRunRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EnlistRequest,
    InitProducerIdRequest,
    Run,
)
from oncelog.actors.protocol.tickets import issue_ticket
from oncelog.api.admin.admin import AsyncAdmin
from oncelog.api.admin.calls import AdminCalls
from oncelog.api.admin.hanging import (
    HangingTransaction,
    IncompleteSearchError,
    Unanswered,
    abort_hanging,
    find_hanging,
)
from oncelog.api.session.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidTxnStateError, OncelogError
from oncelog.storage.model import TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.storage.records.codec import encode_records

CLUSTER_KEY = b"k" * 32
FLIGHTS = TopicPartition("flights", 0)
DELAYS = TopicPartition("delays", 0)
NOBODY = 77_777
"""A producer id that no coordinator knows."""


class Operator:
    """A cluster of one coordinator and two partitions, and the operator's calls."""

    def __init__(self, world: Any) -> None:
        self.world = world
        world.add_partition(TopicPartition(TRANSACTION_STATE_TOPIC, 0))
        self.calls = AdminCalls(Router(world, world), random=random.Random(1), timeout_ms=5_000)

    async def start(self) -> None:
        self.leaders = {tp: await self.world.partition(tp) for tp in (FLIGHTS, DELAYS)}
        self.coordinator = await self.world.coordinator()

    async def write(self, tp: TopicPartition, producer_id: int, epoch: int, sequence: int = 0):
        """Append a record of a transaction, with a ticket that says that it is enrolled."""
        batch = encode_records(
            [(None, b"value", self.world.now_ms(), ())],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        ticket = issue_ticket(
            cluster_key=CLUSTER_KEY,
            producer_id=producer_id,
            producer_epoch=epoch,
            transactional_id="loader",
            topic_id=self.world.topic_ids[tp.topic],
            partition=tp.partition,
            issued_ms=self.world.now_ms(),
            transaction_timeout_ms=60_000,
        )
        request = ProduceRequest(
            topic_partition=tp, batch=bytes(batch), transactional_id="loader", ticket=ticket
        )
        return await self.leaders[tp].produce(request)

    async def begin(self, tp: TopicPartition) -> tuple[int, int]:
        """Open a transaction of ``loader`` that has ``tp``."""
        owner = await self.coordinator.init_producer_id(
            InitProducerIdRequest(transactional_id="loader")
        )
        await self.enrol(tp, owner.producer_id, owner.producer_epoch)
        return owner.producer_id, owner.producer_epoch

    async def enrol(self, tp: TopicPartition, producer_id: int, epoch: int) -> None:
        request = AddPartitionsToTxnRequest(
            transactional_id="loader",
            producer_id=producer_id,
            producer_epoch=epoch,
            partitions=(tp,),
        )
        assert (await self.coordinator.add_partitions_to_txn(request)).error is ErrorCode.NONE

    async def end(self, producer_id: int, epoch: int) -> None:
        request = EndTxnRequest(
            transactional_id="loader",
            committed=True,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        assert (await self.coordinator.end_txn(request)).error is ErrorCode.NONE

    async def find(self, older_than_ms: int = 0) -> list[HangingTransaction]:
        return await find_hanging(self.calls, (FLIGHTS, DELAYS), older_than_ms=older_than_ms)

    def stable(self, tp: TopicPartition) -> int:
        stable: int = self.leaders[tp].replica.machine.last_stable_offset
        return stable


@pytest.fixture
def operate(world: Any) -> Callable[[Callable[[Operator], Awaitable[None]]], None]:
    """Runs a scenario with an operator in virtual time."""

    def run(scenario: Callable[[Operator], Awaitable[None]]) -> None:
        async def body() -> None:
            operator = Operator(world)
            await operator.start()
            await scenario(operator)

        world.run(body)

    return run


# --- find -------------------------------------------------------------------------------------


def test_a_transaction_of_nobody_is_found_with_all_that_aborting_it_needs(operate: Any) -> None:
    async def scenario(operator: Operator) -> None:
        await operator.write(FLIGHTS, NOBODY, 3)
        (found,) = await operator.find()
        assert (found.topic_partition, found.start_offset) == (FLIGHTS, 0)
        assert (found.producer_id, found.producer_epoch) == (NOBODY, 3)
        assert (found.coordinator_epoch, found.transactional_id) == (-1, None)
        assert await operator.find(older_than_ms=60_000) == []

    operate(scenario)


def test_a_live_transaction_is_not_hanging(operate: Any) -> None:
    async def scenario(operator: Operator) -> None:
        producer_id, epoch = await operator.begin(FLIGHTS)
        await operator.write(FLIGHTS, producer_id, epoch)
        assert await operator.find() == []

    operate(scenario)


def test_a_partition_that_the_live_transaction_does_not_have_hangs(operate: Any) -> None:
    async def scenario(operator: Operator) -> None:
        producer_id, epoch = await operator.begin(FLIGHTS)
        await operator.write(DELAYS, producer_id, epoch)
        (found,) = await operator.find()
        assert (found.topic_partition, found.transactional_id) == (DELAYS, "loader")

    operate(scenario)


def test_a_transaction_of_an_epoch_that_is_over_hangs(operate: Any) -> None:
    async def scenario(operator: Operator) -> None:
        producer_id, epoch = await operator.begin(FLIGHTS)
        await operator.write(DELAYS, producer_id, epoch)
        await operator.end(producer_id, epoch)
        await operator.enrol(DELAYS, producer_id, epoch + 1)
        (found,) = await operator.find()
        assert (found.topic_partition, found.producer_epoch) == (DELAYS, epoch)

    operate(scenario)


def test_a_decided_transaction_whose_marker_is_on_its_way_is_not_hanging(operate: Any) -> None:
    async def scenario(operator: Operator) -> None:
        producer_id, epoch = await operator.begin(FLIGHTS)
        await operator.write(FLIGHTS, producer_id, epoch)
        leader = operator.world.actors.pop("partition:flights-0@1")
        await operator.end(producer_id, epoch)
        assert operator.coordinator.machine.upkeep.is_prepared("loader")
        # Its leader is out of the coordinator's reach only.
        leaders = {"partition:flights-0@1": leader}
        call = operator.world.call

        async def reach(actor: str, request: Any, *, timeout_ms: int) -> Any:
            if actor in leaders:
                return await getattr(leaders[actor], request.method)(request)
            return await call(actor, request, timeout_ms=timeout_ms)

        operator.calls.router.transport = type("Reach", (), {"call": staticmethod(reach)})()
        assert await operator.find() == []

    operate(scenario)


def test_a_transaction_that_ends_while_it_is_looked_at_is_not_reported(operate: Any) -> None:
    async def scenario(operator: Operator) -> None:
        producer_id, epoch = await operator.begin(FLIGHTS)
        await operator.write(FLIGHTS, producer_id, epoch)
        describe = operator.coordinator.describe_transactions

        async def late(request: DescribeTransactionsRequest) -> Any:
            await operator.end(producer_id, epoch)
            return await describe(request)

        operator.coordinator.describe_transactions = late
        assert await operator.find() == []
        assert len(operator.world.calls_of("describe_producers")) == 3

    operate(scenario)


def test_members_of_a_distributed_write_own_only_their_own_partitions(operate: Any) -> None:
    async def scenario(operator: Operator) -> None:
        run = Run(number=1, id="run")
        await operator.coordinator.begin_run(
            BeginRunRequest(transactional_id="loader", run_id=run.id, token=b"t")
        )
        members = [
            await operator.coordinator.enlist(
                EnlistRequest(transactional_id="loader", run=run, token=b"t")
            )
            for _ in range(2)
        ]
        for member, tp in zip(members, (FLIGHTS, DELAYS), strict=True):
            await operator.enrol(tp, member.producer_id, member.producer_epoch)
            await operator.write(tp, member.producer_id, member.producer_epoch)
        assert await operator.find() == []
        await operator.write(DELAYS, members[0].producer_id, members[0].producer_epoch)
        (found,) = await operator.find()
        assert (found.topic_partition, found.producer_id) == (DELAYS, members[0].producer_id)

    operate(scenario)


# --- abort ------------------------------------------------------------------------------------


def test_aborting_lets_readers_pass_and_fences_what_comes_late(operate: Any) -> None:
    async def scenario(operator: Operator) -> None:
        await operator.write(FLIGHTS, NOBODY, 3)
        assert operator.stable(FLIGHTS) == 0
        (found,) = await operator.find()
        assert await abort_hanging(operator.calls, FLIGHTS, start_offset=0) == found
        assert operator.stable(FLIGHTS) == 2
        aborted = operator.leaders[FLIGHTS].replica.log.aborted_transactions(0, 2)
        assert [one.producer_id for one in aborted] == [NOBODY]
        late = await operator.write(FLIGHTS, NOBODY, 3, sequence=1)
        assert late.error is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await operator.find() == []
        with pytest.raises(
            InvalidTxnStateError, match=r"from offset 0.*`oncelog transactions find-hanging`"
        ):
            await abort_hanging(operator.calls, FLIGHTS, start_offset=0)

    operate(scenario)


def test_a_live_transaction_is_not_aborted_on_one_partition(operate: Any) -> None:
    async def scenario(operator: Operator) -> None:
        producer_id, epoch = await operator.begin(FLIGHTS)
        await operator.write(FLIGHTS, producer_id, epoch)
        with pytest.raises(InvalidTxnStateError, match=r"abort_transaction\('loader'\)"):
            await abort_hanging(operator.calls, FLIGHTS, start_offset=0)
        assert operator.stable(FLIGHTS) == 0
        await operator.end(producer_id, epoch)

    operate(scenario)


def test_what_the_id_may_still_join_is_aborted_only_after_the_id_moved_on(operate: Any) -> None:
    async def scenario(operator: Operator) -> None:
        producer_id, epoch = await operator.begin(FLIGHTS)
        await operator.write(DELAYS, producer_id, epoch)
        with pytest.raises(InvalidTxnStateError, match="abort_transaction"):
            await abort_hanging(operator.calls, DELAYS, start_offset=0)
        admin = AsyncAdmin(operator.calls.router, random=random.Random(1), timeout_ms=5_000)
        assert await admin.abort_transaction("loader")
        await abort_hanging(operator.calls, DELAYS, start_offset=0)
        await operator.enrol(DELAYS, producer_id, epoch + 1)
        assert (await operator.write(DELAYS, producer_id, epoch + 1)).error is ErrorCode.NONE
        await operator.end(producer_id, epoch + 1)
        assert operator.stable(DELAYS) == 4

    operate(scenario)


def test_an_id_at_rest_in_the_epoch_of_the_data_is_deleted_first(operate: Any) -> None:
    async def scenario(operator: Operator) -> None:
        owner = await operator.coordinator.init_producer_id(
            InitProducerIdRequest(transactional_id="loader")
        )
        await operator.write(FLIGHTS, owner.producer_id, owner.producer_epoch)
        with pytest.raises(InvalidTxnStateError, match="delete_transactional_id"):
            await abort_hanging(operator.calls, FLIGHTS, start_offset=0)
        admin = AsyncAdmin(operator.calls.router, random=random.Random(1), timeout_ms=5_000)
        await admin.delete_transactional_id("loader")
        await abort_hanging(operator.calls, FLIGHTS, start_offset=0)
        assert operator.stable(FLIGHTS) == 2

    operate(scenario)


def test_a_marker_that_comes_late_cannot_close_the_transaction_after(operate: Any) -> None:
    async def scenario(operator: Operator) -> None:
        await operator.write(FLIGHTS, NOBODY, 3)
        leader = operator.leaders[FLIGHTS]
        write_markers = leader.write_txn_markers

        async def overtaken(request: Any) -> Any:
            """Its own coordinator ends it first, and its producer goes on."""
            await write_markers(request)
            assert (await operator.write(FLIGHTS, NOBODY, 4)).error is ErrorCode.NONE
            return await write_markers(request)

        leader.write_txn_markers = overtaken
        with pytest.raises(Exception, match="look again"):
            await abort_hanging(operator.calls, FLIGHTS, start_offset=0)
        request = DescribeProducersRequest(topic_partition=FLIGHTS)
        (left,) = (await leader.describe_producers(request)).producers
        assert (left.producer_epoch, left.current_txn_first_offset) == (4, 2)

    operate(scenario)


# --- who does not answer ----------------------------------------------------------------------


def test_what_answers_is_reported_and_who_does_not_is_named(operate: Any) -> None:
    async def scenario(operator: Operator) -> None:
        await operator.write(FLIGHTS, NOBODY, 0)
        await operator.write(DELAYS, NOBODY, 0)
        del operator.world.actors[f"partition:{DELAYS}@1"]
        with pytest.raises(
            IncompleteSearchError, match=r"no answer from delays-0 \(.+\)"
        ) as raised:
            await operator.find()
        assert [one.topic_partition for one in raised.value.found] == [FLIGHTS]
        assert [one.topic_partition for one in raised.value.unanswered] == [DELAYS]

    operate(scenario)


def test_without_its_coordinator_no_transaction_is_called_hanging(operate: Any) -> None:
    async def scenario(operator: Operator) -> None:
        await operator.write(FLIGHTS, NOBODY, 0)
        del operator.world.actors["transaction:0@1"]
        with pytest.raises(IncompleteSearchError) as raised:
            await operator.find()
        assert raised.value.found == ()
        assert [str(one.topic_partition) for one in raised.value.unanswered] == [
            f"{TRANSACTION_STATE_TOPIC}-0"
        ]

    operate(scenario)


def test_a_leader_that_leaves_in_between_is_named(operate: Any) -> None:
    """1. It tells of an open transaction. 2. It leaves. 3. Nobody knows if that is still open."""

    async def scenario(operator: Operator) -> None:
        await operator.write(FLIGHTS, NOBODY, 0)
        coordinator = operator.coordinator

        class Leaving:
            async def describe_transactions(self, request: Any) -> Any:
                operator.world.actors.pop(f"partition:{FLIGHTS}@1", None)
                return await coordinator.describe_transactions(request)

        operator.world.actors["transaction:0@1"] = Leaving()
        with pytest.raises(IncompleteSearchError) as raised:
            await operator.find()
        assert raised.value.found == ()
        assert [one.topic_partition for one in raised.value.unanswered] == [FLIGHTS]

    operate(scenario)


def test_nothing_is_aborted_while_somebody_does_not_answer(operate: Any) -> None:
    async def scenario(operator: Operator) -> None:
        await operator.write(FLIGHTS, NOBODY, 0)
        del operator.world.actors["transaction:0@1"]
        with pytest.raises(OncelogError):
            await abort_hanging(operator.calls, FLIGHTS, start_offset=0)
        assert operator.stable(FLIGHTS) == 0

    operate(scenario)


def test_an_incomplete_search_travels_between_processes() -> None:
    error = IncompleteSearchError(
        "no answer from flights-0",
        unanswered=(Unanswered(topic_partition=FLIGHTS, error=ErrorCode.REQUEST_TIMED_OUT),),
    )
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), str(copied)) == (IncompleteSearchError, "no answer from flights-0")
    assert (copied.found, copied.unanswered) == (error.found, error.unanswered)
