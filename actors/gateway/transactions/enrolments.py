"""The tickets with which batches of Kafka's transactional producers go to the leaders.

A client of transaction version 2 sends no AddPartitionsToTxn: whoever gets its batch enrols the
partition (KIP-890). Here that is the gateway. It asks the id's coordinator, gets a ticket, and
sends it to the leader with each batch of the transaction (``docs/adr/0002-enrolment-tickets.md``).

A client of version 1 enrols by AddPartitionsToTxn, and writes all its transactions under the pair
of producer id and epoch that it was once told. Here each transaction has a pair of its own, which
the coordinator tells with the tickets. A batch is never enrolled.

How ``produce.py`` uses it, for a batch that is transactional:

* Of version 2: ``error, ticket = await enrolments.ticket(call, transactional_id, producer_id,
  producer_epoch, tp)``. An error is answered as it is; its text is ``refusal_text(error,
  transactional_id)``. Partitions of one request that ask in the same turn share one call.
* If the leader then answers INVALID_TXN_STATE: ``enrolments.forget(transactional_id, producer_id,
  producer_epoch, tp, ticket)``, ask ``ticket`` once more, and send the batch once more. A second
  refusal is the client's answer.
* Of version 1: the same with ``told`` and ``forget_told``; ``told`` also says which pair is to be
  written into the batch. INVALID_PRODUCER_EPOCH of the leader is asked about as well.

It keeps no promise: whatever it forgets is asked for again, which changes nothing. Several gateways
may enrol partitions of one transaction; each asks for itself. A ticket that is kept for too long
does no harm: ADR 2 proves that it is worthless once its transaction has ended.

One file: what is kept of transactions of both versions, and asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from oncelog.actors.gateway.calls import Call
from oncelog.actors.gateway.groups.membership import ask_shard
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnReply,
    AddPartitionsToTxnRequest,
    PartitionEnrolment,
    VerifyTxnReply,
    VerifyTxnRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)

PRODUCE_VERSION_MIN: Final = 12
"""The first version of Produce whose transactional batches enrol their partition (KIP-890)."""

TRANSACTIONS_MAX: Final = 10_000
"""Transactional ids whose tickets are kept; beyond that the longest kept are forgotten."""

TICKETS_MAX: Final = 50_000
"""Tickets that are kept of all of them, some 10 MB; beyond that as above."""

BUSY_RETRY_MS: Final = 20
BUSY_RETRIES_MAX: Final = 5
"""How often, and after how long, an id that is changing state is asked about again.

After that the client is told, which tries again more slowly. The numbers are Kafka's.
"""

ROUNDS_MAX: Final = 3
"""Calls for the partitions of one question: each leaves out those that the last one refused."""

_UNATTEMPTED: Final = frozenset({ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED})

ABORTED: Final = frozenset({ErrorCode.TRANSACTION_TIMED_OUT, ErrorCode.ABORTED_BY_OPERATOR})
"""The coordinator has aborted the transaction, and nobody else has the id: its producer goes on."""

OUT_OF_REACH: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""A coordinator cannot answer now; it, or another, will."""

_USED_UP: Final = (
    "the epochs of {!r} are used up: abort the transaction, and go on under another epoch"
)
_TEXTS: Final = {
    ErrorCode.TRANSACTION_ABORTABLE: (
        "the coordinator has aborted the transaction of {!r}, which was open for longer than its "
        "transaction.timeout.ms or was aborted by an operator: abort it, and begin the next"
    ),
    ErrorCode.INVALID_PRODUCER_EPOCH: (
        "another producer has the transactional id {!r}, or the batch is of a transaction that has "
        "ended"
    ),
    ErrorCode.NOT_ENOUGH_REPLICAS: (
        "the transaction coordinator of {!r} cannot be asked at present, or the client has aborted "
        "a transaction: send the batch again"
    ),
    ErrorCode.CONCURRENT_TRANSACTIONS: "the last transaction of {!r} is not complete yet",
    ErrorCode.INVALID_TXN_STATE: (
        "the partition is not part of an open transaction of {!r}: the batch is of one that has "
        "ended"
    ),
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: _USED_UP,
    ErrorCode.UNKNOWN_PRODUCER_ID: _USED_UP,
}

