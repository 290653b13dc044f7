"""Users on a real cluster: what each may, how soon a right is gone, and what outlives a process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deadlines import DEADLINE_S

import oncelog
from oncelog import Acl, Operation, Resource

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PASSWORD = "of alice alone"


def acl(user: str, resource: Resource, name: str, operation: Operation, **more: Any) -> Acl:
    return Acl(principal=f"User:{user}", resource=resource, name=name, operation=operation, **more)


@pytest.fixture
def rules(cluster: Any) -> Iterator[Any]:
    """An administration whose rules are on; programs without a user may do everything."""
    admin = cluster.admin()
    admin.set_authorization(is_on=True)
    yield admin
    admin.set_authorization(is_on=False)
    admin.delete_acls(host="*")
    for user in admin.list_users():
        admin.delete_user(user.name)


@pytest.fixture
def user(cluster: Any, rules: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes a user, with these ACLs, and a connection of his."""
    with contextlib.ExitStack() as stack:

        def make(name: str, *acls: Acl) -> Any:
            file = tmp_path / name
            file.write_text(PASSWORD, encoding="utf-8")
            rules.create_user(name, PASSWORD)
            if acls:
                rules.create_acls(acls)
            connected = oncelog.connect(cluster.address, user=name, password_file=file)
            return stack.enter_context(contextlib.closing(connected))

        yield make


def test_a_user_works_within_his_rights_and_is_told_what_he_lacks(
    cluster: Any, user: Any, topic: str, read_all: Any
) -> None:
    alice = user(
        "alice",
        acl("alice", Resource.TOPIC, topic, Operation.WRITE),
        acl("alice", Resource.TOPIC, topic, Operation.READ),
        acl("alice", Resource.GROUP, "of-alice", Operation.READ),
        acl("alice", Resource.TRANSACTIONAL_ID, "alice-", Operation.WRITE, is_prefix=True),
        acl("alice", Resource.TOPIC, "alices-", Operation.CREATE, is_prefix=True),
    )
    with alice.producer(transactional_id="alice-1") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, value=b"hers")
    assert [record.value for record in read_all(topic)] == [b"hers"]
    with alice.consumer(group_id="of-alice", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        records: list[Any] = []
        while not records:
            records += consumer.poll(timeout_ms=1_000)
        consumer.commit()
    assert [record.value for record in records] == [b"hers"]
    alice.admin().create_topic("alices-own")
    assert set(alice.admin().list_topics()) == {topic, "alices-own"}

    cluster.admin().create_topic("of-others", exist_ok=True)
    with pytest.raises(oncelog.TopicAuthorizationFailedError, match=r"alice.*Create on Topic 'my'"):
        alice.admin().create_topic("my")
    with pytest.raises(oncelog.ClusterAuthorizationFailedError, match="alter_acls"):
        alice.admin().create_acls([acl("alice", Resource.TOPIC, "*", Operation.ALL)])
    with (
        alice.producer(transactional_id="bobs") as producer,
        pytest.raises(oncelog.TransactionalIdAuthorizationFailedError, match="'bobs'"),
    ):
        producer.init_transactions()
    with alice.consumer(group_id="of-bob") as consumer:
        consumer.subscribe([topic])
        with pytest.raises(oncelog.GroupAuthorizationFailedError, match="'of-bob'"):
            consumer.poll(timeout_ms=10_000)
    cluster.admin().delete_topic("alices-own")


def test_who_is_removed_is_out_within_a_second_and_what_was_open_is_aborted(
    rules: Any, user: Any, topic: str, read_all: Any
) -> None:
    alice = user(
        "alice",
        acl("alice", Resource.TOPIC, topic, Operation.WRITE),
        acl("alice", Resource.TRANSACTIONAL_ID, "alice-", Operation.WRITE, is_prefix=True),
    )
    producer = alice.producer(transactional_id="alice-2", transaction_timeout_ms=2_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, value=b"open").result(timeout=DEADLINE_S)
    began = time.monotonic()
    rules.delete_user("alice")
    removed_s = time.monotonic() - began
    assert removed_s < 1.0, "every process that is up is told before the answer"
    with pytest.raises(oncelog.OncelogError, match="no such user with that password"):
        producer.commit_transaction()
    producer.close()
    with pytest.raises(oncelog.SaslAuthenticationFailedError):
        alice.admin().list_topics()
    deadline = time.monotonic() + DEADLINE_S
    transactions = rules.describe_transaction("alice-2")
    while transactions.state != "CompleteAbort" and time.monotonic() < deadline:
        transactions = rules.describe_transaction("alice-2")
    assert transactions.state == "CompleteAbort"
    assert read_all(topic) == []


def test_users_and_rules_outlive_the_controller_and_every_process(
    cluster: Any, user: Any, topic: str, kill: Any
) -> None:
    alice = user("alice", acl("alice", Resource.TOPIC, topic, Operation.WRITE))
    kill(cluster.controller)
    kill(cluster.partition(topic, 0))
    kill(cluster.partition(topic, 1))
    with alice.producer() as producer:
        sent = [producer.send(topic, value=b"%d" % number) for number in range(10)]
        for future in sent:
            future.result(timeout=DEADLINE_S)
    with pytest.raises(oncelog.TopicAuthorizationFailedError):
        alice.admin().delete_records({oncelog.TopicPartition(topic, 0): 1})


def test_a_job_runs_as_the_user_who_starts_it(
    cluster: Any, user: Any, topic: str, read_all: Any
) -> None:
    cluster.admin().create_topic(f"{topic}-out", partitions=2)
    given = [
        acl("alice", Resource.TOPIC, topic, Operation.READ),
        acl("alice", Resource.TOPIC, f"{topic}-out", Operation.WRITE),
        acl("alice", Resource.GROUP, "job-of-alice", Operation.READ),
        acl("alice", Resource.TRANSACTIONAL_ID, "job-of-alice-", Operation.WRITE, is_prefix=True),
    ]
    alice = user("alice", *given)
    with cluster.producer() as producer:
        producer.send(topic, value=b"x").result(timeout=DEADLINE_S)
    job = alice.process(
        source=topic,
        sink=f"{topic}-out",
        function=lambda table: table,
        group_id="job-of-alice",
        commit_interval_ms=0,
    )
    deadline = time.monotonic() + DEADLINE_S
    try:
        while not (found := read_all(f"{topic}-out")):
            assert time.monotonic() < deadline
    finally:
        job.stop()
    assert [record.value for record in found] == [b"x"]
