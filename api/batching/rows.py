"""The records of one batch before they are encoded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from oncelog.storage.records.block import RecordBlock, seal_block
from oncelog.storage.records.codec import RecordInput, decode_records, encode_records
from oncelog.storage.records.varint import encode_varlong

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from oncelog.storage.records.batch import BatchOptions


class BatchRows(Protocol):
    """The records of a batch, encoded only when it is sent."""

    @property
    def record_count(self) -> int:
        """The number of records, at least one."""
        ...

    def encode(self, **options: Unpack[BatchOptions]) -> bytearray:
        """Encode the whole batch, checksum included."""
        ...

    def split(self) -> tuple[BatchRows, BatchRows]:
        """Two halves, in order, of at least two records."""
        ...


class RecordRows:
    """Records one by one: half of a batch that was split."""

    __slots__ = ("records",)

    def __init__(self, records: list[RecordInput]) -> None:
        self.records = records

    @property
    def record_count(self) -> int:
        """The number of records."""
        return len(self.records)

    def encode(self, **options: Unpack[BatchOptions]) -> bytearray:
        """Encode the whole batch, checksum included."""
        return encode_records(self.records, **options)

    def split(self) -> tuple[BatchRows, BatchRows]:
        """Two halves, in order."""
        middle = len(self.records) // 2
        return RecordRows(self.records[:middle]), RecordRows(self.records[middle:])


class BlockRows:
    """Records encoded when they were sent; ``block`` has room for the batch header."""

    __slots__ = ("_block", "_is_sealed")

    def __init__(self, block: RecordBlock) -> None:
        self._block = block
        self._is_sealed = False

    @property
    def record_count(self) -> int:
        """The number of records."""
        return self._block.record_count

    def encode(self, **options: Unpack[BatchOptions]) -> bytearray:
        """Return the sealed batch: the block itself the first time, then a copy each time."""
        block = self._block
        if self._is_sealed:
            # The earlier bytes may still be in flight or held by a caller.
            block = dataclasses.replace(block, data=bytearray(block.data))
        self._is_sealed = True
        return seal_block(block, **options)

    def split(self) -> tuple[BatchRows, BatchRows]:
        """Two halves, in order."""
        batch = self.encode()
        return RecordRows(
            [
                (key, value, timestamp_ms, tuple(headers))
                for _, timestamp_ms, key, value, headers in decode_records(batch)
            ]
        ).split()


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Encode the headers of one record, their count first."""
    parts = [encode_varlong(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (encode_varlong(len(encoded)), encoded)
        parts.append(encode_varlong(-1) if value is None else encode_varlong(len(value)) + value)
    return b"".join(parts)
