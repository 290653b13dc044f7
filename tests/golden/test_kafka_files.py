"""Files that Kafka's own classes wrote, and what its dump tool printed of them and of ours.

``tests/golden/kafka`` is made by ``./run interop --rewrite``; no Kafka is needed here.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import pytest
import sample_logs

from oncelog.actors.protocol.group import group_records
from oncelog.actors.protocol.transaction import transaction_records
from oncelog.api.cli import main as cli
from oncelog.storage.disk.file_system import ReadOnlyFileSystem, RealFileSystem
from oncelog.storage.dump.contents import (
    FileKind,
    ScannedBatch,
    batch_row,
    kind_of,
    records_of,
    rows_of,
    scan_log,
)
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import patch
from oncelog.storage.records.codec import RecordInput, decode_columns, encode_records
from oncelog.storage.records.compression import Codec
from oncelog.storage.records.control import encode_marker

GOLDEN = Path(__file__).parent / "kafka"
TOPICS = ("flights", "__transaction_state", "__consumer_offsets")
ABSENT = -1


def golden_record(number: int) -> RecordInput:
    """The records of ``KafkaSide.java``."""
    return (
        None if number % 5 == 0 else b"key %d" % number,
        None if number % 11 == 10 else b"value %d of many, many, many" % number,
        sample_logs.TIME_MS + number * 10 - 25 * (number % 3),
        [("h", b"x"), ("n", None)] if number % 7 == 0 else [],
    )


def batches_of(directory: Path) -> list[ScannedBatch]:
    return [
        found
        for path in sorted(directory.glob("*.log"))
        for found in scan_log(ReadOnlyFileSystem(), path)
        if isinstance(found, ScannedBatch)
    ]


def data_batches() -> list[ScannedBatch]:
    return [batch for batch in batches_of(GOLDEN / "flights-0") if not batch.header.is_control]


def printed(name: str, pattern: str) -> list[tuple[str, ...]]:
    """The groups of every line that Kafka's tool printed in this shape."""
    text = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    return re.findall(pattern, text, re.MULTILINE)


BATCH = (
    r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) "
    r"lastSequence: (-?\d+) producerId: (-?\d+) producerEpoch: (-?\d+) "
    r"partitionLeaderEpoch: (\d+) isTransactional: (\w+) isControl: (\w+) .*position: (\d+) "
    r"CreateTime: (\d+) size: (\d+) magic: 2 compresscodec: (\w+) crc: (\d+) isvalid: true$"
)


def as_printed(batch: ScannedBatch) -> tuple[str, ...]:
    """A batch in the words of Kafka's tool, from our row of it."""
    row = batch_row(batch)
    assert batch.is_intact
    values = (
        *(row["base_offset"], row["last_offset"], row["record_count"]),
        *(row.get(name, ABSENT) for name in ("base_sequence", "last_sequence")),
        *(row.get(name, ABSENT) for name in ("producer_id", "producer_epoch")),
        row["leader_epoch"],
        str(row.get("is_transactional", False)).lower(),
        str("control" in row).lower(),
        *(row["position"], row["max_timestamp_ms"], row["size_bytes"], row["codec"]),
        int(row["crc"], 16),
    )
    return tuple(map(str, values))


# --- what Kafka wrote --------------------------------------------------------------------------


@pytest.mark.parametrize("topic", TOPICS)
def test_batches_are_read_as_kafka_prints_them(topic):
    batches = batches_of(GOLDEN / f"{topic}-0")
    assert batches
    assert [as_printed(batch) for batch in batches] == printed(f"{topic}-0", BATCH)


def test_every_codec_is_there():
    assert {batch.header.codec for batch in data_batches()} == set(Codec)


def test_records_of_every_codec_are_read():
    for batch in data_batches():
        records = [
            (record.key, record.value, record.timestamp_ms, list(record.headers))
            for record in records_of(batch)
        ]
        header = batch.header
        assert records == [
            golden_record(number) for number in range(header.base_offset, header.next_offset)
        ]


