"""Processes as the kernel tells of them: who is gone, and who only cannot be seen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import structs

from oncelog.actors.process import process_table
from oncelog.actors.process.process_table import ProcessTable, raylet_addresses

WAIT = "import sys; sys.stdin.read()"
WITHOUT_FIRST_THREAD = """
import ctypes, sys, threading
first = threading.main_thread().native_id
stat = f"/proc/self/task/{first}/stat"

def tell_and_wait():
    while open(stat).read().rpartition(")")[2].split()[0] != "Z":
        pass
    print("ended", flush=True)
    sys.stdin.read()

threading.Thread(target=tell_and_wait).start()
EXIT_OF_A_THREAD = {"x86_64": 60, "aarch64": 93}
ctypes.CDLL(None).syscall(EXIT_OF_A_THREAD[__import__("platform").machine()], 0)
"""
WAIT_S = 30


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", WAIT], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate(timeout=WAIT_S)


def test_a_process_is_there_until_it_ends(child):
    table = ProcessTable("here")
    driver = table.process(child.pid)
    assert driver.process_id == child.pid
    assert table.lives(driver) is True
    child.kill()
    # It waits to be reaped now, by this process.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert table.lives(driver) is False
    assert table.process(child.pid) is None
    child.wait(WAIT_S)
    assert table.lives(driver) is False
    assert table.process(child.pid) is None


def test_a_process_whose_first_thread_has_ended_is_there():
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_FIRST_THREAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    table = ProcessTable("here")
    try:
        driver = table.process(process.pid)
        assert process.stdout.readline() == b"ended\n"
        assert table.lives(driver) is True
        assert table.process(process.pid) == driver
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)


def test_a_proc_of_another_space_of_process_ids_tells_nothing(monkeypatch):
    """As after ``unshare --pid`` without a mount: its ids are those of other processes."""
    driver = ProcessTable("here").process(os.getpid())
    monkeypatch.setattr(os, "getpid", lambda: driver.process_id + 1)
    table = ProcessTable("here")
    assert table.process(driver.process_id) is None
    assert table.lives(structs.replace(driver, start_ticks=driver.start_ticks - 1)) is None


def test_what_identifies_this_machine_is_read_once_in_each_process(monkeypatch):
    """Hundreds of processes are looked at several times a second."""
    real, read = os.readlink, []
    monkeypatch.setattr(os, "readlink", lambda path: read.append(path) or real(path))
    table = ProcessTable("here")
    driver = table.process(os.getpid())
    once = len(read)
    assert [table.lives(driver) for _ in range(3)] == [True] * 3
    assert len(read) == once > 0
    # A fork of this process.
    monkeypatch.setattr(os, "getpid", lambda: driver.process_id + 1)
    assert table.lives(driver) is None
    assert len(read) > once


def test_a_later_process_of_the_same_id_is_another_one():
    table = ProcessTable("here")
    driver = table.process(os.getpid())
    assert table.lives(driver) is True
    assert table.lives(structs.replace(driver, start_ticks=driver.start_ticks - 1)) is False


@pytest.mark.parametrize("place", ["host", "boot", "namespace"])
def test_nobody_takes_for_gone_what_cannot_be_seen_from_here(child, monkeypatch, place):
    driver = ProcessTable("here").process(child.pid)
    child.kill()
    child.wait(WAIT_S)
    host = "there" if place == "host" else "here"
    if place == "boot":
        monkeypatch.setattr(process_table, "_BOOT_ID", process_table._PROC / "self/comm")
    if place == "namespace":
        real = os.readlink
        monkeypatch.setattr(os, "readlink", lambda path: str(real(path)) + "another")
    assert ProcessTable(host).lives(driver) is None


def test_a_process_of_somebody_else_is_there_though_it_may_not_be_asked(child, monkeypatch):
    table = ProcessTable("here")
    driver = table.process(child.pid)

    def refuse(process_id, signal):
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", refuse)
        assert table.lives(driver) is True
        # As where /proc shows everybody only their own.
        patch.setattr(process_table, "_stat_of", lambda process_id: None)
        assert table.lives(driver) is True


def test_without_proc_nothing_is_known(tmp_path, monkeypatch):
    driver = ProcessTable("here").process(os.getpid())
    monkeypatch.setattr(process_table, "_PROC", tmp_path)
    monkeypatch.setattr(process_table, "_BOOT_ID", tmp_path / "boot_id")
    table = ProcessTable("here")
    assert table.process(os.getpid()) is None
    assert table.ancestor("java") is None
    assert table.lives(structs.replace(driver, process_id=2**40)) is None


def test_an_impossible_process_id_is_that_of_nobody():
    table = ProcessTable("here")
    driver = structs.replace(table.process(os.getpid()), process_id=2**62)
    assert table.lives(driver) is True


def test_the_nearest_ancestor_that_runs_a_command_is_found():
    program = (
        "from oncelog.actors.process.process_table import ProcessTable\n"
        "found = ProcessTable('here').ancestor('driver (x) S')\n"
        "print(found.process_id if found else 'nobody')\n"
    )
    # A name that would be mistaken for other fields of the line, if that were split at blanks.
    middle = (
        "import subprocess, sys\n"
        "open('/proc/self/comm', 'w').write('driver (x) S')\n"
        "shell = ['sh', '-c', '\"$0\" -c \"$1\"; true', sys.executable, sys.argv[1]]\n"
        "print(__import__('os').getpid(), subprocess.run(shell, stdout=-1, text=True).stdout)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", middle, program],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_S,
    )
    process_id, found = shown.stdout.split()
    assert found == process_id
    assert ProcessTable("here").ancestor("driver (x) S") is None


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory whose programs every user may run."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.skipif(not hasattr(os, "seteuid") or os.getuid() != 0, reason="needs root")
def test_only_nodes_of_this_user_are_known(public_directory: Path) -> None:
    """Whoever calls a program "raylet" is not believed, nor if it runs with others' rights."""
    program = public_directory / "raylet"
    shutil.copy("/bin/sleep", program)

    def become(real: int, effective: int) -> Callable[[], None]:
        return lambda: os.setresuid(real, effective, effective)

    users = {"ours": (0, 0), "anothers": (65534, 65534), "raised": (65534, 0)}
    started = [
        subprocess.Popen(
            # An option that sleep refuses would end it: the address is its name in the table.
            [f"--gcs-address={name}:1", "60"],
            executable=program,
            preexec_fn=become(*ids),
        )
        for name, ids in users.items()
    ]
    try:
        assert raylet_addresses() & {f"{name}:1" for name in users} == {"ours:1"}
    finally:
        for process in started:
            process.kill()
            process.wait()
