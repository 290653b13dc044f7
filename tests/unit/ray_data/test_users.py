"""As whom Ray Data reads and writes: driver and workers log in, each from its own file."""

from __future__ import annotations

import logging
import pickle
from types import SimpleNamespace

import pyarrow as pa
import pytest
import ray
from distributed_world import client_of_user, refusing
from fake_cluster import FakeCluster

from oncelog import ray_data
from oncelog.actors.protocol.messages.partition import (
    DescribeReplicaRequest,
    FetchRequest,
    ListOffsetsRequest,
    ProduceRequest,
)
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnReply,
    AddPartitionsToTxnRequest,
    BeginRunReply,
    BeginRunRequest,
    EndTxnRequest,
    EnlistReply,
    EnlistRequest,
    LeaveRunRequest,
    PartitionEnrolment,
)
from oncelog.api import client
from oncelog.api.distributing.engine_connection import (
    Endpoint,
    ProcessConnection,
)
from oncelog.api.distributing.write import DistributedWrite
from oncelog.api.session import cluster_connection
from oncelog.api.session.event_loop import LoopThread
from oncelog.api.session.login import FILE_VARIABLE, USER_VARIABLE, Login, login_of
from oncelog.ray_data import connection, sink, source
from oncelog.ray_data.arguments import ReadArguments, WriteArguments
from oncelog.ray_data.sink import OncelogDatasink, write_options
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    InvalidSettingError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)

PLANTED = "planted-secret-e83a"
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.fixture
def as_bob(tmp_path):
    """The arguments of user bob, whose file has the planted password."""
    path = tmp_path / "bob"
    path.write_text(f"{PLANTED}\n", encoding="utf-8")
    return {"user": "bob", "password_file": path}


@pytest.fixture
def cluster():
    """Topic ``t`` of three records, and a coordinator that allows everything."""
    cluster = FakeCluster()
    (log,) = cluster.create("t")
    log.append(b"0", b"1", b"2")
    cluster.hooks[DescribeReplicaRequest] = lambda request: request.reply_type(size_bytes=300)
    cluster.hooks[BeginRunRequest] = lambda request: BeginRunReply(number=1)
    cluster.hooks[EnlistRequest] = lambda request: EnlistReply(producer_id=5, producer_epoch=0)
    cluster.hooks[AddPartitionsToTxnRequest] = lambda request: AddPartitionsToTxnReply(
        enrolments=tuple(
            PartitionEnrolment(topic_partition=tp, error=ErrorCode.NONE, ticket=b"ticket")
            for tp in request.partitions
        )
    )
    cluster.hooks[ProduceRequest] = lambda request: request.reply_type(base_offset=3)
    cluster.hooks[LeaveRunRequest] = refusing(NO_ID)
    return cluster


@pytest.fixture
def process(monkeypatch, cluster):
    """This process in its Ray cluster: who has logged in, and whose connections are closed."""
    loop_thread = LoopThread("test")
    found = SimpleNamespace(users=[], closed_users=[], passwords=[])

    def connect(**given):
        login = login_of(**given)
        user = next(filter(None, (login.user, login.token_file, login.certificate)), "")
        if user == "eve":
            raise SaslAuthenticationFailedError
        made = client_of_user(cluster, loop_thread, login)
        found.users.append(user)
        found.passwords.append(getattr(made.identity, "password", None))
        made.close = lambda: found.closed_users.append(user)
        return made

    monkeypatch.setattr(client, "connect", connect)
    monkeypatch.setattr(connection, "_process", ProcessConnection(lambda processes: None))
    monkeypatch.setattr(cluster_connection, "join_ray", lambda address: None)
    monkeypatch.setattr(cluster_connection, "ray_cluster_id", lambda: "cluster")
    context = SimpleNamespace(get_job_id=lambda: "job")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    yield found
    loop_thread.close()


@pytest.fixture
def made(monkeypatch):
    """What ``read`` gives to Ray Data."""
    found = []
    monkeypatch.setattr(source, "read_datasource", lambda made, **_: found.append(made))
    return found


def tasks_of(made):
    """Its tasks, as they come to workers."""
    (datasource,) = made
    tasks = datasource.get_read_tasks(1)
    return [pickle.loads(ray.cloudpickle.dumps(task)) for task in tasks]


# --- arguments --------------------------------------------------------------------------------


def test_a_user_is_given_with_the_path_of_its_password_file():
    given = {"user": "alice", "password_file": "/etc/alice"}
    for arguments in (ReadArguments(topics="t", **given), WriteArguments(topic="t", **given)):
        assert arguments.endpoint == Endpoint(login=Login("alice", "/etc/alice"))


def test_the_user_of_the_environment_counts_where_it_is_called(monkeypatch):
    monkeypatch.setenv(USER_VARIABLE, "alice")
    monkeypatch.setenv(FILE_VARIABLE, "/etc/alice")
    options = write_options(WriteArguments(topic="t"))
    assert options.endpoint.login == Login("alice", "/etc/alice")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"user": "alice"}, "user='alice' has no password_file; give the path of a file"),
        ({"password_file": "/etc/alice"}, "password_file='/etc/alice' has no user; give user"),
        ({"user": "", "password_file": "/etc/alice"}, "user='' is not allowed; give text"),
        ({"user": "alice", "password_file": PLANTED.encode()}, "password_file is a bytes; give"),
        ({"token": PLANTED.encode()}, "token is a bytes; give the path of a file"),
        ({"cert": PLANTED.encode()}, "cert is a bytes; give the path of a file"),
        ({"token": "/etc/t", "cert": "/etc/c"}, "token and cert are given; log in by one of"),
    ],
)
def test_an_impossible_login_is_refused_before_anything_is_asked(process, given, told):
    with pytest.raises(InvalidSettingError, match=f"^{told}") as raised:
        ray_data.read("t", **given)
    assert PLANTED not in str(raised.value)
    assert process.users == []


