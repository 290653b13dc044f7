"""Records taken from a consumer's partitions that the application does not have yet.

Positions move when records are taken. They then pass through an iteration, which delivers the
records of a poll one by one, and in a synchronous consumer from the loop's thread to the user's,
where Ctrl-C drops them. The next call first puts them back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from oncelog.api.consuming.fetcher import Fetcher
from oncelog.api.records import ConsumerRecord, next_moment
from oncelog.storage.model import TopicPartition

TakenT = TypeVar("TakenT")


class Handover:
    """The records on their way to the application. Plain attributes: two threads use them in turn.

    ``before`` are the positions before the last poll took anything, until its caller has the result
    and sets it to ``None``. A synchronous caller does that by a plain store just before it returns:
    CPython raises ``KeyboardInterrupt`` after calls and jumps only, so never between the two.
    ``records`` from ``delivered`` on were polled by an iteration and wait to be delivered.
    """

    def __init__(self) -> None:
        self.before: dict[TopicPartition, int] | None = None
        self.records: Sequence[ConsumerRecord] = ()
        self.delivered = 0
        self._turn = 0

    def noting(self, take: Callable[[Fetcher], TakenT]) -> Callable[[Fetcher], TakenT | None]:
        """``take``, with the positions before it noted if it takes anything.

        It takes nothing once ``give_back`` was called: an interrupt may leave a poll running whose
        caller is gone, beside the next one.
        """
        turn = self._turn

        def taking(fetcher: Fetcher) -> TakenT | None:
            if turn != self._turn:
                return None
            before = {
                partition.topic_partition: partition.position
                for partition in fetcher.partitions.values()
                if partition.position is not None
            }
            taken = take(fetcher)
            if taken:
                self.before = before
            return taken

        return taking

    def iterate_over(self, records: Sequence[ConsumerRecord]) -> None:
        """An iteration has polled ``records`` and delivers them next."""
        self.records, self.delivered, self.before = records, 0, None

    def first_offsets(self) -> dict[TopicPartition, int]:
        """The application's offset in each partition where it differs from the position."""
        first: dict[TopicPartition, int] = {}
        for record in self.records[self.delivered :]:
            first.setdefault(record.topic_partition, record.offset)
        return first | (self.before or {})

    def give_back(self, fetcher: Fetcher) -> None:
        """Move partitions that are still assigned back to where the application is."""
        first_offsets = self.first_offsets()
        for topic_partition in {r.topic_partition for r in self.records[: self.delivered]}:
            if (delivered := fetcher.partitions.get(topic_partition)) is not None:
                # Their poll has ended long ago; the iteration delivered them since.
                delivered.delivered_at = next_moment()
        self.iterate_over(())
        self._turn += 1
        for topic_partition, offset in first_offsets.items():
            partition = fetcher.partitions.get(topic_partition)
            if partition is not None and partition.position != offset:
                fetcher.seek(topic_partition, offset)
