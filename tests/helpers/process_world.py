"""A log, a group and clients in memory, for the loop of one worker."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pyarrow as pa
from deadlines import DEADLINE_S

from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.actors.rpc.call_meter import NO_REPORTS
from oncelog.api.consuming.consumer import as_committed
from oncelog.api.consuming.record_table import RECORD_SCHEMA
from oncelog.api.processing.loop import Clients, ProcessLoop
from oncelog.api.processing.messages import ProcessConfig
from oncelog.api.records import ConsumerGroupMetadata, ConsumerRecord
from oncelog.storage.exceptions import IllegalGenerationError, MessageTooLargeError
from oncelog.storage.model import TopicPartition

TP = TopicPartition("in", 0)
DEAD_LETTERS = "dead"


class ProcessWorld:
    """The log and the group behind the fake clients, and errors to raise: method → exceptions.

    ``lost`` are raised after the call had its effect. The stop event is set when a poll finds
    nothing and nothing is open.
    """

    def __init__(self, values, *, per_poll=2):
        self.values = list(values)
        self.per_poll = per_poll
        self.sink = []
        self.dead_letters = []
        self.too_large = ()
        """Values that no topic takes."""
        self.headers = ()
        self.committed = {}
        self.metadata = {}
        self.errors = {}
        self.lost = {}
        self.calls = []
        self.group = ConsumerGroupMetadata(group_id="g", generation_id=1, member_id="m")
        self.stop = threading.Event()
        self.idle_polls_left = 1
        self.time_ms = 0
        self.connects = 0
        self.before_poll = lambda: None
        self.reset = lambda: 0
        self.reports = NO_REPORTS

    def now_ms(self):
        return self.time_ms

    def connect(self, producer_settings, consumer_settings):
        self.connects += 1
        self.note("connect")
        return Clients(FakeProducer(self), FakeConsumer(self))

    def note(self, method):
        self.calls.append(method)
        if self.errors.get(method):
            raise self.errors[method].pop(0)

    def note_end(self, method):
        if self.lost.get(method):
            raise self.lost[method].pop(0)

    def run(self, function=lambda batch: batch.select(["key", "value"]), **settings):
        settings.setdefault("commit_interval_ms", 0)
        config = ProcessConfig(
            source="in",
            sink="out",
            group_id="g",
            worker_index=1,
            function=function,
            **settings,
        )
        loop = ProcessLoop(config, self.connect, clock=self, stop=self.stop, reports=self.reports)
        thread = threading.Thread(target=loop.run, daemon=True)
        thread.start()
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the loop does not end"
        return loop.progress


class FakeConsumer:
    def __init__(self, world):
        self.world = world
        self.offset = None

    def subscribe(self, topics):
        self.world.note("subscribe")

    def group_metadata(self):
        return self.world.group

    def assignment(self):
        return {TP}

    @contextmanager
    def processing(self, timeout_ms):
        self.world.note("processing")
        yield

    def positions(self):
        return {} if self.offset is None else {TP: self.offset}

    def committed(self, partition):
        self.world.note("committed")
        return self.world.committed.get(partition)

    def committed_with_metadata(self, partition):
        if partition not in self.world.committed:
            return None
        return OffsetAndMetadata(
            offset=self.world.committed[partition], metadata=self.world.metadata.get(partition, "")
        )

    def seek(self, partition, offset):
        self.offset = offset

    def close(self):
        self.world.note("close consumer")

    def poll(self, timeout_ms, max_records):
        world = self.world
        world.before_poll()
        world.note("poll")
        if self.offset is None:
            self.offset = world.committed.get(TP, world.reset())
        taken = world.values[self.offset : self.offset + min(world.per_poll, max_records)]
        records = [
            ConsumerRecord("in", 0, self.offset + place, 1_000, b"k", value, world.headers)
            for place, value in enumerate(taken)
        ]
        self.offset += len(taken)
        world.time_ms += int(timeout_ms) if not taken else 1
        if not taken:
            world.idle_polls_left -= 1
            if world.idle_polls_left <= 0:
                world.stop.set()
        return records

    def poll_arrow(self, timeout_ms, max_records):
        records = self.poll(timeout_ms, max_records)
        return pa.table(
            {
                "topic": pa.array([r.topic for r in records], pa.string()),
                "partition": pa.array([r.partition for r in records], pa.int32()),
                "offset": pa.array([r.offset for r in records], pa.int64()),
                "timestamp": pa.array([r.timestamp_ms for r in records], pa.timestamp("ms", "UTC")),
                "key": pa.array([r.key for r in records], pa.binary()),
                "value": pa.array([r.value for r in records], pa.binary()),
                "headers": pa.array(
                    [[{"key": k, "value": v} for k, v in r.headers] for r in records],
                    RECORD_SCHEMA.field("headers").type,
                ),
            }
        )


class FakeProducer:
    def __init__(self, world):
        self.world = world
        self.pending = None
        self.dead_letters = []
        self.offsets = {}

    def init_transactions(self):
        self.world.note("init_transactions")

    def begin_transaction(self):
        self.world.note("begin")
        assert self.pending is None
        self.pending, self.dead_letters, self.offsets = [], [], {}

    def send(self, topic, *, value, key, timestamp_ms, headers=()):
        self.world.note("send")
        self.check_size([value])
        if topic == DEAD_LETTERS:
            self.dead_letters.append((key, value, headers))
        else:
            self.pending.append((key, value))

    def check_size(self, values):
        if large := [value for value in values if value in self.world.too_large]:
            raise MessageTooLargeError(f"too large: {large[0]}")

    def send_arrow(self, topic, table):
        self.world.note("send")
        assert topic == "out"
        self.check_size(table["value"].to_pylist())
        self.pending += zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)

    def send_offsets_to_transaction(self, offsets, group):
        self.world.note("send_offsets")
        if group != self.world.group:
            raise IllegalGenerationError
        self.offsets = dict(offsets)

    def commit_transaction(self):
        self.world.note("commit")
        if self.pending is not None:
            self.world.sink += self.pending
            self.world.dead_letters += self.dead_letters
            for partition, offset in self.offsets.items():
                position = as_committed(offset)
                self.world.committed[partition] = position.offset
                self.world.metadata[partition] = position.metadata
        self.pending = None
        self.world.note_end("commit")

    def abort_transaction(self):
        self.world.note("abort")
        self.pending = None

    def close(self, timeout_ms=None):
        self.world.note("close producer")


def consumers_of(world):
    """The consumers that the world will give out, as they are made."""
    consumers, connect = [], world.connect

    def remember(*settings):
        clients = connect(*settings)
        consumers.append(clients.consumer)
        return clients

    world.connect = remember
    return consumers


def sunk(world):
    return [value for _, value in world.sink]


VALUES = [str(number).encode() for number in range(5)]
