"""The settings of a log: when its segments roll, how dense their indexes are, and what it keeps.

``removable_count`` decides which of the oldest segments may be removed; it removes nothing. Only
whole segments go, the oldest first, so that what is left is one range of offsets. The first segment
that must stay ends the search.

| the segment | goes when |
|---|---|
| reaches beyond ``upper_offset`` | never: a reader has not been shown all of it |
| ends at or below the log start | always, whatever the policy: it may no longer be read |
| largest timestamp older than the time limit | by time; one in the future makes it stay |
| has no timestamps at all | with the next segment that goes by time |
| the log without it is not below the size limit | by size |

The last stable offset plays no part. A hanging transaction may lose its first batches;
read_committed readers then wait at the log start. Source: KIP-107; KIP-32 for timestamps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from oncelog.storage.model import INDEX_INTERVAL_BYTES, INT32_MAX, NO_TIMESTAMP, SEGMENT_BYTES

UNLIMITED: Final = -1
"""Retention time or size that keeps everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """When segments roll and how dense their indexes are."""

    segment_bytes: int = SEGMENT_BYTES
    segment_ms: int = 604_800_000
    index_interval_bytes: int = INDEX_INTERVAL_BYTES

    def __post_init__(self) -> None:
        if not 1 <= self.segment_bytes <= INT32_MAX:
            raise ValueError(f"segment_bytes={self.segment_bytes}: give 1 to {INT32_MAX}")
        if self.segment_ms < 1:
            raise ValueError(f"segment_ms={self.segment_ms}: give 1 or more")
        if self.index_interval_bytes < 0:
            raise ValueError(f"index_interval_bytes={self.index_interval_bytes}: give 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """What a log keeps: batches younger than ``time_ms``, and about the newest ``size_bytes``.

    ``UNLIMITED`` switches either limit off.
    """

    time_ms: int = UNLIMITED
    size_bytes: int = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """The facts about a segment for ``removable_count``. ``next_offset`` is exclusive."""

    next_offset: int
    size_bytes: int
    max_timestamp_ms: int


def removable_count(
    segments: Iterable[SegmentFacts],
    *,
    policy: RetentionPolicy,
    total_bytes: int,
    log_start_offset: int,
    upper_offset: int,
    now_ms: int,
) -> int:
    """How many of ``segments``, oldest first, may be removed; stops at the first that must stay.

    An empty active segment must not be among them.

    ``total_bytes`` is the size of all segments. ``upper_offset`` (exclusive): a segment that ends
    beyond it stays; at most the high watermark.
    """
    count = 0
    for place, segment in enumerate(segments, 1):
        if segment.next_offset > upper_offset:
            break
        total_bytes -= segment.size_bytes
        is_below_start = segment.next_offset <= log_start_offset
        if (
            is_below_start
            or _is_too_old(segment, policy, now_ms)
            or _is_too_much(total_bytes, policy)
        ):
            count = place
        elif segment.max_timestamp_ms != NO_TIMESTAMP:
            break
    return count


def _is_too_old(segment: SegmentFacts, policy: RetentionPolicy, now_ms: int) -> bool:
    return (
        policy.time_ms != UNLIMITED
        and segment.max_timestamp_ms != NO_TIMESTAMP
        and now_ms - segment.max_timestamp_ms > policy.time_ms
    )


def _is_too_much(bytes_left: int, policy: RetentionPolicy) -> bool:
    """Whether the log without the segment is still at or above its size limit."""
    return policy.size_bytes != UNLIMITED and bytes_left >= policy.size_bytes
