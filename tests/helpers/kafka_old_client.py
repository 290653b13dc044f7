"""A client of transactions' version 1, whose requests may come late and on any connection."""

from __future__ import annotations

from typing import Any

from kafka_transactions import FLIGHTS, GROUP, NAME, TIMEOUT_MS, Gateway, Kafka
from virtual_time import START_MS

from oncelog.actors.gateway.calls import Client
from oncelog.actors.gateway.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from oncelog.actors.gateway.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.end_txn import EndTxnRequest
from oncelog.actors.gateway.messages.init_producer_id import InitProducerIdRequest
from oncelog.actors.gateway.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from oncelog.actors.gateway.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.actors.protocol.access import Principal
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.codec import encode_records

LIBRDKAFKA = "librdkafka 1.9.2"
"""It keeps its pair when it aborts; later ones do not."""
AGAIN = int(ErrorCode.NOT_ENOUGH_REPLICAS)
"""To a batch: send it again."""
LOADING = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
"""To positions: send them again."""


def connection(gateway: Gateway, who: str = "User:ANONYMOUS") -> Client:
    """A new one, whose client has asked for the versions and got them."""
    return Client(
        principal=Principal(who), host="h", name=LIBRDKAFKA, place=gateway.cluster.order.take()
    )


class OldClient:
    """What librdkafka sends, by the gateway and on the connection that a test gives it last.

    It repeats what is to be sent again, unless it ``is_late``: then it is only what is left of one.
    """

    def __init__(self, kafka: Kafka, gateway: Gateway) -> None:
        self.kafka = kafka
        self.is_late = False
        self.pid, self.epoch = -1, -1
        self.sequences: dict[TopicPartition, int] = {}
        self.connect(gateway)

    def connect(self, gateway: Gateway | None = None) -> None:
        """Give up the connection for a new one."""
        self.gateway = gateway or self.gateway
        self.client = connection(self.gateway)

    def late(self, **changes: Any) -> OldClient:
        """What it has sent until now, on the connection that it has now."""
        copy = OldClient.__new__(OldClient)
        copied = {**self.__dict__, "sequences": dict(self.sequences), "is_late": True}
        copy.__dict__ |= {**copied, **changes}
        return copy

    async def _ask(self, api: ApiKey, version: int, request: Any) -> Any:
        call = self.gateway.call(version, self.client)
        if api in self.gateway.records.handlers:
            return await self.gateway.records.handlers[api](call, request)
        return await self.gateway.handlers[api](call, request)

    async def init(self, *, again: bool = False, version: int = 4) -> int:
        pair = {"producer_id": self.pid, "producer_epoch": self.epoch} if again else {}
        request = InitProducerIdRequest(
            transactional_id=NAME, transaction_timeout_ms=TIMEOUT_MS, **pair
        )
        response = await self._ask(ApiKey.INIT_PRODUCER_ID, version, request)
        if response.error_code == 0:
            self.pid, self.epoch = response.producer_id, response.producer_epoch
            self.sequences.clear()
        return int(response.error_code)

    async def add(self, *topics: str, version: int = 3) -> list[int]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=NAME,
            v3_and_below_producer_id=self.pid,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name, [0]) for name in topics],
        )
        response = await self._ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
        return [
            one.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        ]

    async def send(
        self,
        tp: TopicPartition = FLIGHTS,
        *values: bytes,
        sequence: int | None = None,
        gateway: Gateway | None = None,
    ) -> int:
        """Send a batch, on a connection of its own; the next sequence is that after it."""
        first = self.sequences.get(tp, 0) if sequence is None else sequence
        values = values or (b"value",)
        batch = encode_records(
            [(None, value, START_MS, ()) for value in values],
            producer_id=self.pid,
            producer_epoch=self.epoch,
            base_sequence=first,
            is_transactional=True,
        )
        through = gateway or self.gateway
        code = await self._send(through, tp, batch)
        if code == AGAIN and not self.is_late:
            code = await self._send(through, tp, batch)
        if code == 0:
            self.sequences[tp] = first + len(values)
        return code

    async def _send(self, through: Gateway, tp: TopicPartition, batch: bytes | bytearray) -> int:
        data = [PartitionProduceData(index=0, records=memoryview(bytearray(batch)))]
        request = ProduceRequest(
            transactional_id=NAME,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[TopicProduceData(name=tp.topic, partition_data=data)],
        )
        call = through.call(10, self.client)
        response = await through.records.handlers[ApiKey.PRODUCE](call, request)
        ((answer,),) = [one.partition_responses for one in response.responses]
        return int(answer.error_code)

    async def end(self, *, committed: bool = True, version: int = 3) -> int:
        request = EndTxnRequest(NAME, self.pid, self.epoch, committed)
        return int((await self._ask(ApiKey.END_TXN, version, request)).error_code)

    async def transact(self, *tps: TopicPartition, committed: bool = True) -> None:
        """A whole transaction of one batch for each partition."""
        assert await self.add(*(tp.topic for tp in tps)) == [0] * len(tps)
        for tp in tps:
            assert await self.send(tp) == 0
        assert await self.end(committed=committed) == 0

    async def add_offsets(self) -> int:
        request = AddOffsetsToTxnRequest(NAME, self.pid, self.epoch, GROUP)
        response = await self._ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, request)
        return int(response.error_code)

    async def commit(
        self,
        offset: int,
        *,
        client: Client | None = None,
        version: int = 3,
        topic: str = "flights",
    ) -> int:
        """Positions go on a connection to the group's coordinator."""
        position = TxnOffsetCommitRequestPartition(committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=NAME,
            group_id=GROUP,
            producer_id=self.pid,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[position])],
        )
        call = self.gateway.call(version, client or self.client)
        response = await self.gateway.handlers[ApiKey.TXN_OFFSET_COMMIT](call, request)
        ((found,),) = [topic.partitions for topic in response.topics]
        return int(found.error_code)


async def begun(kafka: Kafka, gateway: Gateway | None = None) -> OldClient:
    """A client that has its pair, on a connection that knows the coordinator's epoch."""
    client = OldClient(kafka, gateway or kafka.gateway())
    assert await client.init() == 0
    client.connect()
    return client


def internal(kafka: Kafka) -> tuple[int, int]:
    metadata = kafka.coordinator.machine.ids.metadata(NAME)
    assert metadata is not None
    return metadata.producer_id, metadata.producer_epoch
