"""ACLs of Kafka's clients, with a real controller."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka_admin
import pytest
from kafka_admin import AdminCluster, Story

from oncelog.actors.gateway.administration.acls import (
    ALLOW,
    ANY,
    DENY,
    LITERAL,
    MATCH,
    OPERATIONS,
    OTHER_OPERATIONS,
    OTHER_RESOURCES,
    PREFIXED,
    RESOURCES,
)
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
)
from oncelog.actors.gateway.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
)
from oncelog.actors.gateway.messages.describe_acls import (
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from oncelog.actors.protocol.cluster.access_control import CHANGES_MAX
from oncelog.actors.protocol.messages.access import (
    Acl,
    AlterAclsRequest,
    AlterAuthorizationRequest,
    DescribeAccessRequest,
    Operation,
    Resource,
    Rules,
)
from oncelog.storage.errors import ErrorCode

Play = Callable[[Story], None]

TOPIC_TYPE, GROUP_TYPE, CLUSTER_TYPE, ID_TYPE = RESOURCES
READ, WRITE, ALTER, DESCRIBE = 3, 4, 7, 8

FLIGHTS = Acl(
    principal="User:ann", resource=Resource.TOPIC, name="flights", operation=Operation.READ
)

UNKNOWN = 0
"""A value of Kafka's that its client does not know."""


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return lambda story: kafka_admin.play(tmp_path, story)


def creation(**fields: Any) -> AclCreation:
    given: dict[str, Any] = {
        "resource_type": TOPIC_TYPE,
        "resource_name": "flights",
        "principal": "User:ann",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    }
    return AclCreation(**{**given, **fields})


async def create(world: AdminCluster, *creations: AclCreation) -> list[AclCreationResult]:
    response = await world.ask(ApiKey.CREATE_ACLS, CreateAclsRequest(list(creations)))
    assert len(response.results) == len(creations)
    results: list[AclCreationResult] = response.results
    return results


EVERYTHING: dict[str, Any] = {
    "resource_type_filter": ANY,
    "resource_name_filter": None,
    "pattern_type_filter": ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": ANY,
    "permission_type": ANY,
}


async def describe(world: AdminCluster, **fields: Any) -> DescribeAclsResponse:
    request = DescribeAclsRequest(**{**EVERYTHING, **fields})
    response: DescribeAclsResponse = await world.ask(ApiKey.DESCRIBE_ACLS, request)
    return response


async def found(world: AdminCluster, **fields: Any) -> list[tuple[Any, ...]]:
    """Resource type, name, pattern type; principal, host, operation, permission type."""
    response = await describe(world, **fields)
    assert (response.error_code, response.error_message) == (0, None)
    return [
        (
            *(resource.resource_type, resource.resource_name, resource.pattern_type),
            *(one.principal, one.host, one.operation, one.permission_type),
        )
        for resource in response.resources
        for one in resource.acls
    ]


async def delete(world: AdminCluster, *filters: dict[str, Any]) -> list[DeleteAclsFilterResult]:
    made = [DeleteAclsFilter(**{**EVERYTHING, **one}) for one in filters]
    response = await world.ask(ApiKey.DELETE_ACLS, DeleteAclsRequest(made))
    assert len(response.filter_results) == len(filters)
    results: list[DeleteAclsFilterResult] = response.filter_results
    return results


async def rules(world: AdminCluster) -> Rules:
    return (await world.controller.describe_access(DescribeAccessRequest())).rules


async def have(world: AdminCluster, *acls: Acl) -> None:
    reply = await world.controller.alter_acls(AlterAclsRequest(added=acls))
    assert reply.error is ErrorCode.NONE, reply


def acl(name: str = "flights", **fields: Any) -> Acl:
    given: dict[str, Any] = {
        "principal": "User:ann",
        "resource": Resource.TOPIC,
        "operation": Operation.READ,
    }
    return Acl(name=name, **{**given, **fields})


# --- creating ---------------------------------------------------------------------------------


