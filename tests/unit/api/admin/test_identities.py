"""Users, ACLs and authorization through the admin client, with the controller's machine behind."""

from __future__ import annotations

import re

import pytest
from msgspec import structs

from oncelog.actors.protocol.access import Authorizer, Principal
from oncelog.actors.protocol.cluster import access_control
from oncelog.actors.protocol.cluster.access_control import AccessControl
from oncelog.actors.protocol.cluster.cluster_records import decode_cluster_record
from oncelog.actors.protocol.messages.access import (
    ANYBODY,
    CLUSTER_NAME,
    RAY_NAME,
    Acl,
    AlterAclsRequest,
    AlterAuthorizationRequest,
    AlterLimitsRequest,
    AlterUsersRequest,
    DescribeAccessRequest,
    Limits,
    Operation,
    Resource,
)
from oncelog.actors.protocol.scram import (
    DEFAULT_ITERATIONS,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    make_credential,
)
from oncelog.api.admin import identities
from oncelog.api.admin.admin import Admin, AsyncAdmin
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import (
    ClusterAuthorizationFailedError,
    InvalidRequestError,
    OncelogError,
    PolicyViolationError,
)

PASSWORD = "correct horse"
ALICE = "User:alice"
READ = Acl(principal=ALICE, resource=Resource.TOPIC, name="flights", operation=Operation.READ)
WRITE = structs.replace(READ, operation=Operation.WRITE)
PREFIX = structs.replace(READ, name="fl", is_prefix=True)
GROUP = structs.replace(READ, resource=Resource.GROUP, name="billing")
DENIED = structs.replace(READ, principal="User:bob", is_allowed=False, host="10.0.0.1")
ALL = (READ, WRITE, PREFIX, GROUP, DENIED)


@pytest.fixture
def control(fake_cluster):
    """The controller's machine, which answers for the cluster."""
    control = AccessControl()

    def answering(decide):
        def answer(request):
            decision = decide(request)
            for record in decision.records:
                control.apply(decode_cluster_record(record.value))
            return decision.reply

        return answer

    fake_cluster.answers |= {
        AlterUsersRequest: answering(control.decide_users),
        AlterAclsRequest: answering(control.decide_acls),
        AlterLimitsRequest: answering(control.decide_limits),
        AlterAuthorizationRequest: answering(control.decide_authorization),
        DescribeAccessRequest: lambda request: control.described(),
    }
    return control


@pytest.fixture
def admin(fake_cluster, control):
    return AsyncAdmin(fake_cluster.router(), random=fake_cluster.random)


@pytest.fixture
def cheap(monkeypatch):
    """Credentials are made at once, with as few iterations as there may be."""
    monkeypatch.setattr(identities, "make_credential", quick_credential)


def quick_credential(password, salt, iterations):
    assert iterations == DEFAULT_ITERATIONS
    return make_credential(password, salt, ITERATIONS_MIN)


def expect_refused(run, call, *told):
    """The error of a call, which names all that is told."""
    with pytest.raises(InvalidRequestError) as caught:
        run(call)
    for text in told:
        assert text in str(caught.value)
    assert caught.value.advice
    return caught.value


# --- users ------------------------------------------------------------------------------------


def test_a_user_is_created_listed_altered_and_deleted(run, admin, control):
    async def scenario():
        await admin.create_user("alice", PASSWORD, iterations=ITERATIONS_MIN)
        first = control.access().users[0]
        await admin.alter_user("alice", "another one", iterations=5_000)
        listed = await admin.list_users()
        await admin.delete_user("alice")
        return first, listed, await admin.list_users()

    first, listed, left = run(scenario())
    salt = first.credential.salt
    assert first.name == "alice"
    assert first.credential == make_credential(PASSWORD, salt, ITERATIONS_MIN)
    assert [(user.name, user.iterations) for user in listed] == [("alice", 5_000)]
    assert left == []


