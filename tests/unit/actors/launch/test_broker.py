"""A broker registers, says that it lives, and which of its actors do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from actor_environment import InlineBackground
from inside import tasks_of
from replicas import surroundings_of
from virtual_time import run_virtually

from oncelog.actors.config import BrokerConfig, ClusterConfig
from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.launch.broker import EPOCH_MAX_MS, Broker
from oncelog.actors.protocol.messages.brokers import (
    BrokerHeartbeatReply,
    BrokerHeartbeatRequest,
    OfflineReplica,
    PingReply,
    PingRequest,
    RegisterBrokerReply,
    RegisterBrokerRequest,
)
from oncelog.actors.replica.data_directory import (
    IDENTITY_FILE,
    DirectoryIdentity,
    read_identity,
    write_identity,
)
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

CLUSTER = ClusterConfig(broker_session_timeout_ms=9_000, broker_heartbeat_interval_ms=1_000)
SESSION_S = CLUSTER.broker_session_timeout_ms / 1000
ACTOR = "partition:t-0@2"


class BrokerCluster:
    """The controller and the actors of broker 2, which is given epoch after epoch."""

    def __init__(self) -> None:
        self.registered: list[RegisterBrokerRequest] = []
        self.beats: list[BrokerHeartbeatRequest] = []
        self.registration = ErrorCode.NONE
        self.heartbeat = ErrorCode.NONE
        self.known_epoch_min = 0
        self.unknown = ErrorCode.NONE
        self.lost: set[str] = set()
        self.offline: tuple[OfflineReplica, ...] = ()
        self.failures: list[BaseException] = []

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        if isinstance(request, PingRequest):
            if actor in self.lost:
                await asyncio.sleep(timeout_ms / 1000)
                return request.failed(ErrorCode.REQUEST_TIMED_OUT)
            return PingReply(offline_replicas=self.offline, refusing_replicas=self.offline[1:])
        assert actor == CONTROLLER_ACTOR
        if isinstance(request, RegisterBrokerRequest):
            self.registered.append(request)
            epoch = len(self.registered)
            return RegisterBrokerReply(error=self.registration, broker_epoch=epoch)
        assert timeout_ms <= CLUSTER.broker_heartbeat_interval_ms
        self.beats.append(request)
        is_known = request.broker_epoch >= self.known_epoch_min
        error = self.heartbeat if is_known else self.unknown
        return BrokerHeartbeatReply(error=error, actors=() if error else (ACTOR,))


def play(
    directory: Path | str, scenario: Callable[[BrokerCluster, Broker], Coroutine[Any, Any, None]]
) -> None:
    async def body() -> None:
        cluster = BrokerCluster()
        environment = surroundings_of(
            cluster,
            asyncio.get_running_loop(),
            cluster.failures.append,
            new_background=InlineBackground,
            incarnation="one",
        )
        config = BrokerConfig(
            broker_id=2, data_dir=str(directory), cluster_id="c" * 32, rack="r", cluster=CLUSTER
        )
        broker = Broker(config, environment)
        broker.begin()
        await scenario(cluster, broker)
        assert cluster.failures == []
        tasks_of(broker).cancel()

    run_virtually(body())


def test_a_broker_writes_its_epoch_down_before_it_says_that_it_lives(tmp_path: Path):
    """With each registration it says which it has, and from time to time it gets another."""

    async def scenario(cluster: BrokerCluster, broker: Broker) -> None:
        await asyncio.sleep(0.5)
        identity = read_identity(RealFileSystem(), tmp_path)
        assert identity is not None
        assert (identity.broker_epoch, cluster.beats[0].is_kept) == (1, True)
        await asyncio.sleep(EPOCH_MAX_MS / 1_000 + 2)
        assert [request.directory_epoch for request in cluster.registered] == [-1, 1]
        (tmp_path / IDENTITY_FILE).unlink()
        assert not await broker._is_kept(2)

    play(tmp_path, scenario)


def test_a_registered_broker_beats_in_its_epoch(tmp_path: Path):
    async def scenario(cluster: BrokerCluster, broker: Broker) -> None:
        await asyncio.sleep(4.5)
        (request,) = cluster.registered
        assert (request.broker_id, request.cluster_id, request.rack) == (2, "c" * 32, "r")
        assert len(request.directory_id) == 32
        assert broker.is_registered
        assert [beat.broker_epoch for beat in cluster.beats] == [1] * 5
        assert all(beat.silent_actors == () for beat in cluster.beats)

    play(tmp_path, scenario)


@pytest.mark.parametrize("error", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_NOT_AVAILABLE])
def test_a_broker_whose_epoch_is_unknown_registers_again(tmp_path: Path, error: ErrorCode):
    async def scenario(cluster: BrokerCluster, broker: Broker) -> None:
        await asyncio.sleep(1.5)
        cluster.known_epoch_min, cluster.unknown = 2, error
        await asyncio.sleep(2.5)
        assert broker.is_registered
        assert len(cluster.registered) == 2
        assert [beat.broker_epoch for beat in cluster.beats] == [1, 1, 1, 2, 2]
        one, *others = {request.directory_id for request in cluster.registered}
        assert (len(one), others) == (32, [])

    play(tmp_path, scenario)


@pytest.mark.parametrize("error", [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT])
def test_a_controller_that_is_away_is_no_reason_to_register_again(tmp_path: Path, error: ErrorCode):
    async def scenario(cluster: BrokerCluster, broker: Broker) -> None:
        cluster.heartbeat = error
        await asyncio.sleep(3 * SESSION_S)
        assert len(cluster.registered) == 1
        assert len(cluster.beats) >= 3 * SESSION_S - 1

    play(tmp_path, scenario)


def test_a_broker_that_is_refused_tries_again_and_beats_only_then(tmp_path: Path):
    async def scenario(cluster: BrokerCluster, broker: Broker) -> None:
        cluster.registration = ErrorCode.NOT_CONTROLLER
        await asyncio.sleep(5)
        assert len(cluster.registered) > 2
        assert (cluster.beats, broker.is_registered, broker.problem) == (
            [],
            False,
            "NOT_CONTROLLER",
        )
        cluster.registration = ErrorCode.NONE
        await asyncio.sleep(10)
        assert cluster.beats
        assert (broker.is_registered, broker.problem) == (True, "")

    play(tmp_path, scenario)


def test_an_actor_that_does_not_answer_is_told_and_holds_no_heartbeat_up(tmp_path: Path):
    async def scenario(cluster: BrokerCluster, broker: Broker) -> None:
        await asyncio.sleep(3)
        cluster.lost = {ACTOR}
        count = len(cluster.beats)
        await asyncio.sleep(SESSION_S - 2)
        assert len(cluster.beats) - count >= SESSION_S - 3
        assert cluster.beats[-1].silent_actors == ()
        await asyncio.sleep(6)
        assert cluster.beats[-1].silent_actors == (ACTOR,)
        cluster.lost = set()
        await asyncio.sleep(4)
        assert cluster.beats[-1].silent_actors == ()

    play(tmp_path, scenario)


def test_a_replica_that_is_offline_is_told_until_it_is_not(tmp_path: Path):
    async def scenario(cluster: BrokerCluster, broker: Broker) -> None:
        await asyncio.sleep(3)
        assert cluster.beats[-1].offline_replicas == ()
        tps = (TopicPartition("t", 0), TopicPartition("t", 1))
        cluster.offline = tuple(OfflineReplica(topic_partition=tp, topic_id="") for tp in tps)
        await asyncio.sleep(3)
        assert cluster.beats[-1].offline_replicas == cluster.offline
        assert cluster.beats[-1].refusing_replicas == cluster.offline[1:]
        cluster.offline = ()
        await asyncio.sleep(3)
        assert cluster.beats[-1].offline_replicas == ()

    play(tmp_path, scenario)


def test_actors_are_watched_on_while_the_controller_is_away(tmp_path: Path):
    async def scenario(cluster: BrokerCluster, broker: Broker) -> None:
        await asyncio.sleep(3)
        cluster.lost = {ACTOR}
        cluster.heartbeat = ErrorCode.NOT_CONTROLLER
        await asyncio.sleep(SESSION_S + 4)
        assert cluster.beats[-1].silent_actors == (ACTOR,)

    play(tmp_path, scenario)


def test_a_broker_takes_its_further_directories_and_names_one_that_is_anothers(tmp_path: Path):
    async def scenario(cluster: BrokerCluster, broker: Broker) -> None:
        await asyncio.sleep(0.1)
        assert cluster.registered[0].problem.startswith(f"{tmp_path / 'three'} is that of")
        assert not broker.is_registered
        (tmp_path / "three" / IDENTITY_FILE).unlink()
        await asyncio.sleep(1)
        assert broker.is_registered
        assert cluster.registered[-1].data_dir == data_dir

    data_dir = ",".join(str(tmp_path / name) for name in ("one", "two", "three"))
    (tmp_path / "three").mkdir()
    strange = DirectoryIdentity(cluster_id="c" * 32, broker_id=3, is_further=True)
    write_identity(RealFileSystem(), tmp_path / "three", strange)
    play(data_dir, scenario)
    identity = read_identity(RealFileSystem(), tmp_path / "one")
    assert identity is not None
    assert [path for _, path in identity.further] == data_dir.split(",")[1:]
    assert len({one for one, _ in identity.further} | {identity.directory_id}) == 3
