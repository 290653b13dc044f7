"""Kafka Connect: a worker in distributed mode that is killed, with Kafka's own connectors.

Its tasks write and read topics; its own state is in compacted topics, and the group of its workers
has the type ``connect``.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from deadlines import wait_for
from kafka_clients import (
    COMMITTED,
    HOST,
    UNCOMMITTED,
    KilledProgram,
    OpenOutput,
    fetched_jars,
    java,
    read_to_end,
    read_with_librdkafka,
    write_with_librdkafka,
)
from programs import Programs
from suite import Place

CONNECT = ("kafka-connect-4.3.1", Path(__file__).with_name("kafka_connect.pom.xml"))
ANSWER_TIMEOUT_S = 100
BAD_REQUEST = 400
LOOK_S = 0.5
QUIET = ("common", "clients.admin", "connect.runtime.rest")
"""Packages that tell much, of each request of ours."""
NONE: Mapping[str, object] = {}
STRINGS = "org.apache.kafka.connect.storage.StringConverter"
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
KILLS = 3
LINES_OF_LIFE = 1_000
SOURCE = {"connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector"}
SINK = {"connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector"}
EXACTLY_ONCE = {
    "exactly.once.source.support": "enabled",
    # A worker that starts waits until the transaction that a killed one has left open times out.
    "producer.transaction.timeout.ms": 5_000,
    # A commit sends all batches at once. If some were sent before, it may overtake the last one.
    "producer.linger.ms": 1_000,
}
EACH_POLL = {"exactly.once.support": "required", "transaction.boundary": "poll"}
"""A transaction is what a task has read at once."""
LINES_OF_TRANSACTION = 10
TRANSACTIONS_OF_LIFE = 3
"""A worker is killed in its third transaction that was seen, or a later one."""


def needs() -> None:
    """Java, Kafka Connect and its connectors."""
    java()
    fetched_jars(*CONNECT)


class Worker(KilledProgram):
    """A worker in distributed mode."""

    def __init__(self, place: Place, name: str, settings: Mapping[str, object] = NONE) -> None:
        given = {
            "bootstrap.servers": place.cluster.bootstrap,
            "group.id": name,
            "listeners": f"http://{HOST}:0",
            "plugin.discovery": "service_load",
            "key.converter": STRINGS,
            "value.converter": STRINGS,
            "offset.flush.interval.ms": 500,
            # A killed worker and its consumers are missed soon, and the next one takes all tasks.
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 1_000,
            "consumer.session.timeout.ms": 6_000,
            "consumer.heartbeat.interval.ms": 1_000,
            "scheduled.rebalance.max.delay.ms": 0,
            **{f"{one}.storage.topic": f"{name}-{one}s" for one in ("config", "offset")},
            "status.storage.topic": f"{name}-status",
            **{f"{one}.storage.replication.factor": 1 for one in ("config", "offset", "status")},
            **{f"{one}.storage.partitions": 2 for one in ("offset", "status")},
            **settings,
        }
        lines = [f"{setting}={value}\n" for setting, value in given.items()]
        properties = place.directory / "worker.properties"
        properties.write_text("".join(lines), encoding="utf-8")
        command = [
            *(java(), "-Xmx384m", "-XX:TieredStopAtLevel=1"),
            *(f"-Dorg.slf4j.simpleLogger.log.org.apache.kafka.{one}=warn" for one in QUIET),
            *("-cp", f"{fetched_jars(*CONNECT)}/*"),
            "org.apache.kafka.connect.cli.ConnectDistributed",
            str(properties),
        ]
        super().__init__(command, place.directory / "worker.txt")

    def configure(self, connector: str, settings: Mapping[str, object]) -> None:
        """Create a connector, or change its settings, once the worker takes orders."""
        given = {name: str(value) for name, value in settings.items()}
        self._told("PUT", f"connectors/{connector}/config", {"name": connector, **given})

    def offsets(self, connector: str) -> list[dict[str, Any]]:
        """What its positions are, by partition of the source or topic."""
        told = self._told("GET", f"connectors/{connector}/offsets")
        found: list[dict[str, Any]] = told["offsets"]
        return found

    def wait_for_position(self, connector: str, field: str, value: int) -> None:
        """Until its only position is that, durably."""
        found: list[Any] = []

        def is_so() -> bool:
            found[:] = [one["offset"] for one in self.offsets(connector)]
            return [one[field] for one in found] == [value]

        wait_for(is_so, f"{field} {value} of {connector}", look_s=LOOK_S, instead=lambda: found)

    def _told(self, method: str, path: str, body: object = None) -> Any:
        """What the worker answers; it is asked again while it starts, and while others join."""
        answers: list[Any] = []
        refusals: list[str] = ["nothing"]

        def is_answered() -> bool:
            port = self._port()
            if not port:
                return False
            request = urllib.request.Request(
                f"http://{HOST}:{port}/{path}",
                method=method,
                data=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
            )
            try:
                with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:
                    answers.append(json.load(answer))
            except urllib.error.HTTPError as error:
                refusals.append(f"{error.code} {error.read().decode(errors='replace')}")
                if error.code == BAD_REQUEST:
                    raise AssertionError(refusals[-1]) from error
            except OSError as error:
                refusals.append(str(error))
            return bool(answers)

        what = f"answer to {method} {path}"
        wait_for(is_answered, what, look_s=LOOK_S, instead=lambda: refusals[-1])
        return answers[-1]

    def _port(self) -> int:
        """Where its process listens; 0 if it does not yet."""
        assert self.process is not None
        assert self.process.poll() is None, f"the worker has ended: {self.said()[-2_000:]}"
        for one in psutil.Process(self.process.pid).net_connections(kind="tcp"):
            if one.status == psutil.CONN_LISTEN:
                return int(one.laddr.port)
        return 0


# --- files ----------------------------------------------------------------------------------------


class Lines:
    """A file that a connector reads, and the lines that were written to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written: list[bytes] = []

    def append(self, count: int) -> None:
        """Write so many more lines."""
        more = [b"line %d" % (len(self.written) + number) for number in range(count)]
        with self.path.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in more))
        self.written += more


