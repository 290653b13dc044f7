from __future__ import annotations

import asyncio

import pytest

from oncelog.actors.protocol.group.consumer_protocol import (
    ConsumerAssignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from oncelog.actors.protocol.messages.group import (
    DescribeGroupsReply,
    DescribeGroupsRequest,
    GroupDescription,
    GroupMemberDescription,
    HeartbeatRequest,
    JoinedMember,
    JoinGroupReply,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupReply,
    SyncGroupRequest,
)
from oncelog.api.config import ConsumerSettings
from oncelog.api.consuming.group_membership import GroupMembership, MembershipState
from oncelog.api.records import ConsumerGroupMetadata
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    FencedInstanceIdError,
    InconsistentGroupProtocolError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    exception_for,
)
from oncelog.storage.model import TopicPartition


def new_membership(cluster, on_change=lambda: None, **settings):
    return GroupMembership(
        router=cluster.router(),
        settings=ConsumerSettings(group_id="g", **settings),
        random=cluster.random,
        group_id="g",
        topics=("t",),
        on_change=on_change,
    )


def joined(cluster, **settings):
    """A member that has joined, for scenarios that begin there."""

    async def join():
        membership = new_membership(cluster, **settings)
        await membership.join()
        return membership

    return join()


def test_the_leader_has_the_group_rebalance_when_there_are_more_partitions(fake_cluster, run):
    fake_cluster.create("t", 1)

    async def scenario():
        membership = await joined(fake_cluster, max_poll_interval_ms=3_600_000)
        await asyncio.sleep(400)
        assert not membership.needs_join
        fake_cluster.create("t", 2)
        await asyncio.sleep(400)
        assert membership.needs_join
        assigned = await membership.join()
        await asyncio.sleep(400)
        assert not membership.needs_join
        await membership.close()
        return assigned

    assert [tp.partition for tp in run(scenario())] == [0, 1]


def test_a_new_member_joins_with_the_id_it_was_given_and_gets_its_partitions(fake_cluster, run):
    fake_cluster.create("t", 2)

    async def scenario():
        membership = new_membership(fake_cluster)
        return await membership.join(), membership

    assigned, membership = run(scenario())
    assert assigned == (TopicPartition("t", 0), TopicPartition("t", 1))
    assert membership.state is MembershipState.STABLE
    assert [request.member_id for request in fake_cluster.requests(JoinGroupRequest)] == [
        "",
        "member-1",
    ]
    assert membership.metadata().member_id == "member-1"
    assert membership.metadata().generation_id == 1


def test_a_first_join_is_waited_for_as_any_request_and_a_members_until_the_rebalance_ends(
    fake_cluster, run
):
    """The first is answered with a member id at once: if it is lost, only another helps."""
    fake_cluster.create("t", 1)
    waits, call = [], fake_cluster.call

    async def measured(actor, request, *, timeout_ms):
        if isinstance(request, JoinGroupRequest):
            waits.append((request.member_id, timeout_ms))
            if len(waits) == 1:
                return request.failed(ErrorCode.REQUEST_TIMED_OUT)
        return await call(actor, request, timeout_ms=timeout_ms)

    fake_cluster.call = measured
    run(joined(fake_cluster, request_timeout_ms=2_000, max_poll_interval_ms=60_000))
    assert waits == [("", 2_000), ("", 2_000), ("member-1", 65_000)]


def test_the_leader_divides_the_partitions_among_all_members(fake_cluster, run):
    fake_cluster.create("t", 4)
    subscription = encode_subscription(Subscription(topics=("t",)))

    def join(request):
        return JoinGroupReply(
            generation_id=3,
            protocol_name="range",
            leader_id="a",
            member_id="a",
            members=tuple(
                JoinedMember(member_id=name, group_instance_id=None, metadata=subscription)
                for name in ("a", "b")
            ),
        )

    fake_cluster.hooks[JoinGroupRequest] = join
    run(joined(fake_cluster))

    (sync,) = fake_cluster.requests(SyncGroupRequest)
    shares = {
        item.member_id: [tp.partition for tp in decode_assignment(item.assignment).partitions]
        for item in sync.assignments
    }
    assert shares == {"a": [0, 1], "b": [2, 3]}