def test_acls_become_those_of_the_cluster(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        results = await create(
            world,
            creation(),
            creation(
                resource_type=ID_TYPE,
                resource_name="load",
                resource_pattern_type=PREFIXED,
                operation=WRITE,
            ),
            creation(resource_type=GROUP_TYPE, resource_name="*", principal="User:*"),
            creation(
                resource_type=CLUSTER_TYPE,
                resource_name="kafka-cluster",
                operation=ALTER,
                permission_type=DENY,
                host="::ffff:10.0.0.7",
            ),
        )
        assert [(one.error_code, one.error_message) for one in results] == [(0, None)] * 4
        assert set((await rules(world)).acls) == {
            acl(),
            acl(
                "load",
                resource=Resource.TRANSACTIONAL_ID,
                is_prefix=True,
                operation=Operation.WRITE,
            ),
            acl("*", resource=Resource.GROUP, principal="User:*"),
            acl(
                "oncelog",
                resource=Resource.CLUSTER,
                operation=Operation.ALTER,
                is_allowed=False,
                host="10.0.0.7",
            ),
        }
        assert len(world.requests("alter_acls")) == 1

    play(story)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        *(({"resource_type": number}, name) for number, name in OTHER_RESOURCES.items()),
        *(({"operation": number}, name) for number, name in OTHER_OPERATIONS.items()),
        ({"resource_type": 99}, "resource type 99"),
        ({"resource_type": UNKNOWN}, "resource type 0"),
        ({"operation": ANY}, "operation 1"),
        ({"operation": 10}, "Create, Delete, Alter, Describe; Describe includes it"),
        ({"operation": 9}, "operation ClusterAction on a Topic"),
        ({"resource_pattern_type": MATCH}, "pattern type 2"),
        ({"permission_type": ANY}, "permission type 1"),
        ({"principal": "Group:staff"}, "principal 'Group:staff'"),
        ({"principal": "User:a\u0007"}, "principal"),
        ({"host": "somewhere"}, "host 'somewhere'"),
        ({"resource_name": ""}, "a name of 0 characters"),
        ({"resource_name": "*", "resource_pattern_type": PREFIXED}, "prefix '*'"),
        ({"resource_type": 4, "operation": ALTER, "resource_name": "oncelog"}, "kafka-cluster"),
    ],
)
def test_what_the_cluster_lacks_is_refused_by_name_and_the_rest_is_added(
    play: Play, fields: dict[str, Any], told: str
) -> None:
    async def story(world: AdminCluster) -> None:
        wrong, right = await create(world, creation(**fields), creation())
        assert wrong.error_code == ErrorCode.INVALID_REQUEST
        assert told in (wrong.error_message or "")
        assert right.error_code == 0
        assert (await rules(world)).acls == (FLIGHTS,)

    play(story)


def test_more_than_one_request_may_have_are_added_in_portions(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        names = [f"topic{number}" for number in range(CHANGES_MAX + 5)]
        results = await create(world, *(creation(resource_name=name) for name in names))
        assert {one.error_code for one in results} == {0}
        assert len((await rules(world)).acls) == len(names)
        (result,) = await delete(world, {})
        assert {one.resource_name for one in result.matching_acls} == set(names)
        assert (await rules(world)).acls == ()

    play(story)


def test_a_principal_is_found_however_its_name_is_written(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        roman = "User:\u2168"
        (result,) = await create(world, creation(principal=roman))
        assert result.error_code == 0
        assert (await rules(world)).acls == (acl(principal="User:IX"),)
        assert len(await found(world, principal_filter=roman)) == 1

    play(story)


def test_who_may_not_alter_the_cluster_adds_nothing(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        world.allow(acl("oncelog", resource=Resource.CLUSTER, operation=Operation.DESCRIBE))
        forbidden = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert (await create(world, creation()))[0].error_code == forbidden
        assert (await describe(world)).error_code == 0
        await have(world, FLIGHTS)
        (result,) = await delete(world, {})
        assert [one.error_code for one in result.matching_acls] == [forbidden]
        assert (await rules(world)).acls == (FLIGHTS,)
        world.allow()
        assert (await describe(world)).error_code == forbidden
        assert (await delete(world, {}))[0].error_code == forbidden

    play(story)


# --- filters ----------------------------------------------------------------------------------


def test_every_operation_and_kind_is_told_in_kafkas_numbers(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await have(
            world,
            acl(),
            acl(operation=Operation.ALL, is_allowed=False, host="10.0.0.7"),
            acl(
                "load",
                resource=Resource.TRANSACTIONAL_ID,
                is_prefix=True,
                operation=Operation.WRITE,
            ),
            acl("oncelog", resource=Resource.CLUSTER, operation=Operation.DESCRIBE),
        )
        assert await found(world) == [
            (TOPIC_TYPE, "flights", LITERAL, "User:ann", "*", READ, ALLOW),
            (TOPIC_TYPE, "flights", LITERAL, "User:ann", "10.0.0.7", 2, DENY),
            (CLUSTER_TYPE, "kafka-cluster", LITERAL, "User:ann", "*", DESCRIBE, ALLOW),
            (ID_TYPE, "load", PREFIXED, "User:ann", "*", WRITE, ALLOW),
        ]
        assert len((await describe(world)).resources) == 3

    play(story)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, {"flights", "fl", "fli", "*", "billing"}),
        ({"resource_name_filter": "flights"}, {"flights"}),
        ({"resource_name_filter": "fl"}, {"fl"}),
        ({"pattern_type_filter": PREFIXED}, {"fl", "fli"}),
        ({"pattern_type_filter": LITERAL}, {"flights", "*", "billing"}),
        ({"pattern_type_filter": LITERAL, "resource_name_filter": "fl"}, set()),
        (
            {"pattern_type_filter": MATCH, "resource_name_filter": "flights"},
            {"flights", "fl", "fli", "*"},
        ),
        ({"pattern_type_filter": MATCH, "resource_name_filter": "fl"}, {"fl", "*"}),
        ({"pattern_type_filter": MATCH}, {"flights", "fl", "fli", "*", "billing"}),
        ({"resource_type_filter": GROUP_TYPE}, {"billing"}),
        ({"resource_type_filter": 6}, set()),
        ({"principal_filter": "User:bob"}, {"*"}),
        ({"host_filter": "10.0.0.7"}, {"fli"}),
        ({"host_filter": "::ffff:10.0.0.7"}, {"fli"}),
        ({"operation": WRITE}, {"fl"}),
        ({"operation": 12}, set()),
        ({"permission_type": DENY}, {"billing"}),
    ],
)
def test_a_filter_finds_what_it_finds_in_kafka(
    play: Play, fields: dict[str, Any], names: set[str]
) -> None:
    async def story(world: AdminCluster) -> None:
        await have(
            world,
            acl(),
            acl("fl", is_prefix=True, operation=Operation.WRITE),
            acl("fli", is_prefix=True, host="10.0.0.7"),
            acl("*", principal="User:bob"),
            acl("billing", resource=Resource.GROUP, is_allowed=False),
        )
        assert {row[1] for row in await found(world, **fields)} == names

    play(story)


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_type_filter": UNKNOWN},
        {"resource_type_filter": 99},
        {"pattern_type_filter": UNKNOWN},
        {"operation": 16},
        {"permission_type": 4},
    ],
)
def test_a_filter_that_no_client_means_is_refused(play: Play, fields: dict[str, int]) -> None:
    async def story(world: AdminCluster) -> None:
        await have(world, FLIGHTS)
        response = await describe(world, **fields)
        (number,) = fields.values()
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert str(number) in (response.error_message or "")
        wrong, right = await delete(world, fields, {"resource_name_filter": "none"})
        assert wrong.error_code == ErrorCode.INVALID_REQUEST
        assert (right.error_code, right.matching_acls) == (0, [])
        assert (await rules(world)).acls == (FLIGHTS,)

    play(story)


