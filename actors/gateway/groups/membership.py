"""Consumer groups of Kafka's clients: the classic protocol, onto the group coordinators.

Two things differ from a client of our own. A member below JoinGroup 4 knows no MEMBER_ID_REQUIRED,
so the second join is made here. And Kafka handles the requests of a connection one after the other,
while here a join, which waits long, runs beside others: what must not overtake a commit of its
group waits for it (``commits_in_order``, ``commits_done``), whatever overlaps.

A coordinator that has moved is looked up anew, and asked once more. After that the client gets
NOT_COORDINATOR and looks by itself.

Source: KIP-62, KIP-345, KIP-394, KIP-518, KIP-559, KIP-800, KIP-814, KIP-848 and KIP-1043 for what
the versions of the requests mean.

One file: the requests of members and those about whole groups share the ways to coordinators.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from msgspec import structs

from oncelog.actors.coordination.leader_watch import LEADER_CHECK_MS, LeaderWatch
from oncelog.actors.gateway.calls import CALL_TIMEOUT_MS, FRESH_MS, Call
from oncelog.actors.gateway.errors import of_coordinator
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from oncelog.actors.gateway.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from oncelog.actors.gateway.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from oncelog.actors.gateway.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from oncelog.actors.gateway.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)
from oncelog.actors.gateway.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from oncelog.actors.gateway.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from oncelog.actors.process.clock import loop_ms
from oncelog.actors.protocol.messages import group, share
from oncelog.actors.protocol.messages.base import Reply, ReplyT, Request
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import (
    CONSUMER_OFFSETS_TOPIC,
    GROUP_ID_MAX_BYTES,
    TopicPartition,
    is_valid_group_id,
)

JOIN_MARGIN_MS: Final = 10_000
"""How much longer than the member's rebalance timeout the reply to its join may take.

More than the 5 s of Kafka's Java client, so that it is the client that gives up.
"""

SYNC_TIMEOUT_MS: Final = 310_000
"""Deadline of a sync, which names no timeout: the usual rebalance timeout, and the margin."""

HANDED_OUT_MAX: Final = 100
"""Ids of static members that one connection was given and has not joined with yet.

Beyond that the oldest is forgotten: if its coordinator forgets it too, its member is fenced.
"""

GROUPS_PER_REQUEST_MAX: Final = 10_000
"""Groups in one request; those beyond are answered with INVALID_REQUEST."""

GROUPS_AT_ONCE_MAX: Final = 100
"""Groups of one request that are asked about at a time, where each takes a call of its own."""

ID_REQUIRED_VERSION: Final = 4
"""From this JoinGroup on clients know MEMBER_ID_REQUIRED."""

NO_OPERATIONS: Final = -(2**31)
"""``authorized_operations`` if nobody asked for them."""

SHARE_TYPE: Final = "share"
"""Type and protocol type of the groups of our queues."""

_CLASSIC_TYPE: Final = "classic"
_LISTED_VERSION: Final = 5
"""From this ListGroups on a response tells the type of a group."""

_NOT_FOUND_VERSION: Final = 6
"""From this DescribeGroups on an unknown group is an error."""

_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
"""What tells that the coordinator may be elsewhere."""

_NEEDING: Final[tuple[tuple[int, Callable[[str], Request[Any]]], ...]] = (
    (3, lambda group_id: group.LeaveGroupRequest(group_id=group_id, members=())),
    (6, lambda group_id: group.DeleteGroupRequest(group_id=group_id)),
    (8, lambda group_id: share.DescribeShareGroupRequest(group_id=group_id)),
)
"""Kafka's number of an operation on groups, and a request that needs just that: Read, Delete and
Describe.
"""

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

# --- coordinators ---------------------------------------------------------------------------------


class _Asking:
    """``Call.ask`` as a ``Transport``, for ``LeaderWatch``."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def call(self, actor: str, request: Request[ReplyT], *, timeout_ms: int) -> ReplyT:
        return await self._call.ask(actor, request, timeout_ms=timeout_ms)


