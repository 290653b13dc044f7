"""Directed schedules: deaths, lost power and failing disks around the end of a transaction.

Each partition has one replica, so a restarted leader stands in for a newly elected one;
schedules about followers and elections wait for replication.
"""

from __future__ import annotations

import pytest
from msgspec import structs
from sim_schedules import TIMES, A, B, C, Call, Play, Writer

from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import NO_OFFSET, IsolationLevel

DEATH = pytest.mark.parametrize("is_power_lost", [False, True], ids=["killed", "power lost"])
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED


def _written(play: Play) -> Writer:
    """A writer whose transaction has a1 in A and b1 in B."""
    writer = play.writer()
    writer.begin()
    writer.send("a", "a1")
    writer.send("b", "b1")
    return writer


def _has_both(play: Play) -> bool:
    return (play.read("a"), play.read("b")) == (["a1"], ["b1"])


# --- around the decision ------------------------------------------------------------------------


@TIMES
@pytest.mark.parametrize("dead", [(C,), (C, B), (C, A, B)], ids=["C", "C, B", "all"])
def test_what_was_decided_is_finished_by_the_next_coordinator(times, dead):
    """1. P asks to commit; A has its marker, that to B is held. 2. C dies (and leaders).
    3. P repeats its call. 4. C's successor finishes; then the held marker arrives.
    """
    with Play() as play:
        writer = _written(play)
        gate = play.hold("write_txn_markers", callee=B)
        ending = writer.start(writer.committing())
        play.until_held(gate)
        play.crash(*dead)
        assert play.end(ending) in (True, False)
        play.pass_time()
        gate.release(times=times)
        play.pass_time()
        assert _has_both(play)
        assert play.log_end(B) == 2


@DEATH
@pytest.mark.parametrize("step", ["asked", "decided", "half marked", "complete"])
def test_a_cluster_that_dies_at_any_step_of_a_commit_commits_it(step, is_power_lost):
    """1. P asks to commit. 2. Everything dies: before PREPARE is durable, after it, when A has its
    marker, or when all is complete and the reply on its way. 3. P's call is repeated: committed,
    with all that it acknowledged.
    """
    with Play() as play:
        writer = _written(play)
        if step == "asked":
            play.world.hold_disk(C)
        gate = {
            "asked": lambda: play.hold("write_txn_markers"),
            "decided": lambda: play.hold("write_txn_markers", limit=2),
            "half marked": lambda: play.hold("write_txn_markers", callee=B),
            "complete": lambda: play.hold("end_txn", reply=True),
        }[step]()
        ending = writer.start(writer.committing())
        if step == "asked":
            play.pass_time(0.2)
        else:
            play.until_held(gate, 2 if step == "decided" else 1)
        play.crash_all(is_power_lost=is_power_lost)
        gate.release_all()
        assert play.end(ending) in (True, False)
        assert play.watch.counts["transaction records"]
        play.pass_time()
        assert _has_both(play)


@DEATH
def test_a_cluster_that_dies_before_anybody_asked_resolves_what_is_open(is_power_lost):
    """1. P has written T1. 2. P and everything else dies. 3. T1's time is over: aborted."""
    with Play() as play:
        _written(play)
        play.world.kill("P")
        play.crash_all(is_power_lost=is_power_lost)
        play.pass_time(90)
        assert (play.read("a"), play.read("b")) == ([], [])
        assert play.read("a", UNCOMMITTED) == ["a1"]


@TIMES
def test_a_commit_whose_reply_is_lost_is_told_again_and_cannot_be_turned(times):
    """1. P asks to commit: complete, and C dies before its reply leaves. 2. P repeats the call:
    committed. 3. An abort of T1: refused. 4. Again after that: still committed, and no T2.
    """
    with Play() as play:
        writer = _written(play)
        gate = play.hold("end_txn", reply=True)
        ending = writer.start(writer.committing())
        play.until_held(gate)
        play.crash(C)
        assert play.end(ending) is True
        (call, *_) = play.calls("end_txn")
        turned = Call(C, structs.replace(call.request, committed=False))
        assert play.ask(turned, times).error is ErrorCode.INVALID_TXN_STATE
        assert play.ask(call, times).error is ErrorCode.NONE
        assert _has_both(play)
        assert play.log_end(A) == 2


# --- leaders ------------------------------------------------------------------------------------


@TIMES
@DEATH
def test_a_record_whose_reply_is_lost_has_its_first_place_after_a_restart(times, is_power_lost):
    """1. A appends m1 durably; its reply is held. 2. A dies. 3. P sends m1 again: the answer is the
    place of the first. 4. The first reply arrives too.
    """
    with Play() as play:
        writer = play.writer()
        writer.begin()
        writer.send("a", "m0")
        gate = play.hold("produce", reply=True)
        sending = writer.start(writer.sending("a", "m1"))
        play.until_held(gate)
        if is_power_lost:
            play.crash_all(is_power_lost=True)
        else:
            play.crash(A)
        play.end(sending)
        gate.release(times=times)
        assert play.ask(play.calls("produce", A)[-1], times).base_offset == 1
        assert play.log_end(A) == 2
        writer.commit()
        assert play.read("a") == ["m0", "m1"]


