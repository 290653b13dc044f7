"""The record browser: what is shown of a partition, and how far it looks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from random import Random

import pyarrow as pa
import pytest
from fake_cluster import FakeCluster
from hypothesis import given
from hypothesis import strategies as st

from oncelog.api.admin.admin import AsyncAdmin
from oncelog.api.console import records, text
from oncelog.api.console.records import Browser, Fate, Filter
from oncelog.storage.exceptions import InvalidRequestError, RequestTimedOutError
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import seal
from oncelog.storage.records.codec import encode_records
from oncelog.storage.records.compression import Codec

TP = TopicPartition("t", 0)
ALL = Filter(shows_all=True)
COMMITTED = Filter()


def filled(*values, key=b"k"):
    cluster = FakeCluster()
    (log,) = cluster.create("t")
    for value in values:
        log.append(value, key=key)
    return cluster, log


def read(cluster, offset=0, wanted=COMMITTED, count=50, *, last=False, **options):
    async def scenario():
        router = cluster.router()
        browser = Browser(router, AsyncAdmin(router, random=Random(1)), asyncio.Semaphore(1))
        if last:
            return await browser.read_last(TP, wanted, count)
        return await browser.read(TP, offset, wanted, count, **options)

    return asyncio.run(scenario())


def fates(found):
    return [(one.offset, one.fate) for one in found.records]


def test_without_more_only_what_a_consumer_would_get_is_shown():
    cluster, log = filled(b"plain")
    log.append(b"in", producer_id=5)
    log.mark(5, committed=True)
    log.append(b"out", producer_id=6)
    log.mark(6, committed=False)
    log.append(b"open", producer_id=7)
    found = read(cluster)
    assert fates(found) == [(0, Fate.PLAIN), (1, Fate.COMMITTED)]
    assert (found.next_offset, found.stopped) == (5, "")


def test_all_is_shown_with_what_became_of_it():
    cluster, log = filled(b"plain")
    log.append(b"in", producer_id=5)
    log.mark(5, committed=True)
    log.append(b"out", producer_id=6)
    log.mark(6, committed=False)
    log.append(b"open", producer_id=7)
    log.append(b"plain above")
    assert fates(read(cluster, wanted=ALL)) == [
        (0, Fate.PLAIN),
        (1, Fate.COMMITTED),
        (2, Fate.COMMIT),
        (3, Fate.ABORTED),
        (4, Fate.ABORT),
        (5, Fate.UNDECIDED),
        (6, Fate.PLAIN),
    ]


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from("dca")), max_size=25))
def test_fates_are_those_of_the_history(history):
    """Three producers write, commit and abort in any order; the browser tells each record's end."""
    cluster = FakeCluster()
    (log,) = cluster.create("t")
    expected: dict[int, Fate] = {}
    open_now: dict[int, list[int]] = {}
    for producer_id, what in history:
        if what == "d":
            offset = log.append(b"v", producer_id=producer_id)
            open_now.setdefault(producer_id, []).append(offset)
        elif producer_id in open_now:
            log.mark(producer_id, committed=what == "c")
            fate = Fate.COMMITTED if what == "c" else Fate.ABORTED
            expected |= dict.fromkeys(open_now.pop(producer_id), fate)
    found = read(cluster, wanted=ALL, count=100)
    stable = log.last_stable_offset
    shown = {one.offset: one.fate for one in found.records if not one.fate.is_marker}
    assert {o: f for o, f in shown.items() if o < stable} == {
        o: f for o, f in expected.items() if o < stable
    }
    assert {f for o, f in shown.items() if o >= stable} <= {Fate.UNDECIDED}


def test_a_page_has_so_many_records_and_says_where_it_goes_on():
    cluster, _ = filled(*(b"%d" % n for n in range(10)))
    found = read(cluster, offset=2, count=3)
    assert [one.value for one in found.records] == [b"2", b"3", b"4"]
    assert found.next_offset == 5


def test_the_newest_are_found_behind_markers_and_aborted_records():
    cluster, log = filled(*(b"%d" % n for n in range(5)))
    for _ in range(30):
        log.append(b"gone", producer_id=6)
        log.mark(6, committed=False)
    found = read(cluster, last=True, count=3)
    assert [one.value for one in found.records] == [b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("wanted", "values"),
    [
        (Filter(value="^b.*2$"), [b"b2"]),
        (Filter(value="[0-9]"), [b"a1", b"b2"]),
        (Filter(key="k"), [b"a1", b"b2", b"c"]),
        (Filter(key="other"), []),
        (Filter(header="h"), []),
    ],
)
def test_filters(wanted, values):
    cluster, _ = filled(b"a1", b"b2", b"c")
    assert [one.value for one in read(cluster, wanted=wanted).records] == values


