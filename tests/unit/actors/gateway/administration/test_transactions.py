"""Producers and transactions, as administrators among Kafka's clients look for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kafka_admin
import pytest
from kafka_admin import AdminCluster, Story

from oncelog.actors.gateway.administration import transactions
from oncelog.actors.gateway.administration.transactions import PATTERN_CHARS_MAX, STATES, fits
from oncelog.actors.gateway.messages import describe_transactions as describing
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.describe_producers import (
    DescribeProducersRequest,
    ProducerState,
    TopicRequest,
)
from oncelog.actors.gateway.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from oncelog.actors.protocol.messages.access import Acl, Operation, Resource
from oncelog.actors.protocol.messages.partition import DescribeProducersReply, ProducerDescription
from oncelog.actors.protocol.messages.transaction import (
    DescribeTransactionsReply,
    PreparedTxn,
    TransactionDescription,
    TransactionMemberDescription,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TRANSACTION_STATE_TOPIC, TopicPartition, shard_of

Play = Callable[[Story], None]

SHARDS = [TopicPartition(TRANSACTION_STATE_TOPIC, number) for number in range(2)]
IDS = [
    next(name for name in map("loader{}".format, range(9)) if shard_of(name, 2) == shard)
    for shard in range(2)
]
"""A transactional id of each shard."""


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return lambda story: kafka_admin.play(tmp_path, story)


def transaction(transactional_id: str = IDS[0], **fields: Any) -> TransactionDescription:
    given: dict[str, Any] = {
        "state": "Ongoing",
        "producer_id": 7,
        "producer_epoch": 3,
        "transaction_timeout_ms": 60_000,
    }
    return TransactionDescription(transactional_id=transactional_id, **{**given, **fields})


def has(
    world: AdminCluster, shard: int, *found: TransactionDescription, broker_id: int = 1
) -> None:
    """The coordinator of a shard has these transactions, and answers as coordinators do."""

    def answer(request: Any) -> DescribeTransactionsReply:
        names = request.transactional_ids
        shown = tuple(one for one in found if names is None or one.transactional_id in names)
        unknown = names is not None and len(shown) < len(names)
        error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if unknown else ErrorCode.NONE
        return DescribeTransactionsReply(error=error, transactions=shown)

    world.answer(SHARDS[shard], "describe_transactions", answer, broker_id)


async def led(world: AdminCluster) -> None:
    """Both shards are led by the gateway's broker."""
    for shard in SHARDS:
        await world.lead(shard, 1)


async def listed(world: AdminCluster, **fields: Any) -> ListTransactionsResponse:
    request = ListTransactionsRequest(**fields)
    response: ListTransactionsResponse = await world.ask(ApiKey.LIST_TRANSACTIONS, request)
    return response


def rows(response: ListTransactionsResponse) -> list[tuple[str, int, str]]:
    assert response.error_code == 0
    return [
        (one.transactional_id, one.producer_id, one.transaction_state)
        for one in response.transaction_states
    ]


async def described(world: AdminCluster, *ids: str) -> dict[str, describing.TransactionState]:
    request = describing.DescribeTransactionsRequest(list(ids))
    response = await world.ask(ApiKey.DESCRIBE_TRANSACTIONS, request)
    found = {one.transactional_id: one for one in response.transaction_states}
    assert len(found) == len(response.transaction_states)
    return found


# --- listing ----------------------------------------------------------------------------------