@pytest.mark.usefixtures("cheap")
def test_the_password_is_in_no_message_and_each_salt_is_another(run, admin, fake_cluster):
    async def scenario():
        await admin.create_user("alice", PASSWORD)
        await admin.create_user("bob", PASSWORD)

    run(scenario())
    first, second = fake_cluster.requests(AlterUsersRequest)
    assert PASSWORD not in repr(fake_cluster.calls)
    assert first.put[0].credential.salt != second.put[0].credential.salt
    assert first.put[0].credential.stored_key != second.put[0].credential.stored_key


@pytest.mark.usefixtures("cheap")
def test_an_existing_user_is_created_again_only_if_that_is_ok(run, admin, control):
    run(admin.create_user("alice", PASSWORD))
    before = control.access()
    expect_refused(run, admin.create_user("alice", "another"), "'alice' already", "alter_user")
    run(admin.create_user("alice", "another", exist_ok=True))
    assert control.access() == before


@pytest.mark.usefixtures("cheap")
def test_of_two_that_create_a_user_at_once_one_is_told(run, admin, control, fake_cluster):
    async def scenario():
        await admin.create_user("alice", PASSWORD)
        request = fake_cluster.requests(AlterUsersRequest)[0]
        return control.decide_users(structs.replace(request, put=(other(request.put[0]),)))

    def other(user):
        return structs.replace(user, credential=make_credential("x", b"s" * 16, ITERATIONS_MIN))

    assert run(scenario()).reply.error is ErrorCode.INVALID_REQUEST


@pytest.mark.usefixtures("cheap")
def test_a_user_that_is_gone_gets_no_password_and_is_not_deleted_again(run, admin, control):
    run(admin.create_user("alice", PASSWORD))
    expect_refused(
        run, admin.alter_user("alcie", PASSWORD), "no user 'alcie'", "did you mean 'alice'?"
    )
    expect_refused(run, admin.delete_user("nobody"), "no user 'nobody'", "list_users")
    assert [user.name for user in control.access().users] == ["alice"]


@pytest.mark.usefixtures("cheap")
def test_a_refusal_of_the_controller_is_told(run, admin, fake_cluster, monkeypatch):
    monkeypatch.setattr(access_control, "USERS_MAX", 0)
    with pytest.raises(PolicyViolationError, match="at most 0 users"):
        run(admin.create_user("alice", PASSWORD))
    fake_cluster.fail(DescribeAccessRequest, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    with pytest.raises(ClusterAuthorizationFailedError):
        run(admin.list_users())


def test_a_user_that_is_refused_is_not_said_to_be_there(run, admin, control, fake_cluster, cheap):
    fake_cluster.fail(AlterUsersRequest, ErrorCode.INVALID_REQUEST)
    with pytest.raises(InvalidRequestError) as caught:
        run(admin.create_user("alice", PASSWORD, exist_ok=True))
    assert "already" not in str(caught.value)


def test_a_name_is_prepared_as_for_a_login(run, admin, control, cheap):
    run(admin.create_user("ali\u00adce", PASSWORD))
    run(admin.create_acls([structs.replace(READ, principal="User:ali\u00adce")]))
    assert control.access().users[0].name == "alice"
    assert control.access().rules.acls == (READ,)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", "1 to 249"),
        (None, "None"),
        (b"alice", "b'alice'"),
        ("User:alice", "leave out 'User:'"),
        ("*", "stands for others"),
        ("\uff0a", "stands for others"),
        ("ray", "User:ray stands for others"),
        ("a" * 250, "more than 249"),
        ("a\nb", "prohibited"),
    ],
)
def test_an_impossible_name_is_named(run, admin, fake_cluster, name, told):
    expect_refused(run, admin.create_user(name, PASSWORD), repr(name), told)
    expect_refused(run, admin.alter_user(name, PASSWORD), told)
    expect_refused(run, admin.delete_user(name), told)
    assert fake_cluster.calls == []


