"""A leader that replicates: each state and event, and when what is due."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster_worlds import TOPIC_ID
from msgspec import structs
from replica_model import Replica, batch_at

from oncelog.actors.protocol.messages.cluster import AlterIsrReply
from oncelog.actors.protocol.messages.replication import ReplicateReply
from oncelog.actors.protocol.partition.followers import (
    BACKOFF_MIN_MS,
    FollowerState,
    IsrProposal,
    Push,
    PushedBounds,
)
from oncelog.actors.protocol.partition.replication import (
    INELIGIBLE_MAX_MS,
    INELIGIBLE_MIN_MS,
    LAG_MAX_MS,
    PUSH_MAX_BYTES,
    LeaderReplication,
    PartitionAssignment,
    ReplicationSettings,
)
from oncelog.actors.protocol.tickets import NO_KEYS
from oncelog.storage.errors import ErrorCode, InvariantViolation

EPOCH = 5
ASSIGNMENT = PartitionAssignment(
    leader_epoch=EPOCH, partition_version=7, replicas=(1, 2, 3), isr=(1, 2)
)
LATER = 100_000


class Leading:
    """Broker 1 leads in epoch 5, with batches 0 to 2 of epoch 2 and 3 to 5 of epoch 4."""

    def __init__(
        self, assignment: PartitionAssignment = ASSIGNMENT, min_insync_replicas: int = 1
    ) -> None:
        self.replica = Replica(1)
        for offset in range(6):
            self.replica.append(batch_at(offset, 2 if offset < 3 else 4))
        self.replica.sync()
        settings = ReplicationSettings(min_insync_replicas=min_insync_replicas)
        self.replica.lead(assignment, settings, now_ms=0)
        assert self.replica.leader is not None
        self.leader: LeaderReplication = self.replica.leader

    @property
    def watermark(self) -> int:
        return self.replica.machine.high_watermark

    def append(self) -> None:
        self.replica.append(batch_at(self.replica.end_offset, EPOCH))

    def sync(self) -> bool:
        self.replica.sync()
        return self.leader.synced(self.replica.synced_end_offset)

    def push_to(self, broker_id: int, now_ms: int = 0) -> Push:
        pushes = {push.broker_id: push for push in self.leader.pushes(now_ms)}
        for other, push in pushes.items():
            if other != broker_id:
                self.leader.answered(
                    push, ReplicateReply(error=ErrorCode.NETWORK_EXCEPTION), -LATER
                )
        return pushes[broker_id]

    def acknowledge(self, broker_id: int, end_offset: int, now_ms: int = 0) -> bool:
        reply = ReplicateReply(log_end_offset=end_offset)
        return self.leader.answered(self.push_to(broker_id, now_ms), reply, now_ms)

    def diverge(self, broker_id: int, epoch: int, end_offset: int) -> None:
        reply = ReplicateReply(
            log_end_offset=end_offset, diverging_epoch=epoch, diverging_end_offset=end_offset
        )
        self.leader.answered(self.push_to(broker_id), reply, 0)

    def next_offset(self, broker_id: int) -> int:
        progress = self.leader.progress(broker_id)
        assert progress is not None
        return progress.next_offset


@pytest.fixture
def leading() -> Leading:
    return Leading()


def alone(**fields: object) -> Leading:
    return Leading(
        PartitionAssignment(leader_epoch=EPOCH, partition_version=7, replicas=(1,), isr=(1,)),
        **fields,
    )  # type: ignore[arg-type]


def test_a_leader_needs_its_epoch_and_a_place_in_the_isr() -> None:
    replica = Replica(1)
    with pytest.raises(InvariantViolation, match="I-22"):
        replica.lead(
            PartitionAssignment(leader_epoch=1, partition_version=0, replicas=(1, 2), isr=(2,)),
            ReplicationSettings(),
            0,
        )
    with pytest.raises(InvariantViolation, match="I-22"):
        LeaderReplication(
            replica.machine,
            PartitionAssignment(leader_epoch=2, partition_version=0, replicas=(1,), isr=(1,)),
            broker_id=1,
            synced_end_offset=0,
            settings=ReplicationSettings(),
            now_ms=0,
        )


# --- pushes ------------------------------------------------------------------------------------


def test_the_first_push_asks_whether_the_logs_agree_at_the_log_end(leading: Leading) -> None:
    first, second = leading.leader.pushes(0)
    assert (first.broker_id, second.broker_id) == (2, 3)
    assert first == Push(
        broker_id=2,
        number=1,
        bytes_max=0,
        leader_epoch=EPOCH,
        epoch_start_offset=6,
        previous_end_offset=6,
        previous_leader_epoch=4,
        bounds=PushedBounds(0, 0),
    )
    assert leading.leader.pushes(LATER) == []


def test_a_follower_that_agrees_is_sent_what_follows(leading: Leading) -> None:
    leading.acknowledge(2, 6)
    leading.append()
    push = leading.push_to(2)
    assert push.bytes_max == PUSH_MAX_BYTES
    assert (push.previous_end_offset, push.previous_leader_epoch) == (6, 4)
    assert push.bounds.high_watermark == 6


@pytest.mark.parametrize(
    ("epoch", "end_offset", "probe", "previous"),
    [
        (4, 5, 5, 4),  # Both have epoch 4, the follower less of it.
        (4, 9, 6, 4),  # The leader less of it.
        (3, 5, 3, 2),  # The follower wrote epoch 3, of which the leader knows nothing.
        (2, 2, 2, 2),
        (2, 5, 3, 2),
        (1, 4, 0, -1),  # Older than all that the leader has: from the log start.
        (9, 4, 0, -1),  # Undefined at the leader.
        (-1, 4, 4, 4),  # Undefined at the follower, which has cut its log to what is committed.
        (-1, 9, 6, 4),
    ],
)
def test_a_follower_that_diverges_is_probed_where_both_epochs_may_agree(
    leading: Leading, epoch: int, end_offset: int, probe: int, previous: int
) -> None:
    leading.diverge(2, epoch, end_offset)
    push = leading.push_to(2)
    assert (push.previous_end_offset, push.previous_leader_epoch) == (probe, previous)
    assert bool(push.bytes_max) == (probe == 0)


def test_a_follower_behind_the_log_start_is_sent_batches_from_there(leading: Leading) -> None:
    leading.acknowledge(2, 6)
    leading.replica.machine.advance_log_start(4)
    leading.diverge(3, 2, 1)
    push = leading.push_to(3)
    assert (push.previous_end_offset, push.previous_leader_epoch) == (4, -1)
    assert (push.bytes_max, push.bounds) == (PUSH_MAX_BYTES, PushedBounds(6, 4))


def test_a_follower_whose_log_is_not_what_it_was_holds_the_high_watermark(
    leading: Leading,
) -> None:
    leading.acknowledge(2, 6)
    leading.append()
    leading.sync()
    leading.diverge(2, -1, 0)
    assert leading.watermark == 6
    progress = leading.leader.progress(2)
    assert progress is not None
    assert (progress.state, progress.match_offset) == (FollowerState.PROBING, -1)


@pytest.mark.parametrize(
    "error", [ErrorCode.NETWORK_EXCEPTION, ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_TOPIC_ID]
)
def test_after_an_error_the_push_is_repeated_later(leading: Leading, error: ErrorCode) -> None:
    push = leading.push_to(2)
    leading.leader.answered(push, ReplicateReply(error=error), 0)
    assert [p.broker_id for p in leading.leader.pushes(BACKOFF_MIN_MS - 1)] == [3]
    (again,) = leading.leader.pushes(BACKOFF_MIN_MS)
    assert (again.broker_id, again.number) == (2, push.number + 1)
    assert leading.leader.is_leading


def test_a_follower_whose_disk_refuses_a_push_leaves_the_isr_at_once(leading: Leading) -> None:
    push = leading.push_to(2)
    leading.leader.answered(push, ReplicateReply(error=ErrorCode.KAFKA_STORAGE_ERROR), 0)
    assert leading.leader.proposal(0) == IsrProposal(isr=(1,), partition_version=7)


def test_an_answer_to_a_push_that_was_given_up_is_ignored(leading: Leading) -> None:
    push = leading.push_to(2)
    leading.leader.answered(push, push_failed(), -LATER)
    leading.push_to(2)
    assert not leading.leader.answered(push, ReplicateReply(log_end_offset=6), 0)
    assert leading.watermark == 0


def push_failed() -> ReplicateReply:
    return ReplicateReply(error=ErrorCode.REQUEST_TIMED_OUT)


def test_an_answer_of_a_replica_that_was_removed_is_ignored(leading: Leading) -> None:
    push = leading.push_to(3)
    leading.leader.learn(
        PartitionAssignment(leader_epoch=EPOCH, partition_version=8, replicas=(1, 2), isr=(1, 2)), 0
    )
    assert leading.leader.progress(3) is None
    assert not leading.leader.answered(push, ReplicateReply(log_end_offset=6), 0)


def test_a_follower_cannot_be_ahead_of_its_leader(leading: Leading) -> None:
    leading.acknowledge(2, 99)
    assert leading.next_offset(2) == 6
    assert leading.watermark == 6


# --- high watermark ------------------------------------------------------------------------------


def test_high_watermark_is_the_lowest_synced_end_in_the_isr(leading: Leading) -> None:
    assert not leading.acknowledge(3, 6)  # Not in sync.
    assert leading.acknowledge(2, 4)
    assert leading.watermark == 4
    assert leading.acknowledge(2, 6)
    assert leading.watermark == 6


def test_own_end_counts_only_when_it_is_synced(leading: Leading) -> None:
    leading.acknowledge(2, 6)
    leading.append()
    assert not leading.acknowledge(2, 7)
    assert leading.watermark == 6
    assert leading.sync()
    assert leading.watermark == 7


def test_a_leader_alone_in_sync_commits_what_it_syncs() -> None:
    leading = alone()
    assert leading.watermark == 6
    leading.append()
    assert leading.watermark == 6
    assert leading.sync()
    assert leading.watermark == 7


def test_high_watermark_stands_still_while_too_few_are_in_sync() -> None:
    leading = alone(min_insync_replicas=2)
    assert not leading.sync()
    assert leading.watermark == 0


def test_a_lagging_member_holds_the_high_watermark_until_the_controller_has_removed_it(
    leading: Leading,
) -> None:
    assert leading.leader.proposal(LAG_MAX_MS + 1) == IsrProposal(isr=(1,), partition_version=7)
    assert leading.watermark == 0
    assert leading.leader.proposal_answered(recorded((1,), 8), 0)
    assert leading.watermark == 6


def test_a_joining_member_holds_the_high_watermark_from_its_proposal_on(leading: Leading) -> None:
    leading.acknowledge(2, 6)
    leading.acknowledge(3, 6)
    assert leading.leader.proposal(0) == IsrProposal(isr=(1, 2, 3), partition_version=7)
    leading.append()
    leading.sync()
    assert not leading.acknowledge(2, 7)
    assert leading.watermark == 6
    assert leading.acknowledge(3, 7)
    assert leading.watermark == 7


# --- the ISR -------------------------------------------------------------------------------------


def recorded(
    isr: tuple[int, ...],
    version: int,
    error: ErrorCode = ErrorCode.NONE,
    epoch: int = EPOCH,
    ineligible: tuple[int, ...] = (),
) -> AlterIsrReply:
    return AlterIsrReply(
        error=error,
        leader_epoch=epoch,
        partition_version=version,
        replicas=(1, 2, 3),
        isr=isr,
        ineligible=ineligible,
    )


@pytest.mark.parametrize("end_offset", [4, 5])
def test_a_follower_joins_only_with_the_start_of_this_epoch(
    leading: Leading, end_offset: int
) -> None:
    leading.acknowledge(2, 3)
    leading.acknowledge(3, end_offset)  # Has all that is committed, not what the leader began with.
    assert leading.leader.proposal(0) is None
    leading.acknowledge(3, 6)
    assert leading.leader.proposal(0) == IsrProposal(isr=(1, 2, 3), partition_version=7)


def test_a_follower_joins_only_with_all_that_is_committed(leading: Leading) -> None:
    leading.acknowledge(2, 6)
    leading.append()
    leading.acknowledge(2, 7)
    leading.sync()
    leading.acknowledge(3, 6)
    assert leading.leader.proposal(0) is None
    leading.acknowledge(3, 7)
    assert leading.leader.proposal(0) is not None


def test_one_proposal_is_in_flight_and_a_failed_one_is_repeated(leading: Leading) -> None:
    now_ms = LAG_MAX_MS + 1
    proposal = leading.leader.proposal(now_ms)
    assert leading.leader.proposal(now_ms) is None
    leading.leader.proposal_answered(AlterIsrReply(error=ErrorCode.NETWORK_EXCEPTION), now_ms)
    assert leading.leader.proposal(now_ms) is None
    assert leading.leader.wake_ms(now_ms) is not None
    assert leading.leader.proposal(now_ms + BACKOFF_MIN_MS) == proposal


def test_a_refused_version_is_forgotten_for_what_the_controller_has(leading: Leading) -> None:
    leading.leader.proposal(LAG_MAX_MS + 1)
    refusal = recorded((1, 2, 3), 9, ErrorCode.INVALID_UPDATE_VERSION)
    leading.leader.proposal_answered(refusal, LAG_MAX_MS + 1)
    assert leading.leader.in_sync.isr == {1, 2, 3}
    later_ms = LAG_MAX_MS + 1 + BACKOFF_MIN_MS
    assert leading.leader.proposal(later_ms) == IsrProposal(isr=(1,), partition_version=9)


def test_one_that_is_ineligible_keeps_nobody_else_from_joining() -> None:
    alone = PartitionAssignment(
        leader_epoch=EPOCH, partition_version=7, replicas=(1, 2, 3), isr=(1,)
    )
    leading = Leading(alone)
    leading.acknowledge(2, 6)
    leading.acknowledge(3, 6, LATER)
    assert leading.leader.proposal(LATER) == IsrProposal(isr=(1, 2, 3), partition_version=7)
    refused = recorded((1,), 7, ErrorCode.INELIGIBLE_REPLICA, ineligible=(3,))
    leading.leader.proposal_answered(refused, LATER)
    soon_ms = LATER + BACKOFF_MIN_MS
    assert leading.leader.proposal(soon_ms) == IsrProposal(isr=(1, 2), partition_version=7)


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_COORDINATOR, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT]
)
def test_what_the_controller_could_not_record_is_not_learned(
    leading: Leading, error: ErrorCode
) -> None:
    """The controller had decided, and could not write it down: it may never come to be."""
    leading.leader.pushes(0)
    now_ms = LAG_MAX_MS + 1
    assert leading.leader.proposal(now_ms) == IsrProposal(isr=(1,), partition_version=7)
    assert not leading.leader.proposal_answered(recorded((1,), 8, error), now_ms)
    assert leading.watermark == 0
    assert (leading.leader.in_sync.isr, leading.leader.in_sync.version) == ({1, 2}, 7)


def refuse(leading: Leading, now_ms: int) -> None:
    """Broker 3 is proposed, and refused as it is fenced."""
    expected = IsrProposal(isr=(1, 2, 3), partition_version=leading.leader.in_sync.version)
    assert leading.leader.proposal(now_ms) == expected
    version = leading.leader.in_sync.version
    refused = recorded((1, 2), version, ErrorCode.INELIGIBLE_REPLICA, ineligible=(3,))
    leading.leader.proposal_answered(refused, now_ms)


def test_who_is_ineligible_is_proposed_less_and_less_often_at_the_same_version(
    leading: Leading,
) -> None:
    leading.acknowledge(2, 6)
    leading.acknowledge(3, 6)
    now_ms, backoff_ms = 0, INELIGIBLE_MIN_MS
    for _ in range(8):
        refuse(leading, now_ms)
        assert leading.leader.proposal(now_ms + backoff_ms - 1) is None
        leading.leader.pushes(now_ms + backoff_ms - 1)
        assert leading.leader.wake_ms(now_ms + backoff_ms - 1) == now_ms + backoff_ms
        now_ms += backoff_ms
        backoff_ms = min(2 * backoff_ms, INELIGIBLE_MAX_MS)
    assert backoff_ms == INELIGIBLE_MAX_MS


def test_who_is_ineligible_holds_no_high_watermark(leading: Leading) -> None:
    leading.acknowledge(2, 6)
    leading.acknowledge(3, 6)
    refuse(leading, 0)
    leading.append()
    leading.sync()
    assert leading.acknowledge(2, 7)
    assert leading.watermark == 7


def test_who_was_ineligible_is_proposed_at_once_when_the_controller_tells_a_change(
    leading: Leading,
) -> None:
    leading.acknowledge(2, 6)
    leading.acknowledge(3, 6)
    refuse(leading, 0)
    refuse(leading, INELIGIBLE_MIN_MS)
    now_ms = INELIGIBLE_MIN_MS + BACKOFF_MIN_MS
    unfenced = PartitionAssignment(
        leader_epoch=EPOCH, partition_version=8, replicas=(1, 2, 3), isr=(1, 2)
    )
    leading.leader.learn(unfenced, now_ms)
    leading.acknowledge(2, 6, now_ms)
    leading.acknowledge(3, 6, now_ms)
    refuse(leading, now_ms)
    assert leading.leader.proposal(now_ms + INELIGIBLE_MIN_MS - 1) is None
    assert leading.leader.proposal(now_ms + INELIGIBLE_MIN_MS) is not None


def test_who_is_not_in_sync_has_to_say_again_what_it_has_once_the_partition_has_changed(
    leading: Leading,
) -> None:
    """It may have come back with an empty disk, which is a change of the partition."""
    leading.acknowledge(2, 6)
    leading.acknowledge(3, 6)
    leading.append()
    late = leading.push_to(3, 1)
    changed = PartitionAssignment(
        leader_epoch=EPOCH, partition_version=8, replicas=(1, 2, 3), isr=(1, 2)
    )
    leading.leader.learn(changed, 1)
    leading.leader.answered(late, ReplicateReply(log_end_offset=7), 1)
    assert leading.leader.proposal(1) is None
    leading.acknowledge(3, 7, 1)
    assert leading.leader.proposal(1) == IsrProposal(isr=(1, 2, 3), partition_version=8)


def test_a_new_replica_is_pushed_to(leading: Leading) -> None:
    assignment = PartitionAssignment(
        leader_epoch=EPOCH, partition_version=8, replicas=(1, 2, 3, 4), isr=(1, 2)
    )
    leading.leader.learn(assignment, 0)
    assert [push.broker_id for push in leading.leader.pushes(0)] == [2, 3, 4]


@pytest.mark.parametrize(("epoch", "version"), [(EPOCH - 1, 99), (EPOCH, 7), (EPOCH, 6)])
def test_an_older_assignment_is_ignored(leading: Leading, epoch: int, version: int) -> None:
    old = PartitionAssignment(
        leader_epoch=epoch, partition_version=version, replicas=(1,), isr=(1,)
    )
    assert not leading.leader.learn(old, 0)
    assert leading.leader.in_sync.isr == {1, 2}
    assert leading.leader.is_leading


# --- acks -1 -------------------------------------------------------------------------------------


def test_too_few_in_sync_refuse_an_append_and_hold_the_high_watermark() -> None:
    leading = Leading(min_insync_replicas=2)
    assert leading.leader.check_append() is ErrorCode.NONE
    assert not leading.leader.has_too_few
    leading.append()
    leading.acknowledge(2, 6)
    leading.leader.proposal(LATER)
    leading.leader.proposal_answered(recorded((1,), 8), LATER)
    assert leading.leader.has_too_few
    assert leading.leader.check_append() is ErrorCode.NOT_ENOUGH_REPLICAS
    assert not leading.sync()
    assert leading.watermark == 6


def test_a_lower_minimum_commits_what_waited_for_more(leading: Leading) -> None:
    leading.leader.proposal(LATER)
    leading.leader.proposal_answered(recorded((1,), 8), LATER)
    assert not leading.leader.configure(ReplicationSettings(min_insync_replicas=2))
    assert leading.leader.check_append() is ErrorCode.NOT_ENOUGH_REPLICAS
    leading.append()
    assert not leading.sync()
    assert leading.leader.configure(ReplicationSettings(min_insync_replicas=1))
    assert leading.leader.check_append() is ErrorCode.NONE
    assert leading.watermark == 7


def test_other_settings_change_nothing_for_a_leader_that_was_fenced() -> None:
    leading = Leading(min_insync_replicas=3)
    leading.acknowledge(2, 6)
    leading.leader.step_down()
    assert not leading.leader.configure(ReplicationSettings())
    assert leading.watermark == 0


def test_an_answer_for_a_replica_that_was_removed_and_added_again_counts_for_nothing(
    leading: Leading,
) -> None:
    """Its log may be another by now."""
    late = leading.push_to(2)
    for version, replicas in ((8, (1, 3)), (9, (1, 2, 3))):
        leading.leader.learn(
            PartitionAssignment(
                leader_epoch=EPOCH, partition_version=version, replicas=replicas, isr=(1,)
            ),
            0,
        )
    push = leading.push_to(2)
    leading.leader.answered(late, ReplicateReply(log_end_offset=6), 0)
    assert leading.leader.proposal(0) is None
    leading.leader.answered(push, ReplicateReply(log_end_offset=6), 0)
    proposal = leading.leader.proposal(0)
    assert proposal is not None
    assert proposal.isr == (1, 2)


# --- confirmations -----------------------------------------------------------------------------


def test_all_who_may_be_in_sync_confirm_by_an_answer_to_what_was_sent_since(
    leading: Leading,
) -> None:
    before = leading.push_to(2)
    number = leading.leader.ask_to_confirm()
    leading.leader.answered(before, ReplicateReply(log_end_offset=6), 0)
    assert leading.leader.confirmed < number
    assert leading.leader.wake_ms(0) == 0
    since = leading.push_to(2)
    leading.leader.answered(since, ReplicateReply(error=ErrorCode.NETWORK_EXCEPTION), 0)
    assert leading.leader.confirmed < number
    leading.acknowledge(2, 6, LATER)
    assert leading.leader.confirmed == number
    assert leading.leader.confirmed < leading.leader.ask_to_confirm()


def test_one_that_is_proposed_confirms_too(leading: Leading) -> None:
    leading.acknowledge(2, 6)
    leading.acknowledge(3, 6, LATER)
    assert leading.leader.proposal(LATER) is not None
    number = leading.leader.ask_to_confirm()
    leading.acknowledge(2, 6, 2 * LATER)
    assert leading.leader.confirmed < number
    leading.acknowledge(3, 6, 3 * LATER)
    assert leading.leader.confirmed == number


def test_a_leader_alone_in_sync_is_confirmed_by_itself() -> None:
    leader = alone().leader
    number = leader.ask_to_confirm()
    assert leader.confirmed == number


def test_too_few_in_sync_confirm_nothing() -> None:
    """One who was in sync may lead: the controller knows who, and need not have told."""
    leading = Leading(
        PartitionAssignment(leader_epoch=EPOCH, partition_version=7, replicas=(1, 2, 3), isr=(1,)),
        min_insync_replicas=2,
    )
    assert leading.leader.confirmed < leading.leader.ask_to_confirm()


def test_only_a_leader_with_other_replicas_has_followers(leading: Leading) -> None:
    assert leading.leader.has_followers
    alone = PartitionAssignment(leader_epoch=EPOCH, partition_version=8, replicas=(1,), isr=(1,))
    leading.leader.learn(alone, 0)
    assert not leading.leader.has_followers
    assert leading.leader.pushes(LATER) == []


# --- fenced --------------------------------------------------------------------------------------

FENCING: dict[str, Callable[[Leading], object]] = {
    "a follower knows a newer epoch": lambda leading: leading.leader.answered(
        leading.push_to(2), ReplicateReply(error=ErrorCode.FENCED_LEADER_EPOCH), 0
    ),
    "the controller knows one": lambda leading: leading.leader.proposal_answered(
        recorded((2,), 9, ErrorCode.FENCED_LEADER_EPOCH, EPOCH + 1), 0
    ),
    "the controller knows another leader": lambda leading: leading.leader.proposal_answered(
        AlterIsrReply(error=ErrorCode.NOT_LEADER_OR_FOLLOWER), 0
    ),
    "the topic is another one": lambda leading: leading.leader.proposal_answered(
        AlterIsrReply(error=ErrorCode.UNKNOWN_TOPIC_ID), 0
    ),
    "a newer assignment": lambda leading: leading.leader.learn(
        PartitionAssignment(leader_epoch=EPOCH + 1, partition_version=9, replicas=(1, 2), isr=(2,)),
        0,
    ),
    "the replica leads anew": lambda leading: leading.replica.machine.become_leader(
        EPOCH + 1, TOPIC_ID, NO_KEYS
    ),
    "it is told to": lambda leading: leading.leader.step_down(),
}


@pytest.mark.parametrize("cause", FENCING)
def test_a_fenced_leader_does_nothing_more(leading: Leading, cause: str) -> None:
    leading.acknowledge(2, 3)
    leading.append()
    push = leading.push_to(2)
    leading.leader.answered(push, push_failed(), -LATER)
    FENCING[cause](leading)
    assert not leading.leader.is_leading
    assert leading.leader.pushes(LATER) == []
    assert leading.leader.proposal(LATER) is None
    assert leading.leader.wake_ms(0) is None
    assert not leading.sync()
    assert not leading.leader.answered(push, ReplicateReply(log_end_offset=7), 0)
    assert not leading.leader.learn(ASSIGNMENT, 0)
    assert leading.watermark == 3
    assert leading.leader.check_append() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leading.leader.confirmed < leading.leader.ask_to_confirm()


# --- how far followers are -----------------------------------------------------------------------


def test_the_lag_is_that_of_the_follower_furthest_behind(leading: Leading) -> None:
    assert leading.leader.lag(70) == (0, 70)  # Neither has been heard.
    leading.append()
    assert leading.leader.lag(70) == (1, 70)
    leading.acknowledge(2, 7)
    leading.acknowledge(3, 4)
    assert leading.leader.lag(80) == (3, 80)
    leading.acknowledge(3, 7)
    assert leading.leader.lag(90) == (0, 0)
    assert alone().leader.lag(90) == (0, 0)


def test_a_partition_is_under_replicated_until_all_replicas_are_in_sync(leading: Leading) -> None:
    assert leading.leader.is_under_replicated
    leading.acknowledge(2, 6)
    leading.acknowledge(3, 6)
    assert leading.leader.proposal(0) is not None
    assert leading.leader.is_under_replicated
    leading.leader.proposal_answered(recorded((1, 2, 3), 8), 0)
    assert not leading.leader.is_under_replicated
    assert not alone().leader.is_under_replicated


# --- when to look again --------------------------------------------------------------------------


def test_a_leader_that_owes_nothing_need_not_wake(leading: Leading) -> None:
    assert alone().leader.wake_ms(0) is None
    push = leading.push_to(3)
    leading.leader.answered(push, ReplicateReply(log_end_offset=6), 0)
    leading.acknowledge(2, 6)
    leading.leader.proposal(0)
    leading.leader.proposal_answered(recorded((1, 2, 3), 8), 0)
    assert leading.leader.wake_ms(0) == 500  # They are to be told the high watermark.
    for told in leading.leader.pushes(500):
        leading.leader.answered(told, ReplicateReply(log_end_offset=6), 500)
    assert leading.leader.wake_ms(500) is None


def test_a_leader_does_not_wake_for_a_proposal_that_must_wait(leading: Leading) -> None:
    assert len(leading.leader.pushes(0)) == 2
    now_ms = LAG_MAX_MS + 1
    assert leading.leader.wake_ms(now_ms) == now_ms
    leading.leader.proposal(now_ms)
    leading.leader.proposal_answered(recorded((1, 2), 7, ErrorCode.NETWORK_EXCEPTION), now_ms)
    assert leading.leader.wake_ms(now_ms) == now_ms + BACKOFF_MIN_MS


def test_a_leader_wakes_at_once_for_a_follower_that_may_join(leading: Leading) -> None:
    leading.acknowledge(2, 6)
    leading.acknowledge(3, 6)
    assert leading.leader.wake_ms(0) == 0
    leading.leader.proposal(0)
    assert leading.leader.wake_ms(0) != 0


def test_a_leader_wakes_when_a_silent_member_begins_to_lag(leading: Leading) -> None:
    assert len(leading.leader.pushes(0)) == 2
    assert leading.leader.wake_ms(0) == LAG_MAX_MS + 1
    assert leading.leader.proposal(LAG_MAX_MS) is None
    assert leading.leader.proposal(LAG_MAX_MS + 1) is not None
    assert leading.leader.wake_ms(LAG_MAX_MS + 1) is None  # In flight, as are the pushes.


def test_an_append_after_a_long_silence_takes_nobody_from_the_isr(leading: Leading) -> None:
    leading.acknowledge(2, 6)
    leading.append()
    leading.leader.pushes(10 * LAG_MAX_MS)
    assert leading.leader.proposal(10 * LAG_MAX_MS) is None
    assert leading.leader.proposal(11 * LAG_MAX_MS + 1) is not None


# --- reads from followers ----------------------------------------------------------------------


def test_a_consumer_reads_from_the_follower_near_it_that_is_in_sync_and_has_its_offset(
    leading: Leading,
) -> None:
    """Of several the one with the longest log; none while the progress of a follower is unknown."""
    nearest = leading.leader.preferred_read_replica
    assert nearest({2, 3}, 0) == -1
    leading.acknowledge(2, 4)
    leading.acknowledge(3, 6)
    assert (nearest({2}, 4), nearest({2}, 5)) == (2, -1)
    # Broker 3 has more and is not in sync.
    assert (nearest({2, 3}, 0), nearest({3}, 0)) == (2, -1)
    leading.leader.learn(structs.replace(ASSIGNMENT, partition_version=8, isr=(1, 2, 3)), 0)
    assert (nearest({2, 3}, 0), nearest({2, 3}, 6), nearest({2, 3}, 7)) == (3, 3, -1)
    leading.acknowledge(2, 6)
    assert nearest({2, 3}, 0) == 2


def test_a_consumer_near_the_leader_reads_from_it_and_a_deposed_one_names_nobody(
    leading: Leading,
) -> None:
    leading.acknowledge(2, 6)
    assert leading.leader.preferred_read_replica({1, 2}, 0) == -1
    assert leading.leader.preferred_read_replica(set(), 0) == -1
    assert leading.leader.preferred_read_replica({2}, 0) == 2
    leading.leader.step_down()
    assert leading.leader.preferred_read_replica({2}, 0) == -1


@pytest.mark.parametrize("has_readers", [True, False])
def test_the_answer_of_a_follower_tells_that_consumers_wait_there(
    leading: Leading, has_readers: bool
) -> None:
    """1. The follower acknowledges a batch, and the high watermark rises. 2. Where consumers wait
    it is told so at once, else after a delay.
    """
    leading.acknowledge(2, 6)
    leading.append()
    leading.sync()
    reply = ReplicateReply(log_end_offset=7, has_readers=has_readers)
    assert leading.leader.answered(leading.push_to(2), reply, 0)
    assert (2 in [push.broker_id for push in leading.leader.pushes(0)]) == has_readers
