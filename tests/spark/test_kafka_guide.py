"""The programs of Spark's guide to its Kafka connector, with two edits: the format and the address.

And those of our page on Spark, with one: the address, which a session of ours knows.

Source: "Structured Streaming + Kafka Integration Guide" of Spark 4. Its ``host1:port1,host2:port2``
are the Ray cluster here, and a batch is saved in the one mode that Spark allows Python sources.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from deadlines import DEADLINE_S
from fresh_topics import fresh_topics

from oncelog import spark_bridge

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.ray, pytest.mark.spark]


@pytest.fixture(scope="module")
def spark(cluster):
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    spark_bridge.register(session)
    with cluster.producer() as producer:
        for topic in ("topic1", "topic2"):
            cluster.admin().create_topic(topic, partitions=1)
            for number in range(30):
                producer.send(topic, f"{topic}-{number}".encode(), key=str(number).encode())
    yield session
    session.stop()


@pytest.fixture(scope="module")
def address(cluster):
    """Two of them, as the guide has; nobody listens at the first."""
    return f"127.0.0.1:1,{cluster.address}"


def written(topic):
    return [f"{topic}-{number}" for number in range(30)]


def values(frame):
    rows = frame.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").collect()
    return sorted((row[1] for row in rows), key=lambda text: (text[:6], int(text.split("-")[1])))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subscribe": "topic1"}, written("topic1")),
        ({"subscribe": "topic1", "includeHeaders": "true"}, written("topic1")),
        (
            {
                "subscribe": "topic1,topic2",
                "startingOffsets": '{"topic1":{"0":23},"topic2":{"0":-2}}',
                "endingOffsets": '{"topic1":{"0":28},"topic2":{"0":-1}}',
            },
            written("topic1")[23:28] + written("topic2"),
        ),
        (
            {
                "subscribePattern": "topic.*",
                "startingOffsets": "earliest",
                "endingOffsets": "latest",
            },
            written("topic1") + written("topic2"),
        ),
    ],
)
def test_its_batch_queries_read(spark, address, options, expected):
    reader = spark.read.format("oncelog").option("kafka.bootstrap.servers", address)
    # Others have written to topics that the pattern takes as well.
    found = reader.options(**options).load().filter("topic in ('topic1', 'topic2')")
    assert values(found) == expected


@pytest.mark.parametrize("names_topic", [True, False])
def test_its_batch_write_writes(spark, cluster, address, names_topic):
    topic = f"saved-{names_topic}"
    cluster.admin().create_topic(topic, partitions=1)
    source = spark.read.format("oncelog").option("kafka.bootstrap.servers", address)
    df = source.option("subscribe", "topic1").load()
    if names_topic:
        rows = df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
    else:
        rows = df.selectExpr(f"'{topic}' AS topic", "CAST(key AS STRING)", "CAST(value AS STRING)")
    writer = rows.write.format("oncelog").option("kafka.bootstrap.servers", address)
    (writer.option("topic", topic) if names_topic else writer).mode("append").save()
    again = spark.read.format("oncelog").option("kafka.bootstrap.servers", address)
    assert values(again.option("subscribe", topic).load()) == written("topic1")


def test_its_stream_copies_with_the_settings_of_kafkas_clients(spark, cluster, address, tmp_path):
    """Of its ``kafka.`` options those that tune Kafka's clients change nothing here."""
    cluster.admin().create_topic("streamed", partitions=1)
    df = (
        spark.readStream.format("oncelog")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", "topic1")
        .option("startingOffsets", "earliest")
        .option("kafka.max.poll.records", "500")
        .option("kafka.security.protocol", "PLAINTEXT")
        .option("kafkaConsumer.pollTimeoutMs", "512")
        .option("groupIdPrefix", "spark-kafka-source")
        .load()
    )
    query = (
        df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
        .writeStream.format("oncelog")
        .option("kafka.bootstrap.servers", address)
        .option("kafka.retries", "3")
        .option("topic", "streamed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(DEADLINE_S)
    (source,) = query.lastProgress["sources"]
    assert json.loads(str(source["endOffset"]).replace("'", '"'))
    read = spark.read.format("oncelog").option("kafka.bootstrap.servers", address)
    assert values(read.option("subscribe", "streamed").load()) == written("topic1")


@pytest.fixture
def flights(cluster):
    """The topics that the page names."""
    with fresh_topics(cluster, ("flights", "copies"), partitions=1):
        yield cluster


def test_what_our_page_shows_runs(spark, flights, address, tmp_path):
    """A stream, a batch of ``foreachBatch``, a chosen schema, a filter that is pushed down."""
    with flights.producer() as producer:
        producer.send("flights", b"EWR IAH 517", key=b"UA").result()
    page = (ROOT / "docs" / "SPARK.md").read_text(encoding="utf-8")
    names = {"spark": spark, "spark_bridge": spark_bridge}
    shown = []
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        told = f'.format("oncelog").option("address", "{address}")'
        edited = block.replace('.format("oncelog")', told).replace("/data", str(tmp_path))
        edited = edited.replace('topic="copies"', f'topic="copies", address="{address}"')
        *program, last = ast.parse(edited).body
        if not isinstance(last, ast.Expr):
            program.append(last)
        exec(compile(ast.Module(program, []), "page", "exec"), names)
        if isinstance(last, ast.Expr):
            frame = eval(compile(ast.Expression(last.value), "page", "eval"), names)
            shown.append(frame.collect())
    assert names["query"].awaitTermination(DEADLINE_S)
    source = spark.read.format("oncelog").option("address", address)
    names["write"](source.option("subscribe", "flights").load().select("key", "value"), 0)
    with_schema, filtered = shown
    assert [row.asDict() for row in with_schema] == [{"value": b"EWR IAH 517", "offset": 0}]
    assert filtered == []
    copies = source.option("subscribe", "copies").load().collect()
    assert [bytes(row.value) for row in copies] == [b"EWR IAH 517"] * 2
