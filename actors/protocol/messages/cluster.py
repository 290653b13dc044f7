"""Requests and replies of the controller. See ``base`` for the rules."""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.messages.brokers import NO_DISK, Disk
from oncelog.actors.protocol.tickets import NO_KEYS, ClusterKeys
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_LEADER_EPOCH, NO_PRODUCER_ID, TopicPartition

ANY_REPLICATION: Final = -1
"""Let the controller choose the replication factor."""


class PartitionMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Where a partition is led. ``leader`` is a broker id, -1 if there is none.

    ``hosts`` has for each of ``replicas`` the host that holds it, 0 for an actor of its own.
    ``adding`` and ``removing`` are those of ``replicas`` that a reassignment in progress adds or
    will remove. ``unstarted`` are those of ``isr`` that have never started. ``replication_factor``
    is how many replicas the partition should have with the known brokers; it may have fewer for
    now. ``elr``: replicas outside ``isr`` that have all that is committed, and may lead if none of
    ``isr`` can.
    """

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    hosts: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    unstarted: tuple[int, ...] = ()
    replication_factor: int = 0
    elr: tuple[int, ...] = ()

    def has_log(self, broker_id: int) -> bool:
        """Whether the replica there is in sync and must have a log: without one it lost data."""
        has_started = broker_id in self.isr and broker_id not in self.unstarted
        return has_started and self.leader_epoch != NO_LEADER_EPOCH

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica, but for those that are being added, is not in sync or not there."""
        original = set(self.replicas) - set(self.adding)
        return not original <= set(self.isr) or len(original) < self.replication_factor


class TopicMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """One topic: its id (32 hexadecimal digits, new at each creation), partitions and settings."""

    name: str
    topic_id: str
    partitions: tuple[PartitionMetadata, ...]
    settings: tuple[tuple[str, str], ...] = ()
    settings_version: int = 0

    def find(self, number: int) -> PartitionMetadata | None:
        """One partition: by its index, since they are in order, or else by a search."""
        partitions = self.partitions
        if 0 <= number < len(partitions) and partitions[number].partition == number:
            return partitions[number]
        return next((partition for partition in partitions if partition.partition == number), None)


class BrokerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """One broker: a Ray node with a data directory.

    ``is_live``: its node was alive when the controller last looked, and it is not fenced.
    ``is_fenced``: it was silent for a session, and leads nothing. ``is_draining``: its replicas are
    moved off, and it gets no new ones. ``is_refusing``: its disk refuses appends, by its last
    heartbeat. ``problem``: why it may not join the cluster, "" if it has; a broker that never
    joined has no ``data_dir``.
    """

    broker_id: int
    data_dir: str
    rack: str = ""
    is_live: bool = True
    is_draining: bool = False
    problem: str = ""
    is_fenced: bool = False
    is_refusing: bool = False


class VoterMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that votes for the controller, and so has a copy of the metadata log.

    ``is_behind``: it lacks committed records, for example because it is down.
    """

    broker_id: int
    is_controller: bool = False
    is_behind: bool = False


class MetadataReply(Reply, frozen=True, kw_only=True):
    """The cluster as the controller knows it; ``topics`` are the requested ones that exist.

    ``refused`` are those of the requested names that the caller may not see, whether there are such
    topics or not. A name in neither is of no topic.
    """

    cluster_id: str = ""
    controller_epoch: int = -1
    brokers: tuple[BrokerMetadata, ...] = ()
    topics: tuple[TopicMetadata, ...] = ()
    refused: tuple[str, ...] = ()
    transaction_state_partitions: int = 0
    offsets_partitions: int = 0
    transaction_max_timeout_ms: int = 900_000
    cluster_key_version: int = 0
    process_id: int = -1
    version: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    """The cluster's settings that differ from their defaults, as text."""
    voters: tuple[VoterMetadata, ...] = ()


class MetadataRequest(Request[MetadataReply], frozen=True, kw_only=True):
    """Describe the cluster and some topics; ``topics`` ``None`` means all, internal included."""

    method = "metadata"
    reply_type = MetadataReply

    topics: tuple[str, ...] | None = None


class FindListenerReply(Reply, frozen=True, kw_only=True):
    """Where the actor listens, or ``absence``: why nobody knows.

    ``host`` is "" if it does not listen: then only Ray reaches it. ``token`` is what callers that
    are no users prove to know, with Ray's token if ``is_keyed``; users get none.
    """

    absence: ErrorCode = ErrorCode.NONE
    host: str = ""
    port: int = 0
    token: bytes = b""
    is_keyed: bool = False


class FindListenerRequest(Request[FindListenerReply], frozen=True, kw_only=True):
    """Ask any actor of the cluster where ``actor``, another one, listens, as Ray knows it now."""

    method = "find_listener"
    reply_type = FindListenerReply

    actor: str