@pytest.mark.parametrize("iterations", [ITERATIONS_MIN - 1, ITERATIONS_MAX + 1, True, "5000", 5e3])
def test_impossible_iterations_are_named(run, admin, fake_cluster, iterations):
    call = admin.create_user("alice", PASSWORD, iterations=iterations)
    expect_refused(run, call, f"iterations={iterations!r}", "4,096 to 1,000,000")
    assert fake_cluster.calls == []


@pytest.mark.parametrize("password", ["", None, b"horse", "horse\n", "horse " * 1_000])
def test_an_impossible_password_is_refused_but_never_told(run, admin, fake_cluster, password):
    error = expect_refused(run, admin.create_user("alice", password), "password", "1 to 1,024")
    assert "horse" not in str(error)
    assert error.__cause__ is None
    assert fake_cluster.calls == []


# --- ACLs -------------------------------------------------------------------------------------


def test_acls_are_created_described_and_deleted(run, admin, control):
    async def scenario():
        await admin.create_acls(iter(ALL))
        everything = await admin.describe_acls()
        removed = await admin.delete_acls(principal=ALICE, resource="topic", is_prefix=False)
        return everything, removed, await admin.describe_acls()

    everything, removed, left = run(scenario())
    assert everything == [GROUP, PREFIX, READ, WRITE, DENIED]
    assert removed == [READ, WRITE]
    assert left == [GROUP, PREFIX, DENIED]
    assert control.access().rules.acls == (PREFIX, GROUP, DENIED)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"principal": ALICE}, {READ, WRITE, PREFIX, GROUP}),
        ({"resource": "GROUP"}, {GROUP}),
        ({"name": "flights"}, {READ, WRITE, DENIED}),
        ({"name": "fl", "is_prefix": True}, {PREFIX}),
        ({"covers": "flights"}, {READ, WRITE, PREFIX, DENIED}),
        ({"covers": "flu", "resource": Resource.TOPIC}, {PREFIX}),
        ({"covers": "trains"}, set()),
        ({"operation": "write"}, {WRITE}),
        ({"operation": Operation.READ, "is_allowed": True}, {READ, PREFIX, GROUP}),
        ({"is_allowed": False}, {DENIED}),
        ({"host": "10.0.0.1"}, {DENIED}),
        ({"host": "*", "resource": "topic"}, {READ, WRITE, PREFIX}),
    ],
)
def test_acls_are_found_by_what_is_wanted(run, admin, wanted, found):
    run(admin.create_acls(ALL))
    assert set(run(admin.describe_acls(**wanted))) == found
    assert set(run(admin.delete_acls(**wanted))) == found
    assert set(run(admin.describe_acls())) == {*ALL} - found


def test_kinds_and_operations_may_be_spelled_in_lower_case(run, admin, control):
    for resource in ("transactionalid", "transactional-id", "TRANSACTIONAL_ID", "TransactionalId"):
        run(admin.create_acls([structs.replace(READ, resource=resource, operation="wRITE")]))
    (acl,) = control.access().rules.acls
    assert acl.resource is Resource.TRANSACTIONAL_ID
    assert acl.operation is Operation.WRITE


