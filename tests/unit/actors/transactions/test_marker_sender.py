"""Markers reach every partition, however long that takes, unless somebody newer decides."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from oncelog.actors.interfaces import CONTROLLER_ACTOR
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages.partition import (
    MarkerResult,
    TxnMarker,
    WriteTxnMarkersReply,
    WriteTxnMarkersRequest,
)
from oncelog.actors.transactions.completions import Delivery
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)

SHARD = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
FLIGHTS = [TopicPartition("flights", number) for number in range(3)]


def marker(producer_id: int, *partitions: TopicPartition, committed: bool = True) -> TxnMarker:
    return TxnMarker(
        producer_id=producer_id, producer_epoch=1, committed=committed, partitions=partitions
    )


def always() -> bool:
    return True


def test_every_partition_gets_one_call_with_all_its_verdicts(world: Any) -> None:
    async def scenario() -> None:
        for tp in FLIGHTS[:2]:
            world.add_partition(tp)
            world.answer_markers(f"partition:{tp}@1")
        markers = [marker(7, *FLIGHTS[:2]), marker(8, FLIGHTS[1], committed=False)]
        delivery = await world.marker_sender().send(markers, coordinator_epoch=4, is_current=always)
        assert delivery is Delivery.DONE
        sent = {actor: request for _, actor, request in world.calls_of("write_txn_markers")}
        assert sent == {
            "partition:flights-0@1": WriteTxnMarkersRequest(
                coordinator_epoch=4, markers=(marker(7, FLIGHTS[0]),)
            ),
            "partition:flights-1@1": WriteTxnMarkersRequest(
                coordinator_epoch=4,
                markers=(marker(7, FLIGHTS[1]), marker(8, FLIGHTS[1], committed=False)),
            ),
        }
        assert len(world.calls_of("write_txn_markers")) == 2

    world.run(scenario)


def test_no_markers_are_done_at_once(world: Any) -> None:
    async def scenario() -> None:
        sender = world.marker_sender()
        assert await sender.send([], coordinator_epoch=4, is_current=always) is Delivery.DONE
        assert not world.calls

    world.run(scenario)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_partition_that_cannot_now_is_asked_again(world: Any, error: ErrorCode) -> None:
    async def scenario() -> None:
        world.add_partition(FLIGHTS[0])
        world.answer_markers("partition:flights-0@1", error, error)
        delivery = await world.marker_sender().send(
            [marker(7, FLIGHTS[0])], coordinator_epoch=4, is_current=always
        )
        assert delivery is Delivery.DONE
        assert len(world.calls_of("write_txn_markers")) == 3

    world.run(scenario)


@pytest.mark.parametrize("error", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION])
def test_a_call_without_an_answer_is_no_marker_written(world: Any, error: ErrorCode) -> None:
    """The transport answers for a partition that did not: no result names any marker."""

    async def scenario() -> None:
        world.add_partition(FLIGHTS[0])
        calls = 0

        async def leader(request: WriteTxnMarkersRequest) -> WriteTxnMarkersReply:
            nonlocal calls
            calls += 1
            if calls <= 2:
                return request.failed(error)
            return WriteTxnMarkersReply(
                results=(
                    MarkerResult(producer_id=7, topic_partition=FLIGHTS[0], error=ErrorCode.NONE),
                )
            )

        world.actors["partition:flights-0@1"] = leader
        delivery = await world.marker_sender().send(
            [marker(7, FLIGHTS[0])], coordinator_epoch=4, is_current=always
        )
        assert delivery is Delivery.DONE
        assert calls == 3

    world.run(scenario)


def test_a_marker_that_the_answer_does_not_name_is_sent_again(world: Any) -> None:
    async def scenario() -> None:
        world.add_partition(FLIGHTS[0])
        asked: list[list[int]] = []

        async def leader(request: WriteTxnMarkersRequest) -> WriteTxnMarkersReply:
            asked.append([one.producer_id for one in request.markers])
            written = MarkerResult(
                producer_id=asked[-1][0], topic_partition=FLIGHTS[0], error=ErrorCode.NONE
            )
            return WriteTxnMarkersReply(results=(written,))

        world.actors["partition:flights-0@1"] = leader
        markers = [marker(number, FLIGHTS[0]) for number in (7, 8)]
        await world.marker_sender().send(markers, coordinator_epoch=4, is_current=always)
        assert asked == [[7, 8], [8]]

    world.run(scenario)


def test_the_pause_between_attempts_grows_to_a_second(world: Any) -> None:
    async def scenario() -> None:
        world.add_partition(FLIGHTS[0])
        world.answer_markers("partition:flights-0@1", *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 12)
        await world.marker_sender().send(
            [marker(7, FLIGHTS[0])], coordinator_epoch=4, is_current=always
        )
        times = [time_ms for time_ms, _, _ in world.calls_of("write_txn_markers")]
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert pauses[0] < 30
        assert 500 <= pauses[-1] <= 1_010

    world.run(scenario)


def test_a_leader_that_moved_is_found_again(world: Any) -> None:
    async def scenario() -> None:
        world.add_partition(FLIGHTS[0])
        world.answer_markers("partition:flights-0@2")
        sending = asyncio.ensure_future(
            world.marker_sender().send(
                [marker(7, FLIGHTS[0])], coordinator_epoch=4, is_current=always
            )
        )
        await asyncio.sleep(0.1)
        world.add_partition(FLIGHTS[0], leader=2)
        assert await sending is Delivery.DONE
        assert world.calls_of("write_txn_markers")[-1][1] == "partition:flights-0@2"

    world.run(scenario)


def test_a_leader_that_hangs_is_given_up_once_another_leads(world: Any) -> None:
    """A node that is cut off answers nothing: the call's own time would be five seconds."""

    async def hang(_request: Any) -> Any:
        return await asyncio.get_running_loop().create_future()

    async def scenario() -> None:
        world.add_partition(FLIGHTS[0])
        world.actors["partition:flights-0@1"] = hang
        world.answer_markers("partition:flights-0@2")
        sending = asyncio.ensure_future(
            world.marker_sender().send(
                [marker(7, FLIGHTS[0])], coordinator_epoch=4, is_current=always
            )
        )
        await asyncio.sleep(0.1)
        world.add_partition(FLIGHTS[0], leader=2)
        assert await sending is Delivery.DONE
        assert world.passed_ms() < 2_000

    world.run(scenario)


