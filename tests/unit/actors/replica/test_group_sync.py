"""Which appends share a sync, where it runs, and that nothing is shown before it has returned."""

from __future__ import annotations

import asyncio
import errno
import gc
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from msgspec import structs
from virtual_time import give_turns

from oncelog.actors.protocol.effects import LogRecord
from oncelog.actors.protocol.partition.partition_machine import PartitionMachine
from oncelog.actors.replica.group_sync import SMALL_BYTES
from oncelog.storage.disk.file_system import RealFileHandle, RealFileSystem
from oncelog.storage.errors import ErrorCode, InvariantViolation
from oncelog.storage.log.partition import PartitionLog
from oncelog.storage.log.side_files import read_recovery_checkpoint

TOPIC_ID = "a" * 32


class SteppedBackground:
    """Does the work that it is given when it is told to; at once only ``if is_quick``."""

    def __init__(self) -> None:
        self.is_quick = False
        self.is_broken = False
        self.done_now = 0
        self.given: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self.are_small: list[bool] = []
        self.is_open = True

    def run(self, work: Callable[[], Any], *, is_small: bool = False) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.are_small.append(is_small)
        self.given.append((work, future))
        if self.is_open or (is_small and self.is_quick):
            self.done_now += not self.is_open
            self.step()
        return future

    def step(self) -> None:
        """Do the oldest piece of work."""
        work, future = self.given.pop(0)
        if self.is_broken:
            future.set_exception(OSError(errno.EIO, "the disk is gone"))
        else:
            future.set_result(work())


class Table:
    """A leader on a background that the test steps, and the replies of its producers."""

    def __init__(self, harness: Any) -> None:
        self.harness = harness
        self.background = harness.background = SteppedBackground()
        self.replies: list[asyncio.Task[Any]] = []

    @property
    def replica(self) -> Any:
        return self.harness.replica

    async def produce(self, *sizes: int, **fields: Any) -> None:
        """Producers that are ready in one turn."""
        for size in sizes:
            batch = self.harness.batch(b"x" * size)
            self.replies.append(asyncio.create_task(self.harness.produce(batch, **fields)))
        await give_turns()

    async def step(self) -> None:
        self.background.step()
        await give_turns()

    @property
    def answered(self) -> list[ErrorCode | None]:
        return [task.result().error if task.done() else None for task in self.replies]


def play(harness: Any, scenario: Callable[[Table], Any]) -> None:
    async def body() -> None:
        table = Table(harness)
        await harness.start()
        table.background.is_open = False
        try:
            await scenario(table)
        finally:
            table.background.is_open = True
            while table.background.given:
                table.background.step()
            await harness.replica.stop()

    # The loop of production, whose handles are not asyncio's own.
    uvloop.run(body())


def test_appends_of_one_turn_share_a_sync_and_are_answered_after_it(harness: Any) -> None:
    async def scenario(table: Table) -> None:
        await table.produce(100, 100, 100)
        assert len(table.background.given) == 1
        assert table.answered == [None] * 3
        assert table.replica.machine.high_watermark == 0
        await table.step()
        assert table.answered == [ErrorCode.NONE] * 3
        assert table.replica.machine.high_watermark == 3
        assert not table.background.given

    play(harness, scenario)


def test_appends_made_during_a_sync_share_the_next_one(harness: Any) -> None:
    async def scenario(table: Table) -> None:
        await table.produce(100)
        await table.produce(100)
        await table.produce(100)
        assert len(table.background.given) == 1
        await table.step()
        assert table.answered == [ErrorCode.NONE, None, None]
        assert len(table.background.given) == 1
        await table.step()
        assert table.answered == [ErrorCode.NONE] * 3

    play(harness, scenario)


def test_a_short_sync_is_done_in_the_turn_of_its_appends(harness: Any) -> None:
    async def scenario(table: Table) -> None:
        table.background.is_quick = True
        await table.produce(100, 100)
        assert table.answered == [ErrorCode.NONE] * 2
        assert (table.background.done_now, table.background.given) == (1, [])

    play(harness, scenario)


