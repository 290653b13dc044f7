"""The controller: cluster metadata, leader epochs and producer ids, from its own durable log.

Its log is the source of truth: on each start it ensures that every replica in it is running,
whether Ray remembers the actor or not.

One file: one machine decides every request, and this shell carries out each decision.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import structs

from oncelog import __version__
from oncelog.actors.config import CLUSTER, FOUNDING_SETTINGS, ClusterConfig, TopicConfig
from oncelog.actors.controller.access_announcements import AccessAnnouncements
from oncelog.actors.controller.broker_membership import BrokerMembership
from oncelog.actors.controller.metadata_log import Snapshots, Voters
from oncelog.actors.controller.moves import Moves, NameLocks
from oncelog.actors.controller.replica_actors import (
    SMALL_MACHINE,
    Launcher,
    LeaderAnnouncements,
    MachineSize,
    ReplicaActors,
    ReplicaCalls,
)
from oncelog.actors.coordination.runtime import CoordinatorRuntime
from oncelog.actors.interfaces import (
    Clock,
    Transport,
    address_of,
    broker_actor,
    gateway_actor,
    holder_of,
)
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.process.metrics import Metric, MetricSink
from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.cluster.cluster_records import BrokerRegistered, ClusterFounded
from oncelog.actors.protocol.cluster.elections import decide_alter_isr
from oncelog.actors.protocol.cluster.hosts import HostRules, Placement
from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages.access import (
    Access,
    AccessReply,
    AccessRequest,
    AlterAclsReply,
    AlterAclsRequest,
    AlterAuthorizationReply,
    AlterAuthorizationRequest,
    AlterLimitsReply,
    AlterLimitsRequest,
    AlterUsersReply,
    AlterUsersRequest,
    DescribeAccessReply,
    DescribeAccessRequest,
)
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.messages.brokers import (
    BrokerHeartbeatReply,
    BrokerHeartbeatRequest,
    DrainBrokerReply,
    DrainBrokerRequest,
    ElectLeadersReply,
    ElectLeadersRequest,
    ReassignPartitionReply,
    ReassignPartitionRequest,
    RegisterBrokerReply,
    RegisterBrokerRequest,
)
from oncelog.actors.protocol.messages.cluster import (
    AllocateProducerIdsReply,
    AllocateProducerIdsRequest,
    AlterIsrReply,
    AlterIsrRequest,
    AlterTopicReply,
    AlterTopicRequest,
    BecomeLeaderReply,
    BecomeLeaderRequest,
    ClusterKeysReply,
    ClusterKeysRequest,
    CreatePartitionsReply,
    CreatePartitionsRequest,
    CreateTopicReply,
    CreateTopicRequest,
    DeleteTopicReply,
    DeleteTopicRequest,
    HostedReplicasReply,
    HostedReplicasRequest,
    LearnKeysRequest,
    MetadataReply,
    MetadataRequest,
    RotateClusterKeyReply,
    RotateClusterKeyRequest,
    ShutdownReply,
    ShutdownRequest,
    TopicMetadata,
)
from oncelog.actors.protocol.messages.partition import ConfigureRequest
from oncelog.actors.replica.data_directory import DirectoryIdentity
from oncelog.actors.replica.metadata_replica import MetadataLeader
from oncelog.actors.replica.replica import Replica
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import TopicPartition

_logger = logging.getLogger(__name__)

CLUSTER_KEY_BYTES: Final = 32
_HOLDERS: Final = ("partition:", "partitions:", "transaction:", "group:")
_ALL: Final = "cluster"
"""The only key of the controller's runtime, so that its transitions are serial."""


