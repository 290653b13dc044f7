"""A group coordinator on a real directory, with a disk the test can hold or break."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from actor_environment import HeldBackground
from replicas import TOPIC_ID, leading, replica_of
from virtual_time import ManualClock

from oncelog.actors.config import ClusterConfig
from oncelog.actors.groups.group_coordinator import GroupCoordinator, group_settings
from oncelog.actors.protocol.messages.cluster import (
    MetadataReply,
    MetadataRequest,
    PartitionMetadata,
    TopicMetadata,
)
from oncelog.actors.protocol.messages.group import (
    DeleteGroupRequest,
    DescribeGroupsRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupReply,
    JoinGroupRequest,
    MemberAssignment,
    OffsetAndMetadata,
    OffsetCommitReply,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupReply,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from oncelog.actors.protocol.messages.partition import (
    FetchReply,
    FetchRequest,
    ListOffsetsReply,
    ListOffsetsRequest,
    TxnMarker,
    WriteTxnMarkersRequest,
)
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.actors.protocol.tickets import ClusterKeys, issue_ticket
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TopicPartition

KEY = b"key" * 10
FLIGHTS_ID = "f1" * 16
OFFSETS = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)
TP = TopicPartition("flights", 0)
GROUP = "billing"
RETENTION_MS = 604_800_000


class Controller:
    """Answers which topics there are, not ``is_away``, and as their leaders where they end.

    The leader of a partition in ``silent`` does not answer. ``fetch`` answers fetches, for all of
    them; logs begin at ``starts``, or at 0.

    Also the watch of processes: those in ``gone`` have ended.
    """

    def __init__(self, topic_ids: dict[str, str]) -> None:
        self.topic_ids = topic_ids
        self.is_away = False
        self.questions = 0
        self.ends: dict[TopicPartition, int] = {}
        self.silent: set[TopicPartition] = set()
        self.starts: dict[TopicPartition, int] = {}
        self.fetch: Callable[[FetchRequest], FetchReply] = lambda request: FetchReply()
        self.gone: set[DriverProcess] = set()

    def is_gone(self, driver: DriverProcess, *, is_member: bool = False) -> bool:
        return driver in self.gone

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        if isinstance(request, ListOffsetsRequest):
            if request.topic_partition in self.silent:
                return request.failed(ErrorCode.REQUEST_TIMED_OUT)
            end = self.ends[request.topic_partition]
            start = self.starts.get(request.topic_partition, 0)
            return ListOffsetsReply(offset=end if request.timestamp_ms == -1 else start)
        if isinstance(request, FetchRequest):
            if request.topic_partition in self.silent:
                return request.failed(ErrorCode.REQUEST_TIMED_OUT)
            return self.fetch(request)
        assert isinstance(request, MetadataRequest)
        self.questions += 1
        if self.is_away:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        found = sorted(set(request.topics or ()) & self.topic_ids.keys())
        return MetadataReply(
            topics=tuple(
                TopicMetadata(
                    name=name,
                    topic_id=self.topic_ids[name],
                    partitions=tuple(
                        PartitionMetadata(
                            partition=tp.partition,
                            leader=1,
                            leader_epoch=0,
                            replicas=(1,),
                            isr=(1,),
                        )
                        for tp in sorted(self.ends)
                        if tp.topic == name
                    ),
                )
                for name in found
            )
        )


class Shard:
    """One coordinator, short ways to use it, and restarts of its process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.offsets_partitions = 1
        self.background: HeldBackground
        self.coordinator: GroupCoordinator
        self.failures: list[BaseException] = []
        self.controller = Controller({"flights": FLIGHTS_ID})
        self._starts = 0
        self._sequences: Counter[tuple[int, int]] = Counter()

    async def start(self, *, loads: bool = True) -> None:
        cluster = ClusterConfig()
        self.background = HeldBackground()
        replica = replica_of(
            OFFSETS,
            self.directory,
            leading(keys=ClusterKeys(current=KEY), offsets_partitions=self.offsets_partitions),
            environment={"clock": self.clock, "background": self.background},
            cluster=cluster,
        )
        self._starts += 1
        self.coordinator = GroupCoordinator(
            replica=replica,
            transport=self.controller,
            clock=self.clock,
            random=Random(self._starts),
            drivers=self.controller,
            settings=group_settings(cluster),
            on_failure=self.failures.append,
        )
        await replica.start()
        if loads:
            await self.coordinator.load()

    async def stop(self) -> None:
        self.background.gate.set()
        self.coordinator.resign()
        await self.coordinator.replica.stop()

    async def crash(self) -> None:
        """End as a killed process does, and start again."""
        self.coordinator.resign()
        self.coordinator.replica.directory.release()
        await self.start()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    # --- requests -------------------------------------------------------------------------

    async def join(self, member_id: str = "", **fields: Any) -> JoinGroupReply:
        values: dict[str, Any] = {
            "group_id": GROUP,
            "protocols": (GroupProtocol(name="range", metadata=b""),),
        }
        request = JoinGroupRequest(**{**values, "member_id": member_id, **fields})
        return await self.coordinator.join_group(request)

    async def enter(self, **fields: Any) -> JoinGroupReply:
        refused = await self.join(**fields)
        assert refused.error is ErrorCode.MEMBER_ID_REQUIRED
        return await self.join(refused.member_id, **fields)

    async def sync(self, joined: JoinGroupReply, assignment: bytes = b"all") -> SyncGroupReply:
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=(MemberAssignment(member_id=joined.member_id, assignment=assignment),),
        )
        return await self.coordinator.sync_group(request)

    async def heartbeat(self, joined: JoinGroupReply, **fields: Any) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            **fields,
        )
        return (await self.coordinator.heartbeat(request)).error

    async def commit(self, offset: int, **fields: Any) -> ErrorCode:
        values: dict[str, Any] = {
            "group_id": GROUP,
            "offsets": ((TP, OffsetAndMetadata(offset=offset)),),
        }
        reply = await self.coordinator.offset_commit(OffsetCommitRequest(**{**values, **fields}))
        return reply.error if reply.error is not ErrorCode.NONE else reply.results[0].error

    async def txn_commit(self, offset: int, **fields: Any) -> ErrorCode:
        offsets = ((TP, OffsetAndMetadata(offset=offset)),)
        return (await self.txn_commit_reply(**{"offsets": offsets, **fields})).error

    async def txn_commit_reply(
        self, *, pid: int = 7, epoch: int = 0, **fields: Any
    ) -> OffsetCommitReply:
        values: dict[str, Any] = {"group_id": GROUP, **self.transaction(pid, epoch)}
        request = TxnOffsetCommitRequest(**{**values, **fields})
        self._sequences[pid, epoch] = request.base_sequence + len(request.offsets)
        return await self.coordinator.txn_offset_commit(request)

    def transaction(self, pid: int, epoch: int) -> dict[str, Any]:
        """The fields of a request in a transaction."""
        ticket = issue_ticket(
            cluster_key=KEY,
            producer_id=pid,
            producer_epoch=epoch,
            transactional_id="loader",
            topic_id=TOPIC_ID,
            partition=0,
            issued_ms=self.clock.now_ms(),
            transaction_timeout_ms=60_000,
        )
        return {
            "transactional_id": "loader",
            "producer_id": pid,
            "producer_epoch": epoch,
            "base_sequence": self._sequences[pid, epoch],
            "ticket": ticket,
        }

    async def mark(
        self, *, committed: bool, pid: int = 7, epoch: int = 1, tp: TopicPartition = OFFSETS
    ) -> ErrorCode:
        marker = TxnMarker(
            producer_id=pid, producer_epoch=epoch, committed=committed, partitions=(tp,)
        )
        request = WriteTxnMarkersRequest(coordinator_epoch=0, markers=(marker,))
        (result,) = (await self.coordinator.write_txn_markers(request)).results
        assert (result.producer_id, result.topic_partition) == (pid, tp)
        return result.error

    async def position(self, *, require_stable: bool = True) -> int | ErrorCode:
        request = OffsetFetchRequest(
            group_id=GROUP, partitions=(TP,), require_stable=require_stable
        )
        reply = await self.coordinator.offset_fetch(request)
        if reply.error is not ErrorCode.NONE:
            return reply.error
        fetched = reply.offsets[0]
        return fetched.offset if fetched.error is ErrorCode.NONE else fetched.error

    async def state(self) -> str | None:
        reply = await self.coordinator.describe_groups(DescribeGroupsRequest())
        assert reply.error is ErrorCode.NONE
        return reply.groups[0].state if reply.groups else None

    async def delete(self) -> ErrorCode:
        return (await self.coordinator.delete_group(DeleteGroupRequest(group_id=GROUP))).error


Scenario = Callable[[Shard], Awaitable[None]]
Play = Callable[[Scenario], None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    def run(scenario: Scenario) -> None:
        async def body() -> None:
            shard = Shard(tmp_path)
            await shard.start()
            try:
                await scenario(shard)
            finally:
                await shard.stop()

        asyncio.run(body())

    return run


@pytest.fixture
def new_shard() -> type[Shard]:
    """A coordinator that the test starts itself."""
    return Shard
