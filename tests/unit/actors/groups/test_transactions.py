"""Positions committed in transactions, at a group coordinator on a real directory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from virtual_time import give_turns

from oncelog.actors.protocol.messages.group import LeaveGroupRequest, LeavingMember
from oncelog.actors.protocol.messages.partition import DescribeProducersRequest
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TopicPartition

TP = TopicPartition("flights", 0)
OFFSETS = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)
GROUP = "billing"
RETENTION_MS = 604_800_000
Shard = Any
Play = Callable[[Callable[[Shard], Awaitable[None]]], None]


def test_transactional_commit_is_unstable_until_its_marker_even_after_a_restart(
    play: Play,
) -> None:
    async def scenario(shard: Shard) -> None:
        await shard.commit(5)
        assert await shard.txn_commit(9) is ErrorCode.NONE
        assert await shard.position() is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await shard.position(require_stable=False) == 5
        await shard.restart()
        assert await shard.position() is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await shard.mark(committed=True) is ErrorCode.NONE
        assert await shard.position() == 9
        await shard.restart()
        assert await shard.position() == 9

    play(scenario)


def test_aborted_transaction_leaves_the_position_as_it_was(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        await shard.commit(5)
        await shard.txn_commit(9)
        assert await shard.mark(committed=False) is ErrorCode.NONE
        assert await shard.position() == 5

    play(scenario)


def test_marker_counts_only_when_it_is_durable(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        await shard.txn_commit(9)
        shard.background.gate.clear()
        marking = asyncio.ensure_future(shard.mark(committed=True))
        await give_turns(20)
        assert not marking.done()
        assert await shard.position() is ErrorCode.UNSTABLE_OFFSET_COMMIT
        shard.background.gate.set()
        assert await marking is ErrorCode.NONE
        assert await shard.position() == 9

    play(scenario)


def test_transactional_commit_needs_its_ticket(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        assert await shard.txn_commit(9, ticket=None) is ErrorCode.INVALID_TXN_STATE
        assert await shard.txn_commit(9, ticket=b"forged") is ErrorCode.INVALID_TXN_STATE
        assert await shard.position() == -1

    play(scenario)


def test_zombie_producer_cannot_commit_after_its_transaction_ended(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        await shard.txn_commit(9)
        await shard.mark(committed=True)
        assert await shard.txn_commit(12) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await shard.position() == 9

    play(scenario)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("later_count", "answer"),
    [(1, ErrorCode.NONE), (5, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)],
)
def test_a_late_copy_of_a_transactions_commit_does_not_undo_a_later_one(
    play: Play, later_count: int, answer: ErrorCode, *, restarts: bool
) -> None:
    # 1. A transaction commits position 9; a copy of the call is delayed. 2. It commits 10 and
    # more. 3. The copy arrives, remembered as a duplicate or too old for that.
    async def scenario(shard: Shard) -> None:
        await shard.txn_commit(9, base_sequence=0)
        for number in range(1, later_count + 1):
            await shard.txn_commit(9 + number, base_sequence=number)
        if restarts:
            await shard.crash()
        log_end_offset = shard.coordinator.replica.machine.log_end_offset
        assert await shard.txn_commit(9, base_sequence=0) is answer
        assert shard.coordinator.replica.machine.log_end_offset == log_end_offset
        assert await shard.mark(committed=True) is ErrorCode.NONE
        assert await shard.position() == 9 + later_count

    play(scenario)


def test_a_repeated_commit_of_a_transaction_is_answered_when_its_first_copy_is_durable(
    play: Play,
) -> None:
    async def scenario(shard: Shard) -> None:
        shard.background.gate.clear()
        first = asyncio.ensure_future(shard.txn_commit(9, base_sequence=0))
        again = asyncio.ensure_future(shard.txn_commit(9, base_sequence=0))
        await give_turns(20)
        assert not again.done()
        shard.background.gate.set()
        assert [await first, await again] == [ErrorCode.NONE, ErrorCode.NONE]
        assert shard.coordinator.replica.machine.log_end_offset == 1

    play(scenario)


def test_positions_sent_to_groups_of_other_shards_leave_gaps(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        assert await shard.txn_commit(9, base_sequence=3) is ErrorCode.NONE
        assert await shard.txn_commit(10, base_sequence=70) is ErrorCode.NONE
        assert await shard.mark(committed=True) is ErrorCode.NONE
        assert await shard.position() == 10

    play(scenario)


def test_commit_admitted_before_a_rebalance_is_seen_by_the_new_owner(play: Play) -> None:
    # 1. A zombie's transactional commit is appended under generation 1; no sync yet.
    # 2. Generation 2 is made and its assignment appended behind it.
    # 3. When the new owner has its assignment, the position is unstable, not the old one.
    async def scenario(shard: Shard) -> None:
        first = await shard.enter()
        await shard.sync(first)
        shard.background.gate.clear()
        ids = {"generation_id": 1, "member_id": first.member_id}
        zombie = asyncio.ensure_future(shard.txn_commit(9, **ids))
        await give_turns(20)
        leaving = LeavingMember(member_id=first.member_id)
        await shard.coordinator.leave_group(LeaveGroupRequest(group_id=GROUP, members=(leaving,)))
        second = await shard.enter()
        syncing = asyncio.ensure_future(shard.sync(second))
        await give_turns(20)
        assert not syncing.done()
        shard.background.gate.set()
        await syncing
        assert await shard.position() is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await zombie is ErrorCode.NONE

    play(scenario)


def test_marker_for_a_partition_led_elsewhere_is_refused(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        refused = await shard.mark(committed=True, tp=TopicPartition(OFFSETS.topic, 1))
        assert refused is ErrorCode.NOT_LEADER_OR_FOLLOWER

    play(scenario)


def test_producers_of_the_offsets_log_are_described(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        await shard.txn_commit(9)
        request = DescribeProducersRequest(topic_partition=OFFSETS)
        (producer,) = (await shard.coordinator.describe_producers(request)).producers
        assert (producer.producer_id, producer.open_record_count) == (7, 1)
        other = DescribeProducersRequest(topic_partition=TP)
        refused = await shard.coordinator.describe_producers(other)
        assert refused.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    play(scenario)
