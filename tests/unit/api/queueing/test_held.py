"""Runs of held offsets behave as a dict of single offsets would."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.api.queueing.held import HeldRun, HeldRuns, offsets_by_partition, runs_of
from oncelog.api.records import QueueRecord

OFFSETS = st.integers(0, 12)
SPANS = st.tuples(OFFSETS, OFFSETS).map(lambda pair: (min(pair), max(pair)))
STEPS = st.lists(st.tuples(st.sampled_from(["hold", "give up", "overdue"]), SPANS, OFFSETS))


def record(offset: int, *, topic: str = "tasks", partition: int = 0) -> QueueRecord:
    return QueueRecord(topic, partition, 1, offset, 0, None, None)


def singles(runs: list[HeldRun]) -> dict[int, float]:
    return {n: run.deadline_ms for run in runs for n in range(run.first, run.last + 1)}


@given(STEPS)
def test_what_is_held_is_what_a_dict_of_offsets_would_hold(steps):
    held, model = HeldRuns(), dict[int, float]()
    for what, (first, last), moment in steps:
        span = range(first, last + 1)
        if what == "hold" and not model.keys() & set(span):
            held.hold([(first, last)], moment)
            model |= dict.fromkeys(span, moment)
        elif what == "give up":
            given_up = held.give_up(first, last)
            if model.keys() >= set(span):
                assert given_up is not None
                assert singles(given_up) == {n: model.pop(n) for n in span}
            else:
                assert given_up is None
        elif what == "overdue":
            due = {n: model.pop(n) for n, until in list(model.items()) if until <= moment}
            assert singles(held.take_overdue(moment)) == due
        assert held.count == len(model)
        assert [n for n in range(14) if held.has(n)] == sorted(model)


def test_what_was_given_up_is_restored_as_it_was():
    held = HeldRuns()
    held.hold([(0, 4)], 10.0)
    held.hold([(5, 9)], 20.0)
    given_up = held.give_up(3, 6)
    assert given_up == [HeldRun(3, 4, 10.0), HeldRun(5, 6, 20.0)]
    held.restore(given_up)
    assert singles(held.take_overdue(10.0)) == dict.fromkeys(range(5), 10.0)
    assert held.count == 5


@given(st.lists(OFFSETS, unique=True))
def test_runs_have_each_offset_once_and_no_two_of_them_are_adjacent(offsets):
    runs = runs_of(offsets)
    assert [n for first, last in runs for n in range(first, last + 1)] == sorted(offsets)
    assert all(last + 1 < first for (_, last), (first, _) in itertools.pairwise(runs))


@pytest.mark.parametrize("offsets", [[3, 3], [1, 1, 3], [4, 5, 5]])
def test_an_offset_given_twice_is_in_two_runs(offsets):
    runs = runs_of(offsets)
    assert sorted(n for first, last in runs for n in range(first, last + 1)) == offsets


def test_records_are_sorted_by_topic_and_partition():
    one = [record(2), record(1)]
    assert offsets_by_partition(one) == {("tasks", 0): [2, 1]}
    others = [record(2, partition=1), record(7, topic="more"), record(3, partition=1)]
    found = {("tasks", 0): [2, 1], ("tasks", 1): [2, 3], ("more", 0): [7]}
    assert offsets_by_partition([*one, *others]) == found
    assert offsets_by_partition([]) == {}
