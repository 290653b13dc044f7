"""What a program sees of a queue: takes, acknowledgements, errors, dead letters, backlog."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import structs
from sim_world import World, WorldSettings

from oncelog.actors.config import ClusterConfig
from oncelog.actors.protocol.messages.partition import FetchReply, FetchRequest
from oncelog.actors.protocol.messages.share import (
    AcknowledgeType,
    ShareAcknowledgeRequest,
    ShareAcquireRequest,
    ShareGroupHeartbeatRequest,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    ClientClosedError,
    CorruptRecordError,
    InconsistentGroupProtocolError,
    InvalidRecordStateError,
    InvalidRequestError,
    InvalidSettingError,
    InvalidTopicError,
    OncelogError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition
from oncelog.storage.records.batch import iterate_batches

SETTINGS = WorldSettings(
    cluster=ClusterConfig(replicas_per_actor=1, group_share_session_timeout_ms=2_000)
)


def played(scenario: Callable[[World, Any], Awaitable[None]], *, partitions: int = 1) -> None:
    topics = {"tasks": partitions, "results": 1, "dead": 1}
    with World(5, topics=topics, settings=SETTINGS) as world:
        client = world.client("program")
        world.run(client.spawn(scenario(world, client)))


async def write(client: Any, *values: str, topic: str = "tasks", partition: int = 0) -> None:
    producer = client.producer()
    for value in values:
        await (await producer.send(topic, value=value.encode(), partition=partition))
    await producer.close()


async def read(client: Any, topic: str) -> list[Any]:
    consumer = client.consumer(auto_offset_reset="earliest")
    await consumer.assign([TopicPartition(topic, 0)])
    records = [record for _ in range(4) for record in await consumer.poll(300)]
    await consumer.close()
    return records


def made(client: Any, **settings: Any) -> Any:
    return client.queue("tasks", **{"group_id": "g", **settings})


def values(records: Any) -> list[str]:
    return [record.value.decode() for record in records]


def test_workers_beyond_the_partitions_share_the_records():
    async def scenario(world: World, client: Any) -> None:
        await write(client, *"abcdef")
        queues = [made(client) for _ in range(3)]
        taken = [value for queue in queues for value in values(await queue.take(2))]
        assert sorted(taken) == list("abcdef")
        assert await queues[0].take(2, timeout_ms=50) == []
        for queue in queues:
            await queue.close()

    played(scenario)


def test_what_is_accepted_or_rejected_is_never_delivered_again_and_the_rest_is():
    async def scenario(world: World, client: Any) -> None:
        await write(client, *"abcd")
        async with made(client) as queue:
            a, b, c, d = await queue.take()
            assert (a.offset, a.delivery_count, a.topic_partition) == (
                0,
                1,
                TopicPartition("tasks", 0),
            )
            queue.accept(a)
            queue.reject([b])
            queue.release(c)
            await queue.flush()
            (again,) = await queue.take()
            assert (again.value, again.delivery_count) == (c.value, 2)
        async with made(client) as other:
            records = await other.take()
            assert [(r.value, r.delivery_count) for r in records] == [(c.value, 3), (d.value, 2)]

    played(scenario)


async def write_keyed(client: Any, *values: str) -> None:
    """Each value's key is its first letter; one that begins with "-" has none."""
    producer = client.producer()
    for value in values:
        key = None if value[0] == "-" else value[0].encode()
        await (await producer.send("tasks", key=key, value=value.encode(), partition=0))
    await producer.close()


def test_in_order_of_keys_a_record_waits_for_those_before_it_and_for_no_others():
    async def scenario(world: World, client: Any) -> None:
        await write_keyed(client, "a1", "a2", "b1", "a3", "-1", "b2", "-2")
        async with made(client, order="key") as one, made(client, order="key") as other:
            a1, b1, *plain = await one.take()
            assert values([a1, b1, *plain]) == ["a1", "b1", "-1", "-2"]
            assert await other.take(timeout_ms=50) == []
            one.accept(a1)
            one.release(b1)
            await one.flush()
            a2, b1 = await other.take()
            assert [(r.value, r.delivery_count) for r in (a2, b1)] == [(b"a2", 1), (b"b1", 2)]
            other.reject(a2)
            other.accept(b1)
            await other.flush()
            assert values(await one.take()) == ["a3", "b2"]

    played(scenario)


