"""Where the time of a commit goes: one record on one partition, every step after the other.

The same transactions run on the cluster and in this process alone, where a call is a call of a
method. What a step takes there is Python and one sync; what it takes longer on the cluster is Ray:
packing, sending, waking and switching threads in two processes.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from pathlib import Path
from typing import Final

import oncelog
from clusters.local_cluster import LocalCluster, TimedTransport, timed_producer
from measuring.report import Report, scratch
from oncelog.actors.rpc.actor_transport import ActorTransport
from oncelog.actors.rpc.ray_transport import RayTransport
from oncelog.api.producing.producer import AsyncProducer

TRANSACTIONS: Final = 300
STEPS: Final = ("add_partitions_to_txn", "produce", "end_txn", "write_txn_markers")


async def _transactions_ms(producer: AsyncProducer) -> float:
    """Median milliseconds of a transaction."""
    durations = []
    for _ in range(TRANSACTIONS):
        started = time.perf_counter()
        await producer.begin_transaction()
        await producer.send("profile", b"x" * 1024, partition=0)
        await producer.commit_transaction()
        durations.append(1e3 * (time.perf_counter() - started))
    return statistics.median(durations)


async def _on_ray() -> tuple[TimedTransport, float]:
    transport = TimedTransport(ActorTransport(RayTransport()))
    async with timed_producer(transport, "profile", random.Random(1)) as producer:
        await producer.init_transactions()
        await _transactions_ms(producer)
        transport.milliseconds.clear()
        return transport, await _transactions_ms(producer)


async def _in_process(directory: Path) -> tuple[LocalCluster, float]:
    cluster = LocalCluster(directory)
    await cluster.start()
    await cluster.create_topic("profile", 1)
    async with cluster.producer("profile") as producer:
        await producer.init_transactions()
        await _transactions_ms(producer)
        cluster.transport.milliseconds.clear()
        del cluster.background.work[:], cluster.background.way[:]
        total = await _transactions_ms(producer)
    await cluster.stop()
    return cluster, total


def bench_profile(cluster: oncelog.Cluster, report: Report, root: Path) -> None:
    """A table of the steps of a commit; nothing here is a target."""
    cluster.admin().create_topic("profile", partitions=1)
    ray_transport, ray_total = asyncio.run(_on_ray())
    with scratch(root) as directory:
        local, local_total = asyncio.run(_in_process(directory))
    work, way = (statistics.median(part) for part in (local.background.work, local.background.way))
    own = {step: statistics.median(local.transport.milliseconds[step]) for step in STEPS}
    own["end_txn"] -= own["write_txn_markers"]
    print(f"  {'p50, ms':<24} {'cluster':>8} {'alone':>8} {'sync':>8} {'thread':>8} {'Ray':>8}")
    for step in STEPS:
        taken = ray_transport.milliseconds.get(step)
        on_ray = statistics.median(taken) if taken else float("nan")
        if step == "end_txn":
            # The call of the marker inside it is one more call on Ray.
            name, rest = "end_txn with its marker", own[step] + own["write_txn_markers"]
            print(
                f"  {name:<24} {on_ray:8.2f} {rest:8.2f} {2 * work:8.2f} {2 * way:8.2f} "
                f"{on_ray - rest:8.2f}"
            )
        elif step == "write_txn_markers":
            print(f"  {'- its marker alone':<24} {'':>8} {own[step]:8.2f} {work:8.2f} {way:8.2f}")
        else:
            print(
                f"  {step:<24} {on_ray:8.2f} {own[step]:8.2f} {work:8.2f} {way:8.2f} "
                f"{on_ray - own[step]:8.2f}"
            )
    print(
        f"  {'begin to commit returned':<24} {ray_total:8.2f} {local_total:8.2f} {4 * work:8.2f} "
        f"{4 * way:8.2f} {ray_total - local_total:8.2f}"
    )
    for name, value in (
        ("profile_cluster_ms", ray_total),
        ("profile_ray_ms", ray_total - local_total),
        ("profile_sync_ms", 4 * work),
        ("profile_thread_ms", 4 * way),
        ("profile_python_ms", local_total - 4 * (work + way)),
    ):
        report.figure(name, value, f"{value:8.2f} ms, {100 * value / ray_total:5.1f} %")
