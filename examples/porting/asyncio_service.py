"""A service on asyncio, ported from aiokafka: it answers each request with one reply."""

from __future__ import annotations

import asyncio

import oncelog


async def serve(cluster: oncelog.Cluster, requests: str, replies: str, *, count: int) -> None:
    """Answer ``count`` requests, each in a transaction of its own, then end."""
    consumer = cluster.async_consumer(
        group_id="service", auto_offset_reset="earliest", enable_auto_commit=False
    )
    producer = cluster.async_producer(transactional_id="service-1")
    async with consumer, producer:
        await consumer.subscribe([requests])
        await producer.init_transactions()
        async for request in consumer:
            async with producer.transaction():
                answer = await _answer(request.value or b"")
                await producer.send(replies, key=request.key, value=answer)
                await producer.send_offsets_to_transaction(
                    {request.topic_partition: request.offset + 1}, consumer.group_metadata()
                )
            count -= 1
            if not count:
                return


async def _answer(value: bytes) -> bytes:
    """What the service is there for: here it reads the request backwards."""
    await asyncio.sleep(0)
    return value[::-1]
