"""What a failure of the function leads to, by ``on_error``."""

from __future__ import annotations

import pickle

import pytest
from process_world import DEAD_LETTERS, TP, FakeProducer, ProcessWorld, sunk

from oncelog.api.processing import loop as process_loop
from oncelog.api.processing.left_out import ERROR_TEXT_MAX, LeftOut, Narrowing
from oncelog.api.processing.messages import ProcessConfig, WorkerState
from oncelog.api.records import ConsumerRecord
from oncelog.storage.exceptions import InvalidSettingError, TransactionAbortableError

MANY = [str(number).encode() for number in range(40)]
BAD = {b"3", b"17", b"18"}
GOOD = [value for value in MANY if value not in BAD]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(process_loop, "RECOVERY_WAIT_S", 0.0)


def refuses(calls):
    """A function of either format that fails for bad values, and notes what it was given."""

    def function(batch):
        values = [batch.value] if isinstance(batch, ConsumerRecord) else batch["value"].to_pylist()
        calls.append(values)
        if bad := BAD.intersection(values):
            raise LookupError(f"no {min(bad)!r}")
        return batch.value if isinstance(batch, ConsumerRecord) else batch.select(["key", "value"])

    return function


BOTH = pytest.mark.parametrize("batch_format", ["arrow", "record"])


@BOTH
def test_records_that_always_fail_are_skipped_and_counted_and_no_other(batch_format):
    world, calls = ProcessWorld(MANY, per_poll=10), []

    progress = world.run(refuses(calls), batch_format=batch_format, on_error="skip")

    assert progress.state is WorkerState.STOPPED
    assert sunk(world) == GOOD
    assert (progress.skipped, progress.dead_lettered) == (3, 0)
    assert (progress.records_in, progress.records_out) == (40, 37)
    assert world.committed == {TP: 40}
    assert calls.count([b"17"]) == 3 + (batch_format == "record")


@BOTH
def test_a_record_that_fails_now_and_then_is_not_skipped(batch_format):
    world, failures = ProcessWorld(MANY[:4], per_poll=4), [1] * 3

    def function(batch):
        values = [batch.value] if isinstance(batch, ConsumerRecord) else batch["value"].to_pylist()
        if b"2" in values and failures:
            failures.pop()
            raise LookupError
        return batch.value if isinstance(batch, ConsumerRecord) else batch.select(["key", "value"])

    assert world.run(function, batch_format=batch_format, on_error="skip").skipped == 0
    assert sunk(world) == MANY[:4]


@BOTH
def test_a_dead_letter_is_the_record_and_says_where_and_why(batch_format):
    world = ProcessWorld(MANY[:5])
    world.headers = (("trace", b"1"), ("none", None))

    progress = world.run(
        refuses([]),
        batch_format=batch_format,
        on_error="dead_letter",
        dead_letter_topic=DEAD_LETTERS,
        max_function_failures=2,
    )

    ((key, value, headers),) = world.dead_letters
    assert (key, value) == (b"k", b"3")
    assert headers[:2] == world.headers
    assert dict(headers[2:]) == {
        "__connect.errors.topic": b"in",
        "__connect.errors.partition": b"0",
        "__connect.errors.offset": b"3",
        "__connect.errors.connector.name": b"g",
        "__connect.errors.task.id": b"1",
        "__connect.errors.exception.class.name": b"LookupError",
        "__connect.errors.exception.message": b"no b'3'",
        "__connect.errors.attempts": b"2",
    }
    assert (progress.dead_lettered, progress.skipped) == (1, 0)
    assert sunk(world) == [b"0", b"1", b"2", b"4"]


def test_a_dead_letter_of_an_aborted_transaction_is_not_sent_twice():
    world = ProcessWorld(MANY[:5])
    world.errors["commit"] = [TransactionAbortableError() for _ in range(3)]

    progress = world.run(refuses([]), on_error="dead_letter", dead_letter_topic=DEAD_LETTERS)

    assert [value for _, value, _ in world.dead_letters] == [b"3"]
    assert progress.dead_lettered == 1
    assert sunk(world) == [b"0", b"1", b"2", b"4"]


