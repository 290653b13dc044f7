"""A client that writes into transactions of others, with a ticket that is none.

It knows the producer id and epoch of each open transaction, and which partitions are enrolled. It
sends one record to another partition: without a ticket, with one of chance, or with the real one of
another partition. Nobody sent what it sends, as far as the history knows, so it must never be read;
and what it opens would never be closed.
"""

from __future__ import annotations

from sim_stage import Player

from oncelog.actors.interfaces import actor_of
from oncelog.actors.protocol.admin_messages import TransactionDescription
from oncelog.actors.protocol.messages import AddPartitionsToTxnRequest, ProduceRequest
from oncelog.actors.protocol.tickets import TICKET_BYTES
from oncelog.actors.protocol.transaction_state import TransactionState
from oncelog.storage.record_codec import encode_records

BROKER_ID = 1
PAUSE_MS = 300.0


async def rogue(player: Player) -> None:
    """Forges records until the stage is over."""
    while player.is_on:
        await player.pause(PAUSE_MS)
        open_now = _open_transactions(player)
        if open_now:
            await _forge(player, *player.random.choice(open_now))


def _open_transactions(player: Player) -> list[tuple[str, TransactionDescription]]:
    """The coordinator's name and the transaction, of each that is open under the id's own epoch."""
    return [
        (process.name, found)
        for process in sorted(player.stage.world.actors(), key=lambda process: process.name)
        if process.name.startswith("transaction:")
        for found in process.server.machine.describe(None)
        if found.state == TransactionState.ONGOING.value and not found.member_count
    ]


async def _forge(player: Player, coordinator: str, found: TransactionDescription) -> None:
    targets = player.stage.partitions
    others = [tp for tp in targets if tp not in found.partitions]
    if not others:
        return
    topic_partition = player.random.choice(others)
    batch = encode_records(
        [(None, f"forged by {player.new_owner()}".encode(), 0, ())],
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    request = ProduceRequest(
        topic_partition=topic_partition,
        batch=bytes(batch),
        transactional_id=found.transactional_id,
        ticket=await _ticket(player, coordinator, found),
        timeout_ms=1_000,
    )
    player.stage.counts["forged records"] += 1
    await player.client.transport.call(
        actor_of(topic_partition, BROKER_ID), request, timeout_ms=1_000
    )


async def _ticket(player: Player, coordinator: str, found: TransactionDescription) -> bytes | None:
    """Nothing, noise, or what the coordinator gives for a partition that is enrolled already."""
    enrolled = [tp for tp in found.partitions if tp in player.stage.partitions]
    kind = player.random.choice(("none", "noise", "another's"))
    if kind == "none":
        return None
    if kind == "noise" or not enrolled:
        return player.random.randbytes(TICKET_BYTES)
    request = AddPartitionsToTxnRequest(
        transactional_id=found.transactional_id,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        partitions=(player.random.choice(enrolled),),
    )
    reply = await player.client.transport.call(coordinator, request, timeout_ms=1_000)
    tickets = [enrolment.ticket for enrolment in reply.enrolments]
    return tickets[0] if tickets else None
