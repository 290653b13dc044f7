"""Speed of the storage engine, each figure beside the bare system calls it is measured by.

``./run bench storage [CASE...]``: append, sync, fetch, checked,
open, length. Every comparison alternates
between both sides and takes medians; results are appended to ``bench/results/storage.jsonl``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from _measure import ROUNDS, Report, alternate, ratio, save, scratch
from _storage_logs import (
    GIB,
    KIB,
    LEADER_EPOCH,
    MIB,
    RECORDS_PER_BATCH,
    TOPIC,
    TOPIC_PARTITION,
    append_all,
    client_batches,
    drop_cache,
    fetch_offsets,
    fill_log,
    fill_long_log,
    leading_machine,
    make_replica,
    open_log,
    sync,
)

from oncelog.actors.clock import SystemClock
from oncelog.actors.partition_leader import PartitionLeader
from oncelog.actors.protocol.messages import FetchRequest
from oncelog.actors.replica import Replica
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import AppendOrigin
from oncelog.storage.partition_log import PartitionLog
from oncelog.storage.record_batch import check_client_batch

RESULTS: Final = Path(__file__).resolve().parent / "results" / "storage.jsonl"
MESSAGE_MAX_BYTES: Final = 2 * MIB


# --- append ---------------------------------------------------------------------------------------


def append_checked(log: PartitionLog, batches: Sequence[bytes]) -> float:
    """What a leader does with each client batch, without the sync; returns the seconds."""
    machine, clock = leading_machine(), SystemClock()
    started = time.perf_counter()
    for batch in batches:
        header = check_client_batch(batch, message_max_bytes=MESSAGE_MAX_BYTES)
        if isinstance(header, ErrorCode):
            raise SystemExit(f"the batch was refused: {header.name}")
        now_ms = clock.now_ms()
        verdict = machine.decide_append(header, origin=AppendOrigin.CLIENT, now_ms=now_ms)
        if verdict.error is not ErrorCode.NONE:
            raise SystemExit(f"the append was refused: {verdict.error.name}")
        header = header.with_offset(machine.log_end_offset, LEADER_EPOCH)
        if log.needs_roll(
            len(batch),
            header.max_timestamp_ms,
            now_ms,
            last_offset_delta=header.last_offset_delta,
        ):
            log.roll(machine.snapshot())
        log.append(batch, header)
        machine.apply(header, None)
    return time.perf_counter() - started


def bench_append(root: Path, report: Report) -> None:
    """The leader's append path without a sync, against ``os.write`` of the same bytes."""
    for name, size, count, wanted in (
        ("append_1mib", MIB, 192, 0.60),
        ("append_16kib", 16 * KIB, 6_000, None),
        ("append_1kib", KIB, 30_000, None),
    ):
        batches = client_batches(count, size)

        def ours(batches: Sequence[bytes] = batches) -> float:
            with scratch(root) as directory:
                log = open_log(directory / f"{TOPIC}-0")
                log.assign_leader_epoch(LEADER_EPOCH, 0)
                seconds = append_checked(log, batches)
                log.close(None)
                return seconds

        def theirs(batches: Sequence[bytes] = batches) -> float:
            with scratch(root) as directory:
                descriptor = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT)
                started = time.perf_counter()
                for batch in batches:
                    os.write(descriptor, batch)
                seconds = time.perf_counter() - started
                os.close(descriptor)
                return seconds

        own, bare = alternate(report.rounds, ours, theirs)
        report.figure(
            name,
            statistics.median(own) / count,
            f"{statistics.median(own) / count * 1e6:8.1f} us, bare write "
            f"{statistics.median(bare) / count * 1e6:.1f} us, "
            f"{size * count / statistics.median(own) / 1e9:.2f} GB/s",
        )
        if wanted is not None:
            report.target(f"{name}_vs_write", ratio(bare, own), wanted)
        else:
            report.figure(f"{name}_vs_write", ratio(bare, own), f"{ratio(bare, own):8.3f}")


# --- group sync -----------------------------------------------------------------------------------

APPENDERS: Final = 16
APPENDS_EACH: Final = 100


