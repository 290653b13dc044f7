"""Members of Kafka's classic protocol, and requests about whole groups, with real coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import kafka_groups
import pytest
from deadlines import until
from kafka_groups import GROUP, OTHER_GROUP, SHARDS, GroupCluster, KafkaClient, queue_member
from kafka_groups import delete_group as delete
from virtual_time import give_turns, run_virtually

from oncelog.actors.gateway.calls import CALL_TIMEOUT_MS
from oncelog.actors.gateway.groups import membership
from oncelog.actors.gateway.messages.apis import APIS, ApiKey
from oncelog.actors.gateway.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from oncelog.actors.gateway.messages.heartbeat import HeartbeatRequest
from oncelog.actors.gateway.messages.join_group import JoinGroupRequestProtocol, JoinGroupResponse
from oncelog.actors.gateway.messages.leave_group import LeaveGroupRequest, MemberIdentity
from oncelog.actors.gateway.messages.list_groups import ListedGroup, ListGroupsRequest
from oncelog.actors.gateway.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.actors.gateway.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from oncelog.actors.protocol.messages import group
from oncelog.actors.protocol.messages.access import Acl, Operation, Resource
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC

Story = Callable[[GroupCluster], Awaitable[None]]
Play = Callable[[Story], None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return lambda story: kafka_groups.play(tmp_path, story)


async def heartbeat(client: KafkaClient, joined: JoinGroupResponse, version: int = 4) -> int:
    request = HeartbeatRequest(GROUP, joined.generation_id, joined.member_id)
    code: int = (await client.ask(ApiKey.HEARTBEAT, version, request)).error_code
    return code


async def leave(client: KafkaClient, *members: MemberIdentity, version: int = 5) -> Any:
    request = LeaveGroupRequest(group_id=GROUP, members=list(members))
    return await client.ask(ApiKey.LEAVE_GROUP, version, request)


async def describe(client: KafkaClient, *names: str, version: int = 6, **fields: Any) -> Any:
    request = DescribeGroupsRequest(groups=list(names), **fields)
    response = await client.ask(ApiKey.DESCRIBE_GROUPS, version, request)
    return response.groups


async def listed(client: KafkaClient, version: int = 5, **fields: Any) -> Any:
    return await client.ask(ApiKey.LIST_GROUPS, version, ListGroupsRequest(**fields))


def commit_of(offset: int, *, group_id: str = GROUP, **fields: Any) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(0, offset)
    topic = OffsetCommitRequestTopic(name="flights", partitions=[partition])
    return OffsetCommitRequest(group_id=group_id, topics=[topic], **fields)


async def commit(client: KafkaClient, offset: int, **fields: Any) -> int:
    response = await client.ask(ApiKey.OFFSET_COMMIT, 9, commit_of(offset, **fields))
    code: int = response.topics[0].partitions[0].error_code
    return code


async def position(client: KafkaClient, group_id: str = GROUP) -> int:
    topic = OffsetFetchRequestTopics(name="flights", partition_indexes=[0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id, topics=[topic])])
    response = await client.ask(ApiKey.OFFSET_FETCH, 9, request)
    assert response.groups[0].error_code == ErrorCode.NONE
    offset: int = response.groups[0].topics[0].partitions[0].committed_offset
    return offset


async def make_queue(world: GroupCluster, group_id: str) -> None:
    reply = await world.coordinator_of(group_id).share_group_heartbeat(queue_member(group_id))
    assert reply.error is ErrorCode.NONE


# --- members ---------------------------------------------------------------------------------


def test_two_members_join_are_assigned_commit_and_leave(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        ann, bob = world.client(), world.client(client_id="other")
        alone = await ann.enter()
        assert alone.leader == alone.member_id
        assert (await ann.sync(alone, {alone.member_id: b"both"})).assignment == b"both"
        assert await heartbeat(ann, alone) == ErrorCode.NONE

        entering = asyncio.create_task(bob.enter())
        await until(lambda: len(world.asked("join_group")) == 4)
        assert await heartbeat(ann, alone) == ErrorCode.REBALANCE_IN_PROGRESS
        leading, following = await asyncio.gather(ann.join(alone.member_id), entering)
        assert leading.generation_id == following.generation_id == alone.generation_id + 1
        assert leading.leader == following.leader == leading.member_id
        assert following.member_id.startswith("other-")
        assert [one.member_id for one in leading.members] == [
            leading.member_id,
            following.member_id,
        ]
        assert bytes(leading.members[1].metadata) == b"\0\1flights"
        assert following.members == []

        shares = {leading.member_id: b"one", following.member_id: b"two"}
        synced = await asyncio.gather(bob.sync(following), ann.sync(leading, shares))
        assert [one.assignment for one in synced] == [b"two", b"one"]
        assert [(one.protocol_type, one.protocol_name) for one in synced] == [
            ("consumer", "range")
        ] * 2

        generation = {
            "generation_id_or_member_epoch": leading.generation_id,
            "member_id": leading.member_id,
        }
        assert await commit(ann, 5, **generation) == ErrorCode.NONE
        assert await position(bob) == 5
        left = await leave(ann, MemberIdentity(leading.member_id, reason="done"))
        assert (left.error_code, [one.error_code for one in left.members]) == (0, [0])
        assert await heartbeat(bob, following) == ErrorCode.REBALANCE_IN_PROGRESS
        late = await commit(ann, 6, **generation)
        assert late == ErrorCode.UNKNOWN_MEMBER_ID

    play(story)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_an_old_member_without_an_id_joins_at_once(play: Play, version: int) -> None:
    async def story(world: GroupCluster) -> None:
        joined = await world.client().join(version=version)
        assert joined.error_code == ErrorCode.NONE
        assert joined.generation_id == 1
        assert joined.member_id.startswith("app-")
        assert joined.leader == joined.member_id
        assert [one.member_id for one in world.asked("join_group")] == ["", joined.member_id]

    play(story)


@pytest.mark.parametrize("version", range(4, 10))
def test_a_newer_member_is_given_an_id_first(play: Play, version: int) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        first = await client.join(version=version)
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert first.member_id.startswith("app-")
        assert first.generation_id == -1
        assert (first.protocol_type, first.protocol_name) == (None, None if version >= 7 else "")
        joined = await client.join(first.member_id, version)
        assert (joined.error_code, joined.member_id) == (ErrorCode.NONE, first.member_id)
        assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")

    play(story)


def test_version_0_has_its_session_timeout_to_rejoin(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        timeouts = {"session_timeout_ms": 7_000, "rebalance_timeout_ms": -1}
        assert (await client.join(version=0, **timeouts)).error_code == ErrorCode.NONE
        assert {one.rebalance_timeout_ms for one in world.asked("join_group")} == {7_000}
        refused = await client.join(version=1, **timeouts)
        assert refused.error_code == ErrorCode.INVALID_REQUEST

    play(story)


def test_a_join_is_waited_for_longer_than_its_rebalance_timeout(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        joined = await client.enter(rebalance_timeout_ms=900_000)
        await client.sync(joined, {joined.member_id: b"all"})
        (_, first, first_ms), (_, second, second_ms), (_, _, sync_ms) = world.calls
        assert (first.member_id, first_ms) == ("", CALL_TIMEOUT_MS)
        assert (second.member_id, second_ms) == (joined.member_id, 910_000)
        # A sync does not say for how long its group may wait for the leader.
        assert sync_ms == membership.SYNC_TIMEOUT_MS > 300_000

    play(story)


def test_no_process_is_named_and_no_client_id_is_none(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        joined = await world.client(client_id=None).enter()
        assert joined.member_id.startswith("-")
        request = world.asked("join_group")[0]
        assert (request.client_id, request.process) == ("", None)

    play(story)


def test_a_join_that_is_impossible_is_refused_with_its_code(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        fields: list[tuple[dict[str, Any], ErrorCode]] = [
            ({"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
            ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"group_instance_id": ""}, ErrorCode.INVALID_REQUEST),
            ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
            ({"group_id": "g" * 1_025}, ErrorCode.INVALID_GROUP_ID),
        ]
        for given, code in fields:
            refused = await client.join(**given)
            assert refused.error_code == code
            assert refused.member_id == given.get("member_id", "")

    play(story)


def test_a_group_id_that_none_can_have_is_sent_to_nobody(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        assert (await client.join(group_id="")).error_code == ErrorCode.INVALID_GROUP_ID
        assert await commit(client, 1, group_id="g" * 1_025) == ErrorCode.INVALID_GROUP_ID
        assert world.calls == []

    play(story)


# --- static members --------------------------------------------------------------------------


async def stable_static(client: KafkaClient) -> JoinGroupResponse:
    joined = await client.enter(group_instance_id="i1")
    instance = {"group_instance_id": "i1"}
    synced = await client.sync(joined, {joined.member_id: b"all"}, **instance)
    assert synced.assignment == b"all"
    return joined


def test_a_static_member_that_restarts_leads_on_without_assigning(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        before = await stable_static(world.client())
        client = world.client()
        again = await client.enter(group_instance_id="i1")
        assert again.member_id != before.member_id
        assert (again.generation_id, again.leader) == (before.generation_id, again.member_id)
        assert again.skip_assignment
        assert [one.group_instance_id for one in again.members] == ["i1"]
        synced = await client.sync(again, group_instance_id="i1")
        assert synced.assignment == b"all"
        fenced = HeartbeatRequest(GROUP, before.generation_id, before.member_id, "i1")
        response = await client.ask(ApiKey.HEARTBEAT, 4, fenced)
        assert response.error_code == ErrorCode.FENCED_INSTANCE_ID

    play(story)


def test_a_static_member_whose_id_is_forgotten_is_not_fenced(play: Play) -> None:
    """Its coordinator gives it an id, moves, and has forgotten the id when it joins with it."""

    async def story(world: GroupCluster) -> None:
        await stable_static(world.client())
        client = world.client()
        first = await client.join(group_instance_id="i1")
        assert not world.asked("join_group")[-1].is_first
        for number in range(SHARDS):
            await world.move(number, to=2)
        second = await client.join(first.member_id, group_instance_id="i1")
        assert second.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert second.member_id != first.member_id
        third = await client.join(second.member_id, group_instance_id="i1")
        assert (third.error_code, third.member_id) == (ErrorCode.NONE, second.member_id)
        # It has been a member: if another takes its place now, it is fenced.
        await world.client().enter(group_instance_id="i1")
        zombie = await client.join(second.member_id, group_instance_id="i1")
        assert zombie.error_code == ErrorCode.FENCED_INSTANCE_ID

    play(story)


def test_ids_handed_out_to_a_connection_are_remembered_within_a_bound(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        handed = [
            (await client.join(group_instance_id=f"i{number}")).member_id
            for number in range(membership.HANDED_OUT_MAX + 1)
        ]
        await client.join(handed[0], group_instance_id="wrong")
        await client.join(handed[1], group_instance_id="wrong")
        assert [one.is_first for one in world.asked("join_group")[-2:]] == [False, True]
        remembered = client.connection.remembered[membership.__name__].handed_out
        assert len(remembered) == membership.HANDED_OUT_MAX

    play(story)


def test_an_id_of_a_member_that_is_not_static_is_not_remembered(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        first = await client.join()
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert client.connection.remembered[membership.__name__].handed_out == {}

    play(story)


# --- sync, heartbeat, leave ------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_who_is_assigned_nothing_gets_empty_bytes(play: Play, version: int) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        joined = await client.enter()
        synced = await client.sync(joined, {}, version)
        assert synced.error_code == ErrorCode.NONE
        assert bytes(synced.assignment) == b""
        encoded = b"".join(APIS[ApiKey.SYNC_GROUP].encode[version](synced))
        # The last field: length 0, or the compact form's length + 1 and no tags.
        assert encoded.endswith(b"\x01\x00" if version >= 4 else b"\0\0\0\0")

    play(story)


def test_a_refused_sync_has_empty_bytes_too(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        joined = await client.enter()
        joined.generation_id += 1
        refused = await client.sync(joined)
        assert refused.error_code == ErrorCode.ILLEGAL_GENERATION
        assert bytes(refused.assignment) == b""
        assert (refused.protocol_type, refused.protocol_name) == (None, None)

    play(story)


@pytest.mark.parametrize(
    "fields",
    [
        {"protocol_type": None},
        {"protocol_name": None},
        {"protocol_name": "sticky"},
        {"protocol_type": "connect"},
    ],
)
def test_a_sync_names_the_protocol_that_was_chosen(play: Play, fields: dict[str, Any]) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        joined = await client.enter()
        refused = await client.sync(joined, {joined.member_id: b"all"}, **fields)
        assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        synced = await client.sync(joined, {joined.member_id: b"all"}, version=4)
        assert synced.assignment == b"all"

    play(story)


def test_a_heartbeat_tells_what_is_wrong_with_the_member(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        joined = await client.enter()
        for version in range(5):
            assert await heartbeat(client, joined, version) == ErrorCode.NONE
        stranger = JoinGroupResponse(generation_id=1, member_id="nobody")
        assert await heartbeat(client, stranger) == ErrorCode.UNKNOWN_MEMBER_ID
        joined.generation_id += 1
        assert await heartbeat(client, joined) == ErrorCode.ILLEGAL_GENERATION

    play(story)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_one_member_leaves_in_an_old_version(play: Play, version: int) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        joined = await client.enter()
        request = LeaveGroupRequest(group_id=GROUP, member_id=joined.member_id)
        left = await client.ask(ApiKey.LEAVE_GROUP, version, request)
        assert left.error_code == ErrorCode.NONE
        again = await client.ask(ApiKey.LEAVE_GROUP, version, request)
        assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID

    play(story)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_several_members_leave_each_with_its_result(play: Play, version: int) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        joined = await stable_static(client)
        left = await leave(
            client,
            MemberIdentity("nobody"),
            MemberIdentity(joined.member_id, "i2"),
            MemberIdentity("", "i1"),
            version=version,
        )
        assert left.error_code == ErrorCode.NONE
        assert [(one.member_id, one.group_instance_id, one.error_code) for one in left.members] == [
            ("nobody", None, ErrorCode.UNKNOWN_MEMBER_ID),
            (joined.member_id, "i2", ErrorCode.UNKNOWN_MEMBER_ID),
            ("", "i1", ErrorCode.NONE),
        ]

    play(story)


def test_a_leave_that_reaches_no_coordinator_has_one_error(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        world.failing["leave_group"] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        left = await leave(world.client(), MemberIdentity("nobody"))
        assert (left.error_code, left.members) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])

    play(story)


# --- coordinators that move ------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ],
)
def test_a_coordinator_that_may_have_moved_is_looked_up_and_asked_again(
    play: Play, error: ErrorCode
) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        joined = await client.enter()
        lookups = world.lookups
        world.failing["heartbeat"] = [error]
        assert await heartbeat(client, joined) == ErrorCode.NONE
        assert world.lookups == lookups + 1
        world.failing["heartbeat"] = [error] * 2
        asked = len(world.asked("heartbeat"))
        assert await heartbeat(client, joined) == ErrorCode.NOT_COORDINATOR
        assert len(world.asked("heartbeat")) == asked + 2

    play(story)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REPLICA_OFFLINE, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_another_error_is_the_clients_at_once(
    play: Play, error: ErrorCode, code: ErrorCode
) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        joined = await client.enter()
        world.failing["heartbeat"] = [error]
        assert await heartbeat(client, joined) == code
        assert len(world.asked("heartbeat")) == 1

    play(story)


def test_a_member_stays_one_when_its_coordinator_moves(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        joined = await client.enter()
        await client.sync(joined, {joined.member_id: b"all"})
        for shard in range(SHARDS):
            await world.move(shard, to=2)
        assert await heartbeat(client, joined) == ErrorCode.NONE
        assert world.calls[-1][0].endswith("@2")
        calls = len(world.calls)
        assert await heartbeat(client, joined) == ErrorCode.NONE
        assert len(world.calls) == calls + 1

    play(story)


def test_an_answer_from_before_the_failure_is_not_gone_by(tmp_path: Path) -> None:
    """1. A call is sent. 2. A look-up begins. 3. The shard moves. 4. The call fails."""

    async def story() -> None:
        world = GroupCluster(tmp_path)
        client = world.client()
        await client.join("m-1")
        world.calls.clear()
        called = world.holding["join_group"] = asyncio.Event()
        joining = asyncio.create_task(client.join("m-1"))
        await until(lambda: world.calls)
        looked = world.holding["metadata"] = asyncio.Event()
        world.cluster.view.invalidate(CONSUMER_OFFSETS_TOPIC)
        looking = asyncio.create_task(world.cluster.view.ask(frozenset({CONSUMER_OFFSETS_TOPIC})))
        await asyncio.sleep(1)
        world.leaders = [2] * SHARDS
        called.set()
        await give_turns()
        looked.set()
        await asyncio.gather(joining, looking)
        assert [actor.partition("@")[2] for actor, _, _ in world.calls] == ["1", "2"]

    run_virtually(story())


def test_without_a_leader_a_client_looks_for_one_later(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        world.leaders = [-1] * SHARDS
        client = world.client()
        assert (await client.join()).error_code == ErrorCode.NOT_COORDINATOR
        world.leaders = [1] * SHARDS
        assert (await client.join()).error_code == ErrorCode.MEMBER_ID_REQUIRED

    play(story)


def test_without_a_controller_no_coordinator_is_available(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        world.is_controller_away = True
        client = world.client()
        assert (await client.join()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await listed(client)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        (described,) = await describe(client, GROUP)
        assert described.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    play(story)


def test_a_coordinator_that_hangs_is_given_up_once_another_leads(tmp_path: Path) -> None:
    async def story() -> None:
        world = GroupCluster(tmp_path)
        world.replicas = (1, 2)
        world.holding["join_group"] = asyncio.Event()
        client = world.client()
        waiting = asyncio.create_task(client.join("m-1"))
        await asyncio.sleep(60)
        assert not waiting.done()
        assert len(world.calls) == 1
        world.leaders = [2] * SHARDS
        await asyncio.sleep(5)
        assert [actor.partition("@")[2] for actor, _, _ in world.calls] == ["1", "2"]
        waiting.cancel()
        await asyncio.wait((waiting,))
        assert waiting.cancelled()

    run_virtually(story())


def test_how_long_a_client_is_to_wait_is_passed_on(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        async def call(_actor: str, request: Any, *, timeout_ms: int) -> Any:
            return request.reply_type(throttle_ms=70)

        world.call = call
        request = HeartbeatRequest(GROUP, 1, "m")
        response = await world.client().ask(ApiKey.HEARTBEAT, 4, request)
        assert response.throttle_time_ms == 70
        assert (await world.client().join()).throttle_time_ms == 70
        assert (await listed(world.client())).throttle_time_ms == 70

    play(story)


# --- the order of a connection ---------------------------------------------------------------


def test_commits_of_a_connection_keep_their_order(play: Play) -> None:
    """The first is lost and repeated; the second waits, or the first would undo it."""

    async def story(world: GroupCluster) -> None:
        client = world.client()
        assert await commit(client, 1) == ErrorCode.NONE
        world.holding["offset_commit"] = asyncio.Event()
        world.failing["offset_commit"] = [ErrorCode.NETWORK_EXCEPTION]
        first = client.begin(ApiKey.OFFSET_COMMIT, 9, commit_of(2))
        second = client.begin(ApiKey.OFFSET_COMMIT, 9, commit_of(3))
        third = client.begin(ApiKey.OFFSET_COMMIT, 9, commit_of(4))
        await give_turns()
        assert len(world.asked("offset_commit")) == 2
        world.holding["offset_commit"].set()
        await asyncio.gather(first, second, third)
        sent = [one.offsets[0][1].offset for one in world.asked("offset_commit")]
        assert sent == [1, 2, 2, 3, 4]
        assert await position(client) == 4
        assert client.connection.remembered[membership.__name__].turns == {}

    play(story)


def test_who_joins_leaves_or_asks_for_positions_waits_for_the_commits_before(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        joined = await client.enter()
        await client.sync(joined, {joined.member_id: b"all"})
        held = world.holding["offset_commit"] = asyncio.Event()
        member = {
            "generation_id_or_member_epoch": joined.generation_id,
            "member_id": joined.member_id,
        }
        committing = client.begin(ApiKey.OFFSET_COMMIT, 9, commit_of(8, **member))
        asking = asyncio.create_task(position(client))
        joining = asyncio.create_task(client.join(joined.member_id))
        leaving = asyncio.create_task(leave(client, MemberIdentity("nobody")))
        await until(lambda: world.asked("offset_commit"))
        await give_turns()
        assert [request.method for _, request, _ in world.calls[3:]] == ["offset_commit"]
        # Heartbeats wait for nothing, nor do other groups, nor other connections.
        assert await heartbeat(client, joined) == ErrorCode.NONE
        assert await position(client, OTHER_GROUP) == -1
        assert await position(world.client()) == -1
        assert not asking.done()
        held.set()
        assert (await committing).topics[0].partitions[0].error_code == ErrorCode.NONE
        assert await asking == 8
        assert (await joining).generation_id == joined.generation_id + 1
        assert (await leaving).members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert client.connection.remembered[membership.__name__].turns == {}

    play(story)


def test_a_commit_that_is_given_up_lets_the_next_one_through(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        world.holding["offset_commit"] = asyncio.Event()
        first = client.begin(ApiKey.OFFSET_COMMIT, 9, commit_of(2))
        second = client.begin(ApiKey.OFFSET_COMMIT, 9, commit_of(3))
        third = client.begin(ApiKey.OFFSET_COMMIT, 9, commit_of(4))
        await until(lambda: world.asked("offset_commit"))
        first.cancel()
        second.cancel()
        await asyncio.wait((first, second))
        world.holding["offset_commit"].set()
        await third
        assert await position(client) == 4
        assert client.connection.remembered[membership.__name__].turns == {}

    play(story)


# --- whole groups ----------------------------------------------------------------------------


def test_groups_of_all_coordinators_are_described_in_one_call_each(play: Play) -> None:
    async def story(world: GroupCluster) -> None:
        client = world.client()
        joined = await client.enter()
        assert await commit(client, 3, group_id=OTHER_GROUP) == ErrorCode.NONE
        rebalancing, simple, unknown = await describe(client, GROUP, OTHER_GROUP, "nobody's")
        assert len(world.asked("describe_groups")) == SHARDS
        assert rebalancing.group_state == "CompletingRebalance"
        assert (rebalancing.protocol_type, rebalancing.protocol_data) == ("consumer", "")
        assert (simple.group_state, simple.protocol_type, simple.members) == ("Empty", "", [])
        assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert unknown.error_message == 'there is no group "nobody\'s"'
        await client.sync(joined, {joined.member_id: b"all"})
        (stable,) = await describe(client, GROUP)
        assert (stable.group_state, stable.protocol_data) == ("Stable", "range")
        (member,) = stable.members
        assert (member.member_id, member.client_id) == (joined.member_id, "app")
        assert (member.client_host, bytes(member.member_assignment)) == ("", b"all")
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


def test_members_of_both_kinds_share_a_group(play: Play) -> None:
    """A consumer of oncelog's own client has joined; one of Kafka's joins it."""

    async def story(world: GroupCluster) -> None:
        own = world.coordinator_of(GROUP)
        request = group.JoinGroupRequest(
            group_id=GROUP, protocols=(group.GroupProtocol(name="range", metadata=b"own"),)
        )
        first = await own.join_group(request)
        request = group.JoinGroupRequest(
            group_id=GROUP, member_id=first.member_id, protocols=request.protocols
        )
        leading = await own.join_group(request)
        entering = asyncio.create_task(
            world.client().enter(
                protocols=[
                    JoinGroupRequestProtocol("sticky", memoryview(b"not common")),
                    JoinGroupRequestProtocol("range", memoryview(b"Kafka's")),
                ]
            )
        )
        await until(lambda: len(world.asked("join_group")) == 2)
        again = await own.join_group(request)
        following = await entering
        assert following.protocol_name == "range"
        assert following.leader == leading.member_id
        assert [one.metadata for one in again.members] == [b"own", b"Kafka's"]

    play(story)


def test_the_groups_that_are_listed_are_of_the_shards_that_this_broker_leads(play: Play) -> None:
    """Clients ask every node, and show what each of them says."""

    async def story(world: GroupCluster) -> None:
        world.leaders = [1, 2]
        world.coordinators["group:1@2"] = world.coordinators.pop("group:1@1")
        await listed(world.client())
        assert sorted(actor for actor, _, _ in world.calls) == ["group:0@1"]

    play(story)
