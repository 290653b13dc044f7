"""A follower that is pushed to: each role and push, and what is cut."""

from __future__ import annotations

import pytest
from cluster_worlds import TOPIC_ID
from msgspec import structs
from replica_model import PARTITION, Replica, batch_at

from oncelog.actors.protocol.messages.replication import ReplicateReply, ReplicateRequest
from oncelog.actors.protocol.partition.following import ReplicateVerdict
from oncelog.actors.protocol.tickets import NO_KEYS
from oncelog.storage.errors import ErrorCode

EPOCH = 5


def follower(*epochs: int, watermark: int = 0) -> Replica:
    """Broker 2, with a batch of one record of each of these epochs; it follows epoch 5."""
    replica = Replica(2)
    for offset, epoch in enumerate(epochs):
        replica.append(batch_at(offset, epoch))
    replica.sync()
    replica.machine.become_follower(EPOCH)
    replica.machine.advance_high_watermark(watermark)
    return replica


def push(
    previous_end: int, previous_epoch: int, *batches: bytes, start: int = 3, **fields: object
) -> ReplicateRequest:
    request = ReplicateRequest(
        topic_partition=PARTITION,
        topic_id=TOPIC_ID,
        leader=1,
        leader_epoch=EPOCH,
        epoch_start_offset=start,
        previous_end_offset=previous_end,
        previous_leader_epoch=previous_epoch,
        high_watermark=0,
        log_start_offset=0,
        batches=b"".join(batches),
    )
    return structs.replace(request, **fields)


def take(replica: Replica, request: ReplicateRequest) -> tuple[ReplicateVerdict, ReplicateReply]:
    verdict = replica.take(request)
    replica.sync()
    return verdict, replica.follower.acknowledge(request, verdict, replica.synced_end_offset)


def epochs_of(replica: Replica) -> list[int]:
    return [header.leader_epoch for header, _ in replica.batches]


NEXT = batch_at(3, EPOCH)
MORE = batch_at(4, EPOCH)


# --- who may push --------------------------------------------------------------------------------


