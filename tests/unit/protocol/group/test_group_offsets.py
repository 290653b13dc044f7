"""Committed and pending positions: who sees which offset when, live and after a failover."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.group.group_offsets import OFFSETS_PER_COMMIT_MAX, GroupOffsets
from oncelog.actors.protocol.group.group_records import (
    OffsetKey,
    decode_key,
    decode_offset_value,
    offset_tombstone,
)
from oncelog.actors.protocol.messages.group import (
    FetchedOffset,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

NOW_MS = 1_700_000_000_000
TP = TopicPartition("flights", 0)
TOPIC_IDS = {"flights": "f1" * 16}
OTHER_TP = TopicPartition("flights", 1)
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
RETENTION_MS = 604_800_000
EXPIRING_VALUE = struct.pack(">hqhqq", 1, 5, 0, NOW_MS, NOW_MS + 60_000)
"""A position of version 1: offset, empty metadata, commit and expiry time."""


def test_committed_position_is_read_back_whole(world: Any) -> None:
    position = OffsetAndMetadata(offset=7, leader_epoch=3, metadata="häl")
    world.commit(0, offsets=((TP, position),))
    request = OffsetFetchRequest(group_id="billing", partitions=(TP, OTHER_TP))
    assert world.machine.offsets.fetch(request).offsets == (
        FetchedOffset(
            topic_partition=TP,
            offset=7,
            leader_epoch=3,
            metadata="häl",
            topic_id=TOPIC_IDS["flights"],
        ),
        FetchedOffset(topic_partition=OTHER_TP, offset=-1),
    )


def test_unknown_group_has_no_positions_and_no_error(world: Any) -> None:
    assert world.position() == -1


@pytest.mark.parametrize(
    ("tp", "position", "error"),
    [
        (TP, OffsetAndMetadata(offset=1, metadata="ä" * 2_049), "OFFSET_METADATA_TOO_LARGE"),
        (TP, OffsetAndMetadata(offset=1, metadata="\ud800"), "INVALID_REQUEST"),
        (TP, OffsetAndMetadata(offset=-1), "INVALID_REQUEST"),
        (TP, OffsetAndMetadata(offset=2**63), "INVALID_REQUEST"),
        (TP, OffsetAndMetadata(offset=1, leader_epoch=-2), "INVALID_REQUEST"),
        (TopicPartition("flights", -1), OffsetAndMetadata(offset=1), "INVALID_REQUEST"),
        (TopicPartition("a/b", 0), OffsetAndMetadata(offset=1), "INVALID_TOPIC_EXCEPTION"),
        (TopicPartition("gone", 0), OffsetAndMetadata(offset=1), "UNKNOWN_TOPIC_OR_PARTITION"),
        (TP, OffsetAndMetadata(offset=1, topic_id="f0" * 16), "UNKNOWN_TOPIC_ID"),
    ],
)
def test_impossible_position_is_refused_and_the_others_are_committed(
    tp: TopicPartition, position: OffsetAndMetadata, error: str
) -> None:
    good = (OTHER_TP, OffsetAndMetadata(offset=5, metadata="x" * 4_096))
    request = OffsetCommitRequest(group_id="billing", offsets=((tp, position), good))
    decision = GroupOffsets().decide_commit(request, 0, TOPIC_IDS)
    assert [result.error for result in decision.reply.results] == [
        ErrorCode[error],
        ErrorCode.NONE,
    ]
    keys = [decode_key(record.key or b"") for record in decision.records]
    assert keys == [OffsetKey("billing", OTHER_TP)]


def test_too_many_positions_in_one_request_are_refused() -> None:
    offsets = ((TP, OffsetAndMetadata(offset=1)),) * (OFFSETS_PER_COMMIT_MAX + 1)
    request = OffsetCommitRequest(group_id="billing", offsets=offsets)
    decision = GroupOffsets().decide_commit(request, 0, TOPIC_IDS)
    assert (decision.reply.error, decision.records) == (ErrorCode.INVALID_REQUEST, ())


def test_decision_changes_nothing_before_it_is_applied(world: Any) -> None:
    request = TxnOffsetCommitRequest(
        transactional_id="loader",
        group_id="billing",
        producer_id=3,
        producer_epoch=0,
        base_sequence=0,
        offsets=((TP, OffsetAndMetadata(offset=1)),),
    )
    (record,) = world.machine.offsets.decide_commit(request, 99, TOPIC_IDS).records
    assert decode_offset_value(record.value or b"").commit_timestamp_ms == 99
    assert world.position() == -1


# --- transactions ----------------------------------------------------------------------------


def test_pending_position_is_unstable_until_its_marker(world: Any) -> None:
    world.commit(5)
    world.commit(9, producer_id=3)
    assert world.position() is UNSTABLE
    assert world.position(require_stable=False) == 5
    world.mark(3, committed=True)
    assert world.position() == 9


def test_aborted_position_never_shows(world: Any) -> None:
    world.commit(5)
    world.commit(9, producer_id=3)
    world.mark(3, committed=False)
    assert world.position() == 5


def test_later_commit_of_the_same_transaction_replaces_the_pending_one(world: Any) -> None:
    world.commit(9, producer_id=3)
    world.commit(12, producer_id=3)
    world.mark(3, committed=True)
    assert world.position() == 12


@pytest.mark.parametrize("fails_over", [False, True])
def test_plain_commit_written_after_the_transactional_one_wins(
    world: Any, *, fails_over: bool
) -> None:
    world.commit(10, producer_id=3)
    world.commit(20)
    world.mark(3, committed=True)
    if fails_over:
        world.fail_over()
    assert world.position() == 20


@pytest.mark.parametrize("fails_over", [False, True])
def test_plain_commit_written_before_the_transactional_one_loses(
    world: Any, *, fails_over: bool
) -> None:
    world.commit(20)
    world.commit(10, producer_id=3)
    world.mark(3, committed=True)
    if fails_over:
        world.fail_over()
    assert world.position() == 10


def test_position_pending_in_two_transactions_is_unstable_until_both_end(world: Any) -> None:
    world.commit(10, producer_id=3)
    world.commit(20, producer_id=4)
    world.mark(3, committed=False)
    assert world.position() is UNSTABLE
    world.mark(4, committed=True)
    assert world.position() == 20


def test_of_two_transactions_the_position_written_last_wins(world: Any) -> None:
    world.commit(10, producer_id=3)
    world.commit(20, producer_id=4)
    world.mark(4, committed=True)
    world.mark(3, committed=True)
    assert world.position() == 20


def test_pending_position_survives_a_failover_and_obeys_its_marker(world: Any) -> None:
    world.commit(5)
    world.commit(9, producer_id=3)
    world.fail_over()
    assert world.position() is UNSTABLE
    world.mark(3, committed=True)
    assert world.position() == 9


def test_marker_of_an_unknown_producer_changes_nothing(world: Any) -> None:
    world.commit(5)
    world.mark(99, committed=True)
    assert world.position() == 5


def test_marker_ends_the_transaction_in_every_group_it_touched(world: Any) -> None:
    world.commit(5, producer_id=3)
    world.commit(6, producer_id=3, group_id="other")
    world.mark(3, committed=True)
    request = OffsetFetchRequest(group_id="other", partitions=None)
    assert [each.offset for each in world.machine.offsets.fetch(request).offsets] == [6]
    assert world.position() == 5


def test_all_positions_include_unstable_ones_only_when_asked_to_be_stable(world: Any) -> None:
    world.commit(5)
    world.commit(9, producer_id=3, tp=OTHER_TP)

    def fetch(*, require_stable: bool) -> list[tuple[int, ErrorCode]]:
        request = OffsetFetchRequest(
            group_id="billing", partitions=None, require_stable=require_stable
        )
        offsets = world.machine.offsets.fetch(request).offsets
        return [(each.topic_partition.partition, each.error) for each in offsets]

    assert fetch(require_stable=True) == [(0, ErrorCode.NONE), (1, UNSTABLE)]
    assert fetch(require_stable=False) == [(0, ErrorCode.NONE)]


def test_group_known_only_by_an_aborted_transaction_is_forgotten(world: Any) -> None:
    world.commit(5, producer_id=3)
    assert world.group_ids == ["billing"]
    world.mark(3, committed=False)
    assert world.group_ids == []


# --- expiry ----------------------------------------------------------------------------------


def expire(world: Any, busy: tuple[str, ...] = ()) -> list[str]:
    """Apply what expires now; returns the groups it concerns."""
    due = world.machine.expired(world.now_ms, busy)
    for _, records in due:
        world.append(records)
    return [group_id for group_id, _ in due]


def test_position_of_a_simple_group_expires_by_its_own_age(world: Any) -> None:
    world.commit(5)
    world.advance(RETENTION_MS - 1)
    world.commit(6, tp=OTHER_TP)
    assert expire(world) == []
    world.advance(1)
    assert expire(world) == ["billing"]
    assert (world.position(), world.position(tp=OTHER_TP)) == (-1, 6)
    assert world.group_ids == ["billing"]


def test_group_expires_by_the_time_it_has_been_empty(world: Any) -> None:
    (member,) = world.stable(world.enter())
    world.commit(5, generation_id=1, member_id=member.member_id)
    for _ in range(100):
        world.advance(9_000)
        world.heartbeat(member)
    world.leave((member.member_id, None))
    world.advance(RETENTION_MS - 1)
    assert expire(world) == []
    world.advance(1)
    assert expire(world) == ["billing"]
    assert world.group_ids == []
    world.fail_over()
    assert world.group_ids == []


def test_position_set_in_an_empty_group_lasts_from_its_own_commit(world: Any) -> None:
    (member,) = world.stable(world.enter())
    world.leave((member.member_id, None))
    world.advance(RETENTION_MS)
    world.commit(5)
    assert expire(world) == []
    assert world.position() == 5


def test_group_with_members_and_busy_group_do_not_expire(
    new_world: Callable[..., Any],
) -> None:
    world = new_world(offsets_retention_ms=1)
    world.commit(5)
    world.advance(1)
    assert expire(world, busy=("billing",)) == []
    world.enter()
    assert expire(world) == []


def test_group_with_a_pending_position_expires_only_after_its_transaction(world: Any) -> None:
    world.commit(5)
    world.commit(9, producer_id=3)
    world.advance(RETENTION_MS)
    assert expire(world) == []
    world.mark(3, committed=False)
    assert expire(world) == ["billing"]
    assert world.group_ids == []


def test_emptied_group_without_positions_is_removed_at_the_next_scan(world: Any) -> None:
    (member,) = world.stable(world.enter())
    world.leave((member.member_id, None))
    assert expire(world) == ["billing"]
    assert world.group_ids == []


def test_position_with_an_expiry_of_its_own_expires_then(world: Any) -> None:
    tombstone = offset_tombstone("billing", TP)
    world.append((LogRecord(tombstone.key, EXPIRING_VALUE),))
    assert expire(world) == []
    world.advance(60_000)
    assert expire(world) == ["billing"]


# --- live equals replay ----------------------------------------------------------------------

PARTITIONS = st.integers(0, 2).map(lambda number: TopicPartition("flights", number))
PRODUCERS = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("commit"), PARTITIONS, st.integers(0, 99), st.integers(-1, 2)),
    st.tuples(st.just("mark"), PRODUCERS, st.booleans()),
    st.tuples(st.just("remove"), PARTITIONS),
)


@given(steps=st.lists(STEPS, max_size=40))
def test_replay_of_the_log_gives_the_positions_of_the_live_machine(steps: list[Any]) -> None:
    live, model = GroupOffsets(), ReferenceOffsets()
    for record_offset, step in enumerate(steps):
        take(live, step, record_offset)
        model.steps.append(step)
        for number in range(3):
            tp = TopicPartition("flights", number)
            request = OffsetFetchRequest(group_id="g", partitions=(tp,), require_stable=False)
            assert live.fetch(request).offsets[0].offset == model.committed(tp)
            stable = live.fetch(OffsetFetchRequest(group_id="g", partitions=(tp,))).offsets[0]
            assert (stable.error is UNSTABLE) == model.is_pending(tp)
        replayed = GroupOffsets()
        for place, each in enumerate(steps[: record_offset + 1]):
            take(replayed, each, place)
        assert vars(replayed) == vars(live)


def take(offsets: GroupOffsets, step: Any, record_offset: int) -> None:
    kind, *rest = step
    if kind == "mark":
        offsets.apply_marker(rest[0], committed=rest[1])
        return
    key, value, producer_id = OffsetKey("g", rest[0]), None, -1
    if kind == "commit":
        request = OffsetCommitRequest(
            group_id="g", offsets=((rest[0], OffsetAndMetadata(offset=rest[1])),)
        )
        record: LogRecord = offsets.decide_commit(request, 0, TOPIC_IDS).records[0]
        value, producer_id = decode_offset_value(record.value or b""), rest[2]
    offsets.apply(key, value, record_offset=record_offset, producer_id=producer_id)


class ReferenceOffsets:
    """The rule of positions written as a search through the whole log."""

    def __init__(self) -> None:
        self.steps: list[Any] = []

    def committed(self, tp: TopicPartition) -> int:
        """The last position in the log that is plain or whose producer's next marker commits."""
        for place in range(len(self.steps) - 1, -1, -1):
            kind, *rest = self.steps[place]
            if kind == "remove" and rest[0] == tp:
                return -1
            if kind == "commit" and rest[0] == tp:
                verdict = True if rest[2] == -1 else self._verdict(rest[2], place)
                if verdict and not self._is_replaced(place):
                    offset: int = rest[1]
                    return offset
        return -1

    def is_pending(self, tp: TopicPartition) -> bool:
        for place in range(len(self.steps) - 1, -1, -1):
            kind, *rest = self.steps[place]
            if kind == "remove" and rest[0] == tp:
                return False
            is_transactional = kind == "commit" and rest[0] == tp and rest[2] != -1
            if is_transactional and self._verdict(rest[2], place) is None:
                return True
        return False

    def _verdict(self, producer_id: int, place: int) -> bool | None:
        for kind, *rest in self.steps[place:]:
            if kind == "mark" and rest[0] == producer_id:
                committed: bool = rest[1]
                return committed
        return None

    def _is_replaced(self, place: int) -> bool:
        """Whether the same transaction committed the same partition again before its marker."""
        _, tp, _, producer_id = self.steps[place]
        for kind, *rest in self.steps[place + 1 :]:
            if kind == "mark" and rest[0] == producer_id:
                return False
            if kind == "commit" and producer_id != -1 and (rest[0], rest[2]) == (tp, producer_id):
                return True
        return False


def test_only_positions_in_deleted_topics_are_removed(world: Any) -> None:
    world.commit(1)
    world.commit(2, group_id="simple")
    table, gone = world.machine, TOPIC_IDS["flights"]
    assert table.offsets.topic_ids() == {"flights": frozenset({gone})}
    assert table.of_deleted_topics({"f0" * 16}, ()) == []
    assert [group for group, _ in table.of_deleted_topics({gone}, {"simple"})] == ["billing"]
    assert table.of_deleted_topics({gone}, {"simple"})[0][1] == (offset_tombstone("billing", TP),)


def test_a_group_that_a_transaction_commits_to_keeps_its_positions_until_it_ends(
    world: Any,
) -> None:
    world.commit(1)
    world.commit(2, producer_id=3)
    gone = {TOPIC_IDS["flights"]}
    assert world.machine.of_deleted_topics(gone, ()) == []
    world.mark(3, committed=True)
    assert len(world.machine.of_deleted_topics(gone, ())) == 1
