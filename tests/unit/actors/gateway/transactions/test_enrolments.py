"""Partitions enrolled by a first batch: what is asked of the coordinator, and what is kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from virtual_time import ManualClock, give_turns, run_virtually

from oncelog.actors.coordination.cluster_view import ClusterView
from oncelog.actors.gateway.calls import Call, Client, Cluster
from oncelog.actors.gateway.transactions import enrolments as module
from oncelog.actors.gateway.transactions.enrolments import Enrolment, Enrolments, refusal_text
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages.access import Access, Acl, Operation, Resource, Rules
from oncelog.actors.protocol.messages.cluster import (
    MetadataReply,
    PartitionMetadata,
    TopicMetadata,
)
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnReply,
    PartitionEnrolment,
    VerifyTxnReply,
    VerifyTxnRequest,
)
from oncelog.actors.rpc.door import Door
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TRANSACTION_STATE_TOPIC, TopicPartition

FLIGHTS = TopicPartition("flights", 0)
DELAYS = TopicPartition("delays", 0)
SEATS = TopicPartition("seats", 0)
PID = 1_000


class Coordinator:
    """Gives every partition a ticket of its own with each call, unless a test says otherwise."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.actors: list[str] = []
        self.leader = 1
        self.refusals: list[ErrorCode] = []
        """Answers of the next calls."""
        self.bad: dict[TopicPartition, ErrorCode] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.bug: Exception | None = None
        self.verified = VerifyTxnReply()
        """The answer about clients of version 1."""

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        if actor == CONTROLLER_ACTOR:
            return self._metadata()
        self.actors.append(actor)
        self.asked.append(request)
        await self.gate.wait()
        if self.bug is not None:
            raise self.bug
        if self.refusals:
            return request.failed(self.refusals.pop(0))
        if isinstance(request, VerifyTxnRequest):
            return self.verified
        bad = {tp: self.bad[tp] for tp in request.partitions if tp in self.bad}
        number = len(self.asked)
        return AddPartitionsToTxnReply(
            error=next(iter(bad.values()), ErrorCode.NONE),
            enrolments=tuple(
                PartitionEnrolment(
                    topic_partition=tp,
                    error=bad.get(tp, ErrorCode.OPERATION_NOT_ATTEMPTED if bad else ErrorCode.NONE),
                    ticket=b"" if bad else f"{tp} {request.producer_epoch} {number}".encode(),
                )
                for tp in request.partitions
            ),
        )

    def _metadata(self) -> MetadataReply:
        shard = PartitionMetadata(
            partition=0, leader=self.leader, leader_epoch=0, replicas=(), isr=()
        )
        topic = TopicMetadata(name=TRANSACTION_STATE_TOPIC, topic_id="0" * 32, partitions=(shard,))
        return MetadataReply(topics=(topic,))


class Gateway:
    """Enrolments, and calls of clients that use them."""

    def __init__(self, access: Access | None = None) -> None:
        self.coordinator = Coordinator()
        self.enrolments = Enrolments()
        self.cluster = Cluster(
            transport=self.coordinator,
            door=Door() if access is None else Door(access),
            view=ClusterView(
                lambda request: self.coordinator.call(CONTROLLER_ACTOR, request, timeout_ms=1),
                asyncio.create_task,
            ),
            clock=ManualClock(),
            random=random.Random(1),
            broker_id=1,
        )

    def call(self, name: str = "User:ANONYMOUS", host: str = "10.0.0.1") -> Call:
        client = Client(principal=Principal(name), host=host)
        return Call(cluster=self.cluster, client=client, version=12)

    def ticket(
        self,
        tp: TopicPartition = FLIGHTS,
        *,
        epoch: int = 0,
        pid: int = PID,
        name: str = "loader",
        call: Call | None = None,
    ) -> Awaitable[tuple[ErrorCode, bytes]]:
        return self.enrolments.ticket(call or self.call(), name, pid, epoch, tp)

    def find(self, tp: TopicPartition = FLIGHTS, *, epoch: int = 0, name: str = "loader") -> Any:
        return self.enrolments.find(name, PID, epoch, tp)

    @property
    def asked(self) -> list[Any]:
        return self.coordinator.asked


def run(scenario: Callable[[Gateway], Awaitable[None]], access: Access | None = None) -> None:
    async def body() -> None:
        gateway = Gateway(access)
        await scenario(gateway)
        await gateway.enrolments.close()

    run_virtually(body())


