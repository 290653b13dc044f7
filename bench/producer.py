"""What the producer's client side costs, beside librdkafka's against its own mock broker.

``./run bench producer [--rounds N] [--records N] [--ray]``. Both clients are idempotent with
acks=all, hand over every record first and flush then, and talk to a broker that keeps nothing: ours
to one in this process that checks each batch as a leader does, theirs to the mock broker inside
librdkafka, which has threads of its own and needs no interpreter. ``--ray`` adds a real partition
leader, in its own process and with its disk. Rounds alternate; medians are printed and appended to
``bench/results/producer.jsonl``. Ratios count: the machine is shared and noisy.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import confluent_kafka
import pyarrow as pa

import oncelog
from measuring.report import ROUNDS, Report, alternate, ratio, save
from oncelog.actors.process.clock import SystemClock
from oncelog.actors.protocol.messages.cluster import (
    MetadataReply,
    MetadataRequest,
    PartitionMetadata,
    TopicMetadata,
)
from oncelog.actors.protocol.messages.partition import ProduceReply, ProduceRequest
from oncelog.actors.protocol.messages.transaction import InitProducerIdReply, InitProducerIdRequest
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.producer import Producer
from oncelog.api.session.event_loop import LoopThread
from oncelog.api.session.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    MESSAGE_MAX_BYTES,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from oncelog.storage.records.client_batch import check_client_batch

RESULTS: Final = Path(__file__).resolve().parent / "results" / "producer.jsonl"
TOPIC: Final = "bench"
PARTITIONS: Final = 4
VALUE_BYTES: Final = 100
LINGER_MS: Final = 5
BATCH_BYTES: Final = 262_144
RECORDS: Final = 200_000
KEYS: Final = 1_000

Side = Callable[[], float]


class MemoryCluster:
    """``Transport`` to partitions in this process that check what they get and keep nothing."""

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, int] = {}
        self._producer_id = 0

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:  # noqa: ARG002
        """Answer as a leader, a coordinator or the controller would."""
        await asyncio.sleep(0)
        if isinstance(request, ProduceRequest):
            return self._produce(request)
        if isinstance(request, InitProducerIdRequest):
            self._producer_id += 1
            return InitProducerIdReply(producer_id=self._producer_id, producer_epoch=0)
        if isinstance(request, MetadataRequest):
            return _metadata()
        return request.failed(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _produce(self, request: ProduceRequest) -> ProduceReply:
        header = check_client_batch(request.batch, message_max_bytes=MESSAGE_MAX_BYTES)
        if isinstance(header, ErrorCode):
            return request.failed(header)
        end = self._ends.get(request.topic_partition, 0)
        self._ends[request.topic_partition] = end + header.record_count
        return ProduceReply(base_offset=end)


def _metadata() -> MetadataReply:
    counts = {CONSUMER_OFFSETS_TOPIC: 2, TRANSACTION_STATE_TOPIC: 2, TOPIC: PARTITIONS}
    return MetadataReply(
        topics=tuple(
            TopicMetadata(
                name=name,
                topic_id="0" * 32,
                partitions=tuple(
                    PartitionMetadata(
                        partition=number, leader=1, leader_epoch=0, replicas=(1,), isr=(1,)
                    )
                    for number in range(count)
                ),
            )
            for name, count in counts.items()
        ),
        transaction_state_partitions=2,
        offsets_partitions=2,
    )


# --- the two sides ----------------------------------------------------------------------------


@contextmanager
def memory_producer(buffer_bytes: int) -> Iterator[Producer]:
    """Our producer before the partitions of this process."""
    settings = ProducerSettings(
        linger_ms=LINGER_MS, batch_size=BATCH_BYTES, buffer_memory=buffer_bytes
    )
    loop_thread = LoopThread()
    router = Router(MemoryCluster(), SystemClock())
    with Producer(router, loop_thread, settings, random=Random(1)) as producer:
        yield producer
    loop_thread.close()


def their_producer(records: int) -> confluent_kafka.Producer:
    """A producer of librdkafka before its mock broker."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": "mock",
            "test.mock.num.brokers": 1,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 2 * records,
            "queue.buffering.max.kbytes": 1_048_576,
            "log_level": 0,
        }
    )
    producer.produce(TOPIC, b"warm")
    producer.flush()
    return producer


