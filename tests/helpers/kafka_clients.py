"""A real cluster with a port for Kafka's clients, and these clients as tests use them.

Clients of Kafka call the port of the broker's gateway. oncelog's own connect by the data directory
(``connect_directly``), so the test's process joins no Ray, and another cluster may be in it.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from deadlines import DEADLINE_S, to_its_end, wait_for

from oncelog.api.admin.admin import Admin
from oncelog.api.cli import cluster as cli_cluster
from oncelog.api.client import Cluster, connect_directly
from oncelog.api.session import cluster_connection

HOST = "127.0.0.1"
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
POLL_S = 0.2
TOOLS = "org.apache.kafka.tools"


# --- a cluster ----------------------------------------------------------------------------------


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


@dataclass
class KafkaCluster:
    """A cluster that ``oncelog start`` has started, and where clients of Kafka find it."""

    data_dir: Path
    port: int
    environment: dict[str, str] = field(default_factory=dict)
    addresses: str = ""
    """Those of all brokers, if there are several."""

    @property
    def bootstrap(self) -> str:
        """For ``bootstrap.servers``."""
        return self.addresses or f"{HOST}:{self.port}"

    def run(self, *arguments: str) -> str:
        """What one of oncelog's commands prints."""
        done = subprocess.run(
            [
                *(sys.executable, "-m", "oncelog.api.cli.main", *arguments),
                *("--data-dir", str(self.data_dir)),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
            env=self.environment,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def connect(self) -> Cluster:
        """A connection of oncelog's own clients; not to a cluster with certificates."""
        connected = connect_directly(self.data_dir)
        assert connected is not None, f"no listener of {self.data_dir} answers"
        return connected

    def admin(self, **more: object) -> AdminClient:
        """Kafka's administration."""
        return AdminClient({"bootstrap.servers": self.bootstrap, **more})

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic, as a client of Kafka."""
        admin = self.admin()  # Once it is not referred to it gives up.
        (created,) = admin.create_topics([NewTopic(name, partitions)]).values()
        created.result(timeout=DEADLINE_S)

    def wait_until_decided(self, topic: str) -> None:
        """Until no transaction of it is undecided: a commit is answered before readers see it."""
        admin = self.admin()
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.bootstrap, "group.id": "-"})
        try:
            latest = {one: OffsetSpec.latest() for one in partitions_of(consumer, topic)}
        finally:
            consumer.close()

        def ends(isolation: confluent_kafka.IsolationLevel) -> list[int]:
            found = admin.list_offsets(latest, isolation_level=isolation)
            return [found[one].result(DEADLINE_S).offset for one in latest]

        def is_decided() -> bool:
            committed = ends(confluent_kafka.IsolationLevel.READ_COMMITTED)
            return committed == ends(confluent_kafka.IsolationLevel.READ_UNCOMMITTED)

        wait_for(is_decided, f"the end of all transactions of {topic}")

    def gateway(self) -> int:
        """The process id of whoever listens at the port; 0 if nobody does."""
        for one in psutil.net_connections(kind="tcp4"):
            if one.status == psutil.CONN_LISTEN and one.laddr.port == self.port:
                return int(one.pid or 0)
        return 0

    def kill_gateway(self) -> int:
        """kill -9 the process that Kafka's clients are connected to; its id."""
        process_id = self.gateway()
        assert process_id, f"nobody listens at port {self.port}"
        assert "Gateway" in "".join(psutil.Process(process_id).cmdline())
        os.kill(process_id, signal.SIGKILL)
        return process_id


@contextmanager
def started(root: Path, *options: str, **environment: str) -> Iterator[KafkaCluster]:
    """A cluster of one broker, from the first connection that its gateway takes until the end.

    ``options`` are more of ``oncelog start``.
    """
    unset = {"RAY_ADDRESS", "ONCELOG_DEBUG"}
    given = {name: text for name, text in os.environ.items() if name not in unset}
    one = KafkaCluster(root / "data", free_port(), {**given, **environment})
    try:
        one.run("start", "--num-cpus", "2", "--kafka-port", str(one.port), *options)
        wait_for(one.gateway, f"a listener at port {one.port}")
        yield one
    finally:
        close_producers()
        _end(one.data_dir)


def _end(data_dir: Path) -> None:
    found = cluster_connection.read_discovery(data_dir)
    if found is not None and cli_cluster.is_head(found.process_id):
        os.kill(found.process_id, signal.SIGTERM)
        if not cli_cluster.wait_until_gone(found.process_id, 30_000):
            os.kill(found.process_id, signal.SIGKILL)


_opened: list[Any] = []


def new_producer(settings: dict[str, Any]) -> Any:
    """A producer of confluent-kafka, which ends with the cluster: one that is left tries for ever,
    in threads of its own.
    """
    producer = confluent_kafka.Producer(settings)
    _opened.append(producer)
    return producer


def close_producers() -> None:
    """Close all that ``new_producer`` has made."""
    while _opened:
        with suppress(confluent_kafka.KafkaException):
            _opened.pop().close()
    # What a failed test refers to in its frames, administrators among it, goes with these.
    gc.collect()


# --- writers ------------------------------------------------------------------------------------


class Deliveries:
    """What became of records that librdkafka took: ``on_delivery`` of each."""

    def __init__(self) -> None:
        self.count = 0
        self.errors: list[Any] = []

    def __call__(self, error: Any, _: Any) -> None:
        self.count += 1
        if error is not None:
            self.errors.append(error)


def write_with_librdkafka(bootstrap: str, topic: str, values: Iterable[bytes], **more: Any) -> None:
    """Write as an idempotent producer of confluent-kafka."""
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, **more}
    producer, told = new_producer(settings), Deliveries()
    for value in values:
        producer.produce(topic, value, on_delivery=told)
    assert producer.flush(DEADLINE_S) == 0
    assert told.errors == []


def write_with_kafka_python(bootstrap: str, topic: str, values: Iterable[bytes]) -> None:
    """Write as kafka-python."""
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, acks="all", compression_type="gzip")
    try:
        for sent in [producer.send(topic, value) for value in values]:
            sent.get(timeout=DEADLINE_S)
    finally:
        producer.close(timeout=DEADLINE_S)


