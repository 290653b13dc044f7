"""Flink's own connector to Kafka, in a Flink within one process."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from kafka_clients import fetched_jars, java, read_to_end, write_with_librdkafka
from programs import Programs
from suite import Place

SUITES = Path(__file__).parent
FLINK = ("kafka-flink-2.0.1", SUITES / "flink.pom.xml")
OPENED = ("java.base/java.util", "java.base/java.lang", "java.base/java.time")
TIMEOUT_S = 150
COUNT = 5_000
PARTITIONS = 2


def needs() -> None:
    """Java and Flink."""
    java()
    fetched_jars(*FLINK)


def copy(place: Place, guarantee: str, names: str = "INCREMENTING", failures: int = 0) -> None:
    """Copy what a transaction has committed and a producer has written, each record once.

    After a failure the sink goes on with transactions of the job before: each subtask commits them
    by a producer of its own, to which it gives their producer id and epoch.
    """
    source = f"flink-{guarantee}-{names}-{failures}".lower()
    sink = f"{source}-copied"
    for topic in (source, sink):
        place.cluster.create_topic(topic, PARTITIONS)
    values = [b"%d" % number for number in range(COUNT)]
    write_with_librdkafka(place.cluster.bootstrap, source, values, partitioner="random")
    with (
        closing(place.cluster.connect()) as own,
        own.producer(transactional_id=source) as producer,
    ):
        producer.init_transactions()
        for is_committed in (False, True):
            producer.begin_transaction()
            for number in range(100):
                producer.send(source, b"%s %d" % (str(is_committed).encode(), number))
            producer.flush()  # An abort drops what is not sent yet.
            producer.commit_transaction() if is_committed else producer.abort_transaction()
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
    jars, classes = fetched_jars(*FLINK), place.directory / "classes"
    # A program of one source file has a class loader that Flink's tasks do not know.
    compiler = [str(Path(java()).with_name("javac")), "-cp", f"{jars}/*", "-d", str(classes)]
    subprocess.run([*compiler, str(SUITES / "FlinkCopy.java")], check=True, timeout=TIMEOUT_S)
    with (place.directory / "flink.txt").open("wb") as said:
        done = subprocess.run(
            [
                *(java(), "-Xmx768m", *opened, "-cp", f"{classes}:{jars}/*", "FlinkCopy"),
                *(place.cluster.bootstrap, source, sink, guarantee, names, str(failures)),
            ],
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=TIMEOUT_S,
        )
    told = (place.directory / "flink.txt").read_text(encoding="utf-8", errors="replace")
    assert done.returncode == 0, _cause(told)
    assert "copied, 0 failures left" in told, told[-1_000:]
    wanted = [*values, *(b"True %d" % number for number in range(100))]
    assert sorted(read_to_end(place.cluster.bootstrap, sink)) == sorted(wanted)


def _cause(told: str) -> str:
    """The last of the causes in what Java has printed."""
    causes = [line for line in told.splitlines() if line.startswith(("Caused by", "Exception"))]
    return causes[-1] if causes else told[-1_000:]


CASES: dict[str, Callable[[Place], None]] = {
    "copy-at-least-once": partial(copy, guarantee="AT_LEAST_ONCE"),
    "copy-exactly-once": partial(copy, guarantee="EXACTLY_ONCE"),
    "copy-exactly-once-with-failures": partial(copy, guarantee="EXACTLY_ONCE", failures=4),
    "copy-exactly-once-with-failures-and-pooled-ids": partial(
        copy, guarantee="EXACTLY_ONCE", names="POOLING", failures=4
    ),
}

FLINK_CONNECTOR = Programs("flink-connector", CASES, needs)
