"""When the segments of a log roll, how dense their indexes are, and what is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from oncelog.storage.model import INDEX_INTERVAL_BYTES, INT32_MAX, SEGMENT_BYTES

UNLIMITED: Final = -1
"""As a retention time or size: keep everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """When segments roll and how dense their indexes are."""

    segment_bytes: int = SEGMENT_BYTES
    segment_ms: int = 604_800_000
    index_interval_bytes: int = INDEX_INTERVAL_BYTES

    def __post_init__(self) -> None:
        if not 1 <= self.segment_bytes <= INT32_MAX:
            raise ValueError(f"segment_bytes={self.segment_bytes}: allowed are 1 to {INT32_MAX}")
        if self.segment_ms < 1:
            raise ValueError(f"segment_ms={self.segment_ms}: at least 1 is needed")
        if self.index_interval_bytes < 0:
            raise ValueError(
                f"index_interval_bytes={self.index_interval_bytes}: at least 0 is needed"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """What a log keeps: batches younger than ``time_ms``, and about the newest ``size_bytes``.

    ``UNLIMITED`` in either removes nothing on its account.
    """

    time_ms: int = UNLIMITED
    size_bytes: int = UNLIMITED
