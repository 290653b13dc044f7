"""The controller's machine and rules for a topic of one partition: what its replicas ask of it."""

from __future__ import annotations

from cluster_worlds import CLUSTER_ID, TOPIC_ID, ClusterWorld
from replica_model import PARTITION

from oncelog.actors.protocol.cluster.brokers import decide_heartbeat, decide_register, fence
from oncelog.actors.protocol.cluster.cluster_state import PartitionState, TopicState
from oncelog.actors.protocol.cluster.elections import decide_alter_isr
from oncelog.actors.protocol.cluster.reassignment import complete, decide_reassign
from oncelog.actors.protocol.messages.brokers import (
    BrokerHeartbeatRequest,
    ReassignPartitionRequest,
    RegisterBrokerRequest,
)
from oncelog.actors.protocol.messages.cluster import AlterIsrReply, AlterIsrRequest
from oncelog.actors.protocol.partition.followers import IsrProposal
from oncelog.actors.protocol.partition.replication import PartitionAssignment
from oncelog.storage.errors import ErrorCode


class OnePartition(ClusterWorld):
    """The topic is created by who is derived from this."""

    @property
    def topic(self) -> TopicState:
        return self.machine.topics[PARTITION.topic]

    @property
    def partition(self) -> PartitionState:
        return self.topic.partitions[0]

    def assignment(self) -> PartitionAssignment:
        partition = self.partition
        return PartitionAssignment(
            leader_epoch=partition.leader_epoch,
            partition_version=partition.version,
            replicas=partition.replicas,
            isr=partition.isr,
        )

    def is_fenced(self, broker_id: int) -> bool:
        return self.machine.broker_states[broker_id].is_fenced

    def fence(self, broker_id: int) -> None:
        self.apply(fence(self.machine.topics, self.machine.broker_states, broker_id))

    def register_again(self, broker_id: int, directory_id: str = "") -> ErrorCode:
        """The broker registers, as it does when it starts; on another disk if that is named."""
        request = RegisterBrokerRequest(
            broker_id=broker_id,
            data_dir=f"/d{broker_id}",
            directory_id=directory_id or f"directory {broker_id}",
            cluster_id=CLUSTER_ID,
        )
        machine = self.machine
        decided = decide_register(machine.topics, machine.broker_states, request, CLUSTER_ID)
        return self.run(decided).error

    def beat(self, broker_id: int) -> None:
        machine = self.machine
        epoch = machine.broker_states[broker_id].broker_epoch
        request = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch)
        self.run(decide_heartbeat(machine.topics, machine.broker_states, request))

    def alter_isr(self, broker_id: int, leader_epoch: int, proposal: IsrProposal) -> AlterIsrReply:
        request = AlterIsrRequest(
            topic_partition=PARTITION,
            topic_id=TOPIC_ID,
            broker_id=broker_id,
            leader_epoch=leader_epoch,
            partition_version=proposal.partition_version,
            isr=proposal.isr,
        )
        machine = self.machine
        reply = self.run(decide_alter_isr(machine.topics, machine.broker_states, request))
        self.move_on()
        return reply

    def reassign(self, replicas: tuple[int, ...]) -> None:
        """Begin, or cancel, a move of the partition."""
        machine = self.machine
        request = ReassignPartitionRequest(topic_partition=PARTITION, replicas=replicas)
        self.run(decide_reassign(machine.topics, machine.broker_states, request))

    def move_on(self) -> None:
        """What the controller looks for at times: a move may be complete since it began."""
        self.apply(complete(self.topic, 0, self.machine.broker_states))
