"""What a client wrote down, also one that was killed, is read back as it was."""

from __future__ import annotations

import math

import pytest
from faults.history import HistoryWriter, read_history


@pytest.fixture
def writer(tmp_path):
    writer = HistoryWriter(tmp_path, "c.0")
    yield writer
    writer.close()


def read(directory):
    return read_history(sorted(directory.glob("*.jsonl")))


def test_an_operation_is_read_back(tmp_path, writer):
    writer.invoke("txn", [["poll"]], txn_id="id")
    writer.more([["poll", {"a-0": [[3, "x"]]}], ["send", "b-0", "y", None, ["a-0", "x"]]])
    writer.commit({"group": "g", "offsets": {"a-0": 4}})
    writer.complete("ok", [["poll", {"a-0": [[3, "x"]]}], ["send", "b-0", "y", 7, ["a-0", "x"]]])
    (operation,) = read(tmp_path).operations
    assert operation.outcome == "ok"
    assert operation.transactional_id == "id"
    assert list(operation.reads()) == [("a-0", 3, "x")]
    assert [(s.key, s.value, s.offset, s.source) for s in operation.sends] == [
        ("b-0", "y", 7, ("a-0", "x"))
    ]
    assert (operation.group, operation.offsets) == ("g", {"a-0": 4})
    assert operation.start < operation.commit_start < operation.end


def test_what_a_killed_client_left_is_an_unknown_outcome(tmp_path, writer):
    writer.invoke("txn", [["send", "a-0", "x"]])
    writer.commit()
    with (tmp_path / "c.0.jsonl").open("a") as file:
        file.write('{"type":"ok","process":"c.0","f":"txn","ti')
    (operation,) = read(tmp_path).operations
    assert operation.outcome == "info"
    assert operation.end == math.inf
    assert operation.may_commit
    assert [send.value for send in operation.sends] == ["x"]


def test_without_a_commit_mark_nothing_may_become_visible(tmp_path, writer):
    writer.invoke("txn", [["send", "a-0", "x"]])
    (operation,) = read(tmp_path).operations
    assert not operation.may_commit


def test_faults_are_kept_apart_from_operations(tmp_path, writer):
    nemesis = HistoryWriter(tmp_path, "nemesis")
    nemesis.note("kill", fault=0, role="controller")
    nemesis.close()
    history = read(tmp_path)
    assert history.operations == []
    assert [fault["f"] for fault in history.faults] == ["kill"]
