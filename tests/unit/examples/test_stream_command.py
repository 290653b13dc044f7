"""The streaming demo as its command has it, and what its driver tells of Spark's progress."""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from oncelog.examples.flights import demo, stream_demo, stream_query
from oncelog.examples.flights.outcome import Outcome


@pytest.mark.parametrize(("lost", "status"), [(0, 0), (1, 1)])
def test_the_command_ends_with_a_line_figures_and_a_status(
    lost, status, monkeypatch, tmp_path, capsys
):
    ends, figures = [], tmp_path / "figures.json"
    cluster = SimpleNamespace(dashboard_url="none", shutdown=lambda: ends.append("shutdown"))
    outcome = Outcome(
        flights_in=2,
        in_log=2,
        out=2 - lost,
        lost=lost,
        duplicated=0,
        aborted_records=0,
        faults=4,
        are_figures_equal=not lost,
    )
    given = []

    def run(console, cluster, scratch, seed):
        given.append(seed)
        return outcome

    monkeypatch.setattr(demo.oncelog, "init", lambda directory: cluster)
    monkeypatch.setattr(stream_demo, "run", run)
    args = argparse.Namespace(
        streaming=True,
        brokers=1,
        seed=7,
        keep=False,
        data_dir=str(tmp_path / "data"),
        json=str(figures),
    )
    assert demo.main(args) == status
    assert given == [7]
    assert ends == ["shutdown"]
    written = json.loads(figures.read_text(encoding="utf-8"))
    assert (written["in"], written["lost"], written["seed"]) == (2, lost, 7)
    assert outcome.line in capsys.readouterr().out
    assert outcome.line.startswith("EXACTLY ONCE: 2 in" if not lost else "NOT EXACTLY ONCE: 2 in")


def test_a_seed_decides_when_driver_and_executor_are_killed_twice_each():
    faults = stream_demo.plan_faults(3)
    assert faults == stream_demo.plan_faults(3)
    assert faults != stream_demo.plan_faults(4)
    assert sorted(fault.role for fault in faults) == ["driver"] * 2 + ["executor"] * 2
    assert [fault.moment for fault in faults] == sorted(fault.moment for fault in faults)


def test_progress_is_told_with_offsets_of_the_source_and_times_in_ms():
    progress = {
        "batchId": 4,
        "eventTime": {"max": "2013-01-01T05:30:00.000Z", "watermark": "1970-01-01T00:00:01.500Z"},
        "sources": [
            {"endOffset": {"of_the_topics": {"flights": "id"}, "flights": {"0": 3, "1": 4}}}
        ],
    }
    assert stream_query.told(progress, "flights") == {
        "batch": 4,
        "read": 7,
        "reached_ms": 1_357_018_200_000,
        "watermark_ms": 1_500,
    }


def test_a_trigger_without_anything_new_tells_of_nothing_new():
    progress = {"batchId": 5, "eventTime": {}, "sources": [{"endOffset": None}]}
    assert stream_query.told(progress, "flights") == {
        "batch": 5,
        "read": 0,
        "reached_ms": 0,
        "watermark_ms": 0,
    }
