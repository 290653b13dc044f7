"""What shells and clients need from their environment, so that the simulator can replace it.

Production: ``RayTransport``, ``SystemClock``, ``ThreadBackground``, ``ProcessTable``,
``ProcessWatch`` and ``storage.disk.file_system.FileSystem``.
Timers and futures are asyncio's; the simulator brings an event loop with virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from oncelog.actors.protocol.cluster.hosts import OWN_ACTOR, Placement
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.messages.cluster import PartitionMetadata, TopicMetadata
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition

ResultT = TypeVar("ResultT")


class Clock(Protocol):
    """Wall-clock time. Only timeouts and timestamps depend on it, never safety."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...


class ProcessSight(Protocol):
    """Sees the processes of one machine."""

    def lives(self, process: DriverProcess) -> bool | None:
        """Whether the process is alive; ``None`` if it cannot be seen from here."""
        ...


class DriverWatch(Protocol):
    """Knows whether the process of a driver or worker is alive, if the cluster can see it."""

    def is_gone(self, driver: DriverProcess, *, is_member: bool = False) -> bool:
        """Whether the process has ended, as far as is known now.

        Ask again: a process on another machine is watched from the first question on. Members of
        groups, of which there may be many, do not count as others.
        """
        ...


class Transport(Protocol):
    """Calls actors by name. Order and outcome are not guaranteed, but there is an answer."""

    async def call(self, actor: str, request: Request[ReplyT], *, timeout_ms: int) -> ReplyT:
        """Call ``request.method`` of ``actor`` and return its reply. Never raises for a lost call.

        ``NETWORK_EXCEPTION``: the actor is gone, restarting or unknown; ``REQUEST_TIMED_OUT``: no
        answer within ``timeout_ms``. After either the call may still take effect, even later.
        """
        ...


class Background(Protocol):
    """Runs the blocking work of one log beside the event loop, in order, one piece at a time."""

    def run(self, work: Callable[[], ResultT], *, is_small: bool = False) -> Awaitable[ResultT]:
        """Run ``work``; awaiting what is returned gives its result or raises its exception.

        ``work`` is queued when this returns or when the result is first awaited. ``is_small``: it
        is usually so short that it may run before this returns.
        """
        ...


def partition_actor(topic: str, partition: int, broker_id: int) -> str:
    """Ray name of a partition replica."""
    return f"partition:{topic}-{partition}@{broker_id}"


def transaction_actor(shard: int, broker_id: int) -> str:
    """Ray name of a transaction coordinator."""
    return f"transaction:{shard}@{broker_id}"


def group_actor(shard: int, broker_id: int) -> str:
    """Ray name of a group coordinator."""
    return f"group:{shard}@{broker_id}"


def actor_of(tp: TopicPartition, broker_id: int) -> str:
    """Ray name of the actor that holds a replica, coordinators included."""
    if tp.topic == TRANSACTION_STATE_TOPIC:
        return transaction_actor(tp.partition, broker_id)
    if tp.topic == CONSUMER_OFFSETS_TOPIC:
        return group_actor(tp.partition, broker_id)
    return partition_actor(tp.topic, tp.partition, broker_id)


def broker_actor(broker_id: int) -> str:
    """Ray name of a broker's own actor, which registers it."""
    return f"broker:{broker_id}"


def gateway_actor(number: int, broker_id: int) -> str:
    """Ray name of an actor of a broker that Kafka's clients connect to."""
    return f"gateway:{number}@{broker_id}"


def host_actor(host: int, broker_id: int) -> str:
    """Ray name of an actor that holds several replicas of a broker."""
    return f"partitions:{host}@{broker_id}"


def replica_key(topic_id: str, partition: int) -> str:
    """Names a replica within its host, by topic id: never one of another topic of that name."""
    return f"{topic_id}-{partition}"


def address_of(placement: Placement) -> str:
    """The address of a replica for ``Transport``.

    Its own actor, or its host, a slash and the replica's key in the host.
    """
    tp, topic_id, broker_id, host = placement
    if host == OWN_ACTOR:
        return actor_of(tp, broker_id)
    return f"{host_actor(host, broker_id)}/{replica_key(topic_id, tp.partition)}"


def holder_of(placement: Placement) -> str:
    """Ray name of the actor that holds a replica."""
    return address_of(placement).partition("/")[0]


def placements_of(topic: TopicMetadata, partition: PartitionMetadata) -> tuple[Placement, ...]:
    """The replicas of a partition, as the controller described it."""
    tp = TopicPartition(topic.name, partition.partition)
    hosts = partition.hosts or (OWN_ACTOR,) * len(partition.replicas)
    return tuple(
        Placement(tp, topic.topic_id, broker_id, host)
        for broker_id, host in zip(partition.replicas, hosts, strict=True)
    )


def leader_address(topic: TopicMetadata, partition: PartitionMetadata) -> str | None:
    """The address of a partition's leader; ``None`` while there is none."""
    for placement in placements_of(topic, partition):
        if placement.broker_id == partition.leader:
            return address_of(placement)
    if partition.leader < 0:
        return None
    return actor_of(TopicPartition(topic.name, partition.partition), partition.leader)


def follower_address(
    topic: TopicMetadata, partition: PartitionMetadata, broker_id: int
) -> str | None:
    """The address of a partition's follower on a broker; ``None`` if none is in sync there."""
    if broker_id == partition.leader or broker_id not in partition.isr:
        return None
    placements = placements_of(topic, partition)
    return next((address_of(one) for one in placements if one.broker_id == broker_id), None)


CONTROLLER_ACTOR = "controller"
BROKER_ACTORS = "broker:"
"""Prefix of the names of brokers' own actors."""

LOG_ACTORS = (
    CONTROLLER_ACTOR,
    BROKER_ACTORS,
    "partitions:",
    "partition:",
    "transaction:",
    "group:",
    "gateway:",
)
"""Prefixes of the names of actors that hold logs, or serve them."""
WORKER_ACTORS = "process:"
"""Prefix of the names of the workers of jobs."""

ACTOR_CLASSES = (
    "BrokerProcess",
    "ControllerProcess",
    "GatewayProcess",
    "GroupCoordinatorProcess",
    "HostProcess",
    "PartitionProcess",
    "TransactionCoordinatorProcess",
)
"""How Ray names the classes of these actors."""

NAMESPACE = "oncelog"
