"""Group coordinators of a cluster, and clients of Kafka that ask them through a gateway's handlers.

The coordinators are real, each on a directory; calls between them and the gateway go through
``GroupCluster.call``, where a test can lose or hold them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from msgspec import structs
from replicas import TOPIC_ID, leading, replica_of
from topics import topic_of
from virtual_time import ManualClock

from oncelog.actors.config import ClusterConfig
from oncelog.actors.coordination.cluster_view import ClusterView
from oncelog.actors.gateway.calls import Call, Client, Cluster
from oncelog.actors.gateway.groups import membership, offsets
from oncelog.actors.gateway.messages.apis import APIS, ApiKey
from oncelog.actors.gateway.messages.delete_groups import DeleteGroupsRequest
from oncelog.actors.gateway.messages.describe_groups import DescribeGroupsRequest
from oncelog.actors.gateway.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from oncelog.actors.gateway.messages.leave_group import LeaveGroupRequest, MemberIdentity
from oncelog.actors.gateway.messages.list_groups import ListGroupsRequest
from oncelog.actors.gateway.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.actors.gateway.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from oncelog.actors.gateway.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from oncelog.actors.groups.group_coordinator import GroupCoordinator, group_settings
from oncelog.actors.protocol.access import Principal
from oncelog.actors.protocol.messages.access import Access, Acl, Rules
from oncelog.actors.protocol.messages.cluster import MetadataReply, MetadataRequest
from oncelog.actors.protocol.messages.group import TxnOffsetCommitRequest
from oncelog.actors.protocol.messages.partition import (
    ListOffsetsReply,
    ListOffsetsRequest,
    TxnMarker,
    WriteTxnMarkersRequest,
)
from oncelog.actors.protocol.messages.share import ShareGroupHeartbeatRequest
from oncelog.actors.protocol.tickets import ClusterKeys, issue_ticket
from oncelog.actors.rpc.door import Door
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TopicPartition, shard_of

KEY = b"key" * 10
SHARDS = 2
GROUP = "billing"
OTHER_GROUP = next(
    name for name in map("group{}".format, range(9)) if shard_of(name, 2) != shard_of(GROUP, 2)
)
"""A group of the other coordinator."""

HANDLERS = {**membership.HANDLERS, **offsets.HANDLERS}


class GroupCluster:
    """``Transport``: the coordinators of ``SHARDS`` shards, and a controller.

    ``failing[method]`` are errors that the next calls of a method get, unseen by any coordinator;
    ``losing[method]`` says how many replies are lost, of calls that have had their effect.
    ``holding[method]`` is an event for which its calls wait.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.topic_ids = {"flights": "f1" * 16, "delays": "d1" * 16}
        self.coordinators: dict[str, GroupCoordinator] = {}
        self.leaders = [1] * SHARDS
        """The broker that leads each shard, as the controller says; its actor is that one's."""
        self.replicas: tuple[int, ...] | None = None
        """Brokers with a copy of each shard, if it is not its leader alone."""
        self.is_controller_away = False
        self.lookups = 0
        self.calls: list[tuple[str, Any, int]] = []
        """Actor, request and timeout of each call of a coordinator."""
        self.failing: defaultdict[str, list[ErrorCode]] = defaultdict(list)
        self.losing: Counter[str] = Counter()
        self.holding: dict[str, asyncio.Event] = {}
        self._sequences: Counter[int] = Counter()
        self._starts = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self.acls: tuple[Acl, ...] | None = None
        """``None`` until the rules are switched on."""
        self.cluster = self.new_cluster()

    def new_cluster(self) -> Cluster:
        """What a gateway that starts anew knows."""
        is_on = self.acls is not None
        rules = Rules(version=1, is_on=is_on, acls=self.acls or ())
        return Cluster(
            transport=self,
            door=Door(Access(rules=rules)),
            view=ClusterView(self._metadata, self._spawn),
            clock=self.clock,
            random=Random(1),
            broker_id=1,
        )

    def allow(self, *acls: Acl) -> None:
        """Switch the rules on: clients may do this and no more."""
        self.acls = acls
        self.cluster = self.new_cluster()

    def client(self, name: str = "User:ann", client_id: str | None = "app") -> KafkaClient:
        return KafkaClient(self, name, client_id)

    # --- coordinators -------------------------------------------------------------------------

    async def start(self) -> None:
        for shard in range(SHARDS):
            await self.start_shard(shard)

    async def start_shard(self, shard: int) -> None:
        """Start a coordinator on its directory, on the broker that leads it."""
        config = ClusterConfig()
        replica = replica_of(
            TopicPartition(CONSUMER_OFFSETS_TOPIC, shard),
            self.directory,
            leading(keys=ClusterKeys(current=KEY), offsets_partitions=SHARDS),
            environment={"clock": self.clock},
            cluster=config,
        )
        self._starts += 1
        coordinator = GroupCoordinator(
            replica=replica,
            transport=self,
            clock=self.clock,
            random=Random(self._starts),
            drivers=self,
            settings=group_settings(config),
            on_failure=self._broken,
        )
        await replica.start()
        await coordinator.load()
        self.coordinators[f"group:{shard}@{self.leaders[shard]}"] = coordinator

    async def move(self, shard: int, *, to: int) -> None:
        """End a coordinator, and start it on another broker: it knows what its log says."""
        coordinator = self.coordinators.pop(f"group:{shard}@{self.leaders[shard]}")
        coordinator.resign()
        await coordinator.replica.stop()
        self.leaders[shard] = to
        await self.start_shard(shard)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        for coordinator in self.coordinators.values():
            coordinator.resign()
            await coordinator.replica.stop()

    def is_gone(self, *_: Any, **__: Any) -> bool:
        return False

    def _broken(self, error: BaseException) -> None:
        raise error

    # --- transport ----------------------------------------------------------------------------

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        if isinstance(request, MetadataRequest):
            return await self._metadata(request)
        if isinstance(request, ListOffsetsRequest):
            return ListOffsetsReply(offset=0)
        self.calls.append((actor, request, timeout_ms))
        method = request.method
        if method in self.holding:
            await self.holding[method].wait()
        if self.failing[method]:
            return request.failed(self.failing[method].pop(0))
        if actor not in self.coordinators:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        reply = await getattr(self.coordinators[actor], method)(request)
        if self.losing[method]:
            self.losing[method] -= 1
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        return reply

    def asked(self, method: str) -> list[Any]:
        """The requests of a method that coordinators were sent."""
        return [request for _, request, _ in self.calls if request.method == method]

    async def _metadata(self, request: MetadataRequest) -> MetadataReply:
        self.lookups += 1
        if self.is_controller_away:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        internal = topic_of(CONSUMER_OFFSETS_TOPIC, *self.leaders)
        if self.replicas is not None:
            copied = tuple(
                structs.replace(one, replicas=self.replicas) for one in internal.partitions
            )
            internal = structs.replace(internal, partitions=copied)
        known = [internal]
        known += [topic_of(name, 1, 1, topic_id=its) for name, its in self.topic_ids.items()]
        reply = MetadataReply(
            topics=tuple(one for one in known if one.name in (request.topics or ())),
            offsets_partitions=SHARDS,
        )
        if request.method in self.holding:
            await self.holding[request.method].wait()
        return reply

    def _spawn(self, work: Any) -> asyncio.Task[MetadataReply]:
        task: asyncio.Task[MetadataReply] = asyncio.get_running_loop().create_task(work)
        self.tasks = [one for one in self.tasks if not one.done()] + [task]
        return task

    # --- transactions -------------------------------------------------------------------------

    async def txn_commit(self, group_id: str, *positions: Any, pid: int = 7) -> ErrorCode:
        """Commit positions in an open transaction of the producer ``pid``."""
        shard = shard_of(group_id, SHARDS)
        ticket = issue_ticket(
            cluster_key=KEY,
            producer_id=pid,
            producer_epoch=0,
            transactional_id="loader",
            topic_id=TOPIC_ID,
            partition=shard,
            issued_ms=self.clock.now_ms(),
            transaction_timeout_ms=60_000,
        )
        request = TxnOffsetCommitRequest(
            transactional_id="loader",
            group_id=group_id,
            producer_id=pid,
            producer_epoch=0,
            base_sequence=self._sequences[pid],
            offsets=positions,
            ticket=ticket,
        )
        self._sequences[pid] += len(positions)
        reply = await self._coordinator(shard).txn_offset_commit(request)
        assert all(one.error is ErrorCode.NONE for one in reply.results)
        return reply.error

    async def end_transaction(self, group_id: str, *, committed: bool, pid: int = 7) -> None:
        shard = shard_of(group_id, SHARDS)
        marker = TxnMarker(
            producer_id=pid,
            producer_epoch=1,
            committed=committed,
            partitions=(TopicPartition(CONSUMER_OFFSETS_TOPIC, shard),),
        )
        request = WriteTxnMarkersRequest(coordinator_epoch=0, markers=(marker,))
        (result,) = (await self._coordinator(shard).write_txn_markers(request)).results
        assert result.error is ErrorCode.NONE

    def _coordinator(self, shard: int) -> GroupCoordinator:
        return self.coordinators[f"group:{shard}@{self.leaders[shard]}"]

    def coordinator_of(self, group_id: str) -> GroupCoordinator:
        return self._coordinator(shard_of(group_id, SHARDS))


