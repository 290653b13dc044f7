"""A broker's copy of the metadata log: it votes, and takes over if the controller is gone.

The copy stops before this broker's node starts the controller, which opens the same directory. It
starts again once the controller is no longer here. Ray says whether the controller is gone, since
only one live actor can have its name. The voters decide whether this broker may be the next. Ray's
view may be late, wrong or missing: that delays a takeover but never decides one. A copy that holds
the directory while a controller here waits for it releases it. A controller here that no longer
answers anything is killed, since a hung process cannot end itself.

``ask_voters`` asks the voters for an epoch; a starting controller uses it too. The rules are in
``cluster/quorum``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from oncelog.actors.config import BrokerConfig, ReplicaConfig, own_directory
from oncelog.actors.interfaces import Transport, broker_actor
from oncelog.actors.launch.assembly import Environment
from oncelog.actors.process.background import OwnTasks
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.cluster.quorum import NO_DISKS, Candidacy, may_be_candidate
from oncelog.actors.protocol.messages.brokers import Disk
from oncelog.actors.protocol.messages.replication import (
    DescribeVoterReply,
    ReplicateReply,
    ReplicateRequest,
    VoteReply,
    VoteRequest,
)
from oncelog.actors.replica.data_directory import VOTER_FILE
from oncelog.actors.replica.events import ReplicaEvents
from oncelog.actors.replica.metadata_replica import MetadataCopy
from oncelog.actors.replica.replica_log import NOT_NOW
from oncelog.storage.model import CLUSTER_METADATA_TOPIC, NO_LEADER_EPOCH

_logger = logging.getLogger(__name__)

NEXT_IN_ORDER_MS: Final = 1_000
"""Delay of each voter's takeover after the voter before it in order."""

LAST_IN_ORDER_MS: Final = 5_000
"""Extra delay of a voter on Ray's head: a controller there would only resign again."""

HUNG_SESSIONS: Final = 2
"""Controller sessions without any answer after which its process counts as hung."""

FOLLOWING_CHECK_MS: Final = 200
"""Interval of checking whether to take over."""

MENDED_CHECK_MS: Final = 5_000
"""Delay before a copy that failed on its disk starts again: it may be repaired."""


class ControllerPlace(Protocol):
    """Where the controller runs, as far as Ray knows. No method raises errors of Ray."""

    async def is_gone(self) -> bool:
        """Whether there is none and Ray will not restart it; false if unknown."""
        ...

    async def is_here(self) -> bool | None:
        """Whether it is on this broker's node, alive or about to start; ``None`` if unknown."""
        ...

    async def is_on_head(self) -> bool:
        """Whether this broker's node is Ray's head, where a controller resigns if it can."""
        ...

    async def start(self) -> None:
        """Start it on this broker's node, unless another one is alive."""
        ...

    async def kill_process(self) -> None:
        """Kill -9 its process on this broker's node, if it is there; Ray restarts it."""
        ...


class NoPlace:
    """A place where no controller can be started."""

    async def is_gone(self) -> bool:
        """See ``ControllerPlace``."""
        return False

    async def is_here(self) -> bool | None:
        """See ``ControllerPlace``."""
        return False

    async def is_on_head(self) -> bool:
        """See ``ControllerPlace``."""
        return False

    async def start(self) -> None:
        """See ``ControllerPlace``."""

    async def kill_process(self) -> None:
        """See ``ControllerPlace``."""


