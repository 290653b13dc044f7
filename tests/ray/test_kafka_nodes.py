"""Kafka's clients on three brokers, each with a gateway on a node of its own; nodes die."""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest
from deadlines import DEADLINE_S, wait_for
from ray_nodes import can_unshare

pytest.importorskip("aiokafka")
pytest.importorskip("kafka")
confluent_kafka = pytest.importorskip("confluent_kafka")

from confluent_kafka.admin import AdminClient  # noqa: E402
from kafka_brokers import ADDRESSES, PARTITIONS, Brokers, started_brokers  # noqa: E402
from kafka_clients import (  # noqa: E402
    COMMITTED,
    Copier,
    Deliveries,
    java_tools,
    new_producer,
    read_to_end,
    read_with_librdkafka,
    write_with_librdkafka,
)

from oncelog.storage.model import (  # noqa: E402
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
)

pytestmark = [pytest.mark.ray, pytest.mark.nodes, pytest.mark.slow]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    if not can_unshare():
        pytest.skip("needs the right to give a process mounts of its own")
    with started_brokers(tmp_path_factory.mktemp("kafka-nodes")) as found:
        yield found


def test_each_broker_is_a_node_and_any_of_them_serves_every_partition_and_group(
    brokers: Brokers,
) -> None:
    topic = brokers.create_topic()
    sent: list[bytes] = []
    for number, address in brokers.addresses.items():
        admin = AdminClient({"bootstrap.servers": address})
        told = admin.describe_cluster(request_timeout=DEADLINE_S).result()
        assert {one.id: f"{one.host}:{one.port}" for one in told.nodes} == brokers.addresses
        replicas = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        assert [sorted(one.replicas) for one in replicas.values()] == [[1, 2, 3]] * PARTITIONS
        values = [b"%d.%d" % (number, one) for one in range(300)]
        write_with_librdkafka(address, topic, values)
        sent += values
        group = f"of-{topic}-at-{number}"
        assert Counter(read_with_librdkafka(address, topic, group, sent)) == Counter(sent)
        (seen,) = admin.describe_consumer_groups([group]).values()
        coordinator = seen.result(timeout=DEADLINE_S).coordinator.id
        assert coordinator == brokers.coordinator(CONSUMER_OFFSETS_TOPIC, group)
    assert {one.leader for one in brokers.topic(topic).partitions.values()} == set(ADDRESSES)


def test_groups_of_all_brokers_are_listed_and_from_where_their_members_call(
    brokers: Brokers,
) -> None:
    tools, topic = java_tools(), brokers.create_topic()
    write_with_librdkafka(brokers.bootstrap, topic, [b"1"])
    # One for each coordinator: a broker tells of those that it leads, so clients ask all.
    led: dict[int, str] = {}
    for number in range(16):
        group = f"listed-{number}"
        led.setdefault(brokers.coordinator(CONSUMER_OFFSETS_TOPIC, group), group)
    asked = brokers.addresses[next(number for number in ADDRESSES if number not in led)]
    for group in led.values():
        read_with_librdkafka(brokers.bootstrap, topic, group, [b"1"])
    at = ("--bootstrap-server", asked)
    command = "consumer.group.ConsumerGroupCommand"
    assert set(led.values()) <= set(tools.run(command, *at, "--list").split())
    admin = AdminClient({"bootstrap.servers": asked})

    def listed() -> set[str]:
        told = admin.list_consumer_groups().result(timeout=DEADLINE_S)
        return {one.group_id for one in told.valid}

    # librdkafka asks those brokers that it knows by then.
    wait_for(lambda: set(led.values()) <= listed(), "all groups", instead=listed)
    group = next(iter(led.values()))
    with closing(Member(brokers.bootstrap, group, topic)) as member:
        wait_for(lambda: member.poll() or member.consumer.assignment(), "a member", look_s=0)
        shown = tools.run(command, *at, "--describe", "--members", "--verbose", "--group", group)
    (row,) = (line for line in shown.splitlines() if line.startswith(group))
    assert "/127.0.0.1" in row
    assert f"{topic}(0,1,2)" in row or f"{topic}:0,1,2" in row


