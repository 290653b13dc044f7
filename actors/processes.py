"""The Ray actor classes: each builds its collaborators of production, starts and is watched.

``__init__`` only sets fields, because an exception there would end the actor for good; recovery
runs in a task, and while it runs requests are answered with a code. A broken invariant ends the
process: Ray starts it again and it recovers from its log.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import random
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import ray

from oncelog.actors.config import ReplicaConfig
from oncelog.actors.group_coordinator import GroupCoordinator, group_settings
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.log_cleaning import clean_if_dirty
from oncelog.actors.maintenance import Maintenance
from oncelog.actors.partition_leader import PartitionLeader
from oncelog.actors.protocol.cluster_messages import (
    BecomeLeaderReply,
    BecomeLeaderRequest,
    MetadataRequest,
    ShutdownReply,
    ShutdownRequest,
)
from oncelog.actors.protocol.messages import DescribeReplicaReply, DescribeReplicaRequest
from oncelog.actors.ray_transport import RayTransport, SystemClock, ThreadBackground
from oncelog.actors.replica import Replica
from oncelog.actors.transaction_coordinator import TransactionCoordinator
from oncelog.storage.errors import ErrorCode, InvariantViolation
from oncelog.storage.fs import RealFileSystem

_logger = logging.getLogger(__name__)
_ClassT = TypeVar("_ClassT", bound=type)

EXIT_STATUS_OF_BUG: Final = 70
"""Exit status of a process that met a bug of ours (EX_SOFTWARE of sysexits)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What a process says of itself, even while its data path is busy."""

    process_id: int
    is_serving: bool
    detail: str


def _dies_of_invariants(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return await method(*args, **kwargs)
        except InvariantViolation as error:
            die_of_bug(error)

    return guarded


def die_of_bug(error: BaseException) -> None:
    """End the process at once; Ray starts it again, and it recovers from its log."""
    _logger.critical("this process ends: %r", error, exc_info=error)
    logging.shutdown()
    os._exit(EXIT_STATUS_OF_BUG)


def actor_class(kind: _ClassT) -> _ClassT:
    """Class decorator: every public asynchronous method ends the process on a broken invariant."""
    for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction):
        if not name.startswith("_") and name != "health":
            setattr(kind, name, _dies_of_invariants(method))
    return kind


class ReplicaProcess:
    """What every process that holds a log has: its replica, its start and its health."""

    def __init__(self, config: ReplicaConfig) -> None:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
        self.config = config
        self.incarnation = secrets.token_hex(8)
        self.clock = SystemClock()
        self.transport = RayTransport()
        self.random = random.Random(secrets.randbits(64))
        self.failure = ""
        self.replica = Replica(
            config=config,
            filesystem=RealFileSystem(),
            clock=self.clock,
            background=ThreadBackground(),
            epoch_source=self.ask_for_epoch,
        )
        self.maintenance = Maintenance(
            replica=self.replica,
            clock=self.clock,
            on_failure=die_of_bug,
            refresh=self.refresh_settings,
            compact=self.compact_log,
        )

    def begin(self) -> None:
        """Start serving in a task of its own; the last line of a constructor."""
        self._start_task = asyncio.get_running_loop().create_task(self._start())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config.topic}-{self.config.partition})"

    async def start_serving(self) -> None:
        """Open the replica and whatever is on top of it."""
        await self.replica.start()

    async def ask_for_epoch(self, _last_epoch: int) -> BecomeLeaderReply:
        """Ask the controller for an epoch that nobody had before."""
        request = BecomeLeaderRequest(
            topic_partition=self.replica.topic_partition,
            broker_id=self.config.broker_id,
            incarnation=self.incarnation,
        )
        return await self.transport.call(
            CONTROLLER_ACTOR, request, timeout_ms=self.config.cluster.internal_call_timeout_ms
        )

    async def refresh_settings(self) -> None:
        """Follow the settings that the controller has of the topic, in case a call was lost."""
        request = MetadataRequest(topics=(self.config.topic,))
        reply = await self.transport.call(
            CONTROLLER_ACTOR, request, timeout_ms=self.config.cluster.internal_call_timeout_ms
        )
        for topic in reply.topics:
            if topic.topic_id == self.replica.leadership.topic_id:
                self.replica.configure(topic.settings, topic.settings_version)

    async def compact_log(self) -> None:
        """Compact the log, which is of a compacted topic, if it is worth while."""
        await clean_if_dirty(
            self.replica,
            now_ms=self.clock.now_ms(),
            is_wanted=lambda: self.maintenance.is_running,
        )

    async def _start(self) -> None:
        try:
            await self.start_serving()
            self.maintenance.start()
        except InvariantViolation as error:
            die_of_bug(error)
        except Exception as error:
            # Kept for ``health``: the actor lives on and answers that it does not lead.
            _logger.exception("%r could not start", self)
            self.failure = f"could not start: {error!r}"

    @ray.method(concurrency_group="health")
    async def health(self) -> Health:
        """Tell whether this process serves; answered beside the data path."""
        return Health(
            process_id=os.getpid(),
            is_serving=self.replica.availability() is ErrorCode.NONE,
            detail=self.failure or self.replica.failure or "",
        )

    async def describe_replica(self, _request: DescribeReplicaRequest) -> DescribeReplicaReply:
        """Describe the replica's bounds and role."""
        return self.replica.describe(os.getpid())

    async def shutdown(self, request: ShutdownRequest) -> ShutdownReply:
        """Stop serving, flush and release the directory; the process stays to be killed."""
        await self.maintenance.stop()
        await self.stop_serving(remove_data=request.remove_data)
        if self.replica.failure is not None:
            return request.failed(ErrorCode.KAFKA_STORAGE_ERROR, self.replica.failure)
        return ShutdownReply()

    async def stop_serving(self, *, remove_data: bool) -> None:
        """Stop what is on top of the replica, then the replica."""
        await self.replica.stop(remove_data=remove_data)


