"""Nodes die for real, without Ray: each is a shell with a process that is named like a raylet."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from deadlines import DEADLINE_S, wait_for
from faults.fault_plan import EMPTIED_DISK, NODE, OLD_DISK, Fault
from faults.struck_nodes import StruckNodes, copy_disk
from ray_nodes import children_of, is_raylet


class FakeNodes:
    """As ``ray_nodes.Nodes``."""

    links = None

    def __init__(self, directory):
        self.root = directory
        self.raylet = directory / "raylet"
        shutil.copy("/bin/sleep", self.raylet)
        self.processes = {}
        for number in (2, 3):
            self.start_node(f"node-{number}", "", labels="")

    def start_node(self, name, _address, *, labels):
        (self.root / name).mkdir(exist_ok=True)
        # The first process of the second outlives its raylet a while, as on a busy machine.
        end = "wait; sleep 1" if name == "node-3" else "wait"
        script = f"{self.raylet} 600 & echo there; {end}"
        process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
        self.processes[name] = process
        wait_for(lambda: any(map(is_raylet, children_of(process.pid))), "the raylet")

    def state(self, number):
        """That of the raylet: S sleeps, T is stopped."""
        (raylet,) = children_of(self.processes[f"node-{number}"].pid)
        return Path(f"/proc/{raylet}/stat").read_text().rpartition(")")[2].split()[0]

    def close(self):
        for process in self.processes.values():
            for pid in children_of(process.pid):
                subprocess.run(["kill", "-KILL", str(pid)], check=True)
            process.wait()


@pytest.fixture
def nodes(tmp_path):
    found = FakeNodes(tmp_path)
    yield found
    found.close()


class Watched:
    """``StruckNodes`` of two nodes, what it noted, and what is not in sync."""

    def __init__(self, nodes):
        self.notes = []
        self.unwhole = ""
        self.problems = {}
        self.is_noted = threading.Condition()
        self.struck = StruckNodes(nodes, (2, 3), lambda: self.unwhole, self._note, self.problem_of)

    def problem_of(self, number):
        return self.problems.get(number, "")

    def _note(self, function, number):
        with self.is_noted:
            self.notes.append((function, number))
            self.is_noted.notify_all()

    def wait(self, *note):
        with self.is_noted:
            assert self.is_noted.wait_for(lambda: note in self.notes, DEADLINE_S), self.notes


@pytest.fixture
def watched(nodes):
    found = Watched(nodes)
    yield found
    found.struck.stop()
    assert found.struck.errors == []


def fault(role=NODE, *, pause_s=0.0, away_s=0.0):
    return Fault(role, pause_s, 0.0, is_aimed=False, at_once=False, away_s=away_s, is_whole=True)


def test_a_killed_node_is_back_later_and_none_is_struck_until_all_is_in_sync(nodes, watched):
    before = nodes.processes["node-2"].pid
    watched.unwhole = "a-0"
    assert watched.struck.strike(7, fault(away_s=0.1), 2)
    watched.wait("back", 7)
    assert nodes.processes["node-2"].pid != before
    assert not watched.struck.may_strike
    watched.unwhole = ""
    watched.wait("whole", 7)
    assert watched.struck.may_strike


def test_a_node_that_takes_a_while_to_die_is_not_whole_before_it_is_back(watched):
    assert watched.struck.strike(9, fault(away_s=0.1), 3)
    watched.wait("whole", 9)
    assert watched.notes == [("node_ended", 9), ("back", 9), ("whole", 9)]


def test_a_paused_node_goes_on_when_it_is_healed(nodes, watched):
    assert watched.struck.strike(8, fault(pause_s=600), 3)
    wait_for(lambda: nodes.state(3) == "T", "the pause")
    assert not watched.struck.may_strike
    watched.struck.heal()
    wait_for(lambda: nodes.state(3) == "S", "its end")
    watched.wait("whole", 8)
    assert ("back", 8) not in watched.notes


def test_a_node_comes_back_on_an_empty_disk(nodes, watched):
    (nodes.root / "node-2" / "log").mkdir()
    assert watched.struck.strike(1, fault(EMPTIED_DISK, away_s=0.1), 2)
    watched.wait("whole", 1)
    assert list((nodes.root / "node-2").iterdir()) == []


def test_a_disk_of_before_is_emptied_once_the_log_refuses_it(nodes, watched):
    """1. A node dies, and what its disk had is kept. 2. It dies again, later, and comes back on
    that. 3. Its broker takes no part: an operator empties the disk.
    """
    log = nodes.root / "node-2" / "log"
    log.write_text("old")
    assert watched.struck.strike(1, fault(away_s=0.1), 2)
    watched.wait("whole", 1)
    log.write_text("new")
    watched.unwhole = "a-0"
    assert watched.struck.strike(2, fault(OLD_DISK, away_s=0.1), 2)
    watched.wait("back", 2)
    assert log.read_text() == "old"
    watched.problems[2] = "its disk is of before"
    watched.wait("emptied", 2)
    watched.unwhole, watched.problems[2] = "", ""
    watched.wait("whole", 2)
    assert not log.exists()


def test_a_disk_is_copied_as_it_is_once_nothing_writes_to_it_any_more(tmp_path, monkeypatch):
    """A process of the dead node renames a file while it is copied."""
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    (disk / "checkpoint.tmp").write_text("new")
    real, left = shutil.copy2, [1]

    def copy_file(source, target, **options):
        if left:
            left.pop()
            (disk / "checkpoint.tmp").rename(disk / "checkpoint")
        return real(source, target, **options)

    monkeypatch.setattr(shutil.copytree, "__defaults__", (False, None, copy_file, False, False))
    copy_disk(disk, copy)
    assert [path.name for path in copy.iterdir()] == ["checkpoint"]
