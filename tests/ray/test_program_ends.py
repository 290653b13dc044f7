"""Programs that end oddly: Ray goes before its clients, SIGTERM in a transaction, no close."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from deadlines import DEADLINE_S, wait_for

import oncelog

pytestmark = pytest.mark.ray

RAY_FIRST = """
import sys, time
import oncelog
import ray

cluster = oncelog.connect(sys.argv[1])
topic = sys.argv[2]
producer = cluster.producer(delivery_timeout_ms=4_000, request_timeout_ms=1_000, max_block_ms=4_000)
consumer = cluster.consumer(group_id=f"of-{topic}", default_api_timeout_ms=4_000)
consumer.subscribe([topic])
producer.send(topic, b"before").result()
while not consumer.poll(timeout_ms=500):
    consumer.seek_to_beginning()
ray.shutdown()
deadline = time.monotonic() + 12
while time.monotonic() < deadline:
    consumer.poll(timeout_ms=500)
for call in (
    lambda: producer.send(topic, b"after").result(),
    lambda: consumer.end_offsets(consumer.assignment()),
    lambda: cluster.producer(transactional_id=topic, max_block_ms=4_000).init_transactions(),
):
    try:
        call()
    except oncelog.OncelogError as error:  # Connections of our own may well have outlived Ray.
        assert "Ray" in str(error), error
assert not ray.is_initialized(), "another Ray was started"
cluster.close()
print("closed")
"""

IN_TRANSACTION = """
import oncelog
import signal, sys, time


class Stop(Exception):
    pass


def stop(number, frame):
    raise Stop


signal.signal(signal.SIGTERM, stop)
cluster = oncelog.connect(sys.argv[1])
with cluster.producer(transactional_id=f"of-{sys.argv[2]}") as producer:
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(sys.argv[2], b"the last one")
    try:
        print("open", flush=True)
        time.sleep(60)
    except Stop:
        producer.commit_transaction()
cluster.close()
print("ended in order", flush=True)
"""

HOLDER = """
import oncelog
import sys, time

cluster = oncelog.connect(sys.argv[1])
producer = cluster.producer(transactional_id=sys.argv[2], producer_heartbeat_interval_ms=60_000)
producer.init_transactions(if_alive="refuse")
print("holds", flush=True)
time.sleep(600)
"""

UNCLOSED = """
import oncelog
import sys

cluster = oncelog.connect(sys.argv[1])
consumer = cluster.consumer(group_id=f"of-{sys.argv[2]}", auto_offset_reset="earliest")
consumer.subscribe([sys.argv[2]])
records = []
while not records:
    records = consumer.poll(timeout_ms=1_000)
print("read", len(records), flush=True)
"""


def started(program: str, cluster: Any, topic: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, cluster.address, topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: text for name, text in os.environ.items() if name != "RAY_ADDRESS"},
    )


def ended(process: subprocess.Popen[str]) -> str:
    """What it printed, once it has ended well."""
    output, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    return output


def test_clients_that_outlive_ray_raise_our_errors_and_start_no_other_ray(
    cluster: Any, topic: str
) -> None:
    output = ended(started(RAY_FIRST, cluster, topic))
    assert "closed" in output


def test_a_program_finishes_its_transaction_at_sigterm(
    cluster: Any, topic: str, read_all: Any
) -> None:
    process = started(IN_TRANSACTION, cluster, topic)
    assert process.stdout is not None
    while "open" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert "ended in order" in ended(process)
    assert [record.value for record in read_all(topic)] == [b"the last one"]


def test_a_single_writer_is_replaced_once_it_is_killed_and_not_before(
    cluster: Any, topic: str
) -> None:
    process = started(HOLDER, cluster, topic)
    assert process.stdout is not None
    while "holds" not in process.stdout.readline():
        assert process.poll() is None
    with cluster.producer(transactional_id=topic) as producer:
        with pytest.raises(oncelog.TransactionalIdInUseError, match=topic):
            producer.init_transactions(if_alive="refuse")
        process.kill()
        process.communicate()
        died_s = time.monotonic()

        def is_ours() -> bool:
            with contextlib.suppress(oncelog.TransactionalIdInUseError):
                producer.init_transactions(if_alive="refuse")
                return True
            return False

        wait_for(is_ours, "the id")
        # Its process is seen to have ended: its silence would count after three minutes.
        assert time.monotonic() - died_s < 60
        with producer.transaction():
            producer.send(topic, b"the next writer")


def test_a_program_that_ends_without_close_leaves_its_group_free(cluster: Any, topic: str) -> None:
    with cluster.producer() as producer:
        producer.send(topic, b"for whoever reads").result()
    assert "read 1" in ended(started(UNCLOSED, cluster, topic))
    assert cluster.admin().describe_group(f"of-{topic}").members == ()
