"""The leader's side of replication for the controller's log, where a majority commits.

Like ``replication``, but records are committed once a majority of the *voters*, the leader
included, has synced them. That must cover a batch of the leader's own epoch (raft §5.4.2: a
majority may have a batch of an older epoch, and a voter that lacks it can still be elected). A lone
voter commits alone. There are no ISR proposals: the controller logs the voters and passes them to
``set_voters``. *Learners* get copies and do not count. Answers from another disk than the broker
registered, or from an older copy of it, do not count: such a disk has forgotten its votes.

A *confirmation* needs a majority of the voters too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from oncelog.actors.protocol.messages.brokers import NO_DISK, Disk
from oncelog.actors.protocol.messages.replication import ReplicateReply
from oncelog.actors.protocol.partition.bounds import PartitionBounds
from oncelog.actors.protocol.partition.followers import InSyncReplicas, Push
from oncelog.actors.protocol.partition.replication import (
    LeaderReplication,
    PartitionAssignment,
    ReplicationSettings,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_OFFSET


class QuorumReplication(LeaderReplication):
    """The leader of the metadata log in one epoch."""

    __slots__ = ("_disks",)

    def __init__(
        self,
        bounds: PartitionBounds,
        *,
        voters: Collection[int],
        leader_epoch: int,
        broker_id: int,
        synced_end_offset: int,
        now_ms: int,
        settings: ReplicationSettings | None = None,
        disks: Mapping[int, Disk] | None = None,
    ) -> None:
        self._disks = {} if disks is None else disks
        members = tuple(voters)
        super().__init__(
            bounds,
            PartitionAssignment(
                leader_epoch=leader_epoch, partition_version=0, replicas=members, isr=members
            ),
            broker_id=broker_id,
            synced_end_offset=synced_end_offset,
            settings=settings or ReplicationSettings(),
            now_ms=now_ms,
        )

    # --- voters and learners -----------------------------------------------------------------

    @property
    def voters(self) -> frozenset[int]:
        """The brokers whose majority commits."""
        return self._in_sync.isr

    @property
    def may_change_voters(self) -> bool:
        """Whether the voters may change: all is committed, and some of it in this epoch."""
        high_watermark = self._bounds.high_watermark
        if high_watermark < self._bounds.log_end_offset:
            return False
        return len(self.voters) == 1 or high_watermark > self._epoch_start_offset

    def set_voters(self, voters: Iterable[int], learners: Iterable[int], now_ms: int) -> bool:
        """Replicate to these from now on; return whether the high watermark rose."""
        members = frozenset(voters)
        if members != self.voters:
            self._in_sync = InSyncReplicas(members, self._in_sync.version + 1)
        self._assign((*sorted(members), *learners), now_ms)
        return self._advance()

    def caught_up(self) -> frozenset[int]:
        """The followers that have all that is committed."""
        return frozenset(
            broker_id
            for broker_id, progress in self._followers.items()
            if progress.match_offset >= self._bounds.high_watermark
        )

    def voter_lags(self, now_ms: int) -> dict[int, tuple[int, int]]:
        """Each other voter's lag in offsets, as far as known, and in ms."""
        start, end = self._bounds.log_start_offset, self._bounds.log_end_offset
        return {
            broker_id: (
                end - max(progress.next_offset, start),
                progress.lag_ms(now_ms, log_end_offset=end),
            )
            for broker_id, progress in self._followers.items()
            if broker_id in self.voters
        }

    def has_other_disk(self, broker_id: int) -> None:
        """A broker has registered with another disk: its acknowledgements no longer count."""
        progress = self._followers.get(broker_id)
        if progress is not None:
            progress.reset()

    # --- events ------------------------------------------------------------------------------

    def answered(self, push: Push, reply: ReplicateReply, now_ms: int) -> bool:
        """See ``LeaderReplication``."""
        is_known = reply.disk.may_be(self._disks.get(push.broker_id, NO_DISK))
        if reply.error is ErrorCode.NONE and not is_known:
            reply = ReplicateReply(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return super().answered(push, reply, now_ms)

    # --- rules -------------------------------------------------------------------------------

    def _confirmed_by_enough(self) -> int:
        return _of_majority([self._confirmed_by(broker_id) for broker_id in self.voters])

    def _committed_end_offset(self) -> int:
        end_offset = _of_majority([self._match_offset(broker_id) for broker_id in self.voters])
        is_own = end_offset > self._epoch_start_offset or len(self.voters) == 1
        return end_offset if is_own else NO_OFFSET

    def _wanted_isr(self, now_ms: int) -> frozenset[int]:  # noqa: ARG002
        return self.voters

    def _proposal_due_ms(self, now_ms: int) -> int | None:  # noqa: ARG002
        return None


def _of_majority(values: list[int]) -> int:
    """The largest value that a majority has reached."""
    return sorted(values, reverse=True)[len(values) // 2]
