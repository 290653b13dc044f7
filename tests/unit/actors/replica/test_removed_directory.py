"""A zombie removes its directory, and what says where that is, while its successor is there."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deadlines import DEADLINE_S, until
from virtual_time import give_turns

from oncelog.actors.process.background import ThreadBackground
from oncelog.actors.protocol.partition.log_directory import DirectoryAssignment
from oncelog.actors.replica.data_directory import prepare
from oncelog.actors.replica.log_directories import (
    ASSIGNED_DIRECTORY,
    ASSIGNING_LOCK_FILE,
    encode_assignment,
    join_further,
    read_assignment,
)
from oncelog.storage.disk.file_system import RealFileSystem
from oncelog.storage.errors import ErrorCode

DISK = RealFileSystem()
CLUSTER, OLD, NEW = "1" * 32, "a" * 32, "b" * 32
FURTHER_ID = "further"


class StallingFileSystem(RealFileSystem):
    """Once a directory is removed, whoever removed it goes on when told."""

    def __init__(self) -> None:
        self.has_removed = threading.Event()
        self.may_go_on = threading.Event()

    def remove_tree(self, path: Path) -> None:
        super().remove_tree(path)
        self.has_removed.set()
        assert self.may_go_on.wait(DEADLINE_S)


class LateFileSystem(RealFileSystem):
    """Something happens before one directory is made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.before_making: Callable[[], Any] | None = None

    def make_directory(self, path: Path) -> None:
        happens, self.before_making = self.before_making, None
        if happens is not None and path == self._path:
            happens()
        elif happens is not None:
            self.before_making = happens
        super().make_directory(path)


class Died(BaseException):
    """The process is gone; no handler of errors goes on."""


class DyingFileSystem(RealFileSystem):
    """The process dies at its first ``call`` on what says where the replica is, or on its tree."""

    def __init__(self, call: str) -> None:
        self._call = call

    def remove_tree(self, path: Path) -> None:
        self._die_in("remove_tree")
        super().remove_tree(path)

    def sync_directory(self, path: Path) -> None:
        if path.name == ASSIGNED_DIRECTORY and not list(path.iterdir()):
            self._die_in("sync_directory")
        super().sync_directory(path)

    def remove(self, path: Path) -> None:
        if path.parent.name == ASSIGNED_DIRECTORY:
            self._die_in("remove")
        super().remove(path)

    def _die_in(self, call: str) -> None:
        if call == self._call:
            raise Died


@pytest.fixture
def two_disks(harness: Any, tmp_path: Path) -> Any:
    """The harness of a broker whose own directory has others' replicas, so ours is in the other."""
    harness.directory, harness.further = tmp_path / "0", (tmp_path / "1",)
    harness.cluster_id = CLUSTER
    prepare(DISK, harness.directory, broker_id=1, new_cluster_id=CLUSTER)
    data_dir = f"{harness.directory},{harness.further[0]}"
    join_further(DISK, data_dir, new_directory_id=lambda: FURTHER_ID)
    for name in ("others-0", "others-1"):
        (harness.directory / name).mkdir()
    return harness


def assigned(harness: Any) -> DirectoryAssignment | None:
    """What is on disk of where the replica is."""
    return read_assignment(DISK, harness.directory / ASSIGNED_DIRECTORY / "flights-0")


async def begin_anew(harness: Any) -> None:
    """The process of a successor, on the same disks: it leads on return."""
    harness.filesystem, harness.background = RealFileSystem(), ThreadBackground()
    await asyncio.wait_for(harness.start(), DEADLINE_S)


async def check_leads(harness: Any) -> None:
    assert harness.replica.failure is None
    assert harness.replica.availability() is ErrorCode.NONE
    assert (await harness.produce(harness.batch(b"new"))).error is ErrorCode.NONE
    assert harness.replica.machine.log_end_offset == 1


