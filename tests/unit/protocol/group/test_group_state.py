"""The group as data: legal moves, votes, leadership."""

from __future__ import annotations

import itertools

import pytest

from oncelog.actors.protocol.group.group_state import LEGAL_SOURCES, Group, GroupMember, GroupState
from oncelog.actors.protocol.messages.group import GroupProtocol
from oncelog.storage.errors import InvariantViolation


def member(member_id: str, *names: str, instance_id: str | None = None) -> GroupMember:
    return GroupMember(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id="worker",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        protocols=tuple(GroupProtocol(name=name, metadata=name.encode()) for name in names),
    )


@pytest.mark.parametrize(("source", "target"), list(itertools.product(GroupState, GroupState)))
def test_only_legal_moves_are_made(source: GroupState, target: GroupState) -> None:
    group = Group("billing", state=source)
    if source in LEGAL_SOURCES[target]:
        group.move(target, 7)
        assert (group.state, group.state_timestamp_ms) == (target, 7)
    else:
        with pytest.raises(InvariantViolation):
            group.move(target, 7)
        assert group.state is source


def test_tied_vote_goes_to_what_the_first_member_prefers() -> None:
    group = Group("billing")
    group.add(member("a", "range", "sticky"))
    group.add(member("b", "sticky", "range"))
    assert group.voted_protocol() == "range"


def test_vote_without_a_common_protocol_is_impossible() -> None:
    group = Group("billing")
    group.add(member("a", "range"))
    group.add(member("b", "sticky"))
    with pytest.raises(InvariantViolation):
        group.voted_protocol()


def test_subscription_under_an_unknown_protocol_is_empty() -> None:
    assert member("a", "range").metadata("range") == b"range"
    assert member("a", "range").metadata("sticky") == b""


def test_renamed_leader_keeps_its_place_and_role() -> None:
    group = Group("billing")
    group.add(member("a", "range", instance_id="i"))
    group.add(member("b", "range"))
    group.rename("a", "a2")
    assert list(group.members) == ["a2", "b"]
    assert (group.leader_id, group.static_members) == ("a2", {"i": "a2"})


def test_when_the_leader_is_removed_the_first_of_the_others_leads() -> None:
    group = Group("billing")
    for name in ("a", "b", "c"):
        group.add(member(name, "range"))
    group.remove("a")
    assert group.leader_id == "b"
    group.remove("b")
    group.remove("c")
    assert group.leader_id is None
