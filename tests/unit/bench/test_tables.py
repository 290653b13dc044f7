"""The pure half of the benchmarks: summaries, tables, and which rows are chosen."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"
ROOMS = ("samples", "cases", "sides", "clusters", "measuring", "figures")
"""Each imports those after it."""


@pytest.fixture(autouse=True)
def bench_modules(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])


def test_a_summary_shows_the_median_and_the_range():
    from figures.table import Summary

    assert str(Summary.of([4.0, 1.0, 2.5])) == "2.50 (1.00 to 4.00)"
    assert str(Summary.of([0.01234])) == "0.012"


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.500"), (-1.256, "-1.26"), (12.34, "12.3"), (123_456.7, "123,457")]
)
def test_small_values_keep_more_digits(value, text):
    from figures.table import rounded

    assert rounded(value) == text


def test_a_percentile_is_a_value_that_occurred():
    from figures.table import percentile

    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert percentile(values, 0.5) == 3.0
    assert percentile(values, 1.0) == 5.0


def test_what_is_beyond_a_base_is_taken_round_by_round():
    from figures.table import beyond

    assert beyond([3.0, 5.0], [1.0, 2.0]) == [2.0, 3.0]
    assert beyond([3.0, 5.0], [1.0]) == [2.0]


def test_a_table_has_a_column_per_side_and_no_stray_bars():
    from figures.table import markdown

    assert markdown(["", "ours", "theirs"], {"a|b": ["1", "2"]}).splitlines() == [
        "|  | ours | theirs |",
        "| --- | ---: | ---: |",
        "| a/b | 1 | 2 |",
    ]


def test_rows_are_chosen_by_name_or_family():
    from figures.kafka_rows import ROWS, chosen

    assert chosen([]) == ROWS
    assert [row.name for row in chosen(["paced", "memory-6"])] == ["memory-6", "paced"]
    assert [row.name for row in chosen(["consume-100"])] == ["consume-100"]
    assert {row.group for row in chosen(["idle"], partitions_max=6)} == {
        "partitions-0",
        "partitions-6",
    }
    with pytest.raises(ValueError, match="there is no row 'nothing'"):
        chosen(["nothing"])


def test_several_brokers_have_the_rows_of_the_load_alone():
    from figures.kafka_rows import LOAD, ROWS, chosen

    assert chosen([], brokers=3) == tuple(row for row in ROWS if row.group == LOAD)
    assert [row.name for row in chosen(["send", "paced"], brokers=3)][:2] == ["paced", "send-100"]
    for name in ("memory", "idle-6", "create", "start"):
        with pytest.raises(
            ValueError, match=f"row '{name}' is taken with one broker; with 3: tran"
        ):
            chosen([name], brokers=3)
    with pytest.raises(ValueError, match="there is no row 'nothing'"):
        chosen(["nothing"], brokers=3)


def test_each_node_of_kafka_knows_the_quorum_and_listens_on_ports_of_its_own():
    from clusters.kafka_broker import Ports, properties_of

    ports = [Ports(11, 21), Ports(12, 22), Ports(13, 23)]
    lines = properties_of(2, ports, Path("/logs/2"), fsync=True).splitlines()
    assert {
        "node.id=2",
        "controller.quorum.voters=1@127.0.0.1:21,2@127.0.0.1:22,3@127.0.0.1:23",
        "listeners=PLAINTEXT://127.0.0.1:12,CONTROLLER://127.0.0.1:22",
        "advertised.listeners=PLAINTEXT://127.0.0.1:12",
        "log.dirs=/logs/2",
        "log.flush.interval.messages=1",
    } <= set(lines)


@pytest.mark.parametrize(("nodes", "min_insync"), [(1, 1), (3, 2)])
def test_kafka_keeps_as_many_copies_as_it_has_nodes(nodes, min_insync):
    from clusters.kafka_broker import Ports, properties_of

    ports = [Ports(11 + number, 21 + number) for number in range(nodes)]
    text = properties_of(1, ports, Path("/logs"), fsync=False)
    values = dict(line.split("=", 1) for line in text.splitlines())
    copies = {name: value for name, value in values.items() if name.endswith("replication.factor")}
    insync = {name: value for name, value in values.items() if re.search(r"min\.(isr|ins)", name)}
    assert set(copies.values()) == {str(nodes)}
    assert set(insync.values()) == {str(min_insync)}
    assert {"offsets.topic.replication.factor", "transaction.state.log.replication.factor"} <= {
        *copies
    }
    assert {"min.insync.replicas", "transaction.state.log.min.isr"} <= {*insync}
    assert "log.flush.interval.messages" not in values


def test_rows_of_one_cluster_stand_together():
    from figures.kafka_rows import ROWS

    groups = [row.group for row in ROWS]
    assert groups == sorted(groups, key=groups.index)
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_a_cell_tells_a_failure_from_what_was_not_measured():
    from measuring.findings import Findings

    findings = Findings()
    findings.values["start", "ours"] += [1.0, 3.0, 2.0]
    findings.failures["start", "theirs"] = "it broke"
    table = findings.table("", ["ours", "theirs", "others"], {"start": "start, s", "idle": "idle"})
    assert table.splitlines()[2:] == ["| start, s | 2.00 (1.00 to 3.00) | failed | - |"]


def test_a_sample_of_several_sides_names_the_side_of_a_figure(capsys, tmp_path):
    from measuring.findings import take, tell

    tell("rate", 1.0)
    tell("rate", 2.0, "theirs")
    take("rate", lambda: 1 / 0, "others")
    script = tmp_path / "sample.py"
    script.write_text(f"import measuring.report\nprint({capsys.readouterr().out!r})")
    assert findings_of(script) == {
        "values": [["rate", "ours", 1.0], ["rate", "theirs", 2.0]],
        "failures": [["rate", "others", "ZeroDivisionError: division by zero"]],
    }


def findings_of(script: Path) -> dict[str, list[list[Any]]]:
    """Run one sample in a process of its own: who runs samples takes in what they leave behind,
    and kills whatever is below it.
    """
    program = f"""
