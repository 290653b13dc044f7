"""A producer's metrics."""

from __future__ import annotations

from dataclasses import dataclass

from oncelog.api.producing.core import ProducerCore


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerMetrics:
    """Totals since the producer was made, and two current values.

    Current: ``batches_in_flight``, and the unacknowledged ``buffered_bytes``, at most
    ``buffer_memory_bytes``. ``commit_ms`` and ``abort_ms`` sum the time from call to decision
    over all transactions. ``bytes_sent`` counts encoded batches, without retries.
    """

    records_sent: int
    records_acknowledged: int
    records_failed: int
    batches_sent: int
    batches_retried: int
    batches_failed: int
    batches_in_flight: int
    bytes_sent: int
    batch_size_bytes: int
    buffered_bytes: int
    buffer_memory_bytes: int
    transactions_begun: int
    transactions_committed: int
    transactions_aborted: int
    commit_ms: float
    abort_ms: float
    interceptor_failures: int

    @property
    def records_per_batch(self) -> float:
        """Mean number of records of a batch; 0 before the first."""
        return self.records_sent / self.batches_sent if self.batches_sent else 0.0

    @property
    def batch_fill(self) -> float:
        """Mean size of a sent batch as a fraction of ``batch_size``; tables may exceed 1."""
        if not self.batches_sent:
            return 0.0
        return self.bytes_sent / self.batches_sent / self.batch_size_bytes

    @property
    def buffer_use(self) -> float:
        """The used fraction of ``buffer_memory``."""
        return self.buffered_bytes / self.buffer_memory_bytes


def metrics_of(core: ProducerCore) -> ProducerMetrics:
    """The metrics of one producer; may be called from any thread."""
    sender, counters, transactions = core.sender, core.sender.counters, core.transactions
    return ProducerMetrics(
        records_sent=counters.records_sent,
        records_acknowledged=counters.records_acknowledged,
        records_failed=counters.records_failed,
        batches_sent=counters.batches_sent,
        batches_retried=counters.batches_retried,
        batches_failed=counters.batches_failed,
        batches_in_flight=sender.in_flight_count,
        bytes_sent=counters.bytes_sent,
        batch_size_bytes=sender.settings.batch_size,
        buffered_bytes=sender.buffered_bytes,
        buffer_memory_bytes=sender.settings.buffer_memory,
        transactions_begun=transactions.begun,
        transactions_committed=transactions.committed,
        transactions_aborted=transactions.aborted,
        commit_ms=transactions.commit_ms,
        abort_ms=transactions.abort_ms,
        interceptor_failures=sender.interceptors.failure_count,
    )
