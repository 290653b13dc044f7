"""The function of a job: how a worker applies it to a batch, and what it may return.

``Function`` calls it and checks the result; that is an ``Output``, which knows its topics. An
``async`` function runs on an event loop of the worker's thread: it goes on only while the worker
waits for results, and lives as long as the worker, so clients of other services can be kept open.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from oncelog.api.processing.messages import ProcessConfig
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

    def send(self, producer: Producer) -> None:
        """Pass all records to ``producer``; the commit shows whether they were delivered."""
        ...


@dataclass(frozen=True, slots=True)
class TableOutput:
    """Tables, each with the topic it goes to."""

    tables: Sequence[tuple[str, pa.Table | pa.RecordBatch]]

    @property
    def record_count(self) -> int:
        """The number of rows."""
        return sum(int(table.num_rows) for _, table in self.tables)

    def send(self, producer: Producer) -> None:
        """Send the rows, if any."""
        for topic, table in self.tables:
            if table.num_rows:
                producer.send_arrow(topic, table)


@dataclass(frozen=True, slots=True)
class RecordOutput:
    """Topic, key, value and timestamp of each record."""

    records: Sequence[tuple[str, bytes | None, bytes | None, int]]

    @property
    def record_count(self) -> int:
        """The number of records."""
        return len(self.records)

    def send(self, producer: Producer) -> None:
        """Send the records one by one; the producer batches them."""
        for topic, key, value, timestamp_ms in self.records:
            stamp = timestamp_ms if timestamp_ms >= 0 else None
            producer.send(topic, value=value, key=key, timestamp_ms=stamp)


class Function:
    """The function of a worker. For one thread; ``close`` ends its event loop."""

    def __init__(self, config: ProcessConfig) -> None:
        self._call = config.function
        self._takes_tables = config.batch_format == "arrow"
        self._sinks = config.sinks
        self._names_sinks = not isinstance(config.sink, str | None)
        self._concurrency_max = config.max_concurrency
        self._loop: asyncio.AbstractEventLoop | None = None

    def apply(self, batch: Any) -> Output:
        """Apply the function to a batch; raises what it raises.

        ``TypeError`` for a result of the wrong type, ``ValueError`` for a topic that is no sink.
        """
        if self._takes_tables:
            result = self._call(batch)
            if inspect.isawaitable(result):
                result = self._run(_awaited(result))
            tables = ((topic, table) for topic, table in self._by_sink(result) if table is not None)
            return TableOutput([(topic, _checked_table(table)) for topic, table in tables])
        records: list[tuple[str, bytes | None, bytes | None, int]] = []
        for record, result in zip(batch, self._results(batch), strict=True):
            for topic, output in self._by_sink(result):
                records.extend(
                    (topic, *_key_and_value(item, record), record.timestamp_ms)
                    for item in (output if isinstance(output, list) else [output])
                    if item is not None
                )
        return RecordOutput(records)

    # --- sinks --------------------------------------------------------------------------------

    def _by_sink(self, result: Any) -> Iterator[tuple[str, Any]]:
        """Each part of a result, with its topic."""
        if result is None:
            return
        if not self._sinks:
            raise TypeError(
                f"the job has no sink, so the function must return None, not {_kind(result)}"
            )
        if not self._names_sinks:
            yield self._sinks[0], result
            return
        for topic, output in self._pairs(result):
            if topic not in self._sinks:
                allowed = ", ".join(map(repr, self._sinks))
                raise ValueError(f"{topic!r} is no sink of the job: give one of {allowed}")
            yield topic, output

    def _pairs(self, result: Any) -> list[tuple[str, Any]]:
        if isinstance(result, Mapping):
            return list(result.items())
        pairs = result if isinstance(result, list) else [result]
        pairs = [pair for pair in pairs if pair is not None]
        if self._takes_tables or not all(
            isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)
            for pair in pairs
        ):
            wanted = "a mapping from sink to output"
            if not self._takes_tables:
                wanted += ", a pair (sink, output), a list of such pairs"
            raise TypeError(
                f"the job has several sinks, so the function must return {wanted} or None, "
                f"not {_kind(result)}"
            )
        return pairs

    # --- async functions ----------------------------------------------------------------------

    def _results(self, batch: Sequence[ConsumerRecord | QueueRecord]) -> list[Any]:
        """The results for all records, in their order."""
        results: list[Any] = []
        for place, record in enumerate(batch):
            result = self._call(record)
            if inspect.isawaitable(result):
                rest = map(self._call, batch[place + 1 :])
                calls = itertools.chain([result], rest)
                return [*results, *self._run(_gathered(calls, self._concurrency_max))]
            results.append(result)
        return results

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        try:
            return self._loop.run_until_complete(work)
        except Exception:
            raise
        except BaseException:
            # SystemExit leaves the loop at once: no other call may go on beside the next attempt.
            self._cancel_all(self._loop)
            raise

    def _cancel_all(self, loop: asyncio.AbstractEventLoop) -> None:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    def close(self) -> None:
        """Cancel what the function has left running, and close the event loop."""
        loop, self._loop = self._loop, None
        if loop is not None:
            self._cancel_all(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


async def _awaited(result: Any) -> Any:
    return await result


async def _gathered(calls: Iterator[Any], concurrency_max: int) -> list[Any]:
    """The results of all ``calls``, in order; each begins when it is drawn from the iterator."""
    results: dict[int, Any] = {}
    numbered = enumerate(calls)

    async def work() -> None:
        for place, call in numbered:
            results[place] = await call if inspect.isawaitable(call) else call

    tasks = [asyncio.ensure_future(work()) for _ in range(concurrency_max)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [results[place] for place in range(len(results))]


# --- results --------------------------------------------------------------------------------------

_PLACE: Final = ("topic", "partition", "offset")


def _kind(value: Any) -> str:
    return type(value).__name__


def _checked_table(result: Any) -> pa.Table | pa.RecordBatch:
    import pyarrow as pa

    if not isinstance(result, (pa.Table, pa.RecordBatch)):
        raise TypeError(
            "the function must return a pyarrow Table, a RecordBatch or None, "
            f"not {_kind(result)}; for single records use batch_format='record'"
        )
    return _without_place(result)


def _without_place(result: pa.Table | pa.RecordBatch) -> pa.Table | pa.RecordBatch:
    """``result`` without the columns that say where its rows were in the source.

    ``topic`` and ``offset`` mean nothing for a record to be sent. If either is there, the rows were
    derived from the source's, and ``partition`` is the source's too, not the sink's.
    """
    names = [name for name in result.schema.names if name in _PLACE]
    if not names or names == ["partition"]:
        return result
    return result.drop_columns(names)


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