def test_in_order_of_keys_a_pending_record_holds_up_its_key_until_the_transaction_ends():
    async def scenario(world: World, client: Any) -> None:
        await write_keyed(client, "a1", "a2", "a3")
        producer = client.producer(transactional_id="t")
        await producer.init_transactions()
        async with made(client, order="key") as queue:
            for commits, expected in ((False, "a1"), (True, "a1"), (True, "a2")):
                records = await queue.take()
                assert values(records) == [expected]
                await producer.begin_transaction()
                await producer.send_acknowledgements_to_transaction(records, queue)
                assert await queue.take(timeout_ms=50) == []
                if commits:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()
            assert values(await queue.take()) == ["a3"]
        await producer.close()

    played(scenario)


def test_the_order_of_keys_survives_a_coordinator_that_has_to_read_them_again():
    async def scenario(world: World, client: Any) -> None:
        await write_keyed(client, "a1", "a2", "b1", "b2")
        async with made(client, order="key") as queue:
            a1, _ = await queue.take()
            for name in [name for name in world.actor_names() if name.startswith("group")]:
                world.kill(name)
            async with made(client, order="key") as other:
                assert await other.take(timeout_ms=2_000) == []
                queue.accept(a1)
                await queue.flush()
                assert values(await other.take(timeout_ms=5_000)) == ["a2"]

    played(scenario)


def test_the_workers_of_a_queue_have_one_order():
    async def scenario(world: World, client: Any) -> None:
        await write_keyed(client, "a1", "a2")
        async with made(client) as queue, made(client, order="key") as other:
            await queue.take()
            with pytest.raises(InconsistentGroupProtocolError, match=r"order='none'.*all the same"):
                await other.take()
        # Nobody is left.
        async with made(client, order="key") as other:
            assert values(await other.take()) == ["a1"]

    played(scenario)


def test_a_take_returns_no_more_than_it_was_asked_for_of_what_an_earlier_one_acquired():
    async def scenario(world: World, client: Any) -> None:
        await write(client, "a")
        async with client.producer(linger_ms=50) as producer:
            for value in "bcdef":
                await producer.send("tasks", value=value.encode(), partition=0)
        # The first take acquires all, and has read enough after the first batch.
        async with made(client, max_partition_fetch_bytes=1, fetch_max_bytes=1) as queue:
            taken = [values(await queue.take(count)) for count in (6, 2, 1, 6)]
            assert taken == [["a"], ["b", "c"], ["d"], ["e", "f"]]

    played(scenario)


@pytest.mark.parametrize("again", ["accept", "reject", "release", "renew"])
def test_a_record_cannot_be_given_up_twice_nor_by_a_stranger(again):
    async def scenario(world: World, client: Any) -> None:
        await write(client, *"ab")
        async with made(client) as queue, made(client) as stranger:
            a, b = await queue.take()
            queue.accept(a)
            for records in (a, [b, a]):
                with pytest.raises(InvalidRecordStateError, match="tasks-0 at offset 0"):
                    getattr(queue, again)(records)
            with pytest.raises(InvalidRecordStateError):
                getattr(stranger, again)(b)
            # A refused call gave up nothing.
            queue.accept(b)

    played(scenario)


def test_an_accept_after_the_lock_has_ended_is_refused_by_name():
    async def scenario(world: World, client: Any) -> None:
        await write(client, "a")
        queue = made(client)
        (a,) = await queue.take()
        # The coordinator hears nothing of this worker, and so ends its session.
        queue._core._heart.cancel()
        await asyncio.sleep(3)
        async with made(client) as other:
            (again,) = await other.take()
            assert again.delivery_count == 2
            queue.accept(a)
            with pytest.raises(InvalidRecordStateError, match="tasks-0 at offset 0 had ended"):
                await queue.flush()
            # Each is told once, and the worker goes on under a new session.
            await queue.flush()
            await write(client, "b")
            assert values(await queue.take()) == ["b"]
            await queue.close()

    played(scenario)


