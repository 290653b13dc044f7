"""Users, ACLs, limits and super users: their part of the controller's machine.

Rules. Every change raises the version by one, so a copy knows what is newer. A change that changes
nothing logs nothing. Switched on without a super user nobody could ever change anything again, so
that is refused. No user has a name that principals have who are none: that of everybody, and that
of programs of the Ray cluster that do not say who they are.

| request | state | answer |
|---|---|---|
| alter_users | a name is put and removed, or twice, not prepared, or reserved | INVALID_REQUEST |
| alter_users | put, no repeat: is known or unknown, against ``are_known`` | INVALID_REQUEST |
| alter_users | too many users | POLICY_VIOLATION |
| alter_users | nothing changes | NONE, nothing logged |
| alter_users | too many in the request | INVALID_REQUEST |
| alter_acls | a name, principal or operation is impossible | INVALID_REQUEST |
| alter_acls | too many in the request | INVALID_REQUEST |
| alter_acls | too many ACLs | POLICY_VIOLATION |
| alter_acls | nothing changes | NONE, nothing logged |
| alter_limits | a name is no principal, or is named twice, or too many are | INVALID_REQUEST |
| alter_limits | too many principals have limits | POLICY_VIOLATION |
| alter_limits | nothing changes | NONE, nothing logged |
| alter_authorization | a super user is no principal, or there are too many | INVALID_REQUEST |
| alter_authorization | on, and no super user | INVALID_REQUEST |
| alter_authorization | nothing changes | NONE, nothing logged |

Source: KIP-11, KIP-290, KIP-554.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import structs

from oncelog.actors.protocol.cluster.cluster_records import AccessChanged, decision
from oncelog.actors.protocol.effects import Decision, refused
from oncelog.actors.protocol.invariants import invariant
from oncelog.actors.protocol.messages.access import (
    ANY_HOST,
    ANY_NAME,
    ANYBODY,
    CLUSTER_NAME,
    RAY_NAME,
    USER_KIND,
    Access,
    Acl,
    AlterAclsReply,
    AlterAclsRequest,
    AlterAuthorizationReply,
    AlterAuthorizationRequest,
    AlterLimitsReply,
    AlterLimitsRequest,
    AlterUsersReply,
    AlterUsersRequest,
    DescribeAccessReply,
    Limits,
    Operation,
    Resource,
    Rules,
    User,
    UserDescription,
)
from oncelog.actors.protocol.scram import NAME_CHARS_MAX, Credential, prepare_name
from oncelog.storage.errors import ErrorCode

USERS_MAX: Final = 10_000
ACLS_MAX: Final = 10_000
SUPER_USERS_MAX: Final = 100
LIMITED_MAX: Final = 1_000
"""Principals with limits of their own."""

CHANGES_MAX: Final = 1_000
"""Users or ACLs in one request."""

RESERVED_NAMES: Final = frozenset(one.removeprefix(USER_KIND) for one in (ANYBODY, RAY_NAME))
"""No user can have them: as principals they are others."""

SNAPSHOT_ROWS: Final = 500
"""Users or ACLs in one record of a snapshot."""

RESOURCE_CHARS_MAX: Final = 1_024

OPERATIONS: Final = {
    Resource.TOPIC: frozenset(
        {
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.ALL,
        }
    ),
    Resource.GROUP: frozenset(
        {Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.ALL}
    ),
    Resource.TRANSACTIONAL_ID: frozenset({Operation.WRITE, Operation.DESCRIBE, Operation.ALL}),
    Resource.CLUSTER: frozenset({Operation.ALTER, Operation.DESCRIBE, Operation.ALL}),
}
"""What an ACL may be about; ``CLUSTER_ACTION`` is of servers only."""


@dataclass(slots=True)
class AccessControl:
    """Users and rules, changed only by ``apply``."""

    version: int = 0
    is_on: bool = False
    super_users: frozenset[str] = frozenset({RAY_NAME})
    _users: dict[str, Credential] = field(default_factory=dict)
    _acls: dict[Acl, None] = field(default_factory=dict)
    _limits: dict[str, Limits] = field(default_factory=dict)

    # --- read -----------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Rows of a snapshot."""
        return len(self._users) + len(self._acls) + len(self._limits)

    def access(self) -> Access:
        """All that processes need to know."""
        users = (User(name=name, credential=one) for name, one in self._users.items())
        return Access(rules=self._rules(), users=tuple(users))

    def described(self) -> DescribeAccessReply:
        """What an operator may see."""
        users = (
            UserDescription(name=name, iterations=self._users[name].iterations)
            for name in sorted(self._users)
        )
        return DescribeAccessReply(rules=self._rules(), users=tuple(users))

    def _rules(self) -> Rules:
        return Rules(
            version=self.version,
            is_on=self.is_on,
            super_users=self.super_users,
            acls=tuple(self._acls),
            limits=tuple(self._limits.items()),
        )

    # --- decide ---------------------------------------------------------------------------

    def decide_users(self, request: AlterUsersRequest) -> Decision[AlterUsersReply]:
        """Add, change and remove users."""
        put = {user.name: user.credential for user in request.put}
        changed = {name: one for name, one in put.items() if self._users.get(name) != one}
        wrong = self._why_not_altered(request, changed)
        if wrong:
            return refused(request, ErrorCode.INVALID_REQUEST, wrong)
        removed = tuple(name for name in request.removed if name in self._users)
        if len({*self._users, *changed}) - len(removed) > USERS_MAX:
            detail = f"a cluster has at most {USERS_MAX} users"
            return refused(request, ErrorCode.POLICY_VIOLATION, detail)
        if not changed and not removed:
            return Decision(reply=AlterUsersReply())
        record = AccessChanged(
            access_version=self.version + 1,
            users=tuple(_user_row(*one) for one in changed.items()),
            removed_users=removed,
        )
        return decision(AlterUsersReply(), record)

    def _why_not_altered(self, request: AlterUsersRequest, changed: Iterable[str]) -> str:
        """Why this cannot be done; "" if it can. ``changed``: those put, without repeats."""
        named = [*(user.name for user in request.put), *request.removed]
        if len(named) > CHANGES_MAX:
            return f"{len(named)} users: at most {CHANGES_MAX} in one request"
        for name, count in Counter(named).items():
            if not is_user_name(name):
                return f"the user name {name!r} is impossible"
            if count > 1:
                return f"the user {name!r} is named twice"
        for name in changed:
            if request.are_known is False and name in self._users:
                return f"there is a user {name!r} already"
            if request.are_known and name not in self._users:
                return f"there is no user {name!r}"
        return ""

    def decide_acls(self, request: AlterAclsRequest) -> Decision[AlterAclsReply]:
        """Add and remove ACLs."""
        if len(request.added) + len(request.removed) > CHANGES_MAX:
            detail = f"at most {CHANGES_MAX} ACLs in one request"
            return refused(request, ErrorCode.INVALID_REQUEST, detail)
        wrong = next(filter(None, map(why_impossible, request.added)), "")
        if wrong:
            return refused(request, ErrorCode.INVALID_REQUEST, wrong)
        removed = [acl for acl in dict.fromkeys(request.removed) if acl in self._acls]
        added = [
            acl
            for acl in dict.fromkeys(request.added)
            if acl not in self._acls and acl not in request.removed
        ]
        if len(self._acls) + len(added) - len(removed) > ACLS_MAX:
            detail = f"a cluster has at most {ACLS_MAX} ACLs"
            return refused(request, ErrorCode.POLICY_VIOLATION, detail)
        if not added and not removed:
            return Decision(reply=AlterAclsReply())
        record = AccessChanged(
            access_version=self.version + 1,
            acls=tuple(map(_acl_row, added)),
            removed_acls=tuple(map(_acl_row, removed)),
        )
        return decision(AlterAclsReply(), record)

    def decide_limits(self, request: AlterLimitsRequest) -> Decision[AlterLimitsReply]:
        """Give and take limits."""
        put = dict(request.put)
        named = [*(name for name, _ in request.put), *request.removed]
        wrong = next((name for name in named if not is_principal(name)), None)
        problem = ""
        if wrong is not None:
            problem = f"principal {wrong!r}: give {USER_KIND}NAME, or {ANYBODY} for all others"
        elif len({*named}) < len(named):
            problem = "a principal is named twice"
        elif len(named) > CHANGES_MAX:
            problem = f"{len(named)} principals: at most {CHANGES_MAX} in one request"
        if problem:
            return refused(request, ErrorCode.INVALID_REQUEST, problem)
        changed = {name: one for name, one in put.items() if self._limits.get(name) != one}
        removed = tuple(name for name in request.removed if name in self._limits)
        if len({*self._limits, *changed}) - len(removed) > LIMITED_MAX:
            detail = f"at most {LIMITED_MAX} principals have limits"
            return refused(request, ErrorCode.POLICY_VIOLATION, detail)
        if not changed and not removed:
            return Decision(reply=AlterLimitsReply())
        record = AccessChanged(
            access_version=self.version + 1,
            limits=tuple((name, *structs.astuple(one)) for name, one in changed.items()),
            removed_limits=removed,
        )
        return decision(AlterLimitsReply(), record)

    def decide_authorization(
        self, request: AlterAuthorizationRequest
    ) -> Decision[AlterAuthorizationReply]:
        """Switch the rules on or off, and name the super users."""
        given = request.super_users
        super_users = self.super_users if given is None else frozenset(given)
        wrong = next((one for one in sorted(super_users) if not is_principal(one)), None)
        problem = ""
        if wrong is not None:
            problem = f"super user {wrong!r}: a principal is {USER_KIND}NAME"
        elif len(super_users) > SUPER_USERS_MAX:
            problem = f"{len(super_users)} super users: at most {SUPER_USERS_MAX}"
        elif request.is_on and not super_users:
            problem = "without a super user nobody could change anything again: name one"
        if problem:
            return refused(request, ErrorCode.INVALID_REQUEST, problem)
        if (request.is_on, super_users) == (self.is_on, self.super_users):
            return Decision(reply=AlterAuthorizationReply())
        record = AccessChanged(
            access_version=self.version + 1,
            is_on=request.is_on,
            super_users=tuple(sorted(super_users)),
        )
        return decision(AlterAuthorizationReply(), record)

    # --- apply ----------------------------------------------------------------------------

    def apply(self, record: AccessChanged) -> None:
        """Apply a committed record; those of a snapshot have one version."""
        invariant(
            record.access_version >= self.version,
            "I-24",
            f"users and ACLs of version {record.access_version} after {self.version}",
        )
        self.version = record.access_version
        if record.is_on is not None:
            self.is_on = record.is_on
            self.super_users = frozenset(record.super_users)
        for name in record.removed_users:
            self._users.pop(name, None)
        for name, salt, iterations, stored_key, server_key in record.users:
            self._users[name] = Credential(
                salt=salt, iterations=iterations, stored_key=stored_key, server_key=server_key
            )
        for row in record.removed_acls:
            self._acls.pop(_acl_of(row), None)
        self._acls |= dict.fromkeys(map(_acl_of, record.acls))
        for name in record.removed_limits:
            self._limits.pop(name, None)
        for name, *values in record.limits:
            fields = zip(Limits.__struct_fields__, values, strict=False)
            self._limits[name] = Limits(**dict(fields))

    def snapshot(self) -> Iterator[AccessChanged]:
        """Records that give this state; none if nobody was ever named."""
        if self.version == 0:
            return
        version = self.version
        yield AccessChanged(
            access_version=version,
            is_on=self.is_on,
            super_users=tuple(sorted(self.super_users)),
        )
        users = [_user_row(*one) for one in self._users.items()]
        for begin in range(0, len(users), SNAPSHOT_ROWS):
            yield AccessChanged(
                access_version=version, users=tuple(users[begin : begin + SNAPSHOT_ROWS])
            )
        limits = [(name, *structs.astuple(one)) for name, one in self._limits.items()]
        for begin in range(0, len(limits), SNAPSHOT_ROWS):
            yield AccessChanged(
                access_version=version, limits=tuple(limits[begin : begin + SNAPSHOT_ROWS])
            )
        acls = [_acl_row(acl) for acl in self._acls]
        for begin in range(0, len(acls), SNAPSHOT_ROWS):
            yield AccessChanged(
                access_version=version, acls=tuple(acls[begin : begin + SNAPSHOT_ROWS])
            )


