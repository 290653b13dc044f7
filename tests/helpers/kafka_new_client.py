"""A client of transactions' version 2, as Java's producer is, at any of several gateways."""

from __future__ import annotations

from typing import Any

from kafka_transactions import FLIGHTS, GROUP, NAME, TIMEOUT_MS, Gateway, Kafka

from oncelog.actors.gateway.calls import Call
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.end_txn import EndTxnRequest
from oncelog.actors.gateway.messages.init_producer_id import InitProducerIdRequest
from oncelog.actors.gateway.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.codec import encode_records

FENCED = int(ErrorCode.PRODUCER_FENCED)
ABORTABLE = int(ErrorCode.TRANSACTION_ABORTABLE)
NOT_ALLOWED = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


class NewClient:
    """What a Java producer of version 2 sends; of which gateway is said each time."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.pid, self.epoch = -1, -1
        self.sequences: dict[TopicPartition, int] = {}

    def at(self, epoch: int) -> NewClient:
        """A late message of this producer, of another epoch."""
        copy = NewClient(self.kafka)
        copy.pid, copy.epoch = self.pid, epoch
        return copy

    async def init(self, gateway: Gateway, call: Call | None = None, **fields: Any) -> Any:
        request = InitProducerIdRequest(
            **{"transactional_id": NAME, "transaction_timeout_ms": TIMEOUT_MS, **fields}
        )
        call = call or gateway.call(5)
        response = await gateway.transactions.init_producer_id(call, request)
        if response.error_code == 0:
            self.take(response)
        return response

    def take(self, response: Any) -> None:
        self.pid, self.epoch = response.producer_id, response.producer_epoch
        self.sequences.clear()

    async def ticket(self, gateway: Gateway, tp: TopicPartition = FLIGHTS) -> Any:
        return await gateway.enrolments.ticket(gateway.call(12), NAME, self.pid, self.epoch, tp)

    async def send(
        self, gateway: Gateway, tp: TopicPartition = FLIGHTS, ticket: bytes = b""
    ) -> ErrorCode:
        """Send a record as ``produce.py`` does, with a ticket of the gateway or the given one."""
        if not ticket:
            error, ticket = await self.ticket(gateway, tp)
            if error is not ErrorCode.NONE:
                return ErrorCode(error)
        sequence = self.sequences.get(tp, 0)
        batch = encode_records(
            [(None, b"value", self.kafka.world.now_ms(), ())],
            producer_id=self.pid,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        reply = await self.kafka.leaders[tp].produce(
            ProduceRequest(
                topic_partition=tp, batch=bytes(batch), transactional_id=NAME, ticket=ticket
            )
        )
        if reply.error is ErrorCode.NONE:
            self.sequences[tp] = sequence + 1
        return ErrorCode(reply.error)

    async def commit_offsets(
        self,
        gateway: Gateway,
        offset: int,
        *,
        topics: tuple[str, ...] = ("flights",),
        metadata: str | None = None,
        call: Call | None = None,
        **fields: Any,
    ) -> list[int]:
        """Kafka's code of each partition."""
        position = TxnOffsetCommitRequestPartition(
            committed_offset=offset, committed_metadata=metadata
        )
        request = TxnOffsetCommitRequest(
            transactional_id=NAME,
            group_id=GROUP,
            producer_id=self.pid,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(name=name, partitions=[position]) for name in topics
            ],
            **fields,
        )
        handle = gateway.handlers[ApiKey.TXN_OFFSET_COMMIT]
        response = await handle(call or gateway.call(5), request)
        assert [topic.name for topic in response.topics] == list(topics)
        return [one.error_code for topic in response.topics for one in topic.partitions]

    async def end(
        self, gateway: Gateway, *, committed: bool = True, call: Call | None = None
    ) -> int:
        request = EndTxnRequest(
            transactional_id=NAME,
            producer_id=self.pid,
            producer_epoch=self.epoch,
            committed=committed,
        )
        response = await gateway.handlers[ApiKey.END_TXN](call or gateway.call(5), request)
        if response.error_code == 0:
            self.take(response)
        else:
            assert (response.producer_id, response.producer_epoch) == (-1, -1)
        return int(response.error_code)


async def new_client(kafka: Kafka, gateway: Gateway, **fields: Any) -> NewClient:
    producer = NewClient(kafka)
    response = await producer.init(gateway, **fields)
    assert response.error_code == 0
    return producer