async def ask_coordinator(
    call: Call,
    group_id: str,
    request: Request[ReplyT],
    *,
    timeout_ms: int = CALL_TIMEOUT_MS,
    gone: ErrorCode | None = None,
) -> ReplyT:
    """Ask the coordinator of a group, in the client's name; see ``ask_shard``.

    ``COORDINATOR_NOT_AVAILABLE`` while it is not known how many coordinators there are.
    """
    if not is_valid_group_id(group_id):
        return request.failed(ErrorCode.INVALID_GROUP_ID, _unfit(group_id))
    shard = await call.shard(CONSUMER_OFFSETS_TOPIC, group_id)
    if shard is None:
        return request.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return await ask_shard(call, shard, request, timeout_ms=timeout_ms, gone=gone)


async def ask_shard(
    call: Call,
    shard: TopicPartition,
    request: Request[ReplyT],
    *,
    timeout_ms: int = CALL_TIMEOUT_MS,
    gone: ErrorCode | None = None,
) -> ReplyT:
    """Ask the coordinator of one partition of the offsets topic, and once more if it has moved.

    ``gone`` of the second call counts as success if the first got no answer: then it was the first
    that removed what the request removes.
    """
    reply = await _ask_leader(call, shard, request, timeout_ms=timeout_ms, is_new=False)
    if reply.error not in _MOVED:
        return reply
    call.forget(shard.topic)
    again = await _ask_leader(call, shard, request, timeout_ms=timeout_ms, is_new=True)
    if again.error is gone and reply.error is ErrorCode.NETWORK_EXCEPTION:
        success: ReplyT = request.reply_type()
        return success
    return again


async def _ask_leader(
    call: Call, shard: TopicPartition, request: Request[ReplyT], *, timeout_ms: int, is_new: bool
) -> ReplyT:
    """Ask whoever leads; if there are copies, give up once another does: a join waits long."""
    actor = (await call.leader(shard, is_new=is_new)).actor
    topic = call.cluster.view.known.get(shard.topic)
    partition = None if topic is None else topic.find(shard.partition)
    is_copied = partition is not None and len(partition.replicas) > 1
    if actor is None or not is_copied or timeout_ms <= LEADER_CHECK_MS:
        return await call.ask(actor, request, timeout_ms=timeout_ms)

    async def leader_now() -> str | None:
        return (await call.leader(shard, is_new=True)).actor

    watch = LeaderWatch(actor, leader_now)
    return await watch.call(_Asking(call), request, timeout_ms=timeout_ms)


async def asked_of_each(
    items: Sequence[ItemT], ask: Callable[[ItemT], Awaitable[ResultT]]
) -> list[ResultT]:
    """What ``ask`` says of each item, in their order; ``GROUPS_AT_ONCE_MAX`` at a time."""
    places = asyncio.Semaphore(GROUPS_AT_ONCE_MAX)

    async def one(item: ItemT) -> ResultT:
        async with places:
            return await ask(item)

    return list(await asyncio.gather(*map(one, items)))


def throttle_of(*replies: Reply) -> int:
    """``throttle_time_ms`` of the response to which these replies lead."""
    told = (reply.throttle_ms for reply in replies)
    return max((ms for ms in told if isinstance(ms, int)), default=0)


def too_many(count: int) -> str:
    """Why no more than ``GROUPS_PER_REQUEST_MAX`` groups are answered."""
    return f"{count} groups: give at most {GROUPS_PER_REQUEST_MAX} in one request"


def _unfit(group_id: str) -> str:
    return f"group id {group_id!r:.80}: give 1 to {GROUP_ID_MAX_BYTES} bytes of UTF-8"


# --- the order of commits -------------------------------------------------------------------------


@dataclass(slots=True)
class _Turn:
    """The commits of one group that are under way on one connection."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Fair: who asks first is first."""
    count: int = 0


@dataclass(slots=True)
class _Remembered:
    """What is remembered of one connection.

    ``turns`` has the groups with commits under way: no more than the connection has requests.
    """

    turns: dict[str, _Turn] = field(default_factory=dict)
    handed_out: dict[tuple[str, str], None] = field(default_factory=dict)
    """Group and id of static members that have not joined yet, the oldest first."""


def _remembered(call: Call) -> _Remembered:
    found: _Remembered | None = call.client.remembered.get(__name__)
    if found is None:
        found = call.client.remembered[__name__] = _Remembered()
    return found


@asynccontextmanager
async def commits_in_order(call: Call, group_id: str) -> AsyncIterator[None]:
    """One commit of a group and connection at a time, in the order in which they came.

    Otherwise one that is repeated, or slow, could move back what a later one has committed. Enter
    it before anything else is awaited.
    """
    turns = _remembered(call).turns
    turn = turns.setdefault(group_id, _Turn())
    turn.count += 1
    try:
        async with turn.lock:
            yield
    finally:
        turn.count -= 1
        if not turn.count:
            del turns[group_id]


