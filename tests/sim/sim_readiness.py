"""What a simulated world should hold, and whether it does its part."""

from __future__ import annotations

from typing import Any

from oncelog.actors.interfaces import CONTROLLER_ACTOR, actor_of, broker_actor, holder_of
from oncelog.actors.launch.broker import Broker
from oncelog.actors.launch.host import Host
from oncelog.actors.protocol.cluster.cluster_state import NO_LEADER
from oncelog.actors.protocol.cluster.hosts import Placement
from oncelog.actors.protocol.cluster.quorum import VOTERS_MAX
from oncelog.actors.replica.replica import Replica
from oncelog.storage.model import TopicPartition


class Readiness:
    """The part of ``World`` that asks the controller what there is; mixed into it."""

    def placements(self) -> list[Placement]:
        """Every replica that the controller knows; none while it is dead."""
        controller = self.server(CONTROLLER_ACTOR)
        return [] if controller is None else controller.shell.machine.placements()

    def replicas_of(self, topic_partition: TopicPartition) -> list[Placement]:
        """Where the controller has the replicas of a partition, the preferred leader first."""
        return [one for one in self.placements() if one.topic_partition == topic_partition]

    def placement_of(self, topic_partition: TopicPartition) -> Placement | None:
        """Where a partition is led, or should be while nobody leads; ``None`` if unknown."""
        replicas = self.replicas_of(topic_partition)
        if not replicas:
            return None
        topic = self.server(CONTROLLER_ACTOR).shell.machine.topics[topic_partition.topic]
        leader = topic.partitions[topic_partition.partition].leader
        if leader == NO_LEADER:
            return replicas[0]
        return next(one for one in replicas if one.broker_id == leader)

    def leads(self, replica: Replica) -> bool:
        """Whether nobody else does: as the controller has it, if it lives."""
        placement = self.placement_of(replica.topic_partition)
        return placement is None or placement.broker_id == replica.config.broker_id

    def leaders(self) -> dict[str, Replica]:
        """Every living replica that leads, by the name of an actor that holds just that."""
        replicas = self.replicas().items()
        return {name: replica for name, replica in replicas if self.leads(replica)}

    def is_serving(self) -> bool:
        """Whether everything that the controller knows is ready."""
        controller = self.server(CONTROLLER_ACTOR)
        if controller is None or not controller.shell.runtime.is_loaded:
            return False
        if controller.replica.failure is not None:
            # It has loaded, and its disk has failed since: an operator restarts it.
            return False
        return bool(self.placements()) and not self.unready()

    def unready(self) -> list[str]:
        """The actors that the controller knows, or should know, and that do not serve."""
        if self.server(CONTROLLER_ACTOR) is None:
            return [CONTROLLER_ACTOR]
        names = [actor_of(one.topic_partition, one.broker_id) for one in self.placements()]
        others = [number for number in self.node_numbers() if number != self.controller_node]
        names += [broker_actor(number) for number in others]
        return [name for name in names if not self.is_ready(name)] + self.out_of_sync()

    def out_of_sync(self) -> list[str]:
        """The replicas that are not in sync, and partitions that nobody leads."""
        topics = self.server(CONTROLLER_ACTOR).shell.machine.topics
        found = []
        for placement in self.placements():
            tp = placement.topic_partition
            partition = topics[tp.topic].partitions[tp.partition]
            if partition.leader == NO_LEADER or placement.broker_id not in partition.isr:
                found.append(f"in sync: {actor_of(tp, placement.broker_id)}")
        return found

    def unfenced(self) -> list[int]:
        """The brokers that may have replicas."""
        brokers = self.server(CONTROLLER_ACTOR).shell.machine.broker_states
        return [number for number, broker in brokers.items() if not broker.is_fenced]

    def is_spare(self, number: int) -> bool:
        """Whether a node is in sync in no partition, so that nothing is lost with its disks.

        And in the metadata log the only one that lacks anything.
        """
        voters = self.voters()
        is_needed = any(one.is_behind for one in voters if one.broker_id != number)
        if is_needed or len(voters) < VOTERS_MAX:
            return False
        topics = self.server(CONTROLLER_ACTOR).shell.machine.topics.values()
        return not any(number in one.isr for topic in topics for one in topic.partitions)

    def is_copied(self) -> bool:
        """Whether every replica has all that its leader has, and the leaders know that."""
        leaders = {one.topic_partition: one.machine for one in self.leaders().values()}
        if any(one.high_watermark != one.log_end_offset for one in leaders.values()):
            return False
        for replica in self.replicas().values():
            leader = leaders.get(replica.topic_partition)
            if leader is None:
                return False
            machine = replica.machine
            if machine.log_end_offset != leader.log_end_offset:
                return False
        return True

    def is_ready(self, name: str) -> bool:
        """Whether the actor, or the replica in its host, lives and does its part."""
        process = self.actor(name)
        server = self.server(name)
        if process is not None and isinstance(server, Host):
            return bool(held := self._held_by(name)) and all(map(self.is_ready, held))
        if isinstance(server, Broker):
            return server.is_registered
        return server is not None and self.is_replica_ready(server)

    def is_replica_ready(self, server: Any) -> bool:
        """Whether a replica does its part: it leads and has loaded its log, or it follows."""
        replica = server.replica
        if not self.leads(replica):
            return replica.is_following
        return server.is_serving() and server.maintenance.is_running

    def _held_by(self, host: str) -> list[str]:
        """What a host should hold, whether it does yet or not; nothing without a controller."""
        return [
            actor_of(one.topic_partition, one.broker_id)
            for one in self.placements()
            if holder_of(one) == host
        ]