async def append_and_wait(replica: Replica, batches: Sequence[bytes]) -> None:
    """One appender: the next batch goes out when the last one is durable."""
    clock = SystemClock()
    for batch in batches:
        header = check_client_batch(batch, message_max_bytes=MESSAGE_MAX_BYTES)
        if isinstance(header, ErrorCode):
            raise SystemExit(f"the batch was refused: {header.name}")
        verdict = replica.machine.decide_append(
            header, origin=AppendOrigin.CLIENT, now_ms=clock.now_ms()
        )
        if verdict.error is not ErrorCode.NONE:
            raise SystemExit(f"the append was refused: {verdict.error.name}")
        outcome = replica.write(batch, header, None)
        error = await replica.committed(outcome.next_offset)
        if error is not ErrorCode.NONE:
            raise SystemExit(f"the append was not committed: {error.name}")


async def sync_ours(directory: Path, batches: Sequence[Sequence[bytes]]) -> float:
    """Seconds for all appenders together, everything durable."""
    replica = make_replica(directory)
    await replica.start()
    started = time.perf_counter()
    await asyncio.gather(*(append_and_wait(replica, own) for own in batches))
    seconds = time.perf_counter() - started
    await replica.stop()
    return seconds


def bench_sync(root: Path, report: Report) -> None:
    """16 appenders of 16 KiB sharing syncs, against one ``fdatasync`` per 16 bare writes."""
    size = 16 * KIB
    batches = [client_batches(APPENDS_EACH, size, producer_id=n) for n in range(APPENDERS)]

    def ours() -> float:
        with scratch(root) as directory:
            return asyncio.run(sync_ours(directory, batches))

    def theirs() -> float:
        with scratch(root) as directory:
            descriptor = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT)
            started = time.perf_counter()
            for number in range(APPENDS_EACH):
                for own in batches:
                    os.write(descriptor, own[number])
                os.fdatasync(descriptor)
            seconds = time.perf_counter() - started
            os.close(descriptor)
            return seconds

    own, bare = alternate(report.rounds, ours, theirs)
    total = size * APPENDERS * APPENDS_EACH
    report.figure(
        "sync_16x16kib_mb_per_s",
        total / statistics.median(own) / 1e6,
        f"{total / statistics.median(own) / 1e6:8.1f} MB/s, bare "
        f"{total / statistics.median(bare) / 1e6:.1f} MB/s, "
        f"{statistics.median(bare) / APPENDS_EACH * 1e6:.0f} us per bare round",
    )
    report.target("sync_16x16kib_vs_fdatasync", ratio(bare, own), 0.80)


# --- fetch ----------------------------------------------------------------------------------------


async def fetch_all(directory: Path, offsets: Sequence[tuple[int, int]]) -> float:
    """Seconds that a leader takes to answer every fetch of a reader from the start."""
    replica = make_replica(directory)
    await replica.start()
    leader = PartitionLeader(replica=replica, clock=SystemClock())
    drop_cache(directory / f"{TOPIC}-0")
    started = time.perf_counter()
    for offset, size in offsets:
        reply = await leader.fetch(
            FetchRequest(
                topic_partition=TOPIC_PARTITION,
                fetch_offset=offset,
                max_bytes=MIB,
                leader_epoch=replica.leader_epoch,
            )
        )
        if len(reply.records) != size:
            raise SystemExit(f"fetch at {offset}: {len(reply.records)} bytes instead of {size}")
    seconds = time.perf_counter() - started
    await replica.stop()
    return seconds


