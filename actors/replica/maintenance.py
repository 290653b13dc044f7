"""The periodic work of a replica.

| work | how often | setting |
|---|---|---|
| settings that a lost call did not bring; retention | 300 s | log_retention_check_interval_ms |
| the checkpoint, durably, if it is behind | 1 s | log_checkpoint_interval_ms |
| producers that were silent for a day | 600 s | producer_id_expiration_check_interval_ms |
| compaction, of a compacted topic | 15 s | log_cleaner_backoff_ms |
| a piece of the log read through for damage | 10 s, after all of it a day of rest | |

Compaction takes long and runs beside the rest. Only the removal of segments must not run at the
same time. If there are segments to remove, compaction stops, and continues with the rest when it is
due again.

Removing segments waits for the disk, so conditions are checked again after each wait.

Compaction works in small pieces, at a limited rate. Each reads a quarter of a megabyte in the
background thread, whose queue the group sync shares, so a sync waits for at most one piece. Then
compaction pauses to keep to ``BYTES_PER_SECOND``. On the event loop it only renames files.

The scrub reads a log through, to find damage before a reader does: ``PIECE_BYTES`` every
``SCRUB_PIECE_INTERVAL_MS``, from the log start to the high watermark; then it rests for a day. What
it finds is in ``status`` and in the metrics.

An idle replica costs one look at its checkpoint per second, by a bare timer, and little else: a
process may hold a thousand replicas.

Intervals are in the event loop's time; the wall clock decides what is old. Work that fails on a
disk error or on damaged bytes is logged, and retried when it is due again.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from oncelog.actors.config import TopicConfig
from oncelog.actors.interfaces import Clock
from oncelog.actors.process.background import resolve_future
from oncelog.actors.replica.replica import Replica
from oncelog.storage.compaction.compactor import (
    Cleaner,
    CleaningRound,
    CleanResult,
    CompactionSettings,
)
from oncelog.storage.disk.disk_errors import is_unreadable
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import CorruptDataError, CorruptRecordError, InvalidSettingError
from oncelog.storage.log.sealed_segments import Replacement
from oncelog.storage.log_settings import RetentionPolicy

_logger = logging.getLogger(__name__)

Work = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class _PeriodicTask:
    """One kind of periodic work; ``due_s`` is in the event loop's time."""

    name: str
    interval_s: float
    work: Work
    due_s: float


