"""What a user of Spark is told that may not do something, and who sees its password: nobody."""

from __future__ import annotations

import logging
import pickle
from types import SimpleNamespace
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
import ray
from distributed_world import client_of_user, refusing
from fake_cluster import FakeCluster
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from oncelog.actors.protocol.messages.group import OffsetCommitRequest
from oncelog.actors.protocol.messages.partition import (
    FetchRequest,
    ListOffsetsRequest,
    ProduceRequest,
)
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnReply,
    AddPartitionsToTxnRequest,
    BeginRunReply,
    BeginRunRequest,
    DescribeTransactionsReply,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EnlistReply,
    EnlistRequest,
    LeaveRunRequest,
    PartitionEnrolment,
)
from oncelog.api import client
from oncelog.api.distributing.engine_connection import ProcessConnection
from oncelog.api.session.event_loop import LoopThread
from oncelog.api.session.login import Login, login_of
from oncelog.spark_bridge import connection as connection_module
from oncelog.spark_bridge import sink, source, spark_session
from oncelog.spark_bridge.schema import read_schema
from oncelog.spark_bridge.sink import BATCH_ID, QUERY_ID
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import SaslAuthenticationFailedError

PLANTED = "planted-secret-5b1e"
READ = read_schema(includes_headers=False)
VALUE = StructType().add("value", "string")
NO_TOPIC, NO_GROUP, NO_ID, NO_LOGIN = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.SASL_AUTHENTICATION_FAILED,
)


@pytest.fixture
def options(request, tmp_path):
    """Those of user bob, whose file has what is planted: a password, unless a test says else."""
    path = tmp_path / "bob"
    path.write_text(f"{PLANTED}\n", encoding="utf-8")
    way = getattr(request, "param", "password.file")
    return {**({"user": "bob"} if way == "password.file" else {}), way: str(path), "address": "x:1"}


EACH_WAY = pytest.mark.parametrize(
    "options", ["password.file", "token.file", "cert"], indirect=True
)
"""For whoever may log in, by whatever."""


@pytest.fixture
def cluster():
    """Topic ``t`` of three records, and a coordinator that allows everything."""
    cluster = FakeCluster()
    (log,) = cluster.create("t")
    log.append(b"0", b"1", b"2")
    cluster.topic_ids["t"] = "5" * 32
    cluster.hooks[BeginRunRequest] = lambda request: BeginRunReply(number=1)
    cluster.hooks[EnlistRequest] = lambda request: EnlistReply(producer_id=5, producer_epoch=0)
    cluster.hooks[AddPartitionsToTxnRequest] = enrolled(ErrorCode.NONE)
    cluster.hooks[LeaveRunRequest] = refusing(NO_ID)
    cluster.hooks[DescribeTransactionsRequest] = lambda request: DescribeTransactionsReply()
    return cluster


def enrolled(error):
    """A hook: each partition is enrolled, or has this error."""
    return lambda request: AddPartitionsToTxnReply(
        enrolments=tuple(
            PartitionEnrolment(topic_partition=tp, error=error, ticket=b"ticket")
            for tp in request.partitions
        )
    )


@pytest.fixture
def spark(monkeypatch, cluster, options):
    """The data source of a user, on ``cluster``; each connection logs in with its file."""
    loop_thread = LoopThread("test")

    def connect(address, **given):
        made = client_of_user(cluster, loop_thread, login_of(**given))
        if "cert" in given:
            assert made.identity.key.read_text() == f"{PLANTED}\n"
        else:
            identity = made.identity
            assert (identity.read() if "token" in given else identity.password) == PLANTED
        return made

    connecting(monkeypatch, connect)
    properties = {QUERY_ID: "q", BATCH_ID: "7"}
    context = SimpleNamespace(get=lambda: SimpleNamespace(getLocalProperty=properties.get))
    monkeypatch.setattr(sink, "TaskContext", context)
    yield lambda **given: source.OncelogDataSource({**options, **given})
    loop_thread.close()


def connecting(monkeypatch, connect):
    """A process without a connection, for which ``connect`` is that of oncelog."""
    monkeypatch.setattr(client, "connect", connect)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(connection_module, "prepare_to_join", lambda: None)
    monkeypatch.setattr(connection_module, "_leave_out_of_garbage_collection", lambda: None)
    fresh = ProcessConnection(lambda processes: None)
    monkeypatch.setattr(connection_module, "_process", fresh)


