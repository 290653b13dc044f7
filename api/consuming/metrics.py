"""What a consumer counts: for ``metrics()``, and for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from oncelog.actors.process.metrics import (
    CONSUMER_BUFFERED_BYTES,
    CONSUMER_BYTES,
    CONSUMER_COMMITS,
    CONSUMER_FAILED_FETCHES,
    CONSUMER_FETCH_DURATION_MS,
    CONSUMER_LAG,
    CONSUMER_POLL_GAP_RATIO,
    CONSUMER_REBALANCES,
    CONSUMER_RECORDS,
)
from oncelog.api.consuming.fetch_buffer import AssignedPartition
from oncelog.api.session.client_metrics import Durations, Reading
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
        "fetch_latency_p50": "The median of these times, estimated.",
        "fetch_latency_p99": "What 99 % of them did not exceed, estimated.",
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
            "fetch_latency_p50": self.fetches.quantile_ms(0.5),
            "fetch_latency_p99": self.fetches.quantile_ms(0.99),
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


def readings(
    counters: ConsumerCounters,
    partitions: Mapping[TopicPartition, AssignedPartition],
    *,
    client: str,
    group_id: str | None,
    poll_gap_ratio: float = 0.0,
) -> Iterator[Reading]:
    """What Prometheus gets of a consumer, from its first poll to its close.

    The lag of each assigned partition, for a group member, is as of the last fetch reply, without
    extra calls. The lag of a member that stops polling therefore stays constant;
    ``oncelog groups describe`` asks the leaders instead.

    ``poll_gap_ratio`` is a member's, as ``GroupMembership`` knows it; other consumers need not
    poll.
    """
    tags = {"client": client, "group": group_id or ""}
    yield CONSUMER_RECORDS, counters.records, tags
    yield CONSUMER_BYTES, counters.bytes, tags
    yield CONSUMER_FETCH_DURATION_MS, counters.fetches, tags
    yield CONSUMER_FAILED_FETCHES, counters.failed_fetches, tags
    yield CONSUMER_COMMITS, counters.commits.count, {**tags, "outcome": "committed"}
    yield CONSUMER_COMMITS, counters.failed_commits, {**tags, "outcome": "failed"}
    yield CONSUMER_REBALANCES, counters.joins.count, tags
    buffered_bytes = sum(one.buffered_bytes for one in partitions.values())
    yield CONSUMER_BUFFERED_BYTES, buffered_bytes, tags
    if group_id is None:
        return
    yield CONSUMER_POLL_GAP_RATIO, poll_gap_ratio, tags
    for tp, partition in partitions.items():
        if (lag := known_lag(partition)) is not None:
            place = {"group": group_id, "topic": tp.topic, "partition": str(tp.partition)}
            yield CONSUMER_LAG, lag, place
