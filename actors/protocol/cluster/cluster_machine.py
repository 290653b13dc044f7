"""The controller's machine: the cluster's identity, leaders, epochs and producer ids.

Rules. What an answer hands out (an epoch, a block of ids, a topic) is durable first. A leader epoch
only increases, by compare-and-set: an election names the epoch before it. One start of a replica
gets one epoch, however often it asks. A topic id is never used twice.

One file: every decision reads the state that only ``apply`` changes.

| request | state | answer |
|---|---|---|
| become_leader | partition unknown | UNKNOWN_TOPIC_OR_PARTITION |
| become_leader | another topic had the name | UNKNOWN_TOPIC_ID |
| become_leader | caller is no replica of it | NOT_LEADER_OR_FOLLOWER |
| become_leader | on another disk than its broker's, or an older copy | KAFKA_STORAGE_ERROR |
| become_leader | it has no log, and must have one | KAFKA_STORAGE_ERROR |
| become_leader | it has no log, and need not have one | who leads: it may begin one |
| become_leader | same incarnation leads | its epoch again, nothing logged |
| become_leader | another epoch than expected is current | FENCED_LEADER_EPOCH, and which |
| become_leader | it must lead, see ``elections`` | epoch + 1 |
| become_leader | its first start, and it is in sync | who leads; logged that it has started |
| become_leader | else | who leads, nothing logged; but see ``elections`` |
| create_topic | same name and id | its id again (a retry) |
| create_topic | same name | TOPIC_ALREADY_EXISTS |
| create_partitions | unknown, internal | as alter_topic |
| create_partitions | the current number (a retry) | NONE, nothing logged |
| create_partitions | fewer, or too many | INVALID_PARTITIONS |
| alter_topic | unknown | UNKNOWN_TOPIC_OR_PARTITION |
| alter_topic | internal | INVALID_TOPIC_EXCEPTION |
| alter_topic | a setting is unknown or invalid | INVALID_CONFIG |
| alter_topic | nothing changes (a retry) | NONE, nothing logged |
| delete_topic | unknown | UNKNOWN_TOPIC_OR_PARTITION |
| delete_topic | internal | INVALID_TOPIC_EXCEPTION |
| rotate_cluster_key | of the current version | a new key, version + 1 |
| rotate_cluster_key | of the version before (a retry) | NONE, nothing logged |
| rotate_cluster_key | of another version | INVALID_REQUEST |
| alter_users, alter_acls, alter_authorization | | see ``access_control`` |
| register_broker, broker_heartbeat, drain_broker | | see ``brokers`` |
| alter_isr | | see ``elections`` |
| reassign_partition | | see ``reassignment`` |
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from msgspec import structs

from oncelog.actors.protocol.cluster.access_control import AccessControl
from oncelog.actors.protocol.cluster.cluster_records import (
    AccessChanged,
    BrokerChanged,
    BrokerRegistered,
    ClusterFounded,
    ClusterKeyRotated,
    ClusterRecord,
    ClusterSnapshot,
    IsrChanged,
    LeaderElected,
    PartitionsCreated,
    ProducerIdsAllocated,
    ReplicasChanged,
    SnapshotPart,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
    TopicSnapshot,
    VotersChanged,
    decision,
    decode_cluster_record,
    with_parts_opened,
)
from oncelog.actors.protocol.cluster.cluster_state import (
    NO_LEADER,
    BrokerState,
    PartitionState,
    TopicState,
    described,
    partitions_of,
    registered,
    registrations_of,
    snapshot_of,
    topic_in,
)
from oncelog.actors.protocol.cluster.elections import (
    after_announcement,
    after_follower_start,
    after_return,
    after_start,
)
from oncelog.actors.protocol.cluster.hosts import HostRules, Placement
from oncelog.actors.protocol.cluster.placement import (
    check_new_partitions,
    check_new_topic,
    factor_of,
    min_insync_of,
    placed,
    replication_of,
    wanted_of,
)
from oncelog.actors.protocol.effects import Decision, LogRecord, refused
from oncelog.actors.protocol.invariants import invariant
from oncelog.actors.protocol.messages.cluster import (
    AllocateProducerIdsReply,
    AllocateProducerIdsRequest,
    AlterTopicReply,
    AlterTopicRequest,
    BecomeLeaderReply,
    BecomeLeaderRequest,
    CreatePartitionsReply,
    CreatePartitionsRequest,
    CreateTopicReply,
    CreateTopicRequest,
    DeleteTopicReply,
    DeleteTopicRequest,
    HostedReplica,
    MetadataReply,
    RotateClusterKeyReply,
    RotateClusterKeyRequest,
    TopicMetadata,
)
from oncelog.actors.protocol.tickets import NO_KEYS, ClusterKeys
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from oncelog.storage.settings import refused as refused_value

PRODUCER_ID_BLOCK_COUNT: Final = 1_000

DELETED_TOPICS_MAX: Final = 10_000
"""Deleted topic ids that are remembered, so that a late call cannot create one again.

