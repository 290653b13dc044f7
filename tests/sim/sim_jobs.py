"""Drivers of distributed writes and their tasks: what Spark does around the steps of a write.

A driver writes one thing after another, in as many runs as it takes. Each run has partitions,
and each of these one or more task attempts, which are separate processes: one that fails or is
killed is followed by another, and sometimes a second one runs beside it. The report of the
first one counts; the others have lost, and may keep writing after the end. Sometimes a driver takes
its own run for dead and begins a newer one beside it, or dies and leaves it open.

A driver may also run a query: its batches are written one after another, each again until its
driver knows that it is committed. A process that commits or aborts one knows only what its tasks
have told. Several drivers run the same query, as two do on one checkpoint.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from sim_history import Outcome, Write
from sim_process import Client
from sim_stage import Life, Player, Stage
from sim_writes import RowsFailedError, hook, owner_in, write_rows

from oncelog.actors.protocol.messages.transaction import Winner
from oncelog.actors.protocol.transaction.commit_versions import version_token
from oncelog.api.distributing.write import Connect, DistributedWrite
from oncelog.api.producing.member import RunEnd
from oncelog.spark_bridge.micro_batch_write import MicroBatch, MicroBatchReport, MicroBatchWrite
from oncelog.spark_bridge.write_options import parse_write_options
from oncelog.storage.exceptions import OncelogError

HOUR_MS = 3_600_000
LONG_TIMEOUT_MS = 900_000
"""Longer than the world waits for its quiet: what its driver has left must be seen as that."""

SHARED = "shared"
"""The application whose versions all drivers write."""

QUERY = "query"
"""The query that several drivers run, on one checkpoint."""

SHARED_ID = f"spark-{SHARED}"
"""The transactional id that its runs write under."""

LAST_DRIVER_WAITS_MS = 10_000
"""More than a deposed leader's start takes, or its way out of the ISR: until then nothing commits.
Leaders go back to their preferred brokers after the quiet, too."""

DRIVER_DEATHS = 0.15
"""How often a driver dies within one of its runs, or soon after."""

TASK_WAIT_S = 4.0
"""How long a driver waits for its tasks."""

ATTEMPTS_MAX = 4
"""How often one partition of a run is tried, as by Spark."""

SECOND_ATTEMPTS = 0.15
"""How often a partition has two attempts from the beginning."""


Told = Winner | MicroBatchReport | None
"""What a task tells its driver."""


@dataclass(slots=True)
class Attempt:
    """One task attempt: what it wrote, and what it told its driver, if it did."""

    client: Client
    part: Write
    has_reported: bool = False
    told: Told = None

    @property
    def has_failed(self) -> bool:
        """Whether its process is gone, and nothing was told."""
        return self.client.is_dead and not self.has_reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One thing that is to be written, and how it is called by whoever reads the history."""

    options: dict[str, str]
    app: str = ""
    version: int = 0

    @property
    def token(self) -> bytes:
        """What names the version, which is to be written once; nothing without a version."""
        return version_token(self.app, self.version) if self.app else b""

    @property
    def batch(self) -> MicroBatch | None:
        """Which batch of the query it is, if it is one."""
        is_batch = self.app == QUERY
        return MicroBatch(query_id=QUERY, batch_id=self.version) if is_batch else None


@dataclass(slots=True)
class RunPlan:
    """One run: what is sent to its tasks, and the attempts of each partition."""

    name: str
    job: Job
    transactional_id: str
    pickled: bytes
    partitions: list[list[Attempt]] = field(default_factory=list)

    @property
    def write(self) -> DistributedWrite:
        """The write of a job that is no batch of a query, as whoever gets it unpickles it."""
        write: DistributedWrite = pickle.loads(self.pickled)
        return write

    @property
    def reported(self) -> list[Attempt]:
        """The attempts that count: of each partition the first that has reported."""
        found = (
            next((attempt for attempt in attempts if attempt.has_reported), None)
            for attempts in self.partitions
        )
        return [attempt for attempt in found if attempt is not None]

    @property
    def is_known_committed(self) -> bool:
        """Whether there was nothing to write any more when it began."""
        if self.job.batch is None:
            return self.write.membership.is_committed
        reports = [attempt.told for attempt in self.reported]
        return any(
            isinstance(report, MicroBatchReport) and report.membership.is_committed
            for report in reports
        )

    @property
    def is_complete(self) -> bool:
        """Whether each partition has its report."""
        return len(self.reported) == len(self.partitions)


