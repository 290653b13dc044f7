"""The demo: a year of real flights goes through oncelog exactly once, while processes are killed.

Spark writes the flights in one transaction. Two workers add the weather and a delay class; each
batch and its input offsets are one transaction. Meanwhile workers, partition leaders, transaction
coordinators and, with several brokers, a node are killed. Spark reads the delays back, and every
number must equal what the CSV file gives without the log.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

import oncelog
from oncelog import spark_bridge
from oncelog.api.cli.terminal import CliError
from oncelog.examples.flights import stream_demo
from oncelog.examples.flights.brokers import Brokers, why_not
from oncelog.examples.flights.data import read_flights, read_weather, unpack_flights
from oncelog.examples.flights.delays import delays_with
from oncelog.examples.flights.faults import FaultInjector, plan_faults, with_node_fault
from oncelog.examples.flights.figures import expected_figures
from oncelog.examples.flights.outcome import Outcome, write_json
from oncelog.examples.flights.report import Display, draw_chart, show_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS: Final = ("flights", "delays")
PARTITIONS: Final = 6
WORKERS: Final = 2
RECORDS_PER_POLL: Final = 1_000
COMMIT_INTERVAL_MS: Final = 250
"""Long enough that a kill usually interrupts an open transaction."""
NODE_VICTIM: Final = 3
"""The broker whose node is killed. 1 is on this program's node; 2 often has the controller."""

SEED_LIMIT: Final = 1_000_000
STATUS_POLL_S: Final = 0.25
JOB_TIMEOUT_S: Final = 240
PLAIN_WIDTH: Final = 110
"""Columns of output without a terminal."""
CHART: Final = "flights-2013.png"


