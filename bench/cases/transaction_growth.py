"""Whether a transaction costs more after many transactions, or beside many idle ids.

Measured in this process: the coordinator's machine for as many transactions as asked (every record
encoded, decided and applied, nothing written), and coordinator and leader with their logs on disk,
synced, for some thousands.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Final

from clusters.local_cluster import LocalCluster
from measuring.report import Report, alternate, ratio, scratch
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from oncelog.actors.protocol.transaction.producer_ids import ProducerIdBlocks
from oncelog.actors.protocol.transaction.transaction_machine import TransactionMachine
from oncelog.api.producing.producer import AsyncProducer
from oncelog.storage.model import TopicPartition

PARTITIONS: Final = tuple(TopicPartition("bench", number) for number in range(4))
IDLE_IDS: Final = 100_000
SHELL_TRANSACTIONS: Final = 2_000
SHELL_ROUND: Final = 100
WINDOWS: Final = 20
IDLE_ROUND: Final = 500
GROWTH_MAX: Final = 1.15


class MachineSide:
    """One coordinator's machine and the current producer of its busiest id."""

    def __init__(self, idle_ids: int) -> None:
        blocks = ProducerIdBlocks()
        blocks.add_block(0, 1 << 40)
        self.machine = TransactionMachine(
            producer_ids=blocks,
            transaction_max_timeout_ms=900_000,
            transactional_id_expiration_ms=604_800_000,
        )
        self.now_ms = 1_700_000_000_000
        for number in range(idle_ids):
            self._init(f"idle-{number}")
        self._producer = self._init("busy")

    def _init(self, transactional_id: str) -> tuple[int, int]:
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=60_000
        )
        decision = self.machine.producers.decide_init_producer_id(request, self.now_ms)
        for record in decision.records:
            self.machine.ids.apply(record)
        return decision.reply.producer_id, decision.reply.producer_epoch

    def transact(self, count: int) -> float:
        """Processor seconds of ``count`` transactions on 4 partitions, enrolment to COMPLETE."""
        machine, (producer_id, producer_epoch) = self.machine, self._producer
        counts = {"bench": len(PARTITIONS)}
        started = time.thread_time()
        for _ in range(count):
            self.now_ms += 1
            added = machine.producers.decide_add_partitions(
                AddPartitionsToTxnRequest(
                    transactional_id="busy",
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    partitions=PARTITIONS,
                ),
                self.now_ms,
                counts,
            )
            ended = EndTxnRequest(
                transactional_id="busy",
                committed=True,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
            )
            for record in added.records:
                machine.ids.apply(record)
            end = machine.decide_end_txn(ended, self.now_ms)
            for record in end.records:
                machine.ids.apply(record)
            for record in machine.upkeep.decide_complete("busy", self.now_ms).records:
                machine.ids.apply(record)
            producer_id, producer_epoch = end.reply.producer_id, end.reply.producer_epoch
        self._producer = producer_id, producer_epoch
        return time.thread_time() - started


def bench_transactions_done(report: Report, transactions: int) -> None:
    """The machine's cost per transaction: the last windows against the first, both fresh beside.

    A second machine that stays young runs in turn with the one that ages, so that a machine that
    slows down for other reasons slows both.
    """
    old = MachineSide(0)
    step = max(transactions // WINDOWS, 1)
    probe = max(min(step // 4, 500), 1)
    growths = []
    for done in range(0, transactions, step):
        if done:
            old.transact(step)
        young = MachineSide(0)
        young.transact(probe)
        aged, fresh = alternate(5, partial(old.transact, probe), partial(young.transact, probe))
        growths.append(ratio(aged, fresh))
        cost_us = 1e6 * statistics.median(aged) / probe
    report.figure("machine_us", cost_us, f"{cost_us:8.1f} us per transaction, no log, no calls")
    report.figure("machine_transactions", transactions, f"{transactions:8d} transactions done")
    report.target("machine_growth", statistics.median(growths[-5:]), GROWTH_MAX, at_least=False)


def bench_idle_ids(report: Report) -> None:
    """The machine's cost per transaction beside 100,000 idle ids, and the longest scan of them."""
    alone, crowded = MachineSide(0), MachineSide(IDLE_IDS)
    few, many = alternate(
        max(report.rounds, 7),
        lambda: alone.transact(IDLE_ROUND),
        lambda: crowded.transact(IDLE_ROUND),
    )
    report.target("idle_ids_cost", ratio(many, few), GROWTH_MAX, at_least=False)
    durations = []
    for _ in range(report.rounds):
        started = time.perf_counter()
        crowded.machine.upkeep.unfinished()
        crowded.machine.upkeep.expired_transactions(crowded.now_ms)
        durations.append(1e3 * (time.perf_counter() - started))
    report.figure(
        "timeout_scan_ms",
        statistics.median(durations),
        f"{statistics.median(durations):8.3f} ms of the event loop per scan of 100,000 idle ids",
    )


def bench_shells(report: Report, root: Path) -> None:
    """Coordinator and leader with their logs, synced: aged ones against young ones, in turn."""
    with scratch(root) as old_directory, scratch(root) as young_directory:
        old, young = asyncio.run(_shell_costs(old_directory, young_directory, report.rounds))
    cost_ms = 1e3 * statistics.median(old)
    report.figure(
        "shells_ms",
        cost_ms,
        f"{cost_ms:8.2f} ms of the processor per transaction, {SHELL_TRANSACTIONS} done",
    )
    report.target("shells_growth", ratio(old, young), GROWTH_MAX, at_least=False)


async def _shell_costs(
    old_directory: Path, young_directory: Path, rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds of the processor per transaction, by round, of aged servers and of young ones."""
    sides = []
    for directory in (old_directory, young_directory):
        cluster = LocalCluster(directory)
        await cluster.start()
        await cluster.create_topic("bench", 1)
        producer = cluster.producer("bench")
        await producer.init_transactions()
        sides.append((cluster, producer))
    await _transact(sides[0][1], SHELL_TRANSACTIONS)
    old, young = [], []
    for _ in range(rounds):
        old.append(await _transact(sides[0][1], SHELL_ROUND))
        young.append(await _transact(sides[1][1], SHELL_ROUND))
    for cluster, producer in sides:
        await producer.close()
        await cluster.stop()
    return old, young


async def _transact(producer: AsyncProducer, count: int) -> float:
    """Median seconds of the processor that a transaction of one record takes in this thread."""
    durations = []
    for _ in range(count):
        started = time.thread_time()
        await producer.begin_transaction()
        await producer.send("bench", b"x" * 1024, partition=0)
        await producer.commit_transaction()
        durations.append(time.thread_time() - started)
    return statistics.median(durations)
