from __future__ import annotations

import re

import pytest
from msgspec import structs

from oncelog.actors.interfaces import partition_actor
from oncelog.actors.protocol.messages.cluster import (
    AlterTopicReply,
    AlterTopicRequest,
    CreateTopicReply,
    CreateTopicRequest,
    DeleteTopicReply,
    DeleteTopicRequest,
    MetadataRequest,
)
from oncelog.actors.protocol.messages.group import (
    DeleteGroupReply,
    DeleteGroupRequest,
    DescribeGroupsReply,
    DescribeGroupsRequest,
    GroupDescription,
    GroupMemberDescription,
    LeaveGroupReply,
    LeaveGroupRequest,
)
from oncelog.actors.protocol.messages.partition import (
    DeleteRecordsReply,
    DeleteRecordsRequest,
    DescribeProducersReply,
    DescribeProducersRequest,
    DescribeReplicaReply,
    DescribeReplicaRequest,
    ProducerDescription,
)
from oncelog.actors.protocol.messages.transaction import (
    DescribeTransactionsReply,
    DescribeTransactionsRequest,
    TransactionDescription,
)
from oncelog.api.admin.admin import Admin, AsyncAdmin
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    BrokerNotAvailableError,
    GroupIdNotFoundError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidSettingError,
    InvalidTopicError,
    NonEmptyGroupError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    TransactionalIdNotFoundError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from oncelog.storage.model import TopicPartition


@pytest.fixture
def admin(fake_cluster):
    def create(request):
        if request.name in fake_cluster.counts:
            return request.failed(ErrorCode.TOPIC_ALREADY_EXISTS)
        fake_cluster.create(request.name, request.partitions)
        return CreateTopicReply(topic_id=request.topic_id)

    def delete(request):
        if fake_cluster.counts.pop(request.name, None) is None:
            return request.failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return DeleteTopicReply()

    fake_cluster.answers[CreateTopicRequest] = create
    fake_cluster.answers[DeleteTopicRequest] = delete
    fake_cluster.answers[DescribeReplicaRequest] = lambda request: DescribeReplicaReply(
        is_leader=True, isr=(1,)
    )
    return AsyncAdmin(fake_cluster.router(), random=fake_cluster.random)


def group(name):
    return GroupDescription(
        group_id=name, state="Empty", protocol_type="", protocol_name="", generation_id=0
    )


def transaction(name):
    return TransactionDescription(
        transactional_id=name,
        state="Empty",
        producer_id=1,
        producer_epoch=0,
        transaction_timeout_ms=1,
    )


def test_a_topic_is_created_described_listed_and_deleted(fake_cluster, run, admin):
    async def scenario():
        topic_id = await admin.create_topic(
            "t", partitions=3, flush="os", segment_bytes=8_192, retention_ms=None
        )
        described = await admin.describe_topic("t")
        listed = await admin.list_topics()
        everything = await admin.list_topics(include_internal=True)
        await admin.delete_topic("t")
        return topic_id, described, listed, everything, await admin.list_topics()

    topic_id, described, listed, everything, after = run(scenario())
    assert len(topic_id) == 32
    assert len(described.partitions) == 3
    assert listed == ["t"]
    assert "__consumer_offsets" in everything
    assert after == []
    (request,) = fake_cluster.requests(CreateTopicRequest)
    assert dict(request.settings) == {"flush": "os", "segment_bytes": "8192"}


def test_creation_waits_until_every_partition_is_led(fake_cluster, run, admin):
    fake_cluster.fail(DescribeReplicaRequest, ErrorCode.NETWORK_EXCEPTION, times=5)

    run(admin.create_topic("t", partitions=2))

    assert len(fake_cluster.requests(DescribeReplicaRequest)) == 7


def test_creation_waits_for_another_controller(fake_cluster, run, admin):
    """Its own may end between making the topic and telling of it."""
    fake_cluster.fail(MetadataRequest, ErrorCode.NOT_CONTROLLER, times=3)

    run(admin.create_topic("t", partitions=2))

    assert len(fake_cluster.requests(DescribeReplicaRequest)) == 2