class Maintenance:
    """Runs the periodic work of one replica in a task of its own, whether it leads or follows.

    ``is_serving``: a leader has loaded the shell on top of its log. ``refresh`` asks the controller
    for the topic's settings. ``compact`` compacts the log once if that is worthwhile; it is only
    called for a compacted topic. ``on_failure`` gets a broken invariant or another bug.
    """

    def __init__(
        self,
        *,
        replica: Replica,
        clock: Clock,
        on_failure: Callable[[BaseException], None],
        refresh: Work | None = None,
        compact: Work | None = None,
        is_serving: Callable[[], bool] = lambda: True,
    ) -> None:
        self.replica = replica
        self._clock = clock
        self._on_failure = on_failure
        self._refresh = refresh
        self._compact = compact
        self._is_serving = is_serving
        self._periodic: list[_PeriodicTask] = []
        self._asleep: asyncio.Future[None] | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._compaction: asyncio.Task[None] | None = None
        self.is_running = False
        self._is_removing = False
        self._is_checkpoint_due = False

    def start(self) -> None:
        """Start, unless started; each kind of work is first due after one interval."""
        if self.is_running:
            return
        cluster = self.replica.config.cluster
        plan = [
            ("retention", cluster.log_retention_check_interval_ms, self._retain),
            ("expiry", cluster.producer_id_expiration_check_interval_ms, self._expire),
            ("scrub", SCRUB_PIECE_INTERVAL_MS, LogScrub(self.replica).piece),
        ]
        if self._compact is not None:
            plan.append(("compaction", cluster.log_cleaner_backoff_ms, self._clean))
        now_s = asyncio.get_running_loop().time()
        self._periodic = [
            _PeriodicTask(name, interval_ms / 1_000, work, now_s + interval_ms / 1_000)
            for name, interval_ms, work in plan
        ]
        self.is_running = True
        self._tick_later()
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._on_task_end)

    @property
    def may_compact(self) -> bool:
        """Whether a compaction may continue; it is asked between two pieces."""
        return self.is_running and not self._is_removing

    async def stop(self) -> None:
        """Stop after the running piece of work; call it before the replica stops.

        A second call waits as well: a repeated shutdown must not close the log under this work.
        """
        self.is_running = False
        if self._tick is not None:
            self._tick.cancel()
        self._wake()
        if self._task is not None:
            await asyncio.wait({self._task})
        await self._compaction_ended()

    def retain_soon(self) -> None:
        """Look for segments to remove now: the log start was raised."""
        for task in self._periodic:
            if task.name == "retention":
                task.due_s = 0.0
        self._wake()

    async def _run(self) -> None:
        """Do what is due, then sleep until the next work is due or requested."""
        loop = asyncio.get_running_loop()
        while self.is_running:
            if self._is_checkpoint_due:
                self._is_checkpoint_due = False
                # Then other due work: on a slow disk the next checkpoint may be due already.
                await self.attempt("checkpoint", self._checkpoint)
            task = min(self._periodic, key=lambda task: task.due_s)
            if task.due_s <= loop.time():
                task.due_s = loop.time() + task.interval_s
                await self._do(task)
                continue
            self._asleep = loop.create_future()
            timer = loop.call_at(task.due_s, self._wake)
            await self._asleep
            timer.cancel()

    def _wake(self) -> None:
        if self._asleep is not None:
            resolve_future(self._asleep, None)

    def _tick_later(self) -> None:
        interval_ms = self.replica.config.cluster.log_checkpoint_interval_ms
        self._tick = asyncio.get_running_loop().call_later(interval_ms / 1_000, self._on_tick)

    def _on_tick(self) -> None:
        """Keep the checkpoint recent: after a power loss it says what was acknowledged.

        Checked without waking the task: most replicas have nothing to write most of the time.
        """
        self._tick_later()
        if self._may_work() and self.replica.log.has_old_checkpoint:
            self._is_checkpoint_due = True
            self._wake()

    def _may_work(self) -> bool:
        if self.replica.upkeep_error() is not ErrorCode.NONE:
            return False
        return self.replica.is_following or self._is_serving()

    async def _do(self, task: _PeriodicTask) -> None:
        if self._may_work():
            await self.attempt(task.name, task.work)

    async def attempt(self, name: str, work: Work) -> None:
        """Do ``work``; log a transient error or a disk error, raise a bug."""
        try:
            await work()
        except (OSError, CorruptDataError, InvalidSettingError) as error:
            _logger.warning(
                "%s: %s failed: %s — make room on its disk, or repair it; it is tried again when "
                "it is next due",
                *(self.replica.topic_partition, name, error),
            )
            self.replica.check_log()

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._on_failure(failure)

    # --- the work -------------------------------------------------------------------------

    async def _checkpoint(self) -> None:
        if self._may_work() and self.replica.log.has_old_checkpoint:
            await self.replica.sync_all()

    async def _retain(self) -> None:
        if self._refresh is not None:
            await self._refresh()
        if not self._has_removable():
            return
        self._is_removing = True
        try:
            await self._compaction_ended()
            if self._has_removable():
                await remove_old_segments(self.replica, self._clock.now_ms())
        finally:
            self._is_removing = False

    def _has_removable(self) -> bool:
        return self._may_work() and has_old_segments(self.replica, self._clock.now_ms())

    async def _expire(self) -> None:
        expiration_ms = self.replica.config.cluster.producer_id_expiration_ms
        self.replica.machine.expire(self._clock.now_ms(), expiration_ms)

    async def _clean(self) -> None:
        """Begin a compaction, unless one is still running."""
        if self._compact is None or not self.replica.topic.is_compacted or self._compaction:
            return
        loop = asyncio.get_running_loop()
        self._compaction = loop.create_task(self.attempt("compaction", self._compact))
        self._compaction.add_done_callback(self._on_compaction_end)

    def _on_compaction_end(self, task: asyncio.Task[None]) -> None:
        self._compaction = None
        self._on_task_end(task)

    async def _compaction_ended(self) -> None:
        if self._compaction is not None:
            await asyncio.wait({self._compaction})


