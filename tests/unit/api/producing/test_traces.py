"""Spans of producers, and the context that records carry."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deadlines import DEADLINE_S
from opentelemetry import trace
from opentelemetry.trace import StatusCode
from spans import BROKEN, Spans, broken_tracing, id_of, kept_spans, traceparent

from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.actors.protocol.messages.transaction import EndTxnRequest
from oncelog.api.batching.interceptors import ProducerInterceptor
from oncelog.api.config import ProducerSettings
from oncelog.api.producing.producer import Producer
from oncelog.api.session.event_loop import LoopThread
from oncelog.api.session.tracing import LINKS_MAX
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    InvalidRecordError,
    InvalidSettingError,
    MessageTooLargeError,
    TransactionAbortableError,
)

TRACER = trace.get_tracer("program")


@pytest.fixture
def spans() -> Iterator[Spans]:
    with kept_spans() as spans:
        yield spans


@pytest.fixture
def make(cluster: Any, loop_thread: LoopThread) -> Callable[..., Producer]:
    """Makes producers of threads."""

    def producer(transactional_id: str | None = None, **options: Any) -> Producer:
        settings = ProducerSettings(transactional_id=transactional_id, **options)
        return Producer(cluster.router(), loop_thread, settings, random=Random(5))

    return producer


def headers_of(leader: Any) -> list[tuple[tuple[str, bytes | None], ...]]:
    return [record.headers for _, _, record in leader.records]


# --- off --------------------------------------------------------------------------------------


OFF = """
import sys
import oncelog
from oncelog.api.session.tracing import tracing_for
assert tracing_for(None, "oncelog") is tracing_for(False, "oncelog") is None
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""


def test_without_a_provider_nothing_of_opentelemetry_is_imported() -> None:
    out = subprocess.run([sys.executable, "-c", OFF], check=True, capture_output=True, text=True)
    assert out.stdout == "[]\n"


def test_without_a_provider_a_send_is_the_compiled_one_and_adds_no_header(
    cluster: Any, make: Callable[..., Producer]
) -> None:
    (leader,) = cluster.create("t")
    with make() as producer:
        assert producer.send == producer._buffer.open_batches.send
        producer.send("t", b"v").result(DEADLINE_S)
        producer.send_arrow("t", pa.table({"value": [b"v"]})).result(DEADLINE_S)
    assert headers_of(leader) == [(), ()]


def test_what_is_turned_off_makes_no_span_though_there_is_a_provider(
    cluster: Any, make: Callable[..., Producer], spans: Spans
) -> None:
    (leader,) = cluster.create("t")
    with TRACER.start_as_current_span("program"), make("loader", tracing=False) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"v")
        assert producer.send == producer._buffer.open_batches.send
    assert headers_of(leader) == [()]
    assert spans.names == ["program"]