@BOTH
def test_a_record_whose_output_cannot_be_sent_is_found_and_skipped(batch_format):
    world = ProcessWorld(MANY, per_poll=10)
    world.too_large = (b"5", b"6", b"33")

    def same(batch):
        return batch.value if isinstance(batch, ConsumerRecord) else batch.select(["key", "value"])

    progress = world.run(same, batch_format=batch_format, on_error="skip")

    assert sunk(world) == [value for value in MANY if value not in world.too_large]
    assert progress.skipped == 3
    assert progress.state is WorkerState.STOPPED


def test_a_dead_letter_that_cannot_be_sent_ends_the_worker():
    world = ProcessWorld(MANY, per_poll=10)
    world.too_large = (b"5",)

    progress = world.run(on_error="dead_letter", dead_letter_topic=DEAD_LETTERS)

    assert progress.state is WorkerState.FAILED
    assert "too large" in progress.reason
    assert sunk(world) == MANY[:5]
    assert world.dead_letters == []


def test_one_failure_of_a_batch_is_enough_to_look_for_the_record():
    world = ProcessWorld(MANY, per_poll=10)

    progress = world.run(refuses([]), on_error="skip", max_function_failures=1)

    assert progress.state is WorkerState.STOPPED
    assert sunk(world) == GOOD


def test_a_record_that_was_found_waits_for_its_turn_while_its_partition_is_assigned():
    def batch(partition):
        return [ConsumerRecord("in", partition, 7, 0, None, b"v")]

    narrowing = Narrowing(1, 100)
    narrowing.narrow(batch(0), ValueError("too large"), is_alone=True)

    narrowing.widen(batch(1), lambda: {TP})
    assert narrowing.records_max == 1
    assert narrowing.take_unsendable(batch(1)) is None
    assert narrowing.take_unsendable(batch(0)).attempt_count == 1
    narrowing.widen(batch(1), set)
    assert narrowing.records_max == 2
    assert narrowing.take_unsendable(batch(0)) is None


def test_with_retry_the_input_is_repeated_until_it_succeeds_with_longer_and_longer_pauses():
    world, failures, pauses = ProcessWorld(MANY[:4]), [1] * 12, []
    wait = world.stop.wait
    world.stop.wait = lambda timeout: (pauses.append(timeout), wait(0))[1]

    def function(batch):
        if failures:
            failures.pop()
            raise LookupError("not yet")
        return batch.select(["key", "value"])

    progress = world.run(
        function, on_error="retry", retry_backoff_ms=100, retry_backoff_max_ms=1_500
    )

    assert progress.state is WorkerState.STOPPED
    assert sunk(world) == MANY[:4]
    assert progress.function_failures == 12
    assert pauses[:6] == [0.1, 0.2, 0.4, 0.8, 1.5, 1.5]


def test_with_retry_the_reason_says_how_often_it_failed_and_when_it_goes_on(caplog):
    world, failures = ProcessWorld(MANY[:4]), [1, 1]

    def function(batch):
        if failures:
            failures.pop()
            raise LookupError("not yet")
        return batch.select(["key", "value"])

    world.run(function, on_error="retry", retry_backoff_ms=1)

    assert "failed 2 times in a row, next attempt in 2 ms: LookupError: not yet" in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        {"on_error": "dead_letter"},
        {"dead_letter_topic": "dead"},
        {"on_error": "skip", "dead_letter_topic": "dead"},
        {"retry_backoff_ms": 50, "retry_backoff_max_ms": 49},
        {"on_error": "ignore"},
        {"on_error": "skip", "mode": "queue"},
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings):
    with pytest.raises(InvalidSettingError):
        ProcessConfig(
            source="in", sink="out", group_id="g", worker_index=0, function=len, **settings
        )