# --- retention ------------------------------------------------------------------------------------


def has_old_segments(replica: Replica, now_ms: int) -> bool:
    """Whether ``remove_old_segments`` would find any now."""
    return _retained_from(replica, now_ms) > replica.log.retention.first_base_offset


def _retained_from(replica: Replica, now_ms: int) -> int:
    """Inclusive offset from which to keep the log: by retention, or the leader's log start."""
    log = replica.log
    is_leading = replica.availability() is ErrorCode.NONE
    return log.retention.retained_from(
        replica.topic.retention if is_leading else RetentionPolicy(),
        log_start_offset=log.log_start_offset,
        upper_offset=min(replica.machine.high_watermark, log.recovery_point),
        now_ms=now_ms,
    )


async def remove_old_segments(replica: Replica, now_ms: int) -> int:
    """Apply the topic's retention once; return how many segments were removed.

    The active segment is rolled if it must go as well. A disk error while files are removed is only
    logged: the files are below the log start, and a later pass removes them.
    """
    log, machine = replica.log, replica.machine
    retained_from = _retained_from(replica, now_ms)
    if retained_from <= log.retention.first_base_offset:
        return 0
    if retained_from == machine.log_end_offset or log.retention.needs_snapshot(retained_from):
        log.roll(machine.snapshot())
    if log.retention.needs_snapshot(retained_from):
        log.write_snapshot(machine.snapshot())
    error = await replica.sync_all()
    if error is ErrorCode.NONE:
        error = await replica.raise_log_start(retained_from)
    if error is not ErrorCode.NONE:
        return 0
    removed = log.retention.take_below(log.log_start_offset)
    generation = log.generation
    try:
        for files in removed:
            if log.generation != generation:
                # The log was restarted meanwhile: it removed them itself, and may reuse their
                # names.
                break
            await replica.run_in_thread(files.run)
    except OSError as failure:
        _logger.warning(
            "%s: old segments are still there: %s — repair the disk; the next start of this "
            "replica removes them",
            *(replica.topic_partition, failure),
        )
    _logger.info("%s begins at %d now", replica.topic_partition, log.log_start_offset)
    return max(len(removed) - 1, 0)


# --- scrub ----------------------------------------------------------------------------------------

SCRUB_PIECE_INTERVAL_MS: Final = 10_000
PIECE_BYTES: Final = 2_097_152
SLICE_BYTES: Final = 262_144
"""Bytes read and checked in one turn of the event loop: as much as a small fetch."""

REST_PIECES: Final = 8_640
"""Pieces skipped between two rounds: a day's worth."""


class LogScrub:
    """Reads the log of one replica from start to end, again and again."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._offset = 0
        self._pieces_to_rest = 0

    async def piece(self) -> None:
        """Check the next piece. OSError: no file can be opened; the next call tries there again."""
        if self._pieces_to_rest:
            self._pieces_to_rest -= 1
            return
        left = PIECE_BYTES
        while left > 0 and self._replica.availability() is ErrorCode.NONE:
            size = self._slice()
            if not size:
                self._offset, self._pieces_to_rest = 0, REST_PIECES
                return
            left -= size
            await asyncio.sleep(0)

    def _slice(self) -> int:
        """Check one slice; return the bytes read, 0 at the end."""
        replica = self._replica
        log, end = replica.log, replica.machine.high_watermark
        offset = max(self._offset, log.log_start_offset)
        if offset >= end:
            return 0
        try:
            found = log.fetch(offset, max_bytes=SLICE_BYTES, upper_offset=end, is_checked=True)
        except CorruptRecordError as damage:
            return self._pass_over(damage)
        except OSError as refusal:
            if not is_unreadable(refusal):
                raise
            # Nothing of the file can be read: readers retry, and operators see it as damage.
            end = min(log.segment_end(offset), end)
            lost = CorruptRecordError(str(refusal), offset=offset, next_offset=end)
            return self._pass_over(lost)
        self._offset = found.next_offset
        return len(found.records)

    def _pass_over(self, damage: CorruptRecordError) -> int:
        """Note it and go on behind it; it counts as one slice."""
        self._replica.damage.record(damage)
        self._offset = damage.next_offset
        return SLICE_BYTES


# --- compaction -----------------------------------------------------------------------------------

BYTES_PER_SECOND: Final = 8_388_608
"""Rate limit of compaction's reads; 1,000 transactions a second write a tenth of it."""


