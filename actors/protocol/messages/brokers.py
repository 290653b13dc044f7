"""What brokers, and people about them, ask of the controller. See ``base`` for the rules."""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.storage.model import TopicPartition


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """Which data directory a broker has, and how new a copy of it.

    ``broker_epoch`` is the newest that is written there, -1 for none: a copy that was taken before,
    and put back, has an older one. Without an id nothing is known, as from an earlier build.
    """

    directory_id: str = ""
    broker_epoch: int = -1

    def may_be(self, known: Disk) -> bool:
        """Whether it is neither another than ``known`` nor an older copy, as far as they tell."""
        if "" in (self.directory_id, known.directory_id):
            return True
        is_same = self.directory_id == known.directory_id
        return is_same and self.broker_epoch >= known.broker_epoch


NO_DISK: Final = Disk()
"""What an earlier build tells of its disk."""


class RegisterBrokerReply(Reply, frozen=True, kw_only=True):
    """The broker's epoch, to be named in each heartbeat, and to be written down before the first.

    It is fenced until then.
    """

    broker_epoch: int = -1


class RegisterBrokerRequest(Request[RegisterBrokerReply], frozen=True, kw_only=True):
    """A broker has started. ``directory_id`` is in a file of its data directory, as ``cluster_id``.

    ``problem``: why it has no directory that it may use; then only its number means anything.

    ``directory_epoch``: the newest broker epoch that is written there; if that is the current one
    the broker gets a newer one. ``rack``: brokers of one rack may fail
    together; "" is a rack like others. ``boot_id`` is of the operating system, "" if that does not
    say: after another one, what was not synced may be gone. Source: KIP-631, KIP-858.
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
        """What the broker came with."""
        return Disk(directory_id=self.directory_id, broker_epoch=self.directory_epoch)


class OfflineReplica(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that cannot use its log, or not append to it.

    ``topic_id`` is "" where it does not know its topic's.
    """

    topic_partition: TopicPartition
    topic_id: str


class BrokerHeartbeatReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the broker is not fenced, and its session begins anew.

    ``actors``: the Ray names of those that hold its replicas, for it to watch.
    """

    actors: tuple[str, ...] = ()


class BrokerHeartbeatRequest(Request[BrokerHeartbeatReply], frozen=True, kw_only=True):
    """A registered broker lives.

    ``silent_actors``: those that have not answered it for a session's time. ``offline_replicas``
    and ``refusing_replicas``: what the others have answered. ``unanswered_ms``: how long ago it
    last heard the controller; one that is heard and hears nobody can lead nothing. ``is_kept``: its
    epoch is written in its data directory. Source: KIP-631, KIP-858.
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
    """The actor's loop turns, and these of its replicas are offline.

    ``refusing_replicas`` are not, but their disk refuses what they are to append: to a leader for
    so long that another should lead.
    """

    offline_replicas: tuple[OfflineReplica, ...] = ()
    refusing_replicas: tuple[OfflineReplica, ...] = ()


class PingRequest(Request[PingReply], frozen=True, kw_only=True):
    """A broker asks an actor of its node whether it lives.

    The answer comes after ``hold_ms``: meanwhile the end of the call tells the end of the process.
    """

    method = "ping"
    reply_type = PingReply

    hold_ms: int = 0


class DrainBrokerReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the broker leads nothing that another can, and its replicas are being moved."""


class DrainBrokerRequest(Request[DrainBrokerReply], frozen=True, kw_only=True):
    """Move everything off a broker, or, if not ``is_draining``, use it again. Safe to repeat."""

    method = "drain_broker"
    reply_type = DrainBrokerReply

    broker_id: int
    is_draining: bool = True


class ReassignPartitionReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the reassignment is recorded, and goes on by itself."""


class ReassignPartitionRequest(Request[ReassignPartitionReply], frozen=True, kw_only=True):
    """Move a partition to ``replicas``, preferred leader first; none: cancel what is in progress.

    Safe to repeat. Source: KIP-455.
    """

    method = "reassign_partition"
    reply_type = ReassignPartitionReply

    topic_partition: TopicPartition
    replicas: tuple[int, ...]
