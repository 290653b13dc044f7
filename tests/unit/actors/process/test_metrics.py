"""The metrics that operators watch: what they say, and that every actor sets its own."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deadlines import DEADLINE_S, until
from replicas import FLIGHTS, leading, replica_of
from server_world import KEY, ServerWorld, stop

from oncelog.actors.config import ReplicaConfig
from oncelog.actors.launch.assembly import PartitionShell
from oncelog.actors.launch.server_metrics import (
    NO_DISK,
    CertificateMetrics,
    DiskMetrics,
    ReplicaMetrics,
)
from oncelog.actors.process.clock import loop_ms, monotonic_s
from oncelog.actors.process.metrics import (
    METRICS,
    OPEN_TRANSACTION_COUNT,
    REPLICA_OFFLINE,
    Kind,
    TransactionAges,
)
from oncelog.actors.protocol.messages.cluster import ShutdownRequest
from oncelog.actors.protocol.messages.partition import (
    DescribeReplicaRequest,
    FetchRequest,
    ProduceRequest,
)
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    InitProducerIdRequest,
)
from oncelog.actors.protocol.tickets import issue_ticket
from oncelog.actors.transactions.completions import EndDurations, EndStep
from oncelog.storage.disk.file_system import DiskSpace, disk_space
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import TRANSACTION_STATE_TOPIC, IsolationLevel, TopicPartition
from oncelog.storage.records.codec import encode_records

LATE_MS = 900_000 + 300_000


def request(world: ServerWorld, *, is_transactional: bool) -> ProduceRequest:
    batch = encode_records(
        [(None, b"old", 1, ()), (None, b"older", 0, ())],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=is_transactional,
    )
    ticket = issue_ticket(
        cluster_key=KEY,
        producer_id=7,
        producer_epoch=0,
        transactional_id="t",
        topic_id="a" * 32,
        partition=0,
        issued_ms=world.now_ms(),
        transaction_timeout_ms=60_000,
    )
    return ProduceRequest(
        topic_partition=FLIGHTS, batch=bytes(batch), transactional_id="t", ticket=ticket
    )


# --- ages -------------------------------------------------------------------------------------


def test_age_counts_from_when_a_transaction_was_first_seen() -> None:
    ages = TransactionAges(late_after_ms=100)
    ages.observe({5: 1, 9: 2}, 1_000)
    assert (ages.oldest_ms, ages.late_count) == (0, 0)
    ages.observe({5: 1, 9: 2, 30: 3}, 1_100)
    assert (ages.oldest_ms, ages.late_count) == (100, 0)
    ages.observe({9: 2, 30: 3}, 1_101)
    assert (ages.oldest_ms, ages.late_count) == (101, 1)
    ages.observe({30: 3}, 1_102)
    assert (ages.oldest_ms, ages.late_count) == (2, 0)
    ages.observe({}, 9_999)
    assert (ages.oldest_ms, ages.late_count) == (0, 0)


def test_a_transaction_after_another_of_the_same_producer_is_young() -> None:
    ages = TransactionAges(late_after_ms=100)
    ages.observe({5: 1}, 0)
    ages.observe({8: 1}, 500)
    assert (ages.oldest_ms, ages.late_count) == (0, 0)


def test_a_clock_that_steps_back_gives_no_negative_age() -> None:
    ages = TransactionAges(late_after_ms=100)
    ages.observe({5: 1}, 1_000)
    ages.observe({5: 1}, 400)
    assert ages.oldest_ms == 0
    ages.observe({5: 1}, 450)
    assert ages.oldest_ms == 50


# --- actors -----------------------------------------------------------------------------------


def test_every_metric_has_a_name_of_its_own_and_says_what_it_is() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.description.endswith(".")
        assert metric.name.endswith("_ms") is (metric.unit == "ms")
        assert metric.name.endswith("_bytes") is (metric.unit == "bytes")
        assert bool(metric.bounds) is (metric.kind is Kind.HISTOGRAM)


def test_a_partition_tells_what_open_transactions_hold_back(tmp_path: Path, caplog: Any) -> None:
    async def scenario() -> None:
        world = ServerWorld()
        server = world.server(FLIGHTS, tmp_path)
        await until(server.is_serving)
        reply = await server.produce(request(world, is_transactional=True))
        assert reply.error is ErrorCode.NONE
        server.report_metrics()
        gauges = {metric.name for metric in METRICS if metric.kind is Kind.GAUGE}
        assert {name: value for name, value in world.values.items() if name in gauges} == {
            "replica_offline": 0,
            "leader_epoch": 1,
            "log_size_bytes": server.replica.log.size_bytes,
            "segment_count": 1,
            "producer_id_count": 1,
            "open_transaction_count": 1,
            "last_stable_offset": 0,
            "last_stable_offset_lag": 2,
            "disk_free_bytes": 30,
            "disk_size_bytes": 100,
        }
        assert (("topic", "flights"), ("partition", "0"), ("broker", "1")) in world.tags
        world.time_ms += LATE_MS
        server.report_metrics()
        assert world.values["oldest_open_transaction_age_ms"] == LATE_MS
        assert "partition_late_transaction_count" not in world.values
        world.time_ms += 1
        described = await server.describe_replica(DescribeReplicaRequest())
        assert described.late_transaction_count == 1
        assert described.oldest_open_transaction_age_ms == LATE_MS + 1
        assert described.active_transactional_id_count is None
        assert "find-hanging" in caplog.text
        server.report_metrics()
        assert world.values["partition_late_transaction_count"] == 1
        assert caplog.text.count("find-hanging") == 1
        await stop(server)

    asyncio.run(scenario())


def test_a_coordinator_tells_how_many_ids_are_active(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = ServerWorld()
        tp = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
        server = world.server(tp, tmp_path)
        await until(server.is_serving)
        for name in ("loader", "idle"):
            owner = await server.init_producer_id(InitProducerIdRequest(transactional_id=name))
        add = AddPartitionsToTxnRequest(
            transactional_id="idle",
            producer_id=owner.producer_id,
            producer_epoch=owner.producer_epoch,
            partitions=(FLIGHTS,),
        )
        assert (await server.add_partitions_to_txn(add)).error is ErrorCode.NONE
        server.report_metrics()
        assert world.values["transactional_id_count"] == 2
        assert world.values["active_transactional_id_count"] == 1
        described = await server.describe_replica(DescribeReplicaRequest())
        assert described.active_transactional_id_count == 1
        assert "transaction_end_duration_ms_count" not in world.values
        server.shell.end_durations.observe(EndStep.DECISION, monotonic_s())
        server.report_metrics()
        assert world.values["transaction_end_duration_ms_count"] == 1
        await stop(server)

    asyncio.run(scenario())


def test_what_is_written_and_read_is_added_up_and_reported_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = ServerWorld()
        server = world.server(FLIGHTS, tmp_path)
        await until(server.is_serving)
        for _ in range(2):
            produced = request(world, is_transactional=True)
            await server.produce(produced)  # The second is a duplicate, which is not appended.
        await server.fetch(
            FetchRequest(
                topic_partition=FLIGHTS,
                fetch_offset=0,
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
            )
        )
        server.report_metrics()
        assert world.values["appended_bytes"] == len(produced.batch)
        assert world.values["appended_records"] == 2
        assert world.values["fetched_bytes"] == len(produced.batch)
        assert world.values["fetched_records"] == 2
        assert world.values["sync_duration_ms_count"] == 1
        assert world.values["sync_duration_ms_sum"] > 0
        first, world.told = world.told, []
        server.report_metrics()
        counters = {metric.name for metric in METRICS if metric.kind is Kind.COUNTER}
        assert counters & set(first)
        assert not counters & set(world.told), "nothing has happened since"
        assert "sync_duration_ms_count" not in world.told
        await stop(server)

    asyncio.run(scenario())


def test_what_is_appended_and_not_synced_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = ServerWorld()
        server = world.server(FLIGHTS, tmp_path)
        await until(server.is_serving)
        written = asyncio.ensure_future(server.produce(request(world, is_transactional=True)))
        await asyncio.sleep(0)
        server.report_metrics()
        assert world.values["high_watermark_lag"] == 2
        await written
        server.report_metrics()
        assert world.values["high_watermark_lag"] == 0
        await stop(server)

    asyncio.run(scenario())


def test_a_gauge_that_rests_at_zero_is_told_above_it_and_once_when_it_is_back(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        world = ServerWorld()
        server = world.server(FLIGHTS, tmp_path)
        await until(server.is_serving)
        told = []
        for value in (0, 3, 3, 0, 0, 2):
            server.metrics.set(OPEN_TRANSACTION_COUNT, value)
            told.append(len(world.told))
        assert told == [0, 1, 2, 3, 3, 4]
        assert world.values == {"open_transaction_count": 2}
        server.metrics.set(REPLICA_OFFLINE, 0)
        server.metrics.set(REPLICA_OFFLINE, 0)
        assert world.told[-2:] == ["replica_offline"] * 2, "Ray would forget it"
        await stop(server)

    asyncio.run(scenario())


def test_a_replica_that_is_offline_tells_that_and_nothing_of_its_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = ServerWorld()
        server = world.server(FLIGHTS, tmp_path)
        await until(server.is_serving)
        server.replica.go_offline("as a test")
        server.report_metrics()
        assert world.values["replica_offline"] == 1
        assert "last_stable_offset" not in world.values
        await stop(server)

    asyncio.run(scenario())


def test_a_disk_that_refuses_is_told_as_long_as_it_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = ServerWorld()
        server = world.server(FLIGHTS, tmp_path)
        await until(server.is_serving)
        server.report_metrics()
        assert "disk_refusing" not in world.values
        refused = OSError(errno.ENOSPC, "the disk is full")
        server.replica.refusal.record(refused, ends_at=1, now_ms=loop_ms())
        server.report_metrics()
        assert world.values["disk_refusing"] == 1
        server.replica.refusal.synced(1)
        server.report_metrics()
        assert world.values["disk_refusing"] == 0
        await stop(server)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_waiting", [True, False])
def test_a_server_that_cannot_start_tells_that_its_replica_is_offline(
    tmp_path: Path, is_waiting: bool
) -> None:
    async def scenario() -> None:
        world = ServerWorld()
        server = world.server(FLIGHTS, tmp_path)
        server.report_metrics()
        assert world.values["replica_offline"] == 0, "it is starting"
        await until(server.is_serving)
        if is_waiting:
            server.replica.waits_for = "room on the disk"
        else:
            server.failure = "could not start"
        server.report_metrics()
        assert world.values["replica_offline"] == 1
        await stop(server)

    asyncio.run(scenario())


def test_the_space_on_the_disk_is_told_once_for_all_replicas_of_a_process() -> None:
    world, asked = ServerWorld(), []

    def space_of(path: Path) -> DiskSpace:
        asked.append(path)
        if len(asked) == 3:
            raise OSError(errno.EIO, "as a test")
        return DiskSpace(free_bytes=len(asked), size_bytes=9)

    config = ReplicaConfig(topic="t", partition=0, broker_id=1, data_dir="d")
    disk = DiskMetrics(space_of)
    for now_s in (100.0, 101.0, 109.9, 110.0, 119.0, 120.0, 121.0):
        disk.report(config, world, now_s)
    assert len(asked) == 3
    assert set(asked) == {Path("d")}
    assert world.values == {"disk_free_bytes": 2, "disk_size_bytes": 9}
    assert disk_space(Path()).size_bytes >= disk_space(Path()).free_bytes > 0


def test_of_several_directories_each_tells_its_space_or_that_it_is_offline() -> None:
    def note(metric: Any, value: float, tags: Any) -> None:
        told[metric.name, tags["directory"]] = value

    told: dict[tuple[str, str], float] = {}
    config = ReplicaConfig(topic="t", partition=0, broker_id=1, data_dir="d,e")
    disk = DiskMetrics(lambda _path: DiskSpace(3, 9), lambda _dirs: {Path("e"): "as a test"})
    sink: Any = SimpleNamespace(set=note)
    disk.report(config, sink, 100.0)
    assert told == {
        ("offline_directory", "d"): 0,
        ("disk_free_bytes", "d"): 3,
        ("disk_size_bytes", "d"): 9,
        ("offline_directory", "e"): 1,
    }


def test_the_time_until_the_certificate_expires_is_told_once_for_all_replicas_of_a_process(
    caplog,
) -> None:
    world, answers = ServerWorld(), [90_000, None, InvalidSettingError("as a test"), 30_000]

    def expires_at_ms() -> int | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    certificates: Any = SimpleNamespace(expires_at_ms=expires_at_ms)
    metrics = CertificateMetrics(certificates)
    config = ReplicaConfig(topic="t", partition=0, broker_id=1, data_dir="d")
    told = []
    for now_s in (100.0, 101.0, 110.0, 120.0, 130.0):
        metrics.report(config, world, now_s=now_s, now_ms=60_000)
        told.append(world.values.get("certificate_expires_seconds"))
    assert told == [30, 30, 30, 30, -30]
    assert "as a test" in caplog.text
    assert answers == []


def test_ends_of_transactions_are_timed_by_step() -> None:
    durations = EndDurations()
    began_s = monotonic_s()
    assert durations.observe(EndStep.MARKERS, began_s) >= began_s
    durations.observe(EndStep.DECISION, began_s)
    world = ServerWorld()
    durations.report(world, 7)
    assert world.values["transaction_end_duration_ms_count"] == 2
    told = {dict(tags)["step"] for tags in world.tags}
    assert told == {"markers", "decision"}
    assert {dict(tags)["broker"] for tags in world.tags} == {"7"}


def test_a_report_that_fails_is_a_bug_of_the_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = ServerWorld()
        died = asyncio.Event()

        class Failing(PartitionShell):
            def report_metrics(self, sink: Any) -> None:
                died.set()
                raise ZeroDivisionError

        server = world.server(FLIGHTS, tmp_path, new_shell=Failing, metrics_interval_ms=1)
        await asyncio.wait_for(died.wait(), DEADLINE_S)
        await until(server.is_serving)
        assert [type(death) for death in world.deaths] == [ZeroDivisionError]
        await stop(server)

    asyncio.run(scenario())


def test_replicas_of_a_process_report_at_times_of_their_own_and_until_they_are_stopped(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        world, began_s = ServerWorld(), asyncio.get_running_loop().time()
        due_s = []
        for number in range(20):
            replica = replica_of(TopicPartition("t", number), "d", leading())
            metrics = ReplicaMetrics(
                replica=replica,
                clock=world,
                sink=world,
                disk=NO_DISK,
                has_failed=lambda: False,
                on_bug=world.deaths.append,
            )
            metrics.start(lambda: None)
            due_s.append(metrics._timer.when() - began_s)
            metrics.stop()
        assert 0 < min(due_s) < 3
        assert 7 < max(due_s) < 11
        server = world.server(FLIGHTS, tmp_path)
        await until(server.is_serving)
        topic_id = server.replica.known_topic_id()
        reply = await server.shutdown(ShutdownRequest(topic_id=topic_id))
        assert reply.error is ErrorCode.NONE
        assert server.metrics._timer.cancelled()

    asyncio.run(scenario())


@pytest.mark.parametrize("interval_ms", [1, 60_000])
def test_figures_are_reported_by_themselves(tmp_path: Path, interval_ms: int) -> None:
    async def scenario() -> None:
        world = ServerWorld()
        reported = asyncio.Event()

        class Reporting(PartitionShell):
            def report_metrics(self, sink: Any) -> None:
                reported.set()

        server = world.server(
            FLIGHTS, tmp_path, new_shell=Reporting, metrics_interval_ms=interval_ms
        )
        await until(server.is_serving)
        for _ in range(2 if interval_ms == 1 else 0):
            reported.clear()
            await asyncio.wait_for(reported.wait(), DEADLINE_S)
        await stop(server)
        assert bool(world.values) is (interval_ms == 1)
        assert server.metrics._timer.cancelled()

    asyncio.run(scenario())