async def commits_done(call: Call, group_id: str) -> None:
    """Wait for the commits of the group that came before on this connection.

    So a member that joins or leaves has its commits judged in the generation they were made in,
    and who asks for positions sees what it has just committed.
    """
    if group_id in _remembered(call).turns:
        async with commits_in_order(call, group_id):
            pass


# --- members --------------------------------------------------------------------------------------


async def join_group(call: Call, request: JoinGroupRequest) -> JoinGroupResponse:
    """Join or rejoin; answered when the rebalance has collected its members."""
    await commits_done(call, request.group_id)
    asked = _join_of(call, request)
    reply = await _join(call, asked)
    is_first = reply.error is ErrorCode.MEMBER_ID_REQUIRED
    if is_first and call.version < ID_REQUIRED_VERSION:
        asked = structs.replace(asked, member_id=reply.member_id, is_first=True)
        reply = await _join(call, asked)
    elif is_first and request.group_instance_id is not None:
        _hand_out(call, (request.group_id, reply.member_id))
    elif reply.error is ErrorCode.NONE:
        _remembered(call).handed_out.pop((request.group_id, request.member_id), None)
    return _joined(call, request, reply)


def _join_of(call: Call, request: JoinGroupRequest) -> group.JoinGroupRequest:
    has_rebalance_timeout = call.version >= 1
    return group.JoinGroupRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        is_first=(request.group_id, request.member_id) in _remembered(call).handed_out,
        group_instance_id=request.group_instance_id,
        client_id=call.client_id or "",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms
        if has_rebalance_timeout
        else request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(
            group.GroupProtocol(name=protocol.name, metadata=bytes(protocol.metadata))
            for protocol in request.protocols
        ),
    )


async def _join(call: Call, asked: group.JoinGroupRequest) -> group.JoinGroupReply:
    # Who has no member id yet is given one at once.
    timeout_ms = CALL_TIMEOUT_MS
    if asked.member_id:
        timeout_ms = max(asked.rebalance_timeout_ms, 0) + JOIN_MARGIN_MS
    return await ask_coordinator(call, asked.group_id, asked, timeout_ms=timeout_ms)


def _hand_out(call: Call, handed_out: tuple[str, str]) -> None:
    """Remember the id, by which a static member may join even if its coordinator forgets it.

    Without that, its former life would make it look like a zombie: FENCED_INSTANCE_ID, which is
    final. One that is not static is told UNKNOWN_MEMBER_ID, and begins anew.
    """
    known = _remembered(call).handed_out
    known[handed_out] = None
    if len(known) > HANDED_OUT_MAX:
        del known[next(iter(known))]


def _joined(
    call: Call, request: JoinGroupRequest, reply: group.JoinGroupReply
) -> JoinGroupResponse:
    if reply.error is not ErrorCode.NONE:
        return JoinGroupResponse(
            throttle_time_ms=throttle_of(reply),
            error_code=of_coordinator(reply.error),
            protocol_name=None if call.version >= 7 else "",
            member_id=reply.member_id or request.member_id,
        )
    return JoinGroupResponse(
        throttle_time_ms=throttle_of(reply),
        generation_id=reply.generation_id,
        protocol_type=request.protocol_type,
        protocol_name=reply.protocol_name,
        leader=reply.leader_id,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            for member in reply.members
        ],
    )


async def sync_group(call: Call, request: SyncGroupRequest) -> SyncGroupResponse:
    """Submit the assignment of a generation, or wait for it.

    A member that was assigned nothing gets empty bytes, never null.
    """
    if call.version >= 5 and None in (request.protocol_type, request.protocol_name):
        return SyncGroupResponse(
            error_code=int(ErrorCode.INCONSISTENT_GROUP_PROTOCOL), assignment=b""
        )
    asked = group.SyncGroupRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=tuple(
            group.MemberAssignment(member_id=each.member_id, assignment=bytes(each.assignment))
            for each in request.assignments
        ),
    )
    reply = await ask_coordinator(call, request.group_id, asked, timeout_ms=SYNC_TIMEOUT_MS)
    is_synced = reply.error is ErrorCode.NONE
    return SyncGroupResponse(
        throttle_time_ms=throttle_of(reply),
        error_code=of_coordinator(reply.error),
        protocol_type=request.protocol_type if is_synced else None,
        protocol_name=reply.protocol_name if is_synced else None,
        assignment=reply.assignment,
    )