@actor_class
class PartitionProcess(PartitionLeader, ReplicaProcess):
    """The process of one partition replica."""

    def __init__(self, config: ReplicaConfig) -> None:
        ReplicaProcess.__init__(self, config)
        PartitionLeader.__init__(self, replica=self.replica, clock=self.clock)
        self.on_log_start_raised = self.maintenance.retain_soon
        self.begin()


@actor_class
class TransactionCoordinatorProcess(TransactionCoordinator, ReplicaProcess):
    """The process of one shard of transactional ids."""

    def __init__(self, config: ReplicaConfig) -> None:
        ReplicaProcess.__init__(self, config)
        TransactionCoordinator.__init__(
            self,
            replica=self.replica,
            transport=self.transport,
            clock=self.clock,
            rng=self.random,
            on_failure=die_of_bug,
        )
        self.begin()

    async def start_serving(self) -> None:
        """Lead the log partition, then load the shard from it."""
        await self.replica.start()
        await TransactionCoordinator.start(self)

    async def stop_serving(self, *, remove_data: bool) -> None:
        """Stop what runs in the background, then the replica."""
        await TransactionCoordinator.stop(self)
        await self.replica.stop(remove_data=remove_data)


@actor_class
class GroupCoordinatorProcess(GroupCoordinator, ReplicaProcess):
    """The process of one shard of consumer groups."""

    def __init__(self, config: ReplicaConfig) -> None:
        ReplicaProcess.__init__(self, config)
        GroupCoordinator.__init__(
            self,
            replica=self.replica,
            clock=self.clock,
            random=self.random,
            settings=group_settings(config.cluster),
        )
        self.begin()

    async def start_serving(self) -> None:
        """Lead the log partition, then load the shard from it."""
        await self.replica.start()
        await self.load()

    async def stop_serving(self, *, remove_data: bool) -> None:
        """Send the parked members away, then stop the replica."""
        self.resign()
        await self.replica.stop(remove_data=remove_data)
