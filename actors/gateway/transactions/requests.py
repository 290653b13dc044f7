"""Transactions of Kafka's producers, onto the transaction and group coordinators.

Clients of *transaction version 2* take another epoch with each end of a transaction (KIP-890). Of
version 1 all transactions of a producer share one, the *told* pair of producer id and epoch, and a
late message of one could be taken for one of the next: ``told`` and ``enrolments`` see to that.
``docs/adr/0034-kafkas-transactions.md`` has the proof.

| a client's request | what is asked, in version 2 | in version 1 |
|---|---|---|
| InitProducerId with an id | ``init_producer_id`` | the same, ``as_version_1`` |
| Produce, in ``enrolments`` | ``add_partitions_to_txn`` | ``verify_txn`` |
| TxnOffsetCommit | ``add_offsets_to_txn`` | ``verify_txn`` |
| ... | ``describe_producers``, ``txn_offset_commit`` | the same |
| EndTxn | ``end_txn`` | the same, with a label |
| AddPartitionsToTxn, AddOffsetsToTxn | the same | the same, with a label |

A client is of version 2 if it asks InitProducerId 5, but for Java before 4.0, and of version 1 if
it asks 3 or 4. Below 3 it is refused: it could not take another epoch after a batch that was lost.

What a client of version 2 is told, and what the Java client does then:

| the coordinator says | to a produce | to another request | the producer |
|---|---|---|---|
| TRANSACTION_TIMED_OUT, ABORTED_BY_OPERATOR | TRANSACTION_ABORTABLE | the same | aborts, goes on |
| PRODUCER_FENCED | INVALID_PRODUCER_EPOCH | PRODUCER_FENCED | aborts; then, or at once, it dies |
| CONCURRENT_TRANSACTIONS | the same | the same | asks again |
| nothing: it moves or starts | NOT_ENOUGH_REPLICAS | NOT_COORDINATOR and the like | asks again |

A client of version 1 that has aborted repeats the first request of each connection which brings
batches or positions: ``told.shows_life``.

*The sequence of offset commits.* Our producers number the positions of a transaction; Kafka's do
not. So the gateway asks the leader of the group's log for the last number of the transaction there,
as soon as the request has come, and sends its commit with the next one. A commit that another has
overtaken since then has a number that is used up: the leader takes it for a copy, or refuses it.
That is compare-and-set. The gateway remembers nothing: whichever serves the client next asks the
same leader. A client has one commit at a time under way, and repeats it until it is answered; so
what has overtaken a commit says the same, or is newer.

One file: the requests of a transaction, and who may make them.

Source: KIP-98, KIP-360, KIP-447, KIP-588, KIP-890, KIP-1050.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import structs

from oncelog.actors.gateway.calls import Call, Client
from oncelog.actors.gateway.errors import of_coordinator
from oncelog.actors.gateway.groups.membership import throttle_of
from oncelog.actors.gateway.groups.offsets import positions_of
from oncelog.actors.gateway.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from oncelog.actors.gateway.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.end_txn import EndTxnRequest, EndTxnResponse
from oncelog.actors.gateway.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from oncelog.actors.gateway.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from oncelog.actors.gateway.transactions.enrolments import (
    ABORTED,
    Enrolment,
    Enrolments,
    ask_coordinator,
    ask_patiently,
    learn_epoch,
    verify,
)
from oncelog.actors.gateway.transactions.told import (
    CommitOrder,
    ask_in_order,
    coordinator_here,
    shows_life,
    takes_another_pair,
    told_code,
)
from oncelog.actors.gateway.versions import UNSUPPORTED_VERSION
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages import group, transaction
from oncelog.actors.protocol.messages.partition import (
    DescribeProducersReply,
    DescribeProducersRequest,
)
from oncelog.actors.rpc.dispatch import LogBudget
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    sequence_after,
)

_logger = logging.getLogger(__name__)

V2_VERSIONS: Final[Mapping[ApiKey, int]] = {
    ApiKey.END_TXN: 5,
    ApiKey.TXN_OFFSET_COMMIT: 5,
}
"""The first version of each API that a client sends only if its transactions are of version 2."""

INIT_V2_VERSION: Final = 5
"""InitProducerId of a client that may know version 2: the releases 3.8 and 3.9 send it as well."""

INIT_VERSION_MIN: Final = 3
"""From this InitProducerId on a client takes another epoch if a batch may be lost (KIP-360)."""

SEQUENCE_WITHIN_MS: Final = 5_000
"""How long after an offset commit has come its sequence may still be asked for.

