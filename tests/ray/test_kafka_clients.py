"""Kafka's own clients on a real cluster: nothing but ``bootstrap.servers`` names oncelog."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from deadlines import DEADLINE_S, to_its_end, wait_for

aiokafka = pytest.importorskip("aiokafka")
kafka = pytest.importorskip("kafka")
confluent_kafka = pytest.importorskip("confluent_kafka")

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition  # noqa: E402
from issued_certificates import Authority  # noqa: E402
from kafka_clients import (  # noqa: E402
    COMMITTED,
    READERS,
    UNCOMMITTED,
    WRITERS,
    Copier,
    Deliveries,
    JavaTools,
    KafkaCluster,
    java_tools,
    new_producer,
    partitions_of,
    read_to_end,
    read_with_oncelog,
    started,
    stop_when,
    write_with_librdkafka,
)
from kafka_ray_data import read_with_ray_data  # noqa: E402
from kafka_streams import check_counts, count_under_kill  # noqa: E402

from oncelog.actors.rpc.certificates import FILES, OUR_FILES  # noqa: E402

pytestmark = [pytest.mark.ray, pytest.mark.slow]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
OF_EACH = 2_000
FIRST_MS = int(time.time() * 1_000) - 60_000
POLL_S = 0.2

_numbers = itertools.count()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One cluster for the tests of this file."""
    with started(tmp_path_factory.mktemp("kafka")) as one:
        yield one


@pytest.fixture
def own(served: KafkaCluster) -> Iterator[Any]:
    """A connection of oncelog's own clients to it."""
    with closing(served.connect()) as connected:
        yield connected


@pytest.fixture
def topic(served: KafkaCluster) -> str:
    """A new topic of one partition."""
    name = f"kafka-{next(_numbers)}"
    served.create_topic(name)
    return name


@pytest.fixture(scope="module")
def tools() -> JavaTools:
    """Kafka's own programs; tests that need them are skipped where they cannot be had."""
    return java_tools()


# --- librdkafka -----------------------------------------------------------------------------------


class Member:
    """A consumer of a group, which commits what it has read before it gives up a partition."""

    def __init__(self, served: KafkaCluster, group: str, topic: str) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": served.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 300,
            }
        )
        self.read: list[Any] = []
        self.consumer.subscribe([topic], on_revoke=self._commit)

    def poll(self, count: int = OF_EACH) -> None:
        for message in self.consumer.consume(count, timeout=POLL_S):
            assert message.error() is None, message.error()
            self.read.append(message)

    def partitions(self) -> set[int]:
        return {one.partition for one in self.consumer.assignment()}

    def _commit(self, consumer: Any, _: Any) -> None:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:
                raise
            # Nothing was read since the last commit.


def produce_all_codecs(served: KafkaCluster, topic: str) -> set[bytes]:
    """Records of each codec, with keys, headers and times; their values."""
    told, values = Deliveries(), set()
    for codec in CODECS:
        producer = new_producer(
            {
                "bootstrap.servers": served.bootstrap,
                "enable.idempotence": True,
                "compression.type": codec,
                "linger.ms": 5,
            }
        )
        for number in range(OF_EACH):
            value = f"{codec}-{number}".encode()
            values.add(value)
            producer.produce(
                topic,
                value,
                key=b"of " + value,
                timestamp=FIRST_MS + len(values),
                headers=[("codec", codec.encode()), ("empty", None), ("codec", b"again")],
                on_delivery=told,
            )
        assert producer.flush(DEADLINE_S) == 0
    assert (told.count, told.errors) == (len(CODECS) * OF_EACH, [])
    return values


