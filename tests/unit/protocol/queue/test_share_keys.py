"""What is known of keys: only what is needed, and nothing twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog.actors.protocol.queue.share_keys import (
    KEYS_PER_READ_MAX,
    NO_RECORD,
    UNREADABLE,
    KnownKeys,
)


def test_what_a_read_did_not_find_is_not_there():
    keys = KnownKeys("id")
    keys.learn(3, 6, {3: 30, 5: 50, 9: 90})
    assert keys.hashes == {3: 30, 4: NO_RECORD, 5: 50}
    assert keys.gaps == {4}


def test_what_cannot_be_read_is_no_gap():
    keys = KnownKeys("id")
    keys.learn_unreadable(3, 5)
    assert keys.hashes == {3: UNREADABLE, 4: UNREADABLE}
    assert keys.gaps == set()
    keys.learn_unreadable(10, 10**12)
    assert len(keys.hashes) == 2 + KEYS_PER_READ_MAX


def test_the_first_unknown_offset_is_found_in_any_span():
    keys = KnownKeys("id")
    assert keys.first_unknown([(2, 3), (8, 9)]) == 2
    keys.learn(2, 4, {})
    assert keys.first_unknown([(2, 3), (8, 9)]) == 8
    keys.learn(8, 20, {})
    assert keys.first_unknown([(2, 3), (8, 9)]) is None
    # What could not be acquired yet may be needed later.
    assert keys.first_unknown([(2, 3), (8, 25)]) == 20
    assert keys.first_unknown([]) is None


def test_a_read_tells_no_more_than_it_may_and_the_rest_stays_unknown():
    keys = KnownKeys("id")
    keys.learn(0, 10**12, {})
    assert len(keys.hashes) == KEYS_PER_READ_MAX
    assert keys.first_unknown([(0, 10**12)]) == KEYS_PER_READ_MAX


def test_what_is_done_with_is_forgotten_and_the_rest_is_kept():
    keys = KnownKeys("id")
    keys.learn(0, 30, {})
    keys.keep([(1, 2), (7, 7), (20, 40)])
    assert sorted(keys.hashes) == sorted(keys.gaps) == [1, 2, 7, *range(20, 30)]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), max_size=12))
def test_reading_what_is_unknown_ends_with_all_that_is_needed(steps):
    """Spans only lose offsets and grow at their end, as those of a partition do."""
    keys, done, end = KnownKeys("id"), set[int](), 1
    for offset, growth in steps:
        done.add(offset)
        end += growth
        needed = [(n, n) for n in range(end) if n not in done]
        while (unknown := keys.first_unknown(needed)) is not None:
            assert unknown not in keys.hashes
            keys.keep(needed)
            keys.learn(unknown, unknown + 3, {})
        assert keys.hashes.keys() >= {n for n, _ in needed}
