"""Ids at rest: the longest first, whatever order they came in, and nothing else looked at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog.actors.protocol.transaction.ids import RestingIds

MOVES = st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 9)), max_size=300)


@given(MOVES, st.integers(0, 9))
def test_answers_are_those_of_a_plain_table(
    moves: list[tuple[str, int | None]], bound: int
) -> None:
    resting, plain = RestingIds(), dict[str, int]()
    for name, since_ms in moves:
        if since_ms is None:
            resting.discard(name)
            plain.pop(name, None)
        else:
            resting.add(name, since_ms)
            plain[name] = since_ms
        expected = sorted((time_ms, key) for key, time_ms in plain.items() if time_ms <= bound)
        assert resting.until(bound) == tuple(key for _, key in expected)
        assert len(resting) == len(plain)


def test_a_busy_id_leaves_no_trail() -> None:
    resting = RestingIds()
    for time_ms in range(10_000):
        resting.add("busy", time_ms)
    assert len(resting._order) < 100
    assert resting.until(9_998) == ()
    assert resting.until(9_999) == ("busy",)
