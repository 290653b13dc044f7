"""A word count, ported from Kafka Streams: two jobs of ``cluster.process``.

The first job splits lines into words, with the word as key, so that a word has one partition. The
second counts the words of each of its batches. A job keeps no state, so what it writes are
differences; their sum is the count, and is right because each difference is there exactly once.
"""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

import oncelog


def split(line: oncelog.ConsumerRecord) -> list[tuple[bytes, bytes]]:
    """The words of a line, each as key and value."""
    return [(word, word) for word in (line.value or b"").lower().split()]


def count(words: pa.Table) -> pa.Table:
    """How often each word is in a batch."""
    counted = words.group_by("key").aggregate([("key", "count")])
    return pa.table(
        {
            "key": counted["key"],
            "value": pa.array(
                [str(number).encode() for number in counted["key_count"].to_pylist()]
            ),
        }
    )


def run(
    cluster: oncelog.Cluster, lines: str, words: str, counts: str, *, timeout_ms: int
) -> Counter[str]:
    """Count all words that are in ``lines`` now."""
    jobs = [
        cluster.process(
            source=lines, sink=words, function=split, group_id="split", batch_format="record"
        ),
        cluster.process(source=words, sink=counts, function=count, group_id="count"),
    ]
    try:
        for job in jobs:
            job.wait(timeout_ms=timeout_ms)
    finally:
        for job in jobs:
            job.stop()
    return total(cluster, counts)


def total(cluster: oncelog.Cluster, counts: str) -> Counter[str]:
    """The sum of the differences that are committed now."""
    found: Counter[str] = Counter()
    topic = cluster.admin().describe_topic(counts)
    partitions = [oncelog.TopicPartition(counts, one.partition) for one in topic.partitions]
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for record in consumer.poll(timeout_ms=1_000):
                found[(record.key or b"").decode()] += int(record.value or b"0")
    return found