@pytest.mark.parametrize("topic_id", [NEW, OLD])
def test_a_zombie_that_stalls_in_its_removal_leaves_what_its_successor_was_assigned(
    two_disks: Any, topic_id: str
) -> None:
    """1. A zombie has removed its directory. 2. The topic is made again, or the replica is back:
    a successor is assigned a directory and leads. 3. The zombie goes on.
    """

    async def body() -> None:
        two_disks.filesystem = stalling = StallingFileSystem()
        await two_disks.start()
        zombie = two_disks.replica
        assert assigned(two_disks) == DirectoryAssignment(directory_id=FURTHER_ID, topic_id=OLD)
        stopping = asyncio.create_task(zombie.stop(remove_data=True))
        assert await asyncio.to_thread(stalling.has_removed.wait, DEADLINE_S)
        two_disks.topic_id = topic_id
        two_disks.led_topics.clear()
        await begin_anew(two_disks)
        stalling.may_go_on.set()
        await stopping
        assert zombie.failure is None
        assert two_disks.replica.directory.path.parent == two_disks.further[0]
        assert assigned(two_disks) == DirectoryAssignment(
            directory_id=FURTHER_ID, topic_id=topic_id
        )
        await check_leads(two_disks)
        await two_disks.replica.stop(remove_data=True)
        assert assigned(two_disks) is None

    asyncio.run(body())


@pytest.mark.parametrize("topic_id", [NEW, OLD])
def test_a_successor_that_locks_a_directory_while_it_is_removed_keeps_it(
    two_disks: Any, monkeypatch: pytest.MonkeyPatch, topic_id: str
) -> None:
    """1. A zombie has removed its lock file. 2. A successor makes one in the same directory, locks
    it and leads. 3. The zombie cannot remove the directory, and says so.
    """
    rmdir = os.rmdir
    directory = two_disks.further[0] / "flights-0"

    async def body() -> None:
        await two_disks.start()
        zombie = two_disks.replica
        loop = asyncio.get_running_loop()

        def late(path: Any, *arguments: Any, **named: Any) -> None:
            if str(path).endswith("flights-0"):
                monkeypatch.setattr(os, "rmdir", rmdir)
                assert not (directory / ".lock").exists()
                asyncio.run_coroutine_threadsafe(begin_anew(two_disks), loop).result(DEADLINE_S)
            rmdir(path, *arguments, **named)

        two_disks.topic_id = topic_id
        two_disks.led_topics.clear()
        monkeypatch.setattr(os, "rmdir", late)
        await zombie.stop(remove_data=True)
        assert "cannot close" in str(zombie.failure)
        assert two_disks.replica is not zombie
        assert two_disks.replica.directory.path == directory
        assert assigned(two_disks) == DirectoryAssignment(
            directory_id=FURTHER_ID, topic_id=topic_id
        )
        await check_leads(two_disks)
        await zombie.stop(remove_data=True)
        await check_is_ours(two_disks, directory)

    asyncio.run(body())


def test_a_replica_that_is_back_in_a_directory_that_was_forgotten_is_assigned_it_anew(
    two_disks: Any,
) -> None:
    """1. A zombie has removed its files. 2. The replica comes back and is told where it was.
    3. The zombie forgets that and removes the directory. 4. The replica makes it.
    """

    async def body() -> None:
        await two_disks.start()
        zombie = two_disks.replica.directory
        await two_disks.replica.stop()
        shutil.rmtree(zombie.path)
        zombie.path.mkdir()
        two_disks.led_topics.clear()
        two_disks.filesystem = late = LateFileSystem(two_disks.further[0] / "flights-0")
        # Step 3.
        late.before_making = lambda: (zombie._directories.forget(), shutil.rmtree(zombie.path))
        await asyncio.wait_for(two_disks.start(), DEADLINE_S)
        assert late.before_making is None
        assert assigned(two_disks) == DirectoryAssignment(directory_id=FURTHER_ID, topic_id=OLD)
        await check_leads(two_disks)
        await two_disks.replica.stop()

    asyncio.run(body())