def test_a_ticket_is_asked_for_once_and_then_kept() -> None:
    async def scenario(gateway: Gateway) -> None:
        assert gateway.find() is None
        assert await gateway.ticket() == (ErrorCode.NONE, b"flights-0 0 1")
        assert await gateway.ticket() == (ErrorCode.NONE, b"flights-0 0 1")
        assert gateway.find() == b"flights-0 0 1"
        (asked,) = gateway.asked
        assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == (
            "loader",
            PID,
            0,
        )
        assert asked.partitions == (FLIGHTS,)

    run(scenario)


def test_partitions_that_are_asked_for_in_one_turn_share_a_call() -> None:
    async def scenario(gateway: Gateway) -> None:
        call = gateway.call()
        answers = await asyncio.gather(
            *(gateway.ticket(tp, call=call) for tp in (FLIGHTS, DELAYS, FLIGHTS))
        )
        assert answers == [
            (ErrorCode.NONE, b"flights-0 0 1"),
            (ErrorCode.NONE, b"delays-0 0 1"),
            (ErrorCode.NONE, b"flights-0 0 1"),
        ]
        assert [one.partitions for one in gateway.asked] == [(FLIGHTS, DELAYS)]

    run(scenario)


def test_what_is_asked_for_during_a_call_goes_with_the_next() -> None:
    async def scenario(gateway: Gateway) -> None:
        gateway.coordinator.gate.clear()
        first = asyncio.ensure_future(gateway.ticket(FLIGHTS))
        await give_turns()
        others = [asyncio.ensure_future(gateway.ticket(tp)) for tp in (DELAYS, SEATS)]
        await give_turns()
        assert len(gateway.asked) == 1
        gateway.coordinator.gate.set()
        await asyncio.gather(first, *others)
        assert [one.partitions for one in gateway.asked] == [(FLIGHTS,), (DELAYS, SEATS)]

    run(scenario)


@pytest.mark.parametrize(
    "other", [{"name": "User:bob"}, {"host": "10.0.0.2"}], ids=["principal", "host"]
)
def test_nobody_enrols_with_the_rights_of_another(other: dict[str, str]) -> None:
    async def scenario(gateway: Gateway) -> None:
        await asyncio.gather(
            gateway.ticket(FLIGHTS), gateway.ticket(DELAYS, call=gateway.call(**other))
        )
        assert [one.partitions for one in gateway.asked] == [(FLIGHTS,), (DELAYS,)]

    run(scenario)


def test_each_epoch_asks_for_itself_and_only_the_newest_is_kept() -> None:
    async def scenario(gateway: Gateway) -> None:
        await gateway.ticket(epoch=5)
        assert gateway.find(epoch=6) is None
        await gateway.ticket(epoch=6)
        assert gateway.find(epoch=5) is None
        # 1. A slow answer for epoch 5 comes when epoch 6 is known: it must not replace that.
        await gateway.ticket(DELAYS, epoch=5)
        assert gateway.find(epoch=6) == b"flights-0 6 2"
        assert gateway.find(DELAYS, epoch=5) is None
        assert gateway.enrolments.find("loader", PID + 7, 6, FLIGHTS) is None
        # 2. Another producer id may be newer or older; the coordinator has just known it.
        await gateway.ticket(epoch=0, pid=PID + 7)
        assert gateway.find(epoch=6) is None

    run(scenario)


def test_a_refused_ticket_is_forgotten_and_asked_for_again() -> None:
    async def scenario(gateway: Gateway) -> None:
        _, refused = await gateway.ticket()
        gateway.enrolments.forget("loader", PID, 0, FLIGHTS, refused)
        _, newer = await gateway.ticket()
        assert newer == b"flights-0 0 2"
        # Another batch was refused with the same old ticket, and says so later.
        gateway.enrolments.forget("loader", PID, 0, FLIGHTS, refused)
        assert gateway.find() == newer

    run(scenario)


def test_an_ended_transaction_is_forgotten() -> None:
    async def scenario(gateway: Gateway) -> None:
        await gateway.ticket()
        gateway.enrolments.ended("loader")
        gateway.enrolments.ended("loader")
        assert gateway.find() is None

    run(scenario)


def test_the_longest_kept_transactions_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TRANSACTIONS_MAX", 2)

    async def scenario(gateway: Gateway) -> None:
        for name in ("a", "b", "c"):
            await gateway.ticket(name=name)
        assert [gateway.find(name=name) is not None for name in ("a", "b", "c")] == [
            False,
            True,
            True,
        ]

    run(scenario)