def test_a_replica_that_loads_takes_nothing() -> None:
    replica = follower(1)
    replica.machine.load(0, 0, ())
    assert replica.follower.decide(push(0, -1)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_another_topic_of_the_name_is_refused() -> None:
    _, reply = take(follower(1), push(1, 1, topic_id="b" * 32, leader_epoch=EPOCH + 1))
    assert reply.error is ErrorCode.UNKNOWN_TOPIC_ID


def test_an_older_leader_is_fenced_and_told_the_epoch() -> None:
    replica = follower(1, 1, 1)
    verdict, reply = take(replica, push(3, 1, leader_epoch=EPOCH - 1))
    assert (reply.error, reply.leader_epoch) == (ErrorCode.FENCED_LEADER_EPOCH, EPOCH)
    assert verdict == ReplicateVerdict(error=ErrorCode.FENCED_LEADER_EPOCH)


def test_an_epoch_in_the_log_fences_older_leaders_too() -> None:
    replica = Replica(2)
    replica.append(batch_at(0, 7))
    verdict = replica.follower.decide(push(1, 6, leader_epoch=6))
    assert verdict.error is ErrorCode.FENCED_LEADER_EPOCH


def test_a_newer_leader_is_followed_in_its_epoch() -> None:
    replica = follower(1, 1, 1)
    verdict, reply = take(replica, push(3, 1, leader_epoch=EPOCH + 1))
    assert verdict.adopts_epoch
    assert (reply.error, reply.log_end_offset) == (ErrorCode.NONE, 3)
    assert replica.machine.leader_epoch == EPOCH + 1
    verdict, _ = take(replica, push(3, 1, leader_epoch=EPOCH + 1))
    assert not verdict.adopts_epoch


def test_a_leader_follows_a_newer_one_and_refuses_its_own_epoch() -> None:
    replica = follower(1, 1, 1)
    replica.machine.become_leader(EPOCH + 1, TOPIC_ID, NO_KEYS)
    _, reply = take(replica, push(3, 1, leader_epoch=EPOCH + 1))
    assert reply.error is ErrorCode.INVALID_REQUEST
    assert "this replica leads in epoch 6" in reply.detail
    _, reply = take(replica, push(3, 1, leader_epoch=EPOCH))
    assert reply.error is ErrorCode.FENCED_LEADER_EPOCH
    verdict, reply = take(replica, push(3, 1, leader_epoch=EPOCH + 2))
    assert verdict.adopts_epoch
    assert reply.error is ErrorCode.NONE


def test_an_epoch_has_one_leader() -> None:
    replica = follower(1, 1, 1)
    take(replica, push(3, 1))
    _, reply = take(replica, push(3, 1, leader=3))
    assert reply.error is ErrorCode.INVALID_REQUEST
    assert "1 leads in epoch 5, 3 says it does" in reply.detail


def test_an_epoch_that_was_led_without_a_batch_is_not_in_the_log() -> None:
    """Batches of an older epoch may come to lie where it began."""
    replica = follower(1, 1)
    replica.machine.become_leader(EPOCH + 1, TOPIC_ID, NO_KEYS)
    assert replica.machine.leader_epochs.entries == ((1, 0), (EPOCH + 1, 2))
    request = push(2, 1, batch_at(2, 2), start=3, leader_epoch=EPOCH + 2)
    take(replica, request)
    assert replica.machine.leader_epochs.entries == ((1, 0), (2, 2))
    verdict, _ = take(replica, request)
    assert verdict.truncate_offset == -1


# --- what a push may hold ------------------------------------------------------------------------

DAMAGED = bytearray(NEXT)
DAMAGED[-1] ^= 1


@pytest.mark.parametrize(
    "batches",
    [
        (bytes(DAMAGED),),
        (NEXT, batch_at(3, EPOCH)),
        (batch_at(2, EPOCH),),
        (batch_at(3, EPOCH + 1),),
        (batch_at(3, 0),),
        (NEXT, batch_at(4, 4)),
        (NEXT[:-1],),
        (NEXT, b"\x00" * 7),
        (b"\x00" * 61,),
    ],
    ids=["crc", "twice", "before", "newer", "older", "falling", "torn", "rest", "no header"],
)
def test_a_push_with_an_impossible_batch_changes_nothing(batches: tuple[bytes, ...]) -> None:
    replica = follower(1, 1, 1)
    _, reply = take(replica, push(3, 1, *batches))
    assert reply.error is ErrorCode.CORRUPT_MESSAGE
    assert replica.end_offset == 3


# --- log matching --------------------------------------------------------------------------------


def test_batches_are_taken_where_the_logs_agree() -> None:
    replica = follower(1, 1, 2)
    verdict, reply = take(replica, push(3, 2, NEXT, MORE))
    assert reply == ReplicateReply(log_end_offset=5)
    assert (verdict.append_position, verdict.truncate_offset) == (0, -1)
    assert epochs_of(replica) == [1, 1, 2, 5, 5]


def test_a_repeated_or_late_push_changes_nothing() -> None:
    replica = follower(1, 1, 2)
    whole = push(3, 2, NEXT, MORE)
    for request in (whole, whole, push(3, 2, NEXT), push(3, 2), push(1, 1), push(0, -1)):
        verdict, reply = take(replica, request)
        assert verdict.truncate_offset == -1
        assert reply == ReplicateReply(log_end_offset=5)
    assert epochs_of(replica) == [1, 1, 2, 5, 5]


def test_what_is_there_already_is_not_appended_again() -> None:
    replica = follower(1, 1, 2)
    take(replica, push(3, 2, NEXT))
    verdict, reply = take(replica, push(3, 2, NEXT, MORE))
    assert verdict.append_position == len(NEXT)
    assert reply.log_end_offset == 5
    assert epochs_of(replica) == [1, 1, 2, 5, 5]


def test_gaps_of_compaction_are_taken_as_they_are() -> None:
    replica = follower(1, 1)
    _, reply = take(replica, push(2, 1, batch_at(7, EPOCH), start=2))
    assert reply.log_end_offset == 8
    assert replica.machine.leader_epochs.entries == ((1, 0), (5, 7))


@pytest.mark.parametrize(
    ("epochs", "asked", "diverging"),
    [
        ((1, 1), (3, 2), (1, 2)),  # Its log ends before.
        ((1, 1, 1, 1), (3, 2), (1, 4)),  # It knows nothing of epoch 2.
        ((1, 1, 3), (3, 2), (1, 2)),  # It has an epoch that the leader has not.
        ((1, 2, 3), (3, 2), (2, 2)),  # It leaves epoch 2 earlier.
        ((3, 3, 3), (3, 2), (2, 0)),  # All it has is newer.
    ],
)
def test_a_follower_that_diverges_says_where_and_changes_nothing(
    epochs: tuple[int, ...], asked: tuple[int, int], diverging: tuple[int, int]
) -> None:
    replica = follower(*epochs)
    verdict, reply = take(replica, push(*asked, NEXT))
    assert (reply.diverging_epoch, reply.diverging_end_offset) == diverging
    assert (reply.error, reply.log_end_offset) == (ErrorCode.NONE, len(epochs))
    assert (verdict.agreed_offset, verdict.truncate_offset) == (-1, -1)
    assert epochs_of(replica) == list(epochs)


@pytest.mark.parametrize("previous_end", [3, 7])
def test_a_follower_without_epochs_keeps_what_is_committed(previous_end: int) -> None:
    replica = follower(-1, -1, -1, -1, watermark=2)
    verdict, reply = take(replica, push(previous_end, 1, start=9))
    assert verdict.truncate_offset == 2
    assert (reply.diverging_epoch, reply.diverging_end_offset) == (-1, 2)
    verdict, reply = take(replica, push(2, 1, batch_at(2, 1), start=9))
    assert (verdict.truncate_offset, reply.log_end_offset) == (-1, 3)


def test_an_empty_follower_says_so_and_is_filled_from_the_start() -> None:
    replica = follower()
    verdict, reply = take(replica, push(3, 2))
    assert (verdict.truncate_offset, reply.diverging_epoch) == (-1, -1)
    assert reply.diverging_end_offset == 0
    _, reply = take(replica, push(0, -1, batch_at(0, 1), batch_at(1, 2)))
    assert reply.log_end_offset == 2


# --- cuts ----------------------------------------------------------------------------------------


def test_a_batch_in_the_place_of_another_is_cut() -> None:
    replica = follower(1, 1, 3, 3)
    verdict, reply = take(replica, push(1, 1, batch_at(1, 1), batch_at(2, 2), start=9))
    assert (verdict.truncate_offset, verdict.append_position) == (2, len(NEXT))
    assert epochs_of(replica) == [1, 1, 2]
    assert reply.log_end_offset == 3


def test_a_longer_tail_of_older_epochs_is_cut_where_the_leader_began() -> None:
    replica = follower(1, 1, 1, 1, 2)
    verdict, reply = take(replica, push(3, 1))
    assert verdict.truncate_offset == 3
    assert reply == ReplicateReply(log_end_offset=3)
    assert epochs_of(replica) == [1, 1, 1]


def test_a_tail_before_the_leaders_start_waits_for_what_conflicts() -> None:
    replica = follower(1, 1, 1, 1)
    verdict, reply = take(replica, push(2, 1, start=6))
    assert verdict.truncate_offset == -1
    assert reply.log_end_offset == 2  # What is beyond is not known to be the leader's.
    assert replica.machine.high_watermark == 0


def test_a_cut_takes_whole_batches() -> None:
    replica = follower(1)
    replica.append(batch_at(1, 1, count=4))
    take(replica, push(1, 1, batch_at(1, 1), batch_at(2, EPOCH), start=2))
    assert [header.next_offset for header, _ in replica.batches][-1] == 3


def test_nothing_is_cut_below_the_high_watermark() -> None:
    replica = follower(1, 1, 3, watermark=3)
    _, reply = take(replica, push(2, 1, batch_at(2, 2), start=3))
    assert reply.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert "has other records from 2 on, below the high watermark 3" in reply.detail
    assert epochs_of(replica) == [1, 1, 3]


# --- the leader's log start ----------------------------------------------------------------------


def test_a_follower_that_ends_before_the_log_start_begins_there_anew() -> None:
    replica = follower(1, 1)
    request = push(8, -1, batch_at(8, EPOCH), log_start_offset=8, high_watermark=8)
    verdict, reply = take(replica, request)
    assert verdict.restart_offset == 8
    assert reply.log_end_offset == 9
    machine = replica.machine
    assert (machine.log_start_offset, machine.high_watermark) == (8, 8)
    assert machine.leader_epochs.entries == ((5, 8),)


def test_a_log_start_within_a_batch_begins_with_that_batch() -> None:
    replica = follower(1)
    request = push(8, -1, batch_at(6, 4, count=4), log_start_offset=8, start=10)
    verdict, reply = take(replica, request)
    assert verdict.restart_offset == 6
    assert reply.log_end_offset == 10
    assert replica.machine.log_start_offset == 8
    verdict, reply = take(replica, request)
    assert (verdict.restart_offset, reply.log_end_offset) == (-1, 10)


def test_an_empty_log_of_the_leader_is_followed_to_its_start() -> None:
    replica = follower(1, 1)
    verdict, reply = take(replica, push(8, -1, log_start_offset=8))
    assert (verdict.restart_offset, reply.log_end_offset) == (8, 8)


@pytest.mark.parametrize("epochs", [(3, 3), (3, 3, 3)])
def test_a_log_without_a_batch_of_the_leaders_is_dropped_whole(epochs: tuple[int, ...]) -> None:
    """Its producers are another's: they would make a leader of it see duplicates."""
    replica = follower(*epochs)
    request = push(2, -1, batch_at(2, 1), log_start_offset=2, start=9)
    verdict, reply = take(replica, request)
    assert (verdict.restart_offset, reply.log_end_offset) == (2, 3)
    assert epochs_of(replica) == [1]


def test_a_follower_that_is_known_to_agree_keeps_its_log_when_the_log_start_moves() -> None:
    replica = follower(1, 1)
    take(replica, push(2, 1, start=2))
    request = push(2, -1, batch_at(2, EPOCH), start=2, log_start_offset=2, high_watermark=2)
    verdict, reply = take(replica, request)
    assert (verdict.restart_offset, reply.log_end_offset) == (-1, 3)
    assert replica.machine.log_start_offset == 2


def test_the_log_start_follows_the_leaders() -> None:
    replica = follower(1, 1, 1)
    take(replica, push(3, 1, log_start_offset=2, high_watermark=3))
    assert replica.machine.log_start_offset == 2
    take(replica, push(3, 1, log_start_offset=1, high_watermark=3))
    assert replica.machine.log_start_offset == 2


def test_a_follower_whose_log_start_is_higher_skips_what_it_has_deleted() -> None:
    replica = follower(1, 1, 1, watermark=2)
    replica.machine.advance_log_start(2)
    verdict, reply = take(replica, push(0, -1, *(batch_at(n, 1) for n in range(3)), NEXT))
    assert verdict.append_position == 3 * len(NEXT)
    assert reply.log_end_offset == 4


# --- acknowledged --------------------------------------------------------------------------------


def test_only_what_is_synced_is_acknowledged_and_committed() -> None:
    replica = follower(1, 1, 1)
    request = push(3, 1, NEXT, MORE, high_watermark=9)
    verdict = replica.take(request)
    reply = replica.follower.acknowledge(request, verdict, 4)
    assert reply.log_end_offset == 4
    assert replica.machine.high_watermark == 4


def test_the_high_watermark_is_the_leaders_and_only_rises() -> None:
    replica = follower(1, 1, 1)
    take(replica, push(3, 1, high_watermark=2))
    assert replica.machine.high_watermark == 2
    take(replica, push(3, 1, high_watermark=1))
    assert replica.machine.high_watermark == 2


def test_a_newer_epoch_during_the_sync_leaves_nothing_to_acknowledge() -> None:
    replica = follower(1, 1, 1)
    request = push(3, 1, NEXT, high_watermark=4)
    verdict = replica.take(request)
    take(replica, push(3, 1, start=3, leader_epoch=EPOCH + 1))
    reply = replica.follower.acknowledge(request, verdict, 4)
    assert (reply.error, reply.leader_epoch) == (ErrorCode.FENCED_LEADER_EPOCH, EPOCH + 1)
    assert replica.machine.high_watermark == 0


def test_a_replica_that_came_to_lead_or_load_during_the_sync_acknowledges_nothing() -> None:
    replica = follower(1, 1, 1)
    request = push(3, 1, NEXT)
    verdict = replica.take(request)
    replica.machine.load(0, 0, ())
    late = replica.follower.acknowledge(request, verdict, 4)
    assert late.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    replica.machine.become_leader(EPOCH + 1, TOPIC_ID, NO_KEYS)
    late = replica.follower.acknowledge(request, verdict, 4)
    assert late.error is ErrorCode.FENCED_LEADER_EPOCH


def test_what_agreed_in_one_epoch_does_not_in_the_next() -> None:
    replica = follower(1, 1, 1)
    take(replica, push(3, 1, NEXT))
    _, reply = take(replica, push(2, 1, start=9, leader_epoch=EPOCH + 1))
    assert reply.log_end_offset == 2
