"""Protections of replication, removed. See ``sim_saboteurs``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from msgspec import structs
from sim_saboteurs import Saboteur

from oncelog.actors.protocol.cluster import elections
from oncelog.actors.protocol.cluster.log import LeaderElected
from oncelog.actors.protocol.cluster.state import PartitionState, TopicState
from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.protocol.partition import following, replication
from oncelog.actors.protocol.partition.follower_progress import FollowerProgress
from oncelog.actors.protocol.partition.following import FollowerReplication, ReplicateVerdict
from oncelog.actors.protocol.partition.in_sync import InSyncReplicas
from oncelog.actors.protocol.partition.replication import LeaderReplication
from oncelog.actors.replica.follower_log import FollowerLog
from oncelog.actors.replica.replica import Replica
from oncelog.storage.errors import ErrorCode


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

    def candidates(partition: PartitionState, brokers: elections.Brokers) -> tuple[int, ...]:
        return tuple(n for n in partition.replicas[::-1] if elections.is_live(n, brokers))

    def elect(
        topic: TopicState, number: int, leader: int, isr: tuple[int, ...] | None = None
    ) -> LeaderElected:
        elected = real(topic, number, leader, isr)
        is_in_sync = leader < 0 or leader in elected.isr
        return elected if is_in_sync else structs.replace(elected, isr=(*elected.isr, leader))

    with (
        mock.patch.object(elections, "candidates", candidates),
        mock.patch.object(elections, "elect", elect),
    ):
        yield


@contextmanager
def _any_epoch() -> Iterator[None]:
    """Followers take what leaders of older epochs push, as if it were their leader's."""
    decide, done, acknowledge = (
        FollowerReplication.decide,
        FollowerReplication.done,
        FollowerReplication.acknowledge,
    )

    def of_now(self: FollowerReplication, request: ReplicateRequest) -> ReplicateRequest:
        if request.leader_epoch >= self.known_epoch:
            return request
        self._leader = request.leader
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


@contextmanager
def _early_acknowledgement() -> Iterator[None]:
    """Followers acknowledge what they have written, synced or not."""
    real = FollowerReplication.acknowledge

    def acknowledge(
        self: FollowerReplication, request: ReplicateRequest, verdict: ReplicateVerdict, _: int
    ) -> ReplicateReply:
        return real(self, request, verdict, self._machine.log_end_offset)

    async def until_synced(_self: FollowerLog, _offset: int) -> ErrorCode:
        return ErrorCode.NONE

    with (
        mock.patch.object(FollowerReplication, "acknowledge", acknowledge),
        mock.patch.object(FollowerLog, "_until_synced", until_synced),
    ):
        yield


@contextmanager
def _leads_on() -> Iterator[None]:
    """A leader that learns of a newer one goes on."""
    with (
        mock.patch.object(LeaderReplication, "step_down"),
        mock.patch.object(Replica, "_lose_leadership"),
    ):
        yield


def _old_acknowledgements() -> Any:
    """What a replica had before it came back with another disk counts still."""
    return mock.patch.object(FollowerProgress, "begin_anew")


def _unrecorded_isr() -> Any:
    """A leader believes what the controller could not write down."""
    return mock.patch.object(replication, "_TELLING", frozenset(ErrorCode))


def _no_matching() -> Any:
    """A follower takes whatever fits to the end of its log."""
    return mock.patch.object(
        following, "_agrees", lambda log, request: request.previous_end_offset <= log.end_offset
    )


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

REPLICA_MUTANTS = (
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
        name="followers refuse older leaders",
        sabotage=_any_epoch,
        changes=REPLICATED | {"delay": 0.2, "delay_max_ms": 5_000.0, "duplicate": 0.3},
    ),
    Saboteur(
        name="followers sync before they acknowledge",
        sabotage=_early_acknowledgement,
        checker="LostPromises",
        changes=REPLICATED | {"power_loss": 1.0, "slow_disk": 2.0, "cut_node": 0.0},
    ),
    Saboteur(
        name="a leader gives way to a newer one",
        sabotage=_leads_on,
        checker="World",
        changes=REPLICATED,
    ),
    Saboteur(
        name="a new disk is probed anew",
        sabotage=_old_acknowledgements,
        checker="MissingCopies",
        changes=REPLICATED | {"lose_node": 0.5, "kill_node": 0.0},
    ),
    Saboteur(
        name="only what is recorded is learned",
        sabotage=_unrecorded_isr,
        checker="MissingCopies",
        changes=REPLICATED | {"disk_refusal": 3.0},
    ),
    Saboteur(
        name="logs match where a follower goes on",
        sabotage=_no_matching,
        checker="UnequalReplicas",
        changes=REPLICATED,
    ),
)
