"""A sample of ``bench/gateway.py``: some rows, on a new cluster of one side.

``samples/gateway.py SIDE SCALE DIRECTORY ROW...``; see ``measuring.findings``.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from measuring.findings import take, tell, warm_up
from sides.gateway_side import GatewaySide, cpu_s
from sides.kafka_side import KafkaSide

PARTITIONS: Final = 6
"""Of the topics that the load goes to."""

SIZES: Final = (100, 1_000)
WAIT_S: Final = 30.0
SMALL_TOPIC: Final = "small"
CONNECTIONS: Final = 1_000
READERS: Final = 3
"""Whose speeds the median is of; another one before them warms up what serves them."""

_API_VERSIONS: Final = Struct(">ihhih")
"""The length of the rest, the API's key and version, a correlation id, no client id."""

_LENGTH: Final = Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is done, and how long servers warm up before: a JVM needs many seconds."""

    warm_up_s: float
    load_s: float
    send_bytes: int
    read_bytes: int
    requests: int
    window_s: float


SCALES: Final = {
    "small": Scale(
        warm_up_s=2,
        load_s=3,
        send_bytes=20_000_000,
        read_bytes=20_000_000,
        requests=200,
        window_s=3,
    ),
    "full": Scale(
        warm_up_s=10,
        load_s=10,
        send_bytes=50_000_000,
        read_bytes=400_000_000,
        requests=2_000,
        window_s=10,
    ),
}


def run(side: KafkaSide, scale: Scale, rows: list[str]) -> None:
    """Everything that clients do, one after another."""
    side.start()
    side.open_sender()
    for size in SIZES:
        if any(row.endswith(f"-{size}") for row in rows):
            _run_throughput(side, scale, rows, size)
    side.create_topic(SMALL_TOPIC, 1)
    requests = {
        "small-produce": _produce_small(side.address),
        "small-metadata": _ask_metadata(side.address),
    }
    for name, request in requests.items():
        if name in rows:
            take(name, partial(_median_us, request, scale))
    side.disconnect()
    if "idle" in rows:
        take("idle", partial(_idle_percent, side, scale))


# --- throughput -------------------------------------------------------------------------------


def _run_throughput(side: KafkaSide, scale: Scale, rows: list[str], size: int) -> None:
    topic = f"bytes-{size}"
    values = [b"%0*d" % (size, number) for number in range(scale.send_bytes // size)]
    side.create_topic(topic, PARTITIONS)
    warm_up(partial(side.send, topic, values), scale.warm_up_s)
    if f"produce-{size}" in rows:
        ways = partial(_sent_per_s, side, topic, values, scale)
        _take_with_cpu(side, f"produce-{size}", ways, size)
    if f"fetch-{size}" not in rows:
        return
    # Whatever was sent before, so many are there then.
    count = scale.read_bytes // size
    for _ in range(-(-count // len(values))):
        side.send(topic, values)
    _read_per_s(side, topic, count)
    _take_with_cpu(side, f"fetch-{size}", partial(_reads_per_s, side, topic, count), size)


def _take_with_cpu(
    side: KafkaSide, name: str, measure: Callable[[], tuple[float, int]], size: int
) -> None:
    """Take thousand records a second, and the gateway's processor time in ms per MB."""
    gateway = side.gateway_id() if isinstance(side, GatewaySide) else None
    cpu_ms_per_mb: list[float] = []

    def figure() -> float:
        began_s = 0.0 if gateway is None else cpu_s(gateway)
        per_s, count = measure()
        if gateway is not None:
            cpu_ms_per_mb.append((cpu_s(gateway) - began_s) * 1e9 / (count * size))
        return per_s / 1e3

    take(name, figure)
    for value in cpu_ms_per_mb:
        tell(f"{name}-cpu", value)


def _sent_per_s(
    side: KafkaSide, topic: str, values: list[bytes], scale: Scale
) -> tuple[float, int]:
    """Records a second, and how many there were."""
    count, started = 0, time.perf_counter()
    while time.perf_counter() < started + scale.load_s:
        side.send(topic, values)
        count += len(values)
    return count / (time.perf_counter() - started), count


