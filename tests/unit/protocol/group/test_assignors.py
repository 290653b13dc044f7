"""Partition assignment: complete, disjoint, and as even or as sticky as promised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.actors.protocol.group.consumer_protocol import (
    ASSIGNORS,
    AssignmentPlan,
    Subscriber,
    assign_range,
    assign_round_robin,
    assign_sticky,
)
from oncelog.storage.model import TopicPartition

TOPICS = ("a", "b", "c")


def members(*names: str, topics: tuple[str, ...] = ("a",)) -> list[Subscriber]:
    return [Subscriber(member_id=name, topics=topics) for name in names]


def owned_by(plan: AssignmentPlan, subscribers: list[Subscriber]) -> list[Subscriber]:
    """The same members, holding what the plan gave them."""
    return [
        Subscriber(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=member.topics,
            owned_partitions=plan.get(member.member_id, ()),
        )
        for member in subscribers
    ]


def shown(plan: AssignmentPlan) -> dict[str, str]:
    return {
        member_id: " ".join(f"{tp.topic}{tp.partition}" for tp in partitions)
        for member_id, partitions in plan.items()
    }


def test_range_gives_each_member_one_range_of_each_topic() -> None:
    plan = assign_range(members("y", "x", topics=("a", "b")), {"a": 3, "b": 2})
    assert shown(plan) == {"x": "a0 a1 b0", "y": "a2 b1"}


def test_range_leaves_members_without_partitions_when_there_are_too_few() -> None:
    assert shown(assign_range(members("x", "y", "z"), {"a": 2})) == {"x": "a0", "y": "a1", "z": ""}


def test_round_robin_deals_all_topics_in_one_circle() -> None:
    plan = assign_round_robin(members("y", "x", topics=("a", "b")), {"a": 3, "b": 2})
    assert shown(plan) == {"x": "a0 a2 b1", "y": "a1 b0"}


def test_round_robin_passes_over_members_that_did_not_subscribe() -> None:
    subscribers = [
        Subscriber(member_id="x", topics=("a",)),
        Subscriber(member_id="y", topics=("a", "b")),
    ]
    assert shown(assign_round_robin(subscribers, {"a": 2, "b": 2})) == {"x": "a0", "y": "a1 b0 b1"}


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_static_member_keeps_its_share_under_a_new_member_id(name: str) -> None:
    def plan(member_id: str) -> AssignmentPlan:
        static = Subscriber(member_id=member_id, group_instance_id="i", topics=("a",))
        return ASSIGNORS[name]([*members("m"), static], {"a": 3})

    assert plan("aaa")["aaa"] == plan("zzz")["zzz"]


def test_sticky_moves_only_what_a_newcomer_needs() -> None:
    old = members("x", "y")
    first = assign_sticky(old, {"a": 6})
    second = assign_sticky([*owned_by(first, old), *members("z")], {"a": 6})
    assert all(set(second[name]) < set(first[name]) for name in ("x", "y"))
    assert [len(second[name]) for name in "xyz"] == [2, 2, 2]


def test_sticky_gives_the_partitions_of_who_left_to_the_others() -> None:
    old = members("x", "y", "z")
    first = assign_sticky(old, {"a": 6})
    second = assign_sticky(owned_by(first, old)[:2], {"a": 6})
    assert all(set(first[name]) < set(second[name]) for name in ("x", "y"))


def test_sticky_ignores_a_claim_that_two_members_make() -> None:
    claimed = (TopicPartition("a", 0), TopicPartition("a", 1))
    both = [
        Subscriber(member_id=name, topics=("a",), owned_partitions=claimed) for name in ("x", "y")
    ]
    assert shown(assign_sticky(both, {"a": 2})) == {"x": "a0", "y": "a1"}


def test_sticky_takes_away_what_is_no_longer_subscribed_or_no_longer_there() -> None:
    stale = (TopicPartition("b", 0), TopicPartition("a", 9))
    member = Subscriber(member_id="x", topics=("a",), owned_partitions=stale)
    assert shown(assign_sticky([member], {"a": 1, "b": 1})) == {"x": "a0"}


def test_topic_nobody_knows_is_left_out() -> None:
    for assign in ASSIGNORS.values():
        assert assign(members("x", topics=("nowhere",)), {}) == {"x": ()}


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Subscriber], dict[str, int]]:
    counts = {topic: draw(st.integers(1, 7)) for topic in TOPICS}
    partitions = [TopicPartition(topic, n) for topic in TOPICS for n in range(counts[topic])]
    return [
        Subscriber(
            member_id=f"m{index}",
            group_instance_id=draw(st.none() | st.just(f"i{index}")),
            topics=tuple(draw(st.sets(st.sampled_from(TOPICS), min_size=1))),
            owned_partitions=tuple(draw(st.sets(st.sampled_from(partitions)))),
        )
        for index in range(draw(st.integers(1, 5)))
    ], counts


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(group=groups())
def test_every_partition_goes_to_one_subscriber(
    name: str, group: tuple[list[Subscriber], dict[str, int]]
) -> None:
    subscribers, counts = group
    plan = ASSIGNORS[name](subscribers, counts)
    given_out = [tp for partitions in plan.values() for tp in partitions]
    topics = {topic for member in subscribers for topic in member.topics}
    wanted = {TopicPartition(topic, n) for topic in topics for n in range(counts[topic])}
    assert sorted(given_out) == sorted(wanted)
    for member in subscribers:
        assert {tp.topic for tp in plan[member.member_id]} <= set(member.topics)


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(group=groups(), randomness=st.randoms(use_true_random=False))
def test_plan_does_not_depend_on_the_order_of_members(
    name: str, group: tuple[list[Subscriber], dict[str, int]], randomness: object
) -> None:
    subscribers, counts = group
    shuffled = list(subscribers)
    randomness.shuffle(shuffled)  # type: ignore[attr-defined]
    assert ASSIGNORS[name](shuffled, counts) == ASSIGNORS[name](subscribers, counts)


@given(group=groups())
def test_sticky_plan_cannot_be_made_more_even_by_one_move(
    group: tuple[list[Subscriber], dict[str, int]],
) -> None:
    subscribers, counts = group
    plan = assign_sticky(subscribers, counts)
    for partitions in plan.values():
        for tp in partitions:
            for member in subscribers:
                if tp.topic in member.topics:
                    assert len(plan[member.member_id]) + 1 >= len(partitions)


@given(group=groups())
def test_sticky_plan_is_kept_when_nothing_changes(
    group: tuple[list[Subscriber], dict[str, int]],
) -> None:
    subscribers, counts = group
    plan = assign_sticky(subscribers, counts)
    assert assign_sticky(owned_by(plan, subscribers), counts) == plan
