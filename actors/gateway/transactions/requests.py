"""Transactions of Kafka's producers, onto the transaction and group coordinators.

Only clients of *transaction version 2* are served (KIP-890): with each end of a transaction they
take another epoch. Of version 1 all transactions of a producer share one, so that a late message of
one could be taken for one of the next. ``docs/adr/0034-kafkas-transactions.md`` has the proof.

| a client's request | what is asked |
|---|---|
| InitProducerId 5 with an id | ``init_producer_id`` |
| Produce 12, the first of a partition | ``add_partitions_to_txn``, in ``enrolments`` |
| TxnOffsetCommit 5 | ``add_offsets_to_txn``, ``describe_producers``, ``txn_offset_commit`` |
| EndTxn 5 | ``end_txn`` |
| AddPartitionsToTxn, AddOffsetsToTxn | the same, of who has shown version 2 |

What a client is told, and what the Java client does then:

| the coordinator says | to a produce | to another request | the producer |
|---|---|---|---|
| TRANSACTION_TIMED_OUT, ABORTED_BY_OPERATOR | TRANSACTION_ABORTABLE | the same | aborts, goes on |
| PRODUCER_FENCED | INVALID_PRODUCER_EPOCH | PRODUCER_FENCED | aborts; then, or at once, it dies |
| CONCURRENT_TRANSACTIONS | the same | the same | asks again |
| nothing: it moves or starts | NOT_ENOUGH_REPLICAS | NOT_COORDINATOR and the like | asks again |

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
    Enrolments,
    ask_coordinator,
    ask_patiently,
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
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TopicPartition, sequence_after

_logger = logging.getLogger(__name__)

V2_VERSIONS: Final[Mapping[ApiKey, int]] = {
    ApiKey.END_TXN: 5,
    ApiKey.TXN_OFFSET_COMMIT: 5,
}
"""The first version of each API that a client sends only if its transactions are of version 2."""

INIT_VERSION_MIN: Final = 5
"""InitProducerId of a client that may know version 2: the releases 3.8 and 3.9 send it as well."""

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


def _may_be_of_version_2(call: Call) -> bool:
    """Whether a client that asks for a producer id may go on."""
    named = _JAVA.match(call.client.name)
    is_old = named is not None and int(named[1]) < JAVA_V2_RELEASE
    return call.version >= INIT_VERSION_MIN and not is_old


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
        if not _may_be_of_version_2(call):
            self._warn_of_old(call, transactional_id, "InitProducerId")
            fails = call.client.name.startswith(_FAILS_ON_VERSION)
            code = UNSUPPORTED_VERSION if fails else _NOT_ALLOWED
            return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
        reply = await ask_patiently(
            call,
            transactional_id,
            transaction.InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=request.transaction_timeout_ms,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
            ),
        )
        if reply.error is ErrorCode.NONE:
            self._enrolments.ended(transactional_id)
        return InitProducerIdResponse(
            throttle_time_ms=throttle_of(reply),
            error_code=kafkas_code(reply.error),
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
        if self._is_old(call, transactional_id, ApiKey.ADD_PARTITIONS_TO_TXN):
            # Of UNSUPPORTED_VERSION the Java client would only abort, and try again.
            return _enrolled(request, dict.fromkeys(asked, _NOT_ALLOWED))
        reply = await self._enrolments.add(
            call,
            transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            asked,
        )
        codes = {one.topic_partition: kafkas_code(one.error) for one in reply.enrolments}
        if not codes:
            codes = dict.fromkeys(asked, kafkas_code(reply.error))
        response = _enrolled(request, codes)
        response.throttle_time_ms = throttle_of(reply)
        return response

    async def add_offsets(
        self, call: Call, request: AddOffsetsToTxnRequest
    ) -> AddOffsetsToTxnResponse:
        """Enrol the positions of a group; TxnOffsetCommit does that as well."""
        if self._is_old(call, request.transactional_id, ApiKey.ADD_OFFSETS_TO_TXN):
            return AddOffsetsToTxnResponse(error_code=UNSUPPORTED_VERSION)
        reply = await _enrol_group(call, request)
        return AddOffsetsToTxnResponse(
            throttle_time_ms=throttle_of(reply), error_code=kafkas_code(reply.error)
        )

    # --- ends -----------------------------------------------------------------------------

    async def end(self, call: Call, request: EndTxnRequest) -> EndTxnResponse:
        """Commit or abort; tells the producer id and epoch of the next transaction."""
        transactional_id = request.transactional_id
        if self._is_old(call, transactional_id, ApiKey.END_TXN):
            return EndTxnResponse(error_code=UNSUPPORTED_VERSION)
        reply = await ask_coordinator(
            call,
            transactional_id,
            transaction.EndTxnRequest(
                transactional_id=transactional_id,
                committed=request.committed,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
            ),
        )
        if reply.error is not ErrorCode.NONE:
            return EndTxnResponse(
                throttle_time_ms=throttle_of(reply), error_code=kafkas_code(reply.error)
            )
        self._enrolments.ended(transactional_id)
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
        if self._is_old(call, request.transactional_id, ApiKey.TXN_OFFSET_COMMIT):
            return _committed(request, dict.fromkeys(_partitions(request), UNSUPPORTED_VERSION))
        arrived_ms = loop_ms()
        async with self._turn(call, request.transactional_id):
            reply = await _commit_offsets(call, request, arrived_ms)
        response = _committed(request, _codes(request, reply))
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

    def _is_old(self, call: Call, transactional_id: str, api: ApiKey) -> bool:
        """Whether the client is not known to be of version 2; then a line is logged."""
        if call.version >= V2_VERSIONS.get(api, call.version + 1):
            call.client.remembered[_KEY] = True
            return False
        if is_of_version_2(call.client):
            return False
        self._warn_of_old(call, transactional_id, f"{api.name} {call.version}")
        return True

    def _warn_of_old(self, call: Call, transactional_id: str, what: str) -> None:
        self.warnings.warn(
            "%s of client %r (%s) with transactional.id=%r was refused: its transactions are of "
            "version 1 — use kafka-clients 4.0 or later, or oncelog's own producer",
            *(what, call.client_id, call.client.name or "which names no software"),
            transactional_id,
        )


_NOT_ALLOWED: Final = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
"""Fails every client at once, whichever request it answers."""


# --- positions ------------------------------------------------------------------------------------


async def _enrol_group(
    call: Call, request: AddOffsetsToTxnRequest | TxnOffsetCommitRequest
) -> transaction.AddPartitionsToTxnReply:
    """Enrol the partition of a group's positions."""
    return await ask_patiently(
        call,
        request.transactional_id,
        transaction.AddOffsetsToTxnRequest(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            group_id=request.group_id,
        ),
    )