Kafka's clients wait longer than that for an answer (``request.timeout.ms``, 30 s by default) before
they repeat a request. Until then nothing newer than it can be in the log.
"""

CLUSTER_AUTHORIZATION_VERSION: Final = 4
"""From this AddPartitionsToTxn on it is a request of brokers."""

JAVA_V2_RELEASE: Final = 4
"""The first release of Kafka's own client with transactions of version 2."""

_JAVA: Final = re.compile(r"apache-kafka-java\D*(\d+)")
_FAILS_ON_VERSION: Final = ("apache-kafka-java", "kafka-python")
"""How clients name themselves that fail on UNSUPPORTED_VERSION. librdkafka would try for ever."""

_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
_KEY: Final = __name__
"""Of what is remembered of a connection: that its client has shown version 2."""


def is_of_version_2(client: Client) -> bool:
    """Whether a client's transactions are known to be of version 2.

    By what it has sent on this connection, or by the release of Kafka's own client.
    """
    if client.remembered.get(_KEY):
        return True
    named = _JAVA.match(client.name)
    return named is not None and int(named[1]) >= JAVA_V2_RELEASE


def _begins_as_version_1(call: Call) -> bool:
    """Whether a client that asks for a producer id will use it as of version 1."""
    named = _JAVA.match(call.client.name)
    is_old = named is not None and int(named[1]) < JAVA_V2_RELEASE
    return call.version < INIT_V2_VERSION or is_old


def kafkas_code(error: ErrorCode) -> int:
    """What a coordinator's answer about a transaction is for a client of Kafka."""
    return of_coordinator(ErrorCode.TRANSACTION_ABORTABLE if error in ABORTED else error)


@dataclass(slots=True)
class _Turn:
    """The offset commits of one transactional id that are under way here."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Fair: who asks first is first."""
    count: int = 0