def killed(place: Place) -> None:
    """From a file to a topic to a file: killed when all is committed, it goes on from there."""
    name = "connect-killed"
    place.cluster.create_topic(name)
    lines, copy = Lines(place.directory / "lines.txt"), place.directory / "copied.txt"
    copy.touch()
    with closing(Worker(place, name)) as worker:
        for life in range(KILLS + 1):
            lines.append(LINES_OF_LIFE)
            worker.start()
            if not life:
                worker.configure("source", {**SOURCE, "file": lines.path, "topic": name})
                worker.configure("sink", {**SINK, "file": copy, "topics": name})
            worker.wait_for_position("source", "position", lines.path.stat().st_size)
            worker.wait_for_position("sink", "kafka_offset", len(lines.written))
            worker.close()
            assert read_to_end(place.cluster.bootstrap, name) == lines.written
            assert copy.read_bytes().splitlines() == lines.written


def killed_while_it_writes(
    place: Place, name: str, between: Callable[[Place], object] = lambda _: None
) -> None:
    """Exactly once from a file to a topic: it is killed in mid transaction, again and again."""
    place.cluster.create_topic(name)
    lines = Lines(place.directory / "lines.txt")
    lines.append(LINES_OF_LIFE * (KILLS + 1))
    source = {**SOURCE, **EACH_POLL, "file": lines.path, "topic": name}
    with (
        closing(place.cluster.connect()) as own,
        closing(Worker(place, name, EXACTLY_ONCE)) as worker,
    ):
        output = OpenOutput(own.admin(), f"{name}-", name)
        for life in range(KILLS):
            worker.start()
            if not life:
                worker.configure("source", {**source, "batch.size": LINES_OF_TRANSACTION})
            worker.kill_when(output.after(TRANSACTIONS_OF_LIFE))
            found = read_to_end(place.cluster.bootstrap, name)
            assert found == lines.written[: len(found)]
            assert len(found) < len(lines.written)
            between(place)
        worker.start()
        # The connector keeps lines back that are more than one batch, until more are written.
        worker.configure("source", source)
        worker.wait_for_position("source", "position", lines.path.stat().st_size)
    assert read_to_end(place.cluster.bootstrap, name) == lines.written
    assert len(read_to_end(place.cluster.bootstrap, name, UNCOMMITTED)) > len(lines.written)


# --- MirrorMaker ----------------------------------------------------------------------------------


def mirror_killed(place: Place) -> None:
    """Exactly once from topics to topics by two tasks: killed in mid transaction, then by one task.

    The tasks of before are fenced then, by an administrator.
    """
    name, topics = "connect-mirror", ("mirrored-0", "mirrored-1")
    bootstrap = place.cluster.bootstrap
    written = [b"value %d" % number for number in range(LINES_OF_LIFE * (KILLS + 1))]
    for topic in topics:
        place.cluster.create_topic(topic)
        write_with_librdkafka(bootstrap, topic, written)
    connector = {
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "topics": ",".join(topics),
        **{f"{one}.cluster.alias": one for one in ("source", "target")},
        **{f"{one}.cluster.bootstrap.servers": bootstrap for one in ("source", "target")},
        **{f"{one}.converter": BYTES for one in ("key", "value")},
        "replication.factor": 1,
        "offset-syncs.topic.replication.factor": 1,
        "source.consumer.isolation.level": COMMITTED,
        "source.consumer.max.poll.records": LINES_OF_TRANSACTION,
        **EACH_POLL,
    }
    copies = [f"source.{topic}" for topic in topics]
    with (
        closing(place.cluster.connect()) as own,
        closing(Worker(place, name, EXACTLY_ONCE)) as worker,
    ):
        output = OpenOutput(own.admin(), f"{name}-", copies[0])
        for life in range(KILLS):
            worker.start()
            if not life:
                worker.configure("mirror", {**connector, "tasks.max": 2})
            worker.kill_when(output.after(TRANSACTIONS_OF_LIFE))
            for copy in copies:
                found = read_to_end(bootstrap, copy)
                assert found == written[: len(found)]
                assert len(found) < len(written)
        worker.start()
        large = {"tasks.max": 1, "source.consumer.max.poll.records": LINES_OF_LIFE}
        worker.configure("mirror", {**connector, **large})
        for number, copy in enumerate(copies):
            read_with_librdkafka(bootstrap, copy, f"reads-{name}-{number}", written)
        states = {one.transactional_id: one.state for one in own.admin().list_transactions()}
    for copy in copies:
        assert read_to_end(bootstrap, copy) == written
    assert states[f"{name}-mirror-1"] == "Empty", "an administrator has taken its epoch"


CASES: dict[str, Callable[[Place], None]] = {
    "worker-killed": killed,
    "exactly-once-source-killed": partial(killed_while_it_writes, name="connect-exactly-once"),
    "exactly-once-source-killed-and-the-gateway-too": partial(
        killed_while_it_writes,
        name="connect-gateway-too",
        between=lambda place: place.cluster.kill_gateway(),
    ),
    "exactly-once-mirror-killed": mirror_killed,
}

KAFKA_CONNECT = Programs("kafka-connect", CASES, needs)