async def heartbeat(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
    """Show that a member is alive."""
    asked = group.HeartbeatRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
    )
    reply = await ask_coordinator(call, request.group_id, asked)
    return HeartbeatResponse(
        throttle_time_ms=throttle_of(reply), error_code=of_coordinator(reply.error)
    )


async def leave_group(call: Call, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove members at once: one, before version 3."""
    await commits_done(call, request.group_id)
    is_one = call.version < 3
    leaving = (
        (group.LeavingMember(member_id=request.member_id),)
        if is_one
        else tuple(
            group.LeavingMember(
                member_id=member.member_id, group_instance_id=member.group_instance_id
            )
            for member in request.members
        )
    )
    asked = group.LeaveGroupRequest(group_id=request.group_id, members=leaving)
    reply = await ask_coordinator(call, request.group_id, asked)
    error = reply.error
    if is_one and error is ErrorCode.NONE:
        (error,) = reply.results
    return LeaveGroupResponse(
        throttle_time_ms=throttle_of(reply),
        error_code=of_coordinator(error),
        members=[]
        if is_one
        else [
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=of_coordinator(result),
            )
            for member, result in zip(leaving, reply.results, strict=False)
        ],
    )


# --- whole groups ---------------------------------------------------------------------------------


async def describe_groups(call: Call, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Describe groups: one call to each coordinator that has some of them."""
    names = list(dict.fromkeys(request.groups))
    by_shard: dict[TopicPartition, list[str]] = {}
    answers: dict[str, DescribedGroup] = {}
    for place, name in enumerate(names):
        error, message = _refusal_of_name(name, place, len(names))
        shard = None
        if error is ErrorCode.NONE:
            shard = await call.shard(CONSUMER_OFFSETS_TOPIC, name)
        if shard is not None:
            by_shard.setdefault(shard, []).append(name)
        else:
            answers[name] = _undescribed(
                name, error or ErrorCode.COORDINATOR_NOT_AVAILABLE, message
            )
    replies = await asyncio.gather(
        *(
            ask_shard(call, shard, group.DescribeGroupsRequest(group_ids=tuple(some)))
            for shard, some in by_shard.items()
        )
    )
    for reply, some in zip(replies, by_shard.values(), strict=True):
        found = {one.group_id: one for one in reply.groups}
        for name in some:
            answers[name] = (
                _undescribed(name, reply.error, reply.detail)
                if reply.error is not ErrorCode.NONE
                else _described(call, name, found.get(name))
            )
    if request.include_authorized_operations:
        for name, answer in answers.items():
            if answer.error_code == ErrorCode.NONE:
                answer.authorized_operations = _operations(call, name)
    return DescribeGroupsResponse(
        throttle_time_ms=throttle_of(*replies), groups=[answers[name] for name in request.groups]
    )


def _refusal_of_name(name: str, place: int, count: int) -> tuple[ErrorCode, str]:
    if place >= GROUPS_PER_REQUEST_MAX:
        return ErrorCode.INVALID_REQUEST, too_many(count)
    if not is_valid_group_id(name):
        return ErrorCode.INVALID_GROUP_ID, _unfit(name)
    return ErrorCode.NONE, ""


def _undescribed(name: str, error: ErrorCode, message: str = "", state: str = "") -> DescribedGroup:
    return DescribedGroup(
        error_code=of_coordinator(error),
        error_message=message or None,
        group_id=name,
        group_state=state,
        authorized_operations=NO_OPERATIONS,
    )


def _described(call: Call, name: str, found: group.GroupDescription | None) -> DescribedGroup:
    """A group of consumers; the group of a queue is none of these."""
    if found is None and not _may(call, share.DescribeShareGroupRequest(group_id=name)):
        return _undescribed(name, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if found is None or found.protocol_type == SHARE_TYPE:
        if call.version < _NOT_FOUND_VERSION:
            return _undescribed(name, ErrorCode.NONE, state="Dead")
        what = "there is no group" if found is None else "a queue, not consumers, has the group"
        return _undescribed(name, ErrorCode.GROUP_ID_NOT_FOUND, f"{what} {name!r}", state="Dead")
    return DescribedGroup(
        group_id=name,
        group_state=found.state,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol_name if found.state == "Stable" else "",
        members=[
            # Coordinators do not tell from where a member calls.
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host="",
                member_metadata=member.subscription,
                member_assignment=member.assignment,
            )
            for member in found.members
        ],
        authorized_operations=NO_OPERATIONS,
    )


def _may(call: Call, request: Request[Any]) -> bool:
    """Whether the client has the rights that a request needs."""
    judged = call.cluster.door.judge(request, call.client.principal, call.client.host)
    return not isinstance(judged, ErrorCode)


def _operations(call: Call, name: str) -> int:
    """Kafka's bits of what the client may do to a group."""
    return sum(1 << number for number, needing in _NEEDING if _may(call, needing(name)))


async def list_groups(call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
    """List the groups that the client may see; queues only where their type is told."""
    shards = await _listed_shards(call)
    if shards is None:
        return ListGroupsResponse(error_code=int(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    asked = group.DescribeGroupsRequest()
    replies = await asyncio.gather(*(ask_shard(call, shard, asked) for shard in shards))
    error = next((one.error for one in replies if one.error is not ErrorCode.NONE), ErrorCode.NONE)
    if error.retriable:
        # The one that makes clients ask again: they do not look for a coordinator here.
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error is not ErrorCode.NONE:
        return ListGroupsResponse(
            throttle_time_ms=throttle_of(*replies), error_code=of_coordinator(error)
        )
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    found = sorted((one for reply in replies for one in reply.groups), key=lambda one: one.group_id)
    return ListGroupsResponse(
        throttle_time_ms=throttle_of(*replies),
        groups=[
            listed
            for listed in map(_listed, found)
            if not states or listed.group_state.lower() in states
            if not types or listed.group_type in types
            if listed.group_type == _CLASSIC_TYPE or call.version >= _LISTED_VERSION
        ],
    )


async def _listed_shards(call: Call) -> list[TopicPartition] | None:
    """The partitions of the offsets topic whose groups are listed: those that this broker leads.

    Clients ask every node and join what they get. ``None`` if it is not known which there are.
    """
    cluster = call.cluster
    as_of_ms = loop_ms() - FRESH_MS
    _, topics = await cluster.view.topics((CONSUMER_OFFSETS_TOPIC,), as_of_ms=as_of_ms)
    found = topics.get(CONSUMER_OFFSETS_TOPIC)
    if found is None:
        return None
    return [
        TopicPartition(CONSUMER_OFFSETS_TOPIC, one.partition)
        for one in found.partitions
        if one.leader == cluster.broker_id
    ]


def _listed(found: group.GroupDescription) -> ListedGroup:
    is_share = found.protocol_type == SHARE_TYPE
    return ListedGroup(
        group_id=found.group_id,
        protocol_type=found.protocol_type,
        group_state=found.state,
        group_type=SHARE_TYPE if is_share else _CLASSIC_TYPE,
    )


async def delete_groups(call: Call, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete groups without members, and all they have committed."""
    names = list(dict.fromkeys(request.groups_names))
    replies = await asked_of_each(
        names[:GROUPS_PER_REQUEST_MAX], lambda name: _delete_group(call, name)
    )
    beyond = group.DeleteGroupReply(error=ErrorCode.INVALID_REQUEST, detail=too_many(len(names)))
    replies += [beyond] * (len(names) - len(replies))
    return DeleteGroupsResponse(
        throttle_time_ms=throttle_of(*replies),
        results=[
            DeletableGroupResult(
                group_id=name,
                error_code=of_coordinator(reply.error),
                error_message=reply.detail or None,
            )
            for name, reply in zip(names, replies, strict=True)
        ],
    )


async def _delete_group(call: Call, name: str) -> group.DeleteGroupReply:
    await commits_done(call, name)
    return await ask_coordinator(
        call,
        name,
        group.DeleteGroupRequest(group_id=name),
        gone=ErrorCode.GROUP_ID_NOT_FOUND,
    )


HANDLERS: Final[dict[ApiKey, Callable[[Call, Any], Awaitable[Any]]]] = {
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.SYNC_GROUP: sync_group,
    ApiKey.HEARTBEAT: heartbeat,
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.LIST_GROUPS: list_groups,
    ApiKey.DELETE_GROUPS: delete_groups,
}
"""Each takes a call and the request of its API, and returns the response."""
