"""The header of record batch v2: parse, seal and patch.

Where its fields lie is in ``layout``. The leader rewrites base_offset and leader_epoch at each
append; because neither is under the CRC, it need not read the records again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypedDict

from crc32c import crc32c

from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    sequence_after,
)
from oncelog.storage.records import compiled
from oncelog.storage.records.compression import Codec
from oncelog.storage.records.layout import (
    ATTRIBUTES_AT,
    CHECKED_AT,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    MAX_TIMESTAMP_AT,
    PRODUCER_AT,
    TRANSACTIONAL,
)

if TYPE_CHECKING:
    from typing_extensions import NotRequired, Unpack

Buffer: TypeAlias = bytes | bytearray | memoryview
WritableBuffer: TypeAlias = bytearray | memoryview

PLACEMENT_BYTES: Final = 16
"""What a leader writes anew of a batch: offset and leader epoch, with the length between them."""

_PLACEMENT = struct.Struct(">qii")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_PRODUCER = struct.Struct(">qh")

_ALL_BITS: Final = 0xFFFF_FFFF
_ZEROS: Final = bytes(4_096)
_Shift: TypeAlias = tuple[tuple[int, ...], ...]

_BATCH_LENGTH_MIN: Final = HEADER_BYTES - LENGTH_END
HEAD_ROOM: Final = bytes(HEADER_BYTES)
"""What precedes the records of a batch until it is sealed."""

_MAGIC_FIELD: Final = 3
_TRANSACTIONAL_OR_CONTROL: Final = TRANSACTIONAL | CONTROL


class BatchFields(TypedDict, total=False):
    """What a header says besides its records; a plain, uncompressed one of no producer if empty."""

    codec: Codec
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool


class BatchOptions(BatchFields, total=False):
    """How a batch is made: its fields, and how hard its codec tries (``None``: its default)."""

    compression_level: int | None


class SealFields(BatchFields):
    """The arguments of ``seal_in_place``; the last four are optional as well."""

    record_count: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    is_control: NotRequired[bool]
    base_offset: NotRequired[int]
    leader_epoch: NotRequired[int]
    last_offset_delta: NotRequired[int | None]


class BatchHeader(NamedTuple):
    """The 61 bytes before a batch's records, in the order of ``layout``.

    A tuple, because one is built for every batch that is appended, scanned or replayed.

    ``base_offset`` and ``last_offset`` are inclusive, ``next_offset`` is exclusive.
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, header included."""
        return LENGTH_END + self.batch_length

    @property
    def last_offset(self) -> int:
        """The offset of the last record, inclusive, whether or not compaction has removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after this batch. Not ``base_offset + record_count``: batches are sparse."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, past the wrap if need be; -1 if it has none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return sequence_after(self.base_sequence, self.last_offset_delta)

    @property
    def codec(self) -> Codec:
        """How the records are compressed. Raises ``CorruptDataError`` for a codec id above 4."""
        try:
            return Codec(self.attributes & CODEC_MASK)
        except ValueError as error:
            raise CorruptDataError(
                f"batch at offset {self.base_offset}: unknown codec {self.attributes & CODEC_MASK}"
            ) from error

    @property
    def is_log_append_time(self) -> bool:
        """Whether every record has the time ``max_timestamp_ms``, at which it was appended."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction: as its data, or as its marker."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a control record, which no user ever sees."""
        return bool(self.attributes & CONTROL)

    @property
    def is_plain(self) -> bool:
        """Whether the batch holds data outside any transaction: it is neither of the two above."""
        return not self.attributes & _TRANSACTIONAL_OR_CONTROL

    @property
    def has_delete_horizon(self) -> bool:
        """Whether ``base_timestamp_ms`` says from when on compaction may drop the batch."""
        return bool(self.attributes & DELETE_HORIZON)

    @property
    def has_producer_id(self) -> bool:
        """Whether an idempotent or transactional producer wrote the batch."""
        return self.producer_id >= 0

    def with_offset(self, base_offset: int, leader_epoch: int) -> BatchHeader:
        """This header after ``patch`` with the same arguments; the CRC stays right."""
        return BatchHeader(base_offset, self.batch_length, leader_epoch, *self[_MAGIC_FIELD:])

    def is_of(self, batch: Buffer) -> bool:
        """Whether ``batch`` has this size and CRC field; its bytes are not checked against it."""
        return (
            len(batch) == self.batch_length + LENGTH_END
            and _CRC.unpack_from(batch, CRC_AT)[0] == self.crc
        )

    def placement(self) -> bytes:
        """The first 16 bytes of the batch, which hold all that ``with_offset`` changes."""
        return _PLACEMENT.pack(self.base_offset, self.batch_length, self.leader_epoch)


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch that begins at ``position``. Neither CRC nor records are looked at.

    Raises ``CorruptDataError`` if fewer than 61 bytes are left, the magic is not 2, or the batch
    length is below 49. The batch itself may still be truncated: compare ``size_bytes``.
    """
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptDataError(f"batch header at byte {position} is cut off")
    header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    if header.magic == MAGIC and header.batch_length >= _BATCH_LENGTH_MIN:
        return header
    if header.magic != MAGIC:
        raise CorruptDataError(f"batch at byte {position} has magic {header.magic}, not {MAGIC}")
    raise CorruptDataError(f"batch at byte {position} has length {header.batch_length}")


def claimed_bytes(buffer: Buffer, position: int = 0) -> int:
    """The claimed size of the batch at ``position``, possible or not.

    ``buffer`` holds at least the length field.
    """
    length: int = _INT32.unpack_from(buffer, position + LENGTH_AT)[0]
    return LENGTH_END + length


def crc_matches(buffer: Buffer, header: BatchHeader, position: int = 0) -> bool:
    """Whether the batch at ``position`` is whole and its bytes have the CRC of its header."""
    end = position + header.size_bytes
    if end > len(buffer):
        return False
    return compiled.crc32c(memoryview(buffer)[position + CHECKED_AT : end]) == header.crc


def patch(
    buffer: WritableBuffer, *, base_offset: int, leader_epoch: int, position: int = 0
) -> None:
    """Write what the leader assigns into the batch at ``position``; its CRC stays right."""
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + LEADER_EPOCH_AT, leader_epoch)


def stamp_log_append_time(buffer: WritableBuffer, timestamp_ms: int) -> None:
    """Make ``timestamp_ms`` the time of every record of the one batch in ``buffer``.

    Sets the LogAppendTime bit and the maximum timestamp, and so computes the CRC anew.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(buffer, ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    _INT64.pack_into(buffer, MAX_TIMESTAMP_AT, timestamp_ms)
    _write_crc(buffer)


def crc_when_stamped(buffer: Buffer, timestamp_ms: int) -> int:
    """The CRC of the one batch in ``buffer`` after ``stamp_log_append_time``, which is not done."""
    stamped = bytearray(buffer)
    stamp_log_append_time(stamped, timestamp_ms)
    return parse_header(stamped).crc


def stamp_producer(buffer: WritableBuffer, producer_id: int, producer_epoch: int) -> None:
    """Make the one batch in ``buffer`` that of another producer id and epoch.

    Its CRC is changed by what that changes, not computed anew: a batch that is damaged stays so.
    The records are not read, so a large batch takes hardly longer than a small one.
    """
    end = PRODUCER_AT + _PRODUCER.size
    before = int.from_bytes(buffer[PRODUCER_AT:end], "big")
    _PRODUCER.pack_into(buffer, PRODUCER_AT, producer_id, producer_epoch)
    change = before ^ int.from_bytes(buffer[PRODUCER_AT:end], "big")
    # A CRC is linear: the change of the bytes, and zeros behind it, have the change of the CRC.
    of_change = _crc_on(0, change.to_bytes(_PRODUCER.size, "big"))
    (crc,) = _CRC.unpack_from(buffer, CRC_AT)
    _CRC.pack_into(buffer, CRC_AT, crc ^ _crc_on_zeros(of_change, len(buffer) - end))


def _crc_on(register: int, data: Buffer) -> int:
    """The register of a CRC after ``data``: without the inversions at its begin and end."""
    return crc32c(data, register ^ _ALL_BITS) ^ _ALL_BITS


def _crc_on_zeros(register: int, count: int) -> int:
    """The register after so many zeros: by a shift for each bit of their number above 4,096."""
    large, small = divmod(count, len(_ZEROS))
    register = _crc_on(register, memoryview(_ZEROS)[:small])
    for bit in range(large.bit_length()):
        if large >> bit & 1:
            register = _shifted(register, _shift(bit))
    return register


def _shifted(register: int, shift: _Shift) -> int:
    of_0, of_1, of_2, of_3 = shift
    return (
        of_0[register & 255]
        ^ of_1[register >> 8 & 255]
        ^ of_2[register >> 16 & 255]
        ^ of_3[register >> 24]
    )


@cache
def _shift(bit: int) -> _Shift:
    """What ``4_096 << bit`` zeros make of each value of each byte of a register."""
    if bit == 0:
        of_bits = [_crc_on(1 << place, _ZEROS) for place in range(32)]
    else:
        half = _shift(bit - 1)
        of_bits = [_shifted(_shifted(1 << place, half), half) for place in range(32)]
    tables = []
    for first in range(0, 32, 8):
        table = [0]
        for of_bit in of_bits[first : first + 8]:
            table += [value ^ of_bit for value in table]
        tables.append(tuple(table))
    return tuple(tables)


def iterate_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch in ``buffer``; a truncated tail ends it silently.

    CRCs are not checked. Raises ``CorruptDataError`` where no header can be.
    """
    position = 0
    while len(buffer) - position >= HEADER_BYTES:
        header = parse_header(buffer, position)
        if header.size_bytes > len(buffer) - position:
            return
        yield position, header
        position += header.size_bytes


def seal(records: Buffer, **fields: Unpack[SealFields]) -> bytearray:
    """A whole batch around ``records``, which are already compressed with the codec."""
    batch = batch_with(records)
    seal_in_place(batch, **fields)
    return batch


def batch_with(records: Buffer) -> bytearray:
    """A copy of ``records`` behind room for their header."""
    return bytearray().join((HEAD_ROOM, records))


def seal_in_place(
    batch: bytearray,
    *,
    record_count: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    last_offset_delta: int | None = None,
) -> None:
    """Write the header of ``batch``, whose records follow ``HEADER_BYTES`` of room.

    ``last_offset_delta`` is ``record_count - 1`` unless given.
    """
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LENGTH_END,
        leader_epoch,
        MAGIC,
        0,
        codec | TRANSACTIONAL * is_transactional | CONTROL * is_control,
        record_count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    _write_crc(batch)


def reseal(
    header: BatchHeader,
    records: Buffer,
    *,
    codec: Codec,
    record_count: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    has_delete_horizon: bool,
) -> bytearray:
    """The batch of ``header`` around other ``records``, compressed with ``codec``: compaction's.

    Offsets, sequences, producer, leader epoch and kind of batch stay what they were, so that it
    means to a replay what it meant before. ``base_timestamp_ms`` is the delete horizon if
    ``has_delete_horizon``. Source: KIP-534.
    """
    batch = batch_with(records)
    kept = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    resealed = header._replace(
        batch_length=len(batch) - LENGTH_END,
        attributes=kept | codec | DELETE_HORIZON * has_delete_horizon,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        record_count=record_count,
    )
    HEADER.pack_into(batch, 0, *resealed)
    _write_crc(batch)
    return batch


def _write_crc(batch: WritableBuffer) -> None:
    _CRC.pack_into(batch, CRC_AT, compiled.crc32c(memoryview(batch)[CHECKED_AT:]))