# --- what is possible -------------------------------------------------------------------------


def is_user_name(name: str) -> bool:
    """Whether a user can have this name."""
    return _is_name(name) and name not in RESERVED_NAMES


def is_principal(principal: str) -> bool:
    """Whether it is ``User:`` and a possible name."""
    return principal.startswith(USER_KIND) and _is_name(principal.removeprefix(USER_KIND))


def why_impossible(acl: Acl) -> str:
    """Why there can be no such ACL; "" if there can."""
    if not is_principal(acl.principal):
        return f"principal {acl.principal!r}: give {USER_KIND}NAME, or {USER_KIND}* for anybody"
    if acl.operation not in OPERATIONS[acl.resource]:
        known = ", ".join(sorted(one.value for one in OPERATIONS[acl.resource]))
        return f"operation {acl.operation.value} on a {acl.resource.value}: there are {known}"
    if acl.resource is Resource.CLUSTER and (acl.name not in {CLUSTER_NAME, ANY_NAME}):
        return f"cluster {acl.name!r}: the only one is {CLUSTER_NAME!r}"
    if not 1 <= len(acl.name) <= RESOURCE_CHARS_MAX:
        return f"a name of {len(acl.name)} characters: give 1 to {RESOURCE_CHARS_MAX}"
    if acl.is_prefix and (acl.name == ANY_NAME or acl.resource is Resource.CLUSTER):
        return f"the prefix {acl.name!r} is of nothing: leave out that it is one"
    if acl.host not in {ANY_HOST, as_address(acl.host)}:
        return f"host {acl.host!r}: give an address, or {ANY_HOST} for any"
    return ""


def as_address(host: str) -> str | None:
    """An address as that of a caller is written; ``None`` if it is none.

    Written in another way it would be no caller's, and what is denied there would be allowed.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _is_name(name: str) -> bool:
    """Whether a user can have this name, in the form under which it is found."""
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        return False
    try:
        return prepare_name(name) == name
    except ValueError:
        return False


# --- rows of records --------------------------------------------------------------------------


def _user_row(name: str, credential: Credential) -> tuple[str, bytes, int, bytes, bytes]:
    return (name, *structs.astuple(credential))


def _acl_row(acl: Acl) -> tuple[Any, ...]:
    return (
        acl.principal,
        acl.resource.value,
        acl.name,
        acl.is_prefix,
        acl.operation.value,
        acl.is_allowed,
        acl.host,
    )


def _acl_of(row: tuple[Any, ...]) -> Acl:
    principal, resource, name, is_prefix, operation, is_allowed, host = row
    return Acl(
        principal=principal,
        resource=Resource(resource),
        name=name,
        is_prefix=is_prefix,
        operation=Operation(operation),
        is_allowed=is_allowed,
        host=host,
    )
