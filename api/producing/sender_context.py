"""What the partition senders of one producer share, and what they need of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from oncelog.actors.process.clock import SystemClock
from oncelog.api.batching.accumulator import Accumulator, PendingBatch
from oncelog.api.batching.open_batches import OpenBatches, fastest
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.delivery_deadline import expired
from oncelog.api.producing.untold_failures import UntoldFailures
from oncelog.api.session.routing import Router
from oncelog.api.transacting.fencing import Fencing
from oncelog.api.transacting.plain_identity import PlainIdentities
from oncelog.storage.exceptions import InvalidRecordError, OncelogError
from oncelog.storage.records.compression import Codec


@dataclass(slots=True)
class SendCounters:
    """Totals of one producer."""

    records_acknowledged: int = 0
    records_failed: int = 0
    records_sent: int = 0
    batches_sent: int = 0
    batches_failed: int = 0
    batches_retried: int = 0
    bytes_sent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderContext:
    """What all partition senders of one producer share."""

    router: Router
    settings: ProducerSettings
    random: Random
    accumulator: Accumulator
    codec: Codec
    failures: UntoldFailures
    counters: SendCounters = field(default_factory=SendCounters)

    def fail(self, batch: PendingBatch, error: OncelogError, refused: tuple[int, ...] = ()) -> None:
        """Fail a batch; if its leader said for which records, the others are told of those."""
        self.counters.batches_failed += 1
        self.counters.records_failed += batch.rows.record_count
        neighbours = None
        if refused:
            neighbours = InvalidRecordError(
                "nothing is wrong with this record, but it was refused with its batch, which is "
                f"taken or refused as a whole: {error}"
            )
        batch.delivery.finish(error=error, refused=refused, neighbours=neighbours)
        self.failures.note(batch.delivery, batch.rows.record_count)

    def expire(self, begun_before_s: float) -> Iterator[OncelogError]:
        """Fail what no sender has taken and was begun no later; yields the errors."""
        for batch in self.accumulator.take_old(begun_before_s):
            error = expired(batch, self.settings.delivery_timeout_ms, "it was never sent")
            self.fail(batch, error)
            yield error

    def drop(self, error: OncelogError) -> None:
        """Fail every batch that no sender has taken."""
        for batch in self.accumulator.drop():
            self.fail(batch, error)


class SenderOwner(Protocol):
    """What a partition sender needs of its producer."""

    fencing: Fencing
    """Tells why a leader refuses the epoch of a transaction."""
    identities: PlainIdentities
    """Producer ids and their tickets (idempotent only)."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work``; if a bug makes it fail, the producer fails and no future hangs."""
        ...

    def give_up(self, task: asyncio.Task[None]) -> None:
        """Cancel what ``spawn`` began, unless it is what runs."""
        ...

    def batch_failed(self, error: OncelogError) -> None:
        """A batch failed for good: spoil the transaction, if there is one."""
        ...


def open_batches_for(settings: ProducerSettings, router: Router) -> OpenBatches:
    """A producer's open batches, compiled if possible."""
    return fastest()(
        known_topics=router.known_topics,
        now_ms=router.clock.now_ms,
        is_system_time=isinstance(router.clock, SystemClock),
        batch_bytes=settings.batch_size,
        record_bytes_max=settings.max_request_size,
        buffer_bytes_max=settings.buffer_memory,
    )
