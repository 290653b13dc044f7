"""What clients report: what was added since the last report, and gauges put together."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from oncelog.actors.process.metrics import (
    CONSUMER_POLL_GAP_RATIO,
    PRODUCER_ACK_DURATION_MS,
    PRODUCER_BUFFER_LIMIT_BYTES,
    PRODUCER_BUFFERED_BYTES,
    PRODUCER_BYTES,
)
from oncelog.actors.protocol.messages.transaction import Run
from oncelog.actors.rpc.call_meter import NO_REPORTS, CallReports
from oncelog.api.config import ConsumerSettings, ProducerSettings, QueueSettings
from oncelog.api.consuming.consumer import Consumer
from oncelog.api.producing.member import Membership, TransactionMember
from oncelog.api.producing.producer import Producer
from oncelog.api.queueing.queue import Queue
from oncelog.api.session.client_metrics import (
    CLIENT_NAMES_MAX,
    OTHER_CLIENTS,
    ClientReport,
    Durations,
    ProcessClients,
)
from oncelog.api.session.event_loop import LoopThread

INTERVAL_MS = 1_000
TAGS = {"client": "loader"}


class Sink:
    """Adds up counters and keeps the last value of gauges."""

    def __init__(self):
        self.added = Counter()
        self.gauges = {}
        self.calls = 0

    def set(self, metric, value, tags):
        self.calls += 1
        self.gauges[metric.name] = value

    def add(self, metric, amount, tags):
        assert amount >= 0
        assert tuple(tags) == metric.tags
        self.calls += 1
        self.added[metric.name, tags.get("le")] += amount


def test_only_what_was_added_is_reported_at_an_interval_and_at_the_end(run):
    sink, totals, acks = Sink(), [5], Durations()
    acks.add(0, 0.003)

    def read():
        yield PRODUCER_BYTES, totals[0], TAGS
        yield PRODUCER_ACK_DURATION_MS, acks, TAGS

    async def story():
        report = ClientReport(CallReports(sink, INTERVAL_MS), read, ProcessClients())
        report.begin()
        report.begin()
        assert not sink.calls
        await asyncio.sleep(2.5)
        assert sink.added["producer_bytes", None] == 5
        totals[0] = 12
        acks.add(0, 40)
        report.stop()
        report.stop()
        calls = sink.calls
        await asyncio.sleep(5)
        assert sink.calls == calls

    run(story())
    assert sink.added["producer_bytes", None] == 12
    assert sink.added["producer_ack_duration_ms_count", None] == 2
    assert sink.added["producer_ack_duration_ms_sum", None] == pytest.approx(40_003)
    assert sink.added["producer_ack_duration_ms_bucket", "5"] == 1
    assert sink.added["producer_ack_duration_ms_bucket", "+Inf"] == 2


def test_gauges_of_clients_of_one_name_are_put_together(run):
    sink, process = Sink(), ProcessClients()
    held = {"a": 100, "b": 20}

    def reader(name, gap_ms):
        def read():
            yield PRODUCER_BUFFERED_BYTES, held[name], TAGS
            yield PRODUCER_BUFFER_LIMIT_BYTES, 1_000, TAGS
            yield CONSUMER_POLL_GAP_RATIO, gap_ms, {"client": "loader", "group": "g"}

        return read

    async def story():
        reports = CallReports(sink, INTERVAL_MS)
        first = ClientReport(reports, reader("a", 7), process)
        second = ClientReport(reports, reader("b", 3), process)
        first.begin()
        second.begin()
        await asyncio.sleep(1.5)
        assert sink.gauges == {
            "producer_buffered_bytes": 120,
            "producer_buffer_limit_bytes": 2_000,
            "consumer_poll_gap_ratio": 7,
        }
        first.stop()
        assert sink.gauges == {
            "producer_buffered_bytes": 20,
            "producer_buffer_limit_bytes": 1_000,
            "consumer_poll_gap_ratio": 3,
        }
        held["b"] = 0
        second.stop()

    run(story())
    assert set(sink.gauges.values()) == {0}
    assert process._gauges == {}


class Heard(Sink):
    """Also knows which clients have reported."""

    def __init__(self):
        super().__init__()
        self.clients = set()

    def add(self, metric, amount, tags):
        super().add(metric, amount, tags)
        self.clients.add(tags.get("client") or tags["group"])


def clients_of(router, loop_thread):
    """One of each kind that belongs to a cluster's loop, by the name that it reports under."""
    chance = random.Random(1)
    membership = Membership(transactional_id="t", run=Run(number=1, id="one"))

    def sending(name):
        return ProducerSettings(client_id=name)

    return {
        "producer": Producer(router, loop_thread, sending("producer"), random=chance),
        "member": TransactionMember(
            router, loop_thread, sending("member"), membership, random=chance
        ),
        "consumer": Consumer(router, loop_thread, ConsumerSettings(client_id="consumer"), chance),
        "queue": Queue(router, loop_thread, QueueSettings(group_id="queue"), "t", chance),
    }


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_when_a_cluster_is_closed_its_clients_report_for_the_last_time(fake_cluster):
    heard, loop_thread = Heard(), LoopThread()
    router = fake_cluster.router()
    router.reports = CallReports(heard, 600_000)
    clients = clients_of(router, loop_thread)

    async def begin():
        for client in clients.values():
            getattr(client, "_client", client)._core._report.begin()

    loop_thread.run(begin())
    assert not heard.calls
    loop_thread.close()
    assert heard.clients == set(clients)


