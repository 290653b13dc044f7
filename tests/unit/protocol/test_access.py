"""Who may do what: each row of the table, for each principal, with and without rules."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from oncelog.actors.protocol.access import NEEDS, RAY, SERVER, Authorizer, Principal, Split
from oncelog.actors.protocol.messages.access import (
    ANYBODY,
    NO_LIMITS,
    NO_RULES,
    Acl,
    Limits,
    Operation,
    Resource,
    Rules,
)
from oncelog.actors.protocol.messages.base import Request
from oncelog.actors.protocol.messages.cluster import (
    MetadataReply,
    MetadataRequest,
    ShutdownRequest,
    TopicMetadata,
)
from oncelog.actors.protocol.messages.group import (
    DescribeGroupsReply,
    DescribeGroupsRequest,
    FetchedOffset,
    GroupDescription,
    OffsetAndMetadata,
    OffsetCommitReply,
    OffsetCommitRequest,
    OffsetFetchReply,
    OffsetFetchRequest,
    PartitionResult,
    TxnOffsetCommitRequest,
)
from oncelog.actors.protocol.messages.partition import (
    DescribeReplicaRequest,
    FetchRequest,
    ProduceRequest,
)
from oncelog.actors.protocol.messages.transaction import (
    AddPartitionsToTxnReply,
    AddPartitionsToTxnRequest,
    DescribeTransactionsReply,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TransactionDescription,
)
from oncelog.storage.errors import ErrorCode
from oncelog.storage.model import CONSUMER_OFFSETS_TOPIC, TopicPartition

HERE, THERE = "10.0.0.1", "10.0.0.2"
ALICE = Principal("User:alice")
MINE, YOURS = TopicPartition("mine", 0), TopicPartition("yours", 0)
ERRORS = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}
FIELDS: dict[str, Any] = {
    "topic_partition": MINE,
    "group_id": "readers",
    "transactional_id": "loader",
    "name": "mine",
    "partitions": (),
    "offsets": (),
}
"""What requests name; everything else does not matter here."""

ROWS = [
    (kind, need)
    for kind, needs in NEEDS.items()
    for need in needs
    if tuple(
        need.names(kind(**{f.name: FIELDS.get(f.name) for f in structs.fields(kind) if f.required}))
    )
]


def sample(kind: type[Request[Any]]) -> Request[Any]:
    request = kind(
        **{field.name: FIELDS.get(field.name) for field in structs.fields(kind) if field.required}
    )
    if isinstance(request, ProduceRequest):
        return structs.replace(request, transactional_id="loader")
    return request


def rules(*acls: Acl, **fields: Any) -> Rules:
    return Rules(is_on=True, acls=acls, **fields)


def allow(operation: Operation, resource: Resource, name: str, **fields: Any) -> Acl:
    return Acl(
        **{"principal": ALICE.name, "operation": operation, "resource": resource, "name": name}
        | fields
    )


def judged(
    request: Request[Any], given: Rules, principal: Principal = ALICE, host: str = HERE
) -> Split | ErrorCode:
    return Authorizer(given).judge(request, principal, host)


def error_of(request: Request[Any], given: Rules, **who: Any) -> ErrorCode:
    found = judged(request, given, **who)
    return found if isinstance(found, ErrorCode) else ErrorCode.NONE


# --- the table --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NEEDS)
def test_a_server_may_do_all_and_ray_all_but_what_servers_do_to_each_other(kind):
    request = (
        structs.replace(sample(kind), topic_id="t") if kind is ShutdownRequest else sample(kind)
    )
    is_for_servers = any(need.operation is Operation.CLUSTER_ACTION for need in NEEDS[kind])
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if is_for_servers else ErrorCode.NONE
    for given in (NO_RULES, rules()):
        assert error_of(request, given, principal=SERVER) is ErrorCode.NONE
        assert error_of(request, given, principal=RAY) is refused
    assert error_of(request, NO_RULES) is refused


@pytest.mark.parametrize(("kind", "need"), ROWS)
def test_nothing_is_allowed_but_by_every_need_of_the_row(kind, need):
    request = (
        structs.replace(sample(kind), topic_id="t") if kind is ShutdownRequest else sample(kind)
    )
    names = [(one, name) for one in NEEDS[kind] for name in one.names(request)]
    if need.operation is Operation.CLUSTER_ACTION:
        every = allow(Operation.CLUSTER_ACTION, Resource.CLUSTER, "*")
        assert error_of(request, rules(every)) is ErrorCode.NONE
        assert (
            error_of(request, rules(every), principal=RAY) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        )
        return
    acls = [allow(one.operation, one.resource, name) for one, name in names]
    assert error_of(request, rules(*acls)) is ErrorCode.NONE
    lacking = [acl for acl, (one, _) in zip(acls, names, strict=True) if one is not need]
    assert error_of(request, rules(*lacking)) is ERRORS[need.resource]


# --- the rules --------------------------------------------------------------------------------

READ = FetchRequest(topic_partition=MINE, fetch_offset=0)
READING = allow(Operation.READ, Resource.TOPIC, "mine")


@pytest.mark.parametrize(
    "acl",
    [
        READING,
        structs.replace(READING, principal=ANYBODY),
        structs.replace(READING, name="*"),
        structs.replace(READING, name="mi", is_prefix=True),
        structs.replace(READING, name="", is_prefix=True),
        structs.replace(READING, operation=Operation.ALL),
        structs.replace(READING, host=HERE),
    ],
)
def test_what_an_acl_covers_it_allows_or_denies_and_denial_wins(acl):
    assert error_of(READ, rules(acl)) is ErrorCode.NONE
    denied = structs.replace(acl, is_allowed=False)
    for given in ((acl, denied), (denied, acl), (READING, denied)):
        assert error_of(READ, rules(*given)) is ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    "acl",
    [
        structs.replace(READING, principal="User:bob"),
        structs.replace(READING, name="yours"),
        structs.replace(READING, name="mi"),
        structs.replace(READING, name="mine0", is_prefix=True),
        structs.replace(READING, resource=Resource.GROUP),
        structs.replace(READING, operation=Operation.WRITE),
        structs.replace(READING, operation=Operation.DESCRIBE),
        structs.replace(READING, host=THERE),
    ],
)
def test_what_an_acl_does_not_cover_it_neither_allows_nor_denies(acl):
    assert error_of(READ, rules(acl)) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    denied = structs.replace(acl, is_allowed=False)
    assert error_of(READ, rules(READING, denied)) is ErrorCode.NONE


@pytest.mark.parametrize("operation", Operation)
def test_who_may_do_something_to_it_may_see_it(operation):
    may = Authorizer(rules(allow(operation, Resource.TOPIC, "mine"))).may
    shows = operation.value in {"Read", "Write", "Create", "Delete", "Alter", "Describe", "All"}
    assert may(ALICE, Operation.DESCRIBE, Resource.TOPIC, "mine", HERE) is shows
    # To deny seeing is not to deny reading.
    denial = allow(Operation.DESCRIBE, Resource.TOPIC, "mine", is_allowed=False)
    assert error_of(READ, rules(READING, denial)) is ErrorCode.NONE


def test_a_super_user_needs_no_acl_and_none_denies_him():
    denial = allow(Operation.ALL, Resource.TOPIC, "*", is_allowed=False)
    given = rules(denial, super_users=frozenset({ALICE.name}))
    assert error_of(READ, given) is ErrorCode.NONE
    assert error_of(READ, given, principal=RAY) is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_plain_producer_needs_some_topic_to_write():
    request = InitProducerIdRequest(transactional_id=None)
    writing = allow(Operation.WRITE, Resource.TOPIC, "any", is_prefix=True)
    assert error_of(request, rules()) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert error_of(request, rules(READING)) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert error_of(request, rules(writing)) is ErrorCode.NONE
    one = allow(Operation.WRITE, Resource.TOPIC, "one", is_allowed=False)
    assert error_of(request, rules(writing, one)) is ErrorCode.NONE
    all_of_them = structs.replace(one, name="*")
    assert error_of(request, rules(writing, all_of_them)) is ErrorCode.TOPIC_AUTHORIZATION_FAILED


# --- requests about several things ------------------------------------------------------------

GROUP = allow(Operation.READ, Resource.GROUP, "readers")
WRITING = allow(Operation.WRITE, Resource.TOPIC, "mine")
ID = allow(Operation.WRITE, Resource.TRANSACTIONAL_ID, "loader")
POSITION = OffsetAndMetadata(offset=7)
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def split_of(request: Request[Any], *acls: Acl) -> Split:
    found = judged(request, rules(*acls))
    assert isinstance(found, Split)
    return found


@pytest.mark.parametrize("is_transactional", [False, True])
def test_positions_of_topics_that_one_may_not_read_are_not_committed(is_transactional):
    offsets = ((MINE, POSITION), (YOURS, POSITION))
    request: Request[Any] = OffsetCommitRequest(group_id="readers", offsets=offsets)
    if is_transactional:
        request = TxnOffsetCommitRequest(
            transactional_id="loader",
            group_id="readers",
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            offsets=offsets,
        )
    found = split_of(request, GROUP, ID, READING)
    assert found.request == structs.replace(request, offsets=offsets[:1])
    done = PartitionResult(topic_partition=MINE, error=ErrorCode.NONE)
    refused = PartitionResult(topic_partition=YOURS, error=REFUSED)
    assert found.join(OffsetCommitReply(results=(done,))).results == (done, refused)
    nothing = split_of(structs.replace(request, offsets=offsets[1:]), GROUP, ID, READING)
    assert nothing.request is None
    assert nothing.join(OffsetCommitReply()).results == (refused,)
    whole = structs.replace(request, offsets=offsets[:1])
    assert split_of(whole, GROUP, ID, READING).request is whole


def test_positions_of_topics_that_one_may_not_see_are_not_told():
    named = OffsetFetchRequest(group_id="readers", partitions=(YOURS, MINE))
    found = split_of(named, GROUP, READING)
    assert found.request == structs.replace(named, partitions=(MINE,))
    mine, yours = (FetchedOffset(topic_partition=tp, offset=7) for tp in (MINE, YOURS))
    refused = FetchedOffset(topic_partition=YOURS, error=REFUSED)
    assert found.join(OffsetFetchReply(offsets=(mine,))).offsets == (mine, refused)
    of_all = split_of(OffsetFetchRequest(group_id="readers"), GROUP, READING)
    assert of_all.join(OffsetFetchReply(offsets=(mine, yours))).offsets == (mine,)
    # All is asked for by None: an empty list must not become that.
    empty = split_of(structs.replace(named, partitions=()), GROUP)
    assert empty.request == structs.replace(named, partitions=())
    assert split_of(structs.replace(named, partitions=(YOURS,)), GROUP).request is None


def test_a_topic_that_one_may_not_see_is_as_one_that_does_not_exist():
    def topic(name: str) -> TopicMetadata:
        return TopicMetadata(name=name, topic_id="t", partitions=())

    names = ("yours", "mine", "__transaction_state", "absent")
    named = split_of(MetadataRequest(topics=names), READING)
    assert named.request == MetadataRequest(topics=("mine", "__transaction_state"))
    of_all = split_of(MetadataRequest(), READING)
    reply = of_all.join(MetadataReply(topics=tuple(map(topic, names))))
    assert [one.name for one in reply.topics] == ["mine", "__transaction_state"]


def test_one_partition_that_may_not_be_written_has_none_enrolled():
    request = AddPartitionsToTxnRequest(
        transactional_id="loader", producer_id=1, producer_epoch=0, partitions=(MINE, YOURS)
    )
    found = split_of(request, ID, WRITING)
    assert found.request is None
    enrolments = found.join(AddPartitionsToTxnReply()).enrolments
    assert [(one.topic_partition, one.error) for one in enrolments] == [
        (MINE, ErrorCode.OPERATION_NOT_ATTEMPTED),
        (YOURS, REFUSED),
    ]
    whole = structs.replace(request, partitions=(MINE,))
    assert split_of(whole, ID, WRITING).request is whole


def test_an_end_counts_though_nothing_may_be_enrolled_ahead():
    request = EndTxnRequest(
        transactional_id="loader", committed=True, next_partitions=(MINE, YOURS)
    )
    found = split_of(request, ID, WRITING)
    assert found.request == structs.replace(request, next_partitions=())
    both = structs.replace(WRITING, name="*")
    assert split_of(request, ID, both).request is request


def test_groups_that_one_may_not_see_are_as_ones_that_do_not_exist():
    def described(name: str) -> GroupDescription:
        return GroupDescription(
            group_id=name, state="", protocol_type="", protocol_name="", generation_id=0
        )

    named = split_of(DescribeGroupsRequest(group_ids=("readers", "others")), GROUP)
    assert named.request == DescribeGroupsRequest(group_ids=("readers",))
    none_left = split_of(DescribeGroupsRequest(group_ids=("others",)), GROUP)
    assert none_left.request == DescribeGroupsRequest(group_ids=())
    reply = DescribeGroupsReply(groups=(described("others"), described("readers")))
    of_all = split_of(DescribeGroupsRequest(), GROUP).join(reply)
    assert of_all.groups == (described("readers"),)


def test_transactions_that_one_may_not_see_are_unknown_and_others_topics_left_out():
    def described(name: str, *partitions: TopicPartition) -> TransactionDescription:
        return TransactionDescription(
            transactional_id=name,
            state="",
            producer_id=1,
            producer_epoch=0,
            transaction_timeout_ms=1,
            partitions=partitions,
        )

    both = DescribeTransactionsReply(
        transactions=(described("loader", MINE, YOURS), described("other", MINE))
    )
    seen = (described("loader", MINE),)
    assert split_of(DescribeTransactionsRequest(), ID, READING).join(both).transactions == seen
    hidden = split_of(DescribeTransactionsRequest(transactional_ids=("loader", "other")), ID)
    assert hidden.request is None
    unknown = hidden.join(DescribeTransactionsReply())
    assert unknown.error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    named = DescribeTransactionsRequest(transactional_ids=("loader",))
    assert split_of(named, ID).request is named


def test_a_replica_is_described_to_whoever_may_see_its_topic():
    for topic, error in (
        ("mine", ErrorCode.NONE),
        ("yours", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (CONSUMER_OFFSETS_TOPIC, ErrorCode.NONE),
    ):
        request = DescribeReplicaRequest(topic_partition=TopicPartition(topic, 0))
        assert error_of(request, rules(allow(Operation.READ, Resource.TOPIC, "mine"))) is error
    unnamed = error_of(DescribeReplicaRequest(), rules(allow(Operation.ALL, Resource.TOPIC, "*")))
    assert unnamed is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("kind", [AddPartitionsToTxnRequest, EndTxnRequest])
def test_positions_may_be_enrolled_by_whoever_has_the_id(kind):
    """To commit them takes Read on the group and the topics, which its coordinator's door asks."""
    offsets = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)
    own = allow(Operation.WRITE, Resource.TRANSACTIONAL_ID, "t")
    given = rules(own, allow(Operation.WRITE, Resource.TOPIC, "mine"))
    fields = (
        {"producer_id": 7, "producer_epoch": 0, "partitions": (MINE, offsets)}
        if kind is AddPartitionsToTxnRequest
        else {"committed": True, "next_partitions": (MINE, offsets)}
    )
    request = kind(transactional_id="t", **fields)
    asked = Authorizer(given).judge(request, ALICE, HERE)
    assert isinstance(asked, Split)
    assert asked.request == request


# --- limits ---------------------------------------------------------------------------------------


def test_a_principal_has_its_own_limits_or_those_of_anybody_and_a_server_none():
    own, default = Limits(connections=1), Limits(requests_per_second=5)
    known = Authorizer(Rules(limits=((ALICE.name, own), (ANYBODY, default))))
    assert known.limits(ALICE) == own
    assert known.limits(RAY) == default
    assert known.limits(SERVER) == NO_LIMITS
    assert Authorizer(NO_RULES).limits(ALICE) == NO_LIMITS
