"""How a program finds every actor of a cluster by a file, without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from virtual_time import give_turns, run_virtually

from oncelog.actors.process.clock import loop_ms
from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.protocol.messages.access import Access, Rules, User
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.cluster import FindListenerReply, FindListenerRequest
from oncelog.actors.protocol.messages.partition import DescribeReplicaReply, DescribeReplicaRequest
from oncelog.actors.protocol.scram import ITERATIONS_MIN, make_credential
from oncelog.actors.rpc import listener_directory
from oncelog.actors.rpc.actor_transport import ActorConnection, connect
from oncelog.actors.rpc.dispatch import Dispatch
from oncelog.actors.rpc.door import Door
from oncelog.actors.rpc.handshake import (
    Identity,
    ProgramIdentity,
    UserIdentity,
    connection_secret,
)
from oncelog.actors.rpc.listener import Listener, ListenerAddress
from oncelog.actors.rpc.listener_directory import (
    ASKED_MAX,
    FILE_MAX_BYTES,
    LISTENER_FILE,
    DirectTransport,
    ListenerDirectory,
    NamedListener,
    ray_token_here,
    read_named,
)
from oncelog.api.processing.messages import WorkerStatus, WorkerStatusRequest
from oncelog.storage.errors import ErrorCode

TIMEOUT_MS = 30_000
RAY_TOKEN = b"of Ray alone"
PASSWORD = "correct horse"
LEADER = "partitions:1@1"


@pytest.fixture(autouse=True)
def _ray_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", RAY_TOKEN.decode())


class Server:
    """Tells by the process id which life of which actor it is."""

    def __init__(self, process_id: int) -> None:
        self.process_id = process_id

    async def describe_replica(self, _: DescribeReplicaRequest) -> DescribeReplicaReply:
        return DescribeReplicaReply(process_id=self.process_id)


class FakeCluster:
    """Actors that listen on loopback, and a Ray that knows where."""

    def __init__(self, door: Door | None = None) -> None:
        self.told: dict[str, ListenerAddress | ErrorCode | None] = {}
        self.asked: list[str] = []
        self._door = door
        self._listeners: dict[str, Listener] = {}
        self._next = 0

    async def told_listener(
        self, actor: str, *, timeout_ms: int
    ) -> ListenerAddress | ErrorCode | None:
        assert timeout_ms > 0
        self.asked.append(actor)
        return self.told.get(actor, ErrorCode.NETWORK_EXCEPTION)

    async def start(self, actor: str, kind: type[Server] = Server) -> int:
        """Begin another life of ``actor``; return its process id."""
        await self.stop(actor)
        self._next += 1
        token = bytes([self._next]) * 32
        dispatch = Dispatch(
            kind(self._next),
            on_bug=pytest.fail,
            door=self._door,
            directory=ListenerDirectory(self) if kind is Server else None,
        )
        listener = Listener(dispatch, host="127.0.0.1", token=connection_secret(token, RAY_TOKEN))
        address = await listener.address()
        self._listeners[actor] = listener
        self.told[actor] = ListenerAddress(
            host=address.host, port=address.port, token=token, is_keyed=True
        )
        return self._next

    async def stop(self, actor: str) -> None:
        listener = self._listeners.pop(actor, None)
        if listener is not None:
            await listener.close()
        self.told.pop(actor, None)

    async def stop_all(self) -> None:
        for actor in list(self._listeners):
            await self.stop(actor)

    def named(self, actor: str = "controller", **changed: Any) -> NamedListener:
        address = self.told[actor]
        assert isinstance(address, ListenerAddress)
        fields: dict[str, Any] = {
            "cluster_id": "c1",
            "broker_id": 1,
            "actor": actor,
            "address": address,
            "ray_address": "10.0.0.1:6379",
            "process": ProcessTable("h").process(os.getpid()),
        }
        return NamedListener(**{**fields, **changed})


def write(data_dir: Path, content: bytes, mode: int = 0o600) -> Path:
    path = data_dir / LISTENER_FILE
    path.write_bytes(content)
    path.chmod(mode)
    return path


@contextlib.asynccontextmanager
async def running(door: Door | None = None) -> AsyncIterator[FakeCluster]:
    cluster = FakeCluster(door)
    await cluster.start("controller")
    await cluster.start(LEADER)
    try:
        yield cluster
    finally:
        await cluster.stop_all()


@contextlib.asynccontextmanager
async def direct(
    data_dir: Path, cluster: FakeCluster, identity: Identity | None = None
) -> AsyncIterator[DirectTransport]:
    """A program that has read the file."""
    write(data_dir, cluster.named().to_bytes())
    named = read_named(data_dir)
    assert named == cluster.named()
    transport = DirectTransport(data_dir, named, identity or ProgramIdentity())
    try:
        yield transport
    finally:
        transport.close()
        await asyncio.sleep(0)


async def process_of(transport: DirectTransport, actor: str) -> int | ErrorCode:
    """Which life of ``actor`` answers, or why none does."""
    reply = await transport.call(actor, DescribeReplicaRequest(), timeout_ms=TIMEOUT_MS)
    return reply.process_id if reply.error is ErrorCode.NONE else reply.error


async def drop(transport: DirectTransport, actor: str) -> None:
    """What the end of an actor's process does to its connection."""
    connected = dict(transport._connections.connected(9))
    connected[actor].close()
    await asyncio.sleep(0)