class KafkaClient:
    """One connection. What a handler answers must have a form in bytes, in the version asked."""

    def __init__(self, world: GroupCluster, name: str, client_id: str | None) -> None:
        self.world = world
        self.connection = Client(principal=Principal(name), host="10.0.0.9")
        self.client_id = client_id

    async def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        assert version in APIS[key].versions
        call = Call(
            cluster=self.world.cluster,
            client=self.connection,
            version=version,
            client_id=self.client_id,
        )
        response = await HANDLERS[key](call, request)
        APIS[key].encode[version](response)
        return response

    def begin(self, key: ApiKey, version: int, request: Any) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(self.ask(key, version, request))

    async def join(self, member_id: str = "", version: int = 9, **fields: Any) -> JoinGroupResponse:
        values: dict[str, Any] = {
            "group_id": GROUP,
            "session_timeout_ms": 45_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": [JoinGroupRequestProtocol("range", memoryview(b"\0\1flights"))],
        }
        request = JoinGroupRequest(**{**values, "member_id": member_id, **fields})
        response: JoinGroupResponse = await self.ask(ApiKey.JOIN_GROUP, version, request)
        return response

    async def enter(self, version: int = 9, **fields: Any) -> JoinGroupResponse:
        """Join as a new member, with the id that the first answer gives."""
        first = await self.join(version=version, **fields)
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return await self.join(first.member_id, version, **fields)

    async def sync(
        self,
        joined: JoinGroupResponse,
        assignments: dict[str, bytes] | None = None,
        version: int = 5,
        **fields: Any,
    ) -> SyncGroupResponse:
        values: dict[str, Any] = {
            "group_id": GROUP,
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "assignments": [
                SyncGroupRequestAssignment(member_id, memoryview(assignment))
                for member_id, assignment in (assignments or {}).items()
            ],
        }
        if version >= 5:
            values |= {"protocol_type": "consumer", "protocol_name": joined.protocol_name}
        request = SyncGroupRequest(**{**values, **fields})
        response: SyncGroupResponse = await self.ask(ApiKey.SYNC_GROUP, version, request)
        return response


