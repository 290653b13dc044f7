"""Users and ACLs as the command line changes and shows them."""

from __future__ import annotations

import getpass
import io
import json
import re
import shlex
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from topics import AdminCluster

from oncelog.actors.protocol.access import Authorizer, Principal
from oncelog.actors.protocol.messages.access import (
    CLUSTER_NAME,
    Acl,
    AlterUsersRequest,
    DescribeAccessRequest,
    Limits,
    Operation,
    Resource,
    Rules,
    UserDescription,
)
from oncelog.actors.protocol.messages.brokers import DrainBrokerRequest
from oncelog.actors.protocol.messages.cluster import (
    CreateTopicRequest,
    MetadataRequest,
    RotateClusterKeyRequest,
    ShutdownRequest,
)
from oncelog.actors.protocol.messages.group import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from oncelog.actors.protocol.messages.partition import (
    DescribeReplicaRequest,
    FetchRequest,
    ListOffsetsRequest,
    ProduceRequest,
)
from oncelog.actors.protocol.messages.replication import DescribeVoterRequest
from oncelog.actors.protocol.messages.share import (
    DescribeShareGroupRequest,
    PartitionAcknowledgements,
    ShareAcknowledgeRequest,
    ShareAcquireRequest,
    ShareGroupHeartbeatRequest,
)
from oncelog.actors.protocol.messages.transaction import (
    AbortTransactionRequest,
    AddPartitionsToTxnRequest,
    BeginRunRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EnlistRequest,
    InitProducerIdRequest,
    LeaveRunRequest,
    RenewRunRequest,
)
from oncelog.actors.protocol.scram import DEFAULT_ITERATIONS
from oncelog.api.admin.identities import AccessCheck, Authorization
from oncelog.api.cli import identities as cli_identities
from oncelog.api.cli import main as cli
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidRequestError
from oncelog.storage.model import TopicPartition

PASSWORD = "correct horse"
ALICE, BOB = "User:alice", "User:bob"
READ = Acl(principal=ALICE, resource=Resource.TOPIC, name="flights", operation=Operation.READ)
PREFIX = structs.replace(READ, name="fl", is_prefix=True)
DENIED = structs.replace(READ, principal=BOB, is_allowed=False, host="10.0.0.1")


@pytest.fixture
def cluster(monkeypatch):
    """A user and some ACLs, of which all fit whatever is wanted."""
    cluster = AdminCluster(
        list_users=[UserDescription(name="alice", iterations=100_000)],
        describe_acls=[READ, PREFIX, DENIED],
        delete_acls=[READ],
        describe_authorization=Authorization(is_on=True, super_users=("User:admin",)),
        check_access=AccessCheck(is_allowed=True, reason="User:alice may Read", acl=READ),
    )
    monkeypatch.setattr(cli_identities, "connect", lambda args: cluster)
    return cluster


@pytest.fixture
def terminal(monkeypatch):
    """What is typed when a password is asked for, and the prompts."""
    terminal = types.SimpleNamespace(typed=[PASSWORD, PASSWORD], prompts=[])

    def ask(prompt):
        terminal.prompts.append(prompt)
        return terminal.typed.pop(0)

    monkeypatch.setattr(getpass, "getpass", ask)
    return terminal


def users(*arguments):
    return cli.main(["users", *arguments])


def acls(*arguments):
    return cli.main(["acls", *arguments])


def allowed(operation, resource, name, **fields):
    return Acl(
        principal=fields.pop("principal", ALICE),
        operation=operation,
        resource=resource,
        name=name,
        **fields,
    )


# --- users ------------------------------------------------------------------------------------


def test_a_password_is_typed_twice(cluster, terminal, capsys):
    assert users("add", "alice") == 0
    call = ("create_user", "alice", PASSWORD, {"iterations": DEFAULT_ITERATIONS})
    assert cluster.calls == [call]
    assert terminal.prompts == ["new password of alice: ", "once more: "]
    shown = capsys.readouterr()
    assert shown.out.startswith("added alice; ")
    assert PASSWORD not in shown.out + shown.err


def test_two_passwords_that_differ_change_nothing(cluster, terminal, capsys):
    terminal.typed = [PASSWORD, "another"]
    assert users("passwd", "alice") == 1
    assert cluster.calls == []
    error = capsys.readouterr().err
    assert error == "oncelog: the two passwords differ — type it again\n"


