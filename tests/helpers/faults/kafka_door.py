"""Clients of Kafka in a campaign: confluent-kafka at the brokers' gateways, beside our own clients.

What they do and see is written down as that of our own is, and judged by the same checks. A member
of a group commits what it has read before it reads on. A commit that is acknowledged is of the
generation in which it was asked for, so no two members commit one record; by that it is a
transaction without sends.
"""

from __future__ import annotations

import logging
import random
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from deadlines import DEADLINE_S
from faults.client import EVENTS_TOPIC, GROUP, MEMBERS_GROUP, Client, LifeEnded, all_keys
from faults.history import HistoryWriter
from faults.transactors import ABORT_SHARE, PAUSE_MAX_S, STEPS_MAX, TIMEOUTS_MS

CALL_S: Final = 30.0
DELIVERY_MS: Final = 60_000
FETCH_SHARE: Final = 0.05
REWIND_SHARE: Final = 0.005
RECORDS_MAX: Final = 12
MEMBER_RECORDS_MAX: Final = 50
POLL_S: Final = 0.2
PROBE_S: Final = 10.0
STRATEGIES: Final = ("range", "roundrobin", "cooperative-sticky")

_log = logging.getLogger("faults.client")


def takes_transactions(bootstrap: str) -> bool:
    """Whether the cluster gives a transactional id to a producer of librdkafka."""
    settings = {"bootstrap.servers": bootstrap, "transactional.id": "of-nobody"}
    # What it tells of a refusal nobody needs to read.
    producer = Producer(settings, logger=logging.getLogger("faults.probe"))
    try:
        producer.init_transactions(PROBE_S)
    except KafkaException as error:
        if error.args[0].retriable():
            raise
        return False
    return True


def placed(key: str, offset: int = OFFSET_BEGINNING) -> TopicPartition:
    """The partition that a key of the history names, for a client of Kafka."""
    topic, _, number = key.rpartition("-")
    return TopicPartition(topic, int(number), offset)


def key_of(found: Any) -> str:
    """The key of the history of a partition of librdkafka's."""
    return f"{found.topic}-{found.partition}"


def polled(messages: list[Any]) -> dict[str, list[list[Any]]]:
    """Messages as a poll of the history."""
    found: dict[str, list[list[Any]]] = {}
    for one in messages:
        key = f"{one.topic()}-{one.partition()}"
        found.setdefault(key, []).append([one.offset(), one.value().decode()])
    return found


def offset_in(found: TopicPartition) -> int | None:
    """A committed offset as the history has it."""
    if found.error is not None:
        raise KafkaException(found.error)
    return int(found.offset) if found.offset >= 0 else None


class KafkaClient(Client):
    """A client that calls the gateways at ``--bootstrap``."""

    def __init__(self, arguments: Namespace) -> None:
        super().__init__(arguments)
        self.bootstrap: str = arguments.bootstrap
        self.keys = [f"{EVENTS_TOPIC}-{n}" for n in range(arguments.partitions)]

    def new_producer(self, **more: Any) -> Producer:
        """An idempotent producer with several batches in flight."""
        return Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "batch.size": 1_024,
                "linger.ms": 0,
                "message.timeout.ms": DELIVERY_MS,
                **more,
            }
        )

    def new_consumer(self, group: str, **more: Any) -> Consumer:
        """A consumer that commits only what it is told to."""
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **more,
            }
        )

    def taken(self, message: Any) -> bool:
        """Whether that is a record; a failure that does not pass ends this life."""
        if message is None:
            return False
        error = message.error()
        if error is None:
            return True
        if error.fatal() or not (error.retriable() or _passes(error)):
            raise LifeEnded(f"poll: {error}")
        return False


def _passes(error: KafkaError) -> bool:
    """Whether librdkafka goes on by itself after it has told of that."""
    return error.code() in (
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    )


class Deliveries:
    """Where the records of one operation were put: the number of a step → offset or error."""

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}
        self.errors: list[KafkaError] = []
        self.count = 0

    def of(self, number: int) -> Callable[[Any, Any], None]:
        """``on_delivery`` of the record of one step."""

        def tell(error: KafkaError | None, message: Any) -> None:
            self.count += 1
            if error is not None:
                self.errors.append(error)
            elif (offset := message.offset()) is not None:
                # It is not known of what was sent again, and stood there already.
                self.offsets[number] = offset

        return tell

    def results(self, steps: list[list[Any]]) -> list[Any]:
        """The steps with the offsets that are known."""
        return [[*step, self.offsets.get(number)] for number, step in enumerate(steps)]