class CreateTopicReply(Reply, frozen=True, kw_only=True):
    """The new topic's id; its actors are being started and will answer soon."""

    topic_id: str = ""


class CreateTopicRequest(Request[CreateTopicReply], frozen=True, kw_only=True):
    """Create a topic, durably. ``settings`` are names of ``TopicConfig`` with values as text.

    ``replication_factor`` -1: three, or as many as there are brokers.

    The caller chooses ``topic_id`` (32 hexadecimal digits), so that a retry is recognised. With
    ``validate_only`` nothing changes: the reply is what it would be.
    """

    method = "create_topic"
    reply_type = CreateTopicReply

    name: str
    topic_id: str
    partitions: int
    replication_factor: int = ANY_REPLICATION
    settings: tuple[tuple[str, str], ...] = ()
    validate_only: bool = False


class AlterTopicReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the change is durable; reachable leaders already follow it."""


class AlterTopicRequest(Request[AlterTopicReply], frozen=True, kw_only=True):
    """Change some settings of a topic. ``None`` resets one to its default.

    ``appended`` and ``subtracted`` are members of settings that are lists, as ``cleanup_policy``;
    to add one that is there, or remove one that is not, changes nothing. ``validate_only`` as in
    ``CreateTopicRequest``. Source: KIP-339.
    """

    method = "alter_topic"
    reply_type = AlterTopicReply

    name: str
    changes: tuple[tuple[str, str | None], ...]
    appended: tuple[tuple[str, str], ...] = ()
    subtracted: tuple[tuple[str, str], ...] = ()
    validate_only: bool = False


class CreatePartitionsReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the partitions are durable; actors of the new ones are being started."""


class CreatePartitionsRequest(Request[CreatePartitionsReply], frozen=True, kw_only=True):
    """Add partitions to a topic: ``partitions`` is the new total. Safe to repeat.

    ``validate_only`` as in ``CreateTopicRequest``.
    """

    method = "create_partitions"
    reply_type = CreatePartitionsReply

    name: str
    partitions: int
    validate_only: bool = False


class DeleteTopicReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the topic is durably gone and its actors are being stopped."""


class DeleteTopicRequest(Request[DeleteTopicReply], frozen=True, kw_only=True):
    """Delete a topic and its data; with a ``topic_id`` no other one that has the name by now."""

    method = "delete_topic"
    reply_type = DeleteTopicReply

    name: str
    topic_id: str = ""


class BecomeLeaderReply(Reply, frozen=True, kw_only=True):
    """Who leads in which epoch, durable before the reply, and what a leader needs to know.

    With ``FENCED_LEADER_EPOCH`` ``leader_epoch`` is the current one, to be expected next time.
    ``leader`` is a broker id, -1 if nobody can lead now; ``hosts`` as in ``PartitionMetadata``.
    Empty ``replicas``: there is one replica, and it leads. ``replication_factor`` counts those that
    a reassignment adds only once it is complete; 0: all of ``replicas``.

    ``settings`` have ``settings_version``; everything else of the partition has
    ``partition_version``. ``min_insync_replicas`` follows from both; only leaders of an earlier
    release read it, in a rolling upgrade.
    """

    leader_epoch: int = NO_LEADER_EPOCH
    topic_id: str = ""
    leader: int = -1
    partition_version: int = -1
    replicas: tuple[int, ...] = ()
    hosts: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    min_insync_replicas: int = 1
    keys: ClusterKeys = NO_KEYS
    settings: tuple[tuple[str, str], ...] = ()
    settings_version: int = 0
    transaction_state_partitions: int = 0
    offsets_partitions: int = 0
    replication_factor: int = 0


class BecomeLeaderRequest(Request[BecomeLeaderReply], frozen=True, kw_only=True):
    """A started replica asks for its role; if it should lead, it gets a new leader epoch.

    ``incarnation`` is unique per process start, so retries of one start get one epoch.
    ``expected_epoch`` is the newest epoch the caller knows, -1 for none: if another is current, no
    leader is elected. So neither a late copy of an earlier start's request elects one, nor a start
    with the log of an earlier topic (``topic_id``) of this name. ``has_log``: it has a log of
    ``topic_id``. Without one it asks whether it may begin one, and ``NONE`` allows it: then no
    earlier acknowledgement of it counts any more, durably. ``disk`` is its broker's, as found, and
    ``boot_id`` as in ``RegisterBrokerRequest``.
    """

    method = "become_leader"
    reply_type = BecomeLeaderReply

    topic_partition: TopicPartition
    topic_id: str
    broker_id: int
    incarnation: str
    expected_epoch: int
    has_log: bool = True
    disk: Disk = NO_DISK
    boot_id: str = ""


class LeaderAndIsrReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the replica acts on it; on ``FENCED_LEADER_EPOCH`` it knows a newer epoch."""