def test_without_a_terminal_nothing_is_asked(cluster, monkeypatch, capsys):
    def ask(prompt):
        warnings.warn("echo", getpass.GetPassWarning, stacklevel=2)

    monkeypatch.setattr(getpass, "getpass", ask)
    assert users("add", "alice") == 1
    assert "no terminal" in capsys.readouterr().err
    assert cluster.calls == []


@pytest.mark.parametrize("content", ["correct horse\nrest\n", "correct horse\r\n", "correct horse"])
def test_a_password_is_the_first_line_of_a_file(cluster, tmp_path, content):
    path = tmp_path / "password"
    path.write_bytes(content.encode())
    assert users("passwd", "alice", "--new-password-file", str(path), "--iterations", "5000") == 0
    assert cluster.calls == [("alter_user", "alice", PASSWORD, {"iterations": 5_000})]


def test_a_password_may_come_from_standard_input(cluster, monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO(b"correct horse\nrest"))
    monkeypatch.setattr("sys.stdin", stdin)
    assert users("add", "alice", "--new-password-file", "-") == 0
    assert cluster.calls[0][:3] == ("create_user", "alice", PASSWORD)


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "No such file"), (b"\nrest", "the password is empty"), (b"\xff", "not UTF-8")],
)
def test_a_file_without_a_password_is_named(cluster, tmp_path, capsys, content, told):
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    assert users("add", "alice", "--new-password-file", str(path)) == 1
    error = capsys.readouterr().err
    assert str(path) in error
    assert told in error
    assert cluster.calls == []


def test_whose_password_connects_is_another_option(cluster, tmp_path):
    path = tmp_path / "new"
    path.write_text(PASSWORD)
    own = ("--user", "admin", "--password-file", str(tmp_path / "own"))
    assert users("add", "alice", "--new-password-file", str(path), *own) == 0
    assert cluster.calls[0][:3] == ("create_user", "alice", PASSWORD)


def test_an_impossible_name_is_refused_before_a_password_is_asked(cluster, terminal, capsys):
    assert users("add", "User:alice") == 1
    assert capsys.readouterr().err == "oncelog: user name 'User:alice' — leave out 'User:'\n"
    assert terminal.prompts == []


def test_iterations_have_limits(cluster, capsys):
    assert users("add", "alice", "--iterations", "10") == 2
    assert "from 4096 to 1000000" in capsys.readouterr().err


