"""Leaves something to see in a console: ADDRESS, and `busy` to go on until it is killed.

With `asked` it does what it is told, line by line, and answers each line with itself.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import threading
import time
from typing import Any

import oncelog

HOSTILE = (
    b"<script>window.stolen = document.cookie; document.title = 'stolen'</script>",
    b"<img src=x onerror=\"document.title='stolen'\">",
    "pay \u202e000,1$ to\u202c Bob".encode(),
    b"\x1b[2J\x1b]0;stolen\x07 bell",
    "e" + "\u0301" * 50 + " zalgo".join(["", ""]),
    b"{{ 7 * 7 }} ${7*7} </td></tr></table>",
    b"long line " * 2_000,
    bytes(range(256)),
)


def fill(cluster: Any) -> None:
    """Topics of flights, one of hostile records, a group with a lag, a transaction left open."""
    admin = cluster.admin()
    admin.create_topic("flights", partitions=6, exist_ok=True)
    admin.create_topic("flights-by-day", partitions=2, exist_ok=True)
    admin.create_topic("hostile", partitions=1, exist_ok=True)
    with cluster.producer() as producer:
        for value in HOSTILE:
            data = value if isinstance(value, bytes) else value.encode()
            headers = [("<b>name</b>", data[:40])]
            producer.send("hostile", key=data[:40], value=data, headers=headers)
        producer.flush()
    with cluster.producer(transactional_id="loader-1") as producer:
        producer.init_transactions()
        with producer.transaction():
            for number in range(600):
                producer.send("flights", key=b"UA", value=flight(number))
        with contextlib.suppress(KeyError), producer.transaction():
            for number in range(20):
                producer.send("flights", key=b"DL", value=flight(number))
            producer.flush()
            raise KeyError
        with producer.transaction():
            producer.send("flights-by-day", value=b"2013-01-01")
    with cluster.consumer(group_id="billing", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["flights"])
        while not consumer.poll(timeout_ms=1_000, max_records=200):
            pass
        consumer.commit()


def flight(number: int) -> bytes:
    place = ("EWR", "JFK", "LGA")[number % 3]
    fields = {"flight": number, "carrier": "UA", "origin": place, "delay": number % 50}
    return json.dumps(fields).encode()


def go_on(cluster: Any, left_open: Any) -> None:
    """Write a little all the time, and let a group lag behind."""
    with cluster.producer() as producer:
        for number in itertools.count():
            for _ in range(60 + 40 * (number // 4 % 3)):
                producer.send("flights", key=b"AA", value=flight(number))
            producer.flush()
            time.sleep(0.25)


def count(record: Any) -> bytes:
    """What the job of the busy program does."""
    return bytes(record.value)


def leave_open(cluster: Any) -> Any:
    """A producer in the midst of its transaction."""
    left_open = cluster.producer(transactional_id="left-open", transaction_timeout_ms=600_000)
    left_open.init_transactions()
    left_open.begin_transaction()
    left_open.send("flights", key=b"B6", value=b"never ended", partition=0)
    left_open.flush()
    return left_open


def consume(cluster: Any, is_over: threading.Event) -> None:
    """A member of the group that reads the flights."""
    with cluster.consumer(group_id="billing", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["flights"])
        while not is_over.is_set():
            consumer.poll(timeout_ms=200)


def produce(cluster: Any, is_over: threading.Event) -> None:
    """Write a little all the time."""
    with cluster.producer() as producer:
        for number in itertools.count():
            if is_over.wait(0.1):
                return
            producer.send("flights", key=b"AA", value=flight(number))


def do_as_asked(cluster: Any) -> None:
    """Obey each line; what was begun ends with the input."""
    kept: list[Any] = []
    begun: dict[str, tuple[threading.Event, threading.Thread]] = {}
    works = {"consumer": consume, "producer": produce}
    for line in sys.stdin:
        verb, _, what = line.strip().partition(" ")
        if verb == "leave":
            kept.append(leave_open(cluster))
        elif verb == "begin":
            is_over = threading.Event()
            thread = threading.Thread(target=works[what], args=(cluster, is_over), daemon=True)
            thread.start()
            begun[what] = is_over, thread
        else:
            is_over, thread = begun.pop(what)
            is_over.set()
            thread.join()
        sys.stdout.write(line)
        sys.stdout.flush()


def main() -> None:
    address, *modes = sys.argv[1:]
    cluster = oncelog.connect(address)
    fill(cluster)
    if "asked" in modes:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        do_as_asked(cluster)
        return
    left_open = leave_open(cluster)
    if "busy" in modes:
        cluster.process(
            source="flights",
            sink="flights-by-day",
            function=lambda batch: batch,
            group_id="by-day",
            workers=1,
        )
        with cluster.queue("hostile", group_id="inspection") as queue:
            queue.take(max_records=3, timeout_ms=5_000)
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            go_on(cluster, left_open)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
