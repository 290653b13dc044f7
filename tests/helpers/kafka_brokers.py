"""A cluster of three brokers on this machine, each with a gateway on a Ray node of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient, NewTopic
from deadlines import DEADLINE_S, wait_for
from kafka_clients import close_producers, free_port
from ray_nodes import Nodes

from oncelog.storage.model import shard_of

ADDRESSES = {1: "127.0.0.2", 2: "127.0.0.3", 3: "127.0.0.4"}
PARTITIONS = 3

_numbers = itertools.count()


class Brokers:
    """Three brokers, whose gateways are at ``addresses``."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.addresses: dict[int, str] = {}

    @property
    def bootstrap(self) -> str:
        """All of them, for ``bootstrap.servers``."""
        return ",".join(self.addresses.values())

    def start(self, number: int) -> None:
        """Start a node, in the rack that librdkafka's tests expect."""
        self.nodes.start_node(
            str(number), ADDRESSES[number], labels=f"broker={number},rack=RACK{number}"
        )

    def kill(self, number: int) -> None:
        self.nodes.kill_raylet_of(str(number))

    def gateway(self, number: int) -> int:
        """The process id of a broker's gateway."""
        for one in psutil.net_connections(kind="tcp4"):
            at = f"{one.laddr.ip}:{one.laddr.port}"
            if one.status == psutil.CONN_LISTEN and one.pid and at == self.addresses[number]:
                return int(one.pid)
        raise AssertionError(f"nobody listens at {self.addresses[number]}")

    def wait_until_whole(self) -> None:
        """Every replica in sync, those of the internal topics too, and each gateway serves."""

        def is_whole() -> bool:
            seen = self.nodes.status()
            return seen.get("state") == "serving" and len(seen["kafka"]) == len(ADDRESSES)

        wait_for(is_whole, "three brokers", look_s=0.5, instead=self.nodes.status)
        told = {one.rpartition(":")[0]: one for one in self.nodes.status()["kafka"]}
        self.addresses = {number: told[host] for number, host in ADDRESSES.items()}

    def create_topic(self) -> str:
        name = f"topic-{next(_numbers)}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        (created,) = admin.create_topics([NewTopic(name, PARTITIONS, 3)]).values()
        created.result(timeout=DEADLINE_S)
        return name

    def topic(self, name: str) -> Any:
        """What Metadata says of a topic."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        return admin.list_topics(name, timeout=DEADLINE_S).topics[name]

    def coordinator(self, topic: str, key: str) -> int:
        """The broker that leads the shard of a group or a transactional id."""
        partitions = self.topic(topic).partitions
        return int(partitions[shard_of(key, len(partitions))].leader)


@contextmanager
def started_brokers(root: Path, *options: str) -> Iterator[Brokers]:
    """Three brokers that are whole; ``options`` are more of ``oncelog start``."""
    nodes = Nodes(root)
    try:
        found = Brokers(nodes)
        for number in ADDRESSES:
            found.start(number)
        started = nodes.start_log("--kafka-port", str(free_port()), *options)
        assert started.returncode == 0, started.stderr
        found.wait_until_whole()
        yield found
    finally:
        close_producers()
        nodes.close()
