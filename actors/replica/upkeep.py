"""What a replica does for its log besides serving: remove what is old, and raise its start to that.

It waits for the disk, so what was true before a wait is checked again after it.
"""

from __future__ import annotations

import logging

from oncelog.actors.replica.replica import Replica
from oncelog.storage.errors import ErrorCode
from oncelog.storage.log_settings import RetentionPolicy

_logger = logging.getLogger(__name__)


def has_old_segments(replica: Replica, now_ms: int) -> bool:
    """Whether ``remove_old_segments`` would find any now."""
    return _retained_from(replica, now_ms) > replica.log.head.first_base_offset


def _retained_from(replica: Replica, now_ms: int) -> int:
    """Inclusive offset from which the log is kept: by the topic's retention, or by the leader's."""
    log = replica.log
    is_leading = replica.availability() is ErrorCode.NONE
    return log.head.retained_from(
        replica.topic.retention if is_leading else RetentionPolicy(),
        log_start_offset=log.log_start_offset,
        upper_offset=min(replica.machine.high_watermark, log.recovery_point),
        now_ms=now_ms,
    )


async def remove_old_segments(replica: Replica, now_ms: int) -> int:
    """Apply the topic's retention once; returns how many segments are gone.

    The active segment is rolled when it is to go as well. An error of the disk while files are
    removed is logged and no more: the files are below the log start, and found again later.
    """
    log, machine = replica.log, replica.machine
    retained_from = _retained_from(replica, now_ms)
    if retained_from <= log.head.first_base_offset:
        return 0
    if retained_from == machine.log_end_offset or log.head.needs_snapshot(retained_from):
        log.roll(machine.snapshot())
    if log.head.needs_snapshot(retained_from):
        log.write_snapshot(machine.snapshot())
    error = await replica.sync_all()
    if error is ErrorCode.NONE:
        error = await replica.raise_log_start(retained_from)
    if error is not ErrorCode.NONE:
        return 0
    removed = log.head.take_below(log.log_start_offset)
    generation = log.generation
    try:
        for files in removed:
            if log.generation != generation:
                # A log that began anew meanwhile removed them itself, and may have such names.
                break
            await replica.run_beside(files.run)
    except OSError as failure:
        _logger.warning("%s: old segments are still there: %s", replica.topic_partition, failure)
    _logger.info("%s begins at %d now", replica.topic_partition, log.log_start_offset)
    return max(len(removed) - 1, 0)