def main(args: argparse.Namespace) -> int:
    """Run the demo; 0 if every flight came through exactly once."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_WIDTH)
    refusal = why_not() if args.brokers > 1 else ""
    if refusal:
        raise CliError(
            f"several brokers on one machine need mounts of their own, refused here: {refusal}",
            "run it as root, or without --brokers",
        )
    seed = secrets.randbelow(SEED_LIMIT) if args.seed is None else args.seed
    is_temporary = args.data_dir is None
    directory = Path(args.data_dir or tempfile.mkdtemp(prefix="oncelog-demo-")).absolute()
    started = time.monotonic()
    console.print(f"oncelog demo, seed {seed} (the same seed repeats the choice of faults)")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="flights-") as scratch,
            contextlib.ExitStack() as at_end,
        ):
            cluster = oncelog.init(directory)
            brokers = Brokers(cluster, directory, args.brokers) if args.brokers > 1 else None
            try:
                at_end.enter_context(brokers or contextlib.nullcontext())
                if args.streaming:
                    outcome = stream_demo.run(console, cluster, Path(scratch), seed)
                else:
                    outcome = run(console, cluster, Path(scratch), seed, brokers)
                seconds = round(time.monotonic() - started, 1)
                console.print(f"dashboard: {cluster.dashboard_url}   took {seconds} s")
                if args.json:
                    write_json(Path(args.json), outcome, seed=seed, seconds=seconds)
                console.print(outcome.line)
                if args.keep:
                    keep(console, directory)
            finally:
                cluster.shutdown()
    finally:
        if is_temporary:
            for one in (directory, *directory.parent.glob(f"{directory.name}-broker-*")):
                shutil.rmtree(one, ignore_errors=True)
    return 0 if outcome.is_exactly_once else 1


def run(
    console: Console,
    cluster: oncelog.Cluster,
    scratch: Path,
    seed: int,
    brokers: Brokers | None,
) -> Outcome:
    """Run the whole job on a cluster, which ``brokers`` join if there are any."""
    from oncelog.examples.flights import spark_steps

    path = unpack_flights(scratch)
    console.print(f"the log is up in {cluster.data_dir}; Spark is starting")
    spark = spark_bridge.session(cluster, executors=1, cores=1, memory="1g", app_name="flights")
    try:
        if brokers is not None:
            # After Spark, so that all of Spark is on the node that is not killed.
            console.print("more brokers are starting, each on a node with a disk of its own")
            brokers.start()
        for topic in TOPICS:
            cluster.admin().create_topic(topic, partitions=PARTITIONS)
        console.print("Spark writes the flights, in one transaction")
        spark_steps.load_flights(spark, path, "flights")
        flights, weather = read_flights(path), read_weather()
        kills = process(console, cluster, weather, brokers, total=flights.num_rows, seed=seed)
        if brokers is not None:
            copies = brokers.wait_until_in_sync(TOPICS)
            console.print(f"each partition has {copies} replicas, all of them in sync")
        console.print("Spark reads the delays back")
        return judge(console, spark, flights, weather, faults=kills)
    finally:
        spark_bridge.stop(spark)


def process(
    console: Console,
    cluster: oncelog.Cluster,
    weather: Any,
    brokers: Brokers | None,
    *,
    total: int,
    seed: int,
) -> int:
    """Run the job under faults until it has caught up; return the number of kills."""
    faults = plan_faults(seed, workers=WORKERS, partitions=PARTITIONS)
    if brokers is not None:
        faults = with_node_fault(faults, NODE_VICTIM)
    job = cluster.process(
        source="flights",
        sink="delays",
        function=delays_with(weather),
        group_id="delays",
        workers=WORKERS,
        max_poll_records=RECORDS_PER_POLL,
        commit_interval_ms=COMMIT_INTERVAL_MS,
    )
    done = 0
    deadline = time.monotonic() + JOB_TIMEOUT_S
    with Display(console, total, what="delays") as display:
        injector = FaultInjector(
            cluster,
            job,
            faults,
            progress=lambda: done / total,
            on_kill=display.killed,
            seed=seed,
            brokers=brokers,
        )
        injector.start()
        try:
            while time.monotonic() < deadline:
                status = job.status()
                done = max(done, min(total, total - status.lag))
                display.update(done=done, lag=status.lag)
                if status.lag == 0 or status.is_ended:
                    break
                time.sleep(STATUS_POLL_S)
            injector.stop()
            job.wait(timeout_ms=60_000)
            display.update(done=total, lag=0)
        finally:
            injector.stop()
            job.stop()
    return len(injector.kills)


def judge(
    console: Console, spark: SparkSession, flights: Any, weather: Any, *, faults: int
) -> Outcome:
    """Compare what Spark reads from the log with what the CSV file gives without it."""
    from oncelog.examples.flights import spark_steps

    delays = spark_steps.read_delays(spark, "delays").cache()
    out, distinct = spark_steps.count_ids(delays)
    by_carrier = spark_steps.figures_by(delays, "carrier")
    by_origin = spark_steps.figures_by(delays, "origin")
    in_log = spark_steps.read_topic(spark, "flights").count()
    uncommitted = spark_steps.read_topic(spark, "delays", "read_uncommitted").count()
    expected_carriers, expected_origins = expected_figures(flights, weather)
    show_table(console, by_origin, expected_origins)
    show_table(console, by_carrier, expected_carriers)
    chart = Path(CHART).absolute()
    draw_chart(chart, by_carrier)
    console.print(
        f"the log holds {uncommitted - out:,} delays of aborted transactions, which no "
        f"read_committed consumer sees\nchart: {chart}"
    )
    return Outcome(
        flights_in=flights.num_rows,
        in_log=in_log,
        out=out,
        lost=flights.num_rows - distinct,
        duplicated=out - distinct,
        aborted_records=uncommitted - out,
        faults=faults,
        are_figures_equal=by_carrier == expected_carriers and by_origin == expected_origins,
    )


def keep(console: Console, directory: Path) -> None:
    """Keep the cluster running until Ctrl-C or a signal."""
    console.print(
        f"the cluster keeps running: look at it with `oncelog status --data-dir {directory}`; "
        "Ctrl-C ends it"
    )
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    try:
        is_over.wait()
    except KeyboardInterrupt:
        console.print("stopping")
