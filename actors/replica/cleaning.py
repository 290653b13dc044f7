"""Compaction beside a serving replica: in small pieces, never faster than a fixed rate.

Every piece reads a quarter of a megabyte in the background thread, whose queue the group sync
shares, so a sync waits for one piece at most; then compaction rests long enough to keep to
``BYTES_PER_SECOND``. On the event loop it only swaps files by name.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Final

from oncelog.actors.config import TopicConfig
from oncelog.actors.replica.replica import Replica
from oncelog.storage.compaction.compactor import (
    Cleaner,
    CleaningRound,
    CleanResult,
    CompactionSettings,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.log.sealed_segments import Replacement

_logger = logging.getLogger(__name__)

BYTES_PER_SECOND: Final = 8_388_608
"""What compaction reads at most. A coordinator with 1,000 transactions a second writes a tenth."""


def compaction_settings(topic: TopicConfig) -> CompactionSettings:
    """How a topic with these settings is compacted."""
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
    """Have even a power loss leave it at the log end of now; false if the log is offline.

    Producer snapshots go with the segments that are rewritten: one that a load may use, which is
    none beyond the recovery point, might be the only one that knows some producers.
    """
    error = await replica.sync_all()
    if error is ErrorCode.NONE:
        replica.log.note_checkpoint()
        error = await replica.sync_all()
    return error is ErrorCode.NONE


async def _run(
    replica: Replica,
    cleaner: Cleaner,
    cleaning: CleaningRound,
    may_go_on: Callable[[], bool],
    bytes_per_second: int,
) -> bool:
    """Run one round; whether it came to its end."""
    steps = cleaning.steps()
    while True:
        step = await replica.run_beside(functools.partial(next, steps, None))
        if step is None:
            return True
        if not may_go_on():
            await replica.run_beside(steps.close)
            return False
        if isinstance(step, Replacement):
            cleaner.install(cleaning, step)
        else:
            await asyncio.sleep(step / bytes_per_second)
