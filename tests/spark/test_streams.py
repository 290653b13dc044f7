"""Spark streams and a real cluster: each row once, whatever becomes of the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from oncelog.storage.model import TopicPartition

pytestmark = [pytest.mark.ray, pytest.mark.spark]

DRIVER_TIMEOUT_S = 280
ROW_COUNT = 40
BATCH_OFFSETS = 12

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from oncelog import spark_bridge
from oncelog.spark_bridge.sink import StreamWriter
from oncelog.spark_bridge.source import OncelogDataSource

address, checkpoints, dies = sys.argv[1], sys.argv[2], sys.argv[3] == "dies"


class DyingWriter(StreamWriter):
    def commit(self, messages, batchId):
        super().commit(messages, batchId)
        if batchId == 1:
            import os, signal
            from oncelog.actors.process.process_table import ProcessTable

            os.kill(ProcessTable("").ancestor("java").process_id, signal.SIGKILL)
            signal.pause()


class DyingSource(OncelogDataSource):
    def streamWriter(self, schema, overwrite):
        return DyingWriter(super().streamWriter(schema, overwrite)._write)


spark = (
    SparkSession.builder.master("local[2,2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.log.level", "OFF")
    .getOrCreate()
)
spark_bridge.register(spark)
if dies:
    spark.dataSource.register(DyingSource)


def stream(topic, **options):
    reader = spark.readStream.format("oncelog").option("address", address)
    reader = reader.options(startingOffsets="earliest", **options)
    return reader.option("subscribe", topic).load().select("value", "partition")


def to_end(writer, name):
    writer = writer.option("checkpointLocation", checkpoints + "/" + name)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def into(frame, topic, **options):
    writer = frame.writeStream.format("oncelog").option("address", address)
    return writer.option("topic", topic).options(**options)


def refusal(action):
    try:
        action()
    except Exception as error:
        return [line for line in str(error).splitlines() if "ValueError: oncelog: " in line][-1]


limits = {"maxOffsetsPerTrigger": BATCH_OFFSETS, "kafka.group.id": "shown"}
copied = to_end(into(stream("in", **limits), "out"), "copy")
progress = [json.loads(item.json) for item in copied.recentProgress]


def twice(frame, batch_id):
    for _ in range(2):
        writer = frame.write.format("oncelog").option("address", address).option("topic", "each")
        writer.options(txnAppId="each", txnVersion=batch_id).mode("append").save()


to_end(stream("in").writeStream.foreachBatch(twice), "each")
found = {
    "batches": [item["batchId"] for item in progress if item["numInputRows"]],
    "latest": progress[-1]["sources"][0]["latestOffset"],
    "end": progress[-1]["sources"][0]["endOffset"],
    "refusals": [
        refusal(lambda: to_end(into(stream("in", endingOffsets="latest"), "out"), "a")),
        refusal(lambda: to_end(into(stream("in"), "out", txnAppId="a", txnVersion=1), "b")),
        refusal(lambda: to_end(into(stream("in"), "nowhere"), "c")),
    ],
}
print("found", json.dumps(found))
""".replace("BATCH_OFFSETS", str(BATCH_OFFSETS))


def drive(cluster, checkpoints, how):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, cluster.address, str(checkpoints), how],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
        timeout=DRIVER_TIMEOUT_S,
    )


def numbers(cluster, topic):
    """The rows of a topic, as a reader of committed records gets them."""
    found = []
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            found += [int(record.value) for record in consumer.poll(500)]
    return sorted(found)


def test_a_stream_whose_driver_is_killed_in_its_commit_copies_each_row_once(cluster, tmp_path):
    """1. Batch 1 is committed, and its driver killed before it knows. 2. The query is started
    again: batch 1 comes again, and is not written again. 3. It goes on to the end.
    """
    for topic in ("in", "out", "each"):
        cluster.admin().create_topic(topic, partitions=2)
    with cluster.producer() as producer:
        for number in range(ROW_COUNT):
            producer.send("in", value=str(number).encode(), partition=number % 2)
    first = drive(cluster, tmp_path, "dies")
    assert first.returncode != 0
    assert 0 < len(numbers(cluster, "out")) < ROW_COUNT, first.stderr
    second = drive(cluster, tmp_path, "lives")
    assert second.returncode == 0, second.stderr
    assert numbers(cluster, "out") == list(range(ROW_COUNT))
    assert numbers(cluster, "each") == list(range(ROW_COUNT))
    (line,) = [line for line in second.stdout.splitlines() if line.startswith("found ")]
    found = json.loads(line.removeprefix("found "))
    assert found["batches"] == [1, 2, 3]
    assert found["end"]["in"] == found["latest"]["in"] == {"0": 20, "1": 20}
    ending, version, nowhere = found["refusals"]
    assert "are for batches; leave them out" in ending
    assert "would name every batch of the stream" in version
    assert "there is no topic 'nowhere' (there are " in nowhere
