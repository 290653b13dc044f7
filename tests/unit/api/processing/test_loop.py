from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from process_world import TP, VALUES, FakeProducer, ProcessWorld, consumers_of, sunk

from oncelog.actors.rpc.call_meter import CallReports
from oncelog.api.processing import loop as process_loop
from oncelog.api.processing.messages import WorkerState
from oncelog.storage.exceptions import (
    FencedInstanceIdError,
    IllegalStateError,
    InvalidProducerEpochError,
    MessageTooLargeError,
    ProducerFencedError,
    RequestTimedOutError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(process_loop, "RECOVERY_WAIT_S", 0.0)


# --- the good path ----------------------------------------------------------------------------


def test_every_record_is_processed_once_and_its_offset_committed_with_the_output():
    world = ProcessWorld(VALUES)

    progress = world.run()

    assert sunk(world) == VALUES
    assert world.committed == {TP: 5}
    assert (progress.records_in, progress.records_out) == (5, 5)
    assert progress.commits == 3
    assert progress.state is WorkerState.STOPPED
    assert progress.processed == {TP: 5}


def test_what_a_job_has_done_is_reported_with_its_group_as_the_tag():
    added = Counter()

    class Sink:
        def add(self, metric, amount, tags):
            assert (set(tags), tags["group"]) == (set(metric.tags), "g")
            added[metric.name, tags.get("outcome")] += amount

    def fails_once(batch):
        if world.calls.count("abort") == 0:
            raise ValueError
        return batch.select(["key", "value"])

    world = ProcessWorld(VALUES)
    world.reports = CallReports(Sink(), 1_000_000)

    progress = world.run(fails_once)

    assert added == {
        ("job_records", "in"): 5,
        ("job_records", "out"): 5,
        ("job_records", "left_out"): 0,
        ("job_transactions", "committed"): progress.commits,
        ("job_transactions", "aborted"): 1,
        ("job_failures", None): 1,
    }


def test_polls_within_the_commit_interval_share_a_transaction():
    world = ProcessWorld(VALUES)

    progress = world.run(commit_interval_ms=50)

    assert progress.commits == 1
    assert sunk(world) == VALUES


def test_stopping_commits_what_is_open():
    world = ProcessWorld(VALUES)
    world.before_poll = lambda: world.stop.set() if world.calls.count("poll") == 1 else None

    progress = world.run(commit_interval_ms=60_000)

    assert world.committed == {TP: 4}
    assert progress.state is WorkerState.STOPPED
    assert world.calls[-2:] == ["close producer", "close consumer"]


def test_a_batch_without_output_still_commits_its_offsets():
    world = ProcessWorld(VALUES)

    progress = world.run(lambda batch: None)

    assert (world.sink, world.committed) == ([], {TP: 5})
    assert (progress.records_in, progress.records_out) == (5, 0)


def test_record_functions_return_values_pairs_lists_or_nothing():
    world = ProcessWorld(VALUES[:4])
    outputs = {
        b"0": b"value",
        b"1": (b"key", b"other"),
        b"2": [b"a", (None, b"b")],
        b"3": None,
    }

    world.run(lambda record: outputs[record.value], batch_format="record")

    assert world.sink == [(b"k", b"value"), (b"key", b"other"), (b"k", b"a"), (None, b"b")]
    assert world.committed == {TP: 4}


# --- errors of a transaction ------------------------------------------------------------------


@pytest.mark.parametrize("method", ["send", "send_offsets", "commit"])
def test_an_abortable_error_aborts_and_the_work_is_done_again(method):
    world = ProcessWorld(VALUES)
    world.errors[method] = [TransactionAbortableError(), TransactionAbortableError()]

    progress = world.run()

    assert sunk(world) == VALUES
    assert progress.aborts == 2
    assert progress.state is WorkerState.STOPPED


def test_a_commit_whose_answer_was_lost_is_asked_again_and_not_done_again():
    world = ProcessWorld(VALUES)
    world.lost["commit"] = [RequestTimedOutError(), RequestTimedOutError()]

    progress = world.run()

    assert sunk(world) == VALUES
    assert progress.aborts == 0


def test_an_aborted_first_transaction_begins_again_where_it_began():
    # Nothing is committed yet: the reset policy could skip what was read.
    world = ProcessWorld(VALUES)
    world.errors["commit"] = [TransactionAbortableError()]

    world.run()

    assert sunk(world) == VALUES
    assert "committed" in world.calls


def test_a_producer_beyond_repair_is_replaced():
    world = ProcessWorld(VALUES)
    world.errors["send_offsets"] = [InvalidProducerEpochError()]
    world.errors["abort"] = [InvalidProducerEpochError()]

    progress = world.run()

    assert sunk(world) == VALUES
    assert world.connects == 2
    assert progress.state is WorkerState.STOPPED


@pytest.mark.parametrize("method", ["connect", "init_transactions", "subscribe"])
def test_a_start_that_meets_a_passing_error_is_repeated_with_new_clients(method):
    world = ProcessWorld(VALUES)
    world.errors[method] = [RequestTimedOutError(), RequestTimedOutError()]

    world.run()

    assert sunk(world) == VALUES
    assert world.connects == 3


def test_a_poll_that_fails_is_repeated():
    world = ProcessWorld(VALUES)
    world.errors["poll"] = [IllegalStateError("odd"), RequestTimedOutError()]

    world.run()

    assert sunk(world) == VALUES


# --- replaced ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["init_transactions", "send_offsets", "commit"])
def test_a_fenced_producer_ends_the_worker(method):
    world = ProcessWorld(VALUES)
    world.errors[method] = [ProducerFencedError()]

    progress = world.run()

    assert progress.state is WorkerState.FENCED
    assert "g-1" in progress.reason
    assert world.sink == []
    assert world.connects == 1


def test_a_fenced_group_member_ends_the_worker():
    world = ProcessWorld(VALUES)
    world.errors["poll"] = [FencedInstanceIdError()]

    assert world.run().state is WorkerState.FENCED


def test_a_fenced_member_that_hides_behind_an_abortable_error_ends_the_worker():
    world = ProcessWorld(VALUES)
    spoilt = TransactionAbortableError()
    spoilt.__cause__ = FencedInstanceIdError()
    world.errors["send_offsets"] = [spoilt]

    assert world.run().state is WorkerState.FENCED


# --- rebalances -------------------------------------------------------------------------------


def test_a_rebalance_aborts_what_the_earlier_generation_began():
    # 1 two records are polled and sent  2 the group rebalances, the consumer begins again at the
    # committed offset  3 the same records come again.
    world = ProcessWorld(VALUES)
    consumers = consumers_of(world)

    def rebalance():
        if world.calls.count("poll") == 1:
            world.group = replace(world.group, generation_id=2)
            consumers[0].offset = None

    world.before_poll = rebalance

    progress = world.run(commit_interval_ms=50)

    assert sunk(world) == VALUES
    assert progress.aborts == 1


def test_what_is_read_again_within_a_generation_is_processed_once():
    # 1 two records are polled and sent  2 the member was put out, and joins again under its name in
    # the generation that goes on: it begins at the committed offset  3 the same records come again.
    world = ProcessWorld(VALUES)
    consumers = consumers_of(world)

    def rejoin():
        if world.calls.count("poll") == 1:
            consumers[0].offset = None

    world.before_poll = rejoin

    progress = world.run(commit_interval_ms=50)

    assert sunk(world) == VALUES
    assert progress.aborts == 1


def test_what_is_committed_while_its_old_position_is_found_is_not_processed_again():
    # 1 two records are polled and sent  2 a join begins and finds the offset committed before them
    # 3 they are committed  4 the next poll goes on at the offset that was found.
    world = ProcessWorld(VALUES)
    consumers = consumers_of(world)

    def join():
        if world.calls.count("commit") == 2:  # The first one told of the attempt.
            world.before_poll = lambda: None
            consumers[0].offset = 0

    world.before_poll = join

    progress = world.run(commit_interval_ms=1)

    assert sunk(world) == VALUES
    assert progress.aborts == 0


def test_output_is_never_committed_without_the_offsets_of_its_input():
    # 1 two records are polled and sent  2 a rebalance begins: the consumer has no positions, the
    # generation is still the old one  3 the commit falls due.
    world = ProcessWorld(VALUES[:2])
    consumers = consumers_of(world)

    def rebalance():
        if world.calls.count("poll") == 1:
            consumers[0].positions = dict

    world.before_poll = rebalance

    world.run(commit_interval_ms=1)

    assert sunk(world) == VALUES[:2]
    assert world.committed == {TP: 2}


def test_records_taken_away_in_their_own_poll_are_left_to_another_worker():
    """1 a poll returns records  2 within it their partition is taken away  3 none is processed."""
    world = ProcessWorld(VALUES[:2])
    consumers = consumers_of(world)
    world.before_poll = lambda: (setattr(consumers[0], "positions", dict), world.stop.set())

    progress = world.run()

    assert (world.sink, world.committed, progress.records_in) == ([], {}, 0)


def test_nothing_is_processed_without_a_generation():
    world = ProcessWorld(VALUES, per_poll=5)
    world.group = replace(world.group, generation_id=-1)

    progress = world.run()

    assert world.sink == []
    assert "begin" not in world.calls
    assert progress.records_in == 0


# --- the function -----------------------------------------------------------------------------


def test_a_function_that_fails_now_and_then_is_tried_again():
    world = ProcessWorld(VALUES)
    attempts = []

    def flaky(batch):
        attempts.append(1)
        if len(attempts) in (1, 2, 4):
            raise ZeroDivisionError("now and then")
        return batch.select(["key", "value"])

    progress = world.run(flaky)

    assert sunk(world) == VALUES
    assert progress.function_failures == 3
    assert progress.state is WorkerState.STOPPED


def test_a_function_that_keeps_failing_ends_the_worker_with_its_error():
    world = ProcessWorld(VALUES)

    def broken(batch):
        raise KeyError("no such column")

    progress = world.run(broken, max_function_failures=2)

    assert progress.state is WorkerState.FAILED
    assert "no such column" in progress.reason
    assert progress.function_failures == 2
    assert world.sink == []
    assert world.calls.count("abort") == 2


@pytest.mark.parametrize(
    ("function", "batch_format"),
    [(lambda batch: 7, "arrow"), (lambda record: "text", "record"), (lambda r: (1, 2), "record")],
)
def test_a_function_that_returns_the_wrong_type_ends_the_worker_and_says_what_it_may(
    function, batch_format
):
    world = ProcessWorld(VALUES)

    progress = world.run(function, batch_format=batch_format)

    assert progress.state is WorkerState.FAILED
    assert "must return" in progress.reason


@pytest.mark.parametrize(
    "error", [MessageTooLargeError("too large"), TypeError("too large"), ValueError("too large")]
)
def test_output_that_cannot_be_sent_ends_the_worker(error):
    world = ProcessWorld(VALUES)
    world.errors["send"] = [error] * 3

    progress = world.run()

    assert progress.state is WorkerState.FAILED
    assert "too large" in progress.reason


def test_a_missing_source_ends_the_worker_with_its_name():
    world = ProcessWorld(VALUES)
    world.errors["poll"] = [UnknownTopicOrPartitionError("there is no topic 'in'")] * 3

    progress = world.run()

    assert progress.state is WorkerState.FAILED
    assert "no topic 'in'" in progress.reason


# --- a function that ends more than itself ----------------------------------------------------


class NativePanic(BaseException):
    """What a native library raises instead of aborting the process."""


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), NativePanic("index 4")])
def test_a_function_that_raises_what_is_no_exception_fails_the_worker_visibly(raised):
    world = ProcessWorld(VALUES)

    def function(batch):
        raise raised

    progress = world.run(function)

    assert progress.state is WorkerState.FAILED
    assert type(raised).__name__ in progress.reason
    assert progress.function_failures == 3
    assert sunk(world) == []


