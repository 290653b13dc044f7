"""The controller's server: how it gets its epoch, and when it gives up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from msgspec import structs

from oncelog.actors.config import DATA_DIR_SEPARATOR, ReplicaConfig, own_directory
from oncelog.actors.controller.controller import Controller
from oncelog.actors.controller.replica_actors import SMALL_MACHINE, Launcher, MachineSize
from oncelog.actors.coordination.process_watch import described_processes
from oncelog.actors.interfaces import BROKER_ACTORS, broker_actor
from oncelog.actors.launch.assembly import Environment, LeadershipLostError, ReplicaServer
from oncelog.actors.launch.metadata_voter import ask_voters
from oncelog.actors.launch.server_metrics import ControllerMetrics
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.process.metrics import NO_METRICS
from oncelog.actors.protocol.cluster.quorum import Candidacy, may_be_candidate, with_epoch
from oncelog.actors.protocol.messages.brokers import (
    DescribeProcessesReply,
    DescribeProcessesRequest,
)
from oncelog.actors.protocol.messages.cluster import (
    BecomeLeaderReply,
    ShutdownReply,
    ShutdownRequest,
)
from oncelog.actors.protocol.messages.replication import (
    DescribeVoterRequest,
    ReplicateReply,
    ReplicateRequest,
    VoteRequest,
)
from oncelog.actors.replica.data_directory import VOTER_FILE
from oncelog.actors.replica.log_directories import DIRECTORY_ID_BYTES, join_further
from oncelog.actors.replica.metadata_replica import MetadataLeader
from oncelog.actors.replica.opening import ExpectedLog
from oncelog.actors.replica.replica import Replica
from oncelog.actors.replica.replica_log import ReplicaRole
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_LEADER_EPOCH

_logger = logging.getLogger(__name__)

USE_CHECK_MS: Final = 500
"""Interval of checking whether the controller can still commit."""

UNELECTED_FACTOR: Final = 5
"""A start may wait this many times as long for its election."""

_UNELECTED: Final = "it has not been elected"


class ControllerServer(ReplicaServer):
    """The controller, with its own log and an epoch given by the voters of that log.

    ``resign`` ends the process for good and frees the controller's name, for one of three reasons.
    This broker's log does not let it be the controller, and another's may. It ``is_on_head``: while
    Ray's head is down no actor starts, so nobody could replace a controller there. It could not
    commit for ``controller_session_timeout_ms``: its disk refuses writes, or no majority answers
    (raft's CheckQuorum).
    """

    shell: Controller

    def __init__(
        self,
        config: ReplicaConfig,
        environment: Environment,
        *,
        launcher: Launcher,
        token_bytes: Callable[[int], bytes],
        machine_size: MachineSize = SMALL_MACHINE,
        resign: Callable[[], None] | None = None,
        is_on_head: bool = False,
    ) -> None:
        def new_controller(server: ReplicaServer) -> Controller:
            return Controller(
                replica=server.replica,
                clock=environment.clock,
                transport=environment.transport,
                launcher=launcher,
                config=config.cluster,
                process_id=environment.process_id,
                token_bytes=token_bytes,
                on_failure=environment.die,
                machine_size=machine_size,
                metadata_log=cast("MetadataLeader", server.replica.role),
                leave=self._leave_head if is_on_head else None,
                learn_access=environment.door.learn,
            )

        super().__init__(config, environment, new_controller)
        self.metadata_log = cast("MetadataLeader", self.replica.role)
        self._launcher = launcher
        self._resign_for_good = resign
        self._reported_epoch = NO_LEADER_EPOCH
        self._has_resigned = False
        self.cluster_metrics = ControllerMetrics(
            machine=self.shell.machine, sink=environment.metrics, broker_id=config.broker_id
        )
        self._tasks.spawn(self._resign_when_useless())

    def new_role(self, replica: Replica) -> ReplicaRole:
        """See ``ReplicaServer``."""
        return MetadataLeader(replica, self.environment.filesystem)

    def __repr__(self) -> str:
        return "Controller"

    def report_metrics(self) -> None:
        """Report the metrics of the log and of the cluster."""
        super().report_metrics()
        if self.is_serving() and self.metrics.sink is not NO_METRICS:
            self.cluster_metrics.report(self.shell.loaded_election_count)
            if self.metadata_log.quorum is not None:
                self.cluster_metrics.report_voters(self.metadata_log.quorum)

    async def describe_processes(self, request: DescribeProcessesRequest) -> DescribeProcessesReply:
        """Tell which processes of this machine live: its broker may have no actor of its own."""
        return await described_processes(self.environment.drivers, request)

    async def _start(self) -> None:
        await self._join_further()
        await super()._start()

    async def _join_further(self) -> None:
        """Take the further data directories, as other brokers do when they register."""
        data_dir, environment = self.config.data_dir, self.environment
        if DATA_DIR_SEPARATOR not in data_dir:
            return

        def join() -> None:
            join_further(
                environment.filesystem,
                data_dir,
                new_directory_id=lambda: environment.random.randbytes(DIRECTORY_ID_BYTES).hex(),
            )

        try:
            await self.replica.run_in_thread(join)
        except (OSError, CorruptDataError) as error:
            # Directories claimed earlier are used; replicas in the others report why they are
            # offline.
            _logger.error(
                "not all directories of data_dir=%r can be used: %s — mount or repair it, then "
                "restart this broker",
                *(data_dir, error),
            )

    async def ask_for_epoch(self, last_epoch: int) -> BecomeLeaderReply:
        """The next epoch of the metadata log, once a majority of its voters agrees.

        A lone voter asks nobody: its directory lock lets one process lead it.
        """
        log, own = self.metadata_log, self.config.broker_id
        electorate = await log.electorate_in_log()
        voters = electorate.voters
        if not voters and self.replica.machine.log_end_offset == 0:
            # Without voters it is a copy that was begun anew and received nothing yet.
            voters = (own,)
        log.voters, log.disks = voters, dict(electorate.disks)
        state = log.load_state()
        epoch = max(last_epoch, state.epoch, self._reported_epoch) + 1
        if not may_be_candidate(state, voters, own):
            self._resign(f"its log names {voters} as voters")
        elif len(voters) == 1 or await self._is_elected(epoch):
            return BecomeLeaderReply(leader_epoch=epoch)
        return BecomeLeaderReply(error=ErrorCode.NOT_CONTROLLER)

    async def _is_elected(self, epoch: int) -> bool:
        """Ask for votes, after a trial: a lost election would disturb the current epoch."""
        log, own = self.metadata_log, self.config.broker_id
        if not (await self._ask_voters(epoch, is_trial=True)).is_won:
            return False
        state = with_epoch(log.load_state(), epoch)
        await log.write_state(structs.replace(state, voted_for=own))
        return (await self._ask_voters(epoch, is_trial=False)).is_won

    async def _ask_voters(self, epoch: int, *, is_trial: bool) -> Candidacy:
        log = self.metadata_log
        position = log.position()
        request = VoteRequest(
            cluster_id=self.config.cluster_id,
            candidate=self.config.broker_id,
            leader_epoch=epoch,
            log_epoch=position.epoch,
            log_end_offset=position.end_offset,
            is_trial=is_trial,
            disk=self.replica.directory.disk(),
        )
        candidacy = await ask_voters(
            self.transport,
            request,
            log.voters,
            timeout_ms=self.config.cluster.internal_call_timeout_ms,
            disks=log.disks,
        )
        self._reported_epoch = max(self._reported_epoch, candidacy.newest_epoch)
        if candidacy.is_behind and not candidacy.is_won:
            self._resign("another voter has a newer log")
        return candidacy

    # --- of no use ------------------------------------------------------------------------

    async def _resign_when_useless(self) -> None:
        """Resign once it has been unable to commit for too long; run it in its own task."""
        limit_ms = self.config.cluster.controller_session_timeout_ms
        good_ms = loop_ms()
        while not self.is_stopped:
            before_ms = loop_ms()
            await asyncio.sleep(USE_CHECK_MS / 1000)
            reason = await self._resign_reason()
            now_ms = loop_ms()
            was_suspended = now_ms - before_ms > 2 * (USE_CHECK_MS + limit_ms)
            may_follow = bool(reason) and (
                self._others_may_follow() or await self._others_know_voters()
            )
            if not reason or was_suspended or not may_follow:
                good_ms = now_ms
            elif now_ms - good_ms >= (UNELECTED_FACTOR if reason == _UNELECTED else 1) * limit_ms:
                self._resign(reason)
                return

    async def _resign_reason(self) -> str:
        """Why this controller cannot commit now; "" if it can."""
        replica = self.replica
        offline = self.failure or replica.failure or replica.waits_for
        if offline:
            return offline
        if replica.refusal.lasts_ms(loop_ms()) is not None:
            return f"the disk of {replica.directory.path} refuses writes"
        if self.metadata_log.quorum is None:
            return _UNELECTED
        timeout_ms = self.config.cluster.controller_session_timeout_ms
        if await replica.confirm(timeout_ms) is ErrorCode.NONE:
            return ""
        return "no majority of the voters answers"

    def _others_may_follow(self) -> bool:
        """Whether there are other voters, by the log or else the voter file.

        A lone voter stays, and reports what is wrong.
        """
        if len(self.metadata_log.voters) > 1:
            return True
        try:
            path = own_directory(self.config.data_dir) / VOTER_FILE
            return not self.metadata_log.voters and self.environment.filesystem.exists(path)
        except OSError:
            return False

    async def _others_know_voters(self) -> bool:
        """Whether other brokers know of several voters; an empty disk here knows none."""
        if self.metadata_log.voters:
            return False
        own, request = broker_actor(self.config.broker_id), DescribeVoterRequest()
        timeout_ms = self.config.cluster.internal_call_timeout_ms
        replies = await asyncio.gather(
            *(
                self.transport.call(name, request, timeout_ms=timeout_ms)
                for name in await self._launcher.running()
                if name.startswith(BROKER_ACTORS) and name != own
            )
        )
        return any(len(reply.voters) > 1 for reply in replies)

    def restart_later(self, reason: str) -> None:
        """See ``ReplicaServer``; if others can take over, resign instead."""
        if not self._others_may_follow():
            super().restart_later(reason)

    def _leave_head(self) -> None:
        self._resign("it is on Ray's head, and others are not")

    def _resign(self, reason: str) -> None:
        if self._has_resigned:
            return
        self._has_resigned = True
        _logger.warning(
            "broker %d resigns as the controller: %s — see `oncelog status`: another voter takes "
            "over, and says what is left to repair",
            *(self.config.broker_id, reason),
        )
        if self._resign_for_good is None:
            self.environment.die(LeadershipLostError(reason))
        else:
            self._resign_for_good()

    async def ask_for_log(self) -> ExpectedLog | None:
        """The metadata log must exist, unless the cluster is being founded in this directory."""
        identity = self.replica.directory.identity()
        is_new = identity is not None and identity.is_founding
        return ExpectedLog(topic_id="", is_in_sync=not is_new)

    async def send_push(self, broker_id: int, request: ReplicateRequest) -> ReplicateReply:
        """Push to the copy in a broker's own actor."""
        timeout_ms = self.config.cluster.internal_call_timeout_ms
        return await self.transport.call(broker_actor(broker_id), request, timeout_ms=timeout_ms)

    async def refresh_settings(self) -> None:
        """Do nothing: the metadata log has no settings."""

    async def shutdown(self, request: ShutdownRequest) -> ShutdownReply:
        """Stop every replica of the cluster, then the metadata log."""
        self.metrics.stop()
        await self.maintenance.stop()
        reply = await self.shell.shutdown(request)
        if reply.error is ErrorCode.NONE:
            self._tasks.cancel()
            await self.stop_serving(remove_data=False)
        return reply
