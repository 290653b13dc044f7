"""Clients of Kafka that write transactions: what librdkafka and the Java client do, in little.

*Version 2* (Java 4): the first batch enrols its partition, each end tells the next epoch, and
sequences begin anew with it. *Version 1* (librdkafka, Java 3, kafka-python): partitions are
enrolled first, one epoch is for all transactions, and sequences go on. After a batch that failed
the producer asks for another epoch with its pair (KIP-360): Java ends the transaction before,
librdkafka has that abort it.

They note what they do as all clients do, so the checkers judge them unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from msgspec import structs
from sim_history import Claim, Outcome, SentRecord, Write, key_of
from sim_kafka_session import GROUP, TRANSACTION, Session
from sim_stage import COPY_GROUP, COPY_SOURCE, COPY_TARGET, Life, NotedReader, Player

from oncelog.actors.gateway.transactions import requests
from oncelog.actors.protocol.transaction import producers as transaction_producers
from oncelog.actors.protocol.transaction.transaction_state import TransactionMetadata
from oncelog.api.records import ConsumerGroupMetadata, ConsumerRecord
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import OncelogError
from oncelog.storage.model import IsolationLevel, TopicPartition
from oncelog.storage.records.codec import encode_records

RECORDS_MAX = 8
TRIES_MAX = 4
"""How often a program commits or aborts again that was not answered in time."""

COPY_POLL_INTERVAL_MS = 4_000
LAST_PATIENCE_S = 10.0

AGAIN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""After one of these a batch is sent again."""

