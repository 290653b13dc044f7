"""The controller's machine: the cluster's identity, leaders, epochs and producer ids.

Rules. Whatever an answer hands out (an epoch, a block of ids, a topic) is durable first.
A leader epoch only rises, by compare-and-set: an election names the epoch it follows. One
start of a replica gets one epoch, however often it asks. A topic id is never used twice.

| request | state | answer |
|---|---|---|
| become_leader | partition unknown | UNKNOWN_TOPIC_OR_PARTITION |
| become_leader | another topic had the name | UNKNOWN_TOPIC_ID |
| become_leader | caller is no replica of it | NOT_LEADER_OR_FOLLOWER |
| become_leader | same incarnation leads | its epoch again, nothing logged |
| become_leader | another epoch than expected is current | FENCED_LEADER_EPOCH, and which |
| become_leader | else | epoch + 1 |
| create_topic | same name and id | its id again (a retry) |
| create_topic | same name | TOPIC_ALREADY_EXISTS |
| create_partitions | unknown, internal | as alter_topic |
| create_partitions | as many as there are (a retry) | NONE, nothing logged |
| create_partitions | fewer, or too many | INVALID_PARTITIONS |
| alter_topic | unknown | UNKNOWN_TOPIC_OR_PARTITION |
| alter_topic | internal | INVALID_TOPIC_EXCEPTION |
| alter_topic | a setting is unknown or impossible | INVALID_CONFIG |
| alter_topic | nothing changes (a retry) | NONE, nothing logged |
| delete_topic | unknown | UNKNOWN_TOPIC_OR_PARTITION |
| delete_topic | internal | INVALID_TOPIC_EXCEPTION |
| rotate_cluster_key | of the current version | a new key, version + 1 |
| rotate_cluster_key | of the version before (a retry) | NONE, nothing logged |
| rotate_cluster_key | of another version | INVALID_REQUEST |
| register_broker | | see ``registration`` |
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TypeAlias

from msgspec import structs

from oncelog.actors.protocol.cluster.hosts import HostRules, Placement
from oncelog.actors.protocol.cluster.log import (
    BrokerChanged,
    BrokerRegistered,
    ClusterFounded,
    ClusterKeyRotated,
    IsrChanged,
    LeaderElected,
    PartitionsCreated,
    ProducerIdsAllocated,
    ReplicasChanged,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
    decision,
    decode_cluster_record,
)
from oncelog.actors.protocol.cluster.registration import decide_register_broker
from oncelog.actors.protocol.cluster.state import (
    BrokerState,
    PartitionState,
    TopicState,
    described,
    partitions_of,
    registered,
)
from oncelog.actors.protocol.effects import Decision, LogRecord, refused
from oncelog.actors.protocol.invariants import invariant
from oncelog.actors.protocol.messages.brokers import RegisterBrokerReply, RegisterBrokerRequest
from oncelog.actors.protocol.messages.cluster import (
    AllocateProducerIdsReply,
    AllocateProducerIdsRequest,
    AlterTopicReply,
    AlterTopicRequest,
    BecomeLeaderReply,
    BecomeLeaderRequest,
    BrokerMetadata,
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
    NO_LEADER_EPOCH,
    TOPIC_PARTITIONS_MAX,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    is_valid_topic_name,
)

PRODUCER_ID_BLOCK_COUNT: Final = 1_000

REPLICATION_FACTOR_MAX: Final = 1
"""Replicas copy nothing yet."""

ALONE: Final = HostRules()
"""Every replica in an actor of its own."""

Settings: TypeAlias = tuple[tuple[str, str], ...]
SettingsCheck: TypeAlias = Callable[[dict[str, str]], Settings]
"""All settings of a topic as text → those worth keeping; raises ``InvalidSettingError``."""


class ClusterMachine:
    """Cluster metadata, changed only by ``apply``."""

    def __init__(self) -> None:
        self.founded: ClusterFounded | None = None
        self.keys = NO_KEYS
        self._brokers: dict[int, BrokerState] = {}
        self._topics: dict[str, TopicState] = {}
        self._names_by_id: dict[str, str] = {}
        self._next_producer_id = 0

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
        live: Collection[int] | None = None,
    ) -> Decision[CreateTopicReply]:
        """Place a new topic's partitions on ``live`` brokers (all), and there by ``rules``."""
        error, detail = self._check_new_topic(request)
        if error is not ErrorCode.NONE:
            return refused(request, error, detail)
        if request.name in self._topics:
            return Decision(reply=CreateTopicReply(topic_id=request.topic_id))
        replicas = self._placed(request.partitions, live)
        record = TopicCreated(
            name=request.name,
            topic_id=request.topic_id,
            replicas=replicas,
            settings=request.settings,
            hosts=rules.choose(replicas, self._held()),
        )
        return decision(CreateTopicReply(topic_id=request.topic_id), record)

    def _check_new_topic(self, request: CreateTopicRequest) -> tuple[ErrorCode, str]:
        existing = self._topics.get(request.name)
        if existing is not None and existing.topic_id == request.topic_id:
            return ErrorCode.NONE, ""
        if not is_valid_topic_name(request.name):
            return ErrorCode.INVALID_TOPIC_EXCEPTION, (
                f"topic name {request.name!r} is not allowed: give 1 to 249 of letters, digits, "
                "'.', '_' and '-', but not '.' or '..'"
            )
        if existing is not None:
            return ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {request.name!r} exists already"
        if not 1 <= request.partitions <= TOPIC_PARTITIONS_MAX:
            return ErrorCode.INVALID_PARTITIONS, (
                f"partitions={request.partitions}: give 1 to {TOPIC_PARTITIONS_MAX}"
            )
        if request.replication_factor != REPLICATION_FACTOR_MAX:
            return ErrorCode.INVALID_REPLICATION_FACTOR, (
                f"replication_factor={request.replication_factor}: give "
                f"{REPLICATION_FACTOR_MAX}, partitions are not replicated yet"
            )
        if request.topic_id in self._names_by_id or len(request.topic_id) != 32:
            return ErrorCode.INVALID_REQUEST, f"topic id {request.topic_id!r} cannot be used"
        return ErrorCode.NONE, ""

    def decide_alter_topic(
        self, request: AlterTopicRequest, check: SettingsCheck
    ) -> Decision[AlterTopicReply]:
        """Change some settings of a topic that users own; ``check`` sees all of its settings."""
        topic = self._topics.get(request.name)
        if request.name in INTERNAL_TOPICS:
            return refused(request, ErrorCode.INVALID_TOPIC_EXCEPTION)
        if topic is None:
            return refused(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        changed = {name: value for name, value in request.changes if value is not None}
        removed = {name for name, value in request.changes if value is None}
        kept = {name: value for name, value in topic.settings if name not in removed}
        try:
            settings = check({**kept, **changed})
        except InvalidSettingError as refusal:
            return refused(request, ErrorCode.INVALID_CONFIG, str(refusal))
        if settings == topic.settings:
            return Decision(reply=AlterTopicReply())
        return decision(
            AlterTopicReply(), TopicConfigured(topic_id=topic.topic_id, settings=settings)
        )

    def decide_create_partitions(
        self,
        request: CreatePartitionsRequest,
        rules: HostRules = ALONE,
        live: Collection[int] | None = None,
    ) -> Decision[CreatePartitionsReply]:
        """Place more partitions of a topic that users own; see ``decide_create_topic``."""
        topic = self._topics.get(request.name)
        if request.name in INTERNAL_TOPICS:
            detail = f"{request.name!r} is an internal topic"
            return refused(request, ErrorCode.INVALID_TOPIC_EXCEPTION, detail)
        if topic is None:
            detail = f"there is no topic {request.name!r}"
            return refused(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
        count = len(topic.partitions)
        if request.partitions == count:
            return Decision(reply=CreatePartitionsReply())
        if not count < request.partitions <= TOPIC_PARTITIONS_MAX:
            detail = (
                f"partitions={request.partitions}: topic {request.name!r} has {count} and cannot "
                f"have fewer; give {count + 1} to {TOPIC_PARTITIONS_MAX}"
            )
            return refused(request, ErrorCode.INVALID_PARTITIONS, detail)
        replicas = self._placed(request.partitions - count, live)
        record = PartitionsCreated(
            topic_id=topic.topic_id,
            first_partition=count,
            replicas=replicas,
            hosts=rules.choose(replicas, self._held()),
        )
        return decision(CreatePartitionsReply(), record)

    def _placed(self, count: int, live: Collection[int] | None) -> tuple[tuple[int, ...], ...]:
        """The broker of each of ``count`` partitions: that of the live ones with the fewest."""
        brokers = [one for one in sorted(self._brokers) if live is None or one in live]
        loads = Counter(dict.fromkeys(brokers or sorted(self._brokers), 0))
        for placement in self.placements():
            if (
                placement.broker_id in loads
                and placement.topic_partition.topic not in INTERNAL_TOPICS
            ):
                loads[placement.broker_id] += 1
        placed = []
        for _ in range(count):
            broker_id = min(loads, key=lambda one: (loads[one], one))
            loads[broker_id] += 1
            placed.append((broker_id,))
        return tuple(placed)

    def decide_register_broker(
        self, request: RegisterBrokerRequest
    ) -> Decision[RegisterBrokerReply]:
        """See ``registration``."""
        known = self._brokers.get(request.broker_id)
        return decide_register_broker(request, known, self._cluster().cluster_id)

    def decide_delete_topic(self, request: DeleteTopicRequest) -> Decision[DeleteTopicReply]:
        """Delete a topic that users own."""
        topic = self._topics.get(request.name)
        if request.name in INTERNAL_TOPICS:
            return refused(request, ErrorCode.INVALID_TOPIC_EXCEPTION)
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
        if partition.incarnation == request.incarnation:
            return Decision(reply=self._leadership(topic, partition.leader_epoch))
        if request.expected_epoch != partition.leader_epoch:
            refusal = structs.replace(
                request.failed(ErrorCode.FENCED_LEADER_EPOCH), leader_epoch=partition.leader_epoch
            )
            return Decision(reply=refusal)
        epoch = partition.leader_epoch + 1
        record = LeaderElected(
            topic_id=topic.topic_id,
            partition=request.topic_partition.partition,
            leader=request.broker_id,
            leader_epoch=epoch,
            isr=(request.broker_id,),
            incarnation=request.incarnation,
        )
        return decision(self._leadership(topic, epoch), record)

    def _leadership(self, topic: TopicState, leader_epoch: int) -> BecomeLeaderReply:
        founded = self._cluster()
        return BecomeLeaderReply(
            leader_epoch=leader_epoch,
            topic_id=topic.topic_id,
            keys=self.keys,
            settings=topic.settings,
            settings_version=topic.settings_version,
            transaction_state_partitions=founded.transaction_state_partitions,
            offsets_partitions=founded.offsets_partitions,
        )

    def decide_rotate_key(
        self, request: RotateClusterKeyRequest, cluster_key: bytes, now_ms: int
    ) -> Decision[RotateClusterKeyReply]:
        """Make ``cluster_key`` current, replacing the one that the caller knows."""
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
        match decode_cluster_record(record.value):
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
            case BrokerChanged(broker_id=broker_id) as broker_changed:
                self._brokers[broker_id].changed(broker_changed)
            case TopicCreated() as created:
                self._apply_created(created)
            case TopicConfigured(topic_id=topic_id, settings=settings):
                topic = self._topics[self._names_by_id[topic_id]]
                topic.settings = settings
                topic.settings_version += 1
            case PartitionsCreated() as added:
                topic = self._topics[self._names_by_id[added.topic_id]]
                invariant(
                    added.first_partition == len(topic.partitions),
                    "I-24",
                    f"partition {added.first_partition} of {topic.name} is not the next one",
                )
                topic.partitions += partitions_of(added)
            case TopicDeleted(topic_id=topic_id):
                del self._topics[self._names_by_id[topic_id]]
            case LeaderElected() | IsrChanged() | ReplicasChanged() as changed:
                self._apply_to_partition(changed)
            case ProducerIdsAllocated(next_producer_id=next_producer_id):
                invariant(
                    next_producer_id > self._next_producer_id,
                    "I-17",
                    f"producer ids up to {self._next_producer_id} are given away already",
                )
                self._next_producer_id = next_producer_id

    def _apply_created(self, created: TopicCreated) -> None:
        invariant(
            created.topic_id not in self._names_by_id,
            "I-24",
            f"topic id {created.topic_id} is in use",
        )
        self._names_by_id[created.topic_id] = created.name
        self._topics[created.name] = TopicState(
            name=created.name,
            topic_id=created.topic_id,
            settings=created.settings,
            partitions=partitions_of(created),
        )

    def _apply_to_partition(self, record: LeaderElected | IsrChanged | ReplicasChanged) -> None:
        topic = self._topics.get(self._names_by_id[record.topic_id])
        if topic is None or topic.topic_id != record.topic_id:
            return  # Deleted while the record was being written.
        partition = topic.partitions[record.partition]
        match record:
            case LeaderElected():
                partition.elected(record)
            case IsrChanged():
                partition.isr_changed(record)
            case ReplicasChanged():
                partition.replicas_changed(record)

    # --- read -----------------------------------------------------------------------------

    def metadata(self, names: Iterable[str] | None) -> tuple[TopicMetadata, ...]:
        """Describe the named topics that exist, or all, by name."""
        wanted = sorted(self._topics) if names is None else names
        return tuple(described(self._topics[name]) for name in wanted if name in self._topics)

    def brokers(self) -> tuple[BrokerMetadata, ...]:
        """Every registered broker, by id."""
        return tuple(
            BrokerMetadata(broker_id=broker_id, data_dir=broker.data_dir, rack=broker.rack)
            for broker_id, broker in sorted(self._brokers.items())
        )

    @property
    def topics(self) -> Mapping[str, TopicState]:
        """Every topic by name: for the rules of elections and reassignments, which only read."""
        return self._topics

    @property
    def broker_states(self) -> Mapping[int, BrokerState]:
        """Every broker by id, likewise."""
        return self._brokers

    def placements(self, name: str | None = None) -> list[Placement]:
        """Every replica that should run, or those of one topic."""
        topics = self._topics.values() if name is None else [self._topics[name]]
        return [
            Placement(TopicPartition(topic.name, number), topic.topic_id, broker_id, host)
            for topic in topics
            for number, partition in enumerate(topic.partitions)
            for broker_id, host in zip(partition.replicas, partition.hosts, strict=True)
        ]

    def hosted(self, broker_id: int, host: int) -> tuple[HostedReplica, ...]:
        """The replicas that one host is to hold."""
        return tuple(
            HostedReplica(
                topic_partition=TopicPartition(topic.name, number),
                topic_id=topic.topic_id,
                has_been_led=partition.leader_epoch != NO_LEADER_EPOCH,
            )
            for topic in self._topics.values()
            for number, partition in enumerate(topic.partitions)
            if (broker_id, host) in zip(partition.replicas, partition.hosts, strict=True)
        )

    def _held(self) -> dict[int, Counter[int]]:
        """How many replicas each host holds, by broker."""
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
