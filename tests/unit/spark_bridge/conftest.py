"""A cluster of one partition behind ``Transport``."""

from __future__ import annotations

import asyncio

import pytest
from pyspark.sql.types import StructType

from oncelog.actors.protocol.cluster_messages import (
    MetadataReply,
    MetadataRequest,
    PartitionMetadata,
    TopicMetadata,
)
from oncelog.actors.protocol.messages import FetchReply, FetchRequest
from oncelog.api.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.record_batch import parse_header, patch
from oncelog.storage.record_codec import encode_records


class OnePartition:
    """Topic ``t`` with partition 0, in memory. ``is_silent``: fetches find nothing, for ever."""

    def __init__(self):
        self.batches = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.is_silent = False

    def append(self, *values):
        batch = encode_records([(None, value, 1_000, ()) for value in values])
        patch(batch, base_offset=self.log_end_offset, leader_epoch=0)
        self.log_end_offset += len(values)
        self.batches.append(bytes(batch))

    def router(self):
        return Router(self, clock=None)

    async def call(self, actor, request, *, timeout_ms):
        await asyncio.sleep(0)
        return self._metadata() if isinstance(request, MetadataRequest) else self._fetch(request)

    def _metadata(self):
        partition = PartitionMetadata(
            partition=0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,)
        )
        return MetadataReply(
            topics=(TopicMetadata(name="t", topic_id="0" * 32, partitions=(partition,)),)
        )

    def _fetch(self, request: FetchRequest):
        if request.fetch_offset < self.log_start_offset:
            return request.failed(ErrorCode.OFFSET_OUT_OF_RANGE)
        found = [
            batch
            for batch in self.batches
            if parse_header(batch).next_offset > request.fetch_offset
        ]
        if not found or self.is_silent:
            return request.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return FetchReply(
            high_watermark=self.log_end_offset,
            last_stable_offset=self.log_end_offset,
            log_start_offset=self.log_start_offset,
            records=found[0],
            aborted_transactions=(),
        )


def new_struct(**columns):
    """A schema from names to types, which are Spark's own or the names of simple ones."""
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, kind)
    return schema


@pytest.fixture
def struct():
    """Makes a schema."""
    return new_struct


@pytest.fixture
def one_partition():
    """A partition in memory."""
    return OnePartition()