def test_a_worker_that_is_killed_loses_its_records_within_a_second():
    async def take_and_wait(client: Any) -> None:
        await made(client).take()
        await asyncio.sleep(1_000)

    async def scenario(world: World, client: Any) -> None:
        await write(client, *"ab")
        doomed = world.client("doomed")
        doomed.spawn(take_and_wait(doomed))
        await asyncio.sleep(1)
        async with made(client) as queue:
            assert await queue.take(timeout_ms=100) == []
            began_s = world.now_s
            world.kill("doomed")
            assert values(await queue.take(timeout_ms=5_000)) == ["a", "b"]
            assert world.now_s - began_s < 1

    played(scenario)


def test_a_record_that_is_worked_on_for_too_long_is_released_unless_renewed():
    async def scenario(world: World, client: Any) -> None:
        await write(client, *"ab")
        async with (
            made(client, record_lock_duration_ms=3_000) as queue,
            made(client, record_lock_duration_ms=3_000) as other,
        ):
            a, b = await queue.take()
            for _ in range(4):
                await asyncio.sleep(1.5)
                queue.renew(a)
            assert values(await other.take()) == ["b"]
            queue.accept(a)
            await queue.flush()
            with pytest.raises(InvalidRecordStateError):
                queue.accept(b)

    played(scenario)


def test_records_of_aborted_and_open_transactions_are_not_delivered_and_leave_no_backlog():
    async def scenario(world: World, client: Any) -> None:
        producer = client.producer(transactional_id="t")
        await producer.init_transactions()
        for value, is_kept in (("lost", False), ("kept", True), ("gone", False)):
            await producer.begin_transaction()
            await producer.send("tasks", value=value.encode(), partition=0)
            await (producer.commit_transaction() if is_kept else producer.abort_transaction())
        await producer.begin_transaction()
        await producer.send("tasks", value=b"open", partition=0)
        await producer.flush()
        async with made(client) as queue:
            records = await queue.take(100)
            assert values(records) == ["kept"]
            assert await queue.take(100, timeout_ms=200) == []
            queue.accept(records)
            await queue.flush()
            assert (await queue.backlog()).total == 0
            await producer.commit_transaction()
            assert values(await queue.take()) == ["open"]
        await producer.close()

    played(scenario)


def test_a_result_and_its_acknowledgement_are_one():
    async def scenario(world: World, client: Any) -> None:
        await write(client, *"ab")
        producer = client.producer(transactional_id="t")
        await producer.init_transactions()
        async with made(client) as queue:
            a, b = await queue.take()
            async with producer.transaction():
                await producer.send("results", value=b"A")
                await producer.send_acknowledgements_to_transaction(a, queue)
                backlog = await queue.backlog()
                assert (backlog.acquired, backlog.pending) == (1, 1)
            await producer.begin_transaction()
            await producer.send("results", value=b"B")
            await producer.send_acknowledgements_to_transaction([b], queue)
            await producer.abort_transaction()
            (again,) = await queue.take()
            assert (again.value, again.delivery_count) == (b.value, 2)
            async with producer.transaction():
                await producer.send("results", value=b"B")
                await producer.send_acknowledgements_to_transaction(again, queue)
            assert (await queue.backlog()).total == 0
        assert values(await read(client, "results")) == ["A", "B"]
        await producer.close()

    played(scenario)


def test_a_transaction_whose_acknowledgement_was_refused_cannot_commit():
    async def scenario(world: World, client: Any) -> None:
        await write(client, *"ab")
        producer = client.producer(transactional_id="t")
        await producer.init_transactions()
        async with made(client) as queue:
            a, b = await queue.take()
            queue.accept(a)
            await producer.begin_transaction()
            with pytest.raises(InvalidRecordStateError):
                await producer.send_acknowledgements_to_transaction([b, a], queue)
            with pytest.raises(OncelogError):
                await producer.commit_transaction()
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_acknowledgements_to_transaction(b, queue)
            assert (await queue.backlog()).total == 0
        await producer.close()

    played(scenario)


