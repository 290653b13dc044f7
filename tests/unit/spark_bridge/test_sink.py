from __future__ import annotations

import pickle
from types import MappingProxyType

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from oncelog.actors.protocol.messages.transaction import Winner
from oncelog.actors.protocol.transaction.commit_versions import version_token
from oncelog.spark_bridge import sink
from oncelog.spark_bridge.sink import BATCH_ID, QUERY_ID, BatchWriter, StreamWriter, TaskReport
from oncelog.spark_bridge.write_options import parse_write_options
from oncelog.storage.exceptions import (
    InvalidSettingError,
    InvalidTxnStateError,
    MessageTooLargeError,
    OutdatedVersionError,
    ProducerFencedError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)

SCHEMA = StructType().add("value", "string")


@pytest.fixture
def connection(monkeypatch, fake_connection):
    monkeypatch.setattr(sink, "connect", lambda endpoint: fake_connection)
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


def test_offsets_of_rows_that_were_read_are_not_written(connection):
    batch = pa.RecordBatch.from_pydict({"value": ["1"], "offset": [5], "timestampType": [0]})
    new_writer().write(iter([batch]))
    ((_, table),) = connection.members[0].tables
    assert table.column_names == ["value"]


def test_a_task_without_rows_takes_no_part(connection):
    report = new_writer().write(iter([rows()]))
    assert report == TaskReport(winner=None)
    assert not any(member.is_asked for member in connection.members)


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
    assert (membership.transactional_id, membership.run.id) == ("load", "r1")
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


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_version_that_was_committed_before_is_told_in_one_line(connection, caplog, is_committed):
    connection.is_committed = is_committed
    new_writer(txnappid="a", txnversion="1").commit([TaskReport(winner=None)])
    told = ["version 1 of 'a' was committed before: nothing is written again"]
    assert [one.split(" — ")[0] for one in caplog.messages] == (told if is_committed else [])


def test_a_row_that_is_too_large_is_told_with_the_option_of_spark(connection):
    connection.send_error = MessageTooLargeError(
        "row 0 takes 9 bytes, more than max_request_size=8"
    )
    with pytest.raises(ValueError, match=r"more than kafka.max.request.size=8"):
        new_writer().write(iter([rows("1")]))


# --- streams ----------------------------------------------------------------------------------


class FakeTaskContext:
    """The context of a task of the seventh batch; ``properties`` are those that Spark tells."""

    properties = MappingProxyType({QUERY_ID: "q", BATCH_ID: "7"})

    @classmethod
    def get(cls):
        return cls()

    def getLocalProperty(self, name):
        return self.properties.get(name)


@pytest.fixture
def seventh_batch(monkeypatch, connection):
    monkeypatch.setattr(sink, "TaskContext", FakeTaskContext)
    return connection


def new_stream_writer(*, schema=SCHEMA, **options):
    """As Spark gives it to a task."""
    parsed = parse_write_options({"topic": "t", **options})
    return pickle.loads(pickle.dumps(StreamWriter.prepare(parsed, schema)))


def told(report):
    """As it comes to the process that commits."""
    return pickle.loads(pickle.dumps(report))


def test_a_batch_of_a_stream_is_a_version_of_its_query(seventh_batch):
    writer = new_stream_writer(**{"transactional.id": "load"})
    reports = [told(writer.write(iter([rows("1", "2")]))), told(writer.write(iter([])))]
    new_stream_writer().commit(reports, 7)
    ((membership, committed, winners),) = seventh_batch.ends
    assert membership.transactional_id == "spark-q"
    assert membership.token == version_token("q", 7)
    assert (committed, winners) == (True, [Winner(producer_id=1, record_count=2)])


def test_offsets_of_rows_that_a_stream_has_read_are_not_written(seventh_batch):
    batch = pa.RecordBatch.from_pydict({"value": ["1"], "offset": [5], "timestampType": [0]})
    new_stream_writer().write(iter([batch]))
    ((_, table),) = seventh_batch.members[0].tables
    assert table.column_names == ["value"]


def test_a_stream_without_a_transactional_id_writes_under_that_of_its_query(seventh_batch):
    assert new_stream_writer().write(iter([])).report.membership.transactional_id == "spark-q"


def test_all_tasks_of_a_batch_begin_one_run(seventh_batch):
    writer = new_stream_writer()
    first, second = (writer.write(iter([rows(value)])).report for value in "ab")
    assert first.membership == second.membership
    assert new_stream_writer().write(iter([])).report.membership != first.membership


