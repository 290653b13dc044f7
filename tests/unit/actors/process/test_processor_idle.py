"""Processors are kept awake while the process lives, if the machine lets it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oncelog.actors.process.processor_idle import LATENCY_FILE, keep_processors_awake

PROCESS = """
import sys
from pathlib import Path
from oncelog.actors.config import ClusterConfig, ReplicaConfig
from oncelog.actors.launch.processes import production
cluster = ClusterConfig(processor_idle=sys.argv[1])
production(ReplicaConfig(topic="t", partition=0, broker_id=0, data_dir="", cluster=cluster))
print([str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()])
"""


def open_files() -> list[str]:
    return [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux tells which files are open")
def test_the_request_is_no_latency_at_all_and_lasts_as_long_as_the_process(tmp_path: Path) -> None:
    file = tmp_path / "latency"
    file.touch()
    assert keep_processors_awake(file)
    assert keep_processors_awake(file)
    assert file.read_bytes() == b"\0\0\0\0"
    assert open_files().count(str(file)) == 1


def test_a_machine_that_refuses_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not keep_processors_awake(tmp_path / "missing")
    (warning,) = caplog.messages
    assert "processor_idle='poll'" in warning
    assert f"{tmp_path / 'missing'} (No such file or directory)" in warning


@pytest.mark.skipif(not os.access(LATENCY_FILE, os.W_OK), reason="this machine refuses")
@pytest.mark.parametrize(("processor_idle", "is_held"), [("sleep", False), ("poll", True)])
def test_the_setting_decides_for_every_process_of_the_cluster(
    processor_idle: str, is_held: bool
) -> None:
    command = [sys.executable, "-c", PROCESS, processor_idle]
    printed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert (str(LATENCY_FILE) in printed) is is_held
