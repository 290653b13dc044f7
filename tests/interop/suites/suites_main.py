"""Test suites of Kafka's clients, against the port that a broker serves them at.

    ./run kafka-suites [NAME ...] [--only PATTERN] [--directory DIR] [--port PORT]

Each suite gets a cluster of its own on this machine. Its sources are fetched and built once, into a
cache directory. What each test printed is in DIR. The exit status is 0 if every test did what its
table (``tables/NAME.toml``) expects, 1 if one did not, 77 if a suite cannot be had here.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from debezium import DEBEZIUM  # noqa: E402
from flink import FLINK_CONNECTOR  # noqa: E402
from franz_go import FranzGo  # noqa: E402
from java_tools import JAVA_TOOLS  # noqa: E402
from kafka_brokers import started_brokers  # noqa: E402
from kafka_clients import KafkaCluster, started  # noqa: E402
from kafka_connect import KAFKA_CONNECT  # noqa: E402
from kafka_python import KafkaPython  # noqa: E402
from kcat import Kcat  # noqa: E402
from librdkafka import SCENARIOS, Librdkafka  # noqa: E402
from ray_data_connector import RAY_DATA  # noqa: E402
from sources import say  # noqa: E402
from spark_connector import SPARK  # noqa: E402
from streams import STREAMS  # noqa: E402
from suite import (  # noqa: E402
    Place,
    Suite,
    UnavailableError,
    judge,
    read_table,
    stale_lines,
    to_run,
)

SUITES: tuple[Suite, ...] = (
    *map(Librdkafka, SCENARIOS),
    KafkaPython(),
    Kcat(),
    JAVA_TOOLS,
    STREAMS,
    KAFKA_CONNECT,
    DEBEZIUM,
    SPARK,
    FLINK_CONNECTOR,
    RAY_DATA,
    FranzGo(),
)
UNAVAILABLE = 77


def main() -> int:
    """Run the suites that are named, or all; the exit status."""
    names = [suite.name for suite in SUITES]
    parser = argparse.ArgumentParser(
        prog="./run kafka-suites",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="tests, such as '008*'")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="for logs; kept")
    parser.add_argument(
        "--port", type=int, help="of another broker on this machine, to see what passes there"
    )
    args = parser.parse_args()
    unknown = set(args.names) - set(names)
    if unknown:
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    directory = args.directory or Path(tempfile.mkdtemp(prefix="oncelog-suites-"))
    wrong: list[str] = []
    missing = False
    for suite in SUITES:
        if args.names and suite.name not in args.names:
            continue
        try:
            wrong += run_suite(suite, directory / suite.name, args.only, args.port)
        except UnavailableError as error:
            missing = True
            say(f"{suite.name}: skipped: {error}")
    for line in wrong:
        say(f"WRONG  {line}")
    say(f"kafka-suites: {len(wrong)} wrong; what tests printed is in {directory}")
    return 1 if wrong else UNAVAILABLE if missing else 0


def run_suite(suite: Suite, directory: Path, only: str, port: int | None) -> list[str]:
    """Run one on a cluster of its own, or what is at ``port``; what its table does not expect."""
    suite.prepare()
    table, tests = read_table(suite.name), suite.tests()
    wrong = stale_lines(tests, table)
    chosen = [test for test in to_run(tests, table) if fnmatch.fnmatch(test, only)]
    if not chosen:
        say(f"{suite.name}: none of its tests is chosen")
        return wrong
    directory.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    began_s = time.monotonic()
    with cluster_of(suite, directory) if port is None else other(port) as cluster:
        for result in suite.run(chosen, Place(cluster, directory)):
            verdict = judge(result, table)
            counts[result.status.value] += 1
            wrong += [f"{suite.name}: {verdict}"] if verdict else []
            mark = "WRONG" if verdict else "ok"
            say(
                f"{mark:5} {suite.name} {result.test} {result.status.value} "
                f"in {result.seconds:.1f} s {result.why[:200]}"
            )
    told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    say(
        f"{suite.name}: {told}, {len(tests) - len(to_run(tests, table))} left out, "
        f"in {time.monotonic() - began_s:.0f} s"
    )
    return wrong


@contextmanager
def cluster_of(suite: Suite, directory: Path) -> Iterator[KafkaCluster]:
    """A cluster that is made for a suite."""
    settings = [f"--config={one}" for one in suite.settings]
    if not suite.is_of_three_brokers:
        with started(directory, *settings) as cluster:
            yield cluster
        return
    with started_brokers(directory, *settings) as brokers:
        yield KafkaCluster(Path(), 0, addresses=brokers.bootstrap)


def other(port: int) -> AbstractContextManager[KafkaCluster]:
    """A broker that others have started."""
    return nullcontext(KafkaCluster(Path(), port))


if __name__ == "__main__":
    sys.exit(main())
