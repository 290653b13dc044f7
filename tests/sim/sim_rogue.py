"""A client that impersonates others: with their producer ids and epochs, and an invalid ticket.

It knows every producer id and epoch that a coordinator or leader knows, and which partitions are
enrolled. As far as the history knows nobody sent what it sends, so it must never be read; what it
opens would never be closed, and where it takes a sequence or an epoch the owner is shut out. Its
tickets: none, a random one, or a real one of another partition or producer.
It also sends batches whose records nobody can decode, which must be refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sim_nodes import FOUNDER_NODE
from sim_stage import Player

from oncelog.actors.interfaces import actor_of, address_of
from oncelog.actors.protocol.messages.partition import ProduceRequest
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    TransactionDescription,
)
from oncelog.actors.protocol.partition.producers import ProducerEntry
from oncelog.actors.protocol.tickets import TICKET_BYTES
from oncelog.actors.protocol.transaction.transaction_state import TransactionState
from oncelog.storage.exceptions import CorruptDataError
from oncelog.storage.model import (
    PRODUCER_EPOCH_MAX,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    sequence_after,
)
from oncelog.storage.records.batch import parse_header, seal
from oncelog.storage.records.codec import decode_records, encode_records
from oncelog.storage.records.compression import Codec
from oncelog.storage.records.layout import HEADER_BYTES

PAUSE_MS = 300.0
POISON_RATIO = 0.2


class Forgery(NamedTuple):
    """One record to be written as another. ``transactional_id`` ``None``: outside a transaction."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    base_sequence: int = 0
    transactional_id: str | None = None


async def rogue(player: Player) -> None:
    """Forges records until the stage is over."""
    attacks = (_outside_its_partitions, _into_an_open_one, _at_rest, _as_a_plain_producer)
    while player.is_on:
        await player.pause(PAUSE_MS)
        if player.random.random() < POISON_RATIO:
            await _poison(player)
            continue
        forgery = player.random.choice(attacks)(player)
        if forgery is not None:
            await _forge(player, forgery)


# --- whom it writes as ------------------------------------------------------------------------


def _outside_its_partitions(player: Player) -> Forgery | None:
    """A batch of an open transaction, to a partition that is not enrolled."""
    found = _chosen(player, _transactions(player, is_open=True))
    if found is None:
        return None
    others = [tp for tp in player.stage.partitions if tp not in found.partitions]
    if not others:
        return None
    owner = (found.producer_id, found.producer_epoch)
    return Forgery(player.random.choice(others), *owner, 0, found.transactional_id)


def _into_an_open_one(player: Player) -> Forgery | None:
    """The next batch of a transaction that is open at a leader, or another one in its place."""
    found = _chosen(player, _transactions(player, is_open=True))
    if found is None:
        return None
    for topic_partition, entry in _entries(player):
        if entry.producer_id == found.producer_id and entry.has_open_transaction:
            step = player.random.choice((1, 1, 0))
            sequence = max(0, entry.last_sequence + step)
            owner = (entry.producer_id, entry.producer_epoch)
            return Forgery(topic_partition, *owner, sequence, found.transactional_id)
    return None


def _at_rest(player: Player) -> Forgery | None:
    """A plain batch with the id of a transaction's owner, which would take its first sequence."""
    found = _chosen(player, _transactions(player, is_open=False))
    if found is None:
        return None
    epoch = player.random.choice((found.producer_epoch, found.producer_epoch, PRODUCER_EPOCH_MAX))
    return Forgery(player.random.choice(player.stage.partitions), found.producer_id, epoch)


def _as_a_plain_producer(player: Player) -> Forgery | None:
    """The next batch of a producer without transactions, or the first of its last epoch."""
    plain = [(tp, entry) for tp, entry in _entries(player) if not entry.is_transactional]
    if not plain:
        return None
    topic_partition, entry = player.random.choice(plain)
    if player.random.random() < 0.3:
        return Forgery(topic_partition, entry.producer_id, PRODUCER_EPOCH_MAX)
    sequence = sequence_after(entry.last_sequence, 1)
    return Forgery(topic_partition, entry.producer_id, entry.producer_epoch, sequence)


def _chosen(
    player: Player, found: Sequence[TransactionDescription]
) -> TransactionDescription | None:
    return player.random.choice(found) if found else None


def _transactions(player: Player, *, is_open: bool) -> list[TransactionDescription]:
    """Every id of one producer that is known; only those with an open transaction if told."""
    return [
        found
        for _, server in _coordinators(player)
        for found in server.shell.machine.operations.matching(DescribeTransactionsRequest(), 0)
        if not found.member_count
        if not is_open or found.state == TransactionState.ONGOING.value
    ]


