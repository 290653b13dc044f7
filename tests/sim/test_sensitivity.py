"""The simulator bites: with any one protection taken out, a few random runs find a violation."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sim_checkers import Violation
from sim_saboteurs import SABOTEURS, Saboteur
from sim_swarm import drawn_scenario, run_scenario

SEEDS = range(1_000, 1_030)
DURATION_S = 10.0


@pytest.mark.slow
@pytest.mark.parametrize("saboteur", SABOTEURS, ids=lambda saboteur: saboteur.name)
def test_without_this_protection_a_violation_is_found(saboteur: Saboteur):
    """Found within 30 runs, which take less than a minute; most are found by the first few."""
    changes = {"duration_s": DURATION_S, **saboteur.changes}
    with saboteur.sabotage():
        violations = next(filter(None, map(partial(violations_of, changes), SEEDS)), [])
    assert violations, f"{len(SEEDS)} runs without {saboteur.name} looked clean"


def violations_of(changes: dict[str, Any], seed: int) -> list[Violation]:
    return run_scenario(drawn_scenario(seed).changed(changes)).violations
