"""Which syncs go to the compiled disk thread, how their results come back, and in which order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import threading
import time
from pathlib import Path

import pytest
import uvloop

from oncelog.actors.process import direct_syncs
from oncelog.actors.process.background import BRISK_POINTS, ThreadBackground
from oncelog.storage.disk import thread as disk_thread
from oncelog.storage.disk.file_system import RealFileHandle, RealFileSystem
from oncelog.storage.disk.sync_point import SyncLedger, SyncPoint

needs_thread = pytest.mark.skipif(
    disk_thread.start_disk_thread() is None, reason="the disk thread is not built"
)

LOOPS = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


class SlowHandle(RealFileHandle):
    """A file whose sync is more than the operating system's."""

    def datasync(self) -> None:
        super().datasync()


class Files:
    """Sync points of real files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ledger = SyncLedger(RealFileSystem(), directory)
        self.opened: list[RealFileHandle] = []
        self.points: list[SyncPoint] = []
        self.pipe = os.pipe()

    def point(self, count: int = 1, kind: type[RealFileHandle] = RealFileHandle) -> SyncPoint:
        for number in range(count):
            flags = os.O_RDWR | os.O_CREAT
            file = kind(os.open(self.directory / f"{len(self.opened)}-{number}", flags), 0)
            file.append((b"x",))
            self.opened.append(file)
            self.ledger.note(file)
        point = self.ledger.capture(0, 0)
        self.ledger.settle(point)
        self.points.append(point)
        return point

    def broken_point(self) -> SyncPoint:
        """One whose descriptor cannot be synced."""
        point = self.point()
        os.dup2(self.pipe[0], point._files[0]._descriptor)
        return point

    def close(self) -> None:
        for file in self.opened:
            file.close()
        for point in self.points:
            point.discard()
        for descriptor in self.pipe:
            os.close(descriptor)


@pytest.fixture
def files(tmp_path):
    made = Files(tmp_path)
    yield made
    made.close()


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def used_python(background: ThreadBackground) -> bool:
    return background._is_started


class HeldThread:
    """A disk thread that ends its pieces when the test says so: a disk cannot be held."""

    def __init__(self) -> None:
        self.bell, self.rope = os.pipe()
        os.set_blocking(self.bell, False)
        self.given: list[int] = []
        self.ended: list[int] = []
        self.done = threading.Condition()
        self.taken_count = 0
        self.is_waited_for = threading.Event()

    def fileno(self) -> int:
        return self.bell

    def sync(self, descriptor: int) -> int:
        self.given.append(descriptor)
        return len(self.given)

    def end(self, error_number: int = 0, *, rings: bool = True) -> None:
        with self.done:
            self.ended.append(error_number)
            self.done.notify_all()
        if rings:
            self.ring()

    def ring(self) -> None:
        os.write(self.rope, b"!")

    def take_ended(self) -> list[tuple[int, int]]:
        with contextlib.suppress(BlockingIOError):
            os.read(self.bell, 100)
        ended = [(error_number, 1000) for error_number in self.ended[self.taken_count :]]
        self.taken_count = len(self.ended)
        return ended

    def wait(self, number: int) -> None:
        self.is_waited_for.set()
        with self.done:
            assert self.done.wait_for(lambda: len(self.ended) >= number, 10)

    def close(self) -> None:
        os.close(self.bell)
        os.close(self.rope)


@pytest.fixture
def held(monkeypatch):
    thread = HeldThread()
    monkeypatch.setattr(direct_syncs, "start_disk_thread", lambda: thread)
    yield thread
    thread.close()


@needs_thread
@LOOPS
def test_syncs_of_one_plain_file_take_the_direct_way_on_one_loop_after_another(files, new_loop):
    background = ThreadBackground()

    async def run():
        for _ in range(5):
            await asyncio.gather(*(background.run(files.point()) for _ in range(3)))

    for _ in range(3):
        loop = new_loop()
        loop.run_until_complete(run())
        loop.close()
    assert not used_python(background)
    assert files.ledger.failure is None


@needs_thread
def test_failed_sync_raises_what_the_system_said_and_takes_the_log_offline(files):
    async def run():
        with pytest.raises(OSError, match="Invalid argument") as raised:
            await ThreadBackground().run(files.broken_point())
        return raised.value

    error = asyncio.run(run())
    assert error.errno == errno.EINVAL
    assert files.ledger.failure is error


@needs_thread
def test_what_is_more_than_the_sync_of_a_file_runs_in_the_interpreter(files):
    async def run(point):
        background = ThreadBackground()
        await background.run(point)
        point.discard()
        return used_python(background)

    assert asyncio.run(run(files.point(count=2)))
    slow = files.point()
    slow._files = [SlowHandle(slow._files[0]._descriptor, 0)]
    assert asyncio.run(run(slow))
    files.ledger.note_directory()
    assert asyncio.run(run(files.point()))


def test_without_the_compiled_thread_syncs_run_in_the_interpreter(files, monkeypatch):
    monkeypatch.setattr(disk_thread, "_module", None)

    async def run():
        background = ThreadBackground()
        await background.run(files.point())
        with pytest.raises(OSError, match="Invalid argument"):
            await background.run(files.broken_point())
        return used_python(background)

    assert asyncio.run(run())
    assert files.ledger.failure is not None


def test_no_room_for_a_thread_is_no_reason_to_fail(files, monkeypatch):
    def no_room():
        raise OSError(errno.EAGAIN, "no more threads")

    monkeypatch.setattr(direct_syncs, "start_disk_thread", no_room)

    async def run():
        background = ThreadBackground()
        await background.run(files.point())
        return used_python(background)

    assert asyncio.run(run())


def test_work_waits_for_the_syncs_before_it_and_syncs_for_the_work_before_them(files, held):
    async def run():
        background, order = ThreadBackground(), []
        gate = threading.Event()

        def hold():
            order.append("work")
            gate.wait(10)

        def note(name):
            return lambda _: order.append(name)

        first = background.run(files.point())
        first.add_done_callback(note("first"))
        working = background.run(hold)
        second = background.run(files.point())
        second.add_done_callback(note("second"))
        await asyncio.to_thread(held.is_waited_for.wait, 10)
        assert (order, len(held.given)) == ([], 1)
        held.end()
        await first
        gate.set()
        await asyncio.gather(working, second)
        assert sorted(order[:2]) == ["first", "work"]
        assert order[2:] == ["second"]
        third = background.run(files.point())
        assert len(held.given) == 2
        held.end()
        await third

    asyncio.run(run())


@LOOPS
def test_a_failed_sync_is_known_before_the_work_behind_it_counts(files, held, new_loop):
    """Whenever its result rings: the system tells one of both only that a page was lost."""

    async def run():
        background, known = ThreadBackground(), []
        first = background.run(files.point())
        second = background.run(files.point(count=2))
        second.add_done_callback(lambda _: known.append(files.ledger.failure))
        await asyncio.to_thread(held.is_waited_for.wait, 10)
        held.end(errno.EIO, rings=False)
        await second
        held.ring()
        with pytest.raises(OSError, match="Input/output error"):
            await first
        await background.run(lambda: None)
        return known

    loop = new_loop()
    (failure,) = loop.run_until_complete(run())
    loop.close()
    assert failure is not None
    assert failure.errno == errno.EIO


def test_a_file_that_cannot_be_given_back_leaves_the_other_results_in_order(files, held):
    async def run():
        background = ThreadBackground()
        points = [files.point() for _ in range(3)]
        synced = [background.run(point) for point in points]
        synced[0].cancel()
        points[0].discard()
        os.close(held.given[0])
        for error_number in (0, errno.EIO, 0):
            held.end(error_number, rings=False)
        held.ring()
        results = await asyncio.gather(*synced, return_exceptions=True)
        assert background._under_way == 0
        return results

    _, failed, last = asyncio.run(run())
    assert failed.errno == errno.EIO
    assert last is None


def test_a_loop_that_cannot_watch_the_thread_is_no_reason_to_fail(files, held):
    async def run():
        def no_room(*_):
            raise OSError(errno.ENOSPC, "no more watches")

        asyncio.get_running_loop().add_reader = no_room
        background = ThreadBackground()
        await background.run(files.point())
        assert background._under_way == 0
        return used_python(background)

    assert asyncio.run(run())


def test_nothing_is_done_at_once_while_a_sync_is_under_way(files, held):
    async def run():
        background = ThreadBackground()
        for _ in range(BRISK_POINTS):
            point = files.point()
            point.is_small = True
            synced = background.run(point)
            held.end()
            await synced
        synced = background.run(files.point())
        assert not background.try_now(lambda: None)
        held.end()
        await synced
        assert background.try_now(lambda: None)

    asyncio.run(run())


def test_file_that_is_discarded_early_stays_open_until_its_sync_has_ended(files, held):
    async def run():
        background = ThreadBackground()
        point = files.point()
        synced = background.run(point)
        (descriptor,) = held.given
        synced.cancel()
        point.discard()
        assert is_open(descriptor)
        held.end()
        await background.run(lambda: None)
        assert not is_open(descriptor)

    asyncio.run(run())


@LOOPS
def test_loop_that_is_closed_with_syncs_under_way_leaves_the_next_one_in_order(
    files, held, new_loop
):
    background = ThreadBackground()

    async def give():
        background.run(files.point()).add_done_callback(print)

    async def wait():
        synced = background.run(files.point())
        held.end()
        held.end()
        await synced
        assert background._under_way == 0

    for scenario in (give, wait):
        loop = new_loop()
        loop.run_until_complete(scenario())
        loop.close()
    assert len(held.given) == 2


@needs_thread
@LOOPS
def test_thread_and_descriptors_end_with_background_and_loop(files, new_loop):
    async def run(background):
        await background.run(files.point())
        return background._syncs._thread.fileno()

    loop = new_loop()
    bell = loop.run_until_complete(run(ThreadBackground()))
    loop.close()
    del loop
    gc.collect()
    deadline_s = time.monotonic() + 10
    while is_open(bell) and time.monotonic() < deadline_s:
        os.sched_yield()
    assert not is_open(bell)
