"""A follower's log that is copied, cut and restarted, crashed at every operation on the disk.

Whatever the crash leaves, the next process opens it, and finds what was promised of the one log or,
while it was being dropped, of the other; never some of both, and nothing that was cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
from copied_logs import CopiedLog, LeaderLog, state_of
from crash_disk import Crash, CrashDisk, DataLoss, NameLoss

from oncelog.storage.records.batch import parse_header

PAGE_BYTES = 512
POWER_LOSSES = [(data, names) for data in DataLoss for names in NameLoss]
TRANSACTIONS = [
    (("data", 1), 2, 0, 0),
    (("data", 11), 2, 0, 0),
    (("data", 12), 3, 1, 0),
    (("data", -1), 1, 0, 1),
    (("abort", 11), 1, 0, 0),
    (("data", 11), 2, 5, 0),
    (("commit", 12), 1, 0, 0),
    (("data", 13), 3, 0, 1),
    (("abort", 11), 1, 3, 0),
    (("data", 2), 3, 0, 0),
]


@dataclass
class Promise:
    """A log that the next process may find: of ``batches`` the first ``safe`` survive all."""

    start: int = 0
    batches: list[bytes] = field(default_factory=list)
    safe: int = 0

    def holds(self, start: int, found: list[bytes]) -> bool:
        is_prefix = found == self.batches[: len(found)]
        return start == self.start and is_prefix and len(found) >= self.safe


class Follower:
    """A ``CopiedLog``, and what it has promised at each time."""

    def __init__(self, disk: CrashDisk, promises: list[Promise]) -> None:
        self.promises = promises
        self.copied = CopiedLog(disk)

    def take(self, batches: list[bytes]) -> None:
        for batch in batches:
            self.promises[-1].batches.append(batch)
            self.copied.take(batch)

    def sync(self) -> None:
        self.copied.sync()
        self.copied.advance(self.copied.log.recovery_point)
        self.promises[-1].safe = len(self.promises[-1].batches)

    def cut(self, offset: int) -> None:
        old = self.promises[-1]
        kept = sum(parse_header(batch).next_offset <= offset for batch in old.batches)
        old.safe = min(old.safe, kept)
        self.copied.cut(offset)
        self.promises[:] = [Promise(old.start, old.batches[:kept], kept)]

    def restart(self, offset: int) -> None:
        self.promises.append(Promise(offset))
        self.copied.restart(offset)
        del self.promises[0]


def filled(disk: CrashDisk, promises: list[Promise]) -> tuple[Follower, LeaderLog]:
    follower, leader = Follower(disk, promises), LeaderLog()
    leader.run(TRANSACTIONS)
    follower.take(leader.batches[:6])
    follower.sync()
    follower.take(leader.batches[6:])
    return follower, leader


def cuts(disk: CrashDisk, promises: list[Promise]) -> None:
    """Of unsynced batches, then of synced ones; of the next leaders' log after each."""
    follower, leader = filled(disk, promises)
    for offset in (leader.next_offset - 1, 12, 0):
        leader.cut(offset)
        follower.cut(offset)
        kept = len(leader.batches)
        leader.run(TRANSACTIONS[:5])
        follower.take(leader.batches[kept:])
        follower.sync()


def restarts(disk: CrashDisk, promises: list[Promise]) -> None:
    """Above what is there, within it and below, with some of it unsynced."""
    follower, leader = filled(disk, promises)
    for rise in (50, -20, 1, -1_000):
        offset = max(leader.next_offset + rise, 0)
        leader = LeaderLog(next_offset=offset, epoch=leader.epoch + 1)
        follower.restart(offset)
        leader.run(TRANSACTIONS[:7])
        follower.take(leader.batches[:5])
        follower.sync()
        follower.take(leader.batches[5:])


Script = Callable[[CrashDisk, list[Promise]], None]


def lives(script: Script, part: float | None = None) -> Iterator[tuple[int, CrashDisk, list]]:
    """One life after another, each stopped one operation later: after it, or in its midst."""
    for number in itertools.count(1):
        disk, promises = CrashDisk(page_bytes=PAGE_BYTES), [Promise()]
        if part is None:
            disk.stop_after(number)
        else:
            disk.stop_within(number, part)
        try:
            script(disk, promises)
        except Crash:
            yield number, disk, promises
        else:
            assert number > 70
            return


def check_recovery(disk: CrashDisk, promises: list[Promise]) -> CopiedLog:
    """Recover and compare with what was promised; recover again, and find nothing to do."""
    found = CopiedLog(disk)
    log = found.log
    batches = found.batches
    assert any(promise.holds(log.log_start_offset, batches) for promise in promises)
    assert log.recovery_point == log.log_end_offset
    assert found.machine.high_watermark <= log.log_end_offset
    expected = CopiedLog(CrashDisk())
    if log.log_start_offset:
        expected.restart(log.log_start_offset)
    for batch in batches:
        expected.take(batch)
    state = state_of(found)
    assert state == state_of(expected)
    again = CopiedLog(disk.after_kill())
    assert again.log.cut is None
    assert state_of(again) == state
    return found


@pytest.mark.parametrize("script", [cuts, restarts])
def test_kill_after_any_operation(script):
    for _, disk, promises in lives(script):
        check_recovery(disk.after_kill(), promises)


@pytest.mark.parametrize("script", [cuts, restarts])
def test_power_loss_after_any_operation(script):
    """Each operation with one of the ways to lose power; the slow test has all of them."""
    for number, disk, promises in lives(script):
        loss = POWER_LOSSES[number % len(POWER_LOSSES)]
        check_recovery(disk.after_power_loss(*loss, Random(number)), promises)


@pytest.mark.slow
@pytest.mark.parametrize("script", [cuts, restarts])
def test_power_loss_of_every_kind_after_any_operation(script):
    for number, disk, promises in lives(script):
        for loss in POWER_LOSSES:
            check_recovery(disk.after_power_loss(*loss, Random(f"{number} {loss}")), promises)


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.1, 0.9])
@pytest.mark.parametrize("script", [cuts, restarts])
def test_kill_within_any_operation(script, part):
    for _, disk, promises in lives(script, part):
        check_recovery(disk.after_kill(), promises)


@pytest.mark.slow
def test_crash_at_any_operation_while_a_restart_is_finished():
    """1. A restart is stopped. 2. So is the open that finishes it. 3. The next one does."""
    for number, disk, promises in lives(restarts):
        if len(promises) < 2 or number % 3:
            continue
        for step in itertools.count(1):
            torn = disk.after_power_loss(DataLoss.PAGES, NameLoss.SOME, Random(number))
            torn.stop_after(step)
            try:
                CopiedLog(torn)
            except Crash:
                check_recovery(torn.after_kill(), promises)
                loss = POWER_LOSSES[step % len(POWER_LOSSES)]
                check_recovery(torn.after_power_loss(*loss, Random(step)), promises)
            else:
                break


def test_a_log_that_was_restarted_after_a_crash_takes_what_the_leader_sends():
    for number, disk, promises in lives(restarts):
        if number % 10:
            continue
        found = check_recovery(
            disk.after_power_loss(DataLoss.PAGES, NameLoss.SOME, Random(number)), promises
        )
        offset = found.log.log_end_offset + 100
        leader = LeaderLog(next_offset=offset, epoch=99)
        leader.run(TRANSACTIONS)
        found.restart(offset)
        for batch in leader.batches:
            found.take(batch)
        found.sync()
        last = Promise(offset, leader.batches, len(leader.batches))
        check_recovery(found.disk.after_power_loss(DataLoss.ALL, NameLoss.ALL, Random(0)), [last])
