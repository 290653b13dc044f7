"""Records taken from a consumer's partitions that the application does not have yet.

Positions move when records are taken. They then pass through an iteration, which delivers the
records of a poll one by one, and in a synchronous consumer from the loop's thread to the user's,
where Ctrl-C drops them. The next call first puts them back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    ``records`` from ``delivered`` on were polled by an iteration and wait to be delivered.

    One thread or task at a time may move them: ``sole`` and, without a round trip to the loop,
    ``next_record`` refuse the second. To give each its turn would hand out records twice.
    """

    def __init__(self) -> None:
        self._user: object = None
        self._call = ""
        self._depth = 0
        """Calls of the user, one in another: of a listener, or beside one that was interrupted."""
        self._iterator: int | None = None
        """The thread that takes the next record of an iteration."""
        self.before: dict[TopicPartition, int] | None = None
        self.records: Sequence[ConsumerRecord] = ()
        self.delivered = 0
        self._turn = 0

    @contextmanager
    def sole(self, call: str) -> Iterator[None]:
        """While its block runs, other threads and tasks are refused."""
        user = current_user()
        if self._depth and user != self._user:
            raise _used_twice(call, self._call)
        if self._iterator is not None and user != self._iterator:
            raise _used_twice(call, "an iteration")
        if not self._depth:
            self._user, self._call = user, call
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def next_record(self, poll: Callable[[], bool]) -> ConsumerRecord | None:
        """The next record of an iteration in a thread; ``None`` if there is none after ``poll``."""
        thread_id = threading.get_ident()
        if self._iterator is not None or (self._depth and self._user != thread_id):
            raise _used_twice("an iteration", self._call if self._depth else "another")
        try:
            self._iterator = thread_id
            if self.delivered == len(self.records) and not poll():
                return None
            record = self.records[self.delivered]
            self.delivered += 1
            if self._iterator != thread_id:
                raise _used_twice("an iteration", "another")
            return record
        finally:
            self._iterator = None

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


def _used_twice(call: str, other: str) -> IllegalStateError:
    return IllegalStateError(
        f"{call} was called while another thread or task is in {other} of the same consumer: give "
        "each a consumer of its own; only close() may be called from elsewhere"
    )