import json
from measuring.findings import Findings
findings = Findings()
findings.run("ours", {str(script)!r}, timeout_s=60)
values = [[*key, value] for key, values in findings.values.items() for value in values]
failures = [[*key, reason] for key, reason in findings.failures.items()]
print(json.dumps({{"values": values, "failures": failures}}))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=BENCH, capture_output=True, text=True, check=True
    )
    return json.loads(ended.stdout.splitlines()[-1])


def test_rooms_are_named_as_no_benchmark_and_import_one_way():
    benchmarks = {path.stem for path in BENCH.glob("*.py")}
    rooms = {path.parent.name for path in BENCH.glob("*/__init__.py")}
    assert rooms == set(ROOMS)
    assert not rooms & benchmarks, "`import spark` could mean either"
    for path in BENCH.glob("*/*.py"):
        used = set(re.findall(r"^ *(?:from|import) (\w+)", path.read_text(), re.MULTILINE))
        above = ROOMS[: ROOMS.index(path.parent.name)]
        assert not used & {*above, "samples"}, path


def test_shares_of_speed_are_taken_round_by_round():
    from figures.spark_parts import BASE, EMPTY, KAFKA, OURS, name_of, shares, titles, wanted_share

    write = name_of("write", 100)
    values = {
        (write, OURS): [10.0, 30.0, 20.0],
        (write, KAFKA): [10.0, 10.0, 10.0],
        (EMPTY, OURS): [9.0],
        (EMPTY, KAFKA): [9.0],
    }
    assert shares(values, KAFKA) == {write: 2.0}, "an empty batch has milliseconds, not a speed"
    assert shares(values, BASE) == {}
    assert wanted_share(write) == 1.5
    assert wanted_share(name_of("stream-write", 1_000)) is None
    assert list(titles())[-1] == EMPTY
