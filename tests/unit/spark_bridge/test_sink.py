from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from oncelog.actors.protocol.messages.transaction import Winner
from oncelog.spark_bridge import sink
from oncelog.spark_bridge.options import parse_write_options
from oncelog.spark_bridge.sink import BatchWriter, TaskReport
from oncelog.storage.exceptions import (
    InvalidSettingError,
    InvalidTxnStateError,
    OutdatedVersionError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
)

SCHEMA = StructType().add("value", "string")


@pytest.fixture
def connection(monkeypatch, fake_connection):
    monkeypatch.setattr(sink, "connect", lambda address: fake_connection)
    return fake_connection


def new_writer(*, is_overwrite=False, schema=SCHEMA, **options):
    parsed = parse_write_options({"topic": "t", **options})
    return BatchWriter.prepare(parsed, schema, is_overwrite=is_overwrite)


def rows(*values):
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())})


# --- before any task --------------------------------------------------------------------------


def test_overwrite_is_refused_before_anything_is_asked(monkeypatch):
    monkeypatch.setattr(sink, "connect", None)
    with pytest.raises(InvalidSettingError, match=r"mode overwrite: .* use mode\('append'\)"):
        new_writer(is_overwrite=True)


def test_a_frame_without_value_is_refused_before_anything_is_asked(monkeypatch):
    monkeypatch.setattr(sink, "connect", None)
    with pytest.raises(InvalidSettingError, match="no column 'value'"):
        new_writer(schema=StructType().add("a", "integer"))


def test_an_unknown_topic_is_refused(connection):
    with pytest.raises(UnknownTopicOrPartitionError, match=r"no topic 'u' \(there are t\)"):
        new_writer(topic="u")


def test_a_version_that_was_overtaken_is_refused(connection):
    connection.begin_error = OutdatedVersionError("the last committed version is 4")
    with pytest.raises(OutdatedVersionError):
        new_writer(txnappid="a", txnversion="3")


# --- tasks ------------------------------------------------------------------------------------


def test_a_task_writes_its_rows_as_a_member_and_reports_them(connection):
    report = new_writer().write(iter([rows("1", "2"), rows(), rows("3")]))
    (member,) = connection.members
    assert [(topic, table["value"].to_pylist()) for topic, table in member.tables] == [
        ("t", ["1", "2", "3"])
    ]
    assert report == TaskReport(winner=Winner(producer_id=1, record_count=3))
    assert member.is_closed


def test_a_task_without_rows_takes_no_part(connection):
    report = new_writer().write(iter([rows()]))
    assert report == TaskReport(winner=None)
    assert connection.members == []


def test_a_write_whose_version_is_committed_asks_for_no_members_and_reads_no_rows(connection):
    connection.is_committed = True
    writer = pickle.loads(pickle.dumps(new_writer(txnappid="a", txnversion="1")))
    assert writer.write(None) == TaskReport(winner=None)
    assert connection.members == []
    writer.commit([TaskReport(winner=None)])
    assert connection.ends[0][0].is_committed


def test_a_task_whose_version_is_committed_meanwhile_leaves_its_rows_unread(connection):
    connection.may_enlist = False
    batches = iter([rows("1"), rows("2")])
    sink_bytes_one = new_writer(txnappid="a", txnversion="1")
    report = sink_bytes_one.write(batches)
    assert report == TaskReport(winner=None)
    assert connection.members[0].tables == []


def test_a_task_that_fails_leaves_its_member_and_says_why_in_one_line(connection):
    connection.send_error = ProducerFencedError("a newer\nrun has begun")
    with pytest.raises(ValueError, match=r"^oncelog: a newer run has begun$"):
        new_writer().write(iter([rows("1")]))
    assert connection.members[0].is_closed


def test_a_writer_and_its_report_travel_between_processes(connection):
    writer = pickle.loads(pickle.dumps(new_writer()))
    report = writer.write(iter([rows("1")]))
    assert pickle.loads(pickle.dumps(report)) == report


# --- the end ----------------------------------------------------------------------------------


def test_a_commit_ends_the_run_with_those_that_reported_rows(connection):
    writer = new_writer(**{"transactional.id": "load"})
    winner = Winner(producer_id=5, record_count=2)
    writer.commit([TaskReport(winner=winner), TaskReport(winner=None), None])
    ((membership, committed, winners),) = connection.ends
    assert (membership.transactional_id, membership.run.id) == ("load", "r")
    assert (committed, winners) == (True, [winner])


def test_a_commit_that_fails_says_why_in_one_line(connection):
    writer = new_writer()
    connection.end_error = InvalidTxnStateError("the run is over")
    with pytest.raises(ValueError, match=r"^oncelog: the run is over$"):
        writer.commit([])


def test_an_abort_ends_the_run_without_winners(connection):
    new_writer().abort([TaskReport(winner=Winner(producer_id=5, record_count=2))])
    ((_, committed, winners),) = connection.ends
    assert (committed, winners) == (False, [])


@pytest.mark.parametrize("error", [InvalidTxnStateError("over"), RuntimeError("no network")])
def test_an_abort_that_fails_is_logged_and_never_raised(connection, caplog, error):
    writer = new_writer()
    connection.end_error = error
    writer.abort([])
    assert str(error) in caplog.text
