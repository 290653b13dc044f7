"""A reader in commit order, and what it must have delivered by the final logs.

It keeps its positions as a program that commits them does, and begins again from them whenever its
process dies: so what all its lives delivered of a partition is one sequence. The log alone decides
which: the records of each committed transaction at its marker, others where they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from sim_checkers import Violation
from sim_operators import settings_of
from sim_replica_watch import bytes_from
from sim_stage import Life, Player, Stage

from oncelog.api.records import CommitPosition
from oncelog.storage.exceptions import OffsetOutOfRangeError, OncelogError
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import iterate_batches
from oncelog.storage.records.control import decode_control


class Delivered:
    """What one reader has delivered of one partition, over all its lives."""

    def __init__(self) -> None:
        self.position: int = CommitPosition(0)
        self.offsets: list[int] = []
        self.is_given_up = False
        """Its position was deleted: what follows it would begin elsewhere."""


def commit_reader(name: str) -> Life:
    """Reads all partitions that are not compacted, in commit order, as one program."""

    async def life(player: Player) -> None:
        kept = player.stage.in_commit_order.setdefault(name, {})
        for tp in player.stage.partitions:
            if "compact" not in str(settings_of(tp.topic).get("cleanup_policy", "")):
                kept.setdefault(tp, Delivered())
        while player.is_on:
            await _read(player, kept)

    return life


async def _read(player: Player, kept: dict[TopicPartition, Delivered]) -> None:
    consumer = player.client.consumer(
        order="commit",
        auto_offset_reset="none",
        fetch_max_wait_ms=player.random.choice((50, 500)),
        max_partition_fetch_bytes=player.random.choice((300, 2_000, 1_048_576)),
        commit_order_buffer_bytes=player.random.choice((1, 1_000, 1_048_576)),
        request_timeout_ms=player.stage.plan.request_timeout_ms + 500,
        retry_backoff_ms=20,
        **player.near_settings(f"{player.client.name} at {player.history.now}"),
    )
    wanted = [tp for tp, delivered in kept.items() if not delivered.is_given_up]
    if not wanted:
        await player.pause(1_000)
        return
    await consumer.assign(wanted)
    for tp in wanted:
        await consumer.seek(tp, kept[tp].position)
    for _ in range(player.random.randint(5, 60)):
        if not player.is_on:
            break
        try:
            records = await consumer.poll(
                player.random.choice((0, 50, 500)), player.random.choice((1, 3, 500))
            )
        except OffsetOutOfRangeError:
            for tp in wanted:
                kept[tp].is_given_up = True
            break
        except OncelogError as error:
            player.stage.world.note(f"poll in commit order failed: {error!r}")
            await asyncio.sleep(0.1)
            continue
        positions = await consumer.positions()
        # One step, as an atomic commit of results and positions is.
        for record in records:
            kept[record.topic_partition].offsets.append(record.offset)
        for tp, position in positions.items():
            kept[tp].position = position
        player.stage.counts["records read in commit order"] += len(records)
        await player.pause()
    await consumer.close()


def commit_order_violations(stage: Stage) -> list[Violation]:
    """What a reader delivered otherwise than the final logs say."""
    found = []
    logs: dict[TopicPartition, tuple[int, list[int]]] = {}
    read = {tp for kept in stage.in_commit_order.values() for tp in kept}
    for replica in stage.world.leaders().values():
        if replica.topic_partition not in read:
            continue
        begin = replica.log.log_start_offset
        logs[replica.topic_partition] = (begin, list(_in_commit_order(bytes_from(replica, begin))))
    for name, kept in stage.in_commit_order.items():
        for tp, delivered in kept.items():
            if tp not in logs:
                continue
            begin, order = logs[tp]
            # A log start inside a batch hides records; those before it are known to nobody.
            wanted = [offset for offset in order if offset >= begin]
            got = [offset for offset in delivered.offsets if offset >= begin]
            if got != wanted[: len(got)]:
                place = next(
                    (
                        n
                        for n, pair in enumerate(zip(got, wanted, strict=False))
                        if len(set(pair)) > 1
                    ),
                    len(wanted),
                )
                text = f"{tp} from {begin}: {name} got {got[place:][:8]}, not {wanted[place:][:8]}"
                found.append(Violation("CommitOrder", text, (str(tp),)))
    return found


def _in_commit_order(log: bytes) -> Iterator[int]:
    open_: dict[int, list[Any]] = {}
    for position, header in iterate_batches(log):
        if header.is_control:
            control = decode_control(log, header, position)
            batches = open_.pop(header.producer_id, [])
            if control is not None and control.committed:
                for one in batches:
                    yield from range(one.base_offset, one.next_offset)
        elif header.is_transactional:
            open_.setdefault(header.producer_id, []).append(header)
        elif header.record_count:
            yield from range(header.base_offset, header.next_offset)
