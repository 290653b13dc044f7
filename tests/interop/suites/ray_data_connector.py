"""Ray Data's own connector: what it reads is what was written, and what it writes is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing

from kafka_clients import new_producer, read_to_end, read_with_oncelog
from kafka_ray_data import read_with_ray_data, write_with_ray_data
from programs import Programs
from suite import Place

COUNT = 20_000
PARTITIONS = 3


def read(place: Place) -> None:
    """Each row once, with its key, headers and time, of two topics, with offsets in between."""
    topics = ["read-by-ray", "read-by-ray-too"]
    written = {}
    for topic in topics:
        place.cluster.create_topic(topic, PARTITIONS)
        producer = new_producer({"bootstrap.servers": place.cluster.bootstrap, "linger.ms": 5})
        for number in range(COUNT):
            key, value = f"key {number}", f"{topic} {number}"
            headers = [("number", b"%d" % number)]
            at_ms = 1_700_000_000_000 + number
            producer.produce(topic, value, key, timestamp=at_ms, headers=headers)
            written[value] = (topic, key, at_ms, {"number": str(number)})
            producer.poll(0)
        assert producer.flush(60) == 0
    rows = read_with_ray_data(place.cluster, topics=topics)
    found = {
        row["value"]: (row["topic"], row["key"], row["timestamp"], row["headers"]) for row in rows
    }
    assert (len(rows), found) == (len(written), written)
    first = [row for row in rows if row["topic"] == topics[0] and row["partition"] == 1]
    ends = {topics[0]: {"0": 0, "1": 100, "2": 7}}
    some = read_with_ray_data(place.cluster, topics=topics[:1], end_offset=ends)
    assert len(some) == 107
    assert [row["value"] for row in some if row["partition"] == 1] == [
        row["value"] for row in sorted(first, key=lambda row: row["offset"])[:100]
    ]


def read_committed(place: Place) -> None:
    """Of transactions what is committed; up to their last record, since Ray Data waits for one."""
    topic = "committed-for-ray"
    place.cluster.create_topic(topic, PARTITIONS)
    with closing(place.cluster.connect()) as own:
        with own.producer(transactional_id="for-ray") as producer:
            producer.init_transactions()
            for number in range(10):
                producer.begin_transaction()
                for part in range(PARTITIONS * 100):
                    value = b"%d of %d" % (part, number)
                    producer.send(topic, value, partition=part % PARTITIONS)
                producer.flush()  # An abort drops what is not sent yet.
                producer.abort_transaction() if number % 2 else producer.commit_transaction()
        records = read_with_oncelog(own, topic, PARTITIONS)
    ends: dict[str, int] = {}
    for one in records:
        ends[str(one.partition)] = max(ends.get(str(one.partition), 0), one.offset + 1)
    rows = read_with_ray_data(place.cluster, topics=topic, end_offset={topic: ends})
    found = sorted((row["partition"], row["offset"], row["value"]) for row in rows)
    assert len(found) == 5 * PARTITIONS * 100
    assert found == sorted((one.partition, one.offset, one.value.decode()) for one in records)


def read_to_a_marker(place: Place) -> None:
    """A topic whose last offset is that of a transaction's marker, without an end."""
    topic = "marked-for-ray"
    place.cluster.create_topic(topic)
    with (
        closing(place.cluster.connect()) as own,
        own.producer(transactional_id="marked") as producer,
    ):
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"one")
    assert len(read_with_ray_data(place.cluster, topics=topic, timeout_ms=5_000)) == 1


def write(place: Place) -> None:
    """Each row once."""
    topic = "written-by-ray"
    place.cluster.create_topic(topic, PARTITIONS)
    rows = [{"id": number, "text": f"row {number}"} for number in range(COUNT)]
    write_with_ray_data(place.cluster, rows, topic=topic, key_field="id")
    found = [json.loads(value) for value in read_to_end(place.cluster.bootstrap, topic)]
    assert sorted(found, key=lambda row: row["id"]) == rows


CASES: dict[str, Callable[[Place], None]] = {
    "read_kafka": read,
    "read_kafka-of-transactions": read_committed,
    "read_kafka-up-to-a-marker": read_to_a_marker,
    "write_kafka": write,
}

RAY_DATA = Programs("ray-data", CASES, lambda: None)
