"""``oncelog metrics``: the table, and the files for Grafana and Prometheus."""

from __future__ import annotations

import json

import yaml

from oncelog.actors.process.metrics import METRICS
from oncelog.api.cli import main as cli

DASHBOARD = "oncelog_grafana_dashboard.json"
ALERTS = "oncelog_alerts.yml"


def test_the_list_has_every_metric_under_the_names_that_prometheus_knows(capsys):
    assert cli.main(["metrics", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [name for metric in METRICS for name in metric.exported_names]
    assert [line.split()[0] for line in lines] == ["METRIC", *names]
    assert cli.main(["metrics", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["metric"] for one in listed] == names
    (sync,) = [one for one in listed if one["metric"] == "ray_oncelog_sync_duration_ms_sum_total"]
    assert (sync["kind"], sync["unit"], sync["tags"]) == ("histogram", "ms", "broker")


def test_the_files_are_written_to_a_directory_that_is_made(tmp_path, capsys):
    directory = tmp_path / "new" / "monitoring"
    assert cli.main(["metrics", "dashboards", str(directory)]) == 0
    assert sorted(path.name for path in directory.iterdir()) == [ALERTS, DASHBOARD]
    assert json.loads((directory / DASHBOARD).read_text())["title"] == "oncelog"
    assert yaml.safe_load((directory / ALERTS).read_text())["groups"]
    assert capsys.readouterr().out.count("wrote ") == 2


def test_files_that_are_there_are_kept_unless_they_may_be_replaced(tmp_path, capsys):
    command = ["metrics", "dashboards", str(tmp_path)]
    (tmp_path / "mine.json").write_text("{}")
    (tmp_path / ALERTS).write_text("groups: []\n")
    assert cli.main(command) == 1
    refusal = capsys.readouterr().err
    assert ALERTS in refusal
    assert DASHBOARD not in refusal
    assert not (tmp_path / DASHBOARD).exists(), "all files or none"
    assert (tmp_path / ALERTS).read_text() == "groups: []\n"
    assert cli.main([*command, "--overwrite"]) == 0
    assert "OncelogReplicaOffline" in (tmp_path / ALERTS).read_text()
    capsys.readouterr()
    assert cli.main(command) == 0
    assert capsys.readouterr().out.count("exists already") == 2
    assert (tmp_path / "mine.json").read_text() == "{}"


def test_a_directory_that_cannot_be_written_is_named(tmp_path, capsys):
    place = tmp_path / "file"
    place.write_text("")
    assert cli.main(["metrics", "dashboards", str(place / "below")]) == 1
    assert str(place) in capsys.readouterr().err
