"""A short fault campaign on the real cluster: processes die in mid-commit, and nothing is wrong."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from faults.campaign import run_campaign
from faults.nemesis import (
    CLIENT,
    CONTROLLER,
    EVERYTHING,
    GROUPS,
    LEADER,
    TRANSACTIONS,
    plan_faults,
)


def test_a_seed_plans_the_same_faults_and_all_roles_are_struck():
    plan = plan_faults(1, 200)
    assert plan == plan_faults(1, 200)
    assert plan != plan_faults(2, 200)
    for role in (LEADER, TRANSACTIONS, GROUPS, CONTROLLER, CLIENT):
        assert {bool(fault.pause_s) for fault in plan if fault.role == role} == {True, False}
    assert {bool(fault.pause_s) for fault in plan if fault.role == EVERYTHING} == {False}


@pytest.mark.ray
@pytest.mark.slow
def test_clients_see_no_anomaly_while_processes_die(cluster, tmp_path, seed):
    result = run_campaign(cluster, tmp_path, minutes=0.6, seed=seed, faults=8, say=print)
    assert result.anomalies == []
    assert result.missing == []


@pytest.mark.ray
@pytest.mark.slow
def test_clients_see_no_anomaly_where_ray_carries_the_calls_to_replicas_that_are_alone(
    tmp_path, seed
):
    run = Path(__file__).resolve().parents[2] / "run"
    options = [
        "--replicas-per-actor",
        "1",
        "--calls",
        "ray",
        "--minutes",
        "0.6",
        "--faults",
        "8",
        "--seed",
        str(seed),
    ]
    done = subprocess.run(
        [run, "faults", *options, "--history", tmp_path / "history"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "calls by ray, replicas per actor 1" in done.stdout
