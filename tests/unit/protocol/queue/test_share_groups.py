"""Members, their epochs and sequences, transactions, and what a new coordinator finds."""

from __future__ import annotations

import msgspec
import pytest
from share_world import GROUP, TOPIC_ID, TP, ShareWorld, runs, state_of

from oncelog.actors.protocol.messages.share import (
    AcknowledgeType,
    ShareGroupHeartbeatRequest,
    ShareOrder,
)
from oncelog.actors.protocol.queue import share_groups
from oncelog.actors.protocol.queue.share_groups import ReadableRange, ShareTurn
from oncelog.actors.protocol.queue.share_keys import KnownKeys
from oncelog.actors.protocol.queue.share_records import ShareGroupValue, decode_value
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

NONE = ErrorCode.NONE


@pytest.fixture
def world() -> ShareWorld:
    return ShareWorld()


def joined(world: ShareWorld, member_id: str = "a", **fields: ShareOrder) -> int:
    reply = world.join(member_id, **fields)
    assert reply.error is NONE
    return reply.member_epoch


def spans(reply):
    return [(run.first_offset, run.last_offset, run.delivery_count) for run in reply.acquired]


# --- members --------------------------------------------------------------------------------------


def test_no_two_members_and_no_two_lives_of_one_have_the_same_epoch(world):
    epochs = [joined(world, member) for member in ("a", "b", "a", "a", "c")]
    assert len(set(epochs)) == len(epochs)
    assert state_of(world.replayed()) == state_of(world.groups)


def test_a_member_that_joins_anew_loses_what_it_held_and_its_former_life_is_fenced(world):
    old = joined(world)
    world.acquire("a", old, 3)
    new = joined(world)
    assert world.states() == [(0, 2, "AVAILABLE")]
    assert world.acknowledge("a", old, runs((0, 0))).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert world.acquire("a", old, 1, sequence=9).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert world.join("a", member_epoch=old).error is ErrorCode.FENCED_MEMBER_EPOCH
    reply = world.txn_acknowledge("a", old, runs((0, 0)))
    assert reply.error is ErrorCode.FENCED_MEMBER_EPOCH
    assert spans(world.acquire("a", new, 9)) == [(0, 2, 2), (3, 8, 1)]


def test_a_member_that_leaves_or_is_removed_releases_all_and_is_unknown(world):
    a, b = joined(world, "a"), joined(world, "b")
    world.acquire("a", a, 2)
    world.acquire("b", b, 2)
    assert world.join("a", member_epoch=a, is_leaving=True).error is NONE
    world.turn(lambda turn: turn.remove("b", b))
    assert world.states() == [(0, 3, "AVAILABLE")]
    for member, epoch in (("a", a), ("b", b)):
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        assert world.acquire(member, epoch, 1).error is unknown
        assert world.acknowledge(member, epoch, runs((0, 0))).error is unknown
        assert world.join(member, member_epoch=epoch).error is unknown


