"""``cluster.process``: a function over topics, in parallel workers, exactly once.

The function sees the records of ``source`` in offset order within each partition. Its output
appears in ``sink`` exactly once, whichever processes die. Both may be a sequence of topics. With a
sequence of sinks the function returns a mapping from sink to output, or for records also a pair
(sink, output) or a list of pairs. With ``sink=None`` it returns ``None``. ``batch_format`` is one
of:

``"arrow"`` (the default, and the faster one)
    ``function(batch: pa.Table) -> pa.Table | pa.RecordBatch | None``. The batch has the columns of
    ``Consumer.poll_arrow``: topic, partition, offset, timestamp, key, value, headers. The result
    has those of ``Producer.send_arrow``: ``value`` and optionally ``key``, ``timestamp``,
    ``headers`` and ``partition`` (of the sink). It may have any number of rows; ``None`` is no
    output. Columns ``topic`` and ``offset`` are ignored. If either is there, ``partition`` is the
    source's and ignored as well.

``"record"``
    ``function(record: ConsumerRecord) -> bytes | tuple | list | None``. Bytes are the value, with
    the key of the input. A tuple is (key, value), each of them bytes or ``None``. A list holds
    several of these; ``None`` is no output. The timestamp of the input is kept.

The function may be ``async def``. With records, a worker then has up to ``max_concurrency`` calls
at a time; their output keeps the order of the input.

A job is identified by its ``group_id`` and outlives the program that started it.
``cluster.jobs()`` and ``cluster.job(group_id)`` find it from any program.

With ``mode="queue"`` any number of workers share the records one by one, as ``cluster.queue`` does:
in no order, or with ``order="key"`` in that of each key. Each round is a transaction of up to
``max_poll_records``; ``commit_interval_ms`` and ``max_worker_deaths`` have no effect.
``consumer_settings`` are those of a queue: with a ``dead_letter_topic`` a record that fails, or
that workers die over, goes there after ``max_delivery_count`` deliveries. Without one it is tried
again, and fails the worker.

After a failure the function may run again for the same input: its *output* counts once, but its
side effects may repeat. It must not depend on state that it keeps between calls.

Workers are static members of the group. A restarted one gets its partitions back at once; until its
session times out nobody else gets them. So a job that ends removes its workers from the group.

One file: the user's side of a job, and the worker that answers its calls.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import structs

from oncelog.actors.interfaces import WORKER_ACTORS, Clock, Transport
from oncelog.actors.protocol.messages.share import DescribeShareGroupRequest
from oncelog.actors.rpc.call_meter import NO_REPORTS, CallReports
from oncelog.api.admin.admin import AsyncAdmin
from oncelog.api.processing.loop import Connect, ProcessLoop
from oncelog.api.processing.messages import (
    ProcessConfig,
    ProcessMode,
    ScaleWorkersRequest,
    StopWorkerRequest,
    WorkerHealth,
    WorkerState,
    WorkerStatus,
    WorkerStatusRequest,
    identity_of,
)
from oncelog.api.processing.queue_loop import ConnectQueue, QueueLoop
from oncelog.api.session.committed_offsets import fetch_committed, list_offsets
from oncelog.api.session.event_loop import LoopThread
from oncelog.api.session.routing import Router
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    GroupIdNotFoundError,
    IllegalStateError,
    OncelogError,
    RequestTimedOutError,
    UnknownMemberIdError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    IsolationLevel,
    TopicPartition,
)
from oncelog.storage.settings import settings_of

if TYPE_CHECKING:
    from rich.progress import Progress

STATUS_TIMEOUT_MS: Final = 2_000
"""How long a status waits for a worker or leader before it uses the last known state."""

WAIT_POLL_S: Final = 0.1
STOP_TIMEOUT_MS: Final = 30_000

LEAVE_TIMEOUT_MS: Final = 5_000
"""How long removing workers from the group may take when a job starts or stops."""

RATE_WINDOW_S: Final = 10.0
"""Over how long the rate of a job is measured."""

RATE_SAMPLES_MAX: Final = 200
"""Statuses that a rate is measured by; if they come too fast, the window is shorter."""

_log = logging.getLogger(__name__)


class ProcessFailedError(UnknownServerError):
    """A worker of the job ended because its function failed; the message says why."""


def worker_actor(group_id: str, worker_index: int) -> str:
    """The name of the actor that runs a worker."""
    return f"{WORKER_ACTORS}{group_id}-{worker_index}"


def jobs_of(actors: Iterable[str]) -> dict[str, list[int]]:
    """The jobs whose workers are among ``actors``: group id → sorted worker indexes."""
    jobs: dict[str, list[int]] = {}
    for name in actors:
        group_id, dash, index = name.removeprefix(WORKER_ACTORS).rpartition("-")
        if name.startswith(WORKER_ACTORS) and dash and index.isdecimal():
            jobs.setdefault(group_id, []).append(int(index))
    return {group_id: sorted(jobs[group_id]) for group_id in sorted(jobs)}


class ProcessWorker:
    """One worker: the loop in a thread, and the calls about it. Runs in an actor.

    The constructor starts the thread, because Ray restarts an actor only by constructing it again.
    No failure in the thread fails the construction. ``on_fenced`` is called in the thread when
    another worker took this one's place. An actor that ends its process there lets Ray decide which
    is the worker, since Ray restarts only the named actor.
    """

    def __init__(
        self,
        config: ProcessConfig,
        connect: Connect | None = None,
        *,
        connect_queue: ConnectQueue | None = None,
        clock: Clock,
        process_id: int,
        on_fenced: Callable[[], None] | None = None,
        reports: CallReports = NO_REPORTS,
    ) -> None:
        self._config = config
        self._stop = threading.Event()
        self._loop: ProcessLoop | QueueLoop
        self._mode: ProcessMode = config.mode
        if self._mode == "queue":
            assert connect_queue is not None
            self._loop = QueueLoop(config, connect_queue, stop=self._stop, reports=reports)
        else:
            assert connect is not None
            self._loop = ProcessLoop(config, connect, clock=clock, stop=self._stop, reports=reports)
        self._process_id = process_id
        self._on_fenced = on_fenced
        self._started_ms = clock.now_ms()
        self._workers = config.workers
        self._scaled_ms = 0
        self._thread = threading.Thread(target=self._run, name=config.identity, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run()
        finally:
            # However the thread ends, ``progress`` says so.
            if self._loop.progress.state is WorkerState.FENCED and self._on_fenced is not None:
                self._on_fenced()

    def status(self, request: WorkerStatusRequest | None = None) -> WorkerStatus:  # noqa: ARG002
        """What the worker has done since its process started."""
        progress = self._loop.progress
        return WorkerStatus(
            worker_index=self._config.worker_index,
            sources=self._config.sources,
            sinks=self._config.sinks,
            process_id=self._process_id,
            started_ms=self._started_ms,
            state=progress.state,
            reason=progress.reason,
            records_in=progress.records_in,
            records_out=progress.records_out,
            commits=progress.commits,
            aborts=progress.aborts,
            function_failures=progress.function_failures,
            skipped=progress.skipped,
            dead_lettered=progress.dead_lettered,
            workers=self._workers,
            scaled_ms=self._scaled_ms,
            processed=tuple(sorted(progress.processed.items())),
            mode=self._mode,
        )

    def stop(self, request: StopWorkerRequest | None = None) -> WorkerStatus:  # noqa: ARG002
        """Commit the open transaction and end. Returns at once; ``status`` shows the end."""
        self._stop.set()
        return self.status()

    def scale(self, request: ScaleWorkersRequest) -> WorkerStatus:
        """Remember how many workers the job has, for the programs that ask."""
        if request.scaled_ms > self._scaled_ms:
            self._workers, self._scaled_ms = request.workers, request.scaled_ms
        return self.status()

    def config(self) -> ProcessConfig:
        """What the worker was started with, to start others like it."""
        return self._config

    def health(self) -> WorkerHealth:
        """Whether the worker is a member of its group and works."""
        progress = self._loop.progress
        return WorkerHealth(
            process_id=self._process_id,
            is_serving=progress.state is WorkerState.RUNNING,
            detail=progress.reason or progress.state.value,
        )

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait up to ``timeout_s`` for the thread to end; return whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job at one moment. ``lag`` counts offsets that are readable and not yet processed.

    The counters are sums of what the workers reported. They lack what a killed process did after
    its last report, which is in the log even so. ``restarts`` counts the worker processes seen,
    beyond the first of each worker. ``skipped`` and ``dead_lettered`` count the records that were
    left out; ``records_in`` has them too.

    ``rate`` is how many records a second were processed since an earlier status of the same
    ``ProcessJob``, at most ``RATE_WINDOW_S`` ago; ``None`` at the first. ``eta_s`` is how long the
    lag takes at that rate; ``None`` if it is unknown or nothing moves.
    """

    records_in: int
    records_out: int
    lag: int
    commits: int
    aborts: int
    restarts: int
    function_failures: int
    skipped: int
    dead_lettered: int
    rate: float | None
    eta_s: float | None
    workers: tuple[WorkerStatus, ...]

    @property
    def is_ended(self) -> bool:
        """Whether every worker has ended."""
        return all(worker.state.is_ended for worker in self.workers)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Why workers do not work though they have not ended, one line each."""
        return tuple(
            f"worker {worker.worker_index}: {worker.reason}"
            for worker in self.workers
            if worker.reason and not worker.state.is_ended
        )

    @property
    def failures(self) -> tuple[str, ...]:
        """Why workers have failed, one line each."""
        return tuple(
            f"worker {worker.worker_index}: {worker.reason}"
            for worker in self.workers
            if worker.state is WorkerState.FAILED
        )


_Asked = WorkerStatusRequest | StopWorkerRequest | ScaleWorkersRequest

_COUNTERS: Final = (
    "records_in",
    "records_out",
    "commits",
    "aborts",
    "function_failures",
    "skipped",
    "dead_lettered",
)


class _WorkerHistory:
    """What one worker has reported, over all its processes."""

    def __init__(self, worker_index: int) -> None:
        self.index: Final = worker_index
        self.latest = WorkerStatus(worker_index=worker_index)
        self.restarts = 0
        self._before = dict.fromkeys(_COUNTERS, 0)

    def record(self, reply: WorkerStatus) -> None:
        """Take in an answer; one that carries an error only says why there is none."""
        if reply.error is not ErrorCode.NONE and reply.state.is_ended:
            self.latest = structs.replace(self.latest, state=reply.state, reason=reply.reason)
            return
        if reply.error is not ErrorCode.NONE:
            self.latest = structs.replace(
                self.latest,
                error=reply.error,
                detail=reply.detail,
                state=WorkerState.STARTING,
                reason=reply.reason,
            )
            return
        if self._is_other_process(reply):
            self._before = {name: self.total(name) for name in _COUNTERS}
            self.restarts += 1
        self.latest = reply

    def _is_other_process(self, reply: WorkerStatus) -> bool:
        before = (self.latest.process_id, self.latest.started_ms)
        return before != (-1, -1) and before != (reply.process_id, reply.started_ms)

    def begin(self) -> None:
        """Record that the worker is a new one; an earlier one of its index was removed."""
        self._before = {name: self.total(name) for name in _COUNTERS}
        self.latest = WorkerStatus(worker_index=self.index)

    def total(self, name: str) -> int:
        """A counter, summed over all processes."""
        return self._before[name] + int(getattr(self.latest, name))


class WorkerActors(Protocol):
    """The actors of the workers of jobs, by actor name."""

    def handle(self, name: str) -> Any:
        """An actor's handle; ``ValueError`` if it does not exist."""
        ...

    def waits_for(self, name: str) -> str:
        """Why an actor has no node yet, in a line, or ""; ``ValueError`` if it does not exist."""
        ...

    def end(self, names: Sequence[str]) -> None:
        """Remove actors for good; a name of none is ignored."""
        ...

    def add(self, model: str, worker_indexes: Sequence[int], workers: int) -> None:
        """Start workers like the one of actor ``model``; leave those that exist."""
        ...


