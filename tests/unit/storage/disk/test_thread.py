"""The compiled thread that syncs files: what it answers, in which order, and that it ends."""

from __future__ import annotations

import errno
import os
import select
import sys
import time

import pytest

from oncelog.storage.disk import thread as disk_thread

if disk_thread.start_disk_thread() is None:
    pytest.skip("the disk thread is not built", allow_module_level=True)

DEADLINE_S = 10.0


def ended_pieces(thread, count):
    """The next pieces that end, waited for as a loop does."""
    ended = []
    deadline_s = time.monotonic() + DEADLINE_S
    while len(ended) < count and time.monotonic() < deadline_s:
        select.select([thread], [], [], DEADLINE_S)
        ended += thread.take_ended()
    return ended


def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.fixture
def thread():
    return disk_thread.start_disk_thread()


@pytest.fixture
def descriptor(tmp_path):
    number = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(number, b"x" * 100)
    yield number
    os.close(number)


def test_synced_file_is_told_with_its_time(thread, descriptor):
    assert thread.sync(descriptor) == 1
    ((error_number, took_ns),) = ended_pieces(thread, 1)
    assert error_number == 0
    assert 0 < took_ns < DEADLINE_S * 1e9
    assert thread.take_ended() == []


def test_pieces_end_in_order_each_with_its_own_error(thread, descriptor):
    reading, writing = os.pipe()
    given = [descriptor, reading, descriptor, 1_000_000, writing]
    assert [thread.sync(number) for number in given] == [1, 2, 3, 4, 5]
    ended = ended_pieces(thread, 5)
    os.close(reading)
    os.close(writing)
    assert [error for error, _ in ended] == [0, errno.EINVAL, 0, errno.EBADF, errno.EINVAL]


def test_no_more_pieces_are_taken_than_have_a_place(thread, descriptor):
    numbers = [thread.sync(descriptor) for _ in range(100)]
    taken_count = numbers.index(0)
    assert numbers == [*range(1, taken_count + 1), *[0] * (100 - taken_count)]
    assert len(ended_pieces(thread, taken_count)) == taken_count
    assert thread.sync(descriptor) == taken_count + 1


def test_waiting_lasts_until_the_piece_has_ended(thread, descriptor):
    for _ in range(20):
        thread.wait(thread.sync(descriptor))
        assert len(thread.take_ended()) == 1


def test_thread_and_descriptor_end_with_the_object_and_not_before_its_pieces(descriptor):
    thread = disk_thread.start_disk_thread()
    bell = os.dup(thread.fileno())
    own_bell = thread.fileno()
    for _ in range(10):
        thread.sync(descriptor)
    del thread
    deadline_s = time.monotonic() + DEADLINE_S
    while is_open(own_bell) and time.monotonic() < deadline_s:
        os.sched_yield()
    assert not is_open(own_bell)
    assert int.from_bytes(os.read(bell, 8), sys.byteorder) == 10
    os.close(bell)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_child_of_the_process_is_refused_and_does_not_hang(thread, descriptor):
    thread.sync(descriptor)
    child = os.fork()
    if child == 0:
        refused = thread.sync(descriptor) == 0
        del thread
        os._exit(0 if refused else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(ended_pieces(thread, 1)) == 1


def test_module_of_another_interface_is_not_used(monkeypatch):
    monkeypatch.setattr(disk_thread._module, "INTERFACE", 0)
    assert disk_thread.start_disk_thread() is None