def test_a_password_is_no_argument():
    with pytest.raises(TypeError, match="argument 'password'") as raised:
        ray_data.read("t", password=PLANTED)
    assert PLANTED not in str(raised.value)


# --- connections ------------------------------------------------------------------------------


def test_another_login_closes_the_connection_of_a_process_and_replaces_it(process, as_bob):
    nobody = connection.connect(Endpoint())
    bob = connection.connect(ReadArguments(topics="t", **as_bob).endpoint)
    assert bob is not nobody
    assert connection.connect(ReadArguments(topics="t", **as_bob).endpoint) is bob
    assert connection.connect(Endpoint()) is not nobody
    assert (process.users, process.closed_users) == (["", "bob", ""], ["", "bob"])


def test_another_password_in_the_file_is_another_login(process, as_bob):
    endpoint = ReadArguments(topics="t", **as_bob).endpoint
    first = connection.connect(endpoint)
    other = as_bob["password_file"].with_name("other")
    other.write_text("another password\n", encoding="utf-8")
    other.rename(as_bob["password_file"])
    assert connection.connect(endpoint) is not first
    assert process.passwords == [PLANTED, "another password"]


def test_a_read_of_an_unknown_user_fails_when_it_is_planned(process, made, tmp_path):
    with pytest.raises(SaslAuthenticationFailedError, match="no such user with that password"):
        ray_data.read("t", user="eve", password_file=tmp_path / "eve")
    assert made == []


# --- rights -----------------------------------------------------------------------------------


def test_tasks_read_as_the_user_of_the_driver(process, made, as_bob):
    ray_data.read("t", **as_bob)
    connection._process.close()
    (task,) = tasks_of(made)
    assert sum(block.num_rows for block in task()) == 3
    assert process.users == ["bob", "bob"]


def test_a_read_that_is_not_allowed_is_refused_when_it_is_planned(process, cluster, made, as_bob):
    cluster.hooks[ListOffsetsRequest] = refusing(NO_TOPIC)
    text = "User:bob may not call 'list_offsets': it takes Describe on topic 't'; ask an operator"
    with pytest.raises(TopicAuthorizationFailedError, match=text):
        ray_data.read("t", **as_bob)


def test_a_task_that_loses_its_right_fails_at_once(process, cluster, made, as_bob):
    ray_data.read("t", **as_bob)
    cluster.hooks[FetchRequest] = refusing(NO_TOPIC)
    (task,) = tasks_of(made)
    text = "User:bob may not call 'fetch': it takes Read on topic 't'; ask an operator for an ACL"
    with pytest.raises(TopicAuthorizationFailedError, match=text):
        list(task())
    assert len(cluster.requests(FetchRequest)) == 1


@pytest.mark.parametrize("way", ["token", "cert"])
def test_tasks_read_and_write_by_the_token_or_certificate_of_the_driver(
    process, made, tmp_path, way
):
    path = tmp_path / way
    path.write_text(f"{PLANTED}\n", encoding="utf-8")
    ray_data.read("t", **{way: path})
    written = write_options(WriteArguments(topic="t", **{way: path}))
    for thing in (*made, *tasks_of(made), written):
        assert PLANTED.encode() not in ray.cloudpickle.dumps(thing)
        assert str(path).encode() in ray.cloudpickle.dumps(thing)
    connection._process.close()
    (task,) = tasks_of(made)
    assert sum(block.num_rows for block in task()) == 3
    assert process.users == [str(path), str(path)]


@pytest.fixture
def a_sink(process, as_bob):
    """Makes the sink of a write, as it comes to workers."""

    def new_sink(**given):
        options = write_options(WriteArguments(topic="t", **as_bob, **given))
        planned = DistributedWrite.plan(sink.connect, options)
        return pickle.loads(ray.cloudpickle.dumps(OncelogDatasink(planned)))

    return new_sink


@pytest.mark.parametrize(
    ("request_type", "refusal", "error", "text"),
    [
        (BeginRunRequest, NO_ID, TransactionalIdAuthorizationFailedError, "'begin_run': it takes "),
        (ProduceRequest, NO_TOPIC, TopicAuthorizationFailedError, r"'produce' \(partition t-0\): "),
        (EndTxnRequest, NO_ID, TransactionalIdAuthorizationFailedError, "'end_txn': it takes Wri"),
    ],
    ids=["planner", "task", "commit"],
)
def test_a_write_that_is_not_allowed_is_told_with_what_it_takes(
    a_sink, cluster, request_type, refusal, error, text
):
    cluster.hooks[request_type] = refusing(refusal)

    def write():
        made = a_sink(transactional_id="load")
        report = made.write([pa.table({"value": ["1"]})], None)
        made.on_write_complete(SimpleNamespace(write_returns=[report]))

    with pytest.raises(error, match=f"User:bob may not call {text}") as raised:
        write()
    assert "it takes Write on t" in str(raised.value)


# --- the password -----------------------------------------------------------------------------


def test_what_travels_to_workers_has_the_path_and_not_the_password(
    process, a_sink, made, as_bob, caplog
):
    with caplog.at_level(logging.DEBUG):
        ray_data.read("t", **as_bob)
        written = a_sink()
        report = written.write([pa.table({"value": ["1"]})], None)
    for thing in (*made, *tasks_of(made), written, report, ReadArguments(topics="t", **as_bob)):
        assert PLANTED.encode() not in ray.cloudpickle.dumps(thing)
        assert PLANTED not in repr(thing)
    assert b"/bob" in ray.cloudpickle.dumps(written)
    assert set(process.passwords) == {PLANTED}
    assert PLANTED not in caplog.text