def test_a_reader_beside_an_abort_never_sees_a_record_of_it():
    """1. P aborts T1; the disk of A takes its time, so the marker is in the log, not durable.
    2. A reader gets nothing. 3. The disk goes on, and a reader skips T1.
    """
    with Play() as play:
        writer = _written(play)
        play.world.hold_disk(A)
        aborting = writer.start(writer.aborting())
        play.pass_time(0.1)
        assert play.log_end(A) == 2
        assert play.machine(A).last_stable_offset == 0
        assert play.read("a") == []
        play.world.release_disk(A)
        play.end(aborting)
        writer.transaction(a="a2")
        assert (play.read("a"), play.read("a", UNCOMMITTED)) == (["a2"], ["a1", "a2"])


@DEATH
@pytest.mark.parametrize("damage", ["none", "missing", "torn"])
def test_aborted_records_stay_unseen_when_their_index_is_damaged(damage, is_power_lost):
    """1. T1 aborts, T2 commits. 2. A dies, and its aborted index is gone or torn. 3. A reader of
    the restarted A gets T2 alone.
    """
    with Play() as play:
        writer = _written(play)
        writer.abort()
        writer.transaction(a="a2")
        play.stop(A, is_power_lost=is_power_lost)
        _damage(play, A, ".txnindex", damage)
        play.until_serving()
        assert (play.read("a"), play.read("a", UNCOMMITTED)) == (["a2"], ["a1", "a2"])


@TIMES
@pytest.mark.parametrize("damage", ["none", "missing", "torn", "another's", "newer"])
def test_producers_are_known_again_whatever_the_snapshot_is_like(times, damage):
    """1. A leaves a snapshot; P writes on. 2. A dies, and the snapshot is torn, gone, that of
    another partition, or there is one of a longer log. 3. Both batches arrive again: they stand
    where they stood. 4. P goes on in its open transaction, without a gap.
    """
    with Play() as play:
        writer = play.writer()
        writer.begin()
        writer.send("b", "b1", "b2")
        writer.send("a", "a1")
        play.roll(A, B)
        writer.send("a", "a2")
        play.stop(A, is_power_lost=False)
        _damage(play, A, ".snapshot", damage)
        play.until_serving()
        older, newest = play.calls("produce", A)[:2]
        assert play.machine(A).open_transaction_count == 1
        assert play.machine(A).last_stable_offset == 0
        assert play.ask(newest, times).base_offset == 1
        assert play.ask(older, times).base_offset in (0, NO_OFFSET)
        assert play.log_end(A) == 2
        writer.send("a", "a3")
        writer.commit()
        assert play.read("a") == ["a1", "a2", "a3"]


def test_a_record_that_lost_power_took_is_written_by_its_retry():
    """1. P writes m1 durably; m2 is in A's log and not synced. 2. The power fails: m2 is gone.
    3. P sends m2 again: no gap, one copy.
    """
    with Play() as play:
        writer = play.writer()
        writer.begin()
        writer.send("a", "m1")
        play.world.hold_disk(A)
        sending = writer.start(writer.sending("a", "m2"))
        play.pass_time(0.1)
        assert play.log_end(A) == 2
        play.crash_all(is_power_lost=True)
        play.end(sending)
        writer.commit()
        assert play.read("a") == ["m1", "m2"]


def _damage(play: Play, actor: str, suffix: str, damage: str) -> None:
    """Do something to every file of that kind of a dead actor."""
    disk = play.world.disk(actor).next_life()
    paths = [path for path in disk.files() if path.name.endswith(suffix)]
    assert paths
    for path in paths:
        if damage == "missing":
            disk.remove(path)
        elif damage == "torn":
            handle = disk.open(path, create=False)
            handle.truncate(handle.size // 2)
            handle.close()
        elif damage == "newer":
            disk.write_atomically(path.with_stem(f"{9:020d}"), disk.read_whole(path))
        elif damage == "another's":
            others = play.world.disk(B).files().items()
            content = next(content for other, content in others if other.name.endswith(suffix))
            disk.write_atomically(path, content)


# --- disks and zombies --------------------------------------------------------------------------


def test_after_a_failed_sync_nothing_is_acknowledged_until_a_restart():
    """1. A sync of A fails, the next ones would succeed. 2. m1 is not acknowledged, A is offline.
    3. A restarts and takes m1 from what is there, or from P: once.
    """
    with Play() as play:
        writer = play.writer()
        writer.begin()
        play.world.disk(A).fail("datasync", ".log", times=1)
        sending = writer.start(writer.sending("a", "m1"))
        play.pass_time(3)
        assert not sending.done()
        assert play.world.replicas()[A].failure is not None
        assert play.machine(A).high_watermark == 0
        play.crash(A)
        play.end(sending)
        writer.commit()
        assert play.read("a") == ["m1"]


@pytest.mark.parametrize("is_asleep", [True, False], ids=["stopped", "awake"])
def test_a_leader_and_its_successor_never_write_at_once(is_asleep):
    """1. A is stopped or not, and has a successor: it waits for the directory. 2. P writes: nobody
    acknowledges. 3. A goes on and writes what it was asked; it dies. 4. The successor leads from
    its log, and P's record is there once.
    """
    with Play() as play:
        writer = play.writer()
        writer.begin()
        writer.send("a", "m1")
        gate = play.hold("produce", reply=True)
        sending = writer.start(writer.sending("a", "m2"))
        play.until_held(gate)
        if is_asleep:
            play.world.pause(A)
        play.world.replace(A, life_s=None)
        play.pass_time(10)
        assert not play.world.is_ready(A)
        assert not sending.done()
        play.world.resume(A)
        play.pass_time(2)
        assert not play.world.is_ready(A)
        play.world.kill_zombies()
        play.until_serving()
        play.end(sending)
        gate.release_all()
        writer.commit()
        assert play.read("a") == ["m1", "m2"]
        assert play.log_end(A) == 3