def queue_member(group_id: str) -> ShareGroupHeartbeatRequest:
    """What a worker of a queue sends first, by which its group comes to be."""
    return ShareGroupHeartbeatRequest(group_id=group_id, member_id="w", topics=("flights",))


async def delete_group(client: KafkaClient, *names: str, version: int = 2) -> dict[str, int]:
    """Delete groups; their error codes."""
    request = DeleteGroupsRequest(groups_names=list(names))
    response = await client.ask(ApiKey.DELETE_GROUPS, version, request)
    return {one.group_id: one.error_code for one in response.results}


def play(directory: Path, story: Callable[[GroupCluster], Any]) -> None:
    """Run a story with a cluster whose coordinators have started."""

    async def body() -> None:
        world = GroupCluster(directory)
        await world.start()
        try:
            await story(world)
        finally:
            await world.stop()

    asyncio.run(asyncio.wait_for(body(), 240))


async def leave(client: KafkaClient, *members: MemberIdentity, version: int = 5) -> Any:
    """Have members leave; the response."""
    request = LeaveGroupRequest(group_id=GROUP, members=list(members))
    return await client.ask(ApiKey.LEAVE_GROUP, version, request)


async def describe(client: KafkaClient, *names: str, version: int = 6, **fields: Any) -> Any:
    """The descriptions of groups."""
    request = DescribeGroupsRequest(groups=list(names), **fields)
    response = await client.ask(ApiKey.DESCRIBE_GROUPS, version, request)
    return response.groups


async def listed(client: KafkaClient, version: int = 5, **fields: Any) -> Any:
    """The response to ListGroups."""
    return await client.ask(ApiKey.LIST_GROUPS, version, ListGroupsRequest(**fields))


def commit_of(offset: int, *, group_id: str = GROUP, **fields: Any) -> OffsetCommitRequest:
    """The request that commits a position in partition 0 of flights."""
    partition = OffsetCommitRequestPartition(0, offset)
    topic = OffsetCommitRequestTopic(name="flights", partitions=[partition])
    return OffsetCommitRequest(group_id=group_id, topics=[topic], **fields)


async def commit(client: KafkaClient, offset: int, **fields: Any) -> int:
    """The error code of such a commit."""
    response = await client.ask(ApiKey.OFFSET_COMMIT, 9, commit_of(offset, **fields))
    code: int = response.topics[0].partitions[0].error_code
    return code


async def position(client: KafkaClient, group_id: str = GROUP) -> int:
    """What a group has committed there."""
    topic = OffsetFetchRequestTopics(name="flights", partition_indexes=[0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id, topics=[topic])])
    response = await client.ask(ApiKey.OFFSET_FETCH, 9, request)
    assert response.groups[0].error_code == ErrorCode.NONE
    offset: int = response.groups[0].topics[0].partitions[0].committed_offset
    return offset
