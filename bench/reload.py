"""How long a transaction coordinator needs to load its log after a million transactions.

The records are those that the coordinator's machine decides for 1,000 transactional ids, each with
two partitions per transaction; ten rounds of them are repeated to a million. They are written
through ``PartitionLog``, compacted, and read back as the coordinator does at its start. The active
segment, which is never compacted, is full and holds one batch per record: the worst case. The
comparator, in the same run, is the load of the same log before it was compacted.

Run: ``./run bench reload [--transactions N]``; exit status 1 if the load takes 3 s or more.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from oncelog.actors.config import ClusterConfig, internal_topic_config
from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages.base import ReplyT
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from oncelog.actors.protocol.transaction.producer_ids import ProducerIdBlocks
from oncelog.actors.protocol.transaction.transaction_machine import TransactionMachine
from oncelog.storage.compaction.compactor import Cleaner
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.errors import ErrorCode
from oncelog.storage.log.partition import LogSettings, PartitionLog
from oncelog.storage.model import TRANSACTION_STATE_TOPIC, TopicPartition
from oncelog.storage.records.batch import parse_header, patch
from oncelog.storage.records.codec import decode_records, encode_records

IDS = 1_000
TIME_MS = 1_700_000_000_000
DISTINCT_ROUNDS = 10
RECORDS_PER_BATCH = 500
LOADS = 5
TARGET_S = 3.0
TOPICS = {"flights": 6, "delays": 2}


def new_machine() -> TransactionMachine:
    """A coordinator's machine without any transactional id."""
    ids = ProducerIdBlocks()
    ids.add_block(0, 10 * IDS)
    return TransactionMachine(
        producer_ids=ids,
        transaction_max_timeout_ms=900_000,
        transactional_id_expiration_ms=604_800_000,
    )


def transaction_records() -> list[LogRecord]:
    """What ten transactions of each id leave in the log: three records each."""
    machine, records = new_machine(), []

    def commit(decision: Decision[ReplyT]) -> ReplyT:
        if decision.reply.error is not ErrorCode.NONE:
            raise AssertionError(decision.reply)
        for record in decision.records:
            machine.ids.apply(record)
            records.append(record)
        return decision.reply

    names = [f"flight-loader-{number:04d}" for number in range(IDS)]
    for name in names:
        commit(
            machine.producers.decide_init_producer_id(
                InitProducerIdRequest(transactional_id=name), TIME_MS
            )
        )
    records.clear()
    for number, name in itertools.product(range(DISTINCT_ROUNDS), names):
        now_ms = TIME_MS + number
        owner = machine.ids.metadata(name)
        if owner is None:
            raise AssertionError(name)
        request = AddPartitionsToTxnRequest(
            transactional_id=name,
            producer_id=owner.producer_id,
            producer_epoch=owner.producer_epoch,
            partitions=(TopicPartition("flights", number % 6), TopicPartition("delays", 0)),
        )
        commit(machine.producers.decide_add_partitions(request, now_ms, TOPICS))
        commit(
            machine.decide_end_txn(
                EndTxnRequest(
                    transactional_id=name,
                    committed=True,
                    producer_id=owner.producer_id,
                    producer_epoch=owner.producer_epoch,
                ),
                now_ms,
            )
        )
        commit(machine.upkeep.decide_complete(name, now_ms))
    return records


def append(log: PartitionLog, records: list[LogRecord]) -> None:
    """Append the records as one batch, rolling when it must."""
    batch = encode_records([(record.key, record.value, TIME_MS, ()) for record in records])
    header = parse_header(batch).with_offset(log.log_end_offset, 0)
    patch(batch, base_offset=log.log_end_offset, leader_epoch=0)
    if log.needs_roll(len(batch), header.max_timestamp_ms, TIME_MS):
        log.roll([])
    log.append(batch, header)


def write(log: PartitionLog, transactions: int) -> int:
    """Write the log: large batches, then one active segment of single records, almost full."""
    distinct = transaction_records()
    count = transactions * 3
    stream: Iterator[LogRecord] = itertools.islice(itertools.cycle(distinct), count)
    sample = encode_records([(distinct[0].key, distinct[0].value, TIME_MS, ())])
    singles = min(log.settings.segment_bytes // (len(sample) + 8), count // 2)
    left = count - singles
    while left:
        size = min(RECORDS_PER_BATCH, left)
        append(log, list(itertools.islice(stream, size)))
        left -= size
    log.roll([])
    for record in stream:
        append(log, [record])
    point = log.sync_point()
    point.run()
    log.mark_synced(point)
    return count


def load(directory: Path, settings: LogSettings) -> tuple[float, int, TransactionMachine]:
    """Open the log and read it back as a coordinator does; (seconds, records, machine)."""
    started = time.perf_counter()
    log = PartitionLog.open(
        filesystem=RealFileSystem(), directory=directory, settings=settings, now_ms=TIME_MS
    )
    machine, count = new_machine(), 0
    for header, batch in log.replay(log.log_start_offset):
        for record in decode_records(batch, header):
            machine.ids.apply(LogRecord(record.key, record.value))
            count += 1
    elapsed_s = time.perf_counter() - started
    log.close(())
    return elapsed_s, count, machine


def main() -> int:
    """Measure and print; 1 if the target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path, help="on the disk to measure")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="oncelog-bench-", dir=options.directory))
    directory = root / f"{TRANSACTION_STATE_TOPIC}-0"
    settings = LogSettings(
        segment_bytes=internal_topic_config(TRANSACTION_STATE_TOPIC, ClusterConfig()).segment_bytes
    )
    try:
        log = PartitionLog.open(
            filesystem=RealFileSystem(), directory=directory, settings=settings, now_ms=TIME_MS
        )
        written = write(log, options.transactions)
        log.close(())
        before_s, before_count, before = load(directory, settings)
        log = PartitionLog.open(
            filesystem=RealFileSystem(), directory=directory, settings=settings, now_ms=TIME_MS
        )
        started = time.perf_counter()
        result = Cleaner(log).clean(upper_offset=log.log_end_offset, now_ms=TIME_MS, producers=())
        clean_s = time.perf_counter() - started
        log.close(())
        loads = [load(directory, settings) for _ in range(LOADS)]
        same = all(
            before.ids.metadata(name) == loads[-1][2].ids.metadata(name)
            for name in (f"flight-loader-{number:04d}" for number in range(IDS))
        )
    finally:
        shutil.rmtree(root)
    after_s = statistics.median(seconds for seconds, _, _ in loads)
    figures = {
        "transactions": options.transactions,
        "records_written": written,
        "segment_bytes": settings.segment_bytes,
        "load_before_s": round(before_s, 2),
        "records_before": before_count,
        "clean_s": round(clean_s, 2),
        "clean_mb_per_s": round(result.bytes_read / clean_s / 1e6, 1),
        "bytes_before": result.bytes_before,
        "bytes_after": result.bytes_after,
        "load_after_s": round(after_s, 3),
        "records_after": loads[-1][1],
        "load_ratio": round(before_s / after_s, 1),
        "same_state": same,
    }
    print(json.dumps(figures, indent=1))
    return 0 if same and after_s < TARGET_S else 1


if __name__ == "__main__":
    sys.exit(main())
