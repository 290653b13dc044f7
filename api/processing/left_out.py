"""Records for which the function fails, found and left out: ``on_error="skip"``, ``"dead_letter"``.

* A batch for which the function has failed is applied in parts: Arrow tables in halves, records one
  by one. A record that fails alone ``max_function_failures`` times is left out.
* Output that cannot be sent spoils its transaction. So such a batch is polled again in ever smaller
  parts, until one record is alone. When that has failed as often, it is left out unapplied.

* A record over which processes die is found by ``AttemptCounter``.

A dead letter is the record as it was, and headers that say where and why, with the names that Kafka
Connect gives them (KIP-298). It is sent in the transaction that commits the position after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from oncelog.api.processing.function import Output
from oncelog.api.processing.messages import ProcessConfig
from oncelog.api.producing.producer import Producer
from oncelog.api.records import ConsumerRecord
from oncelog.storage.model import TopicPartition

ERROR_TEXT_MAX: Final = 2_000
"""Characters of an error's text in a dead letter; the rest is cut off."""

_PREFIX: Final = "__connect.errors."


class WorkerDeathError(Exception):
    """Why a record is left out over which processes have died."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A record that is left out, why, and how often it was tried alone."""

    record: ConsumerRecord
    error: BaseException
    attempt_count: int

    def __str__(self) -> str:
        place = f"{self.record.topic_partition} offset {self.record.offset}"
        failed = f"failed {self.attempt_count} times"
        return f"{place}, {failed}, last: {type(self.error).__name__}: {self.error}"

    def send(self, producer: Producer, topic: str, config: ProcessConfig) -> None:
        """Send it as a dead letter to ``topic``, in the open transaction."""
        record = self.record
        facts = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "connector.name": config.group_id,
            "task.id": config.worker_index,
            "exception.class.name": _name(type(self.error)),
            "exception.message": str(self.error)[:ERROR_TEXT_MAX],
            "attempts": self.attempt_count,
        }
        added = tuple(
            (_PREFIX + name, str(fact).encode(errors="replace")) for name, fact in facts.items()
        )
        producer.send(
            topic,
            value=record.value,
            key=record.key,
            headers=record.headers + added,
            timestamp_ms=record.timestamp_ms if record.timestamp_ms >= 0 else None,
        )


def _name(kind: type[BaseException]) -> str:
    is_builtin = kind.__module__ == "builtins"
    return kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}"


def isolate(
    call: Callable[[Any], Output], batch: Any, attempts_max: int
) -> tuple[list[Output], list[LeftOut]]:
    """Apply ``call`` to parts of ``batch``, in order; return the output and what always failed.

    A failed call has no effect, so what succeeds needs no second call.
    """
    outputs: list[Output] = []
    left_out: list[LeftOut] = []
    parts = _parts(batch) if isinstance(batch, list) else [batch]
    parts.reverse()
    while parts:
        part = parts.pop()
        error = None
        for _ in range(attempts_max if len(part) == 1 else 1):
            try:
                outputs.append(call(part))
            except BaseException as raised:
                # As in the loop: whatever it raises, SystemExit too.
                error = raised
            else:
                error = None
                break
        if error is not None and len(part) == 1:
            left_out.append(LeftOut(record_of(part), error, attempts_max))
        elif error is not None:
            parts += reversed(_parts(part))
    return outputs, left_out


def _parts(batch: Any) -> list[Any]:
    """The single records of a list, or the halves of a table."""
    if isinstance(batch, list):
        return [[record] for record in batch]
    half = len(batch) // 2
    return [batch.slice(0, half), batch.slice(half)]


def record_of(batch: Any) -> ConsumerRecord:
    """The only record of a batch."""
    if isinstance(batch, list):
        record: ConsumerRecord = batch[0]
        return record
    import pyarrow as pa

    def field(name: str, kind: Any) -> Any:
        return batch[name].cast(kind)[0].as_py()

    headers = batch["headers"][0].as_py() or ()
    return ConsumerRecord(
        topic=field("topic", pa.string()),
        partition=field("partition", pa.int32()),
        offset=field("offset", pa.int64()),
        timestamp_ms=field("timestamp", pa.int64()),
        key=field("key", pa.binary()),
        value=field("value", pa.binary()),
        headers=tuple((one["key"], one["value"]) for one in headers),
    )


class Narrowing:
    """The search for a record whose output cannot be sent, over several polls.

    Its memory is one record: should others be polled first, it waits for its turn.
    """

    def __init__(self, attempts_max: int, records_max: int) -> None:
        self.records_max = records_max
        """The most records that the next poll should return."""
        self._attempts_max = attempts_max
        self._records_max = records_max
        self._place: tuple[TopicPartition, int] | None = None
        self._attempt_count = 0
        self._found: LeftOut | None = None

    def narrow(self, batch: Any, error: BaseException, *, is_alone: bool) -> None:
        """Record that output could not be sent; ``is_alone``: it was of the one record in it."""
        self.records_max = max(1, min(self.records_max, len(batch)) // 2)
        if not is_alone:
            return
        record = record_of(batch)
        place = (record.topic_partition, record.offset)
        self._attempt_count = self._attempt_count + 1 if place == self._place else 1
        self._place = place
        if self._attempt_count >= self._attempts_max:
            self._found = LeftOut(record, error, self._attempt_count)

    def take_unsendable(self, batch: Any) -> LeftOut | None:
        """Return what is to be left out, if it is all that ``batch`` has."""
        found = self._found
        if found is None or len(batch) != 1:
            return None
        record = record_of(batch)
        is_it = (record.topic_partition, record.offset) == self._place
        return found if is_it else None

    def widen(self, batch: Any, assigned: Callable[[], Collection[TopicPartition]]) -> None:
        """Record that ``batch`` is committed: poll more again, unless what was found is to come."""
        if self._found is not None and self._place is not None:
            if self.take_unsendable(batch) is None and self._place[0] in assigned():
                return
            self._found = None
        self.records_max = min(self._records_max, 2 * self.records_max)