def test_the_transactions_of_all_own_coordinators_are_listed(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await led(world)
        has(world, 0, transaction(IDS[0]), transaction("prepared", state="Prepared"))
        has(world, 1, transaction(IDS[1], state="Empty", producer_id=9))
        assert rows(await listed(world)) == [
            (IDS[0], 7, "Ongoing"),
            ("prepared", 7, "Ongoing"),
            (IDS[1], 9, "Empty"),
        ]
        assert world.busiest["describe_transactions"] == len(SHARDS)

    play(story)


def test_transactions_of_another_brokers_coordinator_are_in_its_own_list(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await led(world)
        has(world, 0, transaction(IDS[0]))
        has(world, 1, transaction(IDS[1]))
        world.move(SHARDS[1], 2)
        assert [row[0] for row in rows(await listed(world))] == [IDS[0]]
        assert [actor for actor, _ in world.asked] == ["transaction:0@1"]

    play(story)


def test_the_list_waits_for_coordinators_that_do_not_answer(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await world.lead(SHARDS[0], 1)
        has(world, 0, transaction(IDS[0]))
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await listed(world)).error_code == loading  # Nobody leads the second.
        await world.lead(SHARDS[1], 1)
        assert (await listed(world)).error_code == loading  # Its actor is not there.
        has(world, 1)
        assert [row[0] for row in rows(await listed(world))] == [IDS[0]]

    play(story)


def test_filters_are_passed_on_in_our_words(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await led(world)
        has(world, 0)
        has(world, 1)
        response = await listed(
            world,
            state_filters=["Ongoing", "Unheard", "Prepared"],
            producer_id_filters=[7, 9],
            duration_filter=5_000,
        )
        assert response.unknown_state_filters == ["Unheard", "Prepared"]
        for asked in world.requests("describe_transactions"):
            assert asked.states == ("Ongoing", "Prepared")
            assert asked.producer_ids == (7, 9)
            assert asked.running_longer_than_ms == 5_000
        world.asked.clear()
        await listed(world, duration_filter=-5)
        assert {one.running_longer_than_ms for one in world.requests("describe_transactions")} == {
            -1
        }

    play(story)


def test_who_looks_for_a_producer_id_finds_the_id_that_it_writes_for(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await led(world)
        members = tuple(
            TransactionMemberDescription(producer_id=number, producer_epoch=0, status="ENLISTED")
            for number in (20, 21, 22)
        )
        prepared = PreparedTxn(producer_id=30, producer_epoch=0, prepared_ms=0)
        has(world, 0, transaction(IDS[0], members=members, prepared=prepared))
        has(world, 1)
        assert [row[1] for row in rows(await listed(world))] == [7]
        found = rows(await listed(world, producer_id_filters=[22, 20, 30, 99]))
        assert found == [(IDS[0], number, "Ongoing") for number in (20, 22, 30)]
        assert [row[1] for row in rows(await listed(world, producer_id_filters=[7]))] == [7]

    play(story)


def test_only_unknown_states_list_nothing(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await led(world)
        has(world, 0, transaction(IDS[0]))
        has(world, 1)
        response = await listed(world, state_filters=["Unheard"])
        assert rows(response) == []
        assert response.unknown_state_filters == ["Unheard"]
        assert world.asked == []

    play(story)


def test_a_pattern_keeps_the_ids_that_it_fits_as_a_whole(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await led(world)
        has(world, 0, *(transaction(f"app-{number}") for number in range(40)))
        has(world, 1, transaction("application"))
        found = rows(await listed(world, transactional_id_pattern="app-1[0-3]?"))
        assert [row[0] for row in found] == ["app-1", "app-10", "app-11", "app-12", "app-13"]
        assert len(rows(await listed(world, transactional_id_pattern=""))) == 41
        wrong = await listed(world, transactional_id_pattern="app-(")
        assert wrong.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION

    play(story)


def test_a_pattern_is_compiled_and_compared_in_a_thread(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It loads a library, and there may be many ids: no other client is to wait for that.
    threads: list[threading.Thread] = []

    def watched(pattern: str, ids: Sequence[str]) -> list[bool]:
        threads.append(threading.current_thread())
        return fits(pattern, ids)

    monkeypatch.setattr(transactions, "fits", watched)

    async def story(world: AdminCluster) -> None:
        await led(world)
        has(world, 0, transaction(IDS[0]))
        has(world, 1)
        rows(await listed(world, transactional_id_pattern=""))
        assert not threads
        assert len(rows(await listed(world, transactional_id_pattern=IDS[0]))) == 1
        assert len(threads) == 2
        assert threading.current_thread() not in threads

    play(story)


# --- describing -------------------------------------------------------------------------------


def test_each_id_is_described_by_its_own_coordinator(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await led(world)
        partitions = (("flights", 2), ("delays", 0), ("flights", 1))
        open_one = transaction(
            IDS[0],
            state="Prepared",
            transaction_start_ms=5,
            partitions=tuple(TopicPartition(*one) for one in partitions),
        )
        has(world, 0, open_one)
        has(world, 1, transaction(IDS[1], state="Empty"))
        unknown = next(name for name in map("other{}".format, range(9)) if shard_of(name, 2) == 0)
        found = await described(world, IDS[0], unknown, IDS[1], IDS[0])
        assert found[unknown].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert found[IDS[1]] == describing.TransactionState(
            transactional_id=IDS[1],
            transaction_state="Empty",
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=-1,
            producer_id=7,
            producer_epoch=3,
        )
        first = found[IDS[0]]
        assert (first.transaction_state, first.transaction_start_time_ms) == ("Ongoing", 5)
        assert [(one.topic, one.partitions) for one in first.topics] == [
            ("delays", [0]),
            ("flights", [1, 2]),
        ]
        # A client of version 1 has a pair of its own.
        has(world, 0, transaction(IDS[0], told_producer_id=7, told_producer_epoch=1))
        (told,) = (await described(world, IDS[0])).values()
        assert (told.producer_id, told.producer_epoch) == (7, 1)

    play(story)


def test_a_coordinator_that_does_not_answer_is_to_be_looked_for(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await led(world)
        has(world, 1, transaction(IDS[1]))
        world.failing["describe_transactions"] = [ErrorCode.NETWORK_EXCEPTION]
        assert (await described(world, IDS[1]))[IDS[1]].error_code == 0  # Asked once more.
        found = await described(world, *IDS)
        assert found[IDS[0]].error_code == ErrorCode.NOT_COORDINATOR
        assert found[IDS[1]].error_code == 0

    play(story)


def test_an_id_that_may_not_be_seen_is_as_one_that_there_is_not(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await led(world)
        for shard, name in enumerate(IDS):
            has(world, shard, transaction(name))
        seen = Acl(
            principal="User:ann",
            resource=Resource.TRANSACTIONAL_ID,
            name=IDS[1],
            operation=Operation.DESCRIBE,
        )
        world.allow(seen)
        found = await described(world, *IDS)
        assert found[IDS[0]].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert found[IDS[1]].error_code == 0
        assert [row[0] for row in rows(await listed(world))] == [IDS[1]]

    play(story)


# --- producers --------------------------------------------------------------------------------


def test_leaders_tell_of_their_producers(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        world.lead_after_ms = None
        await world.create("flights", partitions=2)
        await world.lead(TopicPartition("flights", 0), 1)
        producer = ProducerDescription(
            producer_id=2**62,
            producer_epoch=3,
            last_sequence=5,
            last_timestamp_ms=7,
            coordinator_epoch=9,
            current_txn_first_offset=11,
        )
        reply = DescribeProducersReply(producers=(producer,))
        world.answer(TopicPartition("flights", 0), "describe_producers", reply)
        topics = [TopicRequest("flights", [0, 1, 7]), TopicRequest("gone", [0])]
        response = await world.ask(ApiKey.DESCRIBE_PRODUCERS, DescribeProducersRequest(topics))
        found = {
            (topic.name, one.partition_index): one
            for topic in response.topics
            for one in topic.partitions
        }
        assert found["flights", 0].active_producers == [ProducerState(2**62, 3, 5, 7, 9, 11)]
        assert {key: one.error_code for key, one in found.items()} == {
            ("flights", 0): ErrorCode.NONE,
            ("flights", 1): ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ("flights", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("gone", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert found["flights", 0].error_message is None
        assert "gone-0" in (found["gone", 0].error_message or "")
        world.allow()
        response = await world.ask(ApiKey.DESCRIBE_PRODUCERS, DescribeProducersRequest(topics[:1]))
        codes = {one.error_code for one in response.topics[0].partitions}
        assert codes == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}

    play(story)


# --- patterns ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "fitting", "other"),
    [
        ("^app$", ["app"], ["apps", "^app$"]),
        ("app.*", ["app", "app-1"], ["ap", "an app", "app\n"]),
        ("a|b|", ["a", "b", ""], ["ab"]),
        (r"\$\(\\", ["$(\\"], ["$("]),
        (r"[\w.]+", ["a_9.Z"], ["a-b", "ä"]),
        ("ä{2}", ["ää"], ["ä"]),
        ("(a*)*b", ["aab", "b"], ["a" * 500]),
        (r"\p{L}+", ["äb"], ["1"]),
        ("a" * PATTERN_CHARS_MAX, ["a" * PATTERN_CHARS_MAX], ["a"]),
    ],
)
def test_a_pattern_fits_whole_ids(pattern: str, fitting: list[str], other: list[str]) -> None:
    assert fits(pattern, fitting) == [True] * len(fitting)
    assert fits(pattern, other) == [False] * len(other)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "a)", "a)(b", "[", "[b-a]", "*", "a{3,2}", "a{99999}", "\\"),
        *("(?=a)", r"(a)\1", "(a{500}){500}", "a" * (PATTERN_CHARS_MAX + 1)),
    ],
)
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"pattern|regular"):
        fits(pattern, ["a"])


def test_kafkas_states_are_those_that_are_known() -> None:
    assert set(STATES) == {
        *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
    }
