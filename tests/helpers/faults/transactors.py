"""Clients with transactions: random writers, copiers, and hijackers of transactional ids."""

from __future__ import annotations

import logging
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any, Final

from faults.client import (
    COPIES_TOPIC,
    EVENTS_TOPIC,
    GROUP,
    LifeEnded,
    OwnClient,
    key_of,
    partition_of,
    polled,
    repeat,
)
from inside import transaction_of

from oncelog.storage.exceptions import OncelogError

ABORT_SHARE: Final = 0.15
COPIER_ABORT_SHARE: Final = 0.25
STEPS_MAX: Final = 8
POLL_SHARE: Final = 0.15
PAUSE_MAX_S: Final = 0.05
COPIER_POLL_MS: Final = 200
COPIER_RECORDS_MAX: Final = 50
TIMEOUTS_MS: Final = (4_000, 20_000)
"""Transaction timeouts: one that long pauses exceed, and one that none does."""

_log = logging.getLogger("faults.client")


class TransactionalClient(OwnClient):
    """What writers, copiers and hijackers share: taking an id over, and ending a transaction."""

    def open_producer(self, transactional_id: str) -> Any:
        """A producer that has taken ``transactional_id`` over."""
        producer = self.cluster.producer(
            transactional_id=transactional_id,
            transaction_timeout_ms=self.chance.choice(TIMEOUTS_MS),
            max_block_ms=20_000,
        )
        self.writer.invoke("init", txn_id=transactional_id)
        try:
            repeat(producer.init_transactions)
        except OncelogError as error:
            self.writer.complete("info", txn_id=transactional_id, error=str(error))
            producer.close(1_000)
            raise LifeEnded(f"init_transactions: {error}") from error
        # The public call answers with the commit token only.
        identity = transaction_of(producer).identity
        self.writer.complete(
            "ok", [identity.producer_id, identity.producer_epoch], txn_id=transactional_id
        )
        return producer

    def attempt(
        self,
        producer: Any,
        work: Callable[[], bool],
        commit: Callable[[], None],
        results: Callable[[], list[Any]],
    ) -> bool:
        """One transaction: ``work`` says whether to commit it; whether it was committed.

        ``results`` are the micro-operations with what is known of them. A failure before the
        commit request is a certain one; after it only a successful abort is.
        """
        is_asked = False
        try:
            producer.begin_transaction()
            if work():
                is_asked = True
                commit()
                repeat(producer.commit_transaction)
                self.writer.complete("ok", results())
                return True
            self._abort(producer)
            self.writer.complete("fail", results(), error="chosen abort")
        except OncelogError as error:
            self._give_up(producer, error, is_asked, results)
        return False

    def _give_up(
        self, producer: Any, error: OncelogError, is_asked: bool, results: Callable[[], list[Any]]
    ) -> None:
        """Abort what failed, if that is possible, and write down what became of it."""
        reason = f"{type(error).__name__}: {error}"
        if not error.fatal:
            try:
                self._abort(producer)
            except OncelogError as second:
                reason += f"; abort: {second}"
            else:
                self.writer.complete("fail", results(), error=reason)
                return
        self.writer.complete("info" if is_asked else "fail", results(), error=reason)
        raise LifeEnded(reason) from error

    def _abort(self, producer: Any) -> None:
        repeat(producer.abort_transaction)


class Transactor(TransactionalClient):
    """Random transactions of sends to several partitions and polls of others' records."""

    def __init__(self, arguments: Namespace) -> None:
        super().__init__(arguments)
        self.transactional_id = f"id-{self.name}"
        self._keys = [f"{EVENTS_TOPIC}-{n}" for n in range(arguments.partitions)]

    def live(self) -> None:
        """Transactions until the campaign ends."""
        with (
            self.closing(self.open_producer(self.transactional_id)) as producer,
            self.closing(self.cluster.consumer()) as consumer,
        ):
            keys = self.chance.sample(self._keys, min(2, len(self._keys)))
            consumer.assign([partition_of(key) for key in keys])
            consumer.seek_to_beginning()
            self.writer.event("assign", keys, seek_to_beginning=True)
            while not self.is_over:
                self.transaction(producer, consumer, self.transactional_id)

    def transaction(self, producer: Any, consumer: Any, transactional_id: str) -> None:
        """One transaction of 1 to 8 steps, at a random pace."""
        steps: list[list[Any]] = []
        for _ in range(self.chance.randint(1, STEPS_MAX)):
            if consumer is not None and self.chance.random() < POLL_SHARE:
                steps.append(["poll"])
            else:
                steps.append(["send", self.chance.choice(self._keys), self.new_value()])
        before = {} if consumer is None else consumer.positions()
        futures: dict[int, Any] = {}
        polls: dict[int, dict[str, Any]] = {}

        def work() -> bool:
            for number, step in enumerate(steps):
                if step[0] == "poll":
                    polls[number] = polled(consumer.poll(50, 100))
                else:
                    tp = partition_of(step[1])
                    futures[number] = producer.send(
                        tp.topic, step[2].encode(), partition=tp.partition
                    )
                if self.chance.random() < 0.3:
                    time.sleep(self.chance.uniform(0.0, PAUSE_MAX_S))
            return self.chance.random() >= ABORT_SHARE

        def commit() -> None:
            self.writer.commit()
            self.notify(transactional_id, [step[1] for step in steps if step[0] == "send"])

        def results() -> list[Any]:
            return [
                ["poll", polls.get(number, {})]
                if step[0] == "poll"
                else [*step, offset_of(futures.get(number))]
                for number, step in enumerate(steps)
            ]

        self.writer.invoke("txn", steps, txn_id=transactional_id)
        is_committed = self.attempt(producer, work, commit, results)
        if not is_committed and polls:
            for partition, offset in before.items():
                consumer.seek(partition, offset)
            if before.keys() != consumer.assignment():
                raise LifeEnded("positions were not known when the transaction began")
        time.sleep(self.chance.uniform(0.0, PAUSE_MAX_S))


