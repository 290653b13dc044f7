"""The simulator bites: with any one protection taken out, a few random runs find a violation."""

from __future__ import annotations

import pytest
from sim_coordinator_mutants import COORDINATOR_MUTANTS
from sim_log_watch import WATCHED
from sim_mutants import MUTANTS
from sim_saboteurs import SABOTEURS, Saboteur
from sim_swarm import Scenario, drawn_scenario, founded, run_scenario
from sim_txn_checkers import ALL_CHECKERS

SEEDS = range(1_000, 1_030)
DURATION_S = 10.0
EVERYBODY = SABOTEURS + MUTANTS + COORDINATOR_MUTANTS


@pytest.mark.slow
@pytest.mark.parametrize("saboteur", EVERYBODY, ids=lambda saboteur: saboteur.name)
def test_without_this_protection_its_checker_speaks(saboteur: Saboteur):
    """Found within 30 runs, mostly by the first; the very run is silent with the protection."""
    scenarios = [_scenario(saboteur, seed) for seed in SEEDS]
    for scenario in scenarios:
        founded(scenario)
    with saboteur.sabotage():
        found = next(filter(lambda scenario: _speaks(saboteur, scenario), scenarios), None)
    assert found is not None, f"{len(SEEDS)} runs without {saboteur.name} looked clean"
    assert run_scenario(found).violations == []


def test_every_checker_has_a_saboteur():
    checkers = {type(checker).__name__ for checker in ALL_CHECKERS} | WATCHED
    assert checkers - {saboteur.checker for saboteur in EVERYBODY} == set()
    assert len(EVERYBODY) >= 30
    assert len({saboteur.name for saboteur in EVERYBODY}) == len(EVERYBODY)


def _scenario(saboteur: Saboteur, seed: int) -> Scenario:
    return drawn_scenario(seed).changed({"duration_s": DURATION_S, **saboteur.changes})


def _speaks(saboteur: Saboteur, scenario: Scenario) -> bool:
    speakers = {found.checker.partition(":")[0] for found in run_scenario(scenario).violations}
    return saboteur.checker in speakers if saboteur.checker else bool(speakers)
