"""What it costs that a program is a user and ACLs count, beside a program of the Ray cluster.

``./run bench users [--rounds N]``. Both use one cluster, in turn, and ACLs count for both; the
program is a super user. The run is appended to ``bench/results/users.jsonl``.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from measuring.report import ROUNDS, Report, save
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.process.ray_environment import keep_output_clean

RESULTS: Final = Path(__file__).resolve().parent / "results" / "users.jsonl"
TOPIC: Final = "bench"
USER: Final = "alice"
PASSWORD: Final = "of the bench"
COMMITS: Final = 200
RECORDS: Final = 100_000
RECORD: Final = b"r" * 100
CONNECTIONS: Final = 500
AT_ONCE: Final = 50
TIMEOUT_MS: Final = 30_000
AT_LEAST: Final = 0.97
CONNECTIONS_AT_LEAST: Final = 1_000.0


def _commits_per_s(cluster: Any, name: str) -> float:
    with cluster.producer(transactional_id=f"bench-{name}") as producer:
        producer.init_transactions()
        started = time.perf_counter()
        for _ in range(COMMITS):
            with producer.transaction():
                producer.send(TOPIC, value=RECORD, partition=0)
        return COMMITS / (time.perf_counter() - started)


def _sends_per_s(cluster: Any, _name: str) -> float:
    with cluster.producer() as producer:
        started = time.perf_counter()
        for _ in range(RECORDS):
            producer.send(TOPIC, value=RECORD)
        producer.flush()
        return RECORDS / (time.perf_counter() - started)


def _reads_per_s(cluster: Any, _name: str) -> float:
    from oncelog import TopicPartition

    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(TOPIC, 1)])
        count, started = 0, time.perf_counter()
        while count < RECORDS // 2:
            count += len(consumer.poll(timeout_ms=1_000, max_records=10_000))
        return count / (time.perf_counter() - started)


MEASURED: Final[dict[str, Callable[[Any, str], float]]] = {
    "commits of one record": _commits_per_s,
    "records sent": _sends_per_s,
    "records read": _reads_per_s,
}


def _measure(report: Report, ways: dict[str, Any]) -> None:
    for what, run in MEASURED.items():
        for name, cluster in ways.items():
            run(cluster, name)
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(report.rounds):
            for name, cluster in ways.items():
                rates[name].append(run(cluster, name))
        for name, samples in rates.items():
            rate = statistics.median(samples)
            report.figure(f"{name}_{what}".replace(" ", "_"), rate, f"{rate:10.0f} {what}/s")
        pairs = zip(rates["user"], rates["program"], strict=True)
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        report.target(f"{what}, of a program's".replace(" ", "_"), ratio, AT_LEAST)


async def _logins_per_s(actor: str) -> float:
    """Connections of a user that one actor accepts, each with its login."""
    from oncelog.actors.rpc.actor_transport import ActorConnection, connect
    from oncelog.actors.rpc.handshake import UserIdentity
    from oncelog.actors.rpc.listener import ListenerAddress
    from oncelog.actors.rpc.ray_transport import RayTransport

    address = await RayTransport().listener_of(actor, timeout_ms=TIMEOUT_MS)
    assert isinstance(address, ListenerAddress), address
    identity = UserIdentity(USER, PASSWORD)
    left = CONNECTIONS

    async def log_in() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            made = await connect(address, timeout_ms=TIMEOUT_MS, identity=identity)
            assert isinstance(made, ActorConnection), made
            made.close()

    await log_in_once(connect, address, identity)
    started = time.perf_counter()
    await asyncio.gather(*(log_in() for _ in range(AT_ONCE)))
    return CONNECTIONS / (time.perf_counter() - started)


async def log_in_once(connect: Any, address: Any, identity: Any) -> None:
    """The keys of the password are computed once, which is not what is measured."""
    made = await connect(address, timeout_ms=TIMEOUT_MS, identity=identity)
    made.close()


def main() -> int:
    """Measure, and append what was found; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    # Before Ray is imported.
    keep_output_clean()
    import oncelog
    from oncelog import Acl, Operation, Resource

    report = Report(rounds=options.rounds)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "password"
        file.write_text(PASSWORD, encoding="utf-8")
        cluster = oncelog.init(Path(directory) / "data", num_cpus=2)
        try:
            admin = cluster.admin()
            admin.create_topic(TOPIC, partitions=2)
            admin.create_user(USER, PASSWORD)
            wanted = (
                (Resource.TOPIC, TOPIC, Operation.WRITE),
                (Resource.TOPIC, TOPIC, Operation.READ),
                (Resource.TRANSACTIONAL_ID, "*", Operation.WRITE),
            )
            admin.create_acls(
                [
                    Acl(principal=f"User:{USER}", resource=kind, name=name, operation=operation)
                    for kind, name, operation in wanted
                ]
            )
            admin.set_authorization(True)
            user = oncelog.connect(cluster.address, user=USER, password_file=file)
            _measure(report, {"program": cluster, "user": user})
            logins = [asyncio.run(_logins_per_s(CONTROLLER_ACTOR)) for _ in range(3)]
            report.target("logins_per_s", statistics.median(logins), CONNECTIONS_AT_LEAST)
            user.close()
        finally:
            cluster.shutdown()
    save(RESULTS, "users", report)
    return int(not all(target["met"] for target in report.targets))


if __name__ == "__main__":
    sys.exit(main())
