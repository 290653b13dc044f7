"""Produce: each batch goes to the leader of its partition, as it came.

The leader checks a batch itself: size, CRC, offsets, sequence numbers, keys of a compacted topic.
Here only its header is looked at, for what a leader cannot know: whose producer id it is, and so
which ticket goes with it. A transactional client of version 1 writes under a pair of producer id
and epoch that is not that of its transaction; the gateway puts that in its place.

Batches without sequence numbers must stay in the order in which a connection brought them. So each
gets its turn in the line of its partition (``_Line``) before any batch of a later request. Calls to
a leader that is known and connected stay in order. Until one has come back, and after each that was
lost, a connection's batches for the partition go one at a time.

What a client of Kafka makes of an error, where it matters here:

=============================  =====================================================================
error                          why this one
=============================  =====================================================================
INVALID_PRODUCER_EPOCH         for PRODUCER_FENCED too, which no client expects of a produce
UNKNOWN_PRODUCER_ID            for OUT_OF_ORDER_SEQUENCE_NUMBER, if the leader has forgotten the
                               producer and nothing else of it is on its way: producers then go on
                               under their next epoch (KIP-360). librdkafka takes a gap in the
                               sequence for a bug of its own, and ends. Of a client of version 1
                               always, for what it believes lost may have been written
REQUEST_TIMED_OUT              for a call that was lost with a batch without sequence numbers:
                               librdkafka believes of NOT_LEADER_OR_FOLLOWER that nothing was
                               written, and sends it again even if it should not
NOT_ENOUGH_REPLICAS            while nobody knows the keys of tickets: it is sent again. So is the
                               first batch of a version 1 client after an abort (``shows_life``)
=============================  =====================================================================

One file: a batch from its request to its answer, and the order in which batches leave.
"""

from __future__ import annotations

import asyncio
from collections import deque
from struct import Struct as Form
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import UNSET

