"""Group sync: all appends of one turn of the event loop, and those during a sync, share a sync.

Only what is on disk counts as synced, and so is acknowledged and readable. With ``flush="os"`` it
only was handed to the operating system, and the sync follows.

A *round* syncs all that is unsynced at the end of a turn. One round runs at a time, and the next
one takes everything appended meanwhile.

A round that fails with a transient error, such as no descriptors or no room for an index entry, is
repeated with the next append, or after ``DISK_RETRY_MS``. The table in ``storage.disk.disk_errors``
says which errors are permanent.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Final, Protocol

from oncelog.actors.interfaces import Background
from oncelog.actors.process.clock import loop_ms, monotonic_s
from oncelog.actors.process.metrics import Histogram
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.actors.replica.events import ReplicaEvents
from oncelog.storage.disk.disk_errors import is_transient
from oncelog.storage.disk.sync_point import SyncPoint
from oncelog.storage.log.partition import PartitionLog

_logger = logging.getLogger(__name__)

UNAWAITED_SYNC_MS: Final = 20
"""How long bytes without a waiting caller may stay unsynced, so that others share the sync."""

DISK_RETRY_MS: Final = 1_000
"""Delay before a round with a transient disk error is repeated."""

SEND_TURNS: Final = 2
"""Turns of the loop until calls made at the end of this turn have been sent."""

SMALL_BYTES: Final = 32 * 1024
"""Syncs up to this are small; beyond it writing takes longer than waking a thread."""


REFUSAL_MEMORY_MS: Final = 30_000
"""A disk error that has not occurred again for this long no longer counts."""


class DiskRefusal:
    """Since when, and with what error, the disk refuses appends or repeated syncs.

    Only a successful sync ends that: of a later append, or of what it refused to sync.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._since_ms = self._refused_ms = 0
        self._ends_at = 0

    def record(self, error: OSError, *, ends_at: int, now_ms: int) -> None:
        """It has refused, until the log is synced up to ``ends_at`` (exclusive)."""
        if self.lasts_ms(now_ms) is None:
            self._since_ms = now_ms
        self.reason, self._refused_ms, self._ends_at = str(error), now_ms, ends_at

    def synced(self, end_offset: int) -> None:
        """The log is synced up to ``end_offset`` (exclusive)."""
        if end_offset >= self._ends_at:
            self.reason = ""

    def lasts_ms(self, now_ms: int) -> int | None:
        """How long it has been refusing; ``None`` if it is not, as far as is known."""
        if not self.reason or now_ms - self._refused_ms > REFUSAL_MEMORY_MS:
            return None
        return now_ms - self._since_ms


class SyncedLog(Protocol):
    """The owner of the log that is synced."""

    @property
    def failure(self) -> str | None:
        """Why it is offline."""
        ...

    def synced(self, offset: int) -> None:
        """Everything below ``offset`` (exclusive) is synced."""
        ...

    def sync_failed(self, error: OSError) -> None:
        """Go offline: a sync has failed."""
        ...


