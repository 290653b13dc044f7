"""The campaign's checker judges an exported simulated history as the simulator's checkers do."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import sim_main
from faults.checker import check
from faults.history import read_history
from sample_histories import clean_history
from sim_export import exported, judged, write_history
from sim_history import History, LogEnd, Outcome
from sim_swarm import drawn_scenario, run_scenario
from test_planted_anomalies import PLANTS

from oncelog.storage.model import IsolationLevel, TopicPartition

A = TopicPartition("a", 0)


@pytest.mark.parametrize("number", range(5))
def test_a_clean_history_is_valid(number):
    verdict = judged(clean_history(number))
    assert (verdict.anomalies, verdict.name) == ([], "valid")


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__.strip("_"))
def test_an_anomaly_planted_in_a_clean_history_is_found(plant: Callable[[History], str]):
    planted = 0
    for number in range(16):
        history = clean_history(number)
        if plant(history):
            planted += 1
            assert judged(history).name == "invalid", number
    assert planted >= 5


def test_a_random_run_is_written_and_valid(tmp_path):
    """What stands in the file is what was judged."""
    path = tmp_path / "run.jsonl"
    changes = {"duration_s": 4.0, "plain_writers": 1, "writers": 3, "pause_ms": 10.0, "peace": 0.9}
    result = run_scenario(drawn_scenario(3).changed(changes), path)
    assert result.violations == []
    history = read_history([path])
    assert len([op for op in history.operations if op.is_transaction]) > 10
    assert {op.function for op in history.operations} >= {"txn", "send", "poll", "init", "drained"}
    verdict = check(history)
    assert (verdict.anomalies, verdict.name) == ([], "valid")


def test_members_of_a_run_have_an_order_each_and_none_among_them():
    """Two tasks, sent in turn; the second landed first. Then one task's own order is broken."""

    def run_of(places: dict[str, int]) -> History:
        history = History()
        write = history.begin("run 1", "job")
        for value in ("one/0", "two/0", "one/1"):
            history.acknowledge(history.send(write, A, value), places[value])
        history.start_commit(write)
        history.end(write, Outcome.OK)
        placed = sorted((offset, value) for value, offset in places.items())
        for level in IsolationLevel:
            history.final[A, level] = placed
        return history

    assert judged(run_of({"two/0": 0, "one/0": 1, "one/1": 2})).anomalies == []
    broken = judged(run_of({"one/1": 0, "one/0": 1, "two/0": 2})).anomalies
    assert [anomaly.kind for anomaly in broken] == ["int-nonmonotonic-send"]


def test_a_partition_that_lost_records_is_left_out():
    history = History()
    write = history.begin("p", "loader")
    history.acknowledge(history.send(write, A, "old"), 0)
    history.acknowledge(history.send(write, TopicPartition("b", 0), "new"), 0)
    history.start_commit(write)
    history.end(write, Outcome.OK)
    history.log_ends[A] = LogEnd(1, 1, 1, log_start_offset=1)
    for topic_partition, placed in ((A, []), (TopicPartition("b", 0), [(0, "new")])):
        history.final[topic_partition, IsolationLevel.READ_COMMITTED] = placed
    assert "a-0" not in json.dumps(exported(history))
    assert judged(history).name == "valid"


def test_a_transaction_that_was_never_asked_to_commit_has_no_mark():
    history = History()
    write = history.begin("p", "loader")
    history.send(write, A, "v")
    kinds = [line["type"] for line in exported(history)]
    assert kinds == ["meta", "invoke", "more"]


def test_a_directory_with_something_in_it_is_refused(tmp_path, capsys):
    write_history(History(), tmp_path / "old.jsonl")
    with pytest.raises(SystemExit):
        sim_main.main(["--runs", "1", "--history", str(tmp_path)])
    assert "there is something in it" in capsys.readouterr().err
    (line,) = (tmp_path / "old.jsonl").read_text().splitlines()
    assert json.loads(line)["type"] == "meta"
