"""Messages about users and ACLs, and what they carry; the rules are in ``protocol/access.py``.

The controller has them in its log. Every actor's process has a copy, by which it admits callers.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from oncelog.actors.protocol.messages.base import Reply, Request
from oncelog.actors.protocol.scram import Credential
from oncelog.storage.model import INT64_MAX

ANYBODY: Final = "User:*"
ANY_HOST: Final = "*"
ANY_NAME: Final = "*"
CLUSTER_NAME: Final = "oncelog"
"""The name of the one resource of kind ``CLUSTER``."""

USER_KIND: Final = "User:"
"""Principals of people and programs begin with it; their name follows."""

RAY_NAME: Final = "User:ray"
"""Any program of the Ray cluster that does not say who it is."""


class Operation(enum.Enum):
    """What is done to a resource, in Kafka's words."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    CLUSTER_ACTION = "ClusterAction"
    """What servers do to each other: replicate, vote, write markers, tell who leads."""
    ALL = "All"
    """Only in an ACL: any of the others."""


class Resource(enum.Enum):
    """A kind of things that requests name."""

    TOPIC = "Topic"
    GROUP = "Group"
    TRANSACTIONAL_ID = "TransactionalId"
    CLUSTER = "Cluster"


class Acl(msgspec.Struct, frozen=True, kw_only=True):
    """One rule: ``principal`` may, or may not, do ``operation`` to the resources of a name.

    ``name`` ``*`` is any name; with ``is_prefix`` all that begin with it. ``host`` is the address
    that the principal calls from, ``*`` for any.
    """

    principal: str
    resource: Resource
    name: str
    operation: Operation
    is_prefix: bool = False
    is_allowed: bool = True
    host: str = ANY_HOST


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a principal may take of each actor; ``None`` is no limit.

    ``ValueError`` for a limit that is not positive.
    """

    requests_per_second: int | None = None
    bytes_per_second: int | None = None
    """Bytes of requests."""
    connections: int | None = None
    open_transactions: int | None = None
    """Transactions with partitions, at each shard of coordinators."""
    transaction_timeout_ms_max: int | None = None
    """For how long one transaction may hold readers back."""

    def __post_init__(self) -> None:
        """Refuse what is no limit: to forbid something is what ACLs are for."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not 1 <= value <= INT64_MAX:
                raise ValueError(f"{name}={value}: give 1 to 2^63 - 1, or none")


NO_LIMITS: Final = Limits()


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """All ACLs of a cluster. Until they are switched on everything is allowed.

    ``limits`` count whether or not they are on: for a principal, or with ``ANYBODY`` for each that
    has none of its own. ``version`` rises with every change of these, of super users and of users.
    """

    version: int = 0
    is_on: bool = False
    super_users: frozenset[str] = frozenset({RAY_NAME})
    acls: tuple[Acl, ...] = ()
    limits: tuple[tuple[str, Limits], ...] = ()


NO_RULES: Final = Rules()


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user that proves itself by a password, and what the servers keep of the password.

    ``name`` is without ``User:``, and prepared (``scram.prepare_name``).
    """

    name: str
    credential: Credential


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What a process needs to know to admit callers; ``rules.version`` is the version of all."""

    rules: Rules = NO_RULES
    users: tuple[User, ...] = ()


NO_ACCESS: Final = Access()
"""That of a cluster in which nobody has been named yet."""


class AccessReply(Reply, frozen=True, kw_only=True):
    """``access`` if it is newer than what the caller knows, else ``None``."""

    access: Access | None = None


class AccessRequest(Request[AccessReply], frozen=True, kw_only=True):
    """A process asks the controller for users and ACLs; ``known_version`` -1: it knows none."""

    method = "access"
    reply_type = AccessReply

    known_version: int = -1


class LearnAccessReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` the process goes by this, or by something newer, and has closed what it must."""


class LearnAccessRequest(Request[LearnAccessReply], frozen=True, kw_only=True):
    """The controller sends every process users and ACLs after each change; late copies do no harm.

    Connections of users that are gone, or have a new password, are closed.
    """

    method = "learn_access"
    reply_type = LearnAccessReply

    access: Access


class UserDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A user as others may see it."""

    name: str
    iterations: int


class DescribeAccessReply(Reply, frozen=True, kw_only=True):
    """All rules, and the users without their credentials."""

    rules: Rules = NO_RULES
    users: tuple[UserDescription, ...] = ()


class DescribeAccessRequest(Request[DescribeAccessReply], frozen=True, kw_only=True):
    """Ask for all rules and users."""

    method = "describe_access"
    reply_type = DescribeAccessReply


class AlterUsersReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` it is durable, and every process that could be reached goes by it."""


class AlterUsersRequest(Request[AlterUsersReply], frozen=True, kw_only=True):
    """Add users or give them new credentials, and remove some; all or none. Repeating is harmless.

    With ``are_known`` those that are put must exist already (``True``), or must not (``False``).
    Removing one that does not exist does nothing. Source: KIP-554.
    """

    method = "alter_users"
    reply_type = AlterUsersReply

    put: tuple[User, ...] = ()
    are_known: bool | None = None
    removed: tuple[str, ...] = ()


class AlterAclsReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` it is durable, and every process that could be reached goes by it."""


class AlterAclsRequest(Request[AlterAclsReply], frozen=True, kw_only=True):
    """Add and remove ACLs; all or none. Adding one that exists, or removing another, does nothing.

    Source: KIP-11.
    """

    method = "alter_acls"
    reply_type = AlterAclsReply

    added: tuple[Acl, ...] = ()
    removed: tuple[Acl, ...] = ()


class AlterLimitsReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` it is durable, and every process that could be reached goes by it."""


class AlterLimitsRequest(Request[AlterLimitsReply], frozen=True, kw_only=True):
    """Give principals limits in place of those they had, and take them from others; all or none.

    ``User:*`` are those of each principal that has none of its own. Source: KIP-13.
    """

    method = "alter_limits"
    reply_type = AlterLimitsReply

    put: tuple[tuple[str, Limits], ...] = ()
    removed: tuple[str, ...] = ()


class AlterAuthorizationReply(Reply, frozen=True, kw_only=True):
    """On ``NONE`` it is durable, and every process that could be reached goes by it."""


class AlterAuthorizationRequest(Request[AlterAuthorizationReply], frozen=True, kw_only=True):
    """Switch the rules on or off, and say who may do everything (``User:alice``).

    ``super_users`` ``None``: those of now.
    """

    method = "alter_authorization"
    reply_type = AlterAuthorizationReply

    is_on: bool
    super_users: tuple[str, ...] | None = None
