"""``oncelog users`` and ``oncelog acls``: who may connect, and who may do what.

A password is typed at a prompt, twice, or is the first line of a file; it is never an argument.

Source: Kafka's kafka-acls.sh and kafka-configs.sh.

One file: the commands about users and about ACLs name principals and resources alike.
"""

from __future__ import annotations

import getpass
import itertools
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Final

import click
from msgspec import structs

from oncelog.actors.protocol.messages.access import (
    ANY_HOST,
    ANY_NAME,
    ANYBODY,
    CLUSTER_NAME,
    RAY_NAME,
    USER_KIND,
    Acl,
    Limits,
    Operation,
    Resource,
)
from oncelog.actors.protocol.scram import (
    DEFAULT_ITERATIONS,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
)
from oncelog.api.admin.identities import acl_filter, as_acl, as_user_name
from oncelog.api.cli.arguments import (
    Arguments,
    Group,
    WholeNumber,
    all_of,
    argument,
    flag,
    group_names,
    option,
    output_options,
    repeated,
    topic_names,
)
from oncelog.api.cli.connect import cluster_options, connect
from oncelog.api.cli.terminal import (
    STATUS_ERROR,
    CliError,
    UsageError,
    fields,
    say,
    show,
    table,
)
from oncelog.api.session.login import PASSWORD_FILE_MAX_BYTES, password_in, read_password
from oncelog.storage.model import INT64_MAX

STDIN: Final = "-"

KINDS: Final = {
    "topic": Resource.TOPIC,
    "group": Resource.GROUP,
    "transactional-id": Resource.TRANSACTIONAL_ID,
}
"""Kinds of which there are several, as options and in ``KIND:NAME``."""

CLUSTER: Final = "cluster"

# --- users ------------------------------------------------------------------------------------


users: Final = Group("users")
_user: Final = argument("name", f"without {USER_KIND!r}")
_password: Final = all_of(
    option(
        "--new-password-file",
        metavar="FILE",
        help="the new password is the first line of this file, or of standard input for '-' "
        "(default: ask)",
    ),
    option(
        "--iterations",
        type=WholeNumber(ITERATIONS_MIN, ITERATIONS_MAX),
        default=DEFAULT_ITERATIONS,
        help="how dear it is to guess the password from what the cluster keeps "
        f"(default: {DEFAULT_ITERATIONS})",
    ),
)


@users.command("add")
@_user
@_password
@cluster_options
def add_user(args: Arguments) -> int:
    """Add a user, with a password."""
    name = as_user_name(args.name)
    password = new_password(args.new_password_file, name)
    with connect(args) as cluster:
        cluster.admin().create_user(name, password, iterations=args.iterations)
    say(f"added {name}; what it may do say with `oncelog acls add --allow {USER_KIND}{name}`")
    return 0


@users.command("passwd")
@_user
@_password
@cluster_options
def change_password(args: Arguments) -> int:
    """Change a user's password; its connections are closed."""
    name = as_user_name(args.name)
    password = new_password(args.new_password_file, name)
    with connect(args) as cluster:
        cluster.admin().alter_user(name, password, iterations=args.iterations)
    say(f"{name} has another password, and its connections are closed")
    return 0


@users.command("list")
@output_options
@cluster_options
def list_users(args: Arguments) -> int:
    """List the users."""
    with connect(args) as cluster:
        found = cluster.admin().list_users()
    rows = [(user.name, user.iterations) for user in found]
    show(
        args,
        [{"name": name, "iterations": iterations} for name, iterations in rows],
        lambda: table(("user", "iterations"), rows) if rows else "no users",
    )
    return 0


@users.command("remove")
@_user
@cluster_options
def remove_user(args: Arguments) -> int:
    """Remove a user; its connections are closed."""
    name = as_user_name(args.name)
    principal = USER_KIND + name
    with connect(args) as cluster:
        admin = cluster.admin()
        admin.delete_user(name)
        left = admin.describe_acls(principal=principal)
    say(f"removed {name}")
    if left:
        # A user that gets the name later would get them too.
        say(f"{len(left)} ACLs name it; remove them: oncelog acls remove --principal {principal}")
    return 0