def test_a_gauge_that_rests_at_zero_is_not_set_until_it_has_a_value(run):
    sink = Sink()
    reports = CallReports(sink, INTERVAL_MS)
    value = [0]
    report = ClientReport(
        reports, lambda: [(PRODUCER_BUFFERED_BYTES, value[0], TAGS)], ProcessClients()
    )
    report.report()
    assert sink.gauges == {}
    value[0] = 3
    report.report()
    value[0] = 0
    report.report()
    assert (sink.gauges, sink.calls) == ({"producer_buffered_bytes": 0}, 2)


def test_without_metrics_nothing_is_read_and_no_timer_runs(run):
    def read():
        raise AssertionError

    async def story():
        report = ClientReport(NO_REPORTS, read)
        report.begin()
        report.report_if_due(0.0)
        report.report_if_due(1e9)
        await asyncio.sleep(100)
        report.stop()

    run(story())
    assert NO_REPORTS.interval_ms == 0


def test_a_thread_reports_once_an_interval():
    sink = Sink()
    report = ClientReport(CallReports(sink, INTERVAL_MS), lambda: [(PRODUCER_BYTES, 1, TAGS)])
    for now_s in (10.0, 10.5, 11.0, 11.9, 12.0):
        report.report_if_due(now_s)
    assert sink.calls == 2


def test_clients_beyond_the_names_of_a_process_share_one():
    process = ProcessClients()
    names = [process.name_of(f"client-{number}") for number in range(CLIENT_NAMES_MAX + 5)]
    assert len(set(names)) == CLIENT_NAMES_MAX + 1
    assert set(names[CLIENT_NAMES_MAX:]) == {OTHER_CLIENTS}
    assert process.name_of("client-0") == "client-0"
    assert process.name_of(None) == OTHER_CLIENTS
    process.forget()
    assert process.name_of(None) == "oncelog"


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_quantile_is_within_the_bucket_of_the_exact_one(share):
    chance = random.Random(3)
    durations = Durations()
    assert durations.quantile_ms(share) == 0
    taken = sorted(chance.expovariate(1 / 0.02) for _ in range(1_000))
    for took_s in taken:
        durations.add(1.0, 1.0 + took_s)
    exact_ms = 1_000 * taken[int(share * 1_000) - 1]
    assert exact_ms / 2.5 < durations.quantile_ms(share) < 2.5 * exact_ms
    assert durations.quantile_ms(1.0) == pytest.approx(1_000 * durations.max_s)
