"""Speed of the storage engine, each figure beside the bare system calls it is measured by.

``./run bench storage [CASE...]``: append, sync, fetch, checked, open, length. Every comparison
alternates between both sides and takes medians; results are appended to
``bench/results/storage.jsonl``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
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

import uvloop

from cases.storage_length import bench_length
from cases.storage_logs import (
    GIB,
    KIB,
    LEADER_EPOCH,
    MIB,
    TOPIC,
    TOPIC_PARTITION,
    client_batches,
    drop_cache,
    fetch_offsets,
    fill_log,
    leading_machine,
    make_replica,
    open_log,
    sync,
    ticket_of,
)
from measuring.report import ROUNDS, Report, alternate, ratio, save, scratch
from oncelog.actors.process.clock import SystemClock
from oncelog.actors.protocol.messages.partition import FetchRequest
from oncelog.actors.replica.partition_leader import PartitionLeader
from oncelog.actors.replica.replica import Replica
from oncelog.storage.errors import ErrorCode
from oncelog.storage.log.partition import PartitionLog
from oncelog.storage.model import AppendOrigin
from oncelog.storage.records.client_batch import check_client_batch

RESULTS: Final = Path(__file__).resolve().parent / "results" / "storage.jsonl"
MESSAGE_MAX_BYTES: Final = 2 * MIB


# --- append ---------------------------------------------------------------------------------------


def append_checked(log: PartitionLog, batches: Sequence[bytes]) -> float:
    """What a leader does with each client batch, without the sync; returns the seconds."""
    machine, clock, ticket = leading_machine(), SystemClock(), ticket_of(batches)
    started = time.perf_counter()
    for batch in batches:
        header = check_client_batch(batch, message_max_bytes=MESSAGE_MAX_BYTES)
        if isinstance(header, ErrorCode):
            raise SystemExit(f"the batch was refused: {header.name}")
        now_ms = clock.now_ms()
        verdict = machine.decide_append(
            header, origin=AppendOrigin.CLIENT, ticket=ticket, now_ms=now_ms
        )
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
SYNC_SLICES_PER_ROUND: Final = 5
"""A slice takes 60 ms, in which a disk that others use too may well be twice as slow."""


async def append_and_wait(replica: Replica, batches: Sequence[bytes]) -> None:
    """One appender: the next batch goes out when the last one is durable."""
    clock, ticket = SystemClock(), ticket_of(batches)
    for batch in batches:
        header = check_client_batch(batch, message_max_bytes=MESSAGE_MAX_BYTES)
        if isinstance(header, ErrorCode):
            raise SystemExit(f"the batch was refused: {header.name}")
        now_ms = clock.now_ms()
        verdict = replica.machine.decide_append(
            header, origin=AppendOrigin.CLIENT, ticket=ticket, now_ms=now_ms
        )
        if verdict.error is not ErrorCode.NONE:
            raise SystemExit(f"the append was refused: {verdict.error.name}")
        outcome = replica.write(batch, header, None, now_ms=now_ms)
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
    """16 appenders of 16 KiB sharing syncs, against one ``fdatasync`` per 16 bare writes.

    On the event loop that the actors run on.
    """
    size = 16 * KIB
    batches = [client_batches(APPENDS_EACH, size, producer_id=n) for n in range(APPENDERS)]

    def ours() -> float:
        with scratch(root) as directory:
            return uvloop.run(sync_ours(directory, batches))

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

    own, bare = alternate(SYNC_SLICES_PER_ROUND * report.rounds, ours, theirs)
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


def time_whole_start(data_dir: Path) -> float:
    """The same, in a loop of its own."""
    return asyncio.run(time_start(data_dir))


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
            (killed,) = alternate(report.rounds, partial(time_open, directory, is_clean=False))
            report.target(
                f"open_killed_{name}_gb_per_s", written / statistics.median(killed) / 1e9, wanted
            )
            (led,) = alternate(report.rounds, partial(time_whole_start, data_dir))
            rate = written / statistics.median(led) / 1e9
            report.figure(
                f"start_killed_{name}_gb_per_s", rate, f"{rate:8.3f} with replay and sync"
            )
            log = open_log(directory)
            sync(log)
            log.close([])
            (clean,) = alternate(report.rounds, partial(time_open, directory, is_clean=True))
            report.target(
                f"open_clean_{name}_ms", statistics.median(clean) * 1e3, 200, at_least=False
            )


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