def read_by_two(served: KafkaCluster, topic: str, group: str, count: int) -> list[Member]:
    """Two members, of which one came when the other was reading; together they read ``count``."""
    first = Member(served, group, topic)
    deadline = time.monotonic() + DEADLINE_S
    while not first.read:
        first.poll(100)
        assert time.monotonic() < deadline
    assert first.partitions() == {0, 1, 2}
    # It reads no further, so that the other begins in the middle of what is there.
    first.consumer.pause(first.consumer.assignment())
    second = Member(served, group, topic)
    while not second.partitions():
        first.poll()
        second.poll()
        assert time.monotonic() < deadline
    assert len(first.read) < count
    while len(first.read) + len(second.read) < count:
        first.consumer.resume(first.consumer.assignment())
        first.poll()
        second.poll()
        assert time.monotonic() < deadline, (len(first.read), len(second.read))
    assert first.partitions() | second.partitions() == {0, 1, 2}
    assert not first.partitions() & second.partitions()
    for member in (first, second):
        member._commit(member.consumer, None)
    return [first, second]


def check_offsets(consumer: Any, topic: str, read: list[Any]) -> None:
    """What a group has committed, where a log begins and ends, and what was written when."""
    partitions = partitions_of(consumer, topic)
    ends = {
        number: 1 + max(one.offset() for one in read if one.partition() == number)
        for number in range(3)
    }
    committed = consumer.committed(partitions, timeout=DEADLINE_S)
    assert {one.partition: one.offset for one in committed} == ends
    for one in partitions:
        marks = consumer.get_watermark_offsets(one, timeout=DEADLINE_S)
        assert marks == (0, ends[one.partition])
    middle_ms = FIRST_MS + len(read) // 2
    for one in partitions:
        one.offset = middle_ms
    found = consumer.offsets_for_times(partitions, timeout=DEADLINE_S)
    assert {one.partition: one.offset for one in found} == {
        number: min(
            one.offset()
            for one in read
            if one.partition() == number and one.timestamp()[1] >= middle_ms
        )
        for number in range(3)
    }


def check_groups(served: KafkaCluster, group: str, members: list[Member]) -> None:
    """A group is listed, described and, once nobody is in it, deleted."""
    admin = served.admin()

    def listed() -> set[str]:
        return {one.group_id for one in admin.list_consumer_groups().result(DEADLINE_S).valid}

    def described() -> Any:
        return admin.describe_consumer_groups([group])[group].result(DEADLINE_S)

    assert group in listed()
    seen = described()
    assert (seen.state.name, len(seen.members)) == ("STABLE", 2)
    assigned = [len(one.assignment.topic_partitions) for one in seen.members]
    assert sum(assigned) == 3
    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    for member in members:
        member.consumer.close()
    wait_for(lambda: described().state.name == "EMPTY", "a group without members")
    admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
    assert group not in listed()


def test_librdkafka_writes_with_all_codecs_reads_in_a_group_and_administers(
    served: KafkaCluster, own: Any
) -> None:
    name = f"kafka-{next(_numbers)}"
    served.create_topic(name, partitions=3)
    values = produce_all_codecs(served, name)
    members = read_by_two(served, name, "clicks", len(values))
    read = [message for member in members for message in member.read]
    assert len(read) == len(values), "each once, also those of partitions that changed hands"
    assert {message.value() for message in read} == values
    for message in read:
        codec = message.value().partition(b"-")[0]
        assert message.key() == b"of " + message.value()
        assert message.headers() == [("codec", codec), ("empty", None), ("codec", b"again")]
    # oncelog's own reader finds what Kafka's has.
    ours = read_with_oncelog(own, name, 3)
    assert sorted(
        (one.partition, one.offset, one.timestamp_ms, one.value) for one in ours
    ) == sorted((one.partition(), one.offset(), one.timestamp()[1], one.value()) for one in read)
    for one in ours:
        codec = one.value.partition(b"-")[0]
        assert one.key == b"of " + one.value
        assert one.headers == (("codec", codec), ("empty", None), ("codec", b"again"))
    check_offsets(members[0].consumer, name, read)
    check_groups(served, "clicks", members)
    admin = served.admin()
    admin.delete_topics([name])[name].result(DEADLINE_S)
    wait_for(lambda: name not in admin.list_topics(timeout=DEADLINE_S).topics, "a deleted topic")


