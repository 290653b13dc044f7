"""Sizes that need no cluster: the machines and logs of one process, for ``bench/scale.py``."""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from cases.storage_logs import (
    GIB,
    MIB,
    RECORDS_PER_BATCH,
    TIMESTAMP_MS,
    append_all,
    fill_long_log,
    open_log,
    sync,
)
from cases.transaction_growth import IDLE_ROUND, MachineSide
from measuring.findings import tell
from oncelog.actors.config import ClusterConfig
from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.cluster.cluster_records import (
    BrokerRegistered,
    ClusterFounded,
    IsrChanged,
    TopicCreated,
    encode_cluster_record,
    snapshot_parts,
)
from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.group.group_machine import GroupMachine
from oncelog.actors.protocol.group.rebalance import GroupSettings
from oncelog.actors.protocol.messages.group import OffsetAndMetadata, OffsetCommitRequest
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.log.partition import PartitionLog
from oncelog.storage.model import NO_PRODUCER_ID, AbortedTransaction, TopicPartition
from oncelog.storage.records.codec import decode_records, encode_records
from oncelog.storage.segments.aborted_index import AbortedIndexEntry, TxnIndex

CHANGES_PER_TOPIC: Final = 100
SNAPSHOT_EVERY: Final = ClusterConfig().metadata_log_max_record_count_between_snapshots

PROBES: Final = 101
"""How often a short operation is repeated; an odd number, so that one of them is the median."""

COMMITS: Final = 1_000
TOPIC_IDS: Final = {"bench": "0" * 32}
REAL_BYTES: Final = 64 * MIB
"""At the end of the sparse log: records that take room."""

FETCH_BYTES: Final = MIB


def memory_mb() -> float:
    """What this process has resident, in MB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def median_us(work: Callable[[], object]) -> float:
    """Microseconds of a short operation."""
    durations = []
    for _ in range(PROBES):
        started = time.perf_counter()
        work()
        durations.append(1e6 * (time.perf_counter() - started))
    return statistics.median(durations)


def seconds(work: Callable[[], object]) -> float:
    """Seconds of a long operation."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def run_ids(count: int, _directory: Path) -> None:
    """So many transactional ids at one coordinator's machine, all idle but one."""
    before = memory_mb()
    started = time.perf_counter()
    crowded = MachineSide(count)
    tell("ids: made, s", time.perf_counter() - started)
    tell("ids: memory, MB", memory_mb() - before)
    alone = MachineSide(0)
    for name, side in (("alone", alone), ("crowded", crowded)):
        side.transact(IDLE_ROUND)
        costs = [side.transact(IDLE_ROUND) for _ in range(5)]
        tell(f"ids: transaction {name}, us", 1e6 * statistics.median(costs) / IDLE_ROUND)
    upkeep, now_ms = crowded.machine.upkeep, crowded.now_ms
    tell("ids: scan for timeouts, us", median_us(lambda: upkeep.expired_transactions(now_ms)))
    tell("ids: scan for idle ids, us", median_us(lambda: upkeep.idle_ids(now_ms)))


def run_groups(count: int, _directory: Path) -> None:
    """So many groups, each with a committed position, at one coordinator's machine."""
    before = memory_mb()
    machine = GroupMachine(GroupSettings())
    tell("groups: made, s", seconds(lambda: _commit_all(machine, count)))
    tell("groups: memory, MB", memory_mb() - before)
    small = GroupMachine(GroupSettings())
    for name, groups, of in (("alone", 1, small), ("crowded", count, machine)):
        _commit_all(of, groups)
        taken = seconds(partial(_commit_to_one, of))
        tell(f"groups: commit {name}, us", 1e6 * taken / COMMITS)
    scan = median_us(lambda: machine.expired(TIMESTAMP_MS, ()))
    tell("groups: scan for unused ones, us", scan)


def _commit_all(machine: GroupMachine, count: int) -> None:
    for number in range(count):
        _commit(machine, f"group-{number}", number)


def _commit_to_one(machine: GroupMachine) -> None:
    for number in range(COMMITS):
        _commit(machine, "group-0", number)


def _commit(machine: GroupMachine, group_id: str, offset: int) -> None:
    position = (TopicPartition("bench", 0), OffsetAndMetadata(offset=offset))
    request = OffsetCommitRequest(group_id=group_id, offsets=(position,))
    for record in machine.offsets.decide_commit(request, TIMESTAMP_MS, TOPIC_IDS).records:
        machine.apply(record, record_offset=offset, producer_id=NO_PRODUCER_ID)


def run_aborted(count: int, directory: Path) -> None:
    """So many aborted transactions in the index of one segment."""
    path = directory / f"{0:020d}.txnindex"
    index = TxnIndex(RealFileSystem(), path)

    def fill() -> None:
        for number in range(count):
            # Two offsets each: a record and its marker.
            index.append(
                AbortedIndexEntry(
                    producer_id=number,
                    first_offset=2 * number,
                    last_offset=2 * number + 1,
                    last_stable_offset=2 * number + 2,
                )
            )

    tell("aborted: written, s", seconds(fill))
    index.close()
    tell("aborted: file, MB", path.stat().st_size / 1e6)
    before = memory_mb()
    loaded = TxnIndex(RealFileSystem(), path)
    tell("aborted: loaded, s", seconds(loaded.load))
    tell("aborted: memory, MB", memory_mb() - before)
    for name, offset in (("first", 0), ("middle", count), ("last", 2 * count - 2)):
        cost = median_us(partial(_aborted_at, loaded, offset))
        tell(f"aborted: looked up, {name}, us", cost)
    loaded.close()


