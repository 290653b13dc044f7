"""Topics in memory behind ``Transport``, and connections to them; one only notes writes."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace

from topics import topic_of

from oncelog.actors.protocol.messages.cluster import (
    MetadataReply,
)
from oncelog.actors.protocol.messages.group import OffsetCommitReply, OffsetCommitRequest
from oncelog.actors.protocol.messages.partition import (
    ListOffsetsReply,
    ListOffsetsRequest,
)
from oncelog.actors.protocol.messages.transaction import Run, Winner
from oncelog.api.distributing.engine_connection import EngineConnection, PlannedRun
from oncelog.api.distributing.read import unknown_topic
from oncelog.api.producing.member import Membership, RunEnd
from oncelog.api.session.routing import ClientContext, Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import UnknownTopicOrPartitionError
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    TopicPartition,
)


class Topics:
    """Topics in memory, behind ``Transport``: an id, and for each partition a start and an end."""

    def __init__(self):
        self.ids = {}
        self.bounds = {}
        self.times = {}
        """By partition: time in milliseconds → the first offset that is not older."""
        self.committed = []
        self.hidden = set()
        """Topics that the reader may not see."""
        self.is_away = 0
        """How many questions to the controller fail."""

    def make(self, name, *bounds, topic_id=None):
        self.ids[name] = topic_id or f"id of {name}"
        self.bounds.update((TopicPartition(name, at), pair) for at, pair in enumerate(bounds))

    def remove(self, name):
        del self.ids[name]
        self.bounds = {tp: pair for tp, pair in self.bounds.items() if tp.topic != name}

    async def call(self, actor, request, *, timeout_ms):
        await asyncio.sleep(0)
        if isinstance(request, OffsetCommitRequest):
            self.committed.append((request.group_id, dict(request.offsets)))
            return OffsetCommitReply()
        if isinstance(request, ListOffsetsRequest):
            return self._listed(request)
        if self.is_away:
            self.is_away -= 1
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        wanted = self.ids if request.topics is None else self.ids.keys() & set(request.topics)
        wanted = {*wanted, CONSUMER_OFFSETS_TOPIC} - self.hidden
        return MetadataReply(
            topics=tuple(map(self._topic, wanted)),
            refused=tuple(self.hidden.intersection(request.topics or ())),
            offsets_partitions=1,
        )

    def _topic(self, name):
        count = sum(tp.topic == name for tp in self.bounds) or 1
        return topic_of(name, *[1] * count, topic_id=self.ids.get(name, "-"))

    def _listed(self, request):
        start, end = self.bounds[request.topic_partition]
        known = {EARLIEST_TIMESTAMP: start, LATEST_TIMESTAMP: end}
        known |= self.times.get(request.topic_partition, {})
        return ListOffsetsReply(offset=known.get(request.timestamp_ms, -1))


class TimedConnection(EngineConnection):
    """A connection that waits in no time; ``meanwhile`` are called then, one for each wait."""

    def __init__(self, topics, loop_thread):
        self.router = Router(topics, clock=None)
        super().__init__(
            ClientContext(
                router=self.router,
                loop_thread=loop_thread,
                random=Random(1),
                processes=None,
            ),
            driver=lambda processes: None,
        )
        self.clock_ms = 0
        self.meanwhile = []
        self.wait_count = 0

    def now_ms(self):
        return self.clock_ms

    def wait(self, delay_ms):
        self.clock_ms += delay_ms
        self.wait_count += 1
        if self.meanwhile:
            self.meanwhile.pop(0)()


def client_of_user(cluster, loop_thread, login):
    """What ``oncelog.connect`` gives to an engine: a user's connection to a ``FakeCluster``."""
    context = ClientContext(
        router=cluster.router(),
        loop_thread=loop_thread,
        random=Random(1),
        processes=None,
        login=login,
    )
    return SimpleNamespace(context=context, close=lambda: None, identity=login.identity())


def refusing(error):
    """A hook of ``FakeCluster``: servers that answer ``error``, as they do."""
    return lambda request: request.failed(error, f"User:bob may not call {request.method!r}")


class FakeMember:
    """Collects what is sent; its winner counts the rows."""

    def __init__(self, connection):
        self.connection = connection
        self.tables = []
        self.is_flushed = False
        self.is_closed = False
        self.is_asked = False

    def enlist(self):
        self.is_asked = True
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
        self.checked_topics = []
        self.is_committed = False
        self.planned_count = 0
        self.run_number = 0
        self.begun = None

    def check_topic(self, topic):
        self.checked_topics.append(topic)
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

    def member(self, membership, producer_settings):
        self.producer_settings = producer_settings
        self.members.append(FakeMember(self))
        return self.members[-1]

    def end_run(self, membership, *, committed, winners=()):
        if self.end_error:
            raise self.end_error
        self.ends.append((membership, committed, list(winners)))
        return RunEnd(visible=True, was_committed_before=membership.is_committed)
