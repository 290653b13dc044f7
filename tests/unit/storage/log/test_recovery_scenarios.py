"""Producer state after a reload: what a snapshot brings back, and what only the log can."""

from __future__ import annotations

from random import Random

import pytest
from crash_disk import CrashDisk, DataLoss, NameLoss
from crash_life import DIRECTORY, NOW_MS, SEGMENT_BYTES, History, Life, inspect

from oncelog.actors.protocol.tickets import ClusterKeys, issue_plain_ticket
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import AppendOrigin
from oncelog.storage.records.batch import parse_header
from oncelog.storage.segments.inspection import TailDefect


@pytest.fixture
def life() -> Life:
    life = Life(CrashDisk(page_bytes=512), History())
    life.start()
    return life


def again(life: Life, disk: CrashDisk | None = None) -> Life:
    """The next process, recovered but not yet leading."""
    following = Life(life.disk.after_kill() if disk is None else disk, life.history.copy())
    following.open()
    return following


def resend(life: Life, number: int) -> tuple[ErrorCode, int | None]:
    """Ask the leader about a batch that was written before: its error, or its first offset."""
    life.replica.machine.become_leader(99, "a" * 32, ClusterKeys(current=b""))
    header = parse_header(life.history.batches[number])
    ticket = issue_plain_ticket(cluster_key=b"", producer_id=header.producer_id, issued_ms=0)
    verdict = life.replica.machine.decide_append(
        header, origin=AppendOrigin.CLIENT, ticket=ticket, now_ms=NOW_MS
    )
    return verdict.error, verdict.duplicate_base_offset


def snapshots(life: Life) -> list[str]:
    names = life.disk.list_directory(DIRECTORY)
    return [name for name in names if name.endswith(".snapshot")]


# A snapshot at offset 5 after five batches


def test_reload_after_a_clean_stop_knows_the_batches_before_the_newest_one_too(life):
    for number in range(5):
        life.data(1, b"%d" % number)
    life.stop()
    assert snapshots(life) == [f"{5:020d}.snapshot"]
    assert resend(again(life), 4) == (ErrorCode.NONE, 4)
    assert resend(again(life), 3) == (ErrorCode.NONE, 3)


def test_reload_that_replays_the_batches_before_the_snapshot_knows_all_five_again(life):
    for number in range(5):
        life.data(1, b"%d" % number)
    life.stop()
    life.disk.remove(DIRECTORY / ".clean_shutdown")
    for number in range(5):
        assert resend(again(life), number) == (ErrorCode.NONE, number)


# The newest snapshot is damaged


@pytest.mark.parametrize("damage", ["truncated", "bad CRC"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_damaged_newest_snapshot_is_deleted_and_the_older_one_is_replayed_from(
    life, damage, is_clean
):
    for number in range(12):
        life.data(1, b"a" * 700)
        life.data(2, b"b" * 100, is_transactional=True, epoch=number)
        life.marker(2, committed=number % 2 == 0, epoch=number + 1)
        life.sync()
    life.data(3, b"open" * 100, is_transactional=True)
    life.stop()
    disk = life.disk.after_kill()
    *older, newest = snapshots(life)
    assert older
    handle = disk.open(DIRECTORY / newest, create=False)
    if damage == "truncated":
        handle.truncate(handle.size - 1)
    else:
        disk.flip_bit(DIRECTORY / newest, 20, 0)
    if not is_clean:
        disk.remove(DIRECTORY / ".clean_shutdown")
    following = again(life, disk)
    assert following.replica.log.was_clean is is_clean
    inspect(following.replica, life.history)
    assert following.replica.machine.snapshot() == life.replica.machine.snapshot()
    assert newest not in snapshots(following)
    assert set(older) <= set(snapshots(following))


# Truncation to an offset between two snapshots


def test_truncation_between_two_snapshots_leaves_the_state_of_the_replay_to_there(life):
    life.data(2, b"open" * 100, is_transactional=True)
    for _ in range(9):
        life.data(1, b"a" * 1_000)
    life.marker(2, committed=False)
    life.sync()
    offsets = [int(name.partition(".")[0]) for name in snapshots(life)]
    assert len(offsets) >= 2
    between = offsets[-1] - 1
    assert offsets[-2] < between
    life.truncate(between)
    assert [int(name.partition(".")[0]) for name in snapshots(life)] == offsets[:-1]
    # The marker is gone, so the transaction is open again and holds the last stable offset.
    assert life.replica.machine.open_transaction_count == 1
    assert life.replica.machine.last_stable_offset == 0
    inspect(life.replica, life.history)
    for disk in (
        life.disk.after_kill(),
        life.disk.after_power_loss(DataLoss.ALL, NameLoss.ALL, Random(0)),
    ):
        inspect(again(life, disk).replica, life.history)


# A crash with a torn last batch


def test_torn_last_batch_is_cut_at_its_crc_and_everything_beside_the_log_is_rebuilt(life):
    for number in range(6):
        life.data(1, b"a" * 700)
        life.data(2, b"b" * 300, is_transactional=True, epoch=number)
        life.marker(2, committed=False, epoch=number + 1)
        life.sync()
    torn = life.disk.after_kill()
    logs = [name for name in torn.list_directory(DIRECTORY) if name.endswith(".log")]
    path = DIRECTORY / logs[-1]
    handle = torn.open(path, create=False)
    whole = handle.size
    handle.append((life.history.batches[-1][:61] + b"torn",))
    # The indexes of the last segment are what a crash may leave of them.
    for suffix in (".index", ".timeindex", ".txnindex"):
        torn.open(path.with_suffix(suffix), create=True).append((b"\x01" * 13,))
    following = again(life, torn)
    cut = following.replica.log.cut
    assert cut is not None
    assert (cut.path, cut.position, cut.cut_bytes) == (path, whole, 65)
    assert cut.defect is TailDefect.SHORT_BATCH
    assert torn.file_size(path) == whole < SEGMENT_BYTES
    inspect(following.replica, life.history)
    before = torn.files()
    second = again(following)
    assert second.replica.log.cut is None
    inspect(second.replica, life.history)
    assert second.disk.files() == before