_LIMITS: Final = Limits.__struct_fields__


@users.command("limit")
@argument("principal", f"or {ANYBODY!r} for all others")
@all_of(
    *(
        option(f"--{name.replace('_', '-')}", type=WholeNumber(1, INT64_MAX), help="this many")
        for name in _LIMITS
    )
)
@cluster_options
def set_limits(args: Arguments) -> int:
    """Say what a principal may take of each actor; replaces all."""
    given = {name: getattr(args, name) for name in _LIMITS}
    with connect(args) as cluster:
        cluster.admin().set_limits(args.principal, **given)
    shown = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
    say(f"{args.principal}: {shown or 'no limits of its own'}")
    return 0


@users.command("limits")
@output_options
@cluster_options
def list_limits(args: Arguments) -> int:
    """List the limits of principals."""
    with connect(args) as cluster:
        limits = cluster.admin().describe_limits()
    rows = ((who, *structs.astuple(one)) for who, one in limits.items())
    show(
        args,
        {who: structs.asdict(one) for who, one in limits.items()},
        lambda: table(("principal", *_LIMITS), rows) if limits else "no limits",
    )
    return 0


def new_password(path: str | None, name: str) -> str:
    """The password that a user gets: of a file, of standard input, or typed twice."""
    if path is not None:
        if path == STDIN:
            return password_in(sys.stdin.buffer.readline(PASSWORD_FILE_MAX_BYTES), "standard input")
        return read_password(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)
            password = getpass.getpass(f"new password of {name}: ")
            again = getpass.getpass("once more: ")
    except (getpass.GetPassWarning, EOFError):
        raise CliError(
            "there is no terminal to ask for the password",
            f"give --new-password-file FILE, or {STDIN} for standard input",
        ) from None
    if password != again:
        raise CliError("the two passwords differ", "type it again")
    return password


# --- ACLs -------------------------------------------------------------------------------------


acls: Final = Group("acls")
_OPERATIONS: Final = ", ".join(
    operation.value for operation in Operation if operation is not Operation.CLUSTER_ACTION
)
_NAMES: Final = {"topic": topic_names, "group": group_names, "transactional-id": None}
_acl: Final = all_of(
    repeated("--allow", "PRINCIPAL", f"what this one ({USER_KIND}NAME) may do"),
    repeated("--deny", "PRINCIPAL", "what this one may not do, whatever else it may"),
    repeated("--operation", "OPERATION", _OPERATIONS),
    *(
        repeated(
            f"--{kind}",
            "NAME",
            f"the {resource.value}; '{ANY_NAME}': any",
            shell_complete=_NAMES[kind],
        )
        for kind, resource in KINDS.items()
    ),
    flag("--cluster", "the cluster itself"),
    flag("--prefix", "the names are what names begin with"),
    option(
        "--host",
        metavar="H",
        help=f"the address that the principal calls from; '{ANY_HOST}': any",
    ),
)
_roles_options: Final = all_of(
    flag("--producer", "Write and Describe on --topic and --transactional-id"),
    flag("--consumer", "Read on --topic and on --group"),
)
_principal: Final = repeated(
    "--principal", "PRINCIPAL", "what this one may do, and what it may not"
)


@acls.command("add")
@_acl
@_roles_options
@cluster_options
def add_acls(args: Arguments) -> int:
    """Add an ACL for each principal, operation and resource."""
    principals, deeds = _principals(args), _deeds(args)
    if not principals:
        raise UsageError("nobody is named", f"give --allow or --deny {USER_KIND}NAME")
    for deed in deeds:
        if "resource" not in deed:
            options = ", ".join(f"--{kind} NAME" for kind in KINDS)
            raise UsageError("no resource is named", f"give {options} or --{CLUSTER}")
        if "operation" not in deed:
            raise UsageError("no operation is named", "give --operation, --producer or --consumer")
    host = ANY_HOST if args.host is None else args.host
    added = [
        as_acl(Acl(is_prefix=args.prefix, host=host, **who, **deed))
        for who, deed in itertools.product(principals, deeds)
    ]
    with connect(args) as cluster:
        cluster.admin().create_acls(added)
    say(_acl_table(added))
    return 0


