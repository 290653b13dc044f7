"""Sizes that need a cluster: many partitions, topics, members and consumers, for ``scale.py``."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import oncelog
from clusters.servers import OncelogServer, patient_admin
from measuring.findings import take, tell
from measuring.processes import busy_cores, memory_mb
from oncelog.storage.exceptions import GroupIdNotFoundError

TOPIC: Final = "bench"
GROUP: Final = "bench"
SETTLE_S: Final = 10.0
WINDOW_S: Final = 20.0
FETCHES_WINDOW_S: Final = 60.0
"""Twice as long as a fetch waits: its end and the next one are counted."""
JOIN_TIMEOUT_S: Final = 300.0
JOIN_POLL_S: Final = 0.1
POLL_MS: Final = 5_000.0
TRANSACTIONS: Final = 11


@contextmanager
def connected(server: OncelogServer) -> Iterator[Any]:
    """A connection to the server from this process."""
    import ray

    cluster = oncelog.connect(server.address())
    try:
        yield cluster
    finally:
        cluster.close()
        ray.shutdown()


@contextmanager
def serving(directory: Path) -> Iterator[OncelogServer]:
    """A new cluster, gone afterwards."""
    server = OncelogServer(directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def tell_idle(case: str, server: OncelogServer) -> None:
    """Memory and processors of the servers when nobody uses them."""
    time.sleep(SETTLE_S)
    tell(f"{case}: memory, MB", memory_mb(server.process.pid))
    tell(f"{case}: idle cores", busy_cores(server.process.pid, WINDOW_S))


def run_partitions(count: int, directory: Path) -> None:
    """One topic of so many partitions: made, idle, in one transaction, stopped, killed."""
    with serving(directory) as server:
        with connected(server) as cluster:
            take("partitions: made, s", lambda: _led_s(cluster, count))
            _over_all(cluster, count)
        tell_idle("partitions", server)
        take("partitions: clean stop, s", lambda: _timed(server.stop))
        take("partitions: led after clean stop, s", lambda: _start_s(server, count, "clean stop"))
        server.kill()
        take("partitions: led after kill -9, s", lambda: _start_s(server, count, "kill -9"))


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _led_s(cluster: Any, count: int) -> float:
    """Until every partition can be written; of an existing topic, too."""
    make = patient_admin(cluster).create_topic
    return _timed(lambda: make(TOPIC, partitions=count, exist_ok=True))


def _start_s(server: OncelogServer, count: int, after: str) -> float:
    started = time.perf_counter()
    server.start()
    tell(f"partitions: serving after {after}, s", time.perf_counter() - started)
    with connected(server) as cluster:
        _led_s(cluster, count)
        return time.perf_counter() - started


def _over_all(cluster: Any, count: int) -> None:
    """A record in each partition, one transaction; the first one also meets all the leaders."""
    with cluster.producer(transactional_id="over-all", transaction_timeout_ms=300_000) as producer:
        producer.init_transactions()
        taken = []
        for _ in range(TRANSACTIONS):
            started = time.perf_counter()
            with producer.transaction():
                for number in range(count):
                    producer.send(TOPIC, b"v" * 100, partition=number)
            taken.append(1e3 * (time.perf_counter() - started))
    tell("partitions: first transaction over all, ms", taken[0])
    tell("partitions: transaction over all, ms", statistics.median(taken[1:]))


def run_topics(count: int, directory: Path) -> None:
    """So many topics of one partition each."""
    with serving(directory) as server:
        with connected(server) as cluster:
            take("topics: made, s", lambda: _timed(lambda: _make_topics(cluster, count)))
            listed = _timed(cluster.admin().list_topics)
            tell("topics: listed, ms", 1e3 * listed)
        tell_idle("topics", server)


def _make_topics(cluster: Any, count: int) -> None:
    admin = patient_admin(cluster)
    for number in range(count):
        admin.create_topic(f"{TOPIC}-{number}")


def run_consumers(count: int, directory: Path) -> None:
    """So many consumers without a group that wait for records of one partition."""
    with serving(directory) as server, connected(server) as cluster:
        cluster.admin().create_topic(TOPIC)
        asyncio.run(_wait_idle(cluster, count, server))


async def _wait_idle(cluster: Any, count: int, server: OncelogServer) -> None:
    consumers = [cluster.async_consumer() for _ in range(count)]
    partition = oncelog.TopicPartition(TOPIC, 0)

    async def assign(consumer: Any) -> None:
        await consumer.assign([partition])
        await consumer.seek_to_end()
        await consumer.position(partition)

    started = time.perf_counter()
    await asyncio.gather(*map(assign, consumers))
    tell("consumers: positioned, s", time.perf_counter() - started)
    await _tell_busy("consumers", consumers, server)


def run_assigned(count: int, directory: Path) -> None:
    """So many partitions without records that one consumer waits for; first, that nobody does."""
    with serving(directory) as server, connected(server) as cluster:
        _led_s(cluster, count)
        time.sleep(SETTLE_S)
        before, started = time.process_time(), time.perf_counter()
        tell("assigned: idle cores of servers before", busy_cores(server.process.pid, WINDOW_S))
        own = (time.process_time() - before) / (time.perf_counter() - started)
        tell("assigned: idle cores of clients before", own)
        asyncio.run(_wait_for_all(cluster, count, server))


async def _wait_for_all(cluster: Any, count: int, server: OncelogServer) -> None:
    consumer = cluster.async_consumer()
    started = time.perf_counter()
    await consumer.assign([oncelog.TopicPartition(TOPIC, number) for number in range(count)])
    await consumer.seek_to_end()
    await consumer.position(consumer.assignment())
    tell("assigned: positioned, s", time.perf_counter() - started)
    await _tell_busy("assigned", [consumer], server, window_s=FETCHES_WINDOW_S)


def run_members(count: int, directory: Path) -> None:
    """So many members of one group, on a topic of one partition."""
    with serving(directory) as server, connected(server) as cluster:
        cluster.admin().create_topic(TOPIC)
        asyncio.run(_join(cluster, count, server))


async def _join(cluster: Any, count: int, server: OncelogServer) -> None:
    admin = cluster.admin()
    consumers = [cluster.async_consumer(group_id=GROUP) for _ in range(count)]
    started = time.perf_counter()
    await asyncio.gather(*(consumer.subscribe([TOPIC]) for consumer in consumers))
    polls = [asyncio.ensure_future(_poll(consumer)) for consumer in consumers]
    try:
        while not await asyncio.to_thread(_is_stable, admin, count):
            if time.perf_counter() - started > JOIN_TIMEOUT_S:
                raise TimeoutError(f"{count} members are not one stable group yet")
            await asyncio.sleep(JOIN_POLL_S)
        tell("members: all joined, s", time.perf_counter() - started)
    finally:
        await _end(polls)
    await _tell_busy("members", consumers, server)


def _is_stable(admin: Any, count: int) -> bool:
    try:
        group = admin.describe_group(GROUP)
    except GroupIdNotFoundError:
        return False
    return group.state == "Stable" and len(group.members) == count


async def _poll(consumer: Any) -> None:
    while True:
        await consumer.poll(POLL_MS)


async def _end(polls: Sequence[asyncio.Future[None]]) -> None:
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)


async def _tell_busy(
    case: str, consumers: Sequence[Any], server: OncelogServer, window_s: float = WINDOW_S
) -> None:
    """Processors of servers and of this process while all consumers wait in a poll."""
    polls = [asyncio.ensure_future(_poll(consumer)) for consumer in consumers]
    try:
        await asyncio.sleep(SETTLE_S)
        before, started = time.process_time(), time.perf_counter()
        servers = await asyncio.to_thread(busy_cores, server.process.pid, window_s)
        own = (time.process_time() - before) / (time.perf_counter() - started)
    finally:
        await _end(polls)
    tell(f"{case}: memory of servers, MB", memory_mb(server.process.pid))
    tell(f"{case}: idle cores of servers", servers)
    tell(f"{case}: idle cores of clients", own)
    started = time.perf_counter()
    await asyncio.gather(*(consumer.close() for consumer in consumers))
    tell(f"{case}: closed, s", time.perf_counter() - started)
