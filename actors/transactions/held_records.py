"""Asks partition leaders how many records they hold of open transactions.

The end of a distributed write names its winners and their counts; before it is decided the
leaders must agree. An incomplete answer decides nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from oncelog.actors.coordination.cluster_view import ANY_AGE_MS, ClusterView
from oncelog.actors.interfaces import Transport
from oncelog.actors.process.clock import backoff_ms, loop_ms
from oncelog.actors.protocol.messages.partition import DescribeProducersRequest, ProducerDescription
from oncelog.actors.protocol.transaction.members import HeldRecords
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition


class HeldRecordsReader:
    """Collects what the leaders hold, one call per partition, all at once."""

    def __init__(
        self,
        *,
        transport: Transport,
        cluster: ClusterView,
        rng: random.Random,
        call_timeout_ms: int,
    ) -> None:
        self._transport = transport
        self._cluster = cluster
        self._rng = rng
        self._call_timeout_ms = call_timeout_ms

    async def read(
        self, partitions: Sequence[TopicPartition], producer_ids: Sequence[int]
    ) -> HeldRecords | None:
        """What ``partitions`` hold of ``producer_ids``; ``None`` if one did not answer in time."""
        deadline_ms = loop_ms() + self._call_timeout_ms
        answers = await asyncio.gather(
            *(self._ask(tp, tuple(producer_ids), deadline_ms) for tp in partitions)
        )
        counts: dict[tuple[int, int, TopicPartition], int] = {}
        for tp, producers in zip(partitions, answers, strict=True):
            if producers is None:
                return None
            for producer in producers:
                key = (producer.producer_id, producer.producer_epoch, tp)
                counts[key] = producer.open_record_count
        return HeldRecords(answered=frozenset(partitions), counts=counts)

    async def _ask(
        self, tp: TopicPartition, producer_ids: tuple[int, ...], deadline_ms: int
    ) -> tuple[ProducerDescription, ...] | None:
        """The producers of one partition; none when it is gone, ``None`` when time is over."""
        request = DescribeProducersRequest(topic_partition=tp, producer_ids=producer_ids)
        attempt = 0
        while (remaining_ms := deadline_ms - loop_ms()) > 0:
            as_of_ms = loop_ms() if attempt else ANY_AGE_MS
            location = await self._cluster.locate(tp, as_of_ms=as_of_ms)
            if location.is_gone:
                return ()
            if location.actor is not None:
                reply = await self._transport.call(location.actor, request, timeout_ms=remaining_ms)
                if reply.error is ErrorCode.NONE:
                    return reply.producers
            await asyncio.sleep(backoff_ms(attempt, self._rng) / 1000)
            attempt += 1
        return None
