"""How a group moves from generation to generation, and what a failover or a failed write does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncelog.actors.protocol.group.rebalance import Timer, TimerKind
from oncelog.actors.protocol.messages.group import GroupProtocol
from oncelog.storage.errors import ErrorCode


def protocols(*names: str) -> tuple[GroupProtocol, ...]:
    return tuple(GroupProtocol(name=name, metadata=name.encode()) for name in names)


# --- generations -----------------------------------------------------------------------------


def test_leader_alone_is_told_the_members_and_their_subscriptions(world: Any) -> None:
    first = world.enter(protocols=protocols("range"))
    world.stable(first)
    second = world.enter(protocols=protocols("range"))
    leader_id = world.joined(first).member_id
    leader = world.joined(world.join(leader_id, protocols=protocols("range")))
    follower = world.joined(second)
    assert [member.member_id for member in leader.members] == [leader_id, follower.member_id]
    assert [member.metadata for member in leader.members] == [b"range", b"range"]
    assert (follower.members, follower.leader_id) == ((), leader_id)
    assert leader.generation_id == follower.generation_id == 2


def test_protocol_with_most_votes_among_those_all_know_wins(world: Any) -> None:
    first = world.joined(world.enter(protocols=protocols("own", "range", "sticky")))
    second = world.enter(protocols=protocols("sticky", "range"))
    third = world.enter(protocols=protocols("sticky", "range"))
    world.join(first.member_id, protocols=protocols("own", "range", "sticky"))
    assert world.joined(second).protocol_name == "sticky"
    assert world.joined(third).protocol_name == "sticky"


def test_members_joining_during_the_initial_delay_share_one_generation(
    new_world: Callable[..., Any],
) -> None:
    world = new_world(initial_rebalance_delay_ms=3_000)
    first = world.enter()
    world.advance(2_000)
    second = world.enter()
    world.advance(1_000)
    assert world.reply(first) is None, "a newcomer prolongs the delay"
    world.advance(3_000)
    assert world.joined(first).generation_id == world.joined(second).generation_id == 1


def test_initial_delay_is_not_prolonged_beyond_the_rebalance_timeout(
    new_world: Callable[..., Any],
) -> None:
    world = new_world(initial_rebalance_delay_ms=3_000)
    first = world.enter(rebalance_timeout_ms=7_000)
    for _ in range(3):
        world.advance(2_000)
        world.enter(rebalance_timeout_ms=7_000)
    world.advance(1_000)
    assert world.joined(first).generation_id == 1


def test_without_an_initial_delay_the_first_member_does_not_wait(world: Any) -> None:
    assert world.joined(world.enter()).generation_id == 1


def test_member_that_dies_is_left_out_of_the_next_generation(world: Any) -> None:
    leader, follower = world.two_members()
    world.advance(9_000)
    assert world.heartbeat(leader) is ErrorCode.NONE
    world.advance(1_000)
    assert world.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = world.joined(world.join(leader.member_id))
    assert [member.member_id for member in rejoined.members] == [leader.member_id]
    assert rejoined.generation_id == 3
    dead = {"generation_id": 2, "member_id": follower.member_id}
    assert world.commit(7, **dead) is ErrorCode.UNKNOWN_MEMBER_ID
    late = {"generation_id": 2, "member_id": leader.member_id}
    assert world.commit(7, **late) is ErrorCode.ILLEGAL_GENERATION


def test_dynamic_member_that_does_not_rejoin_in_time_is_dropped(world: Any) -> None:
    leader, follower = world.two_members()
    rejoined = world.join(leader.member_id)
    for _ in range(3):
        world.advance(9_900)
        world.heartbeat(follower)
    world.advance(300)
    assert [member.member_id for member in world.joined(rejoined).members] == [leader.member_id]
    assert not world.has_timer(TimerKind.SESSION, follower.member_id)


def test_leader_that_does_not_rejoin_is_replaced(world: Any) -> None:
    leader, follower = world.two_members()
    world.leave((leader.member_id, None))
    rejoined = world.joined(world.join(follower.member_id))
    assert rejoined.leader_id == follower.member_id


def test_leader_that_does_not_rejoin_in_time_is_replaced_by_one_that_did(world: Any) -> None:
    leader, follower = world.two_members()
    changed = (GroupProtocol(name="range", metadata=b"weather"),)
    rejoined = world.join(follower.member_id, protocols=changed)
    for _ in range(4):
        world.advance(7_500)
        world.heartbeat(leader)
    assert world.joined(rejoined).leader_id == follower.member_id


def test_rebalance_in_which_nobody_rejoins_is_prolonged_until_sessions_end(world: Any) -> None:
    slow = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 1_000}
    first = world.enter(**slow)
    second = world.enter(**slow)
    world.stable(world.join(world.joined(first).member_id, **slow), second)
    third = world.enter(**slow)
    world.leave((world.describe().members[2].member_id, None))
    assert world.reply(third).error is ErrorCode.UNKNOWN_MEMBER_ID
    world.advance(50_000)
    assert world.describe().state == "PreparingRebalance"
    world.advance(10_000)
    assert world.describe().state == "Empty"
    assert world.timers == {}


def test_new_member_parked_too_long_is_removed(new_world: Callable[..., Any]) -> None:
    world = new_world(new_member_join_timeout_ms=20_000)
    leader, follower = world.two_members()
    call = world.enter()
    for _ in range(2):
        world.advance(10_000 - 1)
        world.heartbeat(leader)
        world.heartbeat(follower)
    assert world.reply(call) is None
    world.advance(2)
    assert world.reply(call).error is ErrorCode.UNKNOWN_MEMBER_ID


# --- assignment ------------------------------------------------------------------------------


def test_follower_gets_its_assignment_when_the_leaders_is_durable(world: Any) -> None:
    first = world.joined(world.enter())
    second = world.enter()
    leader = world.joined(world.join(first.member_id))
    follower = world.joined(second)
    world.holds_writes = True
    parked = world.sync(follower)
    handed_in = world.sync(leader, {follower.member_id: b"all"})
    assert world.reply(parked) is None
    assert world.describe().state == "CompletingRebalance"
    world.commit_write()
    assert world.reply(parked).assignment == b"all"
    assert world.reply(handed_in).assignment == b""
    assert world.describe().state == "Stable"


def test_assignment_that_cannot_be_written_is_seen_by_nobody(world: Any) -> None:
    first = world.joined(world.enter())
    second = world.enter()
    leader = world.joined(world.join(first.member_id))
    world.holds_writes = True
    parked = world.sync(world.joined(second))
    handed_in = world.sync(leader, {leader.member_id: b"all"})
    world.commit_write(ErrorCode.NOT_COORDINATOR)
    assert world.reply(parked).error is ErrorCode.NOT_COORDINATOR
    assert world.reply(handed_in).error is ErrorCode.NOT_COORDINATOR
    assert world.describe().state == "PreparingRebalance"
    assert [member.assignment for member in world.describe().members] == [b"", b""]


def test_assignment_of_a_generation_that_has_passed_changes_nothing(world: Any) -> None:
    # 1. Generation 1: the leader's assignment is on its way to the log.
    # 2. A second member arrives: generation 2 begins.
    # 3. The assignment of generation 1 is committed.
    first = world.joined(world.enter())
    world.holds_writes = True
    handed_in = world.sync(first, {first.member_id: b"old"})
    world.enter()
    assert world.reply(handed_in).error is ErrorCode.REBALANCE_IN_PROGRESS
    world.joined(world.join(first.member_id))
    world.commit_write()
    assert world.describe().state == "CompletingRebalance"
    assert {member.assignment for member in world.describe().members} == {b""}


def test_generation_after_a_superseded_assignment_gets_its_own(world: Any) -> None:
    first = world.joined(world.enter())
    world.holds_writes = True
    world.sync(first, {first.member_id: b"old"})
    second = world.enter()
    leader = world.joined(world.join(first.member_id))
    world.commit_write()
    handed_in = world.sync(leader, {first.member_id: b"new"})
    world.sync(world.joined(second))
    world.commit_write()
    assert world.reply(handed_in).assignment == b"new"


def test_assignment_of_the_last_generation_is_not_shown_in_the_next(world: Any) -> None:
    world.two_members()
    world.enter()
    for member in world.describe().members[:2]:
        world.join(member.member_id)
    group = world.describe()
    assert group.state == "CompletingRebalance"
    assert {member.assignment for member in group.members} == {b""}


def test_leaders_repeated_sync_writes_the_assignment_once(world: Any) -> None:
    leader = world.joined(world.enter())
    world.holds_writes = True
    first = world.sync(leader, {leader.member_id: b"all"})
    second = world.sync(leader, {leader.member_id: b"all"})
    assert len(world.writes) == 1
    world.commit_write()
    assert world.reply(first).error is ErrorCode.REQUEST_TIMED_OUT
    assert world.reply(second).assignment == b"all"


def test_member_that_never_syncs_is_removed_after_the_rebalance_timeout(world: Any) -> None:
    first = world.joined(world.enter())
    silent = world.enter()
    leader = world.joined(world.join(first.member_id))
    world.sync(leader, {})
    for _ in range(4):
        world.advance(7_500)
        world.heartbeat(leader)
        world.heartbeat(world.joined(silent))
    assert world.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(world.joined(silent)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_that_leaves_while_parked_in_sync_is_answered(world: Any) -> None:
    first = world.joined(world.enter())
    second = world.enter()
    world.join(first.member_id)
    parked = world.sync(world.joined(second))
    world.leave((world.joined(second).member_id, None))
    assert world.reply(parked).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_written_group_that_is_gone_is_of_no_consequence(world: Any) -> None:
    # 1. A static member returns; its new id is on its way to the log.
    # 2. The member is removed and the group, now empty, deleted.
    # 3. The write is committed, and so its join must be answered.
    world.holds_writes = True
    member = world.joined(world.enter(group_instance_id="a"))
    world.sync(member, {})
    world.commit_write()
    call = world.enter(group_instance_id="a")
    world.leave(("", "a"))
    replaced, emptied = world.writes
    world.append((replaced.record, emptied.record))
    world.machine.begin_delete("billing", world.now_ms)
    world.append(world.machine.tombstones("billing"))
    world.run(world.machine.written(replaced, ErrorCode.NONE, world.now_ms, is_appended=True))
    assert world.reply(call).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.machine.written(emptied, ErrorCode.NONE, world.now_ms, is_appended=True) == []


def test_timer_of_a_past_state_changes_nothing(world: Any) -> None:
    world.two_members()
    for kind in (TimerKind.JOIN, TimerKind.SYNC):
        assert world.machine.timer_fired(Timer(kind, "billing"), world.now_ms) == []
    stranger = Timer(TimerKind.SESSION, "billing", "stranger")
    assert world.machine.timer_fired(stranger, world.now_ms) == []
    assert world.machine.timer_fired(Timer(TimerKind.JOIN, "other"), world.now_ms) == []


def test_when_all_have_synced_nobody_is_timed(world: Any) -> None:
    world.two_members()
    assert not world.has_timer(TimerKind.SYNC)


# --- static members --------------------------------------------------------------------------


def static_group(world: Any) -> tuple[Any, Any]:
    """A stable group of static members ``a`` (leader) and ``b``."""
    first = world.enter(group_instance_id="a")
    second = world.enter(group_instance_id="b")
    first = world.join(world.joined(first).member_id, group_instance_id="a")
    leader, follower = world.stable(first, second)
    return leader, follower


def test_restarted_static_member_takes_its_place_without_a_rebalance(world: Any) -> None:
    leader, follower = static_group(world)
    back = world.joined(world.enter(group_instance_id="b"))
    assert back.member_id != follower.member_id
    assert (back.generation_id, back.leader_id) == (2, leader.member_id)
    assert (back.skip_assignment, back.members) == (False, ())
    assert world.describe().state == "Stable"
    assert world.reply(world.sync(back)).assignment == follower.member_id.encode()
    assert world.heartbeat(leader) is ErrorCode.NONE


def test_replaced_static_member_is_fenced_everywhere(world: Any) -> None:
    _, follower = static_group(world)
    world.enter(group_instance_id="b")
    fenced = ErrorCode.FENCED_INSTANCE_ID
    ids = {"member_id": follower.member_id, "group_instance_id": "b"}
    assert world.heartbeat(follower, group_instance_id="b") is fenced
    assert world.reply(world.sync(follower, group_instance_id="b")).error is fenced
    assert world.commit(7, generation_id=2, **ids) is fenced
    assert world.commit(7, producer_id=3, generation_id=2, **ids) is fenced
    assert world.reply(world.join(**ids)).error is fenced
    assert world.leave((follower.member_id, "b")).results == (fenced,)


def test_restarted_static_leader_is_told_not_to_assign(world: Any) -> None:
    static_group(world)
    back = world.joined(world.enter(group_instance_id="a"))
    assert back.skip_assignment
    assert back.leader_id == back.member_id
    assert len(back.members) == 2


def test_new_id_of_a_static_member_survives_a_failover(world: Any) -> None:
    static_group(world)
    back = world.joined(world.enter(group_instance_id="b"))
    world.fail_over()
    assert world.heartbeat(back, group_instance_id="b") is ErrorCode.NONE


def test_static_join_is_answered_only_when_its_new_id_is_durable(world: Any) -> None:
    static_group(world)
    world.holds_writes = True
    call = world.enter(group_instance_id="b")
    assert world.reply(call) is None
    world.commit_write()
    assert world.joined(call).generation_id == 2


def test_static_join_that_cannot_be_written_makes_the_group_rebalance(world: Any) -> None:
    leader, _ = static_group(world)
    world.holds_writes = True
    call = world.enter(group_instance_id="b")
    world.commit_write(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert world.reply(call).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS


def test_static_member_replaced_while_its_join_is_written_is_fenced(world: Any) -> None:
    static_group(world)
    world.holds_writes = True
    first = world.enter(group_instance_id="b")
    second = world.enter(group_instance_id="b")
    world.commit_write()
    world.commit_write()
    assert world.reply(first).error is ErrorCode.FENCED_INSTANCE_ID
    assert world.joined(second).generation_id == 2


def test_new_id_of_a_static_member_in_a_rebalance_survives_a_failover(world: Any) -> None:
    """It was told a generation that no record knows yet; the record before knows its id."""
    leader, follower = static_group(world)
    changed = (GroupProtocol(name="range", metadata=b"weather"),)
    world.join(leader.member_id, group_instance_id="a", protocols=changed)
    assert world.describe().state == "PreparingRebalance"
    back = world.joined(world.enter(group_instance_id="b"))
    assert back.generation_id == 3
    world.fail_over()
    again = world.join(back.member_id, group_instance_id="b")
    assert world.reply(again).error is ErrorCode.NONE
    former = world.join(follower.member_id, group_instance_id="b")
    assert world.reply(former).error is ErrorCode.FENCED_INSTANCE_ID


def test_new_ids_of_static_members_that_come_back_at_once_survive_a_failover(world: Any) -> None:
    """The record of the second is written before that of the first is durable."""
    static_group(world)
    changed = (GroupProtocol(name="range", metadata=b"weather"),)
    third = world.enter(group_instance_id="c", protocols=changed)
    assert world.describe().state == "PreparingRebalance"
    world.holds_writes = True
    calls = [world.enter(group_instance_id="a"), world.enter(group_instance_id="b")]
    while world.writes:
        world.commit_write()
    world.holds_writes = False
    members = {"a": world.joined(calls[0]).member_id, "b": world.joined(calls[1]).member_id}
    assert world.joined(third).generation_id == 3
    world.fail_over()
    joins = [world.join(member_id, group_instance_id=name) for name, member_id in members.items()]
    assert [world.reply(call).error for call in joins] == [ErrorCode.NONE] * 2


def test_static_member_that_left_and_came_anew_survives_a_failover(world: Any) -> None:
    """No record knows yet that it left, so one has to know its new id."""
    leader, follower = static_group(world)
    world.leave((follower.member_id, "b"))
    call = world.enter(group_instance_id="b")
    world.join(leader.member_id, group_instance_id="a")
    back = world.joined(call)
    assert back.generation_id == 3
    world.fail_over()
    again = world.join(back.member_id, group_instance_id="b")
    assert world.reply(again).error is ErrorCode.NONE


def test_static_member_that_comes_anew_to_an_empty_group_survives_a_failover(world: Any) -> None:
    """The record that the group is empty is not durable when it comes."""
    leader, follower = static_group(world)
    world.holds_writes = True
    world.leave((leader.member_id, "a"), (follower.member_id, "b"))
    call = world.enter(group_instance_id="b")
    assert world.reply(call) is None
    assert [write.value.generation_id for write in world.writes] == [3, 3]
    world.commit_write()
    world.commit_write()
    back = world.joined(call)
    world.fail_over()
    again = world.join(back.member_id, group_instance_id="b")
    assert world.reply(again).error is ErrorCode.NONE


def test_static_member_that_comes_back_before_its_assignment_is_durable_survives_a_failover(
    world: Any,
) -> None:
    """The first record that knows it is on its way, with its former id."""
    first = world.joined(world.enter(group_instance_id="a"))
    world.holds_writes = True
    world.sync(first, {first.member_id: b"all"})
    call = world.enter(group_instance_id="a")
    assert world.reply(call) is None
    while world.writes:
        world.commit_write()
    back = world.joined(call)
    assert back.generation_id == 2
    world.fail_over()
    again = world.join(back.member_id, group_instance_id="a")
    assert world.reply(again).error is ErrorCode.NONE


def test_record_that_may_be_in_the_log_after_an_error_counts(world: Any) -> None:
    """As when there are too few in-sync replicas once it is appended."""
    first = world.joined(world.enter(group_instance_id="a"))
    world.holds_writes = True
    sync = world.sync(first, {first.member_id: b"all"})
    world.commit_write(ErrorCode.COORDINATOR_NOT_AVAILABLE, is_appended=True)
    assert world.reply(sync).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    call = world.enter(group_instance_id="a")
    assert world.reply(call) is None
    world.commit_write()
    assert world.joined(call).generation_id == 2
    second = world.enter(group_instance_id="a")
    assert [write.value.generation_id for write in world.writes] == [2]
    world.commit_write()
    assert world.joined(second).generation_id == 3


@pytest.mark.parametrize("is_rebalancing", [False, True])
def test_repeated_join_of_a_static_member_waits_for_its_new_id_too(
    world: Any, is_rebalancing: bool
) -> None:
    """As after a lost reply: its new id is on its way to the log, or was not taken by it."""
    leader, _ = static_group(world)
    if is_rebalancing:
        changed = (GroupProtocol(name="range", metadata=b"weather"),)
        world.join(leader.member_id, group_instance_id="a", protocols=changed)
    world.holds_writes = True
    call = world.enter(group_instance_id="b")
    new_id = next(each for each in world.describe().members if each.group_instance_id == "b")
    again = world.join(new_id.member_id, group_instance_id="b", is_first=True)
    assert (world.reply(call), world.reply(again)) == (None, None)
    world.commit_write(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    last = world.join(new_id.member_id, group_instance_id="b", is_first=True)
    assert (world.reply(again), world.reply(last)) == (None, None)
    world.join(leader.member_id, group_instance_id="a")
    while world.writes:
        world.commit_write()
    back = world.joined(last)
    world.fail_over()
    rejoined = world.join(back.member_id, group_instance_id="b")
    assert world.reply(rejoined).error is ErrorCode.NONE


def test_static_join_in_a_rebalance_counts_only_when_its_new_id_is_durable(world: Any) -> None:
    leader, _ = static_group(world)
    changed = (GroupProtocol(name="range", metadata=b"weather"),)
    parked = world.join(leader.member_id, group_instance_id="a", protocols=changed)
    world.holds_writes = True
    call = world.enter(group_instance_id="b")
    assert (world.reply(parked), world.reply(call)) == (None, None)
    world.commit_write()
    assert world.joined(call).generation_id == world.joined(parked).generation_id == 3


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NONE, ErrorCode.FENCED_INSTANCE_ID),
    ],
)
def test_static_join_in_a_rebalance_whose_id_does_not_stay_is_refused(
    world: Any, error: ErrorCode, expected: ErrorCode
) -> None:
    """The record could not be written, or the next life has come meanwhile."""
    leader, _ = static_group(world)
    changed = (GroupProtocol(name="range", metadata=b"weather"),)
    world.join(leader.member_id, group_instance_id="a", protocols=changed)
    world.holds_writes = True
    call = world.enter(group_instance_id="b")
    if error is ErrorCode.NONE:
        world.enter(group_instance_id="b")
    world.commit_write(error)
    assert world.reply(call).error is expected


@pytest.mark.parametrize("is_rebalancing", [False, True])
def test_static_member_whose_session_ends_while_its_join_is_written_is_not_fenced(
    world: Any, is_rebalancing: bool
) -> None:
    """Nobody took its place, and being fenced is for good: it may join anew."""
    leader, _ = static_group(world)
    if is_rebalancing:
        changed = (GroupProtocol(name="range", metadata=b"weather"),)
        world.join(leader.member_id, group_instance_id="a", protocols=changed)
    world.holds_writes = True
    call = world.enter(group_instance_id="b")
    world.advance(10_000)
    while world.writes:
        world.commit_write()
    assert world.reply(call).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_restart_of_a_static_member_that_changes_the_protocol_rebalances(world: Any) -> None:
    both = protocols("range", "sticky")
    first = world.enter(group_instance_id="a", protocols=both)
    world.stable(first)
    call = world.enter(group_instance_id="a", protocols=protocols("sticky"))
    assert world.joined(call).generation_id == 2
    assert world.joined(call).protocol_name == "sticky"


def test_static_member_restarting_while_completing_starts_another_rebalance(world: Any) -> None:
    first = world.joined(world.enter(group_instance_id="a"))
    second = world.enter(group_instance_id="b")
    leader = world.joined(world.join(first.member_id, group_instance_id="a"))
    back = world.enter(group_instance_id="b")
    assert world.reply(back) is None
    assert world.describe().state == "PreparingRebalance"
    world.join(leader.member_id, group_instance_id="a")
    assert world.joined(back).generation_id == 3
    assert world.joined(back).member_id != world.joined(second).member_id


def test_parked_calls_of_a_replaced_static_member_are_fenced(world: Any) -> None:
    leader, _ = static_group(world)
    parked = world.join(leader.member_id, group_instance_id="a")
    world.enter(group_instance_id="a")
    assert world.reply(parked).error is ErrorCode.FENCED_INSTANCE_ID


def test_absent_static_member_keeps_its_place_until_its_session_ends(world: Any) -> None:
    leader, follower = static_group(world)
    world.advance(5_000)
    world.heartbeat(follower)
    changed = (GroupProtocol(name="range", metadata=b"weather"),)
    timing = {"rebalance_timeout_ms": 30_000, "protocols": changed, "group_instance_id": "a"}
    call = world.join(leader.member_id, **timing)
    for _ in range(4):
        world.advance(7_500)
        world.heartbeat(follower, group_instance_id="b")
    assert len(world.joined(call).members) == 2, "it did not rejoin, and keeps its place"
    world.advance(5_000)
    world.heartbeat(world.joined(call))
    world.advance(5_000)
    assert [member.member_id for member in world.describe().members] == [leader.member_id]


def test_absent_static_member_is_not_removed_for_not_syncing(world: Any) -> None:
    patient = {"session_timeout_ms": 300_000}
    first = world.enter(group_instance_id="a", **patient)
    world.enter(group_instance_id="b", **patient)
    leader = world.joined(first)
    call = world.join(leader.member_id, group_instance_id="a", **patient)
    world.stable(call)
    world.join(leader.member_id, group_instance_id="a", **patient)
    world.advance(30_000)
    world.sync(world.joined(call), {}, generation_id=world.describe().generation_id)
    world.advance(60_000)
    group = world.describe()
    assert (group.state, len(group.members)) == ("Stable", 2)


def test_static_member_restarting_while_parked_is_not_expired(world: Any) -> None:
    leader, _ = static_group(world)
    world.enter(group_instance_id="c")
    call = world.enter(group_instance_id="c")
    for _ in range(2):
        world.advance(9_000)
        for member in world.describe().members[:2]:
            ids = {"member_id": member.member_id}
            assert world.heartbeat(leader, **ids) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.reply(call) is None
    assert len(world.describe().members) == 3


def test_late_duplicates_of_a_static_members_first_join_fence_nobody(world: Any) -> None:
    """1. A member joins first without an id, then with the one it got. 2. Its leader assigns.

    3. Both calls arrive once more, as after a lost reply. 4. The member goes on.
    """
    member = world.joined(world.enter(group_instance_id="a"))
    world.sync(member, {member.member_id: b"all"})
    world.join(group_instance_id="a")
    world.join(member.member_id, group_instance_id="a", is_first=True)
    rejoined = world.joined(world.join(member.member_id, group_instance_id="a"))
    world.sync(rejoined, {member.member_id: b"all"})
    assert world.heartbeat(rejoined, group_instance_id="a") is ErrorCode.NONE
    world.advance(9_000)
    assert world.heartbeat(rejoined, group_instance_id="a") is ErrorCode.NONE


@pytest.mark.parametrize("has_failed_over", [False, True])
def test_late_joins_of_an_earlier_life_do_not_fence_the_one_that_took_its_place(
    world: Any, has_failed_over: bool
) -> None:
    """1. A static member lives. 2. Another life takes its place. 3. Joins of the first arrive."""
    first = world.joined(world.enter(group_instance_id="a"))
    world.sync(first, {first.member_id: b"all"})
    second = world.joined(world.enter(group_instance_id="a"))
    if has_failed_over:
        world.fail_over()
    world.join(group_instance_id="a")
    late = world.join(first.member_id, group_instance_id="a", is_first=True)
    assert world.reply(late).error is ErrorCode.MEMBER_ID_REQUIRED
    late = world.join(first.member_id, group_instance_id="a")
    assert world.reply(late).error is ErrorCode.FENCED_INSTANCE_ID
    assert world.heartbeat(second, group_instance_id="a") is ErrorCode.NONE


def test_of_two_lives_that_ask_for_an_id_only_the_later_one_may_use_it(world: Any) -> None:
    """1. A life asks for an id and dies. 2. The next one asks, too, and joins.

    3. The first one's join arrives late, and takes nothing from the second.
    """
    first, second = (world.reply(world.join(group_instance_id="a")) for _ in range(2))
    joined = world.joined(world.join(second.member_id, group_instance_id="a", is_first=True))
    late = world.reply(world.join(first.member_id, group_instance_id="a", is_first=True))
    assert late.error is ErrorCode.MEMBER_ID_REQUIRED
    assert late.member_id not in (first.member_id, second.member_id)
    world.sync(joined, {joined.member_id: b"all"})
    assert world.heartbeat(joined, group_instance_id="a") is ErrorCode.NONE


def test_an_id_for_a_static_member_that_nobody_uses_holds_up_no_rebalance(world: Any) -> None:
    leader, follower = static_group(world)
    world.join(group_instance_id="b")
    world.join(group_instance_id="new")
    changed = (GroupProtocol(name="range", metadata=b"weather"),)
    again = world.join(leader.member_id, group_instance_id="a", protocols=changed)
    world.join(follower.member_id, group_instance_id="b")
    assert world.joined(again).generation_id == 3


def test_operator_removes_a_static_member_by_its_instance_id(world: Any) -> None:
    _, follower = static_group(world)
    assert world.leave(("", "b"), ("", "c")).results == (
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    )
    assert world.heartbeat(follower) is ErrorCode.UNKNOWN_MEMBER_ID


# --- failover --------------------------------------------------------------------------------


def test_stable_group_survives_a_failover_with_its_assignments(world: Any) -> None:
    leader, follower = world.two_members()
    before = world.describe()
    world.fail_over()
    assert world.describe() == before
    assert world.heartbeat(leader) is ErrorCode.NONE
    assert world.reply(world.sync(follower)).assignment == follower.member_id.encode()


def test_sessions_start_again_after_a_failover(world: Any) -> None:
    leader, follower = world.two_members()
    world.advance(9_000)
    world.fail_over()
    world.advance(9_000)
    assert world.heartbeat(leader) is ErrorCode.NONE
    world.advance(1_000)
    assert world.heartbeat(follower) is ErrorCode.UNKNOWN_MEMBER_ID


def test_generation_lost_in_a_failover_is_refused_and_never_stable(world: Any) -> None:
    first = world.joined(world.enter())
    world.stable(world.join(first.member_id))
    unfinished = world.joined(world.join(first.member_id))
    world.fail_over()
    assert world.heartbeat(unfinished) is ErrorCode.ILLEGAL_GENERATION


def test_leader_after_a_failover_is_the_one_before(world: Any) -> None:
    leader, follower = world.two_members()
    world.fail_over()
    again = world.joined(world.join(follower.member_id))
    assert again.leader_id == leader.member_id
