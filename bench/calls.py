"""What a call between processes costs either way: over a connection of our own, and by Ray.

``./run bench calls [--rounds N]``. The same method of the same actor, which does nothing, is called
on both in turn; what counts is the ratio. The run is appended to ``bench/results/calls.jsonl``.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

from measuring.report import ROUNDS, Report, save
from oncelog.actors.process.ray_environment import keep_output_clean

RESULTS: Final = Path(__file__).resolve().parent / "results" / "calls.jsonl"
NAME: Final = "empty"
ONE_BY_ONE: Final = 200
TOGETHER: Final = 16
PER_CALLER: Final = 50
TIMEOUT_MS: Final = 30_000
FASTER_AT_LEAST: Final = 2.0
"""Below this the connections are not worth their lines (``docs/adr/0010``)."""


async def _measure(report: Report) -> None:
    from oncelog.actors.interfaces import Transport
    from oncelog.actors.protocol.messages.partition import ProduceRequest
    from oncelog.actors.rpc.actor_transport import ActorTransport
    from oncelog.actors.rpc.ray_transport import RayTransport
    from oncelog.storage.model import TopicPartition

    ways: dict[str, Transport] = {
        "ray": RayTransport(),
        "connection": ActorTransport(RayTransport()),
    }
    request = ProduceRequest(topic_partition=TopicPartition("calls", 0), batch=b"b" * 1_024)

    async def calls(transport: Transport, count: int) -> None:
        for _ in range(count):
            reply = await transport.call(NAME, request, timeout_ms=TIMEOUT_MS)
            assert reply.base_offset == len(request.batch), reply

    async def one_by_one_ms(transport: Transport) -> float:
        started = time.perf_counter()
        await calls(transport, ONE_BY_ONE)
        return 1e3 * (time.perf_counter() - started) / ONE_BY_ONE

    async def together_per_s(transport: Transport) -> float:
        started = time.perf_counter()
        await asyncio.gather(*(calls(transport, PER_CALLER) for _ in range(TOGETHER)))
        return TOGETHER * PER_CALLER / (time.perf_counter() - started)

    for transport in ways.values():
        await calls(transport, ONE_BY_ONE)
    taken: dict[str, list[float]] = {way: [] for way in ways}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(report.rounds):
        for way, transport in ways.items():
            taken[way].append(await one_by_one_ms(transport))
            rates[way].append(await together_per_s(transport))
    for way in ways:
        one, many = statistics.median(taken[way]), statistics.median(rates[way])
        report.figure(f"{way}_ms", one, f"{one:8.3f} ms a call, one by one")
        report.figure(f"{way}_per_s", many, f"{many:8.0f} calls/s, {TOGETHER} together")
    for name, samples, is_rate in (("one_by_one", taken, False), ("together", rates, True)):
        pairs = zip(samples["connection"], samples["ray"], strict=True)
        faster = [own / other if is_rate else other / own for own, other in pairs]
        report.target(f"{name}_faster_than_ray", statistics.median(faster), FASTER_AT_LEAST)


def main() -> int:
    """Measure, and append what was found; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    # Before Ray is imported.
    keep_output_clean()
    import ray

    from clusters.empty_actor import EmptyProcess
    from oncelog.actors.interfaces import NAMESPACE

    report = Report(rounds=options.rounds)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        make_remote: Any = ray.remote
        actor = make_remote(num_cpus=0, max_concurrency=1_000)(EmptyProcess)
        handle = actor.options(name=NAME, namespace=NAMESPACE).remote()
        asyncio.run(_measure(report))
        del handle
    finally:
        ray.shutdown()
    save(RESULTS, "calls", report)
    return int(not all(target["met"] for target in report.targets))


if __name__ == "__main__":
    sys.exit(main())