def bench_fetch(root: Path, report: Report) -> None:
    """A partition of 1 GiB read in 1 MiB fetches with cold caches, against ``os.pread``."""
    with scratch(root) as data_dir:
        directory = data_dir / f"{TOPIC}-0"
        fill_log(directory, size_bytes=GIB, batch_bytes=60 * KIB)
        log = open_log(directory)
        sync(log)
        offsets = list(fetch_offsets(log, max_bytes=MIB))
        log.close([])
        path = directory / f"{0:020d}.log"

        def log_only() -> float:
            log = open_log(directory)
            drop_cache(directory)
            started = time.perf_counter()
            for offset, _ in offsets:
                log.fetch(offset, max_bytes=MIB, upper_offset=log.log_end_offset)
            seconds = time.perf_counter() - started
            log.close([])
            return seconds

        def ours() -> float:
            return asyncio.run(fetch_all(data_dir, offsets))

        def theirs() -> float:
            drop_cache(directory)
            descriptor = os.open(path, os.O_RDONLY)
            position = 0
            started = time.perf_counter()
            for _, size in offsets:
                os.pread(descriptor, size, position)
                position += size
            seconds = time.perf_counter() - started
            os.close(descriptor)
            return seconds

        own, alone, bare = alternate(report.rounds, ours, log_only, theirs)
        total = sum(size for _, size in offsets)
        report.figure(
            "fetch_cold_gb_per_s",
            total / statistics.median(own) / 1e9,
            f"{total / statistics.median(own) / 1e9:8.2f} GB/s, log alone "
            f"{total / statistics.median(alone) / 1e9:.2f}, "
            f"bare pread {total / statistics.median(bare) / 1e9:.2f}",
        )
        report.target("fetch_cold_vs_pread", ratio(bare, own), 0.50)
        report.figure("fetch_cold_log_vs_pread", ratio(bare, alone), f"{ratio(bare, alone):8.3f}")


def read_all_batches(log: PartitionLog) -> float:
    """Seconds to read the log in slices of 1 MiB."""
    offset, started = 0, time.perf_counter()
    while offset < log.log_end_offset:
        offset = log.fetch(offset, max_bytes=MIB, upper_offset=log.log_end_offset).next_offset
    return time.perf_counter() - started


def bench_checked(root: Path, report: Report) -> None:
    """Reads of what another process wrote, each CRC checked, against ``os.pread`` (cached)."""
    for name, batch_bytes in (("1mib", MIB), ("16kib", 16 * KIB), ("1kib", KIB), ("200b", 200)):
        with scratch(root) as data_dir:
            directory = data_dir / f"{TOPIC}-0"
            fill_log(directory, size_bytes=64 * MIB, batch_bytes=batch_bytes)
            log = open_log(directory)
            path = directory / f"{0:020d}.log"
            size = path.stat().st_size

            def theirs(path: Path = path, size: int = size) -> float:
                descriptor = os.open(path, os.O_RDONLY)
                started = time.perf_counter()
                for position in range(0, size, MIB):
                    os.pread(descriptor, MIB, position)
                seconds = time.perf_counter() - started
                os.close(descriptor)
                return seconds

            own, bare = alternate(report.rounds, partial(read_all_batches, log), theirs)
            report.figure(
                f"checked_{name}_vs_pread",
                ratio(bare, own),
                f"{ratio(bare, own):8.3f}, {size / statistics.median(own) / 1e9:.2f} GB/s",
            )
            log.close(None)


# --- open -----------------------------------------------------------------------------------------


def time_open(directory: Path, *, is_clean: bool) -> float:
    """Seconds to open the log; it is closed again as it was."""
    started = time.perf_counter()
    log = open_log(directory)
    seconds = time.perf_counter() - started
    if log.was_clean != is_clean:
        raise SystemExit(f"the log was {'clean' if log.was_clean else 'not clean'}")
    log.close([] if is_clean else None)
    return seconds


async def time_start(data_dir: Path) -> float:
    """Seconds until a replica leads: log opened, state replayed, all synced."""
    replica = make_replica(data_dir)
    started = time.perf_counter()
    await replica.start()
    seconds = time.perf_counter() - started
    if replica.availability() is not ErrorCode.NONE:
        raise SystemExit(f"the replica did not start: {replica.failure}")
    replica.failure = "killed"
    await replica.stop()
    return seconds


