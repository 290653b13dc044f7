"""What a transaction will probably write to, judged by its predecessors.

Pure. A producer that writes to the same partitions again and again can enrol all of them as soon
as it has the first record, while others are still being gathered.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from oncelog.storage.model import TopicPartition

EXPECTED_MAX: Final = 64
"""No more partitions are expected: needless markers would cost more than the wait."""


class EnrolmentHabit:
    """The partitions that both of the last two transactions wrote to."""

    __slots__ = ("_last", "expected")

    def __init__(self) -> None:
        self._last: frozenset[TopicPartition] = frozenset()
        self.expected: frozenset[TopicPartition] = frozenset()
        """Of the next transaction; empty if unknown or too many."""

    def following(self, written: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """What is expected of the transaction after one that sends records to ``written``."""
        both = self._last.intersection(written)
        return both if len(both) <= EXPECTED_MAX else frozenset()

    def ended(self, written: Collection[TopicPartition]) -> None:
        """A transaction has ended that sent records to ``written``."""
        self.expected = self.following(written)
        self._last = frozenset(written)