@acls.command("remove")
@_acl
@_roles_options
@_principal
@cluster_options
def remove_acls(args: Arguments) -> int:
    """Remove the ACLs that fit all options; one left out fits any."""
    filters = list(_filters(args))
    if filters == [{}]:
        raise UsageError(
            "nothing says which ACLs", "give --principal, --operation, --topic or another option"
        )
    with connect(args) as cluster:
        admin = cluster.admin()
        removed = [acl for wanted in filters for acl in admin.delete_acls(**wanted)]
    if not removed:
        raise CliError("no ACL fits, none is removed", "`oncelog acls list` shows all")
    say(_acl_table(removed))
    return 0


@acls.command("list")
@_acl
@_principal
@flag("--match", "also ACLs of prefixes and of '*' that are about the names given")
@output_options
@cluster_options
def list_acls(args: Arguments) -> int:
    """List the ACLs that fit all options; one left out fits any."""
    fits = [acl_filter(wanted) for wanted in _filters(args)]
    with connect(args) as cluster:
        admin = cluster.admin()
        authorization = admin.describe_authorization()
        found = [acl for acl in admin.describe_acls() if any(one(acl) for one in fits)]
    is_on, super_users = authorization.is_on, authorization.super_users
    facts = (
        ("authorization", "on" if is_on else "off: everything is allowed"),
        ("super users", ", ".join(super_users) or "none"),
    )
    show(
        args,
        {
            "is_on": is_on,
            "super_users": list(super_users),
            "acls": [acl_as_json(acl) for acl in found],
        },
        lambda: f"{fields(facts)}\n\n{_acl_table(found) if found else 'no ACLs'}",
    )
    return 0


def _principals(args: Arguments) -> list[dict[str, Any]]:
    """Whom ACLs are about, as fields of them; empty if nobody is named."""
    return [
        *({"principal": one, "is_allowed": True} for one in args.allow),
        *({"principal": one, "is_allowed": False} for one in args.deny),
        *({"principal": one} for one in getattr(args, "principal", ())),
    ]


def _resources(args: Arguments) -> list[dict[str, Any]]:
    """What ACLs are about, as fields of them."""
    found = [
        {"resource": resource, "name": name}
        for kind, resource in KINDS.items()
        for name in getattr(args, kind.replace("-", "_"))
    ]
    if args.cluster:
        found.append({"resource": Resource.CLUSTER, "name": CLUSTER_NAME})
    return found


def _deeds(args: Arguments) -> list[dict[str, Any]]:
    """Operations on resources, as fields of ACLs; what is not given is left out."""
    if getattr(args, "producer", False) or getattr(args, "consumer", False):
        return list(_roles(args))
    operations: Iterable[dict[str, Any]] = [{"operation": one} for one in args.operation] or [{}]
    return [
        resource | operation
        for resource, operation in itertools.product(_resources(args) or [{}], operations)
    ]


def _roles(args: Arguments) -> Iterator[dict[str, Any]]:
    """What a producer and a consumer need."""
    given = {
        "--deny": args.deny,
        "--operation": args.operation,
        "--cluster": args.cluster,
        "--group": not args.consumer and args.group,
        "--transactional-id": not args.producer and args.transactional_id,
    }
    for name, is_given in given.items():
        if is_given:
            raise UsageError(
                f"{name} does not go with these roles",
                "give --producer with --topic and --transactional-id, --consumer with --topic and "
                "--group",
            )
    if not args.topic:
        raise UsageError("no topic is named", "give --topic NAME")
    if args.consumer and not args.group:
        raise UsageError("no group is named", "give --group NAME")
    for resource in _resources(args):
        kind = resource["resource"]
        if args.producer and kind is not Resource.GROUP:
            yield resource | {"operation": Operation.WRITE}
            yield resource | {"operation": Operation.DESCRIBE}
        if args.consumer and kind is not Resource.TRANSACTIONAL_ID:
            yield resource | {"operation": Operation.READ}


