"""What every request is answered with in every state of its group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from oncelog.actors.protocol.group.group_machine import MEMBER_BLOB_MAX_BYTES, MEMBER_PROTOCOLS_MAX
from oncelog.actors.protocol.group.rebalance import TimerKind
from oncelog.actors.protocol.messages.group import DescribeGroupsRequest, GroupProtocol
from oncelog.actors.protocol.messages.transaction import DriverProcess
from oncelog.storage.errors import ErrorCode

RANGE = (GroupProtocol(name="range", metadata=b"flights"),)


def refused_join(world: Any, **fields: Any) -> ErrorCode:
    error: ErrorCode = world.reply(world.join(**fields)).error
    return error


# --- join: what is refused whatever the state ------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "g" * 1_025}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "\ud800"}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"rebalance_timeout_ms": 0}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": 2**31}, ErrorCode.INVALID_REQUEST),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": RANGE * (MEMBER_PROTOCOLS_MAX + 1)}, ErrorCode.INVALID_REQUEST),
        ({"client_id": "c" * 1_025}, ErrorCode.INVALID_REQUEST),
        ({"group_instance_id": "i" * 1_025}, ErrorCode.INVALID_REQUEST),
        ({"group_instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_impossible_join_is_refused_and_makes_no_group(
    world: Any, fields: dict[str, Any], error: ErrorCode
) -> None:
    assert refused_join(world, **fields) is error
    assert world.group_ids == []


def test_join_with_an_oversized_subscription_is_refused(world: Any) -> None:
    huge = (GroupProtocol(name="range", metadata=bytes(MEMBER_BLOB_MAX_BYTES + 1)),)
    assert refused_join(world, protocols=huge) is ErrorCode.INVALID_REQUEST


def test_member_without_a_common_protocol_is_refused(world: Any) -> None:
    world.stable(world.enter())
    other = (GroupProtocol(name="sticky", metadata=b""),)
    assert refused_join(world, protocols=other) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_member_of_another_protocol_type_is_refused(world: Any) -> None:
    world.stable(world.enter())
    refused = refused_join(world, protocol_type="connect")
    assert refused is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_sole_member_may_change_its_protocol(world: Any) -> None:
    (member,) = world.stable(world.enter())
    sticky = (GroupProtocol(name="sticky", metadata=b""),)
    rejoined = world.joined(world.join(member.member_id, protocols=sticky))
    assert rejoined.protocol_name == "sticky"


def test_full_group_takes_no_new_member_and_counts_handed_out_ids(
    new_world: Callable[..., Any],
) -> None:
    world = new_world(members_max=2)
    world.stable(world.enter())
    assert refused_join(world) is ErrorCode.MEMBER_ID_REQUIRED
    assert refused_join(world) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert refused_join(world, group_instance_id="a") is ErrorCode.GROUP_MAX_SIZE_REACHED


# --- join: member ids ------------------------------------------------------------------------


def test_new_dynamic_member_is_given_an_id_and_joins_with_it(world: Any) -> None:
    refused = world.reply(world.join())
    assert refused.error is ErrorCode.MEMBER_ID_REQUIRED
    assert refused.member_id == "worker-id0"
    assert world.joined(world.join(refused.member_id)).member_id == refused.member_id


def test_member_id_never_used_is_forgotten_after_its_session_timeout(world: Any) -> None:
    refused = world.reply(world.join())
    world.advance(10_000)
    assert world.group_ids == []
    assert refused_join(world, member_id=refused.member_id) is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_id_given_back_leaves_nothing(world: Any) -> None:
    refused = world.reply(world.join())
    assert world.leave((refused.member_id, None)).results == (ErrorCode.NONE,)
    assert world.group_ids == []
    assert world.timers == {}


def test_unused_member_id_holds_a_rebalance_only_for_its_session_timeout(world: Any) -> None:
    (member,) = world.stable(world.enter())
    world.join()
    rejoined = world.join(member.member_id)
    assert world.reply(rejoined) is None
    world.advance(9_999)
    assert world.reply(rejoined) is None
    world.advance(1)
    assert world.joined(rejoined).generation_id == 2


def test_rebalance_waits_for_unused_member_id_no_longer_than_the_rebalance_timeout(
    world: Any,
) -> None:
    (member,) = world.stable(world.enter(rebalance_timeout_ms=5_000))
    world.join()
    rejoined = world.join(member.member_id, rebalance_timeout_ms=5_000)
    world.advance(5_000)
    assert world.joined(rejoined).generation_id == 2


# --- join: known members ---------------------------------------------------------------------


def test_follower_rejoining_a_stable_group_unchanged_gets_the_generation(world: Any) -> None:
    _, follower = world.two_members()
    again = world.joined(world.join(follower.member_id))
    assert again.generation_id == follower.generation_id
    assert again.members == ()
    assert world.describe().state == "Stable"


def test_leader_rejoining_a_stable_group_starts_a_rebalance(world: Any) -> None:
    leader, _ = world.two_members()
    call = world.join(leader.member_id)
    assert world.reply(call) is None
    assert world.describe().state == "PreparingRebalance"


def test_follower_with_another_subscription_starts_a_rebalance(world: Any) -> None:
    _, follower = world.two_members()
    changed = (GroupProtocol(name="range", metadata=b"weather"),)
    assert world.reply(world.join(follower.member_id, protocols=changed)) is None
    assert world.describe().state == "PreparingRebalance"


def test_join_repeated_after_a_lost_reply_gets_the_same_generation(world: Any) -> None:
    first = world.joined(world.enter())
    again = world.joined(world.join(first.member_id))
    assert again == first
    assert world.describe().state == "CompletingRebalance"


def test_changed_join_while_completing_starts_another_rebalance(world: Any) -> None:
    first = world.joined(world.enter())
    changed = (GroupProtocol(name="range", metadata=b"weather"),)
    assert world.joined(world.join(first.member_id, protocols=changed)).generation_id == 2


def test_repeated_join_while_preparing_supersedes_the_parked_one(world: Any) -> None:
    leader, _ = world.two_members()
    first = world.join(leader.member_id)
    second = world.join(leader.member_id)
    assert world.reply(first).error is ErrorCode.REQUEST_TIMED_OUT
    assert world.reply(second) is None


# --- sync ------------------------------------------------------------------------------------


def test_sync_is_checked_for_member_generation_and_protocol(world: Any) -> None:
    _, follower = world.two_members()
    cases = [
        ({"group_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 1}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ]
    for fields, error in cases:
        assert world.reply(world.sync(follower, **fields)).error is error
    right = {"protocol_name": "range", "protocol_type": "consumer"}
    assert world.reply(world.sync(follower, **right)).error is ErrorCode.NONE


def test_sync_while_preparing_is_told_to_rejoin(world: Any) -> None:
    leader, follower = world.two_members()
    world.join(leader.member_id)
    assert world.reply(world.sync(follower)).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_sync_of_a_stable_group_gives_the_assignment(world: Any) -> None:
    _, follower = world.two_members()
    assert world.reply(world.sync(follower)).assignment == follower.member_id.encode()


def test_oversized_assignment_is_refused(world: Any) -> None:
    member = world.joined(world.enter())
    huge = {member.member_id: bytes(MEMBER_BLOB_MAX_BYTES + 1)}
    assert world.reply(world.sync(member, huge)).error is ErrorCode.INVALID_REQUEST
    assert world.describe().state == "CompletingRebalance"


# --- heartbeat -------------------------------------------------------------------------------


def test_heartbeat_is_none_while_completing_and_stable(world: Any) -> None:
    member = world.joined(world.enter())
    assert world.heartbeat(member) is ErrorCode.NONE
    world.sync(member, {})
    assert world.heartbeat(member) is ErrorCode.NONE


def test_heartbeat_of_strangers_and_of_old_generations_is_refused(world: Any) -> None:
    member = world.joined(world.enter())
    assert world.heartbeat(member, group_id="other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(member, member_id="stranger") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(member, generation_id=0) is ErrorCode.ILLEGAL_GENERATION


def test_heartbeat_while_preparing_asks_to_rejoin_and_still_counts_as_life(world: Any) -> None:
    leader, follower = world.two_members()
    world.join(leader.member_id)
    for _ in range(3):
        world.advance(9_000)
        assert world.heartbeat(follower) is ErrorCode.REBALANCE_IN_PROGRESS
    assert [member.member_id for member in world.describe().members] == [
        leader.member_id,
        follower.member_id,
    ]


# --- leave -----------------------------------------------------------------------------------


def test_leaving_follower_is_gone_at_once_and_the_others_rebalance(world: Any) -> None:
    leader, follower = world.two_members()
    assert world.leave((follower.member_id, None)).results == (ErrorCode.NONE,)
    assert world.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(follower) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.joined(world.join(leader.member_id)).generation_id == 3


def test_last_member_leaving_empties_the_group_durably(world: Any) -> None:
    (member,) = world.stable(world.enter())
    world.leave((member.member_id, None))
    assert world.describe().state == "Empty"
    world.fail_over()
    assert (world.describe().state, world.describe().generation_id) == ("Empty", 2)


def test_rebalance_waiting_only_for_the_leaver_completes(world: Any) -> None:
    leader, follower = world.two_members()
    rejoined = world.join(leader.member_id)
    world.leave((follower.member_id, None))
    assert world.joined(rejoined).generation_id == 3


def test_each_leaving_member_gets_its_own_code(world: Any) -> None:
    (member,) = world.stable(world.enter())
    reply = world.leave(("stranger", None), (member.member_id, None), (member.member_id, None))
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert reply.results == (unknown, ErrorCode.NONE, unknown)


def test_leaving_an_unknown_group_is_refused_member_by_member(world: Any) -> None:
    assert world.leave(("a", None), ("b", None)).results == (ErrorCode.UNKNOWN_MEMBER_ID,) * 2


def test_member_parked_in_join_is_answered_when_it_is_removed(world: Any) -> None:
    leader, _ = world.two_members()
    call = world.join(leader.member_id)
    world.leave((leader.member_id, None))
    assert world.reply(call).error is ErrorCode.UNKNOWN_MEMBER_ID


# --- processes -------------------------------------------------------------------------------

PROCESS = DriverProcess(machine="here", process_id=7, start_ticks=8)


def test_the_process_of_a_member_is_known_from_its_join_and_after_a_failover_from_a_heartbeat(
    world: Any,
) -> None:
    (member,) = world.stable(world.enter(process=PROCESS))
    known = [("billing", member.member_id, PROCESS)]
    assert world.machine.processes() == known
    world.fail_over()
    assert world.machine.processes() == []
    world.heartbeat(member, process=PROCESS)
    world.heartbeat(member)
    assert world.machine.processes() == known
    moved = structs.replace(PROCESS, process_id=9)
    world.join(member.member_id, process=moved)
    assert world.machine.processes() == [("billing", member.member_id, moved)]
    world.leave((member.member_id, None))
    assert world.machine.processes() == []


def test_the_process_of_a_static_member_does_not_count(world: Any) -> None:
    (member,) = world.stable(world.enter(group_instance_id="w-0", process=PROCESS))
    world.heartbeat(member, group_instance_id="w-0", process=PROCESS)
    assert world.machine.processes() == []


def test_a_process_with_a_machine_of_a_long_name_is_refused(world: Any) -> None:
    endless = structs.replace(PROCESS, machine="x" * 1_025)
    assert world.reply(world.join(process=endless)).error is ErrorCode.INVALID_REQUEST
    (member,) = world.stable(world.enter())
    assert world.heartbeat(member, process=endless) is ErrorCode.INVALID_REQUEST


# --- commit ----------------------------------------------------------------------------------


def test_commit_without_a_generation_makes_a_simple_group(world: Any) -> None:
    assert world.commit(7) is ErrorCode.NONE
    assert (world.describe().state, world.position()) == ("Empty", 7)


@pytest.mark.parametrize("producer_id", [-1, 3])
def test_commit_to_an_unknown_group_with_a_generation_is_refused(
    world: Any, producer_id: int
) -> None:
    fields = {"generation_id": 0, "member_id": "m"}
    refused = world.commit(7, producer_id=producer_id, **fields)
    assert refused is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("producer_id", [-1, 3])
def test_commit_is_checked_for_member_and_generation(world: Any, producer_id: int) -> None:
    (member,) = world.stable(world.enter())

    def commit(**fields: Any) -> ErrorCode:
        values = {"generation_id": 1, "member_id": member.member_id}
        error: ErrorCode = world.commit(7, producer_id=producer_id, **{**values, **fields})
        return error

    assert commit() is ErrorCode.NONE
    assert commit(generation_id=2) is ErrorCode.ILLEGAL_GENERATION
    assert commit(generation_id=-1) is ErrorCode.ILLEGAL_GENERATION
    assert commit(member_id="stranger") is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(group_instance_id="stranger") is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(group_id="") is ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("producer_id", [-1, 3])
def test_commit_without_ids_to_a_group_with_members_is_refused(
    world: Any, producer_id: int
) -> None:
    assert world.commit(6, producer_id=producer_id) is ErrorCode.NONE
    world.stable(world.enter())
    assert world.commit(7, producer_id=producer_id) is ErrorCode.UNKNOWN_MEMBER_ID


def test_commit_while_completing_only_in_a_transaction(world: Any) -> None:
    member = world.joined(world.enter())
    ids = {"generation_id": 1, "member_id": member.member_id}
    assert world.commit(7, **ids) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.commit(7, producer_id=3, **ids) is ErrorCode.NONE


def test_commit_while_preparing_is_accepted_and_counts_as_life(world: Any) -> None:
    leader, follower = world.two_members()
    world.join(leader.member_id)
    world.advance(9_000)
    ids = {"generation_id": follower.generation_id, "member_id": follower.member_id}
    assert world.commit(7, **ids) is ErrorCode.NONE
    world.advance(9_000)
    assert world.heartbeat(follower) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    "fields",
    [
        {"producer_id": -2},
        {"producer_id": 2**63},
        {"producer_id": 3, "producer_epoch": -1},
        {"producer_id": 3, "producer_epoch": 32_768},
        {"producer_id": 3, "base_sequence": -1},
        {"producer_id": 3, "base_sequence": 2**31},
        {"producer_id": 3, "transactional_id": ""},
        {"producer_id": 3, "transactional_id": "t" * 1_025},
    ],
)
def test_transactional_commit_that_names_no_producer_is_refused(
    world: Any, fields: dict[str, Any]
) -> None:
    assert world.commit(7, **fields) is ErrorCode.INVALID_REQUEST


# --- delete ----------------------------------------------------------------------------------


def delete(world: Any) -> ErrorCode:
    error: ErrorCode = world.machine.begin_delete("billing", world.now_ms)
    if error is ErrorCode.NONE:
        world.append(world.machine.tombstones("billing"))
    return error


def test_deleted_group_is_gone_with_its_positions_for_good(world: Any) -> None:
    world.commit(7)
    assert delete(world) is ErrorCode.NONE
    assert (world.group_ids, world.position()) == ([], -1)
    world.fail_over()
    assert (world.group_ids, world.position()) == ([], -1)


def test_pending_position_of_a_deleted_group_never_comes_back(world: Any) -> None:
    world.commit(7, producer_id=3)
    assert delete(world) is ErrorCode.NONE
    world.mark(3, committed=True)
    assert world.position() == -1
    world.fail_over()
    assert world.position() == -1


def test_group_with_members_and_unknown_group_are_not_deleted(world: Any) -> None:
    assert delete(world) is ErrorCode.GROUP_ID_NOT_FOUND
    world.enter()
    assert delete(world) is ErrorCode.NON_EMPTY_GROUP


def test_group_being_deleted_refuses_everything(world: Any) -> None:
    member = world.joined(world.enter())
    world.leave((member.member_id, None))
    assert world.machine.begin_delete("billing", world.now_ms) is ErrorCode.NONE
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.machine.begin_delete("billing", world.now_ms) is unavailable
    assert refused_join(world) is unavailable
    assert world.reply(world.sync(member)).error is unavailable
    assert world.heartbeat(member) is unavailable
    assert world.leave((member.member_id, None)).error is unavailable
    assert world.commit(7) is unavailable
    assert world.commit(7, producer_id=3) is unavailable


def test_member_id_handed_out_by_a_deleted_group_is_unknown(world: Any) -> None:
    world.commit(7)
    refused = world.reply(world.join())
    assert delete(world) is ErrorCode.NONE
    assert world.group_ids == []
    assert refused_join(world, member_id=refused.member_id) is ErrorCode.UNKNOWN_MEMBER_ID


def test_group_whose_deletion_failed_serves_again(world: Any) -> None:
    world.commit(7)
    world.machine.begin_delete("billing", world.now_ms)
    world.machine.reopen("billing", world.now_ms)
    assert world.commit(8) is ErrorCode.NONE


# --- describe --------------------------------------------------------------------------------


def test_describe_shows_members_and_leaves_out_unknown_groups(world: Any) -> None:
    leader, follower = world.two_members()
    group = world.describe()
    assert (group.state, group.protocol_type, group.protocol_name) == (
        "Stable",
        "consumer",
        "range",
    )
    assert [member.assignment for member in group.members] == [
        leader.member_id.encode(),
        follower.member_id.encode(),
    ]
    assert {member.subscription for member in group.members} == {b"flights"}


def test_from_where_a_member_joined_and_with_what_is_known_to_the_next_coordinator_too(
    world: Any,
) -> None:
    (joined,) = world.stable(world.enter(client_host="/10.0.0.9"))

    def described() -> tuple[str, bytes]:
        (member,) = world.describe().members
        return member.client_host, member.subscription

    assert described() == ("/10.0.0.9", b"flights")
    world.fail_over()
    assert described() == ("/10.0.0.9", b"flights")
    world.stable(world.join(joined.member_id, client_host="/10.0.0.8"))
    assert described()[0] == "/10.0.0.8"
    (listed,) = world.machine.describe(DescribeGroupsRequest()).groups
    assert listed.members[0].subscription == b"", "only where the group is named"


def test_of_a_member_whose_host_is_not_known_none_is_made_up(world: Any) -> None:
    world.two_members()
    world.fail_over()
    assert {member.client_host for member in world.describe().members} == {""}


def test_parked_member_is_not_expired(world: Any) -> None:
    leader, follower = world.two_members()
    rejoined = world.join(leader.member_id)
    for _ in range(2):
        world.advance(9_000)
        world.heartbeat(follower)
    assert world.reply(rejoined) is None
    assert world.has_timer(TimerKind.JOIN)
    assert len(world.describe().members) == 2