DEAD = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""After one of these from a coordinator the producer is of no more use."""


class AbortError(Exception):
    """The transaction can only be aborted."""


class DeadError(Exception):
    """The producer can do nothing more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A client as others know it."""

    software: tuple[str, str]
    version: int
    """Of its transactions."""
    init_version: int = 4
    """Of its InitProducerId."""
    ends_first: bool = True
    """Whether it ends a transaction before it asks for another epoch."""
    purges: bool = False
    """Whether an abort uses the sequences of batches again that wait to be repeated."""
    renews: bool = False
    """Whether its abort succeeds with another epoch, if it is told to take one."""


KINDS: Mapping[str, Kind] = {
    "java-4": Kind(software=("apache-kafka-java", "4.0.0"), version=2, init_version=5),
    "java-3": Kind(software=("apache-kafka-java", "3.9.1"), version=1),
    "librdkafka": Kind(software=("librdkafka", "1.9.2"), version=1, ends_first=False, purges=True),
    "librdkafka-2": Kind(
        software=("confluent-kafka-python", "2.16.1-rdkafka-2.16.0"),
        version=1,
        ends_first=False,
        purges=True,
        renews=True,
    ),
}


@dataclass(slots=True, eq=False)
class _Batch:
    """Records that stay together, under one sequence, until they are answered."""

    tp: TopicPartition
    records: list[SentRecord]
    sequence: int
    data: bytes


@dataclass(slots=True)
class _Transaction:
    """What a producer remembers of its transaction."""

    enrolled: set[TopicPartition] = field(default_factory=set)
    is_open: bool = False
    needs_epoch: bool = False
    """A batch of it may still come, or was refused."""


class KafkaProducer:
    """A transactional producer of Kafka."""

    def __init__(self, player: Player, transactional_id: str, kind: Kind) -> None:
        plan, chance = player.stage.plan, player.random
        self.kind = kind
        self.transactional_id = transactional_id
        self.producer_id = self.producer_epoch = -1
        self._player = player
        self._timeout_ms = plan.transaction_timeout_ms
        self.patience_s = 5 * plan.request_timeout_ms / 1_000
        self._sequences: dict[TopicPartition, int] = {}
        self._transaction = _Transaction()
        self._in_flight_max = chance.choice((1, 2, 5))
        self.session = Session(
            player.stage.gateways,
            player.client,
            chance,
            kind.software,
            plan.request_timeout_ms,
        )

    # --- the producer's id ----------------------------------------------------------------

    async def init(self) -> bool:
        """Take the id; whether that succeeded."""
        try:
            return await self._new_epoch(-1, -1)
        except DeadError:
            return False

    async def _new_epoch(self, producer_id: int, producer_epoch: int) -> bool:
        answer = await self._coordinate(
            lambda: InitProducerIdRequest[self.kind.init_version](
                transactional_id=self.transactional_id,
                transaction_timeout_ms=self._timeout_ms,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
            ),
            InitProducerIdResponse,
            lambda answer: answer.error_code,
        )
        if answer is None:
            return False
        if answer.error_code:
            raise DeadError(f"InitProducerId: {answer.error_code}")
        self._learn(answer)
        return True

    def _learn(self, answer: Any) -> None:
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    # --- records --------------------------------------------------------------------------

    async def send(self, records: Sequence[SentRecord]) -> None:
        """Send records and wait until they are acknowledged."""
        self._transaction.is_open = True
        await self._enrol({record.topic_partition for record in records})
        # Until all is acknowledged nobody knows what will come of it.
        self._transaction.needs_epoch = True
        await self._deliver(self._batches(records))
        self._transaction.needs_epoch = False

    async def _enrol(self, wanted: set[TopicPartition]) -> None:
        new = sorted(wanted - self._transaction.enrolled)
        self._transaction.enrolled |= wanted
        if self.kind.version == 2 or not new:
            return
        topic_of = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        answer = await self._coordinate(
            lambda: AddPartitionsToTxnRequest[3](
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.producer_epoch,
                v3_and_below_topics=[
                    topic_of(name=name, partitions=[tp.partition for tp in new if tp.topic == name])
                    for name in sorted({tp.topic for tp in new})
                ],
            ),
            AddPartitionsToTxnResponse,
            _first_error,
        )
        self._check("AddPartitionsToTxn", None if answer is None else _first_error(answer))

    def _batches(self, records: Sequence[SentRecord]) -> list[_Batch]:
        by_partition: dict[TopicPartition, list[SentRecord]] = {}
        for record in records:
            by_partition.setdefault(record.topic_partition, []).append(record)
        size = self._player.random.randint(1, self._player.stage.plan.kafka_batch_max)
        return [
            self._batch(tp, found[first : first + size])
            for tp, found in by_partition.items()
            for first in range(0, len(found), size)
        ]

    def _batch(self, tp: TopicPartition, records: list[SentRecord]) -> _Batch:
        sequence = self._sequences.get(tp, 0)
        self._sequences[tp] = sequence + len(records)
        now_ms = self._player.client.clock.now_ms()
        keys = [key_of(tp, record.value) for record in records]
        data = encode_records(
            [
                (None if key is None else key.encode(), record.value.encode(), now_ms, ())
                for key, record in zip(keys, records, strict=True)
            ],
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        return _Batch(tp, records, sequence, bytes(data))

    async def _deliver(self, batches: list[_Batch]) -> None:
        """Have all appended, again and again; several of a partition are on their way at once."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self.patience_s
        while batches:
            if loop.time() >= until_s:
                raise AbortError("a batch was not acknowledged in time")
            sent: list[_Batch] = []
            for batch in batches:
                if sum(one.tp == batch.tp for one in sent) < self._in_flight_max:
                    sent.append(batch)
            errors = await asyncio.gather(*map(self._produce, sent))
            refused: set[TopicPartition] = set()
            for batch, error in zip(sent, errors, strict=True):
                is_behind = batch.tp in refused
                if error == ErrorCode.NONE:
                    batches.remove(batch)
                    continue
                refused.add(batch.tp)
                is_again = error is None or error in AGAIN
                if not is_again and not (
                    is_behind and error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                ):
                    raise AbortError(f"a batch was refused: {error}")
            if refused:
                self._maybe_purge(batches, errors)
                await self.session.back_off()

    def _maybe_purge(self, batches: list[_Batch], errors: Sequence[int | None]) -> None:
        """Now and then the program aborts while lost batches wait to be sent again.

        librdkafka forgets them then, and goes on with their sequences, under the same epoch.
        """
        is_lost = all(error in (None, ErrorCode.NONE) for error in errors)
        share = self._player.stage.plan.kafka_purges
        if not self.kind.purges or not is_lost or self._player.random.random() >= share:
            return
        for batch in reversed(batches):
            self._sequences[batch.tp] = batch.sequence
        self._transaction.needs_epoch = False
        raise AbortError("the program aborts while batches are lost")

    async def _produce(self, batch: _Batch) -> int | None:
        """The error of a batch, 0 if it was appended; ``None`` if there is no answer."""
        session, topic_of = self.session, ProduceRequest.TopicProduceData
        address = await session.leader(batch.tp)
        if address is None:
            return None
        one = topic_of.PartitionProduceData(index=batch.tp.partition, records=batch.data)
        message = ProduceRequest[12 if self.kind.version == 2 else 9](
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=1_000,
            topic_data=[topic_of(name=batch.tp.topic, partition_data=[one])],
        )
        answer = await session.ask(address, message, ProduceResponse, may_be_held=True)
        if answer is None:
            session.forget(batch.tp)
            return None
        (found,) = answer.responses[0].partition_responses
        error = found.error_code
        if error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            for number, record in enumerate(batch.records):
                known = found.base_offset >= 0 and not error
                offset = found.base_offset + number if known else -1
                self._player.acknowledged(record, offset)
            return 0
        if error in AGAIN:
            session.forget(batch.tp)
        return int(error)

    # --- positions ------------------------------------------------------------------------

    async def send_positions(
        self, positions: Mapping[TopicPartition, int], group: ConsumerGroupMetadata
    ) -> None:
        """Commit positions of a group with the transaction."""
        self._transaction.is_open = True
        if self.kind.version == 1:
            answer = await self._coordinate(
                lambda: AddOffsetsToTxnRequest[3](
                    transactional_id=self.transactional_id,
                    producer_id=self.producer_id,
                    producer_epoch=self.producer_epoch,
                    group_id=group.group_id,
                ),
                AddOffsetsToTxnResponse,
                lambda answer: answer.error_code,
            )
            self._check("AddOffsetsToTxn", None if answer is None else answer.error_code)
        topic_of = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        one_of = topic_of.TxnOffsetCommitRequestPartition
        answer = await self.session.coordinate(
            GROUP,
            group.group_id,
            lambda: TxnOffsetCommitRequest[5 if self.kind.version == 2 else 3](
                transactional_id=self.transactional_id,
                group_id=group.group_id,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                generation_id=group.generation_id,
                member_id=group.member_id,
                group_instance_id=group.group_instance_id,
                topics=[
                    topic_of(
                        name=name,
                        partitions=[
                            one_of(
                                partition_index=tp.partition,
                                committed_offset=offset,
                                committed_leader_epoch=-1,
                                committed_metadata="",
                            )
                            for tp, offset in positions.items()
                            if tp.topic == name
                        ],
                    )
                    for name in sorted({tp.topic for tp in positions})
                ],
            ),
            TxnOffsetCommitResponse,
            _first_of_topics,
            until_s=asyncio.get_running_loop().time() + self.patience_s,
        )
        error = None if answer is None else _first_of_topics(answer)
        self._check("TxnOffsetCommit", error, needs_epoch=False)

    # --- ends -----------------------------------------------------------------------------

    async def commit(self) -> bool:
        """Commit; whether it was answered."""
        return await self._end(committed=True)

    async def abort(self) -> bool:
        """Abort, and take another epoch if need be; whether that was answered."""
        transaction = self._transaction
        is_renewed = self.kind.version == 1 and transaction.needs_epoch
        if (self.kind.ends_first or not is_renewed) and not await self._end(committed=False):
            return False
        is_renewed = is_renewed or self._transaction.needs_epoch
        if is_renewed and not await self._new_epoch(self.producer_id, self.producer_epoch):
            # It is tried again, with the same pair, and nothing is to be ended any more.
            self._transaction.needs_epoch = True
            return False
        self._transaction = _Transaction()
        return True

    async def _end(self, *, committed: bool) -> bool:
        if not self._transaction.is_open:
            self._transaction = _Transaction()
            return True
        version = 5 if self.kind.version == 2 else 3
        answer = await self._coordinate(
            lambda: EndTxnRequest[version](
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                committed=committed,
            ),
            EndTxnResponse,
            lambda answer: answer.error_code,
        )
        if answer is None:
            return False
        is_told = answer.error_code == ErrorCode.UNKNOWN_PRODUCER_ID and not committed
        if self.kind.renews and is_told:
            self._transaction = _Transaction(needs_epoch=True)
            return True
        self._check("EndTxn", answer.error_code)
        self._transaction = _Transaction()
        if self.kind.version == 2:
            self._learn(answer)
        return True

    # --- inside ---------------------------------------------------------------------------

    async def _coordinate(
        self, new_message: Callable[[], Any], response: Any, error_of: Callable[[Any], int]
    ) -> Any:
        return await self.session.coordinate(
            TRANSACTION,
            self.transactional_id,
            new_message,
            response,
            error_of,
            until_s=asyncio.get_running_loop().time() + self.patience_s,
        )

    def _check(self, what: str, error: int | None, *, needs_epoch: bool = True) -> None:
        if error == 0:
            return
        if error in DEAD:
            raise DeadError(f"{what}: {error}")
        self._transaction.needs_epoch = needs_epoch
        raise AbortError(f"{what}: {error}")