Answer = tuple[ErrorCode, bytes]
"""A code, and a ticket if that is ``NONE``."""


class Enrolment(NamedTuple):
    """The pair that a partition's batches are written with, and their ticket; or why not."""

    error: ErrorCode
    ticket: bytes = b""
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    aborts: int = 0
    """See ``VerifyTxnReply``."""


def refusal_text(error: ErrorCode, transactional_id: str) -> str:
    """The error message of a batch that ``Enrolments.ticket`` refused with ``error``."""
    text = _TEXTS.get(error, "the partition cannot be part of the transaction of {!r}")
    return text.format(transactional_id)


async def ask_coordinator(call: Call, transactional_id: str, request: Request[ReplyT]) -> ReplyT:
    """Ask the coordinator of a transactional id, and once more if it has moved.

    ``COORDINATOR_NOT_AVAILABLE`` while it is not known how many coordinators there are.
    """
    shard = await call.shard(TRANSACTION_STATE_TOPIC, transactional_id)
    if shard is None:
        return request.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return await ask_shard(call, shard, request)


async def ask_patiently(call: Call, transactional_id: str, request: Request[ReplyT]) -> ReplyT:
    """``ask_coordinator``, and for a moment again while the id is changing state.

    Its last transaction may still be waiting for markers: Kafka's clients begin the next at once.
    """
    reply = await ask_coordinator(call, transactional_id, request)
    for _ in range(BUSY_RETRIES_MAX):
        if reply.error is not ErrorCode.CONCURRENT_TRANSACTIONS:
            break
        await asyncio.sleep(BUSY_RETRY_MS / 1_000)
        reply = await ask_coordinator(call, transactional_id, request)
    return reply


async def verify(call: Call, request: VerifyTxnRequest) -> VerifyTxnReply:
    """Ask what a version 1 client has enrolled, in the gateway's name: he must be judged before.

    NOT_COORDINATOR instead of what a coordinator says of which another is known to have followed:
    its answer needs no log, so it may be out of a memory of a day ago. Before it denies anything
    the controller is asked whether there is another: librdkafka does not survive a denial.
    """
    began_ms = loop_ms()
    shard = await call.shard(TRANSACTION_STATE_TOPIC, request.transactional_id)
    if shard is None:
        return request.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    reply = await ask_shard(call.of_gateway(), shard, request)
    order = call.cluster.order
    order.learn(shard.partition, reply.coordinator_epoch)
    newest: int | None = order.known(shard.partition)
    if _denies(reply):
        # What was enrolled when the client sent its request, was so at a leader known by now.
        led = await call.cluster.view.leader_epoch(shard, as_of_ms=began_ms)
        newest = None if led is None else max(led, order.known(shard.partition))
    if newest is None or 0 <= reply.coordinator_epoch < newest:
        call.forget(TRANSACTION_STATE_TOPIC)
        return request.failed(ErrorCode.NOT_COORDINATOR)
    return reply


def _denies(reply: VerifyTxnReply) -> bool:
    """Whether something is not enrolled, as far as a coordinator remembers."""
    if reply.error in OUT_OF_REACH or reply.error is ErrorCode.CONCURRENT_TRANSACTIONS:
        return False
    return reply.error is not ErrorCode.NONE or not all(one.ticket for one in reply.enrolments)


async def learn_epoch(call: Call, transactional_id: str, coordinator_epoch: int) -> None:
    """Remember the epoch that the coordinator of an id has told in its reply, -1 if it has not."""
    shard = await call.shard(TRANSACTION_STATE_TOPIC, transactional_id)
    if shard is not None:
        call.cluster.order.learn(shard.partition, coordinator_epoch)


@dataclass(frozen=True, slots=True)
class _Asker:
    """Who asks for partitions of which transaction: they may share a call, and its rights."""

    principal: Principal
    host: str
    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_told: bool = False
    """Whether that is the pair of a version 1 client, which enrols nothing."""


