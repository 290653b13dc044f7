"""A user's password and what Spark and Ray keep: their logs, plans, pages and event logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deadlines import DEADLINE_S

from oncelog.actors.protocol.messages.access import (
    RAY_NAME,
    Acl,
    AlterAclsRequest,
    AlterAuthorizationRequest,
    AlterUsersRequest,
    Operation,
    Resource,
    User,
)
from oncelog.actors.protocol.scram import ITERATIONS_MIN, make_credential
from oncelog.storage.errors import ErrorCode

pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.slow]

PASSWORD = "planted-secret-8f3a61c2"
"""In a file, and as options that do not exist. No process gets it as an argument or a variable."""

ROW_COUNT = 100

# Spark hides values with "secret" in them, so that what it shows is searched for the end alone too.
PLANTED = (PASSWORD, PASSWORD.rpartition("-")[2])

PROGRAM = """
import json, sys, urllib.request
from pathlib import Path
import ray
import oncelog
from oncelog import spark_bridge
from ray._private import worker

address, password_file, events, checkpoint = sys.argv[1:]
planted = Path(password_file).read_text().strip()
CONFIGS = {
    "spark.log.level": "INFO",
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": "file://" + events,
    "spark.eventLog.compress": "false",
}
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required username='bob' "
REFUSED = {
    "password": planted,
    "kafka.sasl.password": planted,
    "sasl.jaas.config": JAAS + "password='" + planted + "';",
    "kafka.sasl.jaas.config": JAAS + "password='" + planted + "';",
    "passwrd": planted,
}
found = {"errors": {}}


def refusal(action):
    try:
        action()
    except Exception as error:
        return str(error)
    return "nothing was refused"


def reader(topic, **options):
    return spark.read.format("oncelog").option("subscribe", topic).options(**options).load()


def save(topic, **options):
    written = rows.write.format("oncelog").option("topic", topic).options(**options)
    written.mode("append").save()


def page(path):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(spark.sparkContext.uiWebUrl + path, timeout=60) as answer:
        return answer.read().decode()


with oncelog.connect(address, user="bob", password_file=password_file) as cluster:
    login = {"user": "bob", "password_file": password_file}
    numbers = ray.data.range(ROW_COUNT).map(lambda row: {"value": str(row["id"])})
    oncelog.ray_data.write(numbers, "users_ray", **login)
    found["ray"] = oncelog.ray_data.read("users_ray", **login).count()
    wrong = Path(password_file).with_name("wrong")
    found["errors"]["ray"] = refusal(
        lambda: oncelog.ray_data.read("users_ray", user="bob", password_file=wrong)
    )

    spark = spark_bridge.session(
        cluster, executors=1, cores=1, memory="500m", app_name="users", configs=CONFIGS
    )
    rows = spark.range(ROW_COUNT).selectExpr("CAST(id AS STRING) AS value")
    save("users_batch")
    given = {"user": "bob", "password.file": password_file}
    found["batch"] = reader("users_batch", **given).count()
    stream = spark.readStream.format("oncelog").option("subscribe", "users_batch")
    query = stream.option("startingOffsets", "earliest").load().select("value").writeStream
    query = query.format("oncelog").option("topic", "users_stream")
    query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    found["stream"] = reader("users_stream").count()

    for name, value in REFUSED.items():
        found["errors"]["read " + name] = refusal(lambda: reader("users_batch", **{name: value}))
        found["errors"]["write " + name] = refusal(lambda: save("users_batch", **{name: value}))
    given["password.file"] = str(wrong)
    found["errors"]["wrong"] = refusal(lambda: reader("users_batch", **given).count())
    given["password.file"] = str(wrong.with_name("gone"))
    found["errors"]["gone"] = refusal(lambda: reader("users_batch", **given).count())
    found["errors"]["not his"] = refusal(lambda: save("others"))
    found["after"] = reader("users_batch").count()

    about = "/api/v1/applications/" + spark.sparkContext.applicationId
    paths = [about + end for end in (
        "", "/environment", "/executors", "/jobs", "/stages?details=true",
        "/sql?details=true&planDescription=true&length=1000",
    )]
    paths += ["/environment/", "/SQL/", "/StreamingQuery/", "/jobs/", "/executors/"]
    found["pages"] = {path: page(path) for path in paths}
    found["session"] = worker._global_node.get_session_dir_path()
    spark_bridge.stop(spark)
