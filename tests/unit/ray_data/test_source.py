from __future__ import annotations

import subprocess
import sys

import pytest

from oncelog import ray_data
from oncelog.api.distributing.read import PartitionRange, ReadBounds
from oncelog.ray_data import source
from oncelog.ray_data.columns import READ_SCHEMA
from oncelog.ray_data.source import OncelogDatasource, blocks, plan_read
from oncelog.storage.exceptions import InvalidSettingError, UnknownTopicOrPartitionError
from oncelog.storage.model import IsolationLevel, TopicPartition
from oncelog.storage.records.codec import decode_columns, encode_records

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
COMMITTED = IsolationLevel.READ_COMMITTED


class Log:
    """Topic ``t``: of one partition 0 to 90 can be read if committed; the other is empty."""

    def __init__(self):
        self.asked = []

    def partition_counts(self):
        return {"t": 2}

    def bounds(self, partitions, isolation_level):
        end_offset = 90 if isolation_level is COMMITTED else 100
        return {
            T0: ReadBounds(start_offset=0, end_offset=end_offset),
            T1: ReadBounds(start_offset=5, end_offset=5),
        }

    def offsets_at(self, timestamps, isolation_level):
        return dict.fromkeys(timestamps, 40)

    def bytes_per_offset(self, partitions):
        return dict.fromkeys(partitions, 100)

    def read(self, wanted, isolation_level):
        self.asked.append((wanted, isolation_level))
        yield decode_columns([bytes(encode_records([(None, b"v", 1_000, ())]))])


def a_plan(start="earliest", end="latest", isolation_level=COMMITTED):
    return plan_read(Log(), ("t",), start, end, isolation_level)


def a_range(start, end):
    return PartitionRange(topic_partition=T0, start_offset=start, end_offset=end)


def test_a_read_is_planned_up_to_what_its_isolation_allows():
    assert a_plan().ranges == (a_range(0, 90),)
    uncommitted = a_plan(isolation_level=IsolationLevel.READ_UNCOMMITTED)
    assert uncommitted.ranges == (a_range(0, 100),)


def test_there_are_as_many_tasks_as_ray_data_asks_for():
    made = OncelogDatasource(a_plan(), includes_headers=True, task_bytes_min=1)
    tasks = made.get_read_tasks(3)
    assert len(tasks) == 3
    sizes = [task.metadata.size_bytes for task in tasks]
    assert sizes == [30 * 148] * 3
    assert sum(sizes) == made.estimate_inmemory_data_size()
    # Control batches count as offsets: nobody knows how many rows there are before reading them.
    assert [task.metadata.num_rows for task in tasks] == [None] * 3


def test_a_task_has_no_less_of_the_log_than_is_worth_it():
    # 90 offsets of 100 bytes.
    made = OncelogDatasource(a_plan(), includes_headers=True, task_bytes_min=4_000)
    assert len(made.get_read_tasks(200)) == 2
    assert len(OncelogDatasource(a_plan(), includes_headers=True).get_read_tasks(200)) == 1


def test_a_task_reads_its_ranges_as_arrow_blocks_with_the_isolation_of_the_read():
    log = Log()
    share = (a_range(0, 1), a_range(7, 8))
    found = list(blocks(lambda: log, share, IsolationLevel.READ_UNCOMMITTED, READ_SCHEMA))
    assert log.asked == [(wanted, IsolationLevel.READ_UNCOMMITTED) for wanted in share]
    assert [block.num_rows for block in found] == [0, 1, 1]
    assert {block.schema for block in found} == {READ_SCHEMA}


def test_a_read_of_nothing_has_one_task_that_tells_the_columns(monkeypatch):
    monkeypatch.setattr(source, "connect", None)
    (task,) = OncelogDatasource(a_plan(start={"t": {0: 90}}), includes_headers=True).get_read_tasks(
        200
    )
    assert [block.schema for block in task()] == [READ_SCHEMA]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"topics": []}, r"topics=\[\] is not allowed"),
        ({"topics": ["t", 3]}, r"topics=\['t', 3\] is not allowed"),
        ({"start_offset": "latest"}, "start_offset='latest'"),
        ({"end_offset": -3}, "end_offset=-3"),
        (
            {"isolation_level": "serializable"},
            "isolation_level='serializable' is not allowed; give one of .*'read_committed'",
        ),
        ({"include_headers": "no"}, "include_headers='no'"),
        ({"override_num_blocks": 0}, "override_num_blocks=0 is not .* from 1 to 1000000"),
    ],
)
def test_an_impossible_argument_is_refused_before_anything_is_asked(monkeypatch, arguments, told):
    monkeypatch.setattr(source, "connect", None)
    with pytest.raises(InvalidSettingError, match=told):
        ray_data.read(**{"topics": "t", **arguments})


def test_what_ray_is_told_of_its_tasks_is_passed_on(monkeypatch):
    told = {}
    monkeypatch.setattr(source, "connect", lambda endpoint: Log())
    monkeypatch.setattr(source, "read_datasource", lambda made, **named: told.update(named))
    ray_data.read("t", ray_remote_args={"max_retries": 1}, num_cpus=2)
    assert (told["ray_remote_args"], told["num_cpus"]) == ({"max_retries": 1}, 2)


def test_an_unknown_topic_is_refused_before_any_task(monkeypatch):
    monkeypatch.setattr(source, "connect", lambda endpoint: Log())
    with pytest.raises(UnknownTopicOrPartitionError, match=r"no topic 'u' \(there are t\)"):
        ray_data.read(["t", "u"])


def test_importing_it_imports_neither_ray_nor_arrow():
    program = (
        "import sys, oncelog; oncelog.ray_data\n"
        "print([name for name in ('ray', 'pyarrow', 'pandas', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
