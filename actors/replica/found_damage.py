"""What is known to be damaged in a log: readers met it, or the scrub found it.

Readers get an error for every damaged place; this is for operators: status, metric, log file.
"""

from __future__ import annotations

import logging
from typing import Final

from oncelog.storage.exceptions import CorruptRecordError
from oncelog.storage.model import TopicPartition

_logger = logging.getLogger(__name__)

PLACES_MAX: Final = 1_000
"""Of more damaged places the first are remembered; the others are logged all the same."""


class FoundDamage:
    """The damaged places of one partition that its log still has, by offset."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self._topic_partition = topic_partition
        self._places: dict[int, int] = {}

    def note(self, error: CorruptRecordError) -> None:
        """Records from ``error.offset`` to ``error.next_offset`` (exclusive) cannot be read."""
        if any(
            offset <= error.offset < next_offset for offset, next_offset in self._places.items()
        ):
            return
        _logger.error("%s is damaged: %s", self._topic_partition, error)
        if len(self._places) < PLACES_MAX:
            self._places[error.offset] = error.next_offset

    def places(self, log_start_offset: int) -> list[tuple[int, int]]:
        """(first offset, next offset) of each, ascending; those below the log start are gone."""
        self._places = {
            offset: next_offset
            for offset, next_offset in self._places.items()
            if next_offset > log_start_offset
        }
        return sorted(self._places.items())
