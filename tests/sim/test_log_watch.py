"""``LogWatch`` finds what must never be in a log, and passes whole runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from disk_image import Directory, File, Resize, Write
from msgspec import structs
from sim_disk import durable_end
from sim_log_watch import LogWatch, watching

from oncelog.actors.protocol.cluster.cluster_records import LeaderElected
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.partition.bounds import Role
from oncelog.actors.protocol.transaction import transaction_records
from oncelog.actors.protocol.transaction.ids import TransactionalIds
from oncelog.actors.protocol.transaction.transaction_state import (
    EpochCause,
    TransactionMetadata,
    TransactionState,
)
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.control import ControlRecord

A = TopicPartition("a", 0)
TOPIC_ID = "a" * 32
S = TransactionState
PRODUCER = 7


def machine(
    *,
    stable: int = 0,
    high: int = 0,
    end: int = 100,
    epoch: int = 1,
    ongoing: dict[int, int] | None = None,
) -> Any:
    transactions = SimpleNamespace(ongoing=ongoing or {})
    return SimpleNamespace(
        topic_partition=A,
        _topic_id=TOPIC_ID,
        role=Role.LEADER,
        leader_epoch=epoch,
        log_start_offset=0,
        producers=SimpleNamespace(transactions=transactions),
        last_stable_offset=stable,
        high_watermark=high,
        log_end_offset=end,
    )


def header(
    offset: int, epoch: int, *, crc: int = 0, is_control: bool = False, records: int = 1
) -> Any:
    """One of one record, unless compaction has taken it."""
    return SimpleNamespace(
        base_offset=offset,
        producer_id=PRODUCER,
        producer_epoch=epoch,
        crc=crc,
        is_control=is_control,
        is_transactional=True,
        record_count=records,
        last_offset_delta=0,
        has_delete_horizon=False,
    )


def metadata(
    state: TransactionState, epoch: int, *partitions: TopicPartition
) -> TransactionMetadata:
    return TransactionMetadata(
        transactional_id="loader",
        producer_id=PRODUCER,
        producer_epoch=epoch,
        transaction_timeout_ms=1_000,
        state=state,
        last_update_ms=0,
        partitions=frozenset(partitions),
    )


def marks(watch: LogWatch, where: Any, offset: int, epoch: int, committed: bool, by: int) -> None:
    control = ControlRecord(committed=committed, coordinator_epoch=by)
    watch.applies(where, header(offset, epoch, is_control=True), control)


def logs(watch: LogWatch, *steps: TransactionMetadata) -> None:
    before = None
    for step in steps:
        watch.logs(None, before, step)  # type: ignore[arg-type]
        before = step


def found(watch: LogWatch) -> set[str]:
    return {violation.checker for violation in watch.violations}


@pytest.fixture
def watch() -> LogWatch:
    return LogWatch()


def test_a_whole_transaction_is_in_order(watch):
    leader = machine()
    watch.applies(leader, header(0, 4), None)
    logs(watch, metadata(S.ONGOING, 4, A), metadata(S.PREPARE_COMMIT, 5, A))
    marks(watch, leader, 1, 5, True, 2)
    logs(watch, metadata(S.PREPARE_COMMIT, 5, A), metadata(S.COMPLETE_COMMIT, 5))
    assert watch.violations == []
    assert watch.counts["markers"] == 1


def test_what_a_commit_began_ahead_is_counted(watch):
    ahead = structs.replace(metadata(S.ONGOING, 5, A), ahead_partitions=frozenset({A}))
    logs(watch, metadata(S.COMPLETE_COMMIT, 5), ahead, ahead)
    logs(watch, metadata(S.COMPLETE_COMMIT, 5), metadata(S.ONGOING, 5, A))
    assert watch.counts["begun ahead"] == 1


def test_a_marker_without_a_decision_is_found(watch):
    marks(watch, machine(), 1, 5, True, 2)
    assert found(watch) == {"MarkersBeforeDecision"}


def test_a_marker_against_the_decision_is_found(watch):
    logs(watch, metadata(S.PREPARE_ABORT, 5, A))
    marks(watch, machine(), 1, 5, True, 2)
    assert found(watch) == {"ContradictingMarkers"}


def test_a_stable_offset_above_an_open_transaction_is_found(watch):
    leader = machine()
    watch.applies(leader, header(3, 4), None)
    leader.last_stable_offset = leader.high_watermark = 3
    watch.settles(leader)
    assert watch.violations == []
    leader.last_stable_offset = leader.high_watermark = 4
    watch.settles(leader)
    assert found(watch) == {"UnstableEnds"}


def test_a_stable_offset_above_an_open_transaction_of_the_snapshot_is_found(watch):
    leader = machine(ongoing={3: PRODUCER}, stable=4, high=4)
    watch.loads(leader)
    watch.settles(leader)
    assert found(watch) == {"UnstableEnds"}


def test_a_stable_offset_above_a_marker_that_is_not_synced_is_found(watch):
    logs(watch, metadata(S.PREPARE_COMMIT, 5, A))
    leader = machine(stable=3, high=4)
    watch.applies(leader, header(3, 4), None)
    marks(watch, leader, 4, 5, True, 2)
    watch.settles(leader)
    assert watch.violations == []
    leader.last_stable_offset = 4
    watch.settles(leader)
    assert found(watch) == {"UnstableEnds"}


def test_a_stable_offset_above_a_marker_that_is_synced_is_in_order(watch):
    logs(watch, metadata(S.PREPARE_COMMIT, 5, A))
    leader = machine(stable=5, high=5)
    watch.applies(leader, header(3, 4), None)
    marks(watch, leader, 4, 5, True, 2)
    watch.settles(leader)
    assert watch.violations == []


def test_a_second_decision_of_one_epoch_is_found(watch):
    logs(watch, metadata(S.PREPARE_ABORT, 5, A))
    logs(watch, metadata(S.PREPARE_COMMIT, 5, A))
    assert found(watch) == {"ChangedDecisions"}


def test_a_marker_of_an_older_coordinator_is_found(watch):
    logs(watch, metadata(S.PREPARE_COMMIT, 5, A))
    leader = machine()
    marks(watch, leader, 1, 5, True, 3)
    marks(watch, leader, 2, 5, True, 2)
    assert found(watch) == {"ZombieMarkers"}


def test_an_epoch_that_falls_in_a_log_is_found(watch):
    leader = machine()
    watch.applies(leader, header(0, 5), None)
    watch.applies(leader, header(1, 4), None)
    assert found(watch) == {"FallingEpochs"}


def test_another_life_reads_the_log_from_its_beginning(watch):
    watch.applies(machine(), header(0, 4), None)
    watch.applies(machine(), header(1, 5), None)
    successor = machine()
    watch.loads(successor)
    watch.applies(successor, header(0, 4), None)
    assert watch.violations == []


def test_an_epoch_that_falls_at_the_coordinator_is_found(watch):
    logs(watch, metadata(S.ONGOING, 5), metadata(S.ONGOING, 4))
    assert found(watch) == {"FallingEpochs"}


@pytest.mark.parametrize("is_committed", [True, False])
def test_what_a_coordinator_loads_is_decided_once_all_of_it_is_committed(watch, is_committed):
    ids = TransactionalIds()
    with watch.loading(ids, lambda: is_committed):
        watch.logs(ids, None, metadata(S.PREPARE_COMMIT, 5, A))
        assert watch.decisions == {}
    logs(watch, metadata(S.PREPARE_ABORT, 5, A))
    assert found(watch) == ({"ChangedDecisions"} if is_committed else set())


def test_a_move_that_is_not_in_the_table_is_found(watch):
    logs(watch, metadata(S.EMPTY, 4), metadata(S.PREPARE_COMMIT, 5))
    assert found(watch) == {"IllegalMoves"}


def test_a_record_that_changes_nothing_is_no_move(watch):
    """The tombstones of a run's members follow its COMPLETE."""
    complete = metadata(S.COMPLETE_COMMIT, 5)
    watch.logs(None, complete, complete)
    assert watch.violations == []


