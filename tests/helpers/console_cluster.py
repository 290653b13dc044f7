"""A cluster in memory for the console: what its pages ask, answered for each user."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

from aiohttp.test_utils import TestClient, TestServer
from fake_cluster import FakeCluster
from msgspec import structs

from oncelog.actors.protocol.messages.cluster import (
    BrokerMetadata,
    MetadataReply,
    MetadataRequest,
    VoterMetadata,
)
from oncelog.actors.protocol.messages.group import (
    DescribeGroupsReply,
    DescribeGroupsRequest,
    GroupDescription,
)
from oncelog.actors.protocol.messages.partition import (
    DescribeProducersReply,
    DescribeProducersRequest,
    DescribeReplicaReply,
    DescribeReplicaRequest,
    ProducerDescription,
)
from oncelog.actors.protocol.messages.share import (
    DescribeShareGroupReply,
    DescribeShareGroupRequest,
)
from oncelog.actors.protocol.messages.transaction import (
    DescribeTransactionsReply,
    DescribeTransactionsRequest,
    TransactionDescription,
)
from oncelog.api.console.server import Options, make_app
from oncelog.api.console.snapshot import Link
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

PASSWORDS = {"alice": "of alice", "bob": "of bob"}


class ConsoleCluster:
    """See ``ConnectedCluster``. ``log`` has what is in the topics; the rest is in fields here.

    ``calls`` has (user, request) of each call; the console itself is the user "".
    """

    address = "10.0.0.1:6379"

    def __init__(self) -> None:
        self.log = FakeCluster()
        self.brokers: tuple[BrokerMetadata, ...] = (BrokerMetadata(broker_id=1, data_dir="/data"),)
        self.voters: tuple[VoterMetadata, ...] = (VoterMetadata(broker_id=1, is_controller=True),)
        self.settings: tuple[tuple[str, str], ...] = ()
        self.groups: list[GroupDescription] = []
        self.transactions: list[TransactionDescription] = []
        self.producers: dict[TopicPartition, tuple[ProducerDescription, ...]] = {}
        self.share = DescribeShareGroupReply()
        self.running: list[Any] = []
        self.passwords = dict(PASSWORDS)
        self.calls: list[tuple[str, Any]] = []
        self.refusals: dict[tuple[str, type], ErrorCode] = {}
        """What a user is refused, by user and type of request."""
        self.is_gone = False
        self.hooks: dict[type, Callable[[Any], Any]] = {}
        self.closed: list[str] = []

    def transport_as(self, identity: Any) -> tuple[Any, Callable[[], None]]:
        name = "" if identity is None else identity.name
        password = "" if identity is None else identity.password
        return _As(self, name, password), lambda: self.closed.append(name)

    def jobs(self) -> list[Any]:
        return self.running

    async def call(
        self, user: str, password: str, actor: str, request: Any, timeout_ms: int
    ) -> Any:
        self.calls.append((user, request))
        if self.is_gone:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        if user and self.passwords.get(user) != password:
            return request.failed(ErrorCode.SASL_AUTHENTICATION_FAILED, "not with this password")
        if refusal := self.refusals.get((user, type(request))):
            return request.failed(refusal, f"User:{user} may not {request.method}")
        hook = self.hooks.get(type(request)) or self._answers().get(type(request))
        reply = hook(request) if hook is not None else None
        if reply is not None:
            return reply
        reply = await self.log.call(actor, request, timeout_ms=timeout_ms)
        if isinstance(request, MetadataRequest):
            return self._with_brokers(reply)
        if isinstance(request, DescribeReplicaRequest):
            return self._replica(actor, request)
        return reply

    def _with_brokers(self, reply: MetadataReply) -> MetadataReply:
        return structs.replace(
            reply,
            brokers=self.brokers,
            voters=self.voters,
            version="1.2.3",
            cluster_id="c" * 32,
            settings=self.settings,
        )

    def _replica(self, actor: str, request: DescribeReplicaRequest) -> DescribeReplicaReply:
        tp = request.topic_partition
        if tp is None:
            name, _, number = actor.partition(":")[2].partition("@")[0].rpartition("-")
            tp = TopicPartition(name, int(number)) if name else TopicPartition(actor, 0)
        log = self.log.logs.get(tp)
        bounds = {}
        if log is not None:
            bounds = {
                "log_start_offset": log.log_start_offset,
                "last_stable_offset": log.last_stable_offset,
                "high_watermark": log.log_end_offset,
                "log_end_offset": log.log_end_offset,
                "open_transaction_count": len(log.open_from),
            }
        return DescribeReplicaReply(
            topic_partition=tp,
            process_id=7,
            is_leader=True,
            isr=(1,),
            leader_epoch=0,
            size_bytes=1_000,
            directory="/data",
            disk_size_bytes=1_000_000,
            disk_free_bytes=250_000,
            **bounds,
        )

    def _answers(self) -> dict[type, Callable[[Any], Any]]:
        return {
            DescribeGroupsRequest: self._describe_groups,
            DescribeTransactionsRequest: self._describe_transactions,
            DescribeProducersRequest: lambda request: DescribeProducersReply(
                producers=self.producers.get(request.topic_partition, ())
            ),
            DescribeShareGroupRequest: lambda request: self.share,
        }

    def _describe_groups(self, request: DescribeGroupsRequest) -> DescribeGroupsReply:
        wanted = request.group_ids
        found = [one for one in self.groups if wanted is None or one.group_id in wanted]
        # Each shard is asked; only one of them has the groups.
        if wanted is None and sum(isinstance(one, type(request)) for _, one in self.calls) % 2:
            found = []
        return DescribeGroupsReply(groups=tuple(found))

    def _describe_transactions(
        self, request: DescribeTransactionsRequest
    ) -> DescribeTransactionsReply:
        wanted = request.transactional_ids
        found = [
            one
            for one in self.transactions
            if (wanted is None or one.transactional_id in wanted)
            and (not request.producer_ids or one.producer_id in request.producer_ids)
        ]
        if wanted is None and sum(isinstance(one, type(request)) for _, one in self.calls) % 2:
            found = []
        return DescribeTransactionsReply(transactions=tuple(found))

    def asked(self, kind: type, user: str = "") -> list[Any]:
        return [one for who, one in self.calls if isinstance(one, kind) and who == user]


class _As:
    """``Transport`` of one user."""

    def __init__(self, cluster: ConsoleCluster, user: str, password: str) -> None:
        self._cluster, self._user, self._password = cluster, user, password

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        return await self._cluster.call(self._user, self._password, actor, request, timeout_ms)


@contextlib.asynccontextmanager
async def console_of(
    cluster: ConsoleCluster | None, **options: Any
) -> AsyncIterator[TestClient[Any, Any]]:
    """A browser without scripts before a console of ``cluster``."""
    link = Link()
    if cluster is not None:
        link.replace(cluster)
    else:
        link.lose("there is no cluster")
    app = make_app(link, Options(**options), Random(1))
    async with TestClient(TestServer(app)) as client:
        yield client


def token_of(page: str) -> str:
    """The token of a page's forms."""
    match = re.search(r'name="token" value="([0-9a-f]+)"', page)
    assert match is not None, page
    return match[1]


async def log_in(
    client: TestClient[Any, Any], user: str = "alice", password: str = "of alice", **headers: str
) -> Any:
    """Log in by the form; the reply to it."""
    page = await (await client.get("/login")).text()
    origin = f"http://{client.host}:{client.port}"
    return await client.post(
        "/login",
        data={"user": user, "password": password, "token": token_of(page)},
        headers={"Origin": origin, **headers},
        allow_redirects=False,
    )
