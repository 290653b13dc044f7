"""ACLs of Kafka's clients, onto those of the cluster.

Kafka numbers kinds of resources, kinds of names, operations and permissions. What the cluster lacks
(delegation tokens, users as resources, operations of their own for settings) cannot be created, and
the refusal names it; in a filter it fits no ACL. Kafka's name of the one cluster is
``kafka-cluster``, ours ``oncelog``.

ACLs that are created together are added all at once, but for those that are impossible. None is
removed if nobody would be left who could change users and ACLs.

Source: KIP-11, KIP-140, KIP-290.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from oncelog.actors.gateway.administration.brokers import (
    Handler,
    ask_controller,
    deadline_of,
    of_controller,
    text_of,
    throttle_of,
)
from oncelog.actors.gateway.calls import Call
from oncelog.actors.gateway.messages.apis import ApiKey
from oncelog.actors.gateway.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from oncelog.actors.gateway.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from oncelog.actors.gateway.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from oncelog.actors.protocol.access import Authorizer, Principal
from oncelog.actors.protocol.cluster.access_control import (
    CHANGES_MAX,
    as_address,
    why_impossible,
)
from oncelog.actors.protocol.messages.access import (
    ANY_HOST,
    ANY_NAME,
    CLUSTER_NAME,
    RAY_NAME,
    USER_KIND,
    Acl,
    AlterAclsReply,
    AlterAclsRequest,
    DescribeAccessReply,
    DescribeAccessRequest,
    Operation,
    Resource,
)
from oncelog.actors.protocol.scram import prepare_name
from oncelog.storage.errors import ErrorCode

KAFKAS_CLUSTER: Final = "kafka-cluster"
"""Kafka's name of the one resource of kind ``CLUSTER``."""

ANY: Final = 1
"""In each of Kafka's numberings: any of the others."""

RESOURCES: Final[Mapping[int, Resource]] = {
    2: Resource.TOPIC,
    3: Resource.GROUP,
    4: Resource.CLUSTER,
    5: Resource.TRANSACTIONAL_ID,
}
OTHER_RESOURCES: Final[Mapping[int, str]] = {6: "DelegationToken", 7: "User"}
"""Kinds of resources that only Kafka has."""

MATCH: Final = 2
LITERAL: Final = 3
PREFIXED: Final = 4
"""Of a filter's name: that of a resource which ACLs are about; that in an ACL; a prefix in one."""

OPERATIONS: Final[Mapping[int, Operation]] = {
    2: Operation.ALL,
    3: Operation.READ,
    4: Operation.WRITE,
    5: Operation.CREATE,
    6: Operation.DELETE,
    7: Operation.ALTER,
    8: Operation.DESCRIBE,
    9: Operation.CLUSTER_ACTION,
}
OTHER_OPERATIONS: Final[Mapping[int, str]] = {
    10: "DescribeConfigs",
    11: "AlterConfigs",
    12: "IdempotentWrite",
    13: "CreateTokens",
    14: "DescribeTokens",
    15: "TwoPhaseCommit",
}
"""Operations that only Kafka has: see ``_INSTEAD``."""

_INSTEAD: Final[Mapping[int, str]] = {
    10: "Describe includes it",
    11: "Alter includes it",
    12: "who may write to any topic needs no other right",
}

DENY: Final = 2
ALLOW: Final = 3

_RESOURCE_NUMBERS: Final = {resource: number for number, resource in RESOURCES.items()}
_OPERATION_NUMBERS: Final = {operation: number for number, operation in OPERATIONS.items()}


class _Row(NamedTuple):
    """An ACL as Kafka writes it."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


def as_kafkas(acl: Acl) -> _Row:
    """An ACL of ours in Kafka's numbers."""
    is_cluster = acl.resource is Resource.CLUSTER and acl.name == CLUSTER_NAME
    return _Row(
        resource_type=_RESOURCE_NUMBERS[acl.resource],
        resource_name=KAFKAS_CLUSTER if is_cluster else acl.name,
        pattern_type=PREFIXED if acl.is_prefix else LITERAL,
        principal=acl.principal,
        host=acl.host,
        operation=_OPERATION_NUMBERS[acl.operation],
        permission_type=ALLOW if acl.is_allowed else DENY,
    )


# --- creating ---------------------------------------------------------------------------------