class Transactions:
    """The handlers of one gateway, and the offset commits that are under way."""

    def __init__(self, enrolments: Enrolments) -> None:
        self._enrolments = enrolments
        self._turns: dict[tuple[Principal, str], _Turn] = {}
        """Bounded by the requests in progress."""
        self._order = CommitOrder()
        self.warnings = LogBudget(_logger)

    @property
    def handlers(self) -> Mapping[ApiKey, Callable[[Call, Any], Awaitable[Any]]]:
        """By API; InitProducerId is in ``producer_ids``, which asks here if there is an id."""
        return {
            ApiKey.ADD_PARTITIONS_TO_TXN: self.add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self.add_offsets,
            ApiKey.TXN_OFFSET_COMMIT: self.commit_offsets,
            ApiKey.END_TXN: self.end,
        }

    # --- producer ids ---------------------------------------------------------------------

    async def init_producer_id(
        self, call: Call, request: InitProducerIdRequest
    ) -> InitProducerIdResponse:
        """Give a transactional id's producer its next epoch, which fences the one before.

        With a producer id and epoch it recovers in place (KIP-360).
        """
        transactional_id = request.transactional_id or ""
        is_version_1 = _begins_as_version_1(call)
        if call.version < INIT_VERSION_MIN:
            self._warn_of_old(call, transactional_id)
            fails = call.client.name.startswith(_FAILS_ON_VERSION)
            return _no_id(UNSUPPORTED_VERSION if fails else _NOT_ALLOWED)
        reply = await ask_patiently(
            call,
            transactional_id,
            transaction.InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=request.transaction_timeout_ms,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                as_version_1=is_version_1,
            ),
        )
        if is_version_1:
            await learn_epoch(call, transactional_id, reply.coordinator_epoch)
            if reply.error is ErrorCode.NONE and reply.coordinator_epoch < 0:
                self._warn_of_old_coordinator(call, transactional_id)
                return _no_id(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if reply.error is ErrorCode.NONE:
            self._enrolments.ended(transactional_id)
            if call.client.place is not None:
                call.client.place.begin(transactional_id, reply.coordinator_epoch)
        code = _code(call, ApiKey.INIT_PRODUCER_ID, reply.error, is_version_1=is_version_1)
        return InitProducerIdResponse(
            throttle_time_ms=throttle_of(reply),
            error_code=code,
            producer_id=reply.producer_id,
            producer_epoch=reply.producer_epoch,
        )

    # --- enrolment ------------------------------------------------------------------------

    async def add_partitions(
        self, call: Call, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        """Enrol partitions, all or none; from version 4 on it is a request of brokers."""
        if call.version >= CLUSTER_AUTHORIZATION_VERSION:
            return AddPartitionsToTxnResponse(
                error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            )
        transactional_id = request.v3_and_below_transactional_id
        asked = [
            TopicPartition(topic.name, index)
            for topic in request.v3_and_below_topics
            for index in topic.partitions
        ]
        pair = request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
        is_version_1 = _is_of_version_1(call, ApiKey.ADD_PARTITIONS_TO_TXN)
        if is_version_1:
            reply = await ask_in_order(
                call,
                transactional_id,
                transaction.AddPartitionsToTxnRequest(
                    transactional_id=transactional_id,
                    producer_id=pair[0],
                    producer_epoch=pair[1],
                    partitions=tuple(asked),
                ),
            )
            self._enrolments.keep_told(transactional_id, *pair, reply)
        else:
            reply = await self._enrolments.add(call, transactional_id, *pair, asked)

        def code(error: ErrorCode) -> int:
            return _code(call, ApiKey.ADD_PARTITIONS_TO_TXN, error, is_version_1=is_version_1)

        codes = {one.topic_partition: code(one.error) for one in reply.enrolments}
        if not codes:
            codes = dict.fromkeys(asked, code(reply.error))
        response = _enrolled(request, codes)
        response.throttle_time_ms = throttle_of(reply)
        return response

    async def add_offsets(
        self, call: Call, request: AddOffsetsToTxnRequest
    ) -> AddOffsetsToTxnResponse:
        """Enrol the positions of a group; TxnOffsetCommit of version 2 does that as well."""
        asked = _group_enrolment(request)
        is_version_1 = _is_of_version_1(call, ApiKey.ADD_OFFSETS_TO_TXN)
        if is_version_1:
            reply = await ask_in_order(call, request.transactional_id, asked)
        else:
            reply = await ask_patiently(call, request.transactional_id, asked)
        code = _code(call, ApiKey.ADD_OFFSETS_TO_TXN, reply.error, is_version_1=is_version_1)
        return AddOffsetsToTxnResponse(throttle_time_ms=throttle_of(reply), error_code=code)

    # --- ends -----------------------------------------------------------------------------

    async def end(self, call: Call, request: EndTxnRequest) -> EndTxnResponse:
        """Commit or abort; tells the producer id and epoch of the next transaction.

        Java's client of version 2 may overtake its own batches with its commit, if threads of it
        race. It repeats the commit after them, as it does while the last one is not complete.
        librdkafka is told UNKNOWN_PRODUCER_ID of an abort: see ``takes_another_pair``.
        """
        transactional_id = request.transactional_id
        asked = transaction.EndTxnRequest(
            transactional_id=transactional_id,
            committed=request.committed,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
        )
        is_version_1 = _is_of_version_1(call, ApiKey.END_TXN)
        if is_version_1:
            reply = await ask_in_order(call, transactional_id, asked)
        else:
            reply = await ask_coordinator(call, transactional_id, asked)
        if reply.error is not ErrorCode.NONE:
            error = reply.error
            if error is ErrorCode.INVALID_TXN_STATE and reply.producer_id == request.producer_id:
                # Java's batches will come. Others might repeat it without end: see ADR 34.
                is_java = not is_version_1 and _JAVA.match(call.client.name) is not None
                error = ErrorCode.CONCURRENT_TRANSACTIONS if is_java else error
            code = _code(call, ApiKey.END_TXN, error, is_version_1=is_version_1)
            return EndTxnResponse(throttle_time_ms=throttle_of(reply), error_code=code)
        self._enrolments.ended(transactional_id)
        if is_version_1 and not request.committed and takes_another_pair(call.client):
            return EndTxnResponse(
                throttle_time_ms=throttle_of(reply),
                error_code=int(ErrorCode.UNKNOWN_PRODUCER_ID),
            )
        return EndTxnResponse(
            throttle_time_ms=throttle_of(reply),
            producer_id=reply.producer_id,
            producer_epoch=reply.producer_epoch,
        )

    # --- positions ------------------------------------------------------------------------

    async def commit_offsets(
        self, call: Call, request: TxnOffsetCommitRequest
    ) -> TxnOffsetCommitResponse:
        """Send positions of a group, which wait for the end of the transaction.

        One request of an id at a time, in the order in which they came.
        """
        arrived_ms = loop_ms()
        is_version_1 = _is_of_version_1(call, ApiKey.TXN_OFFSET_COMMIT)
        async with self._turn(call, request.transactional_id):
            early = await self._too_early(call, request) if is_version_1 else ErrorCode.NONE
            reply = (
                await _commit_offsets(call, request, arrived_ms, is_version_1=is_version_1)
                if early is ErrorCode.NONE
                else group.OffsetCommitReply(error=early)
            )

        def code(error: ErrorCode) -> int:
            return _code(call, ApiKey.TXN_OFFSET_COMMIT, error, is_version_1=is_version_1)

        response = _committed(request, _codes(request, reply, code))
        response.throttle_time_ms = throttle_of(reply)
        return response

    @asynccontextmanager
    async def _turn(self, call: Call, transactional_id: str) -> AsyncIterator[None]:
        key = (call.client.principal, transactional_id)
        turn = self._turns.setdefault(key, _Turn())
        turn.count += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.count -= 1
            if not turn.count:
                del self._turns[key]

    # --- clients of version 1 -------------------------------------------------------------

    async def _too_early(self, call: Call, request: TxnOffsetCommitRequest) -> ErrorCode:
        """Whether a commit of version 1 cannot be judged here; its connection may be too old."""
        shard = await call.shard(CONSUMER_OFFSETS_TOPIC, request.group_id)
        if shard is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if await coordinator_here(call, shard) is None:
            return ErrorCode.NOT_COORDINATOR
        client = call.client
        if client.place is None:
            client.place = call.cluster.order.take()
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._order.enter(client.principal, request.transactional_id, client.place)
        return ErrorCode.NONE

    def _warn_of_old(self, call: Call, transactional_id: str) -> None:
        self.warnings.warn(
            "InitProducerId %d of client %r (%s) with transactional.id=%r was refused: it could "
            "not take another epoch after a lost batch (KIP-360) — use a client that asks version "
            "%d or later, such as librdkafka 1.7, kafka-python 3.0 or kafka-clients 2.5, or "
            "oncelog's own producer",
            *(call.version, call.client_id, call.client.name or "which names no software"),
            *(transactional_id, INIT_VERSION_MIN),
        )

    def _warn_of_old_coordinator(self, call: Call, transactional_id: str) -> None:
        self.warnings.warn(
            "client %r (%s) with transactional.id=%r waits: its coordinator is of a build that "
            "knows no transactions of version 1 — upgrade all brokers",
            *(call.client_id, call.client.name or "which names no software", transactional_id),
        )


def _is_of_version_1(call: Call, api: ApiKey) -> bool:
    """Whether a request is of version 1; what only version 2 sends is remembered."""
    if call.version >= V2_VERSIONS.get(api, call.version + 1):
        call.client.remembered[_KEY] = True
    return not is_of_version_2(call.client)


def _code(call: Call, api: ApiKey, error: ErrorCode, *, is_version_1: bool) -> int:
    return told_code(call, api, error) if is_version_1 else kafkas_code(error)


def _no_id(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=int(code), producer_id=-1, producer_epoch=-1)


_NOT_ALLOWED: Final = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
"""Fails every client at once, whichever request it answers."""


# --- positions ------------------------------------------------------------------------------------


def _group_enrolment(
    request: AddOffsetsToTxnRequest | TxnOffsetCommitRequest,
) -> transaction.AddOffsetsToTxnRequest:
    return transaction.AddOffsetsToTxnRequest(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        group_id=request.group_id,
    )


async def _group_enrolled(
    call: Call, request: TxnOffsetCommitRequest, *, is_version_1: bool
) -> Enrolment:
    """The pair and ticket for the partition of a group's positions; version 2 enrols it now."""
    asked = _group_enrolment(request)
    if not is_version_1:
        enrolled = await ask_patiently(call, request.transactional_id, asked)
        ticket = enrolled.enrolments[0].ticket if enrolled.enrolments else b""
        return Enrolment(enrolled.error, ticket, asked.producer_id, asked.producer_epoch)
    refusal = call.refusal(asked)
    if refusal is not ErrorCode.NONE:
        return Enrolment(refusal)
    found = await verify(
        call,
        transaction.VerifyTxnRequest(
            transactional_id=asked.transactional_id,
            producer_id=asked.producer_id,
            producer_epoch=asked.producer_epoch,
            group_id=asked.group_id,
        ),
    )
    if found.error is not ErrorCode.NONE:
        return Enrolment(found.error)
    (one,) = found.enrolments
    return Enrolment(one.error, one.ticket, found.producer_id, found.producer_epoch, found.aborts)


async def _commit_offsets(
    call: Call, request: TxnOffsetCommitRequest, arrived_ms: int, *, is_version_1: bool
) -> group.OffsetCommitReply:
    """Learn the next sequence and the enrolment of the group, then commit.

    The coordinator is asked each time, even if a ticket is at hand: a request that comes after the
    transaction has been decided is refused by it, not only by the marker.
    """
    asked = group.TxnOffsetCommitRequest(
        transactional_id=request.transactional_id,
        group_id=request.group_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        base_sequence=0,
        offsets=positions_of(request.topics),
        generation_id=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
    )
    if not asked.offsets:
        return group.OffsetCommitReply()
    (actor, described), enrolled = await asyncio.gather(
        _describe(call, asked, arrived_ms),
        _group_enrolled(call, request, is_version_1=is_version_1),
    )
    error, ticket, producer_id, producer_epoch, aborts = enrolled
    if error is not ErrorCode.NONE:
        return asked.failed(error)
    asked = structs.replace(
        asked, ticket=ticket, producer_id=producer_id, producer_epoch=producer_epoch
    )
    if producer_id != request.producer_id:
        # Its epochs are used up: the transaction has another id than the client was told.
        actor, described = await _describe(call, asked, arrived_ms)
    if described.error is not ErrorCode.NONE:
        return asked.failed(described.error)
    late = await _may_be_late(call, request, actor, aborts) if is_version_1 else ErrorCode.NONE
    if late is not ErrorCode.NONE:
        return asked.failed(late)
    asked = structs.replace(asked, base_sequence=next_sequence(described, producer_epoch))
    reply = await call.ask(actor, asked)
    if reply.error in _MOVED:
        # Not asked again here: another leader has another sequence, and by now it may be too late.
        call.forget(CONSUMER_OFFSETS_TOPIC)
    if reply.error is ErrorCode.INVALID_PRODUCER_EPOCH:
        # The marker has come meanwhile. The coordinator knows who has ended the transaction.
        why = (await _group_enrolled(call, request, is_version_1=is_version_1)).error
        if why is not ErrorCode.NONE or not is_version_1:
            return asked.failed(why) if why is not ErrorCode.NONE else reply
        # Another coordinator has followed it, or another transaction has begun.
        call.forget(TRANSACTION_STATE_TOPIC)
        return asked.failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    told = _OF_LOG_TO_VERSION_1 if is_version_1 else _OF_LOG
    return structs.replace(reply, error=told.get(reply.error, reply.error))


async def _may_be_late(
    call: Call, request: TxnOffsetCommitRequest, leader: str | None, aborts: int
) -> ErrorCode:
    """Why positions of a version 1 client must not go to ``leader`` now, though it took a look.

    Of another broker they do not: that one's gateway knows who has committed last. And after an
    abort not before they have come twice; see ``shows_life``. The client repeats them.
    """
    tp = await call.shard(CONSUMER_OFFSETS_TOPIC, request.group_id)
    if tp is None or leader is None or leader != await coordinator_here(call, tp):
        return ErrorCode.NOT_COORDINATOR
    told = request.producer_id, request.producer_epoch
    positions = sorted(
        (topic.name, one.partition_index, one.committed_offset, one.committed_metadata or "")
        for topic in request.topics
        for one in topic.partitions
    )
    digest = hashlib.sha256(repr((request.group_id, positions)).encode()).digest()
    is_alive = shows_life(call.client, request.transactional_id, told, aborts, digest)
    return ErrorCode.NONE if is_alive else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def _describe(
    call: Call, asked: group.TxnOffsetCommitRequest, arrived_ms: int
) -> tuple[str | None, DescribeProducersReply]:
    """What the leader of the group's log knows of the producer, and who that is.

    Not later than ``SEQUENCE_WITHIN_MS`` after the request has come.
    """
    tp = await call.shard(CONSUMER_OFFSETS_TOPIC, asked.group_id)
    if tp is None:
        return None, DescribeProducersReply(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    question = DescribeProducersRequest(topic_partition=tp, producer_ids=(asked.producer_id,))
    actor, reply = None, question.failed(ErrorCode.NOT_COORDINATOR)
    for is_new in (False, True):
        actor = (await call.leader(tp, is_new=is_new)).actor
        left_ms = arrived_ms + SEQUENCE_WITHIN_MS - loop_ms()
        if left_ms <= 0:
            return None, question.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if actor is not None:
            reply = await call.cluster.transport.call(actor, question, timeout_ms=left_ms)
        if reply.error not in _MOVED:
            break
    return actor, reply


def next_sequence(described: DescribeProducersReply, producer_epoch: int) -> int:
    """The sequence after the last one that a transaction has used in a partition."""
    last = [one for one in described.producers if one.producer_epoch == producer_epoch]
    return sequence_after(last[0].last_sequence, 1) if last else 0


_OF_LOG: Final[Mapping[ErrorCode, ErrorCode]] = {
    # Another copy of the request has overtaken this one: if the client still waits, it repeats it.
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: ErrorCode.CONCURRENT_TRANSACTIONS,
    # The ticket was just given: whatever is wrong with it is not the client's doing.
    ErrorCode.INVALID_TXN_STATE: ErrorCode.TRANSACTION_ABORTABLE,
}
"""What the leader of a group's log says of a transaction's batch → what its client is told."""

_OF_LOG_TO_VERSION_1: Final = dict.fromkeys(_OF_LOG, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
"""The same for version 1. Each of its clients repeats the request on this code, not on others."""


def _partitions(request: TxnOffsetCommitRequest) -> Iterable[TopicPartition]:
    return (
        TopicPartition(topic.name, one.partition_index)
        for topic in request.topics
        for one in topic.partitions
    )


def _codes(
    request: TxnOffsetCommitRequest,
    reply: group.OffsetCommitReply,
    code: Callable[[ErrorCode], int],
) -> dict[TopicPartition, int]:
    """Kafka's code of each partition.

    One that is refused has kept the others from being committed. They get its code as well: Kafka's
    clients know no "not attempted" here.
    """
    if reply.error is not ErrorCode.NONE:
        return dict.fromkeys(_partitions(request), code(reply.error))
    cause = next((one.error for one in reply.results if one.error not in _UNTOLD), _NOT_TOLD)
    found = {
        one.topic_partition: cause if one.error is ErrorCode.OPERATION_NOT_ATTEMPTED else one.error
        for one in reply.results
    }
    return {tp: code(found.get(tp, cause)) for tp in _partitions(request)}


_UNTOLD: Final = frozenset({ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED})
_NOT_TOLD: Final = ErrorCode.UNKNOWN_SERVER_ERROR
"""Never success by default: what a coordinator does not mention may not be durable."""


def _committed(
    request: TxnOffsetCommitRequest, codes: Mapping[TopicPartition, int]
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=one.partition_index,
                        error_code=codes[TopicPartition(topic.name, one.partition_index)],
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _enrolled(
    request: AddPartitionsToTxnRequest, codes: Mapping[TopicPartition, int]
) -> AddPartitionsToTxnResponse:
    def results(name: str, indexes: Sequence[int]) -> list[AddPartitionsToTxnPartitionResult]:
        return [
            AddPartitionsToTxnPartitionResult(
                partition_index=index,
                partition_error_code=codes.get(TopicPartition(name, index), int(_NOT_TOLD)),
            )
            for index in indexes
        ]

    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name, results_by_partition=results(topic.name, topic.partitions)
            )
            for topic in request.v3_and_below_topics
        ]
    )
