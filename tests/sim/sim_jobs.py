"""Distributed writes as a planner and its tasks make them: runs, winners, losers, repeated ends.

A planner writes one thing, named by a token, in as many runs as it takes. Each run has task
attempts, which are processes of their own. Some lose: they are late, killed or surplus, and write
on after the end. Now and then a planner takes its own run for dead and begins a newer one beside
it, or dies and leaves it open.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from random import Random

from sim_history import Claim, Outcome, SentRecord, Write
from sim_process import Client
from sim_stage import CALLS_AGAIN_MAX, Life, Player, Stage

from oncelog.actors.protocol.commit_versions import version_token
from oncelog.actors.protocol.messages import Winner
from oncelog.api.member import AsyncTransactionMember, Membership, RunEnd
from oncelog.storage.exceptions import OncelogError

HOUR_MS = 3_600_000
LONG_TIMEOUT_MS = 900_000
"""Longer than the world waits for its quiet: what its driver has left must be seen as that."""

VERSIONED = "versions"
"""The application whose versions all planners write."""

DRIVER_DEATHS = 0.15
"""How often a driver dies within one of its runs, or soon after."""

TASK_WAIT_S = 4.0
"""How long a planner waits for its tasks."""


@dataclass(slots=True)
class Attempt:
    """One task attempt: what it wrote, and what it told its planner."""

    write: Write
    winner: Winner | None = None
    is_told_committed: bool = False
    records: list[SentRecord] = field(default_factory=list)


@dataclass(slots=True)
class RunPlan:
    """One run: who is in it."""

    name: str
    membership: Membership
    attempts: list[Attempt] = field(default_factory=list)
    is_ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One thing that is to be written: under which id, and the token that names it."""

    transactional_id: str
    token: bytes
    version: int | None = None
    is_rerun: bool = False
    """Whether it is begun anew when a run of it has failed; one without identity has no other."""


def planner(transactional_id: str) -> Life:
    """Has one thing after another written, each until it is committed, known or not.

    Some have an id that is theirs, some are versions of what all planners write, and some have no
    identity: a run of these that its driver leaves is nobody's. The clocks of drivers are off by
    an hour, ahead or behind.
    """

    async def life(player: Player) -> None:
        world = player.stage.world
        # Of its own: whatever else is drawn stays as it is.
        chance = Random(f"driver {world.seed} {player.client!r}")
        # Not by a jump: no record has this clock, so nothing need wait for it when all are set.
        world.clock_offsets_ms[player.client.name] = chance.choice((-HOUR_MS, 0, HOUR_MS))
        while player.is_on:
            job = _next_job(player, transactional_id, chance)
            for _ in range(player.random.randint(1, 3) if job.is_rerun else 1):
                if not player.is_on:
                    break
                if chance.random() < DRIVER_DEATHS:
                    _die_soon(player, chance)
                is_committed = await _run(player, job, chance)
                if is_committed and job.version is not None:
                    stage = player.stage
                    stage.next_version = max(stage.next_version, job.version + 1)
                # A planner that died after its commit comes back with the same token.
                if is_committed and player.random.random() < 0.7:
                    break
            await player.pause(500)

    return life


def _next_job(player: Player, transactional_id: str, chance: Random) -> Job:
    owner = player.new_owner()
    kind = chance.choice(("own", "own", "versions", "free"))
    if kind == "free":
        return Job(transactional_id=f"{transactional_id} {owner}", token=b"")
    if kind == "own":
        token = f"{transactional_id} {owner}".encode()
        player.stage.job_ids.add(transactional_id)
        return Job(transactional_id=transactional_id, token=token, is_rerun=True)
    # Now and then a driver that was rolled back.
    version = max(player.stage.next_version - chance.choice((0, 0, 0, 1, 2)), 1)
    token = version_token(VERSIONED, version)
    player.stage.job_ids.add(VERSIONED)
    return Job(transactional_id=VERSIONED, token=token, version=version, is_rerun=True)


def _die_soon(player: Player, chance: Random) -> None:
    world = player.stage.world
    context = world.driver.context
    world.loop.call_later(chance.uniform(0.0, 2.0), world.kill, player.client.name, context=context)


async def _run(player: Player, job: Job, chance: Random) -> bool:
    """One run; whether the token is known to be committed."""
    try:
        plan = await _planned(player, job, chance)
    except OncelogError as error:
        player.stage.world.note(f"a run did not begin: {error!r}")
        return False
    if plan.membership.is_committed:
        player.stage.counts["writes skipped"] += 1
        return True
    _start_tasks(player, plan, player.random.randint(1, 3))
    await _wait_for_tasks(player, plan)
    if player.random.random() < 0.15:
        # Taken for dead: a newer run begins, and this one ends beside it when it likes.
        player.client.spawn(_end_late(player, plan))
        return False
    return await _end(player, plan)


async def _end_late(player: Player, plan: RunPlan) -> None:
    await player.pause(2_000)
    await _end(player, plan)


async def _planned(player: Player, job: Job, chance: Random) -> RunPlan:
    name = f"run {player.new_owner()}"
    short_ms = max(player.stage.plan.transaction_timeout_ms, 2_000)
    membership = await player.client.begin_run(
        job.transactional_id,
        token=job.token,
        transaction_timeout_ms=chance.choice((short_ms, LONG_TIMEOUT_MS)),
        settings=player.producer_settings(),
    )
    return RunPlan(name, membership)


