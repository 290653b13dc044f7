"""Group sync: all appends of one turn of the event loop, and all that come meanwhile, share a sync.

What counts as synced, and so every acknowledgement and every reader, is on disk; with
``flush="os"`` it was handed to the operating system, and the sync goes on behind.

A *round* takes all that is unsynced at the end of a turn; one round is under way at a time, and the
next takes everything that was appended meanwhile.

A round that fails for want of something transient, such as a descriptor or room for an index entry,
is repeated: with the next append, or after ``DISK_RETRY_MS``. The table in
``storage.disk.disk_errors`` says which errors are permanent.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Final

from oncelog.actors.interfaces import Background
from oncelog.actors.process.clock import loop_ms, monotonic_s
from oncelog.actors.process.metrics import Histogram
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.storage.disk.disk_errors import is_transient
from oncelog.storage.disk.sync_point import SyncPoint
from oncelog.storage.log.partition import PartitionLog

_logger = logging.getLogger(__name__)

UNAWAITED_SYNC_MS: Final = 20
"""How long what no caller waits for may stay unsynced: time for others to share a sync."""

DISK_RETRY_MS: Final = 1_000
"""How soon a transient refusal of the disk is tried again."""

SEND_TURNS: Final = 2
"""How many turns of the loop calls need to leave that are made at the end of this one."""

SMALL_BYTES: Final = 32 * 1024
"""Beyond this a sync is not small: writing takes the disk longer than waking a thread."""


REFUSAL_MEMORY_MS: Final = 30_000
"""After what time a refusal of the disk that nobody has met again says nothing any more."""


class DiskRefusal:
    """Since when the disk has refused appends, or syncs that are repeated, and how it puts it.

    Only a sync ends that, of an append made since, or of what it refused to sync.
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
        """For how long it has refused; ``None`` if it does not, for all that is known."""
        if not self.reason or now_ms - self._refused_ms > REFUSAL_MEMORY_MS:
            return None
        return now_ms - self._since_ms


class GroupSync:
    """Syncs one replica's log; ``on_synced`` is told how far, exclusive, each time it has risen.

    ``on_failure`` takes the replica offline; ``is_offline`` says whether it is. ``refusal`` hears
    of rounds that are repeated, and of what is synced. ``on_bug`` gets any
    other exception of a round, as there is no caller to raise it to. ``durations`` gets how long
    each round took that succeeded.
    """

    def __init__(
        self,
        *,
        machine: PartitionMachine,
        background: Background,
        on_synced: Callable[[int], None],
        durations: Histogram,
        refusal: DiskRefusal,
        on_failure: Callable[[OSError], None],
        on_bug: Callable[[BaseException], None],
        is_offline: Callable[[], bool],
    ) -> None:
        self._machine = machine
        self._background = background
        self._on_synced = on_synced
        self._durations = durations
        self._began_s = 0.0
        self._refusal = refusal
        self._on_failure = on_failure
        self._on_bug = on_bug
        self._is_offline = is_offline
        self._begun_offset = 0
        """Everything below is durable, or in a round that has begun."""
        self._begun_generation = 0
        """The log's at that time; once it was truncated, the offset says nothing."""
        self._is_refused = False
        """The last round was refused, which has been logged."""
        self._unbegun_bytes = 0
        self._is_due = False
        """The next round must not wait: a power loss would lose what it would sync."""
        self._is_awaited = False
        """A caller is answered after the next round."""
        self._round: asyncio.Future[None] | None = None
        self._next: asyncio.Handle | None = None
        """The end of this turn or, if no caller waits, a timer: then the next round begins."""
        self._is_next_later = False

    def begin(self, log: PartitionLog) -> None:
        """Take all that is in the machine for durable: its log was synced when it was opened."""
        self._begun_offset = self._machine.log_end_offset
        self._begun_generation = log.generation
        self._on_synced(self._begun_offset)

    def request(
        self, log: PartitionLog, size_bytes: int, *, is_awaited: bool, is_pushed: bool = False
    ) -> None:
        """Have ``size_bytes`` that were appended synced soon.

        Unless ``is_awaited``, readers need not wait. What ``is_pushed`` leaves for followers first,
        as a small sync holds up the loop, and they sync meanwhile.
        """
        if not is_awaited:
            # The sync goes on behind, so that a restart has little to scan.
            self._on_synced(log.indexed_end_offset)
        self._is_due = True
        self._is_awaited |= is_awaited
        self._unbegun_bytes += size_bytes
        if self._round is None and (self._next is None or self._is_next_later):
            # When all callers that are ready now have made their appends.
            self._forget_next()
            self._begin_after(SEND_TURNS if is_pushed else 0, log)

    def _begin_after(self, turns: int, log: PartitionLog) -> None:
        """Begin the next round at the end of this turn and of so many more."""
        loop = asyncio.get_running_loop()
        if turns:
            self._next = loop.call_soon(self._begin_after, turns - 1, log)
        else:
            self._next = loop.call_soon(self._begin_round, log)

    def request_later(self, log: PartitionLog, size_bytes: int) -> None:
        """Have what no caller waits for synced with the next append or in a while.

        The high watermark passes it then.
        """
        self._unbegun_bytes += size_bytes
        if self._round is None:
            self._begin_later(log)

    async def drain(self) -> None:
        """Wait for the sync under way, if there is one; closing the log syncs what is left."""
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
        if self._round is not None or self._is_offline() or not self._is_unbegun(log):
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
            self._on_bug(bug)
            return
        self._round = round_
        end = functools.partial(self._end_round, log, point)
        if round_.done():
            end(round_)
        else:
            round_.add_done_callback(end)

    def _end_round(self, log: PartitionLog, point: SyncPoint, round_: asyncio.Future[None]) -> None:
        """The point is durable, so readers may see what it covers; or its sync has failed."""
        self._round = None
        point.discard()
        if round_.cancelled():
            return
        try:
            round_.result()
            self._durations.observe(1_000 * (monotonic_s() - self._began_s))
            if self._is_offline():
                return
            if log.mark_synced(point):
                self._is_refused = False
                self._refusal.synced(point.log_end_offset)
                self._on_synced(point.log_end_offset)
        except OSError as error:
            self._repeat_or_fail(log, error)
        except Exception as bug:
            self._on_bug(bug)
        else:
            self._go_on(log)

    def _go_on(self, log: PartitionLog) -> None:
        """A round has ended: begin the next one, with all appends made meanwhile."""
        if self._round is not None or not self._is_unbegun(log):
            return
        if self._begun_offset == log.indexed_end_offset < log.log_end_offset:
            self._begin_later(log, DISK_RETRY_MS)
        elif self._is_due:
            self.request(log, 0, is_awaited=self._is_awaited)
        else:
            self._begin_later(log)

    def _repeat_or_fail(self, log: PartitionLog, error: OSError) -> None:
        """Repeat a refused round later, unless the log is lost."""
        if self._is_offline():
            return
        if log.failure is not None or not is_transient(error):
            self._on_failure(error)
            return
        ends_at = self._machine.log_end_offset
        self._refusal.record(error, ends_at=ends_at, now_ms=loop_ms())
        if not self._is_refused:
            self._is_refused = True
            _logger.warning("%s: a sync is repeated: %s", self._machine.topic_partition, error)
        self._begun_offset = log.recovery_point
        self._begin_later(log, DISK_RETRY_MS)
