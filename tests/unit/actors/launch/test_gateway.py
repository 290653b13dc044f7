"""A broker's gateway: when its port opens, what it tells, and who starts it."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka_gateway import HERE, Actors, Wire
from replicas import surroundings_of
from virtual_time import VirtualLoop, run_virtually

from oncelog.actors.config import BrokerConfig, ClusterConfig, GatewayConfig, ReplicaConfig
from oncelog.actors.gateway import listener
from oncelog.actors.launch import processes
from oncelog.actors.launch.gateway import OPEN_RETRY_S, Gateway
from oncelog.actors.pin import BY_LABEL, Pin
from oncelog.actors.process.metrics import (
    GATEWAY_CONNECTION_COUNT,
    GATEWAY_NOT_SERVING,
    NO_METRICS,
    Metric,
    MetricSink,
    NoMetrics,
)
from oncelog.actors.protocol.messages.access import NO_ACCESS, Access, Rules
from oncelog.actors.protocol.messages.brokers import (
    FindKafkaListenerReply,
    FindKafkaListenerRequest,
    PingReply,
    PingRequest,
)
from oncelog.actors.rpc.door import Door
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CLUSTER_METADATA_TOPIC

ASK = FindKafkaListenerRequest()


class Sink(NoMetrics):
    """The last value of each gauge."""

    def __init__(self) -> None:
        self.gauges: dict[Metric, float] = {}

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        assert tags == {"broker": "1"}
        self.gauges[metric] = value


Story = Callable[[Gateway, Actors], Awaitable[None]]


def free_port() -> int:
    with socket.create_server((HERE, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def play(
    story: Story,
    *,
    knows_rules: bool = True,
    port: int | None = None,
    rules: Rules | None = None,
    metrics: MetricSink = NO_METRICS,
) -> None:
    async def body() -> None:
        actors, bugs = Actors(), list[BaseException]()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        access = NO_ACCESS if rules is None else Access(rules=rules)
        door = Door(access if knows_rules else None, secret=b"s" * 32)
        environment = surroundings_of(
            actors,  # type: ignore[arg-type]
            loop,
            bugs.append,
            door=door,
            metrics=metrics,
        )
        config = GatewayConfig(
            number=0,
            broker_id=1,
            data_dir="/d",
            cluster_id="c1",
            cluster=ClusterConfig(kafka_port=port or free_port()),
        )
        gateway = Gateway(config, environment, host=HERE)
        gateway.begin()
        try:
            await story(gateway, actors)
        finally:
            await gateway.close()
        assert bugs == []

    run_virtually(body())


async def is_open(gateway: Gateway) -> bool:
    return (await gateway.find_kafka_listener(ASK)).error is ErrorCode.NONE


async def metadata(gateway: Gateway) -> Any:
    wire = Wire(*await asyncio.open_connection(*gateway.address()))
    answer = await wire.ask(
        MetadataRequest[5](topics=None, allow_auto_topic_creation=False), MetadataResponse
    )
    wire.writer.close()
    return answer


def test_it_serves_on_its_port_and_tells_where():
    async def story(gateway: Gateway, actors: Actors) -> None:
        await asyncio.sleep(0.05)
        port = gateway.config.cluster.kafka_port
        assert await gateway.find_kafka_listener(ASK) == FindKafkaListenerReply(
            host=HERE, port=port
        )
        assert gateway.problem == ""
        answer = await metadata(gateway)
        assert (answer.cluster_id, answer.controller_id) == ("c1", 2)
        assert {one.node_id: one.port for one in answer.brokers} == {1: port, 2: 9_092}
        assert {one.name for one in answer.topics} >= {"flights", "taxis"}
        assert await gateway.ping(PingRequest()) == PingReply()
        assert repr(gateway) == "Gateway(gateway:0@1)"

    play(story)


def test_it_opens_once_it_knows_who_may_do_what():
    async def story(gateway: Gateway, actors: Actors) -> None:
        await asyncio.sleep(5)
        reply = await gateway.find_kafka_listener(ASK)
        assert (reply.error, reply.port) == (ErrorCode.BROKER_NOT_AVAILABLE, 0)
        assert reply.detail == gateway.problem != ""
        gateway.environment.door.learn(NO_ACCESS)
        await asyncio.sleep(1)
        assert await is_open(gateway)

    play(story, knows_rules=False)


def test_it_opens_once_the_controller_answers():
    async def story(gateway: Gateway, actors: Actors) -> None:
        actors.error = ErrorCode.NETWORK_EXCEPTION
        await asyncio.sleep(5)
        assert not await is_open(gateway)
        actors.error = ErrorCode.NONE
        await asyncio.sleep(1)
        assert await is_open(gateway)

    play(story)


@pytest.mark.parametrize("is_on", [False, True])
def test_a_port_at_which_everybody_may_do_everything_is_warned_of(is_on, caplog):
    async def story(gateway: Gateway, actors: Actors) -> None:
        # Virtual time: it opens its port meanwhile.
        await asyncio.sleep(60)
        assert await is_open(gateway)

    with caplog.at_level(logging.WARNING):
        play(story, rules=Rules(version=1, is_on=is_on))
    assert ("may do everything, as no rules are on" in caplog.text) is not is_on


def test_a_port_that_cannot_be_opened_is_told_and_tried_again(monkeypatch, caplog):
    bind, is_allowed = listener._bind, False

    def refuse(*arguments: Any) -> Any:
        if not is_allowed:
            raise OSError(errno.EACCES, "Permission denied")
        return bind(*arguments)

    monkeypatch.setattr(listener, "_bind", refuse)

    async def story(gateway: Gateway, actors: Actors) -> None:
        nonlocal is_allowed
        await asyncio.sleep(1)
        reply = await gateway.find_kafka_listener(ASK)
        assert "Permission denied" in reply.detail
        is_allowed = True
        await asyncio.sleep(OPEN_RETRY_S)
        assert await is_open(gateway)
        assert gateway.problem == ""

    with caplog.at_level(logging.ERROR):
        play(story)
    assert "Gateway(gateway:0@1) serves no clients of Kafka: " in caplog.text


def test_it_reports_whether_it_serves_and_how_many_clients_it_has():
    sink = Sink()

    async def story(gateway: Gateway, actors: Actors) -> None:
        interval_s = gateway.config.cluster.metrics_interval_ms / 1_000
        await asyncio.sleep(1)
        assert sink.gauges == {GATEWAY_NOT_SERVING: 1, GATEWAY_CONNECTION_COUNT: 0}
        gateway.environment.door.learn(NO_ACCESS)
        await asyncio.sleep(interval_s)
        assert sink.gauges == {GATEWAY_NOT_SERVING: 0, GATEWAY_CONNECTION_COUNT: 0}
        _, writer = await asyncio.open_connection(*gateway.address())
        await asyncio.sleep(interval_s)
        assert sink.gauges == {GATEWAY_NOT_SERVING: 0, GATEWAY_CONNECTION_COUNT: 1}
        writer.close()

    play(story, knows_rules=False, metrics=sink)


def test_a_later_life_has_the_port_of_the_one_before():
    port = free_port()

    async def story(gateway: Gateway, actors: Actors) -> None:
        await asyncio.sleep(0.05)
        assert gateway.address() == (HERE, port)
        assert (await metadata(gateway)).cluster_id == "c1"

    play(story, port=port)
    play(story, port=port)


def test_it_comes_after_each_that_has_started_and_opens_once_it_knows_its_number():
    def incarnation(gateway: Gateway) -> int:
        return gateway.listener.door.cluster.order.incarnation

    async def story(gateway: Gateway, actors: Actors) -> None:
        await asyncio.sleep(0.05)
        actors.has_producer_ids = False
        cluster = ClusterConfig(kafka_port=free_port())
        later = Gateway(
            dataclasses.replace(gateway.config, cluster=cluster), gateway.environment, host=HERE
        )
        later.begin()
        try:
            await asyncio.sleep(1)
            assert not await is_open(later)
            actors.has_producer_ids = True
            await asyncio.sleep(1)
            assert await is_open(later)
        finally:
            await later.close()
        assert incarnation(later) > incarnation(gateway) > 0

    play(story)


# --- who starts it ----------------------------------------------------------------------------

LABEL = Pin(BY_LABEL, "2")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was started: class, name and arguments."""
    found: list[Any] = []
    monkeypatch.setattr(processes, "launch_actor", lambda *given: found.append(given))
    return found


