"""Random scenarios: a few seeds of this session's seed, and every seed that once failed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any
from unittest import mock

import pytest
import sim_main
import sim_swarm
from regressions import REGRESSIONS
from sim_checkers import Violation
from sim_kafka_clients import KINDS
from sim_log_watch import watching
from sim_shrink import shortened
from sim_stage import NO_KAFKA
from sim_swarm import Result, Scenario, drawn_scenario, run_scenario

SHORT = {"duration_s": 3.0}


def check_clean(result: Result) -> None:
    seed = result.scenario.seed
    found = "\n".join(map(str, result.violations))
    assert not result.violations, f"./run sim --seed {seed} --runs 1\n{found}\n{result.story}"


def test_a_short_random_run_is_clean(seed):
    number = next(sim_main.fresh_seeds(seed))
    check_clean(run_scenario(drawn_scenario(number).changed(SHORT)))


DRAW = 20_261_127
"""Of the runs in every build, so that it fails for what was changed; ``--fresh`` draws new ones."""


@pytest.mark.slow
def test_thirty_runs_are_clean_and_few_are_vacuous(capfd):
    status = sim_main.main(["--fresh", str(DRAW), "--runs", "30", "--keep-going"])
    assert status == 0, capfd.readouterr().out


def test_a_run_without_aborts_or_readers_or_faults_is_vacuous():
    counts = {"commits": 1, "aborts": 1, "records read": 2, "records read uncommitted": 1}
    faults = Counter(kill=1, delay=2, duplicate=1)
    full = Result(drawn_scenario(1), counts=Counter(counts), fault_counts=faults)
    assert not full.is_vacuous
    for missing in counts:
        assert replace(full, counts=Counter(counts) - Counter({missing: 9})).is_vacuous, missing
    only_uncommitted = counts | {"records read": 1}
    assert replace(full, counts=Counter(only_uncommitted)).is_vacuous
    assert replace(full, fault_counts=Counter(kill=9, delay=9)).is_vacuous


@pytest.mark.parametrize(
    ("runs", "at_most"), [(0, 0), (1, 0), (2, 1), (12, 7), (30, 14), (10_000, 2_629)]
)
def test_more_vacuous_runs_than_chance_makes_are_a_failure(runs, at_most):
    assert not sim_main.Totals(runs=runs, vacuous=[1] * at_most).says_little
    assert sim_main.Totals(runs=runs, vacuous=[1] * (at_most + 1)).says_little


def test_fresh_seeds_are_those_of_their_draw():
    first, again, other = (list(islice(sim_main.fresh_seeds(draw), 9)) for draw in (1, 1, 2))
    assert first == again
    assert not set(first) & set(other)


REGRESSION_WORLD = {
    "replicas_per_actor": 1,
    "brokers": 1,
    "replication_factor": 1,
    "head_node": 0,
    "peace": 0.25,
} | NO_KAFKA
"""What the oldest of them were found in: there was nothing else."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "changes", "why"), REGRESSIONS, ids=[str(item[0]) for item in REGRESSIONS]
)
def test_a_seed_that_once_failed_is_clean(number: int, changes: dict[str, Any], why: str):
    meant = REGRESSION_WORLD | changes
    check_clean(run_scenario(drawn_scenario(number).changed(meant)))


def test_the_same_seed_gives_the_same_run():
    scenario = drawn_scenario(5).changed({"duration_s": 2.0})
    first, second = run_scenario(scenario), run_scenario(scenario)
    assert first.trace_hash == second.trace_hash
    assert first.counts == second.counts
    assert first.event_count > 1_000


NODE_FAULTS = {"kill_node": 1.0, "cut_node": 2.0, "stop_node": 2.0, "peace": 0.0}
NODE_FAULT_KINDS = {"kill_node", "cut", "one_way_cut", "stop_node"}


def test_nodes_die_are_cut_off_and_stop_where_there_are_several():
    scenario = drawn_scenario(7).changed({"duration_s": 5.0, **NODE_FAULTS})
    several = run_scenario(scenario.changed({"brokers": 3}))
    check_clean(several)
    assert several.fault_counts.keys() >= NODE_FAULT_KINDS
    assert several.counts["commits"]
    one = run_scenario(scenario.changed({"brokers": 1}))
    check_clean(one)
    assert not one.fault_counts.keys() & NODE_FAULT_KINDS


def test_some_seeds_stand_for_several_brokers_and_their_faults():
    drawn = [drawn_scenario(seed) for seed in range(60)]
    assert 10 < sum(scenario.brokers == 3 for scenario in drawn) < 40
    for kind in NODE_FAULTS:
        assert {bool(getattr(scenario.faults, kind)) for scenario in drawn} == {True, False}
    restless = [scenario for scenario in drawn if not scenario.faults.peace]
    assert 5 <= len(restless) <= 15
    assert {(one.brokers, one.replication_factor) for one in restless} == {(3, 3)}


def test_a_quarter_of_all_seeds_have_clients_of_kafka_and_draw_the_rest_as_without_them():
    drawn = [drawn_scenario(seed) for seed in range(200)]
    found = [scenario for scenario in drawn if scenario.workload.has_kafka]
    assert 30 < len(found) < 70
    assert not any(scenario.workload.strangers for scenario in found)
    kinds = {kind for scenario in found for kind in scenario.workload.kafka_kinds}
    assert kinds == KINDS.keys()
    for role in ("kafka_copiers", "kafka_sharers", "kafka_holds"):
        assert {bool(getattr(scenario.workload, role)) for scenario in found} == {True, False}
    with mock.patch.object(sim_swarm, "KAFKA_SHARE", 0.0):
        without = [drawn_scenario(seed) for seed in range(200)]
    assert without == [scenario.changed(NO_KAFKA) for scenario in drawn]


def test_an_unknown_part_of_a_scenario_is_refused():
    with pytest.raises(ValueError, match="kil=1"):
        drawn_scenario(1).changed({"kil": 1})


def test_a_failing_run_is_shortened_to_what_it_needs():
    """A made-up bug that needs kills and one writer: all else is taken away."""

    def run(scenario: Scenario) -> Result:
        result = Result(scenario, virtual_s=40.0)
        if scenario.faults.kill and scenario.workload.writers:
            result.violations = [Violation("Sample", "it broke")]
        return result

    parts = {"kill": 0.5, "pause": 0.5, "writers": 3, "jobs": 2, "brokers": 3, "kill_node": 0.1}
    scenario = drawn_scenario(3).changed(parts)
    changes, result = shortened(run(scenario), lambda: 0.0, 1.0, run)
    assert result.checker == "Sample"
    assert result.scenario.faults.pause == 0.0
    assert result.scenario.faults.kill == 0.5
    assert (result.scenario.brokers, result.scenario.faults.kill_node) == (1, 0.0)
    assert (result.scenario.workload.writers, result.scenario.workload.jobs) == (1, 0)
    assert result.scenario.workload.duration_s < scenario.workload.duration_s
    assert scenario.changed(changes) == result.scenario


def test_watching_ends_with_its_block():
    from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
    from oncelog.actors.protocol.transaction.ids import TransactionalIds

    before = (PartitionMachine.apply, TransactionalIds.apply)
    with watching():
        assert PartitionMachine.apply is not before[0]
    assert (PartitionMachine.apply, TransactionalIds.apply) == before