def test_users_are_listed_for_people_and_programs(cluster, capsys):
    assert users("list") == 0
    assert capsys.readouterr().out.split() == ["USER", "ITERATIONS", "alice", "100,000"]
    assert users("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "alice", "iterations": 100_000}]
    cluster.answers["list_users"] = []
    assert users("list") == 0
    assert capsys.readouterr().out == "no users\n"


def test_limits_are_given_and_listed(cluster, capsys):
    assert users("limit", ALICE, "--connections", "3", "--requests-per-second", "50") == 0
    given = dict.fromkeys(Limits.__struct_fields__) | {"connections": 3, "requests_per_second": 50}
    assert cluster.calls == [("set_limits", ALICE, given)]
    shown = capsys.readouterr().out
    assert shown == f"{ALICE}: requests_per_second=50, connections=3\n"
    assert users("limit", ALICE) == 0
    assert capsys.readouterr().out == f"{ALICE}: no limits of its own\n"
    cluster.answers["describe_limits"] = {ALICE: Limits(connections=3)}
    assert users("limits") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [ALICE, "-", "-", "3", "-", "-"]
    assert users("limits", "--json") == 0
    assert json.loads(capsys.readouterr().out)[ALICE]["connections"] == 3
    cluster.answers["describe_limits"] = {}
    assert users("limits") == 0
    assert capsys.readouterr().out == "no limits\n"


def test_the_acls_of_a_removed_user_are_told(cluster, capsys):
    assert users("remove", "alice") == 0
    assert cluster.calls == [("delete_user", "alice"), ("describe_acls", {"principal": ALICE})]
    first, second = capsys.readouterr().out.splitlines()
    assert first == "removed alice"
    assert second.endswith("oncelog acls remove --principal User:alice")
    cluster.answers["describe_acls"] = []
    assert users("remove", "alice") == 0
    assert capsys.readouterr().out == "removed alice\n"


# --- ACLs -------------------------------------------------------------------------------------


def added(cluster, *arguments):
    assert acls("add", *arguments) == 0
    ((name, given),) = cluster.calls
    assert name == "create_acls"
    cluster.calls.clear()
    return given


def test_each_principal_operation_and_resource_gets_an_acl(cluster, capsys):
    given = added(
        cluster,
        *("--allow", ALICE, "--deny", BOB),
        *("--operation", "read", "--operation", "Describe"),
        *("--topic", "flights", "--group", "billing", "--host", "10.0.0.1"),
    )
    assert given == [
        allowed(operation, resource, name, principal=who, is_allowed=who == ALICE, host="10.0.0.1")
        for who in (ALICE, BOB)
        for resource, name in ((Resource.TOPIC, "flights"), (Resource.GROUP, "billing"))
        for operation in (Operation.READ, Operation.DESCRIBE)
    ]
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown[1] == [ALICE, "may", "Read", "Topic", "flights", "10.0.0.1"]
    assert len(shown) == 9


def test_an_acl_may_be_of_a_prefix_or_the_cluster(cluster):
    given = added(cluster, "--allow", ALICE, "--operation", "All", "--topic", "fl", "--prefix")
    assert given == [allowed(Operation.ALL, Resource.TOPIC, "fl", is_prefix=True)]
    given = added(cluster, "--allow", ALICE, "--operation", "Alter", "--cluster")
    assert given == [allowed(Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME)]


def test_what_a_producer_needs_is_one_option(cluster):
    role = ("--allow", ALICE, "--producer", "--topic", "flights")
    assert added(cluster, *role, "--transactional-id", "loader") == [
        allowed(operation, resource, name)
        for resource, name in ((Resource.TOPIC, "flights"), (Resource.TRANSACTIONAL_ID, "loader"))
        for operation in (Operation.WRITE, Operation.DESCRIBE)
    ]


def test_what_a_consumer_needs_is_one_option(cluster):
    role = ("--allow", ALICE, "--consumer", "--topic", "flights")
    assert added(cluster, *role, "--group", "billing") == [
        allowed(Operation.READ, Resource.TOPIC, "flights"),
        allowed(Operation.READ, Resource.GROUP, "billing"),
    ]


def test_one_principal_may_have_both_roles(cluster):
    given = added(
        cluster,
        *("--allow", ALICE, "--producer", "--consumer", "--prefix"),
        *("--topic", "fl", "--group", "fl", "--transactional-id", "fl"),
    )
    assert {(acl.resource.value, acl.operation.value) for acl in given} == {
        ("Topic", "Write"),
        ("Topic", "Describe"),
        ("Topic", "Read"),
        ("Group", "Read"),
        ("TransactionalId", "Write"),
        ("TransactionalId", "Describe"),
    }
    assert all(acl.is_prefix for acl in given)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--operation Read --topic t", "nobody is named"),
        ("--allow User:a --topic t", "no operation is named"),
        ("--allow User:a --operation Read", "no resource is named"),
        ("--allow User:a --producer", "no topic is named"),
        ("--allow User:a --consumer --topic t", "no group is named"),
        ("--deny User:a --producer --topic t", "--deny does not go"),
        ("--allow User:a --producer --topic t --operation Read", "--operation does not go"),
        ("--allow User:a --producer --topic t --cluster", "--cluster does not go"),
        ("--allow User:a --producer --topic t --group g", "--group does not go"),
        (
            "--allow User:a --consumer --topic t --group g --transactional-id i",
            "--transactional-id does not go",
        ),
    ],
)
def test_what_is_missing_or_too_much_is_told(cluster, capsys, arguments, told):
    assert acls("add", *arguments.split()) == 2
    assert told in capsys.readouterr().err
    assert cluster.calls == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--allow alice --operation Read --topic t", "principal 'alice' — give User:NAME"),
        ("--allow User:a --operation Run --topic t", "'Run' — give one of Read, Write"),
        ("--allow User:a --operation Read --cluster", "'Read' — give one of Alter, Describe, All"),
        ("--allow User:a --operation Read --topic * --prefix", "prefix '*'"),
    ],
)
def test_an_impossible_acl_is_refused_before_connecting(cluster, capsys, arguments, told):
    assert acls("add", *arguments.split()) == 1
    assert told in capsys.readouterr().err
    assert cluster.calls == []