class MetadataVoter:
    """The part of a broker that votes, copies the metadata log, and takes over.

    The broker calls ``record_served`` when a serving controller has answered it,
    ``record_answered`` when any controller process has, and ``record_unreachable`` when there was
    none to call.
    """

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        place: ControllerPlace,
        tasks: OwnTasks,
    ) -> None:
        self._config = config
        self._environment = environment
        self._place = place
        self._tasks = tasks
        self._copy: MetadataCopy | None = None
        self._is_wanted = False
        """Whether a controller has pushed, so that a copy is needed."""
        self._served_ms = self._answered_ms = self._begun_ms = loop_ms()
        self._reported_epoch = NO_LEADER_EPOCH
        """The newest epoch in a voter's rejection."""

    def record_served(self) -> None:
        """The controller serves."""
        self._served_ms = self._answered_ms = loop_ms()

    def record_answered(self) -> None:
        """The controller's process lives, whether it serves or not."""
        self._answered_ms = loop_ms()

    def record_unreachable(self) -> None:
        """The controller's process has ended, or its node: nothing is to be waited for."""
        session_ms = self._config.cluster.controller_session_timeout_ms
        self._served_ms = min(self._served_ms, loop_ms() - session_ms)

    def _silent_ms(self) -> int:
        """Time without a serving controller minus a session; negative within the session."""
        return loop_ms() - self._served_ms - self._config.cluster.controller_session_timeout_ms

    def has_disk(self, disk: Disk) -> None:
        """Note the identity that is now written in the broker's directory."""
        if self._copy is not None:
            self._copy.disk = disk

    def described(self) -> DescribeVoterReply:
        """The state of the copy, if there is a readable one."""
        copy, own = self._copy, self._config.broker_id
        if copy is None or not copy.replica.is_following:
            problem = "" if copy is None else copy.replica.failure or copy.replica.waits_for
            return DescribeVoterReply(broker_id=own, problem=problem)
        return DescribeVoterReply(
            broker_id=own,
            voters=copy.electorate.voters,
            leader_epoch=copy.state.epoch,
            log_end_offset=copy.position().end_offset,
        )

    async def vote(self, request: VoteRequest) -> VoteReply:
        """Answer a candidate; without a readable copy, do not vote."""
        copy = self._copy
        return request.failed(NOT_NOW) if copy is None else await copy.vote(request)

    async def replicate(self, request: ReplicateRequest, *, is_registered: bool) -> ReplicateReply:
        """Take a push.

        An unregistered broker without a voter file may have lost its disk. Until the controller has
        removed it from the voters, it must not acknowledge.
        """
        copy = self._copy
        if copy is None:
            self._is_wanted |= is_registered
            return request.failed(NOT_NOW)
        return await copy.replicate(request)

    async def watch(self) -> None:
        """Start the copy when needed, and take over when due; run it in its own task."""
        interval_ms = self._config.cluster.broker_heartbeat_interval_ms
        while True:
            await self.check()
            follows = self._copy is not None and self._copy.replica.is_following
            await asyncio.sleep(
                (min(FOLLOWING_CHECK_MS, interval_ms) if follows else interval_ms) / 1000
            )

    async def check(self) -> None:
        """Do what is due now: begin the copy, end it, or take over."""
        copy = self._copy
        if copy is None:
            await self._kill_if_hung()
            if self._has_voted_before() or self._is_wanted:
                await self._begin_copy()
        elif copy.replica.failure is not None:
            if loop_ms() - self._begun_ms > MENDED_CHECK_MS:
                await self._end_copy(copy)
        elif not copy.replica.is_following or self._silent_ms() > 0:
            if await self._place.is_here():
                _logger.info("the controller is on this node: this broker's copy ends")
                await self._end_copy(copy)
            elif copy.replica.is_following and await self._is_next(copy):
                await self._take_over(copy)

    async def _end_copy(self, copy: MetadataCopy) -> None:
        self._copy = None
        await copy.stop()

    async def _kill_if_hung(self) -> None:
        """Kill a controller on this node that has answered nothing for too long."""
        session_ms = self._config.cluster.controller_session_timeout_ms
        if loop_ms() - self._answered_ms > HUNG_SESSIONS * session_ms:
            if await self._place.is_here():
                _logger.warning(
                    "the controller on this node answers nothing, and is killed — nothing to do: "
                    "Ray starts it again; see `oncelog logs controller --previous` if this repeats"
                )
                await self._place.kill_process()
            # Its successor gets as much time.
            self._answered_ms = loop_ms()

    def _has_voted_before(self) -> bool:
        path = own_directory(self._config.data_dir) / VOTER_FILE
        return self._environment.filesystem.exists(path)

    async def _begin_copy(self) -> None:
        if await self._place.is_here() is not False:
            return
        config, environment = self._config, self._environment
        self._begun_ms = loop_ms()
        self._copy = copy = MetadataCopy(
            config=ReplicaConfig(
                topic=CLUSTER_METADATA_TOPIC,
                partition=0,
                broker_id=config.broker_id,
                data_dir=config.data_dir,
                cluster=config.cluster,
                cluster_id=config.cluster_id,
            ),
            filesystem=environment.filesystem,
            clock=environment.clock,
            background=environment.new_background(),
            events=_CopyEvents(environment.die),
        )
        self._tasks.spawn(copy.start())

    # --- taking over ----------------------------------------------------------------------

    async def _is_next(self, copy: MetadataCopy) -> bool:
        """Whether the controller is gone, and the voters would elect this broker."""
        cluster, own = self._config.cluster, self._config.broker_id
        silent_ms = self._silent_ms()
        voters = copy.electorate.voters
        if not may_be_candidate(copy.state, voters, own):
            return False
        if silent_ms <= voters.index(own) * NEXT_IN_ORDER_MS:
            return False
        if silent_ms <= LAST_IN_ORDER_MS and await self._place.is_on_head():
            return False
        if not await self._place.is_gone() or not await copy.can_write():
            return False
        position = copy.position()
        request = VoteRequest(
            cluster_id=self._config.cluster_id,
            candidate=own,
            leader_epoch=max(copy.state.epoch, self._reported_epoch) + 1,
            log_epoch=position.epoch,
            log_end_offset=position.end_offset,
            is_trial=True,
            disk=copy.disk,
        )
        candidacy = await ask_voters(
            self._environment.transport,
            request,
            voters,
            timeout_ms=cluster.internal_call_timeout_ms,
            disks=copy.electorate.disks,
        )
        if not candidacy.is_won:
            self._reported_epoch = max(self._reported_epoch, candidacy.newest_epoch)
            _logger.warning(
                "broker %d cannot be the controller: too few votes — start the nodes of the other "
                "voters; it is tried again",
                own,
            )
            await asyncio.sleep(cluster.broker_heartbeat_interval_ms / 1000)
        return candidacy.is_won

    async def _take_over(self, copy: MetadataCopy) -> None:
        _logger.warning(
            "broker %d starts the controller: it is gone — nothing to do here; see why the node "
            "that had it is away",
            self._config.broker_id,
        )
        await self._end_copy(copy)
        await self._place.start()
        self.record_served()