def test_traces_that_are_wanted_without_the_package_are_refused(
    make: Callable[..., Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(InvalidSettingError, match=r"tracing=True.*oncelog\[traces\]"):
        make(tracing=True)


# --- records ----------------------------------------------------------------------------------


def test_a_record_carries_the_span_it_was_sent_in_and_its_batch_continues_the_trace(
    cluster: Any, make: Callable[..., Producer], spans: Spans
) -> None:
    (leader,) = cluster.create("t")
    with make(client_id="loader", linger_ms=30_000) as producer:
        with TRACER.start_as_current_span("first") as first:
            producer.send("t", b"1")
            producer.send("t", b"2")
        with TRACER.start_as_current_span("second") as second:
            producer.send("t", b"3", headers=[("h", b"own"), ("traceparent", b"passed on")])
        producer.send("t", b"4")
    assert headers_of(leader) == [
        (("traceparent", traceparent(first)),),
        (("traceparent", traceparent(first)),),
        (("h", b"own"), ("traceparent", traceparent(second))),
        (),
    ]
    sent = spans.one("send t")
    assert sent.parent is not None
    assert sent.parent.span_id == id_of(first)
    assert [link.context.span_id for link in sent.links] == [id_of(first), id_of(second)]
    assert sent.attributes is not None
    assert sent.attributes["messaging.batch.message_count"] == 4
    assert sent.attributes["messaging.client.id"] == "loader"
    assert sent.end_time is not None
    assert sent.start_time is not None
    assert sent.start_time <= sent.end_time


def test_what_is_sent_outside_of_any_span_carries_nothing(
    cluster: Any, make: Callable[..., Producer], spans: Spans
) -> None:
    (leader,) = cluster.create("t")
    with make() as producer:
        producer.send("t", b"v").result(DEADLINE_S)
    assert headers_of(leader) == [()]
    assert spans.one("send t").parent is None


def test_a_batch_that_fails_says_so(
    cluster: Any, make: Callable[..., Producer], spans: Spans
) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD)
    with make() as producer, pytest.raises(InvalidRecordError):
        producer.send("t", b"v").result(DEADLINE_S)
    sent = spans.one("send t")
    assert sent.status.status_code is StatusCode.ERROR
    assert sent.attributes is not None
    assert sent.attributes["error.type"] == "INVALID_RECORD"


def test_the_header_counts_for_the_size_of_a_record(
    cluster: Any, make: Callable[..., Producer], spans: Spans
) -> None:
    cluster.create("t")
    value = b"." * 120
    with make(max_request_size=150) as producer:
        producer.send("t", value).result(DEADLINE_S)
        with TRACER.start_as_current_span("program"), pytest.raises(MessageTooLargeError):
            producer.send("t", value)


def test_wrong_headers_are_refused_as_ever(
    cluster: Any, make: Callable[..., Producer], spans: Spans
) -> None:
    cluster.create("t")
    with make() as producer, TRACER.start_as_current_span("program"):
        for wrong in (7, [("h",)], ["h"], [(1, b"v")]):
            with pytest.raises(TypeError):
                producer.send("t", b"v", headers=wrong)  # type: ignore[arg-type]


def test_a_span_has_so_many_links_and_no_more(
    cluster: Any, make: Callable[..., Producer], spans: Spans
) -> None:
    (leader,) = cluster.create("t")
    with make(linger_ms=30_000) as producer:
        for number in range(LINKS_MAX + 2):
            with TRACER.start_as_current_span(f"program {number}"):
                producer.send("t", b"v")
    assert len(set(headers_of(leader))) == LINKS_MAX + 2
    assert len(spans.one("send t").links) == LINKS_MAX


def test_interceptors_and_serializers_see_the_context_too(
    cluster: Any, make: Callable[..., Producer], spans: Spans
) -> None:
    seen: list[Any] = []

    class Looks(ProducerInterceptor):
        def on_send(self, record: Any) -> Any:
            seen.append(record.headers)
            return record

    (leader,) = cluster.create("t")
    with (
        make(interceptors=[Looks()], value_serializer="str") as producer,
        TRACER.start_as_current_span("program") as span,
    ):
        producer.send("t", "v").result(DEADLINE_S)
    carried = (("traceparent", traceparent(span)),)
    assert (seen, headers_of(leader)) == ([carried], [carried])
    assert [link.context.span_id for link in spans.one("send t").links] == [id_of(span)]


def test_an_asyncio_producer_does_the_same(cluster: Any, run: Any, spans: Spans) -> None:
    (leader,) = cluster.create("t")

    async def story() -> Any:
        async with cluster.producer() as producer:
            with TRACER.start_as_current_span("program") as span:
                for value in (b"1", b"2"):
                    await (await producer.send("t", value))
                table = pa.table({"value": [b"3"]})
                await (await producer.send_arrow("t", table))
            await (await producer.send("t", b"4"))
        return span

    span = run(story())
    assert headers_of(leader) == [(("traceparent", traceparent(span)),)] * 3 + [()]
    assert len(spans.named("send t")) == 4


# --- tables -----------------------------------------------------------------------------------


def test_each_row_of_a_table_carries_the_context_beside_its_own_headers(
    cluster: Any, make: Callable[..., Producer], spans: Spans
) -> None:
    (leader,) = cluster.create("t")
    own = [
        [{"key": "a", "value": b"1"}, {"key": "traceparent", "value": b"passed on"}],
        None,
        [{"key": "b", "value": None}],
        [],
    ]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    plain = pa.table({"value": [b"0"] * 3})
    mixed = pa.table({"value": [b"1"] * 4, "headers": pa.array(own, kind)})
    null = pa.table({"value": [b"2"], "headers": pa.nulls(1)})
    with make() as producer, TRACER.start_as_current_span("program") as span:
        for table in (plain, mixed, mixed.slice(2), null, plain.slice(0, 0)):
            producer.send_arrow("t", table).result(DEADLINE_S)
    carried = ("traceparent", traceparent(span))
    assert headers_of(leader) == [
        *[(carried,)] * 3,
        (("a", b"1"), carried),
        (carried,),
        (("b", None), carried),
        (carried,),
        (("b", None), carried),
        (carried,),
        (carried,),
    ]
    assert [one.parent.span_id for one in spans.named("send t") if one.parent] == [id_of(span)] * 4


# --- transactions -----------------------------------------------------------------------------


def test_a_transaction_is_a_span_that_its_records_carry(
    cluster: Any, make: Callable[..., Producer], spans: Spans
) -> None:
    (leader,) = cluster.create("t")
    with make("loader") as producer:
        producer.init_transactions()
        with TRACER.start_as_current_span("program") as program:
            producer.begin_transaction()
            producer.send("t", b"inside")
        producer.send("t", b"outside")
        producer.commit_transaction()
        with producer.transaction():
            pass
    whole, empty = spans.named("transaction")
    assert whole.parent is not None
    assert whole.parent.span_id == id_of(program)
    assert headers_of(leader) == [
        (("traceparent", traceparent(program)),),
        (("traceparent", traceparent(whole)),),
    ]
    commit, _ = spans.named("commit")
    assert commit.parent is not None
    assert commit.parent.span_id == id_of(whole)
    trace_ids = {one.get_span_context().trace_id for one in (whole, commit, spans.one("send t"))}
    assert trace_ids == {program.get_span_context().trace_id}
    assert empty.parent is None
    assert whole.attributes is not None
    assert whole.attributes["oncelog.outcome"] == "commit"


def test_a_commit_that_fails_and_the_abort_after_it_are_spans_of_the_transaction(
    cluster: Any, make: Callable[..., Producer], spans: Spans
) -> None:
    cluster.create("t")
    cluster.fault(ProduceRequest, ErrorCode.INVALID_RECORD)
    with make("loader") as producer:
        producer.init_transactions()
        with pytest.raises(TransactionAbortableError), producer.transaction():
            producer.send("t", b"v")
    assert spans.one("commit").status.status_code is StatusCode.ERROR
    assert spans.one("abort").status.status_code is StatusCode.UNSET
    whole = spans.one("transaction")
    assert whole.attributes is not None
    assert whole.attributes["oncelog.outcome"] == "abort"
    assert cluster.requests(EndTxnRequest)


def test_a_transaction_that_its_producer_leaves_open_ends_with_it(
    cluster: Any, run: Any, spans: Spans
) -> None:
    cluster.create("t")

    async def story() -> None:
        producer = cluster.producer("loader")
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer._core.leave()

    run(story())
    whole = spans.one("transaction")
    assert whole.attributes is not None
    assert whole.attributes["oncelog.outcome"] == "unfinished"


@pytest.mark.parametrize("what", BROKEN)
def test_tracing_that_raises_neither_fails_a_record_nor_a_commit(
    cluster: Any, make: Callable[..., Producer], what: str
) -> None:
    (leader,) = cluster.create("t")
    with broken_tracing(what), make("loader") as producer:
        producer.init_transactions()
        for value in (b"1", b"2"):
            with producer.transaction():
                producer.send("t", value)
        with pytest.raises(KeyError), producer.transaction():
            raise KeyError
    assert [record.value for _, _, record in leader.records] == [b"1", b"2"]
    assert [one.committed for one in cluster.requests(EndTxnRequest)] == [True, True, False]