def test_a_configuration_of_an_earlier_version_is_completed():
    config = ProcessConfig(source="in", sink="out", group_id="g", worker_index=4, function=len)
    state = config.__getstate__()
    older = object.__new__(ProcessConfig)
    older.__setstate__(state[: list(ProcessConfig.__slots__).index("workers")])

    assert older.completed() == config
    assert pickle.loads(pickle.dumps(older.completed())) == config


def test_a_long_error_is_cut():
    record = ConsumerRecord("in", 0, 7, -1, None, None)
    world = ProcessWorld([])
    clients = world.connect(None, None)
    config = ProcessConfig(
        source="in",
        sink="out",
        group_id="g",
        worker_index=0,
        function=len,
        on_error="dead_letter",
        dead_letter_topic=DEAD_LETTERS,
    )
    clients.producer.begin_transaction()

    LeftOut(record, ValueError("x" * 9_999), 1).send(clients.producer, DEAD_LETTERS, config)

    ((_, _, headers),) = clients.producer.dead_letters
    assert dict(headers)["__connect.errors.exception.message"] == b"x" * ERROR_TEXT_MAX


# --- records that end the process ---------------------------------------------------------------


class Died(BaseException):
    """Stands for the end of a process: nothing of the loop runs after it."""


def lives(world, is_deadly, count_max, **settings):
    """Processes of a worker, one after another, until one ends of itself; how many died."""

    class Dying(FakeProducer):
        def send_arrow(self, topic, table):
            if is_deadly(table["value"].to_pylist()):
                raise Died
            super().send_arrow(topic, table)

    connect = world.connect
    world.connect = lambda *given: connect(*given)._replace(producer=Dying(world))
    for number in range(count_max):
        progress = world.run(**settings)
        if progress.state is not WorkerState.FAILED or "Died" not in progress.reason:
            return number, progress
    raise AssertionError("processes go on dying")


@pytest.mark.parametrize("commit_interval_ms", [0, 60_000])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_record_over_which_processes_die_is_found_and_no_other_is_left_out(commit_interval_ms):
    world = ProcessWorld(MANY, per_poll=10)

    died, progress = lives(
        world,
        lambda values: b"7" in values,
        20,
        max_worker_deaths=3,
        commit_interval_ms=commit_interval_ms,
        on_error="dead_letter",
        dead_letter_topic=DEAD_LETTERS,
    )

    assert progress.state is WorkerState.STOPPED
    assert died == 3 + 3
    assert progress.aborts == 0
    assert sunk(world) == [value for value in MANY if value != b"7"]
    ((_, value, headers),) = world.dead_letters
    assert value == b"7"
    told = dict(headers)
    assert told["__connect.errors.attempts"] == b"3"
    assert told["__connect.errors.exception.class.name"].endswith(b"WorkerDeathError")
    assert b"3 processes in a row died" in told["__connect.errors.exception.message"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_several_records_over_which_processes_die_are_found_one_after_another():
    world = ProcessWorld(MANY, per_poll=10)

    _, progress = lives(
        world,
        lambda values: {b"7", b"8", b"31"}.intersection(values),
        40,
        max_worker_deaths=2,
        on_error="skip",
    )

    assert sunk(world) == [value for value in MANY if value not in {b"7", b"8", b"31"}]
    assert progress.skipped == 1  # Counts are of a process; the others' are in what they reported.


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_processes_that_die_for_another_reason_leave_no_record_out():
    """The first so many die whatever they work on; then none does."""
    world, deaths = ProcessWorld(MANY, per_poll=10), [1] * 4

    died, progress = lives(
        world, lambda values: deaths and deaths.pop(), 20, max_worker_deaths=3, on_error="skip"
    )

    assert died == 4
    assert sunk(world) == MANY
    assert progress.skipped == 0
    assert progress.commits < 2 * len(MANY)
