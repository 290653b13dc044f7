"""Records taken from a consumer's partitions that the application does not have yet.

Positions move when records are taken. They then pass through an iteration, which delivers the
records of a poll one by one, and in a synchronous consumer from the loop's thread to the user's,
where Ctrl-C drops them. The next call first puts them back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import length_hint
from typing import TypeVar

from oncelog.api.consuming.fetcher import Fetcher
from oncelog.api.records import ConsumerRecord, next_moment
from oncelog.api.session.event_loop import current_user
from oncelog.storage.exceptions import IllegalStateError
from oncelog.storage.model import TopicPartition

TakenT = TypeVar("TakenT")


class Handover:
    """The records on their way to the application. Plain attributes: two threads use them in turn.

    ``before`` are the positions before the last poll took anything, until its caller has the result
    and sets it to ``None``. A synchronous caller does that by a plain store just before it returns:
    CPython raises ``KeyboardInterrupt`` after calls and jumps only, so never between the two.
    ``records`` were polled by an iteration; it takes one after the other from ``pending``.

    One thread or task at a time may make calls that move positions: ``sole`` refuses the second. To
    give each its turn would hand out records twice. What is ``pending`` they may share: taking the
    next of a list is one step for CPython, and so is taking all that are left.
    """

    def __init__(self) -> None:
        self._user: object = None
        self._call = ""
        self._depth = 0
        """Calls of the user, one in another: of a listener, or beside one that was interrupted."""
        self.before: dict[TopicPartition, int] | None = None
        self.records: Sequence[ConsumerRecord] = ()
        self.pending: Iterator[ConsumerRecord] = iter(self.records)
        self._turn = 0

    @contextmanager
    def sole(self, call: str) -> Iterator[None]:
        """While its block runs, other threads and tasks are refused."""
        user = current_user()
        if self._depth and user != self._user:
            raise _used_twice(call, self._call)
        if not self._depth:
            self._user, self._call = user, call
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

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
        self.records, self.pending, self.before = records, iter(records), None

    def first_offsets(self) -> dict[TopicPartition, int]:
        """The application's offset in each partition where it differs from the position."""
        delivered_count = len(self.records) - length_hint(self.pending)
        return self._first_offsets(self.records[delivered_count:])

    def _first_offsets(self, pending: Sequence[ConsumerRecord]) -> dict[TopicPartition, int]:
        first: dict[TopicPartition, int] = {}
        for record in pending:
            first.setdefault(record.topic_partition, record.offset)
        return first | (self.before or {})

    def give_back(self, fetcher: Fetcher) -> None:
        """Move partitions that are still assigned back to where the application is."""
        pending = list(self.pending)
        first_offsets = self._first_offsets(pending)
        delivered = self.records[: len(self.records) - len(pending)]
        for topic_partition in {record.topic_partition for record in delivered}:
            if (partition := fetcher.partitions.get(topic_partition)) is not None:
                # Their poll has ended long ago; the iteration delivered them since.
                partition.delivered_at = next_moment()
        self.iterate_over(())
        self._turn += 1
        for topic_partition, offset in first_offsets.items():
            partition = fetcher.partitions.get(topic_partition)
            if partition is not None and partition.position != offset:
                fetcher.seek(topic_partition, offset)


def _used_twice(call: str, other: str) -> IllegalStateError:
    return IllegalStateError(
        f"{call} was called while another thread or task is in {other} of the same consumer: give "
        "each a consumer of its own; only close() may be called from elsewhere"
    )
