"""Assembles each kind of server from its replica, maintenance and shell.

``processes.py`` passes production's ``Environment`` and makes Ray actors of servers; the simulator
passes its own. Constructors only set fields, because an exception there would end a Ray actor for
good. Recovery runs in a task, and meanwhile requests are answered with an error code.

One file: all servers are one class, which has the same duties whatever its shell is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from msgspec import structs

from oncelog.actors.config import ReplicaConfig
from oncelog.actors.coordination.process_watch import ProcessWatch
from oncelog.actors.groups.group_coordinator import GroupCoordinator, group_settings
from oncelog.actors.interfaces import (
    CONTROLLER_ACTOR,
    Background,
    Clock,
    Transport,
    address_of,
)
from oncelog.actors.launch.server_metrics import (
    NO_DISK,
    CertificateMetrics,
    DiskMetrics,
    ReplicaMetrics,
)
from oncelog.actors.process.audit import AuditLog
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.process.metrics import (
    ACTIVE_TRANSACTIONAL_ID_COUNT,
    NO_METRICS,
    Metric,
    MetricSink,
)
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.messages.brokers import OfflineReplica, PingReply, PingRequest
from oncelog.actors.protocol.messages.cluster import (
    AlterIsrReply,
    AlterIsrRequest,
    BecomeLeaderReply,
    BecomeLeaderRequest,
    ClusterKeysRequest,
    LeaderAndIsrReply,
    LeaderAndIsrRequest,
    LearnKeysReply,
    LearnKeysRequest,
    MetadataReply,
    MetadataRequest,
    ShutdownReply,
    ShutdownRequest,
    TopicMetadata,
)
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply, DescribeReplicaRequest
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.protocol.partition.followers import IsrProposal
from oncelog.actors.replica.events import ReplicaEvents
from oncelog.actors.replica.maintenance import Maintenance, clean_if_dirty
from oncelog.actors.replica.opening import ExpectedLog
from oncelog.actors.replica.partition_leader import PartitionLeader
from oncelog.actors.replica.replica import Replica
from oncelog.actors.replica.replica_log import ReplicaRole
from oncelog.actors.rpc.door import Door
from oncelog.actors.rpc.listener_directory import ListenerDirectory
from oncelog.actors.rpc.message_codec import REQUESTS
from oncelog.actors.transactions.transaction_coordinator import TransactionCoordinator
from oncelog.storage.disk.disk_errors import is_transient
from oncelog.storage.disk.file_system import FileSystem
from oncelog.storage.errors import ErrorCode, InvariantViolation
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    NO_LEADER_EPOCH,
    TRANSACTION_STATE_TOPIC,
)

_logger = logging.getLogger(__name__)

READS: Final = ("fetch", "list_offsets", "describe_producers")
"""What a coordinator's log answers too: tools of Kafka's ask all topics, these among them.

