"""Report the metrics of one replica, of its disk and certificate, and of the cluster.

``process/metrics.py`` defines them. A report of an idle replica takes some 30 µs. The reports of a
process are spread over the interval, so that they do not block its event loop together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from zlib import crc32

from oncelog.actors.config import ReplicaConfig, data_directories
from oncelog.actors.interfaces import Clock
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.process.metrics import (
    APPENDED_BYTES,
    APPENDED_RECORDS,
    BROKER_FENCED,
    CERTIFICATE_EXPIRES_SECONDS,
    CUT_BYTES,
    DAMAGED_PLACE_COUNT,
    DISK_FREE_BYTES,
    DISK_REFUSING,
    DISK_SIZE_BYTES,
    FETCHED_BYTES,
    FETCHED_RECORDS,
    FOLLOWER_CUTS,
    FOLLOWER_FETCHES,
    HIGH_WATERMARK_LAG,
    ISR_EXPANDS,
    ISR_SHRINKS,
    LAGGING_VOTER_COUNT,
    LAST_STABLE_OFFSET,
    LAST_STABLE_OFFSET_LAG,
    LATE_GRACE_MS,
    LATE_TRANSACTION_COUNT,
    LEADER_ELECTIONS,
    LEADER_EPOCH,
    LOG_SIZE_BYTES,
    NO_METRICS,
    OFFLINE_DIRECTORY,
    OFFLINE_PARTITION_COUNT,
    OLDEST_OPEN_TRANSACTION_AGE_MS,
    OPEN_TRANSACTION_COUNT,
    PRODUCER_ID_COUNT,
    PUSHED_BYTES,
    REASSIGNMENT_COUNT,
    REPLICA_OFFLINE,
    REPLICATED_BYTES,
    REPLICATION_LAG,
    REPLICATION_LAG_MS,
    SEGMENT_COUNT,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    VOTER_COUNT,
    VOTER_LAG,
    VOTER_LAG_MS,
    Metric,
    MetricSink,
    TransactionAges,
)
from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.cluster.cluster_state import NO_LEADER
from oncelog.actors.protocol.partition.quorum_replication import QuorumReplication
from oncelog.actors.replica.log_directories import offline_directories
from oncelog.actors.replica.replica import Replica
from oncelog.actors.rpc.certificates import Certificates
from oncelog.storage.disk.file_system import DiskSpace, RealFileSystem, disk_space
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidSettingError

_logger = logging.getLogger(__name__)

PHASES: Final = 2**32
"""Number of different moments in the interval for a replica's reports."""


def _offline(data_dir: str) -> Mapping[Path, str]:
    return offline_directories(RealFileSystem(), data_dir)


class DiskMetrics:
    """Reports the disk space of the data directories, once per interval for all replicas.

    ``space_of`` is None if there is no real disk; ``offline`` tells which of several directories
    cannot be used, and why.
    """

    def __init__(
        self,
        space_of: Callable[[Path], DiskSpace] | None = disk_space,
        offline: Callable[[str], Mapping[Path, str]] = _offline,
    ) -> None:
        self._space_of = space_of
        self._offline = offline
        self._due_s = 0.0

    def report(self, config: ReplicaConfig, sink: MetricSink, now_s: float) -> None:
        """Set the metrics if that is due. Without any if the disk does not answer."""
        if self._space_of is None or now_s < self._due_s:
            return
        self._due_s = now_s + config.cluster.metrics_interval_ms / 1_000
        paths = data_directories(config.data_dir)
        offline = self._offline(config.data_dir) if len(paths) > 1 else {}
        for path in paths:
            tags = {"broker": str(config.broker_id), "directory": str(path)}
            if len(paths) > 1:
                sink.set(OFFLINE_DIRECTORY, int(path in offline), tags)
            if path in offline:
                _logger.warning(
                    "the data directory %s cannot be used: %s — mount or repair its disk",
                    *(path, offline[path]),
                )
                continue
            try:
                space = self._space_of(path)
            except OSError as error:
                _logger.warning(
                    "cannot tell the space on the disk of %s: %s — mount or repair it",
                    *(path, error),
                )
                continue
            sink.set(DISK_FREE_BYTES, space.free_bytes, tags)
            sink.set(DISK_SIZE_BYTES, space.size_bytes, tags)

    def place_of(self, replica: Replica) -> tuple[str, DiskSpace | None]:
        """The data directory of a replica, and the space of its disk if that answers."""
        path = replica.directory.path.parent
        if self._space_of is None:
            return str(path), None
        try:
            return str(path), self._space_of(path)
        except OSError as error:
            _logger.warning(
                "cannot tell the space on the disk of %s: %s — mount or repair it", path, error
            )
            return str(path), None


