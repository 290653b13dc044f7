"""What a leader knows of one follower: each state and event."""

from __future__ import annotations

from oncelog.actors.protocol.partition.followers import (
    BACKOFF_MAX_MS,
    BACKOFF_MIN_MS,
    FollowerProgress,
    FollowerState,
    PushedBounds,
)

TOLD = PushedBounds(5, 0)
NEWER = PushedBounds(6, 0)


def due(
    progress: FollowerProgress, now_ms: int, end: int = 10, bounds: PushedBounds = TOLD
) -> bool:
    return progress.is_due(now_ms, log_end_offset=end, bounds=bounds, bounds_push_ms=500)


def replicating(end_offset: int = 10, now_ms: int = 0) -> FollowerProgress:
    progress = FollowerProgress(next_offset=end_offset, now_ms=now_ms)
    send(progress, now_ms, end_offset)
    progress.acknowledged(end_offset, now_ms, log_end_offset=end_offset)
    return progress


def send(progress: FollowerProgress, now_ms: int, end: int = 10) -> None:
    assert progress.answered(progress.sent(now_ms, log_end_offset=end, bounds=TOLD))


def test_of_a_new_follower_nothing_is_known_and_a_probe_is_due() -> None:
    progress = FollowerProgress(next_offset=10, now_ms=0)
    assert (progress.state, progress.match_offset) == (FollowerState.PROBING, -1)
    assert due(progress, 0)


def test_one_push_at_a_time_is_in_flight() -> None:
    progress = FollowerProgress(next_offset=0, now_ms=0)
    number = progress.sent(0, log_end_offset=10, bounds=TOLD)
    assert not due(progress, 10_000)
    assert progress.due_ms(log_end_offset=10, bounds=TOLD, bounds_push_ms=500) is None
    assert progress.answered(number)
    assert due(progress, 0)


def test_answer_to_an_earlier_push_is_ignored() -> None:
    progress = FollowerProgress(next_offset=0, now_ms=0)
    first = progress.sent(0, log_end_offset=10, bounds=TOLD)
    assert progress.answered(first)
    second = progress.sent(0, log_end_offset=10, bounds=TOLD)
    assert not progress.answered(first)
    assert not due(progress, 0)
    assert progress.answered(second)


def test_agreement_starts_replicating_where_the_follower_ends() -> None:
    progress = replicating(7)
    assert progress.state is FollowerState.REPLICATING
    assert (progress.next_offset, progress.match_offset) == (7, 7)
    assert due(progress, 0, end=8)
    assert not due(progress, 10_000, end=7)


def test_a_follower_where_consumers_wait_is_told_new_bounds_at_once() -> None:
    progress = replicating()
    send(progress, 1_000)
    progress.acknowledged(10, 1_000, log_end_offset=10, has_readers=True)
    assert not due(progress, 1_000)
    assert due(progress, 1_000, bounds=NEWER)
    assert progress.due_ms(log_end_offset=10, bounds=NEWER, bounds_push_ms=500) == 1_000
    send(progress, 1_000)
    progress.acknowledged(10, 1_000, log_end_offset=10)
    assert not due(progress, 1_499, bounds=NEWER)
    assert due(progress, 1_500, bounds=NEWER)
    assert progress.due_ms(log_end_offset=10, bounds=NEWER, bounds_push_ms=500) == 1_500


def test_divergence_probes_further_back_and_nothing_counts_as_replicated() -> None:
    for progress in (replicating(), FollowerProgress(next_offset=10, now_ms=0)):
        send(progress, 0)
        progress.diverged(4)
        assert progress.state is FollowerState.PROBING
        assert (progress.next_offset, progress.match_offset) == (4, -1)
        assert due(progress, 0)


def test_errors_back_off_longer_each_time_until_a_push_succeeds() -> None:
    progress = FollowerProgress(next_offset=0, now_ms=0)
    waits = []
    now_ms = 0
    for _ in range(7):
        send(progress, now_ms)
        progress.failed(now_ms)
        wake_ms = progress.due_ms(log_end_offset=10, bounds=TOLD, bounds_push_ms=500)
        assert wake_ms is not None
        assert not due(progress, wake_ms - 1)
        assert due(progress, wake_ms)
        waits.append(wake_ms - now_ms)
        now_ms = wake_ms
    assert waits[:3] == [BACKOFF_MIN_MS, 2 * BACKOFF_MIN_MS, 4 * BACKOFF_MIN_MS]
    assert waits[-1] == BACKOFF_MAX_MS
    send(progress, now_ms)
    progress.acknowledged(5, now_ms, log_end_offset=10)
    assert due(progress, now_ms)
    progress.failed(now_ms)
    assert due(progress, now_ms + BACKOFF_MIN_MS)


def test_new_bounds_are_told_but_not_at_once() -> None:
    progress = replicating(10, now_ms=100)
    assert not due(progress, 599, bounds=NEWER)
    assert progress.due_ms(log_end_offset=10, bounds=NEWER, bounds_push_ms=500) == 600
    assert due(progress, 600, bounds=NEWER)
    assert progress.due_ms(log_end_offset=10, bounds=TOLD, bounds_push_ms=500) is None


def test_bounds_of_a_push_that_failed_are_not_told() -> None:
    progress = replicating(10)
    number = progress.sent(1_000, log_end_offset=10, bounds=NEWER)
    assert progress.answered(number)
    progress.failed(1_000)
    assert due(progress, 1_500, bounds=NEWER)


# --- in sync ---------------------------------------------------------------------------------


def in_sync(progress: FollowerProgress, now_ms: int, end: int) -> bool:
    return progress.is_in_sync(now_ms, log_end_offset=end, lag_max_ms=30_000)