class GroupSync:
    """Syncs one replica's log, and tells ``log`` each new synced end.

    ``refusal`` is told of repeated rounds and of what is synced. ``events`` gets any other
    exception of a round than a disk error, as there is no caller to raise it to. ``durations`` gets
    the duration of each successful round.
    """

    def __init__(
        self,
        *,
        machine: PartitionMachine,
        background: Background,
        log: SyncedLog,
        events: ReplicaEvents,
        durations: Histogram,
        refusal: DiskRefusal,
    ) -> None:
        self._machine = machine
        self._background = background
        self._owner = log
        self._events = events
        self._durations = durations
        self._began_s = 0.0
        self._refusal = refusal
        self._begun_offset = 0
        """Everything below is durable, or in a round that has begun."""
        self._begun_generation = 0
        """The log's generation at that time; after a truncation the offset is invalid."""
        self._is_refused = False
        """Whether the last round failed with a transient error, which has been logged."""
        self._unbegun_bytes = 0
        self._is_due = False
        """Whether the next round must not be delayed: a power loss would lose what it covers."""
        self._is_awaited = False
        """Whether a caller waits for the next round."""
        self._round: asyncio.Future[None] | None = None
        self._next: asyncio.Handle | None = None
        """Begins the next round: at the end of this turn or, if no caller waits, by a timer."""
        self._is_next_later = False

    def begin(self, log: PartitionLog) -> None:
        """Start with everything durable: the log was synced when it was opened."""
        self._begun_offset = self._machine.log_end_offset
        self._begun_generation = log.generation
        self._owner.synced(self._begun_offset)

    def request(
        self, log: PartitionLog, size_bytes: int, *, is_awaited: bool, is_pushed: bool = False
    ) -> None:
        """Request a sync of ``size_bytes`` just appended.

        Unless ``is_awaited``, readers need not wait. With ``is_pushed`` the batches are sent to
        followers first: a small sync blocks the loop, and they sync meanwhile.
        """
        if not is_awaited:
            # The sync follows anyway, so that a restart has little to scan.
            self._owner.synced(log.indexed_end_offset)
        self._is_due = True
        self._is_awaited |= is_awaited
        self._unbegun_bytes += size_bytes
        if self._round is None and (self._next is None or self._is_next_later):
            # After all callers that are ready now have made their appends.
            self._forget_next()
            self._begin_after(SEND_TURNS if is_pushed else 0, log)

    def _begin_after(self, turns: int, log: PartitionLog) -> None:
        """Begin the next round after ``turns`` further turns."""
        loop = asyncio.get_running_loop()
        if turns:
            self._next = loop.call_soon(self._begin_after, turns - 1, log)
        else:
            self._next = loop.call_soon(self._begin_round, log)

    def request_later(self, log: PartitionLog, size_bytes: int) -> None:
        """Request a sync that no caller waits for: with the next append, or in a while.

        The high watermark passes these bytes then.
        """
        self._unbegun_bytes += size_bytes
        if self._round is None:
            self._begin_later(log)

    async def drain(self) -> None:
        """Wait for the running sync, if any; closing the log syncs what is left."""
        while self._round is not None:
            await asyncio.wait({self._round})
        self._forget_next()

    def _begin_later(self, log: PartitionLog, delay_ms: int = UNAWAITED_SYNC_MS) -> None:
        """Begin the next round in a while, unless an append brings it sooner."""
        if self._next is None:
            loop = asyncio.get_running_loop()
            self._next = loop.call_later(delay_ms / 1000, self._begin_round, log)
            self._is_next_later = True

    def _forget_next(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
            self._is_next_later = False

    def _is_unbegun(self, log: PartitionLog) -> bool:
        return (
            self._begun_offset < self._machine.log_end_offset
            or self._begun_generation != log.generation
        )

    def _begin_round(self, log: PartitionLog) -> None:
        """Sync all that is unsynced now."""
        self._forget_next()
        if self._round is not None or self._owner.failure is not None or not self._is_unbegun(log):
            return
        is_small = self._is_awaited and self._unbegun_bytes <= SMALL_BYTES
        self._unbegun_bytes, self._is_due, self._is_awaited = 0, False, False
        try:
            point = log.sync_point()
            self._begun_offset = point.log_end_offset
            self._begun_generation = point.generation
            self._began_s = monotonic_s()
            round_ = asyncio.ensure_future(self._background.run(point.sync, is_small=is_small))
        except OSError as error:
            self._repeat_or_fail(log, error)
            return
        except Exception as bug:
            self._events.on_bug(bug)
            return
        self._round = round_
        end = functools.partial(self._end_round, log, point)
        if round_.done():
            end(round_)
        else:
            round_.add_done_callback(end)

    def _end_round(self, log: PartitionLog, point: SyncPoint, round_: asyncio.Future[None]) -> None:
        """The sync has ended: on success readers may see what it covers."""
        self._round = None
        point.discard()
        if round_.cancelled():
            return
        try:
            round_.result()
            self._durations.observe(1_000 * (monotonic_s() - self._began_s))
            if self._owner.failure is not None:
                return
            if log.mark_synced(point):
                self._is_refused = False
                self._refusal.synced(point.log_end_offset)
                self._owner.synced(point.log_end_offset)
        except OSError as error:
            self._repeat_or_fail(log, error)
        except Exception as bug:
            self._events.on_bug(bug)
        else:
            self._go_on(log)

    def _go_on(self, log: PartitionLog) -> None:
        """Begin the next round, with all appends made meanwhile."""
        if self._round is not None or not self._is_unbegun(log):
            return
        if self._begun_offset == log.indexed_end_offset < log.log_end_offset:
            self._begin_later(log, DISK_RETRY_MS)
        elif self._is_due:
            self.request(log, 0, is_awaited=self._is_awaited)
        else:
            self._begin_later(log)

    def _repeat_or_fail(self, log: PartitionLog, error: OSError) -> None:
        """Repeat the round later, unless the error took the log offline."""
        if self._owner.failure is not None:
            return
        if log.failure is not None or not is_transient(error):
            self._owner.sync_failed(error)
            return
        ends_at = self._machine.log_end_offset
        self._refusal.record(error, ends_at=ends_at, now_ms=loop_ms())
        if not self._is_refused:
            self._is_refused = True
            _logger.warning(
                "%s: a sync is repeated: %s — make room on its disk; writes wait until it succeeds",
                *(self._machine.topic_partition, error),
            )
        self._begun_offset = log.recovery_point
        self._begin_later(log, DISK_RETRY_MS)