class Died(BaseException):
    """Stands for the end of a process: nothing of the loop runs after it."""


def lives_of(world, job_id, count):
    """``count`` processes of a worker; each dies in its first batch, after its attempt is noted."""

    class Dying(FakeProducer):
        def send_arrow(self, topic, table):
            raise Died

    ends = []
    for _ in range(count):
        connect = world.connect

        def dying(*settings, connect=connect):
            clients = connect(*settings)
            return clients._replace(producer=Dying(world))

        world.connect = dying
        try:
            ends.append(world.run(job_id=job_id, max_worker_deaths=3))
        finally:
            world.connect = connect
    return ends


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_after_a_number_of_processes_that_died_over_the_same_input_the_worker_has_failed():
    world = ProcessWorld(VALUES)
    lives_of(world, "job", 3)

    progress = world.run(job_id="job", max_worker_deaths=3)

    assert progress.state is WorkerState.FAILED
    assert "3 processes in a row died" in progress.reason
    assert "in-0 from offset 0" in progress.reason
    assert sunk(world) == []
    assert world.run(job_id="another", max_worker_deaths=3).state is WorkerState.STOPPED
    assert sunk(world) == VALUES


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_commit_in_between_begins_the_count_again():
    world = ProcessWorld(VALUES)
    lives_of(world, "job", 2)
    assert world.run(job_id="job", max_worker_deaths=3).state is WorkerState.STOPPED
    world.values += VALUES
    world.stop.clear()
    world.idle_polls_left = 1
    lives_of(world, "job", 2)
    assert world.run(job_id="job", max_worker_deaths=3).state is WorkerState.STOPPED
    assert sunk(world) == VALUES + VALUES


