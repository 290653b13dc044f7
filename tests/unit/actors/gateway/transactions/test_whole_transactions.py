"""Transactions of Kafka's producers from begin to end, through several gateways."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from kafka_new_client import ABORTABLE, new_client
from kafka_transactions import DELAYS, FLIGHTS, NAME, TIMEOUT_MS, Kafka, Play, abort_as_operator

from oncelog.actors.gateway.calls import Client
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.end_txn import EndTxnRequest
from oncelog.actors.protocol.access import Principal
from oncelog.storage.errors import ErrorCode


def test_a_transaction_whose_batches_come_through_two_gateways_commits_as_one(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        one, other = kafka.gateway(), kafka.gateway()
        producer = await new_client(kafka, one)
        for epoch in range(2):
            assert producer.epoch == epoch
            assert await producer.send(one, FLIGHTS) is ErrorCode.NONE
            assert await producer.send(other, FLIGHTS) is ErrorCode.NONE
            assert await producer.send(other, DELAYS) is ErrorCode.NONE
            assert kafka.state() == "Ongoing"
            assert await producer.end(one) == 0
            assert kafka.state() == "CompleteCommit"
        # Two batches and a marker, twice; one and a marker, twice.
        assert await kafka.committed(FLIGHTS) == 6
        assert await kafka.committed(DELAYS) == 4

    play(scenario)


def test_a_batch_after_the_end_is_refused_by_every_gateway_and_begins_nothing(play: Play) -> None:
    # 1. A transaction is enrolled through two gateways. 2. It ends through one of them. 3. Copies
    # of its batches come: with a ticket that the other has kept, with none, and elsewhere.
    async def scenario(kafka: Kafka) -> None:
        one, other, third = (kafka.gateway() for _ in range(3))
        producer = await new_client(kafka, one)
        await producer.send(one)
        await producer.send(other)
        late = producer.at(producer.epoch)
        kept = other.enrolments.find(NAME, late.pid, late.epoch, FLIGHTS)
        assert kept is not None
        assert await producer.end(one) == 0
        assert one.enrolments.find(NAME, late.pid, late.epoch, FLIGHTS) is None
        assert await late.send(other, ticket=kept) is ErrorCode.INVALID_PRODUCER_EPOCH
        for gateway in (one, other, third):
            assert await late.send(gateway, DELAYS) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert kafka.state() == "CompleteCommit"
        assert not kafka.leaders[DELAYS].replica.machine.open_transaction_count
        assert await kafka.committed(FLIGHTS) == 3
        assert await producer.send(other) is ErrorCode.NONE

    play(scenario)


def test_a_batch_that_comes_while_the_commit_waits_for_its_markers(play: Play) -> None:
    # 1. The commit is decided, its marker is on its way. 2. A late batch of it comes for another
    # partition: it is refused. 3. So does one of the next transaction: it is to be sent again.
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        await producer.send(gateway, FLIGHTS)
        late = producer.at(producer.epoch)
        held = kafka.hold("partition:flights-0@1", "write_txn_markers")
        ending = asyncio.ensure_future(producer.end(gateway))
        await held.has_come.wait()
        assert kafka.state() == "PrepareCommit"
        assert await late.send(gateway, DELAYS) is ErrorCode.INVALID_PRODUCER_EPOCH
        following = producer.at(producer.epoch + 1)
        assert await following.send(gateway, DELAYS) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert kafka.enrolled() == {FLIGHTS}
        held.go.set()
        assert await ending == 0
        assert await following.send(gateway, DELAYS) is ErrorCode.NONE

    play(scenario)


def test_an_abort_of_nothing_makes_late_batches_harmless(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        late = producer.at(producer.epoch)
        assert await producer.end(gateway, committed=False) == 0
        assert producer.epoch == 1
        assert await late.send(gateway) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert kafka.state() == "CompleteAbort"

    play(scenario)


def test_an_end_may_be_repeated_through_another_gateway(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        one, other = kafka.gateway(), kafka.gateway()
        producer = await new_client(kafka, one)
        await producer.send(one)
        again, contrary = producer.at(0), producer.at(0)
        assert await producer.end(one) == 0
        assert await again.end(other) == 0
        assert (again.pid, again.epoch) == (producer.pid, producer.epoch)
        code = await contrary.end(other, committed=False)
        assert code == int(ErrorCode.INVALID_TXN_STATE)

    play(scenario)


@pytest.mark.parametrize("transactions", [0, 1])
def test_a_commit_that_has_overtaken_its_batches_is_repeated_after_them(
    play: Play, transactions: int
) -> None:
    # 1. A thread of the client sees no batch. 2. Another gives it some, and asks for the commit.
    # 3. The first sends the commit, which ends nothing yet. 4. The batches; the commit once more.
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        for _ in range(transactions):
            await producer.send(gateway)
            assert await producer.end(gateway) == 0
        assert await producer.end(gateway) == int(ErrorCode.CONCURRENT_TRANSACTIONS)
        assert await producer.send(gateway) is ErrorCode.NONE
        assert await producer.end(gateway) == 0
        assert kafka.state() == "CompleteCommit"

    play(scenario)


def test_who_is_no_java_client_is_told_that_there_is_nothing_to_commit(play: Play) -> None:
    # franz-go repeats a commit that meets CONCURRENT_TRANSACTIONS without end.
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        request = EndTxnRequest(NAME, producer.pid, producer.epoch, True)
        who = Client(principal=Principal("User:ANONYMOUS"), host="h", name="franz-go v1.22.3")
        answer = await gateway.handlers[ApiKey.END_TXN](gateway.call(5, who), request)
        assert answer.error_code == int(ErrorCode.INVALID_TXN_STATE)

    play(scenario)


def test_a_commit_of_what_its_producer_has_aborted_is_refused_for_good(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        await producer.send(gateway)
        late = producer.at(producer.epoch)
        assert await producer.end(gateway, committed=False) == 0
        assert await late.end(gateway) == int(ErrorCode.INVALID_TXN_STATE)

    play(scenario)


def test_the_last_epoch_is_followed_by_another_producer_id(play: Play) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        ids = kafka.coordinator.machine.ids
        ids._transactions[NAME] = type(ids.metadata(NAME))(
            **{
                **{name: getattr(ids.metadata(NAME), name) for name in _FIELDS},
                "producer_epoch": 32_766,
            }
        )
        producer.epoch = 32_766
        assert await producer.send(gateway) is ErrorCode.NONE
        old = producer.at(producer.epoch)
        assert await producer.end(gateway) == 0
        assert (producer.pid, producer.epoch) == (old.pid + 1, 0)
        assert await old.send(gateway) is not ErrorCode.NONE
        assert await producer.send(gateway) is ErrorCode.NONE

    play(scenario)


_FIELDS = (
    "transactional_id",
    "producer_id",
    "transaction_timeout_ms",
    "state",
    "last_update_ms",
)


async def _time_out(kafka: Kafka) -> None:
    """Let the transaction be open for longer than it may."""
    await asyncio.sleep(TIMEOUT_MS / 1_000 + 30)
    assert kafka.state() == "CompleteAbort"


@pytest.mark.parametrize("abort", [_time_out, abort_as_operator])
def test_a_producer_that_was_too_slow_aborts_and_goes_on(
    play: Play, abort: Callable[[Kafka], Awaitable[None]]
) -> None:
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        await producer.send(gateway, FLIGHTS)
        await abort(kafka)
        # The leader of a partition with a marker knows nothing but the epoch.
        assert await producer.send(gateway, FLIGHTS) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await producer.send(gateway, DELAYS) is ErrorCode.TRANSACTION_ABORTABLE
        assert await producer.commit_offsets(gateway, 9) == [ABORTABLE]
        assert await producer.end(gateway) == ABORTABLE
        assert await producer.end(gateway, committed=False) == 0
        assert producer.epoch == 1
        assert await producer.send(gateway, FLIGHTS) is ErrorCode.NONE
        assert await producer.end(gateway) == 0
        # The first record, its marker, the second, its marker.
        assert kafka.leaders[FLIGHTS].replica.machine.last_stable_offset == 4

    play(scenario)


def test_a_late_batch_that_begins_a_transaction_is_aborted_by_its_timeout(play: Play) -> None:
    # 1. A client is idle, or gone without an end, after its init. 2. A late batch of it comes.
    async def scenario(kafka: Kafka) -> None:
        gateway = kafka.gateway()
        producer = await new_client(kafka, gateway)
        assert await producer.send(gateway) is ErrorCode.NONE
        assert kafka.state() == "Ongoing"
        await _time_out(kafka)
        assert await kafka.committed(FLIGHTS) == 0
        assert not kafka.leaders[FLIGHTS].replica.machine.open_transaction_count

    play(scenario)