The cluster's own log does not: it has keys, and what users log in by.
"""

DISK_RESTART_MS: Final = 2_000
"""Delay before a process ends whose replica is offline for a transient reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a process is given from outside.

    ``new_background`` makes the queue of one log; all share the threads of the process, but for
    what opens logs, which may take long: ``new_opener`` makes the queue for that, where it differs.
    ``shared_metadata`` asks the controller, with replicas of the process that ask just the same.
    ``incarnation`` is new in each life of the process. ``die`` is given a broken invariant, another
    bug, a ``LeadershipLostError`` or a ``DiskRefusedError``, and ends the process at once: it does
    not return. In a host it returns after the last two, and ends and begins that server alone.
    ``boot_id`` is of the operating system, "" if it is not known. ``door`` admits callers to the
    process. ``directory`` tells them where the other actors of the cluster listen.
    """

    filesystem: FileSystem
    clock: Clock
    new_background: Callable[[], Background]
    new_opener: Callable[[], Background] | None = None
    shared_metadata: Callable[[MetadataRequest], Awaitable[MetadataReply]] | None = None
    transport: Transport
    drivers: ProcessWatch
    random: Random
    incarnation: str
    process_id: int
    metrics: MetricSink = NO_METRICS
    disk_metrics: DiskMetrics = NO_DISK
    audit: AuditLog | None = None
    certificate_metrics: CertificateMetrics | None = None
    boot_id: str = ""
    door: Door = field(default_factory=Door)
    directory: ListenerDirectory | None = None
    die: Callable[[BaseException], None]


class LeadershipLostError(Exception):
    """Not a bug: the controller has given a newer epoch, so this process must restart."""


class DiskRefusedError(Exception):
    """Not a bug: a transient disk error, after which this process must restart."""


class Shell(Protocol):
    """What a server serves with on top of its replica.

    It has a method for each request that the server does not answer itself.
    """

    async def load(self) -> None:
        """Load what it serves from the log, if the replica leads; may wait for followers."""
        ...

    async def stop(self) -> None:
        """Stop serving; the replica stops after that."""
        ...

    def gauges(self) -> Mapping[Metric, int]:
        """Its own metrics of a partition; reported while the replica leads."""
        ...

    def report_metrics(self, sink: MetricSink) -> None:
        """Report its other metrics."""
        ...


class ReplicaServer(ReplicaEvents):
    """What every process with a log has: replica, shell, start, maintenance and metrics.

    A request is answered by the method of its name, of the server or else of the shell. ``listed``
    is what the controller has just said of the log: it saves the first question, and calls for
    another topic of that name are rejected.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        environment: Environment,
        new_shell: Callable[[ReplicaServer], Shell],
        *,
        listed: ExpectedLog | None = None,
    ) -> None:
        self.config = config
        self.environment = environment
        self.transport = environment.transport
        self.is_loaded = False
        """Whether the shell on top of the replica is loaded."""
        self.failure = ""
        self.is_stopped = False
        self.has_moved = False
        """Whether it has ended because the partition has moved to other brokers."""
        self._listed = listed
        self._only_topic_id = "" if listed is None else listed.topic_id
        self.replica = Replica(
            config=config,
            filesystem=environment.filesystem,
            clock=environment.clock,
            background=environment.new_background(),
            events=self,
            epoch_source=self.ask_for_epoch,
            log_source=self.ask_for_log,
            beginning_source=self.ask_to_begin,
            opener=environment.new_opener() if environment.new_opener else None,
            new_role=self.new_role,
        )
        self._tasks = OwnTasks(environment.die)
        self._key_task: asyncio.Task[None] | None = None
        self._settings_task: asyncio.Task[None] | None = None
        self.maintenance = Maintenance(
            replica=self.replica,
            clock=environment.clock,
            on_failure=environment.die,
            refresh=self.refresh_settings,
            compact=self.compact_log,
            is_serving=self.is_serving,
        )
        self.metrics = ReplicaMetrics(
            replica=self.replica,
            clock=environment.clock,
            sink=environment.metrics,
            disk=environment.disk_metrics,
            certificates=environment.certificate_metrics,
            has_failed=lambda: bool(self.failure),
            on_bug=environment.die,
        )
        self.shell = new_shell(self)
        self._take_methods_of_shell()
        self.metrics.start(self.report_metrics)
        self._tasks.spawn(self._start())

    def _take_methods_of_shell(self) -> None:
        """Find the shell's methods once, so that its calls cost no more than the server's own."""
        for name in REQUESTS:
            if hasattr(self.shell, name) and not hasattr(self, name):
                setattr(self, name, getattr(self.shell, name))
        if self.config.topic in (TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC):
            reader = PartitionShell(self)
            for name in READS:
                if not hasattr(self, name):
                    setattr(self, name, getattr(reader, name))

    def __repr__(self) -> str:
        return f"Replica({self.config.topic}-{self.config.partition})"

    async def ping(self, request: PingRequest) -> PingReply:
        """Answer that this process is alive."""
        await asyncio.sleep(request.hold_ms / 1000)
        return PingReply(
            offline_replicas=self.offline_replicas(), refusing_replicas=self.refusing_replicas()
        )

    def offline_replicas(self) -> tuple[OfflineReplica, ...]:
        """This replica, if it is offline; else empty."""
        replica = self.replica
        reason = self.failure or replica.failure or replica.waits_for
        if not reason or replica.is_following or self.is_serving():
            return ()
        known = self._only_topic_id or replica.leadership.topic_id
        topic_id = known or replica.directory.claimed_topic_id
        return (OfflineReplica(topic_partition=replica.topic_partition, topic_id=topic_id),)

    def refusing_replicas(self) -> tuple[OfflineReplica, ...]:
        """This replica, if its disk refuses appends (of a leader: for too long); else empty."""
        replica, cluster = self.replica, self.config.cluster
        lasts_ms = replica.refusal.lasts_ms(loop_ms())
        is_leading = replica.availability() is ErrorCode.NONE
        limit_ms = cluster.disk_refusal_time_max_ms if is_leading else 0
        if lasts_ms is None or lasts_ms < limit_ms or self.offline_replicas():
            return ()
        topic_id = replica.leadership.topic_id
        return (OfflineReplica(topic_partition=replica.topic_partition, topic_id=topic_id),)

    def is_serving(self) -> bool:
        """Whether it leads, and has loaded its log."""
        return self.is_loaded and self.replica.availability() is ErrorCode.NONE

    async def replicate(self, request: ReplicateRequest) -> ReplicateReply:
        """Take a push of the leader."""
        if request.topic_partition != self.replica.topic_partition:
            return request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return await self.replica.replicate(request)

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrReply:
        """Take the partition's state from the controller."""
        if request.topic_partition != self.replica.topic_partition:
            return request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return LeaderAndIsrReply(error=self.replica.learn_leadership(request.leadership))

    async def send_push(self, broker_id: int, request: ReplicateRequest) -> ReplicateReply:
        """Push to the follower on a broker."""
        leadership = self.replica.leadership
        hosts = dict(zip(leadership.replicas, leadership.hosts, strict=True))
        if broker_id not in hosts:
            return request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        follower = Placement(
            request.topic_partition, leadership.topic_id, broker_id, hosts[broker_id]
        )
        timeout_ms = self.config.cluster.internal_call_timeout_ms
        return await self.transport.call(address_of(follower), request, timeout_ms=timeout_ms)

    async def propose_isr(self, proposal: IsrProposal) -> AlterIsrReply:
        """Ask the controller to change the ISR."""
        replica = self.replica
        request = AlterIsrRequest(
            topic_partition=replica.topic_partition,
            topic_id=replica.leadership.topic_id,
            broker_id=self.config.broker_id,
            leader_epoch=replica.leader_epoch,
            partition_version=proposal.partition_version,
            isr=proposal.isr,
        )
        timeout_ms = self.config.cluster.internal_call_timeout_ms
        return await self.transport.call(CONTROLLER_ACTOR, request, timeout_ms=timeout_ms)

    # --- role -----------------------------------------------------------------------------

    def new_role(self, _replica: Replica) -> ReplicaRole:
        """Make what the kind of log adds to the replica."""
        return ReplicaRole()

    async def ask_for_epoch(self, last_epoch: int) -> BecomeLeaderReply:
        """Ask the controller for the epoch after ``last_epoch``, if that is the current one.

        Ends the process if its topic was deleted and created again.
        """
        reply = await self._ask_for_role(self.replica.directory.claimed_topic_id, last_epoch)
        if reply.error in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR):
            self.replica.waits_for = reply.detail
        if reply.error is ErrorCode.UNKNOWN_TOPIC_ID:
            # The opened log is that of a deleted topic; a new start claims the directory anew.
            claimed = self.replica.directory.claimed_topic_id
            lost = f"{self!r} has the log of {claimed}, another topic of its name"
            self.environment.die(LeadershipLostError(lost))
        return reply

    async def ask_to_begin(self, topic_id: str) -> BecomeLeaderReply:
        """Ask the controller whether this replica, which has no log, may begin one."""
        return await self._ask_for_role(topic_id, NO_LEADER_EPOCH, has_log=False)

    async def _ask_for_role(
        self, topic_id: str, last_epoch: int, *, has_log: bool = True
    ) -> BecomeLeaderReply:
        """Ask for the role, and tell the disk: one that replaced another must not lead."""
        try:
            disk = self.replica.directory.disk()
        except (OSError, CorruptDataError) as error:
            return BecomeLeaderReply(error=ErrorCode.KAFKA_STORAGE_ERROR, detail=str(error))
        return await self._ask_controller(
            BecomeLeaderRequest(
                topic_partition=self.replica.topic_partition,
                topic_id=topic_id,
                broker_id=self.config.broker_id,
                incarnation=self.environment.incarnation,
                expected_epoch=last_epoch,
                has_log=has_log,
                disk=disk,
                boot_id=self.environment.boot_id,
            )
        )

    async def ask_for_log(self) -> ExpectedLog | None:
        """Ask the controller what log this replica should have; ``None`` if there is no answer."""
        expected, self._listed = self._listed, None
        if expected is not None:
            return expected
        reply = await self._ask_controller(MetadataRequest(topics=(self.config.topic,)))
        for topic in reply.topics:
            known = topic.find(self.config.partition)
            if known is not None and self._only_topic_id in {"", topic.topic_id}:
                return ExpectedLog(
                    topic_id=topic.topic_id,
                    is_in_sync=known.has_log(self.config.broker_id),
                )
        return None

    async def refresh_settings(self) -> None:
        """Follow the settings that the controller has of the topic, in case a call was lost.

        The answer tells the racks of brokers too, which no call does.
        """
        ask = self.environment.shared_metadata or self._ask_controller
        reply = await ask(MetadataRequest(topics=(self.config.topic,)))
        if reply.error is ErrorCode.NONE:
            self.replica.learn_racks({broker.broker_id: broker.rack for broker in reply.brokers})
        for topic in reply.topics:
            if topic.topic_id == self.replica.leadership.topic_id:
                if self.replica.upkeep_error() is ErrorCode.NONE:
                    self.replica.configure(topic.settings, topic.settings_version)
                self._check_given_epoch(topic)
        if reply.cluster_key_version > self.replica.keys.version:
            await self._refresh_keys()

    def _check_given_epoch(self, topic: TopicMetadata) -> None:
        """End the process if the controller has given a newer epoch: the next start asks for one.

        It was given to a later start, beside which this one must not go on. Or it was given to a
        delayed request of an earlier start: then nobody would lead, as clients look for the newest
        epoch.
        """
        epoch = self.replica.leader_epoch
        for known in topic.partitions:
            is_ours = known.partition == self.config.partition
            is_serving = self.replica.availability() is ErrorCode.NONE
            if is_ours and is_serving and known.leader_epoch > epoch:
                lost = f"{self!r} leads with epoch {epoch}, and {known.leader_epoch} was given"
                self.environment.die(LeadershipLostError(lost))

    def on_bug(self, bug: BaseException) -> None:
        """End the process at once."""
        self.environment.die(bug)

    def restart_later(self, reason: str) -> None:
        """Restart the process after ``DISK_RESTART_MS``, unless it is stopped."""

        def restart() -> None:
            if not self.is_stopped:
                self.environment.die(DiskRefusedError(f"{self!r} {reason}"))

        asyncio.get_running_loop().call_later(DISK_RESTART_MS / 1000, restart)

    def refresh_keys_soon(self) -> None:
        """Ask the controller for the ticket keys; concurrent calls share one request."""
        if self._key_task is None or self._key_task.done():
            self._key_task = self._tasks.spawn(self._refresh_keys())

    def refresh_settings_soon(self) -> None:
        """Ask the controller for settings and racks; concurrent calls share one request."""
        if self._settings_task is None or self._settings_task.done():
            self._settings_task = self._tasks.spawn(
                self.maintenance.attempt("settings", self.refresh_settings)
            )

    async def _refresh_keys(self) -> None:
        reply = await self._ask_controller(ClusterKeysRequest())
        if reply.error is ErrorCode.NONE:
            self.replica.learn_keys(reply.keys)

    async def _ask_controller(self, request: Request[ReplyT]) -> ReplyT:
        timeout_ms = self.config.cluster.internal_call_timeout_ms
        return await self.transport.call(CONTROLLER_ACTOR, request, timeout_ms=timeout_ms)

    async def learn_keys(self, request: LearnKeysRequest) -> LearnKeysReply:
        """Use new keys from now on; a starting replica gets them with its epoch."""
        self.replica.learn_keys(request.keys)
        return LearnKeysReply()

    async def compact_log(self) -> None:
        """Compact the log of a compacted topic, if it is dirty enough."""
        await clean_if_dirty(
            self.replica,
            now_ms=self.environment.clock.now_ms(),
            is_wanted=lambda: self.maintenance.may_compact,
        )

    async def _start(self) -> None:
        try:
            await self.replica.start()
            # Loading may wait for followers; settings and epochs must be checked meanwhile.
            self.start_upkeep()
            await self.shell.load()
            self.is_loaded = True
        except InvariantViolation as error:
            self.environment.die(error)
        except OSError as error:
            self.failure = f"could not start: {error}"
            _logger.error(
                "%r %s — make room on its disk, or repair it; then end this process if `oncelog "
                "status` still shows it offline",
                *(self, self.failure),
            )
            if is_transient(error):
                self.restart_later(self.failure)
        except Exception as error:
            # Kept for ``health``: the actor lives on and answers that it does not lead.
            _logger.exception(
                "%r could not start — report this as a bug, with this log; end the process to let "
                "it try again",
                self,
            )
            self.failure = f"could not start: {error!r}"

    def start_upkeep(self) -> None:
        """Start maintenance and metrics, in any role."""
        if not self.is_stopped:
            self.maintenance.start()

    def end_for_another(self, reason: str) -> None:
        """Restart as a follower: another replica leads."""
        if not self.is_stopped:
            self.environment.die(LeadershipLostError(reason))

    async def describe_replica(self, request: DescribeReplicaRequest) -> DescribeReplicaReply:
        """Describe the replica's bounds and role."""
        if request.topic_partition not in (None, self.replica.topic_partition):
            return request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.metrics.observe_transactions()
        refusal = self.replica.refusal
        refused_ms = refusal.lasts_ms(loop_ms())
        directory, space = self.environment.disk_metrics.place_of(self.replica)
        return structs.replace(
            self.replica.describe(self.environment.process_id),
            late_transaction_count=self.metrics.ages.late_count,
            oldest_open_transaction_age_ms=self.metrics.ages.oldest_ms,
            active_transactional_id_count=self.shell.gauges().get(ACTIVE_TRANSACTIONAL_ID_COUNT),
            refusal="" if refused_ms is None else refusal.reason,
            refused_ms=refused_ms or 0,
            directory=directory,
            disk_size_bytes=-1 if space is None else space.size_bytes,
            disk_free_bytes=-1 if space is None else space.free_bytes,
        )

    def report_metrics(self) -> None:
        """Report the metrics of the log and of the shell."""
        self.metrics.report()
        if self.replica.availability() is ErrorCode.NONE:
            for metric, value in self.shell.gauges().items():
                self.metrics.set(metric, value)
        self.shell.report_metrics(self.metrics.sink)

    async def shutdown(self, request: ShutdownRequest) -> ShutdownReply:
        """Stop serving, flush and release the directory; the caller kills the process."""
        if request.topic_id != self.replica.known_topic_id():
            return request.failed(ErrorCode.UNKNOWN_TOPIC_ID)
        if request.is_moved and not await self._has_moved(request.topic_id):
            return request.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.has_moved = self.has_moved or request.is_moved
        await self.end(remove_data=request.remove_data)
        if self.replica.failure is not None:
            return request.failed(ErrorCode.KAFKA_STORAGE_ERROR, self.replica.failure)
        return ShutdownReply()

    async def _has_moved(self, topic_id: str) -> bool:
        """Whether the partition has moved away, asked while the replica is halted; else restart.

        The call that said so may be late, so ask. The answer may be late too, but only a newer
        process can be in sync by then, and that one asks for its role before it follows.
        """
        self.replica.halt()
        reply = await self._ask_controller(MetadataRequest(topics=(self.config.topic,)))
        if reply.error is ErrorCode.NONE:
            topic = next((one for one in reply.topics if one.topic_id == topic_id), None)
            known = None if topic is None else topic.find(self.config.partition)
            if known is None or self.config.broker_id not in known.replicas:
                return True
        if not self.is_stopped:
            still = f"{self!r} was told that it has moved, and the controller does not say so"
            self.environment.die(LeadershipLostError(still))
        return False

    async def end(self, *, remove_data: bool = False) -> None:
        """Stop maintenance and serving; flush and release the directory. Safe to repeat."""
        self.is_stopped = True
        self.metrics.stop()
        await self.maintenance.stop()
        await self.stop_serving(remove_data=remove_data)

    async def stop_serving(self, *, remove_data: bool) -> None:
        """Stop the shell on top of the replica, then the replica; write out the audit log."""
        await self.shell.stop()
        await self.replica.stop(remove_data=remove_data)
        if self.environment.audit is not None:
            await self.environment.audit.flush()


