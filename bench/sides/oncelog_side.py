"""The two sides of ``bench/kafka.py`` as seen by its workloads, and oncelog's own."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

import oncelog
from clusters.servers import CPUS, OncelogNodes, OncelogServer, min_insync_of, patient_admin
from oncelog.actors.config import FlushPolicy

LINGER_MS: Final = 5
BATCH_BYTES: Final = 262_144
BUFFER_BYTES: Final = 268_435_456
POLL_RECORDS: Final = 500
POLL_ROWS: Final = 20_000
TIMEOUT_S: Final = 60.0


class Side(Protocol):
    """A cluster with its fastest client for Python, doing what the workloads ask."""

    @property
    def process_id(self) -> int:
        """Of the server, whose family is measured; of the first, if there are several."""
        ...

    def start(self) -> None:
        """Start an empty cluster and connect to it."""

    def stop(self) -> None:
        """Disconnect and stop it."""

    def disconnect(self) -> None:
        """Leave the cluster alone."""

    def first_record_s(self) -> float:
        """Seconds from no cluster at all to the first acknowledged record; stops it again."""
        ...

    def create_topic(self, name: str, partitions: int) -> None:
        """Make a topic, and wait until all its partitions can be written."""

    def transactions(self, topic: str, producers: int, seconds: float) -> int:
        """Transactions of one record each that so many producers commit in that time."""
        ...

    def open_transactional(self, topic: str) -> None:
        """Make the producer of ``transact``."""

    def transact(self) -> None:
        """One transaction of one record."""

    def open_pair(self, topic: str) -> None:
        """Make the producer of ``send_one`` and the consumer of ``wait_one``."""

    def send_one(self) -> None:
        """Hand over one record, at once."""

    def wait_one(self) -> int:
        """Wait for records as a consumer does; how many came."""
        ...

    def open_sender(self) -> None:
        """Make the producer of ``send`` and ``send_table``."""

    def send(self, topic: str, values: list[bytes]) -> None:
        """Send record by record and wait until all are acknowledged."""

    def send_table(self, topic: str, table: pa.Table) -> None:
        """Send a table's rows and wait until all are acknowledged."""

    def open_reader(self, topic: str, partitions: int) -> None:
        """Make a consumer at the beginning of all partitions, for the next two."""

    def read(self, limit: int) -> int:
        """Poll at most ``limit`` records and look at each value; how many there were."""
        ...

    def read_table(self, limit: int) -> int:
        """Poll at most ``limit`` records and have the values in a table; how many rows it has."""
        ...


