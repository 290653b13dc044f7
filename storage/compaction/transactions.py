"""Which batches belong to aborted transactions, and which markers are still needed.

One object follows one pass over a log, batch by batch from the first one on:

| batch | answer |
|---|---|
| transactional data of an aborted transaction | aborted: its records are removed |
| other transactional data | committed, or its marker is still to come: it stays |
| ABORT marker, data of its transaction was seen | needed, as is its entry in the aborted index |
| COMMIT marker, data of its transaction was seen | needed |
| a marker whose transaction has nothing left | removable |
| a marker that was emptied | removable |
| a control batch that is no verdict | needed |

Empty batches count as data: a replay would take them for the start of a transaction, so its
marker must follow. Source: KIP-98, "Transactional compaction"; KAFKA-5395.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from oncelog.storage.records.batch import BatchHeader
from oncelog.storage.records.control import ControlRecord
from oncelog.storage.segments.aborted_index import AbortedIndexEntry


@dataclass(slots=True)
class _Aborted:
    entry: AbortedIndexEntry
    has_data: bool = False


class CleanedTransactions:
    """The transactions of one pass. ``aborted``: every entry that touches the range of the pass.

    Markers beyond the range count too: what they decided is known by then.
    """

    __slots__ = ("_aborted", "_committed", "_needed", "_waiting")

    def __init__(self, aborted: Iterable[AbortedIndexEntry]) -> None:
        self._waiting = deque(sorted(aborted, key=lambda entry: entry.first_offset))
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()
        self._needed: list[AbortedIndexEntry] = []

    def meet_data(self, header: BatchHeader) -> bool:
        """Pass a data batch; whether its records were aborted."""
        self._advance_to(header.last_offset)
        if not header.is_transactional:
            return False
        aborted = self._aborted.get(header.producer_id)
        if aborted is None:
            self._committed.add(header.producer_id)
            return False
        aborted.has_data = True
        return True

    def meet_control(self, header: BatchHeader, control: ControlRecord | None) -> bool:
        """Pass a control batch; whether it may go once slow readers have had their time."""
        self._advance_to(header.last_offset)
        if control is None:
            return True
        if control.committed is None:
            return False
        if control.committed:
            has_data = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not has_data
        aborted = self._aborted.pop(header.producer_id, None)
        if aborted is None or not aborted.has_data:
            return True
        self._needed.append(aborted.entry)
        return False

    def take_needed(self) -> list[AbortedIndexEntry]:
        """The entries of the markers passed since the last call, in the order of the markers."""
        needed, self._needed = self._needed, []
        return needed

    def _advance_to(self, last_offset: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0].first_offset <= last_offset:
            entry = waiting.popleft()
            self._aborted[entry.producer_id] = _Aborted(entry)