def test_a_leader_that_may_not_see_a_members_topic_does_not_divide_without_it(fake_cluster, run):
    """That member would never read it."""
    fake_cluster.create("t")
    fake_cluster.create("u")
    fake_cluster.hidden = {"u"}
    topics = {"a": ("t",), "b": ("t", "u")}
    fake_cluster.hooks[JoinGroupRequest] = lambda request: JoinGroupReply(
        generation_id=3,
        protocol_name="range",
        leader_id="a",
        member_id="a",
        members=tuple(
            JoinedMember(
                member_id=name,
                group_instance_id=None,
                metadata=encode_subscription(Subscription(topics=of_member)),
            )
            for name, of_member in topics.items()
        ),
    )
    with pytest.raises(TopicAuthorizationFailedError, match="may not Describe topic 'u'"):
        run(joined(fake_cluster))
    assert fake_cluster.requests(SyncGroupRequest) == []


def test_the_leader_does_not_divide_anew_while_it_may_not_see_a_topic(fake_cluster, run):
    """The other members may, and go on."""
    fake_cluster.create("t")

    async def scenario():
        membership = await joined(fake_cluster)
        fake_cluster.hidden = {"t"}
        membership._router.invalidate(TopicPartition("t", 0))
        await asyncio.sleep(10)
        return membership.state

    assert run(scenario()) is MembershipState.STABLE
    assert fake_cluster.requests(HeartbeatRequest)


@pytest.mark.parametrize(("limit_ms", "is_member"), [(1_200_000, True), (400_000, False)])
def test_work_counts_as_polling_for_as_long_as_was_said(fake_cluster, run, limit_ms, is_member):
    fake_cluster.create("t")

    async def scenario():
        membership = await joined(fake_cluster, max_poll_interval_ms=300_000)
        membership.begin_processing(limit_ms)
        await asyncio.sleep(1_000)
        assert membership.needs_join is not is_member
        membership.end_processing()
        await asyncio.sleep(290)
        assert membership.needs_join is not is_member
        await asyncio.sleep(20)
        assert membership.needs_join
        await membership.close()

    run(scenario())


def test_a_restarted_static_leader_does_not_assign_anew(fake_cluster, run):
    fake_cluster.create("t")

    def join(request):
        return JoinGroupReply(
            generation_id=3,
            protocol_name="range",
            leader_id="a",
            member_id="a",
            skip_assignment=True,
        )

    fake_cluster.hooks[JoinGroupRequest] = join
    fake_cluster.hooks[SyncGroupRequest] = lambda request: SyncGroupReply()
    run(joined(fake_cluster, group_instance_id="i"))

    assert fake_cluster.requests(SyncGroupRequest)[0].assignments == ()


@pytest.mark.parametrize("is_described", [True, False])
def test_a_restarted_static_leader_sees_partitions_that_were_added_meanwhile_and_later(
    fake_cluster, run, is_described
):
    """What it had divided it learns from the group; if it cannot, it divides anew, once."""
    fake_cluster.create("t", 2)
    members = [
        JoinedMember(
            member_id=name,
            group_instance_id=name,
            metadata=encode_subscription(Subscription(topics=("t",))),
        )
        for name in ("a", "b")
    ]
    has_divided = []

    def join(request):
        return JoinGroupReply(
            generation_id=3,
            protocol_name="range",
            leader_id="a",
            member_id="a",
            members=tuple(members),
            skip_assignment=not request.member_id,
        )

    def sync(request):
        has_divided.extend(request.assignments)
        return SyncGroupReply()

    def describe(request):
        if not is_described:
            return request.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return DescribeGroupsReply(
            groups=(
                GroupDescription(
                    group_id="g",
                    state="Stable",
                    protocol_type="consumer",
                    protocol_name="range",
                    generation_id=3,
                    members=tuple(
                        GroupMemberDescription(
                            member_id=name,
                            group_instance_id=name,
                            client_id="",
                            assignment=encode_assignment(
                                ConsumerAssignment(partitions=(TopicPartition("t", number),))
                            ),
                        )
                        for number, name in enumerate(("a", "b"))
                    ),
                ),
            )
        )

    fake_cluster.hooks |= {
        JoinGroupRequest: join,
        SyncGroupRequest: sync,
        DescribeGroupsRequest: describe,
    }

    async def scenario():
        membership = await joined(
            fake_cluster, group_instance_id="a", max_poll_interval_ms=3_600_000
        )
        await asyncio.sleep(400)
        assert membership.needs_join is not is_described
        fake_cluster.create("t", 3)
        await asyncio.sleep(400)
        assert membership.needs_join
        await membership.join()
        assert len(has_divided) == 2
        await asyncio.sleep(400)
        assert not membership.needs_join
        await membership.close()

    run(scenario())


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
    ],
)
@pytest.mark.parametrize("step", [JoinGroupRequest, SyncGroupRequest])
def test_a_join_that_met_a_passing_error_is_repeated(fake_cluster, run, step, error):
    fake_cluster.create("t")
    fake_cluster.fail(step, error, times=2)

    membership = run(joined(fake_cluster))

    assert membership.state is MembershipState.STABLE


