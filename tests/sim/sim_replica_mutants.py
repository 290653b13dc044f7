"""Protections of replication, removed. See ``sim_saboteurs``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

from msgspec import structs
from sim_coordinator_mutants import QUIET
from sim_saboteurs import Saboteur

from oncelog.actors.protocol.cluster import cluster_machine, cluster_state, elections
from oncelog.actors.protocol.cluster.cluster_records import LeaderElected, TopicSnapshot
from oncelog.actors.protocol.cluster.cluster_state import PartitionState, TopicState
from oncelog.actors.protocol.cluster.quorum import Candidacy
from oncelog.actors.protocol.messages.replication import ReplicateRequest
from oncelog.actors.protocol.partition import following, quorum_replication
from oncelog.actors.protocol.partition.bounds import PartitionBounds, Role
from oncelog.actors.protocol.partition.followers import FollowerProgress, InSyncReplicas, Push
from oncelog.actors.protocol.partition.following import FollowerReplication, ReplicateVerdict
from oncelog.actors.protocol.partition.replication import LeaderReplication
from oncelog.actors.replica.replica import Replica
from oncelog.actors.replica.replica_log import ReplicaLog
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    IsolationLevel,
)


def _shrinks_at_once() -> Any:
    """Who is to leave the ISR is not waited for any more, whatever the controller says."""

    def maximal(self: InSyncReplicas) -> frozenset[int]:
        return self._isr if self._proposal is None else self._proposal

    return mock.patch.object(InSyncReplicas, "maximal", property(maximal))


def _fastest_follower() -> Any:
    """What any other replica has is committed."""

    def committed(self: LeaderReplication) -> int:
        others = [progress.match_offset for progress in self._followers.values()]
        return min(self._synced_end_offset, max(others, default=self._synced_end_offset))

    return mock.patch.object(LeaderReplication, "_committed_end_offset", committed)


def _acknowledge_unsynced() -> Any:
    """Followers answer for what they have written, and sync it when they may; voters do not."""
    real = ReplicaLog.until_synced

    async def until_synced(self: ReplicaLog, offset: int) -> ErrorCode:
        if self.topic_partition.topic == CLUSTER_METADATA_TOPIC:
            return await real(self, offset)
        self.synced_offset = max(self.synced_offset, offset)
        return ErrorCode.NONE

    return mock.patch.object(ReplicaLog, "until_synced", until_synced)


def _few_are_enough() -> Any:
    """What was appended while enough were in sync is committed by those that are left."""

    def advance(self: LeaderReplication) -> bool:
        if not self.is_leading:
            return False
        return self._bounds.advance_high_watermark(self._committed_end_offset())

    return mock.patch.object(LeaderReplication, "_advance", advance)


def _keep_what_was_deleted() -> Any:
    """Followers answer for a log start and do not take it."""
    real = FollowerReplication.acknowledge

    def acknowledge(self: FollowerReplication, request: ReplicateRequest, *rest: Any) -> Any:
        return real(self, structs.replace(request, log_start_offset=0), *rest)

    return mock.patch.object(FollowerReplication, "acknowledge", acknowledge)


def _readable_to_the_end() -> Any:
    """Followers give consumers all that they have, whatever of it is committed."""
    real = PartitionBounds.fetch_bound

    def fetch_bound(self: PartitionBounds, isolation_level: IsolationLevel) -> int:
        if self.role is Role.FOLLOWER:
            return self.log_end_offset
        return real(self, isolation_level)

    return mock.patch.object(PartitionBounds, "fetch_bound", fetch_bound)


def _readable_to_the_high_watermark() -> Any:
    """Followers give consumers all that is replicated, whatever of it is decided."""
    real = PartitionBounds.fetch_bound

    def fetch_bound(self: PartitionBounds, isolation_level: IsolationLevel) -> int:
        if self.role is Role.FOLLOWER:
            return self.high_watermark
        return real(self, isolation_level)

    return mock.patch.object(PartitionBounds, "fetch_bound", fetch_bound)


@contextmanager
def _cut_to(where: str) -> Iterator[None]:
    """Under a new leader a follower first cuts to one of its bounds, as before KIP-101."""
    real = FollowerReplication.decide

    def decide(self: FollowerReplication, request: ReplicateRequest) -> ReplicateVerdict:
        verdict = real(self, request)
        offset = getattr(self._machine, where)
        is_cut = verdict.adopts_epoch and offset < self._machine.log_end_offset
        if verdict.error is not ErrorCode.NONE or not is_cut:
            return verdict
        return ReplicateVerdict(
            adopts_epoch=True,
            truncate_offset=offset,
            append_position=len(request.batches),
            diverging_end_offset=offset,
        )

    with mock.patch.object(FollowerReplication, "decide", decide):
        yield


@contextmanager
def _anybody_is_elected() -> Iterator[None]:
    """Any live replica, in sync or not."""
    real = elections.elect

    def candidates(
        partition: PartitionState, brokers: elections.Brokers, *, without: int = 0
    ) -> tuple[int, ...]:
        live = [n for n in partition.replicas[::-1] if elections.is_live(n, brokers)]
        return tuple(n for n in live if n != without)

    def elect(
        topic: TopicState, number: int, leader: int, isr: tuple[int, ...] | None = None
    ) -> LeaderElected:
        elected = real(topic, number, leader, isr)
        is_in_sync = leader < 0 or leader in elected.isr
        return elected if is_in_sync else structs.replace(elected, isr=(*elected.isr, leader))

    with (
        mock.patch.object(elections, "candidates", candidates),
        mock.patch.object(elections, "elect", elect),
        mock.patch.object(cluster_state, "invariant"),
    ):
        yield


@contextmanager
def any_epoch() -> Iterator[None]:
    """Voters take what controllers of older epochs push, as if it were the newest one's."""
    decide, done, acknowledge = (
        FollowerReplication.decide,
        FollowerReplication.done,
        FollowerReplication.acknowledge,
    )

    def of_now(self: FollowerReplication, request: ReplicateRequest) -> ReplicateRequest:
        if request.topic_partition.topic != CLUSTER_METADATA_TOPIC:
            return request
        self._leader = request.leader
        if request.leader_epoch >= self.known_epoch:
            return request
        return structs.replace(
            request, leader_epoch=self.known_epoch, epoch_start_offset=request.previous_end_offset
        )

    patches = {
        "decide": lambda self, request: decide(self, of_now(self, request)),
        "done": lambda self, request, verdict: done(self, of_now(self, request), verdict),
        "acknowledge": lambda self, request, *rest: acknowledge(self, of_now(self, request), *rest),
    }
    with ExitStack() as stack:
        for name, patched in patches.items():
            stack.enter_context(mock.patch.object(FollowerReplication, name, patched))
        yield


