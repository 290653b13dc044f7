"""The flights of the streaming demo as they arrive: by scheduled departure, a year in a minute."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from oncelog.api.client import Cluster
from oncelog.examples.flights.stream_windows import CLOSING, DAY_MS
from oncelog.storage.model import TopicPartition

TRANSACTIONAL_ID: Final = "replay-2013"


class Replay:
    """Sends ``arrivals`` in its own thread, each day in one transaction.

    Each partition has them in order. A flight's partition follows from its position in the year, so
    all partitions are equally far at any time.
    """

    def __init__(
        self, cluster: Cluster, arrivals: pa.Table, *, topic: str, partitions: int, seconds: float
    ) -> None:
        self.sent = 0
        """The number of committed flights."""
        self._cluster = cluster
        self._arrivals = arrivals
        self._topic = topic
        self._partitions = partitions
        self._seconds = seconds
        self._is_stopped = threading.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="replay")
        self._sending: Future[int | None] | None = None

    def __enter__(self) -> Replay:
        """Start to send."""
        self._sending = self._thread.submit(self._send)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop sending, and wait for the transaction in progress."""
        self._is_stopped.set()
        self._thread.shutdown()

    def end(self) -> int | None:
        """The sum of the end offsets (exclusive) once all flights are committed; else ``None``.

        Raises what the sending thread has raised.
        """
        if self._sending is None or not self._sending.done():
            return None
        return self._sending.result()

    def close_year(self, scheduled_ms: int) -> None:
        """Send the closing event, so late that every window of the year is complete.

        Call it when the stream has read all flights: what it reads after this event is too late.
        """
        value = json.dumps({"origin": CLOSING, "scheduled": scheduled_ms})
        with self._cluster.producer(transactional_id=TRANSACTIONAL_ID) as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send(self._topic, value=value.encode(), partition=0)

    def _send(self) -> int | None:
        """Send all; return what ``end`` returns, or ``None`` if it is stopped before."""
        started, days = time.monotonic(), list(self._days())
        with self._cluster.producer(transactional_id=TRANSACTIONAL_ID) as producer:
            producer.init_transactions()
            for number, day in enumerate(days):
                due = started + self._seconds * number / len(days)
                if self._is_stopped.wait(max(due - time.monotonic(), 0.0)):
                    return None
                with producer.transaction():
                    producer.send_arrow(self._topic, day)
                self.sent += day.num_rows
        with self._cluster.consumer() as consumer:
            partitions = [TopicPartition(self._topic, n) for n in range(self._partitions)]
            return sum(consumer.end_offsets(partitions).values())

    def _days(self) -> Iterator[pa.Table]:
        """The records of each day."""
        flights = self._arrivals
        place = pa.array([row % self._partitions for row in range(flights.num_rows)], pa.int32())
        records = pa.table(
            {"key": pc.cast(flights["origin"], pa.binary()), "value": to_json(flights)}
        ).append_column("partition", place)
        days = pc.value_counts(pc.divide(flights["scheduled"], DAY_MS)).field("counts")
        first = 0
        for count in days.to_pylist():
            yield records.slice(first, count)
            first += count


def to_json(flights: pa.Table) -> pa.ChunkedArray:
    """One JSON object per flight, as bytes."""
    fields = []
    for column in flights.schema:
        values = pc.cast(flights[column.name], pa.string())
        mark = '"' if pa.types.is_string(column.type) else ""
        values = pc.binary_join_element_wise(f'"{column.name}":{mark}', values, mark, "")
        fields.append(pc.fill_null(values, f'"{column.name}":null'))
    body = pc.binary_join_element_wise(*fields, ",")
    return pc.cast(pc.binary_join_element_wise("{", body, "}", ""), pa.binary())
