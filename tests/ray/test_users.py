"""Users on a real cluster: what each may, how soon a right is gone, and what outlives a process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from deadlines import DEADLINE_S
from issued_certificates import Authority

import oncelog
from oncelog import Acl, Operation, Resource
from oncelog.actors.rpc.certificates import FILES, OUR_FILES

jwt = pytest.importorskip("jwt")

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


def test_a_worker_of_a_queue_needs_what_the_guide_says_and_no_more(
    cluster: Any, rules: Any, user: Any, topic: str, read_all: Any
) -> None:
    """Each right is missed by name, until it is there; one taken away frees its records."""
    results, dead = f"{topic}-results", f"{topic}-dead"
    for name in (results, dead):
        cluster.admin().create_topic(name, partitions=2)
    with cluster.producer() as producer:
        for value in (b"a", b"b", b"c"):
            producer.send(topic, value, partition=0)
    alice = user("alice")

    def allow(resource: Resource, name: str, *, is_prefix: bool = False) -> None:
        reads = resource is Resource.GROUP or name == topic
        operation = Operation.READ if reads else Operation.WRITE
        rules.create_acls([acl("alice", resource, name, operation, is_prefix=is_prefix)])

    def lacks(error: type[Exception], name: str, work: Callable[[], object]) -> None:
        with pytest.raises(error, match=name):
            work()

    def result() -> None:
        with (
            alice.queue(topic, group_id="q") as queue,
            alice.producer(transactional_id="w-1") as producer,
        ):
            producer.init_transactions()
            records = queue.take(1)
            with producer.transaction():
                producer.send(results, records[0].value)
                producer.send_acknowledgements_to_transaction(records, queue)

    def bury() -> None:
        with alice.queue(
            topic, group_id="q", max_delivery_count=1, dead_letter_topic=dead
        ) as queue:
            queue.take(1)

    lacks(oncelog.TransactionalIdAuthorizationFailedError, "w-1", result)
    allow(Resource.TRANSACTIONAL_ID, "w-", is_prefix=True)
    lacks(oncelog.TopicAuthorizationFailedError, topic, result)
    allow(Resource.TOPIC, topic)
    lacks(oncelog.GroupAuthorizationFailedError, "'q'", result)
    allow(Resource.GROUP, "q")
    lacks(oncelog.TopicAuthorizationFailedError, results, result)
    allow(Resource.TOPIC, results)
    result()
    assert [record.value for record in read_all(results)] == [b"a"]
    with alice.queue(topic, group_id="q") as queue:
        queue.take(1)  # Its second delivery is one too many.
    lacks(oncelog.TransactionalIdAuthorizationFailedError, "q-dead-letters-", bury)
    allow(Resource.TRANSACTIONAL_ID, "q-dead-letters-", is_prefix=True)
    lacks(oncelog.TopicAuthorizationFailedError, dead, bury)
    allow(Resource.TOPIC, dead)
    bury()
    assert [record.value for record in read_all(dead)] == [b"b"]

    queue = alice.queue(topic, group_id="q")
    records = queue.take()
    rules.delete_acls(host="*")
    queue.accept(records)
    lacks(oncelog.GroupAuthorizationFailedError, "'q'", queue.flush)
    with cluster.queue(topic, group_id="q") as other:
        assert [one.value for one in other.take(timeout_ms=60_000)] == [b"c"]
    with contextlib.suppress(oncelog.GroupAuthorizationFailedError):
        queue.close()


# --- by token and certificate -----------------------------------------------------------------

CLUSTER = """
import json, subprocess, sys, time
import oncelog, ray
from oncelog import Acl, Operation, Resource

data_dir, settings, program, *files = sys.argv[1:]
cluster = oncelog.init(data_dir, num_cpus=2, **json.loads(settings))
admin = cluster.admin()
admin.create_topic("flights", partitions=1)
for name in ("ann", "PROCESS"):
    rights = (
        (Resource.TOPIC, "flights", Operation.READ),
        (Resource.TOPIC, "flights", Operation.WRITE),
        (Resource.TRANSACTIONAL_ID, "by-", Operation.WRITE),
    )
    admin.create_acls(
        Acl(
            principal="User:" + name, resource=resource, name=what, operation=operation,
            is_prefix=True,
        )
        for resource, what, operation in rights
    )
admin.set_authorization(is_on=True)
outside = subprocess.Popen(
    [sys.executable, "-c", program, cluster.address, *files],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
)
for line in outside.stdout:
    if line == "both are in\\n":
        break
began = time.monotonic()
admin.delete_acls(host="*")
took_s = time.monotonic() - began
rest, _ = outside.communicate("their rights are gone\\n", timeout=240)
(line,) = [line for line in rest.splitlines() if line.startswith("found ")]
print("found", json.dumps({"took_s": took_s, **json.loads(line.removeprefix("found "))}))
cluster.shutdown()
ray.shutdown()
"""

OUTSIDE = """
import json, sys, time
import oncelog