def test_what_a_transaction_could_not_accept_is_released():
    async def scenario(world: World, client: Any) -> None:
        await write(client, "a")
        producer = client.producer(transactional_id="t")
        await producer.init_transactions()
        async with made(client) as queue:
            (a,) = await queue.take()
            # No transaction is open.
            with pytest.raises(OncelogError):
                await producer.send_acknowledgements_to_transaction(a, queue)
            assert values(await queue.take()) == ["a"]
        await producer.close()

    played(scenario)


def test_a_record_delivered_too_often_becomes_a_dead_letter():
    async def scenario(world: World, client: Any) -> None:
        await write(client, *"ab")
        async with made(client, max_delivery_count=2, dead_letter_topic="dead") as queue:
            for delivery in (1, 2):
                a, *others = await queue.take()
                assert a.delivery_count == delivery
                queue.release(a)
                queue.accept(others)
                await queue.flush()
            assert await queue.take(timeout_ms=500) == []
            await queue.flush()
            assert (await queue.backlog()).total == 0
        (letter,) = await read(client, "dead")
        assert letter.value == b"a"
        assert dict(letter.headers) == {
            "oncelog.topic": b"tasks",
            "oncelog.partition": b"0",
            "oncelog.offset": b"0",
            "oncelog.delivery_count": b"2",
        }

    played(scenario)


def test_without_a_topic_for_dead_letters_a_record_is_delivered_until_it_is_finished():
    async def scenario(world: World, client: Any) -> None:
        await write(client, "a")
        async with made(client, max_delivery_count=2) as queue:
            for delivery in range(1, 6):
                (a,) = await queue.take()
                assert a.delivery_count == delivery
                queue.release(a)
                await queue.flush()

    played(scenario)


def test_a_take_that_was_interrupted_loses_nothing():
    async def scenario(world: World, client: Any) -> None:
        await write(client, *"ab")
        async with made(client) as queue:
            # As a synchronous call whose thread was interrupted before it had the result.
            assert values(await queue._core.take(10, 1_000)) == ["a", "b"]
            records = await queue.take()
            assert values(records) == ["a", "b"]
            queue.accept(records)
            assert await queue.take(timeout_ms=50) == []

    played(scenario)


@pytest.mark.parametrize(
    "lost", [ShareGroupHeartbeatRequest, ShareAcquireRequest, ShareAcknowledgeRequest]
)
def test_a_reply_that_is_lost_changes_nothing(lost):
    async def scenario(world: World, client: Any) -> None:
        await write(client, *"ab")
        async with made(client) as queue:
            router = queue._core._router
            call, kinds = router.call_group_coordinator, [lost]

            async def lose(group_id: str, request: Any, *, timeout_ms: int) -> Any:
                reply = await call(group_id, request, timeout_ms=timeout_ms)
                if type(request) in kinds:
                    kinds.remove(type(request))
                    return request.failed(ErrorCode.NETWORK_EXCEPTION)
                return reply

            router.call_group_coordinator = lose
            records = await queue.take()
            assert [(r.value, r.delivery_count) for r in records] == [(b"a", 1), (b"b", 1)]
            queue.accept(records)
            await queue.flush()
            assert (kinds, (await queue.backlog()).total) == ([], 0)

    played(scenario)


@pytest.mark.parametrize("is_log_damaged", [False, True])
def test_a_damaged_batch_is_told_once_and_what_is_around_it_is_delivered(is_log_damaged):
    async def scenario(world: World, client: Any) -> None:
        await write(client, *"abcd")
        async with made(client) as queue:
            router = queue._core._router
            call = router.call_leader

            async def damaged(tp: Any, request: Any, **options: Any) -> Any:
                reply = await call(tp, request, **options)
                if not isinstance(request, FetchRequest) or request.fetch_offset > 1:
                    return reply
                if is_log_damaged and request.is_checked and request.fetch_offset == 1:
                    return FetchReply(error=ErrorCode.CORRUPT_MESSAGE, resume_offset=3)
                return structs.replace(reply, records=_with_damage(reply.records, at=1))

            router.call_leader = damaged
            assert values(await queue.take()) == ["a"]
            with pytest.raises(CorruptRecordError, match="tasks-0 at offset 1") as told:
                await queue.take()
            assert told.value.next_offset == (3 if is_log_damaged else 2)
            rest = await queue.take()
            assert values(rest) == (["d"] if is_log_damaged else ["c", "d"])
            await queue.flush()
            backlog = await queue.backlog()
            assert (backlog.available, backlog.acquired) == (0, 1 + len(rest))

    played(scenario)