def test_no_more_tickets_are_kept_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICKETS_MAX", 3)

    async def scenario(gateway: Gateway) -> None:
        # What is forgotten, refused or replaced no longer counts.
        await gateway.ticket(name="gone")
        gateway.enrolments.ended("gone")
        _, ticket = await gateway.ticket(name="a")
        gateway.enrolments.forget("a", PID, 0, FLIGHTS, ticket)
        await gateway.ticket(name="a")
        await gateway.ticket(DELAYS, name="b")
        await gateway.ticket(FLIGHTS, name="b")
        assert gateway.find(name="a") is not None
        await gateway.ticket(SEATS, name="b")
        assert gateway.find(name="a") is None
        assert gateway.find(SEATS, name="b") is not None

    run(scenario)


def test_a_partition_that_cannot_be_enrolled_does_not_keep_the_others_out() -> None:
    async def scenario(gateway: Gateway) -> None:
        gateway.coordinator.bad[DELAYS] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answers = await asyncio.gather(*map(gateway.ticket, (FLIGHTS, DELAYS, SEATS)))
        assert answers == [
            (ErrorCode.NONE, b"flights-0 0 2"),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, b""),
            (ErrorCode.NONE, b"seats-0 0 2"),
        ]
        assert gateway.find(DELAYS) is None

    run(scenario)


def test_partitions_that_are_refused_round_after_round_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ROUNDS_MAX", 1)

    async def scenario(gateway: Gateway) -> None:
        gateway.coordinator.bad[DELAYS] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answers = await asyncio.gather(*map(gateway.ticket, (FLIGHTS, DELAYS)))
        assert answers == [
            (ErrorCode.NOT_ENOUGH_REPLICAS, b""),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, b""),
        ]
        assert len(gateway.asked) == 1

    run(scenario)


def test_a_topic_that_may_not_be_written_is_refused_without_a_call() -> None:
    who = "User:alice"
    acls = tuple(
        Acl(principal=who, operation=Operation.WRITE, resource=resource, name=name)
        for resource, name in (
            (Resource.TRANSACTIONAL_ID, "loader"),
            (Resource.TOPIC, "flights"),
        )
    )
    access = Access(rules=Rules(is_on=True, version=1, acls=acls))

    async def scenario(gateway: Gateway) -> None:
        call = gateway.call(who)
        answers = await asyncio.gather(
            gateway.ticket(FLIGHTS, call=call),
            gateway.ticket(DELAYS, call=call),
            gateway.ticket(FLIGHTS, call=call, name="another"),
        )
        assert [error for error, _ in answers] == [
            ErrorCode.NONE,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ]
        assert [one.partitions for one in gateway.asked] == [(FLIGHTS,)]

    run(scenario, access)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_TIMED_OUT, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.ABORTED_BY_OPERATOR, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_a_refusal_is_told_as_kafkas_leaders_tell_it(said: ErrorCode, told: ErrorCode) -> None:
    async def scenario(gateway: Gateway) -> None:
        gateway.coordinator.refusals = [said]
        assert await gateway.ticket() == (told, b"")
        assert gateway.find() is None
        assert (await gateway.ticket())[0] is ErrorCode.NONE

    run(scenario)


def test_a_coordinator_that_has_moved_is_looked_up_and_asked_once_more() -> None:
    async def scenario(gateway: Gateway) -> None:
        await gateway.ticket(name="other")
        gateway.coordinator.leader = 2
        gateway.coordinator.refusals = [ErrorCode.NOT_COORDINATOR]
        assert (await gateway.ticket())[0] is ErrorCode.NONE
        assert gateway.coordinator.actors[1:] == ["transaction:0@1", "transaction:0@2"]
        gateway.coordinator.refusals = [ErrorCode.NETWORK_EXCEPTION] * 2
        assert await gateway.ticket(DELAYS) == (ErrorCode.NOT_ENOUGH_REPLICAS, b"")
        assert len(gateway.asked) == 5

    run(scenario)


def test_without_a_known_coordinator_the_batch_is_to_be_sent_again() -> None:
    async def scenario(gateway: Gateway) -> None:
        gateway.coordinator._metadata = lambda: MetadataReply(  # type: ignore[method-assign]
            error=ErrorCode.NETWORK_EXCEPTION
        )
        assert await gateway.ticket() == (ErrorCode.NOT_ENOUGH_REPLICAS, b"")

    run(scenario)


def test_an_id_that_is_changing_state_is_asked_about_for_a_moment() -> None:
    async def scenario(gateway: Gateway) -> None:
        loop = asyncio.get_running_loop()
        gateway.coordinator.refusals = [ErrorCode.CONCURRENT_TRANSACTIONS] * 5
        assert (await gateway.ticket())[0] is ErrorCode.NONE
        assert len(gateway.asked) == 6
        began_s = loop.time()
        gateway.coordinator.refusals = [ErrorCode.CONCURRENT_TRANSACTIONS] * 7
        assert await gateway.ticket(DELAYS) == (ErrorCode.CONCURRENT_TRANSACTIONS, b"")
        assert len(gateway.asked) == 12
        assert loop.time() - began_s == pytest.approx(0.1, abs=0.001)

    run(scenario)