# --- tables that keep the columns of the source -----------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda t: t,
        lambda t: t.drop_columns(["offset"]),
        lambda t: t.slice(0, 1).to_batches()[0],
    ],
)
def test_where_the_input_stood_is_no_part_of_the_output(function):
    taken = []
    world = ProcessWorld(VALUES[:1])

    class Noting(FakeProducer):
        def send_arrow(self, topic, table):
            taken.append(table.schema.names)
            super().send_arrow(topic, pa.table(table))

    connect = world.connect
    world.connect = lambda *settings: connect(*settings)._replace(producer=Noting(world))

    assert world.run(function).state is WorkerState.STOPPED
    assert taken == [["timestamp", "key", "value", "headers"]]
    assert sunk(world) == VALUES[:1]


# --- slow functions ---------------------------------------------------------------------------


def slow(world, took_ms):
    """A function that takes so long, whose group begins another generation meanwhile."""

    def function(batch):
        world.time_ms += took_ms
        world.group = replace(world.group, generation_id=world.group.generation_id + 1)
        return batch.select(["key", "value"])

    return function


@pytest.mark.parametrize("commit_interval_ms", [0, 60_000], ids=["at the commit", "at a poll"])
def test_a_function_whose_input_the_group_gave_away_fails_visibly_if_it_took_too_long(
    commit_interval_ms,
):
    world = ProcessWorld(VALUES * 4)

    progress = world.run(
        slow(world, 5_001), function_timeout_ms=5_000, commit_interval_ms=commit_interval_ms
    )

    assert progress.state is WorkerState.FAILED
    assert progress.function_failures == 3
    assert "took 5001 ms" in progress.reason
    assert "function_timeout_ms=5000" in progress.reason
    assert world.sink == []


