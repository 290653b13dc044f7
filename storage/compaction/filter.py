"""What compaction turns a batch into: itself, a smaller batch, an empty one or nothing.

| batch | becomes |
|---|---|
| data, nothing superseded | itself |
| data, some records stay | a smaller batch |
| data, aborted or nothing stays | nothing |
| a tombstone stays for the first time | the batch with a delete horizon, at which tombstones go |
| needed marker | itself |
| removable marker, no horizon | the marker with a delete horizon |
| removable marker, horizon passed | nothing |
| newest marker of a live producer | as above, but never removed: it holds the producer's epoch |

Where the answer is "nothing", an empty batch stays in two cases. It is the last data batch of a
live producer, whose sequence it holds. Or it is the last batch of a segment: a segment must end
where the next one begins. Source: KIP-98, KIP-534, KAFKA-4586 for the empty batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple, NoReturn

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import NO_TIMESTAMP
from oncelog.storage.records.batch import BatchHeader, Buffer, reseal
from oncelog.storage.records.block import open_block
from oncelog.storage.records.compression import Codec, compress
from oncelog.storage.records.control import ControlRecord, decode_control
from oncelog.storage.records.varint import encode_varlong, read_varint, read_varlong
from oncelog.storage.segments.aborted_index import AbortedIndexEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerTails:
    """What replay needs of each live producer: last offset of its newest data batch and marker.

    Offsets by producer id. Only live producers are in them.
    """

    data: Mapping[int, int]
    markers: Mapping[int, int]

    def holds_data(self, header: BatchHeader) -> bool:
        """Whether the batch is the newest data batch of a live producer."""
        return header.has_producer_id and self.data.get(header.producer_id) == header.last_offset

    def holds_marker(self, header: BatchHeader) -> bool:
        """Whether the control batch is the newest of a live producer."""
        return self.markers.get(header.producer_id) == header.last_offset


@dataclass(slots=True, kw_only=True)
class FilterCounts:
    """Counters of one filter."""

    records_kept: int = 0
    records_removed: int = 0
    batches_removed: int = 0


@dataclass(slots=True, kw_only=True)
class BatchFilter:
    """One pass over a log. Records at ``keys_end`` or later are not in ``keys`` and stay."""

    keys: KeyOffsets
    keys_end: int
    transactions: CleanedTransactions
    tails: ProducerTails
    now_ms: int
    delete_retention_ms: int
    counts: FilterCounts = field(default_factory=FilterCounts)

    def apply(self, batch: memoryview, header: BatchHeader, *, ends_segment: bool) -> Buffer | None:
        """What replaces ``batch``, whose CRC was checked, in the cleaned log; None: nothing.

        ``ends_segment``: its offsets must not be lost. Raises ``CorruptDataError``.
        """
        if header.is_control:
            cleaned = self._control(batch, header, ends_segment=ends_segment)
        else:
            cleaned = self._data(batch, header, ends_segment=ends_segment)
        if cleaned is None:
            self.counts.batches_removed += 1
        return cleaned

    def _control(
        self, batch: memoryview, header: BatchHeader, *, ends_segment: bool
    ) -> Buffer | None:
        is_removable = self.transactions.observe_control(header, decode_control(batch, header))
        if header.record_count == 0:
            return batch if ends_segment else None
        if not is_removable:
            return batch
        if not header.has_delete_horizon:
            return self._stamped(batch, header)
        if self.now_ms < header.base_timestamp_ms or self.tails.holds_marker(header):
            return batch
        return empty_batch(header) if ends_segment else None

    def _stamped(self, batch: memoryview, header: BatchHeader) -> Buffer:
        block = bytes(open_block(batch, header))
        return rebuilt_batch(
            header,
            block,
            record_spans(block, header),
            horizon_ms=self.now_ms + self.delete_retention_ms,
            keeps_max_timestamp=True,
        )

    def _data(self, batch: memoryview, header: BatchHeader, *, ends_segment: bool) -> Buffer | None:
        is_aborted = self.transactions.observe_data(header)
        is_tail = self.tails.holds_data(header)
        kept: list[RecordSpan] = []
        block = b""
        if header.record_count and not is_aborted:
            block = bytes(open_block(batch, header))
            kept = self._kept(record_spans(block, header), header)
        self.counts.records_kept += len(kept)
        self.counts.records_removed += header.record_count - len(kept)
        if not kept:
            if not (is_tail or ends_segment):
                return None
            return batch if header.record_count == 0 else empty_batch(header)
        needs_horizon = (
            not header.has_delete_horizon
            and header.base_offset < self.keys_end
            and any(span.is_tombstone for span in kept)
        )
        if len(kept) == header.record_count and not needs_horizon:
            return batch
        return rebuilt_batch(
            header,
            block,
            kept,
            horizon_ms=self.now_ms + self.delete_retention_ms if needs_horizon else None,
            keeps_max_timestamp=is_tail,
        )

    def _kept(self, spans: list[RecordSpan], header: BatchHeader) -> list[RecordSpan]:
        if header.base_offset >= self.keys_end:
            return spans
        is_latest, base_offset = self.keys.is_latest, header.base_offset
        is_expired = header.has_delete_horizon and self.now_ms >= header.base_timestamp_ms
        # A record without a key supersedes nothing and is superseded by nothing.
        return [
            span
            for span in spans
            if span.key is None
            or (
                is_latest(span.key, base_offset + span.offset_delta)
                and not (is_expired and span.is_tombstone)
            )
        ]


# --- which record of a key is the latest --------------------------------------------------------


KEYS_PER_ROUND_MAX: Final = 262_144
"""Keys per round, about 50 MB. A dirty part with more is cleaned in several rounds."""

_DIGEST_BYTES: Final = 16


class KeyOffsets:
    """The latest offset of each key read from the dirty part, in bounded memory.

    A long key is stored as a 128-bit BLAKE2b digest. Two colliding keys would lose a record, but at
    that width none collide. A key shorter than the digest is stored as it is; length tells the two
    kinds apart.
    """

    __slots__ = ("_keys_max", "_offsets")

    def __init__(self, keys_max: int = KEYS_PER_ROUND_MAX) -> None:
        self._keys_max = keys_max
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room_for(self, record_count: int) -> bool:
        """Whether a batch of that many records fits, whatever its keys are.

        An empty map takes any batch, so every round makes progress.
        """
        return not self._offsets or len(self._offsets) + record_count <= self._keys_max

    def put(self, key: bytes, offset: int) -> None:
        """Note a record; offsets must rise from call to call."""
        self._offsets[_short(key)] = offset

    def is_latest(self, key: bytes, offset: int) -> bool:
        """Whether no later record with the key has been noted."""
        return self._offsets.get(_short(key), -1) <= offset


def _short(key: bytes) -> bytes:
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()


# --- what transactions have decided -------------------------------------------------------------


@dataclass(slots=True)
class _Aborted:
    entry: AbortedIndexEntry
    has_data: bool = False


class CleanedTransactions:
    """Which batches belong to aborted transactions, and which markers are still needed.

    One object follows one pass over a log, batch by batch from the first one on:

    | batch | answer |
    |---|---|
    | transactional data of an aborted transaction | aborted: its records are removed |
    | other transactional data | committed, or its marker is still to come: it stays |
    | ABORT marker, data of its transaction was seen | needed, as is its aborted-index entry |
    | COMMIT marker, data of its transaction was seen | needed |
    | a marker whose transaction has nothing left | removable |
    | a marker that was emptied | removable |
    | a control batch that is no verdict | needed |

    Empty batches count as data: a replay would take them for the start of a transaction, so its
    marker must follow. Source: KIP-98, "Transactional compaction"; KAFKA-5395.

    ``aborted``: every entry that touches the range of the pass. Markers beyond the range count too:
    what they decided is known by then.
    """

    __slots__ = ("_aborted", "_committed", "_needed", "_waiting")

    def __init__(self, aborted: Iterable[AbortedIndexEntry]) -> None:
        self._waiting = deque(sorted(aborted, key=lambda entry: entry.first_offset))
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()
        self._needed: list[AbortedIndexEntry] = []

    def observe_data(self, header: BatchHeader) -> bool:
        """Visit a data batch; return whether its records were aborted."""
        self._advance_to(header.last_offset)
        if not header.is_transactional:
            return False
        aborted = self._aborted.get(header.producer_id)
        if aborted is None:
            self._committed.add(header.producer_id)
            return False
        aborted.has_data = True
        return True

    def observe_control(self, header: BatchHeader, control: ControlRecord | None) -> bool:
        """Visit a control batch; return whether it may be removed after the delete horizon."""
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
        """The entries of the markers visited since the last call, in the order of the markers."""
        needed, self._needed = self._needed, []
        return needed

    def _advance_to(self, last_offset: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0].first_offset <= last_offset:
            entry = waiting.popleft()
            self._aborted[entry.producer_id] = _Aborted(entry)


# --- a batch without some of its records --------------------------------------------------------
# What stays keeps its bytes, offset and sequence; only the timestamp deltas are rewritten when
# the base timestamp changes, which it does when the first record is removed or a delete horizon
# replaces it. A batch that lost all records is *empty*: a header with a record count of zero.
# Source: KIP-98 for empty batches, KIP-534 for the delete horizon.


class RecordSpan(NamedTuple):
    """One record in a block: bytes [start, end), and the fields that compaction needs.

    ``body`` and ``rest`` are where the attributes and the offset delta begin.
    """

    start: int
    body: int
    rest: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    is_tombstone: bool


def record_spans(block: bytes, header: BatchHeader) -> list[RecordSpan]:
    """The records of the uncompressed ``block``, which belongs to ``header``.

    Raises ``CorruptDataError`` if a field extends past its record, or the records do not fill the
    block.
    """
    spans: list[RecordSpan] = []
    size = len(block)
    start = 0
    for _ in range(header.record_count):
        length, body = read_varint(block, start, size)
        end = body + length
        if length < 1 or end > size:
            _refuse(header, f"a record of {length} bytes")
        timestamp_delta, rest = read_varlong(block, body + 1, end)
        offset_delta, position = read_varint(block, rest, end)
        key_bytes, position = read_varint(block, position, end)
        key = None
        if key_bytes >= 0:
            key = block[position : position + key_bytes]
            position += key_bytes
        value_bytes, position = read_varint(block, position, end)
        if key_bytes < -1 or value_bytes < -1 or position + value_bytes > end:
            _refuse(header, "a field leaves its record")
        spans.append(
            RecordSpan(
                start, body, rest, end, timestamp_delta, offset_delta, key, value_bytes == -1
            )
        )
        start = end
    if start != size:
        _refuse(header, "bytes after the last record")
    return spans


def empty_batch(header: BatchHeader) -> bytearray:
    """The batch of ``header`` without records: its offsets, sequences and epochs remain."""
    return reseal(
        header,
        b"",
        codec=Codec.NONE,
        record_count=0,
        base_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=header.max_timestamp_ms,
        has_delete_horizon=False,
    )


def rebuilt_batch(
    header: BatchHeader,
    block: bytes,
    kept: Sequence[RecordSpan],
    *,
    horizon_ms: int | None,
    keeps_max_timestamp: bool,
) -> bytearray:
    """The batch of ``header`` with the records ``kept``, at least one, of its ``block``.

    ``horizon_ms`` is stamped as the delete horizon; None leaves an existing one. With
    ``keeps_max_timestamp`` the header's maximum stays although its record may be gone, because
    the producer's state has it.
    """
    base_ms = header.base_timestamp_ms
    if horizon_ms is not None:
        base_ms = horizon_ms
    elif not header.has_delete_horizon and not header.is_log_append_time:
        base_ms += kept[0].timestamp_delta
    max_ms = header.max_timestamp_ms
    if not keeps_max_timestamp and not header.is_log_append_time:
        max_ms = header.base_timestamp_ms + max(span.timestamp_delta for span in kept)
    records = _record_bytes(block, kept, later_ms=header.base_timestamp_ms - base_ms)
    return reseal(
        header,
        records if header.codec is Codec.NONE else compress(header.codec, records),
        codec=header.codec,
        record_count=len(kept),
        base_timestamp_ms=base_ms,
        max_timestamp_ms=max_ms,
        has_delete_horizon=horizon_ms is not None or header.has_delete_horizon,
    )


def _record_bytes(block: bytes, kept: Sequence[RecordSpan], *, later_ms: int) -> bytes:
    """The records with ``later_ms`` added to each timestamp delta."""
    if later_ms == 0:
        return b"".join([block[span.start : span.end] for span in kept])
    pieces: list[bytes] = []
    for span in kept:
        attributes = block[span.body : span.body + 1]
        delta = encode_varlong(span.timestamp_delta + later_ms)
        rest = block[span.rest : span.end]
        size_bytes = len(attributes) + len(delta) + len(rest)
        pieces += (encode_varlong(size_bytes), attributes, delta, rest)
    return b"".join(pieces)


def _refuse(header: BatchHeader, reason: str) -> NoReturn:
    raise CorruptDataError(f"batch at offset {header.base_offset}: {reason}")
