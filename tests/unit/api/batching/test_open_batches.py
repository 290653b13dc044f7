"""The short way of a record into a batch: which records take it, and the bytes of the codec."""

from __future__ import annotations

import ast
import re
import threading
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.api.batching import open_batches
from oncelog.api.batching.delivery import BatchDelivery, RecordFuture
from oncelog.api.batching.open_batches import OpenBatches
from oncelog.api.batching.partitioner import partition_for_key
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import crc_matches, parse_header
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.compression import Codec

IDENTITY: dict[str, Any] = {
    "codec": Codec.NONE,
    "producer_id": 7,
    "producer_epoch": 1,
    "base_sequence": 3,
    "is_transactional": False,
}
METADATA: Any = SimpleNamespace(name="t")
INT64 = st.integers(-(2**63), 2**63 - 1)
BYTES = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3).map(tuple)


def new(
    *,
    partitions: int = 3,
    batch_bytes: int = 10_000,
    known_topics: dict[str, Any] | None = None,
    buffer_bytes_max: int = 5_000,
    **partitioner: bool,
) -> Any:
    batches: Any = OpenBatches(
        known_topics={"t": METADATA} if known_topics is None else known_topics,
        now_ms=lambda: 1_700_000_000_000,
        batch_bytes=batch_bytes,
        record_bytes_max=2_000,
        buffer_bytes_max=buffer_bytes_max,
        **partitioner,
    )
    topic = batches.topics["t"] = batches.new_topic(METADATA, partitions)
    for partition in range(partitions):
        delivery = BatchDelivery(TopicPartition("t", partition))
        topic.batches[partition] = batches.new_batch(delivery, 1.5)
    topic.sticky = topic.batches[0]
    batches.is_accepting = True
    return batches


def sealed(batch: Any) -> bytes:
    return bytes(batch.rows().encode(**IDENTITY))


def test_records_of_the_short_way_are_those_of_the_codec() -> None:
    batches = new()
    futures = [batches.add("t", b"value-%d" % n, None, (), None, None) for n in range(50)]
    assert batches.add("t", None, None, (), None, 0) is not None
    expected = [(None, b"value-%d" % n, 1_700_000_000_000, ()) for n in range(50)]
    expected.append((None, None, 1_700_000_000_000, ()))
    batch = batches.topics["t"].batches[0]
    assert (
        batches.buffered_bytes == batch.size_bytes == sum(21 + len(r[1] or b"") for r in expected)
    )
    assert sealed(batch) == bytes(encode_records(expected, **IDENTITY))
    batch.delivery.finish(100, -1)
    assert [future.result(0).offset for future in futures] == list(range(100, 150))
    assert futures[0].result(0).timestamp_ms == 1_700_000_000_000
    assert isinstance(futures[0], RecordFuture)


@given(records=st.lists(st.tuples(BYTES, BYTES, INT64, HEADERS), min_size=1, max_size=20))
def test_any_record_is_encoded_as_by_the_codec(records: Any) -> None:
    batches = new()
    batch = batches.new_batch(BatchDelivery(TopicPartition("t", 0)), 1.5)
    taken = []
    for record in records:
        fits = not taken or -(2**63) <= record[2] - taken[0][2] < 2**63
        assert batch.takes_time(record[2]) is fits
        if fits:
            batches.put(batch, record, 100)
            taken.append(record)
    rows = batch.rows()
    expected = encode_records(taken, **IDENTITY)
    assert rows.record_count == len(taken)
    assert bytes(rows.encode(**IDENTITY)) == bytes(expected)
    middle = len(taken) // 2
    if middle and max(r[2] for r in taken) - min(r[2] for r in taken) < 2**63:
        first, second = rows.split()
        assert bytes(first.encode(**IDENTITY)) == bytes(encode_records(taken[:middle], **IDENTITY))
        assert bytes(second.encode(**IDENTITY)) == bytes(encode_records(taken[middle:], **IDENTITY))


def test_a_batch_is_encoded_again_under_another_identity() -> None:
    batches = new()
    batches.add("t", b"v", b"k", (), None, 1)
    rows = batches.topics["t"].batches[1].rows()
    for epoch in (1, 2):
        changed = IDENTITY | {"producer_epoch": epoch, "codec": Codec.ZSTD}
        expected = encode_records([(b"k", b"v", 1_700_000_000_000, ())], **changed)
        assert bytes(rows.encode(**changed)) == bytes(expected)