# --- the file ---------------------------------------------------------------------------------

GOOD: dict[str, Any] = json.loads(
    NamedListener(
        cluster_id="c1",
        broker_id=1,
        actor="controller",
        address=ListenerAddress(host="h", port=1, token=b"t"),
        ray_address="a",
    ).to_bytes()
)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        json.dumps(GOOD | {"version": 2}).encode(),
        json.dumps(GOOD | {"port": "many"}).encode(),
        json.dumps(GOOD | {"token": "no hex"}).encode(),
        json.dumps(GOOD | {"process": {"pid": 1}}).encode(),
        json.dumps({name: value for name, value in GOOD.items() if name != "host"}).encode(),
        json.dumps(GOOD).encode() + b" " * FILE_MAX_BYTES,
    ],
)
def test_a_file_that_is_none_of_ours_is_not_gone_by(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, json.dumps(GOOD).encode())
    assert read_named(tmp_path) is not None
    write(tmp_path, content)
    assert read_named(tmp_path) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_read_or_write_is_not_gone_by(tmp_path: Path, mode: int) -> None:
    write(tmp_path, json.dumps(GOOD).encode(), mode)
    assert read_named(tmp_path) is None


def test_a_file_of_another_user_is_not_gone_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, json.dumps(GOOD).encode())
    uid = os.geteuid()
    monkeypatch.setattr(listener_directory.os, "geteuid", lambda: uid + 1)
    assert read_named(tmp_path) is None


def test_neither_a_link_nor_a_pipe_is_gone_by(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(GOOD).encode())
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert read_named(tmp_path) is None
    path.unlink()
    os.mkfifo(path, 0o600)
    assert read_named(tmp_path) is None, "and nobody waits for a writer"


def test_no_file_names_nobody(tmp_path: Path) -> None:
    assert read_named(tmp_path) is None
    assert read_named(tmp_path / "missing") is None