def bench_open(root: Path, report: Report) -> None:
    """Opening a log after a clean stop, and after kill -9, when one segment is scanned."""
    for name, batch_bytes, size, wanted in (
        ("1mib", MIB, GIB, 2.0),
        ("16kib", 16 * KIB, GIB, 2.0),
        ("300b", 300, 64 * MIB, 2.0),
    ):
        with scratch(root) as data_dir:
            directory = data_dir / f"{TOPIC}-0"
            fill_log(directory, size_bytes=size, batch_bytes=batch_bytes)
            written = (directory / f"{0:020d}.log").stat().st_size
            (killed,) = alternate(report.rounds, lambda d=directory: time_open(d, is_clean=False))
            report.target(
                f"open_killed_{name}_gb_per_s", written / statistics.median(killed) / 1e9, wanted
            )
            (led,) = alternate(report.rounds, lambda d=data_dir: asyncio.run(time_start(d)))
            rate = written / statistics.median(led) / 1e9
            report.figure(
                f"start_killed_{name}_gb_per_s", rate, f"{rate:8.3f} with replay and sync"
            )
            log = open_log(directory)
            sync(log)
            log.close([])
            (clean,) = alternate(report.rounds, lambda d=directory: time_open(d, is_clean=True))
            report.target(
                f"open_clean_{name}_ms", statistics.median(clean) * 1e3, 200, at_least=False
            )


# --- length ---------------------------------------------------------------------------------------

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
    round in random order, after a round that has brought them into the page cache. The long log
    thus touches as much data as the short one, but all of its segments and indexes. What a page
    cache too small for 10 GB would cost is the disk's matter and is not measured.
    Once with segments of 1 GiB (10 of them) and once of 64 MiB (150).
    """
    batch_bytes = 64 * KIB
    rng = random.Random(1)
    more = client_batches(APPENDS, 16 * KIB)
    for name, segment_bytes in (("gib_segments", GIB), ("mib64_segments", 64 * MIB)):
        with scratch(root) as data_dir:
            logs, offsets = [], []
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
                chosen = rng.sample(range(0, log.log_end_offset, RECORDS_PER_BATCH), PLACES)
                read_randomly(log, chosen)
                logs.append(log)
                offsets.append(chosen)
            compare_lengths(report, name, logs, offsets, more)
            for log in logs:
                log.close(None)


def compare_lengths(
    report: Report,
    name: str,
    logs: Sequence[PartitionLog],
    offsets: Sequence[Sequence[int]],
    more: Sequence[bytes],
) -> None:
    """Read and append, the short log and the long one in turn."""
    reads = [partial(read_randomly, *pair) for pair in zip(logs, offsets, strict=True)]
    short_read, long_read = alternate(report.rounds, *reads)
    short_append, long_append = alternate(
        report.rounds, *(partial(append_more, log, more) for log in logs)
    )
    for what, short, long, count in (
        ("read", short_read, long_read, PLACES),
        ("append", short_append, long_append, APPENDS),
    ):
        report.figure(
            f"{what}_10gb_{name}_us",
            statistics.median(long) / count * 1e6,
            f"{statistics.median(long) / count * 1e6:8.1f} us, at 100 MB "
            f"{statistics.median(short) / count * 1e6:.1f} us",
        )
        report.target(f"{what}_10gb_vs_100mb_{name}", ratio(long, short), 1.2, at_least=False)


# --- the run --------------------------------------------------------------------------------------

CASES: Final = {
    "append": bench_append,
    "sync": bench_sync,
    "fetch": bench_fetch,
    "checked": bench_checked,
    "open": bench_open,
    "length": bench_length,
}


def main() -> int:
    """Run the chosen cases and append what they found; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all if none is named")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--directory", type=Path, help="on the disk to measure")
    options = parser.parse_args()
    for name in options.cases:
        if name not in CASES:
            parser.error(f"unknown case {name!r}: there are {', '.join(CASES)}")
    report = Report(rounds=options.rounds)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    root = Path(tempfile.mkdtemp(prefix="oncelog-bench-", dir=options.directory))
    try:
        for name in options.cases or CASES:
            print(f"{name}: {(CASES[name].__doc__ or '').splitlines()[0]}", flush=True)
            CASES[name](root, report)
    finally:
        shutil.rmtree(root)
    save(RESULTS, "storage", report)
    missed = [target["name"] for target in report.targets if not target["met"]]
    print(f"{len(report.targets) - len(missed)} targets met, missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
