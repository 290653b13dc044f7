"""Producer ids in blocks that the controller reserved: handed out once, never put back.

A block that is lost with its coordinator leaves a gap and nothing else, so taking an id needs no
log record: it can be neither repeated nor missed.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from oncelog.actors.protocol.invariants import invariant

PREFETCH_SHARE: Final = 10
"""The next block is due when less than one in this many ids of a block is left."""


class ProducerIdBlocks:
    """The ids a coordinator may still give away."""

    __slots__ = ("_blocks", "_last_count", "_next_unseen")

    def __init__(self) -> None:
        self._blocks: deque[range] = deque()
        self._last_count = 0
        self._next_unseen = 0

    @property
    def remaining(self) -> int:
        """How many ids are left."""
        return sum(len(block) for block in self._blocks)

    @property
    def needs_block(self) -> bool:
        """Whether the next block should be reserved now, before the last id is gone."""
        return self.remaining * PREFETCH_SHARE <= self._last_count

    def add_block(self, first: int, count: int) -> None:
        """Add the ids from ``first`` (inclusive) to ``first + count`` (exclusive).

        Invariant: I-17, the controller's blocks rise and never overlap.
        """
        invariant(
            first >= self._next_unseen and count > 0,
            "I-17",
            f"block of {count} from {first} on, ids below {self._next_unseen} were given before",
        )
        self._blocks.append(range(first, first + count))
        self._last_count = count
        self._next_unseen = first + count

    def take(self) -> int | None:
        """The next id, which nobody else will get; ``None`` when there is none left."""
        if not self._blocks:
            return None
        block = self._blocks.popleft()
        if len(block) > 1:
            self._blocks.appendleft(block[1:])
        return block[0]