address, *files = sys.argv[1:]
good = {"token": files[0], "cert": files[1]}
bad = {"token of another key": {"token": files[2]}, "expired certificate": {"cert": files[3]}}
FLIGHTS = oncelog.TopicPartition("flights", 0)
found = {"read": {}, "refused": {}, "after": {}}


def refusal(action):
    began = time.monotonic()
    try:
        action()
    except oncelog.OncelogError as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return "nothing was refused", "", 0.0


def read_on(consumer):
    # What was fetched while that was allowed is delivered.
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        consumer.poll(timeout_ms=1_000)


open_ones = {}
for way, file in good.items():
    cluster = oncelog.connect(address, **{way: file})
    producer = cluster.producer(transactional_id="by-" + way)
    producer.init_transactions()
    with producer.transaction():
        producer.send("flights", way.encode())
    consumer = cluster.consumer(auto_offset_reset="earliest")
    consumer.assign([FLIGHTS])
    values = []
    while way.encode() not in values:
        values += [record.value for record in consumer.poll(timeout_ms=1_000)]
    found["read"][way] = [value.decode() for value in values]
    producer.begin_transaction()
    producer.send("flights", b"never").result(timeout=120)
    open_ones[way] = (cluster, producer, consumer)
for what, login in bad.items():
    found["refused"][what] = refusal(lambda: oncelog.connect(address, **login))
print("both are in", flush=True)
sys.stdin.readline()
for way, (cluster, producer, consumer) in open_ones.items():
    found["after"][way] = [
        refusal(lambda: read_on(consumer)),
        refusal(producer.commit_transaction),
        refusal(lambda: cluster.admin().describe_topic("flights")),
    ]
print("found", json.dumps(found), flush=True)
"""

ISSUER, AUDIENCE = "https://issuer.example", "oncelog"


@pytest.fixture
def proofs(tmp_path: Path) -> Callable[..., str]:
    """Writes what proves who somebody is, and returns the path."""

    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def pem(issued: dict[str, str]) -> str:
    """A certificate and its key."""
    return "".join(Path(issued[name]).read_text(encoding="utf-8") for name in FILES[:2])


def token(key: ec.EllipticCurvePrivateKey) -> str:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": time.time() + 3_600}
    return f"{jwt.encode(claims, key, algorithm='ES256')}\n"


def test_a_token_and_a_certificate_log_in_and_their_rights_end_within_a_second(
    tmp_path: Path, proofs: Callable[..., str]
) -> None:
    """One cluster with secured connections, and a program beside it that logs in by both."""
    import ray

    authority = Authority(tmp_path, "ours")
    issued = authority.issue("127.0.0.1", ray.util.get_node_ip_address())
    secured = {ours: issued[rays] for ours, rays in zip(OUR_FILES, FILES, strict=True)}
    key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    settings = {
        "certificate_name_rules": r"RULE:^CN=a (\w+)$/$1/U",
        "token_keys": proofs("keys.pem", public.decode()),
        "token_issuer": ISSUER,
        "token_audience": AUDIENCE,
    }
    files = (
        proofs("token", token(key)),
        proofs("user.pem", pem(authority.issue("127.0.0.8"))),
        proofs("foreign", token(other)),
        proofs("old.pem", pem(authority.issue("127.0.0.9", days=-0.5))),
    )
    arguments = [str(tmp_path / "data"), json.dumps(settings), OUTSIDE, *files]
    done = subprocess.run(
        [sys.executable, "-c", CLUSTER, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * DEADLINE_S,
        env={**os.environ, **secured},
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    found = json.loads(line.removeprefix("found "))
    assert found["read"] == {"token": ["token"], "cert": ["token", "cert"]}
    name, text, seconds = found["refused"]["token of another key"]
    assert name == "SaslAuthenticationFailedError"
    assert text.startswith("The cluster does not accept the token; check that it has not expired")
    assert seconds < 30.0, "at once, and not when the wait for a log that starts is over"
    name, text, seconds = found["refused"]["expired certificate"]
    assert name == "SaslAuthenticationFailedError"
    assert f"cert='{files[3]}' expired on " in text
    assert seconds < 30.0
    assert found["took_s"] < 1.0, "every process that is up is told before the answer"
    for way, (polled, committed, described) in found["after"].items():
        assert polled[0] == "TopicAuthorizationFailedError", way
        assert committed[0] == "TransactionalIdAuthorizationFailedError", way
        assert described[:2] == [
            "TopicAuthorizationFailedError",
            "this program may not Describe topic 'flights', whether there is one or not; ask an "
            "operator for an ACL",
        ], way
