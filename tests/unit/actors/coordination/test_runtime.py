"""Decide, append, wait, apply, reply: in this order, one transition of a key at a time."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from deadlines import DEADLINE_S
from msgspec import structs

from oncelog.actors.coordination import runtime as coordinator_runtime
from oncelog.actors.coordination.runtime import CoordinatorRuntime
from oncelog.actors.protocol.effects import Decision, LogRecord
from oncelog.actors.protocol.messages.base import Reply
from oncelog.storage.errors import ErrorCode

Body = Callable[["Ledger"], Awaitable[None]]

ONE = (LogRecord(b"k", b"v"),)


class Ledger:
    """A machine that counts: each transition of a key adds one to it."""

    def __init__(self, harness: Any) -> None:
        self.harness = harness
        self.applied: list[bytes] = []
        self.abandoned: list[str] = []
        self.failures: list[BaseException] = []
        self.runtime = CoordinatorRuntime(
            replica=harness.replica,
            clock=harness.clock,
            apply=lambda record: self.apply(record),
            abandon=self.abandoned.append,
            on_failure=self.failures.append,
        )

    def apply(self, record: LogRecord) -> None:
        assert record.value is not None
        self.applied.append(record.value)

    async def add(self, key: str = "a", **fields: Any) -> Reply:
        def decide(_now_ms: int) -> Decision[Reply]:
            value = b"%s%d" % (key.encode(), len(self.applied))
            return Decision(reply=Reply(), records=(LogRecord(b"k", value),))

        return await self.runtime.execute(key, decide, **fields)


def play(harness: Any, body: Body) -> None:
    async def run() -> None:
        await harness.start()
        try:
            await body(Ledger(harness))
        finally:
            await harness.replica.stop()

    asyncio.run(run())


def hold_the_disk(harness: Any) -> asyncio.Event:
    gate = asyncio.Event()
    run = harness.background.run

    async def held(work: Any, **_: Any) -> Any:
        await gate.wait()
        return await run(work)

    harness.background.run = held
    return gate


def count_syncs(harness: Any) -> list[Any]:
    syncs: list[Any] = []
    run = harness.background.run

    async def counted(work: Any, **_: Any) -> Any:
        syncs.append(work)
        return await run(work)

    harness.background.run = counted
    return syncs


def test_nothing_is_applied_or_answered_before_it_is_durable(harness: Any) -> None:
    async def body(ledger: Ledger) -> None:
        gate = hold_the_disk(harness)
        adding = asyncio.create_task(ledger.add())
        done, _ = await asyncio.wait({adding}, timeout=0.05)
        assert not done
        assert ledger.applied == []
        gate.set()
        assert (await adding).error is ErrorCode.NONE
        assert ledger.applied == [b"a0"]

    play(harness, body)


def test_beyond_those_that_may_wait_for_a_key_a_request_is_to_come_again(
    harness: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(coordinator_runtime, "WAITING_PER_KEY_MAX", 2)

    def refused(error: ErrorCode, detail: str) -> Reply:
        return Reply(error=error, detail=detail)

    async def body(ledger: Ledger) -> None:
        gate = hold_the_disk(harness)
        adding = [asyncio.create_task(ledger.add(refused=refused)) for _ in range(5)]
        own = asyncio.create_task(ledger.add())
        other = asyncio.create_task(ledger.add("b", refused=refused))
        await asyncio.wait(adding[3:])
        assert {task.result().error for task in adding[3:]} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert adding[4].result().detail == "2 requests wait already for one of the same key"
        assert not any(task.done() for task in (*adding[:3], own, other))
        gate.set()
        replies = await asyncio.gather(*adding[:3], own, other)
        assert {reply.error for reply in replies} == {ErrorCode.NONE}
        assert (await ledger.add(refused=refused)).error is ErrorCode.NONE
        assert len(ledger.applied) == 6

    play(harness, body)


def test_a_record_that_may_be_repeated_is_applied_at_once(harness: Any) -> None:
    async def body(ledger: Ledger) -> None:
        gate = hold_the_disk(harness)
        reply = await ledger.add(is_durable_before_reply=False)
        assert (reply.error, ledger.applied) == (ErrorCode.NONE, [b"a0"])
        gate.set()

    play(harness, body)


def test_a_record_nobody_waits_for_shares_the_sync_of_the_next(harness: Any) -> None:
    async def body(ledger: Ledger) -> None:
        syncs = count_syncs(harness)
        await ledger.add(is_durable_before_reply=False)
        assert harness.replica.machine.high_watermark == 0
        assert (await ledger.add()).error is ErrorCode.NONE
        assert harness.replica.machine.high_watermark == 2
        assert len(syncs) == 1

    play(harness, body)


def test_a_record_nobody_waits_for_is_synced_by_itself_in_a_while(harness: Any) -> None:
    async def body(ledger: Ledger) -> None:
        await ledger.add(is_durable_before_reply=False)
        await asyncio.wait_for(harness.replica.progress(10_000), DEADLINE_S)
        assert harness.replica.machine.high_watermark == 1

    play(harness, body)


def test_a_record_nobody_waits_for_is_there_after_a_stop(harness: Any) -> None:
    async def body(ledger: Ledger) -> None:
        await ledger.add(is_durable_before_reply=False)
        await harness.replica.stop()
        await harness.start()
        assert harness.replica.machine.log_end_offset == 1

    play(harness, body)


def test_transitions_of_one_key_see_each_other(harness: Any) -> None:
    async def body(ledger: Ledger) -> None:
        await asyncio.gather(*(ledger.add() for _ in range(5)))
        assert ledger.applied == [b"a%d" % n for n in range(5)]

    play(harness, body)


def test_keys_do_not_wait_for_each_other(harness: Any) -> None:
    async def body(ledger: Ledger) -> None:
        gate = hold_the_disk(harness)
        adding = [asyncio.create_task(ledger.add(key)) for key in ("a", "b")]
        await asyncio.wait(adding, timeout=0.05)
        assert harness.replica.machine.log_end_offset == 2
        gate.set()
        await asyncio.gather(*adding)

    play(harness, body)


def test_a_record_that_is_committed_in_another_epoch_than_decided_is_not_applied(
    harness: Any,
) -> None:
    """Whoever leads in the newer epoch has loaded it, and decided on: see I-18."""

    async def body(ledger: Ledger) -> None:
        gate = hold_the_disk(harness)
        adding = asyncio.create_task(ledger.add())
        await asyncio.wait({adding}, timeout=0.05)
        epoch = harness.replica.leader_epoch
        leadership = structs.replace(harness.replica.leadership, leader_epoch=epoch + 1)
        harness.replica.leadership = leadership
        gate.set()
        assert (await adding).error is ErrorCode.NOT_COORDINATOR
        assert (ledger.applied, ledger.abandoned) == ([], ["a"])

    play(harness, body)


def test_a_cancelled_caller_leaves_the_transition_to_end(harness: Any) -> None:
    async def body(ledger: Ledger) -> None:
        gate = hold_the_disk(harness)
        adding = asyncio.create_task(ledger.add())
        await asyncio.wait({adding}, timeout=0.05)
        adding.cancel()
        gate.set()
        await ledger.add("b")
        assert b"a0" in ledger.applied

    play(harness, body)


def test_a_failed_append_takes_the_pending_mark_back_and_applies_nothing(harness: Any) -> None:
    async def body(ledger: Ledger) -> None:
        async def broken(_work: Any, **_: Any) -> Any:
            raise OSError(errno.EIO, "gone")

        harness.background.run = broken
        reply = await ledger.add()
        assert reply.error is ErrorCode.NOT_COORDINATOR
        assert (ledger.applied, ledger.abandoned) == ([], ["a"])

    play(harness, body)


def test_an_append_that_raises_takes_the_pending_mark_back_and_the_key_can_be_used_again(
    harness: Any,
) -> None:
    """1. A transition is decided. 2. Its append raises. 3. The next one of the key is served."""

    async def body(ledger: Ledger) -> None:
        append = harness.replica.append

        def broken(*_records: Any, **_fields: Any) -> Any:
            harness.replica.append = append
            raise ZeroDivisionError

        harness.replica.append = broken
        with pytest.raises(ZeroDivisionError):
            await ledger.add()
        assert (ledger.applied, ledger.abandoned) == ([], ["a"])
        assert (await ledger.add()).error is ErrorCode.NONE
        assert (ledger.applied, ledger.abandoned) == ([b"a0"], ["a"])

    play(harness, body)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_committed_record_that_cannot_be_applied_ends_the_process(
    harness: Any, is_cancelled: bool
) -> None:
    """1. A record is committed. 2. To apply it raises. 3. The process hears of it, also when the
    caller has gone away: what it holds is no longer what its log says.
    """

    async def body(ledger: Ledger) -> None:
        ledger.apply = lambda _record: 1 // 0  # type: ignore[method-assign]
        adding = asyncio.create_task(ledger.add())
        if is_cancelled:
            await asyncio.sleep(0)
            adding.cancel()
        with pytest.raises((ZeroDivisionError, asyncio.CancelledError)):
            await adding
        await harness.replica.committed(1)
        assert [type(error) for error in ledger.failures] == [ZeroDivisionError]

    play(harness, body)


def test_a_bug_that_no_caller_can_be_told_of_ends_the_process(harness: Any) -> None:
    """1. A transition waits for its key. 2. Its caller goes away. 3. To decide it raises."""

    async def body(ledger: Ledger) -> None:
        def decide(_now_ms: int) -> Decision[Reply]:
            return Decision(reply=Reply(), records=ONE)

        first, second, third = (
            asyncio.create_task(ledger.runtime.execute("a", deciding))
            for deciding in (decide, lambda _now_ms: 1 // 0, decide)
        )
        await asyncio.sleep(0)
        second.cancel()
        await first
        await third
        assert [type(error) for error in ledger.failures] == [ZeroDivisionError]
        assert ledger.applied == [b"v", b"v"]

    play(harness, body)


def test_what_a_transition_raises_to_its_caller_is_told_to_nobody_else(harness: Any) -> None:
    async def body(ledger: Ledger) -> None:
        with pytest.raises(ZeroDivisionError):
            await ledger.runtime.execute("a", lambda _now_ms: 1 // 0)
        await asyncio.sleep(0)
        assert ledger.failures == []

    play(harness, body)


def test_a_long_queue_of_decisions_without_records_is_no_deep_recursion(harness: Any) -> None:
    async def body(ledger: Ledger) -> None:
        refusal = Decision(reply=Reply(error=ErrorCode.PRODUCER_FENCED))
        replies = await asyncio.gather(
            ledger.add(), *(ledger.runtime.execute("a", lambda _: refusal) for _ in range(3_000))
        )
        assert {reply.error for reply in replies[1:]} == {ErrorCode.PRODUCER_FENCED}
        assert not ledger.runtime._queues

    play(harness, body)


def test_a_decision_without_records_is_answered_at_once(harness: Any) -> None:
    async def body(ledger: Ledger) -> None:
        refusal = Decision(reply=Reply(error=ErrorCode.PRODUCER_FENCED))
        reply = await ledger.runtime.execute("a", lambda _now_ms: refusal)
        assert reply.error is ErrorCode.PRODUCER_FENCED
        assert harness.replica.machine.log_end_offset == 0

    play(harness, body)


def test_requests_are_sent_away_until_the_machine_is_loaded(harness: Any) -> None:
    async def body(ledger: Ledger) -> None:
        assert ledger.runtime.unavailable() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        ledger.runtime.is_loaded = True
        assert ledger.runtime.unavailable() is ErrorCode.NONE

    play(harness, body)