def test_rays_token_is_found_where_ray_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ray_token_here() == RAY_TOKEN
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert ray_token_here() == b""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ray_token_here() == b""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("default\n")
    assert ray_token_here() == b"default"
    (tmp_path / "named").write_text("named\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "named"))
    assert ray_token_here() == b"named"


# --- finding actors ---------------------------------------------------------------------------


def test_one_named_listener_is_enough_to_call_every_actor(tmp_path: Path) -> None:
    async def body() -> None:
        async with running() as cluster, direct(tmp_path, cluster) as transport:
            assert await process_of(transport, "controller") == 1
            assert cluster.asked == [], "the file names it"
            assert await process_of(transport, LEADER) == 2
            assert await process_of(transport, LEADER) == 2
            assert cluster.asked == [LEADER], "a connection is kept"

    asyncio.run(body())


def test_whom_the_file_names_is_asked_first_if_nobody_is_connected(tmp_path: Path) -> None:
    async def body() -> None:
        async with running() as cluster, direct(tmp_path, cluster) as transport:
            assert await process_of(transport, LEADER) == 2

    asyncio.run(body())


def test_an_actor_that_moves_is_asked_for_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with running() as cluster, direct(tmp_path, cluster) as transport:
            assert await process_of(transport, LEADER) == 2
            assert await cluster.start(LEADER) == 3
            await drop(transport, LEADER)
            assert await process_of(transport, LEADER) == 3

    asyncio.run(body())


def test_a_controller_elsewhere_is_found_by_others_that_are_connected(tmp_path: Path) -> None:
    """The file still names its former life."""

    async def body() -> None:
        async with running() as cluster, direct(tmp_path, cluster) as transport:
            assert await process_of(transport, "controller") == 1
            assert await process_of(transport, LEADER) == 2
            assert await cluster.start("controller") == 3
            await drop(transport, "controller")
            assert await process_of(transport, "controller") == 3

    asyncio.run(body())


def test_a_cluster_that_starts_again_is_found_by_the_new_file(tmp_path: Path) -> None:
    async def body() -> None:
        async with running() as cluster, direct(tmp_path, cluster) as transport:
            assert await process_of(transport, LEADER) == 2
            await cluster.stop_all()
            await drop(transport, "controller")
            await drop(transport, LEADER)
            gone = ErrorCode.NETWORK_EXCEPTION
            assert [await process_of(transport, one) for one in ("controller", LEADER)] == [
                gone
            ] * 2
            assert await cluster.start("controller") == 3
            assert await cluster.start(LEADER) == 4
            write(tmp_path, cluster.named().to_bytes())
            assert await process_of(transport, LEADER) == 4

    asyncio.run(body())


def test_the_file_of_another_cluster_is_not_followed(tmp_path: Path) -> None:
    async def body() -> None:
        async with running() as cluster, direct(tmp_path, cluster) as transport:
            assert await process_of(transport, "controller") == 1
            await cluster.stop("controller")
            await drop(transport, "controller")
            await cluster.start("controller")
            write(tmp_path, cluster.named(cluster_id="c2").to_bytes())
            assert await process_of(transport, "controller") is ErrorCode.NETWORK_EXCEPTION

    asyncio.run(body())


def test_an_actor_that_does_not_exist_or_only_ray_reaches_is_told_so(tmp_path: Path) -> None:
    async def body() -> None:
        async with running() as cluster, direct(tmp_path, cluster) as transport:
            assert await process_of(transport, "partition:x-0@1") is ErrorCode.NETWORK_EXCEPTION
            cluster.told["partition:y-0@1"] = None
            silent = await transport.call(
                "partition:y-0@1", DescribeReplicaRequest(), timeout_ms=TIMEOUT_MS
            )
            assert "this process has not joined Ray" in silent.detail

    asyncio.run(body())


@pytest.mark.parametrize("identity", [ProgramIdentity(), UserIdentity("alice", PASSWORD)])
def test_the_port_of_a_process_that_has_ended_is_not_called(
    tmp_path: Path, identity: Identity
) -> None:
    """Whoever has it now would be told who the caller is."""

    async def body() -> None:
        async with (
            running(door_of_alice()) as cluster,
            direct(tmp_path, cluster, identity) as transport,
        ):
            alive = cluster.named().process
            assert alive is not None
            former = structs.replace(alive, start_ticks=alive.start_ticks - 1)
            write(tmp_path, cluster.named(process=former).to_bytes())
            for actor in ("controller", LEADER):
                assert await process_of(transport, actor) is ErrorCode.NETWORK_EXCEPTION
            assert cluster.asked == []

    asyncio.run(body())


class Ray:
    """Ray, once it has been joined."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    async def listener_of(
        self, actor: str, *, timeout_ms: int
    ) -> ListenerAddress | ErrorCode | None:
        told = await self._cluster.told_listener(actor, timeout_ms=timeout_ms)
        return told.keyed(RAY_TOKEN) if isinstance(told, ListenerAddress) else told

    async def call(self, actor: str, request: Request[Any], **_: Any) -> Any:
        assert actor == "worker"
        return WorkerStatus(process_id=5)


def test_what_only_ray_carries_fails_until_it_is_joined(tmp_path: Path) -> None:
    async def body() -> None:
        async with running() as cluster, direct(tmp_path, cluster) as transport:
            asked = WorkerStatusRequest()
            refused = await transport.call("worker", asked, timeout_ms=TIMEOUT_MS)
            assert refused.error is ErrorCode.NETWORK_EXCEPTION
            assert "only Ray carries" in refused.detail
            transport.use_ray(Ray(cluster))
            answered = await transport.call("worker", asked, timeout_ms=TIMEOUT_MS)
            assert answered.process_id == 5
            assert await process_of(transport, LEADER) == 2

    asyncio.run(body())


class Silent(Server):
    """Of a build that does not tell where others listen."""

    asked = 0

    async def find_listener(self, request: FindListenerRequest) -> FindListenerReply:
        Silent.asked += 1
        return request.failed(ErrorCode.UNKNOWN_SERVER_ERROR)


def test_few_are_asked_where_an_actor_listens(tmp_path: Path) -> None:
    """A program with connections to a thousand actors waits for no answer of each."""

    async def body() -> None:
        Silent.asked = 0
        silent = [f"partitions:{number}@1" for number in range(2, 8)]
        async with running() as cluster, direct(tmp_path, cluster) as transport:
            transport.use_ray(Ray(cluster))
            for actor in silent:
                await cluster.start(actor, Silent)
                await process_of(transport, actor)
            await process_of(transport, "controller")
            transport._calls.ray = None
            assert await process_of(transport, LEADER) == 2, "whom the file names has told it"
        assert Silent.asked == ASKED_MAX

    asyncio.run(body())


# --- who may ----------------------------------------------------------------------------------


def door_of_alice() -> Door:
    credential = make_credential(PASSWORD, b"salt of 16 bytes", ITERATIONS_MIN)
    users = (User(name="alice", credential=credential),)
    return Door(Access(rules=Rules(version=1, is_on=True), users=users))


def test_without_rays_token_nothing_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has read the file has what Ray would tell, and needs what Ray would want to see."""

    async def body() -> None:
        async with running() as cluster:
            monkeypatch.setenv("RAY_AUTH_TOKEN", "another")
            async with direct(tmp_path, cluster) as transport:
                assert await process_of(transport, "controller") is ErrorCode.NETWORK_EXCEPTION

    asyncio.run(body())


@pytest.mark.parametrize("password", [PASSWORD, "wrong"])
def test_a_user_proves_his_password_to_each_actor(tmp_path: Path, password: str) -> None:
    async def body() -> None:
        identity = UserIdentity("alice", password)
        # He may describe no replica, and is told so by the actor itself.
        expected = (
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            if password == PASSWORD
            else ErrorCode.SASL_AUTHENTICATION_FAILED
        )
        async with (
            running(door_of_alice()) as cluster,
            direct(tmp_path, cluster, identity) as transport,
        ):
            for actor in (LEADER, "controller"):
                assert await process_of(transport, actor) is expected

    asyncio.run(body())


@pytest.mark.parametrize(
    ("identity", "is_told"),
    [(ProgramIdentity(), True), (UserIdentity("alice", PASSWORD), False)],
    ids=("program", "user"),
)
def test_users_are_told_no_token(identity: Identity, is_told: bool) -> None:
    """With it one could pass for a program of the Ray cluster, which may do more."""

    async def body() -> None:
        async with running(door_of_alice()) as cluster:
            address = cluster.told["controller"]
            assert isinstance(address, ListenerAddress)
            connection = await connect(
                address.keyed(RAY_TOKEN), timeout_ms=TIMEOUT_MS, identity=identity
            )
            assert isinstance(connection, ActorConnection)
            reply = await connection.call(FindListenerRequest(actor=LEADER), timeout_ms=TIMEOUT_MS)
            leader = cluster.told[LEADER]
            assert isinstance(leader, ListenerAddress)
            assert (reply.host, reply.port) == (leader.host, leader.port)
            assert reply.token == (leader.token if is_told else b"")
            connection.close()

    asyncio.run(body())


def test_ray_is_asked_about_no_actor_of_others() -> None:
    async def body() -> None:
        async with running() as cluster:
            directory = ListenerDirectory(cluster)
            reply = await directory.find_listener(FindListenerRequest(actor="somebody"))
            assert reply.error is ErrorCode.INVALID_REQUEST
            assert cluster.asked == []

    asyncio.run(body())


def test_few_questions_to_ray_are_open_at_a_time() -> None:
    async def body() -> None:
        gate, open_count = asyncio.Event(), []

        class Slow:
            async def told_listener(self, _actor: str, *, timeout_ms: int) -> None:
                open_count.append(timeout_ms)
                await gate.wait()

        directory = ListenerDirectory(Slow())
        count = 3 * listener_directory.FINDS_AT_ONCE_MAX
        asked = [
            asyncio.ensure_future(directory.find_listener(FindListenerRequest(actor=LEADER)))
            for _ in range(count)
        ]
        await give_turns(20)
        assert len(open_count) == listener_directory.FINDS_AT_ONCE_MAX
        gate.set()
        replies = await asyncio.gather(*asked)
        assert len(open_count) == len(replies) == count

    asyncio.run(body())


def test_a_ray_that_hangs_keeps_few_threads_and_nobody_waiting() -> None:
    async def body() -> None:
        gate, open_count = asyncio.Event(), 0

        class Hanging:
            async def told_listener(self, _actor: str, *, timeout_ms: int) -> None:
                nonlocal open_count
                open_count += 1
                await gate.wait()

        directory = ListenerDirectory(Hanging())
        request = FindListenerRequest(actor=LEADER)
        began_ms = loop_ms()
        count = 2 * listener_directory.FINDS_AT_ONCE_MAX
        replies = await asyncio.gather(*(directory.find_listener(request) for _ in range(count)))
        assert {reply.error for reply in replies} == {ErrorCode.REQUEST_TIMED_OUT}
        assert loop_ms() - began_ms <= listener_directory.FIND_TIMEOUT_MS
        # Their threads hang still.
        again = await directory.find_listener(request)
        assert again.error is ErrorCode.REQUEST_TIMED_OUT
        assert open_count == listener_directory.FINDS_AT_ONCE_MAX
        gate.set()
        assert (await directory.find_listener(request)).error is ErrorCode.NONE

    run_virtually(body())
