"""The transactions of one partition that hold back read_committed readers.

Rules. A transaction is *ongoing* from its first data batch to its marker, then *unreplicated*
until the high watermark has passed the marker: a marker that a failover could still lose must not
make data readable. The first unstable offset is the lowest first offset of both kinds.

============  ================================  ==============================
state         event                             answer
============  ================================  ==============================
none          first transactional data batch    ongoing
ongoing       more data                         ongoing
ongoing       marker                            unreplicated
unreplicated  high watermark passes the marker  none
unreplicated  log start passes the marker       none
none          marker                            none: it only fences
============  ================================  ==============================

Source: KIP-98, "Discussion on unavailable data"; the unreplicated kind is from Kafka's code.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from oncelog.actors.protocol.invariants import invariant
from oncelog.storage.model import NO_OFFSET


class CompletedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that a marker has just closed: what the aborted index stores if it aborts.

    ``first_offset`` and ``last_offset`` (the marker) are inclusive. ``last_stable_offset`` is the
    first offset of the oldest transaction still ongoing, else the one after the marker. It ignores
    the high watermark, since it only tells where a scan of the index may stop.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    last_stable_offset: int


class OpenTransactions:
    """Ongoing and unreplicated transactions, by first offset.

    Invariant: I-10. Each transaction begins at a higher offset than those before, so ``_ongoing``
    is in the order of first offsets and its first key is the oldest.
    """

    __slots__ = ("_ongoing", "_unreplicated", "first_unstable_offset")

    def __init__(self) -> None:
        self._ongoing: OrderedDict[int, int] = OrderedDict()
        # A heap of (first offset, marker offset). Replicated entries are removed when they reach
        # the top; below the top they change no answer.
        self._unreplicated: list[tuple[int, int]] = []
        self.first_unstable_offset = NO_OFFSET
        """Inclusive first offset of the oldest ongoing or unreplicated transaction, else -1.

        An attribute for speed: it is read after every batch.
        """

    def __len__(self) -> int:
        """Number of transactions that wait for their marker."""
        return len(self._ongoing)

    @property
    def ongoing(self) -> Mapping[int, int]:
        """First offset → producer id of every transaction that awaits its marker; read-only."""
        return MappingProxyType(self._ongoing)

    @property
    def first_ongoing_offset(self) -> int:
        """Inclusive first offset of the oldest ongoing transaction, -1 if there is none."""
        return next(iter(self._ongoing)) if self._ongoing else NO_OFFSET

    def begin(self, producer_id: int, first_offset: int) -> None:
        """A producer's first data batch of a transaction is at ``first_offset``."""
        if self._ongoing:
            newest = next(reversed(self._ongoing))
            invariant(
                first_offset > newest,
                "I-02",
                f"transaction at {first_offset} begins below {newest}",
            )
        self._ongoing[first_offset] = producer_id
        self._find_first_unstable()

    def complete(
        self, *, producer_id: int, first_offset: int, marker_offset: int, is_aborted: bool
    ) -> CompletedTransaction:
        """The marker at ``marker_offset`` closes the transaction that began at ``first_offset``."""
        owner = self._ongoing.pop(first_offset, None)
        invariant(
            owner == producer_id and first_offset < marker_offset,
            "I-10",
            f"marker {marker_offset} of producer {producer_id} closes {first_offset} of {owner}",
        )
        heapq.heappush(self._unreplicated, (first_offset, marker_offset))
        self._find_first_unstable()
        oldest = self.first_ongoing_offset
        return CompletedTransaction(
            producer_id=producer_id,
            first_offset=first_offset,
            last_offset=marker_offset,
            is_aborted=is_aborted,
            last_stable_offset=marker_offset + 1 if oldest < 0 else oldest,
        )

    def forget_before(self, offset: int) -> None:
        """Drop completed transactions whose marker is before ``offset`` (exclusive)."""
        if not self._unreplicated:
            return
        while self._unreplicated and self._unreplicated[0][1] < offset:
            heapq.heappop(self._unreplicated)
        self._find_first_unstable()

    def _find_first_unstable(self) -> None:
        first = self.first_ongoing_offset
        if self._unreplicated:
            first_unreplicated = self._unreplicated[0][0]
            first = first_unreplicated if first < 0 else min(first, first_unreplicated)
        self.first_unstable_offset = first
