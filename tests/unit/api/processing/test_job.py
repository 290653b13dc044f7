from __future__ import annotations

import threading

import pytest
from deadlines import DEADLINE_S
from msgspec import structs

from oncelog.actors.protocol.messages.group import (
    DescribeGroupsReply,
    DescribeGroupsRequest,
    GroupDescription,
    GroupMemberDescription,
    LeaveGroupReply,
    LeaveGroupRequest,
)
from oncelog.api.admin.admin import AsyncAdmin
from oncelog.api.processing import job as process_job
from oncelog.api.processing.job import (
    ProcessFailedError,
    ProcessJob,
    ProcessWorker,
    jobs_of,
    remove_former_workers,
    worker_actor,
)
from oncelog.api.processing.messages import (
    ProcessConfig,
    ScaleWorkersRequest,
    StopWorkerRequest,
    WorkerState,
    WorkerStatus,
    WorkerStatusRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    IllegalStateError,
    InvalidSettingError,
    ProducerFencedError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition

TP0, TP1 = TopicPartition("in", 0), TopicPartition("in", 1)


def config(worker_index=0):
    return ProcessConfig(
        source="in", sink="out", group_id="g", worker_index=worker_index, function=len
    )


class FakeWorkers:
    """Two workers that answer with what a test has set."""

    def __init__(self, cluster):
        self.statuses = [
            WorkerStatus(
                worker_index=index,
                sources=("in",),
                sinks=("out",),
                process_id=10 + index,
                started_ms=1,
                state=WorkerState.RUNNING,
            )
            for index in range(2)
        ]
        self.on_ask = lambda: None
        self.on_stop = lambda index: None
        self.stops = 0
        self._cluster = cluster
        for index in range(2):
            self.answer_for(index)

    def answer_for(self, index):
        """Answer for a worker; a new one has just started."""
        if index == len(self.statuses):
            self.statuses.append(WorkerStatus(worker_index=index, process_id=90, started_ms=1))
        self._cluster.actors[worker_actor("g", index)] = self.answerer(index)

    def answerer(self, index):
        def answer(request):
            self.on_ask()
            if isinstance(request, StopWorkerRequest):
                self.stops += 1
                self.on_stop(index)
                self.set(index, state=WorkerState.STOPPED)
            if isinstance(request, ScaleWorkersRequest):
                self.set(index, workers=request.workers, scaled_ms=request.scaled_ms)
            return self.statuses[index]

        return answer

    def set(self, index, **changes):
        self.statuses[index] = structs.replace(self.statuses[index], **changes)


@pytest.fixture
def workers(fake_cluster):
    first, second = fake_cluster.create("in", 2)
    first.append(*(b"x" for _ in range(10)))
    second.append(*(b"x" for _ in range(5)))
    return FakeWorkers(fake_cluster)


class FakeActors:
    """The actors that Ray knows, except those that are ``gone``."""

    def __init__(self):
        self.gone = set()
        self.ended = []
        self.added = []
        self.mute = set()
        self.waiting = {}

    def handle(self, name):
        if name in self.gone:
            raise ValueError(name)
        return f"handle of {name}"

    def waits_for(self, name):
        self.handle(name)
        return self.waiting.get(name, "")

    def end(self, names):
        self.ended += names

    def add(self, model, worker_indexes, workers):
        if model in self.mute:
            raise ValueError(model)
        self.added.append((model, list(worker_indexes), workers))


@pytest.fixture
def actors():
    return FakeActors()


def job_of(fake_cluster, loop_thread, actors, **known):
    return ProcessJob(
        group_id="g",
        worker_indexes=[0, 1],
        router=fake_cluster.router(),
        transport=fake_cluster,
        loop_thread=loop_thread,
        random=fake_cluster.random,
        actors=actors,
        **known,
    )


@pytest.fixture
def job(fake_cluster, loop_thread, actors):
    return job_of(fake_cluster, loop_thread, actors, sources=("in",))


# --- places in the group ----------------------------------------------------------------------


def leaves(fake_cluster):
    return [
        [member.group_instance_id for member in request.members]
        for request in fake_cluster.requests(LeaveGroupRequest)
    ]


def test_a_job_that_is_stopped_leaves_its_group_once_its_actors_are_gone(
    fake_cluster, job, workers, actors
):
    """Else a job of fewer workers waits until the sessions of the others have ended."""

    def leave(request):
        assert actors.ended
        return LeaveGroupReply(results=(ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID))

    fake_cluster.hooks[LeaveGroupRequest] = leave

    job.stop()
    job.stop()

    assert leaves(fake_cluster) == [["g-0", "g-1"]]


def test_a_job_is_stopped_also_if_its_group_does_not_answer(
    fake_cluster, job, workers, actors, monkeypatch, caplog
):
    monkeypatch.setattr(process_job, "LEAVE_TIMEOUT_MS", 50)
    fake_cluster.fail(LeaveGroupRequest, ErrorCode.NETWORK_EXCEPTION, times=1_000)

    assert job.stop().is_ended
    assert actors.ended
    (warning,) = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert "g-0, g-1" in warning


def test_a_job_puts_those_workers_out_of_its_group_that_it_has_not(fake_cluster, run):
    instance_ids = ("g-0", "g-1", "g-2", "g-11", "g-x", "other-3", None)
    described = GroupDescription(
        group_id="g",
        state="Stable",
        protocol_type="consumer",
        protocol_name="range",
        generation_id=3,
        members=tuple(
            GroupMemberDescription(
                member_id=str(number), group_instance_id=name, client_id="", assignment=b""
            )
            for number, name in enumerate(instance_ids)
        ),
    )
    found = []
    fake_cluster.hooks[DescribeGroupsRequest] = lambda request: DescribeGroupsReply(
        groups=tuple(found)
    )
    admin = AsyncAdmin(fake_cluster.router(), random=fake_cluster.random)

    run(remove_former_workers(admin, "g", worker_count=2))
    assert leaves(fake_cluster) == []
    found.append(described)
    run(remove_former_workers(admin, "g", worker_count=2))
    assert leaves(fake_cluster) == [["g-2", "g-11"]]
    run(remove_former_workers(admin, "g", worker_count=12))
    assert len(leaves(fake_cluster)) == 1


# --- the job ----------------------------------------------------------------------------------


def test_status_adds_up_the_workers_and_counts_what_is_left(job, workers):
    workers.set(0, records_in=4, records_out=3, commits=2, aborts=1, processed=((TP0, 4),))
    workers.set(1, records_in=5, records_out=5, commits=1, processed=((TP1, 5),))

    status = job.status()

    assert (status.records_in, status.records_out) == (9, 8)
    assert (status.commits, status.aborts, status.restarts) == (3, 1, 0)
    assert status.lag == 6
    assert not status.is_ended


def test_a_partition_no_worker_has_counts_from_the_committed_offset_or_the_start(
    fake_cluster, job, workers
):
    fake_cluster.committed[TP0] = 7

    assert job.status().lag == 3 + 5


def test_data_of_an_open_transaction_is_no_lag(fake_cluster, job, workers):
    fake_cluster.logs[TP0].append(b"open", producer_id=1)
    workers.set(0, processed=((TP0, 10), (TP1, 5)))

    assert job.status().lag == 0


def test_what_was_deleted_is_no_lag(fake_cluster, job, workers):
    fake_cluster.committed[TP0] = 1
    workers.set(1, processed=((TP1, 2),))
    fake_cluster.logs[TP0].log_start_offset = 10
    fake_cluster.logs[TP1].log_start_offset = 4

    assert job.status().lag == 0 + 1


def test_a_restarted_worker_keeps_its_counts_and_is_counted(job, workers):
    workers.set(0, records_in=4, commits=1)
    job.status()
    workers.statuses[0] = WorkerStatus(
        worker_index=0, process_id=99, started_ms=2, records_in=1, state=WorkerState.RUNNING
    )

    status = job.status()

    assert (status.records_in, status.commits, status.restarts) == (5, 1, 1)


def test_a_worker_that_does_not_answer_counts_as_last_seen(fake_cluster, job, workers):
    workers.set(0, records_in=4, processed=((TP0, 10),))
    workers.set(1, processed=((TP1, 5),))
    job.status()
    fake_cluster.actors[worker_actor("g", 0)] = lambda request: request.failed(
        ErrorCode.NETWORK_EXCEPTION
    )

    status = job.status()

    assert (status.records_in, status.lag, status.restarts) == (4, 0, 0)
    assert status.workers[0].error is ErrorCode.NETWORK_EXCEPTION
    assert status.workers[0].state is WorkerState.STARTING


def test_wait_ends_when_everything_readable_is_processed(job, workers):
    asked = []

    def advance():
        asked.append(1)
        if len(asked) > 6:
            workers.set(0, processed=((TP0, 10), (TP1, 5)))

    workers.on_ask = advance

    assert job.wait(timeout_ms=20_000).lag == 0


def test_wait_gives_up_in_time_and_says_what_is_left(job, workers):
    with pytest.raises(RequestTimedOutError, match="15 offsets to go"):
        job.wait(timeout_ms=1)


def test_wait_raises_the_error_of_a_worker_that_failed(job, workers):
    workers.set(1, state=WorkerState.FAILED, reason="KeyError: 'dep_delay'")

    with pytest.raises(ProcessFailedError, match="worker 1: KeyError"):
        job.wait(timeout_ms=20_000)


def test_wait_raises_when_every_worker_has_ended_before_the_end(job, workers):
    workers.set(0, state=WorkerState.FENCED, reason="replaced")
    workers.set(1, state=WorkerState.STOPPED)

    with pytest.raises(ProcessFailedError, match="15 to go: replaced; stopped"):
        job.wait(timeout_ms=20_000)


def test_wait_for_the_end_of_the_workers(job, workers):
    workers.set(0, state=WorkerState.STOPPED)
    workers.set(1, state=WorkerState.STOPPED)

    assert job.wait(until_caught_up=False, timeout_ms=20_000).is_ended


def test_a_worker_whose_actor_is_gone_has_failed_and_wait_says_so(
    fake_cluster, job, workers, actors
):
    del fake_cluster.actors[worker_actor("g", 1)]
    assert not job.status().failures
    actors.gone.add(worker_actor("g", 1))

    with pytest.raises(ProcessFailedError, match=r"worker 1: there is no actor 'process:g-1'"):
        job.wait(timeout_ms=5_000)


def test_a_job_that_was_found_learns_its_topics_from_its_workers(
    fake_cluster, loop_thread, workers, actors
):
    found = job_of(fake_cluster, loop_thread, actors)
    assert (found.sources, found.sinks) == ((), ())

    assert found.status().lag == 15
    assert (found.sources, found.sinks) == (("in",), ("out",))


def test_jobs_are_known_by_the_names_of_their_workers():
    actors = [
        "process:b-1",
        "controller",
        "process:b-0",
        "process:a-b-10",
        "process:-",
        "group:1-0",
    ]
    assert jobs_of(actors) == {"a-b": [10], "b": [0, 1]}


def test_a_missing_source_is_raised(job):
    with pytest.raises(UnknownTopicOrPartitionError, match="'in'"):
        job.status()


def test_stop_ends_every_worker_and_then_removes_them_once(job, workers, actors):
    status = job.stop()

    assert status.is_ended
    assert workers.stops == 2
    assert job.stop().is_ended
    assert actors.ended == ["process:g-0", "process:g-1"]


def test_stop_asks_again_a_worker_that_was_just_being_restarted(fake_cluster, job, workers):
    answer = workers.answerer(0)
    left = [2]

    def restarting(request):
        left[0] -= 1
        return request.failed(ErrorCode.NETWORK_EXCEPTION) if left[0] >= 0 else answer(request)

    fake_cluster.actors[worker_actor("g", 0)] = restarting

    assert job.stop().is_ended


def test_stop_does_not_wait_for_ever(fake_cluster, job, workers, actors):
    fake_cluster.actors[worker_actor("g", 0)] = lambda request: request.failed(
        ErrorCode.REQUEST_TIMED_OUT
    )

    assert not job.stop(timeout_ms=1).is_ended
    assert actors.ended == ["process:g-0", "process:g-1"]


def test_a_job_gives_the_handles_of_its_workers(job):
    assert job.worker(1) == "handle of process:g-1"


def test_a_worker_without_a_node_is_no_failure_and_the_status_says_what_it_waits_for(
    fake_cluster, job, workers, actors
):
    del fake_cluster.actors[worker_actor("g", 1)]
    actors.waiting[worker_actor("g", 1)] = "is not placed or still starting: needs GPU 4"

    status = job.status()

    assert status.workers[1].state is WorkerState.STARTING
    assert status.workers[1].reason == "is not placed or still starting: needs GPU 4"
    assert not status.failures


# --- progress ---------------------------------------------------------------------------------


def test_the_rate_is_that_since_an_earlier_status_and_says_how_long_the_lag_takes(
    job, workers, loop_thread, monkeypatch
):
    now_s = [100.0]
    monkeypatch.setattr(loop_thread.loop, "time", lambda: now_s[0], raising=False)
    first = job.status()
    workers.set(0, records_in=5, processed=((TP0, 5),))
    now_s[0] += 2.0

    status = job.status()

    assert (first.rate, first.eta_s) == (None, None)
    assert (status.rate, status.lag, status.eta_s) == (2.5, 10, 4.0)


def test_the_rate_is_measured_by_so_many_statuses_at_most(job, workers):
    for _ in range(process_job.RATE_SAMPLES_MAX + 5):
        job.status()

    assert len(job._samples) == process_job.RATE_SAMPLES_MAX


def catches_up(workers, **changes):
    """After a few statuses worker 0 has changed so; after a few more all is processed."""
    asked = []

    def advance():
        asked.append(1)
        if len(asked) == 3:
            workers.set(0, **changes)
        if len(asked) == 9:
            workers.set(0, reason="", records_in=15, processed=((TP0, 10), (TP1, 5)))

    return advance


def test_a_bar_shows_what_is_done_and_the_line_above_it_what_a_worker_waits_for(
    job, workers, capsys, caplog
):
    workers.on_ask = catches_up(workers, reason="failed 2 times in a row")

    job.wait(timeout_ms=20_000, progress=True)

    shown = capsys.readouterr().err
    assert shown.count("g: worker 0: failed 2 times in a row") == 1
    assert "15 done, lag 0" in shown
    assert "failed 2 times" not in caplog.text


def test_without_a_bar_the_line_is_a_warning(job, workers, capsys, caplog):
    workers.on_ask = catches_up(workers, process_id=99)

    job.wait(timeout_ms=20_000)

    assert "job g: worker processes that were restarted: 1" in caplog.text
    assert capsys.readouterr().err == ""


def test_when_wait_ends_too_early_its_error_says_what_workers_wait_for(job, workers):
    workers.set(1, reason="failed 7 times in a row")

    with pytest.raises(RequestTimedOutError, match="to go; worker 1: failed 7 times in a row"):
        job.wait(timeout_ms=1)


# --- more or fewer workers --------------------------------------------------------------------


def test_new_workers_are_started_like_those_that_run(job, workers, actors):
    workers.answer_for(2)
    workers.answer_for(3)

    status = job.scale(4)

    assert actors.added == [("process:g-0", [2, 3], 4)]
    assert actors.ended == []
    assert [worker.worker_index for worker in status.workers] == [0, 1, 2, 3]


def test_settings_are_taken_from_a_worker_that_answers(job, workers, actors):
    actors.mute.add("process:g-0")
    workers.answer_for(2)

    job.scale(3)

    assert actors.added == [("process:g-1", [2], 3)]
    actors.mute |= {"process:g-1", "process:g-2"}
    with pytest.raises(IllegalStateError, match="no worker of the job 'g' is left"):
        job.scale(4)


def test_workers_too_many_end_and_leave_the_group_and_their_counts_stay(
    fake_cluster, job, workers, actors
):
    workers.set(0, records_in=4, processed=((TP0, 10), (TP1, 5)))
    workers.set(1, records_in=5)
    workers.on_stop = lambda index: workers.set(index, records_in=6)

    def leave(request):
        assert actors.ended == ["process:g-1"]
        return LeaveGroupReply(results=(ErrorCode.NONE,))

    fake_cluster.hooks[LeaveGroupRequest] = leave

    status = job.scale(1)
    assert status.records_in == 4 + 6  # With what it reported at its end.

    assert workers.statuses[1].state is WorkerState.STOPPED
    assert leaves(fake_cluster) == [["g-1"]]
    assert workers.statuses[0].state is WorkerState.RUNNING
    assert [worker.worker_index for worker in status.workers] == [0]
    assert status.lag == 0


def test_another_program_learns_from_the_workers_how_many_there_are(
    fake_cluster, loop_thread, job, workers, actors
):
    other = job_of(fake_cluster, loop_thread, actors)
    assert len(other.status().workers) == 2
    job.scale(1)
    del fake_cluster.actors[worker_actor("g", 1)]
    actors.gone.add(worker_actor("g", 1))

    status = other.status()

    assert [worker.worker_index for worker in status.workers] == [0]
    assert not status.failures


def test_an_index_that_is_used_again_is_no_restart(job, workers, actors):
    workers.set(1, records_in=5)
    job.scale(1)
    workers.set(1, records_in=1, process_id=99, state=WorkerState.RUNNING)

    status = job.scale(2)

    assert (status.records_in, status.restarts) == (6, 0)


@pytest.mark.parametrize("count", [0, 1_001, True, "2"])
def test_a_number_of_workers_out_of_range_is_refused(job, workers, count):
    with pytest.raises(InvalidSettingError, match="workers"):
        job.scale(count)


def test_a_job_that_is_stopped_cannot_be_scaled(job, workers):
    job.stop()
    with pytest.raises(IllegalStateError, match="'g' is stopped"):
        job.scale(2)


# --- the worker -------------------------------------------------------------------------------


class Refusing:
    """``connect`` that never gets anywhere, until the test lets it end."""

    def __init__(self, error=None):
        self.error = error or RequestTimedOutError("nothing answers")
        self.called = threading.Event()

    def __call__(self, producer_settings, consumer_settings):
        self.called.set()
        raise self.error


def test_a_worker_starts_by_itself_answers_at_once_and_stops(fake_cluster):
    connect = Refusing()
    worker = ProcessWorker(config(3), connect, clock=fake_cluster.clock, process_id=42)
    assert connect.called.wait(DEADLINE_S)

    health = worker.health()
    assert (health.process_id, health.is_serving) == (42, False)
    worker.stop(StopWorkerRequest())
    assert worker.join(DEADLINE_S)
    status = worker.status(WorkerStatusRequest())
    assert (status.worker_index, status.process_id) == (3, 42)
    assert status.state is WorkerState.STOPPED


def test_a_fenced_worker_tells_its_host(fake_cluster):
    fenced = threading.Event()
    worker = ProcessWorker(
        config(),
        Refusing(ProducerFencedError()),
        clock=fake_cluster.clock,
        process_id=42,
        on_fenced=fenced.set,
    )

    assert fenced.wait(DEADLINE_S)
    assert worker.status().state is WorkerState.FENCED


def test_a_bug_in_the_loop_is_a_failed_worker_and_not_a_silent_one(fake_cluster):
    worker = ProcessWorker(
        config(), Refusing(ZeroDivisionError("bug")), clock=fake_cluster.clock, process_id=42
    )

    assert worker.join(DEADLINE_S)
    assert worker.status().state is WorkerState.FAILED
    assert "bug" in worker.status().reason