@dataclass(slots=True)
class _Question:
    """What is asked for next; ``wanted`` is emptied when the call is made."""

    wanted: dict[TopicPartition, asyncio.Future[Enrolment]] = field(default_factory=dict)


@dataclass(slots=True)
class _Kept:
    """The tickets of the newest transaction of an id that is known here.

    ``named`` is the pair that its client names it by, ``written`` the one of its batches: the same
    but for a version 1 client.
    """

    named: tuple[int, int]
    written: tuple[int, int]
    is_told: bool
    aborts: int = 0
    """Of its client, before it, under ``named``; always the same for one ``written``."""
    tickets: dict[TopicPartition, bytes] = field(default_factory=dict)

    def is_newer(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the other is known to be an older transaction; of another id nothing is."""
        return self.written[0] == producer_id and self.written[1] > producer_epoch


class Enrolments:
    """The tickets of open transactions, and the questions on their way. One per gateway.

    Questions are bounded by the requests in progress, since each waits for its answer.
    """

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._ticket_count = 0
        self._questions: dict[_Asker, _Question] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ticket(
        self,
        call: Call,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        tp: TopicPartition,
    ) -> Answer:
        """The ticket of a partition, which is enrolled durably if it was not yet.

        The error is the one to answer the produce with, and then the ticket is ``b""``:

        * INVALID_PRODUCER_EPOCH: another producer has the id, or the batch is of a transaction that
          has ended. The client aborts, and learns from that whether it goes on.
        * TRANSACTION_ABORTABLE: the transaction timed out, or an operator aborted it.
        * NOT_ENOUGH_REPLICAS, CONCURRENT_TRANSACTIONS: the client sends the batch again.
        * others as the coordinator gave them, of this partition.
        """
        found = self.find(transactional_id, producer_id, producer_epoch, tp)
        if found is not None:
            return ErrorCode.NONE, found
        client = call.client
        asker = _Asker(client.principal, client.host, transactional_id, producer_id, producer_epoch)
        enrolment = await self._asked(call, asker, tp)
        return enrolment.error, enrolment.ticket

    async def told(
        self,
        call: Call,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        tp: TopicPartition,
    ) -> Enrolment:
        """What a version 1 client has enrolled by now, named by its pair; it enrols nothing.

        The error is the one to answer the produce with. INVALID_PRODUCER_EPOCH as for ``ticket``,
        and the transaction timed out; besides:

        * INVALID_TXN_STATE: not enrolled. The client has given up this batch, or it can only abort.
        * That of ``anew``: the epochs are used up, so the sequence cannot go on. The client aborts,
          and takes another epoch.
        * NOT_ENOUGH_REPLICAS: the client sends the batch again.
        """
        kept = self._kept.get(transactional_id)
        if kept is not None and kept.is_told and kept.named == (producer_id, producer_epoch):
            found = kept.tickets.get(tp)
            if found is not None:
                return Enrolment(ErrorCode.NONE, found, *kept.written, kept.aborts)
        who = call.client
        asker = _Asker(
            who.principal, who.host, transactional_id, producer_id, producer_epoch, is_told=True
        )
        return await self._asked(call, asker, tp)

    async def _asked(self, call: Call, asker: _Asker, tp: TopicPartition) -> Enrolment:
        """The answer about one partition, from a call for all that are asked for now."""
        question = self._questions.get(asker)
        if question is None:
            question = self._questions[asker] = _Question()
            task = asyncio.get_running_loop().create_task(self._ask(call, asker, question))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        answer = question.wanted.get(tp)
        if answer is None:
            answer = asyncio.get_running_loop().create_future()
            question.wanted[tp] = answer
        # Another batch may wait for the same answer, whatever becomes of this one.
        return await asyncio.shield(answer)

    def find(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        tp: TopicPartition,
    ) -> bytes | None:
        """The ticket, if it is here: without a call, and without a turn of the event loop."""
        kept = self._kept.get(transactional_id)
        if kept is None or kept.is_told or kept.named != (producer_id, producer_epoch):
            return None
        return kept.tickets.get(tp)

    def forget(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        tp: TopicPartition,
        ticket: bytes,
    ) -> None:
        """The leader has refused ``ticket``: the next question goes to the coordinator.

        No effect on another ticket that has come meanwhile.
        """
        if self.find(transactional_id, producer_id, producer_epoch, tp) == ticket:
            del self._kept[transactional_id].tickets[tp]
            self._ticket_count -= 1

    def forget_told(self, transactional_id: str, refused: Enrolment) -> None:
        """The same for ``told``: all that is kept of the transaction, unless that is another."""
        kept = self._kept.get(transactional_id)
        if kept is not None and kept.written == (refused.producer_id, refused.producer_epoch):
            self.ended(transactional_id)

    def ended(self, transactional_id: str) -> None:
        """The id has another epoch now: what is kept of it is worthless."""
        kept = self._kept.pop(transactional_id, None)
        if kept is not None:
            self._ticket_count -= len(kept.tickets)

    async def close(self) -> None:
        """Give up all questions; their callers are cancelled."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- questions ------------------------------------------------------------------------

    async def _ask(self, call: Call, asker: _Asker, question: _Question) -> None:
        """Ask for what is wanted, all at once; what is wanted meanwhile goes with the next call.

        As a task it begins after those of the other partitions of its request, which are wanted
        by then.
        """
        asked: dict[TopicPartition, asyncio.Future[Enrolment]] = {}
        find = self._verify if asker.is_told else self._enrol
        try:
            while question.wanted:
                asked, question.wanted = question.wanted, {}
                answers = await find(call, asker, list(asked))
                for tp, answer in asked.items():
                    if not answer.done():
                        answer.set_result(answers[tp])
        except Exception as bug:
            # It is for those who wait, and for whom they work.
            for answer in (*asked.values(), *question.wanted.values()):
                if not answer.done():
                    answer.set_exception(bug)
        finally:
            # No wait since nothing was wanted: whoever comes now asks anew.
            del self._questions[asker]
            for answer in (*asked.values(), *question.wanted.values()):
                answer.cancel()

    async def _enrol(
        self, call: Call, asker: _Asker, left: list[TopicPartition]
    ) -> dict[TopicPartition, Enrolment]:
        """Enrol partitions, without those that cannot be: one of them refuses all."""
        answers: dict[TopicPartition, Enrolment] = {}
        for _ in range(ROUNDS_MAX):
            reply = await self.add(
                call, asker.transactional_id, asker.producer_id, asker.producer_epoch, left
            )
            if not reply.enrolments:
                other = reply.error if reply.error is not ErrorCode.NONE else _NO_ANSWER
                return answers | dict.fromkeys(left, Enrolment(_of_produce(other)))
            for one in reply.enrolments:
                if one.ticket:
                    answers[one.topic_partition] = Enrolment(ErrorCode.NONE, one.ticket)
                elif one.error not in _UNATTEMPTED:
                    answers[one.topic_partition] = Enrolment(_of_produce(one.error))
            left = [tp for tp in left if tp not in answers]
            if not left:
                return answers
        return answers | dict.fromkeys(left, Enrolment(ErrorCode.NOT_ENOUGH_REPLICAS))

    async def add(
        self,
        call: Call,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
    ) -> AddPartitionsToTxnReply:
        """Enrol all of ``partitions`` or none, and keep their tickets."""
        reply = await ask_patiently(
            call,
            transactional_id,
            AddPartitionsToTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partitions=tuple(partitions),
            ),
        )
        pair = producer_id, producer_epoch
        self._keep(transactional_id, _Kept(pair, pair, is_told=False), reply.enrolments)
        return reply

    async def _verify(
        self, call: Call, asker: _Asker, wanted: list[TopicPartition]
    ) -> dict[TopicPartition, Enrolment]:
        """Ask what of these a version 1 client has enrolled; who may not write hears only that."""
        transactional_id = asker.transactional_id
        answers: dict[TopicPartition, Enrolment] = {}
        for tp in wanted:
            produce = ProduceRequest(
                topic_partition=tp, transactional_id=transactional_id, batch=b""
            )
            refusal = call.refusal(produce)
            if refusal is not ErrorCode.NONE:
                answers[tp] = Enrolment(refusal)
        left = [tp for tp in wanted if tp not in answers]
        if not left:
            return answers
        request = VerifyTxnRequest(
            transactional_id=transactional_id,
            producer_id=asker.producer_id,
            producer_epoch=asker.producer_epoch,
            partitions=tuple(left),
        )
        reply = await verify(call, request)
        self.keep_told(transactional_id, asker.producer_id, asker.producer_epoch, reply)
        written = reply.producer_id, reply.producer_epoch
        other = reply.error if reply.error is not ErrorCode.NONE else _NO_ANSWER
        answers |= dict.fromkeys(left, Enrolment(_of_told(call, other)))
        for one in reply.enrolments:
            answers[one.topic_partition] = (
                Enrolment(ErrorCode.NONE, one.ticket, *written, reply.aborts)
                if one.ticket
                else Enrolment(_of_told(call, one.error))
            )
        return answers

    def keep_told(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        reply: AddPartitionsToTxnReply | VerifyTxnReply,
    ) -> None:
        """Keep what the coordinator says that a version 1 client, named by its pair, enrolled."""
        written = reply.producer_id, reply.producer_epoch
        kept = _Kept((producer_id, producer_epoch), written, is_told=True, aborts=reply.aborts)
        self._keep(transactional_id, kept, reply.enrolments)

    def _keep(
        self, transactional_id: str, new: _Kept, enrolments: Sequence[PartitionEnrolment]
    ) -> None:
        """Keep tickets of an id's newest transaction, and nothing of those before."""
        tickets = {one.topic_partition: one.ticket for one in enrolments if one.ticket}
        if not tickets:
            return
        kept = self._kept.get(transactional_id)
        known = None if kept is None else (kept.named, kept.written, kept.is_told)
        if kept is None or known != (new.named, new.written, new.is_told):
            if kept is not None and kept.is_newer(*new.written):
                return
            self.ended(transactional_id)
            kept = self._kept[transactional_id] = new
        before = len(kept.tickets)
        kept.tickets.update(tickets)
        self._ticket_count += len(kept.tickets) - before
        while len(self._kept) > TRANSACTIONS_MAX or self._ticket_count > TICKETS_MAX:
            self.ended(next(iter(self._kept)))


