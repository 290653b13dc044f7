"""One transaction coordinator in virtual time: its transport in memory, its replicas on disk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from actor_environment import AtOnceBackground
from replicas import replica_of
from virtual_time import START_MS, run_virtually

from oncelog.actors.config import ClusterConfig
from oncelog.actors.coordination.cluster_view import ClusterView
from oncelog.actors.interfaces import CONTROLLER_ACTOR, transaction_actor
from oncelog.actors.protocol.messages.base import ReplyT, Request
from oncelog.actors.protocol.messages.cluster import (
    AllocateProducerIdsReply,
    AllocateProducerIdsRequest,
    BecomeLeaderReply,
    MetadataReply,
    MetadataRequest,
    PartitionMetadata,
    TopicMetadata,
)
from oncelog.actors.protocol.messages.partition import (
    MarkerResult,
    WriteTxnMarkersReply,
    WriteTxnMarkersRequest,
)
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.actors.protocol.tickets import ClusterKeys
from oncelog.actors.replica.partition_leader import PartitionLeader
from oncelog.actors.replica.replica import Replica
from oncelog.actors.transactions.completions import MarkerSender
from oncelog.actors.transactions.transaction_coordinator import TransactionCoordinator
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)

CLUSTER_KEY = b"k" * 32
SHARD = TopicPartition(TRANSACTION_STATE_TOPIC, 0)


class CoordinatorWorld:
    """The controller, a transport, and whatever actors a test puts behind it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rng = random.Random(1)
        self.config = ClusterConfig()
        self.calls: list[tuple[int, str, Request[Any]]] = []
        self.actors: dict[str, Any] = {CONTROLLER_ACTOR: self.controller}
        self.leaders: dict[TopicPartition, int] = {}
        self.leader_epochs: dict[TopicPartition, int] = {}
        self.topic_ids: dict[str, str] = {}
        self.next_producer_id = 1_000
        self.next_incarnation = 0
        self.next_epoch = 5
        self.cluster_key_version = 0
        self.clock_offset_ms = 0
        self.running: list[Any] = []
        self.gone: list[DriverProcess] = []
        for number in range(2):
            self.add_partition(TopicPartition(CONSUMER_OFFSETS_TOPIC, number))
        self.add_partition(SHARD)

    # --- time and calls ---

    def now_ms(self) -> int:
        return START_MS + self.clock_offset_ms + self.passed_ms()

    def passed_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1_000)

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def body() -> None:
            try:
                await scenario()
            finally:
                for one in reversed(self.running):
                    await one.stop()

        run_virtually(body())

    async def call(self, actor: str, request: Request[ReplyT], *, timeout_ms: int) -> ReplyT:
        self.calls.append((self.passed_ms(), actor, request))
        await asyncio.sleep(0.001)
        handler = self.actors.get(actor)
        if handler is None:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        if not callable(handler):
            handler = getattr(handler, request.method)
        try:
            reply: ReplyT = await asyncio.wait_for(handler(request), timeout_ms / 1_000)
        except asyncio.TimeoutError:
            return request.failed(ErrorCode.REQUEST_TIMED_OUT)
        return reply

    def calls_of(self, method: str) -> list[tuple[int, str, Any]]:
        return [call for call in self.calls if call[2].method == method]

    # --- the cluster ---

    async def controller(self, request: Request[Any]) -> Any:
        if isinstance(request, AllocateProducerIdsRequest):
            first, self.next_producer_id = self.next_producer_id, self.next_producer_id + 1_000
            return AllocateProducerIdsReply(first_producer_id=first, count=1_000)
        assert isinstance(request, MetadataRequest)
        topics: dict[str, list[PartitionMetadata]] = {}
        for tp, leader in sorted(self.leaders.items()):
            topics.setdefault(tp.topic, []).append(
                PartitionMetadata(
                    partition=tp.partition,
                    leader=leader,
                    leader_epoch=self.leader_epochs.get(tp, 0),
                    replicas=(),
                    isr=(),
                )
            )
        return MetadataReply(
            topics=tuple(
                TopicMetadata(
                    name=name, topic_id=self.topic_ids[name], partitions=tuple(topics[name])
                )
                for name in request.topics or ()
                if name in topics
            ),
            transaction_state_partitions=1,
            offsets_partitions=2,
            cluster_key_version=self.cluster_key_version,
        )

    def add_partition(self, tp: TopicPartition, leader: int = 1) -> None:
        self.leaders[tp] = leader
        self.topic_ids.setdefault(tp.topic, f"{len(self.topic_ids):032x}")

    def answer_markers(
        self, actor: str, *answers: ErrorCode, then: ErrorCode = ErrorCode.NONE
    ) -> None:
        """Make ``actor`` answer markers with ``answers`` in turn, and from then on ``then``."""
        left = list(answers)

        async def handler(request: WriteTxnMarkersRequest) -> WriteTxnMarkersReply:
            error = left.pop(0) if left else then
            return WriteTxnMarkersReply(
                results=tuple(
                    MarkerResult(producer_id=marker.producer_id, topic_partition=tp, error=error)
                    for marker in request.markers
                    for tp in marker.partitions
                )
            )

        self.actors[actor] = handler

    # --- what is under test ---

    def cluster_view(self) -> ClusterView:
        return ClusterView(
            lambda request: self.call(CONTROLLER_ACTOR, request, timeout_ms=5_000),
            asyncio.create_task,
        )

    def marker_sender(self, cluster: ClusterView | None = None) -> MarkerSender:
        return MarkerSender(
            transport=self,
            cluster=cluster or self.cluster_view(),
            rng=self.rng,
            call_timeout_ms=5_000,
            shard=SHARD,
        )

    def replica(self, tp: TopicPartition) -> Replica:
        async def epoch_source(_last_epoch: int) -> BecomeLeaderReply:
            self.next_epoch += 1
            self.leader_epochs[tp] = self.next_epoch
            return BecomeLeaderReply(
                leader_epoch=self.next_epoch,
                topic_id=self.topic_ids.get(tp.topic, "0" * 32),
                keys=ClusterKeys(current=CLUSTER_KEY),
                transaction_state_partitions=1,
                offsets_partitions=2,
            )

        replica: Replica = replica_of(
            tp,
            self.directory,
            epoch_source,
            environment={"clock": self, "background": AtOnceBackground()},
            cluster=self.config,
        )
        return replica

    async def coordinator(self, **fields: Any) -> TransactionCoordinator:
        """Start a coordinator; what stopped before it is found again in its log."""
        replica = self.replica(SHARD)
        coordinator = TransactionCoordinator(
            replica=replica,
            transport=self,
            clock=self,
            rng=self.rng,
            drivers=self,
            **{"on_failure": _report, **fields},
        )
        await replica.start()
        await coordinator.load()
        self.running += [replica, coordinator]
        self.actors[transaction_actor(0, 1)] = coordinator
        return coordinator

    def is_gone(self, driver: DriverProcess, *, is_member: bool = False) -> bool:
        """See ``DriverWatch``: whom ``gone`` holds."""
        return driver in self.gone

    async def crash(self, coordinator: TransactionCoordinator) -> None:
        """End a coordinator, whatever it was doing."""
        self.running.remove(coordinator)
        self.running.remove(coordinator.replica)
        await coordinator.stop()
        await coordinator.replica.stop()

    async def partition(self, tp: TopicPartition) -> PartitionLeader:
        """Start the real leader of a partition."""
        self.add_partition(tp)
        replica = self.replica(tp)
        leader = PartitionLeader(replica=replica, clock=self)
        await replica.start()
        self.running.append(replica)
        self.actors[f"partition:{tp}@1"] = leader
        return leader


def _report(error: BaseException) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": "a task of the transaction coordinator failed", "exception": error}
    )
