"""The process that holds a cluster: it serves until a signal, then stops cleanly."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from oncelog.actors.config import ClusterConfig
from oncelog.api.cli import head
from oncelog.api.cli.terminal import CliError
from oncelog.api.session import cluster_connection
from oncelog.storage.exceptions import InvalidSettingError, NetworkError, NotControllerError

FAKE_CLIENT = """
import os, pathlib, sys, types
from oncelog.api.session import cluster_connection
from oncelog.api.cli import head
from oncelog.storage.exceptions import ConnectionFailedError

def shutdown():
    cluster_connection.forget_discovery(pathlib.Path(sys.argv[1]))
    print("shutdown", flush=True)

def init(data_dir, *, num_cpus, dashboard_port, **settings):
    if "failing" in settings:
        raise ConnectionFailedError("Ray could not be started: no memory")
    pid = os.getppid() if "joining" in settings else os.getpid()
    word = cluster_connection.Discovery(address="127.0.0.1:1", dashboard_url="", process_id=pid)
    cluster_connection.write_discovery(cluster_connection.check_data_dir(data_dir), word)
    print("up", num_cpus, dashboard_port, settings, flush=True)
    return types.SimpleNamespace(
        address="127.0.0.1:1", dashboard_url="", data_dir=sys.argv[1], shutdown=shutdown
    )

cluster_connection.has_log = lambda: True
sys.modules["oncelog.api.client"] = types.SimpleNamespace(init=init)
import oncelog.api
oncelog.api.client = sys.modules["oncelog.api.client"]
sys.exit(head.main(["--data-dir", *sys.argv[1:]]))
"""


@pytest.fixture
def start(tmp_path):
    """Starts the head process on a cluster that is not there."""
    processes = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", FAKE_CLIENT, str(tmp_path), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_log_cleanly(start, tmp_path, number):
    process = start()
    assert process.stdout.readline().startswith("up")
    for line in process.stderr:
        if "serving" in line:
            break
    process.send_signal(number)
    assert process.stdout.readline() == "shutdown\n"
    assert process.wait() == 0
    assert not (tmp_path / "cluster.json").exists()


def test_its_arguments_reach_the_cluster(start):
    process = start(
        "--num-cpus", "2", "--dashboard-port", "8300", "--config", "offsets_partitions=4"
    )
    assert process.stdout.readline() == "up 2 8300 {'offsets_partitions': 4}\n"


def test_a_cluster_that_cannot_start_is_the_last_line_of_its_output(start):
    process = start("--config", "failing=1")
    _, error = process.communicate()
    assert process.returncode == 1
    assert error.splitlines()[-1].startswith("oncelog: Ray could not be started: no memory — ")


def test_a_cluster_that_runs_already_is_not_held_twice(start):
    process = start("--config", "joining=1")
    _, error = process.communicate()
    assert process.returncode == 1
    assert " — use it, or stop it first" in error


def test_settings_are_names_with_numbers_or_text():
    assert head.parse_settings(["a=1", "b=-2", "c=x=y"]) == {"a": 1, "b": -2, "c": "x=y"}
    flags = head.parse_settings(["a=true", "b=False", "c=truely"])
    assert flags == {"a": True, "b": False, "c": "truely"}
    assert ClusterConfig(**head.parse_settings(["audit_allowed=true"])).audit_allowed


@pytest.mark.parametrize("pair", ["a", "=1", "a b=1"])
def test_a_setting_that_is_none_is_refused(pair):
    with pytest.raises(CliError, match="is not a setting"):
        head.parse_settings([pair])


class Failing:
    """A cluster whose shutdown raises ``failures`` first."""

    data_dir = ""

    def __init__(self, data_dir, *failures):
        self.data_dir = str(data_dir)
        self.failures = list(failures)
        self.calls = 0

    def shutdown(self):
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture
def no_wait(monkeypatch):
    monkeypatch.setattr(head, "SHUTDOWN_RETRY_S", 0.0)
    monkeypatch.setattr(cluster_connection, "has_log", lambda: True)


def test_a_controller_that_restarts_is_asked_again_to_stop(no_wait, tmp_path):
    cluster = Failing(tmp_path, NetworkError(), NotControllerError())
    head.shut_down(cluster)
    assert cluster.calls == 3


def test_a_log_that_cannot_be_stopped_is_given_up(no_wait, tmp_path):
    cluster = Failing(tmp_path, *[NetworkError()] * head.SHUTDOWN_ATTEMPTS)
    with pytest.raises(NetworkError):
        head.shut_down(cluster)
    assert cluster.calls == head.SHUTDOWN_ATTEMPTS


def test_an_error_that_stays_is_not_tried_again(no_wait, tmp_path):
    cluster = Failing(tmp_path, InvalidSettingError("x"))
    with pytest.raises(InvalidSettingError):
        head.shut_down(cluster)
    assert cluster.calls == 1


def test_a_log_that_was_stopped_before_leaves_nothing_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(cluster_connection, "has_log", lambda: False)
    word = cluster_connection.Discovery(address="h:1", dashboard_url="", process_id=1)
    cluster_connection.write_discovery(tmp_path, word)
    cluster = Failing(tmp_path)
    head.shut_down(cluster)
    assert cluster.calls == 0
    assert not (tmp_path / "cluster.json").exists()