def _reads_per_s(side: KafkaSide, topic: str, count: int) -> tuple[float, int]:
    """Records a second of the median reader, and how many all have read."""
    per_s = [_read_per_s(side, topic, count) for _ in range(READERS)]
    return statistics.median(per_s), READERS * count


def _read_per_s(side: KafkaSide, topic: str, count: int) -> float:
    """Records a second from the first ones on, so that no connecting counts."""
    side.open_reader(topic, PARTITIONS)
    deadline = time.perf_counter() + WAIT_S
    done = first = side.read(1)
    while not first:
        _check_time(deadline, 0, count)
        done = first = side.read(1)
    started = time.perf_counter()
    while done < count:
        done += side.read(count - done)
        _check_time(deadline + WAIT_S, done, count)
    return (done - first) / (time.perf_counter() - started)


def _check_time(deadline: float, done: int, count: int) -> None:
    if time.perf_counter() > deadline:
        raise TimeoutError(f"{done} of {count} records could be read")


# --- small requests ---------------------------------------------------------------------------


def _produce_small(address: str) -> Callable[[], None]:
    """A call that sends one record of 100 B and waits until it is acknowledged."""
    producer: Any = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 0,
            "socket.nagle.disable": True,
        }
    )
    left = 0

    def delivered(error: object, _message: object) -> None:
        nonlocal left
        if error is not None:
            raise RuntimeError(str(error))
        left -= 1

    def request() -> None:
        nonlocal left
        left = 1
        producer.produce(SMALL_TOPIC, b"v" * 100, partition=0, on_delivery=delivered)
        until = time.perf_counter() + WAIT_S
        while left:
            producer.poll(1.0)
            _check_time(until, 0, 1)

    return request


def _ask_metadata(address: str) -> Callable[[], None]:
    """A call that asks about one topic."""
    admin: Any = AdminClient({"bootstrap.servers": address, "socket.nagle.disable": True})
    return lambda: admin.list_topics(SMALL_TOPIC, timeout=WAIT_S)


def _median_us(request: Callable[[], None], scale: Scale) -> float:
    warm_up(request, scale.warm_up_s / 2)
    taken = []
    for _ in range(scale.requests):
        started = time.perf_counter()
        request()
        taken.append(time.perf_counter() - started)
    return 1e6 * statistics.median(taken)


# --- idle connections -------------------------------------------------------------------------


def _idle_percent(side: KafkaSide, scale: Scale) -> float:
    """Of a processor, what the gateway's process, or Kafka's, takes with many idle connections."""
    served = side.gateway_id() if isinstance(side, GatewaySide) else side.process_id
    host, _, port = side.address.partition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(_connected(host, int(port)))
        time.sleep(scale.window_s / 2)
        began_s, started = cpu_s(served), time.perf_counter()
        time.sleep(scale.window_s)
        return 100 * (cpu_s(served) - began_s) / (time.perf_counter() - started)


def _connected(host: str, port: int) -> socket.socket:
    """A connection that has asked for the versions, as clients do first."""
    opened = socket.create_connection((host, port), timeout=WAIT_S)
    opened.sendall(_API_VERSIONS.pack(_API_VERSIONS.size - _LENGTH.size, 18, 0, 1, -1))
    (left,) = _LENGTH.unpack(opened.recv(_LENGTH.size, socket.MSG_WAITALL))
    opened.recv(left, socket.MSG_WAITALL)
    return opened


def main() -> None:
    """Take the figures of some rows."""
    name, scale, directory, *rows = sys.argv[1:]
    side: KafkaSide
    if name == "gateway":
        side = GatewaySide(Path(directory))
    else:
        side = KafkaSide(Path(directory), fsync=name == "kafka-fsync")
    try:
        run(side, SCALES[scale], rows)
    finally:
        side.stop()


if __name__ == "__main__":
    main()
