"""Who calls an actor, and what it may ask: servers prove that they are some, programs do not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from called_server import TIMEOUT_MS, TOKEN, Server, fetch

from oncelog.actors.protocol.access import NEEDS, Operation
from oncelog.actors.protocol.messages.brokers import PingReply, PingRequest
from oncelog.actors.protocol.messages.cluster import (
    ClusterKeysReply,
    ClusterKeysRequest,
    FindListenerRequest,
    ShutdownReply,
    ShutdownRequest,
)
from oncelog.actors.rpc.actor_transport import ActorConnection, connect
from oncelog.actors.rpc.dispatch import Dispatch
from oncelog.actors.rpc.handshake import (
    NONCE_BYTES,
    ProgramIdentity,
    caller_proof,
    is_caller_proof,
    is_server_proof,
    new_nonce,
    server_proof,
    server_proof_by_ray,
)
from oncelog.actors.rpc.listener import Listener
from oncelog.actors.rpc.message_codec import REQUESTS
from oncelog.storage.errors import ErrorCode

SECRET = b"known to servers"

FOR_SERVERS = {
    "access",
    "allocate_producer_ids",
    "alter_isr",
    "become_leader",
    "broker_heartbeat",
    "cluster_keys",
    "configure",
    "describe_processes",
    "hold_replicas",
    "hosted_replicas",
    "leader_and_isr",
    "learn_access",
    "learn_keys",
    "ping",
    "register_broker",
    "replicate",
    "shutdown",
    "verify_txn",
    "vote",
    "write_txn_markers",
}


def test_each_request_has_its_row_and_there_is_no_other():
    assert {kind.method for kind in NEEDS} == REQUESTS.keys()
    # Whoever may connect is told where to connect, but users no token.
    assert [kind for kind, needs in NEEDS.items() if not needs] == [FindListenerRequest]
    servers = {
        kind.method
        for kind, needs in NEEDS.items()
        if any(need.operation is Operation.CLUSTER_ACTION for need in needs)
    }
    assert servers == FOR_SERVERS


# --- over a connection ----------------------------------------------------------------------------


class Broker(Server):
    """Also answers what only servers ask."""

    async def cluster_keys(self, request: ClusterKeysRequest) -> ClusterKeysReply:
        self.begun.append(len(request.method))
        return ClusterKeysReply()

    async def shutdown(self, request: ShutdownRequest) -> ShutdownReply:
        self.begun.append(len(request.topic_id))
        return ShutdownReply()

    async def ping(self, request: PingRequest) -> PingReply:
        self.begun.append(request.hold_ms)
        return PingReply()


@contextlib.asynccontextmanager
async def called_with(
    caller: bytes, called: bytes = SECRET
) -> AsyncIterator[tuple[Broker, ActorConnection]]:
    """A server that has one secret, and a connection by who has another."""
    server = Broker()
    dispatch = Dispatch(server, on_bug=server.die_of_bug)
    listener = Listener(dispatch, host="127.0.0.1", token=TOKEN, server_secret=called)
    connection = await connect(
        await listener.address(), timeout_ms=TIMEOUT_MS, identity=ProgramIdentity(caller)
    )
    assert isinstance(connection, ActorConnection)
    try:
        yield server, connection
    finally:
        connection.close()
        await listener.close()


@pytest.mark.parametrize(
    "request_", [ClusterKeysRequest(), PingRequest(), ShutdownRequest(remove_data=True)]
)
@pytest.mark.parametrize("caller", [b"", b"guessed"])
def test_a_program_is_refused_what_is_for_servers_and_its_connection_stays(caller, request_):
    async def body() -> None:
        async with called_with(caller) as (server, connection):
            reply = await connection.call(request_, timeout_ms=TIMEOUT_MS)
            assert reply.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert request_.method in reply.detail
            assert "User:ray" in reply.detail
            assert server.begun == []
            read = await connection.call(fetch(3), timeout_ms=TIMEOUT_MS)
            assert bytes(read.records) == b"rrr"

    asyncio.run(body())


@pytest.mark.parametrize(
    ("caller", "called"), [(SECRET, SECRET), (b"", b""), (SECRET, b"")], ids=str
)
def test_a_server_may_ask_and_whoever_has_been_given_no_secret_asks_for_none(caller, called):
    """Ray restarts an actor that an earlier build started without a secret, with this code."""

    async def body() -> None:
        async with called_with(caller, called) as (server, connection):
            for request in (ClusterKeysRequest(), ShutdownRequest(topic_id="t")):
                reply = await connection.call(request, timeout_ms=TIMEOUT_MS)
                assert reply.error is ErrorCode.NONE
            assert len(server.begun) == 2

    asyncio.run(body())


def test_a_proof_is_good_for_its_own_connection_only():
    ours, theirs, nonce = new_nonce(), new_nonce(), new_nonce()
    message = nonce + caller_proof(TOKEN, ours, nonce) + server_proof(SECRET, ours, nonce)
    assert is_caller_proof(TOKEN, ours, message)
    assert is_server_proof(SECRET, ours, message)
    assert not is_server_proof(SECRET, theirs, message)
    assert not is_server_proof(SECRET, ours, message[:-1])
    # Nor does one proof stand for the other.
    swapped = nonce + server_proof(TOKEN, ours, nonce) + caller_proof(SECRET, ours, nonce)
    assert not is_caller_proof(TOKEN, ours, swapped)
    assert not is_server_proof(SECRET, ours, swapped)
    assert not is_caller_proof(TOKEN, ours, message + b"\x00")
    assert len(message) == 3 * NONCE_BYTES


def test_a_proof_that_ray_carries_is_good_for_one_method():
    assert server_proof_by_ray(b"", "vote") == b""
    proofs = {server_proof_by_ray(SECRET, method) for method in FOR_SERVERS}
    assert len(proofs) == len(FOR_SERVERS)