def _with_damage(records: Any, *, at: int) -> bytes:
    changed = bytearray(records)
    for position, header in iterate_batches(records):
        if header.base_offset == at:
            changed[position + header.size_bytes - 1] ^= 1
    return bytes(changed)


def test_what_waited_to_be_sent_ends_with_the_session():
    """An old acknowledgement is not one of the same record delivered again, to the same worker."""

    async def scenario(world: World, client: Any) -> None:
        await write(client, "a")
        async with made(client) as queue:
            (a,) = await queue.take()
            core = queue._core
            with core._lock:
                core._waiting += core._give_up([a], AcknowledgeType.ACCEPT)
            await other_session(queue)
            with pytest.raises(InvalidRecordStateError, match="tasks-0 at offset 0 had ended"):
                await queue.take()
            (again,) = await queue.take()
            assert again.delivery_count == 2
            queue.accept(again)
            await queue.flush()

    played(scenario)


async def other_session(queue: Any) -> None:
    """The worker's session has ended at the coordinator, and the worker is told."""
    core = queue._core
    request = ShareGroupHeartbeatRequest(
        group_id="g",
        member_id=core._member_id,
        member_epoch=core._epoch,
        topics=core.topics,
        is_leaving=True,
    )
    reply = await core._router.call_group_coordinator("g", request, timeout_ms=1_000)
    assert reply.error is ErrorCode.NONE
    core._lose(core._epoch)


def test_a_take_that_cannot_bury_gives_back_what_it_has_taken():
    async def scenario(world: World, client: Any) -> None:
        await write(client, *"ab")
        async with made(client) as other:
            a, b = await other.take()
            other.release(a)
            await other.flush()
            (a,) = await other.take()
            other.release([a, b])
            await other.flush()
        settings = {"max_delivery_count": 2, "dead_letter_topic": "nowhere"}
        async with made(client, **settings) as queue:
            with pytest.raises(OncelogError):
                await queue.take()
            await queue.flush()
            assert (await queue.backlog()).acquired == 0

    played(scenario)


def test_what_nobody_takes_any_more_goes_to_others():
    async def scenario(world: World, client: Any) -> None:
        await write(client, *"ab")
        settings = {"record_lock_duration_ms": 3_000, "fetch_max_bytes": 1}
        async with made(client, max_partition_fetch_bytes=1, **settings) as idle:
            assert values(await idle.take()) == ["a"]
            async with made(client) as queue:
                assert await queue.take(timeout_ms=1_000) == []
                assert sorted(values(await queue.take(timeout_ms=10_000))) == ["a", "b"]

    played(scenario)


def test_what_was_removed_by_retention_is_skipped():
    async def scenario(world: World, client: Any) -> None:
        await write(client, *"abcd")
        async with made(client) as queue:
            assert values(await queue.take(1)) == ["a"]
            await client.admin().delete_records({TopicPartition("tasks", 0): 3})
            assert values(await queue.take(10)) == ["d"]

    played(scenario)


