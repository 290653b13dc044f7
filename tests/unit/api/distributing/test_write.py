from __future__ import annotations

import pyarrow as pa
import pytest

from oncelog.api.distributing.write import DistributedWrite, WriteOptions, rows_by_topic
from oncelog.storage.exceptions import (
    InvalidRequestError,
    InvalidTopicError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)


def rows(*values):
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())})


def test_many_rows_are_sent_in_parts(fake_connection):
    def connect(endpoint):
        return fake_connection

    write = DistributedWrite.plan(connect, WriteOptions(topic="t"))
    winner = write.write(connect, [rows("1"), rows("2")], gather_bytes=1)
    assert [len(table) for _, table in fake_connection.members[0].tables] == [1, 1]
    assert winner.record_count == 2


def test_rows_of_many_batches_are_sent_in_one_piece(fake_connection):
    def connect(endpoint):
        return fake_connection

    write = DistributedWrite.plan(connect, WriteOptions(topic="t"))
    write.write(connect, [rows("1"), rows("2")])
    ((_, table),) = fake_connection.members[0].tables
    assert [chunk.to_pylist() for chunk in table["value"].chunks] == [["1", "2"]]


def test_a_topic_that_a_row_names_is_looked_up_before_its_rows_are_sent(fake_connection):
    """Not waited for: it is unknown for good, and the whole write fails with it."""

    def connect(endpoint):
        return fake_connection

    write = DistributedWrite.plan(connect, WriteOptions())
    batch = pa.RecordBatch.from_pydict({"value": ["1", "2"], "topic": ["t", "u"]})
    with pytest.raises(UnknownTopicOrPartitionError, match=r"no topic 'u' \(there are t\)"):
        write.write(connect, [batch])
    ((topic, sent),) = fake_connection.members[0].tables
    assert (topic, sent.to_pydict()) == ("t", {"value": ["1"]})


def test_a_topic_that_cannot_be_looked_up_now_is_left_to_those_who_send(fake_connection):
    def connect(endpoint):
        return fake_connection

    write = DistributedWrite.plan(connect, WriteOptions())
    fake_connection.check_error = RequestTimedOutError("the controller does not answer")
    batch = pa.RecordBatch.from_pydict({"value": ["1"], "topic": ["u"]})
    assert write.write(connect, [batch]).record_count == 1
    fake_connection.check_error = InvalidTopicError("it is internal")
    with pytest.raises(InvalidTopicError):
        write.write(connect, [batch])


def test_a_topic_is_looked_up_once_by_a_task(fake_connection):
    def connect(endpoint):
        return fake_connection

    write = DistributedWrite.plan(connect, WriteOptions())
    batch = pa.RecordBatch.from_pydict({"value": ["1"], "topic": ["t"]})
    write.write(connect, [batch, batch], gather_bytes=1)
    assert fake_connection.checked_topics == ["t"]
    # That of the option is known to the planner.
    write = DistributedWrite.plan(connect, WriteOptions(topic="t"))
    write.write(connect, [batch])
    assert fake_connection.checked_topics == ["t", "t"]


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