def _filters(args: Arguments) -> Iterator[dict[str, Any]]:
    """Fields of ``AclFilter``: an ACL that fits one of them is meant."""
    rest = {} if args.host is None else {"host": args.host}
    is_matched = getattr(args, "match", False)
    if is_matched and args.prefix:
        raise UsageError("--match and --prefix contradict each other", "give one of them")
    for who, what in itertools.product(_principals(args) or [{}], _deeds(args)):
        wanted = who | what | rest
        if is_matched and "name" in wanted:
            wanted["covers"] = wanted.pop("name")
        elif "name" in wanted or args.prefix:
            wanted["is_prefix"] = args.prefix
        yield wanted


def _acl_table(found: Iterable[Acl]) -> str:
    return table(
        ("principal", "", "operation", "resource", "name", "host"),
        (
            (
                acl.principal,
                "may" if acl.is_allowed else "may not",
                acl.operation.value,
                acl.resource.value,
                f"{acl.name}…" if acl.is_prefix else acl.name,
                acl.host,
            )
            for acl in found
        ),
    )


def acl_as_json(acl: Acl) -> dict[str, Any]:
    """An ACL as JSON."""
    return {
        "principal": acl.principal,
        "is_allowed": acl.is_allowed,
        "operation": acl.operation.value,
        "resource": acl.resource.value,
        "name": acl.name,
        "is_prefix": acl.is_prefix,
        "host": acl.host,
    }


# --- authorization ----------------------------------------------------------------------------


def resource_of(text: str) -> tuple[Resource, str]:
    """A type: ``KIND:NAME``, or the cluster."""
    kind, _, name = text.partition(":")
    if kind.lower() == CLUSTER and name in ("", CLUSTER_NAME):
        return Resource.CLUSTER, CLUSTER_NAME
    resource = KINDS.get(kind.lower())
    if resource is None or not name:
        names = ", ".join(f"{kind}:NAME" for kind in KINDS)
        raise click.BadParameter(f"{text!r} is no resource: give {names} or {CLUSTER}")
    return resource, name


@acls.command("check")
@argument("principal", f"{USER_KIND}NAME")
@argument("operation", "Read, for example")
@argument(
    "resource",
    "topic:NAME, group:NAME, transactional-id:ID or cluster",
    type=resource_of,
    metavar="RESOURCE",
)
@option("--host", default=ANY_HOST, metavar="H", help="the address that it calls from")
@output_options
@cluster_options
def check_access(args: Arguments) -> int:
    """Say whether a principal may do something, and why; exit status 1 if not."""
    resource, name = args.resource
    with connect(args) as cluster:
        found = cluster.admin().check_access(
            args.principal, args.operation, resource, name, args.host
        )
    acl = None if found.acl is None else acl_as_json(found.acl)
    show(
        args,
        {"is_allowed": found.is_allowed, "reason": found.reason, "acl": acl},
        lambda: f"{'allowed' if found.is_allowed else 'refused'}: {found.reason}",
    )
    return 0 if found.is_allowed else STATUS_ERROR


@acls.command("on")
@repeated("--super-user", "PRINCIPAL", "may do everything (default: those that there are)")
@cluster_options
def switch_on(args: Arguments) -> int:
    """Have ACLs count: what none allows is refused from now on."""
    with connect(args) as cluster:
        admin = cluster.admin()
        admin.set_authorization(True, args.super_user or None)
        super_users = admin.describe_authorization().super_users
    say(f"authorization is on; super users: {', '.join(super_users)}")
    if RAY_NAME in super_users:
        say(
            f"{RAY_NAME}, every program that connects without a user, may still do everything; "
            f"leave it out with --super-user {USER_KIND}NAME"
        )
    return 0


@acls.command("off")
@cluster_options
def switch_off(args: Arguments) -> int:
    """Have ACLs not count: everything is allowed."""
    with connect(args) as cluster:
        cluster.admin().set_authorization(False)
    say("authorization is off: everything is allowed; users and ACLs stay")
    return 0
