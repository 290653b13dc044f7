"""What an operator types, against a real cluster: groups, transactions, keys and figures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from deadlines import DEADLINE_S, wait_for
from ray.util.state import list_actors
from ray.util.state.exception import RayStateApiException
from ray_nodes import Commands, begin_here

from oncelog.actors.interfaces import ACTOR_CLASSES, CONTROLLER_ACTOR, NAMESPACE, leader_address
from oncelog.actors.launch.cluster_location import server_secret
from oncelog.actors.process.metrics import METRICS
from oncelog.actors.protocol.messages.cluster import (
    ClusterKeysRequest,
    LearnKeysRequest,
    MetadataRequest,
    ShutdownRequest,
)
from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.actors.protocol.tickets import ClusterKeys, issue_ticket
from oncelog.actors.rpc.actor_transport import ActorTransport
from oncelog.actors.rpc.call_meter import MeteredCall
from oncelog.actors.rpc.message_codec import encode
from oncelog.actors.rpc.ray_transport import RayTransport
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.codec import encode_records

pytestmark = [pytest.mark.ray, pytest.mark.slow]

NOBODY = 999_999_999
"""A producer id that no coordinator has given away."""


@pytest.fixture(scope="module")
def typed(cluster: Any) -> Iterator[Any]:
    """Runs one ``oncelog`` command; its output, read as JSON if that was asked for."""
    commands = Commands(begin_here, cluster.address)

    def run(*arguments: str, status: int = 0) -> Any:
        returned, output, errors = commands.run(*arguments, "--address", cluster.address)
        assert returned == status, errors
        text = errors if status else output
        return json.loads(text) if "--json" in arguments else text

    yield run
    commands.end()


async def write_hanging(topic: str, topic_id: str) -> None:
    """A batch of a transaction that no coordinator knows, as if its end had been lost."""
    transport = RayTransport(server_secret=server_secret(is_new=False))
    known = await transport.call(CONTROLLER_ACTOR, ClusterKeysRequest(), timeout_ms=30_000)
    now_ms = int(time.time() * 1_000)
    batch = encode_records(
        [(None, b"nobody", now_ms, ())],
        producer_id=NOBODY,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    ticket = issue_ticket(
        cluster_key=known.keys.current,
        key_version=known.keys.version,
        producer_id=NOBODY,
        producer_epoch=0,
        transactional_id="nobody",
        topic_id=topic_id,
        partition=0,
        issued_ms=now_ms,
        transaction_timeout_ms=60_000,
    )
    request = ProduceRequest(
        topic_partition=TopicPartition(topic, 0),
        batch=bytes(batch),
        transactional_id="nobody",
        ticket=ticket,
    )
    asked = MetadataRequest(topics=(topic,))
    (found,) = (await transport.call(CONTROLLER_ACTOR, asked, timeout_ms=30_000)).topics
    actor, _, key = str(leader_address(found, found.partitions[0])).partition("/")
    reply = await transport.call(actor, request, timeout_ms=30_000, key=key)
    assert reply.error is ErrorCode.NONE


def test_a_stuck_transaction_is_seen_and_ended(cluster: Any, topic: str, typed: Any) -> None:
    with cluster.producer(transactional_id="stuck") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, value=b"never", partition=0).result(DEADLINE_S)
        listed = typed("transactions", "list", "--state", "Ongoing", "--json")
        assert "stuck" in [one["transactional_id"] for one in listed]
        shown = typed("transactions", "describe", "stuck")
        assert "state     Ongoing" in shown
        assert typed("transactions", "abort", "stuck").startswith(
            "aborted the transaction of stuck"
        )
        with pytest.raises(OncelogError):
            producer.commit_transaction()
    assert "CompleteAbort" in typed("transactions", "describe", "stuck")
    assert typed("transactions", "delete", "stuck") == "deleted stuck\n"
    assert "no transactional id 'stuck'" in typed("transactions", "describe", "stuck", status=1)


def test_a_hanging_transaction_is_found_and_aborted(
    cluster: Any, topic: str, typed: Any, read_all: Any
) -> None:
    asyncio.run(write_hanging(topic, cluster.admin().describe_topic(topic).topic_id))
    with cluster.producer() as producer:
        producer.send(topic, value=b"behind it", partition=0).result(DEADLINE_S)
    assert read_all(topic) == []
    find = ("transactions", "find-hanging", "--topic", topic, "--json")
    assert typed(*find) == []
    (found,) = typed(*find, "--older-than-ms", "0")
    assert (found["producer_id"], found["start_offset"]) == (NOBODY, 0)
    (seen,) = typed("transactions", "describe-producers", topic, "--partition", "0", "--json")[:1]
    assert seen["open_from_offset"] == 0
    place = ("--topic", topic, "--partition", "0", "--start-offset", "0")
    assert "aborted the transaction of producer" in typed("transactions", "abort", *place)
    assert [record.value for record in read_all(topic)] == [b"behind it"]
    assert "no transaction is open" in typed("transactions", "abort", *place, status=1)


def test_a_group_is_seen_and_set_back(cluster: Any, topic: str, typed: Any) -> None:
    tp = TopicPartition(topic, 0)
    with cluster.producer() as producer:
        for number in range(10):
            producer.send(topic, value=b"%d" % number, partition=0)
    cluster.admin().alter_group_offsets("billing", {tp: 7})
    assert "billing" in [one["group"] for one in typed("groups", "list", "--json")]
    described = typed("groups", "describe", "billing", "--json")
    (position,) = described["offsets"]
    assert (position["offset"], position["end_offset"], position["lag"]) == (7, 10, 3)
    reset = ("groups", "reset-offsets", "billing", "--topic", f"{topic}:0", "--shift-by", "-5")
    assert "give --execute" in typed(*reset)
    assert cluster.admin().list_group_offsets("billing")[tp].offset == 7
    typed(*reset, "--execute")
    assert cluster.admin().list_group_offsets("billing")[tp].offset == 2
    typed("topics", "delete-records", topic, "--partition", "0", "--before-offset", "4")
    assert cluster.admin().list_offsets({tp: -2}) == {tp: 4}
    assert typed("groups", "delete", "billing") == "deleted billing\n"
    assert "no group 'billing'" in typed("groups", "describe", "billing", status=1)


def test_the_key_changes_under_an_open_transaction(
    cluster: Any, topic: str, typed: Any, read_all: Any
) -> None:
    with cluster.producer(transactional_id="rotating") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, value=b"before", partition=0).result(DEADLINE_S)
        assert typed("rotate-key").startswith("new tickets use key 1")
        producer.send(topic, value=b"after", partition=1).result(DEADLINE_S)
        producer.commit_transaction()
    assert {record.value for record in read_all(topic)} == {b"before", b"after"}


def test_figures_are_on_the_endpoint_that_prometheus_reads(
    cluster: Any, topic: str, typed: Any
) -> None:
    import ray

    with cluster.producer(transactional_id="counted", client_id="loader") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, value=b"counted", partition=0)
        producer.commit_transaction()
    with pytest.raises(OncelogError):
        cluster.admin().create_topic(topic)
    status = typed("status", "--json")
    (shown,) = [one for one in status["topics"] if one["name"] == topic]
    assert shown["partitions"][0]["late_transaction_count"] == 0
    (node,) = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    ours, produced = f'topic="{topic}"', 'method="produce"'
    at_zero = {"cut_bytes", "damaged_place_count", "disk_refusing"}
    at_zero |= {"high_watermark_lag", "partition_late_transaction_count"}
    # With one broker there is nobody to copy to.
    at_zero |= {"under_replicated", "under_min_isr", "replication_lag", "replication_lag_ms"}
    at_zero |= {"isr_shrinks", "isr_expands", "pushed_bytes", "replicated_bytes", "follower_cuts"}
    at_zero |= {"follower_fetches"}
    at_zero |= {"voter_count", "lagging_voter_count", "voter_lag", "voter_lag_ms"}
    # With one directory either all is there or nothing.
    at_zero |= {"offline_directory"}
    # Only a client that has waited for 5 s reports one, so only on a busy machine.
    at_zero |= {"client_outages"}
    # Of clients: nothing is left out, nothing fails, and no consumer joins the group or buffers.
    at_zero |= {"producer_retries", "producer_errors", "producer_batches_in_flight"}
    at_zero |= {"producer_buffered_bytes", "consumer_buffered_bytes", "consumer_failed_fetches"}
    at_zero |= {"consumer_rebalances", "consumer_commits", "consumer_poll_gap_ratio"}
    # And no job runs.
    at_zero |= {"job_records", "job_transactions", "job_failures"}
    # Without TLS there is no certificate, and perhaps nobody was refused anything.
    at_zero |= {"certificate_expires_seconds", "refused_calls", "audit_lines_left_out"}
    # No port is open to clients of Kafka.
    at_zero |= {"gateway_not_serving", "gateway_connection_count"}
    # And nobody has limits.
    at_zero |= {"throttled_calls", "throttle_ms"}
    wanted = {
        *(
            (name,)
            for metric in METRICS
            if metric.name not in at_zero
            for name in metric.exported_names
        ),
        ("ray_oncelog_open_transaction_count", ours, 'partition="1"'),
        ("ray_oncelog_appended_records_total", ours, 'partition="0"', 'broker="1"'),
        ("ray_oncelog_consumer_lag", ours, 'group="counting"'),
        ("ray_oncelog_transaction_end_duration_ms_bucket_total", 'step="markers"', 'le="+Inf"'),
        ("ray_oncelog_producer_records_total", 'client="loader"', 'outcome="acknowledged"'),
        ("ray_oncelog_producer_transactions_total", 'client="loader"', 'outcome="committed"'),
        ("ray_oncelog_consumer_records_total", 'client="oncelog"', 'group="counting"'),
        ("ray_oncelog_queue_records_total", 'group="queueing"', 'outcome="taken"'),
        # Nobody but this program calls ``produce``.
        ("ray_oncelog_calls_total", produced, 'side="caller"'),
        ("ray_oncelog_calls_total", produced, 'side="callee"'),
        ("ray_oncelog_call_duration_ms_bucket_total", produced, 'side="caller"', 'le="+Inf"'),
    }
    deadline = time.monotonic() + DEADLINE_S
    missing = wanted
    with (
        cluster.producer(transactional_id="left open") as producer,
        cluster.consumer(group_id="counting", auto_offset_reset="earliest") as consumer,
        cluster.queue(topic, group_id="queueing") as queue,
    ):
        queue.take(1, timeout_ms=1_000)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, value=b"held back", partition=1).result(DEADLINE_S)
        consumer.assign(TopicPartition(topic, 0))
        while missing and time.monotonic() < deadline:
            consumer.poll(1_000)
            with urllib.request.urlopen(url, timeout=30) as answer:
                lines = answer.read().decode().splitlines()
            # What was seen once counts: the open transaction does not outlive its timeout.
            missing = {
                (name, *labels)
                for name, *labels in missing
                if not any(
                    line.startswith(f"{name}{{") and all(label in line for label in labels)
                    for line in lines
                )
            }
    assert not missing


def test_a_call_through_ray_tells_the_sizes_of_its_messages(cluster: Any) -> None:
    assert cluster.describe().error is ErrorCode.NONE
    metered = MeteredCall("metadata", 0.0)
    request = MetadataRequest()
    called = RayTransport().call(CONTROLLER_ACTOR, request, timeout_ms=30_000, metered=metered)
    reply = asyncio.run(called)
    assert reply.error is ErrorCode.NONE
    assert metered.request_bytes == len(encode(request))
    assert metered.reply_bytes == len(encode(reply))


@pytest.mark.parametrize("road", ["connection", "Ray", "handle"])
def test_a_program_is_refused_what_only_servers_ask(cluster: Any, topic: str, road: str) -> None:
    """Keys, other keys, a replica's end: nothing happens, and the cluster goes on."""
    found = cluster.admin().describe_topic(topic)
    replica = str(leader_address(found, found.partitions[0]))
    called = [
        (CONTROLLER_ACTOR, ClusterKeysRequest()),
        (CONTROLLER_ACTOR, LearnKeysRequest(keys=ClusterKeys(version=2**40, current=b"x" * 32))),
        (replica, ShutdownRequest(topic_id=found.topic_id, remove_data=True)),
    ]

    async def ask(address: str, request: Any) -> Any:
        actor, _, key = address.partition("/")
        if road == "handle":
            method = getattr(ray.get_actor(actor, NAMESPACE), request.method)
            return await method.remote(request, key)
        if road == "Ray":
            return await RayTransport().call(actor, request, timeout_ms=30_000, key=key)
        return await ActorTransport(RayTransport()).call(address, request, timeout_ms=30_000)

    async def ask_all() -> list[Any]:
        return [await ask(address, request) for address, request in called]

    for reply in asyncio.run(ask_all()):
        assert reply.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert "User:ray" in reply.detail
    with cluster.producer() as producer:
        assert producer.send(topic, b"still here", partition=0).result().offset == 0