class _CopyEvents(ReplicaEvents):
    """A copy makes no calls; a bug in it ends the broker's process."""

    def __init__(self, die: Callable[[BaseException], None]) -> None:
        self._die = die

    def on_bug(self, bug: BaseException) -> None:
        """See ``ReplicaEvents``."""
        self._die(bug)


async def ask_voters(
    transport: Transport,
    request: VoteRequest,
    voters: Collection[int],
    *,
    timeout_ms: int,
    disks: Mapping[int, Disk] = NO_DISKS,
) -> Candidacy:
    """Ask the voters; return when the outcome is clear, or all have answered.

    ``disks`` are those of the voters, by the candidate's log.

    It is clear once a majority is for the candidate, or a voter has a newer log. Waiting for voters
    that are down would cost the whole deadline of a call.
    """
    candidacy = Candidacy(voters, request.candidate, request.leader_epoch, disks)

    async def ask(voter: int) -> None:
        reply = await transport.call(broker_actor(voter), request, timeout_ms=timeout_ms)
        candidacy.answered(voter, reply)

    loop = asyncio.get_running_loop()
    asked = {loop.create_task(ask(voter)) for voter in voters if voter != request.candidate}
    try:
        while asked and not (candidacy.is_won or candidacy.is_behind):
            answered, asked = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for task in answered:
                task.result()
    finally:
        for task in asked:
            task.cancel()
    return candidacy