def test_a_completion_before_its_markers_is_found(watch):
    logs(watch, metadata(S.PREPARE_COMMIT, 5, A), metadata(S.COMPLETE_COMMIT, 5))
    assert found(watch) == {"EarlyCompletions"}


def test_a_generation_that_falls_is_found_and_one_that_stays_is_not(watch):
    for before, after in ((1, 2), (2, 2), (5, 4)):
        watch.groups("copiers", before, after)
    assert [violation.checker for violation in watch.violations] == ["FallingGenerations"]


def test_bounds_that_cross_are_found(watch):
    watch.shows(machine(stable=6, high=5))
    assert found(watch) == {"CrossedBounds"}


def test_bounds_of_a_new_leader_may_be_lower_until_all_that_it_began_with_is_committed(watch):
    watch.shows(machine(stable=5, high=10, end=12))
    later = machine(stable=2, high=3, end=12, epoch=2)
    watch.leads(later)
    watch.shows(later)
    assert watch.violations == []
    later.high_watermark, later.last_stable_offset = 12, 4
    watch.shows(later)
    assert found(watch) == {"FallingBounds"}


def test_a_leader_that_was_deposed_shows_less_than_its_successor(watch):
    deposed = machine(stable=5, high=5, end=5)
    watch.leads(deposed)
    watch.shows(machine(stable=10, high=10, epoch=2))
    watch.shows(deposed)
    assert watch.violations == []


