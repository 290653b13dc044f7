"""RayDP on two nodes of Ray, each with a broker and an executor."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deadlines import wait_for
from ray_nodes import Nodes, can_unshare

pytestmark = [pytest.mark.ray, pytest.mark.nodes, pytest.mark.spark, pytest.mark.slow]

HELPERS = Path(__file__).resolve().parent.parent / "helpers"
DRIVER_TIMEOUT_S = 500
PARTITIONS = 4
ROW_COUNT = 400

PROGRAM = """
import json, sys
from collections import Counter
import oncelog
from oncelog import spark_bridge

address, topic, leaders = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])


def node():
    # Ray gives each of its workers, so each executor, the process of its node.
    import os

    return os.environ["RAY_RAYLET_PID"]


def with_node(batches):
    import pyarrow as pa

    for batch in batches:
        keys = [str(identifier) for identifier in batch["id"].to_pylist()]
        yield pa.RecordBatch.from_pydict({"key": keys, "value": [node()] * len(keys)})


def by_node(batches):
    import pyarrow as pa

    for batch in batches:
        yield batch.append_column("node", pa.array([node()] * batch.num_rows))


with oncelog.connect(address) as cluster:
    spark = spark_bridge.session(cluster, executors=2, cores=1, memory="500m")
    rows = spark.range(0, ROW_COUNT, 1, 2).mapInArrow(with_node, "key STRING, value STRING")
    rows.write.format("oncelog").option("topic", topic).mode("append").save()
    ways = set()
    for _ in range(20):
        records = spark.read.format("oncelog").option("subscribe", topic).load()
        columns = ("CAST(key AS STRING) key", "CAST(value AS STRING) writer", "partition")
        schema = "key STRING, writer STRING, partition INT, node STRING"
        found = records.selectExpr(*columns).mapInArrow(by_node, schema).collect()
        ways |= {(row.node, leaders[row.partition]) for row in found}
        if len(ways) == 4:
            break
    counts = Counter(int(row.key) for row in found)
    print("found", json.dumps({
        "once": sorted(counts) == list(range(ROW_COUNT)) and set(counts.values()) == {1},
        "written": sorted({(row.writer, leaders[row.partition]) for row in found}),
        "read": sorted(ways),
    }))
    spark_bridge.stop(spark)
""".replace("ROW_COUNT", str(ROW_COUNT))

SPECULATION = """
import json, sys, threading, time
from pathlib import Path
import oncelog
from deaths.judging import SETTLED_WITHIN_S, read_values, seconds_until_empty, unsettled
from deaths.late_source import LATE, LateSource
from oncelog import spark_bridge

address, directory = sys.argv[1], Path(sys.argv[2])
CONFIGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    # How long a task that is told to end may go on.
    "spark.python.task.killTimeout": "60s",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "5",
}


def until(is_true):
    deadline = time.monotonic() + 180
    while not is_true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.1)


def write(frame, topic, late):
    options = {LATE: late, "topic": topic, "kafka.linger.ms": 0}
    if topic.startswith("batch"):
        frame.write.format("oncelog").options(**options).mode("append").save()
        return
    stream = spark.readStream.format("oncelog").option("subscribe", "rows")
    stream = stream.option("startingOffsets", "earliest").load().select("value", "partition")
    checkpoint = str(directory / topic / "checkpoint")
    stream = stream.writeStream.format("oncelog").options(**options, checkpointLocation=checkpoint)
    stream.trigger(availableNow=True).start().awaitTermination()


with oncelog.connect(address) as cluster:
    spark = spark_bridge.session(cluster, executors=2, cores=1, memory="500m", configs=CONFIGS)
    spark.dataSource.register(LateSource)
    for topic in ("rows", *sys.argv[3:]):
        cluster.admin().create_topic(topic, 2, 2)
    executors = lambda: spark._jsc.sc().getExecutorMemoryStatus().size() - 1
    frame = spark.range(0, 40, 1, 2).selectExpr(
        "CAST(id AS STRING) AS value", "CAST(id / 20 AS INT) AS partition"
    )
    frame.write.format("oncelog").option("topic", "rows").mode("append").save()
    found = {}
    for topic in sys.argv[3:]:
        until(lambda: executors() == 2)
        home = directory / topic
        home.mkdir()
        write(frame, topic, f"{home} {topic.rpartition('-')[2]}")
        until((home / "loser").exists)
        _, is_open = seconds_until_empty(lambda: unsettled(cluster, topic), SETTLED_WITHIN_S)
        loser = json.loads((home / "loser").read_text())
        found[topic] = {"loser": loser, "open": is_open, "values": read_values(cluster, topic)}
    print("found", json.dumps(found))
    spark_bridge.stop(spark)
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    if not can_unshare():
        pytest.skip("needs the right to give a process mounts of its own")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HELPERS))
        patch.setenv("PYTHONWARNINGS", "ignore")
        found = Nodes(tmp_path_factory.mktemp("nodes"), head_labels="broker=1")
        try:
            assert found.start_log().returncode == 0
            found.start_node("two", "127.0.0.2", labels="broker=2")
            wait_for(lambda: found.brokers() == {1: "alive", 2: "alive"}, "both brokers")
            yield found
        finally:
            found.close()


def create(nodes: Nodes, topic: str, partitions: int) -> list[dict[str, Any]]:
    """A topic with both replicas of each partition in sync; how its partitions are."""
    number = str(partitions)
    created = nodes.run("topics", "create", topic, "--partitions", number)
    assert (created.returncode, created.stderr) == (0, "")

    def described() -> list[dict[str, Any]]:
        shown = nodes.run("topics", "describe", topic, "--json").stdout
        return list(json.loads(shown)["partitions"]) if shown else []

    wait_for(lambda: [len(one["isr"]) for one in described()] == [2] * partitions, "two replicas")
    return described()


def run(nodes: Nodes, program: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", program, nodes.address, *arguments],
        env=nodes.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=DRIVER_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    return dict(json.loads(line.removeprefix("found ")))


def test_executors_read_from_and_write_to_leaders_on_each_others_nodes(nodes: Nodes) -> None:
    partitions = create(nodes, "spread", PARTITIONS)
    leaders = [one["leader"] for one in partitions]
    assert set(leaders) == {1, 2}
    found = run(nodes, PROGRAM, "spread", json.dumps(leaders))
    assert found["once"]
    for how in ("written", "read"):
        executors = {node for node, _ in found[how]}
        ways = {(node, leader) for node, leader in found[how]}
        assert len(executors) == 2
        assert ways == {(node, leader) for node in executors for leader in (1, 2)}


def test_a_copy_of_a_task_wins_and_the_loser_leaves_nothing(nodes: Nodes, tmp_path: Path) -> None:
    """1. A task is late, so a copy of it runs on the other host. 2. The copy wins; where the name
    says so its executor is killed before the commit. 3. The late one writes on after the commit.
    """
    topics = ("batch-kill", "stream-spare")
    told = run(nodes, SPECULATION, str(tmp_path), *topics)
    assert set(told) == set(topics)
    for found in told.values():
        assert found["loser"].startswith("refused: ")
        assert sorted(map(int, found["values"])) == list(range(40))
        assert found["open"] == ""
