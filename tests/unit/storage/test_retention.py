from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.storage.log_settings import RetentionPolicy, SegmentFacts, removable_count

NOW_MS = 1_000_000


def segments(*ages_ms: int | None) -> list[SegmentFacts]:
    """Segments of ten offsets and 100 bytes; an age of None stands for no timestamps."""
    return [
        SegmentFacts(
            next_offset=10 * number,
            size_bytes=100,
            max_timestamp_ms=-1 if age_ms is None else NOW_MS - age_ms,
        )
        for number, age_ms in enumerate(ages_ms, 1)
    ]


def count(facts, *, time_ms=-1, size_bytes=-1, log_start_offset=0, upper_offset=1_000) -> int:
    return removable_count(
        facts,
        policy=RetentionPolicy(time_ms=time_ms, size_bytes=size_bytes),
        total_bytes=sum(segment.size_bytes for segment in facts),
        log_start_offset=log_start_offset,
        upper_offset=upper_offset,
        now_ms=NOW_MS,
    )


def test_without_limits_everything_stays():
    assert count(segments(10**6, 10**6)) == 0


@pytest.mark.parametrize(("age_ms", "expected"), [(100, 0), (101, 1)])
def test_a_segment_goes_when_it_is_older_than_the_limit_and_not_when_it_is_as_old(age_ms, expected):
    assert count(segments(age_ms), time_ms=100) == expected


def test_a_young_segment_keeps_the_older_ones_behind_it():
    assert count(segments(500, 50, 500), time_ms=100) == 1


def test_a_timestamp_of_the_future_makes_a_segment_stay():
    assert count(segments(-5_000, 500), time_ms=0) == 0


def test_a_segment_without_timestamps_goes_with_the_next_one_that_is_too_old():
    assert count(segments(None, None, 500), time_ms=100) == 3


def test_a_segment_without_timestamps_stays_with_the_next_one_that_stays():
    assert count(segments(None, 50), time_ms=100) == 0
    assert count(segments(None), time_ms=0) == 0


@pytest.mark.parametrize(
    ("size_bytes", "expected"), [(0, 4), (99, 3), (100, 3), (101, 2), (300, 1), (301, 0)]
)
def test_by_size_as_much_as_the_limit_is_always_left(size_bytes, expected):
    assert count(segments(0, 0, 0, 0), size_bytes=size_bytes) == expected


def test_nothing_beyond_the_high_watermark_goes():
    assert count(segments(500, 500, 500), time_ms=0, upper_offset=20) == 2
    assert count(segments(500, 500, 500), time_ms=0, upper_offset=19) == 1


def test_a_segment_below_the_log_start_goes_whatever_the_policy():
    assert count(segments(0, 0, 0), log_start_offset=20) == 2
    assert count(segments(0, 0, 0), log_start_offset=29) == 2


def test_age_and_size_together_reach_as_far_as_either_reaches_from_there():
    assert count(segments(0, 500, 0), time_ms=100, size_bytes=200) == 2


def test_no_more_segments_are_looked_at_than_needed():
    def endless():
        yield from segments(500, 0)
        raise AssertionError("looked too far")

    policy = RetentionPolicy(time_ms=100)
    found = removable_count(
        endless(),
        policy=policy,
        total_bytes=300,
        log_start_offset=0,
        upper_offset=1_000,
        now_ms=NOW_MS,
    )
    assert found == 1


@given(
    ages=st.lists(st.one_of(st.none(), st.integers(-500, 500)), max_size=8),
    time_ms=st.integers(-1, 300),
    size_bytes=st.integers(-1, 900),
    log_start_offset=st.integers(0, 90),
    upper_offset=st.integers(0, 90),
)
def test_what_goes_is_readable_by_all_and_what_stays_had_a_reason(
    ages, time_ms, size_bytes, log_start_offset, upper_offset
):
    facts = segments(*ages)
    gone = count(
        facts,
        time_ms=time_ms,
        size_bytes=size_bytes,
        log_start_offset=log_start_offset,
        upper_offset=upper_offset,
    )
    assert all(segment.next_offset <= upper_offset for segment in facts[:gone])
    if gone < len(facts) and facts[gone].next_offset <= upper_offset:
        kept = facts[gone]
        left = 100 * (len(facts) - gone - 1)
        assert kept.next_offset > log_start_offset
        assert size_bytes < 0 or left < size_bytes
        age_ms = NOW_MS - kept.max_timestamp_ms
        assert time_ms < 0 or kept.max_timestamp_ms < 0 or age_ms <= time_ms
