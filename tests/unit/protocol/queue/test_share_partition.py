"""Every state of a record and every event, and the runs that many records make."""

from __future__ import annotations

import itertools

import pytest

from oncelog.actors.protocol.messages.share import AcknowledgeType
from oncelog.actors.protocol.queue.share_keys import NO_KEY, NO_RECORD, UNREADABLE
from oncelog.actors.protocol.queue.share_partition import (
    LOCKS_MAX,
    ORDERED_LOCKS_MAX,
    RecordState,
    Run,
    SharePartition,
)

OWNER, STRANGER, PRODUCER, OTHER_PRODUCER = 7, 8, 70, 80
AVAILABLE, ACQUIRED, PENDING, ACKNOWLEDGED, ARCHIVED = RecordState
REFUSED = "refused"


def partition_in(state: RecordState) -> SharePartition:
    """Offsets 0 to 2; 0 is held by a stranger, so that 1, which is in ``state``, stays in runs."""
    partition = SharePartition("id", 0)
    partition.acquire(1, 1, owner=STRANGER, sequence=1)
    partition.acquire(2, 1, owner=OWNER, sequence=1)
    partition.acquire(3, 1, owner=STRANGER, sequence=2)
    if state is AVAILABLE:
        partition.release_all(OWNER)
    elif state is PENDING:
        partition.accept_pending(1, 1, producer_id=PRODUCER)
    elif state is ACKNOWLEDGED:
        partition.acknowledge(1, 1, AcknowledgeType.ACCEPT, owner=OWNER)
    elif state is ARCHIVED:
        partition.acknowledge(1, 1, AcknowledgeType.REJECT, owner=OWNER)
    return partition


def happens(partition: SharePartition, event: str) -> bool | None:
    """Let an event happen to offset 1; whether it was accepted, None for what cannot be refused."""
    if event == "acquire":
        partition.acquire(3, 10, owner=9, sequence=5)
    elif event == "owner goes":
        partition.release_all(OWNER)
    elif event == "stranger goes":
        partition.release_all(OTHER_PRODUCER)
    elif event in {"commit", "abort"}:
        partition.end_transaction(PRODUCER, committed=event == "commit")
    elif event == "other's commit":
        partition.end_transaction(OTHER_PRODUCER, committed=True)
    elif event == "stranger accepts":
        return partition.acknowledge(1, 1, AcknowledgeType.ACCEPT, owner=STRANGER)
    else:
        kind = AcknowledgeType[event.upper()]
        return partition.acknowledge(1, 1, kind, owner=OWNER)
    return None


CHANGES = {
    (AVAILABLE, "acquire"): ACQUIRED,
    (ACQUIRED, "accept"): ACKNOWLEDGED,
    (ACQUIRED, "reject"): ARCHIVED,
    (ACQUIRED, "gap"): ARCHIVED,
    (ACQUIRED, "release"): AVAILABLE,
    (ACQUIRED, "owner goes"): AVAILABLE,
    (PENDING, "commit"): ACKNOWLEDGED,
    (PENDING, "abort"): AVAILABLE,
}
"""All other pairs change nothing."""

EVENTS = (
    "acquire",
    "accept",
    "reject",
    "gap",
    "release",
    "owner goes",
    "stranger goes",
    "stranger accepts",
    "commit",
    "abort",
    "other's commit",
)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(RecordState, EVENTS)))
def test_each_event_in_each_state_does_what_the_table_says(state, event):
    partition = partition_in(state)
    (before,) = [run for run in partition.runs if run.first <= 1 <= run.last]
    answer = happens(partition, event)
    partition.check()
    (after,) = [run for run in partition.runs if run.first <= 1 <= run.last]
    expected = CHANGES.get((state, event))
    if expected is None:
        assert after == before
        assert answer in (None, False)
    else:
        assert after.state is expected
        assert answer in (None, True)


def test_what_was_never_acquired_cannot_be_acknowledged():
    partition = partition_in(ACQUIRED)
    assert not partition.acknowledge(1, 3, AcknowledgeType.ACCEPT, owner=OWNER)
    assert not partition.acknowledge(3, 3, AcknowledgeType.ACCEPT, owner=OWNER)
    assert not partition.acknowledge(-1, -1, AcknowledgeType.ACCEPT, owner=OWNER)
    assert not partition.acknowledge(1, 0, AcknowledgeType.ACCEPT, owner=OWNER)