def _old_acknowledgements() -> Any:
    """What a replica had before it came back with another disk counts still."""
    return mock.patch.object(FollowerProgress, "reset")


def _snapshots_without_epochs() -> Any:
    """A snapshot does not say in which epoch a partition is led."""
    real = cluster_machine.snapshot_of

    def snapshot_of(topic: TopicState) -> TopicSnapshot:
        snapshot = real(topic)
        kept = [number for number, name in enumerate(snapshot.fields) if name != "leader_epoch"]
        return structs.replace(
            snapshot,
            fields=tuple(snapshot.fields[number] for number in kept),
            partitions=tuple(tuple(row[n] for n in kept) for row in snapshot.partitions),
        )

    return mock.patch.object(cluster_machine, "snapshot_of", snapshot_of)


@contextmanager
def _unchecked_copies(*, is_internal: bool) -> Iterator[None]:
    """Followers take batches without a look at their CRC, and now and then a bit flips.

    In the topics of coordinators, or of users; a controller would not load such a log.
    """
    real = Replica.request_of
    pushes = itertools.count(1)

    def request_of(self: Replica, push: Push) -> ReplicateRequest | None:
        request = real(self, push)
        topic = self.topic_partition.topic
        is_other = topic == CLUSTER_METADATA_TOPIC or (topic in INTERNAL_TOPICS) is not is_internal
        if request is None or not request.batches or is_other or next(pushes) % FLIPPED_EVERY:
            return request
        flipped = bytearray(request.batches)
        flipped[CRC_AT] ^= 1
        return structs.replace(request, batches=bytes(flipped))

    with (
        mock.patch.object(Replica, "request_of", request_of),
        mock.patch.object(following, "crc_matches", return_value=True),
    ):
        yield


def _minimum_with_the_isr() -> Any:
    """A leader learns another minimum in sync only with another ISR or other replicas."""
    told = property(lambda self: self.leadership.min_insync_replicas)
    return mock.patch.object(Replica, "_min_insync_replicas", told)


@contextmanager
def leads_on() -> Iterator[None]:
    """A leader that is told of a newer epoch leads on, whoever tells it."""
    with (
        mock.patch.object(LeaderReplication, "step_down"),
        mock.patch.object(Replica, "lose_leadership"),
    ):
        yield


@contextmanager
def majority_of_one() -> Iterator[None]:
    """A controller needs nobody's vote, and commits what it has synced itself."""
    with (
        mock.patch.object(Candidacy, "is_won", property(lambda _: True)),
        mock.patch.object(quorum_replication, "_of_majority", max),
    ):
        yield


