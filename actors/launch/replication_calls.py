"""The calls by which a replica replicates: what it answers, and what it asks of others."""

from __future__ import annotations

import asyncio

from oncelog.actors.config import ReplicaConfig
from oncelog.actors.interfaces import CONTROLLER_ACTOR, Transport, address_of
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.messages.brokers import OfflineReplica, PingReply, PingRequest
from oncelog.actors.protocol.messages.cluster import (
    AlterIsrReply,
    AlterIsrRequest,
    LeaderAndIsrReply,
    LeaderAndIsrRequest,
)
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.protocol.partition.in_sync import IsrProposal
from oncelog.actors.replica.replica import Replica
from oncelog.storage.errors import ErrorCode


class ReplicationCalls:
    """Half of a replica's server. ``only_topic_id``: see ``ReplicaServer``."""

    config: ReplicaConfig
    replica: Replica
    transport: Transport
    is_loaded = False
    """Whether it has loaded what is on top of the replica."""
    failure: str
    only_topic_id: str

    async def ping(self, request: PingRequest) -> PingReply:
        """Answer: this process lives."""
        await asyncio.sleep(request.hold_ms / 1000)
        return PingReply(
            offline_replicas=self.offline_replicas(), refusing_replicas=self.refusing_replicas()
        )

    def offline_replicas(self) -> tuple[OfflineReplica, ...]:
        """This replica, if it neither leads nor follows for a reason of its own; else nothing."""
        replica = self.replica
        reason = self.failure or replica.failure or replica.waits_for
        if not reason or replica.is_following or self.is_serving():
            return ()
        known = self.only_topic_id or replica.leadership.topic_id
        topic_id = known or replica.directory.claimed_topic_id
        return (OfflineReplica(topic_partition=replica.topic_partition, topic_id=topic_id),)

    def refusing_replicas(self) -> tuple[OfflineReplica, ...]:
        """This replica, if its disk refuses appends, to a leader for too long; else nothing."""
        replica, cluster = self.replica, self.config.cluster
        lasts_ms = replica.refusal.lasts_ms(loop_ms())
        is_leading = replica.availability() is ErrorCode.NONE
        limit_ms = cluster.disk_refusal_time_max_ms if is_leading else 0
        if lasts_ms is None or lasts_ms < limit_ms or self.offline_replicas():
            return ()
        topic_id = replica.leadership.topic_id
        return (OfflineReplica(topic_partition=replica.topic_partition, topic_id=topic_id),)

    def is_serving(self) -> bool:
        """Whether it leads, and has loaded its log."""
        return self.is_loaded and self.replica.availability() is ErrorCode.NONE

    async def replicate(self, request: ReplicateRequest) -> ReplicateReply:
        """Take what the leader pushes."""
        if request.topic_partition != self.replica.topic_partition:
            return request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return await self.replica.replicate(request)

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrReply:
        """Take what the controller has recorded."""
        if request.topic_partition != self.replica.topic_partition:
            return request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return LeaderAndIsrReply(error=self.replica.learn_leadership(request.leadership))

    async def send_push(self, broker_id: int, request: ReplicateRequest) -> ReplicateReply:
        """Push to the follower on a broker."""
        leadership = self.replica.leadership
        hosts = dict(zip(leadership.replicas, leadership.hosts, strict=True))
        if broker_id not in hosts:
            return request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        follower = Placement(
            request.topic_partition, leadership.topic_id, broker_id, hosts[broker_id]
        )
        timeout_ms = self.config.cluster.internal_call_timeout_ms
        return await self.transport.call(address_of(follower), request, timeout_ms=timeout_ms)

    async def propose_isr(self, proposal: IsrProposal) -> AlterIsrReply:
        """Ask the controller to change the ISR."""
        replica = self.replica
        request = AlterIsrRequest(
            topic_partition=replica.topic_partition,
            topic_id=replica.leadership.topic_id,
            broker_id=self.config.broker_id,
            leader_epoch=replica.leader_epoch,
            partition_version=proposal.partition_version,
            isr=proposal.isr,
        )
        timeout_ms = self.config.cluster.internal_call_timeout_ms
        return await self.transport.call(CONTROLLER_ACTOR, request, timeout_ms=timeout_ms)