def test_acls_are_removed_as_they_were_added(cluster, capsys):
    options = ("--allow", ALICE, "--operation", "Read", "--topic", "flights")
    assert acls("remove", *options) == 0
    wanted = {
        "principal": ALICE,
        "is_allowed": True,
        "resource": Resource.TOPIC,
        "name": "flights",
        "operation": "Read",
        "is_prefix": False,
    }
    assert cluster.calls == [("delete_acls", wanted)]
    _, row = capsys.readouterr().out.splitlines()
    assert row.split() == [ALICE, "may", "Read", "Topic", "flights", "*"]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("--principal User:alice", [{"principal": ALICE}]),
        ("--host 10.0.0.1", [{"host": "10.0.0.1"}]),
        ("--prefix", [{"is_prefix": True}]),
        ("--deny User:alice", [{"principal": ALICE, "is_allowed": False}]),
        (
            "--group a --group b --prefix",
            [{"resource": Resource.GROUP, "name": name, "is_prefix": True} for name in "ab"],
        ),
        (
            "--allow User:alice --consumer --topic t --group t",
            [
                {
                    "principal": ALICE,
                    "is_allowed": True,
                    "resource": resource,
                    "name": "t",
                    "operation": Operation.READ,
                    "is_prefix": False,
                }
                for resource in (Resource.TOPIC, Resource.GROUP)
            ],
        ),
    ],
)
def test_what_is_not_said_fits_any(cluster, arguments, wanted):
    assert acls("remove", *arguments.split()) == 0
    assert cluster.calls == [("delete_acls", one) for one in wanted]


def test_without_any_option_nothing_is_removed(cluster, capsys):
    assert acls("remove") == 2
    assert "nothing says which ACLs" in capsys.readouterr().err
    assert cluster.calls == []


def test_a_removal_that_removes_nothing_is_an_error(cluster, capsys):
    cluster.answers["delete_acls"] = []
    assert acls("remove", "--principal", "User:alcie") == 1
    assert "no ACL fits" in capsys.readouterr().err


def test_acls_are_listed_for_people(cluster, capsys):
    assert acls("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["authorization  on", "super users    User:admin", ""]
    rows = [line.split() for line in lines[4:]]
    assert rows == [
        [ALICE, "may", "Read", "Topic", "flights", "*"],
        [ALICE, "may", "Read", "Topic", "fl…", "*"],
        [BOB, "may", "not", "Read", "Topic", "flights", "10.0.0.1"],
    ]


def test_without_acls_the_list_says_so(cluster, capsys):
    cluster.answers |= {
        "describe_acls": [],
        "describe_authorization": Authorization(is_on=False, super_users=()),
    }
    assert acls("list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "authorization  off: everything is allowed",
        "super users    none",
        "",
        "no ACLs",
    ]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("", [READ, PREFIX, DENIED]),
        ("--principal User:alice", [READ, PREFIX]),
        ("--topic flights", [READ, DENIED]),
        ("--topic flights --match", [READ, PREFIX, DENIED]),
        ("--topic flow --match", [PREFIX]),
        ("--topic fl --prefix", [PREFIX]),
        ("--deny User:bob --principal User:alice", [READ, PREFIX, DENIED]),
        ("--group flights --match", []),
    ],
)
def test_acls_are_listed_for_programs_as_the_options_say(cluster, capsys, arguments, found):
    assert acls("list", "--json", *arguments.split()) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["is_on"], shown["super_users"]) == (True, ["User:admin"])
    assert shown["acls"] == [cli_identities.acl_as_json(acl) for acl in found]


def test_a_prefix_matches_no_prefix(cluster, capsys):
    assert acls("list", "--topic", "t", "--match", "--prefix") == 2
    assert "contradict" in capsys.readouterr().err


def test_an_acl_is_an_object_of_its_fields():
    assert cli_identities.acl_as_json(DENIED) == {
        "principal": BOB,
        "is_allowed": False,
        "operation": "Read",
        "resource": "Topic",
        "name": "flights",
        "is_prefix": False,
        "host": "10.0.0.1",
    }


# --- checks and the switch --------------------------------------------------------------------


