"""A sample of ``bench/kafka.py``: some rows of one group, on a new cluster of one side.

``samples/kafka.py SIDE GROUP SCALE BROKERS DIRECTORY ROW...``; see ``measuring.findings``.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from clusters.servers import EmptyRay
from figures.kafka_rows import PRODUCERS, SCALES, SIZES, START, Scale
from figures.table import percentile
from measuring.findings import take, warm_up
from measuring.processes import busy_cores, memory_mb
from oncelog.actors.config import FlushPolicy
from sides.oncelog_side import OncelogSide, Side

TOPIC: Final = "bench"
PARTITIONS: Final = 6
"""Of the topics that the load goes to."""

PACE_S: Final = 0.3
"""Between transactions now and then: longer than anything a client begins ahead."""

RECORD_PACE_S: Final = 0.02
WAIT_S: Final = 30.0


def side_of(name: str, directory: Path, brokers: int) -> Side:
    """A side by its name."""
    if name.startswith("oncelog"):
        flush: FlushPolicy = "os" if name == "oncelog-os" else "sync"
        return OncelogSide(directory, flush=flush, brokers=brokers)
    from sides.kafka_side import KafkaSide

    return KafkaSide(directory, fsync=name == "kafka-fsync", brokers=brokers)


def run_partitions(side: Side, scale: Scale, rows: list[str], count: int) -> None:
    """Create one topic, then leave the cluster alone and look at it."""
    side.start()
    if count:
        take_if(rows, f"create-{count}", partial(_creation_s, side, count))
    side.disconnect()
    run_idle(side.process_id, scale, rows, count)


def run_idle(process_id: int, scale: Scale, rows: list[str], count: int) -> None:
    """Memory and processors of servers that nobody uses."""
    time.sleep(scale.settle_s)
    take_if(rows, f"memory-{count}", partial(memory_mb, process_id))
    take_if(rows, f"idle-{count}", partial(busy_cores, process_id, scale.window_s))


def take_if(rows: list[str], name: str, figure: Callable[[], float]) -> None:
    """Take a figure if it is wanted; a topic is made in any case."""
    if name in rows:
        take(name, figure)
    elif name.startswith("create"):
        figure()


def _creation_s(side: Side, count: int) -> float:
    started = time.perf_counter()
    side.create_topic(TOPIC, count)
    return time.perf_counter() - started


def run_load(side: Side, scale: Scale, rows: list[str]) -> None:
    """Everything that clients do, one after another."""
    side.start()
    side.create_topic(TOPIC, PARTITIONS)
    take_if(rows, "transactions", partial(_transactions_per_s, side, scale))
    take_if(rows, "paced", partial(_paced_ms, side, scale))
    take_if(rows, "latency", partial(_latency_ms, side, scale))
    side.open_sender()
    for size in SIZES:
        if any(row.endswith(f"-{size}") for row in rows):
            _run_throughput(side, scale, rows, size)


def _transactions_per_s(side: Side, scale: Scale) -> float:
    side.transactions(TOPIC, PRODUCERS, scale.warm_up_s)
    started = time.perf_counter()
    done = side.transactions(TOPIC, PRODUCERS, scale.load_s)
    return done / (time.perf_counter() - started)


def _paced_ms(side: Side, scale: Scale) -> float:
    side.open_transactional(TOPIC)
    taken = []
    warm_up(side.transact, scale.warm_up_s / 4)
    for _ in range(scale.transactions + 3):
        time.sleep(PACE_S)
        started = time.perf_counter()
        side.transact()
        taken.append(1e3 * (time.perf_counter() - started))
    return percentile(taken[3:], 0.5)


def _latency_ms(side: Side, scale: Scale) -> float:
    side.open_pair(TOPIC)
    seen: list[float] = []
    arrived = threading.Event()
    is_over = threading.Event()

    def wait() -> None:
        while not is_over.is_set():
            if side.wait_one():
                seen.append(time.perf_counter())
                arrived.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        time.sleep(1)
        taken = [_one_way_ms(side, arrived, seen) for _ in range(scale.records + 10)]
    finally:
        is_over.set()
        waiting.join()
    return percentile(taken[10:], 0.5)


def _one_way_ms(side: Side, arrived: threading.Event, seen: list[float]) -> float:
    time.sleep(RECORD_PACE_S)
    arrived.clear()
    started = time.perf_counter()
    side.send_one()
    if not arrived.wait(WAIT_S):
        raise TimeoutError("a record did not reach the waiting consumer")
    return 1e3 * (seen[-1] - started)


def _run_throughput(side: Side, scale: Scale, rows: list[str], size: int) -> None:
    topic, count = f"bytes-{size}", scale.bytes // size
    values = [b"%0*d" % (size, number) for number in range(count)]
    table = pa.table({"value": pa.array(values, pa.binary())})
    side.create_topic(topic, PARTITIONS)
    # More than once, since the readers want at least so many records.
    side.send(topic, values)
    warm_up(partial(side.send, topic, values), scale.warm_up_s)
    reads = (
        partial(_read_per_s, side, topic, count, read) for read in (side.read, side.read_table)
    )
    consume, poll = reads
    ways: tuple[tuple[str, Callable[[], float]], ...] = (
        ("send", partial(_sent_per_s, count, lambda: side.send(topic, values))),
        ("consume", consume),
        ("send-arrow", partial(_sent_per_s, count, lambda: side.send_table(topic, table))),
        ("poll-arrow", poll),
    )
    for name, way in ways:
        take_if(rows, f"{name}-{size}", way)


def _sent_per_s(count: int, send: Callable[[], None]) -> float:
    started = time.perf_counter()
    send()
    return count / (time.perf_counter() - started) / 1e3


def _read_per_s(side: Side, topic: str, count: int, read: Callable[[int], int]) -> float:
    """Thousand records per second from the first ones on, so that no connecting counts.

    The second of two consumers, so that what serves it is warm.
    """
    _read_once_per_s(side, topic, count, read)
    return _read_once_per_s(side, topic, count, read)


def _read_once_per_s(side: Side, topic: str, count: int, read: Callable[[int], int]) -> float:
    side.open_reader(topic, PARTITIONS)
    deadline = time.perf_counter() + WAIT_S
    while not read(1):
        _check_time(deadline, 0, count)
    done, started = 0, time.perf_counter()
    while done < count - 1:
        done += read(count - 1 - done)
        _check_time(deadline + WAIT_S, done, count)
    return done / (time.perf_counter() - started) / 1e3


def _check_time(deadline: float, done: int, count: int) -> None:
    if time.perf_counter() > deadline:
        raise TimeoutError(f"{done} of {count} records could be read")


def main() -> None:
    """Take the figures of one group."""
    name, group, scale_name, brokers, directory, *rows = sys.argv[1:]
    scale = SCALES[scale_name]
    if name == "empty Ray":
        server: Any = EmptyRay(Path(directory))
        server.start()
        try:
            run_idle(server.process.pid, scale, rows, 0)
        finally:
            server.stop()
        return
    side = side_of(name, Path(directory), int(brokers))
    if group == START:
        take(START, side.first_record_s)
        return
    try:
        if group.startswith("partitions-"):
            run_partitions(side, scale, rows, int(group.rpartition("-")[2]))
        else:
            run_load(side, scale, rows)
    finally:
        side.stop()


if __name__ == "__main__":
    main()
