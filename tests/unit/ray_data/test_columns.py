from __future__ import annotations

import pyarrow as pa
import pytest

from oncelog.ray_data.columns import READ_SCHEMA, check_schema, read_schema, to_block
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
            r"column 'id' cannot be written: drop it .* of topic, key, value",
        ),
        ({"key": pa.string()}, r"no column 'value' \(it has key\): make one"),
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