async def _commit_offsets(
    call: Call, request: TxnOffsetCommitRequest, arrived_ms: int
) -> group.OffsetCommitReply:
    """Learn the next sequence and enrol the group, then commit.

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
        _describe(call, asked, arrived_ms), _enrol_group(call, request)
    )
    if enrolled.error is not ErrorCode.NONE:
        return asked.failed(enrolled.error, enrolled.detail)
    if described.error is not ErrorCode.NONE:
        return asked.failed(described.error)
    (enrolment,) = enrolled.enrolments
    sequence = next_sequence(described, asked.producer_epoch)
    asked = structs.replace(asked, ticket=enrolment.ticket, base_sequence=sequence)
    reply = await call.ask(actor, asked)
    if reply.error in _MOVED:
        # Not asked again here: another leader has another sequence, and by now it may be too late.
        call.forget(CONSUMER_OFFSETS_TOPIC)
    if reply.error is ErrorCode.INVALID_PRODUCER_EPOCH:
        # The marker has come meanwhile. The coordinator knows who has ended the transaction.
        why = await _enrol_group(call, request)
        return asked.failed(why.error) if why.error is not ErrorCode.NONE else reply
    return structs.replace(reply, error=_OF_LOG.get(reply.error, reply.error))


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


def _partitions(request: TxnOffsetCommitRequest) -> Iterable[TopicPartition]:
    return (
        TopicPartition(topic.name, one.partition_index)
        for topic in request.topics
        for one in topic.partitions
    )


def _codes(
    request: TxnOffsetCommitRequest, reply: group.OffsetCommitReply
) -> dict[TopicPartition, int]:
    """Kafka's code of each partition.

    One that is refused has kept the others from being committed. They get its code as well: Kafka's
    clients know no "not attempted" here.
    """
    if reply.error is not ErrorCode.NONE:
        return dict.fromkeys(_partitions(request), kafkas_code(reply.error))
    cause = next((one.error for one in reply.results if one.error not in _UNTOLD), _NOT_TOLD)
    found = {
        one.topic_partition: cause if one.error is ErrorCode.OPERATION_NOT_ATTEMPTED else one.error
        for one in reply.results
    }
    return {tp: kafkas_code(found.get(tp, cause)) for tp in _partitions(request)}


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
