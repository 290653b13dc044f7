"""What the guides show, run on the shared cluster; only what never ends is cut short."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import oncelog

pytestmark = pytest.mark.ray

ROOT = Path(__file__).resolve().parents[2]
TOPICS = ("flights", "late", "audit", "copies", "tasks", "results")
POLLS_MAX = 60
COPY_POLLS = 12


class ExampleEnded(Exception):
    """Raised by what a block calls, to leave a loop that has no end."""


def blocks(page: str) -> list[str]:
    """The Python of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(block: str, **names: Any) -> dict[str, Any]:
    """Run a block with these names; what it has left."""
    # Of no module that can be imported: a function in it travels as it stands.
    names = {"__name__": "a_guide", "oncelog": oncelog, **names}
    exec(compile(block, "a guide", "exec"), names)
    return names


@pytest.fixture
def flights(cluster: Any) -> Iterator[Any]:
    """The cluster, with the topics that guides name and a flight in the first."""
    from fresh_topics import fresh_topics

    with fresh_topics(cluster, TOPICS, partitions=2):
        with cluster.producer() as producer:
            producer.send("flights", key=b"UA", value=b"EWR IAH 517").result()
        yield cluster


def values(cluster: Any, topic: str, count: int) -> list[bytes]:
    """The values of the first ``count`` committed records."""
    found: list[bytes] = []
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([oncelog.TopicPartition(topic, number) for number in range(2)])
        for _ in range(POLLS_MAX):
            found += [record.value for record in consumer.poll(timeout_ms=1_000)]
            if len(found) >= count:
                break
    return sorted(found)


def test_the_guide_to_producers_runs(flights: Any, capsys: pytest.CaptureFixture[str]) -> None:
    records, place, objects, models, table = blocks("guides/producer.md")
    run(records, cluster=flights)
    assert int(capsys.readouterr().out) >= 0
    by_carrier = run(place)["by_carrier"]
    with flights.producer(partitioner=by_carrier) as producer:
        assert producer.send("late", b"v", b"UA").result().partition == 0
    run(objects, cluster=flights)
    made = run(models, cluster=flights)
    made["producer"].send("audit", made["Flight"](carrier="UA")).result()
    made["consumer"].assign([oncelog.TopicPartition("audit", number) for number in range(2)])
    made["consumer"].seek_to_beginning()
    flown = [record for _ in range(5) for record in made["consumer"].poll(timeout_ms=1_000)]
    assert [record.value for record in flown] == [made["Flight"](carrier="UA")]
    made["producer"].close()
    made["consumer"].close()
    with flights.producer() as producer:
        assert run(table, cluster=flights, producer=producer)["batches"]
    rest = [b"JFK ATL 461", b'{"from":"EWR","to":"IAH"}']
    assert values(flights, "flights", 5) == [b"EWR IAH 517"] * 3 + rest


def test_the_guide_to_consumers_runs(flights: Any) -> None:
    read, slowly, nearby, stop, in_commit_order = blocks("guides/consumer.md")
    printed: list[tuple[Any, ...]] = []

    def show(*given: Any) -> None:
        printed.append(given)
        raise ExampleEnded

    with pytest.raises(ExampleEnded):
        run(read, cluster=flights, print=show)
    assert [(topic, value) for topic, _, _, value in printed] == [("flights", b"EWR IAH 517")]
    done: list[Any] = []
    with flights.consumer(group_id="slow") as consumer:
        run(slowly, consumer=consumer, record=printed[0], slow=done.append)
    assert done == printed
    run(nearby, cluster=flights)["consumer"].close()
    former = signal.getsignal(signal.SIGTERM)
    consumer = flights.consumer(group_id="stopped")
    consumer.subscribe(["flights"])
    try:
        run(
            stop,
            consumer=consumer,
            signal=signal,
            process=lambda _: signal.raise_signal(signal.SIGTERM),
        )
    finally:
        signal.signal(signal.SIGTERM, former)
    with pytest.raises(oncelog.ClientClosedError):
        consumer.poll()
    found: list[Any] = []
    with run(in_commit_order, cluster=flights)["consumer"] as consumer:
        consumer.assign([oncelog.TopicPartition("flights", number) for number in range(2)])
        consumer.seek_to_beginning()
        for _ in range(POLLS_MAX):
            found += consumer.poll(timeout_ms=1_000)
            if found:
                break
        consumer.commit()
    assert [record.value for record in found] == [b"EWR IAH 517"]


