"""A short fault campaign on the real cluster: processes die in mid-commit, and nothing is wrong."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from deadlines import DEADLINE_S
from faults.campaign import run_campaign
from faults.client import COPIES_TOPIC, EVENTS_TOPIC
from faults.fault_plan import (
    BROKER,
    CLIENT,
    CONTROLLER,
    DOUBLE_FAILOVER,
    EMPTIED_DISK,
    EVERYTHING,
    FOLLOWER,
    FULL_DISK,
    GATEWAY,
    GATEWAY_SHARE,
    GROUPS,
    LEADER,
    LINK,
    LINKED_ROLES,
    MOVE,
    NODE,
    OLD_DISK,
    ONE_WAY_LINK,
    ROLES,
    STALLED_FOLLOWER,
    TRANSACTIONS,
    plan_faults,
)
from fresh_topics import delete_topics
from ray_nodes import can_unshare


def test_a_seed_plans_the_same_faults_and_all_roles_are_struck():
    plan = plan_faults(1, 200)
    assert plan == plan_faults(1, 200)
    assert plan != plan_faults(2, 200)
    for role in (LEADER, TRANSACTIONS, GROUPS, CONTROLLER, CLIENT):
        assert {bool(fault.pause_s) for fault in plan if fault.role == role} == {True, False}
    assert {bool(fault.pause_s) for fault in plan if fault.role == EVERYTHING} == {False}


def test_gateways_are_struck_where_clients_of_kafka_are_among_the_clients():
    plan = plan_faults(1, 200, {**ROLES, GATEWAY: GATEWAY_SHARE})
    assert {bool(fault.pause_s) for fault in plan if fault.role == GATEWAY} == {True, False}
    assert GATEWAY not in {fault.role for fault in plan_faults(1, 200)}


def test_of_several_brokers_nodes_and_followers_are_struck_too():
    plan = plan_faults(1, 600, LINKED_ROLES)
    for role in (FOLLOWER, BROKER, NODE):
        assert {bool(fault.pause_s) for fault in plan if fault.role == role} == {True, False}
    for role in (LINK, ONE_WAY_LINK):
        links = [fault for fault in plan if fault.role == role]
        assert all(fault.pause_s for fault in links)
        assert {fault.is_whole for fault in links} == {True, False}
    for role in (EMPTIED_DISK, OLD_DISK, DOUBLE_FAILOVER):
        struck = [fault for fault in plan if fault.role == role]
        assert struck
        assert all(fault.away_s and fault.is_whole for fault in struck)
    for role in (FULL_DISK, STALLED_FOLLOWER, MOVE):
        struck = [fault for fault in plan if fault.role == role]
        assert struck
        assert all(fault.pause_s and not fault.away_s for fault in struck)
    assert {fault.is_whole for fault in plan if fault.role == NODE} == {True, False}
    assert all(bool(fault.away_s) != bool(fault.pause_s) for fault in plan if fault.role == NODE)


@pytest.mark.ray
@pytest.mark.slow
def test_clients_see_no_anomaly_while_processes_die(cluster, tmp_path, seed):
    delete_topics(cluster, (EVENTS_TOPIC, COPIES_TOPIC))
    result = run_campaign(cluster, tmp_path, minutes=0.6, seed=seed, faults=8, say=print)
    assert result.anomalies == []
    assert result.missing == []


@pytest.mark.ray
@pytest.mark.slow
def test_clients_see_no_anomaly_where_ray_carries_the_calls_to_replicas_that_are_alone(
    tmp_path, seed
):
    options = ["--replicas-per-actor", "1", "--calls", "ray", "--minutes", "0.6", "--faults", "8"]
    done = run_faults(tmp_path, seed, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "calls by ray, replicas per actor 1" in done.stdout


@pytest.mark.ray
@pytest.mark.slow
def test_clients_of_kafka_see_no_anomaly_while_gateways_and_others_die(tmp_path, seed):
    done = run_faults(tmp_path, seed, "--door", "kafka", "--minutes", "0.6", "--faults", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no send of clients of Kafka for" in done.stdout


@pytest.mark.ray
@pytest.mark.nodes
@pytest.mark.slow
def test_clients_see_no_anomaly_while_brokers_die_of_which_a_majority_lives(tmp_path, seed):
    if not can_unshare():
        pytest.skip("needs the right to give a process mounts of its own")
    options = ["--brokers", "3", "--replication", "3", "--minutes", "0.3", "--faults", "5"]
    # Spark and the simulator run beside it on the same processors: how soon is for a quiet machine.
    done = run_faults(tmp_path, seed, *options, "--stall-s", "30")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no commit     for" in done.stdout


def run_faults(tmp_path, seed, *options):
    run = Path(__file__).resolve().parents[2] / "run"
    return subprocess.run(
        [run, "faults", *options, "--seed", str(seed), "--history", tmp_path / "history"],
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * DEADLINE_S,
    )