class LeaderAndIsrRequest(Request[LeaderAndIsrReply], frozen=True, kw_only=True):
    """The controller tells a replica who leads now, and who is in sync.

    Late and repeated copies are harmless: each names the epoch and the partition's version.
    """

    method = "leader_and_isr"
    reply_type = LeaderAndIsrReply

    topic_partition: TopicPartition
    leadership: BecomeLeaderReply


class AlterIsrReply(Reply, frozen=True, kw_only=True):
    """The partition's state at the controller, also if the change is rejected.

    ``partition_version`` increases with each record of the partition; on ``NONE`` it is the new
    one. ``ineligible``, with ``INELIGIBLE_REPLICA``: the brokers that cannot join now.
    """

    leader_epoch: int = NO_LEADER_EPOCH
    partition_version: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    ineligible: tuple[int, ...] = ()


class AlterIsrRequest(Request[AlterIsrReply], frozen=True, kw_only=True):
    """A leader proposes ``isr``, which includes itself, as the in-sync replicas, durably.

    Nothing changes unless ``leader_epoch`` and ``partition_version`` are the current ones, so a
    late copy does no harm. Source: KIP-497.
    """

    method = "alter_isr"
    reply_type = AlterIsrReply

    topic_partition: TopicPartition
    topic_id: str
    broker_id: int
    leader_epoch: int
    partition_version: int
    isr: tuple[int, ...]


class RotateClusterKeyReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the key of ``key_version`` is durable; reachable actors already know it."""

    key_version: int = 0


class RotateClusterKeyRequest(Request[RotateClusterKeyReply], frozen=True, kw_only=True):
    """Replace the key of ``key_version`` with a new one. A repeated call replaces it once."""

    method = "rotate_cluster_key"
    reply_type = RotateClusterKeyReply

    key_version: int


class ClusterKeysReply(Reply, frozen=True, kw_only=True):
    """The keys that sign tickets."""

    keys: ClusterKeys = NO_KEYS


class ClusterKeysRequest(Request[ClusterKeysReply], frozen=True, kw_only=True):
    """A leader or coordinator asks for the keys: it has seen a newer key version."""

    method = "cluster_keys"
    reply_type = ClusterKeysReply


class LearnKeysReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the actor uses these keys, or newer ones that it already knew."""


class LearnKeysRequest(Request[LearnKeysReply], frozen=True, kw_only=True):
    """The controller sends leaders and coordinators the keys after each change."""

    method = "learn_keys"
    reply_type = LearnKeysReply

    keys: ClusterKeys


class AllocateProducerIdsReply(Reply, frozen=True, kw_only=True):
    """A block of producer ids that is never handed out again."""

    first_producer_id: int = NO_PRODUCER_ID
    count: int = 0


class AllocateProducerIdsRequest(Request[AllocateProducerIdsReply], frozen=True, kw_only=True):
    """Reserve the next block, durably. A lost reply wastes one block and nothing else."""

    method = "allocate_producer_ids"
    reply_type = AllocateProducerIdsReply

    broker_id: int


class HostedReplica(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that a host must hold; ``is_in_sync``: it is in the ISR, so it has a log.

    Any other replica may start empty: it copies what it lacks. ``is_leaving``: the host holds it
    only until it has removed its files.
    """

    topic_partition: TopicPartition
    topic_id: str
    is_in_sync: bool
    is_leaving: bool = False


class HostedReplicasReply(Reply, frozen=True, kw_only=True):
    """All replicas that the host must hold."""

    replicas: tuple[HostedReplica, ...] = ()


class HostedReplicasRequest(Request[HostedReplicasReply], frozen=True, kw_only=True):
    """A host asks which replicas it must hold: when it starts, and after ``hold_replicas``."""

    method = "hosted_replicas"
    reply_type = HostedReplicasReply

    broker_id: int
    host: int


class HoldReplicasReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the host holds what the controller listed after the request was made."""


class HoldReplicasRequest(Request[HoldReplicasReply], frozen=True, kw_only=True):
    """The controller tells a host to ask for its replicas; a late copy is harmless."""

    method = "hold_replicas"
    reply_type = HoldReplicasReply


class ShutdownReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the actor has flushed, written its clean-shutdown mark and released its lock."""


class ShutdownRequest(Request[ShutdownReply], frozen=True, kw_only=True):
    """Stop cleanly. To the controller: stop every actor of the log, then itself.

    ``remove_data`` also deletes the replica's directory, because its topic was deleted. A replica
    of another topic than ``topic_id`` rejects it: a late copy must not stop or delete the next
    topic of that name. "" is only for the controller. ``is_moved``: the partition has moved to
    other brokers. The replica stops serving, asks the controller whether that is still so, and
    starts again if not.
    """

    method = "shutdown"
    reply_type = ShutdownReply

    remove_data: bool = False
    topic_id: str = ""
    is_moved: bool = False
