"""A broker's own actor: it registers the broker and sends heartbeats.

The controller starts one of these on each node labelled ``broker=N``, and on its own node once
others have copies of its log. The actor claims an empty data directory for the cluster and
registers the broker; from then on replicas are placed on the node. Its heartbeats tell which actors
of the node do not answer, and which replicas are offline.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from msgspec import structs

from oncelog.actors.config import BrokerConfig, own_directory
from oncelog.actors.coordination.actor_watch import ActorWatch, WatchReport
from oncelog.actors.coordination.process_watch import described_processes
from oncelog.actors.interfaces import CONTROLLER_ACTOR, broker_actor
from oncelog.actors.launch.assembly import Environment
from oncelog.actors.launch.metadata_voter import ControllerPlace, MetadataVoter, NoPlace
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.messages.brokers import (
    BrokerHeartbeatRequest,
    DescribeProcessesReply,
    DescribeProcessesRequest,
    PingReply,
    PingRequest,
    RegisterBrokerRequest,
)
from oncelog.actors.protocol.messages.replication import (
    DescribeVoterReply,
    DescribeVoterRequest,
    ReplicateReply,
    ReplicateRequest,
    VoteReply,
    VoteRequest,
)
from oncelog.actors.replica.data_directory import DirectoryIdentity, join, keep_epoch
from oncelog.actors.replica.log_directories import DIRECTORY_ID_BYTES, join_further
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import CLUSTER_METADATA_TOPIC

_logger = logging.getLogger(__name__)

JOIN_RETRY_MS: Final = 500
JOIN_RETRY_MAX_MS: Final = 10_000
"""Back-off of a broker that cannot register, first and maximum: the cause may be repaired."""

EPOCH_MAX_MS: Final = 3_600_000
"""How long a broker keeps an epoch; a copy of its directory from before is then recognised."""

_UNREGISTERED: Final = frozenset({ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.STALE_BROKER_EPOCH})
"""Errors of a heartbeat after which the broker registers again."""

_NOT_SERVED: Final = frozenset(
    {ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER}
)
"""Errors that do not come from a serving controller."""


class Broker:
    """One broker, registered again when needed; ``problem`` says why it cannot be."""

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        place: ControllerPlace | None = None,
    ) -> None:
        self.config = config
        self.environment = environment
        self.is_registered = False
        self.problem = ""
        self._background = environment.new_background()
        self._tasks = OwnTasks(environment.die)
        self.voter = MetadataVoter(config, environment, place or NoPlace(), self._tasks)
        self._watch = ActorWatch(
            environment.transport,
            silent_after_ms=config.cluster.broker_session_timeout_ms,
            hold_ms=config.cluster.broker_heartbeat_interval_ms,
        )

    def __repr__(self) -> str:
        return f"Broker({broker_actor(self.config.broker_id)})"

    def begin(self) -> None:
        """Register and send heartbeats, in a task of its own."""
        self._tasks.spawn(self._take_part())
        self._tasks.spawn(self.voter.watch())

    async def ping(self, request: PingRequest) -> PingReply:  # noqa: ARG002
        """Answer that this process is alive."""
        return PingReply()

    async def describe_processes(self, request: DescribeProcessesRequest) -> DescribeProcessesReply:
        """Tell which processes of this machine live."""
        return await described_processes(self.environment.drivers, request)

    async def vote(self, request: VoteRequest) -> VoteReply:
        """Answer a candidate for controller."""
        return await self.voter.vote(request)

    async def describe_voter(self, request: DescribeVoterRequest) -> DescribeVoterReply:  # noqa: ARG002
        """Describe this broker's copy of the metadata log."""
        known = self.voter.described()
        return structs.replace(known, problem=self.problem or known.problem)

    async def replicate(self, request: ReplicateRequest) -> ReplicateReply:
        """Take a push of the controller's log."""
        if request.topic_partition.topic != CLUSTER_METADATA_TOPIC:
            return request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return await self.voter.replicate(request, is_registered=self.is_registered)

    async def _take_part(self) -> None:
        while True:
            epoch = await self._register()
            await self._send_heartbeats(epoch)
            self.is_registered = False
            await asyncio.sleep(JOIN_RETRY_MS / 1000)

    async def _send_heartbeats(self, broker_epoch: int) -> None:
        """Send heartbeats until the controller rejects this epoch, or it is time for another."""
        cluster = self.config.cluster
        actors: tuple[str, ...] = ()
        seen = WatchReport()
        checking: asyncio.Task[WatchReport] | None = None
        is_kept = await self._is_kept(broker_epoch)
        begun_ms = answered_ms = loop_ms()
        while loop_ms() - begun_ms < EPOCH_MAX_MS:
            request = BrokerHeartbeatRequest(
                broker_id=self.config.broker_id,
                broker_epoch=broker_epoch,
                silent_actors=seen.silent_actors,
                offline_replicas=seen.offline_replicas,
                refusing_replicas=seen.refusing_replicas,
                unanswered_ms=loop_ms() - answered_ms,
                is_kept=is_kept,
            )
            # Not longer: a lost call must not cost the session.
            reply = await self.environment.transport.call(
                CONTROLLER_ACTOR, request, timeout_ms=cluster.broker_heartbeat_interval_ms
            )
            self._on_controller_reply(reply)
            if reply.error not in _NOT_SERVED:
                answered_ms = loop_ms()
            if reply.error in _UNREGISTERED:
                return
            if reply.error is ErrorCode.NONE:
                actors = reply.actors
            # Beside the heartbeats: an actor that does not answer must not hold them up.
            checking = checking or self._tasks.spawn(self._watch.check(actors))
            next_s = loop_ms() / 1000 + cluster.broker_heartbeat_interval_ms / 1000
            await asyncio.wait({checking}, timeout=cluster.broker_heartbeat_interval_ms / 1000)
            if checking.done():
                seen, checking = checking.result(), None
            if not seen.has_new_death:
                await asyncio.sleep(next_s - loop_ms() / 1000)

    async def _register(self) -> int:
        """Register until that succeeds; return the broker's epoch."""
        delay_ms = JOIN_RETRY_MS
        while True:
            request = await self._joined()
            timeout_ms = self.config.cluster.internal_call_timeout_ms
            reply = await self.environment.transport.call(
                CONTROLLER_ACTOR, request, timeout_ms=timeout_ms
            )
            self._on_controller_reply(reply)
            problem = request.problem or reply.detail
            if reply.error is ErrorCode.NONE and not problem:
                self.is_registered, self.problem = True, ""
                return reply.broker_epoch
            if problem and problem != self.problem:
                _logger.error(
                    "%r does not take part: %s — repair what it names; it is tried again",
                    *(self, problem),
                )
            self.problem = problem or reply.error.name
            await asyncio.sleep(delay_ms / 1000)
            delay_ms = min(2 * delay_ms, JOIN_RETRY_MAX_MS)

    def _on_controller_reply(self, reply: Reply) -> None:
        if reply.error not in _NOT_SERVED:
            self.voter.record_served()
        elif reply.error is ErrorCode.NOT_CONTROLLER:
            self.voter.record_answered()
        elif reply.error is ErrorCode.NETWORK_EXCEPTION:
            self.voter.record_unreachable()

    async def _joined(self) -> RegisterBrokerRequest:
        """The registration: the directory's identity, or why it cannot be used."""
        config = self.config
        new_id = self._new_directory_id()
        try:
            identity = await self._background.run(lambda: self._join(new_id))
        except (OSError, CorruptDataError) as error:
            return RegisterBrokerRequest(broker_id=config.broker_id, problem=str(error))
        return RegisterBrokerRequest(
            broker_id=config.broker_id,
            cluster_id=identity.cluster_id,
            data_dir=config.data_dir,
            directory_id=identity.directory_id,
            rack=config.rack,
            directory_epoch=identity.broker_epoch,
            boot_id=self.environment.boot_id,
        )

    async def _is_kept(self, broker_epoch: int) -> bool:
        """Write down the epoch, which tells the directory from an older copy; return success.

        A full disk need not cost the broker its session.
        """
        filesystem, own = self.environment.filesystem, own_directory(self.config.data_dir)
        try:
            kept = await self._background.run(lambda: keep_epoch(filesystem, own, broker_epoch))
        except (OSError, CorruptDataError) as error:
            _logger.warning(
                "%r cannot write its epoch: %s — make room on its disk, or repair it; it is tried "
                "again",
                *(self, error),
            )
            return False
        self.voter.has_disk(kept)
        return True

    def _join(self, new_directory_id: str) -> DirectoryIdentity:
        """Take the data directories. OSError, CorruptDataError."""
        config, filesystem = self.config, self.environment.filesystem
        identity = join(
            filesystem,
            own_directory(config.data_dir),
            cluster_id=config.cluster_id,
            broker_id=config.broker_id,
            new_directory_id=new_directory_id,
        )
        join_further(filesystem, config.data_dir, new_directory_id=self._new_directory_id)
        return identity

    def _new_directory_id(self) -> str:
        return self.environment.random.randbytes(DIRECTORY_ID_BYTES).hex()