print("found", json.dumps(found))
""".replace("ROW_COUNT", str(ROW_COUNT))


def ask(cluster: Any, request: Any) -> None:
    context = cluster.context
    asked = context.router.call_controller(request, timeout_ms=30_000)
    reply = context.loop_thread.run(asked)
    assert reply.error is ErrorCode.NONE, reply.detail


def acls() -> tuple[Acl, ...]:
    """Bob may use topics of the test, and transactions of Spark and Ray Data."""
    rights = [
        (Resource.TOPIC, "users_", Operation.READ),
        (Resource.TOPIC, "users_", Operation.WRITE),
        (Resource.TOPIC, "others", Operation.READ),
        (Resource.TRANSACTIONAL_ID, "spark-", Operation.WRITE),
        (Resource.TRANSACTIONAL_ID, "ray-data-", Operation.WRITE),
    ]
    return tuple(
        Acl(principal="User:bob", resource=resource, name=name, operation=operation, is_prefix=True)
        for resource, name, operation in rights
    )


@pytest.fixture
def cluster_of_bob(cluster: Any) -> Iterator[Any]:
    """Rules are on; all other programs may still do everything."""
    for topic in ("users_ray", "users_batch", "users_stream", "others"):
        cluster.admin().create_topic(topic, partitions=2)
    credential = make_credential(PASSWORD, os.urandom(16), ITERATIONS_MIN)
    ask(cluster, AlterUsersRequest(put=(User(name="bob", credential=credential),)))
    ask(cluster, AlterAclsRequest(added=acls()))
    ask(cluster, AlterAuthorizationRequest(is_on=True, super_users=(RAY_NAME,)))
    yield cluster
    ask(cluster, AlterAuthorizationRequest(is_on=False, super_users=(RAY_NAME,)))
    ask(cluster, AlterAclsRequest(removed=acls()))
    ask(cluster, AlterUsersRequest(removed=("bob",)))


@pytest.fixture
def found(cluster_of_bob: Any, tmp_path: Path) -> dict[str, Any]:
    """What the program found, with everything that it printed."""
    password_file = tmp_path / "password"
    password_file.write_text(f"{PASSWORD}\n", encoding="utf-8")
    (tmp_path / "wrong").write_text("another\n", encoding="utf-8")
    (tmp_path / "events").mkdir()
    arguments = [str(password_file), str(tmp_path / "events"), str(tmp_path / "checkpoint")]
    # In a process of its own: a JVM that was started for another session lacks RayDP's classes.
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM, cluster_of_bob.address, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * DEADLINE_S,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert shown.returncode == 0, shown.stderr[-5_000:]
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("found ")]
    others = shown.stdout.replace(line, "")
    return {**json.loads(line.removeprefix("found ")), "printed": others + shown.stderr}


def files_with(root: Path, words: tuple[str, ...]) -> list[str]:
    """The files below ``root`` that have one of the words."""
    wanted = [word.encode() for word in words]
    return [
        str(path)
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink()
        if any(word in path.read_bytes() for word in wanted)
    ]


def test_a_password_is_in_nothing_that_spark_and_ray_keep(
    found: dict[str, Any], tmp_path: Path
) -> None:
    """One session: it reads and writes as a user, and is given the password in wrong options."""
    assert (found["ray"], found["batch"], found["stream"]) == (ROW_COUNT,) * 3
    assert found["after"] == ROW_COUNT
    errors = found["errors"]
    for name in ("password", "kafka.sasl.password", "sasl.jaas.config", "kafka.sasl.jaas.config"):
        for kind in ("read", "write"):
            text = f"oncelog: {name} is not allowed: Spark shows options; give user, and as "
            assert text in errors[f"{kind} {name}"]
    assert "oncelog: passwrd is not a setting" in errors["read passwrd"]
    assert "oncelog: There is no such user with that password; check" in errors["wrong"]
    assert "There is no such user with that password; check" in errors["ray"]
    assert "oncelog: password.file='" in errors["gone"]
    assert "it takes Write on topic 'others'; ask an operator for an ACL" in errors["not his"]
    for name, text in (*errors.items(), *found["pages"].items(), ("printed", found["printed"])):
        assert not [word for word in PLANTED if word in text], name
    events, logs = tmp_path / "events", Path(found["session"]) / "logs"
    # The search finds what is there.
    assert files_with(events, ("spark.eventLog.dir",))
    assert files_with(logs, ("users",))
    assert "spark.eventLog.dir" in "".join(found["pages"].values())
    assert files_with(events, PLANTED) == []
    assert files_with(logs, PLANTED) == []
    assert files_with(tmp_path / "checkpoint", PLANTED) == []
