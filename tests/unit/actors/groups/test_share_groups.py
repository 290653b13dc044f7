"""Share groups at their coordinator: what is durable, who is woken, and whose locks end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from virtual_time import give_turns

from oncelog.actors.groups import share_coordinator
from oncelog.actors.protocol.messages.group import DescribeGroupsRequest
from oncelog.actors.protocol.messages.share import (
    AcknowledgedRun,
    AcknowledgeType,
    DescribeShareGroupRequest,
    PartitionAcknowledgements,
    ShareAcknowledgeRequest,
    ShareAcquireRequest,
    ShareGroupHeartbeatRequest,
    TxnShareAcknowledgeRequest,
)
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.actors.replica.replica_log import AppendOutcome
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import TopicPartition

TP = TopicPartition("flights", 0)
GROUP = "billing"
FLIGHTS_ID = "f1" * 16
NONE = ErrorCode.NONE
PROCESS = DriverProcess(machine="here", process_id=5, start_ticks=1)
Shard = Any
Play = Callable[[Callable[[Shard], Awaitable[None]]], None]


class Worker:
    """A member with its epoch and sequences."""

    def __init__(self, shard: Shard, member_id: str) -> None:
        self.shard = shard
        self.member_id = member_id
        self.epoch = 0
        self.acquisitions = self.acknowledgements = 0

    @property
    def _named(self) -> dict[str, Any]:
        return {"group_id": GROUP, "member_id": self.member_id, "member_epoch": self.epoch}

    async def beat(self, **fields: Any) -> ErrorCode:
        request = ShareGroupHeartbeatRequest(**{**self._named, "topics": ("flights",), **fields})
        reply = await self.shard.coordinator.share_group_heartbeat(request)
        self.epoch = reply.member_epoch if reply.error is NONE else self.epoch
        return reply.error

    async def acquire(self, count: int, *, max_wait_ms: int = 0) -> Any:
        request = ShareAcquireRequest(
            **self._named,
            topics=("flights",),
            sequence=self.acquisitions + 1,
            max_records=count,
            max_wait_ms=max_wait_ms,
        )
        reply = await self.shard.coordinator.share_acquire(request)
        if reply.error is not NONE:
            return reply.error
        self.acquisitions += bool(reply.acquired)
        return [(run.first_offset, run.last_offset) for run in reply.acquired]

    def _parts(self, first: int, last: int, kind: AcknowledgeType) -> Any:
        run = AcknowledgedRun(first, last, kind)
        return (PartitionAcknowledgements(topic_partition=TP, topic_id=FLIGHTS_ID, runs=(run,)),)

    async def acknowledge(
        self, first: int, last: int, kind: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> Any:
        self.acknowledgements += 1
        request = ShareAcknowledgeRequest(
            **self._named,
            sequence=self.acknowledgements,
            acknowledgements=self._parts(first, last, kind),
        )
        reply = await self.shard.coordinator.share_acknowledge(request)
        return reply.error if reply.error is not NONE else reply.refused

    async def accept_in(self, first: int, last: int, *, pid: int = 7, epoch: int = 0) -> ErrorCode:
        request = TxnShareAcknowledgeRequest(
            **{**self.shard.transaction(pid, epoch), **self._named},
            acknowledgements=self._parts(first, last, AcknowledgeType.ACCEPT),
        )
        reply = await self.shard.coordinator.txn_share_acknowledge(request)
        if reply.error is NONE:
            self.shard._sequences[pid, epoch] = request.base_sequence + 1
        return reply.error


async def counts(shard: Shard) -> tuple[int, int, int]:
    request = DescribeShareGroupRequest(group_id=GROUP)
    reply = await shard.coordinator.describe_share_group(request)
    assert reply.error is NONE
    (one,) = reply.partitions
    return one.available_count, one.acquired_count, one.pending_count


def with_records(play: Play, scenario: Callable[[Shard], Awaitable[None]], end: int = 10) -> None:
    async def begin(shard: Shard) -> None:
        shard.controller.ends[TP] = end
        await scenario(shard)

    play(begin)


async def worker(shard: Shard, member_id: str = "a", **fields: Any) -> Worker:
    made = Worker(shard, member_id)
    assert await made.beat(**fields) is NONE
    return made


# --- durable --------------------------------------------------------------------------------------


def test_what_was_acquired_and_acknowledged_is_known_to_the_next_coordinator(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        a = await worker(shard)
        assert await a.acquire(4) == [(0, 3)]
        assert await a.acknowledge(0, 1) == ()
        await shard.crash()
        assert await counts(shard) == (6, 2, 0)
        assert await a.beat() is NONE
        assert await a.acknowledge(2, 3) == ()
        assert await counts(shard) == (6, 0, 0)

    with_records(play, scenario)


def test_nothing_is_answered_before_it_is_durable(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        a = await worker(shard)
        assert await a.acquire(4) == [(0, 3)]
        for call in (lambda: a.acquire(1), lambda: a.acknowledge(0, 0)):
            shard.background.gate.clear()
            calling = asyncio.ensure_future(call())
            await give_turns(30)
            assert not calling.done()
            shard.background.gate.set()
            await calling

    with_records(play, scenario)


def test_acknowledgements_that_arrive_during_a_write_share_the_next_record(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        workers = [await worker(shard, name) for name in "abcd"]
        for number, one in enumerate(workers):
            assert await one.acquire(1) == [(number, number)]
        machine = shard.coordinator.replica.machine
        shard.background.gate.clear()
        before = machine.log_end_offset
        calls = [asyncio.ensure_future(one.acknowledge(n, n)) for n, one in enumerate(workers)]
        await give_turns(30)
        shard.background.gate.set()
        assert await asyncio.gather(*calls) == [()] * 4
        # A record of each member, and of the partition one for the first call and one for the rest.
        assert machine.log_end_offset - before <= 6

    with_records(play, scenario)


def test_a_call_whose_record_could_not_be_written_changed_nothing(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        a = await worker(shard)
        assert await a.acquire(2) == [(0, 1)]
        shard.background.is_broken = True
        assert await a.acknowledge(0, 0) is ErrorCode.NOT_COORDINATOR
        await shard.crash()
        assert await counts(shard) in [(8, 2, 0), (8, 1, 0)]

    with_records(play, scenario)


# --- waiting --------------------------------------------------------------------------------------


def test_a_waiting_call_gets_what_another_releases_or_what_is_new(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        a, b = await worker(shard, "a"), await worker(shard, "b")
        assert await a.acquire(5) == [(0, 1)]
        waiting = asyncio.ensure_future(b.acquire(5, max_wait_ms=5_000))
        await give_turns(30)
        assert not waiting.done()
        await a.acknowledge(1, 1, AcknowledgeType.RELEASE)
        assert await waiting == [(1, 1)]
        waiting = asyncio.ensure_future(b.acquire(5, max_wait_ms=5_000))
        await give_turns(30)
        shard.controller.ends[TP] = 3
        assert await waiting == [(2, 2)]
        assert await b.acquire(5, max_wait_ms=20) == []

    with_records(play, scenario, end=2)


def test_every_waiting_call_gets_some_of_what_is_new(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        workers = [await worker(shard, name) for name in "abcd"]
        calls = [asyncio.ensure_future(one.acquire(1, max_wait_ms=5_000)) for one in workers]
        await give_turns(50)
        shard.controller.ends[TP] = 4
        assert sorted(await asyncio.gather(*calls)) == [[(n, n)] for n in range(4)]

    with_records(play, scenario, end=0)


def test_no_call_waits_longer_than_any_may(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_coordinator, "ACQUIRE_WAIT_MAX_MS", 20)

    async def scenario(shard: Shard) -> None:
        a = await worker(shard)
        assert await asyncio.wait_for(a.acquire(1, max_wait_ms=10**9), 10) == []

    with_records(play, scenario, end=0)


# --- sessions -------------------------------------------------------------------------------------


def test_the_locks_of_a_process_that_is_gone_end_at_once(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        a, b = await worker(shard, "a", process=PROCESS), await worker(shard, "b")
        assert await a.acquire(10) == [(0, 9)]
        waiting = asyncio.ensure_future(b.acquire(10, max_wait_ms=5_000))
        await give_turns(30)
        shard.controller.gone.add(PROCESS)
        assert await waiting == [(0, 9)]
        assert await a.acknowledge(0, 0) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await a.beat() is ErrorCode.UNKNOWN_MEMBER_ID

    with_records(play, scenario)


def test_the_locks_of_a_silent_member_end_and_those_of_one_that_is_heard_do_not(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 0.0
    monkeypatch.setattr(share_coordinator, "loop_ms", lambda: now_ms)

    async def scenario(shard: Shard) -> None:
        nonlocal now_ms
        a, b = await worker(shard, "a"), await worker(shard, "b")
        assert await a.acquire(2) == [(0, 1)]
        assert await b.acquire(2) == [(2, 3)]
        now_ms = 9_000
        assert await b.beat() is NONE
        now_ms = 11_000
        await shard.coordinator._shares.end_sessions()
        await give_turns(50)
        assert await a.acknowledge(0, 0) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await b.acknowledge(2, 2) == ()

    with_records(play, scenario)


def test_a_new_coordinator_gives_each_member_a_whole_session(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        a = await worker(shard, "a", process=PROCESS)
        assert await a.acquire(2) == [(0, 1)]
        await shard.crash()
        await shard.coordinator._shares.end_sessions()
        await give_turns(50)
        assert await a.acknowledge(0, 0) == ()
        # It knows the member's process too, from its record.
        shard.controller.gone.add(PROCESS)
        await shard.coordinator._shares.end_sessions()
        await give_turns(50)
        assert await a.acknowledge(1, 1) is ErrorCode.UNKNOWN_MEMBER_ID

    with_records(play, scenario)


# --- transactions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("moves", [True, False])
def test_an_acceptance_in_a_transaction_waits_for_its_marker(
    play: Play, committed: bool, moves: bool
) -> None:
    async def scenario(shard: Shard) -> None:
        a = await worker(shard)
        assert await a.acquire(3) == [(0, 2)]
        assert await a.accept_in(0, 1) is NONE
        assert await counts(shard) == (7, 1, 2)
        if moves:
            await shard.crash()
        assert await shard.mark(committed=committed) is NONE
        assert await counts(shard) == ((7, 1, 0) if committed else (9, 1, 0))
        await give_turns(50)
        await shard.crash()
        assert await counts(shard) == ((7, 1, 0) if committed else (9, 1, 0))
        assert await a.acknowledge(2, 2) == ()
        assert shard.coordinator._shares._shares.find(GROUP).is_settled

    with_records(play, scenario)


def test_a_repeated_acceptance_in_a_transaction_is_one(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        a = await worker(shard)
        assert await a.acquire(3) == [(0, 2)]
        assert await a.accept_in(0, 1) is NONE
        shard._sequences[7, 0] = 0
        assert await a.accept_in(0, 1) is NONE
        assert await counts(shard) == (7, 1, 2)

    with_records(play, scenario)


def test_a_late_acceptance_of_an_ended_transaction_is_refused(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        a = await worker(shard)
        assert await a.acquire(3) == [(0, 2)]
        assert await a.accept_in(0, 0) is NONE
        assert await shard.mark(committed=True) is NONE
        assert await a.accept_in(1, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await counts(shard) == (7, 2, 0)

    with_records(play, scenario)


def test_a_coordinator_that_dies_after_a_marker_leaves_it_to_the_next_to_settle_it(
    play: Play,
) -> None:
    async def scenario(shard: Shard) -> None:
        a = await worker(shard)
        assert await a.acquire(3) == [(0, 2)]
        assert await a.accept_in(0, 0) is NONE
        assert await shard.mark(committed=True) is NONE
        await shard.crash()
        # Its turn comes after that which settles.
        assert await a.acknowledge(1, 1) == ()
        assert shard.coordinator._shares._shares.find(GROUP).is_settled
        assert await counts(shard) == (7, 1, 0)

    with_records(play, scenario)


def test_an_acceptance_does_not_rest_on_what_could_not_be_written(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one turn the member joins anew, which cannot be written, and accepts as it was before."""

    async def scenario(shard: Shard) -> None:
        a = await worker(shard)
        assert await a.acquire(3) == [(0, 2)]
        shard.background.gate.clear()
        writing = asyncio.ensure_future(a.acknowledge(2, 2))
        await give_turns(10)
        again = Worker(shard, "a")
        joining = asyncio.ensure_future(again.beat())
        accepting = asyncio.ensure_future(a.accept_in(0, 0))
        await give_turns(10)
        queue = shard.coordinator._queue
        append = queue.append

        def fail_plain(group_id: str, records: Any, now_ms: int, transaction: Any = None) -> Any:
            if transaction is None:
                return AppendOutcome(error=ErrorCode.MESSAGE_TOO_LARGE)
            return append(group_id, records, now_ms, transaction)

        monkeypatch.setattr(queue, "append", fail_plain)
        shard.background.gate.set()
        assert await writing == ()
        assert await joining is ErrorCode.UNKNOWN_SERVER_ERROR
        assert await accepting is NONE

    with_records(play, scenario)