def test_a_sync_of_many_bytes_or_behind_another_is_not_done_at_once(harness: Any) -> None:
    async def scenario(table: Table) -> None:
        table.background.is_quick = True
        await table.produce(SMALL_BYTES)
        await table.produce(100)
        assert (table.background.done_now, len(table.background.given)) == (0, 1)
        assert table.answered == [None] * 2
        await table.step()
        assert table.answered == [ErrorCode.NONE] * 2
        assert table.background.done_now == 1

    play(harness, scenario)


def test_what_nobody_waits_for_is_not_synced_at_once(harness: Any) -> None:
    harness.settings = {"flush": "os"}

    async def scenario(table: Table) -> None:
        table.background.is_quick = True
        await table.produce(100)
        assert table.answered == [ErrorCode.NONE]
        assert (table.background.done_now, len(table.background.given)) == (0, 1)

    play(harness, scenario)


@pytest.mark.parametrize(("size", "is_small"), [(100, True), (SMALL_BYTES, False)])
def test_a_round_says_whether_it_is_one_of_those_that_may_run_in_the_turn(
    harness: Any, size: int, is_small: bool
) -> None:
    async def scenario(table: Table) -> None:
        await table.produce(size)
        assert table.background.are_small[-1] is is_small

    play(harness, scenario)


@pytest.mark.parametrize("is_quick", [False, True])
def test_who_waits_is_not_kept_by_what_nobody_waits_for(harness: Any, is_quick: bool) -> None:
    """A COMPLETE record may stay unsynced for a while; the next enrolment may not."""

    async def scenario(table: Table) -> None:
        table.background.is_open = True
        table.background.is_quick = is_quick
        now_ms = harness.clock.now_ms()
        later = table.replica.append([LogRecord(b"k", b"v")], now_ms=now_ms, is_awaited=False)
        await give_turns()
        assert table.replica.machine.high_watermark < later.next_offset
        await table.produce(100)
        assert table.answered == [ErrorCode.NONE]

    play(harness, scenario)


@pytest.mark.parametrize("is_quick", [False, True])
def test_a_sync_that_fails_answers_no_append_with_success(harness: Any, is_quick: bool) -> None:
    async def scenario(table: Table) -> None:
        table.background.is_quick = is_quick
        table.background.is_broken = True
        await table.produce(100, 100)
        if not is_quick:
            await table.step()
        assert table.answered == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        assert table.replica.machine.high_watermark == 0
        assert "the disk is gone" in table.replica.failure
        table.background.is_broken = False
        await table.produce(100)
        assert table.answered[2] is ErrorCode.KAFKA_STORAGE_ERROR
        assert not table.background.given

    play(harness, scenario)


def test_every_round_that_fails_is_heard_out(harness: Any) -> None:
    """Of a future whose exception nobody asks for the loop complains when it is collected."""

    async def scenario(table: Table) -> None:
        complaints: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        await table.produce(100)
        table.background.is_broken = True
        await table.step()
        table.background.is_broken = False
        gc.collect()
        assert complaints == []

    play(harness, scenario)


@pytest.mark.parametrize("is_quick", [False, True])
def test_a_broken_rule_met_after_a_sync_is_told_to_the_process(
    harness: Any, monkeypatch: pytest.MonkeyPatch, is_quick: bool
) -> None:
    def broken(_machine: Any, _offset: int) -> bool:
        raise InvariantViolation("I-04: too far")

    async def scenario(table: Table) -> None:
        events = table.harness.events
        events.are_bugs_expected = True
        table.background.is_quick = is_quick
        monkeypatch.setattr(PartitionMachine, "advance_high_watermark", broken)
        await table.produce(100)
        if not is_quick:
            await table.step()
        assert [type(bug) for bug in events.bugs] == [InvariantViolation]
        assert table.answered == [None]
        monkeypatch.undo()

    play(harness, scenario)


@pytest.mark.parametrize("is_quick", [False, True])
def test_a_sync_that_ends_in_anything_but_a_fault_of_the_disk_is_told_to_the_process(
    harness: Any, monkeypatch: pytest.MonkeyPatch, is_quick: bool
) -> None:
    def exhausted(*_: Any) -> None:
        raise MemoryError

    async def scenario(table: Table) -> None:
        events = table.harness.events
        events.are_bugs_expected = True
        table.background.is_quick = is_quick
        monkeypatch.setattr(PartitionLog, "mark_synced", exhausted)
        await table.produce(100)
        if not is_quick:
            await table.step()
        assert [type(bug) for bug in events.bugs] == [MemoryError]
        assert table.answered == [None]
        monkeypatch.undo()

    play(harness, scenario)


