"""The keys of a partition's records, as far as the order of keys needs them.

Not durable: the log has them, and a coordinator that loads reads it again. Known are the offsets
that are not done with, and some that can be acquired next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

NO_KEY: Final = -1
"""Known of a record without a key, and of a marker."""

NO_RECORD: Final = -2
"""Known of a gap: an offset at which the log has nothing, since it was compacted or cut."""

UNREADABLE: Final = -3
"""Known of a record in a damaged batch. It is not a gap: a worker gets it, and reports it."""

KEYS_PER_READ_MAX: Final = 10_000
"""Offsets whose keys one read of the log tells; more are read again when they are needed.

So what is known of a partition is this many offsets, and those that are unfinished.
"""


class KnownKeys:
    """What is known of the keys of a partition, of one topic.

    ``hashes``: offset → a hash of its key (from 0), ``NO_KEY``, ``NO_RECORD`` or ``UNREADABLE``.
    Two keys of one hash are taken for one: each of their records waits for those before it, and
    none is lost. ``gaps`` are the offsets with ``NO_RECORD``.
    """

    __slots__ = ("_known_end", "gaps", "hashes", "topic_id")

    def __init__(self, topic_id: str) -> None:
        self.topic_id = topic_id
        self.hashes: dict[int, int] = {}
        self.gaps: set[int] = set()
        self._known_end = 0
        """Below this all is known that is needed: what is done with is never needed again."""

    def first_unknown(self, needed: Sequence[tuple[int, int]]) -> int | None:
        """The first offset of ``needed`` of which nothing is known.

        ``needed`` are spans, ascending, both ends inclusive.
        """
        hashes = self.hashes
        for first, last in needed:
            for offset in range(max(first, self._known_end), last + 1):
                if offset not in hashes:
                    self._known_end = offset
                    return offset
            self._known_end = max(self._known_end, last + 1)
        return None

    def keep(self, needed: Sequence[tuple[int, int]]) -> None:
        """Forget what is done with: all before the last span that is in none."""
        hashes = self.hashes
        end = needed[-1][0] if needed else 0
        kept = {offset: key for offset, key in hashes.items() if offset >= end}
        for first, last in needed[:-1]:
            for offset in range(first, last + 1):
                if offset in hashes:
                    kept[offset] = hashes[offset]
        self.hashes = kept
        self.gaps &= kept.keys()

    def learn(self, first: int, end: int, found: Mapping[int, int]) -> None:
        """The log from ``first`` to ``end`` (exclusive) has the records ``found``, no others."""
        for offset in range(first, min(end, first + KEYS_PER_READ_MAX)):
            key = self.hashes[offset] = found.get(offset, NO_RECORD)
            if key == NO_RECORD:
                self.gaps.add(offset)

    def learn_unreadable(self, first: int, end: int) -> None:
        """Nothing from ``first`` to ``end`` (exclusive) can be read."""
        for offset in range(first, min(end, first + KEYS_PER_READ_MAX)):
            self.hashes[offset] = UNREADABLE
