"""A worker that begins at the end of the log skips nothing that comes after it began."""

from __future__ import annotations

from dataclasses import replace

import pytest
from process_world import TP, VALUES, ProcessWorld, consumers_of, sunk

from oncelog.api.processing.messages import WorkerState
from oncelog.storage.exceptions import RebalanceInProgressError, TransactionAbortableError

LATEST = {"consumer_settings": {"auto_offset_reset": "latest"}}


def world_with_records_coming(count_before, **settings):
    """A log of ``count_before`` records that gets the rest of VALUES with the second poll."""
    world = ProcessWorld(VALUES[:count_before], **settings)
    world.reset = lambda: len(world.values)
    world.idle_polls_left = 3

    def arrive():
        if world.calls.count("poll") == 1:
            world.values = list(VALUES)

    world.before_poll = arrive
    return world


def rejoin_at_latest(world, consumers, at_poll, generation_id):
    """At the poll of that number the group gives another generation, and positions are reset."""
    before = world.before_poll

    def rejoin():
        before()
        if world.calls.count("poll") == at_poll:
            world.group = replace(world.group, generation_id=generation_id)
            consumers[0].offset = None

    world.before_poll = rejoin


def test_the_end_of_the_log_is_committed_as_the_start_before_anything_comes():
    world = ProcessWorld(VALUES)
    world.reset = lambda: len(world.values)

    world.run(**LATEST)

    assert (world.committed, world.sink) == ({TP: 5}, [])


@pytest.mark.parametrize("method", ["send", "send_offsets", "commit"])
def test_records_of_an_aborted_first_transaction_are_not_skipped(method):
    world = world_with_records_coming(2)
    world.errors[method] = [TransactionAbortableError("no")]

    world.run(**LATEST)

    assert sunk(world) == VALUES[2:]


def test_records_of_a_first_transaction_lost_to_a_rebalance_are_not_skipped():
    # 1 begun at the end  2 records come and are sent  3 a rebalance resets the positions, and the
    # log has more by now  4 the first ones come again.
    world = world_with_records_coming(2)
    rejoin_at_latest(world, consumers_of(world), at_poll=2, generation_id=2)

    progress = world.run(commit_interval_ms=50, **LATEST)

    assert sunk(world) == VALUES[2:]
    assert progress.aborts == 1


def test_records_read_without_a_generation_are_processed_when_the_worker_is_a_member_again():
    # 1 no member: begun at the end, nothing committed  2 records come, are read and dropped
    # 3 a member again: the positions are reset to what is the end now.
    world = world_with_records_coming(2, per_poll=5)
    world.group = replace(world.group, generation_id=-1)
    rejoin_at_latest(world, consumers_of(world), at_poll=2, generation_id=1)

    world.run(**LATEST)

    assert sunk(world) == VALUES[2:]
    assert world.committed == {TP: 5}


def test_a_start_that_a_rebalance_refuses_is_committed_later():
    world = world_with_records_coming(2)
    world.errors["commit_offsets"] = [RebalanceInProgressError("no")]

    progress = world.run(**LATEST)

    assert sunk(world) == VALUES[2:]
    assert progress.state is WorkerState.STOPPED


def test_a_position_that_is_committed_already_is_left_alone():
    world = ProcessWorld(VALUES)
    world.committed = {TP: 3}
    world.reset = lambda: len(world.values)

    world.run(**LATEST)

    assert sunk(world) == VALUES[3:]
    assert "commit_offsets" not in world.calls


def test_a_worker_that_begins_at_the_beginning_commits_no_start():
    world = ProcessWorld(VALUES)

    world.run()

    assert "commit_offsets" not in world.calls
