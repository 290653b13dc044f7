"""What one replica refuses, replays, leads and lets read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncelog.actors.protocol.partition.partition_machine import ACCEPTED, PartitionMachine, Role
from oncelog.actors.protocol.tickets import ClusterKeys
from oncelog.storage.errors import ErrorCode, InvariantViolation
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    AppendOrigin,
    IsolationLevel,
    TopicPartition,
)
from oncelog.storage.records.batch import BatchHeader
from oncelog.storage.records.control import ControlRecord

HeaderOf = Callable[..., BatchHeader]
A, B = 7, 8


# --- what a client may not send ---------------------------------------------------------------


def test_transactional_batch_must_name_its_transactional_id(
    leader: Any, header_of: HeaderOf
) -> None:
    header = header_of(is_transactional=True)
    for transactional_id in (None, ""):
        verdict = leader.decide(header, ticket=leader.ticket(), transactional_id=transactional_id)
        assert verdict.error is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_ticket_is_for_one_transactional_id(leader: Any, header_of: HeaderOf) -> None:
    """Also once it is known: whoever may not use an id does not write with its ticket."""
    header, ticket = header_of(is_transactional=True), leader.ticket()
    stranger = leader.decide(header, ticket=ticket, transactional_id="reporter")
    assert stranger.error is ErrorCode.INVALID_TXN_STATE
    assert leader.decide(header, ticket=ticket) == ACCEPTED
    leader.open()
    following = header_of(is_transactional=True, base_offset=1, base_sequence=1)
    assert leader.decide(following, ticket=ticket) == ACCEPTED
    stranger = leader.decide(following, ticket=ticket, transactional_id="reporter")
    assert stranger.error is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("shape", [{"is_control": True}, {"producer_id": -1}])
def test_marker_or_anonymous_transaction_of_a_client_is_refused(
    leader: Any, header_of: HeaderOf, shape: dict[str, Any]
) -> None:
    verdict = leader.decide(header_of(is_transactional=True, **shape))
    assert verdict.error is ErrorCode.INVALID_RECORD


def test_client_may_not_write_to_an_internal_topic(header_of: HeaderOf) -> None:
    machine = PartitionMachine(TopicPartition(CONSUMER_OFFSETS_TOPIC, 0))
    machine.become_leader(1, "id", ClusterKeys(current=b"k"))
    header = header_of(producer_id=-1)
    refused = machine.decide_append(header, origin=AppendOrigin.CLIENT, now_ms=0)
    assert refused.error is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert machine.decide_append(header, origin=AppendOrigin.COORDINATOR, now_ms=0) == ACCEPTED


# --- replay and failover ----------------------------------------------------------------------


def test_new_leader_goes_on_with_an_open_transaction(leader: Any) -> None:
    leader.open()
    leader.fail_over()
    assert leader.send_transactional(0).duplicate_base_offset == 0
    assert leader.send_transactional(1).error is ErrorCode.INVALID_TXN_STATE
    assert leader.send_transactional(1, ticket=leader.ticket()) == ACCEPTED
    assert leader.mark() is ErrorCode.NONE
    assert leader.completed.first_offset == 0


def test_record_count_of_an_open_transaction_survives_a_snapshot(leader: Any) -> None:
    leader.send(0, 4, producer_id=B)
    leader.open(A, count=10)
    snapshot_offset, entries = leader.end, leader.machine.snapshot()
    leader.send_transactional(10, count=5, ticket=leader.ticket(A))
    machine = leader.reload(snapshot_offset, entries)
    assert machine.replay_from == 5
    assert machine.describe_producers([A])[0].open_record_count == 15


def test_replay_from_further_back_counts_only_the_open_transaction(leader: Any) -> None:
    leader.open(A, count=7)
    leader.mark(A)
    leader.open(A, producer_epoch=1, count=3)
    machine = PartitionMachine(leader.topic_partition)
    machine.load(0, leader.end, leader.machine.snapshot())
    for header, control in leader.log:
        machine.apply(header, control)
    assert machine.describe_producers([A])[0].open_record_count == 3


def test_open_transactions_of_a_snapshot_come_in_the_order_of_their_offsets(leader: Any) -> None:
    """1. A is the first producer here. 2. B opens. 3. A opens. 4. Snapshot. 5. B ends."""
    leader.open(A)
    leader.mark(A)
    first_of_b = leader.open(B)
    first_of_a = leader.open(A, producer_epoch=1)
    leader.machine = leader.reload(leader.end, leader.machine.snapshot())
    leader.machine.become_leader(2, "topic-id-1", ClusterKeys(current=b"k"))
    assert leader.machine.first_unstable_offset == first_of_b
    leader.mark(B)
    leader.machine.advance_high_watermark(leader.end)
    assert leader.machine.first_unstable_offset == first_of_a


def test_snapshot_below_the_log_start_is_loaded_at_the_log_start(leader: Any) -> None:
    machine = PartitionMachine(leader.topic_partition)
    machine.load(10, 5, ())
    assert (machine.log_end_offset, machine.replay_from, machine.high_watermark) == (10, 10, 10)


def test_nothing_is_stable_before_the_high_watermark_reaches_the_loaded_snapshot(
    leader: Any,
) -> None:
    """1. A opens at 0. 2. ABORT A at 1. 3. Snapshot at 2. 4. Crash; only offset 0 is replicated."""
    leader.open(A)
    leader.mark(A, committed=False)
    machine = leader.reload(leader.end, leader.machine.snapshot())
    machine.advance_high_watermark(1)
    assert machine.last_stable_offset == 0
    machine.advance_high_watermark(2)
    assert machine.last_stable_offset == 2


def test_replay_begins_at_the_snapshot_when_nothing_is_open(leader: Any) -> None:
    leader.open()
    leader.mark()
    machine = leader.reload(leader.end, leader.machine.snapshot())
    assert machine.replay_from == leader.end == machine.log_end_offset


def test_replay_never_begins_below_the_log_start(leader: Any) -> None:
    leader.open()
    machine = PartitionMachine(leader.topic_partition)
    machine.load(1, 1, leader.machine.snapshot())
    assert machine.replay_from == 1
    assert machine.open_transaction_count == 1


def test_marker_whose_data_were_deleted_opens_nothing(leader: Any, header_of: HeaderOf) -> None:
    machine = PartitionMachine(leader.topic_partition)
    machine.load(40, 40, ())
    marker = header_of(base_offset=41, is_transactional=True, is_control=True, producer_epoch=2)
    assert machine.apply(marker, ControlRecord(True, 0)) is None
    assert machine.open_transaction_count == 0
    assert machine.log_end_offset == 42


@pytest.mark.parametrize("control", [None, ControlRecord(None, -1)])
def test_control_batch_without_verdict_only_moves_the_log_end(
    leader: Any, header_of: HeaderOf, control: ControlRecord | None
) -> None:
    leader.open()
    machine = leader.reload()
    empty = header_of(base_offset=1, is_transactional=True, is_control=True, record_count=0)
    assert machine.apply(empty, control) is None
    assert (machine.log_end_offset, machine.open_transaction_count) == (2, 1)


def test_follower_takes_what_the_leader_wrote_with_gaps_and_older_epochs(
    leader: Any, header_of: HeaderOf
) -> None:
    machine = PartitionMachine(leader.topic_partition)
    machine.become_follower(3)
    machine.apply(header_of(base_offset=0, producer_epoch=2), None)
    machine.apply(header_of(base_offset=10, base_sequence=9, producer_epoch=1), None)
    assert machine.log_end_offset == 11
    assert machine.describe_producers([A])[0].last_sequence == 9


def test_replayed_batches_bring_their_leader_epochs(leader: Any, header_of: HeaderOf) -> None:
    machine = PartitionMachine(leader.topic_partition)
    machine.load(0, 0, (), leader_epochs=[(1, 0)])
    machine.apply(header_of(base_offset=0, leader_epoch=1), None)
    machine.apply(header_of(base_offset=1, base_sequence=1, leader_epoch=4), None)
    assert machine.leader_epochs.entries == ((1, 0), (4, 1))


# --- roles and bounds -------------------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.LOADING, Role.FOLLOWER])
def test_only_a_leader_decides(leader: Any, header_of: HeaderOf, role: Role) -> None:
    not_leader = ErrorCode.NOT_LEADER_OR_FOLLOWER
    machine = PartitionMachine(leader.topic_partition)
    if role is Role.FOLLOWER:
        machine.become_follower(1)
    leader.machine = machine
    assert leader.decide(header_of()).error is not_leader
    assert machine.decide_marker(A, 1, 0) is not_leader
    assert machine.check_leader() is not_leader


def test_leader_epoch_of_a_request_must_be_the_leaders(leader: Any) -> None:
    leader.fail_over()
    assert leader.machine.check_leader(-1) is ErrorCode.NONE
    assert leader.machine.check_leader(2) is ErrorCode.NONE
    assert leader.machine.check_leader(1) is ErrorCode.FENCED_LEADER_EPOCH
    assert leader.machine.check_leader(3) is ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize(
    ("role", "epoch", "answer"),
    [
        (Role.LOADING, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (Role.FOLLOWER, -1, ErrorCode.NONE),
        (Role.FOLLOWER, 2, ErrorCode.NONE),
        (Role.FOLLOWER, 1, ErrorCode.FENCED_LEADER_EPOCH),
        (Role.FOLLOWER, 3, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (Role.LEADER, 2, ErrorCode.NONE),
        (Role.LEADER, 1, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_a_consumer_may_read_from_a_follower_in_the_epoch_of_both(
    leader: Any, role: Role, epoch: int, answer: ErrorCode
) -> None:
    machine = PartitionMachine(leader.topic_partition)
    if role is not Role.LOADING:
        machine.become_follower(2)
    if role is Role.LEADER:
        leader.fail_over()
        machine = leader.machine
    assert machine.check_reader(epoch) is answer


def test_new_epoch_begins_at_the_log_end_without_data(leader: Any) -> None:
    leader.fill(5)
    leader.fail_over()
    assert leader.machine.leader_epochs.entries == ((1, 0), (2, 5))


def test_latest_is_not_told_before_the_epochs_start_is_replicated(leader: Any) -> None:
    leader.fill(5)
    leader.fail_over()
    leader.machine.advance_high_watermark(4)
    assert leader.machine.check_latest() is ErrorCode.OFFSET_NOT_AVAILABLE
    leader.machine.advance_high_watermark(5)
    assert leader.machine.check_latest() is ErrorCode.NONE


def test_fetch_is_bounded_by_isolation_and_refused_outside_the_log(leader: Any) -> None:
    leader.fill(5)
    leader.open()
    leader.fill(9)
    leader.machine.advance_high_watermark(8)
    leader.machine.advance_log_start(2)
    assert leader.machine.fetch_bound(IsolationLevel.READ_COMMITTED) == 5
    assert leader.machine.fetch_bound(IsolationLevel.READ_UNCOMMITTED) == 8
    for offset, error in ((1, True), (2, False), (8, False), (9, False), (10, True)):
        refused = leader.machine.check_fetch(offset) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert refused is error


def test_high_watermark_only_rises(leader: Any) -> None:
    leader.fill(5)
    assert leader.machine.advance_high_watermark(4)
    assert not leader.machine.advance_high_watermark(4)
    assert not leader.machine.advance_high_watermark(3)
    assert leader.machine.high_watermark == 4


def test_log_start_only_rises(leader: Any) -> None:
    leader.fill(5)
    assert leader.machine.advance_log_start(4)
    assert not leader.machine.advance_log_start(4)
    assert (leader.machine.log_start_offset, leader.machine.high_watermark) == (4, 4)
    assert leader.machine.leader_epochs.entries == ((1, 4),)


def test_bounds_past_the_log_end_are_a_bug(leader: Any) -> None:
    with pytest.raises(InvariantViolation, match="I-04"):
        leader.machine.advance_high_watermark(1)
    with pytest.raises(InvariantViolation, match="I-01"):
        leader.machine.advance_log_start(1)


@pytest.mark.parametrize(
    ("field", "number"), [("_high_watermark", "I-01"), ("_stable_seen", "I-03")]
)
def test_bounds_are_checked_after_every_batch(
    leader: Any, header_of: HeaderOf, field: str, number: str
) -> None:
    setattr(leader.machine, field, 50)
    with pytest.raises(InvariantViolation, match=number):
        leader.machine.apply(header_of(), None)


@pytest.mark.parametrize(
    ("base_offset", "leader_epoch", "number"), [(4, 1, "I-02"), (6, 1, "I-02"), (5, 0, "I-08")]
)
def test_leader_writes_its_own_epoch_exactly_at_the_log_end(
    leader: Any, header_of: HeaderOf, base_offset: int, leader_epoch: int, number: str
) -> None:
    leader.fill(5)
    with pytest.raises(InvariantViolation, match=number):
        leader.machine.apply(header_of(base_offset=base_offset, leader_epoch=leader_epoch), None)
    assert leader.end == 5


def test_leader_epoch_that_does_not_rise_is_a_bug(leader: Any) -> None:
    with pytest.raises(InvariantViolation, match="I-08"):
        leader.machine.become_leader(1, "id", ClusterKeys(current=b"k"))
    with pytest.raises(InvariantViolation, match="I-08"):
        leader.machine.become_follower(0)


def test_leader_that_follows_again_may_lead_a_newer_epoch(leader: Any) -> None:
    leader.machine.become_follower(2)
    leader.machine.become_leader(3, "id", ClusterKeys(current=b"k"))
    assert (leader.machine.role, leader.machine.leader_epoch) == (Role.LEADER, 3)


def test_story_of_a_replica_names_its_bounds(leader: Any) -> None:
    leader.fill(5)
    leader.machine.advance_high_watermark(3)
    assert str(leader.machine) == ("flights-3 (leader in 1, start 0, stable 3, watermark 3, end 5)")