def _aborted_at(index: TxnIndex, offset: int) -> None:
    found: list[AbortedTransaction] = []
    index.collect(offset, offset + 2, found)
    if [entry.first_offset for entry in found] != [offset]:
        raise AssertionError(found)


def run_sparse(gibibytes: int, directory: Path) -> None:
    """A log of so many GiB, most of it holes: opened after a clean stop, and read."""

    def fill() -> None:
        fill_long_log(
            directory / "bench-0",
            size_bytes=gibibytes * GIB,
            real_bytes=REAL_BYTES,
            batch_bytes=MIB,
            segment_bytes=GIB,
        )

    # In a process of its own: what it leaves to reuse would hide what the log takes.
    filler = multiprocessing.get_context("fork").Process(target=fill)
    filler.start()
    tell("sparse: made, s", seconds(filler.join))
    before = memory_mb()
    started = time.perf_counter()
    log = open_log(directory / "bench-0")
    tell("sparse: opened, s", time.perf_counter() - started)
    tell("sparse: memory, MB", memory_mb() - before)
    end = log.log_end_offset
    for name, offset in (("first", 0), ("middle", end // 2), ("last", end - 1)):
        tell(f"sparse: {name} fetch, us", 1e6 * seconds(partial(_fetch, log, offset)))
    searched = seconds(lambda: log.offset_for_timestamp(TIMESTAMP_MS + 1, end))
    tell("sparse: time searched, ms", 1e3 * searched)
    tell("sparse: end read, MB/s", _read_mb_per_s(log))
    tell("sparse: memory after reading, MB", memory_mb() - before)
    tell("sparse: closed, s", seconds(lambda: log.close([])))


def _fetch(log: PartitionLog, offset: int) -> None:
    found = log.fetch(offset, max_bytes=FETCH_BYTES, upper_offset=log.log_end_offset)
    if not found.records:
        raise AssertionError(offset)


def _read_mb_per_s(log: PartitionLog) -> float:
    """The last GiB, most of it holes."""
    batches = GIB // MIB - 1
    offset, size = log.log_end_offset - batches * RECORDS_PER_BATCH, 0
    started = time.perf_counter()
    while offset < log.log_end_offset:
        found = log.fetch(offset, max_bytes=FETCH_BYTES, upper_offset=log.log_end_offset)
        offset, size = found.next_offset, size + len(found.records)
    return size / 1e6 / (time.perf_counter() - started)


def run_changes(count: int, directory: Path) -> None:
    """So many ISR changes over a hundredth as many topics: what a controller loads at its start."""
    path, live = directory / "changes-0", ClusterMachine()
    log = open_log(path)

    def append(records: Iterable[LogRecord]) -> None:
        for record in records:
            live.apply(record)
            batch = encode_records([(record.key, record.value, TIMESTAMP_MS, ())])
            append_all(log, [bytes(batch)])
        sync(log)

    def load() -> ClusterMachine:
        loaded, opened = ClusterMachine(), open_log(path)
        for header, batch in opened.replay(opened.log_start_offset):
            for record in decode_records(batch, header):
                loaded.apply(LogRecord(record.key, record.value))
        opened.close([])
        return loaded

    def loaded_s(name: str) -> None:
        started = time.perf_counter()
        loaded = load()
        tell(f"changes: loaded {name}, s", time.perf_counter() - started)
        if loaded.topics != live.topics:
            raise AssertionError(f"{name}: another state was loaded")

    topics = max(1, count // CHANGES_PER_TOPIC)
    tell("changes: written, s", seconds(lambda: append(_cluster_records(topics, count))))
    tell("changes: log, MB", log.size_bytes / 1e6)
    log.close([])
    loaded_s("without a snapshot")
    log = open_log(path)
    begins_at = log.log_end_offset
    parts: list[LogRecord] = []
    tell(
        "changes: snapshot made, s", seconds(lambda: parts.extend(snapshot_parts(live.snapshot())))
    )
    append(parts)
    tell("changes: snapshot, MB", sum(len(part.value or b"") for part in parts) / 1e6)
    log.advance_log_start(begins_at)
    log.close([])
    loaded_s("from a snapshot")
    log = open_log(path)
    append(_isr_changes(topics, min(count, SNAPSHOT_EVERY), rounds_before=count // topics))
    log.close([])
    loaded_s("from a snapshot and all that may follow it")


def _cluster_records(topics: int, changes: int) -> Iterator[LogRecord]:
    """A cluster of three brokers, whose topics have a partition each."""
    yield encode_cluster_record(
        ClusterFounded(
            cluster_id="c" * 32,
            cluster_key=bytes(32),
            transaction_state_partitions=2,
            offsets_partitions=2,
        )
    )
    for broker_id in (1, 2, 3):
        yield encode_cluster_record(BrokerRegistered(broker_id=broker_id, data_dir="/data"))
    for number in range(topics):
        yield encode_cluster_record(
            TopicCreated(
                name=f"topic-{number}",
                topic_id=f"{number:032x}",
                replicas=((1, 2, 3),),
                settings=(),
            )
        )
    yield from _isr_changes(topics, changes)


def _isr_changes(topics: int, changes: int, *, rounds_before: int = 0) -> Iterator[LogRecord]:
    for number in range(changes):
        done = rounds_before + number // topics
        yield encode_cluster_record(
            IsrChanged(
                topic_id=f"{number % topics:032x}",
                partition=0,
                partition_version=done + 1,
                isr=(1, 2) if done % 2 else (1, 2, 3),
            )
        )
