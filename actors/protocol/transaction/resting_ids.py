"""Which transactional ids are at rest, and since when: the longest at rest are found first.

Rules. The order is that of the times, not of the records: a clock that was ahead for a while must
not keep the ids behind it from being forgotten. A query reads only what it returns,
whatever else is at rest.
"""

from __future__ import annotations

import heapq
from typing import Final

_OUTDATED_MIN: Final = 64
"""This many stale heap entries are always tolerated."""


class RestingIds:
    """Ids by the time of their last change, in milliseconds since the Unix epoch."""

    __slots__ = ("_order", "_since_ms")

    def __init__(self) -> None:
        self._since_ms: dict[str, int] = {}
        # A heap; an id that moved leaves a stale entry behind, to be skipped later.
        self._order: list[tuple[int, str]] = []

    def __len__(self) -> int:
        """How many ids are at rest."""
        return len(self._since_ms)

    def add(self, transactional_id: str, since_ms: int) -> None:
        """The id has been at rest since then; its earlier time is forgotten."""
        self._since_ms[transactional_id] = since_ms
        heapq.heappush(self._order, (since_ms, transactional_id))
        if len(self._order) > 2 * len(self._since_ms) + _OUTDATED_MIN:
            self._order = [(time_ms, name) for name, time_ms in self._since_ms.items()]
            heapq.heapify(self._order)

    def discard(self, transactional_id: str) -> None:
        """The id is not at rest, or not known."""
        self._since_ms.pop(transactional_id, None)

    def until(self, bound_ms: int) -> tuple[str, ...]:
        """Every id at rest since ``bound_ms`` (inclusive) or longer, the longest first."""
        found: dict[str, int] = {}
        while self._order and self._order[0][0] <= bound_ms:
            since_ms, transactional_id = heapq.heappop(self._order)
            if self._since_ms.get(transactional_id) == since_ms:
                found[transactional_id] = since_ms
        for transactional_id, since_ms in found.items():
            heapq.heappush(self._order, (since_ms, transactional_id))
        return tuple(found)