def write_with_aiokafka(bootstrap: str, topic: str, values: Iterable[bytes]) -> None:
    """Write as an idempotent producer of aiokafka."""

    async def write() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, compression_type="gzip"
        ) as producer:
            for sent in [await producer.send(topic, value) for value in values]:
                await sent

    to_its_end(write())


WRITERS: dict[str, Callable[..., None]] = {
    "librdkafka": write_with_librdkafka,
    "kafka-python": write_with_kafka_python,
    "aiokafka": write_with_aiokafka,
}


# --- readers ------------------------------------------------------------------------------------


class Values:
    """The values that a reader has found; read on ``until`` those that are expected are there."""

    def __init__(self, wanted: Iterable[bytes]) -> None:
        self.wanted = Counter(wanted)
        self.found: list[bytes] = []
        self._deadline_s = time.monotonic() + DEADLINE_S

    def are_missing(self) -> bool:
        """Whether to read on; fails if that takes too long."""
        missing = self.wanted - Counter(self.found)
        if missing and time.monotonic() > self._deadline_s:
            raise TimeoutError(f"{missing.total()} values never came, such as {min(missing)!r}")
        return bool(missing)


def _reader_settings(bootstrap: str, group: str, isolation: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "isolation_level": isolation,
        "auto_offset_reset": "earliest",
    }


def read_with_librdkafka(
    bootstrap: str, topic: str, group: str, wanted: Iterable[bytes], isolation: str = COMMITTED
) -> list[bytes]:
    """Read in a group until all that is wanted has come, and what comes with the same poll."""
    settings = _reader_settings(bootstrap, group, isolation)
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    consumer, values = confluent_kafka.Consumer(dotted), Values(wanted)
    try:
        consumer.subscribe([topic])
        while values.are_missing():
            for message in consumer.consume(500, timeout=POLL_S):
                assert message.error() is None, message.error()
                values.found.append(message.value())
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return values.found


