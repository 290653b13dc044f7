"""A cluster of one partition behind ``Transport``, and a connection that only notes writes."""

from __future__ import annotations

import asyncio

import pytest
from pyspark.sql.types import StructType

from oncelog.actors.protocol.messages.cluster import (
    MetadataReply,
    MetadataRequest,
    PartitionMetadata,
    TopicMetadata,
)
from oncelog.actors.protocol.messages.partition import FetchReply, FetchRequest
from oncelog.actors.protocol.messages.transaction import Run, Winner
from oncelog.api.producing.member import Membership, RunEnd
from oncelog.api.session.routing import Router
from oncelog.spark_bridge.connection import PlannedRun
from oncelog.spark_bridge.offsets import unknown_topic
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import UnknownTopicOrPartitionError
from oncelog.storage.records.batch import parse_header, patch
from oncelog.storage.records.codec import encode_records


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


class FakeMember:
    """Collects what is sent; its winner counts the rows."""

    def __init__(self, connection):
        self.connection = connection
        self.tables = []
        self.is_flushed = False
        self.is_closed = False

    def enlist(self):
        return self.connection.may_enlist

    def send_arrow(self, topic, rows):
        if self.connection.send_error:
            raise self.connection.send_error
        self.tables.append((topic, rows))

    def flush(self):
        self.is_flushed = True

    @property
    def winner(self):
        assert self.is_flushed
        count = sum(rows.num_rows for _, rows in self.tables)
        return Winner(producer_id=len(self.connection.members), record_count=count)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.is_closed = True


class FakeConnection:
    """A cluster with the topic ``t``."""

    def __init__(self):
        self.members = []
        self.ends = []
        self.may_enlist = True
        self.send_error = None
        self.end_error = None
        self.begin_error = None
        self.check_error = None
        self.is_committed = False
        self.planned_count = 0
        self.run_number = 0
        self.begun = None

    def check_topic(self, topic):
        if self.check_error:
            raise self.check_error
        if topic != "t":
            raise UnknownTopicOrPartitionError(unknown_topic(topic, ["t"]))

    def plan_run(self):
        self.planned_count += 1
        return PlannedRun(run_id=f"r{self.planned_count}", driver=None)

    def begin_run(self, options, planned):
        if self.begin_error:
            raise self.begin_error
        self.run_number += self.begun != planned.run_id
        self.begun = planned.run_id
        transactional_id, token = options.identity(planned.run_id)
        return Membership(
            transactional_id=transactional_id,
            run=Run(number=self.run_number, id=planned.run_id),
            token=token,
            is_committed=self.is_committed,
        )

    def member(self, membership, compression_type):
        self.members.append(FakeMember(self))
        return self.members[-1]

    def end_run(self, membership, *, committed, winners=()):
        if self.end_error:
            raise self.end_error
        self.ends.append((membership, committed, list(winners)))
        return RunEnd(visible=True)


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


@pytest.fixture
def fake_connection():
    """A connection that notes what is written."""
    return FakeConnection()
