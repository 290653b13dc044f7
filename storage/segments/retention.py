"""Which of the oldest segments a log may remove: the decision only, not the removal.

Whole segments only, the oldest first, so that what is left is one range of offsets. The first one
that must stay ends the search.

| the segment | goes when |
|---|---|
| reaches beyond ``upper_offset`` | never: a reader has not been shown all of it |
| ends at or below the log start | always, whatever the policy: it may no longer be read |
| largest timestamp older than the time limit | by time; one in the future makes it stay |
| has no timestamps at all | with the next segment that goes by time |
| the log without it is not below the size limit | by size |

The last stable offset plays no part: an old hung transaction may lose its head, and readers are
then held back from the log start on. Source: KIP-107; KIP-32 for timestamps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from oncelog.storage.log_settings import UNLIMITED, RetentionPolicy
from oncelog.storage.model import NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """What the decision looks at. ``next_offset`` is exclusive."""

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
    """How many of ``segments``, oldest first, may go; looks no further than it must.

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
