"""Speed of the record codec, each figure beside aiokafka's compiled codec in the same run.

``./run bench codec [--rounds N]``: encode and decode, as columns and one by one. Both sides take
turns; a figure is the ratio of the medians of their CPU time, with CRC-32C included and the garbage
collector off. One JSON line per run is appended to ``bench/results/codec.jsonl``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import crc32c
import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from oncelog.storage.records.batch import parse_header
from oncelog.storage.records.client_batch import check_client_batch
from oncelog.storage.records.codec import (
    Record,
    RecordInput,
    decode_columns,
    decode_records,
    decode_rows,
    encode_columns,
    encode_records,
)

RESULTS: Final = Path(__file__).resolve().parent / "results" / "codec.jsonl"
ROUNDS_MIN: Final = 5
SAMPLE_S: Final = 0.02
"""CPU time of one measurement, so that the clock's step does not matter."""

TIME_MS: Final = 1_700_000_000_000
KEY_BYTES: Final = 16
MESSAGE_MAX_BYTES: Final = 1 << 22
SIZES: Final = {"100 B": (100, 10_000), "1 KB": (1024, 1000)}
"""Value bytes and records per batch: about 1 MB each."""

POLL_RECORDS: Final = 500
"""That a poll gives by default."""

FETCHES: Final = ((10, 1000), (100, 100), (1000, 10), (10_000, 1))
"""Batches per fetch and records per batch."""


@dataclass(frozen=True)
class Case:
    """Two ways to the same end, and how many times faster ours is to be, if anything is asked."""

    name: str
    records: int
    ours: Callable[[], object]
    theirs: Callable[[], object]
    wanted: float | None = None


@dataclass(frozen=True)
class Figure:
    """What came of a case; times are CPU nanoseconds per record, medians."""

    name: str
    ours_ns: float
    theirs_ns: float
    ratio: float
    wanted: float | None

    @property
    def verdict(self) -> str:
        """Met, missed, or no target."""
        if self.wanted is None:
            return ""
        return "met" if self.ratio >= self.wanted else "MISSED"


# --- the comparator ---------------------------------------------------------------------------


