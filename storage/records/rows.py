"""What a record is to those who encode and decode them one by one.

Its bytes are: length varint (of what follows), attributes int8 (unused), timestamp delta varlong,
offset delta varint, key length varint (-1 null), key, value length varint (-1 null), value, header
count varint, then for each header key length varint, UTF-8 key, value length varint (-1 null),
value. Deltas are against the batch's base timestamp and base offset. Source: KIP-98, KIP-82.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
"""Keys with nullable values; the order and repeated keys are kept."""

RecordHeaders: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""The same, as decoded."""

RecordInput: TypeAlias = tuple[bytes | None, bytes | None, int, Headers]
"""A record to encode: key, value, timestamp in ms, headers."""

INT64_MIN: Final = -(2**63)


class Record(NamedTuple):
    """One decoded record; a null key or value is None, which is not the same as empty.

    A named tuple because one is made per record: it costs a third of a dataclass.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders = ()


RowT = TypeVar("RowT", bound="tuple[Any, ...]")


class Rows(Protocol[RowT]):
    """The records of one batch, checked already, each made when it is taken.

    So only a few are young at a time: a batch of thousands would leave the processor's cache.
    """

    @property
    def left(self) -> int:
        """How many are not taken yet."""

    def take(self, count_max: int) -> list[RowT]:
        """The next of them, up to ``count_max``."""
