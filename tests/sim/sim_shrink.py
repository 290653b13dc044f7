"""Shrinks a failing run: removes whatever the same checker fails without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sim_nemesis import RATES
from sim_swarm import Result, Scenario, run_scenario

RARER = (
    "kill_at_message",
    "kill_node",
    "cut_node",
    "stop_node",
    "move",
    "disk_refusal",
    "file_damage",
)
OF_KAFKA = (
    "kafka_delays",
    "kafka_repeats",
    "kafka_stalls",
    "kafka_holds",
    "kafka_pauses",
    "kafka_moves",
    "kafka_first_epoch",
    "kafka_wanders",
)
ROLES = (
    "hijackers",
    "jobs",
    "copiers",
    "processors",
    "remakers",
    "plain_writers",
    "uncommitted_readers",
    "readers",
    "writers",
    "kafka_copiers",
    "kafka_sharers",
    "kafka_writers",
)


def shortened(
    result: Result,
    clock: Callable[[], float],
    budget_s: float,
    run: Callable[[Scenario], Result] = run_scenario,
) -> tuple[dict[str, Any], Result]:
    """The changes that keep ``result`` failing in the same checker, and how it fails then.

    Begins no run after ``budget_s`` seconds of ``clock``.
    """
    deadline_s = clock() + budget_s
    changes: dict[str, Any] = {}
    for name, value in _attempts(result):
        if clock() >= deadline_s:
            break
        if value >= _present(result.scenario, name):
            continue
        attempt = run(result.scenario.changed({name: value}))
        if attempt.checker == result.checker:
            changes[name] = value
            result = attempt
    return changes, result


def _present(scenario: Scenario, name: str) -> float:
    parts = (scenario.faults, scenario.workload, scenario)
    value: float = getattr(next(part for part in parts if hasattr(part, name)), name)
    return value


def _attempts(result: Result) -> Iterator[tuple[str, Any]]:
    """What to take away, the largest parts first."""
    workload, faults = result.scenario.workload, result.scenario.faults
    end_s = min(result.virtual_s, workload.duration_s)
    for share in (0.25, 0.5, 0.75, 1.0):
        yield "duration_s", round(end_s * share, 2)
    if result.scenario.brokers > 1:
        yield "brokers", 1
        yield "replication_factor", 1
    for kind in (*RATES, *RARER):
        if getattr(faults, kind):
            yield kind, 0.0
    for kind in OF_KAFKA:
        if getattr(workload, kind):
            yield kind, 0
    for role in ROLES:
        if getattr(workload, role):
            yield role, 0
            if getattr(workload, role) > 1:
                yield role, 1