async def last_writes(stage: Stage, client: Client) -> None:
    """After the quiet, under a clock that is behind: every id can be written under at once."""
    stage.world.clock_offsets_ms[client.name] = -HOUR_MS
    for transactional_id in sorted(stage.job_ids):
        token = b"the last"
        if transactional_id == VERSIONED:
            token = version_token(VERSIONED, stage.next_version + 1)
        try:
            membership = await client.begin_run(transactional_id, token=token)
            member = client.member(membership)
            await member.enlist()
            await client.end_run(membership, committed=True, winners=[member.winner])
            await member.close()
        except OncelogError as error:
            stage.history.shut_out.append(f"{transactional_id}: {error!r}")


# --- tasks ------------------------------------------------------------------------------------


def _start_tasks(player: Player, plan: RunPlan, count: int) -> None:
    world = player.stage.world
    for number in range(count):
        client = world.client(f"{plan.name} task {number}")
        task = Player(player.stage, client, player.random)
        write = player.history.begin(plan.name, plan.membership.transactional_id)
        attempt = Attempt(write)
        plan.attempts.append(attempt)
        client.spawn(_attempt(task, plan, attempt))
        if player.random.random() < 0.1:
            kill_after_s = player.random.uniform(0.0, 1.0)
            context = world.driver.context
            world.loop.call_later(kill_after_s, world.kill, client.name, context=context)


async def _attempt(task: Player, plan: RunPlan, attempt: Attempt) -> None:
    try:
        await _write_part(task, plan, attempt)
    except OncelogError as error:
        task.stage.world.note(f"a task failed: {error!r}")
    except Exception as error:
        task.stage.world.fail(error, f"{task.client.name} met what no client should meet")
    # A process that is not used any more is gone.
    task.stage.world.driver.soon(task.stage.world.end_process, task.client, "is done")


async def _write_part(task: Player, plan: RunPlan, attempt: Attempt) -> None:
    member = task.client.member(plan.membership, **task.producer_settings())
    started_at = task.history.tick()
    if not await member.enlist():
        attempt.is_told_committed = True
        return
    task.history.claims.append(
        Claim(
            plan.membership.transactional_id,
            plan.name,
            started_at,
            task.history.tick(),
            member.winner.producer_id,
            _epoch_of(member),
        )
    )
    numbers = itertools.count()
    await _send_some(task, member, attempt, numbers)
    await member.flush()
    if task.random.random() < 0.85:
        attempt.winner = member.winner
    elif task.random.random() < 0.7:
        # A loser that does not know it: it writes on, also after the end.
        for _ in range(task.random.randint(1, 5)):
            await asyncio.sleep(task.random.expovariate(2.0))
            await _send_some(task, member, attempt, numbers)
    await member.close()


def _epoch_of(member: AsyncTransactionMember) -> int:
    identity = member._core.sender.identity
    assert identity is not None
    return identity.producer_epoch


async def _send_some(
    task: Player,
    member: AsyncTransactionMember,
    attempt: Attempt,
    numbers: itertools.count[int],
) -> None:
    for _ in range(task.random.randint(0, 4)):
        topic_partition = task.random.choice(task.stage.targets())
        value = f"{task.client.name}/{next(numbers)}"
        record = task.history.send(attempt.write, topic_partition, value)
        await task.send(member, record)
        await task.pause()


async def _wait_for_tasks(player: Player, plan: RunPlan) -> None:
    wait_until = player.stage.world.now_s + player.random.uniform(0.2, TASK_WAIT_S)
    while player.stage.world.now_s < wait_until:
        if all(attempt.winner or attempt.is_told_committed for attempt in plan.attempts):
            return
        await asyncio.sleep(0.1)


# --- the end ----------------------------------------------------------------------------------


async def _end(player: Player, plan: RunPlan) -> bool:
    """End a run, and sometimes again; whether the token is known to be committed."""
    winners = [attempt for attempt in plan.attempts if attempt.winner is not None]
    is_commit = player.random.random() >= player.stage.plan.abort_ratio
    write = player.history.begin(
        plan.name, plan.membership.transactional_id, token=plan.membership.token
    )
    if is_commit:
        for attempt in winners:
            player.history.merge(attempt.write, write)
    outcome, end = await _ask_for_end(player, plan, write, winners, is_commit=is_commit)
    player.ended(write, outcome, is_visible=end is not None and end.visible)
    if player.random.random() < 0.3:
        await _end_again(player, plan, winners, is_commit=is_commit)
    return outcome is Outcome.OK or (end is not None and end.was_committed_before)


async def _ask_for_end(
    player: Player, plan: RunPlan, write: Write, winners: list[Attempt], *, is_commit: bool
) -> tuple[Outcome, RunEnd | None]:
    named = [attempt.winner for attempt in winners if attempt.winner is not None]
    for _ in range(CALLS_AGAIN_MAX):
        if is_commit:
            player.history.start_commit(write)
        try:
            end = await player.client.end_run(
                plan.membership,
                committed=is_commit,
                winners=named if is_commit else (),
                **player.producer_settings(),
            )
        except OncelogError as error:
            if error.retriable:
                continue
            return Outcome.UNKNOWN, None
        if not is_commit:
            return Outcome.FAIL, end
        # The token may have been committed by another run: then this one is not known to be.
        return (Outcome.UNKNOWN if end.was_committed_before else Outcome.OK), end
    return Outcome.UNKNOWN, None


async def _end_again(
    player: Player, plan: RunPlan, winners: list[Attempt], *, is_commit: bool
) -> None:
    """The same call again, or an abort after the decision: neither changes anything."""
    await player.pause(1_000)
    repeats = is_commit and player.random.random() < 0.5
    named = [attempt.winner for attempt in winners if attempt.winner is not None]
    try:
        await player.client.end_run(
            plan.membership,
            committed=repeats,
            winners=named if repeats else (),
            **player.producer_settings(),
        )
    except OncelogError as error:
        player.stage.world.note(f"the end was refused this time: {error!r}")
