"""One replica of a partition: how it comes to lead, what it is told meanwhile, and how it stops.

What every log-holding actor is made of. What it does while it leads is in ``replica_log``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from oncelog.actors.config import ReplicaConfig, TopicConfig, internal_topic_config
from oncelog.actors.interfaces import Background, Clock
from oncelog.actors.protocol.cluster_messages import BecomeLeaderReply
from oncelog.actors.protocol.messages import DescribeReplicaReply
from oncelog.actors.protocol.tickets import NO_KEYS, ClusterKeys
from oncelog.actors.replica_log import ReplicaLog
from oncelog.actors.replica_opening import ReplicaDirectory, ask_until_told, log_settings
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.fs import FileSystem
from oncelog.storage.model import INTERNAL_TOPICS
from oncelog.storage.partition_log import PartitionLog

_logger = logging.getLogger(__name__)

DISK_FULL_RETRY_MS: Final = 1_000
"""How often a starting replica looks whether a full disk has room again."""


class Replica(ReplicaLog):
    """The log of one partition with its directory and its role.

    ``epoch_source`` asks for the epoch to lead with, given the last epoch found in the log; it is
    asked again until it answers ``NONE``.
    """

    def __init__(
        self,
        *,
        config: ReplicaConfig,
        filesystem: FileSystem,
        clock: Clock,
        background: Background,
        epoch_source: Callable[[int], Awaitable[BecomeLeaderReply]],
    ) -> None:
        super().__init__(config=config, background=background)
        self.broker_id = config.broker_id
        self.directory = ReplicaDirectory(
            config=config, filesystem=filesystem, clock=clock, machine=self.machine
        )
        self.keys = NO_KEYS
        self._epoch_source = epoch_source
        self._is_stopped = False
        self._opening = asyncio.Lock()
        self._settings_version = 0

    # --- state ----------------------------------------------------------------------------

    def describe(self, process_id: int) -> DescribeReplicaReply:
        """Describe bounds, role and process, for people, metrics and fault tests."""
        log, machine = self._log, self.machine
        return DescribeReplicaReply(
            error=ErrorCode.NONE if self.failure is None else ErrorCode.KAFKA_STORAGE_ERROR,
            detail=self.failure or "",
            topic_partition=self.topic_partition,
            process_id=process_id,
            is_leader=self._is_leading,
            leader_epoch=self.leader_epoch,
            log_start_offset=machine.log_start_offset,
            last_stable_offset=machine.last_stable_offset,
            high_watermark=machine.high_watermark,
            log_end_offset=machine.log_end_offset,
            size_bytes=log.size_bytes if log else 0,
            producer_count=machine.producer_count,
            open_transaction_count=machine.open_transaction_count,
            segment_count=log.segment_count if log else 0,
        )

    # --- start and stop -------------------------------------------------------------------

    async def start(self) -> None:
        """Take the directory, recover the log, sync it, get an epoch and lead.

        Never raises for the disk: a failure leaves the replica offline with its reason. ``stop``
        ends it early, once no file of the log is in use.
        """
        try:
            await self.directory.lock(is_wanted=lambda: not self._is_stopped)
            await self._use(lambda: self.directory.open(self.topic))
        except (OSError, CorruptDataError) as error:
            self._go_offline(f"cannot open {self.config.directory}: {error}")
        if not self._may_go_on():
            return
        last_epoch = self.log.leader_epochs[-1][0] if self.log.leader_epochs else -1
        self.leadership = await ask_until_told(
            self._epoch_source, last_epoch, is_wanted=lambda: not self._is_stopped
        )
        try:
            await self._use(self._claim_directory)
        except (OSError, CorruptDataError) as error:
            self._go_offline(f"cannot take over {self.config.directory}: {error}")
        while True:
            if not self._may_go_on():
                return
            if self._begin_epoch():
                break
            await asyncio.sleep(DISK_FULL_RETRY_MS / 1000)
        self.learn_keys(self.leadership.keys)
        self.machine.become_leader(self.leader_epoch, self.leadership.topic_id, self.keys)
        self.configure(self.leadership.settings, self.leadership.settings_version)
        self._is_leading = True

    def _begin_epoch(self) -> bool:
        """Make the start of the epoch durable; false while the disk is full, or when offline."""
        try:
            self.log.assign_leader_epoch(self.leader_epoch, self.machine.log_end_offset)
        except OSError as error:
            reason = f"cannot write the leader epoch in {self.config.directory}: {error}"
            if self.log.failure is not None:
                self._go_offline(reason)
            else:
                _logger.warning("%s waits for room: %s", self.topic_partition, reason)
            return False
        return True

    def learn_keys(self, keys: ClusterKeys) -> None:
        """Issue and judge tickets by these keys from now on, unless newer ones are known."""
        if keys.version >= self.keys.version:
            self.keys = keys
            self.machine.learn_keys(keys)

    def configure(self, settings: Sequence[tuple[str, str]], version: int) -> None:
        """Follow the settings of the topic, unless newer ones than ``version`` are known."""
        if version < self._settings_version:
            return
        self._settings_version = version
        if self.config.topic in INTERNAL_TOPICS:
            self.topic = internal_topic_config(self.config.topic, self.config.cluster)
        else:
            self.topic = TopicConfig.from_text(dict(settings))
        self.log.settings = log_settings(self.topic)

    async def _use(self, opened: Callable[[], PartitionLog]) -> None:
        """Open a log beside the event loop and take it, which is durable to its end, for ours."""
        async with self._opening:
            if not self._is_stopped:
                self._log = await self._background.run(opened)
                self._sync.begin()

    def _may_go_on(self) -> bool:
        return self.failure is None and not self._is_stopped

    def _claim_directory(self) -> PartitionLog:
        return self.directory.claim(self.log, self.leadership.topic_id, self.topic)

    async def stop(self, *, remove_data: bool = False) -> None:
        """Stop leading, flush, write the snapshot and the clean-shutdown mark, release the lock.

        ``remove_data`` deletes the directory afterwards: its topic is gone. While ``start`` has
        files in work, that is waited for.
        """
        self._is_stopped = True
        self._is_leading = False
        self._waiters.send_away(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await self._sync.drain()
        async with self._opening:
            log, self._log = self._log, None
            try:
                self.directory.close(log, is_sound=self.failure is None, remove_data=remove_data)
            except OSError as error:
                self._go_offline(f"cannot close {self.config.directory}: {error}")
            self.directory.release()