class KafkaSender(KafkaClient):
    """Sends without transactions: idempotence alone must hold."""

    def live(self) -> None:
        """Send until the campaign ends."""
        producer = self.new_producer()
        try:
            while not self.is_over:
                self._send(producer)
                producer.poll(self.chance.uniform(0.0, 0.1))
        finally:
            producer.purge()
            producer.flush(CALL_S)

    def _send(self, producer: Producer) -> None:
        steps = [
            ["send", self.chance.choice(self.keys), self.new_value()]
            for _ in range(self.chance.randint(1, RECORDS_MAX))
        ]
        told = Deliveries()
        self.writer.invoke("send", steps, txn=False)
        self.notify("", sorted({step[1] for step in steps}))
        for number, (_, key, value) in enumerate(steps):
            at = placed(key)
            producer.produce(
                at.topic, value.encode(), partition=at.partition, on_delivery=told.of(number)
            )
        while told.count < len(steps):
            producer.poll(POLL_S)
        if not told.errors:
            self.writer.complete("ok", told.results(steps))
            return
        self.writer.complete("info", told.results(steps), error=str(told.errors[0]))
        raise LifeEnded(f"send: {told.errors[0]}")


class KafkaReader(KafkaClient):
    """Reads every key in order, looks groups' offsets up, and begins again now and then."""

    def __init__(self, arguments: Namespace) -> None:
        super().__init__(arguments)
        self._isolation: str = arguments.isolation
        self._all_keys = all_keys(arguments)

    def live(self) -> None:
        """Read until the campaign ends."""
        more = {"isolation.level": self._isolation}
        consumers = {group: self.new_consumer(group, **more) for group in (GROUP, MEMBERS_GROUP)}
        consumer = consumers[GROUP]
        try:
            self._begin(consumer)
            while not self.is_over:
                chance = self.chance.random()
                if chance < REWIND_SHARE:
                    self._begin(consumer)
                elif chance < FETCH_SHARE and self._isolation == "read_committed":
                    self._fetch_offsets(*self.chance.choice(list(consumers.items())))
                self._poll(consumer)
        finally:
            for one in consumers.values():
                one.close()

    def _begin(self, consumer: Consumer) -> None:
        consumer.assign([placed(key) for key in self._all_keys])
        self.writer.event("assign", self._all_keys, seek_to_beginning=True)

    def _poll(self, consumer: Consumer) -> None:
        self.writer.invoke("poll", [["poll"]], txn=False)
        messages = [one for one in consumer.consume(500, POLL_S) if self.taken(one)]
        self.writer.complete("ok", [["poll", polled(messages)]])
        time.sleep(self.chance.uniform(0.0, 0.1))

    def _fetch_offsets(self, group: str, consumer: Consumer) -> None:
        key = self.chance.choice(self.keys)
        self.writer.invoke("committed", group=group)
        try:
            (found,) = consumer.committed([placed(key)], timeout=CALL_S)
            self.writer.complete("ok", {key: offset_in(found)}, group=group)
        except KafkaException as error:
            self.writer.complete("info", error=str(error))


