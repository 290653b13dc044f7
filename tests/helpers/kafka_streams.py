"""Kafka Streams' word count on a real cluster, killed in mid transaction: are its counts exact?"""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from kafka_clients import (
    UNCOMMITTED,
    KafkaCluster,
    KilledProgram,
    OpenOutput,
    fetched_jars,
    java,
    read_to_end,
    read_with_librdkafka,
    write_with_librdkafka,
)

SUITES = Path(__file__).resolve().parents[1] / "interop" / "suites"
KAFKA_STREAMS = ("kafka-streams-4.4.0", SUITES / "streams.pom.xml")
COMPILE_TIMEOUT_S = 120
PARTITIONS = 2
WORDS = tuple(f"word{number}" for number in range(25))
WORDS_OF_LINE = 4
LINES_OF_LIFE = 500
TRANSACTIONS_OF_LIFE = 3
"""A process is killed in its third transaction that was seen, or a later one."""


class WordCount(KilledProgram):
    """The application."""

    def __init__(self, cluster: KafkaCluster, work: Path, name: str, **settings: object) -> None:
        self.source, self.sink = f"{name}-lines", f"{name}-counts"
        classes, jars = work / "classes", fetched_jars(*KAFKA_STREAMS)
        given = {
            "bootstrap.servers": cluster.bootstrap,
            "application.id": name,
            "state.dir": work / "state",
            "auto.offset.reset": "earliest",
            "max.poll.records": 50,
            **settings,
        }
        program = SUITES / "WordCount.java"
        subprocess.run(
            [
                *(str(Path(java()).with_name("javac")), "-cp", f"{jars}/*"),
                *("-d", classes, program),
            ],
            check=True,
            timeout=COMPILE_TIMEOUT_S,
        )
        command = [
            *(java(), "-Xmx256m", "-XX:TieredStopAtLevel=1"),
            *("-cp", f"{classes}:{jars}/*", "WordCount"),
            *(self.source, self.sink),
            *(f"{setting}={value}" for setting, value in given.items()),
        ]
        super().__init__(command, work / "word-count.txt")


def lines(count: int) -> list[bytes]:
    """Lines in which each word comes equally often if ``count`` is a multiple of 25."""
    return [
        " ".join(WORDS[(line + 7 * place) % len(WORDS)] for place in range(WORDS_OF_LINE)).encode()
        for line in range(count)
    ]


def expected_counts(written: list[bytes]) -> list[bytes]:
    """What has to be in the sink: each word with each number up to how often it came."""
    totals = Counter(word for line in written for word in line.decode().split())
    return [f"{word} {number}".encode() for word in totals for number in range(1, totals[word] + 1)]


def check_counts(found: list[bytes], written: list[bytes]) -> None:
    """Each word's counts are 1, 2, 3 and so on, each once and in order, to the exact total."""
    assert sorted(found) == sorted(expected_counts(written))
    last: dict[bytes, int] = defaultdict(int)
    for value in found:
        word, number = value.split()
        assert int(number) == last[word] + 1, (word, number, last[word])
        last[word] = int(number)


def count_under_kill(
    cluster: KafkaCluster,
    work: Path,
    name: str,
    kills: int,
    between: Callable[[], object] = lambda: None,
    **settings: object,
) -> tuple[list[bytes], list[bytes]]:
    """The committed counts and the lines, of an application that is killed ``kills`` times.

    Each kill meets it with output in an open transaction. ``between`` is called before each start
    but the first.
    """
    counting = WordCount(cluster, work, name, **settings)
    for topic in (counting.source, counting.sink):
        cluster.create_topic(topic, PARTITIONS)
    written = lines(LINES_OF_LIFE * (kills + 1))
    wanted = expected_counts(written)
    write_with_librdkafka(cluster.bootstrap, counting.source, written, partitioner="random")
    with closing(cluster.connect()) as own:
        output = OpenOutput(own.admin(), f"{name}-", counting.sink)
        try:
            for _ in range(kills):
                counting.start()
                counting.kill_when(output.after(TRANSACTIONS_OF_LIFE))
                assert len(read_to_end(cluster.bootstrap, counting.sink)) < len(wanted)
                between()
            counting.start()
            read_with_librdkafka(cluster.bootstrap, counting.sink, f"reads-{name}", wanted)
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{error}; it said: {counting.said()[-5_000:]}") from error
        finally:
            counting.close()
    assert len(read_to_end(cluster.bootstrap, counting.sink, UNCOMMITTED)) > len(wanted)
    return read_to_end(cluster.bootstrap, counting.sink), written