@pytest.mark.parametrize(
    ("given", "host"),
    [
        ("2001:DB8:0::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("*", "*"),
    ],
)
def test_a_host_is_written_as_the_address_of_a_caller_is(run, admin, control, given, host):
    """Else what is denied to it would be allowed."""
    run(admin.create_acls([structs.replace(DENIED, host=given)]))
    (acl,) = control.access().rules.acls
    assert acl.host == host
    assert run(admin.describe_acls(host=given)) == [acl]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"principal": "alice"}, ["'alice'", "User:NAME"]),
        ({"principal": "User:"}, ["'User:'"]),
        ({"principal": 7}, ["7", "User:NAME"]),
        ({"resource": "table"}, ["'table'", "Topic, Group, TransactionalId, Cluster"]),
        ({"resource": None}, ["None"]),
        ({"operation": "Run"}, ["'Run'", "Topic", "Read, Write, Create"]),
        ({"operation": "alter", "resource": "group"}, ["'alter'", "Group", "Read, Delete"]),
        ({"operation": Operation.CLUSTER_ACTION}, ["'ClusterAction'"]),
        ({"operation": Resource.TOPIC}, ["'Topic'"]),
        ({"name": ""}, ["name=''"]),
        ({"name": "*", "is_prefix": True}, ["'*'", "leave out"]),
        ({"name": "t" * 2_000}, ["2000 characters", "1 to 1024"]),
        ({"host": ""}, ["host=''"]),
        ({"host": "10.0.0.0/8"}, ["host '10.0.0.0/8'", "give an address"]),
        ({"host": "db1"}, ["host 'db1'", "give an address"]),
        ({"is_prefix": "yes"}, ["is_prefix='yes'", "True or False"]),
        ({"is_allowed": 1}, ["is_allowed=1"]),
        (
            {"resource": "cluster", "operation": "alter", "name": "mine"},
            ["'mine'", repr(CLUSTER_NAME)],
        ),
    ],
)
def test_an_impossible_acl_is_named_with_what_is_allowed(run, admin, fake_cluster, fields, told):
    expect_refused(run, admin.create_acls([WRITE, structs.replace(READ, **fields)]), *told)
    assert fake_cluster.calls == []


@pytest.mark.parametrize("acls", [READ, "User:alice", None, [("User:alice", "Read")]])
def test_what_is_no_list_of_acls_is_refused(run, admin, acls):
    expect_refused(run, admin.create_acls(acls), "oncelog.Acl")


def test_no_acls_are_no_call(run, admin, fake_cluster):
    run(admin.create_acls([]))
    assert fake_cluster.calls == []


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"topic": "flights"}, ["topic='flights'", "resource, name"]),
        ({"operation": "Run"}, ["'Run'"]),
        ({"operation": "write", "resource": "group"}, ["'Write'", "Group"]),
        ({"covers": ""}, ["covers=''"]),
        ({"principal": "alice"}, ["'alice'"]),
    ],
)
def test_an_impossible_filter_is_named_with_what_is_allowed(run, admin, wanted, told):
    expect_refused(run, admin.describe_acls(**wanted), *told)
    expect_refused(run, admin.delete_acls(**wanted), *told)


def test_without_a_filter_nothing_is_deleted(run, admin, control):
    run(admin.create_acls(ALL))
    expect_refused(run, admin.delete_acls(), "all ACLs", "principal")
    assert len(control.access().rules.acls) == len(ALL)


def test_many_acls_are_deleted_in_several_calls(run, admin, control, fake_cluster, monkeypatch):
    monkeypatch.setattr(identities, "CHANGES_MAX", 2)
    run(admin.create_acls(ALL))
    assert len(run(admin.delete_acls(principal=ALICE))) == 4
    sizes = [len(one.removed) for one in fake_cluster.requests(AlterAclsRequest)]
    assert sizes == [0, 2, 2]
    assert control.access().rules.acls == (DENIED,)


# --- authorization ----------------------------------------------------------------------------


@pytest.mark.usefixtures("cheap")
def test_limits_are_given_replaced_and_taken(run, admin):
    async def scenario():
        await admin.set_limits(ALICE, requests_per_second=5, connections=2)
        await admin.set_limits("User:*", connections=9)
        await admin.set_limits(ALICE, connections=3)
        both = await admin.describe_limits()
        await admin.set_limits(ALICE)
        return both, await admin.describe_limits()

    both, one = run(scenario())
    assert both == {"User:*": Limits(connections=9), ALICE: Limits(connections=3)}
    assert one == {"User:*": Limits(connections=9)}


