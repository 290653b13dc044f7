"""Random scenarios: a few seeds of this session's seed, and every seed that once failed."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from regressions import REGRESSIONS
from sim_checkers import Violation
from sim_log_watch import watching
from sim_shrink import shortened
from sim_swarm import Result, Scenario, drawn_scenario, run_scenario

SHORT = {"duration_s": 3.0}


def check_clean(result: Result) -> None:
    seed = result.scenario.seed
    found = "\n".join(map(str, result.violations))
    assert not result.violations, f"./run sim --seed {seed} --runs 1\n{found}\n{result.story}"


def fresh_seeds(seed: int, count: int) -> list[int]:
    random = Random(f"swarm {seed}")
    return [random.randrange(2**32) for _ in range(count)]


def test_a_short_random_run_is_clean(seed):
    check_clean(run_scenario(drawn_scenario(fresh_seeds(seed, 1)[0]).changed(SHORT)))


@pytest.mark.slow
def test_random_runs_are_clean_and_show_something(seed):
    results = [run_scenario(drawn_scenario(number)) for number in fresh_seeds(seed + 1, 6)]
    for result in results:
        check_clean(result)
    assert sum(result.counts["commits"] for result in results) > 50
    assert sum(result.counts["records read"] for result in results) > 500
    assert sum(len(result.fault_counts) for result in results) > 5
    assert not all(result.is_vacuous for result in results)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "changes", "why"), REGRESSIONS, ids=[str(item[0]) for item in REGRESSIONS]
)
def test_a_seed_that_once_failed_is_clean(number: int, changes: dict[str, Any], why: str):
    check_clean(run_scenario(drawn_scenario(number).changed(changes)))


def test_the_same_seed_gives_the_same_run():
    scenario = drawn_scenario(5).changed({"duration_s": 2.0})
    first, second = run_scenario(scenario), run_scenario(scenario)
    assert first.trace_hash == second.trace_hash
    assert first.counts == second.counts
    assert first.event_count > 1_000


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

    scenario = drawn_scenario(3).changed({"kill": 0.5, "pause": 0.5, "writers": 3, "jobs": 2})
    changes, result = shortened(run(scenario), lambda: 0.0, 1.0, run)
    assert result.checker == "Sample"
    assert result.scenario.faults.pause == 0.0
    assert result.scenario.faults.kill == 0.5
    assert (result.scenario.workload.writers, result.scenario.workload.jobs) == (1, 0)
    assert result.scenario.workload.duration_s < scenario.workload.duration_s
    assert scenario.changed(changes) == result.scenario


def test_watching_ends_with_its_block():
    from oncelog.actors.protocol.partition import PartitionMachine
    from oncelog.actors.protocol.transaction_table import TransactionTable

    before = (PartitionMachine.apply, TransactionTable.apply)
    with watching():
        assert PartitionMachine.apply is not before[0]
    assert (PartitionMachine.apply, TransactionTable.apply) == before