Calls are late by minutes at most.
"""

ALONE: Final = HostRules()
"""Every replica in an actor of its own."""

Settings: TypeAlias = tuple[tuple[str, str], ...]
SettingsCheck: TypeAlias = Callable[[dict[str, str]], Settings]
"""Checks all settings of a topic; returns those to store, or raises ``InvalidSettingError``."""


LISTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"cleanup_policy": ("compact", "delete")}
)
"""The settings of a topic that are lists, and their members in the order that they are written."""

LIST_DEFAULTS: Final[Mapping[str, str]] = MappingProxyType({"cleanup_policy": "delete"})
"""What such a setting is if the topic does not say."""


class ClusterMachine:
    """Cluster metadata, changed only by ``apply``."""

    def __init__(self) -> None:
        self.founded: ClusterFounded | None = None
        self.keys = NO_KEYS
        self.access = AccessControl()
        self.voters: tuple[int, ...] = ()
        """The brokers that elect the controller: see ``quorum``."""
        self._brokers: dict[int, BrokerState] = {}
        self._topics: dict[str, TopicState] = {}
        self._names_by_id: dict[str, str] = {}
        self._deleted: dict[str, None] = {}
        """Ids of the last ``DELETED_TOPICS_MAX`` deleted topics, oldest first."""
        self._next_producer_id = 0
        self._unannounced: dict[TopicPartition, None] = {}
        self._refusing: frozenset[int] = frozenset()
        self.election_count = 0
        """Leaders elected since the cluster was founded."""
        self._began_early = False
        """Whether the log begins with records of before its snapshot: see ``_is_before_start``."""
        self._next_part: int | None = None
        """The next part of the snapshot at the start of the log, while it is being read."""

    # --- decide ---------------------------------------------------------------------------

    def decide_founding(
        self,
        founded: ClusterFounded,
        broker: BrokerRegistered,
        topic_ids: tuple[str, str],
        rules: HostRules = ALONE,
    ) -> Decision[MetadataReply]:
        """Found the cluster with its first broker and the two internal topics, once."""
        if self.founded is not None:
            return Decision(reply=MetadataReply())
        internal = (
            (TRANSACTION_STATE_TOPIC, founded.transaction_state_partitions),
            (CONSUMER_OFFSETS_TOPIC, founded.offsets_partitions),
        )
        hosts = iter(rules.choose(((broker.broker_id,),) * sum(count for _, count in internal), {}))
        topics = [
            TopicCreated(
                name=name,
                topic_id=topic_id,
                replicas=((broker.broker_id,),) * count,
                settings=(),
                hosts=tuple(itertools.islice(hosts, count)),
            )
            for (name, count), topic_id in zip(internal, topic_ids, strict=True)
        ]
        return decision(MetadataReply(), founded, broker, *topics)

    def decide_create_topic(
        self,
        request: CreateTopicRequest,
        rules: HostRules = ALONE,
    ) -> Decision[CreateTopicReply]:
        """Create a topic: place its partitions on brokers, and on hosts by ``rules``."""
        error, detail = check_new_topic(request, self._topics, self._brokers)
        if error is not ErrorCode.NONE:
            return refused(request, error, detail)
        if request.name in self._topics:
            return Decision(reply=CreateTopicReply(topic_id=request.topic_id))
        if self._has_known(request.topic_id) or len(request.topic_id) != 32:
            detail = f"topic id {request.topic_id!r} cannot be used"
            return refused(request, ErrorCode.INVALID_REQUEST, detail)
        factor = replication_of(request, self._brokers)
        replicas = placed(request.partitions, factor, self._topics, self._brokers)
        record = TopicCreated(
            name=request.name,
            topic_id=request.topic_id,
            replicas=replicas,
            settings=request.settings,
            hosts=rules.choose(replicas, self.held()),
            replication_factor=wanted_of(request),
        )
        records = () if request.validate_only else (record,)
        return decision(CreateTopicReply(topic_id=request.topic_id), *records)

    def decide_alter_topic(
        self, request: AlterTopicRequest, check: SettingsCheck
    ) -> Decision[AlterTopicReply]:
        """Change settings of a user topic; ``check`` gets all of its settings."""
        topic = self._topics.get(request.name)
        if request.name in INTERNAL_TOPICS:
            return refused(request, ErrorCode.INVALID_TOPIC_EXCEPTION)
        if topic is None:
            return refused(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        changed = {name: value for name, value in request.changes if value is not None}
        removed = {name for name, value in request.changes if value is None}
        kept = {name: value for name, value in topic.settings if name not in removed}
        try:
            settings = check(with_members({**kept, **changed}, request))
        except InvalidSettingError as refusal:
            return refused(request, ErrorCode.INVALID_CONFIG, str(refusal))
        factor = factor_of(topic)
        if (minimum := min_insync_of(settings, factor)) > factor:
            detail = f"min_insync_replicas={minimum}: give 1 to {factor}, the replication factor"
            return refused(request, ErrorCode.INVALID_CONFIG, detail)
        if settings == topic.settings or request.validate_only:
            return Decision(reply=AlterTopicReply())
        return decision(
            AlterTopicReply(), TopicConfigured(topic_id=topic.topic_id, settings=settings)
        )

    def decide_create_partitions(
        self,
        request: CreatePartitionsRequest,
        rules: HostRules = ALONE,
    ) -> Decision[CreatePartitionsReply]:
        """Add partitions to a user topic; see ``decide_create_topic``."""
        error, detail = check_new_partitions(request, self._topics, self._brokers)
        if error is not ErrorCode.NONE:
            return refused(request, error, detail)
        topic = self._topics[request.name]
        count = len(topic.partitions)
        if request.partitions == count:
            return Decision(reply=CreatePartitionsReply())
        more = request.partitions - count
        replicas = placed(more, factor_of(topic), self._topics, self._brokers)
        record = PartitionsCreated(
            topic_id=topic.topic_id,
            first_partition=count,
            replicas=replicas,
            hosts=rules.choose(replicas, self.held()),
            replication_factor=topic.partitions[0].replication_factor,
        )
        records = () if request.validate_only else (record,)
        return decision(CreatePartitionsReply(), *records)

    def decide_delete_topic(self, request: DeleteTopicRequest) -> Decision[DeleteTopicReply]:
        """Delete a user topic."""
        topic = self._topics.get(request.name)
        if request.name in INTERNAL_TOPICS:
            return refused(request, ErrorCode.INVALID_TOPIC_EXCEPTION)
        if request.topic_id and (topic is None or topic.topic_id != request.topic_id):
            return refused(request, ErrorCode.UNKNOWN_TOPIC_ID)
        if topic is None:
            return refused(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return decision(DeleteTopicReply(), TopicDeleted(topic_id=topic.topic_id))

    def decide_become_leader(self, request: BecomeLeaderRequest) -> Decision[BecomeLeaderReply]:
        """Give a started replica the epoch after the one it expects, if that is current (I-08)."""
        found = self._find(request.topic_partition)
        if found is None:
            return refused(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        topic, partition = found
        if request.topic_id != topic.topic_id:
            return refused(request, ErrorCode.UNKNOWN_TOPIC_ID)
        if request.broker_id not in partition.replicas:
            return refused(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not self.is_on_its_disk(request):
            known = self._brokers[request.broker_id].disk
            detail = f"broker {request.broker_id} is registered with {known}: {request.disk}"
            return refused(request, ErrorCode.KAFKA_STORAGE_ERROR, detail)
        if not self._is_of_its_boot(request):
            detail = f"broker {request.broker_id} has not registered since its host booted"
            return refused(request, ErrorCode.BROKER_NOT_AVAILABLE, detail)
        if not request.has_log:
            return self._beginning(topic, request)
        if (partition.leader, partition.incarnation) == (request.broker_id, request.incarnation):
            return Decision(reply=self._leadership(topic, partition))
        if request.expected_epoch != partition.leader_epoch:
            refusal = structs.replace(
                request.failed(ErrorCode.FENCED_LEADER_EPOCH), leader_epoch=partition.leader_epoch
            )
            return Decision(reply=refusal)
        number = request.topic_partition.partition
        record = after_start(topic, number, request, self.broker_states)
        if record is None:
            followed = after_follower_start(topic, number, request.broker_id)
            return self._following(topic, number, followed)
        elected = structs.replace(
            self._leadership(topic, partition),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_version=partition.version + 1,
            isr=record.isr,
        )
        return decision(elected, record)

    def is_on_its_disk(self, request: BecomeLeaderRequest) -> bool:
        """Whether the request's disk may be the one that its broker registered."""
        broker = self._brokers.get(request.broker_id)
        return broker is None or request.disk.may_be(broker.disk)

    def _is_of_its_boot(self, request: BecomeLeaderRequest) -> bool:
        """Whether its broker has registered since the host booted, as far as is known."""
        broker = self._brokers.get(request.broker_id)
        known = "" if broker is None else broker.boot_id
        return "" in (known, request.boot_id) or known == request.boot_id

    def _beginning(
        self, topic: TopicState, request: BecomeLeaderRequest
    ) -> Decision[BecomeLeaderReply]:
        """Let a replica begin its log, unless it had one that counts.

        A leader may be about to propose it for the ISR because of its former log; the new version
        rejects that proposal.
        """
        number, broker_id = request.topic_partition.partition, request.broker_id
        if topic.partitions[number].has_log(broker_id):
            detail = f"broker {broker_id} is in sync, and has lost its log"
            return refused(request, ErrorCode.KAFKA_STORAGE_ERROR, detail)
        returned = after_return(topic, number, broker_id, lost=broker_id)
        return self._following(topic, number, returned)

    def _following(
        self, topic: TopicState, number: int, record: IsrChanged | None
    ) -> Decision[BecomeLeaderReply]:
        leadership = self._leadership(topic, topic.partitions[number])
        if record is None:
            return Decision(reply=leadership)
        version = record.partition_version
        return decision(structs.replace(leadership, partition_version=version), record)

    def leadership(self, tp: TopicPartition) -> BecomeLeaderReply | None:
        """Who leads a partition now, as told to its replicas; ``None`` if it is unknown."""
        found = self._find(tp)
        return None if found is None else self._leadership(*found)

    def decide_taken(self, tp: TopicPartition, told: BecomeLeaderReply) -> Decision[MetadataReply]:
        """A leader has confirmed what it was told; see ``elections.after_announcement``."""
        found = self._find(tp)
        if found is None or found[0].topic_id != told.topic_id:
            return Decision(reply=MetadataReply())
        record = after_announcement(found[0], tp.partition, told)
        return decision(MetadataReply(), *filter(None, [record]))

    def _leadership(self, topic: TopicState, partition: PartitionState) -> BecomeLeaderReply:
        founded = self._cluster()
        return BecomeLeaderReply(
            leader_epoch=partition.leader_epoch,
            topic_id=topic.topic_id,
            leader=partition.leader,
            partition_version=partition.version,
            replicas=partition.replicas,
            hosts=partition.hosts,
            isr=partition.isr,
            min_insync_replicas=min_insync_of(topic.settings, partition.original_replica_count),
            keys=self.keys,
            settings=topic.settings,
            settings_version=topic.settings_version,
            transaction_state_partitions=founded.transaction_state_partitions,
            offsets_partitions=founded.offsets_partitions,
            replication_factor=partition.original_replica_count,
        )

    def decide_rotate_key(
        self, request: RotateClusterKeyRequest, cluster_key: bytes, now_ms: int
    ) -> Decision[RotateClusterKeyReply]:
        """Make ``cluster_key`` current, replacing the key that the caller knows."""
        version = self.keys.version
        if request.key_version == version - 1:
            return Decision(reply=RotateClusterKeyReply(key_version=version))
        if request.key_version != version:
            detail = f"key_version={request.key_version}: the current one is {version}"
            return refused(request, ErrorCode.INVALID_REQUEST, detail)
        record = ClusterKeyRotated(
            key_version=version + 1, cluster_key=cluster_key, rotated_ms=now_ms
        )
        return decision(RotateClusterKeyReply(key_version=version + 1), record)

    def decide_allocate_producer_ids(
        self, request: AllocateProducerIdsRequest
    ) -> Decision[AllocateProducerIdsReply]:
        """Allocate the next block of producer ids."""
        first = self._next_producer_id
        if request.broker_id not in self._brokers:
            return refused(request, ErrorCode.BROKER_NOT_AVAILABLE)
        reply = AllocateProducerIdsReply(first_producer_id=first, count=PRODUCER_ID_BLOCK_COUNT)
        return decision(
            reply, ProducerIdsAllocated(next_producer_id=first + PRODUCER_ID_BLOCK_COUNT)
        )

    # --- apply ----------------------------------------------------------------------------

    def apply(self, record: LogRecord) -> None:
        """Apply one committed record; the only way this machine changes."""
        if record.value is None:
            return
        decoded = decode_cluster_record(record.value)
        if self._is_before_start(decoded):
            return
        if isinstance(decoded, SnapshotPart):
            self._apply_part(decoded)
        else:
            self._check_whole()
            self._apply(decoded)

    def _is_before_start(self, record: ClusterRecord) -> bool:
        """Whether the log has lost where it begins, and the record is what was dropped before that.

        Then it begins at a segment, in the middle of a history that nothing can be made of. The
        snapshot follows; without one no cluster is found, and nobody leads.
        """
        if self.founded is not None or self._next_part is not None:
            return False
        self._began_early |= not isinstance(record, SnapshotPart | ClusterFounded)
        return self._began_early and not (isinstance(record, SnapshotPart) and record.part == 0)

    def _check_whole(self) -> None:
        invariant(
            self._next_part is None,
            "I-27",
            f"the snapshot with which the log begins has no part {self._next_part}",
        )

    def _apply_part(self, part: SnapshotPart) -> None:
        """Load the snapshot at the start of the log; later ones say nothing new."""
        if self._next_part is None:
            if self.founded is not None:
                return
            self._next_part, self._began_early = 0, False
        if part.part != self._next_part:
            self._check_whole()
        for record in with_parts_opened(part):
            self._apply(record)
        self._next_part = None if part.is_last else part.part + 1

    def _apply(self, record: ClusterRecord) -> None:
        match record:
            case ClusterFounded() as founded:
                invariant(self.founded is None, "I-24", "a cluster is founded once")
                self.founded = founded
                self.keys = ClusterKeys(current=founded.cluster_key)
            case ClusterKeyRotated() as rotated:
                invariant(
                    rotated.key_version == self.keys.version + 1,
                    "I-24",
                    f"key {rotated.key_version} does not follow {self.keys.version}",
                )
                self.keys = self.keys.rotated(rotated.cluster_key, rotated.rotated_ms)
            case BrokerRegistered(broker_id=broker_id) as broker:
                self._brokers[broker_id] = registered(broker, self._brokers.get(broker_id))
                self.voters = self.voters or (broker_id,)
            case BrokerChanged(broker_id=broker_id) as broker_changed:
                self._brokers[broker_id].changed(broker_changed)
            case TopicCreated() as created:
                self._apply_created(created)
            case TopicConfigured(topic_id=topic_id, settings=settings):
                topic = self._topics[self._names_by_id[topic_id]]
                topic.settings = settings
                topic.settings_version += 1
                # Announce to lone leaders too: they do not ask again.
                for number, partition in enumerate(topic.partitions):
                    partition.minimum_changed(
                        min_insync_of(settings, partition.original_replica_count)
                    )
                    self._unannounced[TopicPartition(topic.name, number)] = None
            case PartitionsCreated() as added:
                topic = self._topics[self._names_by_id[added.topic_id]]
                invariant(
                    added.first_partition == len(topic.partitions),
                    "I-24",
                    f"partition {added.first_partition} of {topic.name} is not the next one",
                )
                topic.partitions += partitions_of(added)
            case TopicDeleted(topic_id=topic_id):
                del self._topics[self._names_by_id.pop(topic_id)]
                self._record_deleted((topic_id,))
            case LeaderElected() | IsrChanged() | ReplicasChanged() as changed:
                self._apply_to_partition(changed)
            case ProducerIdsAllocated(next_producer_id=next_producer_id):
                invariant(
                    next_producer_id > self._next_producer_id,
                    "I-17",
                    f"producer ids up to {self._next_producer_id} are given away already",
                )
                self._next_producer_id = next_producer_id
            case VotersChanged(voters=voters):
                self.voters = voters
            case AccessChanged() as access_changed:
                self.access.apply(access_changed)
            case TopicSnapshot() as topic_snapshot:
                self._add(topic_in(topic_snapshot))
            case ClusterSnapshot() as rest:
                self._apply_rest(rest)
            case _:
                pass  # A ``ControllerElected`` is there to be committed.

    def _apply_created(self, created: TopicCreated) -> None:
        invariant(
            not self._has_known(created.topic_id),
            "I-24",
            f"topic id {created.topic_id} is in use",
        )
        self._add(
            TopicState(
                name=created.name,
                topic_id=created.topic_id,
                settings=created.settings,
                partitions=partitions_of(created),
            )
        )

    def _add(self, topic: TopicState) -> None:
        self._names_by_id[topic.topic_id] = topic.name
        self._topics[topic.name] = topic
        for number, partition in enumerate(topic.partitions):
            if topic.settings_version:
                self._unannounced[TopicPartition(topic.name, number)] = None
            elif partition.version:
                self._record_unannounced(topic, number)

    def _has_known(self, topic_id: str) -> bool:
        return topic_id in self._names_by_id or topic_id in self._deleted

    def _record_deleted(self, topic_ids: Iterable[str]) -> None:
        self._deleted |= dict.fromkeys(topic_ids)
        while len(self._deleted) > DELETED_TOPICS_MAX:
            del self._deleted[next(iter(self._deleted))]

    def _apply_rest(self, rest: ClusterSnapshot) -> None:
        self.keys = ClusterKeys(
            version=rest.key_version,
            current=rest.cluster_key,
            previous=rest.previous_key,
            rotated_ms=rest.rotated_ms,
        )
        self.election_count = rest.election_count
        self._record_deleted(rest.deleted_topic_ids)

    def _apply_to_partition(self, record: LeaderElected | IsrChanged | ReplicasChanged) -> None:
        name = self._names_by_id.get(record.topic_id)
        if name is None:
            return  # Deleted while the record was being written.
        topic = self._topics[name]
        partition = topic.partitions[record.partition]
        match record:
            case LeaderElected():
                minimum = min_insync_of(topic.settings, partition.original_replica_count)
                partition.elected(record, minimum)
                self.election_count += record.leader != NO_LEADER
            case IsrChanged():
                if record.follows_minimum:
                    minimum = min_insync_of(topic.settings, partition.original_replica_count)
                    partition.minimum_followed(minimum)
                partition.isr_changed(record)
            case ReplicasChanged():
                partition.replicas_changed(record)
                minimum = min_insync_of(topic.settings, partition.original_replica_count)
                partition.minimum_changed(minimum)
        self._record_unannounced(topic, record.partition)

    def _record_unannounced(self, topic: TopicState, number: int) -> None:
        partition = topic.partitions[number]
        if len(partition.replicas) > 1 or not partition.incarnation:
            self._unannounced[TopicPartition(topic.name, number)] = None

    def take_unannounced(self) -> list[TopicPartition]:
        """The partitions changed since the last call; their leaders must be told.

        Without lone replicas that have just asked for their epoch: they know.
        """
        unannounced, self._unannounced = list(self._unannounced), {}
        return unannounced

    # --- read -----------------------------------------------------------------------------

    def snapshot(self) -> Iterator[ClusterRecord]:
        """Records that give an empty machine this state; the voters come first."""
        yield VotersChanged(voters=self.voters)
        yield self._cluster()
        for broker in self._brokers.values():
            yield from registrations_of(broker)
        if self._next_producer_id:
            yield ProducerIdsAllocated(next_producer_id=self._next_producer_id)
        yield from self.access.snapshot()
        yield ClusterSnapshot(
            key_version=self.keys.version,
            cluster_key=self.keys.current,
            previous_key=self.keys.previous,
            rotated_ms=self.keys.rotated_ms,
            election_count=self.election_count,
            deleted_topic_ids=tuple(self._deleted),
        )
        yield from map(snapshot_of, self._topics.values())

    @property
    def size(self) -> int:
        """Size of a snapshot: the number of brokers, topics, partitions, users and ACLs."""
        partitions = sum(len(topic.partitions) for topic in self._topics.values())
        return len(self._brokers) + len(self._topics) + partitions + self.access.size

    def metadata(self, names: Iterable[str] | None) -> tuple[TopicMetadata, ...]:
        """Describe the named topics that exist, or all, by name."""
        wanted = sorted(self._topics) if names is None else names
        known = (self._topics[name] for name in wanted if name in self._topics)
        return tuple(described(topic, self._brokers) for topic in known)

    @property
    def cluster_id(self) -> str:
        """Which cluster this is; "" before it is founded."""
        return "" if self.founded is None else self.founded.cluster_id

    @property
    def topics(self) -> Mapping[str, TopicState]:
        """All topics by name; elections and reassignments only read it."""
        return self._topics

    @property
    def broker_states(self) -> Mapping[int, BrokerState]:
        """All brokers by id; read-only."""
        if not self._refusing:
            return self._brokers
        return {
            broker_id: dataclasses.replace(broker, is_refusing=broker_id in self._refusing)
            for broker_id, broker in self._brokers.items()
        }

    def record_refusing(self, broker_id: int, *, is_refusing: bool) -> None:
        """Note whether a broker's disk refuses appends; not logged, see ``BrokerState``."""
        others = self._refusing - {broker_id}
        self._refusing = others | {broker_id} if is_refusing else others

    def placements(self, name: str | None = None) -> list[Placement]:
        """All replicas that should run, or those of one topic."""
        topics = self._topics.values() if name is None else [self._topics[name]]
        return [
            Placement(TopicPartition(topic.name, number), topic.topic_id, broker_id, host)
            for topic in topics
            for number, partition in enumerate(topic.partitions)
            for broker_id, host in zip(partition.replicas, partition.hosts, strict=True)
        ]

    def hosted(self, broker_id: int, host: int) -> tuple[HostedReplica, ...]:
        """The replicas that one host should hold."""
        return tuple(
            HostedReplica(
                topic_partition=TopicPartition(topic.name, number),
                topic_id=topic.topic_id,
                is_in_sync=partition.has_log(broker_id),
            )
            for topic in self._topics.values()
            for number, partition in enumerate(topic.partitions)
            if (broker_id, host) in zip(partition.replicas, partition.hosts, strict=True)
        )

    def held(self) -> dict[int, Counter[int]]:
        """Broker → host → number of replicas."""
        held: dict[int, Counter[int]] = {}
        for placement in self.placements():
            held.setdefault(placement.broker_id, Counter())[placement.host] += 1
        return held

    def _cluster(self) -> ClusterFounded:
        if self.founded is None:
            raise RuntimeError("the cluster is not founded")
        return self.founded

    def _find(self, tp: TopicPartition) -> tuple[TopicState, PartitionState] | None:
        topic = self._topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic, topic.partitions[tp.partition]


def with_members(settings: Mapping[str, str], request: AlterTopicRequest) -> dict[str, str]:
    """``settings`` with the members of lists that a request appends and subtracts.

    ``InvalidSettingError`` for a setting that is no list, a member that it does not have, or if
    none would be left.
    """
    result = dict(settings)
    for name, member in (*request.appended, *request.subtracted):
        if name not in LISTS:
            raise refused_value(name, member, f"a setting that is a list: {', '.join(LISTS)}")
        if member not in LISTS[name]:
            raise refused_value(name, member, f"one of {', '.join(LISTS[name])}")
    for name, possible in LISTS.items():
        added = {member for each, member in request.appended if each == name}
        removed = {member for each, member in request.subtracted if each == name}
        if added or removed:
            before = set(result.get(name, LIST_DEFAULTS[name]).split(","))
            after = (before | added) - removed
            if not after:
                raise refused_value(name, "", f"at least one of {', '.join(possible)}")
            result[name] = ",".join(member for member in possible if member in after)
    return result