def test_the_log_of_a_leader_is_shown_also_once_its_process_has_ended(
    cluster: Any, topic: str, typed: Any, kill: Any
) -> None:
    """By a short name, from a level on; a refused call has left a line in it."""
    found = cluster.admin().describe_topic(topic)
    address = str(leader_address(found, found.partitions[0]))
    request = ShutdownRequest(topic_id=found.topic_id, remove_data=True)
    call = ActorTransport(RayTransport()).call(address, request, timeout_ms=30_000)
    assert asyncio.run(call).error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    shown = typed("logs", f"{topic}-0", "--level", "warning", "--lines", "1")
    assert "refused a call: " in shown
    assert " — see `oncelog acls check`" in shown
    actor = address.partition("/")[0]
    kill(ray.get_actor(actor, NAMESPACE))
    wait_for(lambda: "refused a call" not in typed("logs", actor), "another process")
    assert typed("logs", actor, "--previous").endswith(shown)
    unknown = typed("logs", "controler", status=1)
    assert "no actor 'controler'; the nearest are controller — " in unknown


def test_rays_dashboard_shows_each_actor_by_its_name_and_class(cluster: Any, topic: str) -> None:
    def listed() -> list[Any]:
        with contextlib.suppress(RayStateApiException):  # The dashboard starts after the log.
            return list_actors(
                address=cluster.address,
                filters=[("ray_namespace", "=", NAMESPACE), ("state", "=", "ALIVE")],
                detail=True,
            )
        return []

    wait_for(listed, "the dashboard")
    shown = {one.name: one for one in listed()}
    assert shown[CONTROLLER_ACTOR].class_name == "ControllerProcess"
    assert {one.class_name for one in shown.values()} <= {*ACTOR_CLASSES, "ProcessWorkerProcess"}
    assert {name: one.repr_name for name, one in shown.items()} == {name: name for name in shown}
