"""kill -9 of real processes: nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from deadlines import DEADLINE_S

import oncelog
from oncelog.storage.exceptions import ProducerFencedError

pytestmark = pytest.mark.ray

Kill = Callable[[Any], int]
ReadAll = Callable[..., list[Any]]


def values(records: list[Any]) -> Counter[bytes]:
    return Counter(record.value for record in records)


def test_acknowledged_records_survive_the_leader(
    cluster: Any, topic: str, kill: Kill, read_all: ReadAll
) -> None:
    with cluster.producer() as producer:
        futures = [producer.send(topic, b"%d" % n, partition=0) for n in range(500)]
        kill(cluster.partition(topic, 0))
        futures += [producer.send(topic, b"%d" % n, partition=0) for n in range(500, 1_000)]
        offsets = [future.result(DEADLINE_S).offset for future in futures]
    assert offsets == list(range(1_000))
    assert values(read_all(topic)) == Counter(b"%d" % n for n in range(1_000))


def test_a_transaction_survives_its_coordinator_and_a_leader(
    cluster: Any, topic: str, kill: Kill, read_all: ReadAll
) -> None:
    with cluster.producer(transactional_id=f"survivor-{topic}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"left", partition=0)
        producer.send(topic, b"right", partition=1)
        producer.flush()
        kill(cluster.transaction_coordinator(f"survivor-{topic}"))
        kill(cluster.partition(topic, 1))
        producer.commit_transaction(token=b"first")
    assert values(read_all(topic)) == Counter([b"left", b"right"])


def test_what_a_dead_producer_left_open_is_aborted_and_its_token_is_read_back(
    cluster: Any, topic: str, read_all: ReadAll
) -> None:
    first = cluster.producer(transactional_id=f"id-{topic}")
    assert first.init_transactions() is None
    with first.transaction():
        first.send(topic, b"kept", partition=0)
    first.begin_transaction()
    first.send(topic, b"lost", partition=0)
    first.flush()
    with cluster.producer(transactional_id=f"id-{topic}") as second:
        second.init_transactions()
        second.begin_transaction()
        second.send(topic, b"new", partition=0)
        second.commit_transaction(token=b"batch-2")
    with pytest.raises(ProducerFencedError):
        first.commit_transaction()
    assert values(read_all(topic)) == Counter([b"kept", b"new"])
    assert values(read_all(topic, "read_uncommitted")) == Counter([b"kept", b"lost", b"new"])
    with cluster.producer(transactional_id=f"id-{topic}") as third:
        assert third.init_transactions() == b"batch-2"


def test_every_process_of_the_log_can_be_killed_at_once(
    cluster: Any, topic: str, kill: Kill, read_all: ReadAll
) -> None:
    with cluster.producer(transactional_id=f"all-{topic}") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"before", partition=0)
        handles = [
            cluster.controller,
            cluster.transaction_coordinator(f"all-{topic}"),
            cluster.group_coordinator("all"),
            cluster.partition(topic, 0),
            cluster.partition(topic, 1),
        ]
        for handle in handles:
            kill(handle)
        with producer.transaction():
            producer.send(topic, b"after", partition=1)
    assert values(read_all(topic)) == Counter([b"before", b"after"])


def test_a_job_counts_each_record_once_while_its_workers_die(
    cluster: Any, topic: str, kill: Kill, read_all: ReadAll
) -> None:
    sink = f"{topic}-sink"
    cluster.admin().create_topic(sink, partitions=2)
    with cluster.producer() as producer:
        for number in range(4_000):
            producer.send(topic, b"%d" % number, key=b"%d" % number)
    job = cluster.process(
        source=topic,
        sink=sink,
        function=lambda record: (record.key, record.value),
        batch_format="record",
        group_id=f"job-{topic}",
        workers=2,
        max_poll_records=200,
    )
    try:
        for worker in (0, 1, 0):
            kill(job.worker(worker))
        status = job.wait(timeout_ms=60_000)
        assert status.lag == 0
    finally:
        job.stop()
    assert values(read_all(sink)) == Counter(b"%d" % number for number in range(4_000))


def test_the_isolation_of_a_reader_is_its_own_choice(cluster: Any, topic: str) -> None:
    with cluster.producer(transactional_id=f"open-{topic}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"undecided", partition=0)
        producer.flush()
        tp = oncelog.TopicPartition(topic, 0)
        with cluster.consumer() as committed:
            assert committed.end_offsets([tp]) == {tp: 0}
        with cluster.consumer(isolation_level="read_uncommitted") as uncommitted:
            assert uncommitted.end_offsets([tp]) == {tp: 1}
        producer.abort_transaction()
