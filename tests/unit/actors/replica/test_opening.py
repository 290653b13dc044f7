"""A replica that is stopped while it starts: no file is touched after the directory is let go."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from pathlib import Path
from random import Random
from typing import Any

import pytest
from actor_environment import HeldBackground
from crash_disk import Crash, CrashDisk, DataLoss, NameLoss
from deadlines import DEADLINE_S, until
from virtual_time import give_turns

from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.replica import replica as replica_module
from oncelog.actors.replica.replica import REMOVALS_MAX
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.errors import ErrorCode

TOPIC_ID = "a" * 32

LOSSES_OF_POWER = 10
"""At each step: every name that was removed since the last sync is there again, or is not."""


class VanishingDirectories(RealFileSystem):
    """Whatever is made is gone before it can be locked."""

    def __init__(self) -> None:
        self.removals = 0

    def make_directory(self, path: Path) -> None:
        super().make_directory(path)
        self.remove_tree(path)
        self.removals += 1


@pytest.mark.parametrize("remove_data", [False, True])
def test_a_stop_waits_for_files_in_work_and_then_lets_the_directory_go(
    harness: Any, *, remove_data: bool
) -> None:
    async def body() -> None:
        harness.background = HeldBackground()
        harness.background.gate.clear()
        starting = asyncio.ensure_future(harness.start())
        await until(lambda: harness.background.begun == 1)
        stopping = asyncio.ensure_future(harness.replica.stop(remove_data=remove_data))
        await give_turns(20)
        assert not stopping.done()
        harness.background.gate.set()
        await asyncio.gather(starting, stopping)
        # One of the start; the log is closed, its files removed, and then the directory.
        assert harness.background.begun == 2 + remove_data, "the start went on after the stop"
        assert harness.replica.failure is None
        assert harness.replica.availability() is ErrorCode.NOT_LEADER_OR_FOLLOWER
        directory = harness.directory / "flights-0"
        assert directory.exists() is not remove_data
        if not remove_data:
            RealFileSystem().lock(directory / ".lock").release()

    asyncio.run(body())


def test_whatever_lost_power_leaves_of_a_removed_log_the_next_topic_of_that_name_is_led(
    harness: Any, seed: int
) -> None:
    """1. The power fails at any step of the removal. 2. Another topic of that name is made."""

    async def removed(stop_at: int = 0) -> CrashDisk:
        harness.filesystem = disk = CrashDisk()
        harness.topic_id = TOPIC_ID
        harness.led_topics.clear()
        await harness.start()
        assert (await harness.produce(harness.batch(b"old"))).error is ErrorCode.NONE
        disk.stop_after(stop_at)
        with contextlib.suppress(Crash):
            await harness.replica.stop(remove_data=True)
        return disk

    async def body() -> None:
        harness.directory = Path("/data")
        history = (await removed()).history
        first = next(n for n, done in enumerate(history) if done.call == "remove")
        random = Random(seed)
        for operation in range(first, len(history) + 1):
            disk = await removed(stop_at=operation)
            for _ in range(LOSSES_OF_POWER):
                harness.filesystem = disk.after_power_loss(DataLoss.ALL, NameLoss.SOME, random)
                harness.topic_id = "b" * 32
                harness.led_topics.clear()
                await asyncio.wait_for(harness.start(), DEADLINE_S)
                assert harness.replica.failure is None
                assert harness.replica.machine.log_end_offset == 0
                await harness.replica.stop()

    asyncio.run(body())


def test_a_stop_does_not_wait_for_an_epoch_that_does_not_come(harness: Any) -> None:
    async def body() -> None:
        asked, answer = asyncio.Event(), asyncio.Event()
        source = harness.epoch_source

        async def slow(last_epoch: int) -> Any:
            asked.set()
            await answer.wait()
            return await source(last_epoch)

        harness.epoch_source = slow
        starting = asyncio.ensure_future(harness.start())
        await asked.wait()
        await harness.replica.stop()
        answer.set()
        await starting
        assert harness.replica.failure is None
        assert harness.replica.availability() is ErrorCode.NOT_LEADER_OR_FOLLOWER
        harness.epoch_source = source
        await harness.start()
        assert harness.replica.availability() is ErrorCode.NONE
        await harness.replica.stop()

    asyncio.run(body())


def test_a_stop_ends_the_wait_for_the_directory(harness: Any) -> None:
    async def body() -> None:
        directory = harness.directory / "flights-0"
        directory.mkdir(parents=True)
        lock = RealFileSystem().lock(directory / ".lock")
        starting = asyncio.ensure_future(harness.start())
        await until(lambda: hasattr(harness, "leader"))
        await harness.replica.stop()
        await starting
        assert harness.replica.availability() is ErrorCode.NOT_LEADER_OR_FOLLOWER
        lock.release()
        RealFileSystem().lock(directory / ".lock").release()

    asyncio.run(body())


def test_a_directory_that_is_removed_while_it_is_waited_for_is_taken_anew(harness: Any) -> None:
    """1. A replica of a deleted topic holds the directory. 2. That of the next topic of the name
    waits for it. 3. The first one obeys: it removes the directory.
    """

    async def body() -> None:
        await harness.start()
        assert (await harness.produce(harness.batch(b"old"))).error is ErrorCode.NONE
        old = harness.replica
        harness.topic_id = "b" * 32
        starting = asyncio.ensure_future(harness.start())
        await until(lambda: harness.replica is not old)
        await give_turns(20)
        assert not starting.done()
        await old.stop(remove_data=True)
        await asyncio.wait_for(starting, DEADLINE_S)
        assert harness.replica.failure is None
        assert harness.replica.machine.log_end_offset == 0
        assert (await harness.produce(harness.batch(b"new"))).error is ErrorCode.NONE
        await harness.replica.stop()

    asyncio.run(body())


def test_a_log_that_was_in_sync_is_missing_once_it_is_removed_while_it_is_waited_for(
    harness: Any,
) -> None:
    """The replica does not know who removed it: it must not begin with an empty one."""

    async def body() -> None:
        await harness.start()
        old = harness.replica
        starting = asyncio.ensure_future(harness.start())
        await until(lambda: harness.replica is not old)
        await old.stop(remove_data=True)
        await until(lambda: harness.replica.failure is not None)
        assert "the log is missing" in str(harness.replica.failure)
        assert not (harness.directory / "flights-0").exists()
        await harness.replica.stop()
        await starting

    asyncio.run(body())


def test_a_directory_that_never_lasts_until_its_lock_takes_the_replica_offline(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "LOCK_RETRY_MS", 0)
    disk = VanishingDirectories()
    harness.filesystem = disk

    async def body() -> None:
        await asyncio.wait_for(harness.start(), DEADLINE_S)
        assert "cannot open" in str(harness.replica.failure)
        assert harness.replica.availability() is ErrorCode.KAFKA_STORAGE_ERROR
        assert disk.removals == REMOVALS_MAX + 1
        await harness.replica.stop()

    asyncio.run(body())


def test_a_directory_that_cannot_be_made_takes_the_replica_offline_at_once(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[Path] = []

    def make_directory(path: Path) -> None:
        attempts.append(path)
        raise FileNotFoundError(errno.ENOENT, "there are no directories here", str(path))

    monkeypatch.setattr(harness.filesystem, "make_directory", make_directory)

    async def body() -> None:
        await asyncio.wait_for(harness.start(), DEADLINE_S)
        assert "there are no directories here" in str(harness.replica.failure)
        assert len(attempts) == 1
        await harness.replica.stop()

    asyncio.run(body())


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_retry_of_any_batch_in_flight_is_recognised_after_a_restart(
    harness: Any, *, is_clean: bool
) -> None:
    """The leader stops between append and reply: batches n-4 to n are sent again, and land once."""

    async def body() -> None:
        await harness.start()
        batches = [harness.batch(b"v", b"w", pid=7, epoch=0, seq=2 * n) for n in range(7)]
        for batch in batches:
            await harness.produce(batch)
        await harness.produce(harness.batch(b"other", pid=8, epoch=0, seq=0))
        if is_clean:
            await harness.replica.stop()
        else:
            harness.replica.directory.release()  # What the end of the process does.
        await harness.start()
        end = harness.replica.machine.log_end_offset
        for number in (3, 2, 6, 5, 4):
            again = await harness.produce(batches[number])
            assert (again.error, again.base_offset) == (ErrorCode.NONE, 2 * number)
        assert harness.replica.machine.log_end_offset == end
        await harness.replica.stop()

    asyncio.run(body())


def test_a_replica_asks_again_with_the_epoch_that_it_is_told_is_current(harness: Any) -> None:
    """1. A start is elected and dies before it writes the epoch down. 2. The next start expects
    the epoch of the log, is told the current one, and is elected after that.
    """

    async def body() -> None:
        asked: list[int] = []

        async def elect(last_epoch: int) -> BecomeLeaderReply:
            asked.append(last_epoch)
            if last_epoch != 4:
                return BecomeLeaderReply(error=ErrorCode.FENCED_LEADER_EPOCH, leader_epoch=4)
            return BecomeLeaderReply(leader_epoch=5, topic_id=TOPIC_ID)

        harness.epoch_source = elect
        await harness.start()
        assert (asked, harness.replica.leader_epoch) == ([-1, 4], 5)
        await harness.replica.stop()

    asyncio.run(body())


def test_a_log_that_knows_a_later_epoch_than_the_controller_goes_offline(harness: Any) -> None:
    async def body() -> None:
        harness.next_epoch = lambda _: 7
        await harness.start()
        await harness.replica.stop()
        await harness.start()
        assert "was led in epoch 7, and the controller gave 7" in str(harness.replica.failure)
        assert harness.replica.availability() is ErrorCode.KAFKA_STORAGE_ERROR
        await harness.replica.stop()

    asyncio.run(body())