# --- transactions of version 1 --------------------------------------------------------------------


def transactional(served: KafkaCluster, name: str, **more: Any) -> Any:
    """A producer of confluent-kafka that has its transactional id."""
    settings = {"bootstrap.servers": served.bootstrap, "transactional.id": name, "linger.ms": 1}
    producer = new_producer({**settings, **more})
    producer.init_transactions(DEADLINE_S)
    return producer


def test_librdkafka_commits_and_aborts_transactions_over_several_partitions(
    served: KafkaCluster,
) -> None:
    name = f"kafka-{next(_numbers)}"
    served.create_topic(name, partitions=3)
    producer = transactional(served, name)
    committed: set[bytes] = set()
    everything: set[bytes] = set()
    for number in range(8):
        values = {b"%d-%d" % (number, one) for one in range(60)}
        producer.begin_transaction()
        for one, value in enumerate(sorted(values)):
            # Each transaction leaves out a partition, or none.
            if one % 3 != number % 4:
                producer.produce(name, value, partition=one % 3)
                everything.add(value)
                committed |= {value} if number % 3 else set()
        if number % 3:
            producer.commit_transaction(DEADLINE_S)
        else:
            # Of the first one everything was sent, of the others what has left by now.
            assert number or producer.flush(DEADLINE_S) == 0
            producer.abort_transaction(DEADLINE_S)
    assert sorted(read_to_end(served.bootstrap, name)) == sorted(committed)
    found = set(read_to_end(served.bootstrap, name, UNCOMMITTED))
    assert committed < found <= everything


def test_an_abort_of_librdkafka_waits_for_nothing_that_it_may_not_send(
    served: KafkaCluster,
) -> None:
    # A batch that had to be repeated while its transaction is aborted would be waited for until it
    # times out: librdkafka repeats nothing then.
    name = f"kafka-{next(_numbers)}"
    served.create_topic(name, partitions=3)
    producer = transactional(served, f"aborts-{name}")
    for number in range(60):
        producer.begin_transaction()
        for one in range(200):
            producer.produce(name, b"%d-%d" % (number, one))
        # The abort is to find a batch under way, now and then.
        producer.poll(number % 15 / 1_000)
        producer.abort_transaction(10.0)
    producer.begin_transaction()
    producer.produce(name, b"committed")
    producer.commit_transaction(DEADLINE_S)
    assert read_to_end(served.bootstrap, name) == [b"committed"]


def copy_with_librdkafka(served: KafkaCluster, source: str, sink: str, count: int) -> int:
    """Copy ``count`` records in transactions, of which every third is aborted; how many were."""
    producer, aborted = transactional(served, f"copies-{source}"), 0
    settings = {
        "bootstrap.servers": served.bootstrap,
        "group.id": f"copies-{source}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": COMMITTED,
    }
    consumer = Consumer(settings)
    consumer.subscribe([source])
    number, copied = 0, 0
    deadline = time.monotonic() + DEADLINE_S
    try:
        while copied < count:
            assert time.monotonic() < deadline
            messages = consumer.consume(40, timeout=POLL_S)
            if not messages:
                continue
            number += 1
            first = min(messages, key=lambda one: one.offset())
            producer.begin_transaction()
            for message in messages:
                assert message.error() is None, message.error()
                producer.produce(sink, message.value())
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()),
                consumer.consumer_group_metadata(),
                DEADLINE_S,
            )
            if number % 3:
                producer.commit_transaction(DEADLINE_S)
                copied += len(messages)
            else:
                producer.abort_transaction(DEADLINE_S)
                aborted += 1
                consumer.seek(TopicPartition(source, 0, first.offset()))
        (position,) = consumer.committed([TopicPartition(source, 0)], timeout=DEADLINE_S)
        assert position.offset == count
    finally:
        consumer.close()
    return aborted