def planner(name: str) -> Life:
    """Has one thing after another written, each until it is committed, known or not.

    Some are versions of an application of its own, some of one that all drivers write, some have
    an id, and some have no identity: a run of these that its driver leaves is nobody's. The clocks
    of drivers are off by an hour, ahead or behind.
    """

    return _driver(lambda player, chance: _next_job(player, name, chance))


def querier() -> Life:
    """Runs the query that others run too: the next batch, or the last one once more."""

    def next_batch(player: Player, chance: Random) -> Job:
        next_id = player.stage.next_versions.setdefault(QUERY, 1)
        options = {"transaction.timeout.ms": str(LONG_TIMEOUT_MS)}
        return _version(QUERY, max(next_id - chance.choice((0, 0, 0, 1)), 1), options)

    return _driver(next_batch)


def _driver(next_job: Callable[[Player, Random], Job]) -> Life:
    async def life(player: Player) -> None:
        world = player.stage.world
        # Of its own: whatever else is drawn stays as it is.
        chance = Random(f"driver {world.seed} {player.client!r}")
        # Not by a jump: no record has this clock, so nothing need wait for it when all are set.
        world.clock_offsets_ms[player.client.name] = chance.choice((-HOUR_MS, 0, HOUR_MS))
        while player.is_on:
            job = next_job(player, chance)
            for _ in range(player.random.randint(1, 3) if job.app else 1):
                if not player.is_on:
                    break
                if chance.random() < DRIVER_DEATHS:
                    _die_soon(player, chance)
                is_committed = await _run(player, job)
                if is_committed and job.app:
                    known = player.stage.next_versions
                    known[job.app] = max(known.get(job.app, 1), job.version + 1)
                # A driver that died after its commit comes back with the same version.
                if is_committed and player.random.random() < 0.7:
                    break
            await player.pause(500)

    return life


def _next_job(player: Player, name: str, chance: Random) -> Job:
    stage = player.stage
    short_ms = max(stage.plan.transaction_timeout_ms, 2_000)
    options = {"transaction.timeout.ms": str(chance.choice((short_ms, LONG_TIMEOUT_MS)))}
    if chance.random() < 0.3:
        options["topic"] = chance.choice(stage.targets()).topic
    kind = chance.choice(("own", "own", "shared", "id", "free"))
    if kind == "free":
        return Job(options=options)
    if kind == "id":
        stage.job_ids.add(name)
        return Job(options=options | {"transactional.id": name})
    app = SHARED if kind == "shared" else name
    version = stage.next_versions.setdefault(app, 1)
    if app == SHARED:
        # Now and then a driver that was rolled back.
        version = max(version - chance.choice((0, 0, 0, 1, 2)), 1)
    return _version(app, version, options)


def _version(app: str, version: int, options: dict[str, str]) -> Job:
    if app != QUERY:
        options = options | {"txnAppId": app, "txnVersion": str(version)}
    return Job(options=options, app=app, version=version)


def _die_soon(player: Player, chance: Random) -> None:
    world = player.stage.world
    context = world.driver.context
    world.loop.call_later(chance.uniform(0.0, 2.0), world.kill, player.client.name, context=context)


async def _run(player: Player, job: Job) -> bool:
    """One run; whether its version is known to be committed."""
    try:
        plan = await _planned(player, job)
    except OncelogError as error:
        player.stage.world.note(f"a run did not begin: {error!r}")
        return False
    await _run_tasks(player, plan)
    if plan.is_known_committed:
        player.stage.counts["writes skipped"] += 1
    if player.random.random() < 0.15:
        # Taken for dead: a newer run begins, and this one ends beside it when it likes.
        player.client.spawn(_end_late(player, plan))
        return False
    return await _end(player, plan)


