"""Interceptors see every step and harm none; metrics count what was done."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any

import pytest

from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.api.batching import interceptors
from oncelog.api.batching.interceptors import ProducerInterceptor, ProducerRecord
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.metrics import METRICS
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    InvalidRecordError,
    InvalidSettingError,
    MessageTooLargeError,
    OncelogError,
)


class Recorder(ProducerInterceptor):
    """Notes every call."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.seen.append(("send", record.value))
        return dataclasses.replace(record, value=record.value + b"!", headers=[("by", b"us")])

    def on_acknowledgement(self, metadata: Any, error: BaseException | None) -> None:
        outcome = getattr(error, "code", error and type(error))
        self.seen.append(("acknowledged", metadata and metadata.offset, outcome))

    def on_transaction_begin(self, transactional_id: str) -> None:
        self.seen.append(("begin", transactional_id))

    def on_transaction_commit(self, transactional_id: str) -> None:
        self.seen.append(("commit", transactional_id))

    def on_transaction_abort(self, transactional_id: str) -> None:
        self.seen.append(("abort", transactional_id))


class Broken(Recorder):
    """Fails in every hook."""

    def on_send(self, record: ProducerRecord) -> Any:
        raise ValueError("on_send is broken")

    def on_acknowledgement(self, metadata: Any, error: BaseException | None) -> None:
        raise ValueError("on_acknowledgement is broken")

    def on_transaction_begin(self, transactional_id: str) -> None:
        raise ValueError("on_transaction_begin is broken")

    def on_transaction_commit(self, transactional_id: str) -> None:
        raise ValueError("on_transaction_commit is broken")

    def on_transaction_abort(self, transactional_id: str) -> None:
        raise ValueError("on_transaction_abort is broken")


def test_interceptors_see_records_outcomes_and_transactions_in_order(
    cluster: Any, run: Any
) -> None:
    (leader,) = cluster.create("t")
    recorder = Recorder()

    async def story() -> None:
        async with cluster.producer("loader", interceptors=[recorder]) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send("t", b"a")
            await producer.commit_transaction()
            await producer.begin_transaction()
            await producer.abort_transaction()

    run(story())
    assert recorder.seen == [
        ("begin", "loader"),
        ("send", b"a"),
        ("acknowledged", 0, None),
        ("commit", "loader"),
        ("begin", "loader"),
        ("abort", "loader"),
    ]
    assert leader.committed_values() == [b"a!"]
    assert leader.records[0][2].headers == (("by", b"us"),)


def test_a_failed_commit_is_no_commit_to_an_interceptor(cluster: Any, run: Any) -> None:
    cluster.create("t")
    recorder = Recorder()
    cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD)

    async def story() -> None:
        async with cluster.producer("loader", interceptors=[recorder]) as producer:
            await producer.init_transactions()
            with pytest.raises(OncelogError):
                async with producer.transaction():
                    await producer.send("t", b"a")

    run(story())
    assert [entry[0] for entry in recorder.seen] == ["begin", "send", "acknowledged", "abort"]
    assert recorder.seen[2][1:] == (None, ErrorCode.INVALID_RECORD)


def test_a_record_refused_at_once_has_its_outcome_too(cluster: Any, run: Any) -> None:
    cluster.create("t")
    recorder = Recorder()

    async def story() -> None:
        options = {"interceptors": [recorder], "max_request_size": 200}
        async with cluster.producer(**options) as producer:
            with pytest.raises(MessageTooLargeError):
                await producer.send("t", b"." * 300)

    run(story())
    assert recorder.seen[1:] == [("acknowledged", None, ErrorCode.MESSAGE_TOO_LARGE)]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [({"key": "text"}, TypeError), ({"timestamp_ms": 2**63}, ValueError)],
)
def test_a_record_that_cannot_be_one_has_its_outcome_too(
    cluster: Any, run: Any, wrong: dict[str, Any], kind: type[Exception]
) -> None:
    cluster.create("t")
    recorder = Recorder()

    async def story() -> None:
        async with cluster.producer(interceptors=[recorder]) as producer:
            with pytest.raises(kind):
                await producer.send("t", b"v", **wrong)

    run(story())
    assert recorder.seen == [("send", b"v"), ("acknowledged", None, kind)]


