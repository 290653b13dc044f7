"""Where a worker begins in a partition without committed offset, kept as the group's position.

With ``auto_offset_reset="latest"`` a partition begins where its log ended when it was first looked
at. That offset is lost later: a restart after a rebalance, an abort or a crash would find a later
end and skip what came in between. So it is committed before any record is processed. Records read
while the worker was not a member of its group are not processed; their offset is remembered until
it can be committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from oncelog.storage.model import TopicPartition


class Positions(Protocol):
    """The part of a consumer used here."""

    def committed(self, partition: TopicPartition) -> int | None:
        """The group's committed offset; waits for open transactions."""
        ...


class StartPositions:
    """The starts of one worker, through all its clients. Offsets are inclusive."""

    def __init__(self) -> None:
        self._begun: dict[TopicPartition, int] = {}
        self._settled: set[TopicPartition] = set()

    def note(
        self, first_offsets: Mapping[TopicPartition, int], positions: Mapping[TopicPartition, int]
    ) -> None:
        """Take in a poll: what it read first in each partition, and the positions after it."""
        for partition, offset in (*first_offsets.items(), *positions.items()):
            if partition not in self._settled:
                self._begun.setdefault(partition, offset)

    def settle(
        self,
        consumer: Positions,
        first_offsets: Mapping[TopicPartition, int],
        positions: Mapping[TopicPartition, int],
        commit: Callable[[Mapping[TopicPartition, int]], None],
    ) -> bool:
        """Commit the starts of the partitions assigned now, for a member of the group.

        False: the poll began later than the worker did before, so it has to be repeated from the
        committed offsets. Raises what ``committed`` and ``commit`` raise; then nothing is settled.
        """
        begun = {tp: offset for tp, offset in self._begun.items() if tp in positions}
        if not begun:
            return True
        starts = {tp: offset for tp, offset in begun.items() if consumer.committed(tp) is None}
        if starts:
            commit(starts)
        for partition in begun:
            del self._begun[partition]
        self._settled.update(begun)
        current = {**positions, **first_offsets}
        return all(current[partition] <= offset for partition, offset in starts.items())