def test_columns_of_every_codec_are_read():
    batches = data_batches()
    columns = decode_columns([batch.frame for batch in batches]).to_pylist()
    numbers = [
        number
        for batch in batches
        for number in range(batch.header.base_offset, batch.header.next_offset)
    ]
    wanted = [
        (*golden_record(number)[:3], [{"key": k, "value": v} for k, v in golden_record(number)[3]])
        for number in numbers
    ]
    assert [row["offset"] for row in columns] == numbers
    assert [
        (row["key"], row["value"], row["timestamp_ms"], row["headers"]) for row in columns
    ] == wanted


def test_uncompressed_batches_are_written_byte_for_byte():
    plain = [batch for batch in data_batches() if batch.header.codec is Codec.NONE]
    assert len(plain) > len(("idempotent", "transactional"))
    for batch in plain:
        header = batch.header
        ours = encode_records(
            [golden_record(number) for number in range(header.base_offset, header.next_offset)],
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            is_transactional=header.is_transactional,
        )
        patch(ours, base_offset=header.base_offset, leader_epoch=header.leader_epoch)
        assert bytes(ours) == bytes(batch.frame)


def test_markers_are_written_byte_for_byte():
    markers = [batch for batch in batches_of(GOLDEN / "flights-0") if batch.header.is_control]
    verdicts = set()
    for batch in markers:
        header = batch.header
        committed = batch_row(batch)["control"].startswith("COMMIT")
        verdicts.add(committed)
        ours = encode_marker(
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            committed=committed,
            coordinator_epoch=5,
            timestamp_ms=header.max_timestamp_ms,
        )
        patch(ours, base_offset=header.base_offset, leader_epoch=header.leader_epoch)
        assert bytes(ours) == bytes(batch.frame)
    assert verdicts == {True, False}


@pytest.mark.parametrize(
    ("kind", "pattern", "fields"),
    [
        (
            FileKind.OFFSET_INDEX,
            r"^offset: (\d+) position: (\d+)$",
            ("offset", "batch_position"),
        ),
        (FileKind.TIME_INDEX, r"^timestamp: (\d+) offset: (\d+)$", ("timestamp_ms", "offset")),
        (
            FileKind.TXN_INDEX,
            r"^version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) "
            r"lastStableOffset: (\d+)$",
            ("producer_id", "first_offset", "last_offset", "last_stable_offset"),
        ),
        (
            FileKind.SNAPSHOT,
            r"^producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) "
            r"currentTxnFirstOffset: .* lastTimestamp: (\d+)",
            ("producer_id", "producer_epoch", "coordinator_epoch", "timestamp_ms"),
        ),
    ],
)
def test_the_files_beside_the_log_are_read_as_kafka_prints_them(kind, pattern, fields):
    directory = GOLDEN / "flights-0"
    rows = [
        tuple(str(row[field]) for field in fields)
        for path in sorted(directory.iterdir())
        if kind_of(path.name) is kind
        for row in rows_of(ReadOnlyFileSystem(), path)
    ]
    assert rows
    assert rows == printed("flights-0", pattern)


def test_snapshots_tell_sequences_and_open_transactions_as_kafka_prints_them():
    rows = [
        row
        for path in sorted((GOLDEN / "flights-0").glob("*.snapshot"))
        for row in rows_of(ReadOnlyFileSystem(), path)
    ]
    newest = printed("flights-0", r"lastSequence: (\d+) lastOffset: (\d+) offsetDelta: (\d+)")
    names = ("last_sequence", "last_offset", "offset_delta")
    assert [
        tuple(str(row[name]) for name in names) for row in rows if row["last_sequence"] >= 0
    ] == newest
    opened = printed("flights-0", r"currentTxnFirstOffset: OptionalLong\[(\d+)\]")
    assert opened
    assert [
        str(row["current_txn_first_offset"]) for row in rows if row["current_txn_first_offset"] >= 0
    ] == opened