def test_a_turn_that_follows_a_marker_in_the_log_knows_its_outcome(play: Play) -> None:
    """The marker is appended and not committed when the next request comes."""

    async def scenario(shard: Shard) -> None:
        a = await worker(shard)
        assert await a.acquire(3) == [(0, 2)]
        assert await a.accept_in(0, 0) is NONE
        shard.background.gate.clear()
        marking = asyncio.ensure_future(shard.mark(committed=True))
        await give_turns(10)
        acknowledging = asyncio.ensure_future(a.acknowledge(1, 1))
        await give_turns(30)
        shard.background.gate.set()
        assert await marking is NONE
        assert await acknowledging == ()
        await give_turns(50)
        await shard.crash()
        assert await counts(shard) == (7, 1, 0)

    with_records(play, scenario)


@pytest.mark.parametrize(
    ("who", "is_reloaded"), [("leader", False), ("leader", True), ("controller", True)]
)
def test_a_backlog_whose_end_is_not_known_is_refused_and_not_told_as_empty(
    play: Play, who: str, is_reloaded: bool
) -> None:
    async def scenario(shard: Shard) -> None:
        a = await worker(shard)
        assert await a.acquire(3) == [(0, 2)]
        assert await a.acknowledge(0, 2) == ()
        if is_reloaded:
            await shard.crash()
        shard.controller.is_away = who == "controller"
        shard.controller.silent = {TP} if who == "leader" else set()
        request = DescribeShareGroupRequest(group_id=GROUP)
        reply = await shard.coordinator.describe_share_group(request)
        assert reply.error.retriable
        shard.controller.is_away, shard.controller.silent = False, set()
        assert await counts(shard) == (7, 0, 0)

    with_records(play, scenario)


