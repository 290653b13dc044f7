"""What a consumer counts: for ``metrics()``, and its consumer lag for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from oncelog.actors.process.metrics import CONSUMER_LAG, NO_METRICS
from oncelog.actors.rpc.call_meter import CallReports
from oncelog.api.consuming.fetch_buffer import AssignedPartition
from oncelog.api.session.committed_offsets import lag_of
from oncelog.storage.model import TopicPartition

METRICS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "records_consumed_total": "Records that polls have taken.",
        "bytes_consumed_total": "Bytes of batches that were fetched.",
        "fetch_total": "Answered calls that fetched.",
        "failed_fetch_total": "Those that were answered with an error.",
        "follower_fetch_total": "Those that a follower answered, in the rack `client_rack`.",
        "follower_partitions": "Assigned partitions that are read from a follower now.",
        "fetch_latency_avg": "Mean time of a fetch in ms, with the leader's wait for data.",
        "fetch_buffered_bytes": "Bytes that are fetched and not yet taken.",
        "records_lag_max": "The largest consumer lag of an assigned partition, as last fetched.",
        "assigned_partitions": "Partitions that are assigned now.",
        "commit_total": "Commits that succeeded, automatic ones too.",
        "failed_commit_total": "Commits that failed.",
        "commit_latency_avg": "Mean time of a successful commit in ms.",
        "commit_latency_max": "The longest time of a successful commit in ms.",
        "rebalance_total": "Generations of the group that were joined.",
        "failed_rebalance_total": "Attempts to join that failed.",
        "rebalance_latency_avg": "Mean time of a join in ms, with the wait for other members.",
        "last_rebalance_seconds_ago": "Seconds since the last join; -1 before the first.",
        "partitions_lost_total": "Partitions lost together with the place in the group.",
        "heartbeat_total": "Heartbeats that were answered.",
        "last_heartbeat_seconds_ago": "Seconds since the last of them; -1 before the first.",
        "poll_total": "Polls that were begun.",
        "last_poll_seconds_ago": "Seconds since the last of them; -1 before the first.",
        "time_between_poll_avg": "Mean time between the begin of two polls in ms.",
        "time_between_poll_max": "The longest time between the begin of two polls in ms.",
        "interceptor_failures": "Exceptions of interceptors.",
    }
)
"""Each name in ``Consumer.metrics()`` with its meaning: Kafka's names where it has one."""


@dataclass(slots=True)
class Durations:
    """How often something took place and how long it took, in seconds of the event loop."""

    count: int = 0
    sum_s: float = 0.0
    max_s: float = 0.0
    last_s: float | None = None
    """When the last one ended."""

    def add(self, began_s: float, ended_s: float) -> None:
        """One more."""
        self.count += 1
        self.sum_s += ended_s - began_s
        self.max_s = max(self.max_s, ended_s - began_s)
        self.last_s = ended_s

    @property
    def mean_ms(self) -> float:
        """The mean in ms; 0 before the first."""
        return self.sum_s / self.count * 1_000 if self.count else 0.0

    def age_s(self, now_s: float) -> float:
        """Seconds since the last one; -1 before the first."""
        return -1.0 if self.last_s is None else now_s - self.last_s


class ConsumerCounters:
    """Totals since the consumer was made."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.fetches = Durations()
        self.failed_fetches = 0
        self.follower_fetches = 0
        self.commits = Durations()
        self.failed_commits = 0
        self.joins = Durations()
        self.failed_joins = 0
        self.lost_partitions = 0
        self.heartbeats = Durations()
        self.polls = 0
        self.between_polls = Durations()

    def record_poll(self, now_s: float) -> None:
        """A poll begins."""
        self.polls += 1
        if self.between_polls.last_s is None:
            self.between_polls.last_s = now_s
        else:
            self.between_polls.add(self.between_polls.last_s, now_s)

    def as_metrics(
        self,
        partitions: Mapping[TopicPartition, AssignedPartition],
        *,
        now_s: float,
        follower_partitions: int,
        interceptor_failures: int,
    ) -> dict[str, float]:
        """Every metric of ``METRICS``."""
        lags = [lag for one in partitions.values() if (lag := known_lag(one)) is not None]
        return {
            "records_consumed_total": self.records,
            "bytes_consumed_total": self.bytes,
            "fetch_total": self.fetches.count,
            "failed_fetch_total": self.failed_fetches,
            "follower_fetch_total": self.follower_fetches,
            "follower_partitions": follower_partitions,
            "fetch_latency_avg": self.fetches.mean_ms,
            "fetch_buffered_bytes": sum(one.buffered_bytes for one in partitions.values()),
            "records_lag_max": max(lags, default=0),
            "assigned_partitions": len(partitions),
            "commit_total": self.commits.count,
            "failed_commit_total": self.failed_commits,
            "commit_latency_avg": self.commits.mean_ms,
            "commit_latency_max": self.commits.max_s * 1_000,
            "rebalance_total": self.joins.count,
            "failed_rebalance_total": self.failed_joins,
            "rebalance_latency_avg": self.joins.mean_ms,
            "last_rebalance_seconds_ago": self.joins.age_s(now_s),
            "partitions_lost_total": self.lost_partitions,
            "heartbeat_total": self.heartbeats.count,
            "last_heartbeat_seconds_ago": self.heartbeats.age_s(now_s),
            "poll_total": self.polls,
            "last_poll_seconds_ago": self.between_polls.age_s(now_s),
            "time_between_poll_avg": self.between_polls.mean_ms,
            "time_between_poll_max": self.between_polls.max_s * 1_000,
            "interceptor_failures": interceptor_failures,
        }


def known_lag(partition: AssignedPartition) -> int | None:
    """The lag as of the last fetch reply, in offsets; ``None`` while it is unknown."""
    if partition.position is None or partition.readable_end is None:
        return None
    # Fetched records will be delivered, even if they have been deleted since.
    start_offset = 0 if partition.has_pieces else partition.log_start_offset
    return lag_of(partition.position, start_offset=start_offset, end_offset=partition.readable_end)


class LagReport:
    """Reports a group member's consumer lag as a metric.

    At an interval, from the first poll to the close, it sets the lag of each assigned partition
    from the last fetch reply, without extra calls. The lag of a member that stops polling therefore
    stays constant; ``oncelog groups describe`` asks the leaders instead.
    """

    def __init__(
        self,
        reports: CallReports,
        partitions: Callable[[], Mapping[TopicPartition, AssignedPartition]],
        group_id: str | None,
    ) -> None:
        self._reports = reports
        self._partitions = partitions
        self._group_id = group_id
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Start reporting, for a group member on a cluster with metrics."""
        is_watched = self._reports.metrics is not NO_METRICS
        if self._timer is None and self._group_id is not None and is_watched:
            self._wait()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._reports.interval_ms / 1_000, self._report)

    def _report(self) -> None:
        for tp, partition in self._partitions().items():
            lag = known_lag(partition)
            if lag is None:
                continue
            tags = {
                "group": self._group_id or "",
                "topic": tp.topic,
                "partition": str(tp.partition),
            }
            self._reports.metrics.set(CONSUMER_LAG, lag, tags)
        self._wait()

    def stop(self) -> None:
        """Stop reporting."""
        if self._timer is not None:
            self._timer.cancel()