def test_librdkafka_copies_each_record_once_with_the_positions_of_its_group(
    served: KafkaCluster, topic: str
) -> None:
    sink = f"{topic}-copied"
    served.create_topic(sink)
    values = [b"%d" % number for number in range(400)]
    write_with_librdkafka(served.bootstrap, topic, values)
    aborted = copy_with_librdkafka(served, topic, sink, len(values))
    assert aborted > 1
    assert read_to_end(served.bootstrap, sink) == values
    assert len(read_to_end(served.bootstrap, sink, UNCOMMITTED)) > len(values)


KILLED = """
import sys, time
from confluent_kafka import Producer

bootstrap, topic = sys.argv[1:]
producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"dies-{topic}"})
producer.init_transactions(60)
for name in ("kept", "lost"):
    producer.begin_transaction()
    for number in range(20):
        producer.produce(topic, f"{name}-{number}".encode())
    assert producer.flush(60) == 0
    if name == "kept":
        producer.commit_transaction(60)
print("open", flush=True)
time.sleep(600)
"""


def test_the_successor_of_a_killed_librdkafka_aborts_what_it_has_left_open(
    served: KafkaCluster, own: Any, topic: str
) -> None:
    command = [sys.executable, "-c", KILLED, served.bootstrap, topic]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
    finally:
        process.kill()
        process.communicate()
    assert own.admin().describe_transaction(f"dies-{topic}").state == "Ongoing"
    kept = [b"kept-%d" % number for number in range(20)]
    producer = transactional(served, f"dies-{topic}")
    assert read_to_end(served.bootstrap, topic) == kept
    producer.begin_transaction()
    producer.produce(topic, b"after")
    producer.commit_transaction(DEADLINE_S)
    assert read_to_end(served.bootstrap, topic) == [*kept, b"after"]
    assert len(read_to_end(served.bootstrap, topic, UNCOMMITTED)) == 41


def test_a_librdkafka_that_another_has_replaced_is_fenced_for_good(
    served: KafkaCluster, topic: str
) -> None:
    old = transactional(served, f"twice-{topic}")
    old.begin_transaction()
    old.produce(topic, b"lost")
    assert old.flush(DEADLINE_S) == 0
    new = transactional(served, f"twice-{topic}")
    with pytest.raises(KafkaException) as refused:
        old.commit_transaction(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError._FENCED
    assert refused.value.args[0].fatal()
    new.begin_transaction()
    new.produce(topic, b"kept")
    new.commit_transaction(DEADLINE_S)
    assert read_to_end(served.bootstrap, topic) == [b"kept"]


def test_librdkafkas_transactions_go_on_when_their_gateway_is_killed(
    served: KafkaCluster, topic: str
) -> None:
    producer, values = transactional(served, f"killed-{topic}"), []
    for number in range(4):
        values += [b"%d-%d" % (number, one) for one in range(50)]
        producer.begin_transaction()
        for value in values[-50:]:
            producer.produce(topic, value)
        if number == 1:
            # In mid transaction.
            assert producer.flush(DEADLINE_S) == 0
            served.kill_gateway()
        if number == 2:
            # What is on its way is sent again.
            served.kill_gateway()
        producer.commit_transaction(DEADLINE_S)
    assert read_to_end(served.bootstrap, topic) == values


def test_kafka_python_commits_and_aborts_transactions_and_positions(
    served: KafkaCluster, topic: str
) -> None:
    name = f"python-{topic}"
    producer = kafka.KafkaProducer(bootstrap_servers=served.bootstrap, transactional_id=name)
    committed, everything = [], []
    position = kafka.TopicPartition(topic, 0)
    try:
        producer.init_transactions()
        for number in range(6):
            values = [b"%d-%d" % (number, one) for one in range(20)]
            everything += values
            producer.begin_transaction()
            for sent in [producer.send(topic, value) for value in values]:
                sent.get(timeout=DEADLINE_S)
            told = {position: kafka.structs.OffsetAndMetadata(number + 1, "", -1)}
            producer.send_offsets_to_transaction(told, name)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                committed += values
    finally:
        producer.close(timeout=DEADLINE_S)
    assert read_to_end(served.bootstrap, topic) == committed
    assert read_to_end(served.bootstrap, topic, UNCOMMITTED) == everything
    consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": name})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=DEADLINE_S)
    finally:
        consumer.close()
    assert found.offset == 5


def test_a_transactional_id_of_aiokafka_is_refused_by_name_and_for_good(
    served: KafkaCluster,
) -> None:
    async def begin() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=served.bootstrap, transactional_id="of-aiokafka"
        )
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(aiokafka.errors.TransactionalIdAuthorizationFailed):
        to_its_end(begin())
    told = served.run("logs", "gateway:0@1", "--level", "warning")
    assert "transactional.id='of-aiokafka' was refused" in told
    assert "KIP-360" in told


