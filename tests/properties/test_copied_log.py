"""Whatever a follower had before a cut or a restart, it has what it would have without."""

from __future__ import annotations

from copied_logs import STEPS, CopiedLog, LeaderLog, state_of
from crash_disk import CrashDisk
from hypothesis import event, given
from hypothesis import strategies as st

from oncelog.actors.protocol.partition.partition_machine import Role
from oncelog.storage.records.batch import parse_header

SHARE = st.floats(0, 1)


def never_cut(batches: list[bytes]) -> CopiedLog:
    copied = CopiedLog(CrashDisk())
    for batch in batches:
        copied.take(batch)
    copied.sync()
    return copied


def reopened(copied: CopiedLog, *, is_clean: bool) -> CopiedLog:
    copied.directory.close(copied.log, is_sound=is_clean, remove_data=False)
    return CopiedLog(copied.disk.after_kill())


def compare(copied: CopiedLog, batches: list[bytes], *, is_clean: bool) -> None:
    """With a log that was never cut: as they are, and as the next process finds them."""
    other = never_cut(batches)
    other.advance(copied.machine.high_watermark)
    assert copied.machine.last_stable_offset <= other.machine.last_stable_offset
    assert state_of(copied) == state_of(other)
    copied.sync()
    found, expected = reopened(copied, is_clean=is_clean), reopened(other, is_clean=is_clean)
    assert found.log.was_clean is is_clean
    assert state_of(found) == state_of(expected)
    assert found.log.cut is None


@given(
    before=STEPS,
    after=STEPS,
    cuts=st.lists(SHARE, min_size=1, max_size=3),
    synced=SHARE,
    committed=SHARE,
    is_clean=st.booleans(),
)
def test_append_cut_and_append_is_as_if_never_cut(
    before, after, cuts, synced, committed, is_clean
) -> None:
    """A leader's log is copied in part, and cut for the next leader's, some times over."""
    leader = LeaderLog()
    leader.run(before)
    copied = CopiedLog(CrashDisk())
    for number, batch in enumerate(leader.batches):
        copied.take(batch)
        if number == int(synced * len(leader.batches)):
            copied.sync()
            copied.advance(int(committed * copied.log.log_end_offset))
    for share in cuts:
        high_watermark = copied.machine.high_watermark
        offset = int(share * leader.next_offset)
        copied.cut(offset)
        leader.cut(offset)
        end = copied.log.log_end_offset
        assert end == copied.machine.log_end_offset == leader.next_offset <= offset
        assert copied.machine.high_watermark == min(high_watermark, end)
        assert copied.log.high_watermark <= end
        assert copied.log.recovery_point == end
        assert copied.machine.role is Role.FOLLOWER
        event(f"high watermark {'cut' if end < high_watermark else 'kept'}")
        kept = len(leader.batches)
        leader.run(after)
        for batch in leader.batches[kept:]:
            copied.take(batch)
    assert copied.batches == leader.batches
    event(f"{min(copied.log.segment_count, 4)} segments")
    compare(copied, leader.batches, is_clean=is_clean)


@given(before=STEPS, after=STEPS, offset=st.integers(0, 80), is_clean=st.booleans())
def test_a_restarted_log_knows_nothing_of_what_was_there(before, after, offset, is_clean) -> None:
    leader, next_leader = LeaderLog(), LeaderLog(next_offset=offset, epoch=7)
    leader.run(before)
    next_leader.run(after)
    copied = CopiedLog(CrashDisk())
    for batch in leader.batches:
        copied.take(batch)
    copied.restart(offset)
    assert copied.machine.high_watermark == copied.machine.log_start_offset == offset
    other = CopiedLog(CrashDisk())
    other.restart(offset)
    for batch in next_leader.batches:
        copied.take(batch)
        other.take(batch)
    assert state_of(copied) == state_of(other)
    copied.sync()
    copied = reopened(copied, is_clean=is_clean)
    assert copied.batches == next_leader.batches
    assert copied.log.log_start_offset == offset
    epochs = [parse_header(batch).leader_epoch for batch in next_leader.batches]
    assert [epoch for epoch, _ in copied.log.leader_epochs] == sorted(set(epochs))


@given(steps=STEPS, committed=SHARE, is_clean=st.booleans())
def test_an_open_begins_at_the_high_watermark_that_the_log_remembers(
    steps, committed, is_clean
) -> None:
    leader = LeaderLog()
    leader.run(steps)
    copied = never_cut(leader.batches)
    copied.advance(int(committed * leader.next_offset))
    copied.log.record_checkpoint()
    found = reopened(copied, is_clean=is_clean)
    assert found.machine.high_watermark == copied.machine.high_watermark