def test_an_unknown_member_joins_as_a_new_one(fake_cluster, run):
    fake_cluster.create("t")

    async def scenario():
        membership = await joined(fake_cluster)
        fake_cluster.fail(JoinGroupRequest, ErrorCode.UNKNOWN_MEMBER_ID)
        await membership.join()
        return [request.member_id for request in fake_cluster.requests(JoinGroupRequest)[2:]]

    assert run(scenario()) == ["member-1", "", "member-1"]


def test_an_error_no_retry_mends_is_raised_from_join(fake_cluster, run):
    fake_cluster.create("t")
    fake_cluster.fail(JoinGroupRequest, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    with pytest.raises(InconsistentGroupProtocolError):
        run(joined(fake_cluster))


def test_a_subscription_to_a_missing_topic_is_refused_by_name(fake_cluster, run):
    with pytest.raises(UnknownTopicOrPartitionError, match="do not exist: t"):
        run(joined(fake_cluster))


def test_heartbeats_go_on_at_their_interval(fake_cluster, run):
    fake_cluster.create("t")

    async def scenario():
        await joined(fake_cluster, heartbeat_interval_ms=1_000)
        await asyncio.sleep(3.5)
        return len(fake_cluster.requests(HeartbeatRequest))

    assert run(scenario()) == 3


def test_a_rebalance_asks_to_join_and_keeps_the_generation_and_the_session(fake_cluster, run):
    fake_cluster.create("t")
    changes = []

    async def scenario():
        membership = new_membership(
            fake_cluster, lambda: changes.append(1), heartbeat_interval_ms=1_000
        )
        await membership.join()
        fake_cluster.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS, times=100)
        await asyncio.sleep(3.5)
        return membership

    membership = run(scenario())
    assert membership.needs_join
    assert membership.may_commit
    assert changes
    assert len(fake_cluster.requests(HeartbeatRequest)) == 3


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_member_the_group_dropped_may_not_commit_and_joins_again(fake_cluster, run, error):
    fake_cluster.create("t")

    async def scenario():
        membership = await joined(fake_cluster, heartbeat_interval_ms=1_000)
        fake_cluster.fail(HeartbeatRequest, error)
        await asyncio.sleep(1.5)
        return membership

    membership = run(scenario())
    assert membership.needs_join
    assert not membership.may_commit
    assert membership.metadata() == ConsumerGroupMetadata(
        group_id="g", generation_id=1, member_id="member-1"
    )


def test_a_fenced_instance_is_final(fake_cluster, run):
    fake_cluster.create("t")

    async def scenario():
        membership = await joined(fake_cluster, heartbeat_interval_ms=1_000, group_instance_id="i")
        fake_cluster.fail(HeartbeatRequest, ErrorCode.FENCED_INSTANCE_ID)
        await asyncio.sleep(5)
        return membership

    membership = run(scenario())
    assert membership.state is MembershipState.FENCED
    assert isinstance(membership.failure, FencedInstanceIdError)
    assert not membership.needs_join
    assert not membership.may_commit
    assert len(fake_cluster.requests(HeartbeatRequest)) == 1


def test_a_member_that_does_not_poll_leaves(fake_cluster, run):
    fake_cluster.create("t")

    async def scenario():
        membership = await joined(fake_cluster, max_poll_interval_ms=10_000)
        await asyncio.sleep(20)
        return membership

    membership = run(scenario())
    (leave,) = fake_cluster.requests(LeaveGroupRequest)
    assert leave.members[0].member_id == "member-1"
    assert membership.needs_join
    assert not membership.may_commit
    assert (membership.metadata().generation_id, membership.metadata().member_id) == (1, "member-1")


def test_the_poll_gap_is_a_fraction_of_what_is_allowed_and_0_during_a_poll_or_processing(
    fake_cluster, run
):
    fake_cluster.create("t")

    async def scenario():
        membership = await joined(fake_cluster, max_poll_interval_ms=600_000)
        await asyncio.sleep(150)
        gaps = [membership.poll_gap_ratio]
        membership.is_polled = True
        gaps.append(membership.poll_gap_ratio)
        membership.is_polled = False
        membership.begin_processing(60_000)
        gaps.append(membership.poll_gap_ratio)
        await asyncio.sleep(150)  # Longer than it was to take.
        gaps.append(membership.poll_gap_ratio)
        membership.record_poll()
        gaps.append(membership.poll_gap_ratio)
        return gaps

    assert run(scenario()) == pytest.approx([0.25, 0, 0, 0.5, 0])


