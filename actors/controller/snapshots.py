"""Snapshots of the cluster's state in the metadata log, and the end of what is before them.

A snapshot is records of the log itself (``protocol/cluster/log``), written in a turn in which
nothing else is in flight: so it gives what all before it gives. Only when all of it is committed
does the log start rise to its first record: whoever may lead has the whole snapshot then, and all
that follows. The voters raise theirs as they are told, and who lacks the first record is restarted
there, as every follower that is behind its leader's log start. If the controller ends before that,
its records are passed over, and a later snapshot is written when it is due.

Source: KIP-630, but for the place of a snapshot, which is a file there.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from oncelog.actors.controller.membership import Execute
from oncelog.actors.protocol.cluster.log import snapshot_parts
from oncelog.actors.protocol.cluster.machine import ClusterMachine
from oncelog.actors.protocol.effects import Decision
from oncelog.actors.protocol.messages.cluster import MetadataReply, MetadataRequest
from oncelog.actors.replica.replica import Replica
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_OFFSET

_logger = logging.getLogger(__name__)

SNAPSHOT_LOOK_MS: Final = 1_000
"""How often the controller looks whether a snapshot is due."""


class Snapshots:
    """Writes them into the log of ``replica``, which leads it; ``machine`` is what it gives.

    ``execute`` decides when nothing that was logged is still to be applied.
    """

    def __init__(self, machine: ClusterMachine, replica: Replica, *, execute: Execute) -> None:
        self._machine = machine
        self._replica = replica
        self._execute = execute
        self._tried_offset = NO_OFFSET
        """Where the last attempt ended, which may have failed: the next is not made at once."""

    async def watch(self) -> None:
        """Write a snapshot whenever it is due; a task of its own."""
        while True:
            await asyncio.sleep(SNAPSHOT_LOOK_MS / 1000)
            if self._is_due():
                await self.write()

    def _is_due(self) -> bool:
        log = self._replica.machine
        cluster = self._replica.config.cluster
        count = log.log_end_offset - max(log.log_start_offset, self._tried_offset)
        if count < cluster.metadata_log_max_record_count_between_snapshots:
            return False
        # So what snapshots write is at most about what is written anyway.
        return count >= self._machine.size

    async def write(self) -> ErrorCode:
        """Write one, and drop what is before it, durably on ``NONE``."""
        replica = self._replica
        appended: list[tuple[int, int]] = []

        def append(now_ms: int) -> Decision[MetadataReply]:
            for part in snapshot_parts(self._machine.snapshot()):
                outcome = replica.append([part], now_ms=now_ms)
                if outcome.error is not ErrorCode.NONE:
                    appended.clear()
                    break
                appended.append((outcome.base_offset, outcome.next_offset))
            self._tried_offset = replica.machine.log_end_offset
            return Decision(reply=MetadataReply())

        await self._execute(MetadataRequest(topics=()), append)
        if not appended:
            return ErrorCode.KAFKA_STORAGE_ERROR
        (begins_at, _), (_, ends_at) = appended[0], appended[-1]
        error = await replica.committed(ends_at)
        if error is ErrorCode.NONE:
            error = await replica.raise_log_start(begins_at)
        if error is ErrorCode.NONE:
            _logger.info("the metadata log begins with a snapshot at %d now", begins_at)
        return error