def _entries(player: Player) -> list[tuple[TopicPartition, ProducerEntry]]:
    """What leaders remember of producers, by partition and id."""
    replicas = player.stage.world.leaders()
    leaders = {replica.topic_partition: replica for replica in replicas.values()}
    return [
        (topic_partition, entry)
        for topic_partition in player.stage.partitions
        if (replica := leaders.get(topic_partition)) is not None
        for _, entry in sorted(replica.machine.producers.entries.items())
    ]


# --- how it writes ----------------------------------------------------------------------------


async def _forge(player: Player, forgery: Forgery) -> None:
    batch = encode_records(
        [(None, f"forged by {player.new_owner()}".encode(), 0, ())],
        producer_id=forgery.producer_id,
        producer_epoch=forgery.producer_epoch,
        base_sequence=forgery.base_sequence,
        is_transactional=forgery.transactional_id is not None,
    )
    request = ProduceRequest(
        topic_partition=forgery.topic_partition,
        batch=bytes(batch),
        transactional_id=forgery.transactional_id,
        ticket=await _ticket(player, forgery),
        timeout_ms=1_000,
    )
    player.stage.counts["forged records"] += 1
    await player.client.transport.call(
        address_of_replica(player, forgery.topic_partition), request, timeout_ms=1_000
    )


async def _poison(player: Player) -> None:
    """A batch that is whole and right, but for its records, which nobody can decode."""
    batch = encode_records([(None, b"poison", 0, ()), (None, b"poison", 0, ())])
    place = player.random.randrange(HEADER_BYTES, len(batch))
    batch[place] ^= 1 << player.random.randrange(8)
    header = parse_header(batch)
    batch = seal(
        batch[HEADER_BYTES:],
        codec=Codec.NONE,
        record_count=header.record_count,
        base_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=False,
    )
    try:
        decode_records(batch)
    except CorruptDataError:
        topic_partition = player.random.choice(player.stage.partitions)
        request = ProduceRequest(
            topic_partition=topic_partition, batch=bytes(batch), timeout_ms=1_000
        )
        player.stage.counts["poison batches"] += 1
        await player.client.transport.call(
            address_of_replica(player, topic_partition), request, timeout_ms=1_000
        )


async def _ticket(player: Player, forgery: Forgery) -> bytes | None:
    """Nothing, noise, or what a coordinator gives for another partition or to the rogue itself."""
    kind = player.random.choice(("none", "noise", "another's"))
    if kind == "none":
        return None
    if kind == "noise":
        return player.random.randbytes(TICKET_BYTES)
    if forgery.transactional_id is None:
        return await _own_ticket(player)
    return await _ticket_of_another_partition(player, forgery)


async def _own_ticket(player: Player) -> bytes | None:
    coordinators = [name for name, _ in _coordinators(player)]
    if not coordinators:
        return None
    request = InitProducerIdRequest(transactional_id=None)
    address = address_of_replica(player, _shard_in(player.random.choice(coordinators)))
    reply = await player.client.transport.call(address, request, timeout_ms=1_000)
    return reply.ticket


async def _ticket_of_another_partition(player: Player, forgery: Forgery) -> bytes | None:
    for name, server in _coordinators(player):
        for found in server.shell.machine.operations.describe((forgery.transactional_id,)):
            others = [tp for tp in found.partitions if tp != forgery.topic_partition]
            enrolled = [tp for tp in others if tp in player.stage.partitions]
            if not enrolled:
                return None
            request = AddPartitionsToTxnRequest(
                transactional_id=found.transactional_id,
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                partitions=(player.random.choice(enrolled),),
            )
            address = address_of_replica(player, _shard_in(name))
            reply = await player.client.transport.call(address, request, timeout_ms=1_000)
            tickets = [enrolment.ticket for enrolment in reply.enrolments]
            return tickets[0] if tickets else None
    return None


def _coordinators(player: Player) -> list[tuple[str, Any]]:
    servers = sorted(player.stage.world.servers().items())
    return [(name, server) for name, server in servers if name.startswith("transaction:")]


def _shard_in(name: str) -> TopicPartition:
    shard = name.removeprefix("transaction:").partition("@")[0]
    return TopicPartition(TRANSACTION_STATE_TOPIC, int(shard))


def address_of_replica(player: Player, topic_partition: TopicPartition) -> str:
    """Whom to call; without a controller to ask, an actor that is alone."""
    placement = player.stage.world.placement_of(topic_partition)
    return address_of(placement) if placement else actor_of(topic_partition, FOUNDER_NODE)