class PartitionShell(PartitionLeader):
    """A partition's leader as a shell: it has nothing to load, to stop or to report."""

    def __init__(self, server: ReplicaServer) -> None:
        super().__init__(
            replica=server.replica,
            clock=server.environment.clock,
            on_log_start_raised=server.maintenance.retain_soon,
        )

    async def load(self) -> None:
        """See ``Shell``."""

    async def stop(self) -> None:
        """See ``Shell``."""

    def gauges(self) -> Mapping[Metric, int]:
        """See ``Shell``."""
        return {}

    def report_metrics(self, sink: MetricSink) -> None:
        """See ``Shell``."""


def shell_of(server: ReplicaServer) -> Shell:
    """The shell that serves the topic of ``server``; not for the metadata log."""
    environment, topic = server.environment, server.config.topic
    if topic == TRANSACTION_STATE_TOPIC:
        return TransactionCoordinator(
            replica=server.replica,
            transport=environment.transport,
            clock=environment.clock,
            rng=environment.random,
            drivers=environment.drivers,
            on_failure=environment.die,
        )
    if topic == CONSUMER_OFFSETS_TOPIC:
        return GroupCoordinator(
            replica=server.replica,
            transport=environment.transport,
            clock=environment.clock,
            random=environment.random,
            drivers=environment.drivers,
            settings=group_settings(server.config.cluster),
            on_failure=environment.die,
        )
    return PartitionShell(server)