@pytest.mark.parametrize(
    "arguments",
    [
        ("other", b"v", None, (), None, None),
        (b"t", b"v", None, (), None, None),
        ("t", "text", None, (), None, None),
        ("t", bytearray(b"v"), None, (), None, None),
        ("t", b"v", "text", (), None, None),
        ("t", b"v", None, (("h", b"1"),), None, None),
        ("t", b"v", None, (), 5, None),
        ("t", b"v", None, (), None, 3),
        ("t", b"v", None, (), None, -1),
        ("t", b"v", None, (), None, True),
        ("t", b"v", None, (), None, 2**70),
        ("t", b"v" * 1_980, None, (), None, None),
        ("t", b"v" * 970, b"k" * 1_010, (), None, None),
    ],
)
def test_whatever_needs_a_closer_look_goes_the_long_way(arguments: Any) -> None:
    batches = new()
    assert batches.add(*arguments) is None
    assert batches.buffered_bytes == 0


def test_a_closed_gate_a_full_buffer_and_new_metadata_stop_the_short_way() -> None:
    found: dict[str, Any] = {"t": METADATA}
    batches = new(known_topics=found)
    assert batches.add("t", b"v", None, (), None, None) is not None
    batches.is_accepting = False
    assert batches.add("t", b"v", None, (), None, None) is None
    batches.is_accepting = True
    batches.hold(5_000)
    assert batches.add("t", b"v", None, (), None, None) is None
    batches.hold(-5_000)
    assert batches.add("t", b"v", None, (), None, None) is not None
    found["t"] = SimpleNamespace(name="t")
    assert batches.add("t", b"v", None, (), None, None) is None
    del found["t"]
    assert batches.add("t", b"v", None, (), None, None) is None


def test_only_the_machines_own_clock_may_be_read_without_asking_it() -> None:
    asked: list[str] = []

    def now_ms() -> int:
        asked.append("asked")
        return 1_700_000_000_000

    for is_system_time in (False, True):
        batches = OpenBatches(
            known_topics={"t": METADATA},
            now_ms=now_ms,
            batch_bytes=10_000,
            record_bytes_max=2_000,
            buffer_bytes_max=5_000,
            is_system_time=is_system_time,
        )
        topic = batches.topics["t"] = batches.new_topic(METADATA, 1)
        topic.sticky = batches.new_batch(BatchDelivery(TopicPartition("t", 0)), 1.5)
        batches.is_accepting = True
        future = batches.add("t", b"v", None, (), None, None)
        assert future is not None
        topic.sticky.delivery.finish(0, -1)
        assert future.result(0).timestamp_ms >= 1_700_000_000_000
        assert asked or is_system_time
    assert len(asked) == 1


def test_the_record_that_fills_a_batch_goes_the_long_way() -> None:
    batches = new(batch_bytes=100)
    assert batches.add("t", b"v" * 28, None, (), None, None) is not None
    assert batches.add("t", b"v" * 30, None, (), None, None) is None
    assert batches.add("t", b"v" * 29, None, (), None, None) is not None
    assert batches.add("t", b"", None, (), None, None) is None


def test_a_time_too_far_from_that_of_the_first_record_goes_the_long_way() -> None:
    batches = new()
    batches.put(batches.topics["t"].batches[1], (None, b"v", -(2**63) + 5, ()), 22)
    batches.put(batches.topics["t"].batches[2], (None, b"v", -(2**62), ()), 22)
    assert batches.add("t", b"v", None, (), None, 1) is None
    assert batches.add("t", b"v", None, (), None, 2) is not None


def test_keys_go_where_the_partitioner_says() -> None:
    batches = new(batch_bytes=1_000_000)
    for number in range(60):
        key = b"x" * number
        batches.add("t", b"", key, (), None, None)
        batches.hold(-21 - number)
    for partition, batch in enumerate(batches.topics["t"].batches):
        mine = [b"x" * n for n in range(60) if partition_for_key(b"x" * n, 3) == partition]
        expected = [(key, b"", 1_700_000_000_000, ()) for key in mine]
        assert sealed(batch) == bytes(encode_records(expected, **IDENTITY))


def test_send_takes_the_short_way_or_passes_all_arguments_on() -> None:
    batches = new()
    asked: list[Any] = []
    send = batches.sender(lambda *arguments: asked.append(arguments))
    assert isinstance(send("t", b"v"), RecordFuture)
    assert isinstance(send("t", key=b"k"), RecordFuture)
    assert not asked
    send("t", b"v", b"k", headers=[("h", b"1")], timestamp_ms=5, partition=1)
    send("new")
    send("t", b"v", on_delivery=len)
    assert asked == [
        ("t", b"v", b"k", [("h", b"1")], 5, 1, None),
        ("new", None, None, (), None, None, None),
        ("t", b"v", None, (), None, None, len),
    ]
    with pytest.raises(TypeError):
        send("t", b"v", b"k", ())
    with pytest.raises(TypeError):
        send("t", valeu=b"v")


# --- blocks that are filled again -------------------------------------------------------------


