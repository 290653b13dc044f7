"""Hostile programs beside the machine's faults, judged by what an application may conclude.

The programs are ``sim_hostile``'s. After a while the faults end, some programs are killed and the
others just stop; then one well-behaved member of the group has to copy what is left, in its time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from random import Random
from unittest import mock

import pytest
from sim_hostile import Ledger
from sim_hostile_apps import (
    SOURCE,
    TARGET,
    adds_partitions,
    all_of,
    copies_what_is_left,
    hostile_copier,
    hostile_source,
)
from sim_nemesis import FaultPlan, Nemesis
from sim_process import Client
from sim_stage import Cast, Stage, WorkloadPlan
from sim_swarm import CLUSTER
from sim_world import SimulationError, World, WorldSettings

from oncelog.api.consuming.consumer import Handover
from oncelog.api.transacting.producer_transaction import ProducerTransaction
from oncelog.api.transacting.transaction_manager import TransactionManager
from oncelog.storage.errors import ErrorClass
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import TopicPartition

SEEDS = range(12)
COPIERS = 3
DURATION_S = 25.0

DRAIN_LIMIT_S = 40.0
"""Sessions, poll intervals and transactions that nobody ends time out, one after another."""

HOSTILITIES = (
    "cancelled anext",
    "cancelled commit",
    "cancelled offsets",
    "cancelled poll",
    "cancelled send",
    "closes while polling",
    "commits by listeners",
    "consumers dropped",
    "faults",
    "long thoughts",
    "producers dropped",
    "static members",
    "transactions of several polls",
    "transactions that span polls",
    "twin anext",
    "twin commit",
    "twin offsets",
    "twin poll",
)
HOSTILITIES_MIN = 2
"""So often each happens in the runs together."""

PLAN = WorkloadPlan(topics={SOURCE: 2, TARGET: 2}, duration_s=DURATION_S, pause_ms=30.0)


def _faults(random: Random) -> FaultPlan:
    """Half of the kinds are on, none of them so that little else happens."""
    rates = {
        "kill": 0.2,
        "kill_client": 0.2,
        "kill_group": 0.05,
        "kill_at_message": 0.1,
        "pause": 0.2,
        "pause_client": 0.15,
        "delay": 0.05,
        "duplicate": 0.05,
        "drop_request": 0.03,
        "drop_reply": 0.05,
        "break_off": 0.03,
    }
    drawn = {kind: rate for kind, rate in rates.items() if random.random() < 0.5}
    return FaultPlan(delay_max_ms=random.choice((200.0, 5_000.0)), **drawn)


class Run:
    """One world with its programs, from the first call to the judgement."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"hostile {seed}")
        self.ledger = Ledger()
        self.findings: list[str] = []
        self.inputs: dict[tuple[TopicPartition, int], str] = {}
        self.outputs: dict[tuple[TopicPartition, int], str] = {}
        settings = WorldSettings(cluster=CLUSTER)
        with World(seed=seed, topics=dict(PLAN.topics), settings=settings) as self.world:
            self.stage = Stage(world=self.world, plan=PLAN)
            try:
                self._rage()
                self._drain()
            except SimulationError as error:
                # Also what is not copied within the limit.
                self.findings.append(str(error).partition("\n---")[0])
            else:
                self._judge()
            self.findings += self.ledger.complaints

    def _rage(self) -> None:
        """Programs and faults, until the time is over."""
        cast = Cast(self.stage, self.random)
        for number in range(COPIERS):
            cast.add(f"copier-{number}", hostile_copier(f"copier-{number}", self.ledger))
        cast.add("source", hostile_source(self.ledger))
        cast.add("operator", adds_partitions)
        nemesis = Nemesis(self.stage, _faults(self.random), self.random)
        self.world.driver.spawn(cast.play())
        self.world.driver.spawn(nemesis.rage())
        self.world.run_for(DURATION_S)
        self.stage.is_over = True
        # The others stop where they are: their clients live on, and nobody uses them.
        for role in cast.roles:
            if self.random.random() < 0.5:
                self.world.kill(role.name)
        self.ledger.counts["faults"] = sum(self.world.counts.values())
        self.world.heal()

    def _drain(self) -> None:
        """What is left is copied by a member that does all as it should."""
        client = self.world.client("last-copier")
        self.world.run(client.spawn(copies_what_is_left(client)), limit_s=DRAIN_LIMIT_S)
        for process in list(self.world.processes.values()):
            if isinstance(process, Client):
                self.world.end_process(process, "leaves")
        self.world.quiesce()
        reader = self.world.client("last-reader")
        self.inputs = self.world.run(reader.spawn(all_of(reader, SOURCE)))
        self.outputs = self.world.run(reader.spawn(all_of(reader, TARGET)))

    # --- the judgement ------------------------------------------------------------------------

    def _judge(self) -> None:
        self._judge_inputs()
        self._judge_outputs()
        self._judge_transactions()

    def _judge_inputs(self) -> None:
        for value, place in self.ledger.acknowledged.items():
            if self.inputs.get(place) != value:
                found = self.inputs.get(place)
                self.findings.append(f"input {value} is acknowledged at {place}: {found} is there")
        for value, count in Counter(self.inputs.values()).items():
            if count > 1:
                self.findings.append(f"input {value} is there {count} times")

    def _judge_outputs(self) -> None:
        """Each input has one output."""
        copies: dict[str, list[str]] = defaultdict(list)
        for value in self.outputs.values():
            origin, _, writer = value.partition(" ")
            copies[origin].append(writer)
        origins = {f"{tp.partition}:{offset}": value for (tp, offset), value in self.inputs.items()}
        for origin, value in origins.items():
            if len(copies[origin]) != 1:
                self.findings.append(f"input {origin} {value} has outputs of {copies[origin]}")
        self.findings += [f"output of no input: {one}" for one in copies.keys() - origins.keys()]

    def _judge_transactions(self) -> None:
        """What was told to be committed is there, what was aborted is not, and nothing by half."""
        there = set(self.outputs.values())
        for transaction in self.ledger.transactions:
            seen = [value for value in transaction.values if value in there]
            is_wrong = {
                "committed": len(seen) < len(transaction.values),
                "aborted": bool(seen),
                "unknown": 0 < len(seen) < len(transaction.values),
            }[transaction.outcome]
            if is_wrong:
                self.findings.append(
                    f"{transaction.name} is {transaction.outcome}, and of {transaction.values} "
                    f"there are {seen}"
                )