_NO_ANSWER: Final = ErrorCode.NOT_COORDINATOR
"""For a reply that says nothing of any partition."""


def _of_produce(error: ErrorCode) -> ErrorCode:
    """What a client is told whose batch waited for an enrolment.

    Source: KIP-890. Of PRODUCER_FENCED a client that produces dies, even if it was only too slow.
    """
    if error in ABORTED:
        return ErrorCode.TRANSACTION_ABORTABLE
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return ErrorCode.NOT_ENOUGH_REPLICAS if error in OUT_OF_REACH else error


def _of_told(call: Call, error: ErrorCode) -> ErrorCode:
    """What a version 1 client is told whose batch waited for an answer; see ``told``.

    A transaction that timed out has fenced it, as in Kafka. Few of these clients repeat a batch
    that met CONCURRENT_TRANSACTIONS.
    """
    if error in ABORTED or error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
        return anew(call)
    if error in OUT_OF_REACH or error is ErrorCode.CONCURRENT_TRANSACTIONS:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return error


_RESET_SEQUENCES: Final = ("apache-kafka-java", "kafka-python")
"""How clients name themselves that may send a batch again from sequence 0, if they hear
UNKNOWN_PRODUCER_ID of a partition of which nothing was acknowledged."""


def anew(call: Call) -> ErrorCode:
    """The code to a produce of which a version 1 client aborts, and takes another epoch.

    librdkafka takes OUT_OF_ORDER_SEQUENCE_NUMBER for a bug of its own, and ends.
    """
    is_reset = call.client.name.startswith(_RESET_SEQUENCES)
    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if is_reset else ErrorCode.UNKNOWN_PRODUCER_ID