class OncelogSide:
    """oncelog; with ``flush="os"`` it acknowledges before data is on disk, as Kafka does.

    With several brokers each topic has a copy on each.
    """

    def __init__(self, directory: Path, *, flush: FlushPolicy, brokers: int = 1) -> None:
        self._directory = directory
        self._flush = flush
        self._brokers = brokers
        self._server: OncelogServer | OncelogNodes = (
            OncelogServer(directory) if brokers == 1 else OncelogNodes(directory, brokers)
        )
        self._cluster: Any = None

    @property
    def process_id(self) -> int:
        """Of the process behind ``oncelog start``."""
        return self._server.process.pid

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return self._server.address()

    def start(self) -> None:
        """See ``Side``."""
        self._server.start()
        self._cluster = oncelog.connect(self._server.address())
        if isinstance(self._server, OncelogNodes):
            self._server.settle(self._cluster)

    def stop(self) -> None:
        """See ``Side``."""
        self.disconnect()
        self._server.stop()

    def disconnect(self) -> None:
        """See ``Side``."""
        import ray

        if self._cluster is not None:
            self._cluster.close()
            ray.shutdown()
        self._cluster = None

    def first_record_s(self) -> float:
        """See ``Side``; as a program does it that starts the cluster itself."""
        import ray

        started = time.perf_counter()
        cluster = oncelog.init(self._directory / "data", num_cpus=CPUS)
        try:
            cluster.admin().create_topic("first", flush=self._flush)
            with cluster.producer(linger_ms=0) as producer:
                producer.send("first", b"record").result(TIMEOUT_S)
                return time.perf_counter() - started
        finally:
            cluster.shutdown()
            ray.shutdown()

    def create_topic(self, name: str, partitions: int) -> None:
        """See ``Side``."""
        patient_admin(self._cluster).create_topic(
            name,
            partitions=partitions,
            replication_factor=self._brokers,
            min_insync_replicas=min_insync_of(self._brokers),
            flush=self._flush,
        )

    def delete_topic(self, name: str) -> None:
        """Have a topic and its records deleted."""
        self._cluster.admin().delete_topic(name)

    def transactions(self, topic: str, producers: int, seconds: float) -> int:
        """See ``Side``; all on one event loop."""
        return asyncio.run(self._transactions(topic, producers, seconds))

    async def _transactions(self, topic: str, count: int, seconds: float) -> int:
        producers = [
            self._cluster.async_producer(transactional_id=f"many-{number}")
            for number in range(count)
        ]
        await asyncio.gather(*(producer.init_transactions() for producer in producers))
        until, done = time.perf_counter() + seconds, 0

        async def transact(producer: Any) -> None:
            nonlocal done
            while time.perf_counter() < until:
                await producer.begin_transaction()
                await producer.send(topic, b"v" * 100)
                await producer.commit_transaction()
                done += 1

        await asyncio.gather(*(transact(producer) for producer in producers))
        for producer in producers:
            await producer.close()
        return done

    def open_transactional(self, topic: str) -> None:
        """See ``Side``."""
        self._topic = topic
        self._transactional = self._cluster.producer(transactional_id="paced")
        self._transactional.init_transactions()

    def transact(self) -> None:
        """See ``Side``."""
        self._transactional.begin_transaction()
        self._transactional.send(self._topic, b"v" * 100)
        self._transactional.commit_transaction()

    def open_pair(self, topic: str) -> None:
        """See ``Side``."""
        self._topic = topic
        self._producer = self._cluster.producer(linger_ms=0)
        self._consumer = self._cluster.consumer()
        self._consumer.assign([oncelog.TopicPartition(topic, 0)])
        self._consumer.seek_to_end()
        self._consumer.positions()

    def send_one(self) -> None:
        """See ``Side``."""
        self._producer.send(self._topic, b"v" * 100, partition=0)

    def wait_one(self) -> int:
        """See ``Side``."""
        return len(self._consumer.poll(1_000))

    def open_sender(self) -> None:
        """See ``Side``."""
        self._sender = self._cluster.producer(
            linger_ms=LINGER_MS, batch_size=BATCH_BYTES, buffer_memory=BUFFER_BYTES
        )

    def send(self, topic: str, values: list[bytes]) -> None:
        """See ``Side``."""
        send = self._sender.send
        for value in values:
            send(topic, value)
        self._sender.flush()

    def send_table(self, topic: str, table: pa.Table) -> None:
        """See ``Side``."""
        sent = self._sender.send_arrow(topic, table)
        self._sender.flush()
        sent.result(TIMEOUT_S)

    def open_reader(self, topic: str, partitions: int) -> None:
        """See ``Side``."""
        self._reader = self._cluster.consumer()
        self._reader.assign([oncelog.TopicPartition(topic, n) for n in range(partitions)])
        self._reader.seek_to_beginning()

    def read(self, limit: int) -> int:
        """See ``Side``."""
        records = self._reader.poll(1_000, min(POLL_RECORDS, limit))
        for record in records:
            _ = record.value
        return len(records)

    def read_table(self, limit: int) -> int:
        """See ``Side``."""
        return int(self._reader.poll_arrow(1_000, min(POLL_ROWS, limit)).num_rows)
