"""A user's password and token, and what Spark and Ray keep: logs, plans, pages and event logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from deadlines import DEADLINE_S
from issued_certificates import Authority

from oncelog.actors.rpc.certificates import FILES, OUR_FILES

jwt = pytest.importorskip("jwt")

pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.slow]

PASSWORD = "planted-secret-8f3a61c2"
"""In a file, and as options that do not exist. No process gets it as an argument or a variable."""

ROW_COUNT = 100

KEY = ec.generate_private_key(ec.SECP256R1())
"""Of the issuer of tokens."""

# Spark hides values with "secret" in them, so that what it shows is searched for the end alone too.
PLANTED = (PASSWORD, PASSWORD.rpartition("-")[2])

PROGRAM = """
import json, sys, urllib.request
from pathlib import Path
import ray
import oncelog
from oncelog import spark_bridge
from ray._private import worker

data_dir, settings, password_file, token_file, events, checkpoint = sys.argv[1:]
planted = Path(password_file).read_text().strip()
planted_token = Path(token_file).read_text().strip()
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
    "token": planted_token,
    "token.file": planted_token,
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


# To use topics of the test, and transactions of Spark and Ray Data.
def rights(user):
    Operation, Resource = oncelog.Operation, oncelog.Resource
    for resource, name, operation in (
        (Resource.TOPIC, "users_", Operation.READ),
        (Resource.TOPIC, "users_", Operation.WRITE),
        (Resource.TOPIC, "others", Operation.READ),
        (Resource.TRANSACTIONAL_ID, "spark-", Operation.WRITE),
        (Resource.TRANSACTIONAL_ID, "ray-data-", Operation.WRITE),
    ):
        yield oncelog.Acl(
            principal="User:" + user, resource=resource, name=name, operation=operation,
            is_prefix=True,
        )


owner = oncelog.init(data_dir, num_cpus=2, **json.loads(settings))
for topic in ("users_ray", "users_batch", "users_stream", "users_token", "others"):
    owner.admin().create_topic(topic, partitions=2)
owner.admin().create_user("bob", planted)
owner.admin().create_acls([*rights("bob"), *rights("ann")])
# All other programs may still do everything.
owner.admin().set_authorization(is_on=True)

with oncelog.connect(owner.address, user="bob", password_file=password_file) as cluster:
    login = {"user": "bob", "password_file": password_file}
    numbers = ray.data.range(ROW_COUNT).map(lambda row: {"value": str(row["id"])})
    oncelog.ray_data.write(numbers, "users_ray", **login)
    found["ray"] = oncelog.ray_data.read("users_ray", **login).count()
    found["ray by token"] = oncelog.ray_data.read("users_ray", token=token_file).count()
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
    by_token = {"token.file": token_file}
    save("users_token", **by_token)
    found["by token"] = reader("users_token", **by_token).count()
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
    by_token["token.file"] = str(wrong.with_name("wrong_token"))
    found["errors"]["wrong token"] = refusal(lambda: reader("users_batch", **by_token).count())
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
owner.shutdown()
ray.shutdown()
print("found", json.dumps(found))
""".replace("ROW_COUNT", str(ROW_COUNT))


@pytest.fixture
def token() -> str:
    """Of user ann; in a file too, and as options that do not exist or have no path."""
    return signed(KEY)


def signed(key: ec.EllipticCurvePrivateKey) -> str:
    claims = {"iss": "an issuer", "aud": "oncelog", "sub": "ann", "exp": time.time() + 3_600}
    text: str = jwt.encode(claims, key, algorithm="ES256")
    return text


@pytest.fixture
def found(token: str, tmp_path: Path) -> dict[str, Any]:
    """What the program found, with everything that it printed."""
    import ray

    public = KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    texts = {
        "keys.pem": public.decode(),
        "password": f"{PASSWORD}\n",
        "token": f"{token}\n",
        "wrong": "another\n",
        "wrong_token": signed(ec.generate_private_key(ec.SECP256R1())),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "events").mkdir()
    settings = {
        "token_keys": str(tmp_path / "keys.pem"),
        "token_issuer": "an issuer",
        "token_audience": "oncelog",
    }
    named = [str(tmp_path / name) for name in ("password", "token", "events", "checkpoint")]
    arguments = [str(tmp_path / "data"), json.dumps(settings), *named]
    issued = Authority(tmp_path, "ours").issue("127.0.0.1", ray.util.get_node_ip_address())
    secured = {ours: issued[rays] for ours, rays in zip(OUR_FILES, FILES, strict=True)}
    # In a process of its own: a JVM that was started for another session lacks RayDP's classes.
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * DEADLINE_S,
        env={**os.environ, **secured, "PYTHONWARNINGS": "ignore"},
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


def test_a_password_and_a_token_are_in_nothing_that_spark_and_ray_keep(
    found: dict[str, Any], token: str, tmp_path: Path
) -> None:
    """One session: it reads and writes as users, and is given the password and the token in wrong
    options.
    """
    planted = (*PLANTED, token, token.rpartition(".")[2])
    assert (found["ray"], found["batch"], found["stream"]) == (ROW_COUNT,) * 3
    assert (found["ray by token"], found["by token"], found["after"]) == (ROW_COUNT,) * 3
    errors = found["errors"]
    for name in ("password", "kafka.sasl.password", "sasl.jaas.config", "kafka.sasl.jaas.config"):
        for kind in ("read", "write"):
            text = f"oncelog: {name} is not allowed: Spark shows options; give user, and as "
            assert text in errors[f"{kind} {name}"]
    for kind in ("read", "write"):
        shown = "oncelog: token is not allowed: Spark shows options; give as token.file"
        assert shown in errors[f"{kind} token"]
        assert "oncelog: token is not a path; give that of a" in errors[f"{kind} token.file"]
    assert "oncelog: passwrd is not a setting" in errors["read passwrd"]
    assert "oncelog: There is no such user with that password; check" in errors["wrong"]
    assert "There is no such user with that password; check" in errors["ray"]
    assert "oncelog: The cluster does not accept the token; check" in errors["wrong token"]
    assert "oncelog: password.file='" in errors["gone"]
    assert "it takes Write on topic 'others'; ask an operator for an ACL" in errors["not his"]
    for name, text in (*errors.items(), *found["pages"].items(), ("printed", found["printed"])):
        assert not [word for word in planted if word in text], name
    events, logs = tmp_path / "events", Path(found["session"]) / "logs"
    # The search finds what is there.
    assert files_with(events, ("spark.eventLog.dir",))
    assert files_with(logs, ("users",))
    assert "spark.eventLog.dir" in "".join(found["pages"].values())
    for kept in (events, logs, tmp_path / "checkpoint", tmp_path / "data"):
        assert files_with(kept, planted) == []
