"""What a process that died, or a disk that refused, has left behind misleads nobody later."""

from __future__ import annotations

import asyncio
import errno
from random import Random

import pytest
from crash_disk import CrashDisk, DataLoss, NameLoss
from crash_life import DIRECTORY, NOW_MS, History, Life, inspect, next_epoch

from oncelog.actors.protocol.messages.cluster import BecomeLeaderReply
from oncelog.actors.replica.maintenance import clean_if_dirty
from oncelog.actors.replica.opening import ExpectedLog
from oncelog.storage.errors import ErrorCode
from oncelog.storage.log.side_files import read_recovery_checkpoint


def begin() -> Life:
    life = Life(CrashDisk(page_bytes=512), History())
    life.start()
    return life


def check_recovery(disk: CrashDisk, history: History) -> None:
    found = Life(disk, history.copy())
    found.open()
    inspect(found.replica, history)


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_index_without_a_segment_is_removed(suffix):
    """A segment that begins there later must not take it for its own."""
    life = begin()
    life.data(1, b"a")
    life.sync()
    orphan = DIRECTORY / f"{7:020d}{suffix}"
    life.disk.open(orphan, create=True).append((b"x" * 24,))
    disk = life.disk.after_kill()
    check_recovery(disk, life.history)
    assert not disk.exists(orphan)


def test_damaged_aborted_index_is_restored_though_the_first_start_fails():
    """Emptied it looks good: what is to be replayed has to be known to the next start as well."""
    life = begin()
    life.data(3, b"a" * 1_500, is_transactional=True)
    assert life.marker(3, committed=False).error is ErrorCode.NONE
    for _ in range(3):
        life.data(1, b"b" * 1_500)
    assert life.replica.log.segment_count == 2
    life.sync()
    life.stop()
    disk = life.disk.after_kill()
    disk.flip_bit(DIRECTORY / f"{0:020d}.txnindex", 1, 0)
    disk.fail("append", ".txnindex")
    again = Life(disk, life.history.copy())
    again.start()
    assert "planned failure" in str(again.replica.failure)
    check_recovery(disk.after_kill(), life.history)


def test_cut_of_a_torn_append_is_synced_with_the_segment():
    async def refused(life):  # the refusal is noted with the time of the event loop
        return life.data(2, b"b" * 200).error

    for seed in range(10):
        life = begin()
        life.data(1, b"a" * 3_000)
        life.sync()
        life.disk.fail("append", ".log", errno.ENOSPC, times=1, written=0.5)
        assert asyncio.run(refused(life)) is not ErrorCode.NONE
        life.data(1, b"c" * 1_500)
        assert life.replica.log.segment_count == 2
        life.sync()
        disk = life.disk.after_power_loss(DataLoss.TAIL, NameLoss.NONE, Random(seed))
        check_recovery(disk, life.history)


def test_removal_of_a_deleted_topic_that_was_cut_short_is_taken_up_again():
    life = begin()
    for _ in range(8):
        life.data(1, b"a" * 1_500)
    life.sync()
    life.stop()

    async def new_topic() -> ExpectedLog:
        return ExpectedLog(topic_id="b" * 32, is_in_sync=False)

    disk = life.disk.after_kill()
    disk.fail("remove", f"{2:020d}.log", times=1)
    for expected in ("planned failure", None):
        found = Life(disk, History(), log_source=new_topic)
        found.start()
        failure = found.replica.failure
        assert failure is None if expected is None else expected in str(failure)
        disk = disk.after_kill()
    assert found.replica.log.log_end_offset == 0


def test_compaction_begins_with_a_durable_recovery_point():
    """Of the snapshots that it leaves, only those up to there are used after a power loss."""

    async def compacted(last_epoch: int) -> BecomeLeaderReply:
        reply = await next_epoch(last_epoch)
        settings = dict(reply.settings) | {
            "cleanup_policy": "compact",
            "min_cleanable_dirty_ratio": "0.0",
        }
        return BecomeLeaderReply(
            leader_epoch=reply.leader_epoch,
            topic_id=reply.topic_id,
            settings=tuple(settings.items()),
        )

    life = Life(CrashDisk(page_bytes=512), History(), epoch_source=compacted)
    life.start()
    for _ in range(9):
        life.data(1, b"a" * 1_500)
        life.sync()
    end = life.replica.log.log_end_offset
    assert asyncio.run(clean_if_dirty(life.replica, now_ms=NOW_MS)) is not None
    disk = life.disk.after_power_loss(DataLoss.ALL, NameLoss.ALL, Random(0))
    checkpoint = read_recovery_checkpoint(disk, DIRECTORY)
    assert checkpoint is not None
    assert checkpoint.recovery_point == end


def test_start_that_fails_gives_every_file_back():
    life = begin()
    life.data(1, b"a")
    disk = life.disk.after_kill()
    disk.fail("datasync", ".log")
    again = Life(disk, life.history.copy())
    again.start()
    assert "planned failure" in str(again.replica.failure)
    assert disk.open_handles == 0
