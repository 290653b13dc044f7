"""``oncelog users`` and ``oncelog acls``: who may connect, and who may do what.

A password is typed at a prompt, twice, or is the first line of a file; it is never an argument.

Source: Kafka's kafka-acls.sh and kafka-configs.sh.

One file: the commands about users and about ACLs name principals and resources alike.
"""

from __future__ import annotations

import argparse
import getpass
import itertools
import json
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Final

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
from oncelog.api.cli.connect import add_cluster_arguments, connect
from oncelog.api.cli.terminal import (
    STATUS_ERROR,
    CliError,
    Commands,
    UsageError,
    add_actions,
    add_command,
    add_json,
    add_repeated,
    say,
    table,
    whole_number,
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

# --- arguments --------------------------------------------------------------------------------


def add_commands(commands: Commands) -> None:
    """Add both commands and their actions."""
    _add_users(commands)
    _add_acls(commands)


def _add_users(commands: Commands) -> None:
    actions = add_actions(commands, "users", "Add, list or remove users, or change passwords.")
    add = add_command(actions, "add", "Add a user, with a password.", add_user)
    change = add_command(
        actions, "passwd", "Change a user's password; its connections are closed.", change_password
    )
    listing = add_command(actions, "list", "List the users.", list_users)
    remove = add_command(
        actions, "remove", "Remove a user; its connections are closed.", remove_user
    )
    _add_limits(actions)
    for action in (add, change, remove):
        action.add_argument("name", metavar="NAME", help=f"without {USER_KIND!r}")
    for action in (add, change):
        action.add_argument(
            "--new-password-file",
            metavar="FILE",
            help="the new password is the first line of this file, or of standard input for '-' "
            "(default: ask)",
        )
        action.add_argument(
            "--iterations",
            type=whole_number(ITERATIONS_MIN, ITERATIONS_MAX),
            default=DEFAULT_ITERATIONS,
            metavar="N",
            help="how dear it is to guess the password from what the cluster keeps "
            f"(default: {DEFAULT_ITERATIONS})",
        )
    add_json(listing)
    for action in actions.choices.values():
        add_cluster_arguments(action)


def _add_limits(actions: Commands) -> None:
    limit = add_command(
        actions, "limit", "Say what a principal may take of each actor; replaces all.", set_limits
    )
    limit.add_argument("principal", metavar="PRINCIPAL", help=f"or {ANYBODY!r} for all others")
    for name in Limits.__struct_fields__:
        limit.add_argument(
            f"--{name.replace('_', '-')}", type=whole_number(1, INT64_MAX), metavar="N"
        )
    limits = add_command(actions, "limits", "List the limits of principals.", list_limits)
    add_json(limits)


def _add_acls(commands: Commands) -> None:
    actions = add_actions(commands, "acls", "Say who may do what, and whether that counts.")
    add = add_command(
        actions, "add", "Add an ACL for each principal, operation and resource.", add_acls
    )
    remove = add_command(
        actions,
        "remove",
        "Remove the ACLs that fit all options; one left out fits any.",
        remove_acls,
    )
    listing = add_command(
        actions,
        "list",
        "List the ACLs that fit all options; one left out fits any.",
        list_acls,
    )
    for action in (add, remove, listing):
        _add_acl_arguments(action)
    for action in (add, remove):
        action.add_argument(
            "--producer",
            action="store_true",
            help="Write and Describe on --topic and --transactional-id",
        )
        action.add_argument(
            "--consumer", action="store_true", help="Read on --topic and on --group"
        )
    for action in (remove, listing):
        add_repeated(
            action, "--principal", "PRINCIPAL", "what this one may do, and what it may not"
        )
    listing.add_argument(
        "--match",
        action="store_true",
        help="also ACLs of prefixes and of '*' that are about the names given",
    )
    check = _add_check(actions)
    on = add_command(
        actions, "on", "Have ACLs count: what none allows is refused from now on.", switch_on
    )
    add_repeated(
        on, "--super-user", "PRINCIPAL", "may do everything (default: those that there are)"
    )
    add_command(actions, "off", "Have ACLs not count: everything is allowed.", switch_off)
    add_json(listing, check)
    for action in actions.choices.values():
        add_cluster_arguments(action)


def _add_check(actions: Commands) -> argparse.ArgumentParser:
    check = add_command(
        actions,
        "check",
        "Say whether a principal may do something, and why; exit status 1 if not.",
        check_access,
    )
    check.add_argument("principal", metavar="PRINCIPAL", help=f"{USER_KIND}NAME")
    check.add_argument("operation", metavar="OPERATION", help="Read, for example")
    check.add_argument(
        "resource",
        metavar="RESOURCE",
        type=resource_of,
        help="topic:NAME, group:NAME, transactional-id:ID or cluster",
    )
    check.add_argument(
        "--host", default=ANY_HOST, metavar="H", help="the address that it calls from"
    )
    return check


def _add_acl_arguments(action: argparse.ArgumentParser) -> None:
    add_repeated(action, "--allow", "PRINCIPAL", f"what this one ({USER_KIND}NAME) may do")
    add_repeated(action, "--deny", "PRINCIPAL", "what this one may not do, whatever else it may")
    operations = ", ".join(
        operation.value for operation in Operation if operation is not Operation.CLUSTER_ACTION
    )
    add_repeated(action, "--operation", "OPERATION", operations)
    for kind, resource in KINDS.items():
        add_repeated(action, f"--{kind}", "NAME", f"the {resource.value}; '{ANY_NAME}': any")
    action.add_argument("--cluster", action="store_true", help="the cluster itself")
    action.add_argument("--prefix", action="store_true", help="the names are what names begin with")
    action.add_argument(
        "--host", metavar="H", help=f"the address that the principal calls from; '{ANY_HOST}': any"
    )


def resource_of(text: str) -> tuple[Resource, str]:
    """An argument type: ``KIND:NAME``, or the cluster."""
    kind, _, name = text.partition(":")
    if kind.lower() == CLUSTER and name in ("", CLUSTER_NAME):
        return Resource.CLUSTER, CLUSTER_NAME
    resource = KINDS.get(kind.lower())
    if resource is None or not name:
        names = ", ".join(f"{kind}:NAME" for kind in KINDS)
        raise argparse.ArgumentTypeError(f"{text!r} is no resource: give {names} or {CLUSTER}")
    return resource, name


# --- users ------------------------------------------------------------------------------------


def add_user(args: argparse.Namespace) -> int:
    """``oncelog users add``."""
    name = as_user_name(args.name)
    password = new_password(args.new_password_file, name)
    with connect(args) as cluster:
        cluster.admin().create_user(name, password, iterations=args.iterations)
    say(f"added {name}; what it may do say with `oncelog acls add --allow {USER_KIND}{name}`")
    return 0


def change_password(args: argparse.Namespace) -> int:
    """``oncelog users passwd``."""
    name = as_user_name(args.name)
    password = new_password(args.new_password_file, name)
    with connect(args) as cluster:
        cluster.admin().alter_user(name, password, iterations=args.iterations)
    say(f"{name} has another password, and its connections are closed")
    return 0


def list_users(args: argparse.Namespace) -> int:
    """``oncelog users list``."""
    with connect(args) as cluster:
        users = cluster.admin().list_users()
    if args.json:
        found = [{"name": user.name, "iterations": user.iterations} for user in users]
        say(json.dumps(found, indent=2))
    elif users:
        say(table(("user", "iterations"), ((user.name, user.iterations) for user in users)))
    else:
        say("no users")
    return 0


def set_limits(args: argparse.Namespace) -> int:
    """``oncelog users limit``."""
    given = {name: getattr(args, name) for name in Limits.__struct_fields__}
    with connect(args) as cluster:
        cluster.admin().set_limits(args.principal, **given)
    shown = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
    say(f"{args.principal}: {shown or 'no limits of its own'}")
    return 0


def list_limits(args: argparse.Namespace) -> int:
    """``oncelog users limits``."""
    with connect(args) as cluster:
        limits = cluster.admin().describe_limits()
    names = Limits.__struct_fields__
    if args.json:
        found = {who: {name: getattr(one, name) for name in names} for who, one in limits.items()}
        say(json.dumps(found, indent=2))
    elif limits:
        rows = [
            (who, *(("-" if value is None else value) for value in structs.astuple(one)))
            for who, one in limits.items()
        ]
        say(table(("principal", *names), rows))
    else:
        say("no limits")
    return 0


def remove_user(args: argparse.Namespace) -> int:
    """``oncelog users remove``."""
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


def add_acls(args: argparse.Namespace) -> int:
    """``oncelog acls add``."""
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
    acls = [
        as_acl(Acl(is_prefix=args.prefix, host=host, **who, **deed))
        for who, deed in itertools.product(principals, deeds)
    ]
    with connect(args) as cluster:
        cluster.admin().create_acls(acls)
    say(_acl_table(acls))
    return 0


def remove_acls(args: argparse.Namespace) -> int:
    """``oncelog acls remove``."""
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


def list_acls(args: argparse.Namespace) -> int:
    """``oncelog acls list``."""
    fits = [acl_filter(wanted) for wanted in _filters(args)]
    with connect(args) as cluster:
        admin = cluster.admin()
        authorization = admin.describe_authorization()
        acls = [acl for acl in admin.describe_acls() if any(one(acl) for one in fits)]
    if args.json:
        found = {
            "is_on": authorization.is_on,
            "super_users": list(authorization.super_users),
            "acls": [acl_as_json(acl) for acl in acls],
        }
        say(json.dumps(found, indent=2))
        return 0
    say(f"authorization  {'on' if authorization.is_on else 'off: everything is allowed'}")
    say(f"super users    {', '.join(authorization.super_users) or 'none'}")
    say()
    say(_acl_table(acls) if acls else "no ACLs")
    return 0


def _principals(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Whom ACLs are about, as fields of them; empty if nobody is named."""
    return [
        *({"principal": one, "is_allowed": True} for one in args.allow),
        *({"principal": one, "is_allowed": False} for one in args.deny),
        *({"principal": one} for one in getattr(args, "principal", ())),
    ]


def _resources(args: argparse.Namespace) -> list[dict[str, Any]]:
    """What ACLs are about, as fields of them."""
    found = [
        {"resource": resource, "name": name}
        for kind, resource in KINDS.items()
        for name in getattr(args, kind.replace("-", "_"))
    ]
    if args.cluster:
        found.append({"resource": Resource.CLUSTER, "name": CLUSTER_NAME})
    return found


def _deeds(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Operations on resources, as fields of ACLs; what is not given is left out."""
    if getattr(args, "producer", False) or getattr(args, "consumer", False):
        return list(_roles(args))
    operations: Iterable[dict[str, Any]] = [{"operation": one} for one in args.operation] or [{}]
    return [
        resource | operation
        for resource, operation in itertools.product(_resources(args) or [{}], operations)
    ]


def _roles(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What a producer and a consumer need."""
    given = {
        "--deny": args.deny,
        "--operation": args.operation,
        "--cluster": args.cluster,
        "--group": not args.consumer and args.group,
        "--transactional-id": not args.producer and args.transactional_id,
    }
    for option, is_given in given.items():
        if is_given:
            raise UsageError(
                f"{option} does not go with these roles",
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


def _filters(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
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


def _acl_table(acls: Iterable[Acl]) -> str:
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
            for acl in acls
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


def check_access(args: argparse.Namespace) -> int:
    """``oncelog acls check``."""
    resource, name = args.resource
    with connect(args) as cluster:
        found = cluster.admin().check_access(
            args.principal, args.operation, resource, name, args.host
        )
    if args.json:
        acl = None if found.acl is None else acl_as_json(found.acl)
        shown = {"is_allowed": found.is_allowed, "reason": found.reason, "acl": acl}
        say(json.dumps(shown, indent=2))
    else:
        say(f"{'allowed' if found.is_allowed else 'refused'}: {found.reason}")
    return 0 if found.is_allowed else STATUS_ERROR


def switch_on(args: argparse.Namespace) -> int:
    """``oncelog acls on``."""
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


def switch_off(args: argparse.Namespace) -> int:
    """``oncelog acls off``."""
    with connect(args) as cluster:
        cluster.admin().set_authorization(False)
    say("authorization is off: everything is allowed; users and ACLs stay")
    return 0