def test_partitions_that_nobody_leads_after_a_while_are_named_and_not_taken_for_created(
    fake_cluster, run, admin
):
    away = partition_actor("t", 1, 1)
    fake_cluster.actors[away] = lambda request: request.failed(ErrorCode.NETWORK_EXCEPTION)
    with pytest.raises(BrokerNotAvailableError) as raised:
        run(admin.create_topic("t", partitions=3))
    assert str(raised.value) == (
        "topic 't' exists, but 1 of its 3 partitions do not accept writes after 60 s: "
        "1 (NETWORK_EXCEPTION)"
    )
    with pytest.raises(BrokerNotAvailableError):
        run(admin.create_topic("t", partitions=3, exist_ok=True))


def test_a_creation_without_an_answer_is_repeated_with_the_same_topic_id(fake_cluster, run, admin):
    fake_cluster.fail(CreateTopicRequest, ErrorCode.REQUEST_TIMED_OUT)

    run(admin.create_topic("t"))

    first, second = fake_cluster.requests(CreateTopicRequest)
    assert first.topic_id == second.topic_id


def test_a_topic_that_may_exist_is_left_as_it_is_and_its_id_told(run, admin):
    async def scenario():
        await admin.create_topic("t", partitions=3, exist_ok=True)
        found = await admin.create_topic("t", partitions=2, exist_ok=True)
        return found, await admin.describe_topic("t")

    found, described = run(scenario())
    assert found == described.topic_id
    assert len(described.partitions) == 3


def test_a_name_that_is_taken_is_refused(run, admin):
    async def scenario():
        await admin.create_topic("t")
        await admin.create_topic("t")

    with pytest.raises(TopicAlreadyExistsError):
        run(scenario())


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 250, 7, b"t", None])
def test_an_impossible_name_is_refused_without_a_call(fake_cluster, run, admin, name):
    with pytest.raises(InvalidTopicError):
        run(admin.create_topic(name))
    assert fake_cluster.calls == []


@pytest.mark.parametrize(
    "settings", [{"colour": "red"}, {"colour": None}, {"segment_bytes": 1}, {"flush": "never"}]
)
def test_an_impossible_setting_is_refused(run, admin, settings):
    with pytest.raises(InvalidSettingError):
        run(admin.create_topic("t", **settings))


def test_settings_of_a_topic_are_changed_and_made_default_again(fake_cluster, run, admin):
    fake_cluster.answers[AlterTopicRequest] = lambda request: AlterTopicReply()

    run(admin.alter_topic("t", retention_ms=5, cleanup_policy=None))

    (request,) = fake_cluster.requests(AlterTopicRequest)
    assert request.name == "t"
    assert dict(request.changes) == {"retention_ms": "5", "cleanup_policy": None}


@pytest.mark.parametrize("settings", [{"colour": None}, {"retention_ms": -2}, {"flush": "never"}])
def test_an_impossible_change_is_refused_without_a_call(fake_cluster, run, admin, settings):
    with pytest.raises(InvalidSettingError, match=next(iter(settings))):
        run(admin.alter_topic("t", **settings))
    assert fake_cluster.calls == []


def test_records_are_deleted_at_each_leader(fake_cluster, run, admin):
    fake_cluster.create("t", 2)
    fake_cluster.answers[DeleteRecordsRequest] = lambda request: DeleteRecordsReply(
        log_start_offset=max(request.offset, 3)
    )
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)

    assert run(admin.delete_records({first: 5, second: -1})) == {first: 5, second: 3}
    assert {actor for actor, request in fake_cluster.calls if hasattr(request, "offset")} == {
        "partition:t-0@1",
        "partition:t-1@1",
    }


def test_a_deletion_of_records_beyond_the_end_is_refused(fake_cluster, run, admin):
    fake_cluster.create("t")
    fake_cluster.answers[DeleteRecordsRequest] = lambda request: request.failed(
        ErrorCode.OFFSET_OUT_OF_RANGE, "offset=9 is beyond the high watermark: give 0 to 5"
    )

    with pytest.raises(OffsetOutOfRangeError, match="offset=9"):
        run(admin.delete_records({TopicPartition("t", 0): 9}))