def test_a_check_says_why_and_its_exit_status_is_the_answer(cluster, capsys):
    assert acls("check", ALICE, "Read", "topic:flights") == 0
    asked = ("check_access", ALICE, "Read", Resource.TOPIC, "flights", "*")
    assert cluster.calls == [asked]
    assert capsys.readouterr().out == "allowed: User:alice may Read\n"
    cluster.answers["check_access"] = AccessCheck(is_allowed=False, reason="no ACL allows it")
    assert acls("check", ALICE, "Alter", "cluster", "--host", "10.0.0.1") == 1
    asked = ("check_access", ALICE, "Alter", Resource.CLUSTER, CLUSTER_NAME, "10.0.0.1")
    assert cluster.calls[-1] == asked
    assert capsys.readouterr().out == "refused: no ACL allows it\n"


def test_a_check_is_shown_to_programs(cluster, capsys):
    assert acls("check", ALICE, "Read", "topic:flights", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["acl"] == cli_identities.acl_as_json(READ)
    cluster.answers["check_access"] = AccessCheck(is_allowed=False, reason="no ACL allows it")
    assert acls("check", ALICE, "Read", "topic:flights", "--json") == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"is_allowed": False, "reason": "no ACL allows it", "acl": None}


@pytest.mark.parametrize("text", ["flights", "topic", "topic:", "table:t", "cluster:mine", ""])
def test_what_is_no_resource_is_refused(cluster, capsys, text):
    assert acls("check", ALICE, "Read", text) == 2
    assert f"{text!r} is no resource" in capsys.readouterr().err


def test_a_resource_may_have_a_colon_in_its_name():
    assert cli_identities.resource_of("Group:a:b") == (Resource.GROUP, "a:b")
    assert cli_identities.resource_of("transactional-id:x") == (Resource.TRANSACTIONAL_ID, "x")
    assert cli_identities.resource_of("cluster:oncelog") == (Resource.CLUSTER, CLUSTER_NAME)


def test_acls_are_switched_on_and_off(cluster, capsys):
    assert acls("on", "--super-user", "User:admin") == 0
    assert cluster.changes == [("set_authorization", True, ("User:admin",))]
    assert capsys.readouterr().out == "authorization is on; super users: User:admin\n"
    assert acls("off") == 0
    assert cluster.changes[1:] == [("set_authorization", False)]
    assert capsys.readouterr().out.startswith("authorization is off")


def test_that_anybody_may_do_everything_is_told(cluster, capsys):
    cluster.answers["describe_authorization"] = Authorization(is_on=True, super_users=("User:ray",))
    assert acls("on") == 0
    assert cluster.changes == [("set_authorization", True, None)]
    assert "without a user, may still do everything" in capsys.readouterr().out


def test_a_refusal_is_one_line(cluster, capsys):
    cluster.failure = InvalidRequestError("this would lock out everyone", advice="create a user")
    assert acls("on", "--super-user", "User:x") == 1
    error = capsys.readouterr().err
    assert error == "oncelog: this would lock out everyone — create a user\n"


# --- the page ---------------------------------------------------------------------------------

IN, OUT = TopicPartition("IN", 0), TopicPartition("OUT", 0)
ANY: dict[str, Any] = {
    "topic_partition": OUT,
    "topics": ("IN",),
    "group_id": "G",
    "transactional_id": "ID",
    "name": "OUT",
    "partitions": (OUT,),
    "next_partitions": (OUT,),
    "offsets": ((IN, None),),
}


def asked(kind: type[Any], **fields: Any) -> Any:
    """A request of this kind, of which only what it names matters."""
    known = {field.name: field for field in structs.fields(kind)}
    named = {name: value for name, value in (ANY | fields).items() if name in known}
    missing = {name: None for name, field in known.items() if field.required and name not in named}
    return kind(**missing | named)