def batch_read(spark, **given):
    reader = spark(subscribe="t", **given).reader(READ)
    return [batch for part in reader.partitions() for batch in reader.read(part)]


def stream_read(spark, **given):
    reader = spark(subscribe="t", startingoffsets="earliest", **given).streamReader(READ)
    end = reader.latestOffset({}, ReadAllAvailable())
    found = [batch for part in reader.partitions({}, end) for batch in reader.read(part)]
    reader.commit(end)
    return found


def rows():
    return iter([pa.RecordBatch.from_pydict({"value": ["1"]})])


def batch_write(spark, **given):
    writer = spark(topic="t", **{"transactional.id": "load"}, **given).writer(VALUE, False)
    writer.commit([writer.write(rows())])


def stream_write(spark, **given):
    writer = spark(topic="t", **given).streamWriter(VALUE, False)
    writer.commit([writer.write(rows())], 7)


CALL = "User:bob may not call "
ASK = "; ask an operator for an ACL"
LOAD = f": it takes Write on transactional id 'load'{ASK}"
QUERY = f": it takes Write on transactional id 'spark-q'{ASK}"


@pytest.mark.parametrize(
    ("run", "request_type", "error", "told"),
    [
        (batch_read, ListOffsetsRequest, NO_TOPIC, f"{CALL}'list_offsets': it takes Describe on "),
        (stream_read, ListOffsetsRequest, NO_TOPIC, f"{CALL}'list_offsets': it takes Describe on "),
        (batch_read, FetchRequest, NO_TOPIC, f"{CALL}'fetch': it takes Read on topic 't'{ASK}"),
        (stream_read, FetchRequest, NO_TOPIC, f"{CALL}'fetch': it takes Read on topic 't'{ASK}"),
        (batch_write, BeginRunRequest, NO_ID, f"{CALL}'begin_run'{LOAD}"),
        (stream_write, BeginRunRequest, NO_ID, f"{CALL}'begin_run'{QUERY}"),
        (batch_write, EnlistRequest, NO_ID, f"enlist: {CALL}'enlist'{LOAD}"),
        (
            stream_write,
            ProduceRequest,
            NO_TOPIC,
            f"{CALL}'produce' (partition t-0): it takes Write",
        ),
        (batch_write, ProduceRequest, NO_ID, f"{CALL}'produce' (partition t-0){LOAD}"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_user_may_not_do_is_told_with_the_right_that_it_takes(
    spark, cluster, run, request_type, error, told
):
    cluster.hooks[request_type] = refusing(error)
    with pytest.raises(ValueError, match=r"^oncelog: ") as raised:
        run(spark)
    assert str(raised.value).startswith(f"oncelog: {told}")
    assert str(raised.value).endswith(ASK)


@pytest.mark.parametrize("run", [batch_read, stream_read])
def test_a_topic_that_a_reader_may_not_see_is_as_one_that_does_not_exist(spark, cluster, run):
    cluster.hidden = {"t"}
    text = r"no topic 't' \(there are none yet\); create it with .*, or, if others see it, ask an"
    with pytest.raises(ValueError, match=text):
        run(spark)


@EACH_WAY
@pytest.mark.parametrize("run", [batch_write, stream_write])
def test_a_writer_is_told_of_a_topic_that_it_may_not_see(spark, cluster, run):
    cluster.hidden = {"t"}
    with pytest.raises(
        ValueError, match=r"may not Describe topic 't'.*: it takes Write on topic 't'"
    ):
        run(spark)


@pytest.mark.parametrize("run", [batch_write, stream_write])
def test_a_partition_that_may_not_be_written_is_named(spark, cluster, run):
    cluster.hooks[AddPartitionsToTxnRequest] = enrolled(NO_TOPIC)
    text = r"partition t-0 cannot be enrolled: it takes Write on topic 't'; ask an operator"
    with pytest.raises(ValueError, match=text):
        run(spark)


def test_rows_that_name_their_topics_need_each_of_them(spark, cluster):
    cluster.hooks[AddPartitionsToTxnRequest] = enrolled(NO_TOPIC)
    schema = StructType().add("value", "string").add("topic", "string")
    writer = spark().writer(schema, False)
    batch = pa.RecordBatch.from_pydict({"value": ["1"], "topic": ["t"]})
    text = r"partition t-0 .*: it takes Write on each topic of the rows; ask"
    with pytest.raises(ValueError, match=text):
        writer.write(iter([batch]))


@pytest.mark.parametrize("run", [batch_write, stream_write])
def test_a_commit_that_is_refused_is_told_and_an_abort_is_logged(spark, cluster, caplog, run):
    cluster.hooks[ProduceRequest] = lambda request: request.reply_type(base_offset=3)
    cluster.hooks[EndTxnRequest] = refusing(NO_ID)
    with pytest.raises(
        ValueError, match=r"'end_txn': it takes Write on transactional id '(load|spark-q)'"
    ):
        run(spark)
    spark(topic="t").writer(VALUE, False).abort([])
    assert "could not be aborted now: User:bob may not call 'end_txn'" in caplog.text


def test_progress_that_may_not_be_shown_is_logged_and_the_stream_goes_on(spark, cluster, caplog):
    cluster.hooks[OffsetCommitRequest] = refusing(NO_GROUP)
    assert len(stream_read(spark, **{"kafka.group.id": "g"})) == 1
    assert f"User:bob may not call 'offset_commit': it takes Read on group 'g'{ASK}" in caplog.text


# --- rights that are lost ---------------------------------------------------------------------


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("error", [NO_TOPIC, NO_LOGIN])
def test_a_task_that_loses_its_rights_fails_at_once(spark, cluster, fails, error):
    """Whatever may be lost: the records are there. It asks only once."""
    reader = spark(subscribe="t", failondataloss=fails).reader(READ)
    (part,) = reader.partitions()
    cluster.hooks[FetchRequest] = refusing(error)
    with pytest.raises(ValueError, match="oncelog: User:bob may not call 'fetch'"):
        list(reader.read(part))
    assert len(cluster.requests(FetchRequest)) == 1


@EACH_WAY
def test_a_topic_that_a_task_does_not_see_any_more_is_not_taken_for_deleted(spark, cluster):
    reader = spark(subscribe="t", failondataloss="false").reader(READ)
    (part,) = reader.partitions()
    cluster.hidden = {"t"}
    with pytest.raises(ValueError, match="may not call 'fetch': it takes Read on topic 't'"):
        list(reader.read(part))


@EACH_WAY
def test_a_topic_that_a_stream_does_not_see_any_more_is_not_forgotten(spark, cluster):
    """1. A stream has read a topic. 2. Its right is taken away. 3. It gets it back: if the stream
    had forgotten the topic meanwhile, it would read it again from its start.
    """
    reader = spark(subscribe="t", startingoffsets="earliest", failondataloss="false").streamReader(
        READ
    )
    end = reader.latestOffset({}, ReadAllAvailable())
    cluster.hidden = {"t"}
    again = spark(subscribe="t", failondataloss="false").streamReader(READ)
    with pytest.raises(ValueError, match=r"may not Describe topic 't'.*: it takes Read on each"):
        again.latestOffset(end, ReadAllAvailable())
    cluster.hidden = set()
    once_more = spark(subscribe="t", failondataloss="false").streamReader(READ)
    assert once_more.latestOffset(end, ReadAllAvailable()) == end


@EACH_WAY
def test_a_batch_of_a_topic_that_is_not_seen_any_more_is_not_planned_without_it(spark, cluster):
    """Its end is in the checkpoint: what the batch leaves out is never read."""
    reader = spark(subscribe="t", startingoffsets="earliest", failondataloss="false").streamReader(
        READ
    )
    end = reader.latestOffset({}, ReadAllAvailable())
    cluster.hidden = {"t"}
    with pytest.raises(ValueError, match="may not Describe topic 't'"):
        reader.partitions({}, end)


def test_a_topic_that_a_user_may_see_and_is_deleted_is_passed_over(spark, cluster):
    reader = spark(subscribe="t", failondataloss="false").reader(READ)
    (part,) = reader.partitions()
    cluster.delete("t")
    assert list(reader.read(part)) == []


# --- a login that is refused ------------------------------------------------------------------


@pytest.fixture
def refused(monkeypatch, options):
    """The data source of a user that nobody knows, with the real ``connect`` of a process."""

    def connect(address, **given):
        login_of(**given).identity()
        raise SaslAuthenticationFailedError

    connecting(monkeypatch, connect)
    return lambda **given: source.OncelogDataSource({**options, **given})


@pytest.mark.parametrize("run", [batch_read, stream_read, batch_write, stream_write])
def test_a_query_of_an_unknown_user_fails_when_it_is_planned(refused, run, caplog):
    text = r"^oncelog: There is no such user with that password; check the name and the password"
    with caplog.at_level(logging.DEBUG), pytest.raises(ValueError, match=text) as raised:
        run(refused)
    assert PLANTED not in caplog.text + str(raised.value)


@pytest.mark.parametrize("run", [batch_read, stream_read, batch_write, stream_write])
def test_a_password_file_that_is_not_on_a_node_is_named_as_the_option(refused, run, tmp_path):
    gone = str(tmp_path / "gone")
    text = rf"^oncelog: password.file='{gone}' cannot be read \(No such file or directory\)"
    with pytest.raises(ValueError, match=text):
        run(lambda **given: refused(**{**given, "password.file": gone}))


@pytest.mark.parametrize("options", ["token.file"], indirect=True)
def test_a_token_file_that_is_not_on_a_node_is_named_as_the_option(refused, tmp_path):
    gone = str(tmp_path / "gone")
    text = rf"^oncelog: token.file='{gone}' cannot be read \(No such file or directory\)"
    with pytest.raises(ValueError, match=text):
        batch_read(lambda **given: refused(**{**given, "token.file": gone}))


# --- the password -----------------------------------------------------------------------------


@EACH_WAY
def test_what_travels_between_processes_has_the_path_and_not_the_content(spark, cluster, caplog):
    caplog.set_level(logging.DEBUG)
    cluster.hooks[ProduceRequest] = lambda request: request.reply_type(base_offset=3)
    reader = spark(subscribe="t").reader(READ)
    stream = spark(subscribe="t", startingoffsets="earliest").streamReader(READ)
    end = stream.latestOffset({}, ReadAllAvailable())
    writer = spark(topic="t").writer(VALUE, False)
    stream_writer = spark(topic="t").streamWriter(VALUE, False)
    travelling = [
        reader,
        spark(subscribe="t", pushdown="true").reader(READ),
        *reader.partitions(),
        *reader.read(reader.partitions()[0]),
        stream,
        *stream.partitions({}, end),
        end,
        writer,
        writer.write(rows()),
        stream_writer,
        stream_writer.write(rows()),
        writer._write,
        stream_writer._write,
        reader._options,
    ]
    for thing in travelling:
        assert PLANTED.encode() not in pickle.dumps(thing)
        assert PLANTED not in repr(thing)
    assert b"/bob" in pickle.dumps(writer)
    assert PLANTED not in caplog.text


def test_a_session_passes_on_the_path_of_the_file(monkeypatch, options):
    """And that there is no user, whatever the environment of the executors is."""
    path = options["password.file"]
    ways = (Login("bob", path), Login(token_file=path), Login(certificate=path), Login())
    for login in ways:
        context = SimpleNamespace(environment={}, master="spark://there", pythonExec="")
        fake = SimpleNamespace(sparkContext=context, dataSource=MagicMock())
        cluster = SimpleNamespace(address="there:1", context=SimpleNamespace(login=login))
        spark_session.register(fake, cluster)
        assert context.environment["ONCELOG_ADDRESS"] == "there:1"
        assert context.environment["ONCELOG_USER"] == login.user
        assert context.environment["ONCELOG_PASSWORD_FILE"] == login.password_file
        assert context.environment["ONCELOG_TOKEN_FILE"] == login.token_file
        assert context.environment["ONCELOG_CERT"] == login.certificate
        assert PLANTED not in str(context.environment)


def test_a_session_without_a_cluster_passes_on_the_user_of_the_environment(monkeypatch):
    monkeypatch.setenv("ONCELOG_USER", "alice")
    monkeypatch.setenv("ONCELOG_PASSWORD_FILE", "/etc/alice")
    context = SimpleNamespace(environment={}, master="spark://there", pythonExec="")
    fake = SimpleNamespace(sparkContext=context, dataSource=MagicMock())
    spark_session.register(fake)
    assert context.environment["ONCELOG_USER"] == "alice"
    assert context.environment["ONCELOG_PASSWORD_FILE"] == "/etc/alice"


@EACH_WAY
def test_who_may_reads_and_writes_as_anybody_else(spark, cluster):
    cluster.hooks[ProduceRequest] = lambda request: request.reply_type(base_offset=3)
    cluster.hooks[EndTxnRequest] = lambda request: request.reply_type(visible=True)
    for read in (batch_read, stream_read):
        assert [batch.num_rows for batch in read(spark)] == [3]
    for write in (batch_write, stream_write):
        write(spark)
    assert [request.committed for request in cluster.requests(EndTxnRequest)] == [True, True]