@pytest.mark.parametrize("offset", ["5", None, 1.5, True])
def test_only_whole_numbers_are_offsets_to_delete_before(fake_cluster, run, admin, offset):
    fake_cluster.create("t")
    with pytest.raises(InvalidRequestError, match=re.escape(f"t-0: {offset!r}")):
        run(admin.delete_records({TopicPartition("t", 0): offset}))
    assert fake_cluster.calls == []


@pytest.mark.parametrize("count", ["2", None, 2.0, True])
def test_only_whole_numbers_are_counts_of_partitions(fake_cluster, run, admin, count):
    with pytest.raises(InvalidPartitionsError, match=re.escape(f"partitions={count!r}")):
        run(admin.create_topic("t", partitions=count))
    with pytest.raises(InvalidPartitionsError, match=re.escape(f"partitions={count!r}")):
        run(admin.create_partitions("t", count))
    if count is not None:
        with pytest.raises(InvalidReplicationFactorError, match=re.escape(f"factor={count!r}")):
            run(admin.create_topic("t", replication_factor=count))
    assert fake_cluster.calls == []


def test_records_of_internal_topics_are_not_deleted(fake_cluster, run, admin):
    with pytest.raises(InvalidTopicError):
        run(admin.delete_records({TopicPartition("__transaction_state", 0): -1}))
    assert fake_cluster.calls == []


def test_a_topic_that_may_not_be_seen_is_not_said_to_be_unknown(fake_cluster, run, admin):
    fake_cluster.hidden = {"t"}
    with pytest.raises(TopicAuthorizationFailedError, match="may not Describe topic 't'"):
        run(admin.describe_topic("t"))


def test_an_unknown_topic_is_refused(run, admin):
    with pytest.raises(UnknownTopicOrPartitionError):
        run(admin.describe_topic("t"))
    with pytest.raises(UnknownTopicOrPartitionError):
        run(admin.delete_topic("t"))


def test_a_deletion_whose_answer_was_lost_succeeds_when_repeated(fake_cluster, run, admin):
    def lost(request):
        if fake_cluster.counts.pop(request.name, None) is not None:
            return request.failed(ErrorCode.NETWORK_EXCEPTION)
        return None

    fake_cluster.create("t")
    fake_cluster.hooks[DeleteTopicRequest] = lost

    run(admin.delete_topic("t"))

    assert len(fake_cluster.requests(DeleteTopicRequest)) == 2


def test_groups_of_all_shards_are_listed_and_one_described(fake_cluster, run, admin):
    names = iter("ba")

    def describe(request):
        wanted = request.group_ids or (next(names),)
        return DescribeGroupsReply(groups=tuple(group(name) for name in wanted if name in "ab"))

    fake_cluster.answers[DescribeGroupsRequest] = describe

    assert [item.group_id for item in run(admin.list_groups())] == ["a", "b"]
    assert run(admin.describe_group("a")).group_id == "a"
    with pytest.raises(GroupIdNotFoundError):
        run(admin.describe_group("x"))


def test_deleting_a_group_with_members_is_refused(fake_cluster, run, admin):
    fake_cluster.answers[DeleteGroupRequest] = lambda request: DeleteGroupReply(
        error=ErrorCode.NON_EMPTY_GROUP
    )

    with pytest.raises(NonEmptyGroupError):
        run(admin.delete_group("g"))


def member(member_id, group_instance_id=None):
    return GroupMemberDescription(
        member_id=member_id,
        group_instance_id=group_instance_id,
        client_id="",
        assignment=b"",
    )


@pytest.fixture
def members(fake_cluster):
    """Those of group "g", dynamic and static, as its coordinator has them."""
    members = {"a": member("a"), "b": member("b"), "s": member("x", "s"), "u": member("y", "u")}

    def describe(request):
        described = structs.replace(group("g"), members=tuple(members.values()))
        return DescribeGroupsReply(groups=(described,) if request.group_ids == ("g",) else ())

    def leave(request):
        keys = [leaving.group_instance_id or leaving.member_id for leaving in request.members]
        assert all(bool(item.member_id) != bool(item.group_instance_id) for item in request.members)
        return LeaveGroupReply(
            results=tuple(
                ErrorCode.NONE if members.pop(key, None) else ErrorCode.UNKNOWN_MEMBER_ID
                for key in keys
            )
        )

    fake_cluster.answers[DescribeGroupsRequest] = describe
    fake_cluster.answers[LeaveGroupRequest] = leave
    return members


