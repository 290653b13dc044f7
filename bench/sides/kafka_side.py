"""Kafka with librdkafka's client for Python, for ``bench/kafka.py``."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from clusters.kafka_broker import KafkaCluster
from clusters.servers import min_insync_of
from sides.oncelog_side import BATCH_BYTES, BUFFER_BYTES, LINGER_MS, POLL_RECORDS, TIMEOUT_S

QUEUED_RECORDS_MAX: Final = 10_000_000
QUEUED_FETCHED_MIN: Final = 1_000_000
LED_POLL_S: Final = 0.01


class KafkaSide:
    """Kafka's defaults: the page cache holds what is acknowledged, or fsync.

    With several brokers each topic has a copy on each.
    """

    def __init__(self, directory: Path, *, fsync: bool, brokers: int = 1) -> None:
        self._brokers = brokers
        self._cluster = KafkaCluster(directory, fsync=fsync, brokers=brokers)
        self._common: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self._cluster.address,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "socket.nagle.disable": True,
            "log_level": 0,
        }

    @property
    def process_id(self) -> int:
        """Of the broker, or the first one."""
        return self._cluster.brokers[0].process.pid

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return self._cluster.address

    def start(self) -> None:
        """See ``Side``."""
        self._cluster.format()
        self._start()

    def _start(self) -> None:
        self._cluster.start()
        self._admin = AdminClient(self._common)
        deadline = time.monotonic() + TIMEOUT_S
        while len(self._admin.list_topics(timeout=TIMEOUT_S).brokers) < self._brokers:
            if time.monotonic() > deadline:
                raise TimeoutError(f"there are not {self._brokers} brokers of Kafka")
            time.sleep(LED_POLL_S)

    def stop(self) -> None:
        """See ``Side``."""
        self.disconnect()
        self._cluster.stop()

    def disconnect(self) -> None:
        """See ``Side``: clients of librdkafka disconnect when nobody holds them any more."""
        for name in ("_transactional", "_producer", "_consumer", "_sender", "_reader", "_admin"):
            client = self.__dict__.pop(name, None)
            if isinstance(client, Consumer):
                client.close()

    def first_record_s(self) -> float:
        """See ``Side``; what formats the empty directory, once, does not count."""
        self._cluster.format()
        started = time.perf_counter()
        try:
            self._start()
            self.create_topic("first", 1)
            producer = Producer({**self._common, "enable.idempotence": True, "linger.ms": 0})
            producer.produce("first", b"record")
            _flush(producer)
            return time.perf_counter() - started
        finally:
            self.stop()

    def create_topic(self, name: str, partitions: int) -> None:
        """See ``Side``."""
        config = {"min.insync.replicas": str(min_insync_of(self._brokers))}
        topic = NewTopic(name, partitions, self._brokers, config=config)
        (created,) = self._admin.create_topics([topic]).values()
        created.result(TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while not self._is_led(name, partitions):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} is not led")
            time.sleep(LED_POLL_S)

    def delete_topic(self, name: str) -> None:
        """Have a topic and its records deleted, some time later."""
        (deleted,) = self._admin.delete_topics([name]).values()
        deleted.result(TIMEOUT_S)

    def _is_led(self, name: str, partitions: int) -> bool:
        found = self._admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions
        return len(found) == partitions and all(each.leader >= 0 for each in found.values())

    def _transactional_producer(self, transactional_id: str) -> Any:
        producer = Producer(
            {
                **self._common,
                "transactional.id": transactional_id,
                "linger.ms": 0,
                "retry.backoff.ms": 10,
            }
        )
        producer.init_transactions(TIMEOUT_S)
        return producer

    def transactions(self, topic: str, producers: int, seconds: float) -> int:
        """See ``Side``; a thread per producer, since its calls block."""
        made = [self._transactional_producer(f"many-{number}") for number in range(producers)]
        done, errors = [0] * producers, []
        until = time.perf_counter() + seconds

        def transact(number: int) -> None:
            try:
                while time.perf_counter() < until:
                    _transact(made[number], topic)
                    done[number] += 1
            except KafkaException as error:
                errors.append(error)

        threads = [threading.Thread(target=transact, args=(n,)) for n in range(producers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return sum(done)

    def open_transactional(self, topic: str) -> None:
        """See ``Side``."""
        self._topic = topic
        self._transactional = self._transactional_producer("paced")

    def transact(self) -> None:
        """See ``Side``."""
        _transact(self._transactional, self._topic)

    def open_pair(self, topic: str) -> None:
        """See ``Side``."""
        self._topic = topic
        self._producer = Producer({**self._common, "enable.idempotence": True, "linger.ms": 0})
        self._consumer = self._make_consumer()
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_END)])

    def _make_consumer(self) -> Any:
        return Consumer(
            {
                **self._common,
                "group.id": "bench",
                "enable.auto.commit": False,
                "check.crcs": True,
                # A full queue would else make it pause for a second.
                "queued.min.messages": QUEUED_FETCHED_MIN,
                "fetch.queue.backoff.ms": 10,
            }
        )

    def send_one(self) -> None:
        """See ``Side``."""
        self._producer.produce(self._topic, b"v" * 100, partition=0)
        self._producer.poll(0)

    def wait_one(self) -> int:
        """See ``Side``."""
        return self._look(self._consumer.consume(1, 1.0))

    def open_sender(self) -> None:
        """See ``Side``."""
        self._sender = Producer(
            {
                **self._common,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": LINGER_MS,
                "batch.size": BATCH_BYTES,
                "batch.num.messages": 100_000,
                "queue.buffering.max.messages": QUEUED_RECORDS_MAX,
                "queue.buffering.max.kbytes": BUFFER_BYTES // 1_024,
            }
        )

    def send(self, topic: str, values: list[bytes]) -> None:
        """See ``Side``."""
        produce, poll = self._sender.produce, self._sender.poll
        for value in values:
            while True:
                try:
                    produce(topic, value)
                    break
                except BufferError:
                    poll(LED_POLL_S)
        _flush(self._sender)

    def send_table(self, topic: str, table: pa.Table) -> None:
        """See ``Side``: row by row, as there is no other way."""
        self.send(topic, table["value"].to_pylist())

    def open_reader(self, topic: str, partitions: int) -> None:
        """See ``Side``."""
        self._reader = self._make_consumer()
        self._reader.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(partitions)])

    def read(self, limit: int) -> int:
        """See ``Side``."""
        return self._look(self._reader.consume(min(POLL_RECORDS, limit), 1.0))

    @staticmethod
    def _look(messages: list[Any]) -> int:
        for message in messages:
            if message.error():
                raise KafkaException(message.error())
            message.value()
        return len(messages)

    def read_table(self, limit: int) -> int:
        """See ``Side``: row by row into a table, as there is no other way.

        No more rows at a time than ``read`` has records: with more it is slower.
        """
        messages = self._reader.consume(min(POLL_RECORDS, limit), 1.0)
        for message in messages:
            if message.error():
                raise KafkaException(message.error())
        values = [message.value() for message in messages]
        return int(pa.table({"value": pa.array(values, pa.binary())}).num_rows)


def _transact(producer: Any, topic: str) -> None:
    producer.begin_transaction()
    producer.produce(topic, b"v" * 100)
    producer.commit_transaction(TIMEOUT_S)


def _flush(producer: Any) -> None:
    left = producer.flush(TIMEOUT_S)
    if left:
        raise TimeoutError(f"Kafka did not acknowledge {left} records")