@pytest.mark.parametrize("topic", TOPICS)
def test_a_directory_of_kafka_verifies(topic, capsys):
    assert cli.main(["dump", "--verify", "--deep", str(GOLDEN / f"{topic}-0")]) == 0
    assert "problem:" not in capsys.readouterr().out


def test_a_directory_of_kafka_opens(tmp_path):
    directory = Path(shutil.copytree(GOLDEN / "flights-0", tmp_path / "flights-0"))
    batches = batches_of(directory)
    log = PartitionLog.open(
        filesystem=RealFileSystem(), directory=directory, settings=LogSettings(), now_ms=0
    )
    assert log.log_end_offset == batches[-1].header.next_offset
    assert log.cut is None
    assert log.leader_epochs == [(3, 0)]
    replayed = [header for header, _ in log.replay(0)]
    log.close(None)
    assert replayed == [batch.header for batch in batches]


def test_transaction_records_of_kafka_are_decoded():
    records = [
        record
        for batch in batches_of(GOLDEN / "__transaction_state-0")
        for record in records_of(batch)
    ]
    assert transaction_records.decode_key(records[-1].key) == "gone"
    assert records[-1].value is None
    decoded = [transaction_records.decode_value("loader", record.value) for record in records[:-1]]
    values = [
        json.loads(text)["data"] for text in printed("__transaction_state-0", r" payload: (\{.*)$")
    ]
    assert [
        (each.producer_epoch, each.state.value, partitions_of(each.partitions)) for each in decoded
    ] == [
        (
            value["producerEpoch"],
            value["transactionStatus"],
            value["transactionPartitions"] or [],
        )
        for value in values
    ]
    assert (decoded[-1].previous_producer_id, decoded[-1].next_producer_id) == (1_999, 2_001)


def partitions_of(found: Iterable[TopicPartition]) -> list[dict[str, object]]:
    """Partitions by topic, as Kafka's schema has them."""
    return [
        {"topic": topic, "partitionIds": [each.partition for each in group]}
        for topic, group in groupby(sorted(found), lambda each: each.topic)
    ]


def test_offset_and_group_records_of_every_version_are_decoded():
    records = [
        record
        for batch in batches_of(GOLDEN / "__consumer_offsets-0")
        for record in records_of(batch)
    ]
    offsets = [
        group_records.decode_offset_value(record.value) for record in records[:10:2] if record.value
    ]
    groups = [
        group_records.decode_group_value(record.value) for record in records[1:10:2] if record.value
    ]
    assert [each.leader_epoch for each in offsets] == [-1, -1, -1, 3, 3]
    assert {each.offset for each in offsets} == {42}
    assert [each.expire_timestamp_ms - sample_logs.TIME_MS for each in offsets][1] == 9
    assert [each.members[0].group_instance_id for each in groups][2:] == [
        None,
        "worker-0",
        "worker-0",
    ]
    assert {each.members[0].assignment for each in groups} == {b"assignment"}


# --- what we write ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "write"),
    [
        ("__transaction_state", sample_logs.write_transaction_log),
        ("__consumer_offsets", sample_logs.write_offsets_log),
    ],
)
def test_what_kafka_decoded_is_still_what_we_write(tmp_path, topic, write):
    """The CRCs are those of the bytes that Kafka's decoders read."""
    directory = write(tmp_path)
    name = f"ours-{topic}-0"
    assert [as_printed(batch) for batch in batches_of(directory)] == printed(name, BATCH)


def test_kafka_reads_a_run_of_ours_as_a_plain_transaction():
    """Our tagged fields are passed over; what is left must make sense to Kafka."""
    (found,) = printed("ours-__transaction_state-0", r'"transactionalId":"spark".* payload: (.*)$')
    value = json.loads(found)["data"]
    assert value["producerId"] == 2000
    assert value["producerEpoch"] == 4
    assert value["transactionStatus"] == "PrepareCommit"
    assert value["transactionPartitions"] == [
        {"topic": "delays", "partitionIds": [1]},
        {"topic": "flights", "partitionIds": [0, 2]},
    ]
