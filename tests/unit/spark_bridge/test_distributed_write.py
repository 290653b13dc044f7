from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from oncelog.spark_bridge.distributed_write import DistributedWrite, rows_by_topic
from oncelog.spark_bridge.write_options import WriteOptions
from oncelog.storage.exceptions import InvalidRequestError


def rows(*values):
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())})


def test_many_rows_are_sent_in_parts(fake_connection):
    def connect(address):
        return fake_connection

    write = DistributedWrite.plan(connect, WriteOptions(topic="t"))
    winner = write.write(connect, [rows("1"), rows("2")], gather_bytes=1)
    assert [len(table) for _, table in fake_connection.members[0].tables] == [1, 1]
    assert winner.record_count == 2


def test_a_write_knows_nothing_of_spark():
    """Who has no Spark can run the steps of a write, on a connection of Spark's kind."""
    program = (
        "import sys, oncelog.spark_bridge.distributed_write\n"
        "print([name for name in sys.modules if name.startswith(('pyspark', 'py4j', 'raydp'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# --- rows -------------------------------------------------------------------------------------


def test_the_rows_of_each_topic_keep_their_order():
    table = pa.table({"Value": ["1", "2", "3"], "topic": ["b", "a", "b"]})
    given = {topic: rows.to_pydict() for topic, rows in rows_by_topic(table, None)}
    assert given == {"a": {"value": ["2"]}, "b": {"value": ["1", "3"]}}


def test_the_option_overrides_the_column_topic():
    table = pa.table({"value": ["1", "2"], "topic": ["b", None]})
    ((topic, rows),) = rows_by_topic(table, "t")
    assert (topic, rows.to_pydict()) == ("t", {"value": ["1", "2"]})


def test_a_row_without_a_topic_is_refused():
    table = pa.table({"value": ["1", "2"], "topic": ["b", None]})
    with pytest.raises(InvalidRequestError, match="null in column 'topic'"):
        list(rows_by_topic(table, None))