CRC_AT = 20
FLIPPED_EVERY = 5
"""The last byte of the CRC of the first batch."""

REPLICATED: dict[str, Any] = {
    "brokers": 3,
    "replication_factor": 3,
    "kill_node": 0.3,
    "cut_node": 1.0,
    "stop_node": 0.3,
    "peace": 0.0,
    "writers": 3,
    "pause": 1.0,
    "pause_ms": 10.0,
    "move": 0.0,
    "file_damage": 0.0,
}
"""Leaders and ISRs change every few seconds, while much is written."""

DELETIONS: dict[str, Any] = {
    "brokers": 3,
    "replication_factor": 3,
    "topics": {"kept-0": 2},
    "operators": 4,
    "writers": 2,
    "kill_node": 0.3,
    "cut_node": 0.3,
    "stop_node": 0.0,
    "lose_node": 0.0,
    "forget_controller": 0.0,
    "pause_ms": 50.0,
}
"""Operators delete records, and leaders change."""

LOST_DISKS = QUIET | {
    "brokers": 3,
    "replication_factor": 3,
    "lose_node": 0.2,
    "kill_node": 0.0,
    "cut_node": 0.0,
    "stop_node": 0.0,
    "forget_controller": 0.0,
    "peace": 0.0,
    "duration_s": 20.0,
    "topics": {"t0": 8},
    "writers": 1,
    "readers": 1,
    "pause_ms": 1_000.0,
}
"""Brokers come back with empty disks, to partitions of which many have had no record meanwhile.

Any later push would tell the leader what such a disk lacks, and so would a new leader's first one.
"""

NEAR = REPLICATED | {"near_reads": 1.0, "readers": 2, "uncommitted_readers": 2}
"""Consumers read from the followers."""

REPLICA_MUTANTS = (
    Saboteur(
        name="followers give what is committed",
        sabotage=_readable_to_the_end,
        checker="VanishedRecords",
        changes=NEAR,
    ),
    Saboteur(
        name="followers give what is decided",
        sabotage=_readable_to_the_high_watermark,
        checker="AbortedReads",
        changes=NEAR,
    ),
    Saboteur(
        name="a shrink of the ISR waits for the controller",
        sabotage=_shrinks_at_once,
        checker="MissingCopies",
        changes=REPLICATED,
    ),
    Saboteur(
        name="the slowest in sync is waited for",
        sabotage=_fastest_follower,
        checker="MissingCopies",
        changes=REPLICATED,
    ),
    Saboteur(
        name="followers sync before they answer",
        sabotage=_acknowledge_unsynced,
        checker="MissingCopies",
        changes=REPLICATED,
    ),
    Saboteur(
        name="enough hold the high watermark",
        sabotage=_few_are_enough,
        checker="TooFewCopies",
        changes=REPLICATED,
    ),
    Saboteur(
        name="followers hide what was deleted",
        sabotage=_keep_what_was_deleted,
        checker="ReturnedRecords",
        changes=QUIET | DELETIONS,
    ),
    Saboteur(
        name="epochs tell where to cut",
        sabotage=lambda: _cut_to("high_watermark"),
        checker="MissingCopies",
        changes=REPLICATED,
    ),
    Saboteur(
        name="nothing committed is cut",
        sabotage=lambda: _cut_to("log_start_offset"),
        checker="CutPromises",
        changes=REPLICATED,
    ),
    Saboteur(
        name="leaders are in sync",
        sabotage=_anybody_is_elected,
        checker="MissingCopies",
        changes=REPLICATED,
    ),
    Saboteur(
        name="a new disk is probed anew",
        sabotage=_old_acknowledgements,
        checker="MissingCopies",
        changes=LOST_DISKS,
    ),
    Saboteur(
        name="settings are followed by their own version",
        sabotage=_minimum_with_the_isr,
        checker="StaleSettings",
        changes=QUIET
        | {"brokers": 3, "replication_factor": 3, "operators": 4, "writers": 1, "readers": 1},
    ),
    Saboteur(
        name="a snapshot gives all of the state",
        sabotage=_snapshots_without_epochs,
        checker="",
        changes=QUIET,
    ),
    Saboteur(
        name="followers check what they take",
        sabotage=partial(_unchecked_copies, is_internal=False),
        checker="UnequalReplicas",
        changes=REPLICATED,
    ),
    Saboteur(
        name="followers check what they take of coordinators",
        sabotage=partial(_unchecked_copies, is_internal=True),
        checker="UnequalReplicas",
        changes=REPLICATED,
    ),
)