def test_follower_that_has_everything_is_in_sync_however_long_it_was_silent() -> None:
    progress = replicating(10)
    assert in_sync(progress, 10**9, 10)
    assert progress.lags_after_ms(log_end_offset=10, lag_max_ms=30_000) is None


def test_follower_that_lacks_something_is_in_sync_for_the_lag_time() -> None:
    progress = replicating(10, now_ms=1_000)
    assert in_sync(progress, 31_000, 11)
    assert not in_sync(progress, 31_001, 11)
    assert progress.lags_after_ms(log_end_offset=11, lag_max_ms=30_000) == 31_001


def test_follower_that_has_everything_lags_from_the_push_on_that_brings_more() -> None:
    """Not from its last answer on, which is old when nothing was appended for a while."""
    progress = replicating(10, now_ms=1_000)
    number = progress.sent(100_000, log_end_offset=11, bounds=TOLD)
    assert in_sync(progress, 130_000, 11)
    assert not in_sync(progress, 130_001, 11)
    assert progress.answered(number)
    progress.failed(100_000)
    progress.sent(120_000, log_end_offset=12, bounds=TOLD)
    assert not in_sync(progress, 130_001, 12)


def test_new_follower_counts_as_caught_up_when_its_leader_began() -> None:
    progress = FollowerProgress(next_offset=0, now_ms=5_000)
    assert in_sync(progress, 35_000, 1)
    assert not in_sync(progress, 35_001, 1)


def test_follower_behind_a_growing_log_was_caught_up_when_its_goal_was_set() -> None:
    """It never has everything, but soon has all that the leader had a while ago."""
    progress = replicating(10, now_ms=0)
    send(progress, 1_000, end=20)
    progress.acknowledged(15, 2_000, log_end_offset=30)
    assert in_sync(progress, 31_000, 30)
    assert not in_sync(progress, 31_001, 30)
    send(progress, 2_000, end=30)
    progress.acknowledged(20, 3_000, log_end_offset=40)
    assert in_sync(progress, 31_000, 40)
    assert not in_sync(progress, 31_001, 40)
    send(progress, 4_000, end=40)
    progress.acknowledged(40, 5_000, log_end_offset=50)
    assert in_sync(progress, 34_000, 50)
    assert not in_sync(progress, 34_001, 50)


def test_clock_that_goes_back_takes_nothing_away() -> None:
    progress = replicating(10, now_ms=9_000)
    send(progress, 2_000, end=10)
    progress.acknowledged(10, 2_000, log_end_offset=10)
    assert in_sync(progress, 39_000, 11)


def test_one_that_begins_anew_has_to_say_again_what_it_has() -> None:
    progress = replicating()
    number = progress.sent(0, log_end_offset=10, bounds=TOLD)
    progress.reset()
    assert not progress.answered(number)
    assert (progress.state, progress.match_offset) == (FollowerState.PROBING, -1)
    assert due(progress, 0)


def test_a_log_start_counts_as_told_only_where_the_follower_has_what_it_hides() -> None:
    progress = FollowerProgress(next_offset=0, now_ms=0)
    number = progress.sent(0, log_end_offset=10, bounds=PushedBounds(9, 7))
    assert progress.answered(number)
    progress.acknowledged(5, 0, log_end_offset=10)
    assert progress.acknowledged_log_start_offset == 5
    progress.acknowledged(10, 0, log_end_offset=10)
    assert progress.acknowledged_log_start_offset == 7
    progress.reset()
    assert progress.acknowledged_log_start_offset == -1


def test_lag_is_the_time_since_it_had_everything() -> None:
    progress = replicating(10, now_ms=1_000)
    assert progress.lag_ms(9_000, log_end_offset=10) == 0
    assert progress.lag_ms(9_000, log_end_offset=11) == 8_000


def test_one_whose_disk_refuses_is_in_sync_only_with_everything() -> None:
    progress = replicating(10, now_ms=1_000)
    progress.refused(1_000)
    assert progress.is_in_sync(1_001, log_end_offset=10, lag_max_ms=30_000)
    assert not progress.is_in_sync(1_001, log_end_offset=11, lag_max_ms=30_000)
    progress.acknowledged(11, 1_002, log_end_offset=12)
    assert progress.is_in_sync(1_003, log_end_offset=12, lag_max_ms=30_000)


def test_a_refusal_of_the_disk_ends_by_what_it_refused_and_not_by_an_empty_push() -> None:
    """1. A full follower refuses what follows 10, and is out of sync. 2. The partition changes, and
    it is asked anew: it agrees, with what it had. 3. There is room: it takes what it refused.
    """
    progress = FollowerProgress(next_offset=10, now_ms=0)
    number = progress.sent(0, log_end_offset=10, bounds=PushedBounds())
    assert progress.answered(number)
    progress.acknowledged(10, 0, log_end_offset=10)
    number = progress.sent(100, log_end_offset=20, bounds=PushedBounds())
    assert progress.answered(number)
    progress.refused(100)

    def is_in_sync() -> bool:
        return progress.is_in_sync(200, log_end_offset=20, lag_max_ms=8_000)

    assert not is_in_sync()
    progress.reset()
    progress.sent(150, log_end_offset=20, bounds=PushedBounds())
    progress.acknowledged(10, 150, log_end_offset=20)
    assert not is_in_sync()
    progress.diverged(10)
    assert not is_in_sync()
    progress.sent(190, log_end_offset=20, bounds=PushedBounds())
    progress.acknowledged(15, 190, log_end_offset=20)
    assert is_in_sync()
