"""What a user's function returns, checked and made ready to be sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from oncelog.api.records import ConsumerRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.api.producing.producer import Producer


_PLACE: Final = ("topic", "partition", "offset")


class Output(Protocol):
    """Records to be sent in the open transaction."""

    @property
    def record_count(self) -> int:
        """How many records there are."""
        ...

    def send(self, producer: Producer, sink: str) -> None:
        """Hand all of them to ``producer``; the commit shows whether they arrived."""
        ...


@dataclass(frozen=True, slots=True)
class TableOutput:
    """Rows of a table, ``None`` for no output."""

    table: pa.Table | pa.RecordBatch | None

    @property
    def record_count(self) -> int:
        """How many rows there are."""
        return 0 if self.table is None else int(self.table.num_rows)

    def send(self, producer: Producer, sink: str) -> None:
        """Send the rows, if there are any."""
        if self.record_count:
            producer.send_arrow(sink, self.table)


@dataclass(frozen=True, slots=True)
class RecordOutput:
    """Key, value and timestamp of each record."""

    records: Sequence[tuple[bytes | None, bytes | None, int]]

    @property
    def record_count(self) -> int:
        """How many records there are."""
        return len(self.records)

    def send(self, producer: Producer, sink: str) -> None:
        """Send one record after another; the producer makes batches of them."""
        for key, value, timestamp_ms in self.records:
            producer.send(
                sink, value=value, key=key, timestamp_ms=timestamp_ms if timestamp_ms >= 0 else None
            )


def apply_to_table(function: Callable[[Any], Any], batch: pa.Table) -> TableOutput:
    """Apply ``function`` to a whole batch; it returns a table, a record batch or ``None``."""
    import pyarrow as pa

    result = function(batch)
    if result is not None and not isinstance(result, (pa.Table, pa.RecordBatch)):
        raise TypeError(
            "the function must return a pyarrow Table, a RecordBatch or None, "
            f"not {type(result).__name__}; for single records use batch_format='record'"
        )
    return TableOutput(result if result is None else _without_place(result))


def _without_place(result: pa.Table | pa.RecordBatch) -> pa.Table | pa.RecordBatch:
    """``result`` without the columns that say where its rows were in the source.

    ``topic`` and ``offset`` mean nothing for a record to be sent. Where one of them is, the rows
    were made from those of the source, and so was ``partition``: it is not one of the sink.
    """
    names = [name for name in result.schema.names if name in _PLACE]
    if not names or names == ["partition"]:
        return result
    return result.drop_columns(names)


def apply_to_records(
    function: Callable[[Any], Any], batch: Sequence[ConsumerRecord]
) -> RecordOutput:
    """Apply ``function`` to each record; it returns a value, a key and value, several, or None."""
    records: list[tuple[bytes | None, bytes | None, int]] = []
    for record in batch:
        result = function(record)
        records.extend(
            (*_key_and_value(item, record), record.timestamp_ms)
            for item in (result if isinstance(result, list) else [result])
            if item is not None
        )
    return RecordOutput(records)


def _key_and_value(item: Any, record: ConsumerRecord) -> tuple[bytes | None, bytes | None]:
    """Output of one record: a value alone keeps the key of the record it was made from."""
    if isinstance(item, bytes):
        return record.key, item
    if isinstance(item, tuple) and len(item) == 2:
        key, value = item
        if (key is None or isinstance(key, bytes)) and (value is None or isinstance(value, bytes)):
            return key, value
    raise TypeError(
        "the function must return bytes (the value), a tuple (key, value) of bytes or None, a list "
        f"of such, or None, not {type(item).__name__}"
    )