# --- all clients, and our own ---------------------------------------------------------------------


def write_transactions(own: Any, topic: str) -> tuple[set[bytes], set[bytes]]:
    """What one transaction of oncelog's own has committed, and another aborted."""
    committed = {b"ours-%d" % number for number in range(50)}
    aborted = {b"never-%d" % number for number in range(50)}
    with own.producer(transactional_id=f"ours-{topic}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for value in aborted:
            producer.send(topic, value)
        producer.flush()
        producer.abort_transaction()
        with producer.transaction():
            for value in committed:
                producer.send(topic, value)
    return committed, aborted


def test_each_client_reads_in_a_group_what_all_others_have_written(
    served: KafkaCluster, own: Any, topic: str
) -> None:
    committed, aborted = write_transactions(own, topic)
    for name, write in WRITERS.items():
        values = [f"{name}-{number}".encode() for number in range(50)]
        write(served.bootstrap, topic, values)
        committed |= set(values)
    for name, read in READERS.items():
        group = f"{name}-{topic}"
        assert sorted(read(served.bootstrap, topic, group, committed)) == sorted(committed), name
        # Its group has committed: it is given only what is new.
        new = f"after-{name}".encode()
        write_with_librdkafka(served.bootstrap, topic, [new])
        committed.add(new)
        assert read(served.bootstrap, topic, group, [new]) == [new], name
    everything = sorted(committed | aborted)
    assert sorted(read_to_end(served.bootstrap, topic)) == sorted(committed)
    assert sorted(read_to_end(served.bootstrap, topic, UNCOMMITTED)) == everything
    for isolation, expected in ((COMMITTED, sorted(committed)), (UNCOMMITTED, everything)):
        found = read_with_oncelog(own, topic, 1, isolation)
        assert sorted(one.value for one in found) == expected


# --- many records ---------------------------------------------------------------------------------


def written_by_leaders(served: KafkaCluster) -> int:
    """Bytes that the processes with partitions have written so far, to files and connections."""
    of_ray = psutil.Process(served.gateway()).parent().children()
    holders = [
        one
        for one in of_ray
        if any(name in "".join(one.cmdline()) for name in ("HostProcess", "PartitionProcess"))
    ]
    assert holders
    return sum(one.io_counters().write_chars for one in holders)


def test_many_records_go_from_their_file_to_the_gateway_and_not_through_their_leader(
    served: KafkaCluster, topic: str
) -> None:
    values = [b"%01000d" % number for number in range(8_000)]
    write_with_librdkafka(served.bootstrap, topic, values)
    began = written_by_leaders(served)
    assert read_to_end(served.bootstrap, topic) == values
    assert written_by_leaders(served) - began < sum(map(len, values)) / 4


# --- a killed gateway -----------------------------------------------------------------------------


def test_producers_and_consumers_go_on_when_their_gateway_is_killed(
    served: KafkaCluster, topic: str
) -> None:
    values = [b"%d" % number for number in range(5_000)]
    told = Deliveries()
    producer = new_producer(
        {
            "bootstrap.servers": served.bootstrap,
            "enable.idempotence": True,
            "batch.num.messages": 20,
            "linger.ms": 1,
        }
    )
    member = Member(served, f"reads-{topic}", topic)
    try:
        for value in values[:4_000]:
            producer.produce(topic, value, on_delivery=told)
        wait_for(lambda: producer.poll(0.01) and told.count >= 200, "the first answers", look_s=0)
        wait_for(lambda: member.poll() or member.read, "the first records", look_s=0)
        answered = told.count
        killed = served.kill_gateway()
        assert answered < 4_000, "it is killed while it is asked"
        for value in values[4_000:]:
            producer.produce(topic, value, on_delivery=told)
        assert producer.flush(DEADLINE_S) == 0
        assert (told.count, told.errors) == (len(values), [])
        wait_for(lambda: member.poll() or len(member.read) >= len(values), "all", look_s=0)
        assert [one.value() for one in member.read] == values, "each once, and in order"
        assert served.gateway() not in (0, killed)
    finally:
        member.consumer.close()
    assert read_to_end(served.bootstrap, topic) == values


# --- Java -----------------------------------------------------------------------------------------


def test_a_java_producers_transactions_are_read_as_committed(
    served: KafkaCluster, topic: str, tools: JavaTools
) -> None:
    count = 5_000
    printed = tools.run(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", "100"),
        *("--throughput", "-1", "--bootstrap-server", served.bootstrap),
        *("--transactional-id", f"perf-{topic}", "--transaction-duration-ms", "100"),
    )
    assert f"{count} records sent" in printed
    served.wait_until_decided(topic)
    assert len(read_to_end(served.bootstrap, topic, COMMITTED)) == count


def test_a_java_copier_killed_in_mid_transaction_copies_each_record_once(
    served: KafkaCluster, own: Any, topic: str, tools: JavaTools
) -> None:
    """Timeline: 1. the copier is stopped while its output is in an open transaction 2. kill -9
    3. another of the same id starts, and asks for the committed position 4. if a newer one is in
    the open transaction it waits until that has timed out 5. it begins, which aborts what is open.
    """
    sink = f"{topic}-copied"
    served.create_topic(sink)
    values = [b"%d" % number for number in range(10_000)]
    write_with_librdkafka(served.bootstrap, topic, values)
    admin = own.admin()

    def is_open() -> bool:
        seen = admin.describe_transaction(f"copier-{topic}")
        return seen.state == "Ongoing" and sink in {tp.topic for tp in seen.partitions}

    copier = Copier(tools, served, topic, sink)
    try:
        stop_when(copier.process, lambda: copier.has_committed(3) and is_open())
        copier.process.kill()
    finally:
        copier.close()
    before = read_to_end(served.bootstrap, sink, COMMITTED)
    assert 0 < len(before) < len(values)
    again = Copier(tools, served, topic, sink)
    try:
        again.finish()
    finally:
        again.close()
    served.wait_until_decided(sink)
    assert read_to_end(served.bootstrap, sink, COMMITTED) == values
    assert len(read_to_end(served.bootstrap, sink, UNCOMMITTED)) > len(values), "one was aborted"


# --- programs -------------------------------------------------------------------------------------


def test_kafka_streams_counts_each_word_exactly_once_however_often_it_is_killed(
    served: KafkaCluster, tmp_path: Path
) -> None:
    # The next process is the same member: the group does not wait until the last one is given up.
    settings = {"group.instance.id": "counts"}
    check_counts(*count_under_kill(served, tmp_path, "words", kills=2, **settings))


def test_ray_data_reads_each_record_of_a_topic_once(served: KafkaCluster) -> None:
    topic, count = f"kafka-{next(_numbers)}", 5_000
    served.create_topic(topic, partitions=3)
    values = [f"{number}" for number in range(count)]
    encoded = [value.encode() for value in values]
    write_with_librdkafka(served.bootstrap, topic, encoded, partitioner="random")
    rows = read_with_ray_data(served, topics=topic)
    assert sorted(row["value"] for row in rows) == sorted(values)
    ends = [1 + max(row["offset"] for row in rows if row["partition"] == one) for one in range(3)]
    assert {(row["partition"], row["offset"]) for row in rows} == {
        (partition, offset) for partition in range(3) for offset in range(ends[partition])
    }


# --- users ----------------------------------------------------------------------------------------


class Refusals:
    """The codes of what librdkafka tells of its connections."""

    def __init__(self, **settings: Any) -> None:
        self.codes: list[int] = []
        self._producer = new_producer({**settings, "error_cb": self._tell})

    def _tell(self, error: KafkaError) -> None:
        self.codes.append(error.code())

    def wait_for(self, code: int) -> None:
        wait_for(lambda: self._producer.poll(POLL_S) or code in self.codes, f"code {code}")

    def topics(self) -> set[str]:
        return set(self._producer.list_topics(timeout=DEADLINE_S).topics)


def test_who_does_not_log_in_is_let_in_only_while_no_rules_count(
    served: KafkaCluster, own: Any, topic: str
) -> None:
    admin, servers = own.admin(), {"bootstrap.servers": served.bootstrap}
    assert topic in Refusals(**servers).topics()
    admin.set_authorization(is_on=True)
    try:
        anonymous = Refusals(**servers)
        anonymous.wait_for(KafkaError._ALL_BROKERS_DOWN)
    finally:
        admin.set_authorization(is_on=False)
    assert topic in anonymous.topics(), "it was the rules"


RULES = """
import sys
from pathlib import Path
from oncelog import Acl, Operation, Resource
from oncelog.api.client import connect_directly

data_dir, password = sys.argv[1:]
with connect_directly(Path(data_dir)) as cluster:
    admin = cluster.admin()
    for topic in ("hers", "others"):
        admin.create_topic(topic)
    admin.create_user("alice", password)
    admin.create_acls([
        Acl(principal="User:alice", resource=Resource.TOPIC, name="hers", operation=operation)
        for operation in (Operation.WRITE, Operation.READ)
    ])
    admin.set_authorization(is_on=True)
"""


def test_a_user_logs_in_by_scram_over_tls_and_may_what_acls_say(tmp_path: Path) -> None:
    import ray

    authority, password = Authority(tmp_path, "ours"), "of alice alone"
    issued = authority.issue("127.0.0.1", ray.util.get_node_ip_address())
    secured = {ours: issued[rays] for ours, rays in zip(OUR_FILES, FILES, strict=True)}
    with started(tmp_path, **secured) as cluster:
        ruled = subprocess.run(
            [sys.executable, "-c", RULES, str(cluster.data_dir), password],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
            env=cluster.environment,
        )
        assert ruled.returncode == 0, ruled.stderr
        over_tls = {
            "bootstrap.servers": cluster.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority.path),
        }
        by_scram = {
            **over_tls,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
        }
        alice = {**by_scram, "sasl.password": password, "enable.idempotence": True}
        told = {"hers": Deliveries(), "others": Deliveries()}
        producer = new_producer(alice)
        for name, deliveries in told.items():
            producer.produce(name, b"by alice", on_delivery=deliveries)
        assert producer.flush(DEADLINE_S) == 0
        assert (told["hers"].count, told["hers"].errors) == (1, [])
        refused = [error.code() for error in told["others"].errors]
        assert refused == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
        wrong = Refusals(**by_scram, **{"sasl.password": "of bob"})
        wrong.wait_for(KafkaError._AUTHENTICATION)
        # Over TLS somebody without a certificate of the cluster's has to log in.
        nobody = Refusals(**over_tls)
        nobody.wait_for(KafkaError._ALL_BROKERS_DOWN)
        assert KafkaError._SSL not in nobody.codes, "the certificate is not what was wrong"
        plain = Refusals(**{"bootstrap.servers": cluster.bootstrap})
        plain.wait_for(KafkaError._ALL_BROKERS_DOWN)
        seen = Refusals(**alice).topics()
        assert {name for name in seen if not name.startswith("__")} == {"hers"}
