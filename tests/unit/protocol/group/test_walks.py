"""Random walks of members, time and failing writes: what must hold after every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from inside import groups_of

from oncelog.actors.protocol.group.group_state import Group, GroupState
from oncelog.actors.protocol.group.rebalance import TimerKind
from oncelog.actors.protocol.messages.group import DescribeGroupsRequest, GroupProtocol
from oncelog.storage.errors import ErrorCode

MEMBERS = 4
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, MEMBERS - 1), st.booleans()),
        st.tuples(st.just("restart"), st.integers(0, MEMBERS - 1)),
        st.tuples(st.just("repeat"), st.integers(0, 60)),
        st.tuples(st.just("sync"), st.integers(0, MEMBERS - 1)),
        st.tuples(st.just("heartbeat"), st.integers(0, MEMBERS - 1)),
        st.tuples(st.just("leave"), st.integers(0, MEMBERS - 1)),
        st.tuples(st.just("advance"), st.sampled_from([1, 3_000, 9_000, 10_000, 31_000])),
        st.tuples(st.just("write"), st.sampled_from(["done", "done", "refused", "unknown"])),
        st.tuples(st.just("fail_over")),
    ),
    max_size=60,
)
LIVES_OF_ONE = st.lists(
    st.sampled_from(
        [
            *(3 * [("come", 0), ("sync", 0), ("join", 0, False)]),
            *(("restart", 0), ("fail_over",), ("repeat", 0), ("repeat", 1), ("repeat", 5)),
            *(("write", outcome) for outcome in ("done", "done", "refused", "unknown", "unknown")),
        ]
    ),
    max_size=40,
)


class Walker:
    """Some members, the first two static, that do what the walk says with what they know."""

    def __init__(self, world: Any) -> None:
        self.world = world
        world.holds_writes = True
        self.ids = [""] * MEMBERS
        self.calls: dict[int, int] = {}
        self.joined: list[Any] = [None] * MEMBERS
        self.member_once = [""] * MEMBERS
        self.joins: list[tuple[str, dict[str, Any]]] = []
        self.generations: dict[int, str] = {}

    def take(self, kind: str, *rest: Any) -> None:
        world = self.world
        if kind == "advance":
            world.advance(rest[0])
        elif kind == "write":
            if world.writes:
                error = ErrorCode.NONE if rest[0] == "done" else ErrorCode.NOT_COORDINATOR
                world.commit_write(error, is_appended=rest[0] != "refused")
        elif kind == "fail_over":
            world.fail_over()
            self.calls.clear()
        else:
            getattr(self, kind)(*rest)
        self.read_replies()
        self.check()

    def instance(self, index: int) -> str | None:
        return f"static{index}" if index < 2 else None

    def join(self, index: int, has_new_metadata: bool) -> None:
        metadata = b"other" if has_new_metadata else b"flights"
        fields = {
            "is_first": self.ids[index] != self.member_once[index],
            "group_instance_id": self.instance(index),
            "protocols": (GroupProtocol(name="range", metadata=metadata),),
        }
        self.joins.append((self.ids[index], fields))
        self.calls[index] = self.world.join(self.ids[index], **fields)

    def restart(self, index: int) -> None:
        self.ids[index] = ""
        self.join(index, False)

    def come(self, index: int) -> None:
        """Restart, and join with the member id that is handed out."""
        self.restart(index)
        self.read_replies()
        self.join(index, False)

    def repeat(self, place: int) -> None:
        """A join before the last arrives once more, its answer at nobody: no place is lost."""
        if not self.joins:
            return
        member_id, fields = self.joins[-1 - place % len(self.joins)]
        before = [dict(group.static_members) for group in groups_of(self.world.machine)]
        self.world.join(member_id, **fields)
        after = [dict(group.static_members) for group in groups_of(self.world.machine)]
        assert after[: len(before)] == before

    def sync(self, index: int) -> None:
        if self.joined[index] is not None:
            self.world.sync(self.joined[index], {self.ids[index]: b"all"})

    def heartbeat(self, index: int) -> None:
        if self.joined[index] is not None:
            self.world.heartbeat(self.joined[index])

    def leave(self, index: int) -> None:
        self.world.leave((self.ids[index], None))

    def read_replies(self) -> None:
        for index, call_id in list(self.calls.items()):
            reply = self.world.reply(call_id)
            if reply is None:
                continue
            del self.calls[index]
            if reply.error is ErrorCode.UNKNOWN_MEMBER_ID:
                self.ids[index] = ""
            elif reply.member_id:
                self.ids[index] = reply.member_id
            if reply.error is ErrorCode.NONE:
                self.joined[index] = reply
                self.member_once[index] = reply.member_id

    def check(self) -> None:
        """Nobody is forgotten: whoever is not waited for is timed, and whoever waits is known."""
        for group in groups_of(self.world.machine):
            self.check_group(group)
        for index in range(MEMBERS):
            if self.instance(index) and self.ids[index] == self.member_once[index] != "":
                self.check_id_in_records(index)

    def check_id_in_records(self, index: int) -> None:
        """Whichever record a failover finds last, none knows a static member by a former id."""
        table = self.world.machine._records.values()
        on_their_way = [*self.world.uncommitted, *self.world.writes]
        for value in [*table, *(write.value for write in on_their_way)]:
            for member in value.members:
                if member.group_instance_id == self.instance(index):
                    assert member.member_id == self.ids[index]

    def check_group(self, group: Group) -> None:
        world = self.world
        members = group.members.values()
        assert (group.leader_id is None) == (not members)
        assert group.leader_id is None or group.leader_id in group.members
        assert group.static_members == {
            member.group_instance_id: member.member_id
            for member in members
            if member.group_instance_id is not None
        }
        for member in members:
            is_timed = world.has_timer(TimerKind.SESSION, member.member_id)
            assert is_timed or (member.is_parked and not member.is_new)
            for call_id in (member.join_call, member.sync_call):
                assert call_id is None or world.reply(call_id) is None
        for member_id in group.pending_member_ids:
            assert world.has_timer(TimerKind.PENDING_MEMBER, member_id)
        state = group.state
        assert bool(members) == (state is not GroupState.EMPTY) or (
            state is GroupState.PREPARING_REBALANCE
        )
        assert world.has_timer(TimerKind.JOIN) == (state is GroupState.PREPARING_REBALANCE)
        if any(member.join_call is not None for member in members):
            assert state is GroupState.PREPARING_REBALANCE
        if any(member.sync_call is not None for member in members):
            assert state is GroupState.COMPLETING_REBALANCE
        if world.has_timer(TimerKind.SYNC):
            assert state in {GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
        if not group.have_all_synced and state is not GroupState.PREPARING_REBALANCE:
            assert world.has_timer(TimerKind.SYNC)


@given(steps=STEPS, delay_ms=st.sampled_from([0, 3_000]))
def test_no_walk_forgets_a_member_a_call_or_a_timer(
    new_world: Callable[..., Any], steps: list[Any], delay_ms: int
) -> None:
    walker = Walker(new_world(initial_rebalance_delay_ms=delay_ms))
    for step in steps:
        walker.take(*step)
    check_that_all_ends(walker)


@settings(max_examples=100)
@given(steps=LIVES_OF_ONE)
def test_no_late_join_takes_the_place_of_a_static_member(
    new_world: Callable[..., Any], steps: list[Any]
) -> None:
    walker = Walker(new_world())
    for step in steps:
        walker.take(*step)
    check_that_all_ends(walker)


def check_that_all_ends(walker: Walker) -> None:
    # With nobody alive and every write done, every call is answered and every timer gone.
    world = walker.world
    for _ in range(8):
        world.advance(400_000)
        while world.writes:
            world.commit_write()
    walker.check()
    assert world.timers == {}
    for call_id in walker.calls.values():
        assert world.reply(call_id) is not None
    groups = world.machine.describe(DescribeGroupsRequest()).groups
    assert all(group.state == "Empty" for group in groups)
