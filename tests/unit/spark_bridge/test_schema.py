from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, StringType, StructType

from oncelog.spark_bridge.schema import (
    HEADERS_TYPE,
    READ_SCHEMA,
    arrow_schema,
    check_read_schema,
    check_write_schema,
    read_schema,
    to_spark,
    writable,
)
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.codec import decode_columns, encode_records

TP = TopicPartition("flights", 3)


@pytest.fixture
def fetched():
    """Two records, one with headers, as a fetch gives them."""
    return decode_columns(
        [
            encode_records(
                [
                    (b"k", b"v", 1_000, [("h", b"1"), ("n", None)]),
                    (None, None, 2_001, ()),
                ]
            )
        ]
    )


# --- reading ----------------------------------------------------------------------------------


def test_a_read_has_the_columns_of_kafkas_source():
    assert READ_SCHEMA.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert "headers" not in read_schema(includes_headers=False).fieldNames()


def test_fetched_columns_become_what_spark_demands(fetched):
    given = to_spark(fetched, TP, arrow_schema(READ_SCHEMA))
    assert given.schema.equals(arrow_schema(READ_SCHEMA))
    first, second = given.to_pylist()
    utc = datetime.timezone.utc
    assert first == {
        "key": b"k",
        "value": b"v",
        "topic": "flights",
        "partition": 3,
        "offset": 0,
        "timestamp": datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=utc),
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
    }
    assert (second["key"], second["value"], second["headers"]) == (None, None, [])
    assert second["timestamp"].microsecond == 1_000


def test_a_time_beyond_sparks_range_becomes_the_nearest(fetched, struct):
    column = fetched.schema.get_field_index("timestamp_ms")
    wild = fetched.set_column(column, "timestamp_ms", pa.array([2**63 - 1, -(2**63)]))
    given = to_spark(wild, TP, arrow_schema(struct(timestamp="timestamp")))
    microseconds = given["timestamp"].cast(pa.int64()).to_pylist()
    assert microseconds[0] == -microseconds[1] == (2**63 - 1) // 1_000 * 1_000


def test_only_the_columns_asked_for_are_given(fetched, struct):
    wanted = struct(offset="long", value="binary")
    check_read_schema(wanted)
    given = to_spark(fetched, TP, arrow_schema(wanted))
    assert given.to_pydict() == {"offset": [0, 1], "value": [b"v", None]}


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"name": "string"}, "no column 'name'; there are key, value, topic"),
        ({"value": "string"}, "column 'value' is binary, not string"),
    ],
)
def test_a_schema_that_a_read_cannot_give_is_refused(struct, columns, text):
    with pytest.raises(InvalidSettingError, match=text):
        check_read_schema(struct(**columns))


# --- writing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        {"value": "binary"},
        {"Value": "string", "KEY": "string"},
        {"value": "string", "partition": "long", "timestamp": "timestamp"},
        {"value": "string", "key": "binary", "headers": HEADERS_TYPE},
        {"value": "string", "key": "void", "headers": "void"},
    ],
)
def test_records_with_any_of_their_parts_may_be_written(struct, columns):
    assert check_write_schema(struct(**columns), "t") is None


def test_what_only_the_log_gives_a_record_is_passed_over_and_told_once(struct, caplog):
    """So what was read can be written as it is."""
    columns = {"value": "binary", "Offset": "long", "timestampType": "integer"}
    for _ in range(2):
        check_write_schema(struct(**columns), "t")
    assert caplog.messages == [
        "columns Offset, timestampType are not written: the log sets them for each record — "
        "leave them out, or do nothing"
    ]
    batch = pa.RecordBatch.from_pydict({"Offset": [7], "Value": ["v"], "timestampType": [0]})
    assert writable(batch).to_pydict() == {"Value": ["v"]}
    assert writable(batch.select(["Value"])).to_pydict() == {"Value": ["v"]}


def test_a_topic_may_come_from_the_rows(struct):
    assert check_write_schema(struct(value="string", topic="string"), None) is None


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"key": "string", "a": "integer"}, r"no column 'value' \(it has key, a\); make one"),
        ({}, r"no column 'value' \(it has no column\)"),
        ({"value": "integer"}, "column 'value' is int: cast it to string or binary"),
        ({"value": "string", "a": "integer"}, "column 'a' cannot be written; drop it"),
        ({"value": "string", "VALUE": "string"}, "two columns 'value'"),
        ({"value": "string", "partition": "string"}, "'partition' is string: cast it to an int"),
        ({"value": "string", "timestamp": "long"}, "'timestamp' is bigint: cast it to timestamp"),
        ({"value": "string", "headers": ArrayType(StringType())}, "'headers' is array<string>"),
        (
            {"value": "string", "headers": ArrayType(StructType().add("key", "string"))},
            "'headers' is array<struct<key:string>>: cast it to array<struct<key:string,value:",
        ),
        ({"value": "string"}, "no topic to write to"),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused(struct, columns, text):
    with pytest.raises(InvalidSettingError, match=text):
        check_write_schema(struct(**columns), None)
