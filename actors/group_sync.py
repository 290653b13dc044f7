"""Group sync: all appends that arrive while a sync runs share the next one.

The high watermark, and so every acknowledgement and every reader, covers only what is on disk; with
``flush="os"`` it covers what was handed to the operating system, and the sync goes on behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from oncelog.actors.interfaces import Background
from oncelog.actors.protocol.partition import PartitionMachine
from oncelog.actors.replica_waiters import ReplicaWaiters
from oncelog.storage.partition_log import PartitionLog

UNAWAITED_SYNC_MS: Final = 20
"""How long something that nobody waits for may stay unsynced: time for others to share a sync."""


class GroupSync:
    """Syncs one replica's log and moves its high watermark.

    ``on_failure`` takes the replica offline; ``is_offline`` says whether it is.
    """

    def __init__(
        self,
        *,
        machine: PartitionMachine,
        background: Background,
        waiters: ReplicaWaiters,
        on_failure: Callable[[OSError], None],
        is_offline: Callable[[], bool],
    ) -> None:
        self._machine = machine
        self._background = background
        self._waiters = waiters
        self._on_failure = on_failure
        self._is_offline = is_offline
        self._synced_offset = 0
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Take all that is in the machine for durable: its log was synced when it was opened."""
        self._synced_offset = self._machine.log_end_offset
        self._machine.advance_high_watermark(self._synced_offset)

    def request(self, log: PartitionLog, *, is_awaited: bool) -> None:
        """Have what was appended synced soon; unless ``is_awaited``, readers need not wait."""
        if not is_awaited:
            # The sync goes on behind, so that a restart has little to scan.
            self._machine.advance_high_watermark(self._machine.log_end_offset)
            self._waiters.release(self._machine.high_watermark)
        self._begin_sync(log)

    def request_later(self, log: PartitionLog) -> None:
        """Have what was appended, and nobody waits for, synced with the next append or in a while.

        The high watermark passes it then.
        """
        if self._task is None and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(UNAWAITED_SYNC_MS / 1000, self._begin_sync, log)

    def _begin_sync(self, log: PartitionLog) -> None:
        self._forget_timer()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(log))

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def drain(self) -> None:
        """Wait for the sync under way, if there is one; closing the log syncs what is left."""
        self._forget_timer()
        if self._task is not None:
            await self._task

    async def _run(self, log: PartitionLog) -> None:
        """Sync until nothing is unsynced: appends made meanwhile share the next round."""
        machine = self._machine
        try:
            while self._synced_offset < machine.log_end_offset:
                point = log.sync_point()
                await self._background.run(point.run)
                if self._is_offline():
                    return
                log.mark_synced(point)
                self._synced_offset = point.log_end_offset
                machine.advance_high_watermark(point.log_end_offset)
                self._waiters.release(machine.high_watermark)
        except OSError as error:
            self._on_failure(error)
        finally:
            self._task = None