def test_members_are_put_out_of_a_group_those_named_or_all(run, admin, members):
    run(admin.remove_members_from_group("g", group_instance_ids=["s"], member_ids=["b"]))
    assert sorted(members) == ["a", "u"]
    run(admin.remove_members_from_group("g", group_instance_ids=[]))
    assert sorted(members) == ["a", "u"]
    run(admin.remove_members_from_group("g"))
    assert members == {}
    run(admin.remove_members_from_group("g"))
    with pytest.raises(GroupIdNotFoundError):
        run(admin.remove_members_from_group("x"))


def test_who_was_no_member_is_named_and_the_others_are_put_out(run, admin, members):
    with pytest.raises(UnknownMemberIdError, match="group 'g' has no member gone, lost"):
        run(
            admin.remove_members_from_group(
                "g", group_instance_ids=["s", "gone"], member_ids=["lost", "a"]
            )
        )
    assert sorted(members) == ["b", "u"]


def test_members_put_out_by_an_attempt_without_an_answer_are_not_missed(
    fake_cluster, run, admin, members
):
    leave, attempts = fake_cluster.answers[LeaveGroupRequest], []

    def lose_the_first_answer(request):
        attempts.append(leave(request))
        return request.failed(ErrorCode.REQUEST_TIMED_OUT) if len(attempts) == 1 else attempts[-1]

    fake_cluster.answers[LeaveGroupRequest] = lose_the_first_answer

    run(admin.remove_members_from_group("g", group_instance_ids=["s"]))

    assert len(attempts) == 2
    assert sorted(members) == ["a", "b", "u"]


def test_group_offsets_are_set_and_listed(run, admin):
    tp = TopicPartition("t", 0)

    async def scenario():
        await admin.alter_group_offsets("g", {tp: 5})
        return await admin.list_group_offsets("g")

    offsets = run(scenario())
    assert {key: item.offset for key, item in offsets.items()} == {tp: 5}


def test_transactions_of_all_shards_are_listed_and_one_described(fake_cluster, run, admin):
    names = iter("ba")

    def describe(request):
        if request.transactional_ids is None:
            return DescribeTransactionsReply(transactions=(transaction(next(names)),))
        (name,) = request.transactional_ids
        if name not in "ab":
            return request.failed(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return DescribeTransactionsReply(transactions=(transaction(name),))

    fake_cluster.answers[DescribeTransactionsRequest] = describe

    listed = run(admin.list_transactions())
    assert [item.transactional_id for item in listed] == ["a", "b"]
    assert run(admin.describe_transaction("b")).transactional_id == "b"
    with pytest.raises(TransactionalIdNotFoundError, match="'x'"):
        run(admin.describe_transaction("x"))


def test_the_synchronous_admin_describes_producers_and_replicas(fake_cluster, loop_thread):
    fake_cluster.create("t")
    producer = ProducerDescription(
        producer_id=1, producer_epoch=0, last_sequence=3, last_timestamp_ms=0, coordinator_epoch=0
    )
    fake_cluster.answers[DescribeProducersRequest] = lambda request: DescribeProducersReply(
        producers=(producer,)
    )
    fake_cluster.answers[DescribeReplicaRequest] = lambda request: DescribeReplicaReply(
        log_end_offset=7
    )
    admin = Admin(fake_cluster.router(), loop_thread, random=fake_cluster.random)

    assert admin.describe_producers(TopicPartition("t", 0)) == (producer,)
    assert admin.describe_replica(TopicPartition("t", 0)).log_end_offset == 7
    assert admin.describe_cluster().cluster_id == "fake"


def test_both_faces_have_the_same_methods():
    def public(kind):
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(Admin) == public(AsyncAdmin)
