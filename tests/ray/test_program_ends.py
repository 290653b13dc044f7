"""Programs that end oddly: Ray goes before its clients, SIGTERM in a transaction, no close."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
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

COLOUR = re.compile("\x1b\\[[0-9;]*m")

KILLS_THE_LOG = """
import os, select, signal, sys
import oncelog

cluster = oncelog.init(sys.argv[1], num_cpus=1)
import ray

@ray.remote(num_cpus=0)
def load():
    print("a task of the program", flush=True)
    raise ValueError("it fails")

@ray.remote(num_cpus=0)
class Own:
    def tell(self):
        print("process", os.getpid(), flush=True)

    def die(self):
        os._exit(3)

for name in ray.util.list_named_actors(all_namespaces=True):
    health = ray.get_actor(name["name"], name["namespace"]).health.remote()
    os.kill(ray.get(health).process_id, signal.SIGKILL)
while True:  # They serve again.
    try:
        cluster.admin().list_topics()
        break
    except oncelog.OncelogError as error:
        assert error.retriable, error
def outcome(failing):
    try:
        ray.get(failing.remote())
    except ray.exceptions.RayError as error:
        print("raised", type(error).__name__, flush=True)

own = Own.remote()
while not select.select([sys.stdin], [], [], 0.5)[0]:
    ray.get(own.tell.remote())  # Until it is seen: Ray shows nothing before its monitor runs.
sys.stdin.readline()
outcome(load)
outcome(own.die)
sys.stdin.read()
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


def test_a_program_is_not_told_of_the_logs_processes_but_of_its_own(tmp_path: Path) -> None:
    """They were killed, and serve again. A task then prints and fails, and an actor ends."""
    process = subprocess.Popen(
        # Unbuffered: Ray prints into a pipe without flushing it.
        [sys.executable, "-u", "-c", KILLS_THE_LOG, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: text for name, text in os.environ.items() if name != "RAY_ADDRESS"},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    text = ""

    def read_until(*awaited: str) -> None:
        nonlocal text
        while not all(one in text for one in awaited):
            line = process.stdout.readline()
            assert line, f"{text} {process.communicate()}"
            text += COLOUR.sub("", line)

    read_until(") process")
    process.stdin.write("\n")
    process.stdin.flush()
    # Ray tells of deaths in their order, so this one is the last.
    read_until(") a task of the", "worker died")
    output, errors = process.communicate(timeout=DEADLINE_S)
    text += COLOUR.sub("", output)
    (own,) = set(re.findall(r"\) process (\d+)", text))
    assert re.findall(r"Worker PID: (\d+)", text) == [own]
    assert re.findall(r"raised (\w+)", text) == ["RayTaskError", "ActorDiedError"]
    assert errors == ""
