"""What ``_kernel.pyx`` offers. Buffers are bytes-like; columns have Arrow's memory layout."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias

from oncelog.storage.records.batch import Buffer
from oncelog.storage.records.rows import RecordInput, RowT

INTERFACE: int
"""Of these functions; ``compiled`` accepts only the one it was written for."""

StringsIn: TypeAlias = tuple[int, Any, Any, Any]
"""First entry, validity bitmap or None, int32 offsets, data or None."""

StringsOut: TypeAlias = tuple[bytes | None, bytes, bytes, int]
"""Validity bitmap or None, int32 offsets, data, number of nulls."""

HeadersIn: TypeAlias = tuple[int, Any, Any, StringsIn, StringsIn]
"""First list, validity of the lists or None, their int32 offsets, all keys, all values."""

def encode_columns(
    count: int,
    keys: StringsIn | None,
    values: StringsIn,
    timestamps: Any,
    headers: HeadersIn | None,
    head_room: int,
    limit: int,
) -> tuple[bytearray, int, int]:
    """``head_room`` zero bytes and the records; base and maximum timestamp in ms.

    ``timestamps`` is a buffer of int64, or one int for all records. Raises ``ValueError`` for
    columns that contradict themselves, and for records of more than ``limit`` bytes.
    """

def encode_rows(
    records: Sequence[RecordInput], head_room: int, limit: int
) -> tuple[bytearray, int, int]:
    """The same of records one by one. Raises ``TypeError`` for anything but a record."""

def decode_columns(
    buffers: Sequence[Buffer],
    checksum: Callable[[Any], int],
    open_compressed: Callable[[Buffer, int], Buffer],
    block_limit: int,
    limit: int,
) -> tuple[
    int,
    bytes,
    bytes,
    bytes,
    StringsOut,
    StringsOut,
    bytes,
    tuple[int, StringsOut, StringsOut] | None,
    bool,
]:
    """All records of ``buffers``, whole batches one after the other.

    Gives their count; offsets, timestamps in ms (int64) and timestamp types (int32); keys; values;
    int32 offsets of their headers; the number, keys and values of these, None if there are none;
    whether a header key is not ASCII. ``open_compressed`` checks and decompresses the batch of a
    buffer at a position. Raises ``CorruptDataError``; ``ValueError`` if all records take more than
    ``limit`` bytes.
    """

class Rows(Generic[RowT]):
    """``rows.Rows`` of one uncompressed block: of all but the records before ``first_offset``.

    Raises ``CorruptDataError`` if any record is damaged, ``TypeError`` if ``row_type`` is no type
    of named tuples. ``leading`` holds text and numbers only.
    """

    def __init__(
        self,
        block: Buffer,
        count: int,
        base_offset: int,
        last_delta: int,
        base_time: int,
        max_time: int,
        is_append_time: bool,
        row_type: type[RowT],
        leading: tuple[str | int, ...],
        first_offset: int,
    ) -> None: ...
    @property
    def left(self) -> int: ...
    def take(self, count_max: int) -> list[RowT]: ...

CRC_METHODS: tuple[str, ...]
"""Of ``"tables"``, ``"instruction"`` and ``"folding"`` what this processor can do; fastest last."""

def crc32c(data: Buffer) -> int:
    """CRC-32C by the fastest of them; holds the interpreter's lock."""

def crc32c_by(method: str, data: Buffer) -> int:
    """The same by one of them. Raises ``ValueError`` if the processor cannot."""

def skip_sound(data: Buffer, checksum: Callable[[Any], int], lowest_offset: int) -> tuple[int, int]:
    """Where whole, intact batches of ``data`` that follow on one another end; the offset there."""

def scan_batches(
    data: Buffer,
    checksum: Callable[[Any], int],
    position: int,
    segment_base: int,
    expected: int,
    gaps_end: int,
    known_epochs: Any,
    last_epoch: int,
    interval: int,
    counted: tuple[int, int, int, int],
) -> tuple[
    int, int, tuple[int, int, int], tuple[bytes, bytes, bytes, bytes], list[tuple[int, int]]
]:
    """See ``loader.SegmentScan``. ``known_epochs`` is a buffer of int64 pairs."""

def state_batches(
    data: Buffer,
    checksum: Callable[[Any], int],
    is_checked: bool,
    expected: int,
    known_epochs: Any,
    last_epoch: int,
    window: int,
    history_end: int,
    settled_from: int,
    settled_end: int,
) -> tuple[int, int, int, list[int]]:
    """See ``frames.state_batches``. ``known_epochs`` is a buffer of int64 pairs."""

def has_whole_records(data: Buffer) -> bool:
    """Whether the records of the one uncompressed batch in ``data`` are dense and fill it."""