ACKNOWLEDGED = (PartitionAcknowledgements(topic_partition=IN, topic_id="t", runs=()),)
PRODUCER = [
    asked(MetadataRequest, topics=("OUT",)),
    asked(InitProducerIdRequest, transactional_id=None),
    asked(ProduceRequest, transactional_id=None),
]
TRANSACTION = [
    asked(MetadataRequest, topics=("OUT",)),
    *map(asked, (InitProducerIdRequest, AddPartitionsToTxnRequest, ProduceRequest, EndTxnRequest)),
]
READER = [
    asked(MetadataRequest),
    asked(ListOffsetsRequest, topic_partition=IN),
    asked(FetchRequest, topic_partition=IN),
]
MEMBER = [
    *READER,
    *map(asked, (JoinGroupRequest, SyncGroupRequest, HeartbeatRequest, LeaveGroupRequest)),
    asked(DescribeGroupsRequest, group_ids=("G",)),
    asked(OffsetFetchRequest, partitions=(IN,)),
    asked(OffsetCommitRequest),
]
WORKER = [
    *READER,
    asked(ShareGroupHeartbeatRequest, topics=("IN",)),
    asked(ShareAcquireRequest),
    asked(ShareAcknowledgeRequest, acknowledgements=ACKNOWLEDGED),
    asked(DescribeShareGroupRequest),
]
COPIER = [*TRANSACTION, *MEMBER, asked(TxnOffsetCommitRequest)]


def written(transactional_id: str) -> list[Any]:
    """What planner and tasks of a distributed write ask."""
    kinds = (BeginRunRequest, EnlistRequest, RenewRunRequest, LeaveRunRequest)
    kinds += (AddPartitionsToTxnRequest, ProduceRequest, EndTxnRequest)
    requests = [asked(kind, transactional_id=transactional_id) for kind in kinds]
    seen = asked(DescribeTransactionsRequest, transactional_ids=(transactional_id,))
    return [asked(MetadataRequest, topics=("OUT",)), *requests, seen]


PROGRAMS = {
    "producer": PRODUCER,
    "producer with a transactional id": TRANSACTION,
    "consumer of a group": MEMBER,
    "consumer without a group": READER,
    "worker of a queue": WORKER,
    "transaction that commits positions": COPIER,
    "`cluster.process` of group G": [
        structs.replace(one, transactional_id="G-0")
        if getattr(one, "transactional_id", None)
        else one
        for one in COPIER
    ],
    "Spark, write": written("spark-app"),
    "Spark, read": [*READER, asked(OffsetCommitRequest)],
    "Ray Data, write": written("ray-data-app"),
    "Ray Data, read": [*READER, DescribeReplicaRequest(topic_partition=TopicPartition("IN", 0))],
    "creation of topics": [
        asked(CreateTopicRequest),
        asked(MetadataRequest, topics=("OUT",)),
        DescribeReplicaRequest(topic_partition=TopicPartition("OUT", 0)),
    ],
    "`oncelog status`": [
        asked(MetadataRequest),
        DescribeReplicaRequest(),
        asked(DescribeVoterRequest),
    ],
    "administration": [
        *map(asked, (AlterUsersRequest, DescribeAccessRequest, RotateClusterKeyRequest)),
        *map(asked, (AbortTransactionRequest, DrainBrokerRequest)),
        ShutdownRequest(),
    ],
}
"""What each program of the table in OPERATIONS asks for."""


def page_rows() -> dict[str, list[str]]:
    """By program the options of its row."""
    page = Path(__file__).parents[4] / "docs/OPERATIONS.md"
    section = page.read_text(encoding="utf-8").split("\n**What a program needs**")[1]
    rows = [line.strip("| ").split(" | ") for line in section.split("\n\n")[1].splitlines()[2:]]
    return {program: re.findall(r"`(--[^`]+)`", options) for program, _, options in rows}


def is_granted(requests: list[Any], given: list[Acl]) -> bool:
    """Whether all is allowed, and nothing is left out of it."""
    authorizer = Authorizer(Rules(is_on=True, acls=tuple(given)))
    for request in requests:
        found = authorizer.judge(request, Principal(ALICE), "10.0.0.1")
        if isinstance(found, ErrorCode) or found.request != request:
            return False
    return True


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_may_do_its_work_with_what_the_page_gives_it(cluster, program):
    given = [
        acl
        for options in page_rows()[program]
        for acl in added(cluster, "--allow", ALICE, *shlex.split(options))
    ]
    assert is_granted(PROGRAMS[program], given)
    for acl in given:
        # The roles add it, as in Kafka; to write is to see.
        if acl.operation is not Operation.DESCRIBE or acl.resource is Resource.CLUSTER:
            left = [one for one in given if one != acl]
            assert not is_granted(PROGRAMS[program], left), acl


def test_the_page_has_a_row_for_each_program_that_is_tried():
    assert page_rows().keys() == PROGRAMS.keys()
