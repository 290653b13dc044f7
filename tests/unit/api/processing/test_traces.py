"""The span of a job's transaction: the function runs in it, and it continues its input's trace."""

from __future__ import annotations

import sys

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode
from process_world import VALUES, ProcessWorld
from spans import BROKEN, broken_tracing, id_of, kept_spans, traceparent

from oncelog.api.processing import loop as process_loop
from oncelog.api.processing.loop import worker_settings
from oncelog.api.processing.messages import ProcessConfig, WorkerState
from oncelog.api.processing.queue_loop import queue_worker_settings

TRACER = trace.get_tracer("program")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(process_loop, "RECOVERY_WAIT_S", 0.0)


@pytest.fixture
def spans():
    with kept_spans() as spans:
        yield spans


def world_after(sender):
    world = ProcessWorld(VALUES)
    world.headers = (("traceparent", traceparent(sender)),)
    return world


@pytest.mark.parametrize("batch_format", ["arrow", "record"])
def test_a_transaction_is_a_span_with_the_function_and_links_to_its_input(spans, batch_format):
    with TRACER.start_as_current_span("sender") as sender:
        pass
    seen = []

    def function(given):
        seen.append(trace.get_current_span())
        return

    world_after(sender).run(function, batch_format=batch_format, commit_interval_ms=60_000)

    (whole,) = spans.named("process in")
    assert {id_of(one) for one in seen} == {id_of(whole)}
    assert whole.parent.span_id == id_of(sender)
    # A transaction of three polls.
    assert [link.context.span_id for link in whole.links] == [id_of(sender)] * 3
    assert whole.attributes["oncelog.outcome"] == "commit"
    assert whole.attributes["messaging.consumer.group.name"] == "g"


def test_a_transaction_that_is_aborted_says_so_and_the_next_has_another_span(spans):
    with TRACER.start_as_current_span("sender") as sender:
        pass
    world = world_after(sender)

    def fails_once(batch):
        if "abort" not in world.calls:
            raise ValueError
        return batch.select(["key", "value"])

    world.run(fails_once, commit_interval_ms=60_000)

    first, *others = spans.named("process in")
    assert first.status.status_code is StatusCode.ERROR
    assert first.attributes["oncelog.outcome"] == "abort"
    assert {one.attributes["oncelog.outcome"] for one in others} == {"commit"}


def test_turned_off_a_job_makes_no_span(spans):
    current = []
    ProcessWorld(VALUES).run(lambda batch: current.append(trace.get_current_span()), tracing=False)
    assert spans.names == []
    assert not any(one.get_span_context().is_valid for one in current)


@pytest.mark.parametrize("tracing", [None, True, False])
def test_the_clients_of_a_worker_have_the_setting_of_the_job(tracing):
    config = ProcessConfig(
        source="in", sink="out", group_id="g", worker_index=0, function=len, tracing=tracing
    )
    clients = [*worker_settings(config), *queue_worker_settings(config)]
    assert [one.tracing for one in clients] == [tracing] * 4


def test_a_worker_without_the_package_fails_with_the_reason_and_no_client_is_made(
    monkeypatch, caplog
):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    world = ProcessWorld(VALUES)
    progress = world.run(tracing=True)
    assert progress.state is WorkerState.FAILED
    assert "oncelog[traces]" in progress.reason
    assert world.calls == []
    assert "this is a bug" not in caplog.text


@pytest.mark.parametrize("what", BROKEN)
def test_tracing_that_raises_costs_a_job_no_record(what):
    world = ProcessWorld(VALUES)
    world.headers = (("traceparent", b"00-%032x-%016x-01" % (1, 2)),)
    seen = []
    with broken_tracing(what):
        world.run(lambda batch: seen.extend(batch["value"].to_pylist()), commit_interval_ms=60_000)
    assert seen == VALUES
    assert "abort" not in world.calls