class KafkaMember(KafkaClient):
    """Reads as a member of a group, and commits what it has read before it reads on."""

    def __init__(self, arguments: Namespace) -> None:
        super().__init__(arguments)
        # All members of a group need one.
        self._strategy = random.Random(arguments.seed).choice(STRATEGIES)
        self._static = {"group.instance.id": self.name} if arguments.static else {}
        self._changed: set[str] = set()

    def live(self) -> None:
        """Read until the campaign ends."""
        consumer = self.new_consumer(
            MEMBERS_GROUP,
            **self._static,
            **{
                "partition.assignment.strategy": self._strategy,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
            },
        )
        self._changed = set()
        try:
            consumer.subscribe(
                [EVENTS_TOPIC],
                on_assign=self._note_change,
                on_revoke=self._note_change,
                on_lost=self._note_change,
            )
            self.writer.event("subscribe", self.keys)
            while not self.is_over:
                self._read(consumer)
        finally:
            with suppress(KafkaException):
                consumer.close()

    def _note_change(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._changed.update(key_of(one) for one in partitions)

    def _read(self, consumer: Consumer) -> None:
        self._changed = set()
        self.writer.invoke("txn", [["poll"]])
        messages: list[Any] = []
        while len(messages) < MEMBER_RECORDS_MAX:
            message = consumer.poll(0.0 if messages else POLL_S)
            new = [message] if self.taken(message) else []
            if messages and self._changed:
                self._give_up(consumer, messages, new)
                return
            messages += new
            if message is None:
                break
        steps, changed = [["poll", polled(messages)]], sorted(self._changed)
        if not messages:
            self.writer.complete("ok", steps, rebalance=changed)
            return
        self.writer.more(steps, rebalance=changed)
        self._commit(consumer, steps)
        time.sleep(self.chance.uniform(0.0, PAUSE_MAX_S))

    def _give_up(self, consumer: Consumer, before: list[Any], after: list[Any]) -> None:
        """What was read ``before`` a rebalance may be another's by now: nothing is committed."""
        steps = [["poll", polled(before + after)]]
        self.writer.complete("fail", steps, rebalance=sorted(self._changed), error="rebalanced")
        kept = {key: at for key, at in polled(before).items() if key not in self._changed}
        try:
            for key, records in {**polled(after), **kept}.items():
                consumer.seek(placed(key, records[0][0]))
        except KafkaException as error:
            raise LifeEnded(f"seek: {error}") from error

    def _commit(self, consumer: Consumer, steps: list[Any]) -> None:
        offsets = {key: records[-1][0] + 1 for key, records in steps[0][1].items()}
        self.writer.commit({"group": MEMBERS_GROUP, "offsets": offsets})
        self.notify("", sorted(offsets), MEMBERS_GROUP)
        try:
            wanted = [placed(key, offset) for key, offset in offsets.items()]
            for one in consumer.commit(offsets=wanted, asynchronous=False):
                offset_in(one)
        except KafkaException as error:
            # One that was sent again may have taken effect the first time.
            self.writer.complete("info", steps, error=str(error))
            raise LifeEnded(f"commit: {error}") from error
        self.writer.complete("ok", steps)


class KafkaTransactor(KafkaClient):
    """Random transactions of sends to several partitions."""

    def live(self) -> None:
        """Transactions until the campaign ends."""
        transactional_id = f"id-{self.name}"
        producer = self.new_producer(
            **{
                "transactional.id": transactional_id,
                "transaction.timeout.ms": self.chance.choice(TIMEOUTS_MS),
                # librdkafka allows no longer one than that of the transaction.
                "message.timeout.ms": TIMEOUTS_MS[0],
            }
        )
        self.writer.invoke("init", txn_id=transactional_id)
        try:
            self._repeated(lambda: producer.init_transactions(CALL_S))
        except KafkaException as error:
            self.writer.complete("info", txn_id=transactional_id, error=str(error))
            raise LifeEnded(f"init_transactions: {error}") from error
        # What id and epoch it got librdkafka does not tell.
        self.writer.complete("ok", txn_id=transactional_id)
        try:
            while not self.is_over:
                self._transaction(producer, transactional_id)
                producer.poll(self.chance.uniform(0.0, PAUSE_MAX_S))
        finally:
            producer.purge()

    def _transaction(self, producer: Producer, transactional_id: str) -> None:
        steps = [
            ["send", self.chance.choice(self.keys), self.new_value()]
            for _ in range(self.chance.randint(1, STEPS_MAX))
        ]
        told, is_asked = Deliveries(), False
        self.writer.invoke("txn", steps, txn_id=transactional_id)
        try:
            producer.begin_transaction()
            for number, (_, key, value) in enumerate(steps):
                at = placed(key)
                producer.produce(
                    at.topic, value.encode(), partition=at.partition, on_delivery=told.of(number)
                )
            if self.chance.random() < ABORT_SHARE:
                self._abort(producer)
                self.writer.complete("fail", told.results(steps), error="chosen abort")
                return
            is_asked = True
            self.writer.commit()
            self.notify(transactional_id, sorted({step[1] for step in steps}))
            self._repeated(lambda: producer.commit_transaction(CALL_S))
            self.writer.complete("ok", told.results(steps))
        except KafkaException as error:
            self._give_up(producer, error.args[0], is_asked, told.results(steps))

    def _give_up(
        self, producer: Producer, error: KafkaError, is_asked: bool, results: list[Any]
    ) -> None:
        """Abort what failed, if that is possible, and write down what became of it."""
        if error.txn_requires_abort():
            try:
                self._abort(producer)
            except KafkaException as second:
                error = second.args[0]
            else:
                self.writer.complete("fail", results, error=str(error))
                return
        self.writer.complete("info" if is_asked else "fail", results, error=str(error))
        raise LifeEnded(str(error))

    def _abort(self, producer: Producer) -> None:
        self._repeated(lambda: producer.abort_transaction(CALL_S))

    def _repeated(self, call: Callable[[], None]) -> None:
        """Make a call again while it times out: only that tells what became of it."""
        while True:
            try:
                return call()
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                _log.warning("repeated: %s", error)


def read_all(writer: HistoryWriter, bootstrap: str, keys: list[str]) -> None:
    """The complete read of every key to its end, by a client of Kafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "of-nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    try:
        consumer.assign([placed(key) for key in keys])
        writer.event("assign", keys, seek_to_beginning=True)
        unread = set(keys)
        deadline_s = time.monotonic() + DEADLINE_S
        while unread and time.monotonic() < deadline_s:
            writer.invoke("poll", [["poll"]], txn=False)
            messages = consumer.consume(5_000, POLL_S)
            records = [one for one in messages if one.error() is None]
            writer.complete("ok", [["poll", polled(records)]])
            for one in messages:
                if one.error() is not None and one.error().code() == KafkaError._PARTITION_EOF:
                    unread.discard(f"{one.topic()}-{one.partition()}")
        if not unread:
            writer.event("drained", keys)
    finally:
        consumer.close()