class ProcessJob:
    """A handle of a job, made by ``cluster.process``, ``job`` and ``jobs``.

    ``worker_indexes`` are those of its workers. ``sources`` and ``sinks`` may be empty until a
    worker has reported.
    """

    def __init__(
        self,
        *,
        group_id: str,
        worker_indexes: Sequence[int],
        router: Router,
        transport: Transport,
        loop_thread: LoopThread,
        random: Random,
        actors: WorkerActors,
        sources: tuple[str, ...] = (),
        sinks: tuple[str, ...] = (),
    ) -> None:
        self.group_id = group_id
        self.sources = sources
        self.sinks = sinks
        self._current = sorted(worker_indexes)
        self._histories = {index: _WorkerHistory(index) for index in self._current}
        """Of each index that the job has had, at most ``WORKERS_MAX``."""
        self._scaled_ms = 0
        self._ending: set[int] = set()
        self._router = router
        self._transport = transport
        self._loop_thread = loop_thread
        self._random = random
        self._actors = actors
        self._is_released = False
        self._ends: dict[TopicPartition, int] = {}
        self._processed: dict[TopicPartition, int] = {}
        self._is_queue = False
        """Whether a worker has said so."""
        self._backlog: int | None = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=RATE_SAMPLES_MAX)
        """When records were counted, in s, and how many."""

    def worker(self, worker_index: int) -> Any:
        """The Ray actor handle of one worker."""
        return self._actors.handle(worker_actor(self.group_id, worker_index))

    def status(self) -> JobStatus:
        """Call every worker and every leader of the source; takes a few seconds at most.

        A worker that is restarting is reported as last seen.
        """
        return self._loop_thread.run(self._status())

    def wait(
        self,
        *,
        until_caught_up: bool = True,
        timeout_ms: int | None = None,
        progress: bool | None = None,
    ) -> JobStatus:
        """Wait until all that is readable in the source is processed and committed.

        With ``until_caught_up=False`` wait until every worker has ended. With ``progress`` show a
        bar on stderr; ``None``: if that is a terminal. When a worker begins to wait, restarts or
        fails, a line says so: above the bar, or else as a warning in the log.

        ``ProcessFailedError`` if a worker has failed, or all have ended before.
        ``RequestTimedOutError`` after ``timeout_ms``; the job keeps running.
        """
        has_bar = sys.stderr.isatty() if progress is None else progress
        with _Display(self.group_id, has_bar=has_bar) as display:
            return self._loop_thread.run(self._wait(until_caught_up, timeout_ms, display))

    def stop(self, timeout_ms: int = STOP_TIMEOUT_MS) -> JobStatus:
        """Let every worker commit its open transaction and end, then remove the worker actors.

        The group keeps its offsets: a job with the same ``group_id`` continues from there.
        Workers that do not end within ``timeout_ms`` are killed and their open transactions
        aborted. All workers leave the group, so that a job of fewer workers gets all partitions at
        once. Safe to repeat.
        """
        if self._is_released:
            return self._summary()
        ended = list(self._current)
        status = self._loop_thread.run(self._stop(ended, timeout_ms))
        self._is_released = True
        self._remove(ended)
        return status

    def scale(self, workers: int, timeout_ms: int = STOP_TIMEOUT_MS) -> JobStatus:
        """Let the job have this many workers, while it runs; nothing is lost or doubled.

        New ones start with the job's settings, whichever program started it. Those too many commit,
        end and leave the group, so that the others get their partitions at once; after
        ``timeout_ms`` they are killed and their open transactions aborted. Returns once they are
        gone; new ones may still be starting.

        ``InvalidSettingError`` for a number out of range. ``IllegalStateError`` if the job is
        stopped, or has no worker left whose settings could be taken.
        """
        settings_of(ProcessConfig)["workers"].take(workers)
        if self._is_released:
            raise IllegalStateError(
                f"the job {self.group_id!r} is stopped", advice="start it again with process()"
            )
        self._loop_thread.run(self._status())
        added = [index for index in range(workers) if index not in self._current]
        if added:
            self._add(added, workers)
        surplus = [index for index in self._current if index >= workers]
        self._loop_thread.run(self._announce(workers))
        if surplus:
            self._loop_thread.run(self._stop(surplus, timeout_ms))
            self._remove(surplus)
        return self.status()

    def _add(self, added: Sequence[int], workers: int) -> None:
        for index in self._current:
            try:
                self._actors.add(worker_actor(self.group_id, index), added, workers)
            except ValueError:
                continue
            return
        raise IllegalStateError(
            f"no worker of the job {self.group_id!r} is left to take the settings from",
            advice="start it again with process()",
        )

    def _remove(self, ended: Sequence[int]) -> None:
        """Remove workers that have ended, then their places in the group."""
        self._actors.end([worker_actor(self.group_id, index) for index in ended])
        # Not earlier: a worker that still runs would rejoin.
        self._loop_thread.run(self._leave_group(ended))

    # --- on the loop --------------------------------------------------------------------------

    async def _status(self) -> JobStatus:
        for reply in await self._ask_all(self._current, WorkerStatusRequest()):
            self.sources = self.sources or reply.sources
            self.sinks = self.sinks or reply.sinks
            self._is_queue = self._is_queue or reply.mode == "queue"
            for topic_partition, offset in reply.processed:
                known = self._processed.get(topic_partition, offset)
                self._processed[topic_partition] = max(known, offset)
        if self._is_queue:
            await self._find_backlog()
        elif self.sources:
            await self._find_ends()
            await self._find_missing_positions()
            await self._pass_over_deleted()
        self._note_rate()
        return self._summary()

    def _note_rate(self) -> None:
        now_s = asyncio.get_running_loop().time()
        records_in = sum(one.total("records_in") for one in self._histories.values())
        self._samples.append((now_s, records_in))
        while len(self._samples) > 2 and self._samples[0][0] < now_s - RATE_WINDOW_S:
            self._samples.popleft()

    def _rate(self) -> float | None:
        if len(self._samples) < 2:
            return None
        (began_s, before), (now_s, after) = self._samples[0], self._samples[-1]
        return (after - before) / (now_s - began_s) if now_s > began_s else None

    async def _ask_all(self, indexes: Sequence[int], request: _Asked) -> list[WorkerStatus]:
        """Call workers and record what they reply; take in how many the job has by now."""
        replies = await asyncio.gather(*(self._ask(index, request) for index in indexes))
        for index, reply in zip(indexes, replies, strict=True):
            self._histories[index].record(reply)
        latest = max(replies, key=lambda reply: reply.scaled_ms, default=WorkerStatus())
        self._adopt(latest.workers, latest.scaled_ms)
        return replies

    def _adopt(self, workers: int, scaled_ms: int) -> None:
        """Have this many workers, if nothing later is known."""
        if scaled_ms <= self._scaled_ms:
            return
        self._scaled_ms = scaled_ms
        for index in set(range(workers)).difference(self._current):
            self._histories.setdefault(index, _WorkerHistory(index)).begin()
        self._current = list(range(workers))

    async def _announce(self, workers: int) -> None:
        """Tell the workers that stay how many there are: other programs learn it from them."""
        scaled_ms = max(self._scaled_ms + 1, self._router.clock.now_ms())
        request = ScaleWorkersRequest(workers=workers, scaled_ms=scaled_ms)
        self._adopt(workers, scaled_ms)
        await self._ask_all(self._current, request)

    async def _ask(self, index: int, request: _Asked) -> WorkerStatus:
        actor = worker_actor(self.group_id, index)
        reply = await self._transport.call(actor, request, timeout_ms=STATUS_TIMEOUT_MS)
        if reply.error is ErrorCode.NONE:
            return reply
        try:
            waits_for = await asyncio.to_thread(self._actors.waits_for, actor)
        except ValueError:
            # Ray restarts a worker without limit, so it was killed on purpose, or can never start.
            return structs.replace(
                reply,
                state=WorkerState.STOPPED if index in self._ending else WorkerState.FAILED,
                reason=f"there is no actor {actor!r} any more; was the job stopped?",
            )
        return structs.replace(reply, reason=waits_for)

    async def _find_ends(self) -> None:
        """The readable end of each source partition; unreachable ones keep the last known end."""
        try:
            topics = await self._router.metadata(self.sources)
        except OncelogError:
            return
        if missing := [name for name in self.sources if topics.get(name) is None]:
            raise UnknownTopicOrPartitionError(f"the source topic {missing[0]!r} does not exist")
        partitions = [
            TopicPartition(name, item.partition)
            for name in self.sources
            for item in topics[name].partitions
        ]
        found = await asyncio.gather(
            *(self._bound(topic_partition, LATEST_TIMESTAMP) for topic_partition in partitions)
        )
        for topic_partition, end in zip(partitions, found, strict=True):
            self._ends[topic_partition] = end if end >= 0 else self._ends.get(topic_partition, -1)

    async def _find_backlog(self) -> None:
        """What of the queue is not finished; unknown while its coordinator does not reply."""
        reply = await self._router.call_group_coordinator(
            self.group_id,
            DescribeShareGroupRequest(group_id=self.group_id),
            timeout_ms=STATUS_TIMEOUT_MS,
        )
        is_known = reply.error is ErrorCode.NONE and reply.partitions
        self._backlog = (
            sum(
                one.available_count + one.acquired_count + one.pending_count
                for one in reply.partitions
            )
            if is_known
            else None
        )

    async def _bound(self, topic_partition: TopicPartition, timestamp: int) -> int:
        """A partition's readable end or its start; -1 if its leader does not reply in time."""
        try:
            replies = await list_offsets(
                self._router,
                {topic_partition: timestamp},
                isolation_level=IsolationLevel.READ_COMMITTED,
                random=self._random,
                timeout_ms=STATUS_TIMEOUT_MS,
            )
        except OncelogError:
            return -1
        return replies[topic_partition].offset

    async def _find_missing_positions(self) -> None:
        """For partitions no worker has reported: the committed offset, or the log start."""
        missing = [tp for tp in self._ends if tp not in self._processed]
        if not missing:
            return
        try:
            committed = await fetch_committed(
                self._router,
                self.group_id,
                missing,
                random=self._random,
                timeout_ms=STATUS_TIMEOUT_MS,
            )
        except OncelogError:
            return
        for topic_partition in missing:
            if topic_partition in committed:
                self._processed[topic_partition] = committed[topic_partition].offset
            else:
                start = await self._bound(topic_partition, EARLIEST_TIMESTAMP)
                if start >= 0:
                    self._processed[topic_partition] = start

    async def _pass_over_deleted(self) -> None:
        """Do not count offsets below the log start as lag: their records were deleted."""
        behind = [tp for tp, end in self._ends.items() if end > self._processed.get(tp, end)]
        starts = await asyncio.gather(*(self._bound(tp, EARLIEST_TIMESTAMP) for tp in behind))
        for topic_partition, start in zip(behind, starts, strict=True):
            self._processed[topic_partition] = max(self._processed[topic_partition], start)

    def _lag(self) -> int:
        """Offsets left; an unknown number counts as one, so that waiting continues."""
        if self._is_queue:
            return 1 if self._backlog is None else self._backlog
        if not self._ends:
            return 1
        return sum(
            max(0, end - self._processed[tp]) if end >= 0 and tp in self._processed else 1
            for tp, end in self._ends.items()
        )

    def _summary(self) -> JobStatus:
        histories = self._histories.values()
        lag, rate = self._lag(), self._rate()
        counts = {name: sum(one.total(name) for one in histories) for name in _COUNTERS}
        return JobStatus(
            **counts,
            lag=lag,
            rate=rate,
            eta_s=0.0 if lag == 0 else lag / rate if rate else None,
            restarts=sum(history.restarts for history in histories),
            workers=tuple(self._histories[index].latest for index in self._current),
        )

    async def _wait(
        self, until_caught_up: bool, timeout_ms: int | None, display: _Display
    ) -> JobStatus:
        loop = asyncio.get_running_loop()
        deadline = None if timeout_ms is None else loop.time() + timeout_ms / 1_000
        while True:
            status = await self._status()
            display.show(status)
            if until_caught_up and status.lag == 0:
                return status
            if status.failures:
                raise ProcessFailedError("; ".join(status.failures))
            if status.is_ended:
                if not until_caught_up:
                    return status
                reasons = "; ".join(
                    worker.reason or worker.state.value for worker in status.workers
                )
                raise ProcessFailedError(f"every worker has ended, {status.lag} to go: {reasons}")
            if deadline is not None and loop.time() >= deadline:
                if until_caught_up:
                    raise RequestTimedOutError(
                        f"the job has not caught up within timeout_ms={timeout_ms}: {status.lag} "
                        f"offsets to go{''.join('; ' + line for line in status.waiting)}",
                        advice="it keeps running, call wait() again",
                    )
                raise RequestTimedOutError(
                    f"workers still run after timeout_ms={timeout_ms}", advice="call stop()"
                )
            await asyncio.sleep(WAIT_POLL_S)

    async def _stop(self, indexes: Sequence[int], timeout_ms: int) -> JobStatus:
        """Let workers commit and end; return when they have, or after ``timeout_ms``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1_000
        self._ending.update(indexes)
        try:
            while True:
                # Sent again each time: a worker that has just restarted has not received it.
                replies = await self._ask_all(indexes, StopWorkerRequest())
                if all(reply.state.is_ended for reply in replies) or loop.time() >= deadline:
                    return await self._status()
                await asyncio.sleep(WAIT_POLL_S)
        finally:
            self._ending.difference_update(indexes)

    async def _leave_group(self, indexes: Sequence[int]) -> None:
        admin = AsyncAdmin(self._router, random=self._random, timeout_ms=LEAVE_TIMEOUT_MS)
        await remove_workers(admin, self.group_id, indexes)


class _Display:
    """What ``wait`` shows of a job: news in lines, and a bar on stderr if wanted."""

    def __init__(self, group_id: str, *, has_bar: bool) -> None:
        self._group_id = group_id
        self._waiting: set[int] = set()
        self._restarts = self._records_before = -1
        self._bar: Progress | None = None
        if not has_bar:
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(group_id, total=None, facts="")

    def __enter__(self) -> _Display:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, status: JobStatus) -> None:
        """Show a later status."""
        if self._records_before < 0:
            self._records_before, self._restarts = status.records_in, status.restarts
        if status.restarts > self._restarts:
            self._say(f"worker processes that were restarted: {status.restarts - self._restarts}")
            self._restarts = status.restarts
        waiting = {
            worker.worker_index: worker.reason
            for worker in status.workers
            if worker.reason and not worker.state.is_ended
        }
        for index in waiting.keys() - self._waiting:
            self._say(f"worker {index}: {waiting[index]}")
        self._waiting = set(waiting)
        for line in status.failures:
            self._say(f"failed: {line}")
        if self._bar is not None:
            done = status.records_in - self._records_before
            facts = f"{done:,} done, lag {status.lag:,}"
            facts += "" if status.rate is None else f", {status.rate:,.0f} records/s"
            facts += "" if not status.eta_s else f", about {status.eta_s:,.0f} s left"
            self._bar.update(self._task, completed=done, total=done + status.lag, facts=facts)

    def _say(self, line: str) -> None:
        if self._bar is None:
            _log.warning(
                "job %s: %s — see `oncelog jobs describe %s`",
                *(self._group_id, line, self._group_id),
            )
        else:
            self._bar.console.print(f"{self._group_id}: {line}", markup=False, highlight=False)


# --- workers in the group -------------------------------------------------------------------------


async def remove_former_workers(admin: AsyncAdmin, group_id: str, *, worker_count: int) -> None:
    """Remove members of earlier jobs that a job with ``worker_count`` workers does not have.

    Those jobs were killed, or ended with their cluster.
    """
    try:
        group = await admin.describe_group(group_id)
    except GroupIdNotFoundError:
        return
    except OncelogError as error:
        _log.warning(
            "job %s: the workers it had before are unknown: %s — nothing to do: partitions of "
            "those that are gone wait for the end of their sessions",
            *(group_id, error),
        )
        return
    prefix = identity_of(group_id, 0).removesuffix("0")
    names = (member.group_instance_id or "" for member in group.members)
    numbers = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    former = [int(number) for number in numbers if number.isdecimal()]
    await remove_workers(admin, group_id, [index for index in former if index >= worker_count])


async def remove_workers(admin: AsyncAdmin, group_id: str, worker_indexes: Iterable[int]) -> None:
    """Remove these workers from the group, if they are members."""
    places = [identity_of(group_id, index) for index in worker_indexes]
    try:
        await admin.remove_members_from_group(group_id, group_instance_ids=places)
    except UnknownMemberIdError as error:
        _log.debug("job %s: %s", group_id, error)
    except OncelogError as error:
        _log.warning(
            "job %s: %s stay in the group until their sessions end: %s — `oncelog groups "
            "remove-members` removes them now",
            *(group_id, ", ".join(places), error),
        )