def test_a_run_of_which_a_part_is_anothers_is_refused_as_a_whole():
    partition = partition_in(ACQUIRED)
    before = list(partition.runs)
    assert not partition.acknowledge(1, 2, AcknowledgeType.ACCEPT, owner=OWNER)
    assert partition.runs == before


def test_each_delivery_is_counted_and_the_count_survives_a_release():
    partition = SharePartition("id", 0)
    for delivery in (1, 2, 3):
        (run,) = partition.acquire(5, 5, owner=delivery, sequence=1)
        assert run.delivery_count == delivery
        partition.release_all(delivery)


def test_an_abort_leaves_the_count_of_deliveries():
    partition = partition_in(PENDING)
    partition.end_transaction(PRODUCER, committed=False)
    (run,) = partition.acquire(3, 1, owner=9, sequence=1)
    assert (run.first, run.delivery_count) == (1, 2)


def test_the_start_passes_all_that_is_done_with_and_nothing_else():
    partition = SharePartition("id", 0)
    partition.acquire(10, 10, owner=OWNER, sequence=1)
    partition.acknowledge(4, 5, AcknowledgeType.ACCEPT, owner=OWNER)
    assert partition.start_offset == 0
    partition.acknowledge(0, 2, AcknowledgeType.REJECT, owner=OWNER)
    assert partition.start_offset == 3
    partition.acknowledge(3, 3, AcknowledgeType.GAP, owner=OWNER)
    assert (partition.start_offset, partition.next_offset) == (6, 10)


def test_released_records_come_before_new_ones():
    partition = SharePartition("id", 0)
    partition.acquire(4, 4, owner=OWNER, sequence=1)
    partition.acknowledge(1, 2, AcknowledgeType.RELEASE, owner=OWNER)
    taken = partition.acquire(9, 3, owner=9, sequence=1)
    assert [(run.first, run.last, run.delivery_count) for run in taken] == [(1, 2, 2), (4, 4, 1)]


def test_no_more_is_acquired_than_may_be_unfinished():
    partition = SharePartition("id", 0)
    end = 3 * LOCKS_MAX
    taken = partition.acquire(end, end, owner=OWNER, sequence=1)
    assert sum(run.count for run in taken) == LOCKS_MAX
    assert partition.acquire(end, 1, owner=9, sequence=1) == []
    # The worst that members can do to the runs: every other record.
    for offset in range(0, LOCKS_MAX, 2):
        partition.acknowledge(offset, offset, AcknowledgeType.ACCEPT, owner=OWNER)
    partition.check()
    assert len(partition.runs) <= 2 * LOCKS_MAX + 1
    (more,) = partition.acquire(end, end, owner=9, sequence=1)
    assert more.count == LOCKS_MAX // 2


def test_a_long_task_does_not_hold_up_those_behind_it():
    partition = SharePartition("id", 0)
    partition.acquire(1, 1, owner=OWNER, sequence=1)
    for sequence in range(20):
        partition.acquire(10**6, LOCKS_MAX - 1, owner=9, sequence=sequence)
        first, last = partition.runs[-1].first, partition.runs[-1].last
        partition.acknowledge(first, last, AcknowledgeType.ACCEPT, owner=9)
    assert partition.runs == [
        Run(0, 0, ACQUIRED, 1, OWNER, 1),
        Run(1, 20 * (LOCKS_MAX - 1), ACKNOWLEDGED),
    ]


def test_what_retention_removed_is_archived_but_not_what_is_held():
    partition = SharePartition("id", 0)
    partition.acquire(4, 4, owner=OWNER, sequence=1)
    partition.acknowledge(0, 1, AcknowledgeType.RELEASE, owner=OWNER)
    assert partition.archive_below(6)
    assert partition.runs == [Run(2, 3, ACQUIRED, 1, OWNER, 1), Run(4, 5, ARCHIVED)]
    assert not partition.archive_below(6)


# --- in order of keys -----------------------------------------------------------------------------

A, B = 100, 200


def keyed(*keys: int) -> dict[int, int]:
    return dict(enumerate(keys))


def acquired(partition: SharePartition, keys: dict[int, int], count_max: int = 10) -> list[int]:
    """Offsets acquired in the order of keys, of as many as there are keys."""
    taken = partition.acquire(len(keys), count_max, owner=OWNER, sequence=1, keys=keys)
    partition.check()
    return [offset for run in taken for offset in range(run.first, run.last + 1)]


