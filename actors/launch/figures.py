"""The figures that operators watch of one replica: what ``process/metrics.py`` has a name for."""

from __future__ import annotations

import logging

from oncelog.actors.interfaces import Clock
from oncelog.actors.process.metrics import (
    CUT_BYTES,
    DAMAGED_PLACE_COUNT,
    LAST_STABLE_OFFSET,
    LAST_STABLE_OFFSET_LAG,
    LATE_GRACE_MS,
    LATE_TRANSACTION_COUNT,
    OLDEST_OPEN_TRANSACTION_AGE_MS,
    OPEN_TRANSACTION_COUNT,
    PRODUCER_ID_COUNT,
    Metric,
    MetricSink,
    TransactionAges,
)
from oncelog.actors.replica.replica import Replica

_logger = logging.getLogger(__name__)


class ReplicaFigures:
    """Sets the figures of one replica; its server says when, and has some of its own."""

    def __init__(self, *, replica: Replica, clock: Clock, metrics: MetricSink) -> None:
        config = replica.config
        self.ages = TransactionAges(
            late_after_ms=config.cluster.transaction_max_timeout_ms + LATE_GRACE_MS
        )
        self._replica = replica
        self._clock = clock
        self._metrics = metrics
        self._tags = {
            "topic": config.topic,
            "partition": str(config.partition),
            "broker": str(config.broker_id),
        }

    def observe_transactions(self) -> None:
        """Update the ages of open transactions; log when one is late."""
        known_count = self.ages.late_count
        ongoing = self._replica.machine.producers.transactions.ongoing
        self.ages.observe(ongoing, self._clock.now_ms())
        if self.ages.late_count > known_count:
            _logger.warning(
                "%s: %d transactions are open for longer than any may be; look with "
                "`oncelog transactions find-hanging`",
                self._replica.topic_partition,
                self.ages.late_count,
            )

    def report(self) -> None:
        """Set what every replica has."""
        machine = self._replica.machine
        self.observe_transactions()
        self.set(PRODUCER_ID_COUNT, machine.producer_count)
        self.set(OPEN_TRANSACTION_COUNT, machine.open_transaction_count)
        self.set(LAST_STABLE_OFFSET, machine.last_stable_offset)
        self.set(LAST_STABLE_OFFSET_LAG, machine.high_watermark - machine.last_stable_offset)
        self.set(OLDEST_OPEN_TRANSACTION_AGE_MS, self.ages.oldest_ms)
        self.set(LATE_TRANSACTION_COUNT, self.ages.late_count)
        self.set(DAMAGED_PLACE_COUNT, len(self._replica.damage.places(machine.log_start_offset)))
        cut = self._replica.directory.cut
        self.set(CUT_BYTES, 0 if cut is None else cut.cut_bytes)

    def set(self, metric: Metric, value: float) -> None:
        """Set one figure of this replica."""
        self._metrics.set(metric, value, self._tags)