def test_the_guide_to_transactions_runs(flights: Any) -> None:
    write, single, copy, token, together = blocks("guides/transactions.md")
    run(write, cluster=flights)
    with flights.producer(transactional_id="single") as producer:
        run(single, producer=producer)
        with (
            flights.producer(transactional_id="single") as other,
            pytest.raises(oncelog.TransactionalIdInUseError),
        ):
            run(single, producer=other)
    with pytest.raises(oncelog.PolicyViolationError):  # it is off, as it says
        run(together, cluster=flights)
    assert values(flights, "audit", 1) == [b"one flight"]
    assert "    while True:\n" in copy
    # A few polls: the group has to be joined, and there are records for one of them.
    run(copy.replace("while True:", f"for _ in range({COPY_POLLS}):"), cluster=flights)
    assert values(flights, "copies", 2) == [b"EWR IAH 517"] * 2
    with flights.producer(transactional_id="files") as producer:
        assert run(token, producer=producer)["last"] is None
    with flights.producer(transactional_id="files") as producer:
        assert run(token, producer=producer)["last"] == b"file-0042"


def test_the_guide_to_queues_runs(flights: Any) -> None:
    accept, once, by_key = blocks("guides/queues.md")
    assert "    while True:\n" in accept
    done: list[bytes] = []

    def work(value: bytes) -> bytes:
        done.append(value)
        return value

    names = {"cluster": flights, "work": work}
    for block, count in ((accept, 1), (once, 2)):
        with flights.producer() as producer:
            producer.send("tasks", value=b"EWR").result()
        # A few takes: there is a record for one of them.
        block = block.replace("while True:", f"for _ in range({COPY_POLLS}):")
        with flights.queue("tasks", group_id="resize") as queue:
            run(block, queue=queue, **names)
            queue.flush()
            assert queue.backlog().total == 0
        assert len(done) == count
    assert values(flights, "results", 1) == [b"EWR"]
    run(by_key, **names)
    assert set(done[2:]) == {b"EWR"}


def test_the_guide_to_process_runs(flights: Any) -> None:
    from fresh_topics import fresh_topics

    job, by_length = blocks("guides/process.md")
    run(job, cluster=flights)
    assert values(flights, "late", 1) == [b"EWR IAH 517"]
    with fresh_topics(flights, ("trains", "long", "short"), partitions=2):
        run(by_length, cluster=flights)
        assert values(flights, "long", 1) == [b"EWR IAH 517"]
        flights.job("by-length").stop()


def test_the_guide_to_observing_runs(
    flights: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the exporter, which would need a collector."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from spans import id_of

    counted, exporting, arrival, landed = blocks("guides/observing.md")
    run(counted, cluster=flights)
    assert capsys.readouterr().out.startswith("1 records, ")
    kept = InMemorySpanExporter()
    otlp = SimpleNamespace(OTLPSpanExporter=lambda: kept)
    package = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, package, otlp)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", trace.Once())
    run(exporting)
    tracer = run(arrival, cluster=flights, trace=trace)["tracer"]
    with flights.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([oncelog.TopicPartition("flights", number) for number in range(2)])
        found: list[Any] = []
        for _ in range(POLLS_MAX):
            found += [record for record in consumer.poll(1_000) if record.headers]
            if found:
                break
    (record,) = found
    run(landed, tracer=tracer, record=record)
    provider: Any = trace.get_tracer_provider()
    provider.shutdown()
    spans = {span.name: span for span in kept.get_finished_spans()}
    assert spans["landed"].parent.span_id == id_of(spans["arrival"])
    assert spans["send flights"].parent.span_id == id_of(spans["arrival"])


def test_the_page_on_ray_data_runs(flights: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """On the cluster that runs, as its comment says; an example has written its squares before."""
    (squares,) = blocks("RAY_DATA.md")
    starts = 'oncelog.init(data_dir="oncelog-data")'
    assert starts in squares
    run(squares.replace(starts, "oncelog.connect()").replace('"squares"', '"more-squares"'))
    assert "1000" in capsys.readouterr().out.split()