def read_with_kafka_python(
    bootstrap: str, topic: str, group: str, wanted: Iterable[bytes], isolation: str = COMMITTED
) -> list[bytes]:
    """The same by kafka-python."""
    settings = _reader_settings(bootstrap, group, isolation)
    consumer, values = kafka.KafkaConsumer(topic, **settings), Values(wanted)
    try:
        while values.are_missing():
            for batch in consumer.poll(timeout_ms=int(POLL_S * 1_000)).values():
                values.found += [message.value for message in batch]
        consumer.commit()
    finally:
        consumer.close()
    return values.found


def read_with_aiokafka(
    bootstrap: str, topic: str, group: str, wanted: Iterable[bytes], isolation: str = COMMITTED
) -> list[bytes]:
    """The same by aiokafka."""
    values = Values(wanted)

    async def read() -> None:
        settings = _reader_settings(bootstrap, group, isolation)
        async with aiokafka.AIOKafkaConsumer(topic, **settings) as consumer:
            while values.are_missing():
                for batch in (await consumer.getmany(timeout_ms=int(POLL_S * 1_000))).values():
                    values.found += [message.value for message in batch]
            await consumer.commit()

    to_its_end(read())
    return values.found


READERS: dict[str, Callable[..., list[bytes]]] = {
    "librdkafka": read_with_librdkafka,
    "kafka-python": read_with_kafka_python,
    "aiokafka": read_with_aiokafka,
}


def partitions_of(
    consumer: confluent_kafka.Consumer, topic: str
) -> list[confluent_kafka.TopicPartition]:
    """All partitions of a topic."""
    found = consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
    return [confluent_kafka.TopicPartition(topic, number) for number in sorted(found)]


def read_to_end(bootstrap: str, topic: str, isolation: str = COMMITTED) -> list[bytes]:
    """All values that a reader sees from the beginning to the end as of now."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "of-nobody",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer, found = confluent_kafka.Consumer(settings), []
    try:
        partitions = partitions_of(consumer, topic)
        for one in partitions:
            one.offset = confluent_kafka.OFFSET_BEGINNING
        consumer.assign(partitions)
        open_ones = {one.partition for one in partitions}
        deadline_s = time.monotonic() + DEADLINE_S
        while open_ones:
            assert time.monotonic() < deadline_s, f"no end of partitions {open_ones}"
            for message in consumer.consume(5_000, timeout=POLL_S):
                error = message.error()
                if error is None:
                    found.append(message.value())
                else:
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                    open_ones.discard(message.partition())
    finally:
        consumer.close()
    return found


def read_with_oncelog(
    cluster: Cluster, topic: str, partitions: int, isolation: str = COMMITTED
) -> list[Any]:
    """All records that oncelog's own reader sees to the end as of now."""
    import oncelog

    tps = [oncelog.TopicPartition(topic, number) for number in range(partitions)]
    with cluster.consumer(isolation_level=isolation, auto_offset_reset="earliest") as consumer:
        consumer.assign(tps)
        ends = consumer.end_offsets(tps)
        records: list[Any] = []
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            records += consumer.poll(timeout_ms=5_000, max_records=10_000)
        return records


# --- Java's tools -------------------------------------------------------------------------------