def send_records(producer: Producer, values: list[bytes], keys: list[bytes] | None) -> Side:
    """One ``send`` per record, then a flush; the futures are dropped, as their side has none."""

    def run() -> float:
        started = time.perf_counter()
        send = producer.send
        if keys is None:
            for value in values:
                send(TOPIC, value)
        else:
            for value, key in zip(values, keys, strict=True):
                send(TOPIC, value, key)
        last = send(TOPIC, b"last")
        producer.flush()
        seconds = time.perf_counter() - started
        last.result(0)
        return seconds

    return run


def send_table(producer: Producer, table: pa.Table) -> Side:
    """The same records as one table."""

    def run() -> float:
        started = time.perf_counter()
        future = producer.send_arrow(TOPIC, table)
        producer.flush()
        seconds = time.perf_counter() - started
        future.result(0)
        return seconds

    return run


def produce_records(
    producer: confluent_kafka.Producer, values: list[bytes], keys: list[bytes] | None
) -> Side:
    """One ``produce`` per record, then a flush, without a callback."""

    def run() -> float:
        started = time.perf_counter()
        produce = producer.produce
        if keys is None:
            for value in values:
                produce(TOPIC, value)
        else:
            for value, key in zip(values, keys, strict=True):
                produce(TOPIC, value, key)
        left = producer.flush()
        seconds = time.perf_counter() - started
        if left:
            raise SystemExit(f"librdkafka did not deliver {left} records: nothing to compare")
        return seconds

    return run


# --- measuring --------------------------------------------------------------------------------


def compare(report: Report, producer: Producer, records: int, place: str) -> None:
    """Rounds of all sides in turn; figures and targets go to the report."""
    values = [b"%0*d" % (VALUE_BYTES, number) for number in range(records)]
    keys = [b"key-%d" % (number % KEYS) for number in range(records)]
    theirs = their_producer(records)
    sides = {
        "send": send_records(producer, values, None),
        "send with keys": send_records(producer, values, keys),
        "send_arrow": send_table(producer, pa.table({"value": pa.array(values, pa.binary())})),
        "produce (librdkafka)": produce_records(theirs, values, None),
        "produce with keys (librdkafka)": produce_records(theirs, values, keys),
    }
    alternate(1, *sides.values())
    taken = dict(zip(sides, alternate(report.rounds, *sides.values()), strict=True))
    for name, seconds in taken.items():
        per_record_ns = 1e9 * sorted(seconds)[len(seconds) // 2] / records
        report.figure(
            f"{place}: {name}, ns per record",
            per_record_ns,
            f"{per_record_ns:8.0f} ns/record  {1e3 / per_record_ns:8.2f} million records/s",
        )
    plain, keyed = taken["produce (librdkafka)"], taken["produce with keys (librdkafka)"]
    report.target(f"{place}: send / produce", ratio(plain, taken["send"]), 1)
    report.target(f"{place}: send with keys / produce", ratio(keyed, taken["send with keys"]), 1)
    report.target(f"{place}: send_arrow / produce", ratio(plain, taken["send_arrow"]), 3)


def main() -> None:
    """Run, print and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2 * ROUNDS + 1)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--ray", action="store_true", help="also before a real leader")
    arguments = parser.parse_args()
    report = Report(max(ROUNDS, arguments.rounds))
    buffer_bytes = 4 * arguments.records * VALUE_BYTES
    with memory_producer(buffer_bytes) as producer:
        compare(report, producer, arguments.records, "memory")
    if arguments.ray:
        with tempfile.TemporaryDirectory() as directory:
            cluster = oncelog.init(directory, num_cpus=2)
            try:
                cluster.admin().create_topic(TOPIC, partitions=PARTITIONS)
                with cluster.producer(
                    linger_ms=LINGER_MS, batch_size=BATCH_BYTES, buffer_memory=buffer_bytes
                ) as producer:
                    compare(report, producer, arguments.records, "leader")
            finally:
                cluster.shutdown()
    save(RESULTS, "producer", report)


if __name__ == "__main__":
    main()