def aiokafka_encode(records: list[RecordInput]) -> bytearray:
    """One batch by aiokafka's builder."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 24)
    for index, (key, value, timestamp_ms, headers) in enumerate(records):
        builder.append(index, timestamp_ms, key, value, headers)  # type: ignore[arg-type]
    return builder.build()


def aiokafka_decode(batch: bytes) -> list[Any]:
    """The records of one batch, its CRC checked."""
    opened = DefaultRecordBatch(batch)
    if not opened.validate_crc():
        raise ValueError("bad CRC")
    return list(opened)


def aiokafka_fetch(fetched: bytes) -> list[Any]:
    """The records of many batches, each CRC checked."""
    opened = MemoryRecords(fetched)
    records: list[Any] = []
    while opened.has_next():
        batch: Any = opened.next_batch()
        if not batch.validate_crc():
            raise ValueError("bad CRC")
        records.extend(batch)
    return records


# --- ours -------------------------------------------------------------------------------------


def append_one_by_one(records: list[RecordInput]) -> bytearray:
    """What a producer does per record, and once per batch."""
    gathered: list[RecordInput] = []
    append = gathered.append
    for key, value, timestamp_ms, headers in records:
        append((key, value, timestamp_ms, headers))
    return encode_records(gathered)


def take_as_polled(batch: bytes) -> None:
    """The records of one batch as a consumer gets them, a poll after another."""
    rows = decode_rows(batch, parse_header(batch), 0, row_type=Record)
    while rows.left:
        rows.take(POLL_RECORDS)


def make_records(value_bytes: int, count: int, headers: tuple[Any, ...] = ()) -> list[RecordInput]:
    """Records with distinct keys and random values."""
    return [
        (b"%0*d" % (KEY_BYTES, index), os.urandom(value_bytes), TIME_MS + index, headers)
        for index in range(count)
    ]


def with_header_lists(records: list[RecordInput]) -> list[RecordInput]:
    """The same records; only lists of headers please aiokafka."""
    return [(*record[:3], list(record[3])) for record in records]


def size_cases(label: str, value_bytes: int, count: int) -> Iterator[Case]:
    """All that is done with one batch."""
    large = label == "1 KB"
    records = make_records(value_bytes, count)
    theirs = with_header_lists(records)
    keys, values, times, _ = zip(*records, strict=True)
    columns: dict[str, Any] = {
        "keys": pa.array(keys, pa.binary()),
        "values": pa.array(values, pa.binary()),
        "timestamps_ms": pa.array(times, pa.int64()),
        "headers": None,
    }
    batch = bytes(encode_records(records))
    check_same(batch, aiokafka_encode(theirs))

    def case(name: str, ours: Any, theirs: Any, wanted: tuple[float, float] | None = None) -> Case:
        at_least = None if wanted is None else wanted[large]
        return Case(f"{name}, {label}", count, ours, theirs, at_least)

    def their_encode() -> object:
        return aiokafka_encode(theirs)

    def their_decode() -> object:
        return aiokafka_decode(batch)

    yield case("encode columns", lambda: encode_columns(**columns), their_encode, (8, 8))
    yield case("encode a list", lambda: encode_records(records), their_encode, (3.5, 5))
    yield case("append one by one", lambda: append_one_by_one(records), their_encode, (1.1, 2.5))
    yield case("decode columns", lambda: decode_columns([batch]), their_decode, (6, 6))
    yield case("decode as polled", lambda: take_as_polled(batch), their_decode, (1.6, 3))
    yield case("decode records", lambda: decode_records(batch), their_decode)


def header_cases() -> Iterator[Case]:
    """Records with two headers each."""
    count = 5000
    pair = (("trace", b"0123456789abcdef"), ("kind", b"order"))
    records = make_records(100, count, pair)
    batch = bytes(encode_records(records))
    theirs = with_header_lists(records)
    check_same(batch, aiokafka_encode(theirs))
    rows = [[{"key": key, "value": value} for key, value in pair]] * count
    columns: dict[str, Any] = {
        "keys": pa.array([record[0] for record in records], pa.binary()),
        "values": pa.array([record[1] for record in records], pa.binary()),
        "timestamps_ms": pa.array([record[2] for record in records], pa.int64()),
        "headers": pa.array(rows, header_column_type()),
    }
    ours: Callable[[], object]
    for name, ours in (
        ("encode columns", lambda: encode_columns(**columns)),
        ("encode a list", lambda: encode_records(records)),
    ):
        yield Case(f"{name}, 2 headers", count, ours, lambda: aiokafka_encode(theirs))
    for name, ours in (
        ("decode columns", lambda: decode_columns([batch])),
        ("decode records", lambda: decode_records(batch)),
    ):
        yield Case(f"{name}, 2 headers", count, ours, lambda: aiokafka_decode(batch))


def header_column_type() -> Any:
    """Of the header column."""
    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def fetch_cases() -> Iterator[Case]:
    """A fetch of many batches, decoded in one call."""
    wanted = {100: 5.0, 1000: 2.2}
    for batches, count in FETCHES:
        fetched = b"".join(encode_records(make_records(100, count)) for _ in range(batches))
        yield Case(
            f"fetch of {batches} x {count}",
            batches * count,
            partial(decode_columns, [fetched]),
            partial(aiokafka_fetch, fetched),
            wanted.get(batches),
        )


def leader_case() -> Case:
    """What a leader does with the bytes of 1 MB, against nothing but their CRC."""
    batch = bytes(
        encode_records(make_records(1024, 1000), producer_id=1, producer_epoch=0, base_sequence=0)
    )
    return Case(
        "leader's check of 1 MB / bare CRC",
        1000,
        lambda: check_client_batch(batch, message_max_bytes=MESSAGE_MAX_BYTES),
        lambda: crc32c.crc32c(batch),
        0.9,
    )


def check_same(ours: bytes, theirs: bytes | bytearray) -> None:
    """Refuse to compare codecs that write different batches; the leader epoch may differ."""
    if ours[:12] + ours[16:] != theirs[:12] + theirs[16:]:
        raise SystemExit("aiokafka encodes the same records to other bytes: nothing to compare")


# --- measuring --------------------------------------------------------------------------------


def cpu_ns(action: Callable[[], object], repeats: int) -> float:
    """CPU time of one call of this thread, in nanoseconds."""
    start = time.thread_time_ns()
    for _ in range(repeats):
        action()
    return (time.thread_time_ns() - start) / repeats


def repeats_for(action: Callable[[], object]) -> int:
    """How often to call it for one measurement; warms up, too."""
    cpu_ns(action, 2)
    return max(1, int(SAMPLE_S * 1e9 / max(1.0, cpu_ns(action, 2))))


def measure(case: Case, rounds: int) -> Figure:
    """Both sides in turn, after a warm-up; medians of ``rounds``."""
    sides = (case.ours, case.theirs)
    repeats = [repeats_for(side) for side in sides]
    taken: list[list[float]] = [[], []]
    for _ in range(rounds):
        for side, count, times in zip(sides, repeats, taken, strict=True):
            gc.collect()
            times.append(cpu_ns(side, count) / case.records)
    ours, theirs = (statistics.median(times) for times in taken)
    return Figure(case.name, ours, theirs, theirs / ours, case.wanted)


def cases() -> Iterator[Case]:
    """All cases, made when they are due, so that few batches are held at once."""
    for label, (value_bytes, count) in SIZES.items():
        yield from size_cases(label, value_bytes, count)
    yield from header_cases()
    yield from fetch_cases()
    yield leader_case()


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    cpu = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "aiokafka": version("aiokafka"),
        "pyarrow": version("pyarrow"),
    }


def commit() -> str:
    """The commit that was measured, with a mark if files differ from it."""
    shown = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return shown.stdout.strip() or "unknown"


def main() -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="at least 5; default 9")
    parser.add_argument("--only", default="", help="cases whose name contains this; not recorded")
    arguments = parser.parse_args()
    rounds = max(ROUNDS_MIN, arguments.rounds)
    print(f"x = times aiokafka's speed; medians of {rounds} rounds")
    figures: list[Figure] = []
    gc.disable()
    for case in cases():
        if arguments.only not in case.name:
            continue
        figure = measure(case, rounds)
        figures.append(figure)
        wanted = "" if figure.wanted is None else f"wanted {figure.wanted:g}x"
        print(
            f"{figure.name:34} {figure.ours_ns:9.1f} ns/record "
            f"{figure.theirs_ns:9.1f} {figure.ratio:7.2f}x  {wanted:13} {figure.verdict}",
            flush=True,
        )
    missed = [figure.name for figure in figures if figure.verdict == "MISSED"]
    print(f"{sum(figure.verdict == 'met' for figure in figures)} met, {len(missed)} missed")
    if not arguments.only:
        RESULTS.parent.mkdir(exist_ok=True)
        run = {
            "time": int(time.time()),
            "commit": commit(),
            "machine": machine(),
            "rounds": rounds,
            "figures": [asdict(figure) | {"verdict": figure.verdict} for figure in figures],
        }
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
