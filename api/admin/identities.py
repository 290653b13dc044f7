"""Users, ACLs and authorization: what is given is checked here and brought into the rules' form.

A password becomes a credential here; it leaves the program in no message. Kinds of resources and
operations may be spelled in lower case, and with hyphens or underscores.

Source: KIP-11, KIP-140, KIP-290, KIP-554.

One file: what is given about users, ACLs and limits is checked by the same words.
"""

from __future__ import annotations

import asyncio
import difflib
import enum
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict, TypeVar

import msgspec
from msgspec import structs

from oncelog.actors.protocol.access import Authorizer, Principal, covers
from oncelog.actors.protocol.cluster.access_control import (
    CHANGES_MAX,
    OPERATIONS,
    RESERVED_NAMES,
    as_address,
    is_principal,
    why_impossible,
)
from oncelog.actors.protocol.messages.access import (
    ANY_HOST,
    ANY_NAME,
    ANYBODY,
    CLUSTER_NAME,
    RAY_NAME,
    USER_KIND,
    Acl,
    AlterAclsRequest,
    AlterAuthorizationRequest,
    AlterLimitsRequest,
    AlterUsersRequest,
    DescribeAccessReply,
    DescribeAccessRequest,
    Limits,
    Operation,
    Resource,
    Rules,
    User,
    UserDescription,
)
from oncelog.actors.protocol.scram import (
    ABSENT_SALT_BYTES,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    NAME_CHARS_MAX,
    PASSWORD_CHARS_MAX,
    Credential,
    make_credential,
    prepare_name,
)
from oncelog.api.admin.calls import AdminCalls, check, is_whole
from oncelog.storage.errors import ErrorCode
from oncelog.storage.exceptions import InvalidRequestError
from oncelog.storage.model import INT64_MAX

NamedT = TypeVar("NamedT", bound=enum.Enum)


class AclFilter(TypedDict, total=False):
    """Which ACLs are meant; what is left out may be anything.

    ``name`` is that in the ACL; with ``is_prefix`` it is one, without it is not. ``covers`` is the
    name of a resource: all ACLs about it are meant, by whatever name or prefix.
    """

    principal: str
    resource: Resource | str
    name: str
    covers: str
    operation: Operation | str
    is_prefix: bool
    is_allowed: bool
    host: str


class LimitValues(TypedDict, total=False):
    """The fields of ``Limits``."""

    requests_per_second: int | None
    bytes_per_second: int | None
    connections: int | None
    open_transactions: int | None
    transaction_timeout_ms_max: int | None


class Authorization(msgspec.Struct, frozen=True, kw_only=True):
    """Whether ACLs count, and who may do everything, sorted."""

    is_on: bool
    super_users: tuple[str, ...]


class AccessCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a principal may do something, why, and the ACL that decides it, if one does."""

    is_allowed: bool
    reason: str
    acl: Acl | None = None


# --- users ------------------------------------------------------------------------------------


async def create_user(
    calls: AdminCalls, name: object, password: object, *, iterations: object, exist_ok: bool
) -> None:
    """Add a user; see ``AsyncAdmin.create_user``."""
    user = await _user(name, password, iterations)
    reply = await calls.controller(AlterUsersRequest(put=(user,), are_known=False))
    if reply.error is ErrorCode.INVALID_REQUEST and user.name in await _names(calls):
        if exist_ok:
            return
        raise InvalidRequestError(
            f"there is a user {user.name!r} already",
            advice="give another name; alter_user or `oncelog users passwd` changes the password",
        )
    check(reply)


async def alter_user(calls: AdminCalls, name: object, password: object, iterations: object) -> None:
    """Give a user another password; see ``AsyncAdmin.alter_user``."""
    user = await _user(name, password, iterations)
    reply = await calls.controller(AlterUsersRequest(put=(user,), are_known=True))
    if reply.error is ErrorCode.INVALID_REQUEST:
        _check_known(user.name, await _names(calls))
    check(reply)


async def delete_user(calls: AdminCalls, name: object) -> None:
    """Remove a user; see ``AsyncAdmin.delete_user``."""
    user_name = as_user_name(name)
    described = await _described(calls)
    names = {user.name for user in described.users}
    _check_known(user_name, names)
    _check_not_locked_out(described.rules, names - {user_name})
    reply = await calls.controller(AlterUsersRequest(removed=(user_name,)))
    check(reply)


async def list_users(calls: AdminCalls) -> list[UserDescription]:
    """All users by name; see ``AsyncAdmin.list_users``."""
    return list((await _described(calls)).users)


def as_user_name(name: object) -> str:
    """The name of a user in the form that servers know, or ``InvalidRequestError``."""
    shown = f"user name {name!r}"
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(shown, advice=f"give 1 to {NAME_CHARS_MAX} characters")
    if name.startswith(USER_KIND):
        raise InvalidRequestError(shown, advice=f"leave out {USER_KIND!r}")
    try:
        prepared = prepare_name(name)
    except ValueError as error:
        raise InvalidRequestError(
            f"{shown}: {error}", advice=f"give 1 to {NAME_CHARS_MAX} printable characters"
        ) from None
    if prepared in RESERVED_NAMES:
        raise InvalidRequestError(
            f"{shown}: {USER_KIND}{prepared} stands for others", advice="give another name"
        )
    return prepared


async def _user(name: object, password: object, iterations: object) -> User:
    user_name = as_user_name(name)
    count = int(str(iterations)) if is_whole(iterations) else -1
    if not ITERATIONS_MIN <= count <= ITERATIONS_MAX:
        raise InvalidRequestError(
            f"iterations={iterations!r}",
            advice=f"give a whole number from {ITERATIONS_MIN:,} to {ITERATIONS_MAX:,}",
        )
    return User(name=user_name, credential=await _credential(password, count))


async def _credential(password: object, iterations: int) -> Credential:
    """No error tells the password."""
    advice = f"give 1 to {PASSWORD_CHARS_MAX:,} printable characters"
    if not isinstance(password, str):
        raise InvalidRequestError("the password is no text", advice=advice)
    salt = secrets.token_bytes(ABSENT_SALT_BYTES)
    try:
        # It computes for so long that an event loop would notice.
        return await asyncio.to_thread(make_credential, password, salt, iterations)
    except ValueError as error:
        raise InvalidRequestError(f"the password cannot be used: {error}", advice=advice) from None


async def _described(calls: AdminCalls) -> DescribeAccessReply:
    reply = await calls.controller(DescribeAccessRequest())
    check(reply)
    return reply


async def _names(calls: AdminCalls) -> set[str]:
    return {user.name for user in (await _described(calls)).users}


def _check_known(name: str, names: Iterable[str]) -> None:
    known = set(names)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        raise InvalidRequestError(
            f"there is no user {name!r}",
            advice=f"did you mean {close[0]!r}?" if close else "list_users has all",
        )


# --- ACLs -------------------------------------------------------------------------------------


async def create_acls(calls: AdminCalls, acls: Iterable[Acl]) -> None:
    """Add ACLs; see ``AsyncAdmin.create_acls``."""
    if isinstance(acls, (str, bytes)) or not isinstance(acls, Iterable):
        raise InvalidRequestError(f"acls={acls!r}", advice="give a list of oncelog.Acl")
    added = tuple(map(as_acl, acls))
    if added:
        reply = await calls.controller(AlterAclsRequest(added=added))
        check(reply)


async def delete_acls(calls: AdminCalls, wanted: Mapping[str, Any]) -> list[Acl]:
    """Remove ACLs; see ``AsyncAdmin.delete_acls``."""
    fits = acl_filter(wanted)
    if not wanted:
        raise InvalidRequestError(
            "no filter is given, so all ACLs would be removed",
            advice=f"give at least one of {', '.join(_FILTERS)}",
        )
    described = await _described(calls)
    removed = _sorted(filter(fits, described.rules.acls))
    left = tuple(acl for acl in described.rules.acls if not fits(acl))
    names = {user.name for user in described.users}
    if removed:
        _check_not_locked_out(structs.replace(described.rules, acls=left), names)
    for first in range(0, len(removed), CHANGES_MAX):
        request = AlterAclsRequest(removed=tuple(removed[first : first + CHANGES_MAX]))
        reply = await calls.controller(request)
        check(reply)
    return removed


async def describe_acls(calls: AdminCalls, wanted: Mapping[str, Any]) -> list[Acl]:
    """The ACLs that fit; see ``AsyncAdmin.describe_acls``."""
    fits = acl_filter(wanted)
    return _sorted(filter(fits, (await _described(calls)).rules.acls))


def as_acl(acl: object) -> Acl:
    """An ACL in the form of the rules, or ``InvalidRequestError``."""
    if not isinstance(acl, Acl):
        raise InvalidRequestError(f"{acl!r} is no ACL", advice="give oncelog.Acl(...)")
    resource = as_resource(acl.resource)
    checked = Acl(
        principal=as_principal(acl.principal),
        resource=resource,
        name=_as_text("name", acl.name),
        operation=as_operation(acl.operation, resource),
        is_prefix=_as_bool("is_prefix", acl.is_prefix),
        is_allowed=_as_bool("is_allowed", acl.is_allowed),
        host=_as_host(acl.host),
    )
    what, _, advice = why_impossible(checked).rpartition(": ")
    if what:
        raise InvalidRequestError(what, advice=advice)
    return checked


def as_principal(principal: object) -> str:
    """A principal in the form of the rules, or ``InvalidRequestError``."""
    shown = f"principal {principal!r}"
    advice = f"give {USER_KIND}NAME, or {ANYBODY} for anybody"
    if not isinstance(principal, str) or not principal.startswith(USER_KIND):
        raise InvalidRequestError(shown, advice=advice)
    try:
        return USER_KIND + prepare_name(principal.removeprefix(USER_KIND))
    except ValueError as error:
        raise InvalidRequestError(f"{shown}: {error}", advice=advice) from None


def as_resource(resource: object) -> Resource:
    """A kind of resource, or ``InvalidRequestError``."""
    return _as_member("resource", Resource, resource, Resource)


def as_operation(operation: object, resource: Resource | None = None) -> Operation:
    """An operation that ``resource`` has, if one is given, or ``InvalidRequestError``."""
    known = frozenset[Operation]().union(*OPERATIONS.values())
    if resource is not None:
        known = OPERATIONS[resource]
    what = "operation" if resource is None else f"operation on a {resource.value}:"
    return _as_member(what, Operation, operation, known)


def _as_member(what: str, kind: type[NamedT], value: object, allowed: Iterable[NamedT]) -> NamedT:
    """The member of an enumeration that is meant."""
    by_name = {_folded(member.value): member for member in kind}
    found = by_name.get(_folded(value)) if isinstance(value, str) else value
    known = [member for member in kind if member in set(allowed)]
    for member in known:
        if member is found:
            return member
    shown = value.value if isinstance(value, enum.Enum) else value
    names = ", ".join(member.value for member in known)
    raise InvalidRequestError(f"{what} {shown!r}", advice=f"give one of {names}")


def _folded(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _as_text(what: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequestError(f"{what}={value!r}", advice="give a text that is not empty")
    return value


def _as_host(host: object) -> str:
    """An address in the form of the rules, or ``*``; ``InvalidRequestError`` for anything else."""
    text = _as_text("host", host)
    address = ANY_HOST if text == ANY_HOST else as_address(text)
    if address is None:
        raise InvalidRequestError(
            f"host {text!r}", advice=f"give an address, or {ANY_HOST} for any"
        )
    return address


def _as_bool(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{what}={value!r}", advice="give True or False")
    return value


_FILTERS: Final[dict[str, Callable[[Any], Any]]] = {
    "principal": as_principal,
    "resource": as_resource,
    "name": lambda value: _as_text("name", value),
    "covers": lambda value: _as_text("covers", value),
    "operation": as_operation,
    "is_prefix": lambda value: _as_bool("is_prefix", value),
    "is_allowed": lambda value: _as_bool("is_allowed", value),
    "host": _as_host,
}
"""The fields of ``AclFilter``, and what checks each."""


def acl_filter(wanted: Mapping[str, Any]) -> Callable[[Acl], bool]:
    """Whether an ACL is one of those that are wanted, fields of ``AclFilter``."""
    for name in wanted:
        if name not in _FILTERS:
            raise InvalidRequestError(
                f"{name}={wanted[name]!r} is no filter", advice=f"there are {', '.join(_FILTERS)}"
            )
    checked = {name: _FILTERS[name](value) for name, value in wanted.items()}
    resource, operation = checked.get("resource"), checked.get("operation")
    if resource is not None and operation is not None:
        as_operation(operation, resource)
    covered = checked.pop("covers", None)

    def fits(acl: Acl) -> bool:
        is_about = covered is None or covers(acl, covered)
        return is_about and all(getattr(acl, name) == value for name, value in checked.items())

    return fits


def _sorted(acls: Iterable[Acl]) -> list[Acl]:
    return sorted(
        acls,
        key=lambda acl: (
            acl.resource.value,
            acl.name,
            acl.is_prefix,
            acl.principal,
            acl.is_allowed,
            acl.operation.value,
            acl.host,
        ),
    )


# --- limits -----------------------------------------------------------------------------------


async def set_limits(calls: AdminCalls, principal: object, given: Mapping[str, Any]) -> None:
    """Give a principal limits; see ``AsyncAdmin.set_limits``."""
    name = _as_limited(principal)
    unknown = sorted(given.keys() - set(Limits.__struct_fields__))
    if unknown:
        raise InvalidRequestError(
            f"limit {unknown[0]!r}", advice=f"give some of {', '.join(Limits.__struct_fields__)}"
        )
    for limit, value in given.items():
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (is_number and 1 <= value <= INT64_MAX):
            raise InvalidRequestError(
                f"{limit}={value!r}", advice="give a number from 1 to 2^63 - 1, or None"
            )
    limits = Limits(**given)
    if limits == Limits():
        request = AlterLimitsRequest(removed=(name,))
    else:
        request = AlterLimitsRequest(put=((name, limits),))
    reply = await calls.controller(request)
    check(reply)


async def describe_limits(calls: AdminCalls) -> dict[str, Limits]:
    """The limits of each principal that has some; see ``AsyncAdmin.describe_limits``."""
    return dict(sorted((await _described(calls)).rules.limits))


def _as_limited(principal: object) -> str:
    if not isinstance(principal, str) or not is_principal(principal):
        raise InvalidRequestError(
            f"principal {principal!r}", advice=f"give {USER_KIND}NAME, or {ANYBODY} for all others"
        )
    return principal


# --- authorization ----------------------------------------------------------------------------


async def set_authorization(
    calls: AdminCalls, is_on: object, super_users: Sequence[str] | None
) -> None:
    """Switch ACLs on or off; see ``AsyncAdmin.set_authorization``."""
    switched_on = _as_bool("is_on", is_on)
    given = None if super_users is None else _as_super_users(super_users)
    if switched_on:
        described = await _described(calls)
        named = described.rules.super_users if given is None else given
        rules = structs.replace(described.rules, is_on=True, super_users=frozenset(named))
        _check_not_locked_out(rules, {user.name for user in described.users})
    # Those of now are left to the controller: others may change them meanwhile.
    request = AlterAuthorizationRequest(is_on=switched_on, super_users=given)
    reply = await calls.controller(request)
    check(reply)


async def describe_authorization(calls: AdminCalls) -> Authorization:
    """Whether ACLs count; see ``AsyncAdmin.describe_authorization``."""
    rules = (await _described(calls)).rules
    return Authorization(is_on=rules.is_on, super_users=tuple(sorted(rules.super_users)))


async def check_access(
    calls: AdminCalls,
    principal: object,
    operation: object,
    resource: object,
    name: object,
    host: object,
) -> AccessCheck:
    """Whether a principal may do something; see ``AsyncAdmin.check_access``."""
    who, kind = as_principal(principal), as_resource(resource)
    what, named, where = (
        as_operation(operation, kind),
        _as_text("name", name),
        _as_host(host),
    )
    if what is Operation.ALL:
        raise InvalidRequestError(
            "operation 'All' is only in ACLs", advice="give one of the others"
        )
    if kind is Resource.CLUSTER and named != CLUSTER_NAME:
        raise InvalidRequestError(f"cluster {named!r}", advice=f"the only one is {CLUSTER_NAME!r}")
    described = await _described(calls)
    authorizer, acl = Authorizer(described.rules), None
    if not described.rules.is_on:
        reason = "authorization is off: everything is allowed"
    elif who in described.rules.super_users:
        reason = f"{who} is a super user"
    else:
        acl = authorizer.deciding(who, where, what, kind, named)
        reason = "no ACL allows it" if acl is None else acl_text(acl)
    name_of_user = who.removeprefix(USER_KIND)
    if name_of_user not in RESERVED_NAMES | {user.name for user in described.users}:
        reason += f"; there is no user {name_of_user!r}"
    is_allowed = authorizer.may(Principal(who), what, kind, named, where)
    return AccessCheck(is_allowed=is_allowed, reason=reason, acl=acl)


def acl_text(acl: Acl) -> str:
    """An ACL as a sentence: ``User:alice may Read Topic 'flights'``."""
    verb = "may" if acl.is_allowed else "may not"
    operation = "do everything to" if acl.operation is Operation.ALL else acl.operation.value
    kind = acl.resource.value
    if acl.resource is Resource.CLUSTER:
        what = f"the {kind}"
    elif acl.is_prefix:
        what = f"each {kind} whose name begins with {acl.name!r}"
    else:
        what = f"any {kind}" if acl.name == ANY_NAME else f"{kind} {acl.name!r}"
    where = "" if acl.host == ANY_HOST else f" from {acl.host}"
    return f"{acl.principal} {verb} {operation} {what}{where}"


def _as_super_users(super_users: object) -> tuple[str, ...]:
    if isinstance(super_users, (str, bytes)) or not isinstance(super_users, Iterable):
        raise InvalidRequestError(
            f"super_users={super_users!r}", advice=f"give a list of {USER_KIND}NAME"
        )
    named = sorted(set(map(as_principal, super_users)))
    if ANYBODY in named:
        raise InvalidRequestError(
            f"super user {ANYBODY!r}", advice="name each of them, or leave authorization off"
        )
    return tuple(named)


def _check_not_locked_out(rules: Rules, names: Iterable[str]) -> None:
    """Refuse rules under which nobody could change users and ACLs any more."""
    authorizer = Authorizer(rules)
    known = (RAY_NAME, *(f"{USER_KIND}{name}" for name in names))
    if not any(
        authorizer.may(Principal(who), Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME, ANY_HOST)
        for who in known
    ):
        raise InvalidRequestError(
            "this would lock out everyone: no user that exists could change users and ACLs again",
            advice="create a user, and make it a super user, first",
        )
