"""Transactions on a real cluster: how long one takes, how many fit in a second, what they cost.

Every comparator runs in the same process and in turn with what it is compared to.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import ray

import oncelog
from cases.storage_logs import drop_cache
from measuring.report import Report, alternate, ratio
from oncelog.actors.interfaces import NAMESPACE
from oncelog.storage.model import TopicPartition

VALUE: Final = b"x" * 1024
RECORDS: Final = 100
PARTITIONS: Final = 4
PER_ROUND: Final = 30
PRODUCERS: Final = 16
PIPELINED_CALLS: Final = 1_000
THROUGHPUT_ROUND_S: Final = 1.0
COMMIT_INTERVAL_S: Final = 0.1
SLICE_S: Final = 1.0
CONSUMED_RECORDS: Final = 200_000
SLICES_PER_ROUND: Final = 3
"""Of producing, a second each; two of them may well differ by a tenth."""

READS_PER_ROUND: Final = 9
"""Of reading, a third of a second each."""

ROUNDS_MIN: Final = 5


class Empty:
    """An asynchronous actor that does nothing."""

    async def nothing(self) -> None:
        """Return at once."""


def empty_actor() -> Any:
    """A started ``Empty``."""
    actor: Any = ray.remote(num_cpus=0)(Empty).remote()
    ray.get(actor.nothing.remote())
    return actor


def p50_ms(action: Callable[[], Any], count: int) -> float:
    """Median milliseconds of ``action``."""
    durations = []
    for _ in range(count):
        started = time.perf_counter()
        action()
        durations.append(1e3 * (time.perf_counter() - started))
    return statistics.median(durations)


def transact(producer: oncelog.Producer, topic: str, records: int) -> None:
    """One transaction, its records spread over the partitions."""
    producer.begin_transaction()
    for number in range(records):
        producer.send(topic, VALUE, partition=number % PARTITIONS)
    producer.commit_transaction()


def bench_latency(cluster: oncelog.Cluster, report: Report) -> None:
    """From begin to commit returned, beside an empty call: 100 records on 4 partitions, and 1."""
    cluster.admin().create_topic("latency", partitions=PARTITIONS)
    empty = empty_actor()
    with cluster.producer(transactional_id="latency") as producer:
        producer.init_transactions()
        call = partial(p50_ms, lambda: ray.get(empty.nothing.remote()), 3 * PER_ROUND)
        hundred = partial(p50_ms, lambda: transact(producer, "latency", RECORDS), PER_ROUND)
        one = partial(p50_ms, lambda: transact(producer, "latency", 1), PER_ROUND)
        for warm_up in (call, hundred):
            warm_up()
        calls, hundreds, ones = alternate(max(report.rounds, ROUNDS_MIN), call, hundred, one)
    call_ms, hundred_ms = statistics.median(calls), statistics.median(hundreds)
    report.figure("empty_call_ms", call_ms, f"{call_ms:8.2f} ms p50 of an empty call")
    report.figure("one_record_ms", statistics.median(ones), f"{statistics.median(ones):8.2f} ms")
    report.figure("hundred_records_ms", hundred_ms, f"{hundred_ms:8.2f} ms on 4 partitions")
    report.target("latency_in_empty_calls", ratio(hundreds, calls), 10, at_least=False)


def answered_calls() -> int:
    """Calls that all actors of the cluster have answered so far."""
    found = ray.util.list_named_actors(all_namespaces=True)
    handles = [ray.get_actor(a["name"], NAMESPACE) for a in found if a["namespace"] == NAMESPACE]
    healths: list[Any] = ray.get([handle.health.remote() for handle in handles])
    return sum(health.answered_calls for health in healths)


def bench_throughput(cluster: oncelog.Cluster, report: Report) -> None:
    """16 producers, one partition each, one record per transaction, beside pipelined calls."""
    cluster.admin().create_topic("throughput", partitions=PRODUCERS)
    empty = empty_actor()
    asyncio.run(_throughput(cluster, report, empty))


async def _throughput(cluster: oncelog.Cluster, report: Report, empty: Any) -> None:
    producers = [
        cluster.async_producer(transactional_id=f"throughput-{number}")
        for number in range(PRODUCERS)
    ]
    await asyncio.gather(*(producer.init_transactions() for producer in producers))
    done = 0

    async def produce(number: int, until: float) -> None:
        nonlocal done
        producer = producers[number]
        while time.perf_counter() < until:
            await producer.begin_transaction()
            await producer.send("throughput", VALUE, partition=number)
            await producer.commit_transaction()
            done += 1

    async def transactions_per_s() -> float:
        before, started = done, time.perf_counter()
        until = started + THROUGHPUT_ROUND_S
        await asyncio.gather(*(produce(number, until) for number in range(PRODUCERS)))
        return (done - before) / (time.perf_counter() - started)

    def calls_per_s() -> float:
        started = time.perf_counter()
        ray.get([empty.nothing.remote() for _ in range(PIPELINED_CALLS)])
        return PIPELINED_CALLS / (time.perf_counter() - started)

    await transactions_per_s()
    calls_per_s()
    before, done = answered_calls(), 0
    rates = [
        (await transactions_per_s(), calls_per_s()) for _ in range(max(report.rounds, ROUNDS_MIN))
    ]
    calls = (answered_calls() - before) / done
    for producer in producers:
        await producer.close()
    own, empties = (statistics.median(side) for side in zip(*rates, strict=True))
    report.figure("pipelined_calls_per_s", empties, f"{empties:8.0f} empty calls/s")
    report.figure("calls_per_transaction", calls, f"{calls:8.2f} calls answered per transaction")
    report.figure("transactions_per_s", own, f"{own:8.0f} transactions/s of {PRODUCERS} producers")
    share = statistics.median(mine / (theirs / calls) for mine, theirs in rates)
    report.target("throughput_of_pipelined_calls", share, 0.4)


def bench_interval(cluster: oncelog.Cluster, report: Report, data: Path) -> None:
    """A commit every 100 ms, beside the same producer without; then the two isolation levels.

    Each slice begins without the cached pages of those before: how dear new pages are changes
    from second to second on some machines, by more than transactions cost.
    """
    for topic in ("plain", "committed"):
        cluster.admin().create_topic(topic, partitions=PARTITIONS)
    slices = SLICES_PER_ROUND * max(report.rounds, ROUNDS_MIN)
    with (
        cluster.producer() as plain,
        cluster.producer(transactional_id="interval") as transactional,
    ):
        transactional.init_transactions()
        sides = (
            partial(_with_new_pages, data, partial(_plain_slice, plain)),
            partial(_with_new_pages, data, partial(_committing_slice, transactional)),
        )
        for side in sides:
            side()
        without, committing = alternate(slices, *sides)
    rate = 1 / statistics.median(committing)
    report.figure("committing_records_per_s", rate, f"{rate:8.0f} records/s of 1 KB")
    report.target("throughput_with_commits", ratio(without, committing), 0.95)
    readers = [
        cluster.consumer(isolation_level=level) for level in ("read_uncommitted", "read_committed")
    ]
    for reader in readers:
        reader.assign([TopicPartition("committed", number) for number in range(PARTITIONS)])
        _consume(reader)
    sides_of_reading = (partial(_consume, reader) for reader in readers)
    reads = READS_PER_ROUND * max(report.rounds, ROUNDS_MIN)
    uncommitted, committed = alternate(reads, *sides_of_reading)
    for reader in readers:
        reader.close()
    rate = 1 / statistics.median(committed)
    report.figure("committed_records_per_s", rate, f"{rate:8.0f} records/s read_committed")
    report.target("throughput_of_read_committed", ratio(uncommitted, committed), 0.95)


def _with_new_pages(data: Path, side: Callable[[], float]) -> float:
    for directory in data.iterdir():
        if directory.is_dir():
            drop_cache(directory)
    return side()


def _plain_slice(producer: oncelog.Producer) -> float:
    """Seconds per record, everything acknowledged at the end."""
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < SLICE_S:
        for number in range(RECORDS):
            producer.send("plain", VALUE, partition=number % PARTITIONS)
        count += RECORDS
    producer.flush()
    return (time.perf_counter() - started) / count


def _committing_slice(producer: oncelog.Producer) -> float:
    """Seconds per record, everything committed at the end."""
    count, started = 0, time.perf_counter()
    begun = started
    producer.begin_transaction()
    while (now := time.perf_counter()) - started < SLICE_S:
        if now - begun >= COMMIT_INTERVAL_S:
            producer.commit_transaction()
            producer.begin_transaction()
            begun = now
        for number in range(RECORDS):
            producer.send("committed", VALUE, partition=number % PARTITIONS)
        count += RECORDS
    producer.commit_transaction()
    return (time.perf_counter() - started) / count


def _consume(consumer: oncelog.Consumer) -> float:
    """Seconds per record of the first records of the topic."""
    consumer.seek_to_beginning()
    count, started = 0, time.perf_counter()
    while count < CONSUMED_RECORDS and time.perf_counter() - started < 20:
        count += consumer.poll_arrow(1_000).num_rows
    if not count:
        raise SystemExit("nothing could be read")
    return (time.perf_counter() - started) / count