@pytest.mark.parametrize("is_broken", [False, True])
def test_no_round_keeps_a_file_open(
    harness: Any, monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    duplicates: list[RealFileHandle] = []
    duplicate = RealFileHandle.duplicate

    def noted(handle: RealFileHandle) -> RealFileHandle:
        duplicates.append(duplicate(handle))
        return duplicates[-1]

    async def scenario(table: Table) -> None:
        monkeypatch.setattr(RealFileHandle, "duplicate", noted)
        await table.produce(100)
        table.background.is_broken = is_broken
        await table.step()
        table.background.is_quick = True
        await table.produce(100)
        assert len(duplicates) == (1 if is_broken else 2)
        for handle in duplicates:
            with pytest.raises(OSError, match="closed"):
                handle.datasync()

    play(harness, scenario)


def test_round_that_runs_while_the_log_is_truncated_moves_no_high_watermark(harness: Any) -> None:
    """A follower cuts what another leader does not have, and appends other records there.

    1. Two batches are appended and their round begins. 2. The log is cut to nothing. 3. One other
    batch is appended. 4. The round ends: it says nothing of that batch, which needs its own.
    """

    async def scenario(table: Table) -> None:
        replica = table.replica
        await table.produce(100, 100)
        replica.log.truncate_to(0)
        machine, epochs = replica.machine, replica.log.leader_epochs
        machine.load(0, 0, (), leader_epochs=epochs)
        replica._end_leading(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        replica.synced_offset = 0
        replica.log.assign_leader_epoch(replica.leader_epoch + 1, 0)
        replica.leadership = structs.replace(
            replica.leadership, leader_epoch=replica.leader_epoch + 1
        )
        machine.become_leader(replica.leader_epoch, TOPIC_ID, replica.keys)
        replica._is_leading = True
        replica._begin_replication()
        await table.produce(100)
        assert len(table.background.given) == 1
        await table.step()
        assert machine.high_watermark == 0
        assert table.answered[2] is None
        assert len(table.background.given) == 1
        await table.step()
        assert machine.high_watermark == 1
        assert table.answered[2] is ErrorCode.NONE

    play(harness, scenario)


def test_checkpoint_follows_the_high_watermark(harness: Any) -> None:
    async def scenario(table: Table) -> None:
        table.background.is_open = True
        await table.produce(100)
        await table.produce(100)
        assert table.replica.log.high_watermark == 2
        checkpoint = read_recovery_checkpoint(RealFileSystem(), harness.directory / "flights-0")
        # Written before the round's own high watermark is told.
        assert (checkpoint.recovery_point, checkpoint.high_watermark) == (2, 1)
        await table.replica.sync_all()
        checkpoint = read_recovery_checkpoint(RealFileSystem(), harness.directory / "flights-0")
        assert checkpoint.high_watermark == 2

    play(harness, scenario)


def test_a_sync_begins_after_the_pushes_of_the_same_append_have_left(harness: Any) -> None:
    """A small one holds up the loop: a task makes the call in the next turn, which leaves after."""

    async def scenario(table: Table) -> None:
        loop, order = asyncio.get_running_loop(), list[str]()
        sync, run = table.replica._sync, table.background.run
        request = sync.request

        async def push() -> None:
            loop.call_soon(order.append, "pushed")

        def request_pushed(*arguments: Any, **fields: Any) -> None:
            loop.call_soon(lambda: pushes.append(loop.create_task(push())))
            request(*arguments, **fields | {"is_pushed": True})

        def run_noted(*arguments: Any, **fields: Any) -> asyncio.Future[Any]:
            order.append("synced")
            return run(*arguments, **fields)

        pushes: list[asyncio.Task[None]] = []
        sync.request, table.background.run = request_pushed, run_noted
        await table.produce(100)
        assert order == ["pushed", "synced"]

    play(harness, scenario)