async def _end_late(player: Player, plan: RunPlan) -> None:
    await player.pause(2_000)
    await _end(player, plan)


async def _planned(player: Player, job: Job) -> RunPlan:
    name = f"run {player.new_owner()}"
    options = parse_write_options(job.options | _prefix(player, job))
    kind = DistributedWrite if job.batch is None else MicroBatchWrite
    pickled = await hook(player, lambda connect: pickle.dumps(kind.plan(connect, options)))
    write = pickle.loads(pickled)
    if isinstance(write, DistributedWrite):
        return RunPlan(name, job, write.membership.transactional_id, pickled)
    return RunPlan(name, job, f"spark-{job.app}", pickled)


def _prefix(player: Player, job: Job) -> dict[str, str]:
    """A version's ``transactional.id``, which its driver changes as it likes, or leaves out."""
    # Of its own, as that of drivers.
    chance = Random(f"prefix {player.stage.world.seed} {player.stage.world.now_s}")
    prefix = chance.choice((None, "load", "copy"))
    return {} if prefix is None or not job.app else {"transactional.id": prefix}


class _LastDriver(Player):
    """Hasty in each call, and patient: a leader that was deposed is in sync while it starts."""

    def producer_settings(self) -> dict[str, object]:
        """See ``Player``."""
        patient = dict.fromkeys(("delivery_timeout_ms", "max_block_ms"), LAST_DRIVER_WAITS_MS)
        return super().producer_settings() | patient


async def last_writes(stage: Stage, client: Client) -> None:
    """After the quiet, under a clock that is behind: every id can be written under at once."""
    stage.world.clock_offsets_ms[client.name] = -HOUR_MS
    player = _LastDriver(stage, client, Random(f"last writes {stage.world.seed}"))
    jobs = [Job(options={"transactional.id": name}) for name in sorted(stage.job_ids)]
    for app, version in sorted(stage.next_versions.items()):
        jobs.append(_version(app, version + 1, {}))
    for job in jobs:
        try:
            await _write_once(player, job)
        except OncelogError as error:
            stage.history.shut_out.append(f"{job.options}: {error!r}")


async def _write_once(player: Player, job: Job) -> None:
    """A run with nothing in its way."""
    plan = await _planned(player, job)
    attempt = _new_attempt(player, plan, player.client)
    plan.partitions.append([attempt])
    await _report(player, plan, attempt, is_sound=True)
    write = _merged(player, plan)
    player.history.start_commit(write)
    end = await hook(player, _committing(plan))
    player.ended(write, Outcome.OK, is_visible=end.visible)


# --- tasks ------------------------------------------------------------------------------------


async def _run_tasks(player: Player, plan: RunPlan) -> None:
    """Spark's part: attempts of each partition, until each has a report, or for long enough."""
    world, chance = player.stage.world, player.random
    plan.partitions += ([] for _ in range(chance.randint(1, 2)))
    for number in range(len(plan.partitions)):
        for _ in range(2 if chance.random() < SECOND_ATTEMPTS else 1):
            _start_attempt(player, plan, number)
    wait_until_s = world.now_s + chance.uniform(0.2, TASK_WAIT_S)
    while world.now_s < wait_until_s and not plan.is_complete:
        for number, attempts in enumerate(plan.partitions):
            has_failed = all(attempt.has_failed for attempt in attempts)
            if has_failed and len(attempts) < ATTEMPTS_MAX:
                _start_attempt(player, plan, number)
        await asyncio.sleep(0.1)


def _start_attempt(player: Player, plan: RunPlan, number: int) -> None:
    stage = player.stage
    attempts = plan.partitions[number]
    client = stage.world.client(f"{plan.name} task {number}.{len(attempts)}")
    attempt = _new_attempt(player, plan, client)
    attempts.append(attempt)
    client.spawn(_attempt(Player(stage, client, player.random), plan, attempt))
    if player.random.random() < 0.1:
        kill_after_s = player.random.uniform(0.0, 1.0)
        context = stage.world.driver.context
        stage.world.loop.call_later(kill_after_s, stage.world.kill, client.name, context=context)


