"""Requests of brokers, and about brokers, to the controller. See ``base`` for the rules."""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's data directory, and how new that copy of it is.

    ``broker_epoch`` is the newest one written there, -1 if none: a restored backup has an older
    one. Without an id nothing is known, as from an earlier build.
    """

    directory_id: str = ""
    broker_epoch: int = -1

    def may_be(self, known: Disk) -> bool:
        """Whether this may be the directory ``known`` and no older copy, as far as both tell."""
        if "" in (self.directory_id, known.directory_id):
            return True
        is_same = self.directory_id == known.directory_id
        return is_same and self.broker_epoch >= known.broker_epoch


NO_DISK: Final = Disk()
"""The disk of an earlier build, which says nothing about it."""


class RegisterBrokerReply(Reply, frozen=True, kw_only=True):
    """The broker's epoch; it must be durable at the broker before the first heartbeat names it.

    The broker is fenced until that heartbeat.
    """

    broker_epoch: int = -1


class RegisterBrokerRequest(Request[RegisterBrokerReply], frozen=True, kw_only=True):
    """A broker has started. Its data directory has ``directory_id`` and ``cluster_id`` in a file.

    ``problem``: why it has no usable directory; then only its number is valid.

    ``directory_epoch``: the newest broker epoch written there; if that is the current one the
    broker gets a newer one. ``rack``: brokers of one rack may fail together; "" is a rack like
    others. ``boot_id`` is the operating system's, "" if unknown: if it changes, data that was not
    synced may be lost. Source: KIP-631, KIP-858.
    """

    method = "register_broker"
    reply_type = RegisterBrokerReply

    broker_id: int
    directory_id: str = ""
    data_dir: str = ""
    rack: str = ""
    cluster_id: str = ""
    problem: str = ""
    directory_epoch: int = -1
    boot_id: str = ""

    @property
    def disk(self) -> Disk:
        """The disk that the broker reports."""
        return Disk(directory_id=self.directory_id, broker_epoch=self.directory_epoch)


class OfflineReplica(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that cannot use its log, or cannot append to it.

    ``topic_id`` is "" if the replica does not know it.
    """

    topic_partition: TopicPartition
    topic_id: str


class BrokerHeartbeatReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the broker is not fenced, and its session restarts.

    ``actors``: the Ray names of the actors that hold its replicas, for the broker to watch.
    """

    actors: tuple[str, ...] = ()


class BrokerHeartbeatRequest(Request[BrokerHeartbeatReply], frozen=True, kw_only=True):
    """A registered broker is alive.

    ``silent_actors``: actors that have not answered it for the time of a session.
    ``offline_replicas`` and ``refusing_replicas``: what the other actors answered.
    ``unanswered_ms``: time since it last heard the controller; a broker that cannot hear the
    controller must not lead. ``is_kept``: its epoch is written in its data directory. Source:
    KIP-631, KIP-858.
    """

    method = "broker_heartbeat"
    reply_type = BrokerHeartbeatReply

    broker_id: int
    broker_epoch: int
    silent_actors: tuple[str, ...] = ()
    offline_replicas: tuple[OfflineReplica, ...] = ()
    unanswered_ms: int = 0
    is_kept: bool = False
    refusing_replicas: tuple[OfflineReplica, ...] = ()


class PingReply(Reply, frozen=True, kw_only=True):
    """The actor's event loop runs; ``offline_replicas`` lists its replicas that are offline.

    ``refusing_replicas`` are online, but their disk refuses appends; a leader is listed once
    another should lead.
    """

    offline_replicas: tuple[OfflineReplica, ...] = ()
    refusing_replicas: tuple[OfflineReplica, ...] = ()


class PingRequest(Request[PingReply], frozen=True, kw_only=True):
    """A broker asks an actor of its node whether it is alive.

    The answer comes after ``hold_ms``; if the call ends earlier, the process has died.
    """

    method = "ping"
    reply_type = PingReply

    hold_ms: int = 0


class DescribeProcessesReply(Reply, frozen=True, kw_only=True):
    """Whether each process lives, in the order of the request; ``None``: it cannot be seen."""

    lives: tuple[bool | None, ...] = ()


class DescribeProcessesRequest(Request[DescribeProcessesReply], frozen=True, kw_only=True):
    """Ask a broker's actor, or the controller, which processes of its machine live.

    The answer is news: nobody may lose a record if it is wrong.
    """

    method = "describe_processes"
    reply_type = DescribeProcessesReply

    processes: tuple[DriverProcess, ...]


class FindKafkaListenerReply(Reply, frozen=True, kw_only=True):
    """Where clients of Kafka connect to; ``BROKER_NOT_AVAILABLE`` while the port is not open."""

    host: str = ""
    port: int = 0


class FindKafkaListenerRequest(Request[FindKafkaListenerReply], frozen=True, kw_only=True):
    """Ask a broker's gateway where it listens: gateways tell their clients of each other."""

    method = "find_kafka_listener"
    reply_type = FindKafkaListenerReply


class DrainBrokerReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the broker leads only what no other can, and its replicas are being moved."""


class DrainBrokerRequest(Request[DrainBrokerReply], frozen=True, kw_only=True):
    """Move everything off a broker; with ``is_draining`` False, use it again. Safe to repeat."""

    method = "drain_broker"
    reply_type = DrainBrokerReply

    broker_id: int
    is_draining: bool = True


class ReassignPartitionReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the reassignment is recorded, and goes on by itself."""


class ReassignPartitionRequest(Request[ReassignPartitionReply], frozen=True, kw_only=True):
    """Move a partition to ``replicas``, preferred leader first; empty: cancel the reassignment.

    Safe to repeat. Source: KIP-455.
    """

    method = "reassign_partition"
    reply_type = ReassignPartitionReply

    topic_partition: TopicPartition
    replicas: tuple[int, ...]


class PartitionElection(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads a partition after an election, -1 for nobody.

    ``PREFERRED_LEADER_NOT_AVAILABLE``: its preferred leader cannot lead now.
    """

    topic_partition: TopicPartition
    leader: int = -1
    error: ErrorCode = ErrorCode.NONE


class ElectLeadersReply(Reply, frozen=True, kw_only=True):
    """One result per partition; who leads is durable."""

    elections: tuple[PartitionElection, ...] = ()


class ElectLeadersRequest(Request[ElectLeadersReply], frozen=True, kw_only=True):
    """Have the preferred leaders lead again, of some partitions or of all. Safe to repeat.

    Source: KIP-460; unclean elections are not offered.
    """

    method = "elect_leaders"
    reply_type = ElectLeadersReply

    topic_partitions: tuple[TopicPartition, ...] | None = None
