"""What simulated clients do: write, hijack, read, copy. Distributed writes are in ``sim_jobs``."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any

from inside import core_of, transaction_of
from sim_history import CommittedOffset, Outcome, Write
from sim_stage import (
    CALLS_AGAIN_MAX,
    COPY_GROUP,
    COPY_SOURCE,
    COPY_TARGET,
    Life,
    NotedReader,
    Player,
)

from oncelog.actors.protocol.messages.group import OffsetAndMetadata
from oncelog.api.producing.producer import AsyncProducer
from oncelog.api.records import ConsumerGroupMetadata, ConsumerRecord
from oncelog.api.transacting.producer_transaction import TransactionStatus
from oncelog.storage.exceptions import (
    FencedInstanceIdError,
    IllegalStateError,
    InvalidProducerEpochError,
    OncelogError,
    ProducerFencedError,
)
from oncelog.storage.model import IsolationLevel, TopicPartition

RECORDS_MAX = 8
CARELESS_RATIO = 0.03
COPY_POLL_INTERVAL_MS = 4_000

FENCED = (ProducerFencedError, InvalidProducerEpochError)
"""What others may do to a producer at any time."""


# --- transactions -----------------------------------------------------------------------------


def writer(transactional_id: str) -> Life:
    """Commits and aborts transactions under one id, with a new producer whenever one fails."""

    async def life(player: Player) -> None:
        while player.is_on:
            await _produce(player, transactional_id, transactions=player.random.randint(3, 40))

    return life


def hijacker(transactional_ids: list[str]) -> Life:
    """Takes over ids that others use, writes a little and goes."""

    async def life(player: Player) -> None:
        while player.is_on:
            await asyncio.sleep(player.random.expovariate(0.25))
            await _produce(
                player,
                player.random.choice(transactional_ids),
                transactions=player.random.randint(0, 2),
            )

    return life


def _transactional(player: Player, transactional_id: str) -> AsyncProducer:
    return player.client.producer(
        transactional_id=transactional_id,
        transaction_timeout_ms=player.stage.plan.transaction_timeout_ms,
        **player.producer_settings(),
    )


async def _produce(player: Player, transactional_id: str, *, transactions: int) -> None:
    """One producer object, from its claim to its end; sometimes it is simply left alone."""
    producer = _transactional(player, transactional_id)
    owner = player.new_owner()
    if await player.claim(producer, owner, transactional_id):
        for _ in range(transactions):
            if not player.is_on or not await _transaction(
                player, producer, owner, transactional_id
            ):
                break
            await player.pause()
    if player.random.random() < 0.7:
        await producer.close(timeout_ms=2_000)


async def _transaction(
    player: Player, producer: AsyncProducer, owner: str, transactional_id: str
) -> bool:
    """One transaction; whether the producer can go on."""
    chance = player.random
    token = f"{owner} {player.history.now}".encode() if chance.random() < 0.5 else None
    write = player.history.begin(owner, transactional_id, token=token)
    try:
        await producer.begin_transaction()
        for number in range(chance.randint(1, RECORDS_MAX)):
            topic_partition = chance.choice(player.stage.targets())
            value = f"{owner}/{write.name.removeprefix('write ')}.{number}"
            await player.send(producer, player.history.send(write, topic_partition, value))
            if chance.random() < 0.3:
                await player.pause()
        await _careless_send(player, producer, write)
        await _careless_shutdown(player, producer, write)
        if chance.random() < 0.1:
            await player.pause(player.stage.plan.transaction_timeout_ms)
    except OncelogError as error:
        return await _abort(player, producer, write) if not error.fatal else _gave_up(player, write)
    if chance.random() < player.stage.plan.abort_ratio:
        return await _abort(player, producer, write)
    return await commit(player, producer, write)


async def _careless_send(player: Player, producer: AsyncProducer, write: Write) -> None:
    """Now and then: send what cannot be sent, and go on as if nothing had been raised."""
    # Of its own, so that the seeds kept for regressions draw the rest as they did.
    if Random(f"careless {write.owner} {write.name}").random() >= CARELESS_RATIO:
        return
    topic_partition = player.stage.targets()[0]
    record = player.history.send(write, topic_partition, f"{write.name} refused")
    player.stage.counts["refused sends"] += 1
    with contextlib.suppress(TypeError):
        await producer.send(topic_partition.topic, record.value)  # type: ignore[arg-type]


async def _careless_shutdown(player: Player, producer: AsyncProducer, write: Write) -> None:
    """Now and then: cancel all that runs, as frameworks do at their end, and go on after all."""
    if not player.happens("shutdowns", f"{write.owner} {write.name}"):
        return
    sender = core_of(producer).sender
    tasks = sender._tasks
    is_at_work = any(task not in tasks._spare and not task.done() for task in tasks._tasks)
    await player.cancel_all()
    if is_at_work and sender.buffer.buffered_bytes:
        raise AssertionError("a producer waits for what was cancelled")


async def commit(player: Player, producer: AsyncProducer, write: Write) -> bool:
    """Commit, again while nothing is known; whether the producer can go on."""
    for _ in range(CALLS_AGAIN_MAX):
        player.history.start_commit(write)
        try:
            is_visible = await producer.commit_transaction(write.token)
        except OncelogError as error:
            if error.retriable:
                continue
            if error.abortable:
                return await _abort(player, producer, write)
            break
        player.ended(write, Outcome.OK, is_visible=is_visible)
        if is_visible and write.records and player.random.random() < 0.3:
            chosen = player.random.choice(write.records)
            await player.ask_end(chosen.topic_partition, IsolationLevel.READ_COMMITTED)
        return True
    return _gave_up(player, write)


async def _abort(player: Player, producer: AsyncProducer, write: Write) -> bool:
    """Abort; after an attempt to commit only an answer makes that certain."""
    for _ in range(CALLS_AGAIN_MAX):
        try:
            await producer.abort_transaction()
        except IllegalStateError:
            # The commit went through its states and failed in its call: it can only be repeated.
            break
        except OncelogError as error:
            if error.retriable:
                continue
            break
        player.ended(write, Outcome.FAIL)
        return True
    return _gave_up(player, write)


def _gave_up(player: Player, write: Write) -> bool:
    player.ended(write, Outcome.UNKNOWN)
    return False


# --- plain records ----------------------------------------------------------------------------


async def plain_writer(player: Player) -> None:
    """Sends records without transactions, many on their way at once."""
    while player.is_on:
        producer = player.client.producer(**player.producer_settings())
        owner = player.new_owner()
        for number in range(player.random.randint(20, 200)):
            if not player.is_on:
                break
            topic_partition = player.random.choice(player.stage.targets())
            record = player.history.send_plain(owner, topic_partition, f"{owner}/{number}")
            is_in_time = not player.happens("wrong_times", record.value)
            try:
                future = await player.send(producer, record, is_in_time=is_in_time)
            except OncelogError:
                player.history.end(record.write, Outcome.UNKNOWN)
                break
            if player.random.random() < 0.1:
                await asyncio.wait({future})
            await player.pause(20)
        await producer.close(timeout_ms=2_000)


# --- readers ----------------------------------------------------------------------------------


def reader(isolation: IsolationLevel) -> Life:
    """Reads everything, over and over; asks for ends now and then."""

    async def life(player: Player) -> None:
        while player.is_on:
            consumer = player.client.consumer(
                isolation_level=isolation,
                auto_offset_reset="earliest",
                fetch_max_wait_ms=player.random.choice((50, 500)),
                max_partition_fetch_bytes=player.random.choice((300, 2_000, 1_048_576)),
                request_timeout_ms=player.stage.plan.request_timeout_ms + 500,
                retry_backoff_ms=20,
                **player.near_settings(f"{player.client.name} at {player.history.now}"),
            )
            await consumer.assign(player.stage.partitions)
            if player.random.random() < 0.4:
                await consumer.seek_to_end()
            else:
                await consumer.seek_to_beginning()
            noted = NotedReader(player, consumer, isolation)
            for _ in range(player.random.randint(20, 200)):
                if not player.is_on or await _is_shut_down(player, noted):
                    break
                await _read_on(player, noted, isolation)
            await consumer.close()

    return life


async def _is_shut_down(player: Player, noted: NotedReader) -> bool:
    """Now and then all that runs is cancelled; whether the reader is of no more use."""
    if not player.happens("shutdowns", f"{noted.name} at {asyncio.get_running_loop().time()}"):
        return False
    await player.cancel_all()
    with contextlib.suppress(OncelogError):
        await noted.poll(0, 1)
        raise AssertionError("a consumer reads on without what was cancelled")
    return True


async def _read_on(player: Player, noted: NotedReader, isolation: IsolationLevel) -> None:
    try:
        await noted.poll(player.random.choice((0, 50, 500)), player.random.choice((1, 10, 500)))
    except OncelogError as error:
        player.stage.world.note(f"poll failed: {error!r}")
        await asyncio.sleep(0.1)
    if player.random.random() < 0.01:
        await noted.consumer.seek_to_beginning()
        noted.next_session()
    if player.random.random() < 0.05:
        await player.ask_end(player.random.choice(player.stage.partitions), isolation)
    await player.pause()


# --- copiers ----------------------------------------------------------------------------------


def copier(transactional_id: str) -> Life:
    """Makes one output of each input, its position part of the transaction; a third aborts."""

    async def life(player: Player) -> None:
        # Of its own, so that the seeds kept for regressions draw the rest as they did.
        chance = Random(f"static {transactional_id} {player.stage.world.seed}")
        is_static = chance.random() < player.stage.plan.static_ratio
        while player.is_on:
            consumer = player.client.consumer(
                group_id=COPY_GROUP,
                group_instance_id=transactional_id if is_static else None,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=3_000,
                heartbeat_interval_ms=500,
                max_poll_interval_ms=COPY_POLL_INTERVAL_MS,
                request_timeout_ms=player.stage.plan.request_timeout_ms + 500,
                default_api_timeout_ms=8_000,
                retry_backoff_ms=20,
                **player.near_settings(f"{player.client.name} at {player.history.now}"),
            )
            await consumer.subscribe(COPY_SOURCE)
            noted = NotedReader(player, consumer, IsolationLevel.READ_COMMITTED)
            for _ in range(player.random.randint(1, 3)):
                await _copy(player, noted, transactional_id)
            try:
                await consumer.close()
            except OncelogError as error:
                player.stage.world.note(f"close failed: {error!r}")

    return life


async def _copy(player: Player, noted: NotedReader, transactional_id: str) -> None:
    """One producer object of a copier, from its claim to its end."""
    producer = _transactional(player, transactional_id)
    owner = player.new_owner()
    if not await player.claim(producer, owner, transactional_id):
        return
    for _ in range(player.random.randint(5, 50)):
        if not player.is_on:
            break
        try:
            records = await noted.poll(200, player.random.randint(1, 10))
        except OncelogError as error:
            player.stage.world.note(f"poll failed: {error!r}")
            if isinstance(error, FencedInstanceIdError):
                player.history.fenced_members.append(f"{owner} ({transactional_id})")
                break
            await asyncio.sleep(0.1)
            continue
        if records and not await _copy_batch(player, noted, producer, owner, records):
            break
        if player.random.random() < 0.1:
            await _ask_position(player, noted, player.random.choice(_sources(player)))
        await player.pause()
    if player.random.random() < 0.7:
        await producer.close(timeout_ms=2_000)
    await _rewind(noted)


async def _copy_batch(
    player: Player,
    noted: NotedReader,
    producer: AsyncProducer,
    owner: str,
    records: list[ConsumerRecord],
) -> bool:
    """Copy ``records`` in one transaction; whether the producer can go on.

    Some go on with what another poll brings, between which the group may have rebalanced.
    """
    write = player.history.begin(owner, f"{producer.settings.transactional_id}")
    spanning = Random(f"spans polls {owner} {write.name}")
    try:
        await producer.begin_transaction()
        await _send_copies(player, producer, write, records, player.random)
        if spanning.random() < player.stage.plan.spanning_ratio:
            player.stage.counts["transactions that span polls"] += 1
            for _ in range(spanning.randint(1, 6)):
                await player.pause()
                more = await noted.poll(500, 5)
                await _send_copies(player, producer, write, more, spanning, first=len(records))
                records = [*records, *more]
        positions = {record.topic_partition: record.offset + 1 for record in records}
        write.offsets = {(COPY_GROUP, tp): offset for tp, offset in positions.items()}
        await player.pause()
        if player.stage.plan.slow_copies and player.random.random() < player.stage.plan.slow_copies:
            # Until others have its input, and maybe their copy of it.
            await asyncio.sleep(player.random.uniform(1.0, 2.0) * COPY_POLL_INTERVAL_MS / 1_000)
        group = noted.consumer.group_metadata()
        careless = Random(f"careless positions {owner} {write.name}")
        if careless.random() < CARELESS_RATIO:
            player.stage.counts["refused positions"] += 1
            await _careless_positions(producer, positions, group, careless)
        else:
            await producer.send_offsets_to_transaction(positions, group)
    except OncelogError as error:
        can_go_on = await _abort(player, producer, write) if not error.fatal else False
        if not can_go_on and write.ended_at is None:
            _gave_up(player, write)
    else:
        if player.random.random() < 1 / 3:
            can_go_on = await _abort(player, producer, write)
        else:
            can_go_on = await commit(player, producer, write)
    if write.outcome is not Outcome.OK and can_go_on:
        await _rewind(noted)
    return can_go_on


WRONG_POSITIONS: list[Callable[[dict[TopicPartition, int], ConsumerGroupMetadata], Any]] = [
    lambda positions, group: ({tp: str(offset) for tp, offset in positions.items()}, group),
    lambda positions, group: (dict.fromkeys(positions, OffsetAndMetadata(offset=-1)), group),
    lambda positions, group: (
        dict.fromkeys(positions, OffsetAndMetadata(offset=0, leader_epoch=2**31)),
        group,
    ),
    lambda positions, group: (
        dict.fromkeys(positions, OffsetAndMetadata(offset=0, metadata="\ud800")),
        group,
    ),
    lambda positions, group: ({TopicPartition(tp.topic, -1): 0 for tp in positions}, group),
    lambda positions, group: ({TopicPartition("a/b", tp.partition): 0 for tp in positions}, group),
    lambda positions, group: (positions, dataclasses.replace(group, group_id="")),
    lambda positions, group: (positions, dataclasses.replace(group, group_id="g" * 2_000)),
]


async def _careless_positions(
    producer: AsyncProducer,
    positions: dict[TopicPartition, int],
    group: ConsumerGroupMetadata,
    chance: Random,
) -> None:
    """Send what are no positions, and go on as if nothing had been raised."""
    wrong, who = chance.choice(WRONG_POSITIONS)(positions, group)
    state = transaction_of(producer)
    assert state is not None
    was_over = state.status is TransactionStatus.FATAL_ERROR
    try:
        await producer.send_offsets_to_transaction(wrong, who)
    except (TypeError, OncelogError) as error:
        is_over = state.status is TransactionStatus.FATAL_ERROR
        if is_over and not was_over and not isinstance(state.error, FENCED):
            raise AssertionError(f"a wrong argument ended the producer: {error!r}") from error


async def _send_copies(
    player: Player,
    producer: AsyncProducer,
    write: Write,
    records: list[ConsumerRecord],
    random: Random,
    *,
    first: int = 0,
) -> None:
    for number, record in enumerate(records, first):
        target = random.choice(_targets(player))
        source = (record.topic_partition, record.offset)
        value = f"{write.owner}/{write.name.removeprefix('write ')}.{number}"
        await player.send(producer, player.history.send(write, target, value, source))


async def _rewind(noted: NotedReader) -> None:
    """Go back to what is committed: a failed transaction has moved nothing."""
    if noted.consumer.assignment():
        await noted.consumer.seek_to_committed()
    noted.next_session()


async def _ask_position(
    player: Player, noted: NotedReader, topic_partition: TopicPartition
) -> None:
    started_at = player.history.tick()
    try:
        offset = await noted.consumer.committed(topic_partition)
    except OncelogError:
        return
    player.history.committed_offsets.append(
        CommittedOffset(COPY_GROUP, topic_partition, offset, started_at, player.history.tick())
    )
    player.stage.counts["positions told"] += 1


def _sources(player: Player) -> list[TopicPartition]:
    return [tp for tp in player.stage.partitions if tp.topic == COPY_SOURCE]


def _targets(player: Player) -> list[TopicPartition]:
    return [tp for tp in player.stage.partitions if tp.topic == COPY_TARGET]