def _new_attempt(player: Player, plan: RunPlan, client: Client) -> Attempt:
    return Attempt(client, player.history.begin(plan.name, plan.transactional_id))


async def _attempt(task: Player, plan: RunPlan, attempt: Attempt) -> None:
    world = task.stage.world
    try:
        await _report(task, plan, attempt)
    except (OncelogError, RowsFailedError) as error:
        world.note(f"a task failed: {error!r}")
    except Exception as error:
        world.fail(error, f"{task.client.name} met what no client should meet")
    # A process that is not used any more is gone.
    world.driver.soon(world.end_process, task.client, "is done")


async def _report(task: Player, plan: RunPlan, attempt: Attempt, *, is_sound: bool = False) -> None:
    attempt.told = await write_rows(
        task, plan.pickled, attempt.part, plan.job.batch, is_sound=is_sound
    )
    attempt.has_reported = True


# --- the end ----------------------------------------------------------------------------------


async def _end(player: Player, plan: RunPlan) -> bool:
    """End a run, and sometimes again; whether its version is known to be committed.

    As Spark does: with a report of each partition it commits, and aborts if that fails.
    """
    if plan.is_complete and player.random.random() >= player.stage.plan.abort_ratio:
        write = _merged(player, plan)
        outcome, end = await _commit(player, plan, write)
    else:
        write = player.history.begin(plan.name, plan.transactional_id)
        await hook(player, _aborting(plan))
        outcome, end = Outcome.FAIL, None
    player.ended(write, outcome, is_visible=end is not None and end.visible)
    if player.random.random() < 0.3:
        await _end_again(player, plan, may_commit=write.commit_started_at is not None)
    return outcome is Outcome.OK or (end is not None and end.was_committed_before)


def _merged(player: Player, plan: RunPlan) -> Write:
    """What is to become visible: the records of the attempts that count."""
    (told, *_) = (attempt.told for attempt in plan.reported)
    owner = plan.name
    if isinstance(told, MicroBatchReport):
        owner = owner_in(plan.name, told.membership)
    write = player.history.begin(owner, plan.transactional_id, token=plan.job.token)
    for attempt in plan.reported:
        player.history.merge(attempt.part, write)
    return write


async def _commit(player: Player, plan: RunPlan, write: Write) -> tuple[Outcome, RunEnd | None]:
    player.history.start_commit(write)
    try:
        end = await hook(player, _committing(plan))
    except OncelogError as error:
        player.stage.world.note(f"a commit failed: {error!r}")
        await hook(player, _aborting(plan))
        return Outcome.UNKNOWN, None
    if not end.was_committed_before:
        player.stage.counts["commits of drivers"] += 1
    # The version may have been committed by another run: then this one is not known to be.
    return (Outcome.UNKNOWN if end.was_committed_before else Outcome.OK), end


def _committing(plan: RunPlan) -> Callable[[Connect], RunEnd]:
    """The commit, with the reports that there are by now."""
    reports: Any = [attempt.told for attempt in plan.reported]
    if plan.job.batch is None:
        return lambda connect: plan.write.commit(connect, reports)
    return lambda connect: _anew(plan, connect).commit(connect, reports)


def _aborting(plan: RunPlan) -> Callable[[Connect], object]:
    """The abort, with the reports that there are by now."""
    reports: Any = [attempt.told for attempt in plan.reported]
    if plan.job.batch is None:
        return plan.write.abort
    return lambda connect: _anew(plan, connect).abort(connect, reports)


def _anew(plan: RunPlan, connect: Connect) -> MicroBatchWrite:
    """What Spark makes for the end of a batch: it has the options alone."""
    return MicroBatchWrite.plan(connect, parse_write_options(plan.job.options))


async def _end_again(player: Player, plan: RunPlan, *, may_commit: bool) -> None:
    """The same commit again, or an abort after the end: neither changes anything."""
    await player.pause(1_000)
    if not may_commit or player.random.random() < 0.5:
        await hook(player, _aborting(plan))
        return
    try:
        await hook(player, _committing(plan))
    except OncelogError as error:
        player.stage.world.note(f"the end was refused this time: {error!r}")
