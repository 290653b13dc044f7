"""The span of a poll, and how it continues the traces of its records."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry import trace
from spans import BROKEN, broken_tracing, id_of, kept_spans, traceparent

from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.consumer import AsyncConsumer
from oncelog.api.session.tracing import LINKS_MAX
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.codec import encode_records

TP = TopicPartition("t", 0)
TRACER = trace.get_tracer("program")


@pytest.fixture
def spans():
    with kept_spans() as spans:
        yield spans


def written(log, *headers):
    """Appends a record for each tuple of headers."""
    log.add(encode_records([(None, b"v", 1_000 + n, one) for n, one in enumerate(headers)]))


def polling(cluster, *, is_table=False, **settings):
    """One poll of all records, within the current span."""

    async def story():
        options = {"group_id": "g", "auto_offset_reset": "earliest", **settings}
        consumer = AsyncConsumer(
            cluster.router(), ConsumerSettings.from_options(options), cluster.random
        )
        await consumer.assign(TP)
        poll = consumer.poll_arrow if is_table else consumer.poll
        await poll(500)
        await asyncio.sleep(0.5)
        count = len(await poll(500))
        await consumer.close()
        return count

    return story()


@pytest.mark.parametrize("is_table", [False, True])
def test_a_poll_continues_the_trace_of_its_first_record_and_links_all(
    fake_cluster, run, spans, is_table
):
    (log,) = fake_cluster.create("t")
    with TRACER.start_as_current_span("sender") as sender:
        pass
    with TRACER.start_as_current_span("another") as another:
        pass
    carried = [("traceparent", traceparent(one)) for one in (sender, another)]
    other = ("h", b"\xff")
    written(
        log, (), (other,), (other, carried[0]), (carried[0],), (carried[1], ("tracestate", None))
    )
    run(polling(fake_cluster, is_table=is_table, client_id="reader"))
    poll = spans.one("poll t")
    assert poll.parent.span_id == id_of(sender)
    assert poll.get_span_context().trace_id == sender.get_span_context().trace_id
    assert [link.context.span_id for link in poll.links] == [id_of(sender), id_of(another)]
    assert poll.attributes["messaging.batch.message_count"] == 5
    assert poll.attributes["messaging.consumer.group.name"] == "g"
    assert poll.attributes["messaging.client.id"] == "reader"


def test_a_poll_in_a_span_belongs_to_it(fake_cluster, run, spans):
    (log,) = fake_cluster.create("t")
    with TRACER.start_as_current_span("sender") as sender:
        written(log, (("traceparent", traceparent(sender)),))
    with TRACER.start_as_current_span("reader") as reader:
        run(polling(fake_cluster))
    poll = spans.one("poll t")
    assert poll.parent.span_id == id_of(reader)
    assert [link.context.span_id for link in poll.links] == [id_of(sender)]


@pytest.mark.parametrize("is_table", [False, True])
def test_a_poll_links_so_many_contexts_and_no_more(fake_cluster, run, spans, is_table):
    (log,) = fake_cluster.create("t")
    parents = [b"00-%032x-%016x-01" % (number, number) for number in range(1, LINKS_MAX + 3)]
    written(log, *((("traceparent", one),) for one in parents), (("traceparent", b"damaged"),))
    run(polling(fake_cluster, is_table=is_table))
    assert len(spans.one("poll t").links) == LINKS_MAX


def test_records_without_a_context_begin_a_trace(fake_cluster, run, spans):
    (log,) = fake_cluster.create("t")
    written(log, (), (("traceparent", b"damaged"),))
    run(polling(fake_cluster))
    assert spans.one("poll t").parent is None


def test_turned_off_a_poll_makes_no_span(fake_cluster, run, spans):
    (log,) = fake_cluster.create("t")
    written(log, ())
    run(polling(fake_cluster, tracing=False))
    assert spans.names == []


@pytest.mark.parametrize("what", BROKEN)
def test_tracing_that_raises_loses_no_record_and_is_reported_once(fake_cluster, run, caplog, what):
    (log,) = fake_cluster.create("t")
    written(log, (("traceparent", b"00-%032x-%016x-01" % (1, 2)),), ())

    async def story():
        options = {"group_id": "g", "auto_offset_reset": "earliest", "max_poll_records": 1}
        consumer = AsyncConsumer(
            fake_cluster.router(), ConsumerSettings.from_options(options), fake_cluster.random
        )
        await consumer.assign(TP)
        taken = [await consumer.poll(500), await consumer.poll(500)]
        await consumer.close()
        return [record.offset for records in taken for record in records]

    with broken_tracing(what):
        assert run(story()) == [0, 1]
    assert sum("tracing has raised" in one.message for one in caplog.records) == 1