async def create_acls(call: Call, request: CreateAclsRequest) -> CreateAclsResponse:
    """Add ACLs, durably; those that exist already change nothing."""
    deadline_ms = deadline_of(0)
    made = [_made(creation) for creation in request.creations]
    added = tuple(dict.fromkeys(one for one in made if isinstance(one, Acl)))
    replies: dict[Acl, AlterAclsReply] = {}
    for some in _portions(added):
        asked = AlterAclsRequest(added=some)
        reply = await ask_controller(call, asked, deadline_ms=deadline_ms)
        replies |= dict.fromkeys(some, reply)
    return CreateAclsResponse(
        throttle_time_ms=throttle_of(*replies.values()),
        results=[
            AclCreationResult(error_code=int(ErrorCode.INVALID_REQUEST), error_message=one)
            if isinstance(one, str)
            else AclCreationResult(
                error_code=of_controller(replies[one].error), error_message=text_of(replies[one])
            )
            for one in made
        ],
    )


def _portions(acls: Sequence[Acl]) -> Iterable[tuple[Acl, ...]]:
    """So many as one request may have."""
    for first in range(0, len(acls), CHANGES_MAX):
        yield tuple(acls[first : first + CHANGES_MAX])


def _made(given: AclCreation) -> Acl | str:
    """The ACL that is meant, or why there can be none."""
    resource = RESOURCES.get(given.resource_type)
    operation = OPERATIONS.get(given.operation)
    if resource is None:
        name = OTHER_RESOURCES.get(given.resource_type, "")
        return _lacked("resource type", given.resource_type, name, RESOURCES.values())
    if operation is None:
        name = OTHER_OPERATIONS.get(given.operation, "")
        instead = _INSTEAD.get(given.operation, "")
        known = (one for one in OPERATIONS.values() if one is not Operation.CLUSTER_ACTION)
        wrong = _lacked("operation", given.operation, name, known)
        return f"{wrong}; {instead}" if instead else wrong
    if given.resource_pattern_type not in (LITERAL, PREFIXED):
        return (
            f"pattern type {given.resource_pattern_type}: give {LITERAL}, literal, or "
            f"{PREFIXED}, prefixed"
        )
    if given.permission_type not in (DENY, ALLOW):
        return f"permission type {given.permission_type}: give {DENY}, deny, or {ALLOW}, allow"
    name = given.resource_name
    if resource is Resource.CLUSTER and name != KAFKAS_CLUSTER:
        return f"cluster {name!r}: the only one is {KAFKAS_CLUSTER!r}"
    acl = Acl(
        principal=_as_principal(given.principal),
        resource=resource,
        name=CLUSTER_NAME if resource is Resource.CLUSTER else name,
        operation=operation,
        is_prefix=given.resource_pattern_type == PREFIXED,
        is_allowed=given.permission_type == ALLOW,
        host=_as_host(given.host),
    )
    return why_impossible(acl) or acl


def _lacked(what: str, number: int, name: str, known: Iterable[Resource | Operation]) -> str:
    shown = f"{number} ({name})" if name else str(number)
    return f"{what} {shown}: there are {', '.join(one.value for one in known)}"


def _as_principal(principal: str) -> str:
    """A principal in the form of the rules, if it has one."""
    try:
        return (
            USER_KIND + prepare_name(principal.removeprefix(USER_KIND))
            if (principal.startswith(USER_KIND))
            else principal
        )
    except ValueError:
        return principal


def _as_host(host: str) -> str:
    """An address in the form of the rules, if it is one."""
    return host if host == ANY_HOST else as_address(host) or host


# --- filters ----------------------------------------------------------------------------------


