"""Who may do what: each row of the table, for each principal, with and without rules."""

from __future__ import annotations

from typing import Any

import pytest
from access_rows import (
    REFUSALS,
    ROWS,
    SERVER_PROOF,
    Names,
    Row,
    RowSaboteur,
    row_saboteurs,
    suffices,
)
from inside import acls_of_principal
from msgspec import structs

from oncelog.actors.protocol.access import RAY, SERVER, Authorizer, Principal, Split, covers
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
    EndedFetch,
    FetchReply,
    FetchRequest,
    FetchTogetherReply,
    FetchTogetherRequest,
    SharedFetch,
)
from oncelog.actors.protocol.messages.share import (
    DescribeShareGroupReply,
    DescribeShareGroupRequest,
    SharePartitionDescription,
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


NAMES = Names("mine", "readers", "loader")
ON_ANY_NAME = "any one"


def check_principals(row: Row) -> None:
    """A server may do all; programs all but what servers do to each other, rules or not."""
    request = row.make(NAMES)
    is_for_servers = row.rights == (SERVER_PROOF,)
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if is_for_servers else ErrorCode.NONE
    for given in (NO_RULES, rules()):
        assert error_of(request, given, principal=SERVER) is ErrorCode.NONE
        assert error_of(request, given, principal=RAY) is refused
    assert error_of(request, NO_RULES) is refused


def check_rights(row: Row) -> None:
    """All rights of the row are enough, each is needed, and no other operation stands for it."""
    request = row.make(NAMES)
    acls = {
        right: allow(
            right.operation,
            right.resource,
            ON_ANY_NAME if right.on_any else NAMES.of(right.resource),
        )
        for right in row.rights
    }
    assert asked_of(request, *acls.values()) == request
    for right, acl in acls.items():
        others = [one for one in acls.values() if one is not acl]
        instead = [
            structs.replace(acl, operation=one)
            for one in Operation
            if not suffices(one, right.operation)
        ]
        for given in ((), instead):
            asked = asked_of(request, *others, *given)
            if right.in_part:
                assert not isinstance(asked, ErrorCode)
                assert asked != request
            else:
                assert asked is REFUSALS[right.resource]


def asked_of(request: Request[Any], *acls: Acl) -> Request[Any] | ErrorCode | None:
    found = judged(request, rules(*acls))
    return found.request if isinstance(found, Split) else found


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_request_needs_what_its_row_says(row: Row):
    check_principals(row)
    check_rights(row)


def test_the_table_has_these_needs_and_no_others():
    """What a request is split by stands in the table, and is asked where it is split."""
    needs = {
        RowSaboteur(row.kind, right.operation, right.resource)
        for row in ROWS
        for right in row.rights
    }
    assert needs == set(row_saboteurs())


@pytest.mark.parametrize("saboteur", row_saboteurs(), ids=str)
def test_a_need_that_is_missing_is_noticed(saboteur: RowSaboteur):
    rows = [row for row in ROWS if row.kind is saboteur.kind]
    with saboteur.sabotage(), pytest.raises(AssertionError):
        list(map(check_rights, rows))


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


def test_of_fetches_that_travel_together_those_that_one_may_not_make_are_refused_at_once():
    mine, yours = (
        SharedFetch(number=number, key="k", fetch=FetchRequest(topic_partition=tp, fetch_offset=0))
        for number, tp in enumerate((MINE, YOURS))
    )
    request = FetchTogetherRequest(session_id="s", fetches=(yours, mine))
    found = split_of(request, READING)
    assert found.request == structs.replace(request, fetches=(mine,), max_wait_ms=0)
    done = EndedFetch(number=0, reply=FetchReply(high_watermark=7))
    refused = EndedFetch(number=1, reply=FetchReply(error=REFUSED))
    joined = found.join(FetchTogetherReply(ended=(done,), records=(b"r",)))
    assert (joined.ended, joined.records) == ((done, refused), (b"r", b""))
    whole = structs.replace(request, fetches=(mine,))
    assert split_of(whole, READING).request is whole


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


def test_of_a_queue_only_partitions_of_topics_that_one_may_see_are_told():
    found = split_of(DescribeShareGroupRequest(group_id="readers"), GROUP, READING)
    mine, yours = (
        SharePartitionDescription(topic_partition=tp, start_offset=0, next_offset=0)
        for tp in (MINE, YOURS)
    )
    reply = DescribeShareGroupReply(partitions=(mine, yours), member_count=2)
    assert found.join(reply) == DescribeShareGroupReply(partitions=(mine,), member_count=2)


def test_a_topic_that_one_may_not_see_is_as_one_that_does_not_exist():
    def topic(name: str) -> TopicMetadata:
        return TopicMetadata(name=name, topic_id="t", partitions=())

    names = ("yours", "mine", "__transaction_state", "absent")
    named = split_of(MetadataRequest(topics=names), READING)
    assert named.request == MetadataRequest(topics=("mine", "__transaction_state"))
    # The same, whether there is such a topic or not.
    assert named.join(MetadataReply()).refused == ("yours", "absent")
    seen = split_of(MetadataRequest(topics=("mine",)), READING)
    assert seen.join(MetadataReply()).refused == ()
    of_all = split_of(MetadataRequest(), READING)
    reply = of_all.join(MetadataReply(topics=tuple(map(topic, names))))
    assert [one.name for one in reply.topics] == ["mine", "__transaction_state"]
    assert reply.refused == ()


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


RELATED_NAMES = ("", "*", "f", "fl", "flights", "flights-2", "trains")


@pytest.mark.parametrize("name", RELATED_NAMES)
def test_the_acls_that_decide_are_just_those_that_cover_the_name(name):
    """However they are looked up."""
    acls = [
        allow(Operation.READ, Resource.TOPIC, one, is_prefix=is_prefix)
        for one in RELATED_NAMES[1:]
        for is_prefix in (False, True)
        if (one, is_prefix) != ("*", True)
    ]
    for acl in acls:
        denied = structs.replace(acl, is_allowed=False)
        for one in (acl, denied):
            found = Authorizer(rules(one)).deciding(
                ALICE.name, HERE, Operation.READ, Resource.TOPIC, name
            )
            assert found == (one if covers(one, name) else None)
        both = Authorizer(rules(*acls, denied)).deciding(
            ALICE.name, HERE, Operation.READ, Resource.TOPIC, name
        )
        assert (both == denied) is covers(denied, name)


def test_many_acls_make_no_decision_dearer(monkeypatch):
    """A request may name a million topics, and a user have a thousand ACLs."""
    acls = [allow(Operation.READ, Resource.TOPIC, f"t{number}") for number in range(1_000)]
    authorizer = Authorizer(
        rules(*acls, allow(Operation.READ, Resource.TOPIC, "u", is_prefix=True))
    )
    looked_at: list[Acl] = []
    find = acls_of_principal().about

    def counting(self: Any, name: str) -> Any:
        for acl in find(self, name):
            looked_at.append(acl)
            yield acl

    monkeypatch.setattr(acls_of_principal(), "about", counting)
    for number in range(100):
        name = f"t{number}"
        assert authorizer.may(ALICE, Operation.READ, Resource.TOPIC, name, HERE)
        assert not authorizer.may(ALICE, Operation.READ, Resource.TOPIC, f"x{number}", HERE)
    assert len(looked_at) == 100