def test_a_batch_that_comes_again_after_its_commit_is_left_unread(seventh_batch):
    seventh_batch.is_committed = True
    report = told(new_stream_writer().write(None))
    new_stream_writer().commit([report], 7)
    assert seventh_batch.members == []
    assert seventh_batch.ends[0][0].is_committed


def test_a_batch_of_a_stream_that_was_committed_before_is_told_in_one_line(seventh_batch, caplog):
    seventh_batch.is_committed = True
    reports = [told(new_stream_writer().write(None)) for _ in range(3)]
    new_stream_writer().commit(reports, 7)
    (line,) = caplog.messages
    assert line.startswith("version 7 of 'q' was committed before: nothing is written again — ")


def test_one_task_that_finds_its_batch_committed_is_enough_to_know_it(seventh_batch):
    writer = new_stream_writer()
    before = told(writer.write(iter([rows("1")])))
    seventh_batch.is_committed = True
    after = told(writer.write(None))
    writer.commit([before, after], 7)
    assert seventh_batch.ends[0][0].is_committed


def test_a_commit_of_tasks_of_two_runs_is_refused(seventh_batch):
    """1. P's first task. 2. Q begins. 3. P's second task begins P's run anew. 4. P commits: its
    first task has lost its records, although the second may have got the same producer id.
    """
    first_driver, second_driver = new_stream_writer(), new_stream_writer()
    before = told(first_driver.write(iter([rows("1")])))
    second_driver.write(iter([]))
    after = told(first_driver.write(iter([rows("2")])))
    with pytest.raises(ValueError, match="oncelog: another driver writes the same batch"):
        new_stream_writer().commit([before, after], 7)
    assert seventh_batch.ends == []


def test_a_batch_before_the_last_committed_one_is_refused_with_what_to_do(seventh_batch):
    seventh_batch.begin_error = OutdatedVersionError("the last committed version of 'q' is 9")
    text = "oncelog: batch 7 of query q is older .* is 9. Its checkpoint was rolled back, or"
    with pytest.raises(ValueError, match=text):
        new_stream_writer().write(iter([rows("1")]))


def test_a_batch_that_fails_is_aborted_by_what_its_tasks_told(seventh_batch):
    report = told(new_stream_writer().write(iter([rows("1")])))
    new_stream_writer().abort([None, report], 7)
    assert [(end[0], end[1]) for end in seventh_batch.ends] == [(report.report.membership, False)]


@pytest.mark.parametrize("error", [InvalidTxnStateError("over"), RuntimeError("no network")])
def test_an_abort_of_a_batch_never_raises(seventh_batch, caplog, error):
    report = new_stream_writer().write(iter([rows("1")]))
    seventh_batch.end_error = error
    new_stream_writer().abort([report], 7)
    assert str(error) in caplog.text
    new_stream_writer().abort([None], 7)


def test_a_commit_of_a_batch_that_fails_says_why_in_one_line(seventh_batch):
    report = new_stream_writer().write(iter([rows("1")]))
    seventh_batch.end_error = InvalidTxnStateError("the run is over")
    with pytest.raises(ValueError, match=r"^oncelog: the run is over$"):
        new_stream_writer().commit([report], 7)


def test_a_stream_may_not_name_one_version_for_all_its_batches(monkeypatch):
    monkeypatch.setattr(sink, "connect", None)
    with pytest.raises(InvalidSettingError, match=r"txnAppId='a' .* inside foreachBatch"):
        new_stream_writer(txnappid="a", txnversion="1")


def test_a_stream_to_an_unknown_topic_is_refused_before_any_task(connection):
    with pytest.raises(UnknownTopicOrPartitionError, match=r"no topic 'u' \(there are t\)"):
        new_stream_writer(topic="u")


def test_a_commit_needs_no_more_of_the_cluster_than_its_coordinator(seventh_batch):
    report = new_stream_writer().write(iter([rows("1")]))
    seventh_batch.check_error = RequestTimedOutError("the controller does not answer")
    new_stream_writer().commit([report], 7)
    assert len(seventh_batch.ends) == 1


def test_a_spark_that_does_not_tell_which_batch_a_task_is_of_is_refused(monkeypatch, seventh_batch):
    monkeypatch.setattr(FakeTaskContext, "properties", {QUERY_ID: "q"})
    with pytest.raises(ValueError, match=r"does not give its tasks .*; write with foreachBatch"):
        new_stream_writer().write(iter([rows("1")]))
