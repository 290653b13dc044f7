"""Observations of one replica, for operators: counters, and known damage.

Tallies are integers, a few per batch and none per record. They only grow, and
``launch/server_metrics.py`` reports their growth. Damage is found by readers or by the scrub.
Readers get an error for every damaged place; status, metric and log file show it.
"""

from __future__ import annotations

import logging
from typing import Final

from oncelog.actors.process.metrics import SYNC_DURATION_MS, Histogram
from oncelog.storage.exceptions import CorruptRecordError
from oncelog.storage.model import TopicPartition

_logger = logging.getLogger(__name__)

PLACES_MAX: Final = 1_000
"""Damaged places remembered, the first ones; others are only logged."""


class ReplicaCounters:
    """Totals of one replica since its process began."""

    __slots__ = (
        "appended_bytes",
        "appended_records",
        "fetched_bytes",
        "fetched_records",
        "follower_cuts",
        "follower_fetches",
        "isr_expands",
        "isr_shrinks",
        "pushed_bytes",
        "replicated_bytes",
        "sync_durations",
    )

    def __init__(self) -> None:
        self.appended_bytes = 0
        self.appended_records = 0
        self.fetched_bytes = 0
        self.fetched_records = 0
        self.follower_cuts = 0
        self.follower_fetches = 0
        self.isr_expands = 0
        self.isr_shrinks = 0
        self.pushed_bytes = 0
        self.replicated_bytes = 0
        self.sync_durations = Histogram(SYNC_DURATION_MS)


class FoundDamage:
    """The damaged places in the log of one partition, by offset."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self._topic_partition = topic_partition
        self._places: dict[int, int] = {}

    def record(self, error: CorruptRecordError) -> None:
        """Records from ``error.offset`` to ``error.next_offset`` (exclusive) cannot be read."""
        if any(
            offset <= error.offset < next_offset for offset, next_offset in self._places.items()
        ):
            return
        _logger.error(
            "%s is damaged: %s — check the disk; readers can skip it with `oncelog consume "
            "--skip-damaged`",
            *(self._topic_partition, error),
        )
        if len(self._places) < PLACES_MAX:
            self._places[error.offset] = error.next_offset

    def places(self, log_start_offset: int) -> list[tuple[int, int]]:
        """(first offset, next offset) of each, ascending; those below the log start are dropped."""
        self._places = {
            offset: next_offset
            for offset, next_offset in self._places.items()
            if next_offset > log_start_offset
        }
        return sorted(self._places.items())