def _first_error(answer: Any) -> int:
    """The first error of AddPartitionsToTxn."""
    found = [
        one.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    ]
    return next((error for error in found if error), 0)


def _first_of_topics(answer: Any) -> int:
    """The first error of TxnOffsetCommit."""
    found = [one.error_code for topic in answer.topics for one in topic.partitions]
    return next((error for error in found if error), 0)


@contextmanager
def first_epochs(epoch: int) -> Iterator[None]:
    """New transactional ids begin with this epoch."""
    real = transaction_producers.created

    def created(transactional_id: str, **fields: Any) -> TransactionMetadata:
        return structs.replace(real(transactional_id, **fields), producer_epoch=epoch)

    with mock.patch.object(transaction_producers, "created", created):
        yield


@contextmanager
def sequences_asked_within(request_timeout_ms: int) -> Iterator[None]:
    """Clients that wait more briefly than Kafka's still wait for longer than gateways ask."""
    within_ms = min(requests.SEQUENCE_WITHIN_MS, request_timeout_ms // 2)
    with mock.patch.object(requests, "SEQUENCE_WITHIN_MS", within_ms):
        yield


# --- roles ------------------------------------------------------------------------------------


def kafka_writer(transactional_ids: Sequence[str], kinds: Sequence[str]) -> Life:
    """Commits and aborts transactions, with a new producer, maybe of another kind, when one fails.

    Of several ids it takes one after the other, whoever has them.
    """

    async def life(player: Player) -> None:
        while player.is_on:
            transactional_id = player.random.choice(transactional_ids)
            producer = KafkaProducer(player, transactional_id, KINDS[player.random.choice(kinds)])
            owner = player.new_owner()
            if await _claim(player, producer, owner):
                for _ in range(player.random.randint(3, 40)):
                    if not player.is_on or not await _transaction(player, producer, owner):
                        break
                    await player.pause()
            producer.session.close()
            await player.pause()

    return life


async def _claim(player: Player, producer: KafkaProducer, owner: str) -> bool:
    started_at = player.history.tick()
    if not await producer.init():
        return False
    player.history.claims.append(
        Claim(
            producer.transactional_id,
            owner,
            started_at,
            player.history.tick(),
            producer.producer_id,
            producer.producer_epoch,
            is_of_kafka=True,
        )
    )
    player.stage.counts["claims"] += 1
    return True


async def _transaction(player: Player, producer: KafkaProducer, owner: str) -> bool:
    """One transaction; whether the producer can go on."""
    chance, plan = player.random, player.stage.plan
    write = player.history.begin(owner, producer.transactional_id)
    targets = player.stage.targets()
    first_s = 0.0
    try:
        left, number = chance.randint(1, RECORDS_MAX), 0
        while left:
            count = chance.randint(1, left)
            left -= count
            records = []
            for _ in range(count):
                value = f"{owner}/{write.name.removeprefix('write ')}.{number}"
                records.append(player.history.send(write, chance.choice(targets), value))
                number += 1
            first_s = first_s or player.stage.world.now_s
            await producer.send(records)
            if chance.random() < 0.3:
                await player.pause()
            if chance.random() < plan.kafka_slow:
                # Its time may be over before its next partition is enrolled.
                await asyncio.sleep(chance.uniform(0.5, 2.5) * plan.transaction_timeout_ms / 1_000)
    except (AbortError, DeadError) as error:
        player.stage.world.note(f"{write.name}: {error}")
        open_ms = (player.stage.world.now_s - first_s) * 1_000
        if isinstance(error, DeadError) and open_ms < plan.transaction_timeout_ms / 2:
            _was_fenced(player, write, error)
        return await _abort(player, producer, write)
    if chance.random() < plan.abort_ratio:
        return await _abort(player, producer, write)
    return await _commit(player, producer, write)


def _was_fenced(player: Player, write: Write, error: DeadError) -> None:
    player.stage.counts["fenced clients of Kafka"] += 1
    if player.stage.plan.kafka_keeps_ids:
        player.history.fenced_producers.append(f"{write.owner} in {write.name} ({error})")


async def _commit(player: Player, producer: KafkaProducer, write: Write) -> bool:
    """Commit, again while nothing is known; whether the producer can go on."""
    for _ in range(TRIES_MAX):
        player.history.start_commit(write)
        try:
            is_answered = await producer.commit()
        except AbortError:
            return await _abort(player, producer, write)
        except DeadError:
            break
        if is_answered:
            player.ended(write, Outcome.OK)
            player.stage.counts["commits of clients of Kafka"] += 1
            return True
    player.ended(write, Outcome.UNKNOWN)
    return False


async def _abort(player: Player, producer: KafkaProducer, write: Write) -> bool:
    """Abort; after an attempt to commit only an answer makes that certain."""
    for _ in range(TRIES_MAX):
        try:
            is_answered = await producer.abort()
        except (AbortError, DeadError):
            break
        if is_answered:
            player.ended(write, Outcome.FAIL)
            return True
    player.ended(write, Outcome.UNKNOWN)
    return False


# --- after the faults -------------------------------------------------------------------------


LAST_TRANSACTIONS = 3


async def last_transactions(player: Player) -> None:
    """When all is healed, some transactions of one producer of each kind are committed in a row.

    Where epochs are used up, each may be aborted once.
    """
    targets = player.stage.targets()
    for name in player.stage.plan.kafka_kinds:
        producer = KafkaProducer(player, f"last-{name}", KINDS[name])
        producer.patience_s = LAST_PATIENCE_S
        owner = player.new_owner()
        is_served = await _claim(player, producer, owner)
        tries = LAST_TRANSACTIONS * (2 if player.stage.plan.kafka_first_epoch else 1)
        commits = 0
        for _ in range(tries if is_served else 0):
            write = player.history.begin(owner, producer.transactional_id)
            records = [
                player.history.send(write, tp, f"{owner}/{write.name.removeprefix('write ')}.{n}")
                for n, tp in enumerate(targets)
            ]
            try:
                await producer.send(records)
            except (AbortError, DeadError) as error:
                player.stage.world.note(f"{write.name}: {error}")
                await _abort(player, producer, write)
                continue
            await _commit(player, producer, write)
            commits += write.outcome is Outcome.OK
            if commits == LAST_TRANSACTIONS:
                break
        else:
            player.history.shut_out.append(f"{owner}: {commits} transactions of {name} committed")
        producer.session.close()


# --- copiers ----------------------------------------------------------------------------------


def kafka_copier(transactional_id: str, kinds: Sequence[str]) -> Life:
    """Makes one output of each input, its position part of the transaction; some abort.

    It reads with a consumer of ours: what is tried here is how it writes.
    """

    async def life(player: Player) -> None:
        plan = player.stage.plan
        while player.is_on:
            consumer = player.client.consumer(
                group_id=COPY_GROUP,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=3_000,
                heartbeat_interval_ms=500,
                max_poll_interval_ms=COPY_POLL_INTERVAL_MS,
                request_timeout_ms=plan.request_timeout_ms + 500,
                default_api_timeout_ms=8_000,
                retry_backoff_ms=20,
            )
            await consumer.subscribe(COPY_SOURCE)
            noted = NotedReader(player, consumer, IsolationLevel.READ_COMMITTED)
            for _ in range(player.random.randint(1, 3)):
                producer = KafkaProducer(
                    player, transactional_id, KINDS[player.random.choice(kinds)]
                )
                await _copy(player, noted, producer)
                producer.session.close()
            try:
                await consumer.close()
            except OncelogError as error:
                player.stage.world.note(f"close failed: {error!r}")

    return life


async def _copy(player: Player, noted: NotedReader, producer: KafkaProducer) -> None:
    owner = player.new_owner()
    if not await _claim(player, producer, owner):
        return
    for _ in range(player.random.randint(5, 50)):
        if not player.is_on:
            break
        records = await _poll(player, noted)
        if records and not await _copy_batch(player, noted, producer, owner, records):
            break
        await player.pause()
    await _rewind(noted)


async def _poll(player: Player, noted: NotedReader) -> list[ConsumerRecord]:
    try:
        return await noted.poll(200, player.random.randint(1, 10))
    except OncelogError as error:
        player.stage.world.note(f"poll failed: {error!r}")
        await asyncio.sleep(0.1)
        return []


async def _copy_batch(
    player: Player,
    noted: NotedReader,
    producer: KafkaProducer,
    owner: str,
    records: list[ConsumerRecord],
) -> bool:
    """Copy ``records``, and maybe what further polls bring; whether the producer can go on."""
    write = player.history.begin(owner, producer.transactional_id)
    count = 0
    try:
        for _ in range(player.random.randint(1, player.stage.plan.kafka_commits_max)):
            if count:
                await player.pause()
                records = await _poll(player, noted)
            if not records:
                break
            await producer.send(_copies(player, write, records, count))
            count += len(records)
            await player.pause()
            positions = {record.topic_partition: record.offset + 1 for record in records}
            write.offsets |= {(COPY_GROUP, tp): offset for tp, offset in positions.items()}
            await producer.send_positions(positions, noted.consumer.group_metadata())
        if player.stage.plan.kafka_ends_after_ms:
            await player.pause(player.stage.plan.kafka_ends_after_ms)
    except (AbortError, DeadError, OncelogError) as error:
        player.stage.world.note(f"{write.name}: {error}")
        can_go_on = await _abort(player, producer, write)
    else:
        if player.random.random() < 1 / 5:
            can_go_on = await _abort(player, producer, write)
        else:
            can_go_on = await _commit(player, producer, write)
    if write.outcome is not Outcome.OK:
        await _rewind(noted)
    return can_go_on


def _copies(
    player: Player, write: Write, records: list[ConsumerRecord], first: int
) -> list[SentRecord]:
    targets = [tp for tp in player.stage.partitions if tp.topic == COPY_TARGET]
    return [
        player.history.send(
            write,
            player.random.choice(targets),
            f"{write.owner}/{write.name.removeprefix('write ')}.{number}",
            (record.topic_partition, record.offset),
        )
        for number, record in enumerate(records, first)
    ]


async def _rewind(noted: NotedReader) -> None:
    """Go back to what is committed: a failed transaction has moved nothing."""
    if noted.consumer.assignment():
        await noted.consumer.seek_to_committed()
    noted.next_session()
