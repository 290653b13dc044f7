"""Waiting for a log to serve: what ends the wait before its time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog.actors.protocol.messages.cluster import MetadataReply
from oncelog.api.session import cluster_connection
from oncelog.api.session.cluster_connection import wait_until_ready
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import ConnectionFailedError, SaslAuthenticationFailedError


class Silent:
    """No actor answers."""

    def __init__(self) -> None:
        self.calls = 0

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        self.calls += 1
        return request.failed(ErrorCode.NETWORK_EXCEPTION)


def test_nobody_waits_for_a_log_whose_node_has_died() -> None:
    """1. A program connects. 2. The node of the log dies. 3. Ray notices, and so does the wait."""
    transport = Silent()

    def away() -> str:
        return "that node is away" if transport.calls > 1 else ""

    with pytest.raises(ConnectionFailedError, match="that node is away"):
        asyncio.run(wait_until_ready(transport, away))
    assert transport.calls == 2


class Unled:
    """A controller that serves, where nobody leads a shard of the coordinators."""

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        return MetadataReply()


def test_shards_without_a_leader_are_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_connection, "READY_TIMEOUT_MS", 0)
    with pytest.raises(ConnectionFailedError, match="some coordinator shards have no leader"):
        asyncio.run(wait_until_ready(Unled()))


class Refusing:
    """A controller that the caller cannot log in at."""

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        return request.failed(ErrorCode.SASL_AUTHENTICATION_FAILED, "it takes only Ray's calls")


def test_nobody_waits_for_a_log_that_refuses_him() -> None:
    with pytest.raises(SaslAuthenticationFailedError, match="it takes only Ray's calls"):
        asyncio.run(wait_until_ready(Refusing()))
