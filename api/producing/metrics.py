"""What a producer counts: for ``metrics()``, and for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from oncelog.actors.process.metrics import (
    PRODUCER_ACK_DURATION_MS,
    PRODUCER_BATCHES,
    PRODUCER_BATCHES_IN_FLIGHT,
    PRODUCER_BUFFER_LIMIT_BYTES,
    PRODUCER_BUFFERED_BYTES,
    PRODUCER_BYTES,
    PRODUCER_COMMIT_DURATION_MS,
    PRODUCER_ERRORS,
    PRODUCER_RECORDS,
    PRODUCER_RETRIES,
    PRODUCER_TRANSACTIONS,
)
from oncelog.api.session.client_metrics import Durations, Reading
from oncelog.storage.errors import ErrorCode

METRICS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "record_send_total": "Records in batches that were sent, retries not counted.",
        "record_acknowledged_total": "Records that are acknowledged.",
        "record_error_total": "Records that failed.",
        "byte_total": "Bytes of encoded batches that were sent, retries not counted.",
        "batch_total": "Batches that were sent, retries not counted.",
        "failed_batch_total": "Batches that failed.",
        "records_per_batch_avg": "Mean number of records of a sent batch.",
        "batch_size_avg": "Mean bytes of a sent batch; those of tables may exceed `batch_size`.",
        "request_total": "Calls with a batch, retries included.",
        "failed_request_total": "Those that ended with an error; most are retried.",
        "retry_total": "Times that a batch was sent again.",
        "batches_in_flight": "Batches on their way to their leaders.",
        "buffered_bytes": "Bytes of records that are not acknowledged yet.",
        "buffer_limit_bytes": "The most of these: `buffer_memory`.",
        "ack_latency_avg": "Mean time in ms from a batch's first record to its acknowledgement.",
        "ack_latency_p50": "The median of these times, estimated.",
        "ack_latency_p99": "What 99 % of them did not exceed, estimated.",
        "ack_latency_max": "The longest of them.",
        "txn_begin_total": "Transactions that were begun.",
        "txn_commit_total": "Transactions that were committed.",
        "txn_abort_total": "Transactions that were aborted.",
        "txn_commit_latency_avg": "Mean time of a commit in ms, from the call to the decision.",
        "txn_commit_latency_p50": "The median of these times, estimated.",
        "txn_commit_latency_p99": "What 99 % of them did not exceed, estimated.",
        "txn_commit_latency_max": "The longest of them.",
        "txn_abort_latency_avg": "Mean time of an abort in ms, from the call to the decision.",
        "interceptor_failures": "Exceptions of interceptors.",
    }
)
"""Each name in ``Producer.metrics()`` with its meaning: Kafka's names where it has one."""


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
    requests: int = 0
    errors: dict[ErrorCode, int] = field(default_factory=dict)
    """Calls that ended with an error; bounded by the codes."""
    acks: Durations = field(default_factory=Durations)
    """From the first record of a batch to its acknowledgement."""

    def record_reply(self, error: ErrorCode) -> None:
        """A call with a batch has ended."""
        self.requests += 1
        if error not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self.errors[error] = self.errors.get(error, 0) + 1


@dataclass(slots=True)
class TransactionCounters:
    """Transactions of one producer; times are from the call to the decision."""

    begun: int = 0
    commits: Durations = field(default_factory=Durations)
    aborts: Durations = field(default_factory=Durations)


def as_metrics(
    sent: SendCounters,
    transactions: TransactionCounters,
    *,
    batches_in_flight: int,
    buffered_bytes: int,
    buffer_limit_bytes: int,
    interceptor_failures: int,
) -> dict[str, float]:
    """Every metric of ``METRICS``; may be called from any thread."""
    batches = sent.batches_sent
    return {
        "record_send_total": sent.records_sent,
        "record_acknowledged_total": sent.records_acknowledged,
        "record_error_total": sent.records_failed,
        "byte_total": sent.bytes_sent,
        "batch_total": batches,
        "failed_batch_total": sent.batches_failed,
        "records_per_batch_avg": sent.records_sent / batches if batches else 0.0,
        "batch_size_avg": sent.bytes_sent / batches if batches else 0.0,
        "request_total": sent.requests,
        "failed_request_total": sum(tuple(sent.errors.values())),
        "retry_total": sent.batches_retried,
        "batches_in_flight": batches_in_flight,
        "buffered_bytes": buffered_bytes,
        "buffer_limit_bytes": buffer_limit_bytes,
        "ack_latency_avg": sent.acks.mean_ms,
        "ack_latency_p50": sent.acks.quantile_ms(0.5),
        "ack_latency_p99": sent.acks.quantile_ms(0.99),
        "ack_latency_max": 1_000 * sent.acks.max_s,
        "txn_begin_total": transactions.begun,
        "txn_commit_total": transactions.commits.count,
        "txn_abort_total": transactions.aborts.count,
        "txn_commit_latency_avg": transactions.commits.mean_ms,
        "txn_commit_latency_p50": transactions.commits.quantile_ms(0.5),
        "txn_commit_latency_p99": transactions.commits.quantile_ms(0.99),
        "txn_commit_latency_max": 1_000 * transactions.commits.max_s,
        "txn_abort_latency_avg": transactions.aborts.mean_ms,
        "interceptor_failures": interceptor_failures,
    }


def readings(
    sent: SendCounters,
    transactions: TransactionCounters,
    *,
    client: str,
    batches_in_flight: int,
    buffered_bytes: int,
    buffer_limit_bytes: int,
) -> Iterator[Reading]:
    """What Prometheus gets of a producer, from its first record to its close."""
    tags = {"client": client}
    yield PRODUCER_RECORDS, sent.records_acknowledged, {**tags, "outcome": "acknowledged"}
    yield PRODUCER_RECORDS, sent.records_failed, {**tags, "outcome": "failed"}
    yield PRODUCER_BATCHES, sent.batches_sent, tags
    yield PRODUCER_BYTES, sent.bytes_sent, tags
    yield PRODUCER_RETRIES, sent.batches_retried, tags
    for error, count in sent.errors.items():
        yield PRODUCER_ERRORS, count, {**tags, "error": error.name}
    yield PRODUCER_ACK_DURATION_MS, sent.acks, tags
    yield PRODUCER_BUFFERED_BYTES, buffered_bytes, tags
    yield PRODUCER_BUFFER_LIMIT_BYTES, buffer_limit_bytes, tags
    yield PRODUCER_BATCHES_IN_FLIGHT, batches_in_flight, tags
    yield PRODUCER_TRANSACTIONS, transactions.commits.count, {**tags, "outcome": "committed"}
    yield PRODUCER_TRANSACTIONS, transactions.aborts.count, {**tags, "outcome": "aborted"}
    yield PRODUCER_COMMIT_DURATION_MS, transactions.commits, tags
