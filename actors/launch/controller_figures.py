"""The figures of the cluster that its controller alone knows: brokers, leaders, moves, voters."""

from __future__ import annotations

from oncelog.actors.process.clock import loop_ms
from oncelog.actors.process.metrics import (
    BROKER_FENCED,
    LAGGING_VOTER_COUNT,
    LEADER_ELECTIONS,
    OFFLINE_PARTITION_COUNT,
    REASSIGNMENT_COUNT,
    VOTER_COUNT,
    VOTER_LAG,
    VOTER_LAG_MS,
    MetricSink,
)
from oncelog.actors.protocol.cluster.machine import ClusterMachine
from oncelog.actors.protocol.cluster.state import NO_LEADER
from oncelog.actors.protocol.partition.quorum_replication import QuorumReplication


class ControllerFigures:
    """``broker_id`` is the controller's own. A report looks at every partition."""

    def __init__(self, *, machine: ClusterMachine, metrics: MetricSink, broker_id: int) -> None:
        self._machine = machine
        self._metrics = metrics
        self._broker_id = broker_id
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

    def report_voters(self, quorum: QuorumReplication) -> None:
        """Report how far the voters are behind the controller's log."""
        metrics = self._metrics
        others = quorum.voters - {self._broker_id}
        metrics.set(VOTER_COUNT, len(quorum.voters), self._tags)
        metrics.set(LAGGING_VOTER_COUNT, len(others - quorum.caught_up()), self._tags)
        for broker_id, (lag, lag_ms) in quorum.voter_lags(loop_ms()).items():
            metrics.set(VOTER_LAG, lag, {"broker": str(broker_id)})
            metrics.set(VOTER_LAG_MS, lag_ms, {"broker": str(broker_id)})