def compaction_settings(topic: TopicConfig) -> CompactionSettings:
    """The compaction settings of a topic."""
    return CompactionSettings(
        min_dirty_ratio=topic.min_cleanable_dirty_ratio,
        delete_retention_ms=topic.delete_retention_ms,
        min_lag_ms=topic.min_compaction_lag_ms,
        max_lag_ms=topic.max_compaction_lag_ms,
    )


async def clean_if_dirty(
    replica: Replica,
    *,
    now_ms: int,
    is_wanted: Callable[[], bool] = lambda: True,
    bytes_per_second: int = BYTES_PER_SECOND,
) -> CleanResult | None:
    """Compact the replica's log if it is worthwhile; None if it is not, or if it was interrupted.

    It stops between two pieces when ``is_wanted`` returns false or the log is cut or stopped;
    what has been swapped in by then is good. Do not call it while something loads from the log or
    removes its segments. CorruptDataError or OSError: what was swapped in is good as well, and the
    log says whether it is offline.
    """
    log, machine = replica.log, replica.machine
    generation = log.generation
    cleaner = Cleaner(log, compaction_settings(replica.topic))
    if not cleaner.is_due(upper_offset=machine.last_stable_offset, now_ms=now_ms):
        return None

    def may_go_on() -> bool:
        is_same = replica.upkeep_error() is ErrorCode.NONE and log.generation == generation
        return is_wanted() and is_same

    if not await _make_recovery_point_durable(replica) or not may_go_on():
        return None
    upper_offset, producers = machine.last_stable_offset, machine.snapshot()
    result = CleanResult(first_dirty_offset=cleaner.first_dirty_offset)
    while True:
        cleaning = cleaner.begin(upper_offset=upper_offset, now_ms=now_ms, producers=producers)
        if not await _run(replica, cleaner, cleaning, may_go_on, bytes_per_second):
            return None
        cleaner.account(result, cleaning)
        if cleaning.is_last:
            break
    _logger.info(
        "%s: compacted to %d, %d bytes became %d",
        replica.topic_partition,
        result.first_dirty_offset,
        result.bytes_before,
        result.bytes_after,
    )
    return result


async def _make_recovery_point_durable(replica: Replica) -> bool:
    """Make the current recovery point survive a power loss; false if the log is offline.

    Producer snapshots are removed with rewritten segments. A load may only use snapshots up to the
    recovery point, and an old one could be the only one with some producers.
    """
    error = await replica.sync_all()
    if error is ErrorCode.NONE:
        replica.log.record_checkpoint()
        error = await replica.sync_all()
    return error is ErrorCode.NONE


async def _run(
    replica: Replica,
    cleaner: Cleaner,
    cleaning: CleaningRound,
    may_go_on: Callable[[], bool],
    bytes_per_second: int,
) -> bool:
    """Run one round; return whether it was completed."""
    steps = cleaning.steps()
    while True:
        step = await replica.run_in_thread(functools.partial(next, steps, None))
        if step is None:
            return True
        if not may_go_on():
            await replica.run_in_thread(steps.close)
            return False
        if isinstance(step, Replacement):
            cleaner.install(cleaning, step)
        else:
            await asyncio.sleep(step / bytes_per_second)