# --- deleting ---------------------------------------------------------------------------------


def test_what_fits_a_filter_is_removed_and_told_for_each_filter(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        await have(world, acl(), acl(operation=Operation.WRITE), acl("delays"))
        results = await delete(
            world,
            {"resource_name_filter": "flights"},
            {"operation": WRITE},
            {"resource_name_filter": "none"},
        )
        told = [
            [(one.resource_name, one.operation, one.error_code) for one in result.matching_acls]
            for result in results
        ]
        assert told == [[("flights", READ, 0), ("flights", WRITE, 0)], [("flights", WRITE, 0)], []]
        assert (await rules(world)).acls == (acl("delays"),)

    play(story)


def test_the_last_right_to_change_rights_is_not_removed(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        last = acl(
            "oncelog",
            resource=Resource.CLUSTER,
            principal="User:ray",
            operation=Operation.ALTER,
        )
        await have(world, last, FLIGHTS)
        switched = AlterAuthorizationRequest(is_on=True, super_users=("User:nobody",))
        assert (await world.controller.alter_authorization(switched)).error is ErrorCode.NONE
        (result,) = await delete(world, {})
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert "super user" in (result.error_message or "")
        assert set((await rules(world)).acls) == {last, FLIGHTS}
        (result,) = await delete(world, {"resource_type_filter": TOPIC_TYPE})
        assert (result.error_code, len(result.matching_acls)) == (0, 1)
        assert (await rules(world)).acls == (last,)

    play(story)


def test_an_absent_controller_is_the_error_of_each_filter_and_acl(play: Play) -> None:
    async def story(world: AdminCluster) -> None:
        for method in ("describe_access", "alter_acls"):
            world.failing[method] = [ErrorCode.NETWORK_EXCEPTION] * 1_000
        away = ErrorCode.NOT_CONTROLLER
        assert (await describe(world)).error_code == away
        assert (await create(world, creation()))[0].error_code == away
        assert [one.error_code for one in await delete(world, {}, {})] == [away, away]

    play(story)


def test_numbers_are_those_of_kafka() -> None:
    assert {number: one.value for number, one in RESOURCES.items()} == {
        2: "Topic",
        3: "Group",
        4: "Cluster",
        5: "TransactionalId",
    }
    assert set(OPERATIONS.values()) == set(Operation)
    assert sorted({*OPERATIONS, *OTHER_OPERATIONS}) == list(range(2, 16))
