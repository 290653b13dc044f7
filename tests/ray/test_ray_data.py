"""``oncelog.ray_data`` on a real cluster: round trip, retried and failed tasks, a rerun."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog import ray_data

pytestmark = pytest.mark.ray

ROWS = 3_000
BLOCKS = 3


@pytest.fixture(autouse=True)
def _a_task_per_block(monkeypatch: pytest.MonkeyPatch) -> None:
    from oncelog.ray_data import sink

    monkeypatch.setattr(sink, "TASK_BYTES", 1)


def numbers(mark: str = "") -> Any:
    """A dataset of records in blocks of their own; ``mark`` distinguishes their values.

    What they are made of is there, as blocks: Ray Data would tell a sink fused with what makes
    them those blocks' columns.
    """
    import pyarrow as pa
    import ray

    def records(table: Any) -> Any:
        values = [f"{mark}{number}" for number in table["id"].to_pylist()]
        return pa.table({"key": pa.array(values), "value": pa.array(values)})

    blocks = ray.data.range(ROWS, override_num_blocks=BLOCKS).materialize()
    return blocks.map_batches(records, batch_format="pyarrow")


def expected(mark: str = "") -> Counter[bytes]:
    return Counter(f"{mark}{number}".encode() for number in range(ROWS))


def values(dataset: Any) -> Counter[bytes]:
    return Counter(row["value"] for row in dataset.iter_rows())


def write_with(sink_class: Any, dataset: Any, topic: str) -> None:
    """Write with a sink that breaks in its own way."""
    from oncelog.api.distributing.write import DistributedWrite, WriteOptions
    from oncelog.ray_data.connection import connect

    dataset.write_datasink(sink_class(DistributedWrite.plan(connect, WriteOptions(topic=topic))))


def test_a_dataset_goes_to_a_topic_and_comes_back(cluster: Any, topic: str) -> None:
    ray_data.write(numbers(), topic)
    dataset = ray_data.read(topic, override_num_blocks=5)
    assert values(dataset) == expected()
    assert dataset.materialize().num_blocks() == 5
    (row,) = ray_data.read(
        topic, start_offset={topic: {0: 7}}, end_offset={topic: {0: 8, 1: 0}}
    ).take_all()
    assert (row["topic"], row["partition"], row["offset"]) == (topic, 0, 7)
    assert row["key"] == row["value"]
    assert ray_data.read(topic).limit(10).count() == 10


def test_a_write_task_that_dies_with_all_its_rows_sent_leaves_nothing_twice(
    cluster: Any, topic: str, tmp_path: Path
) -> None:
    from oncelog.ray_data.sink import OncelogDatasink

    died = tmp_path / "died"

    class DyingSink(OncelogDatasink):
        def write(self, blocks: Any, ctx: Any) -> Any:
            report = super().write(blocks, ctx)
            if not died.exists():
                died.touch()
                os._exit(1)
            return report

    write_with(DyingSink, numbers(), topic)
    assert died.exists()
    assert values(ray_data.read(topic)) == expected()
    # The rows of the attempt that died are there, and aborted.
    assert values(ray_data.read(topic, isolation_level="read_uncommitted")).total() > ROWS


def test_a_write_that_fails_leaves_nothing_visible_and_holds_up_nobody(
    cluster: Any, topic: str
) -> None:
    from oncelog.ray_data.sink import OncelogDatasink

    class FailingSink(OncelogDatasink):
        def write(self, blocks: Any, ctx: Any) -> Any:
            super().write(blocks, ctx)
            raise ValueError("no report of rows that are all sent")

    with pytest.raises(ValueError, match="no report of rows"):
        write_with(FailingSink, numbers("failed-"), topic)
    ray_data.write(numbers("good-"), topic)
    assert values(ray_data.read(topic)) == expected("good-")


def test_an_interrupted_write_leaves_nothing_visible_and_holds_up_nobody(
    cluster: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncelog.ray_data.sink import OncelogDatasink

    def interrupted(sink: Any, result: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(OncelogDatasink, "on_write_complete", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ray_data.write(numbers("interrupted-"), topic)
    ray_data.write(numbers("good-"), topic)
    assert values(ray_data.read(topic)) == expected("good-")


def test_a_process_connects_once(cluster: Any) -> None:
    from oncelog.api.distributing.engine_connection import DEFAULT_ENDPOINT, Endpoint
    from oncelog.ray_data.connection import connect

    assert connect(DEFAULT_ENDPOINT) is connect(Endpoint(address=cluster.address))


def test_a_version_is_written_once(cluster: Any, topic: str, tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    def note(row: Any) -> Any:
        ran.touch()
        return row

    version = {"txn_app_id": f"app-{topic}", "txn_version": 4}
    ray_data.write(numbers().map(note), topic, **version)
    ran.unlink()
    ray_data.write(numbers().map(note), topic, **version)
    assert not ran.exists()
    assert values(ray_data.read(topic)) == expected()
    with pytest.raises(oncelog.OutdatedVersionError):
        ray_data.write(numbers(), topic, txn_app_id=f"app-{topic}", txn_version=3)


def test_wrong_columns_are_refused_before_any_task_where_they_are_known(
    cluster: Any, topic: str
) -> None:
    import ray

    with pytest.raises(oncelog.InvalidSettingError, match="column 'id' cannot be written"):
        ray_data.write(ray.data.range(3), topic)
    with pytest.raises(Exception, match="column 'value' must be binary or string, not int64"):
        ray_data.write(ray.data.range(3).map(lambda row: {"value": row["id"]}), topic)
    assert ray_data.read(topic).count() == 0


def test_the_example_runs_twice_and_writes_once(cluster: Any, topic: str) -> None:
    from oncelog.examples.ray_data import copy

    for _ in range(2):
        squares = sorted(row["square"] for row in copy(topic).iter_rows())
        assert squares == [number**2 for number in range(1_000)]
