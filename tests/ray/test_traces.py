"""One trace from a program that sends, through the commit and a job, to a program that polls."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from deadlines import DEADLINE_S
from opentelemetry import trace
from spans import id_of, kept_spans, traceparent

from oncelog.storage.model import TopicPartition

pytestmark = pytest.mark.ray

POLLING = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import oncelog

kept = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(kept))
address, topic = sys.argv[1:]
with (
    oncelog.connect(address) as cluster,
    cluster.consumer(auto_offset_reset="earliest") as consumer,
):
    consumer.assign(oncelog.TopicPartition(topic, 0))
    while not consumer.poll(1_000):
        pass
for span in kept.get_finished_spans():
    print(span.name, f"{span.context.trace_id:032x}")
"""


def polled_elsewhere(cluster: Any, topic: str) -> str:
    """The spans of a program that polls until it gets a record."""
    done = subprocess.run(
        [sys.executable, "-c", POLLING, cluster.address, topic],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_one_program_commits_and_a_job_copies_another_polls_in_the_same_trace(
    cluster: Any,
) -> None:
    from fresh_topics import fresh_topics

    with (
        fresh_topics(cluster, ("traced", "copied"), partitions=1),
        kept_spans() as spans,
    ):
        with (
            trace.get_tracer("program").start_as_current_span("program") as program,
            cluster.producer(transactional_id="traced") as producer,
        ):
            producer.init_transactions()
            with producer.transaction():
                producer.send("traced", b"EWR IAH 517", partition=0)
        trace_id = f"{program.get_span_context().trace_id:032x}"
        names = ["send traced", "commit", "transaction"]
        assert spans.names == [*names, "program"]
        assert {one.get_span_context().trace_id for one in map(spans.one, names)} == {
            program.get_span_context().trace_id
        }
        assert polled_elsewhere(cluster, "traced") == f"poll traced {trace_id}\n"
        job = cluster.process(
            source="traced",
            sink="copied",
            function=lambda table: table,
            group_id="traced-copies",
            workers=1,
            tracing=True,
            ray_remote_args={
                "runtime_env": {"env_vars": {"OTEL_PYTHON_TRACER_PROVIDER": "sdk_tracer_provider"}}
            },
        )
        try:
            with cluster.consumer(auto_offset_reset="earliest", tracing=False) as consumer:
                consumer.assign(TopicPartition("copied", 0))
                copies: list[Any] = []
                while not copies:
                    copies = consumer.poll(1_000)
        finally:
            job.stop()
    (copy,) = copies
    ((name, value),) = copy.headers
    # Its own span, in the trace of its input.
    assert (name, value[:35]) == ("traceparent", traceparent(program)[:35])
    assert int(value[36:52], 16) != id_of(program)