@pytest.mark.parametrize(
    ("principal", "limits", "text"),
    [
        ("alice", {"connections": 1}, "principal 'alice'"),
        (7, {}, "principal 7"),
        (ALICE, {"speed": 1}, "limit 'speed'; give some of requests_per_second"),
        (ALICE, {"connections": 0}, "connections=0; give a number from 1"),
        (ALICE, {"connections": True}, "connections=True"),
        (ALICE, {"bytes_per_second": 2**63}, "bytes_per_second=9223372036854775808"),
    ],
)
def test_an_impossible_limit_is_told(run, admin, fake_cluster, principal, limits, text):
    with pytest.raises(InvalidRequestError, match=re.escape(text)):
        run(admin.set_limits(principal, **limits))
    assert not fake_cluster.requests(AlterLimitsRequest)


def test_authorization_is_switched_on_and_off_and_keeps_its_super_users(run, admin, control):
    async def scenario():
        await admin.create_user("alice", PASSWORD)
        before = await admin.describe_authorization()
        await admin.set_authorization(True, [ALICE])
        on = await admin.describe_authorization()
        await admin.set_authorization(False)
        return before, on, await admin.describe_authorization()

    before, on, off = run(scenario())
    assert (before.is_on, before.super_users) == (False, (RAY_NAME,))
    assert (on.is_on, on.super_users) == (True, (ALICE,))
    assert (off.is_on, off.super_users) == (False, (ALICE,))


def test_super_users_that_are_kept_are_the_controllers(run, admin, control, fake_cluster):
    run(admin.set_authorization(True))
    (request,) = fake_cluster.requests(AlterAuthorizationRequest)
    assert request.super_users is None
    assert control.super_users == {RAY_NAME}


@pytest.mark.parametrize(
    ("super_users", "told"),
    [
        ("User:alice", "give a list"),
        (7, "give a list"),
        (["alice"], "'alice'"),
        ([ANYBODY], "name each"),
    ],
)
def test_impossible_super_users_are_named(run, admin, fake_cluster, super_users, told):
    expect_refused(run, admin.set_authorization(False, super_users), told)
    assert fake_cluster.calls == []


def test_on_or_off_is_a_bool(run, admin):
    expect_refused(run, admin.set_authorization("on"), "is_on='on'")


@pytest.mark.usefixtures("cheap")
def test_nobody_is_locked_out_by_mistake(run, admin, control):
    run(admin.create_user("alice", PASSWORD))
    for super_users in (["User:alcie"], []):
        expect_refused(run, admin.set_authorization(True, super_users), "lock out everyone")
    assert not control.is_on
    run(admin.set_authorization(False, ["User:alcie"]))
    expect_refused(run, admin.set_authorization(True), "lock out everyone")
    run(admin.set_authorization(True, [ALICE]))
    expect_refused(run, admin.delete_user("alice"), "lock out everyone")
    run(admin.set_authorization(False))
    run(admin.delete_user("alice"))


@pytest.mark.usefixtures("cheap")
def test_an_acl_may_be_what_keeps_everyone_from_being_locked_out(run, admin, control):
    administer = Acl(
        principal=ALICE, resource=Resource.CLUSTER, name=CLUSTER_NAME, operation=Operation.ALTER
    )
    run(admin.create_user("alice", PASSWORD))
    run(admin.create_acls([administer, READ]))
    run(admin.set_authorization(True, ["User:away"]))
    expect_refused(run, admin.delete_acls(principal=ALICE), "lock out everyone")
    assert run(admin.delete_acls(resource="topic")) == [READ]
    assert control.access().rules.acls == (administer,)