@pytest.mark.parametrize(
    "config",
    [
        BrokerConfig(broker_id=2, data_dir="/d", cluster_id="c1", pin=LABEL, server_secret=b"s"),
        ReplicaConfig(
            topic=CLUSTER_METADATA_TOPIC,
            partition=0,
            broker_id=2,
            data_dir="/d",
            cluster_id="c1",
            pin=LABEL,
            server_secret=b"s",
        ),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_broker_and_the_controller_start_the_gateway_of_their_broker(launched, config):
    asyncio.run(processes.start_gateway(config))
    assert launched == [], "no port, no gateway"
    cluster = ClusterConfig(kafka_port=9_092)
    asyncio.run(processes.start_gateway(dataclasses.replace(config, cluster=cluster)))
    assert launched == [
        (
            processes.GatewayProcess,
            "gateway:0@2",
            GatewayConfig(
                number=0,
                broker_id=2,
                data_dir="/d",
                cluster=cluster,
                cluster_id="c1",
                pin=LABEL,
                server_secret=b"s",
            ),
        )
    ]


def test_while_ray_does_not_answer_it_is_tried_again(monkeypatch, caplog):
    tries = 0

    def launch(*_: Any) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise RuntimeError("no head")

    monkeypatch.setattr(processes, "launch_actor", launch)
    monkeypatch.setattr(processes, "GATEWAY_RETRY_S", 0.0)
    config = BrokerConfig(broker_id=2, data_dir="/d", cluster=ClusterConfig(kafka_port=1))
    asyncio.run(processes.start_gateway(config))
    assert tries == 3
    assert "the gateway for clients of Kafka cannot be started: no head" in caplog.text