@pytest.mark.parametrize("state", RecordState)
def test_a_later_record_of_a_key_is_held_up_by_an_earlier_one_until_that_is_done_with(state):
    partition = partition_in(state)
    keys = {0: NO_KEY, 1: A, 2: NO_KEY, 3: A, 4: B}
    first = [] if state is not AVAILABLE else [1]
    later = [3] if state in {ACKNOWLEDGED, ARCHIVED} else []
    assert acquired(partition, keys) == [*first, *later, 4]


def test_of_one_key_one_record_is_acquired_at_a_time_and_what_is_passed_over_was_not_delivered():
    partition = SharePartition("id", 0)
    keys = keyed(A, A, B, NO_KEY, A, B, NO_KEY)
    assert acquired(partition, keys, 3) == [0, 2, 3]
    assert acquired(partition, keys) == [6]
    assert partition.runs[1] == Run(1, 1, AVAILABLE)
    partition.acknowledge(0, 0, AcknowledgeType.RELEASE, owner=OWNER)
    (again,) = partition.acquire(7, 10, owner=STRANGER, sequence=1, keys=keys)
    assert (again.first, again.last, again.delivery_count) == (0, 0, 2)


def test_nothing_is_acquired_from_the_first_offset_on_whose_key_is_unknown():
    partition = SharePartition("id", 0)
    assert partition.acquire(4, 10, owner=OWNER, sequence=1, keys={1: A, 2: B, 3: NO_KEY}) == []
    known = {0: A, 1: B, 3: NO_KEY}
    (run,) = partition.acquire(4, 10, owner=OWNER, sequence=1, keys=known)
    assert (run.first, run.last) == (0, 1)


@pytest.mark.parametrize("lost", [NO_RECORD, UNREADABLE])
def test_a_held_record_that_the_log_has_no_longer_holds_up_every_key(lost):
    partition = SharePartition("id", 0)
    partition.acquire(1, 1, owner=STRANGER, sequence=1)
    keys = keyed(lost, A, NO_KEY, UNREADABLE, B)
    assert acquired(partition, keys) == [2, 3]
    partition.release_all(STRANGER)
    partition.release_all(OWNER)
    # Nobody holds anything: whoever acquires what is gone finds nothing there.
    assert acquired(partition, keys) == [0, 1, 2, 3, 4]


def test_gaps_that_nobody_holds_are_archived_and_those_that_are_held_are_not():
    partition = SharePartition("id", 0)
    partition.acquire(5, 2, owner=STRANGER, sequence=1)
    partition.acknowledge(1, 1, AcknowledgeType.RELEASE, owner=STRANGER)
    assert partition.archive_gaps(6, {0, 1, 2, 4, 7})
    partition.check()
    assert partition.runs == [
        Run(0, 0, ACQUIRED, 1, STRANGER, 1),
        Run(1, 2, ARCHIVED),
        Run(3, 3, AVAILABLE),
        Run(4, 4, ARCHIVED),
    ]
    assert not partition.archive_gaps(6, {0, 1, 2, 4, 7})
    assert partition.archive_gaps(8, {7})


def test_gaps_make_room_for_what_is_behind_them_however_many_there_are():
    partition = SharePartition("id", 0)
    end = 3 * ORDERED_LOCKS_MAX + 1
    assert partition.archive_gaps(end, set(range(end - 1)))
    assert (partition.start_offset, partition.runs) == (end - 1, [])
    (run,) = partition.acquire(end, 10, owner=OWNER, sequence=1, keys={end - 1: A})
    assert (run.first, run.last) == (end - 1, end - 1)


def test_in_order_of_keys_what_waits_counts_as_unfinished():
    partition = SharePartition("id", 0)
    keys = dict.fromkeys(range(ORDERED_LOCKS_MAX + 10), A) | {ORDERED_LOCKS_MAX + 1: B}
    assert acquired(partition, keys) == [0]
    keys[ORDERED_LOCKS_MAX - 1] = B
    assert acquired(partition, keys) == [ORDERED_LOCKS_MAX - 1]
    # All that may be unfinished is; the next is acquired once the first is done with.
    keys[ORDERED_LOCKS_MAX] = NO_KEY
    assert acquired(partition, keys) == []
    partition.acknowledge(0, 0, AcknowledgeType.ACCEPT, owner=OWNER)
    assert acquired(partition, keys) == [1, ORDERED_LOCKS_MAX]
    assert len(partition.runs) <= 2 * ORDERED_LOCKS_MAX + 1