# --- without a protection ---------------------------------------------------------------------


def _given_up_input_counts() -> AbstractContextManager[object]:
    """A transaction commits what it read of partitions that a rebalance took meanwhile."""
    return mock.patch.object(ProducerTransaction, "check_input")


def _broken_off_iterations_are_forgotten() -> AbstractContextManager[object]:
    """What an iteration had taken when it was broken off, or cancelled, is not given back."""
    return mock.patch.object(Handover, "give_back", lambda self, _: self.iterate_over(()))


@contextmanager
def _two_tasks_may_read_at_once() -> Iterator[None]:
    """The calls of two tasks go through one another, and none takes the turn of the other."""
    only_turn = property(lambda _: 0, lambda _, turn: None)
    with (
        mock.patch.object(Handover, "sole", return_value=nullcontext()),
        mock.patch.object(Handover, "_turn", only_turn, create=True),
    ):
        yield


@contextmanager
def _interrupted_positions_are_forgotten() -> Iterator[None]:
    """A transaction commits although nobody knows whether its positions are in it."""
    fail = TransactionManager.fail

    def forget(self: TransactionManager, error: OncelogError, weight: ErrorClass) -> None:
        if "was cancelled" not in str(error):
            fail(self, error, weight)

    with (
        mock.patch.object(TransactionManager, "fail", forget),
        mock.patch.object(ProducerTransaction, "offsets_refused"),
    ):
        yield


def _interrupted_sends_are_forgotten() -> AbstractContextManager[object]:
    """A transaction commits without a record that it was given in vain."""
    return mock.patch.object(ProducerTransaction, "send_refused")


SABOTEURS: dict[str, tuple[Callable[[], AbstractContextManager[object]], tuple[int, ...]]] = {
    "input that is read again": (_given_up_input_counts, (7, 4, 9)),
    "iterations that are broken off": (_broken_off_iterations_are_forgotten, (1, 0, 2)),
    "one task at a time": (_two_tasks_may_read_at_once, (1, 15, 19)),
    "interrupted positions": (_interrupted_positions_are_forgotten, (0, 9)),
    "interrupted sends": (_interrupted_sends_are_forgotten, (0, 3, 6)),
}
"""Each protection, its absence, and the seeds of which one finds it, the likeliest first."""


@cache
def _told(seed: int) -> tuple[list[str], Counter[str]]:
    """What the judge finds in a run, and what happened in it."""
    run = Run(seed)
    return run.findings, run.ledger.counts


@pytest.mark.parametrize("seed", SEEDS)
def test_what_an_application_may_conclude_is_true(seed: int) -> None:
    findings, _ = _told(seed)
    assert findings == []


def test_the_programs_are_hostile() -> None:
    counts: Counter[str] = sum((_told(seed)[1] for seed in SEEDS), Counter())
    missing = {kind: counts[kind] for kind in HOSTILITIES if counts[kind] < HOSTILITIES_MIN}
    assert missing == {}
    assert counts["committed"] > 100
    assert counts["aborted"] > 20


@pytest.mark.parametrize("protection", SABOTEURS)
def test_without_this_protection_an_application_is_told_what_is_not_true(protection: str) -> None:
    sabotage, seeds = SABOTEURS[protection]
    with sabotage():
        assert any(Run(seed).findings for seed in seeds), f"nobody missed: {protection}"
