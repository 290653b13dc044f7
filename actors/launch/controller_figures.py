"""The figures of the cluster that its controller alone knows: of brokers, leaders and moves."""

from __future__ import annotations

from oncelog.actors.process.metrics import (
    BROKER_FENCED,
    LEADER_ELECTIONS,
    OFFLINE_PARTITION_COUNT,
    REASSIGNMENT_COUNT,
    MetricSink,
)
from oncelog.actors.protocol.cluster.machine import ClusterMachine
from oncelog.actors.protocol.cluster.state import NO_LEADER


class ControllerFigures:
    """``broker_id`` is the controller's own. A report looks at every partition."""

    def __init__(self, *, machine: ClusterMachine, metrics: MetricSink, broker_id: int) -> None:
        self._machine = machine
        self._metrics = metrics
        self._tags = {"broker": str(broker_id)}
        self._reported_election_count = 0

    def report(self, loaded_election_count: int) -> None:
        """Report, but for elections that were in the log already when it was loaded."""
        machine, metrics = self._machine, self._metrics
        known_count = max(self._reported_election_count, loaded_election_count)
        metrics.add(LEADER_ELECTIONS, machine.election_count - known_count, self._tags)
        self._reported_election_count = machine.election_count
        partitions = [one for topic in machine.topics.values() for one in topic.partitions]
        offline_count = sum(one.leader == NO_LEADER for one in partitions)
        metrics.set(OFFLINE_PARTITION_COUNT, offline_count, self._tags)
        metrics.set(REASSIGNMENT_COUNT, sum(one.is_moving for one in partitions), self._tags)
        for broker_id, broker in machine.broker_states.items():
            metrics.set(BROKER_FENCED, int(broker.is_fenced), {"broker": str(broker_id)})
