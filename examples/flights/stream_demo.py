"""The streaming demo: flights arrive in the order of a year, and Spark aggregates windows.

A thread sends the flights, one transaction per day. A Spark stream counts them by airport and day,
and writes each window once, when the watermark has passed it. Meanwhile its driver and its executor
are killed. Every window must equal what the CSV file gives without the log.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from rich.console import Console

from oncelog.api.client import Cluster
from oncelog.examples.flights.data import read_flights, unpack_flights
from oncelog.examples.flights.faults import Fault, Kill
from oncelog.examples.flights.outcome import Outcome
from oncelog.examples.flights.report import Display, show_windows
from oncelog.examples.flights.stream_driver import StreamDriver
from oncelog.examples.flights.stream_replay import Replay
from oncelog.examples.flights.stream_windows import (
    DAY_MS,
    arrivals,
    compare,
    expected_windows,
    parse_windows,
)
from oncelog.storage.exceptions import ConnectionFailedError
from oncelog.storage.model import IsolationLevel, TopicPartition

SOURCE: Final = "flights"
SINK: Final = "windows"
PARTITIONS: Final = 3
REPLAY_S: Final = 60.0
CLOSING_DAYS: Final = 60
"""The closing event is this much later than the last flight, more than a flight may be late."""

OFFSETS_PER_BATCH: Final = 20_000
"""At most: what has accumulated after a restart is read in several batches."""

KILLS_PER_ROLE: Final = 2
FIRST_MOMENT: Final = 0.05
LAST_MOMENT: Final = 0.9
JITTER_MAX_S: Final = 1.0
"""About the duration of a batch, so that a kill can hit any step of one."""

POLL_S: Final = 0.25
SILENCE_MAX_S: Final = 600
"""How long the stream may go without a batch, even on a busy machine."""

READ_TIMEOUT_MS: Final = 5_000


def run(console: Console, cluster: Cluster, scratch: Path, seed: int) -> Outcome:
    """Run the whole demo on a cluster."""
    flights = arrivals(read_flights(unpack_flights(scratch)))
    checkpoint, faults = scratch / "checkpoint", plan_faults(seed)
    console.print(f"the log is up in {cluster.data_dir}; the driver of the stream is starting")
    stream(
        console,
        cluster,
        checkpoint,
        flights,
        faults,
        seed=seed,
        seconds=REPLAY_S,
        offsets_per_batch=OFFSETS_PER_BATCH,
    )
    return judge(console, cluster, flights, faults=len(faults))


def plan_faults(seed: int) -> list[Fault]:
    """Driver and executor twice each, in random order, at random moments of the stream."""
    chance = random.Random(seed)
    roles = ["driver", "executor"] * KILLS_PER_ROLE
    chance.shuffle(roles)
    moments = sorted(chance.uniform(FIRST_MOMENT, LAST_MOMENT) for _ in roles)
    return [Fault(moment, role, 0) for moment, role in zip(moments, roles, strict=True)]


def stream(
    console: Console,
    cluster: Cluster,
    checkpoint: Path,
    flights: pa.Table,
    faults: list[Fault],
    *,
    seed: int,
    seconds: float,
    offsets_per_batch: int,
) -> None:
    """Run the stream until every window is complete, while ``flights`` arrive in ``seconds``.

    Carries out all of ``faults``; the seed determines how far into a batch each one falls.
    """
    for topic in (SOURCE, SINK):
        cluster.admin().create_topic(topic, partitions=PARTITIONS)
    times, chance = flights["scheduled"].to_pylist(), random.Random(seed + 1)
    due = deque(faults)
    query = (cluster.address, SOURCE, SINK, str(checkpoint), str(offsets_per_batch))
    with (
        StreamDriver(*query) as driver,
        Replay(cluster, flights, topic=SOURCE, partitions=PARTITIONS, seconds=seconds) as replay,
        Display(console, len(times), what="flights") as display,
    ):
        for done in progress(driver, replay, display, times):
            if due and driver.is_working and done >= due[0].moment * len(times):
                time.sleep(chance.uniform(0.0, JITTER_MAX_S))
                display.killed(kill(due.popleft(), driver))
            if not due and driver.progress.read == replay.end():
                break
        # Not earlier: flights read after this event would be too late.
        replay.close_year(times[-1] + CLOSING_DAYS * DAY_MS)
        for _ in progress(driver, replay, display, times):
            if driver.progress.watermark_ms > times[-1] + DAY_MS:
                break


def progress(
    driver: StreamDriver, replay: Replay, display: Display, times: list[int]
) -> Iterator[int]:
    """Follow the stream and show its progress; yield how many flights it has read.

    ``ConnectionFailedError`` if it has no batch for long, or the driver fails too often.
    """
    before, deadline = driver.progress, time.monotonic() + SILENCE_MAX_S
    while time.monotonic() < deadline:
        driver.watch(POLL_S)
        if driver.progress != before:
            before, deadline = driver.progress, time.monotonic() + SILENCE_MAX_S
        done = bisect_right(times, before.reached_ms)
        display.update(done=done, lag=max(replay.sent - done, 0), batches=before.batch + 1)
        yield done
    raise ConnectionFailedError(f"the stream did nothing for {SILENCE_MAX_S} s: {before}")


def kill(fault: Fault, driver: StreamDriver) -> Kill:
    """Carry out a fault."""
    if fault.role == "driver":
        return Kill(fault.role, "of the stream", driver.kill_and_restart())
    return Kill(fault.role, "of the stream", driver.kill_executor())


def judge(console: Console, cluster: Cluster, flights: pa.Table, *, faults: int) -> Outcome:
    """Compare the windows in the log with those that the CSV file gives without it."""
    expected = expected_windows(flights)
    found = parse_windows(read_values(cluster, SINK, IsolationLevel.READ_COMMITTED))
    uncommitted = len(read_values(cluster, SINK, IsolationLevel.READ_UNCOMMITTED))
    result = compare(found, expected)
    show_windows(console, found, expected)
    console.print(
        f"the log holds {uncommitted - len(found):,} windows of aborted transactions, which no "
        "read_committed consumer sees"
    )
    return Outcome(
        flights_in=flights.num_rows,
        # Without the closing event.
        in_log=len(read_values(cluster, SOURCE, IsolationLevel.READ_COMMITTED)) - 1,
        out=result.out,
        lost=result.lost,
        duplicated=result.duplicated,
        aborted_records=uncommitted - len(found),
        faults=faults,
        are_figures_equal=result.are_equal,
    )


def read_values(cluster: Cluster, topic: str, isolation_level: IsolationLevel) -> list[bytes]:
    """The values of all records in ``topic`` that are visible at this isolation level."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    values: list[bytes] = []
    with cluster.consumer(
        isolation_level=isolation_level, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(one) < end for one, end in ends.items()):
            values += consumer.poll_arrow(timeout_ms=READ_TIMEOUT_MS)["value"].to_pylist()
    return values
