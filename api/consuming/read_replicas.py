"""From which replica a consumer with a ``client_rack`` reads each partition.

The leader of a partition is asked with the rack, and may name a follower there that is in sync.
The consumer fetches from that one until

==========================================  ====================================================
event                                       the next fetch
==========================================  ====================================================
the lease is over, or the metadata says     asks the leader with the rack
that the follower is not in sync, or leads
``FENCED_LEADER_EPOCH`` or                  the same: one of both does not know the leader yet
``UNKNOWN_LEADER_EPOCH`` of the follower
any other error of the follower, or a       asks the leader without a rack for a while, which
batch of it that does not match its CRC     doubles with each failure until a fetch succeeds
==========================================  ====================================================

So an error of a follower is never one of the partition: its offset may be out of range there alone,
and its disk may be damaged. And one that fails again and again does not hold up the consumer.

Source: KIP-392, whose lease is the age of the metadata too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from oncelog.actors.protocol.backoff import backoff_ms
from oncelog.api.session.routing import METADATA_AGE_MAX_MS
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

LEASE_MS: Final = METADATA_AGE_MAX_MS
"""For how long a follower is read before the leader is asked again."""

AVOID_MIN_MS: Final = 10_000
AVOID_MAX_MS: Final = METADATA_AGE_MAX_MS
"""For how long the leader is read after a failure of a follower: at first, and at most."""

_OTHER_EPOCH: Final = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH})


class _Lease(NamedTuple):
    broker_id: int
    until_ms: int


class _Avoided(NamedTuple):
    """Followers are not read until then; ``failure_count`` failures came one after the other."""

    until_ms: int
    failure_count: int


class ReadReplicas:
    """The choice for each partition; bounded by those assigned. Times are monotonic, in ms."""

    def __init__(self, client_rack: str) -> None:
        self._client_rack = client_rack
        self._leases: dict[TopicPartition, _Lease] = {}
        self._avoided: dict[TopicPartition, _Avoided] = {}

    @property
    def followers(self) -> dict[TopicPartition, int]:
        """The partitions that are read from a follower, with its broker."""
        return {tp: lease.broker_id for tp, lease in self._leases.items()}

    def follower(self, topic_partition: TopicPartition, now_ms: int) -> int | None:
        """The broker of the follower to fetch from; ``None``: from the leader."""
        lease = self._leases.get(topic_partition)
        if lease is not None and now_ms >= lease.until_ms:
            self.leave(topic_partition)
            return None
        return None if lease is None else lease.broker_id

    def rack_for(self, topic_partition: TopicPartition, now_ms: int) -> str:
        """The rack to tell the leader; "" if it should not name a follower."""
        avoided = self._avoided.get(topic_partition)
        return "" if avoided is not None and now_ms < avoided.until_ms else self._client_rack

    def take(self, topic_partition: TopicPartition, broker_id: int, now_ms: int) -> None:
        """The leader has named a follower."""
        self._leases[topic_partition] = _Lease(broker_id, now_ms + LEASE_MS)

    def leave(self, topic_partition: TopicPartition) -> None:
        """Ask the leader next time."""
        self._leases.pop(topic_partition, None)

    def succeeded(self, topic_partition: TopicPartition) -> None:
        """The follower has answered."""
        self._avoided.pop(topic_partition, None)

    def failed(self, topic_partition: TopicPartition, error: ErrorCode, now_ms: int) -> None:
        """The follower has answered with an error, not at all, or with a damaged batch."""
        self.leave(topic_partition)
        if error in _OTHER_EPOCH:
            return
        known = self._avoided.get(topic_partition)
        failure_count = 0 if known is None else known.failure_count
        wait_ms = backoff_ms(failure_count, initial_ms=AVOID_MIN_MS, max_ms=AVOID_MAX_MS)
        self._avoided[topic_partition] = _Avoided(now_ms + wait_ms, failure_count + 1)

    def forget(self, topic_partition: TopicPartition) -> None:
        """The partition is not assigned any more."""
        self.leave(topic_partition)
        self._avoided.pop(topic_partition, None)
