"""Tables become the batches that their rows, sent one by one, would have become."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.api.batching import arrow_rows
from oncelog.api.batching.arrow_rows import ColumnBatch, as_table, split_table
from oncelog.api.batching.partitioner import Partitioner, partition_for_key
from oncelog.storage.exceptions import (
    InvalidRecordError,
    MessageTooLargeError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.records.codec import Record, decode_records
from oncelog.storage.records.compression import Codec

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def split(
    data: Any, *, partitions: int = 4, limit: int = 1_000_000, partitioner: Any = "murmur2"
) -> list[ColumnBatch]:
    return list(
        split_table(
            as_table(data),
            topic="t",
            partition_count=partitions,
            now_ms=NOW_MS,
            record_bytes_max=limit,
            partitioner=Partitioner(partitioner),
            sticky_partition=lambda: min(2, partitions - 1),
        )
    )


def split_columns(columns: dict[str, Any]) -> list[ColumnBatch]:
    return split(pa.table(columns))


def encode(batch: ColumnBatch) -> bytearray:
    return batch.rows.encode(
        codec=Codec.NONE,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        is_transactional=False,
    )


def records(batches: list[ColumnBatch]) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {}
    for batch in batches:
        found.setdefault(batch.topic_partition.partition, []).extend(decode_records(encode(batch)))
    return found


def test_columns_of_nothing_but_null_count_as_absent() -> None:
    names = ("key", "timestamp", "headers", "partition")
    table = pa.table({"value": [b"a"]} | {name: pa.nulls(1) for name in names})
    ((partition, (record,)),) = records(split(table)).items()
    assert (partition, record.key, record.timestamp_ms) == (2, None, NOW_MS)
    assert (record.value, tuple(record.headers)) == (b"a", ())


def test_rows_go_by_partition_then_key_then_together() -> None:
    table = pa.table(
        {
            "value": [b"given", b"keyed", b"neither", b"both"],
            "key": [None, b"k", None, b"k"],
            "partition": pa.array([3, None, None, 0], pa.int32()),
        }
    )
    found = {
        partition: [record.value for record in rows]
        for partition, rows in records(split(table)).items()
    }
    expected: dict[int, list[bytes | None]] = {}
    for partition, value in (
        (3, b"given"),
        (partition_for_key(b"k", 4), b"keyed"),
        (2, b"neither"),
        (0, b"both"),
    ):
        expected.setdefault(partition, []).append(value)
    assert found == expected


@given(
    st.lists(
        st.tuples(st.none() | st.binary(max_size=6), st.none() | st.binary(max_size=300)),
        max_size=80,
    ),
    st.integers(1, 5),
)
def test_every_row_comes_out_once_in_order_and_within_the_limit(
    rows: list[tuple[bytes | None, bytes | None]], partitions: int
) -> None:
    table = pa.table(
        {
            "key": pa.array([key for key, _ in rows], pa.binary()),
            "value": pa.array([value for _, value in rows], pa.binary()),
            "timestamp": pa.array(range(len(rows)), pa.int64()),
        }
    )
    batches = split(table, partitions=partitions, limit=500)
    for batch in batches:
        assert len(encode(batch)) - 61 <= batch.size_bytes
        assert batch.size_bytes <= 500
    found = records(batches)
    for rows_of_partition in found.values():
        stamps = [record.timestamp_ms for record in rows_of_partition]
        assert stamps == sorted(stamps)
    everything = sorted(
        (record.timestamp_ms, record.key, record.value)
        for rows_of_partition in found.values()
        for record in rows_of_partition
    )
    assert everything == [(number, key, value) for number, (key, value) in enumerate(rows)]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None, "ccc"]),
        pa.array(["a", None, "ccc"], pa.large_string()),
        pa.array([b"a", None, b"ccc"], pa.large_binary()),
        pa.array([b"a", None, b"ccc"], pa.binary_view()),
        pa.array(["a", None, "ccc"], pa.string_view()),
        pa.array(["a", None, "ccc"]).dictionary_encode(),
        pa.array([b"x", b"a", None, b"ccc"], pa.binary()).slice(1),
        pa.chunked_array([["a"], [None, "ccc"]]),
    ],
)
def test_any_column_of_bytes_or_text_is_a_value_and_a_key(column: Any) -> None:
    found = records(split(pa.table({"value": column, "key": column}), partitions=1))
    assert [(record.key, record.value) for record in found[0]] == [
        (b"a", b"a"),
        (None, None),
        (b"ccc", b"ccc"),
    ]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([5_000, None], pa.int64()),
        pa.array([5_000_000, None], pa.timestamp("us")),
        pa.array([5, None], pa.timestamp("s", "UTC")),
    ],
)
def test_timestamps_are_milliseconds_and_null_is_now(column: Any) -> None:
    (rows,) = records(split_columns({"value": [b"a", b"b"], "timestamp": column})).values()
    assert [record.timestamp_ms for record in rows] == [5_000, NOW_MS]


@pytest.mark.parametrize(
    "kind",
    [
        HEADERS,
        pa.large_list(pa.struct([("value", pa.large_binary()), ("key", pa.large_string())])),
        pa.map_(pa.string(), pa.binary()),
    ],
)
def test_headers_keep_their_order_and_their_nulls(kind: Any) -> None:
    pairs = [[("h", b"1"), ("h", None)], None, []]
    column = pa.array(
        pairs
        if pa.types.is_map(kind)
        else [
            None if row is None else [{"key": key, "value": value} for key, value in row]
            for row in pairs
        ],
        kind,
    )
    (rows,) = records(split_columns({"value": [b"a", b"b", b"c"], "headers": column})).values()
    assert [record.headers for record in rows] == [(("h", b"1"), ("h", None)), (), ()]


def test_a_large_table_is_split_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_rows, "BLOCK_BYTES", 1_000)
    table = pa.table({"value": [b"%d" % number for number in range(1_000)]})
    batches = split(table)
    assert len(batches) > 5
    assert [record.value for record in records(batches)[2]] == [b"%d" % n for n in range(1_000)]


def test_a_batch_splits_into_halves_in_order() -> None:
    (batch,) = split(pa.table({"value": [b"1", b"2", b"3"]}))
    first, second = batch.rows.split()
    assert (first.record_count, second.record_count) == (1, 2)


def test_an_empty_table_has_no_batches() -> None:
    assert split(pa.table({"value": pa.array([], pa.binary())})) == []


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([1], TypeError, "Table or RecordBatch, not list"),
        (pa.table({"key": [b"k"]}), ValueError, "the column 'value'"),
        (pa.table({"value": [b"v"], "ts": [1]}), ValueError, r"the table has \['value', 'ts'\]"),
        (pa.table({"value": [1]}), TypeError, "'value' must be binary or string, not int64"),
        (pa.table({"value": [b"v"], "key": [1.5]}), TypeError, "'key' must be binary or string"),
        (pa.table({"value": [b"v"], "timestamp": ["x"]}), TypeError, "'timestamp' must be a time"),
        (pa.table({"value": [b"v"], "partition": ["0"]}), TypeError, "'partition' must be an int"),
        (pa.table({"value": [b"v"], "headers": [["h"]]}), TypeError, "'headers' must be list<"),
    ],
)
def test_what_cannot_be_sent_is_named(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        as_table(data)


@pytest.mark.parametrize("blocks_of_bytes", [1, 1_000_000])
@pytest.mark.parametrize("wrong", [None, {"key": None, "value": b"1"}], ids=["header", "key"])
def test_a_header_that_is_null_or_has_no_key_is_refused_before_anything_is_given(
    monkeypatch: pytest.MonkeyPatch, wrong: Any, blocks_of_bytes: int
) -> None:
    monkeypatch.setattr(arrow_rows, "BLOCK_BYTES", blocks_of_bytes)
    right = {"key": "k", "value": None}
    headers = pa.array([None, [], [right], [right, wrong], [wrong]], HEADERS)
    with pytest.raises(InvalidRecordError, match=r"^row 3 has a header that is null or has no key"):
        split_columns({"value": [b"v"] * 5, "headers": headers})


def test_what_a_null_header_covers_does_not_count() -> None:
    """Spark may leave values under a null."""
    fields = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
    covered = pa.StructArray.from_arrays(
        [pa.array(["k"]), pa.array([b"v"])], fields=fields, mask=pa.array([True])
    )
    headers = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), covered)
    with pytest.raises(InvalidRecordError, match="row 0 has a header that is null"):
        split_columns({"value": [b"v"], "headers": headers})


@pytest.mark.parametrize("partition", [-1, 4])
def test_a_partition_that_does_not_exist_is_refused(partition: int) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match=f"0 to 3, not {partition}"):
        split(pa.table({"value": [b"a", b"b"], "partition": [0, partition]}))


def test_a_row_that_is_too_large_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_rows, "BLOCK_BYTES", 1)
    with pytest.raises(MessageTooLargeError, match="row 2 takes"):
        split(pa.table({"value": [b"a", b"b", b"." * 200]}), limit=100)


@pytest.mark.parametrize("has_keys", [True, False])
def test_a_function_places_the_rows_that_name_no_partition(has_keys: bool) -> None:
    asked: list[Any] = []

    def choose(topic: str, key: bytes | None, partition_count: int) -> int | None:
        asked.append((topic, key, partition_count))
        return 1 if key == b"k" else None

    table = pa.table({"value": [b"a", b"b", b"c"], "partition": pa.array([None, 3, None], "int8")})
    if has_keys:
        table = table.append_column("key", pa.array([b"k", b"k", None]))
    found = {
        partition: [record.value for record in rows]
        for partition, rows in records(split(table, partitioner=choose)).items()
    }
    keys = [b"k", None] if has_keys else [None, None]
    assert asked == [("t", key, 4) for key in keys]
    open_rows = {1: [b"a"], 2: [b"c"]} if has_keys else {2: [b"a", b"c"]}
    assert found == open_rows | {3: [b"b"]}