def test_a_send_that_was_cancelled_has_its_outcome_too(cluster: Any, run: Any) -> None:
    recorder = Recorder()

    async def story() -> None:
        async with cluster.producer(interceptors=[recorder]) as producer:
            sending = asyncio.create_task(producer.send("missing", b"v"))
            await asyncio.sleep(0.1)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending

    run(story())
    assert recorder.seen == [("send", b"v"), ("acknowledged", None, asyncio.CancelledError)]


def test_a_broken_interceptor_harms_nobody_and_is_reported_once(
    cluster: Any, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (leader,) = cluster.create("t")
    recorder = Recorder()
    caplog.set_level(logging.ERROR, interceptors.__name__)

    async def story() -> Any:
        async with cluster.producer("loader", interceptors=[Broken(), recorder]) as producer:
            await producer.init_transactions()
            for _ in range(2):
                async with producer.transaction():
                    await producer.send("t", b"a")
            await producer.begin_transaction()
            await producer.abort_transaction()
            return producer.metrics()

    metrics = run(story())
    assert leader.committed_values() == [b"a!", b"a!"]
    assert [entry[0] for entry in recorder.seen].count("commit") == 2
    assert metrics["interceptor_failures"] == 2 + 2 + 3 + 2 + 1
    hooks = sorted(record.args[1] for record in caplog.records)  # type: ignore[index]
    assert hooks == [
        "on_acknowledgement",
        "on_send",
        "on_transaction_abort",
        "on_transaction_begin",
        "on_transaction_commit",
    ]


def test_only_interceptors_are_taken_for_interceptors() -> None:
    with pytest.raises(InvalidSettingError, match=r"interceptors=.*ProducerInterceptor"):
        ProducerSettings(interceptors=(print,))  # type: ignore[arg-type]


def test_metrics_count_what_was_done(cluster: Any, run: Any) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.NOT_ENOUGH_REPLICAS, None, ErrorCode.INVALID_RECORD)

    async def story() -> Any:
        async with cluster.producer("loader", batch_size=1_000) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                for _ in range(10):
                    await producer.send("t", b"." * 29)
                assert producer.metrics()["buffered_bytes"] == 500
                assert producer.metrics()["buffer_limit_bytes"] == 33_554_432
            await producer.begin_transaction()
            bad = await producer.send("t", b"bad")
            with pytest.raises(InvalidRecordError):
                await bad
            await producer.abort_transaction()
            return producer.metrics()

    metrics = run(story())
    assert {name: metrics[name] for name in METRICS if name.endswith("_total")} == {
        "record_send_total": 11,
        "record_acknowledged_total": 10,
        "record_error_total": 1,
        "byte_total": 2 * metrics["batch_size_avg"],
        "batch_total": 2,
        "failed_batch_total": 1,
        "request_total": 3,
        "failed_request_total": 2,
        "retry_total": 1,
        "txn_begin_total": 2,
        "txn_commit_total": 1,
        "txn_abort_total": 1,
    }
    assert (metrics["batches_in_flight"], metrics["buffered_bytes"]) == (0, 0)
    assert metrics["records_per_batch_avg"] == 5.5
    assert 200 < metrics["batch_size_avg"] < 300
    # One batch was acknowledged, after a pause and a second call.
    assert metrics["ack_latency_max"] == metrics["ack_latency_avg"] >= 80
    assert metrics["txn_commit_latency_p50"] <= metrics["txn_commit_latency_max"]
    assert metrics["txn_commit_latency_avg"] >= 80 > metrics["txn_abort_latency_avg"] > 0


def test_a_new_producer_has_every_metric_of_the_table(cluster: Any, run: Any) -> None:
    async def story() -> Any:
        async with cluster.producer() as producer:
            return producer.metrics()

    metrics = run(story())
    assert list(metrics) == list(METRICS)
    limit = metrics.pop("buffer_limit_bytes")
    assert (limit, set(metrics.values())) == (33_554_432, {0})


def test_callbacks_of_a_partition_run_in_its_order(cluster: Any, run: Any) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, "lose reply", None, "lose reply", 0.3)
    told: list[int] = []

    async def story() -> None:
        async with cluster.producer(batch_size=100) as producer:
            for number in range(40):
                future = await producer.send("t", b"." * 30, partition=0)
                future.add_done_callback(lambda done, number=number: told.append(number))
            await producer.flush()

    run(story())
    assert told == list(range(40))