def test_a_replica_that_is_late_in_the_own_directory_follows_its_successor_to_another(
    two_disks: Any,
) -> None:
    """1. A replica is to begin in the own directory. 2. Before it makes anything there its
    successor is assigned the other one. 3. It goes on.
    """
    for name in ("others-0", "others-1"):
        (two_disks.directory / name).rmdir()
        (two_disks.further[0] / name).mkdir()
    successors = DirectoryAssignment(directory_id=FURTHER_ID, topic_id=OLD)
    file = two_disks.directory / ASSIGNED_DIRECTORY / "flights-0"

    def assign() -> None:
        DISK.make_directory(file.parent)
        DISK.write_atomically(file, encode_assignment(successors))

    async def body() -> None:
        two_disks.filesystem = late = LateFileSystem(two_disks.directory / "flights-0")
        late.before_making = assign
        await asyncio.wait_for(two_disks.start(), DEADLINE_S)
        assert late.before_making is None
        assert two_disks.replica.directory.path.parent == two_disks.further[0]
        assert assigned(two_disks) == successors
        await check_leads(two_disks)
        await two_disks.replica.stop()

    asyncio.run(body())


def test_a_removal_waits_for_its_turn_to_forget(two_disks: Any) -> None:
    async def body() -> None:
        await two_disks.start()
        directory = two_disks.replica.directory.path
        another = DISK.lock(two_disks.directory / ASSIGNING_LOCK_FILE)
        stopping = asyncio.create_task(two_disks.replica.stop(remove_data=True))
        await until(lambda: DISK.list_directory(directory) == [".lock"])
        await give_turns(20)
        assert not stopping.done()
        assert assigned(two_disks) is not None
        another.release()
        await asyncio.wait_for(stopping, DEADLINE_S)
        assert two_disks.replica.failure is None
        assert assigned(two_disks) is None
        assert not directory.exists()

    asyncio.run(body())


def test_an_assignment_that_became_unreadable_is_told_and_the_directory_let_go(
    two_disks: Any,
) -> None:
    async def body() -> None:
        await two_disks.start()
        (two_disks.directory / ASSIGNED_DIRECTORY / "flights-0").write_bytes(b"\xff")
        await two_disks.replica.stop(remove_data=True)
        assert "is unreadable" in str(two_disks.replica.failure)
        DISK.lock(two_disks.replica.directory.path / ".lock").release()

    asyncio.run(body())


@pytest.mark.parametrize("topic_id", [NEW, OLD])
@pytest.mark.parametrize("step", ["remove_tree", "sync_directory", "remove"])
def test_a_process_that_dies_in_its_removal_leaves_what_the_next_one_begins_with(
    two_disks: Any, step: str, topic_id: str
) -> None:
    """1. It dies before or after it forgets where it was. 2. The topic is made again, or the
    replica is back.
    """

    async def body() -> None:
        two_disks.filesystem = DyingFileSystem(step)
        await two_disks.start()
        dead = two_disks.replica
        with pytest.raises(Died):
            await dead.stop(remove_data=True)
        assert (assigned(two_disks) is None) is (step != "remove")
        dead.directory.release()  # What the end of the process does.
        two_disks.topic_id = topic_id
        two_disks.led_topics.clear()
        await begin_anew(two_disks)
        path = two_disks.replica.directory.path
        is_further = path.parent == two_disks.further[0]
        expected = (
            DirectoryAssignment(directory_id=FURTHER_ID, topic_id=topic_id) if is_further else None
        )
        assert assigned(two_disks) == expected
        await check_leads(two_disks)
        await two_disks.replica.stop()

    asyncio.run(body())


async def check_is_ours(harness: Any, directory: Path) -> None:
    """A second copy of the shutdown has touched nothing."""
    assert (directory / ".lock").exists()
    await harness.replica.stop()
    await begin_anew(harness)
    assert harness.replica.machine.log_end_offset == 1
    await harness.replica.stop()