def test_a_partition_without_a_leader_is_waited_for(world: Any) -> None:
    async def scenario() -> None:
        world.add_partition(FLIGHTS[0], leader=-1)
        world.answer_markers("partition:flights-0@1")
        sending = asyncio.ensure_future(
            world.marker_sender().send(
                [marker(7, FLIGHTS[0])], coordinator_epoch=4, is_current=always
            )
        )
        await asyncio.sleep(0.5)
        assert not world.calls_of("write_txn_markers")
        world.add_partition(FLIGHTS[0], leader=1)
        assert await sending is Delivery.DONE

    world.run(scenario)


def test_an_unreachable_partition_delays_nobody_else(world: Any) -> None:
    async def scenario() -> None:
        for tp in FLIGHTS:
            world.add_partition(tp)
        for tp in FLIGHTS[1:]:
            world.answer_markers(f"partition:{tp}@1")
        sending = asyncio.ensure_future(
            world.marker_sender().send(
                [marker(7, *FLIGHTS)], coordinator_epoch=4, is_current=always
            )
        )
        await asyncio.sleep(60)
        first = {actor: time_ms for time_ms, actor, _ in reversed(world.calls)}
        assert first["partition:flights-1@1"] < 10
        assert first["partition:flights-2@1"] < 10
        assert not sending.done()
        world.answer_markers("partition:flights-0@1")
        assert await sending is Delivery.DONE

    world.run(scenario)


def test_only_the_markers_that_are_missing_are_sent_again(world: Any) -> None:
    async def scenario() -> None:
        world.add_partition(FLIGHTS[0])
        asked: list[list[int]] = []

        async def leader(request: WriteTxnMarkersRequest) -> WriteTxnMarkersReply:
            asked.append([one.producer_id for one in request.markers])
            return WriteTxnMarkersReply(
                results=tuple(
                    MarkerResult(
                        producer_id=producer_id,
                        topic_partition=FLIGHTS[0],
                        error=ErrorCode.NOT_ENOUGH_REPLICAS
                        if producer_id == 8 and len(asked) == 1
                        else ErrorCode.NONE,
                    )
                    for producer_id in asked[-1]
                )
            )

        world.actors["partition:flights-0@1"] = leader
        markers = [marker(number, FLIGHTS[0]) for number in (7, 8, 9)]
        await world.marker_sender().send(markers, coordinator_epoch=4, is_current=always)
        assert asked == [[7, 8, 9], [8]]

    world.run(scenario)


REFUSALS = [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED]


@pytest.mark.parametrize("error", REFUSALS)
def test_a_refusal_while_somebody_newer_decides_drops_it_all(world: Any, error: ErrorCode) -> None:
    async def scenario() -> None:
        for tp in FLIGHTS[:2]:
            world.add_partition(tp)
        world.leader_epochs[SHARD] = 5
        world.answer_markers("partition:flights-0@1", error)  # The other one is unreachable.
        delivery = await world.marker_sender().send(
            [marker(7, *FLIGHTS[:2])], coordinator_epoch=4, is_current=always
        )
        assert delivery is Delivery.DROPPED
        assert world.passed_ms() < 100

    world.run(scenario)