@dataclass(frozen=True)
class JavaTools:
    """Kafka's own programs, of the jars in ``jars``."""

    java: str
    jars: Path

    def command(self, tool: str, *arguments: str) -> list[str]:
        """The command that runs a tool; a small heap, and no time spent on optimising it."""
        options = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{self.jars}/*")
        return [self.java, *options, f"{TOOLS}.{tool}", *arguments]

    def run(self, tool: str, *arguments: str) -> str:
        """What a tool prints, once it has ended well."""
        done = subprocess.run(
            self.command(tool, *arguments),
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def java() -> str:
    """The program ``java``, or the test is skipped."""
    found = shutil.which("java")
    if found is None:
        pytest.skip("no java on this machine")
    return found


def fetched_jars(*of: object) -> Path:
    """The directory of Kafka's tools, or of other jars (``fetch_jars``); or the test is skipped."""
    path = Path(__file__).resolve().parents[1] / "interop" / "kafka_jars.py"
    spec = importlib.util.spec_from_file_location("kafka_jars", path)
    assert spec is not None
    assert spec.loader is not None
    kafka_jars = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kafka_jars)
    try:
        found: Path = kafka_jars.fetch_jars(*of)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"jars cannot be fetched: {error}")
    return found


def java_tools() -> JavaTools:
    """Java and the jars, or the test is skipped."""
    return JavaTools(java(), fetched_jars())


def stop_when(process: subprocess.Popen[Any], is_so: Callable[[], bool]) -> None:
    """SIGSTOP a process at a moment when that is so, and still is so when it has stopped."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        assert process.poll() is None, "the process has ended before that was so"
        assert time.monotonic() < deadline_s, "that was never so"
        if is_so():
            process.send_signal(signal.SIGSTOP)
            if is_so():
                return
            process.send_signal(signal.SIGCONT)


class KilledProgram:
    """A program, as many processes of it as are started, one after the other; each is killed."""

    def __init__(self, command: Sequence[str], printed: Path) -> None:
        self._command, self._printed = command, printed
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a process of it; the one before has to be gone."""
        assert self.process is None
        with self._printed.open("ab") as printed:
            self.process = subprocess.Popen(self._command, stdout=printed, stderr=subprocess.STDOUT)

    def said(self) -> str:
        """What all its processes have printed."""
        return self._printed.read_text(encoding="utf-8", errors="replace")

    def kill_when(self, is_so: Callable[[], bool]) -> None:
        """kill -9 at a moment when that is so."""
        assert self.process is not None
        stop_when(self.process, is_so)
        self.close()

    def close(self) -> None:
        """kill -9, whatever it does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class OpenOutput:
    """Whether a program has output to ``sink`` in an open transaction, of ids with a prefix."""

    def __init__(self, admin: Admin, prefix: str, sink: str) -> None:
        self._admin, self._prefix, self._sink = admin, prefix, sink
        self._begun: set[tuple[str, int, int]] = set()

    def after(self, count: int) -> Callable[[], bool]:
        """Tells whether that is so, once it has seen ``count`` transactions more than before.

        So it is not about one that a killed process has left open.
        """
        least = len(self._begun) + count

        def is_so() -> bool:
            for one in self._admin.list_transactions(states=["Ongoing"]):
                if one.transactional_id.startswith(self._prefix):
                    self._begun.add((one.transactional_id, one.producer_id, one.producer_epoch))
                    if self._sink in {tp.topic for tp in one.partitions}:
                        return len(self._begun) >= least
            return False

        return is_so


class Copier:
    """Kafka's TransactionalMessageCopier, which reads, writes and commits both in transactions."""

    def __init__(self, tools: JavaTools, cluster: KafkaCluster, source: str, sink: str) -> None:
        arguments = [
            *("--broker-list", cluster.bootstrap, "--input-topic", source),
            *("--input-partition", "0", "--output-topic", sink),
            *("--transactional-id", f"copier-{source}", "--consumer-group", f"copier-{source}"),
            *("--transaction-size", "50", "--use-group-metadata"),
            *("--transaction-timeout", "5000"),
        ]
        self._committed_count = 0
        self.process = subprocess.Popen(
            tools.command("TransactionalMessageCopier", *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def has_committed(self, count: int) -> bool:
        """Whether it has told of so many transactions; waits until it has, or has ended."""
        assert self.process.stdout is not None
        while self._committed_count < count:
            line = self.process.stdout.readline()
            assert line, f"the copier has ended with {self.process.wait()}"
            if line.startswith("{") and json.loads(line).get("consumed", 0) > 0:
                self._committed_count += 1
        return True

    def finish(self) -> list[str]:
        """Its last lines, once it has copied all and ended well."""
        out, _ = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, out
        return out.splitlines()

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
