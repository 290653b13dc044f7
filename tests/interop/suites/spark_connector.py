"""Spark's own connector to Kafka, in programs of Spark's: batches, streams, transactions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from kafka_clients import fetched_jars, java
from programs import Programs
from suite import Place

ROOT = Path(__file__).resolve().parents[3]
CONNECTOR = ("spark-kafka-4.2.0", ROOT / "bench" / "sides" / "spark_kafka.pom.xml")
PROGRAM = Path(__file__).with_name("spark_program.py")
PARTITIONS = 3
TIMEOUT_S = 240


def needs() -> None:
    """Java and the connector."""
    java()
    fetched_jars(*CONNECTOR)


def case(name: str, *topics: str, before: Callable[[Place], None] = lambda _: None) -> None:
    """Register a case of the program with the topics that it needs."""

    def run(place: Place) -> None:
        for topic in topics:
            place.cluster.create_topic(topic, PARTITIONS)
        before(place)
        jars = str(fetched_jars(*CONNECTOR))
        given = (jars, place.cluster.bootstrap, name, str(place.directory))
        with (place.directory / "program.txt").open("wb") as said:
            done = subprocess.run(
                [sys.executable, str(PROGRAM), *given],
                stdout=said,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=TIMEOUT_S,
            )
        told = (place.directory / "program.txt").read_text(encoding="utf-8", errors="replace")
        assert done.returncode == 0, told[-1_500:]

    CASES[name] = run


def write_transactions(place: Place) -> None:
    """A committed and an aborted transaction, and a committed one after them."""
    with (
        closing(place.cluster.connect()) as own,
        own.producer(transactional_id="for-spark") as producer,
    ):
        producer.init_transactions()
        for first, is_committed in ((0, True), (1_000, False), (500, True)):
            producer.begin_transaction()
            for number in range(first, first + (1_000 if first == 1_000 else 500)):
                producer.send("spark-committed", b"value %d" % number)
            producer.flush()  # An abort drops what is not sent yet.
            producer.commit_transaction() if is_committed else producer.abort_transaction()


CASES: dict[str, Callable[[Place], None]] = {}
case("batch", "spark-batch")
case("stream", "spark-stream", "spark-copied")
case(
    "transactions",
    *("spark-committed", "spark-committed-copied"),
    before=write_transactions,
)

SPARK = Programs("spark-connector", CASES, needs)
