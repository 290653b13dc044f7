"""The function of a job: how it is applied to a batch, and what it may return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from oncelog.api.producing.producer import Producer
from oncelog.api.records import ConsumerRecord, QueueRecord

if TYPE_CHECKING:
    import pyarrow as pa


class Output(Protocol):
    """The checked result of a user's function, ready to be sent in the transaction."""

    @property
    def record_count(self) -> int:
        """The number of records."""
        ...

    def send(self, producer: Producer, sink: str) -> None:
        """Pass all records to ``producer``; the commit shows whether they were delivered."""
        ...


@dataclass(frozen=True, slots=True)
class TableOutput:
    """Rows of a table; ``None`` for no output."""

    table: pa.Table | pa.RecordBatch | None

    @property
    def record_count(self) -> int:
        """The number of rows."""
        return 0 if self.table is None else int(self.table.num_rows)

    def send(self, producer: Producer, sink: str) -> None:
        """Send the rows, if any."""
        if self.record_count:
            producer.send_arrow(sink, self.table)


@dataclass(frozen=True, slots=True)
class RecordOutput:
    """Key, value and timestamp of each record."""

    records: Sequence[tuple[bytes | None, bytes | None, int]]

    @property
    def record_count(self) -> int:
        """The number of records."""
        return len(self.records)

    def send(self, producer: Producer, sink: str) -> None:
        """Send the records one by one; the producer batches them."""
        for key, value, timestamp_ms in self.records:
            producer.send(
                sink, value=value, key=key, timestamp_ms=timestamp_ms if timestamp_ms >= 0 else None
            )


_PLACE: Final = ("topic", "partition", "offset")


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

    ``topic`` and ``offset`` mean nothing for a record to be sent. If either is there, the rows were
    derived from the source's, and ``partition`` is the source's too, not the sink's.
    """
    names = [name for name in result.schema.names if name in _PLACE]
    if not names or names == ["partition"]:
        return result
    return result.drop_columns(names)


def apply_to_records(
    function: Callable[[Any], Any], batch: Sequence[ConsumerRecord] | Sequence[QueueRecord]
) -> RecordOutput:
    """Apply ``function`` to each record; it returns a value, (key, value), a list, or ``None``."""
    records: list[tuple[bytes | None, bytes | None, int]] = []
    for record in batch:
        result = function(record)
        records.extend(
            (*_key_and_value(item, record), record.timestamp_ms)
            for item in (result if isinstance(result, list) else [result])
            if item is not None
        )
    return RecordOutput(records)


def _key_and_value(
    item: Any, record: ConsumerRecord | QueueRecord
) -> tuple[bytes | None, bytes | None]:
    """One output record; a value alone keeps the key of the input record."""
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