class Hijacker(Transactor):
    """Takes the id of a living writer over, now and then, and may write with it."""

    def __init__(self, arguments: Namespace) -> None:
        super().__init__(arguments)
        self._victims = [f"id-{name}" for name in arguments.victims.split(",")]

    def live(self) -> None:
        """One take-over, after a while."""
        wait_until = time.monotonic() + self.chance.uniform(3.0, 9.0)
        while time.monotonic() < wait_until:
            if self.is_over:
                return
            time.sleep(0.1)
        victim = self.chance.choice(self._victims)
        with self.closing(self.open_producer(victim)) as producer:
            for _ in range(self.chance.randint(0, 3)):
                self.transaction(producer, None, victim)


class Copier(TransactionalClient):
    """Consumes as a member of a group, sends an output per input, commits both together."""

    def __init__(self, arguments: Namespace) -> None:
        super().__init__(arguments)
        self._partitions: int = arguments.copies
        self._sources = [f"{EVENTS_TOPIC}-{n}" for n in range(arguments.partitions)]
        self._instance: str | None = self.name if arguments.static else None
        self._membership: tuple[int, frozenset[Any]] = (-1, frozenset())
        self._committed: dict[Any, int] = {}

    def live(self) -> None:
        """Copy until the campaign ends."""
        consumer = self.cluster.consumer(
            group_id=GROUP,
            group_instance_id=self._instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
        )
        with (
            self.closing(self.open_producer(f"id-{self.name}")) as producer,
            self.closing(consumer),
        ):
            consumer.subscribe(EVENTS_TOPIC)
            self.writer.event("subscribe", self._sources)
            self._membership = (-1, frozenset())
            while not self.is_over:
                self._copy(producer, consumer)

    def _copy(self, producer: Any, consumer: Any) -> None:
        transactional_id = f"id-{self.name}"
        self.writer.invoke("txn", [["poll"]], txn_id=transactional_id)
        try:
            records = consumer.poll(COPIER_POLL_MS, COPIER_RECORDS_MAX)
        except OncelogError as error:
            self.writer.complete("fail", [["poll"]], error=str(error))
            raise LifeEnded(f"poll: {error}") from error
        group = consumer.group_metadata()
        positions = consumer.positions()
        rebalanced = self._note_membership(group.generation_id, consumer.assignment())
        read = {record.topic_partition for record in records}
        steps = [["poll", polled(records)]]
        offsets = {partition: positions[partition] for partition in read & positions.keys()}
        if not records:
            # Positions pass what is not delivered: aborted records and the ends of transactions.
            offsets = dict(positions.items() - self._committed.items())
        if not records and not offsets:
            self.writer.complete("ok", steps, rebalance=rebalanced)
            return
        if group.generation_id < 0 or not read <= positions.keys():
            self.writer.complete("fail", steps, rebalance=rebalanced, error="rebalanced")
            consumer.seek_to_committed()
            return
        sends = [self._output(record) for record in records]
        self.writer.more([*steps, *sends], rebalance=rebalanced)
        if self._send(producer, steps, sends, offsets, group):
            self._committed |= offsets
        else:
            consumer.seek_to_committed()

    def _send(
        self, producer: Any, steps: list[Any], sends: list[Any], offsets: Any, group: Any
    ) -> bool:
        futures: list[Any] = []

        def work() -> bool:
            for _, key, value, _, _ in sends:
                tp = partition_of(key)
                futures.append(producer.send(tp.topic, value.encode(), partition=tp.partition))
            if self.chance.random() < COPIER_ABORT_SHARE:
                return False
            producer.send_offsets_to_transaction(offsets, group)
            return True

        def commit() -> None:
            named = {key_of(partition): offset for partition, offset in offsets.items()}
            self.writer.commit({"group": GROUP, "offsets": named})
            self.notify(f"id-{self.name}", sorted({send[1] for send in sends}), GROUP)

        def results() -> list[Any]:
            known = [offset_of(future) for future in futures]
            known += [None] * (len(sends) - len(known))
            return [
                *steps,
                *([*send[:3], at, send[4]] for send, at in zip(sends, known, strict=True)),
            ]

        return self.attempt(producer, work, commit, results)

    def _output(self, record: Any) -> list[Any]:
        key = f"{COPIES_TOPIC}-{self.chance.randrange(self._partitions)}"
        source = [key_of(record.topic_partition), record.value.decode()]
        return ["send", key, self.new_value(), None, source]

    def _note_membership(self, generation: int, assignment: frozenset[Any]) -> list[str]:
        """The keys whose assignment may have changed since the operation before."""
        before, self._membership = self._membership, (generation, assignment)
        if before == self._membership:
            return []
        self._committed = {}
        return sorted(key_of(partition) for partition in before[1] | assignment)


def offset_of(future: Any) -> int | None:
    """Where a record is known to stand."""
    if future is None or not future.done() or future.exception() is not None:
        return None
    offset: int = future.result().offset
    return offset if offset >= 0 else None