def filled(batches: Any, value: bytes, batch: Any = None) -> Any:
    """A batch, by itself, with as many copies of ``value`` as it has room for."""
    batch = batch or batches.new_batch(BatchDelivery(TopicPartition("t", 0)), 1.5)
    while batch.size_bytes + 21 + len(value) < 10_000:
        batches.put(batch, (None, value, 1, ()), 21 + len(value))
    batches.hold(-batch.size_bytes)
    return batch


@given(sizes=st.lists(st.integers(0, 9_900), min_size=1, max_size=12))
def test_batches_that_follow_each_other_do_not_mix(sizes: list[int]) -> None:
    batches = new(buffer_bytes_max=30_000)
    held = []
    for number, size in enumerate(sizes):
        value = b"%d" % (number % 10) * size
        rows = filled(batches, value).rows()
        if number % 3:
            # The sealed batch may be the block itself; who still has it must not see it change.
            held.append((rows.encode(**IDENTITY), value, rows.record_count))
        del rows
    for batch, value, count in held:
        assert bytes(batch) == bytes(encode_records([(None, value, 1, ())] * count, **IDENTITY))


def test_a_sealed_batch_never_changes_even_if_it_is_sealed_anew() -> None:
    rows = filled(new(), b"v" * 100).rows()
    first = rows.encode(**IDENTITY)
    before = bytes(first)
    second = rows.encode(**(IDENTITY | {"producer_id": 8, "base_sequence": 5}))
    rows.split()
    assert bytes(first) == before
    assert (parse_header(second).producer_id, parse_header(second).base_sequence) == (8, 5)
    assert crc_matches(second, parse_header(second))


def test_a_closed_batch_takes_no_record() -> None:
    batches = new(buffer_bytes_max=30_000)
    batch = filled(batches, b"v" * 100)
    rows = batch.rows()
    with pytest.raises(ValueError, match="closed"):
        batches.put(batch, (None, b"v", 1, ()), 22)
    assert rows.record_count == 82


def test_threads_lose_and_repeat_nothing() -> None:
    batches = OpenBatches(
        known_topics={"t": METADATA},
        now_ms=lambda: 1,
        batch_bytes=10**9,
        record_bytes_max=1_000,
        buffer_bytes_max=10**9,
    )
    topic = batches.topics["t"] = batches.new_topic(METADATA, 1)
    topic.sticky = topic.batches[0] = batches.new_batch(BatchDelivery(TopicPartition("t", 0)), 0.0)
    batches.is_accepting = True
    places: list[list[int]] = [[] for _ in range(4)]

    def work(mine: list[int]) -> None:
        for _ in range(3_000):
            future: Any = batches.add("t", b"v", None, (), None, None)
            mine.append(future._index)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(place for mine in places for place in mine) == list(range(12_000))
    assert batches.buffered_bytes == 12_000 * 22
    assert topic.batches[0].rows().record_count == 12_000


# --- stale builds -----------------------------------------------------------------------------


def test_the_module_and_its_callers_have_the_same_number_in_the_source() -> None:
    """A change of the classes raises both; a build from other source then has another one."""
    source = Path(open_batches.__file__).with_name("_open_batches.pyx").read_text(encoding="utf-8")
    numbers = re.findall(r"^INTERFACE = (\d+)$", source, re.MULTILINE)
    assert numbers == [str(open_batches._INTERFACE)]


def test_the_description_offers_what_the_classes_do() -> None:
    text = Path(open_batches.__file__).with_name("_open_batches.pyi").read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            described = {
                inner.name if isinstance(inner, ast.FunctionDef) else ast.unparse(inner.target)
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AnnAssign)
            }
            kind = getattr(open_batches, node.name)
            assert {name for name in described if name[0] != "_"} == {
                name for name in vars(kind) if name[0] != "_"
            }


@pytest.mark.parametrize("partitions", [1, 3, 7])
def test_by_crc32_the_short_way_takes_a_key_where_librdkafka_does(partitions: int) -> None:
    batches = new(partitions=partitions, is_crc32=True)
    topic = batches.topics["t"]
    for key in (b"", None, b"k", b"flight 517", b"\xff" * 99):
        expected = topic.batches[zlib.crc32(key) % partitions] if key else topic.sticky
        future = batches.add("t", b"v", key, (), None, None)
        assert future._delivery is expected.delivery
    assert batches.add("t", b"v", b"k", (), None, 0)._delivery is topic.batches[0].delivery


def test_a_function_is_not_asked_on_the_short_way() -> None:
    batches = new(is_by_function=True)
    assert batches.add("t", b"v", b"k", (), None, None) is None
    assert batches.add("t", b"v", None, (), None, None) is None
    assert batches.add("t", b"v", None, (), None, 2) is not None