NO_DISK: Final = DiskMetrics(None)


class CertificateMetrics:
    """Reports once per interval when the certificate of this process expires, if it has one."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates
        self._due_s = 0.0

    def report(self, config: ReplicaConfig, sink: MetricSink, *, now_s: float, now_ms: int) -> None:
        """Set the metric if that is due: ``now_s`` is monotonic, ``now_ms`` the time of day."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + config.cluster.metrics_interval_ms / 1_000
        try:
            expires_at_ms = self._certificates.expires_at_ms()
        except (InvalidSettingError, OSError) as error:
            _logger.warning(
                "cannot tell when the certificate expires: %s — put a sound one in its file", error
            )
            return
        if expires_at_ms is not None:
            left_s = (expires_at_ms - now_ms) // 1_000
            sink.set(CERTIFICATE_EXPIRES_SECONDS, left_s, {"broker": str(config.broker_id)})


class ReplicaMetrics:
    """Reports the metrics of one replica every ``metrics_interval_ms``, also while it is offline.

    ``has_failed``: its server could not start. ``on_bug`` gets an exception of a report.
    """

    def __init__(
        self,
        *,
        replica: Replica,
        clock: Clock,
        sink: MetricSink,
        disk: DiskMetrics,
        certificates: CertificateMetrics | None = None,
        has_failed: Callable[[], bool],
        on_bug: Callable[[BaseException], None],
    ) -> None:
        config = replica.config
        self.ages = TransactionAges(
            late_after_ms=config.cluster.transaction_max_timeout_ms + LATE_GRACE_MS
        )
        self.sink = sink
        self._replica = replica
        self._clock = clock
        self._disk = disk
        self._certificates = certificates
        self._has_failed = has_failed
        self._on_bug = on_bug
        self._tags = {
            "topic": config.topic,
            "partition": str(config.partition),
            "broker": str(config.broker_id),
        }
        self._reported: dict[str, int] = {}
        """Counter name → total already reported."""
        self._raised: set[str] = set()
        """The gauges that rest at zero and are above it now."""
        self._timer: asyncio.TimerHandle | None = None

    # --- when -----------------------------------------------------------------------------

    def start(self, report: Callable[[], None]) -> None:
        """Call ``report`` once per interval; the first time within one interval."""
        phase = crc32(repr(sorted(self._tags.items())).encode())
        self._wait(report, (phase + 1) / PHASES)

    def _wait(self, report: Callable[[], None], intervals: float) -> None:
        delay_s = intervals * self._replica.config.cluster.metrics_interval_ms / 1_000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._report_now, report)

    def _report_now(self, report: Callable[[], None]) -> None:
        try:
            report()
        except Exception as bug:
            self._on_bug(bug)
        else:
            self._wait(report, 1.0)

    def stop(self) -> None:
        """Stop reporting. A second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()

    # --- what -----------------------------------------------------------------------------

    def observe_transactions(self) -> None:
        """Update the ages of open transactions; log when one is late."""
        known_count = self.ages.late_count
        ongoing = self._replica.machine.producers.transactions.ongoing
        self.ages.observe(ongoing, self._clock.now_ms())
        if self.ages.late_count > known_count:
            _logger.warning(
                "%s: %d transactions are open for longer than any may be — look with "
                "`oncelog transactions find-hanging`",
                self._replica.topic_partition,
                self.ages.late_count,
            )

    def report(self) -> None:
        """Report the metrics that every replica has."""
        replica = self._replica
        is_offline = bool(replica.failure or replica.waits_for) or self._has_failed()
        self.set(REPLICA_OFFLINE, int(is_offline))
        self.set(DISK_REFUSING, int(replica.refusal.lasts_ms(loop_ms()) is not None))
        now_s = asyncio.get_running_loop().time()
        self._disk.report(replica.config, self.sink, now_s)
        if self._certificates is not None:
            now_ms = self._clock.now_ms()
            self._certificates.report(replica.config, self.sink, now_s=now_s, now_ms=now_ms)
        self._report_counters()
        if replica.availability() is ErrorCode.NONE:
            self.observe_transactions()
            if self.sink is not NO_METRICS:
                self._report_leader()
        if self.sink is not NO_METRICS and replica.upkeep_error() is ErrorCode.NONE:
            self._report_log()

    def _report_counters(self) -> None:
        counters = self._replica.counters
        self._add(APPENDED_BYTES, counters.appended_bytes)
        self._add(APPENDED_RECORDS, counters.appended_records)
        self._add(FETCHED_BYTES, counters.fetched_bytes)
        self._add(FETCHED_RECORDS, counters.fetched_records)
        self._add(ISR_SHRINKS, counters.isr_shrinks)
        self._add(ISR_EXPANDS, counters.isr_expands)
        self._add(PUSHED_BYTES, counters.pushed_bytes)
        self._add(REPLICATED_BYTES, counters.replicated_bytes)
        self._add(FOLLOWER_CUTS, counters.follower_cuts)
        self._add(FOLLOWER_FETCHES, counters.follower_fetches)
        counters.sync_durations.report(self.sink, {"broker": self._tags["broker"]})

    def _report_leader(self) -> None:
        replica, machine = self._replica, self._replica.machine
        self.set(LEADER_EPOCH, replica.leader_epoch)
        self.set(HIGH_WATERMARK_LAG, machine.log_end_offset - machine.high_watermark)
        self.set(LAST_STABLE_OFFSET, machine.last_stable_offset)
        self.set(LAST_STABLE_OFFSET_LAG, machine.high_watermark - machine.last_stable_offset)
        self.set(OPEN_TRANSACTION_COUNT, machine.open_transaction_count)
        self.set(OLDEST_OPEN_TRANSACTION_AGE_MS, self.ages.oldest_ms)
        self.set(LATE_TRANSACTION_COUNT, self.ages.late_count)
        self.set(PRODUCER_ID_COUNT, machine.producer_count)
        if replica.replicator is not None:
            replication = replica.replicator.replication
            lag, lag_ms = replication.lag(loop_ms())
            self.set(UNDER_REPLICATED, int(replication.is_under_replicated))
            self.set(UNDER_MIN_ISR, int(replication.has_too_few))
            self.set(REPLICATION_LAG, lag)
            self.set(REPLICATION_LAG_MS, lag_ms)

    def _report_log(self) -> None:
        """Report the metrics of a log in any role."""
        replica, machine, log = self._replica, self._replica.machine, self._replica.log
        self.set(LOG_SIZE_BYTES, log.size_bytes)
        self.set(SEGMENT_COUNT, log.segment_count)
        self.set(DAMAGED_PLACE_COUNT, len(replica.damage.places(machine.log_start_offset)))
        cut = replica.directory.cut
        self.set(CUT_BYTES, 0 if cut is None else cut.cut_bytes)

    def set(self, metric: Metric, value: float) -> None:
        """Set one gauge of this replica, unless it rests at zero and that was reported."""
        if metric.rests_at_zero:
            if value:
                self._raised.add(metric.name)
            elif metric.name not in self._raised:
                return
            else:
                self._raised.remove(metric.name)
        self.sink.set(metric, value, self._tags)

    def _add(self, metric: Metric, total: int) -> None:
        """Add what ``total`` has grown by since the last report to a counter."""
        amount = total - self._reported.get(metric.name, 0)
        if amount:
            self._reported[metric.name] = total
            self.sink.add(metric, amount, self._tags)


class ControllerMetrics:
    """Reports what only the controller knows: brokers, leaders, moves, voters.

    ``broker_id`` is the controller's own. A report looks at every partition.
    """

    def __init__(self, *, machine: ClusterMachine, sink: MetricSink, broker_id: int) -> None:
        self._machine = machine
        self._sink = sink
        self._broker_id = broker_id
        self._tags = {"broker": str(broker_id)}
        self._reported_election_count = 0

    def report(self, loaded_election_count: int) -> None:
        """Report, but for elections that were in the log already when it was loaded."""
        machine, sink = self._machine, self._sink
        known_count = max(self._reported_election_count, loaded_election_count)
        sink.add(LEADER_ELECTIONS, machine.election_count - known_count, self._tags)
        self._reported_election_count = machine.election_count
        partitions = [one for topic in machine.topics.values() for one in topic.partitions]
        offline_count = sum(one.leader == NO_LEADER for one in partitions)
        sink.set(OFFLINE_PARTITION_COUNT, offline_count, self._tags)
        sink.set(REASSIGNMENT_COUNT, sum(one.is_moving for one in partitions), self._tags)
        for broker_id, broker in machine.broker_states.items():
            sink.set(BROKER_FENCED, int(broker.is_fenced), {"broker": str(broker_id)})

    def report_voters(self, quorum: QuorumReplication) -> None:
        """Report how far the voters are behind the controller's log."""
        sink = self._sink
        others = quorum.voters - {self._broker_id}
        sink.set(VOTER_COUNT, len(quorum.voters), self._tags)
        sink.set(LAGGING_VOTER_COUNT, len(others - quorum.caught_up()), self._tags)
        for broker_id, (lag, lag_ms) in quorum.voter_lags(loop_ms()).items():
            sink.set(VOTER_LAG, lag, {"broker": str(broker_id)})
            sink.set(VOTER_LAG_MS, lag_ms, {"broker": str(broker_id)})