@pytest.mark.parametrize("error", REFUSALS)
def test_who_is_newest_is_asked_after_the_refusal(world: Any, error: ErrorCode) -> None:
    """1. The view learns of epoch 4. 2. A successor gets 5. 3. Its marker has ours refused."""

    async def scenario() -> None:
        world.add_partition(FLIGHTS[0])
        world.leader_epochs[SHARD] = 4
        cluster = world.cluster_view()
        sender = world.marker_sender(cluster)
        await cluster.leader_epoch(SHARD, as_of_ms=loop_ms())
        world.leader_epochs[SHARD] = 5
        world.answer_markers("partition:flights-0@1", error)
        delivery = await sender.send(
            [marker(7, FLIGHTS[0])], coordinator_epoch=4, is_current=always
        )
        assert delivery is Delivery.DROPPED

    world.run(scenario)


def test_the_newest_coordinator_leaves_out_a_marker_that_came_too_late(world: Any) -> None:
    """A partition past the marker's epoch has nothing open that the marker could close."""

    async def scenario() -> None:
        world.add_partition(FLIGHTS[0])
        world.leader_epochs[SHARD] = 4
        world.answer_markers("partition:flights-0@1", then=ErrorCode.INVALID_PRODUCER_EPOCH)
        delivery = await world.marker_sender().send(
            [marker(7, FLIGHTS[0])], coordinator_epoch=4, is_current=always
        )
        assert delivery is Delivery.DONE
        assert len(world.calls_of("write_txn_markers")) == 1

    world.run(scenario)


def test_the_newest_coordinator_that_is_called_fenced_sends_again(world: Any) -> None:
    async def scenario() -> None:
        world.add_partition(FLIGHTS[0])
        world.leader_epochs[SHARD] = 4
        fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        world.answer_markers("partition:flights-0@1", fenced, fenced)
        delivery = await world.marker_sender().send(
            [marker(7, FLIGHTS[0])], coordinator_epoch=4, is_current=always
        )
        assert delivery is Delivery.DONE
        assert len(world.calls_of("write_txn_markers")) == 3

    world.run(scenario)


@pytest.mark.parametrize("error", REFUSALS)
def test_nothing_is_left_out_while_nobody_knows_who_is_newest(world: Any, error: ErrorCode) -> None:
    async def scenario() -> None:
        world.add_partition(FLIGHTS[0])
        cluster = world.cluster_view()
        sender = world.marker_sender(cluster)
        await cluster.locate(FLIGHTS[0], as_of_ms=0)
        controller = world.actors.pop(CONTROLLER_ACTOR)
        world.answer_markers("partition:flights-0@1", then=error)
        sending = asyncio.ensure_future(
            sender.send([marker(7, FLIGHTS[0])], coordinator_epoch=4, is_current=always)
        )
        await asyncio.sleep(10)
        assert not sending.done()
        world.leader_epochs[SHARD] = 5
        world.actors[CONTROLLER_ACTOR] = controller
        assert await sending is Delivery.DROPPED

    world.run(scenario)


def test_a_coordinator_that_is_no_longer_current_sends_nothing(world: Any) -> None:
    async def scenario() -> None:
        world.add_partition(FLIGHTS[0])
        delivery = await world.marker_sender().send(
            [marker(7, FLIGHTS[0])], coordinator_epoch=4, is_current=lambda: False
        )
        assert delivery is Delivery.DROPPED
        assert not world.calls_of("write_txn_markers")

    world.run(scenario)


def test_a_deleted_topic_needs_no_markers(world: Any) -> None:
    async def scenario() -> None:
        for tp in FLIGHTS[:2]:
            world.add_partition(tp)
        world.answer_markers("partition:flights-1@1")
        sending = asyncio.ensure_future(
            world.marker_sender().send(
                [marker(7, *FLIGHTS[:2])], coordinator_epoch=4, is_current=always
            )
        )
        await asyncio.sleep(1)
        assert not sending.done()
        del world.leaders[FLIGHTS[0]]
        assert await sending is Delivery.DONE

    world.run(scenario)


def test_a_silent_controller_does_not_make_a_topic_gone(world: Any) -> None:
    async def scenario() -> None:
        controller = world.actors.pop(CONTROLLER_ACTOR)
        sending = asyncio.ensure_future(
            world.marker_sender().send(
                [marker(7, FLIGHTS[0])], coordinator_epoch=4, is_current=always
            )
        )
        await asyncio.sleep(10)
        assert not sending.done()
        world.add_partition(FLIGHTS[0])
        world.answer_markers("partition:flights-0@1")
        world.actors[CONTROLLER_ACTOR] = controller
        assert await sending is Delivery.DONE
        assert len(world.calls_of("write_txn_markers")) == 1

    world.run(scenario)


def test_the_marker_of_an_offsets_partition_goes_to_its_group_coordinator(world: Any) -> None:
    async def scenario() -> None:
        world.answer_markers("group:1@1", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        delivery = await world.marker_sender().send(
            [marker(7, TopicPartition(CONSUMER_OFFSETS_TOPIC, 1))],
            coordinator_epoch=4,
            is_current=always,
        )
        assert delivery is Delivery.DONE
        assert [actor for _, actor, _ in world.calls_of("write_txn_markers")] == ["group:1@1"] * 2

    world.run(scenario)