def test_a_gateway_that_hangs_is_told_by_the_status_and_serves_again_once_it_goes_on(
    brokers: Brokers,
) -> None:
    process_id = brokers.gateway(2)
    os.kill(process_id, signal.SIGSTOP)
    try:
        seen = brokers.nodes.status()
        told = {one["condition"]: one["places"] for one in seen["findings"]}
        assert told == {"gateway not serving": ["gateway:0@2 (does not answer)"]}
        assert (seen["state"], seen["serving"]) == ("degraded", True)
        topic = brokers.create_topic()
        write_with_librdkafka(brokers.addresses[1], topic, [b"1"], **{"socket.timeout.ms": 5_000})
        assert read_to_end(brokers.addresses[1], topic) == [b"1"]
    finally:
        os.kill(process_id, signal.SIGCONT)
    brokers.wait_until_whole()
    assert read_to_end(brokers.addresses[2], topic) == [b"1"]


class Member:
    """A member of a group, and what it has read: offset → value of each partition."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                "session.timeout.ms": 10_000,
            }
        )
        self.consumer.subscribe([topic])
        self.read: dict[int, dict[int, bytes]] = defaultdict(dict)

    def close(self) -> None:
        self.consumer.close()

    def poll(self) -> None:
        for message in self.consumer.consume(500, timeout=0.05):
            # What librdkafka tells by the way, such as that a node is gone, is no failure.
            if message.error() is None:
                self.read[message.partition()][message.offset()] = message.value()


def test_a_broker_that_dies_in_mid_work_costs_clients_no_record_and_doubles_none(
    brokers: Brokers,
) -> None:
    """1. An idempotent producer writes, two members of a group read. 2. The node dies that leads
    the group and partitions of the topic. 3. Both go on by themselves, and all is there once.
    4. The node is back, and its gateway serves.
    """
    topic, group = brokers.create_topic(), f"group-{next(_numbers)}"
    values = [b"%d" % number for number in range(6_000)]
    settings = {"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True}
    producer, told = new_producer(settings), Deliveries()
    victim = 0
    with (
        closing(Member(brokers.bootstrap, group, topic)) as first,
        closing(Member(brokers.bootstrap, group, topic)) as second,
    ):

        def read() -> list[dict[int, bytes]]:
            """What both have read of each partition."""
            first.poll()
            second.poll()
            return [{**first.read[n], **second.read[n]} for n in range(PARTITIONS)]

        def has(count: int) -> bool:
            return sum(map(len, read())) >= count

        def are_both_assigned() -> bool:
            read()
            return bool(first.consumer.assignment() and second.consumer.assignment())

        wait_for(are_both_assigned, "both members", look_s=0)
        for number, value in enumerate(values):
            producer.produce(topic, value, on_delivery=told)
            if number % 50 == 0:
                producer.poll(0)
                read()
            if number == len(values) // 3:
                wait_for(partial(has, 1_000), "work of the members", look_s=0)
                victim = brokers.coordinator(CONSUMER_OFFSETS_TOPIC, group)
                assert victim in {led.leader for led in brokers.topic(topic).partitions.values()}
                brokers.kill(victim)
        assert producer.flush(DEADLINE_S) == 0
        assert (told.count, told.errors) == (len(values), [])
        wait_for(partial(has, len(values)), "all records", look_s=0)
        found = read()
    assert Counter(value for part in found for value in part.values()) == Counter(values)
    for part in found:
        in_order = [int(part[offset]) for offset in sorted(part)]
        assert in_order == sorted(in_order)
    left = ",".join(at for n, at in brokers.addresses.items() if n != victim)
    assert Counter(read_to_end(left, topic)) == Counter(values)
    brokers.start(victim)
    brokers.wait_until_whole()
    assert Counter(read_to_end(brokers.addresses[victim], topic)) == Counter(values)


def test_a_java_copiers_transactions_outlive_the_node_of_their_coordinator(
    brokers: Brokers,
) -> None:
    tools = java_tools()
    source, sink = brokers.create_topic(), brokers.create_topic()
    values = [b"%d" % number for number in range(10_000)]
    settings = {"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True}
    producer, told = new_producer(settings), Deliveries()
    for value in values:
        producer.produce(source, value, partition=0, on_delivery=told)
    assert producer.flush(DEADLINE_S) == 0
    assert told.errors == []
    victim = brokers.coordinator(TRANSACTION_STATE_TOPIC, f"copier-{source}")
    with closing(Copier(tools, brokers, source, sink)) as copier:
        assert copier.has_committed(3)
        brokers.kill(victim)
        copier.finish()
    left = ",".join(at for n, at in brokers.addresses.items() if n != victim)
    assert Counter(read_to_end(left, sink, COMMITTED)) == Counter(values)
    brokers.start(victim)
    brokers.wait_until_whole()