class _Filter(NamedTuple):
    """Which ACLs are meant; ``None`` or ``ANY`` is any."""

    resource_type: int
    name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    def problem(self) -> str:
        """What in it no client of Kafka means; "" if it is sound."""
        for what, number, known in (
            ("resource type", self.resource_type, {ANY, *RESOURCES, *OTHER_RESOURCES}),
            ("pattern type", self.pattern_type, {ANY, MATCH, LITERAL, PREFIXED}),
            ("operation", self.operation, {ANY, *OPERATIONS, *OTHER_OPERATIONS}),
            ("permission type", self.permission_type, {ANY, DENY, ALLOW}),
        ):
            if number not in known:
                return f"{what} {number}: give one of {', '.join(map(str, sorted(known)))}"
        return ""

    def fits(self, row: _Row) -> bool:
        """Whether an ACL is one of them."""
        return (
            self.resource_type in (ANY, row.resource_type)
            and self.principal in (None, row.principal)
            and self.host in (None, row.host)
            and self.operation in (ANY, row.operation)
            and self.permission_type in (ANY, row.permission_type)
            and self._fits_name(row)
        )

    def _fits_name(self, row: _Row) -> bool:
        if self.pattern_type not in (ANY, MATCH, row.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type != MATCH:
            return self.name == row.resource_name
        if row.pattern_type == PREFIXED:
            return self.name.startswith(row.resource_name)
        return row.resource_name in (self.name, ANY_NAME)


def _filter_of(given: DescribeAclsRequest | DeleteAclsFilter) -> _Filter:
    principal, host = given.principal_filter, given.host_filter
    return _Filter(
        resource_type=given.resource_type_filter,
        name=given.resource_name_filter,
        pattern_type=given.pattern_type_filter,
        principal=None if principal is None else _as_principal(principal),
        host=None if host is None else _as_host(host),
        operation=given.operation,
        permission_type=given.permission_type,
    )


async def describe_acls(call: Call, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """The ACLs that fit a filter, by the resources that they name."""
    wanted = _filter_of(request)
    if problem := wanted.problem():
        code = int(ErrorCode.INVALID_REQUEST)
        return DescribeAclsResponse(error_code=code, error_message=problem)
    known = await ask_controller(call, DescribeAccessRequest(), deadline_ms=deadline_of(0))
    if known.error is not ErrorCode.NONE:
        return DescribeAclsResponse(
            throttle_time_ms=throttle_of(known),
            error_code=of_controller(known.error),
            error_message=text_of(known),
        )
    by_resource: dict[tuple[int, str, int], list[AclDescription]] = {}
    for row in filter(wanted.fits, sorted(map(as_kafkas, known.rules.acls))):
        described = AclDescription(
            principal=row.principal,
            host=row.host,
            operation=row.operation,
            permission_type=row.permission_type,
        )
        by_resource.setdefault(row[:3], []).append(described)
    return DescribeAclsResponse(
        throttle_time_ms=throttle_of(known),
        error_message=None,
        resources=[
            DescribeAclsResource(
                resource_type=kind, resource_name=name, pattern_type=pattern, acls=acls
            )
            for (kind, name, pattern), acls in by_resource.items()
        ],
    )


# --- deleting ---------------------------------------------------------------------------------


async def delete_acls(call: Call, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Remove the ACLs that fit filters, durably, and tell which; one may fit several."""
    deadline_ms = deadline_of(0)
    filters = [_filter_of(one) for one in request.filters]
    known = await ask_controller(call, DescribeAccessRequest(), deadline_ms=deadline_ms)
    rows = {acl: as_kafkas(acl) for acl in known.rules.acls}
    found = [[acl for acl, row in rows.items() if one.fits(row)] for one in filters]
    removed = dict.fromkeys(acl for acls in found for acl in acls)
    outcome = (of_controller(known.error), text_of(known))
    throttle_ms = throttle_of(known)
    outcomes: dict[Acl, tuple[int, str | None]] = {}
    if removed and _locks_out(known, removed):
        text = "nobody could change users and ACLs again: name a super user first"
        outcome = int(ErrorCode.INVALID_REQUEST), text
    elif removed:
        for some in _portions(list(removed)):
            asked = AlterAclsRequest(removed=some)
            reply = await ask_controller(call, asked, deadline_ms=deadline_ms)
            throttle_ms = max(throttle_ms, throttle_of(reply))
            outcomes |= dict.fromkeys(some, (of_controller(reply.error), text_of(reply)))
    return DeleteAclsResponse(
        throttle_time_ms=throttle_ms,
        filter_results=[
            _filtered(one, outcome, [(rows[acl], outcomes.get(acl, outcome)) for acl in acls])
            for one, acls in zip(filters, found, strict=True)
        ],
    )


def _filtered(
    wanted: _Filter,
    outcome: tuple[int, str | None],
    found: Sequence[tuple[_Row, tuple[int, str | None]]],
) -> DeleteAclsFilterResult:
    """The result of one filter; ``outcome`` is that of the whole request, if it was refused."""
    error, text = outcome
    if problem := wanted.problem():
        error, text = int(ErrorCode.INVALID_REQUEST), problem
    if error:
        return DeleteAclsFilterResult(error_code=error, error_message=text)
    return DeleteAclsFilterResult(
        error_message=None,
        matching_acls=[
            DeleteAclsMatchingAcl(error_code=code, error_message=why, **row._asdict())
            for row, (code, why) in sorted(found)
        ],
    )


def _locks_out(known: DescribeAccessReply, removed: Iterable[Acl]) -> bool:
    """Whether without these nobody who exists could change users and ACLs."""
    gone = set(removed)
    left = tuple(acl for acl in known.rules.acls if acl not in gone)
    authorizer = Authorizer(structs.replace(known.rules, acls=left))
    names = (RAY_NAME, *(USER_KIND + user.name for user in known.users))
    return not any(
        authorizer.may(Principal(name), Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME, ANY_HOST)
        for name in names
    )


HANDLERS: Final[Mapping[ApiKey, Handler]] = {
    ApiKey.DESCRIBE_ACLS: describe_acls,
    ApiKey.CREATE_ACLS: create_acls,
    ApiKey.DELETE_ACLS: delete_acls,
}