def test_a_function_that_took_its_time_is_no_failure_when_the_group_goes_on():
    world = ProcessWorld(VALUES)
    gone_on = slow(world, 5_000)

    def function(batch):
        return gone_on(batch) if world.group.generation_id < 6 else batch.select(["key", "value"])

    progress = world.run(function, function_timeout_ms=5_000)

    assert progress.state is WorkerState.STOPPED
    assert (progress.aborts, progress.function_failures) == (5, 0)
    assert sunk(world) == VALUES


def test_a_long_function_that_keeps_its_input_is_no_failure():
    world = ProcessWorld(VALUES)

    def function(batch):
        world.time_ms += 10_000
        return batch.select(["key", "value"])

    progress = world.run(function, function_timeout_ms=5_000)

    assert progress.state is WorkerState.STOPPED
    assert sunk(world) == VALUES
    assert progress.aborts == 0


def test_what_was_aborted_is_done_again_in_a_transaction_of_its_own():
    """A long call with what others gave before it would be too long for the transaction again."""
    world = ProcessWorld(VALUES)
    world.errors["send_offsets"] = [TransactionAbortableError()]

    progress = world.run(commit_interval_ms=60_000)

    assert progress.aborts == 1
    assert progress.commits == 2
    assert sunk(world) == VALUES