def test_a_leader_that_begins_after_its_successor_need_not_have_what_that_one_has_shown(watch):
    """It was elected while its node stood still, and hears of it as this goes on."""
    watch.shows(machine(high=10, epoch=2))
    watch.leads(machine(end=9))
    assert watch.violations == []


def test_bounds_that_fall_within_a_leadership_are_found(watch):
    leader = machine(stable=3, high=4, end=12)
    watch.leads(leader)
    watch.shows(leader)
    leader.high_watermark = 3
    watch.shows(leader)
    assert found(watch) == {"FallingBounds"}


def test_a_successor_without_what_was_shown_is_found(watch):
    watch.shows(machine(high=10))
    watch.leads(machine(end=9, epoch=2))
    assert found(watch) == {"LostPromises"}


@pytest.mark.parametrize(
    ("high", "records", "expected"),
    [(1, 1, {"ChangedBatches"}), (0, 1, set()), (1, 0, set())],
    ids=["shown", "not shown", "compacted"],
)
def test_a_batch_that_was_shown_stays_the_same(watch, high, records, expected):
    leader = machine(high=high)
    watch.applies(leader, header(0, 4, crc=1), None)
    watch.shows(leader)
    later = machine(high=high, epoch=2)
    watch.applies(later, header(0, 4, crc=2, records=records), None)
    watch.leads(later)
    assert found(watch) == expected


@pytest.mark.parametrize(
    ("starts", "led", "checker"),
    [
        ({0: "one", 1: "two"}, {0, 1}, None),
        ({0: "one", 1: "", 2: ""}, {0, 1, 2}, None),
        ({0: "one", 1: "two", 2: "one"}, {0}, "LateElections"),
        ({0: "one", 1: "two", 2: "one"}, {1}, None),
    ],
)
def test_an_epoch_for_a_start_that_led_before_is_found(watch, starts, led, checker):
    for epoch, start in starts.items():
        watch.elects(elected(epoch, start))
        if epoch in led:
            watch.leads(machine(epoch=epoch))
    assert [violation.checker for violation in watch.violations] == [checker] * bool(checker)


def test_an_epoch_that_is_given_twice_is_found(watch):
    watch.elects(elected(0, "one"))
    watch.elects(elected(0, "one"))
    assert not watch.violations
    watch.elects(elected(0, "two"))
    assert [violation.checker for violation in watch.violations] == ["SharedEpochs"]


def test_an_epoch_that_the_controller_gives_to_two_brokers_is_found(watch):
    watch.elects(elected(0, "", leader=1))
    watch.elects(elected(0, "", leader=1))
    assert not watch.violations
    watch.elects(elected(0, "", leader=2))
    assert [violation.checker for violation in watch.violations] == ["SharedEpochs"]


def elected(epoch, start, *, leader=1):
    return LeaderElected(
        topic_id=TOPIC_ID,
        partition=0,
        leader=leader,
        leader_epoch=epoch,
        isr=(1,),
        incarnation=start,
    )


# --- what is synced ---------------------------------------------------------------------------


def batch(offset: int) -> bytes:
    return offset.to_bytes(8, "big") + (49).to_bytes(4, "big") + bytes(49)


def test_a_log_ends_after_lost_power_where_its_first_unsynced_batch_begins() -> None:
    file, directory = File(), Directory()
    directory.change(None, ("00000000000000000003.log", file))
    file.change(Write(0, batch(3)))
    assert durable_end(directory) == 3
    directory.sync()
    assert durable_end(directory) == 3
    file.sync()
    assert durable_end(directory) is None
    file.change(Write(61, batch(4)))
    file.change(Write(122, batch(5)))
    assert durable_end(directory) == 4
    file.change(Resize(61))
    assert durable_end(directory) is None
    file.sync()
    assert durable_end(directory) is None
    file.change(Write(61, b""))
    assert durable_end(directory) == 4
    file.change(Write(61, batch(4)))
    file.lose_writes()
    assert durable_end(directory) == 4


# --- live states ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_field_that_is_lost_on_its_way_to_the_log(is_lost: bool) -> None:
    aborted = structs.replace(metadata(S.PREPARE_ABORT, 4, A), epoch_cause=EpochCause.TIMEOUT)
    losing = mock.patch.object(transaction_records, "_tagged", return_value=[])
    with watching() as watch:
        if is_lost:
            losing.start()
        try:
            TransactionalIds().move(Reply(), aborted)
        finally:
            if is_lost:
                losing.stop()
    assert [found.checker for found in watch.violations] == ["UnequalStates"] * is_lost
