"""Requests of Kafka's clients about whole groups, with real coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import kafka_groups
import pytest
from deadlines import until
from kafka_groups import (
    GROUP,
    OTHER_GROUP,
    SHARDS,
    GroupCluster,
    commit,
    describe,
    leave,
    listed,
    position,
    queue_member,
)
from kafka_groups import delete_group as delete
from virtual_time import give_turns

from oncelog.actors.gateway.groups import membership
from oncelog.actors.gateway.messages.describe_groups import DescribedGroup
from oncelog.actors.gateway.messages.leave_group import MemberIdentity
from oncelog.actors.gateway.messages.list_groups import ListedGroup
from oncelog.actors.protocol.messages.access import Acl, Operation, Resource
from oncelog.storage.errors import ErrorCode

Story = Callable[[GroupCluster], Awaitable[None]]
Play = Callable[[Story], None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return lambda story: kafka_groups.play(tmp_path, story)


async def make_queue(world: GroupCluster, group_id: str) -> None:
    reply = await world.coordinator_of(group_id).share_group_heartbeat(queue_member(group_id))
    assert reply.error is ErrorCode.NONE


def test_groups_of_all_coordinators_are_described_in_one_call_each(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        joined = await client.enter()
        assert await commit(client, 3, group_id=OTHER_GROUP) == ErrorCode.NONE
        rebalancing, simple, unknown = await describe(client, GROUP, OTHER_GROUP, "nobody's")
        assert len(world.asked("describe_groups")) == SHARDS
        assert rebalancing.group_state == "CompletingRebalance"
        assert (rebalancing.protocol_type, rebalancing.protocol_data) == ("consumer", "")
        assert bytes(rebalancing.members[0].member_metadata) == b""
        assert (simple.group_state, simple.protocol_type, simple.members) == ("Empty", "", [])
        assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert unknown.error_message == 'there is no group "nobody\'s"'
        await client.sync(joined, {joined.member_id: b"all"})
        (stable,) = await describe(client, GROUP)
        assert (stable.group_state, stable.protocol_data) == ("Stable", "range")
        (member,) = stable.members
        assert (member.member_id, member.client_id) == (joined.member_id, "app")
        assert (member.client_host, bytes(member.member_assignment)) == ("/10.0.0.9", b"all")
        assert bytes(member.member_metadata) == b"\x00\x01flights"
        assert stable.authorized_operations == membership.NO_OPERATIONS

    play(story)


@pytest.mark.parametrize("version", range(6))
def test_before_version_6_an_unknown_group_is_dead(play: Play, version: int) -> None:
    async def story(world: GroupCluster) -> None:
        (unknown,) = await describe(world.client(), "nobody", version=version)
        assert (unknown.error_code, unknown.group_state) == (ErrorCode.NONE, "Dead")
        assert unknown.group_id == "nobody"

    play(story)


def test_each_group_of_a_description_has_its_own_error(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        await client.enter()
        world.failing["describe_groups"] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        described = await describe(client, GROUP, OTHER_GROUP, "", GROUP, version=5)
        assert [one.group_id for one in described] == [GROUP, OTHER_GROUP, "", GROUP]
        asked = [one.group_ids for one in world.asked("describe_groups")]
        assert sorted(asked) == sorted([(GROUP,), (OTHER_GROUP,)])
        assert [one.error_code for one in described] == [
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.NONE,
            ErrorCode.INVALID_GROUP_ID,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ]

    play(story)


def test_a_queue_is_no_group_of_consumers(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        await make_queue(world, GROUP)
        client = world.client()
        (described,) = await describe(client, GROUP)
        assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert "queue" in described.error_message
        (older,) = await describe(client, GROUP, version=5)
        assert (older.error_code, older.group_state) == (ErrorCode.NONE, "Dead")
        joined = await client.join()
        assert joined.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    play(story)


def test_what_a_client_may_do_to_a_group_is_told_if_it_asks(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        await world.client().enter()
        client = world.client("User:bob")
        asking = {"include_authorized_operations": True}
        (all_of_it,) = await describe(client, GROUP, **asking)
        assert all_of_it.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8
        world.allow(
            Acl(
                principal="User:bob",
                resource=Resource.GROUP,
                name=GROUP,
                operation=Operation.READ,
            )
        )
        some, none = await describe(client, GROUP, OTHER_GROUP, **asking)
        assert some.authorized_operations == 1 << 3 | 1 << 8
        assert none.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert none.authorized_operations == membership.NO_OPERATIONS
        (older,) = await describe(client, OTHER_GROUP, version=5)
        assert (older.error_code, older.group_state) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, "")

    play(story)


def test_who_may_not_read_a_group_is_none_of_its_members(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        world.allow()
        client = world.client("User:bob")
        refused = await client.join()
        assert refused.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        left = await leave(client, MemberIdentity("nobody"))
        assert left.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert await delete(client, GROUP) == {GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED}
        assert world.calls == []

    play(story)


def test_groups_of_all_coordinators_are_listed_by_state_and_type(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        joined = await client.enter()
        await client.sync(joined, {joined.member_id: b"all"})
        assert await commit(client, 3, group_id=OTHER_GROUP) == ErrorCode.NONE
        stable = ListedGroup(GROUP, "consumer", "Stable", "classic")
        simple = ListedGroup(OTHER_GROUP, "", "Empty", "classic")
        for version in range(6):
            assert (await listed(client, version)).groups == [stable, simple]
        assert (await listed(client, states_filter=["stable", "Dead"])).groups == [stable]
        assert (await listed(client, states_filter=["Dead"])).groups == []
        assert (await listed(client, types_filter=["Classic"])).groups == [stable, simple]
        assert (await listed(client, types_filter=["consumer"])).groups == []

    play(story)


def test_queues_are_listed_where_their_type_is_told(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        await make_queue(world, GROUP)
        client = world.client()
        queue = ListedGroup(GROUP, "share", "Stable", "share")
        assert (await listed(client)).groups == [queue]
        assert (await listed(client, types_filter=["Share"])).groups == [queue]
        assert (await listed(client, types_filter=["classic"])).groups == []
        assert (await listed(client, 4)).groups == []

    play(story)


def test_groups_that_a_client_may_not_see_are_not_listed(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        for name in (GROUP, OTHER_GROUP):
            assert await commit(world.client(), 1, group_id=name) == ErrorCode.NONE
        world.allow(
            Acl(
                principal="User:bob",
                resource=Resource.GROUP,
                name=GROUP,
                operation=Operation.DESCRIBE,
            )
        )
        found = (await listed(world.client("User:bob"))).groups
        assert [one.group_id for one in found] == [GROUP]

    play(story)


@pytest.mark.parametrize("error", [ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT])
def test_a_list_that_would_not_be_whole_is_to_be_asked_for_again(
    play: Play, error: ErrorCode
) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        await client.enter()
        world.failing["describe_groups"] = [error] * (SHARDS + 1)
        response = await listed(client)
        assert (response.error_code, response.groups) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])

    play(story)


@pytest.mark.parametrize("version", range(3))
def test_groups_are_deleted_each_with_its_result(play: Play, version: int) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        await client.enter()
        assert await commit(client, 3, group_id=OTHER_GROUP) == ErrorCode.NONE
        found = await delete(client, GROUP, OTHER_GROUP, "nobody", "", OTHER_GROUP, version=version)
        assert found == {
            GROUP: ErrorCode.NON_EMPTY_GROUP,
            OTHER_GROUP: ErrorCode.NONE,
            "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
            "": ErrorCode.INVALID_GROUP_ID,
        }
        assert await position(client, OTHER_GROUP) == -1

    play(story)


def test_a_group_that_a_lost_call_deleted_is_deleted(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        assert await commit(client, 3) == ErrorCode.NONE
        world.losing["delete_group"] = 1
        assert await delete(client, GROUP) == {GROUP: ErrorCode.NONE}
        # One that was refused has deleted nothing.
        world.failing["delete_group"] = [ErrorCode.NOT_COORDINATOR]
        assert await delete(client, GROUP) == {GROUP: ErrorCode.GROUP_ID_NOT_FOUND}

    play(story)


def test_a_request_names_so_many_groups(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: GroupCluster) -> None:
        monkeypatch.setattr(membership, "GROUPS_PER_REQUEST_MAX", 2)
        client = world.client()
        assert await delete(client, "a", "b", "c") == {
            "a": ErrorCode.GROUP_ID_NOT_FOUND,
            "b": ErrorCode.GROUP_ID_NOT_FOUND,
            "c": ErrorCode.INVALID_REQUEST,
        }
        described: list[DescribedGroup] = await describe(client, "a", "b", "c")
        assert [one.error_code for one in described] == [
            ErrorCode.GROUP_ID_NOT_FOUND,
            ErrorCode.GROUP_ID_NOT_FOUND,
            ErrorCode.INVALID_REQUEST,
        ]
        assert described[2].error_message == "3 groups: give at most 2 in one request"

    play(story)


def test_a_few_groups_are_asked_about_at_a_time(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: GroupCluster) -> None:
        monkeypatch.setattr(membership, "GROUPS_AT_ONCE_MAX", 2)
        client = world.client()
        await describe(client, "a")
        held = world.holding["delete_group"] = asyncio.Event()
        deleting = asyncio.create_task(delete(client, "a", "b", "c"))
        await until(lambda: len(world.asked("delete_group")) == 2)
        await give_turns()
        assert len(world.asked("delete_group")) == 2
        held.set()
        assert list(await deleting) == ["a", "b", "c"]

    play(story)


def test_the_groups_that_are_listed_are_of_the_shards_that_this_broker_leads(play: Play) -> None:
    """Clients ask every node, and show what each of them says."""

    async def story(world: GroupCluster) -> None:
        world.leaders = [1, 2]
        world.coordinators["group:1@2"] = world.coordinators.pop("group:1@1")
        await listed(world.client())
        assert sorted(actor for actor, _, _ in world.calls) == ["group:0@1"]

    play(story)
