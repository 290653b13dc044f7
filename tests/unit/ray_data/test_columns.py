from __future__ import annotations

import json

import pyarrow as pa
import pytest

from oncelog.ray_data.columns import READ_SCHEMA, RowFormat, check_schema, read_schema, to_block
from oncelog.storage.exceptions import InvalidSettingError
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.codec import decode_columns, encode_records

ROWS = pa.schema([("value", pa.string())])


def test_a_block_has_the_records_as_they_were_fetched():
    batch = encode_records([(b"k", b"v", 1_000, (("h", b"1"),)), (None, None, 2**62, ())])
    fetched = decode_columns([bytes(batch)])
    block = to_block(fetched, TopicPartition("t", 3), READ_SCHEMA)
    assert block.schema == READ_SCHEMA
    assert block.to_pylist() == [
        {
            "key": b"k",
            "value": b"v",
            "topic": "t",
            "partition": 3,
            "offset": 0,
            "timestamp": 1_000,
            "timestamp_type": 0,
            "headers": [{"key": "h", "value": b"1"}],
        },
        {
            "key": None,
            "value": None,
            "topic": "t",
            "partition": 3,
            "offset": 1,
            "timestamp": 2**62,
            "timestamp_type": 0,
            "headers": [],
        },
    ]
    # The same memory, not a copy.
    assert block["value"].chunk(0).buffers()[2].address == fetched["value"].buffers()[2].address


def test_headers_are_left_out_on_request():
    assert "headers" not in read_schema(includes_headers=False).names


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (
            {"id": pa.int64()},
            r"column 'id' cannot be written; drop it .* of topic, key, value",
        ),
        ({"key": pa.string()}, r"no column 'value' \(it has key\); make one"),
        ({}, r"no column 'value' \(it has no column\)"),
        ({"value": pa.int64()}, "column 'value' must be binary or string, not int64: cast it"),
        ({"value": pa.string(), "headers": pa.string()}, "column 'headers' must be list<"),
        ({"value": pa.string(), "topic": pa.int32()}, "column 'topic' must be string, not int32"),
    ],
)
def test_rows_that_are_no_records_are_refused_with_the_column(columns, told):
    with pytest.raises(InvalidSettingError, match=told):
        check_schema(pa.schema(list(columns.items())), "t")


def test_rows_need_a_topic_from_somewhere():
    with pytest.raises(InvalidSettingError, match="no topic to write to: name one, or add"):
        check_schema(ROWS, None)
    check_schema(ROWS.append(pa.field("topic", pa.string())), None)


def test_what_was_read_can_be_written_without_what_the_log_gave_it():
    names = [name for name in READ_SCHEMA.names if name not in ("offset", "timestamp_type")]
    check_schema(pa.schema([READ_SCHEMA.field(name) for name in names]), None)


# --- rows that are made into records ----------------------------------------------------------

FLIGHTS = pa.table({"id": [7, None], "from": ["JFK", "LGA"], "delay": [1.5, None]})


def test_a_row_as_json_is_what_ray_datas_own_sink_writes():
    made = RowFormat(is_json=True).records(FLIGHTS)
    rows = [{"id": 7, "from": "JFK", "delay": 1.5}, {"id": None, "from": "LGA", "delay": None}]
    assert made.to_pydict() == {"value": [json.dumps(row).encode() for row in rows]}
    check_schema(made.schema, "t")


@pytest.mark.parametrize(
    ("field", "keys"),
    [("id", [b"7", None]), ("from", ["JFK", "LGA"]), ("delay", [b"1.5", None])],
)
def test_the_key_field_of_a_row_as_json_is_its_key_as_text_and_stays_in_it(field, keys):
    made = RowFormat(key_field=field, is_json=True).records(FLIGHTS)
    assert made["key"].to_pylist() == keys
    assert field in json.loads(made["value"][0].as_py())
    check_schema(made.schema, "t")


def test_the_key_field_of_a_row_with_columns_is_its_key():
    table = pa.table({"id": [b"\xff", None], "value": ["a", "b"]})
    made = RowFormat(key_field="id").records(table)
    assert made.to_pydict() == {"key": [b"\xff", None], "value": ["a", "b"]}
    numbers = RowFormat(key_field="id").records(table.set_column(0, "id", pa.array([1, 2])))
    assert numbers["key"].to_pylist() == [b"1", b"2"]


def test_rows_without_a_format_are_left_as_they_are():
    assert RowFormat().records(FLIGHTS) is FLIGHTS


@pytest.mark.parametrize(
    ("rows", "table", "told"),
    [
        (RowFormat(key_field="no"), FLIGHTS, "key_field='no' is no column: there are id, from"),
        (RowFormat(key_field="id"), {"id": [1], "key": ["k"], "value": ["v"]}, "'key' .* as well"),
        (RowFormat(is_json=True), {"value": [b"x"]}, "value_serializer='json': .*column 'value'"),
    ],
)
def test_rows_that_cannot_be_made_into_records_are_refused_with_what_to_do(rows, table, told):
    with pytest.raises(InvalidSettingError, match=told):
        rows.records(pa.table(table) if isinstance(table, dict) else table)


def test_names_are_checked_as_what_they_become():
    RowFormat(is_json=True, key_field="id").check(FLIGHTS.schema, "t")
    RowFormat(key_field="id").check(pa.schema([("id", pa.int64()), ("value", pa.string())]), "t")
    with pytest.raises(InvalidSettingError, match="key_field='no' is no column"):
        RowFormat(is_json=True, key_field="no").check(FLIGHTS.schema, "t")
    with pytest.raises(InvalidSettingError, match="column 'id' cannot be written"):
        RowFormat().check(FLIGHTS.schema, "t")