def test_headers_are_found_by_name_or_value():
    row = records.Record(
        offset=0, timestamp_ms=0, key=None, value=None, headers=(("trace", b"abc"), ("n", None))
    )
    assert records._has_header(row, "trace")
    assert records._has_header(row, "trace=bc")
    assert records._has_header(row, "n")
    assert not records._has_header(row, "trace=x")
    assert not records._has_header(row, "tra")


@pytest.mark.parametrize(
    "wanted",
    [
        Filter(value="("),
        Filter(value="(?=a)"),
        Filter(value=r"(a)\1"),
        Filter(value="((a{1,1000}){1,1000}){1,1000}"),
        Filter(value="x" * 201),
        Filter(key="x" * 201),
    ],
)
def test_a_filter_that_is_none_is_refused_with_what_is_allowed(wanted):
    with pytest.raises(InvalidRequestError) as raised:
        wanted.check()
    assert raised.value.advice


def test_a_pattern_that_would_backtrack_for_ever_takes_linear_time():
    cluster, _ = filled(*(b"a" * 5_000 + b"b" for _ in range(3)))
    found = read(cluster, wanted=Filter(value="(a+)+$"))
    assert found.records == []
    assert found.scanned_count == 3


def test_a_search_stops_after_its_time_and_goes_on_where_it_stopped(monkeypatch):
    monkeypatch.setattr(records, "SCAN_S", -1.0)
    cluster, log = filled()
    log.append(b"a", b"b", b"c")  # One batch: it stops within.
    found = read(cluster, wanted=Filter(value="c"))
    assert "s were searched" in found.stopped
    assert found.records == []
    assert 0 < found.next_offset < 3


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("SCANNED_RECORDS_MAX", 2, "records"), ("SCANNED_BYTES_MAX", 1, "B were")],
)
def test_a_search_stops_after_so_many_records_and_bytes(monkeypatch, name, value, said):
    monkeypatch.setattr(records, name, value)
    cluster, _ = filled(*(b"%d" % n for n in range(10)))
    cluster.fetch_max_bytes = 1
    found = read(cluster, wanted=Filter(value="nothing"))
    assert said in found.stopped
    assert 0 < found.next_offset < 10


def test_bytes_count_as_they_are_once_decompressed(monkeypatch):
    monkeypatch.setattr(records, "SCANNED_BYTES_MAX", 100_000)
    cluster, log = filled()
    for _ in range(5):
        log.add(encode_records([(b"k", bytes(60_000), 1, ())] * 4, codec=Codec.GZIP))
    assert sum(map(len, log.batches)) < 10_000
    found = read(cluster, wanted=Filter(value="nothing"))
    assert "97.7 KiB were searched" in found.stopped
    assert found.scanned_count == found.next_offset
    assert 2 <= found.next_offset <= 3
    # It goes on within the batch.
    again = read(cluster, offset=found.next_offset, wanted=Filter(value="nothing"))
    assert again.offset < again.next_offset <= 7


def test_of_a_record_in_a_list_only_what_is_shown_is_kept():
    cluster, log = filled()
    headers = tuple(("n" * 1_000, b"h" * 5_000) for _ in range(20))
    log.add(encode_records([(b"k" * 5_000, b"v" * 50_000, 1, headers)]))
    (one,) = read(cluster).records
    assert (len(one.key), len(one.value)) == (text.HEAD_BYTES_MAX,) * 2
    assert text.preview(one.value) == text.preview(b"v" * 50_000)
    assert (len(one.headers), one.header_count) == (records.HEADERS_SHOWN_MAX, 20)
    assert len(one.headers[0][0]) <= records.HEADER_NAME_CHARS_MAX + 1
    assert len(one.headers[0][1]) == text.HEAD_BYTES_MAX
    (whole,) = read(cluster, wanted=ALL, count=1, keeps_whole=True).records
    assert (whole.value, whole.headers) == (b"v" * 50_000, headers)


def test_a_wider_look_that_does_not_get_far_loses_nothing_that_was_found(monkeypatch):
    monkeypatch.setattr(records, "SCANNED_BYTES_MAX", 30_000)
    cluster, _ = filled(*(bytes(10_000) for _ in range(100)), b"needle", b"x", b"x")
    cluster.fetch_max_bytes = 1
    found = read(cluster, last=True, count=4, wanted=Filter(value="needle"))
    assert [one.value for one in found.records] == [b"needle"]
    assert found.stopped == "29.3 KiB were searched"
    assert found.stopped_at == 99


def test_the_newest_are_found_if_not_all_that_are_wanted_can_be_read(monkeypatch):
    monkeypatch.setattr(records, "SCANNED_BYTES_MAX", 10_000)
    cluster, _ = filled(*(b"%04d" % n * 1_000 for n in range(100)))
    cluster.fetch_max_bytes = 4_000
    found = read(cluster, last=True, count=16)
    assert [one.offset for one in found.records] == [98, 99]
    assert found.stopped_at == 98