def test_one_who_stops_waiting_does_not_stop_the_others() -> None:
    async def scenario(gateway: Gateway) -> None:
        gateway.coordinator.gate.clear()
        leaver, stayer = (asyncio.ensure_future(gateway.ticket()) for _ in range(2))
        await give_turns()
        leaver.cancel()
        await give_turns()
        gateway.coordinator.gate.set()
        assert (await stayer)[0] is ErrorCode.NONE
        assert len(gateway.asked) == 1

    run(scenario)


def test_a_bug_is_raised_to_who_waits_and_the_next_asks_anew() -> None:
    async def scenario(gateway: Gateway) -> None:
        gateway.coordinator.bug = ZeroDivisionError("a bug")
        with pytest.raises(ZeroDivisionError):
            await gateway.ticket()
        gateway.coordinator.bug = None
        assert (await gateway.ticket())[0] is ErrorCode.NONE

    run(scenario)


def test_closing_cancels_who_waits() -> None:
    async def scenario(gateway: Gateway) -> None:
        gateway.coordinator.gate.clear()
        waiting = asyncio.ensure_future(gateway.ticket())
        await give_turns()
        await gateway.enrolments.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(scenario)


def test_a_refusals_text_names_the_id_and_what_to_do() -> None:
    assert "'loader'" in refusal_text(ErrorCode.TRANSACTION_ABORTABLE, "loader")
    assert "abort it" in refusal_text(ErrorCode.TRANSACTION_ABORTABLE, "loader")
    assert "'loader'" in refusal_text(ErrorCode.INVALID_TXN_STATE, "loader")


# --- version 1 --------------------------------------------------------------------------------


def verified(epoch: int, *tps: TopicPartition) -> VerifyTxnReply:
    """What a coordinator says of a transaction of which these are part."""
    return VerifyTxnReply(
        producer_id=PID,
        producer_epoch=epoch,
        enrolments=tuple(
            PartitionEnrolment(
                topic_partition=tp, error=ErrorCode.NONE, ticket=f"{tp} {epoch}".encode()
            )
            for tp in tps
        ),
    )


def told(gateway: Gateway, tp: TopicPartition = FLIGHTS, epoch: int = 0) -> Awaitable[Enrolment]:
    return gateway.enrolments.told(gateway.call(), "loader", PID, epoch, tp)


def test_what_a_client_of_version_1_has_enrolled_is_asked_for_once_for_all() -> None:
    async def scenario(gateway: Gateway) -> None:
        gateway.coordinator.verified = verified(7, FLIGHTS, DELAYS)
        answers = await asyncio.gather(*(told(gateway, tp) for tp in (FLIGHTS, DELAYS, FLIGHTS)))
        assert answers == [
            Enrolment(ErrorCode.NONE, f"{tp} 7".encode(), PID, 7)
            for tp in (FLIGHTS, DELAYS, FLIGHTS)
        ]
        assert await told(gateway) == answers[0]
        (asked,) = gateway.asked
        assert isinstance(asked, VerifyTxnRequest)
        assert asked.partitions == (FLIGHTS, DELAYS)
        # Whoever enrols by a batch is told nothing of it, and the other way round.
        assert gateway.find() is None
        await gateway.ticket(epoch=9)
        gateway.coordinator.verified = verified(9)
        assert (await told(gateway, epoch=9)).error is ErrorCode.NOT_ENOUGH_REPLICAS

    run(scenario)


def test_a_late_answer_about_an_older_transaction_of_version_1_is_not_kept() -> None:
    async def scenario(gateway: Gateway) -> None:
        for epoch in (5, 7, 6):
            gateway.enrolments.keep_told("loader", PID, 0, verified(epoch, FLIGHTS))
        assert await told(gateway) == Enrolment(ErrorCode.NONE, b"flights-0 7", PID, 7)
        # Nor is what is kept forgotten for a refusal of an older one.
        gateway.enrolments.forget_told("loader", Enrolment(ErrorCode.NONE, b"", PID, 6))
        assert (await told(gateway)).producer_epoch == 7
        assert not gateway.asked
        gateway.enrolments.forget_told("loader", Enrolment(ErrorCode.NONE, b"", PID, 7))
        gateway.coordinator.verified = verified(8, FLIGHTS)
        assert (await told(gateway)).producer_epoch == 8

    run(scenario)