def test_the_end_of_a_former_life_removes_nobody(world):
    old = joined(world)
    new = joined(world)
    world.turn(lambda turn: turn.remove("a", old))
    assert world.join("a", member_epoch=new).error is NONE


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "m" * 250}, ErrorCode.INVALID_REQUEST),
        ({"topics": ()}, ErrorCode.INVALID_REQUEST),
        ({"topics": tuple(f"t{n}" for n in range(101))}, ErrorCode.INVALID_REQUEST),
        ({"topics": ("no/topic",)}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_an_impossible_join_is_refused_and_changes_nothing(world, fields, error):
    values = {"group_id": GROUP, "member_id": "a", "topics": (TP.topic,), **fields}
    request = ShareGroupHeartbeatRequest(**values)
    assert world.turn(lambda turn: turn.heartbeat(request)).error is error
    assert world.log == []


def test_members_of_a_group_have_one_order_and_it_is_durable(world):
    joined(world, "a")
    joined(world, "a", order=ShareOrder.KEY)
    refused = world.join("b")
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert refused.detail == "the workers of 'resize' have order='key': give all the same"
    assert world.join("b", order=ShareOrder.KEY).order is ShareOrder.KEY
    for groups in (world.groups, world.replayed(), world.replayed(world.compacted())):
        group = groups.find(GROUP)
        assert group is not None
        assert group.order is ShareOrder.KEY


def test_a_group_from_before_there_was_an_order_has_none():
    earlier = b"\0\0" + msgspec.msgpack.encode([3])
    assert decode_value(earlier, ShareGroupValue) == ShareGroupValue(3, ShareOrder.NONE)


def test_in_order_of_keys_nothing_is_acquired_of_a_topic_whose_keys_are_not_known(world):
    epoch = joined(world, "a", order=ShareOrder.KEY)
    assert world.acquire("a", epoch, 10).acquired == ()
    world.keys[TP] = KnownKeys("another topic of this name")
    world.keys[TP].learn(0, 100, {})
    assert world.acquire("a", epoch, 10).acquired == ()
    world.keys[TP] = KnownKeys(TOPIC_ID)
    world.keys[TP].learn(0, 100, {0: 7, 1: 7, 2: 8})
    (first, second) = world.acquire("a", epoch, 2).acquired
    assert [(run.first_offset, run.last_offset) for run in (first, second)] == [(0, 0), (2, 2)]
    # A repeated call gets the same.
    assert world.acquire("a", epoch, 2, sequence=1).acquired == (first, second)


def test_beyond_the_most_members_none_may_join_but_those_within_may_again(world, monkeypatch):
    monkeypatch.setattr(share_groups, "MEMBERS_MAX", 2)
    joined(world, "a")
    joined(world, "b")
    assert world.join("c").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    joined(world, "b")


# --- acquire --------------------------------------------------------------------------------------


def test_two_members_never_get_the_same_record(world):
    a, b = joined(world, "a"), joined(world, "b")
    assert spans(world.acquire("a", a, 2)) == [(0, 1, 1)]
    assert spans(world.acquire("b", b, 2)) == [(2, 3, 1)]


def test_nothing_beyond_the_last_stable_offset_is_acquired(world):
    a = joined(world)
    world.ranges[TP] = ReadableRange(TOPIC_ID, 0, 3)
    assert spans(world.acquire("a", a, 10)) == [(0, 2, 1)]
    assert world.acquire("a", a, 10).acquired == ()


def test_only_topics_that_the_call_names_are_acquired_from_and_shown_again(world):
    """The door has looked whether the caller may read these, and no others."""
    a = joined(world)
    assert world.acquire("a", a, 2, topics=("other",)).acquired == ()
    assert spans(world.acquire("a", a, 2, topics=("other", TP.topic))) == [(0, 1, 1)]
    assert world.acquire("a", a, 2, sequence=1, topics=("other",)).acquired == ()
    # Nor what the member has not joined for.
    world.ranges[TopicPartition("other", 0)] = ReadableRange("bb" * 16, 0, 50)
    assert world.acquire("a", a, 2, topics=("other",)).acquired == ()


def test_a_repeated_acquisition_gets_the_same_records_and_a_late_one_none(world):
    a = joined(world)
    first = world.acquire("a", a, 2)
    assert world.acquire("a", a, 2, sequence=1) == first
    world.acquire("a", a, 2)
    assert world.acquire("a", a, 2, sequence=1).error is ErrorCode.INVALID_REQUEST
    assert world.states() == [(0, 1, "ACQUIRED"), (2, 3, "ACQUIRED")]


def test_a_repeated_acquisition_does_not_give_back_what_was_acknowledged(world):
    a = joined(world)
    world.acquire("a", a, 3)
    world.acknowledge("a", a, runs((1, 1)))
    assert spans(world.acquire("a", a, 3, sequence=1)) == [(0, 0, 1), (2, 2, 1)]


@pytest.mark.parametrize("count", [0, -1, share_groups.ACQUIRED_MAX + 1])
def test_an_impossible_number_of_records_is_refused_by_name(world, count):
    reply = world.acquire("a", joined(world), count)
    assert reply.error is ErrorCode.INVALID_REQUEST
    assert f"max_records={count}" in reply.detail


def test_only_topics_of_the_member_are_read(world):
    world.ranges[TopicPartition("other", 0)] = ReadableRange("bb" * 16, 0, 50)
    reply = world.acquire("a", joined(world), 1_000)
    assert {run.topic_partition for run in reply.acquired} == {TP}


def test_every_partition_has_its_turn(world):
    for number in range(1, 4):
        world.ranges[TopicPartition("tasks", number)] = ReadableRange(TOPIC_ID, 0, 100)
    a = joined(world)
    taken = [world.acquire("a", a, 1).acquired[0].topic_partition for _ in range(4)]
    assert len(set(taken)) == 4


def test_a_topic_created_again_begins_anew(world):
    a = joined(world)
    world.acquire("a", a, 5)
    world.ranges[TP] = ReadableRange("bb" * 16, 0, 2)
    (run,) = world.acquire("a", a, 5).acquired
    assert (run.first_offset, run.last_offset, run.topic_id) == (0, 1, "bb" * 16)
    # What the member held in the former topic is of no use in this one.
    assert world.acknowledge("a", a, runs((0, 0))).refused == (0,)


def test_what_retention_removed_is_not_acquired(world):
    a = joined(world)
    world.ranges[TP] = ReadableRange(TOPIC_ID, 10, 12)
    assert spans(world.acquire("a", a, 1)) == [(10, 10, 1)]
    world.ranges[TP] = ReadableRange(TOPIC_ID, 20, 22)
    assert spans(world.acquire("a", a, 1)) == [(20, 20, 1)]


# --- acknowledge ----------------------------------------------------------------------------------


def test_each_run_of_a_call_is_accepted_or_refused_on_its_own(world):
    a, b = joined(world, "a"), joined(world, "b")
    world.acquire("a", a, 3)
    world.acquire("b", b, 2)
    reply = world.acknowledge("a", a, runs((0, 0), (3, 3), (2, 2), (2, 2)))
    assert (reply.error, reply.refused) == (NONE, (1, 3))
    assert world.states() == [
        (1, 1, "ACQUIRED"),
        (2, 2, "ACKNOWLEDGED"),
        (3, 4, "ACQUIRED"),
    ]


def test_a_repeated_call_gets_the_first_answer_also_from_the_next_coordinator(world):
    a = joined(world)
    world.acquire("a", a, 3)
    first = world.acknowledge("a", a, runs((0, 0), (5, 5)))
    world.groups = world.replayed()
    assert world.acknowledge("a", a, runs((0, 0), (5, 5)), sequence=1) == first
    world.acknowledge("a", a, runs((1, 1)))
    late = world.acknowledge("a", a, runs((0, 0), (5, 5)), sequence=1)
    assert late.error is ErrorCode.INVALID_REQUEST


def test_too_many_runs_none_at_all_or_a_partition_twice_are_refused(world):
    a = joined(world)
    world.acquire("a", a, 3)
    many = runs(*[(0, 0)] * (share_groups.ACKNOWLEDGED_RUNS_MAX + 1))
    for given in (many, ()):
        assert world.acknowledge("a", a, given).error is ErrorCode.INVALID_REQUEST
    request = world.txn_request("a", a, runs((0, 0)))
    twice = type(request)(
        **{
            **{name: getattr(request, name) for name in request.__struct_fields__},
            "acknowledgements": request.acknowledgements * 2,
        }
    )
    reply, records = world.groups.begin(GROUP).txn_acknowledge(twice)
    assert (reply.error, records) == (ErrorCode.INVALID_REQUEST, ())


# --- transactions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("committed", "state"), [(True, None), (False, "AVAILABLE")])
def test_an_acceptance_in_a_transaction_counts_from_its_marker_on(world, committed, state):
    a = joined(world)
    world.acquire("a", a, 2)
    assert world.txn_acknowledge("a", a, runs((0, 1))).error is NONE
    assert world.states() == [(0, 1, "PENDING")]
    world.mark(committed=committed)
    assert world.states() == ([] if state is None else [(0, 1, state)])
    assert world.start_offset() == (2 if committed else 0)


def test_what_a_transaction_accepted_outlives_the_session_of_its_member(world):
    a, b = joined(world, "a"), joined(world, "b")
    world.acquire("a", a, 2)
    world.txn_acknowledge("a", a, runs((0, 0)))
    world.turn(lambda turn: turn.remove("a", a))
    assert world.states() == [(0, 0, "PENDING"), (1, 1, "AVAILABLE")]
    assert spans(world.acquire("b", b, 1)) == [(1, 1, 2)]
    world.mark(committed=True)
    assert world.start_offset() == 1


def test_one_refused_run_refuses_all_of_a_transactions_call(world):
    a = joined(world)
    world.acquire("a", a, 3)
    for given in (runs((0, 0), (7, 7)), runs((0, 1), (1, 1)), runs((1, 1), (0, 0))):
        reply = world.txn_acknowledge("a", a, given)
        assert (reply.error, reply.refused) == (ErrorCode.INVALID_RECORD_STATE, (1,))
    reply = world.txn_acknowledge("a", a, runs((0, 0), kind=AcknowledgeType.REJECT))
    assert reply.error is ErrorCode.INVALID_RECORD_STATE
    assert world.states() == [(0, 2, "ACQUIRED")]


def test_a_repeated_call_of_a_transaction_gives_the_same_batch(world):
    a = joined(world)
    world.acquire("a", a, 3)
    request = world.txn_request("a", a, runs((0, 1)))
    reply, records = world.groups.begin(GROUP).txn_acknowledge(request)
    world._append(records, 7)
    assert world.groups.begin(GROUP).txn_acknowledge(request) == (reply, records)


def test_two_transactions_in_one_turn_do_not_accept_the_same_record(world):
    a = joined(world)
    world.acquire("a", a, 3)
    turn = world.groups.begin(GROUP)
    first = world.txn_request("a", a, runs((0, 1)), producer_id=7)
    _, records = turn.txn_acknowledge(first)
    assert records
    turn.accepted(first)
    second = world.txn_request("a", a, runs((1, 2)), producer_id=8)
    reply, records = turn.txn_acknowledge(second)
    assert (reply.error, records) == (ErrorCode.INVALID_RECORD_STATE, ())


@pytest.mark.parametrize(
    "fields",
    [{"producer_id": -1}, {"producer_epoch": -1}, {"base_sequence": -1}],
)
def test_a_call_without_a_producer_is_no_transactions(world, fields):
    a = joined(world)
    world.acquire("a", a, 1)
    reply = world.txn_acknowledge("a", a, runs((0, 0)), **fields)
    assert reply.error is ErrorCode.INVALID_REQUEST


def test_a_marker_of_another_producer_changes_nothing(world):
    a = joined(world)
    world.acquire("a", a, 2)
    world.txn_acknowledge("a", a, runs((0, 1)))
    world.mark(committed=True, pid=8)
    assert world.states() == [(0, 1, "PENDING")]


@pytest.mark.parametrize("committed", [True, False])
def test_a_coordinator_that_moves_before_or_after_the_marker_knows_the_outcome(world, committed):
    a = joined(world)
    world.acquire("a", a, 4)
    world.txn_acknowledge("a", a, runs((0, 1)))
    # The partition's record is written with what is pending, before the marker.
    world.acknowledge("a", a, runs((3, 3)))
    world.groups = world.replayed(world.compacted())
    assert world.states()[0] == (0, 1, "PENDING")
    world.mark(committed=committed, settles=False)
    expected = world.states()
    group = world.groups.find(GROUP)
    assert group is not None
    assert not group.is_settled
    world.groups = world.replayed()
    assert world.states() == expected
    world.turn(ShareTurn.settle)
    world.groups = world.replayed(world.compacted())
    assert world.states() == expected
    group = world.groups.find(GROUP)
    assert group is not None
    assert group.is_settled


def test_a_long_life_of_transactions_leaves_a_short_log(world):
    a = joined(world)
    for epoch in range(50):
        world.acquire("a", a, 1)
        world.txn_acknowledge("a", a, runs((epoch, epoch)), producer_epoch=epoch)
        world.mark(committed=True)
    assert len(world.compacted()) == 3


# --- removal --------------------------------------------------------------------------------------


def test_a_group_with_members_or_open_transactions_is_not_deleted_and_an_empty_one_is(world):
    a = joined(world)
    world.acquire("a", a, 2)
    world.txn_acknowledge("a", a, runs((0, 0)))
    assert world.turn(ShareTurn.delete) is ErrorCode.NON_EMPTY_GROUP
    world.turn(lambda turn: turn.remove("a", a))
    assert world.turn(ShareTurn.delete) is ErrorCode.NON_EMPTY_GROUP
    world.mark(committed=True)
    assert world.turn(ShareTurn.delete) is NONE
    assert world.groups.group_ids() == []
    assert state_of(world.replayed(world.compacted())) == {}


def test_nobody_joins_a_group_that_the_same_turn_deletes(world):
    def act(turn):
        assert turn.delete() is NONE
        request = ShareGroupHeartbeatRequest(group_id=GROUP, member_id="a", topics=(TP.topic,))
        return turn.heartbeat(request).error

    assert world.turn(act) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_the_backlog_is_what_nobody_has_finished(world):
    a = joined(world)
    world.acquire("a", a, 5)
    world.acknowledge("a", a, runs((0, 1)))
    world.txn_acknowledge("a", a, runs((2, 2)))
    world.acknowledge("a", a, runs((3, 3), kind=AcknowledgeType.RELEASE))
    reply = world.groups.describe(GROUP, world.ranges)
    (one,) = reply.partitions
    assert (one.start_offset, one.next_offset, one.end_offset) == (2, 5, 100)
    assert (one.available_count, one.acquired_count, one.pending_count) == (96, 1, 1)
    assert reply.member_count == 1
    assert world.groups.describe("other", {}).error is ErrorCode.GROUP_ID_NOT_FOUND