@pytest.mark.usefixtures("cheap")
def test_a_check_tells_what_decides(run, admin):
    def check(*asked):
        found = run(admin.check_access(*asked))
        return found.is_allowed, found.reason, found.acl

    run(admin.create_user("alice", PASSWORD))
    run(admin.create_user("bob", PASSWORD))
    run(admin.create_acls(ALL))
    off = (True, "authorization is off: everything is allowed", None)
    assert check(ALICE, "Alter", "Topic", "flights") == off
    run(admin.set_authorization(True, ["User:bob"]))
    sentence = "User:alice may Read Topic 'flights'"
    assert check(ALICE, "read", "topic", "flights") == (True, sentence, READ)
    assert check(ALICE, "describe", "topic", "flights") == (True, sentence, READ)
    begins = "User:alice may Read each Topic whose name begins with 'fl'"
    assert check(ALICE, "read", "topic", "flow") == (True, begins, PREFIX)
    assert check(ALICE, "alter", "topic", "flights") == (False, "no ACL allows it", None)
    assert check("User:bob", "alter", "cluster", CLUSTER_NAME) == (
        True,
        "User:bob is a super user",
        None,
    )
    told = "no ACL allows it; there is no user 'carol'"
    assert check("User:carol", "read", "topic", "flights") == (False, told, None)
    assert check(RAY_NAME, "read", "topic", "flights") == (False, "no ACL allows it", None)


@pytest.mark.usefixtures("cheap")
def test_what_is_denied_at_one_host_is_told_for_that_host(run, admin):
    run(admin.create_user("bob", PASSWORD))
    run(admin.create_acls([DENIED, structs.replace(READ, principal=ANYBODY, name="*")]))
    run(admin.set_authorization(True))

    async def check(host):
        return await admin.check_access("User:bob", "Read", "Topic", "flights", host)

    denied, allowed = run(check("10.0.0.1")), run(check("*"))
    assert (denied.is_allowed, denied.acl) == (False, DENIED)
    assert denied.reason == "User:bob may not Read Topic 'flights' from 10.0.0.1"
    assert (allowed.is_allowed, allowed.reason) == (True, "User:* may Read any Topic")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("alice", "Read", "Topic", "t"), "'alice'"),
        ((ALICE, "Run", "Topic", "t"), "'Run'"),
        ((ALICE, "All", "Topic", "t"), "'All'"),
        ((ALICE, "Read", "Cluster", CLUSTER_NAME), "Cluster"),
        ((ALICE, "Alter", "Cluster", "mine"), "'mine'"),
        ((ALICE, "Read", "Topic", ""), "name=''"),
        ((ALICE, "Read", "Topic", "t", None), "host=None"),
    ],
)
def test_an_impossible_question_is_named(run, admin, fake_cluster, asked, told):
    expect_refused(run, admin.check_access(*asked), told)
    assert fake_cluster.calls == []


def test_each_acl_has_a_sentence():
    everything = Acl(
        principal=ANYBODY, resource=Resource.CLUSTER, name="*", operation=Operation.ALL
    )
    assert identities.acl_text(everything) == "User:* may do everything to the Cluster"


@pytest.mark.usefixtures("cheap")
def test_a_check_says_what_servers_decide(run, admin, control):
    run(admin.create_user("alice", PASSWORD))
    run(admin.create_acls(ALL))
    run(admin.set_authorization(True))
    authorizer = Authorizer(control.access().rules)
    for name in ("flights", "flu", "trains"):
        for who in (ALICE, "User:bob", RAY_NAME):
            for host in ("*", "10.0.0.1"):
                found = run(admin.check_access(who, "Read", "Topic", name, host))
                decided = authorizer.may(Principal(who), Operation.READ, Resource.TOPIC, name, host)
                assert found.is_allowed is decided


def test_without_asyncio_they_are_the_same(fake_cluster, control, loop_thread):
    admin = Admin(fake_cluster.router(), loop_thread, random=fake_cluster.random)
    admin.create_user("alice", PASSWORD, iterations=ITERATIONS_MIN)
    admin.create_acls([READ])
    admin.set_authorization(True, [ALICE])
    assert admin.check_access(ALICE, "Write", "Topic", "x").is_allowed
    assert [user.name for user in admin.list_users()] == ["alice"]
    with pytest.raises(OncelogError):
        admin.delete_user("alice")
