"""What is told to an address where a Ray cluster may be, and what an error says of it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from issued_certificates import Authority

from oncelog.actors.rpc.certificates import AUTHORITY, CERTIFICATE, KEY
from oncelog.api.session import ray_cluster
from oncelog.storage.exceptions import ConnectionFailedError


def test_an_error_names_what_was_given_and_what_was_called() -> None:
    """Ray takes 127.0.0.1 for the address of its node, where nothing may listen."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        called = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(ConnectionFailedError) as raised:
            ray_cluster.ray_cluster_at(called, "localhost:1")
        assert f"address='localhost:1', which Ray takes for {called}, (" in str(raised.value)
        with pytest.raises(ConnectionFailedError) as raised:
            ray_cluster.ray_cluster_at(called, called)
        assert "which Ray takes for" not in str(raised.value)


class Ray(grpc.GenericRpcHandler):
    """A control store that demands a token, and keeps those that it was shown."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def service(self, details: Any) -> Any:
        self.tokens += [str(v) for name, v in details.invocation_metadata if "auth" in name]

        def answer(_: bytes, context: Any) -> bytes:
            if not self.tokens:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "a token")
            return b"cluster"

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def has_token(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = (("authorization", "Bearer secret"),)
    monkeypatch.setattr(ray_cluster, "_token_headers", lambda: headers)


@contextlib.contextmanager
def served(credentials: Any = None) -> Iterator[tuple[Ray, str]]:
    with ThreadPoolExecutor(1) as threads:
        store = Ray()
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((store,))
        if credentials is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        try:
            yield store, f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The addresses of the clusters that nodes of this machine and user are in."""
    known: set[str] = set()
    monkeypatch.setattr(ray_cluster, "raylet_addresses", lambda: set(known))
    return known


@pytest.mark.usefixtures("has_token")
def test_a_token_goes_only_to_a_cluster_that_a_node_of_this_machine_is_in(nodes) -> None:
    with served() as (store, address):
        for known in (set(), {"127.0.0.1:1", "192.0.2.77:1"}):
            nodes.clear()
            nodes |= known
            with pytest.raises(ConnectionFailedError, match="token is not sent there") as raised:
                ray_cluster.ray_cluster_at(address, address)
            assert f"ray start --address {address}" in raised.value.advice
        assert store.tokens == []
        nodes.add(address)
        assert ray_cluster.ray_cluster_at(address, address) == (address, b"cluster")
        assert store.tokens == ["Bearer secret"]


@pytest.mark.usefixtures("has_token")
def test_a_cluster_is_joined_by_the_address_that_its_node_here_uses(nodes) -> None:
    """A name that means it now may mean another host when it is resolved again."""
    with served() as (store, address):
        nodes.add(address)
        port = address.rpartition(":")[2]
        for name in (f"localhost:{port}", f"{socket.gethostname()}:{port}"):
            assert ray_cluster.ray_cluster_at(name, name) == (address, b"cluster")
        assert len(store.tokens) == 2
        with pytest.raises(ConnectionFailedError):
            ray_cluster.ray_cluster_at(f"a..b:{port}")


@pytest.mark.usefixtures("has_token", "nodes")
def test_an_address_that_was_named_to_be_trusted_is_told_the_token(monkeypatch) -> None:
    with served() as (store, address):
        monkeypatch.setenv(ray_cluster.TRUSTED_VARIABLE, f"elsewhere:1, {address}")
        assert ray_cluster.ray_cluster_at(address) == (address, b"cluster")
        assert store.tokens == ["Bearer secret"]


@pytest.mark.usefixtures("has_token")
def test_a_cluster_under_rays_certificates_is_found_and_no_other_gets_the_token(
    monkeypatch, tmp_path
) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    for issuer in (ours, theirs):
        issued = issuer.issue("127.0.0.1")
        key, chain, root = (
            Path(issued[name]).read_bytes() for name in (KEY, CERTIFICATE, AUTHORITY)
        )
        credentials = grpc.ssl_server_credentials([(key, chain)], root, True)
        for name, text in ours.issue("127.0.0.1").items():
            monkeypatch.setenv(name, text)
        with served(credentials) as (store, address):
            if issuer is ours:
                assert ray_cluster.ray_cluster_at(address, address) == (address, b"cluster")
                assert store.tokens == ["Bearer secret"]
            else:
                monkeypatch.setattr(ray_cluster, "TIMEOUT_S", 1.0)
                with pytest.raises(ConnectionFailedError):
                    ray_cluster.ray_cluster_at(address, address)
                assert store.tokens == []