from oncelog.actors.gateway.calls import Call, Client
from oncelog.actors.gateway.errors import UnansweredError, of_leader
from oncelog.actors.gateway.messages.primitives import NO_UUID
from oncelog.actors.gateway.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from oncelog.actors.gateway.records.producer_ids import FIRST_KAFKA_ID, PlainTickets
from oncelog.actors.gateway.transactions.enrolments import (
    PRODUCE_VERSION_MIN,
    Enrolment,
    Enrolments,
    anew,
    refusal_text,
)
from oncelog.actors.gateway.transactions.told import shows_life
from oncelog.actors.process.background import resolve_future
from oncelog.actors.protocol.messages import partition as leader_messages
from oncelog.actors.protocol.messages.partition import DescribeProducersRequest, ProduceReply
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    SEQUENCE_MAX,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from oncelog.storage.records.batch import stamp_producer
from oncelog.storage.records.compression import Codec
from oncelog.storage.records.layout import (
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_AT,
    LENGTH_END,
    MAGIC,
    MAGIC_AT,
    TRANSACTIONAL,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oncelog.actors.gateway.records.handlers import Found, Leaders, Place
    from oncelog.storage.records.batch import Buffer, WritableBuffer

ACKS: Final = (-1, 0, 1)

TIMEOUT_MIN_MS: Final = 1_000
TIMEOUT_MAX_MS: Final = 300_000
"""How long a leader is waited for: what the client allows, within these limits."""

LINES_MAX: Final = 10_000
"""Partitions of one connection whose leader is known to answer; beyond that all are tried anew."""

UNSUPPORTED_VERSION: Final = 35
UNSUPPORTED_FOR_MESSAGE_FORMAT: Final = 43
UNSUPPORTED_COMPRESSION_TYPE: Final = 76

_ZSTD_VERSION: Final = 7

_REMEMBERED: Final = "produce"
_ORDER: Final = "order of produces"
"""The names of what a client's connection remembers."""

_FIELDS: Final = Form(">B4xh20xqhi")
"""From the magic on: it, the attributes, the producer's id and epoch, the first sequence."""

_LENGTH: Final = Form(">i")

_LOST: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""After one of these a later call may arrive before an earlier one."""

_OF_ANOTHER_TRANSACTION: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE}
)
"""What a leader says of a pair or a ticket of a transaction that has ended."""


class _Batch(NamedTuple):
    """The batch of a partition, and what of its header counts here."""

    number: int
    records: Buffer
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    transactional_id: str | None = None
    """Of a transactional batch only."""
    is_told: bool = False
    """Whether its client writes all of its transactions under the pair that it was told."""


class _Produce(NamedTuple):
    """A batch on its way to a leader, and how its client wants it sent."""

    call: Call
    acks: int
    timeout_ms: int
    place: Place
    batch: _Batch
    turn: _Turn


class Produces:
    """Answers Produce."""

    def __init__(
        self, leaders: Leaders, plain: PlainTickets, enrolments: Enrolments | None = None
    ) -> None:
        self._leaders = leaders
        self._plain = plain
        self._enrolments = enrolments

    async def handle(self, call: Call, request: ProduceRequest) -> ProduceResponse | None:
        """Send all batches at the same time; ``None`` if the client wants no answer.

        Then a failed batch closes its connection, as in Kafka: so the client looks for leaders.
        """
        topics = request.topic_data
        wanted = [(topic.name, one) for topic in topics for one in topic.partition_data]
        async with _order(call.client):
            places = await self._leaders.find_all([(name, one.index) for name, one in wanted])
            turns = [_turn(call.client, place) for place in places]
        throttle_ms = 0

        async def append(
            one: tuple[Found, _Turn | None, tuple[str, PartitionProduceData]],
        ) -> PartitionProduceResponse:
            nonlocal throttle_ms
            place, turn, (name, data) = one
            try:
                answer, waits_ms = await self._append(call, request, place, turn, name, data)
            finally:
                _give_up((turn,))
            throttle_ms = max(throttle_ms, waits_ms)
            return answer

        items = list(zip(places, turns, wanted, strict=True))
        try:
            answers = iter(await self._leaders.ask_each(items, append))
        finally:
            # Also of those that were not begun.
            _give_up(turns)
        if request.acks == 0:
            _end_if_failed(wanted, answers)
            return None
        responses = [
            TopicProduceResponse(topic.name, NO_UUID, [next(answers) for _ in topic.partition_data])
            for topic in topics
        ]
        return ProduceResponse(responses, throttle_ms)

    async def _append(
        self,
        call: Call,
        request: ProduceRequest,
        place: Found,
        turn: _Turn | None,
        name: str,
        data: PartitionProduceData,
    ) -> tuple[PartitionProduceResponse, int]:
        """Have one batch appended; also for how long its leader wants the client to wait."""
        if request.acks not in ACKS:
            text = f"acks={request.acks}: give -1, 0 or 1"
            return _refused(data.index, ErrorCode.INVALID_REQUIRED_ACKS, text), 0
        batch = _read(call.version, request, data)
        if isinstance(batch, PartitionProduceResponse):
            return batch, 0
        timeout_ms = min(max(request.timeout_ms, TIMEOUT_MIN_MS), TIMEOUT_MAX_MS)
        if turn is None or isinstance(place, ErrorCode):
            asked = leader_messages.ProduceRequest(
                topic_partition=TopicPartition(name, data.index), batch=batch.records
            )
            reply = await self._leaders.ask(call, place, asked, timeout_ms=timeout_ms)
            return _failed(batch, reply, reply.error), 0
        produce = _Produce(call, request.acks, timeout_ms, place, batch, turn)
        if batch.producer_id == NO_PRODUCER_ID:
            reply = await self._send(produce, None)
        elif batch.transactional_id is not None and self._enrolments is None:
            return _refused(data.index, UNSUPPORTED_VERSION, _NO_TRANSACTIONS), 0
        else:
            reply = await self._send_owned(produce)
        throttle_ms = 0 if reply.throttle_ms is UNSET else reply.throttle_ms
        if reply.error is ErrorCode.NONE:
            if reply.is_ticket_old:
                self._plain.refresh_soon()
            answer = PartitionProduceResponse(
                data.index, 0, reply.base_offset, reply.log_append_time_ms, reply.log_start_offset
            )
            return answer, throttle_ms
        error: ErrorCode = reply.error
        if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            error = await self._why_out_of_order(produce)
        return _failed(batch, reply, error), throttle_ms

    # --- tickets --------------------------------------------------------------------------

    async def _send_owned(self, produce: _Produce) -> ProduceReply:
        """Send a batch of a producer with its ticket; if that was an old one, with another."""
        if produce.batch.is_told and self._enrolments is not None:
            return await self._send_told(produce, self._enrolments)
        ticket = await self._ticket(produce)
        if isinstance(ticket, ProduceReply):
            return ticket
        reply = await self._send(produce, ticket)
        if ticket is None or not await self._is_old(produce, ticket, reply.error):
            return reply
        ticket = await self._ticket(produce)
        return ticket if isinstance(ticket, ProduceReply) else await self._send(produce, ticket)

    async def _send_told(self, produce: _Produce, enrolments: Enrolments) -> ProduceReply:
        """Send a batch of a version 1 client under the pair of its transaction.

        What is kept of that may be of one before: once its leader refuses it, the coordinator is
        asked.
        """
        transactional_id = produce.batch.transactional_id or ""
        named = produce.batch.producer_id, produce.batch.producer_epoch
        found = await enrolments.told(produce.call, transactional_id, *named, produce.place.tp)
        if found.error is not ErrorCode.NONE:
            return _refusal(found.error, transactional_id)
        if not _shows_life(produce, named, found):
            return _refusal(ErrorCode.NOT_ENOUGH_REPLICAS, transactional_id)
        produce = _written_as(produce, found, may_write=True)
        reply = await self._send(produce, found.ticket)
        if reply.error not in _OF_ANOTHER_TRANSACTION:
            return reply
        enrolments.forget_told(transactional_id, found)
        again = await enrolments.told(produce.call, transactional_id, *named, produce.place.tp)
        if again.error is not ErrorCode.NONE:
            return _refusal(again.error, transactional_id)
        if again == found:
            # One of both is wrong: perhaps another coordinator has followed this one.
            produce.call.forget(TRANSACTION_STATE_TOPIC)
        if again == found or not _shows_life(produce, named, again):
            return _refusal(ErrorCode.NOT_ENOUGH_REPLICAS, transactional_id)
        # The bytes that were sent may still be on their way to a leader that is lost.
        return await self._send(_written_as(produce, again, may_write=False), again.ticket)

    async def _ticket(self, produce: _Produce) -> bytes | ProduceReply | None:
        """The ticket of a batch, ``None`` for an id that gets none here, or a refusal."""
        batch = produce.batch
        if batch.transactional_id is not None and self._enrolments is not None:
            error, ticket = await self._enrolments.ticket(
                produce.call,
                batch.transactional_id,
                batch.producer_id,
                batch.producer_epoch,
                produce.place.tp,
            )
            if error is ErrorCode.NONE:
                return ticket
            return _refusal(error, batch.transactional_id)
        if batch.producer_id < FIRST_KAFKA_ID:
            # The leader says that it does not know whose this is.
            return None
        plain = self._plain.find(batch.producer_id)
        if plain is None:
            await self._plain.refresh()
            plain = self._plain.find(batch.producer_id)
        if plain is None:
            return ProduceReply(error=ErrorCode.NOT_ENOUGH_REPLICAS, detail=_NO_KEYS)
        return plain

    async def _is_old(self, produce: _Produce, ticket: bytes, error: ErrorCode) -> bool:
        """Whether the leader refused ``ticket`` and there may be a better one."""
        batch = produce.batch
        if batch.transactional_id is not None and self._enrolments is not None:
            if error is not ErrorCode.INVALID_TXN_STATE:
                return False
            self._enrolments.forget(
                batch.transactional_id,
                batch.producer_id,
                batch.producer_epoch,
                produce.place.tp,
                ticket,
            )
            return True
        if error is not ErrorCode.UNKNOWN_PRODUCER_ID:
            return False
        if self._plain.find(batch.producer_id) == ticket:
            await self._plain.refresh()
        return self._plain.find(batch.producer_id) != ticket

    # --- sending --------------------------------------------------------------------------

    async def _send(self, produce: _Produce, ticket: bytes | None) -> ProduceReply:
        """Send a batch once those before it are on their way."""
        call, acks, timeout_ms, place, batch, turn = produce
        line = turn.line
        asked = leader_messages.ProduceRequest(
            topic_partition=place.tp,
            acks=acks,
            transactional_id=batch.transactional_id,
            ticket=ticket,
            timeout_ms=timeout_ms,
            batch=batch.records,
        )
        is_first = await line.enter(turn)
        line.sent.append(batch.base_sequence)
        is_answered = False
        try:
            reply = await self._leaders.ask(
                call,
                place,
                asked,
                timeout_ms=timeout_ms,
                may_repeat=batch.producer_id != NO_PRODUCER_ID,
            )
            is_answered = reply.error not in _LOST
        finally:
            line.sent.remove(batch.base_sequence)
            line.leave(is_first=is_first, is_answered=is_answered)
        return reply

    async def _why_out_of_order(self, produce: _Produce) -> ErrorCode:
        """Perhaps the leader knows nothing more of the batch's producer.

        Not if an earlier batch of this connection is on its way: that may just be overtaken. Of a
        version 1 client each reason ends the same way: it aborts, and takes another epoch.
        """
        batch = produce.batch
        if batch.is_told:
            return anew(produce.call)
        sent = produce.turn.line.sent
        is_oldest = all(_is_before(batch.base_sequence, other) for other in sent)
        if is_oldest and batch.transactional_id is None:
            asked = DescribeProducersRequest(
                topic_partition=produce.place.tp, producer_ids=(batch.producer_id,)
            )
            described = await self._leaders.ask_for_itself(produce.place.tp, asked)
            if described.error is ErrorCode.NONE and not described.producers:
                return ErrorCode.UNKNOWN_PRODUCER_ID
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


_NO_TRANSACTIONS: Final = "transactions are not served here"
_NO_KEYS: Final = "the keys of the cluster are not known yet: send the batch again"
_NO_BATCH: Final = "there is no record batch: give exactly one for each partition"
_TWO_BATCHES: Final = "there is more than one record batch: give exactly one for each partition"


def _read(
    version: int, request: ProduceRequest, data: PartitionProduceData
) -> _Batch | PartitionProduceResponse:
    """The batch, or why no leader is asked. What is cut off its leader refuses."""
    records: Buffer = b"" if data.records is None else data.records
    size_bytes = len(records)
    if size_bytes > MAGIC_AT and records[MAGIC_AT] != MAGIC:
        text = f"magic={records[MAGIC_AT]}: give record batches of format {MAGIC}"
        return _refused(data.index, UNSUPPORTED_FOR_MESSAGE_FORMAT, text)
    if size_bytes < HEADER_BYTES:
        return _Batch(data.index, records)
    _, attributes, producer_id, producer_epoch, base_sequence = _FIELDS.unpack_from(
        records, MAGIC_AT
    )
    if version < _ZSTD_VERSION and attributes & CODEC_MASK == Codec.ZSTD:
        text = f"zstd needs version {_ZSTD_VERSION} of Produce or a later one"
        return _refused(data.index, UNSUPPORTED_COMPRESSION_TYPE, text)
    transactional_id = None
    # Without an id, or a producer, the leader refuses it.
    if attributes & TRANSACTIONAL and request.transactional_id and producer_id >= 0:
        transactional_id = request.transactional_id
    is_told = transactional_id is not None and version < PRODUCE_VERSION_MIN
    return _Batch(
        data.index,
        records,
        producer_id,
        producer_epoch,
        base_sequence,
        transactional_id,
        is_told=is_told,
    )


def _refusal(error: ErrorCode, transactional_id: str) -> ProduceReply:
    return ProduceReply(error=error, detail=refusal_text(error, transactional_id))


def _shows_life(produce: _Produce, named: tuple[int, int], enrolment: Enrolment) -> bool:
    """Whether a version 1 client has sent its batch after its last abort."""
    batch = produce.batch
    request = produce.place.tp, batch.base_sequence
    transactional_id = batch.transactional_id or ""
    return shows_life(produce.call.client, transactional_id, named, enrolment.aborts, request)


def _written_as(produce: _Produce, enrolment: Enrolment, *, may_write: bool) -> _Produce:
    """The batch under the pair of its transaction, in its own buffer if that may be written."""
    batch = produce.batch
    pair = enrolment.producer_id, enrolment.producer_epoch
    if pair == (batch.producer_id, batch.producer_epoch):
        return produce
    stamped: WritableBuffer
    if may_write and isinstance(batch.records, memoryview) and not batch.records.readonly:
        stamped = batch.records
    else:
        stamped = bytearray(batch.records)
    stamp_producer(stamped, *pair)
    return produce._replace(
        batch=batch._replace(records=stamped, producer_id=pair[0], producer_epoch=pair[1])
    )


def _failed(batch: _Batch, reply: ProduceReply, error: ErrorCode) -> PartitionProduceResponse:
    """The answer to a batch that was not appended, or of which that is not known."""
    text = reply.detail
    if error is ErrorCode.PRODUCER_FENCED:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    elif error is ErrorCode.NETWORK_EXCEPTION and batch.producer_id == NO_PRODUCER_ID:
        error = ErrorCode.REQUEST_TIMED_OUT
    elif error is ErrorCode.INVALID_RECORD and not text:
        text = _why_invalid(batch.records)
    answer = _refused(batch.number, of_leader(error), text)
    if error is ErrorCode.UNKNOWN_PRODUCER_ID:
        # Without it a client only sends the batch again (KAFKA-5793).
        answer.log_start_offset = max(reply.log_start_offset, 0)
    else:
        answer.log_start_offset = reply.log_start_offset
    answer.record_errors = [BatchIndexAndErrorMessage(index) for index in reply.refused_records]
    return answer


def _refused(index: int, code: int, text: str) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index, error_code=int(code), base_offset=NO_OFFSET, error_message=text or None
    )


def _end_if_failed(
    wanted: Sequence[tuple[str, PartitionProduceData]], answers: Iterable[PartitionProduceResponse]
) -> None:
    """``UnansweredError`` if a batch failed of which the client wants to hear nothing."""
    for (name, data), answer in zip(wanted, answers, strict=True):
        if answer.error_code:
            raise UnansweredError(
                f"acks=0, and the batch for {name}-{data.index} failed with Kafka's error "
                f"{answer.error_code}, so it is lost"
            )


def _is_before(sequence: int, other: int) -> bool:
    """Whether a sequence comes before another one, past the wrap if need be."""
    return 0 < (other - sequence) % (SEQUENCE_MAX + 1) <= SEQUENCE_MAX // 2


def _why_invalid(records: Buffer) -> str:
    """A sentence on a batch that its leader refused without one, "" if it cannot be told here."""
    if not records:
        return _NO_BATCH
    size_bytes = LENGTH_END + _LENGTH.unpack_from(records, LENGTH_AT)[0]
    return _TWO_BATCHES if size_bytes < len(records) else ""


# --- order ------------------------------------------------------------------------------------


class _Line:
    """The batches of one connection for one partition: they leave in the order they came in.

    ``is_open``: the last call was answered, so the next ones leave at once, and arrive in order.
    """

    __slots__ = ("_has_first", "is_open", "sent", "waiting")

    def __init__(self) -> None:
        self.is_open = False
        self.sent: list[int] = []
        """The first sequences of those that are on their way."""
        self.waiting: deque[_Turn] = deque()
        """Those that have not left yet."""
        self._has_first = False

    def take(self) -> _Turn:
        """The last turn in the line, to be used or given up."""
        turn = _Turn(self)
        self.waiting.append(turn)
        return turn

    async def enter(self, turn: _Turn) -> bool:
        """Wait until a batch may leave; whether the others wait until it is answered.

        One that is sent once more has used its turn, and gets another one.
        """
        if turn.is_over:
            turn = self.take()
        if self.waiting[0] is not turn or not self._may_leave:
            turn.called = asyncio.get_running_loop().create_future()
            try:
                await turn.called
            except asyncio.CancelledError:
                turn.give_up()
                raise
        self.waiting.popleft()
        turn.is_over = True
        if self.is_open:
            # The next one leaves right behind this one.
            self.call_next()
            return False
        self._has_first = True
        return True

    def leave(self, *, is_first: bool, is_answered: bool) -> None:
        """The call has come back, or is given up."""
        if is_first:
            self._has_first = False
            self.is_open = is_answered
            self.call_next()
        elif not is_answered:
            self.is_open = False

    @property
    def _may_leave(self) -> bool:
        return self.is_open or not self._has_first

    def call_next(self) -> None:
        """Let the next one leave, if it may and is ready."""
        if self.waiting and self._may_leave and self.waiting[0].called is not None:
            resolve_future(self.waiting[0].called, None)


class _Turn:
    """The place of a batch in a line, from its request's beginning until it leaves."""

    __slots__ = ("called", "is_over", "line")

    def __init__(self, line: _Line) -> None:
        self.line = line
        self.called: asyncio.Future[None] | None = None
        """Set once the batch is ready, and waits for those before it."""
        self.is_over = False

    def give_up(self) -> None:
        """The batch does not leave, unless it has."""
        if not self.is_over:
            self.is_over = True
            self.line.waiting.remove(self)
            self.line.call_next()


def _order(client: Client) -> asyncio.Lock:
    """Has the requests of a connection take their turns in their order."""
    order: asyncio.Lock | None = client.remembered.get(_ORDER)
    if order is None:
        order = client.remembered[_ORDER] = asyncio.Lock()
    return order


def _turn(client: Client, place: Found) -> _Turn | None:
    """The turn of a batch, if there is such a partition: a request may name many that are not."""
    return None if isinstance(place, ErrorCode) else _line(client, place.tp).take()


def _give_up(turns: Iterable[_Turn | None]) -> None:
    for turn in turns:
        if turn is not None:
            turn.give_up()


def _line(client: Client, tp: TopicPartition) -> _Line:
    lines: dict[TopicPartition, _Line] | None = client.remembered.get(_REMEMBERED)
    if lines is None:
        lines = client.remembered[_REMEMBERED] = {}
    line = lines.get(tp)
    if line is None:
        if len(lines) >= LINES_MAX:
            busy = {one: known for one, known in lines.items() if known.sent or known.waiting}
            lines.clear()
            lines |= busy
        line = lines[tp] = _Line()
    return line