def test_what_one_page_reads_of_several_partitions_has_one_time(monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(records, "monotonic_s", lambda: now_s[0])
    cluster, _ = filled(*(b"a" for _ in range(10)))
    cluster.fetch_max_bytes = 1

    async def scenario():
        router = cluster.router()
        browser = Browser(router, AsyncAdmin(router, random=Random(1)), asyncio.Semaphore(1))
        first = await browser.read(TP, 0, COMMITTED, 5)
        now_s[0] += records.SCAN_S
        return first, await browser.read(TP, 0, COMMITTED, 5)

    first, second = asyncio.run(scenario())
    assert (len(first.records), first.stopped) == (5, "")
    assert (len(second.records), second.stopped) == (1, "3 s were searched")


def test_a_filter_looks_at_the_beginning_of_a_value():
    cluster, _ = filled(b"x" * records.SEARCHED_BYTES_MAX + b"needle")
    assert read(cluster, wanted=Filter(value="needle")).records == []


def test_more_searches_than_may_run_wait_and_then_are_refused(monkeypatch):
    monkeypatch.setattr(records, "READ_WAIT_S", 0.01)
    cluster, _ = filled(b"a")

    async def scenario():
        router = cluster.router()
        browser = Browser(router, AsyncAdmin(router, random=Random(1)), asyncio.Semaphore(0))
        await browser.read(TP, 0, Filter(), 1)

    with pytest.raises(RequestTimedOutError, match="under way"):
        asyncio.run(scenario())


def test_a_damaged_batch_is_told_and_what_follows_can_be_read():
    cluster, log = filled(b"a", b"b", b"c")
    batch = bytearray(log.batches[1])
    batch[-1] ^= 0xFF
    log.batches[1] = bytes(batch)
    found = read(cluster)
    assert [one.value for one in found.records] == [b"a"]
    assert found.stopped == "the batch at offset 1 is damaged"
    assert [one.value for one in read(cluster, offset=found.next_offset).records] == [b"c"]


def test_a_batch_that_does_not_decompress_is_told_and_what_follows_can_be_read():
    cluster, log = filled(b"a")
    # Its CRC is right.
    log.add(
        seal(
            b"no gzip at all",
            record_count=1,
            base_timestamp_ms=1,
            max_timestamp_ms=1,
            codec=Codec.GZIP,
        )
    )
    log.append(b"c")
    found = read(cluster)
    assert [one.value for one in found.records] == [b"a"]
    assert found.stopped == "the batch at offset 1 is damaged"
    assert [one.value for one in read(cluster, offset=found.next_offset).records] == [b"c"]


def test_an_offset_beyond_the_log_is_moved_into_it():
    cluster, log = filled(b"a", b"b")
    log.log_start_offset = 1
    assert [one.value for one in read(cluster, offset=-5).records] == [b"b"]
    assert read(cluster, offset=10**18).records == []


# --- forms ------------------------------------------------------------------------------------


async def form_of(data, form, turns=1):
    return await records.form_of(data, form, asyncio.Semaphore(turns))


def arrow_stream() -> bytes:
    table = pa.table({"name": ["<b>", "x\u202ey"], "n": [1, 2]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("data", "form", "kind", "has"),
    [
        (b'{"a":1}', "auto", "json", '"a": 1'),
        (b"hello", "auto", "text", "hello"),
        (b"\xff\x00", "auto", "hex", "ff 00"),
        (b"\xff\x00", "text", "text", "\ufffd⟨U+0000⟩"),
        (b"no", "json", "json", "no JSON"),
        (b'{"a":1}', "hex", "hex", "7b 22"),
    ],
)
def test_forms_of_a_value(data, form, kind, has):
    found, lines = asyncio.run(form_of(data, form))
    assert found == kind
    assert has in lines


def test_arrow_is_read_by_a_process_of_its_own():
    _, lines = asyncio.run(form_of(arrow_stream(), "arrow"))
    assert "2 rows" in lines
    assert "name: string" in lines
    assert "\u202e" not in lines


@pytest.mark.parametrize("data", [b"", b"no arrow", b"ARROW1" + b"\0" * 50, b"\xff" * 100])
def test_what_is_no_arrow_is_told_in_a_line(data):
    _, lines = asyncio.run(form_of(data, "arrow"))
    assert "no Arrow IPC" in lines
    assert "\n" not in lines


def test_a_process_for_arrow_that_hangs_is_ended(monkeypatch, tmp_path):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setattr(records, "ARROW_TIMEOUT_S", 0.2)
    monkeypatch.setattr(sys, "executable", str(slow))
    _, lines = asyncio.run(form_of(b"x", "arrow"))
    assert "could not be read" in lines
    children = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "args="],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert "sleep 1000" not in children


def test_more_processes_for_arrow_than_may_run_wait_and_then_are_refused(monkeypatch):
    monkeypatch.setattr(records, "READ_WAIT_S", 0.01)
    with pytest.raises(RequestTimedOutError, match="read as Arrow"):
        asyncio.run(form_of(b"x", "arrow", turns=0))