@pytest.mark.parametrize("order", ["none", "key"])
def test_a_topic_that_is_created_again_begins_anew_whatever_was_held_of_the_former(order):
    async def scenario(world: World, client: Any) -> None:
        await write_keyed(client, "a1", "a2", "b1")
        async with made(client, order=order) as one, made(client, order=order) as other:
            former = await one.take(1)
            assert values(await other.take(1)) == [{"none": "a2", "key": "b1"}[order]]
            admin = client.admin()
            await admin.delete_topic("tasks")
            with contextlib.suppress(UnknownTopicOrPartitionError):
                await other.take(timeout_ms=1_000)
            await admin.create_topic("tasks", 1)
            await write_keyed(client, "a3", "a4", "c1")
            taken: list[Any] = []
            while not taken:
                taken = await other.take(2, timeout_ms=5_000)
            expected = ["a3", "a4"] if order == "none" else ["a3", "c1"]
            assert values(taken) == expected
            assert {record.delivery_count for record in taken} == {1}
            # Its offset is another record's by now.
            one.accept(former)
            with pytest.raises(InvalidRecordStateError, match="tasks-0 at offset 0 had ended"):
                await one.flush()
            other.accept(taken)
            await other.flush()
            left = {"none": "c1", "key": "a4"}[order]
            assert values(await one.take(timeout_ms=5_000)) == [left]

    played(scenario)


def test_the_backlog_tells_what_waits_and_how_old_it_is():
    async def scenario(world: World, client: Any) -> None:
        async with made(client) as queue:
            assert (await queue.backlog()).workers == 0
            await write(client, *"abc")
            await asyncio.sleep(5)
            await queue.take(1)
            backlog = await queue.backlog()
            assert (backlog.available, backlog.acquired, backlog.pending) == (2, 1, 0)
            assert (backlog.total, backlog.workers) == (3, 1)
            assert 4_900 <= backlog.age_ms <= 6_000

    played(scenario)


def test_the_backlog_is_told_before_the_first_worker_and_of_a_topic_that_none_has_joined():
    """An autoscaler with no worker yet must see that there is work."""

    async def scenario(world: World, client: Any) -> None:
        await write(client, *"abc")
        async with made(client) as first:
            await asyncio.sleep(5)
            backlog = await first.backlog()
            assert (backlog.available, backlog.total, backlog.workers) == (3, 3, 0)
            assert backlog.age_ms >= 5_000
            await first.take(1)
            await write(client, "d", topic="dead")
            async with client.queue(["dead", "tasks"], group_id="g") as second:
                backlog = await second.backlog()
                assert (backlog.available, backlog.acquired, backlog.total) == (3, 1, 4)
            async with client.queue("nowhere", group_id="h") as missing:
                with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
                    await missing.backlog()

    played(scenario)


def test_a_consumer_group_is_no_queue_and_a_queue_no_consumer_group():
    async def scenario(world: World, client: Any) -> None:
        await write(client, "a")
        consumer = client.consumer(group_id="c")
        await consumer.subscribe("tasks")
        await consumer.poll(1_000)
        queue = made(client, group_id="c")
        with pytest.raises(InconsistentGroupProtocolError, match="'c' is a consumer group"):
            await queue.take()
        await consumer.close()
        await queue.close()
        async with made(client, group_id="q") as queue:
            await queue.take()
            other = client.consumer(group_id="q")
            await other.subscribe("tasks")
            with pytest.raises(InconsistentGroupProtocolError, match="'q' is the group of a queue"):
                await other.poll(5_000)
            await other.close()

    played(scenario)


def test_wrong_arguments_are_named():
    async def scenario(world: World, client: Any) -> None:
        with pytest.raises(InvalidTopicError, match="no/topic"):
            client.queue("no/topic", group_id="g")
        with pytest.raises(InvalidRequestError, match="topics is empty"):
            client.queue([], group_id="g")
        with pytest.raises(InvalidSettingError, match="group_id is not given"):
            client.queue("tasks")
        await write(client, "a")
        queue = made(client)
        records = await queue.take()
        for wrong in (b"a", None, [*records, 7]):
            for call in (queue.accept, queue.renew, queue.acknowledgements):
                with pytest.raises(TypeError, match=r"is not a record of take\(\)"):
                    call(wrong)
        queue.accept(records)
        for count in (0, 10_001):
            with pytest.raises(InvalidRequestError, match=f"max_records={count}"):
                await queue.take(count)
        await queue.close()
        with pytest.raises(ClientClosedError):
            await queue.take()
        missing = client.queue("nowhere", group_id="g")
        with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
            await missing.take()
        await missing.close()

    played(scenario)
