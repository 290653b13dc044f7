"""Programs that copy in transactions are killed: a group by pattern, and one in commit order."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from deadlines import wait_for

pytestmark = pytest.mark.ray

COPIER = """
import json, sys
import oncelog

address, sink, name, subscription, settings = sys.argv[1:]
cluster = oncelog.connect(address)
with (
    cluster.consumer(
        group_id=f"of-{sink}",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=6_000,
        heartbeat_interval_ms=200,
        **json.loads(settings),
    ) as consumer,
    cluster.producer(transactional_id=name) as producer,
):
    consumer.subscribe(**json.loads(subscription))
    producer.init_transactions()
    while True:
        records = consumer.poll(timeout_ms=200, max_records=20)
        if not records:
            continue
        try:
            with producer.transaction():
                for record in records:
                    producer.send(sink, record.value, partition=0)
                producer.send_offsets_to_transaction(
                    consumer.positions(), consumer.group_metadata()
                )
        except oncelog.OncelogError as error:
            if not error.abortable:
                raise
            consumer.seek_to_committed()
"""


@pytest.fixture
def copier(cluster: Any, topic: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a program that copies into ``topic``; what is left of them is killed at the end."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(name: str, subscription: str, settings: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", COPIER, cluster.address, topic, name]
        begun.append(subprocess.Popen([*command, subscription, settings]))
        return begun[-1]

    yield start
    for one in begun:
        one.kill()
        one.wait()


def write(cluster: Any, topic: str, *values: bytes) -> None:
    with cluster.producer() as producer:
        for value in values:
            producer.send(topic, value, partition=0)


def test_a_group_by_pattern_copies_each_record_once_while_topics_come_and_a_member_dies(
    cluster: Any, topic: str, copier: Any, read_all: Any
) -> None:
    """1. Two members copy the topics that match. 2. A topic is created, and found. 3. A member
    dies, and one more topic is created.
    """
    sources = [f"{topic}-in-{number}" for number in range(4)]
    wanted = {name: [b"%s/%d" % (name.encode(), n) for n in range(100)] for name in sources}

    def create(name: str) -> None:
        cluster.admin().create_topic(name, partitions=1)
        write(cluster, name, *wanted[name])

    def is_copied(count: int) -> bool:
        return len(read_all(topic)) >= count

    for name in sources[:2]:
        create(name)
    how = (f'{{"pattern": "{topic}-in-.*"}}', '{"metadata_max_age_ms": 500}')
    first = copier(f"{topic}-a", *how)
    copier(f"{topic}-b", *how)
    wait_for(lambda: is_copied(200), "what is there at first")
    create(sources[2])
    wait_for(lambda: is_copied(300), "the new topic")
    first.kill()
    create(sources[3])
    for name in sources[:3]:
        write(cluster, name, b"last")
    wait_for(lambda: is_copied(403), "all, also what the dead member would have read")
    copied = Counter(record.value for record in read_all(topic))
    assert copied == Counter([*itertools.chain(*wanted.values()), *[b"last"] * 3])


def test_a_reader_in_commit_order_that_dies_goes_on_where_it_was(
    cluster: Any, topic: str, copier: Any, read_all: Any
) -> None:
    """1. A transaction is open, larger than the reader's memory. 2. Others are copied past it.
    3. The reader dies. 4. The transaction commits. 5. A new reader copies it, after the others.
    """
    source = f"{topic}-source"
    cluster.admin().create_topic(source, partitions=1)
    long_ago = [b"long %d " % number + bytes(1_000) for number in range(50)]
    before, after = [[b"%s %d" % (when, n) for n in range(30)] for when in (b"before", b"after")]

    def copied() -> list[bytes]:
        return [record.value for record in read_all(topic)]

    how = (f'{{"topics": "{source}"}}', '{"order": "commit", "commit_order_buffer_bytes": 100}')
    with cluster.producer(transactional_id=f"{topic}-long") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for value in long_ago:
            producer.send(source, value)
        producer.flush()
        write(cluster, source, *before)
        reader = copier(f"{topic}-reader", *how)
        wait_for(lambda: len(copied()) >= len(before), "what needs not wait")
        reader.kill()
        producer.commit_transaction()
    write(cluster, source, *after)
    copier(f"{topic}-reader", *how)
    wanted = [*before, *long_ago, *after]
    wait_for(lambda: len(copied()) >= len(wanted), "all")
    assert copied() == wanted
