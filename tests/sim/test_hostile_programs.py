"""Hostile programs beside the machine's faults, judged by what an application may conclude.

The programs are ``sim_hostile``'s. After a while the faults end, some programs are killed and the
others just stop; then one well-behaved member of the group has to copy what is left, in its time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

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

from oncelog.storage.model import TopicPartition

SEEDS = range(12)
COPIERS = 3
DURATION_S = 25.0

DRAIN_LIMIT_S = 40.0
"""Sessions, poll intervals and transactions that nobody ends time out, one after another."""

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
        for process in list(self.world._processes.values()):
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


@pytest.mark.parametrize("seed", SEEDS)
def test_what_an_application_may_conclude_is_true(seed: int) -> None:
    assert Run(seed).findings == []
