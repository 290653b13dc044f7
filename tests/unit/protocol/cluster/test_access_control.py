"""Users, ACLs and super users: each row of the machine's table, and histories of changes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from cluster_worlds import ClusterWorld
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from oncelog.actors.protocol.access import (
    DECIDED_NAME_CHARS_MAX,
    DECISIONS_MAX,
    Authorizer,
    Principal,
)
from oncelog.actors.protocol.cluster import access_control
from oncelog.actors.protocol.cluster.access_control import (
    ACLS_MAX,
    CHANGES_MAX,
    OPERATIONS,
    RESOURCE_CHARS_MAX,
    SNAPSHOT_ROWS,
    SUPER_USERS_MAX,
    USERS_MAX,
    AccessControl,
    why_impossible,
)
from oncelog.actors.protocol.cluster.cluster_machine import ClusterMachine
from oncelog.actors.protocol.cluster.cluster_records import (
    AccessChanged,
    decode_cluster_record,
    encode_cluster_record,
    snapshot_parts,
)
from oncelog.actors.protocol.effects import Decision
from oncelog.actors.protocol.messages.access import (
    ANY_NAME,
    ANYBODY,
    CLUSTER_NAME,
    RAY_NAME,
    Acl,
    AlterAclsRequest,
    AlterAuthorizationRequest,
    AlterLimitsRequest,
    AlterUsersRequest,
    Limits,
    Operation,
    Resource,
    Rules,
    User,
    UserDescription,
)
from oncelog.actors.protocol.messages.base import Reply
from oncelog.actors.protocol.scram import ITERATIONS_MIN, NAME_CHARS_MAX, Credential
from oncelog.storage.errors import ErrorCode, InvariantViolation

READ = Acl(
    principal="User:alice", resource=Resource.TOPIC, name="flights", operation=Operation.READ
)
WRITE = structs.replace(READ, operation=Operation.WRITE)
ALICE = Principal(READ.principal)

SLOW = Limits(requests_per_second=5)
FEW = Limits(connections=3, transaction_timeout_ms_max=60_000)

Request = AlterUsersRequest | AlterAclsRequest | AlterLimitsRequest | AlterAuthorizationRequest


def credential(key: int = 0) -> Credential:
    return Credential(
        salt=b"s" * 16,
        iterations=ITERATIONS_MIN,
        stored_key=bytes([key]) * 32,
        server_key=b"k" * 32,
    )


def user(name: str, key: int = 0) -> User:
    return User(name=name, credential=credential(key))


class World:
    """The machine, and the records that it logged."""

    def __init__(self) -> None:
        self.control = AccessControl()
        self.log: list[bytes] = []

    def decide(self, request: Request) -> Decision[Any]:
        if isinstance(request, AlterUsersRequest):
            return self.control.decide_users(request)
        if isinstance(request, AlterAclsRequest):
            return self.control.decide_acls(request)
        if isinstance(request, AlterLimitsRequest):
            return self.control.decide_limits(request)
        return self.control.decide_authorization(request)

    def run(self, request: Request) -> Reply:
        """Decide, and apply what is logged, as the controller does once it is committed."""
        decision = self.decide(request)
        for record in decision.records:
            assert record.value is not None
            self.log.append(record.value)
            self.control.apply(record_in(record.value))
        reply: Reply = decision.reply
        return reply

    def put(self, *users: User, **fields: Any) -> Reply:
        return self.run(AlterUsersRequest(put=users, **fields))

    def add(self, *acls: Acl) -> Reply:
        return self.run(AlterAclsRequest(added=acls))


def record_in(value: bytes) -> AccessChanged:
    record = decode_cluster_record(value)
    assert isinstance(record, AccessChanged)
    return record


def many_users(count: int, first: int = 0) -> tuple[User, ...]:
    return tuple(user(f"u{number}") for number in range(first, first + count))


def many_acls(count: int, first: int = 0) -> tuple[Acl, ...]:
    return tuple(structs.replace(READ, name=f"t{n}") for n in range(first, first + count))


@pytest.fixture
def world() -> World:
    """Alice with an ACL, while everything is allowed."""
    world = World()
    assert world.put(user("alice")).error is ErrorCode.NONE
    assert world.add(READ).error is ErrorCode.NONE
    assert (world.control.version, len(world.log)) == (2, 2)
    return world


# --- the table --------------------------------------------------------------------------------

REFUSED = {
    "a name is put and removed": (
        AlterUsersRequest(put=(user("bob"),), removed=("bob",)),
        "'bob' is named twice",
    ),
    "a name is put twice": (
        AlterUsersRequest(put=(user("bob"), user("bob", 1))),
        "'bob' is named twice",
    ),
    "a name is removed twice": (
        AlterUsersRequest(removed=("alice", "alice")),
        "'alice' is named twice",
    ),
    "a name is not prepared": (AlterUsersRequest(put=(user("b\u00adob"),)), "impossible"),
    "a name is empty": (AlterUsersRequest(put=(user(""),)), "impossible"),
    "a name is too long": (
        AlterUsersRequest(put=(user("b" * (NAME_CHARS_MAX + 1)),)),
        "impossible",
    ),
    "a name has a control character": (AlterUsersRequest(put=(user("b\x07b"),)), "impossible"),
    "a name is that of everybody": (AlterUsersRequest(put=(user("*"),)), "'\\*' is impossible"),
    "a name is that of Ray's programs": (AlterUsersRequest(put=(user("ray"),)), "impossible"),
    "a removed name is impossible": (AlterUsersRequest(removed=("",)), "impossible"),
    "too many users in the request": (
        AlterUsersRequest(put=many_users(CHANGES_MAX), removed=("alice",)),
        f"at most {CHANGES_MAX}",
    ),
    "a known user is to be new": (
        AlterUsersRequest(put=(user("alice", 1),), are_known=False),
        "there is a user 'alice' already",
    ),
    "an unknown user is to be known": (
        AlterUsersRequest(put=(user("bob"),), are_known=True),
        "there is no user 'bob'",
    ),
    "a principal is impossible": (
        AlterAclsRequest(added=(structs.replace(READ, principal="alice"),)),
        "principal 'alice'",
    ),
    "an operation is of another kind": (
        AlterAclsRequest(added=(WRITE, structs.replace(READ, resource=Resource.CLUSTER))),
        "operation Read on a Cluster",
    ),
    "too many ACLs in the request": (
        AlterAclsRequest(added=many_acls(CHANGES_MAX), removed=(READ,)),
        f"at most {CHANGES_MAX}",
    ),
    "limits of no principal": (AlterLimitsRequest(put=(("alice", SLOW),)), "principal 'alice'"),
    "limits of a principal twice": (
        AlterLimitsRequest(put=(("User:alice", SLOW),), removed=("User:alice",)),
        "named twice",
    ),
    "limits of too many principals in the request": (
        AlterLimitsRequest(removed=tuple(f"User:u{n}" for n in range(CHANGES_MAX + 1))),
        f"at most {CHANGES_MAX}",
    ),
    "a super user is no principal": (
        AlterAuthorizationRequest(is_on=True, super_users=("alice",)),
        "super user 'alice'",
    ),
    "too many super users": (
        AlterAuthorizationRequest(
            is_on=False, super_users=tuple(f"User:u{n}" for n in range(SUPER_USERS_MAX + 1))
        ),
        f"at most {SUPER_USERS_MAX}",
    ),
    "on without a super user": (
        AlterAuthorizationRequest(is_on=True, super_users=()),
        "without a super user",
    ),
}

NOTHING_CHANGES = {
    "no user": AlterUsersRequest(),
    "the same credential": AlterUsersRequest(put=(user("alice"),)),
    "a creation is repeated": AlterUsersRequest(put=(user("alice"),), are_known=False),
    "an unknown user is removed": AlterUsersRequest(removed=("bob",)),
    "no ACL": AlterAclsRequest(),
    "an ACL that there is": AlterAclsRequest(added=(READ, READ)),
    "an ACL that is not there is removed": AlterAclsRequest(removed=(WRITE,)),
    "one is added and removed": AlterAclsRequest(added=(WRITE,), removed=(WRITE,)),
    "no limits": AlterLimitsRequest(),
    "limits that are not there are removed": AlterLimitsRequest(removed=("User:bob",)),
    "off as before": AlterAuthorizationRequest(is_on=False),
    "off, with the same super user": AlterAuthorizationRequest(
        is_on=False, super_users=(RAY_NAME,)
    ),
}


@pytest.mark.parametrize("row", REFUSED)
def test_what_is_impossible_is_refused_and_changes_nothing(world: World, row: str) -> None:
    request, told = REFUSED[row]
    before = world.control.access()
    decision = world.decide(request)
    assert decision.reply.error is ErrorCode.INVALID_REQUEST
    assert not decision.records
    assert re.search(told, decision.reply.detail)
    assert world.control.access() == before


@pytest.mark.parametrize("row", NOTHING_CHANGES)
def test_a_change_that_changes_nothing_logs_nothing(world: World, row: str) -> None:
    decision = world.decide(NOTHING_CHANGES[row])
    assert decision.reply.error is ErrorCode.NONE
    assert not decision.records


def test_deciding_changes_nothing(world: World) -> None:
    before = world.control.access()
    for request in (
        AlterUsersRequest(put=(user("bob"),), removed=("alice",)),
        AlterAclsRequest(added=(WRITE,), removed=(READ,)),
        AlterAuthorizationRequest(is_on=True, super_users=("User:alice",)),
    ):
        assert world.decide(request).records
    assert world.control.access() == before


def test_users_are_added_changed_and_removed_in_one_change(world: World) -> None:
    assert world.put(user("alice", 1), user("carol"), removed=("nobody",)).error is ErrorCode.NONE
    assert world.control.version == 3
    assert world.put(user("bob"), removed=("carol",)).error is ErrorCode.NONE
    assert world.control.access().users == (user("alice", 1), user("bob"))
    assert world.control.described().users == (
        UserDescription(name="alice", iterations=ITERATIONS_MIN),
        UserDescription(name="bob", iterations=ITERATIONS_MIN),
    )


def test_only_a_known_user_gets_another_password(world: World) -> None:
    assert world.put(user("alice", 1), are_known=True).error is ErrorCode.NONE
    assert world.control.access().users == (user("alice", 1),)


def test_acls_are_added_and_removed_in_one_change(world: World) -> None:
    assert world.run(AlterAclsRequest(added=(WRITE,), removed=(READ,))).error is ErrorCode.NONE
    assert world.control.access().rules.acls == (WRITE,)
    assert world.control.version == 3


def test_acls_count_from_when_they_are_switched_on(world: World) -> None:
    assert not world.control.access().rules.is_on
    world.run(AlterAuthorizationRequest(is_on=True, super_users=("User:alice", "User:bob")))
    rules = world.control.access().rules
    assert (rules.is_on, rules.super_users) == (True, frozenset({"User:alice", "User:bob"}))
    world.run(AlterAuthorizationRequest(is_on=False))
    rules = world.control.access().rules
    assert (rules.is_on, rules.super_users) == (False, frozenset({"User:alice", "User:bob"}))


def test_a_change_of_acls_switches_nothing(world: World) -> None:
    world.run(AlterAuthorizationRequest(is_on=True, super_users=("User:alice",)))
    world.add(WRITE)
    world.put(user("bob"))
    rules = world.control.access().rules
    assert (rules.is_on, rules.super_users) == (True, frozenset({"User:alice"}))


# --- what is possible -------------------------------------------------------------------------


@pytest.mark.parametrize("resource", Resource)
@pytest.mark.parametrize("operation", Operation)
def test_each_kind_has_its_operations(resource: Resource, operation: Operation) -> None:
    name = CLUSTER_NAME if resource is Resource.CLUSTER else "x"
    acl = structs.replace(READ, resource=resource, operation=operation, name=name)
    assert (why_impossible(acl) == "") is (operation in OPERATIONS[resource])
    assert Operation.CLUSTER_ACTION not in OPERATIONS[resource]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"principal": "User:"}, "principal"),
        ({"principal": "Group:alice"}, "principal"),
        ({"name": ""}, "a name of 0 characters"),
        ({"name": "t" * (RESOURCE_CHARS_MAX + 1)}, "a name of 1025 characters"),
        ({"name": ANY_NAME, "is_prefix": True}, "the prefix '*' is of nothing"),
        ({"host": ""}, "host ''"),
        *(
            ({"host": host, "is_allowed": False}, f"host {host!r}: give an address")
            for host in (
                "h" * 65,
                "10.0.0.0/8",
                "db1",
                "10.0.0.01",
                "2001:DB8::1",
                "::ffff:1.2.3.4",
            )
        ),
        (
            {"resource": Resource.CLUSTER, "operation": Operation.ALTER, "name": "other"},
            "cluster 'other'",
        ),
        (
            {
                "resource": Resource.CLUSTER,
                "operation": Operation.ALTER,
                "name": CLUSTER_NAME,
                "is_prefix": True,
            },
            "is of nothing",
        ),
    ],
)
def test_an_impossible_acl_is_told(fields: dict[str, Any], told: str) -> None:
    assert told in why_impossible(structs.replace(READ, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"principal": ANYBODY},
        {"principal": RAY_NAME},
        {"name": ANY_NAME},
        {"name": "f", "is_prefix": True},
        {"is_allowed": False, "host": "10.0.0.1"},
        {"is_allowed": False, "host": "2001:db8::1"},
        {"resource": Resource.CLUSTER, "operation": Operation.ALTER, "name": ANY_NAME},
    ],
)
def test_an_acl_may_be_about_many(fields: dict[str, Any]) -> None:
    assert why_impossible(structs.replace(READ, **fields)) == ""


# --- bounds -----------------------------------------------------------------------------------


def test_a_cluster_has_so_many_users(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_control, "USERS_MAX", 3)
    assert world.put(user("bob"), user("carol")).error is ErrorCode.NONE
    reply = world.put(user("dave"))
    assert (reply.error, reply.detail) == (
        ErrorCode.POLICY_VIOLATION,
        "a cluster has at most 3 users",
    )
    assert world.put(user("carol", 1)).error is ErrorCode.NONE
    assert world.put(user("dave"), removed=("bob",)).error is ErrorCode.NONE
    assert len(world.control.access().users) == 3


def test_limits_replace_those_before_and_are_told_to_doors(world: World) -> None:
    world.run(AlterLimitsRequest(put=(("User:alice", SLOW), (ANYBODY, FEW))))
    assert world.control.access().rules.limits == (("User:alice", SLOW), (ANYBODY, FEW))
    world.run(AlterLimitsRequest(put=(("User:alice", FEW),), removed=(ANYBODY,)))
    rules = world.control.access().rules
    assert (rules.limits, rules.version) == ((("User:alice", FEW),), 4)
    limits = Authorizer(rules).limits
    assert limits(Principal("User:alice")) == FEW
    assert limits(Principal("User:bob")) == Limits()


def test_so_many_principals_have_limits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_control, "LIMITED_MAX", 2)
    world.run(AlterLimitsRequest(put=(("User:a", SLOW), ("User:b", SLOW))))
    reply = world.run(AlterLimitsRequest(put=(("User:c", SLOW),)))
    assert (reply.error, reply.detail) == (
        ErrorCode.POLICY_VIOLATION,
        "at most 2 principals have limits",
    )
    exchanged = AlterLimitsRequest(put=(("User:c", SLOW),), removed=("User:a",))
    assert world.run(exchanged).error is ErrorCode.NONE


def test_a_cluster_has_so_many_acls(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_control, "ACLS_MAX", 3)
    assert world.add(*many_acls(2)).error is ErrorCode.NONE
    reply = world.add(WRITE)
    assert (reply.error, reply.detail) == (
        ErrorCode.POLICY_VIOLATION,
        "a cluster has at most 3 ACLs",
    )
    assert world.add(READ).error is ErrorCode.NONE
    assert world.run(AlterAclsRequest(added=(WRITE,), removed=(READ,))).error is ErrorCode.NONE
    assert len(world.control.access().rules.acls) == 3


def test_a_request_changes_so_many_users_or_acls() -> None:
    world = World()
    assert world.put(*many_users(CHANGES_MAX)).error is ErrorCode.NONE
    assert world.put(*many_users(CHANGES_MAX + 1)).error is ErrorCode.INVALID_REQUEST
    assert world.add(*many_acls(CHANGES_MAX)).error is ErrorCode.NONE
    assert world.add(*many_acls(CHANGES_MAX + 1)).error is ErrorCode.INVALID_REQUEST


def test_there_are_so_many_super_users() -> None:
    named = tuple(f"User:u{number}" for number in range(SUPER_USERS_MAX))
    world = World()
    request = AlterAuthorizationRequest(is_on=True, super_users=named)
    assert world.run(request).error is ErrorCode.NONE
    request = AlterAuthorizationRequest(is_on=True, super_users=(*named, "User:one more"))
    assert world.run(request).error is ErrorCode.INVALID_REQUEST


def test_a_full_cluster_has_a_snapshot_of_bounded_records() -> None:
    world = World()
    for first in range(0, USERS_MAX, CHANGES_MAX):
        world.put(*many_users(CHANGES_MAX, first))
    for first in range(0, ACLS_MAX, CHANGES_MAX):
        world.add(*many_acls(CHANGES_MAX, first))
    assert world.control.size == USERS_MAX + ACLS_MAX
    records = list(world.control.snapshot())
    assert max(len(one.users) + len(one.acls) for one in records) == SNAPSHOT_ROWS
    assert loaded(records).access() == world.control.access()


def test_decisions_that_are_remembered_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DECISIONS_MAX > 3
    monkeypatch.setattr("oncelog.actors.protocol.access.DECISIONS_MAX", 3)
    authorizer = Authorizer(Rules(is_on=True, acls=(READ,)))
    most = 0
    for number in (*range(10), *range(10)):
        name = f"t{number}" if number % 2 else "flights"
        is_allowed = authorizer.may(ALICE, Operation.READ, Resource.TOPIC, name, f"10.0.0.{number}")
        assert is_allowed is (name == "flights")
        most = max(most, len(authorizer._decided))
    assert most == 3


def test_long_names_are_decided_upon_and_not_remembered() -> None:
    """A caller names what it likes: ten thousand such names would be more than there is memory."""
    prefix = structs.replace(READ, name="f", is_prefix=True)
    authorizer = Authorizer(Rules(is_on=True, acls=(prefix,)))
    for length in (DECIDED_NAME_CHARS_MAX, DECIDED_NAME_CHARS_MAX + 1, 1_000_000):
        for name, is_allowed in (("f" * length, True), ("g" * length, False)):
            answer = authorizer.may(ALICE, Operation.READ, Resource.TOPIC, name, "10.0.0.1")
            assert answer is is_allowed
    assert {len(name) for *_, name in authorizer._decided} == {DECIDED_NAME_CHARS_MAX}


# --- histories --------------------------------------------------------------------------------

NAMES = st.sampled_from(["alice", "bob", "carol", "dave"])
USERS = st.builds(user, NAMES, st.integers(0, 2))
ACLS = st.builds(
    Acl,
    principal=st.sampled_from(["User:alice", ANYBODY]),
    resource=st.just(Resource.TOPIC),
    name=st.sampled_from(["flights", "f"]),
    operation=st.sampled_from([Operation.READ, Operation.WRITE]),
    is_prefix=st.booleans(),
    is_allowed=st.booleans(),
)
REQUESTS: st.SearchStrategy[Request] = st.one_of(
    st.builds(
        AlterUsersRequest,
        put=st.lists(USERS, max_size=3).map(tuple),
        are_known=st.sampled_from([None, True, False]),
        removed=st.lists(NAMES, max_size=2).map(tuple),
    ),
    st.builds(
        AlterAclsRequest,
        added=st.lists(ACLS, max_size=3).map(tuple),
        removed=st.lists(ACLS, max_size=3).map(tuple),
    ),
    st.builds(
        AlterLimitsRequest,
        put=st.dictionaries(
            st.sampled_from(["User:alice", ANYBODY]), st.sampled_from([SLOW, FEW])
        ).map(lambda found: tuple(found.items())),
        removed=st.lists(st.sampled_from(["User:alice", "User:bob"]), max_size=1).map(tuple),
    ),
    st.builds(
        AlterAuthorizationRequest,
        is_on=st.booleans(),
        super_users=st.one_of(
            st.none(),
            st.lists(st.sampled_from([RAY_NAME, "User:alice"]), max_size=2).map(tuple),
        ),
    ),
)


def loaded(records: list[AccessChanged]) -> AccessControl:
    control = AccessControl()
    for record in records:
        encoded = encode_cluster_record(record)
        assert encoded.value is not None
        control.apply(record_in(encoded.value))
    return control


@given(st.lists(REQUESTS, max_size=20))
def test_whatever_changes_replay_and_snapshot_give_the_same_state(requests: list[Request]) -> None:
    world = World()
    for request in requests:
        before, version = world.control.access(), world.control.version
        logged = len(world.log)
        reply = world.run(request)
        is_changed = len(world.log) > logged
        assert world.control.version == version + is_changed
        assert len(world.log) == logged + is_changed
        assert is_changed is (world.control.access() != before)
        assert reply.error is ErrorCode.NONE or not is_changed
        # Repeating, as after a lost reply, is harmless. A second user of a name would be another.
        assert not world.decide(request).records
        assert not world.control.is_on or world.control.super_users
    replayed = AccessControl()
    for value in world.log:
        replayed.apply(record_in(value))
    assert replayed.access() == world.control.access()
    copied = loaded(list(world.control.snapshot()))
    assert copied.access() == world.control.access()
    # What a replica decides after it has loaded a snapshot is what it would have decided.
    for request in requests:
        assert world.decide(request) == Copy(copied).decide(request)


class Copy(World):
    """A world that goes on from another machine."""

    def __init__(self, control: AccessControl) -> None:
        super().__init__()
        self.control = control


def test_without_any_name_a_snapshot_is_empty() -> None:
    assert list(AccessControl().snapshot()) == []


def test_an_older_change_is_never_applied(world: World) -> None:
    with pytest.raises(InvariantViolation, match="I-24"):
        world.control.apply(AccessChanged(access_version=1))


def test_the_machine_of_the_cluster_has_them_in_its_snapshot_and_counts_them() -> None:
    world, cluster = World(), ClusterWorld()
    world.put(user("alice"))
    world.add(READ, WRITE)
    cluster.apply(map(record_in, world.log))
    assert cluster.machine.access.access() == world.control.access()
    assert cluster.machine.size == 3
    copy = ClusterMachine()
    for part in snapshot_parts(cluster.machine.snapshot()):
        copy.apply(part)
    assert copy.access.access() == world.control.access()


def test_credentials_are_not_told_by_what_may_be_logged(world: World) -> None:
    (first, *_) = map(record_in, world.log)
    assert first.users
    assert "stored" not in repr(first)
    assert " users=" not in repr(first)
    assert "iterations=4096" in repr(user("alice"))
    assert "kkk" not in repr(user("alice"))