def test_a_member_that_polls_stays(fake_cluster, run):
    fake_cluster.create("t")

    async def scenario():
        membership = await joined(fake_cluster, max_poll_interval_ms=10_000)
        for _ in range(4):
            await asyncio.sleep(5)
            membership.record_poll()
        return membership

    assert run(scenario()).state is MembershipState.STABLE


@pytest.mark.parametrize(("instance", "leaves"), [(None, 1), ("i", 0)])
def test_closing_leaves_the_group_unless_the_member_is_static(fake_cluster, run, instance, leaves):
    fake_cluster.create("t")

    async def scenario():
        membership = await joined(fake_cluster, group_instance_id=instance)
        await membership.close()
        await asyncio.sleep(60)

    run(scenario())
    assert len(fake_cluster.requests(LeaveGroupRequest)) == leaves
    assert fake_cluster.requests(HeartbeatRequest) == []


def test_a_static_member_joins_with_the_id_that_it_is_given_and_takes_another_if_that_is_gone(
    fake_cluster, run
):
    """1. It is given an id. 2. The coordinator forgets that, and gives another. 3. It rejoins."""
    fake_cluster.create("t")

    def forget(request):
        if request.member_id == "member-1":
            return JoinGroupReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="member-2")
        return None

    fake_cluster.hooks[JoinGroupRequest] = forget

    async def scenario():
        membership = await joined(fake_cluster, group_instance_id="i")
        await membership.join()
        return await membership.close()

    run(scenario())
    joins = fake_cluster.requests(JoinGroupRequest)
    assert [(join.member_id, join.is_first) for join in joins] == [
        ("", False),
        ("member-1", True),
        ("member-2", True),
        ("member-2", False),
    ]


def test_a_commit_that_was_refused_before_makes_a_member_that_joins_forget_nothing(
    fake_cluster, run
):
    """1. The group rebalances. 2. A commit of the generation before is refused meanwhile."""
    fake_cluster.create("t", 1)

    async def scenario():
        membership = await joined(fake_cluster)
        membership.on_commit_error(exception_for(ErrorCode.REBALANCE_IN_PROGRESS), 1)
        assert membership.needs_join
        membership.on_commit_error(exception_for(ErrorCode.UNKNOWN_MEMBER_ID), 1)
        assert membership.member_id == "member-1"
        await membership.join()
        await membership.close()

    run(scenario())
    assert [request.member_id for request in fake_cluster.requests(JoinGroupRequest)] == [
        "",
        "member-1",
        "member-1",
    ]


def test_members_change_their_assignor_one_after_another(fake_cluster, run):
    """1. One has two assignors, the other the old one only. 2. The group votes for the old one. 3.
    The one with both divides by it.
    """
    fake_cluster.create("t", 3)
    old = encode_subscription(Subscription(topics=("t",)))

    def join(request):
        return JoinGroupReply(
            generation_id=3,
            protocol_name="roundrobin",
            leader_id="a",
            member_id="a",
            members=tuple(
                JoinedMember(member_id=name, group_instance_id=None, metadata=old)
                for name in ("a", "b")
            ),
        )

    fake_cluster.hooks[JoinGroupRequest] = join
    run(joined(fake_cluster, partition_assignment_strategy=["sticky", "roundrobin"]))

    (request,) = fake_cluster.requests(JoinGroupRequest)
    assert [protocol.name for protocol in request.protocols] == ["sticky", "roundrobin"]
    (sync,) = fake_cluster.requests(SyncGroupRequest)
    assert sync.protocol_name == "roundrobin"
    shares = [
        [tp.partition for tp in decode_assignment(item.assignment).partitions]
        for item in sync.assignments
    ]
    assert shares == [[0, 2], [1]]


def test_only_the_sticky_assignor_is_told_what_a_member_has(fake_cluster, run):
    """The bytes of the others must not change: the group would rebalance at each join."""
    fake_cluster.create("t")

    async def scenario():
        membership = await joined(fake_cluster, partition_assignment_strategy=("sticky", "range"))
        await membership.join()
        await membership.close()

    run(scenario())
    *_, last = fake_cluster.requests(JoinGroupRequest)
    owned = [decode_subscription(one.metadata).owned_partitions for one in last.protocols]
    assert owned == [(TopicPartition("t", 0),), ()]
