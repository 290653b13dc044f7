"""Partition assignment: complete, disjoint, and as even or as sticky as promised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.actors.protocol.group.consumer_protocol import (
    ASSIGNORS,
    AssignmentPlan,
    Subscriber,
    assign_cooperative_sticky,
    assign_range,
    assign_round_robin,
    assign_sticky,
)
from oncelog.storage.model import TopicPartition

TOPICS = ("a", "b", "c")


def members(*names: str, topics: tuple[str, ...] = ("a",)) -> list[Subscriber]:
    return [Subscriber(member_id=name, topics=topics) for name in names]


def owned_by(
    plan: AssignmentPlan, subscribers: list[Subscriber], generation_id: int = 1
) -> list[Subscriber]:
    """The same members, holding what the plan gave them."""
    return [
        Subscriber(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=member.topics,
            owned_partitions=plan.get(member.member_id, ()),
            generation_id=generation_id,
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


def test_of_two_claims_that_of_the_later_generation_counts() -> None:
    claimed = (TopicPartition("a", 0), TopicPartition("a", 1))
    claims = [
        Subscriber(member_id=name, topics=("a",), owned_partitions=claimed, generation_id=each)
        for name, each in (("x", 4), ("y", 5))
    ]
    claims += members("z")
    assert shown(assign_sticky(claims, {"a": 2})) == {"x": "a1", "y": "a0", "z": ""}
    # The one of the earlier generation must give up its claim before it gets anything.
    assert shown(assign_cooperative_sticky(claims, {"a": 2})) == {"x": "", "y": "a0", "z": ""}


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
            generation_id=draw(st.integers(-1, 2)),
        )
        for index in range(draw(st.integers(1, 5)))
    ], counts


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky"])
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


# --- cooperative rebalances -----------------------------------------------------------------------


class CooperativeGroup:
    """Members that keep what they have as they join, generation after generation.

    After each generation no partition has two owners. A member that must give something up joins
    again, which is the next generation.
    """

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.members: dict[str, Subscriber] = {}
        self.generation_id = 0

    def owners(self) -> dict[TopicPartition, str]:
        owners: dict[TopicPartition, str] = {}
        for member in self.members.values():
            for tp in member.owned_partitions:
                assert tp not in owners, f"{tp} has two owners"
                owners[tp] = member.member_id
        return owners

    def generation(self, late: frozenset[str] = frozenset()) -> bool:
        """One generation, not seen by who is ``late``; whether somebody has to join again."""
        self.generation_id += 1
        plan = assign_cooperative_sticky(list(self.members.values()), self.counts)
        has_revoked = False
        for member_id, member in list(self.members.items()):
            if member_id in late:
                continue
            has_revoked |= bool(set(member.owned_partitions) - set(plan[member_id]))
            self.members[member_id] = Subscriber(
                member_id=member_id,
                topics=member.topics,
                owned_partitions=plan[member_id],
                generation_id=self.generation_id,
            )
            self.owners()
        return has_revoked

    def settle(self) -> int:
        """Generations until none has to give anything up; how many there were."""
        count = 1
        while self.generation():
            count += 1
            assert count <= 3
        return count


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[str, str, tuple[str, ...]]]:
    """Members that come, with their topics, or go, or give up everything as eager ones do."""
    names = st.sampled_from(["m0", "m1", "m2", "m3", "m4"])
    topics = st.sets(st.sampled_from(TOPICS), min_size=1).map(sorted).map(tuple)
    kinds = st.sampled_from(["come", "come", "go", "eager", "late"])
    return draw(st.lists(st.tuples(kinds, names, topics), min_size=1, max_size=8))


@given(steps=changes(), sizes=st.tuples(*[st.integers(1, 7)] * 3))
def test_a_cooperative_group_settles_balanced_and_complete_and_never_has_two_owners(
    steps: list[tuple[str, str, tuple[str, ...]]], sizes: tuple[int, int, int]
) -> None:
    group = CooperativeGroup(dict(zip(TOPICS, sizes, strict=True)))
    for kind, name, topics in steps:
        former = group.members.pop(name, None)
        if kind == "late" and former is not None:
            # It is parked in its join, misses the answer to its sync, and joins again.
            group.members[name] = former
            group.generation(late=frozenset({name}))
        elif kind != "go":
            keeps = former is not None and kind == "come"
            group.members[name] = Subscriber(
                member_id=name,
                topics=topics,
                owned_partitions=former.owned_partitions if keeps and former else (),
                generation_id=former.generation_id if keeps and former else -1,
            )
        if not group.members:
            continue
        group.settle()
        wanted = {topic for member in group.members.values() for topic in member.topics}
        assert set(group.owners()) == {
            TopicPartition(topic, n) for topic in wanted for n in range(group.counts[topic])
        }
        for member in group.members.values():
            for tp in member.owned_partitions:
                takers = [one for one in group.members.values() if tp.topic in one.topics]
                shares = [len(one.owned_partitions) + 1 for one in takers]
                assert min(shares) >= len(member.owned_partitions)


@given(count=st.integers(1, 6), partitions=st.integers(1, 20))
def test_a_newcomer_takes_from_each_cooperative_member_only_its_share(
    count: int, partitions: int
) -> None:
    group = CooperativeGroup({"a": partitions})
    for index in range(count):
        group.members[f"m{index}"] = members(f"m{index}")[0]
    group.settle()
    former = {name: set(one.owned_partitions) for name, one in group.members.items()}
    group.members["new"] = members("new")[0]
    assert group.settle() <= 2
    moved = set(group.members["new"].owned_partitions)
    assert len(moved) == partitions // (count + 1)
    for name, owned in former.items():
        assert owned - moved == set(group.members[name].owned_partitions)
