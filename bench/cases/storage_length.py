"""Whether a random read and an append cost more the longer the log is."""

from __future__ import annotations

import os
import random
import statistics
import time
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from cases.storage_logs import (
    GIB,
    KIB,
    MIB,
    RECORDS_PER_BATCH,
    append_all,
    client_batches,
    drop_cache,
    fill_long_log,
    open_log,
)
from measuring.report import Report, alternate, ratio, scratch
from oncelog.storage.log.partition import PartitionLog

PLACES: Final = 1_000
APPENDS: Final = 4_000
SHORT_BYTES: Final = 100 * 10**6
LONG_BYTES: Final = 10 * 10**9
REAL_BYTES: Final = 2 * 10**9


def read_randomly(log: PartitionLog, offsets: Sequence[int]) -> float:
    """Seconds to read one batch at each offset."""
    upper_offset = log.log_end_offset
    started = time.perf_counter()
    for offset in offsets:
        log.fetch(offset, max_bytes=1, upper_offset=upper_offset)
    return time.perf_counter() - started


class BareReads:
    """``os.pread`` of the batches at some offsets of a log whose batches are all equally large."""

    def __init__(self, directory: Path, offsets: Sequence[int], batch_bytes: int) -> None:
        paths = {int(path.stem): path for path in directory.glob("*.log")}
        bases = sorted(paths)
        self._batch_bytes = batch_bytes
        self._descriptors = {base: os.open(paths[base], os.O_RDONLY) for base in bases}
        for descriptor in self._descriptors.values():
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        self._places: list[tuple[int, int]] = []
        for offset in offsets:
            base = bases[bisect_right(bases, offset) - 1]
            position = (offset - base) // RECORDS_PER_BATCH * batch_bytes
            self._places.append((self._descriptors[base], position))

    def run(self) -> float:
        """Seconds to read them all."""
        batch_bytes = self._batch_bytes
        started = time.perf_counter()
        for descriptor, position in self._places:
            os.pread(descriptor, batch_bytes, position)
        return time.perf_counter() - started

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)


def append_more(log: PartitionLog, batches: Sequence[bytes]) -> float:
    """Seconds to append after what is there."""
    started = time.perf_counter()
    append_all(log, batches)
    return time.perf_counter() - started


def bench_length(root: Path, report: Report) -> None:
    """Appends and random reads of a log of 10 GB, against one of 100 MB.

    Both logs hold batches of 64 KiB. All of the short one and the last 2 GB of the long one are
    random bytes on the disk; the first 8 GB of the long one are batches with real headers and
    index entries whose records are holes, so that no disk of 10 GB is needed. What is asked is
    whether finding a place, reading one batch and appending one depend on how much log there is:
    so each side reads 1,000 different batches, spread evenly over its whole length, each once per
    round in random order. Before that, all pages are dropped and these batches are read without
    read-ahead, so that the page cache holds them alike on both sides, and not in large pieces
    where a file has just been written. The long log
    thus touches as much data as the short one, but all of its segments and indexes. What a page
    cache too small for 10 GB would cost is the disk's matter and is not measured. What a cached
    page costs depends on where in memory it is and on the size of its folio, too: bare reads of
    the same batches in the same rounds say how much of a difference is of that kind.
    Once with segments of 1 GiB (10 of them) and once of 64 MiB (150).
    """
    batch_bytes = 64 * KIB
    rng = random.Random(1)
    more = client_batches(APPENDS, 16 * KIB)
    for name, segment_bytes in (("gib_segments", GIB), ("mib64_segments", 64 * MIB)):
        with scratch(root) as data_dir:
            logs, offsets, bare = [], [], []
            for label, size, real in (
                ("short", SHORT_BYTES, SHORT_BYTES),
                ("long", LONG_BYTES, REAL_BYTES),
            ):
                directory = data_dir / label
                fill_long_log(
                    directory,
                    size_bytes=size,
                    real_bytes=real,
                    batch_bytes=batch_bytes,
                    segment_bytes=segment_bytes,
                )
                started = time.perf_counter()
                log = open_log(directory, segment_bytes=segment_bytes)
                opened_ms = (time.perf_counter() - started) * 1e3
                report.figure(
                    f"open_clean_{label}_{name}_ms",
                    opened_ms,
                    f"{opened_ms:8.1f} ms, {log.segment_count} segments",
                )
                drop_cache(directory)
                chosen = rng.sample(range(0, log.log_end_offset, RECORDS_PER_BATCH), PLACES)
                bare.append(BareReads(directory, chosen, batch_bytes))
                bare[-1].run()
                read_randomly(log, chosen)
                logs.append(log)
                offsets.append(chosen)
            compare_reads(report, name, logs, offsets, bare)
            compare_appends(report, name, logs, more)
            for reader in bare:
                reader.close()
            for log in logs:
                log.close(None)


def compare_reads(
    report: Report,
    name: str,
    logs: Sequence[PartitionLog],
    offsets: Sequence[Sequence[int]],
    bare: Sequence[BareReads],
) -> None:
    """Read the short log and the long one in turn, and the same batches without either."""
    reads = [partial(read_randomly, *pair) for pair in zip(logs, offsets, strict=True)]
    short, long, short_bare, long_bare = alternate(
        report.rounds, *reads, *(reader.run for reader in bare)
    )
    report_us(report, f"read_10gb_{name}_us", long, short, PLACES)
    report_us(report, f"read_10gb_bare_{name}_us", long_bare, short_bare, PLACES)
    long_beyond, short_beyond = (
        [own - other for own, other in zip(*pair, strict=True)]
        for pair in ((long, long_bare), (short, short_bare))
    )
    report_us(report, f"read_10gb_beyond_bare_{name}_us", long_beyond, short_beyond, PLACES)
    report.target(f"read_10gb_vs_100mb_{name}", ratio(long, short), 1.2, at_least=False)


def compare_appends(
    report: Report, name: str, logs: Sequence[PartitionLog], more: Sequence[bytes]
) -> None:
    """Append to the short log and to the long one in turn."""
    short, long = alternate(report.rounds, *(partial(append_more, log, more) for log in logs))
    report_us(report, f"append_10gb_{name}_us", long, short, APPENDS)
    report.target(f"append_10gb_vs_100mb_{name}", ratio(long, short), 1.2, at_least=False)


def report_us(
    report: Report, name: str, long: Sequence[float], short: Sequence[float], count: int
) -> None:
    """Note both medians per read or append."""
    long_us, short_us = (statistics.median(side) / count * 1e6 for side in (long, short))
    report.figure(name, long_us, f"{long_us:8.1f} us, at 100 MB {short_us:.1f} us")
