"""One server without Ray: its clock, its controller and its metrics sink."""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path
from typing import Any

from replicas import surroundings_of
from virtual_time import START_MS

from oncelog.actors.config import ClusterConfig, ReplicaConfig
from oncelog.actors.coordination.process_watch import ProcessWatch
from oncelog.actors.launch.assembly import ReplicaServer, shell_of
from oncelog.actors.launch.server_metrics import DiskMetrics
from oncelog.actors.process.metrics import METRICS, Kind, parts
from oncelog.actors.process.process_table import ProcessTable
from oncelog.actors.protocol.messages.cluster import (
    AllocateProducerIdsReply,
    AllocateProducerIdsRequest,
    BecomeLeaderReply,
    BecomeLeaderRequest,
    MetadataReply,
    MetadataRequest,
    PartitionMetadata,
    TopicMetadata,
)
from oncelog.actors.protocol.tickets import ClusterKeys
from oncelog.storage.disk.file_system import DiskSpace
from oncelog.storage.model import TopicPartition

KEY = b"k" * 32
HISTOGRAM_PARTS = {
    part for metric in METRICS if metric.kind is Kind.HISTOGRAM for part in parts(metric)
}


class ServerWorld:
    """Clock, transport and sink of one server. ``leader_epoch`` is what the controller tells.

    ``told`` has the name of each metric that was set or added to, in order; ``values`` their last
    values, those of a counter in sum, whatever the tags. ``answers`` are what others say to a type
    of request instead of what they usually do: a reply, or a function of the request.
    """

    def __init__(self) -> None:
        self.time_ms = START_MS
        self.values: dict[str, float] = {}
        self.told: list[str] = []
        self.leader_epoch = 1
        self.is_led = False
        self.disk_space: Any = lambda _path: DiskSpace(free_bytes=30, size_bytes=100)
        self.deaths: list[BaseException] = []
        self.tags: set[tuple[tuple[str, str], ...]] = set()
        self.answers: dict[type, Any] = {}
        self.asked: Counter[type] = Counter()

    def now_ms(self) -> int:
        return self.time_ms

    def set(self, metric: Any, value: float, tags: Any) -> None:
        assert metric in METRICS
        assert metric.kind is Kind.GAUGE
        self._note(metric, value, tags)

    def add(self, metric: Any, amount: float, tags: Any) -> None:
        assert metric.kind is Kind.COUNTER
        assert metric in METRICS or metric in HISTOGRAM_PARTS
        self._note(metric, self.values.get(metric.name, 0) + amount, tags)

    def _note(self, metric: Any, value: float, tags: Any) -> None:
        assert tuple(tags) == metric.tags
        self.values[metric.name] = value
        self.tags.add(tuple(tags.items()))
        self.told.append(metric.name)

    async def call(self, actor: str, request: Any, *, timeout_ms: int) -> Any:
        self.asked[type(request)] += 1
        answer = self.answers.get(type(request))
        if answer is not None:
            reply = answer(request) if callable(answer) else answer
            return await reply if inspect.isawaitable(reply) else reply
        assert actor == "controller"
        if isinstance(request, BecomeLeaderRequest):
            self.is_led = True
            return BecomeLeaderReply(
                leader_epoch=1,
                topic_id="a" * 32,
                keys=ClusterKeys(current=KEY),
                transaction_state_partitions=1,
                offsets_partitions=1,
            )
        if isinstance(request, AllocateProducerIdsRequest):
            return AllocateProducerIdsReply(first_producer_id=1_000, count=1_000)
        assert isinstance(request, MetadataRequest)
        partition = PartitionMetadata(
            partition=0,
            leader=1,
            leader_epoch=self.leader_epoch if self.is_led else -1,
            replicas=(),
            isr=(),
        )
        topic = TopicMetadata(name="flights", topic_id="a" * 32, partitions=(partition,))
        return MetadataReply(topics=(topic,))

    def server(
        self, tp: TopicPartition, directory: Path, *, new_shell: Any = shell_of, **settings: int
    ) -> Any:
        config = ReplicaConfig(
            topic=tp.topic,
            partition=tp.partition,
            broker_id=1,
            data_dir=str(directory),
            cluster=ClusterConfig(**settings),
        )
        environment = surroundings_of(
            self,
            self,
            self.deaths.append,
            drivers=ProcessWatch(ProcessTable("here"), self, on_failure=self.deaths.append),
            metrics=self,
            disk_metrics=DiskMetrics(self.disk_space),
        )
        return ReplicaServer(config, environment, new_shell)


async def stop(server: Any) -> None:
    server.metrics.stop()
    await server.maintenance.stop()
    await server.stop_serving(remove_data=False)