def test_the_backlog_of_each_queue_is_reported_and_zero_once_it_is_gone(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 0.0
    monkeypatch.setattr(share_coordinator, "loop_ms", lambda: now_ms)
    reported: dict[str, float] = {}

    class Sink:
        def set(self, metric: Any, value: float, tags: Any) -> None:
            assert tags == {"group": GROUP}
            reported[metric.name] = value

    async def report(shard: Shard) -> list[float]:
        shard.coordinator.report_metrics(Sink())
        await give_turns(30)
        return [reported["queue_backlog"], reported["queue_oldest_unfinished_ms"]]

    async def scenario(shard: Shard) -> None:
        nonlocal now_ms
        a = await worker(shard)
        assert await a.acquire(3) == [(0, 2)]
        assert await a.acknowledge(1, 1) == ()
        assert await report(shard) == [9, 0]
        now_ms = 5_000
        assert await report(shard) == [9, 5_000]
        assert await a.acknowledge(0, 0) == ()
        # What is new is told at the next report.
        shard.controller.ends[TP] = 12
        assert await report(shard) == [8, 0]
        assert await report(shard) == [10, 0]
        assert await a.beat(is_leaving=True) is NONE
        assert await shard.delete() is NONE
        assert await report(shard) == [0, 0]

    with_records(play, scenario)


# --- other groups ---------------------------------------------------------------------------------


def test_a_queue_and_a_consumer_group_with_one_id_are_refused_by_name(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        await worker(shard)
        joined = await shard.join()
        assert joined.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert f"{GROUP!r} is the group of a queue" in joined.detail
        assert await shard.commit(1) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert await shard.txn_commit(1) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    with_records(play, scenario)


def test_a_queue_cannot_take_the_id_of_a_consumer_group(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        assert await shard.commit(1) is NONE
        request = ShareGroupHeartbeatRequest(group_id=GROUP, member_id="a", topics=("flights",))
        reply = await shard.coordinator.share_group_heartbeat(request)
        assert reply.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert f"{GROUP!r} is a consumer group" in reply.detail

    with_records(play, scenario)


def test_a_queues_group_is_listed_and_deleted_once_it_is_empty(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        a = await worker(shard)
        assert await a.acquire(3) == [(0, 2)]
        reply = await shard.coordinator.describe_groups(DescribeGroupsRequest())
        (group,) = reply.groups
        assert (group.protocol_type, group.state, len(group.members)) == ("share", "Stable", 1)
        assert await shard.delete() is ErrorCode.NON_EMPTY_GROUP
        assert await a.beat(is_leaving=True) is NONE
        assert await shard.delete() is NONE
        assert await shard.delete() is ErrorCode.GROUP_ID_NOT_FOUND
        await shard.crash()
        assert (await shard.coordinator.describe_groups(DescribeGroupsRequest())).groups == ()

    with_records(play, scenario)


# --- bounds and ends ------------------------------------------------------------------------------


def test_calls_beyond_those_that_may_wait_for_a_turn_are_refused(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_coordinator, "WAITING_MAX", 2)

    async def scenario(shard: Shard) -> None:
        a = await worker(shard)
        assert await a.acquire(1) == [(0, 0)]
        shard.background.gate.clear()
        writing = asyncio.ensure_future(a.acknowledge(0, 0))
        await give_turns(10)
        others = [Worker(shard, name) for name in "bcd"]
        calls = [asyncio.ensure_future(one.beat()) for one in others]
        await give_turns(10)
        assert await calls[2] is ErrorCode.COORDINATOR_NOT_AVAILABLE
        shard.background.gate.set()
        assert await asyncio.gather(writing, *calls[:2]) == [(), NONE, NONE]

    with_records(play, scenario)


def test_all_calls_of_a_coordinator_that_resigns_are_answered(play: Play) -> None:
    async def scenario(shard: Shard) -> None:
        a, b = await worker(shard, "a"), await worker(shard, "b")
        assert await a.acquire(10) == [(0, 9)]
        parked = asyncio.ensure_future(b.acquire(1, max_wait_ms=20_000))
        await give_turns(30)
        shard.background.gate.clear()
        writing = asyncio.ensure_future(a.acknowledge(0, 0))
        await give_turns(10)
        shard.coordinator.resign()
        assert await writing is ErrorCode.NOT_COORDINATOR
        assert (await parked).retriable
        shard.background.gate.set()

    with_records(play, scenario)


# --- the end --------------------------------------------------------------------------------------


def test_a_bug_in_one_turn_leaves_no_call_that_waits_for_the_next_without_an_answer(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(shard: Shard) -> None:
        a = await worker(shard)
        shares = shard.coordinator._shares

        is_written, may_go_on = asyncio.Event(), asyncio.Event()

        async def broken(_: object) -> ErrorCode:
            is_written.set()
            await may_go_on.wait()
            raise RuntimeError("a bug")

        monkeypatch.setattr(shares, "_committed", broken)
        first = asyncio.ensure_future(a.beat(member_epoch=0))
        await is_written.wait()
        second = asyncio.ensure_future(a.beat(member_epoch=0))
        await give_turns()
        may_go_on.set()
        _, waiting = await asyncio.wait((first, second), timeout=5)
        assert not waiting
        for calling in (first, second):
            with pytest.raises(RuntimeError, match="a bug"):
                calling.result()
        assert [str(failure) for failure in shard.failures] == ["a bug"]
        shard.failures.clear()

    with_records(play, scenario)