class Controller:
    """Serves cluster metadata; every change is durable before it is answered."""

    loaded_election_count = 0
    """Number of elections before this controller loaded the log."""

    def __init__(
        self,
        *,
        replica: Replica,
        clock: Clock,
        transport: Transport,
        launcher: Launcher,
        config: ClusterConfig,
        process_id: int,
        token_bytes: Callable[[int], bytes],
        on_failure: Callable[[BaseException], None],
        machine_size: MachineSize = SMALL_MACHINE,
        metadata_log: MetadataLeader | None = None,
        leave: Callable[[], None] | None = None,
        learn_access: Callable[[Access], None] = lambda _access: None,
    ) -> None:
        # One thing: the parts of the controller, and how they are connected.
        self.replica = replica
        self.machine = ClusterMachine()
        self.runtime = CoordinatorRuntime(
            replica=replica,
            clock=clock,
            apply=self._apply,
            abandon=lambda _key: None,
            on_failure=on_failure,
        )
        self._launcher, self._config, self._process_id = launcher, config, process_id
        self._machine_size, self._token_bytes = machine_size, token_bytes
        self._tasks, timeout_ms = OwnTasks(on_failure), config.internal_call_timeout_ms
        self._calls = ReplicaCalls(transport, timeout_ms=timeout_ms)
        self._actors = ReplicaActors(
            launcher=launcher,
            transport=transport,
            timeout_ms=timeout_ms,
            placements=self.machine.placements,
            tasks=self._tasks,
        )
        self._leaders = LeaderAnnouncements(
            machine=self.machine,
            transport=transport,
            tasks=self._tasks,
            timeout_ms=timeout_ms,
            on_taken=self._record_taken,
        )
        self._learn_access, self._learned_version = learn_access, -1
        self._access_announcements = AccessAnnouncements(
            access=self.machine.access.access,
            actors=self._all_actors,
            transport=transport,
            tasks=self._tasks,
            timeout_ms=timeout_ms,
        )
        self.voters = Voters(
            self.machine, metadata_log, clock=clock, execute=self._execute, leave=leave
        )
        self.members = BrokerMembership(
            machine=self.machine,
            launcher=launcher,
            transport=transport,
            own=replica.config.broker_id,
            data_dir=replica.config.data_dir,
            config=config,
            execute=self._execute,
            without_vote=self.voters.without,
            is_current=self.voters.is_current,
        )
        # Actor names contain the topic's name, so a new topic of that name waits until they are
        # gone.
        self._names = NameLocks()
        self.moves = Moves(
            machine=self.machine,
            actors=self._actors,
            calls=self._calls,
            names=self._names,
            rules=self._rules,
            config=config,
            execute=self._execute,
            is_current=self.voters.is_current,
        )

    async def load(self) -> None:
        """Load the metadata log, found the cluster if necessary, and start every replica."""
        if self.replica.availability() is not ErrorCode.NONE or not await self.voters.begin():
            return
        async for batch in self.replica.replay_in_slices():
            for record in batch.records:
                self.machine.apply(LogRecord(record.key, record.value))
        if self.replica.availability() is not ErrorCode.NONE:
            return
        self.loaded_election_count = self.machine.election_count
        if not await self._found():
            return
        # Before any request: a topic created meanwhile would be mistaken for a deleted one.
        if not await self._end_undeclared():
            return
        self.runtime.is_loaded = True
        self._follow_access()
        if self.machine.access.version:
            # The controller before may not have told all.
            self._tasks.spawn(self._access_announcements.announce())
        self._leaders.announce(self.machine.take_unannounced())
        snapshots = Snapshots(self.machine, self.replica, execute=self._execute)
        watches = (*self.members.watches(), *self.moves.watches(), self.voters.watch())
        for work in (*watches, snapshots.watch()):
            self._tasks.spawn(work)
        await self._actors.start(self.machine.placements())

    async def stop(self) -> None:
        """Stop background tasks; call it before the replica stops."""
        self._tasks.cancel()

    def gauges(self) -> Mapping[Metric, int]:
        """None: what it knows is of the cluster, not of its log."""
        return {}

    def report_metrics(self, sink: MetricSink) -> None:
        """Do nothing: see ``ControllerMetrics``."""

    async def _found(self) -> bool:
        """Found the cluster, if its directory says to; return whether it is founded.

        A metadata log of no cluster, or of another one, must not be led: no request is answered.
        """
        directory = self.replica.directory
        identity = directory.identity()
        if self.machine.founded is None and identity is not None and identity.is_founding:
            await self._write_founding(identity)
        founded = self.machine.founded
        if founded is None or identity is None or founded.cluster_id != identity.cluster_id:
            wanted = "a cluster" if identity is None else f"cluster {identity.cluster_id}"
            found = "none" if founded is None else f"cluster {founded.cluster_id}"
            self.replica.go_offline(
                f"the metadata log in {self.replica.config.directory} should be of {wanted}, and "
                f"is of {found}: put the right one back"
            )
            return False
        if identity.is_founding:
            try:
                directory.finish_founding(identity)
            except OSError as error:
                _logger.warning(
                    "not marked as founded: %s — make room on the disk; the next start does it",
                    error,
                )
        return True

    async def _write_founding(self, identity: DirectoryIdentity) -> None:
        founded = ClusterFounded(
            cluster_id=identity.cluster_id,
            cluster_key=self._token_bytes(CLUSTER_KEY_BYTES),
            transaction_state_partitions=self._config.transaction_state_partitions,
            offsets_partitions=self._config.offsets_partitions,
        )
        replica_config = self.replica.config
        broker = BrokerRegistered(
            broker_id=replica_config.broker_id,
            data_dir=replica_config.data_dir,
            directory_id=identity.directory_id,
        )
        topic_ids = (self._token_bytes(16).hex(), self._token_bytes(16).hex())
        await self.runtime.execute(
            _ALL,
            lambda _now_ms: self.machine.decide_founding(
                founded, broker, topic_ids, self._rules({})
            ),
        )

    def _rules(self, settings: Mapping[str, str]) -> HostRules:
        """Which replicas of a topic with these settings share an actor."""
        per_actor = TopicConfig.from_text(settings).replicas_per_actor
        if per_actor == CLUSTER:
            per_actor = self._config.replicas_per_actor
        return self._machine_size.rules(per_actor)

    async def _end_undeclared(self) -> bool:
        """End the replicas of topics whose deletion an earlier controller did not finish.

        Hosts end theirs as soon as they ask for their list, and replicas that have moved end when
        told. False if this controller is no longer the leader: then its metadata may be out of
        date.
        """
        running = await self._launcher.running()
        declared = {holder_of(placement) for placement in self.machine.placements()}
        undeclared = [one for one in running if one.startswith(_HOLDERS) and one not in declared]
        moved = self.moves.leaving.adopt(undeclared)
        found = await self._launcher.find([name for name in undeclared if name not in moved])
        # Actors listed before the confirmation cannot have been started by a successor of this
        # controller.
        while not await self.voters.is_current():
            if self.replica.availability() is not ErrorCode.NONE:
                return False
        await self._launcher.end(found)
        return True

    # --- requests -------------------------------------------------------------------------

    async def metadata(self, request: MetadataRequest) -> MetadataReply:
        """Describe the cluster and the topics asked for."""
        error = await self._not_current()
        if error is not ErrorCode.NONE:
            return structs.replace(
                request.failed(error, self.replica.failure or ""), process_id=self._process_id
            )
        founded = self.machine.founded
        return MetadataReply(
            cluster_id=founded.cluster_id if founded else "",
            controller_epoch=self.runtime.coordinator_epoch,
            brokers=self.members.brokers.described(),
            topics=self.machine.metadata(request.topics),
            transaction_state_partitions=founded.transaction_state_partitions if founded else 0,
            offsets_partitions=founded.offsets_partitions if founded else 0,
            transaction_max_timeout_ms=self._config.transaction_max_timeout_ms,
            cluster_key_version=self.machine.keys.version,
            process_id=self._process_id,
            version=__version__,
            settings=self._settings(),
            voters=self.voters.described(),
        )

    def _settings(self) -> tuple[tuple[str, str], ...]:
        """The settings in force; those fixed at the founding win over later ones."""
        founded = self.machine.founded
        if founded is None:
            return self._config.to_text()
        fixed = {name: getattr(founded, name) for name in FOUNDING_SETTINGS}
        return dataclasses.replace(self._config, **fixed).to_text()

    async def create_topic(self, request: CreateTopicRequest) -> CreateTopicReply:
        """Create a topic and start its replicas."""
        try:
            TopicConfig.from_text(dict(request.settings))
        except InvalidSettingError as refusal:
            return request.failed(ErrorCode.INVALID_CONFIG, str(refusal))
        return await self._execute_and_start(
            request.name,
            request,
            lambda _now_ms: self.machine.decide_create_topic(
                request, self._rules(dict(request.settings))
            ),
            validate_only=request.validate_only,
        )

    async def create_partitions(self, request: CreatePartitionsRequest) -> CreatePartitionsReply:
        """Add partitions to a topic and start their replicas."""

        def decide(_now_ms: int) -> Decision[CreatePartitionsReply]:
            known = self.machine.metadata([request.name])
            settings = dict(known[0].settings) if known else {}
            return self.machine.decide_create_partitions(request, self._rules(settings))

        return await self._execute_and_start(
            request.name, request, decide, validate_only=request.validate_only
        )

    async def _execute_and_start(
        self,
        name: str,
        request: Request[ReplyT],
        decide: Callable[[int], Decision[ReplyT]],
        *,
        validate_only: bool,
    ) -> ReplyT:
        # Actor names contain the topic's name, so a new topic of that name waits until they are
        # gone.
        async with self._names.hold(name):
            reply = await self._execute(request, decide)
            if reply.error is ErrorCode.NONE and not validate_only:
                await self._actors.start(self.machine.placements(name))
            return reply

    async def alter_topic(self, request: AlterTopicRequest) -> AlterTopicReply:
        """Change a topic's settings, then tell its replicas; one that misses that asks later."""
        reply = await self._execute(
            request, lambda _now_ms: self.machine.decide_alter_topic(request, _checked_settings)
        )
        if reply.error is ErrorCode.NONE and not request.validate_only:
            for topic in self.machine.metadata([request.name]):
                await self._configure(topic)
        return reply

    async def _configure(self, topic: TopicMetadata) -> None:
        await self._calls.call_all(
            {
                address_of(placement): ConfigureRequest(
                    topic_partition=placement.topic_partition,
                    topic_id=topic.topic_id,
                    settings=topic.settings,
                    settings_version=topic.settings_version,
                )
                for placement in self.machine.placements(topic.name)
            }
        )

    async def delete_topic(self, request: DeleteTopicRequest) -> DeleteTopicReply:
        """Delete a topic, end its replicas and remove their files."""
        async with self._names.hold(request.name):
            known = self.machine.metadata([request.name])
            declared = self.machine.placements(request.name) if known else []
            placements = [*declared, *self.moves.leaving.of_topic(request.name)]
            # Keep them listed until they are shut down: a host that asks now must not end them
            # before they have removed their files.
            found = await self._actors.find(placements)
            with self.moves.leaving.deleting(request.name, placements):
                reply = await self._delete(request, placements)
            if reply.error is ErrorCode.NONE:
                self.moves.leaving.discard(placements)
                await self._actors.end(placements, found)
            return reply

    async def _delete(
        self, request: DeleteTopicRequest, placements: Sequence[Placement]
    ) -> DeleteTopicReply:
        reply = await self._execute(
            request, lambda _now_ms: self.machine.decide_delete_topic(request)
        )
        if reply.error is ErrorCode.NONE:
            await self._calls.shut_down(placements, remove_data=True)
        return reply

    async def register_broker(self, request: RegisterBrokerRequest) -> RegisterBrokerReply:
        """Register a broker, or remember why it cannot be registered."""
        return await self.members.register(request)

    async def broker_heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatReply:
        """Note that a broker is alive, but perhaps not all of its actors."""
        return await self.members.heartbeat(request)

    async def drain_broker(self, request: DrainBrokerRequest) -> DrainBrokerReply:
        """Move everything off a broker, or use it again."""
        return await self.moves.drain(request)

    async def reassign_partition(self, request: ReassignPartitionRequest) -> ReassignPartitionReply:
        """Begin or cancel the reassignment of a partition."""
        return await self.moves.reassign(request)

    async def elect_leaders(self, request: ElectLeadersRequest) -> ElectLeadersReply:
        """Elect preferred leaders again."""
        return await self.moves.elect(request)

    async def alter_isr(self, request: AlterIsrRequest) -> AlterIsrReply:
        """Change the ISR as its leader proposes."""
        machine = self.machine
        return await self._execute(
            request,
            lambda _now_ms: decide_alter_isr(machine.topics, machine.broker_states, request),
        )

    async def hosted_replicas(self, request: HostedReplicasRequest) -> HostedReplicasReply:
        """List the replicas that a host must hold."""
        error = await self._not_current()
        if error is not ErrorCode.NONE:
            return request.failed(error)
        leaving = self.moves.leaving.hosted(request.broker_id, request.host)
        listed = self.machine.hosted(request.broker_id, request.host)
        return HostedReplicasReply(replicas=(*leaving, *listed))

    async def become_leader(self, request: BecomeLeaderRequest) -> BecomeLeaderReply:
        """Give a started replica its leader epoch."""
        if request.has_log and self.machine.is_on_its_disk(request):
            self.members.record_start(request)
        return await self._execute(
            request, lambda _now_ms: self.machine.decide_become_leader(request)
        )

    async def rotate_cluster_key(self, request: RotateClusterKeyRequest) -> RotateClusterKeyReply:
        """Make a new ticket key, then tell every actor; one that misses the call asks later."""
        cluster_key = self._token_bytes(CLUSTER_KEY_BYTES)
        reply = await self._execute(
            request, lambda now_ms: self.machine.decide_rotate_key(request, cluster_key, now_ms)
        )
        if reply.error is ErrorCode.NONE:
            message = LearnKeysRequest(keys=self.machine.keys)
            addresses = [address_of(placement) for placement in self.machine.placements()]
            await self._calls.call_all(dict.fromkeys(addresses, message))
        return reply

    async def cluster_keys(self, request: ClusterKeysRequest) -> ClusterKeysReply:
        """Give the keys to a leader or coordinator."""
        error = await self._not_current()
        if error is not ErrorCode.NONE:
            return request.failed(error)
        return ClusterKeysReply(keys=self.machine.keys)

    async def access(self, request: AccessRequest) -> AccessReply:
        """Give users and ACLs to a process."""
        error = await self._not_current()
        if error is not ErrorCode.NONE:
            return request.failed(error)
        is_newer = self.machine.access.version > request.known_version
        return AccessReply(access=self.machine.access.access() if is_newer else None)

    async def describe_access(self, request: DescribeAccessRequest) -> DescribeAccessReply:
        """Describe users and rules."""
        error = await self._not_current()
        if error is not ErrorCode.NONE:
            return request.failed(error)
        return self.machine.access.described()

    async def alter_users(self, request: AlterUsersRequest) -> AlterUsersReply:
        """Add, change and remove users, then tell every process."""
        return await self._alter_access(
            request, lambda _now_ms: self.machine.access.decide_users(request)
        )

    async def alter_acls(self, request: AlterAclsRequest) -> AlterAclsReply:
        """Add and remove ACLs, then tell every process."""
        return await self._alter_access(
            request, lambda _now_ms: self.machine.access.decide_acls(request)
        )

    async def alter_limits(self, request: AlterLimitsRequest) -> AlterLimitsReply:
        """Give and take limits, then tell every process."""
        return await self._alter_access(
            request, lambda _now_ms: self.machine.access.decide_limits(request)
        )

    async def alter_authorization(
        self, request: AlterAuthorizationRequest
    ) -> AlterAuthorizationReply:
        """Switch the rules on or off, then tell every process."""
        return await self._alter_access(
            request, lambda _now_ms: self.machine.access.decide_authorization(request)
        )

    async def _alter_access(
        self, request: Request[ReplyT], decide: Callable[[int], Decision[ReplyT]]
    ) -> ReplyT:
        reply = await self._execute(request, decide)
        if reply.error is ErrorCode.NONE:
            await self._access_announcements.announce()
        return reply

    def _all_actors(self) -> set[str]:
        """Names of all actors of the log but this one."""
        brokers = self.machine.broker_states.values()
        # The founder has an actor of its own only once that has registered.
        own = {broker_actor(broker.broker_id) for broker in brokers if broker.broker_epoch}
        if self._config.kafka_port:
            own |= {gateway_actor(0, broker.broker_id) for broker in brokers}
        return own | {holder_of(placement) for placement in self.machine.placements()}

    def _follow_access(self) -> None:
        """Have this process go by the newest users and ACLs."""
        version = self.machine.access.version
        if version > self._learned_version:
            self._learned_version = version
            self._learn_access(self.machine.access.access())

    async def allocate_producer_ids(
        self, request: AllocateProducerIdsRequest
    ) -> AllocateProducerIdsReply:
        """Allocate a block of producer ids."""
        return await self._execute(
            request, lambda _now_ms: self.machine.decide_allocate_producer_ids(request)
        )

    async def shutdown(self, request: ShutdownRequest) -> ShutdownReply:
        """Stop every replica cleanly; the caller stops this log and kills the processes."""
        error = self._unavailable()
        if error is not ErrorCode.NONE:
            return request.failed(error)
        await self._calls.shut_down(self.machine.placements(), remove_data=False)
        return ShutdownReply()

    # --- shared by requests ---------------------------------------------------------------

    async def _execute(
        self, request: Request[ReplyT], decide: Callable[[int], Decision[ReplyT]]
    ) -> ReplyT:
        """Decide a request and log the decision, unless this controller cannot serve.

        If nothing is logged, another controller may have decided otherwise: see ``_not_current``.
        """
        error = self._unavailable()
        if error is not ErrorCode.NONE:
            return request.failed(error)
        is_logged = False

        def decide_and_record(now_ms: int) -> Decision[ReplyT]:
            nonlocal is_logged
            decision = decide(now_ms)
            is_logged = bool(decision.records)
            return decision

        reply = await self.runtime.execute(_ALL, decide_and_record, refused=request.failed)
        if not is_logged and (error := await self._not_current()) is not ErrorCode.NONE:
            return request.failed(error)
        return reply

    def _apply(self, record: LogRecord) -> None:
        """Apply a committed record, and tell the leaders it concerns."""
        self.machine.apply(record)
        self._follow_access()
        changed = self.machine.take_unannounced()
        self._leaders.announce(changed)
        self.moves.on_changed(changed)

    async def _record_taken(self, tp: TopicPartition, told: BecomeLeaderReply) -> None:
        """Log that a leader uses a higher ``min_insync_replicas``; on failure, announce again."""
        if self.machine.decide_taken(tp, told).records:
            request: Request[MetadataReply] = MetadataRequest(topics=())
            await self._execute(request, lambda _now_ms: self.machine.decide_taken(tp, told))

    async def _not_current(self) -> ErrorCode:
        """``NONE`` if this controller has all that any controller has committed.

        That is, committed before this call: state may be read before or after it, in the same turn.
        """
        error = self._unavailable()
        if error is ErrorCode.NONE and not await self.voters.is_current():
            error = ErrorCode.NOT_CONTROLLER
        return error if error is not ErrorCode.NONE else self._unavailable()

    def _unavailable(self) -> ErrorCode:
        error = self.runtime.unavailable()
        return ErrorCode.NOT_CONTROLLER if error is not ErrorCode.NONE else ErrorCode.NONE


def _checked_settings(settings: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return TopicConfig.from_text(settings).to_text()
